/* norm.cu: batch normalisation and its gradient. Sums over rows are made by blocks of 32 columns in
 * parts, combined in order. */
#include "kern/cuda/gpu.cuh"
#include "kern/rows.h"

extern "C" {
ll_kernel batchnorm_cuda, batchnorm_grad_cuda;
ll_scratch batchnorm_cuda_scratch;
}

enum { LANES = 32, DEEP = 8, FILL = 132 * 4 };

/* Statistics of rows are kept in the type of their tensor; all of a call's floats are one type but
 * for those. */
#define STAT(t) ((t).data), ((t).dtype)

template <class S> __device__ __forceinline__ S stat_at(const void *p, int t, int64_t i)
{
    return t == LL_F32 ? (S)((const float *)p)[i] : (S)load_any(p, t, i);
}

/* ---- sums over rows ---- */

static int parts_for(int64_t rows, int64_t n)
{
    int64_t blocks = ceil_div(n, LANES), want = blocks ? ceil_div(FILL, blocks) : 1;
    int64_t most = ceil_div(rows, DEEP * 4);
    return (int)(want < most ? want : most < 1 ? 1 : most);
}

/* What a row adds to two sums of its column: dy xhat and dy; x and x x; ... */
struct mean_terms {
    template <class T, class S>
    __device__ void add(const T *, const T *x, int64_t r, int64_t n, int64_t j, S &a, S &) const
    {
        a += (S)to_float(x[r * n + j]);
    }
};
struct spread_terms {
    const void *mean;
    int mt;
    template <class T, class S>
    __device__ void add(const T *, const T *x, int64_t r, int64_t n, int64_t j, S &a, S &) const
    {
        S d = (S)to_float(x[r * n + j]) - stat_at<S>(mean, mt, j);
        a += d * d;
    }
};
struct batch_terms { /* columns have mean and variance */
    const void *mean, *var;
    int mt, vt;
    double eps;
    template <class T, class S>
    __device__ void add(const T *dy, const T *x, int64_t r, int64_t n, int64_t j, S &a, S &b) const
    {
        S g = (S)to_float(dy[r * n + j]);
        S rstd = (S)1 / sqrt(stat_at<S>(var, vt, j) + (S)eps);
        a += g * ((S)to_float(x[r * n + j]) - stat_at<S>(mean, mt, j)) * rstd;
        b += g;
    }
};

template <class T, class S, class TERMS>
static __global__ void column_sums(TERMS terms, const T *dy, const T *x, int64_t rows, int64_t n, S *out)
{
    __shared__ S part[2][DEEP][LANES];
    int64_t j = blockIdx.x * (int64_t)LANES + threadIdx.x;
    int64_t from = rows * blockIdx.y / gridDim.y, to = rows * (blockIdx.y + 1) / gridDim.y;
    S a = 0, b = 0;
    if (j < n)
        for (int64_t r = from + threadIdx.y; r < to; r += DEEP) terms.add(dy, x, r, n, j, a, b);
    part[0][threadIdx.y][threadIdx.x] = a;
    part[1][threadIdx.y][threadIdx.x] = b;
    __syncthreads();
    if (threadIdx.y || j >= n) return;
    for (int k = 1; k < DEEP; k++) {
        a += part[0][k][threadIdx.x];
        b += part[1][k][threadIdx.x];
    }
    out[(blockIdx.y * 2 + 0) * n + j] = a;
    out[(blockIdx.y * 2 + 1) * n + j] = b;
}

/* Combines parts, divides by `by`, writes to one or two results. */
template <class S>
static __global__ void gather_sums(const S *parts, int n_part, int64_t n, S by, void *a, int at, void *b,
                            int bt)
{
    GRID_STRIDE(j, n)
    {
        S x = 0, y = 0;
        for (int k = 0; k < n_part; k++) {
            x += parts[(2 * k + 0) * n + j];
            y += parts[(2 * k + 1) * n + j];
        }
        store_any(a, at, j, (double)(x / by));
        if (b) store_any(b, bt, j, (double)(y / by));
    }
}

template <class T, class S, class TERMS>
static ll_err run_sums(const ll_kcall *c, TERMS terms, const void *dy, const void *x, int64_t rows,
                       int64_t n, S *scratch, S by, void *a, int at, void *b, int bt)
{
    if (n == 0) return LL_OK;
    int parts = parts_for(rows, n);
    dim3 grid((unsigned)ceil_div(n, LANES), (unsigned)parts);
    column_sums<T, S, TERMS><<<grid, dim3(LANES, DEEP), 0, stream_of(c)>>>(
        terms, (const T *)dy, (const T *)x, rows, n, scratch);
    CUDA_TRY(cudaGetLastError());
    gather_sums<S><<<blocks_for(n, 128), 128, 0, stream_of(c)>>>(scratch, parts, n, by, a, at, b, bt);
    CUDA_TRY(cudaGetLastError());
    return LL_OK;
}

