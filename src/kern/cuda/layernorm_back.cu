/* layernorm_back.cu: gradients of norms, rows through shared memory.
 *
 * A block has a multiprocessor, and several groups of warps. A group takes R rows at a time, which
 * TMA has brought while the ones before were worked on: so bytes are under way all the
 * time, however few warps there are. A lane has the same columns of all rows, whose gains and sums
 * over rows stay in registers. What the warps of a group must tell each other about R rows, they do
 * at one barrier. Sums over rows are added up in order: those of a block's groups in shared memory,
 * those of blocks by a second kernel. Rows that are no multiple of 16 bytes, very long ones, and
 * f64, take plain loops. */
#include "kern/cuda/layernorm.cuh"
#include "kern/cuda/staged.cuh"

enum { STAGES = 8, GROUPS = 15, WARPS = 32, SLACK = 5 * 1024 };
enum { MOST_WARPS = 8 };                         /* of a group */
enum { SUM_COLUMNS = 32, DEEP = 8, AHEAD = 17 }; /* where parts are added up */

/* How rows are shared out; k 0: by plain loops. */
typedef struct cut {
    int k, lanes;       /* k 16-byte pieces for each of so many lanes, a group */
    int rows, stages;   /* that a group takes at once; how often that much is there or under way */
    int tensors;        /* that are read */
    int groups, blocks; /* of a block; so many parts of the sums over rows */
    size_t shared;
} cut;

static constexpr int most_threads(int k)
{
    return k <= 2 ? 512 : 256;
}

/* The rows of a group: where it is, and what is under way. */
template <class T, int R> struct walk {
    const norming &a;
    const cut &c;
    int lane, group;
    char *stage;
    uint64_t *full;
    int64_t first, step; /* row, and rows that all groups take at once */
    int at;              /* stage */
    unsigned phase;

    __device__ __forceinline__ walk(const norming &a, const cut &c, char *shared,
                                    uint64_t (*barriers)[STAGES])
        : a(a), c(c), lane(threadIdx.x % c.lanes), group(threadIdx.x / c.lanes), at(0), phase(0)
    {
        stage = shared + group * c.stages * stage_bytes();
        full = barriers[group];
        first = (blockIdx.x * (int64_t)c.groups + group) * R;
        step = (int64_t)gridDim.x * c.groups * R;
        if (threadIdx.x == 0) {
            for (int g = 0; g < c.groups; g++)
                for (int s = 0; s < c.stages; s++) init_barrier(&barriers[g][s], FETCHERS);
            barriers_made();
        }
        __syncthreads();
    }
    __device__ __forceinline__ unsigned row_bytes() const { return (unsigned)(a.n * sizeof(T)); }
    __device__ __forceinline__ int stage_bytes() const
    {
        return (int)(c.tensors * R * row_bytes());
    }
    __device__ __forceinline__ int count() const
    {
        return a.rows - first < R ? (int)(a.rows - first) : R;
    }
    /* Piece k of this lane, of row r of tensor t. */
    __device__ __forceinline__ uint4 *piece(int t, int r, int k) const
    {
        return (uint4 *)(stage + at * stage_bytes() + (t * R + r) * row_bytes()) + lane +
               k * c.lanes;
    }
    /* Rows that are not there are zeros: each lane sees to its pieces. */
    template <int K> __device__ void clear(int count, int pieces) const
    {
        for (int t = 0; t < c.tensors; t++)
            for (int r = count; r < R; r++)
                for (int k = 0; k < K && lane + k * c.lanes < pieces; k++)
                    *piece(t, r, k) = make_uint4(0, 0, 0, 0);
    }
    /* Asks for R rows from r on, of dy, x and skip. */
    __device__ __forceinline__ void ask(int64_t r, int to) const
    {
        if (r >= a.rows) return;
        int64_t rows = a.rows - r < R ? a.rows - r : R, from = r * row_bytes();
        unsigned bytes = (unsigned)rows * row_bytes();
        char *into = stage + to * stage_bytes();
        fetch(into, (const char *)a.dy + from, bytes, &full[to]);
        fetch(into + R * row_bytes(), (const char *)a.x + from, bytes, &full[to]);
        if (c.tensors > 2)
            fetch(into + 2 * R * row_bytes(), (const char *)a.skip + from, bytes, &full[to]);
        expect(&full[to], bytes * (unsigned)c.tensors);
    }
    __device__ __forceinline__ void ask_first(void) const
    {
#pragma unroll 1
        for (int s = 0; s < c.stages; s++) ask(first + s * step, s);
    }
    __device__ __forceinline__ void go_on(void)
    {
        first += step;
        if (++at == c.stages) at = 0, phase ^= 1;
    }
};

