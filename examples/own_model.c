/* own_model.c: a model of one's own, declared, trained and saved through the installed library.
 * Two interleaved spirals are told apart by a small residual network; no file is needed.
 *
 *     cc own_model.c $(pkg-config --cflags --libs loopline) -lm && ./a.out */
#include <loopline.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 128, WIDTH = 32, STEPS = 1500, TEST = 1000 };

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if ((call) != LL_OK) {                                                                     \
            fprintf(stderr, "%s\n%s", ll_error_text(), ll_error_frames());                         \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* The model. The same function declares it for training and for use, at any batch. */
static ll_graph *declare(int batch, const ll_optim *optim)
{
    ll_graph *g = ll_graph_new("spirals");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(batch, 2));
    ll_val y = ll_batch(g, "y", LL_I32, LL_SHAPE(batch));
    ll_val h = ll_linear(g, "in", x, WIDTH, true);
    for (int i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof name, "block%d", i);
        ll_graph_push(g, name);
        ll_val z =
            ll_gelu(g, ll_linear(g, "up", ll_layernorm_layer(g, "norm", h), 2 * WIDTH, true));
        h = ll_add(g, h, ll_linear(g, "down", z, WIDTH, true));
        ll_graph_pop(g);
    }
    ll_val logits = ll_linear(g, "out", h, 2, true);
    ll_val loss = ll_mean(g, ll_cross_entropy(g, logits, y));
    ll_graph_result(g, "loss", loss);
    ll_graph_result(g, "correct", ll_sum_all(g, ll_correct(g, logits, y)));
    if (optim) ll_minimize(g, loss, optim);
    return g;
}

static void spirals(int n, float *x, int32_t *y)
{
    for (int i = 0; i < n; i++) {
        double t = 0.3 + 3 * 3.14159 * rand() / RAND_MAX;
        y[i] = rand() % 2;
        double turn = t + (y[i] ? 3.14159 : 0);
        x[2 * i] = (float)(0.25 * t * cos(turn));
        x[2 * i + 1] = (float)(0.25 * t * sin(turn));
    }
}

int main(void)
{
    static float x[2 * TEST];
    static int32_t y[TEST];
    ll_graph *train = declare(BATCH, &(ll_optim){.name = "adamw", .weight_decay = 0.01});
    ll_graph *test = declare(TEST, NULL);
    ll_session *s, *e;
    MUST(ll_session_open(train, &(ll_session_opts){.seed = 1}, &s));
    printf("memory of the training program: %zu bytes\n", ll_session_bytes(s));
    srand(1);
    for (int step = 0; step < STEPS; step++) {
        spirals(BATCH, x, y);
        MUST(ll_session_set(s, "x", 0, x, sizeof(float) * 2 * BATCH));
        MUST(ll_session_set(s, "y", 0, y, sizeof(int32_t) * BATCH));
        MUST(ll_session_run(s, 4e-3 * (1 - (double)step / STEPS)));
        if (step % 300 == 299)
            printf("step %d  loss %.4f\n", step + 1, ll_session_result(s, "loss"));
    }
    MUST(ll_session_save(s, "spirals.safetensors"));
    ll_session_close(s);

    /* A second session knows only the file. */
    MUST(ll_session_open(test, &(ll_session_opts){0}, &e));
    MUST(ll_session_load(e, "spirals.safetensors"));
    spirals(TEST, x, y);
    MUST(ll_session_set(e, "x", 0, x, sizeof x));
    MUST(ll_session_set(e, "y", 0, y, sizeof y));
    MUST(ll_session_run(e, 0));
    double right = ll_session_result(e, "correct") / TEST;
    printf("saved to spirals.safetensors, loaded again: %.1f %% of new points are right\n",
           100 * right);
    ll_session_close(e);
    ll_graph_free(train);
    ll_graph_free(test);
    return right > 0.97 ? 0 : 1;
}
