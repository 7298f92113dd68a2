/* ir.h: values, nodes, graphs.
 *
 * 1. SSA: a node has an op, an attribute struct, input values and output values; a value has an
 *    element type and a static shape, and is either an input of the graph or made by one node.
 * 2. Nodes only ever read values made before them: array order is a topological order.
 * 3. Nodes and values are appended, never removed; a pass that removes makes a new graph.
 * 4. Everything lives in the graph's arena. Value 0 is "none". */
#pragma once
#include "base/arena.h"
#include "base/types.h"

typedef struct ll_op ll_op;

typedef enum ll_kind {
    LL_COMPUTED,
    LL_PARAM,
    LL_STATE,
    LL_BATCH,
    LL_STEP,
    LL_CONST,
    LL_CARRY, /* what a step leaves for the next one: of pipelines whose steps overlap */
    LL_N_KIND
} ll_kind;
const char *ll_kind_name(ll_kind k);
/* Is such an input made when a session opens, and there in every step? */
static inline bool ll_kind_stays(ll_kind k)
{
    return k == LL_PARAM || k == LL_STATE || k == LL_CONST || k == LL_CARRY;
}
/* Can a step give such an input another value? */
static inline bool ll_kind_updates(ll_kind k)
{
    return k == LL_PARAM || k == LL_STATE || k == LL_CARRY;
}

/* The elements of a constant, all of them where the input is a part. */
typedef struct ll_data {
    ll_dtype dtype;
    int64_t n;
    const void *elements;
} ll_data;
const ll_data *ll_data_copy(ll_arena *arena, const ll_data *d); /* NULL of NULL */

typedef struct ll_type {
    ll_dtype dtype;
    ll_shape shape;
} ll_type;

static inline size_t ll_type_bytes(const ll_type *t)
{
    return ll_tensor_bytes(t->dtype, &t->shape);
}
static inline bool ll_type_equal(const ll_type *a, const ll_type *b)
{
    return a->dtype == b->dtype && ll_shape_equal(&a->shape, &b->shape);
}

/* An input that is a part of a larger one: the whole's shape, and where in it the part starts. */
typedef struct ll_piece {
    ll_shape whole;
    int64_t at[LL_MAX_DIMS];
} ll_piece;

#define LL_GRADIENT "grad:" /* leads the names of gradients, in text too */

typedef struct ll_value {
    ll_type type;
    ll_kind kind;
    ll_init init;            /* parameters and state */
    const ll_piece *piece;   /* NULL: it is whole */
    const char *name;        /* always for inputs; NULL where nobody named it */
    const char *gradient_of; /* of a parameter's gradient, summed or not: the parameter's name */
    bool updated;            /* an input that gets a next value */
    int node, out;           /* which output of which node; node -1 for an input */
} ll_value;

static inline bool ll_is_batch(const ll_value *v)
{
    return v->kind == LL_BATCH && v->node < 0;
}

/* When in a step a node runs, for each micro-batch: forward, backward; or once: the update. */
typedef enum ll_phase { LL_FORWARD, LL_BACKWARD, LL_ONCE } ll_phase;

/* Where a node comes from. Every pass hands it on to what it makes of the node. */
typedef struct ll_origin {
    int block;      /* how many ll_graph_block marks came before */
    int at;         /* the declared node that it is, or differentiates: from 1 on; -1: of no one */
    ll_phase phase; /* as ll_minimize made it */
    int stage;      /* of a pipeline (pass/stages.h), from 1 on; 0: there is none */
    bool again;     /* made a second time, to save memory: not to be made one with the first */
} ll_origin;

typedef struct ll_node {
    const ll_op *op;
    const void *attr; /* op->attr_size bytes */
    int n_in, n_out;
    ll_val *in, *out;
    const char *name; /* scope and op, for people: "block2.conv1.conv2d" */
    int micro;        /* of a pipeline's program: the micro-batch that it is of */
    int action;       /* of it, the action of its rank, from 1 on; 0: none */
    bool before;      /* of it, of the batch before the step's own */
    ll_origin of;
} ll_node;

typedef struct ll_named {
    const char *name;
    ll_val value;
} ll_named;

typedef struct ll_pair {
    ll_val input, next;
} ll_pair;

