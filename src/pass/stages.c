/* stages.c: where a model is cut into stages, and what is left of a graph for one rank of a
 * pipeline. */
#include "pass/stages.h"

#include "base/text.h"
#include "kern/attr.h"

#include <float.h>
#include <fnmatch.h>
#include <string.h>

/* ---- where to cut ---- */

/* FLOPs that take as long as reading or writing a byte of memory, and as sending one. */
enum { FLOPS_PER_BYTE = 4, FLOPS_PER_SENT = 50, MOST_CUTS = 768 };

static double bytes_of(const ll_graph *g, ll_val v)
{
    const ll_type *t = &ll_value_of(g, v)->type;
    return (double)ll_numel(&t->shape) * (double)ll_dtype_bytes(t->dtype);
}

static double work_of(const ll_graph *g, const ll_node *n)
{
    double bytes = 0;
    for (int i = 0; i < n->n_in; i++) bytes += bytes_of(g, n->in[i]);
    for (int i = 0; i < n->n_out; i++) bytes += bytes_of(g, n->out[i]);
    return ll_node_flops(g, n) + (n->op->alias ? 0 : FLOPS_PER_BYTE * bytes);
}

static bool is_mean(const ll_node *n)
{
    return ll_is_op(n, &ll_op_accum);
}

static bool is_forward(const ll_node *n)
{
    return n->of.phase == LL_FORWARD && n->of.at > 0;
}

typedef struct finder {
    const ll_graph *g;
    int n, n_at;
    double *work;      /* [n_at + 1] of declared nodes 1 to k, with their gradients */
    double *sent;      /* [n_at + 1] bytes of the forward pass that cross a cut behind node k */
    const char **name; /* [n_at + 1] */
    int *cut, n_cut;   /* nodes behind which a cut may be */
} finder;

static void weigh(finder *f, ll_arena *a)
{
    const ll_graph *g = f->g;
    const bool *varies = ll_varying(g, a);
    int *last = LL_NEW_ARRAY(a, int, g->n_value);
    for (int i = 0; i < g->n_node; i++) {
        const ll_node *n = &g->nodes[i];
        if (n->of.at > 0 && n->of.at <= f->n_at) f->work[n->of.at] += work_of(g, n);
        if (!is_forward(n)) continue;
        f->name[n->of.at] = n->name;
        for (int k = 0; k < n->n_in && !is_mean(n); k++)
            if (last[n->in[k].id] < n->of.at) last[n->in[k].id] = n->of.at;
    }
    for (int v = 1; v < g->n_value; v++) {
        int m = g->values[v].node;
        if (m < 0 || !is_forward(&g->nodes[m]) || !varies[v]) continue;
        for (int k = g->nodes[m].of.at; k < last[v]; k++) f->sent[k] += bytes_of(g, (ll_val){v});
    }
    for (int k = 1; k <= f->n_at; k++) f->work[k] += f->work[k - 1];
}

/* Every node, or of too many those behind which least is sent. */
static void list_cuts(finder *f, ll_arena *a)
{
    double most = DBL_MAX;
    f->cut = LL_NEW_ARRAY(a, int, f->n_at + 1);
    for (;;) {
        double largest = 0;
        f->n_cut = 0;
        for (int k = 1; k < f->n_at; k++) {
            if (!f->name[k] || f->sent[k] >= most) continue;
            f->cut[f->n_cut++] = k;
            if (f->sent[k] > largest) largest = f->sent[k];
        }
        if (f->n_cut <= MOST_CUTS || largest == 0) break;
        most = largest;
    }
    if (f->n_cut > MOST_CUTS) f->n_cut = MOST_CUTS; /* all alike */
    f->cut[f->n_cut++] = f->n_at;
}

typedef struct choice {
    double most, sent; /* of the stage that has most to do; of all cuts */
    int before;        /* the cut before this one */
} choice;

static bool better(double most, double sent, const choice *than)
{
    return most < than->most || (most == than->most && sent < than->sent);
}

