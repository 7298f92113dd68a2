/* recompute.c: activations are made again in place of being kept.
 *
 * What the backward pass reads of the forward pass lives from the one to the other. Here some of it
 * is dropped: right before the first backward node that reads a dropped value, the nodes that make
 * it are copied (origin.again), back to values that are kept.
 *
 *     forward     x -> a -> b -> c -> loss          kept: x; dropped: a, b, c
 *     backward    a' = .(x), b' = .(a'), c' = .(b'), dc reads c', db reads b', da reads a'
 *
 * The forward nodes are cut into segments: the model's blocks, and large ones further, into about
 * the square root of as many as there are values to keep, where little crosses (Chen et al.:
 * Training deep nets with sublinear memory cost, 2016). Values that enter a segment from another
 * are always kept, so that making anew never reaches beyond it: what it takes is a segment's
 * values, as short as that segment's backward pass.
 *
 *   full       nothing else is kept.
 *   selective  results of products, convolutions and attention are too, and those that are much
 *              smaller than what they are made of. Where nobody but one cheap
 *              node of as many bytes reads such a result (a bias, a residual), that one's is kept.
 *   a budget   segments become selective, then full, the fewest FLOPs for a byte first and of equal
 *              ones the earliest (when they are made again, later ones are gone); then dear values
 *              are kept after all, while they fit.
 *
 * 1. The last segment is kept: its backward pass comes at once, and nothing would be saved.
 *    What one stage of a pipeline makes another one finds kept.
 * 2. Means over micro-batches are never made twice. Other results of a copied node that nobody
 *    reads (statistics) are unused.
 * 3. A copy has the op, attributes and operands' bits of its original, and so its bits: random
 *    numbers too, for their stream is an attribute.
 * 4. An alias is kept or dropped with the value whose bytes it shows. */
#include "pass/recompute.h"

#include "base/text.h"

#include <stdio.h>

typedef struct planner {
    const ll_graph *g;
    const ll_recompute_how *how;
    ll_arena *arena;
    int *segment; /* of forward nodes */
    int n_segment;
    int *root;                  /* value -> the value whose bytes it shows */
    bool *can, *dear, *held;    /* of roots: may be dropped; selective keeps it; kept after all */
    ll_recompute_policy *level; /* of segments: none, selective or full */
    bool *need;         /* of values: read by the backward pass, or by what it makes again */
    bool *seen;         /* of roots, when they are counted */
    double *flops;      /* of nodes */
    double kept, extra; /* bytes; FLOPs made twice */
    int n_again;
} planner;

ll_err ll_recompute_parse(const char *text, ll_recompute_how *out)
{
    static const char *const words[] = {"none", "selective", "full"};
    *out = (ll_recompute_how){0};
    if (!text) return LL_OK;
    for (int i = 0; i < 3; i++) {
        out->policy = (ll_recompute_policy)i;
        if (!strcmp(text, words[i])) return LL_OK;
    }
    out->policy = LL_RECOMPUTE_BUDGET;
    if (ll_text_to_bytes(text, &out->budget)) return LL_OK;
    FAIL(LL_E_ARG,
         "recompute is '%.40s', expected none, selective, full, or a limit of bytes for "
         "activations, such as 200MiB",
         text);
}

/* ---- facts ---- */

static bool is_forward(const ll_graph *g, ll_val v)
{
    const ll_node *n = ll_maker(g, v);
    return n && n->of.phase == LL_FORWARD;
}

static bool is_dear(const ll_node *n)
{
    ll_work w = n->op->work;
    return w == LL_WORK_PRODUCT || w == LL_WORK_CONVOLUTION || w == LL_WORK_ATTENTION;
}

static bool dropped(const planner *p, ll_val v)
{
    int r = p->root[v.id];
    if (!p->can[r] || p->held[r]) return false;
    ll_recompute_policy l = p->level[p->segment[p->g->values[r].node]];
    return l == LL_RECOMPUTE_FULL || (l == LL_RECOMPUTE_SELECTIVE && !p->dear[r]);
}

