/* embedding.cu: rows of a table by index, and the transpose of it: sums of rows by index.
 *
 * The sums are made in a fixed order. Positions are sorted by the row they name (a counting sort:
 * how many of each row, where each row's list starts, positions placed, each list put in order).
 * The sorted positions are cut into chunks of CHUNK, whatever they name, so that a token that is
 * half of the text takes as long as one that is seen once: a block adds up a chunk's runs of equal
 * rows. A run within the chunk is a finished row. Of others, parts are kept: at most one run comes
 * from the chunk before and one goes on in the next. A last kernel adds parts in order and writes
 * the rows that no position names. */
#include "kern/cuda/vec.cuh"

enum { CHUNK = 64, MAP = 1 << 17, AHEAD = 8 }; /* AHEAD: reads under way at once */

/* ---- rows of a table: a warp copies a row, words of any size ---- */

template <class W>
static __global__ void copy_rows(const W *table, const int32_t *index, W *y, int64_t n, int64_t v,
                                 int width, int64_t from, int64_t whole, int64_t *trouble)
{
    int lane = threadIdx.x & 31;
    int64_t i = blockIdx.x * (int64_t)(blockDim.x / 32) + threadIdx.x / 32;
    if (i >= n) return;
    int64_t row = index[i] - from;
    bool here = row >= 0 && row < v;
    if (lane == 0 && (index[i] < 0 || index[i] >= whole))
        tell_trouble(trouble, LL_TROUBLE_INDEX, i, index[i]);
    for (int j = lane; j < width; j += 32) y[i * width + j] = here ? table[row * width + j] : W{};
}

/* How many rows there are, of which the table may hold a part. */
static int64_t whole_of(const ll_embedding_attr *a, int64_t v)
{
    return a->part ? a->part : a->from + v;
}

template <class W> static ll_err copy_by(const ll_kcall *c, int64_t bytes)
{
    const ll_embedding_attr *a = (const ll_embedding_attr *)c->attr;
    int64_t n = ll_numel(&c->in[1].shape);
    return launch(c, copy_rows<W>, ll_ceil_div(n, 8), 256, c->in[0].data, c->in[1].data,
                  c->out[0].data, n, c->in[0].shape.d[0], bytes / (int64_t)sizeof(W), a->from,
                  whole_of(a, c->in[0].shape.d[0]), c->trouble);
}

static ll_err embedding(const ll_kcall *c)
{
    const ll_tensor *table = &c->in[0];
    int64_t bytes = table->shape.d[1] * (int64_t)ll_dtype_bytes(table->dtype);
    if (ll_numel(&c->in[1].shape) * bytes == 0) return LL_OK;
    if (bytes % 16 == 0) return copy_by<uint4>(c, bytes);
    return bytes % 4 ? copy_by<uint16_t>(c, bytes) : copy_by<uint32_t>(c, bytes);
}

/* ---- positions in the order of their rows ---- */

/* The lanes that stay in a loop over positions; and of these, those that name the same row: the
 * first of them takes places for all. */
struct row_peers {
    unsigned same;
    int rank, first;
    __device__ row_peers(int64_t row)
    {
        same = __match_any_sync(__activemask(), (int)row);
        int lane = threadIdx.x & 31;
        rank = __popc(same & ((1u << lane) - 1));
        first = __ffs((int)same) - 1;
    }
};

static __global__ void count_rows(const int32_t *index, int64_t n, int64_t v, int64_t from,
                                  int64_t whole, int32_t *count, int64_t *trouble)
{
    GRID_STRIDE(i, n)
    {
        int64_t row = index[i] - from;
        if (row >= 0 && row < v) {
            row_peers f(row);
            if (f.rank == 0) atomicAdd(&count[row], __popc(f.same));
        } else if (index[i] < 0 || index[i] >= whole)
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
        row_peers f(row);
        int32_t end = 0;
        if (f.rank == 0) end = atomicSub(&left[row], __popc(f.same));
        end = __shfl_sync(f.same, end, f.first);
        list[start[row] + end - 1 - f.rank] = (int32_t)i;
    }
}

