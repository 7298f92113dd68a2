/* loose.h: replicas of a run that part and meet (consistency.h): their exchanges, and their
 * state in checkpoints. Ranks with the same place in each replica's mesh exchange what they have of
 * its tensors. Collective over all ranks of the run, in step.
 *
 * Parameters are exchanged as the description says. Statistics that are no optimizer's (of batch
 * norms) are averaged along with them, uncoded. The optimizer's moments stay each replica's own.
 * Where gradients are given to a server, all replicas make the same updates and have one state.
 *
 * A checkpoint's tensors are means over replicas (an ensemble's: the first one's), so that whoever
 * reads it needs to know of none. Beside them, for going on: "replica.2.NAME" what replica 2 has,
 * "replica.2.unsent.NAME" what its codec has not sent, "replica.2.due.NAME" what an exchange
 * under way will change; "replica.anchor.NAME" and "replica.velocity.NAME" of the outer optimizer,
 * which all have in common. */
#pragma once
#include "base/thread.h"
#include "comm/codec.h"
#include "replicas/server.h"
#include "run/setup.h"
#include "weights/state.h"

typedef struct ll_loose_count {
    int64_t exchanges, bytes; /* that this rank had to send for them */
    double distance; /* of a replica from the mean of those it exchanged with, root mean square over
                      * replicas, at the last exchange */
    int64_t stale[LL_STALENESS]; /* of a server: see server.h */
} ll_loose_count;

typedef struct ll_loose_item { /* a tensor that this rank has, or a part of one */
    const char *name;
    int kept; /* of the session */
    int64_t at, n;
    bool spare; /* another rank of the replica writes it */
    ll_codec *codec;
} ll_loose_item;

typedef struct ll_fragment { /* tensors that are exchanged together, and their elements */
    int number, first, end;
    int64_t from, to;
} ll_fragment;

/* An exchange that is on its way, beside steps: a thread has the communicator of peers. */
typedef struct ll_loose_flight {
    bool under_way;
    ll_fragment of;
    int64_t step; /* after which it began */
    pthread_t thread;
    bool done; /* atomic: what follows is there */
    ll_err rc;
    char text[1024];
    int64_t bytes;
    double far; /* squares of the distance from the mean */
} ll_loose_flight;

/* Others read of it what they want. */
typedef struct ll_loose {
    const ll_run *run;
    const ll_consistency *how;
    ll_comm *world; /* all ranks of the run */
    ll_comm *mine;  /* of this replica; NULL: one rank */
    ll_comm *peers; /* with this place in all replicas */
    int index, n;   /* of replicas */
    ll_session *s;
    ll_arena *arena;
    ll_loose_item *items;
    int n_item, n_param;
    int64_t params, shared, all; /* elements: of parameters; and statistics; and the rest */
    float *own, *mean;           /* [all] */
    float *anchor, *velocity;    /* [params] or NULL */
    float *due; /* [shared] or NULL: what an exchange that has come, or comes, changes */
    ll_loose_flight flight;
    float *room;          /* what neighbours send, [shared] each */
    int *to, *from, most; /* whom this exchange goes to and comes from; -1: nobody */
    bool feedback;        /* of codecs */
    bool served, rounds;  /* by a server; which has gradients, so many elements */
    int64_t made;
    int64_t first, steps; /* of the run, where shares begin */
    ll_server *server;
    ll_turns repeat; /* turn NULL: none */
    size_t bytes;
    ll_loose_count count;
} ll_loose;

/* Splits the ranks of c: *out has this one's replica. */
ll_err ll_loose_open(ll_comm *c, const ll_run *r, ll_loose **out);
void ll_loose_close(ll_loose *x);
/* Its session, which is opened by now. */
ll_err ll_loose_bind(ll_loose *x, ll_session *s);
size_t ll_loose_bytes(const ll_loose *x);
/* Of communication between replicas, as planned (ll_exec_comm_bytes). */
ll_err ll_loose_comm_bytes(const ll_loose *x, size_t *bytes);

