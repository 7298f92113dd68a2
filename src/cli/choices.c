/* choices.c: eval --choices. Of each question the choice is taken that the model would go on with
 * most likely: by the sum of its tokens' log-probabilities, and by that over the choice's bytes, as
 * long choices are less likely for their length alone. A choice's tokens are those of question and
 * choice together, but for those that the question begins with by itself. */
#include "cli/talk.h"

#include "base/file.h"
#include "data/parse.h"
#include "train/progress.h"

/* One choice, with its question. */
typedef struct reading {
    ll_tokens of;
    int64_t first; /* token that is the choice's */
} reading;

typedef struct work {
    ll_talk *t;
    ll_arena *arena;
    const char *file;
    ll_question *q;
    reading *of;     /* [n,LL_CHOICES] */
    int64_t n, most; /* most: tokens of a reading */
    double *likely;  /* [n,LL_CHOICES]: logarithms */
    int8_t *picked;  /* [n,2]: by likelihood, by likelihood of a byte */
    int64_t right[2];
    double chance;
} work;

/* A blank between them, where neither has one. */
static const char *together(ll_arena *a, const char *question, const char *choice)
{
    bool blank = strchr(" \t\n", question[strlen(question) - 1]) || strchr(" \t\n", *choice);
    return ll_arena_printf(a, "%s%s%s", question, blank ? "" : " ", choice);
}

static ll_err read_question(work *w, int64_t i)
{
    const ll_question *q = &w->q[i];
    ll_tokens alone = {.arena = w->arena};
    int64_t most = w->t->limit.places;
    TRY(ll_talk_add(w->t, q->text, &alone));
    for (int k = 0; k < q->n; k++) {
        reading *r = &w->of[i * LL_CHOICES + k];
        *r = (reading){{.arena = w->arena}};
        TRY(ll_talk_add(w->t, together(w->arena, q->text, q->choices[k]), &r->of));
        while (r->first < alone.n && r->first < r->of.n - 1 &&
               r->of.v[r->first] == alone.v[r->first])
            r->first++;
        CHECK(r->first > 0, LL_E_IO,
              "%s:%ld: question and choice %d are one token: at least two are needed", w->file,
              q->line, k);
        CHECK(r->of.n <= most + 1, LL_E_IO,
              "%s:%ld: question and choice %d are %d tokens, but the model reads at most %ld "
              "(model.seq)",
              w->file, q->line, k, r->of.n, most);
        if (r->of.n > w->most) w->most = r->of.n;
    }
    return LL_OK;
}

static ll_err answer(work *w, int64_t i)
{
    const ll_question *q = &w->q[i];
    double best[2] = {0};
    for (int k = 0; k < q->n; k++) {
        const reading *r = &w->of[i * LL_CHOICES + k];
        double sum = 0;
        TRY(ll_generator_score(w->t->g, r->of.v, r->first, r->of.n, &sum));
        double is[2] = {-sum, -sum / (double)strlen(q->choices[k])};
        w->likely[i * LL_CHOICES + k] = -sum;
        for (int by = 0; by < 2; by++)
            if (!k || is[by] > best[by]) best[by] = is[by], w->picked[2 * i + by] = (int8_t)k;
    }
    for (int by = 0; by < 2; by++) w->right[by] += w->picked[2 * i + by] == q->answer;
    w->chance += 1.0 / q->n;
    return LL_OK;
}

static ll_err answer_all(work *w)
{
    ll_err rc = LL_OK;
    double began = ll_now();
    ll_progress *p = ll_progress_new(&(ll_progress_opts){.total = w->n});
    for (int64_t i = 0; i < w->n && rc == LL_OK; i++) {
        rc = answer(w, i);
        double each = (ll_now() - began) / (double)(i + 1);
        ll_progress_step(p, &(ll_step_stats){.word = "question",
                                             .step = i + 1,
                                             .loss = NAN,
                                             .norm = NAN,
                                             .lr = NAN,
                                             .step_s = each});
    }
    ll_progress_free(p);
    return rc;
}

static ll_err show(const work *w, bool json)
{
    double n = (double)w->n;
    if (!json) {
        printf("%s after step %ld: %.2f %% of %ld questions by likelihood, %.2f %% by likelihood "
               "of a byte (by chance %.2f %%)\n",
               w->t->run->name, w->t->step, 100 * (double)w->right[0] / n, w->n,
               100 * (double)w->right[1] / n, 100 * w->chance / n);
        return LL_OK;
    }
    json_t *list = LL_JSON_LIST(
        i, w->n,
        LL_JSON(
            LL_IS("line", w->q[i].line), LL_IS("answer", w->q[i].answer),
            LL_IS("picked", w->picked[2 * i]), LL_IS("picked_by_byte", w->picked[2 * i + 1]),
            LL_IS("log_likelihood", LL_JSON_LIST(k, w->q[i].n, w->likely[i * LL_CHOICES + k]))));
    return ll_cli_json(LL_JSON(LL_IS("model", w->t->run->model.name), LL_IS("step", w->t->step),
                               LL_IS("accuracy", (double)w->right[0] / n),
                               LL_IS("accuracy_by_byte", (double)w->right[1] / n),
                               LL_IS("chance", w->chance / n), LL_IS("questions", list)));
}

ll_err ll_cli_choices(const ll_talk_opts *given, const char *file, int64_t most)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    LL_OWN_MEMORY uint8_t *text = NULL;
    size_t size;
    ll_talk_opts o = *given;
    LL_TALK t = {0};
    work w = {.t = &t, .arena = a, .file = file};
    o.cache = "f32";
    o.draw.top_p = o.draw.repetition = 1;
    TRY(ll_file_read(file, (size_t)1 << 32, &text, &size));
    TRY(ll_choices_parse(text, size, file, a, &w.q, &w.n));
    if (most && most < w.n) w.n = most;
    TRY(ll_talk_begin(&o, &t));
    w.of = LL_NEW_ARRAY(a, reading, w.n * LL_CHOICES);
    w.likely = LL_NEW_ARRAY(a, double, w.n *LL_CHOICES);
    w.picked = LL_NEW_ARRAY(a, int8_t, 2 * w.n);
    for (int64_t i = 0; i < w.n; i++) TRY(read_question(&w, i));
    t.quiet = true;
    CHECK(!t.run->train.quantize, LL_E_ARG,
          "--choices needs f32 weights, but this run's are rounded (train.quantize): use -s "
          "train.quantize=none");
    t.guesses = w.most > 33 ? 32 : w.most > 3 ? w.most - 2 : 1;
    if (t.limit.recurs) t.guesses = 0; /* a state has no way back */
    TRY(ll_talk_open(&t, 1, w.most));
    TRY(answer_all(&w));
    return show(&w, o.of.json);
}
