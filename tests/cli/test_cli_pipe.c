/* Pipelines as one looks at them: inspect --schedule before a run, train --trace and --timeline of
 * one. */
#include "cli/program.h"
#include "xml.h"

static const char run_file[] =
    "model: {name: mlp, image: 8, width: 40, depth: 5, classes: 4}\n"
    "data: {name: synthetic, samples: 200}\n"
    "train: {batch: 12, micro_batch: 2, steps: 4, optimizer: adam, threads: 1}\n";

static const char *text_of(const json_t *j, const char *key)
{
    const char *t = json_string_value(json_object_get(j, key));
    if (!t) fail_msg("%s is not text", key);
    return t;
}

static void expect(const char *f, const char *line, const char *const *texts)
{
    outcome o = succeeds(f, "%s", line);
    for (; *texts; texts++)
        if (!strstr(o.out, *texts)) fail_msg("loopline %s: no '%s' in\n%s", line, *texts, o.out);
    outcome_free(&o);
}

/* ---- before a run ---- */

static void inspects(void **state)
{
    const char *f = *state;
    write_text(tmpdir_path(state, "p.yaml"), run_file);
    expect(f, "inspect p.yaml --mesh pipe=3 --schedule --svg p.svg",
           (const char *const[]){"stage  rank  begins with", "    2     2  ", "   0  012",
                                 "3 stages, 6 micro-batches", "% bubble", "(p-1)/(m+p-1) = 25.0 %",
                                 "ranks 0 to 2: 3 2 1 micro-batches", "slack 1", NULL});
    char *svg = read_whole(tmpdir_path(state, "p.svg"), NULL);
    assert_non_null(svg);
    assert_true(check_xml(svg) > 36);
    assert_non_null(strstr(svg, "MFLOP"));
    free(svg);
    expect(f, "inspect p.yaml --mesh pipe=2,data=2 -s parallel.schedule=zb-v --schedule",
           (const char *const[]){"ranks of the other axes together", "A, B: of weights",
                                 "of one stage", NULL});
    expect(f, "inspect p.yaml --mesh pipe=2", (const char *const[]){"--schedule what", NULL});
}

static void inspects_as_data(void **state)
{
    const char *f = *state;
    write_text(tmpdir_path(state, "p.yaml"), run_file);
    json_t *j = prints_json(f, "inspect p.yaml --mesh pipe=3 --schedule --json");
    json_t *one = prints_json(f, "inspect p.yaml --json");
    json_t *stages = json_object_get(j, "stages"), *ranks = json_object_get(j, "ranks");
    assert_string_equal(text_of(j, "schedule"), "1f1b");
    assert_int_equal(json_num(j, "micro_batches"), 6);
    assert_true(json_num(j, "bubble_of_equal_stages") == 0.25);
    assert_true(json_num(j, "bubble") > 0.1 && json_num(j, "bubble") < 1);
    assert_int_equal(json_array_size(stages), 3);
    assert_int_equal(json_array_size(ranks), 3);
    double share = 0, parameters = 0;
    for (size_t s = 0; s < 3; s++) {
        const json_t *x = json_array_get(stages, s);
        share += json_num(x, "share");
        parameters += json_num(x, "parameters");
        assert_true((json_num(x, "sent_bytes") > 0) == (s < 2));
        assert_true(strlen(text_of(x, "first_node")) > 0);
        const json_t *r = json_array_get(ranks, s), *list = json_object_get(r, "actions");
        assert_int_equal(json_num(r, "in_flight"), 3 - (int)s);
        assert_int_equal(json_array_size(list), 12);
        assert_true(json_num(json_array_get(list, 0), "end") > 0);
    }
    assert_true(share > 0.999999 && share < 1.000001);
    assert_true(parameters == json_num(one, "parameters"));
    json_decref(one);
    json_decref(j);
}

/* A schedule is printed, given back, and is the same one; with a remark, too. */
static void gives_back(void **state)
{
    const char *f = *state;
    write_text(tmpdir_path(state, "p.yaml"), run_file);
    static const char *const forms[] = {"text", "csv"};
    for (int i = 0; i < 2; i++) {
        outcome o = succeeds(f,
                             "inspect p.yaml --mesh pipe=2 -s parallel.schedule=zb-h1 "
                             "--schedule --as %s",
                             forms[i]);
        char remark[4096];
        snprintf(remark, sizeof remark, "%s%s", i ? "" : "# mine, for two ranks\n", o.out);
        write_text(tmpdir_path(state, "mine"), remark);
        outcome p = succeeds(f,
                             "inspect p.yaml --mesh pipe=2 -s parallel.schedule=mine "
                             "--schedule --as %s",
                             forms[i]);
        assert_string_equal(o.out, p.out);
        outcome_free(&o);
        outcome_free(&p);
    }
}

static void inspects_not(void **state)
{
    const char *f = *state;
    write_text(tmpdir_path(state, "p.yaml"), run_file);
    refuses(f, 1, "inspect p.yaml --schedule", "add --mesh pipe=2");
    refuses(f, 1, "inspect p.yaml --mesh data=2 --schedule", "mesh data=2 has none",
            "add axis pipe=2");
    refuses(f, 1, "inspect p.yaml --mesh pipe=2 --svg x.svg", "go with --schedule");
    refuses(f, 1, "inspect p.yaml --mesh pipe=2 --schedule --as yaml", "'yaml'", "text or csv");
    refuses(f, 1, "inspect p.yaml --mesh pipe=2 --schedule --as csv --json", "leave out --json");
    refuses(f, 1, "inspect p.yaml --mesh pipe=2 --schedule --graph", "exclude each other");
    refuses(f, 1, "inspect p.yaml --mesh pipe=2 --schedule --eval", "leave out --eval");
    refuses(f, 1, "inspect p.yaml --mesh pipe=2 --schedule --svg no/such.svg", "no/such.svg");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(inspects, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(inspects_as_data, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(gives_back, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(inspects_not, tmpdir_setup, tmpdir_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
