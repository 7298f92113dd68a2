/* product.cu: a matmul and what surrounds it: by a kernel of our own (hopper.cu) where it fits, as
 * cuBLASLt's epilogues where it has them, and otherwise as a matmul and kernels after it. The
 * result is row-major, so cuBLASLt sees its transpose (see matmul.cu): columns, which a bias runs
 * along, are its rows. */
#include "kern/cuda/few.cuh"
#include "kern/cuda/hopper.cuh"
#include "kern/cuda/sparse.cuh"

#include "kern/einsum.h"
#include "kern/notes.h"

#include <cuda_fp8.h>

typedef struct extras { /* NULL: there is none */
    const ll_tensor *bias, *more;
} extras;

static extras extras_of(const ll_kcall *c)
{
    const ll_product_attr *attr = (const ll_product_attr *)c->attr;
    extras e = {attr->bias ? &c->in[attr->scaled ? 4 : 2] : NULL, NULL};
    if (attr->act == LL_ACT_DGELU || attr->act == LL_ACT_TIMES) e.more = &c->in[c->n_in - 1];
    return e;
}

typedef struct matrices {
    matrix a, b, y;
} matrices;

static matrices matrices_of(const ll_kcall *c)
{
    const ll_tensor *a = &c->in[0], *b = &c->in[1], *y = &c->out[0];
    ll_einsum_plan p;
    ll_einsum_fold(((const ll_product_attr *)c->attr)->spec, &a->shape, &b->shape, &y->shape, &p);
    LL_ASSERT(p.n_around == 0 && p.n_sums == 0);
    return matrices{
        {a->data, p.row.extent, p.sum.extent, p.row.stride[0], p.sum.stride[0], 0},
        {b->data, p.sum.extent, p.column.extent, p.sum.stride[1], p.column.stride[1], 0},
        {y->data, p.row.extent, p.column.extent, p.row.stride[2], p.column.stride[2], 0}};
}

/* ---- sums of columns, first of HOPPER_ROWS rows each ---- */

enum { ACROSS = 32, DOWN = 32 };

static __global__ void sum_rows(const void *y, int type, int64_t rows, int64_t columns, int64_t n,
                                float *parts)
{
    GRID_STRIDE(i, n * columns)
    {
        int64_t column = i % columns, from = i / columns * HOPPER_ROWS;
        float sum = 0;
        for (int64_t r = from; r < rows && r < from + HOPPER_ROWS; r++)
            sum += (float)load_any(y, type, r * columns + column);
        parts[i] = sum;
    }
}

static __global__ void sum_parts(const float *parts, int64_t n, int64_t columns, float *sums)
{
    __shared__ float part[DOWN][ACROSS + 1];
    int64_t column = blockIdx.x * (int64_t)ACROSS + threadIdx.x;
    float sum = 0;
    if (column < columns)
        for (int64_t i = threadIdx.y; i < n; i += DOWN) sum += parts[i * columns + column];
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    sum = warp_sum(part[threadIdx.x][threadIdx.y]); /* of a column, all of a warp's */
    column = blockIdx.x * (int64_t)ACROSS + threadIdx.y;
    if (threadIdx.x == 0 && column < columns) sums[column] = sum;
}

static bool wants_sums(const ll_kcall *c)
{
    return c->n_out == 2 && ((const ll_product_attr *)c->attr)->act == LL_ACT_TIMES;
}

static int64_t parts_of(const ll_kcall *c)
{
    int64_t columns = ll_numel(&c->out[1].shape);
    return columns ? ll_ceil_div(ll_numel(&c->out[0].shape) / columns, HOPPER_ROWS) : 0;
}

static ll_err add_parts(const ll_kcall *c)
{
    int64_t columns = ll_numel(&c->out[1].shape);
    if (columns == 0) return LL_OK;
    return launch(c, sum_parts, ll_ceil_div(columns, ACROSS), dim3(ACROSS, DOWN), workspace_of(c),
                  parts_of(c), columns, c->out[1].data);
}

/* ---- by our own kernel ---- */

