/* Generation: logits of sequences that go on, in chunks and one by one, side by side, against those
 * of the whole sequence at once; packed weights; which tokens are drawn. */
#include "base/file.h"
#include "exec/session.h"
#include "kern/blocks.h"
#include "pass/packed.h"
#include "tmpdir.h"
#include "token/gguf_made.h"
#include "infer/generate.h"
#include "weights/import.h"
#include "run/setup.h"
#include "no_error.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static ll_err copy_from(void *user, ll_session *s)
{
    ll_session *from = (ll_session *)user;
    for (int i = 1; i < from->g->n_value; i++) {
        const ll_value *v = &from->g->values[i];
        size_t bytes = (size_t)ll_numel(&v->type.shape) * sizeof(float);
        if (v->kind != LL_PARAM || v->node >= 0) continue;
        float *x = (float *)malloc(bytes);
        ll_err rc = ll_session_get(from, v->name, x, bytes);
        if (rc == LL_OK) rc = ll_session_set(s, v->name, 0, x, bytes);
        free(x);
        TRY(rc);
    }
    return LL_OK;
}

typedef struct whole {
    ll_run *r;
    ll_graph *g;
    ll_session *s;
    int32_t x[300];     /* two sequences of 24 (150) */
    int32_t source[18]; /* of 9; the second ends with pads */
    float logits[300 * 64];
} whole;

static whole *open_whole(const char *model)
{
    whole *w = (whole *)calloc(1, sizeof *w);
    no_error(ll_run_parse(model, strlen(model), "test", &w->r));
    no_error(ll_run_finish(w->r));
    no_error(ll_run_graph(w->r, 2, NULL, &w->g));
    for (int i = 1; i < w->g->n_value; i++) { /* so that logits differ */
        ll_init *init = &w->g->values[i].init;
        if (init->kind == LL_NORMAL) init->a = 0.2;
    }
    no_error(ll_session_open(w->g, &(ll_session_opts){.threads = 1, .seed = 3}, &w->s));
    size_t n = 2 * (size_t)ll_run_size(w->r, "seq", 0);
    for (int i = 0; i < 300; i++) w->x[i] = (i * 37 + i / 24 * 5 + i * i) % 64;
    no_error(ll_session_set(w->s, "x", 0, w->x, n * sizeof *w->x));
    no_error(ll_session_set(w->s, "y", 0, w->x, n * sizeof *w->x));
    for (int i = 0; i < 18; i++) w->source[i] = i < 9 || i < 14 ? 1 + i * i % 63 : 0;
    if (ll_find(w->g, "source").id)
        no_error(ll_session_set(w->s, "source", 0, w->source, sizeof w->source));
    no_error(ll_session_run(w->s, 0));
    no_error(ll_session_get(w->s, "logits", w->logits, n * 64 * sizeof *w->logits));
    return w;
}

static void close_whole(whole *w)
{
    ll_session_close(w->s);
    ll_graph_free(w->g);
    ll_run_free(w->r);
    free(w);
}

static double apart(const whole *w, ll_generator *g, int sequence, int place)
{
    const float *a = w->logits + (sequence * 24 + place) * 64,
                *b = ll_generator_logits(g, sequence);
    double most = 0;
    for (int i = 0; i < 64; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= most)) most = d;
    }
    return most;
}

