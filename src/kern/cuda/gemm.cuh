/* gemm.cuh: matrix products through cuBLASLt, with what may surround them. gemm.cu keeps a plan for
 * each kind of product: descriptors, and the algorithm that was chosen when it was first met. */
#pragma once
#include "kern/cuda/gpu.cuh"

#include <cublasLt.h>

enum { GEMM_WORKSPACE = 32 << 20 };

typedef struct matrix { /* element (i, j) at i * rs + j * cs, of product z at z * batch more */
    const void *data;
    int64_t rows, cols, rs, cs, batch;
} matrix;

/* y = a b, or what the epilogue makes of it. y is column-major (y.rs is 1, or it has one row), and
 * a and b have a unit stride each. Bias runs along y's rows, aux has y's shape and is dense. */
/* Of an operand of 8-bit floats: one of all, of blocks along the summed loop, of squares. */
typedef enum scales_of { SCALES_ONE, SCALES_LINES, SCALES_SQUARES } scales_of;

typedef struct gemm {
    matrix a, b, y;
    int64_t batches;
    ll_dtype a_type, b_type, y_type;
    const void *add; /* is added: NULL, y.data, or another matrix that lies as y does */
    cublasLtEpilogue_t epilogue;
    void *bias; /* read, or written by epilogues that make a bias's gradient */
    ll_dtype bias_type;
    void *aux;
    const float *a_scale, *b_scale; /* of 8-bit floats, in device memory; NULL: none */
    scales_of a_scales, b_scales;
    bool fast; /* sums of 8-bit floats may be kept in fewer bits for a while */
} gemm;

extern "C" {
/* A matrix that cuBLASLt can read: one stride is 1. */
bool ll_blas_fits(const matrix *m);
matrix ll_blas_transposed(const matrix *m);
/* Bytes of scratch of a product with this spec. Tells people where its rows make it slow. */
size_t ll_blas_scratch(const ll_kcall *c, const char *spec);
/* The product of a call's first two operands with this spec, by cuBLASLt where it takes it. */
ll_err ll_blas_product(const ll_kcall *c, const char *spec);
/* Queues the product. none: cuBLASLt has no algorithm for it, and nothing was queued. */
ll_err ll_blas_run(const ll_kcall *c, const gemm *g, bool *none);
}
