/* rope.c: rotary positions, by plain loops. */
#include "kern/attr.h"
#include "kern/rows.h"

#include <math.h>

LL_KERNELS(rope)

ll_err rope_ref(const ll_kcall *c)
{
    const ll_rope_attr *a = (const ll_rope_attr *)c->attr;
    const ll_shape *s = &c->in[0].shape;
    int64_t d = s->d[s->n - 1], half = d / 2, heads = s->n == 5 ? s->d[2] * s->d[3] : s->d[2];
    for (int64_t i = 0; i < ll_numel(s) / 2; i++) {
        int64_t pair = i % half, row = i / half, t = row / heads % s->d[1];
        if (c->n_in > 1) t = (int64_t)ll_at(&c->in[1], row / heads);
        int64_t x = row * d + (a->interleaved ? 2 * pair : pair);
        int64_t y = x + (a->interleaved ? 1 : half);
        double angle = (double)(a->at + t) * pow(a->base, -2 * (double)pair / (double)d);
        double p = ll_at(&c->in[0], x), q = ll_at(&c->in[0], y), sine = sin(angle);
        if (a->back) sine = -sine;
        ll_set(&c->out[0], x, p * cos(angle) - q * sine);
        ll_set(&c->out[0], y, p * sine + q * cos(angle));
    }
    return LL_OK;
}
