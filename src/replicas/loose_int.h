/* loose_int.h: what replicas that part hold, for the files that exchange and save it. */
#pragma once
#include "base/thread.h"
#include "comm/codec.h"
#include "replicas/loose.h"

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
typedef struct ll_flight {
    bool under_way;
    ll_fragment of;
    int64_t step; /* after which it began */
    pthread_t thread;
    bool done; /* atomic: what follows is there */
    ll_err rc;
    char text[1024];
    int64_t bytes;
    double far; /* squares of the distance from the mean */
} ll_flight;

struct ll_loose {
    const ll_run *run;
    const ll_consistency *how;
    ll_comm *world, *mine, *peers;
    int index, n;
    ll_session *s;
    ll_arena *arena;
    ll_loose_item *items;
    int n_item, n_param;
    int64_t params, shared, all; /* elements: of parameters; and statistics; and the rest */
    float *own, *mean;           /* [all] */
    float *anchor, *velocity;    /* [params] or NULL */
    float *due; /* [shared] or NULL: what an exchange that has come, or comes, changes */
    ll_flight flight;
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
};

/* Replicas that began apart, and stay so. */
static inline bool ll_loose_ensemble(const ll_loose *x)
{
    return !strcmp(x->how->seeds, "own");
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
