/* attention.cu: causal attention and its gradient without the matrix of scores. A warp takes a row:
 * of queries (forward, dq) or of keys (dk, dv), and walks the others; a lane holds every 32nd
 * element of the rows. Sums of dk and dv are gathered, not scattered, so bits do not depend on
 * timing. These are plain kernels for every type and size; other files have quicker ones. */
#include "kern/cuda/attention.cuh"
#include "kern/notes.h"

enum { PER_LANE = 8, WARPS = 4 }; /* heads of up to 256 */

template <class T> struct rows_of { /* rows of q, k, v in [b,t,3,h,d], of o in [b,t,h,d] */
    heads s;
    __device__ int64_t qkv(int64_t b, int64_t t, int z, int64_t h) const
    {
        return (((b * s.t + t) * 3 + z) * s.h + h) * s.d;
    }
    __device__ int64_t o(int64_t b, int64_t t, int64_t h) const
    {
        return ((b * s.t + t) * s.h + h) * s.d;
    }
};

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

template <class T, class L>
static __global__ void forward(rows_of<T> at, const T *qkv, T *o, L *lse)
{
    typedef typename sum_of<T>::type S;
    heads s = at.s;
    int64_t id = blockIdx.x * (int64_t)WARPS + threadIdx.x / 32;
    if (id >= s.b * s.h * s.t) return;
    int64_t t = id % s.t, h = id / s.t % s.h, b = id / s.t / s.h;
    S by = (S)1 / sqrt((S)s.d), q[PER_LANE], x[PER_LANE], y[PER_LANE] = {}, top = -INFINITY,
      sum = 0;
    read_row(qkv + at.qkv(b, t, 0, h), s.d, q);
    for (int64_t j = 0; j <= t; j++) {
        read_row(qkv + at.qkv(b, j, 1, h), s.d, x);
        S score = dot(q, x) * by, was = top;
        top = score > top || score != score ? score : top;
        S fade = sum ? exp(was - top) : (S)0, p = exp(score - top);
        sum = sum * fade + p;
        read_row(qkv + at.qkv(b, j, 2, h), s.d, x);
        for (int i = 0; i < PER_LANE; i++) y[i] = y[i] * fade + p * x[i];
    }
    for (int i = 0; i < PER_LANE; i++) y[i] /= sum;
    write_row(o + at.o(b, t, h), s.d, y);
    if ((threadIdx.x & 31) == 0) lse[(b * s.h + h) * s.t + t] = from_float<L>::of(top + log(sum));
}

template <class T, class L>
static __global__ void backward(rows_of<T> at, const T *dout, const T *qkv, const T *o,
                                const L *lse, T *dx)
{
    typedef typename sum_of<T>::type S;
    heads s = at.s;
    int64_t id = blockIdx.x * (int64_t)WARPS + threadIdx.x / 32;
    if (id >= s.b * s.h * s.t) return;
    int64_t t = id % s.t, h = id / s.t % s.h, b = id / s.t / s.h, stat = (b * s.h + h) * s.t;
    S by = (S)1 / sqrt((S)s.d), q[PER_LANE], k[PER_LANE], v[PER_LANE], g[PER_LANE], x[PER_LANE];
    S dq[PER_LANE] = {}, dk[PER_LANE] = {}, dv[PER_LANE] = {};
    read_row(qkv + at.qkv(b, t, 0, h), s.d, q);
    read_row(dout + at.o(b, t, h), s.d, g);
    read_row(o + at.o(b, t, h), s.d, x);
    S inner = dot(g, x), all = (S)to_float(lse[stat + t]);
    for (int64_t j = 0; j <= t; j++) {
        read_row(qkv + at.qkv(b, j, 1, h), s.d, k);
        read_row(qkv + at.qkv(b, j, 2, h), s.d, v);
        S p = exp(dot(q, k) * by - all), ds = p * (dot(g, v) - inner) * by;
        for (int i = 0; i < PER_LANE; i++) dq[i] += ds * k[i];
    }
    read_row(qkv + at.qkv(b, t, 1, h), s.d, k);
    read_row(qkv + at.qkv(b, t, 2, h), s.d, v);
    for (int64_t j = t; j < s.t; j++) {
        read_row(qkv + at.qkv(b, j, 0, h), s.d, q);
        read_row(dout + at.o(b, j, h), s.d, g);
        read_row(o + at.o(b, j, h), s.d, x);
        S p = exp(dot(q, k) * by - (S)to_float(lse[stat + j]));
        S ds = p * (dot(g, v) - dot(g, x)) * by;
        for (int i = 0; i < PER_LANE; i++) {
            dk[i] += ds * q[i];
            dv[i] += p * g[i];
        }
    }
    write_row(dx + at.qkv(b, t, 0, h), s.d, dq);
    write_row(dx + at.qkv(b, t, 1, h), s.d, dk);
    write_row(dx + at.qkv(b, t, 2, h), s.d, dv);
}

static ll_err plain(const ll_kcall *c)
{
    heads s = heads_of(c);
    int64_t blocks = ll_ceil_div(s.b * s.h * s.t, WARPS);
    if (blocks * s.d == 0) return LL_OK;
    CHECK(s.d <= 32 * PER_LANE, LL_E_SHAPE, "heads of %lld elements, machine cuda takes up to %d",
          (long long)s.d, 32 * PER_LANE);
    return with_floats(qkv_of(c)->dtype, lse_of(c)->dtype, [&](auto a, auto l) -> ll_err {
        typedef decltype(a) T;
        typedef decltype(l) L;
        if (c->n_in == 1)
            return launch(c, forward<T, L>, blocks, 32 * WARPS, rows_of<T>{s}, c->in[0].data,
                          c->out[0].data, c->out[1].data);
        return launch(c, backward<T, L>, blocks, 32 * WARPS, rows_of<T>{s}, c->in[0].data,
                      c->in[1].data, c->in[2].data, c->in[3].data, c->out[0].data);
    });
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
    {"plain", plain_fits, NULL, plain},
    {}};