/* Whether a forward node is made again: a dropped result of it is needed. */
static bool made_again(const planner *p, const ll_node *n)
{
    for (int o = 0; o < n->n_out; o++)
        if (p->need[n->out[o].id] && dropped(p, n->out[o])) return true;
    return false;
}

/* What is kept, and what is made twice, as things stand. */
static void evaluate(planner *p)
{
    const ll_graph *g = p->g;
    memset(p->need, 0, sizeof *p->need * (size_t)g->n_value);
    memset(p->seen, 0, sizeof *p->seen * (size_t)g->n_value);
    p->kept = p->extra = 0;
    p->n_again = 0;
    for (int i = g->n_node - 1; i >= 0; i--) {
        const ll_node *n = &g->nodes[i];
        bool again = n->of.phase == LL_FORWARD && made_again(p, n);
        if (again) p->extra += p->flops[i], p->n_again++;
        for (int k = 0; k < n->n_in && (again || n->of.phase == LL_BACKWARD); k++)
            p->need[n->in[k].id] |= is_forward(g, n->in[k]);
    }
    for (int v = 1; v < g->n_value; v++) {
        int r = p->root[v];
        if (!p->need[v] || dropped(p, (ll_val){v}) || p->seen[r] || g->values[r].node < 0) continue;
        p->seen[r] = true;
        p->kept += ll_val_bytes(g, (ll_val){r});
    }
}

/* ---- segments ---- */

/* For each node, bytes of forward values made until then that later forward nodes read. */
static double *find_across(const planner *p)
{
    const ll_graph *g = p->g;
    double *across = LL_NEW_ARRAY(p->arena, double, g->n_node + 1);
    int *last = LL_NEW_ARRAY(p->arena, int, g->n_value);
    for (int i = 0; i < g->n_node; i++)
        for (int k = 0; k < g->nodes[i].n_in && g->nodes[i].of.phase == LL_FORWARD; k++)
            last[p->root[g->nodes[i].in[k].id]] = i;
    for (int v = 1; v < g->n_value; v++) {
        int from = g->values[v].node;
        if (from < 0 || p->root[v] != v || last[v] <= from) continue;
        across[from] += ll_val_bytes(g, (ll_val){v});
        across[last[v]] -= ll_val_bytes(g, (ll_val){v});
    }
    for (int i = 1; i < g->n_node; i++) across[i] += across[i - 1];
    return across;
}

/* Bytes of a node's results that the backward pass reads. */
static double made_by(const planner *p, const ll_node *n)
{
    double sum = 0;
    for (int o = 0; o < n->n_out; o++)
        if (p->need[n->out[o].id] && p->root[n->out[o].id] == n->out[o].id)
            sum += ll_val_bytes(p->g, n->out[o]);
    return sum;
}

/* From node `at` on, where a segment has `target` bytes: where within as many more the least
 * crosses; -1: too much does everywhere. */
static int find_cut(const planner *p, const double *across, int at, double target)
{
    const ll_node *nodes = p->g->nodes;
    double more = 0;
    int best = at;
    for (int i = at + 1; i < p->g->n_node && nodes[i].of.phase == LL_FORWARD; i++) {
        more += made_by(p, &nodes[i]);
        if (nodes[i].of.block != nodes[at].of.block || more >= target) break;
        if (across[i] < across[best]) best = i;
    }
    return across[best] < target / 2 ? best : -1;
}

static int stage_of(const planner *p, const ll_node *n)
{
    return n->of.at > 0 && n->of.at <= p->how->n_at ? p->how->stage_of[n->of.at] : 0;
}

