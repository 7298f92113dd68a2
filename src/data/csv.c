/* csv.c: samples as rows of a CSV, whose first line names the columns:
 *
 *     image,label,age,tumour_mask
 *     a/1.jpg,cat,3.5,m/1.png
 *
 * A column of paths (.jpg, .jpeg, .png; as seen from the CSV's folder) is pictures: the first
 * one is field x, others are named as the column is. Columns named mask, or ending in _mask, are
 * maps of classes. Column label, class or target (in any case) is field y: numbers, or names, which
 * sorted are classes 0, 1, ... Other columns are numbers. A column split (in any case; train, or
 * val, valid, test) says what each row is for; without it rows are held out by a fixed shuffle.
 * Blanks around names of columns and of classes are none of them; a column without a name is left
 * out. */
#include "base/crc32c.h"
#include "base/rng.h"
#include "data/picture.h"
#include "data/table.h"

#include <math.h>
#include <strings.h>

/* A cell from *p on, unquoted in place; *p is then behind what ended it: ',' '\n' or the end, and
 * *at the line of the file there. */
static ll_err cell(char **p, const char *end, const char *file, int64_t *at, char **out, char *stop)
{
    char *q = *p, *w = *p;
    int64_t line = *at;
    *out = w;
    if (q < end && *q == '"') {
        for (q++;; *w++ = *q++) {
            while (q < end && *q == '"' && q + 1 < end && q[1] == '"') *w++ = '"', q += 2;
            CHECK(q < end, LL_E_IO, "%s:%ld: a quoted cell is not closed", file, line);
            if (*q == '"') break;
            *at += *q == '\n';
        }
        q++;
    } else
        while (q < end && *q != ',' && *q != '\n' && *q != '\r') *w++ = *q++;
    if (q < end && *q == '\r') q++;
    CHECK(q == end || q == *p || q[-1] != '\r' || *q == '\n', LL_E_IO,
          "%s:%ld: a line ends in a carriage return alone, expected a line feed", file, line);
    CHECK(q == end || *q == ',' || *q == '\n', LL_E_IO,
          "%s:%ld: a cell continues after its closing quote", file, line);
    *stop = q < end ? *q : '\0';
    *at += *stop == '\n';
    *w = '\0';
    *p = q < end ? q + 1 : q;
    return LL_OK;
}

static ll_err parse_rows(ll_csv *c, char *text, size_t size, const char *file, ll_arena *a)
{
    char *p = text, *end = text + size, stop;
    int capacity = 0, n = 0, n_line = 0, most = 0;
    for (int64_t at = 1, line; p < end;) {
        if (*p == '\n' || (*p == '\r' && p + 1 < end && p[1] == '\n')) { /* nothing in it */
            p += *p == '\r' ? 2 : 1;
            at++;
            continue;
        }
        int first = n;
        line = at;
        LL_PUSH(a, c->line, n_line, most, line);
        do {
            char *out;
            TRY(cell(&p, end, file, &at, &out, &stop));
            CHECK(n < INT32_MAX / 2, LL_E_IO, "%s: too many cells", file);
            LL_PUSH(a, c->cells, n, capacity, out);
        } while (stop == ',');
        if (first == 0) c->columns = n;
        CHECK(n - first == c->columns, LL_E_IO, "%s:%ld: %d cells, but the first line has %d", file,
              line, n - first, c->columns);
    }
    CHECK(n > c->columns, LL_E_IO, "%s has no rows below the header line", file);
    c->rows = n / c->columns - 1;
    return LL_OK;
}

static char *trimmed(char *name)
{
    name += strspn(name, " \t");
    size_t n = strlen(name);
    while (n > 0 && strchr(" \t", name[n - 1])) n--;
    name[n] = '\0';
    return name;
}

ll_err ll_csv_parse(const uint8_t *b, size_t size, const char *file, ll_arena *a, ll_csv *out)
{
    *out = (ll_csv){0};
    if (size >= 3 && !memcmp(b, "\xef\xbb\xbf", 3)) b += 3, size -= 3; /* a byte order mark */
    char *text = ll_arena_try(a, size + 1);
    CHECK(text, LL_E_MEM, "%s: not enough memory for %zu bytes", file, size);
    memcpy(text, b, size);
    CHECK(!memchr(text, '\0', size), LL_E_IO, "%s contains zero bytes: is it text?", file);
    ll_csv csv = {0};
    TRY(parse_rows(&csv, text, size, file, a));
    for (int k = 0; k < csv.columns; k++) csv.cells[k] = trimmed(csv.cells[k]);
    *out = csv;
    return LL_OK;
}

