/* tile.h: products of small f32 tiles that lie in the nearest caches: C [6,16] = A B, or C += A B,
 * A [6,k], B [k,16]. Attention is made of these. B and C have rows of unit stride. */
#pragma once
#include "base/types.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LL_TILE_M = 6, LL_TILE_N = 16 };

typedef struct ll_tile {
    int64_t k, lda, ldb, ldc;
    const float *a, *b;
    float *c;
    bool add;
} ll_tile;

/* Element (i, p) of A is a[i * lda + p]. */
void ll_tile_rows(const ll_tile *t);
/* Element (i, p) of A is a[p * lda + i]. */
void ll_tile_columns(const ll_tile *t);

#ifdef __cplusplus
}
#endif
