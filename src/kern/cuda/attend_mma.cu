/* attend_mma.cu: attention of bf16 queries, keys and values by tensor cores, of any GPU since
 * Ampere: groups of heads, any causal bound, masks. A block keeps 64 rows of one side, 16 a warp,
 * and walks the other by N, which arrive while those before are worked on:
 *   forward, dq:  rows are queries; keys and values are walked
 *   dk and dv:    rows are keys; queries and do are walked, of all heads that share them
 * Scores are made anew in both parts of the gradient, and never stored. Sums are in a fixed order.
 * Rows of tiles lie in pieces of 16 bytes, swapped by the row's number, so that eight rows read at
 * once come from different banks. */
#include "kern/cuda/attention.cuh"
#include "kern/heads.h"

#include <math.h>

enum { ROWS = 64, THREADS = 128 };
static const float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;

/* ---- tiles ---- */

template <int D> __device__ __forceinline__ unsigned at(const bf16 *tile, int row, int piece)
{
    int to = piece ^ (D >= 64 ? row & 7 : row >> 1 & 3);
    return (unsigned)__cvta_generic_to_shared(tile + row * D + to * 8);
}

/* N rows of `width` elements, of which `left` are there; the rest is zeros. */
template <int D, int N>
__device__ __forceinline__ void load(bf16 *tile, const bf16 *from, int64_t stride, int64_t left,
                                     int64_t width)
{
#pragma unroll
    for (int i = threadIdx.x; i < N * (D / 8); i += THREADS) {
        int row = i / (D / 8), piece = i % (D / 8);
        bool in = row < left && piece * 8 < width;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at<D>(tile, row, piece)),
                     "l"(in ? from + row * stride + piece * 8 : from), "r"(in ? 16 : 0)
                     : "memory");
    }
}
__device__ __forceinline__ void loads_end(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* All but the last N groups of loads are there, for all threads. */
template <int N> __device__ __forceinline__ void loads_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
    __syncthreads();
}

/* ---- products of 16 rows: c[j] has columns 8 j and on ---- */

__device__ __forceinline__ void get(unsigned from, unsigned (&v)[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(from));
}
__device__ __forceinline__ void get_transposed(unsigned from, unsigned (&v)[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(from));
}
__device__ __forceinline__ void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                         unsigned b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ unsigned pack(float low, float high)
{
    unsigned v;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
    return v;
}

/* c = a b^T, of this warp's rows of tile a and N rows of tile b. */
template <int D, int N>
__device__ __forceinline__ void by_rows(float (&c)[N / 8][4], const bf16 *a, const bf16 *b)
{
    int l = threadIdx.x % 32, row = threadIdx.x / 32 * 16;
#pragma unroll
    for (int i = 0; i < N / 2; i++) (&c[0][0])[i] = 0;
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        unsigned x[4], y[4];
        get(at<D>(a, row + l % 16, k / 8 + l / 16), x);
#pragma unroll
        for (int j = 0; j < N; j += 16) {
            get(at<D>(b, j + l % 8 + l / 16 * 8, k / 8 + l / 8 % 2), y);
            multiply(c[j / 8], x, y[0], y[1]);
            multiply(c[j / 8 + 1], x, y[2], y[3]);
        }
    }
}

/* c += a b, a of 16 x N in registers, rounded to bf16, N rows of tile b. */
template <int D, int N>
__device__ __forceinline__ void add_product(float (&c)[D / 8][4], const float (&a)[N / 8][4],
                                            const bf16 *b)
{
    int l = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < N; k += 16) {
        const float(&p)[4] = a[k / 8], (&q)[4] = a[k / 8 + 1];
        unsigned y[4];
        unsigned x[4] = {pack(p[0], p[1]), pack(p[2], p[3]), pack(q[0], q[1]), pack(q[2], q[3])};
#pragma unroll
        for (int j = 0; j < D; j += 16) {
            get_transposed(at<D>(b, k + l % 16, j / 8 + l / 16), y);
            multiply(c[j / 8], x, y[0], y[1]);
            multiply(c[j / 8 + 1], x, y[2], y[3]);
        }
    }
}

