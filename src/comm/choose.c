/* choose.c: which algorithm for a call. With a table, the best way of the nearest measured size
 * that can do what is asked; without one, rules that hold on most machines:
 *
 *   all ranks on one node       the window: every rank reads what the others left there
 *   small messages              few rounds: butterfly, trees (latency counts)
 *   large messages              few bytes: ring, in segments (bandwidth counts)
 *
 * The choice is a function of the call and the table, which are equal on all ranks: so is it. */
#include "comm/choose.h"
#include "sched/nodes.h"

#include <math.h>
#include <string.h>

enum { SMALL = 32 << 10, SEGMENT = 256 << 10 };

bool ll_choose_may(const ll_algo *a, const ll_coll_spec *s, bool has_window, bool canonical)
{
    const char *why;
    if ((a->window || a->shared) && !has_window) return false;
    if (a->library && s->far) return false; /* which not every library has there */
    if (canonical && ll_coll_sums(s->coll) && !(a->canonical && a->canonical(s))) return false;
    return ll_algo_can(a, s, &why);
}

/* ---- rules ---- */

/* Names in order of preference; those that do not exist for a collective are passed over. */
static const char *const for_small[] = {"shared",  "window1",  "window",        "butterfly",
                                        "halving", "doubling", "dissemination", "tree",
                                        "bruck",   NULL};
static const char *const for_large[] = {"shared",       "window",  "hierarchical",      "ring",
                                        "rabenseifner", "sharded", "scatter-allgather", "direct",
                                        "tree",         NULL};

/* Several nodes, of which some have several ranks: else there is no hierarchy. */
static bool has_levels(const ll_coll_spec *s)
{
    int n = ll_nodes_count(s);
    return n > 1 && n < s->size;
}

static const ll_algo *by_rules(const ll_coll_spec *s, size_t bytes, bool has_window, bool canonical)
{
    for (const char *const *n = bytes <= SMALL ? for_small : for_large; *n; n++) {
        const ll_algo *a = ll_algo_find(s->coll, *n);
        if (!strcmp(*n, "hierarchical") && !has_levels(s)) continue;
        if (a && ll_choose_may(a, s, has_window, canonical)) return a;
    }
    for (int library = 0; library < 2; library++) /* the library's own last */
        for (const ll_algo *const *a = ll_algos(); *a; a++)
            if ((*a)->coll == s->coll && (*a)->library == (bool)library &&
                ll_choose_may(*a, s, has_window, canonical))
                return *a;
    return NULL;
}

/* ---- the table ---- */

/* How far apart two sizes are, as a ratio of at least 1. */
static double apart(size_t a, size_t b)
{
    double x = (double)(a ? a : 1), y = (double)(b ? b : 1);
    return x > y ? x / y : y / x;
}

/* The entry of the nearest size; one for memory of its own stands in for one that is shared. */
static const ll_tuned *nearest(const ll_tuned_table *t, const ll_coll_spec *s, size_t bytes)
{
    const ll_tuned *best = NULL;
    LL_EACH (const ll_tuned, e, t->entries, t->n_entry) {
        if (e->coll != s->coll || (e->shared && !s->shared)) continue;
        if (best && best->shared && !e->shared) continue;
        bool nearer = !best || (e->shared && !best->shared) ||
                      apart(e->bytes, bytes) < apart(best->bytes, bytes);
        if (nearer) best = e;
    }
    return best;
}

static const ll_tuned_way *by_table(const ll_tuned_table *t, const ll_coll_spec *s, size_t bytes,
                                    bool has_window, bool canonical)
{
    if (!t || t->size != s->size) return NULL;
    const ll_tuned *e = nearest(t, s, bytes);
    for (int i = 0; e && i < e->n_way; i++)
        if (ll_choose_may(e->ways[i].algo, s, has_window, canonical)) return &e->ways[i];
    return NULL;
}

ll_err ll_choose(const ll_tuned_table *t, const ll_coll_spec *s, size_t elem_bytes, bool has_window,
                 bool canonical, const ll_algo **algo, int64_t *segment)
{
    size_t bytes = (size_t)s->count * elem_bytes, cut = 0;
    const ll_tuned_way *w = by_table(t, s, bytes, has_window, canonical);
    if (w) {
        *algo = w->algo;
        cut = w->segment_bytes;
    } else {
        *algo = by_rules(s, bytes, has_window, canonical);
        CHECK(*algo, LL_E_COMM, "no algorithm can do %s of %ld elements on %d ranks%s",
              ll_coll_name(s->coll), s->count, s->size,
              canonical ? " with its sums in canonical order" : "");
        if (bytes > 2 * (size_t)SEGMENT && !(*algo)->window) cut = SEGMENT;
    }
    *segment = (*algo)->segmented ? (int64_t)(cut / elem_bytes) : 0;
    return LL_OK;
}

const char *ll_choose_why(const ll_tuned_table *t, const ll_coll_spec *s, size_t elem_bytes)
{
    const ll_tuned *e =
        t && t->size == s->size ? nearest(t, s, (size_t)s->count * elem_bytes) : NULL;
    return e ? e->why : NULL;
}

/* ---- what is in it ---- */

void ll_tuned_table_free(ll_tuned_table *t)
{
    if (t) ll_arena_free(t->arena);
}

static double per_byte(const ll_tuned *e)
{
    const ll_tuned_way *w = &e->ways[0];
    return (w->measured_s > 0 ? w->measured_s : w->predicted_s) / (double)e->bytes;
}

/* Buckets are all-reduced, in memory of their own or not: the table has the former for certain. */
static bool counts(const ll_tuned *e)
{
    return e->coll == LL_COLL_ALLREDUCE && !e->shared && e->n_way > 0;
}

size_t ll_choose_bucket_bytes(const ll_tuned_table *t)
{
    const size_t unknown = (size_t)4 << 20;
    if (!t) return unknown;
    double least = INFINITY; /* seconds a byte */
    for (int i = 0; i < t->n_entry; i++)
        if (counts(&t->entries[i])) least = fmin(least, per_byte(&t->entries[i]));
    size_t best = 0;
    LL_EACH (const ll_tuned, e, t->entries, t->n_entry)
        if (counts(e) && per_byte(e) < 1.1 * least && (!best || e->bytes < best)) best = e->bytes;
    return best ? best : unknown;
}