#ifdef LL_HOPPER
/* Whether the product is one for it. */
static bool own_of(const ll_kcall *c, hopper *h)
{
    const ll_product_attr *attr = (const ll_product_attr *)c->attr;
    static const int epilogue_of[LL_N_ACT] = {HOPPER_BIAS, -1, -1, -1, HOPPER_SLOPE, HOPPER_TIMES};
    extras e = extras_of(c);
    int epilogue = epilogue_of[attr->act];
    bool bias = e.bias && e.bias->dtype == LL_BF16, more = e.more && e.more->dtype == LL_BF16;
    if (!is_hopper(c) || epilogue < 0 || attr->scaled || attr->sparse ||
        c->in[0].dtype != LL_BF16 || c->out[0].dtype != LL_BF16 ||
        (epilogue == HOPPER_TIMES ? !more || e.bias : !bias))
        return false;
    matrices m = matrices_of(c);
    *h = hopper{(hopper_epilogue)epilogue, m.a, m.b, m.y, e.bias ? e.bias->data : NULL, NULL, NULL};
    if (epilogue == HOPPER_SLOPE) h->z = c->out[1].data;
    if (epilogue == HOPPER_TIMES) h->z = e.more->data;
    return ll_hopper_fits(h);
}

static bool own_fits(const ll_kcall *c)
{
    hopper h;
    return own_of(c, &h);
}

static ll_err run_own(const ll_kcall *c)
{
    hopper h;
    CHECK(own_of(c, &h), LL_E_ARG, "a product's tensors do not start at multiples of 16 bytes");
    if (wants_sums(c)) h.sums = (float *)workspace_of(c);
    TRY(ll_hopper_run(c, &h));
    return wants_sums(c) ? add_parts(c) : LL_OK;
}

/* ---- with weights that are 2:4 ---- */

static bool sparse_of(const ll_kcall *c, sparse *s)
{
    const ll_product_attr *attr = (const ll_product_attr *)c->attr;
    extras e = extras_of(c);
    if (!is_hopper(c) || !attr->sparse || attr->act != LL_ACT_NONE || attr->scaled ||
        c->in[0].dtype != LL_BF16 || c->out[0].dtype != LL_BF16 ||
        (e.bias && e.bias->dtype != LL_BF16))
        return false;
    matrices m = matrices_of(c);
    *s = sparse{m.a, ll_blas_transposed(&m.b), m.y, e.bias ? e.bias->data : NULL};
    return ll_sparse_fits(s);
}

static bool sparse_fits(const ll_kcall *c)
{
    sparse s;
    return sparse_of(c, &s) &&
           ((c->solver && !strcmp(c->solver, "sparse")) || ll_sparse_pays(&s, processors_of(c)));
}

static size_t sparse_scratch(const ll_kcall *c)
{
    sparse s;
    return sparse_of(c, &s) ? ll_sparse_scratch(&s) : 0;
}

static ll_err run_sparse(const ll_kcall *c)
{
    sparse s;
    CHECK(sparse_of(c, &s), LL_E_ARG, "a product's tensors do not start at multiples of 16 bytes");
    return ll_sparse_run(c, &s);
}

/* Zeros are not multiplied. */
static void sparse_work(const ll_kcall *c, double *done, double *padded)
{
    sparse s;
    *done = sparse_of(c, &s) ? (double)s.x.rows * (double)s.w.rows * (double)s.w.cols : 0;
    *padded = 0;
}
#endif

/* ---- of few rows, or small ---- */

static bool plain_of(const ll_kcall *c, few *f)
{
    const ll_product_attr *attr = (const ll_product_attr *)c->attr;
    matrices m = matrices_of(c);
    *f = few{m.a, m.b, m.y, c->in[0].dtype, c->out[0].dtype, extras_of(c).bias, (int)attr->act};
    bool plain = attr->act == LL_ACT_NONE || attr->act == LL_ACT_RELU || attr->act == LL_ACT_GELU;
    return plain && !attr->scaled && c->n_out == 1;
}

/* ---- as an epilogue ---- */

static void describe(const ll_kcall *c, gemm *g)
{
    const ll_tensor *a = &c->in[0], *b = &c->in[1], *y = &c->out[0];
    matrices m = matrices_of(c);
    g->a = ll_blas_transposed(&m.b);
    g->b = ll_blas_transposed(&m.a);
    g->y = ll_blas_transposed(&m.y);
    g->batches = 1;
    g->a_type = b->dtype;
    g->b_type = a->dtype;
    g->y_type = y->dtype;
    int64_t scaled = ((const ll_product_attr *)c->attr)->scaled;
    if (!scaled) return;
    g->a_scale = (const float *)c->in[3].data;
    g->b_scale = (const float *)c->in[2].data;
    g->fast = scaled == LL_SCALED_FAST;
    if (scaled < LL_SCALED_LINES) return;
    g->a_scales = scaled == LL_SCALED_SQUARES_B ? SCALES_SQUARES : SCALES_LINES;
    g->b_scales = scaled == LL_SCALED_SQUARES_A ? SCALES_SQUARES : SCALES_LINES;
}

