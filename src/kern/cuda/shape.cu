/* shape.cu: ops that move elements. One kernel does them all: an element of the result finds its
 * source by strides. Dimensions that lie side by side in both are merged first, so that most moves
 * have one to three of them, and the innermost is copied 16 bytes at a time where it can be. */
#include "kern/cuda/gpu.cuh"

#include "base/spec.h"

#include <string.h>

typedef struct walk { /* of the result: extents; strides of result and operand, in elements */
    int n;
    int64_t d[LL_MAX_DIMS], to[LL_MAX_DIMS], from[LL_MAX_DIMS];
} walk;

static void strides(const ll_shape *s, int64_t out[LL_MAX_DIMS])
{
    int64_t step = 1;
    for (int i = s->n - 1; i >= 0; i--) {
        out[i] = step;
        step *= s->d[i];
    }
}

/* Drops dimensions of one element and merges neighbours. */
static void merge(walk *w)
{
    int n = 0;
    for (int i = 0; i < w->n; i++) {
        if (w->d[i] == 1) continue;
        if (n && w->to[n - 1] == w->d[i] * w->to[i] && w->from[n - 1] == w->d[i] * w->from[i]) {
            w->d[n - 1] *= w->d[i];
            w->to[n - 1] = w->to[i];
            w->from[n - 1] = w->from[i];
            continue;
        }
        w->d[n] = w->d[i], w->to[n] = w->to[i], w->from[n] = w->from[i];
        n++;
    }
    w->n = n;
}

template <class T> static __global__ void move(walk w, int64_t n, const T *x, T *y)
{
    GRID_STRIDE(e, n)
    {
        int64_t rest = e, from = 0, to = 0;
#pragma unroll
        for (int i = LL_MAX_DIMS - 1; i >= 0; i--) {
            if (i >= w.n) continue;
            int64_t at = i ? rest % w.d[i] : rest;
            rest /= w.d[i];
            from += at * w.from[i];
            to += at * w.to[i];
        }
        y[to] = x[from];
    }
}

/* Through a tile of shared memory: the result's innermost dim j is not the operand's, i is. */
template <class T>
static __global__ void transpose_tiles(int64_t rows, int64_t cols, int64_t to_row, int64_t from_col,
                                       walk around, const T *x, T *y)
{
    __shared__ T tile[32][33];
    int64_t rest = blockIdx.z, from = 0, to = 0;
    for (int i = around.n - 1; i >= 0; i--) {
        int64_t at = rest % around.d[i];
        rest /= around.d[i];
        from += at * around.from[i];
        to += at * around.to[i];
    }
    /* y[r * to_row + c] = x[c * from_col + r] */
    int64_t r0 = blockIdx.y * 32ll, c0 = blockIdx.x * 32ll;
    for (int k = threadIdx.y; k < 32; k += blockDim.y)
        if (c0 + k < cols && r0 + threadIdx.x < rows)
            tile[k][threadIdx.x] = x[from + (c0 + k) * from_col + r0 + threadIdx.x];
    __syncthreads();
    for (int k = threadIdx.y; k < 32; k += blockDim.y)
        if (r0 + k < rows && c0 + threadIdx.x < cols)
            y[to + (r0 + k) * to_row + c0 + threadIdx.x] = tile[threadIdx.x][k];
}

/* Widens elements while every extent and stride allows it. */
static size_t widen(walk *w, size_t bytes, const void *x, const void *y)
{
    while (bytes < 16 && w->n) {
        int last = w->n - 1;
        if (w->to[last] != 1 || w->from[last] != 1 || w->d[last] % 2) break;
        bool even = ((uintptr_t)x | (uintptr_t)y) % (2 * bytes) == 0;
        for (int i = 0; i < last; i++) even &= w->to[i] % 2 == 0 && w->from[i] % 2 == 0;
        if (!even) break;
        for (int i = 0; i < last; i++) w->to[i] /= 2, w->from[i] /= 2;
        w->d[last] /= 2;
        bytes *= 2;
    }
    return bytes;
}

