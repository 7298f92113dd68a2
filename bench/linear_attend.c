/* bench_linear_attend: linear attention beside softmax, by the length of the sequence.
 *
 *     build/bench_linear_attend [THREADS] [HEADS] [WIDTH] [PRECISION] [MOST]
 *
 * Attention alone of one sequence, queries, keys and values given: its step makes the result and
 * the gradients of all three. Both take turns in one process, so that a busy machine is busy for
 * both; the best of several, and planned bytes. */
#include "base/now.h"
#include "base/rng.h"
#include "exec/session.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void must(ll_err rc)
{
    if (rc == LL_OK) return;
    fprintf(stderr, "%s\n%s", ll_error_text(), ll_error_frames());
    exit(1);
}

static ll_graph *attention(bool linear, int64_t t, int64_t heads, int64_t width)
{
    static const char *const names[] = {"dq", "dk", "dv"};
    ll_graph *g = ll_graph_new(linear ? "linear" : "softmax");
    ll_shape s = LL_SHAPE(1, t, heads, width);
    ll_val x[3] = {ll_batch(g, "q", LL_F32, s), ll_batch(g, "k", LL_F32, s),
                   ll_batch(g, "v", LL_F32, s)};
    ll_val y = linear ? ll_linear_attend(g, x[0], x[1], x[2], 0)
                      : ll_attend(g, x[0], x[1], x[2], &(ll_attend_opts){.causal = LL_CAUSAL});
    ll_val d[3], loss = ll_mean(g, ll_square(g, y));
    ll_grad(g, loss, x, 3, d);
    ll_graph_result(g, "loss", loss);
    for (int i = 0; i < 3; i++) ll_graph_result(g, names[i], d[i]);
    must(ll_graph_check(g));
    return g;
}

static ll_session *open_one(ll_graph *g, const ll_session_opts *o, int64_t n)
{
    static const char *const names[] = {"q", "k", "v"};
    ll_session *s;
    must(ll_session_open(g, o, &s));
    for (int i = 0; i < 3; i++) {
        float *x = (float *)ll_exec_data(s->e, ll_program_input(s->p, names[i]), 0);
        for (int64_t k = 0; k < n; k++)
            x[k] = (float)ll_below_at(1, (uint64_t)i, (uint64_t)k, 1000) / 500 - 1;
    }
    s->checked = true;
    must(ll_session_run(s, 0));
    return s;
}

int main(int argc, char **argv)
{
    ll_session_opts o = {.threads = argc > 1 ? atoi(argv[1]) : 0,
                         .precision = argc > 4 ? argv[4] : NULL};
    int64_t heads = argc > 2 ? atoll(argv[2]) : 4, width = argc > 3 ? atoll(argv[3]) : 64;
    int64_t most = argc > 5 ? atoll(argv[5]) : 16384;
    printf("%lld heads of %lld; ms a step, MiB planned\n", (long long)heads, (long long)width);
    printf("%8s %16s %16s %16s\n", "tokens", "softmax", "linear", "times as fast");
    for (int64_t t = 256; t <= most; t *= 4) {
        ll_graph *g[2];
        ll_session *s[2];
        double best[2] = {INFINITY, INFINITY};
        for (int k = 0; k < 2; k++) {
            g[k] = attention(k, t, heads, width);
            s[k] = open_one(g[k], &o, t * heads * width);
        }
        for (int i = 0; i < (t > 4096 ? 3 : 9); i++)
            for (int k = 0; k < 2; k++) {
                double began = ll_now();
                must(ll_session_run(s[k], 0));
                best[k] = fmin(best[k], ll_now() - began);
            }
        printf("%8lld", (long long)t);
        for (int k = 0; k < 2; k++)
            printf(" %9.2f %6.1f", 1e3 * best[k], (double)s[k]->p->bytes / 0x1p20);
        printf(" %16.2f\n", best[0] / best[1]);
        for (int k = 0; k < 2; k++) {
            ll_session_close(s[k]);
            ll_graph_free(g[k]);
        }
    }
    return 0;
}
