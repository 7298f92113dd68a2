/* team.c: collectives of programs. A tensor is seen as [outer, dim, inner] around the dimension
 * that is cut or made whole: what goes to one rank is then a range of dim, and one piece of memory
 * only where outer is 1. Otherwise ranges are packed by the start, one rank's after another's, and
 * what has come is unpacked by the wait. */
#include "base/crc32c.h"
#include "exec/team_int.h"
#include "kern/attr.h"

#include <stdlib.h>
#include <string.h>

struct ll_team {
    ll_comm *c;
    ll_mesh m;
    int rank;
    ll_comm *group[1 << LL_MAX_AXES]; /* by set of axes; NULL: not made yet */
    uint32_t noted[1 << LL_MAX_AXES]; /* checksums of the collectives of each */
};

ll_err ll_team_open(ll_comm *c, const ll_mesh *m, ll_team **out)
{
    TRY(ll_mesh_fits(m, ll_comm_size(c)));
    ll_team *t = (ll_team *)calloc(1, sizeof *t);
    CHECK(t, LL_E_MEM, "no memory for a team of ranks");
    t->c = c;
    t->m = *m;
    t->rank = ll_comm_rank(c);
    *out = t;
    return LL_OK;
}

void ll_team_close(ll_team *t)
{
    if (!t) return;
    for (int i = 0; i < 1 << LL_MAX_AXES; i++)
        if (t->group[i] && t->group[i] != t->c) ll_comm_close(t->group[i]);
    free(t);
}

const ll_mesh *ll_team_mesh(const ll_team *t)
{
    return &t->m;
}

ll_comm *ll_team_comm(const ll_team *t)
{
    return t->c;
}

int ll_team_rank(const ll_team *t)
{
    return t->rank;
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
    for (int i = 0; i < 1 << LL_MAX_AXES; i++)
        if (t->group[i] && t->group[i] != t->c) sum += ll_comm_own_bytes(t->group[i]);
    return sum;
}

static void note(ll_team *t, const ll_program *p, const ll_instr *x, int i)
{
    const ll_coll_attr *a = (const ll_coll_attr *)x->attrs[i];
    const ll_halo_attr *h = x->collective == LL_HALO ? (const ll_halo_attr *)x->attrs[i] : NULL;
    const ll_type *in = &p->slots[x->in[i]].type;
    bool whole = x->collective == LL_ALL_REDUCE; /* of no dimension */
    int64_t dim = whole ? -1 : h ? h->dim : a->dim, unit = 1;
    for (int d = 0; d < in->shape.n; d++)
        if (d != dim) unit *= in->shape.d[d];
    int64_t key[] = {in->dtype, dim, unit, h ? h->extent : a->extent, x->last, p->n_micro, x->n_in};
    int64_t more[] = {h ? 0 : a->max, h ? 0 : a->to_dim, h ? 0 : a->serial};
    uint32_t *sum = &t->noted[h ? h->axes : a->axes];
    *sum = ll_crc32c(*sum, x->op, strlen(x->op));
    *sum = ll_crc32c(*sum, key, sizeof key);
    *sum = ll_crc32c(*sum, more, sizeof more);
    if (h) *sum = ll_crc32c(*sum, h->need, sizeof h->need);
}

/* Everything that all of a group must have in common: what is done, of which type, and the sizes of
 * what is not cut. */
void ll_team_note(ll_team *t, const ll_program *p, const ll_instr *x)
{
    for (int i = 0; i < x->n_in; i++) note(t, p, x, i);
}

ll_err ll_team_compare(ll_team *t)
{
    ll_err mine = LL_OK;
    for (int i = 0; i < 1 << LL_MAX_AXES; i++) {
        if (!t->group[i]) continue;
        double both[] = {t->noted[i], -(double)t->noted[i]};
        TRY(ll_comm_allreduce(t->group[i], both, 2, LL_F64, LL_REDUCE_MAX,
                              &(ll_coll_opts){.site = "order of collectives"}));
        if (both[0] != -both[1] && mine == LL_OK)
            mine = ll_raise(LL_E_COMM, __FILE__, __LINE__, __func__,
                            "rank %d and others would start different collectives, or in another "
                            "order: their programs were not made of one graph",
                            t->rank);
    }
    return ll_comm_agree(t->c, mine); /* other groups may be at one */
}

