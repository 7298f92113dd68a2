/* cmd_eval.c: loopline eval. */

#include "base/file.h"
#include "cli/talk.h"
#include "infer/classes.h"
#include "train/progress.h"

typedef struct opts {
    ll_trained_opts of;
    const char *confusion, *choices, *weights;
    int64_t samples, top;
    bool classes;
    int bits; /* of weights */
} opts;

static const ll_arg args[] = {
    {"RUN_FOLDER", LL_OPT(ll_trained_opts, folder), NULL, "run folder written by loopline train"},
    LL_TRAINED_ARGS,
    {"--samples", LL_OPT(opts, samples), "N",
     "use the first N validation samples or questions only; 0 = all (same as -s "
     "train.eval_samples=N)"},
    {"--classes", LL_OPT(opts, classes), NULL,
     "print precision, recall and F1 of each class, and the most confused pairs"},
    {"--confusion", LL_OPT(opts, confusion), "FILE.svg", "draw the confusion matrix"},
    {"--choices", LL_OPT(opts, choices), "FILE.jsonl",
     "language models: multiple-choice accuracy on lines of {\"question\": \"...\", \"choices\": "
     "[\"...\", \"...\"], \"answer\": 0}, instead of the validation data; the most likely choice "
     "counts as the answer"},
    {"--top|-k", LL_ARG_COUNT, offsetof(opts, top), "K", "print top-K accuracy too"},
    {"--weights", LL_OPT(opts, weights), "TYPE",
     "language models: quantize weight matrices to int8 or int4, in blocks of 32, as generate does",
     "f32"},
    LL_TRAINED_JSON,
    {0}};

/* What is seen while it goes on, on standard error, as train shows it. */
typedef struct view {
    ll_progress *p;
    const char *word; /* what is counted */
    double began;
    int64_t each; /* tokens of a sample, or 1 */
} view;

static void tell(void *context, const ll_score *sum)
{
    const view *v = (const view *)context;
    double n = (double)sum->samples, s = ll_now() - v->began;
    ll_progress_step(v->p, &(ll_step_stats){.word = v->word,
                                            .step = sum->samples,
                                            .loss = sum->loss / fmax(sum->weight, 1),
                                            .norm = NAN,
                                            .lr = NAN,
                                            .step_s = s / n,
                                            .rate = n * (double)v->each / s});
}

static view begin(const opts *o, const ll_dataset *d, const char *word)
{
    static const char *const units[] = {
        [LL_IMAGES] = "img", [LL_TOKENS] = "tok", [LL_RECORDS] = "samples"};
    const ll_data_info *info = ll_dataset_info(d);
    ll_progress_opts how = {.total = o->samples, .unit = units[info->kind]};
    return (view){.p = ll_progress_new(&how),
                  .word = word,
                  .began = ll_now(),
                  .each = info->kind == LL_TOKENS ? info->seq : 1};
}

static ll_err score(const opts *o, const ll_trained *t, const ll_dataset *d, ll_score *out)
{
    LL_OWN(ll_evaluator) e = NULL;
    TRY(ll_evaluator_open(t->run, d, t->s, &e));
    ll_evaluator_pack(e, o->bits);
    view v = begin(o, d, o->classes || o->top || o->confusion ? "loss: sample" : "sample");
    ll_err rc = ll_evaluate(e, o->samples, &(ll_stop){.context = &v, .tell = tell}, out);
    ll_progress_free(v.p);
    return rc;
}

static ll_err count(const opts *o, const ll_trained *t, const ll_dataset *d, const ll_members *m,
                    ll_arena *a, ll_classes *c)
{
    view v = begin(o, d, "classes: sample");
    ll_err rc = ll_classes_count(t->run, d, t->s, m, o->samples, o->top,
                                 &(ll_stop){.context = &v, .tell = tell}, a, c);
    ll_progress_free(v.p);
    return rc;
}

