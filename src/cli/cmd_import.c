/* cmd_import.c: loopline import. */
#include "cli/common.h"

#include "base/file.h"
#include "data/data.h"
#include "onnx/onnx.h"
#include "op/ops.h"
#include "token/tokenizer.h"
#include "weights/import.h"
#include "weights/safetensors.h"
#include "weights/weight_map.h"
#include "weights/weights.h"

#include <unistd.h>

typedef struct opts {
    ll_words what;
    const char *machine, *out, *names, *adapter;
    bool check, json;
} opts;

static const ll_arg args[] = {
    {"WHAT...", LL_OPT(opts, what), NULL,
     "an ONNX or GGUF file, or a Hugging Face model folder; with --check, folders of ONNX backend "
     "tests"},
    {"--out|-o", LL_OPT(opts, out), "DIR",
     "create a run folder with run.yaml, the model or its weights, and the tokenizer; without it, "
     "only describe the file"},
    {"--names", LL_OPT(opts, names), "FILE", "with --out: class names for predict, one per line"},
    {"--adapter", LL_OPT(opts, adapter), "DIR",
     "with --out, for a Hugging Face folder: a PEFT prompt-tuning adapter, imported as "
     "train.prompt"},
    {"--check", LL_OPT(opts, check), NULL,
     "run ONNX backend tests: folders with model.onnx and test_data_set_*"},
    {"--machine", LL_OPT(opts, machine), "NAME", "with --check: device, ref or cpu [default: cpu]"},
    {"--json", LL_OPT(opts, json), NULL, "print one JSON object to standard output"},
    {0}};

/* ---- --check ---- */

static const char *const words[] = {"passed", "not supported", "failed"};

static ll_err as_json(const ll_onnx_report *r)
{
    const ll_onnx_test *t = r->tests;
    json_t *list =
        LL_JSON_LIST(i, r->n,
                     LL_JSON(LL_IS("name", t[i].name), LL_IS("status", words[t[i].status]),
                             LL_IS("reason", t[i].reason), LL_IS("max_error", t[i].max_error)));
    return ll_cli_json(LL_JSON(LL_IS("passed", r->count[LL_ONNX_PASSED]),
                               LL_IS("not_supported", r->count[LL_ONNX_NOT_SUPPORTED]),
                               LL_IS("failed", r->count[LL_ONNX_FAILED]), LL_IS("tests", list)));
}

/* Each reason once, with how many tests have it. */
static void reasons(const ll_onnx_report *r)
{
    for (int i = 0; i < r->n; i++) {
        int n = 0;
        bool first = true;
        for (int k = 0; k < r->n; k++) {
            if (r->tests[k].status != LL_ONNX_NOT_SUPPORTED ||
                strcmp(r->tests[k].reason, r->tests[i].reason))
                continue;
            first = first && k >= i;
            n++;
        }
        if (n && first) printf("  %5d  %s\n", n, r->tests[i].reason);
    }
}

static void table(const ll_onnx_report *r)
{
    double worst = 0;
    for (int i = 0; i < r->n; i++)
        if (r->tests[i].status == LL_ONNX_PASSED) worst = fmax(worst, r->tests[i].max_error);
    printf("%d passed (largest difference %.3g), %d not supported, %d failed\n",
           r->count[LL_ONNX_PASSED], worst, r->count[LL_ONNX_NOT_SUPPORTED],
           r->count[LL_ONNX_FAILED]);
    if (r->count[LL_ONNX_NOT_SUPPORTED]) printf("not supported:\n");
    reasons(r);
    if (r->count[LL_ONNX_FAILED]) printf("failed:\n");
    for (int i = 0; i < r->n; i++)
        if (r->tests[i].status == LL_ONNX_FAILED)
            printf("  %-40s %s (largest difference %.3g)\n", r->tests[i].name, r->tests[i].reason,
                   r->tests[i].max_error);
}