static cublasLtEpilogue_t epilogue_of(const ll_kcall *c)
{
    const ll_product_attr *attr = (const ll_product_attr *)c->attr;
    switch (attr->act) {
    case LL_ACT_RELU: return attr->bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    case LL_ACT_GELU:
        if (c->n_out == 2)
            return attr->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
        return attr->bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    case LL_ACT_DGELU: return CUBLASLT_EPILOGUE_DGELU;
    default: LL_ASSERT(attr->act == LL_ACT_NONE);
    }
    return attr->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

static bool epilogue_fits(const ll_kcall *c)
{
    int64_t act = ((const ll_product_attr *)c->attr)->act;
    extras e = extras_of(c);
    gemm g = {};
    if (act == LL_ACT_SLOPE || act == LL_ACT_TIMES) return false;
    describe(c, &g);
    return ll_blas_fits(&g.a) && ll_blas_fits(&g.b) && g.a.cols > 0 && g.y.rows > 0 &&
           g.y.cols > 0 && !(e.more && (e.more->dtype != g.y_type || e.bias));
}

static ll_err as_kernels(const ll_kcall *c);

/* Where cuBLASLt turns out to have no such epilogue, as kernels. */
static ll_err as_epilogue(const ll_kcall *c)
{
    extras e = extras_of(c);
    gemm g = {};
    bool none;
    describe(c, &g);
    g.epilogue = epilogue_of(c);
    if (e.bias) g.bias = e.bias->data, g.bias_type = e.bias->dtype;
    g.aux = e.more ? e.more->data : c->n_out == 2 ? c->out[1].data : NULL;
    TRY(ll_blas_run(c, &g, &none));
    return none ? as_kernels(c) : LL_OK;
}

/* ---- as a kernel of its own after the product ---- */

typedef struct finishing { /* data NULL: there is none */
    ll_tensor y, bias, more, second;
    int64_t n, columns;
    int act;
} finishing;

__device__ static float gelu_of(float x)
{
    const float A = (float)LL_GELU_A, B = (float)LL_GELU_B;
    return 0.5f * x * (1 + tanhf(A * (x + B * x * x * x)));
}

__device__ static float dgelu_of(float x)
{
    const float A = (float)LL_GELU_A, B = (float)LL_GELU_B;
    float t = tanhf(A * (x + B * x * x * x));
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * A * (1 + 3 * B * x * x);
}

static __global__ void finish(finishing f)
{
    GRID_STRIDE(i, f.n)
    {
        float v = (float)load_any(f.y.data, f.y.dtype, i), second;
        float more = f.more.data ? (float)load_any(f.more.data, f.more.dtype, i) : 0;
        if (f.bias.data) v += (float)load_any(f.bias.data, f.bias.dtype, i % f.columns);
        second = f.act == LL_ACT_SLOPE ? dgelu_of(v) : v;
        if (f.second.data) store_any(f.second.data, f.second.dtype, i, second);
        if (f.act == LL_ACT_RELU) v = v <= 0 ? 0 : v;
        if (f.act == LL_ACT_GELU || f.act == LL_ACT_SLOPE) v = gelu_of(v);
        if (f.act == LL_ACT_DGELU) v *= dgelu_of(more);
        if (f.act == LL_ACT_TIMES) v *= more;
        store_any(f.y.data, f.y.dtype, i, v);
    }
}

__device__ static float f8_value(const void *p, int type, int64_t i)
{
    __nv_fp8_interpretation_t kind = type == LL_F8_E4M3 ? __NV_E4M3 : __NV_E5M2;
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(((const uint8_t *)p)[i], kind)));
}

/* Of element k of a row of an operand. */
__device__ static float scale_at(const float *scale, scales_of is, int64_t rows, int64_t cols,
                                 int64_t row, int64_t k)
{
    return scale[is ? ll_block_at(is == SCALES_SQUARES, rows, cols, row, k) : 0];
}

