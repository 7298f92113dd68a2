/* exec_talk.c: a program's collectives. Each talks on its own, but for sums of gradients over the
 * same ranks, which are joint: in buckets, and through a codec where one is asked for. */
#include "exec/exec_int.h"
#include "exec/room.h"
#include "kern/attr.h"

#include <stdlib.h>
#include <string.h>

static ll_err open_talk(ll_exec *e, ll_team *team, bound *b)
{
    const ll_instr *x = b->instr;
    CHECK(team, LL_E_ARG, "%s is a collective, but this process has no team of ranks", x->name);
    bool views = e->gpu && !ll_onboard_talks(e);
    void *packing = views ? b->call.scratch : e->slab + e->input_bytes + x->packing_at;
    if (ll_onboard_talks(e)) TRY(ll_onboard_meet(e, x));
    return ll_talk_open(team, e->arena, x, b->call.in, b->call.out, packing, &b->talk);
}

/* ---- joint all-reduces ---- */

static bool is_sum(const ll_instr *x, const ll_tensor *in)
{
    return x->collective == LL_ALL_REDUCE && in->dtype == LL_F32 &&
           !((const ll_coll_attr *)x->attr)->max;
}

/* The parameter whose gradient an all-reduce sums; NULL: it sums something else. */
static const char *gradient_of(const ll_exec *e, const ll_instr *x)
{
    const char *name = e->p->slots[x->in[0]].name;
    return name && !strncmp(name, "grad:", 5) ? name + 5 : NULL;
}

/* Is it a gradient that goes through the codec? *cut: the axes that cut it. */
static bool is_compressed(const ll_exec *e, const ll_team *team, const ll_instr *x, ll_axes *cut)
{
    const char *param = e->compress ? gradient_of(e, x) : NULL;
    int64_t axes = ((const ll_coll_attr *)x->attr)->axes;
    int data = ll_mesh_axis(ll_team_mesh(team), LL_AXIS_DATA);
    ll_layout l;
    if (!param || data < 0 || !(axes >> data & 1)) return false;
    if (!ll_gradient_layout(e->place, param, (ll_axes)axes, &l)) return false;
    *cut = ll_layout_axes(&l);
    return true;
}

/* Sums of the last micro-batch are joint. So is, by itself, a compressed gradient that had to move
 * before its sum: it is awaited at once. */
static bool is_joint(const ll_exec *e, ll_team *team, int i)
{
    const ll_instr *x = e->instrs[i].instr;
    ll_axes cut;
    if (!is_sum(x, e->instrs[i].call.in)) return false;
    return x->last || (i >= e->p->end[LL_MICRO] && is_compressed(e, team, x, &cut));
}

/* Those that are awaited before the last micro-batch is over are on their own. */
static ll_err add_joint(ll_exec *e, ll_team *team, int i)
{
    bound *b = &e->instrs[i];
    int64_t axes = ((const ll_coll_attr *)b->instr->attr)->axes;
    const ll_tensor *t = &b->call.out[0];
    int k = 0;
    ll_axes cut = 0;
    if (b->instr->pair < e->p->end[LL_MICRO]) return open_talk(e, team, b);
    bool packed = is_compressed(e, team, b->instr, &cut);
    if (!b->instr->last) k = e->n_joint;
    while (k < e->n_joint && (e->joints[k].axes != axes || e->joints[k].compressed != packed ||
                              e->joints[k].cut != cut))
        k++;
    joint *j = &e->joints[k];
    if (k == e->n_joint) {
        *j = (joint){.axes = axes, .compressed = packed, .cut = cut};
        j->tensors = LL_NEW_ARRAY(e->arena, ll_bucket_tensor, e->p->n_instr);
        e->n_joint++;
    }
    b->joint = k;
    b->tensor = j->n;
    CHECK(!packed || t->shape.n < LL_MAX_DIMS, LL_E_SHAPE,
          "compress %s: %s has %d dimensions, and can have %d", e->compress,
          gradient_of(e, b->instr), t->shape.n, LL_MAX_DIMS - 1);
    const char *name = packed ? gradient_of(e, b->instr) : b->instr->name;
    j->tensors[j->n++] = (ll_bucket_tensor){t->data, ll_numel(&t->shape), name};
    return LL_OK;
}

/* What a codec makes of a tensor depends on what it shares a bucket with: a tuned size would make
 * the bits of a run depend on the tuner. */
enum { COMPRESSED_BUCKET = 4 << 20 };