/* ---- the gradient ---- */

/* The number that this lane has of the statistics of R rows: means, then reciprocal deviations. */
template <int R> static __device__ __forceinline__ float statistic(const norming &a, int64_t first)
{
    int l = threadIdx.x & 31;
    int64_t r = first + l % R;
    if (r >= a.rows || l >= 2 * R) return 0;
    if (l < R) return a.centre ? ((const float *)a.mean)[r] : 0.f;
    return ((const float *)a.rstd)[r];
}

/* Sums of columns are handed on in the order in which lanes hold them: [M][K][N][lanes], of which
 * [m][k][i][lane] is column (lane + k lanes) N + i. This block's, its groups' in order. */
template <int M, int K, int N>
static __device__ void add_groups(const float (&of)[M][K][N], const cut &c, int group, int lane,
                                  float *shared, float *out)
{
    int all = M * K * N * c.lanes;
    float *mine = shared + group * all + lane;
    __syncthreads(); /* rows lay there */
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int i = 0; i < N; i++) mine[((m * K + k) * N + i) * c.lanes] = of[m][k][i];
    __syncthreads();
    for (int j = threadIdx.x; j < all; j += blockDim.x) {
        float sum = shared[j];
        for (int g = 1; g < c.groups; g++) sum += shared[g * all + j];
        out[j] = sum;
    }
}

/* u = dy gain; dx = rstd (u - mean u - xhat mean(u xhat)) + skip; without a centre, no mean u. xhat
 * is rstd x + off. */
template <int R> struct factors {
    float rstd[R], off[R];
};

/* What this lane's pieces of R rows add to the rows' sums of u and u xhat (v), and to the columns'
 * of dy xhat and dy. */
template <int M, class T, int K, int R>
static __device__ __forceinline__ void add_terms(const walk<T, R> &w, int pieces,
                                                 const factors<R> &f,
                                                 const float (&gain)[K][wide<T>::N],
                                                 float (&v)[2 * R], float (*of)[K][wide<T>::N])
{
    enum { N = wide<T>::N };
#pragma unroll
    for (int k = 0; k < K; k++) {
        if (w.lane + k * w.c.lanes >= pieces) continue;
#pragma unroll
        for (int r = 0; r < R; r++) {
            float d[N], x[N];
            wide<T>::unpack(*w.piece(0, r, k), d);
            wide<T>::unpack(*w.piece(1, r, k), x);
#pragma unroll
            for (int i = 0; i < N; i++) {
                float e = d[i] * fmaf(x[i], f.rstd[r], f.off[r]);
                v[r] = fmaf(d[i], gain[k][i], v[r]);
                v[R + r] = fmaf(e, gain[k][i], v[R + r]);
                if (M >= 2) of[0][k][i] += e, of[1][k][i] += d[i];
            }
        }
    }
}

/* dx of `count` of R rows, from their means, which lanes 0 to 2 R - 1 have; and the columns' sums
 * of it. */
template <int M, class T, int K, int R>
static __device__ __forceinline__ void put_dx(const walk<T, R> &w, int pieces, const factors<R> &f,
                                              const float (&gain)[K][wide<T>::N], float mean,
                                              int count, float (*of)[K][wide<T>::N])
{
    enum { N = wide<T>::N };
    float p[R], q[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
        q[r] = __shfl_sync(~0u, mean, R + r);
        p[r] = -f.off[r] * q[r] - (w.a.centre ? __shfl_sync(~0u, mean, r) : 0.f);
        q[r] *= -f.rstd[r];
    }
#pragma unroll
    for (int k = 0; k < K; k++) {
        int j = w.lane + k * w.c.lanes;
        if (j >= pieces) continue;
#pragma unroll
        for (int r = 0; r < R; r++) {
            float d[N], x[N], s[N] = {};
            wide<T>::unpack(*w.piece(0, r, k), d);
            wide<T>::unpack(*w.piece(1, r, k), x);
            if (w.c.tensors > 2) wide<T>::unpack(*w.piece(2, r, k), s);
#pragma unroll
            for (int i = 0; i < N; i++) {
                s[i] = fmaf(fmaf(d[i], gain[k][i], fmaf(q[r], x[i], p[r])), f.rstd[r], s[i]);
                if (M == 3) of[M - 1][k][i] += s[i];
            }
            if (r < count)
                *(uint4 *)((T *)w.a.dx + (w.first + r) * w.a.n + j * N) = wide<T>::pack(s);
        }
    }
}

