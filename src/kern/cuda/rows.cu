/* rows.cu: softmax and cross-entropy along rows, right answers, embeddings, dropout.
 *
 * A block takes a row. Cross-entropy reads logits once for its maximum and sum together (a running
 * pair), so that a row of 50,000 is not read twice. */
#include "kern/cuda/gpu.cuh"
#include "kern/cuda/trouble.h"
#include "kern/rows.h"

extern "C" {
ll_kernel softmax_cuda, cross_entropy_cuda, cross_entropy_grad_cuda, correct_cuda;
ll_kernel embedding_cuda, embedding_grad_cuda, dropout_cuda;
ll_scratch embedding_grad_cuda_scratch;
}

static int row_threads(int64_t n)
{
    return n <= 128 ? 32 : n <= 1024 ? 128 : n <= 8192 ? 256 : 1024;
}

/* Maximum and sum of exp(x - maximum), together. */
template <class S> struct lse_pair {
    S top, sum;
};
template <class S> __device__ __forceinline__ lse_pair<S> join(lse_pair<S> a, lse_pair<S> b)
{
    S top = a.top > b.top ? a.top : b.top;
    if (a.top != a.top || b.top != b.top) top = a.top + b.top;
    S s = (a.sum ? a.sum * exp(a.top - top) : (S)0) + (b.sum ? b.sum * exp(b.top - top) : (S)0);
    return {top, s};
}

template <class T, class S> __device__ lse_pair<S> row_lse(const T *x, int64_t n)
{
    __shared__ S tops[32], sums[32];
    lse_pair<S> p = {(S)-INFINITY, 0};
    for (int64_t j = threadIdx.x; j < n; j += blockDim.x) {
        S v = (S)to_float(x[j]);
        if (v > p.top || v != v) {
            p.sum = p.sum ? p.sum * exp(p.top - v) : (S)0;
            p.top = v;
        }
        p.sum += exp(v - p.top);
    }
    for (int o = 16; o; o >>= 1) {
        lse_pair<S> q = {__shfl_xor_sync(~0u, p.top, o), __shfl_xor_sync(~0u, p.sum, o)};
        p = join(p, q);
    }
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = (blockDim.x + 31) >> 5;
    if (lane == 0) tops[warp] = p.top, sums[warp] = p.sum;
    __syncthreads();
    p = {tops[0], sums[0]};
    for (int k = 1; k < warps; k++) p = join(p, lse_pair<S>{tops[k], sums[k]});
    return p;
}

template <class T> static __global__ void softmax(const T *x, T *y, int64_t n)
{
    typedef typename sum_of<T>::type S;
    int64_t r = blockIdx.x;
    lse_pair<S> p = row_lse<T, S>(x + r * n, n);
    for (int64_t j = threadIdx.x; j < n; j += blockDim.x)
        y[r * n + j] = from_float<T>::of(exp((S)to_float(x[r * n + j]) - p.top) / p.sum);
}

ll_err softmax_cuda(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[0];
    int64_t rows = ll_rows(x), n = ll_cols(x);
    if (rows * n == 0) return LL_OK;
    return with_float(x->dtype, [&](auto z) -> ll_err {
        typedef decltype(z) T;
        softmax<T><<<(unsigned)rows, row_threads(n), 0, stream_of(c)>>>((const T *)x->data,
                                                                        (T *)c->out[0].data, n);
        CUDA_TRY(cudaGetLastError());
        return LL_OK;
    });
}

/* ---- cross-entropy ---- */

template <class T>
static __global__ void cross_entropy(const T *x, const int32_t *label, void *loss, int lt, void *lse,
                              int et, int64_t n, int64_t *trouble)
{
    typedef typename sum_of<T>::type S;
    int64_t r = blockIdx.x;
    lse_pair<S> p = row_lse<T, S>(x + r * n, n);
    if (threadIdx.x) return;
    S all = p.top + log(p.sum);
    int64_t k = label[r];
    if (k < 0 || k >= n) {
        tell_trouble(trouble, LL_TROUBLE_LABEL, r, k);
        k = 0;
    }
    store_any(loss, lt, r, (double)(all - (S)to_float(x[r * n + k])));
    store_any(lse, et, r, (double)all);
}

