/* own_run.c: a model and data of one's own in the whole tool: train, verify, eval, every mesh. The
 * model learns two things of a noisy wave at once, its frequency and its phase: two losses, a
 * metric of its own, and no file.
 *
 *     cc own_run.c $(pkg-config --cflags --libs loopline) -lm -o waves
 *     ./waves train waves --set train.steps=300
 *     ./waves verify waves -n 4 --mesh data=2,tensor=2
 *     ./waves eval runs/waves
 *     ./waves predict runs/waves waves.npy --result guess     (float32 [n,64]) */
#include <loopline.h>

#include <math.h>

enum { POINTS = 64 };

/* Sample `index`: the same numbers whoever asks. */
static ll_err read_wave(void *user, int split, int64_t index, void *const *out)
{
    (void)user;
    uint64_t r = (uint64_t)index * 2 + (uint64_t)split;
    double draw[2 + POINTS];
    for (int i = 0; i < 2 + POINTS; i++) { /* splitmix64 */
        uint64_t z = (r * (2 + POINTS) + (uint64_t)i + 1) * 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        draw[i] = (double)((z ^ z >> 31) >> 11) / (double)(1ull << 53);
    }
    double frequency = 1 + 3 * draw[0], phase = 6.28319 * draw[1];
    for (int i = 0; out[0] && i < POINTS; i++)
        ((float *)out[0])[i] =
            (float)(sin(6.28319 * frequency * i / POINTS + phase) + 0.2 * (draw[2 + i] - 0.5));
    if (out[1]) ((float *)out[1])[0] = (float)frequency;
    if (out[2]) ((float *)out[2])[0] = (float)cos(phase), ((float *)out[2])[1] = (float)sin(phase);
    return LL_OK;
}

static const ll_source waves = {
    .name = "waves",
    .samples = {20000, 1000},
    .fields = {{"wave", LL_F32, {1, {POINTS}}},
               {"frequency", LL_F32, {1, {1}}},
               {"phase", LL_F32, {1, {2}}}},
    .read = read_wave,
};

static ll_val declare(ll_graph *g, const ll_build *b)
{
    int64_t width = ll_build_size(b, "width");
    ll_val x = ll_batch(g, "wave", LL_F32, LL_SHAPE(b->batch, POINTS));
    ll_val frequency = ll_batch(g, "frequency", LL_F32, LL_SHAPE(b->batch, 1));
    ll_val phase = ll_batch(g, "phase", LL_F32, LL_SHAPE(b->batch, 2));
    ll_val h = ll_gelu(g, ll_linear(g, "in", x, width, true));
    h = ll_add(g, h, ll_gelu(g, ll_linear(g, "middle", h, width, true)));
    ll_val guess = ll_graph_name(g, ll_linear(g, "frequency_head", h, 1, true), "guess");
    ll_val off = ll_graph_name(g, ll_sub(g, guess, frequency), "off");
    ll_val turn = ll_sub(g, ll_linear(g, "phase_head", h, 2, true), phase);
    ll_val loss_f = ll_mean(g, ll_square(g, off)), loss_p = ll_mean(g, ll_square(g, turn));
    ll_graph_result(g, "frequency_loss", loss_f);
    ll_graph_result(g, "phase_loss", loss_p);
    ll_graph_result(g, "frequency_error", ll_mean(g, ll_abs(g, off)));
    ll_val loss = ll_add(g, loss_f, loss_p);
    ll_graph_result(g, "loss", loss);
    return loss;
}

static const ll_model model = {.name = "waves",
                               .help = "frequency and phase of a noisy wave",
                               .sizes = {{"width", 128, "size of the hidden layers"}},
                               .declare = declare,
                               .data = &waves};

#ifdef AS_LIBRARY /* cc -shared -fPIC -DAS_LIBRARY: for model.file */
LL_EXPORT_MODELS(&model);
#else
int main(int argc, char **argv)
{
    return ll_main(argc, argv, &model);
}
#endif
