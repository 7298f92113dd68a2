/* state.c: sessions to files and back. */
#include "weights/state.h"

#include "kern/blocks.h"
#include "weights/checkpoint.h"
#include "weights/residual.h"
#include "run/teacher.h"

/* Of an input that is cut over a mesh, what this rank has. */
static ll_st_part part_of(const ll_session *s, const ll_slot *x, int i)
{
    const ll_placement *place = s->cut->place;
    const ll_layout *l = &place->made[ll_find(place->g, x->name).id];
    int rank = s->team->rank;
    ll_st_part part = {.shape = x->type.shape};
    if (x->piece) memcpy(part.at, x->piece->at, sizeof part.at);
    ll_axes copies = ll_session_copies(s, l); /* whose ranks take turns */
    part.spare =
        ll_mesh_member(&place->mesh, copies, rank) != i % ll_mesh_group(&place->mesh, copies);
    return part;
}

bool ll_is_cache(const char *name)
{
    return ll_ends_with(name, LL_CACHE);
}

/* What other stages of a pipeline keep, with no data here. */
static void add_elsewhere(const ll_session *s, ll_st_list *l)
{
    for (int i = 1; i < s->g->n_value && s->p->pipe; i++) {
        const ll_value *v = &s->g->values[i];
        bool kept = v->node < 0 && (v->kind == LL_PARAM || v->kind == LL_STATE);
        if (!kept || ll_is_cache(v->name) || ll_is_teacher(v->name)) continue;
        if (ll_program_input(s->p, v->name) >= 0) continue;
        l->parts[l->n] = (ll_st_part){.spare = true};
        l->tensors[l->n++] = (ll_st_tensor){v->name, v->type.dtype, v->type.shape, NULL};
    }
}

bool ll_is_moment(const ll_graph *g, const char *name)
{
    const char *dot = strrchr(name, '.');
    for (int i = 1; dot && i < g->n_value; i++) {
        const ll_value *v = &g->values[i];
        if (v->kind == LL_PARAM && v->name && strlen(v->name) == (size_t)(dot - name) &&
            !strncmp(v->name, name, (size_t)(dot - name)))
            return true;
    }
    return false;
}

ll_st_list ll_session_tensors(const ll_session *s, ll_arena *arena)
{
    const ll_program *p = s->p;
    bool cut = s->team != NULL;
    int most = s->n_kept + s->g->n_value;
    ll_st_list l = {.tensors = LL_NEW_ARRAY(arena, ll_st_tensor, most),
                    .parts = cut ? LL_NEW_ARRAY(arena, ll_st_part, most) : NULL};
    for (int i = 0; i < s->n_kept; i++) {
        int slot = s->kept[i];
        const ll_slot *x = &p->slots[slot];
        if (ll_is_cache(x->name) || ll_is_teacher(x->name)) continue;
        if (cut) l.parts[l.n] = part_of(s, x, i);
        l.tensors[l.n++] =
            (ll_st_tensor){x->name, x->type.dtype, x->piece ? x->piece->whole : x->type.shape,
                           ll_exec_data(s->e, slot, 0)};
    }
    if (cut) add_elsewhere(s, &l);
    return l;
}

ll_st_list ll_session_all_tensors(const ll_session *s, ll_arena *arena)
{
    ll_st_list kept = ll_session_tensors(s, arena), more = ll_residual_tensors(s, arena);
    int n = kept.n;
    if (!more.n) return kept;
    ll_st_list all = {LL_NEW_ARRAY(arena, ll_st_tensor, n + more.n),
                      LL_NEW_ARRAY(arena, ll_st_part, n + more.n), n + more.n};
    for (int i = 0; i < all.n; i++) {
        all.tensors[i] = i < n ? kept.tensors[i] : more.tensors[i - n];
        all.parts[i] = i < n ? kept.parts[i] : more.parts[i - n];
    }
    return all;
}

ll_err ll_session_loaded(const ll_session *s)
{
    for (int i = 0; i < s->n_kept; i++) TRY(ll_exec_changed(s->e, s->kept[i]));
    return LL_OK;
}

ll_err ll_session_swap_averages(ll_session *s)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    bool any = false;
    for (int i = 0; i < s->n_kept; i++) {
        const ll_slot *x = &s->p->slots[s->kept[i]];
        size_t n = ll_tensor_bytes(x->type.dtype, &x->type.shape);
        int slot = ll_program_input(s->p, ll_arena_printf(a, "%s" LL_EMA, x->name));
        if (x->kind != LL_PARAM || slot < 0) continue;
        LL_ASSERT(ll_shape_equal(&x->type.shape, &s->p->slots[slot].type.shape));
        char *one = (char *)ll_exec_data(s->e, s->kept[i], 0);
        char *two = (char *)ll_exec_data(s->e, slot, 0);
        void *keep = ll_arena_copy(a, one, n);
        memcpy(one, two, n);
        memcpy(two, keep, n);
        any = true;
    }
    return any ? ll_session_loaded(s) : LL_OK;
}

ll_err ll_session_take(ll_session *s, const ll_st_file *f, int64_t *step)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_st_list l = ll_session_tensors(s, a);
    TRY(ll_checkpoint_check_model(f, l.tensors, l.n));
    LL_EACH (ll_st_tensor, t, l.tensors, l.n) {
        const char *average = ll_arena_printf(a, "%s" LL_EMA, t->name);
        if (ll_st_find(f, average)) t->name = average;
    }
    TRY(ll_checkpoint_load(f, l.tensors, l.parts, l.n, false)); /* without the optimizer's state */
    TRY(ll_session_loaded(s));
    return ll_checkpoint_int(f, "step", step);
}

int64_t ll_session_parameters(const ll_session *s)
{
    int64_t sum = 0;
    LL_EACH (const ll_value, v, s->g->values + 1, s->g->n_value - 1)
        if (v->node < 0 && v->kind == LL_PARAM && !ll_is_teacher(v->name))
            sum += ll_block_numbers(v->name, v->type.dtype, &v->type.shape);
    return sum;
}

ll_err ll_session_save(ll_session *s, const char *path)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    TRY(ll_session_settle(s));
    ll_st_list l = ll_session_all_tensors(s, a);
    ll_st_pair step = {"step", ll_arena_printf(a, "%lu", s->step)};
    ll_st_content x = {
        .tensors = l.tensors, .n = l.n, .parts = l.parts, .meta = &step, .n_meta = 1};
    if (s->team) x.comm = s->team->c;
    return ll_st_write(path, &x);
}
