/* ways.h: by which of its solvers a call is made, and how many images at once, where that is a
 * matter of choice: what was measured, as data, and the choice by it, which is pure. Who measures
 * and keeps it: exec/choose.h. */
#pragma once
#include "base/text.h"
#include "ir/ir.h"
#include "pass/target.h"

/* One way to make calls of one kind. */
typedef struct ll_way {
    const char *key; /* the kind: op, operands, attributes, threads */
    const char *solver;
    int64_t at_once; /* images; 0: all */
    double seconds;
    size_t scratch;
} ll_way;

typedef struct ll_ways {
    ll_arena *arena;
    ll_way *v;
    int n, room, kept; /* kept: of n, measured in an earlier run */
} ll_ways;

/* What a run says of convolutions. */
typedef struct ll_conv_how {
    bool fast;          /* the quickest, as measured, that the limit allows */
    const char *solver; /* or this one where it fits; NULL: by rule */
    bool limited;
    size_t workspace;
} ll_conv_how;
/* conv: NULL or "accurate", "fast", or a solver; workspace: NULL or "auto", or bytes. */
ll_err ll_conv_read(const ll_target *t, const char *conv, const char *workspace, ll_conv_how *out);

/* NULL: there is nothing to choose: no solver that is taken where it is asked for alone. */
const ll_solver *ll_way_list(const ll_target *t, const ll_op *op);
char *ll_way_key(const ll_op *op, const ll_kcall *c, ll_arena *arena);
void ll_ways_add(ll_ways *w, const ll_way *way); /* a copy of it */
bool ll_ways_has(const ll_ways *w, const char *key);
double ll_ways_seconds(const ll_ways *w, const char *key, const char *solver, int64_t at_once);
/* Of what was measured the quickest that needs no more than limit bytes; of what was not, the one
 * that is asked for, or the first that fits, with as many images at once as the limit allows. Sets
 * c->solver and c->at_once. */
const ll_solver *ll_way_pick(const ll_solver *list, const ll_ways *w, const char *key, size_t limit,
                             ll_kcall *c);
/* A line for each, and back. What is no line of a table is an error. */
char *ll_ways_print(const ll_ways *w, ll_arena *arena);
ll_err ll_ways_parse(const char *text, ll_ways *w);
