/* verify.c: serial and parallel training side by side.
 *
 * Rank 0 also trains serially. After each step it sends every serial tensor to all, and each rank
 * holds its own piece against it: copies on several ranks are compared one by one, none can hide.
 * Only then are numbers brought together: for each tensor and rank the sum of squared differences
 * and the worst element.
 *
 * What a relative difference is. For one tensor: the 2-norm of parallel - serial, over the 2-norm
 * of serial; of parameters and state, over that of what the steps have changed of them (no less
 * than STILL of the value, which is rounded): a wrong step of a large parameter is not small.
 * Beside it stands, of results and gradients, the projection <parallel - serial, serial> /
 * |serial|^2: a wrong scale shows in it, rounding in any direction does not. Three things would
 * make noise of both:
 * 1. Gradients that are zero but for rounding (the bias of a layer before a batch norm; of keys in
 *    attention). A gradient's difference is over no less than FLOOR of the norm of all gradients.
 * 2. Rules that divide a gradient by its size (Adam, LAMB, ...) make a whole step, in any
 *    direction, of a gradient that is rounding alone. Elements of a parameter and its moments are
 *    left out from the first step on in which their gradients are SMALL, beside the others of the
 *    tensor, and agree to fewer than DIGITS; in bf16 also those that are ROUGH-ly small and off by
 *    HALF of themselves; how many is reported. Nothing escapes by this: their gradients are
 *    compared, all of them, always.
 * 3. Problems that rounding alone changes by more than the tolerance: where an activation lies
 *    within rounding of relu's corner or two of a pooling window's are equal, the gradient jumps;
 *    a batch norm over few numbers multiplies rounding a thousandfold; steps multiply both.
 * So where a tensor differs by more than the tolerance, f32 cannot judge it. Both sides train again
 * in f64, where rounding is 2^29 times smaller, and there the tolerance, WIDE at most, is held to
 * the letter: for every tensor, in every step, on values that were never brought together. And both
 * train with exact sums, where no bit may differ: messages and memory there are those of f32, of
 * which f64 says nothing; and what f64 cannot judge either (a batch norm of two numbers, twenty
 * layers deep), by the noise there, is left to it. In the first run the ranks go on from the serial
 * values after such a step: what rounding has set apart would only drift further apart.
 *
 * Of kernels that are wrong in f32 alone, or in bf16, only the first run says anything; and a
 * tensor's norm hides its small parts (keys' gradient is 1e-3 of the values' beside it). So every
 * tensor is judged in blocks too, the ranges of each of its dimensions, each by its own norm, and
 * where one is odd by what rounding does to that very block: verify_noise.c.
 * Tolerances below STRICT are held to the letter at once.
 * Exact runs (pass/exact.c) have no rounding to allow for: every bit of everything is compared. */
#include "verify/verify_int.h"

static const double STRICT = 1e-6; /* tolerances below it are held to the letter */
static const double WIDE = 1e-6;   /* the most that passes in f64 */

/* ---- the verdict on one step: the same on every rank ---- */

/* f: what each rank found of item i. */
static void note(verifier *v, int i, int64_t step, const finding *f, int rank)
{
    ll_verify_report *out = v->out;
    const item *x = &v->items[i];
    snprintf(out->name, sizeof out->name, "%s", x->name);
    snprintf(out->op, sizeof out->op, "%s", x->op);
    out->part[0] = '\0';
    out->rank = rank;
    out->index = (int64_t)f->index;
    out->step = step;
    out->serial = f->serial;
    out->parallel = f->parallel;
    out->in_f64 = v->wide;
    out->ok = false;
}

static void note_difference(verifier *v, int i, int64_t step, double rel, double allowed)
{
    const finding *f = &v->found[i * v->n_rank];
    int rank = 0;
    for (int r = 1; r < v->n_rank; r++)
        if (f[r].worst > f[rank].worst) rank = r;
    note(v, i, step, &f[rank], rank);
    v->out->rel_diff = rel;
    v->out->allowed = allowed;
}

