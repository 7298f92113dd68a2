/* foresee.c: kernels timed, links measured, and the step that they add up to. */
#include "train/foresee.h"

#include "base/file.h"
#include "base/stats.h"
#include "base/num.h"
#include "run/ranks.h"
#include "run/setup.h"
#include "tune/tune.h"

#include <fcntl.h>
#include <jansson.h>
#include <unistd.h>

enum { TIMES = 5, MOST_TRIES = 12, KINDS = 512, LEAST = 3, PASSES = 128 };
/* For all kernels; for one; a pass that is repeated for so long. */
static const double patience_s = 1.5, enough_s = 0.02, passes_s = 1.2;
static const double longest_s = 4; /* all passes, where others have the cores too */

typedef struct kernel { /* calls that take as long as each other */
    int first;          /* instruction */
    double seconds;
} kernel;

typedef struct foresight {
    const ll_session *s;
    double most; /* passes: a run of few steps does not wait for many */
    kernel kernels[KINDS];
    int n;
    double began;
    double timed_s, timed_bytes, timed_flops; /* of what was timed: rates for what was not */
    double copy_rate;                         /* bytes a second */
    char *room; /* where results go that would change parameters or state */
    size_t room_bytes;
    const double *each; /* [instr] seconds, in the program's order; NULL: by kind */
    double spare;       /* part of a pass in which one of this rank's cores had nothing to do */
    ll_link_model links;
    bool far;        /* ranks are on several nodes: messages are under way while kernels run */
    bool rehearses;  /* passes have the ranks' collectives in them */
    double crowd;    /* threads for each core of the node, if more than one */
    ll_waits *waits; /* NULL: not known */
} foresight;

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

static bool can_run(const foresight *f, const ll_instr *x)
{
    const ll_program *p = f->s->p;
    return is_harmless(p, x) || (x->n_out <= MOST_OUT && result_bytes(p, x) <= f->room_bytes);
}

/* Runs an instruction's kernel; what it would change is left as it is. */
static ll_err run_dry(const foresight *f, int i)
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
static void fill(const foresight *f, const ll_tensor *t, int slot)
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
static double clock_of(const foresight *f, bool together)
{
    double own = together || f->crowd <= 1 ? NAN : worked();
    return isnan(own) ? ll_now() : own * f->crowd / f->s->p->threads;
}

static ll_err time_kernel(foresight *f, int i, double *seconds)
{
    const ll_bound *b = &f->s->e->instrs[i];
    double times[TIMES], all = 0;
    int n = 0;
    for (int k = 0; k < b->call.n_in; k++) fill(f, &b->call.in[k], b->instr->in[k]);
    TRY(run_dry(f, i)); /* pages, caches, tables */
    ll_waits_since(f->waits);
    *seconds = INFINITY;
    for (int tries = 0; n < TIMES && tries < MOST_TRIES && (n < 2 || all < enough_s); tries++) {
        double start = clock_of(f, false);
        TRY(run_dry(f, i));
        double took = clock_of(f, false) - start;
        times[n] = ll_waits_left(f->waits, took);
        *seconds = fmin(*seconds, took);
        all += times[n];
        n += times[n] > 0;
    }
    if (n) *seconds = ll_typical(times, n);
    f->timed_s += *seconds;
    f->timed_bytes += b->instr->bytes;
    f->timed_flops += b->instr->flops;
    return LL_OK;
}

/* What others of this program took for an operation or a byte. */
static double reckon(const foresight *f, const ll_instr *x)
{
    double by_flops = f->timed_flops > 0 ? x->flops * f->timed_s / f->timed_flops : 0;
    return x->flops > 4 * x->bytes ? by_flops : x->bytes / f->copy_rate;
}

/* A collective of ranks on this node whose results every step makes anew runs as it will: what a
 * small one takes is mostly to wait for the slower rank, which no link tells. */
static bool is_rehearsed(const foresight *f, int i)
{
    const ll_instr *x = &f->s->p->instrs[i];
    int start = x->wait ? x->pair : i;
    const ll_transfer *t = f->s->e->instrs[start].transfer;
    return f->rehearses && t && !t->codec && is_harmless(f->s->p, &f->s->p->instrs[start]);
}

/* Ranks rehearse the same collectives, or none; those of a pipeline, whose programs are not alike,
 * all that there are: then the order is a step's, which ends. */
