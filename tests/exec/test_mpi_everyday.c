/* mpi: 2
 * Constants, positions, elements by index and composed losses, cut over ranks and in stages: losses
 * and parameters of some steps against the same steps in this process alone. */
#include "base/rng.h"
#include "ir/ir.h"
#include "no_error.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static ll_comm *comm;

/* One table is read in both blocks, so by both stages. */
static ll_graph *declare(void)
{
    float table[7 * 8];
    int32_t order[7] = {6, 0, 3, 3, 1, 5, 2};
    for (int i = 0; i < 7 * 8; i++) table[i] = sinf((float)i);
    ll_graph *g = ll_graph_new("everyday");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(6, 7, 8)),
           y = ll_batch(g, "y", LL_I32, LL_SHAPE(6));
    ll_val h = x, weight = ll_constant(g, LL_F32, LL_SHAPE(5), (float[]){0.5f, 1, 2, 1, 0.25f});
    for (int block = 0; block < 2; block++) {
        char name[8];
        snprintf(name, sizeof name, "fc%d", block);
        ll_graph_block(g);
        h = ll_linear(g, name, h, 8, true);
        h = ll_add(g, h, ll_constant(g, LL_F32, LL_SHAPE(7, 8), table));
        h = ll_gather(g, h, ll_constant(g, LL_I32, LL_SHAPE(7), order), 1);
        ll_val at = ll_reshape(g, ll_arange(g, LL_F32, 7, 1, 0.1), LL_SHAPE(7, 1));
        h = ll_group_norm(g, ll_mul(g, ll_mish(g, h), at), 2, (ll_val){0}, (ll_val){0}, 1e-5);
    }
    ll_val logits = ll_linear(g, "out", ll_mean_over(g, h, "ntc->nc"), 5, true);
    ll_cross_entropy_opts o = {.smoothing = 0.1, .weight = weight};
    ll_minimize(g, ll_cross_entropy_mean(g, logits, y, &o), &(ll_optim){.name = "momentum"});
    no_error(ll_graph_check(g));
    return g;
}

static void train(const ll_session_opts *o, double loss[3], float weight[64])
{
    ll_graph *g = declare();
    ll_session *s;
    ll_err rc = ll_session_open(g, o, &s);
    if (rc != LL_OK) fail_msg("%s: %s", o->mesh, ll_error_text());
    float x[6 * 7 * 8];
    int32_t y[6];
    for (int step = 0; step < 3; step++) {
        for (int m = 0; m < 2; m++) {
            uint64_t stream = (uint64_t)(2 * step + m);
            for (int i = 0; i < 6 * 7 * 8; i++) x[i] = (float)ll_normal_at(1, stream, (uint64_t)i);
            for (int i = 0; i < 6; i++) y[i] = (int32_t)ll_below_at(1, stream, (uint64_t)i, 5);
            no_error(ll_session_set(s, "x", m, x, sizeof x));
            no_error(ll_session_set(s, "y", m, y, sizeof y));
        }
        no_error(ll_session_run(s, 0.1));
        loss[step] = ll_session_result(s, "loss");
    }
    no_error(ll_session_get(s, "fc0.weight", weight, 64 * sizeof *weight));
    ll_session_close(s);
    ll_graph_free(g);
}

static void test_meshes(void **state)
{
    (void)state;
    static const char *const meshes[] = {"data=2", "tensor=2", "sequence=2", "pipe=2", NULL};
    double want[3], got[3];
    float a[64], b[64];
    train(&(ll_session_opts){.threads = 1, .seed = 5, .micro_batches = 2}, want, a);
    for (int k = 0; meshes[k]; k++)
        for (int exact = 0; exact < 2; exact++) {
            if (exact && !strcmp(meshes[k], "pipe=2")) continue;
            train(&(ll_session_opts){.threads = 1,
                                     .seed = 5,
                                     .micro_batches = 2,
                                     .comm = comm,
                                     .mesh = meshes[k],
                                     .exact = exact},
                  got, b);
            for (int i = 0; i < 3; i++)
                if (!(fabs(got[i] - want[i]) <= 2e-5 * want[i]))
                    fail_msg("%s: loss %d is %.9g, want %.9g", meshes[k], i, got[i], want[i]);
            for (int i = 0; i < 64; i++)
                if (!(fabsf(a[i] - b[i]) <= 2e-5f))
                    fail_msg("%s: weight %d is %g, want %g", meshes[k], i, b[i], a[i]);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_meshes)};
    if (ll_comm_open(&(ll_comm_opts){.timeout_s = 120}, &comm) != LL_OK) {
        fprintf(stderr, "%s\n", ll_error_text());
        return 1;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ll_comm_close(comm);
    return failed;
}
