/* state.c: sessions to files and back. */
#include "train/state.h"

#include "train/checkpoint.h"

#include <inttypes.h>
#include <stdio.h>

int ll_session_tensors(const ll_session *s, ll_arena *arena, ll_st_tensor **out)
{
    const ll_program *p = ll_session_program(s);
    int n = ll_session_kept(s);
    *out = LL_NEW_ARRAY(arena, ll_st_tensor, n + 1);
    for (int i = 0; i < n; i++) {
        int slot = ll_session_kept_slot(s, i);
        const ll_slot *x = &p->slots[slot];
        (*out)[i] = (ll_st_tensor){x->name, x->type.dtype, x->type.shape,
                                   ll_exec_data(ll_session_exec(s), slot, 0)};
    }
    return n;
}

int64_t ll_session_parameters(const ll_session *s)
{
    const ll_program *p = ll_session_program(s);
    int64_t sum = 0;
    for (int i = 0; i < ll_session_kept(s); i++) {
        const ll_slot *x = &p->slots[ll_session_kept_slot(s, i)];
        if (x->kind == LL_PARAM) sum += ll_numel(&x->type.shape);
    }
    return sum;
}

ll_err ll_session_save(ll_session *s, const char *path)
{
    ll_arena *a = ll_arena_new();
    ll_st_tensor *tensors;
    int n = ll_session_tensors(s, a, &tensors);
    const char *step = ll_arena_printf(a, "%" PRIu64, ll_session_step(s));
    ll_err rc = ll_st_write(path, tensors, n, &(ll_st_pair){"step", step}, 1);
    ll_arena_free(a);
    return rc;
}

static ll_err load(ll_session *s, const ll_st_file *f, ll_arena *a)
{
    ll_st_tensor *tensors;
    int64_t step;
    int n = ll_session_tensors(s, a, &tensors);
    TRY(ll_checkpoint_int(f, "step", &step));
    TRY(ll_checkpoint_load(f, tensors, n, false));
    ll_session_set_step(s, (uint64_t)step);
    return LL_OK;
}

ll_err ll_session_load(ll_session *s, const char *path)
{
    ll_st_file *f;
    TRY(ll_checkpoint_open(path, &f));
    ll_arena *a = ll_arena_new();
    ll_err rc = load(s, f, a);
    ll_arena_free(a);
    ll_st_close(f);
    return rc;
}
