/* shape.c: ops that move elements and compute nothing: fill, reshape, transpose, broadcast, slice,
 * pad, concat. Broadcast and sum are each other's gradients, as are slice and pad.
 *
 * Cutting. A part of a fill, broadcast or reshape has its own shape in its attributes (split). No
 * loop walks the dimensions that a reshape mixes, nor the one that slice, pad and concat change. */
#include "base/num.h"
#include "op/op_int.h"

LL_KERNELS(fill, reshape, transpose, broadcast, slice, pad, concat)

static const ll_op pad, concat;

/* ---- helpers ---- */

ll_err ll_check_dim(int64_t dim, const ll_shape *s)
{
    CHECK(dim >= 0 && dim < s->n, LL_E_SHAPE, "dimension %ld of %d", dim, s->n);
    return LL_OK;
}

bool ll_is_dim(ll_graph *g, const char *what, ll_val x, int dim)
{
    int n = x.id ? ll_graph_shape(g, x).n : 0;
    if (x.id && (dim < 0 || dim >= n))
        ll_reject(g, LL_E_SHAPE, "%s%s: dimension %d of %d", ll_scope(g), what, dim, n);
    return x.id && dim >= 0 && dim < n;
}

ll_err ll_check_bits(int64_t bits, ll_dtype t)
{
    CHECK(!bits || (bits >= 2 && bits <= LL_MOST_ROUNDED), LL_E_ARG,
          "products rounded to multiples of 2^%ld, expected 2^2 to 2^%d", bits, LL_MOST_ROUNDED);
    CHECK(!bits || t == LL_F64, LL_E_ARG, "products of %s are not rounded, those of f64 are",
          ll_dtype_name(t));
    return LL_OK;
}

const char *ll_spec_reverse(const char *spec, char out[LL_SPEC_MAX])
{
    ll_spec s;
    memset(out, 0, LL_SPEC_MAX);
    if (ll_spec_parse(spec, &s) == LL_OK) strcat(strcat(strcpy(out, s.out), "->"), s.in);
    return out;
}

ll_err ll_spec_loops(const char *spec, bool (*fits)(const ll_spec *s), const char *what,
                     char dims[LL_DIMS_TEXT])
{
    ll_spec s;
    TRY(ll_spec_parse(spec, &s));
    CHECK(fits(&s), LL_E_ARG, "\"%s\" is no %s", spec, what);
    strcpy(dims, spec);
    return LL_OK;
}

/* Attributes are compared as bytes: nothing but the dimensions in use may be set. */
static void set_shape(ll_shape *to, const ll_shape *from)
{
    to->n = from->n;
    for (int i = 0; i < from->n && i < LL_MAX_DIMS; i++) to->d[i] = from->d[i];
}

static void set_spec(char to[LL_SPEC_MAX], const char *from)
{
    strncpy(to, from, LL_SPEC_MAX - 1);
}

/* Loops of so many dimensions, "ab_d": none walks dimension skip, which may be dropped. */
static char *put_letters(char *at, int n, int64_t skip, bool drop)
{
    for (int i = 0; i < n; i++)
        if (i != skip || !drop) *at++ = i == skip ? '_' : (char)('a' + i);
    *at = '\0';
    return at;
}

ll_err ll_dim_loops(int64_t dim, const ll_type *in, bool drop, char dims[LL_DIMS_TEXT])
{
    int n = in[0].shape.n;
    put_letters(strcpy(put_letters(dims, n, dim, false), "->") + 2, n, dim, drop);
    return LL_OK;
}

/* The part's own shape, in its attributes. */
#define SPLIT(name, type)                                                                          \
    static ll_err name(const void *, const ll_loops *l, int loop, ll_range range, const ll_type *, \
                       ll_part *part)                                                              \
    {                                                                                              \
        ll_shape *s = &((type *)part->attr)->shape;                                                \
        for (int d = 0; d < s->n; d++)                                                             \
            if (l->out[0][d] == loop) s->d[d] = range.to - range.from;                             \
        return LL_OK;                                                                              \
    }
