/* stages_cut.c: which stage makes and keeps each value of a graph, and what of the graph is left
 * for one rank of a pipeline: its stages' nodes, and messages. */
#include "pass/stages.h"

/* ---- which stage makes a value ---- */

typedef struct cutter {
    const ll_graph *g;
    const ll_stages *s;
    const int *rank_of;
    int axis, n_rank, me;
    ll_rewrite rw;
    const bool *varies;
    const bool *once; /* [n_value] no part of a micro-batch */
    const bool *told; /* [n_value] one number, a result: every rank has it */
    bool *report;     /* [n_node] results need it */
    int *stage; /* [n_value] where it is made or, of parameters and state, kept; 0: anywhere */
    uint64_t *readers; /* [n_value] ranks that read it */
    ll_val token;
    int64_t serial;
} cutter;

/* What is no part of a micro-batch: means over them and what is made of these, and what nothing but
 * this reads. */
static const bool *find_once(const ll_graph *g, const bool *varies, ll_arena *arena)
{
    bool *once = LL_NEW_ARRAY(arena, bool, g->n_value),
         *each = LL_NEW_ARRAY(arena, bool, g->n_node);
    for (int i = g->n_node - 1; i >= 0; i--) {
        const ll_node *n = &g->nodes[i];
        each[i] |= !ll_is_mean(n) && varies[n->out[0].id];
        for (int k = 0; k < n->n_in; k++) {
            int m = ll_value_of(g, n->in[k])->node;
            if (m >= 0) each[m] |= each[i] || ll_is_mean(n);
        }
        for (int o = 0; o < n->n_out; o++) once[n->out[o].id] = !each[i];
    }
    return once;
}

static const bool *find_told(const ll_graph *g, ll_arena *arena)
{
    bool *told = LL_NEW_ARRAY(arena, bool, g->n_value);
    for (int i = 0; i < g->n_result; i++) {
        ll_val v = g->results[i].value;
        told[v.id] = ll_value_of(g, v)->node >= 0 && !ll_value_of(g, v)->type.shape.n;
    }
    return told;
}

static bool is_kept(const ll_value *v)
{
    return v->node < 0 && (v->kind == LL_PARAM || v->kind == LL_STATE);
}

/* Is it part of a stage, and run in each micro-batch? */
static bool in_micro(const cutter *c, const ll_node *n)
{
    return n->of.at > 0 && n->of.at <= c->s->n_at && !c->once[n->out[0].id];
}

/* Can every rank make the node's results by itself: of numbers that it is told, constants, step
 * counters alone? */
static bool is_anywhere(const cutter *c, const ll_node *n)
{
    if (n->op->random || n->op->collective) return false;
    for (int k = 0; k < n->n_in; k++) {
        const ll_value *v = ll_value_of(c->g, n->in[k]);
        bool known = v->kind == LL_STEP || v->kind == LL_CONST;
        if (c->told[n->in[k].id] && !c->varies[n->in[k].id]) continue;
        if (c->stage[n->in[k].id] || (v->node < 0 && !known)) return false;
        if (v->node >= 0 && c->varies[n->in[k].id]) return false;
    }
    return true;
}

/* One number, after the micro-batches, as many: that number is sent, and every rank makes of it
 * what it reads. Here and below it is dimensions that are looked at, not elements: of these each
 * rank has its own part, and all must decide alike. */
static bool is_spread(const cutter *c, const ll_node *n)
{
    if (n->n_in != 1 || n->op->random || n->op->collective || in_micro(c, n)) return false;
    return !c->varies[n->in[0].id] && !ll_value_of(c->g, n->in[0])->type.shape.n &&
           ll_value_of(c->g, n->out[0])->type.shape.n;
}

static int rank_of(const cutter *c, int stage)
{
    return stage ? c->rank_of[stage - 1] : -1;
}

/* What runs once a step, and a mean, is done where the operand of most dimensions is; of equals the
 * last, so that a sum over all parameters goes from stage to stage. Of numbers it goes from rank to
 * rank, the last of which is the last to be done with a step: nobody has to wait for it before. */
