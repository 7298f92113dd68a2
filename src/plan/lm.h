/* lm.h: a training step of a transformer on a cluster, layer by layer: the kernels of gpt's graph,
 * as a system runs them (which are one kernel, what overlaps), the collectives of its mesh, the
 * pipeline by sched's simulator, memory by kind. */
#pragma once
#include "plan/cost.h"
#include "sched/pipeline.h"

typedef struct ll_lm {
    double layers, width, ffn, heads, kv_heads, seq, vocab;
    bool gated;   /* feed-forward with a second, gating product */
    bool tied;    /* the last product's weights are the embedding's */
    bool dropout; /* what attention and feed-forward add, and the embedding; its masks are drawn */
    bool encoder; /* every position sees all others */
    double counted; /* parameters, with all that is small; 0: as follows from the above */
} ll_lm;

/* What the backward pass makes again: nothing, attention's scores, norms and the feed-forward part
 * up to its last product, all of a layer. */
typedef enum ll_remake {
    LL_REMAKE_NONE,
    LL_REMAKE_SELECTIVE,
    LL_REMAKE_FFN,
    LL_REMAKE_FULL
} ll_remake;

/* What a training system does the same for every model: facts of its options, not of its speed. */
typedef struct ll_system {
    const char *name;
    int attention;       /* 0: products, softmax and dropout apart; 1: one kernel; 2: the maker's */
    bool overlap_tensor; /* sums over axis tensor run beside products */
    bool overlap_data;   /* gradients are summed beside the backward pass */
    double gathers;      /* collectives a layer of ZeRO 3 */
    double grad_bytes;   /* of a gradient, kept and sent */
    double param_bytes;  /* of a parameter where it is used */
    double state_bytes;  /* of a parameter's moments and master copy */
    double dropout;      /* bytes of its masks, a position and channel */
    double loss_bytes;   /* that the loss holds of each logit */
    double kept_bytes;   /* of a gradient, besides what is sent, until the update */
    bool eager;          /* norms, activations, softmax and residuals are not fused */
    bool overlap_pipe;   /* stages send and receive beside their work */
    bool blocking;       /* the host waits for every kernel */
    bool full_first;     /* stages have layers rounded up, the last what is left */
    double sums;         /* times as long as rings that gradients' sums take; 0: 1 */
    bool slots;          /* embedding and head count as layers where stages are balanced */
    bool balanced;       /* layers are dealt by the time that stages take, with the ends' */
    bool zero_data;      /* ZeRO cuts over axis data, not over sequence too */
    bool lean;           /* biases, activations and the loss are parts of products */
} ll_system;

/* What the simulation of a pipeline says: the same of ways that differ in what lies where alone
 * (ZeRO 0 and 1, offload). */
typedef struct ll_piped {
    bool known;
    double seconds, bubble;
    double peak[LL_PIPELINE_RANKS];
} ll_piped;

typedef struct ll_how {
    double data, tensor, pipe, context; /* ranks along each axis */
    double shard;                       /* of data, ranks that ZeRO cuts over; 0: all */
    int virtual_stages, zero;
    double micro_batch; /* samples */
    int n_micro;
    bool sequence; /* what lies between tensor-parallel products is cut too */
    ll_remake remake;
    bool offload;           /* the optimizer's state lies in the host's memory */
    ll_precision precision; /* of products */
    const char *schedule;   /* of pipelines; NULL: 1f1b, or interleaved of virtual stages */
    const ll_system *system;
    ll_piped *piped; /* [LL_REMAKE_FULL + 1], kept from way to way of one pipeline; NULL: not */
} ll_how;

typedef struct ll_lm_bytes {
    double weights, gradients, optimizer, activations, buffers;
    double reserved; /* of the chip: what libraries and the driver have, which is no tensor */
} ll_lm_bytes;
double ll_lm_bytes_tensors(const ll_lm_bytes *b); /* which train.memory limits */
double ll_lm_bytes_sum(const ll_lm_bytes *b); /* and reserved ones: which the chip has room for */

typedef struct ll_outcome {
    double step_s;
    double compute_s; /* kernels of the rank with most */
    double tensor_s;  /* collectives of axes tensor and sequence that nothing hides */
    double data_s;    /* of gradients and parameters, likewise */
    double update_s, wait_s, bubble_s;
    double bubble;                      /* idle part of the pipeline */
    double parameters;                  /* of the model */
    double model_flops, hardware_flops; /* of a step, all ranks */
    double moved;                       /* bytes that a rank sends in a step */
    ll_lm_bytes bytes;                  /* of the rank with most */
    const ll_pipeline *pipeline;        /* NULL: one stage. For pictures; in the arena */
    ll_pipeline_times times;
} ll_outcome;

double ll_lm_parameters(const ll_lm *m);
/* FLOPs of a sample, forward and backward, attention over all positions counted. */
double ll_lm_flops(const ll_lm *m);
/* Kernels of one layer, one micro-batch, in seconds: forward; gradients of inputs; of weights. */
typedef struct ll_layer_time {
    double f, i, w;
    double tensor; /* of a forward pass, collectives of axis tensor that are not hidden */
    double ring;   /* of all passes, what is exchanged over axis sequence and is not hidden */
    double f_flops;
} ll_layer_time;
ll_layer_time ll_lm_layer(const ll_cluster *c, const ll_lm *m, const ll_how *h);
/* A step. pictures: the whole pipeline is simulated and kept in the arena. */
ll_err ll_lm_step(const ll_cluster *c, const ll_lm *m, const ll_how *h, ll_arena *arena,
                  bool pictures, ll_outcome *out);