static ll_err check(const opts *o)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_onnx_report r = {0};
    const ll_machine *m;
    TRY(ll_machine_find(o->machine, &m));
    CHECK(!m->device, LL_E_ARG, "--machine %s: ONNX's tests run on CPUs", o->machine);
    for (int i = 0; i < o->what.n; i++) TRY(ll_onnx_check(o->what.v[i], m->target->name, a, &r));
    if (o->json)
        TRY(as_json(&r));
    else
        table(&r);
    CHECK(!r.count[LL_ONNX_FAILED], LL_E_DIFFER, "%d of %d tests failed", r.count[LL_ONNX_FAILED],
          r.n);
    return LL_OK;
}

/* ---- a model ---- */

typedef struct found {
    ll_onnx_summary s;
    ll_onnx_weight *weights;
    int n_weight;
    int64_t numbers;
    const ll_model *model;
    const char *loss; /* that fits it most likely */
} found;

static ll_err missing(const found *f, ll_arena *a)
{
    ll_buf b = {.arena = a};
    for (int i = 0; i < f->s.n_missing; i++)
        ll_buf_printf(&b, "%s %s (%d)", i ? "," : "", f->s.missing[i].name, f->s.missing[i].count);
    CHECK(!f->s.n_missing, LL_E_ARG, "unsupported ops:%s", b.text);
    return LL_OK;
}

static ll_err look(const char *path, ll_arena *a, found *f)
{
    TRY(ll_onnx_look(a, path, &f->s));
    TRY(missing(f, a));
    TRY(ll_onnx_model(a, path, "", &f->model));
    TRY(ll_onnx_weights(a, f->model, &f->weights, &f->n_weight));
    for (int i = 0; i < f->n_weight; i++) f->numbers += ll_numel(&f->weights[i].shape);
    f->loss = f->model->input ? "cross_entropy" : "mse";
    return LL_OK;
}

static json_t *named(const ll_onnx_named *x, int n)
{
    return LL_JSON_LIST(
        i, n,
        LL_JSON(LL_IS("name", x[i].name), LL_IS("type", x[i].type), LL_IS("shape", x[i].shape)));
}

static ll_err show(const opts *o, const found *f)
{
    if (o->json) {
        return ll_cli_json(LL_JSON(LL_IS("inputs", named(f->s.inputs, f->s.n_input)),
                                   LL_IS("outputs", named(f->s.outputs, f->s.n_output)),
                                   LL_IS("nodes", f->s.nodes), LL_IS("tensors", f->n_weight),
                                   LL_IS("parameters", f->numbers)));
    }
    for (int i = 0; i < f->s.n_input; i++)
        printf("input   %s: %s%s\n", f->s.inputs[i].name, f->s.inputs[i].type,
               f->s.inputs[i].shape);
    for (int i = 0; i < f->s.n_output; i++)
        printf("output  %s: %s%s\n", f->s.outputs[i].name, f->s.outputs[i].type,
               f->s.outputs[i].shape);
    printf("%d nodes, %d tensors of %ld parameters and statistics\n", f->s.nodes, f->n_weight,
           f->numbers);
    const ll_size *s = f->model->sizes;
    if (f->model->input && !strcmp(f->model->input, "image"))
        printf("batch data x: f32 [n,%ld,%ld,%ld] (model.image, model.channels)\n", s[0].value,
               s[0].value, s[1].value);
    else if (f->model->input)
        printf("batch data x: i32 [n,%ld] (model.seq)\n", s[0].value);
    return LL_OK;
}

static ll_err write_weights(const found *f, const char *path, ll_arena *a)
{
    ll_st_tensor *t = LL_NEW_ARRAY(a, ll_st_tensor, f->n_weight + 1);
    for (int i = 0; i < f->n_weight; i++)
        t[i] = (ll_st_tensor){f->weights[i].name, LL_F32, f->weights[i].shape, f->weights[i].data};
    return ll_st_write(path, &(ll_st_content){.tensors = t, .n = f->n_weight});
}

