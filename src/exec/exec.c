/* exec.c: the loop over instructions, and the slab they work in: [inputs | work | scratch]. Inputs
 * that another exec shares lie there, not here; and the whole slab may be the other's work and
 * scratch, where that is large enough. */
#include "base/num.h"
#include "comm/job.h"
#include "exec/acting.h"
#include "exec/exec.h"

#include <stdio.h>

static bool kept(const ll_slot *s)
{
    return s->name && ll_kind_stays(s->kind);
}

/* The slot of other that is this input; -1: it is none of other's. */
static int shared_slot(const ll_program *other, const ll_slot *s)
{
    if (!other || !kept(s)) return -1;
    int there = ll_program_input(other, s->name);
    return there >= 0 && kept(&other->slots[there]) ? there : -1;
}

/* Of an input that is the program's own. */
static size_t own_bytes(const ll_program *p, const ll_program *other, int input)
{
    const ll_slot *s = &p->slots[p->inputs[input].slot];
    size_t copies = s->kind == LL_BATCH ? (size_t)p->n_micro : 1;
    return shared_slot(other, s) >= 0 || s->region == LL_ASIDE ? 0 : ll_align64(s->bytes * copies);
}

size_t ll_exec_beside(const ll_program *p)
{
    size_t sum = p->work_bytes + p->scratch_bytes;
    for (int i = 0; i < p->n_input; i++) sum += own_bytes(p, p, i);
    return sum;
}

static size_t slab_bytes(const ll_exec *e)
{
    size_t n = e->input_bytes + e->p->work_bytes + e->p->scratch_bytes;
    return n ? n : 64;
}

/* Where inputs lie within the slab: as the program says or, where some are another's, closed up. */
static size_t *place_inputs(ll_exec *e, const ll_exec_opts *opts, bool *keeps)
{
    const ll_program *p = e->p, *other = opts->share ? opts->share->p : NULL;
    size_t *offset = LL_NEW_ARRAY(e->arena, size_t, p->n_input + 1);
    *keeps = false;
    for (int i = 0; i < p->n_input; i++) {
        const ll_slot *s = &p->slots[p->inputs[i].slot];
        size_t own = own_bytes(p, other, i);
        offset[i] = other ? e->input_bytes : s->offset;
        e->input_bytes += own;
        *keeps |= own && s->kind != LL_BATCH && s->kind != LL_STEP;
    }
    if (!other) e->input_bytes = p->persistent_bytes;
    return offset;
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
    return e->machine->map(e, slab_bytes(e), &e->slab);
}

static ll_err map_aside(ll_exec *e)
{
    const ll_program *p = e->p;
    char *aside;
    if (!p->aside_bytes) return LL_OK;
    CHECK(e->machine->map_aside, LL_E_ARG, "machine %s does not support offload: leave it out",
          p->target->name);
    TRY(e->machine->map_aside(e, p->aside_bytes, &aside));
    for (int i = 1; i < p->n_slot; i++)
        if (p->slots[i].region == LL_ASIDE) e->address[i] = aside + p->slots[i].offset;
    return LL_OK;
}

static bool is_drawn(const ll_slot *s)
{
    return kept(s) && !s->init.data && (s->init.kind == LL_NORMAL || s->init.kind == LL_UNIFORM);
}

/* Those that the machine has put elsewhere stay there. */
static ll_err place_slots(ll_exec *e, const ll_exec_opts *opts, const size_t *offset)
{
    const ll_program *p = e->p;
    for (int i = 1; i < p->n_slot; i++) {
        const ll_slot *s = &p->slots[i];
        if (s->input != i && s->region != LL_ASIDE)
            e->address[i] = e->slab + s->offset + (s->region == LL_WORK ? e->input_bytes : 0);
    }
    for (int i = 0; i < p->n_input; i++) {
        const ll_slot *s = &p->slots[p->inputs[i].slot];
        int there = shared_slot(opts->share ? opts->share->p : NULL, s);
        if (!e->address[p->inputs[i].slot]) e->address[p->inputs[i].slot] = e->slab + offset[i];
        if (there < 0 && kept(s) && !(opts->undrawn && is_drawn(s)))
            TRY(e->machine->init(e, p->inputs[i].slot));
        if (there < 0) continue;
        const ll_type *t = &opts->share->p->slots[there].type;
        CHECK(ll_type_equal(t, &s->type), LL_E_SHAPE,
              "%s differs in shape or type from the session it is shared with", s->name);
        e->address[p->inputs[i].slot] = opts->share->address[there];
    }
    return LL_OK;
}

