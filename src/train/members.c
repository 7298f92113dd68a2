/* members.c: see members.h. */
#include "train/members.h"

#include "train/checkpoint.h"
#include "train/loose.h"

ll_err ll_members_read(const ll_st_file *f, const ll_session *s, ll_arena *arena, ll_members *out)
{
    ll_st_tensor *tensors;
    int n = ll_session_tensors(s, arena, &tensors, NULL);
    int members = n ? ll_loose_in(f, tensors[0].name) : 0;
    CHECK(members, LL_E_IO, "%s has no members of an ensemble", ll_st_path(f));
    *out = (ll_members){.n = members, .s = s, .tensors = tensors, .n_tensor = n};
    out->data = LL_NEW_ARRAY(arena, void *, (int64_t)members *n + 1);
    for (int k = 0; k < members; k++)
        for (int i = 0; i < n; i++) {
            ll_st_tensor t = tensors[i];
            t.name = ll_arena_printf(arena, LL_REPLICA "%d.%s", k, t.name);
            t.data = out->data[k * n + i] =
                ll_arena_alloc(arena, ll_tensor_bytes(t.dtype, &t.shape));
            TRY(ll_checkpoint_load(f, &t, NULL, 1, false));
        }
    return LL_OK;
}

ll_err ll_members_take(const ll_members *m, int k)
{
    for (int i = 0; i < m->n_tensor; i++)
        memcpy(m->tensors[i].data, m->data[k * m->n_tensor + i],
               ll_tensor_bytes(m->tensors[i].dtype, &m->tensors[i].shape));
    return ll_session_loaded(m->s);
}