static const char *at(const ll_csv *c, int64_t row, int column)
{
    return c->cells[(row + 1) * c->columns + column];
}

static bool is_number(const char *text, double *out)
{
    char *end;
    *out = strtod(text, &end);
    return end != text && !end[strspn(end, " \t")] && isfinite(*out);
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

/* Names of classes as numbers; the names are those of the first file. */
static ll_err classify(ll_dataset *d, const ll_csv *c, int column, const char *file, double *out)
{
    ll_data_info *f = &d->info;
    for (int64_t i = 0; i < c->rows; i++) {
        TRY(has_text(c, i, column, file, "a label"));
        char **name = &c->cells[(i + 1) * c->columns + column];
        *name = trimmed(*name);
    }
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
        CHECK(found, LL_E_IO, "%s:%ld: class %s is not in the first file", file, c->line[i + 1],
              name);
        out[i] = (double)(found - f->class_names);
    }
    return LL_OK;
}

static void note(ll_data_info *d, ll_arena *a, const char *why, const char *so)
{
    d->note =
        ll_arena_printf(a, "%s%s%s, so %s", d->note ? d->note : "", d->note ? "; " : "", why, so);
}

static ll_err numbers(ll_dataset *d, const ll_csv *c, int column, bool y, const char *file,
                      ll_array *a)
{
    double *v = LL_NEW_ARRAY(d->arena, double, c->rows);
    bool whole = true;
    int64_t last = -1, n_number = 0;
    for (int64_t i = 0; i < c->rows; i++) {
        bool is = is_number(at(c, i, column), &v[i]);
        n_number += is;
        whole = whole && is && v[i] == floor(v[i]) && fabs(v[i]) < INT32_MAX;
        if (!is && !a->text)
            a->text = ll_arena_printf(d->arena, "%s:%ld: column %s: '%.40s' is not a number", file,
                                      c->line[i + 1], a->name, at(c, i, column));
    }
    bool all = n_number == c->rows, chosen = d->opts->fields || d->opts->n_want;
    if (!all && n_number && (y || !chosen))
        note(&d->info, d->arena, a->text, y ? "labels are names" : "the column is left out");
    if (!n_number && !y && !chosen)
        note(&d->info, d->arena, ll_arena_printf(d->arena, "column %s is text", a->name),
             "it is left out, unless data.fields makes it the label");
    all = all && !(y && d->info.class_names);
    if (!all && y) TRY(classify(d, c, column, file, v));
    a->type = all || y ? (ll_elem){'f', 8} : (ll_elem){0}; /* text: an error where it is taken */
    a->rows.data = (const uint8_t *)v;
    for (int64_t i = 0; all && y && whole && i < c->rows; i++)
        if (v[i] >= (double)d->info.classes) d->info.classes = (int64_t)v[i] + 1, last = i;
    if (last >= 0)
        d->info.last_class = ll_arena_printf(d->arena, "%s:%ld", file, c->line[last + 1]);
    if (!all || !whole) return LL_OK;
    int32_t *n = LL_NEW_ARRAY(d->arena, int32_t, c->rows); /* whole numbers are i32 by nature */
    for (int64_t i = 0; i < c->rows; i++) n[i] = (int32_t)v[i];
    a->type = (ll_elem){'i', 4};
    a->rows.data = (const uint8_t *)n;
    return LL_OK;
}

static ll_err pictures(ll_dataset *d, const ll_csv *c, int column, const char *file, ll_array *a)
{
    const char **paths = LL_NEW_ARRAY(d->arena, const char *, c->rows);
    int folder = (int)(ll_base_name(file) - file);
    for (int64_t i = 0; i < c->rows; i++) {
        const char *p = at(c, i, column);
        TRY(has_text(c, i, column, file, "a picture's path"));
        paths[i] = *p == '/' ? p : ll_arena_printf(d->arena, "%.*s%s", folder, file, p);
    }
    size_t n = strlen(a->name);
    a->type = (ll_elem){'u', 1};
    a->rows.paths = paths;
    a->map = n >= 4 && !strcmp(a->name + n - 4, "mask") && (n == 4 || a->name[n - 5] == '_');
    return LL_OK;
}

