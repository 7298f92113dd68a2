/* weights_copy.c: see weights_copy.h. */
#include "weights/weights_copy.h"

/* ---- which tensors ---- */

ll_own_tensors ll_weights_tensors(const ll_session *s, ll_arena *a)
{
    ll_st_list l = ll_session_tensors(s, a);
    ll_own_tensors x = {.t = l.tensors, .parts = l.parts, .n = l.n};
    x.moment = LL_NEW_ARRAY(a, bool, x.n);
    x.blocks = LL_NEW_ARRAY(a, const ll_block_kind *, x.n);
    for (int i = 0; i < x.n; i++) {
        ll_val v = ll_find(s->g, x.t[i].name);
        x.moment[i] = ll_value_of(s->g, v)->kind == LL_STATE && ll_is_moment(s->g, x.t[i].name);
        ll_weights_unblock(&x, i, a);
    }
    return x;
}

static void whole_blocks(ll_shape *s, int64_t *at)
{
    s->n--;
    s->d[s->n - 1] *= LL_PACK;
    if (at) at[s->n - 1] *= LL_PACK;
}

void ll_weights_unblock(ll_own_tensors *x, int i, ll_arena *a)
{
    ll_st_tensor *t = &x->t[i];
    size_t n;
    x->blocks[i] = t->dtype == LL_U8 && t->shape.n > 1 ? ll_block_named(t->name, &n) : NULL;
    if (!x->blocks[i]) return;
    t->name = ll_arena_printf(a, "%.*s", (int)n, t->name);
    t->dtype = LL_F32;
    whole_blocks(&t->shape, NULL);
    if (x->parts) whole_blocks(&x->parts[i].shape, x->parts[i].at);
}

ll_st_part ll_weights_part(const ll_own_tensors *x, int i)
{
    return x->parts ? x->parts[i] : (ll_st_part){.shape = x->t[i].shape};
}

/* ---- elements ---- */

/* n elements of one type that lie together on both sides. */
static void copy_row(const ll_weights_copy *c, int64_t i, int64_t at, int64_t n)
{
    size_t one = ll_dtype_bytes(c->dtype);
    uint8_t *there = c->theirs + (size_t)at * one, *here = (uint8_t *)c->ours + (size_t)i * one;
    memcpy(c->out ? there : here, c->out ? here : there, (size_t)n * one);
}

static void copy_one(const ll_weights_copy *c, int64_t i, int64_t at)
{
    uint8_t *there = c->theirs + (size_t)at * ll_dtype_bytes(c->other);
    uint64_t room = 0;                              /* theirs may lie at any byte */
    if (c->dtype == LL_F32 && c->other == LL_F32) { /* the usual ones, which are many */
        uint8_t *here = (uint8_t *)c->ours + (size_t)i * 4;
        memcpy(c->out ? there : here, c->out ? here : there, 4);
    } else if (c->out) {
        ll_store(&room, c->other, 0, ll_load(c->ours, c->dtype, i));
        memcpy(there, &room, ll_dtype_bytes(c->other));
    } else {
        memcpy(&room, there, ll_dtype_bytes(c->other));
        ll_store(c->ours, c->dtype, i, ll_load(&room, c->other, 0));
    }
}

void ll_weights_walk(const ll_weights_copy *c, const ll_shape *part, const ll_map_places *p)
{
    int last = part->n - 1;
    int64_t n = ll_numel(part), row = part->n ? part->d[last] : 1, index[LL_MAX_DIMS] = {0};
    static const int64_t here = 0;
    static const int first = 0;
    const int64_t *at = part->n ? p->at[last] : &here;
    const int *of = part->n ? p->which[last] : &first;
    bool together = c->dtype == c->other;
    for (int64_t i = 1; i < row; i++)
        together = together && at[i] == at[i - 1] + 1 && of[i] == of[0];
    for (int64_t done = 0; done < n; done += row) {
        int64_t base = p->first;
        int which = 0;
        for (int d = 0; d < last; d++) {
            base += p->at[d][index[d]];
            which += p->which[d][index[d]];
        }
        if (together && which + of[0] == c->which) copy_row(c, done, base + at[0], row);
        for (int64_t i = 0; i < row && !together; i++)
            if (which + of[i] == c->which) copy_one(c, done + i, base + at[i]);
        for (int d = last - 1; d >= 0 && ++index[d] == part->d[d]; d--) index[d] = 0;
    }
}
