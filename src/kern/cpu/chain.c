/* chain.c: runs a chain of elementwise steps over tensors, a tile at a time: every step goes over
 * the tile before the next does, so what passes between steps stays in the first cache, and each
 * step is one tight loop.
 *
 * A plan is made first. It pairs products with sums, and finds where each register lives:
 * 1. an f32 operand of full size: in its tensor, nothing is copied;
 * 2. other operands: in a slot (a tile on the thread's stack), filled before the tile's first step;
 *    those that look the same in every tile (scalars, periods that divide the tile) only once;
 * 3. the result of a step: in its output tensor if that is f32, else in a slot that no live
 * register needs. An output that lies on an operand which is still to be read gets a slot too and
 * is copied at the end of the tile. Tiles are independent of each other and of the number of
 * threads. */
#include "kern/cpu/chain.h"

#include "base/num.h"
#include "kern/cpu/flush.h"
#include "kern/cpu/row.h"

enum {
    N_REG = LL_FUSE_IN + 2 * LL_FUSE_STEPS, /* inputs, steps, and a constant for each step */
    IN_TENSOR = -1,                         /* place[]: slots are 0 and up */
    IN_OUTPUT = -2                          /* IN_OUTPUT - o: in output o */
};

typedef struct step {
    int op, x[3], y; /* operand and result registers */
    float k, j;
} step;

typedef struct plan {
    const ll_fused_attr *f;
    const ll_tensor *in, *out;
    int64_t n; /* elements */
    int tile, n_step, n_reg, n_slot, cost;
    step step[LL_FUSE_STEPS];
    int place[N_REG], last[N_REG]; /* where a register lives; the last step that reads it */
    bool once[LL_FUSE_IN];         /* the slot is the same in every tile */
    bool ahead;                    /* the next tile's operands are asked for */
    bool flush;                    /* subnormal numbers are zeros */
    float constant[N_REG];         /* registers after the steps' results: numbers */
} plan;

static int operands(int op)
{
    static const int8_t ew[LL_N_STEP] = {
#define X(name, n, value) n,
        LL_EW(X) LL_PAIRS(X)
#undef X
    };
    return ew[op];
}

/* ---- steps of the plan ---- */

/* A step of the attribute with its number in place: a + k is shift, a k is scale, and any other
 * constant operand a register of its own. */
static step read_step(plan *p, int s)
{
    const ll_fused_step *t = &p->f->step[s];
    step r = {.op = t->op, .x = {t->a, t->b, t->c}, .y = p->f->n_in + s, .k = (float)t->k};
    for (int i = operands(r.op); i < 3; i++) r.x[i] = 0; /* not read */
    bool two = t->op == LL_EW_add || t->op == LL_EW_mul;
    if (two && (t->a == LL_FUSE_K) != (t->b == LL_FUSE_K)) {
        r.op = t->op == LL_EW_add ? LL_EW_shift : LL_EW_scale;
        r.x[0] = t->a == LL_FUSE_K ? t->b : t->a;
        r.x[1] = 0;
        return r;
    }
    int number = -1;
    for (int i = 0; i < operands(r.op); i++) {
        if (r.x[i] != LL_FUSE_K) continue;
        if (number < 0) number = p->n_reg++, p->constant[number] = r.k;
        r.x[i] = number;
    }
    return r;
}

static bool is_product(int op)
{
    return op == LL_EW_mul || op == LL_EW_square || op == LL_EW_scale;
}

/* Step s, a sum, takes in product m, its operand number at. */
static void merge(step *s, const step *m, int at)
{
    bool scale = m->op == LL_EW_scale;
    int other = s->x[1 - at];
    step r = {.x = {m->x[0], m->op == LL_EW_mul ? m->x[1] : m->x[0], other}, .y = s->y, .k = m->k};
    if (s->op == LL_EW_shift) {
        r.op = scale ? LL_STEP_scale_shift : LL_STEP_mul_shift;
        *(scale ? &r.j : &r.k) = s->k;
    } else if (s->op == LL_EW_add) {
        r.op = scale ? LL_STEP_scale_add : LL_STEP_mul_add;
    } else if (at == 0) {
        r.op = scale ? LL_STEP_scale_sub : LL_STEP_mul_sub;
    } else {
        r.op = scale ? LL_STEP_scale_add : LL_STEP_sub_mul;
        r.k = -m->k;
    }
    *s = r;
}

