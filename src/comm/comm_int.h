/* comm_int.h: what the files of comm/ know of a communicator. From the bottom up: steps.c
 * runs the steps of requests, engine.c moves requests, choose.c and plan.c find the schedule for a
 * call, start.c makes a request of it, comm.c opens and closes.
 *
 * Communicators made of one another by splitting are a family and share an engine: all requests
 * under way, the thread that moves them, and the failure that ends everything. A wait on one
 * request moves every request of the process, of other families too: ranks may wait for them in
 * different orders. */
#pragma once
#include "comm/comm.h"
#include "comm/watch.h"

#include <pthread.h>

/* ---- a call's schedule, kept ---- */
/* Two calls with equal keys have one schedule. No padding: keys are compared as bytes. */
typedef struct plan_key {
    const ll_algo *algo; /* as asked for; NULL: a choice */
    int64_t table;       /* the communicator's how manieth; 0 where none is asked */
    int64_t count, segment;
    uint64_t cuts; /* a hash of starts and matrix; 0 where there are none */
    int32_t root;
    uint8_t coll, elem_bytes, memory, canonical; /* memory: shared, or far */
} plan_key;

typedef struct ll_plan {
    plan_key key;
    ll_coll_spec spec; /* as the schedule was built from, with copies of its arrays */
    const ll_algo *algo;
    const ll_sched *sched;
    struct ll_plan *next; /* of those whose keys have the same hash */
} ll_plan;

typedef struct ll_plans {
    ll_arena *arena;
    ll_plan **lists; /* by hash */
    int n_plan;
    int in_use; /* requests under way that run one of them */
} ll_plans;

/* The plan of a call whose spec is complete. */
ll_err ll_plan_find(ll_comm *c, const ll_coll_call *call, ll_plan **out);
void ll_plans_free(ll_plans *p);

/* ---- shared memory ---- */
typedef struct ll_shared {
    struct ll_shared *next;
    ll_shm shm;
    bool released;    /* on this rank; it goes when it is on all */
    char *by_world[]; /* [ranks of the first communicator]: each one's part, NULL on other nodes */
} ll_shared;

/* ---- requests ---- */
struct ll_request {
    ll_comm *c;
    ll_request *next, *prev;
    const ll_sched *sched;
    bool planned;       /* sched is one of c->plans */
    int at, end;        /* steps of the current round, from when its awaits began */
    int await;          /* the next step to look for an AWAIT in */
    bool posted;        /* what comes after the awaits is done, messages are under way */
    bool done;          /* read and written atomically */
    int64_t turn;       /* among the window collectives of c; -1: is none */
    uint64_t base;      /* signals of each rank before this collective */
    uint64_t signalled; /* mine in it */
    char *own[LL_N_BUF];
    size_t half_at;          /* of the half of the window in use, in a part */
    const ll_shared *shared; /* where DATA lies, for reading that of others; NULL: not shared */
    size_t shared_at;
    size_t elem_bytes;
    const ll_memory *memory; /* of own's; NULL: this process's */
    ll_dtype dtype;
    ll_reduce op;
    ll_library_call library;
    int scratch; /* index of the block of the engine's; -1: none */
    ll_message *messages;
    int n_message, capacity; /* under way, room */
    size_t received;         /* bytes */
    int tag;
    int64_t number;
    const char *what, *site;
    double began; /* where it is traced */
    const char *algorithm;
    size_t bytes; /* of DATA */
    struct {
        ll_sched list;
        ll_step steps[2];
        ll_ref from;
    } exchange; /* the schedule of an exchange */
};

/* ---- the engine ---- */
typedef struct ll_kept { /* scratch memory */
    void *data;
    size_t bytes;
    bool used;
    const ll_comm *of; /* for a patient one alone; NULL: for all others */
} ll_kept;

typedef struct ll_engine {
    struct ll_engine *next;   /* of the process's */
    ll_request *first, *last; /* under way, oldest first */
    ll_request *spare;
    ll_kept *scratch;
    int n_scratch;
    const void **sources; /* of the fold in hand */
    int n_source;
    ll_watch *watch;
    uint64_t moved; /* rounds and messages that ended */
    ll_comm_usage used;
    ll_trace *trace; /* NULL: nothing is traced */
    int spin;        /* polls without success before the core is given to others */
    bool crowded;    /* more ranks are here than cores */
    bool failed;     /* read and written atomically; then nothing is under way any more */
    bool unsettled;  /* but messages that could not be called back */
    ll_err failure;
    char failure_text[1024];
    /* Whoever looks at any of this holds the lock, unless there is one rank only. */
    bool alone, threaded, stop;
    pthread_t thread;
    pthread_cond_t wake;
    int n_waiting;        /* callers that poll: the thread leaves it to them */
    ll_transport *served; /* of a store that others come to: the thread never rests; or NULL */
} ll_engine;

struct ll_comm {
    ll_transport *t;
    ll_comm *parent;
    ll_engine *engine;
    ll_comm_opts opts;
    ll_arena *arena;
    ll_plans plans;
    ll_tuned_table *table;
    int64_t n_table; /* there were so far */
    ll_shared *shared;
    /* The window: a cache line with the rank's signal counter, then two halves. */
    ll_shm window;
    char **parts; /* [size]: each rank's, NULL on other nodes */
    size_t half_bytes;
    int64_t n_window, turn; /* window collectives started, and finished */
    uint64_t signals;       /* of each rank, in those finished */
    int64_t n_started;      /* the number of the next collective */
    int64_t number_now;     /* of ll_comm_next_number, and whose it is */
    const char *what_now, *site_now;
    const char *peers; /* its ranks, for traces */
    bool patient;      /* see ll_comm_patient */
};

enum { LL_LINE_BYTES = 64 };

/* ---- engine.c ---- */
ll_err ll_engine_open(ll_transport *t, const ll_comm_opts *opts, ll_engine **out);
void ll_engine_close(ll_engine *e);
/* Of the process; NULL: that of any engine of several ranks. */
const ll_engine *ll_engine_lock(const ll_engine *e);
void ll_engine_unlock(const ll_engine *e);
void ll_engine_let_go(const ll_engine **e);
/* Locked up to the end of the block. */
#define LL_LOCKED(e)                                                                               \
    const ll_engine *locked __attribute__((cleanup(ll_engine_let_go), unused)) = ll_engine_lock(e)
void ll_engine_wake(ll_engine *e); /* the thread, where there is work for it */
/* Failed, once and for all, with the error of the calling thread; returns rc. Requests under way
 * are called back, and forgotten: their communicators may be closed now. Under the lock. */
ll_err ll_engine_fail(ll_engine *e, ll_err rc);
ll_err ll_engine_check(ll_engine *e);
void ll_engines_drain(void); /* all of the process; their callers are told */
ll_err ll_scratch_take(ll_engine *e, const ll_comm *of, size_t bytes, int *out);
ll_err ll_request_take(ll_engine *e, ll_request **out);
void ll_request_give(ll_engine *e, ll_request *r);
/* Done, and back with the spare ones; received may be NULL. */
ll_err ll_request_finish(ll_request *r, size_t *received);

/* The same around a call that is counted as time in collectives. */
typedef struct ll_entered {
    ll_engine *e;
    double when;
} ll_entered;
ll_entered ll_engine_enter(ll_engine *e);
void ll_engine_leave(const ll_entered *x);
#define LL_TIMED(e)                                                                                \
    ll_entered entered __attribute__((cleanup(ll_engine_leave), unused)) = ll_engine_enter(e)

/* ---- steps.c ---- */
/* As far as it goes without waiting. */
ll_err ll_request_advance(ll_request *r);
