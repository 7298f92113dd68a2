/* grid.cu: numbers as fixed point and back (op/grid.c): scaling by powers of two is exact, rounding
 * is to nearest even, or to the odd number beside. */
#include "kern/cuda/gpu.cuh"

#include <string.h>

enum { MOST = 2 };

typedef struct scales { /* for each, strides along the tensor's dimensions */
    int n, n_dim, type[MOST];
    const void *m[MOST];
    int64_t d[LL_MAX_DIMS], stride[MOST][LL_MAX_DIMS];
} scales;

/* The exponent with m < 2^e; of 0, one that leaves nothing (kern/grid.h). */
__device__ __forceinline__ int exponent(double m)
{
    int e;
    frexp(m, &e);
    return m == 0 || e < -400 ? -400 : e;
}

static __global__ void convert(scales s, const void *x, int xt, void *y, int yt, int64_t n,
                               int bits, bool back, bool odd)
{
    GRID_STRIDE(i, n)
    {
        int64_t rest = i, at[MOST] = {0, 0};
        for (int d = s.n_dim - 1; d >= 0; d--) {
            int64_t k = rest % s.d[d];
            rest /= s.d[d];
            for (int j = 0; j < s.n; j++) at[j] += k * s.stride[j][d];
        }
        int shift = back ? -bits : bits;
        bool finite = true;
        for (int j = 0; j < s.n; j++) {
            double m = load_any(s.m[j], s.type[j], at[j]);
            finite &= m < 0x1p999; /* ll_grid_finite */
            shift += back ? exponent(m) : -exponent(m);
        }
        double v = ldexp(load_any(x, xt, i), shift);
        double most = ldexp(1.0, bits) - 1;
        if (yt == LL_U8) { /* ll_grid_level */
            int e;
            frexp(v, &e);
            e = e < 1 ? 1 : e > LL_REACH_BITS ? LL_REACH_BITS : e;
            ((uint8_t *)y)[i] = v == 0 ? 0 : finite ? e : LL_REACH_BITS;
            continue;
        }
        if (odd) /* ll_grid_odd */
            v = v == 0 ? 0 : copysign(2 * floor(fabs(v) * 0.5) + 1, v);
        else if (!back)
            v = rint(v) > most ? most : rint(v);
        store_any(y, yt, i, finite ? v + 0.0 : nan(""));
    }
}

/* "abcd,ac,b->abcd" */
static void read_spec(const ll_kcall *c, const char *spec, scales *s)
{
    const char *arrow = strstr(spec, "->"), *letters = arrow + 2, *at = strchr(spec, ',');
    s->n_dim = c->out[0].shape.n;
    memcpy(s->d, c->out[0].shape.d, sizeof s->d);
    for (s->n = 0; at && at < arrow; s->n++) {
        const ll_tensor *m = &c->in[1 + s->n];
        const char *end = ++at;
        while (end < arrow && *end != ',') end++;
        int64_t stride = 1;
        for (int k = (int)(end - at) - 1; k >= 0; k--) {
            s->stride[s->n][strchr(letters, at[k]) - letters] = stride;
            stride *= m->shape.d[k];
        }
        s->m[s->n] = m->data;
        s->type[s->n] = m->dtype;
        at = end < arrow ? end : NULL;
    }
}

template <bool BACK> static ll_err run(const ll_kcall *c)
{
    const ll_grid_attr *a = (const ll_grid_attr *)c->attr;
    int64_t n = ll_numel(&c->out[0].shape);
    scales s = {};
    read_spec(c, a->spec, &s);
    return launch_each(c, n, convert, s, c->in[0].data, c->in[0].dtype, c->out[0].data,
                       c->out[0].dtype, n, a->bits, BACK, a->odd);
}

extern "C" const ll_solver grid_cuda[] = {{.run = run<false>}, {}},
                           ungrid_cuda[] = {{.run = run<true>}, {}};
