/* rma.h: memory that the ranks of a communicator have in common, and come to one at a time without
 * the others' doing: what a parameter server has.
 *
 *     TRY(ll_rma_enter(s));
 *     TRY(ll_rma_get(s, at, v, bytes));  ...  TRY(ll_rma_put(s, at, v, bytes));
 *     TRY(ll_rma_leave(s));
 *
 * A head of few bytes is the first rank's; what follows is too, or is cut over all ranks. Begins as
 * zeros. Between nodes a communicator with a thread is wanted, which serves who comes. */
#pragma once
#include "comm/comm.h"

typedef struct ll_rma ll_rma;

/* Collective over all ranks of the family of communicators, each with its own; as is closing. */
ll_err ll_rma_open(ll_comm *c, size_t head, size_t bytes, bool sharded, ll_rma **out);
void ll_rma_close(ll_rma *s);

/* Waits until nobody else is in it. */
ll_err ll_rma_enter(ll_rma *s);
ll_err ll_rma_leave(ll_rma *s);
ll_err ll_rma_head(ll_rma *s, void *head); /* what it is; from outside too */
ll_err ll_rma_set_head(ll_rma *s, const void *head);
/* From outside by several at once, of what none of them writes meanwhile. */
ll_err ll_rma_get(ll_rma *s, size_t at, void *to, size_t bytes);
ll_err ll_rma_put(ll_rma *s, size_t at, const void *from, size_t bytes);
/* From outside, and by several at once: adds f32 of so many bytes, each element by itself, and says
 * what was there. */
ll_err ll_rma_add(ll_rma *s, size_t at, const float *from, float *was, size_t bytes);
int64_t ll_rma_moved(const ll_rma *s); /* bytes, to and from other ranks */