SPLIT(fill_split, ll_fill_attr)
SPLIT(reshape_split, ll_reshape_attr)
SPLIT(broadcast_split, ll_broadcast_attr)

/* ---- fill ---- */

ll_val ll_fill(ll_graph *g, ll_dtype dtype, ll_shape shape, double value)
{
    ll_fill_attr a;
    memset(&a, 0, sizeof a);
    a.dtype = dtype;
    a.value = value;
    set_shape(&a.shape, &shape);
    return ll_emit(g, &ll_op_fill, &a, NULL, 0);
}

ll_val ll_like(ll_graph *g, ll_val x, double value)
{
    return ll_fill(g, x.id ? ll_graph_dtype(g, x) : LL_F32, LL_SCALAR, value);
}

static ll_err fill_infer(ll_infer *i)
{
    const ll_fill_attr *a = i->attr;
    TRY(ll_check_shape(&a->shape));
    CHECK((unsigned)a->dtype < LL_N_DTYPE, LL_E_ARG, "no element type has number %d",
          (int)a->dtype);
    i->out[0] = (ll_type){a->dtype, a->shape};
    return LL_OK;
}

static ll_err fill_loops(const void *attr, int, const ll_type *, char dims[LL_DIMS_TEXT])
{
    const ll_fill_attr *a = attr;
    put_letters(strcpy(dims, "->") + 2, a->shape.n, -1, false);
    return LL_OK;
}

const ll_op ll_op_fill = {
    LL_REF_OP(fill, COPY, 0, 1, .parts = true),
    LL_ATTRS(ll_fill_attr, dtype, shape, value),
    .infer = fill_infer,
    .loops = fill_loops,
    .split = fill_split,
    .no_grad = true,
    .f64 = true,
    .trials = {"{dtype=f32, shape=[3,7], value=1.5}", "{dtype=f32, shape=[], value=-2}",
               "{dtype=i32, shape=[5], value=3}", "{dtype=f32, shape=[0,2], value=1}"},
};

/* ---- reshape ---- */

ll_val ll_reshape(ll_graph *g, ll_val x, ll_shape shape)
{
    if (ll_rejected(g) || !ll_has_value(g, x)) return LL_EMIT(g, &ll_op_reshape, NULL, x);
    ll_shape have = ll_graph_shape(g, x);
    int64_t n = ll_numel(&have), rest = 1;
    int open = -1, n_open = 0;
    ll_reshape_attr a;
    memset(&a, 0, sizeof a);
    set_shape(&a.shape, &shape);
    for (int i = 0; i < shape.n && i < LL_MAX_DIMS; i++) {
        if (shape.d[i] == -1)
            open = i, n_open++;
        else
            rest *= shape.d[i];
    }
    if (n_open > 1 || (n_open == 1 && (rest <= 0 || n % rest))) {
        char from[LL_SHAPE_TEXT], to[LL_SHAPE_TEXT];
        return ll_reject(g, LL_E_SHAPE, "%sreshape: %s cannot become %s", ll_scope(g),
                         ll_shape_print(&have, from), ll_shape_print(&shape, to));
    }
    if (n_open) a.shape.d[open] = n / rest;
    if (ll_shape_equal(&a.shape, &have)) return x;
    return LL_EMIT(g, &ll_op_reshape, &a, x);
}

static ll_err reshape_infer(ll_infer *i)
{
    const ll_reshape_attr *a = i->attr;
    TRY(ll_check_shape(&a->shape));
    char from[LL_SHAPE_TEXT], to[LL_SHAPE_TEXT];
    CHECK(ll_numel(&a->shape) == ll_numel(&i->in[0].shape), LL_E_SHAPE,
          "%s has %ld elements, %s has %ld", ll_shape_print(&i->in[0].shape, from),
          ll_numel(&i->in[0].shape), ll_shape_print(&a->shape, to), ll_numel(&a->shape));
    i->out[0] = (ll_type){i->in[0].dtype, a->shape};
    return LL_OK;
}