static void find_segments(planner *p)
{
    const ll_graph *g = p->g;
    const double *across = find_across(p);
    int n = 0, n_block = 1, before = -1, cut = -1, stage = 0;
    for (int i = 0; i < g->n_node; i++)
        if (g->nodes[i].of.block >= n_block) n_block = g->nodes[i].of.block + 1;
    double *block = LL_NEW_ARRAY(p->arena, double, n_block), since = 0;
    for (int i = 0; i < g->n_node; i++) {
        double bytes = g->nodes[i].of.phase == LL_FORWARD ? made_by(p, &g->nodes[i]) : 0;
        block[g->nodes[i].of.block] += bytes;
        n += bytes > 0;
    }
    double target = p->kept / sqrt(n + 1.0);
    for (int i = 0; i < g->n_node; i++) {
        int b = g->nodes[i].of.block;
        if (g->nodes[i].of.phase != LL_FORWARD) continue;
        bool moves = b != before || stage_of(p, &g->nodes[i]) != stage;
        if (moves || (cut >= 0 && i > cut)) p->n_segment++, cut = -1, since = 0;
        before = b;
        stage = stage_of(p, &g->nodes[i]);
        p->segment[i] = p->n_segment - 1;
        since += made_by(p, &g->nodes[i]);
        if (block[b] > 2 * target && since >= target && cut < 0)
            cut = find_cut(p, across, i, target);
    }
    p->level = LL_NEW_ARRAY(p->arena, ll_recompute_policy, p->n_segment + 1);
}

/* Which values may be dropped: of all segments but the last, those that stay in theirs. */
static void find_droppable(planner *p)
{
    const ll_graph *g = p->g;
    for (int v = 1; v < g->n_value; v++)
        p->can[v] = p->root[v] == v && is_forward(g, (ll_val){v}) &&
                    p->segment[g->values[v].node] < p->n_segment - 1 &&
                    !ll_is_op(ll_maker(g, (ll_val){v}), &ll_op_accum);
    for (int i = 0; i < g->n_node; i++) {
        const ll_node *n = &g->nodes[i];
        for (int k = 0; k < n->n_in && n->of.phase == LL_FORWARD; k++) {
            int r = p->root[n->in[k].id], m = g->values[r].node;
            if (m >= 0 && p->segment[m] != p->segment[i]) p->can[r] = false;
        }
    }
}

/* Whether what a node reads is much more than a result of it: keeping that costs less. */
static bool shrinks(const planner *p, const ll_node *n, int o)
{
    double most = 0;
    for (int k = 0; k < n->n_in; k++)
        if (is_forward(p->g, n->in[k])) most = fmax(most, ll_val_bytes(p->g, n->in[k]));
    return 2 * ll_val_bytes(p->g, n->out[o]) < most;
}

static void find_dear(planner *p)
{
    const ll_graph *g = p->g;
    const int *uses = ll_uses(g, p->arena);
    int *reader = LL_NEW_ARRAY(p->arena, int, g->n_value);
    for (int i = 0; i < g->n_node; i++)
        for (int k = 0; k < g->nodes[i].n_in; k++) reader[g->nodes[i].in[k].id] = i;
    for (int i = 0; i < g->n_node; i++)
        for (int o = 0; o < g->nodes[i].n_out; o++) {
            int v = g->nodes[i].out[o].id;
            if (!is_dear(&g->nodes[i]) && !shrinks(p, &g->nodes[i], o)) continue;
            for (const ll_node *n; uses[v] == 1; v = n->out[0].id) {
                n = &g->nodes[reader[v]];
                if (n->of.phase != LL_FORWARD || is_dear(n) || n->n_out != 1) break;
                if (ll_val_bytes(g, n->out[0]) != ll_val_bytes(g, (ll_val){v})) break;
            }
            p->dear[p->root[v]] = true;
        }
}