/* Aliases of an input, and next values written into it, are where the input is. */
static void follow_inputs(ll_exec *e)
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

static void bind_instr(ll_exec *e, int i)
{
    const ll_program *p = e->p;
    const ll_instr *x = &p->instrs[i];
    ll_bound *b = &e->instrs[i];
    ll_tensor *in = LL_NEW_ARRAY(e->arena, ll_tensor, x->n_in + 1);
    ll_tensor *out = LL_NEW_ARRAY(e->arena, ll_tensor, x->n_out + 1);
    bind_operands(e, x->in, x->n_in, in);
    bind_operands(e, x->out, x->n_out, out);
    for (int k = 0; p->n_micro > 1 && k < x->n_in; k++)
        if (holds_batch(p, x->in[k])) {
            size_t stride = ll_exec_stride(e, p->slots[x->in[k]].bytes);
            in[k].data = (char *)in[k].data + ll_exec_micro_at(e, x, k);
            if (p->unrolled) continue;
            e->moving[e->n_moving++] = (ll_moving){.tensor = &in[k], .stride = stride};
            b->moves = true;
        }
    b->instr = x;
    b->call = (ll_kcall){.attr = x->attr,
                         .n_in = x->n_in,
                         .n_out = x->n_out,
                         .in = in,
                         .out = out,
                         .scratch = e->slab + e->input_bytes +
                                    (x->collective ? x->packing_at : x->scratch_at),
                         .solver = x->solver,
                         .at_once = x->at_once,
                         .threads = p->threads,
                         .micro = x->micro,
                         .n_micro = p->n_micro,
                         .seed = e->opts.seed,
                         .tf32 = p->tf32,
                         .any_order = p->any_order,
                         .flush = p->flush,
                         .timing = p->any_order && (!e->comm || ll_comm_size(e->comm) == 1)};
}

static ll_err bind_instrs(ll_exec *e)
{
    const ll_program *p = e->p;
    int n_in = 0;
    for (int i = 0; i < p->n_instr; i++) n_in += p->instrs[i].n_in;
    e->instrs = LL_NEW_ARRAY(e->arena, ll_bound, p->n_instr + 1);
    e->moving = LL_NEW_ARRAY(e->arena, ll_moving, n_in + 1);
    for (int i = 0; i < p->n_instr; i++) bind_instr(e, i);
    for (int i = 0; i < p->n_instr; i++) {
        if (!p->instrs[i].collective) continue;
        CHECK(e->comm, LL_E_ARG, "%s is a collective, but this process has no team of ranks",
              p->instrs[i].name);
        ll_team_note(e->opts.team, p, &p->instrs[i]);
    }
    return e->machine->bind ? e->machine->bind(e) : LL_OK;
}

static void find_parts(ll_exec *e);

/* What this rank does by itself. */
static ll_err open_own(ll_exec *e)
{
    bool keeps;
    CHECK(e->machine, LL_E_DEVICE, "machine %s is not part of this build", e->p->target->name);
    CHECK(!e->opts.share || e->opts.share->machine == e->machine, LL_E_ARG,
          "a program shares memory with one on another machine");
    const size_t *offset = place_inputs(e, &e->opts, &keeps);
    if (e->machine->open) TRY(e->machine->open(e));
    TRY(map_slab(e, &e->opts, keeps));
    TRY(map_aside(e));
    TRY(place_slots(e, &e->opts, offset));
    follow_inputs(e);
    TRY(bind_instrs(e));
    if (e->p->pipe) find_parts(e);
    return LL_OK;
}

/* Programs of all ranks start the same collectives, in one order. */
static ll_err join_ranks(ll_exec *e, ll_err mine)
{
    TRY(ll_comm_agree(e->comm, mine));
    TRY(ll_team_compare(e->opts.team));
    e->joined = true;
    return e->link->open(e);
}

static ll_err open_parts(ll_exec *e)
{
    ll_err rc = open_own(e);
    if (e->comm) rc = join_ranks(e, rc); /* which may give collectives other addresses */
    /* One that failed alone, within a collective, tells the others, who wait for it. */
    if (rc && e->comm && ll_job_failure() == LL_FAILURE_ALONE) ll_comm_give_up(e->comm);
    TRY(rc);
    for (int i = 0; i < e->n_moving; i++) e->moving[i].first = (char *)e->moving[i].tensor->data;
    return LL_OK;
}