/* M: how many sums this block makes of each column: of dy xhat, dy and dx. */
template <class T, int K, int M, int R>
static __global__ void __launch_bounds__(most_threads(K)) norm_back(norming a, cut c, float *parts)
{
    enum { N = wide<T>::N, V = 2 * R };
    extern __shared__ __align__(128) char shared[];
    __shared__ uint64_t barriers[GROUPS][STAGES];
    __shared__ float told[2][WARPS][V];
    walk<T, R> w(a, c, shared, barriers);
    int pieces = (int)a.n / N, l = threadIdx.x & 31, warps = c.lanes / 32, turn = 0;
    float gain[K][N] = {}, of[M ? M : 1][K][N] = {}, by = 1.f / (float)a.n;
    let_next_come();
#pragma unroll
    for (int k = 0; k < K; k++)
        if (w.lane + k * c.lanes < pieces && a.dx)
            load_floats<N>((const float *)a.gain + (w.lane + k * c.lanes) * N, gain[k]);
    if (w.lane < FETCHERS) w.ask_first();
    int before = c.stages; /* the stage before this one; none yet */
    for (float next = statistic<R>(a, w.first); w.first < a.rows; w.go_on(), turn ^= 1) {
        float v[V] = {}, stats = next;
        int count = w.count();
        factors<R> f;
        next = statistic<R>(a, w.first + w.step);
#pragma unroll
        for (int r = 0; r < R; r++) {
            f.rstd[r] = __shfl_sync(~0u, stats, R + r);
            f.off[r] = -f.rstd[r] * __shfl_sync(~0u, stats, r);
        }
        await(&w.full[w.at], w.phase);
        if (count < R) w.template clear<K>(count, pieces);
        add_terms<M, T, K, R>(w, pieces, f, gain, v, of);
        float sum = warp_sums<V>(v);
        if (l % (32 / V) == 0) told[turn][threadIdx.x / 32][l / (32 / V)] = sum;
        meet(1 + w.group, c.lanes);
        if (w.lane < FETCHERS && before < c.stages) /* all are done with the rows before */
            w.ask(w.first + (c.stages - 1) * w.step, before);
        before = w.at;
        if (!a.dx) continue;
        sum = 0;
#pragma unroll
        for (int i = 0; i < MOST_WARPS; i++)
            if (i < warps) sum += told[turn][w.group * warps + i][l % V];
        put_dx<M, T, K, R>(w, pieces, f, gain, sum * by, count, of);
    }
    if constexpr (M > 0)
        add_groups(of, c, w.group, w.lane, (float *)shared,
                   parts + blockIdx.x * (int64_t)(M * K * N * c.lanes));
}

/* ---- sums of all blocks ---- */

/* Adds up the parts [parts][M][K][N][lanes]; of a result that is not wanted nothing is written. So
 * few threads that a block finds room before the gradient's kernel has ended. */
template <class S>
static __global__ void __launch_bounds__(SUM_COLUMNS *DEEP)
    add_parts(const S *parts, int n_part, int64_t n, int m, int k, int each, int lanes, S *dgain,
              S *dbias, S *dsum)
{
    int64_t at = blockIdx.x * (int64_t)SUM_COLUMNS + threadIdx.x, one = (int64_t)k * each * lanes;
    await_kernel();
    S sum = fold_parts<DEEP, AHEAD>(
        at < m * one ? n_part : 0, (S)0, [&](int p) { return parts[p * m * one + at]; },
        [](S a, S b) { return a + b; });
    if (threadIdx.y || at >= m * one) return;
    S *out = at < one ? dgain : at < 2 * one ? dbias : dsum;
    int64_t in_one = at % one, lane = in_one % lanes, i = in_one / lanes % each;
    int64_t j = (lane + in_one / lanes / each * lanes) * each + i;
    if (out && j < n) out[j] = sum;
}

/* ---- how rows are cut ---- */

/* Rows that a group takes at once, of k pieces a lane. */
static constexpr int rows_at_once(int k)
{
    return k == 1 ? 4 : k == 2 ? 2 : 1;
}

