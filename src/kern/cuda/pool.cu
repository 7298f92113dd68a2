/* pool.cu: pooling: a thread for each V neighbouring channels (16 bytes, where they divide so) of a
 * pixel of the result. Gradients gather: an image's pixel asks every window that covers it, so no
 * sums collide and their order is fixed. Indices are 32 bits wide where the tensors are small
 * enough: a thread divides a few times, and loads little. */
#include "kern/cuda/gpu.cuh"

#include <type_traits>

template <class I> struct pool {
    I size[2], stride[2], pad[2];
    I h, w, c, oh, ow; /* image and output */
};

template <class I> static pool<I> pool_of(const ll_kcall *k, const ll_shape *x, const ll_shape *y)
{
    const ll_pool_attr *a = (const ll_pool_attr *)k->attr;
    pool<I> p;
    for (int i = 0; i < 2; i++)
        p.size[i] = (I)a->size[i], p.stride[i] = (I)a->stride[i], p.pad[i] = (I)a->pad[2 * i];
    p.h = (I)x->d[1], p.w = (I)x->d[2], p.c = (I)x->d[3], p.oh = (I)y->d[1], p.ow = (I)y->d[2];
    return p;
}

/* Where a thread's result lies: sample, row, column, first channel. */
template <class I> struct spot {
    I n, i, j, c;
};
template <class I, int V> __device__ __forceinline__ spot<I> spot_of(I e, I h, I w, I c)
{
    I packs = c / V, pixel = e / packs;
    return spot<I>{pixel / (w * h), pixel / w % h, pixel % w, (e - pixel * packs) * V};
}

template <class T, class I, int V, bool MAX>
static __global__ void forward(pool<I> p, const T *x, T *y, int32_t *index, I n)
{
    typedef typename sum_of<T>::type S;
    for (I e = blockIdx.x * (I)blockDim.x + threadIdx.x; e < n; e += (I)gridDim.x * blockDim.x) {
        spot<I> o = spot_of<I, V>(e, p.oh, p.ow, p.c);
        S best[V] = {};
        int32_t place[V];
#pragma unroll
        for (int v = 0; v < V; v++) place[v] = -1;
        for (I r = 0; r < p.size[0]; r++)
            for (I s = 0; s < p.size[1]; s++) {
                I i = o.i * p.stride[0] - p.pad[0] + r, j = o.j * p.stride[1] - p.pad[1] + s;
                if (i < 0 || i >= p.h || j < 0 || j >= p.w) continue;
                several<T, V> in =
                    *(const several<T, V> *)(x + ((o.n * p.h + i) * p.w + j) * p.c + o.c);
#pragma unroll
                for (int k = 0; k < V; k++) {
                    S v = (S)to_float(in.v[k]);
                    bool take = !MAX || place[k] < 0 || v > best[k] || v != v;
                    best[k] = !MAX ? best[k] + v : take ? v : best[k];
                    if (MAX && take) place[k] = (int32_t)(r * p.size[1] + s);
                }
            }
        several<T, V> out;
        several<int32_t, V> places;
#pragma unroll
        for (int k = 0; k < V; k++) {
            out.v[k] = from_float<T>::of(MAX ? best[k] : best[k] / (S)(p.size[0] * p.size[1]));
            places.v[k] = place[k];
        }
        ((several<T, V> *)y)[e] = out;
        if (MAX) ((several<int32_t, V> *)index)[e] = places;
    }
}

template <class T, class I, int V>
static __global__ void pick(pool<I> p, const T *x, const int32_t *index, T *y, I n)
{
    for (I e = blockIdx.x * (I)blockDim.x + threadIdx.x; e < n; e += (I)gridDim.x * blockDim.x) {
        spot<I> o = spot_of<I, V>(e, p.oh, p.ow, p.c);
        for (int v = 0; v < V; v++) {
            I k = (I)index[e * V + v];
            I i = o.i * p.stride[0] - p.pad[0] + k / p.size[1];
            I j = o.j * p.stride[1] - p.pad[1] + k % p.size[1];
            bool in = k >= 0 && i >= 0 && i < p.h && j >= 0 && j < p.w;
            y[e * V + v] =
                in ? x[((o.n * p.h + i) * p.w + j) * p.c + o.c + v] : from_float<T>::of(0.f);
        }
    }
}

