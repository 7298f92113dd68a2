/* moves.h: the ops that move elements, as moves of boxes of them from where they lie in an operand
 * to where in the result, for the machines to carry out. */
#pragma once
#include "kern/walk.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LL_FROM, LL_TO }; /* walkers */
enum { LL_MOVES = 16 };  /* of a call, at most */

typedef struct ll_kernel_move {
    ll_walk w;
    size_t bytes;  /* of an element */
    const char *x; /* NULL: zeros */
    char *y;
} ll_kernel_move;

/* Of a call of an op, how many. */
int ll_slice_moves(const ll_kcall *c, ll_kernel_move m[LL_MOVES]);
int ll_pad_moves(const ll_kcall *c, ll_kernel_move m[LL_MOVES]);
int ll_concat_moves(const ll_kcall *c, ll_kernel_move m[LL_MOVES]);
int ll_reshape_moves(const ll_kcall *c, ll_kernel_move m[LL_MOVES]);
/* transpose and broadcast: the result's letters in the operand, which the op has checked. */
int ll_transpose_moves(const ll_kcall *c, ll_kernel_move m[LL_MOVES]);
int ll_broadcast_moves(const ll_kcall *c, ll_kernel_move m[LL_MOVES]);

#ifdef __cplusplus
}
#endif