/* The first tensor of which a block is worse than rounding explains. Collective. */
static ll_err note_block(verifier *v, int64_t step)
{
    int at = 0, end = v->n_rank * v->n_item;
    while (at < end && v->doubts[at].bad <= 1) at++;
    for (int r = at; r < end && r / v->n_rank == at / v->n_rank; r++)
        if (v->doubts[r].bad > v->doubts[at].bad) at = r;
    const item *x = &v->items[at / v->n_rank];
    const doubt *d = &v->doubts[at];
    finding f;
    TRY(ll_verify_worst_in(v, x, (int64_t)d->block, at % v->n_rank, &f));
    note(v, at / v->n_rank, step, &f, at % v->n_rank);
    v->out->rel_diff = sqrt(f.off) / fmax(v->blocks[x->first + (int64_t)d->block].size, 1e-300);
    v->out->allowed = v->out->rel_diff / d->bad;
    ll_verify_block_text(x, (int64_t)d->block, v->out->part);
    return LL_OK;
}

static void judge_init(verifier *v)
{
    v->out->init_identical = true;
    for (int k = 0; k < v->n_item * v->n_rank && v->out->init_identical; k++)
        if (v->found[k].bits > 0) {
            v->out->init_identical = false;
            note_difference(v, k / v->n_rank, 0, INFINITY, 0);
        }
}

static int64_t count_left_out(const verifier *v)
{
    int64_t sum = 0;
    for (int i = 0; i < v->n_item; i++) {
        int64_t n = v->items[i].kind == PARAMETER ? ll_numel(&v->items[i].type.shape) : 0;
        for (int64_t k = 0; k < n; k++) sum += v->items[i].left_out[k];
    }
    return sum;
}

/* What the step was like, for the report. */
static void record(verifier *v, int64_t step, double (*rel)[2])
{
    ll_verify_report *out = v->out;
    double *most = &out->max_rel_diff[v->wide];
    for (int i = 0; i < v->n_item; i++) {
        const item *x = &v->items[i];
        if (rel[i][0] > *most || !out->worst[v->wide][0]) {
            *most = rel[i][0];
            out->worst_step[v->wide] = step;
            snprintf(out->worst[v->wide], sizeof *out->worst, "%s", x->name);
        }
        if (!strcmp(x->name, "loss") && !v->wide) {
            out->loss[0] = v->found[i * v->n_rank].serial;
            out->loss[1] = v->found[i * v->n_rank].parallel;
        }
    }
    for (int i = 0; i < v->n_item * v->n_rank && v->o->session.exact; i++)
        out->differing += (int64_t)v->found[i].bits;
    out->left_out = count_left_out(v);
    out->steps = step;
}

/* far: tensors miss the tolerance, and noise is known. odd, bad: blocks, and noise is known too. */
static ll_err judge(verifier *v, int64_t step, double (*rel)[2], bool far, double odd, double bad)
{
    ll_verify_report *out = v->out;
    int64_t *unjudged = v->wide ? &out->unjudged_in_f64 : &out->unjudged;
    int first = -1; /* that f32 cannot judge, or that is wrong */
    bool wrong = false, deaf = v->wide && far;
    for (int i = 0; i < v->n_item; i++) {
        const item *x = &v->items[i];
        if (rel[i][0] <= v->o->tolerance) continue;
        if (first < 0) first = i;
        wrong |= !far;
        if (!far) continue;
        *unjudged += 1;
        double noise = v->blocks[x->first].noise[0] / ll_verify_scale(v, x);
        if (!v->wide) out->rounding = fmax(out->rounding, noise);
        deaf |= noise > 1; /* rounding alone makes something else of it */
        for (int k = 0; k < 2; k++)
            wrong |=
                (v->wide || !ll_verify_kept(x)) && !(rel[i][k] <= ll_verify_loudest(v, x->kind, k));
    }
    record(v, step, rel);
    if (odd > 1 && !far && !v->wide) *unjudged += 1;
    if (wrong && out->ok) note_difference(v, first, step, rel[first][0], v->o->tolerance);
    /* What f64 cannot judge as a whole, it cannot in blocks; nor can f32 where rounding is all. */
    return bad > 1 && out->ok && !deaf ? note_block(v, step) : LL_OK;
}