/* Sequences of different lengths, in chunks of 6, then token by token. */
static void check_all(const char *model, int bits, int cache_bits, bool exact, double allowed)
{
    whole *w = open_whole(model);
    ll_generator_opts o = {.batch = 2,
                           .chunk = 6,
                           .bits = bits,
                           .cache_bits = cache_bits,
                           .load = copy_from,
                           .user = w->s,
                           .session = {.threads = 2, .exact = exact}};
    ll_generator *g;
    double most = 0, size = 0;
    no_error(ll_generator_open(w->r, &o, &g));
    bool source = ll_find(w->g, "source").id;
    no_error(ll_generator_put(g, 0, w->x, 15));
    no_error(ll_generator_put(g, 1, w->x + 24, 7));
    if (source) no_error(ll_generator_source(g, 0, w->source, 9));
    if (source) no_error(ll_generator_source(g, 1, w->source + 9, 5));
    no_error(ll_generator_run(g));
    for (int n = 0; n < 9; n++) {
        most = fmax(most, fmax(apart(w, g, 0, 14 + n), apart(w, g, 1, 6 + n)));
        for (int i = 0; i < 64; i++) {
            double v = fabs((double)w->logits[(14 + n) * 64 + i]);
            if (v > size) size = v;
        }
        no_error(ll_generator_put(g, 0, w->x + 15 + n, 1));
        no_error(ll_generator_put(g, 1, w->x + 24 + 7 + n, 1));
        no_error(ll_generator_run(g));
    }
    ll_generator_clear(g, 0); /* one begins anew, the other goes on */
    if (source) {             /* another one, which is read, and its own again */
        no_error(ll_generator_source(g, 0, w->source + 9, 2));
        no_error(ll_generator_put(g, 0, w->x, 3));
        no_error(ll_generator_run(g));
        assert_true(apart(w, g, 0, 2) > allowed * size);
        ll_generator_clear(g, 0);
        no_error(ll_generator_source(g, 0, w->source, 9));
    }
    no_error(ll_generator_put(g, 0, w->x, 2));
    no_error(ll_generator_put(g, 1, w->x + 24 + 16, 6));
    no_error(ll_generator_run(g));
    most = fmax(most, fmax(apart(w, g, 0, 1), apart(w, g, 1, 21)));
    printf("%d bits: logits of %.2g, off by %.2g; caches %zu bytes\n", bits, size, most,
           ll_generator_cache_bytes(g));
    assert_true(size > 0.1 && most <= allowed * size);
    no_error(ll_generator_put(g, 1, w->x, 40)); /* more than there are places */
    no_error(ll_generator_run(g));
    no_error(ll_generator_put(g, 1, w->x, 1));
    no_error(ll_generator_run(g));
    assert_true(isfinite(ll_generator_logits(g, 1)[0]));
    assert_int_equal(ll_generator_put(g, 1, (int32_t[]){64}, 1), LL_E_ARG);
    ll_generator_close(g);
    close_whole(w);
}

static void check_cache(const char *model, int bits, int cache_bits, double allowed)
{
    check_all(model, bits, cache_bits, false, allowed);
}

static void check(const char *model, int bits, double allowed)
{
    check_cache(model, bits, 0, allowed);
}

static const char llama[] = "model: {name: llama, layers: 2, width: 64, heads: 4, kv_heads: 2, "
                            "hidden: 96, seq: 24, vocab: 64, window: %d}\ntrain: {threads: 1}\n";
static const char gpt[] = "model: {name: gpt, layers: 2, width: 64, heads: 4, seq: 24, vocab: 64}\n"
                          "train: {threads: 1}\n";

/* Of linear attention; one forgets. */
static const char *const linear[] = {
    "model: {name: gpt, layers: 2, width: 64, heads: 4, seq: 24, vocab: 64, linear: 1, decay: 2}\n"
    "train: {threads: 1}\n",
    "model: {name: llama, layers: 2, width: 64, heads: 4, kv_heads: 2, hidden: 96, seq: 24, "
    "vocab: 64, linear: 1}\ntrain: {threads: 1}\n"};

static const char soft[] = "model: {name: llama, layers: 2, width: 64, heads: 4, kv_heads: 2, "
                           "hidden: 96, seq: 24, vocab: 64}\ntrain: {threads: 1, prompt: 5}\n";

static const char seq2seq[] =
    "model: {name: seq2seq, layers: 2, width: 64, heads: 4, hidden: 96, seq: 24, source: 9, "
    "vocab: 64, dropout: 0}\ntrain: {threads: 1}\n";

