/* target.h: the compiler's side of a machine: which passes a graph goes through for it, and how the
 * kernel of a node is picked. One constant for each machine. */
#pragma once
#include "ir/op.h"
#include "kern/kern.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How numbers are kept and multiplied. tf32, fp8: of products alone. */
#define LL_PRECISIONS(X) X(f32) X(tf32) X(bf16) X(fp8)
typedef enum ll_precision {
#define X(name) LL_PRECISION_##name,
    LL_PRECISIONS(X)
#undef X
        LL_N_PRECISION
} ll_precision;
const char *ll_precision_name(ll_precision p);
/* NULL is f32. */
ll_err ll_precision_parse(const char *name, ll_precision *out);

typedef struct ll_stage {
    ll_err (*pass)(const ll_graph *g, ll_graph **out);
    unsigned precisions; /* bit p: runs with precision p; 0: with all */
    bool fuses;          /* left out where every node is to be an instruction */
} ll_stage;

typedef struct ll_target {
    const char *name;
    unsigned precisions;    /* bit p: it has precision p */
    bool any_order;         /* it may be told to sum in any order */
    bool f64;               /* every kernel takes f64; else those that say so */
    const ll_stage *stages; /* after ll_simplify; ended by {0} */
    bool (*pick)(const ll_op *op, const ll_kcall *c, ll_solver *out); /* false: has none */
} ll_target;

extern const ll_target ll_target_ref, ll_target_cpu, ll_target_cuda;
/* NULL: none is named so. */
const ll_target *ll_target_find(const char *name);

#ifdef __cplusplus
}
#endif