/* All begin as the first does, but where seeds are their own. */
ll_err ll_loose_begin(ll_loose *x);
/* From a file; *note: what a person should know, or NULL. */
ll_err ll_loose_load(ll_loose *x, const ll_st_file *f, ll_arena *arena, const char **note);
/* After a step: is there an exchange to begin or to end (met: the latter)? With parallel.delay it
 * is under way between the two, beside steps; without, they are one. */
bool ll_loose_due(const ll_loose *x, int64_t done);
bool ll_loose_met(const ll_loose *x, int64_t done);
ll_err ll_loose_exchange(ll_loose *x, int64_t done);
int64_t ll_loose_period(const ll_loose *x); /* steps from one exchange to the next */
/* How long exchanges take, a step in the mean: some are made, and change nothing. step_s: without
 * them; *without: what is not told by that; NULL: nothing. Before the first step, in step. */
ll_err ll_loose_rehearse(ll_loose *x, double step_s, double *seconds, const char **without);
/* Waits for one that is under way; what it changes is due as before. In step, before its state is
 * read or copied. */
ll_err ll_loose_land(ll_loose *x);

/* ---- replicas of a server (server.h), which take shares of batches; none is ever due ---- */
/* The order of turns of the run in this folder will be repeated, up to the step after which it
 * ended. Local, and touches nothing. */
ll_err ll_loose_repeat(ll_loose *x, const char *run, int64_t *until);
/* Shares begin with those of a step, of a run of so many. */
ll_err ll_loose_start(ll_loose *x, int64_t step, int64_t steps);
ll_err ll_loose_ready(ll_loose *x); /* before one is made */
ll_err ll_loose_serve(ll_loose *x); /* the one in hand is made */
/* All come to a meeting; and are there: then they have the same parameters. */
ll_err ll_loose_arrive(ll_loose *x);
ll_err ll_loose_meet(ll_loose *x);

ll_loose_count ll_loose_counted(const ll_loose *x);

/* Means of everything, for a checkpoint; and in: in place of what the session has, until they are
 * taken out again. Nothing is done for an ensemble, which has no mean, and for
 * replicas that are alike. */
ll_err ll_loose_average(ll_loose *x);
ll_err ll_loose_swap(ll_loose *x, bool in);
/* What a checkpoint holds, as ll_session_all_tensors; after ll_loose_average. */
ll_st_list ll_loose_tensors(const ll_loose *x, ll_arena *arena);
/* Without means: what a run goes on from, with as many replicas. */
ll_st_list ll_loose_replicas(const ll_loose *x, ll_arena *arena);
/* How many replicas' tensors of this name a file has. */
int ll_loose_in(const ll_st_file *f, const char *name);

/* ---- among its own files ---- */
/* Replicas that began apart, and stay so. */
static inline bool ll_loose_ensemble(const ll_loose *x)
{
    return x->how->seeds == LL_SEEDS_own;
}
/* Those have no mean; nor have such need of one as are alike. */
static inline bool ll_loose_no_mean(const ll_loose *x)
{
    return ll_loose_ensemble(x) || x->rounds;
}
ll_server_opts ll_loose_server_opts(const ll_loose *x); /* without what a run keeps of turns */
/* ll_loose_rehearse, where there is no server. */
ll_err ll_loose_rehearse_means(ll_loose *x, double *seconds);
/* What the session has, the first so many elements of the vector; and back. */
void ll_loose_take(const ll_loose *x, float *to, int64_t end);
ll_err ll_loose_put(const ll_loose *x, const float *from, int64_t end);
/* What is due comes, of whatever exchange. */
ll_err ll_loose_add_due(ll_loose *x);
/* What differences are counted from, where they are exchanged, is what the session has now. */
void ll_loose_set_anchor(ll_loose *x);
