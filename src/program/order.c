/* order.c: in which order a program's nodes run, and when its collectives are started and awaited.
 *
 * Nodes run in the graph's order, with these departures.
 *   1. Three sections: micro-batch nodes, then what results need, then the rest.
 *   2. A collective is two moments: its start, which is its place among the nodes, and its wait,
 *      right before the first node that reads its result. Where that node comes up and others of
 *      the next few are ready, those go first; not where ranks lay values aside, each its own.
 *   3. Means, and collectives that sum, start as soon as their operand is made. Of the
 *      reduce-scatters, and of bundles (flight.c), no more than MOST_ROOMS are under way, for each
 *      holds gradients.
 *   4. Other collectives take memory: they start where the collective before them did.
 *   5. A collective on an input (a parameter that is stored cut, gathered for its use) could start
 *      at any time. It is started when the last large one before it is about to be used: so one
 *      large parameter, and the small ones on the way to it, are under way while another is at
 *      work. Large: not smaller than their mean.
 *      Stores and loads (offload.c) keep their places in the graph.
 *   6. After the micro-batches, what reads the collectives that were started first comes first, and
 *      every collective starts as soon as its operand is made.
 *
 *     layer       gather w1   [w1] x -> a   gather w2   [w2] a -> b   gather w3   [w3] b -> c
 *     program     start w1, start w2, wait w1, a, start w3, wait w2, b, wait w3, c
 *
 * Every rank starts its collectives in one order: it follows from the graph's order and from whole
 * sizes, which all ranks have in common. In which order they are awaited does not matter: whoever
 * waits for one has started all before it, so the first of all that are awaited is started
 * everywhere, or will be. */
#include "kern/attr.h"
#include "pass/pass.h"
#include "program/memory.h"

enum { LOOK_AHEAD = 24, MOST_ROOMS = 2 };

typedef struct orderer {
    const ll_graph *g;
    ll_order *o;
    ll_arena *arena;
    bool *micro, *report;
    bool *placed, *is_flying; /* of nodes: has run or started; is under way */
    int *flying, n_flying;    /* those under way, oldest first */
    int *list, n;             /* the section's nodes */
    bool blocking;            /* collectives are awaited where they start */
    bool still;               /* nothing goes before what waits */
    const int *until;  /* of sends and stores: the node before which they are awaited; NULL: none */
    int *first, *next; /* of each node, those that come right behind it; indices + 1 */
} orderer;

/* ---- sections ---- */

static int section_of(const bool *micro, const bool *report, int node)
{
    return micro[node] ? LL_MICRO : report[node] ? LL_REPORT : LL_UPDATE;
}

/* With several micro-batches, what runs once a step may read only means over them, and what is the
 * same in all of them; and nobody may read a mean before the last one. */
static ll_err check_sections(const ll_graph *g, const bool *micro, ll_arena *arena)
{
    const bool *varies = ll_varying(g, arena);
    for (int i = 0; i < g->n_node; i++) {
        const ll_node *n = &g->nodes[i];
        for (int k = 0; k < n->n_in; k++) {
            const ll_value *v = ll_value_of(g, n->in[k]);
            CHECK(micro[i] || !varies[n->in[k].id], LL_E_GRAPH,
                  "%s runs once a step but reads %s of one micro-batch: declare results before "
                  "ll_minimize",
                  n->name, v->node < 0 ? v->name : g->nodes[v->node].name);
            CHECK(!micro[i] || v->node < 0 || !ll_is_mean(&g->nodes[v->node]), LL_E_GRAPH,
                  "%s runs in each micro-batch but reads a mean over all of them", n->name);
        }
    }
    for (int i = 0; i < g->n_result; i++)
        CHECK(!varies[g->results[i].value.id], LL_E_GRAPH,
              "result %s is another one in each micro-batch: declare it before ll_minimize",
              g->results[i].name);
    for (int i = 0; i < g->n_update; i++)
        CHECK(!varies[g->updates[i].next.id], LL_E_GRAPH,
              "the update of %s is another one in each micro-batch",
              ll_value_of(g, g->updates[i].input)->name);
    return LL_OK;
}

