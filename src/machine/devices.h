/* devices.h: which device is a rank's, and how devices talk. */
#pragma once
#include "base/types.h"
#include "comm/comm.h"

typedef struct ll_device { /* a rank's */
    int32_t index;
    unsigned char id[16]; /* no two devices have the same */
    char name[108];
    char place[128]; /* in its node, and the rank's cores, for people; "": not asked */
} ll_device;

/* Through this process's memory, by MPI from and to theirs, or by NCCL: a machine's links. */
typedef enum ll_link_kind { LL_BY_HOST, LL_BY_MPI, LL_BY_NCCL } ll_link_kind;

typedef struct ll_devices {
    ll_device *of;     /* [n], by rank */
    int n, mine;       /* n 0: the machine has none; mine: this rank's index */
    ll_link_kind link; /* how they talk, */
    char why[256];     /* and why so; "": there is one rank */
} ll_devices;

typedef struct ll_device_ask {
    const char *transport; /* NULL, "auto", "nccl", "mpi" or "host" */
    bool canonical, codec; /* what NCCL does not do: sums in this order, compressed gradients */
    bool pipe;             /* and what it does where it is asked for: messages between stages */
    bool mpi;              /* the MPI library takes devices' memory */
    bool loose;            /* ranks that part: a thread moves messages */
    ll_precision precision;
} ll_device_ask;

typedef struct ll_device_facts {
    char name[128];
    size_t bytes, free_bytes; /* of its memory */
    double peak; /* FLOP/s that the maker states for products of a precision; 0: not known here */
} ll_device_facts;

/* The library that stands in for NCCL in tests (tests/dev/stand_in_nccl.c): its ranks may share a
 * device, where it is asked for. */
#define LL_STAND_IN "NCCL 0.0.0"

/* Of devices that are known: sets link and why, or says why what was asked for cannot be.
 * library: what they would talk by; NULL: not built. */
ll_err ll_devices_choose(const ll_device_ask *ask, const char *library, ll_devices *s);