/* ---- batch norm ---- */

size_t batchnorm_cuda_scratch(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[c->n_in == 3 ? 0 : 1];
    size_t n = (size_t)ll_cols(x);
    return 2 * (size_t)parts_for(ll_rows(x), ll_cols(x)) * n * sizeof(double);
}

template <class T>
static __global__ void scale_columns(const T *x, const void *gain, int gt, const void *bias, int bt,
                              const void *mean, int mt, const void *var, int vt, T *y,
                              int64_t count, int64_t n, double eps)
{
    typedef typename sum_of<T>::type S;
    GRID_STRIDE(i, count)
    {
        int64_t j = i % n;
        S rstd = (S)1 / sqrt(stat_at<S>(var, vt, j) + (S)eps);
        S xhat = ((S)to_float(x[i]) - stat_at<S>(mean, mt, j)) * rstd;
        y[i] = from_float<T>::of(xhat * stat_at<S>(gain, gt, j) + stat_at<S>(bias, bt, j));
    }
}

ll_err batchnorm_cuda(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[0];
    int64_t rows = ll_rows(x), n = ll_cols(x);
    double eps = ((const ll_norm_attr *)c->attr)->eps;
    if (n == 0) return LL_OK;
    return with_float(x->dtype, [&](auto z) -> ll_err {
        typedef decltype(z) T;
        typedef typename sum_of<T>::type S;
        S *parts = (S *)c->scratch;
        const ll_tensor *mean = &c->out[1], *var = &c->out[2];
        TRY((run_sums<T, S>(c, mean_terms{}, NULL, x->data, rows, n, parts, (S)rows, STAT(*mean),
                            NULL, 0)));
        TRY((run_sums<T, S>(c, spread_terms{STAT(*mean)}, NULL, x->data, rows, n, parts, (S)rows,
                            STAT(*var), NULL, 0)));
        if (rows == 0) return LL_OK;
        scale_columns<T><<<blocks_for(rows * n, 256), 256, 0, stream_of(c)>>>(
            (const T *)x->data, STAT(c->in[1]), STAT(c->in[2]), STAT(*mean), STAT(*var),
            (T *)c->out[0].data, rows * n, n, eps);
        CUDA_TRY(cudaGetLastError());
        return LL_OK;
    });
}

template <class T>
static __global__ void batchnorm_dx(const T *dy, const T *x, const void *gain, int gt, const void *mean,
                             int mt, const void *var, int vt, const void *dgain, int dt,
                             const void *dbias, int et, T *dx, int64_t rows, int64_t n, double eps)
{
    typedef typename sum_of<T>::type S;
    GRID_STRIDE(i, rows * n)
    {
        int64_t j = i % n;
        S rstd = (S)1 / sqrt(stat_at<S>(var, vt, j) + (S)eps);
        S xhat = ((S)to_float(x[i]) - stat_at<S>(mean, mt, j)) * rstd;
        S inner = (S)to_float(dy[i]) - stat_at<S>(dbias, et, j) / (S)rows -
                  xhat * stat_at<S>(dgain, dt, j) / (S)rows;
        dx[i] = from_float<T>::of(stat_at<S>(gain, gt, j) * rstd * inner);
    }
}

ll_err batchnorm_grad_cuda(const ll_kcall *c)
{
    const ll_tensor *dy = &c->in[0], *x = &c->in[1];
    int64_t rows = ll_rows(x), n = ll_cols(x);
    double eps = ((const ll_norm_attr *)c->attr)->eps;
    batch_terms t = {c->in[3].data, c->in[4].data, c->in[3].dtype, c->in[4].dtype, eps};
    return with_float(x->dtype, [&](auto z) -> ll_err {
        typedef decltype(z) T;
        typedef typename sum_of<T>::type S;
        TRY((run_sums<T, S>(c, t, dy->data, x->data, rows, n, (S *)c->scratch, (S)1,
                            STAT(c->out[1]), STAT(c->out[2]))));
        if (rows * n == 0) return LL_OK;
        batchnorm_dx<T><<<blocks_for(rows * n, 256), 256, 0, stream_of(c)>>>(
            (const T *)dy->data, (const T *)x->data, STAT(c->in[2]), STAT(c->in[3]),
            STAT(c->in[4]), STAT(c->out[1]), STAT(c->out[2]), (T *)c->out[0].data, rows, n, eps);
        CUDA_TRY(cudaGetLastError());
        return LL_OK;
    });
}
