/* gemm.cu: plans of cuBLASLt products.
 *
 * A plan is kept for each kind of product (sizes, strides, types, alignment, epilogue) for as long
 * as the context is open. When it is made, cuBLASLt's heuristic names algorithms, best first as it
 * thinks. Of products that are long enough the first few are timed on the operands at hand, and the
 * quickest is taken if it beats the heuristic's first by more than GAIN; so that two runs mostly
 * choose alike, and where little is to be won always. Equal kinds share the choice. Nothing is
 * timed while work is being captured, where other ranks must come to the same bits, nor where a
 * product adds to its own result, which each run would change. */
#include "kern/cuda/gemm.cuh"

#include "base/load.h"
#include "kern/einsum.h"
#include "kern/notes.h"

#include <stdlib.h>

enum { NAMED = 8, TRIES = 2 * NAMED, REPEATS = 3 };
static const double TIMED_FLOPS = 1e9;
static const float GAIN = 1.03f, FAR = 1.1f, LONG_MS = 1;

/* ---- the library ---- */

#define CALLS(_)                                                                                   \
    _(cublasLtCreate)                                                                              \
    _(cublasLtDestroy)                                                                             \
    _(cublasLtGetStatusString)                                                                     \
    _(cublasLtMatmul)                                                                              \
    _(cublasLtMatmulAlgoCheck)                                                                     \
    _(cublasLtMatmulAlgoConfigSetAttribute)                                                        \
    _(cublasLtMatmulAlgoGetHeuristic)                                                              \
    _(cublasLtMatmulDescCreate)                                                                    \
    _(cublasLtMatmulDescDestroy)                                                                   \
    _(cublasLtMatmulDescSetAttribute)                                                              \
    _(cublasLtMatmulPreferenceCreate)                                                              \
    _(cublasLtMatmulPreferenceDestroy)                                                             \
    _(cublasLtMatmulPreferenceSetAttribute)                                                        \
    _(cublasLtMatrixLayoutCreate)                                                                  \
    _(cublasLtMatrixLayoutDestroy)                                                                 \
    _(cublasLtMatrixLayoutSetAttribute)
static struct {
    CALLS(LL_CALL)
} blas;
static const ll_library library = {"libcublasLt.so." LL_MAJOR(CUBLAS_VER_MAJOR),
                                   "cuBLAS of CUDA " LL_MAJOR(CUBLAS_VER_MAJOR),
                                   (void **)&blas,
                                   {CALLS(LL_CALL_NAME)}};

#define BLAS_TRY(call)                                                                             \
    do {                                                                                           \
        cublasStatus_t bs_ = (call);                                                               \
        CHECK(bs_ == CUBLAS_STATUS_SUCCESS, LL_E_DEVICE, "%.45s: %s", #call,                       \
              blas.cublasLtGetStatusString(bs_));                                                  \
    } while (0)

static cudaDataType_t blas_type(ll_dtype t)
{
    switch (t) {
    case LL_F64: return CUDA_R_64F;
    case LL_BF16: return CUDA_R_16BF;
    case LL_F16: return CUDA_R_16F;
    case LL_F8_E4M3: return CUDA_R_8F_E4M3;
    case LL_F8_E5M2: return CUDA_R_8F_E5M2;
    case LL_F32: return CUDA_R_32F;
    default: LL_ASSERT(!"a type of products"); return CUDA_R_32F;
    }
}

typedef struct kind { /* compared as bytes */
    int64_t m, n, k, batches, lda, ldb, ldy, stride_a, stride_b, stride_y;
    int32_t ta, tb, a_type, b_type, y_type, compute, epilogue, bias_type, add, in_place, timed,
        fast, a_scales, b_scales;
    uint32_t align[5];
} kind;

typedef struct plan {
    kind is;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, y;
    cublasLtMatmulAlgo_t algo;
    bool none;
    struct plan *next;
} plan;

struct ll_gemms {
    cublasLtHandle_t lt;
    plan *plans;
};

bool ll_blas_fits(const matrix *m)
{
    return m->rs == 1 || m->cs == 1 || m->rows <= 1 || m->cols <= 1;
}

matrix ll_blas_transposed(const matrix *m)
{
    return matrix{m->data, m->cols, m->rows, m->cs, m->rs, m->batch};
}

