/* walk.h: ONNX's nodes as calls of the builders of loopline.h.
 *
 * A value has its shape as ONNX has it, and lies in the graph in some order of dimensions: images,
 * which ONNX has as [n,c,h,w], lie as [n,h,w,c], so that chains of convolutions and elementwise ops
 * need no transposes. Known numbers (shapes, axes, weights) enter the graph where an op reads them,
 * in the order that it wants. f16 and bf16 are computed in f32, whole numbers and truths in i32. */
#pragma once
#include "onnx/read.h"

typedef struct value value;
typedef struct op op;
typedef struct walk walk;
typedef struct scope scope;

typedef struct order {
    int8_t d[LL_MAX_DIMS]; /* dimension i of what lies there is ONNX's dimension d[i] */
} order;

struct value {
    const char *name;
    int type; /* ONNX's */
    ll_shape shape;
    const struct host
        *host;   /* its numbers, where they are known; NULL: not, or not asked for yet */
    bool fixed;  /* known whatever the inputs are */
    bool kept;   /* a weight that training does not train: running statistics */
    bool fresh;  /* a weight that starts anew */
    bool weight; /* a parameter, where one trains */
    bool splat;  /* every element is same */
    double same;
    ll_val v; /* id 0: not in the graph yet */
    order lies;
    const op *maker; /* the node; NULL: an input or initializer */
};

struct op {
    walk *w;
    ll_graph *g;
    const Onnx__Node *n;
    const struct row *row;
    struct scope *scope; /* where its names are looked up */
    int64_t version;     /* of its opset */
    int n_in, n_out;
    value **in, **out; /* in[i] NULL: left out */
    uint64_t *seen;    /* which attributes were looked at */
};

/* One of ONNX's ops: what walks it, and from which version of it on it means what it does here. */
typedef struct row {
    const char *name;
    ll_err (*walk)(op *o);
    int since;
    ll_val (*one)(ll_graph *g, ll_val x);
    ll_val (*two)(ll_graph *g, ll_val a, ll_val b);
    int kind;
    bool empty;  /* may have no operands */
    bool direct; /* not to be computed apart: it has bodies, or knows its result at once */
} row;

typedef enum walk_mode {
    WALK_ONCE, /* inputs and weights are batch data of any type: computed, not trained */
    WALK_MODEL /* weights are parameters */
} walk_mode;

/* What enters the graph from outside: its numbers, in the order that they lie. */
typedef struct leaf {
    const struct value *value;
    const char *name; /* in the graph */
    order lies;
} leaf;

struct walk {
    ll_arena *arena;
    ll_graph *g;
    const ll_onnx *m;
    walk_mode mode;
    bool training;
    int depth; /* of graphs in graphs */
    leaf *leaves;
    int n_leaf, leaf_capacity;
    /* Another last layer: how many outputs; names of its weights and bias (NULL: none), and which
     * dimension of the weights is its outputs. */
    int64_t head;
    const char *head_weight, *head_bias;
    int head_dim;
    bool folding; /* on a graph of its own */
    bool blamed;  /* the message of what failed names its node */
    /* The numbers of a value, found by computing them where they follow from known ones; a graph
     * that a node has, in a scope of its own. ll_onnx_walk sets both. */
    ll_err (*know)(walk *w, value *x, const host **out);
    ll_err (*body)(walk *w, scope *s, const Onnx__Graph *g, value **out);
};

/* Walks the model's graph: in[i] are its inputs (those without an initializer), out its outputs. */
ll_err ll_onnx_walk(walk *w, value **in, value **out);
bool ll_onnx_knows(const ll_onnx *m, const Onnx__Node *n); /* its op */
/* Those inputs, in order. */
Onnx__ValueInfo **ll_onnx_inputs(ll_arena *a, const ll_onnx *m, int *n);
/* A leaf's numbers as the graph's input wants them. Whole numbers are those of 32 bits; ends: the
 * least and the largest of 64 bits are theirs (ends of slices). */
ll_err ll_onnx_leaf_data(ll_arena *a, const leaf *l, bool ends, void **data, size_t *bytes);
ll_val ll_onnx_plain(op *o, value *x); /* in ONNX's order */

