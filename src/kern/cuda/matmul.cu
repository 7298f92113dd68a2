/* matmul.cu: products through cuBLASLt. A product's loops are folded into strided matrix products
 * (kern/einsum.h); cuBLASLt wants one unit stride in each matrix, and what has none goes through a
 * plain kernel of our own. The longest loop around becomes its batch.
 *
 * cuBLASLt counts columns first. A row-major C is given as its transpose: C' = B' A'. */
#include "kern/cuda/gpu.cuh"

#include "kern/cuda/libs.cuh"
#include "kern/einsum.h"

extern "C" {
ll_kernel matmul_cuda;
ll_scratch matmul_cuda_scratch;
}

enum { WORKSPACE = 32 << 20 };

typedef struct matrix { /* element (i, j) at i * rs + j * cs */
    const void *data;
    int64_t rows, cols, rs, cs, batch;
} matrix;

static bool fits(const matrix *m)
{
    return m->rs == 1 || m->cs == 1 || m->rows <= 1 || m->cols <= 1;
}

/* How cuBLASLt sees a matrix: column-major, or transposed; its leading dimension. */
static void seen(const matrix *m, bool *transposed, int64_t *ld)
{
    if (m->rs == 1 || m->rows <= 1) {
        *transposed = false;
        *ld = m->cols > 1 ? m->cs : m->rows;
        if (*ld < m->rows) *ld = m->rows;
    } else {
        *transposed = true;
        *ld = m->rows > 1 ? m->rs : m->cols;
        if (*ld < m->cols) *ld = m->cols;
    }
    if (*ld < 1) *ld = 1;
}

/* ---- what has no unit stride, and types that cuBLASLt does not mix ---- */

template <class T, class Y>
static __global__ void plain(matrix a, matrix b, matrix c, Y *y, int64_t k, int64_t batches, bool add)
{
    typedef typename sum_of<T>::type S;
    int64_t n = c.rows * c.cols * batches;
    GRID_STRIDE(e, n)
    {
        int64_t j = e % c.cols, i = e / c.cols % c.rows, z = e / c.cols / c.rows;
        const T *p = (const T *)a.data + z * a.batch + i * a.rs;
        const T *q = (const T *)b.data + z * b.batch + j * b.cs;
        Y *to = y + z * c.batch + i * c.rs + j * c.cs;
        S sum = add ? (S)to_float(*to) : (S)0;
        for (int64_t l = 0; l < k; l++) sum += (S)to_float(p[l * a.cs]) * (S)to_float(q[l * b.rs]);
        *to = from_float<Y>::of(sum);
    }
}

static ll_err run_plain(const ll_kcall *c, matrix a, matrix b, matrix y, int64_t k, int64_t batches,
                        bool add)
{
    return with_float(c->in[0].dtype, [&](auto s) -> ll_err {
        typedef decltype(s) T;
        return with_float(c->out[0].dtype, [&](auto t) -> ll_err {
            typedef decltype(t) Y;
            plain<T, Y><<<blocks_for(y.rows * y.cols * batches, 256), 256, 0, stream_of(c)>>>(
                a, b, y, (Y *)y.data, k, batches, add);
            CUDA_TRY(cudaGetLastError());
            return LL_OK;
        });
    });
}

/* ---- cuBLASLt ---- */

typedef struct product {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulPreference_t pref;
} product;

static void close_product(product *p)
{
    if (p->pref) cublasLtMatmulPreferenceDestroy(p->pref);
    if (p->a) cublasLtMatrixLayoutDestroy(p->a);
    if (p->b) cublasLtMatrixLayoutDestroy(p->b);
    if (p->c) cublasLtMatrixLayoutDestroy(p->c);
    if (p->desc) cublasLtMatmulDescDestroy(p->desc);
}

static ll_err layout_of(const matrix *m, cudaDataType_t type, int64_t batches, bool *transposed,
                        cublasLtMatrixLayout_t *out)
{
    int64_t ld;
    int32_t n = (int32_t)batches;
    seen(m, transposed, &ld);
    uint64_t rows = (uint64_t)(*transposed ? m->cols : m->rows);
    uint64_t cols = (uint64_t)(*transposed ? m->rows : m->cols);
    BLAS_TRY(cublasLtMatrixLayoutCreate(out, type, rows, cols, ld));
    BLAS_TRY(cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &n,
                                              sizeof n));
    BLAS_TRY(cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                              &m->batch, sizeof m->batch));
    return LL_OK;
}

/* Heuristics choose by how operands are aligned; by themselves they expect 256 bytes. */
static ll_err set_alignment(cublasLtMatmulPreference_t pref, cublasLtMatmulPreferenceAttributes_t name,
                            const matrix *m)
{
    uintptr_t p = (uintptr_t)m->data;
    uint32_t bytes = 256;
    while (p % bytes) bytes /= 2;
    BLAS_TRY(cublasLtMatmulPreferenceSetAttribute(pref, name, &bytes, sizeof bytes));
    return LL_OK;
}

