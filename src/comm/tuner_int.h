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