/* best[i][c]: stages 1 to i end behind cut c. */
static ll_err cut_by_cost(const finder *f, ll_arena *a, int *ends)
{
    int n = f->n, c = f->n_cut;
    CHECK(n <= c, LL_E_SHARD, "%s has %d places to cut, too few for %d stages: use pipe=%d or less",
          f->g->name, c, n, c);
    choice *best = LL_NEW_ARRAY(a, choice, (size_t)(n + 1) * (size_t)c);
    for (int i = 1; i <= n; i++)
        for (int e = i - 1; e < c; e++) {
            choice *x = &best[i * c + e];
            *x = (choice){DBL_MAX, DBL_MAX, -1};
            double sent = e < c - 1 ? f->sent[f->cut[e]] : 0;
            for (int b = i - 2; b < (i == 1 ? 0 : e); b++) {
                const choice *p = i == 1 ? NULL : &best[(i - 1) * c + b];
                double mine =
                    f->work[f->cut[e]] - (p ? f->work[f->cut[b]] : 0) + FLOPS_PER_SENT * sent;
                double most = p && p->most > mine ? p->most : mine;
                double all = sent + (p ? p->sent : 0);
                if (better(most, all, x)) *x = (choice){most, all, b};
                if (!p) break;
            }
        }
    for (int i = n, e = c - 1; i >= 1; i--) {
        ends[i] = f->cut[e];
        e = best[i * c + e].before;
    }
    return LL_OK;
}

/* The first node after the last stage's beginning that each pattern matches begins a stage. */
static ll_err cut_by_name(const finder *f, const char *names, int *ends)
{
    int at = 1, i = 1;
    for (const char *w = names + strspn(names, " ,"); *w; w += strspn(w, " ,")) {
        size_t len = strcspn(w, " ,");
        char word[128];
        CHECK(len < sizeof word, LL_E_ARG, "stages: a pattern of %zu characters", len);
        memcpy(word, w, len);
        word[len] = '\0';
        w += len;
        CHECK(i < f->n, LL_E_ARG, "stages: \"%s\" names the beginnings of more than %d stages",
              names, f->n);
        int k = at + 1;
        while (k <= f->n_at && !(f->name[k] && !fnmatch(word, f->name[k], 0))) k++;
        CHECK(k <= f->n_at, LL_E_ARG,
              "stages: no node%s%s is named %s; loopline inspect RUN --graph lists them",
              i > 1 ? " behind that of the stage before" : "", "", word);
        ends[i++] = k - 1;
        at = k;
    }
    CHECK(i == f->n, LL_E_ARG, "stages: \"%s\" names the beginnings of %d stages; %d are wanted",
          names, i - 1, f->n - 1);
    ends[i] = f->n_at;
    return LL_OK;
}

static void find_homes(const ll_graph *g, ll_arena *arena, ll_stages *s);

ll_err ll_stages_find(const ll_graph *g, int n, const char *names, ll_arena *arena,
                      const ll_stages **out)
{
    finder f = {.g = g, .n = n};
    for (int i = 0; i < g->n_node; i++)
        if (is_forward(&g->nodes[i]) && g->nodes[i].of.at > f.n_at) f.n_at = g->nodes[i].of.at;
    f.work = LL_NEW_ARRAY(arena, double, f.n_at + 1);
    f.sent = LL_NEW_ARRAY(arena, double, f.n_at + 1);
    f.name = LL_NEW_ARRAY(arena, const char *, f.n_at + 1);
    weigh(&f, arena);
    list_cuts(&f, arena);
    int *ends = LL_NEW_ARRAY(arena, int, n + 1);
    TRY(names && *names ? cut_by_name(&f, names, ends) : cut_by_cost(&f, arena, ends));
    ll_stages *s = LL_NEW(arena, ll_stages);
    *s = (ll_stages){.n = n, .n_at = f.n_at, .of_at = LL_NEW_ARRAY(arena, int, f.n_at + 1)};
    s->cost = LL_NEW_ARRAY(arena, double, n + 1);
    s->bytes = LL_NEW_ARRAY(arena, double, n + 1);
    for (int i = 1; i <= n; i++) {
        for (int k = ends[i - 1] + 1; k <= ends[i]; k++) s->of_at[k] = i;
        s->cost[i] = f.work[ends[i]] - f.work[ends[i - 1]];
        s->bytes[i] = i < n ? f.sent[ends[i]] : 0;
    }
    find_homes(g, arena, s);
    *out = s;
    return LL_OK;
}