/* A thread puts at most 4 positions in order: most rows have no more. Neighbours change places,
 * even and odd pairs by turns. */
static __device__ void order_thread(const int32_t *mine, int n, int32_t *out)
{
    int32_t v[4];
#pragma unroll
    for (int k = 0; k < 4; k++) v[k] = k < n ? mine[k] : INT32_MAX;
#pragma unroll
    for (int round = 0; round < 4; round++)
#pragma unroll
        for (int k = round % 2; k + 1 < 4; k += 2) {
            int32_t a = min(v[k], v[k + 1]), b = max(v[k], v[k + 1]);
            v[k] = a, v[k + 1] = b;
        }
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (k < n) out[k] = v[k];
}

/* A warp puts at most 32 positions in order: each goes where so many are smaller. */
static __device__ void order_warp(const int32_t *mine, int n, int32_t *out)
{
    int lane = threadIdx.x & 31, rank = 0;
    int32_t v = lane < n ? mine[lane] : INT32_MAX;
    for (int k = 0; k < n; k++) rank += __shfl_sync(~0u, v, k) < v;
    if (lane < n) out[rank] = v;
}

/* A block puts more in order through a map of all positions, a bit for each, MAP of them at a time:
 * bits are set as the list says, and read off. */
static __device__ void order_block(const int32_t *mine, int n, int64_t positions, uint32_t *map,
                                   int32_t *out)
{
    __shared__ int32_t found[32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, at = 0;
    for (int64_t from = 0; from < positions; from += MAP) {
        int words = (int)((positions - from < MAP ? positions - from : MAP) + 31) / 32;
        __syncthreads();
        for (int w = threadIdx.x; w < words; w += blockDim.x) map[w] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += blockDim.x) {
            int64_t bit = mine[i] - from;
            if (bit >= 0 && bit < MAP) atomicOr(&map[bit / 32], 1u << bit % 32);
        }
        __syncthreads();
        /* a thread reads words that lie side by side, after those of the threads before it */
        int each = (words + blockDim.x - 1) / blockDim.x, w0 = threadIdx.x * each, sum = 0;
        for (int w = w0; w < w0 + each && w < words; w++) sum += __popc(map[w]);
        int before = sum;
        for (int o = 1; o < 32; o <<= 1) {
            int add = __shfl_up_sync(~0u, before, o);
            if (lane >= o) before += add;
        }
        if (lane == 31) found[warp] = before;
        __syncthreads();
        before += at - sum;
        for (int k = 0; k < blockDim.x / 32; k++) {
            before += k < warp ? found[k] : 0;
            at += found[k];
        }
        for (int w = w0; w < w0 + each && w < words; w++)
            for (uint32_t bits = map[w]; bits; bits &= bits - 1)
                out[before++] = (int32_t)(from + w * 32 + __ffs((int)bits) - 1);
    }
}

/* list to out. A thread looks at rows far apart, so that frequent ones, which often stand together,
 * are shared out. */
