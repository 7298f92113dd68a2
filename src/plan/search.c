/* search.c: every way to cut a transformer, one after another. */
#include "plan/search.h"

#include "dev/gpu.h"

#include <math.h>
#include <stdio.h>

typedef struct walk {
    const ll_search *s;
    ll_arena *arena;
    ll_found *out;
    int capacity;
} walk;

static bool allowed(double asked, double v)
{
    return asked <= 0 || asked == v;
}

/* What is asked for, or all up to what is worth a thought. */
static double first(double asked)
{
    return asked > 0 ? asked : 1;
}

static double last(double asked, double most)
{
    return asked > 0 ? asked : most;
}

const char *ll_how_mesh(const ll_how *h, char out[LL_HOW_TEXT])
{
    const struct {
        const char *name;
        double n;
    } axes[] = {
        {"data", h->data}, {"sequence", h->context}, {"tensor", h->tensor}, {"pipe", h->pipe}};
    size_t at = 0;
    for (int i = 0; i < 4; i++)
        if (axes[i].n > 1 || (i == 0 && h->context * h->tensor * h->pipe == 1))
            at += (size_t)snprintf(out + at, LL_HOW_TEXT - at, "%s%s=%.0f", at ? "," : "",
                                   axes[i].name, axes[i].n);
    return out;
}

const char *ll_how_schedule(const ll_how *h)
{
    if (h->pipe <= 1) return "none";
    return h->schedule ? h->schedule : h->virtual_stages > 1 ? "interleaved" : "1f1b";
}

const char *ll_remake_name(ll_remake r)
{
    static const char *const names[] = {"none", "selective", "ffn", "full"};
    return names[r];
}

bool ll_plan_fits(const ll_search *s, const ll_outcome *o)
{
    return ll_lm_bytes_sum(&o->bytes) <= 1e9 * s->cluster->chip.memory &&
           (!s->memory || ll_lm_bytes_tensors(&o->bytes) <= s->memory);
}

static ll_err try_one(walk *w, const ll_how *h)
{
    const ll_search *s = w->s;
    LL_OWN(ll_arena) scratch = ll_arena_new();
    ll_candidate c = {.how = *h};
    w->out->tried++;
    TRY(ll_lm_step(s->cluster, s->model, h, scratch, false, &c.out));
    c.out.pipeline = NULL;
    c.how.piped = NULL;
    c.fits = ll_plan_fits(s, &c.out);
    LL_PUSH(w->arena, w->out->best, w->out->n, w->capacity, c);
    return LL_OK;
}

/* ZeRO, offload and recomputation of a mesh and micro-batch. What is not recomputed, nor laid in
 * the host's memory, is tried first: where it fits, nothing else can be quicker. */
static ll_err try_memory(walk *w, ll_how h)
{
    const ll_search *s = w->s;
    ll_piped piped[LL_REMAKE_FULL + 1] = {0};
    if (h.pipe > 1) h.piped = piped;
    for (int zero = 0; zero <= 3; zero++) {
        if (s->zero >= 0 && s->zero != zero) continue;
        if (zero && (h.system->zero_data ? 1 : h.context) * h.data <= 1 && s->zero < 0) continue;
        if (zero >= 2 && h.pipe > 1) continue;
        bool fits = false;
        for (int k = 0; !fits && k <= 2 * LL_REMAKE_FULL + 1; k++) {
            int r = k % (LL_REMAKE_FULL + 1);
            if (s->remake >= 0 && s->remake != r) continue;
            if (r == LL_REMAKE_FFN || (r == LL_REMAKE_SELECTIVE && h.system->attention)) continue;
            h.zero = zero, h.remake = (ll_remake)r, h.offload = k > LL_REMAKE_FULL;
            TRY(try_one(w, &h));
            fits = w->out->best[w->out->n - 1].fits;
        }
    }
    return LL_OK;
}

static ll_err try_pipes(walk *w, ll_how h)
{
    static const char *const schedules[] = {NULL, "zb-h1", "zb-h2"};
    const ll_search *s = w->s;
    double stage = s->model->layers / h.pipe;
    if (h.pipe <= 1) return try_memory(w, h);
    if (h.n_micro < h.pipe / 2) return LL_OK; /* mostly bubble */
    for (int v = 1; v <= 8 && v <= stage; v++) {
        if (fmod(stage, v) != 0 && v > 1) continue;
        if (v > 1 && (fmod(h.n_micro, h.pipe) != 0 || h.pipe > 64)) continue;
        int channels = 2 * (2 * v - (h.pipe == 2)); /* by NCCL */
        if (v > 1 && s->nccl && channels > LL_GPU_CHANNELS) continue;
        if (!allowed(s->virtual_stages, v)) continue;
        h.virtual_stages = v;
        for (int k = 0; k < (v == 1 ? 3 : 1); k++) {
            h.schedule = schedules[k];
            if (s->schedule && strcmp(s->schedule, ll_how_schedule(&h))) continue;
            TRY(try_memory(w, h));
        }
    }
    return LL_OK;
}

