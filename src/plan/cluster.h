/* cluster.h: a cluster as it is described in a YAML file: its chip, a node of them, the network
 * between nodes, what they cost. Bundled ones are clusters/NAME.yaml; docs/running.md has the keys.
 *
 *     like: dgx-a100                    # begins as another one
 *     node: {chips: 4, link: 200}
 *     network: {topology: dragonfly, gbps: 800}
 *
 * Units are those that makers print: TFLOP/s, GB (1e9 bytes), GB/s, Gbit/s, microseconds. */
#pragma once
#include "base/arena.h"
#include "base/types.h"

#define LL_CORE "core" /* the name of a chip that is a core of this machine */

typedef struct ll_chip {
    const char *name;
    const char *machine;          /* that trains on it, as in train.machine; NULL, none: no one */
    const char *names;            /* parts of names that others call it by, with commas */
    double tera[LL_N_PRECISION];  /* TFLOP/s of products, as the maker states; 0: it has none */
    double vector;                /* TFLOP/s of f32 arithmetic that is no product */
    double memory, bandwidth;     /* GB, GB/s */
    double units, tile_m, tile_n; /* that work side by side; a tile of a product on one */
    double gemm, gemm_f32, gemm_fp8, gemm_k; /* best fraction of the peak; half of it at this k */
    double gemm_fp8block;                    /* 0: it has none such */
    double stream;                           /* fraction of bandwidth that elementwise ops reach */
    double stream_k;                         /* half of it where so many MB are moved */
    double attention;                        /* fraction of bf16's peak, attention in one kernel */
    double attention_tuned;                  /* the same, written for this chip by its maker */
    double attention_k;                      /* half of it where so many keys are seen */
    double conv;                             /* as gemm, of convolutions by tensor units; 0: gemm */
    double overlap;  /* the norm in which times of work side by side add up */
    double host;     /* us more where the host waits for each kernel */
    double launch;   /* us from one kernel to the next */
    double reserved; /* GB of context and libraries */
} ll_chip;

static inline bool ll_chip_is_core(const ll_chip *c)
{
    return !strcmp(c->name, LL_CORE);
}

/* FLOP/s; 0: the chip has none. */
static inline double ll_chip_peak(const ll_chip *c, ll_precision p)
{
    if (p == LL_PRECISION_fp8block && !c->gemm_fp8block) return 0;
    return 1e12 * c->tera[ll_precision_unit(p)];
}

/* What Loopline's own kernels were measured at on such a chip; 0: the chip's figure, which is of
 * other systems. */
typedef struct ll_own {
    const char *source; /* on what they were measured; NULL: on none */
    double gemm, gemm_fp8, gemm_fp8block, gemm_k, stream, stream_k, attention, attention_k, launch;
} ll_own;

typedef struct ll_node_links {
    double chips;
    double hosts;      /* that a node is of, where its links go from host to host; 0: one */
    double link;       /* GB/s of a chip to all others of its node, one way */
    double efficiency; /* of it, in collectives */
    double latency;    /* us, a message */
    double host;       /* GB/s of a chip to its host's memory */
} ll_node_links;

typedef struct ll_network {
    const char *topology; /* fat-tree, rail, dragonfly or torus: hops from node to node */
    double gbps;          /* Gbit/s of a node into the network */
    double efficiency, latency;
    double pod;    /* nodes that share full bandwidth; 0: all */
    double taper;  /* bandwidth beyond a pod is divided by this */
    double jitter; /* part of a step that waits for the slowest, for each doubling of nodes */
} ll_network;

typedef struct ll_expense {
    double watts;      /* of a chip with its share of the node, at work */
    double price;      /* a chip's hour */
    double carbon;     /* g a kWh */
    double mtbf;       /* hours of one chip between failures that stop a run */
    double restart;    /* minutes from a failure to the first step after it */
    double checkpoint; /* GB/s of a node to the file system */
} ll_expense;

typedef struct ll_cluster {
    const char *name;
    const char *about; /* a line, with its sources */
    const char *like;
    ll_chip chip;
    ll_own own;
    ll_node_links node;
    ll_network network;
    ll_expense cost;
    ll_arena *arena;
} ll_cluster;

/* A file (its name has a '/' or ends in .yaml), or a bundled one's name. Local. */
ll_err ll_cluster_load(const char *what, ll_cluster **out);
/* The same from bytes; file names them in messages. */
ll_err ll_cluster_parse(const char *bytes, size_t size, const char *file, ll_cluster **out);
void ll_cluster_free(ll_cluster *c);
LL_OWNED(ll_cluster, ll_cluster_free);
/* Name i of the bundled ones; NULL: there are no more. */
const char *ll_cluster_name(int i);
/* The cluster as Loopline's kernels find it: what was measured of them, or as it is. */
ll_cluster ll_cluster_own(const ll_cluster *c);
