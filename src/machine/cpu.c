/* cpu.c: this process's threads, each on a core of its own. */
#include "kern/cpu/crew.h"
#include "machine/bind.h"
#include "machine/host.h"

static ll_err open(ll_exec *e)
{
    ll_bind_threads(e->p->threads);
    return LL_OK;
}

const ll_machine ll_machine_cpu = {
    .target = &ll_target_cpu,
    .notes = {[LL_PRECISION_bf16] = "products and attention of bf16 numbers, summed in f32"},
    .links = (const ll_link *const[]){&ll_link_host, NULL},
    .open = open,
    .together = ll_crew,
    LL_HOST_MEMORY,
};
