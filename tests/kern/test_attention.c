/* Causal attention and its gradient: fast kernels against reference kernels on odd sizes. */
#include "kcheck.h"
#include "kern/attr.h"

ll_kernel attention_cpu, attention_grad_cpu, attend_grad_cpu, causal_mask_ref, causal_mask_cpu;
ll_scratch attention_cpu_scratch, attention_grad_cpu_scratch, attend_grad_cpu_scratch;

/* batch, time, heads, width */
static const int64_t sizes[][4] = {{1, 1, 1, 1},   {2, 1, 3, 64},   {3, 2, 1, 3},    {1, 5, 2, 1},
                                   {1, 16, 1, 16}, {2, 17, 3, 7},   {1, 95, 1, 5},   {1, 96, 1, 16},
                                   {1, 97, 2, 3},  {1, 113, 1, 80}, {2, 131, 2, 17}, {1, 200, 1, 6},
                                   {0, 3, 2, 4}};
enum { N_SIZE = sizeof sizes / sizeof *sizes };

static void forward(void **)
{
    for (int i = 0; i < N_SIZE; i++)
        for (int big = 0; big < 2; big++) {
            const int64_t *s = sizes[i];
            kcheck k = {"attention", NULL, attention_cpu, attention_cpu_scratch,
                        .tolerance = big ? 3e-4 : 3e-6};
            /* big: scores of some hundreds, so that most weights are exactly one or zero */
            kc_in(&k, kc_normal(LL_SHAPE(s[0], s[1], 3, s[2], s[3]), big ? 10 : 1, 0));
            kc_out(&k, LL_SHAPE(s[0], s[1], s[2], s[3]));
            kc_out(&k, LL_SHAPE(s[0], s[2], s[1]));
            kc_check(&k);
        }
}

/* o and lse are those of qkv, as the forward kernel gives them. The reference takes t^3 d^2, so the
 * long ones are narrow. */
static void backward(void **)
{
    for (int i = 0; i < N_SIZE; i++) {
        const int64_t *s = sizes[i];
        ll_shape o = LL_SHAPE(s[0], s[1], s[2], s[3]);
        kcheck k = {"attention_grad",         NULL,
                    attention_grad_cpu,       attention_grad_cpu_scratch,
                    &(ll_own_attr){.own = 1}, .tolerance = 1e-5};
        if (s[1] * s[1] * s[3] * s[3] * s[0] * s[2] > 10000000) continue;
        kc_in(&k, kc_normal(o, 1, 0));
        kc_in(&k, kc_normal(LL_SHAPE(s[0], s[1], 3, s[2], s[3]), 1, 0));
        kc_in(&k, kc_normal(o, 1, 0));
        kc_in(&k, kc_normal(LL_SHAPE(s[0], s[2], s[1]), 1, 0));
        ll_kcall c = {.n_in = 1, .n_out = 2, .in = &k.in[1], .out = &k.in[2]};
        plain_run(ll_op_find("attention"), &c);
        kc_out(&k, k.in[1].shape);
        kc_check(&k);
    }
}

/* Groups, other keys than queries, parts of both; forward is tests/op/test_attend.c's. */
static void general(void **)
{
    static const struct {
        int64_t t, s, n, g, d, e, mask; /* mask: 0 none, else of its queries */
        ll_attend_attr attr;
    } cases[] = {{100, 130, 1, 2, 3, 5, 0, {0.7, 1, 30}},  {130, 70, 2, 1, 2, 1, 0, {0.7, 1, -60}},
                 {97, 98, 1, 3, 1, 2, 97, {0.5, 0, 0}},    {120, 110, 1, 1, 4, 3, 1, {1, 1, -10}},
                 {110, 60, 1, 1, 3, 3, 0, {0.5, 1, -200}}, {40, 200, 1, 2, 2, 2, 0, {0.5, 1, 100}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t t = cases[i].t, s = cases[i].s, n = cases[i].n, g = cases[i].g;
        kcheck k = {"attend_grad",           NULL,           attend_grad_cpu,
                    attend_grad_cpu_scratch, &cases[i].attr, .tolerance = 2e-5};
        kc_in(&k, kc_normal(LL_SHAPE(1, t, n, g, cases[i].e), 1, 0));
        kc_in(&k, kc_normal(LL_SHAPE(1, t, n, g, cases[i].d), 1, 0));
        kc_in(&k, kc_normal(LL_SHAPE(1, s, n, cases[i].d), 1, 0));
        kc_in(&k, kc_normal(LL_SHAPE(1, s, n, cases[i].e), 1, 0));
        kc_in(&k, kc_normal(LL_SHAPE(1, n, g, t), 0.3, 6));
        kc_in(&k, kc_normal(LL_SHAPE(1, n, g, t), 1, 0));
        if (cases[i].mask) kc_in(&k, kc_normal(LL_SHAPE(1, 1, g, cases[i].mask, s), 1, 0));
        for (int o = 1; o < 4; o++) kc_out(&k, k.in[o].shape);
        kc_check(&k);
    }
}

static void mask(void **)
{
    const ll_mask_attr attrs[] = {{-1e30, {0, 0}}, {0, {3, 0}}, {5, {0, 40}}, {2, {1, 4}}};
    for (int i = 0; i < 4; i++) {
        kcheck k = {"causal_mask", causal_mask_ref, causal_mask_cpu, .attr = &attrs[i]};
        ll_shape s = LL_SHAPE(3, 7 + i, 11);
        kc_in(&k, kc_normal(s, 1, 0));
        kc_out(&k, s);
        kc_check(&k);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(forward), cmocka_unit_test(backward),
                                       cmocka_unit_test(general), cmocka_unit_test(mask)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
