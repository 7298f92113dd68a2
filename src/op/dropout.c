/* dropout: y = x / (1-p) where a random number in (0,1) is at least p, else 0.   x, y [*]
 *
 * The number of an element is a function of (seed, step, stream, index in the whole tensor, all
 * micro-batches counted), so a part of a cut tensor draws what the whole one would. The gradient is
 * the same op with the same numbers. */
#include "base/rng.h"
#include "op/op_int.h"
#include "op/rows.h"

#include <stdio.h>

LL_KERNELS(dropout)

static ll_err infer(ll_infer *i)
{
    const ll_dropout_attr *a = (const ll_dropout_attr *)i->attr;
    const ll_shape *s = &i->in[0].shape;
    TRY(ll_check_float(i->in[0].dtype, "operand is"));
    CHECK(a->p >= 0 && a->p < 1, LL_E_ARG, "p = %g, expected 0 <= p < 1", a->p);
    TRY(ll_check_shape(&a->whole));
    bool fits = a->whole.n == s->n;
    for (int d = 0; fits && d < s->n; d++)
        fits = a->at[d] >= 0 && a->at[d] + s->d[d] <= a->whole.d[d];
    char text[LL_SHAPE_TEXT];
    CHECK(fits, LL_E_SHAPE, "operand is no part of a tensor %s", ll_shape_print(&a->whole, text));
    return ll_infer_dims(i);
}

static ll_err split(const void *, const ll_loops *l, int loop, ll_range range, const ll_type *in,
                    ll_part *part)
{
    ll_dropout_attr *a = (ll_dropout_attr *)part->attr;
    for (int d = 0; d < in[0].shape.n; d++)
        if (l->in[0][d] == loop) a->at[d] += range.from;
    return LL_OK;
}

static void grad(ll_bwd *b);

static const ll_op dropout = {
    LL_REF_OP(dropout, OTHER, 1, 1),
    LL_ATTRS(ll_dropout_attr, p, stream, whole, at),
    .dims = "* -> *",
    .infer = infer,
    .split = split,
    .grad = grad,
    .flop = 1,
    .in_place = 1,
    .random = true,
    .trials = {"f32[3,7] {p=0.5, stream=5, whole=[3,7]}",
               "f32[2,3,5] {p=0.1, stream=-77, whole=[4,3,9], at=[1,0,2,0,0,0]}",
               "f32[1] {p=0, stream=1, whole=[1]}", "f32[] {p=0.25, stream=2, whole=[]}",
               "f32[5,8] {p=0.5, stream=9, whole=[5,8]}"},
};

static void grad(ll_bwd *b)
{
    b->din[0] = LL_EMIT(b->g, &dropout, b->attr, b->dout[0]);
}

static bool stream_taken(const ll_graph *g, int64_t stream)
{
    for (int i = 0; i < g->n_node; i++)
        if (g->nodes[i].op == &dropout &&
            ((const ll_dropout_attr *)g->nodes[i].attr)->stream == stream)
            return true;
    return false;
}

/* The stream comes from the scoped name and, where one scope drops more than once, a count. */
ll_val ll_dropout(ll_graph *g, ll_val x, double p)
{
    if (!x.id || p == 0) return x;
    if (ll_rejected(g)) return (ll_val){0};
    ll_dropout_attr a = {.p = p, .whole = ll_graph_shape(g, x)};
    char name[sizeof g->scope + 32];
    for (int k = 0; k == 0 || stream_taken(g, a.stream); k++) {
        snprintf(name, sizeof name, "%sdropout.%d", ll_scope(g), k);
        a.stream = (int64_t)ll_stream(name, 0);
    }
    return LL_EMIT(g, &dropout, &a, x);
}

const ll_op *const ll_ops_dropout[] = {&dropout, NULL};