static void new_planner(planner *p, const ll_graph *g, const ll_recompute_how *how, ll_arena *arena)
{
    *p = (planner){.g = g, .how = how, .arena = arena};
    LL_ARRAYS(arena, g->n_node + 1, p->segment, p->flops);
    LL_ARRAYS(arena, g->n_value, p->root, p->can, p->dear, p->held, p->need, p->seen);
    for (int i = 0; i < g->n_node; i++) p->flops[i] = ll_node_flops(g, &g->nodes[i]);
    for (int v = 0; v < g->n_value; v++) p->root[v] = v;
    for (int i = 0; i < g->n_node; i++)
        if (g->nodes[i].op->alias) p->root[g->nodes[i].out[0].id] = p->root[g->nodes[i].in[0].id];
    evaluate(p);
    find_segments(p);
    find_droppable(p);
    find_dear(p);
}

/* ---- policies ---- */

/* All segments to a level, but those that it does not save anything of. */
static void set_all(planner *p, ll_recompute_policy level)
{
    memset(p->level, 0, sizeof *p->level * (size_t)p->n_segment);
    evaluate(p);
    for (int s = 0; s < p->n_segment && level != LL_RECOMPUTE_NONE; s++) {
        double kept = p->kept;
        p->level[s] = level;
        evaluate(p);
        if (p->kept < kept) continue;
        p->level[s] = LL_RECOMPUTE_NONE;
        evaluate(p);
    }
}

typedef struct move { /* of a segment to a level; of a value to be kept after all */
    int what;
    ll_recompute_policy level;
    double rate;
} move;

static int cheapest_first(const void *a, const void *b)
{
    const move *x = (const move *)a, *y = (const move *)b;
    if (x->rate != y->rate) return x->rate < y->rate ? -1 : 1;
    return x->what != y->what ? x->what - y->what : (int)x->level - (int)y->level;
}

static void lower_segments(planner *p, double budget)
{
    double all = p->kept;
    move *moves = LL_NEW_ARRAY(p->arena, move, 2 * p->n_segment + 1);
    int n = 0;
    for (int s = 0; s < p->n_segment; s++) {
        double bytes = all, flops = 0;
        for (int l = LL_RECOMPUTE_SELECTIVE; l <= LL_RECOMPUTE_FULL; l++) {
            p->level[s] = (ll_recompute_policy)l;
            evaluate(p);
            if (p->kept >= bytes) continue;
            moves[n++] = (move){s, p->level[s], (p->extra - flops) / (bytes - p->kept)};
            bytes = p->kept, flops = p->extra;
        }
        p->level[s] = LL_RECOMPUTE_NONE;
    }
    qsort(moves, (size_t)n, sizeof *moves, cheapest_first);
    evaluate(p);
    for (int i = 0; i < n && p->kept > budget; i++) {
        if (p->level[moves[i].what] < moves[i].level) p->level[moves[i].what] = moves[i].level;
        evaluate(p);
    }
}

/* Keeps what fits, of the dropped values that are dear: those first that save most FLOPs a byte. */
static void keep_dear(planner *p, double budget)
{
    const ll_graph *g = p->g;
    move *moves = LL_NEW_ARRAY(p->arena, move, g->n_value);
    double extra = p->extra;
    int n = 0;
    for (int v = 1; v < g->n_value; v++) {
        if (!p->dear[v] || !dropped(p, (ll_val){v})) continue;
        p->held[v] = true;
        evaluate(p);
        if (p->extra < extra && p->kept <= budget)
            moves[n++] =
                (move){v, LL_RECOMPUTE_NONE, (p->extra - extra) / ll_val_bytes(g, (ll_val){v})};
        p->held[v] = false;
    }
    qsort(moves, (size_t)n, sizeof *moves, cheapest_first);
    for (int i = 0; i < n; i++) {
        p->held[moves[i].what] = true;
        evaluate(p);
        p->held[moves[i].what] = p->kept <= budget && p->extra < extra;
        if (p->held[moves[i].what]) extra = p->extra;
    }
    evaluate(p);
}

