/* weights_copy.h: a session's tensors, and how their elements and those of others are copied, for
 * weights that come in (weights_load.c) and go out (weights_save.c). */
#pragma once
#include "exec/session.h"
#include "kern/blocks.h"
#include "weights/state.h"
#include "weights/weight_map.h"

typedef struct ll_own_tensors {
    ll_st_tensor *t;
    ll_st_part *parts; /* NULL: whole */
    bool *moment;
    const ll_block_kind **blocks; /* of data, where t and parts are what it stands for; or NULL */
    int n;
} ll_own_tensors;

ll_own_tensors ll_weights_tensors(const ll_session *s, ll_arena *a);
/* Where tensor i is of blocks: the one that it stands for. */
void ll_weights_unblock(ll_own_tensors *x, int i, ll_arena *a);
ll_st_part ll_weights_part(const ll_own_tensors *x, int i);

/* Ours, and one of theirs. */
typedef struct ll_weights_copy {
    void *ours;
    ll_dtype dtype, other;
    uint8_t *theirs;
    int which; /* of several */
    bool out;  /* to theirs */
} ll_weights_copy;

/* Every element of the part that is in this one of theirs. */
void ll_weights_walk(const ll_weights_copy *c, const ll_shape *part, const ll_map_places *p);
