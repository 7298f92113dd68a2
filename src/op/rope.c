/* rope: rotary positions. Pair i of row t is turned by the angle (at + t) / base^(2 i / d):
 *   (x, y) -> (x cos - y sin, x sin + y cos)
 * Its gradient turns back. A part of t knows where it starts. Where places are given, i32 [b,t],
 * they stand for t: sequences that go on. Heads may be two dimensions, [b,t,n,g,d]. */
#include "kern/attr.h"
#include "op/rows.h"

#include <stdio.h>

LL_KERNELS(rope)

static ll_err infer(ll_infer *i)
{
    const ll_rope_attr *a = (const ll_rope_attr *)i->attr;
    const ll_shape *s = &i->in[0].shape;
    char text[LL_SHAPE_TEXT];
    CHECK((s->n == 4 || s->n == 5) && s->d[s->n - 1] % 2 == 0, LL_E_SHAPE,
          "x is %s, expected [batch,time,heads,width] of an even width, heads of one dimension or "
          "two",
          ll_shape_print(s, text));
    CHECK(a->base > 0, LL_E_ARG, "base is %g, expected more than 0", a->base);
    TRY(ll_check_float(i->in[0].dtype, "x is"));
    if (i->n_in > 1) TRY(ll_check_index(i, 1));
    return ll_infer_dims(i);
}

static ll_err loops(const void *, int n_in, const ll_type *in, char dims[LL_DIMS_TEXT])
{
    const char *x = in[0].shape.n == 5 ? "btngd" : "bthd";
    snprintf(dims, LL_DIMS_TEXT, "%s%s->%s", x, n_in > 1 ? ",bt" : "", x);
    return LL_OK;
}

static ll_err split(const void *, const ll_loops *l, int loop, ll_range range, const ll_type *,
                    ll_part *part)
{
    bool given = l->in[1][0] >= 0; /* places come with their part */
    if (l->letter[loop] == 't' && !given) ((ll_rope_attr *)part->attr)->at += range.from;
    return LL_OK;
}

static void grad(ll_bwd *b);

static const ll_op rope = {
    LL_REF_OP(rope, OTHER, 1, 1, .parts = true),
    LL_ATTRS(ll_rope_attr, base, at, interleaved, back),
    .n_more = 1,
    .loops = loops,
    .whole = "d",
    .infer = infer,
    .split = split,
    .grad = grad,
    .flop = 3,
    .linear = true,
    .in_place = 1,
    .trials = {"f32[2,5,3,4] {base=100, at=0, interleaved=0, back=0}",
               "f32[1,7,1,6] {base=10000, at=3, interleaved=1, back=0}",
               "f32[3,1,2,2] {base=10, at=70000, interleaved=1, back=1}",
               "f32[1,2,1,140] {base=1e4, at=900, interleaved=0, back=1}",
               "f32[2,3,2,3,4] {base=100, at=1, interleaved=0, back=0}",
               "f32[3,21,2,64] {base=1e4, at=3, interleaved=0, back=1}",
               "f32[2,9,3,2,128] {base=1e4, at=0, interleaved=0, back=0}",
               "f32[2,3,2,3,4], i32[2,3]<50 {base=100, at=0, interleaved=1, back=0}",
               "f32[3,2,1,4], i32[3,2]<9 {base=1e4, at=2, interleaved=0, back=1}",
               "f32[0,2,1,4] {base=1e4, at=0, interleaved=0, back=0}"},
};

static void grad(ll_bwd *b)
{
    ll_rope_attr a = *(const ll_rope_attr *)b->attr;
    a.back = !a.back;
    ll_val in[2] = {b->dout[0], b->n_in > 1 ? b->in[1] : (ll_val){0}};
    b->din[0] = ll_emit(b->g, &rope, &a, in, b->n_in);
}

ll_val ll_rope_at(ll_graph *g, ll_val x, ll_val places, double base, bool interleaved)
{
    ll_rope_attr a = {.base = base, .interleaved = interleaved};
    ll_val in[2] = {x, places};
    return ll_emit(g, &rope, &a, in, places.id ? 2 : 1);
}

ll_val ll_rope(ll_graph *g, ll_val x, double base, bool interleaved)
{
    return ll_rope_at(g, x, (ll_val){0}, base, interleaved);
}

const ll_op *const ll_ops_rope[] = {&rope, NULL};
