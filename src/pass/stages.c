/* stages.c: where a model is cut into stages, and what these cost. */
#include "pass/stages.h"

#include "base/text.h"
#include "pass/lora.h"

#include <float.h>
#include <fnmatch.h>

/* ---- where to cut ---- */

/* FLOPs that take as long as reading or writing a byte of memory, and as sending one. */
enum { FLOPS_PER_BYTE = 4, FLOPS_PER_SENT = 50, MOST_CUTS = 768 };

static double work_of(const ll_graph *g, const ll_node *n)
{
    return ll_node_flops(g, n) + (n->op->alias ? 0 : FLOPS_PER_BYTE * ll_node_bytes(g, n));
}

static bool is_forward(const ll_node *n)
{
    return n->of.phase == LL_FORWARD && n->of.at > 0;
}

typedef struct finder {
    const ll_graph *g;
    int n, n_at;
    double *work;  /* [n_at + 1] of declared nodes 1 to k, with their gradients */
    double *sent;  /* [n_at + 1] bytes of the forward pass that cross a cut behind node k */
    double *fixed; /* [n_at + 1] of nodes 1 to k: bytes of what they are the first to read of */
    double *kept;  /* parameters, with gradient and state; and of what is kept for gradients */
    const ll_stage_room *room; /* NULL: any */
    const char **name;         /* [n_at + 1] */
    int *cut, n_cut;           /* nodes behind which a cut may be */
} finder;

static void weigh(finder *f, ll_arena *a)
{
    const ll_graph *g = f->g;
    const bool *varies = ll_varying(g, a);
    int *last = LL_NEW_ARRAY(a, int, g->n_value);
    LL_EACH (const ll_node, n, g->nodes, g->n_node) {
        if (n->of.at > 0 && n->of.at <= f->n_at) f->work[n->of.at] += work_of(g, n);
        if (!is_forward(n)) continue;
        f->name[n->of.at] = n->name;
        for (int k = 0; k < n->n_in && !ll_is_mean(n); k++)
            if (last[n->in[k].id] < n->of.at) last[n->in[k].id] = n->of.at;
    }
    for (int v = 1; v < g->n_value; v++) {
        int m = g->values[v].node;
        if (m < 0 || !is_forward(&g->nodes[m]) || !varies[v]) continue;
        for (int k = g->nodes[m].of.at; k < last[v]; k++)
            f->sent[k] += ll_val_bytes(g, (ll_val){v});
    }
    for (int k = 1; k <= f->n_at; k++) f->work[k] += f->work[k - 1];
}

/* Bytes of parameters, and of the state that is kept for each byte of them. */
static double state_share(const ll_graph *g)
{
    double bytes[2] = {0};
    for (int v = 1; v < g->n_value; v++) {
        ll_kind kind = g->values[v].kind;
        if (g->values[v].node < 0 && (kind == LL_PARAM || kind == LL_STATE))
            bytes[kind == LL_STATE] += ll_val_bytes(g, (ll_val){v});
    }
    return bytes[0] > 0 ? bytes[1] / bytes[0] : 0;
}

/* What each declared node makes a stage hold: parameters by their first reader; results, through
 * aliases, that the backward pass reads. */
static void weigh_memory(finder *f, ll_arena *a)
{
    const ll_graph *g = f->g;
    bool *seen = LL_NEW_ARRAY(a, bool, g->n_value), *read = LL_NEW_ARRAY(a, bool, g->n_value);
    double each = 2 + state_share(g);
    LL_EACH (const ll_node, n, g->nodes, g->n_node)
        for (int k = 0; k < n->n_in; k++) {
            int v = n->in[k].id;
            if (n->of.phase == LL_BACKWARD) read[v] = true;
            bool first = is_forward(n) && g->values[v].kind == LL_PARAM && g->values[v].node < 0;
            if (!first || seen[v]) continue;
            f->fixed[n->of.at] += each * ll_val_bytes(g, n->in[k]);
            seen[v] = true;
        }
    for (int i = g->n_node - 1; i >= 0; i--) {
        const ll_node *n = &g->nodes[i];
        if (n->op->alias) read[n->in[0].id] |= read[n->out[0].id];
        for (int o = 0; o < n->n_out && is_forward(n) && !n->op->alias && !ll_is_mean(n); o++)
            if (read[n->out[o].id]) f->kept[n->of.at] += ll_val_bytes(g, n->out[o]);
    }
    for (int k = 1; k <= f->n_at; k++) {
        f->fixed[k] += f->fixed[k - 1];
        f->kept[k] += f->kept[k - 1];
    }
}

