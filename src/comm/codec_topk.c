/* codec_topk.c: of each rank's input and residual, the largest elements by magnitude are sent, as a
 * sparse stream; the others stay in the residual and grow until they are among the largest (error
 * feedback: N. Strom, Interspeech 2015; D. Alistarh et al., NeurIPS 2018). Selection is in topk.c,
 * the sum over ranks in sparse_allreduce.c.
 *
 * Residuals of all ranks and the results up to now together are all inputs up to now: nothing is
 * lost, with values in few bits neither, for the difference goes back to a residual. */
#include "base/rng.h"
#include "comm/codec_int.h"
#include "comm/topk.h"

#include <math.h>

typedef struct topk {
    double share;
    int bits;
    ll_topk *select;
    ll_sparse *sum;
    uint32_t *index; /* [k] */
    float *value;    /* [k] */
    int64_t k;
} topk;

static ll_err parse(ll_codec *k, const char *settings, topk *t)
{
    char *end = NULL;
    if (!settings || !*settings) return ll_codec_bad(k, "SHARE is missing");
    t->share = strtod(settings, &end);
    if (end == settings || !(t->share > 0 && t->share <= 1) || (*end && *end != ':'))
        return ll_codec_bad(k, "SHARE is not a number above 0 and at most 1");
    if (*end) TRY(ll_codec_int(k, end + 1, 2, 8, &t->bits));
    return LL_OK;
}

static ll_err open_topk(ll_codec *k, const char *settings)
{
    topk *t = LL_NEW(k->arena, topk);
    k->own = t;
    TRY(parse(k, settings, t));
    t->k = (int64_t)llround(t->share * (double)k->n);
    if (t->k < 1 && k->n > 0) t->k = 1;
    TRY(ll_topk_open(k->n, t->k, &t->select));
    TRY(ll_sparse_open(k->n, t->k, t->bits, &t->sum));
    t->index = LL_TRY_ARRAY(k->arena, uint32_t, t->k + 1);
    t->value = LL_TRY_ARRAY(k->arena, float, t->k + 1);
    CHECK(t->index && t->value, LL_E_MEM, "codec \"%s\": %ld pairs", k->text, t->k);
    return LL_OK;
}

static void close_topk(ll_codec *k)
{
    topk *t = (topk *)k->own;
    if (!t) return;
    ll_topk_close(t->select);
    ll_sparse_close(t->sum);
}

/* The square of the residual's norm: what the selection left. Where it left little, the difference
 * of norms would be no more than its rounding. */
static double left(const ll_codec *k, double norm2)
{
    const topk *t = (const topk *)k->own;
    double taken = 0, rest = 0;
    for (int64_t i = 0; i < t->k; i++) taken += (double)t->value[i] * t->value[i];
    if (norm2 - taken > 0.05 * norm2 || !isfinite(norm2)) return norm2 - taken;
    for (int64_t i = 0; i < k->n; i++) rest += (double)k->residual[i] * k->residual[i];
    return rest;
}

static ll_err allreduce(ll_codec *k, ll_comm *c, float *data, int64_t step, const char *site)
{
    topk *t = (topk *)k->own;
    double norm2, lost2;
    ll_sparse_form used;
    ll_topk_take(t->select, data, k->residual, t->index, t->value, &norm2);
    lost2 = left(k, norm2);
    ll_svec mine = {.len = k->n, .count = t->k, .index = t->index, .value = t->value, .room = t->k};
    ll_sparse_call call = {.mine = &mine,
                           .data = data,
                           .form = k->form,
                           .seed = k->seed,
                           .stream = ll_stream(k->name, (uint64_t)step),
                           .residual = k->residual,
                           .lost2 = &lost2,
                           .site = site};
    TRY(ll_sparse_allreduce(t->sum, c, &call, &k->last.bytes, &used));
    k->last.error = norm2 > 0 ? sqrt(fmax(lost2, 0) / norm2) : norm2;
    k->last.form = ll_sparse_form_name(used);
    return LL_OK;
}

/* An index and a value each; what is fewer bits than that is not counted. */
static int64_t size(const ll_codec *k)
{
    const topk *t = (const topk *)k->own;
    int64_t sparse = t->k * (32 + (t->bits ? t->bits : 32)) / 8;
    return sparse < 4 * k->n ? sparse : 4 * k->n;
}

const ll_codec_kind ll_codecs_topk[] = {
    {.name = "topk",
     .form = "topk:SHARE[:BITS]",
     .help = "the largest SHARE (up to 1) by magnitude, values in f32 or 2 to 8 bits; feedback",
     .feedback = true,
     .open = open_topk,
     .close = close_topk,
     .size = size,
     .allreduce = allreduce},
    {0}};
