/* ll_attend and ll_rope against plain computations: groups, other keys than queries, causal from
 * either end, masks of every shape, queries that see nothing; what is refused. Gradients are
 * test_op's. */
#include "base/types.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void must(ll_err e)
{
    if (e != LL_OK) fail_msg("%s\n%s", ll_error_text(), ll_error_frames());
}

static float number(int which, int64_t i)
{
    return (float)sin(1.3 * (double)i + 7.1 * which + 0.01 * (double)(i * i % 97));
}

typedef struct call {
    int64_t b, t, s, h, n, d, e;
    ll_causal causal;
    int64_t mask[4]; /* shape; all 0: none */
    bool whole;      /* of integers, every third 0; the first row of all 0 */
} call;

static const call calls[] = {
    {2, 3, 3, 2, 2, 4, 4, LL_SEES_ALL, {0}, false},
    {2, 5, 5, 4, 2, 3, 3, LL_CAUSAL, {0}, false},
    {1, 3, 7, 6, 1, 5, 2, LL_CAUSAL, {0}, false},
    {2, 3, 7, 3, 3, 2, 4, LL_CAUSAL_ENDS, {0}, false},
    {1, 7, 4, 2, 1, 3, 3, LL_CAUSAL_ENDS, {0}, false}, /* the first three see no key */
    {2, 4, 5, 4, 2, 3, 3, LL_SEES_ALL, {2, 4, 4, 5}, false},
    {2, 4, 5, 4, 2, 3, 3, LL_CAUSAL_ENDS, {1, 4, 1, 5}, false},
    {2, 4, 6, 4, 4, 3, 3, LL_SEES_ALL, {2, 1, 1, 6}, true},
    {3, 4, 6, 2, 1, 3, 3, LL_CAUSAL, {1, 1, 4, 6}, true},
    {1, 210, 230, 2, 1, 3, 5, LL_CAUSAL_ENDS, {1, 1, 210, 230}, true}, /* several blocks */
    {1, 130, 99, 2, 2, 17, 17, LL_SEES_ALL, {1, 1, 1, 99}, false},
};

static double mask_at(const call *c, int64_t b, int64_t h, int64_t t, int64_t s)
{
    const int64_t at[4] = {b, h, t, s};
    int64_t i = 0;
    for (int k = 0; k < 4; k++) i = i * c->mask[k] + (c->mask[k] > 1 ? at[k] : 0);
    if (!c->mask[0]) return 0;
    if (!c->whole) return (double)number(4, i);
    return i % 3 == 0 || i / c->mask[3] == 0 ? -INFINITY : 0;
}

static double wanted(const call *c, int64_t i)
{
    int64_t e = i % c->e, h = i / c->e % c->h, t = i / c->e / c->h % c->t,
            b = i / c->e / c->h / c->t;
    int64_t n = h / (c->h / c->n), last = c->s - 1;
    double sum = 0, all = 0, score[256], top = -INFINITY;
    if (c->causal) last = c->causal == LL_CAUSAL ? t : t + c->s - c->t;
    if (last >= c->s) last = c->s - 1;
    for (int64_t s = 0; s <= last; s++) {
        score[s] = 0;
        for (int64_t d = 0; d < c->d; d++)
            score[s] += (double)number(1, ((b * c->t + t) * c->h + h) * c->d + d) *
                        (double)number(2, ((b * c->s + s) * c->n + n) * c->d + d);
        score[s] = score[s] / sqrt((double)c->d) + mask_at(c, b, h, t, s);
        top = fmax(top, score[s]);
    }
    for (int64_t s = 0; s <= last && top > -INFINITY; s++) {
        sum += exp(score[s] - top);
        all += exp(score[s] - top) * (double)number(3, ((b * c->s + s) * c->n + n) * c->e + e);
    }
    return sum > 0 ? all / sum : 0;
}

static void set(ll_session *s, const char *name, int which, ll_shape shape)
{
    int64_t n = ll_numel(&shape);
    float *x = malloc(sizeof *x * (size_t)n);
    for (int64_t i = 0; i < n; i++) x[i] = number(which, i);
    must(ll_session_set(s, name, 0, x, sizeof *x * (size_t)n));
    free(x);
}

static void set_mask(ll_session *s, const call *c)
{
    const int64_t *m = c->mask;
    if (!m[0]) return;
    if (!c->whole) {
        set(s, "mask", 4, LL_SHAPE(m[0], m[1], m[2], m[3]));
        return;
    }
    int64_t n = m[0] * m[1] * m[2] * m[3];
    int32_t *x = malloc(sizeof *x * (size_t)n);
    for (int64_t i = 0; i < n; i++) x[i] = i % 3 == 0 || i / m[3] == 0 ? 0 : 1 + (int32_t)i % 2;
    must(ll_session_set(s, "mask", 0, x, sizeof *x * (size_t)n));
    free(x);
}