/* Of 8-bit floats in sizes that cuBLASLt does not take. */
static __global__ void scaled_product(gemm g, void *y)
{
    GRID_STRIDE(e, g.y.rows * g.y.cols)
    {
        int64_t i = e % g.y.rows, j = e / g.y.rows;
        float sum = 0;
        for (int64_t k = 0; k < g.a.cols; k++)
            sum += f8_value(g.a.data, g.a_type, i * g.a.rs + k * g.a.cs) *
                   f8_value(g.b.data, g.b_type, k * g.b.rs + j * g.b.cs) *
                   scale_at(g.a_scale, g.a_scales, g.a.rows, g.a.cols, i, k) *
                   scale_at(g.b_scale, g.b_scales, g.b.cols, g.b.rows, j, k);
        store_any(y, g.y_type, i * g.y.rs + j * g.y.cs, sum);
    }
}

/* The product alone. */
static ll_err product_alone(const ll_kcall *c)
{
    const ll_product_attr *attr = (const ll_product_attr *)c->attr;
    if (!attr->scaled) return ll_blas_product(c, attr->spec);
    gemm g = {};
    bool none = true;
    describe(c, &g);
    g.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    if (g.y.rows < 1 || g.y.cols < 1) return LL_OK;
    if (g.a.cols > 0 && ll_blas_fits(&g.a) && ll_blas_fits(&g.b)) TRY(ll_blas_run(c, &g, &none));
    return none ? launch_each(c, g.y.rows * g.y.cols, scaled_product, g, g.y.data) : LL_OK;
}

static ll_err as_kernels(const ll_kcall *c)
{
    extras e = extras_of(c);
    TRY(product_alone(c));
    finishing f = {};
    f.y = c->out[0];
    if (e.bias) f.bias = *e.bias;
    if (e.more) f.more = *e.more;
    if (c->n_out == 2 && !wants_sums(c)) f.second = c->out[1];
    f.n = ll_numel(&f.y.shape);
    f.columns = e.bias ? ll_numel(&f.bias.shape) : 1;
    f.act = (int)((const ll_product_attr *)c->attr)->act;
    if (f.bias.data || f.second.data || f.act != LL_ACT_NONE) TRY(launch_each(c, f.n, finish, f));
    if (!wants_sums(c)) return LL_OK;
    int64_t columns = ll_numel(&c->out[1].shape);
    if (f.n > 0)
        TRY(launch_each(c, parts_of(c) * columns, sum_rows, f.y.data, f.y.dtype, f.n / columns,
                        columns, parts_of(c), workspace_of(c)));
    return add_parts(c);
}

/* ---- the ways ---- */

static size_t parts_scratch(const ll_kcall *c)
{
    size_t floats = wants_sums(c) ? (size_t)(parts_of(c) * ll_numel(&c->out[1].shape)) : 0;
    return floats ? floats * sizeof(float) + LL_WORKSPACE_SLACK : 0;
}

static size_t blas_scratch(const ll_kcall *c)
{
    size_t blas = ll_blas_scratch(c, ((const ll_product_attr *)c->attr)->spec);
    return blas > parts_scratch(c) ? blas : parts_scratch(c);
}

/* Fits all; a person is told where one kernel would do. */
static bool kernels_fit(const ll_kcall *c)
{
    int64_t act = ((const ll_product_attr *)c->attr)->act;
    if (act == LL_ACT_SLOPE || act == LL_ACT_TIMES)
        ll_kern_note("products with gelu and its gradient run as two kernels each: the one kernel "
                     "is for GPUs of compute capability 9.0, and rows of multiples of 8");
    return true;
}

extern "C" const ll_solver product_cuda[] = {
#ifdef LL_HOPPER
    {"sm90", own_fits, parts_scratch, run_own},
#endif
    {"few", few_fits<plain_of>, NULL, run_few<plain_of>},
    {"small", small_fits<plain_of>, NULL, run_small<plain_of>},
#ifdef LL_HOPPER
    {"sparse", sparse_fits, sparse_scratch, run_sparse, NULL, NULL, false, false, false,
     sparse_work},
#endif
    {"cublaslt", epilogue_fits, blas_scratch, as_epilogue},
    {"kernels", kernels_fit, blas_scratch, as_kernels},
    {}};
