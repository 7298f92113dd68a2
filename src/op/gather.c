/* gather.c: elements of x by an index along one of its dimensions, its loops named by letters:
 * "avc,i->aic" is y[a,i,c] = x[a,index[i],c] (NumPy's take), "av,aw->aw" y[a,w] = x[a,index[a,w]]
 * (take along an axis). v, x's letter that is not in the result, is the one that is picked from.
 * scatter_add is its transpose, with the same spec: x[a,index[i],c] += y[a,i,c].
 *
 * v is a summed loop: a part that holds elements from .. from+v-1 gives zeros for all others, and
 * parts add up. Each op is the other's gradient. */
#include "op/op_int.h"
#include "op/rows.h"

#include <stdio.h>

LL_KERNELS(gather, scatter_add)

static const ll_op gather, scatter_add;

enum { X, INDEX, Y };

/* Parts of the spec, which may come from text, and v. */
static ll_err read_spec(const char *spec, ll_spec_parts *p, char *v)
{
    TRY(ll_spec_split(spec, p));
    *v = 0;
    for (const char *c = p->part[X]; *c; c++) {
        if (strchr(p->part[Y], *c)) continue;
        CHECK(!*v, LL_E_ARG, "spec \"%s\": both %c and %c are not in the result", spec, *v, *c);
        *v = *c;
    }
    CHECK(*v && !strchr(p->part[INDEX], *v), LL_E_ARG,
          "spec \"%s\": no dimension is picked from, expected one like \"avc,i->aic\"", spec);
    for (const char *c = p->part[INDEX]; *c; c++)
        CHECK(strchr(p->part[Y], *c), LL_E_ARG, "spec \"%s\": %c is not in the result", spec, *c);
    for (const char *c = p->part[Y]; *c; c++)
        CHECK(strchr(p->part[X], *c) || strchr(p->part[INDEX], *c), LL_E_ARG,
              "spec \"%s\": %c is in the result alone", spec, *c);
    return LL_OK;
}

#define LOOPS(name, x, y)                                                                          \
    static ll_err name(const void *attr, int, const ll_type *, char dims[LL_DIMS_TEXT])            \
    {                                                                                              \
        ll_spec_parts p;                                                                           \
        char v;                                                                                    \
        TRY(read_spec(((const ll_gather_attr *)attr)->spec, &p, &v));                              \
        snprintf(dims, LL_DIMS_TEXT, "%s,%s->%s", p.part[x], p.part[INDEX], p.part[y]);            \
        return LL_OK;                                                                              \
    }
LOOPS(loops, X, Y)
LOOPS(scatter_loops, Y, X)

/* Shapes go by letters: of which operand's dimension each of the result is. */
static ll_err shape_of(const char *letters, const ll_spec_parts *p, const int part[2],
                       const ll_infer *i, ll_shape *out)
{
    *out = (ll_shape){.n = (int)strlen(letters)};
    for (int d = 0; d < out->n; d++)
        for (int k = 0; k < 2; k++) {
            const char *at = strchr(p->part[part[k]], letters[d]);
            int dim = at ? (int)(at - p->part[part[k]]) : -1;
            CHECK(dim < i->in[k].shape.n, LL_E_SHAPE, "operand %d has %d dimensions, expected %s",
                  k, i->in[k].shape.n, p->part[part[k]]);
            if (at) out->d[d] = i->in[k].shape.d[dim];
        }
    return ll_check_shape(out); /* that extents agree is checked with the loops */
}

static ll_err infer(ll_infer *i)
{
    const ll_gather_attr *a = (const ll_gather_attr *)i->attr;
    bool back = i->op == &scatter_add;
    ll_shape *out = &i->out[0].shape;
    ll_spec_parts p;
    char v;
    CHECK(a->from >= 0 && a->from <= INT32_MAX, LL_E_ARG, "from = %ld, expected an index", a->from);
    TRY(ll_check_index(i, 1));
    TRY(read_spec(a->spec, &p, &v));
    i->out[0].dtype = back ? ll_wide(i->in[0].dtype) : i->in[0].dtype;
    if (!back) return shape_of(p.part[Y], &p, (int[]){X, INDEX}, i, out);
    TRY(ll_check_float(i->in[0].dtype, "operand 0 is"));
    TRY(shape_of(p.part[X], &p, (int[]){Y, INDEX}, i, out));
    out->d[strchr(p.part[X], v) - p.part[X]] = a->v;
    return ll_check_shape(out);
}

/* A cut of v holds some of the elements; other loops need nothing. */
static ll_err split(const void *attr, const ll_loops *l, int loop, ll_range range, const ll_type *,
                    ll_part *part)
{
    ll_gather_attr *a = (ll_gather_attr *)part->attr;
    ll_spec_parts p;
    char v;
    TRY(read_spec(((const ll_gather_attr *)attr)->spec, &p, &v));
    if (l->letter[loop] != v) return LL_OK;
    a->from += range.from;
    if (!a->part) a->part = l->extent[loop];
    if (a->v) a->v = range.to - range.from;
    return LL_OK;
}

static void grad(ll_bwd *b)
{
    ll_gather_attr a = *(const ll_gather_attr *)b->attr;
    ll_spec_parts p;
    char v;
    if (read_spec(a.spec, &p, &v) != LL_OK) {
        ll_fail(b->g);
        return;
    }
    a.v = ll_graph_shape(b->g, b->in[0]).d[strchr(p.part[X], v) - p.part[X]];
    b->din[0] = LL_EMIT(b->g, &scatter_add, &a, b->dout[0], b->in[1]);
}

