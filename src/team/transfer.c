/* transfer.c: collectives of programs. A tensor is seen as [outer, dim, inner] around the dimension
 * that is cut or made whole: what goes to one rank is then a range of dim, and one piece of memory
 * only where outer is 1. Otherwise ranges are packed by the start, one rank's after another's, and
 * what has come is unpacked by the wait. */
#include "team/transfer.h"

#include "base/num.h"
#include "pass/partition.h"

/* ---- pieces of tensors ---- */

static ll_strip cut(const ll_tensor *t, int dim, int64_t from, int64_t to)
{
    size_t inner = ll_dtype_bytes(t->dtype);
    int64_t outer = 1;
    for (int d = 0; d < dim; d++) outer *= t->shape.d[d];
    for (int d = dim + 1; d < t->shape.n; d++) inner *= (size_t)t->shape.d[d];
    ll_strip s = {(size_t)from * inner, (size_t)(to - from) * inner,
                  (size_t)t->shape.d[dim] * inner, outer};
    if (to <= from) s.rows = 0;
    return s;
}

static size_t strip_bytes(const ll_strip *s)
{
    return (size_t)s->rows * s->row;
}

/* ---- planning ---- */

/* all_gather and reduce_scatter: blocks of the whole, one for each rank; in a bundle the blocks of
 * all members for the first rank, then those for the second. */
static void plan_blocks(ll_transfer *t, ll_arena *a, const ll_instr *instr, size_t elem)
{
    bool gather = t->kind == LL_ALL_GATHER;
    int64_t *starts = LL_NEW_ARRAY(a, int64_t, t->size + 1), from, to;
    for (int k = 0; k < t->size; k++) {
        starts[k + 1] = starts[k];
        for (int i = 0; i < t->n; i++) {
            const ll_coll_attr *x = (const ll_coll_attr *)instr->attrs[i];
            ll_strip *s = &(gather ? t->take : t->give)[i * t->size + k];
            ll_share(x->extent, t->size, k, &from, &to);
            *s = cut(gather ? &t->out[i] : &t->in[i], (int)x->dim, from, to);
            (gather ? t->take_at : t->give_at)[i * t->size + k] = (size_t)starts[k + 1] * elem;
            starts[k + 1] += (int64_t)(strip_bytes(s) / elem);
        }
    }
    t->call.spec.starts = starts;
    t->call.spec.count = starts[t->size];
}