static int stage_once(const cutter *c, const ll_node *n)
{
    int most = -1, stage = 0;
    for (int k = 0; k < n->n_in; k++) {
        int dims = ll_value_of(c->g, n->in[k])->type.shape.n, there = c->stage[n->in[k].id];
        if (!there || dims < most) continue;
        if (!dims && !most && c->rank_of && rank_of(c, there) < rank_of(c, stage)) continue;
        most = dims;
        stage = there;
    }
    return stage;
}

/* 0: of none that is known. */
static int stage_of_node(const cutter *c, const ll_node *n)
{
    if (is_anywhere(c, n) || is_spread(c, n)) return 0;
    return in_micro(c, n) ? c->s->of_at[n->of.at] : stage_once(c, n);
}

/* Parameters are kept where the model reads them first. */
static void find_parameters(cutter *c)
{
    const ll_graph *g = c->g;
    LL_EACH (const ll_node, n, g->nodes, g->n_node) {
        if (!in_micro(c, n)) continue;
        int stage = c->s->of_at[n->of.at];
        for (int k = 0; k < n->n_in; k++) {
            int *have = &c->stage[n->in[k].id];
            if (is_kept(ll_value_of(g, n->in[k])) && (!*have || stage < *have)) *have = stage;
        }
    }
}

/* State, where what comes after it is made: with the parameter that it is of. What a parameter
 * becomes as it is (LL_NEXT), with it. */
static void find_state(cutter *c)
{
    const ll_graph *g = c->g;
    LL_EACH (const ll_pair, u, g->updates, g->n_update)
        if (is_kept(ll_value_of(g, u->next))) c->stage[u->next.id] = c->stage[u->input.id];
    for (int i = 0; i < g->n_node; i++) {
        int stage = stage_of_node(c, &g->nodes[i]);
        for (int o = 0; o < g->nodes[i].n_out; o++) c->stage[g->nodes[i].out[o].id] = stage;
    }
    for (int i = 0; i < g->n_update; i++) {
        int *home = &c->stage[g->updates[i].input.id];
        if (!*home) *home = c->stage[g->updates[i].next.id];
    }
    for (int i = 1; i < g->n_value; i++)
        if (is_kept(&g->values[i]) && !c->stage[i]) c->stage[i] = 1;
}

int ll_stages_home(const ll_stages *s, const char *name)
{
    for (int i = 0; i < s->n_home; i++)
        if (!strcmp(s->home[i].name, name)) return s->home[i].stage;
    return 0;
}

static void find_stages(cutter *c)
{
    const ll_graph *g = c->g;
    for (int i = 1; i < g->n_value && c->s->n_home; i++)
        if (is_kept(&g->values[i])) c->stage[i] = ll_stages_home(c->s, g->values[i].name);
    if (!c->s->n_home) find_parameters(c);
    find_state(c);
    LL_EACH (const ll_node, n, g->nodes, g->n_node) {
        int stage = stage_of_node(c, n);
        if (!stage && !is_anywhere(c, n) && !is_spread(c, n)) stage = 1;
        for (int o = 0; o < n->n_out; o++) c->stage[n->out[o].id] = stage;
    }
}

void ll_stages_settle(const ll_graph *g, ll_arena *arena, ll_stages *s)
{
    cutter c = {.g = g, .s = s, .varies = ll_varying(g, arena)};
    c.once = find_once(g, c.varies, arena);
    c.told = find_told(g, arena);
    c.stage = LL_NEW_ARRAY(arena, int, g->n_value);
    find_stages(&c);
    s->home = LL_NEW_ARRAY(arena, ll_home, g->n_value);
    for (int i = 1; i < g->n_value; i++)
        if (is_kept(&g->values[i]))
            s->home[s->n_home++] = (ll_home){ll_arena_strdup(arena, g->values[i].name), c.stage[i]};
}

/* The stage that a node runs in; 0: in any that wants it. */
static int runs_in(const cutter *c, int node)
{
    return c->stage[c->g->nodes[node].out[0].id];
}

