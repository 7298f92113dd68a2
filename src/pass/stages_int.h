/* stages_int.h: what the files of stages share. */
#pragma once
#include "pass/stages.h"

static inline bool ll_is_mean(const ll_node *n)
{
    return ll_is_op(n, &ll_op_accum);
}
/* Where a parameter or state is kept; 0: it is none of these stages'. */
int ll_stages_home(const ll_stages *s, const char *name);
/* Finds these homes, where stages are known. (stages_cut.c) */
void ll_stages_settle(const ll_graph *g, ll_arena *arena, ll_stages *s);
