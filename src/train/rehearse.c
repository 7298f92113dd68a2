/* rehearse.c: kernels of each kind, then whole passes over the program, timed. */
#include "train/rehearse.h"

#include "base/num.h"
#include "base/stats.h"
#include "run/ranks.h"

enum { TIMES = 5, MOST_TRIES = 12, KINDS = 512, LEAST = 3, PASSES = 128 };
/* For all kernels; for one; a pass that is repeated for so long. */
static const double patience_s = 1.5, enough_s = 0.02, passes_s = 1.2;
static const double longest_s = 4; /* all passes, where others have the cores too */

typedef struct kernel { /* calls that take as long as each other */
    int first;          /* instruction */
    double seconds;
} kernel;

typedef struct rehearsal {
    const ll_session *s;
    ll_rehearsal how;
    ll_rehearsed *out;
    kernel kernels[KINDS];
    int n;
    double began;
    double timed_s, timed_flops; /* of what was timed: a rate for what was not */
    char *room;                  /* where results go that would change parameters or state */
    size_t room_bytes;
    const double *each; /* [instr] seconds, in the program's order; NULL: by kind */
} rehearsal;

static bool same_types(const ll_program *p, const int *a, const int *b, int n)
{
    for (int i = 0; i < n; i++) {
        const ll_type *x = &p->slots[a[i]].type, *y = &p->slots[b[i]].type;
        if (x->dtype != y->dtype || !ll_shape_equal(&x->shape, &y->shape)) return false;
    }
    return true;
}

static bool alike(const ll_program *p, const ll_instr *a, const ll_instr *b)
{
    const ll_op *op = ll_op_find(a->op);
    return !strcmp(a->op, b->op) && a->kernel.run == b->kernel.run && a->n_in == b->n_in &&
           a->n_out == b->n_out && same_types(p, a->in, b->in, a->n_in) &&
           same_types(p, a->out, b->out, a->n_out) &&
           (a->attr == b->attr ||
            (a->attr && b->attr && op && !memcmp(a->attr, b->attr, op->attr_size)));
}

/* May it run now? What it writes must be memory that every step makes anew. */
static bool is_harmless(const ll_program *p, const ll_instr *x)
{
    for (int i = 0; i < x->n_out; i++)
        if (p->slots[x->out[i]].region != LL_WORK || p->slots[x->out[i]].input) return false;
    return true;
}

enum { MOST_OUT = 8 };

static size_t result_bytes(const ll_program *p, const ll_instr *x)
{
    size_t sum = 0;
    for (int i = 0; i < x->n_out; i++) sum += ll_align64(p->slots[x->out[i]].bytes);
    return sum;
}

static bool can_run(const rehearsal *f, const ll_instr *x)
{
    const ll_program *p = f->s->p;
    return is_harmless(p, x) || (x->n_out <= MOST_OUT && result_bytes(p, x) <= f->room_bytes);
}

/* Runs an instruction's kernel; what it would change is left as it is. */
static ll_err run_dry(const rehearsal *f, int i)
{
    const ll_bound *b = &f->s->e->instrs[i];
    ll_kcall call = b->call;
    ll_tensor out[MOST_OUT];
    char *at = f->room;
    for (int k = 0; k < call.n_out && !is_harmless(f->s->p, b->instr); k++) {
        out[k] = call.out[k];
        out[k].data = at;
        at += ll_align64(f->s->p->slots[b->instr->out[k]].bytes);
        if (k + 1 == call.n_out) call.out = out;
    }
    return b->instr->kernel.run(&call);
}

/* Numbers that arithmetic is as quick with as it will be: no leftovers that happen to be denormal,
 * no index that is out of range. */
static void fill(const rehearsal *f, const ll_tensor *t, int slot)
{
    const ll_slot *s = &f->s->p->slots[slot];
    if (s->region == LL_WORK || (s->input && f->s->p->slots[s->input].kind == LL_BATCH))
        memset(t->data, ll_dtype_is_float(s->type.dtype) ? 0x3c : 0, s->bytes);
}

