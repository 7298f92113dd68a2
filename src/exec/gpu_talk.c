/* gpu_talk.c: collectives of a program between GPUs, by NCCL, in a queue beside the kernels.
 *
 *     work queue   kernels ... | start: pack, flag | more kernels ...   | wait | unpack, kernels
 *     talk queue                                  all-reduce (NCCL) | flag ^
 *
 * Plans are those of team.c; what is packed there by this process is copied here in rows by the
 * GPU. Parts of uneven size are reductions to, or broadcasts from, each member. All-reduces of
 * gradients wait for each other until they are BUCKET bytes, and are then one piece of work, as are
 * those that a wait finds waiting. Every rank starts and awaits in the order of the program, so
 * that all group alike. */
#include "dev/group.h"
#include "exec/gpu_int.h"
#include "exec/team_int.h"
#include "kern/attr.h"

#include <stdlib.h>

enum { BUCKET = 16 << 20 };

typedef struct waiting { /* started by the program, not yet by NCCL */
    int instr;
    ll_talk *talk;
    ll_gpu_group *group;
} waiting;

struct ll_talkers {
    ll_gpu *gpu;
    ll_team *team;
    ll_gpu_group *groups[1 << LL_MAX_AXES];
    ll_talkers *lent; /* another's, which outlives this */
};

/* ---- groups ---- */

ll_err ll_talkers_open(ll_exec *e, const ll_talkers *lent, ll_arena *arena, ll_talkers **out)
{
    ll_talkers *t = LL_NEW(arena, ll_talkers);
    t->gpu = e->gpu->gpu;
    t->team = e->team;
    if (lent && lent->team == e->team) t->lent = (ll_talkers *)(uintptr_t)lent;
    *out = t;
    return LL_OK;
}

void ll_talkers_close(ll_talkers *t)
{
    for (int i = 0; t && i < 1 << LL_MAX_AXES; i++) ll_gpu_group_close(t->groups[i]);
}

/* Collective over the group, the first time. */
static ll_err group_of(ll_talkers *t, ll_axes axes, ll_gpu_group **out)
{
    ll_comm *c;
    unsigned char id[LL_GPU_GROUP_ID];
    if (t->lent && t->lent->groups[axes]) {
        *out = t->lent->groups[axes];
        return LL_OK;
    }
    if (!t->groups[axes]) {
        TRY(ll_team_group(t->team, axes, &c));
        ll_err rc = ll_comm_rank(c) == 0 ? ll_gpu_group_id(id) : LL_OK;
        TRY(ll_comm_agree(c, rc));
        TRY(ll_comm_broadcast(c, id, LL_GPU_GROUP_ID, LL_U8, 0, NULL));
        rc = ll_gpu_group_open(t->gpu, id, ll_comm_size(c), ll_comm_rank(c), &t->groups[axes]);
        TRY(ll_comm_agree(c, rc));
    }
    *out = t->groups[axes];
    return LL_OK;
}

static ll_axes axes_of(const ll_instr *x)
{
    return (ll_axes)(x->collective == LL_HALO ? ((const ll_halo_attr *)x->attr)->axes
                                              : ((const ll_coll_attr *)x->attr)->axes);
}

ll_err ll_talkers_meet(ll_talkers *t, const ll_instr *x)
{
    ll_gpu_group *group;
    return group_of(t, axes_of(x), &group);
}

/* ---- packing ---- */

static ll_err pack(ll_gpu *g, char *packed, const void *data, const slab *s)
{
    ll_gpu_rows r = {.to = packed, .from = (const char *)data + s->at};
    r.to_stride = r.row = s->row;
    r.from_stride = s->stride;
    r.n = s->rows;
    return ll_gpu_copy_rows(g, LL_GPU_WORK, &r);
}

static ll_err unpack(ll_gpu *g, void *data, const char *packed, const slab *s)
{
    ll_gpu_rows r = {.to = (char *)data + s->at, .from = packed};
    r.from_stride = r.row = s->row;
    r.to_stride = s->stride;
    r.n = s->rows;
    return ll_gpu_copy_rows(g, LL_GPU_WORK, &r);
}

