/* A CSV's columns of numbers as x: which ones join, what they are standardised by, what is told of
 * them, and that a set is held to what another one was. */
#include "files.h"

#include "data/samples.h"

#include <math.h>

enum { ROWS = 40, COLUMNS = 11 };

/* Column c of row r: of another size and place for each, c2 the same in all rows. */
static double number(int r, int c)
{
    return c == 2 ? 7 : 100.0 * c + (c + 1) * sin(r * (c + 1));
}

/* id,c0,...,c10,kind,split: a fifth of the rows is for validation, far from the others. */
static const char *put_table(void **state, const char *name, const char *drop)
{
    ll_arena *a = ll_arena_new();
    ll_buf b = {.arena = a};
    ll_buf_puts(&b, "id");
    for (int c = 0; c < COLUMNS; c++) ll_buf_printf(&b, ",%sc%d", c == 3 ? drop : "", c);
    ll_buf_puts(&b, ",Label,split\n");
    for (int r = 0; r < ROWS; r++) {
        ll_buf_printf(&b, "r%d", r);
        for (int c = 0; c < COLUMNS; c++)
            ll_buf_printf(&b, ",%.17g", number(r, c) + (r % 5 ? 0 : 1e4));
        ll_buf_printf(&b, ",%s,%s\n", r % 3 ? "cat" : "dog", r % 5 ? "train" : "val");
    }
    const char *path = tmpdir_path(state, name);
    put_file(path, b.text, b.len);
    ll_arena_free(a);
    return path;
}

static void put_text(const char *path, const char *text)
{
    put_file(path, text, strlen(text));
}

static ll_data_opts table_of(const char *path)
{
    return (ll_data_opts){.path = path, .format = "csv"};
}

/* More columns than there are fields; the mean is 0 and the deviation 1 of rows to train on. */
static void joined(void **state)
{
    ll_dataset *d;
    ll_data_opts o = table_of(put_table(state, "t.csv", ""));
    ok(ll_dataset_open(&o, &d));
    const ll_data_info *f = ll_dataset_info(d);
    assert_int_equal(f->n_field * 10000 + f->n[0] * 100 + f->n[1], 23208);
    assert_string_equal(f->fields[0].name, "x");
    assert_int_equal(f->fields[0].shape.d[0], COLUMNS);
    assert_string_equal(f->columns[10], "c10");
    assert_int_equal(f->fields[1].dtype, LL_I32);
    assert_string_equal(f->class_names[1], "dog");
    assert_non_null(strstr(f->note, "column id is text"));
    double sum[COLUMNS] = {0}, squares[COLUMNS] = {0};
    float x[COLUMNS];
    for (int64_t i = 0; i < f->n[0]; i++) {
        ok(ll_dataset_read(d, &(ll_sampling){0}, i, 1, (void *[]){x, NULL}));
        for (int c = 0; c < COLUMNS; c++) sum[c] += x[c], squares[c] += x[c] * x[c];
    }
    for (int c = 0; c < COLUMNS; c++) {
        assert_float_equal(sum[c], 0, 1e-4);
        assert_float_equal(squares[c], c == 2 ? 0 : 32, 1e-3);
    }
    ok(ll_dataset_read(d, &(ll_sampling){.split = LL_VAL}, 1, 1, (void *[]){x, NULL}));
    assert_float_equal(x[4], (number(5, 4) + 1e4 - f->column_mean[4]) / f->column_deviation[4],
                       1e-2);
    ll_dataset_close(d);
    o.n_mean = o.n_deviation = 1, o.deviation[0] = 1; /* switched off */
    ok(ll_dataset_open(&o, &d));
    ok(ll_dataset_read(d, &(ll_sampling){.split = LL_VAL}, 1, 1, (void *[]){x, NULL}));
    for (int c = 0; c < COLUMNS; c++) assert_float_equal(x[c], number(5, c) + 1e4, 1e-2);
    ll_dataset_close(d);
    o.n_mean = 2;
    fails(ll_dataset_open(&o, &d), "2 numbers of mean and 1 of deviation, expected 1 or 11");
}