/* Leading dimensions that stay, and trailing ones, are loops; between them no dimension is known to
 * be another's. */
static ll_err reshape_loops(const void *attr, int, const ll_type *in, char dims[LL_DIMS_TEXT])
{
    const ll_shape *to = &((const ll_reshape_attr *)attr)->shape, *from = &in[0].shape;
    int lead = 0, trail = 0, least = from->n < to->n ? from->n : to->n;
    while (lead < least && from->d[lead] == to->d[lead]) lead++;
    while (lead + trail < least && from->d[from->n - 1 - trail] == to->d[to->n - 1 - trail])
        trail++;
    const ll_shape *const sides[] = {from, to};
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < sides[k]->n; i++) {
            int end = sides[k]->n - 1 - i;
            *dims++ = (char)(i < lead ? 'a' + i : end < trail ? 'z' - end : '_');
        }
        dims = strcpy(dims, k ? "" : "->") + (k ? 0 : 2);
    }
    return LL_OK;
}

static void reshape_grad(ll_bwd *b)
{
    b->din[0] = ll_reshape(b->g, b->dout[0], ll_graph_shape(b->g, b->in[0]));
}

const ll_op ll_op_reshape = {
    LL_REF_OP(reshape, COPY, 1, 1, .parts = true),
    LL_ATTRS(ll_reshape_attr, shape),
    .infer = reshape_infer,
    .loops = reshape_loops,
    .split = reshape_split,
    .grad = reshape_grad,
    .linear = true,
    .alias = true,
    .f64 = true,
    .trials = {"f32[6,5] {shape=[2,15]}", "f32[1] {shape=[]}", "f32[3,0] {shape=[0,7,2]}",
               "i32[4]<9 {shape=[2,1,2]}"},
};

/* ---- transpose ---- */

ll_val ll_transpose(ll_graph *g, ll_val x, const char *spec)
{
    ll_spec_attr a = {0};
    if (!ll_has_argument(g, "transpose", "spec", spec)) return (ll_val){0};
    set_spec(a.spec, spec);
    return LL_EMIT(g, &ll_op_transpose, &a, x);
}

static bool permutes(const ll_spec *s)
{
    bool same = s->n_in == s->n_out;
    for (int i = 0; i < s->n_in; i++) same &= s->to[i] >= 0;
    return same;
}

static ll_err transpose_loops(const void *attr, int, const ll_type *, char dims[LL_DIMS_TEXT])
{
    return ll_spec_loops(((const ll_spec_attr *)attr)->spec, permutes, "permutation", dims);
}

static void transpose_grad(ll_bwd *b)
{
    const ll_spec_attr *a = b->attr;
    char back[LL_SPEC_MAX];
    b->din[0] = ll_transpose(b->g, b->dout[0], ll_spec_reverse(a->spec, back));
}

const ll_op ll_op_transpose = {
    LL_REF_OP(transpose, COPY, 1, 1, .parts = true),
    LL_ATTRS(ll_spec_attr, spec),
    .loops = transpose_loops,
    .grad = transpose_grad,
    .linear = true,
    .f64 = true,
    .trials = {"f32[5,7] {spec=\"ab->ba\"}", "f32[2,5,3,4] {spec=\"bthd->bhtd\"}",
               "f32[3,1,5] {spec=\"abc->cab\"}", "i32[3,0]<5 {spec=\"ab->ba\"}",
               "f32[2,3,2,3,2] {spec=\"abcde->cabed\"}", "f32[] {spec=\"->\"}"},
};

/* ---- broadcast ---- */

ll_val ll_broadcast(ll_graph *g, ll_val x, const char *spec, ll_shape shape)
{
    ll_broadcast_attr a;
    if (!ll_has_argument(g, "broadcast", "spec", spec)) return (ll_val){0};
    memset(&a, 0, sizeof a);
    set_spec(a.spec, spec);
    set_shape(&a.shape, &shape);
    return LL_EMIT(g, &ll_op_broadcast, &a, x);
}