/* Reads the steps; a sum takes in a product that it alone reads. */
static void plan_steps(plan *p)
{
    const ll_fused_attr *f = p->f;
    int reads[N_REG] = {0};
    bool gone[LL_FUSE_STEPS] = {false};
    for (int s = 0; s < f->n_step; s++) {
        p->step[s] = read_step(p, s);
        for (int i = 0; i < operands(p->step[s].op); i++) reads[p->step[s].x[i]]++;
    }
    for (int o = 0; o < f->n_out; o++) reads[f->out[o]] += 2;
    for (int s = 0; s < f->n_step; s++) {
        step *t = &p->step[s];
        if (t->op != LL_EW_add && t->op != LL_EW_sub && t->op != LL_EW_shift) continue;
        for (int i = 0, n = operands(t->op); i < n; i++) {
            int m = t->x[i] - f->n_in; /* the step that made the operand, if one did */
            if (m < 0 || m >= s || !is_product(p->step[m].op) || reads[t->x[i]] != 1) continue;
            merge(t, &p->step[m], i);
            gone[m] = true;
            break;
        }
    }
    for (int s = 0; s < f->n_step; s++) {
        if (gone[s] || !reads[p->step[s].y]) continue;
        p->step[p->n_step++] = p->step[s];
        p->cost += ll_step_cost(p->step[s].op);
    }
}

/* ---- where registers live ---- */

static bool full(const plan *p, int i)
{
    return p->f->period[i] == p->n && p->f->repeat[i] == 1;
}

/* The tile's size: a multiple of a broadcast operand's period, or a part of it, where possible. */
static int choose_tile(const plan *p)
{
    for (int i = 0; i < p->f->n_in; i++) {
        if (full(p, i) || p->f->period[i] == 1) continue;
        int64_t w = p->f->repeat[i] * p->f->period[i];
        if (w == p->n) w = p->f->repeat[i];
        if (w <= LL_TILE) return (int)(LL_TILE - LL_TILE % w);
        int64_t parts = ll_ceil_div(w, LL_TILE);
        if (w % parts == 0) return (int)(w / parts);
    }
    return LL_TILE;
}

static int new_slot(plan *p, bool *busy)
{
    int s = 0;
    while (busy[s]) s++;
    busy[s] = true;
    if (s >= p->n_slot) p->n_slot = s + 1;
    return s;
}

static void find_last_reads(plan *p)
{
    for (int r = 0; r < p->n_reg; r++) p->last[r] = -1;
    for (int s = 0; s < p->n_step; s++)
        for (int i = 0; i < operands(p->step[s].op); i++) p->last[p->step[s].x[i]] = s;
    for (int o = 0; o < p->f->n_out; o++) p->last[p->f->out[o]] = p->n_step;
}

static void place_operands(plan *p, bool *busy)
{
    const ll_fused_attr *f = p->f;
    for (int i = 0; i < f->n_in; i++) {
        int64_t w = f->repeat[i] * f->period[i];
        bool returned = p->last[i] == p->n_step && f->n_out > 1; /* outputs may overwrite it */
        p->once[i] = f->period[i] == 1 || (w <= p->tile && p->tile % w == 0);
        p->place[i] = IN_TENSOR;
        if (p->last[i] < 0 || (full(p, i) && p->in[i].dtype == LL_F32 && !returned)) continue;
        p->place[i] = new_slot(p, busy);
    }
    for (int r = f->n_in + f->n_step; r < p->n_reg; r++) p->place[r] = new_slot(p, busy);
}

/* The output that step s can write directly, or -1. */
static int direct_output(const plan *p, int s)
{
    const ll_fused_attr *f = p->f;
    for (int o = 0; o < f->n_out; o++) {
        bool free = f->out[o] == p->step[s].y && p->out[o].dtype == LL_F32;
        for (int i = 0; i < f->n_in && free; i++)
            free = p->in[i].data != p->out[o].data || p->place[i] != IN_TENSOR || p->last[i] <= s;
        if (free) return o;
    }
    return -1;
}

static void plan_places(plan *p)
{
    bool busy[N_REG] = {false};
    const ll_fused_attr *f = p->f;
    find_last_reads(p);
    place_operands(p, busy);
    for (int s = 0; s < p->n_step; s++) {
        const step *t = &p->step[s];
        for (int i = 0; i < operands(t->op); i++) {
            int r = t->x[i];
            bool kept = r >= f->n_in + f->n_step || (r < f->n_in && p->once[r]);
            if (p->place[r] >= 0 && p->last[r] == s && !kept) busy[p->place[r]] = false;
        }
        int o = direct_output(p, s);
        p->place[t->y] = o >= 0 ? IN_OUTPUT - o : new_slot(p, busy);
    }
}

/* ---- running ---- */

/* Tile [e, e+n) of a broadcast operand, or of one of another type or to be saved from outputs: in
 * slot, or where it lies. */
