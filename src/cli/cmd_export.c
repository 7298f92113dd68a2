/* cmd_export.c: loopline export: a trained model in the form of others. What it can be written as
 * is a row of kinds. */
#include "cli/common.h"

#include "base/file.h"
#include "ccode/ccode.h"
#include "onnx/onnx.h"
#include "weights/export.h"
#include "infer/calibrate.h"
#include "infer/predict.h"
#include "train/progress.h"
#include "weights/weights_load.h"

#include <fnmatch.h>
#include <unistd.h>

typedef struct opts {
    ll_trained_opts of;
    const char *map, *dtype;
    const char *weights, *adapter, *hf, *gguf, *c, *onnx, *result;
    int64_t calibrate;
    bool overwrite;
} opts;

static const ll_arg args[] = {
    {"RUN", LL_OPT(ll_trained_opts, folder), NULL,
     "run folder written by loopline train; with --init also a run file or a model's name"},
    {"--weights", LL_OPT(opts, weights), "FILE.safetensors",
     "write parameters and batch-norm statistics, without optimizer state"},
    {"--adapter", LL_OPT(opts, adapter), "DIR",
     "write the LoRA adapters (train.lora) or the prompt (train.prompt) in PEFT's format"},
    {"--hf", LL_OPT(opts, hf), "DIR",
     "write a Hugging Face model folder for transformers: config.json, model.safetensors, "
     "tokenizer; LoRA adapters are merged"},
    {"--overwrite", LL_OPT(opts, overwrite), NULL,
     "with --hf and --adapter: remove an older model or adapter from DIR first, and write beside "
     "other files"},
    {"--gguf", LL_OPT(opts, gguf), "FILE.gguf",
     "write a GGUF file for llama.cpp: weights, sizes and tokenizer; LoRA adapters are merged"},
    {"--map", LL_OPT(opts, map), "MAP",
     "with --weights and --adapter: write names and layouts of another framework: pytorch, "
     "torchvision-resnet, torchvision-alexnet, torchvision-googlenet, torchvision-mobilenetv2, "
     "torchvision-squeezenet, torchvision-vgg, hf-gpt2, hf-llama, hf-bert, or a map file; if not "
     "given, Loopline's own"},
    {"--dtype", LL_OPT(opts, dtype), "TYPE",
     "with --weights, --hf and --gguf: f32, bf16 or f16; with --gguf also q8_0 and q4_1", "f32"},
    {"--calibrate", LL_OPT(opts, calibrate), "N",
     "with --dtype q4_1: quantize with GPTQ, calibrated on N windows of the training data, at "
     "most all; 0 = round to nearest",
     "0"},
    {"--c", LL_OPT(opts, c), "DIR",
     "write the model as a C program that needs only libc and libm, with its weights"},
    {"--onnx", LL_OPT(opts, onnx), "FILE.onnx",
     "write an ONNX model (opset 17) with a dynamic batch size; inputs are laid out as for "
     "predict"},
    {"--result", LL_OPT(opts, result), "NAME",
     "with --c and --onnx: the value to output (as for predict)"},
    LL_TRAINED_ARGS,
    {0}};

static ll_err write_weights(const opts *o, const ll_trained *t)
{
    ll_dtype dtype;
    int n;
    CHECK(ll_dtype_find(o->dtype, &dtype) &&
              (dtype == LL_F32 || dtype == LL_BF16 || dtype == LL_F16),
          LL_E_ARG, "--dtype is '%s': expected f32, bf16 or f16", o->dtype);
    TRY(ll_weights_save(t->s, o->weights, o->map, dtype, &n));
    printf("%s: %d tensors in %s, by map %s\n", o->weights, n, o->dtype,
           o->map ? o->map : LL_MAP_AS_IS);
    return LL_OK;
}

static void tell(const char *path, const ll_exported *x, const char *type)
{
    printf("%s: %d tensors in %s, by map %s, %s\n", path, x->tensors, type, x->map,
           x->tokenizer ? "and the tokenizer" : "no tokenizer (data.tokenizer names none)");
}

/* What folders of Hugging Face's and of PEFT's have: what stays of another model is taken for this
 * one's. */
static const char *const of_model[] = {
    "*.safetensors", "*.index.json", "*.bin",          "*config.json",   "tokenizer*",
    "vocab.*",       "merges.txt",   "*_tokens*.json", "chat_template*", NULL};