/* Bytes above the limit that stage i, from 1 on, of nodes `from` + 1 to `to` would hold. */
static double excess(const finder *f, int i, int from, int to)
{
    if (!f->room) return 0;
    double held =
        f->fixed[to] - f->fixed[from] + f->room->in_flight[i - 1] * (f->kept[to] - f->kept[from]);
    return held > f->room->limit[i - 1] ? held - f->room->limit[i - 1] : 0;
}

/* Every node, or of too many those behind which least is sent. */
static void list_cuts(finder *f)
{
    double most = DBL_MAX;
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
    double over;       /* bytes, of the stage that is furthest above its limit */
    double most, sent; /* of the stage that has most to do; of all cuts */
    int before;        /* the cut before this one */
} choice;

static bool better(const choice *x, const choice *than)
{
    if (x->over != than->over) return x->over < than->over;
    return x->most < than->most || (x->most == than->most && x->sent < than->sent);
}

/* best[i][c]: stages 1 to i end behind cut c. */
static ll_err cut_by_cost(const finder *f, ll_arena *a, int *ends)
{
    int n = f->n, c = f->n_cut;
    CHECK(n <= c, LL_E_SHARD,
          "%s has %d places to cut, too few for %d stages: pipe times stages per rank must be %d "
          "or less",
          f->g->name, c, n, c);
    choice *best = LL_NEW_ARRAY(a, choice, (size_t)(n + 1) * (size_t)c);
    for (int i = 1; i <= n; i++)
        for (int e = i - 1; e < c; e++) {
            choice *x = &best[i * c + e];
            *x = (choice){DBL_MAX, DBL_MAX, DBL_MAX, -1};
            double sent = e < c - 1 ? f->sent[f->cut[e]] : 0;
            for (int b = i - 2; b < (i == 1 ? 0 : e); b++) {
                const choice *p = i == 1 ? NULL : &best[(i - 1) * c + b];
                double mine =
                    f->work[f->cut[e]] - (p ? f->work[f->cut[b]] : 0) + FLOPS_PER_SENT * sent;
                choice y = {.over = excess(f, i, p ? f->cut[b] : 0, f->cut[e]), .before = b};
                if (p && p->over > y.over) y.over = p->over;
                y.most = p && p->most > mine ? p->most : mine;
                y.sent = sent + (p ? p->sent : 0);
                if (better(&y, x)) *x = y;
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
static ll_err cut_by_name(const finder *f, ll_arena *a, const char *names, int *ends)
{
    int at = 1, i = 1;
    const char *rest = names;
    for (const char *word; (word = ll_pattern_next(a, &rest));) {
        CHECK(i < f->n, LL_E_ARG, "stages: \"%s\" names the beginnings of more than %d stages",
              names, f->n);
        int k = at + 1;
        while (k <= f->n_at && !(f->name[k] && !fnmatch(word, f->name[k], 0))) k++;
        CHECK(k <= f->n_at, LL_E_ARG,
              "stages: no node%s%s is named %s; see loopline inspect RUN --graph",
              i > 1 ? " behind that of the stage before" : "", "", word);
        ends[i++] = k - 1;
        at = k;
    }
    CHECK(i == f->n, LL_E_ARG, "stages: \"%s\" names the beginnings of %d stages, expected %d",
          names, i - 1, f->n - 1);
    ends[i] = f->n_at;
    return LL_OK;
}

ll_err ll_stages_find(const ll_graph *g, int n, const char *names, const ll_stage_room *room,
                      ll_arena *arena, const ll_stages **out)
{
    finder f = {.g = g, .n = n, .room = room};
    for (int i = 0; i < g->n_node; i++)
        if (is_forward(&g->nodes[i]) && g->nodes[i].of.at > f.n_at) f.n_at = g->nodes[i].of.at;
    LL_ARRAYS(arena, f.n_at + 1, f.work, f.sent, f.name, f.fixed, f.kept, f.cut);
    weigh(&f, arena);
    weigh_memory(&f, arena);
    list_cuts(&f);
    int *ends = LL_NEW_ARRAY(arena, int, n + 1);
    TRY(names && *names ? cut_by_name(&f, arena, names, ends) : cut_by_cost(&f, arena, ends));
    ll_stages *s = LL_NEW(arena, ll_stages);
    *s = (ll_stages){.n = n, .n_at = f.n_at, .of_at = LL_NEW_ARRAY(arena, int, f.n_at + 1)};
    LL_ARRAYS(arena, n + 1, s->cost, s->bytes, s->fixed, s->kept);
    for (int i = 1; i <= n; i++) {
        for (int k = ends[i - 1] + 1; k <= ends[i]; k++) s->of_at[k] = i;
        s->cost[i] = f.work[ends[i]] - f.work[ends[i - 1]];
        s->fixed[i] = f.fixed[ends[i]] - f.fixed[ends[i - 1]];
        s->kept[i] = f.kept[ends[i]] - f.kept[ends[i - 1]];
        s->bytes[i] = i < n ? f.sent[ends[i]] : 0;
    }
    ll_stages_settle(g, arena, s);
    *out = s;
    return LL_OK;
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
        if (g->values[i].node < 0) stage[i] = ll_stages_home(other, g->values[i].name);
    LL_EACH (const ll_node, n, g->nodes, g->n_node) {
        int at = 1;
        for (int k = 0; k < n->n_in; k++)
            if (stage[n->in[k].id] > at) at = stage[n->in[k].id];
        for (int o = 0; o < n->n_out; o++) stage[n->out[o].id] = at;
        if (n->of.at > 0 && n->of.at <= s->n_at) s->of_at[n->of.at] = at;
    }
    *out = s;
    return LL_OK;
}

/* ---- what is sent and done ---- */

int ll_stages_edges(const ll_graph *g, const ll_stages *s, ll_arena *arena, ll_stage_edge **out)
{
    bool *have = LL_NEW_ARRAY(arena, bool, (s->n + 1) * (s->n + 1));
    const bool *varies = ll_varying(g, arena);
    int n_edge = 0;
    *out = LL_NEW_ARRAY(arena, ll_stage_edge, s->n * s->n + 1);
    LL_EACH (const ll_node, n, g->nodes, g->n_node)
        for (int k = 0; k < n->n_in && n->of.at > 0 && n->of.at <= s->n_at && !ll_is_mean(n); k++) {
            const ll_node *m = ll_maker(g, n->in[k]);
            if (!m || m->of.at <= 0 || m->of.at > s->n_at || !varies[n->in[k].id]) continue;
            int from = s->of_at[m->of.at], to = s->of_at[n->of.at];
            if (m->of.phase == LL_BACKWARD) from = to, to = s->of_at[m->of.at];
            if (from >= to || have[from * (s->n + 1) + to]) continue;
            have[from * (s->n + 1) + to] = true;
            (*out)[n_edge++] = (ll_stage_edge){from, to};
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
        for (int k = 0; stage && !ll_is_mean(n) && k < n->n_in; k++) {
            int m = ll_value_of(g, n->in[k])->node;
            if (m >= 0) sent[m] |= sent[i] || declared_in(s, &g->nodes[m]) != stage;
        }
        if (!stage || ll_is_mean(n)) continue;
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
        ll_graph_at(rw->to, mean);
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