static ll_err copy(ll_gpu *g, ll_gpu_queue q, void *to, const void *from, size_t bytes)
{
    ll_gpu_rows r = {
        .to = to, .from = from, .to_stride = bytes, .from_stride = bytes, .row = bytes, .n = 1};
    return to == from ? LL_OK : ll_gpu_copy_rows(g, q, &r);
}

static char *taken(const ll_talk *t)
{
    return t->packing + (t->given + 63) / 64 * 64;
}

/* Takes what it sends out of its operand, which may be written anew from the start on (but where
 * the flight holds it, see program/flight.c): in the queue of the kernels. */
static ll_err prepare(ll_gpu *g, ll_talk *t)
{
    size_t bytes = (size_t)t->call.spec.count * ll_dtype_bytes(t->call.dtype);
    if (t->kind == LL_ALL_REDUCE) return copy(g, LL_GPU_WORK, t->out->data, t->in->data, bytes);
    bool all = t->packing && t->kind != LL_ALL_GATHER;
    for (int k = 0; all && k < t->n * t->size; k++)
        TRY(pack(g, t->packing + t->give_at[k], t->in[k / t->size].data, &t->give[k]));
    if (t->kind != LL_ALL_GATHER) return LL_OK;
    char *data = t->packing ? t->packing : (char *)t->out->data;
    for (int k = t->me; k < t->n * t->size; k += t->size)
        TRY(copy(g, LL_GPU_WORK, data + t->take_at[k], t->in[k / t->size].data,
                 ll_slab_bytes(&t->take[k])));
    return LL_OK;
}

/* ---- talking ---- */

static bool even(const ll_talk *t)
{
    const int64_t *s = t->call.spec.starts;
    for (int k = 1; k < t->size; k++)
        if (s[k + 1] - s[k] != s[1] - s[0]) return false;
    return true;
}

/* Member k's block begins at starts[k]; this rank's own ends where it lies. */
static ll_err scatter(ll_gpu_group *x, const ll_talk *t, char *data, size_t elem, bool max)
{
    const int64_t *s = t->call.spec.starts;
    char *own = data + (size_t)s[t->me] * elem;
    if (even(t)) return ll_gpu_reduce_scatter(x, data, own, s[1] - s[0], t->call.dtype, max);
    for (int k = 0; k < t->size; k++) {
        char *block = data + (size_t)s[k] * elem;
        TRY(ll_gpu_reduce(x, block, block, s[k + 1] - s[k], t->call.dtype, max, k));
    }
    return LL_OK;
}

static ll_err gather(ll_gpu_group *x, const ll_talk *t, char *data, size_t elem)
{
    const int64_t *s = t->call.spec.starts;
    if (even(t))
        return ll_gpu_all_gather(x, data + (size_t)s[t->me] * elem, data,
                                 (size_t)(s[1] - s[0]) * elem);
    for (int k = 0; k < t->size; k++)
        TRY(ll_gpu_broadcast(x, data + (size_t)s[k] * elem, (size_t)(s[k + 1] - s[k]) * elem, k));
    return LL_OK;
}

/* Everyone gives each other what the matrix says. */
static ll_err exchange(ll_gpu *g, ll_gpu_group *x, const ll_talk *t, const char *from, char *to,
                       size_t elem)
{
    const int64_t *m = t->call.spec.matrix;
    size_t given = 0, came = 0;
    for (int k = 0; k < t->size; k++) {
        size_t give = (size_t)m[t->me * t->size + k] * elem;
        size_t take = (size_t)m[k * t->size + t->me] * elem;
        if (k == t->me) {
            TRY(copy(g, LL_GPU_TALK, to + came, from + given, give));
        } else {
            if (give) TRY(ll_gpu_send(x, from + given, give, k));
            if (take) TRY(ll_gpu_receive(x, to + came, take, k));
        }
        given += give;
        came += take;
    }
    return LL_OK;
}

