/* linear_attend.cu: linear attention in chunks of keys and the queries at the same places, each
 * chunk a block of its own. First every chunk's sum of k' v is made, then these are added up from
 * chunk to chunk, which gives the state that each begins with; then chunks make their results: of
 * pairs within, and of the state. The gradient does so twice: what keys are owed comes from sums of
 * later queries. Sums have one order, and products are multiplications and additions of f32 (f64).
 *
 * A state is [d, e+1]: its last column sums keys (of the gradient also dl q). */
#include "kern/cuda/gpu.cuh"

enum { C = 64, DEEP = 16, THREADS = 256, EACH = 4 }; /* a block makes tiles of C x C */

struct sizes {
    int64_t b, t, s, n, g, d, e, ahead, chunks;
    ll_linear_attr a;
};

/* Rows of a head: row i at p + i * stride. */
template <class T> struct rows {
    const T *p;
    int64_t stride;
    __device__ __forceinline__ typename sum_of<T>::type at(int64_t i, int64_t k) const
    {
        return to_float(p[i * stride + k]);
    }
};

template <class T>
static __device__ rows<T> head_rows(const T *x, int64_t time, int64_t heads, int64_t width,
                                    int64_t b, int64_t head)
{
    return rows<T>{x + (b * time * heads + head) * width, heads * width};
}

/* Shared memory: scores, tiles of both operands, powers of what a head keeps. */
template <class S> struct room {
    S scores[C][C + 1], a[DEEP][C], b[DEEP][C], power[C + 1];
};

template <class S> static __device__ room<S> *room_of(void)
{
    extern __shared__ double bytes[];
    return (room<S> *)bytes;
}

template <class S> static __device__ void set_powers(room<S> *m, const sizes &z, int64_t n)
{
    double decay = ll_linear_decay(&z.a, n);
    for (int r = threadIdx.x; r <= C; r += THREADS) m->power[r] = (S)exp(decay * r);
    __syncthreads();
}

/* sum += a b, C x C over k; a(row, k), b(k, col). AK, BK: what lies side by side is k. */
template <bool AK, bool BK, class S, class A, class B>
static __device__ __forceinline__ void product(room<S> *m, S (&sum)[EACH][EACH], int64_t k, A a,
                                               B b)
{
    int row = threadIdx.x / 16 * EACH, col = threadIdx.x % 16 * EACH;
    for (int64_t from = 0; from < k; from += DEEP) {
        __syncthreads();
        for (int i = threadIdx.x; i < DEEP * C; i += THREADS) {
            int ka = AK ? i % DEEP : i / C, r = AK ? i / DEEP : i % C;
            int kb = BK ? i % DEEP : i / C, c = BK ? i / DEEP : i % C;
            m->a[ka][r] = from + ka < k ? a(r, from + ka) : (S)0;
            m->b[kb][c] = from + kb < k ? b(from + kb, c) : (S)0;
        }
        __syncthreads();
#pragma unroll
        for (int p = 0; p < DEEP; p++) {
            S x[EACH], y[EACH];
#pragma unroll
            for (int i = 0; i < EACH; i++) x[i] = m->a[p][row + i], y[i] = m->b[p][col + i];
#pragma unroll
            for (int i = 0; i < EACH; i++)
#pragma unroll
                for (int j = 0; j < EACH; j++) sum[i][j] += x[i] * y[j];
        }
    }
}

/* f(row, column, sum) of this thread's. */
template <class S, class F> static __device__ __forceinline__ void each(S (&sum)[EACH][EACH], F f)
{
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++)
            f(threadIdx.x / 16 * EACH + i, threadIdx.x % 16 * EACH + j, sum[i][j]);
}

/* A call's pointers; S: of sums. */
template <class T, class S> struct call {
    sizes z;
    const T *q, *k, *v, *dout;
    const S *dl;
    T *o, *dq, *dk, *dv;
    S *l, *state, *later; /* [b,n,chunks,d,e+1] */
};

