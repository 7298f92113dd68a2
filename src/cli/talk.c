/* talk.c: a model of tokens at work. */
#define _GNU_SOURCE /* memmem */
#include "cli/talk.h"

#include "comm/job.h"
#include "kern/notes.h"

/* A run's own mesh is that of its training: only what is said here counts. */
static ll_err find_mesh(ll_talk *t)
{
    const char *said = ll_words_said(&t->o->of.set, "parallel.mesh");
    t->mesh = t->o->mesh;
    if (!said || !*said) return LL_OK;
    CHECK(!t->mesh || !strcmp(said, t->mesh), LL_E_ARG,
          "--mesh=%s cannot be combined with -s parallel.mesh=%s: leave one out", t->mesh, said);
    t->mesh = said;
    return LL_OK;
}

ll_err ll_talk_bits(const char *option, const char *type, int *bits)
{
    *bits = !strcmp(type, "int8") ? 8 : !strcmp(type, "int4") ? 4 : 0;
    CHECK(*bits || !strcmp(type, "f32"), LL_E_ARG, "%s is '%s', expected f32, int8 or int4", option,
          type);
    return LL_OK;
}

/* What weights, keys and values are made of. */
static ll_err find_bits(const ll_talk *t, int *weights, int *cache)
{
    const char *w = t->o->weights, *c = t->o->cache;
    TRY(ll_talk_bits("--weights", w, weights));
    TRY(ll_talk_bits("--cache", c, cache));
    bool exact = t->run->parallel.exact;
    CHECK(!*cache || !exact, LL_E_ARG,
          "keys and values in %s cannot be combined with exact sums (--exact, or the run's own): "
          "use -s "
          "parallel.exact=false",
          c);
    CHECK(!t->o->keep || (!*cache && !exact), LL_E_ARG,
          "--keep needs --cache f32 and no exact sums (-s parallel.exact=false)");
    CHECK(!*weights || !exact, LL_E_ARG,
          "weights in %s cannot be combined with exact sums (--exact, or the run's own): use -s "
          "parallel.exact=false",
          w);
    return LL_OK;
}

/* A draft's own sequences may be shorter. */
static ll_err check_context(ll_talk *t)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    int64_t asked = t->o->context;
    TRY(ll_generator_limits(t->run, &t->limit));
    if (t->number || asked <= t->limit.places) return LL_OK;
    CHECK(!t->limit.endless, LL_E_ARG,
          "--context is %ld, expected at most %ld; or leave it out, as this model keeps a state "
          "for texts of any length",
          asked, t->limit.places);
    const char *more =
        t->limit.learned
            ? "its positions are weights, and it has no more"
            : ll_arena_printf(a, "-s model.seq=%ld allows more than it was trained on", asked);
    FAIL(
        LL_E_ARG,
        "--context is %ld, expected at most the %ld tokens of the model's sequences (model.%s); %s",
        asked, t->limit.places, t->limit.places > ll_run_size(t->run, "seq", 0) ? "places" : "seq",
        more);
}

ll_err ll_talk_begin(const ll_talk_opts *o, ll_talk *t)
{
    int bits[2];
    *t = (ll_talk){.o = o, .prints = true, .number = t->number};
    t->how = o->draw;
    t->how.seed = (uint64_t)o->seed;
    TRY(ll_draw_check(&t->how));
    CHECK(o->tokens <= 1000000000, LL_E_ARG, "--tokens is %ld, expected at most 1e9", o->tokens);
    for (int i = 0; i < o->stop.n; i++)
        CHECK(*o->stop.v[i], LL_E_ARG, "--stop is empty and stops nothing: leave it out");
    TRY(ll_cli_trained_run(&o->of, &t->run));
    if (o->exact) TRY(ll_run_set(t->run, "parallel.exact=true"));
    TRY(find_mesh(t));
    TRY(find_bits(t, &bits[0], &bits[1]));
    CHECK(ll_run_takes_tokens(t->run), LL_E_ARG,
          "%s does not generate text: use a model of tokens, such as gpt or llama",
          t->run->model.name);
    bool answers = ll_run_size(t->run, "source", 0) > 0;
    CHECK(!answers || o->source.n, LL_E_ARG,
          "%s needs a source: loopline generate RUN_FOLDER --source TEXT", t->run->model.name);
    CHECK(answers || !o->source.n, LL_E_ARG,
          "--source needs a model that reads one, such as seq2seq: %s takes only --prompt",
          t->run->model.name);
    TRY(check_context(t));
    t->vocab = ll_run_size(t->run, "vocab", 0);
    if (*t->run->data.tokenizer) return ll_tokenizer_open(t->run->data.tokenizer, &t->t);
    CHECK(t->vocab <= 256, LL_E_ARG,
          "this model's vocabulary is %ld tokens, not bytes: set data.tokenizer to its tokenizer",
          t->vocab);
    return LL_OK;
}

