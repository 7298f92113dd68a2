/* write.h: a graph on its way to an ONNX file. write.c writes it, by the rows of write_ops.c, which
 * are written with what is in write_values.c.
 *
 * A value has a name in the file for each form that somebody read it in: as it lies in the graph,
 * or, where it has four dimensions, with its last one second, as ONNX's convolutions want images
 * and filters. Forms are made where they are asked for, so that chains of convolutions and
 * elementwise ops have no transposes between. A value that is a broadcast one stays small (thin)
 * for as long as elementwise ops read it, which broadcast as NumPy does.
 *
 * The batch may be any: two graphs of the same nodes, for AT_LEAST and AT_LEAST + 1 samples, say
 * which sizes follow it. Such a dimension is -k here, of k a sample. */
#pragma once
#include "onnx/read.h"
#include "pass/pass.h"

#define TEXT(s) ((char *)(uintptr_t)(s)) /* strings of messages are not const */

typedef enum form { AS_IT_LIES, IMAGE_FORM, N_FORM } form;
typedef struct item {
    const char *name[N_FORM]; /* NULL: not made yet */
    Onnx__Tensor *tensor;     /* of weights and constants */
    bool thin;
    ll_shape ones; /* where thin: its dimensions, 1 where it is broadcast */
} item;

typedef struct writer {
    ll_arena *arena;
    const ll_graph *g, *more;
    const int *uses;
    item *items; /* [n_value] */
    Onnx__Graph *out;
    Onnx__Node *last;  /* whose attributes are added */
    const char *batch; /* of a tensor that is the number of samples; NULL: not made yet */
    int n_name, node_capacity, tensor_capacity;
} writer;

/* An op of ours: what writes its nodes. text: of elementwise ones, see ll_onnx_elementwise; else
 * ONNX's op. */
typedef struct wrow {
    const char *op;
    ll_err (*write)(writer *w, const ll_node *n, const char *text);
    const char *text;
} wrow;
extern const wrow ll_onnx_wrows[]; /* ends with op NULL */

int ll_onnx_type(ll_dtype t);
/* Adds a node of one output; its name is given or returned. */
void ll_wnamed(writer *w, const char *op, const char *const *in, int n, const char *name);
const char *ll_wnode(writer *w, const char *op, const char *const *in, int n);
#define WNODE(w, op, ...)                                                                          \
    ll_wnode(w, op, (const char *const[]){__VA_ARGS__},                                            \
             (int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *)))
/* Attributes of the last node. */
void ll_wint(writer *w, const char *name, int64_t v);
void ll_wints(writer *w, const char *name, int n, const int64_t *v);
void ll_wtext(writer *w, const char *name, const char *v);
/* An initializer, of zeros yet. */
Onnx__Tensor *ll_wweight(writer *w, const char *name, int type, const ll_shape *s);
/* Known numbers, which are copied (NULL: zeros): a constant, as weights alone are initializers. */
Onnx__Tensor *ll_wconstant(writer *w, const char *name, int type, const ll_shape *s,
                           const void *data);
Onnx__Tensor *ll_wtensor(writer *w, int type, const ll_shape *s, const void *data);
const char *ll_wknown_ints(writer *w, int n, const int64_t *v);
const char *ll_wnumber(writer *w, ll_dtype t, double v);

/* The shape of a value; a dimension that follows the batch is -k. */
ll_shape ll_wshape(const writer *w, ll_val v);
const char *ll_wreshape(writer *w, const char *x, const ll_shape *to);
/* v in full, and where it may be thin, in a form. */
const char *ll_wfull(writer *w, ll_val v, form f);
const char *ll_wany(writer *w, ll_val v, form f);
/* v with its dimensions in this order. */
const char *ll_wtransposed(writer *w, ll_val v, const int64_t *perm);
/* The form that n's operands are to be had in at least cost; where dimension d is then. */
form ll_wform(const writer *w, const ll_node *n);
static inline int64_t ll_waxis(form f, int64_t d)
{
    static const int8_t at[4] = {0, 2, 3, 1};
    return f == IMAGE_FORM ? at[d] : d;
}
static inline void ll_wgive(writer *w, const ll_node *n, form f, const char *name)
{
    w->items[n->out[0].id].name[f] = name;
}
