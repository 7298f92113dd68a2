/* head_dots.cu: dot products of the rows of two tensors [b,t,h,e], as [b,h,t]. Threads take rows in
 * the result's order: by 16 bytes of a row each where a row's pieces are a power of two up to a
 * warp, or a row each. */
#include "kern/cuda/vec.cuh"

typedef struct sizes {
    int64_t b, t, h, e;
} sizes;

static sizes sizes_of(const ll_kcall *c)
{
    const int64_t *d = c->in[0].shape.d;
    return sizes{d[0], d[1], d[2] * d[3], d[4]};
}

/* Where row i of the result begins in the operands. */
__device__ __forceinline__ int64_t row_at(const sizes &s, int64_t i)
{
    int64_t t = i % s.t, h = i / s.t % s.h, b = i / s.t / s.h;
    return ((b * s.t + t) * s.h + h) * s.e;
}

template <class T, class S> static __global__ void dot_rows(sizes s, const T *a, const T *b, S *y)
{
    GRID_STRIDE(i, s.b * s.h * s.t)
    {
        typename sum_of<T>::type sum = 0;
        int64_t at = row_at(s, i);
        for (int64_t e = 0; e < s.e; e++) sum += to_float(a[at + e]) * to_float(b[at + e]);
        y[i] = from_float<S>::of(sum);
    }
}

template <class T>
static __global__ void dot_pieces(sizes s, int pieces, const T *a, const T *b, float *y)
{
    enum { N = wide<T>::N };
    int64_t i = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) / pieces;
    int piece = threadIdx.x % pieces;
    bool in = i < s.b * s.h * s.t;
    float p[N], q[N], sum = 0;
    if (in) {
        int64_t at = row_at(s, i) + piece * N;
        wide<T>::unpack(*(const uint4 *)(a + at), p);
        wide<T>::unpack(*(const uint4 *)(b + at), q);
#pragma unroll
        for (int e = 0; e < N; e++) sum = fmaf(p[e], q[e], sum);
    }
    for (int x = pieces / 2; x > 0; x /= 2) sum += __shfl_xor_sync(~0u, sum, x);
    if (in && piece == 0) y[i] = sum;
}

static int64_t pieces_of(const ll_kcall *c)
{
    return sizes_of(c).e * (int64_t)ll_dtype_bytes(c->in[0].dtype) / 16;
}

static bool pieces_fit(const ll_kcall *c)
{
    int64_t n = pieces_of(c);
    return is_wide(c->in[0].dtype, sizes_of(c).e) && n > 0 && n <= 32 && (n & (n - 1)) == 0 &&
           c->out[0].dtype == LL_F32;
}

static ll_err run_pieces(const ll_kcall *c)
{
    enum { THREADS = 256 };
    sizes s = sizes_of(c);
    int64_t pieces = pieces_of(c), blocks = ll_ceil_div(s.b * s.h * s.t * pieces, THREADS);
    if (blocks == 0) return LL_OK;
    return with_wide(c->in[0].dtype, [&](auto v) -> ll_err {
        return launch(c, dot_pieces<decltype(v)>, blocks, THREADS, s, (int)pieces, c->in[0].data,
                      c->in[1].data, c->out[0].data);
    });
}

static ll_err run(const ll_kcall *c)
{
    sizes s = sizes_of(c);
    return with_floats(c->in[0].dtype, c->out[0].dtype, [&](auto v, auto z) -> ll_err {
        return launch_each(c, s.b * s.h * s.t, dot_rows<decltype(v), decltype(z)>, s, c->in[0].data,
                           c->in[1].data, c->out[0].data);
    });
}

extern "C" const ll_solver head_dots_cuda[] = {
    {"pieces", pieces_fit, NULL, run_pieces}, {"rows", NULL, NULL, run}, {}};
