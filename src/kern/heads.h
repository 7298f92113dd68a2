/* heads.h: the operands of attention, packed in one tensor or not, as kernels of all machines walk
 * them. */
#pragma once
#include "kern/kern.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Queries, keys and values of b samples of h heads; h / n heads in a row share one of n heads of
 * keys. Query i sees keys up to i + ahead. A head's rows are q_row, k_row, v_row elements apart. */
typedef struct ll_att {
    int64_t b, t, s, h, n, d, e; /* t queries, s keys of d; values of e */
    int64_t ahead, q_row, k_row, v_row;
    double scale;
    const void *q, *k, *v, *mask; /* NULL: only sizes are wanted; no mask */
    int64_t by[5]; /* mask: from one sample, head of keys, head of its group, query, key to the next
                    */
} ll_att;

/* qkv [b,t,3,h,d], causal. */
ll_att ll_att_packed(const ll_tensor *qkv);
/* q, k and v, one after the other; mask: may be NULL. attr: ll_attend_attr. */
ll_att ll_att_of(const ll_tensor *q, const ll_tensor *mask, const void *attr);

#ifdef __cplusplus
}
#endif