static int home_of(const ll_stages *s, const char *name)
{
    for (int i = 0; i < s->n_home; i++)
        if (!strcmp(s->home[i].name, name)) return s->home[i].stage;
    return 0;
}

ll_err ll_stages_like(const ll_graph *g, const ll_stages *other, ll_arena *arena,
                      const ll_stages **out)
{
    ll_stages *s = LL_NEW(arena, ll_stages);
    int *stage = LL_NEW_ARRAY(arena, int, g->n_value);
    *s = *other;
    s->n_at = g->n_node;
    s->of_at = LL_NEW_ARRAY(arena, int, g->n_node + 1);
    for (int i = 1; i < g->n_value; i++)
        if (g->values[i].node < 0) stage[i] = home_of(other, g->values[i].name);
    for (int i = 0; i < g->n_node; i++) {
        const ll_node *n = &g->nodes[i];
        int at = 1;
        for (int k = 0; k < n->n_in; k++)
            if (stage[n->in[k].id] > at) at = stage[n->in[k].id];
        for (int o = 0; o < n->n_out; o++) stage[n->out[o].id] = at;
        if (n->of.at > 0 && n->of.at <= s->n_at) s->of_at[n->of.at] = at;
    }
    *out = s;
    return LL_OK;
}

/* ---- which stage makes a value ---- */

typedef struct cutter {
    const ll_graph *g;
    const ll_stages *s;
    const int *rank_of;
    int axis, n_rank, me;
    ll_rewrite rw;
    const bool *varies;
    const bool *once; /* [n_value] no part of a micro-batch */
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
        each[i] |= !is_mean(n) && varies[n->out[0].id];
        for (int k = 0; k < n->n_in; k++) {
            int m = ll_value_of(g, n->in[k])->node;
            if (m >= 0) each[m] |= each[i] || is_mean(n);
        }
        for (int o = 0; o < n->n_out; o++) once[n->out[o].id] = !each[i];
    }
    return once;
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