/* Weights of fewer bits are of models that generate reads, and of what is measured here. */
static ll_err check_bits(const opts *o, const ll_run *r)
{
    if (!o->bits) return LL_OK;
    CHECK(ll_run_takes_tokens(r), LL_E_ARG, "--weights %s needs a model of tokens, not %s",
          o->weights, r->model.name);
    CHECK(!o->classes && !o->confusion && !o->top && r->parallel.between.seeds != LL_SEEDS_own,
          LL_E_ARG,
          "--weights %s cannot be combined with --classes, --confusion, --top or an ensemble: it "
          "gives the loss, and --choices",
          o->weights);
    CHECK(!r->parallel.exact, LL_E_ARG,
          "--weights %s cannot be combined with exact sums: use -s parallel.exact=false",
          o->weights);
    CHECK(!r->train.quantize, LL_E_ARG,
          "--weights %s: this run's weights are already rounded (train.quantize): use -s "
          "train.quantize=none",
          o->weights);
    return LL_OK;
}

/* Of an ensemble: what its members predict on average. */
static ll_err score_members(const opts *o, const ll_trained *t, const ll_dataset *d, ll_arena *a,
                            ll_score *out, ll_classes *c)
{
    LL_OWN(ll_st_file) f = NULL;
    ll_members m;
    TRY(ll_cli_checkpoint(t->run->out, o->of.checkpoint, &f));
    TRY(ll_members_read(f, t->s, a, &m));
    TRY(count(o, t, d, &m, a, c));
    *out = (ll_score){c->loss, (double)c->correct / (double)c->samples, c->samples};
    for (int k = 0; k < m.n; k++)
        fprintf(stderr, "member %d alone: accuracy %.2f %%\n", k,
                100 * (double)c->alone[k] / (double)c->samples);
    return LL_OK;
}

/* Data that were changed since are no error, but they are others than training left out. *note:
 * NULL where there is nothing to say. */
static ll_err find_changed(const opts *o, const ll_trained *t, const ll_data_info *d, ll_arena *a,
                           const char **note)
{
    LL_OWN(ll_st_file) f = NULL;
    bool share = ll_words_said(&o->of.set, "data.val_fraction"), others = false;
    for (int i = 0; i < o->of.set.n; i++)
        others |= !strncmp(o->of.set.v[i], "data.", 5) &&
                  strncmp(o->of.set.v[i], "data.val_fraction=", 18);
    if (share && !others) *note = "with another data.val_fraction these may be samples of training";
    if (share || others) return LL_OK; /* on purpose */
    if (o->of.init) return LL_OK;
    TRY(ll_cli_checkpoint(t->run->out, o->of.checkpoint, &f));
    const char *was = ll_st_meta(f, "data digest");
    if (!was || strtoul(was, NULL, 16) == d->digest) return LL_OK;
    *note = ll_arena_printf(a,
                            "the data files have changed since training (their checksum was "
                            "%.20s, is %08x): these may not be the samples that training left out",
                            was, d->digest);
    return LL_OK;
}

static double in_top(const ll_classes *c)
{
    return (double)c->in_top / (double)c->samples;
}

static void classes_json(json_t *j, const ll_classes *c)
{
    json_t *scores = json_array(), *rows;
    for (int64_t k = 0; k < c->n; k++) {
        ll_class_score s = ll_class_score_of(c, k);
        json_array_append_new(scores,
                              LL_JSON(LL_IS("class", k), LL_IF(c->names, "name", c->names[k]),
                                      LL_IS("precision", s.precision), LL_IS("recall", s.recall),
                                      LL_IS("f1", s.f1), LL_IS("support", s.support)));
    }
    rows = LL_JSON_LIST(k, c->n, LL_JSON_LIST(i, c->n, c->confusion[k * c->n + i]));
    LL_JSON_ADD(j, LL_IS("classes", scores), LL_IS("confusion", rows));
}

/* Bytes of the text that was evaluated: what the tokens foretold spell. What ends a document is
 * one, as it is where bytes are the tokens. */