template <class T> static ll_err run_move(const ll_kcall *c, walk w, const void *x, void *y)
{
    int64_t n = 1;
    for (int i = 0; i < w.n; i++) n *= w.d[i];
    int inner = -1;
    for (int i = 0; i < w.n; i++)
        if (w.from[i] == 1) inner = i;
    if (w.n >= 2 && inner >= 0 && inner != w.n - 1 && w.to[w.n - 1] == 1 && w.d[inner] >= 8 &&
        w.d[w.n - 1] >= 8) {
        walk around = {0};
        int64_t z = 1;
        for (int i = 0; i < w.n - 1; i++) {
            if (i == inner) continue;
            around.d[around.n] = w.d[i];
            around.to[around.n] = w.to[i];
            around.from[around.n++] = w.from[i];
            z *= w.d[i];
        }
        int64_t rows = w.d[inner], cols = w.d[w.n - 1];
        if (z <= 65535 && ll_ceil_div(rows, 32) <= 65535) {
            dim3 grid(ll_ceil_div(cols, 32), ll_ceil_div(rows, 32), z);
            return launch(c, transpose_tiles<T>, grid, dim3(32, 8), rows, cols, w.to[inner],
                          w.from[w.n - 1], around, x, y);
        }
    }
    return launch_each(c, n, move<T>, w, n, x, y);
}

static ll_err run_walk(const ll_kcall *c, walk w, size_t bytes, const void *x, void *y)
{
    for (int i = 0; i < w.n; i++)
        if (w.d[i] == 0) return LL_OK;
    merge(&w);
    switch (widen(&w, bytes, x, y)) {
    case 1: return run_move<uint8_t>(c, w, x, y);
    case 2: return run_move<uint16_t>(c, w, x, y);
    case 4: return run_move<uint32_t>(c, w, x, y);
    case 8: return run_move<uint64_t>(c, w, x, y);
    default: return run_move<uint4>(c, w, x, y);
    }
}

static char *at_element(const ll_tensor *t, int64_t e)
{
    return (char *)t->data + (size_t)e * ll_dtype_bytes(t->dtype);
}

/* ---- the ops ---- */

template <class T> static __global__ void fill(T v, int64_t n, T *y)
{
    GRID_STRIDE(i, n) y[i] = v;
}

template <class T> static ll_err fill_as(const ll_kcall *c, const ll_tensor *y, double value)
{
    T v;
    int64_t n = ll_numel(&y->shape);
    ll_store(&v, y->dtype, 0, value);
    return launch_each(c, n, fill<T>, v, n, y->data);
}

static ll_err fill_with(const ll_kcall *c, const ll_tensor *y, double value)
{
    switch (ll_dtype_bytes(y->dtype)) {
    case 1: return fill_as<uint8_t>(c, y, value);
    case 2: return fill_as<uint16_t>(c, y, value);
    case 4: return fill_as<uint32_t>(c, y, value);
    default: return fill_as<uint64_t>(c, y, value);
    }
}

static ll_err run_fill(const ll_kcall *c)
{
    return fill_with(c, &c->out[0], ((const ll_fill_attr *)c->attr)->value);
}

static ll_err reshape(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[0], *y = &c->out[0];
    size_t n = (size_t)ll_numel(&y->shape) * ll_dtype_bytes(y->dtype);
    if (n && x->data != y->data)
        CUDA_TRY(cudaMemcpyAsync(y->data, x->data, n, cudaMemcpyDeviceToDevice, stream_of(c)));
    return LL_OK;
}

static ll_err by_letters(const ll_kcall *c, const char *text)
{
    const ll_tensor *x = &c->in[0], *y = &c->out[0];
    ll_spec s;
    TRY(ll_spec_parse(text, &s));
    walk w = {0};
    int64_t from[LL_MAX_DIMS];
    strides(&x->shape, from);
    w.n = y->shape.n;
    strides(&y->shape, w.to);
    for (int i = 0; i < w.n; i++) {
        w.d[i] = y->shape.d[i];
        w.from[i] = s.from[i] < 0 ? 0 : from[s.from[i]];
    }
    return run_walk(c, w, ll_dtype_bytes(y->dtype), x->data, y->data);
}

static ll_err transpose(const ll_kcall *c)
{
    return by_letters(c, ((const ll_spec_attr *)c->attr)->spec);
}

static ll_err broadcast(const ll_kcall *c)
{
    return by_letters(c, ((const ll_broadcast_attr *)c->attr)->spec);
}

