/* cmd_compress.c: loopline compress. A model of tokens in smaller forms, side by side: bytes,
 * speed, and what it has lost as it generates: each reads the validation data through its cache. */
#include "cli/talk.h"
#include "data/data.h"
#include "run/setup.h"
#include "train/progress.h"

typedef struct opts {
    ll_talk_opts talk;
    const char *to;
    int64_t samples, draws, calibrate;
} opts;

#define USUAL "f32,int8,int4"
#define KV8 ",int8+kv8"
enum { MOST = 16 }; /* forms */

static const ll_arg args[] = {
    {"RUN_FOLDER", LL_OPT(ll_trained_opts, folder), NULL,
     "run folder of a language model, trained or imported"},
    {"--to", LL_OPT(opts, to), "FORMS",
     "comma-separated forms to compare, each evaluated beside the others: f32, int8, int4; "
     "int4+gptq (GPTQ); int4+awq, int8+awq, int4+awq+gptq (AWQ); 2:4 or any N:M (keep the N "
     "largest of every M weights), sparse:0.5 (set this fraction of each tensor to zero), both "
     "also with +int8; suffixes +kv8, +kv4 (quantized KV cache) and +keep:N (KV cache of N tokens, "
     "as generate --keep); a single form is compared with f32",
     USUAL KV8},
    {"--calibrate", LL_ARG_COUNT, offsetof(opts, calibrate), "N",
     "windows of training data to calibrate +gptq and +awq on, at most all [default: 32]"},
    {"--samples", LL_ARG_COUNT, offsetof(opts, samples), "N",
     "validation samples, of model.seq tokens each", "8"},
    {"--tokens|-n", LL_ARG_COUNT, offsetof(opts, draws), "N",
     "tokens to generate for the speed measurement", "32"},
    LL_TRAINED_ARGS,
    LL_TRAINED_JSON,
    {0}};

typedef struct form {
    char name[32];
    size_t weights, cache; /* bytes; cache: of a token, or of a state */
    bool state;
    double loss, read, drawn, zeros;
} form;

/* The first windows of the validation data. */
typedef struct windows {
    int32_t *x; /* [n,seq + 1] */
    int64_t n, seq;
} windows;

static ll_err read_windows(const opts *o, const ll_run *r, ll_arena *a, windows *w)
{
    LL_OWN(ll_dataset) d = NULL;
    void *data[LL_MAX_FIELDS] = {0};
    TRY(ll_run_dataset(r, &d));
    const ll_data_info *info = ll_dataset_info(d);
    *w = (windows){.n = o->samples < info->n[LL_VAL] ? o->samples : info->n[LL_VAL],
                   .seq = info->seq};
    CHECK(w->n > 0 && w->seq > 1, LL_E_IO, "data %s has no validation samples of 2 tokens or more",
          info->name);
    for (int i = 0; i < info->n_field; i++)
        data[i] = ll_arena_alloc(a, (size_t)w->n * info->field_bytes[i]);
    TRY(ll_dataset_read(d, &(ll_sampling){.split = LL_VAL}, 0, w->n, data));
    const int32_t *x = (const int32_t *)data[0], *y = (const int32_t *)data[1]; /* shifted by one */
    w->x = LL_NEW_ARRAY(a, int32_t, w->n * (w->seq + 1));
    for (int64_t i = 0; i < w->n; i++) {
        memcpy(w->x + i * (w->seq + 1), x + i * w->seq, sizeof *x * (size_t)w->seq);
        w->x[i * (w->seq + 1) + w->seq] = y[i * w->seq + w->seq - 1];
    }
    return LL_OK;
}

static ll_err measure(ll_talk *t, const opts *o, const windows *w, form *f)
{
    double begin = ll_now(), sum = 0;
    for (int64_t i = 0; i < w->n; i++)
        TRY(ll_generator_score(t->g, w->x + i * (w->seq + 1), 1, w->seq + 1, &sum));
    f->read = (double)(w->n * w->seq) / (ll_now() - begin);
    f->loss = sum / (double)(w->n * w->seq);
    int64_t first = w->seq < 32 ? w->seq / 2 : 16, n = o->draws;
    if (n > w->seq - first) n = w->seq - first;
    ll_generator_clear(t->g, 0);
    TRY(ll_generator_put(t->g, 0, w->x, first));
    TRY(ll_generator_run(t->g));
    begin = ll_now();
    for (int64_t i = 0; i < n; i++) {
        TRY(ll_generator_put(t->g, 0, &w->x[first + i], 1));
        TRY(ll_generator_run(t->g));
    }
    f->drawn = (double)n / (ll_now() - begin);
    f->weights = ll_generator_weight_bytes(t->g);
    f->state = ll_generator_recurs(t->g);
    f->cache = ll_generator_cache_bytes(t->g) / (f->state ? 1 : (size_t)w->seq);
    return LL_OK;
}