static void logits(void **)
{
    char text[512];
    check(seq2seq, 0, 5e-6);
    check(seq2seq, 8, 0.2);
    check_cache(seq2seq, 0, 8, 0.02);
    check_cache(seq2seq, 0, 4, 0.4);
    check_all(seq2seq, 0, 0, true, 5e-6);
    for (int window = 0; window < 6; window += 5) {
        snprintf(text, sizeof text, llama, window);
        check(text, 0, 5e-6);
        check(text, 8, 0.2);
    }
    check(text, 4, 1);
    check_cache(text, 0, 8, 0.02);
    check_cache(text, 0, 4, 0.4);
    check(gpt, 0, 5e-6);
    check_all(gpt, 0, 0, true, 5e-6); /* nothing tells of lost bits here: none may be */
    check(gpt, 8, 0.2);
    check_cache(gpt, 0, 8, 0.02);
    for (int k = 0; k < 2; k++) {
        check(linear[k], 0, 5e-6);
        check(linear[k], 8, 0.2);
        check_all(linear[k], 0, 0, true, 5e-6);
    }
    check_cache(gpt, 0, 4, 0.4);
    check(soft, 0, 5e-6);
    check(soft, 8, 0.2);
    check_cache(soft, 0, 8, 0.05);
}

/* A state is as large whatever the places; 8 bits, and guesses that may be wrong, are refused. */
static void states(void **)
{
    for (int k = 0; k < 2; k++) {
        whole *w = open_whole(linear[k]);
        ll_generator_opts o = {.places = 5, .guesses = 3, .load = copy_from, .user = w->s};
        ll_generator *g;
        size_t bytes[2];
        double sum = 0, want = 0;
        for (int i = 0; i < 2; i++, o.places = 24) {
            if (i) ll_generator_close(g);
            no_error(ll_generator_open(w->r, &o, &g));
            bytes[i] = ll_generator_cache_bytes(g);
        }
        assert_int_equal(bytes[0], bytes[1]);
        assert_int_equal(bytes[0], 2 * (k ? 2 : 4) * 16 * 17 * sizeof(float));
        no_error(ll_generator_score(g, w->x, 1, 13, &sum)); /* all that is tried is taken */
        for (int i = 0; i < 12; i++) {
            double all = 0;
            for (int v = 0; v < 64; v++) all += exp((double)w->logits[i * 64 + v]);
            want += log(all) - (double)w->logits[i * 64 + w->x[i + 1]];
        }
        assert_true(fabs(sum - want) < 1e-4);
        ll_generator_back(g, 0, 4); /* what was taken in is not: it is read again */
        no_error(ll_generator_put(g, 0, w->x + 4, 3));
        no_error(ll_generator_run(g));
        assert_true(apart(w, g, 0, 6) < 2e-5);
        assert_int_equal(ll_generator_guess(g, w->x + 7, 0, (int[]){3}), LL_E_ARG);
        ll_generator_close(g);
        o.cache_bits = 8;
        assert_int_equal(ll_generator_open(w->r, &o, &g), LL_E_ARG);
        assert_non_null(strstr(ll_error_text(), "linear attention keeps a state"));
        close_whole(w);
    }
}

/* A state goes on beyond seq, as the model of longer ones would; places that are weights do not,
 * nor do keys and values. */
static void beyond(void **)
{
    static const char form[] =
        "model: {name: llama, layers: 2, width: 64, heads: 4, kv_heads: 2, hidden: 96, seq: %d, "
        "vocab: 64, linear: 1}\ntrain: {threads: 1, prompt: %d}\n";
    const char *const others[] = {linear[0], gpt, seq2seq};
    char text[512];
    for (int prompt = 0; prompt < 6; prompt += 5) {
        ll_run *r;
        ll_generator *g;
        snprintf(text, sizeof text, form, 150, prompt);
        whole *w = open_whole(text);
        snprintf(text, sizeof text, form, 24, prompt);
        no_error(ll_run_parse(text, strlen(text), "test", &r));
        no_error(ll_run_finish(r));
        no_error(ll_generator_open(
            r, &(ll_generator_opts){.chunk = 16, .load = copy_from, .user = w->s}, &g));
        assert_true(ll_generator_places(g) >= 1000000);
        for (int n = 0; n < 140; n += n < 100 ? 50 : 1) {
            no_error(ll_generator_put(g, 0, w->x + n, n < 100 ? 50 : 1));
            no_error(ll_generator_run(g));
            double off = apart(w, g, 0, n < 100 ? n + 49 : n);
            if (!(off < 2e-5)) fail_msg("%d tokens: logits are off by %g", n, off);
        }
        ll_generator_close(g);
        ll_run_free(r);
        close_whole(w);
    }
    for (int k = 0; k < 3; k++) {
        whole *w = open_whole(others[k]);
        ll_generator_limit limit;
        no_error(ll_generator_limits(w->r, &limit));
        assert_true(limit.places == 24 && !limit.endless && limit.learned == (k < 2));
        close_whole(w);
    }
}