/* The chunk of a block: its head of keys, its places. */
template <class T, class S> struct chunk {
    int64_t b, n, at, keys; /* keys from `at` on */
    rows<T> k, v;
    S *state, *later;
    __device__ chunk(const call<T, S> &c, int64_t index)
    {
        const sizes &z = c.z;
        int64_t bn = index / z.chunks, size = z.d * (z.e + 1);
        b = bn / z.n, n = bn % z.n, at = index % z.chunks * C;
        keys = min(max(z.s - at, (int64_t)0), (int64_t)C);
        k = head_rows(c.k, z.s, z.n, z.d, b, n);
        v = head_rows(c.v, z.s, z.n, z.e, b, n);
        k.p += at * k.stride, v.p += at * v.stride;
        state = c.state + index * size, later = c.later + index * size;
    }
    /* Query of place r; outside of [0, t): none. */
    __device__ __forceinline__ int64_t query(const sizes &z, int64_t r) const
    {
        return at + r - z.ahead;
    }
    __device__ __forceinline__ bool has(const sizes &z, int64_t r) const
    {
        return query(z, r) >= 0 && query(z, r) < z.t;
    }
    __device__ bool queries(const sizes &z) const { return at < z.t + z.ahead && at + C > z.ahead; }
};

/* ---- sums of chunks ---- */

/* Sum of keys times values, or, LATER, of queries times do, as of the chunk's end, or start. */
template <bool LATER, class T, class S>
static __global__ void __launch_bounds__(THREADS) sum_chunks(call<T, S> c, int64_t wide)
{
    const sizes &z = c.z;
    room<S> *m = room_of<S>();
    int64_t tiles = (z.d + C - 1) / C * wide, f = z.e + 1;
    int64_t d0 = blockIdx.x % tiles / wide * C, e0 = blockIdx.x % wide * C;
    chunk<T, S> x(c, blockIdx.x / tiles);
    S sum[EACH][EACH] = {}, *to = LATER ? x.later : x.state, more = 0;
    set_powers(m, z, x.n);
    for (int64_t g = 0; g < (LATER ? z.g : 1); g++) {
        int64_t head = x.n * z.g + g, heads = z.n * z.g;
        rows<T> q = LATER ? head_rows(c.q, z.t, heads, z.d, x.b, head) : x.k;
        rows<T> y = LATER ? head_rows(c.dout, z.t, heads, z.e, x.b, head) : x.v;
        const S *dl = LATER ? c.dl + (x.b * heads + head) * z.t : NULL;
        auto row = [&](int64_t r) { return LATER ? x.query(z, r) : r; };
        auto in = [&](int64_t r) { return LATER ? x.has(z, r) : r < x.keys; };
        auto by = [&](int64_t r) { return m->power[LATER ? r : C - r]; };
        product<false, false>(
            m, sum, C,
            [&](int d, int64_t r) {
                return in(r) && d0 + d < z.d ? q.at(row(r), d0 + d) * by(r) : (S)0;
            },
            [&](int64_t r, int e) { return in(r) && e0 + e < z.e ? y.at(row(r), e0 + e) : (S)0; });
        int64_t d = d0 + threadIdx.x;
        for (int r = 0; r < C && !e0 && threadIdx.x < C && d < z.d; r++)
            if (in(r)) more += q.at(row(r), d) * by(r) * (LATER ? dl[row(r)] : (S)1);
    }
    each(sum, [&](int d, int e, S v) {
        if (d0 + d < z.d && e0 + e < z.e) to[(d0 + d) * f + e0 + e] = v;
    });
    if (!e0 && threadIdx.x < C && d0 + threadIdx.x < z.d) to[(d0 + threadIdx.x) * f + z.e] = more;
}

/* Each chunk's becomes what all before it, or, LATER, behind it, have. */
template <bool LATER, class S> static __global__ void add_up(sizes z, S *sums)
{
    int64_t size = z.d * (z.e + 1);
    GRID_STRIDE(i, z.b * z.n * size)
    {
        int64_t bn = i / size;
        S *at = sums + bn * z.chunks * size + i % size, run = 0;
        S keep = (S)exp(ll_linear_decay(&z.a, bn % z.n) * C);
        for (int64_t k = 0; k < z.chunks; k++) {
            S *x = at + (LATER ? z.chunks - 1 - k : k) * size, own = *x;
            *x = run;
            run = keep * run + own;
        }
    }
}

/* ---- results ---- */

/* What queries get: o and l of values; or, SLOPES, dq of keys, with do in the queries' place and dl
 * added to scores. State is then walked the other way. */
