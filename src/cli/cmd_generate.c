/* cmd_generate.c: loopline generate. Samples text from a trained gpt, a token at a time: the model
 * reads the last `seq` tokens; the next is drawn from its softmax at that place. */
#include "cli/common.h"

#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct opts {
    const char *folder, *checkpoint, *init, *prompt;
    int64_t tokens, top_k, seed;
    double temperature;
    bool json;
    ll_words set;
} opts;

static const ll_arg args[] = {
    {"RUN_FOLDER", LL_ARG_TEXT, offsetof(opts, folder), NULL, "of a gpt that was trained"},
    {"--prompt|-p", LL_ARG_TEXT, offsetof(opts, prompt), "TEXT", "what the text begins with", "\n"},
    {"--tokens|-n", LL_ARG_INT, offsetof(opts, tokens), "N", "how many to add", "400"},
    {"--temperature|-t", LL_ARG_NUMBER, offsetof(opts, temperature), "T",
     "below 1: safer, above 1: wilder, 0: always the likeliest", "0.8"},
    {"--top-k|-k", LL_ARG_INT, offsetof(opts, top_k), "K",
     "draw from the K likeliest only (0: from all)", "0"},
    {"--seed", LL_ARG_INT, offsetof(opts, seed), "N", "of the draws", "1"},
    {"--checkpoint", LL_ARG_TEXT, offsetof(opts, checkpoint), "FILE",
     "this one, not the run's newest"},
    {"--init", LL_ARG_TEXT, offsetof(opts, init), "FILE",
     "weights of another system's, in place of a checkpoint (as for train)"},
    {"--set|-s", LL_ARG_WORDS, offsetof(opts, set), "KEY=VALUE", "override a setting of the run"},
    {"--json", LL_ARG_FLAG, offsetof(opts, json), NULL, "one JSON object on standard output"},
    {0}};

static int descending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* A token drawn from softmax(logits / temperature), of the top_k largest; u in (0,1). */
static int32_t draw(const opts *o, const float *logits, float *sorted, int64_t vocab, float u)
{
    memcpy(sorted, logits, sizeof(float) * (size_t)vocab);
    qsort(sorted, (size_t)vocab, sizeof(float), descending);
    int64_t k = o->top_k > 0 && o->top_k < vocab ? o->top_k : vocab;
    double least = sorted[k - 1], most = sorted[0], sum = 0;
    if (o->temperature <= 0) least = most;
    double heat = o->temperature > 0 ? o->temperature : 1;
    for (int64_t i = 0; i < vocab; i++)
        if (logits[i] >= least) sum += exp((logits[i] - most) / heat);
    double left = u * sum;
    int32_t last = 0;
    for (int64_t i = 0; i < vocab; i++) {
        if (logits[i] < least) continue;
        last = (int32_t)i;
        left -= exp((logits[i] - most) / heat);
        if (left < 0) break;
    }
    return last;
}

typedef struct sampler {
    const opts *o;
    ll_session *s;
    int64_t seq, vocab, n, cap;
    int32_t *text; /* all tokens so far */
    float *logits, *sorted;
    bool bytes; /* tokens are bytes */
} sampler;

static ll_err next_token(sampler *m, int64_t i)
{
    int64_t from = m->n > m->seq ? m->n - m->seq : 0, used = m->n - from;
    int32_t *x = m->text + m->cap; /* room for one window stands behind the text */
    memset(x, 0, sizeof(int32_t) * (size_t)m->seq);
    memcpy(x, m->text + from, sizeof(int32_t) * (size_t)used);
    TRY(ll_session_set(m->s, "x", 0, x, sizeof(int32_t) * (size_t)m->seq));
    TRY(ll_session_set(m->s, "y", 0, x, sizeof(int32_t) * (size_t)m->seq)); /* for nothing */
    TRY(ll_session_run(m->s, 0));
    TRY(ll_session_get(m->s, "logits", m->logits, sizeof(float) * (size_t)(m->seq * m->vocab)));
    float u = ll_uniform_at((uint64_t)m->o->seed, ll_stream("generate", 0), (uint64_t)i);
    m->text[m->n++] = draw(m->o, m->logits + (used - 1) * m->vocab, m->sorted, m->vocab, u);
    return LL_OK;
}

