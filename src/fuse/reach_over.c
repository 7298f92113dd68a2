/* reach_over.c: whether a product of exact mode lost too much (pass/exact_guard.c), as one op of
 * the CPU: neither the levels of factors nor what results have of them are stored.
 *
 *     a, b: levels u8, or numbers f32 and their scales f32
 *     -> the sum, over results of which a term is there, of 1 / max(reach, 2^-40) - most, f64
 *
 * Ranks that have parts of the sums of a product put reach together in between: there it is not
 * found, and runs op by op. */
#include "fuse/fuse_int.h"

#include <stdio.h>

LL_KERNELS(reach_over)

static ll_err loops(const void *attr, int n_in, const ll_type *, char dims[LL_DIMS_TEXT])
{
    const ll_reach_over_attr *r = (const ll_reach_over_attr *)attr;
    ll_matmul_parts p;
    if (n_in > 2) return ll_scaled_dims(r->spec, r->a, r->b, "", dims);
    TRY(ll_matmul_read(r->spec, &p));
    snprintf(dims, LL_DIMS_TEXT, "%.*s->", (int)(p.text[2] - r->spec) - 2, r->spec);
    return LL_OK;
}

static ll_err infer(ll_infer *i)
{
    const ll_reach_over_attr *r = (const ll_reach_over_attr *)i->attr;
    ll_dtype want = i->n_in == 2 ? LL_U8 : LL_F32;
    CHECK(i->n_in == 2 || i->n_in == 4, LL_E_ARG, "%d operands, expected 2 or 4", i->n_in);
    for (int k = 0; k < i->n_in; k++)
        CHECK(i->in[k].dtype == want, LL_E_ARG, "operand %d is %s, expected %s", k,
              ll_dtype_name(i->in[k].dtype), ll_dtype_name(want));
    CHECK(r->enough >= 0 && r->enough <= LL_REACH_BITS, LL_E_ARG, "enough is %ld, expected 0 to %d",
          r->enough, LL_REACH_BITS);
    TRY(ll_infer_dims(i));
    i->out[0].dtype = LL_F64;
    return LL_OK;
}

#define MN "spec=\"mk,kn->mn\", a=\"ab,a->ab\", b=\"ab,b->ab\""
static const ll_op reach_over = {
    LL_CPU_OP(reach_over, OTHER, 2, 1),
    .n_more = 2,
    LL_ATTRS(ll_reach_over_attr, spec, a, b, enough, most),
    .loops = loops,
    .whole = "abcdefghijklmnopqrstuvwxyz",
    .infer = infer,
    .flop = 1,
    .trials = {"u8[6,12]<61, u8[12,18]<61 {spec=\"mk,kn->mn\", enough=3, most=32}",
               "u8[70,131]<44, u8[131,290]<52 {spec=\"mk,kn->mn\", enough=40, most=9}",
               "f32[6,12], f32[12,18], f32[6]>, f32[18]> {" MN ", enough=3, most=32}",
               "f32[70,131], f32[131,290], f32[70]>, f32[290]> {" MN ", enough=2, most=5}",
               "f32[3,5,7], f32[90,7], f32[3,5]>, f32[90]> {spec=\"btc,nc->btn\", "
               "a=\"abc,ab->abc\", b=\"ab,a->ab\", enough=0, most=2}",
               "f32[2,35,3,4], f32[2,6,3,4], f32[2,35,3]>, f32[2,6,3]> {spec=\"bthd,bshd->bhts\", "
               "a=\"abcd,abc->abcd\", b=\"abcd,abc->abcd\", enough=1, most=3.5}",
               "f32[2,3,5,4], f32[2,4,3,7], f32[2,3,5]>, f32[2,3,7]> {spec=\"bhts,bshe->bthe\", "
               "a=\"abcd,abc->abcd\", b=\"abcd,acd->abcd\", enough=1, most=3.5}",
               "f32[2,5,7], f32[2,5,3,1,4], f32[7]>, f32[3,4]> {spec=\"btc,btzhd->zhdc\", "
               "a=\"abc,c->abc\", b=\"abcde,ce->abcde\", enough=0, most=4}",
               "f32[4,0], f32[0,3], f32[4]>, f32[3]> {" MN ", enough=3, most=7}"},
};

static bool guard(ll_match *m)
{
    return ll_scaled_match(m, ((const ll_reach_attr *)ll_match_node(m, "r")->attr)->spec);
}

#define OVER                                                                                       \
    "r = reach(a, b) {spec=$spec, enough=$enough}\n"                                               \
    "some = less(0, r)\n"                                                                          \
    "top = max(r, 9.094947017729282e-13)\n"                                                        \
    "times = div(some, top)\n"                                                                     \
    "part = scale(some) {value=$most}\n"                                                           \
    "over = sub(times, part)\n"                                                                    \
    "wide = cast(over) {dtype=f64}\n"                                                              \
    "z = sum(wide) {spec=\"*->\"}"

static const ll_fusion_row rows[] = {
    {.pattern = "a = grid(x, m) {spec=$a, bits=60, out=u8, odd=0}\n"
                "b = grid(y, n) {spec=$b, bits=60, out=u8, odd=0}\n" OVER,
     .replace = "z = reach_over(x, y, m, n) {spec=$spec, a=$a, b=$b, enough=$enough, most=$most}",
     .guard = guard},
    {.pattern = OVER, .replace = "z = reach_over(a, b) {spec=$spec, enough=$enough, most=$most}"},
    {0}};

LL_CPU_FUSION(reach_over, FORWARD, .rows = rows)
const ll_op *const ll_ops_reach_over[] = {&reach_over, NULL};
