/* rows.h: a tensor [*,c] seen as rows of c numbers: what expansions and gradients of row-wise ops
 * (softmax, norms, losses) are built of. */
#pragma once
#include "ir/op.h"
#include "kern/kern.h"

ll_val ll_row_sum(ll_graph *g, ll_val x);                       /* [*,c] -> [*] */
ll_val ll_row_max(ll_graph *g, ll_val x);                       /* [*,c] -> [*] */
ll_val ll_row_spread(ll_graph *g, ll_val v, const ll_shape *s); /* [*] -> s = [*,c] */
ll_val ll_col_sum(ll_graph *g, ll_val x);                       /* [*,c] -> [c] */
ll_val ll_col_spread(ll_graph *g, ll_val v, const ll_shape *s); /* [c] -> s = [*,c] */
int64_t ll_row_length(const ll_graph *g, ll_val x);             /* c */
/* a + b, where none stands for zero. */
ll_val ll_add_some(ll_graph *g, ll_val a, ll_val b);
/* Result k of the node that made v. */
ll_val ll_sibling(const ll_graph *g, ll_val v, int k);
/* Of the loop of that letter, 1 where there is none. */
double ll_extent(const ll_loops *l, char letter);
/* The default shape rule, for operands that must all have the first one's float type. */
ll_err ll_infer_floats(ll_infer *i);
/* Of an operand: "logits are", a float type. */
ll_err ll_check_float(ll_dtype t, const char *what);
/* An operand of indices must be i32. */
ll_err ll_check_index(const ll_infer *i, int operand);
