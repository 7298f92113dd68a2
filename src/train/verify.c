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
 *    tensor, and agree to fewer than DIGITS; how many is reported. Nothing escapes by this: their
 *    gradients are compared, all of them, always.
 * 3. Problems that rounding alone changes by more than the tolerance: where an activation lies
 *    within rounding of relu's corner or two of a pooling window's are equal, the gradient jumps;
 *    a batch norm over few numbers multiplies rounding a thousandfold; steps multiply both.
 * So where a tensor differs by more than the tolerance, f32 cannot judge it. Both sides train again
 * in f64, where rounding is 2^29 times smaller, and there the tolerance, WIDE at most, is held to
 * the letter: for every tensor, in every step, on values that were never brought together. Before
 * that, rank 0 trains serially a few times more, with every parameter changed by half a unit of its
 * last place before every step: MARGIN times what that changes at most of the results, and of the
 * gradients, and the less of GROSS and MUCH times it at least, is what rounding can do, and more is
 * a mistake that f64 need not show. (A tensor's own change is no bound: one activation more that
 * crosses relu's corner, and it is ten times as large.) Three such runs may all miss a corner that
 * the ranks' rounding crosses. So before a step is told wrong there, up to TRIES more are made, the
 * ranks held against each: where all results and gradients are within MARGIN times the noise of
 * one, or the tolerance, ranks make what a serial run makes but for one decision of rounding. That
 * is told; a kernel that is wrong in f32 alone is near none of them.
 * In the first run the ranks go on from the
 * serial values after such a step: what rounding has set apart would only drift further apart.
 * And both train with exact sums, where no bit may differ: messages and memory there are those of
 * f32, of which f64 says nothing; and what f64 cannot judge either (a batch norm of two numbers,
 * twenty layers deep), by the same noise, with no GROSS and of parameters too, is left to it.
 * Tolerances below STRICT are held to the letter at once.
 * Exact runs (pass/exact.c) have no rounding to allow for: every bit of everything is compared. */
#include "train/verify_int.h"

#include "base/rng.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const double FLOOR[2] = {1e-6, 1e-8}; /* as it is, in f64 */
static const double DIGITS = 1e-3, SMALL = 1e-2, SHARE = 1e-3, MARGIN = 16, STRICT = 1e-6;
static const double STILL[2] = {2e-2,
                                1e-9}; /* some units of the last place over the usual tolerance */
static const double MUCH = 4096;       /* times what rounding does: differs as well */
static const double GROSS = 0.25;      /* differs, and is not asked about in f64 */
static const double CLOSE = 1e-3; /* nearness to a nudged run that shows something: not bf16's */
static const double WIDE = 1e-6;  /* the most that passes in f64 */
enum { DRAWS = 3 };  /* one may be small by luck; in f64, where mistakes are far off, one will do */
enum { TRIES = 24 }; /* nudges of 1, 2 and 4 halves of a unit, in turn, that look for a corner */

/* What a session of rank 0 alone is opened with. */
static ll_session_opts alone_opts(const verifier *v)
{
    ll_session_opts o = v->o->session;
    o.delay |= v->cut->late != NULL; /* as its schedule wants it */
    o.comm = NULL;
    o.mesh = NULL;
    o.zero = 0;
    o.compress = NULL;
    o.schedule = o.stages = NULL;
    o.virtual_stages = 0;
    o.post_validation = false;
    o.recompute = NULL;
    o.memory = 0;
    o.offload = NULL;
    return o;
}

/* ---- comparing one tensor ---- */

static bool kept(const item *x)
{
    return x->kind == PARAMETER || x->kind == STATE;
}

static double at(const void *data, ll_dtype t, int64_t i)
{
    return t == LL_F32 ? (double)((const float *)data)[i] : ll_load(data, t, i);
}

/* A tensor of a session: of results, as the step left them that was made again on all bits, where
 * exact sums had to. of: its slot, may be NULL. */
static void *data_of(const ll_session *s, const item *x, int slot, const ll_slot **of)
{
    if (!kept(x) && s->now && s->now != s) {
        s = s->now;
        slot = ll_program_result(s->p, x->name);
    }
    if (of) *of = &s->p->slots[slot];
    return ll_exec_data(s->e, slot, 0);
}

/* Rank 0's tensor on every rank. Collective. */
static ll_err fetch(verifier *v, const item *x, const void **out)
{
    void *data = v->buffer;
    if (v->alone) data = data_of(v->again ? v->nudged : v->alone, x, x->serial, NULL);
    *out = data;
    if (v->n_rank == 1 || !ll_tensor_bytes(x->type.dtype, &x->type.shape)) return LL_OK;
    return ll_comm_broadcast(v->c, data, (int64_t)ll_tensor_bytes(x->type.dtype, &x->type.shape),
                             LL_U8, 0, &(ll_coll_opts){.site = x->name});
}

/* On rank 0: of every tensor what differences are over. Collective. */
static ll_err find_sizes(verifier *v)
{
    for (int i = 0; i < v->n_item && v->alone; i++) {
        item *x = &v->items[i];
        const void *serial = data_of(v->alone, x, x->serial, NULL);
        double sum = 0, moved = 0;
        for (int64_t k = 0, n = ll_numel(&x->type.shape); k < n; k++) {
            double a = at(serial, x->type.dtype, k),
                   b = x->start ? at(x->start, x->type.dtype, k) : 0;
            sum += a * a;
            moved += (a - b) * (a - b);
        }
        x->size = x->start ? fmax(sqrt(moved), STILL[v->wide] * sqrt(sum)) : sqrt(sum);
    }
    for (int i = 0; i < v->n_item && v->n_rank > 1; i++)
        TRY(ll_comm_broadcast(v->c, &v->items[i].size, 1, LL_F64, 0, NULL));
    return LL_OK;
}

/* Notes elements of a gradient that are rounding alone. all: the norm of all gradients. */
static void leave_out(item *x, const void *serial, const void *parallel, double all)
{
    int64_t n = ll_numel(&x->type.shape);
    double small = SMALL * fmax(x->size, SHARE * all) / sqrt((double)n + 1);
    for (int64_t i = 0; i < n; i++) {
        double a = at(serial, x->type.dtype, i), b = at(parallel, x->type.dtype, i);
        double larger = fmax(fabs(a), fabs(b));
        if (larger < small && fabs(a - b) > DIGITS * larger) x->left_out[i] = 1;
    }
}

/* Where row r of a piece begins in the whole. */
static int64_t row_in_whole(const ll_slot *s, int64_t r)
{
    const ll_shape *p = &s->type.shape, *w = s->piece ? &s->piece->whole : p;
    int last = p->n - 1;
    int64_t stride = 1, first = 0;
    for (int d = last; d >= 0; d--) {
        int64_t i = d == last ? 0 : r % p->d[d];
        if (d != last) r /= p->d[d];
        first += ((s->piece ? s->piece->at[d] : 0) + i) * stride;
        stride *= w->d[d];
    }
    return first;
}

static finding compare(const item *x, const ll_slot *s, const void *serial, const void *parallel,
                       bool exact)
{
    finding f = {.worst = -1};
    ll_dtype t = x->type.dtype;
    size_t elem = ll_dtype_bytes(t);
    int64_t n = ll_numel(&s->type.shape),
            row = s->type.shape.n ? s->type.shape.d[s->type.shape.n - 1] : 1;
    bool skip = x->left_out && x->kind != GRADIENT && !exact;
    for (int64_t r = 0; r * row < n; r++) {
        int64_t first = row_in_whole(s, r);
        for (int64_t i = 0; i < row; i++) {
            if (skip && x->left_out[first + i]) continue;
            double a = at(serial, t, first + i), b = at(parallel, t, r * row + i);
            double d = a == b ? 0 : fabs(a - b);
            if (isnan(d)) d = INFINITY;
            if (memcmp((const char *)serial + (size_t)(first + i) * elem,
                       (const char *)parallel + (size_t)(r * row + i) * elem, elem)) {
                f.bits++;
                d = fmax(d, DBL_TRUE_MIN); /* zeros of two signs */
            }
            f.off += d * d;
            f.along += d < INFINITY ? (b - a) * a : 0;
            if (d > f.worst) f = (finding){f.off, f.along, d, (double)(first + i), a, b, f.bits};
        }
    }
    return f;
}

/* Fills found, on every rank; init: of parameters and state alone. Collective. */
static ll_err compare_all(verifier *v, bool init)
{
    memset(v->found, 0, sizeof *v->found * (size_t)(v->n_item * v->n_rank));
    if (!init && !v->again) TRY(find_sizes(v));
    for (int i = 0; i < v->n_item; i++) {
        item *x = &v->items[i];
        if ((init && !kept(x)) || (v->again && kept(x))) continue;
        const void *serial;
        finding *f = &v->found[i * v->n_rank + v->rank];
        TRY(fetch(v, x, &serial));
        if (x->parallel < 0) continue; /* another stage's */
        const ll_slot *s;
        const void *parallel = data_of(v->cut, x, x->parallel, &s);
        if (x->kind == GRADIENT && x->left_out && !v->o->session.exact && !v->again)
            leave_out(x, serial, parallel, ll_session_result(v->cut, "grad_norm"));
        *f = compare(x, s, serial, parallel, init || v->o->session.exact);
    }
    if (v->n_rank == 1) return LL_OK;
    return ll_comm_allreduce(v->c, v->found, (int64_t)v->n_item * v->n_rank * N_FINDING, LL_F64,
                             LL_REDUCE_SUM, &(ll_coll_opts){.site = "findings"});
}

/* ---- the verdict on one step: the same on every rank ---- */

/* How far the copy of x that is furthest off is, and along x; each has a piece on several ranks. */
static void worst_copy(const verifier *v, int i, double out[2])
{
    out[0] = out[1] = 0;
    ll_axes copies = (ll_axes)~ll_layout_axes(&v->items[i].layout);
    for (int r = 0; r < v->n_rank; r++) {
        double off = 0, along = 0;
        for (int q = 0; q < v->n_rank; q++)
            if (ll_mesh_member(&v->m, copies, q) == ll_mesh_member(&v->m, copies, r)) {
                off += v->found[i * v->n_rank + q].off;
                along += v->found[i * v->n_rank + q].along;
            }
        out[0] = fmax(out[0], sqrt(off));
        out[1] = fmax(out[1], fabs(along));
    }
}

static void note_difference(verifier *v, int i, int64_t step, double rel, double allowed)
{
    ll_verify_report *out = v->out;
    const item *x = &v->items[i];
    const finding *f = &v->found[i * v->n_rank];
    int rank = 0;
    for (int r = 1; r < v->n_rank; r++)
        if (f[r].worst > f[rank].worst) rank = r;
    snprintf(out->name, sizeof out->name, "%s", x->name);
    snprintf(out->op, sizeof out->op, "%s", x->op);
    out->rank = rank;
    out->index = (int64_t)f[rank].index;
    out->step = step;
    out->serial = f[rank].serial;
    out->parallel = f[rank].parallel;
    out->rel_diff = rel;
    out->allowed = allowed;
    out->in_f64 = v->wide;
    out->ok = false;
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

/* The norm that differences of x are over. */
static double scale_of(const verifier *v, const item *x)
{
    double all = 0;
    for (int i = 0; i < v->n_item && x->kind == GRADIENT; i++)
        if (v->items[i].kind == GRADIENT && v->items[i].left_out)
            all = hypot(all, v->items[i].size);
    return fmax(fmax(x->size, FLOOR[v->wide] * all), 1e-30);
}

/* Relative differences as they are, and projections; whether one is more than the tolerance. */
static bool measure(const verifier *v, double (*rel)[2])
{
    bool any = false;
    for (int i = 0; i < v->n_item; i++) {
        double scale = scale_of(v, &v->items[i]);
        worst_copy(v, i, rel[i]);
        rel[i][0] /= scale;
        rel[i][1] = kept(&v->items[i]) ? 0 : rel[i][1] / (scale * scale);
        for (int r = 0; r < v->n_rank && v->o->session.exact; r++)
            if (v->found[i * v->n_rank + r].bits > 0) rel[i][0] = fmax(rel[i][0], DBL_MIN);
        any |= !(rel[i][0] <= v->o->tolerance);
    }
    return any;
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

/* What no rounding of this step explains, of this kind of tensors. */
static double loudest(const verifier *v, item_kind of, int k)
{
    double most = 0;
    for (int i = 0; i < v->n_item; i++)
        if (v->items[i].kind == of) most = fmax(most, v->items[i].noise[k]);
    double least = v->wide ? v->o->tolerance : fmin(GROSS, MUCH * most);
    return fmax(least, MARGIN * most);
}

/* far: noise is known. */
static void judge(verifier *v, int64_t step, double (*rel)[2], bool far)
{
    ll_verify_report *out = v->out;
    double bar = v->o->tolerance, *most = &out->max_rel_diff[v->wide];
    int first = -1; /* that f32 cannot judge, or that is wrong */
    bool wrong = false;
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
        if (rel[i][0] <= bar) continue;
        if (first < 0) first = i;
        if (!far) {
            wrong = true;
            continue;
        }
        *(v->wide ? &out->unjudged_in_f64 : &out->unjudged) += 1;
        if (!v->wide) out->rounding = fmax(out->rounding, x->noise[0]);
        for (int k = 0; k < 2; k++)
            wrong |= (v->wide || !kept(x)) && !(rel[i][k] <= loudest(v, x->kind, k));
    }
    if (wrong && out->ok) note_difference(v, first, step, rel[first][0], bar);
    for (int i = 0; i < v->n_item * v->n_rank && v->o->session.exact; i++)
        out->differing += (int64_t)v->found[i].bits;
    out->left_out = count_left_out(v);
    out->steps = step;
}

/* ---- what rounding does ---- */

/* Half a unit of the last place of what products read. */
static double half_unit(const verifier *v)
{
    static const double unit[LL_N_PRECISION] = {0x1p-24, 0x1p-11, 0x1p-9, 0x1p-4};
    ll_precision p;
    if (v->wide) return 0x1p-53;
    return ll_precision_parse(v->o->session.precision, &p) == LL_OK ? unit[p] : unit[0];
}

static ll_err nudge(verifier *v, int64_t step, int draw)
{
    double by = half_unit(v) * (draw < DRAWS ? 1 : 1 << draw % 3);
    for (int i = 0; i < v->n_item; i++) {
        const item *x = &v->items[i];
        if (x->kind != PARAMETER) continue;
        void *data = ll_exec_data(v->nudged->e, x->serial, 0);
        uint64_t stream = ll_stream(x->name, (uint64_t)(step * DRAWS + draw));
        for (int64_t k = 0, n = ll_numel(&x->type.shape); k < n; k++) {
            double sign = ll_below_at(1, stream, (uint64_t)k, 2) ? 1 : -1;
            ll_store(data, x->type.dtype, k, ll_load(data, x->type.dtype, k) * (1 + sign * by));
        }
        TRY(ll_exec_changed(v->nudged->e, x->serial));
    }
    return LL_OK;
}

/* Keeps what the steps after this one start from. */
static void keep_start(verifier *v, int64_t step)
{
    v->since = step;
    for (int i = 0; i < v->n_item && v->alone; i++) {
        item *x = &v->items[i];
        if (!kept(x)) continue;
        if (!x->start)
            x->start = ll_arena_alloc(v->arena, ll_tensor_bytes(x->type.dtype, &x->type.shape) + 1);
        memcpy(x->start, ll_exec_data(v->alone->e, x->serial, 0),
               ll_tensor_bytes(x->type.dtype, &x->type.shape));
    }
}

/* The steps since then once more, nudged. On rank 0. */
static ll_err train_nudged(verifier *v, int64_t step, int draw)
{
    for (int i = 0; i < v->n_item; i++) {
        const item *x = &v->items[i];
        if (kept(x))
            TRY(ll_session_set(v->nudged, x->name, 0, x->start,
                               ll_tensor_bytes(x->type.dtype, &x->type.shape)));
    }
    v->nudged->step = (uint64_t)v->since;
    for (int64_t k = v->since + 1; k <= step; k++) {
        TRY(nudge(v, k, draw));
        TRY(v->o->feed(v->o->context, v->nudged, k));
        TRY(ll_session_run(v->nudged, v->o->lr));
    }
    return LL_OK;
}

/* What that changes, of the serial run. */
static ll_err nudged_noise(verifier *v, int64_t step, int draw)
{
    TRY(train_nudged(v, step, draw));
    for (int i = 0; i < v->n_item; i++) {
        item *x = &v->items[i];
        const ll_slot *s = &v->alone->p->slots[x->serial];
        finding f = compare(x, s, ll_exec_data(v->alone->e, x->serial, 0),
                            ll_exec_data(v->nudged->e, x->serial, 0), false);
        double scale = scale_of(v, x);
        x->noise[0] = fmax(x->noise[0], sqrt(f.off) / scale);
        x->noise[1] = fmax(x->noise[1], fabs(f.along) / scale / scale);
    }
    return LL_OK;
}

static ll_err draw_noise(verifier *v, int64_t step)
{
    ll_session_opts o = alone_opts(v);
    if (!v->nudged) TRY(ll_session_open(v->g, &o, &v->nudged));
    for (int draw = 0; draw < (v->wide ? 1 : DRAWS); draw++) TRY(nudged_noise(v, step, draw));
    return LL_OK;
}

static ll_err find_noise(verifier *v, int64_t step)
{
    for (int i = 0; i < v->n_item; i++) v->items[i].noise[0] = v->items[i].noise[1] = 0;
    TRY(ll_comm_agree(v->c, v->rank == 0 ? draw_noise(v, step) : LL_OK));
    for (int i = 0; i < v->n_item && v->n_rank > 1; i++)
        TRY(ll_comm_broadcast(v->c, v->items[i].noise, 2, LL_F64, 0, NULL));
    return LL_OK;
}

/* Do ranks make what they are held against, but for rounding of the usual size? name: this result
 * alone. */
static bool is_near(const verifier *v, double (*rel)[2], const char *name)
{
    bool near = true;
    for (int i = 0; i < v->n_item && near; i++) {
        double most = 0;
        if (kept(&v->items[i]) || (name && strcmp(v->items[i].name, name))) continue;
        for (int k = 0; k < v->n_item; k++)
            if (v->items[k].kind == v->items[i].kind) most = fmax(most, v->items[k].noise[0]);
        most = fmin(fmax(v->o->tolerance, MARGIN * most), CLOSE);
        near = rel[i][0] <= most && rel[i][1] <= most;
    }
    return near;
}

/* A step that was found wrong: is it a decision of rounding? Then it is no difference. */
static ll_err look_for_corner(verifier *v, int64_t step, double (*rel)[2])
{
    ll_verify_report *out = v->out;
    if (!is_near(v, rel, "loss")) return LL_OK; /* has no jumps */
    v->again = true;
    for (int t = DRAWS; t < DRAWS + TRIES && !out->ok; t++) {
        TRY(ll_comm_agree(v->c, v->rank == 0 ? train_nudged(v, step, t) : LL_OK));
        TRY(compare_all(v, false));
        measure(v, rel);
        out->ok = is_near(v, rel, NULL);
    }
    v->again = false;
    if (!out->ok) return LL_OK;
    if (!out->corners++) {
        out->corner_step = out->step;
        out->corner_rel_diff = out->rel_diff;
        memcpy(out->corner, out->name, sizeof out->corner);
    }
    out->name[0] = out->op[0] = '\0';
    return LL_OK;
}

/* Parameters and state of the ranks become the serial ones. */
static ll_err start_over(verifier *v, int64_t step)
{
    for (int i = 0; i < v->n_item; i++) {
        const item *x = &v->items[i];
        const void *serial;
        if (!kept(x)) continue;
        TRY(fetch(v, x, &serial));
        TRY(ll_session_set(v->cut, x->name, 0, serial,
                           ll_tensor_bytes(x->type.dtype, &x->type.shape)));
    }
    keep_start(v, step);
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
    TRY(ll_comm_agree(v->c, ll_session_open(v->g, &o, &v->cut)));
    ll_session_opts alone = alone_opts(v);
    ll_err rc = v->rank == 0 ? ll_session_open(v->g, &alone, &v->alone) : LL_OK;
    TRY(ll_comm_agree(v->c, rc));
    double bytes[2] = {v->alone ? (double)ll_session_bytes(v->alone) : 0,
                       (double)ll_session_bytes(v->cut)};
    if (v->n_rank > 1) TRY(ll_comm_allreduce(v->c, bytes, 2, LL_F64, LL_REDUCE_MAX, NULL));
    for (int i = 0; i < 2 && !v->wide; i++) v->out->bytes[i] = (size_t)bytes[i];
    return LL_OK;
}

static ll_err train_and_compare(verifier *v)
{
    double(*rel)[2] = (double(*)[2])ll_arena_alloc(v->arena, sizeof *rel * (size_t)(v->n_item + 1));
    bool lenient = v->o->tolerance >= STRICT;
    keep_start(v, 0);
    for (int64_t step = 1;
         step <= v->o->steps && v->out->ok && !(v->wide && v->out->unjudged_in_f64); step++) {
        TRY(ll_comm_agree(v->c, train_alone(v, step)));
        TRY(train_cut(v, step));
        TRY(compare_all(v, false));
        bool far = measure(v, rel) && lenient;
        if (far) TRY(find_noise(v, step));
        judge(v, step, rel, far);
        if (far && !v->out->ok && !v->wide) TRY(look_for_corner(v, step, rel));
        if (far && v->out->ok && !v->wide) TRY(start_over(v, step));
    }
    return LL_OK;
}

static ll_err verify(verifier *v)
{
    TRY(ll_mesh_parse(v->o->session.mesh ? v->o->session.mesh : "", &v->m));
    TRY(open_sessions(v));
    TRY(ll_verify_list(v));
    v->found = LL_NEW_ARRAY(v->arena, finding, v->n_item * v->n_rank + 1);
    size_t most = 1;
    for (int i = 0; i < v->n_item; i++)
        if (ll_tensor_bytes(v->items[i].type.dtype, &v->items[i].type.shape) > most)
            most = ll_tensor_bytes(v->items[i].type.dtype, &v->items[i].type.shape);
    if (!v->alone) v->buffer = ll_arena_alloc(v->arena, most);
    v->out->tensors = v->n_item;
    TRY(compare_all(v, true));
    judge_init(v);
    return train_and_compare(v);
}

static ll_err run(ll_graph *g, const ll_verify_opts *o, bool wide, ll_verify_report *out)
{
    ll_comm *c = o->session.comm;
    verifier v = {.o = o, .out = out, .c = c, .g = g, .wide = wide, .arena = ll_arena_new()};
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