ll_err cross_entropy_cuda(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[0];
    int64_t rows = ll_rows(x), n = ll_cols(x);
    if (rows == 0) return LL_OK;
    return with_float(x->dtype, [&](auto z) -> ll_err {
        typedef decltype(z) T;
        cross_entropy<T><<<(unsigned)rows, row_threads(n), 0, stream_of(c)>>>(
            (const T *)x->data, (const int32_t *)c->in[1].data, c->out[0].data, c->out[0].dtype,
            c->out[1].data, c->out[1].dtype, n, c->trouble);
        CUDA_TRY(cudaGetLastError());
        return LL_OK;
    });
}

template <class T>
static __global__ void cross_entropy_grad(const void *dloss, int dt, const T *x, const int32_t *label,
                                   const void *lse, int lt, T *y, int64_t n, int64_t *trouble)
{
    typedef typename sum_of<T>::type S;
    int64_t r = blockIdx.x, k = label[r];
    S by = (S)load_any(dloss, dt, r), all = (S)load_any(lse, lt, r);
    if (threadIdx.x == 0 && (k < 0 || k >= n)) tell_trouble(trouble, LL_TROUBLE_LABEL, r, k);
    for (int64_t j = threadIdx.x; j < n; j += blockDim.x) {
        S p = exp((S)to_float(x[r * n + j]) - all);
        y[r * n + j] = from_float<T>::of((p - (S)(j == k)) * by);
    }
}

ll_err cross_entropy_grad_cuda(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[1];
    int64_t rows = ll_rows(x), n = ll_cols(x);
    if (rows * n == 0) return LL_OK;
    return with_float(x->dtype, [&](auto z) -> ll_err {
        typedef decltype(z) T;
        cross_entropy_grad<T><<<(unsigned)rows, row_threads(n), 0, stream_of(c)>>>(
            c->in[0].data, c->in[0].dtype, (const T *)x->data, (const int32_t *)c->in[2].data,
            c->in[3].data, c->in[3].dtype, (T *)c->out[0].data, n, c->trouble);
        CUDA_TRY(cudaGetLastError());
        return LL_OK;
    });
}

/* The first largest of a row is right, if it is the label; a NaN is never it. A warp a row. */
template <class T>
static __global__ void correct(const T *x, const int32_t *label, void *y, int yt, int64_t rows, int64_t n,
                        int64_t *trouble)
{
    int64_t r = blockIdx.x * (int64_t)(blockDim.x / 32) + threadIdx.x / 32;
    if (r >= rows) return;
    int lane = threadIdx.x & 31;
    double best = 0;
    long long at = -1;
    for (int64_t j = lane; j < n; j += 32) {
        double v = (double)to_float(x[r * n + j]);
        if (v == v && (at < 0 || v > best)) best = v, at = j;
    }
    for (int o = 16; o; o >>= 1) {
        double v = __shfl_xor_sync(~0u, best, o);
        long long k = __shfl_xor_sync(~0u, at, o);
        if (k >= 0 && (at < 0 || v > best || (v == best && k < at))) best = v, at = k;
    }
    if (lane) return;
    int64_t want = label[r];
    if (want < 0 || want >= n) tell_trouble(trouble, LL_TROUBLE_LABEL, r, want);
    store_any(y, yt, r, at == want);
}

ll_err correct_cuda(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[0];
    int64_t rows = ll_rows(x), n = ll_cols(x);
    if (rows == 0) return LL_OK;
    return with_float(x->dtype, [&](auto z) -> ll_err {
        typedef decltype(z) T;
        correct<T><<<(unsigned)ceil_div(rows, 4), 128, 0, stream_of(c)>>>(
            (const T *)x->data, (const int32_t *)c->in[1].data, c->out[0].data, c->out[0].dtype,
            rows, n, c->trouble);
        CUDA_TRY(cudaGetLastError());
        return LL_OK;
    });
}

/* ---- embedding ---- */

template <class T>
static __global__ void embedding(const T *table, const int32_t *index, T *y, int64_t n, int64_t v,
                          int64_t width, int64_t from, bool part, int64_t *trouble)
{
    GRID_STRIDE(e, n * width)
    {
        int64_t i = e / width, row = index[i] - from;
        bool here = row >= 0 && row < v;
        if (!here && !part) tell_trouble(trouble, LL_TROUBLE_INDEX, i, index[i]);
        y[e] = here ? table[row * width + e % width] : from_float<T>::of(0.f);
    }
}

