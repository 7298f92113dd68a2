/* reach.h: one result of reach (op/matmul.c), as plain kernels make it. */
#pragma once
#include "kern/attr.h"
#include "kern/einsum.h"

typedef struct ll_reach {
    ll_einsum_loop loop[LL_EINSUM_LOOPS];
    int free, n;   /* the result's loops, and all */
    int64_t terms; /* of a result */
    int enough;    /* the level of a term from which on more is no matter */
} ll_reach;

static inline ll_reach ll_reach_of(const ll_kcall *c)
{
    const ll_reach_attr *a = (const ll_reach_attr *)c->attr;
    ll_reach r;
    memset(&r, 0, sizeof r);
    r.free = c->out[0].shape.n;
    r.enough = 2 * LL_REACH_BITS - (int)a->enough;
    r.n = ll_einsum_read(a->spec, &c->in[0].shape, &c->in[1].shape, &c->out[0].shape, r.loop);
    r.terms = ll_einsum_points(r.loop + r.free, r.n - r.free);
    return r;
}

/* Result number e, and where it lies. */
static inline LL_BOTH float ll_reach_at(const ll_reach *r, const uint8_t *a, const uint8_t *b,
                                        int64_t e, int64_t *to)
{
    int64_t at[3], in[3];
    int most = 0;
    ll_einsum_offsets(r->loop, r->free, e, at);
    for (int64_t t = 0; t < r->terms && most < r->enough; t++) {
        ll_einsum_offsets(r->loop + r->free, r->n - r->free, t, in);
        int s = a[at[LL_EINSUM_A] + in[LL_EINSUM_A]], u = b[at[LL_EINSUM_B] + in[LL_EINSUM_B]];
        if (s && u && s + u > most) most = s + u;
    }
    *to = at[LL_EINSUM_C];
    if (most > r->enough) most = r->enough;
    return most ? ldexpf(1.0f, most - 2 * LL_REACH_BITS) : 0;
}
