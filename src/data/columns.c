/* columns.c: x as numbers of a table's columns: what they are standardised by. Means and deviations
 * are those of the rows to train on; what a model was trained with holds for whatever it is given
 * later (ll_data_opts.told). */
#include "data/table.h"

#include "base/crc32c.h"
#include "base/types.h"

#include <math.h>

/* Sums in the order of rows, so that every rank finds the same bits; the deviation of what is
 * always the same number is 0. */
static ll_err measure(const ll_dataset *d, const ll_column *c, double *mean, double *deviation)
{
    const int64_t columns = ll_numel(&c->shape), n = d->info.n[LL_TRAIN];
    const ll_field whole = {c->field, LL_F64, c->shape};
    LL_OWN_MEMORY double *row = calloc((size_t)columns, 2 * sizeof *row);
    double *first = row ? row + columns : NULL; /* row; NaN once another differs */
    CHECK(row, LL_E_MEM, "not enough memory for a row of %ld columns", columns);
    for (int pass = 0; pass < 2; pass++) {
        double *sum = pass ? deviation : mean;
        for (int64_t k = 0; k < columns; k++) sum[k] = 0;
        for (int64_t i = 0; i < n; i++) {
            TRY(ll_column_read(c, ll_table_row(d->table, LL_TRAIN, i), &whole, row));
            for (int64_t k = 0; k < columns; k++) {
                if (!pass && (i == 0 || row[k] != first[k])) first[k] = i == 0 ? row[k] : NAN;
                sum[k] += pass ? (row[k] - mean[k]) * (row[k] - mean[k]) : row[k];
            }
        }
        for (int64_t k = 0; k < columns; k++) {
            sum[k] = pass ? sqrt(sum[k] / (double)n) : sum[k] / (double)n;
            if (pass && !isnan(first[k])) sum[k] = 0;
        }
    }
    return LL_OK;
}

/* To go on with other columns of the same files is to go on with other data. */
static void mark(ll_dataset *d)
{
    ll_data_info *f = &d->info;
    uint32_t c = 0;
    LL_EACH (const ll_column, x, d->table->columns, d->table->n)
        c = ll_crc32c(ll_crc32c(c, x->field, strlen(x->field) + 1), x->name, strlen(x->name) + 1);
    for (int64_t k = 0; k < f->n_column; k++)
        c = ll_crc32c(c, f->columns[k], strlen(f->columns[k]) + 1);
    f->digest ^= c, f->train_digest ^= c;
}

const char *ll_data_target(const ll_data_info *f, ll_arena *a)
{
    enum { MOST = 12, LARGE = 30 };
    ll_buf b = {.arena = a};
    const ll_field *y = NULL;
    for (int i = 0; i < f->n_field && f->n_column; i++)
        if (!strcmp(f->fields[i].name, "y")) y = &f->fields[i];
    if (!y || (y->dtype == LL_I32 && !f->classes)) return NULL;
    if (y->dtype == LL_I32) {
        ll_buf_printf(&b, "%ld classes", f->classes);
        for (int64_t k = 0; f->class_names && k < f->classes && k < MOST; k++)
            ll_buf_printf(&b, "%s%s", k ? ", " : ": ", f->class_names[k]);
        if (f->class_names && f->classes > MOST) ll_buf_puts(&b, ", ...");
        if (!f->class_names) ll_buf_printf(&b, ", whole numbers 0 to %ld", f->classes - 1);
        return b.text;
    }
    const double m = f->y_mean, s = f->y_deviation;
    ll_buf_printf(&b, "numbers, mean %.4g, deviation %.4g", m, s);
    if (!(fabs(m) < LARGE && s < LARGE))
        ll_buf_puts(&b, " (learned slowly so far from 0: divide them, or raise train.lr)");
    return b.text;
}

const char *ll_data_columns(const ll_data_info *f, ll_arena *a)
{
    enum { MOST = 12 };
    ll_buf b = {.arena = a};
    ll_buf_puts(&b, LL_COUNTED(f->n_column, "column"));
    for (int64_t k = 0; k < f->n_column && k < MOST; k++)
        ll_buf_printf(&b, "%s%s", k ? ", " : ": ", f->columns[k]);
    if (f->n_column > MOST) ll_buf_puts(&b, ", ...");
    return b.text;
}

