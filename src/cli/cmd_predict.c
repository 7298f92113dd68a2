/* cmd_predict.c: loopline predict: a trained model's answers for files. */
#include "cli/common.h"

#include "base/file.h"
#include "data/samples.h"
#include "infer/predict.h"

#include <unistd.h>

typedef struct opts {
    ll_trained_opts of;
    const char *result, *npy;
    ll_words files;
    int64_t top;
} opts;

static const ll_arg args[] = {
    {"RUN_FOLDER", LL_OPT(ll_trained_opts, folder), NULL, "run folder written by loopline train"},
    {"FILES...", LL_OPT(opts, files), NULL,
     "images (.jpg, .png), arrays of one or more samples (.npy, IDX), rows of a .csv, or text for "
     "language models; NAME=FILE for each input of a model with several"},
    {"--top|-k", LL_ARG_COUNT, offsetof(opts, top), "K", "show the K most likely classes", "1"},
    {"--result", LL_OPT(opts, result), "NAME",
     "named value or result of the model to output; if not given: logits, else the first result "
     "with one entry per sample, else what the loss reads"},
    {"--npy", LL_OPT(opts, npy), "FILE.npy", "write the output of all samples to this file"},
    LL_TRAINED_ARGS,
    LL_TRAINED_JSON,
    {0}};

enum { AT_ONCE = 64 };

typedef struct answer { /* one sample */
    const char *file;
    int64_t row;
    int64_t used; /* tokens before what fills the sample up; 0: it has none */
    const void *numbers;
} answer;

typedef struct work {
    const opts *o;
    const ll_trained *t;
    const ll_data_info *data;      /* NULL: the run's data cannot be opened */
    const ll_tokenizer *tokenizer; /* NULL: none */
    ll_samples_how how;
    int64_t pad; /* the model's token that fills up; -1: none */
    ll_predictor *p;
    const ll_predicts *info;
    ll_arena *a;
    answer *answers;
    int n, done, capacity; /* answers; those that have numbers */
    char *in;              /* samples of answers[done..n) */
} work;

static ll_err flush(work *w)
{
    size_t row = ll_tensor_bytes(w->info->type.dtype, &w->info->type.shape);
    int n = w->n - w->done;
    char *out = (char *)ll_arena_alloc(w->a, (size_t)n * row + 1);
    TRY(ll_predict(w->p, n, (const void *const[]){w->in}, out));
    for (int i = 0; i < n; i++) w->answers[w->done + i].numbers = out + (size_t)i * row;
    w->done = w->n;
    return LL_OK;
}

/* Of sample i of an input whose every token the value has a row for. */
static int64_t used_of(const work *w, const ll_field *f, const ll_samples *s, int64_t i)
{
    const int64_t seq = ll_numel(&f->shape);
    const int32_t *x = (const int32_t *)s->data + i * seq;
    int64_t n = s->used ? s->used : seq;
    if (!w->how.prefixes || f->dtype != LL_I32 || seq != w->info->type.shape.d[0]) return 0;
    while (n > 1 && x[n - 1] == w->pad) n--;
    return n;
}

static ll_err read_file(work *w, const char *path)
{
    const ll_field *f = &w->info->inputs[0];
    size_t row = ll_tensor_bytes(f->dtype, &f->shape);
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_samples s;
    TRY(ll_samples_read(&w->how, f, path, a, &s));
    for (int64_t i = 0; i < s.n; i++) {
        memcpy(w->in + (size_t)(w->n - w->done) * row, (char *)s.data + (size_t)i * row, row);
        LL_PUSH(w->a, w->answers, w->n, w->capacity,
                (answer){path, s.n > 1 ? i : -1, used_of(w, f, &s, i), NULL});
        if (w->n - w->done == AT_ONCE) TRY(flush(w));
    }
    return LL_OK;
}

/* ---- classes ---- */

typedef struct choice {
    int64_t class;
    double probability;
} choice;

