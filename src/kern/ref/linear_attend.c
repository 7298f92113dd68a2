/* linear_attend.c: a step of linear attention's state, by plain loops. */
#include "kern/attr.h"
#include "kern/rows.h"

LL_KERNELS(linear_step)

/* Token i of sequence b, head n: the state takes it in, and its queries see that. */
static void one_token(const ll_kcall *c, double keep, int64_t b, int64_t n, int64_t i)
{
    const int64_t *q = c->in[1].shape.d, t = q[1], heads = q[2], group = q[3], d = q[4];
    const int64_t f = c->in[0].shape.d[3], key = (b * t + i) * heads + n, at = (b * heads + n) * d;
    for (int64_t x = 0; x < d * f; x++) {
        double v = x % f < f - 1 ? ll_at(&c->in[3], key * (f - 1) + x % f) : 1;
        double was = keep * ll_at(&c->out[0], at * f + x);
        ll_set(&c->out[0], at * f + x, was + ll_at(&c->in[2], key * d + x / f) * v);
    }
    for (int64_t g = 0; g < group; g++)
        for (int64_t e = 0; e < f; e++) {
            double sum = 0;
            for (int64_t x = 0; x < d; x++)
                sum += ll_at(&c->in[1], (key * group + g) * d + x) *
                       ll_at(&c->out[0], (at + x) * f + e);
            if (e < f - 1)
                ll_set(&c->out[1], (key * group + g) * (f - 1) + e, sum);
            else
                ll_set(&c->out[2], ((b * heads + n) * group + g) * t + i, sum);
        }
}

ll_err linear_step_ref(const ll_kcall *c)
{
    const ll_linear_attr *a = (const ll_linear_attr *)c->attr;
    const int64_t *s = c->in[0].shape.d, t = c->in[1].shape.d[1];
    for (int64_t i = 0; i < ll_numel(&c->in[0].shape); i++) {
        bool begins = ll_at(&c->in[4], i / (s[1] * s[2] * s[3])) == 0;
        bool none = ll_at(&c->in[5], i / (s[1] * s[2] * s[3])) < 0;
        ll_set(&c->out[0], i, begins && !none ? 0 : ll_at(&c->in[0], i));
    }
    for (int o = 1; o < 3; o++)
        for (int64_t i = 0; i < ll_numel(&c->out[o].shape); i++) ll_set(&c->out[o], i, 0);
    for (int64_t i = 0; i < s[0] * s[1] * t; i++) {
        int64_t b = i / t / s[1], n = i / t % s[1];
        if (i % t <= (int64_t)ll_at(&c->in[5], b))
            one_token(c, exp(ll_linear_decay(a, n)), b, n, i % t);
    }
    return LL_OK;
}
