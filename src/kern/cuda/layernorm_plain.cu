/* layernorm_plain.cu: norms and their gradients by plain loops, any size and element type: a block
 * for each row, which is read again from the cache; blocks of 32 columns for sums over rows. */
#include "kern/cuda/layernorm.cuh"

enum { LANES = 32, DEEP = 16 };

static int row_threads(int64_t n)
{
    return n <= 128 ? 32 : n <= 1024 ? 128 : 256;
}

template <class T> static __global__ void norm_rows_plain(norming a)
{
    typedef typename sum_of<T>::type S;
    int64_t n = a.n, at = blockIdx.x * n;
    const T *row = (const T *)a.x + at;
    float by = a.q ? 1 / eight_scale(a) : 1;
    if (blockIdx.x >= a.rows) return;
    if (a.plus) { /* the sum may lie on what is added: each thread reads only what it wrote */
        T *sum = (T *)a.sum + at;
        for (int64_t j = threadIdx.x; j < n; j += blockDim.x) {
            S v = (S)to_float(row[j]) + (S)to_float(((const T *)a.plus)[at + j]);
            if (a.before) v += ((const S *)a.before)[j];
            sum[j] = from_float<T>::of(v);
        }
        row = sum;
    }
    S mean = 0, square = 0;
    if (a.centre) {
        for (int64_t j = threadIdx.x; j < n; j += blockDim.x) mean += (S)to_float(row[j]);
        mean = block_sum<S>(mean) / (S)n;
    }
    for (int64_t j = threadIdx.x; j < n; j += blockDim.x) {
        S d = (S)to_float(row[j]) - mean;
        square += d * d;
    }
    S rstd = (S)1 / sqrt(block_sum<S>(square) / (S)n + (S)a.eps);
    for (int64_t j = threadIdx.x; j < n; j += blockDim.x) {
        S v = ((S)to_float(row[j]) - mean) * rstd * ((const S *)a.gain)[j];
        if (a.bias) v += ((const S *)a.bias)[j];
        if (a.y) ((T *)a.y)[at + j] = from_float<T>::of(v);
        if (!a.q) continue;
        uint8_t e = __nv_cvt_float_to_fp8((float)v * by, __NV_SATFINITE, __NV_E4M3);
        a.q[at + j] = a.t[j * a.rows + blockIdx.x] = e;
    }
    if (threadIdx.x) return;
    if (a.mean_out) ((S *)a.mean_out)[blockIdx.x] = mean;
    ((S *)a.rstd_out)[blockIdx.x] = rstd;
}

template <class T> static __global__ void norm_dx_plain(norming a)
{
    typedef typename sum_of<T>::type S;
    int64_t n = a.n, at = blockIdx.x * n;
    const T *dy = (const T *)a.dy + at, *x = (const T *)a.x + at;
    const S *gain = (const S *)a.gain;
    S mean = a.centre ? ((const S *)a.mean)[blockIdx.x] : (S)0;
    S rstd = ((const S *)a.rstd)[blockIdx.x], p = 0, q = 0;
    for (int64_t j = threadIdx.x; j < n; j += blockDim.x) {
        S u = (S)to_float(dy[j]) * gain[j];
        p += u;
        q += u * ((S)to_float(x[j]) - mean) * rstd;
    }
    p = a.centre ? block_sum<S>(p) / (S)n : (S)0;
    q = block_sum<S>(q) / (S)n;
    for (int64_t j = threadIdx.x; j < n; j += blockDim.x) {
        S xhat = ((S)to_float(x[j]) - mean) * rstd;
        S v = rstd * ((S)to_float(dy[j]) * gain[j] - p - xhat * q);
        if (a.skip) v += (S)to_float(((const T *)a.skip)[at + j]);
        ((T *)a.dx)[at + j] = from_float<T>::of(v);
    }
}

/* What a row adds to the sums of its column: dy xhat and dy; or dx. */
template <class T, bool DX>
static __global__ void norm_sums_plain(norming a, typename sum_of<T>::type *parts, int sums)
{
    typedef typename sum_of<T>::type S;
    __shared__ S part[2][DEEP][LANES];
    int64_t n = a.n, j = blockIdx.x * (int64_t)LANES + threadIdx.x;
    int64_t from = a.rows * blockIdx.y / gridDim.y, to = a.rows * (blockIdx.y + 1) / gridDim.y;
    S p = 0, q = 0;
    for (int64_t r = from + threadIdx.y; j < n && r < to; r += DEEP) {
        if (DX) {
            p += (S)to_float(((const T *)a.dx)[r * n + j]);
            continue;
        }
        S mean = a.centre ? ((const S *)a.mean)[r] : (S)0;
        S d = (S)to_float(((const T *)a.dy)[r * n + j]);
        p += d * ((S)to_float(((const T *)a.x)[r * n + j]) - mean) * ((const S *)a.rstd)[r];
        q += d;
    }
    part[0][threadIdx.y][threadIdx.x] = p;
    part[1][threadIdx.y][threadIdx.x] = q;
    __syncthreads();
    if (threadIdx.y || j >= n) return;
    for (int k = 1; k < DEEP; k++) {
        p += part[0][k][threadIdx.x];
        q += part[1][k][threadIdx.x];
    }
    S *out = parts + blockIdx.y * sums * n + j;
    out[DX ? 2 * n : 0] = p;
    if (!DX) out[n] = q;
}

extern "C" ll_err ll_norm_plain(const ll_kcall *c, const norming *a)
{
    return with_float(a->dtype, [&](auto z) -> ll_err {
        return launch(c, norm_rows_plain<decltype(z)>, ll_max64(a->rows, 1), row_threads(a->n), *a);
    });
}

extern "C" ll_err ll_norm_back_plain(const ll_kcall *c, const norming *a, int blocks, int sums)
{
    return with_float(a->dtype, [&](auto z) -> ll_err {
        typedef decltype(z) T;
        dim3 grid(ll_ceil_div(a->n, LANES), blocks), deep(LANES, DEEP);
        if (a->dgain) TRY(launch(c, norm_sums_plain<T, false>, grid, deep, *a, c->scratch, sums));
        if (a->dx && a->rows) TRY(launch(c, norm_dx_plain<T>, a->rows, row_threads(a->n), *a));
        return a->dsum ? launch(c, norm_sums_plain<T, true>, grid, deep, *a, c->scratch, sums)
                       : LL_OK;
    });
}