/* "int4+awq+gptq+kv8", "2:4+int8+kv4": what comes first, and what follows. */
typedef struct parts {
    char first[sizeof((form *)0)->name];
    const char *weights, *prune, *cache;
    int64_t keep;
    bool gptq, awq;
} parts;

/* "+kv8", "+keep:64": of keys and values. */
static bool read_cache(const char *plus, parts *p)
{
    char *end = NULL;
    if (!strcmp(p->cache, "f32") && (!strcmp(plus, "kv8") || !strcmp(plus, "kv4"))) {
        p->cache = plus[2] == '8' ? "int8" : "int4";
        return true;
    }
    if (p->keep || strncmp(plus, "keep:", 5) || plus[5] < '1' || plus[5] > '9') return false;
    int64_t n = strtol(plus + 5, &end, 10);
    if (*end || n >= 1000000000) return false;
    p->keep = n;
    return true;
}

/* first NULL: what is pruned. */
static bool follows(const char *plus, const char *first)
{
    bool int4 = first && !strcmp(first, "int4"), int8 = first && !strcmp(first, "int8");
    return (!first && !strcmp(plus, "int8")) || (int4 && !strcmp(plus, "gptq")) ||
           ((int4 || int8) && !strcmp(plus, "awq"));
}

static ll_err read_form(const char *name, parts *p)
{
    ll_prune rule;
    char *rest, *plus;
    size_t n = strlen(name);
    CHECK(*name != '+' && name[n - 1] != '+' && !strstr(name, "++"), LL_E_ARG,
          "--to %s: nothing next to a +, expected a form such as int8 or int8+kv8", name);
    *p = (parts){.weights = p->first, .prune = "none", .cache = "f32"};
    memcpy(p->first, name, n + 1);
    strtok_r(p->first, "+", &rest);
    const char *share = strncmp(p->first, "sparse:", 7) ? NULL : p->first + 7;
    bool prunes = (share || strchr(p->first, ':')) &&
                  ll_prune_parse(share ? share : p->first, &rule) == LL_OK && ll_prunes(&rule) &&
                  !rule.of == !!share;
    if (prunes) p->prune = share ? share : p->first, p->weights = "f32";
    while ((plus = strtok_r(NULL, "+", &rest))) {
        if (read_cache(plus, p)) continue;
        bool gptq = !strcmp(plus, "gptq"), awq = !strcmp(plus, "awq");
        bool keep = !strncmp(plus, "keep:", 5);
        CHECK(!(gptq && p->gptq) && !(awq && p->awq) && !(keep && p->keep) &&
                  !(prunes && !strcmp(p->weights, plus)),
              LL_E_ARG, "--to %s: +%s is given twice", name, plus);
        CHECK(!keep, LL_E_ARG,
              "--to %s: N of +keep:N is '%s', expected how many tokens to keep, 1 or more", name,
              plus + 5);
        p->gptq |= gptq;
        p->awq |= awq;
        if (prunes && !strcmp(plus, "int8")) p->weights = "int8";
        CHECK(!prunes || follows(plus, NULL), LL_E_ARG,
              "--to %s: only +int8, +kv8, +kv4 and +keep:N can follow %s (4 bits would not keep "
              "the zeros)",
              name, p->first);
        CHECK(prunes || follows(plus, p->first), LL_E_ARG,
              "--to %s: only +kv8, +kv4, +keep:N, +gptq (after int4) and +awq (after int4 and "
              "int8) can follow",
              name);
    }
    CHECK(prunes || !strcmp(p->first, "f32") || !strcmp(p->first, "int8") ||
              !strcmp(p->first, "int4"),
          LL_E_ARG,
          "--to %s: expected f32, int8, int4, int8+awq, int4+awq, int4+gptq, int4+awq+gptq, N:M "
          "with 0 < N < M <= 64 (2:4) or sparse:SHARE with 0 < SHARE < 1 (sparse:0.5), each "
          "optionally with +kv8, +kv4 or +keep:N",
          name);
    return LL_OK;
}