static ll_err broadcast_loops(const void *attr, int, const ll_type *, char dims[LL_DIMS_TEXT])
{
    return ll_spec_loops(((const ll_broadcast_attr *)attr)->spec, ll_spec_grows,
                         "broadcast: the operand's letters must be in the result, in their order",
                         dims);
}

static ll_err broadcast_infer(ll_infer *i) /* that extents agree is checked with the loops */
{
    const ll_broadcast_attr *a = i->attr;
    TRY(ll_check_shape(&a->shape));
    i->out[0] = (ll_type){i->in[0].dtype, a->shape};
    return LL_OK;
}

static void broadcast_grad(ll_bwd *b)
{
    const ll_broadcast_attr *a = b->attr;
    char back[LL_SPEC_MAX];
    b->din[0] = ll_sum(b->g, b->dout[0], ll_spec_reverse(a->spec, back));
}

const ll_op ll_op_broadcast = {
    LL_REF_OP(broadcast, COPY, 1, 1, .parts = true),
    LL_ATTRS(ll_broadcast_attr, spec, shape),
    .infer = broadcast_infer,
    .loops = broadcast_loops,
    .split = broadcast_split,
    .grad = broadcast_grad,
    .linear = true,
    .f64 = true,
    .trials = {"f32[3] {spec=\"c->nhwc\", shape=[2,5,1,3]}", "f32[] {spec=\"->ab\", shape=[3,5]}",
               "f32[2,3] {spec=\"nc->nhwc\", shape=[2,5,7,3]}",
               "f32[7] {spec=\"n->nc\", shape=[7,3]}", "f32[2,3] {spec=\"ab->ab\", shape=[2,3]}",
               "f32[0] {spec=\"c->nc\", shape=[4,0]}"},
};

/* ---- slice, pad ---- */

ll_val ll_slice(ll_graph *g, ll_val x, int dim, int64_t from, int64_t to)
{
    return LL_EMIT(g, &ll_op_slice, (&(ll_range_attr){dim, from, to}), x);
}

ll_val ll_pad(ll_graph *g, ll_val x, int dim, int64_t before, int64_t after)
{
    return LL_EMIT(g, &pad, (&(ll_range_attr){dim, before, after}), x);
}

static ll_err range_loops(const void *attr, int, const ll_type *in, char dims[LL_DIMS_TEXT])
{
    return ll_dim_loops(((const ll_range_attr *)attr)->dim, in, false, dims);
}

static ll_err slice_infer(ll_infer *i)
{
    const ll_range_attr *a = i->attr;
    TRY(ll_check_dim(a->dim, &i->in[0].shape));
    i->out[0] = i->in[0];
    int64_t *d = &i->out[0].shape.d[a->dim];
    CHECK(a->from >= 0 && a->from <= a->to && a->to <= *d, LL_E_SHAPE,
          "%ld to %ld is no range of dimension %ld, which has %ld", a->from, a->to, a->dim, *d);
    *d = a->to - a->from;
    return LL_OK;
}

static void slice_grad(ll_bwd *b)
{
    const ll_range_attr *a = b->attr;
    int64_t all = ll_graph_shape(b->g, b->in[0]).d[a->dim];
    b->din[0] = ll_pad(b->g, b->dout[0], (int)a->dim, a->from, all - a->to);
}

static ll_err pad_infer(ll_infer *i)
{
    const ll_range_attr *a = i->attr;
    TRY(ll_check_dim(a->dim, &i->in[0].shape));
    CHECK(a->from >= 0 && a->to >= 0 && a->from < INT64_MAX / 4 && a->to < INT64_MAX / 4,
          LL_E_SHAPE, "padding of %ld before and %ld after", a->from, a->to);
    i->out[0] = i->in[0];
    i->out[0].shape.d[a->dim] += a->from + a->to;
    return ll_check_shape(&i->out[0].shape);
}

static void pad_grad(ll_bwd *b)
{
    const ll_range_attr *a = b->attr;
    int64_t inner = ll_graph_shape(b->g, b->in[0]).d[a->dim];
    b->din[0] = ll_slice(b->g, b->dout[0], (int)a->dim, a->from, a->from + inner);
}