template <bool SLOPES, class T, class S>
static __global__ void __launch_bounds__(THREADS) query_side(call<T, S> c)
{
    const sizes &z = c.z;
    room<S> *m = room_of<S>();
    int64_t g = blockIdx.x % z.g, f = z.e + 1, width = SLOPES ? z.d : z.e,
            deep = SLOPES ? z.e : z.d;
    chunk<T, S> x(c, blockIdx.x / z.g);
    int64_t head = x.n * z.g + g, heads = z.n * z.g, at = (x.b * heads + head) * z.t;
    rows<T> y = head_rows(SLOPES ? c.dout : c.q, z.t, heads, deep, x.b, head);
    rows<T> key = SLOPES ? x.v : x.k, value = SLOPES ? x.k : x.v;
    const S *dl = c.dl + at;
    if (!x.queries(z)) return;
    set_powers(m, z, x.n);
    auto query = [&](int r, int64_t k) { return x.has(z, r) ? y.at(x.query(z, r), k) : (S)0; };
    S p[EACH][EACH] = {};
    product<true, true>(m, p, deep, query,
                        [&](int64_t k, int j) { return j < x.keys ? key.at(j, k) : (S)0; });
    each(p, [&](int r, int j, S v) {
        bool sees = j <= r && (!SLOPES || (j < x.keys && x.has(z, r)));
        m->scores[r][j] = sees ? (SLOPES ? v + dl[x.query(z, r)] : v) * m->power[r - j] : (S)0;
    });
    if (!SLOPES) __syncthreads();
    if (!SLOPES && threadIdx.x < C && x.has(z, threadIdx.x)) {
        S sum = 0, old = 0;
        for (int j = 0; j < C; j++) sum += m->scores[threadIdx.x][j];
        for (int64_t k = 0; k < z.d && x.at; k++)
            old += query(threadIdx.x, k) * x.state[k * f + z.e];
        c.l[at + x.query(z, threadIdx.x)] = sum + m->power[threadIdx.x] * old;
    }
    for (int64_t w0 = 0; w0 < width; w0 += C) {
        S o[EACH][EACH] = {};
        product<true, false>(
            m, o, C, [&](int r, int64_t k) { return m->scores[r][k]; },
            [&](int64_t k, int w) {
                return k < x.keys && w0 + w < width ? value.at(k, w0 + w) : (S)0;
            });
        if (x.at)
            product<true, SLOPES>(
                m, o, deep, [&](int r, int64_t k) { return query(r, k) * m->power[r]; },
                [&](int64_t k, int w) {
                    return w0 + w >= width ? (S)0
                                           : x.state[SLOPES ? (w0 + w) * f + k : k * f + w0 + w];
                });
        each(o, [&](int r, int w, S v) {
            if (!x.has(z, r) || w0 + w >= width) return;
            int64_t i = x.query(z, r);
            if (SLOPES && x.at) v += m->power[r] * dl[i] * x.state[(w0 + w) * f + z.e];
            (SLOPES ? c.dq : c.o)[((x.b * z.t + i) * heads + head) * width + w0 + w] =
                from_float<T>::of(v);
        });
    }
}

/* Scores of a chunk, [key][query], of head g: p, or, DP, dp. */
template <bool DP, class T, class S>
static __device__ void scores_of(const call<T, S> &c, room<S> *m, const chunk<T, S> &x, int64_t g)
{
    const sizes &z = c.z;
    int64_t head = x.n * z.g + g, heads = z.n * z.g, width = DP ? z.e : z.d;
    rows<T> y = head_rows(DP ? c.dout : c.q, z.t, heads, width, x.b, head), k = DP ? x.v : x.k;
    const S *dl = c.dl + (x.b * heads + head) * z.t;
    S p[EACH][EACH] = {};
    product<true, true>(
        m, p, width, [&](int j, int64_t i) { return j < x.keys ? k.at(j, i) : (S)0; },
        [&](int64_t i, int r) { return x.has(z, r) ? y.at(x.query(z, r), i) : (S)0; });
    each(p, [&](int j, int r, S v) {
        bool sees = j <= r && j < x.keys && x.has(z, r);
        m->scores[j][r] = sees ? (v + (DP ? dl[x.query(z, r)] : (S)0)) * m->power[r - j] : (S)0;
    });
}