/* Gradients' blocks that rounding alone excuses, in every step. Collective. */
static ll_err count_blocks(const verifier *v)
{
    if (v->n_rank > 1)
        TRY(ll_comm_allreduce(v->c, v->judged, v->n_block, LL_I32, LL_REDUCE_MIN,
                              &(ll_coll_opts){.site = "judged"}));
    for (int i = 0; i < v->n_item; i++)
        for (int64_t k = 0; k < v->items[i].n_block && v->items[i].kind == GRADIENT; k++) {
            v->out->blocks++;
            v->out->unjudged_blocks += !v->judged[v->items[i].first + k];
        }
    return LL_OK;
}

/* Parameters and state of the ranks become the serial ones. */
static ll_err start_over(verifier *v, int64_t step)
{
    LL_EACH (const item, x, v->items, v->n_item) {
        const void *serial;
        if (!ll_verify_kept(x)) continue;
        TRY(ll_verify_fetch(v, x, &serial));
        TRY(ll_session_set(v->cut, x->name, 0, serial,
                           ll_tensor_bytes(x->type.dtype, &x->type.shape)));
    }
    ll_verify_keep_start(v, step);
    v->out->restarts++;
    return LL_OK;
}

/* ---- all of it ---- */

static ll_err train_alone(verifier *v, int64_t step)
{
    if (!v->alone) return LL_OK;
    TRY(v->o->feed(v->o->context, v->alone, step));
    return ll_session_run(v->alone, v->o->lr);
}

static ll_err train_cut(verifier *v, int64_t step)
{
    TRY(v->o->feed(v->o->context, v->cut, step));
    TRY(ll_session_run(v->cut, v->o->lr));
    return ll_session_settle(v->cut);
}

static ll_err open_sessions(verifier *v)
{
    ll_session_opts o = v->o->session;
    ll_err cut = ll_session_open(v->g, &o, &v->cut);
    if (cut == LL_E_MEM && o.memory)
        cut = RAISE(cut,
                    "%s (verify's ranks keep every gradient, whole, to a step's end: not what "
                    "train needs)",
                    ll_error_message());
    TRY(ll_comm_agree(v->c, cut));
    ll_session_opts alone = ll_verify_alone(v);
    ll_err rc = v->rank == 0 ? ll_session_open(v->g, &alone, &v->alone) : LL_OK;
    if (rc == LL_OK && v->alone && v->o->begin) rc = v->o->begin(v->o->context, v->alone);
    TRY(ll_comm_agree(v->c, rc));
    if (v->o->begin) TRY(ll_comm_agree(v->c, v->o->begin(v->o->context, v->cut)));
    double bytes[2] = {v->alone ? (double)ll_session_bytes(v->alone) : 0,
                       (double)ll_session_bytes(v->cut)};
    if (v->n_rank > 1) TRY(ll_comm_allreduce(v->c, bytes, 2, LL_F64, LL_REDUCE_MAX, NULL));
    for (int i = 0; i < 2 && !v->wide; i++) v->out->bytes[i] = (size_t)bytes[i];
    return LL_OK;
}

static ll_err judge_step(verifier *v, int64_t step, double (*rel)[2])
{
    double odd, bad;
    TRY(ll_verify_compare_all(v, false));
    bool far = ll_verify_measure(v, rel) && v->lenient;
    TRY(ll_verify_doubt(v, &odd, &bad));
    if (far || odd > 1) TRY(ll_verify_find_noise(v, step, far, &odd, &bad));
    TRY(judge(v, step, rel, far, odd, bad));
    bool unsure = (far || odd > 1) && !v->wide;
    if (unsure && !v->out->ok) TRY(ll_verify_corner(v, step, rel));
    if (unsure && v->out->ok) TRY(start_over(v, step));
    return LL_OK;
}

