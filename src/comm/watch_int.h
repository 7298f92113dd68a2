/* watch_int.h: the parts of the watch: what a rank says of itself, the sockets it says it by, the
 * hub that listens to all, and the report. */
#pragma once
#include "base/now.h"
#include "base/process.h"
#include "comm/watch.h"

#include <pthread.h>
#include <stdatomic.h>

#define LL_WATCH_NAME 64 /* bytes of a name, its zero included; longer ones are cut */
enum { LL_WATCH_SLOW = 10 };
#define LL_WATCH_REPORT 960 /* of a report: it must fit into an error's message */

/* ---- what a rank says ---- */
typedef struct ll_watch_state {
    int32_t waiting; /* in a collective: what, number (-1: none), site; otherwise doing */
    int32_t slow;    /* what it is doing may take long: it is given LL_WATCH_SLOW timeouts */
    double seconds;  /* for so long, or since its messages last moved */
    int64_t number;
    char what[LL_WATCH_NAME], site[LL_WATCH_NAME], doing[LL_WATCH_NAME];
} ll_watch_state;

/* ---- the report (watch_report.c) ---- */
typedef enum ll_watch_fate {
    LL_WATCH_DEAD,   /* its connection ended without a goodbye */
    LL_WATCH_SILENT, /* nothing was heard of it for row.silent_s */
    LL_WATCH_LEFT,   /* said goodbye */
    LL_WATCH_HERE,
} ll_watch_fate;

typedef struct ll_watch_row {
    int rank;
    ll_watch_fate fate;
    double silent_s;
    ll_watch_state state; /* the last that was heard */
} ll_watch_row;

/* One line of less than LL_WATCH_REPORT bytes; rows by rank, ascending. Pure. */
void ll_watch_report(const ll_watch_row *rows, int n, char out[LL_WATCH_REPORT]);

/* ---- messages (watch_net.c) ---- */
typedef enum ll_watch_kind {
    LL_WATCH_HELLO,   /* rank to hub: token, rank */
    LL_WATCH_WELCOME, /* hub to rank: the token's complement */
    LL_WATCH_STATE,   /* either way */
    LL_WATCH_BYE,     /* either way */
    LL_WATCH_FAILED,  /* hub to rank: a report, rank 1: of one that is lost; rank to hub: what it
                       * fails with */
} ll_watch_kind;

/* As sent: the first `bytes` of it. Between processes of one program, so of one byte order. */
typedef struct ll_watch_msg {
    uint32_t kind, bytes;
    uint64_t token;
    int64_t rank;
    union {
        ll_watch_state state;
        char report[LL_WATCH_REPORT];
    };
} ll_watch_msg;

/* One end of a connection, which never blocks. */
typedef struct ll_watch_link {
    int fd;      /* -1: closed */
    size_t have; /* bytes of in that came */
    ll_watch_msg in;
} ll_watch_link;

/* Where the hub listens: what rank 0 tells the others. Addresses and port in network order. */
#define LL_WATCH_ADDRS 8
typedef struct ll_watch_address {
    uint64_t token;
    uint32_t n, addr[LL_WATCH_ADDRS];
    uint16_t port;
} ll_watch_address;

/* A socket that listens, on loopback alone or on every address of this host. */
ll_err ll_watch_listen(bool loopback, ll_watch_address *at, int *fd);
/* Tries each address for at most seconds; the first where the hub of this token answers. */
ll_err ll_watch_connect(const ll_watch_address *at, int rank, double seconds, ll_watch_link *out);
/* False: the connection is broken. */
bool ll_watch_send(ll_watch_link *l, ll_watch_kind kind, const ll_watch_msg *m);
/* Takes the next whole message if there is one. */
typedef enum ll_watch_got { LL_WATCH_NOTHING, LL_WATCH_MESSAGE, LL_WATCH_BROKEN } ll_watch_got;
ll_watch_got ll_watch_take(ll_watch_link *l, ll_watch_msg *out);
void ll_watch_unlink(ll_watch_link *l);

/* ---- opening (watch_meet.c) ---- */
/* The next rank on this one's node, around. */
typedef struct ll_watch_near {
    int32_t rank;
    ll_process process; /* pid 0: there is none */
} ll_watch_near;
/* Collective: rank 0 tells the others where it listens, they connect; all return the same. mine:
 * how it went on this rank so far; its failure becomes everyone's. */
ll_err ll_watch_meet(ll_transport *t, ll_err mine, double timeout_s, ll_watch_address *at,
                     ll_watch_link *link, ll_watch_near *near);

/* ---- the hub (watch_hub.c); only rank 0's thread calls these after open ---- */
/* world [size] must outlive it. */
typedef struct ll_watch_hub ll_watch_hub;
ll_err ll_watch_hub_open(int size, const int *world, bool loopback, double timeout, int wake,
                         ll_watch_address *at, ll_watch_hub **out);
void ll_watch_hub_close(ll_watch_hub *h); /* with a goodbye */
LL_OWNED(ll_watch_hub, ll_watch_hub_close);
/* Reads and answers until the time is up, or (true) the wake descriptor is written to or a rank
 * died. */
bool ll_watch_hub_serve(ll_watch_hub *h, double until);
/* Tells all ranks what this one does. */
void ll_watch_hub_beat(ll_watch_hub *h, const ll_watch_state *mine);
/* Is there something to report? report is then filled in. *print: nobody has printed it. */
bool ll_watch_hub_judge(ll_watch_hub *h, const ll_watch_state *mine, char report[LL_WATCH_REPORT],
                        bool *print);
/* lost: it is of a rank that is gone; else of one that failed for reasons of its own. */
void ll_watch_hub_tell(ll_watch_hub *h, const char *report, bool lost);
/* This process was stopped for so long: nobody else is to blame for the silence. */
void ll_watch_hub_slept(ll_watch_hub *h, double seconds);
