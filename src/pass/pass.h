/* pass.h: graph to graph. A pass reads one graph and makes another (gradients and optimizers, which
 * only append, change theirs); ll_verify holds after each. ll_grad and ll_minimize are public. */
#pragma once
#include "op/ops.h"

LL_OWNED(ll_graph, ll_graph_free);

/* Does y depend on one of these n values, by what has a gradient? */
bool ll_depends(ll_graph *g, ll_val y, const ll_val *x, int n);

/* Dimensions of a parameter that a product's result has, if all that reads it forward are products
 * with it, which sum over the others, the last ones; 0: it is no such matrix. */
int ll_matrix_rows(const ll_graph *g, ll_val v);

/* The grad_norm up to which clipping changes no gradient; INFINITY: there is none; 0: not known. */
double ll_clip_limit(const ll_graph *g);

/* Of a training step: gradients are taken of what parameters were a step before. Whatever the
 * micro-batches read and the step updates, w, is that; a state w.next is the newest, which the
 * update reads and makes, and w becomes what w.next was: w(t+1) = w(t) - lr grad(w(t-1)). */
ll_err ll_delay(const ll_graph *g, ll_graph **out);
/* Drops nodes nobody needs. */
ll_err ll_sweep(const ll_graph *g, ll_graph **out);
/* What makes v, which becomes the only result: other inputs are not there, and nothing is drawn:
 * dropout passes all on. */
ll_err ll_only(const ll_graph *g, ll_val v, const char *name, ll_graph **out);
/* Drops nodes nobody needs, merges equal ones, folds constants, removes identities. */
ll_err ll_simplify(const ll_graph *g, ll_graph **out);
/* Simplified, and expanded until every op stays. LL_E_ARG: one that does not cannot be expanded: it
 * has no such form ("C"). */
ll_err ll_expand(const ll_graph *g, bool (*stays)(const ll_op *), const char *what, ll_graph **out);
/* Products, convolutions and attention read bf16 and sum in f32; all else stays as it is. */
ll_err ll_lower_precision(const ll_graph *g, ll_graph **out);
/* All that depends on the batch is bf16, but for what is summed over it or handed out. */
ll_err ll_narrow(const ll_graph *g, ll_graph **out);
/* Every f32 value becomes `to`: gradient checks run in f64. cast_batch: but batch data, which is
 * fed as it was, and cast. */
ll_err ll_retype(const ll_graph *g, ll_dtype to, bool cast_batch, ll_graph **out);

/* n's attributes with element type `to` where f32 stands: all fields of kind DTYPE. */
const void *ll_attr_retype(ll_arena *a, const ll_node *n, ll_dtype to);

/* Whether every element of v is one number, as its element type holds it. */
bool ll_constant_value(const ll_graph *g, ll_val v, double *value);

/* For each value, how many nodes' operands, results and updates it is. */
const int *ll_uses(const ll_graph *g, ll_arena *arena);

/* For each value, whether results or updates need it; what makes one is needed, and all it makes.
 */
const bool *ll_live(const ll_graph *g, ll_arena *arena);

/* [n_node] the makers of results; then of what marked nodes read, back to the inputs. */
void ll_mark_results(const ll_graph *g, bool *marked);
void ll_mark_makers(const ll_graph *g, bool *marked);
/* [n_node] what runs for each micro-batch: all that means over them need. */
bool *ll_micro_nodes(const ll_graph *g, ll_arena *arena);
static inline bool ll_is_mean(const ll_node *n)
{
    return ll_is_op(n, &ll_op_accum);
}

/* For each value, whether it is another in each micro-batch: it depends on batch data or random
 * numbers, and not by way of a mean over micro-batches alone. */
const bool *ll_varying(const ll_graph *g, ll_arena *arena);

/* The node that makes v; NULL: none, it is an input. */
static inline const ll_node *ll_maker(const ll_graph *g, ll_val v)
{
    int n = ll_value_of(g, v)->node;
    return n < 0 ? NULL : &g->nodes[n];
}

/* Do two nodes run in different actions of a pipeline? What one node makes comes at one time. */
static inline bool ll_apart(const ll_node *a, const ll_node *b)
{
    bool staged = a->of.stage && b->of.stage;
    return staged && (a->of.stage != b->of.stage || a->of.phase != b->of.phase);
}

/* ---- for passes: copying a graph node by node ---- */
typedef struct ll_rewrite {
    const ll_graph *from;
    ll_graph *to;
    ll_val *map; /* old value -> new value; 0: not copied yet */
} ll_rewrite;
/* A new graph with all the inputs of the old one; or with none as yet. */
void ll_rewrite_begin(ll_rewrite *rw, const ll_graph *from);
void ll_rewrite_bare(ll_rewrite *rw, const ll_graph *from);
/* Copies n, with its operands mapped. */
ll_err ll_rewrite_copy(ll_rewrite *rw, const ll_node *n);
/* Puts n's expansion in its place. */
ll_err ll_rewrite_expand(ll_rewrite *rw, const ll_node *n);
/* Says that the new value stands for the old one; it takes over its name. */
void ll_rewrite_map(ll_rewrite *rw, ll_val old, ll_val new_value);
/* Results and updates; verifies; gives the graph away. On failure nothing is left. */
ll_err ll_rewrite_end(ll_rewrite *rw, ll_err so_far, ll_graph **out);