/* Micro-batches: what divides a rank's share of the batch. Of those above 64 the whole of it. */
static ll_err try_mesh(walk *w, ll_how h)
{
    enum { LARGE = 64 };
    const ll_search *s = w->s;
    double share = s->batch / h.data;
    if (share < 1 || fmod(s->batch, h.data) != 0) return LL_OK;
    for (double micro = 1; micro <= share;
         micro = micro == LARGE && share > LARGE ? share : micro + 1) {
        if (fmod(share, micro) != 0 || !allowed(s->micro_batch, micro)) continue;
        if (share / micro > 65536) continue;
        h.micro_batch = micro;
        h.n_micro = (int)(share / micro);
        TRY(try_pipes(w, h));
    }
    return LL_OK;
}

static int by_time(const void *first, const void *second)
{
    const ll_candidate *x = (const ll_candidate *)first, *y = (const ll_candidate *)second;
    if (x->fits != y->fits) return y->fits - x->fits;
    double i = ll_lm_bytes_sum(&x->out.bytes), k = ll_lm_bytes_sum(&y->out.bytes);
    float a = (float)x->out.step_s, b = (float)y->out.step_s; /* rounding is no difference */
    if (x->fits && a != b) return a > b ? 1 : -1;
    return (i > k) - (i < k);
}

