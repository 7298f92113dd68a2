/* The verifier can fail: right schedules with one mistake each are refused, with a message that
 * says what is wrong. Some mistakes are made by hand; one is made everywhere: no algorithm of the
 * registry has a message or a fold that could be left out. */
#include "sched/emit.h"
#include "sched/verify.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

/* ---- lists that can be changed ---- */
typedef struct lists {
    ll_arena *arena;
    int size;
    ll_coll_spec spec;
    const ll_halo_spec *halo; /* not NULL: this, in place of spec */
    const ll_subset *subsets; /* or these, on count elements */
    int n_subset;
    const ll_sched **ranks;
} lists;

static ll_err verify(const lists *l, int times)
{
    if (l->halo) return ll_sched_verify_halo(l->halo, l->ranks);
    if (l->subsets)
        return ll_sched_verify_subsets(l->subsets, l->n_subset, l->size, l->spec.count, l->ranks);
    return ll_sched_verify_repeated(&l->spec, l->ranks, times);
}

static ll_step *steps_of(const lists *l, int rank)
{
    return (ll_step *)(uintptr_t)l->ranks[rank]->steps;
}

static ll_sched *list_of(const lists *l, int rank)
{
    return (ll_sched *)(uintptr_t)l->ranks[rank];
}

static ll_ref *from_of(ll_step *s)
{
    return (ll_ref *)(uintptr_t)s->from;
}

static void count_scratch(ll_sched *s, const ll_step *x, const ll_ref *r, const int64_t *stride)
{
    int64_t end = r->at + x->n;
    if (x->rows) end += (x->rows->rows[1] - 1) * stride[1] + (x->rows->rows[0] - 1) * stride[0];
    if (r->rank == s->rank && r->buf == LL_SCRATCH && end > s->scratch) s->scratch = end;
}

/* Makes the counters right again: it is the mistake that must be seen. */
static void recount(lists *l, int rank)
{
    ll_sched *s = list_of(l, rank);
    s->n_message = s->n_sent = s->scratch = s->n_signal = 0;
    for (int i = 0; i < s->n_step; i++) {
        const ll_step *x = &s->steps[i];
        if (x->kind == LL_STEP_SEND) s->n_message++, s->n_sent += x->n;
        if (x->kind == LL_STEP_SIGNAL) s->n_signal++;
        count_scratch(s, x, &x->dst, x->rows ? x->rows->dst_stride : NULL);
        for (int f = 0; f < x->n_from; f++)
            count_scratch(s, x, &x->from[f], x->rows ? x->rows->src_stride : NULL);
    }
}

static void build(lists *l, const ll_algo *a, ll_coll_spec spec)
{
    assert_non_null(a);
    *l = (lists){.arena = ll_arena_new(), .size = spec.size, .spec = spec};
    l->ranks = LL_NEW_ARRAY(l->arena, const ll_sched *, spec.size);
    for (int r = 0; r < spec.size; r++)
        assert_int_equal(ll_sched_build(l->arena, a, &l->spec, r, &l->ranks[r]), LL_OK);
}

static void drop(lists *l, int rank, int i)
{
    ll_sched *s = list_of(l, rank);
    ll_step *x = steps_of(l, rank);
    memmove(x + i, x + i + 1, sizeof *x * (size_t)(s->n_step - i - 1));
    s->n_step--;
    recount(l, rank);
}

/* Puts a copy of step i behind it, in a round of its own. */
static void repeat(lists *l, int rank, int i)
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
static void swap_rounds(lists *l, int rank, int round)
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

static void refused(const lists *l, int times, const char *what)
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

static void accepted(const lists *l, int times)
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