ll_err embedding_cuda(const ll_kcall *c)
{
    const ll_embedding_attr *a = (const ll_embedding_attr *)c->attr;
    const ll_tensor *table = &c->in[0];
    int64_t n = ll_numel(&c->in[1].shape), v = table->shape.d[0], width = table->shape.d[1];
    if (n * width == 0) return LL_OK;
    return with_float(table->dtype, [&](auto z) -> ll_err {
        typedef decltype(z) T;
        embedding<T><<<blocks_for(n * width, 256), 256, 0, stream_of(c)>>>(
            (const T *)table->data, (const int32_t *)c->in[1].data, (T *)c->out[0].data, n, v,
            width, a->from, a->part != 0, c->trouble);
        CUDA_TRY(cudaGetLastError());
        return LL_OK;
    });
}

/* Sums in a fixed order: positions are sorted by row (a counting sort: how many of each row, where
 * each row's list starts, positions in order), then each row of the table adds its own. */
static __global__ void count_rows(const int32_t *index, int64_t n, int64_t v, int64_t from, bool part,
                           int32_t *count, int64_t *trouble)
{
    GRID_STRIDE(i, n)
    {
        int64_t row = index[i] - from;
        if (row >= 0 && row < v)
            atomicAdd(&count[row], 1);
        else if (!part)
            tell_trouble(trouble, LL_TROUBLE_INDEX, i, index[i]);
    }
}

/* One block: count -> where each list starts. */
static __global__ void start_rows(int32_t *count, int32_t *start, int64_t v)
{
    __shared__ int32_t part[1024];
    int64_t from = v * threadIdx.x / blockDim.x, to = v * (threadIdx.x + 1) / blockDim.x;
    int32_t sum = 0;
    for (int64_t i = from; i < to; i++) sum += count[i];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int o = 1; o < blockDim.x; o <<= 1) {
        int32_t add = threadIdx.x >= o ? part[threadIdx.x - o] : 0;
        __syncthreads();
        part[threadIdx.x] += add;
        __syncthreads();
    }
    int32_t at = part[threadIdx.x] - sum;
    for (int64_t i = from; i < to; i++) {
        start[i] = at;
        at += count[i];
        count[i] = 0;
    }
}

static __global__ void place_rows(const int32_t *index, int64_t n, int64_t v, int64_t from, int32_t *count,
                           const int32_t *start, int32_t *list)
{
    GRID_STRIDE(i, n)
    {
        int64_t row = index[i] - from;
        if (row < 0 || row >= v) continue;
        list[start[row] + atomicAdd(&count[row], 1)] = (int32_t)i;
    }
}

/* The positions of a row in order: few are sorted; many are found anew by walking all positions. */
static __device__ void order_few(int32_t *mine, int32_t n)
{
    if (threadIdx.x == 0)
        for (int32_t i = 1; i < n; i++)
            for (int32_t j = i; j > 0 && mine[j] < mine[j - 1]; j--) {
                int32_t t = mine[j];
                mine[j] = mine[j - 1];
                mine[j - 1] = t;
            }
    __syncthreads();
}

static __device__ void order_many(int32_t *mine, const int32_t *index, int64_t n, int64_t wanted)
{
    __shared__ int32_t found[32];
    int32_t at = 0;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    for (int64_t first = 0; first < n; first += blockDim.x) {
        int64_t i = first + threadIdx.x;
        bool hit = i < n && index[i] == wanted;
        unsigned hits = __ballot_sync(~0u, hit);
        if (lane == 0) found[warp] = __popc(hits);
        __syncthreads();
        int32_t before = at;
        for (int k = 0; k < warps; k++) {
            before += k < warp ? found[k] : 0;
            at += found[k];
        }
        if (hit) mine[before + __popc(hits & ((1u << lane) - 1))] = (int32_t)i;
        __syncthreads();
    }
}

template <class T, class S>
static __global__ void sum_rows(const T *dy, const int32_t *index, int64_t n_index, int64_t from,
                         int32_t *list, const int32_t *start, const int32_t *count, S *out,
                         int64_t v, int64_t width)
{
    for (int64_t row = blockIdx.x; row < v; row += gridDim.x) {
        int32_t *mine = list + start[row], n = count[row];
        if (n > 64)
            order_many(mine, index, n_index, row + from);
        else if (n > 1)
            order_few(mine, n);
        for (int64_t j = threadIdx.x; j < width; j += blockDim.x) {
            S sum = 0;
            for (int32_t k = 0; k < n; k++) sum += (S)to_float(dy[(int64_t)mine[k] * width + j]);
            out[row * width + j] = sum;
        }
        __syncthreads();
    }
}

