/* shape.cu: ops that move elements. One kernel does them all: an element of the result finds its
 * source by strides. Dimensions that lie side by side in both are merged first, so that most moves
 * have one to three of them, and the innermost is copied 16 bytes at a time where it can be. */
#include "kern/cuda/gpu.cuh"
#include "kern/moves.h"

enum { FROM = LL_FROM, TO = LL_TO };

template <class T> static __global__ void move(ll_walk w, int64_t n, const T *x, T *y)
{
    GRID_STRIDE(e, n)
    {
        int64_t rest = e, from = 0, to = 0;
#pragma unroll
        for (int i = LL_MAX_DIMS - 1; i >= 0; i--) {
            if (i >= w.n) continue;
            int64_t at = i ? rest % w.size[i] : rest;
            rest /= w.size[i];
            from += at * w.stride[FROM][i];
            to += at * w.stride[TO][i];
        }
        y[to] = x[from];
    }
}

/* Through a tile of shared memory: the result's innermost dim j is not the operand's, i is. */
template <class T>
static __global__ void transpose_tiles(int64_t rows, int64_t cols, int64_t to_row, int64_t from_col,
                                       ll_walk around, const T *x, T *y)
{
    __shared__ T tile[32][33];
    int64_t rest = blockIdx.z, from = 0, to = 0;
    for (int i = around.n - 1; i >= 0; i--) {
        int64_t at = rest % around.size[i];
        rest /= around.size[i];
        from += at * around.stride[FROM][i];
        to += at * around.stride[TO][i];
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
static size_t widen(ll_walk *w, size_t bytes, const void *x, const void *y)
{
    int64_t *to = w->stride[TO], *from = w->stride[FROM];
    for (int last = w->n - 1; bytes < 16; bytes *= 2) {
        if (to[last] != 1 || from[last] != 1 || w->size[last] % 2) break;
        bool even = ((uintptr_t)x | (uintptr_t)y) % (2 * bytes) == 0;
        for (int i = 0; i < last; i++) even &= to[i] % 2 == 0 && from[i] % 2 == 0;
        if (!even) break;
        for (int i = 0; i < last; i++) to[i] /= 2, from[i] /= 2;
        w->size[last] /= 2;
    }
    return bytes;
}

template <class T> static ll_err run_move(const ll_kcall *c, const ll_kernel_move *m)
{
    const ll_walk *w = &m->w;
    int64_t n = 1;
    int inner = -1, last = w->n - 1;
    for (int i = 0; i < w->n; i++) {
        n *= w->size[i];
        if (w->stride[FROM][i] == 1) inner = i;
    }
    if (inner >= 0 && inner != last && w->stride[TO][last] == 1 && w->size[inner] >= 8 &&
        w->size[last] >= 8) {
        ll_walk around = *w;
        int64_t rows = w->size[inner], cols = w->size[last], z = n / rows / cols;
        ll_walk_last(&around, inner);
        around.n -= 2;
        if (z <= 65535 && ll_ceil_div(rows, 32) <= 65535) {
            dim3 grid(ll_ceil_div(cols, 32), ll_ceil_div(rows, 32), z);
            return launch(c, transpose_tiles<T>, grid, dim3(32, 8), rows, cols,
                          w->stride[TO][inner], w->stride[FROM][last], around, m->x, m->y);
        }
    }
    return launch_each(c, n, move<T>, *w, n, m->x, m->y);
}

static ll_err run_walk(const ll_kcall *c, ll_kernel_move m)
{
    for (int i = 0; i < m.w.n; i++)
        if (m.w.size[i] == 0) return LL_OK;
    ll_walk_merge(&m.w);
    return with_word(widen(&m.w, m.bytes, m.x, m.y),
                     [&](auto word) -> ll_err { return run_move<decltype(word)>(c, &m); });
}

/* ---- the ops ---- */

template <class T> static __global__ void fill(T v, int64_t n, T *y)
{
    GRID_STRIDE(i, n) y[i] = v;
}

static ll_err fill_with(const ll_kcall *c, const ll_tensor *y, double value)
{
    return with_word(ll_dtype_bytes(y->dtype), [&](auto v) -> ll_err {
        int64_t n = ll_numel(&y->shape);
        ll_store(&v, y->dtype, 0, value);
        return launch_each(c, n, fill<decltype(v)>, v, n, y->data);
    });
}

static ll_err run_fill(const ll_kcall *c)
{
    return fill_with(c, &c->out[0], ((const ll_fill_attr *)c->attr)->value);
}

static ll_err reshape(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[0], *y = &c->out[0];
    size_t n = ll_tensor_bytes(y->dtype, &y->shape);
    if (n && x->data != y->data)
        CUDA_TRY(cudaMemcpyAsync(y->data, x->data, n, cudaMemcpyDeviceToDevice, stream_of(c)));
    return LL_OK;
}

/* Zeros are filled in before. */
template <int (*moves_of)(const ll_kcall *, ll_kernel_move *)>
static ll_err run_moves(const ll_kcall *c)
{
    ll_kernel_move m[LL_MOVES];
    int n = moves_of(c, m);
    bool zeros = false;
    for (int i = 0; i < n; i++) zeros |= !m[i].x;
    if (zeros) TRY(fill_with(c, &c->out[0], 0));
    for (int i = 0; i < n; i++)
        if (m[i].x) TRY(run_walk(c, m[i]));
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
static __global__ void onehot(const int32_t *x, T *y, int64_t n, int64_t size, int64_t from,
                              int64_t of, int64_t *trouble)
{
    GRID_STRIDE(i, n)
    {
        int64_t row = i / size, at = i % size;
        if (at == 0 && of && (x[row] < 0 || x[row] >= of))
            tell_trouble(trouble, LL_TROUBLE_LABEL, row, x[row]);
        y[i] = from_float<T>::of(x[row] == from + at ? 1.f : 0.f);
    }
}

static ll_err run_onehot(const ll_kcall *c)
{
    const ll_onehot_attr *a = (const ll_onehot_attr *)c->attr;
    const ll_tensor *x = &c->in[0], *y = &c->out[0];
    int64_t n = ll_numel(&y->shape);
    return with_float(y->dtype, [&](auto z) -> ll_err {
        return launch_each(c, n, onehot<decltype(z)>, x->data, y->data, n, a->size, a->from, a->of,
                           c->trouble);
    });
}

extern "C" const ll_solver fill_cuda[] = {{.run = run_fill}, {}},
                           reshape_cuda[] = {{.run = reshape}, {}},
                           transpose_cuda[] = {{.run = run_moves<ll_transpose_moves>}, {}},
                           broadcast_cuda[] = {{.run = run_moves<ll_broadcast_moves>}, {}},
                           slice_cuda[] = {{.run = run_moves<ll_slice_moves>}, {}},
                           pad_cuda[] = {{.run = run_moves<ll_pad_moves>}, {}},
                           concat_cuda[] = {{.run = run_moves<ll_concat_moves>}, {}},
                           causal_mask_cuda[] = {{.run = causal_mask}, {}},
                           onehot_cuda[] = {{.run = run_onehot}, {}};
