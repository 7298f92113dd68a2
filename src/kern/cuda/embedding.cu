/* embedding.cu: rows of a table by index, and the transpose of it: sums of rows by index.
 *
 * The sums are made in a fixed order. Positions are sorted by the row they name (a counting sort:
 * how many of each row, where each row's list starts, positions placed, each list put in order).
 * The sorted positions are cut into chunks of CHUNK, whatever they name, so that a token that is
 * half of the text takes as long as one that is seen once: a block adds up a chunk's runs of equal
 * rows. A run within the chunk is a finished row. Of others, parts are kept: at most one run comes
 * from the chunk before and one goes on in the next. A last kernel adds parts in order and writes
 * the rows that no position names. */
#include "kern/cuda/trouble.h"
#include "kern/cuda/vec.cuh"

extern "C" {
ll_kernel embedding_cuda, embedding_grad_cuda;
ll_scratch embedding_grad_cuda_scratch;
}

enum { CHUNK = 64, FEW = 2048 }; /* lists of FEW are sorted in shared memory */

/* ---- rows of a table: a warp copies a row, words of any size ---- */

template <class W>
static __global__ void copy_rows(const W *table, const int32_t *index, W *y, int64_t n, int64_t v,
                                 int width, int64_t from, bool part, int64_t *trouble)
{
    int lane = threadIdx.x & 31;
    int64_t i = blockIdx.x * (int64_t)(blockDim.x / 32) + threadIdx.x / 32;
    if (i >= n) return;
    int64_t row = index[i] - from;
    bool here = row >= 0 && row < v;
    if (!here && !part && lane == 0) tell_trouble(trouble, LL_TROUBLE_INDEX, i, index[i]);
    for (int j = lane; j < width; j += 32) y[i * width + j] = here ? table[row * width + j] : W{};
}

template <class W> static void launch_copy(const ll_kcall *c, int64_t n, int64_t words)
{
    const ll_embedding_attr *a = (const ll_embedding_attr *)c->attr;
    copy_rows<W><<<(unsigned)ceil_div(n, 8), 256, 0, stream_of(c)>>>(
        (const W *)c->in[0].data, (const int32_t *)c->in[1].data, (W *)c->out[0].data, n,
        c->in[0].shape.d[0], (int)words, a->from, a->part != 0, c->trouble);
}

ll_err embedding_cuda(const ll_kcall *c)
{
    const ll_tensor *table = &c->in[0];
    int64_t n = ll_numel(&c->in[1].shape), width = table->shape.d[1];
    int64_t bytes = width * (int64_t)ll_dtype_bytes(table->dtype);
    if (n * width == 0) return LL_OK;
    if (bytes % 16 == 0)
        launch_copy<uint4>(c, n, bytes / 16);
    else if (bytes % 4 == 0)
        launch_copy<uint32_t>(c, n, bytes / 4);
    else
        launch_copy<uint16_t>(c, n, bytes / 2);
    CUDA_TRY(cudaGetLastError());
    return LL_OK;
}

/* ---- positions in the order of their rows ---- */

static __global__ void count_rows(const int32_t *index, int64_t n, int64_t v, int64_t from,
                                  bool part, int32_t *count, int64_t *trouble)
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

/* Where each list starts. A block of 1024 has as many rows; it adds up all before by itself. */
static __global__ void start_rows(const int32_t *count, int32_t *start, int32_t *left, int64_t v)
{
    __shared__ int32_t part[32];
    int64_t first = blockIdx.x * (int64_t)blockDim.x, row = first + threadIdx.x;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int32_t before = 0;
    for (int64_t i = threadIdx.x; i < first; i += blockDim.x) before += count[i];
    before = block_sum<int32_t>(before);
    int32_t mine = row < v ? count[row] : 0, sum = mine;
    for (int o = 1; o < 32; o <<= 1) {
        int32_t add = __shfl_up_sync(~0u, sum, o);
        if (lane >= o) sum += add;
    }
    if (lane == 31) part[warp] = sum;
    __syncthreads();
    for (int k = 0; k < warp; k++) before += part[k];
    if (row >= v) return;
    start[row] = before + sum - mine;
    left[row] = mine;
}