static const char *const of_adapter[] = {"adapter_*", NULL};
static const char *const of_both[] = {"*.md", "LICENSE*", NULL}; /* and names with a dot in front */

typedef struct cleared {
    bool overwrite;
    const char *what;
    const char *const *patterns;
} cleared;

/* A folder of something else is not written to by mistake. */
static ll_err check_others(const char *folder)
{
    const char *const *const known[] = {of_model, of_adapter, of_both};
    LL_OWN(ll_arena) a = ll_arena_new();
    int n;
    const char *const *all = ll_files(a, ll_arena_printf(a, "%s/*", folder), &n);
    for (int i = 0; i < n; i++) {
        bool fits = false;
        for (int k = 0; k < 3; k++)
            for (const char *const *p = known[k]; *p; p++)
                fits |= !fnmatch(*p, strrchr(all[i], '/') + 1, 0);
        CHECK(fits, LL_E_ARG,
              "%s holds other files (%s): give another folder, or use --overwrite to write there",
              folder, strrchr(all[i], '/') + 1);
    }
    return LL_OK;
}

/* Those files of the folder are refused or, with --overwrite, removed and told when it is time. */
static ll_err clear(void *user, const char *folder, bool now)
{
    const cleared *c = (const cleared *)user;
    CHECK(!ll_cli_holds_run(folder), LL_E_ARG, "%s already holds a run: give another folder",
          folder);
    if (!c->overwrite) TRY(check_others(folder));
    for (const char *const *pattern = c->patterns; *pattern; pattern++) {
        LL_OWN(ll_arena) a = ll_arena_new();
        int n;
        const char *const *all = ll_files(a, ll_arena_printf(a, "%s/%s", folder, *pattern), &n);
        for (int i = 0; i < n; i++) {
            TRY(ll_cli_spare(all[i]));
            CHECK(c->overwrite, LL_E_ARG,
                  "%s already exists: use --overwrite to remove the files of %s", all[i], c->what);
            if (!now) continue;
            CHECK(unlink(all[i]) == 0, LL_E_IO, "%s: %m", all[i]);
            printf("%s: removed\n", all[i]);
        }
    }
    return LL_OK;
}

static ll_err write_adapter(const opts *o, const ll_trained *t)
{
    int n;
    cleared of = {o->overwrite, "an adapter", of_adapter};
    TRY(ll_adapters_save(t->s, o->adapter, o->map, &(ll_clear){clear, &of}, &n));
    printf("%s: adapter_model.safetensors, %d tensors, adapter_config.json\n", o->adapter, n);
    return LL_OK;
}

static ll_err write_hf(const opts *o, const ll_trained *t)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_exported x;
    cleared of = {o->overwrite, "a model", of_model};
    TRY(ll_export_hf(t->run, t->s, o->hf, o->dtype, &(ll_clear){clear, &of}, a, &x));
    tell(o->hf, &x, o->dtype);
    return LL_OK;
}

static ll_err write_gguf(const opts *o, const ll_trained *t)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_exported x;
    LL_OWN(ll_calibration) by = NULL;
    LL_OWN(ll_progress) shown = NULL;
    ll_calibrate how = {.windows = o->calibrate,
                        .bits = 4,
                        .gptq = true,
                        .tell = ll_cli_calibrating,
                        .context = &shown};
    if (o->calibrate) {
        TRY(ll_calibration_open(t->run, t->s, &how, &by));
        TRY(ll_calibration_session(by, t->s));
    }
    TRY(ll_export_gguf(t->run, t->s, o->gguf, o->dtype, a, &x));
    tell(o->gguf, &x, o->dtype);
    return LL_OK;
}

/* What is written from a graph, of the trained values. */
typedef struct source {
    ll_predictor *p;
    ll_session *s;
} source;

static ll_err read_input(void *user, const char *name, void *data, size_t bytes)
{
    return ll_session_get(((source *)user)->s, name, data, bytes);
}

/* What is no part of what is written. */
static ll_err tell_inputs(const ll_trained *t)
{
    LL_OWN(ll_dataset) d = NULL;
    LL_OWN(ll_arena) a = ll_arena_new();
    if (!t->run->data.told) return LL_OK;
    TRY(ll_told_read(t->run->data.told, &d));
    const char *scaling = ll_data_scaling(ll_dataset_info(d), a);
    if (scaling) printf("input %s (%s)\n", scaling, t->run->data.told);
    return LL_OK;
}

