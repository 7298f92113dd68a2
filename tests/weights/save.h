/* save.h: a checkpoint written in one go, and no more than keep left, as train/saver.h does. */
#pragma once
#include "weights/checkpoint.h"
#include "run/ranks.h"

static inline ll_err save_all(const char *run, const ll_checkpoint *c, int keep)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    LL_OWN(ll_st_writer) w = NULL;
    TRY(ll_checkpoint_begin(run, c, a, &w));
    TRY(ll_st_finish(w));
    return ll_ranks_agree(c->x.comm,
                          ll_ranks_lead(c->x.comm) ? ll_checkpoint_prune(run, c, keep) : LL_OK);
}
