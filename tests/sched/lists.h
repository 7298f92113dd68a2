/* lists.h: a collective's lists of steps that can be changed, to see that the verifier refuses
 * them. */
#pragma once
#include "sched/emit.h"
#include "sched/verify.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

typedef struct lists {
    ll_arena *arena;
    int size;
    ll_coll_spec spec;
    const ll_subset *subsets; /* not NULL: these, on count elements, in place of spec */
    int n_subset;
    const ll_sched **ranks;
} lists;

static inline ll_err verify(const lists *l, int times)
{
    if (l->subsets)
        return ll_sched_verify_subsets(l->subsets, l->n_subset, l->size, l->spec.count, l->ranks);
    return ll_sched_verify_repeated(&l->spec, l->ranks, times);
}

static inline ll_step *steps_of(const lists *l, int rank)
{
    return (ll_step *)(uintptr_t)l->ranks[rank]->steps;
}

static inline ll_sched *list_of(const lists *l, int rank)
{
    return (ll_sched *)(uintptr_t)l->ranks[rank];
}

static inline ll_ref *from_of(ll_step *s)
{
    return (ll_ref *)(uintptr_t)s->from;
}

static inline void count_scratch(ll_sched *s, const ll_step *x, const ll_ref *r)
{
    int64_t end = r->at + x->n;
    if (r->rank == s->rank && r->buf == LL_SCRATCH && end > s->scratch) s->scratch = end;
}

/* Makes the counters right again: it is the mistake that must be seen. */
static inline void recount(lists *l, int rank)
{
    ll_sched *s = list_of(l, rank);
    s->n_message = s->n_sent = s->scratch = s->n_signal = 0;
    for (int i = 0; i < s->n_step; i++) {
        const ll_step *x = &s->steps[i];
        if (x->kind == LL_STEP_SEND) s->n_message++, s->n_sent += x->n;
        if (x->kind == LL_STEP_SIGNAL) s->n_signal++;
        count_scratch(s, x, &x->dst);
        for (int f = 0; f < x->n_from; f++) count_scratch(s, x, &x->from[f]);
    }
}

static inline void build(lists *l, const ll_algo *a, ll_coll_spec spec)
{
    assert_non_null(a);
    *l = (lists){.arena = ll_arena_new(), .size = spec.size, .spec = spec};
    l->ranks = LL_NEW_ARRAY(l->arena, const ll_sched *, spec.size);
    for (int r = 0; r < spec.size; r++)
        assert_int_equal(ll_sched_build(l->arena, a, &l->spec, r, &l->ranks[r]), LL_OK);
}

static inline void drop(lists *l, int rank, int i)
{
    ll_sched *s = list_of(l, rank);
    ll_step *x = steps_of(l, rank);
    memmove(x + i, x + i + 1, sizeof *x * (size_t)(s->n_step - i - 1));
    s->n_step--;
    recount(l, rank);
}

/* Puts a copy of step i behind it, in a round of its own. */
static inline void repeat(lists *l, int rank, int i)
{
    ll_sched *s = list_of(l, rank);
    ll_step *x = LL_NEW_ARRAY(l->arena, ll_step, s->n_step + 1);
    memcpy(x, s->steps, sizeof *x * (size_t)(i + 1));
    memcpy(x + i + 1, s->steps + i, sizeof *x * (size_t)(s->n_step - i));
    for (int k = i + 1; k <= s->n_step; k++) x[k].round++;
    s->steps = x;
    s->n_step++;
    s->n_round++;
    recount(l, rank);
}

/* A round and the one after it change places. */
static inline void swap_rounds(lists *l, int rank, int round)
{
    ll_sched *s = list_of(l, rank);
    ll_step *x = LL_NEW_ARRAY(l->arena, ll_step, s->n_step);
    int n = 0;
    for (int k = 0; k < s->n_round; k++) {
        int take = k == round ? k + 1 : k == round + 1 ? k - 1 : k;
        for (int i = 0; i < s->n_step; i++)
            if (s->steps[i].round == take) {
                x[n] = s->steps[i];
                x[n++].round = k;
            }
    }
    s->steps = x;
}

static inline void refused(const lists *l, int times, const char *what)
{
    ll_err rc = verify(l, times);
    if (rc != LL_E_COMM || !strstr(ll_error_text(), what)) {
        print_error("wanted '%s', got: %s\n", what, rc ? ll_error_text() : "no error");
        for (int r = 0; r < l->size; r++)
            print_error("rank %d\n%s", r, ll_sched_text(l->arena, l->ranks[r]));
        fail();
    }
    assert_non_null(strstr(ll_error_text(), "rank "));
    assert_false(ll_sched_was_canonical());
}

static inline void accepted(const lists *l, int times)
{
    ll_err rc = verify(l, times);
    if (rc) print_error("%s\n", ll_error_text());
    assert_int_equal(rc, LL_OK);
}

/* For each mistake a fresh list: step is rank 0's given one. */
#define MISTAKE(make, index, change, what)                                                         \
    do {                                                                                           \
        lists l = make();                                                                          \
        ll_step *step = &steps_of(&l, 0)[index];                                                   \
        (void)step;                                                                                \
        change;                                                                                    \
        recount(&l, 0);                                                                            \
        refused(&l, 1, what);                                                                      \
        ll_arena_free(l.arena);                                                                    \
    } while (0)
