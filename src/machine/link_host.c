/* link_host.c: a program's collectives through comm/, on this process's memory or another that
 * messages reach. */
#include "base/now.h"
#include "base/room.h"
#include "machine/host.h"

#include <stdlib.h>

/* What compresses it. */
static ll_err open_codec(ll_exec *e, ll_bound *b)
{
    const char *codec = b->instr->compressed ? e->opts.compress : NULL;
    for (int k = 0; codec && k < b->call.n_in; k++)
        CHECK(b->call.in[k].shape.n < LL_MAX_DIMS, LL_E_SHAPE,
              "compress %s: %s has %d dimensions, and can have %d", codec,
              e->p->slots[b->instr->in[k]].name, b->call.in[k].shape.n, LL_MAX_DIMS - 1);
    return ll_transfer_compress(b->transfer, codec, e->opts.seed);
}

/* Collectives that are never under way at once share their scratch. */
static ll_err find_room(ll_exec *e)
{
    const ll_program *p = e->p;
    ll_want *wants = LL_NEW_ARRAY(e->arena, ll_want, p->n_instr + 1);
    for (int i = 0; i < p->n_instr; i++) {
        wants[i].from = i;
        wants[i].to = p->instrs[i].pair;
        if (e->instrs[i].transfer) TRY(ll_transfer_scratch(e->instrs[i].transfer, &wants[i].bytes));
    }
    e->room_bytes = ll_room_plan(wants, p->n_instr, e->arena);
    if (!e->room_bytes) return LL_OK;
    const ll_memory *m = e->memory;
    if (m) {
        TRY(m->alloc(m->of, e->room_bytes, (void **)&e->room));
    } else {
        e->room = (char *)aligned_alloc(64, e->room_bytes);
        CHECK(e->room, LL_E_MEM, "not enough memory for %zu bytes of scratch of collectives",
              e->room_bytes);
        ll_comm_hold(e->comm, (int64_t)e->room_bytes);
    }
    for (int i = 0; i < p->n_instr; i++)
        if (wants[i].bytes) ll_transfer_set_scratch(e->instrs[i].transfer, e->room + wants[i].at);
    return LL_OK;
}

static ll_err open_transfers(ll_exec *e)
{
    bool any = false;
    LL_EACH (ll_bound, b, e->instrs, e->p->n_instr) {
        if (!b->instr->collective) continue;
        TRY(ll_transfer_open(e->opts.team, e->arena, b->instr, b->call.in, b->call.out,
                             b->call.scratch, e->memory, &b->transfer));
        any |= b->instr->compressed;
    }
    CHECK(any || !e->opts.compress, LL_E_SHARD,
          "compress %s: no gradient is summed over axis data in one piece; leave it out",
          e->opts.compress);
    return LL_OK;
}

/* Local work by itself, and agreed on: a rank that fails must not leave others in a collective. */
ll_err ll_host_open(ll_exec *e)
{
    TRY(ll_comm_agree(e->comm, open_transfers(e)));
    for (int i = 0; i < e->p->n_instr; i++)
        if (e->instrs[i].transfer) TRY(ll_transfer_prepare(e->instrs[i].transfer, e->arena));
    ll_err rc = LL_OK;
    for (int i = 0; i < e->p->n_instr && !rc; i++) {
        if (!e->instrs[i].transfer) continue;
        rc = ll_transfer_reserve(e->instrs[i].transfer);
        if (!rc) rc = open_codec(e, &e->instrs[i]);
    }
    return ll_comm_agree(e->comm, rc ? rc : find_room(e));
}

/* Where messages may still come to its memory, that stays. */
void ll_host_close(ll_exec *e)
{
    if (e->unsettled) return;
    for (int i = 0; i < e->p->n_instr; i++)
        if (e->instrs[i].transfer) ll_transfer_close(e->instrs[i].transfer);
    if (e->memory && e->room) return e->memory->free(e->memory->of, e->room);
    if (e->room) ll_comm_hold(e->comm, -(int64_t)e->room_bytes);
    free(e->room);
}

ll_err ll_host_start(ll_exec *e, ll_bound *b)
{
    b->in_flight = true;
    e->n_in_flight++;
    return ll_transfer_start(b->transfer, (int64_t)b->call.step);
}

ll_err ll_host_wait(ll_exec *e, ll_bound *b)
{
    if (!b->in_flight) return LL_OK;
    double began = ll_now();
    b->in_flight = false;
    e->n_in_flight--;
    ll_err rc = ll_transfer_wait(b->transfer);
    e->waited += ll_now() - began;
    return rc;
}

const ll_link ll_link_host = {.name = "host",
                              .open = ll_host_open,
                              .close = ll_host_close,
                              .start = ll_host_start,
                              .wait = ll_host_wait};
