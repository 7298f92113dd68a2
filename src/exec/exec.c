/* exec.c: the loop over instructions, and the slab they work in: [inputs | work | scratch]. Inputs
 * that another exec shares lie there, not here; and the whole slab may be the other's work and
 * scratch, where that is large enough. */
#include "exec/exec_int.h"

#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static bool kept(const ll_slot *s)
{
    return s->name && (s->kind == LL_PARAM || s->kind == LL_STATE);
}

/* The slot of share that is this input; -1: it is none of share's. */
static int shared_slot(const ll_exec_opts *opts, const ll_slot *s)
{
    if (!opts->share || !kept(s)) return -1;
    int there = ll_program_input(opts->share->p, s->name);
    return there >= 0 && kept(&opts->share->p->slots[there]) ? there : -1;
}

static size_t slab_bytes(const ll_exec *e)
{
    size_t n = e->input_bytes + e->p->work_bytes + e->p->scratch_bytes;
    return n ? n : 64;
}

/* Where inputs lie within the slab: as the program says or, where some are another's, closed up. */
static size_t *place_inputs(ll_exec *e, const ll_exec_opts *opts, bool *keeps)
{
    const ll_program *p = e->p;
    size_t *offset = LL_NEW_ARRAY(e->arena, size_t, p->n_input + 1);
    *keeps = false;
    for (int i = 0; i < p->n_input; i++) {
        const ll_slot *s = &p->slots[p->inputs[i].slot];
        offset[i] = opts->share ? e->input_bytes : s->offset;
        if (shared_slot(opts, s) >= 0) continue;
        size_t copies = s->kind == LL_BATCH ? (size_t)p->n_micro : 1;
        e->input_bytes += (s->bytes * copies + 63) / 64 * 64;
        *keeps |= s->kind != LL_BATCH && s->kind != LL_STEP;
    }
    if (!opts->share) e->input_bytes = p->persistent_bytes;
    return offset;
}

/* A program that cannot fit is refused before it starts, not killed when it has begun. */
static ll_err check_fits(const ll_program *p, size_t bytes)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (pages <= 0 || page <= 0 || bytes <= (size_t)pages * (size_t)page) return LL_OK;
    const ll_slot *most = &p->slots[0];
    for (int i = 1; i < p->n_slot; i++)
        if (p->slots[i].bytes > most->bytes) most = &p->slots[i];
    char need[LL_NUMBER_TEXT], have[LL_NUMBER_TEXT], large[LL_NUMBER_TEXT], shape[LL_SHAPE_TEXT];
    FAIL(LL_E_MEM,
         "the program needs %s, this machine has %s; its largest tensor is %s%s%s, %s: use a "
         "smaller "
         "model or train.micro_batch",
         ll_text_bytes((double)bytes, need), ll_text_bytes((double)pages * (double)page, have),
         most->name ? most->name : "", most->name ? " " : "",
         ll_shape_print(&most->type.shape, shape), ll_text_bytes((double)most->bytes, large));
}

static ll_err map_slab(ll_exec *e, const ll_exec_opts *opts, bool keeps)
{
    const ll_exec *other = opts->share;
    if (other && opts->reuse && !keeps &&
        slab_bytes(e) <= other->p->work_bytes + other->p->scratch_bytes) {
        e->slab = other->slab + other->input_bytes;
        e->borrowed = true;
        return LL_OK;
    }
    size_t n = slab_bytes(e);
    if (e->gpu) return ll_onboard_slab(e, n, &e->slab);
    TRY(check_fits(e->p, n));
    void *m = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(m != MAP_FAILED, LL_E_MEM,
          "%zu MiB for the program's memory cannot be had: use a smaller "
          "train.micro_batch or model",
          n >> 20);
    e->slab = (char *)m;
    madvise(m, n, MADV_HUGEPAGE); /* a hint: its failure costs only speed */
    return LL_OK;
}

static ll_err init_input(ll_exec *e, const ll_exec_opts *opts, int slot)
{
    const ll_slot *s = &e->p->slots[slot];
    if (e->gpu) return ll_onboard_init(e, slot, opts);
    ll_init_fill(&s->init, s->name, opts->seed, &s->type, s->piece, e->p->threads,
                 e->address[slot]);
    return LL_OK;
}