static void find_readers(cutter *c)
{
    const ll_graph *g = c->g;
    for (int i = 0; i < g->n_result; i++)
        c->readers[g->results[i].value.id] |= (1ull << (c->n_rank - 1) << 1) - 1;
    for (int i = 0; i < g->n_update; i++)
        c->readers[g->updates[i].next.id] |= 1ull << rank_of(c, c->stage[g->updates[i].input.id]);
    for (int i = g->n_node - 1; i >= 0; i--) {
        const ll_node *n = &g->nodes[i];
        int rank = rank_of(c, runs_in(c, i));
        uint64_t ranks = rank >= 0 ? 1ull << rank : 0; /* or all that read what it makes */
        for (int o = 0; o < n->n_out && rank < 0; o++) ranks |= c->readers[n->out[o].id];
        for (int k = 0; k < n->n_in; k++) c->readers[n->in[k].id] |= ranks;
    }
    ll_mark_results(g, c->report);
    ll_mark_makers(g, c->report);
}

/* ---- messages ---- */

/* A value of the forward pass that another stage's backward pass alone reads travels then. */
static ll_origin origin_of(const cutter *c, ll_val v, int stage, ll_phase reads)
{
    const ll_node *m = ll_maker(c->g, v);
    ll_origin of = {.stage = stage, .phase = m ? m->of.phase : LL_FORWARD};
    if (m) of.block = m->of.block, of.at = m->of.at;
    if (of.phase == LL_FORWARD && reads == LL_BACKWARD && stage < c->stage[v.id])
        of.phase = LL_BACKWARD;
    return of;
}

/* The first node of a rank that reads v, in whatever stage; NULL: none, it is a result there. */
static const ll_node *first_reader(const cutter *c, ll_val v, int rank)
{
    for (int i = 0; i < c->g->n_node; i++) {
        const ll_node *n = &c->g->nodes[i];
        for (int k = 0; k < n->n_in; k++)
            if (n->in[k].id == v.id && rank_of(c, runs_in(c, i)) == rank) return n;
    }
    return NULL;
}

static ll_when when_of(const cutter *c, ll_val v)
{
    const ll_node *m = ll_maker(c->g, v);
    if (c->varies[v.id]) return LL_EACH_MICRO;
    if (!m || !c->once[v.id]) return LL_BEFORE;
    return c->report[ll_value_of(c->g, v)->node] ? LL_FOR_RESULTS : LL_FOR_UPDATE;
}

/* Stages of a rank: the first. */
static int first_stage(const cutter *c, int rank)
{
    for (int s = 1; s <= c->s->n; s++)
        if (c->rank_of[s - 1] == rank) return s;
    return 1;
}

/* Micro-batches go through a stage's pass in ascending order, and so do the messages from it to the
 * other stage's; what goes once is in the graph's order. */
static int64_t channel_of(const cutter *c, ll_val v, const ll_origin *to, ll_when when)
{
    if (when != LL_EACH_MICRO) return 0;
    return 1 + 2 * (int64_t)(c->stage[v.id] * (c->s->n + 1) + to->stage) +
           (to->phase == LL_BACKWARD);
}

/* What is sent of a value, or comes. */
static ll_err emit_messages(cutter *c, ll_val v)
{
    int owner = rank_of(c, c->stage[v.id]);
    const ll_type *t = &ll_value_of(c->g, v)->type;
    for (int r = 0; r < c->n_rank && owner >= 0; r++) {
        if (r == owner || !(c->readers[v.id] >> r & 1)) continue;
        ll_message_attr a = {.axes = 1 << c->axis, .serial = c->serial++, .when = when_of(c, v)};
        a.dtype = t->dtype;
        a.shape = t->shape;
        if (c->me != owner && c->me != r) continue;
        const ll_node *n = first_reader(c, v, r);
        int there = n ? c->stage[n->out[0].id] : first_stage(c, r);
        ll_origin of = origin_of(c, v, there, n ? n->of.phase : LL_FORWARD);
        a.channel = channel_of(c, v, &of, (ll_when)a.when);
        ll_val out;
        const ll_node *maker = ll_maker(c->g, v);
        if (maker) ll_graph_at(c->rw.to, maker);
        c->rw.to->of = of;
        if (c->me == owner) {
            c->rw.to->of.stage = c->stage[v.id];
            a.peer = r;
            TRY(ll_emit_all(c->rw.to, ll_collective_op(LL_SEND), &a, &c->rw.map[v.id], 1, &out));
        } else {
            a.peer = owner;
            TRY(ll_emit_all(c->rw.to, ll_collective_op(LL_RECV), &a, &c->token, 1, &out));
            ll_rewrite_map(&c->rw, v, out);
        }
    }
    return LL_OK;
}