static ll_err load(void *user, ll_session *s)
{
    ll_talk *t = (ll_talk *)user;
    ll_err rc = ll_cli_trained_load(t->run, &t->o->of, s, &t->step);
    if (rc == LL_OK && t->prune) rc = ll_prune_session(t->prune, s, &t->pruned);
    return t->comm ? ll_comm_agree(t->comm, rc) : rc; /* what none can read is told once */
}

ll_err ll_talk_ranks(ll_talk *t, int64_t batch)
{
    ll_mesh m;
    ll_care stays = {.start = ll_cli_wait};
    if (t->comm) return LL_OK;
    CHECK(t->mesh || ll_job_size() <= 1, LL_E_ARG,
          "without --mesh this runs in one process, but %d ranks were started: use --mesh "
          "tensor=%d, or start it without mpirun",
          ll_job_size(), ll_job_size());
    if (!t->mesh) return LL_OK;
    TRY(ll_mesh_parse(t->mesh, &m));
    int data = ll_mesh_axis(&m, LL_AXIS_DATA), sequence = ll_mesh_axis(&m, LL_AXIS_SEQUENCE);
    CHECK(data < 0 || m.size[data] <= batch, LL_E_ARG,
          "--mesh %s: axis data gives each rank its own texts, but only %ld (--prompt, serve's "
          "--batch) can be read at once: use %d, or axis tensor",
          t->mesh, batch, m.size[data]);
    CHECK(sequence < 0 || m.size[sequence] == 1, LL_E_ARG,
          "--mesh %s: axis sequence cuts texts, which are generated token by token: use axis "
          "tensor or pipe",
          t->mesh);
    TRY(ll_cli_launch_mesh(t->mesh, m.n_rank, t->waits ? &stays : NULL));
    ll_comm_opts o = ll_run_comm(t->run);
    TRY(ll_comm_open(&o, &t->comm));
    TRY(ll_comm_agree(t->comm, ll_mesh_fits(&m, ll_comm_size(t->comm))));
    t->prints = ll_comm_rank(t->comm) == 0;
    return LL_OK;
}

/* What the fullest rank has; keys and values of all, where they differ. */
static ll_err tell_memory(const ll_talk *t)
{
    double cache = (double)ll_generator_cache_bytes(t->g);
    double most[3] = {(double)ll_generator_bytes(t->g), cache, -cache};
    if (t->comm) TRY(ll_comm_allreduce(t->comm, most, 3, LL_F64, LL_REDUCE_MAX, NULL));
    if (t->prints)
        fprintf(stderr, "memory%s: %s, of that %s %s%s%s\n", t->comm ? " of a rank" : "",
                LL_BYTES(most[0]),
                ll_generator_recurs(t->g) ? "states, however long a text is," : "keys and values",
                -most[2] < most[1] ? LL_BYTES(-most[2]) : "", -most[2] < most[1] ? " to " : "",
                LL_BYTES(most[1]));
    return LL_OK;
}

ll_err ll_talk_open(ll_talk *t, int64_t batch, int64_t places)
{
    ll_generator_opts o = {.batch = batch,
                           .chunk = t->chunk,
                           .guesses = t->guesses,
                           .number = t->number,
                           .calibrate = t->calibrate,
                           .keep = t->o->keep,
                           .places = t->o->context      ? t->o->context
                                     : t->limit.endless ? 0
                                                        : places,
                           .load = load,
                           .user = t};
    TRY(find_bits(t, &o.bits, &o.cache_bits));
    CHECK(!o.keep || !t->limit.recurs, LL_E_ARG,
          "--keep applies only to keys and values; linear attention keeps a state of fixed size: "
          "leave it out");
    TRY(ll_talk_ranks(t, batch));
    o.session = ll_cli_trained_session(t->run, t->comm, t->comm ? t->mesh : NULL);
    TRY(ll_generator_open(t->run, &o, &t->g));
    if (t->prints) ll_kern_notes_print(t->run->kernels, stderr);
    return t->quiet ? LL_OK : tell_memory(t);
}

ll_err ll_talk_follow(ll_talk *t)
{
    ll_generator *all[2] = {t->g, t->draft ? t->draft->g : NULL};
    return ll_generator_follow(all, t->draft ? 2 : 1);
}

ll_err ll_talk_leave(ll_talk *t, ll_err rc)
{
    ll_comm *c = t->comm;
    if (rc == LL_OK && c && t->prints) rc = ll_generator_dismiss(t->g);
    for (ll_talk *x = t->draft ? t->draft : t;; x = t) {
        ll_generator_close(x->g);
        x->g = NULL;
        x->comm = NULL;
        if (x == t) break;
    }
    return c ? ll_cli_leave(c, rc) : rc;
}

