/* print.c: a program for people: a line per instruction, then where the memory goes. */
#include "program/program.h"

#include "base/text.h"

#include <stdlib.h>

static void put_slots(ll_buf *b, const ll_program *p, const int *slots, int n)
{
    for (int i = 0; i < n; i++) {
        const ll_slot *s = &p->slots[slots[i]];
        const char *region = s->region == LL_PERSISTENT ? "p"
                             : s->region == LL_WORK     ? "w"
                                                        : "aside";
        ll_buf_printf(b, "%s%s@%s+%zu %s%s", i ? ", " : "", s->name ? s->name : "", region,
                      s->offset, ll_dtype_name(s->type.dtype), LL_DIMS(&s->type.shape));
    }
}

/* What is started, and of how many tensors; then these, once where they are summed in place. */
static void put_collective(ll_buf *b, const ll_program *p, const ll_instr *x)
{
    double bytes = 0;
    bool mixed = false, in_place = true;
    for (int k = 0; k < x->n_in; k++) {
        bytes += (double)p->slots[x->in[k]].bytes;
        in_place &= k < x->n_out && p->slots[x->in[k]].offset == p->slots[x->out[k]].offset &&
                    p->slots[x->in[k]].region == p->slots[x->out[k]].region &&
                    p->slots[x->in[k]].bytes == p->slots[x->out[k]].bytes;
        if (k && x->collective != LL_HALO)
            mixed |= ((const ll_coll_attr *)x->attrs[k])->axes !=
                     ((const ll_coll_attr *)x->attrs[0])->axes;
    }
    ll_buf_printf(b, "start %s", x->op);
    if (x->n_in > 1) ll_buf_printf(b, ", bundle of %d", x->n_in);
    ll_buf_printf(b, ", %s, until %d", LL_BYTES(bytes), x->pair);
    if (mixed) ll_buf_puts(b, ", over subsets of ranks");
    if (x->compressed) ll_buf_puts(b, ", compressed");
    if (x->packing) ll_buf_printf(b, ", packed in w+%zu %s", x->packing_at, LL_BYTES(x->packing));
    ll_buf_puts(b, ": ");
    put_slots(b, p, x->out, x->n_out);
    if (in_place) return;
    ll_buf_puts(b, " from ");
    put_slots(b, p, x->in, x->n_in);
}

static void put_call(ll_buf *b, const ll_program *p, const ll_instr *x)
{
    put_slots(b, p, x->out, x->n_out);
    ll_buf_printf(b, " = %s(", x->op);
    put_slots(b, p, x->in, x->n_in);
    ll_buf_puts(b, ")");
    if (x->flops) ll_buf_printf(b, "  %sflop", LL_AMOUNT(x->flops));
    if (x->kernel.name) ll_buf_printf(b, "  by %s", x->kernel.name);
    if (x->at_once) ll_buf_printf(b, ", %ld at once", x->at_once);
    if (x->scratch) ll_buf_printf(b, "  scratch %s", LL_BYTES(x->scratch));
}

static void put_instr(ll_buf *b, const ll_program *p, int i)
{
    const ll_instr *x = &p->instrs[i];
    ll_buf_printf(b, "%5d  %-32s ", i, x->name);
    if (x->wait)
        ll_buf_printf(b, "wait for %d", x->pair);
    else if (x->kernel.run)
        put_call(b, p, x);
    else
        put_collective(b, p, x);
    ll_buf_puts(b, "\n");
}

static int larger_first(const void *a, const void *b)
{
    const ll_slot *x = *(ll_slot *const *)a, *y = *(ll_slot *const *)b;
    return (x->bytes < y->bytes) - (x->bytes > y->bytes);
}

static void put_kinds(ll_buf *b, const ll_program *p)
{
    ll_memory_kinds m = ll_program_kinds(p);
    const struct {
        const char *name;
        size_t bytes;
    } kinds[] = {{"parameters", m.parameters}, {"optimizer and other state", m.state},
                 {"gradients", m.gradients},   {"activations and work", m.other},
                 {"batch data", m.batch},      {"scratch", m.scratch}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        ll_buf_printf(b, "  %10s  %s\n", LL_BYTES(kinds[i].bytes), kinds[i].name);
}

/* The instruction that writes a slot first. */
static const char *made_by(const ll_program *p, int slot)
{
    for (int i = 0; i < p->n_instr; i++)
        for (int o = 0; o < p->instrs[i].n_out; o++)
            if (p->instrs[i].out[o] == slot) return p->instrs[i].name;
    return "";
}

static void put_memory(ll_buf *b, const ll_program *p)
{
    ll_buf_printf(b, "tensors %s: persistent %s, work %s (no plan needs less than %s), ",
                  LL_BYTES(p->bytes), LL_BYTES(p->persistent_bytes), LL_BYTES(p->work_bytes),
                  LL_BYTES(p->ideal_work_bytes));
    ll_buf_printf(b, "scratch %s\n", LL_BYTES(p->scratch_bytes));
    if (p->aside_bytes)
        ll_buf_printf(b, "laid aside %s, in %s\n", LL_BYTES(p->aside_bytes), p->target->aside.what);
    put_kinds(b, p);
    ll_buf_puts(b, "largest tensors:\n");
    const ll_slot **order = LL_NEW_ARRAY(b->arena, const ll_slot *, p->n_slot + 1);
    for (int i = 1; i < p->n_slot; i++) order[i - 1] = &p->slots[i];
    int n = p->n_slot - 1;
    qsort(order, (size_t)(n > 0 ? n : 0), sizeof *order, larger_first);
    for (int i = 0; i < n && i < 8; i++) {
        const char *name = order[i]->name ? order[i]->name : made_by(p, (int)(order[i] - p->slots));
        ll_buf_printf(b, "  %10s  %s%s %s\n", LL_BYTES(order[i]->bytes),
                      ll_dtype_name(order[i]->type.dtype), LL_DIMS(&order[i]->type.shape), name);
    }
}

char *ll_program_print(const ll_program *p, ll_arena *arena)
{
    static const char *const sections[] = {
        "for each micro-batch:", "once a step, for results:", "once a step, the update:"};
    ll_buf b = {.arena = arena};
    for (int s = 0, i = 0; s < LL_N_SECTION; s++) {
        if (i < p->end[s]) ll_buf_printf(&b, "%s\n", sections[s]);
        for (; i < p->end[s]; i++) put_instr(&b, p, i);
    }
    if (p->fusions) ll_buf_printf(&b, "fusions, and how often:\n%s", p->fusions);
    put_memory(&b, p);
    return b.text;
}