static void scatter_grad(ll_bwd *b)
{
    ll_gather_attr a = *(const ll_gather_attr *)b->attr;
    a.v = 0;
    b->din[0] = LL_EMIT(b->g, &gather, &a, b->dout[0], b->in[1]);
}

static const ll_op gather = {
    LL_REF_OP(gather, EMBEDDING, 2, 1),
    LL_ATTRS(ll_gather_attr, spec, v, from, part),
    .sum = "?",
    .picks = true,
    .infer = infer,
    .loops = loops,
    .split = split,
    .grad = grad,
    .f64 = true,
    .trials = {"f32[2,5,3], i32[4]<5 {spec=\"avc,i->aic\"}",
               "f32[3,6], i32[3,4]<6 {spec=\"av,aw->aw\"}",
               "f32[2,5,3], i32[2,2,3]<5 {spec=\"avc,awc->awc\"}",
               "f32[4,3], i32[13]<9 {spec=\"vc,i->ic\", from=3, part=9}",
               "f32[2,7], i32[3,2]<7 {spec=\"av,ij->aij\"}", "f32[3,4], i32[]<4 {spec=\"av,->a\"}",
               "i32[6]<99, i32[2,2]<6 {spec=\"v,ij->ij\"}",
               "u8[6,2]<99, i32[3]<6 {spec=\"vc,i->ic\"}",
               "f32[0,2], i32[0]<4 {spec=\"vc,i->ic\"}"},
};

static const ll_op scatter_add = {
    LL_SOME_OP(scatter_add, EMBEDDING, 2, 1),
    LL_ATTRS(ll_gather_attr, spec, v, from, part),
    .sum = "?",
    .wide_out = 1u << 0,
    .infer = infer,
    .loops = scatter_loops,
    .split = split,
    .grad = scatter_grad,
    .f64 = true,
    .trials = {"f32[2,4,3], i32[4]<5 {spec=\"avc,i->aic\", v=5}",
               "f32[3,4], i32[3,4]<6 {spec=\"av,aw->aw\", v=6}",
               "f32[2,2,3], i32[2,2,3]<5 {spec=\"avc,awc->awc\", v=5}",
               "f32[13,3], i32[13]<9 {spec=\"vc,i->ic\", v=4, from=3, part=9}",
               "f32[3], i32[]<4 {spec=\"av,->a\", v=4}",
               "f32[40,31,9], i32[31]<6 {spec=\"avc,i->aic\", v=6}",
               "f32[0,2], i32[0]<4 {spec=\"vc,i->ic\", v=3}"},
};

/* ---- builders ---- */

ll_val ll_gather(ll_graph *g, ll_val x, ll_val index, int dim)
{
    if (!ll_is_dim(g, "gather", x, dim) || !index.id) return (ll_val){0};
    ll_shape s = ll_graph_shape(g, x), n = ll_graph_shape(g, index);
    if (s.n + n.n - 1 > LL_MAX_DIMS)
        return ll_reject(g, LL_E_SHAPE, "%sgather: a result of %d dimensions, at most %d",
                         ll_scope(g), s.n + n.n - 1, LL_MAX_DIMS);
    bool indices = ll_graph_dtype(g, index) == LL_I32; /* else this op says what is wrong */
    if (s.n == 2 && dim == 0 && indices && ll_dtype_is_float(ll_graph_dtype(g, x)))
        return ll_embedding(g, x, index);
    ll_gather_attr a = {0};
    snprintf(a.spec, sizeof a.spec, "%.*s,%.*s->%.*s%.*s%.*s", s.n, "abcdef", n.n, "pqrstu", dim,
             "abcdef", n.n, "pqrstu", s.n - dim - 1, &"abcdef"[dim + 1]);
    return LL_EMIT(g, &gather, &a, x, index);
}

/* "abc,apc->apc" for dim 1 of 3 */
static ll_gather_attr along(int n, int dim, int64_t v)
{
    ll_gather_attr a = {.v = v};
    char with[] = "abcdef";
    with[dim] = 'p';
    snprintf(a.spec, sizeof a.spec, "%.*s,%.*s->%.*s", n, "abcdef", n, with, n, with);
    return a;
}

ll_val ll_gather_elements(ll_graph *g, ll_val x, ll_val index, int dim)
{
    if (!ll_is_dim(g, "gather_elements", x, dim) || !index.id) return (ll_val){0};
    ll_shape s = ll_graph_shape(g, x), n = ll_graph_shape(g, index);
    for (int d = 0; d < s.n && s.n == n.n; d++)
        if (d != dim && n.d[d] < s.d[d]) x = ll_slice(g, x, d, 0, n.d[d]);
    ll_gather_attr a = along(s.n, dim, 0);
    return LL_EMIT(g, &gather, &a, x, index);
}

ll_val ll_scatter_add(ll_graph *g, ll_val x, ll_val index, int dim, int64_t size)
{
    if (!ll_is_dim(g, "scatter_add", x, dim)) return (ll_val){0};
    ll_gather_attr a = along(ll_graph_shape(g, x).n, dim, size);
    return LL_EMIT(g, &scatter_add, &a, x, index);
}

ll_val ll_one_hot(ll_graph *g, ll_val index, int64_t size, ll_dtype dtype)
{
    return ll_onehot(g, index, size, 0, dtype);
}

const ll_op *const ll_ops_gather[] = {&gather, &scatter_add, NULL};