/* What data.fields says, in any order; and what is wrong with it. */
static void chosen(void **state)
{
    ll_dataset *d;
    ll_data_opts o = table_of(put_table(state, "t.csv", ""));
    o.fields = "y=c1, x=c4 + c0";
    ok(ll_dataset_open(&o, &d));
    const ll_data_info *f = ll_dataset_info(d);
    assert_int_equal(f->n_field * 10 + f->fields[1].shape.d[0], 22);
    assert_int_equal(f->fields[0].dtype, LL_F32); /* y: numbers, as they are */
    float x[COLUMNS], y;
    ok(ll_dataset_read(d, &(ll_sampling){.split = LL_VAL}, 0, 1, (void *[]){&y, x}));
    assert_float_equal(y, number(0, 1) + 1e4, 1e-2);
    assert_string_equal(f->columns[0], "c4");
    uint32_t digest = f->digest;
    ll_dataset_close(d);
    o.fields = "y=c1,x=c0+c4"; /* the same numbers in another order are other data */
    ok(ll_dataset_open(&o, &d));
    assert_int_not_equal(ll_dataset_info(d)->digest, digest);
    ll_dataset_close(d);
    o.fields = "-c3,-c0";
    ok(ll_dataset_open(&o, &d));
    assert_int_equal(ll_dataset_info(d)->n_column, COLUMNS - 2);
    assert_string_equal(ll_dataset_info(d)->columns[2], "c4");
    ll_dataset_close(d);
    static const char *const bad[][2] = {
        {"x=c1+c44", "data.fields names c44, but the file has no such column; did you mean c4?"},
        {"-it", "data.fields names it, but the file has no such column; did you mean id?"},
        {"x=c1+c2+c1", "has column c1 twice, as x and as x"},
        {"x=c1+c2,y=c2", "has column c2 twice, as x and as y"},
        {"-c2,x=c2", "has column c2 twice, as left out and as x"},
        {"x=c1+split", "has column split twice, as split and as x"},
        {"x=c1+id",
         "t.csv:2: column id: 'r0' is not a number: correct it, or leave the column out"},
        {"x=id", "t.csv:2: column id: 'r0' is not a number"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        o.fields = bad[i][0];
        fails(ll_dataset_open(&o, &d), bad[i][1]);
    }
    o = table_of(tmpdir_path(state, "bad.csv"));
    put_text(o.path, "a,b,label\n1,2,0\n3,n/a,1\n");
    fails(ll_dataset_open(&o, &d),
          "bad.csv:3: column b: 'n/a' is not a number: correct it, or leave "
          "the column out (data.fields=-b)");
    put_text(o.path, "a,b,label\n1,2,-1\n3,4,1\n5,6,1\n");
    ok(ll_dataset_open(&o, &d)); /* no class is below 0 */
    assert_int_equal(ll_dataset_info(d)->fields[1].dtype, LL_F32);
    ll_dataset_close(d);
}

/* What a model takes decides: columns of its own names stay apart, whole numbers whole. */
static void wanted(void **state)
{
    ll_dataset *d;
    const ll_field want[] = {{"c1", LL_F32, LL_SCALAR}, {"x", LL_F32, LL_SHAPE(COLUMNS - 1)}};
    ll_data_opts o = table_of(put_table(state, "t.csv", ""));
    o.want = want, o.n_want = 2;
    ok(ll_dataset_open(&o, &d));
    const ll_data_info *f = ll_dataset_info(d);
    assert_int_equal(f->n_field * 100 + f->n_column, 200 + COLUMNS - 1);
    float c1, x[COLUMNS];
    ok(ll_dataset_read(d, &(ll_sampling){.split = LL_VAL}, 0, 1, (void *[]){x, &c1}));
    assert_float_equal(c1, number(0, 1) + 1e4, 1e-2); /* as it is */
    ll_dataset_close(d);
    o.n_want = 1;
    ok(ll_dataset_open(&o, &d));
    assert_int_equal(ll_dataset_info(d)->n_field * 10 + ll_dataset_info(d)->n_column, 10);
    ll_dataset_close(d);
    const ll_field whole[] = {{"x", LL_I32, LL_SHAPE(2)}};
    o = table_of(tmpdir_path(state, "w.csv"));
    o.want = whole, o.n_want = 1;
    put_text(o.path, "a,b\n1,2\n3,4\n5,6\n");
    int32_t v[2];
    ok(ll_dataset_open(&o, &d));
    ok(ll_dataset_read(d, &(ll_sampling){.split = LL_VAL}, 0, 1, (void *[]){v}));
    assert_int_equal(v[1] - v[0], 1);
    ll_dataset_close(d);
    const ll_field real[] = {{"y", LL_F32, LL_SHAPE(1)}};
    o = table_of(put_table(state, "t.csv", ""));
    o.want = real, o.n_want = 1;
    fails(ll_dataset_open(&o, &d), "t.csv:2: column Label: 'dog' is not a number");
}

/* Files for validation, and sets that are held to what was told, are the first one's, whatever the
 * order of their columns; rows for predict likewise, which need no label. */
static void held(void **state)
{
    ll_arena *a = ll_arena_new();
    ll_buf b = {.arena = a};
    ll_dataset *d, *told, *e;
    ll_data_opts o = table_of(put_table(state, "t.csv", ""));
    ok(ll_dataset_open(&o, &d));
    ll_dataset_tell(d, &b);
    ok(ll_told_parse(b.text, b.len, "data.json", &told));
    const ll_data_info *f = ll_dataset_info(d), *g = ll_dataset_info(told);
    assert_int_equal(g->n_column, COLUMNS);
    assert_memory_equal(g->column_mean, f->column_mean, COLUMNS * sizeof(double));
    assert_memory_equal(g->column_deviation, f->column_deviation, COLUMNS * sizeof(double));
    char rows[256] = "Label,c10,c9,c8,c7,c6,c5,c4,c3,c2,c1,c0,more\n"
                     "cat,10,9,8,7,6,5,4,3,2,1,0,a\ndog,10,9,8,7,6,5,4,3,2,1,1,b\n";
    const char *path = tmpdir_path(state, "rows.csv");
    put_text(path, rows);
    const ll_field x = {"x", LL_F32, LL_SHAPE(COLUMNS)};
    ll_samples s;
    const ll_samples_how how = {.set = told};
    float got[COLUMNS];
    ok(ll_samples_read(&how, &x, path, a, &s));
    assert_int_equal(s.n, 2);
    ll_data_opts other = table_of(path);
    other.told = told;
    ok(ll_dataset_open(&other, &e));
    ok(ll_dataset_read(e, &(ll_sampling){.split = LL_VAL}, 0, 1, (void *[]){got, NULL}));
    for (int c = 1; c < COLUMNS; c++) {
        assert_float_equal(got[c], (c - f->column_mean[c]) / f->column_deviation[c], 1e-3);
        assert_true(got[c] == ((float *)s.data)[c]);
    }
    ll_dataset_close(e);
    fails(ll_samples_read(&(ll_samples_how){0}, &x, path, a, &s),
          "rows of a CSV need a model that was");
    memcpy(strstr(rows, "\ncat"), "\ncow", 4);
    put_text(path, rows);
    fails(ll_dataset_open(&other, &e),
          "rows.csv:2: class cow is not among those that were trained");
    other = table_of(put_table(state, "less.csv", "new-"));
    other.told = told;
    fails(ll_dataset_open(&other, &e), "less.csv has no column c3, one of the 11");
    fails(ll_samples_read(&how, &x, other.path, a, &s), "less.csv has no column c3");
    ll_dataset_close(d);
    o.path = tmpdir_path(state, "a.csv"), o.val_path = tmpdir_path(state, "b.csv");
    put_text(o.path, "a,b,label\n1,2,0\n3,6,1\n");
    put_text(o.val_path, "b,label,a\n6,1,1\n");
    ok(ll_dataset_open(&o, &d));
    ok(ll_dataset_read(d, &(ll_sampling){.split = LL_VAL}, 0, 1, (void *[]){got, NULL}));
    assert_true(got[0] == -1 && got[1] == 1);
    static const char *const bad[][2] = {
        {"{\"kind\": \"records\", \"columns\": [1]}", "columns has a value that is not a name"},
        {"{\"kind\": \"records\", \"columns\": [\"a\"]}", "mean needs 1 numbers"},
        {"{\"kind\": \"records\", \"columns\": [\"a\"], \"mean\": [1], \"deviation\": [0]}",
         "deviation has a value"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        fails(ll_told_parse(bad[i][0], strlen(bad[i][0]), "j", &e), bad[i][1]);
    ll_dataset_close(d);
    ll_dataset_close(told);
    ll_arena_free(a);
}

/* Files that are not what they would be taken for; a second text is the file for validation. */
static void refused(void **state)
{
    static const ll_field want[] = {{"x", LL_F32, LL_SHAPE(1)}, {"y", LL_I32, LL_SCALAR}};
    static const struct {
        const char *text, *val, *fields, *says;
    } of[] = {
        {"a;b\n1,5;2,5\n", NULL, NULL, "cells are separated by semicolons, expected commas"},
        {"1,68.5,x\n2,70.5,y\n", NULL, NULL, "has number 68.5, expected the names of columns"},
        {"gr\xf6sse,y\n1,2\n", NULL, NULL, "the name of column 1 is not UTF-8"},
        {"a,y\n1,gr\xfcn\n2,rot\n", NULL, NULL, "t.csv:2: label 'gr\xfcn' is not UTF-8"},
        {"a,y\n1,0\n2,1\n", "a,y\n1,no\n2,yes\n", NULL,
         "'no' is not a number, but labels are numbers in the first file"},
        {"a,y\n1,0\n2,1\n", "a,y\n1,0.5\n", NULL, "set model.outputs=1 to predict the number"},
        {"a,y\n0x1F,0\n2,1\n", NULL, NULL, "column a: '0x1F' is not a number"},
        {"a,y,split,Split\n1,0,train,val\n", NULL, NULL, "columns split and Split both say"},
        {"a,b,y\n1,2,0\n", NULL, "X=a,y=y", "the model does not take X; did you mean x?"},
        {"a,b,y\n1,2,0\n", NULL, "x=a,x=b", "says x twice: expected x=a+b"},
        {"a,b,y\n1,2,0\n", NULL, "x=", "has an item without a name"},
        {"a,b,y\n1,2,0\n", NULL, "=a", "has an item without a name"},
        {"a,y\nn.jpg,0\n7,1\n", NULL, NULL, ":3: column a: '7' is not a picture"}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        ll_dataset *d;
        ll_data_opts o = table_of(tmpdir_path(state, "t.csv"));
        put_text(o.path, of[i].text);
        if (of[i].val) put_text(o.val_path = tmpdir_path(state, "v.csv"), of[i].val);
        o.fields = of[i].fields;
        o.want = want, o.n_want = 2;
        fails(ll_dataset_open(&o, &d), of[i].says);
    }
}

/* x and y as columns among others, rows to test with, whole numbers where others have fractions. */
static void taken(void **state)
{
    static const ll_field want[] = {{"x", LL_F32, LL_SHAPE(3)}, {"y", LL_I32, LL_SCALAR}};
    static const ll_field near[] = {{"x", LL_F32, LL_SHAPE(1)}, {"y", LL_F32, LL_SHAPE(1)}};
    ll_arena *a = ll_arena_new();
    ll_dataset *d;
    ll_data_opts o = table_of(tmpdir_path(state, "t.csv"));
    put_text(o.path, "x,y,z,label,split\n1,2.5,3,0,Train\n4,5.5,6,1,train\n7,8.5,9,2,dev\n"
                     "1,1.5,1,0,test\n");
    o.want = want, o.n_want = 2, o.fields = "y = label";
    ok(ll_dataset_open(&o, &d));
    const ll_data_info *f = ll_dataset_info(d);
    assert_int_equal(f->n_column * 100 + f->n[LL_TRAIN] * 10 + f->n[LL_VAL], 321);
    assert_non_null(strstr(f->note, "test rows, so the latter, 1, are left out"));
    assert_string_equal(ll_data_target(f, a), "3 classes, whole numbers 0 to 2");
    ll_dataset_close(d);
    o = table_of(tmpdir_path(state, "f.csv"));
    put_text(o.path, "a,y\n1,100\n2,300\n");
    put_text(o.val_path = tmpdir_path(state, "v.csv"), "a,y\n1,0.5\n");
    o.want = near, o.n_want = 2;
    ok(ll_dataset_open(&o, &d));
    assert_non_null(strstr(ll_data_target(ll_dataset_info(d), a),
                           "numbers, mean 200, deviation 100 (learned slowly"));
    ll_dataset_close(d);
    put_text(o.path, "a,b,y\n1.5,1,7\n2.5,1,7\n"); /* b is the same in all, and so is y */
    put_text(o.val_path, "a,b,y\n1,1,1e300\n");
    o.fields = "x=a";
    fails(ll_dataset_open(&o, &d), "v.csv: y of line 2: number 1 is too large for f32");
    put_text(o.val_path, "a,b,y\n1,1,1e30\n");
    ok(ll_dataset_open(&o, &d));
    assert_string_equal(ll_data_target(ll_dataset_info(d), a), "numbers, mean 7, deviation 0");
    ll_dataset_close(d);
    ll_arena_free(a);
}

/* A path in the place of a name. */
static void paths(void **state)
{
    (void)state;
    ll_dataset *d;
    fails(ll_dataset_open(&(ll_data_opts){.name = "some/t.csv"}, &d),
          "'some/t.csv' is a path, not the name of a dataset: set data.path=some/t.csv and "
          "data.format=csv");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, tmpdir_setup, tmpdir_teardown)
        T(joined), T(chosen), T(wanted), T(held), T(refused), T(taken), T(paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
