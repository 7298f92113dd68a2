/* memory.c: static memory planning.
 *
 * Values first become storages: an alias shares its operand's; a result takes over the storage of
 * an operand that dies with the instruction, where its op can work in place; the next value of a
 * parameter is written into the parameter itself when the update makes it and nothing reads the old
 * one any more. A collective's room for packing is a storage too; what it uses lives until its
 * wait. Then storages are placed, largest first, each at the lowest offset where it
 * overlaps no placed storage that lives at the same time. The sum of live bytes at the busiest
 * instruction is the bound no plan can beat; it is kept beside the result. */
#include "program/memory.h"

#include "base/num.h"
#include "base/room.h"

typedef struct storage {
    size_t bytes, offset;
    int first, last; /* positions between which it holds something wanted */
    int taken;       /* the position of its newest content */
    ll_region region;
    bool adds_up; /* over micro-batches */
    bool carry;   /* holds what the step before left: free for others when that was read */
} storage;

typedef struct planner {
    const ll_order *o;
    const ll_graph *g;
    ll_arena *arena;
    ll_places *out;
    storage *s;
    int n;
    int *last_use; /* value -> last position that reads it or an alias of it */
    int *update;   /* value -> index of the update whose next it is, -1 */
} planner;

bool ll_is_alias(const ll_node *n, int n_micro)
{
    return n->op->alias || (n_micro == 1 && n->op == &ll_op_accum);
}

ll_val ll_alias_root(const ll_graph *g, ll_val v, int n_micro)
{
    for (int m; (m = ll_value_of(g, v)->node) >= 0 && ll_is_alias(&g->nodes[m], n_micro);)
        v = g->nodes[m].in[0];
    return v;
}

static int new_storage(planner *p, size_t bytes, int first, int last, ll_region region)
{
    p->s[p->n] =
        (storage){.bytes = bytes, .first = first, .last = last, .taken = first, .region = region};
    return p->n++;
}

static int storage_of(const planner *p, ll_val v)
{
    return p->out->storage[ll_alias_root(p->g, v, p->o->n_micro).id];
}

static void find_last_uses(planner *p)
{
    const ll_graph *g = p->g;
    for (int i = 0; i < g->n_value; i++) p->last_use[i] = -1, p->update[i] = -1;
    for (int i = 0; i < g->n_result; i++) p->last_use[g->results[i].value.id] = p->o->n;
    for (int i = 0; i < g->n_update; i++) {
        p->last_use[g->updates[i].next.id] = p->o->n;
        p->update[g->updates[i].next.id] = i;
    }
    for (int i = g->n_node - 1; i >= 0; i--) {
        const ll_node *n = &g->nodes[i];
        bool alias = ll_is_alias(n, p->o->n_micro);
        int at = alias                   ? p->last_use[n->out[0].id]
                 : p->o->flight[i].holds ? p->o->done[i]
                                         : p->o->place[i];
        for (int k = 0; k < n->n_in; k++)
            if (p->last_use[n->in[k].id] < at) p->last_use[n->in[k].id] = at;
    }
}

/* Whether result o of n, of so many bytes, may lie on operand k. */
static bool may_lie_on(const planner *p, const ll_node *n, int o, int k, size_t bytes)
{
    const ll_value *v = ll_value_of(p->g, n->in[k]);
    if (ll_type_bytes(&v->type) != bytes) return false;
    if (o == 0 && n->op->in_place >> k & 1) return true;
    bool chain = n->op->attrs && n->op->attrs->kind == LL_A_FUSED;
    if (!chain) return n->op->elementwise;
    const ll_fused_attr *a = (const ll_fused_attr *)n->attr;
    return a->period[k] == ll_numel(&a->shape) && a->repeat[k] == 1;
}