template <class T, class I, int V, bool MAX>
static __global__ void backward(pool<I> p, const T *dy, const int32_t *index, T *dx, I n)
{
    typedef typename sum_of<T>::type S;
    for (I e = blockIdx.x * (I)blockDim.x + threadIdx.x; e < n; e += (I)gridDim.x * blockDim.x) {
        spot<I> at = spot_of<I, V>(e, p.h, p.w, p.c);
        /* windows o with o stride - pad <= i < o stride - pad + size */
        I hi = at.i + p.pad[0], wi = at.j + p.pad[1];
        I o0 = hi - p.size[0] < 0 ? 0 : (hi - p.size[0]) / p.stride[0] + 1;
        I p0 = wi - p.size[1] < 0 ? 0 : (wi - p.size[1]) / p.stride[1] + 1;
        S sum[V] = {};
        for (I o = o0; o < p.oh && o * p.stride[0] <= hi; o++)
            for (I q = p0; q < p.ow && q * p.stride[1] <= wi; q++) {
                I y = ((at.n * p.oh + o) * p.ow + q) * p.c + at.c;
                int32_t k = (int32_t)((hi - o * p.stride[0]) * p.size[1] + wi - q * p.stride[1]);
                several<T, V> d = *(const several<T, V> *)(dy + y);
                several<int32_t, V> from;
                if (MAX) from = *(const several<int32_t, V> *)(index + y);
#pragma unroll
                for (int v = 0; v < V; v++)
                    if (!MAX || from.v[v] == k) sum[v] += (S)to_float(d.v[v]);
            }
        several<T, V> out;
#pragma unroll
        for (int v = 0; v < V; v++)
            out.v[v] = from_float<T>::of(MAX ? sum[v] : sum[v] / (S)(p.size[0] * p.size[1]));
        ((several<T, V> *)dx)[e] = out;
    }
}

/* ---- calls ---- */

static bool in_packs(const ll_tensor *t, int n, int v)
{
    for (int i = 0; i < n; i++)
        if (t[i].shape.d[3] % v || (uintptr_t)t[i].data % 32) return false;
    return true;
}

/* f(T{}, I{}, pack size, threads) for a call whose image and output have these shapes. */
template <class F>
static ll_err with_pool(const ll_kcall *c, const ll_shape *x, const ll_shape *y, F f)
{
    int64_t n = ll_numel(&c->out[0].shape);
    bool small = ll_numel(x) < INT32_MAX / 2 && ll_numel(y) < INT32_MAX / 2;
    return with_float(c->in[0].dtype, [&](auto z) -> ll_err {
        constexpr int V = sizeof z == 8 ? 1 : 16 / (int)sizeof z; /* f64 is for tests */
        std::integral_constant<int, 1> alone;
        if (!small) return f(z, int64_t{}, alone, n);
        if (!in_packs(c->in, c->n_in, V) || !in_packs(c->out, c->n_out, V))
            return f(z, int32_t{}, alone, n);
        return f(z, int32_t{}, std::integral_constant<int, V>{}, n / V);
    });
}

template <bool MAX> static ll_err run_forward(const ll_kcall *c)
{
    const ll_shape *x = &c->in[0].shape, *y = &c->out[0].shape;
    return with_pool(c, x, y, [&](auto z, auto i, auto v, int64_t n) -> ll_err {
        typedef decltype(i) I;
        return launch_each(c, n, forward<decltype(z), I, v.value, MAX>, pool_of<I>(c, x, y),
                           c->in[0].data, c->out[0].data, MAX ? c->out[1].data : NULL, n);
    });
}

template <bool MAX> static ll_err run_backward(const ll_kcall *c)
{
    const ll_shape *x = &c->out[0].shape, *y = &c->in[0].shape;
    return with_pool(c, x, y, [&](auto z, auto i, auto v, int64_t n) -> ll_err {
        typedef decltype(i) I;
        return launch_each(c, n, backward<decltype(z), I, v.value, MAX>, pool_of<I>(c, x, y),
                           c->in[0].data, MAX ? c->in[1].data : NULL, c->out[0].data, n);
    });
}

static ll_err run_pick(const ll_kcall *c)
{
    const ll_shape *x = &c->in[0].shape, *y = &c->out[0].shape;
    return with_pool(c, x, y, [&](auto z, auto i, auto v, int64_t n) -> ll_err {
        typedef decltype(i) I;
        return launch_each(c, n, pick<decltype(z), I, v.value>, pool_of<I>(c, x, y), c->in[0].data,
                           c->in[1].data, c->out[0].data, n);
    });
}

extern "C" const ll_solver max_pool_cuda[] = {{.run = run_forward<true>}, {}},
                           avg_pool_cuda[] = {{.run = run_forward<false>}, {}},
                           max_pool_grad_cuda[] = {{.run = run_backward<true>}, {}},
                           avg_pool_grad_cuda[] = {{.run = run_backward<false>}, {}},
                           max_pool_pick_cuda[] = {{.run = run_pick}, {}};
