/* heat_pinn.c: a physics-informed network. u(x,t) is a small network trained, without any data, to
 * satisfy the heat equation u_t = a u_xx on 0 < x < 1, 0 < t < 1 with u(x,0) = sin(pi x) and
 * u(0,t) = u(1,t) = 0. The residual has first and second derivatives of the network by its inputs;
 * training then differentiates those by the parameters: gradients of gradients of gradients. The
 * answer is compared with the exact one, exp(-pi^2 a t) sin(pi x).
 *
 *     cc heat_pinn.c $(pkg-config --cflags --libs loopline) -lm && ./a.out */
#include <loopline.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 256, WIDTH = 24, STEPS = 2500 };
static const double A = 0.1, PI = 3.14159265358979323846;

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if ((call) != LL_OK) {                                                                     \
            fprintf(stderr, "%s\n%s", ll_error_text(), ll_error_frames());                         \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

typedef struct net {
    ll_val w[3], b[3];
} net;

static net parameters(ll_graph *g)
{
    static const int64_t in[] = {2, WIDTH, WIDTH}, out[] = {WIDTH, WIDTH, 1};
    net p;
    for (int i = 0; i < 3; i++) {
        char name[8];
        snprintf(name, sizeof name, "w%d", i);
        p.w[i] = ll_param(g, name, LL_SHAPE(out[i], in[i]),
                          (ll_init){.kind = LL_NORMAL, .a = sqrt(1.0 / (double)in[i])});
        snprintf(name, sizeof name, "b%d", i);
        p.b[i] = ll_param(g, name, LL_SHAPE(out[i]), (ll_init){.kind = LL_ZEROS});
    }
    return p;
}

/* u = sin(pi x) + t x (1-x) network(x,t): start and borders hold by construction. */
static ll_val network(ll_graph *g, const net *p, ll_val x, ll_val t)
{
    ll_val h = ll_concat(g, (ll_val[]){x, t}, 2, 1); /* [n,2] */
    for (int i = 0; i < 3; i++) {
        h = ll_add(g, ll_matmul(g, "nk,ok->no", h, p->w[i]), p->b[i]);
        if (i < 2) h = ll_tanh(g, h);
    }
    ll_val hill = ll_mul(g, x, ll_sub(g, ll_fill(g, LL_F32, LL_SCALAR, 1), x));
    return ll_add(g, ll_sin(g, ll_scale(g, x, PI)), ll_mul(g, ll_mul(g, t, hill), h));
}

static ll_graph *declare(bool training)
{
    ll_graph *g = ll_graph_new("heat");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(N, 1));
    ll_val t = ll_batch(g, "t_at", LL_F32, LL_SHAPE(N, 1));
    net p = parameters(g);
    ll_val u = network(g, &p, x, t);
    ll_graph_result(g, "u", u);
    if (!training) return g;
    ll_val d[2], uxx;
    ll_grad(g, u, (ll_val[]){x, t}, 2, d); /* samples are independent: du_i/dx_i */
    ll_grad(g, d[0], &x, 1, &uxx);
    ll_val residual = ll_sub(g, d[1], ll_scale(g, uxx, A));
    ll_minimize(g, ll_mean(g, ll_square(g, residual)), &(ll_optim){.name = "adam"});
    return g;
}

static void points(float *x, float *t) /* a fresh random set each step */
{
    for (int i = 0; i < N; i++) {
        x[i] = (float)rand() / (float)RAND_MAX;
        t[i] = (float)rand() / (float)RAND_MAX;
    }
}

int main(void)
{
    static float x[N], t[N], u[N];
    ll_graph *train = declare(true), *eval = declare(false);
    ll_session *s, *e;
    MUST(ll_session_open(train, &(ll_session_opts){.seed = 1}, &s));
    MUST(ll_session_open(eval, &(ll_session_opts){.share = s}, &e));
    srand(1);
    for (int step = 0; step < STEPS; step++) {
        points(x, t);
        MUST(ll_session_set(s, "x", 0, x, sizeof x));
        MUST(ll_session_set(s, "t_at", 0, t, sizeof t));
        MUST(ll_session_run(s, 5e-3 * (1 - (double)step / STEPS)));
        if (step % 500 == 499)
            printf("step %d  residual %.2e\n", step + 1, ll_session_result(s, "loss"));
    }
    points(x, t);
    MUST(ll_session_set(e, "x", 0, x, sizeof x));
    MUST(ll_session_set(e, "t_at", 0, t, sizeof t));
    MUST(ll_session_run(e, 0));
    MUST(ll_session_get(e, "u", u, sizeof u));
    double worst = 0;
    for (int i = 0; i < N; i++)
        worst = fmax(worst, fabs(u[i] - exp(-PI * PI * A * t[i]) * sin(PI * x[i])));
    printf("worst error against the exact solution: %.1e\n", worst);
    ll_session_close(e);
    ll_session_close(s);
    ll_graph_free(train);
    ll_graph_free(eval);
    return worst < 1e-2 ? 0 : 1;
}