/* Which nodes run in each micro-batch, and which of the others results need. Without a mean over
 * micro-batches, there is one of them, and it is what results need. */
static ll_err find_sections(const ll_graph *g, const ll_unrolled *un, int n_micro, ll_arena *arena,
                            bool *micro, bool *report)
{
    bool any = false;
    for (int i = 0; i < g->n_node; i++) any |= micro[i] = ll_is_mean(&g->nodes[i]);
    ll_mark_makers(g, micro);
    ll_mark_results(g, report);
    for (int i = 0; i < g->n_node; i++) /* other ranks' results */
        report[i] |= g->nodes[i].op->collective == LL_SEND &&
                     ((const ll_message_attr *)g->nodes[i].attr)->when == LL_FOR_RESULTS;
    ll_mark_makers(g, report);
    if (un) {
        for (int i = 0; i < g->n_node; i++) micro[i] = i < un->n_each;
        return LL_OK;
    }
    CHECK(any || n_micro == 1, LL_E_ARG,
          "%d micro-batches, but the graph has no ll_minimize to average over them", n_micro);
    if (!any) memcpy(micro, report, sizeof *micro * (size_t)g->n_node);
    return n_micro > 1 ? check_sections(g, micro, arena) : LL_OK;
}

/* A collective that makes a mean whole: it runs with the last micro-batch, while what comes before
 * it in the network is still differentiated. */
static bool joins_last(const ll_graph *g, int node)
{
    const ll_node *n = &g->nodes[node];
    int m = n->op->collective ? ll_value_of(g, n->in[0])->node : -1;
    return m >= 0 && ll_is_mean(&g->nodes[m]);
}

/* ---- starts and waits ---- */

/* The node that makes v's bytes, of a bundle the one that stands for it; -1: v is an input. */
static int maker(const orderer *q, ll_val v)
{
    int m = ll_value_of(q->g, ll_alias_root(q->g, v, q->o->n_micro))->node;
    return m < 0 ? -1 : q->o->bundle[m];
}

static void put(orderer *q, int node, bool wait)
{
    ll_order *o = q->o;
    o->wait[o->n] = wait;
    o->node[o->n++] = node;
}

static void await_node(orderer *q, int node)
{
    int n = 0;
    for (int i = 0; i < q->n_flying; i++)
        if (q->flying[i] != node) q->flying[n++] = q->flying[i];
    q->n_flying = n;
    q->is_flying[node] = false;
    for (int k = node; k >= 0; k = q->o->before[k] - 1) q->o->done[k] = q->o->n;
    put(q, node, true);
}

static bool is_scatter(const orderer *q, int node)
{
    return q->g->nodes[node].op->collective == LL_REDUCE_SCATTER;
}

/* Does it hold memory for as long as it is under way that others could use? */
static bool takes_room(const orderer *q, int node)
{
    bool sums = q->g->nodes[node].op->collective == LL_ALL_REDUCE;
    return is_scatter(q, node) || (q->o->before[node] && !sums);
}

/* Waits for the oldest of those, where there are too many. */
static void make_way(orderer *q)
{
    int n = 0, oldest = -1;
    for (int i = q->n_flying - 1; i >= 0; i--)
        if (takes_room(q, q->flying[i])) n++, oldest = q->flying[i];
    if (n >= MOST_ROOMS) await_node(q, oldest);
}

static void place_node(orderer *q, int node)
{
    if (takes_room(q, node)) make_way(q);
    for (int k = node; k >= 0; k = q->o->before[k] - 1) {
        q->o->place[k] = q->o->done[k] = q->o->n;
        q->placed[k] = true;
    }
    put(q, node, false);
    if (!ll_has_wait(&q->g->nodes[node])) return;
    q->is_flying[node] = true;
    q->flying[q->n_flying++] = node;
    if (q->blocking) await_node(q, node);
}