static double worked(void)
{
    struct timespec t;
    return clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t)
               ? NAN
               : (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Ranks that share cores: a kernel takes what it works, times those that work in turn with it. By
 * the wall one shorter than a turn would be timed as if it had the core. together: but what ranks
 * wait for each other counts. */
static double clock_of(const rehearsal *f, bool together)
{
    double own = together || f->how.crowd <= 1 ? NAN : worked();
    return isnan(own) ? ll_now() : own * f->how.crowd / f->s->p->threads;
}

static ll_err time_kernel(rehearsal *f, int i, double *seconds)
{
    const ll_bound *b = &f->s->e->instrs[i];
    double times[TIMES], all = 0;
    int n = 0;
    for (int k = 0; k < b->call.n_in; k++) fill(f, &b->call.in[k], b->instr->in[k]);
    TRY(run_dry(f, i)); /* pages, caches, tables */
    ll_waits_since(f->how.waits);
    *seconds = INFINITY;
    for (int tries = 0; n < TIMES && tries < MOST_TRIES && (n < 2 || all < enough_s); tries++) {
        double start = clock_of(f, false);
        TRY(run_dry(f, i));
        double took = clock_of(f, false) - start;
        times[n] = ll_waits_left(f->how.waits, took);
        *seconds = fmin(*seconds, took);
        all += times[n];
        n += times[n] > 0;
    }
    if (n) *seconds = ll_typical(times, n);
    f->timed_s += *seconds;
    f->timed_flops += b->instr->flops;
    return LL_OK;
}

/* What others of this program took for an operation or a byte. */
static double reckon(const rehearsal *f, const ll_instr *x)
{
    double by_flops = f->timed_flops > 0 ? x->flops * f->timed_s / f->timed_flops : 0;
    return x->flops > 4 * x->bytes ? by_flops : x->bytes / f->out->copy_rate;
}

/* A collective of ranks on this node whose results every step makes anew runs as it will: what a
 * small one takes is mostly to wait for the slower rank, which no link tells. */
static bool is_rehearsed(const rehearsal *f, int i)
{
    const ll_instr *x = &f->s->p->instrs[i];
    int start = x->wait ? x->pair : i;
    const ll_transfer *t = f->s->e->instrs[start].transfer;
    return f->out->together && t && !t->codec && is_harmless(f->s->p, &f->s->p->instrs[start]);
}

/* Ranks rehearse the same collectives, or none; those of a pipeline, whose programs are not alike,
 * all that there are: then the order is a step's, which ends. */
static ll_err agree_to_rehearse(rehearsal *f, ll_comm *c)
{
    const ll_session *s = f->s;
    double most = 0, least;
    const ll_pipeline *pipe = s->cut->plan ? s->cut->plan->pipeline : NULL;
    f->out->together = c && s->cut->place && !f->how.far && !(pipe && pipe->overlaps);
    for (int i = 0, k = 1; i < s->p->n_instr; i++)
        if (s->p->instrs[i].collective)
            most += is_rehearsed(f, i) != (pipe != NULL) ? (double)k * k : 0, k++;
    least = -most;
    TRY(ll_ranks_max(c, &most));
    TRY(ll_ranks_max(c, &least));
    f->out->together &= pipe ? most == 0 : most == -least;
    return LL_OK;
}

static ll_err rehearse(const rehearsal *f, int i)
{
    ll_exec *e = f->s->e;
    ll_bound *b = &e->instrs[i];
    return b->instr->wait ? e->link->wait(e, &e->instrs[b->instr->pair]) : e->link->start(e, b);
}

static int kind_of(const rehearsal *f, int i)
{
    int q = 0;
    while (q < f->n && !alike(f->s->p, &f->s->p->instrs[f->kernels[q].first], &f->s->p->instrs[i]))
        q++;
    return q;
}

/* What an instruction takes: in a pass, as others of its kind, or by its size. */
static double seconds_of(const rehearsal *f, int i)
{
    const ll_instr *x = &f->s->p->instrs[i];
    if (f->each && (is_rehearsed(f, i) || (x->kernel.run && can_run(f, x)))) return f->each[i];
    if (!x->kernel.run) return 0;
    int q = kind_of(f, i);
    return q < f->n ? f->kernels[q].seconds : reckon(f, x);
}

/* In memory that every step makes anew, or where that is small in a little of its own. */
static void measure_copies(rehearsal *f)
{
    enum { ROUNDS = 6, OWN = 1 << 16, MOST = 4 << 20 };
    static char own[2 * OWN];
    const ll_exec *e = f->s->e;
    size_t half = f->s->p->work_bytes / 2;
    bool here = half >= OWN && !e->borrowed;
    char *memory = here ? e->slab + e->input_bytes : own;
    if (!here) half = OWN;
    if (half > MOST) half = MOST;
    double best = INFINITY;
    for (int i = 0; i < ROUNDS; i++) {
        double start = ll_now();
        memcpy(memory + (i % 2 ? half : 0), memory + (i % 2 ? 0 : half), half);
        best = fmin(best, ll_now() - start);
    }
    f->out->copy_rate = 2 * (double)half / fmax(best, 1e-9); /* read and written */
}

/* A pass over the kernels, in order. */
typedef struct pass {
    const rehearsal *f;
    bool parts;   /* each is without its own waits for cores */
    double *each; /* [instr] what it took */
    double held;  /* of all of it, waits */
    double from;
    int at, to; /* of a stretch */
    ll_err rc;
} pass;

static ll_err time_one(pass *s, int i)
{
    const rehearsal *f = s->f;
    const ll_bound *b = &f->s->e->instrs[i];
    bool together = is_rehearsed(f, i);
    for (int k = 0; !together && b->instr->collective && k < b->call.n_out; k++)
        fill(f, &b->call.out[k], b->instr->out[k]); /* as if it came from others */
    if (!together && b->instr->collective) s->from = clock_of(f, f->out->together);
    if (!together && (!b->instr->kernel.run || !can_run(f, b->instr))) return LL_OK;
    TRY(together ? rehearse(f, i) : run_dry(f, i));
    if (f->s->e->n_in_flight) TRY(ll_comm_poll(f->s->e->comm));
    double now = clock_of(f, f->out->together), took = now - s->from;
    s->each[i] = s->parts ? ll_waits_left(f->how.waits, took) : took;
    s->held += took - s->each[i];
    s->from = s->parts ? clock_of(f, f->out->together) : now;
    return LL_OK;
}

static void time_stretch(void *given)
{
    pass *s = (pass *)given;
    s->rc = LL_OK;
    for (int i = s->at; i < s->to && s->rc == LL_OK; i++) s->rc = time_one(s, i);
}

/* Threads stay together as in a step (exec.c). row: all of it, each instruction, what cores did not
 * work. */
static ll_err time_pass(const rehearsal *f, bool parts, double *row, double *held)
{
    const ll_program *p = f->s->p;
    const ll_machine *m = f->s->machine;
    ll_waits_since(f->how.waits);
    double start = clock_of(f, f->out->together), before = worked();
    pass s = {.f = f, .parts = parts, .each = row + 1, .from = start};
    for (; s.at < p->n_instr; s.at = s.to) {
        int n = 0;
        while (m->together && s.at + n < p->n_instr && p->instrs[s.at + n].kernel.parts) n++;
        s.to = n ? s.at + n : s.at + 1;
        if (n > 1)
            m->together(p->threads, time_stretch, &s);
        else
            time_stretch(&s);
        TRY(s.rc);
    }
    row[0] = clock_of(f, f->out->together) - start;
    row[1 + p->n_instr] = p->threads * row[0] - (worked() - before);
    *held = s.held + ll_waits_since(f->how.waits);
    return LL_OK;
}

/* Passes that others held up, on any rank, tell less than those that they did not, if there are
 * some; *n: of how many. They are the same on all ranks. */
static ll_err keep_unheld(ll_comm *c, double **rows, double *held, int *n)
{
    static const ll_coll_opts site = {.site = "passes that were held up"};
    int own = 0;
    for (int k = 0; k < *n; k++) held[k] = ll_is_held(rows[k][0], held[k]);
    if (c) TRY(ll_comm_allreduce(c, held, (size_t)*n, LL_F64, LL_REDUCE_MAX, &site));
    for (int k = 0; k < *n; k++) {
        double *row = rows[k];
        if (held[k] > 0) continue;
        rows[k] = rows[own];
        rows[own++] = row;
    }
    *n = own < LEAST ? 0 : own;
    return LL_OK;
}

/* Where every pass was held up: the least that an instruction, or one of its kind, took; in parts,
 * for which waits are known about, the least quarter. A kind is looked at once: programs have
 * thousands of instructions. */
static void take_least(const rehearsal *f, bool parts, double **rows, int passes, double *each)
{
    int n_instr = f->s->p->n_instr;
    LL_OWN(ll_arena) arena = ll_arena_new();
    double *own = LL_NEW_ARRAY(arena, double, n_instr *passes + 1);
    int *kind = LL_NEW_ARRAY(arena, int, n_instr + 1), *first = LL_NEW_ARRAY(arena, int, f->n + 1);
    for (int i = n_instr - 1; i >= 0; i--) first[kind[i] = kind_of(f, i)] = i;
    for (int i = 0; i < n_instr; i++) {
        bool timed = kind[i] < f->n;
        if (timed && first[kind[i]] < i) {
            each[i] = each[first[kind[i]]];
            continue;
        }
        int n = 0;
        for (int m = i; m < (timed ? n_instr : i + 1); m++)
            for (int k = 0; kind[m] == kind[i] && k < passes; k++)
                if (rows[k][1 + m] > 0) own[n++] = rows[k][1 + m];
        ll_stats_sort(own, n);
        each[i] = n       ? own[(int)((parts ? 0.25 : 0.03) * n)]
                  : timed ? f->kernels[kind[i]].seconds
                          : reckon(f, &f->s->p->instrs[i]);
    }
}

/* One of each kind, while there is time; *all: of a pass. */
static ll_err time_kinds(rehearsal *f, double *all)
{
    const ll_program *p = f->s->p;
    for (int i = 0; i < p->n_instr; i++) {
        const ll_bound *b = &f->s->e->instrs[i];
        if (b->instr->kernel.run && f->n < KINDS && can_run(f, b->instr) && kind_of(f, i) == f->n &&
            ll_now() - f->began < patience_s) {
            kernel *k = &f->kernels[f->n];
            TRY(time_kernel(f, i, &k->seconds));
            k->first = i, f->n++;
        }
        *all += seconds_of(f, i);
        for (int k = 0; k < b->call.n_in; k++)
            if (p->slots[b->instr->in[k]].input) fill(f, &b->call.in[k], b->instr->in[k]);
    }
    return LL_OK;
}

/* Sets f->each. All ranks make as many passes, and none waits for the others in between: it would
 * not in a step. */
static ll_err time_passes(rehearsal *f, ll_comm *c, ll_arena *arena)
{
    int n = f->s->p->n_instr;
    double *rows[PASSES], *sum = LL_NEW_ARRAY(arena, double, n + 1), all = 0, took = 0;
    double held[PASSES];
    TRY(ll_ranks_agree(c, time_kinds(f, &all)));
    TRY(ll_ranks_max(c, &all));
    if (all > passes_s) f->out->together = false;
    if (all > passes_s) return LL_OK;
    int passes = (int)fmin(PASSES, fmax(LEAST, fmin(f->how.most, passes_s / all)));
    bool parts = f->how.waits && all > 0.01; /* else it would take as long to ask as to work */
    rows[0] = LL_NEW_ARRAY(arena, double, n + 2);
    TRY(time_pass(f, parts, rows[0], held)); /* pages, tables */
    double began = ll_now(), long_s = 0;
    for (int k = 0; k < passes; k++) {
        rows[k] = LL_NEW_ARRAY(arena, double, n + 2);
        TRY(time_pass(f, parts, rows[k], &held[k]));
        if (k < LEAST || k % 8) continue; /* now and then ranks look at the time */
        long_s = ll_now() - began;
        TRY(ll_ranks_max(c, &long_s));
        if (long_s > longest_s) passes = k + 1;
    }
    int own = passes;
    TRY(keep_unheld(c, rows, held, &own));
    if (own)
        ll_typical_row(rows, own, n + 1, sum);
    else
        take_least(f, parts, rows, passes, sum);
    if (!own) f->out->together = false; /* what a rank waited for others is what held these up */
    double spare = fmax(0, sum[n]);
    for (int i = 0; i < n; i++) {
        f->timed_s += sum[i];
        f->timed_flops += sum[i] > 0 ? f->s->p->instrs[i].flops : 0;
        took += sum[i];
        bool waits = f->s->p->instrs[i].wait && is_rehearsed(f, i); /* for others: it yields */
        spare += waits ? sum[i] : 0;
    }
    f->out->spare = f->how.crowd <= 1 && took > 0 ? spare / took : 0;
    f->each = sum;
    return LL_OK;
}

/* For the results of the largest update, if that is not very large. */
static void find_room(rehearsal *f, ll_arena *arena)
{
    enum { MOST = 32 << 20 };
    const ll_program *p = f->s->p;
    for (int i = 0; i < p->n_instr; i++) {
        size_t bytes = result_bytes(p, &p->instrs[i]);
        if (p->instrs[i].kernel.run && !is_harmless(p, &p->instrs[i]) && bytes <= MOST &&
            bytes > f->room_bytes)
            f->room_bytes = bytes;
    }
    f->room = (char *)ll_arena_alloc(arena, f->room_bytes + 64);
}

/* Bytes a second of the kernel that moves most of them, which no cache holds if there is any. */
static ll_err device_rate(ll_exec *e, double *rate)
{
    int most = -1;
    for (int i = 0; i < e->p->n_instr; i++) {
        const ll_instr *x = &e->p->instrs[i];
        if (x->kernel.run && is_harmless(e->p, x) && x->flops <= 4 * x->bytes &&
            (most < 0 || x->bytes > e->p->instrs[most].bytes))
            most = i;
    }
    *rate = INFINITY;
    if (most < 0) return LL_OK;
    double start = ll_now();
    for (int t = 0; t < TIMES; t++) TRY(e->instrs[most].instr->kernel.run(&e->instrs[most].call));
    TRY(e->machine->sync(e));
    *rate = TIMES * e->p->instrs[most].bytes / (ll_now() - start);
    return LL_OK;
}

/* A device's kernels share its caches and its power, so passes are timed, as the step will launch
 * them, for as long as it takes to be warm. Results of no pass count. */
ll_err ll_rehearse_device(ll_exec *e, double *seconds)
{
    const ll_program *p = e->p;
    ll_err (*time)(ll_exec *, int, ll_may_run *, int, double *) = e->machine->rehearse;
    enum { PARTS = 3 };
    double micro, parts[PARTS], report, update, rate, changes = 0;
    TRY(time(e, LL_REPORT, is_harmless, TIMES, &report));
    TRY(time(e, LL_UPDATE, is_harmless, TIMES, &update));
    TRY(time(e, LL_MICRO, is_harmless, 1, &micro));
    int times = (int)fmin(200, ceil(patience_s / fmax(micro, 1e-6)) / PARTS) + 1;
    for (int k = 0; k < PARTS; k++) TRY(time(e, LL_MICRO, is_harmless, times, &parts[k]));
    micro = ll_typical(parts, PARTS);
    TRY(device_rate(e, &rate));
    for (int i = 0; i < p->n_instr; i++)
        if (p->instrs[i].kernel.run && !is_harmless(p, &p->instrs[i]))
            changes += p->instrs[i].bytes / rate;
    *seconds = micro * ll_program_rounds(p) + report + update + changes;
    return LL_OK;
}

ll_err ll_rehearse(const ll_session *s, ll_comm *c, const ll_rehearsal *how, ll_arena *arena,
                   ll_rehearsed *out)
{
    rehearsal f = {.s = s, .how = *how, .out = out, .began = ll_now()};
    int n = s->p->n_instr;
    *out = (ll_rehearsed){.seconds = LL_NEW_ARRAY(arena, double, n + 1),
                          .ran = LL_NEW_ARRAY(arena, bool, n + 1)};
    measure_copies(&f);
    find_room(&f, arena);
    if (c) TRY(ll_comm_barrier(c)); /* kernels of all ranks run at once */
    TRY(agree_to_rehearse(&f, c));
    ll_err rc = time_passes(&f, c, arena);
    if (rc != LL_OK && out->together) ll_comm_give_up(c); /* others may be in a collective */
    TRY(ll_ranks_agree(c, rc));
    for (int i = 0; i < n; i++)
        out->seconds[i] = seconds_of(&f, i), out->ran[i] = is_rehearsed(&f, i);
    return LL_OK;
}