/* ---- pieces of tensors ---- */

static slab cut(const ll_tensor *t, int dim, int64_t from, int64_t to)
{
    size_t inner = ll_dtype_bytes(t->dtype);
    int64_t outer = 1;
    for (int d = 0; d < dim; d++) outer *= t->shape.d[d];
    for (int d = dim + 1; d < t->shape.n; d++) inner *= (size_t)t->shape.d[d];
    slab s = {(size_t)from * inner, (size_t)(to - from) * inner, (size_t)t->shape.d[dim] * inner,
              outer};
    if (to <= from) s.rows = 0;
    return s;
}

size_t ll_slab_bytes(const slab *s)
{
    return (size_t)s->rows * s->row;
}

static void pack(char *packed, const char *data, const slab *s)
{
    for (int64_t i = 0; i < s->rows; i++)
        memcpy(packed + (size_t)i * s->row, data + s->at + (size_t)i * s->stride, s->row);
}

static void unpack(char *data, const char *packed, const slab *s)
{
    for (int64_t i = 0; i < s->rows; i++)
        memcpy(data + s->at + (size_t)i * s->stride, packed + (size_t)i * s->row, s->row);
}

/* ---- talks ---- */

static size_t tensor_bytes(const ll_type *t)
{
    return (size_t)ll_numel(&t->shape) * ll_dtype_bytes(t->dtype);
}

static int64_t *counts(ll_arena *a, int n)
{
    return LL_NEW_ARRAY(a, int64_t, n);
}

/* all_gather and reduce_scatter: blocks of the whole, one for each rank; in a bundle the blocks of
 * all members for the first rank, then those for the second. */
static void plan_blocks(ll_talk *t, ll_arena *a, const ll_instr *instr, size_t elem)
{
    bool gather = t->kind == LL_ALL_GATHER;
    int64_t *starts = counts(a, t->size + 1), from, to;
    for (int k = 0; k < t->size; k++) {
        starts[k + 1] = starts[k];
        for (int i = 0; i < t->n; i++) {
            const ll_coll_attr *x = (const ll_coll_attr *)instr->attrs[i];
            slab *s = &(gather ? t->take : t->give)[i * t->size + k];
            ll_share(x->extent, t->size, k, &from, &to);
            *s = cut(gather ? &t->out[i] : &t->in[i], (int)x->dim, from, to);
            (gather ? t->take_at : t->give_at)[i * t->size + k] = (size_t)starts[k + 1] * elem;
            starts[k + 1] += (int64_t)(ll_slab_bytes(s) / elem);
        }
    }
    t->call.spec.starts = starts;
    t->call.spec.count = starts[t->size];
}

/* How many elements each rank of the group gives each: everyone works out everyone's. */
static void plan_exchange(ll_talk *t, ll_arena *a, const ll_coll_attr *x, const ll_halo_attr *h,
                          size_t elem)
{
    int p = t->size;
    int64_t *matrix = counts(a, p * p), from, to, lo, hi;
    int dim = (int)(h ? h->dim : x->dim);
    int64_t extent = h ? h->extent : x->extent, other = h ? 0 : t->in->shape.d[x->to_dim];
    /* Elements for one of dim (and, in an all_to_all, one of to_dim). */
    int64_t unit = 1;
    for (int d = 0; d < t->in->shape.n; d++)
        if (d != dim && (h || d != x->to_dim)) unit *= t->in->shape.d[d];
    for (int i = 0; i < p; i++)
        for (int j = 0; j < p; j++) {
            ll_share(extent, p, i, &from, &to);
            if (h) {
                lo = h->need[2 * j] > from ? h->need[2 * j] : from;
                hi = h->need[2 * j + 1] < to ? h->need[2 * j + 1] : to;
                matrix[i * p + j] = hi > lo ? unit * (hi - lo) : 0;
                if (i == t->me)
                    t->give[j] = cut(t->in, dim, lo - from, hi > lo ? hi - from : lo - from);
                if (j == t->me)
                    t->take[i] =
                        cut(t->out, dim, lo - h->need[2 * j], (hi > lo ? hi : lo) - h->need[2 * j]);
            } else {
                ll_share(other, p, j, &lo, &hi);
                matrix[i * p + j] = unit * (to - from) * (hi - lo);
                if (i == t->me) t->give[j] = cut(t->in, (int)x->to_dim, lo, hi);
                if (j == t->me) t->take[i] = cut(t->out, dim, from, to);
            }
        }
    size_t given = 0, taken = 0;
    for (int k = 0; k < p; k++) {
        t->give_at[k] = given;
        t->take_at[k] = taken;
        given += (size_t)matrix[t->me * p + k] * elem;
        taken += (size_t)matrix[k * p + t->me] * elem;
    }
    t->given = given;
    t->call.spec.matrix = matrix;
    t->call.spec.count = (int64_t)(given / elem);
}