/* Of element e of c[j]: its row among the block's, its column. */
__device__ __forceinline__ int row_of(int e)
{
    return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + e / 2 * 8;
}
__device__ __forceinline__ int column_of(int j, int e)
{
    return j * 8 + threadIdx.x % 4 * 2 + e % 2;
}

/* Rows of c, times `by`, to rows of `width` elements, of which `left` are there. */
template <int D>
__device__ __forceinline__ void put(bf16 *to, int64_t stride, int64_t left, int64_t width,
                                    const float (&c)[D / 8][4], const float (&by)[2])
{
#pragma unroll
    for (int e = 0; e < 4; e += 2)
#pragma unroll
        for (int j = 0; j < D / 8; j++)
            if (row_of(e) < left && column_of(j, e) < width)
                *(unsigned *)(to + row_of(e) * stride + column_of(j, e)) =
                    pack(c[j][e] * by[e / 2], c[j][e + 1] * by[e / 2]);
}
template <int D>
__device__ __forceinline__ void put(bf16 *to, int64_t stride, int64_t left, int64_t width,
                                    const float (&c)[D / 8][4], float by)
{
    float all[2] = {by, by};
    put<D>(to, stride, left, width, c, all);
}

/* ---- what a block is at ---- */

struct place {
    int64_t b, h, n; /* sample, head, head of keys */
    int64_t q, k, v, o, stat;
    __device__ place(const ll_att &p, int64_t b, int64_t h)
        : b(b), h(h), n(h * p.n / p.h), q(b * p.t * p.q_row + h * p.d),
          k(b * p.s * p.k_row + n * p.d), v(b * p.s * p.v_row + n * p.e),
          o((b * p.t * p.h + h) * p.e), stat((b * p.h + h) * p.t)
    {
    }
};

/* A score of query i and key j, in powers of two; -infinity: not seen. */
__device__ __forceinline__ float seen(const ll_att &p, const place &w, float dot, int64_t i,
                                      int64_t j)
{
    if (j > i + p.ahead || j >= p.s || i >= p.t) return -INFINITY;
    float s = dot * (float)p.scale;
    if (p.mask)
        s += ((const float *)p.mask)[w.b * p.by[0] + w.n * p.by[1] + w.h % (p.h / p.n) * p.by[2] +
                                     i * p.by[3] + j * p.by[4]];
    return s * LOG2_E;
}

/* Whether all of a tile is seen, and nothing added. */
__device__ __forceinline__ bool all_seen(const ll_att &p, int64_t i, int64_t j, int rows, int keys)
{
    return !p.mask && j + keys <= p.s && i + rows <= p.t && j + keys - 1 <= i + p.ahead;
}

/* N keys and values from j on, to one of two rooms each. */
template <int D, int N>
__device__ __forceinline__ void load_keys(const ll_att &p, const place &w, int64_t j, int64_t end,
                                          bf16 *k, bf16 *v)
{
    if (j < end) {
        load<D, N>(k, (const bf16 *)p.k + w.k + j * p.k_row, p.k_row, p.s - j, p.d);
        load<D, N>(v, (const bf16 *)p.v + w.v + j * p.v_row, p.v_row, p.s - j, p.e);
    }
    loads_end();
}

/* ---- forward ---- */

template <int D> struct sums { /* of this thread's rows */
    float y[D / 8][4], top[2], sum[2];
};

