/* rope.cu: rotary positions. The angle is made in double: after many turns little of it is left in
 * f32. Halves of heads by 16 bytes: a block makes the sines of some times once, in shared memory,
 * and turns all heads of some samples by them. Otherwise (pairs side by side, odd sizes, places
 * that are given, f64) a thread makes the sine of one pair and time, and turns all heads of some
 * samples by it, each by its own place. */
#include "kern/cuda/vec.cuh"

enum { TIMES = 8, THREADS = 256 };

typedef struct sizes {
    int64_t b, t, h, d, parts; /* parts: of the samples */
} sizes;

__device__ __forceinline__ double rate(const ll_rope_attr &a, int64_t pair, int64_t d)
{
    return pow(a.base, -2 * (double)pair / (double)d);
}

template <class T>
static __global__ void turn(ll_rope_attr a, sizes s, const int32_t *place, const T *x, T *y)
{
    typedef typename sum_of<T>::type S;
    int64_t half = s.d / 2;
    GRID_STRIDE(i, s.parts * s.t * half)
    {
        int64_t pair = i % half, t = i / half % s.t, to = a.interleaved ? 1 : half;
        int64_t first = s.b * (i / half / s.t) / s.parts,
                end = s.b * (i / half / s.t + 1) / s.parts;
        double by = rate(a, pair, s.d);
        S cosine = 0, sine = 0;
        for (int64_t b = first; b < end; b++) {
            if (b == first || place) {
                double angle = (double)(a.at + (place ? place[b * s.t + t] : t)) * by;
                cosine = (S)cos(angle), sine = (S)(a.back ? -sin(angle) : sin(angle));
            }
            for (int64_t h = 0; h < s.h; h++) {
                int64_t at = ((b * s.t + t) * s.h + h) * s.d + pair * (a.interleaved + 1);
                S p = to_float(x[at]), q = to_float(x[at + to]);
                y[at] = from_float<T>::of(p * cosine - q * sine);
                y[at + to] = from_float<T>::of(p * sine + q * cosine);
            }
        }
    }
}

/* Of TIMES times and a part of the samples; a thread has the same piece of all its heads. */
template <class T>
static __global__ void __launch_bounds__(THREADS)
    turn_halves(ll_rope_attr a, sizes s, const T *x, T *y)
{
    enum { N = wide<T>::N };
    extern __shared__ float2 turns[]; /* [TIMES][half] */
    int half = (int)s.d / 2, pieces = half / N, heads = (int)s.h;
    int64_t t0 = (int64_t)blockIdx.x * TIMES;
    int rows = (int)min((int64_t)TIMES, s.t - t0) * heads;
    int64_t first = s.b * blockIdx.y / s.parts, end = s.b * (blockIdx.y + 1) / s.parts;
    for (int i = threadIdx.x; i < TIMES * half; i += THREADS) {
        double angle = (double)(a.at + t0 + i / half) * rate(a, i % half, s.d), sine, cosine;
        sincos(angle, &sine, &cosine);
        turns[i] = make_float2((float)cosine, (float)(a.back ? -sine : sine));
    }
    __syncthreads();
    int piece = threadIdx.x % pieces;
    for (int64_t b = first; b < end; b++)
        for (int r = threadIdx.x / pieces; r < rows; r += THREADS / pieces) {
            int64_t at = ((b * s.t + t0) * heads + r) * s.d + piece * N;
            const float2 *by = turns + r / heads * half + piece * N;
            float p[N], q[N];
            wide<T>::unpack(*(const uint4 *)(x + at), p);
            wide<T>::unpack(*(const uint4 *)(x + at + half), q);
#pragma unroll
            for (int i = 0; i < N; i++) {
                float c = by[i].x, z = by[i].y, u = p[i] * c - q[i] * z;
                q[i] = p[i] * z + q[i] * c, p[i] = u;
            }
            *(uint4 *)(y + at) = wide<T>::pack(p);
            *(uint4 *)(y + at + half) = wide<T>::pack(q);
        }
}

static sizes sizes_of(const ll_kcall *c)
{
    const ll_shape *x = &c->in[0].shape;
    return sizes{x->d[0], x->d[1], x->n == 5 ? x->d[2] * x->d[3] : x->d[2], x->d[x->n - 1], 1};
}

static ll_err run(const ll_kcall *c)
{
    sizes s = sizes_of(c);
    int64_t pairs = s.t * s.d / 2, full = processors_of(c) * 2048;
    if (pairs && pairs < full) s.parts = ll_min64(s.b, ll_ceil_div(full, pairs));
    const int32_t *place = c->n_in > 1 ? (const int32_t *)c->in[1].data : NULL;
    return with_float(c->in[0].dtype, [&](auto v) -> ll_err {
        return launch_each(c, ll_numel(&c->in[0].shape) ? s.parts * pairs : 0, turn<decltype(v)>,
                           *(const ll_rope_attr *)c->attr, s, place, c->in[0].data, c->out[0].data);
    });
}

/* Pieces of half a head share out a block's threads evenly; rows of a block are counted in 32 bits.
 */
static bool halves_fit(const ll_kcall *c)
{
    sizes s = sizes_of(c);
    int64_t half = s.d / 2, size = (int64_t)ll_dtype_bytes(c->in[0].dtype),
            pieces = half * size / 16;
    return c->n_in == 1 && !((const ll_rope_attr *)c->attr)->interleaved && s.d % 2 == 0 &&
           is_wide(c->in[0].dtype, half) && pieces && THREADS % pieces == 0 && half <= 512 &&
           s.b * s.t > 0 && s.b < 65536 && s.h > 0 && s.h < 1 << 20;
}

static ll_err run_halves(const ll_kcall *c)
{
    enum { BLOCKS = 4 }; /* for each processor, as far as samples go */
    sizes s = sizes_of(c);
    int64_t times = ll_ceil_div(s.t, TIMES);
    s.parts = ll_min64(s.b, ll_ceil_div(processors_of(c) * BLOCKS, times));
    size_t bytes = (size_t)(TIMES * s.d / 2) * sizeof(float2);
    return with_wide(c->in[0].dtype, [&](auto v) -> ll_err {
        return launch_shared(c, turn_halves<decltype(v)>, dim3((unsigned)times, (unsigned)s.parts),
                             THREADS, bytes, *(const ll_rope_attr *)c->attr, s, c->in[0].data,
                             c->out[0].data);
    });
}

extern "C" const ll_solver rope_cuda[] = {
    {"halves", halves_fit, NULL, run_halves}, {"pairs", NULL, NULL, run}, {}};
