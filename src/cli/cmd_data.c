/* cmd_data.c: loopline data. */
#include "cli/common.h"

typedef struct opts {
    const char *name, *path, *format, *fields;
    int64_t from, count, image;
    bool val, json;
} opts;

static const ll_arg args[] = {
    {"[NAME]", LL_OPT(opts, name), NULL,
     "show samples of this dataset; without it, list all datasets"},
    {"--path", LL_OPT(opts, path), "PATH", "file, folder or glob pattern with the data"},
    {"--format", LL_OPT(opts, format), "F", "format of the files at --path: " LL_DATA_FORMATS},
    {"--fields", LL_OPT(opts, fields), "MAP",
     "which arrays to read as which fields, such as x=images,y=labels; of a CSV also x=a+b+c and "
     "-id"},
    {"--image", LL_OPT(opts, image), "N", "show images at this size in pixels", "32"},
    {"--from", LL_OPT(opts, from), "N", "index of the first sample (or token) to show", "0"},
    {"--count|-n", LL_OPT(opts, count), "N",
     "number of samples to show; of token data, hundreds of tokens", "4"},
    {"--val", LL_OPT(opts, val), NULL, "show the validation split instead of the training split"},
    {"--json", LL_OPT(opts, json), NULL, "print JSON to standard output, without samples"},
    {0}};

static const char *const kinds[] = {
    [LL_IMAGES] = "images", [LL_TOKENS] = "tokens", [LL_RECORDS] = "records"};

static json_t *info_json(const ll_data_info *i)
{
    const ll_field *f = i->fields;
    json_t *fields =
        LL_JSON_LIST(k, i->n_field,
                     LL_JSON(LL_IS("name", f[k].name), LL_IS("dtype", ll_dtype_name(f[k].dtype)),
                             LL_IS("shape", ll_cli_shape(&f[k].shape))));
    return LL_JSON(LL_IS("name", i->name), LL_IS("kind", kinds[i->kind]),
                   LL_IS("train", i->n[LL_TRAIN]), LL_IS("val", i->n[LL_VAL]),
                   LL_IS("sample", ll_cli_shape(&i->fields[0].shape)), LL_IS("classes", i->classes),
                   LL_IS("vocab", i->vocab), LL_IS("fields", fields),
                   LL_IF(i->n_column, "columns", LL_JSON_LIST(k, i->n_column, i->columns[k])),
                   LL_IS("files", i->n_file), LL_IS("crc32c", i->digest),
                   LL_IS("bytes", i->file_bytes), LL_IS("note", i->note));
}

static ll_err list(const opts *o)
{
    ll_data_entry e[LL_MAX_DATASETS];
    int n = ll_dataset_list(e);
    json_auto_t *all = json_array();
    for (int i = 0; i < n; i++) {
        if (o->json) {
            json_t *j = e[i].installed ? info_json(&e[i].info) : json_object();
            LL_JSON_ADD(j, LL_IS("name", e[i].name), LL_IS("installed", e[i].installed),
                        LL_IS("source", e[i].source), LL_IS("where", e[i].where));
            json_array_append_new(all, j);
        } else if (e[i].installed) {
            printf("%-14s %s: %ld train, %ld validation, %s  %s\n", e[i].name, e[i].help,
                   e[i].info.n[LL_TRAIN], e[i].info.n[LL_VAL], LL_BYTES(e[i].info.file_bytes),
                   e[i].where);
        } else
            printf("%-14s %s: not installed; expected in %s: %s\n", e[i].name, e[i].help,
                   e[i].where, e[i].source);
    }
    if (o->json) return ll_cli_json(json_incref(all));
    printf("\nData folder: %s (set LOOPLINE_DATA to change it).\n"
           "To show samples: loopline data NAME, or loopline data --path PATH --format F for your "
           "own files.\n",
           ll_data_folder());
    return LL_OK;
}

