/* reach: of each result of a product, how large its largest term is beside what it could be.
 *
 *     reach  a, b {spec, enough}   ->  max over the summed loops of 2^(a - bits) 2^(b - bits)
 *
 * a and b are levels of factors, each beside the largest of its row or column (grid with out = u8
 * and LL_REACH_BITS bits); 0: a factor that is 0, and so is its term. Results are 0 where no term
 * is there, or else from 2^(2 - 2 bits) to 2^-enough: kernels need not look for more. What fixed
 * point loses is 2^-bits of the largest: where 1 / reach is large, little is left (pass/exact.c).
 */
#include "op/op_int.h"

#include <stdio.h>

LL_KERNELS(reach)

static ll_err loops(const void *attr, int, const ll_type *, char dims[LL_DIMS_TEXT])
{
    const ll_reach_attr *r = (const ll_reach_attr *)attr;
    ll_matmul_parts p;
    TRY(ll_matmul_read(r->spec, &p));
    snprintf(dims, LL_DIMS_TEXT, "%s", r->spec);
    return LL_OK;
}

static ll_err infer(ll_infer *i)
{
    const ll_reach_attr *r = (const ll_reach_attr *)i->attr;
    for (int k = 0; k < 2; k++)
        CHECK(i->in[k].dtype == LL_U8, LL_E_ARG, "operand %d is %s, expected u8", k,
              ll_dtype_name(i->in[k].dtype));
    CHECK(r->enough >= 0 && r->enough <= LL_REACH_BITS, LL_E_ARG, "enough is %ld, expected 0 to %d",
          r->enough, LL_REACH_BITS);
    TRY(ll_infer_dims(i));
    i->out[0].dtype = LL_F32;
    return LL_OK;
}

static const ll_op reach = {
    LL_REF_OP(reach, OTHER, 2, 1, .scratch = reach_cpu_scratch),
    LL_ATTRS(ll_reach_attr, spec, enough),
    .loops = loops,
    .max = "?",
    .infer = infer,
    .no_grad = true,
    .flop = 1,
    .trials = {"u8[6,12]<61, u8[12,18]<61 {spec=\"mk,kn->mn\", enough=3}",
               "u8[2,3,7]<61, u8[5,7]<5 {spec=\"btc,nc->btn\", enough=0}",
               "u8[2,5,3,4]<2, u8[2,6,3,4]<61 {spec=\"bthd,bshd->bhts\", enough=3}",
               "u8[2,5,7]<61, u8[2,5,3,1,4]<61 {spec=\"btc,btzhd->zhdc\", enough=9}",
               "u8[3,1,5]<61, u8[5,3,2]<61 {spec=\"amk,kan->nam\", enough=0}",
               "u8[7]<61, u8[7]<61 {spec=\"k,k->\", enough=3}",
               "u8[70,131]<44, u8[131,290]<52 {spec=\"mk,kn->mn\", enough=40}",
               "u8[4,0]<61, u8[0,3]<61 {spec=\"mk,kn->mn\", enough=3}"},
};

ll_val ll_reach(ll_graph *g, const char *spec, ll_val a, ll_val b, int enough)
{
    ll_reach_attr attr = {.enough = enough};
    snprintf(attr.spec, sizeof attr.spec, "%s", spec);
    return LL_EMIT(g, &reach, &attr, a, b);
}

const ll_op *const ll_ops_reach[] = {&reach, NULL};
