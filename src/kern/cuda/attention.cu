/* attention.cu: causal attention and its gradient without the matrix of scores. A warp takes a row:
 * of queries (forward, dq) or of keys (dk, dv), and walks the others; a lane holds every 32nd
 * element of the rows. Sums of dk and dv are gathered, not scattered, so bits do not depend on
 * timing. These are plain kernels for every type and size; bf16 goes through cuDNN's fused ones
 * where it has them (attention_dnn.cu), f32 through tiles (attention_f32.cu). */
#include "kern/cuda/attention.cuh"

extern "C" {
ll_kernel attention_cuda, attention_grad_cuda;
ll_scratch attention_cuda_scratch, attention_grad_cuda_scratch;
}

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

static heads heads_of(const ll_tensor *qkv)
{
    const int64_t *d = qkv->shape.d;
    return heads{d[0], d[1], d[3], d[4]};
}

static bool is_fused(const ll_kcall *c, bool grad, size_t *bytes)
{
    const ll_tensor *qkv = &c->in[grad ? 1 : 0], *lse = grad ? &c->in[3] : &c->out[1];
    heads s = heads_of(qkv);
    return ll_fused_attention(&s, qkv->dtype, lse->dtype, grad, c->any_order, bytes);
}

static bool is_tiled(const ll_kcall *c, bool grad)
{
    const ll_tensor *qkv = &c->in[grad ? 1 : 0], *lse = grad ? &c->in[3] : &c->out[1];
    heads s = heads_of(qkv);
    return ll_tiled_attention(&s, qkv->dtype, lse->dtype);
}

static bool is_own(const ll_kcall *c)
{
    heads s = heads_of(&c->in[1]);
    return ll_own_attention_grad(&s, c->in[1].dtype, c->in[3].dtype);
}

size_t attention_cuda_scratch(const ll_kcall *c)
{
    size_t bytes;
    return is_fused(c, false, &bytes) ? bytes : 0;
}

size_t attention_grad_cuda_scratch(const ll_kcall *c)
{
    size_t bytes;
    heads s = heads_of(&c->in[1]);
    if (is_own(c)) return ll_own_grad_scratch(&s);
    if (is_fused(c, true, &bytes)) return bytes;
    return is_tiled(c, true) ? ll_tiled_grad_scratch(&s) : 0;
}

static ll_err check_plain(const heads *s)
{
    CHECK(s->d <= 32 * PER_LANE, LL_E_SHAPE, "heads of %lld elements, machine cuda takes up to %d",
          (long long)s->d, 32 * PER_LANE);
    return LL_OK;
}

ll_err attention_cuda(const ll_kcall *c)
{
    const ll_tensor *qkv = &c->in[0];
    heads s = heads_of(qkv);
    size_t bytes;
    int64_t rows = s.b * s.h * s.t;
    if (rows * s.d == 0) return LL_OK;
    if (is_fused(c, false, &bytes)) return ll_fused_forward(c, &s);
    if (is_tiled(c, false)) return ll_tiled_forward(c, &s);
    TRY(check_plain(&s));
    return with_float(qkv->dtype, [&](auto a) -> ll_err {
        typedef decltype(a) T;
        return with_float(c->out[1].dtype, [&](auto l) -> ll_err {
            typedef decltype(l) L;
            forward<T, L><<<(unsigned)ceil_div(rows, WARPS), 32 * WARPS, 0, stream_of(c)>>>(
                rows_of<T>{s}, (const T *)qkv->data, (T *)c->out[0].data, (L *)c->out[1].data);
            CUDA_TRY(cudaGetLastError());
            return LL_OK;
        });
    });
}

ll_err attention_grad_cuda(const ll_kcall *c)
{
    const ll_tensor *qkv = &c->in[1];
    heads s = heads_of(qkv);
    size_t bytes;
    int64_t rows = s.b * s.h * s.t;
    if (rows * s.d == 0) return LL_OK;
    if (is_own(c)) return ll_own_backward(c, &s);
    if (is_fused(c, true, &bytes)) return ll_fused_backward(c, &s);
    if (is_tiled(c, true)) return ll_tiled_backward(c, &s);
    TRY(check_plain(&s));
    return with_float(qkv->dtype, [&](auto a) -> ll_err {
        typedef decltype(a) T;
        return with_float(c->in[3].dtype, [&](auto l) -> ll_err {
            typedef decltype(l) L;
            backward<T, L><<<(unsigned)ceil_div(rows, WARPS), 32 * WARPS, 0, stream_of(c)>>>(
                rows_of<T>{s}, (const T *)c->in[0].data, (const T *)qkv->data,
                (const T *)c->in[2].data, (const L *)c->in[3].data, (T *)c->out[0].data);
            CUDA_TRY(cudaGetLastError());
            return LL_OK;
        });
    });
}
