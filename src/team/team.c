/* team.c: a mesh of live ranks: its communicators, what its programs have in common, and tensors
 * made whole. */
#include "team/team.h"

#include "base/crc32c.h"
#include "pass/partition.h"

ll_err ll_team_open(ll_comm *c, const ll_mesh *m, ll_team **out)
{
    TRY(ll_mesh_fits(m, ll_comm_size(c)));
    ll_team *t = (ll_team *)calloc(1, sizeof *t);
    CHECK(t, LL_E_MEM, "not enough memory for a team of ranks");
    t->c = c;
    t->m = *m;
    t->rank = ll_comm_rank(c);
    *out = t;
    return LL_OK;
}

void ll_team_close(ll_team *t)
{
    if (!t) return;
    for (int i = 0; i < LL_AXIS_SETS; i++)
        if (t->group[i] && t->group[i] != t->c) ll_comm_close(t->group[i]);
    if (t->pipe) ll_comm_close(t->pipe);
    free(t);
}

ll_err ll_team_group(ll_team *t, ll_axes axes, ll_comm **out)
{
    if (!t->group[axes] && ll_mesh_group(&t->m, axes) == t->m.n_rank) t->group[axes] = t->c;
    if (!t->group[axes])
        TRY(ll_comm_split(t->c, ll_mesh_color(&t->m, axes, t->rank),
                          ll_mesh_member(&t->m, axes, t->rank), &t->group[axes]));
    *out = t->group[axes];
    return LL_OK;
}

size_t ll_team_bytes(const ll_team *t)
{
    size_t sum = ll_comm_own_bytes(t->c);
    for (int i = 0; i < LL_AXIS_SETS; i++)
        if (t->group[i] && t->group[i] != t->c) sum += ll_comm_own_bytes(t->group[i]);
    return sum + (t->pipe ? ll_comm_own_bytes(t->pipe) : 0);
}

/* Every message has a sender and a receiver who know it by the same number. */
static void note_message(ll_team *t, const ll_instr *x)
{
    const ll_message_attr *a = (const ll_message_attr *)x->attr;
    int me = ll_mesh_member(&t->m, (ll_axes)a->axes, t->rank);
    bool sends = x->collective == LL_SEND;
    int64_t key[] = {a->serial,
                     a->when,
                     a->dtype,
                     ll_numel(&a->shape),
                     sends ? me : a->peer,
                     sends ? a->peer : me,
                     ll_mesh_color(&t->m, (ll_axes)a->axes, t->rank)};
    int64_t sum = ll_crc32c(0, key, sizeof key);
    t->messages += sends ? sum : -sum;
    t->n_message++;
}

static void note_one(ll_team *t, const ll_program *p, const ll_instr *x, int i)
{
    const ll_coll_attr *a = (const ll_coll_attr *)x->attrs[i];
    const ll_halo_attr *h = x->collective == LL_HALO ? (const ll_halo_attr *)x->attrs[i] : NULL;
    const ll_type *in = &p->slots[x->in[i]].type;
    bool whole = x->collective == LL_ALL_REDUCE; /* of no dimension */
    int64_t dim = whole ? -1 : h ? h->dim : a->dim, unit = 1;
    for (int d = 0; d < in->shape.n; d++)
        if (d != dim) unit *= in->shape.d[d];
    int64_t key[] = {in->dtype, dim, unit, h ? h->extent : a->extent, x->last, p->n_micro, x->n_in};
    int64_t more[] = {h ? h->swapped : a->max, h ? 0 : a->to_dim, h ? 0 : a->serial, t->n_noted++};
    ll_axes axes = ll_collective_axes(x->collective, x->attrs[i]);
    uint32_t *sum = &t->noted[axes].sum;
    t->noted[axes].n++;
    *sum = ll_crc32c(*sum, x->op, strlen(x->op));
    *sum = ll_crc32c(*sum, key, sizeof key);
    *sum = ll_crc32c(*sum, more, sizeof more);
    if (h) *sum = ll_crc32c(*sum, h->need, sizeof h->need);
}

/* Everything that all of a group must have in common: what is done, of which type, and the sizes of
 * what is not cut. */
void ll_team_note(ll_team *t, const ll_program *p, const ll_instr *x)
{
    bool message = x->collective == LL_SEND || x->collective == LL_RECV;
    if (message) note_message(t, x);
    for (int i = 0; i < x->n_in && !message; i++) note_one(t, p, x, i);
}

