/* product.cu: a matmul and what surrounds it, as cuBLASLt's epilogues where it has them, and
 * otherwise as a matmul and kernels after it. The result is row-major, so cuBLASLt sees its
 * transpose (see matmul.cu): columns, which a bias runs along, are its rows. */
#include "kern/cuda/gemm.cuh"

#include "kern/einsum.h"

#include <cuda_fp8.h>

extern "C" {
ll_kernel product_cuda, matmul_cuda;
ll_scratch product_cuda_scratch;
}

typedef struct extras { /* NULL: there is none */
    const ll_tensor *bias, *pre;
} extras;

static extras extras_of(const ll_kcall *c)
{
    const ll_product_attr *attr = (const ll_product_attr *)c->attr;
    extras e = {attr->bias ? &c->in[attr->scaled ? 4 : 2] : NULL, NULL};
    if (attr->act == LL_ACT_DGELU) e.pre = &c->in[c->n_in - 1];
    return e;
}

/* ---- as an epilogue ---- */

static void matrices_of(const ll_kcall *c, gemm *g)
{
    const ll_tensor *a = &c->in[0], *b = &c->in[1], *y = &c->out[0];
    ll_einsum_plan p;
    ll_einsum_fold(((const ll_product_attr *)c->attr)->spec, &a->shape, &b->shape, &y->shape, &p);
    LL_ASSERT(p.n_around == 0 && p.n_sums == 0);
    matrix ma = {a->data, p.row.extent, p.sum.extent, p.row.stride[0], p.sum.stride[0], 0};
    matrix mb = {b->data, p.sum.extent, p.column.extent, p.sum.stride[1], p.column.stride[1], 0};
    matrix my = {y->data, p.row.extent, p.column.extent, p.row.stride[2], p.column.stride[2], 0};
    g->a = ll_gemm_turned(&mb);
    g->b = ll_gemm_turned(&ma);
    g->y = ll_gemm_turned(&my);
    g->batches = 1;
    g->a_type = b->dtype;
    g->b_type = a->dtype;
    g->y_type = y->dtype;
    int64_t scaled = ((const ll_product_attr *)c->attr)->scaled;
    if (!scaled) return;
    g->a_scale = (const float *)c->in[3].data;
    g->b_scale = (const float *)c->in[2].data;
    g->fast = scaled == LL_SCALED_FAST;
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
    default: return attr->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    }
}

static ll_err as_epilogue(const ll_kcall *c, bool *done)
{
    extras e = extras_of(c);
    gemm g = {};
    bool none;
    *done = false;
    matrices_of(c, &g);
    if (!ll_gemm_fits(&g.a) || !ll_gemm_fits(&g.b) || g.a.cols < 1 || g.y.rows < 1 || g.y.cols < 1)
        return LL_OK;
    if (e.pre && (e.pre->dtype != g.y_type || e.bias)) return LL_OK;
    g.epilogue = epilogue_of(c);
    if (e.bias) g.bias = e.bias->data, g.bias_type = e.bias->dtype;
    g.aux = e.pre ? e.pre->data : c->n_out == 2 ? c->out[1].data : NULL;
    TRY(ll_gemm_run(c, &g, &none));
    *done = !none;
    return LL_OK;
}

/* ---- as a kernel of its own after the product ---- */

typedef struct finishing { /* data NULL: there is none */
    ll_tensor y, bias, pre, keep;
    int64_t n, columns;
    int act;
} finishing;

__device__ static double gelu_of(double x)
{
    return 0.5 * x * (1 + tanh(LL_GELU_A * (x + LL_GELU_B * x * x * x)));
}

