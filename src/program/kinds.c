/* kinds.c: what a program's bytes are for. What outlives a step is known by its kind; of the work
 * region, gradients are what the micro-batches leave for the update: ranges that a
 * later section reads and has not written itself, and those that add up over micro-batches. */
#include "base/num.h"
#include "op/ops.h"
#include "program/program.h"

#include <stdlib.h>

typedef struct range {
    size_t from, to;
} range;

static int by_start(const void *a, const void *b)
{
    const range *x = (const range *)a, *y = (const range *)b;
    return (x->from > y->from) - (x->from < y->from);
}

/* Bytes of n ranges together; aliases are ranges of others. */
static size_t cover(range *r, int n)
{
    size_t sum = 0, end = 0;
    qsort(r, (size_t)n, sizeof *r, by_start);
    for (int i = 0; i < n; i++) {
        if (r[i].to <= end) continue;
        sum += r[i].to - (r[i].from > end ? r[i].from : end);
        end = r[i].to;
    }
    return sum;
}

/* Is it of the bytes that an instruction after the micro-batches, and before `before`, writes? */
static bool made_after(const ll_program *p, const ll_slot *s, int before)
{
    for (int i = p->end[LL_MICRO]; i < before; i++) {
        const ll_instr *x = &p->instrs[i];
        for (int k = 0; k < x->n_out && !x->wait; k++) {
            const ll_slot *y = &p->slots[x->out[k]];
            if (y->region == s->region && y->offset == s->offset) return true;
        }
    }
    return false;
}

static size_t left_for_update(const ll_program *p)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    bool *seen = LL_NEW_ARRAY(a, bool, p->n_slot + 1);
    range *r = LL_NEW_ARRAY(a, range, p->n_slot + 1);
    int n = 0;
    for (int i = p->end[LL_MICRO]; i < p->n_instr; i++) {
        const ll_instr *x = &p->instrs[i];
        for (int k = 0; k < x->n_in && !x->wait; k++) {
            const ll_slot *s = &p->slots[x->in[k]];
            if (s->region != LL_WORK || seen[x->in[k]]) continue;
            seen[x->in[k]] = true;
            if (!made_after(p, s, i)) r[n++] = (range){s->offset, s->offset + ll_align64(s->bytes)};
        }
    }
    LL_EACH (const ll_instr, instr, p->instrs, p->end[LL_MICRO]) {
        const ll_slot *s = &p->slots[instr->out[0]];
        if (instr->op == ll_op_accum.name && s->region == LL_WORK && !seen[instr->out[0]])
            r[n++] = (range){s->offset, s->offset + ll_align64(s->bytes)};
    }
    return cover(r, n);
}

ll_memory_kinds ll_program_kinds(const ll_program *p)
{
    ll_memory_kinds m = {.scratch = p->scratch_bytes, .gradients = left_for_update(p)};
    for (int i = 0; i < p->n_input; i++) {
        const ll_slot *s = &p->slots[p->inputs[i].slot];
        if (s->region == LL_ASIDE) continue;
        if (s->kind == LL_CARRY)
            m.other += ll_align64(s->bytes);
        else if (s->kind == LL_PARAM)
            m.parameters += ll_align64(s->bytes);
        else if (ll_kind_stays(s->kind))
            m.state += ll_align64(s->bytes);
        else
            m.batch += ll_align64(s->bytes * (size_t)(s->kind == LL_BATCH ? p->n_micro : 1));
    }
    m.other += p->work_bytes - m.gradients;
    return m;
}

ll_program_work ll_program_flops(const ll_program *p)
{
    ll_program_work w = {0};
    for (int i = 0; i < p->n_instr; i++) {
        const ll_instr *x = &p->instrs[i];
        const ll_op *op = ll_op_find(x->op); /* NULL: a wait */
        int times = ll_program_times(p, i);
        if (!op || (op->work != LL_WORK_PRODUCT && op->work != LL_WORK_CONVOLUTION &&
                    op->work != LL_WORK_ATTENTION))
            continue;
        w.loops += x->flops * times;
        w.made += x->done * times;
        w.padded += x->padded * times;
    }
    return w;
}

double ll_model_flops(const ll_graph *g, int n_micro)
{
    LL_OWN(ll_arena) arena = ll_arena_new();
    const bool *live = ll_live(g, arena);
    double sum = 0;
    for (int i = g->n_node - 1; i >= 0; i--) {
        const ll_node *n = &g->nodes[i];
        if (live[n->out[0].id] && n->of.phase != LL_ONCE) sum += n->op->model * ll_node_flops(g, n);
    }
    return sum * n_micro;
}