/* data.json, for predict: pictures as ImageNet's networks take them, and names of classes. */
static ll_err write_data(const opts *o, const found *f, const char *path, ll_arena *a)
{
    ll_buf b = {.arena = a};
    LL_OWN_MEMORY uint8_t *text = NULL;
    size_t size;
    const int64_t side = f->model->sizes[0].value, c = f->model->sizes[1].value;
    bool image = f->model->input && !strcmp(f->model->input, "image");
    if (!image && !o->names) return LL_OK;
    ll_buf_printf(&b, "{\"kind\": \"%s\"", image ? "images" : "records");
    if (image) {
        ll_buf_printf(&b, ", \"image\": [%ld, %ld, %ld], \"centre\": [0.875],\n \"mean\": [", side,
                      side, c);
        for (int i = 0; i < c; i++)
            ll_buf_printf(&b, i ? ", %g" : "%g", c == 3 ? ll_imagenet_mean[i] : 0.5);
        ll_buf_puts(&b, "], \"deviation\": [");
        for (int i = 0; i < c; i++)
            ll_buf_printf(&b, i ? ", %g" : "%g", c == 3 ? ll_imagenet_deviation[i] : 0.5);
        ll_buf_puts(&b, "]");
    }
    if (o->names) {
        TRY(ll_file_read(o->names, (size_t)1 << 24, &text, &size));
        ll_buf_puts(&b, ",\n \"classes\": [");
        char *rest = (char *)text, *line;
        for (int n = 0; (line = strsep(&rest, "\n")) && (rest || *line); n++) {
            line[strcspn(line, "\r")] = '\0';
            if (n) ll_buf_puts(&b, ", ");
            ll_buf_json(&b, line);
        }
        ll_buf_puts(&b, "]");
    }
    ll_buf_puts(&b, "}\n");
    return ll_file_write(path, b.text, b.len);
}

/* A new folder for a run, by its whole path: it may be trained from anywhere. */
static ll_err new_folder(const opts *o, ll_arena *a, const char **out)
{
    TRY(ll_mkdirs(o->out));
    LL_OWN_MEMORY char *whole = realpath(o->out, NULL);
    CHECK(whole, LL_E_IO, "%s: %m", o->out);
    CHECK(access(ll_arena_printf(a, "%s/run.yaml", whole), F_OK), LL_E_ARG,
          "%s already holds a run: give another --out", o->out);
    *out = ll_arena_strdup(a, whole);
    return LL_OK;
}

/* A failure leaves no folder that nothing came into. */
static ll_err left(ll_err rc, const char *folder)
{
    if (rc != LL_OK && folder) (void)rmdir(folder);
    return rc;
}

/* A file, in pieces. */
static ll_err copy_file(const char *from, const char *to)
{
    enum { PIECE = 1 << 20 };
    LL_OWN_MEMORY char *piece = (char *)malloc(PIECE);
    LL_OWN(ll_atomic) out = NULL;
    CHECK(piece, LL_E_MEM, "not enough memory to copy %s", from);
    LL_OWN(FILE) in = fopen(from, "rb");
    CHECK(in, LL_E_IO, "%s: %m", from);
    TRY(ll_atomic_open(to, &out));
    for (size_t n; (n = fread(piece, 1, PIECE, in)) > 0;) TRY(ll_atomic_add(out, piece, n));
    CHECK(!ferror(in), LL_E_IO, "%s: cannot be read", from);
    return ll_atomic_commit(out);
}