static __global__ void order_rows(int64_t n, int64_t v, const int32_t *start, const int32_t *count,
                                  const int32_t *list, int32_t *out)
{
    __shared__ uint32_t map[MAP / 32];
    __shared__ int32_t many[256], n_many;
    for (int64_t first = 0; first < v; first += (int64_t)gridDim.x * blockDim.x) {
        int64_t row = first + blockIdx.x + (int64_t)gridDim.x * threadIdx.x;
        int32_t mine = row < v ? count[row] : 0, at = row < v ? start[row] : 0;
        __syncthreads();
        if (threadIdx.x == 0) n_many = 0;
        __syncthreads();
        if (mine <= 4) order_thread(list + at, mine, out + at);
        if (mine > 32) many[atomicAdd(&n_many, 1)] = (int32_t)row;
        for (unsigned few = __ballot_sync(~0u, mine > 4 && mine <= 32); few; few &= few - 1) {
            int k = __ffs((int)few) - 1, its = __shfl_sync(~0u, at, k);
            order_warp(list + its, __shfl_sync(~0u, mine, k), out + its);
        }
        __syncthreads();
        for (int k = 0; k < n_many; k++) {
            int32_t its = start[many[k]];
            order_block(list + its, count[many[k]], n, map, out + its);
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

/* Of a sorted position in a chunk: where in dy, which row, whether its run ends here, and what
 * becomes of the run: the finished row, or the part of one that came from before or goes on. */
enum { GOES_ON, DONE, FROM_BEFORE, TO_NEXT };
typedef struct place {
    int32_t at, row, what;
} place;

template <class T, class S>
static __device__ place place_of(const sums<T, S> &a, int64_t c0, int k, int here)
{
    place p;
    p.at = a.list[c0 + k];
    p.row = (int32_t)(a.index[p.at] - a.from);
    int64_t from = a.start[p.row], to = from + a.count[p.row];
    p.what = GOES_ON;
    if (k + 1 == here || c0 + k + 1 == to)
        p.what = from < c0 ? FROM_BEFORE : to <= c0 + CHUNK ? DONE : TO_NEXT;
    return p;
}

template <int N, class T, class S>
__device__ __forceinline__ void end_run(const sums<T, S> &a, place p, int64_t j, S (&sum)[N])
{
    if (p.what == DONE) {
        S add[N] = {};
        if (a.plus) load_sums<N>(a.plus + p.row * a.width + j, add);
#pragma unroll
        for (int i = 0; i < N; i++) sum[i] += add[i];
        store_sums<N>(a.out + p.row * a.width + j, sum);
    } else
        store_sums<N>(a.parts + (blockIdx.x * 2 + (p.what == TO_NEXT)) * a.width + j, sum);
#pragma unroll
    for (int i = 0; i < N; i++) sum[i] = 0;
}

template <class T, int N, class S> static __global__ void sum_chunks(sums<T, S> a)
{
    __shared__ place places[CHUNK];
    int64_t all = a.start[a.v - 1] + a.count[a.v - 1], c0 = blockIdx.x * (int64_t)CHUNK;
    if (c0 >= all) return;
    int here = (int)(all - c0 < CHUNK ? all - c0 : CHUNK);
    for (int k = threadIdx.x; k < here; k += blockDim.x) places[k] = place_of(a, c0, k, here);
    __syncthreads();
    for (int64_t j = threadIdx.x * N; j < a.width; j += blockDim.x * N) {
        S sum[N] = {};
        for (int first = 0; first < here; first += AHEAD) {
            S v[AHEAD][N];
#pragma unroll
            for (int k = 0; k < AHEAD; k++)
                if (first + k < here)
                    load_row<T, N, S>(a.dy + places[first + k].at * a.width + j, v[k]);
#pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                if (first + k >= here) break;
#pragma unroll
                for (int i = 0; i < N; i++) sum[i] += v[k][i];
                place p = places[first + k];
                if (p.what != GOES_ON) end_run<N>(a, p, j, sum);
            }
        }
    }
}

/* A row that parts add up to (first: the chunk where it starts), or that no position names. */
template <class T, int N, class S>
static __device__ void finish_row(const sums<T, S> &a, int64_t row, int first, int n_part,
                                  int64_t j)
{
    S sum[N] = {}, v[N];
    if (n_part) load_sums<N>(a.parts + (first * 2 + 1) * a.width + j, sum);
    for (int c = 1; c < n_part; c += AHEAD) {
        S some[AHEAD][N] = {};
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (c + k < n_part) load_sums<N>(a.parts + (first + c + k) * 2 * a.width + j, some[k]);
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
#pragma unroll
            for (int i = 0; i < N; i++) sum[i] += some[k][i];
    }
    if (a.plus) {
        load_sums<N>(a.plus + row * a.width + j, v);
#pragma unroll
        for (int i = 0; i < N; i++) sum[i] += v[i];
    }
    store_sums<N>(a.out + row * a.width + j, sum);
}

/* A warp looks at 32 rows, for 32 N columns: which of them there is something to do with. */
template <class T, int N, class S> static __global__ void finish_rows(sums<T, S> a)
{
    int lane = threadIdx.x % 32;
    int64_t base = (blockIdx.x * (int64_t)(blockDim.x / 32) + threadIdx.x / 32) * 32;
    int64_t row = base + lane, j = (blockIdx.y * 32 + lane) * (int64_t)N;
    int from = row < a.v ? a.start[row] : 0, n = row < a.v ? a.count[row] : 0;
    int first = from / CHUNK, n_part = n ? (from + n - 1) / CHUNK - first + 1 : 0;
    bool work = row < a.v && n_part != 1 && (n || a.plus != a.out);
    for (unsigned todo = __ballot_sync(~0u, work); todo; todo &= todo - 1) {
        int k = __ffs((int)todo) - 1;
        int its_first = __shfl_sync(~0u, first, k), its_parts = __shfl_sync(~0u, n_part, k);
        if (j < a.width) finish_row<T, N>(a, base + k, its_first, its_parts, j);
    }
}

/* ---- the op ---- */

/* count, start, left [v]; list, as placed and in order [n]; then parts, aligned to 16 bytes */
static size_t lists_bytes(int64_t n, int64_t v)
{
    return (size_t)ll_ceil_div((3 * v + 2 * n) * (int64_t)sizeof(int32_t), 16) * 16;
}

static size_t grad_scratch(const ll_kcall *c)
{
    const ll_tensor *out = &c->out[0];
    int64_t n = ll_numel(&c->in[1].shape);
    return lists_bytes(n, out->shape.d[0]) +
           (size_t)(ll_ceil_div(n, CHUNK) * 2 * out->shape.d[1]) * ll_dtype_bytes(out->dtype);
}

static ll_err sort_positions(const ll_kcall *c, int64_t n, int64_t v)
{
    const ll_embedding_attr *a = (const ll_embedding_attr *)c->attr;
    const int32_t *index = (const int32_t *)c->in[1].data;
    int32_t *count = (int32_t *)c->scratch, *start = count + v, *left = start + v, *list = left + v;
    CUDA_TRY(cudaMemsetAsync(count, 0, (size_t)v * sizeof *count, stream_of(c)));
    TRY(launch_each(c, n, count_rows, index, n, v, a->from, whole_of(a, v), count, c->trouble));
    TRY(launch(c, start_rows, ll_ceil_div(v, 1024), 1024, count, start, left, v));
    TRY(launch_each(c, n, place_rows, index, n, v, a->from, left, start, list));
    return launch(c, order_rows, blocks_for(c, v, 32, 2), 256, n, v, start, count, list, list + n);
}

template <class T, int N, class S> static ll_err add_rows(const ll_kcall *c)
{
    const ll_tensor *out = &c->out[0];
    sums<T, S> a;
    a.n = ll_numel(&c->in[1].shape), a.v = out->shape.d[0], a.width = out->shape.d[1];
    a.from = ((const ll_embedding_attr *)c->attr)->from;
    a.dy = (const T *)c->in[0].data, a.index = (const int32_t *)c->in[1].data;
    a.plus = c->n_in > 2 ? (const S *)c->in[2].data : NULL;
    a.count = (const int32_t *)c->scratch, a.start = a.count + a.v,
    a.list = a.start + 2 * a.v + a.n;
    a.out = (S *)out->data;
    a.parts = (S *)((char *)c->scratch + lists_bytes(a.n, a.v));
    int64_t threads = ll_min64(256, ll_round_up(ll_ceil_div(a.width, N), 32));
    if (a.n) TRY(launch(c, sum_chunks<T, N, S>, ll_ceil_div(a.n, CHUNK), threads, a));
    dim3 grid(ll_ceil_div(a.v, 4 * 32), ll_ceil_div(a.width, 32 * N));
    return launch(c, finish_rows<T, N, S>, grid, 128, a);
}

static ll_err embedding_grad(const ll_kcall *c)
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

extern "C" const ll_solver embedding_cuda[] = {{.run = embedding}, {}},
                           embedding_grad_cuda[] = {
                               {.scratch = grad_scratch, .run = embedding_grad}, {}};
