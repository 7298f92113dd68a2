/* conv2d_tap.cu: see conv2d_tap.cuh. With a stride the pixels that count are copied to scratch, or
 * from there. */
#include "kern/cuda/conv2d_tap.cuh"

#include "kern/cuda/gemm.cuh"

/* few: the pixels that count. */
template <class V> static __global__ void pick(tap t, int64_t packs, const V *x, V *few)
{
    GRID_STRIDE(e, t.n * t.y[0] * t.y[1] * packs)
    {
        int64_t pixel = e / packs, j = pixel % t.y[1], i = pixel / t.y[1] % t.y[0];
        int64_t from = (pixel / t.y[1] / t.y[0] * t.x[0] + i * t.stride[0]) * t.x[1];
        few[e] = x[(from + j * t.stride[1]) * packs + e % packs];
    }
}

/* The other way: all else is 0. */
template <class V> static __global__ void place(tap t, int64_t packs, const V *few, V *x)
{
    GRID_STRIDE(e, t.n * t.x[0] * t.x[1] * packs)
    {
        int64_t pixel = e / packs, j = pixel % t.x[1], i = pixel / t.x[1] % t.x[0];
        int64_t from = (pixel / t.x[1] / t.x[0] * t.y[0] + i / t.stride[0]) * t.y[1];
        bool counts = i % t.stride[0] == 0 && j % t.stride[1] == 0;
        x[e] = counts ? few[(from + j / t.stride[1]) * packs + e % packs] : V{};
    }
}

template <class V>
static ll_err move(const ll_kcall *c, const tap *t, bool back, void *x, void *few)
{
    int64_t packs = t->channels * (int64_t)sizeof(float) / (int64_t)sizeof(V);
    const int64_t *size = back ? t->x : t->y, n = t->n * size[0] * size[1] * packs;
    return back ? launch_each(c, n, place<V>, *t, packs, few, x)
                : launch_each(c, n, pick<V>, *t, packs, x, few);
}

static ll_err move_any(const ll_kcall *c, const tap *t, bool back, void *x, void *few)
{
    return t->channels % 4 ? move<float>(c, t, back, x, few) : move<float4>(c, t, back, x, few);
}

static bool skips(const tap *t)
{
    return t->x[0] != t->y[0] || t->x[1] != t->y[1];
}

extern "C" size_t ll_conv_tap_scratch(const tap *t)
{
    size_t few = (size_t)(t->n * t->y[0] * t->y[1] * t->channels) * sizeof(float);
    return GEMM_WORKSPACE + LL_WORKSPACE_SLACK + (skips(t) ? few : 0);
}

/* As cuBLASLt sees them, columns first: x [c, pixels], w [c, f], y [f, pixels]. */
extern "C" ll_err ll_conv_tap(const ll_kcall *c, enum which which, const tap *t, void *x, void *w,
                              void *y)
{
    void *few = skips(t) ? (char *)workspace_of(c) + GEMM_WORKSPACE : x;
    int64_t pixels = t->n * t->y[0] * t->y[1], in = t->channels, out = t->filters;
    matrix mx = {few, in, pixels, 1, in, 0}, mw = {w, in, out, 1, in, 0};
    matrix my = {y, out, pixels, 1, out, 0};
    bool none = false;
    gemm g = {};
    g.a = which == FORWARD ? ll_blas_transposed(&mw) : which == IMAGE ? mw : mx;
    g.b = which == FORWARD ? mx : which == IMAGE ? my : ll_blas_transposed(&my);
    g.y = which == FORWARD ? my : which == IMAGE ? mx : mw;
    g.batches = 1;
    g.a_type = g.b_type = g.y_type = LL_F32;
    g.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    if (few != x && which != IMAGE) TRY(move_any(c, t, false, x, few));
    TRY(ll_blas_run(c, &g, &none));
    CHECK(!none, LL_E_DEVICE, "cuBLASLt has no algorithm for f32, %lld by %lld by %lld",
          (long long)pixels, (long long)in, (long long)out);
    return few != x && which == IMAGE ? move_any(c, t, true, x, few) : LL_OK;
}
