/* gemm.h: matrix products for kernels: C = A B, or C += A B.
 *
 * 1. All three matrices are given by a pointer and two strides, in elements: element (i, j) of x is
 *    x[i * x_rs + j * x_cs]. A transpose is a swap of strides. It is fast when one stride of each
 *    matrix is 1; other strides are right but slower. c_cs = 0 means 1.
 * 2. Products are summed in f32, of f64 operands in f64, from a start if there is one (base/num.h).
 * 3. m, n or k may be 0; k = 0 gives C = 0 (or leaves C, with add).
 * 4. The same call with the same thread count gives the same bits. Nothing is allocated.
 * 5. C must not overlap A, B or the scratch.
 *
 *     ll_gemm_call g = {.m = m, .n = n, .k = k,
 *                       .a = x, .a_rs = k, .a_cs = 1,          x [m,k]
 *                       .b = w, .b_rs = 1, .b_cs = k,          w [n,k], used transposed
 *                       .c = y, .c_rs = n};                    y [m,n]
 *     g.scratch = ...;                     ll_gemm_scratch(&g) bytes, 64-aligned
 *     ll_gemm(&g); */
#pragma once
#include "base/types.h"

typedef struct ll_gemm_call {
    int64_t m, n, k;
    const void *a, *b; /* [m,k], [k,n] */
    void *c;           /* [m,n] */
    int64_t a_rs, a_cs, b_rs, b_cs, c_rs, c_cs;
    bool bf16;     /* a and b are bf16, not f32 */
    bool bf16_out; /* c is bf16, not f32; not together with add */
    bool f64;      /* a, b and c are f64; not together with bf16 or bf16_out */
    double start;  /* ll_sum_start, of f64 */
    /* Of f64: NULL, or a and b are f32, fixed point is made of them as they are packed: rows of a
     * times a_by[i * a_bs], columns of b times b_by[j * b_bs], as odd numbers (kern/grid.h). */
    const double *a_by, *b_by;
    int64_t a_bs, b_bs;
    bool add;    /* C += A B */
    int threads; /* 0 means 1; ll_gemm_serial does not look */
    void *scratch;
} ll_gemm_call;

/* Runs on up to g->threads threads; not to be called from inside a parallel region. */
void ll_gemm(const ll_gemm_call *g);
/* Bytes of scratch for ll_gemm; pointers are not looked at. */
size_t ll_gemm_scratch(const ll_gemm_call *g);

/* The name of the tiles that multiply bf16, or f32, on this CPU. */
const char *ll_gemm_tiles(bool bf16);

/* On the calling thread alone, for use inside a parallel region; each thread its own scratch. */
void ll_gemm_serial(const ll_gemm_call *g);
/* A multiple of 64; with the same types and strides never less for a smaller m, n or k: the largest
 * call's serves all of them. */
size_t ll_gemm_serial_scratch(const ll_gemm_call *g);