/* Waits for what a node reads. */
static void await_operands(orderer *q, int node)
{
    for (; node >= 0; node = q->o->before[node] - 1)
        for (int k = 0; k < q->g->nodes[node].n_in; k++) {
            int m = maker(q, q->g->nodes[node].in[k]);
            if (m >= 0 && q->is_flying[m]) await_node(q, m);
        }
}

/* Has everything that a node reads been made, and arrived? */
static bool is_ready(const orderer *q, int node)
{
    for (; node >= 0; node = q->o->before[node] - 1)
        for (int k = 0; k < q->g->nodes[node].n_in; k++) {
            int m = maker(q, q->g->nodes[node].in[k]);
            if (m >= 0 && (!q->placed[m] || q->is_flying[m])) return false;
        }
    return true;
}

/* One of the next few nodes of the list that can run while the one at `at` waits; -1: none.
 * Collectives keep their order, and those on inputs their places. A pipeline's actions stay one
 * after another: to fill what a rank waits for is the schedule's work, and it counts on no more
 * activations in flight than it says. */
static int find_other(const orderer *q, int at)
{
    bool first = !q->g->nodes[q->list[at]].op->collective;
    int action = q->g->nodes[q->list[at]].action;
    for (int i = at + 1; !q->still && i < q->n && i <= at + LOOK_AHEAD; i++) {
        int node = q->list[i];
        const ll_node *n = &q->g->nodes[node];
        if (q->placed[node] || n->action != action || ll_aside_of(n)) continue;
        bool may = !n->op->collective || (first && maker(q, n->in[0]) >= 0);
        if (may && is_ready(q, node)) return node;
        first &= !n->op->collective;
    }
    return -1;
}

/* Waits for what was sent long enough ago: all before node `next` is placed. */
static void await_sends(orderer *q, int next)
{
    for (int i = 0; q->until && i < q->n_flying;) {
        int until = q->until[q->flying[i]];
        if (until && until <= next)
            await_node(q, q->flying[i]);
        else
            i++;
    }
}

/* Of each place in the list the first of the graph's nodes that are still to come: those that
 * follow a leader are before others that are earlier in the graph. */
static const int *list_next(const orderer *q)
{
    int *next = LL_NEW_ARRAY(q->arena, int, q->n + 1);
    next[q->n] = q->g->n_node;
    for (int at = q->n - 1; at >= 0; at--)
        next[at] = q->list[at] < next[at + 1] ? q->list[at] : next[at + 1];
    return next;
}

static void place_list(orderer *q)
{
    const int *next = list_next(q);
    for (int at = 0; at < q->n;) {
        int node = q->list[at];
        await_sends(q, next[at]);
        int other = q->placed[node] || is_ready(q, node) ? -1 : find_other(q, at);
        if (other >= 0) {
            place_node(q, other);
            continue;
        }
        if (!q->placed[node]) {
            await_operands(q, node);
            place_node(q, node);
        }
        at++;
    }
}

/* ---- lists of sections ---- */

static bool is_message(const ll_node *n)
{
    return n->op->collective == LL_SEND || n->op->collective == LL_RECV;
}

/* The node that this one comes right behind; -1: it keeps its place in the graph. Means and sums
 * take no more memory than their operand: they come as early as they can. So does every collective
 * outside of micro-batches; messages, which others receive in the graph's order, do not. */
static int leader(const orderer *q, int node)
{
    const ll_node *n = &q->g->nodes[node];
    bool sums = n->op->collective == LL_ALL_REDUCE || is_scatter(q, node);
    bool once = n->op->collective && !is_message(n) && !q->micro[node];
    if (n->n_in != 1 || !(ll_is_mean(n) || sums || once || q->o->last[node])) return -1;
    int m = maker(q, n->in[0]);
    int section = section_of(q->micro, q->report, node);
    if (m >= 0 && q->g->nodes[m].op->collective == LL_RECV) return -1; /* posted ahead */
    return m >= 0 && section_of(q->micro, q->report, m) == section ? m : -1;
}