/* Is a sample's answer one row of classes, or one for each token? */
static bool has_classes(const work *w)
{
    const ll_shape *s = &w->info->type.shape;
    bool text = w->tokenizer || (w->data && w->data->kind == LL_TOKENS);
    bool rows = s->n == 2 ? w->how.prefixes : s->n == 1 && !text;
    return w->info->meaning != LL_NUMBERS && w->info->type.dtype == LL_F32 && rows &&
           s->d[s->n - 1] > 0;
}

static int descending(const void *a, const void *b)
{
    const choice *x = (const choice *)a, *y = (const choice *)b;
    if (x->probability != y->probability) return x->probability < y->probability ? 1 : -1;
    return (x->class > y->class) - (x->class < y->class);
}

static void to_probabilities(choice *c, int64_t n)
{
    double most = c[0].probability, sum = 0;
    for (int64_t k = 1; k < n; k++)
        if (c[k].probability > most) most = c[k].probability;
    for (int64_t k = 0; k < n; k++) {
        c[k].probability = exp(c[k].probability - most);
        sum += c[k].probability;
    }
    for (int64_t k = 0; k < n; k++) c[k].probability /= sum;
}

/* The likeliest classes first; of tokens those of the one that follows. */
static const choice *choices_of(const work *w, const answer *x, int64_t *n)
{
    const ll_shape *s = &w->info->type.shape;
    int64_t classes = s->d[s->n - 1], at = s->n == 2 ? s->d[0] - 1 : 0;
    if (s->n == 2 && x->used && x->used <= at) at = x->used - 1;
    const float *row = (const float *)x->numbers + at * classes;
    choice *c = LL_NEW_ARRAY(w->a, choice, classes);
    bool sound = true;
    for (int64_t k = 0; k < classes; k++) c[k] = (choice){k, row[k]}, sound &= !isnan(row[k]);
    if (!sound) {
        *c = (choice){-1, NAN};
        *n = 1;
        return c;
    }
    if (w->info->meaning == LL_LOGITS) to_probabilities(c, classes);
    qsort(c, (size_t)classes, sizeof *c, descending);
    *n = w->o->top < classes ? w->o->top : classes;
    return c;
}

static const char *class_name(const work *w, int64_t k)
{
    if (k < 0) return "not a number";
    if (w->data && w->data->class_names && k < w->data->classes) return w->data->class_names[k];
    const ll_shape *s = &w->info->type.shape;
    if (w->tokenizer && s->d[s->n - 1] == ll_run_size(w->t->run, "vocab", 0)) {
        size_t n;
        const char *bytes = ll_tokenizer_bytes(w->tokenizer, (int)k, &n);
        return ll_text_quoted(w->a, bytes ? bytes : "");
    }
    if (w->data && w->data->is_text)
        return ll_arena_printf(w->a, k > 32 && k < 127 ? "%c" : "\\x%02x", (int)k);
    return ll_arena_printf(w->a, "%ld", k);
}

static const char *sample_name(const work *w, const answer *x)
{
    return x->row < 0 ? x->file : ll_arena_printf(w->a, "%s[%ld]", x->file, x->row);
}

/* ---- what is shown ---- */

static void show_table(const work *w)
{
    enum { NUMBERS = 8 };
    int64_t n, all = ll_numel(&w->info->type.shape);
    int wide = 4;
    for (int i = 0; i < w->n; i++) {
        int len = (int)strlen(sample_name(w, &w->answers[i]));
        if (len > wide) wide = len;
    }
    printf("%-*s  %s\n", wide, "file",
           has_classes(w) ? "class                 probability" : w->info->name);
    LL_EACH (const answer, x, w->answers, w->n) {
        printf("%-*s", wide, sample_name(w, x));
        if (has_classes(w)) {
            const choice *c = choices_of(w, x, &n);
            for (int64_t k = 0; k < n; k++)
                printf("%*s  %-20s  %9.2f %%\n", k ? wide : 0, "", class_name(w, c[k].class),
                       100 * c[k].probability);
            continue;
        }
        for (int64_t k = 0; k < all && k < NUMBERS; k++)
            printf("  %.6g", ll_load(x->numbers, w->info->type.dtype, k));
        printf("%s\n", all > NUMBERS ? "  ... (all: --json, --npy)" : "");
    }
}