static const char longer[] = "model: {name: llama, layers: 2, width: 64, heads: 4, kv_heads: 2, "
                             "hidden: 96, seq: 150, vocab: 64}\ntrain: {threads: 1}\n";

static ll_generator *open_longer(whole *w, int bits, int64_t chunk, int64_t guesses, int64_t keep)
{
    ll_generator *g;
    ll_generator_opts o = {.batch = 2,
                           .chunk = chunk,
                           .guesses = guesses,
                           .cache_bits = bits,
                           .keep = keep,
                           .load = copy_from,
                           .user = w->s,
                           .session.threads = 2};
    no_error(ll_generator_open(w->r, &o, &g));
    return g;
}

/* Sequence 0 is tokens 0 to n of some; logits behind it. */
static void read_to(ll_generator *g, const int32_t *x, int64_t n, float out[64])
{
    int64_t have;
    ll_generator_tokens(g, 0, &have);
    no_error(ll_generator_put(g, 0, x + have, n - have));
    no_error(ll_generator_run(g));
    memcpy(out, ll_generator_logits(g, 0), 64 * sizeof *out);
}

/* Keys and values of 4 bits: those of groups that are whole are rounded once, so that it makes no
 * difference, but for what is read at once, whether guesses were wrong, a sequence went back, or
 * another one went on meanwhile. */
static void four_bits(void **)
{
    whole *w = open_whole(longer);
    ll_generator *one = open_longer(w, 4, 1, 0, 0), *some = open_longer(w, 4, 1, 5, 0);
    ll_generator *plain = open_longer(w, 0, 1, 0, 0);
    int32_t x[150];
    float a[64], b[64], c[64];
    double most = 0, size = 0;
    for (int i = 0; i < 150; i++) x[i] = (i * 29 + i * i) % 64;
    static const int places[] = {1, 31, 32, 33, 64, 65, 97, 128, 149};
    for (size_t k = 0; k < sizeof places / sizeof *places; k++) {
        int n = places[k];
        int32_t wrong[10];
        for (int i = 0; i < 10; i++) wrong[i] = (i * 11 + n) % 64;
        read_to(one, x, n, a);
        read_to(plain, x, n, c);
        read_to(some, x, n, b);
        assert_memory_equal(a, b, sizeof a);
        no_error(ll_generator_guess(some, wrong, 5, (int[]){5, 0}));
        ll_generator_back(some, 0, n - n / 3);
        no_error(ll_generator_put(some, 1, wrong, 7)); /* the other goes on; this one stands */
        no_error(ll_generator_run(some));
        no_error(ll_generator_put(some, 0, wrong, 4)); /* and takes another way, and back */
        no_error(ll_generator_run(some));
        ll_generator_back(some, 0, n - n / 3);
        read_to(some, x, n, b);
        assert_memory_equal(a, b, sizeof a);
        for (int i = 0; i < 64; i++) {
            most = fmax(most, fabs((double)a[i] - (double)c[i]));
            size = fmax(size, fabs((double)c[i]));
        }
    }
    printf("4 bits: logits of %.2g, off by %.2g\n", size, most);
    assert_true(most > 0 && most < 0.4 * size);
    ll_generator_close(one);
    ll_generator_close(some);
    ll_generator_close(plain);
    close_whole(w);
}

/* Fewer entries than tokens: up to so many tokens, and with as many entries as places, logits have
 * the bits of those without; a sequence that begins anew, goes back or stands while another goes on
 * is as if it had been alone. */