static ll_err agree_to_rehearse(foresight *f, ll_comm *c)
{
    const ll_session *s = f->s;
    double most = 0, least;
    const ll_pipeline *pipe = s->cut->plan ? s->cut->plan->pipeline : NULL;
    f->rehearses = c && s->cut->place && !f->far && !(pipe && pipe->overlaps);
    for (int i = 0, k = 1; i < s->p->n_instr; i++)
        if (s->p->instrs[i].collective)
            most += is_rehearsed(f, i) != (pipe != NULL) ? (double)k * k : 0, k++;
    least = -most;
    TRY(ll_ranks_max(c, &most));
    TRY(ll_ranks_max(c, &least));
    f->rehearses &= pipe ? most == 0 : most == -least;
    return LL_OK;
}

static ll_err rehearse(const foresight *f, int i)
{
    ll_exec *e = f->s->e;
    ll_bound *b = &e->instrs[i];
    return b->instr->wait ? e->link->wait(e, &e->instrs[b->instr->pair]) : e->link->start(e, b);
}

static ll_err cost(foresight *f, int i, double *seconds)
{
    const ll_program *p = f->s->p;
    const ll_instr *x = &p->instrs[i];
    *seconds = 0;
    if (f->each && (is_rehearsed(f, i) || (x->kernel.run && can_run(f, x)))) {
        *seconds = f->each[i];
        return LL_OK;
    }
    if (!x->kernel.run) return LL_OK;
    for (int k = 0; k < f->n; k++)
        if (alike(p, &p->instrs[f->kernels[k].first], x)) {
            *seconds = f->kernels[k].seconds;
            return LL_OK;
        }
    bool may = f->n < KINDS && can_run(f, x) && ll_now() - f->began < patience_s;
    if (may)
        TRY(time_kernel(f, i, seconds));
    else
        *seconds = reckon(f, x);
    if (may) f->kernels[f->n++] = (kernel){i, *seconds};
    return LL_OK;
}

/* Between hosts by the steps of the algorithm that will be taken, over the links as they were
 * measured, which takes too long for what it would tell within one. */
static double talk(const foresight *f, int i)
{
    const ll_instr *x = &f->s->p->instrs[i];
    const ll_transfer *t = f->s->e->instrs[i].transfer;
    const ll_link_model *m = &f->links;
    double bytes = 0;
    if (!x->collective || x->collective == LL_RECV) return 0;
    for (int o = 0; o < x->n_in; o++)
        bytes += ll_collective_sent(&f->s->cut->place->mesh, x->collective, x->attrs[o],
                                    &f->s->p->slots[x->in[o]].type);
    if (!f->far) return 10e-6 + 2 * bytes / f->copy_rate; /* they copy to and from each other */
    double packed = t->packing ? 2 * bytes * m->kappa : 0;
    ll_coll_spec spec = t->call.spec;
    const ll_algo *algo;
    size_t elem = ll_dtype_bytes(t->call.dtype);
    spec.size = ll_comm_size(t->c);
    spec.node = ll_comm_nodes(t->c);
    if (!t->call.sched && !t->codec && !t->subsets &&
        ll_choose(ll_comm_table(t->c), &spec, elem, ll_comm_has_window(t->c),
                  ll_comm_options(t->c)->canonical, &algo, &spec.segment) == LL_OK) {
        double s = ll_tune_predict(m, &spec, algo, elem, ll_comm_window_bytes(t->c));
        if (s > 0) return s + packed;
    }
    return m->alpha[f->far] + bytes * m->beta[f->far] + packed;
}

/* In memory that every step makes anew, or where that is small in a little of its own. */
static void measure_copies(foresight *f)
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
    f->copy_rate = 2 * (double)half / fmax(best, 1e-9); /* read and written */
}

/* A pass over the kernels, in order. */
typedef struct pass {
    const foresight *f;
    bool parts;   /* each is without its own waits for cores */
    double *each; /* [instr] what it took */
    double held;  /* of all of it, waits */
    double from;
    int at, to; /* of a stretch */
    ll_err rc;
} pass;