ll_err ll_exec_draw(ll_exec *e)
{
    const ll_program *p = e->p;
    LL_ASSERT(!e->opts.share);
    for (int i = 0; i < p->n_input; i++)
        if (is_drawn(&p->slots[p->inputs[i].slot])) TRY(e->machine->init(e, p->inputs[i].slot));
    return LL_OK;
}

ll_err ll_exec_open(const ll_program *p, const ll_exec_opts *opts, ll_exec **out)
{
    ll_arena *a = ll_arena_new();
    LL_OWN(ll_exec) e = LL_NEW(a, ll_exec);
    e->arena = a;
    e->p = p;
    e->opts = *opts;
    e->machine = opts->machine ? opts->machine : ll_machine_of(p->target);
    if (e->machine) e->link = opts->link ? opts->link : e->machine->links[0];
    e->comm = opts->team ? opts->team->c : NULL;
    e->saturated = -1;
    e->address = LL_NEW_ARRAY(a, void *, p->n_slot + 1);
    e->n_launch = p->n_instr;
    TRY(open_parts(e));
    return LL_HAND(out, e);
}

void ll_exec_close(ll_exec *e)
{
    if (!e) return;
    LL_KEEP_ERROR;
    ll_err rc = e->n_in_flight ? ll_comm_drain(e->comm) : LL_OK;
    e->unsettled = (rc || e->joined) && !ll_comm_settled(e->comm);
    if (e->joined) e->link->close(e);
    if (e->machine) e->machine->close(e, e->slab && !e->borrowed ? slab_bytes(e) : 0);
    ll_arena_free(e->arena);
}

size_t ll_exec_comm_bytes(const ll_exec *e)
{
    size_t sum = e->comm ? ll_team_bytes(e->opts.team) : 0;
    if (e->memory) return sum; /* the rest is among the machine's */
    sum += e->room_bytes;
    for (int i = 0; i < e->p->n_instr; i++)
        if (e->instrs[i].transfer) sum += e->instrs[i].transfer->room;
    return sum;
}

size_t ll_exec_seen_bytes(const ll_exec *e)
{
    size_t sum = 0;
    for (int i = 0; i < e->p->n_instr; i++) {
        const ll_transfer *t = e->instrs[i].transfer;
        if (!t || !t->room || t->memory || t->codec || t->subsets) continue;
        const int *node = ll_comm_nodes(t->c), n = ll_comm_size(t->c), me = ll_comm_rank(t->c);
        size_t here = 0;
        for (int r = 0; r < n; r++) here += node[r] == node[me];
        sum += 2 * (t->room - t->room / here); /* its share of theirs, then their shares */
    }
    return sum;
}

/* ---- compressed gradients ---- */

int ll_exec_residuals(const ll_exec *e, ll_arena *arena, ll_residual **out)
{
    int n = 0, most = 0;
    for (int i = 0; i < e->p->n_instr; i++) most += e->p->instrs[i].n_in;
    *out = LL_NEW_ARRAY(arena, ll_residual, most + 1);
    for (int i = 0; i < e->p->n_instr; i++) {
        const ll_instr *x = &e->p->instrs[i];
        ll_codec *codec = e->instrs[i].transfer ? e->instrs[i].transfer->codec : NULL;
        float *data = codec ? ll_codec_residual(codec) : NULL;
        for (int k = 0; data && k < x->n_in; k++) {
            const ll_slot *s = &e->p->slots[x->in[k]];
            ll_axes axes = ll_collective_axes(x->collective, x->attr);
            (*out)[n++] = (ll_residual){s->gradient_of, axes, data};
            data += ll_numel(&s->type.shape);
        }
    }
    return n;
}

void ll_exec_compressed(const ll_exec *e, int64_t *bytes, int64_t *dense_bytes)
{
    *bytes = *dense_bytes = 0;
    for (int i = 0; i < e->p->n_instr; i++) {
        ll_codec *codec = e->instrs[i].transfer ? e->instrs[i].transfer->codec : NULL;
        if (!codec) continue;
        ll_codec_report r = ll_codec_last(codec);
        *bytes += r.bytes;
        *dense_bytes += r.dense_bytes;
    }
}

/* ---- data ---- */

void *ll_exec_data(const ll_exec *e, int slot, int micro)
{
    return (char *)e->machine->view(e, slot) + (size_t)micro * e->p->slots[slot].bytes;
}