static void few_entries(void **)
{
    whole *w = open_whole(longer);
    ll_generator *plain = open_longer(w, 0, 6, 0, 0), *all = open_longer(w, 0, 6, 0, 150);
    ll_generator *few = open_longer(w, 0, 6, 0, 67), *again = open_longer(w, 0, 6, 0, 67);
    int32_t x[150];
    float a[64], b[64];
    for (int i = 0; i < 150; i++) x[i] = (i * 29 + i * i) % 64;
    size_t bytes = ll_generator_cache_bytes(plain), row = 2 * 2 * 2 * 16 * sizeof(float);
    assert_int_equal(ll_generator_cache_bytes(all), bytes);
    assert_int_equal(bytes,
                     2 * 150 * row); /* sequences, of 2 layers of keys and values of 2 heads */
    assert_int_equal(ll_generator_cache_bytes(few), 2 * 67 * (row + 2 * 2 * 2 * sizeof(float)));
    no_error(ll_generator_put(again, 0, x + 9, 99)); /* something else was there */
    no_error(ll_generator_run(again));
    ll_generator_clear(again, 0);
    static const int places[] = {1, 7, 30, 67, 68, 80, 140, 150};
    for (size_t k = 0; k < sizeof places / sizeof *places; k++) {
        read_to(plain, x, places[k], a);
        read_to(all, x, places[k], b);
        assert_memory_equal(a, b, sizeof a);
        read_to(few, x, places[k], b);
        assert_true(!memcmp(a, b, sizeof a) == (places[k] <= 68)); /* the last sees all before it */
        no_error(ll_generator_put(again, 1, x, 11)); /* the other goes on, this one stands */
        no_error(ll_generator_run(again));
        read_to(again, x, places[k], a);
        assert_memory_equal(a, b, sizeof a);
    }
    ll_generator_close(again);
    again = open_longer(w, 0, 6, 0, 67);
    read_to(again, x, 131, a);
    ll_generator_back(few, 0, 120);
    read_to(few, x, 131, b);
    assert_memory_equal(a, b, sizeof a);
    ll_generator_opts o = {.keep = 9, .guesses = 2, .load = copy_from, .user = w->s};
    ll_generator *none;
    assert_int_equal(ll_generator_open(w->r, &o, &none), LL_E_ARG);
    o = (ll_generator_opts){.keep = 9, .cache_bits = 8, .load = copy_from, .user = w->s};
    assert_int_equal(ll_generator_open(w->r, &o, &none), LL_E_ARG);
    ll_generator_close(plain);
    ll_generator_close(all);
    ll_generator_close(few);
    ll_generator_close(again);
    close_whole(w);
}

/* Guesses that are right, and others, read with what they follow: logits are those of the whole. */
static void guesses(void **)
{
    char text[512];
    for (int k = 0; k < 5; k++) {
        snprintf(text, sizeof text, llama, k == 1 ? 5 : 0);
        whole *w = open_whole(k == 2 ? gpt : k == 4 ? soft : text);
        ll_generator_opts o = {.batch = 2,
                               .chunk = 6,
                               .guesses = 3,
                               .bits = k == 3 ? 8 : 0,
                               .load = copy_from,
                               .user = w->s,
                               .session.threads = 2};
        ll_generator *g;
        double most = 0;
        no_error(ll_generator_open(w->r, &o, &g));
        no_error(ll_generator_put(g, 0, w->x, 9));
        no_error(ll_generator_put(g, 1, w->x + 24, 1));
        for (int at[2] = {9, 1}; at[0] < 24;) {
            int right[2] = {at[0] % 4, at[1] % 3}, n[2] = {3, 2};
            int32_t guess[8];
            for (int i = 0; i < 8; i++) guess[i] = 63;
            for (int i = 0; i < 2; i++)
                for (int j = 0; j < right[i] && at[i] + j < 24; j++)
                    guess[4 * i + j] = w->x[24 * i + at[i] + j];
            no_error(ll_generator_guess(g, guess, 4, n));
            for (int i = 0; i < 2; i++)
                for (int j = 0;; j++) {
                    most = fmax(most, apart(w, g, i, at[i] - 1));
                    if (at[i] == 24) break;
                    no_error(ll_generator_put(g, i, &w->x[24 * i + at[i]], 1));
                    at[i]++;
                    if (j >= right[i] || !ll_generator_accept(g, i)) break;
                }
        }
        printf("guesses: off by %.2g\n", most);
        assert_true(most <= (k == 3 ? 0.5 : 2e-5));
        ll_generator_back(g, 0, 4); /* and as if they had not been there */
        ll_generator_back(g, 1, 2);
        no_error(ll_generator_run(g));
        no_error(ll_generator_put(g, 0, w->x + 4, 7));
        no_error(ll_generator_put(g, 1, w->x + 26, 1));
        no_error(ll_generator_run(g));
        assert_true(fmax(apart(w, g, 0, 10), apart(w, g, 1, 2)) <= (k == 3 ? 0.5 : 2e-5));
        ll_generator_close(g);
        close_whole(w);
    }
}