/* Whether instruction `at` may write update u's next value over its input. */
static bool may_overwrite(const planner *p, int u, const ll_node *n, int at, int o)
{
    ll_val input = p->g->updates[u].input;
    const storage *s = &p->s[storage_of(p, input)];
    bool carry = ll_value_of(p->g, input)->kind == LL_CARRY;
    if (at < p->o->end[LL_REPORT] && !carry) return false; /* results are looked at first */
    if (s->last > at) return false;                        /* read later, or taken already */
    for (int k = 0; k < n->n_in; k++)
        if (storage_of(p, n->in[k]) == storage_of(p, input) && !may_lie_on(p, n, o, k, s->bytes))
            return false;
    return true;
}

/* A dying operand whose storage result o, wanted until last, may take over, or -1. What the next
 * step finds is written there when all else is done. */
static int dying_operand(const planner *p, const ll_node *n, int at, int o, int last)
{
    size_t bytes = ll_type_bytes(&ll_value_of(p->g, n->out[o])->type);
    for (int k = 0; k < n->n_in; k++) {
        int s = storage_of(p, n->in[k]);
        bool goes = p->s[s].region == LL_WORK || (p->s[s].carry && last < p->o->n);
        if (!goes || p->s[s].last != at || p->s[s].bytes != bytes) continue;
        if (p->s[s].taken == at) continue; /* by another result of n */
        if (may_lie_on(p, n, o, k, bytes)) return s;
    }
    return -1;
}

/* A number that another stage tells as a result may come when the next step has begun: nobody else
 * has its place. */
static bool comes_late(const planner *p, const ll_node *n)
{
    return p->o->unrolled && n->op->collective == LL_RECV && p->last_use[n->out[0].id] == p->o->n &&
           !ll_value_of(p->g, n->out[0])->type.shape.n;
}

static void place_results(planner *p, int node, int at)
{
    const ll_node *n = &p->g->nodes[node];
    /* what adds up over micro-batches is wanted from the first instruction on */
    bool accum = n->op == &ll_op_accum && !p->o->unrolled;
    for (int o = 0; o < n->n_out; o++) {
        int id = n->out[o].id, u = p->update[id], s;
        size_t bytes = ll_type_bytes(&p->g->values[id].type);
        int done = p->o->done[node], last = p->last_use[id] < done ? done : p->last_use[id];
        if (u >= 0 && may_overwrite(p, u, n, at, o)) {
            s = storage_of(p, p->g->updates[u].input);
            p->s[s].last = p->o->n;
            p->out->in_place[u] = true;
        } else if ((s = dying_operand(p, n, at, o, last)) >= 0) {
            p->s[s].last = last;
            p->s[s].taken = at;
        } else
            s = new_storage(p, bytes, accum || comes_late(p, n) ? 0 : at, last,
                            ll_aside_of(n) == LL_STORE ? LL_ASIDE : LL_WORK);
        p->s[s].adds_up |= accum;
        p->out->storage[id] = s;
    }
}

/* A collective's result is there from its start or from its wait on, what it packs in between. */
static void place_position(planner *p, int at)
{
    const ll_order *o = p->o;
    int node = o->node[at];
    const ll_flight *f = &o->flight[node];
    if (!ll_has_wait(&p->g->nodes[node]) || f->early != o->wait[at])
        for (int k = node; k >= 0; k = o->before[k] - 1) place_results(p, k, at);
    if (f->packing && !o->wait[at])
        p->out->packing[node] = new_storage(p, f->packing, at, o->done[node], LL_WORK);
}

/* Inputs that are loaded, and nothing else, lie aside. */
static bool *find_aside(const planner *p)
{
    const ll_graph *g = p->g;
    bool *aside = LL_NEW_ARRAY(p->arena, bool, g->n_value);
    for (int i = 0; i < g->n_node; i++)
        if (ll_aside_of(&g->nodes[i]) == LL_LOAD) aside[g->nodes[i].in[0].id] = true;
    return aside;
}

