/* gather.c: strides of a gather from its spec (see gather.h). */
#include "kern/gather.h"
#include "base/spec.h"
#include "kern/walk.h"

static int64_t stride_of(const char *letters, const int64_t *strides, char letter)
{
    const char *at = strchr(letters, letter);
    return at ? strides[at - letters] : 0;
}

ll_err ll_gather_of(const ll_gather_attr *a, const ll_shape *x, const ll_shape *index,
                    const ll_shape *y, ll_gather_walk *out)
{
    ll_spec_parts p;
    TRY(ll_spec_split(a->spec, &p));
    int64_t xs[LL_MAX_DIMS], is[LL_MAX_DIMS];
    ll_walk_strides(x, xs);
    ll_walk_strides(index, is);
    memset(out, 0, sizeof *out);
    out->n = y->n;
    out->from = a->from;
    for (int d = 0; d < y->n; d++) {
        out->d[d] = y->d[d];
        out->x[d] = stride_of(p.part[0], xs, p.part[2][d]);
        out->index[d] = stride_of(p.part[1], is, p.part[2][d]);
    }
    for (int d = 0; d < x->n; d++)
        if (!strchr(p.part[2], p.part[0][d])) out->v = x->d[d], out->step = xs[d];
    out->whole = a->part ? a->part : a->from + out->v;
    return LL_OK;
}

ll_gather_walk ll_gather_rows(const ll_embedding_attr *a, const ll_shape *table,
                              const ll_shape *index)
{
    int64_t v = table->d[0], c = table->d[1];
    int64_t whole = a->part ? a->part : a->from + v;
    return (ll_gather_walk){2, {ll_numel(index), c}, {0, 1}, {1, 0}, v, c, a->from, whole};
}