static ll_err choose(planner *p, const ll_recompute_how *how)
{
    double all = p->kept;
    if (how->policy != LL_RECOMPUTE_BUDGET) {
        set_all(p, how->policy);
        return LL_OK;
    }
    set_all(p, LL_RECOMPUTE_FULL);
    CHECK(p->kept <= how->budget || all <= how->budget, LL_E_ARG,
          "recompute=%s is too little: of %s of activations even full recomputation keeps %s: "
          "allow that, or use a smaller micro-batch",
          LL_BYTES(how->budget), LL_BYTES(all), LL_BYTES(p->kept));
    set_all(p, LL_RECOMPUTE_NONE);
    if (all <= how->budget) return LL_OK;
    lower_segments(p, how->budget);
    if (p->kept > how->budget) set_all(p, LL_RECOMPUTE_FULL);
    keep_dear(p, how->budget);
    return LL_OK;
}

/* ---- the new graph ---- */

typedef struct writer {
    const planner *p;
    ll_rewrite rw;
    ll_val *again; /* value -> its copy; 0: not made */
} writer;

/* v as the backward pass finds it; makes what it needs. */
static ll_err find_again(writer *w, ll_val v, ll_val *out);

/* A node in the backward pass: its own, or a forward one once more. */
static ll_err write_node(writer *w, const ll_node *n)
{
    ll_val in[LL_MAX_IN], out[LL_MAX_OUT];
    bool again = n->of.phase == LL_FORWARD;
    for (int k = 0; k < n->n_in; k++) TRY(find_again(w, n->in[k], &in[k]));
    ll_graph_at(w->rw.to, n);
    w->rw.to->of.phase = LL_BACKWARD;
    w->rw.to->of.again |= again;
    TRY(ll_emit_all(w->rw.to, n->op, n->attr, in, n->n_in, out));
    for (int o = 0; o < n->n_out; o++) {
        if (again) w->again[n->out[o].id] = out[o];
        if (!again) ll_rewrite_map(&w->rw, n->out[o], out[o]);
    }
    return LL_OK;
}

static ll_err find_again(writer *w, ll_val v, ll_val *out)
{
    bool makes = is_forward(w->p->g, v) && dropped(w->p, v);
    if (makes && !w->again[v.id].id) TRY(write_node(w, ll_maker(w->p->g, v)));
    *out = makes ? w->again[v.id] : w->rw.map[v.id];
    return LL_OK;
}

static ll_err write_graph(const planner *p, ll_graph **out)
{
    writer w = {.p = p, .again = LL_NEW_ARRAY(p->arena, ll_val, p->g->n_value)};
    ll_err rc = LL_OK;
    ll_rewrite_begin(&w.rw, p->g);
    for (int i = 0; i < p->g->n_node && rc == LL_OK; i++) {
        const ll_node *n = &p->g->nodes[i];
        rc = n->of.phase == LL_BACKWARD ? write_node(&w, n) : ll_rewrite_copy(&w.rw, n);
    }
    return ll_rewrite_end(&w.rw, rc, out);
}

ll_err ll_recompute(const ll_graph *g, const ll_recompute_how *how, ll_recomputed *facts,
                    ll_graph **out)
{
    LL_OWN(ll_graph) live = NULL;
    planner p;
    double flops = 0;
    TRY(ll_sweep(g, &live));
    new_planner(&p, live, how, live->arena);
    for (int i = 0; i < live->n_node; i++) flops += p.flops[i];
    *facts = (ll_recomputed){.before = p.kept};
    ll_err rc = choose(&p, how);
    facts->after = p.kept;
    facts->extra = flops > 0 ? p.extra / flops : 0;
    facts->n_node = p.n_again;
    TRY(rc);
    return write_graph(&p, out);
}

const char *ll_recompute_text(const char *how, const ll_recomputed *facts, char *out, size_t room)
{
    snprintf(out, room,
             "recompute %s: the backward pass finds %s of activations kept, in place of %s, and "
             "makes %d nodes again, %.1f %% more FLOPs",
             how, LL_BYTES(facts->after), LL_BYTES(facts->before), facts->n_node,
             100 * facts->extra);
    return out;
}