static void attend(const call *c, const char *machine)
{
    ll_graph *g = ll_graph_new("attend");
    ll_shape q = LL_SHAPE(c->b, c->t, c->h, c->d), k = LL_SHAPE(c->b, c->s, c->n, c->d);
    ll_shape v = LL_SHAPE(c->b, c->s, c->n, c->e), o = LL_SHAPE(c->b, c->t, c->h, c->e);
    ll_attend_opts opts = {.causal = c->causal};
    if (c->mask[0])
        opts.mask = ll_batch(g, "mask", c->whole ? LL_I32 : LL_F32,
                             LL_SHAPE(c->mask[0], c->mask[1], c->mask[2], c->mask[3]));
    ll_val y = ll_attend(g, ll_batch(g, "q", LL_F32, q), ll_batch(g, "k", LL_F32, k),
                         ll_batch(g, "v", LL_F32, v), &opts);
    ll_graph_update(g, ll_state(g, "out", o, (ll_init){LL_ZEROS, 0}), y);
    ll_session *s;
    must(ll_session_open(g, &(ll_session_opts){.machine = machine}, &s));
    set(s, "q", 1, q);
    set(s, "k", 2, k);
    set(s, "v", 3, v);
    set_mask(s, c);
    must(ll_session_run(s, 0));
    int64_t n = ll_numel(&o);
    float *out = malloc(sizeof *out * (size_t)n);
    must(ll_session_get(s, "out", out, sizeof *out * (size_t)n));
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)out[i] - wanted(c, i)) < 3e-6))
            fail_msg("call %d on %s, element %lld: %g, want %g", (int)(c - calls), machine,
                     (long long)i, (double)out[i], wanted(c, i));
    free(out);
    ll_session_close(s);
    ll_graph_free(g);
}

static void values(void **)
{
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        attend(&calls[i], "ref");
        attend(&calls[i], "cpu");
    }
}

static void rope(void **)
{
    const int64_t b = 2, t = 5, h = 3, d = 6;
    for (int interleaved = 0; interleaved < 2; interleaved++) {
        ll_graph *g = ll_graph_new("rope");
        ll_shape shape = LL_SHAPE(b, t, h, d);
        ll_val y = ll_rope(g, ll_batch(g, "x", LL_F32, shape), 100, interleaved);
        ll_graph_update(g, ll_state(g, "out", shape, (ll_init){LL_ZEROS, 0}), y);
        ll_session *s;
        must(ll_session_open(g, &(ll_session_opts){.machine = "cpu"}, &s));
        set(s, "x", 1, shape);
        must(ll_session_run(s, 0));
        float out[2 * 5 * 3 * 6];
        must(ll_session_get(s, "out", out, sizeof out));
        for (int64_t i = 0; i < b * t * h; i++)
            for (int64_t p = 0; p < d / 2; p++) {
                int64_t x = i * d + (interleaved ? 2 * p : p), z = x + (interleaved ? 1 : d / 2);
                double angle = (double)(i / h % t) / pow(100, 2 * (double)p / (double)d);
                double u = (double)number(1, x), w = (double)number(1, z);
                assert_true(fabs((double)out[x] - (u * cos(angle) - w * sin(angle))) < 1e-6);
                assert_true(fabs((double)out[z] - (u * sin(angle) + w * cos(angle))) < 1e-6);
            }
        ll_session_close(s);
        ll_graph_free(g);
    }
}

static void refuse(ll_shape q, ll_shape k, ll_shape mask, const char *want)
{
    ll_graph *g = ll_graph_new("t");
    ll_val key = ll_batch(g, "k", LL_F32, k);
    ll_attend_opts o = {.mask = mask.n ? ll_batch(g, "m", LL_F32, mask) : (ll_val){0}};
    ll_attend(g, ll_batch(g, "q", LL_F32, q), key, key, &o);
    assert_int_not_equal(ll_graph_check(g), LL_OK);
    if (!strstr(ll_error_text(), want)) fail_msg("\"%s\" has no \"%s\"", ll_error_text(), want);
    ll_graph_free(g);
}

static void refusals(void **)
{
    const ll_shape q = LL_SHAPE(2, 3, 4, 8), none = LL_SCALAR;
    refuse(q, LL_SHAPE(2, 5, 3, 8), none, "and h a multiple of n");
    refuse(q, LL_SHAPE(2, 5, 8), none, "q [2,3,4,8], k [2,5,8]");
    refuse(q, LL_SHAPE(2, 5, 2, 7), none, "loop d runs over 8 and over 7");
    refuse(q, LL_SHAPE(2, 5, 2, 8), LL_SHAPE(3, 4),
           "the mask is [3,4], expected [2,4,3,5], any of");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(values), cmocka_unit_test(rope),
                                       cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
