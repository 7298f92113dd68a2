/* plan.c: the schedule for a call. Building one takes far longer than running a small one, so each
 * is built once and found again by what it depends on: a hash table of keys. What the tuner chose
 * is part of what is kept. */
#include "comm/comm_int.h"

#include "base/num.h"
#include "base/types.h"

#include <string.h>

/* More than so many, and all are forgotten as soon as none is in use: lengths that change with
 * every call must not fill the memory. */
enum { LISTS = 1024, MOST_PLANS = 4096 };

static uint64_t hash_key(const plan_key *k)
{
    uint64_t words[sizeof *k / 8], h = 1;
    memcpy(words, k, sizeof words);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) h = ll_mix64(h, words[i]);
    return h;
}

static uint64_t hash_cuts(const int64_t *cuts, int64_t n, uint64_t h)
{
    for (int64_t i = 0; cuts && i < n; i++) h = ll_mix64(h, (uint64_t)cuts[i]);
    return h;
}

static bool same_cuts(const int64_t *a, const int64_t *b, int64_t n)
{
    return a && b ? !memcmp(a, b, sizeof *a * (size_t)n) : a == b;
}

static bool needs_canonical(const ll_comm *c, const ll_coll_call *call)
{
    return c->opts.canonical && ll_coll_sums(call->spec.coll) && call->op == LL_REDUCE_SUM &&
           ll_dtype_is_float(call->dtype);
}

static plan_key key_of(const ll_comm *c, const ll_coll_call *call)
{
    const ll_coll_spec *s = &call->spec;
    plan_key k = {.algo = call->algo,
                  .table = call->algo ? 0 : c->n_table,
                  .count = s->count,
                  .segment = s->segment,
                  .root = s->root,
                  .coll = (uint8_t)s->coll,
                  .elem_bytes = (uint8_t)ll_dtype_bytes(call->dtype),
                  .memory = (uint8_t)(s->shared + 2 * s->far),
                  .canonical = needs_canonical(c, call)};
    if (s->starts) k.cuts = hash_cuts(s->starts, s->size + 1, 1);
    if (s->matrix) k.cuts = hash_cuts(s->matrix, (int64_t)s->size * s->size, k.cuts + 2);
    return k;
}

static bool matches(const ll_plan *p, const plan_key *k, const ll_coll_spec *s)
{
    return !memcmp(&p->key, k, sizeof *k) &&
           (!k->cuts || (same_cuts(p->spec.starts, s->starts, s->size + 1) &&
                         same_cuts(p->spec.matrix, s->matrix, (int64_t)s->size * s->size)));
}

/* ---- the table ---- */

/* Where it is, or would be. */
static ll_plan **place_of(const ll_plans *t, const plan_key *k, const ll_coll_spec *s)
{
    ll_plan **p = &t->lists[hash_key(k) % LISTS];
    while (*p && !matches(*p, k, s)) p = &(*p)->next;
    return p;
}

void ll_plans_free(ll_plans *t)
{
    ll_arena_free(t->arena);
    *t = (ll_plans){0};
}

/* ---- what to run ---- */

bool ll_comm_has_window(const ll_comm *c)
{
    return c->parts && ll_one_node(c->t->node, c->t->size);
}

static ll_err check_canonical(const ll_algo *a, const ll_coll_spec *s)
{
    if (a->canonical && a->canonical(s)) return LL_OK;
    LL_OWN(ll_arena) arena = ll_arena_new();
    FAIL(LL_E_COMM,
         "%s by %s does not sum in canonical order, which this communicator requires; use one of: "
         "%s",
         ll_coll_name(s->coll), a->name, ll_algo_names(arena, s->coll, s, true));
}

static ll_err check_window(const ll_comm *c, const ll_plan *p, size_t elem_bytes)
{
    CHECK(!p->algo->window || ll_comm_has_window(c) || c->t->size == 1, LL_E_COMM,
          "%s by %s needs a window, and all ranks on one node", ll_coll_name(p->spec.coll),
          p->algo->name);
    size_t need = (size_t)p->sched->window * elem_bytes;
    CHECK(need <= c->half_bytes, LL_E_COMM,
          "%s of %ld elements by %s needs %zu bytes of window at once, but has %zu: use smaller "
          "segments, or window_bytes of %zu",
          ll_coll_name(p->spec.coll), p->spec.count, p->algo->name, need, c->half_bytes, 2 * need);
    return LL_OK;
}

static const int64_t *keep(ll_arena *a, const int64_t *cuts, int64_t n)
{
    return cuts ? (const int64_t *)ll_arena_copy(a, cuts, sizeof *cuts * (size_t)n) : NULL;
}

static ll_err build(ll_comm *c, const ll_coll_call *call, const plan_key *k, ll_plan **out)
{
    ll_arena *a = c->plans.arena;
    ll_plan *p = LL_NEW(a, ll_plan);
    p->key = *k;
    p->spec = call->spec;
    p->spec.starts = keep(a, call->spec.starts, p->spec.size + 1);
    p->spec.matrix = keep(a, call->spec.matrix, (int64_t)p->spec.size * p->spec.size);
    p->algo = call->algo;
    for (bool window = ll_comm_has_window(c) && !p->spec.far;;
         window = false) { /* without, where it is too small */
        int64_t segment = call->spec.segment;
        if (!call->algo)
            TRY(ll_choose(c->table, &p->spec, k->elem_bytes, window, k->canonical, &p->algo,
                          &segment));
        if (!call->spec.segment) p->spec.segment = segment;
        if (k->canonical) TRY(check_canonical(p->algo, &p->spec));
        TRY(ll_sched_build(a, p->algo, &p->spec, c->t->rank, &p->sched));
        bool fits = (size_t)p->sched->window * k->elem_bytes <= c->half_bytes;
        if (fits || call->algo || !window) break;
    }
    TRY(check_window(c, p, k->elem_bytes));
    *out = p;
    return LL_OK;
}

ll_err ll_plan_find(ll_comm *c, const ll_coll_call *call, ll_plan **out)
{
    plan_key k = key_of(c, call);
    ll_plans *t = &c->plans;
    if (t->arena && (*out = *place_of(t, &k, &call->spec))) return LL_OK;
    if (t->n_plan >= MOST_PLANS && !t->in_use) ll_plans_free(t);
    if (!t->arena) {
        t->arena = ll_arena_new();
        t->lists = LL_NEW_ARRAY(t->arena, ll_plan *, LISTS);
    }
    TRY(build(c, call, &k, out));
    *place_of(t, &k, &call->spec) = *out;
    t->n_plan++;
    return LL_OK;
}