template <int D, int N>
__device__ __forceinline__ void add_tile(const ll_att &p, const place &w, int64_t i0, int64_t j0,
                                         const bf16 *q, const bf16 *k, const bf16 *v, sums<D> &a)
{
    float c[N / 8][4], by = (float)p.scale * LOG2_E;
    bool all = all_seen(p, i0, j0, ROWS, N);
    by_rows<D, N>(c, q, k);
    float top[2] = {a.top[0], a.top[1]};
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float &x = c[j][e];
            x = all ? x * by : seen(p, w, x, i0 + row_of(e), j0 + column_of(j, e));
            top[e / 2] = fmaxf(top[e / 2], x);
        }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        for (int o = 1; o < 4; o *= 2)
            top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], o));
        float rescale = power_of_2(a.top[r] - top[r]);
        a.top[r] = top[r], a.sum[r] *= rescale;
#pragma unroll
        for (int j = 0; j < D / 8; j++) a.y[j][2 * r] *= rescale, a.y[j][2 * r + 1] *= rescale;
    }
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            c[j][e] = power_of_2(c[j][e] - top[e / 2]);
            a.sum[e / 2] += c[j][e];
        }
    add_product<D, N>(a.y, c, v);
}

template <int D, int N>
static __global__ void __launch_bounds__(THREADS) forward(ll_att p, bf16 *o, float *lse)
{
    extern __shared__ __align__(128) bf16 room[];
    enum { TILE = N * D };
    bf16 *q = room, *k = q + ROWS * D, *v = k + 2 * TILE;
    int64_t i0 = (int64_t)(gridDim.x - 1 - blockIdx.x) * ROWS, left = p.t - i0; /* longest first */
    place w(p, blockIdx.z, blockIdx.y);
    int64_t end = min(p.s, min(i0 + ROWS, p.t) + p.ahead);
    sums<D> a = {};
    a.top[0] = a.top[1] = LL_ATTEND_NONE * LOG2_E;
    load<D, ROWS>(q, (const bf16 *)p.q + w.q + i0 * p.q_row, p.q_row, left, p.d);
    load_keys<D, N>(p, w, 0, end, k, v);
    for (int64_t j = 0, turn = 0; j < end; j += N, turn ^= 1) {
        load_keys<D, N>(p, w, j + N, end, k + (turn ^ 1) * TILE, v + (turn ^ 1) * TILE);
        loads_wait<1>();
        add_tile<D, N>(p, w, i0, j, q, k + turn * TILE, v + turn * TILE, a);
        __syncthreads();
    }
    float by[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = a.sum[r];
        for (int x = 1; x < 4; x *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, x);
        by[r] = sum ? 1 / sum : 0;
        int row = row_of(2 * r);
        if (threadIdx.x % 4 == 0 && row < left)
            lse[w.stat + i0 + row] = sum ? a.top[r] * LN_2 + logf(sum) : LL_ATTEND_NONE;
    }
    put<D>(o + w.o + i0 * p.h * p.e, p.h * p.e, left, p.e, a.y, by);
}

/* ---- gradients ---- */

typedef struct slopes {
    const bf16 *g; /* do */
    const float *lse, *delta;
    bf16 *dq, *dk, *dv;
} slopes;

