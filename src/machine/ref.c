/* ref.c: the oracle: plain loops, in this process's memory. */
#include "machine/host.h"

const ll_machine ll_machine_ref = {
    .target = &ll_target_ref,
    .notes = {[LL_PRECISION_bf16] = "products and attention of bf16 numbers, summed in f32"},
    .links = (const ll_link *const[]){&ll_link_host, NULL},
    LL_HOST_MEMORY,
};