static ll_err open_product(const ll_kcall *c, const matrix *a, const matrix *b, const matrix *y,
                           int64_t batches, product *p)
{
    ll_dtype t = c->in[0].dtype;
    cudaDataType_t in = ll_cuda_type(t), out = ll_cuda_type(c->out[0].dtype);
    cublasComputeType_t compute = t == LL_F64   ? CUBLAS_COMPUTE_64F
                                  : ll_tf32()   ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                : CUBLAS_COMPUTE_32F;
    if (t != LL_F32 && t != LL_F64) compute = CUBLAS_COMPUTE_32F;
    bool ta, tb, ty;
    size_t bytes = WORKSPACE;
    BLAS_TRY(cublasLtMatmulDescCreate(&p->desc, compute, t == LL_F64 ? CUDA_R_64F : CUDA_R_32F));
    TRY(layout_of(a, in, batches, &ta, &p->a));
    TRY(layout_of(b, in, batches, &tb, &p->b));
    TRY(layout_of(y, out, batches, &ty, &p->c));
    LL_ASSERT(!ty);
    cublasOperation_t oa = ta ? CUBLAS_OP_T : CUBLAS_OP_N, ob = tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    BLAS_TRY(cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &oa, sizeof oa));
    BLAS_TRY(cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &ob, sizeof ob));
    BLAS_TRY(cublasLtMatmulPreferenceCreate(&p->pref));
    BLAS_TRY(cublasLtMatmulPreferenceSetAttribute(
        p->pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
    TRY(set_alignment(p->pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, a));
    TRY(set_alignment(p->pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, b));
    TRY(set_alignment(p->pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, y));
    TRY(set_alignment(p->pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, y));
    return LL_OK;
}

static ll_err run_product(const ll_kcall *c, const matrix *a, const matrix *b, const matrix *y,
                          bool add, product *p)
{
    cublasLtMatmulHeuristicResult_t best;
    int found = 0;
    cublasLtHandle_t lt;
    TRY(ll_cublas(&lt));
    BLAS_TRY(cublasLtMatmulAlgoGetHeuristic(lt, p->desc, p->a, p->b, p->c, p->c, p->pref, 1, &best,
                                            &found));
    CHECK(found, LL_E_DEVICE, "cuBLASLt has no algorithm for this product");
    float one = 1, beta = add ? 1 : 0;
    double one64 = 1, beta64 = add ? 1 : 0;
    bool wide = c->in[0].dtype == LL_F64;
    BLAS_TRY(cublasLtMatmul(lt, p->desc, wide ? (void *)&one64 : (void *)&one, a->data, p->a,
                            b->data, p->b, wide ? (void *)&beta64 : (void *)&beta, y->data, p->c,
                            (void *)y->data, p->c, &best.algo, workspace_of(c), WORKSPACE,
                            stream_of(c)));
    return LL_OK;
}

/* y = a b for column-major y. */
static ll_err multiply(const ll_kcall *c, const matrix *a, const matrix *b, const matrix *y,
                       int64_t batches, bool add)
{
    product p = {};
    ll_err rc = open_product(c, a, b, y, batches, &p);
    if (rc == LL_OK) rc = run_product(c, a, b, y, add, &p);
    close_product(&p);
    return rc;
}

static matrix turned(const matrix *m)
{
    return matrix{m->data, m->cols, m->rows, m->cs, m->rs, m->batch};
}

static ll_err one(const ll_kcall *c, matrix a, matrix b, matrix y, int64_t batches, bool add)
{
    if (y.rows * y.cols * batches == 0) return LL_OK;
    bool blas = fits(&a) && fits(&b) && fits(&y) && a.cols > 0 && batches < INT32_MAX;
    if (!blas) return run_plain(c, a, b, y, a.cols, batches, add);
    if (y.rs == 1 || y.rows <= 1) return multiply(c, &a, &b, &y, batches, add);
    matrix at = turned(&a), bt = turned(&b), yt = turned(&y);
    return multiply(c, &bt, &at, &yt, batches, add);
}

size_t matmul_cuda_scratch(const ll_kcall *)
{
    return WORKSPACE + LL_WORKSPACE_SLACK;
}

ll_err matmul_cuda(const ll_kcall *c)
{
    const ll_tensor *a = &c->in[0], *b = &c->in[1], *y = &c->out[0];
    ll_einsum_plan p;
    ll_einsum_fold(((const ll_matmul_attr *)c->attr)->spec, &a->shape, &b->shape, &y->shape, &p);
    ll_einsum_loop batch = {1, {0, 0, 0}, {false, false, false}};
    int longest = -1;
    for (int i = 0; i < p.n_around; i++)
        if (longest < 0 || p.around[i].extent > p.around[longest].extent) longest = i;
    if (longest >= 0) {
        batch = p.around[longest];
        p.around[longest] = p.around[--p.n_around];
    }
    matrix ma = {a->data, p.row.extent, p.sum.extent, p.row.stride[0], p.sum.stride[0],
                 batch.stride[0]};
    matrix mb = {b->data, p.sum.extent, p.column.extent, p.sum.stride[1], p.column.stride[1],
                 batch.stride[1]};
    matrix my = {y->data, p.row.extent, p.column.extent, p.row.stride[2], p.column.stride[2],
                 batch.stride[2]};
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