/* Queries: dq. */
template <int D, int N>
static __global__ void __launch_bounds__(THREADS) grad_queries(ll_att p, slopes f)
{
    extern __shared__ __align__(128) bf16 room[];
    enum { TILE = N * D };
    bf16 *q = room, *g = q + ROWS * D, *k = g + ROWS * D, *v = k + 2 * TILE;
    int64_t i0 = (int64_t)(gridDim.x - 1 - blockIdx.x) * ROWS, left = p.t - i0, o_row = p.h * p.e;
    place w(p, blockIdx.z, blockIdx.y);
    int64_t end = min(p.s, min(i0 + ROWS, p.t) + p.ahead);
    float y[D / 8][4] = {}, lse[2] = {}, delta[2] = {}, by = (float)p.scale * LOG2_E;
#pragma unroll
    for (int r = 0; r < 2; r++)
        if (row_of(2 * r) < left) {
            int64_t at = w.stat + i0 + row_of(2 * r);
            lse[r] = f.lse[at] * LOG2_E, delta[r] = f.delta[at];
        }
    load<D, ROWS>(q, (const bf16 *)p.q + w.q + i0 * p.q_row, p.q_row, left, p.d);
    load<D, ROWS>(g, f.g + w.o + i0 * o_row, o_row, left, p.e);
    load_keys<D, N>(p, w, 0, end, k, v);
    for (int64_t j0 = 0, turn = 0; j0 < end; j0 += N, turn ^= 1) {
        float c[N / 8][4], x[N / 8][4];
        bool all = all_seen(p, i0, j0, ROWS, N);
        load_keys<D, N>(p, w, j0 + N, end, k + (turn ^ 1) * TILE, v + (turn ^ 1) * TILE);
        loads_wait<1>();
        by_rows<D, N>(c, q, k + turn * TILE);
        by_rows<D, N>(x, g, v + turn * TILE);
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float s = c[j][e];
                s = all ? s * by : seen(p, w, s, i0 + row_of(e), j0 + column_of(j, e));
                c[j][e] = power_of_2(s - lse[e / 2]) * (x[j][e] - delta[e / 2]);
            }
        add_product<D, N>(y, c, k + turn * TILE);
        __syncthreads();
    }
    put<D>(f.dq + w.q + i0 * p.q_row, p.q_row, left, p.d, y, (float)p.scale);
}

/* Keys: dk and dv, of all heads that share them. */
template <int D, int N>
static __global__ void __launch_bounds__(THREADS) grad_keys(ll_att p, slopes f)
{
    extern __shared__ __align__(128) bf16 room[];
    enum { TILE = N * D };
    __shared__ float lse[2][N], delta[2][N];
    bf16 *k = room, *v = k + ROWS * D, *q = v + ROWS * D, *g = q + 2 * TILE;
    int64_t j0 = (int64_t)blockIdx.x * ROWS, left = p.s - j0, group = p.h / p.n, o_row = p.h * p.e;
    int64_t first = max((int64_t)0, j0 - p.ahead) / N * N;
    place w(p, blockIdx.z, blockIdx.y * group);
    /* queries from i on, of the group's head number h */
    auto ask = [&](int64_t i, int64_t h, int to) {
        if (i < p.t && h < group) {
            const bf16 *from = (const bf16 *)p.q + w.q + h * p.d + i * p.q_row;
            int64_t stat = w.stat + h * p.t + i + threadIdx.x;
            load<D, N>(q + to * TILE, from, p.q_row, p.t - i, p.d);
            load<D, N>(g + to * TILE, f.g + w.o + h * p.e + i * o_row, o_row, p.t - i, p.e);
            if (threadIdx.x < N) {
                bool in = i + threadIdx.x < p.t;
                lse[to][threadIdx.x] = in ? f.lse[stat] * LOG2_E : 0;
                delta[to][threadIdx.x] = in ? f.delta[stat] : 0;
            }
        }
        loads_end();
    };
    float dk[D / 8][4] = {}, dv[D / 8][4] = {}, by = (float)p.scale * LOG2_E;
    load<D, ROWS>(k, (const bf16 *)p.k + w.k + j0 * p.k_row, p.k_row, left, p.d);
    load<D, ROWS>(v, (const bf16 *)p.v + w.v + j0 * p.v_row, p.v_row, left, p.e);
    ask(first, 0, 0);
    for (int64_t i0 = first, h = 0, turn = 0; i0 < p.t && h < group; turn ^= 1) {
        float c[N / 8][4], x[N / 8][4];
        place at = w;
        at.h += h;
        bool all = all_seen(p, i0, j0, N, ROWS), last = i0 + N >= p.t;
        int64_t i1 = last ? first : i0 + N;
        ask(i1, h + last, turn ^ 1);
        loads_wait<1>();
        by_rows<D, N>(c, k, q + turn * TILE);
        by_rows<D, N>(x, v, g + turn * TILE);
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int i = column_of(j, e);
                float s = c[j][e];
                s = all ? s * by : seen(p, at, s, i0 + i, j0 + row_of(e));
                c[j][e] = power_of_2(s - lse[turn][i]);
                x[j][e] = c[j][e] * (x[j][e] - delta[turn][i]);
            }
        add_product<D, N>(dv, c, g + turn * TILE);
        add_product<D, N>(dk, x, q + turn * TILE);
        __syncthreads();
        i0 = i1, h += last;
    }
    put<D>(f.dk + w.k + j0 * p.k_row, p.k_row, left, p.d, dk, (float)p.scale);
    put<D>(f.dv + w.v + j0 * p.v_row, p.v_row, left, p.e, dv, 1.f);
}

