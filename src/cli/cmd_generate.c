/* cmd_generate.c: loopline generate. Samples text from a trained model of tokens, of several
 * prompts at once: what they were answered so far stays as keys and values (infer/generate.h). */
#include "cli/bench.h"
#include "cli/talk.h"

typedef struct opts {
    ll_talk_opts talk;
    ll_words prompts;
    const char *draft;
    int64_t guesses;
    bool profile;
} opts;

static const ll_arg args[] = {
    {"RUN_FOLDER", LL_OPT(ll_trained_opts, folder), NULL,
     "run folder of a language model, trained or imported"},
    {"--prompt|-p", LL_OPT(opts, prompts), "TEXT",
     "prompt; may be given several times to generate a batch (if not given, a newline)"},
    {"--source", LL_OPT(ll_talk_opts, source), "TEXT",
     "encoder-decoder models (seq2seq): input text of the encoder; one for all prompts, or one per "
     "prompt"},
    {"--draft", LL_OPT(opts, draft), "RUN_FOLDER",
     "speculative decoding with this smaller draft model, which must have the same tokenizer; the "
     "text stays the same"},
    {"--draft-tokens", LL_ARG_COUNT, offsetof(opts, guesses), "K",
     "tokens drafted at a time [default: 4]"},
    {"--profile", LL_OPT(opts, profile), NULL, "print the time per op for one token (CPUs)"},
    LL_TALK_ARGS(
        {"--json", LL_OPT(ll_trained_opts, json), NULL,
         "print one JSON object to standard output, or a list of them for several prompts"})};

static json_t *one_json(const ll_talk *t, int64_t i, const char *prompt, const ll_saying *s)
{
    int64_t n;
    const int32_t *v = ll_generator_tokens(t->g, i, &n);
    LL_OWN(ll_arena) a = ll_arena_new();
    const char *text = ll_arena_printf(a, "%s%s", prompt, s->text.text ? s->text.text : "");
    return LL_JSON(LL_IS("model", t->run->model.name), LL_IS("step", t->step),
                   LL_IS("text", json_loads(ll_text_quoted(a, text), JSON_DECODE_ANY, NULL)),
                   LL_IS("tokens", LL_JSON_LIST(k, n, v[k])));
}

static ll_err show(const ll_talk *t, char *const *prompts, const ll_saying *s, int64_t n)
{
    json_auto_t *all = json_array();
    for (int64_t i = 0; i < n && t->o->of.json; i++)
        json_array_append_new(all, one_json(t, i, prompts[i], &s[i]));
    for (int64_t i = 0; i < n && !t->o->of.json && n > 1; i++) {
        printf("%s", prompts[i]);
        if (s[i].text.len) fwrite(s[i].text.text, 1, s[i].text.len, stdout);
        printf("\n");
    }
    if (t->o->of.json) return ll_cli_json(json_incref(n == 1 ? json_array_get(all, 0) : all));
    if (n == 1) printf("\n");
    return LL_OK;
}

/* On the same ranks. */
static ll_err open_both(ll_talk *t, int64_t n, int64_t places)
{
    TRY(ll_talk_ranks(t, n));
    if (t->draft) {
        t->draft->comm = t->comm;
        t->draft->mesh = t->mesh;
        t->draft->prints = t->prints;
        t->draft->run->kernels = t->run->kernels; /* what both note is told once */
        TRY(ll_talk_open(t->draft, n, places));
    }
    TRY(ll_talk_open(t, n, places));
    CHECK(!t->draft || !(ll_generator_recurs(t->g) || ll_generator_recurs(t->draft->g)), LL_E_ARG,
          "--draft cannot be used with linear attention, whose state cannot undo wrong guesses: "
          "leave it out");
    return LL_OK;
}

static ll_err put_sources(ll_talk *t, int64_t n)
{
    const ll_words *s = &t->o->source;
    for (int64_t i = 0; i < n && s->n; i++) {
        LL_OWN_MEMORY int32_t *v = NULL;
        int64_t count;
        TRY(ll_talk_encode(t, s->v[s->n > 1 ? i : 0], true, &v, &count));
        TRY(ll_generator_source(t->g, i, v, count));
    }
    return LL_OK;
}

/* Prompts become tokens before the model is opened: the longest decides how much is kept. */
static ll_err put_prompts(ll_talk *t, char *const *prompts, int64_t n, int64_t *tokens)
{
    int64_t most = 0;
    int bos = t->t ? t->t->bos : -1;
    for (int pass = 0; pass < 2; pass++) {
        if (pass) TRY(open_both(t, n, most + t->o->tokens));
        for (int64_t i = 0; i < n; i++) {
            LL_OWN_MEMORY int32_t *v = NULL;
            int64_t count;
            int32_t first = bos;
            TRY(ll_talk_encode(t, prompts[i], true, &v, &count));
            CHECK(count + (bos >= 0), LL_E_ARG,
                  "--prompt is empty, and this model has no token that begins a text: give at "
                  "least one character");
            if (count + 1 > most) most = count + 1;
            if (pass && bos >= 0) TRY(ll_generator_put(t->g, i, &first, 1));
            if (pass) TRY(ll_talk_put(t, i, v, count));
            if (pass) *tokens += ll_min64(count, ll_generator_places(t->g));
        }
    }
    return put_sources(t, n);
}

