/* tile.c: the 6 x 16 tile product (see tile.h). 24 vectors of sums on a machine with 128-bit
 * vectors, 12 with 256, 6 with 512: they stay in registers, and each step needs one row of B and
 * six numbers of A. */
#include "kern/cpu/tile.h"

#include "kern/cpu/vec.h"

#if defined(__GNUC__) && !defined(__clang__)
/* Scheduling before register allocation spills the sums: a fifth of the speed. */
#pragma GCC optimize("no-schedule-insns")
#endif

enum { M = LL_TILE_M, VECTORS = LL_TILE_N / LL_LANES };

/* The sums are an array only in the text: every loop over them is unrolled. */
static inline __attribute__((always_inline)) void product(const ll_tile *t, int64_t row,
                                                          int64_t step)
{
    ll_vec sum[M][VECTORS];
    const float *a = t->a, *b = t->b;
    int64_t ldb = t->ldb, ldc = t->ldc;
#pragma GCC unroll 8
    for (int i = 0; i < M; i++)
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++)
            sum[i][j] = t->add ? ll_vec_at(t->c + i * ldc + j * LL_LANES) : ll_vec_all(0);
    for (int64_t p = t->k; p > 0; p--, a += step, b += ldb) {
        ll_vec v[VECTORS];
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++) v[j] = ll_vec_at(b + j * LL_LANES);
#pragma GCC unroll 8
        for (int i = 0; i < M; i++)
#pragma GCC unroll 8
            for (int j = 0; j < VECTORS; j++) sum[i][j] += v[j] * a[i * row];
    }
#pragma GCC unroll 8
    for (int i = 0; i < M; i++)
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++) ll_vec_to(t->c + i * ldc + j * LL_LANES, sum[i][j]);
}

void ll_tile_rows(const ll_tile *t)
{
    product(t, t->lda, 1);
}

void ll_tile_columns(const ll_tile *t)
{
    product(t, 1, t->lda);
}
