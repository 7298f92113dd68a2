/* cached.cu: attention to a cache of keys and values, and writing one.
 *
 * A block has one query. A warp takes keys with their values, AHEAD of them at once, a lane its
 * channels of each, and keeps what a softmax needs of what it has seen: the largest score, the sum
 * of weights, the values times theirs; in the end warps' are joined. Heads of more than 32 * WIDE
 * channels: a thread scores keys, then all weigh values, a channel each; scores are in scratch. */
#include "kern/cache8.h"
#include "kern/cuda/gpu.cuh"

enum { THREADS = 128, WARPS = 16, AHEAD = 4, WIDE = 8 };

typedef struct sizes {
    int64_t t, n, g, d, kept, room, window;
    double scale;
} sizes;

/* A row of a cache: numbers, or bytes and what they are times. */
template <class T> static __device__ typename sum_of<T>::type scale_of(const T *, int64_t)
{
    return 1;
}
template <> __device__ float scale_of(const uint8_t *row, int64_t d)
{
    return ll_cache8_scale(row, d);
}
template <class T> static __device__ typename sum_of<T>::type number(T x)
{
    return to_float(x);
}
template <> __device__ float number(uint8_t x)
{
    return (float)(int8_t)x;
}

template <class T, class S> static __device__ S dot(const T *key, const S *query, int64_t n)
{
    S sum = 0;
    for (int64_t d = 0; d < n; d++) sum += query[d] * number(key[d]);
    return sum * scale_of(key, n);
}

/* A lane's channels of a row; returns what they are all times. */
template <int N, class T, class S>
static __device__ __forceinline__ S channels(const T *row, int64_t d, S out[N])
{
#pragma unroll
    for (int c = 0; c < N; c++) {
        int64_t i = (threadIdx.x & 31) + 32 * c;
        out[c] = i < d ? number(row[i]) : (S)0;
    }
    return scale_of(row, d);
}

template <int N, class T, class C>
static __global__ void __launch_bounds__(32 * WARPS)
    attend_warps(sizes s, const T *q, const T *k, const T *v, const C *kc, const C *vc,
                 const int32_t *at, T *y)
{
    typedef typename sum_of<T>::type S;
    extern __shared__ double room_of_parts[];
    S *parts = (S *)room_of_parts; /* [WARPS][d], the largest scores, the sums */
    S *tops = parts + WARPS * s.d, *sums = tops + WARPS;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    int64_t row = blockIdx.x, head = row / s.g % s.n, i = row / s.g / s.n % s.t;
    int64_t b = row / s.g / s.n / s.t, seen = at[b] < 0 ? 0 : at[b] < s.room ? at[b] : s.room;
    int64_t end = seen + i + 1, from = s.window > 0 && end > s.window ? end - s.window : 0;
    int64_t first = b * s.room * s.n + head, old = s.n * s.kept, young = s.n * s.d;
    k += (b * s.t * s.n + head) * s.d, v += (b * s.t * s.n + head) * s.d;
    kc += first * s.kept, vc += first * s.kept;
    S query[N], made[N] = {}, top = -INFINITY, sum = 0;
    channels<N>(q + row * s.d, s.d, query);
    for (int64_t j = from + warp * AHEAD; j < end; j += WARPS * AHEAD) {
        S key[AHEAD][N], value[AHEAD][N], score[AHEAD], times[AHEAD], now = top;
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            int64_t p = j + a;
            score[a] = times[a] = 0;
            if (p < seen) {
                score[a] = channels<N>(kc + p * old, s.d, key[a]);
                times[a] = channels<N>(vc + p * old, s.d, value[a]);
            } else if (p < end) {
                score[a] = channels<N>(k + (p - seen) * young, s.d, key[a]);
                times[a] = channels<N>(v + (p - seen) * young, s.d, value[a]);
            }
        }
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            if (j + a >= end) break;
            S dot = 0;
#pragma unroll
            for (int c = 0; c < N; c++) dot += query[c] * key[a][c];
            score[a] *= (S)s.scale * warp_sum(dot);
            now = score[a] > now ? score[a] : now;
        }
        S by = exp(top - now);
        sum *= by;
#pragma unroll
        for (int c = 0; c < N; c++) made[c] *= by;
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            if (j + a >= end) break;
            S weight = exp(score[a] - now);
            sum += weight;