/* ---- a ring of 3, 7 elements in blocks [0..2) [2..4) [4..7). Rank 0 has:
 *     0  round 0: send to 1, data[4..7)
 *     1  round 0: receive from 2, scratch[0..2)
 *     2  round 1: fold data[2..4) = data[2..4) + scratch[0..2)
 *     3  round 2: send to 1, data[2..4)
 *     4  round 2: receive from 2, scratch[4..6)
 *     5  round 3: fold data[0..2) = data[0..2) + scratch[4..6)
 *     6  round 4: send to 1, data[0..2)
 *     7  round 4: receive from 2, data[4..7)
 *     8  round 5: send to 1, data[4..7)
 *     9  round 5: receive from 2, data[2..4) ---- */
static lists ring(void)
{
    lists l;
    build(&l, ll_algo_find(LL_COLL_ALLREDUCE, "ring"),
          (ll_coll_spec){.coll = LL_COLL_ALLREDUCE, .size = 3, .count = 7});
    assert_int_equal(l.ranks[0]->n_step, 10);
    return l;
}

static void messages(void **state)
{
    (void)state;
    lists right = ring();
    accepted(&right, 3);
    assert_false(ll_sched_was_canonical());
    assert_string_equal(ll_sched_text(right.arena, right.ranks[2]),
                        "round 0: send to 0, data[2..4)\n"
                        "round 0: receive from 1, scratch[0..2)\n"
                        "round 1: fold data[0..2) = data[0..2) + scratch[0..2)\n"
                        "round 2: send to 0, data[0..2)\n"
                        "round 2: receive from 1, scratch[3..6)\n"
                        "round 3: fold data[4..7) = data[4..7) + scratch[3..6)\n"
                        "round 4: send to 0, data[4..7)\n"
                        "round 4: receive from 1, data[2..4)\n"
                        "round 5: send to 0, data[2..4)\n"
                        "round 5: receive from 1, data[0..2)\n");
    ll_arena_free(right.arena);
    /* Left out: the next one is taken for it; the last one: its partner waits. */
    MISTAKE(ring, 0, drop(&l, 0, 0), "elements, but rank");
    MISTAKE(ring, 8, drop(&l, 0, 8), "waits for ever: rank 0 is done");
    MISTAKE(ring, 9, drop(&l, 0, 9), "rank 0: in the end data[2] has nothing of rank 1");
    MISTAKE(ring, 9, repeat(&l, 0, 9), "waits for ever: rank 2 is done");
    /* Another peer, or none. */
    MISTAKE(ring, 0, step->peer = 2, "deadlock");
    MISTAKE(ring, 1, step->peer = 1, "deadlock");
    MISTAKE(ring, 0, step->peer = 0, "0 is not another rank of 0..2");
    MISTAKE(ring, 0, step->peer = 3, "3 is not another rank of 0..2");
    MISTAKE(ring, 1, step->n = 1, "scratch[0..1): 1 elements");
    MISTAKE(ring, 1, step->n = 0, "0 elements");
}

static void folds(void **state)
{
    (void)state;
    MISTAKE(ring, 0, from_of(step)->at--, "sums element ");
    MISTAKE(ring, 0, from_of(step)->at++, "elements 5..8 of a buffer of 7");
    MISTAKE(ring, 5, step->dst.at++, "writes over a part of what it reads");
    MISTAKE(ring, 5, step->dst.at = 4, "has nothing of rank");
    MISTAKE(ring, 5, from_of(step)[1].at--, "which nothing was written to");
    MISTAKE(ring, 7, step->dst.at--, "in the end data[");
    MISTAKE(ring, 2, drop(&l, 0, 2), "data[2] has nothing of rank 2");
    MISTAKE(ring, 2, repeat(&l, 0, 2), "twice");
    MISTAKE(ring, 2, from_of(step)[1] = from_of(step)[0], "sums rank 0's element 2 twice");
    MISTAKE(ring, 0, swap_rounds(&l, 0, 0), "which nothing was written to");
    MISTAKE(ring, 0, swap_rounds(&l, 0, 1), "data[2] has nothing of rank 2");
    MISTAKE(ring, 0, swap_rounds(&l, 0, 4), "elements, but rank");
}

