/* bench_comm_list.c: bench comm --list and --show: algorithms by their formulas and their steps,
 * without ranks. */
#include "cli/bench.h"
#include "cli/common.h"
#include "sched/simulate.h"

#include <stdio.h>

enum { COUNT = 720720, RANKS = 4, RANKS_MAX = 1024 }; /* a count that 1 to 16 divide */

/* What the busiest rank does: by the algorithm's formula, else counted in its lists. */
typedef struct work {
    ll_cost cost;
    bool counted;
} work;

static ll_err count_steps(ll_arena *arena, const ll_algo *a, const ll_coll_spec *s, ll_cost *out)
{
    *out = (ll_cost){0};
    for (int r = 0; r < s->size; r++) {
        const ll_sched *l;
        TRY(ll_sched_build(arena, a, s, r, &l));
        ll_cost c = {.messages = (double)l->n_message, .sent = (double)l->n_sent};
        for (int i = 0; i < l->n_step; i++) {
            const ll_step *t = &l->steps[i];
            if (t->kind == LL_STEP_AWAIT) c.awaits++;
            if (t->kind != LL_STEP_FOLD) continue;
            if (t->n_from > 1)
                c.folded += (double)t->n * (t->n_from - 1);
            else
                c.copied += (double)t->n;
        }
        if (c.sent + c.folded + c.copied + c.messages >
            out->sent + out->folded + out->copied + out->messages)
            *out = c;
    }
    return LL_OK;
}

static ll_err work_of(ll_arena *arena, const ll_algo *a, const ll_coll_spec *s, work *out)
{
    *out = (work){.counted = !a->cost};
    if (a->cost) {
        out->cost = a->cost(s);
        return LL_OK;
    }
    return count_steps(arena, a, s, &out->cost);
}

static const char *canonical_word(const ll_algo *a, const ll_coll_spec *s)
{
    bool sums = s->coll == LL_COLL_ALLREDUCE || s->coll == LL_COLL_REDUCE_SCATTER ||
                s->coll == LL_COLL_REDUCE;
    return !sums ? "-" : a->canonical && a->canonical(s) ? "yes" : "no";
}

static void print_cost(const char *name, const ll_cost *c, const char *canonical, const char *help)
{
    printf("  %-17s %8.0f %8.3f %8.3f %8.3f %7.0f  %-9s %s\n", name, c->messages, c->sent / COUNT,
           c->folded / COUNT, c->copied / COUNT, c->awaits, canonical, help);
}

static ll_err list_one(ll_arena *arena, const ll_algo *a, const ll_coll_spec *s, json_t *list)
{
    work w = {0};
    const char *why = "";
    bool can = ll_algo_can(a, s, &why);
    if (can) TRY(work_of(arena, a, s, &w));
    if (list) {
        ll_cost b = ll_coll_bound(s);
        json_array_append_new(
            list,
            json_pack("{s:s,s:s,s:s,s:i,s:b,s:b,s:s,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "op",
                      ll_coll_name(a->coll), "algorithm", a->name, "help", a->help, "ranks",
                      s->size, "usable", (int)can, "counted", (int)w.counted, "canonical",
                      canonical_word(a, s), "messages", w.cost.messages, "sent",
                      w.cost.sent / COUNT, "folded", w.cost.folded / COUNT, "copied",
                      w.cost.copied / COUNT, "awaits", w.cost.awaits, "bound_messages", b.messages,
                      "bound_sent", b.sent / COUNT, "bound_folded", b.folded / COUNT));
    } else if (!can) {
        printf("  %-17s needs %s\n", a->name, why);
    } else if (a->library) {
        printf("  %-17s %35s %7s  %-9s %s\n", a->name, "", "", canonical_word(a, s), a->help);
    } else {
        const char *name = w.counted ? ll_arena_printf(arena, "%s *", a->name) : a->name;
        print_cost(name, &w.cost, canonical_word(a, s), a->help);
    }
    return LL_OK;
}

