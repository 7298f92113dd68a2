/* server.h: parameters that replicas come to each in its own time, and shares of batches that they
 * take as they come to them: a slow replica takes fewer. Stale-synchronous, asynchronous and eager
 * training (consistency.h) are this with other bounds.
 *
 * A replica has a share in hand and knows the next one. When it has made a step of the first, it
 * leaves the server what that changed, and goes on from the parameters there; with staleness s a
 * step k begins when all shares of steps up to k - s - 1 are made.
 *
 * Gradients (eager) go round by round (server_rounds.c): the mean of those in a round makes one
 * update, which every replica makes by itself, so all have the same parameters and moments after so
 * many rounds. Who has given one waits until its round closes, and makes the updates up to it:
 *
 *     fresh          of the newest parameters. q of them close a round (q less as many as are at a
 *                    meeting, one at least); so does the last of all that are under way
 *     late           of parameters s rounds old or less: is in the mean of the round that is open
 *     staleness s    no round closes while a replica has yet to make an update of s rounds before
 *
 * Pairs (AD-PSGD): each replica has parameters of its own there. It takes the mean with those of
 * another one, drawn at random, which both have from then on, and adds what its step changed.
 *
 * An open server (Hogwild) has no order of changes: whoever comes adds its own, element by element,
 * and goes on from what is there then. Replicas are of one rank each.
 *
 * Whatever a replica does at the server is a turn, and turns have numbers. Its other ranks, each
 * with a server of its own for what it holds of the tensors, take theirs in that order, so that
 * copies stay alike. The list of turns is what happened: a run that is given one repeats it to
 * the bit.
 *
 * At meetings (a logged step, a validation, a checkpoint) all have the server's parameters, or the
 * mean of everyone's. */
#pragma once
#include "comm/comm.h"
#include "run/consistency.h"

typedef struct ll_server ll_server;

typedef struct ll_server_opts {
    const ll_consistency *how;
    ll_comm *mine, *peers;  /* of this replica (NULL: one rank), and with this place in all */
    int index, n;           /* of replicas */
    int64_t params, shared; /* elements of a vector: of parameters; and statistics */
    uint64_t seed;          /* of pairs */
    uint32_t settings;      /* a sum of them: a run is repeated with its own */
    /* Of gradients: makes the update of a round, by its mean; before: gradients in earlier ones. */
    ll_err (*update)(void *arg, const float *mean, int64_t round, int64_t before);
    void *arg;
    const char *order;             /* file for this replica's turns; NULL: not kept */
    const struct ll_turns *replay; /* those to repeat, which stay; NULL: none */
} ll_server_opts;

/* What such a file has: the step before the first turn, a sum of the run's settings, the numbers of
 * a replica's turns, which grow, in a malloc'ed array, and, where the run has come to an end, the
 * step after which it did, and a sum of replica, turns and that step. */
typedef struct ll_turns {
    int64_t from, n, until;
    uint32_t settings, sum;
    bool ended;
    int64_t *turn;
} ll_turns;
/* text: of size bytes, and a zero byte. */
ll_err ll_turns_parse(const char *text, size_t size, const char *file, ll_turns *out);
/* Those of a replica, whole, of a run with these settings. */
ll_err ll_turns_read(const char *path, int index, uint32_t settings, ll_turns *out);

typedef struct ll_ticket {
    int64_t step;
    int place; /* among the shares of a step */
} ll_ticket;

/* step: that the run goes on from, 0 of one that begins. */
ll_err ll_server_open(const ll_server_opts *o, int64_t step, ll_server **out);
void ll_server_close(ll_server *x);
size_t ll_server_bytes(const ll_server_opts *o); /* of this process, once it has been there */

/* All have v, and velocity (NULL: zeros); shares begin with those of a step. Collective. Of
 * gradients, here and below but for a step, v is not looked at. */
ll_err ll_server_begin(ll_server *x, int64_t step, const float *v, const float *velocity);
const ll_ticket *ll_server_hand(const ll_server *x); /* [2]: the one in hand, and the next */
/* The share in hand is made, of which v is what came: v becomes what to go on from, but where
 * updates were made. */
ll_err ll_server_step(ll_server *x, float *v);
/* It will make the next one: v likewise, where a bound on staleness is waited for. */
ll_err ll_server_ready(ll_server *x, float *v);
/* All come (v: what came of the last share), none makes steps in between: v becomes what the
 * server has, velocity (or NULL) too. */
ll_err ll_server_arrive(ll_server *x, float *v);
ll_err ll_server_meet(ll_server *x, float *v, float *velocity);
/* The run ends after a step, where all have met: its list of turns is whole. */
void ll_server_end(ll_server *x, int64_t step);

enum { LL_STALENESS = 16 };
typedef struct ll_server_count {
    int64_t exchanges, bytes;
    int64_t stale[LL_STALENESS]; /* times that so many changes (of gradients: rounds) had come since
                                  * what it began with; the last: or more */
} ll_server_count;
ll_server_count ll_server_counted(const ll_server *x);