/* What a round's messages touch, its folds and other messages must not. */
static void conflicts(void **state)
{
    (void)state;
    MISTAKE(ring, 2, step->round = 0, "reads scratch[0], which a receive of its round writes");
    MISTAKE(ring, 2, step->round = 2, "writes data[2], which a send of its round reads");
    MISTAKE(ring, 7, step->dst.at = 0, "writes data[0], which another send of its round reads");
    MISTAKE(ring, 7, (step[1].round = step[2].round = 4),
            "reads data[4], which a receive of its round writes");
    MISTAKE(ring, 9, (step->round = step[-1].round = 4, step->dst.at = 5),
            "which a receive of its round writes");
}

static void counters(void **state)
{
    (void)state;
#define COUNTER(change, what)                                                                      \
    do {                                                                                           \
        lists l = ring();                                                                          \
        change;                                                                                    \
        refused(&l, 1, what);                                                                      \
        ll_arena_free(l.arena);                                                                    \
    } while (0)
    COUNTER(list_of(&l, 1)->n_message++, "rank 1: the list says 5 messages, its steps make 4");
    COUNTER(list_of(&l, 1)->n_sent--, "elements sent");
    COUNTER(list_of(&l, 1)->scratch++, "elements of scratch");
    COUNTER(list_of(&l, 1)->n_signal++, "signals");
    COUNTER(list_of(&l, 1)->window++, "a window of 1 elements, of which 0 are used");
    COUNTER(list_of(&l, 1)->rank = 2, "has the list of rank 2");
    COUNTER(steps_of(&l, 1)[0].round = 1, "comes after round 1");
    COUNTER(steps_of(&l, 1)[9].round = 7, "in a list of 6 rounds");
#undef COUNTER
}

/* ---- memory of others: 2 ranks. Rank 0 has:
 *     0  round 0: signal
 *     1  round 1: await signal 1 of rank 1
 *     2  round 1: fold data[0..2) = data[0..2) + rank 1's data[0..2)
 *     3  round 1: signal
 *     4  round 2: await signal 2 of rank 1
 *     5  round 2: copy data[2..4) = rank 1's data[2..4)
 *     6  round 2: signal
 *     7  round 3: await signal 3 of rank 1 ---- */
static lists shared(void)
{
    static const int nodes[2];
    lists l = {.arena = ll_arena_new(), .size = 2};
    l.spec = (ll_coll_spec){
        .coll = LL_COLL_ALLREDUCE, .size = 2, .count = 4, .shared = true, .node = nodes};
    l.ranks = LL_NEW_ARRAY(l.arena, const ll_sched *, 2);
    for (int r = 0; r < 2; r++) {
        ll_steps e = {.arena = l.arena, .rank = r, .size = 2, .in = {.size = 2, .me = r}};
        const ll_ref sum[] = {{r, LL_DATA, 2 * r}, {1 - r, LL_DATA, 2 * r}};
        ll_emit_signal(&e);
        ll_emit_next(&e);
        ll_emit_await(&e, 1 - r, 1);
        ll_emit_fold_all(&e, LL_DATA, 2 * r, sum, 2, 2);
        ll_emit_signal(&e);
        ll_emit_next(&e);
        ll_emit_await(&e, 1 - r, 2);
        ll_emit_copy(&e, LL_DATA, 2 - 2 * r, (ll_ref){1 - r, LL_DATA, 2 - 2 * r}, 2);
        ll_emit_signal(&e);
        ll_emit_next(&e);
        ll_emit_await(&e, 1 - r, 3);
        l.ranks[r] = ll_emit_finish(&e);
    }
    return l;
}