static ll_err bytes_of(const ll_tokenizer *k, const ll_dataset *d, int64_t samples, ll_arena *a,
                       int64_t *bytes)
{
    static const ll_sampling in_order = {.split = LL_VAL};
    const ll_data_info *f = ll_dataset_info(d);
    int32_t *y = LL_NEW_ARRAY(a, int32_t, f->seq);
    void *out[LL_MAX_FIELDS] = {0};
    *bytes = 0;
    for (int i = 0; i < f->n_field; i++)
        if (!strcmp(f->fields[i].name, "y")) out[i] = y;
    for (int64_t at = 0; at < samples; at++) {
        TRY(ll_dataset_read(d, &in_order, at, 1, out));
        for (int64_t i = 0; i < f->seq; i++) {
            size_t n = 0;
            (void)ll_tokenizer_bytes(k, y[i], &n);
            *bytes += ll_tokenizer_special(k, y[i]) ? 1 : (int64_t)n;
        }
    }
    return LL_OK;
}

/* Of models that tell which token comes next: how many it hesitates between, and how many bits the
 * text's bytes take. NaN: it is another model, or tokens of nobody knows which text. */
typedef struct language {
    double perplexity, bits_per_byte;
} language;

static ll_err language_of(const ll_trained *t, const ll_dataset *d, const ll_score *s, ll_arena *a,
                          language *out)
{
    const ll_data_info *i = ll_dataset_info(d);
    const char *tokenizer = t->run->data.tokenizer;
    *out = (language){NAN, NAN};
    if (i->kind != LL_TOKENS || !ll_find(t->g, "y").id) return LL_OK;
    out->perplexity = exp(s->loss);
    if (i->is_text) out->bits_per_byte = s->loss / log(2);
    if (i->is_text || !*tokenizer) return LL_OK;
    LL_OWN(ll_tokenizer) k = NULL;
    int64_t bytes, tokens = s->samples * i->seq;
    TRY(ll_tokenizer_open(tokenizer, &k));
    TRY(bytes_of(k, d, s->samples, a, &bytes));
    if (bytes) out->bits_per_byte = s->loss / log(2) * (double)tokens / (double)bytes;
    return LL_OK;
}

static ll_err show_json(const opts *o, const ll_trained *t, const ll_score *s, const ll_classes *c,
                        language l, const char *note)
{
    json_t *j = LL_JSON(LL_IS("model", t->run->model.name), LL_IS("step", t->step),
                        LL_IS("val_loss", s->loss), LL_IS("val_accuracy", s->accuracy));
    for (int i = 0; i < s->n_metric; i++) LL_JSON_ADD(j, LL_IS(s->names[i], s->metrics[i]));
    LL_JSON_ADD(j, LL_IF(!isnan(l.perplexity), "perplexity", l.perplexity),
                LL_IF(!isnan(l.bits_per_byte), "bits_per_byte", l.bits_per_byte),
                LL_IS("samples", s->samples), LL_IF(o->top, "top", c->top),
                LL_IF(o->top, "top_accuracy", in_top(c)), LL_IS("note", note));
    if (o->classes || o->confusion) classes_json(j, c);
    return ll_cli_json(j);
}

static void print_name(const ll_classes *c, int64_t k)
{
    if (c->names)
        printf("%-16.16s", c->names[k]);
    else
        printf("%-16ld", k);
}

/* A share of 1 as a percentage; none where there is nothing that it is of. */
static void print_share(double v)
{
    if (isnan(v))
        printf("%11s", "-");
    else
        printf("%9.2f %%", 100 * v);
}

/* The matrix where it fits a terminal; else the pairs that are mistaken most often. */
static void print_confusion(const ll_classes *c)
{
    enum { FITS = 20, PAIRS = 20 };
    const int64_t *m = c->confusion;
    printf("\n%s\n", c->n <= FITS ? "rows: the class; columns: what it was taken for"
                                  : "most often taken for another");
    for (int64_t i = 0; i < c->n && c->n <= FITS; i++) {
        print_name(c, i);
        for (int64_t k = 0; k < c->n; k++)
            if (m[i * c->n + k])
                printf("%6ld", m[i * c->n + k]);
            else
                printf("%6s", ".");
        putchar('\n');
    }
    int64_t most = INT64_MAX;
    for (int shown = 0; c->n > FITS && most > 0 && shown < PAIRS;) {
        int64_t next = 0; /* the largest count below the last one */
        for (int64_t i = 0; i < c->n * c->n; i++)
            if (i / c->n != i % c->n && m[i] < most && m[i] > next) next = m[i];
        most = next;
        for (int64_t i = 0; most && i < c->n * c->n && shown < PAIRS; i++) {
            if (m[i] != most || i / c->n == i % c->n) continue;
            printf("%8ld  ", most);
            print_name(c, i / c->n);
            printf(" for ");
            print_name(c, i % c->n);
            putchar('\n');
            shown++;
        }
    }
}