static ll_err talk_one(ll_gpu *g, const waiting *w)
{
    const ll_talk *t = w->talk;
    size_t elem = ll_dtype_bytes(t->call.dtype);
    bool max = t->call.op == LL_REDUCE_MAX;
    char *in = (char *)t->in->data, *out = (char *)t->out->data;
    switch (t->kind) {
    case LL_ALL_REDUCE:
        return ll_gpu_all_reduce(w->group, out, out, t->call.spec.count, t->call.dtype, max);
    case LL_REDUCE_SCATTER: return scatter(w->group, t, t->packing ? t->packing : in, elem, max);
    case LL_ALL_GATHER: return gather(w->group, t, t->packing ? t->packing : out, elem);
    case LL_ROTATE: return exchange(g, w->group, t, in, out, elem);
    default: return exchange(g, w->group, t, t->packing, taken(t), elem);
    }
}

static ll_err talk_all(ll_gpu *g, const waiting *w, int n)
{
    TRY(ll_gpu_group_begin());
    ll_err rc = LL_OK;
    for (int i = 0; i < n && rc == LL_OK; i++) rc = talk_one(g, &w[i]);
    ll_err end = ll_gpu_group_end();
    TRY(rc);
    return end;
}

/* ---- starts and waits ---- */

static ll_err flush(ll_exec *e)
{
    ll_onboard *o = e->gpu;
    waiting *w = o->waiting;
    int n = o->n_waiting;
    if (!n) return LL_OK;
    o->n_waiting = 0;
    o->waiting_bytes = 0;
    TRY(ll_gpu_after(o->gpu, LL_GPU_TALK, LL_GPU_WORK));
    TRY(talk_all(o->gpu, w, n));
    for (int i = 0; i < n; i++) TRY(ll_gpu_raise(o->gpu, LL_GPU_TALK, w[i].instr));
    return LL_OK;
}

ll_err ll_onboard_start(ll_exec *e, int i)
{
    ll_onboard *o = e->gpu;
    bound *b = &e->instrs[i];
    if (!o->waiting) o->waiting = LL_NEW_ARRAY(e->arena, waiting, e->p->n_instr + 1);
    waiting *w = &o->waiting[o->n_waiting++];
    *w = (waiting){.instr = i, .talk = b->talk};
    TRY(group_of(o->talkers, axes_of(b->instr), &w->group));
    TRY(prepare(o->gpu, b->talk));
    b->flying = true;
    o->waiting_bytes += e->p->slots[b->instr->in[0]].bytes;
    bool more = b->talk->kind == LL_ALL_REDUCE && b->instr->last && o->waiting_bytes < BUCKET;
    return more ? LL_OK : flush(e);
}

ll_err ll_onboard_await(ll_exec *e, int i)
{
    ll_onboard *o = e->gpu;
    bound *b = &e->instrs[i];
    ll_talk *t = b->talk;
    if (!b->flying) return LL_OK;
    b->flying = false;
    for (int k = 0; k < o->n_waiting; k++)
        if (o->waiting[k].instr == i) TRY(flush(e));
    TRY(ll_gpu_heed(o->gpu, LL_GPU_WORK, i));
    if (t->kind == LL_REDUCE_SCATTER) {
        char *data = t->packing ? t->packing : (char *)t->in->data;
        for (int k = t->me; k < t->n * t->size; k += t->size)
            TRY(copy(o->gpu, LL_GPU_WORK, t->out[k / t->size].data, data + t->give_at[k],
                     ll_slab_bytes(&t->give[k])));
    }
    bool all = t->packing && t->kind != LL_REDUCE_SCATTER;
    const char *packed = t->kind == LL_ALL_GATHER ? t->packing : all ? taken(t) : NULL;
    for (int k = 0; all && k < t->n * t->size; k++)
        TRY(unpack(o->gpu, t->out[k / t->size].data, packed + t->take_at[k], &t->take[k]));
    return LL_OK;
}