static __global__ void place_rows(const int32_t *index, int64_t n, int64_t v, int64_t from,
                                  int32_t *left, const int32_t *start, int32_t *list)
{
    GRID_STRIDE(i, n)
    {
        int64_t row = index[i] - from;
        if (row < 0 || row >= v) continue;
        list[start[row] + atomicSub(&left[row], 1) - 1] = (int32_t)i;
    }
}

/* A warp puts at most 32 positions in order: each goes where so many are smaller. */
static __device__ void order_warp(int32_t *mine, int n)
{
    int lane = threadIdx.x & 31, rank = 0;
    int32_t v = lane < n ? mine[lane] : INT32_MAX;
    for (int k = 0; k < n; k++) rank += __shfl_sync(~0u, v, k) < v;
    __syncwarp();
    if (lane < n) mine[rank] = v;
}

/* A block sorts at most FEW, a bitonic sort in shared memory. */
static __device__ void order_block(int32_t *mine, int n, int32_t *sorted)
{
    int size = 64;
    while (size < n) size *= 2;
    for (int i = threadIdx.x; i < size; i += blockDim.x) sorted[i] = i < n ? mine[i] : INT32_MAX;
    for (int run = 2; run <= size; run *= 2)
        for (int step = run / 2; step; step /= 2) {
            __syncthreads();
            for (int p = threadIdx.x; p < size / 2; p += blockDim.x) {
                int i = 2 * p - (p & (step - 1)), k = i + step;
                int32_t a = sorted[i], b = sorted[k];
                if ((a > b) == !(i & run)) sorted[i] = b, sorted[k] = a;
            }
        }
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) mine[i] = sorted[i];
    __syncthreads();
}

/* More are found anew, by walking all positions. */
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

/* Warp w takes rows w, w + warps, ...: 32 at a time, so that frequent ones, which often stand
 * together, are shared out. */
static __global__ void order_rows(const int32_t *index, int64_t n, int64_t v, int64_t from,
                                  const int32_t *start, const int32_t *count, int32_t *list)
{
    __shared__ int32_t sorted[FEW];
    __shared__ int32_t many[256], n_many;
    for (int64_t first = 0; first < v; first += (int64_t)gridDim.x * blockDim.x) {
        int64_t row = first + blockIdx.x + (int64_t)gridDim.x * threadIdx.x;
        int32_t mine = row < v ? count[row] : 0;
        __syncthreads();
        if (threadIdx.x == 0) n_many = 0;
        __syncthreads();
        if (mine > 32) many[atomicAdd(&n_many, 1)] = (int32_t)row;
        for (unsigned few = __ballot_sync(~0u, mine > 1 && mine <= 32); few; few &= few - 1) {
            int k = __ffs((int)few) - 1;
            int64_t its = __shfl_sync(~0u, row, k);
            order_warp(list + start[its], __shfl_sync(~0u, mine, k));
        }
        __syncthreads();
        for (int k = 0; k < n_many; k++) {
            int64_t its = many[k];
            if (count[its] <= FEW)
                order_block(list + start[its], count[its], sorted);
            else
                order_many(list + start[its], index, n, its + from);
        }
    }
}

/* ---- sums ---- */

template <class T, int N, class S> __device__ __forceinline__ void load_row(const T *p, S *v)
{
    if constexpr (N == 1)
        v[0] = (S)to_float(p[0]);
    else
        wide<T>::unpack(*(const uint4 *)p, v);
}
template <int N, class S> __device__ __forceinline__ void load_sums(const S *p, S *v)
{
    if constexpr (N == 1)
        v[0] = p[0];
    else
        load_floats<N>(p, v);
}
template <int N, class S> __device__ __forceinline__ void store_sums(S *p, const S *v)
{
    if constexpr (N == 1)
        p[0] = v[0];
    else
        store_floats<N>(p, v);
}

