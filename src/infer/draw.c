/* draw.c: which token comes next. */
#include "infer/draw.h"

#include "base/heap.h"
#include "base/num.h"
#include "base/rng.h"
#include "kern/cpu/row.h"
#include "kern/cpu/vecmath.h"

ll_err ll_draw_check(const ll_draw_opts *s)
{
    CHECK(s->temperature >= 0, LL_E_ARG, "--temperature is %g, expected 0 or more", s->temperature);
    CHECK(s->top_p > 0 && s->top_p <= 1, LL_E_ARG,
          "--top-p is %g, expected above 0 and at most 1 (1: all tokens)", s->top_p);
    CHECK(s->min_p >= 0 && s->min_p <= 1, LL_E_ARG, "--min-p is %g, expected 0 to 1", s->min_p);
    CHECK(s->repetition >= 1e-3 && s->repetition <= 1e3, LL_E_ARG,
          "--repetition is %g, expected 0.001 to 1000 (1: no penalty)", s->repetition);
    return LL_OK;
}

static bool likelier(const ll_draw_candidate *a, const ll_draw_candidate *b)
{
    return a->logit != b->logit ? a->logit > b->logit : a->token < b->token;
}

LL_HEAP(ll_draw_candidate, likelier)

/* Tokens that were there; each is of its own logit, however often it was. */
static void penalise(const ll_draw_from *from, double by, float *x)
{
    memcpy(x, from->logits, sizeof *x * (size_t)from->vocab);
    for (int64_t i = 0; i < from->n; i++) {
        float was = from->logits[from->tokens[i]];
        x[from->tokens[i]] = (float)(was > 0 ? was / by : was * by);
    }
}

/* Logits in stretches: vocabularies are long, and few of their tokens likely. */
enum { STRETCH = 64 };
typedef struct among {
    const float *x;
    int64_t n;
    float top, by; /* a token weighs exp((x - top) by) */
} among;

static int64_t end_of(const among *a, int64_t from)
{
    return ll_min64(from + STRETCH, a->n);
}

static double weight_of(const among *a, int64_t from)
{
    const float *x = a->x + from, top = a->top, by = a->by;
    const int64_t n = end_of(a, from) - from;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += ll_expf((x[i] - top) * by);
    return (double)sum;
}

static double weight_of_all(const among *a)
{
    double sum = 0;
    for (int64_t i = 0; i < a->n; i += STRETCH) sum += weight_of(a, i);
    return sum;
}

/* The first of the likeliest. */
static int32_t likeliest(const among *a)
{
    int64_t i = 0;
    while (i + STRETCH < a->n && ll_row_top(a->x + i, STRETCH) < a->top) i += STRETCH;
    while (i + 1 < a->n && a->x[i] < a->top) i++;
    return (int32_t)i;
}

/* Of all, by where a part u of their weight ends. */
static int32_t draw_of_all(const among *a, double u)
{
    double left = u * weight_of_all(a);
    for (int64_t from = 0; from < a->n; from += STRETCH) {
        double sum = weight_of(a, from);
        if (left >= sum && end_of(a, from) < a->n) {
            left -= sum;
            continue;
        }
        for (int64_t i = from; i + 1 < end_of(a, from); i++)
            if ((left -= (double)ll_expf((a->x[i] - a->top) * a->by)) < 0) return (int32_t)i;
        return (int32_t)end_of(a, from) - 1;
    }
    return 0;
}

/* Candidates of a heap, the likeliest first. */
static void make_heap(ll_draw_candidate *h, int64_t n)
{
    for (int64_t i = n / 2 - 1; i >= 0; i--) heap_sift(h, n, i);
}

/* Takes number k out: those taken lie at the end, the first last. */
static void take(ll_draw_candidate *h, int64_t n, int64_t k)
{
    ll_draw_candidate x = h[0];
    h[0] = h[n - 1 - k];
    h[n - 1 - k] = x;
    heap_sift(h, n - 1 - k, 0);
}

/* A logit that k tokens have at least: so many stretches have one. */
static double floor_of(const among *a, int64_t k, ll_draw_candidate *room)
{
    int64_t n = 0;
    for (int64_t i = 0; i < a->n; i += STRETCH, n++)
        room[n] = (ll_draw_candidate){ll_row_top(a->x + i, end_of(a, i) - i), (int32_t)n};
    if (k > n) return -INFINITY;
    make_heap(room, n);
    for (int64_t i = 0; i + 1 < k; i++) take(room, n, i);
    return room[0].logit;
}

/* Those with this logit or more, as a heap. */
static int64_t gather(const among *a, double least, ll_draw_candidate *h)
{
    int64_t n = 0;
    for (int64_t from = 0; from < a->n; from += STRETCH) {
        if (ll_row_top(a->x + from, end_of(a, from) - from) < least) continue;
        for (int64_t i = from; i < end_of(a, from); i++)
            if (a->x[i] >= least) h[n++] = (ll_draw_candidate){a->x[i], (int32_t)i};
    }
    make_heap(h, n);
    return n;
}

/* Of the likeliest that count, in their order. What weighs less than all that top_p leaves out, by
 * the number of tokens, is none of them; within rounding. */
static int32_t draw_of_some(const among *a, const ll_draw_opts *s, double u, ll_draw_candidate *h)
{
    const double heat = s->temperature, near = 1e-3;
    double part = s->top_p > 0 && s->top_p < 1 ? s->top_p : 2, sum = 0, kept = 0;
    double least = -INFINITY;
    int64_t most = s->top_k > 0 && s->top_k < a->n ? s->top_k : a->n, k = 0;
    if (most < a->n) least = floor_of(a, most, h);
    if (s->min_p > 0) least = fmax(least, a->top + heat * (log(s->min_p) - near));
    if (part < 1) sum = weight_of_all(a);
    if (part < 1)
        least = fmax(least, a->top + heat * (log((1 - part) * sum / (double)a->n) - near));
    int64_t n = gather(a, least, h);
    for (; k < most && k < n; k++) {
        double p = exp((h[0].logit - a->top) / heat);
        if (k && (p < s->min_p || (part < 1 && kept >= part * sum))) break;
        take(h, n, k);
        kept += p;
    }
    double left = u * kept;
    for (int64_t i = 0; i + 1 < k; i++)
        if ((left -= exp((h[n - 1 - i].logit - a->top) / heat)) < 0) return h[n - 1 - i].token;
    return h[n - k].token;
}

int32_t ll_draw(const ll_draw_from *from, const ll_draw_opts *s, int64_t i, ll_draw_room *room)
{
    among a = {from->logits, from->vocab};
    if (s->repetition > 0 && s->repetition != 1) {
        penalise(from, s->repetition, room->logits);
        a.x = room->logits;
    }
    a.top = ll_row_top(a.x, a.n);
    a.by = (float)(1 / s->temperature);
    if (s->temperature <= 0 || isinf(a.by)) return likeliest(&a);
    double u = (double)ll_uniform_at(s->seed, ll_stream("generate", s->stream), (uint64_t)i);
    bool all = s->top_k <= 0 || s->top_k >= a.n;
    if (all && (s->top_p <= 0 || s->top_p >= 1) && s->min_p <= 0) return draw_of_all(&a, u);
    return draw_of_some(&a, s, u, room->heap);
}