static ll_err write_c(const opts *o, const ll_trained *t)
{
    LL_OWN(ll_predictor) p = NULL;
    TRY(ll_predictor_open(t->run, t->s, o->result, &p));
    TRY(ll_ccode_write(ll_predictor_graph(p), o->c, read_input, &(source){p, t->s}));
    printf("%s: model.c, model.h, main.c, weights.bin; makes %s of each sample\n", o->c,
           ll_predictor_info(p)->name);
    return LL_OK;
}

static ll_err onnx_graph(void *user, int64_t samples, ll_graph **out)
{
    return ll_predictor_make(((source *)user)->p, samples, out);
}

static ll_err write_onnx(const opts *o, const ll_trained *t)
{
    LL_OWN(ll_predictor) p = NULL;
    TRY(ll_predictor_open(t->run, t->s, o->result, &p));
    TRY(ll_onnx_write(onnx_graph, read_input, &(source){p, t->s}, o->onnx));
    printf("%s: opset 17, any number of samples; makes %s\n", o->onnx, ll_predictor_info(p)->name);
    return LL_OK;
}

/* takes: m --map, d --dtype, r --result, o --overwrite */
static const struct kind {
    const char *option;
    size_t file; /* of opts: where it is to be written; NULL: not asked for */
    ll_err (*write)(const opts *o, const ll_trained *t);
    const char *takes;
} kinds[] = {{"--weights FILE.safetensors", offsetof(opts, weights), write_weights, "md"},
             {"--adapter DIR", offsetof(opts, adapter), write_adapter, "mo"},
             {"--hf DIR", offsetof(opts, hf), write_hf, "do"},
             {"--gguf FILE.gguf", offsetof(opts, gguf), write_gguf, "d"},
             {"--c DIR", offsetof(opts, c), write_c, "r"},
             {"--onnx FILE.onnx", offsetof(opts, onnx), write_onnx, "r"}};

static const char *file_of(const opts *o, const struct kind *k)
{
    return *(const char *const *)((const char *)o + k->file);
}

static const struct kind *const end = kinds + sizeof kinds / sizeof *kinds;

/* Is any kind asked for that takes this (or, '\0', whatever it takes)? out: their options. */
static bool is_asked(const opts *o, char takes, char out[256])
{
    bool any = false;
    *out = '\0';
    for (const struct kind *k = kinds; k < end; k++) {
        if (!strchr(k->takes, takes)) continue;
        any |= file_of(o, k) != NULL;
        snprintf(out + strlen(out), 256 - strlen(out), "%s%s", *out ? " or " : "", k->option);
    }
    return any;
}

/* An option that nothing of what is written reads is a mistake. */
static ll_err check_used(const opts *o)
{
    const struct {
        const char *name;
        bool given;
    } some[] = {{"--map", o->map},
                {"--dtype", strcmp(o->dtype, "f32")},
                {"--result", o->result},
                {"--overwrite", o->overwrite}};
    char of[256];
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        CHECK(!some[i].given || is_asked(o, some[i].name[2], of), LL_E_ARG, "%s needs %s",
              some[i].name, of);
    return LL_OK;
}

static ll_err run(const void *given)
{
    const opts *o = (const opts *)given;
    char known[256];
    CHECK(is_asked(o, '\0', known), LL_E_ARG, "nothing to write: use %s", known);
    CHECK(!o->calibrate || (o->gguf && !strcmp(o->dtype, "q4_1")), LL_E_ARG,
          "--calibrate needs --gguf with --dtype q4_1");
    TRY(check_used(o));
    for (const struct kind *k = kinds; k < end; k++)
        if (file_of(o, k)) TRY(ll_cli_spare(file_of(o, k)));
    LL_TRAINED t = {0};
    TRY(ll_cli_trained(&o->of, &t));
    CHECK((!o->c && !o->onnx) || !t.run->train.quantize, LL_E_ARG,
          "%s cannot write rounded weights (train.quantize is %s): use -s train.quantize=none to "
          "write them unrounded",
          o->c ? "--c" : "--onnx", ll_rounding_name(t.run->train.quantize));
    for (const struct kind *k = kinds; k < end; k++)
        if (file_of(o, k)) TRY(k->write(o, &t));
    return o->c || o->onnx || o->weights ? tell_inputs(&t) : LL_OK;
}

const ll_command ll_command_export = {
    "export", "export a trained model: safetensors, Hugging Face, GGUF, ONNX, C", args,
    sizeof(opts), run};