#pragma unroll
            for (int c = 0; c < N; c++) made[c] += weight * times[a] * value[a][c];
        }
        top = now;
    }
#pragma unroll
    for (int c = 0; c < N; c++)
        if (lane + 32 * c < s.d) parts[warp * s.d + lane + 32 * c] = made[c];
    if (lane == 0) tops[warp] = top, sums[warp] = sum;
    __syncthreads();
    for (int w = 0; w < WARPS; w++) top = w ? max(top, tops[w]) : tops[w];
    for (int64_t d = threadIdx.x; d < s.d; d += 32 * WARPS) {
        S all = 0, o = 0;
        for (int w = 0; w < WARPS; w++) {
            S by = exp(tops[w] - top);
            all += by * sums[w];
            o += by * parts[w * s.d + d];
        }
        y[row * s.d + d] = from_float<T>::of(o / all);
    }
}

/* T: new ones; C: the cache, rows of `kept`. */
template <class T, class C>
static __global__ void attend(sizes s, const T *q, const T *k, const T *v, const C *kc, const C *vc,
                              const int32_t *at, typename sum_of<T>::type *scores, T *y)
{
    typedef typename sum_of<T>::type S;
    extern __shared__ double room_of_query[];
    S *query = (S *)room_of_query;
    int64_t row = blockIdx.x, head = row / s.g % s.n, i = row / s.g / s.n % s.t;
    int64_t b = row / s.g / s.n / s.t, seen = at[b] < 0 ? 0 : at[b] < s.room ? at[b] : s.room;
    int64_t end = seen + i + 1, from = s.window > 0 && end > s.window ? end - s.window : 0;
    int64_t first = b * s.room * s.n + head, old = s.n * s.kept, young = s.n * s.d;
    k += (b * s.t * s.n + head) * s.d, v += (b * s.t * s.n + head) * s.d;
    kc += first * s.kept, vc += first * s.kept;
    S *mine = scores + row * (s.room + s.t), top = -INFINITY, sum = 0;
    for (int64_t d = threadIdx.x; d < s.d; d += THREADS) query[d] = to_float(q[row * s.d + d]);
    __syncthreads();
    for (int64_t j = from + threadIdx.x; j < end; j += THREADS) {
        mine[j] = (S)s.scale * (j < seen ? dot(kc + j * old, query, s.d)
                                         : dot(k + (j - seen) * young, query, s.d));
        top = mine[j] > top ? mine[j] : top;
    }
    top = block_max(top);
    for (int64_t j = from + threadIdx.x; j < end; j += THREADS) {
        mine[j] = exp(mine[j] - top);
        sum += mine[j];
    }
    sum = block_sum(sum); /* and all scores are written */
    for (int64_t d = threadIdx.x; d < s.d; d += THREADS) {
        S o = 0;
        for (int64_t j = from; j < seen; j++)
            o += mine[j] * scale_of(vc + j * old, s.d) * number(vc[j * old + d]);
        for (int64_t j = from > seen ? from : seen; j < end; j++)
            o += mine[j] * to_float(v[(j - seen) * young + d]);
        y[row * s.d + d] = from_float<T>::of(o / sum);
    }
}

static sizes sizes_of(const ll_kcall *c)
{
    const ll_cached_attr *a = (const ll_cached_attr *)c->attr;
    const int64_t *x = c->in[0].shape.d;
    return sizes{x[1],      x[2],    x[3], x[4], c->in[3].shape.d[3], c->in[3].shape.d[1],
                 a->window, a->scale};
}

static bool warps_fit(const ll_kcall *c)
{
    return c->in[0].shape.d[4] <= 32 * WIDE;
}

static ll_err run_warps(const ll_kcall *c)
{
    sizes s = sizes_of(c);
    int64_t rows = ll_numel(&c->in[0].shape) / ll_max64(1, s.d);
    if (!rows || !s.d) return LL_OK;
    return with_float(c->in[0].dtype, [&](auto v) -> ll_err {
        typedef decltype(v) T;
        size_t parts = (size_t)(WARPS * (s.d + 2)) * sizeof(typename sum_of<T>::type);
        auto with = [&](auto kernel) -> ll_err {
            return launch_shared(c, kernel, (unsigned)rows, 32 * WARPS, parts, s, c->in[0].data,
                                 c->in[1].data, c->in[2].data, c->in[3].data, c->in[4].data,
                                 c->in[5].data, c->out[0].data);
        };
        bool bytes = c->in[3].dtype == LL_U8;
        if (s.d <= 64)
            return bytes ? with(attend_warps<2, T, uint8_t>) : with(attend_warps<2, T, T>);
        if (s.d <= 128)
            return bytes ? with(attend_warps<4, T, uint8_t>) : with(attend_warps<4, T, T>);
        return bytes ? with(attend_warps<WIDE, T, uint8_t>) : with(attend_warps<WIDE, T, T>);
    });
}

