/* graph_text.h: graphs, and trials of ops, read from text. */
#pragma once
#include "ir/op.h"

/* What ll_print has written, in a new graph. */
ll_err ll_parse(const char *text, ll_graph **out);
/* Parses "f32[2,3], i32[4]<5 {axis=1}": the operands and attributes of an op's trial. limit: the
 * bound after '<' (integers), 1 after '>' (positive numbers), -1 after '%' (two of each four are
 * 0), else 0. */
ll_err ll_parse_trial(const ll_op *op, const char *text, ll_arena *arena, int *n_in, ll_type *in,
                      int64_t *limit, void **attr);
