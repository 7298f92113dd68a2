/* matmul.cu: products through cuBLASLt (gemm.cu). A product's loops are folded into strided matrix
 * products (kern/einsum.h); cuBLASLt wants one unit stride in each matrix, and what has none goes
 * through a plain kernel of our own. The longest loop around becomes its batch.
 *
 * cuBLASLt counts columns first. A row-major C is given as its transpose: C' = B' A'. */
#include "kern/cuda/few.cuh"

#include "kern/einsum.h"

/* ---- what has no unit stride, and types that cuBLASLt does not mix ---- */

template <class T, class Y>
static __global__ void plain(matrix a, matrix b, matrix c, Y *y, int64_t k, int64_t batches,
                             bool add)
{
    typedef typename sum_of<T>::type S;
    typedef typename sum_to<T, Y>::type A;
    int64_t n = c.rows * c.cols * batches;
    GRID_STRIDE(e, n)
    {
        int64_t j = e % c.cols, i = e / c.cols % c.rows, z = e / c.cols / c.rows;
        const T *p = (const T *)a.data + z * a.batch + i * a.rs;
        const T *q = (const T *)b.data + z * b.batch + j * b.cs;
        Y *to = y + z * c.batch + i * c.rs + j * c.cs;
        A sum = add ? (A)to_float(*to) : (A)0;
        for (int64_t l = 0; l < k; l++)
            sum += (A)((S)to_float(p[l * a.cs]) * (S)to_float(q[l * b.rs]));
        *to = from_float<Y>::of(sum);
    }
}

static ll_err run_plain(const ll_kcall *c, matrix a, matrix b, matrix y, ll_dtype type,
                        int64_t batches, bool add)
{
    return with_products(c->in[0].dtype, type, [&](auto s, auto t) -> ll_err {
        return launch_each(c, y.rows * y.cols * batches, plain<decltype(s), decltype(t)>, a, b, y,
                           (decltype(t) *)y.data, a.cols, batches, add);
    });
}

static ll_err run_blas(const ll_kcall *c, matrix a, matrix b, matrix y, ll_dtype type,
                       int64_t batches, bool add)
{
    bool transpose = y.rs != 1 && y.rows > 1, none;
    gemm g = {};
    g.a = transpose ? ll_blas_transposed(&b) : a;
    g.b = transpose ? ll_blas_transposed(&a) : b;
    g.y = transpose ? ll_blas_transposed(&y) : y;
    g.batches = batches;
    g.a_type = g.b_type = c->in[0].dtype;
    g.y_type = type;
    g.add = add ? y.data : NULL;
    g.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    TRY(ll_blas_run(c, &g, &none));
    return none ? run_plain(c, a, b, y, type, batches, add) : LL_OK;
}

/* ---- whole numbers: sums that f64 holds, one after the other, are added up in 64 bits ---- */

static __global__ void fold(const double *from, matrix c, int64_t *y, int64_t n, bool add)
{
    GRID_STRIDE(e, n)
    {
        int64_t j = e % c.cols, i = e / c.cols % c.rows, z = e / c.cols / c.rows;
        int64_t *to = y + z * c.batch + i * c.rs + j * c.cs;
        *to = (add ? *to : 0) + (int64_t)from[e];
    }
}

/* The sums are in scratch, beyond what cuBLASLt has of it. */
static ll_err run_whole(const ll_kcall *c, matrix a, matrix b, matrix y, int64_t batches, bool add)
{
    int64_t terms = ll_whole_terms(((const ll_matmul_attr *)c->attr)->bits), k = a.cols;
    int64_t n = y.rows * y.cols * batches;
    double *sums = (double *)((char *)workspace_of(c) + GEMM_WORKSPACE);
    matrix part = {sums, y.rows, y.cols, y.cols, 1, y.rows * y.cols};
    for (int64_t l = 0; l < k; l += terms) {
        matrix pa = a, pb = b;
        pa.data = (const double *)a.data + l * a.cs;
        pb.data = (const double *)b.data + l * b.rs;
        pa.cols = pb.rows = ll_min64(terms, k - l);
        TRY(run_blas(c, pa, pb, part, LL_F64, batches, false));
        TRY(launch_each(c, n, fold, sums, y, (int64_t *)y.data, n, add || l));
    }
    return LL_OK;
}

static ll_err one(const ll_kcall *c, matrix a, matrix b, matrix y, int64_t batches, bool add)
{
    ll_dtype type = c->out[0].dtype;
    if (y.rows * y.cols * batches == 0) return LL_OK;
    bool blas = ll_blas_fits(&a) && ll_blas_fits(&b) && ll_blas_fits(&y) && a.cols > 0 &&
                batches < INT32_MAX;
    if (!blas) return run_plain(c, a, b, y, type, batches, add);
    if (type == LL_I64) return run_whole(c, a, b, y, batches, add);
    return run_blas(c, a, b, y, type, batches, add);
}

