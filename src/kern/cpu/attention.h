/* attention.h: what attention's fast kernels share: of f32 (attention.c, attention_grad.c), whose
 * layout this is, and of bf16 (attention_bf16.c).
 *
 * One head of one sample is one piece of work. Its rows of q, k, v are packed side by side, each
 * padded to a multiple of LL_ATT_N (width). Time is cut into blocks of queries and of keys; the
 * scores of one pair of blocks are kept transposed, s[key][query], so that everything softmax does
 * runs across queries, and both products that read scores find them in the order they need.
 * Queries come in panels of LL_ATT_N (whole vectors), keys in groups of 6. */
#pragma once
#include "base/num.h"
#include "kern/heads.h"

/* Keys and queries of a tile (24 vectors of sums where a vector is 128 bits, 12 where it is 512);
 * of a block. */
#if defined(__AVX512F__)
enum { LL_ATT_N = 32 };
#else
enum { LL_ATT_N = 16 };
#endif
enum { LL_ATT_M = 6, LL_ATT_BLOCK = 96 };

/* Arrays laid out one behind the other from `at` on (NULL: only measured); returns the floats. */
typedef struct ll_att_array {
    void *place;  /* of a pointer to them */
    int64_t size; /* in floats */
} ll_att_array;
size_t ll_att_lay_out(float *at, const ll_att_array *arrays, size_t n);
#define LL_ATT_LAY_OUT(at, ...)                                                                    \
    ll_att_lay_out(at, (const ll_att_array[]){__VA_ARGS__},                                        \
                   sizeof((const ll_att_array[]){__VA_ARGS__}) / sizeof(ll_att_array))

/* Head n of all b h of them: where in q, k and v it begins, in numbers; and its mask, or NULL. */
typedef struct ll_att_head {
    int64_t q, k, v;
    const float *mask;
} ll_att_head;
ll_att_head ll_att_head_of(const ll_att *p, int64_t n);
/* Where in o. */
static inline int64_t ll_att_out(const ll_att *p, int64_t n)
{
    return (n / p->h * p->t * p->h + n % p->h) * p->e;
}
/* d to the next multiple of LL_ATT_N: the room that a row takes */
static inline int64_t ll_att_width(int64_t d)
{
    return ll_round_up(d, LL_ATT_N);
}
/* to [rows, width] = from [rows, d] of that stride, times by; the padding is zeros. */
void ll_att_pack(int64_t rows, int64_t d, const float *from, int64_t stride, float by, float *to);
/* to [d, LL_ATT_BLOCK] = n <= LL_ATT_BLOCK rows of from [*, d] of that stride, transposed and times
 * by; the rest of the last panel is zeros. */
void ll_att_transpose(int64_t d, const float *from, int64_t stride, int64_t n, float by, float *to);
/* s [keys, queries] = a bt for one pair of blocks, without tiles that lie wholly above the
 * diagonal. a [keys, width], bt [d, queries]; ahead: first query less first key. */
void ll_att_scores(int64_t d, const float *a, const float *bt, int64_t keys, int64_t queries,
                   int64_t ahead, float *s);
/* How many of a block's keys the panel of queries from q on sees. */
int64_t ll_att_seen(int64_t keys, int64_t q, int64_t ahead);
/* One panel's scores get the mask's numbers, of query q and the block's first key on; those above
 * the diagonal become minus infinity; s: its column of s. */
void ll_att_mask(const ll_att *p, const float *mask, int64_t queries, float *s, int64_t keys,
                 int64_t q, int64_t ahead);
/* c [queries, width] += s^T b for one pair of blocks; b [keys, width]; s [keys, step]. All keys
 * where ahead is no less than they are. */
void ll_att_gather(int64_t d, const float *s, int64_t step, const float *b, int64_t keys,
                   int64_t queries, int64_t ahead, float *c);
/* c [keys, width] += s b, from each group's first query that sees it on; b [queries, width]. */
void ll_att_spread(int64_t d, const float *s, const float *b, int64_t keys, int64_t queries,
                   int64_t ahead, float *c);

/* What a gradient has besides operands, f32 or as these; rows as of o, and of q, k and v. */
typedef struct ll_att_grads {
    const void *g, *o;        /* do; o NULL: delta is given */
    const float *lse, *delta; /* [b,h,t] */
    void *dq, *dk, *dv;
} ll_att_grads;
/* A call, for threads to share: heads, or (gradients) heads of keys. */
typedef struct ll_att_job {
    const ll_kcall *c;
    const ll_att *p;
    const ll_att_grads *f; /* NULL: forward */
} ll_att_job;
/* Floats of a thread's room, and what it makes. */
size_t ll_att_grad_room(const ll_att *p), ll_att_bf16_room(const ll_att *p, bool grad);
void ll_att_grad_part(const void *job, int number, int64_t from, int64_t to);
void ll_att_bf16_part(const void *job, int number, int64_t from, int64_t to);
void ll_att_bf16_grad_part(const void *job, int number, int64_t from, int64_t to);
