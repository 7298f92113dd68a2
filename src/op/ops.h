/* ops.h: the ops that passes make, or tell from others, one by one. What holds for many ops is a
 * property of each (ir/op.h). */
#pragma once
#include "ir/op.h"
#include "kern/attr.h"

extern const ll_op ll_op_accum, ll_op_accum_on, ll_op_amax, ll_op_broadcast, ll_op_fill,
    ll_op_matmul, ll_op_packed_matmul, ll_op_blocked_matmul, ll_op_round_blocks, ll_op_reshape,
    ll_op_slice, ll_op_softmax, ll_op_sum, ll_op_transpose;
/* Of states' names: keys and values of a generation (op/cached.c), which no file has. */
#define LL_CACHE ".cache"
#define LL_STATE_CACHE ".state" LL_CACHE /* one that cannot go back: linear attention's */
#define LL_PROMPT "prompt_embeddings"    /* of prompt tuning: a parameter */
/* Of states' names: a parameter's newest version, where gradients are of the one before it
 * (ll_delay). It begins as the parameter does. */
#define LL_NEXT ".next"
/* The op of an entry of LL_EW. */
const ll_op *ll_ew_op(ll_ew ew);
/* The op of a kind of collective. */
const ll_op *ll_collective_op(ll_collective kind);
static inline bool ll_is_op(const ll_node *n, const ll_op *op) /* n may be NULL */
{
    return n && n->op == op;
}
