/* verify_noise.c: what rounding does, and what it does not.
 *
 * Rank 0 trains serially once more, with every parameter changed by half a unit of the last place
 * of what products read before every step, and changed back behind it. What that changes of a
 * block, in norm and along its value, is the block's noise.
 * 1. A block that is off by no more than PART tolerances, or by last bits of its tensor, is
 *    right. So is one that is off by MARGIN times its noise at most; noise is remembered, and
 *    drawn again where a later step is odd by it.
 * 2. In f32 a block that is off by more is wrong where that is GROSS, or MUCH times its noise;
 *    what is between, f64 judges. Whole results and gradients may be off by as much as the
 *    loudest of them: one activation more that crosses relu's corner, and a tensor's noise is ten
 *    times as large.
 * 3. Three draws may all miss a corner that the ranks' rounding crosses. So before a step is told
 *    wrong in f32, TRIES more are made, the ranks held against each: where everything is near one
 *    of them, to rounding and to CLOSE, ranks make what a serial run makes but for one decision
 *    of rounding. That is told. A kernel that is wrong in f32 alone is near none; and an update
 *    that is wrong where no gradient is, is none.
 * 4. In bf16 no other run judges: what is off by more than noise is wrong, after as many draws.
 *    Its half unit moves more than ranks do, which round the same numbers: they are off by 1e-6
 *    to 1e-2, and MARGIN is small; few numbers may be off by LEAST. Blocks that noise alone
 *    excuses are counted and told. */
#include "verify/verify_int.h"

#include "base/rng.h"

static const double MARGIN[2] = {16, 4}; /* f32 and f64; bf16 and less */
static const double MUCH = 4096, GROSS = 0.25, CLOSE = 1e-3, PART = 100;
static const double LEAST = 0x1p-7; /* two units of bf16, which a square is off by */
static const double ACROSS = 8;     /* noise lies along a value by this part of its norm at least */
static const double TELL = 0.05;    /* of its norm: a block that is no further off is judged */
enum { DRAWS = 3 };  /* one may be small by luck; in f64, where mistakes are far off, one will do */
enum { TRIES = 24 }; /* more, before something is told wrong; of 1, 2 and 4 halves in turn in f32 */

/* ---- a nudged run ---- */

static double half_unit(const verifier *v)
{
    static const double unit[LL_N_PRECISION] = {0x1p-24, 0x1p-11, 0x1p-9, 0x1p-4, 0x1p-4};
    return v->wide ? 0x1p-53 : unit[v->precision];
}

static void *keep(verifier *v, const item *x, void *room)
{
    size_t bytes = ll_tensor_bytes(x->type.dtype, &x->type.shape);
    return room ? room : ll_arena_alloc(v->arena, bytes + 1);
}

/* Of one parameter; back: what to add behind the step. */
static void nudge_all(void *data, void *back, ll_dtype t, int64_t n, double by, uint64_t stream)
{
    enum { BITS = 32 };
    uint64_t signs = 0;
    for (int64_t k = 0; k < n; k++, signs >>= 1) {
        if (k % BITS == 0) signs = ll_below_at(1, stream, (uint64_t)(k / BITS), 1ull << BITS);
        double was = ll_load(data, t, k);
        ll_store(data, t, k, was * (1 + (signs & 1 ? by : -by)));
        ll_store(back, t, k, was - ll_load(data, t, k));
    }
}

static ll_err nudge(verifier *v, int64_t step, int draw)
{
    double by = half_unit(v) * (draw < DRAWS || v->narrow ? 1 : 1 << draw % 3);
    LL_EACH (item, x, v->items, v->n_item) {
        if (x->kind != PARAMETER) continue;
        x->back = keep(v, x, x->back);
        nudge_all(ll_exec_data(v->nudged->e, x->serial, 0), x->back, x->type.dtype,
                  ll_numel(&x->type.shape), by,
                  ll_stream(x->name, (uint64_t)(step * (DRAWS + TRIES) + draw)));
        TRY(ll_exec_changed(v->nudged->e, x->serial));
    }
    return LL_OK;
}

/* The nudge itself is no noise of the parameter that the step makes. */
static ll_err nudge_back(verifier *v)
{
    LL_EACH (const item, x, v->items, v->n_item) {
        if (x->kind != PARAMETER) continue;
        void *data = ll_exec_data(v->nudged->e, x->serial, 0);
        for (int64_t k = 0, n = ll_numel(&x->type.shape); k < n; k++)
            ll_store(data, x->type.dtype, k,
                     ll_load(data, x->type.dtype, k) + ll_load(x->back, x->type.dtype, k));
        TRY(ll_exec_changed(v->nudged->e, x->serial));
    }
    return LL_OK;
}

void ll_verify_keep_start(verifier *v, int64_t step)
{
    v->since = step;
    for (int i = 0; i < v->n_item && v->alone; i++) {
        item *x = &v->items[i];
        if (!ll_verify_kept(x)) continue;
        x->start = keep(v, x, x->start);
        memcpy(x->start, ll_exec_data(v->alone->e, x->serial, 0),
               ll_tensor_bytes(x->type.dtype, &x->type.shape));
    }
}

