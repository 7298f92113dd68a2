/* target.h: the compiler's side of a machine: which passes a graph goes through for it, and how the
 * kernel of a node is picked. One constant for each machine. */
#pragma once
#include "kern/kern.h"
#include "pass/pass.h"

/* Where values lie that nobody reads for a while (program/offload.c decides which), and how long
 * things take, in one unit of time: by these they are chosen, and their copies begin. */
typedef struct ll_aside_place {
    const char *word; /* what train.offload says for it; NULL: a folder's name */
    const char *what; /* for people */
    double node, flop[LL_N_PRECISION],
        byte;            /* a kernel; its arithmetic; what it reads and writes */
    double copy, copied; /* a copy there or back; each byte of it */
} ll_aside_place;

typedef struct ll_target {
    const char *name;
    unsigned precisions; /* bit p: it has precision p */
    bool any_order;      /* it may be told to sum in any order */
    size_t bucket_bytes; /* of sums that are one collective, where nobody knows better */
    ll_err (*narrow)(const ll_graph *g, ll_graph **out); /* to bf16, where that is the precision */
    bool device; /* kernels are launched on one, which takes time for each */
    bool fuses;  /* fusions name it (fuse/fuse.h); else what these make is expanded */
    bool (*pick)(const ll_op *op, const ll_kcall *c, ll_solver *out); /* false: has none */
    /* Ways of an op that may be chosen among by what was measured (program/ways.h); NULL: none. */
    const ll_solver *(*choices)(const ll_op *op);
    ll_aside_place aside;
} ll_target;

#define LL_TARGETS(X) X(cpu) X(cuda) X(ref)
#define X(name) extern const ll_target ll_target_##name;
LL_TARGETS(X)
#undef X
/* NULL: none is named so. Without a name: the first. */
const ll_target *ll_target_find(const char *name);
const ll_target *ll_target_device(void); /* what chips that are only described are taken for */
/* Why it does not lay values aside where train.offload says; NULL: it does. */
enum { LL_ASIDE_TEXT = 256 };
const char *ll_aside_refused(const ll_target *t, const char *offload, char out[LL_ASIDE_TEXT]);
