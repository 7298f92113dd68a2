/* loose_save.c: replicas that are apart in checkpoints: the average under plain names, which any
 * run can go on from, each one's own, and what the outer optimizer and codecs remember. */
#include "replicas/loose.h"

#include "weights/checkpoint.h"

static void add(ll_st_list *l, const char *name, const ll_st_tensor *like, const ll_st_part *part,
                void *data)
{
    ll_st_part p = part ? *part : (ll_st_part){.shape = like->shape};
    if (!data) p = (ll_st_part){.spare = true};
    l->tensors[l->n] = (ll_st_tensor){name, like->dtype, like->shape, data};
    l->parts[l->n++] = p;
}

/* Of the outer optimizer, of codecs, and of an exchange under way, for what is item t here; NULL:
 * it is on another stage. The first replica writes what all have in common; all: all ranks'. */
static void add_outer(const ll_loose *x, ll_arena *a, const ll_st_tensor *like,
                      const ll_st_part *part, const ll_loose_item *t, bool all, ll_st_list *l)
{
    const ll_graph *g = x->s->g;
    bool here = t && (all || x->index == 0);
    bool param = g->values[ll_find(g, like->name).id].kind == LL_PARAM;
    if (!param && ll_is_moment(g, like->name)) return;
    if (param && x->anchor)
        add(l, ll_arena_printf(a, LL_REPLICA "anchor.%s", like->name), like, part,
            here ? x->anchor + t->at : NULL);
    if (param && x->velocity)
        add(l, ll_arena_printf(a, LL_REPLICA "velocity.%s", like->name), like, part,
            here ? x->velocity + t->at : NULL);
    for (int k = all ? x->index : 0; k < (all ? x->index + 1 : x->n); k++) {
        bool mine = t && k == x->index;
        if (param && x->feedback)
            add(l, ll_arena_printf(a, LL_REPLICA "%d.unsent.%s", k, like->name), like, part,
                mine ? ll_codec_residual(t->codec) : NULL);
        if (x->due)
            add(l, ll_arena_printf(a, LL_REPLICA "%d.due.%s", k, like->name), like, part,
                mine ? x->due + t->at : NULL);
    }
}

static const ll_loose_item *item_of(const ll_loose *x, const char *name)
{
    for (int i = 0; i < x->n_item; i++)
        if (!strcmp(x->items[i].name, name)) return &x->items[i];
    return NULL;
}

static ll_st_list list_room(const ll_loose *x, ll_arena *a, int n)
{
    int64_t most = (int64_t)n * (3 * x->n + 3) + 1;
    return (ll_st_list){LL_NEW_ARRAY(a, ll_st_tensor, most), LL_NEW_ARRAY(a, ll_st_part, most), 0};
}

static ll_st_list list(const ll_loose *x, ll_arena *a, bool means, bool each)
{
    ll_st_list kept = ll_session_tensors(x->s, a), l = list_room(x, a, kept.n);
    for (int i = 0; i < kept.n; i++) {
        const ll_st_tensor *own = &kept.tensors[i];
        const ll_st_part *part = kept.parts ? &kept.parts[i] : NULL;
        const ll_loose_item *t = item_of(x, own->name);
        void *mean = t && x->index == 0 ? ll_loose_no_mean(x) ? own->data : x->mean + t->at : NULL;
        if (means) add(&l, own->name, own, part, mean);
        for (int k = 0; k < x->n && each; k++)
            add(&l, ll_arena_printf(a, LL_REPLICA "%d.%s", k, own->name), own, part,
                k == x->index ? own->data : NULL);
        add_outer(x, a, own, part, t, false, &l);
    }
    return l;
}

ll_st_list ll_loose_tensors(const ll_loose *x, ll_arena *a)
{
    bool each = ll_loose_ensemble(x) || (!x->rounds && x->run->parallel.save == LL_KEPT_replicas);
    return list(x, a, true, each);
}

ll_st_list ll_loose_replicas(const ll_loose *x, ll_arena *a)
{
    return list(x, a, false, true);
}

int ll_loose_in(const ll_st_file *f, const char *name)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    int n = 0;
    while (ll_st_find(f, ll_arena_printf(a, LL_REPLICA "%d.%s", n, name))) n++;
    return n;
}

/* Those of the list that the file has. */
static ll_err load_some(const ll_st_file *f, const ll_st_list *l)
{
    for (int i = 0; i < l->n; i++)
        if (ll_st_find(f, l->tensors[i].name))
            TRY(ll_checkpoint_load(f, &l->tensors[i], &l->parts[i], 1, false));
    return LL_OK;
}

/* Has the file such a tensor of the first parameter here? */
static bool has_any(const ll_st_file *f, const ll_loose *x, const char *form)
{
    char name[512];
    if (!x->n_param) return false;
    snprintf(name, sizeof name, form, x->items[0].name);
    return ll_st_find(f, name);
}

ll_err ll_loose_load(ll_loose *x, const ll_st_file *f, ll_arena *arena, const char **note)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_st_list kept = ll_session_tensors(x->s, a), l = list_room(x, a, kept.n);
    int there = kept.n ? ll_loose_in(f, kept.tensors[0].name) : 0;
    /* Those that part have one anchor: without it they have to begin together. */
    bool anchored = !x->anchor || has_any(f, x, LL_REPLICA "anchor.%s");
    bool each = there == x->n && anchored, late = has_any(f, x, LL_REPLICA "0.due.%s");
    bool at_once = late && each && !x->due; /* what was due later, with another parallel.delay */
    if (at_once) x->due = LL_NEW_ARRAY(a, float, x->shared);
    for (int i = 0; i < kept.n; i++) {
        ll_st_tensor *own = &kept.tensors[i];
        add_outer(x, a, own, kept.parts ? &kept.parts[i] : NULL, item_of(x, own->name), true, &l);
        if (each) own->name = ll_arena_printf(a, LL_REPLICA "%d.%s", x->index, own->name);
    }
    TRY(ll_checkpoint_load(f, kept.tensors, kept.parts, kept.n, false));
    TRY(ll_session_loaded(x->s));
    ll_loose_set_anchor(x); /* where the file has none */
    TRY(load_some(f, &l));
    if (x->due && !each) memset(x->due, 0, sizeof *x->due * (size_t)x->shared);
    if (at_once) TRY(ll_loose_add_due(x));
    if (at_once) x->due = NULL;
    const char *with = there ? "the average of the checkpoint's (of an ensemble: its first member)"
                             : "its tensors";
    if (!each && (there || !x->rounds))
        *note = ll_arena_printf(arena, "%d replicas begin with %s%s", x->n, with,
                                late ? ", without the exchange that was in progress" : "");
    return LL_OK;
}