__device__ static double dgelu_of(double x)
{
    double t = tanh(LL_GELU_A * (x + LL_GELU_B * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * LL_GELU_A * (1 + 3 * LL_GELU_B * x * x);
}

static __global__ void finish(finishing f)
{
    GRID_STRIDE(i, f.n)
    {
        double v = load_any(f.y.data, f.y.dtype, i);
        if (f.bias.data) v += load_any(f.bias.data, f.bias.dtype, i % f.columns);
        if (f.keep.data) store_any(f.keep.data, f.keep.dtype, i, v);
        if (f.act == LL_ACT_RELU) v = v > 0 ? v : 0;
        if (f.act == LL_ACT_GELU) v = gelu_of(v);
        if (f.act == LL_ACT_DGELU) v *= dgelu_of(load_any(f.pre.data, f.pre.dtype, i));
        store_any(f.y.data, f.y.dtype, i, v);
    }
}

__device__ static float f8_value(const void *p, int type, int64_t i)
{
    __nv_fp8_interpretation_t kind = type == LL_F8_E4M3 ? __NV_E4M3 : __NV_E5M2;
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(((const uint8_t *)p)[i], kind)));
}

/* Of 8-bit floats in sizes that cuBLASLt does not take. */
static __global__ void scaled_product(gemm g, void *y)
{
    float by = *g.a_scale * *g.b_scale;
    GRID_STRIDE(e, g.y.rows * g.y.cols)
    {
        int64_t i = e % g.y.rows, j = e / g.y.rows;
        float sum = 0;
        for (int64_t k = 0; k < g.a.cols; k++)
            sum += f8_value(g.a.data, g.a_type, i * g.a.rs + k * g.a.cs) *
                   f8_value(g.b.data, g.b_type, k * g.b.rs + j * g.b.cs);
        store_any(y, g.y_type, i * g.y.rs + j * g.y.cs, sum * by);
    }
}

/* The product alone. */
static ll_err product_alone(const ll_kcall *c)
{
    const ll_product_attr *attr = (const ll_product_attr *)c->attr;
    ll_kcall product = *c;
    product.n_in = 2;
    product.n_out = 1;
    if (!attr->scaled) {
        ll_matmul_attr m = {};
        memcpy(m.spec, attr->spec, sizeof m.spec);
        m.out = attr->out;
        product.attr = &m;
        return matmul_cuda(&product);
    }
    gemm g = {};
    bool none = true;
    matrices_of(c, &g);
    g.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    if (g.y.rows < 1 || g.y.cols < 1) return LL_OK;
    if (g.a.cols > 0 && ll_gemm_fits(&g.a) && ll_gemm_fits(&g.b)) TRY(ll_gemm_run(c, &g, &none));
    if (!none) return LL_OK;
    scaled_product<<<blocks_for(g.y.rows * g.y.cols, 256), 256, 0, stream_of(c)>>>(
        g, (void *)g.y.data);
    CUDA_TRY(cudaGetLastError());
    return LL_OK;
}

static ll_err as_kernels(const ll_kcall *c)
{
    const ll_product_attr *attr = (const ll_product_attr *)c->attr;
    extras e = extras_of(c);
    TRY(product_alone(c));
    finishing f = {};
    f.y = c->out[0];
    if (e.bias) f.bias = *e.bias;
    if (e.pre) f.pre = *e.pre;
    if (c->n_out == 2) f.keep = c->out[1];
    f.n = ll_numel(&f.y.shape);
    f.columns = e.bias ? ll_numel(&f.bias.shape) : 1;
    f.act = (int)attr->act;
    if (f.n == 0 || (!f.bias.data && !f.keep.data && f.act == LL_ACT_NONE)) return LL_OK;
    finish<<<blocks_for(f.n, 256), 256, 0, stream_of(c)>>>(f);
    CUDA_TRY(cudaGetLastError());
    return LL_OK;
}

size_t product_cuda_scratch(const ll_kcall *c)
{
    return ll_cuda_gemm_scratch(c, ((const ll_product_attr *)c->attr)->spec);
}

ll_err product_cuda(const ll_kcall *c)
{
    bool done;
    TRY(as_epilogue(c, &done));
    return done ? LL_OK : as_kernels(c);
}
