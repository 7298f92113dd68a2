/* consistency.h: how loosely the replicas of a run hold together: who exchanges what, and when.
 *
 * parallel.replicas groups of ranks each run the mesh on their own share of every batch. One
 * description says what passes between them; presets are rows of a table of it, and a run file may
 * set each field by itself. At its one end is synchronous training, at the other an ensemble.
 *
 *     gradient     the mean before every update: the mesh with axis data so many times larger; at a
 *                  server, of those that have come (server.h)
 *     parameter    after every H updates the mean over some of the replicas
 *     difference   likewise of what all have changed since, coded; the mean is a gradient for an
 *                  outer optimizer, whose result all go on from (or are pulled to) */
#pragma once
#include "base/err.h"

/* What each is, in words of the run file; before a preset fills it in, it may be unsaid. */
#define LL_EXCHANGES(X) X(gradient) X(parameter) X(difference)
#define LL_EXCHANGE_OF(name) LL_EXCHANGE_##name,
typedef enum ll_exchange_kind { LL_EXCHANGE_unsaid, LL_EXCHANGES(LL_EXCHANGE_OF) } ll_exchange_kind;
#define LL_PEERS(X) X(all) X(groups) X(ring) X(torus) X(exponential) X(server) X(pairs)
#define LL_PEERS_OF(name) LL_PEERS_##name,
typedef enum ll_peers_kind { LL_PEERS_unsaid, LL_PEERS(LL_PEERS_OF) } ll_peers_kind;
#define LL_OUTERS(X) X(sgd) X(momentum) X(nesterov)
#define LL_OUTER_OF(name) LL_OUTER_##name,
typedef enum ll_outer_kind { LL_OUTER_unsaid, LL_OUTERS(LL_OUTER_OF) } ll_outer_kind;
#define LL_SEEDS(X) X(shared) X(own)
#define LL_SEEDS_OF(name) LL_SEEDS_##name,
typedef enum ll_seeds_kind { LL_SEEDS_unsaid, LL_SEEDS(LL_SEEDS_OF) } ll_seeds_kind;
#define LL_SERVERS(X) X(sharded) X(central) X(open)
#define LL_SERVER_OF(name) LL_SERVER_##name,
typedef enum ll_server_kind { LL_SERVER_unsaid, LL_SERVERS(LL_SERVER_OF) } ll_server_kind;

typedef struct ll_consistency {
    const char *name; /* of the preset */
    ll_exchange_kind what;
    int64_t every;   /* steps between exchanges; 0: none at all */
    int64_t warm_up; /* steps of synchronous training first */
    ll_peers_kind peers;
    int64_t group;     /* replicas of one of the groups */
    int64_t fragments; /* of differences: so many exchanges, each of a part, make one of all */
    const char *codec; /* of differences: none, or one of comm/codec.h */
    ll_outer_kind outer;
    double outer_lr, outer_momentum;
    double elastic; /* pull to the common parameters, of all replicas together; 0: they become the
                     * replica's */
    ll_seeds_kind seeds; /* shared: one start and one order of samples; own */
    /* Of a server, which replicas come to each in its own time (server.h), as do pairs: */
    ll_server_kind server; /* sharded over all ranks, open: likewise, with no order; or central */
    int64_t staleness;     /* a replica is no more than so many steps ahead of any (of gradients:
                            * rounds behind); -1: of no matter */
    int64_t quorum; /* gradients of the newest parameters that close a round; 0: all but one */
    int64_t delay;  /* steps beside an exchange of differences, before its result is had */
} ll_consistency;

/* Names of presets, as a choice of the run file. */
#define LL_CONSISTENCIES                                                                           \
    "sync ssp eager async hogwild local post-local diloco streaming gossip sgp ad-psgd easgd "     \
    "ensemble"

/* *out: what is said (not unsaid, "" or negative), and what its preset has of the rest, between so
 * many replicas. Fails where settings exclude each other. */
ll_err ll_consistency_make(const ll_consistency *said, int64_t replicas, ll_consistency *out);
const char *ll_exchange_name(ll_exchange_kind what);
/* Limits that are synchronous training in exact arithmetic are done as such, to the bit: means of
 * parameters after every update by a rule that is linear in the gradient, rounds of all. */
void ll_consistency_reduce(ll_consistency *c, int64_t replicas, bool linear);
enum { LL_TORUS = 4 };
/* On a torus as nearly square as the number of replicas has it, whom one sends to and hears from;
 * -1: nobody, where two would be the same. */
void ll_torus_neighbours(int replicas, int index, int to[LL_TORUS], int from[LL_TORUS]);
/* Do they give gradients to a server, and all make its updates? Then they are alike, but late. */
static inline bool ll_consistency_rounds(const ll_consistency *c)
{
    return c->what == LL_EXCHANGE_gradient && c->peers == LL_PEERS_server;
}
/* Are replicas ever apart? */
static inline bool ll_consistency_loose(const ll_consistency *c)
{
    return c->what != LL_EXCHANGE_gradient || ll_consistency_rounds(c);
}
/* Have they a server, and take shares of batches as they come to them? */
static inline bool ll_consistency_served(const ll_consistency *c)
{
    return ll_consistency_loose(c) && (c->peers == LL_PEERS_server || c->peers == LL_PEERS_pairs);
}