static ll_err place_slots(ll_exec *e, const ll_exec_opts *opts, const size_t *offset)
{
    const ll_program *p = e->p;
    e->address = LL_NEW_ARRAY(e->arena, void *, p->n_slot + 1);
    for (int i = 1; i < p->n_slot; i++) {
        const ll_slot *s = &p->slots[i];
        e->address[i] = e->slab + s->offset + (s->region == LL_WORK ? e->input_bytes : 0);
    }
    for (int i = 0; i < p->n_input; i++) {
        const ll_slot *s = &p->slots[p->inputs[i].slot];
        int there = shared_slot(opts, s);
        e->address[p->inputs[i].slot] = e->slab + offset[i];
        if (there < 0 && kept(s)) TRY(init_input(e, opts, p->inputs[i].slot));
        if (there < 0) continue;
        const ll_type *t = &opts->share->p->slots[there].type;
        CHECK(t->dtype == s->type.dtype && ll_shape_equal(&t->shape, &s->type.shape), LL_E_SHAPE,
              "%s differs in shape or type from the session it is shared with", s->name);
        e->address[p->inputs[i].slot] = opts->share->address[there];
    }
    return LL_OK;
}

/* Aliases of an input, and next values written into it, are where the input is. */
static void follow_shared(ll_exec *e)
{
    const ll_program *p = e->p;
    for (int i = 1; i < p->n_slot; i++)
        if (p->slots[i].input) e->address[i] = e->address[p->slots[i].input];
}

static void bind_operands(ll_exec *e, const int *slots, int n, ll_tensor *t)
{
    for (int i = 0; i < n; i++) {
        const ll_slot *s = &e->p->slots[slots[i]];
        t[i] = (ll_tensor){e->address[slots[i]], s->type.dtype, s->type.shape};
    }
}

/* Whether a slot is batch data, or an alias of it. */
static bool holds_batch(const ll_program *p, int slot)
{
    int input = p->slots[slot].input;
    return input && p->slots[input].kind == LL_BATCH;
}

static ll_err bind_instrs(ll_exec *e, const ll_exec_opts *opts)
{
    const ll_program *p = e->p;
    int n_in = 0;
    for (int i = 0; i < p->n_instr; i++) n_in += p->instrs[i].n_in;
    e->instrs = LL_NEW_ARRAY(e->arena, bound, p->n_instr + 1);
    e->joints = LL_NEW_ARRAY(e->arena, joint, p->n_instr + 1);
    e->comm = opts->team ? ll_team_comm(opts->team) : NULL;
    e->moving = LL_NEW_ARRAY(e->arena, moving, n_in + 1);
    for (int i = 0; i < p->n_instr; i++) {
        const ll_instr *x = &p->instrs[i];
        ll_tensor *in = LL_NEW_ARRAY(e->arena, ll_tensor, x->n_in + 1);
        ll_tensor *out = LL_NEW_ARRAY(e->arena, ll_tensor, x->n_out + 1);
        bind_operands(e, x->in, x->n_in, in);
        bind_operands(e, x->out, x->n_out, out);
        for (int k = 0; p->n_micro > 1 && k < x->n_in; k++)
            if (holds_batch(p, x->in[k])) {
                size_t bytes = p->slots[x->in[k]].bytes;
                e->moving[e->n_moving++] =
                    (moving){&in[k], (char *)in[k].data, ll_onboard_stride(e, bytes)};
                e->instrs[i].moves = true;
            }
        e->instrs[i].instr = x;
        e->instrs[i].call =
            (ll_kcall){.attr = x->attr,
                       .n_in = x->n_in,
                       .n_out = x->n_out,
                       .in = in,
                       .out = out,
                       .threads = p->threads,
                       .n_micro = p->n_micro,
                       .seed = opts->seed,
                       .tf32 = p->tf32,
                       .any_order = p->any_order,
                       .timing = p->any_order && (!e->comm || ll_comm_size(e->comm) == 1)};
        e->instrs[i].call.scratch = e->slab + e->input_bytes + p->work_bytes;
        e->instrs[i].joint = -1;
    }
    if (e->gpu) TRY(ll_onboard_bind(e)); /* which may give collectives other addresses */
    for (int i = 0; i < e->n_moving; i++) e->moving[i].first = (char *)e->moving[i].tensor->data;
    return ll_exec_open_talks(e, opts);
}

/* All ones is NaN in every float type, and -1. */
static ll_err poison(ll_exec *e)
{
    if (e->gpu) return ll_onboard_poison(e);
    memset(e->slab + e->input_bytes, 0xff, e->p->work_bytes + e->p->scratch_bytes);
    return LL_OK;
}