static ll_err open_joints(ll_exec *e, const ll_exec_opts *opts)
{
    bool any = false;
    for (int k = 0; k < e->n_joint; k++) {
        joint *j = &e->joints[k];
        ll_comm *c;
        TRY(ll_team_group(opts->team, (ll_axes)j->axes, &c));
        ll_buckets_opts o = {.dtype = LL_F32, .op = LL_REDUCE_SUM};
        if (j->compressed) {
            o.codec = e->compress;
            o.seed = opts->seed;
            o.bucket_bytes = COMPRESSED_BUCKET;
            any = true;
        }
        TRY(ll_buckets_open(c, j->tensors, j->n, &o, &j->buckets));
    }
    CHECK(any || !e->compress, LL_E_SHARD,
          "compress %s: no gradient of %s is summed over axis data in one piece; leave it out",
          e->compress, e->place->g->name);
    return LL_OK;
}

int ll_exec_residuals(const ll_exec *e, ll_arena *arena, ll_residual **out)
{
    int n = 0, most = 0;
    for (int k = 0; k < e->n_joint; k++) most += e->joints[k].n;
    *out = LL_NEW_ARRAY(arena, ll_residual, most + 1);
    for (int k = 0; k < e->n_joint; k++) {
        const joint *j = &e->joints[k];
        for (int i = 0; i < j->n; i++) {
            float *data = ll_buckets_residual(j->buckets, i);
            if (data) (*out)[n++] = (ll_residual){j->tensors[i].name, (ll_axes)j->axes, data};
        }
    }
    return n;
}

void ll_exec_compressed(const ll_exec *e, int64_t *bytes, int64_t *dense_bytes)
{
    *bytes = *dense_bytes = 0;
    for (int k = 0; k < e->n_joint; k++) {
        int64_t sent, dense;
        ll_buckets_sent(e->joints[k].buckets, &sent, &dense);
        *bytes += sent;
        *dense_bytes += dense;
    }
}

static ll_err start_joint(ll_exec *e, bound *b)
{
    joint *j = &e->joints[b->joint];
    const ll_tensor *in = &b->call.in[0], *out = &b->call.out[0];
    size_t n = (size_t)ll_numel(&in->shape) * sizeof(float);
    if (in->data != out->data && n) memcpy(out->data, in->data, n);
    ll_buckets_set_step(j->buckets, (int64_t)b->call.step); /* what codecs draw by */
    return ll_buckets_ready(j->buckets, b->tensor);
}

ll_err ll_exec_start_talk(ll_exec *e, bound *b)
{
    b->flying = true;
    e->n_flying++;
    return b->talk ? ll_talk_start(b->talk) : start_joint(e, b);
}

/* b: the start. */
ll_err ll_exec_wait_talk(ll_exec *e, bound *b)
{
    if (!b->flying) return LL_OK;
    double began = ll_now();
    b->flying = false;
    e->n_flying--;
    ll_err rc = b->talk ? ll_talk_wait(b->talk)
                        : ll_buckets_wait_for(e->joints[b->joint].buckets, b->tensor);
    e->waited += ll_now() - began;
    return rc;
}

ll_err ll_exec_wait_all(ll_exec *e)
{
    for (int i = 0; i < e->p->n_instr && e->n_flying; i++) TRY(ll_exec_wait_talk(e, &e->instrs[i]));
    return LL_OK;
}

/* Collectives that are never under way at once share their scratch. */
static ll_err find_room(ll_exec *e)
{
    const ll_program *p = e->p;
    ll_want *wants = LL_NEW_ARRAY(e->arena, ll_want, p->n_instr + 1);
    for (int i = 0; i < p->n_instr; i++) {
        wants[i].from = i;
        wants[i].to = p->instrs[i].pair;
        if (e->instrs[i].talk && !ll_onboard_talks(e))
            TRY(ll_talk_scratch(e->instrs[i].talk, &wants[i].bytes));
    }
    e->room_bytes = ll_room_plan(wants, p->n_instr, e->arena);
    if (!e->room_bytes) return LL_OK;
    e->room = (char *)aligned_alloc(64, e->room_bytes);
    CHECK(e->room, LL_E_MEM, "no memory for %zu bytes of scratch of collectives", e->room_bytes);
    ll_comm_hold(e->comm, (int64_t)e->room_bytes);
    for (int i = 0; i < p->n_instr; i++)
        if (wants[i].bytes) ll_talk_set_scratch(e->instrs[i].talk, e->room + wants[i].at);
    return LL_OK;
}

ll_err ll_exec_open_talks(ll_exec *e, const ll_exec_opts *opts)
{
    for (int i = 0; i < e->p->n_instr; i++) {
        const ll_instr *x = &e->p->instrs[i];
        if (x->kernel.run || x->wait) continue;
        if (opts->team) ll_team_note(opts->team, e->p, x);
        if (opts->team && !ll_onboard_talks(e) && is_joint(e, opts->team, i))
            TRY(add_joint(e, opts->team, i));
        else
            TRY(open_talk(e, opts->team, &e->instrs[i]));
    }
    TRY(open_joints(e, opts));
    if (!opts->team) return LL_OK;
    TRY(ll_comm_agree(e->comm, find_room(e)));
    return ll_team_compare(opts->team);
}