#define RANGE_OP(fn)                                                                               \
    LL_REF_OP(fn, COPY, 1, 1, .parts = true), LL_ATTRS(ll_range_attr, dim, from, to),              \
        .loops = range_loops, .linear = true, .f64 = true

const ll_op ll_op_slice = {
    RANGE_OP(slice),
    .infer = slice_infer,
    .grad = slice_grad,
    .trials = {"f32[7,5] {dim=0, from=2, to=5}", "f32[2,7,3] {dim=1, from=0, to=1}",
               "f32[4,5] {dim=1, from=3, to=3}", "i32[9]<5 {dim=0, from=8, to=9}"},
};
static const ll_op pad = {
    RANGE_OP(pad),
    .infer = pad_infer,
    .grad = pad_grad,
    .trials = {"f32[7,5] {dim=0, from=2, to=1}", "f32[2,7,3] {dim=1, from=0, to=3}",
               "f32[3,0] {dim=1, from=1, to=1}", "i32[5]<5 {dim=0, from=0, to=0}"},
};

/* ---- concat ---- */

/* More than an op has operands: so many at a time, then what they make. */
ll_val ll_concat(ll_graph *g, const ll_val *x, int n, int dim)
{
    if (n > 0 && !ll_has_argument(g, "concat", "x", x)) return (ll_val){0};
    if (n == 1 && dim >= 0 && dim < ll_graph_shape(g, x[0]).n) return x[0];
    if (n <= LL_MAX_IN) return ll_emit(g, &concat, &(ll_range_attr){.dim = dim}, x, n);
    ll_val *part = LL_NEW_ARRAY(g->arena, ll_val, n / LL_MAX_IN + 1);
    int parts = 0;
    for (int i = 0; i < n; i += LL_MAX_IN)
        part[parts++] = ll_concat(g, x + i, n - i < LL_MAX_IN ? n - i : LL_MAX_IN, dim);
    return ll_concat(g, part, parts, dim);
}

static ll_err concat_infer(ll_infer *i)
{
    const ll_range_attr *a = i->attr;
    CHECK(i->n_in > 0, LL_E_ARG, "nothing to concatenate");
    TRY(ll_check_dim(a->dim, &i->in[0].shape));
    i->out[0] = i->in[0];
    for (int k = 1; k < i->n_in; k++) {
        CHECK(i->in[k].dtype == i->in[0].dtype, LL_E_SHAPE, "operands are %s and %s",
              ll_dtype_name(i->in[0].dtype), ll_dtype_name(i->in[k].dtype));
        TRY(ll_check_dim(a->dim, &i->in[k].shape));
        i->out[0].shape.d[a->dim] += i->in[k].shape.d[a->dim];
    }
    return LL_OK; /* that the other extents agree is checked with the loops */
}

static void concat_grad(ll_bwd *b)
{
    const ll_range_attr *a = b->attr;
    int64_t at = 0;
    for (int i = 0; i < b->n_in; i++) {
        int64_t n = ll_graph_shape(b->g, b->in[i]).d[a->dim];
        b->din[i] = ll_slice(b->g, b->dout[0], (int)a->dim, at, at + n);
        at += n;
    }
}

static const ll_op concat = {
    LL_REF_OP(concat, COPY, -1, 1, .parts = true),
    LL_ATTRS(ll_range_attr, dim),
    .infer = concat_infer,
    .loops = range_loops,
    .grad = concat_grad,
    .linear = true,
    .f64 = true,
    .trials = {"f32[2,3], f32[5,3] {dim=0}", "f32[4,1,2], f32[4,3,2], f32[4,2,2] {dim=1}",
               "f32[3,2], f32[3,0] {dim=1}", "i32[5]<7 {dim=0}"},
};

const ll_op *const ll_ops_shape[] = {
    &ll_op_fill,  &ll_op_reshape, &ll_op_transpose, &ll_op_broadcast,
    &ll_op_slice, &pad,           &concat,          NULL};