static ll_err put(const opts *o, const found *f, const char *whole, ll_arena *a)
{
    const char *from = o->what.v[0];
    int folder = strrchr(from, '/') ? (int)(strrchr(from, '/') + 1 - from) : 0;
    TRY(copy_file(from, ll_arena_printf(a, "%s/model.onnx", whole)));
    for (int i = 0; i < f->s.n_outside; i++) {
        const char *name = f->s.outside[i];
        const char *to = ll_arena_printf(a, "%s/%s", whole, name);
        TRY(ll_mkdirs_above(to));
        TRY(copy_file(ll_arena_printf(a, "%.*s%s", folder, from, name), to));
    }
    TRY(write_weights(f, ll_arena_printf(a, "%s/weights.safetensors", whole), a));
    TRY(write_data(o, f, ll_arena_printf(a, "%s/data.json", whole), a));
    const char *text = ll_arena_printf(
        a,
        "# made by loopline import; set data, and the loss that is meant\nmodel:\n  file: %s\n"
        "  loss: %s\ntrain:\n  init: %s\n  init_map: as-is\n",
        ll_text_quoted(a, ll_arena_printf(a, "%s/model.onnx", whole)), f->loss,
        ll_text_quoted(a, ll_arena_printf(a, "%s/weights.safetensors", whole)));
    TRY(ll_file_write(ll_arena_printf(a, "%s/run.yaml", whole), text, strlen(text)));
    fprintf(stderr, "%s: run.yaml model.onnx weights.safetensors\n", o->out);
    return LL_OK;
}

/* ---- GGUF, and Hugging Face's folders ---- */

/* prompt: an adapter's vectors; 0: there is none. */
static ll_err show_described(const opts *o, const ll_imported *m, int64_t prompt)
{
    if (o->json) {
        json_t *sizes = json_object();
        for (const ll_size *s = m->sizes; s->name; s++)
            LL_JSON_ADD(sizes, LL_IS(s->name, s->value));
        json_t *j = LL_JSON(LL_IS("model", m->model->name), LL_IS("form", m->form),
                            LL_IS("map", m->map), LL_IS("sizes", sizes),
                            LL_IS("tensors", m->tensors), LL_IS("parameters", m->numbers));
        if (prompt) LL_JSON_ADD(j, LL_IS("prompt", prompt));
        return ll_cli_json(j);
    }
    printf("%s: model %s, by map %s\n ", m->form, m->model->name, m->map);
    for (const ll_size *s = m->sizes; s->name; s++) printf(" %s %ld", s->name, s->value);
    printf("\n%ld tensors of %ld numbers, most of them %s\n", m->tensors, m->numbers,
           m->type ? m->type : "none");
    if (prompt) printf("%s: a prompt of %ld vectors\n", o->adapter, prompt);
    return LL_OK;
}

/* What is there of these. */
static ll_err copy_all(const char *from, const char *pattern, const char *to, ll_arena *a)
{
    int n;
    const char *const *all = ll_files(a, ll_arena_printf(a, "%s/%s", from, pattern), &n);
    for (int i = 0; i < n; i++)
        TRY(copy_file(all[i], ll_arena_printf(a, "%s/%s", to, ll_base_name(all[i]))));
    return LL_OK;
}

/* A folder's weights can be trained on tokens without it; GGUF is for generating text. */
static ll_err check_tokenizer(const opts *o, bool folder, bool *usable)
{
    LL_OWN(ll_tokenizer) t = NULL;
    ll_err rc = ll_tokenizer_open(o->what.v[0], &t);
    *usable = rc == LL_OK;
    if (*usable || !folder) return rc;
    fprintf(stderr, "without a tokenizer (commands will need tokens): %s\n", ll_error_text());
    return LL_OK;
}

