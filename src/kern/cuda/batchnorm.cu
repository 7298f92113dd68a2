/* batchnorm.cu: batch normalisation, alone or with the residual and the relu that follow, and its
 * gradients. These kernels only move memory, so all of them walk it the same way.
 *
 * A tensor is rows of n channels. A thread has one place in a row, V neighbouring channels (16
 * bytes), and walks down the rows with its block's other rows beside it, U rows at a time; what it
 * needs of a channel stays in registers. How many rows, and how many blocks share a processor (B),
 * follows from that: about 64 KB must be under way on each, and registers must do. Sums over rows
 * are made per thread, per block, and then over blocks by a second small kernel, always in the same
 * order.
 *
 * Two passes read a tensor, and the second walks it the other way round: what the first read last
 * is still in the cache. Statistics are sums of x - x[0] and of its square, so that a large mean
 * does not eat the variance. */
#include "kern/cuda/gpu.cuh"
#include "kern/rows.h"

#include <type_traits>

enum { THREADS = 256, MOST_B = 3, FOLD = 32 };

/* A number per channel, in the type of its tensor. */
struct channels {
    void *data;
    int type;
};
static channels per_channel(const ll_tensor *t)
{
    return channels{t->data, t->dtype};
}
template <class S> __device__ __forceinline__ S at(const channels &c, int64_t i)
{
    return c.type == LL_F32 ? (S)((const float *)c.data)[i] : (S)load_any(c.data, c.type, i);
}
__device__ __forceinline__ void put(const channels &c, int64_t i, double v)
{
    store_any(c.data, c.type, i, v);
}

template <class T, int V> struct alignas(sizeof(T) * V) pack {
    T v[V];
};

/* ---- the walk ---- */

struct walk {
    int64_t rows, n;
    int tx, ty;      /* a block's threads: places in a row, rows */
    unsigned gx, gy; /* blocks */
};

/* Of a tensor of x's shape: v channels and u rows a thread, b blocks a processor. */
static walk walk_of(const ll_kcall *c, const ll_tensor *x, int v, int u, int b)
{
    walk w = {ll_rows(x), ll_cols(x), 1, 1, 1, 1};
    int64_t places = ll_ceil_div(w.n, v);
    while (w.tx < 32 && w.tx < places) w.tx *= 2;
    w.ty = THREADS / w.tx;
    w.gx = (unsigned)ll_ceil_div(places, w.tx);
    int64_t deep = ll_ceil_div(w.rows, w.ty * u), most = processors_of(c) * b / w.gx;
    w.gy = (unsigned)ll_max64(1, ll_min64(most, deep));
    return w;
}

/* The first channel of this thread; n or more: it has none. */
template <int V> __device__ __forceinline__ int64_t my_channel(const walk &w)
{
    return (blockIdx.x * (int64_t)w.tx + threadIdx.x % w.tx) * V;
}

/* Calls f(how many, where) for this thread's rows: U at a time, w.ty rows apart, from an element
 * on; the last ones singly. */
template <int U, bool DOWN, class F>
__device__ __forceinline__ void each_rows(const walk &w, int64_t j, F f)
{
    const int step = w.ty * U, tiles = (int)((w.rows + step - 1) / step);
    const int row = threadIdx.x / w.tx;
    for (int i = blockIdx.y; i < tiles; i += gridDim.y) {
        int64_t first = (int64_t)(DOWN ? tiles - 1 - i : i) * step, r = first + row;
        if (first + step <= w.rows)
            f(std::integral_constant<int, U>{}, r * w.n + j);
        else
            for (; r < w.rows; r += w.ty) f(std::integral_constant<int, 1>{}, r * w.n + j);
    }
}

template <class T, int V, int K>
__device__ __forceinline__ void load_rows(const walk &w, const void *from, int64_t at,
                                          pack<T, V> (&to)[K])
{
    const T *p = (const T *)from + at;
#pragma unroll
    for (int k = 0; k < K; k++, p += w.ty * w.n) to[k] = *(const pack<T, V> *)p;
}