static ll_err train_and_compare(verifier *v)
{
    double(*rel)[2] = (double(*)[2])ll_arena_alloc(v->arena, sizeof *rel * (size_t)(v->n_item + 1));
    ll_verify_keep_start(v, 0);
    for (int64_t step = 1;
         step <= v->o->steps && v->out->ok && !(v->wide && v->out->unjudged_in_f64); step++) {
        TRY(ll_comm_agree(v->c, train_alone(v, step)));
        TRY(train_cut(v, step));
        TRY(judge_step(v, step, rel));
    }
    return v->lenient && !v->wide ? count_blocks(v) : LL_OK;
}

static ll_err verify(verifier *v)
{
    TRY(ll_mesh_parse(v->o->session.mesh ? v->o->session.mesh : "", &v->m));
    TRY(open_sessions(v));
    TRY(ll_verify_list(v));
    v->found = LL_NEW_ARRAY(v->arena, finding, v->n_item * v->n_rank + 1);
    v->doubts = LL_NEW_ARRAY(v->arena, doubt, v->n_item * v->n_rank + 1);
    size_t most = 1;
    for (int i = 0; i < v->n_item; i++)
        if (ll_tensor_bytes(v->items[i].type.dtype, &v->items[i].type.shape) > most)
            most = ll_tensor_bytes(v->items[i].type.dtype, &v->items[i].type.shape);
    if (!v->alone) v->buffer = ll_arena_alloc(v->arena, most);
    v->out->tensors = v->n_item;
    TRY(ll_verify_compare_all(v, true));
    judge_init(v);
    return train_and_compare(v);
}

static ll_err run(ll_graph *g, const ll_verify_opts *o, bool wide, ll_verify_report *out)
{
    ll_comm *c = o->session.comm;
    verifier v = {.o = o, .out = out, .c = c, .g = g, .wide = wide, .arena = ll_arena_new()};
    v.lenient = o->tolerance >= STRICT;
    v.narrow = ll_precision_parse(o->session.precision, &v.precision) == LL_OK && v.precision;
    v.rank = ll_comm_rank(c);
    v.n_rank = ll_comm_size(c);
    out->elements = 0;
    ll_err rc = verify(&v);
    ll_session_close(v.alone);
    ll_session_close(v.nudged);
    ll_session_close(v.cut);
    ll_arena_free(v.arena);
    return rc;
}

/* Everything again in f64, which CPUs have; batches stay as they are. */
static ll_err run_wide(const ll_graph *g, const ll_verify_opts *given, ll_verify_report *out)
{
    ll_verify_opts o = *given;
    LL_OWN(ll_graph) wide = NULL;
    o.tolerance = fmin(o.tolerance, WIDE);
    o.session.machine = o.session.precision = o.session.transport = NULL;
    o.session.memory = 0; /* was of f32 */
    o.session.offload = NULL;
    TRY(ll_retype(g, LL_F64, true, &wide));
    return run(wide, &o, true, out);
}

/* And with exact sums, of f32 numbers, where nothing is left to rounding. */
static ll_err run_exact(ll_graph *g, const ll_verify_opts *given, ll_verify_report *out)
{
    ll_verify_opts o = *given;
    o.tolerance = 0;
    o.session.exact = true;
    o.session.precision = o.session.compress = NULL;
    o.session.memory = 0; /* was of plain sums */
    o.session.offload = NULL;
    out->differing = 0;
    return run(g, &o, false, out);
}

ll_err ll_verify_graph(ll_graph *g, const ll_verify_opts *o, ll_verify_report *out)
{
    *out = (ll_verify_report){.ok = true, .differing = o->session.exact ? 0 : -1};
    ll_verify_expose(g);
    TRY(ll_graph_check(g));
    TRY(run(g, o, false, out));
    const ll_verify_report asked = *out;
    if (out->ok && out->unjudged) TRY(run_wide(g, o, out));
    /* Attention of exact sums has no heads to turn to: what f64 could judge is judged. */
    const char *turn = o->session.sequence;
    bool judged = turn && !strcmp(turn, "heads") && !out->unjudged_in_f64;
    if (out->ok && out->unjudged && !judged) TRY(run_exact(g, o, out));
    memcpy(out->loss, asked.loss, sizeof out->loss); /* those of what was asked for */
    memcpy(out->bytes, asked.bytes, sizeof out->bytes);
    return LL_OK;
}
