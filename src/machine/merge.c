/* merge.c: an instruction that can be one launch with others of its kind moves up to the last of
 * them, or they move down to it:
 *
 *     cast a | matmul a | cast b | matmul b        cast a b | matmul a | matmul b
 *     sum c  | fold c   | sum d                    stays, if d's sum lies where fold still reads c
 *
 * Memory is shared among values whose lives do not meet, so what counts is bytes, not values: two
 * instructions may change places if neither writes what the other touches. Scratch does not count,
 * for each has it to itself while it runs.
 *
 * A launch takes some microseconds however little it does. Those that do not depend on each other
 * are queued in branches, which run beside each other; there scratch counts, for all have the same.
 */
#include "machine/merge.h"

static bool meet(const ll_tensor *a, const ll_tensor *b)
{
    const char *p = (const char *)a->data, *q = (const char *)b->data;
    size_t n = ll_tensor_bytes(a->dtype, &a->shape);
    size_t m = ll_tensor_bytes(b->dtype, &b->shape);
    return p < q + m && q < p + n;
}

/* Whether one writes what two touches. */
static bool spoils(const ll_kcall *one, const ll_kcall *two)
{
    for (int o = 0; o < one->n_out; o++) {
        for (int k = 0; k < two->n_in; k++)
            if (meet(&one->out[o], &two->in[k])) return true;
        for (int k = 0; k < two->n_out; k++)
            if (meet(&one->out[o], &two->out[k])) return true;
    }
    return false;
}

static bool collide(const ll_launch *l, const ll_kcall *c)
{
    for (int i = 0; i < l->n; i++)
        if (spoils(l->calls[i], c) || spoils(c, l->calls[i])) return true;
    return false;
}

static bool launches_collide(const ll_launch *a, const ll_launch *b)
{
    for (int i = 0; i < b->n; i++)
        if (collide(a, b->calls[i])) return true;
    return false;
}

static bool same_kind(const ll_bound *instrs, const ll_launch *l, const ll_bound *b)
{
    const ll_bound *a = &instrs[l->instr[0]];
    return a->instr->kernel.many == b->instr->kernel.many && !a->moves &&
           a->call.micro == b->call.micro && a->instr->last == b->instr->last &&
           a->instr->kernel.many->alike(&a->call, &b->call);
}

static void add(ll_arena *arena, ll_launch *l, int i, const ll_kcall *c)
{
    int room = l->room;
    l->instr = (int *)ll_arena_grow(arena, l->instr, sizeof *l->instr, l->n, &room);
    l->calls = (const ll_kcall **)ll_arena_grow(arena, l->calls, sizeof *l->calls, l->n, &l->room);
    l->instr[l->n] = i;
    l->calls[l->n++] = c;
}

typedef struct merging {
    const ll_bound *instrs;
    ll_arena *arena;
    ll_launch *out;
    int n, barrier; /* launches so far; those before barrier are final */
} merging;

/* The launch that instruction i joined; false: none. */
static bool join(merging *m, int i)
{
    const ll_bound *b = &m->instrs[i];
    int at = m->n - 1;
    if (!b->instr->kernel.many || b->moves) return false;
    while (at >= m->barrier && !same_kind(m->instrs, &m->out[at], b)) at--;
    if (at < m->barrier || collide(&m->out[at], &b->call)) return false;
    bool up = true, down = true;
    for (int k = at + 1; k < m->n && (up || down); k++) {
        up = up && !collide(&m->out[k], &b->call);
        down = down && !launches_collide(&m->out[k], &m->out[at]);
    }
    if (!up && !down) return false;
    add(m->arena, &m->out[at], i, &b->call);
    if (up) return true;
    ll_launch moved = m->out[at];
    memmove(&m->out[at], &m->out[at + 1], sizeof moved * (size_t)(m->n - 1 - at));
    m->out[m->n - 1] = moved;
    return true;
}

int ll_merge(const ll_bound *instrs, int from, int to, ll_arena *arena, ll_launch *out)
{
    merging m = {.instrs = instrs, .arena = arena, .out = out};
    for (int i = from; i < to; i++) {
        if (join(&m, i)) continue;
        m.out[m.n] = (ll_launch){0};
        add(arena, &m.out[m.n++], i, &instrs[i].call);
        if (!instrs[i].instr->kernel.run) m.barrier = m.n;
    }
    return m.n;
}

/* ---- branches ---- */

static bool meets_scratch(const ll_bound *a, const ll_bound *b)
{
    const char *p = (const char *)a->call.scratch, *q = (const char *)b->call.scratch;
    size_t n = a->instr->scratch, m = b->instr->scratch;
    if (!n) return false;
    if (m && p < q + m && q < p + n) return true;
    for (int side = 0; side < 2; side++)
        for (int k = 0; k < (side ? b->call.n_out : b->call.n_in); k++) {
            const ll_tensor *t = side ? &b->call.out[k] : &b->call.in[k];
            const char *at = (const char *)t->data;
            if (p < at + ll_tensor_bytes(t->dtype, &t->shape) && at < p + n) return true;
        }
    return false;
}

static bool share_scratch(const ll_bound *instrs, const ll_launch *a, const ll_launch *b)
{
    for (int i = 0; i < a->n; i++)
        for (int k = 0; k < b->n; k++) {
            const ll_bound *x = &instrs[a->instr[i]], *y = &instrs[b->instr[k]];
            if (meets_scratch(x, y) || meets_scratch(y, x)) return true;
        }
    return false;
}

/* The branch whose end a launch waits for anyway, the one that went on longest; or an empty one; or
 * the one that ended first. */
static int branch_for(const int last[LL_BRANCHES], const int tail[LL_BRANCHES])
{
    int best = -1, oldest = 0;
    for (int t = 0; t < LL_BRANCHES; t++) {
        if (last[t] == tail[t] && (best < 0 || tail[t] > tail[best])) best = t;
        if (tail[t] < tail[oldest]) oldest = t;
    }
    return best < 0 ? oldest : best;
}

void ll_branches(const ll_bound *instrs, ll_launch *launches, int from, int to)
{
    int tail[LL_BRANCHES] = {0}, waited[LL_BRANCHES][LL_BRANCHES] = {0};
    for (int i = from; i < to; i++) {
        ll_launch *l = &launches[i];
        int last[LL_BRANCHES] = {0};
        for (int j = i - 1; j >= from; j--) {
            int t = launches[j].branch;
            if (!last[t] &&
                (launches_collide(&launches[j], l) || share_scratch(instrs, &launches[j], l)))
                last[t] = j + 1;
        }
        l->branch = branch_for(last, tail);
        for (int t = 0; t < LL_BRANCHES; t++) {
            if (t == l->branch || last[t] <= waited[l->branch][t]) continue;
            l->after[t] = waited[l->branch][t] = last[t];
            launches[last[t] - 1].awaited = true;
        }
        tail[l->branch] = i + 1;
    }
}
