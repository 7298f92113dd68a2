/* recur.cu: step by step, one product of the state with the weight and a thread for each number of
 * the state. h lies in a matrix of its own, as products want it, beside where results have it. */
#include "kern/cells.h"
#include "kern/cuda/gemm.cuh"

template <class T> struct job {
    int64_t cell, b, t, h, now;
    ll_cell_kind k;
    const T *x, *s0;
    T *s, *z, *hold; /* forward: what h gives to the gates; h [b,h] */
    const T *ds;
    T *dx, *d, *dh, *dz; /* backward: what flows through the weight; its gates [b,r] */
};

template <class T> __device__ __forceinline__ const T *state(const job<T> &v, int64_t b, int64_t t)
{
    int64_t n = v.k.states * v.h;
    return t < 0 ? v.s0 + b * n : v.s + (b * v.t + t) * n;
}

template <class T> static __global__ void first(job<T> v)
{
    GRID_STRIDE(e, v.b * v.h) v.hold[e] = v.s0[e / v.h * v.k.states * v.h + e % v.h];
}

template <class T> static __global__ void forward(job<T> v)
{
    int64_t h = v.h;
    GRID_STRIDE(e, v.b * h)
    {
        int64_t b = e / h, j = e % h, at = b * v.t + v.now;
        const T *x = v.x + at * v.k.gates * h + j, *z = v.z + b * v.k.from_h * h + j;
        const T *was = state(v, b, v.now - 1) + j;
        T *is = v.s + at * v.k.states * h + j;
        ll_cell_step(v.cell, x, z, was, is, h);
        v.hold[e] = is[0];
    }
}

/* now < 0: what flows through the weight is added to the first state's gradient, no more. */
template <class T> static __global__ void backward(job<T> v)
{
    int64_t h = v.h;
    GRID_STRIDE(e, v.b * h)
    {
        int64_t b = e / h, j = e % h, at = b * v.t + v.now;
        T *d = v.d + b * v.k.states * h + j, dh = v.now < v.t - 1 ? v.dh[e] : (T)0;
        if (v.now < v.t - 1) dh += d[0];
        if (v.now < 0) {
            d[0] = dh;
            continue;
        }
        const T *x = v.x + at * v.k.gates * h + j, *ds = v.ds + at * v.k.states * h + j;
        const T *was = state(v, b, v.now - 1) + j, *is = state(v, b, v.now) + j;
        T *dx = v.dx + at * v.k.gates * h + j, dz[LL_CELL_GATES] = {}, dc = 0;
        if (v.k.states > 1) dc = (v.now < v.t - 1 ? d[h] : (T)0) + ds[h];
        ll_cell_slopes(v.cell, x, was, is, h, dh + ds[0], dc, d, dz, 1);
#pragma unroll
        for (int k = 0; k < LL_CELL_GATES; k++) {
            if (k < v.k.gates) dx[k * h] = dz[k];
            if (k < v.k.from_h) v.dz[b * v.k.from_h * h + k * h + j] = dz[k];
        }
    }
}

/* ---- calls ---- */

template <class T>
static job<T> job_of(const ll_kcall *c, const ll_tensor *x, const ll_tensor *w, const ll_tensor *s0)
{
    job<T> v = {};
    v.cell = ((const ll_recur_attr *)c->attr)->cell;
    v.b = x->shape.d[0], v.t = x->shape.d[1], v.h = w->shape.d[1];
    v.k = ll_cell_kinds[v.cell];
    v.x = (const T *)x->data, v.s0 = (const T *)s0->data;
    return v;
}

static ll_err product(const ll_kcall *c, const char *spec, ll_tensor a, ll_tensor b, ll_tensor y,
                      void *scratch)
{
    ll_kcall k = *c;
    ll_tensor in[2] = {a, b};
    k.in = in, k.out = &y, k.n_in = 2, k.n_out = 1, k.scratch = scratch;
    return ll_blas_product(&k, spec);
}

static ll_tensor matrix_of(const ll_kcall *c, void *data, int64_t rows, int64_t cols)
{
    return ll_tensor{data, c->out[0].dtype, {2, {rows, cols}}};
}

/* [b,h] and [b,r], and the library's. */
static size_t bytes_of(int64_t n, const ll_kcall *c)
{
    return (size_t)ll_round_up(n * (int64_t)ll_dtype_bytes(c->out[0].dtype), 256);
}

static size_t scratch_of(const ll_kcall *c, const ll_tensor *w, int64_t b)
{
    return bytes_of(b * w->shape.d[1], c) + bytes_of(b * w->shape.d[0], c) + GEMM_WORKSPACE +
           2 * LL_WORKSPACE_SLACK;
}

static size_t scratch(const ll_kcall *c)
{
    return scratch_of(c, &c->in[1], c->in[0].shape.d[0]);
}

static size_t scratch_grad(const ll_kcall *c)
{
    return scratch_of(c, &c->in[2], c->in[0].shape.d[0]);
}

/* f32, and f64 of tests; precision leaves all of it wide. */
template <class F> static ll_err with_wide_float(const ll_kcall *c, F f)
{
    if (c->out[0].dtype == LL_F64) return f(double{});
    CHECK(c->out[0].dtype == LL_F32, LL_E_GRAPH, "machine cuda has no recur of %s",
          ll_dtype_name(c->out[0].dtype));
    return f(float{});
}

static ll_err run(const ll_kcall *c)
{
    return with_wide_float(c, [&](auto zero) -> ll_err {
        typedef decltype(zero) T;
        job<T> v = job_of<T>(c, &c->in[0], &c->in[1], &c->in[2]);
        int64_t r = v.k.from_h * v.h, n = v.b * v.h;
        char *room = (char *)workspace_of(c);
        v.s = (T *)c->out[0].data, v.hold = (T *)room;
        v.z = (T *)(room + bytes_of(n, c));
        if (!n) return LL_OK;
        TRY(launch_each(c, n, first<T>, v));
        for (; v.now < v.t; v.now++) {
            TRY(product(c, "bh,rh->br", matrix_of(c, v.hold, v.b, v.h), c->in[1],
                        matrix_of(c, v.z, v.b, r), room + bytes_of(n, c) + bytes_of(v.b * r, c)));
            TRY(launch_each(c, n, forward<T>, v));
        }
        return LL_OK;
    });
}

static ll_err run_grad(const ll_kcall *c)
{
    return with_wide_float(c, [&](auto zero) -> ll_err {
        typedef decltype(zero) T;
        job<T> v = job_of<T>(c, &c->in[1], &c->in[2], &c->in[4]);
        int64_t r = v.k.from_h * v.h, n = v.b * v.h;
        char *room = (char *)workspace_of(c);
        v.ds = (const T *)c->in[0].data, v.s = (T *)c->in[3].data;
        v.dx = (T *)c->out[0].data, v.d = (T *)c->out[1].data;
        v.dh = (T *)room, v.dz = (T *)(room + bytes_of(n, c));
        if (!n) return LL_OK;
        for (v.now = v.t - 1; v.now >= 0; v.now--) {
            TRY(launch_each(c, n, backward<T>, v));
            TRY(product(c, "br,rh->bh", matrix_of(c, v.dz, v.b, r), c->in[2],
                        matrix_of(c, v.dh, v.b, v.h),
                        room + bytes_of(n, c) + bytes_of(v.b * r, c)));
        }
        return launch_each(c, n, backward<T>, v);
    });
}

extern "C" const ll_solver recur_cuda[] = {{.scratch = scratch, .run = run}, {}},
                           recur_grad_cuda[] = {{.scratch = scratch_grad, .run = run_grad}, {}};
