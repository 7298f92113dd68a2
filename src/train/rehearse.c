/* rehearse.c: kernels of each kind, then whole passes over the program, timed. */
#include "train/rehearse.h"

#include "base/stats.h"
#include "run/ranks.h"

enum { TIMES = 5, MOST_TRIES = 12, KINDS = 512, LEAST = 3, PASSES = 128 };
/* For all kernels; for one; a pass that is repeated for so long: a longer one is made once. */
static const double patience_s = 1.5, enough_s = 0.002, passes_s = 1.2;
static const double longest_s = 4; /* a pass; all of them, where others have the cores too */
static const double long_s = 0.01; /* a pass; else it would take as long to ask as to work */

typedef struct rehearsal {
    const ll_session *s;
    ll_rehearsal how;
    ll_rehearsed *out;
    int n, first[KINDS]; /* kinds: calls that take as long as each other, by the first of them */
    double kind_s[KINDS];
    bool rehearses; /* passes have the ranks' collectives in them */
    double began;
    double timed_s[2], timed_work[2]; /* of what was timed, in operations and in bytes */
    ll_kcall *calls;    /* [instr] that change no parameters or state; without out: none */
    const double *each; /* [instr] seconds, in the program's order; NULL: by kind */
    char **unsent;      /* [instr] residuals of codecs before any pass; NULL: zeros */
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

static bool can_run(const rehearsal *f, int i)
{
    return f->s->p->instrs[i].kernel.run && f->calls[i].out;
}

/* Numbers that arithmetic is as quick with as it will be: no leftovers that happen to be denormal,
 * no index that is out of range. */
static void fill(const rehearsal *f, const ll_tensor *t, int slot)
{
    const ll_slot *s = &f->s->p->slots[slot];
    if (s->region == LL_WORK)
        memset(t->data, ll_dtype_is_float(s->type.dtype) ? 0x3c : 0, s->bytes);
}

/* Noise above 0, each rank's own: how long some codecs' messages are depends on the gradients. */
static void fill_batch(const ll_session *s, const ll_comm *c)
{
    const ll_program *p = s->p;
    uint32_t at = c ? (uint32_t)ll_comm_rank(c) : 0;
    for (int i = 0; i < p->n_input; i++) {
        const ll_slot *x = &p->slots[p->inputs[i].slot];
        if (x->kind != LL_BATCH) continue;
        size_t bytes = x->bytes * (size_t)p->n_micro;
        float *data = (float *)ll_exec_data(s->e, p->inputs[i].slot, 0);
        memset(data, 0, bytes);
        for (size_t k = 0; x->type.dtype == LL_F32 && k < bytes / sizeof *data; k++)
            data[k] = (float)((at = at * 1664525 + 1013904223) >> 8 | 1) * 0x1p-24f;
    }
}

static size_t result_bytes(const ll_program *p, const ll_instr *x)
{
    size_t sum = 0;
    for (int i = 0; i < x->n_out; i++) sum += ll_align64(p->slots[x->out[i]].bytes);
    return sum;
}

/* A call that works in room in place of what it would change, and reads it there. */
static ll_kcall beside(const ll_program *p, const ll_bound *b, ll_arena *arena, char *room)
{
    ll_kcall call = b->call;
    ll_tensor *in = LL_NEW_ARRAY(arena, ll_tensor, call.n_in + 1);
    ll_tensor *out = LL_NEW_ARRAY(arena, ll_tensor, call.n_out + 1);
    for (int i = 0; i < call.n_in; i++) in[i] = call.in[i];
    for (int k = 0; k < call.n_out; k++) {
        out[k] = call.out[k];
        for (int i = 0; i < call.n_in; i++)
            if (in[i].data == out[k].data) in[i].data = room;
        out[k].data = room;
        room += ll_align64(p->slots[b->instr->out[k]].bytes);
    }
    call.in = in, call.out = out;
    return call;
}

/* Calls that leave parameters and state as they are: those that change them have room for the
 * largest, if that is not very large, one by one: no cache has what it would not in a step. */
static void find_calls(rehearsal *f, ll_arena *arena)
{
    enum { MOST = 32 << 20 };
    const ll_program *p = f->s->p;
    size_t most = 0, at = 0;
    f->calls = LL_NEW_ARRAY(arena, ll_kcall, p->n_instr + 1);
    for (int i = 0; i < p->n_instr; i++) {
        size_t bytes = result_bytes(p, &p->instrs[i]);
        if (is_harmless(p, &p->instrs[i]))
            f->calls[i] = f->s->e->instrs[i].call;
        else if (p->instrs[i].kernel.run && bytes <= MOST && bytes > most)
            most = bytes;
    }
    char *room = (char *)ll_align64((size_t)ll_arena_alloc(arena, most + 64));
    memset(room, 0x3c, most);
    for (int i = 0; i < p->n_instr; i++) {
        size_t bytes = result_bytes(p, &p->instrs[i]);
        if (f->calls[i].out || !p->instrs[i].kernel.run || bytes > most) continue;
        if (at + bytes > most) at = 0;
        f->calls[i] = beside(p, &f->s->e->instrs[i], arena, room + at);
        at += bytes;
    }
}

static ll_err run_dry(const rehearsal *f, int i)
{
    return f->s->p->instrs[i].kernel.run(&f->calls[i]);
}

/* Ranks that share cores: a kernel takes what it works, times those that work in turn with it. By
 * the wall one shorter than a turn would be timed as if it had the core. together: but what ranks
 * wait for each other counts. */
static double clock_of(const rehearsal *f, bool together)
{
    double own = together || f->how.crowd <= 1 ? NAN : ll_clock(CLOCK_PROCESS_CPUTIME_ID);
    return isnan(own) ? ll_now() : own * f->how.crowd / f->s->p->threads;
}

static bool moves(const ll_instr *x)
{
    return x->flops <= 4 * x->bytes;
}

static void count(rehearsal *f, const ll_instr *x, double seconds)
{
    f->timed_s[moves(x)] += seconds;
    f->timed_work[moves(x)] += moves(x) ? x->bytes : x->flops;
}

/* What others of this program took for an operation or a byte. */
static double reckon(const rehearsal *f, const ll_instr *x)
{
    double work = moves(x) ? x->bytes : x->flops, of = f->timed_work[moves(x)];
    return of > 0 ? work * f->timed_s[moves(x)] / of : work / 1e10;
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
    for (int tries = 0; n < TIMES && tries < MOST_TRIES && (n < 1 || all < enough_s); tries++) {
        double start = clock_of(f, false);
        TRY(run_dry(f, i));
        double took = clock_of(f, false) - start;
        times[n] = ll_waits_left(f->how.waits, took);
        *seconds = fmin(*seconds, took);
        all += times[n];
        n += times[n] > 0;
    }
    if (n) *seconds = ll_typical(times, n);
    count(f, b->instr, *seconds);
    return LL_OK;
}

/* A collective whose results every step makes anew runs as it will: what a small one takes is
 * mostly to wait for the slower rank, and a link that rested is quicker than one that was timed. */
static bool is_rehearsed(const rehearsal *f, int i)
{
    const ll_instr *x = &f->s->p->instrs[i];
    int start = x->wait ? x->pair : i;
    const ll_transfer *t = f->s->e->instrs[start].transfer;
    return f->rehearses && t && is_harmless(f->s->p, &f->s->p->instrs[start]);
}

/* Ranks rehearse the same collectives, or none; those of a pipeline, whose programs are not alike,
 * all that there are: then the order is a step's, which ends. */
static ll_err agree_to_rehearse(rehearsal *f, ll_comm *c)
{
    const ll_session *s = f->s;
    double most = 0, least;
    const ll_pipeline *pipe = s->cut->plan ? s->cut->plan->pipeline : NULL;
    f->rehearses = c && s->cut->place && !(pipe && pipe->overlaps);
    for (int i = 0, k = 1; i < s->p->n_instr; i++)
        if (s->p->instrs[i].collective)
            most += is_rehearsed(f, i) != (pipe != NULL) ? (double)k * k : 0, k++;
    least = -most;
    TRY(ll_ranks_max(c, &most));
    TRY(ll_ranks_max(c, &least));
    f->rehearses &= pipe ? most == 0 : most == -least;
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
    while (q < f->n && !alike(f->s->p, &f->s->p->instrs[f->first[q]], &f->s->p->instrs[i])) q++;
    return q;
}

/* What an instruction takes: in a pass, as others of its kind, or by its size. */
static double seconds_of(const rehearsal *f, int i)
{
    const ll_instr *x = &f->s->p->instrs[i];
    if (f->each && (is_rehearsed(f, i) || can_run(f, i))) return f->each[i];
    if (!x->kernel.run) return 0;
    int q = kind_of(f, i);
    return q < f->n ? f->kind_s[q] : reckon(f, x);
}

/* A pass over the kernels, in order. */
typedef struct pass {
    const rehearsal *f;
    bool parts;   /* each is without its own waits for cores */
    double *each; /* [instr] what it took */
    double held;  /* of all of it, waits */
    double from;
} pass;

static ll_err time_one(void *given, int i)
{
    pass *s = (pass *)given;
    const rehearsal *f = s->f;
    const ll_bound *b = &f->s->e->instrs[i];
    bool together = is_rehearsed(f, i);
    for (int k = 0; !together && b->instr->collective && k < b->call.n_out; k++)
        fill(f, &b->call.out[k], b->instr->out[k]); /* as if it came from others */
    if (!together && b->instr->collective) s->from = clock_of(f, f->rehearses);
    if (!together && !can_run(f, i)) return LL_OK;
    TRY(together ? rehearse(f, i) : run_dry(f, i));
    if (f->s->e->n_in_flight) TRY(ll_comm_poll(f->s->e->comm));
    double now = clock_of(f, f->rehearses), took = now - s->from;
    s->each[i] = s->parts ? ll_waits_left(f->how.waits, took) : took;
    if (together && f->how.talk_s > 0) s->each[i] = took; /* messages went on meanwhile */
    s->held += took - s->each[i];
    s->from = s->parts ? clock_of(f, f->rehearses) : now;
    return LL_OK;
}

/* row: all of it, each instruction, what cores did not work. */
static ll_err time_pass(const rehearsal *f, bool parts, double *row, double *held)
{
    const ll_program *p = f->s->p;
    ll_waits_since(f->how.waits);
    double start = clock_of(f, f->rehearses), before = ll_clock(CLOCK_PROCESS_CPUTIME_ID);
    pass s = {.f = f, .parts = parts, .each = row + 1, .from = start};
    TRY(ll_exec_each(f->s->e, 0, p->n_instr, time_one, &s));
    row[0] = clock_of(f, f->rehearses) - start;
    row[1 + p->n_instr] = p->threads * row[0] - (ll_clock(CLOCK_PROCESS_CPUTIME_ID) - before);
    *held = s.held + ll_waits_since(f->how.waits);
    return LL_OK;
}

/* Where others held up every pass: the least that an instruction took; in parts, for which waits
 * are known about, the least quarter. Of a collective it is the least of any rank's, for whom the
 * others did not wait: they wait in the sum (foresee.c), where that can be. Between nodes it is of
 * each pass what the slowest rank took: the last to come finds messages there, but its own are to
 * go yet. */
static ll_err take_least(rehearsal *f, ll_comm *c, bool parts, double **rows, int n, double *each)
{
    static const ll_coll_opts site = {.site = "passes that all were held up"};
    const ll_program *p = f->s->p;
    f->rehearses &= !p->pipe;
    for (int i = 0; i < p->n_instr; i++) {
        double own[PASSES];
        bool together = is_rehearsed(f, i);
        int m = 0;
        for (int k = 0; k < n; k++)
            if (together || rows[k][1 + i] > 0) own[m++] = rows[k][1 + i];
        if (together && f->how.talk_s > 0)
            TRY(ll_comm_allreduce(c, own, (size_t)m, LL_F64, LL_REDUCE_MAX, &site));
        ll_stats_sort(own, m);
        each[i] = m ? own[(int)((parts ? 0.25 : 0.03) * m)] : seconds_of(f, i);
        if (!together) continue;
        each[i] = -each[i];
        TRY(ll_ranks_max(c, &each[i]));
        each[i] = -each[i];
    }
    return LL_OK;
}

static char *unsent_by(const rehearsal *f, int i, size_t *bytes)
{
    const ll_transfer *t = f->s->e->instrs[i].transfer;
    *bytes = t ? (size_t)t->call.spec.count * sizeof(float) : 0;
    return *bytes && t->codec ? (char *)ll_codec_residual(t->codec) : NULL;
}

/* Passes go through codecs, and change what these have not sent. */
static void keep_unsent(rehearsal *f, ll_arena *arena)
{
    size_t bytes;
    f->unsent = LL_NEW_ARRAY(arena, char *, f->s->p->n_instr + 1);
    for (int i = 0; i < f->s->p->n_instr; i++) {
        const char *r = unsent_by(f, i, &bytes);
        if (r && (r[0] || memcmp(r, r + 1, bytes - 1)))
            f->unsent[i] = (char *)memcpy(ll_arena_alloc(arena, bytes), r, bytes);
    }
}

static void restore_unsent(const rehearsal *f)
{
    size_t bytes;
    for (int i = 0; f->unsent && i < f->s->p->n_instr; i++) {
        char *r = unsent_by(f, i, &bytes);
        if (r && f->unsent[i]) memcpy(r, f->unsent[i], bytes);
        if (r && !f->unsent[i]) memset(r, 0, bytes);
    }
}

/* One of each kind, while there is time; *all: of a pass. */
static ll_err time_kinds(rehearsal *f, double *all)
{
    const ll_program *p = f->s->p;
    for (int i = 0; i < p->n_instr; i++) {
        if (can_run(f, i) && f->n < KINDS && kind_of(f, i) == f->n &&
            ll_now() - f->began < patience_s) {
            TRY(time_kernel(f, i, &f->kind_s[f->n]));
            f->first[f->n++] = i;
        }
        *all += seconds_of(f, i);
    }
    return LL_OK;
}

/* All ranks make as many, and wait for the others in between as little as in a step. Those that
 * others held up, on any rank, tell less than those that they did not, of which there are to be
 * some: *own, the first of *n rows. */
static ll_err make_passes(const rehearsal *f, ll_comm *c, bool parts, double all, ll_arena *arena,
                          double **rows, int *n, int *own)
{
    static const ll_coll_opts site = {.site = "passes that were held up"};
    double held[PASSES + 1], began = ll_now();
    int every = all > long_s ? 1 : 8, seen = 0, least = all > passes_s ? 1 : LEAST;
    int most = (int)fmin(PASSES, fmax(least, f->how.most));
    *own = *n = 0;
    do {
        double *row = rows[*n] = LL_NEW_ARRAY(arena, double, f->s->p->n_instr + 2);
        TRY(time_pass(f, parts, row, &held[*n]));
        held[*n] = ll_is_held(row[0], held[*n]);
        if (++*n % every && *n < most) continue;
        held[*n] = ll_now() - began;
        if (c)
            TRY(ll_comm_allreduce(c, held + seen, (size_t)(*n + 1 - seen), LL_F64, LL_REDUCE_MAX,
                                  &site));
        for (; seen < *n; seen++) {
            if (held[seen] > 0) continue;
            row = rows[seen], rows[seen] = rows[*own], rows[(*own)++] = row;
        }
        if (held[*n] > longest_s) break;
    } while (*n < most && (*n < passes_s / all || (*own < least && least > 1)));
    return LL_OK;
}

/* Sets f->each. Small nets' kernels are as quick as the caches that those before them leave: whole
 * passes, of which the middle half counts. Of a very long one each kind's times are left. */
static ll_err time_passes(rehearsal *f, ll_comm *c, ll_arena *arena)
{
    int n = f->s->p->n_instr, passes, own;
    double *rows[PASSES], *sum = LL_NEW_ARRAY(arena, double, n + 2), all = 0, took = 0, held;
    TRY(ll_ranks_agree(c, time_kinds(f, &all)));
    all += f->how.talk_s;
    TRY(ll_ranks_max(c, &all));
    f->rehearses &= all <= longest_s;
    if (all > longest_s) return LL_OK;
    if (f->rehearses) keep_unsent(f, arena);
    bool parts = f->how.waits && all > long_s;
    if (all <= passes_s) TRY(time_pass(f, parts, sum, &held)); /* pages, tables */
    TRY(make_passes(f, c, parts, all, arena, rows, &passes, &own));
    if (own)
        ll_typical_row(rows, own, n + 1, sum);
    else
        TRY(take_least(f, c, parts, rows, passes, sum));
    f->out->together = f->rehearses && own;
    double spare = own ? fmax(0, sum[n]) : 0;
    for (int i = 0; i < n; i++) {
        if (can_run(f, i) && sum[i] > 0) count(f, &f->s->p->instrs[i], sum[i]);
        took += sum[i];
        bool waits = f->s->p->instrs[i].wait && is_rehearsed(f, i); /* for others: it yields */
        spare += waits && own ? sum[i] : 0;
    }
    f->out->spare = f->how.crowd <= 1 && took > 0 ? spare / took : 0;
    f->each = sum;
    return LL_OK;
}

/* Bytes a second of the kernel that moves most of them, which no cache holds if there is any. */
static ll_err device_rate(ll_exec *e, double *rate)
{
    int most = -1;
    for (int i = 0; i < e->p->n_instr; i++) {
        const ll_instr *x = &e->p->instrs[i];
        if (x->kernel.run && is_harmless(e->p, x) && moves(x) &&
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
    find_calls(&f, arena);
    fill_batch(s, c);
    if (c) TRY(ll_comm_barrier(c)); /* kernels of all ranks run at once */
    TRY(agree_to_rehearse(&f, c));
    ll_err rc = time_passes(&f, c, arena);
    restore_unsent(&f);
    if (rc != LL_OK && f.rehearses) ll_comm_give_up(c); /* others may be in a collective */
    TRY(ll_ranks_agree(c, rc));
    for (int i = 0; i < n; i++)
        out->seconds[i] = seconds_of(&f, i), out->ran[i] = is_rehearsed(&f, i);
    out->byte_s = reckon(&f, &(ll_instr){.bytes = 1});
    return LL_OK;
}