ll_err ll_exec_open(const ll_program *p, const ll_exec_opts *opts, ll_exec **out)
{
    ll_arena *a = ll_arena_new();
    ll_exec *e = LL_NEW(a, ll_exec);
    e->arena = a;
    e->p = p;
    e->team = opts->team;
    e->poison = opts->poison;
    e->compress = opts->compress;
    e->place = opts->place;
    if (p->target == &ll_target_cpu) ll_bind_threads(p->threads);
    bool keeps;
    const size_t *offset = place_inputs(e, opts, &keeps);
    ll_err rc = LL_OK;
    if (p->target == &ll_target_cuda) rc = ll_onboard_open(e, opts);
    if (rc == LL_OK) rc = map_slab(e, opts, keeps);
    if (rc == LL_OK) rc = place_slots(e, opts, offset);
    if (e->team) rc = ll_comm_agree(ll_team_comm(e->team), rc);
    if (rc != LL_OK) {
        ll_exec_close(e);
        return ll_frame(rc, __FILE__, __LINE__, __func__);
    }
    if (e->gpu) ll_onboard_house(e);
    if (opts->share || e->gpu) follow_shared(e);
    rc = bind_instrs(e, opts);
    if (rc != LL_OK) {
        ll_exec_close(e);
        return ll_frame(rc, __FILE__, __LINE__, __func__);
    }
    *out = e;
    return LL_OK;
}

/* Whether nothing is under way any more: where messages may still come, the memory that they come
 * to must stay. An error on whose account this is closed remains the one to tell. */
static bool settle(ll_exec *e)
{
    char message[1024];
    ll_err code = ll_error_code();
    snprintf(message, sizeof message, "%s", ll_error_message());
    if (ll_comm_drain(e->comm) == LL_OK) return true;
    if (code != LL_OK) code = ll_raise(code, __FILE__, __LINE__, __func__, "%s", message);
    return false;
}

void ll_exec_close(ll_exec *e)
{
    if (!e) return;
    bool quiet = !e->n_flying || settle(e);
    for (int k = 0; k < e->n_joint; k++) ll_buckets_close(e->joints[k].buckets);
    if (e->room) ll_comm_hold(e->comm, -(int64_t)e->room_bytes);
    free(e->room);
    if (e->gpu)
        ll_onboard_close(e);
    else if (e->slab && !e->borrowed && quiet)
        munmap(e->slab, slab_bytes(e));
    ll_arena_free(e->arena);
}

size_t ll_exec_comm_bytes(const ll_exec *e)
{
    size_t sum = e->team ? ll_team_bytes(e->team) + e->room_bytes : 0;
    for (int k = 0; k < e->n_joint; k++) sum += ll_buckets_bytes(e->joints[k].buckets);
    return sum;
}

void *ll_exec_data(const ll_exec *e, int slot, int micro)
{
    void *first = e->gpu ? ll_onboard_view(e, slot, true) : e->address[slot];
    return (char *)first + (size_t)micro * e->p->slots[slot].bytes;
}

double ll_exec_waited(const ll_exec *e)
{
    return e->waited;
}

size_t ll_exec_bytes(const ll_exec *e)
{
    return (e->borrowed ? 0 : slab_bytes(e)) + ll_exec_extra_bytes(e);
}

void ll_exec_profile(ll_exec *e, bool on)
{
    if (!e->seconds) e->seconds = LL_NEW_ARRAY(e->arena, double, e->p->n_instr + 1);
    memset(e->seconds, 0, sizeof(double) * (size_t)e->p->n_instr);
    e->profiling = on;
}

const double *ll_exec_seconds(const ll_exec *e)
{
    return e->profiling ? e->seconds : NULL;
}

void ll_exec_trace(ll_exec *e, ll_trace *t)
{
    e->trace = t;
}

static void trace(ll_exec *e, ll_trace_row row, const char *name, const char *kind, double from)
{
    ll_trace_event x = {.row = row, .name = name, .kind = kind, .bytes = -1, .number = -1};
    x.from = from;
    x.to = ll_now();
    ll_trace_add(e->trace, &x);
}

ll_err ll_exec_check_finite(const bound *b, const ll_tensor *out)
{
    for (int o = 0; o < b->call.n_out; o++) {
        const ll_tensor *t = &out[o];
        int64_t n = ll_numel(&t->shape);
        for (int64_t i = 0; ll_dtype_is_float(t->dtype) && i < n; i++) {
            double v = ll_load(t->data, t->dtype, i);
            CHECK(isfinite(v), LL_E_NUMERIC, "%s (%s) gives %g at element %lld of result %d",
                  b->instr->name, b->instr->op, v, (long long)i, o);
        }
    }
    return LL_OK;
}