static void signals(void **state)
{
    (void)state;
    static const int apart[] = {0, 1};
    lists right = shared();
    accepted(&right, 5);
    assert_true(ll_sched_was_canonical());
    ll_arena_free(right.arena);
    MISTAKE(shared, 1, drop(&l, 0, 1), "while rank 1 may write it: no signal");
    MISTAKE(shared, 4, drop(&l, 0, 4),
            "rank 0, round 2: copy data[2..4) = rank 1's data[2..4): "
            "reads rank 1's data[2] while rank 1 may write it: no signal");
    MISTAKE(shared, 7, drop(&l, 0, 7), "reads rank 0's data[0] while rank 0, already done, may");
    MISTAKE(shared, 7, drop(&l, 1, 7),
            "rank 1: ends, giving back data[2] while rank 0 may read it");
    MISTAKE(shared, 4, step->value = 1, "while rank 1 may write it: no signal");
    MISTAKE(shared, 4, step->value = 4, "awaits signal 4 of rank 1, which raises 3");
    MISTAKE(shared, 4, step->value = 0, "awaits signal 0 of rank 1, which raises 3");
    MISTAKE(shared, 1, step->value = 3, "deadlock");
    MISTAKE(shared, 6, drop(&l, 0, 6), "raises 2"); /* fewer signals */
    MISTAKE(shared, 3, step->round = 2, "a second signal in one round");
    MISTAKE(shared, 0, swap_rounds(&l, 0, 1), "while rank 0");
    MISTAKE(shared, 0, l.spec.shared = false, "reads memory of rank 1 that is not shared");
    MISTAKE(shared, 0, l.spec.node = apart, "of another node");
    MISTAKE(shared, 2, from_of(step)[1].buf = LL_SCRATCH, "that is not shared");
    MISTAKE(shared, 2, step->dst.rank = 1, "must be the rank's own memory, not rank 1's");
}

/* A signal in the round of a receive does not tell what it brings: rank 0 sends, rank 1 signals too
 * early that others may read what it got. And a signal tells the folds before it. */
static lists relay(bool early)
{
    lists l = {.arena = ll_arena_new(), .size = 3};
    l.spec = (ll_coll_spec){.coll = LL_COLL_BROADCAST, .size = 3, .count = 2, .shared = true};
    l.ranks = LL_NEW_ARRAY(l.arena, const ll_sched *, 3);
    for (int r = 0; r < 3; r++) {
        ll_steps e = {.arena = l.arena, .rank = r, .size = 3, .in = {.size = 3, .me = r}};
        if (r == 0) ll_emit_send(&e, 1, LL_DATA, 0, 2);
        if (r == 1) ll_emit_recv(&e, 0, LL_DATA, 0, 2);
        if (r == 1 && !early) ll_emit_next(&e);
        if (r == 2) ll_emit_await(&e, 1, 1);
        if (r == 2) ll_emit_copy(&e, LL_DATA, 0, (ll_ref){1, LL_DATA, 0}, 2);
        ll_emit_signal(&e);
        ll_emit_next(&e);
        for (int q = 0; q < 3; q++) /* until it has been read, and everyone was here */
            if (q != r) ll_emit_await(&e, q, 1);
        l.ranks[r] = ll_emit_finish(&e);
    }
    return l;
}

static void early_signal(void **state)
{
    (void)state;
    lists l = relay(false);
    accepted(&l, 4);
    ll_arena_free(l.arena), l = relay(true);
    refused(&l, 1,
            "rank 2, round 0: copy data[0..2) = rank 1's data[0..2): reads rank 1's data[0] while "
            "rank 1 may write it: no signal or message orders them");
    ll_arena_free(l.arena);
}

/* ---- again and again: nobody tells rank 0 that its window was read. In the third run, which has
 * the half of the first, that is a race. ---- */