static void print_classes(const ll_classes *c)
{
    printf("\n%-16s%11s%11s%11s%10s\n", "class", "precision", "recall", "F1", "samples");
    for (int64_t k = 0; k < c->n; k++) {
        ll_class_score s = ll_class_score_of(c, k);
        print_name(c, k);
        print_share(s.precision);
        print_share(s.recall);
        print_share(s.f1);
        printf("%10ld\n", s.support);
    }
    print_confusion(c);
}

static ll_err show(const opts *o, const ll_trained *t, const ll_score *s, const ll_classes *c,
                   language l, const char *note)
{
    if (o->of.json) return show_json(o, t, s, c, l, note);
    printf("%s after step %ld: validation loss %s", t->run->name, t->step, LL_LOSS(s->loss));
    if (!isnan(s->accuracy)) printf(", accuracy %.2f %%", 100 * s->accuracy);
    if (o->top) printf(", top-%ld accuracy %.2f %%", c->top, 100 * in_top(c));
    for (int i = 0; i < s->n_metric; i++) printf(", %s %.4g", s->names[i], s->metrics[i]);
    if (!isnan(l.perplexity)) printf(", perplexity %.4f", l.perplexity);
    if (!isnan(l.bits_per_byte)) printf(", %.4f bits a byte", l.bits_per_byte);
    printf(" on %s\n", LL_COUNTED(s->samples, "sample"));
    if (o->classes) print_classes(c);
    return LL_OK;
}

static ll_err run(const void *given)
{
    opts own = *(const opts *)given;
    const opts *o = &own;
    LL_TRAINED t = {0};
    LL_OWN(ll_dataset) d = NULL;
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_score s;
    ll_classes c = {0};
    const char *note = NULL;
    TRY(ll_talk_bits("--weights", o->weights, &own.bits));
    if (o->choices) {
        CHECK(!o->classes && !o->confusion && !o->top, LL_E_ARG,
              "--choices reads a file of questions and cannot be combined with --classes, "
              "--confusion or --top, which read validation data");
        ll_talk_opts talk = {.of = o->of, .weights = o->weights};
        return ll_cli_choices(&talk, o->choices, o->samples);
    }
    TRY(ll_cli_trained(&o->of, &t));
    TRY(check_bits(o, t.run));
    if (!o->samples && ll_words_said(&o->of.set, "train.eval_samples"))
        own.samples = t.run->train.eval_samples; /* the run's own is training's concern */
    TRY(ll_run_dataset(t.run, &d));
    const ll_data_info *info = ll_dataset_info(d);
    int64_t all = info->n[LL_VAL];
    if (!o->samples || o->samples > all) own.samples = all;
    fprintf(stderr, "%s: %s on %s, %ld of %ld validation samples\n", t.run->name, t.run->model.name,
            info->name, o->samples, all);
    TRY(find_changed(o, &t, info, a, &note));
    if (note) fprintf(stderr, "note: %s\n", note);
    bool ensemble = !o->of.init && t.run->parallel.between.seeds == LL_SEEDS_own;
    /* classes first: not every model has them */
    if (!ensemble && (o->classes || o->confusion || o->top)) TRY(count(o, &t, d, NULL, a, &c));
    TRY(ensemble ? score_members(o, &t, d, a, &s, &c) : score(o, &t, d, &s));
    if (o->confusion) {
        const char *svg = ll_classes_svg(&c, ll_arena_printf(a, "%s: classes", t.run->name), a);
        TRY(ll_file_write(o->confusion, svg, strlen(svg)));
    }
    language l;
    TRY(language_of(&t, d, &s, a, &l));
    return show(o, &t, &s, &c, l, note);
}

const ll_command ll_command_eval = {"eval", "evaluate a trained model on the validation data", args,
                                    sizeof(opts), run};
