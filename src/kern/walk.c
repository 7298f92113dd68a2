/* walk.c: dimensions and strides (see walk.h). */
#include "kern/walk.h"

void ll_walk_strides(const ll_shape *s, int64_t stride[LL_MAX_DIMS])
{
    int64_t step = 1;
    for (int i = s->n - 1; i >= 0; i--) {
        stride[i] = step;
        step *= s->d[i];
    }
}

static void copy_dim(ll_walk *w, int to, int from)
{
    w->size[to] = w->size[from];
    for (int k = 0; k < w->walkers; k++) w->stride[k][to] = w->stride[k][from];
}

/* Does every walker walk dimension a as it walks on from dimension b? */
static bool alike(const ll_walk *w, int a, int b)
{
    for (int k = 0; k < w->walkers; k++)
        if (w->stride[k][a] != w->stride[k][b] * w->size[b]) return false;
    return true;
}

void ll_walk_merge(ll_walk *w)
{
    int n = 0;
    for (int i = 0; i < w->n; i++) {
        if (w->size[i] == 1) continue;
        bool one = n && alike(w, n - 1, i);
        int64_t outer = one ? w->size[n - 1] : 1;
        if (!one) n++;
        copy_dim(w, n - 1, i);
        w->size[n - 1] *= outer;
    }
    w->n = n;
    if (n) return;
    w->n = w->size[0] = 1; /* a single element */
    for (int k = 0; k < w->walkers; k++) w->stride[k][0] = 0;
}

void ll_walk_last(ll_walk *w, int d)
{
    ll_walk old = *w;
    for (int i = d; i < w->n; i++) {
        int from = i + 1 < w->n ? i + 1 : d;
        w->size[i] = old.size[from];
        for (int k = 0; k < w->walkers; k++) w->stride[k][i] = old.stride[k][from];
    }
}
