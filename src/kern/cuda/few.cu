/* few.cu: y = a b of up to 8 rows, where both have the summed loop fastest. A warp makes a column:
 * a lane takes every 32nd 16 bytes of it, AHEAD of them under way at once, for all rows. A row's
 * sums are in the same order whatever stands beside it. */
#include "kern/cuda/few.cuh"

enum { THREADS = 256, MOST = 8, AHEAD = 8 };

template <class T, int V, int M>
static __global__ void __launch_bounds__(THREADS)
    product(const T *a, int64_t a_row, const T *b, int64_t b_column, int64_t k, int rows,
            int64_t columns, ending e)
{
    typedef several<T, V> P;
    int lane = threadIdx.x & 31;
    int64_t j = blockIdx.x * (int64_t)(THREADS / 32) + (threadIdx.x >> 5), n = k / V;
    if (j >= columns) return;
    const P *w = (const P *)(b + j * b_column);
    float sum[M] = {};
    for (int64_t i = lane; i < n; i += 32 * AHEAD) {
        P now[AHEAD];
#pragma unroll
        for (int u = 0; u < AHEAD; u++)
            if (i + 32 * u < n) now[u] = w[i + 32 * u];
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            if (i + 32 * u >= n) break;
#pragma unroll
            for (int m = 0; m < M; m++) {
                if (m >= rows) break;
                P x = ((const P *)(a + m * a_row))[i + 32 * u];
#pragma unroll
                for (int l = 0; l < V; l++) sum[m] += to_float(now[u].v[l]) * to_float(x.v[l]);
            }
        }
    }
#pragma unroll
    for (int m = 0; m < M; m++) {
        float all = warp_sum(sum[m]);
        if (lane == m && m < rows) end(e, m, j, all);
    }
}

/* Sixteen bytes at once, where all rows begin at a multiple of so many. */
static int64_t packed(ll_dtype t)
{
    return 16 / (int64_t)ll_dtype_bytes(t);
}

extern "C" bool ll_few_fits(const ll_kcall *, const few *f)
{
    const matrix *a = &f->a, *b = &f->b, *y = &f->y;
    if (f->in != LL_F32 && f->in != LL_BF16) return false;
    if (f->out != LL_F32 && f->out != LL_BF16) return false;
    int64_t v = packed(f->in);
    return y->rows > 0 && y->rows <= MOST && y->cols > 0 && a->cols > 0 && a->cs == 1 &&
           b->rs == 1 && a->cols % v == 0 && (a->rows == 1 || a->rs % v == 0) &&
           (b->cols == 1 || b->cs % v == 0);
}

template <class T, int V> static ll_err run(const ll_kcall *c, const few *f, const ending &e)
{
    unsigned blocks = (unsigned)ll_ceil_div(f->y.cols, THREADS / 32);
    auto with = [&](auto kernel) -> ll_err {
        return launch(c, kernel, blocks, THREADS, f->a.data, f->a.rs, f->b.data, f->b.cs, f->a.cols,
                      (int)f->y.rows, f->y.cols, e);
    };
    if (f->y.rows == 1) return with(product<T, V, 1>);
    if (f->y.rows == 2) return with(product<T, V, 2>);
    if (f->y.rows <= 4) return with(product<T, V, 4>);
    return with(product<T, V, MOST>);
}

/* A tensor that is a part of another one may begin anywhere: then number by number. */
extern "C" ll_err ll_few_run(const ll_kcall *c, const few *f)
{
    ending e = ending_of(f);
    bool even = ((uintptr_t)f->a.data | (uintptr_t)f->b.data) % 16 == 0;
    if (f->in == LL_F32) return even ? run<float, 4>(c, f, e) : run<float, 1>(c, f, e);
    return even ? run<bf16, 8>(c, f, e) : run<bf16, 1>(c, f, e);
}