static ll_err try_form(const opts *o, const windows *w, form *f)
{
    ll_talk_opts how = o->talk;
    parts p;
    TRY(read_form(f->name, &p));
    how.weights = p.weights;
    how.cache = p.cache;
    how.keep = p.keep;
    how.context = w->seq;
    how.draw.top_p = how.draw.repetition = 1;
    LL_OWN(ll_progress) shown = NULL;
    LL_TALK t = {0};
    TRY(ll_talk_begin(&how, &t));
    t.quiet = true;
    t.prune = p.prune;
    t.guesses = p.keep                   ? 0
                : strcmp(p.cache, "f32") ? 3
                                         : 64; /* what is read at once is not from the cache */
    if (t.guesses > w->seq - 1) t.guesses = w->seq - 1;
    if (t.limit.recurs && t.run->train.prompt) t.guesses = 0; /* no way back */
    if (p.gptq || p.awq)
        t.calibrate = (ll_calibrate){.windows = o->calibrate ? o->calibrate : 32,
                                     .gptq = p.gptq,
                                     .awq = p.awq,
                                     .tell = ll_cli_calibrating,
                                     .context = &shown};
    TRY(ll_talk_open(&t, 1, w->seq));
    f->zeros = t.pruned.numbers ? (double)t.pruned.zeros / (double)t.pruned.numbers : 0;
    return measure(&t, o, w, f);
}

static ll_err show(const opts *o, const form *f, int n, const windows *w)
{
    json_auto_t *list = json_array();
    if (!o->talk.of.json)
        printf("%-13s %10s %7s %12s %12s %9s %9s %9s\n", "form", "weights", "zeros",
               f[0].state ? "state" : "cache/token", "perplexity", "change", "read/s", "drawn/s");
    LL_EACH (const form, x, f, n) {
        double change = exp(x->loss - f[0].loss) - 1;
        json_array_append_new(
            list, LL_JSON(LL_IS("form", x->name), LL_IS("weight_bytes", x->weights),
                          LL_IS("zeros", x->zeros),
                          LL_IS(x->state ? "state_bytes" : "cache_bytes_per_token", x->cache),
                          LL_IS("perplexity", exp(x->loss)), LL_IS("change", change),
                          LL_IS("read_per_s", x->read), LL_IS("drawn_per_s", x->drawn)));
        if (!o->talk.of.json)
            printf("%-13s %10s %6.1f%% %12s %12.4f %+8.2f%% %9.4g %9.4g\n", x->name,
                   LL_BYTES(x->weights), 100 * x->zeros, LL_BYTES(x->cache), exp(x->loss),
                   100 * change, x->read, x->drawn);
    }
    if (o->talk.of.json)
        return ll_cli_json(LL_JSON(LL_IS("forms", json_incref(list)), LL_IS("samples", w->n),
                                   LL_IS("seq", w->seq)));
    printf("of %s of %s; change: of perplexity, from the first; zeros: of the "
           "weights of products, before they are rounded\n",
           LL_COUNTED(w->n, "window"), LL_COUNTED(w->seq, "token"));
    return LL_OK;
}

/* "f32,int8+kv8"; one alone is held against f32. */
static ll_err read_forms(const char *to, form f[MOST], int *n)
{
    parts p;
    CHECK(*to, LL_E_ARG, "--to is empty: expected forms such as f32,int8,int4");
    *n = 0;
    if (!strchr(to, ',') && strcmp(to, "f32")) f[(*n)++] = (form){.name = "f32"};
    for (const char *at = to; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        size_t size = strcspn(at, ",");
        CHECK(*n < MOST && size && size < sizeof f->name, LL_E_ARG,
              "--to %s: expected at most %d forms separated by commas, none empty", to, MOST);
        f[*n] = (form){0};
        memcpy(f[*n].name, at, size);
        TRY(read_form(f[(*n)++].name, &p));
    }
    return LL_OK;
}

static ll_err run(const void *given)
{
    const opts *o = (const opts *)given;
    LL_OWN(ll_arena) a = ll_arena_new();
    LL_OWN(ll_run) r = NULL;
    windows w;
    int n;
    form f[MOST];
    ll_generator_limit limit;
    TRY(read_forms(o->to, f, &n));
    CHECK(!o->calibrate || strstr(o->to, "+gptq") || strstr(o->to, "+awq"), LL_E_ARG,
          "--calibrate needs a form with +gptq or +awq, but --to is %s", o->to);
    TRY(ll_cli_trained_run(&o->talk.of, &r));
    CHECK(ll_run_takes_tokens(r), LL_E_ARG, "%s is not a model of tokens, such as gpt or llama",
          r->model.name);
    TRY(read_windows(o, r, a, &w));
    TRY(ll_generator_limits(r, &limit));
    if (!strcmp(o->to, USUAL KV8) && limit.recurs) {
        fprintf(stderr, "without int8+kv8: linear attention has no keys and values to be small\n");
        n--;
    }
    for (int i = 0; i < n; i++) TRY(try_form(o, &w, &f[i]));
    return show(o, f, n, &w);
}

const ll_command ll_command_compress = {
    "compress", "compare quantized and pruned forms of a language model: size, speed, loss", args,
    sizeof(opts), run};