static json_t *answer_json(const work *w, const answer *x)
{
    bool classes = has_classes(w);
    int64_t n = ll_numel(&w->info->type.shape);
    const choice *c = classes ? choices_of(w, x, &n) : NULL;
    json_t *list = LL_JSON_LIST(
        k, n,
        c ? LL_JSON(LL_IS("class", c[k].class < 0 ? json_null() : json_integer(c[k].class)),
                    LL_IS("name", class_name(w, c[k].class)),
                    LL_IS("probability", c[k].probability))
          : ll_json_real(ll_load(x->numbers, w->info->type.dtype, k)));
    return LL_JSON(LL_IS("file", x->file), LL_IF(x->row >= 0, "row", x->row),
                   LL_IS(classes ? "classes" : "values", list));
}

static ll_err show_json(const work *w)
{
    json_t *list = LL_JSON_LIST(i, w->n, answer_json(w, &w->answers[i]));
    return ll_cli_json(LL_JSON(LL_IS("model", w->t->run->model.name), LL_IS("step", w->t->step),
                               LL_IS("result", w->info->name),
                               LL_IS("shape", ll_cli_shape(&w->info->type.shape)),
                               LL_IS("predictions", list)));
}

/* All samples' numbers as one array. */
static ll_err write_npy(const work *w)
{
    const ll_type *t = &w->info->type;
    size_t row = ll_tensor_bytes(t->dtype, &t->shape);
    ll_buf b = {.arena = w->a};
    CHECK(t->dtype == LL_F32 || t->dtype == LL_I32, LL_E_ARG,
          "--npy: %s is %s, expected f32 or i32", w->info->name, ll_dtype_name(t->dtype));
    ll_buf_printf(&b, "{'descr': '<%s', 'fortran_order': False, 'shape': (%d,",
                  t->dtype == LL_F32 ? "f4" : "i4", w->n);
    for (int k = 0; k < t->shape.n; k++) ll_buf_printf(&b, " %ld,", t->shape.d[k]);
    ll_buf_puts(&b, "), }");
    while ((b.len + 11) % 64) ll_buf_puts(&b, " ");
    ll_buf file = {.arena = w->a};
    ll_buf_add(&file, "\x93NUMPY\x01\x00", 8);
    ll_buf_add(&file, (const uint8_t[]){(b.len + 1) & 255, (uint8_t)((b.len + 1) >> 8)}, 2);
    ll_buf_add(&file, b.text, b.len);
    ll_buf_puts(&file, "\n");
    for (int i = 0; i < w->n; i++) ll_buf_add(&file, w->answers[i].numbers, row);
    return ll_file_write(w->o->npy, file.text, file.len);
}

/* Of a value that reads several inputs: NAME=FILE for each, with as many samples in every one. What
 * is told of tokens follows those of x. */
static ll_err predict_named(work *w)
{
    const ll_predicts *f = w->info;
    ll_samples x = {0};
    const ll_field *of = f->inputs;
    const void *in[LL_MAX_FIELDS] = {0};
    int64_t n = 0;
    for (int i = 0; i < f->n_input; i++) {
        const char *name = f->inputs[i].name, *path = NULL;
        size_t len = strlen(name);
        for (int k = 0; k < w->o->files.n; k++) {
            const char *word = w->o->files.v[k];
            if (!strncmp(word, name, len) && word[len] == '=') path = word + len + 1;
        }
        CHECK(path && w->o->files.n == f->n_input, LL_E_ARG,
              "%s reads %d inputs and needs one file for each: %s=FILE is %s", f->name, f->n_input,
              name, path ? "given, but so are others" : "missing");
        ll_samples s;
        TRY(ll_samples_read(&w->how, &f->inputs[i], path, w->a, &s));
        CHECK(i == 0 || s.n == n, LL_E_SHAPE, "%s has %ld samples, but %s has %ld", path, s.n,
              f->inputs[0].name, n);
        in[i] = s.data, n = s.n;
        if (i == 0 || !strcmp(name, "x")) x = s, of = &f->inputs[i];
    }
    size_t row = ll_tensor_bytes(f->type.dtype, &f->type.shape);
    char *out = (char *)ll_arena_alloc(w->a, (size_t)n * row + 1);
    TRY(ll_predict(w->p, n, in, out));
    w->answers = LL_NEW_ARRAY(w->a, answer, n);
    for (w->n = 0; w->n < n; w->n++)
        w->answers[w->n] = (answer){w->o->files.v[0], n > 1 ? w->n : -1, used_of(w, of, &x, w->n),
                                    out + (size_t)w->n * row};
    return LL_OK;
}

