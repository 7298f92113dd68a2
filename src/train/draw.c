/* draw.c: which token comes next. */
#include "train/draw.h"

#include "base/rng.h"

#include <math.h>

ll_err ll_draw_check(const ll_draw_opts *s)
{
    CHECK(s->temperature >= 0, LL_E_ARG, "--temperature is %g, want 0 or more", s->temperature);
    CHECK(s->top_p > 0 && s->top_p <= 1, LL_E_ARG,
          "--top-p is %g, want above 0 and at most 1 (1: from all)", s->top_p);
    CHECK(s->min_p >= 0 && s->min_p <= 1, LL_E_ARG, "--min-p is %g, want 0 to 1", s->min_p);
    CHECK(s->repetition > 0 && isfinite(s->repetition), LL_E_ARG,
          "--repetition is %g, want above 0 (1: as they are)", s->repetition);
    return LL_OK;
}

static bool likelier(const ll_candidate *a, const ll_candidate *b)
{
    return a->logit != b->logit ? a->logit > b->logit : a->token < b->token;
}

static void sift(ll_candidate *h, int64_t n, int64_t i)
{
    ll_candidate x = h[i];
    for (int64_t k; (k = 2 * i + 1) < n; i = k) {
        if (k + 1 < n && likelier(&h[k + 1], &h[k])) k++;
        if (!likelier(&h[k], &x)) break;
        h[i] = h[k];
    }
    h[i] = x;
}

static void penalise(const ll_draw_from *from, ll_candidate *h, double by)
{
    for (int64_t i = 0; i < from->n; i++) {
        ll_candidate *c = &h[from->tokens[i]];
        if (c->token < 0) continue; /* once each */
        c->logit = (float)(c->logit > 0 ? c->logit / by : c->logit * by);
        c->token = -1 - c->token;
    }
    for (int64_t i = 0; i < from->vocab; i++)
        if (h[i].token < 0) h[i].token = -1 - h[i].token;
}

/* The likeliest come first out of a heap; those that count are drawn from in this order. */
static int32_t draw(ll_candidate *h, int64_t n, const ll_draw_opts *s, double u)
{
    int64_t first = 0;
    for (int64_t i = 1; i < n && s->temperature <= 0; i++)
        if (h[i].logit > h[first].logit) first = i;
    if (s->temperature <= 0) return h[first].token;
    int64_t most = s->top_k > 0 && s->top_k < n ? s->top_k : n, k = 0;
    double heat = s->temperature, sum = 0, kept = 0, top;
    for (int64_t i = n / 2 - 1; i >= 0; i--) sift(h, n, i);
    top = h[0].logit;
    double part = s->top_p > 0 && s->top_p < 1 ? s->top_p : 2;
    if (part < 1 || (most == n && s->min_p <= 0))
        for (int64_t i = 0; i < n; i++) sum += exp((h[i].logit - top) / heat);
    if (part > 1 && most == n && s->min_p <= 0) { /* of all: in any order that is always the same */
        double left = u * sum;
        for (; k + 1 < n; k++)
            if ((left -= exp((h[k].logit - top) / heat)) < 0) break;
        return h[k].token;
    }
    for (; k < most; k++) { /* popped ones lie at the end, the first last */
        double p = exp((h[0].logit - top) / heat);
        if (k && (p < s->min_p || (part < 1 && kept >= part * sum))) break;
        ll_candidate x = h[0];
        h[0] = h[n - 1 - k];
        h[n - 1 - k] = x;
        sift(h, n - 1 - k, 0);
        kept += p;
    }
    double left = u * kept;
    for (int64_t i = 0; i + 1 < k; i++)
        if ((left -= exp((h[n - 1 - i].logit - top) / heat)) < 0) return h[n - 1 - i].token;
    return h[n - k].token;
}

int32_t ll_draw(const ll_draw_from *from, const ll_draw_opts *s, int64_t i, ll_candidate *room)
{
    for (int64_t k = 0; k < from->vocab; k++) room[k] = (ll_candidate){from->logits[k], (int32_t)k};
    if (s->repetition > 0 && s->repetition != 1) penalise(from, room, s->repetition);
    float u = ll_uniform_at(s->seed, ll_stream("generate", s->stream), (uint64_t)i);
    return draw(room, from->vocab, s, (double)u);
}