/* What a prompt's configuration says of its tensor is so; what it leaves out follows from it. */
static ll_err check_prompt(const char *config, const json_t *j, const ll_st_entry *e)
{
    const struct {
        const char *key;
        int64_t is;
    } all[] = {{"num_virtual_tokens", e->dims[0]},
               {"token_dim", e->dims[1]},
               {"num_transformer_submodules", 1}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const json_t *v = json_object_get(j, all[i].key);
        if (!v || json_is_null(v) || (json_is_integer(v) && json_integer_value(v) == all[i].is))
            continue;
        LL_OWN_MEMORY char *said = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
        FAIL(LL_E_CONFIG,
             "%s: %s is %.40s, but the tensor " LL_PROMPT
             " is [%ld,%ld], of one module: expected %ld",
             config, all[i].key, said ? said : "", e->dims[0], e->dims[1], all[i].is);
    }
    return LL_OK;
}

/* Is it a prompt, and one of this model? *vectors: how many it has. */
static ll_err look_adapter(const opts *o, const ll_imported *m, ll_arena *a, int64_t *vectors)
{
    LL_OWN(ll_st_file) f = NULL;
    LL_OWN(ll_map) map = NULL;
    ll_mapped line;
    json_error_t why;
    const char *config = ll_arena_printf(a, "%s/adapter_config.json", o->adapter);
    const char *path = ll_arena_printf(a, "%s/adapter_model.safetensors", o->adapter);
    *vectors = 0;
    json_auto_t *j = json_load_file(config, 0, &why);
    CHECK(j, LL_E_IO, "%s: %s", config, why.text);
    const char *kind = json_string_value(json_object_get(j, "peft_type"));
    CHECK(kind && !strcmp(kind, "PROMPT_TUNING"), LL_E_ARG,
          "%s: peft_type is %.40s, expected PROMPT_TUNING (merge other adapters into the weights "
          "first: merge_and_unload in PEFT)",
          config, kind ? kind : "not there");
    TRY(ll_st_open(path, &f));
    const ll_st_entry *e = ll_st_find(f, LL_PROMPT);
    int64_t width = 0;
    for (const ll_size *s = m->sizes; s->name; s++)
        if (!strcmp(s->name, "width")) width = s->value;
    CHECK(e && e->n_dims == 2 && e->dims[0] > 0 && e->dims[1] == width, LL_E_SHAPE,
          "%s: expected a tensor " LL_PROMPT " [vectors,%ld], as wide as the model", path, width);
    TRY(check_prompt(config, j, e));
    TRY(ll_map_open(m->map, &map));
    TRY(ll_map_find(map, a, LL_PROMPT, &LL_SHAPE(e->dims[0], width), &line));
    CHECK(line.n, LL_E_ARG, "--adapter: model %s takes no prompt; use llama", m->model->name);
    *vectors = e->dims[0];
    return LL_OK;
}

static ll_err put_described(const opts *o, const ll_imported *m, bool tokenizer, int64_t prompt,
                            const char *whole, ll_arena *a)
{
    static const char *const parts[] = {"*.safetensors", "tokenizer*.json", "vocab.json",
                                        "merges.txt", "config.json"};
    const char *from = o->what.v[0];
    bool folder = *m->form == 'h';
    for (size_t i = 0; folder && i < sizeof parts / sizeof *parts; i++)
        TRY(copy_all(from, parts[i], whole, a));
    if (o->adapter) TRY(copy_all(o->adapter, "adapter_model.safetensors", whole, a));
    const char *path = folder ? whole : ll_arena_printf(a, "%s/model.gguf", whole);
    const char *weights = ll_text_quoted(a, path);
    if (!folder) TRY(copy_file(from, path));
    ll_buf b = {.arena = a};
    ll_buf_printf(&b, "# made by loopline import; set data to train it\nmodel:\n  name: %s\n",
                  m->model->name);
    for (const ll_size *s = m->sizes; s->name; s++)
        ll_buf_printf(&b, "  %s: %ld\n", s->name, s->value);
    if (tokenizer) ll_buf_printf(&b, "data:\n  tokenizer: %s\n", weights);
    ll_buf_printf(&b, "train:\n  optimizer: adamw\n  init: %s\n  init_map: %s\n", weights, m->map);
    if (prompt) ll_buf_printf(&b, "  prompt: %ld\n", prompt);
    TRY(ll_file_write(ll_arena_printf(a, "%s/run.yaml", whole), b.text, b.len));
    fprintf(stderr, "%s: run.yaml %s%s%s\n", o->out, folder ? "*.safetensors" : "model.gguf",
            folder && tokenizer ? " tokenizer" : "", prompt ? " adapter_model.safetensors" : "");
    return LL_OK;
}

