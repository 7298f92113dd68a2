/* attention.cu: attention and its gradient without the matrix of scores. A warp takes a row:
 * of queries (forward, dq) or of keys (dk, dv), and walks the others; a lane holds every 32nd
 * element of the rows. Sums of dk and dv are gathered, not scattered, so bits do not depend on
 * timing. These are plain kernels for every type and size; other files have quicker ones of the
 * packed kind. */
#include "kern/cuda/attention.cuh"
#include "kern/heads.h"
#include "kern/notes.h"

enum { PER_LANE = 8, WARPS = 4 }; /* heads of up to 256 */

template <class T, class S> __device__ __forceinline__ void read_row(const T *p, int64_t d, S *out)
{
    for (int i = 0; i < PER_LANE; i++) {
        int64_t e = (threadIdx.x & 31) + 32 * i;
        out[i] = e < d ? (S)to_float(p[e]) : (S)0;
    }
}

template <class T, class S> __device__ __forceinline__ void write_row(T *p, int64_t d, const S *v)
{
    for (int i = 0; i < PER_LANE; i++) {
        int64_t e = (threadIdx.x & 31) + 32 * i;
        if (e < d) p[e] = from_float<T>::of(v[i]);
    }
}

template <class S> __device__ __forceinline__ S dot(const S *a, const S *b)
{
    S s = 0;
    for (int i = 0; i < PER_LANE; i++) s += a[i] * b[i];
    return warp_sum<S>(s);
}

/* Where a query's row is, and a key's (of head of keys n); results lie as operands do. */
struct row_id {
    int64_t b, h, n, t;
    __device__ row_id(const ll_att &p, int64_t id, int64_t rows, int64_t heads)
        : b(id / rows / heads), h(id / rows % heads), n(h * p.n / p.h), t(id % rows)
    {
    }
};
__device__ __forceinline__ int64_t q_at(const ll_att &p, const row_id &r, int64_t t)
{
    return (r.b * p.t + t) * p.q_row + r.h * p.d;
}
__device__ __forceinline__ int64_t k_at(const ll_att &p, const row_id &r, int64_t s)
{
    return (r.b * p.s + s) * p.k_row + r.n * p.d;
}
__device__ __forceinline__ int64_t v_at(const ll_att &p, const row_id &r, int64_t s)
{
    return (r.b * p.s + s) * p.v_row + r.n * p.e;
}
__device__ __forceinline__ int64_t o_at(const ll_att &p, const row_id &r, int64_t t)
{
    return ((r.b * p.t + t) * p.h + r.h) * p.e;
}
template <class L>
__device__ __forceinline__ typename sum_of<L>::type masked(const ll_att &p, const row_id &r,
                                                           int64_t t, int64_t s)
{
    if (!p.mask) return 0;
    int64_t g = r.h % (p.h / p.n);
    return to_float(
        ((const L *)
             p.mask)[r.b * p.by[0] + r.n * p.by[1] + g * p.by[2] + t * p.by[3] + s * p.by[4]]);
}

template <class T, class L> static __global__ void forward(const ll_att p, T *o, L *lse)
{
    typedef typename sum_of<T>::type S;
    int64_t id = blockIdx.x * (int64_t)WARPS + threadIdx.x / 32;
    if (id >= p.b * p.h * p.t) return;
    row_id r(p, id, p.t, p.h);
    S q[PER_LANE], x[PER_LANE], y[PER_LANE] = {}, top = LL_ATTEND_NONE, sum = 0;
    read_row((const T *)p.q + q_at(p, r, r.t), p.d, q);
    for (int64_t j = 0; j < p.s && j <= r.t + p.ahead; j++) {
        read_row((const T *)p.k + k_at(p, r, j), p.d, x);
        S score = dot(q, x) * (S)p.scale + (S)masked<L>(p, r, r.t, j), was = top;
        top = score > top || score != score ? score : top;
        S rescale = sum ? exp(was - top) : (S)0, w = exp(score - top);
        sum = sum * rescale + w;
        read_row((const T *)p.v + v_at(p, r, j), p.e, x);
        for (int i = 0; i < PER_LANE; i++) y[i] = y[i] * rescale + w * x[i];
    }
    for (int i = 0; i < PER_LANE; i++) y[i] = sum ? y[i] / sum : (S)0;
    write_row(o + o_at(p, r, r.t), p.e, y);
    if ((threadIdx.x & 31) == 0) lse[id] = from_float<L>::of(sum ? top + log(sum) : top);
}

/* What the gradient reads and writes besides; o NULL: delta is given. */
template <class T, class L> struct slopes {
    const T *g, *o;
    const L *lse, *delta;
    T *dq, *dk, *dv;
};