size_t embedding_grad_cuda_scratch(const ll_kcall *c)
{
    return (2 * (size_t)c->out[0].shape.d[0] + (size_t)ll_numel(&c->in[1].shape)) * sizeof(int32_t);
}

ll_err embedding_grad_cuda(const ll_kcall *c)
{
    const ll_embedding_attr *a = (const ll_embedding_attr *)c->attr;
    const ll_tensor *dy = &c->in[0], *out = &c->out[0];
    const int32_t *index = (const int32_t *)c->in[1].data;
    int64_t n = ll_numel(&c->in[1].shape), v = out->shape.d[0], width = out->shape.d[1];
    int32_t *count = (int32_t *)c->scratch, *start = count + v, *list = start + v;
    if (v * width == 0) return LL_OK;
    CUDA_TRY(cudaMemsetAsync(count, 0, (size_t)v * sizeof *count, stream_of(c)));
    unsigned blocks = blocks_for(n, 256);
    count_rows<<<blocks, 256, 0, stream_of(c)>>>(index, n, v, a->from, a->part != 0, count,
                                                 c->trouble);
    start_rows<<<1, 1024, 0, stream_of(c)>>>(count, start, v);
    place_rows<<<blocks, 256, 0, stream_of(c)>>>(index, n, v, a->from, count, start, list);
    return with_float(dy->dtype, [&](auto z) -> ll_err {
        typedef decltype(z) T;
        typedef typename sum_of<T>::type S; /* f32 of bf16: the op's wide_out */
        sum_rows<T, S><<<blocks_for(v, 1, 132 * 32), 128, 0, stream_of(c)>>>(
            (const T *)dy->data, index, n, a->from, list, start, count, (S *)out->data, v, width);
        CUDA_TRY(cudaGetLastError());
        return LL_OK;
    });
}

/* ---- dropout: the very numbers of base/rng.h ---- */

typedef struct place { /* of a part in the whole */
    int n;
    int64_t d[LL_MAX_DIMS], at[LL_MAX_DIMS], stride[LL_MAX_DIMS], first;
} place;

__device__ __forceinline__ uint32_t philox_word(uint64_t seed, uint64_t stream, uint64_t i)
{
    uint64_t block = i / 4;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
    }
    switch (i & 3) {
    case 0: return c0;
    case 1: return c1;
    case 2: return c2;
    default: return c3;
    }
}

template <class T>
static __global__ void dropout(const T *x, T *y, int64_t n, place p, uint64_t seed, uint64_t stream,
                        const uint64_t *clock, uint32_t limit, float by)
{
    stream ^= clock[0];
    GRID_STRIDE(i, n)
    {
        int64_t rest = i, index = p.first;
        for (int d = p.n - 1; d >= 0; d--) {
            index += (rest % p.d[d] + p.at[d]) * p.stride[d];
            rest /= p.d[d];
        }
        bool drop = philox_word(seed, stream, (uint64_t)index) >> 9 < limit;
        y[i] = from_float<T>::of(drop ? 0 : to_float(x[i]) * by);
    }
}

ll_err dropout_cuda(const ll_kcall *c)
{
    const ll_dropout_attr *a = (const ll_dropout_attr *)c->attr;
    const ll_tensor *x = &c->in[0];
    int64_t n = ll_numel(&x->shape), stride = 1;
    if (n == 0) return LL_OK;
    place p = {};
    p.n = x->shape.n;
    for (int d = p.n - 1; d >= 0; d--) {
        p.d[d] = x->shape.d[d], p.at[d] = a->at[d], p.stride[d] = stride;
        stride *= a->whole.d[d];
    }
    p.first = c->micro * stride;
    double limit = ceil(a->p * 0x1p23 - 0.5);
    return with_float(x->dtype, [&](auto z) -> ll_err {
        typedef decltype(z) T;
        dropout<T><<<blocks_for(n, 256), 256, 0, stream_of(c)>>>(
            (const T *)x->data, (T *)c->out[0].data, n, p, c->seed, (uint64_t)a->stream, c->clock,
            (uint32_t)(limit > 0 ? limit : 0), (float)(1 / (1 - a->p)));
        CUDA_TRY(cudaGetLastError());
        return LL_OK;
    });
}
