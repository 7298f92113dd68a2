/* prune.h: numbers that become zeros, by magnitude: in each M of a row N stay ("2:4"), or of all a
 * share goes ("0.5"). */
#pragma once
#include "pass/pass.h"

typedef struct ll_prune {
    int keep, of; /* of 0: */
    double share; /* that becomes zero; 0: none */
} ll_prune;

enum { LL_PRUNE_MOST = 64 }; /* numbers of a group */
/* "none", "2:4", "0.5". LL_E_ARG. */
ll_err ll_prune_parse(const char *text, ll_prune *out);
static inline bool ll_prunes(const ll_prune *p)
{
    return p->of || p->share > 0;
}

/* Whether two of each four numbers beside each other go, or more. */
static inline bool ll_prune_halves(const ll_prune *p)
{
    return p->of > 0 && 4 % p->of == 0 && 2 * p->keep <= p->of;
}

/* When: from one step to another every so many, by (1 - (1 - part of them)^3) of the rule (Zhu and
 * Gupta, 2017), all of it at the last. A step counts by how many were made before it. */
typedef struct ll_prune_steps {
    int64_t from, to, every; /* to 0: before the first step, all at once */
} ll_prune_steps;
/* "" (at once), "A:B" (every tenth part of them), "A:B:K". LL_E_ARG. */
ll_err ll_prune_steps_parse(const char *text, ll_prune_steps *out);
/* What a step prunes by: of a group fewer go at first. False: nothing. */
bool ll_prune_at(const ll_prune *p, const ll_prune_steps *s, int64_t step, ll_prune *out);

/* Of equals the first stay; a last group that is smaller keeps as many as the others. */
void ll_prune_numbers(const ll_prune *p, ll_dtype type, void *w, int64_t rows, int64_t cols);