static void repeated(void **state)
{
    (void)state;
    lists l = {.arena = ll_arena_new(), .size = 2};
    l.spec = (ll_coll_spec){.coll = LL_COLL_BROADCAST, .size = 2, .count = 3};
    l.ranks = LL_NEW_ARRAY(l.arena, const ll_sched *, 2);
    for (int r = 0; r < 2; r++) {
        ll_steps e = {.arena = l.arena, .rank = r, .size = 2, .in = {.size = 2, .me = r}};
        if (r) ll_emit_await(&e, 0, 1);
        if (!r) ll_emit_copy(&e, LL_WINDOW, 0, (ll_ref){0, LL_DATA, 0}, 3);
        if (r) ll_emit_copy(&e, LL_DATA, 0, (ll_ref){0, LL_WINDOW, 0}, 3);
        ll_emit_signal(&e);
        l.ranks[r] = ll_emit_finish(&e);
    }
    refused(&l, 1, "rank 0 ends without having heard from rank 1");
    refused(&l, 2, "rank 0 ends without having heard from rank 1");
    refused(&l, 3,
            "rank 1 in run 0, round 0: copy data[0..3) = rank 0's window[0..3): reads rank 0's "
            "window[0] while rank 0, already done, may write it: no signal or message orders them");
    ll_arena_free(l.arena);
}

static void barrier(void **state)
{
    (void)state;
    lists l = {.arena = ll_arena_new(), .size = 3};
    l.spec = (ll_coll_spec){.coll = LL_COLL_BARRIER, .size = 3};
    l.ranks = LL_NEW_ARRAY(l.arena, const ll_sched *, 3);
    for (int rounds = 1; rounds <= 2; rounds++) {
        for (int r = 0; r < 3; r++) {
            ll_steps e = {.arena = l.arena, .rank = r, .size = 3, .in = {.size = 3, .me = r}};
            for (int k = 0; k < rounds; k++) {
                ll_emit_send(&e, (r + 1) % 3, LL_SCRATCH, 0, 1);
                ll_emit_recv(&e, (r + 2) % 3, LL_SCRATCH, 1, 1);
                ll_emit_next(&e);
            }
            l.ranks[r] = ll_emit_finish(&e);
        }
        if (rounds == 1)
            refused(&l, 1, "rank 2: leaves the barrier before rank 0 has entered");
        else
            accepted(&l, 4);
    }
    ll_arena_free(l.arena);
}

/* ---- the library's own: all ranks, or none; in what order it sums is not known ---- */
static void library(void **state)
{
    (void)state;
    lists l = {.arena = ll_arena_new(), .size = 3};
    l.spec = (ll_coll_spec){.coll = LL_COLL_ALLREDUCE, .size = 3, .count = 2};
    l.ranks = LL_NEW_ARRAY(l.arena, const ll_sched *, 3);
    for (int r = 0; r < 3; r++) {
        ll_steps e = {.arena = l.arena, .rank = r, .size = 3, .in = {.size = 3, .me = r}};
        ll_emit_library(&e);
        l.ranks[r] = ll_emit_finish(&e);
    }
    accepted(&l, 2);
    assert_false(ll_sched_was_canonical());
    drop(&l, 1, 0);
    refused(&l, 1, "rank 1: in the end data[0] has nothing of rank 0");
    ll_arena_free(l.arena);
}

/* ---- what a halo exchange and all-reduces over subsets must leave alone ---- */
static void leave_alone(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        lists l = {.arena = ll_arena_new(), .size = 2};
        static const int64_t ends[] = {0, 2, 4}, row[] = {0, 1}, no[] = {0, 0};
        static const ll_halo_spec grid = {1, 2, row, ends, no, no, no, no, 1, 1};
        static const int one[] = {0};
        static const ll_subset first = {one, 1, 0, 2};
        if (k) l.halo = &grid;
        l.subsets = &first, l.n_subset = 1, l.spec.count = 2;
        l.ranks = LL_NEW_ARRAY(l.arena, const ll_sched *, 2);
        for (int r = 0; r < 2; r++) {
            ll_steps e = {.arena = l.arena, .rank = r, .size = 2, .in = {.size = 2, .me = r}};
            l.ranks[r] = ll_emit_finish(&e);
        }
        accepted(&l, 1);
        for (int r = 0; r < 2; r++) {
            ll_steps e = {.arena = l.arena, .rank = r, .size = 2, .in = {.size = 2, .me = r}};
            if (r == 0) ll_emit_send(&e, 1, LL_DATA, 0, 1);
            if (r == 1) ll_emit_recv(&e, 0, LL_DATA, 1, 1);
            l.ranks[r] = ll_emit_finish(&e);
        }
        refused(&l, 1, "rank 1: in the end data[1] has nothing of rank 1");
        ll_arena_free(l.arena);
    }
}

