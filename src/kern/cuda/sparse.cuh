/* sparse.cuh: products of bf16 matrices of which one has two zeros in each four numbers, by
 * Hopper's sparse tensor cores (sparse.cu). */
#pragma once
#include "kern/cuda/gemm.cuh"

typedef struct sparse { /* y = x w' + bias; rows of all are multiples of 16 bytes */
    matrix x, w, y;     /* [rows, k], [features, k], [rows, features], row-major */
    const void *bias;   /* bf16 [features], or NULL */
} sparse;

/* fits: whether it can, on a GPU that has it; pays: whether it is quicker than a dense product. */
extern "C" {
bool ll_sparse_fits(const sparse *s);
bool ll_sparse_pays(const sparse *s, int processors);
size_t ll_sparse_scratch(const sparse *s);
ll_err ll_sparse_run(const ll_kcall *c, const sparse *s);
}