struct ll_graph {
    ll_arena *arena;
    const char *name;
    ll_value *values; /* [n_value]; values[0] is none */
    ll_node *nodes;   /* [n_node] */
    ll_named *results;
    ll_pair *updates;
    int n_value, n_node, n_result, n_update;
    int cap_value, cap_node, cap_result, cap_update;
    int *inputs, n_input, cap_input; /* by their names' hash: open addresses, half of them free */
    ll_origin of; /* of nodes that are appended; at 0, forward: they are declared */
    char scope[256];
    ll_err err; /* the first mistake of the declaration, and its message */
    const char *err_text;
};

static inline ll_value *ll_value_of(const ll_graph *g, ll_val v)
{
    return &g->values[v.id];
}
static inline double ll_val_bytes(const ll_graph *g, ll_val v)
{
    return (double)ll_type_bytes(&ll_value_of(g, v)->type);
}
/* Callers may give no graph: builders make nothing then, and ll_graph_check tells. */
static inline bool ll_rejected(const ll_graph *g)
{
    return !g || g->err != LL_OK;
}
static inline const char *ll_scope(const ll_graph *g)
{
    return g ? g->scope : "";
}
/* Ids come from callers: is v one of the graph's values? What to call it where it is not. */
static inline bool ll_has_value(const ll_graph *g, ll_val v)
{
    return g && v.id > 0 && v.id < g->n_value;
}
static inline const char *ll_no_value(ll_val v)
{
    return v.id ? "no value of this graph" : "none";
}
/* v, which stands for another graph's value, takes its name and whose gradient it is. */
void ll_value_stands_for(ll_graph *g, ll_val v, const ll_value *other);
ll_val ll_input(ll_graph *g, const char *name, ll_kind kind, ll_type type, ll_init init);
/* The same input as another graph's, with what it is a piece of. */
ll_val ll_input_like(ll_graph *g, const ll_value *other);
ll_val ll_find(const ll_graph *g, const char *input_name); /* none: no input of that name */
ll_val ll_find_result(const ll_graph *g, const char *name);
/* Scores of classes, of a graph without gradients: result "logits", or what its last loss reads. */
ll_val ll_find_logits(const ll_graph *g);

/* Nodes that are appended from here on are named after n's scope, and come from where n does. */
void ll_graph_at(ll_graph *g, const ll_node *n);
/* Appends a node; attr is copied. Infers and checks its outputs. emit returns the first output and
 * makes failure the graph's; emit_all gives all of them. Any input that is none: does nothing. */
ll_val ll_emit(ll_graph *g, const ll_op *op, const void *attr, const ll_val *in, int n_in);
ll_err ll_emit_all(ll_graph *g, const ll_op *op, const void *attr, const ll_val *in, int n_in,
                   ll_val *out);
/* emit_all of from's node n on in; on operands of n's own types, outputs are not inferred again. */
ll_err ll_emit_like(ll_graph *g, const ll_graph *from, const ll_node *n, const ll_val *in,
                    ll_val *out);
#define LL_EMIT(g, op, attr, ...)                                                                  \
    ll_emit(g, op, attr, (ll_val[]){__VA_ARGS__},                                                  \
            (int)(sizeof((ll_val[]){__VA_ARGS__}) / sizeof(ll_val)))
/* A builder's mistake, which becomes the graph's: LL_E_SHAPE, LL_E_ARG, LL_E_GRAPH. Gives none. */
ll_val ll_reject(ll_graph *g, ll_err code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Is there a graph without a mistake, and the builder's argument, a pointer? Else that is one. */
bool ll_has_argument(ll_graph *g, const char *builder, const char *argument, const void *pointer);
/* The graph takes over this thread's failure as its first mistake. */
void ll_fail(ll_graph *g);
const char *ll_scoped(ll_graph *g, const char *name);

/* Every invariant above, and each node's outputs against its op's rule. Run after every pass. */
ll_err ll_verify(const ll_graph *g);

/* Text, one node a line (see ir/text.c for the form), in arena. */
char *ll_print(const ll_graph *g, ll_arena *arena);
/* The same as a picture, in the language of Graphviz's dot. */
char *ll_print_dot(const ll_graph *g, ll_arena *arena);
/* One value's type and one node's attributes, as they stand in the text. */
char *ll_print_attr(const ll_op *op, const void *attr, ll_arena *arena);