/* ---- every step of every algorithm ---- */
typedef struct everywhere { /* a mistake that can be made in many places */
    const char *name;
    bool (*make)(lists *l, int rank, int i); /* false: not in this step */
    bool may_pass;                           /* now and then */
    int n_made, n_accepted;
} everywhere;

static bool leave_out(lists *l, int rank, int i)
{
    ll_step_kind k = steps_of(l, rank)[i].kind;
    if (k != LL_STEP_SEND && k != LL_STEP_RECV && k != LL_STEP_FOLD) return false;
    drop(l, rank, i);
    return true;
}

static bool no_await(lists *l, int rank, int i)
{
    if (steps_of(l, rank)[i].kind != LL_STEP_AWAIT) return false;
    drop(l, rank, i);
    return true;
}

static bool shift_from(lists *l, int rank, int i)
{
    ll_step *s = &steps_of(l, rank)[i];
    if (!s->n_from || l->spec.coll == LL_COLL_BARRIER) return false;
    s->from = (const ll_ref *)ll_arena_copy(l->arena, s->from, sizeof(ll_ref) * (size_t)s->n_from);
    from_of(s)[s->n_from - 1].at++;
    return true;
}

static bool shift_to(lists *l, int rank, int i)
{
    ll_step *s = &steps_of(l, rank)[i];
    if (s->kind != LL_STEP_RECV && s->kind != LL_STEP_FOLD) return false;
    s->dst.at++;
    return l->spec.coll != LL_COLL_BARRIER;
}

static bool change_peer(lists *l, int rank, int i)
{
    ll_step *s = &steps_of(l, rank)[i];
    if (s->kind != LL_STEP_SEND && s->kind != LL_STEP_RECV) return false;
    do s->peer = (s->peer + 1) % l->size;
    while (s->peer == rank);
    return l->size > 2;
}

static bool fold_twice(lists *l, int rank, int i)
{
    ll_step *s = &steps_of(l, rank)[i];
    if (s->kind != LL_STEP_FOLD || s->n_from < 2) return false;
    ll_ref *from = LL_NEW_ARRAY(l->arena, ll_ref, s->n_from + 1);
    memcpy(from, s->from, sizeof *from * (size_t)s->n_from);
    from[s->n_from] = from[0];
    s->from = from;
    s->n_from++;
    return true;
}

static bool await_less(lists *l, int rank, int i)
{
    ll_step *s = &steps_of(l, rank)[i];
    if (s->kind != LL_STEP_AWAIT) return false;
    s->value--;
    return true;
}

/* An await may say what another has said, or protect nothing where a piece is empty. */
static everywhere mistakes[] = {{.name = "left out", .make = leave_out},
                                {.name = "from one further", .make = shift_from},
                                {.name = "to one further", .make = shift_to},
                                {.name = "another peer", .make = change_peer},
                                {.name = "fold twice", .make = fold_twice},
                                {.name = "no await", .make = no_await, .may_pass = true},
                                {.name = "await less", .make = await_less, .may_pass = true}};

static void make_each(lists *l, const char *name, everywhere *m)
{
    accepted(l, 1);
    for (int r = 0; r < l->size; r++) {
        const ll_sched whole = *l->ranks[r];
        for (int i = 0; i < whole.n_step; i++) {
            list_of(l, r)->steps = (const ll_step *)ll_arena_copy(
                l->arena, whole.steps, sizeof(ll_step) * (size_t)whole.n_step);
            bool made = m->make(l, r, i);
            recount(l, r);
            m->n_made += made;
            if (made && verify(l, 1) == LL_OK && m->n_accepted++ < 5 && !m->may_pass)
                print_error("%s by %s, %d ranks, root %d, rank %d: accepted, though %s: %s\n",
                            ll_coll_name(l->spec.coll), name, l->size, l->spec.root, r, m->name,
                            ll_step_text(l->arena, &whole.steps[i], r));
            *list_of(l, r) = whole;
        }
    }
    ll_arena_free(l->arena);
}