/* What is packed is close to what it was, and packing it again changes nothing. */
static void packing(void **)
{
    float x[64], y[64];
    uint8_t q[64], again[64];
    uint16_t s[2], least[2];
    for (int i = 0; i < 64; i++) x[i] = (float)sin(i * 1.7) * (i < 32 ? 1 : 1e-3f);
    for (int bits = 4; bits <= 8; bits += 4) {
        ll_pack(x, 64, bits, q, s, least);
        for (int i = 0; i < 64; i++) {
            int b = i / 32,
                k = bits == 8 ? (int8_t)q[i] : q[b * 16 + i % 16] >> (i % 32 / 16 * 4) & 15;
            y[i] = (float)(ll_load(s, LL_F16, b) * k + (bits == 4 ? ll_load(least, LL_F16, b) : 0));
            assert_true(fabs((double)(x[i] - y[i])) <= (bits == 8 ? 0.006 : 0.08) * (b ? 1e-3 : 1));
        }
        ll_pack(y, 64, bits, again, s, least);
        assert_memory_equal(q, again, (size_t)(8 * bits));
    }
}

static void drawing(void **)
{
    whole *w = open_whole(gpt);
    ll_generator_opts o = {.load = copy_from, .user = w->s, .session.threads = 1};
    ll_generator *g;
    int seen[64] = {0}, few[64] = {0};
    no_error(ll_generator_open(w->r, &o, &g));
    no_error(ll_generator_put(g, 0, w->x, 5));
    no_error(ll_generator_run(g));
    const float *l = ll_generator_logits(g, 0);
    int best = 0;
    double sum = 0, p[64];
    for (int i = 1; i < 64; i++) best = l[i] > l[best] ? i : best;
    for (int i = 0; i < 64; i++) sum += p[i] = exp((double)l[i]);
    ll_draw_opts how = {.temperature = 1, .seed = 7};
    for (int i = 0; i < 20000; i++) seen[ll_generator_draw(g, 0, &how, i)]++;
    for (int i = 0; i < 64; i++) assert_true(fabs(seen[i] / 20000.0 - p[i] / sum) < 0.02);
    assert_int_equal(ll_generator_draw(g, 0, &how, 3), ll_generator_draw(g, 0, &how, 3));
    assert_int_equal(ll_generator_draw(g, 0, &(ll_draw_opts){.seed = 5}, 0), best);
    static const ll_draw_opts narrow[] = {{.temperature = 5, .top_k = 3},
                                          {.temperature = 1, .top_p = 0.05},
                                          {.temperature = 1, .min_p = 0.999}};
    for (size_t k = 0; k < 3; k++) {
        int n = 0;
        memset(few, 0, sizeof few);
        for (int i = 0; i < 2000; i++) few[ll_generator_draw(g, 0, &narrow[k], i)]++;
        for (int i = 0; i < 64; i++) n += few[i] > 0;
        assert_true(few[best] > 0 && (k == 0 ? n == 3 : n <= 3));
    }
    no_error(ll_generator_put(g, 0, (int32_t[]){best}, 1)); /* was there: less likely */
    ll_draw_opts again = {.repetition = 1e6};
    assert_true(l[best] <= 0 || ll_generator_draw(g, 0, &again, 0) != best);
    static const ll_draw_opts wrong[] = {{.top_p = 2, .repetition = 1},
                                         {.top_p = 0, .repetition = 1},
                                         {.top_p = 1, .repetition = 0},
                                         {.top_p = 1, .repetition = 1e-38}};
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++)
        assert_int_equal(ll_draw_check(&wrong[k]), LL_E_ARG);
    no_error(ll_draw_check(&(ll_draw_opts){.top_p = 1, .repetition = 1}));
    ll_generator_close(g);
    close_whole(w);
}