/* Everything goes to the next member, as it lies. */
static void plan_rotation(ll_talk *t, ll_arena *a, const ll_coll_attr *r)
{
    int p = t->size;
    int64_t *matrix = counts(a, p * p), unit = 1, from, to;
    for (int d = 0; d < t->in->shape.n; d++)
        if (d != r->dim) unit *= t->in->shape.d[d];
    for (int i = 0; i < p; i++) {
        ll_share(r->extent, p, (int)(((i - r->step) % p + p) % p), &from, &to);
        matrix[i * p + (i + 1) % p] = unit * (to - from);
    }
    t->call.spec.matrix = matrix;
    t->call.spec.count = ll_numel(&t->in->shape);
}

ll_err ll_talk_open(ll_team *team, ll_arena *arena, const ll_instr *instr, const ll_tensor *in,
                    const ll_tensor *out, void *packing, ll_talk **talk)
{
    static const ll_coll colls[LL_N_COLLECTIVE] = {
        [LL_ALL_REDUCE] = LL_COLL_ALLREDUCE, [LL_REDUCE_SCATTER] = LL_COLL_REDUCE_SCATTER,
        [LL_ALL_GATHER] = LL_COLL_ALLGATHER, [LL_ALL_TO_ALL] = LL_COLL_ALLTOALL,
        [LL_HALO] = LL_COLL_ALLTOALL,        [LL_ROTATE] = LL_COLL_ALLTOALL};
    ll_talk *t = LL_NEW(arena, ll_talk);
    t->kind = instr->collective;
    const ll_coll_attr *x = (const ll_coll_attr *)instr->attr;
    const ll_halo_attr *h = t->kind == LL_HALO ? (const ll_halo_attr *)instr->attr : NULL;
    t->packing = instr->packing ? (char *)packing : NULL;
    TRY(ll_team_group(team, (ll_axes)(h ? h->axes : x->axes), &t->c));
    t->size = ll_comm_size(t->c);
    t->me = ll_comm_rank(t->c);
    t->in = in;
    t->out = out;
    t->n = instr->n_in;
    t->give = LL_NEW_ARRAY(arena, slab, t->n * t->size);
    t->take = LL_NEW_ARRAY(arena, slab, t->n * t->size);
    t->give_at = LL_NEW_ARRAY(arena, size_t, t->n * t->size);
    t->take_at = LL_NEW_ARRAY(arena, size_t, t->n * t->size);
    size_t elem = ll_dtype_bytes(in->dtype);
    t->call = (ll_coll_call){.dtype = in->dtype, .site = instr->name};
    t->call.spec.coll = colls[t->kind];
    t->call.op = !h && x->max ? LL_REDUCE_MAX : LL_REDUCE_SUM;
    if (t->kind == LL_ALL_REDUCE)
        t->call.spec.count = ll_numel(&in->shape);
    else if (t->kind == LL_ROTATE)
        plan_rotation(t, arena, x);
    else if (t->kind == LL_ALL_GATHER || t->kind == LL_REDUCE_SCATTER)
        plan_blocks(t, arena, instr, elem);
    else
        plan_exchange(t, arena, x, h, elem);
    *talk = t;
    return LL_OK;
}

ll_err ll_talk_scratch(ll_talk *t, size_t *bytes)
{
    ll_coll_call call = t->call;
    call.data = t->out->data;
    return ll_comm_scratch(t->c, &call, bytes);
}