/* For people: of the first number of y. */
static ll_err measure_target(ll_dataset *d)
{
    const ll_column *y = ll_table_find(d->table, "y");
    if (!y || y->type.kind != 'f') return LL_OK;
    const int64_t n = ll_numel(&y->shape);
    double *v = LL_NEW_ARRAY(d->arena, double, 2 * n);
    TRY(measure(d, y, v, v + n));
    d->info.y_mean = v[0], d->info.y_deviation = v[n];
    return LL_OK;
}

static ll_err standardise(ll_dataset *d)
{
    ll_data_info *f = &d->info;
    const ll_data_opts *o = d->opts;
    int i = 0;
    while (i < d->table->n && !d->table->columns[i].standard) i++;
    if (i == d->table->n) { /* the model does not take it */
        f->n_column = 0;
        return LL_OK;
    }
    ll_column *c = &d->table->columns[i];
    const int64_t n = f->n_column;
    mark(d);
    bool real = ll_dtype_is_float(f->fields[i].dtype);
    CHECK((o->n_mean <= 1 || o->n_mean == n) && (o->n_deviation <= 1 || o->n_deviation == n),
          LL_E_CONFIG, "%d numbers of mean and %d of deviation, expected 1 or %ld, one per column",
          o->n_mean, o->n_deviation, n);
    double *mean = LL_NEW_ARRAY(d->arena, double, n),
           *deviation = LL_NEW_ARRAY(d->arena, double, n);
    if (real && !f->column_mean && !(o->n_mean && o->n_deviation))
        TRY(measure(d, c, mean, deviation));
    for (int64_t k = 0; k < n; k++) {
        if (f->column_mean) mean[k] = f->column_mean[k], deviation[k] = f->column_deviation[k];
        if (o->n_mean) mean[k] = o->mean[o->n_mean > 1 ? k : 0];
        if (o->n_deviation) deviation[k] = o->deviation[o->n_deviation > 1 ? k : 0];
        if (!real) mean[k] = 0, deviation[k] = 1; /* whole numbers stay what they are */
        CHECK(isfinite(mean[k]) && isfinite(deviation[k]), LL_E_IO,
              "%s: numbers of column %s are too large to be standardised: leave it out "
              "(data.fields=-%s), or divide them",
              f->where, f->columns[k], f->columns[k]);
        if (deviation[k] == 0) deviation[k] = 1;
    }
    f->column_mean = mean, f->column_deviation = deviation;
    if (real) c->mean = mean, c->deviation = deviation;
    return measure_target(d);
}

/* What of a CSV is too large for f32 is told before the run. */
static ll_err check_sizes(const ll_dataset *d)
{
    LL_EACH (const ll_column, c, d->table->columns, d->table->n) {
        if (c->type.kind != 'f' || !c->parts->line) continue;
        const ll_field f = {c->field, LL_F32, c->shape};
        float *row = LL_NEW_ARRAY(d->arena, float, ll_numel(&c->shape));
        for (int split = 0; split < 2; split++)
            for (int64_t i = 0; i < d->info.n[split]; i++)
                TRY(ll_column_read(c, ll_table_row(d->table, split, i), &f, row));
    }
    return LL_OK;
}

ll_err ll_columns_standardise(ll_dataset *d)
{
    TRY(standardise(d));
    return check_sizes(d);
}

void ll_columns_adopt(ll_dataset *d, const ll_data_info *of)
{
    ll_data_info *f = &d->info;
    if (!of->n_column && !of->class_names) return;
    const char **columns = LL_NEW_ARRAY(d->arena, const char *, of->n_column + 1);
    const char **classes = LL_NEW_ARRAY(d->arena, const char *, of->classes + 1);
    double *v = LL_NEW_ARRAY(d->arena, double, 2 * of->n_column + 1);
    for (int64_t i = 0; i < of->n_column; i++) {
        columns[i] = ll_arena_strdup(d->arena, of->columns[i]);
        v[i] = of->column_mean[i], v[of->n_column + i] = of->column_deviation[i];
    }
    for (int64_t i = 0; of->class_names && i < of->classes; i++)
        classes[i] = ll_arena_strdup(d->arena, of->class_names[i]);
    if (of->n_column)
        f->columns = columns, f->n_column = of->n_column, f->column_mean = v,
        f->column_deviation = v + of->n_column;
    if (of->class_names) f->class_names = classes, f->classes = of->classes;
}