/* ---- for ops ---- */

/* The model is right, but this is not to be had. */
#define NO(o, ...) return ll_onnx_refuse(o, __FILE__, __LINE__, __func__, __VA_ARGS__)
#define WANT(o, cond, ...)                                                                         \
    do {                                                                                           \
        if (!(cond)) NO(o, __VA_ARGS__);                                                           \
    } while (0)
ll_err ll_onnx_refuse(const op *o, const char *file, int line, const char *func, const char *format,
                      ...) __attribute__((format(printf, 5, 6)));

static inline bool has(const op *o, int i)
{
    return i < o->n_in && o->in[i];
}
/* Attributes; what is not there is initial. An attribute of another type counts as not there only
 * where ONNX has none of that name; otherwise the file was refused. */
int64_t ll_attr_int(const op *o, const char *name, int64_t initial);
double ll_attr_float(const op *o, const char *name, double initial);
const char *ll_attr_text(const op *o, const char *name, const char *initial);
/* How many numbers were found, at most room. */
int ll_attr_ints(const op *o, const char *name, int64_t *out, int room);
const Onnx__Attribute *ll_attr(const op *o, const char *name);

/* Whole numbers of operand i, which must be known. */
ll_err ll_onnx_ints(op *o, int i, int64_t *out, int room, int *n);
/* Operand i's, or the attribute's in opsets where it was one. *n -1: neither. */
ll_err ll_onnx_list(op *o, int i, const char *name, int64_t *out, int room, int *n);
ll_err ll_onnx_number(op *o, int i, double *out); /* operand i as one known number */
/* An axis counted from the end where it is negative. */
ll_err ll_onnx_axis(op *o, int64_t given, int n, int *out);

extern const order ll_plain;
/* The shape of what lies so, without dimensions that are gone; *left: how that lies. */
ll_shape ll_without(const ll_shape *s, const order *lies, const bool *gone, order *left);
order ll_last(int n);                    /* channels, ONNX's dimension 1, last */
int ll_lies_at(const order *o, int dim); /* where ONNX's dimension lies */
/* x lying so. */
ll_val ll_onnx_as(op *o, value *x, const order *lies);
/* Operands from the first on are weights, which some files have as constants. */
void ll_onnx_weights_from(op *o, int first);
ll_val ll_onnx_any(op *o, value *x, order *lies); /* as it lies already */
/* x with ONNX's dimension dim lying there, or last. */
ll_val ll_onnx_with(op *o, value *x, int dim, int at, order *lies);
ll_val ll_onnx_with_last(op *o, value *x, int dim, order *lies);
/* Numbers that the walk made itself, as an operand. */
value *ll_onnx_known(op *o, const host *h);
/* x broadcast to a shape; its dimensions are the last ones. */
ll_val ll_spread(ll_graph *g, ll_val x, const ll_shape *to);
/* Those of a dimension, in this order: slices, side by side. */
ll_err ll_pick(op *o, ll_val x, int dim, const int64_t *index, int64_t n, ll_val *out);
/* Gives an output: v of ONNX's type, lying so (NULL: plain). v is cast to what the type is computed
 * in. */
ll_err ll_onnx_give(op *o, int i, int type, ll_val v, const order *lies);
ll_err ll_onnx_give_host(op *o, int i, const host *h);
ll_err ll_onnx_give_ints(op *o, int i, const int64_t *v, int n, bool scalar);
ll_val ll_one(op *o, ll_val like, double v); /* a scalar of like's type */
/* x between so many places with v along a dimension; fewer than none: cut off. */
ll_val ll_pad_with(ll_graph *g, ll_val x, int dim, int64_t before, int64_t after, double v);
/* Brings operands to one rank and one order, which *lies tells. */
ll_err ll_onnx_align(op *o, int n, value *const *x, ll_val *v, order *lies);

/* Tables, each ends with name NULL. */
extern const row ll_rows_elementwise[], ll_rows_logic[], ll_rows_shape[], ll_rows_reduce[],
    ll_rows_nn[], ll_rows_flow[], ll_rows_loss[], ll_rows_index[], ll_rows_norm[], ll_rows_image[],
    ll_rows_recurrent[];
