/* solve.h: an op's call by the first of its solvers that fits. */
#pragma once
#include "kern/kern.h"

/* By the first that fits; some must. */
static inline size_t ll_solve_scratch(const ll_solver *list, const ll_kcall *c)
{
    const ll_solver *s = ll_solver_for(list, c);
    return s && s->scratch ? s->scratch(c) : 0;
}
static inline ll_err ll_solve(const ll_solver *list, const ll_kcall *c)
{
    return ll_solver_for(list, c)->run(c);
}