/* A grid of 2 x 3 with margins of 0 to 3, corners, and one that reaches over a whole neighbour. */
static lists halo(void)
{
    static const int64_t y_starts[] = {0, 3, 5}, x_starts[] = {0, 4, 5, 7};
    static const int64_t up[] = {0, 2}, down[] = {1, 0}, left[] = {0, 1, 2}, right[] = {2, 1, 0};
    static const ll_halo_spec spec = {2, 3, y_starts, x_starts, up, down, left, right, 2, 2};
    lists l = {.arena = ll_arena_new(), .size = 6, .halo = &spec, .spec.coll = LL_COLL_HALO};
    l.ranks = LL_NEW_ARRAY(l.arena, const ll_sched *, l.size);
    for (int r = 0; r < l.size; r++)
        assert_int_equal(ll_sched_halo(l.arena, &spec, r, &l.ranks[r]), LL_OK);
    return l;
}

static lists subsets(void)
{
    static const int a[] = {0, 1, 3}, b[] = {1, 2, 3, 4}, c[] = {2};
    static const ll_subset some[] = {{a, 3, 0, 5}, {b, 4, 6, 9}, {c, 1, 0, 6}};
    lists l = {.arena = ll_arena_new(), .size = 5, .subsets = some, .n_subset = 3};
    l.spec.count = 16;
    l.ranks = LL_NEW_ARRAY(l.arena, const ll_sched *, l.size);
    for (int r = 0; r < l.size; r++)
        assert_int_equal(ll_sched_subsets(l.arena, ll_algo_find(LL_COLL_ALLREDUCE, "ring"), some, 3,
                                          l.size, 0, r, &l.ranks[r]),
                         LL_OK);
    return l;
}

/* So nothing in any list is there for nothing, too. */
static void everywhere_at_once(void **state)
{
    (void)state;
    static const int nodes[] = {0, 0, 0, 1, 1, 1, 2};
    const char *why;
    int n_accepted = 0;
    for (size_t k = 0; k < sizeof mistakes / sizeof *mistakes; k++) {
        everywhere *m = &mistakes[k];
        for (const ll_algo *const *a = ll_algos(); *a; a++)
            for (int size = 2; size <= 7; size++) {
                ll_coll_spec s = {.coll = (*a)->coll,
                                  .size = size,
                                  .root = size / 2,
                                  .count = 2 * size + 1,
                                  .segment = (*a)->segmented && size % 2 ? 2 : 0,
                                  .shared = (*a)->shared,
                                  .node = (*a)->window ? NULL : nodes};
                lists l;
                if (!ll_algo_can(*a, &s, &why)) continue;
                build(&l, *a, s);
                make_each(&l, (*a)->name, m);
            }
        lists h = halo(), s = subsets();
        make_each(&h, "messages", m);
        make_each(&s, "ring in subsets", m);
        print_message("%s: %d made, %d accepted\n", m->name, m->n_made, m->n_accepted);
        if (!m->may_pass) n_accepted += m->n_accepted;
        assert_true(m->n_made > 100 && m->n_accepted < m->n_made / 2);
    }
    assert_int_equal(n_accepted, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages),          cmocka_unit_test(folds),
        cmocka_unit_test(conflicts),         cmocka_unit_test(counters),
        cmocka_unit_test(signals),           cmocka_unit_test(early_signal),
        cmocka_unit_test(repeated),          cmocka_unit_test(barrier),
        cmocka_unit_test(library),           cmocka_unit_test(leave_alone),
        cmocka_unit_test(everywhere_at_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
