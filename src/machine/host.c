/* host.c: programs in this process's memory. */
#include "machine/host.h"

#include <sys/mman.h>
#include <unistd.h>

size_t ll_host_memory(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (size_t)pages * (size_t)page : SIZE_MAX;
}

/* A program that cannot fit is refused before it starts, not killed when it has begun. */
static ll_err check_fits(const ll_program *p, size_t bytes)
{
    size_t all = ll_host_memory();
    if (bytes <= all) return LL_OK;
    const ll_slot *most = &p->slots[0];
    for (int i = 1; i < p->n_slot; i++)
        if (p->slots[i].bytes > most->bytes) most = &p->slots[i];
    FAIL(LL_E_MEM,
         "the program needs %s, this machine has %s; its largest tensor is %s%s%s, %s: use a "
         "smaller model or micro-batch",
         LL_BYTES_UP(bytes), LL_BYTES_DOWN(all), most->name ? most->name : "",
         most->name ? " " : "", LL_DIMS(&most->type.shape), LL_BYTES(most->bytes));
}

ll_err ll_host_map(ll_exec *e, size_t bytes, char **out)
{
    TRY(check_fits(e->p, bytes));
    void *m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(m != MAP_FAILED, LL_E_MEM,
          "%s for the program's memory cannot be had: use a smaller micro-batch or model",
          LL_BYTES_UP(bytes));
    *out = (char *)m;
    madvise(m, bytes, MADV_HUGEPAGE); /* a hint: its failure costs only speed */
    return LL_OK;
}

void ll_host_unmap(ll_exec *e, size_t bytes)
{
    ll_aside_close(e->aside); /* whose copies are of the slab's bytes */
    e->aside = NULL;
    if (bytes && !e->unsettled) munmap(e->slab, bytes);
}

ll_err ll_host_init(ll_exec *e, int slot)
{
    const ll_slot *s = &e->p->slots[slot];
    ll_init_fill(&s->init, s->name, e->opts.seed, &s->type, s->piece, e->p->threads,
                 e->address[slot]);
    return LL_OK;
}

void *ll_host_view(const ll_exec *e, int slot)
{
    return e->address[slot];
}

ll_err ll_host_put(const ll_exec *e, int slot, int micro, const void *data)
{
    size_t bytes = e->p->slots[slot].bytes;
    if (bytes) memcpy((char *)e->address[slot] + (size_t)micro * bytes, data, bytes);
    return LL_OK;
}

ll_err ll_host_read(const ll_exec *e, int slot, void *to)
{
    size_t bytes = ll_exec_slot_bytes(e, slot);
    if (bytes) memcpy(to, e->address[slot], bytes);
    return LL_OK;
}

/* ---- what is laid aside ---- */

ll_err ll_host_map_aside(ll_exec *e, size_t bytes, char **out)
{
    CHECK(e->opts.offload, LL_E_ARG, "the program lays values aside, and no folder is named");
    TRY(ll_aside_open(e->opts.offload, bytes, e->p->n_instr, &e->aside));
    *out = ll_aside_view(e->aside);
    return LL_OK;
}

ll_err ll_host_copy(ll_exec *e, ll_bound *b)
{
    bool in = b->instr->aside == LL_STORE;
    const ll_tensor *inside = in ? b->call.in : b->call.out;
    const ll_tensor *aside = in ? b->call.out : b->call.in;
    size_t at = (size_t)((char *)aside->data - ll_aside_view(e->aside));
    size_t bytes = ll_tensor_bytes(inside->dtype, &inside->shape);
    b->copy = ll_aside_start(e->aside, in, inside->data, at, bytes);
    return LL_OK;
}

ll_err ll_host_copy_wait(ll_exec *e, ll_bound *b)
{
    return ll_aside_wait(e->aside, b->copy);
}

/* All ones is NaN in every float type, and -1. */
ll_err ll_host_begin(ll_exec *e, uint64_t)
{
    if (e->aside) TRY(ll_aside_wait_all(e->aside)); /* of a step that ended early */
    if (e->opts.poison)
        memset(e->slab + e->input_bytes, 0xff, e->p->work_bytes + e->p->scratch_bytes);
    return LL_OK;
}