static ll_err show_images(const opts *o, const ll_dataset *d, ll_split split)
{
    enum { ROW = 4 };
    for (int64_t i = 0; i < o->count; i += ROW) {
        int64_t index[ROW];
        int row = (int)(o->count - i < ROW ? o->count - i : ROW);
        for (int k = 0; k < row; k++) index[k] = o->from + i + k;
        TRY(ll_show_images(d, split, index, row, ll_show_style(stdout), stdout));
    }
    return LL_OK;
}

/* Fields of samples, and the first numbers of each. */
static ll_err show_records(const opts *o, const ll_dataset *d, ll_split split)
{
    const ll_data_info *f = ll_dataset_info(d);
    void *out[LL_MAX_FIELDS] = {0};
    LL_OWN(ll_arena) a = ll_arena_new();
    for (int i = 0; i < f->n_field; i++) out[i] = ll_arena_alloc(a, f->field_bytes[i]);
    for (int64_t k = o->from; k < o->from + o->count; k++) {
        char shape[LL_SHAPE_TEXT];
        TRY(ll_dataset_read(d, &(ll_sampling){.split = split}, k, 1, out));
        for (int i = 0; i < f->n_field; i++) {
            const ll_field *x = &f->fields[i];
            int64_t n = ll_numel(&x->shape);
            printf("%ld %s %s%s:", k, x->name, ll_dtype_name(x->dtype),
                   ll_shape_print(&x->shape, shape));
            for (int64_t j = 0; j < n && j < 8; j++) printf(" %g", ll_load(out[i], x->dtype, j));
            printf(n > 8 ? " ...\n" : "\n");
        }
    }
    return LL_OK;
}

static ll_err show(const opts *given, const ll_dataset *d)
{
    opts own = *given, *o = &own;
    const ll_data_info *i = ll_dataset_info(d);
    ll_split split = o->val ? LL_VAL : LL_TRAIN;
    if (o->json) return ll_cli_json(info_json(i));
    CHECK(i->n[split] > 0, LL_E_IO, "that part of %s is empty", i->name);
    int64_t there = i->kind == LL_TOKENS ? i->tokens[split] : i->n[split];
    CHECK(o->from < there, LL_E_ARG, "--from is %ld, but there are only %ld %s", o->from, there,
          i->kind == LL_TOKENS ? "tokens" : "samples");
    if (i->kind == LL_TOKENS) o->count *= 100;
    if (o->count > there - o->from) o->count = there - o->from;
    char shape[LL_SHAPE_TEXT];
    printf("%s: %ld train, %ld validation, samples %s, %s  %s\n\n", i->name, i->n[LL_TRAIN],
           i->n[LL_VAL], ll_shape_print(&i->fields[0].shape, shape), LL_BYTES(i->file_bytes),
           i->where);
    LL_OWN(ll_arena) a = ll_arena_new();
    if (i->n_column) printf("x: %s\n\n", ll_data_columns(i, a));
    const char *y = ll_data_target(i, a);
    if (y) printf("y: %s\n\n", y);
    if (i->note) printf("note: %s\n\n", i->note);
    if (i->kind == LL_RECORDS) return show_records(o, d, split);
    if (i->kind == LL_IMAGES) return show_images(o, d, split);
    return ll_show_tokens(d, split, o->from, o->count, stdout);
}

static ll_err run(const void *given)
{
    const opts *o = (const opts *)given;
    const char *idle = o->format ? "--format" : o->fields ? "--fields" : o->val ? "--val" : NULL;
    CHECK(o->name || o->path || !idle, LL_E_ARG, "%s needs a NAME, or --path FILES", idle);
    CHECK(!o->name || !o->format, LL_E_ARG,
          "'%s' has its own format: --format needs --path, without a NAME", o->name);
    if (!o->name && !o->path) return list(o);
    LL_OWN(ll_dataset) d = NULL;
    ll_data_opts how = {.name = o->name, .path = o->path, .format = o->format, .fields = o->fields};
    if (o->format) how.height = how.width = o->image;
    TRY(ll_dataset_open(&how, &d));
    return show(o, d);
}

const ll_command ll_command_data = {"data", "list datasets, or show samples of one", args,
                                    sizeof(opts), run};
