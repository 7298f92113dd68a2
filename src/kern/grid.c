/* grid.c: the spec of grid and ungrid as strides. */
#include "kern/grid.h"

/* The strides of one scale, whose letters begin at text, along the result's dimensions. */
static void read_strides(const char *text, const ll_shape *shape, const char *result, int n,
                         int64_t stride[LL_MAX_DIMS])
{
    int64_t step = 1;
    for (int d = 0; d < n; d++) stride[d] = 0;
    for (int i = shape->n - 1; i >= 0; i--) {
        const char *at = (const char *)memchr(result, text[i], (size_t)n);
        LL_ASSERT(at);
        stride[at - result] = shape->d[i] == 1 ? 0 : step;
        step *= shape->d[i];
    }
}

/* Does every scale walk dimension d as it walks on from d + 1? */
static bool alike(const ll_grid_walk *w, int d)
{
    for (int s = 0; s < w->n_scale; s++)
        if (w->stride[s][d] != w->stride[s][d + 1] * w->size[d + 1]) return false;
    return true;
}

static void remove_dim(ll_grid_walk *w, int d)
{
    w->n--;
    for (int i = d; i < w->n; i++) {
        w->size[i] = w->size[i + 1];
        for (int s = 0; s < w->n_scale; s++) w->stride[s][i] = w->stride[s][i + 1];
    }
}

void ll_grid_walk_of(const ll_kcall *c, ll_grid_walk *w)
{
    const char *text = ((const ll_grid_attr *)c->attr)->spec, *result = strstr(text, "->") + 2;
    const ll_shape *y = &c->out[0].shape;
    w->n = y->n;
    w->n_scale = c->n_in - 1;
    memcpy(w->size, y->d, sizeof w->size);
    for (int s = 0; s < w->n_scale; s++) {
        text = strchr(text, ',') + 1;
        read_strides(text, &c->in[1 + s].shape, result, y->n, w->stride[s]);
    }
    for (int d = w->n - 1; d >= 0; d--)
        if (w->size[d] == 1) remove_dim(w, d);
    for (int d = w->n - 2; d >= 0; d--) {
        if (!alike(w, d)) continue;
        w->size[d + 1] *= w->size[d];
        remove_dim(w, d);
    }
    if (w->n == 0) { /* a single element */
        w->n = 1;
        w->size[0] = 1;
        for (int s = 0; s < w->n_scale; s++) w->stride[s][0] = 0;
    }
}

int64_t ll_grid_at(const ll_grid_walk *w, int s, int n_outer, int64_t r)
{
    int64_t at = 0;
    for (int d = n_outer - 1; d >= 0; d--) {
        at += r % w->size[d] * w->stride[s][d];
        r /= w->size[d];
    }
    return at;
}
