/* told.c: what a set is like, as data.json of a run's folder: which files were read, and what
 * brings other samples to those that it had: sizes, means and deviations, names of classes. */
#include "data/data_int.h"

#include <float.h>
#include <jansson.h>

static const char *const kinds[] = {"images", "tokens", "records"};

static void numbers(ll_buf *b, const char *name, const double *v, int64_t n)
{
    ll_buf_printf(b, ", \"%s\": [", name);
    char text[LL_NUMBER_TEXT];
    for (int64_t i = 0; i < n; i++) ll_buf_printf(b, i ? ", %s" : "%s", ll_text_number(v[i], text));
    ll_buf_puts(b, "]");
}

static void names(ll_buf *b, const char *name, const char *const *v, int64_t n)
{
    ll_buf_printf(b, ",\n \"%s\": [", name);
    for (int64_t i = 0; i < n; i++) {
        if (i) ll_buf_puts(b, i % 8 ? ", " : ",\n  ");
        ll_buf_json(b, v[i]);
    }
    ll_buf_puts(b, "]");
}

static void tell_files(const ll_data_info *f, ll_buf *b)
{
    ll_buf_printf(b, ",\n \"train\": %ld, \"val\": %ld, \"bytes\": %lu, ", f->n[LL_TRAIN],
                  f->n[LL_VAL], f->file_bytes);
    ll_buf_printf(b, "\"crc32c\": \"%08x\", \"files\": %ld,\n \"first\": [", f->digest, f->n_file);
    for (int i = 0; i < f->n_file && i < LL_NOTED_FILES; i++) {
        ll_buf_printf(b, "%s\n  {\"name\": %s, \"bytes\": %lu}", i ? "," : "",
                      ll_text_quoted(b->arena, f->files[i].name), f->files[i].size);
    }
    ll_buf_puts(b, "]");
}

void ll_dataset_tell(const ll_dataset *d, ll_buf *b)
{
    const ll_data_info *f = &d->info;
    ll_buf_printf(b, "{\"name\": %s, \"path\": %s,\n \"kind\": \"%s\"",
                  ll_text_quoted(b->arena, f->name), ll_text_quoted(b->arena, f->where),
                  kinds[f->kind]);
    if (f->kind == LL_TOKENS) ll_buf_printf(b, ", \"text\": %s", f->is_text ? "true" : "false");
    if (f->kind == LL_IMAGES) {
        const double sizes[] = {(double)f->height, (double)f->width, (double)f->channels};
        numbers(b, "image", sizes, 3);
        numbers(b, "mean", f->mean, f->channels);
        numbers(b, "deviation", f->deviation, f->channels);
        numbers(b, "centre", &d->centre, 1);
    }
    if (f->class_names) names(b, "classes", f->class_names, f->classes);
    if (f->n_column) {
        names(b, "columns", f->columns, f->n_column);
        numbers(b, "mean", f->column_mean, f->n_column);
        numbers(b, "deviation", f->column_deviation, f->n_column);
    }
    tell_files(f, b);
    ll_buf_puts(b, "}\n");
}

/* Exactly n numbers within [least, most]. */
static ll_err read_numbers(const json_t *j, const char *file, const char *name, double least,
                           double most, int n, double *out)
{
    const json_t *list = json_object_get(j, name);
    CHECK(json_array_size(list) == (size_t)n, LL_E_IO, "%s: %s needs %d numbers", file, name, n);
    for (int i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, (size_t)i);
        out[i] = json_number_value(v);
        CHECK(json_is_number(v) && out[i] >= least && out[i] <= most, LL_E_IO,
              "%s: %s has a value that is not a number from %g to %g", file, name, least, most);
    }
    return LL_OK;
}

static ll_err read_images(ll_dataset *d, const json_t *j, const char *file)
{
    ll_data_info *f = &d->info;
    double s[3];
    TRY(read_numbers(j, file, "image", 1, LL_MAX_WIDTH, 3, s));
    CHECK(s[2] <= LL_MAX_CHANNELS, LL_E_IO, "%s: image has %g channels", file, s[2]);
    f->height = (int64_t)s[0], f->width = (int64_t)s[1], f->channels = (int64_t)s[2];
    TRY(read_numbers(j, file, "mean", -1e30, 1e30, (int)f->channels, f->mean));
    TRY(read_numbers(j, file, "deviation", 1e-30, 1e30, (int)f->channels, f->deviation));
    TRY(read_numbers(j, file, "centre", 0.01, 1, 1, &d->centre));
    ll_dataset_scale(d);
    return LL_OK;
}

