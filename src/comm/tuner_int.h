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

/* Is the result a sum, whose order canonical calls care for? */
bool ll_tuner_sums(ll_coll c);

#ifdef __cplusplus
}
#endif
