/* transport.h: how bytes get from one rank to another. A transport has ranks 0..size-1; messages
 * between two ranks with one tag arrive in the order sent. No call blocks, but open, split, share
 * and close, which are collective. Calls come from one thread at a time. */
#pragma once
#include "base/arena.h"
#include "sched/sched.h"

typedef struct ll_transport ll_transport;
typedef struct ll_message {
    void *handle; /* the transport's; NULL: none under way */
    size_t bytes; /* received, when done */
} ll_message;

/* A library collective on bytes already described by a call (comm.h). */
typedef struct ll_library_call {
    const ll_coll_spec *spec;
    void *data, *out;
    ll_dtype dtype;
    ll_reduce op;
} ll_library_call;

/* Memory that the ranks of a node share: a part for each of them. */
typedef struct ll_shm {
    int n_rank;       /* on my node */
    const int *ranks; /* which they are, ascending */
    int me;           /* my index among them */
    char **part;      /* [n_rank]: where each one's part lies in my address space */
    size_t bytes;     /* of each part */
    void *handle;
} ll_shm;

typedef struct ll_transport_ops {
    const char *name; /* "self", "mpi" */
    /* Sends, or receives. A message may have 0 bytes; a receive may be given more room than is
     * sent. */
    ll_err (*post)(ll_transport *t, bool sends, void *data, size_t bytes, int peer, int tag,
                   ll_message *out);
    ll_err (*test)(ll_transport *t, ll_message *m, bool *done);
    /* Called back, as far as it can be: is it over? Else its memory may still be used. */
    bool (*cancel)(ll_transport *t, ll_message *m);
    ll_err (*library)(ll_transport *t, const ll_library_call *call, ll_message *out);
    ll_err (*split)(ll_transport *t, int color, int key, ll_transport **out);
    ll_err (*share)(ll_transport *t, size_t bytes, ll_shm *out);
    void (*unshare)(ll_transport *t, ll_shm *w);
    /* Memory of each rank that the others read and write without its doing; collective, as is
     * conceal. NULL: there is none. Between reach and leave this rank comes to that one's, alone or
     * along with others that do not want to be alone: reach waits until it can. */
    ll_err (*expose)(ll_transport *t, size_t bytes, void **window);
    void (*conceal)(ll_transport *t, void *window);
    ll_err (*reach)(ll_transport *t, void *window, int rank, bool alone);
    ll_err (*leave)(ll_transport *t, void *window, int rank);
    /* Gets where there is no `from`, puts where there is no `to`. Of both: adds f32, and tells what
     * was there, each element by itself, whoever else does so now. */
    ll_err (*move)(ll_transport *t, void *window, int rank, size_t at, const char *from, char *to,
                   size_t bytes);
    /* Lets the library serve others that come to this rank's memory. */
    void (*serve)(ll_transport *t);
    /* failed: others may be gone; let go without talking to them. */
    void (*close)(ll_transport *t, bool failed);
} ll_transport_ops;

struct ll_transport {
    const ll_transport_ops *ops;
    int rank, size;
    int max_tag;      /* tags 0..max_tag */
    const int *node;  /* [size]: which node each rank is on */
    const int *world; /* [size]: ranks in the first communicator of this process */
    bool lazy;        /* others come to a rank's memory only while it calls, on one node too */
};

ll_err ll_transport_self(ll_transport **out);
/* comm: an MPI_Comm *, duplicated; NULL: the world, which is initialised first and finalised when
 * the process ends, unless a communicator was left open or failed. A process whose others do not
 * come within the timeout (of 30 s at least) ends with a message. */
ll_err ll_transport_mpi(const void *comm, double timeout_s, ll_transport **out);
/* May calls come from more than one thread, one at a time? */
ll_err ll_transport_check_threads(void);
/* Was this process started by an MPI launcher with other ranks, or as its only one? */
bool ll_transport_launched(void);
/* Will ranks that leave now wait for each other, as MPI is finalised? */
bool ll_transport_ends_together(void);
/* Does it say of itself that it sends and receives from a GPU's memory (CUDA's)? */
bool ll_transport_takes_gpus(void);
/* "Open MPI 4.1.4", "MPICH 4.0.2". */
const char *ll_transport_library(void);