/* delta of query t, from its row of do. */
template <class T, class L, class S>
__device__ __forceinline__ S delta_of(const ll_att &p, const slopes<T, L> &f, const row_id &r,
                                      int64_t t, const S *g)
{
    S x[PER_LANE];
    if (!f.o) return (S)to_float(f.delta[(r.b * p.h + r.h) * p.t + t]);
    read_row(f.o + o_at(p, r, t), p.e, x);
    return dot(g, x);
}

template <class T, class L>
static __global__ void grad_queries(const ll_att p, const slopes<T, L> f)
{
    typedef typename sum_of<T>::type S;
    int64_t id = blockIdx.x * (int64_t)WARPS + threadIdx.x / 32;
    if (id >= p.b * p.h * p.t) return;
    row_id r(p, id, p.t, p.h);
    S q[PER_LANE], k[PER_LANE], v[PER_LANE], g[PER_LANE], dq[PER_LANE] = {};
    read_row((const T *)p.q + q_at(p, r, r.t), p.d, q);
    read_row(f.g + o_at(p, r, r.t), p.e, g);
    S delta = delta_of(p, f, r, r.t, g), all = (S)to_float(f.lse[id]);
    for (int64_t j = 0; j < p.s && j <= r.t + p.ahead; j++) {
        read_row((const T *)p.k + k_at(p, r, j), p.d, k);
        read_row((const T *)p.v + v_at(p, r, j), p.e, v);
        S w = exp(dot(q, k) * (S)p.scale + (S)masked<L>(p, r, r.t, j) - all);
        S ds = w * (dot(g, v) - delta) * (S)p.scale;
        for (int i = 0; i < PER_LANE; i++) dq[i] += ds * k[i];
    }
    write_row(f.dq + q_at(p, r, r.t), p.d, dq);
}

/* A row of keys, for all heads that share it. */
template <class T, class L> static __global__ void grad_keys(const ll_att p, const slopes<T, L> f)
{
    typedef typename sum_of<T>::type S;
    int64_t id = blockIdx.x * (int64_t)WARPS + threadIdx.x / 32, group = p.h / p.n;
    if (id >= p.b * p.n * p.s) return;
    row_id r(p, id, p.s, p.n);
    S q[PER_LANE], k[PER_LANE], v[PER_LANE], g[PER_LANE], dk[PER_LANE] = {}, dv[PER_LANE] = {};
    r.n = r.h;
    read_row((const T *)p.k + k_at(p, r, r.t), p.d, k);
    read_row((const T *)p.v + v_at(p, r, r.t), p.e, v);
    int64_t first = r.t > p.ahead ? r.t - p.ahead : 0;
    for (r.h = r.n * group; r.h < (r.n + 1) * group; r.h++)
        for (int64_t j = first; j < p.t; j++) {
            read_row((const T *)p.q + q_at(p, r, j), p.d, q);
            read_row(f.g + o_at(p, r, j), p.e, g);
            S all = (S)to_float(f.lse[(r.b * p.h + r.h) * p.t + j]);
            S w = exp(dot(q, k) * (S)p.scale + (S)masked<L>(p, r, j, r.t) - all);
            S ds = w * (dot(g, v) - delta_of(p, f, r, j, g)) * (S)p.scale;
            for (int i = 0; i < PER_LANE; i++) {
                dk[i] += ds * q[i];
                dv[i] += w * g[i];
            }
        }
    write_row(f.dk + k_at(p, r, r.t), p.d, dk);
    write_row(f.dv + v_at(p, r, r.t), p.e, dv);
}

static ll_err check_width(const ll_att *p)
{
    CHECK(p->d <= 32 * PER_LANE && p->e <= 32 * PER_LANE, LL_E_SHAPE,
          "heads of %lld elements, machine cuda takes up to %d", (long long)ll_max64(p->d, p->e),
          32 * PER_LANE);
    return LL_OK;
}

static ll_err run_forward(const ll_kcall *c, const ll_att &p)
{
    int64_t blocks = ll_ceil_div(p.b * p.h * p.t, WARPS);
    TRY(check_width(&p));
    if (!blocks) return LL_OK;
    return with_floats(c->in[0].dtype, c->out[1].dtype, [&](auto a, auto l) -> ll_err {
        return launch(c, forward<decltype(a), decltype(l)>, blocks, 32 * WARPS, p, c->out[0].data,
                      c->out[1].data);
    });
}

/* o NULL: delta is given; d: dq, dk and dv */
static ll_err run_backward(const ll_kcall *c, const ll_att &p, const ll_tensor *o,
                           const ll_tensor *lse, const ll_tensor *delta, void *const d[3])
{
    int64_t queries = ll_ceil_div(p.b * p.h * p.t, WARPS),
            keys = ll_ceil_div(p.b * p.n * p.s, WARPS);
    TRY(check_width(&p));
    return with_floats(c->in[0].dtype, lse->dtype, [&](auto a, auto l) -> ll_err {
        typedef decltype(a) T;
        typedef decltype(l) L;
        slopes<T, L> f = {(const T *)c->in[0].data,
                          o ? (const T *)o->data : NULL,
                          (const L *)lse->data,
                          delta ? (const L *)delta->data : NULL,
                          (T *)d[0],
                          (T *)d[1],
                          (T *)d[2]};
        if (queries) TRY(launch(c, grad_queries<T, L>, queries, 32 * WARPS, p, f));
        return keys ? launch(c, grad_keys<T, L>, keys, 32 * WARPS, p, f) : LL_OK;
    });
}

