/* rope: rotary positions. Pair i of row t is turned by the angle (at + t) / base^(2 i / d):
 *   (x, y) -> (x cos - y sin, x sin + y cos)
 * Its gradient turns back. A part of t knows where it starts. */
#include "kern/attr.h"
#include "op/rows.h"

ll_kernel rope_ref, rope_cpu;
extern const ll_solver rope_cuda[];

static const ll_attr_field fields[] = {LL_FIELD(ll_rope_attr, base, LL_A_F64),
                                       LL_FIELD(ll_rope_attr, at, LL_A_INT),
                                       LL_FIELD(ll_rope_attr, interleaved, LL_A_INT),
                                       LL_FIELD(ll_rope_attr, back, LL_A_INT),
                                       {0}};

static ll_err infer(ll_infer *i)
{
    const ll_rope_attr *a = (const ll_rope_attr *)i->attr;
    const ll_shape *s = &i->in[0].shape;
    char text[LL_SHAPE_TEXT];
    CHECK(s->n == 4 && s->d[3] % 2 == 0, LL_E_SHAPE,
          "x is %s, want [batch,time,heads,width] of an even width", ll_shape_print(s, text));
    CHECK(a->base > 0, LL_E_ARG, "base is %g, want more than 0", a->base);
    return ll_infer_floats(i);
}

static ll_err split(const void *, const ll_loops *l, int loop, ll_range range, const ll_type *,
                    ll_part *part)
{
    if (l->letter[loop] == 't') ((ll_rope_attr *)part->attr)->at += range.from;
    return LL_OK;
}

static void grad(ll_bwd *b);

static const ll_op rope = {
    LL_REF_OP(rope, OTHER, 1, 1),
    LL_ATTRS(ll_rope_attr, fields),
    .dims = "bthd -> bthd",
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
               "f32[0,2,1,4] {base=1e4, at=0, interleaved=0, back=0}"},
};

static void grad(ll_bwd *b)
{
    ll_rope_attr a = *(const ll_rope_attr *)b->attr;
    a.back = !a.back;
    b->din[0] = LL_EMIT(b->g, &rope, &a, b->dout[0]);
}

ll_val ll_rope(ll_graph *g, ll_val x, double base, bool interleaved)
{
    return LL_EMIT(g, &rope, (&(ll_rope_attr){.base = base, .interleaved = interleaved}), x);
}

const ll_op *const ll_ops_rope[] = {&rope, NULL};