size_t ll_blas_scratch(const ll_kcall *c, const char *spec)
{
    const ll_tensor *t[3] = {&c->in[0], &c->in[1], &c->out[0]};
    ll_einsum_plan p;
    ll_einsum_fold(spec, &t[0]->shape, &t[1]->shape, &t[2]->shape, &p);
    const ll_einsum_loop *of[3][2] = {{&p.row, &p.sum}, {&p.sum, &p.column}, {&p.row, &p.column}};
    double flops = 2.0 * (double)p.row.extent * (double)p.column.extent * (double)p.sum.extent;
    for (int i = 0; i < 3; i++) {
        int64_t one = of[i][0]->stride[i], other = of[i][1]->stride[i];
        int64_t row = one > other ? one : other, wide = 16 / (int64_t)ll_dtype_bytes(t[i]->dtype);
        if (t[i]->dtype != LL_BF16 || flops < TIMED_FLOPS || row % wide == 0) continue;
        ll_kern_note("products of bf16 rows of %lld: several times slower than of a multiple of "
                     "%lld, such as %lld",
                     (long long)row, (long long)wide, (long long)(ll_round_up(row, wide)));
    }
    return GEMM_WORKSPACE + LL_WORKSPACE_SLACK;
}

/* ---- what kind of product it is ---- */

/* How cuBLASLt sees a matrix: column-major, or transposed; its leading dimension. */
static void seen(const matrix *m, int32_t *transposed, int64_t *ld)
{
    *transposed = !(m->rs == 1 || m->rows <= 1);
    int64_t inner = *transposed ? m->cols : m->rows, outer = *transposed ? m->rows : m->cols;
    int64_t stride = *transposed ? m->rs : m->cs;
    *ld = outer > 1 ? stride : inner;
    if (*ld < inner) *ld = inner;
    if (*ld < 1) *ld = 1;
}

/* Heuristics choose by how operands are aligned; no kernel asks for more than 16 bytes. */
static uint32_t alignment(const void *p)
{
    uint32_t bytes = 16;
    while ((uintptr_t)p % bytes) bytes /= 2;
    return bytes;
}

static cublasComputeType_t compute_of(ll_dtype t, bool tf32)
{
    if (t == LL_F64) return CUBLAS_COMPUTE_64F;
    return t == LL_F32 && tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

static kind kind_of(const ll_kcall *c, const gemm *g)
{
    kind k;
    int32_t ty;
    memset(&k, 0, sizeof k);
    k.m = g->y.rows, k.n = g->y.cols, k.k = g->a.cols, k.batches = g->batches;
    seen(&g->a, &k.ta, &k.lda);
    seen(&g->b, &k.tb, &k.ldb);
    seen(&g->y, &ty, &k.ldy);
    LL_ASSERT(!ty);
    k.stride_a = g->a.batch, k.stride_b = g->b.batch, k.stride_y = g->y.batch;
    k.a_type = g->a_type, k.b_type = g->b_type, k.y_type = g->y_type;
    k.compute = compute_of(g->a_type, c->tf32);
    k.epilogue = g->epilogue;
    k.bias_type = g->bias ? g->bias_type : -1;
    k.fast = g->fast, k.a_scales = g->a_scales, k.b_scales = g->b_scales;
    k.add = g->add != NULL, k.in_place = g->add == g->y.data, k.timed = c->timing;
    const void *p[5] = {g->a.data, g->b.data, g->add ? g->add : g->y.data, g->y.data, g->aux};
    for (int i = 0; i < 5; i++) k.align[i] = alignment(p[i]);
    return k;
}

/* ---- descriptors ---- */

static ll_err layout_of(cublasLtMatrixLayout_t *out, int type, bool transposed, int64_t rows,
                        int64_t cols, int64_t ld, int64_t batches, int64_t stride)
{
    int32_t n = (int32_t)batches;
    BLAS_TRY(blas.cublasLtMatrixLayoutCreate(out, blas_type((ll_dtype)type),
                                             (uint64_t)(transposed ? cols : rows),
                                             (uint64_t)(transposed ? rows : cols), ld));
    BLAS_TRY(blas.cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &n,
                                                   sizeof n));
    BLAS_TRY(blas.cublasLtMatrixLayoutSetAttribute(
        *out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride));
    return LL_OK;
}