/* ---- one rank's graph ---- */

/* Does this rank keep an input: its own parameters and state, what it reads of batch data and
 * constants? */
static bool wants_input(const cutter *c, int v)
{
    const ll_value *x = &c->g->values[v];
    if (is_kept(x)) return rank_of(c, c->stage[v]) == c->me;
    return x->kind == LL_STEP || c->readers[v] >> c->me & 1;
}

static ll_err cut_inputs(cutter *c)
{
    const ll_graph *g = c->g;
    ll_graph *to = c->rw.to;
    to->of = (ll_origin){.at = -1, .phase = LL_ONCE};
    c->token = ll_fill(to, LL_F32, (ll_shape){1, {0}}, 0);
    TRY(ll_graph_check(to));
    for (int i = 1; i < g->n_value; i++) {
        const ll_value *v = &g->values[i];
        if (v->node >= 0) continue;
        if (wants_input(c, i)) c->rw.map[i] = ll_input_like(to, v);
        if (is_kept(v)) TRY(emit_messages(c, (ll_val){i}));
    }
    return LL_OK;
}

static ll_err cut_node(cutter *c, int i)
{
    const ll_node *n = &c->g->nodes[i];
    int stage = runs_in(c, i);
    bool wanted = false;
    for (int o = 0; o < n->n_out; o++) wanted |= c->readers[n->out[o].id] >> c->me & 1;
    if (stage ? rank_of(c, stage) == c->me : wanted) {
        TRY(ll_rewrite_copy(&c->rw, n));
        c->rw.to->nodes[c->rw.to->n_node - 1].of.stage = stage;
    }
    for (int o = 0; o < n->n_out; o++) TRY(emit_messages(c, n->out[o]));
    return LL_OK;
}

static ll_err cut_outputs(cutter *c)
{
    const ll_graph *g = c->g;
    c->rw.to->scope[0] = '\0';
    c->rw.to->of = (ll_origin){.block = g->of.block, .at = -1, .phase = g->of.phase};
    for (int i = 0; i < g->n_result; i++) {
        ll_val v = c->rw.map[g->results[i].value.id]; /* none: another rank has it */
        if (v.id) ll_graph_result(c->rw.to, g->results[i].name, v);
    }
    LL_EACH (const ll_pair, u, g->updates, g->n_update)
        if (rank_of(c, c->stage[u->input.id]) == c->me)
            ll_graph_update(c->rw.to, c->rw.map[u->input.id], c->rw.map[u->next.id]);
    return ll_verify(c->rw.to);
}

static ll_err cut_all(cutter *c)
{
    find_stages(c);
    find_readers(c);
    TRY(cut_inputs(c));
    for (int i = 0; i < c->g->n_node; i++) TRY(cut_node(c, i));
    return cut_outputs(c);
}

ll_err ll_stages_cut(const ll_graph *g, const ll_stages *s, const ll_mesh *m, int rank,
                     const int *rank_of, ll_graph **out)
{
    int axis = ll_mesh_axis(m, LL_AXIS_PIPE);
    LL_OWN(ll_arena) arena = ll_arena_new();
    LL_ASSERT(axis >= 0);
    cutter c = {.g = g, .s = s, .rank_of = rank_of, .axis = axis, .n_rank = m->size[axis]};
    CHECK(c.n_rank <= LL_MAX_PIPE, LL_E_SHARD, "pipe=%d: at most %d ranks can be along axis pipe",
          c.n_rank, LL_MAX_PIPE);
    c.me = ll_mesh_coord(m, axis, rank);
    c.varies = ll_varying(g, arena);
    c.once = find_once(g, c.varies, arena);
    c.told = find_told(g, arena);
    c.report = LL_NEW_ARRAY(arena, bool, g->n_node + 1);
    LL_ARRAYS(arena, g->n_value, c.stage, c.readers);
    ll_rewrite_bare(&c.rw, g);
    LL_OWN(ll_graph) to = c.rw.to;
    TRY(cut_all(&c));
    return LL_HAND(out, to);
}