/* The steps since then once more, nudged. On rank 0. */
static ll_err train_nudged(verifier *v, int64_t step, int draw)
{
    LL_EACH (const item, x, v->items, v->n_item) {
        if (ll_verify_kept(x))
            TRY(ll_session_set(v->nudged, x->name, 0, x->start,
                               ll_tensor_bytes(x->type.dtype, &x->type.shape)));
    }
    v->nudged->step = (uint64_t)v->since;
    for (int64_t k = v->since + 1; k <= step; k++) {
        TRY(v->o->feed(v->o->context, v->nudged, k)); /* which may prune */
        TRY(nudge(v, k, draw));
        TRY(ll_session_run(v->nudged, v->o->lr));
        TRY(nudge_back(v));
    }
    return LL_OK;
}

/* What that changes, of the serial run. */
static ll_err draw_noise(verifier *v, int64_t step, int draw, double (*f)[2])
{
    TRY(train_nudged(v, step, draw));
    LL_EACH (const item, x, v->items, v->n_item) {
        const ll_slot *s = &v->alone->p->slots[x->serial];
        ll_verify_compare(x, s, ll_exec_data(v->alone->e, x->serial, 0),
                          ll_exec_data(v->nudged->e, x->serial, 0), false, f);
        for (int64_t k = 0; k < x->n_block; k++) {
            block *b = &v->blocks[x->first + k];
            b->noise[0] = fmax(b->noise[0], sqrt(f[k][0]));
            b->noise[1] = fmax(b->noise[1], b->size > 0 ? fabs(f[k][1]) / b->size : 0);
        }
    }
    return LL_OK;
}

/* ---- what it explains ---- */

/* Times the most that a block may be off: as far as is known, and at most. */
static void weigh(const verifier *v, const item *x, int64_t k, doubt *most)
{
    const block *b = &v->blocks[x->first + k];
    const double *f = v->part[x->first + k];
    double least = fmax(PART * v->o->tolerance * b->size, b->least);
    double margin = MARGIN[v->narrow];
    if (v->narrow) least = fmax(least, fmin(4 * half_unit(v), LEAST) * b->size);
    double noise[2] = {b->noise[0], fmax(b->noise[1], b->noise[0] / ACROSS)};
    double off[2] = {sqrt(f[0]), 0};
    if (!ll_verify_kept(x) && b->size > 0) off[1] = fabs(f[1]) / b->size;
    if (off[0] <= fmax(least, TELL * b->size)) v->judged[x->first + k] = 1;
    for (int t = 0; t < 2; t++) {
        double may = fmax(least, margin * noise[t]), at_most = may;
        if (!v->wide && !v->narrow) at_most = fmax(may, fmin(GROSS * b->size, MUCH * noise[t]));
        bool worse = most->bad > 1 ? off[t] / at_most > most->bad : off[t] / may > most->odd;
        if (worse || (most->bad <= 1 && off[t] > at_most)) most->block = (double)k;
        most->odd = fmax(most->odd, off[t] / may);
        most->bad = fmax(most->bad, off[t] / at_most);
    }
}

ll_err ll_verify_doubt(verifier *v, double *odd, double *bad)
{
    memset(v->doubts, 0, sizeof *v->doubts * (size_t)(v->n_item * v->n_rank));
    *odd = *bad = 0;
    if (!v->lenient) return LL_OK;
    for (int i = 0; i < v->n_item; i++)
        for (int64_t k = 0; k < v->items[i].n_block; k++)
            weigh(v, &v->items[i], k, &v->doubts[i * v->n_rank + v->rank]);
    if (v->n_rank > 1)
        TRY(ll_comm_allreduce(v->c, v->doubts, (int64_t)v->n_item * v->n_rank * N_DOUBT, LL_F64,
                              LL_REDUCE_SUM, &(ll_coll_opts){.site = "doubts"}));
    for (int i = 0; i < v->n_item * v->n_rank; i++) {
        *odd = fmax(*odd, v->doubts[i].odd);
        *bad = fmax(*bad, v->doubts[i].bad);
    }
    return LL_OK;
}

double ll_verify_loudest(const verifier *v, item_kind of, int k)
{
    double most = 0;
    LL_EACH (const item, x, v->items, v->n_item) {
        const block *b = &v->blocks[x->first];
        double scale = ll_verify_scale(v, x);
        if (x->kind == of) most = fmax(most, b->noise[k] / scale * (k ? b->size / scale : 1));
    }
    double least = v->wide ? v->o->tolerance : fmin(GROSS, MUCH * most);
    return fmax(least, MARGIN[0] * most);
}