static ll_err copy_broken(void *user, ll_session *s)
{
    float weight[64] = {[3] = NAN};
    TRY(copy_from(user, s));
    return ll_session_set(s, "norm.weight", 0, weight, sizeof weight);
}

/* A model whose numbers are none says so. */
static void broken(void **)
{
    char text[512];
    snprintf(text, sizeof text, llama, 0);
    whole *w = open_whole(text);
    ll_generator_opts o = {.load = copy_broken, .user = w->s, .session.threads = 1};
    ll_generator *g;
    no_error(ll_generator_open(w->r, &o, &g));
    no_error(ll_generator_put(g, 0, w->x, 5));
    assert_int_equal(ll_generator_run(g), LL_E_NUMERIC);
    assert_non_null(strstr(ll_error_text(), "the logit of token"));
    ll_generator_close(g);
    close_whole(w);
}

/* ---- GGUF ---- */

typedef struct made {
    float base, eps;
    int seq, kv_heads, type, align, at, extra; /* at: added to a tensor's place */
    const char *wrong;                         /* what the error names; NULL: it is right */
    const char *key, *text;                    /* one more: a text, or this number */
    float value;
} made;

/* A model of one layer, 32 channels. */
static ll_buf small_llama(ll_arena *a, const made *m)
{
    static const struct {
        const char *name;
        int64_t d[2];
    } parts[] = {{"token_embd.weight", {32, 64}},     {"output_norm.weight", {32, 0}},
                 {"blk.0.attn_norm.weight", {32, 0}}, {"blk.0.ffn_norm.weight", {32, 0}},
                 {"blk.0.attn_q.weight", {32, 32}},   {"blk.0.attn_k.weight", {32, 16}},
                 {"blk.0.attn_v.weight", {32, 16}},   {"blk.0.attn_output.weight", {32, 32}},
                 {"blk.0.ffn_gate.weight", {32, 64}}, {"blk.0.ffn_up.weight", {32, 64}},
                 {"blk.0.ffn_down.weight", {64, 32}}, {"rope_freqs.weight", {32, 0}}};
    ll_buf b = {.arena = a};
    int n = 11 + m->extra;
    uint64_t at = 0;
    gguf_begin(&b, n, 11 + (m->key != NULL));
    gguf_pair_text(&b, "general.architecture", "llama");
    gguf_pair_int(&b, "general.alignment", (uint32_t)m->align);
    gguf_pair_int(&b, "llama.block_count", 1);
    gguf_pair_int(&b, "llama.embedding_length", 32);
    gguf_pair_int(&b, "llama.attention.head_count", 4);
    gguf_pair_int(&b, "llama.attention.head_count_kv", (uint32_t)m->kv_heads);
    gguf_pair_int(&b, "llama.feed_forward_length", 64);
    gguf_pair_int(&b, "llama.context_length", (uint32_t)m->seq);
    gguf_pair_int(&b, "llama.vocab_size", 64);
    gguf_pair_float(&b, "llama.rope.freq_base", m->base);
    gguf_pair_float(&b, "llama.attention.layer_norm_rms_epsilon", m->eps);
    if (m->text)
        gguf_pair_text(&b, m->key, m->text);
    else if (m->key)
        gguf_pair_float(&b, m->key, m->value);
    for (int i = 0; i < n; i++) {
        gguf_tensor(&b, parts[i].name, parts[i].d[1] ? 2 : 1, parts[i].d, i == 4 ? m->type : 0,
                    at + (uint64_t)(i == 4 ? m->at : 0));
        at += 4 * (uint64_t)(parts[i].d[0] * (parts[i].d[1] ? parts[i].d[1] : 1));
    }
    gguf_align(&b);
    for (uint64_t i = 0; i < at; i++) gguf_int(&b, 0, 1);
    return b;
}

