/* pool.cu: pooling: a thread for each element of the result. Gradients gather: an image's pixel asks
 * every window that covers it, so no sums collide and their order is fixed. */
#include "kern/cuda/gpu.cuh"

extern "C" {
ll_kernel max_pool_cuda, max_pool_grad_cuda, max_pool_pick_cuda, avg_pool_cuda, avg_pool_grad_cuda;
}

typedef struct pool {
    int64_t size[2], stride[2], pad[2];
    int64_t n, h, w, c, oh, ow; /* image and output */
} pool;

static pool pool_of(const ll_kcall *k, const ll_shape *x, const ll_shape *y)
{
    const ll_pool_attr *a = (const ll_pool_attr *)k->attr;
    return pool{{a->size[0], a->size[1]}, {a->stride[0], a->stride[1]}, {a->pad[0], a->pad[2]},
                x->d[0], x->d[1], x->d[2], x->d[3], y->d[1], y->d[2]};
}

struct spot {
    int64_t n, i, j, c;
};
__device__ __forceinline__ spot spot_of(int64_t e, int64_t h, int64_t w, int64_t c)
{
    return spot{e / (c * w * h), e / (c * w) % h, e / c % w, e % c};
}

template <class T, bool MAX>
static __global__ void forward(pool p, const T *x, T *y, int32_t *index, int64_t n)
{
    typedef typename sum_of<T>::type S;
    GRID_STRIDE(e, n)
    {
        spot o = spot_of(e, p.oh, p.ow, p.c);
        S best = 0, sum = 0;
        int32_t place = -1;
        for (int64_t r = 0; r < p.size[0]; r++)
            for (int64_t s = 0; s < p.size[1]; s++) {
                int64_t i = o.i * p.stride[0] - p.pad[0] + r, j = o.j * p.stride[1] - p.pad[1] + s;
                if (i < 0 || i >= p.h || j < 0 || j >= p.w) continue;
                S v = (S)to_float(x[((o.n * p.h + i) * p.w + j) * p.c + o.c]);
                sum += v;
                if (place >= 0 && !(v > best || v != v)) continue;
                best = v;
                place = (int32_t)(r * p.size[1] + s);
            }
        y[e] = from_float<T>::of(MAX ? best : sum / (S)(p.size[0] * p.size[1]));
        if (MAX) index[e] = place;
    }
}

template <class T>
static __global__ void pick(pool p, const T *x, const int32_t *index, T *y, int64_t n)
{
    GRID_STRIDE(e, n)
    {
        spot o = spot_of(e, p.oh, p.ow, p.c);
        int64_t k = index[e];
        int64_t i = o.i * p.stride[0] - p.pad[0] + k / p.size[1];
        int64_t j = o.j * p.stride[1] - p.pad[1] + k % p.size[1];
        bool in = k >= 0 && i >= 0 && i < p.h && j >= 0 && j < p.w;
        y[e] = in ? x[((o.n * p.h + i) * p.w + j) * p.c + o.c] : from_float<T>::of(0.f);
    }
}

template <class T, bool MAX>
static __global__ void backward(pool p, const T *dy, const int32_t *index, T *dx, int64_t n)
{
    typedef typename sum_of<T>::type S;
    GRID_STRIDE(e, n)
    {
        spot at = spot_of(e, p.h, p.w, p.c);
        /* windows o with o stride - pad <= i < o stride - pad + size */
        int64_t hi = at.i + p.pad[0], wi = at.j + p.pad[1];
        int64_t o0 = hi - p.size[0] < 0 ? 0 : (hi - p.size[0]) / p.stride[0] + 1;
        int64_t p0 = wi - p.size[1] < 0 ? 0 : (wi - p.size[1]) / p.stride[1] + 1;
        S sum = 0;
        for (int64_t o = o0; o < p.oh && o * p.stride[0] <= hi; o++)
            for (int64_t q = p0; q < p.ow && q * p.stride[1] <= wi; q++) {
                int64_t y = ((at.n * p.oh + o) * p.ow + q) * p.c + at.c;
                int64_t k = (hi - o * p.stride[0]) * p.size[1] + wi - q * p.stride[1];
                if (!MAX || index[y] == k) sum += (S)to_float(dy[y]);
            }
        dx[e] = from_float<T>::of(MAX ? sum : sum / (S)(p.size[0] * p.size[1]));
    }
}

template <bool MAX> static ll_err run_forward(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[0], *y = &c->out[0];
    pool p = pool_of(c, &x->shape, &y->shape);
    int64_t n = ll_numel(&y->shape);
    if (n == 0) return LL_OK;
    return with_float(x->dtype, [&](auto z) -> ll_err {
        typedef decltype(z) T;
        forward<T, MAX><<<blocks_for(n, 256), 256, 0, stream_of(c)>>>(
            p, (const T *)x->data, (T *)y->data, MAX ? (int32_t *)c->out[1].data : NULL, n);
        CUDA_TRY(cudaGetLastError());
        return LL_OK;
    });
}

template <bool MAX> static ll_err run_backward(const ll_kcall *c)
{
    const ll_tensor *dy = &c->in[0], *dx = &c->out[0];
    pool p = pool_of(c, &dx->shape, &dy->shape);
    int64_t n = ll_numel(&dx->shape);
    if (n == 0) return LL_OK;
    return with_float(dy->dtype, [&](auto z) -> ll_err {
        typedef decltype(z) T;
        backward<T, MAX><<<blocks_for(n, 256), 256, 0, stream_of(c)>>>(
            p, (const T *)dy->data, MAX ? (const int32_t *)c->in[1].data : NULL, (T *)dx->data, n);
        CUDA_TRY(cudaGetLastError());
        return LL_OK;
    });
}

ll_err max_pool_cuda(const ll_kcall *c)
{
    return run_forward<true>(c);
}

ll_err avg_pool_cuda(const ll_kcall *c)
{
    return run_forward<false>(c);
}

ll_err max_pool_grad_cuda(const ll_kcall *c)
{
    return run_backward<true>(c);
}

ll_err avg_pool_grad_cuda(const ll_kcall *c)
{
    return run_backward<false>(c);
}

ll_err max_pool_pick_cuda(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[0], *y = &c->out[0];
    pool p = pool_of(c, &x->shape, &y->shape);
    int64_t n = ll_numel(&y->shape);
    if (n == 0) return LL_OK;
    return with_float(x->dtype, [&](auto z) -> ll_err {
        typedef decltype(z) T;
        pick<T><<<blocks_for(n, 256), 256, 0, stream_of(c)>>>(
            p, (const T *)x->data, (const int32_t *)c->in[1].data, (T *)y->data, n);
        CUDA_TRY(cudaGetLastError());
        return LL_OK;
    });
}
