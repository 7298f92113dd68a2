/* segments.h: the dimensions of a reduction, those that stay and those that vanish, merged with
 * neighbours of their kind: what is left alternates. */
#pragma once
#include "base/spec.h"

typedef struct ll_segments {
    int n; /* 1 at least */
    int64_t size[LL_MAX_DIMS];
    bool kept[LL_MAX_DIMS];
} ll_segments;

static inline ll_segments ll_segments_of(const ll_spec *s, const ll_shape *shape)
{
    ll_segments g;
    g.n = 0;
    for (int i = 0; i < s->n_in; i++) {
        int64_t d = shape->d[i];
        bool kept = s->to[i] >= 0;
        if (d == 0) { /* nothing to add up: no plan is needed */
            g.n = 0;
            break;
        }
        if (d == 1) continue;
        if (g.n && g.kept[g.n - 1] == kept) {
            g.size[g.n - 1] *= d;
        } else {
            g.size[g.n] = d;
            g.kept[g.n++] = kept;
        }
    }
    if (g.n == 0) { /* a single element, or none */
        g.size[0] = 1;
        g.kept[0] = true;
        g.n = 1;
    }
    return g;
}

/* Where row or run j of result o starts, of all segments but the last. */
static inline int64_t ll_segments_at(const ll_segments *g, int64_t o, int64_t j)
{
    int64_t at = 0, stride = g->size[g->n - 1];
    for (int i = g->n - 2; i >= 0; i--) {
        int64_t *index = g->kept[i] ? &o : &j;
        at += *index % g->size[i] * stride;
        *index /= g->size[i];
        stride *= g->size[i];
    }
    return at;
}