static ll_err predict_files(work *w)
{
    const ll_field *f = &w->info->inputs[0];
    CHECK(w->info->n_input > 0, LL_E_ARG, "%s does not depend on any input", w->info->name);
    if (w->info->n_input > 1) return predict_named(w);
    w->in = (char *)ll_arena_alloc(w->a, AT_ONCE * ll_tensor_bytes(f->dtype, &f->shape));
    for (int i = 0; i < w->o->files.n; i++) {
        const char *word = w->o->files.v[i];
        size_t len = strlen(f->name);
        bool named = !strncmp(word, f->name, len) && word[len] == '=' && access(word, F_OK);
        TRY(read_file(w, named ? word + len + 1 : word));
    }
    return flush(w);
}

static ll_err show(const work *w)
{
    if (w->o->npy) TRY(write_npy(w));
    if (w->o->of.json) return show_json(w);
    if (!w->o->npy) show_table(w);
    return LL_OK;
}

/* What samples are like: as data.json of the run's folder says, for the data itself need not be
 * at hand; as its data is, where that is not there or settings of data are given. */
static ll_err open_data(const work *w, ll_dataset **out)
{
    const char *path = ll_arena_printf(w->a, "%s/data.json", w->t->run->out);
    bool set = false;
    for (int i = 0; i < w->o->of.set.n; i++) set |= !strncmp(w->o->of.set.v[i], "data.", 5);
    if (set || access(path, F_OK)) return ll_run_dataset(w->t->run, out);
    return ll_told_read(path, out);
}

static ll_err run(const void *given)
{
    const opts *o = (const opts *)given;
    LL_TRAINED t = {0};
    LL_OWN(ll_predictor) p = NULL;
    LL_OWN(ll_dataset) d = NULL;
    LL_OWN(ll_tokenizer) tokenizer = NULL;
    LL_OWN(ll_arena) a = ll_arena_new();
    if (o->npy) TRY(ll_cli_spare(o->npy));
    for (int i = 0; o->npy && i < o->files.n; i++) {
        const char *word = o->files.v[i], *named = strchr(word, '=');
        CHECK(!ll_is_same_file(o->npy, word) && !(named && ll_is_same_file(o->npy, named + 1)),
              LL_E_ARG, "--npy %s is an input and would be overwritten: give another name", o->npy);
    }
    TRY(ll_cli_trained(&o->of, &t));
    TRY(ll_predictor_open(t.run, t.s, o->result, &p));
    work w = {.o = o, .t = &t, .p = p, .info = ll_predictor_info(p), .a = a};
    if (*t.run->data.tokenizer) TRY(ll_tokenizer_open(t.run->data.tokenizer, &tokenizer));
    w.tokenizer = tokenizer;
    if (!tokenizer && open_data(&w, &d) != LL_OK)
        fprintf(stderr,
                "note: without the run's data (%s) class names are missing, and only arrays of "
                "numbers can be read\n",
                ll_error_message());
    if (d) w.data = ll_dataset_info(d);
    w.pad = ll_run_size(t.run, "pad", -1);
    w.how = (ll_samples_how){.set = d,
                             .tokenizer = tokenizer,
                             .prefixes = ll_run_takes_tokens(t.run) || tokenizer ||
                                         (w.data && w.data->kind == LL_TOKENS),
                             .pad = w.pad < 0 ? 0 : (int32_t)w.pad};
    TRY(predict_files(&w));
    return show(&w);
}

const ll_command ll_command_predict = {"predict", "run a trained model on files", args,
                                       sizeof(opts), run};