void ll_talk_close(ll_talk *t)
{
    ll_generator_close(t->g);
    ll_comm_close(t->comm);
    ll_tokenizer_close(t->t);
    ll_run_free(t->run);
}

ll_err ll_talk_encode(const ll_talk *t, const char *text, bool special, int32_t **out, int64_t *n)
{
    if (t->t) return ll_tokenizer_encode(t->t, text, strlen(text), special, out, n);
    *n = (int64_t)strlen(text);
    *out = (int32_t *)malloc(sizeof **out * (size_t)(*n + 1));
    CHECK(*out, LL_E_MEM, "not enough memory for %ld tokens", *n);
    for (int64_t i = 0; i < *n; i++) {
        (*out)[i] = (unsigned char)text[i];
        CHECK((*out)[i] < t->vocab, LL_E_ARG,
              "the prompt has byte %d ('%c'), but the model's vocabulary is the bytes below %ld",
              (*out)[i], text[i] >= ' ' && text[i] < 127 ? text[i] : '?', t->vocab);
    }
    return LL_OK;
}

ll_err ll_talk_put(ll_talk *t, int64_t i, const int32_t *tokens, int64_t n)
{
    int64_t room = ll_generator_places(t->g);
    if (n > room && t->prints)
        fprintf(stderr,
                "note: %ld tokens at once, but only %ld are kept (--context, model.seq): only the "
                "last %ld are read\n",
                n, room, room);
    return ll_generator_put(t->g, i, tokens, n);
}

/* ---- saying ---- */

ll_saying ll_talk_saying(const ll_talk *t, ll_arena *a, int64_t i, int stop_token)
{
    ll_saying s = {.text.arena = a,
                   .done = t->o->tokens == 0,
                   .how = t->how,
                   .most = t->o->tokens,
                   .stop = t->o->stop,
                   .stop_token = stop_token};
    s.how.stream = (uint64_t)i;
    return s;
}

/* Cuts the text off where a stop text begins. Returns how much of its end may yet become one. */
static size_t stopped(ll_saying *s, size_t from)
{
    size_t longest = 0;
    for (int i = 0; i < s->stop.n; i++) {
        const char *stop = s->stop.v[i];
        size_t n = strlen(stop), back = from > n ? from - n : 0;
        if (!n || !s->text.text || back > s->text.len) continue;
        const char *at = (const char *)memmem(s->text.text + back, s->text.len - back, stop, n);
        if (at) {
            s->text.len = (size_t)(at - s->text.text);
            s->text.text[s->text.len] = 0;
            s->done = s->ended = true;
        }
        if (n > longest) longest = n;
    }
    return s->done || !longest ? 0 : longest - 1;
}

static void show(ll_saying *s)
{
    size_t end = s->text.len > s->hold ? s->text.len - s->hold : 0;
    if (end <= s->shown) return;
    fwrite(s->text.text + s->shown, 1, end - s->shown, stdout);
    fflush(stdout);
    s->shown = end;
}

ll_err ll_talk_next(ll_talk *t, ll_saying *s, int64_t i)
{
    int32_t token = ll_generator_draw(t->g, i, &s->how, s->tokens);
    size_t n = 1, from = s->text.len;
    char byte = (char)token;
    if (t->t && (token == t->t->eos || token == s->stop_token)) {
        s->done = s->ended = true;
        s->hold = 0;
        return LL_OK;
    }
    const char *bytes = t->t ? ll_tokenizer_bytes(t->t, token, &n) : &byte;
    TRY(ll_generator_put(t->g, i, &token, 1));
    ll_buf_add(&s->text, bytes ? bytes : "", bytes ? n : 0);
    s->done = ++s->tokens >= s->most;
    s->hold = stopped(s, from);
    return LL_OK;
}

/* ---- guesses ---- */

/* The draft's sequence i becomes this one's. */
static ll_err follow(ll_talk *t, int64_t i)
{
    int64_t n, m, same = 0;
    const int32_t *v = ll_generator_tokens(t->g, i, &n);
    const int32_t *w = ll_generator_tokens(t->draft->g, i, &m);
    while (same < n && same < m && v[same] == w[same]) same++;
    ll_generator_back(t->draft->g, i, same);
    return ll_generator_put(t->draft->g, i, v + same, n - same);
}

static ll_err make_guesses(ll_talk *t, const ll_saying *s, int64_t n, int32_t *guess, int *count)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t left = s[i].most - s[i].tokens - 1; /* the last one is drawn anyway */
        count[i] = s[i].done ? 0 : (int)(left < t->guesses ? left : t->guesses);
        if (count[i]) TRY(follow(t, i));
    }
    for (int64_t k = 0; k < t->guesses; k++) {
        TRY(ll_generator_run(t->draft->g));
        for (int64_t i = 0; i < n; i++) {
            int32_t *at = &guess[i * t->guesses + k];
            if (k >= count[i]) continue;
            *at = ll_generator_draw(t->draft->g, i, &s[i].how, s[i].tokens + k);
            TRY(ll_generator_put(t->draft->g, i, at, 1));
        }
    }
    return LL_OK;
}

