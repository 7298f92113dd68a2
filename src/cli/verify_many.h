/* verify_many.h: verify of many small models on many meshes, in one job: all that there are, or
 * such as chance has it. */
#pragma once
#include "cli/args.h"
#include "comm/comm.h"

typedef struct ll_verify_words {
    const char *run; /* of many: a model; NULL: every one */
    ll_words set;    /* of many: settings of all cases, of what they do not set themselves */
    int64_t ranks, steps, seed;
    double tolerance, fuzz; /* fuzz: seconds of drawing */
    bool random, matrix;
    bool json;      /* of many: one object in the end, in place of lines */
    bool pipelines; /* of the matrix: every schedule too */
} ll_verify_words;

/* Collective; rank 0 prints. Each case has as many of the ranks as its mesh has; the others wait.
 * Fails where a case does, after the last one. */
/* matrix_has: fails where the matrix has nothing of the model and meshes that are asked for. */
ll_err ll_verify_matrix_has(const ll_verify_words *o, int ranks);
ll_err ll_verify_matrix(ll_comm *c, const ll_verify_words *o);
ll_err ll_verify_fuzz(ll_comm *c, const ll_verify_words *o);