/* dk, or, OF_V, dv. */
template <bool OF_V, class T, class S>
static __global__ void __launch_bounds__(THREADS) key_slopes(call<T, S> c)
{
    const sizes &z = c.z;
    room<S> *m = room_of<S>();
    chunk<T, S> x(c, blockIdx.x);
    int64_t f = z.e + 1, heads = z.n * z.g, width = OF_V ? z.e : z.d, deep = OF_V ? z.d : z.e;
    rows<T> key = OF_V ? x.k : x.v;
    if (!x.keys) return;
    set_powers(m, z, x.n);
    for (int64_t w0 = 0; w0 < width; w0 += C) {
        S o[EACH][EACH] = {};
        for (int64_t g = 0; g < z.g && x.queries(z); g++) {
            rows<T> y = head_rows(OF_V ? c.dout : c.q, z.t, heads, width, x.b, x.n * z.g + g);
            __syncthreads();
            scores_of<!OF_V>(c, m, x, g);
            product<true, false>(
                m, o, C, [&](int j, int64_t r) { return m->scores[j][r]; },
                [&](int64_t r, int w) {
                    return x.has(z, r) && w0 + w < width ? y.at(x.query(z, r), w0 + w) : (S)0;
                });
        }
        product<true, !OF_V>(
            m, o, deep,
            [&](int j, int64_t k) { return j < x.keys ? key.at(j, k) * m->power[C - j] : (S)0; },
            [&](int64_t k, int w) {
                return w0 + w >= width ? (S)0
                       : OF_V          ? x.later[k * f + w0 + w]
                                       : x.later[(w0 + w) * f + k];
            });
        each(o, [&](int j, int w, S v) {
            if (j >= x.keys || w0 + w >= width) return;
            if (!OF_V) v += m->power[C - j] * x.later[(w0 + w) * f + z.e];
            (OF_V ? c.dv : c.dk)[((x.b * z.s + x.at + j) * z.n + x.n) * width + w0 + w] =
                from_float<T>::of(v);
        });
    }
}

/* ---- calls ---- */

/* Of q, k and v, one after the other; chunks of what is asked for. */
static sizes sizes_of(const ll_kcall *c, const ll_tensor *q, bool grad)
{
    const ll_linear_attr *a = (const ll_linear_attr *)c->attr;
    const int64_t *x = q[0].shape.d, *v = q[2].shape.d;
    int64_t end = ll_max64(0, x[1] + a->ahead), places = grad ? ll_max64(end, v[1]) : end;
    return sizes{x[0], x[1], v[1], x[2], x[3], x[4], v[3], a->ahead, ll_ceil_div(places, C), *a};
}

static int64_t state_size(const sizes &z)
{
    return z.b * z.n * z.chunks * z.d * (z.e + 1);
}

static size_t bytes_of(const ll_kcall *c, const sizes &z, int states)
{
    size_t one = c->in[0].dtype == LL_F64 ? sizeof(double) : sizeof(float);
    return (size_t)(states * state_size(z)) * one;
}

static size_t scratch(const ll_kcall *c)
{
    return bytes_of(c, sizes_of(c, c->in, false), 1);
}

static size_t scratch_grad(const ll_kcall *c)
{
    return bytes_of(c, sizes_of(c, c->in + 2, true), 2);
}

static ll_err clear(const ll_kcall *c, const ll_tensor *x)
{
    size_t bytes = ll_tensor_bytes(x->dtype, &x->shape);
    CUDA_TRY(cudaMemsetAsync(x->data, 0, bytes, stream_of(c)));
    return LL_OK;
}

template <bool LATER, class T, class S>
static ll_err make_states(const ll_kcall *c, const call<T, S> &x)
{
    int64_t wide = ll_max64(1, ll_ceil_div(x.z.e, C));
    int64_t blocks = x.z.b * x.z.n * x.z.chunks * ll_ceil_div(x.z.d, C) * wide;
    TRY(launch_shared(c, sum_chunks<LATER, T, S>, (unsigned)blocks, THREADS, sizeof(room<S>), x,
                      wide));
    return launch_each(c, state_size(x.z) / x.z.chunks, add_up<LATER, S>, x.z,
                       LATER ? x.later : x.state);
}

static ll_err run(const ll_kcall *c)
{
    sizes z = sizes_of(c, c->in, false);
    if (z.ahead < 0)
        for (int o = 0; o < 2; o++) TRY(clear(c, &c->out[o])); /* queries before all keys */
    if (!z.b || !z.n || !z.g || !z.chunks) return LL_OK;
    return with_float(c->in[0].dtype, [&](auto v) -> ll_err {
        typedef decltype(v) T;
        typedef typename sum_of<T>::type S;
        call<T, S> x = {z, (const T *)c->in[0].data, (const T *)c->in[1].data,
                        (const T *)c->in[2].data};
        x.o = (T *)c->out[0].data, x.l = (S *)c->out[1].data;
        x.state = x.later = (S *)c->scratch;
        if (z.chunks > 1 && z.d) TRY((make_states<false, T, S>(c, x)));
        return launch_shared(c, query_side<false, T, S>, (unsigned)(z.b * z.n * z.chunks * z.g),
                             THREADS, sizeof(room<S>), x);
    });
}