static ll_err described(const opts *o, ll_arena *a)
{
    ll_imported m;
    bool tokenizer;
    int64_t prompt = 0;
    const char *whole = NULL, *what = o->what.v[0];
    bool theirs = !access(ll_arena_printf(a, "%s/config.json", what), F_OK);
    CHECK(theirs || !ll_cli_holds_run(what), LL_E_ARG, "%s is already a run: it needs no import",
          what);
    TRY(ll_import_look(o->what.v[0], a, &m));
    CHECK(!o->adapter || *m.form == 'h', LL_E_ARG,
          "--adapter needs a Hugging Face folder, which %s is not", o->what.v[0]);
    if (o->adapter) TRY(look_adapter(o, &m, a, &prompt));
    TRY(check_tokenizer(o, *m.form == 'h', &tokenizer));
    if (o->out) TRY(new_folder(o, a, &whole));
    ll_err rc = show_described(o, &m, prompt);
    if (o->out && rc == LL_OK) rc = put_described(o, &m, tokenizer, prompt, whole, a);
    return left(rc, whole);
}

/* Weights alone do not say what model they are of. */
static ll_err check_weights(const char *what)
{
    LL_OWN(ll_weights) w = NULL;
    ll_err rc = ll_weights_open(NULL, what, &w);
    if (rc != LL_OK) return ll_ends_with(what, ".safetensors") ? rc : LL_OK;
    CHECK(w->gguf, LL_E_ARG,
          "%s has weights only (%s%s): give it to a run of its model with --init; import takes a "
          "Hugging Face folder (config.json), a GGUF or an ONNX file",
          what, w->kind, w->ours ? ", a checkpoint of a run" : "");
    return LL_OK;
}

static ll_err run(const void *given)
{
    const opts *o = (const opts *)given;
    LL_OWN(ll_arena) a = ll_arena_new();
    found f = {0};
    CHECK(!o->check || !o->out, LL_E_ARG, "--check writes nothing: leave out --out");
    CHECK(!o->names || o->out, LL_E_ARG, "--names needs --out");
    CHECK(!o->adapter || o->out, LL_E_ARG, "--adapter needs --out");
    if (o->check) return check(o);
    CHECK(!o->machine, LL_E_ARG, "--machine needs --check");
    CHECK(o->what.n == 1, LL_E_ARG, "%d files given, expected one (ONNX tests need --check)",
          o->what.n);
    if (ll_import_knows(o->what.v[0])) {
        CHECK(!o->names, LL_E_ARG, "--names needs an ONNX file, which %s is not", o->what.v[0]);
        return described(o, a);
    }
    CHECK(!o->adapter, LL_E_ARG, "--adapter needs a Hugging Face folder, which %s is not",
          o->what.v[0]);
    const char *whole = NULL, *what = o->what.v[0];
    TRY(check_weights(what));
    ll_err rc = look(what, a, &f);
    CHECK(rc != LL_E_IO || ll_ends_with(what, ".onnx"), rc,
          "%s (expected an ONNX file, a .gguf file or a folder with config.json)",
          ll_error_message());
    TRY(rc);
    if (o->out) TRY(new_folder(o, a, &whole));
    rc = show(o, &f);
    if (o->out && rc == LL_OK) rc = put(o, &f, whole, a);
    return left(rc, whole);
}

const ll_command ll_command_import = {"import", "import a model from ONNX, GGUF or Hugging Face",
                                      args, sizeof(opts), run};