template <class T, class S> struct sums {
    const T *dy;
    const S *plus; /* NULL: nothing is added to */
    const int32_t *index, *start, *count, *list;
    S *out, *parts; /* parts [chunks][2][width]: of a run from before; of one that goes on */
    int64_t n, v, width, from;
};

/* The end of a run of `row` in the chunk from sorted position c0 on. */
template <int N, class T, class S>
__device__ __forceinline__ void end_run(const sums<T, S> &a, int64_t row, int64_t c0, int64_t j,
                                        S (&sum)[N])
{
    int64_t from = a.start[row], to = from + a.count[row];
    if (from >= c0 && to <= c0 + CHUNK) {
        S add[N] = {};
        if (a.plus) load_sums<N>(a.plus + row * a.width + j, add);
#pragma unroll
        for (int i = 0; i < N; i++) sum[i] += add[i];
        store_sums<N>(a.out + row * a.width + j, sum);
    } else
        store_sums<N>(a.parts + (c0 / CHUNK * 2 + (from >= c0)) * a.width + j, sum);
#pragma unroll
    for (int i = 0; i < N; i++) sum[i] = 0;
}

template <class T, int N, class S> static __global__ void sum_chunks(sums<T, S> a)
{
    enum { AHEAD = 8 };
    __shared__ int32_t at[CHUNK], row[CHUNK];
    int64_t all = a.start[a.v - 1] + a.count[a.v - 1], c0 = blockIdx.x * (int64_t)CHUNK;
    if (c0 >= all) return;
    int here = (int)(all - c0 < CHUNK ? all - c0 : CHUNK);
    for (int k = threadIdx.x; k < here; k += blockDim.x) {
        at[k] = a.list[c0 + k];
        row[k] = (int32_t)(a.index[at[k]] - a.from);
    }
    __syncthreads();
    for (int64_t j = threadIdx.x * N; j < a.width; j += blockDim.x * N) {
        S sum[N] = {};
        for (int first = 0; first < here; first += AHEAD) {
            S v[AHEAD][N];
#pragma unroll
            for (int k = 0; k < AHEAD; k++)
                if (first + k < here)
                    load_row<T, N, S>(a.dy + (int64_t)at[first + k] * a.width + j, v[k]);
#pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                if (first + k >= here) break;
#pragma unroll
                for (int i = 0; i < N; i++) sum[i] += v[k][i];
                if (first + k + 1 == here || row[first + k + 1] != row[first + k])
                    end_run<N>(a, row[first + k], c0, j, sum);
            }
        }
    }
}

/* A warp a row: rows no position names, and those that parts add up to. */
template <class T, int N, class S> static __global__ void finish_rows(sums<T, S> a)
{
    int64_t row = blockIdx.x * (int64_t)(blockDim.x / 32) + threadIdx.x / 32;
    if (row >= a.v) return;
    int64_t from = a.start[row], n = a.count[row], first = from / CHUNK;
    int64_t last = n ? (from + n - 1) / CHUNK : first;
    if ((n && first == last) || (n == 0 && a.plus == a.out)) return;
    for (int64_t j = (threadIdx.x & 31) * N; j < a.width; j += 32 * N) {
        S sum[N] = {}, v[N];
        if (n) load_sums<N>(a.parts + (first * 2 + 1) * a.width + j, sum);
        for (int64_t c = first + 1; c <= last; c++) {
            load_sums<N>(a.parts + c * 2 * a.width + j, v);
#pragma unroll
            for (int i = 0; i < N; i++) sum[i] += v[i];
        }
        if (a.plus) {
            load_sums<N>(a.plus + row * a.width + j, v);
#pragma unroll
            for (int i = 0; i < N; i++) sum[i] += v[i];
        }
        store_sums<N>(a.out + row * a.width + j, sum);
    }
}