template <class T, int V, int K>
__device__ __forceinline__ void store_rows(const walk &w, void *to, int64_t at,
                                           const pack<T, V> (&from)[K])
{
    T *p = (T *)to + at;
#pragma unroll
    for (int k = 0; k < K; k++, p += w.ty * w.n) *(pack<T, V> *)p = from[k];
}

/* ---- sums ---- */

/* A block's sums of its threads' rows, to part blockIdx.y: [2][n]. */
template <class S, int V>
__device__ __forceinline__ void fold_block(const walk &w, S (&a)[V], S (&b)[V], S *parts)
{
    __shared__ S all[2][THREADS * V];
    int columns = w.tx * V, x = threadIdx.x % w.tx, y = threadIdx.x / w.tx;
    for (int v = 0; v < V; v++) {
        all[0][y * columns + x * V + v] = a[v];
        all[1][y * columns + x * V + v] = b[v];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * columns; i += THREADS) {
        int which = i / columns, c = i % columns;
        int64_t j = blockIdx.x * (int64_t)columns + c;
        S sum = 0;
        for (int k = 0; k < w.ty; k++) sum += all[which][k * columns + c];
        if (j < w.n) parts[(blockIdx.y * 2 + which) * w.n + j] = sum;
    }
}

/* The sums of all parts, for this thread's channel; f(j, a, b) is called once for each. */
template <class S, class F>
__device__ __forceinline__ void add_parts(const S *parts, int n_part, int64_t n, F f)
{
    int64_t j = blockIdx.x * 32 + threadIdx.x;
    auto sum_of_part = [&](int which) {
        return fold_parts<FOLD, 4>(
            j < n ? n_part : 0, 0.0, [&](int k) { return (double)parts[(2 * k + which) * n + j]; },
            [](double a, double b) { return a + b; });
    };
    double a = sum_of_part(0), b = sum_of_part(1);
    if (threadIdx.y == 0 && j < n) f(j, a, b);
}

/* ---- forward ---- */

template <class T, class S, int V, int U, int B>
static __global__ void __launch_bounds__(THREADS, B) sum_x(walk w, const T *x, S *parts)
{
    int64_t j = my_channel<V>(w);
    S a[V] = {}, b[V] = {}, first[V];
    if (j < w.n) {
        for (int v = 0; v < V; v++) first[v] = (S)to_float(x[j + v]);
        each_rows<U, true>(w, j, [&](auto count, int64_t at) {
            constexpr int K = decltype(count)::value;
            pack<T, V> xs[K];
            load_rows<T, V, K>(w, x, at, xs);
#pragma unroll
            for (int k = 0; k < K; k++)
#pragma unroll
                for (int v = 0; v < V; v++) {
                    S d = (S)to_float(xs[k].v[v]) - first[v];
                    a[v] += d;
                    b[v] += d * d;
                }
        });
    }
    fold_block<S, V>(w, a, b, parts);
}

template <class T, class S>
static __global__ void statistics(const S *parts, int n_part, int64_t rows, int64_t n, const T *x,
                                  channels mean, channels var)
{
    add_parts(parts, n_part, n, [&](int64_t j, double a, double b) {
        double m = a / (double)rows, s = b / (double)rows - m * m;
        put(mean, j, (double)to_float(x[j]) + m);
        put(var, j, s > 0 ? s : s < 0 ? 0 : s); /* not a number stays so */
    });
}