/* Of one mesh and schedule, and whether they fit: 0. */
static int compare_kinds(const ll_candidate *x, const ll_candidate *y)
{
    const double of[][2] = {{x->fits, y->fits},
                            {x->how.data, y->how.data},
                            {x->how.tensor, y->how.tensor},
                            {x->how.pipe, y->how.pipe},
                            {x->how.context, y->how.context},
                            {x->how.virtual_stages, y->how.virtual_stages}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        if (of[i][0] != of[i][1]) return of[i][0] < of[i][1] ? -1 : 1;
    return strcmp(ll_how_schedule(&x->how), ll_how_schedule(&y->how));
}

/* Those of one kind in the order that they had. */
static int by_kind(const void *first, const void *second)
{
    const ll_candidate *x = *(const ll_candidate *const *)first,
                       *y = *(const ll_candidate *const *)second;
    int kinds = compare_kinds(x, y);
    return kinds ? kinds : (x > y) - (x < y);
}

/* Of those of a mesh and a schedule that take as long, to 0.5 %, the first. */
static void leave_likes(ll_found *f, ll_arena *arena)
{
    int n = 0;
    const ll_candidate **sorted = LL_NEW_ARRAY(arena, const ll_candidate *, f->n);
    bool *left = LL_NEW_ARRAY(arena, bool, f->n);
    for (int i = 0; i < f->n; i++) sorted[i] = &f->best[i];
    qsort(sorted, (size_t)f->n, sizeof *sorted, by_kind);
    for (int i = 0, first = 0; i < f->n; i++) {
        if (compare_kinds(sorted[i], sorted[first])) first = i;
        for (int k = first; k < i; k++)
            if (!left[sorted[k] - f->best] &&
                fabs(sorted[i]->out.step_s / sorted[k]->out.step_s - 1) <= 0.005)
                left[sorted[i] - f->best] = true;
    }
    for (int i = 0; i < f->n; i++)
        if (!left[i]) f->best[n++] = f->best[i];
    f->n = n;
}

/* Of what was asked for, what cannot be, and what could. Ranks have equal parts here, which train
 * does not ask for. */
static const char *why_none(const ll_search *s, ll_arena *a)
{
    double batch = s->batch, heads = s->model->heads, layers = s->model->layers;
    double each = s->data > 0 ? s->data : s->ranks, enough = each * ceil(batch / each);
    double share = batch / fmax(1, s->data);
    bool turns = s->virtual_stages > 1 || (s->schedule && !strcmp(s->schedule, "interleaved"));
    if (s->data > 0 && fmod(batch, s->data) != 0)
        return ll_arena_printf(
            a, "data=%.0f does not cut train.batch %.0f into equal parts: -s train.batch=%.0f",
            s->data, batch, enough);
    if (s->tensor > 0 && fmod(heads, s->tensor) != 0)
        return ll_arena_printf(a, "tensor=%.0f does not cut %.0f heads into equal parts", s->tensor,
                               heads);
    if (s->pipe > fmin(64, layers))
        return ll_arena_printf(a, "pipe=%.0f is more than %s%.0f", s->pipe,
                               layers < 64 ? "the model's layers, " : "", fmin(64, layers));
    if (s->pipe > 1 && s->zero >= 2)
        return ll_arena_printf(a, "parallel.zero=%d cannot be combined with a pipeline: use 0 or 1",
                               s->zero);
    if (turns)
        return ll_arena_printf(a,
                               "interleaved needs stages (pipe times virtual_stages) that divide "
                               "%.0f layers, and pipe "
                               "to divide a rank's micro-batches: use %s",
                               layers,
                               s->virtual_stages > 1 ? "another parallel.virtual_stages, or 0"
                                                     : "1f1b, zb-h1 or zb-h2");
    if (s->pipe > 1 && share < s->pipe / 2)
        return ll_arena_printf(
            a,
            "pipe=%.0f needs %.0f micro-batches or more, but train.batch=%.0f gives %.0f per rank",
            s->pipe, ceil(s->pipe / 2), batch, share);
    return ll_arena_printf(
        a,
        "tensor cuts %.0f heads, sequence positions and data a train.batch of "
        "%.0f into equal parts, pipe is at most %.0f layers: -s train.batch=%.0f would do",
        heads, batch, layers, enough);
}

ll_err ll_plan_search(const ll_search *s, ll_arena *arena, ll_found *out)
{
    enum { SHORTEST = 256 }; /* tokens of a rank's part of a sequence */
    walk w = {.s = s, .arena = arena, .out = out};
    *out = (ll_found){0};
    CHECK(s->ranks >= 1 && s->batch >= 1, LL_E_ARG, "expected ranks and a batch");
    double chips = s->cluster->node.chips, parts = fmin(16, fmax(1, s->model->seq / SHORTEST));
    for (double t = first(s->tensor); t <= last(s->tensor, fmin(s->ranks, chips)); t++)
        for (double p = 1; p <= fmin(64, s->ranks / t) && p <= s->model->layers; p++)
            for (double c = first(s->context); c <= last(s->context, parts); c++) {
                double d = s->ranks / (t * p * c);
                if (d != floor(d) || fmod(s->model->heads, t) != 0) continue;
                if (!allowed(s->pipe, p) || !allowed(s->data, d)) continue;
                TRY(try_mesh(&w, (ll_how){.data = d,
                                          .tensor = t,
                                          .pipe = p,
                                          .context = c,
                                          .virtual_stages = 1,
                                          .sequence = t > 1,
                                          .precision = s->precision,
                                          .system = s->system}));
            }
    CHECK(out->n, LL_E_ARG, "no plan of %.0f ranks: %s", s->ranks, why_none(s, arena));
    qsort(out->best, (size_t)out->n, sizeof *out->best, by_time);
    leave_likes(out, arena);
    return LL_OK;
}

ll_training ll_train_cost(const ll_cluster *c, double ranks, double step_s, double steps,
                          double state_bytes)
{
    const ll_expense *e = &c->cost;
    double nodes = ceil(ranks / c->node.chips), mtbf = 3600 * e->mtbf / ranks;
    ll_training t = {.steps = steps, .checkpoint_s = state_bytes / (1e9 * e->checkpoint * nodes)};
    /* The interval at which what checkpoints take and what failures lose come to the least. */
    t.interval_s = fmax(step_s, sqrt(2 * t.checkpoint_s * mtbf));
    double lost = t.checkpoint_s / t.interval_s + (t.interval_s / 2 + 60 * e->restart) / mtbf;
    t.goodput = 1 / (1 + lost);
    double s = steps * step_s / t.goodput;
    t.hours = s / 3600;
    t.failures = s / mtbf;
    t.kwh = ranks * e->watts * t.hours / 1000;
    t.price = ranks * e->price * t.hours;
    t.co2_kg = t.kwh * e->carbon / 1000;
    return t;
}

const char *ll_outcome_bound(const ll_outcome *o)
{
    const struct {
        double s;
        const char *what;
    } parts[] = {{o->compute_s - o->tensor_s, "the chips' arithmetic and memory"},
                 {o->tensor_s, "exchanges over axes tensor and sequence"},
                 {o->bubble_s, "the pipeline's bubble"},
                 {o->data_s, "sums over axis data"},
                 {o->update_s, "the update of parameters"},
                 {o->wait_s, "waiting for the slowest rank"}};
    int most = 0;
    for (int i = 1; i < 6; i++)
        if (parts[i].s > parts[most].s) most = i;
    return parts[most].what;
}

/* What Loopline itself does. */
const ll_system ll_system_loopline = {.name = "Loopline",
                                      .attention = 1,
                                      .overlap_data = true,
                                      .gathers = 1,
                                      .grad_bytes = 4,
                                      .param_bytes = 4,
                                      .state_bytes = 8,
                                      .loss_bytes = 2,
                                      .zero_data = true,
                                      .lean = true,
                                      .overlap_pipe = true,
                                      .balanced = true};
