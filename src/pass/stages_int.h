/* stages_int.h: what the files of stages share. */
#pragma once
#include "pass/stages.h"

/* Where a parameter or state is kept; 0: it is none of these stages'. */
int ll_stages_home(const ll_stages *s, const char *name);
/* Finds these homes, where stages are known. (stages_cut.c) */
void ll_stages_settle(const ll_graph *g, ll_arena *arena, ll_stages *s);