static void list_behind(orderer *q, int node)
{
    if (!ll_is_alias(&q->g->nodes[node], q->o->n_micro)) q->list[q->n++] = node;
    for (int k = q->first[node]; k; k = q->next[k - 1]) list_behind(q, k - 1);
}

/* A section's nodes in the graph's order but for those that follow a leader; of those, which have
 * this key (NULL: all). */
static void list_nodes(orderer *q, int section, const int *key, int want)
{
    for (int i = 0; i < q->g->n_node; i++)
        if (section_of(q->micro, q->report, i) == section && (!key || key[i] == want) &&
            leader(q, i) < 0)
            list_behind(q, i);
}

static void find_followers(orderer *q)
{
    for (int i = q->g->n_node - 1; i >= 0; i--) {
        int m = leader(q, i);
        q->o->place[i] = q->o->done[i] = -1;
        if (m < 0 || ll_is_alias(&q->g->nodes[i], q->o->n_micro)) continue;
        q->next[i] = q->first[m];
        q->first[m] = i + 1;
    }
}

/* Elements of an input in the whole: the same number on every rank. */
static int64_t whole_size(const orderer *q, int node)
{
    const ll_value *v =
        ll_value_of(q->g, ll_alias_root(q->g, q->g->nodes[node].in[0], q->o->n_micro));
    return ll_numel(v->piece ? &v->piece->whole : &v->type.shape);
}

/* Moves collectives on inputs ahead. */
static void list_loose(orderer *q)
{
    int *list = LL_NEW_ARRAY(q->arena, int, q->n + 1), n = 0;
    int *loose = LL_NEW_ARRAY(q->arena, int, q->n + 1), n_loose = 0, seen = 0, next = 0;
    double sum = 0;
    for (int i = 0; i < q->n; i++) {
        const ll_node *x = &q->g->nodes[q->list[i]];
        if (!x->op->collective || maker(q, x->in[0]) >= 0) continue;
        sum += (double)whole_size(q, q->list[i]);
        loose[n_loose++] = q->list[i];
    }
    for (int i = 0; i < q->n; i++) {
        if (seen == n_loose || q->list[i] != loose[seen]) {
            list[n++] = q->list[i];
            continue;
        }
        int until = ++seen; /* the next large one */
        while (until < n_loose && (double)whole_size(q, loose[until]) * n_loose < sum) until++;
        for (; next <= until && next < n_loose; next++) list[n++] = loose[next];
    }
    memcpy(q->list, list, sizeof *list * (size_t)n);
}

/* Moves collectives on what was made long before to where the collective before them starts, so
 * that no more than one of them takes memory early. */
static void list_ahead(orderer *q)
{
    int *at = LL_NEW_ARRAY(q->arena, int, q->g->n_node + 1); /* places in the list, from 1 on */
    int before = 0;
    for (int i = 0; i < q->n; i++) {
        int node = q->list[i], to = i;
        const ll_node *n = &q->g->nodes[node];
        int m = n->op->collective ? maker(q, n->in[0]) : -1;
        if (m >= 0) to = at[m] > before ? at[m] : before;
        for (int k = i; k > to; k--) {
            q->list[k] = q->list[k - 1];
            at[q->list[k]] = k + 1;
        }
        q->list[to] = node;
        at[node] = to + 1;
        if (n->op->collective) before = i + 1;
    }
}

/* What is ready when the collectives started first have come goes first: each node by the latest
 * of them that it depends on. Nodes stay behind their operands; and what a pipeline's ranks send
 * and receive keeps its order, for what one sends may be made of what another sent before. */