/* What is imported is right; what is not names its key. */
static void imported(void **state)
{
    static const made all[] = {
        {10000, 1e-5F, 32, 2, 0, 32, 0, 0, NULL},
        {NAN, 1e-5F, 32, 2, 0, 32, 0, 0, "llama.rope.freq_base is nan"},
        {10000.5F, 1e-5F, 32, 2, 0, 32, 0, 0, "llama.rope.freq_base is 10000.5"},
        {10000, 1e-13F, 32, 2, 0, 32, 0, 0, "layer_norm_rms_epsilon is 1e-13"},
        {10000, INFINITY, 32, 2, 0, 32, 0, 0, "layer_norm_rms_epsilon is inf"},
        {10000, 1e-5F, 0, 2, 0, 32, 0, 0, "llama.context_length is 0"},
        {10000, 1e-5F, 32, 0, 0, 32, 0, 0, "llama.attention.head_count_kv is 0"},
        {10000, 1e-5F, 32, 3, 0, 32, 0, 0, "kv_heads 3"},
        {10000, 1e-5F, 32, 2, 99, 32, 0, 0, "blk.0.attn_q.weight is GGUF's type 99"},
        {10000, 1e-5F, 32, 2, 0, 3, 0, 0, "general.alignment is 3"},
        {10000, 1e-5F, 32, 2, 0, 32, 7, 0, "attn_q.weight lies at byte"},
        {10000, 1e-5F, 32, 2, 0, 32, 0, -9, "missing"},
        {10000, 1e-5F, 32, 2, 0, 32, 0, 1, "has a tensor rope_freqs.weight"},
#define WITH 10000, 1e-5F, 32, 2, 0, 32, 0, 0
        {WITH, "rope.scaling.factor is 4, expected 1 or 0", "llama.rope.scaling.factor", NULL, 4},
        {WITH, "rope.scale_linear is 4, expected 1 or 0", "llama.rope.scale_linear", NULL, 4},
        {WITH, "rope.scaling.type is yarn", "llama.rope.scaling.type", "yarn", 0},
        {WITH, "attn_factor is 1.5, expected 1 for", "llama.rope.scaling.attn_factor", NULL, 1.5F},
        {WITH, "causal is 0, expected 1 for", "llama.attention.causal", NULL, 0},
        {WITH, NULL, "llama.rope.scaling.factor", NULL, 1},
        {WITH, NULL, "llama.rope.scale_linear", NULL, 0},
        {WITH, NULL, "llama.rope.scaling.type", "linear", 0},
        {WITH, NULL, "llama.attention.causal", NULL, 1},
#undef WITH
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        ll_arena *a = ll_arena_new();
        ll_buf b = small_llama(a, &all[i]);
        const char *path = ll_arena_strdup(a, tmpdir_path(state, "made.gguf"));
        ll_imported m;
        no_error(ll_file_write(path, b.text, b.len));
        ll_err rc = ll_import_look(path, a, &m);
        if (!all[i].wrong) no_error(rc);
        if (all[i].wrong && (rc == LL_OK || !strstr(ll_error_text(), all[i].wrong)))
            fail_msg("%s: %s", all[i].wrong, rc ? ll_error_text() : "taken");
        if (rc) assert_null(strstr(ll_error_text(), "is missing"));
        ll_arena_free(a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits),
        cmocka_unit_test(states),
        cmocka_unit_test(beyond),
        cmocka_unit_test(four_bits),
        cmocka_unit_test(few_entries),
        cmocka_unit_test(guesses),
        cmocka_unit_test(packing),
        cmocka_unit_test(drawing),
        cmocka_unit_test(broken),
        cmocka_unit_test_setup_teardown(imported, tmpdir_setup, tmpdir_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