static ll_err set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t name, const void *value,
                  size_t bytes)
{
    BLAS_TRY(blas.cublasLtMatmulDescSetAttribute(desc, name, value, bytes));
    return LL_OK;
}

/* The addresses of a call: the only part of a plan that changes. */
static ll_err point_at(plan *p, const gemm *g)
{
    if (g->bias) TRY(set(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g->bias, sizeof g->bias));
    if (g->aux)
        TRY(set(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &g->aux, sizeof g->aux));
    const void *scale[2] = {g->a_scale, g->b_scale};
    if (!g->a_scale) return LL_OK;
    TRY(set(p->desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &scale[0], sizeof *scale));
    TRY(set(p->desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &scale[1], sizeof *scale));
    return LL_OK;
}

static ll_err scale_by_blocks(cublasLtMatmulDesc_t desc, const gemm *g)
{
#if CUBLAS_VERSION >= 120900
    static const int32_t mode[] = {/* by scales_of */ CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F,
                                   CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
                                   CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F};
    TRY(set(desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode[g->a_scales], sizeof *mode));
    return set(desc, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode[g->b_scales], sizeof *mode);
#else
    FAIL(LL_E_DEVICE,
         "products whose scales are of blocks need cuBLAS of CUDA 12.9 or later, and this program "
         "was built with that of %d.%d: use precision fp8 or bf16",
         CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR);
#endif
}

static ll_err describe(plan *p, const gemm *g)
{
    const kind *k = &p->is;
    cublasOperation_t oa = k->ta ? CUBLAS_OP_T : CUBLAS_OP_N,
                      ob = k->tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    cudaDataType_t bias = blas_type(g->bias_type);
    BLAS_TRY(blas.cublasLtMatmulDescCreate(&p->desc, (cublasComputeType_t)k->compute,
                                           g->a_type == LL_F64 ? CUDA_R_64F : CUDA_R_32F));
    TRY(set(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &oa, sizeof oa));
    TRY(set(p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &ob, sizeof ob));
    TRY(set(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &g->epilogue, sizeof g->epilogue));
    if (g->bias) TRY(set(p->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias, sizeof bias));
    if (g->aux) TRY(set(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &k->ldy, sizeof k->ldy));
    int8_t fast = 1;
    if (g->fast) TRY(set(p->desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast));
    if (g->a_scales) TRY(scale_by_blocks(p->desc, g));
    TRY(point_at(p, g));
    TRY(layout_of(&p->a, k->a_type, k->ta, k->m, k->k, k->lda, k->batches, k->stride_a));
    TRY(layout_of(&p->b, k->b_type, k->tb, k->k, k->n, k->ldb, k->batches, k->stride_b));
    return layout_of(&p->y, k->y_type, false, k->m, k->n, k->ldy, k->batches, k->stride_y);
}

/* ---- the choice of an algorithm ---- */

static cublasStatus_t launch(const ll_kcall *c, const plan *p, const gemm *g,
                             const cublasLtMatmulAlgo_t *algo)
{
    float one = 1, beta = g->add ? 1 : 0;
    double one64 = 1, beta64 = g->add ? 1 : 0;
    bool wide = g->a_type == LL_F64;
    return blas.cublasLtMatmul(
        c->ctx->gemms->lt, p->desc, wide ? (void *)&one64 : (void *)&one, g->a.data, p->a,
        g->b.data, p->b, wide ? (void *)&beta64 : (void *)&beta, g->add ? g->add : g->y.data, p->y,
        (void *)g->y.data, p->y, algo, workspace_of(c), GEMM_WORKSPACE, stream_of(c));
}

/* Milliseconds of one run; infinity where the algorithm will not run. */
static ll_err time_one(const ll_kcall *c, const plan *p, const gemm *g,
                       const cublasLtMatmulAlgo_t *algo, cudaEvent_t mark[2], float *ms)
{
    *ms = INFINITY;
    CUDA_TRY(cudaEventRecord(mark[0], stream_of(c)));
    if (launch(c, p, g, algo) != CUBLAS_STATUS_SUCCESS) return LL_OK;
    CUDA_TRY(cudaEventRecord(mark[1], stream_of(c)));
    CUDA_TRY(cudaEventSynchronize(mark[1]));
    CUDA_TRY(cudaEventElapsedTime(ms, mark[0], mark[1]));
    return LL_OK;
}