/* y = gain (x - mean) rstd + bias [+ r], of which what is below 0 becomes 0. */
template <class T, class S, int V, int U, int B, bool ADD, bool RELU>
static __global__ void __launch_bounds__(THREADS, B)
    normalise(walk w, const T *x, const T *res, channels gain, channels bias, channels mean,
              channels var, double eps, T *y)
{
    int64_t j = my_channel<V>(w);
    if (j >= w.n) return;
    S m[V], scale[V], shift[V];
#pragma unroll
    for (int v = 0; v < V; v++) {
        m[v] = at<S>(mean, j + v);
        scale[v] = at<S>(gain, j + v) * ((S)1 / sqrt(at<S>(var, j + v) + (S)eps));
        shift[v] = at<S>(bias, j + v);
    }
    each_rows<U, false>(w, j, [&](auto count, int64_t at) {
        constexpr int K = decltype(count)::value;
        pack<T, V> xs[K], rs[K];
        load_rows<T, V, K>(w, x, at, xs);
        if (ADD) load_rows<T, V, K>(w, res, at, rs);
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int v = 0; v < V; v++) {
                S s = ((S)to_float(xs[k].v[v]) - m[v]) * scale[v] + shift[v];
                if (ADD) s += (S)to_float(rs[k].v[v]);
                xs[k].v[v] = from_float<T>::of(RELU && s <= 0 ? (S)0 : s);
            }
        store_rows<T, V, K>(w, y, at, xs);
    });
}

/* ---- backward ---- */

/* What a gradient's kernels read and write. MASK: of dy, only where the result was above 0: it is
 * made again from x (BY_X), or read (BY_Y). SUM: dy has two parts. With BY_Y the masked gradient is
 * written too: the residual wants it, and the second pass reads it in place of dy. */
enum mask { NONE, BY_X, BY_Y };

struct backward {
    const void *dy, *other, *y, *x;
    channels gain, bias, mean, var, dgain, dbias;
    void *dx, *g;
    double eps;
};

template <class T, class S, int V, int U, int B, mask MASK, bool SUM>
static __global__ void __launch_bounds__(THREADS, B) sum_dy(walk w, backward o, S *parts)
{
    int64_t j = my_channel<V>(w);
    S a[V] = {}, b[V] = {}, m[V], scale[V], shift[V];
    if (j < w.n) {
#pragma unroll
        for (int v = 0; v < V; v++) {
            m[v] = at<S>(o.mean, j + v);
            if (MASK != BY_X) continue;
            scale[v] = at<S>(o.gain, j + v) * ((S)1 / sqrt(at<S>(o.var, j + v) + (S)o.eps));
            shift[v] = at<S>(o.bias, j + v);
        }
        each_rows<U, true>(w, j, [&](auto count, int64_t at) {
            constexpr int K = decltype(count)::value;
            pack<T, V> ds[K], es[K], ys[K], xs[K];
            load_rows<T, V, K>(w, o.dy, at, ds);
            if (SUM) load_rows<T, V, K>(w, o.other, at, es);
            if (MASK == BY_Y) load_rows<T, V, K>(w, o.y, at, ys);
            load_rows<T, V, K>(w, o.x, at, xs);
#pragma unroll
            for (int k = 0; k < K; k++)
#pragma unroll
                for (int v = 0; v < V; v++) {
                    S g = (S)to_float(ds[k].v[v]), u = (S)to_float(xs[k].v[v]) - m[v];
                    if (SUM) g += (S)to_float(es[k].v[v]);
                    if (MASK == BY_X && !(u * scale[v] + shift[v] > 0)) g = 0;
                    if (MASK == BY_Y) {
                        if ((S)to_float(ys[k].v[v]) == 0) g = 0;
                        ds[k].v[v] = from_float<T>::of(g);
                        g = (S)to_float(ds[k].v[v]); /* as the second pass reads it */
                    }
                    a[v] += g;
                    b[v] += g * u;
                }
            if (MASK == BY_Y) store_rows<T, V, K>(w, o.g, at, ds);
        });
    }
    fold_block<S, V>(w, a, b, parts);
}

template <class S>
static __global__ void gather_dy(const S *parts, int n_part, int64_t n, backward o)
{
    add_parts(parts, n_part, n, [&](int64_t j, double a, double b) {
        put(o.dbias, j, a);
        put(o.dgain, j, b / sqrt(at<double>(o.var, j) + o.eps));
    });
}

