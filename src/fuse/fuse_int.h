/* fuse_int.h: a row of a fusion as it is read from its text; products, which several fusions make.
 */
#pragma once
#include "fuse/fuse.h"
#include "op/op_int.h"

enum { LL_FUSE_WORDS = 48, LL_FUSE_LINES = 16, LL_FUSE_ATTR = 64, LL_FUSE_WORD = 66 };

typedef struct ll_fuse_line {
    const ll_op *op;
    bool kept;
    int n_in, n_out, in[LL_MAX_IN], out[LL_MAX_OUT]; /* words; operand -1: the number */
    double number;
    void *attr;    /* what is given as it is */
    int8_t *field; /* of op->attrs: 0 may be anything, -1 as given, else a hole's word + 1 */
} ll_fuse_line;

typedef struct ll_fuse_text {
    char word[LL_FUSE_WORDS][LL_FUSE_WORD]; /* holes begin with '$' */
    int n_word, n_line, n_new;
    ll_fuse_line line[LL_FUSE_LINES], put[LL_FUSE_LINES]; /* pattern, replacement */
    bool made[LL_FUSE_WORDS];                             /* by the replacement */
    int n_same, same[LL_FUSE_WORDS];
} ll_fuse_text;

typedef struct ll_fuse_holes { /* by words */
    bool bound[LL_FUSE_WORDS];
    char attr[LL_FUSE_WORDS][LL_FUSE_ATTR];
} ll_fuse_holes;

ll_err ll_fuse_read(const ll_fusion_row *row, ll_arena *arena, ll_fuse_text *out);
int ll_fuse_word(const ll_fuse_text *t, const char *word); /* -1: none */
/* Binds holes to attributes; false: these are not what is given. first: the first operand's shape.
 */
bool ll_fuse_attrs(const ll_fuse_line *l, const void *attr, const ll_shape *first,
                   ll_fuse_holes *h);
/* Appends the node of a line; now: values by words. */
ll_err ll_fuse_put(ll_graph *g, const ll_fuse_line *l, const ll_fuse_holes *h, ll_val *now);

/* The one fusion of a file, for a machine: its stage; then what it looks for. */
#define LL_FUSION(file, machine, when, ...)                                                        \
    static const ll_fusion fusion = {                                                              \
        .name = #file, .stage = LL_FUSE_##when, .target = &ll_target_##machine, __VA_ARGS__};      \
    const ll_fusion *const ll_fusions_##file[] = {&fusion, NULL};
#define LL_GPU_FUSION(file, when, ...) LL_FUSION(file, cuda, when, __VA_ARGS__)
#define LL_CPU_FUSION(file, when, ...) LL_FUSION(file, cpu, when, __VA_ARGS__)

/* ---- for guards ---- */
struct ll_match {
    const ll_graph *g;
    const int *uses;
    const int *first, *reader; /* value v is read by nodes reader[first[v]] to [first[v + 1] - 1] */
    const ll_fuse_text *t;
    const ll_node *node[LL_FUSE_LINES]; /* of the pattern's lines */
    ll_val value[LL_FUSE_WORDS];
    ll_fuse_holes holes;
    int at[LL_FUSE_LINES];     /* where lines of the replacement stand */
    ll_val now[LL_FUSE_WORDS]; /* new values */
    char why[128];             /* not */
};
ll_val ll_match_value(const ll_match *m, const char *word);
const ll_node *ll_match_node(const ll_match *m, const char *word); /* that makes it */
const ll_node *ll_match_reader(const ll_match *m, ll_val v); /* the only one; NULL: none, or many */
/* What the replacement reads by this word, and what a hole of it is: bytes of an attribute. */
void ll_match_bind(ll_match *m, const char *word, ll_val v);
void ll_match_set(ll_match *m, const char *hole, const void *data, size_t bytes);
/* False, and why. */
bool ll_match_no(ll_match *m, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- products of fixed point (fuse/grid_matmul.c) ---- */
/* "mk,kn->mn" whose operands have scales as "ab,a->ab" and "ab,b->ab" say: "mk,kn,m,n->" and the
 * result's letters. Scales are the result's. */
ll_err ll_scaled_dims(const char *spec, const char *a, const char *b, const char *result,
                      char dims[LL_DIMS_TEXT]);
/* Are operands a and b of a product such, of f32? */
bool ll_scaled_match(ll_match *m, const char *spec);

/* ---- products (fuse/product.c) ---- */
const ll_op *ll_product_op(int n_out);
/* Whether a product is one of two matrices, so that it may be such an op. */
bool ll_product_plain(const char *spec);
/* How many of the result's last dimensions are the second operand's. */
int ll_product_columns(const char *spec);

/* ---- batch norms (fuse/batchnorm_relu.c) ---- */
/* Of a norm whose statistics are given: gain, bias, mean, var. */
ll_val ll_normed(ll_graph *g, double eps, ll_val x, const ll_val *norm);
