/* gather.cu: gather, scatter_add and arange. A gather is a thread an element. A scatter is a thread
 * for each position of the dimensions that x keeps, which alone adds to its elements, in y's order:
 * the same bits each time, and little to do at once where x keeps few. */
#include "kern/cuda/gpu.cuh"
#include "kern/gather.h"

/* Where in x element e of y is, -1: not in this part. */
static __device__ __forceinline__ int64_t place(const ll_gather_walk &g, const int32_t *index,
                                                int64_t e, int64_t *trouble)
{
    int64_t at = 0, i = 0;
#pragma unroll
    for (int d = LL_MAX_DIMS - 1; d >= 0; d--) {
        if (d >= g.n) continue;
        int64_t k = e % g.d[d];
        e /= g.d[d];
        at += k * g.x[d];
        i += k * g.index[d];
    }
    int64_t row = index[i] - g.from;
    if (row >= 0 && row < g.v) return at + row * g.step;
    if (index[i] < 0 || index[i] >= g.whole) tell_trouble(trouble, LL_TROUBLE_INDEX, i, index[i]);
    return -1;
}

template <class W>
static __global__ void pick(ll_gather_walk g, const W *x, const int32_t *index, W *y, int64_t n,
                            int64_t *trouble)
{
    GRID_STRIDE(e, n)
    {
        int64_t at = place(g, index, e, trouble);
        y[e] = at < 0 ? W{} : x[at];
    }
}

static ll_err run_gather(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[0], *y = &c->out[0];
    ll_gather_walk g;
    TRY(ll_gather_of((const ll_gather_attr *)c->attr, &x->shape, &c->in[1].shape, &y->shape, &g));
    int64_t n = ll_numel(&y->shape);
    return with_word(ll_dtype_bytes(x->dtype), [&](auto w) -> ll_err {
        return launch_each(c, n, pick<decltype(w)>, g, x->data, c->in[1].data, y->data, n,
                           c->trouble);
    });
}

/* y's dimensions that x has, and those that it has not, as numbers of positions; how an element of
 * y is found from both. */
typedef struct kept {
    int64_t n, n_sum;
    int64_t y[LL_MAX_DIMS]; /* strides of y */
    bool in_x[LL_MAX_DIMS];
} kept;

static __global__ void zero(void *x, int type, int64_t n)
{
    GRID_STRIDE(i, n) store_any(x, type, i, 0);
}

template <class A, class B>
static __global__ void add(ll_gather_walk g, kept k, const A *y, const int32_t *index, B *x,
                           int64_t *trouble)
{
    GRID_STRIDE(p, k.n)
    {
        for (int64_t s = 0; s < k.n_sum; s++) {
            int64_t keep = p, sum = s, e = 0;
#pragma unroll
            for (int d = LL_MAX_DIMS - 1; d >= 0; d--) {
                if (d >= g.n) continue;
                int64_t *digits = k.in_x[d] ? &keep : &sum;
                e += *digits % g.d[d] * k.y[d];
                *digits /= g.d[d];
            }
            int64_t at = place(g, index, e, trouble);
            if (at >= 0) x[at] = from_float<B>::of(to_float(x[at]) + to_float(y[e]));
        }
    }
}

static ll_err run_scatter(const ll_kcall *c)
{
    const ll_tensor *y = &c->in[0], *x = &c->out[0];
    ll_gather_walk g;
    TRY(ll_gather_of((const ll_gather_attr *)c->attr, &x->shape, &c->in[1].shape, &y->shape, &g));
    kept k = {1, 1, {}, {}};
    int64_t step = 1, n = ll_numel(&x->shape);
    for (int d = g.n - 1; d >= 0; d--) {
        k.y[d] = step;
        step *= g.d[d];
        k.in_x[d] = g.x[d] != 0;
        (k.in_x[d] ? k.n : k.n_sum) *= g.d[d];
    }
    TRY(launch_each(c, n, zero, x->data, (int)x->dtype, n));
    if (!k.n_sum || !n) return LL_OK;
    return with_floats(y->dtype, x->dtype, [&](auto a, auto b) -> ll_err {
        return launch_each(c, k.n, add<decltype(a), decltype(b)>, g, k, y->data, c->in[1].data,
                           x->data, c->trouble);
    });
}

static __global__ void count(double start, double step, int64_t at, int64_t n, void *y, int type)
{
    GRID_STRIDE(i, n) store_any(y, type, i, start + step * (double)(at + i));
}

static ll_err run_arange(const ll_kcall *c)
{
    const ll_arange_attr *a = (const ll_arange_attr *)c->attr;
    return launch_each(c, a->n, count, a->start, a->step, a->at, a->n, c->out[0].data,
                       (int)c->out[0].dtype);
}

extern "C" const ll_solver gather_cuda[] = {{.run = run_gather}, {}};
extern "C" const ll_solver scatter_add_cuda[] = {{.run = run_scatter}, {}};
extern "C" const ll_solver arange_cuda[] = {{.run = run_arange}, {}};
