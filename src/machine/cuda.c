/* cuda.c: programs on a GPU. The slab lies there; this process sees slots through views, copies in
 * pinned memory. */
#define _GNU_SOURCE /* sets of CPUs */
#include "machine/cuda.h"

#include "base/num.h"
#include "comm/transport.h"
#include "dev/group.h"
#include "kern/cuda/context.h"
#include "machine/near.h"

#include <stdio.h>

/* ---- devices ---- */

/* Of GPU number `index`; it is the one that is compiled for from now on. */
static ll_err look(int index, ll_gpu_facts *out)
{
    ll_gpu *g;
    TRY(ll_gpu_open(index, &g));
    ll_err rc = ll_gpu_ask(g, out);
    ll_gpu_close(g);
    return rc;
}

static ll_err ask(int device, ll_precision precision, ll_device_facts *out)
{
    ll_gpu_facts f;
    TRY(look(device, &f));
    *out = (ll_device_facts){.bytes = f.bytes, .free_bytes = f.free_bytes};
    snprintf(out->name, sizeof out->name, "%s", f.name);
    out->peak = ll_gpu_peak(f.name, precision);
    return LL_OK;
}

/* Which of the node's GPUs this rank takes, and what is near it. Collective; c NULL: alone. */
static ll_err find_mine(ll_comm *c, ll_arena *arena, int *index, char *place, size_t room)
{
    enum { BUS = 16 };
    int size = c ? ll_comm_size(c) : 1, me = c ? ll_comm_rank(c) : 0, before = 0, here = 0;
    int gpus = (int)ll_min64(ll_gpu_count(), LL_NEAR_MOST);
    *index = 0;
    *place = '\0';
    if (size == 1) return LL_OK;
    cpu_set_t *cores = LL_NEW_ARRAY(arena, cpu_set_t, size);
    if (sched_getaffinity(0, sizeof *cores, &cores[me])) CPU_ZERO(&cores[me]);
    TRY(ll_comm_allgather(c, cores, size * (int64_t)sizeof *cores, LL_U8, NULL));
    if (!gpus) return LL_OK;
    const int *node = ll_comm_nodes(c);
    for (int r = 0; r < size; r++) {
        if (node[r] != node[me]) continue;
        before += r < me;
        cores[here++] = cores[r];
    }
    char(*bus)[BUS] = (char(*)[BUS])ll_arena_alloc(arena, (size_t)gpus * BUS);
    const char **names = LL_NEW_ARRAY(arena, const char *, gpus);
    ll_nearby *near = LL_NEW_ARRAY(arena, ll_nearby, gpus);
    for (int i = 0; i < gpus; i++) {
        TRY(ll_gpu_bus(i, bus[i], BUS));
        names[i] = bus[i];
    }
    ll_near_find(names, gpus, near);
    *index = ll_near_choose(near, gpus, cores, here, before);
    ll_near_tell(names[*index], &near[*index], &cores[before], place, room);
    return LL_OK;
}

static ll_err choose(const ll_device_ask *asked, ll_devices *out)
{
    ll_device_ask ask = *asked;
    const char *library = NULL, *how = ask.transport;
    ask.mpi = ll_transport_takes_gpus();
#ifdef LL_NCCL
    if (!how || (strcmp(how, "host") && strcmp(how, "mpi"))) TRY(ll_gpu_group_library(&library));
#else
    (void)how;
#endif
    return ll_devices_choose(&ask, library, out);
}

static ll_err place(ll_comm *c, const ll_device_ask *ask, ll_arena *arena, ll_devices *out)
{
    int n = c ? ll_comm_size(c) : 1, me = c ? ll_comm_rank(c) : 0;
    ll_gpu_facts f;
    *out = (ll_devices){.of = LL_NEW_ARRAY(arena, ll_device, n), .n = n};
    ll_err rc = find_mine(c, arena, &out->mine, out->of[me].place, sizeof out->of->place);
    if (rc == LL_OK) rc = look(out->mine, &f);
    int capability = 10 * f.major + f.minor;
    if (rc == LL_OK && ll_precision_unit(ask->precision) == LL_PRECISION_fp8 && capability < 89)
        rc = RAISE(LL_E_DEVICE,
                   "%s, of compute capability %d.%d, has no products of 8-bit floats (8.9, Ada, "
                   "and later have): use precision bf16",
                   f.name, f.major, f.minor);
    else if (rc == LL_OK && ask->precision == LL_PRECISION_fp8block && capability != 90)
        rc = RAISE(LL_E_DEVICE,
                   "%s, of compute capability %d.%d, has no products whose scales are of blocks "
                   "(9.0, Hopper, has): use precision fp8 or bf16",
                   f.name, f.major, f.minor);
    if (rc == LL_OK) {
        out->of[me].index = out->mine;
        memcpy(out->of[me].id, f.id, sizeof f.id);
        snprintf(out->of[me].name, sizeof out->of->name, "%.107s", f.name);
    }
    if (n == 1) return rc;
    TRY(ll_comm_agree(c, rc));
    TRY(ll_comm_allgather(c, out->of, n * (int64_t)sizeof *out->of, LL_U8, NULL));
    return ll_comm_agree(c, choose(ask, out));
}