/* ---- the op ---- */

/* count, start, left [v]; list [n]; then parts, at a multiple of 16 bytes */
static size_t lists_bytes(int64_t n, int64_t v)
{
    return (size_t)ceil_div((3 * v + n) * (int64_t)sizeof(int32_t), 16) * 16;
}

size_t embedding_grad_cuda_scratch(const ll_kcall *c)
{
    const ll_tensor *out = &c->out[0];
    int64_t n = ll_numel(&c->in[1].shape);
    return lists_bytes(n, out->shape.d[0]) +
           (size_t)(ceil_div(n, CHUNK) * 2 * out->shape.d[1]) * ll_dtype_bytes(out->dtype);
}

static ll_err sort_positions(const ll_kcall *c, int64_t n, int64_t v)
{
    const ll_embedding_attr *a = (const ll_embedding_attr *)c->attr;
    const int32_t *index = (const int32_t *)c->in[1].data;
    int32_t *count = (int32_t *)c->scratch, *start = count + v, *left = start + v, *list = left + v;
    cudaStream_t s = stream_of(c);
    unsigned blocks = blocks_for(n, 256);
    CUDA_TRY(cudaMemsetAsync(count, 0, (size_t)v * sizeof *count, s));
    count_rows<<<blocks, 256, 0, s>>>(index, n, v, a->from, a->part != 0, count, c->trouble);
    start_rows<<<(unsigned)ceil_div(v, 1024), 1024, 0, s>>>(count, start, left, v);
    place_rows<<<blocks, 256, 0, s>>>(index, n, v, a->from, left, start, list);
    order_rows<<<blocks_for(v, 32, 132 * 2), 256, 0, s>>>(index, n, v, a->from, start, count, list);
    CUDA_TRY(cudaGetLastError());
    return LL_OK;
}

template <class T, int N, class S> static ll_err add_rows(const ll_kcall *c)
{
    const ll_tensor *out = &c->out[0];
    sums<T, S> a;
    a.n = ll_numel(&c->in[1].shape), a.v = out->shape.d[0], a.width = out->shape.d[1];
    a.from = ((const ll_embedding_attr *)c->attr)->from;
    a.dy = (const T *)c->in[0].data, a.index = (const int32_t *)c->in[1].data;
    a.plus = c->n_in > 2 ? (const S *)c->in[2].data : NULL;
    a.count = (const int32_t *)c->scratch, a.start = a.count + a.v, a.list = a.start + 2 * a.v;
    a.out = (S *)out->data;
    a.parts = (S *)((char *)c->scratch + lists_bytes(a.n, a.v));
    int64_t threads = ceil_div(ceil_div(a.width, N), 32) * 32;
    if (threads > 256) threads = 256;
    if (a.n)
        sum_chunks<T, N, S>
            <<<(unsigned)ceil_div(a.n, CHUNK), (unsigned)threads, 0, stream_of(c)>>>(a);
    finish_rows<T, N, S><<<(unsigned)ceil_div(a.v, 8), 256, 0, stream_of(c)>>>(a);
    CUDA_TRY(cudaGetLastError());
    return LL_OK;
}

ll_err embedding_grad_cuda(const ll_kcall *c)
{
    const ll_tensor *dy = &c->in[0], *out = &c->out[0];
    int64_t v = out->shape.d[0], width = out->shape.d[1];
    if (v * width == 0) return LL_OK;
    TRY(sort_positions(c, ll_numel(&c->in[1].shape), v));
    if (is_wide(dy->dtype, width))
        return with_wide(dy->dtype, [&](auto z) -> ll_err {
            typedef decltype(z) T;
            return add_rows<T, wide<T>::N, float>(c);
        });
    return with_float(dy->dtype, [&](auto z) -> ll_err {
        typedef decltype(z) T;
        return add_rows<T, 1, typename sum_of<T>::type>(c);
    });
}
