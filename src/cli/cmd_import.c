/* cmd_import.c: loopline import. */
#include "cli/common.h"

#include "base/file.h"
#include "base/text.h"
#include "onnx/onnx.h"
#include "train/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct opts {
    ll_words what;
    const char *machine, *out;
    bool check, json;
} opts;

static const ll_arg args[] = {
    {"WHAT...", LL_ARG_WORDS, offsetof(opts, what), NULL,
     "an ONNX file; with --check folders of tests, or of such folders"},
    {"--out|-o", LL_ARG_TEXT, offsetof(opts, out), "DIR",
     "put a run of it there: run.yaml, model.onnx, weights.safetensors"},
    {"--check", LL_ARG_FLAG, offsetof(opts, check), NULL,
     "run ONNX's tests: model.onnx, test_data_set_*"},
    {"--machine", LL_ARG_TEXT, offsetof(opts, machine), "NAME", "with --check: ref or cpu (cpu)"},
    {"--json", LL_ARG_FLAG, offsetof(opts, json), NULL, "one JSON object on standard output"},
    {0}};

/* ---- --check ---- */

static const char *const words[] = {"passed", "not supported", "failed"};

static ll_err as_json(const ll_onnx_report *r)
{
    json_t *j = json_object(), *list = json_array();
    json_object_set_new(j, "passed", json_integer(r->count[LL_ONNX_PASSED]));
    json_object_set_new(j, "not_supported", json_integer(r->count[LL_ONNX_NOT_SUPPORTED]));
    json_object_set_new(j, "failed", json_integer(r->count[LL_ONNX_FAILED]));
    for (int i = 0; i < r->n; i++) {
        json_t *t = json_object();
        json_object_set_new(t, "name", json_string(r->tests[i].name));
        json_object_set_new(t, "status", json_string(words[r->tests[i].status]));
        json_object_set_new(t, "reason", json_string(r->tests[i].reason));
        json_object_set_new(t, "max_error", ll_cli_number(r->tests[i].max_error));
        json_array_append_new(list, t);
    }
    json_object_set_new(j, "tests", list);
    return ll_cli_json(j);
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
    const char *machine = o->machine ? o->machine : "cpu";
    CHECK(!strcmp(machine, "ref") || !strcmp(machine, "cpu"), LL_E_ARG,
          "--machine %s: ref or cpu can be", machine);
    for (int i = 0; i < o->what.n; i++) TRY(ll_onnx_check(o->what.v[i], machine, a, &r));
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
    CHECK(!f->s.n_missing, LL_E_ARG, "ops that are not supported:%s", b.text);
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
    json_t *list = json_array();
    for (int i = 0; i < n; i++) {
        json_t *j = json_object();
        json_object_set_new(j, "name", json_string(x[i].name));
        json_object_set_new(j, "type", json_string(x[i].type));
        json_object_set_new(j, "shape", json_string(x[i].shape));
        json_array_append_new(list, j);
    }
    return list;
}

static ll_err show(const opts *o, const found *f)
{
    if (o->json) {
        json_t *j = json_object();
        json_object_set_new(j, "inputs", named(f->s.inputs, f->s.n_input));
        json_object_set_new(j, "outputs", named(f->s.outputs, f->s.n_output));
        json_object_set_new(j, "nodes", json_integer(f->s.nodes));
        json_object_set_new(j, "tensors", json_integer(f->n_weight));
        json_object_set_new(j, "parameters", json_integer(f->numbers));
        return ll_cli_json(j);
    }
    for (int i = 0; i < f->s.n_input; i++)
        printf("input   %s: %s%s\n", f->s.inputs[i].name, f->s.inputs[i].type,
               f->s.inputs[i].shape);
    for (int i = 0; i < f->s.n_output; i++)
        printf("output  %s: %s%s\n", f->s.outputs[i].name, f->s.outputs[i].type,
               f->s.outputs[i].shape);
    printf("%d nodes, %d tensors of %lld parameters and statistics\n", f->s.nodes, f->n_weight,
           (long long)f->numbers);
    return LL_OK;
}

static ll_err write_weights(const found *f, const char *path, ll_arena *a)
{
    ll_st_tensor *t = LL_NEW_ARRAY(a, ll_st_tensor, f->n_weight + 1);
    for (int i = 0; i < f->n_weight; i++)
        t[i] = (ll_st_tensor){f->weights[i].name, LL_F32, f->weights[i].shape, f->weights[i].data};
    return ll_st_write(path, &(ll_st_content){.tensors = t, .n = f->n_weight});
}

/* The folder is named by its whole path: it may be trained from anywhere. */
static ll_err put(const opts *o, const found *f, ll_arena *a)
{
    LL_OWN_MEMORY uint8_t *data = NULL;
    size_t size;
    const char *from = o->what.v[0];
    CHECK(!f->s.outside, LL_E_ARG,
          "%s has weights in other files, which --out does not copy: name it "
          "as model.file of a run",
          from);
    TRY(ll_mkdirs(o->out));
    LL_OWN_MEMORY char *whole = realpath(o->out, NULL);
    CHECK(whole, LL_E_IO, "%s: %m", o->out);
    CHECK(access(ll_arena_printf(a, "%s/run.yaml", whole), F_OK), LL_E_ARG, "%s has a run already",
          o->out);
    TRY(ll_file_read(from, (size_t)1 << 31, &data, &size));
    TRY(ll_file_write(ll_arena_printf(a, "%s/model.onnx", whole), data, size));
    TRY(write_weights(f, ll_arena_printf(a, "%s/weights.safetensors", whole), a));
    ll_buf b = {.arena = a};
    ll_buf_printf(
        &b, "# made by loopline import; set data, and the loss that is meant\nmodel:\n  file: ");
    ll_buf_json(&b, ll_arena_printf(a, "%s/model.onnx", whole));
    ll_buf_printf(&b, "\n  loss: %s\ntrain:\n  init: ", f->loss);
    ll_buf_json(&b, ll_arena_printf(a, "%s/weights.safetensors", whole));
    ll_buf_printf(&b, "\n  init_map: as-is\n");
    TRY(ll_file_write(ll_arena_printf(a, "%s/run.yaml", whole), b.text, b.len));
    fprintf(stderr, "%s: run.yaml model.onnx weights.safetensors\n", o->out);
    return LL_OK;
}

static ll_err run(const void *given)
{
    const opts *o = (const opts *)given;
    LL_OWN(ll_arena) a = ll_arena_new();
    found f = {0};
    CHECK(!o->check || !o->out, LL_E_ARG, "--check writes nothing: drop --out");
    if (o->check) return check(o);
    CHECK(!o->machine, LL_E_ARG, "--machine is of --check");
    CHECK(o->what.n == 1, LL_E_ARG, "%d files; one at a time (tests want --check)", o->what.n);
    TRY(look(o->what.v[0], a, &f));
    TRY(show(o, &f));
    return o->out ? put(o, &f, a) : LL_OK;
}

const ll_command ll_command_import = {"import", "reads ONNX models, and runs ONNX's tests", args,
                                      sizeof(opts), run};