static ll_err compare_messages(ll_team *t)
{
    int axis = ll_mesh_axis(&t->m, LL_AXIS_PIPE);
    if (axis < 0) return LL_OK;
    int64_t sums[] = {t->messages, t->n_message};
    LL_OWN(ll_arena) arena = ll_arena_new();
    int size = ll_comm_size(t->c);
    int64_t *all = LL_NEW_ARRAY(arena, int64_t, 2 * size), left = 0, n = 0;
    memcpy(all + 2 * t->rank, sums, sizeof sums);
    TRY(ll_comm_allgather(t->c, all, 2 * size * (int64_t)sizeof *all, LL_U8,
                          &(ll_coll_opts){.site = "messages between stages"}));
    for (int r = 0; r < size; r++) left += all[2 * r], n += all[2 * r + 1];
    CHECK(left == 0 && n % 2 == 0, LL_E_COMM,
          "a pipeline stage would wait for something that no other sends: their programs are not "
          "from one graph");
    if (!n || t->pipe) return LL_OK;
    ll_axes pipe = (ll_axes)(1u << axis); /* others' collectives have numbers of their own */
    return ll_comm_split(t->c, ll_mesh_color(&t->m, pipe, t->rank),
                         ll_mesh_member(&t->m, pipe, t->rank), &t->pipe);
}

/* By the communicator of all: others are made by all ranks, which must know of the same ones. */
ll_err ll_team_compare(ll_team *t)
{
    int size = ll_comm_size(t->c);
    ll_err mine = LL_OK;
    bool any[LL_AXIS_SETS] = {0};
    LL_OWN(ll_arena) arena = ll_arena_new();
    ll_team_noted *all = LL_NEW_ARRAY(arena, ll_team_noted, size * LL_AXIS_SETS);
    memcpy(all + t->rank * LL_AXIS_SETS, t->noted, sizeof t->noted);
    TRY(ll_comm_allgather(t->c, all, size * (int64_t)sizeof t->noted, LL_U8,
                          &(ll_coll_opts){.site = "order of collectives"}));
    for (int k = 0; k < size * LL_AXIS_SETS && mine == LL_OK; k++) {
        int r = k / LL_AXIS_SETS, set = k % LL_AXIS_SETS;
        const ll_team_noted *own = &t->noted[set];
        bool group =
            ll_mesh_color(&t->m, (ll_axes)set, r) == ll_mesh_color(&t->m, (ll_axes)set, t->rank);
        any[set] |= all[k].n > 0; /* of a pipeline's stages some may have none */
        if (group && (all[k].n != own->n || all[k].sum != own->sum))
            mine = RAISE(LL_E_COMM,
                         "ranks %d and %d would start different collectives, or in a different "
                         "order: their programs are not from one graph",
                         t->rank, r);
    }
    TRY(ll_comm_agree(t->c, mine)); /* other groups may be at one */
    ll_comm *c;
    for (int i = 0; i < LL_AXIS_SETS; i++)
        if (any[i]) TRY(ll_team_group(t, (ll_axes)i, &c));
    return compare_messages(t);
}

/* ---- whole tensors ---- */

/* Where element i of a piece lies in the whole. */
static int64_t index_in(const ll_piece *p, const ll_shape *part, int64_t i)
{
    int64_t stride = 1, j = 0;
    for (int d = part->n - 1; d >= 0; d--) {
        j += (p->at[d] + i % part->d[d]) * stride;
        i /= part->d[d];
        stride *= p->whole.d[d];
    }
    return j;
}

/* Rows of the last dimension, one after another, between a piece and its whole. */
static void copy_rows(const ll_type *type, const ll_piece *p, char *piece, char *whole, bool cut)
{
    const ll_shape *s = &type->shape;
    size_t elem = ll_dtype_bytes(type->dtype);
    int64_t row = s->n ? s->d[s->n - 1] : 1, rows = row ? ll_numel(s) / row : 0;
    for (int64_t i = 0; i < rows; i++) {
        char *a = piece + (size_t)(i * row) * elem;
        char *b = whole + (size_t)index_in(p, s, i * row) * elem;
        memcpy(cut ? a : b, cut ? b : a, (size_t)row * elem);
    }
}

void ll_piece_cut(const ll_type *type, const ll_piece *piece, const void *whole, void *data)
{
    copy_rows(type, piece, (char *)data, (char *)(uintptr_t)whole, true);
}

ll_err ll_team_collect(ll_team *t, const ll_layout *l, const ll_type *whole, const void *piece,
                       void *data)
{
    size_t n = ll_type_bytes(whole);
    ll_type part = {whole->dtype, ll_layout_local(&t->m, l, &whole->shape, t->rank)};
    ll_piece where = {.whole = whole->shape};
    int64_t to;
    for (int d = 0; d < part.shape.n; d++)
        ll_layout_range(&t->m, l->split[d], whole->shape.d[d], t->rank, &where.at[d], &to);
    memset(data, 0, n); /* to which bits are added */
    if (piece) copy_rows(&part, &where, (char *)(uintptr_t)piece, (char *)data, false);
    ll_coll_call call = {.data = data, .dtype = LL_U8, .op = LL_REDUCE_SUM, .site = "collect"};
    call.spec.coll = LL_COLL_ALLREDUCE;
    call.spec.count = (int64_t)n;
    return ll_comm_run(t->c, &call);
}
