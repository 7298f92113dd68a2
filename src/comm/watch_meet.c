/* watch_meet.c: how the ranks find rank 0's socket, by messages of the transport: three notes,
 * from rank 0 to each (where), from each to rank 0 (how it went, and which process it is), and from
 * rank 0 to each (how it went for all, and who is next to it). A rank that fails early still takes
 * part, or the others would wait for it. */
#include "comm/watch_int.h"

#include <sched.h>
#include <stdio.h>

enum { TAG = 0 };          /* nothing else is under way while a communicator opens */
#define CONNECT_SECONDS 3  /* for each address of rank 0 */
#define MESSAGE_SECONDS 30 /* for each note, at least: processes start apart */

typedef struct note {
    ll_err code;
    char text[400];
    ll_watch_address at;
    ll_watch_near near; /* to rank 0: who sends it; from there: who is next to who receives it */
} note;

/* One note to or from each of some ranks. */
typedef struct round {
    ll_arena *arena;
    ll_transport *t;
    note *notes; /* [size] */
    ll_message *messages;
    bool *done;
    double until;
} round;

static void write_note(note *n, ll_err code)
{
    n->code = code;
    snprintf(n->text, sizeof n->text, "%s", code == LL_OK ? "" : ll_error_message());
}

static ll_err raise_note(const note *n)
{
    if (n->code == LL_OK) return LL_OK;
    FAIL(n->code, "%s", n->text);
}

static ll_err start_one(round *b, int peer, bool sends)
{
    b->done[peer] = false;
    b->messages[peer] = (ll_message){0};
    return b->t->ops->post(b->t, sends, &b->notes[peer], sizeof(note), peer, TAG,
                           &b->messages[peer]);
}

/* Messages with the ranks first..last, all of them done or the time is up. */
static ll_err finish(round *b, int first, int last)
{
    int left = last - first + 1, late = -1;
    for (int64_t turns = 0; left > 0; turns++) {
        for (int r = first; r <= last; r++) {
            if (b->done[r]) continue;
            TRY(b->t->ops->test(b->t, &b->messages[r], &b->done[r]));
            left -= b->done[r];
            if (!b->done[r]) late = r;
        }
        CHECK(left == 0 || ll_now() < b->until, LL_E_COMM,
              "no answer from rank %d while the ranks begin to watch each other",
              b->t->world[late]);
        if (turns > 1000)
            nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
        else if (left)
            sched_yield();
    }
    return LL_OK;
}

static ll_err pass(round *b, int first, int last, bool sends)
{
    for (int r = first; r <= last; r++) TRY(start_one(b, r, sends));
    return finish(b, first, last);
}

static int next_on_node(const ll_transport *t, int rank)
{
    int next = (rank + 1) % t->size;
    while (t->node[next] != t->node[rank]) next = (next + 1) % t->size;
    return next;
}

static ll_err meet_as_hub(round *b, ll_err mine, const ll_watch_address *at, ll_watch_near *near)
{
    ll_watch_near *all = LL_NEW_ARRAY(b->arena, ll_watch_near, b->t->size);
    int last = b->t->size - 1;
    note verdict = {.at = *at};
    write_note(&verdict, mine);
    for (int r = 1; r <= last; r++) b->notes[r] = verdict;
    TRY(pass(b, 1, last, true));
    if (mine != LL_OK) return mine;
    TRY(pass(b, 1, last, false));
    all[0] = *near;
    for (int r = last; r >= 1; r--) {
        all[r] = b->notes[r].near;
        if (b->notes[r].code != LL_OK) verdict = b->notes[r];
    }
    for (int r = 1; r <= last; r++) {
        b->notes[r] = verdict;
        b->notes[r].near = all[next_on_node(b->t, r)];
    }
    *near = all[next_on_node(b->t, 0)];
    TRY(pass(b, 1, last, true));
    return raise_note(&verdict);
}

static ll_err meet_as_rank(round *b, ll_err mine, ll_watch_address *at, ll_watch_link *link,
                           ll_watch_near *near)
{
    note *n = &b->notes[0], answer = {.near = *near};
    write_note(&answer, mine);
    TRY(pass(b, 0, 0, false));
    TRY(raise_note(n)); /* rank 0 could not even listen */
    *at = n->at;
    if (mine == LL_OK) write_note(&answer, ll_watch_connect(at, b->t->rank, CONNECT_SECONDS, link));
    *n = answer;
    TRY(pass(b, 0, 0, true));
    TRY(pass(b, 0, 0, false));
    *near = n->near;
    return raise_note(n);
}

ll_err ll_watch_meet(ll_transport *t, ll_err mine, double timeout_s, ll_watch_address *at,
                     ll_watch_link *link, ll_watch_near *near)
{
    round b = {.arena = ll_arena_new(), .t = t};
    *near = (ll_watch_near){t->world[t->rank], ll_process_self()};
    b.until = ll_now() + (timeout_s > MESSAGE_SECONDS ? timeout_s : MESSAGE_SECONDS);
    LL_ARRAYS(b.arena, t->size, b.notes, b.messages, b.done);
    ll_err rc =
        t->rank == 0 ? meet_as_hub(&b, mine, at, near) : meet_as_rank(&b, mine, at, link, near);
    bool under_way = false;
    for (int r = 0; r < t->size; r++) under_way |= b.messages[r].handle && !b.done[r];
    if (!under_way) ll_arena_free(b.arena); /* else the transport may still write there */
    return rc;
}