void ll_talk_set_scratch(ll_talk *t, void *scratch)
{
    t->call.scratch = scratch;
}

static void give_all(ll_talk *t)
{
    for (int k = 0; k < t->n * t->size; k++)
        pack(t->packing + t->give_at[k], (const char *)t->in[k / t->size].data, &t->give[k]);
}

static void take_all(ll_talk *t, const char *packed)
{
    for (int k = 0; k < t->n * t->size; k++)
        unpack((char *)t->out[k / t->size].data, packed + t->take_at[k], &t->take[k]);
}

/* What this rank has of each member: into what is gathered, or out of what was scattered. */
static void give_own(ll_talk *t)
{
    for (int k = t->me; k < t->n * t->size; k += t->size)
        if (ll_slab_bytes(&t->take[k]))
            memcpy((char *)t->call.data + t->take_at[k], t->in[k / t->size].data,
                   ll_slab_bytes(&t->take[k]));
}

static void take_own(ll_talk *t)
{
    for (int k = t->me; k < t->n * t->size; k += t->size)
        if (ll_slab_bytes(&t->give[k]))
            memmove(t->out[k / t->size].data, (char *)t->call.data + t->give_at[k],
                    ll_slab_bytes(&t->give[k]));
}

static char *taken(const ll_talk *t)
{
    return t->packing + (t->given + 63) / 64 * 64;
}

ll_err ll_talk_start(ll_talk *t)
{
    ll_coll_call *call = &t->call;
    size_t n;
    switch (t->kind) {
    case LL_ALL_REDUCE:
        n = (size_t)call->spec.count * ll_dtype_bytes(t->in->dtype);
        if (t->in->data != t->out->data && n) memcpy(t->out->data, t->in->data, n);
        call->data = t->out->data;
        break;
    case LL_REDUCE_SCATTER:
        call->data = t->packing ? t->packing : (char *)t->in->data;
        if (t->packing) give_all(t);
        break;
    case LL_ALL_GATHER:
        call->data = t->packing ? t->packing : (char *)t->out->data;
        give_own(t);
        break;
    case LL_ROTATE:
        call->data = t->in->data;
        call->out = t->out->data;
        break;
    default:
        give_all(t);
        call->data = t->packing;
        call->out = taken(t);
    }
    return ll_comm_start(t->c, call, &t->request);
}

ll_err ll_talk_wait(ll_talk *t)
{
    ll_request *r = t->request;
    t->request = NULL;
    TRY(ll_comm_wait(r));
    switch (t->kind) {
    case LL_ALL_REDUCE:
    case LL_ROTATE: break;
    case LL_REDUCE_SCATTER: take_own(t); break;
    case LL_ALL_GATHER:
        if (t->packing) take_all(t, t->packing);
        break;
    default: take_all(t, taken(t));
    }
    return LL_OK;
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

void ll_piece_paste(const ll_type *type, const ll_piece *piece, const void *data, void *whole)
{
    copy_rows(type, piece, (char *)(uintptr_t)data, (char *)whole, false);
}

ll_err ll_team_collect(ll_team *t, const ll_layout *l, const ll_type *whole, const void *piece,
                       void *data)
{
    size_t n = tensor_bytes(whole);
    ll_type part = {whole->dtype, ll_layout_local(&t->m, l, &whole->shape, t->rank)};
    ll_piece where = {.whole = whole->shape};
    int64_t to;
    for (int d = 0; d < part.shape.n; d++)
        ll_layout_range(&t->m, l->split[d], whole->shape.d[d], t->rank, &where.at[d], &to);
    /* Of several that hold the same piece the first speaks; bits are added to zeros. */
    bool speaks = ll_mesh_member(&t->m, (ll_axes)~ll_layout_axes(l), t->rank) == 0;
    memset(data, 0, n);
    if (speaks) ll_piece_paste(&part, &where, piece, data);
    ll_coll_call call = {.data = data, .dtype = LL_U8, .op = LL_REDUCE_SUM, .site = "collect"};
    call.spec.coll = LL_COLL_ALLREDUCE;
    call.spec.count = (int64_t)n;
    return ll_comm_run(t->c, &call);
}