static size_t attend_scratch(const ll_kcall *c)
{
    const int64_t *s = c->in[0].shape.d;
    return (size_t)(s[0] * s[1] * s[2] * s[3] * (c->in[3].shape.d[1] + s[1])) * sizeof(double);
}

static ll_err run_attend(const ll_kcall *c)
{
    const int64_t *x = c->in[0].shape.d, rows = x[0] * x[1] * x[2] * x[3];
    sizes s = sizes_of(c);
    if (!rows) return LL_OK;
    return with_float(c->in[0].dtype, [&](auto v) -> ll_err {
        typedef decltype(v) T;
        size_t query = (size_t)s.d * sizeof(double);
        auto with = [&](auto kernel) -> ll_err {
            return launch_shared(c, kernel, (unsigned)rows, THREADS, query, s, c->in[0].data,
                                 c->in[1].data, c->in[2].data, c->in[3].data, c->in[4].data,
                                 c->in[5].data, c->scratch, c->out[0].data);
        };
        return c->in[3].dtype == LL_U8 ? with(attend<T, uint8_t>) : with(attend<T, T>);
    });
}

template <class T>
static __global__ void write(const T *x, const int32_t *at, T *y, int64_t n, int64_t t,
                             int64_t room, int64_t row)
{
    GRID_STRIDE(i, n)
    {
        int64_t b = i / row / t, place = at[b] + i / row % t;
        if (at[b] >= 0 && place < room) y[(b * room + place) * row + i % row] = x[i];
    }
}

/* n rows of d numbers, to bytes: a thread has a row. */
template <class T>
static __global__ void write_bytes(const T *x, const int32_t *at, uint8_t *y, int64_t n, int64_t t,
                                   int64_t room, int64_t heads, int64_t d)
{
    GRID_STRIDE(i, n)
    {
        int64_t b = i / heads / t, place = at[b] + i / heads % t;
        if (at[b] < 0 || place >= room) continue;
        uint8_t *row = y + ((b * room + place) * heads + i % heads) * (d + LL_CACHE8_TAIL);
        float top = 0;
        for (int64_t j = 0; j < d; j++) top = fmaxf(top, fabsf((float)to_float(x[i * d + j])));
        float scale = ll_cache8_begin(row, d, top);
        for (int64_t j = 0; j < d; j++)
            row[j] = ll_cache8_byte((float)to_float(x[i * d + j]), scale);
    }
}

static ll_err run_write(const ll_kcall *c)
{
    const int64_t *s = c->in[0].shape.d, *x = c->in[1].shape.d, n = ll_numel(&c->in[1].shape);
    if (c->out[0].data != c->in[0].data)
        CUDA_TRY(cudaMemcpyAsync(c->out[0].data, c->in[0].data,
                                 (size_t)ll_numel(&c->in[0].shape) * ll_dtype_bytes(c->in[0].dtype),
                                 cudaMemcpyDeviceToDevice, stream_of(c)));
    return with_float(c->in[1].dtype, [&](auto v) -> ll_err {
        typedef decltype(v) T;
        if (c->in[0].dtype == LL_U8)
            return launch_each(c, x[0] * x[1] * x[2], write_bytes<T>, c->in[1].data, c->in[2].data,
                               c->out[0].data, x[0] * x[1] * x[2], x[1], s[1], x[2], x[3]);
        return launch_each(c, n, write<T>, c->in[1].data, c->in[2].data, c->out[0].data, n, x[1],
                           s[1], s[2] * s[3]);
    });
}

extern "C" const ll_solver cached_attend_cuda[] = {
    {"warps", warps_fit, NULL, run_warps}, {"plain", NULL, attend_scratch, run_attend}, {}};
extern "C" const ll_solver cache_write_cuda[] = {{"plain", NULL, NULL, run_write}, {}};
