/* gather.c: gather and scatter_add, an element of y at a time, and as these embeddings; arange. */
#include "kern/gather.h"
#include "kern/rows.h"

LL_KERNELS(gather, scatter_add, embedding, embedding_grad, arange)

/* Where in x element e of y is; -1: not in this part. */
static ll_err place(const ll_gather_walk *g, const int32_t *index, int64_t e, int64_t *at)
{
    int64_t i = 0;
    *at = 0;
    for (int d = g->n - 1; d >= 0; d--) {
        *at += e % g->d[d] * g->x[d];
        i += e % g->d[d] * g->index[d];
        e /= g->d[d];
    }
    int64_t row = index[i] - g->from;
    bool here = row >= 0 && row < g->v;
    CHECK(index[i] >= 0 && index[i] < g->whole, LL_E_ARG, "index %ld is %d, expected 0 to %ld", i,
          index[i], g->whole - 1);
    *at = here ? *at + row * g->step : -1;
    return LL_OK;
}

static ll_err pick(const ll_kcall *c, const ll_gather_walk *g)
{
    for (int64_t e = 0, at; e < ll_numel(&c->out[0].shape); e++) {
        TRY(place(g, (const int32_t *)c->in[1].data, e, &at));
        ll_set(&c->out[0], e, at < 0 ? 0 : ll_at(&c->in[0], at) + 0.0);
    }
    return LL_OK;
}

ll_err gather_ref(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[0], *y = &c->out[0];
    ll_gather_walk g;
    TRY(ll_gather_of((const ll_gather_attr *)c->attr, &x->shape, &c->in[1].shape, &y->shape, &g));
    return pick(c, &g);
}

ll_err scatter_add_ref(const ll_kcall *c)
{
    const ll_tensor *y = &c->in[0], *x = &c->out[0];
    ll_gather_walk g;
    TRY(ll_gather_of((const ll_gather_attr *)c->attr, &x->shape, &c->in[1].shape, &y->shape, &g));
    for (int64_t e = 0; e < ll_numel(&x->shape); e++) ll_set(x, e, 0);
    for (int64_t e = 0, at; e < ll_numel(&y->shape); e++) {
        TRY(place(&g, (const int32_t *)c->in[1].data, e, &at));
        if (at >= 0) ll_set(x, at, ll_at(x, at) + ll_at(y, e));
    }
    return LL_OK;
}

ll_err embedding_ref(const ll_kcall *c)
{
    ll_gather_walk g = ll_gather_rows(c->attr, &c->in[0].shape, &c->in[1].shape);
    return pick(c, &g);
}

/* A row of the table at a time, its sums in double. */
ll_err embedding_grad_ref(const ll_kcall *c)
{
    const ll_tensor *y = &c->in[0], *x = &c->out[0];
    const int32_t *index = c->in[1].data;
    ll_gather_walk g = ll_gather_rows(c->attr, &x->shape, &c->in[1].shape);
    for (int64_t e = 0, at; e < ll_numel(&y->shape); e++) TRY(place(&g, index, e, &at));
    for (int64_t e = 0; e < ll_numel(&x->shape); e++) {
        double sum = 0;
        for (int64_t i = 0; i < g.d[0]; i++)
            if (index[i] - g.from == e / g.step) sum += ll_at(y, i * g.step + e % g.step);
        ll_set(x, e, sum);
    }
    return LL_OK;
}

ll_err arange_ref(const ll_kcall *c)
{
    const ll_arange_attr *a = (const ll_arange_attr *)c->attr;
    for (int64_t i = 0; i < a->n; i++)
        ll_set(&c->out[0], i, a->start + a->step * (double)(a->at + i));
    return LL_OK;
}
