/* Pooling, reference. Output pixel (o, p) and place (r, s) of its window meet image pixel (i, j).
 * Kernels that make an image sum over every window that covers a pixel. */
#include "kern/attr.h"
#include "kern/rows.h"

LL_KERNELS(max_pool, max_pool_grad, max_pool_pick, avg_pool, avg_pool_grad)

typedef struct pool {
    const ll_pool_attr *a;
    const ll_tensor *x, *y, *index; /* image, output; or their gradients */
} pool;

/* The element of the image at place (r, s) of the window of output (o, p); -1: padding. */
static int64_t under(const pool *v, int64_t n, int64_t o, int64_t p, int64_t r, int64_t s,
                     int64_t c)
{
    const int64_t *d = v->x->shape.d;
    int64_t i = o * v->a->stride[0] - v->a->pad[0] + r;
    int64_t j = p * v->a->stride[1] - v->a->pad[2] + s;
    if (i < 0 || i >= d[1] || j < 0 || j >= d[2]) return -1;
    return ((n * d[1] + i) * d[2] + j) * d[3] + c;
}

static int64_t out_index(const pool *v, int64_t n, int64_t o, int64_t p, int64_t c)
{
    const int64_t *d = v->y->shape.d;
    return ((n * d[1] + o) * d[2] + p) * d[3] + c;
}

/* The place of the largest element, the first of equals; a NaN, the last of several, is larger
 * than any number. */
static int64_t argmax(const pool *v, int64_t n, int64_t o, int64_t p, int64_t c, double *max)
{
    int64_t best = -1;
    *max = 0; /* of a window that is all padding */
    for (int64_t r = 0; r < v->a->size[0]; r++)
        for (int64_t s = 0; s < v->a->size[1]; s++) {
            int64_t e = under(v, n, o, p, r, s, c);
            if (e < 0) continue;
            double x = ll_at(v->x, e);
            if (best >= 0 && !(x > *max || x != x)) continue;
            *max = x;
            best = r * v->a->size[1] + s;
        }
    return best;
}

static double mean(const pool *v, int64_t n, int64_t o, int64_t p, int64_t c)
{
    double sum = 0;
    for (int64_t r = 0; r < v->a->size[0]; r++)
        for (int64_t s = 0; s < v->a->size[1]; s++) {
            int64_t e = under(v, n, o, p, r, s, c);
            if (e >= 0) sum += ll_at(v->x, e);
        }
    return sum / (double)(v->a->size[0] * v->a->size[1]);
}

static double picked(const pool *v, int64_t n, int64_t o, int64_t p, int64_t c)
{
    int64_t k = ((const int32_t *)v->index->data)[out_index(v, n, o, p, c)];
    if (k < 0) return 0;
    int64_t e = under(v, n, o, p, k / v->a->size[1], k % v->a->size[1], c);
    return e < 0 ? 0 : ll_at(v->x, e);
}

/* The output along dim whose window has pixel i at place r; -1: none has. */
static int64_t window_of(const pool *v, int dim, int64_t i, int64_t r)
{
    int64_t stride = v->a->stride[dim], at = i + v->a->pad[2 * dim] - r;
    if (at < 0 || at % stride || at / stride >= v->y->shape.d[1 + dim]) return -1;
    return at / stride;
}

/* What pixel (i, j) of the image gets: from the windows whose chosen place it is, or, without an
 * index, its share of every window it is in. */
static double spread(const pool *v, int64_t n, int64_t i, int64_t j, int64_t c)
{
    const int64_t *size = v->a->size;
    double sum = 0;
    for (int64_t k = size[0] * size[1] - 1; k >= 0; k--) { /* windows in order */
        int64_t o = window_of(v, 0, i, k / size[1]), p = window_of(v, 1, j, k % size[1]);
        if (o < 0 || p < 0) continue;
        int64_t y = out_index(v, n, o, p, c);
        if (v->index && ((const int32_t *)v->index->data)[y] != k) continue;
        sum += ll_at(v->y, y);
    }
    return v->index ? sum : sum / (double)(size[0] * size[1]);
}

static void spread_all(const pool *v)
{
    const int64_t *d = v->x->shape.d;
    for (int64_t e = 0; e < ll_numel(&v->x->shape); e++) {
        int64_t c = e % d[3], j = e / d[3] % d[2], i = e / (d[3] * d[2]) % d[1];
        ll_set(v->x, e, spread(v, e / (d[1] * d[2] * d[3]), i, j, c));
    }
}

static void each_out(const pool *v, const ll_tensor *index,
                     double (*value)(const pool *, int64_t, int64_t, int64_t, int64_t))
{
    const int64_t *d = v->y->shape.d;
    for (int64_t e = 0; e < ll_numel(&v->y->shape); e++) {
        int64_t c = e % d[3], p = e / d[3] % d[2], o = e / (d[3] * d[2]) % d[1];
        int64_t n = e / (d[3] * d[2] * d[1]);
        double y;
        if (value)
            y = value(v, n, o, p, c);
        else
            ((int32_t *)index->data)[e] = (int32_t)argmax(v, n, o, p, c, &y);
        ll_set(v->y, e, y);
    }
}

#define KERNEL(name, image, output, index, run)                                                    \
    ll_err name(const ll_kcall *c)                                                                 \
    {                                                                                              \
        pool v = {(const ll_pool_attr *)c->attr, image, output, index};                            \
        run;                                                                                       \
        return LL_OK;                                                                              \
    }
KERNEL(max_pool_ref, &c->in[0], &c->out[0], NULL, each_out(&v, &c->out[1], NULL))
KERNEL(max_pool_pick_ref, &c->in[0], &c->out[0], &c->in[1], each_out(&v, NULL, picked))
KERNEL(max_pool_grad_ref, &c->out[0], &c->in[0], &c->in[1], spread_all(&v))
KERNEL(avg_pool_ref, &c->in[0], &c->out[0], NULL, each_out(&v, NULL, mean))
KERNEL(avg_pool_grad_ref, &c->out[0], &c->in[0], NULL, spread_all(&v))