static ll_err run_one(ll_exec *e, int i, bool checked)
{
    bound *b = &e->instrs[i];
    double start = e->profiling || e->trace ? ll_now() : 0;
    if (e->gpu)
        TRY(ll_onboard_one(e, i, checked));
    else if (b->instr->wait)
        TRY(ll_exec_wait_talk(e, &e->instrs[b->instr->pair]));
    else if (!b->instr->kernel.run)
        TRY(ll_exec_start_talk(e, b));
    else
        TRY(b->instr->kernel.run(&b->call));
    if (e->n_flying) TRY(ll_comm_poll(e->comm)); /* kernels are long: what is under way moves on */
    if (e->profiling) e->seconds[i] += ll_now() - start;
    if (e->trace && !b->instr->wait) /* waits are noted by comm */
        trace(e, LL_TRACE_COMPUTE, b->instr->name, b->instr->op, start);
    checked &= !e->gpu;
    return checked && (b->instr->kernel.run || b->instr->wait)
               ? ll_exec_check_finite(b, b->call.out)
               : LL_OK;
}

/* The first instruction of this rank, counted over micro-batches, that gave a number that is not
 * finite. It is told at the end of the section: others may wait for what this rank has to send. */
typedef struct culprit {
    int32_t at; /* INT32_MAX: none */
    char message[512];
} culprit;

/* Collectives spread such numbers: of all ranks' culprits the first is the one to name. */
static ll_err tell(ll_exec *e, const culprit *mine)
{
    int32_t first = mine->at;
    ll_err rc = LL_OK;
    ll_comm *c = e->team ? ll_team_comm(e->team) : NULL;
    if (c) TRY(ll_comm_allreduce(c, &first, 1, LL_I32, LL_REDUCE_MIN, NULL));
    if (first == INT32_MAX) return LL_OK;
    if (first == mine->at)
        rc = ll_raise(LL_E_NUMERIC, __FILE__, __LINE__, __func__, "%s", mine->message);
    return c ? ll_comm_agree(c, rc) : rc;
}

void ll_exec_move(ll_exec *e, int micro)
{
    for (int i = 0; i < e->n_moving; i++)
        e->moving[i].tensor->data = e->moving[i].first + (size_t)micro * e->moving[i].stride;
}

static ll_err run_section(ll_exec *e, int section, uint64_t step, bool checked)
{
    static const char *const names[] = {"micro-batches", "report", "update"};
    double start = e->trace ? ll_now() : 0;
    const ll_program *p = e->p;
    culprit bad = {.at = INT32_MAX};
    int from = section ? p->end[section - 1] : 0, to = p->end[section];
    int times = section == LL_MICRO ? p->n_micro : 1;
    if (e->n_flying && section == LL_MICRO) TRY(ll_exec_wait_all(e));
    if (e->poison && section == LL_MICRO) TRY(poison(e));
    if (e->gpu && section == LL_MICRO) TRY(ll_onboard_deliver(e, step));
    for (int m = 0; m < times; m++) {
        if (section == LL_MICRO) ll_exec_move(e, m);
        if (e->gpu && !checked) {
            TRY(ll_onboard_run(e, section, m, step));
            continue;
        }
        for (int i = from; i < to; i++) {
            if (e->instrs[i].instr->last && m < times - 1) continue;
            e->instrs[i].call.micro = m;
            e->instrs[i].call.step = step;
            ll_err rc = run_one(e, i, checked && bad.at == INT32_MAX);
            if (rc != LL_E_NUMERIC) TRY(rc);
            if (rc == LL_OK) continue;
            bad.at = m * p->n_instr + i;
            snprintf(bad.message, sizeof bad.message, "%s", ll_error_message());
        }
    }
    if (e->gpu && section == LL_REPORT) TRY(ll_onboard_collect(e));
    if (e->trace) trace(e, LL_TRACE_STEP, names[section], NULL, start);
    return checked ? tell(e, &bad) : LL_OK;
}

ll_err ll_exec_run(ll_exec *e, int section, uint64_t step)
{
    return run_section(e, section, step, false);
}

ll_err ll_exec_run_checked(ll_exec *e, int section, uint64_t step)
{
    return run_section(e, section, step, true);
}