static ll_err read_names(ll_dataset *d, const json_t *j, const char *file, const char *what,
                         const char *const **out, int64_t *n)
{
    const json_t *names = json_object_get(j, what);
    *n = (int64_t)json_array_size(names);
    const char **list = LL_NEW_ARRAY(d->arena, const char *, *n + 1);
    for (int64_t i = 0; i < *n; i++) {
        const char *name = json_string_value(json_array_get(names, (size_t)i));
        CHECK(name, LL_E_IO, "%s: %s has a value that is not a name", file, what);
        list[i] = ll_arena_strdup(d->arena, name);
    }
    *out = *n ? list : NULL;
    return LL_OK;
}

static ll_err read_columns(ll_dataset *d, const json_t *j, const char *file)
{
    ll_data_info *f = &d->info;
    TRY(read_names(d, j, file, "columns", &f->columns, &f->n_column));
    if (!f->n_column) return LL_OK;
    double *v = LL_NEW_ARRAY(d->arena, double, 2 * f->n_column);
    TRY(read_numbers(j, file, "mean", -DBL_MAX, DBL_MAX, (int)f->n_column, v));
    TRY(read_numbers(j, file, "deviation", DBL_MIN, DBL_MAX, (int)f->n_column, v + f->n_column));
    f->column_mean = v, f->column_deviation = v + f->n_column;
    return LL_OK;
}

ll_err ll_told_parse(const char *text, size_t size, const char *file, ll_dataset **out)
{
    json_error_t why;
    *out = NULL;
    json_auto_t *j = json_loadb(text, size, 0, &why);
    CHECK(j, LL_E_IO, "%s:%d: not valid JSON: %s", file, why.line, why.text);
    ll_arena *arena = ll_arena_new();
    LL_OWN(ll_dataset) d = LL_NEW(arena, ll_dataset);
    d->arena = arena;
    d->info.name = d->info.where = ll_arena_strdup(arena, file);
    ll_data_info *f = &d->info;
    const char *kind = json_string_value(json_object_get(j, "kind"));
    int n = (int)(sizeof kinds / sizeof *kinds), k = 0;
    while (k < n && kind && strcmp(kinds[k], kind)) k++;
    CHECK(kind && k < n, LL_E_IO, "%s: kind is not images, tokens or records", file);
    f->kind = (ll_data_kind)k;
    f->is_text = json_is_true(json_object_get(j, "text"));
    TRY(read_names(d, j, file, "classes", &f->class_names, &f->classes));
    if (f->kind == LL_IMAGES) TRY(read_images(d, j, file));
    if (f->kind == LL_RECORDS) TRY(read_columns(d, j, file));
    return LL_HAND(out, d);
}

ll_err ll_told_read(const char *path, ll_dataset **out)
{
    LL_OWN_MEMORY uint8_t *text = NULL;
    size_t size;
    *out = NULL;
    TRY(ll_file_read(path, (size_t)1 << 26, &text, &size));
    return ll_told_parse((const char *)text, size, path, out);
}

const char *ll_data_scaling(const ll_data_info *f, ll_arena *a)
{
    ll_buf b = {.arena = a};
    const bool images = f->kind == LL_IMAGES;
    const int64_t n = images ? f->channels : f->n_column;
    const double *mean = images ? f->mean : f->column_mean;
    const double *deviation = images ? f->deviation : f->column_deviation;
    bool plain = true;
    for (int64_t i = 0; i < n; i++) plain &= mean[i] == 0 && deviation[i] == 1;
    if (!n || (plain && !images)) return NULL;
    ll_buf_puts(&b, images ? "x is pixels of 0 to 1" : "x is ");
    if (!images) ll_buf_puts(&b, ll_data_columns(f, a));
    if (plain) return b.text;
    if (!images) ll_buf_puts(&b, ", each less its mean, divided by its deviation");
    for (int k = 0; k < 2 && images; k++) {
        ll_buf_puts(&b, k ? ", divided by" : ", less");
        for (int64_t i = 0; i < n; i++) ll_buf_printf(&b, " %.4g", k ? deviation[i] : mean[i]);
    }
    return b.text;
}
