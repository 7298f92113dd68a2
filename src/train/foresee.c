/* foresee.c: kernels timed one by one, and the step that they add up to. */
#include "train/foresee.h"

#include "base/file.h"
#include "base/now.h"
#include "base/stats.h"
#include "train/ranks.h"

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

enum { TIMES = 5, KINDS = 512 };
static const double patience_s = 1.5, enough_s = 0.02; /* for all kernels; for one */

typedef struct kernel { /* calls that take as long as each other */
    int first;          /* instruction */
    double seconds;
} kernel;

typedef struct foresight {
    const ll_session *s;
    kernel kernels[KINDS];
    int n;
    double began;
    double timed_s, timed_bytes, timed_flops; /* of what was timed: rates for what was not */
    double copy_rate;                         /* bytes a second */
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

static ll_err time_kernel(foresight *f, int i, double *seconds)
{
    const ll_bound *b = &f->s->e->instrs[i];
    double times[TIMES], all = 0;
    int n = 0;
    TRY(b->instr->kernel.run(&b->call)); /* pages, caches, tables */
    while (n < TIMES && (n < 2 || all < enough_s)) {
        double start = ll_now();
        TRY(b->instr->kernel.run(&b->call));
        times[n] = ll_now() - start;
        all += times[n++];
    }
    ll_stats_sort(times, n);
    *seconds = times[n / 2];
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

static ll_err cost(foresight *f, int i, double *seconds)
{
    const ll_program *p = f->s->p;
    const ll_instr *x = &p->instrs[i];
    *seconds = 0;
    if (!x->kernel.run) return LL_OK;
    for (int k = 0; k < f->n; k++)
        if (alike(p, &p->instrs[f->kernels[k].first], x)) {
            *seconds = f->kernels[k].seconds;
            return LL_OK;
        }
    bool may = f->n < KINDS && is_harmless(p, x) && ll_now() - f->began < patience_s;
    if (may)
        TRY(time_kernel(f, i, seconds));
    else
        *seconds = reckon(f, x);
    if (may) f->kernels[f->n++] = (kernel){i, *seconds};
    return LL_OK;
}

/* A collective among ranks of one machine, which copy to and from each other. */
static double talk(const foresight *f, const ll_instr *x)
{
    const ll_mesh *m = &f->s->place->mesh;
    double bytes = 0;
    if (!x->collective) return 0;
    for (int o = 0; o < x->n_in; o++)
        bytes += ll_collective_sent(m, x->collective, x->attrs[o], &f->s->p->slots[x->in[o]].type);
    return 10e-6 + 2 * bytes / f->copy_rate;
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

/* Instructions from .. to-1, so many times; what would change parameters or state is left out. */
static ll_err pass(ll_exec *e, int from, int to, int times, double *seconds)
{
    double start = ll_now();
    for (int t = 0; t < times; t++)
        for (int i = from; i < to; i++) {
            const ll_bound *b = &e->instrs[i];
            if (b->instr->kernel.run && is_harmless(e->p, b->instr))
                TRY(b->instr->kernel.run(&b->call));
        }
    TRY(e->machine->sync(e));
    *seconds = (ll_now() - start) / times;
    return LL_OK;
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

/* A device's kernels share its caches and its power, so passes are timed, for as long as it takes
 * to be warm. Results of no pass count, and each has its operands from others. */
static ll_err foresee_device(ll_exec *e, double *seconds)
{
    const ll_program *p = e->p;
    double micro, rest, rate, changes = 0;
    int end = p->end[LL_MICRO], n = p->n_instr;
    TRY(pass(e, 0, n, 1, &micro)); /* tables, plans */
    TRY(pass(e, end, n, TIMES, &rest));
    TRY(pass(e, 0, end, 1, &micro));
    TRY(pass(e, 0, end, (int)fmin(200, ceil(patience_s / fmax(micro, 1e-6))), &micro));
    TRY(device_rate(e, &rate));
    for (int i = 0; i < p->n_instr; i++)
        if (p->instrs[i].kernel.run && !is_harmless(p, &p->instrs[i]))
            changes += p->instrs[i].bytes / rate;
    *seconds = micro * ll_program_rounds(p) + rest + changes;
    return LL_OK;
}

/* Instructions one after another. */
static ll_err foresee_plain(foresight *f, double *seconds)
{
    const ll_program *p = f->s->p;
    *seconds = 0;
    for (int i = 0; i < p->n_instr; i++) {
        double s;
        TRY(cost(f, i, &s));
        if (f->s->place) s += talk(f, &p->instrs[i]);
        *seconds += s * ll_program_times(p, i);
    }
    return LL_OK;
}

/* Actions as the schedule has them; what is no action's comes after. */
static ll_err foresee_pipe(foresight *f, ll_comm *c, double *seconds)
{
    const ll_program *p = f->s->p;
    const ll_pipe_plan *plan = f->s->plan;
    int n = plan->pipeline->n_stage, copies = f->s->place->mesh.n_rank / plan->pipeline->n_rank;
    LL_OWN(ll_arena) arena = ll_arena_new();
    double *t[3], *send = LL_NEW_ARRAY(arena, double, plan->costs.n_edge + n), after = 0;
    for (int k = 0; k < 3; k++) t[k] = LL_NEW_ARRAY(arena, double, n);
    ll_err rc = LL_OK;
    for (int i = 0; rc == LL_OK && i < p->n_instr; i++) {
        double s = 0;
        const ll_instr *x = &p->instrs[i];
        rc = cost(f, i, &s);
        s += talk(f, x);
        if (x->action > 0 && x->action <= p->pipe->n_action) {
            const ll_action *a = &p->pipe->actions[x->action - 1];
            int kind = a->kind == LL_ACT_F ? 0 : a->kind == LL_ACT_W ? 2 : 1;
            t[kind][a->stage] += s / p->n_micro / copies;
        } else
            after += s;
    }
    TRY(ll_ranks_agree(c, rc));
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < n; i++) TRY(ll_ranks_sum(c, &t[k][i]));
    TRY(ll_ranks_max(c, &after));
    ll_pipeline_costs costs = plan->costs;
    ll_pipeline_times times;
    costs.f = t[0], costs.i = t[1], costs.w = t[2], costs.send = send;
    TRY(ll_pipeline_simulate(arena, plan->pipeline, &costs, &times));
    *seconds = times.makespan + after;
    return LL_OK;
}

ll_err ll_foresee_step(const ll_session *s, ll_comm *c, double *seconds)
{
    foresight f = {.s = s, .began = ll_now()};
    *seconds = NAN;
    if (s->wide || s->opts.exact || (s->machine->device && s->place)) return LL_OK;
    if (s->machine->device) return foresee_device(s->e, seconds);
    measure_copies(&f);
    if (s->plan && s->plan->pipeline) return foresee_pipe(&f, c, seconds);
    TRY(ll_ranks_agree(c, foresee_plain(&f, seconds)));
    return ll_ranks_max(c, seconds);
}

static json_t *number(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

ll_err ll_foresee_note(const char *folder, const ll_foreseen *f)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/predictions.jsonl", folder);
    json_auto_t *j = json_pack("{s:s,s:s,s:i,s:I,s:o,s:o,s:o,s:o}", "model", f->model, "mesh",
                               f->mesh, "ranks", f->ranks, "steps", (json_int_t)f->steps,
                               "predicted_step_ms", number(1e3 * f->predicted_s), "step_ms",
                               number(1e3 * f->measured_s), "predicted_bytes",
                               number(f->predicted_bytes), "bytes", number(f->measured_bytes));
    LL_OWN_MEMORY char *text = json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION(9));
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    CHECK(fd >= 0, LL_E_IO, "%s cannot be written", path);
    ll_err rc = ll_write_all(fd, path, text, strlen(text));
    if (rc == LL_OK) rc = ll_write_all(fd, path, "\n", 1);
    close(fd);
    return rc;
}
