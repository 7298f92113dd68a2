/* algorithms.c: the collective algorithms by their formulas and their steps, without ranks.
 *
 *     bench_algorithms [RANKS]                              every algorithm and what it costs
 *     bench_algorithms RANKS COLLECTIVE ALGORITHM [COUNT]   one's steps on every rank */
#include "sched/algos.h"
#include "sched/verify.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 720720, RANKS = 4, RANKS_MAX = 1024 }; /* a count that 1 to 16 divide */

/* What the busiest rank does: by the algorithm's formula, else counted in its lists. */
static ll_err cost_of(ll_arena *arena, const ll_algo *a, const ll_coll_spec *s, ll_cost *out)
{
    *out = a->cost ? a->cost(s) : (ll_cost){0};
    for (int r = 0; r < s->size && !a->cost; r++) {
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

static const char *canonical_word(const ll_algo *a, const ll_coll_spec *s)
{
    return !ll_coll_sums(s->coll) ? "-" : a->canonical && a->canonical(s) ? "yes" : "no";
}

static void print_cost(const char *name, bool counted, const ll_cost *c, const char *canonical,
                       const char *help)
{
    printf("  %-17s%c %8.0f %8.3f %8.3f %8.3f %7.0f  %-9s %s\n", name, counted ? '*' : ' ',
           c->messages, c->sent / COUNT, c->folded / COUNT, c->copied / COUNT, c->awaits, canonical,
           help);
}

static ll_err list_one(ll_arena *arena, const ll_algo *a, const ll_coll_spec *s)
{
    ll_cost c;
    const char *why = "";
    if (!ll_algo_can(a, s, &why)) {
        printf("  %-17s  needs %s\n", a->name, why);
        return LL_OK;
    }
    if (a->library) {
        printf("  %-17s  %35s %7s  %-9s %s\n", a->name, "", "", canonical_word(a, s), a->help);
        return LL_OK;
    }
    TRY(cost_of(arena, a, s, &c));
    print_cost(a->name, !a->cost, &c, canonical_word(a, s), a->help);
    return LL_OK;
}

static ll_err list_all(ll_arena *arena, int size)
{
    for (int c = 0; c < LL_N_COLL; c++) {
        ll_coll_spec s = {.coll = (ll_coll)c, .size = size, .count = COUNT, .shared = true};
        bool any = false;
        for (const ll_algo *const *a = ll_algos(); *a; a++) {
            if ((*a)->coll != s.coll) continue;
            if (!any) {
                ll_cost b = ll_coll_bound(&s);
                printf("\n%s on %d ranks, for n elements on the busiest rank\n"
                       "  %-18s %8s %8s %8s %8s %7s  %-9s\n",
                       ll_coll_name(s.coll), size, "", "messages", "sent/n", "folded/n", "copied/n",
                       "awaits", "canonical");
                print_cost("(lower bound)", false, &b, "", "no algorithm can do with less");
            }
            any = true;
            TRY(list_one(arena, *a, &s));
        }
    }
    printf("\n* counted in its steps; the others by formula. canonical: the order of a sum depends "
           "on nothing but the ranks' numbers.\n");
    return LL_OK;
}

static ll_err show(ll_arena *arena, int size, const char *coll, const char *name, int64_t count)
{
    int c = 0;
    while (c < LL_N_COLL && strcmp(ll_coll_name((ll_coll)c), coll)) c++;
    const ll_algo *a = c < LL_N_COLL ? ll_algo_find((ll_coll)c, name) : NULL;
    CHECK(a, LL_E_ARG, "there is no %s by %s", coll, name);
    ll_coll_spec s = {.coll = (ll_coll)c, .size = size, .count = count, .shared = true};
    printf("%s by %s on %d ranks, %lld elements: %s\n", coll, name, size, (long long)count,
           a->help);
    for (int r = 0; r < size; r++) {
        const ll_sched *l;
        TRY(ll_sched_build(arena, a, &s, r, &l));
        printf("\nrank %d: %d rounds, %lld messages, %lld elements sent\n", r, l->n_round,
               (long long)l->n_message, (long long)l->n_sent);
        fputs(ll_sched_text(arena, l), stdout);
    }
    return LL_OK;
}

static ll_err run(ll_arena *arena, int argc, char **argv)
{
    int size = argc > 1 ? atoi(argv[1]) : RANKS;
    CHECK(size >= 1 && size <= RANKS_MAX && argc <= 5 && argc != 3, LL_E_ARG,
          "want [RANKS], or RANKS COLLECTIVE ALGORITHM [COUNT]; at most %d ranks", RANKS_MAX);
    if (argc <= 2) return list_all(arena, size);
    return show(arena, size, argv[2], argv[3], argc > 4 ? atoll(argv[4]) : 4 * (int64_t)size);
}

int main(int argc, char **argv)
{
    ll_arena *arena = ll_arena_new();
    ll_err rc = run(arena, argc, argv);
    if (rc != LL_OK) fprintf(stderr, "bench_algorithms: %s\n", ll_error_text());
    ll_arena_free(arena);
    return rc != LL_OK;
}
