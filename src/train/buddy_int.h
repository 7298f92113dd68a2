/* buddy_int.h: the files of a state in memory, for who writes them and who looks for them. */
#pragma once
#include "train/buddy.h"

#define SEALS_MAGIC 0x6c6f6f706c696e65ull
#define SEALS_NO_STEP "0000000000000000"

typedef struct seal {
    int64_t step; /* -1: it is being written; 0: was never */
    uint32_t crc, unused;
} seal;

/* The table beside a node's two files. */
typedef struct seals {
    uint64_t magic;
    int32_t start, node, n_node, n_slot;
    int64_t whole; /* the files have all of the state */
    seal of[];     /* [2][n_slot]: of the node's ranks, then of those that send to them */
} seals;

typedef struct seals_name {
    const char *job;
    int start, node;
} seals_name;
/* turn: 0 or 1; -1: the table. */
const char *ll_seals_path(ll_arena *a, const seals_name *n, int turn);
/* Removes all files of a job on this host, but those of this start; -1: of none. */
void ll_seals_remove(const char *job, int but);