static void list_by_arrival(orderer *q, int section)
{
    const ll_graph *g = q->g;
    int *key = LL_NEW_ARRAY(q->arena, int, g->n_node + 1), last = 0;
    for (int i = 0; i < q->n_flying; i++) /* what is laid aside is each rank's own */
        key[q->flying[i]] = ll_aside_of(&g->nodes[q->flying[i]]) ? 0 : i + 1;
    for (int i = 0; i < g->n_node; i++) {
        if (section_of(q->micro, q->report, i) < section) continue;
        for (int k = 0; k < g->nodes[i].n_in; k++) {
            int m = maker(q, g->nodes[i].in[k]);
            if (m >= 0 && key[m] > key[i]) key[i] = key[m];
        }
        if (!is_message(&g->nodes[i])) continue;
        if (key[i] < last) key[i] = last;
        last = key[i];
    }
    for (int i = g->n_node - 1; i >= 0; i--) /* what is loaded comes with its first reader */
        for (int k = 0; k < g->nodes[i].n_in; k++) {
            int m = maker(q, g->nodes[i].in[k]);
            if (m >= 0 && ll_aside_of(&g->nodes[m]) == LL_LOAD) key[m] = key[i];
        }
    for (int k = 0; k <= q->n_flying; k++) list_nodes(q, section, key, k);
}

static bool is_result(const orderer *q, int node)
{
    for (int i = 0; i < q->g->n_result; i++)
        if (maker(q, q->g->results[i].value) == node) return true;
    return false;
}

/* What must have come before a section is over: with several micro-batches, what each of them
 * starts; results, before they are looked at; in the end everything. */
static void end_section(orderer *q, int section)
{
    ll_order *o = q->o;
    for (int i = 0; i < q->n_flying;) {
        int node = q->flying[i];
        if (section == LL_UPDATE || (section == LL_REPORT && is_result(q, node)) ||
            (section == LL_MICRO && o->n_micro > 1 && !o->last[node]))
            await_node(q, node);
        else
            i++;
    }
    o->end[section] = o->n;
}

static void new_order(orderer *q, int n_micro)
{
    int n = q->g->n_node + 1;
    ll_order *o = q->o;
    *o = (ll_order){.g = q->g, .n_micro = n_micro};
    LL_ARRAYS(q->arena, 2 * n, o->node, o->wait);
    LL_ARRAYS(q->arena, n, o->place, o->done, o->bundle, o->before, o->compressed, o->last,
              o->flight);
    LL_ARRAYS(q->arena, n, q->micro, q->report, q->placed, q->is_flying, q->flying, q->list,
              q->first, q->next);
}

ll_err ll_find_order(const ll_graph *g, const ll_unrolled *un, const int *until,
                     const ll_lower_opts *opts, ll_arena *arena, ll_order *o)
{
    orderer q = {.g = g, .o = o, .arena = arena, .blocking = opts->blocking, .until = until};
    q.still = opts->memory > 0; /* ranks lay aside what each must: other nodes would be ready */
    new_order(&q, opts->n_micro);
    o->unrolled = un != NULL;
    TRY(find_sections(g, un, o->n_micro, arena, q.micro, q.report));
    const int *uses = ll_uses(g, arena);
    for (int i = 0; i < g->n_node; i++) {
        o->bundle[i] = i;
        o->last[i] = un ? un->last[i] : joins_last(g, i);
        q.micro[i] |= o->last[i];
        if (ll_has_wait(&g->nodes[i]))
            o->flight[i] = ll_flight_of(g, uses, &g->nodes[i], o->n_micro);
    }
    find_followers(&q);
    for (int s = 0; s < LL_N_SECTION; s++) {
        q.n = 0;
        /* Stages that wait for each other do so in the order of the graph they were cut from, or
         * each might wait first for what the other sends next. */
        if (s == LL_MICRO || q.blocking || un)
            list_nodes(&q, s, NULL, 0);
        else
            list_by_arrival(&q, s);
        if (!q.blocking) {
            if (s == LL_MICRO && !un) list_loose(&q);
            if (s == LL_MICRO && !un) list_ahead(&q);
            if (s == LL_MICRO || !un) q.n = ll_bundle(o, opts, s, q.list, q.n, arena);
        }
        place_list(&q);
        end_section(&q, s);
    }
    return LL_OK;
}