static void put(const sampler *m, int64_t i)
{
    if (m->o->json) return;
    if (m->bytes)
        putchar(m->text[i]);
    else
        printf("%d ", m->text[i]);
    fflush(stdout);
}

static ll_err generate(sampler *m)
{
    const char *p = m->o->prompt;
    for (; *p; p++) m->text[m->n++] = (unsigned char)*p;
    for (int64_t i = 0; i < m->n; i++) put(m, i);
    for (int64_t i = 0; i < m->o->tokens; i++) {
        TRY(next_token(m, i));
        put(m, m->n - 1);
    }
    if (!m->o->json) putchar('\n');
    return LL_OK;
}

static ll_err show_json(const sampler *m, const ll_trained *t)
{
    json_t *j = json_object(), *tokens = json_array();
    LL_OWN(ll_arena) a = ll_arena_new();
    char *text = LL_NEW_ARRAY(a, char, m->n + 1);
    for (int64_t i = 0; i < m->n; i++) {
        json_array_append_new(tokens, json_integer(m->text[i]));
        text[i] = (char)(m->text[i] < 128 ? m->text[i] : '?');
    }
    json_object_set_new(j, "model", json_string(t->run->model.name));
    json_object_set_new(j, "step", json_integer(t->step));
    json_object_set_new(j, "text", m->bytes ? json_string(text) : json_null());
    json_object_set_new(j, "tokens", tokens);
    return ll_cli_json(j);
}

static ll_err with_memory(sampler *m, const ll_trained *t)
{
    m->cap = m->o->tokens + (int64_t)strlen(m->o->prompt);
    size_t logits = (size_t)(m->seq * m->vocab);
    LL_OWN_MEMORY int32_t *text = (int32_t *)calloc((size_t)(m->cap + m->seq), sizeof *text);
    LL_OWN_MEMORY float *numbers = (float *)calloc(logits + (size_t)m->vocab, sizeof *numbers);
    CHECK(text && numbers, LL_E_MEM, "no memory for %lld tokens", (long long)m->cap);
    m->text = text;
    m->logits = numbers;
    m->sorted = numbers + logits;
    TRY(generate(m));
    return m->o->json ? show_json(m, t) : LL_OK;
}

static ll_err sample(const opts *o, const ll_trained *t)
{
    CHECK(ll_run_takes_tokens(t->run), LL_E_ARG, "%s does not make text: generate takes a gpt",
          t->run->model.name);
    CHECK(*o->prompt, LL_E_ARG, "--prompt is empty: give at least one character");
    CHECK(o->tokens <= 1000000000, LL_E_ARG, "--tokens is %lld, want at most 1e9",
          (long long)o->tokens);
    CHECK(o->temperature >= 0, LL_E_ARG, "--temperature is %g, want 0 or more", o->temperature);
    sampler m = {.o = o, .s = t->s};
    m.seq = ll_run_size(t->run, "seq", 0);
    m.vocab = ll_run_size(t->run, "vocab", 0);
    m.bytes = m.vocab <= 256;
    CHECK(m.bytes, LL_E_ARG,
          "this model's vocabulary is %lld tokens, not bytes: Loopline has no "
          "tokenizer for it, so there is no text to begin with",
          (long long)m.vocab);
    for (const char *p = o->prompt; *p; p++)
        CHECK((unsigned char)*p < m.vocab, LL_E_ARG,
              "--prompt has byte %d ('%c'), the model's vocabulary is the bytes below %lld",
              (unsigned char)*p, *p >= ' ' && *p < 127 ? *p : '?', (long long)m.vocab);
    return with_memory(&m, t);
}

static ll_err run(const void *given)
{
    const opts *o = (const opts *)given;
    LL_TRAINED t = {0};
    TRY(ll_cli_trained(o->folder, o->checkpoint, o->init, &o->set, 1, &t));
    return sample(o, &t);
}

const ll_command ll_command_generate = {"generate", "samples text from a trained gpt", args,
                                        sizeof(opts), run};