/* ---- calls ---- */

template <int D_, int N_> struct shape { /* heads of up to D; N in gradients */
    enum { D = D_, N = N_ };
};
template <class F> static ll_err with_shape(const ll_att &p, F f)
{
    int64_t d = ll_max64(p.d, p.e);
    if (d <= 32) return f(shape<32, 64>{});
    return d <= 64 ? f(shape<64, 64>{}) : f(shape<128, 32>{});
}

static ll_att att_of(const ll_kcall *c)
{
    bool grad = c->n_out == 3;
    int mask = grad ? 6 : 3;
    return ll_att_of(&c->in[grad], c->n_in > mask ? &c->in[mask] : NULL, c->attr);
}

extern "C" bool attend_cuda_mma_fits(const ll_kcall *c)
{
    ll_att p = att_of(c);
    bool grad = c->n_out == 3, fits = true;
    for (int i = 0; i < 3 + grad; i++) fits &= c->in[i].dtype == LL_BF16;
    fits &= (grad ? c->in[4] : c->out[1]).dtype == LL_F32;
    fits &= c->n_in <= (grad ? 6 : 3) || c->in[c->n_in - 1].dtype == LL_F32;
    return fits && p.d % 8 == 0 && p.e % 8 == 0 && ll_max64(p.d, p.e) <= 128 && p.d && p.e &&
           p.b < 65536 && p.h < 65536;
}

extern "C" ll_err attend_cuda_mma(const ll_kcall *c)
{
    ll_att p = att_of(c);
    dim3 grid((unsigned)ll_ceil_div(p.t, ROWS), (unsigned)p.h, (unsigned)p.b);
    if (p.b * p.t * p.h == 0) return LL_OK;
    return with_shape(p, [&](auto z) -> ll_err {
        enum { D = decltype(z)::D, N = 64 };
        return launch_shared(c, forward<D, N>, grid, THREADS, (ROWS + 4 * N) * D * sizeof(bf16), p,
                             c->out[0].data, c->out[1].data);
    });
}

extern "C" ll_err attend_grad_cuda_mma(const ll_kcall *c)
{
    ll_att p = att_of(c);
    slopes f = {(const bf16 *)c->in[0].data,  (const float *)c->in[4].data,
                (const float *)c->in[5].data, (bf16 *)c->out[0].data,
                (bf16 *)c->out[1].data,       (bf16 *)c->out[2].data};
    dim3 queries((unsigned)ll_ceil_div(p.t, ROWS), (unsigned)p.h, (unsigned)p.b);
    dim3 keys((unsigned)ll_ceil_div(p.s, ROWS), (unsigned)p.n, (unsigned)p.b);
    return with_shape(p, [&](auto z) -> ll_err {
        enum { D = decltype(z)::D, N = decltype(z)::N };
        size_t bytes = (2 * ROWS + 4 * N) * D * sizeof(bf16);
        if (p.b * p.t * p.h > 0)
            TRY(launch_shared(c, grad_queries<D, N>, queries, THREADS, bytes, p, f));
        if (p.b * p.s * p.n == 0) return LL_OK;
        return launch_shared(c, grad_keys<D, N>, keys, THREADS, bytes, p, f);
    });
}