/* ---- life ---- */

static ll_err open(ll_exec *e)
{
    const ll_exec *share = e->opts.share;
    const ll_program *p = e->p;
    ll_cuda *o = LL_NEW(e->arena, ll_cuda);
    e->own = o;
    o->views = LL_NEW_ARRAY(e->arena, ll_cuda_view, p->n_slot + 1);
    o->packing = LL_NEW_ARRAY(e->arena, void *, p->n_instr + 1);
    o->segments = LL_NEW_ARRAY(e->arena, ll_cuda_segment,
                               (size_t)ll_program_rounds(p) * (size_t)p->n_instr + 1);
    if (share) {
        o->gpu = ll_cuda_of(share)->gpu;
    } else {
        TRY(ll_gpu_open(e->opts.device, &o->gpu));
        o->own = true;
    }
    for (int i = 0; i < p->n_slot; i++)
        if (ll_dtype_bytes(p->slots[i].type.dtype) == 1 && p->slots[i].type.dtype != LL_U8)
            e->saturated = 0;
    size_t trouble = LL_TROUBLE_WORDS * sizeof(int64_t);
    TRY(ll_gpu_alloc(o->gpu, sizeof(uint64_t), &o->clock));
    TRY(ll_gpu_alloc(o->gpu, trouble, &o->trouble));
    TRY(ll_gpu_fill(o->gpu, o->trouble, 0, trouble));
    return ll_cuda_open_data(e);
}

static void close(ll_exec *e, size_t bytes)
{
    ll_cuda *o = ll_cuda_of(e);
    const ll_program *p = e->p;
    if (!o || !o->gpu) return;
    static const ll_stream_id mine[] = {LL_STREAM_COMPUTE, LL_STREAM_STORE, LL_STREAM_LOAD};
    for (size_t s = 0; s < sizeof mine / sizeof *mine; s++) {
        ll_err rc = ll_gpu_wait_for(o->gpu, mine[s]); /* a failure was told where it was met */
        (void)rc;
    }
    for (int i = 0; i < ll_program_rounds(p) * p->n_instr; i++) {
        ll_gpu_drop(o->segments[i].graph);
        ll_gpu_drop(o->segments[i].marked);
    }
    ll_cuda_close_data(e);
    for (int i = 0; i < p->n_instr && !e->unsettled; i++) ll_gpu_unpin(o->packing[i]);
    ll_gpu_unpin(o->aside);
    ll_gpu_free(o->gpu, o->clock);
    ll_gpu_free(o->gpu, o->trouble);
    ll_gpu_free(o->gpu, o->tables);
    if (bytes) ll_gpu_free(o->gpu, e->slab);
    if (o->own) ll_gpu_close(o->gpu);
}

static ll_err map(ll_exec *e, size_t bytes, char **out)
{
    ll_gpu *g = ll_cuda_of(e)->gpu;
    ll_gpu_facts f;
    TRY(ll_gpu_ask(g, &f));
    CHECK(bytes <= f.free_bytes, LL_E_MEM,
          "the program needs %s, %s has %s free: use a smaller model or micro-batch",
          LL_BYTES_UP(bytes), f.name, LL_BYTES_DOWN(f.free_bytes));
    void *p;
    TRY(ll_gpu_alloc(g, bytes, &p));
    *out = (char *)p;
    return ll_gpu_fill(g, p, 0, bytes); /* as this process's memory begins */
}

/* ---- running ---- */

static ll_err bind(ll_exec *e)
{
    ll_cuda *o = ll_cuda_of(e);
    for (int i = 0; i < e->p->n_instr; i++) {
        ll_kcall *c = &e->instrs[i].call;
        c->stream = ll_gpu_stream(o->gpu, LL_STREAM_COMPUTE);
        c->ctx = e->p->ctx;
        c->clock = (const uint64_t *)o->clock;
        c->trouble = (int64_t *)o->trouble;
    }
    return ll_cuda_plan(e);
}

