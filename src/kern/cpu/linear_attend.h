/* linear_attend.h: what linear attention's kernels share: chunks of keys, and the queries at the
 * same places, packed as attention's are (attention.h).
 *
 * Place r of a chunk: queries times f^r and keys times f^-r decay by what is between them, and so
 * do queries and the state, which is as of place 0. From chunk to chunk it shrinks by f^BLOCK. No f
 * is below 1/2, so that f32 holds all these. */
#pragma once
#include "kern/attr.h"
#include "kern/cpu/attention.h"

enum { LL_LIN_BLOCK = LL_ATT_BLOCK };

/* Rows of a head, so many elements apart; f32 or bf16. */
typedef struct ll_lin_rows {
    char *at;
    int64_t stride, width;
    ll_dtype type;
} ll_lin_rows;

typedef struct ll_lin {
    int64_t b, t, s, n, g, d, e, ahead;
    const ll_linear_attr *attr;
} ll_lin;

/* A chunk: keys from `at` on, and queries from `from` on, the first at place `first`. */
typedef struct ll_lin_chunk {
    int64_t at, keys, from, queries, first;
} ll_lin_chunk;

/* Of q, k and v, one after the other. */
ll_lin ll_lin_of(const ll_tensor *q, const void *attr);
ll_lin_chunk ll_lin_chunk_of(const ll_lin *p, int64_t at);
/* Rows of head n of keys of sample b, or, g >= 0, of head g of those that share it. */
ll_lin_rows ll_lin_rows_of(const ll_tensor *x, int64_t b, int64_t n, int64_t g);
/* to [count, width] = rows from `from` on; row i is times exp(rate (first + i)). */
void ll_lin_pack(const ll_lin_rows *x, int64_t from, int64_t count, double rate, int64_t first,
                 float *to);
/* The other way around. */
void ll_lin_put(const ll_lin_rows *x, int64_t from, int64_t count, double rate, int64_t first,
                const float *made);
/* Scores s [keys, queries] of a chunk: more[query] is added (NULL: nothing), and those of keys
 * behind their query are 0; sum[query] += all that it sees, or NULL. */
void ll_lin_mask(const ll_lin_chunk *c, const float *more, float *s, float *sum);
