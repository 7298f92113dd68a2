/* What comes out of a trained model: eval's classes. */
#include "cli/program.h"
#include "xml.h"

static outcome runs(const char *folder, const char *line)
{
    outcome o = program_run(folder, NULL, line);
    if (o.status) fail_msg("%s: %s", line, o.err);
    return o;
}

static int setup(void **state)
{
    if (tmpdir_setup(state)) return -1;
    write_text(tmpdir_path(state, "s.yaml"),
               "model: {name: lenet5}\ndata: {name: synthetic, samples: 400, val_fraction: 0.2}\n"
               "train: {steps: 20, batch: 32, threads: 1, lr: 0.02}\n");
    outcome o = runs(*state, "train s.yaml --out r");
    outcome_free(&o);
    return 0;
}

static int64_t at(const json_t *list, size_t i)
{
    return json_integer_value(json_array_get(list, i));
}

static double field(const json_t *list, size_t i, const char *name)
{
    return json_number_value(json_object_get(json_array_get(list, i), name));
}

static void eval_classes(void **state)
{
    outcome o = runs(*state, "eval r --classes --top 10 --confusion c.svg --json");
    json_t *j = json_of(o.out), *classes = json_object_get(j, "classes");
    const json_t *confusion = json_object_get(j, "confusion");
    int64_t all = 0, hits = 0;
    assert_int_equal(json_array_size(classes), 10);
    for (size_t i = 0; i < 10; i++) {
        int64_t row = 0, column = 0, hit = at(json_array_get(confusion, i), i);
        for (size_t k = 0; k < 10; k++) {
            row += at(json_array_get(confusion, i), k);
            column += at(json_array_get(confusion, k), i);
        }
        assert_int_equal(field(classes, i, "support"), row);
        if (row) assert_float_equal(field(classes, i, "recall"), (double)hit / (double)row, 1e-9);
        if (column)
            assert_float_equal(field(classes, i, "precision"), (double)hit / (double)column, 1e-9);
        all += row, hits += hit;
    }
    assert_int_equal(all, json_num(j, "samples"));
    assert_float_equal(json_num(j, "val_accuracy"), (double)hits / (double)all, 1e-9);
    assert_true(json_num(j, "val_accuracy") > 0.3 && json_num(j, "val_accuracy") < 1);
    assert_float_equal(json_num(j, "top_accuracy"), 1, 0); /* of 10 classes 10 */
    json_decref(j);
    outcome_free(&o);
    char *svg = read_whole(tmpdir_path(state, "c.svg"), NULL);
    assert_true(check_xml(svg) > 30);
    free(svg);
    o = runs(*state, "eval r --top 1 --classes");
    assert_non_null(strstr(o.out, "top-1 accuracy"));
    assert_non_null(strstr(o.out, "precision"));
    outcome_free(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(eval_classes)};
    return cmocka_run_group_tests(tests, setup, tmpdir_teardown);
}
