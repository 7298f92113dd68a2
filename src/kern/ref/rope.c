/* rope.c: rotary positions, by plain loops. */
#include "kern/attr.h"
#include "kern/rows.h"

#include <math.h>

ll_kernel rope_ref;

ll_err rope_ref(const ll_kcall *c)
{
    const ll_rope_attr *a = (const ll_rope_attr *)c->attr;
    const int64_t *s = c->in[0].shape.d, half = s[3] / 2;
    for (int64_t i = 0; i < ll_numel(&c->in[0].shape) / 2; i++) {
        int64_t pair = i % half, row = i / half, t = row / s[2] % s[1];
        int64_t x = row * s[3] + (a->interleaved ? 2 * pair : pair);
        int64_t y = x + (a->interleaved ? 1 : half);
        double angle = (double)(a->at + t) * pow(a->base, -2 * (double)pair / (double)s[3]);
        double p = ll_at(&c->in[0], x), q = ll_at(&c->in[0], y), sine = sin(angle);
        if (a->back) sine = -sine;
        ll_set(&c->out[0], x, p * cos(angle) - q * sine);
        ll_set(&c->out[0], y, p * sine + q * cos(angle));
    }
    return LL_OK;
}
