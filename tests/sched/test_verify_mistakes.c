/* The verifier can fail: right schedules with one mistake each are refused, with a message that
 * says what is wrong. These are made by hand; test_verify_everywhere.c makes them everywhere. */
#include "sched/lists.h"

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

/* ---- what all-reduces over subsets must leave alone ---- */
static void leave_alone(void **state)
{
    (void)state;
    lists l = {.arena = ll_arena_new(), .size = 2};
    static const int one[] = {0};
    static const ll_subset first = {one, 1, 0, 2};
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(messages),  cmocka_unit_test(folds),
                                       cmocka_unit_test(conflicts), cmocka_unit_test(counters),
                                       cmocka_unit_test(signals),   cmocka_unit_test(early_signal),
                                       cmocka_unit_test(repeated),  cmocka_unit_test(barrier),
                                       cmocka_unit_test(library),   cmocka_unit_test(leave_alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