static ll_err draw(verifier *v, int64_t step, int number, double (*f)[2])
{
    ll_session_opts o = ll_verify_alone(v);
    ll_err rc = LL_OK;
    if (v->alone && !v->nudged) rc = ll_session_open(v->g, &o, &v->nudged);
    if (v->alone && rc == LL_OK) rc = draw_noise(v, step, number, f);
    TRY(ll_comm_agree(v->c, rc));
    if (v->n_rank == 1) return LL_OK;
    return ll_comm_broadcast(v->c, v->blocks, v->n_block * N_BLOCK, LL_F64, 0,
                             &(ll_coll_opts){.site = "noise"});
}

ll_err ll_verify_find_noise(verifier *v, int64_t step, bool far, double *odd, double *bad)
{
    int least = far && !v->wide ? DRAWS : 1, most = DRAWS + (v->narrow ? TRIES : 0);
    LL_OWN(ll_arena) a = ll_arena_new();
    double(*f)[2] = (double(*)[2])ll_arena_alloc(a, sizeof *f * (size_t)v->n_block);
    for (int64_t k = 0; k < v->n_block; k++) v->blocks[k].noise[0] = v->blocks[k].noise[1] = 0;
    for (int n = 1; n <= most; n++) {
        TRY(draw(v, step, n - 1, f));
        TRY(ll_verify_doubt(v, odd, bad));
        if ((n >= least && *odd <= 1) || (n >= DRAWS && *bad <= 1) || (far && v->wide)) break;
    }
    return LL_OK;
}

/* ---- corners ---- */

/* Do ranks make the tensor that they are held against, but for rounding of the usual size? */
static bool is_near(const verifier *v, const item *x, const double rel[2])
{
    double most = 0;
    if (ll_verify_kept(x)) return true; /* that is asked of its blocks */
    for (int k = 0; k < v->n_item; k++)
        if (v->items[k].kind == x->kind)
            most = fmax(most,
                        v->blocks[v->items[k].first].noise[0] / ll_verify_scale(v, &v->items[k]));
    most = fmin(fmax(v->o->tolerance, MARGIN[0] * most), CLOSE);
    return rel[0] <= most && rel[1] <= most;
}

/* May what is wrong be a corner's? The loss has no jumps, and a step makes no jump that gradients
 * and results have not. */
static bool may_be_corner(const verifier *v, double (*rel)[2])
{
    bool jumps = false, near = true;
    for (int i = 0; i < v->n_item; i++) {
        const item *x = &v->items[i];
        if (!strcmp(x->name, "loss")) near = is_near(v, x, rel[i]);
        if (ll_verify_kept(x)) continue;
        jumps |= rel[i][0] > v->o->tolerance;
        for (int r = 0; r < v->n_rank; r++) jumps |= v->doubts[i * v->n_rank + r].odd > 1;
    }
    return near && jumps && !v->narrow;
}

/* Rank 0: trains, nudged, and says whether its own pieces are near what that makes. */
static ll_err try_here(verifier *v, int64_t step, int number, double (*rel)[2], double *near)
{
    TRY(train_nudged(v, step, number));
    ll_verify_forget(v);
    *near = 1;
    for (int i = 0; i<v->n_item && * near> 0; i++) {
        const item *x = &v->items[i];
        doubt d = {0};
        ll_verify_compare_item(v, i, ll_verify_data(v->nudged, x, x->serial, NULL), false);
        ll_verify_measure_item(v, i, rel[i]);
        for (int64_t k = 0; k < x->n_block; k++) weigh(v, x, k, &d);
        *near = is_near(v, x, rel[i]) && d.odd <= 1;
    }
    return LL_OK;
}

/* And all ranks'. Collective. */
static ll_err try_all(verifier *v, int64_t step, int number, double (*rel)[2])
{
    double near = 0, odd, bad;
    TRY(ll_comm_agree(v->c, v->alone ? try_here(v, step, number, rel, &near) : LL_OK));
    if (v->n_rank > 1) TRY(ll_comm_broadcast(v->c, &near, 1, LL_F64, 0, NULL));
    if (near == 0) return LL_OK;
    TRY(ll_verify_compare_all(v, false));
    ll_verify_measure(v, rel);
    TRY(ll_verify_doubt(v, &odd, &bad));
    v->out->ok = odd <= 1;
    for (int i = 0; i < v->n_item; i++) v->out->ok &= is_near(v, &v->items[i], rel[i]);
    return LL_OK;
}

ll_err ll_verify_corner(verifier *v, int64_t step, double (*rel)[2])
{
    ll_verify_report *out = v->out;
    if (!may_be_corner(v, rel)) return LL_OK;
    v->again = true;
    for (int t = DRAWS; t < DRAWS + TRIES && !out->ok; t++) TRY(try_all(v, step, t, rel));
    v->again = false;
    if (!out->ok) return LL_OK;
    if (!out->corners++) {
        out->corner_step = out->step;
        out->corner_rel_diff = out->rel_diff;
        memcpy(out->corner, out->name, sizeof out->corner);
    }
    out->name[0] = out->op[0] = out->part[0] = '\0';
    return LL_OK;
}