/* part [from, from + extents of part) of dim of whole, to or from a tensor of its own */
static ll_err copy_part(const ll_kcall *c, const ll_tensor *whole, const ll_tensor *part,
                        int64_t dim, int64_t from, bool into_whole)
{
    walk w = {0};
    int64_t a[LL_MAX_DIMS], b[LL_MAX_DIMS];
    strides(&whole->shape, a);
    strides(&part->shape, b);
    w.n = part->shape.n;
    for (int i = 0; i < w.n; i++) {
        w.d[i] = part->shape.d[i];
        w.to[i] = into_whole ? a[i] : b[i];
        w.from[i] = into_whole ? b[i] : a[i];
    }
    char *p = at_element(whole, from * a[dim]), *q = (char *)part->data;
    return run_walk(c, w, ll_dtype_bytes(part->dtype), into_whole ? q : p, into_whole ? p : q);
}

static ll_err slice(const ll_kcall *c)
{
    const ll_range_attr *a = (const ll_range_attr *)c->attr;
    return copy_part(c, &c->in[0], &c->out[0], a->dim, a->from, false);
}

static ll_err pad(const ll_kcall *c)
{
    const ll_range_attr *a = (const ll_range_attr *)c->attr;
    TRY(fill_with(c, &c->out[0], 0));
    return copy_part(c, &c->out[0], &c->in[0], a->dim, a->from, true);
}

static ll_err concat(const ll_kcall *c)
{
    const ll_range_attr *a = (const ll_range_attr *)c->attr;
    int64_t at = 0;
    for (int i = 0; i < c->n_in; i++) {
        TRY(copy_part(c, &c->out[0], &c->in[i], a->dim, at, true));
        at += c->in[i].shape.d[a->dim];
    }
    return LL_OK;
}

/* ---- by position ---- */

template <class T>
static __global__ void mask(const T *x, T *y, int64_t n, int64_t t, int64_t s, int64_t t0,
                            int64_t s0, float value)
{
    GRID_STRIDE(i, n)
    {
        bool hide = i % s + s0 > i / s % t + t0;
        y[i] = hide ? from_float<T>::of(value) : x[i];
    }
}

static ll_err causal_mask(const ll_kcall *c)
{
    const ll_mask_attr *a = (const ll_mask_attr *)c->attr;
    const ll_tensor *x = &c->in[0];
    int64_t n = ll_numel(&x->shape);
    int64_t t = x->shape.d[x->shape.n - 2], s = x->shape.d[x->shape.n - 1];
    return with_float(x->dtype, [&](auto z) -> ll_err {
        return launch_each(c, n, mask<decltype(z)>, x->data, c->out[0].data, n, t, s, a->at[0],
                           a->at[1], a->value);
    });
}

template <class T>
static __global__ void onehot(const void *x, int xt, T *y, int64_t n, int64_t size, int64_t from)
{
    GRID_STRIDE(i, n)
    {
        bool hit = load_any(x, xt, i / size) == (double)(from + i % size);
        y[i] = from_float<T>::of(hit ? 1.f : 0.f);
    }
}

static ll_err run_onehot(const ll_kcall *c)
{
    const ll_onehot_attr *a = (const ll_onehot_attr *)c->attr;
    const ll_tensor *x = &c->in[0], *y = &c->out[0];
    int64_t n = ll_numel(&y->shape);
    return with_float(y->dtype, [&](auto z) -> ll_err {
        return launch_each(c, n, onehot<decltype(z)>, x->data, x->dtype, y->data, n, a->size,
                           a->from);
    });
}

extern "C" const ll_solver fill_cuda[] = {{.run = run_fill}, {}},
                           reshape_cuda[] = {{.run = reshape}, {}},
                           transpose_cuda[] = {{.run = transpose}, {}},
                           broadcast_cuda[] = {{.run = broadcast}, {}},
                           slice_cuda[] = {{.run = slice}, {}}, pad_cuda[] = {{.run = pad}, {}},
                           concat_cuda[] = {{.run = concat}, {}},
                           causal_mask_cuda[] = {{.run = causal_mask}, {}},
                           onehot_cuda[] = {{.run = run_onehot}, {}};