/* What sequence i says, as long as it is what was guessed, and one more. */
static ll_err take_guesses(ll_talk *t, ll_saying *s, int64_t i, const int32_t *guess, int count)
{
    t->guessed += count;
    for (int k = 0; !s->done; k++) {
        int64_t n;
        TRY(ll_talk_next(t, s, i));
        const int32_t *v = ll_generator_tokens(t->g, i, &n);
        if (s->done || k >= count || v[n - 1] != guess[k] || !ll_generator_accept(t->g, i)) break;
        t->taken++;
    }
    return LL_OK;
}

static ll_err say_guessing(ll_talk *t, ll_saying *s, int64_t n, bool stream)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    int32_t *guess = LL_NEW_ARRAY(a, int32_t, n * t->guesses);
    int *count = LL_NEW_ARRAY(a, int, n);
    for (bool more = true; more;) {
        TRY(make_guesses(t, s, n, guess, count));
        TRY(ll_generator_guess(t->g, guess, t->guesses, count));
        more = false;
        for (int64_t i = 0; i < n; i++) {
            TRY(take_guesses(t, &s[i], i, guess + i * t->guesses, count[i]));
            if (stream && t->prints) show(&s[i]);
            more |= !s[i].done;
        }
    }
    return LL_OK;
}

ll_err ll_talk_say(ll_talk *t, ll_saying *s, int64_t n, bool stream)
{
    if (t->draft) return say_guessing(t, s, n, stream);
    for (bool more = true; more;) {
        TRY(ll_generator_run(t->g));
        more = false;
        for (int64_t i = 0; i < n; i++) {
            if (!s[i].done) TRY(ll_talk_next(t, &s[i], i));
            if (stream && t->prints) show(&s[i]);
            more |= !s[i].done;
        }
    }
    return LL_OK;
}

/* ---- conversations ---- */

/* How families write who says what; mark: what their templates have and others have not. */
struct ll_family {
    const char *mark, *begin, *role, *after_role, *end, *stop;
};
static const ll_family families[] = {
    {"<|im_start|>", "", "<|im_start|>", "\n", "<|im_end|>\n", "<|im_end|>"},
    {"<|start_header_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>\n\n",
     "<|eot_id|>", "<|eot_id|>"},
};

ll_err ll_talk_family(const ll_talk *t, const ll_family **out)
{
    const char *template = t->t ? t->t->chat : NULL;
    *out = NULL;
    CHECK(template, LL_E_ARG,
          "%s: its tokenizer has no chat_template: use generate, or serve's /v1/completions",
          t->o->of.folder);
    for (size_t i = 0; i < sizeof families / sizeof *families && !*out; i++)
        if (strstr(template, families[i].mark)) *out = &families[i];
    CHECK(*out, LL_E_ARG,
          "%s: its chat_template uses neither <|im_start|> nor <|start_header_id|>, the supported "
          "families: use generate, or serve's /v1/completions",
          t->o->of.folder);
    return LL_OK;
}

int ll_family_stop(const ll_talk *t, const ll_family *f)
{
    return ll_tokenizer_find(t->t, f->stop);
}

static ll_err add(const ll_talk *t, const char *text, bool special, ll_tokens *out)
{
    LL_OWN_MEMORY int32_t *v = NULL;
    int64_t n;
    TRY(ll_talk_encode(t, text, special, &v, &n));
    for (int64_t i = 0; i < n; i++) LL_PUSH(out->arena, out->v, out->n, out->room, v[i]);
    return LL_OK;
}

ll_err ll_talk_add(const ll_talk *t, const char *text, ll_tokens *out)
{
    int32_t bos = t->t ? t->t->bos : -1;
    if (bos >= 0) LL_PUSH(out->arena, out->v, out->n, out->room, bos);
    return add(t, text, true, out);
}

ll_err ll_family_begin(const ll_talk *t, const ll_family *f, ll_tokens *out)
{
    return add(t, f->begin, true, out);
}

ll_err ll_family_turn(const ll_talk *t, const ll_family *f, const char *who, const char *text,
                      ll_tokens *out)
{
    TRY(add(t, f->role, true, out));
    TRY(add(t, who, false, out));
    TRY(add(t, f->after_role, true, out));
    if (!text) return LL_OK;
    TRY(add(t, text, false, out));
    return ll_family_end(t, f, out);
}

ll_err ll_family_end(const ll_talk *t, const ll_family *f, ll_tokens *out)
{
    return add(t, f->end, true, out);
}