static ll_err run_grad(const ll_kcall *c)
{
    sizes z = sizes_of(c, c->in + 2, true);
    if (z.ahead < 0) TRY(clear(c, &c->out[0]));
    if (!z.b || !z.n || !z.chunks) return LL_OK;
    return with_float(c->in[0].dtype, [&](auto v) -> ll_err {
        typedef decltype(v) T;
        typedef typename sum_of<T>::type S;
        call<T, S> x = {z,
                        (const T *)c->in[2].data,
                        (const T *)c->in[3].data,
                        (const T *)c->in[4].data,
                        (const T *)c->in[0].data,
                        (const S *)c->in[1].data};
        x.dq = (T *)c->out[0].data, x.dk = (T *)c->out[1].data, x.dv = (T *)c->out[2].data;
        x.state = (S *)c->scratch, x.later = x.state + state_size(z);
        unsigned chunks = (unsigned)(z.b * z.n * z.chunks);
        if (z.d) TRY((make_states<false, T, S>(c, x)));
        if (z.d) TRY((make_states<true, T, S>(c, x)));
        if (z.g)
            TRY(launch_shared(c, query_side<true, T, S>, chunks * (unsigned)z.g, THREADS,
                              sizeof(room<S>), x));
        TRY(launch_shared(c, key_slopes<false, T, S>, chunks, THREADS, sizeof(room<S>), x));
        return launch_shared(c, key_slopes<true, T, S>, chunks, THREADS, sizeof(room<S>), x);
    });
}

/* ---- generation ---- */

/* A block has a head of keys of a sequence, a thread columns of its state. */
template <class T, class S>
static __global__ void step(sizes z, const S *state, const T *q, const T *k, const T *v,
                            const int32_t *at, const int32_t *last, S *next, T *o, S *l)
{
    int64_t bn = blockIdx.x, b = bn / z.n, n = bn % z.n, f = z.e + 1, fresh = last[b] + 1;
    bool begins = fresh > 0 && at[b] == 0;
    S keep = (S)exp(ll_linear_decay(&z.a, n));
    for (int64_t e = threadIdx.x; e < f; e += blockDim.x) {
        S *own = next + bn * z.d * f + e;
        const S *was = state + bn * z.d * f + e;
        for (int64_t d = 0; d < z.d; d++) own[d * f] = begins ? (S)0 : was[d * f];
        for (int64_t i = 0; i < z.t; i++) {
            int64_t key = (b * z.t + i) * z.n + n;
            S value = e < z.e ? to_float(v[key * z.e + e]) : (S)1;
            for (int64_t d = 0; d < z.d && i < fresh; d++)
                own[d * f] = keep * own[d * f] + to_float(k[key * z.d + d]) * value;
            for (int64_t g = 0; g < z.g; g++) {
                S sum = 0;
                for (int64_t d = 0; d < z.d && i < fresh; d++)
                    sum += to_float(q[(key * z.g + g) * z.d + d]) * own[d * f];
                if (e < z.e)
                    o[(key * z.g + g) * z.e + e] = from_float<T>::of(sum);
                else
                    l[(bn * z.g + g) * z.t + i] = sum;
            }
        }
    }
}

static ll_err run_step(const ll_kcall *c)
{
    sizes z = sizes_of(c, c->in + 1, false);
    if (!z.b || !z.n) return LL_OK;
    return with_float(c->in[1].dtype, [&](auto v) -> ll_err {
        typedef decltype(v) T;
        return launch(c, step<T, typename sum_of<T>::type>, (unsigned)(z.b * z.n), 128, z,
                      c->in[0].data, c->in[1].data, c->in[2].data, c->in[3].data, c->in[4].data,
                      c->in[5].data, c->out[0].data, c->out[1].data, c->out[2].data);
    });
}

extern "C" const ll_solver linear_attend_cuda[] = {{NULL, NULL, scratch, run}, {}};
extern "C" const ll_solver linear_attend_grad_cuda[] = {{NULL, NULL, scratch_grad, run_grad}, {}};
extern "C" const ll_solver linear_step_cuda[] = {{NULL, NULL, NULL, run_step}, {}};
