/* server_int.h: what a server of replicas holds, for the files that it is made of. */
#pragma once
#include "comm/rma.h"
#include "replicas/server.h"

#include <stdio.h>

typedef struct ll_server_head {
    int64_t turns, share;  /* so far; the next one to be taken */
    int64_t applied, away; /* changes so far; replicas at a meeting */
    int64_t round, before; /* those that are closed; gradients that were given in them */
    int64_t given, fresh;  /* in the open one; of the newest parameters among them */
    int64_t unmade;        /* pieces of the mean of the last one that is closed */
    int64_t at[];          /* [n]: the step that each has in hand; what server_rounds.c counts */
} ll_server_head;

struct ll_server {
    ll_server_opts o;
    ll_rma *store;
    ll_server_head *h;
    ll_ticket hand[2];
    float *base, *now, *more; /* [shared]: what it began with; as the server has it; velocity */
    int64_t since, seen;      /* steps since the last change was left; changes applied by then */
    bool unread;              /* since it left a change */
    /* Of gradients, of which seen counts rounds: the one that its last is in, the rounds that it
     * was made after. */
    int64_t joined, made;
    FILE *order;
    uint32_t sum; /* of the replica's number, and of turns that order has */
    int64_t repeated;
    ll_server_count count;
    void *room;
};

static inline size_t bytes_of(int64_t n)
{
    return (size_t)n * sizeof(float);
}

/* Are vectors gradients? */
static inline bool in_rounds(const ll_server_opts *o)
{
    return ll_consistency_rounds(o->how);
}

static inline void count_stale(ll_server *x, int64_t stale)
{
    x->count.stale[stale < LL_STALENESS ? stale : LL_STALENESS - 1]++;
    x->count.exchanges++;
}

/* ---- server_rounds.c ---- */
/* Waits for others until it is over, as the head has it then. */
ll_err ll_server_wait(ll_server *x, bool (*over)(const ll_server *x, int64_t what), int64_t what);
enum { LL_ROUNDS_PIECE = 1 << 18 };                 /* elements that are added at a time */
size_t ll_rounds_counters(const ll_server_opts *o); /* of the head, behind at */
size_t ll_rounds_bytes(const ll_server_opts *o);
/* Of this and what other ranks of its node have, so many with it, what it reads or writes. */
size_t ll_rounds_seen(const ll_server_opts *o, int64_t near);
/* Before its turn: v is where others find it. */
ll_err ll_rounds_lay(ll_server *x, const float *v);
/* In a turn: what it laid there is in the round, which may close it; the round closes if it can, as
 * this one has gone to a meeting. Would either (gives: the first) have to wait for updates, by this
 * one of rounds before, or by others? */
void ll_rounds_give(ll_server *x);
void ll_rounds_try_close(ll_server *x);
bool ll_rounds_full(const ll_server *x, bool gives);
ll_err ll_rounds_catch_up(ll_server *x, int64_t round, bool gives);
ll_err ll_rounds_wait(ll_server *x, bool gives);
/* Behind it: the update of its round is made. */
ll_err ll_rounds_follow(ll_server *x, const float *v);
/* At a meeting: updates are made until all have come. */
ll_err ll_rounds_gather(ll_server *x);
