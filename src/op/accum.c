/* accum.c: the mean of x over the micro-batches of a step. Its result outlives a micro-batch: the
 * first one overwrites it, the others add to it, and what reads it runs after the last. */
#include "op/op_int.h"

LL_KERNELS(accum)

const ll_op ll_op_accum = {
    LL_SOME_OP(accum, CHAIN, 1, 1),
    .dims = "* -> *",
    .flop = 2,
    .no_grad = true,
    .linear = true,
    .f64 = true,
    .trials = {"*=7,3", "f32[]", "*=0"},
};

/* Of a pipeline's program, where each micro-batch has nodes of its own: the same, on the sum so
 * far, whose place it takes, where it may. */
const ll_op ll_op_accum_on = {
    .name = "accum_on",
    .work = LL_WORK_CHAIN,
    .n_in = 2,
    .n_out = 1,
    .ref = accum_ref,
    .cpu = LL_OR_PLAIN(accum),
    .cuda = LL_GPU(accum_cuda),
    .dims = "*, * -> *",
    .flop = 2,
    .no_grad = true,
    .in_place = 1u << 1,
    .f64 = true,
    .trials = {"*=7,3", "f32[], f32[]"},
};

ll_val ll_accum(ll_graph *g, ll_val x)
{
    return LL_EMIT(g, &ll_op_accum, NULL, x);
}

const ll_op *const ll_ops_accum[] = {&ll_op_accum, &ll_op_accum_on, NULL};
