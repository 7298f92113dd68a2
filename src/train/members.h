/* members.h: the members of an ensemble, as its checkpoint has them (loose.h), one after another in
 * the place of a session's parameters. */
#pragma once
#include "train/state.h"

typedef struct ll_members {
    int n; /* 0: there are none */
    const ll_session *s;
    const ll_st_tensor *tensors; /* [n_tensor] of the session */
    int n_tensor;
    void **data; /* [n * n_tensor] */
} ll_members;

/* In arena; the session is of one process. */
ll_err ll_members_read(const ll_st_file *f, const ll_session *s, ll_arena *arena, ll_members *out);
ll_err ll_members_take(const ll_members *m, int k);