/* Each algorithm runs once to be loaded, then in turns, so that a GPU that slows down as it warms
 * slows all of them; what is far behind drops out. chosen: -1 where none runs. */
static ll_err time_all(const ll_kcall *c, const plan *p, const gemm *g, int n,
                       const cublasLtMatmulHeuristicResult_t *r, cudaEvent_t mark[2], int *chosen)
{
    float ms, best[TRIES], least = INFINITY;
    int quickest = -1;
    for (int i = 0; i < n; i++) TRY(time_one(c, p, g, &r[i].algo, mark, &best[i]));
    for (int i = 0; i < n; i++)
        if (!isinf(best[i])) TRY(time_one(c, p, g, &r[i].algo, mark, &best[i]));
    for (int i = 0; i < n; i++) least = fminf(least, best[i]);
    for (int k = 0; k < (least < LONG_MS ? REPEATS : 0); k++)
        for (int i = 0; i < n; i++) {
            if (best[i] > least * FAR) continue;
            TRY(time_one(c, p, g, &r[i].algo, mark, &ms));
            best[i] = fminf(best[i], ms);
        }
    for (int i = 0; i < n; i++)
        if (!isinf(best[i]) && (quickest < 0 || best[i] < best[quickest])) quickest = i;
    *chosen = quickest > 0 && best[quickest] * GAIN > best[0] ? 0 : quickest;
    return LL_OK;
}

static ll_err may_time(const ll_kcall *c, const kind *k, bool *may)
{
    cudaStreamCaptureStatus status;
    CUDA_TRY(cudaStreamIsCapturing(stream_of(c), &status));
    double flops = 2.0 * (double)k->m * (double)k->n * (double)k->k * (double)k->batches;
    *may =
        k->timed && flops >= TIMED_FLOPS && !k->in_place && status == cudaStreamCaptureStatusNone;
    return LL_OK;
}