/* Of the program that takes one token of each, since it had taken `before`; s: all seconds. */
static void show_profile(const ll_talk *t, uint64_t before, double s)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_bench_report *b = LL_NEW(a, ll_bench_report);
    const ll_session *one = ll_generator_session(t->g);
    int runs = (int)(one->step - before);
    if (!t->profile || !runs) return;
    ll_bench_gather(one, runs, b);
    double each = s / runs, rest = each;
    fprintf(stderr, "\n%6s %10s %6s  op, of a token\n", "calls", "ms", "%");
    LL_EACH (const ll_bench_line, l, b->lines, b->n_line) {
        fprintf(stderr, "%6d %10.3f %5.1f%%  %s\n", l->count, 1e3 * l->seconds,
                100 * l->seconds / each, l->what);
        rest -= l->seconds;
    }
    fprintf(stderr, "%6s %10.3f %5.1f%%  between ops, and the choice of tokens\n", "", 1e3 * rest,
            100 * rest / each);
}

static ll_err sample(ll_talk *t, char *const *prompts, int64_t n)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_saying *s = LL_NEW_ARRAY(a, ll_saying, n);
    int64_t read = 0, made = 0;
    for (int64_t i = 0; i < n; i++) s[i] = ll_talk_saying(t, a, i, -1);
    TRY(put_prompts(t, prompts, n, &read));
    if (!t->prints) return ll_talk_follow(t);
    bool stream = n == 1 && !t->o->of.json;
    if (stream) printf("%s", prompts[0]);
    double begin = ll_now();
    TRY(ll_generator_run(t->g));
    ll_session *one = ll_generator_session(t->g);
    uint64_t before = one->step;
    if (t->profile) ll_exec_profile(one->e, true);
    double after = ll_now();
    TRY(ll_talk_say(t, s, n, stream));
    double end = ll_now();
    for (int64_t i = 0; i < n; i++) made += s[i].tokens;
    TRY(show(t, prompts, s, n));
    fflush(stdout);
    if (t->comm) /* a launcher passes each stream on by itself, and may be late with the text */
        nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    fprintf(stderr, "%s read in %.2f s, %s/s; %ld drawn in %.2f s, %s/s\n",
            LL_COUNTED(read, "token"), after - begin, LL_AMOUNT((double)read / (after - begin)),
            made, end - after, LL_AMOUNT((double)made / (end - after)));
    show_profile(t, before, end - after);
    if (t->draft) fprintf(stderr, "%ld of %ld guesses were right\n", t->taken, t->guessed);
    return LL_OK;
}

/* A model that guesses must speak of the same tokens. */
static ll_err open_draft(const opts *o, const ll_talk_opts *its, ll_talk *t, ll_talk *d)
{
    size_t a, b;
    CHECK(o->guesses <= 64, LL_E_ARG, "--draft-tokens is %ld, expected at most 64", o->guesses);
    TRY(ll_talk_begin(its, d));
    bool same = d->vocab == t->vocab && !d->t == !t->t;
    for (int i = 0; same && t->t && i < t->t->n; i++) {
        const char *x = ll_tokenizer_bytes(t->t, i, &a), *y = ll_tokenizer_bytes(d->t, i, &b);
        same = !x == !y && a == b && (!x || !memcmp(x, y, a));
    }
    CHECK(same, LL_E_ARG, "--draft %s: its tokens differ from those of %s", o->draft,
          o->talk.of.folder);
    t->draft = d;
    int64_t drawn = o->talk.tokens > 1 ? o->talk.tokens - 1 : 1; /* the last one is not guessed */
    t->guesses = ll_min64(o->guesses ? o->guesses : 4, drawn);
    int64_t kept = o->talk.context ? o->talk.context : t->limit.places;
    CHECK(t->guesses < kept, LL_E_ARG,
          "--draft-tokens is %ld, expected fewer than the %ld tokens that are kept (--context, "
          "model.seq)",
          t->guesses, kept);
    return LL_OK;
}

static ll_err run(const void *given)
{
    const opts *o = (const opts *)given;
    LL_TALK t = {0};
    LL_TALK draft = {.number = 1};
    ll_talk_opts its = o->talk;
    static const char *const usual[] = {"\n"};
    int n = o->prompts.n ? o->prompts.n : 1, sources = o->talk.source.n;
    char *const *prompts = (char *const *)(o->prompts.n ? o->prompts.v : (const char **)usual);
    CHECK(sources <= 1 || sources == n, LL_E_ARG,
          "--source is given %d times and --prompt %d times: expected one source, or one for each",
          sources, n);
    CHECK(!sources || !o->draft, LL_E_ARG, "--source cannot be combined with --draft");
    CHECK(!o->draft || !o->talk.keep, LL_E_ARG,
          "--keep cannot be combined with --draft: what is dropped for a wrong guess cannot be "
          "restored");
    CHECK(o->draft || !o->guesses, LL_E_ARG, "--draft-tokens needs --draft RUN_FOLDER");
    CHECK(!o->profile || !o->draft, LL_E_ARG, "--profile cannot be combined with --draft");
    TRY(ll_talk_begin(&o->talk, &t));
    const ll_machine *m;
    TRY(ll_machine_find(t.run->train.machine, &m));
    CHECK(!o->profile || !m->device, LL_E_ARG,
          "--profile needs a machine that runs on CPUs: train.machine is %s", m->target->name);
    t.profile = o->profile;
    its.of = (ll_trained_opts){.folder = o->draft};
    if (o->draft) TRY(open_draft(o, &its, &t, &draft));
    return ll_talk_leave(&t, sample(&t, prompts, n));
}

const ll_command ll_command_generate = {"generate", "generate text with a language model", args,
                                        sizeof(opts), run};
