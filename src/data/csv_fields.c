/* csv_fields.c: samples as rows of a CSV, whose first line names the columns:
 *
 *     image,label,age,tumour_mask
 *     a/1.jpg,cat,3.5,m/1.png
 *
 * A column of paths (.jpg, .jpeg, .png; as seen from the CSV's folder) is pictures: the first one
 * is field x, others are named as the column is. Columns named mask, or ending in _mask, are maps
 * of classes. Column label, class or target (in any case) is field y: numbers, or names, which
 * sorted are classes 0, 1, ... Other columns of numbers are x, a row of them, where neither a
 * picture nor a column of that name is; data.fields may say otherwise ("x=a+b,-c,y=d"). A column
 * split (in any case; train, or val, valid, test) says what each row is for; without it rows are
 * held out by a fixed shuffle. Blanks around names of columns and of classes are none of them; a
 * column without a name is left out. */
#include "base/crc32c.h"
#include "base/near.h"
#include "base/rng.h"
#include "base/text.h"
#include "base/types.h"
#include "data/picture.h"
#include "data/samples.h"
#include "data/table.h"

#include <math.h>
#include <strings.h>

static const char *at(const ll_csv *c, int64_t row, int column)
{
    return c->cells[(row + 1) * c->columns + column];
}

static bool is_number(const char *text, double *out)
{
    char *end;
    *out = strtod(text, &end);
    if (strpbrk(text, "xX")) return false; /* hexadecimal is a code, not a number */
    return end != text && !end[strspn(end, " \t")] && isfinite(*out);
}

