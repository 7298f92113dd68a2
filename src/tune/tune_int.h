/* tune_int.h: what the files of tune/ share. */
#pragma once
#include "tune/tune.h"

/* A size of a collective, and the ways that were considered for it. */
typedef struct ll_tune_cell {
    ll_coll coll;
    bool shared;
    size_t bytes;
    double weight; /* its share of the time for measuring */
    ll_tuned_way *ways;
    int n_way, n_short;         /* the first n_short are worth measuring */
    struct ll_tune_runs *tries; /* of those measured; the first n_left are not dropped */
    int n_try, n_left;
} ll_tune_cell;

/* One tuning, from its start on. */
typedef struct ll_tuning {
    ll_comm *c;
    ll_arena *arena;
    double began, budget_s;
    ll_link_model model;
    ll_tune_cell *cells;
    int n_cell;
} ll_tuning;

/* Every number becomes the largest that any rank has. Collective. */
ll_err ll_tune_most(ll_comm *c, double *values, int n);
/* Ways are tried on elements of this type. */
enum { LL_TUNE_ELEM = 4 };
void ll_tune_spec(const ll_tuning *t, const ll_tune_cell *cell, const ll_tuned_way *w,
                  ll_coll_spec *out);

/* Measures t->model (fit.c). Collective. */
ll_err ll_tune_fit(ll_tuning *t);
/* Fills cells with ways, best predicted first, the same on all ranks (plan.c). Collective. */
ll_err ll_tune_plan(ll_tuning *t);
/* Of two ways: by the measured time; those without one after them, by the predicted one. */
int ll_tune_by_time(const void *a, const void *b);
/* Measures the first ways of each cell and sorts them (measure.c). Collective. */
ll_err ll_tune_measure(ll_tuning *t);

/* ---- the file (file.c) ---- */
#define LL_TABLE_MARK "loopline_comm_table" /* the first key of a table */
/* What a table depends on, in words: ranks and nodes, MPI library, machine, window. */
const char *ll_tune_key(ll_arena *arena, ll_comm *c);
/* $XDG_CACHE_HOME/loopline/comm-....json; NULL where there is no home to keep it in. */
const char *ll_tune_path(ll_arena *arena, ll_comm *c, const char *key);
/* Any bytes as a table. Fails, saying what is wrong, unless it is one for this key (NULL: any) and
 * so many ranks. path is for messages. */
ll_err ll_tune_parse(const char *text, size_t bytes, const char *path, const char *key, int size,
                     ll_tuned_table **out);
ll_err ll_tune_write(const ll_tuned_table *t, const char *path, const char *key);