static void find_storages(planner *p)
{
    const bool *aside = find_aside(p);
    const ll_graph *g = p->g;
    for (int i = 1; i < g->n_value; i++) {
        const ll_value *v = &g->values[i];
        if (v->node >= 0) continue;
        size_t copies = v->kind == LL_BATCH ? (size_t)p->o->n_micro : 1;
        p->out->storage[i] = new_storage(p, copies * ll_type_bytes(&v->type), 0, p->last_use[i],
                                         aside[i] ? LL_ASIDE : LL_PERSISTENT);
        p->s[p->out->storage[i]].carry = v->kind == LL_CARRY;
    }
    for (int at = 0; at < p->o->n; at++) place_position(p, at);
    for (int i = 0; i < p->n; i++) /* what reads it may run with the last micro-batch alone */
        if (p->s[i].adds_up && p->s[i].last < p->o->end[LL_MICRO])
            p->s[i].last = p->o->end[LL_MICRO];
    for (int i = 1; i < g->n_value; i++) p->out->storage[i] = storage_of(p, (ll_val){i});
}

/* A region that is shared by what lives at different times; of inputs, always. */
static size_t place_shared(planner *p, ll_region region)
{
    ll_want *wants = LL_NEW_ARRAY(p->arena, ll_want, p->n + 1);
    bool *input = LL_NEW_ARRAY(p->arena, bool, p->n + 1);
    int n = 0;
    for (int i = 1; i < p->g->n_value; i++)
        if (p->g->values[i].node < 0) input[p->out->storage[i]] = true;
    for (int i = 0; i < p->n; i++)
        if (p->s[i].region == region)
            wants[n++] = (ll_want){.bytes = p->s[i].bytes,
                                   .from = input[i] ? 0 : p->s[i].first,
                                   .to = input[i] ? p->o->n : p->s[i].last};
    size_t bytes = ll_room_plan(wants, n, p->arena);
    n = 0;
    for (int i = 0; i < p->n; i++)
        if (p->s[i].region == region) p->s[i].offset = wants[n++].at;
    return bytes;
}

static void place_storages(planner *p)
{
    ll_places *out = p->out;
    for (int i = 0; i < p->n; i++) {
        if (p->s[i].region != LL_PERSISTENT) continue;
        p->s[i].offset = out->persistent_bytes;
        out->persistent_bytes += ll_align64(p->s[i].bytes);
    }
    out->work_bytes = place_shared(p, LL_WORK);
    out->aside_bytes = place_shared(p, LL_ASIDE);
}

static size_t busiest(const planner *p)
{
    size_t *live = p->out->live, most = 0, now = 0;
    LL_EACH (const storage, s, p->s, p->n) {
        if (s->region != LL_WORK) continue;
        live[s->first] += ll_align64(s->bytes);
        live[s->last + 1 > p->o->n + 1 ? p->o->n + 1 : s->last + 1] -= ll_align64(s->bytes);
    }
    for (int i = 0; i <= p->o->n; i++) {
        live[i] = now += live[i]; /* unsigned wrap-around adds up right */
        if (now > most) most = now;
    }
    return most;
}

void ll_plan_memory(const ll_order *o, const size_t *scratch, ll_arena *arena, ll_places *out)
{
    const ll_graph *g = o->g;
    planner p = {.o = o, .g = g, .arena = arena, .out = out};
    *out = (ll_places){.in_place = LL_NEW_ARRAY(arena, bool, g->n_update + 1)};
    out->packing = LL_NEW_ARRAY(arena, int, g->n_node + 1);
    LL_ARRAYS(arena, o->n + 2, out->scratch, out->live);
    p.s = LL_NEW_ARRAY(arena, storage, g->n_value + g->n_node + o->n);
    LL_ARRAYS(arena, g->n_value, out->storage, p.last_use, p.update);
    find_last_uses(&p);
    find_storages(&p);
    for (int i = 0; scratch && i < o->n; i++)
        out->scratch[i] = new_storage(&p, scratch[i], i, i, LL_WORK);
    place_storages(&p);
    out->ideal_work_bytes = busiest(&p);
    LL_ARRAYS(arena, p.n + 1, out->region, out->offset, out->input);
    for (int i = 0; i < p.n; i++) out->region[i] = p.s[i].region, out->offset[i] = p.s[i].offset;
    for (int i = 1; i < g->n_value; i++)
        if (g->values[i].node < 0) out->input[out->storage[i]] = i;
}