/* So much of a cell as a message has of it. */
static int shown(const char *text)
{
    size_t n = strcspn(text, "\r\n");
    return n < 40 ? (int)n : 40;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static ll_err has_text(const ll_csv *c, int64_t row, int column, const char *file, const char *what)
{
    const char *text = at(c, row, column);
    CHECK(text[strspn(text, " \t")], LL_E_IO, "%s:%ld: column %s is empty, expected %s", file,
          c->line[row + 1], c->cells[column], what);
    return LL_OK;
}

/* Names of classes as numbers; the names are those of the first file, or those trained on. */
static ll_err classify(ll_dataset *d, const ll_csv *c, int column, const char *file,
                       const char *first_text, double *out)
{
    ll_data_info *f = &d->info;
    for (int64_t i = 0; i < c->rows; i++) {
        TRY(has_text(c, i, column, file, "a label"));
        char **name = &c->cells[(i + 1) * c->columns + column];
        *name = ll_csv_trimmed(*name);
        CHECK(ll_is_utf8(*name), LL_E_IO,
              "%s:%ld: label '%.*s' is not UTF-8: save the file as UTF-8", file, c->line[i + 1],
              shown(*name), *name);
    }
    bool trained = d->opts->told && d->opts->told->info.n_column;
    if (!f->class_names && (trained || d->reading == LL_VAL))
        FAIL(LL_E_IO, "%s, but labels are numbers in %s", first_text,
             trained ? "what the run was trained on" : "the first file");
    if (!f->class_names) {
        const char **names = LL_NEW_ARRAY(d->arena, const char *, c->rows);
        for (int64_t i = 0; i < c->rows; i++) names[i] = at(c, i, column);
        qsort(names, (size_t)c->rows, sizeof *names, by_text);
        f->classes = 0;
        for (int64_t i = 0; i < c->rows; i++)
            if (i == 0 || strcmp(names[i], names[f->classes - 1])) names[f->classes++] = names[i];
        f->class_names = names;
    }
    for (int64_t i = 0; i < c->rows; i++) {
        const char *name = at(c, i, column);
        const char *const *found =
            bsearch(&name, f->class_names, (size_t)f->classes, sizeof name, by_text);
        CHECK(found, LL_E_IO, "%s:%ld: class %s is not %s", file, c->line[i + 1], name,
              d->opts->told ? "among those that were trained on" : "in the first file");
        out[i] = (double)(found - f->class_names);
    }
    return LL_OK;
}

static void note(ll_data_info *d, ll_arena *a, const char *why, const char *so)
{
    d->note =
        ll_arena_printf(a, "%s%s%s, so %s", d->note ? d->note : "", d->note ? "; " : "", why, so);
}

static const char *no_numbers(const ll_dataset *d, const ll_csv *c, int column)
{
    bool empty = true;
    for (int64_t i = 0; i < c->rows; i++) {
        const char *text = at(c, i, column);
        empty = empty && !text[strspn(text, " \t")];
    }
    return ll_arena_printf(d->arena, "column %s is %s", c->cells[column], empty ? "empty" : "text");
}

static ll_err numbers(ll_dataset *d, const ll_csv *c, int column, const char *field,
                      const char *file, ll_array *a)
{
    double *v = LL_NEW_ARRAY(d->arena, double, c->rows);
    const ll_field *want = ll_table_wanted(d->opts, field);
    bool whole = true, above = true, real = want && ll_dtype_is_float(want->dtype);
    int64_t last = -1, n_number = 0;
    bool y = !strcmp(field, "y") && !real; /* classes, not numbers to come near to */
    for (int64_t i = 0; i < c->rows; i++) {
        bool is = is_number(at(c, i, column), &v[i]);
        n_number += is;
        whole = whole && is && v[i] == floor(v[i]) && fabs(v[i]) < INT32_MAX;
        above = above && v[i] >= 0;
        if (!is && !a->text)
            a->text =
                ll_arena_printf(d->arena, "%s:%ld: column %s: '%.*s' is not a number", file,
                                c->line[i + 1], a->name, shown(at(c, i, column)), at(c, i, column));
    }
    bool all = n_number == c->rows, chosen = d->opts->fields || d->opts->n_want;
    whole = whole && (above || !y); /* what is below 0 is no class */
    if (!all && n_number && (y || !chosen))
        note(&d->info, d->arena, a->text, y ? "labels are names" : "the column is left out");
    if (!n_number && !y && !chosen)
        note(&d->info, d->arena, no_numbers(d, c, column),
             "it is left out, unless data.fields makes it the label");
    if (!all && n_number && y) d->info.mixed = a->text;
    all = all && !(y && d->info.class_names);
    bool named = y && !all;
    if (named) TRY(classify(d, c, column, file, a->text, v));
    a->type = all || y ? (ll_elem){'f', 8} : (ll_elem){0}; /* text: an error where it is taken */
    a->rows.data = (const uint8_t *)v;
    for (int64_t i = 0; all && y && whole && i < c->rows; i++)
        if (v[i] >= (double)d->info.classes) d->info.classes = (int64_t)v[i] + 1, last = i;
    if (last >= 0)
        d->info.last_class = ll_arena_printf(d->arena, "%s:%ld", file, c->line[last + 1]);
    const ll_column *old = ll_table_find(d->table, field);
    if (old && y && all && old->type.kind == 'i' && !whole)
        FAIL(LL_E_IO,
             "%s: labels of column %s are not all whole numbers from 0 on, as they are in %s, so "
             "that they are classes: set model.outputs=1 to predict the number",
             file, a->name, old->parts[0].file);
    bool kept = real || (old && old->type.kind == 'f'); /* as fractions, whole ones too */
    if ((kept || !(all && whole)) && !named) return LL_OK;
    int32_t *n = LL_NEW_ARRAY(d->arena, int32_t, c->rows); /* whole numbers are i32 by nature */
    for (int64_t i = 0; i < c->rows; i++) n[i] = (int32_t)v[i];
    a->type = (ll_elem){'i', 4};
    a->rows.data = (const uint8_t *)n;
    return LL_OK;
}

static bool is_map(const char *name)
{
    size_t n = strlen(name);
    return n >= 4 && !strcmp(name + n - 4, "mask") && (n == 4 || name[n - 5] == '_');
}

static ll_err pictures(ll_dataset *d, const ll_csv *c, int column, const char *file, ll_array *a)
{
    const char **paths = LL_NEW_ARRAY(d->arena, const char *, c->rows);
    int folder = (int)(ll_base_name(file) - file);
    for (int64_t i = 0; i < c->rows; i++) {
        const char *p = at(c, i, column);
        TRY(has_text(c, i, column, file, "a picture's path"));
        CHECK(ll_picture_named(p), LL_E_IO,
              "%s:%ld: column %s: '%.*s' is not a picture (.jpg, .png), as its first row is", file,
              c->line[i + 1], c->cells[column], shown(p), p);
        paths[i] = *p == '/' ? p : ll_arena_printf(d->arena, "%.*s%s", folder, file, p);
    }
    a->type = (ll_elem){'u', 1};
    a->rows.paths = paths;
    a->map = is_map(a->name);
    return LL_OK;
}

/* Column i of x, which is to be in every file. */
static ll_err has_column(const ll_csv *c, int k, const ll_data_info *f, int64_t i, const char *file)
{
    char names[320] = "";
    for (int j = 0, at = 0; k < 0 && j < c->columns && at < 280; j++)
        at +=
            snprintf(names + at, sizeof names - (size_t)at, "%s%.40s", j ? ", " : "", c->cells[j]);
    CHECK(k >= 0, LL_E_IO,
          "%s has no column %s, one of the %ld that x was made of in training; it has %s", file,
          f->columns[i], f->n_column, names);
    return LL_OK;
}

static bool is_split(const char *name)
{
    return !strcasecmp(name, "split");
}

typedef struct use { /* of a CSV's columns */
    ll_dataset *d;
    const ll_csv *c;
    const char *file;
    const char **by; /* what a column is taken for: a field, or why none; NULL: not yet known */
    bool *own;       /* columns that are a field without data.fields */
    bool has_x;
} use;

/* Columns as one array of numbers; why: how to do without one that has others. */
static ll_err join(const ll_csv *c, const char *file, const int *list, int64_t n, const char *why,
                   ll_arena *a, double **out)
{
    double *v = ll_arena_try(a, (size_t)(n * c->rows) * sizeof *v);
    CHECK(v, LL_E_MEM, "%s: not enough memory for %ld rows of %ld numbers", file, c->rows, n);
    for (int64_t i = 0; i < c->rows; i++)
        for (int64_t k = 0; k < n; k++) {
            const char *text = at(c, i, list[k]), *name = c->cells[list[k]];
            CHECK(is_number(text, &v[i * n + k]), LL_E_IO,
                  "%s:%ld: column %s: '%.*s' is not a number: correct it%s%s%s", file,
                  c->line[i + 1], name, shown(text), text, why, strchr(why, '-') ? name : "",
                  strchr(why, '-') ? ")" : "");
        }
    *out = v;
    return LL_OK;
}

static int find(const ll_csv *c, const char *name, ll_near *near)
{
    for (int k = 0; k < c->columns; k++)
        if (*name && !strcmp(c->cells[k], name)) return k;
    *near = (ll_near){.word = name};
    for (int k = 0; k < c->columns; k++)
        if (*c->cells[k]) ll_near_try(near, c->cells[k]);
    return -1;
}

/* One column as a field of its own. */
static ll_err offer(use *u, int k, const char *field)
{
    ll_dataset *d = u->d;
    ll_array a = {
        .name = u->c->cells[k], .n_dim = 1, .dim = {u->c->rows}, .rows = {.line = u->c->line + 1}};
    if (ll_picture_named(at(u->c, 0, k))) {
        TRY(pictures(d, u->c, k, u->file, &a));
        if (!a.map) d->info.kind = LL_IMAGES;
    } else {
        TRY(numbers(d, u->c, k, field, u->file, &a));
        a.standard = !strcmp(field, "x");
    }
    if (a.standard && !d->info.n_column) {
        const char **name = LL_NEW(d->arena, const char *);
        *name = a.name;
        d->info.columns = name, d->info.n_column = 1;
    }
    return ll_table_take(d, &a, field);
}

static ll_err offer_joined(use *u, const int *list, int64_t n, const char *field, const char *why)
{
    ll_dataset *d = u->d;
    const ll_csv *c = u->c;
    ll_array a = {.name = field,
                  .type = {'f', 8},
                  .n_dim = 2,
                  .dim = {c->rows, n},
                  .rows = {.line = c->line + 1},
                  .standard = !strcmp(field, "x")};
    double *v;
    TRY(join(c, u->file, list, n, why, d->arena, &v));
    a.rows.data = (const uint8_t *)v;
    if (a.standard && !d->info.n_column) {
        const char **names = LL_NEW_ARRAY(d->arena, const char *, n);
        for (int64_t k = 0; k < n; k++) names[k] = c->cells[list[k]];
        d->info.columns = names, d->info.n_column = n;
    }
    return ll_table_take(d, &a, field);
}

static ll_err use_as(use *u, const char *name, const char *field, int *out)
{
    ll_near near;
    CHECK(*name && *field, LL_E_CONFIG,
          "data.fields=%s has an item without a name: expected x=a+b,-c,y=d", u->d->opts->fields);
    int k = *out = find(u->c, name, &near);
    CHECK(k >= 0, LL_E_IO,
          "%s: data.fields names %s, but the file has no such column%s (it has:%s)", u->file, name,
          ll_near_hint(&near), near.known);
    CHECK(!u->by[k] || ll_picture_named(at(u->c, 0, k)), LL_E_IO,
          "%s: data.fields has column %s twice, as %s and as %s: leave one of them out", u->file,
          name, u->by[k], field);
    u->by[k] = field;
    return LL_OK;
}

typedef struct item { /* of data.fields */
    const char *field;
    int *list, n, capacity; /* columns; none: they are left out */
} item;

/* "x=a+b": several columns, one behind the other; "-a": none of a. */
static ll_err find_item(use *u, const char *field, const char *spec, item *out)
{
    ll_arena *a = u->d->arena;
    ll_near near;
    int k;
    *out = (item){.field = field};
    bool out_of_x = *field == '-' && field == spec;
    if (out_of_x && u->d->info.n_column && find(u->c, spec + 1, &near) < 0) return LL_OK;
    if (out_of_x) return use_as(u, spec + 1, "left out", &k);
    u->has_x |= !strcmp(field, "x");
    char *rest = ll_arena_strdup(a, spec), *name;
    bool one = find(u->c, spec, &near) >= 0;
    while ((name = one ? rest : strsep(&rest, "+"))) {
        if (one) rest = NULL, one = false;
        TRY(use_as(u, ll_csv_trimmed(name), field, &k));
        LL_PUSH(a, out->list, out->n, out->capacity, k);
    }
    return LL_OK;
}

/* Is it a field that the model takes, which no item before has said? */
static ll_err check_item(const ll_data_opts *o, const item *x, const item *before, int n)
{
    ll_near near = {.word = x->field};
    for (int i = 0; i < n && x->n; i++)
        CHECK(!before[i].n || strcmp(before[i].field, x->field), LL_E_CONFIG,
              "data.fields=%s says %s twice: expected %s=a+b of several columns", o->fields,
              x->field, x->field);
    for (int i = 0; i < o->n_want; i++) ll_near_try(&near, o->want[i].name);
    CHECK(!x->n || !o->n_want || ll_table_wanted(o, x->field), LL_E_CONFIG,
          "data.fields=%s: the model does not take %s%s (it takes:%s)", o->fields, x->field,
          ll_near_hint(&near), near.known);
    return LL_OK;
}

/* The column that is y where data.fields does not say. */
static ll_err find_label(use *u)
{
    static const char *const labels[] = {"y", "label", "class", "target"};
    int label = -1;
    for (int k = 0; k < u->c->columns; k++) {
        bool y = false;
        for (size_t i = 0; i < sizeof labels / sizeof *labels; i++)
            y |= !strcasecmp(u->c->cells[k], labels[i]);
        if (!y || u->by[k]) continue;
        CHECK(label < 0, LL_E_IO,
              "%s: columns %s and %s are both labels: name the one to use in data.fields", u->file,
              u->c->cells[label], u->c->cells[k]);
        label = k;
    }
    if (label < 0) return LL_OK;
    u->by[label] = "y";
    u->own[label] = true;
    return LL_OK;
}

/* The columns that x is made of where data.fields does not say: those of the first file, or that
 * were trained on; else all numbers that nothing else is made of. */
static ll_err offer_rest(use *u)
{
    ll_dataset *d = u->d;
    ll_near near;
    int *list = NULL, n = 0, capacity = 0;
    double v;
    for (int64_t i = 0; i < d->info.n_column; i++) {
        int k = find(u->c, d->info.columns[i], &near);
        TRY(has_column(u->c, k, &d->info, i, u->file));
        LL_PUSH(d->arena, list, n, capacity, k);
    }
    for (int k = 0; k < u->c->columns && !d->info.n_column; k++) {
        if (u->by[k]) continue;
        bool some = false;
        for (int64_t i = 0; i < u->c->rows && !some; i++) some = is_number(at(u->c, i, k), &v);
        if (some)
            LL_PUSH(d->arena, list, n, capacity, k);
        else
            note(&d->info, d->arena, no_numbers(d, u->c, k),
                 "it is left out, unless data.fields makes it the label");
    }
    return n ? offer_joined(u, list, n, "x", ", or leave the column out (data.fields=-") : LL_OK;
}

/* Does data.fields say what this field is? */
static bool is_said(const use *u, const char *field)
{
    const char *fields = u->d->opts->fields, *other, *spec;
    while (ll_fields_next(&fields, u->d->arena, &other, &spec))
        if (!strcmp(other, field)) return true;
    return false;
}

/* Columns that need no saying: pictures, and those of the model's own names. */
static void find_named(use *u, bool joins)
{
    for (int k = 0; k < u->c->columns; k++) {
        const char *field = u->c->cells[k];
        bool picture = ll_picture_named(at(u->c, 0, k));
        bool named = strcmp(field, "x") && ll_table_wanted(u->d->opts, field) && !is_said(u, field);
        if (u->by[k] || (joins && !picture && !named)) continue;
        if (picture && !is_map(field) && !u->has_x) field = "x", u->has_x = true;
        u->by[k] = field;
        u->own[k] = true;
    }
}

static bool has_picture(const ll_csv *c)
{
    for (int k = 0; k < c->columns; k++)
        if (ll_picture_named(at(c, 0, k)) && !is_map(c->cells[k])) return true;
    return false;
}

/* Names of columns; those of none, and of the split, are nothing. */
static ll_err check_columns(use *u)
{
    ll_dataset *d = u->d;
    for (int k = 0; k < u->c->columns; k++) {
        const char *name = u->c->cells[k];
        if (!*name && !d->opts->fields && !d->opts->n_want)
            note(&d->info, d->arena, ll_arena_printf(d->arena, "column %d has no name", k + 1),
                 "it is left out");
        if (!*name || is_split(name)) {
            u->by[k] = "split";
            continue;
        }
        for (int i = 0; i < k; i++)
            CHECK(strcmp(u->c->cells[i], name), LL_E_IO, "%s: two columns are named %s", u->file,
                  name);
        u->has_x |= !d->opts->fields && !strcmp(name, "x");
        ll_table_note(d, &(ll_array){.name = name, .n_dim = 1, .dim = {u->c->rows}});
    }
    return LL_OK;
}

/* A column named x is x alone; the model does not take others of numbers. */
static void note_unused(const use *u)
{
    ll_arena *a = u->d->arena;
    ll_buf names = {.arena = a}, sum = {.arena = a};
    double v;
    for (int k = 0; k < u->c->columns && u->d->opts->n_want; k++) {
        const char *name = u->c->cells[k];
        bool used = !u->own[k] || ll_table_wanted(u->d->opts, u->by[k]);
        if (used || !is_number(at(u->c, 0, k), &v) || sum.len > 200) continue;
        ll_buf_printf(&names, "%s%s", names.len ? ", " : "", name);
        ll_buf_printf(&sum, "+%s", name);
    }
    if (names.len)
        note(&u->d->info, a,
             ll_arena_printf(a, "column x is x, and the model takes none of %s", names.text),
             ll_arena_printf(a, "they are left out (data.fields=x=x%s joins them)", sum.text));
}

static ll_err offer_columns(ll_dataset *d, const ll_csv *c, const char *file)
{
    const ll_data_opts *o = d->opts;
    const char *fields = o->fields, *field, *spec;
    use u = {.own = LL_NEW_ARRAY(d->arena, bool, c->columns),
             .d = d,
             .c = c,
             .file = file,
             .by = LL_NEW_ARRAY(d->arena, const char *, c->columns)};
    item *items = NULL;
    int n = 0, capacity = 0;
    bool has_y = false;
    d->table->sorted_out = true;
    TRY(check_columns(&u));
    while (ll_fields_next(&fields, d->arena, &field, &spec)) {
        item next;
        has_y |= !strcmp(field, "y");
        TRY(find_item(&u, field, spec, &next));
        TRY(check_item(o, &next, items, n));
        LL_PUSH(d->arena, items, n, capacity, next);
    }
    for (int i = 0; i < n; i++)
        if (items[i].n == 1)
            TRY(offer(&u, items[i].list[0], items[i].field));
        else if (items[i].n)
            TRY(offer_joined(&u, items[i].list, items[i].n, items[i].field,
                             ", or leave the column out of data.fields"));
    if (!has_y && (!o->n_want || ll_table_wanted(o, "y"))) TRY(find_label(&u));
    bool joins = !u.has_x && (!o->n_want || ll_table_wanted(o, "x")) && !has_picture(c);
    if (!o->fields || joins) find_named(&u, joins);
    if (!o->fields && u.has_x && !has_picture(c)) note_unused(&u);
    if (joins) TRY(offer_rest(&u));
    for (int k = 0; k < c->columns; k++)
        if (u.own[k]) TRY(offer(&u, k, u.by[k]));
    return LL_OK;
}

/* Rows for a model that has been trained: what is no column of x does not matter. */
ll_err ll_csv_samples(const ll_dataset *d, const ll_field *f, const char *path, ll_arena *a,
                      ll_samples *out)
{
    LL_OWN_BYTES b = {0};
    ll_csv c;
    ll_near near;
    const int64_t n = d ? d->info.n_column : 0;
    CHECK(n && !strcmp(f->name, "x") && ll_numel(&f->shape) == n, LL_E_ARG,
          "%s: rows of a CSV need a model that was trained on columns of one (data.format=csv)",
          path);
    TRY(ll_bytes_map(path, &b));
    TRY(ll_csv_parse(b.data, b.size, path, a, &c));
    int *list = LL_NEW_ARRAY(a, int, n);
    for (int64_t i = 0; i < n; i++) {
        list[i] = find(&c, d->info.columns[i], &near);
        TRY(has_column(&c, list[i], &d->info, i, path));
        for (int k = list[i] + 1; k < c.columns; k++)
            CHECK(strcmp(c.cells[k], c.cells[list[i]]), LL_E_IO, "%s: two columns are named %s",
                  path, c.cells[k]);
    }
    double *v;
    TRY(join(&c, path, list, n, "", a, &v));
    size_t bytes = (size_t)n * ll_dtype_bytes(f->dtype);
    *out = (ll_samples){.n = c.rows, .data = ll_arena_alloc(a, (size_t)c.rows * bytes)};
    ll_data_part part = {.file = path,
                         .n = c.rows,
                         .data = (const uint8_t *)v,
                         .stride = (size_t)n * sizeof *v,
                         .line = c.line + 1};
    ll_column x = {.name = "x",
                   .field = "x",
                   .type = {'f', 8},
                   .shape = f->shape,
                   .parts = &part,
                   .n_part = 1,
                   .mean = d->info.column_mean,
                   .deviation = d->info.column_deviation};
    for (int64_t i = 0; i < c.rows; i++)
        TRY(ll_column_read(&x, i, f, (char *)out->data + (size_t)i * bytes));
    return LL_OK;
}

static bool is_any_of(const char *word, const char *const *words)
{
    while (*words && strcasecmp(word, *words)) words++;
    return *words;
}

/* What each row is for, by column split, or else by a shuffle that is always the same. Rows to test
 * with are for validation where no others are. */
static ll_err pick_rows(ll_dataset *d, const ll_csv *c, const char *file)
{
    static const char *const vals[] = {"val", "valid", "validation", "dev", NULL},
                             *const trains[] = {"train", "training", NULL};
    int8_t *part = LL_NEW_ARRAY(d->arena, int8_t, c->rows);
    int64_t n_val = 0, n_test = 0;
    int column = -1;
    for (int k = 0; k < c->columns; k++)
        if (is_split(c->cells[k])) {
            CHECK(column < 0, LL_E_IO,
                  "%s: columns %s and %s both say what rows are for: leave one", file,
                  c->cells[column], c->cells[k]);
            column = k;
        }
    int64_t held = column < 0 ? (int64_t)ceil((double)c->rows * ll_data_held_out(d)) : 0;
    for (int64_t i = 0; i < c->rows; i++) {
        if (column < 0) {
            part[i] = (int64_t)ll_permute(0, ll_stream("held out", 0), (uint64_t)i,
                                          (uint64_t)c->rows) < held;
            continue;
        }
        const char *s = ll_csv_trimmed(c->cells[(i + 1) * c->columns + column]);
        bool val = is_any_of(s, vals), test = !strcasecmp(s, "test");
        CHECK(val || test || is_any_of(s, trains), LL_E_IO,
              "%s:%ld: split is '%.40s', expected train, val (valid, validation, dev) or test",
              file, c->line[i + 1], s);
        n_val += val, n_test += test;
        part[i] = val ? LL_VAL : test ? LL_TABLE_NEITHER : LL_TRAIN;
    }
    for (int64_t i = 0; i < c->rows && !n_val; i++)
        if (part[i] == LL_TABLE_NEITHER) part[i] = LL_VAL;
    if (n_val && n_test)
        note(&d->info, d->arena, ll_arena_printf(d->arena, "split has val rows and test rows"),
             ll_arena_printf(d->arena, "the latter, %ld, are left out", n_test));
    ll_table_pick(d, part, c->rows);
    return LL_OK;
}

ll_err ll_read_csv(ll_dataset *d, const char *path)
{
    LL_OWN_BYTES b = {0};
    ll_csv c;
    if (d->reading == LL_TRAIN && !d->info.class_names)
        d->info.classes = 0; /* as many as are found */
    TRY(ll_bytes_map(path, &b));
    ll_dataset_note(d, ll_base_name(path), NULL, b.size);
    d->info.digest = ll_crc32c(d->info.digest, b.data, b.size);
    TRY(ll_csv_parse(b.data, b.size, path, d->arena, &c));
    double v;
    for (int k = 0; k < c.columns; k++)
        CHECK(!is_number(c.cells[k], &v) || v == floor(v), LL_E_IO,
              "%s: the first line has number %s, expected the names of columns", path, c.cells[k]);
    if (d->reading == LL_TRAIN && !d->opts->val_path) TRY(pick_rows(d, &c, path));
    return offer_columns(d, &c, path);
}