static ll_err list_all(ll_arena *arena, const ll_comm_bench_opts *o, int size, json_t *list)
{
    for (int c = 0; c < LL_N_COLL; c++) {
        ll_coll_spec s = {.coll = (ll_coll)c, .size = size, .count = COUNT, .shared = true};
        bool any = false;
        if (o->op && strcmp(o->op, ll_coll_name(s.coll))) continue;
        for (const ll_algo *const *a = ll_algos(); *a; a++) {
            if ((*a)->coll != s.coll) continue;
            if (!any && !list) {
                ll_cost b = ll_coll_bound(&s);
                printf("\n%s on %d ranks, for n elements on the busiest rank\n"
                       "  %-17s %8s %8s %8s %8s %7s  %-9s\n",
                       ll_coll_name(s.coll), size, "", "messages", "sent/n", "folded/n", "copied/n",
                       "awaits", "canonical");
                print_cost("(lower bound)", &b, "", "no algorithm can do with less");
            }
            any = true;
            TRY(list_one(arena, *a, &s, list));
        }
    }
    if (!list)
        printf("\n* counted in its steps; the others by formula. canonical: the order of a sum "
               "depends on nothing but the ranks' numbers.\n");
    return LL_OK;
}

static ll_err ranks_of(const ll_comm_bench_opts *o, int otherwise, int *out)
{
    CHECK(o->ranks <= RANKS_MAX, LL_E_ARG, "-n %lld: at most %d here", (long long)o->ranks,
          RANKS_MAX);
    *out = o->ranks ? (int)o->ranks : otherwise;
    return LL_OK;
}

ll_err ll_comm_bench_list(const ll_comm_bench_opts *o)
{
    int size;
    ll_coll coll;
    if (o->op) TRY(ll_comm_bench_coll(o->op, &coll));
    TRY(ranks_of(o, RANKS, &size));
    ll_arena *arena = ll_arena_new();
    json_t *list = o->json ? json_array() : NULL;
    ll_err rc = list_all(arena, o, size, list);
    ll_arena_free(arena);
    if (rc == LL_OK && list) return ll_cli_json(list);
    json_decref(list);
    return rc;
}

/* ---- steps ---- */

static ll_err find_algo(ll_arena *arena, ll_coll coll, const char *name, const ll_algo **out)
{
    *out = ll_algo_find(coll, name);
    if (*out) return LL_OK;
    const char *known = "";
    for (const ll_algo *const *a = ll_algos(); *a; a++)
        if ((*a)->coll == coll) known = ll_arena_printf(arena, "%s %s", known, (*a)->name);
    FAIL(LL_E_ARG, "%s has no algorithm '%s'; there are:%s", ll_coll_name(coll), name, known);
}

static ll_err show(ll_arena *arena, const ll_comm_bench_opts *o)
{
    const ll_algo *a;
    int size;
    ll_coll_spec s = {.shared = true};
    TRY(ll_comm_bench_coll(o->op ? o->op : "all-reduce", &s.coll));
    TRY(find_algo(arena, s.coll, o->show, &a));
    TRY(ranks_of(o, RANKS, &size));
    s.size = size;
    s.count = o->count ? o->count : 4 * (int64_t)size;
    size_t segment = 0;
    if (o->segment) TRY(ll_comm_bench_size(o->segment, strlen(o->segment), &segment));
    s.segment = (int64_t)segment;
    const ll_sched **ranks = LL_NEW_ARRAY(arena, const ll_sched *, size);
    for (int r = 0; r < size; r++) TRY(ll_sched_build(arena, a, &s, r, &ranks[r]));
    printf("%s by %s on %d ranks, %lld elements: %s\n", ll_coll_name(s.coll), a->name, size,
           (long long)s.count, a->help);
    for (int r = 0; r < size; r++) {
        printf("\nrank %d: %d rounds, %lld messages, %lld elements sent\n", r, ranks[r]->n_round,
               (long long)ranks[r]->n_message, (long long)ranks[r]->n_sent);
        fputs(ll_sched_text(arena, ranks[r]), stdout);
    }
    return LL_OK;
}

ll_err ll_comm_bench_show(const ll_comm_bench_opts *o)
{
    ll_arena *arena = ll_arena_new();
    ll_err rc = show(arena, o);
    ll_arena_free(arena);
    return rc;
}