/* dx = gain rstd (g - dbias/rows - xhat dgain/rows) */
template <class T, class S, int V, int U, int B, bool MASKED>
static __global__ void __launch_bounds__(THREADS, B) make_dx(walk w, backward o)
{
    int64_t j = my_channel<V>(w);
    if (j >= w.n) return;
    S m[V], scale[V], shift[V], p[V], q[V];
#pragma unroll
    for (int v = 0; v < V; v++) {
        S rstd = (S)1 / sqrt(at<S>(o.var, j + v) + (S)o.eps);
        m[v] = at<S>(o.mean, j + v);
        scale[v] = at<S>(o.gain, j + v) * rstd;
        if (MASKED) shift[v] = at<S>(o.bias, j + v);
        p[v] = scale[v] * at<S>(o.dbias, j + v) / (S)w.rows;
        q[v] = scale[v] * rstd * at<S>(o.dgain, j + v) / (S)w.rows;
    }
    each_rows<U, false>(w, j, [&](auto count, int64_t at) {
        constexpr int K = decltype(count)::value;
        pack<T, V> ds[K], xs[K];
        load_rows<T, V, K>(w, o.dy, at, ds);
        load_rows<T, V, K>(w, o.x, at, xs);
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int v = 0; v < V; v++) {
                S g = (S)to_float(ds[k].v[v]), u = (S)to_float(xs[k].v[v]) - m[v];
                if (MASKED && !(u * scale[v] + shift[v] > 0)) g = 0;
                ds[k].v[v] = from_float<T>::of(scale[v] * g - p[v] - u * q[v]);
            }
        store_rows<T, V, K>(w, o.dx, at, ds);
    });
}

/* ---- calls ---- */

/* Sums over no rows. */
static ll_err clear(const ll_kcall *c, const ll_tensor *t)
{
    size_t bytes = (size_t)ll_numel(&t->shape) * ll_dtype_bytes(t->dtype);
    if (bytes) CUDA_TRY(cudaMemsetAsync(t->data, 0, bytes, stream_of(c)));
    return LL_OK;
}

static ll_err clear_channels(const ll_kcall *c)
{
    TRY(clear(c, &c->out[1]));
    return clear(c, &c->out[2]);
}

/* May all of these be read 16 bytes at a time? */
static bool in_packs(int v, int64_t n, const ll_tensor *t, int n_tensor)
{
    for (int i = 0; i < n_tensor; i++)
        if (t[i].shape.n > 1 && (uintptr_t)t[i].data % 16) return false;
    return n % v == 0;
}

static size_t scratch(const ll_kcall *c)
{
    const ll_tensor *x = &c->out[0];
    int v = (int)(16 / ll_dtype_bytes(x->dtype));
    unsigned packs = walk_of(c, x, v, 1, MOST_B).gy, alone = walk_of(c, x, 1, 1, MOST_B).gy;
    return 2 * (size_t)(packs > alone ? packs : alone) * (size_t)ll_cols(x) *
           (x->dtype == LL_F64 ? sizeof(double) : sizeof(float));
}

/* f(T{}, pack size): with packs where the call's tensors allow them. */
template <class F> static ll_err with_packs(const ll_kcall *c, const ll_tensor *x, F f)
{
    return with_float(x->dtype, [&](auto z) -> ll_err {
        typedef decltype(z) T;
        constexpr int V = sizeof(T) == 8 ? 1 : 16 / (int)sizeof(T); /* f64 is for tests */
        int64_t n = ll_cols(x);
        if (in_packs(V, n, c->in, c->n_in) && in_packs(V, n, c->out, c->n_out))
            return f(z, std::integral_constant<int, V>{});
        return f(z, std::integral_constant<int, 1>{});
    });
}