/* Can every rank make the node's results by itself: of numbers and step counters alone? */
static bool is_anywhere(const cutter *c, const ll_node *n)
{
    if (n->op->random || n->op->collective) return false;
    for (int k = 0; k < n->n_in; k++) {
        const ll_value *v = ll_value_of(c->g, n->in[k]);
        if (c->stage[n->in[k].id] || (v->node < 0 && v->kind != LL_STEP)) return false;
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

/* What runs once a step, and a mean, is done where the operand of most dimensions is; of equals the
 * last, so that a sum over all parameters goes from stage to stage. */
static int stage_once(const cutter *c, const ll_node *n)
{
    int most = -1, stage = 0;
    for (int k = 0; k < n->n_in; k++) {
        int dims = ll_value_of(c->g, n->in[k])->type.shape.n;
        if (!c->stage[n->in[k].id] || dims < most) continue;
        most = dims;
        stage = c->stage[n->in[k].id];
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
    for (int i = 0; i < g->n_node; i++) {
        const ll_node *n = &g->nodes[i];
        if (!in_micro(c, n)) continue;
        int stage = c->s->of_at[n->of.at];
        for (int k = 0; k < n->n_in; k++) {
            int *have = &c->stage[n->in[k].id];
            if (is_kept(ll_value_of(g, n->in[k])) && (!*have || stage < *have)) *have = stage;
        }
    }
}

/* State, where what comes after it is made: with the parameter that it is of. */
static void find_state(cutter *c)
{
    const ll_graph *g = c->g;
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

static void find_stages(cutter *c)
{
    const ll_graph *g = c->g;
    for (int i = 1; i < g->n_value && c->s->n_home; i++)
        if (is_kept(&g->values[i])) c->stage[i] = home_of(c->s, g->values[i].name);
    if (!c->s->n_home) find_parameters(c);
    find_state(c);
    for (int i = 0; i < g->n_node; i++) {
        const ll_node *n = &g->nodes[i];
        int stage = stage_of_node(c, n);
        if (!stage && !is_anywhere(c, n) && !is_spread(c, n)) stage = 1;
        for (int o = 0; o < n->n_out; o++) c->stage[n->out[o].id] = stage;
    }
}

static void find_homes(const ll_graph *g, ll_arena *arena, ll_stages *s)
{
    cutter c = {.g = g, .s = s, .varies = ll_varying(g, arena)};
    c.once = find_once(g, c.varies, arena);
    c.stage = LL_NEW_ARRAY(arena, int, g->n_value);
    find_stages(&c);
    s->home = LL_NEW_ARRAY(arena, ll_home, g->n_value);
    for (int i = 1; i < g->n_value; i++)
        if (is_kept(&g->values[i]))
            s->home[s->n_home++] = (ll_home){ll_arena_strdup(arena, g->values[i].name), c.stage[i]};
}

static int rank_of(const cutter *c, int stage)
{
    return stage ? c->rank_of[stage - 1] : -1;
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
    for (int i = 0; i < g->n_result; i++) {
        int m = ll_value_of(g, g->results[i].value)->node;
        if (m >= 0) c->report[m] = true;
    }
    for (int i = g->n_node - 1; i >= 0; i--)
        for (int k = 0; c->report[i] && k < g->nodes[i].n_in; k++) {
            int m = ll_value_of(g, g->nodes[i].in[k])->node;
            if (m >= 0) c->report[m] = true;
        }
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
        ll_val out;
        const ll_node *maker = ll_maker(c->g, v);
        if (maker) ll_rewrite_at(&c->rw, maker);
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

/* Does this rank keep an input: its own parameters and state, batch data that it reads? */
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
        if (wants_input(c, i)) {
            c->rw.map[i] = ll_input(to, v->name, v->kind, v->type, v->init);
            if (v->piece)
                ll_value_of(to, c->rw.map[i])->piece =
                    (const ll_piece *)ll_arena_copy(to->arena, v->piece, sizeof *v->piece);
        }
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
    for (int i = 0; i < g->n_result; i++)
        ll_graph_result(c->rw.to, g->results[i].name, c->rw.map[g->results[i].value.id]);
    for (int i = 0; i < g->n_update; i++) {
        ll_pair u = g->updates[i];
        if (rank_of(c, c->stage[u.input.id]) == c->me)
            ll_graph_update(c->rw.to, c->rw.map[u.input.id], c->rw.map[u.next.id]);
    }
    TRY(ll_graph_check(c->rw.to));
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
    c.report = LL_NEW_ARRAY(arena, bool, g->n_node + 1);
    c.stage = LL_NEW_ARRAY(arena, int, g->n_value);
    c.readers = LL_NEW_ARRAY(arena, uint64_t, g->n_value);
    c.rw.from = g;
    c.rw.to = ll_graph_new(g->name);
    c.rw.map = LL_NEW_ARRAY(c.rw.to->arena, ll_val, g->n_value);
    ll_err rc = cut_all(&c);
    if (rc != LL_OK) {
        ll_graph_free(c.rw.to);
        return ll_frame(rc, __FILE__, __LINE__, __func__);
    }
    *out = c.rw.to;
    return LL_OK;
}

int ll_stages_edges(const ll_graph *g, const ll_stages *s, ll_arena *arena, ll_stage_edge **out)
{
    bool *have = LL_NEW_ARRAY(arena, bool, (s->n + 1) * (s->n + 1));
    const bool *varies = ll_varying(g, arena);
    int n_edge = 0;
    *out = LL_NEW_ARRAY(arena, ll_stage_edge, s->n * s->n + 1);
    for (int i = 0; i < g->n_node; i++) {
        const ll_node *n = &g->nodes[i];
        for (int k = 0; k < n->n_in && n->of.at > 0 && n->of.at <= s->n_at && !is_mean(n); k++) {
            const ll_node *m = ll_maker(g, n->in[k]);
            if (!m || m->of.at <= 0 || m->of.at > s->n_at || !varies[n->in[k].id]) continue;
            int from = s->of_at[m->of.at], to = s->of_at[n->of.at];
            if (m->of.phase == LL_BACKWARD) from = to, to = s->of_at[m->of.at];
            if (from >= to || have[from * (s->n + 1) + to]) continue;
            have[from * (s->n + 1) + to] = true;
            (*out)[n_edge++] = (ll_stage_edge){from, to};
        }
    }
    return n_edge;
}

static int declared_in(const ll_stages *s, const ll_node *n)
{
    return n->of.at > 0 && n->of.at <= s->n_at ? s->of_at[n->of.at] : 0;
}

const ll_stage_work *ll_stages_work(const ll_graph *g, const ll_stages *s, ll_arena *arena)
{
    ll_stage_work *work = LL_NEW_ARRAY(arena, ll_stage_work, s->n);
    bool *sent = LL_NEW_ARRAY(arena, bool, g->n_node + 1); /* another stage waits for it */
    for (int i = g->n_node - 1; i >= 0; i--) {
        const ll_node *n = &g->nodes[i];
        int stage = declared_in(s, n);
        for (int k = 0; stage && !is_mean(n) && k < n->n_in; k++) {
            int m = ll_value_of(g, n->in[k])->node;
            if (m >= 0) sent[m] |= sent[i] || declared_in(s, &g->nodes[m]) != stage;
        }
        if (!stage || is_mean(n)) continue;
        bool forward = n->of.phase == LL_FORWARD;
        ll_stage_work *x = &work[stage - 1];
        *(forward ? &x->f : sent[i] ? &x->i : &x->w) += work_of(g, n);
    }
    return work;
}

/* ---- means ---- */

/* The mean of v where it is a sum of several stages' gradients; else none. */
static ll_err mean_of(ll_rewrite *rw, const ll_node *mean, ll_val v, ll_val *out)
{
    const ll_node *m = ll_maker(rw->from, v);
    ll_val part[2];
    if (!ll_is_op(m, ll_ew_op(LL_EW_add)) || m->of.phase != LL_BACKWARD) {
        ll_rewrite_at(rw, mean);
        return ll_emit_all(rw->to, &ll_op_accum, NULL, &rw->map[v.id], 1, out);
    }
    for (int k = 0; k < 2; k++) TRY(mean_of(rw, mean, m->in[k], &part[k]));
    return ll_emit_all(rw->to, m->op, m->attr, part, 2, out);
}

ll_err ll_means_apart(const ll_graph *g, ll_graph **out)
{
    ll_rewrite rw;
    ll_err rc = LL_OK;
    ll_rewrite_begin(&rw, g);
    for (int i = 0; i < g->n_node && rc == LL_OK; i++) {
        const ll_node *n = &g->nodes[i];
        bool gradient = ll_is_op(n, &ll_op_accum) && ll_value_of(g, n->out[0])->gradient_of;
        ll_val mean;
        if (!gradient) {
            rc = ll_rewrite_copy(&rw, n);
            continue;
        }
        rc = mean_of(&rw, n, n->in[0], &mean);
        if (rc == LL_OK) ll_rewrite_map(&rw, n->out[0], mean);
    }
    return ll_rewrite_end(&rw, rc, out);
}