static const float *fetch(const plan *p, int i, int64_t e, int n, float *slot)
{
    const ll_tensor *x = &p->in[i];
    int64_t period = p->f->period[i], repeat = p->f->repeat[i];
    if (period == 1) {
        float v;
        ll_tile_load(x, 0, 1, &v);
        for (int k = 0; k < n; k++) slot[k] = v;
        return slot;
    }
    int64_t at = e / repeat % period, skip = e % repeat;
    if (repeat == 1 && at + n <= period) {
        if (x->dtype == LL_F32 && !full(p, i)) return (const float *)x->data + at;
        ll_tile_load(x, at, n, slot);
        return slot;
    }
    for (int done = 0; done < n;) {
        int64_t left = repeat == 1 ? period - at : repeat - skip;
        int run = left < n - done ? (int)left : n - done;
        if (repeat == 1) {
            ll_tile_load(x, at, run, slot + done);
        } else {
            float v;
            ll_tile_load(x, at, 1, &v);
            for (int k = 0; k < run; k++) slot[done + k] = v;
        }
        done += run;
        skip = 0;
        at = repeat == 1 || at + 1 == period ? 0 : at + 1;
    }
    return slot;
}

/* A tile may be a page, where prefetchers stop. Chains with little to do are slower for it. */
static bool pays_ahead(const plan *p)
{
    enum { WORTH = 5 }; /* additions an operand */
    int n = 0;
    for (int i = 0; i < p->f->n_in; i++) n += full(p, i);
    return p->cost >= WORTH * n;
}

/* Elements [e, e + n) of x are asked for. */
static void fetch_ahead(const ll_tensor *x, int64_t e, int n)
{
    size_t bytes = ll_dtype_bytes(x->dtype), size = (size_t)n * bytes;
    const char *from = (const char *)x->data + (size_t)e * bytes;
    for (size_t k = 0; k < size; k += 64) __builtin_prefetch(from + k, 0, 2);
}

static void run_tile(const plan *p, const float **r, float *slots, int64_t e, int n)
{
    const ll_fused_attr *f = p->f;
    for (int i = 0; i < f->n_in; i++) {
        if (p->ahead && full(p, i)) fetch_ahead(&p->in[i], e + n, n);
        if (p->place[i] == IN_TENSOR)
            r[i] = (const float *)p->in[i].data + e;
        else if (!p->once[i])
            r[i] = fetch(p, i, e, n, slots + (size_t)p->place[i] * LL_TILE);
    }
    for (int s = 0; s < p->n_step; s++) {
        const step *t = &p->step[s];
        int place = p->place[t->y];
        float *y = place >= 0 ? slots + (size_t)place * LL_TILE
                              : (float *)p->out[IN_OUTPUT - place].data + e;
        ll_chain_steps[t->op](y, r[t->x[0]], r[t->x[1]], r[t->x[2]], t->k, t->j, n);
        r[t->y] = y;
    }
    for (int o = 0; o < f->n_out; o++)
        if (p->place[f->out[o]] != IN_OUTPUT - o) ll_tile_store(&p->out[o], e, n, r[f->out[o]]);
}

static void run_tiles(const void *job, int64_t from, int64_t to)
{
    const plan *p = (const plan *)job;
    float slots[(p->n_slot + 1) * LL_TILE] __attribute__((aligned(64)));
    const float *r[N_REG] = {0};
    const ll_fused_attr *f = p->f;
    uint64_t mode = ll_flush_begin(p->flush);
    int full_tile = p->n < p->tile ? (int)p->n : p->tile;
    for (int i = 0; i < f->n_in; i++)
        if (p->place[i] != IN_TENSOR && p->once[i])
            r[i] = fetch(p, i, 0, full_tile, slots + (size_t)p->place[i] * LL_TILE);
    for (int k = f->n_in + f->n_step; k < p->n_reg; k++) {
        float *y = slots + (size_t)p->place[k] * LL_TILE;
        for (int i = 0; i < full_tile; i++) y[i] = p->constant[k];
        r[k] = y;
    }
    for (int64_t t = from; t < to; t++) {
        int64_t e = t * p->tile, left = p->n - e;
        run_tile(p, r, slots, e, left < p->tile ? (int)left : p->tile);
    }
    ll_flush_end(p->flush, mode);
}

void ll_chain_run(const ll_fused_attr *f, const ll_kcall *c)
{
    plan p;
    p.f = f, p.in = c->in, p.out = c->out, p.flush = c->flush;
    p.n = ll_numel(&f->shape);
    p.n_step = p.n_slot = p.cost = 0;
    p.n_reg = f->n_in + f->n_step;
    if (p.n == 0) return;
    plan_steps(&p);
    p.tile = choose_tile(&p);
    plan_places(&p);
    p.ahead = pays_ahead(&p);
    ll_in_parts(ll_team(c, p.n * (p.cost + 1)), ll_ceil_div(p.n, p.tile), run_tiles, &p);
}