static ll_err sync(ll_exec *e)
{
    return ll_cuda_await(e, LL_STREAM_COMPUTE);
}

/* ---- collectives through this process's memory: operands are copied out, results back ---- */

static ll_err pin_operands(ll_exec *e)
{
    ll_cuda *o = ll_cuda_of(e);
    for (int i = 0; i < e->p->n_instr; i++) {
        const ll_instr *x = &e->p->instrs[i];
        ll_kcall *c = &e->instrs[i].call;
        ll_tensor *in = (ll_tensor *)(uintptr_t)c->in, *out = (ll_tensor *)(uintptr_t)c->out;
        if (x->kernel.run || ll_program_copies(e->p, x)) continue;
        for (int k = 0; k < x->n_in; k++) {
            TRY(ll_cuda_pin(e, x->in[k], &in[k].data));
            in[k].data = (char *)in[k].data + ll_exec_micro_at(e, x, k);
        }
        for (int k = 0; k < x->n_out; k++) TRY(ll_cuda_pin(e, x->out[k], &out[k].data));
        if (x->packing) TRY(ll_gpu_pinned(x->packing, &o->packing[i]));
        c->scratch = o->packing[i];
    }
    return LL_OK;
}

static ll_err open_staged(ll_exec *e)
{
    TRY(ll_comm_agree(e->comm, pin_operands(e)));
    return ll_host_open(e);
}

static ll_err start_staged(ll_exec *e, ll_bound *b)
{
    ll_cuda *o = ll_cuda_of(e);
    if (b->instr->collective == LL_RECV) return ll_host_start(e, b); /* has no operand */
    for (int k = 0; k < b->instr->n_in; k++) {
        int slot = b->instr->in[k];
        char *view = (char *)b->call.in[k].data; /* of batch data: of this micro-batch */
        size_t at = (size_t)(view - (char *)o->views[slot].data);
        TRY(ll_gpu_read(o->gpu, view, (char *)e->address[slot] + at, e->p->slots[slot].bytes));
    }
    TRY(ll_gpu_wait(o->gpu));
    return ll_host_start(e, b);
}

static ll_err wait_staged(ll_exec *e, ll_bound *b)
{
    ll_cuda *o = ll_cuda_of(e);
    bool was = b->in_flight;
    TRY(ll_host_wait(e, b));
    for (int k = 0; was && k < b->instr->n_out && b->instr->collective != LL_SEND; k++) {
        int slot = b->instr->out[k];
        TRY(ll_gpu_write(o->gpu, e->address[slot], o->views[slot].data, e->p->slots[slot].bytes));
    }
    return LL_OK;
}

static const ll_link staged = {.name = "host",
                               .open = open_staged,
                               .close = ll_host_close,
                               .start = start_staged,
                               .wait = wait_staged};

const ll_machine ll_machine_cuda = {
    .target = &ll_target_cuda,
    .device = "GPU",
    .align = 16, /* as kernels want their tensors */
    .notes =
        {[LL_PRECISION_bf16] = "activations of bf16; parameters, their gradients and sums f32",
         [LL_PRECISION_fp8] =
             "large products of 8-bit floats with scales, but for logits; activations of bf16; "
             "parameters, their gradients and sums f32; validation in bf16",
         [LL_PRECISION_fp8block] =
             "as fp8, with a scale for every 128 numbers of activations and their gradients, and "
             "for every 128 x 128 of parameters",
         [LL_PRECISION_tf32] =
             "operands of products, convolutions and attention rounded to tf32, summed in f32"},
    .links = (const ll_link *const[]){&staged, &ll_link_mpi,
#ifdef LL_NCCL
                                      &ll_link_nccl,
#endif
                                      NULL},
    .place = place,
    .ask = ask,
    .open_context = ll_cuda_context_open,
    .close_context = ll_cuda_context_close,
    .level = ll_cuda_level,
    .open = open,
    .map = map,
    .map_aside = ll_cuda_map_aside,
    .init = ll_cuda_init,
    .bind = bind,
    .close = close,
    .view = ll_cuda_view_of,
    .changed = ll_cuda_changed,
    .put = ll_cuda_put,
    .read = ll_cuda_read,
    .begin = ll_cuda_begin,
    .run = ll_cuda_run,
    .rehearse = ll_cuda_rehearse,
    .copy = ll_cuda_copy,
    .copy_wait = ll_cuda_copy_wait,
    .sync = sync,
    .end = ll_cuda_end,
    .wait = ll_cuda_wait,
};