static ll_err time_one(pass *s, int i)
{
    const foresight *f = s->f;
    const ll_bound *b = &f->s->e->instrs[i];
    bool together = is_rehearsed(f, i);
    for (int k = 0; !together && b->instr->collective && k < b->call.n_out; k++)
        fill(f, &b->call.out[k], b->instr->out[k]); /* as if it came from others */
    if (!together && b->instr->collective) s->from = clock_of(f, f->rehearses);
    if (!together && (!b->instr->kernel.run || !can_run(f, b->instr))) return LL_OK;
    TRY(together ? rehearse(f, i) : run_dry(f, i));
    if (f->s->e->n_in_flight) TRY(ll_comm_poll(f->s->e->comm));
    double now = clock_of(f, f->rehearses), took = now - s->from;
    s->each[i] = s->parts ? ll_waits_left(f->waits, took) : took;
    s->held += took - s->each[i];
    s->from = s->parts ? clock_of(f, f->rehearses) : now;
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
static ll_err time_pass(const foresight *f, bool parts, double *row, double *held)
{
    const ll_program *p = f->s->p;
    const ll_machine *m = f->s->machine;
    ll_waits_since(f->waits);
    double start = clock_of(f, f->rehearses), before = worked();
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
    row[0] = clock_of(f, f->rehearses) - start;
    row[1 + p->n_instr] = p->threads * row[0] - (worked() - before);
    *held = s.held + ll_waits_since(f->waits);
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

static int kind_of(const foresight *f, int i)
{
    int q = 0;
    while (q < f->n && !alike(f->s->p, &f->s->p->instrs[f->kernels[q].first], &f->s->p->instrs[i]))
        q++;
    return q;
}

/* Where every pass was held up: the least that an instruction, or one of its kind, took; in parts,
 * for which waits are known about, the least quarter. A kind is looked at once: programs have
 * thousands of instructions. */
static void take_least(const foresight *f, bool parts, double **rows, int passes, double *each)
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

/* Small nets' kernels are as quick as the caches that those before them leave: whole passes, of
 * which the middle half counts. Of a long pass what was timed of each kind is left. */
static ll_err time_kinds(foresight *f, double *all)
{
    const ll_program *p = f->s->p;
    for (int i = 0; i < p->n_instr; i++) {
        double s;
        TRY(cost(f, i, &s));
        *all += s;
        const ll_bound *b = &f->s->e->instrs[i];
        for (int k = 0; k < b->call.n_in; k++)
            if (p->slots[b->instr->in[k]].input) fill(f, &b->call.in[k], b->instr->in[k]);
    }
    return LL_OK;
}

/* Sets f->each. All ranks make as many passes, and none waits for the others in between: it would
 * not in a step. */
static ll_err time_passes(foresight *f, ll_comm *c, ll_arena *arena)
{
    int n = f->s->p->n_instr;
    double *rows[PASSES], *sum = LL_NEW_ARRAY(arena, double, n + 1), all = 0, took = 0;
    double held[PASSES];
    TRY(ll_ranks_agree(c, time_kinds(f, &all)));
    TRY(ll_ranks_max(c, &all));
    if (all > passes_s) f->rehearses = false;
    if (all > passes_s) return LL_OK;
    int passes = (int)fmin(PASSES, fmax(LEAST, fmin(f->most, passes_s / all)));
    bool parts = f->waits && all > 0.01; /* else it would take as long to ask as to work */
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
    if (!own) f->rehearses = false; /* what a rank waited for others is what held these up */
    double spare = fmax(0, sum[n]);
    for (int i = 0; i < n; i++) {
        f->timed_s += sum[i];
        f->timed_flops += sum[i] > 0 ? f->s->p->instrs[i].flops : 0;
        took += sum[i];
        bool waits = f->s->p->instrs[i].wait && is_rehearsed(f, i); /* for others: it yields */
        spare += waits ? sum[i] : 0;
    }
    f->spare = f->crowd <= 1 && took > 0 ? spare / took : 0;
    f->each = sum;
    return LL_OK;
}

/* For the results of the largest update, if that is not very large. */
static void find_room(foresight *f, ll_arena *arena)
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
static ll_err foresee_device(ll_exec *e, double *seconds)
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

/* Instructions one after another; communication between nodes on a clock of its own. */
static ll_err foresee_plain(foresight *f, double *seconds)
{
    const ll_program *p = f->s->p;
    LL_OWN(ll_arena) arena = ll_arena_new();
    double *cost_s = LL_NEW_ARRAY(arena, double, p->n_instr + 1), now = 0, talked = 0;
    double *ends = LL_NEW_ARRAY(arena, double, p->n_instr + 1);
    for (int i = 0; i < p->n_instr; i++) {
        TRY(cost(f, i, &cost_s[i]));
        if (f->s->cut->place && !is_rehearsed(f, i)) cost_s[i] += talk(f, i);
    }
    for (int s = LL_MICRO; s <= LL_UPDATE; s++)
        for (int k = 0; k < (s == LL_MICRO ? ll_program_rounds(p) : 1); k++)
            for (int i = s ? p->end[s - 1] : 0; i < p->end[s]; i++) {
                const ll_instr *x = &p->instrs[i];
                if (s == LL_MICRO && x->last && k + 1 < ll_program_rounds(p)) continue;
                if (x->wait && !is_rehearsed(f, i))
                    now = fmax(now, ends[x->pair]);
                else if (x->collective && f->far)
                    ends[i] = talked = fmax(now, talked) + cost_s[i];
                else
                    now += cost_s[i];
            }
    *seconds = fmax(now, talked);
    return LL_OK;
}

/* A rank updates when its own actions are done, or where others tell it something first (parts of
 * the gradient's norm) when all are. Then it begins the next step, whoever is not done: from its
 * first action to the next step's is what a step takes. */
static ll_err finish(const foresight *f, ll_comm *c, const ll_pipeline_times *t, double after,
                     double *seconds)
{
    const ll_program *p = f->s->p;
    const ll_pipeline *l = f->s->cut->plan->pipeline;
    int r = p->pipe->n_action ? f->s->cut->plan->rank_of[p->pipe->actions[0].stage] : 0;
    bool waits = l->overlaps || !l->n_action[r];
    for (int i = p->end[LL_MICRO]; i < p->n_instr; i++)
        waits |= p->instrs[i].collective == LL_RECV && !f->s->e->instrs[i].late;
    double done = waits ? t->makespan : t->end[r][l->n_action[r] - 1];
    *seconds = done + after - (l->overlaps || !l->n_action[r] ? 0 : t->start[r][0]);
    return ll_ranks_max(c, seconds);
}

/* Actions as the schedule has them; what is no action's comes after. */
static ll_err foresee_pipe(foresight *f, ll_comm *c, double *seconds)
{
    const ll_program *p = f->s->p;
    const ll_pipe_plan *plan = f->s->cut->plan;
    int n = plan->pipeline->n_stage,
        copies = f->s->cut->place->mesh.n_rank / plan->pipeline->n_rank;
    LL_OWN(ll_arena) arena = ll_arena_new();
    double *t[3], *send = LL_NEW_ARRAY(arena, double, plan->costs.n_edge + n), after = 0, busy = 0;
    for (int k = 0; k < 3; k++) t[k] = LL_NEW_ARRAY(arena, double, n);
    ll_err rc = LL_OK;
    for (int i = 0; rc == LL_OK && i < p->n_instr; i++) {
        double s = 0;
        const ll_instr *x = &p->instrs[i];
        rc = cost(f, i, &s);
        if (!f->far || x->collective != LL_SEND) s += talk(f, i);
        if (x->action > 0 && x->action <= p->pipe->n_action) {
            const ll_action *a = &p->pipe->actions[x->action - 1];
            int kind = a->kind == LL_ACT_F ? 0 : a->kind == LL_ACT_W ? 2 : 1;
            t[kind][a->stage] += s / f->crowd / p->n_micro / copies, busy += s;
        } else
            after += s;
    }
    TRY(ll_ranks_agree(c, rc));
    for (int k = 0; f->far && k < plan->costs.n_edge; k++) /* of a rank, its part of the batch */
        send[k] =
            f->links.alpha[1] + plan->costs.send[k] / LL_FLOPS_PER_BYTE / copies * f->links.beta[1];
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < n; i++) TRY(ll_ranks_sum(c, &t[k][i]));
    ll_pipeline_costs costs = plan->costs;
    ll_pipeline_times times;
    costs.f = t[0], costs.i = t[1], costs.w = t[2], costs.send = send;
    costs.in_turn = true;
    TRY(ll_pipeline_simulate(arena, plan->pipeline, &costs, &times));
    TRY(finish(f, c, &times, after, seconds));
    TRY(ll_ranks_sum(c, &busy)); /* of cores that ranks share none idles for long */
    *seconds = fmax(*seconds, busy / f->s->cut->place->mesh.n_rank + after);
    return ll_ranks_max(c, seconds);
}

static double ranks_here(const ll_comm *c)
{
    return c ? (double)ll_comm_size(c) / ll_ranks_nodes(c) : 1;
}

double ll_threads_a_core(const ll_session *s, const ll_comm *c)
{
    return ranks_here(c) * s->p->threads / (double)sysconf(_SC_NPROCESSORS_ONLN);
}

ll_err ll_foresee_step(const ll_session *s, ll_comm *c, int64_t steps, ll_waits *waits,
                       ll_ahead *out, const char **without)
{
    foresight f = {.s = s,
                   .most = 4 * (double)steps,
                   .began = ll_now(),
                   .crowd = fmax(1, ll_threads_a_core(s, c)),
                   .waits = waits};
    double *seconds = &out->seconds;
    *out = (ll_ahead){.seconds = NAN};
    *without = "there is no account of several devices' collectives";
    if (s->machine->device && s->cut->place) return LL_OK;
    *without = s->opts.exact && !s->wide ? "steps that have to be made again with all bits" : NULL;
    if (s->machine->device) return foresee_device(s->e, seconds);
    LL_OWN(ll_arena) arena = ll_arena_new();
    measure_copies(&f);
    find_room(&f, arena);
    f.far = c && ll_ranks_nodes(c) > 1;
    if (f.far) TRY(ll_tune_links(c, &f.links));
    if (c) TRY(ll_comm_barrier(c)); /* kernels of all ranks run at once */
    TRY(agree_to_rehearse(&f, c));
    ll_err rc = time_passes(&f, c, arena);
    if (rc != LL_OK && f.rehearses) ll_comm_give_up(c); /* others may be in a collective */
    TRY(ll_ranks_agree(c, rc));
    if (s->cut->plan && s->cut->plan->pipeline && !f.rehearses) return foresee_pipe(&f, c, seconds);
    TRY(ll_ranks_agree(c, foresee_plain(&f, seconds)));
    out->spare = f.spare * *seconds;
    return ll_ranks_max(c, seconds);
}

/* Samples are made beside the step by a thread, which costs nothing where a core is free, or for as
 * long as one has nothing else to do. */
ll_err ll_foresee_data(const ll_run *r, const ll_dataset *d, const ll_loader *l,
                       const ll_session *s, ll_comm *c, ll_ahead *a)
{
    enum { READS = 5 };
    LL_OWN(ll_arena) arena = ll_arena_new();
    const ll_data_info *info = ll_dataset_info(d);
    const ll_sampling how = ll_run_sampling(r);
    int64_t first, count, micro = ll_run_micro_batches(r);
    void *out[LL_MAX_FIELDS] = {0};
    double times[READS], bytes = 0, start = ll_now();
    int n = 0;
    if (isnan(a->seconds)) return LL_OK;
    ll_session_rows(s, &first, &count);
    if (!count) first = 0, count = r->train.batch / micro;
    for (int i = 0; i < info->n_field; i++) {
        out[i] = ll_arena_alloc(arena, (size_t)count * info->field_bytes[i]);
        bytes += (double)(count * micro) * (double)info->field_bytes[i];
    }
    ll_err rc = ll_dataset_read(d, &how, first, count, out); /* from the disk */
    for (; rc == LL_OK && n < READS && (n < 2 || ll_now() - start < patience_s / 3); n++) {
        double from = ll_now();
        first += r->train.batch; /* no cache has the next step's either */
        rc = ll_dataset_read(d, &how, first, count, out);
        times[n] = (ll_now() - from) * (double)micro;
    }
    TRY(ll_ranks_agree(c, rc));
    double made = ll_typical(times, n) / ll_loader_threads(l);
    bool busy = !s->machine->device && ll_threads_a_core(s, c) >= 1;
    a->seconds = busy ? a->seconds + fmax(0, made - a->spare) : fmax(a->seconds, made);
    if (!s->machine->device) a->seconds += 2 * bytes / 1e10; /* into the session */
    return ll_ranks_max(c, &a->seconds);
}

ll_err ll_foresee_others(const ll_session *s, ll_comm *c, ll_core_time since, double *share)
{
    ll_core_time now = ll_core_time_now();
    double here = ranks_here(c), nodes = c ? ll_ranks_nodes(c) : 1;
    double used = ((now.all - since.all) / here - (now.own - since.own)) / (now.when - since.when);
    TRY(ll_ranks_sum(c, &used));
    *share = s->machine->device ? NAN : ll_others_share(used / nodes, here * s->p->threads);
    return LL_OK;
}

static json_t *number(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

ll_err ll_foresee_note(const char *folder, const ll_foreseen *f)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/predictions.jsonl", folder);
    json_auto_t *j =
        json_pack("{s:s,s:s,s:i,s:I,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "model", f->model, "mesh",
                  f->mesh, "ranks", f->ranks, "steps", (json_int_t)f->steps, "predicted_step_ms",
                  number(1e3 * f->predicted_s), "step_ms", number(1e3 * f->measured_s),
                  "own_step_ms", number(1e3 * f->own_s), "predicted_bytes",
                  number(f->predicted_bytes), "bytes", number(f->measured_bytes),
                  "predicted_others", number(f->others[0]), "others", number(f->others[1]));
    LL_OWN_MEMORY char *text = json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION(9));
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    CHECK(fd >= 0, LL_E_IO, "%s cannot be written", path);
    ll_err rc = ll_write_all(fd, path, text, strlen(text));
    if (rc == LL_OK) rc = ll_write_all(fd, path, "\n", 1);
    close(fd);
    return rc;
}