/* sums: of columns, so many. */
static cut cut_of(const ll_kcall *call, const norming *a, int sums, bool skip)
{
    cut c = {};
    int processors = processors_of(call);
    int64_t size = (int64_t)ll_dtype_bytes(a->dtype);
    int64_t pieces = is_wide(a->dtype, a->n) ? a->n * size / 16 : 0, blocks;
    if (pieces == 0 || pieces > 1024) { /* blocks of columns share the chip */
        int64_t fill = ll_ceil_div(processors * 8, ll_ceil_div(a->n ? a->n : 1, 32));
        blocks = ll_ceil_div(a->rows, 64) < fill ? ll_ceil_div(a->rows, 64) : fill;
        c.blocks = (int)(blocks < 1 ? 1 : blocks);
        return c;
    }
    c.k = pieces <= 256 ? 1 : pieces <= 512 ? 2 : 4;
    c.rows = rows_at_once(c.k);
    c.lanes = (int)ll_ceil_div(pieces, 32 * c.k) * 32;
    c.tensors = skip ? 3 : 2;
    c.groups = most_threads(c.k) / c.lanes;
    if (c.groups > GROUPS) c.groups = GROUPS;
    size_t stage = (size_t)(c.tensors * c.rows * a->n * size), room = shared_of(call) - SLACK;
    while (c.groups > 1 && 2 * c.groups * stage > room) c.groups--;
    for (c.stages = STAGES; c.stages > 2 && c.stages * c.groups * stage > room;) c.stages--;
    size_t handed = (size_t)(sums * c.k * c.lanes * c.groups) * 64 / (size_t)size;
    c.shared = c.stages * c.groups * stage;
    if (c.shared < handed) c.shared = handed;
    blocks = ll_ceil_div(a->rows, c.rows * c.groups);
    c.blocks = (int)(blocks < 1 ? 1 : blocks < processors ? blocks : processors);
    return c;
}

template <int K> struct pieces {
    enum { k = K, rows = rows_at_once(K) };
};

/* f(pieces<k>{}) */
template <class F> static ll_err with_pieces(int k, F f)
{
    return k == 1 ? f(pieces<1>{}) : k == 2 ? f(pieces<2>{}) : f(pieces<4>{});
}

template <class T, class P, int M>
static ll_err launch_back(const ll_kcall *c, const norming *a, const cut &t)
{
    return launch_shared(c, norm_back<T, P::k, M, P::rows>, t.blocks, t.groups * t.lanes, t.shared,
                         *a, t, c->scratch);
}

static ll_err run_rows(const ll_kcall *c, const norming *a, const cut &t)
{
    return with_wide(a->dtype, [&](auto z) -> ll_err {
        typedef decltype(z) T;
        return with_pieces(t.k, [&](auto p) -> ll_err {
            typedef decltype(p) P;
            if (a->dsum) return launch_back<T, P, 3>(c, a, t);
            return a->dgain ? launch_back<T, P, 2>(c, a, t) : launch_back<T, P, 0>(c, a, t);
        });
    });
}

/* ---- all of it ---- */

/* Elements of one sum of all columns, in parts: whole pieces for each lane. */
static int64_t one_sum(const norming *a, const cut &t)
{
    return t.k ? t.k * t.lanes * (16 / (int64_t)ll_dtype_bytes(a->dtype)) : a->n;
}

extern "C" bool ll_norm_back_fits(const ll_kcall *c, const norming *a)
{
    return cut_of(c, a, 0, false).k > 0;
}

extern "C" size_t ll_norm_back_scratch(const ll_kcall *c, const norming *a, int sums, bool skip)
{
    cut t = cut_of(c, a, sums, skip);
    return (size_t)(sums * t.blocks * one_sum(a, t)) *
           (a->dtype == LL_F64 ? sizeof(double) : sizeof(float));
}

template <class S>
static ll_err launch_add(const ll_kcall *c, const norming *a, const cut &t, int sums)
{
    int each = t.k ? 16 / (int)ll_dtype_bytes(a->dtype) : 1;
    return launch_early(c, add_parts<S>, ll_ceil_div(sums * one_sum(a, t), SUM_COLUMNS),
                        dim3(SUM_COLUMNS, DEEP), c->scratch, t.blocks, a->n, sums, t.k ? t.k : 1,
                        each, t.k ? t.lanes : a->n, a->dgain, a->dbias, a->dsum);
}

extern "C" ll_err ll_norm_back(const ll_kcall *c, const norming *a)
{
    int sums = a->dsum ? 3 : a->dgain ? 2 : 0;
    cut t = cut_of(c, a, sums, a->skip != NULL);
    if (a->n == 0) return LL_OK;
    TRY(t.k ? run_rows(c, a, t) : ll_norm_back_plain(c, a, t.blocks, sums));
    if (!a->dgain) return LL_OK;
    return a->dtype == LL_F64 ? launch_add<double>(c, a, t, sums)
                              : launch_add<float>(c, a, t, sums);
}
