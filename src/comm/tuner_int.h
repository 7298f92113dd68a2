/* tuner_int.h: what the files tuner*.c share. */
#pragma once
#include "comm/tuner.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ll_tuner {
    ll_arena *arena;
    int size; /* ranks that the table is for */
    ll_link_model model;
    const ll_tuned *entries; /* by collective, shared, bytes */
    int n_entry;
    const char *file;
    bool was_read;
    double seconds;
};

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
    size_t most_bytes; /* of data that there is memory for */
} ll_tuning;

/* Every number becomes the largest that any rank has. Collective. */
ll_err ll_tuner_most(ll_comm *c, double *values, int n);
/* Ways are tried on elements of this type. */
enum { LL_TUNE_ELEM = 4 };
void ll_tuner_spec(const ll_tuning *t, const ll_tune_cell *cell, const ll_tuned_way *w,
                   ll_coll_spec *out);

/* Measures t->model (tuner_fit.c). Collective. */
ll_err ll_tuner_fit(ll_tuning *t);
/* Fills cells with ways, best predicted first, the same on all ranks (tuner_plan.c). Collective. */
ll_err ll_tuner_plan(ll_tuning *t);
/* Of two ways: by the measured time; those without one after them, by the predicted one. */
int ll_tuner_by_time(const void *a, const void *b);
/* Measures the first ways of each cell and sorts them (tuner_measure.c). Collective. */
ll_err ll_tuner_measure(ll_tuning *t);

/* ---- the file (tuner_file.c) ---- */
/* What a table depends on, in words: ranks and nodes, MPI library, machine, window. */
const char *ll_tuner_key(ll_arena *arena, ll_comm *c);
/* $XDG_CACHE_HOME/loopline/comm-....json; NULL where there is no home to keep it in. */
const char *ll_tuner_path(ll_arena *arena, ll_comm *c, const char *key);
/* Any bytes as a table. Fails, saying what is wrong, unless it is one for this key (NULL: any) and
 * so many ranks. path is for messages. */
ll_err ll_tuner_parse(const char *text, size_t bytes, const char *path, const char *key, int size,
                      ll_tuner **out);
ll_err ll_tuner_write(const ll_tuner *t, const char *path, const char *key);

/* Is the result a sum, whose order canonical calls care for? */
bool ll_tuner_sums(ll_coll c);

#ifdef __cplusplus
}
#endif
