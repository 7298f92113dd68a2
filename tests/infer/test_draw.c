/* Tests of infer/draw.c: each draw beside one from all candidates in a row, in f64. */
#include "base/rng.h"
#include "infer/draw.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

enum { VOCAB = 1037, DRAWS = 400 };

static int likelier(const void *a, const void *b)
{
    const ll_draw_candidate *x = (const ll_draw_candidate *)a, *y = (const ll_draw_candidate *)b;
    if (x->logit != y->logit) return x->logit < y->logit ? 1 : -1;
    return (x->token > y->token) - (x->token < y->token);
}

static double weight(const ll_draw_candidate *c, double top, double heat)
{
    return exp((c->logit - top) / heat);
}

/* Candidates in their order; how many count. */
static int count(ll_draw_candidate *c, const ll_draw_opts *s)
{
    double top = -INFINITY, sum = 0, kept = 0;
    bool p = s->top_p > 0 && s->top_p < 1;
    bool k = s->top_k > 0 && s->top_k < VOCAB;
    for (int i = 0; i < VOCAB; i++) top = fmax(top, c[i].logit);
    for (int i = 0; i < VOCAB; i++) sum += weight(&c[i], top, s->temperature);
    if (!p && !k && s->min_p <= 0) return VOCAB;
    qsort(c, VOCAB, sizeof *c, likelier);
    int n = 0;
    for (; n < VOCAB && (!k || n < s->top_k); n++) {
        if (n && weight(&c[n], top, s->temperature) < s->min_p) break;
        if (p && kept >= s->top_p * sum) break;
        kept += weight(&c[n], top, s->temperature);
    }
    return n;
}

static int32_t plainly(const ll_draw_from *from, const ll_draw_opts *s, int64_t number)
{
    ll_draw_candidate c[VOCAB];
    bool was[VOCAB] = {0};
    for (int i = 0; i < VOCAB; i++) c[i] = (ll_draw_candidate){from->logits[i], i};
    for (int i = 0; i < from->n && s->repetition > 0; i++) {
        float *x = &c[from->tokens[i]].logit;
        if (was[from->tokens[i]]) continue;
        *x = (float)(*x > 0 ? *x / s->repetition : *x * s->repetition);
        was[from->tokens[i]] = true;
    }
    if (s->temperature <= 0) {
        qsort(c, VOCAB, sizeof *c, likelier);
        return c[0].token;
    }
    int n = count(c, s);
    double top = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++) top = fmax(top, c[i].logit);
    for (int i = 0; i < n; i++) sum += weight(&c[i], top, s->temperature);
    double left =
        sum * (double)ll_uniform_at(s->seed, ll_stream("generate", s->stream), (uint64_t)number);
    for (int i = 0; i + 1 < n; i++)
        if ((left -= weight(&c[i], top, s->temperature)) < 0) return c[i].token;
    return c[n - 1].token;
}

static void as_plainly(void **)
{
    static const ll_draw_opts how[] = {
        {.temperature = 0},
        {.temperature = 0, .repetition = 1.3},
        {.temperature = 1e-39}, /* whose inverse is no float */
        {.temperature = 1e-300, .top_k = 3},
        {.temperature = 1},
        {.temperature = 0.3, .repetition = 1.2},
        {.temperature = 3},
        {.temperature = 1, .top_k = 1},
        {.temperature = 2, .top_k = 7},
        {.temperature = 2, .top_k = 300},
        {.temperature = 2, .top_k = VOCAB + 5},
        {.temperature = 1, .top_p = 0.5},
        {.temperature = 2, .top_p = 0.999},
        {.temperature = 1.5, .min_p = 0.05},
        {.temperature = 1.5, .min_p = 1},
        {.temperature = 2, .top_k = 40, .top_p = 0.9, .min_p = 0.02, .repetition = 1.1}};
    static float x[VOCAB], room[VOCAB];
    static ll_draw_candidate heap[VOCAB];
    static const int32_t there[] = {3, 900, 3, 1036, 512, 64, 63};
    ll_draw_from from = {x, VOCAB, there, 7};
    for (int i = 0; i < VOCAB; i++) /* some of one logit: the first comes first */
        x[i] = floorf(64 * (float)ll_normal_at(5, 1, (uint64_t)i)) / 16;
    for (size_t k = 0; k < sizeof how / sizeof *how; k++)
        for (int i = 0; i < DRAWS; i++) {
            ll_draw_opts s = how[k];
            s.seed = 11 + k;
            int32_t got = ll_draw(&from, &s, i, &(ll_draw_room){room, heap});
            int32_t want = plainly(&from, &s, i);
            if (got != want) fail_msg("options %zu, draw %d: %d, want %d", k, i, got, want);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_plainly)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
