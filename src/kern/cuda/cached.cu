/* cached.cu: attention to a cache of keys and values, and writing one.
 *
 * A block has one query. A warp takes keys with their values, some of them at once, a lane its N
 * channels of each, and keeps what a softmax needs of what it has seen: the largest score, the sum
 * of weights, the values times theirs; in the end warps' are joined. */
#include "kern/cache4.h"
#include "kern/cuda/gpu.cuh"

#include <type_traits>

enum { WARPS = 16, WIDEST = 32 };

typedef struct sizes {
    int64_t t, n, g, d, kept, rows, room, window, bits, ring; /* rows: of keys */
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

/* A lane's channels of a row, of(i) each. */
template <int N, class S, class F>
static __device__ __forceinline__ void channels(int64_t d, S (&out)[N], F of)
{
#pragma unroll
    for (int c = 0; c < N; c++) {
        int64_t i = (threadIdx.x & 31) + 32 * c;
        out[c] = i < d ? (S)of(i) : (S)0;
    }
}

/* T: new ones; C: the cache, rows of `kept`. FOUR: of 4 bits. */
template <int N, bool FOUR, class T, class C>
static __global__ void __launch_bounds__(32 * WARPS)
    attend(sizes s, const T *q, const T *k, const T *v, const C *kc, const C *vc, const int32_t *at,
           T *y)
{
    typedef typename sum_of<T>::type S;
    enum { AHEAD = N > 8 ? 1 : 4 };
    extern __shared__ double room_of_parts[];
    S *parts = (S *)room_of_parts; /* [WARPS][d], the largest scores, the sums */
    S *tops = parts + WARPS * s.d, *sums = tops + WARPS;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    int64_t row = blockIdx.x, head = row / s.g % s.n, i = row / s.g / s.n % s.t;
    int64_t b = row / s.g / s.n / s.t, seen = at[b] < 0 ? 0 : at[b] < s.room ? at[b] : s.room;
    int64_t end = seen + i + 1, from = s.window > 0 && end > s.window ? end - s.window : 0;
    int64_t old = s.n * s.kept, young = s.n * s.d;
    k += (b * s.t * s.n + head) * s.d, v += (b * s.t * s.n + head) * s.d;
    kc += (b * s.rows * s.n + head) * s.kept, vc += (b * s.room * s.n + head) * s.kept;
    const ll_cache4_ring ring = {(uint8_t *)kc, old, s.rows - 2 * s.ring, s.ring, s.d};
    /* Returns what they are all times. */
    auto load = [&](auto *x, S(&out)[N]) -> S {
        channels(s.d, out, [&](int64_t i) { return number(x[i]); });
        return scale_of(x, s.d);
    };
    S query[N], made[N] = {}, top = -INFINITY, sum = 0;
    load(q + row * s.d, query);
    for (int64_t j = from + warp * AHEAD; j < end; j += WARPS * AHEAD) {
        S key[AHEAD][N], value[AHEAD][N], score[AHEAD], times[AHEAD], now = top;
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            int64_t p = j + a;
            score[a] = times[a] = 0;
            if (p < seen && FOUR) {
                const uint8_t *kept = (const uint8_t *)(vc + p * old);
                channels(s.d, key[a], [&](int64_t i) { return ll_cache4_key(&ring, p, seen, i); });
                channels(s.d, value[a], [&](int64_t i) { return ll_cache4_value(kept, s.d, i); });
                score[a] = times[a] = 1;
            } else if (p < seen) {
                score[a] = load(kc + p * old, key[a]);
                times[a] = load(vc + p * old, value[a]);
            } else if (p < end) {
                score[a] = load(k + (p - seen) * young, key[a]);
                times[a] = load(v + (p - seen) * young, value[a]);
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

static sizes sizes_of(const ll_kcall *c)
{
    const ll_cached_attr *a = (const ll_cached_attr *)c->attr;
    const int64_t *x = c->in[0].shape.d;
    return sizes{x[1],
                 x[2],
                 x[3],
                 x[4],
                 c->in[3].shape.d[3],
                 c->in[3].shape.d[1],
                 c->in[4].shape.d[1],
                 a->window,
                 a->bits,
                 a->ring,
                 a->scale};
}

static ll_err run_attend(const ll_kcall *c)
{
    sizes s = sizes_of(c);
    int64_t rows = ll_numel(&c->in[0].shape) / ll_max64(1, s.d);
    CHECK(s.d <= 32 * WIDEST, LL_E_SHAPE, "heads of %lld elements, machine cuda takes up to %d",
          (long long)s.d, 32 * WIDEST);
    if (!rows || !s.d) return LL_OK;
    return with_float(c->in[0].dtype, [&](auto v) -> ll_err {
        typedef decltype(v) T;
        size_t parts = (size_t)(WARPS * (s.d + 2)) * sizeof(typename sum_of<T>::type);
        auto with = [&](auto kernel) -> ll_err {
            return launch_shared(c, kernel, (unsigned)rows, 32 * WARPS, parts, s, c->in[0].data,
                                 c->in[1].data, c->in[2].data, c->in[3].data, c->in[4].data,
                                 c->in[5].data, c->out[0].data);
        };
        auto by = [&](auto n) -> ll_err {
            constexpr int N = decltype(n)::value;
            if (s.bits == 4) return with(attend<N, true, T, uint8_t>);
            return s.bits == 8 ? with(attend<N, false, T, uint8_t>) : with(attend<N, false, T, T>);
        };
        if (s.d <= 64) return by(std::integral_constant<int, 2>{});
        if (s.d <= 128) return by(std::integral_constant<int, 4>{});
        return s.d <= 256 ? by(std::integral_constant<int, 8>{})
                          : by(std::integral_constant<int, WIDEST>{});
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

/* n rows of d numbers, to bytes, or to 4 bits by groups of channels: a thread has a row. */
template <class T, int BITS>
static __global__ void write_rows(const T *x, const int32_t *at, uint8_t *y, int64_t n, int64_t t,
                                  int64_t room, int64_t heads, int64_t d)
{
    int64_t half = ll_cache4_half(d), kept = ll_cache_row(BITS, d);
    GRID_STRIDE(i, n)
    {
        int64_t b = i / heads / t, place = at[b] + i / heads % t;
        if (at[b] < 0 || place >= room) continue;
        uint8_t *row = y + ((b * room + place) * heads + i % heads) * kept, *tail = row + half;
        auto number = [&](int64_t j) { return (float)to_float(x[i * d + j]); };
        float top = 0;
        for (int64_t j = 0; BITS == 8 && j < d; j++) top = fmaxf(top, fabsf(number(j)));
        float scale = BITS == 8 ? ll_cache8_begin(row, d, top) : 0;
        for (int64_t j = 0; BITS == 8 && j < d; j++) row[j] = ll_cache8_byte(number(j), scale);
        for (int64_t g = 0; BITS == 4 && g < d; g += LL_CACHE4_GROUP, tail += LL_CACHE4_TAIL) {
            int64_t end = g + LL_CACHE4_GROUP < d ? g + LL_CACHE4_GROUP : d;
            float least = INFINITY, most = -INFINITY;
            for (int64_t j = g; j < end; j++)
                least = fminf(least, number(j)), most = fmaxf(most, number(j));
            ll_cache4_begin(tail, least, most);
            for (int64_t j = g; j < end; j++)
                ll_cache4_put(row, half, j, ll_cache4_round(tail, number(j)));
        }
    }
}

/* A block has a head of a sequence: groups that wait, a thread the two channels of its bytes; then
 * new keys, a thread one. */
template <class T>
static __global__ void write_keys4(const T *x, const int32_t *at, uint8_t *y, int64_t t,
                                   int64_t rows, int64_t heads, int64_t d, int64_t ring)
{
    int64_t b = blockIdx.x / heads, h = blockIdx.x % heads, kept = ll_cache_row(4, d);
    int64_t now = at[b], half = ll_cache4_half(d);
    const ll_cache4_ring r = {y + (b * rows * heads + h) * kept, heads * kept, rows - 2 * ring,
                              ring, d};
    int64_t n = t < r.rows - now ? t : r.rows - now, from = 0;
    if (now < 0 || n < 0) return;
    if (now > ring) from = (now - ring) / LL_CACHE4_GROUP * LL_CACHE4_GROUP;
    for (; from + LL_CACHE4_GROUP <= now; from += LL_CACHE4_GROUP) {
        bool waits = ll_cache4_waits(&r, from);
        __syncthreads(); /* all have looked */
        if (!waits) continue;
        for (int64_t i = threadIdx.x; i < half; i += blockDim.x) {
            ll_cache4_settle(&r, from, i);
            if (i + half < d) ll_cache4_settle(&r, from, i + half);
        }
        __syncthreads();
        if (threadIdx.x == 0)
            ll_cache4_set_place(&r, ll_cache4_pair(&r, from + LL_CACHE4_GROUP - 1), -1);
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
        const T *key = x + ((b * t + i) * heads + h) * d;
        uint8_t *pair = ll_cache4_pair(&r, now + i);
        float top = 0;
        for (int64_t j = 0; j < d; j++) top = fmaxf(top, fabsf((float)to_float(key[j])));
        float scale = ll_cache8_begin(pair, half, top);
        for (int64_t j = 0; j < d; j++)
            *ll_cache4_byte(&r, pair, j) = ll_cache8_byte((float)to_float(key[j]), scale);
        ll_cache4_set_place(&r, pair, now + i);
    }
}

static ll_err run_write(const ll_kcall *c)
{
    const ll_cache_write_attr *a = (const ll_cache_write_attr *)c->attr;
    const int64_t *s = c->in[0].shape.d, *x = c->in[1].shape.d, n = ll_numel(&c->in[1].shape);
    if (c->out[0].data != c->in[0].data)
        CUDA_TRY(cudaMemcpyAsync(c->out[0].data, c->in[0].data,
                                 ll_tensor_bytes(c->in[0].dtype, &c->in[0].shape),
                                 cudaMemcpyDeviceToDevice, stream_of(c)));
    return with_float(c->in[1].dtype, [&](auto v) -> ll_err {
        typedef decltype(v) T;
        if (n == 0) return LL_OK;
        if (a->ring)
            return launch(c, write_keys4<T>, (unsigned)(x[0] * x[2]), 64, c->in[1].data,
                          c->in[2].data, c->out[0].data, x[1], s[1], x[2], x[3], a->ring);
        int64_t rows = x[0] * x[1] * x[2];
        if (a->bits)
            return launch_each(c, rows, a->bits == 8 ? write_rows<T, 8> : write_rows<T, 4>,
                               c->in[1].data, c->in[2].data, c->out[0].data, rows, x[1], s[1], x[2],
                               x[3]);
        return launch_each(c, n, write<T>, c->in[1].data, c->in[2].data, c->out[0].data, n, x[1],
                           s[1], s[2] * s[3]);
    });
}

extern "C" const ll_solver cached_attend_cuda[] = {{.run = run_attend}, {}},
                           cache_write_cuda[] = {{.run = run_write}, {}};