ll_err ll_blas_product(const ll_kcall *c, const char *spec)
{
    const ll_tensor *a = &c->in[0], *b = &c->in[1], *y = &c->out[0];
    ll_einsum_plan p;
    ll_einsum_fold(spec, &a->shape, &b->shape, &y->shape, &p);
    ll_einsum_loop batch = {1, {0, 0, 0}, {false, false, false}};
    int longest = -1;
    for (int i = 0; i < p.n_around; i++)
        if (longest < 0 || p.around[i].extent > p.around[longest].extent) longest = i;
    if (longest >= 0) {
        batch = p.around[longest];
        p.around[longest] = p.around[--p.n_around];
    }
    matrix ma = {a->data,         p.row.extent,    p.sum.extent,
                 p.row.stride[0], p.sum.stride[0], batch.stride[0]};
    matrix mb = {b->data,         p.sum.extent,       p.column.extent,
                 p.sum.stride[1], p.column.stride[1], batch.stride[1]};
    matrix my = {y->data,         p.row.extent,       p.column.extent,
                 p.row.stride[2], p.column.stride[2], batch.stride[2]};
    int64_t n = ll_einsum_points(p.around, p.n_around), sums = ll_einsum_points(p.sums, p.n_sums);
    size_t in = ll_dtype_bytes(a->dtype), out = ll_dtype_bytes(y->dtype);
    for (int64_t i = 0; i < n; i++) {
        int64_t off[3], more[3] = {0, 0, 0};
        ll_einsum_offsets(p.around, p.n_around, i, off);
        for (int64_t s = 0; s < sums || s == 0; s++) {
            matrix pa = ma, pb = mb, py = my;
            if (sums == 0) pa.cols = 0; /* a sum of nothing */
            if (sums) ll_einsum_offsets(p.sums, p.n_sums, s, more);
            pa.data = (const char *)a->data + (size_t)(off[0] + more[0]) * in;
            pb.data = (const char *)b->data + (size_t)(off[1] + more[1]) * in;
            py.data = (const char *)y->data + (size_t)off[2] * out;
            TRY(one(c, pa, pb, py, batch.extent, s > 0));
        }
    }
    return LL_OK;
}

/* ---- the ways: what has no unit stride shows as plain ---- */

static const char *spec_of(const ll_kcall *c)
{
    return ((const ll_matmul_attr *)c->attr)->spec;
}

static bool blas_fits(const ll_kcall *c)
{
    const ll_tensor *a = &c->in[0], *b = &c->in[1], *y = &c->out[0];
    ll_einsum_plan p;
    ll_einsum_fold(spec_of(c), &a->shape, &b->shape, &y->shape, &p);
    const ll_einsum_loop *of[3][2] = {{&p.row, &p.sum}, {&p.sum, &p.column}, {&p.row, &p.column}};
    for (int i = 0; i < 3; i++) {
        matrix m = {
            NULL, of[i][0]->extent, of[i][1]->extent, of[i][0]->stride[i], of[i][1]->stride[i], 0};
        if (!ll_blas_fits(&m)) return false;
    }
    return p.sum.extent > 0;
}

static size_t scratch(const ll_kcall *c)
{
    const ll_tensor *y = &c->out[0];
    size_t sums = y->dtype == LL_I64 ? (size_t)ll_numel(&y->shape) * sizeof(double) : 0;
    return ll_blas_scratch(c, spec_of(c)) + sums;
}

static ll_err run(const ll_kcall *c)
{
    return ll_blas_product(c, spec_of(c));
}

/* One plain product of few rows. */
static bool few_of(const ll_kcall *c, few *f)
{
    const ll_tensor *a = &c->in[0], *b = &c->in[1], *y = &c->out[0];
    ll_einsum_plan p;
    ll_einsum_fold(spec_of(c), &a->shape, &b->shape, &y->shape, &p);
    *f = few{{a->data, p.row.extent, p.sum.extent, p.row.stride[0], p.sum.stride[0], 0},
             {b->data, p.sum.extent, p.column.extent, p.sum.stride[1], p.column.stride[1], 0},
             {y->data, p.row.extent, p.column.extent, p.row.stride[2], p.column.stride[2], 0},
             a->dtype,
             y->dtype,
             NULL,
             LL_ACT_NONE};
    return p.n_around == 0 && p.n_sums == 0 && ll_few_fits(f);
}

extern "C" const ll_solver matmul_cuda[] = {{"few", few_fits<few_of>, NULL, run_few<few_of>},
                                            {"cublaslt", blas_fits, scratch, run},
                                            {"plain", NULL, NULL, run},
                                            {}};