static ll_err plain(const ll_kcall *c)
{
    return run_forward(c, ll_att_packed(&c->in[0]));
}

static ll_err plain_grad(const ll_kcall *c)
{
    ll_att p = ll_att_packed(&c->in[1]);
    char *d = (char *)c->out[0].data;
    size_t part = (size_t)(p.h * p.d) * ll_dtype_bytes(c->out[0].dtype);
    void *const parts[] = {d, d + part, d + 2 * part};
    return run_backward(c, p, &c->in[2], &c->in[3], NULL, parts);
}

static ll_err attend_plain(const ll_kcall *c)
{
    return run_forward(c, ll_att_of(c->in, c->n_in > 3 ? &c->in[3] : NULL, c->attr));
}

static ll_err attend_plain_grad(const ll_kcall *c)
{
    void *const parts[] = {c->out[0].data, c->out[1].data, c->out[2].data};
    return run_backward(c, ll_att_of(&c->in[1], c->n_in > 6 ? &c->in[6] : NULL, c->attr), NULL,
                        &c->in[4], &c->in[5], parts);
}

/* ---- the ways ---- */

static bool tiles_fit(const ll_kcall *c)
{
    heads s = heads_of(c);
    return qkv_of(c)->dtype == LL_F32 && lse_of(c)->dtype == LL_F32 && s.b * s.h * s.t > 0 &&
           s.d > 0 && s.d % 4 == 0 && s.d <= 128;
}

static bool tf32_fits(const ll_kcall *c)
{
    return c->tf32 && tiles_fit(c);
}

/* Fits all; a person is told where a quicker way wants other heads. cuDNN's says it itself. */
static bool plain_fits(const ll_kcall *c)
{
    heads s = heads_of(c);
    if (qkv_of(c)->dtype == LL_F32)
        ll_kern_note("attention of %lld heads of %lld in f32: plain kernels, slow: the quick ones "
                     "take heads of 4, 8, 12 ... 128",
                     (long long)s.h, (long long)s.d);
    return true;
}

static size_t tiles_scratch(const ll_kcall *c)
{
    heads s = heads_of(c);
    return (size_t)(s.b * s.h * s.t) * sizeof(float);
}

extern "C" const ll_solver attention_cuda[] = {
    {"cudnn", attention_cuda_dnn_fits, attention_cuda_dnn_scratch, attention_cuda_dnn},
    {"tiles tf32", tf32_fits, NULL, attention_cuda_tf32},
    {"tiles f32", tiles_fit, NULL, attention_cuda_f32},
    {"plain", plain_fits, NULL, plain},
    {}};

extern "C" const ll_solver attention_grad_cuda[] = {
#ifdef LL_HOPPER
    {"sm90", attention_grad_cuda_90_fits, attention_grad_cuda_90_scratch, attention_grad_cuda_90},
#endif
    {"cudnn any order", attention_grad_cuda_any_fits, attention_grad_cuda_any_scratch,
     attention_grad_cuda_any},
    {"cudnn", attention_cuda_dnn_fits, attention_cuda_dnn_scratch, attention_grad_cuda_dnn},
    {"tiles tf32", tf32_fits, tiles_scratch, attention_grad_cuda_tf32},
    {"tiles f32", tiles_fit, tiles_scratch, attention_grad_cuda_f32},
    {"plain", plain_fits, NULL, plain_grad},
    {}};

/* Fits all, and says that it is slow. */
static bool attend_fits(const ll_kcall *)
{
    ll_kern_note(
        "attention of separate queries, keys and values: plain kernels, slow: the quick ones "
        "take bf16, heads of 8, 16 ... 128");
    return true;
}

extern "C" const ll_solver attend_cuda[] = {
    {"cudnn", attend_cuda_dnn_fits, attention_cuda_dnn_scratch, attention_cuda_dnn},
    {"mma", attend_cuda_mma_fits, NULL, attend_cuda_mma},
    {"plain", attend_fits, NULL, attend_plain},
    {}};
extern "C" const ll_solver attend_grad_cuda[] = {
#ifdef LL_HOPPER
    {"sm90", attend_grad_cuda_90_fits, attention_grad_cuda_90_scratch, attention_grad_cuda_90},
#endif
    {"mma", attend_cuda_mma_fits, NULL, attend_grad_cuda_mma},
    {"plain", attend_fits, NULL, attend_plain_grad},
    {}};