/* How many elements each rank of the group gives each: everyone works out everyone's. */
static void plan_exchange(ll_transfer *t, ll_arena *a, const ll_coll_attr *x, const ll_halo_attr *h,
                          size_t elem)
{
    int p = t->size;
    int64_t *matrix = LL_NEW_ARRAY(a, int64_t, p * p), from, to, lo, hi;
    int dim = (int)(h ? h->dim : x->dim);
    int64_t other = h ? 0 : t->in->shape.d[x->to_dim];
    /* Elements for one of dim (and, in an all_to_all, one of to_dim). */
    int64_t unit = 1;
    for (int d = 0; d < t->in->shape.n; d++)
        if (d != dim && (h || d != x->to_dim)) unit *= t->in->shape.d[d];
    for (int i = 0; i < p; i++)
        for (int j = 0; j < p; j++) {
            if (h) {
                ll_halo_share(h, p, i, &from, &to);
                const int64_t *need = &h->need[2 * j];
                lo = ll_max64(need[0], from);
                hi = ll_max64(lo, ll_min64(need[1], to));
                matrix[i * p + j] = unit * (hi - lo);
                if (i == t->me) t->give[j] = cut(t->in, dim, lo - from, hi - from);
                if (j == t->me) t->take[i] = cut(t->out, dim, lo - need[0], hi - need[0]);
            } else {
                ll_share(x->extent, p, i, &from, &to);
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

/* The members of a bundle, one after another. */
static void plan_sum(ll_transfer *t, size_t elem)
{
    for (int i = 0; i < t->n; i++) {
        int k = i * t->size + t->me;
        size_t bytes = (size_t)ll_numel(&t->in[i].shape) * elem;
        t->give[k] = t->take[k] = (ll_strip){0, bytes, bytes, 1};
        t->give_at[k] = t->take_at[k] = (size_t)t->call.spec.count * elem;
        t->call.spec.count += ll_numel(&t->in[i].shape);
    }
}

/* One message: a schedule of one step. */
static void plan_message(ll_transfer *t, ll_arena *a, const ll_message_attr *m)
{
    bool sends = t->kind == LL_SEND;
    ll_ref *at = LL_NEW(a, ll_ref);
    ll_step *step = LL_NEW(a, ll_step);
    ll_sched *list = LL_NEW(a, ll_sched);
    int64_t n = ll_numel(&m->shape);
    *at = (ll_ref){.rank = t->me, .buf = LL_DATA};
    *step = (ll_step){.kind = sends ? LL_STEP_SEND : LL_STEP_RECV, .peer = (int)m->peer, .n = n};
    if (sends)
        step->from = at, step->n_from = 1;
    else
        step->dst = *at;
    *list = (ll_sched){.rank = t->me, .size = t->size, .steps = step, .n_step = 1, .n_round = 1};
    *(sends ? &list->n_sent : &list->n_received) = n;
    list->n_message = sends;
    t->call.sched = list;
    t->call.number = m->serial + 1;
    t->call.dtype = m->dtype;
    t->call.spec.count = n;
    t->call.what = sends ? "send" : "receive";
}

/* Everything goes to the next member, as it lies. */
static void plan_rotation(ll_transfer *t, ll_arena *a, const ll_coll_attr *r)
{
    int p = t->size;
    int64_t *matrix = LL_NEW_ARRAY(a, int64_t, p * p), unit = 1, from, to;
    for (int d = 0; d < t->in->shape.n; d++)
        if (d != r->dim) unit *= t->in->shape.d[d];
    for (int i = 0; i < p; i++) {
        ll_share(r->extent, p, (int)(((i - r->step) % p + p) % p), &from, &to);
        matrix[i * p + (i + 1) % p] = unit * (to - from);
    }
    t->call.spec.matrix = matrix;
    t->call.spec.count = ll_numel(&t->in->shape);
}

ll_err ll_transfer_open(ll_team *team, ll_arena *arena, const ll_instr *instr, const ll_tensor *in,
                        const ll_tensor *out, void *packing, const ll_memory *memory,
                        ll_transfer **made)
{
    static const ll_coll colls[LL_N_COLLECTIVE] = {
        [LL_ALL_REDUCE] = LL_COLL_ALLREDUCE, [LL_REDUCE_SCATTER] = LL_COLL_REDUCE_SCATTER,
        [LL_ALL_GATHER] = LL_COLL_ALLGATHER, [LL_ALL_TO_ALL] = LL_COLL_ALLTOALL,
        [LL_HALO] = LL_COLL_ALLTOALL,        [LL_ROTATE] = LL_COLL_ALLTOALL};
    ll_transfer *t = LL_NEW(arena, ll_transfer);
    t->kind = instr->collective;
    t->team = team;
    t->attrs = instr->attrs;
    const ll_coll_attr *x = (const ll_coll_attr *)instr->attr;
    const ll_halo_attr *h = t->kind == LL_HALO ? (const ll_halo_attr *)instr->attr : NULL;
    t->packing = instr->packing ? (char *)packing : NULL;
    bool message = t->kind == LL_SEND || t->kind == LL_RECV;
    if (message)
        t->c = team->pipe;
    else
        TRY(ll_team_group(team, ll_collective_axes(t->kind, instr->attr), &t->c));
    t->size = ll_comm_size(t->c);
    t->me = ll_comm_rank(t->c);
    t->in = in;
    t->out = out;
    t->n = instr->n_in;
    LL_ARRAYS(arena, t->n * t->size, t->give, t->take, t->give_at, t->take_at);
    size_t elem = ll_dtype_bytes(in->dtype);
    t->memory = memory;
    t->call = (ll_coll_call){.memory = memory, .dtype = in->dtype, .site = instr->name};
    t->call.spec.coll = colls[t->kind];
    t->call.op = !h && !message && x->max ? LL_REDUCE_MAX : LL_REDUCE_SUM;
    if (message)
        plan_message(t, arena, (const ll_message_attr *)instr->attr);
    else if (t->kind == LL_ALL_REDUCE)
        plan_sum(t, elem);
    else if (t->kind == LL_ROTATE)
        plan_rotation(t, arena, x);
    else if (t->kind == LL_ALL_GATHER || t->kind == LL_REDUCE_SCATTER)
        plan_blocks(t, arena, instr, elem);
    else
        plan_exchange(t, arena, x, h, elem);
    *made = t;
    return LL_OK;
}

/* ---- over comm/ ---- */

static ll_axes axes_of(const ll_transfer *t, int i)
{
    return (ll_axes)((const ll_coll_attr *)t->attrs[i])->axes;
}

/* Sums over different ranks: a piece for each set of axes, of the members that are summed over it,
 * one after another. */
typedef struct pieces {
    int n, of[1 << LL_MAX_AXES]; /* set of axes -> piece + 1 */
    ll_axes axes[1 << LL_MAX_AXES];
} pieces;

static pieces find_pieces(const ll_transfer *t)
{
    pieces p = {0};
    for (int i = 0; i < t->n; i++) {
        ll_axes axes = axes_of(t, i);
        if (p.of[axes]) continue;
        p.axes[p.n++] = axes;
        p.of[axes] = p.n;
    }
    return p;
}

/* Every rank tells how much it has of each piece. counts [piece][rank]. */
static ll_err open_subsets(ll_transfer *t, const pieces *p, int64_t *counts, int *colors)
{
    ll_comm *c = t->team->c;
    int size = ll_comm_size(c), me = ll_comm_rank(c);
    size_t elem = ll_dtype_bytes(t->call.dtype);
    ll_subset_piece list[1 << LL_MAX_AXES];
    for (int i = 0; i < t->n; i++)
        counts[(p->of[axes_of(t, i)] - 1) * size + me] += ll_numel(&t->in[i].shape);
    for (int k = 0; k < p->n; k++) {
        TRY(ll_comm_allgather(c, counts + k * size, size * (int64_t)sizeof *counts, LL_U8, NULL));
        for (int r = 0; r < size; r++)
            colors[k * size + r] = ll_mesh_color(&t->team->m, p->axes[k], r);
        list[k] = (ll_subset_piece){colors + k * size, counts + k * size};
    }
    TRY(ll_subsets_open(c, list, p->n, &t->subsets));
    for (int k = 0; k < p->n; k++) {
        size_t at = (size_t)t->subsets->at[k] * elem;
        for (int i = 0; i < t->n; i++) {
            if (axes_of(t, i) != p->axes[k]) continue;
            t->give_at[i * t->size + t->me] = t->take_at[i * t->size + t->me] = at;
            at += (size_t)ll_numel(&t->in[i].shape) * elem;
        }
    }
    t->c = c;
    t->call.spec.count = t->subsets->count;
    return LL_OK;
}

ll_err ll_transfer_prepare(ll_transfer *t, ll_arena *arena)
{
    void *room;
    if (t->kind != LL_ALL_REDUCE) return LL_OK;
    pieces p = find_pieces(t);
    if (p.n > 1) {
        int n = p.n * ll_comm_size(t->team->c);
        TRY(open_subsets(t, &p, LL_NEW_ARRAY(arena, int64_t, n), LL_NEW_ARRAY(arena, int, n)));
    }
    if (t->n <= 1 || !t->call.spec.count) return LL_OK;
    t->room = ll_align64((size_t)t->call.spec.count * ll_dtype_bytes(t->call.dtype));
    if (t->memory) return LL_OK; /* ll_transfer_reserve */
    TRY(ll_comm_alloc(t->c, t->room, &room));
    t->packing = (char *)room;
    return LL_OK;
}

ll_err ll_transfer_reserve(ll_transfer *t)
{
    void *room;
    if (!t->memory || !t->room) return LL_OK;
    TRY(t->memory->alloc(t->memory->of, t->room, &room));
    t->packing = (char *)room;
    return LL_OK;
}

ll_err ll_transfer_compress(ll_transfer *t, const char *codec, uint64_t seed)
{
    if (!codec || t->kind != LL_ALL_REDUCE) return LL_OK;
    return ll_codec_open(codec, t->call.site, t->call.spec.count, seed, &t->codec);
}

void ll_transfer_close(ll_transfer *t)
{
    if (t->room && t->memory && t->packing)
        t->memory->free(t->memory->of, t->packing);
    else if (t->room && !t->memory)
        ll_comm_release(t->c, t->packing);
    ll_codec_close(t->codec);
    ll_subsets_close(t->subsets);
}

ll_err ll_transfer_scratch(ll_transfer *t, size_t *bytes)
{
    ll_coll_call call = t->call;
    call.data = t->room ? t->packing : t->out->data;
    *bytes = 0;
    if (t->subsets) *bytes = (size_t)t->subsets->list->scratch * ll_dtype_bytes(t->call.dtype);
    if (t->codec || t->subsets || t->call.sched) return LL_OK;
    return ll_comm_scratch(t->c, &call, bytes);
}

void ll_transfer_set_scratch(ll_transfer *t, void *scratch)
{
    t->call.scratch = scratch;
}

/* ---- packing ---- */

char *ll_transfer_taken(const ll_transfer *t)
{
    return t->packing + ll_align64(t->given);
}

/* Where member i of a sum is made, and what a scatter or a gather works in. */
static char *made_in(const ll_transfer *t, int i)
{
    if (t->packing)
        return t->packing + (t->kind == LL_ALL_REDUCE ? t->give_at[i * t->size + t->me] : 0);
    return (char *)(t->kind == LL_REDUCE_SCATTER ? t->in : t->out)[i].data;
}

static ll_err flat(ll_strip_copy *copy, void *context, char *packed, void *data, const ll_strip *s,
                   bool pack)
{
    size_t bytes = strip_bytes(s);
    const ll_strip whole = {0, bytes, bytes, 1};
    return packed == data || !bytes ? LL_OK : copy(context, packed, (char *)data, &whole, pack);
}

/* Is nothing packed? */
static bool as_it_lies(const ll_transfer *t)
{
    return t->kind == LL_ROTATE || t->call.sched;
}

ll_err ll_transfer_pack(const ll_transfer *t, ll_strip_copy *copy, void *context)
{
    for (int k = 0; k < t->n * t->size && !as_it_lies(t); k++) {
        int i = k / t->size;
        bool own = k % t->size == t->me;
        char *in = (char *)t->in[i].data;
        if (t->kind == LL_ALL_REDUCE && own)
            TRY(flat(copy, context, made_in(t, i), in, &t->give[k], true));
        if (t->kind == LL_ALL_GATHER && own)
            TRY(flat(copy, context, made_in(t, 0) + t->take_at[k], in, &t->take[k], true));
        if (t->kind != LL_ALL_REDUCE && t->kind != LL_ALL_GATHER && t->packing)
            TRY(copy(context, t->packing + t->give_at[k], in, &t->give[k], true));
    }
    return LL_OK;
}

ll_err ll_transfer_unpack(const ll_transfer *t, ll_strip_copy *copy, void *context)
{
    const char *from = t->kind == LL_ALL_GATHER ? t->packing : NULL;
    if (t->kind == LL_ALL_TO_ALL || t->kind == LL_HALO) from = ll_transfer_taken(t);
    for (int k = 0; k < t->n * t->size && !as_it_lies(t); k++) {
        int i = k / t->size;
        bool own = k % t->size == t->me;
        char *out = (char *)t->out[i].data;
        if (t->kind == LL_ALL_REDUCE && own)
            TRY(flat(copy, context, made_in(t, i), out, &t->take[k], false));
        if (t->kind == LL_REDUCE_SCATTER && own)
            TRY(flat(copy, context, made_in(t, 0) + t->give_at[k], out, &t->give[k], false));
        if (from)
            TRY(copy(context, (char *)(uintptr_t)from + t->take_at[k], out, &t->take[k], false));
    }
    return LL_OK;
}

static ll_err copy(void *memory, char *packed, char *data, const ll_strip *s, bool pack)
{
    const ll_memory *m = (const ll_memory *)memory;
    if (m && pack) return m->copy(m->of, packed, s->row, data + s->at, s->stride, s->row, s->rows);
    if (m) return m->copy(m->of, data + s->at, s->stride, packed, s->row, s->row, s->rows);
    for (int64_t i = 0; i < s->rows; i++) {
        char *a = packed + (size_t)i * s->row, *b = data + s->at + (size_t)i * s->stride;
        memmove(pack ? a : b, pack ? b : a, s->row);
    }
    return LL_OK;
}

/* ---- a step ---- */

ll_err ll_transfer_start(ll_transfer *t, int64_t step)
{
    ll_coll_call *call = &t->call;
    TRY(ll_transfer_pack(t, copy, (void *)(uintptr_t)t->memory));
    if (t->memory) TRY(t->memory->ready(t->memory->of));
    bool exchanges = t->kind == LL_ALL_TO_ALL || t->kind == LL_HALO;
    if (call->sched) { /* a message */
        call->data = (t->kind == LL_SEND ? t->in : t->out)->data;
        return ll_comm_start(t->c, call, &t->request);
    }
    call->data = t->kind == LL_ROTATE ? t->in->data : exchanges ? t->packing : made_in(t, 0);
    if (t->kind == LL_ROTATE) call->out = t->out->data;
    if (exchanges) call->out = ll_transfer_taken(t);
    if (t->codec) return ll_codec_allreduce(t->codec, t->c, (float *)call->data, step, call->site);
    if (t->subsets) return ll_subsets_start(t->subsets, call, &t->request);
    return ll_comm_start(t->c, call, &t->request);
}

ll_err ll_transfer_wait(ll_transfer *t)
{
    ll_request *r = t->request;
    t->request = NULL;
    if (r) TRY(ll_request_wait(r));
    return ll_transfer_unpack(t, copy, (void *)(uintptr_t)t->memory);
}
