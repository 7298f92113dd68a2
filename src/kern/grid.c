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

void ll_grid_walk_of(const ll_kcall *c, ll_walk *w)
{
    const char *text = ((const ll_grid_attr *)c->attr)->spec, *result = strstr(text, "->") + 2;
    const ll_shape *y = &c->out[0].shape;
    w->n = y->n;
    w->walkers = c->n_in - 1;
    memcpy(w->size, y->d, sizeof w->size);
    for (int s = 0; s < w->walkers; s++) {
        text = strchr(text, ',') + 1;
        read_strides(text, &c->in[1 + s].shape, result, y->n, w->stride[s]);
    }
    ll_walk_merge(w);
}

int64_t ll_grid_scale_stride(const char *spec, const ll_shape *x, int64_t extent, int64_t stride)
{
    const char *letters = strchr(spec, ',') + 1;
    int n = (int)(strstr(spec, "->") - letters), d = x->n - 1;
    int64_t along = 1, step = 1;
    if (extent <= 1 || !stride) return 0;
    while (d > 0 && (x->d[d] == 1 || along != stride)) along *= x->d[d--];
    for (int i = n - 1; i >= 0 && letters[i] != spec[d]; i--)
        step *= x->d[(const char *)memchr(spec, letters[i], (size_t)x->n) - spec];
    return memchr(letters, spec[d], (size_t)n) ? step : 0;
}