template <bool ADD, bool RELU> static ll_err forward(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[0], *gain = &c->in[ADD ? 2 : 1], *bias = gain + 1;
    double eps = ((const ll_norm_attr *)c->attr)->eps;
    if (ll_numel(&x->shape) == 0) return clear_channels(c);
    return with_packs(c, x, [&](auto z, auto pack_size) -> ll_err {
        typedef decltype(z) T;
        typedef typename sum_of<T>::type S;
        constexpr int V = decltype(pack_size)::value;
        channels mean = per_channel(&c->out[1]), var = per_channel(&c->out[2]);
        constexpr int U1 = 4, B1 = MOST_B, U2 = ADD ? 4 : 8, B2 = 2;
        walk w = walk_of(c, x, V, U1, B1), w2 = walk_of(c, x, V, U2, B2);
        TRY(launch(c, sum_x<T, S, V, U1, B1>, dim3(w.gx, w.gy), THREADS, w, x->data, c->scratch));
        TRY(launch(c, statistics<T, S>, ll_ceil_div(w.n, 32), dim3(32, FOLD), c->scratch, w.gy,
                   w.rows, w.n, x->data, mean, var));
        return launch(c, normalise<T, S, V, U2, B2, ADD, RELU>, dim3(w2.gx, w2.gy), THREADS, w2,
                      x->data, ADD ? c->in[1].data : NULL, per_channel(gain), per_channel(bias),
                      mean, var, eps, c->out[0].data);
    });
}

/* in: dy (SUM: its two parts), BY_Y: y, x, gain, BY_X: bias, mean, var. */
template <mask MASK, bool SUM> static ll_err run_backward(const ll_kcall *c)
{
    const ll_tensor *in = c->in, *x = &c->out[0];
    backward o = {};
    o.dy = (in++)->data;
    if (SUM) o.other = (in++)->data;
    if (MASK == BY_Y) o.y = (in++)->data;
    o.x = (in++)->data;
    o.gain = per_channel(in++);
    if (MASK == BY_X) o.bias = per_channel(in++);
    o.mean = per_channel(in), o.var = per_channel(in + 1);
    o.eps = ((const ll_norm_attr *)c->attr)->eps;
    o.dx = c->out[0].data;
    o.dgain = per_channel(&c->out[1]), o.dbias = per_channel(&c->out[2]);
    o.g = c->n_out > 3 ? c->out[3].data : NULL;
    if (ll_numel(&x->shape) == 0) return clear_channels(c);
    return with_packs(c, x, [&](auto z, auto pack_size) -> ll_err {
        typedef decltype(z) T;
        typedef typename sum_of<T>::type S;
        constexpr int V = decltype(pack_size)::value;
        constexpr int U1 = MASK == BY_Y ? 1 : 4, B1 = MASK == BY_Y ? 3 : 2, U2 = 4, B2 = 2;
        walk w = walk_of(c, x, V, U1, B1), w2 = walk_of(c, x, V, U2, B2);
        TRY(launch(c, sum_dy<T, S, V, U1, B1, MASK, SUM>, dim3(w.gx, w.gy), THREADS, w, o,
                   c->scratch));
        TRY(launch(c, gather_dy<S>, ll_ceil_div(w.n, 32), dim3(32, FOLD), c->scratch, w.gy, w.n,
                   o));
        backward second = o;
        if (MASK == BY_Y) second.dy = o.g;
        return launch(c, make_dx<T, S, V, U2, B2, MASK == BY_X>, dim3(w2.gx, w2.gy), THREADS, w2,
                      second);
    });
}

#define WAY(f)                                                                                     \
    {                                                                                              \
        {.scratch = scratch, .run = f},                                                            \
        {                                                                                          \
        }                                                                                          \
    }
extern "C" const ll_solver batchnorm_cuda[] = WAY((forward<false, false>)),
                           batchnorm_relu_cuda[] = WAY((forward<false, true>)),
                           batchnorm_add_relu_cuda[] = WAY((forward<true, true>)),
                           batchnorm_grad_cuda[] = WAY((run_backward<NONE, false>)),
                           batchnorm_relu_grad_cuda[] = WAY((run_backward<BY_X, false>)),
                           batchnorm_add_relu_grad_cuda[] = WAY((run_backward<BY_Y, false>)),
                           batchnorm_sum_relu_grad_cuda[] = WAY((run_backward<BY_Y, true>));