ll_err ll_exec_changed(const ll_exec *e, int slot)
{
    return e->machine->changed ? e->machine->changed(e, slot) : LL_OK;
}

ll_err ll_exec_read(const ll_exec *e, int slot, void *to)
{
    return e->machine->read(e, slot, to);
}

ll_err ll_exec_put(const ll_exec *e, int slot, int micro, const void *data)
{
    return e->machine->put(e, slot, micro, data);
}

double ll_exec_scalar(const ll_exec *e, int slot)
{
    return ll_load(ll_exec_data(e, slot, 0), e->p->slots[slot].type.dtype, 0);
}

ll_err ll_exec_wait(ll_exec *e)
{
    return e->machine->wait ? e->machine->wait(e) : LL_OK;
}

size_t ll_exec_bytes(const ll_exec *e)
{
    return (e->borrowed ? 0 : slab_bytes(e)) + e->extra_bytes;
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

static void trace(ll_exec *e, ll_trace_row row, const char *name, const char *kind, double from)
{
    ll_trace_event x = {.row = row, .name = name, .kind = kind, .bytes = -1, .number = -1};
    x.from = from;
    x.to = ll_now();
    ll_trace_add(e->trace, &x);
}

static ll_err check_finite(ll_exec *e, const ll_instr *x)
{
    for (int o = 0; o < x->n_out; o++) {
        const ll_type *t = &e->p->slots[x->out[o]].type;
        if (!ll_dtype_is_float(t->dtype)) continue;
        const void *data = e->machine->view(e, x->out[o]);
        for (int64_t i = 0, n = ll_numel(&t->shape); i < n; i++) {
            double v = ll_load(data, t->dtype, i);
            if (!isfinite(v)) e->bad = x;
            CHECK(isfinite(v), LL_E_NUMERIC, "%s (%s) gives %g at element %ld of result %d",
                  x->name, x->op, v, i, o);
        }
    }
    return LL_OK;
}

static ll_err run_kernel(ll_exec *e, ll_bound *b)
{
    TRY(b->instr->kernel.run(&b->call));
    return e->machine->sync ? e->machine->sync(e) : LL_OK;
}

static ll_err run_one(ll_exec *e, int i, bool checked)
{
    ll_bound *b = &e->instrs[i];
    double start = e->profiling || e->trace ? ll_now() : 0;
    if (b->instr->wait && e->p->instrs[b->instr->pair].aside)
        TRY(e->machine->copy_wait(e, &e->instrs[b->instr->pair]));
    else if (b->instr->wait)
        TRY(e->link->wait(e, &e->instrs[b->instr->pair]));
    else if (b->instr->aside)
        TRY(e->machine->copy(e, b));
    else if (b->instr->collective)
        TRY(e->link->start(e, b));
    else if (!e->no_kernels)
        TRY(run_kernel(e, b));
    if (e->n_in_flight)
        TRY(ll_comm_poll(e->comm)); /* kernels are long: what is under way moves on */
    if (e->profiling) e->seconds[i] += ll_now() - start;
    if (e->trace && !b->instr->wait) /* waits are noted by comm */
        trace(e, LL_TRACE_COMPUTE, b->instr->name, b->instr->op, start);
    if (e->trace && e->p->pipe) ll_acting_note(e, b->instr, start);
    /* What came from another stage was wrong there already. */
    bool came = b->instr->wait && e->p->instrs[b->instr->pair].collective == LL_RECV;
    bool starts = b->instr->collective || b->instr->aside;
    return checked && !starts && !came ? check_finite(e, b->instr) : LL_OK;
}

/* The first instruction of this rank, counted over micro-batches, that gave a number that is not
 * finite. It is told at the end of the section: others may wait for what this rank has to send. */
typedef struct bad_instr {
    int32_t at; /* INT32_MAX: none */
    char message[512];
} bad_instr;

/* Collectives spread such numbers: of all ranks' instructions the first is the one to name. */
static ll_err tell(ll_exec *e, const bad_instr *mine)
{
    int32_t first = mine->at;
    ll_err rc = LL_OK;
    ll_comm *c = e->comm;
    if (c) TRY(ll_comm_allreduce(c, &first, 1, LL_I32, LL_REDUCE_MIN, NULL));
    if (first == INT32_MAX) return LL_OK;
    if (first == mine->at)
        rc = ll_raise(LL_E_NUMERIC, __FILE__, __LINE__, __func__, "%s", mine->message);
    return ll_comm_agree(c, rc);
}

/* Operands that are another address in each micro-batch, as of this one. */
static void move_operands(ll_exec *e, int micro)
{
    for (int i = 0; i < e->n_moving; i++)
        e->moving[i].tensor->data = e->moving[i].first + (size_t)micro * e->moving[i].stride;
}

/* What a step that ended early left under way. */
static ll_err wait_all(ll_exec *e)
{
    for (int i = 0; i < e->p->n_instr && e->n_in_flight; i++)
        if (!e->instrs[i].late) TRY(e->link->wait(e, &e->instrs[i]));
    return LL_OK;
}

/* Of a pipeline's stages: whose turn comes first, forward and then backward. */
static int32_t place_of(const ll_program *p, int i)
{
    enum { STAGES = 1 << 13 };
    int action = p->instrs[i].action;
    if (!action) return INT32_MAX - 1;
    const ll_action *a = &p->pipe->actions[action - 1];
    return a->micro * STAGES + (a->kind == LL_ACT_F ? a->stage : STAGES - 1 - a->stage);
}

/* Once over a range of instructions. */
typedef struct sweep {
    ll_exec *e;
    int micro, times;
    uint64_t step;
    bool checked, own; /* own: but for what is late */
    bad_instr bad;
} sweep;

static ll_err run_at(void *given, int i)
{
    sweep *r = (sweep *)given;
    ll_bound *b = &r->e->instrs[i];
    const ll_program *p = r->e->p;
    if (b->instr->last && r->micro < r->times - 1) return LL_OK;
    if (r->own && b->late) return LL_OK;
    if (!p->unrolled) b->call.micro = r->micro;
    b->call.step = r->step - b->instr->before;
    ll_err rc = run_one(r->e, i, r->checked && r->bad.at == INT32_MAX);
    if (rc != LL_E_NUMERIC) return rc;
    r->bad.at = p->unrolled ? place_of(p, i) : r->micro * p->n_instr + i;
    snprintf(r->bad.message, sizeof r->bad.message, "%s", ll_error_message());
    return LL_OK;
}

typedef struct range {
    ll_run_one *run;
    void *context;
    int from, to;
    ll_err rc;
} range;

static void run_those(void *given)
{
    range *s = (range *)given;
    s->rc = LL_OK;
    for (int i = s->from; i < s->to && s->rc == LL_OK; i++) s->rc = s->run(s->context, i);
}

ll_err ll_exec_each(const ll_exec *e, int from, int to, ll_run_one *run, void *context)
{
    const ll_machine *m = e->machine;
    range s = {.run = run, .context = context, .from = from};
    for (; s.from < to; s.from = s.to) {
        int n = 0;
        while (m->together && s.from + n < to && e->p->instrs[s.from + n].kernel.parts) n++;
        s.to = n ? s.from + n : s.from + 1;
        if (n > 1)
            m->together(e->p->threads, run_those, &s);
        else
            run_those(&s);
        TRY(s.rc);
    }
    return LL_OK;
}

/* Instructions from..to of a section: all of it, or a part. own: but for what is late. */
static ll_err run_range(ll_exec *e, int section, int from, int to, uint64_t step, bool checked,
                        bool own)
{
    static const char *const names[] = {"micro-batches", "report", "update"};
    double start = e->trace ? ll_now() : 0;
    const ll_program *p = e->p;
    bool first = from == (section ? p->end[section - 1] : 0), last = to == p->end[section];
    int times = section == LL_MICRO ? ll_program_rounds(p) : 1;
    sweep r = {.e = e, .times = times, .step = step, .checked = checked, .own = own};
    r.bad.at = INT32_MAX;
    if (section == LL_MICRO && first) TRY(wait_all(e));
    if (section == LL_MICRO && first) TRY(ll_exec_begin(e, step));
    bool acts = e->trace && p->pipe && section == LL_MICRO && (checked || !e->machine->run);
    if (acts && first) ll_acting_begin(e);
    for (int m = 0; m < times; m++) {
        if (section == LL_MICRO) move_operands(e, m);
        if (e->machine->run && !checked) {
            TRY(e->machine->run(e, section, m, step));
            continue;
        }
        r.micro = m;
        TRY(ll_exec_each(e, from, to, run_at, &r));
    }
    if (section == LL_REPORT && e->machine->end) TRY(e->machine->end(e));
    if (acts && last) ll_acting_end(e);
    if (e->trace) trace(e, LL_TRACE_STEP, names[section], NULL, start);
    if (e->trace && p->pipe && section != LL_MICRO)
        trace(e, LL_TRACE_PIPE, names[section], NULL, start);
    return checked ? tell(e, &r.bad) : LL_OK;
}

static ll_err run_section(ll_exec *e, int section, uint64_t step, bool checked)
{
    int from = section ? e->p->end[section - 1] : 0;
    return run_range(e, section, from, e->p->end[section], step, checked, false);
}

ll_err ll_exec_begin(ll_exec *e, uint64_t step)
{
    return e->machine->begin ? e->machine->begin(e, step) : LL_OK;
}

ll_err ll_exec_run(ll_exec *e, int section, uint64_t step)
{
    return run_section(e, section, step, false);
}

ll_err ll_exec_run_checked(ll_exec *e, int section, uint64_t step)
{
    return run_section(e, section, step, true);
}

/* ---- parts of a pipeline's step ---- */

static bool is_at(const ll_exec *e, const int *slots, int n, int slot)
{
    for (int k = 0; k < n; k++)
        if (e->address[slots[k]] == e->address[slot]) return true;
    return false;
}

static bool is_read(const ll_exec *e, int from, int to, int slot)
{
    for (int i = from; i < to; i++) {
        const ll_instr *x = &e->p->instrs[i];
        if (!x->wait && is_at(e, x->in, x->n_in, slot)) return true;
    }
    return false;
}

/* One number, a result, that nobody reads but, of the norm, the update. */
static bool is_told(const ll_exec *e, int slot)
{
    const ll_program *p = e->p;
    bool result = false;
    for (int i = 0; i < p->n_result; i++) result |= is_at(e, &p->results[i].slot, 1, slot);
    if (!result || p->slots[slot].type.shape.n) return false;
    const int *end = p->end;
    int norm = ll_program_result(p, "grad_norm");
    return !is_read(e, end[LL_MICRO], end[LL_REPORT], slot) &&
           ((norm >= 0 && is_at(e, &norm, 1, slot)) ||
            !is_read(e, end[LL_REPORT], end[LL_UPDATE], slot));
}

static void find_parts(ll_exec *e)
{
    const ll_program *p = e->p;
    for (int i = p->end[LL_MICRO]; i < p->end[LL_REPORT]; i++) {
        const ll_instr *x = &p->instrs[i];
        if (x->collective != LL_RECV || x->pair >= p->end[LL_REPORT]) continue;
        e->instrs[i].late = e->instrs[x->pair].late = is_told(e, x->out[0]);
    }
    while (e->head < p->end[LL_MICRO]) {
        int action = p->instrs[e->head].action;
        if (action && p->pipe->actions[action - 1].kind != LL_ACT_F) break;
        e->head++;
    }
    while (e->head > 0 && p->instrs[e->head - 1].wait) e->head--; /* for what that reads */
}

bool ll_exec_is_late(const ll_exec *e, int slot)
{
    for (int i = e->p->end[LL_MICRO]; i < e->p->end[LL_REPORT]; i++)
        if (e->instrs[i].late && !e->instrs[i].instr->wait &&
            is_at(e, &slot, 1, e->instrs[i].instr->out[0]))
            return true;
    return false;
}

ll_err ll_exec_run_part(ll_exec *e, ll_exec_part part, uint64_t step)
{
    const int *end = e->p->end;
    LL_ASSERT(e->p->pipe && !e->machine->run);
    switch (part) {
    case LL_HEAD: return run_range(e, LL_MICRO, 0, e->head, step, false, false);
    case LL_OWN: return run_range(e, LL_REPORT, end[LL_MICRO], end[LL_REPORT], step, false, true);
    case LL_TAIL:
    case LL_MESSAGES: {
        e->no_kernels = part == LL_MESSAGES;
        ll_err rc = run_range(e, LL_MICRO, e->head, end[LL_MICRO], step, false, false);
        e->no_kernels = false;
        return rc;
    }
    case LL_ASK:
    case LL_HEAR: break;
    }
    for (int i = end[LL_MICRO]; i < end[LL_REPORT]; i++)
        if (e->instrs[i].late && e->instrs[i].instr->wait == (part == LL_HEAR))
            TRY(run_one(e, i, false));
    return LL_OK;
}
