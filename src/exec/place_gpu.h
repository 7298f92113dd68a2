/* place_gpu.h: which GPU is a rank's, and how GPUs talk. */
#pragma once
#include "comm/comm.h"
#include "dev/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ll_gpu_seat { /* a rank's GPU */
    int32_t index;
    unsigned char id[16];
    char name[108];
} ll_gpu_seat;

typedef struct ll_gpu_seats {
    ll_gpu_seat *of; /* [n], by rank */
    int n, mine;     /* mine: this rank's index */
    bool nccl;
    char why[256]; /* how GPUs talk, and why so; "": there is one rank */
} ll_gpu_seats;

typedef struct ll_seats_ask {
    const char *transport; /* NULL, "auto", "nccl" or "host" */
    bool canonical,
        codec; /* what NCCL does not do: sums in canonical order, compressed gradients */
} ll_seats_ask;

/* The index of this rank's GPU. */
int ll_gpu_seat_mine(const ll_comm *c);
/* Collective where there are several ranks (c NULL: one). Ranks of a node take its GPUs in turn. */
ll_err ll_gpu_seats_find(ll_comm *c, const ll_seats_ask *ask, ll_arena *arena, ll_gpu_seats *out);
/* Of seats that are known: sets nccl and why, or says why what was asked for cannot be. */
ll_err ll_gpu_seats_choose(const ll_seats_ask *ask, const char *library, ll_gpu_seats *s);

#ifdef __cplusplus
}
#endif