static ll_err ask(cublasLtHandle_t lt, const plan *p, cublasLtMatmulPreference_t pref, int n,
                  cublasLtMatmulHeuristicResult_t *r, int *found)
{
    static const cublasLtMatmulPreferenceAttributes_t name[4] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    size_t bytes = GEMM_WORKSPACE;
    BLAS_TRY(blas.cublasLtMatmulPreferenceSetAttribute(
        pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
    for (int i = 0; i < 4; i++)
        BLAS_TRY(blas.cublasLtMatmulPreferenceSetAttribute(pref, name[i], &p->is.align[i],
                                                           sizeof p->is.align[i]));
    cublasStatus_t s =
        blas.cublasLtMatmulAlgoGetHeuristic(lt, p->desc, p->a, p->b, p->y, p->y, pref, n, r, found);
    /* A mix of types that an epilogue does not have, or scales, is told as a wrong value. */
    bool odd = p->is.epilogue != CUBLASLT_EPILOGUE_DEFAULT || p->is.a_scales;
    bool none = s == CUBLAS_STATUS_NOT_SUPPORTED || (s == CUBLAS_STATUS_INVALID_VALUE && odd);
    if (none) *found = 0;
    CHECK(none || s == CUBLAS_STATUS_SUCCESS, LL_E_DEVICE, "cuBLASLt's choice of an algorithm: %s",
          blas.cublasLtGetStatusString(s));
    return LL_OK;
}

/* The algorithms of dgelu are named with blocks in swizzled order; mostly the plain one is quicker.
 * Adds them with that. */
static ll_err add_unswizzled(cublasLtHandle_t lt, const plan *p, cublasLtMatmulHeuristicResult_t *r,
                             int *found)
{
    const uint32_t no = 0;
    for (int i = 0, n = *found; i < n && *found < TRIES; i++) {
        cublasLtMatmulHeuristicResult_t *to = &r[*found], checked;
        *to = r[i];
        BLAS_TRY(blas.cublasLtMatmulAlgoConfigSetAttribute(
            &to->algo, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, &no, sizeof no));
        bool fits = blas.cublasLtMatmulAlgoCheck(lt, p->desc, p->a, p->b, p->y, p->y, &to->algo,
                                                 &checked) == CUBLAS_STATUS_SUCCESS;
        *found += fits && checked.workspaceSize <= GEMM_WORKSPACE;
    }
    return LL_OK;
}

static ll_err choose(const ll_kcall *c, plan *p, const gemm *g)
{
    cublasLtMatmulHeuristicResult_t r[TRIES];
    cublasLtMatmulPreference_t pref;
    cublasLtHandle_t lt = c->ctx->gemms->lt;
    cudaEvent_t mark[2];
    int found = 0, chosen = 0;
    bool timed = false;
    TRY(may_time(c, &p->is, &timed));
    BLAS_TRY(blas.cublasLtMatmulPreferenceCreate(&pref));
    ll_err rc = ask(lt, p, pref, timed ? NAMED : 1, r, &found);
    if (rc == LL_OK && timed && g->epilogue == CUBLASLT_EPILOGUE_DGELU)
        rc = add_unswizzled(lt, p, r, &found);
    blas.cublasLtMatmulPreferenceDestroy(pref);
    TRY(rc);
    if (timed && found > 1) {
        for (int i = 0; i < 2; i++) CUDA_TRY(cudaEventCreate(&mark[i]));
        rc = time_all(c, p, g, found, r, mark, &chosen);
        for (int i = 0; i < 2; i++) CUDA_TRY(cudaEventDestroy(mark[i]));
        TRY(rc);
    }
    p->none = found == 0 || chosen < 0;
    if (!p->none) p->algo = r[chosen].algo;
    return LL_OK;
}

/* ---- plans ---- */

static void close_plan(plan *p)
{
    if (p->a) blas.cublasLtMatrixLayoutDestroy(p->a);
    if (p->b) blas.cublasLtMatrixLayoutDestroy(p->b);
    if (p->y) blas.cublasLtMatrixLayoutDestroy(p->y);
    if (p->desc) blas.cublasLtMatmulDescDestroy(p->desc);
    free(p);
}

void ll_gemms_close(ll_context *x)
{
    if (!x->gemms) return;
    for (plan *p = x->gemms->plans, *next; p; p = next) {
        next = p->next;
        close_plan(p);
    }
    if (x->gemms->lt) blas.cublasLtDestroy(x->gemms->lt);
    free(x->gemms);
}

static ll_err open_library(ll_context *x)
{
    TRY(ll_load_library(&library));
    if (!x->gemms) x->gemms = (ll_gemms *)calloc(1, sizeof *x->gemms);
    CHECK(x->gemms, LL_E_MEM, "not enough memory for plans of products");
    if (!x->gemms->lt) BLAS_TRY(blas.cublasLtCreate(&x->gemms->lt));
    return LL_OK;
}

static ll_err plan_of(const ll_kcall *c, const gemm *g, plan **out)
{
    kind k = kind_of(c, g);
    TRY(open_library(c->ctx));
    plan *p = c->ctx->gemms->plans;
    while (p && memcmp(&p->is, &k, sizeof k)) p = p->next;
    *out = p;
    if (p) return LL_OK;
    p = (plan *)calloc(1, sizeof *p);
    CHECK(p, LL_E_MEM, "not enough memory for a plan of a product");
    p->is = k;
    ll_err rc = describe(p, g);
    if (rc == LL_OK) rc = choose(c, p, g);
    if (rc != LL_OK) {
        close_plan(p);
        return rc;
    }
    p->next = c->ctx->gemms->plans;
    *out = c->ctx->gemms->plans = p;
    return LL_OK;
}

static ll_err run(const ll_kcall *c, const gemm *g, bool *none)
{
    plan *p = NULL;
    TRY(plan_of(c, g, &p));
    *none = p->none;
    if (p->none) return LL_OK;
    TRY(point_at(p, g));
    cublasStatus_t s = launch(c, p, g, &p->algo);
    /* What the heuristic names for an epilogue is not always there. */
    p->none = *none = s != CUBLAS_STATUS_SUCCESS && g->epilogue != CUBLASLT_EPILOGUE_DEFAULT;
    if (!p->none) BLAS_TRY(s);
    return LL_OK;
}

ll_err ll_blas_run(const ll_kcall *c, const gemm *g, bool *none)
{
    pthread_mutex_lock(&c->ctx->lock); /* descriptors are shared, and hold a call's addresses */
    ll_err rc = run(c, g, none);
    pthread_mutex_unlock(&c->ctx->lock);
    return rc;
}
