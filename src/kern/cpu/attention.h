/* attention.h: what attention's two fast kernels share.
 *
 * One head of one sample is one piece of work. Its rows of q, k, v are packed side by side, each
 * padded to a multiple of 16 (width). Time is cut into blocks of queries and blocks of keys; the
 * scores of one pair of blocks are kept transposed, s[key][query], so that everything softmax does
 * runs across queries, and both products that read scores find them in the order they need.
 * Queries come in panels of 16 (vector lanes), keys in groups of 6. */
#pragma once
#include "kern/kern.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Keys and queries of a tile (24 vectors of sums where a vector is 128 bits); of a block. */
enum { LL_ATT_M = 6, LL_ATT_N = 16, LL_ATT_BLOCK = 96 };

typedef struct ll_att_head {
    int64_t t, d, width; /* width: d, to the next multiple of 16 */
    int64_t stride;      /* from one time to the next in qkv: 3 h d */
    const float *q, *k, *v;
} ll_att_head;

/* Head n of all b h of them. */
ll_att_head ll_att_head_of(const ll_tensor *qkv, int64_t n);
/* to [rows, width] = from [rows, d] of that stride, times by; the padding is zeros. */
void ll_att_pack(const ll_att_head *p, const float *from, int64_t stride, float by, float *to);
/* to [d, LL_ATT_BLOCK] = n <= LL_ATT_BLOCK rows of from [*, d] of that stride, transposed and times
 * by; the rest of the last panel is zeros. */
void ll_att_transpose(const ll_att_head *p, const float *from, int64_t stride, int64_t n, float by,
                      float *to);
/* s [keys, queries] = a bt for one pair of blocks, without tiles that lie wholly above the
 * diagonal. a [keys, width], bt [d, queries]; ahead: first query less first key. */
void ll_att_scores(const ll_att_head *p, const float *a, const float *bt, int64_t keys,
                   int64_t queries, int64_t ahead, float *s);
/* How many of a block's keys the panel of 16 queries from q on sees. */
int64_t ll_att_seen(int64_t keys, int64_t q, int64_t ahead);
/* Scores above the diagonal of one panel become minus infinity; s: its column of s. */
void ll_att_mask(float *s, int64_t keys, int64_t q, int64_t ahead);
/* c [queries, width] += s^T b for one pair of blocks; b [keys, width]. */
void ll_att_gather(const ll_att_head *p, const float *s, const float *b, int64_t keys,
                   int64_t queries, int64_t ahead, float *c);
/* c [keys, width] += s b, from each group's first query that sees it on; b [queries, width]. */
void ll_att_spread(const ll_att_head *p, const float *s, const float *b, int64_t keys,
                   int64_t queries, int64_t ahead, float *c);

#ifdef __cplusplus
}
#endif