static bool is_split(const char *name)
{
    return !strcasecmp(name, "split");
}

static ll_err offer_columns(ll_dataset *d, const ll_csv *c, const char *file)
{
    static const char *const labels[] = {"y", "label", "class", "target"};
    const char *label = NULL;
    bool has_x = false;
    for (int k = 0; k < c->columns; k++) has_x |= !strcmp(c->cells[k], "x");
    for (int k = 0; k < c->columns; k++) {
        ll_array a = {
            .name = c->cells[k], .n_dim = 1, .dim = {c->rows}, .rows = {.line = c->line + 1}};
        bool y = false;
        if (!*a.name && !d->opts->fields && !d->opts->n_want)
            note(&d->info, d->arena, ll_arena_printf(d->arena, "column %d has no name", k + 1),
                 "it is left out");
        if (!*a.name || is_split(a.name)) continue;
        for (int i = 0; i < k; i++)
            CHECK(strcmp(c->cells[i], a.name), LL_E_IO, "%s: two columns are named %s", file,
                  a.name);
        for (size_t i = 0; i < sizeof labels / sizeof *labels; i++)
            y |= !strcasecmp(a.name, labels[i]);
        CHECK(!y || !label || d->opts->fields, LL_E_IO,
              "%s: columns %s and %s are both labels: name the one to use in data.fields", file,
              label, a.name);
        if (y) label = a.name;
        if (d->opts->fields) { /* it is said there */
            const char *field = ll_table_renamed(d->arena, d->opts->fields, a.name, 0);
            y = field && !strcmp(field, "y");
        }
        if (ll_picture_named(at(c, 0, k))) {
            TRY(pictures(d, c, k, file, &a));
            if (!a.map && !has_x) a.field = "x", has_x = true;
            if (!a.map) d->info.kind = LL_IMAGES;
        } else {
            TRY(numbers(d, c, k, y, file, &a));
            if (y) a.field = "y";
        }
        TRY(ll_table_offer(d, &a));
    }
    return LL_OK;
}

/* What each row is for, by column split, or else by a shuffle that is always the same. */
static ll_err pick_rows(ll_dataset *d, const ll_csv *c, const char *file)
{
    bool *val = LL_NEW_ARRAY(d->arena, bool, c->rows);
    int column = -1;
    for (int k = 0; k < c->columns; k++)
        if (is_split(c->cells[k])) column = k;
    int64_t held = column < 0 ? (int64_t)ceil((double)c->rows * ll_data_held_out(d)) : 0;
    for (int64_t i = 0; i < c->rows; i++) {
        if (column < 0) {
            val[i] = (int64_t)ll_permute(0, ll_stream("held out", 0), (uint64_t)i,
                                         (uint64_t)c->rows) < held;
            continue;
        }
        const char *s = at(c, i, column);
        val[i] = !strcmp(s, "val") || !strcmp(s, "valid") || !strcmp(s, "validation") ||
                 !strcmp(s, "test");
        CHECK(val[i] || !strcmp(s, "train"), LL_E_IO,
              "%s:%ld: split is %s, expected train, val, valid, validation or test", file,
              c->line[i + 1], s);
    }
    ll_table_pick(d, val, c->rows);
    return LL_OK;
}

ll_err ll_read_csv(ll_dataset *d, const char *path)
{
    LL_OWN_BYTES b = {0};
    ll_csv c;
    if (d->reading == LL_TRAIN) d->info.classes = 0; /* as many as are found */
    TRY(ll_bytes_map(path, &b));
    ll_dataset_note(d, ll_base_name(path), NULL, b.size);
    d->info.digest = ll_crc32c(d->info.digest, b.data, b.size);
    TRY(ll_csv_parse(b.data, b.size, path, d->arena, &c));
    CHECK(c.columns > 1 || !strpbrk(c.cells[0], ";\t"), LL_E_IO,
          "%s: cells are separated by %s, expected commas", path,
          strchr(c.cells[0], ';') ? "semicolons" : "tabs");
    if (d->reading == LL_TRAIN && !d->opts->val_path) TRY(pick_rows(d, &c, path));
    return offer_columns(d, &c, path);
}
