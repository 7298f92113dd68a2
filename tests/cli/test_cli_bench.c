/* loopline bench comm: a measurement on two ranks, and mistakes. */
#include "cli/program.h"
#include "xml.h"

static const json_t *row(const json_t *list, const char *op, const char *algorithm)
{
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v)
    {
        if (!strcmp(json_string_value(json_object_get(v, "op")), op) &&
            !strcmp(json_string_value(json_object_get(v, "algorithm")), algorithm))
            return v;
    }
    fail_msg("no %s by %s", op, algorithm);
    return NULL;
}

static void measures(void **state)
{
    static const char *const keys[] = {"us", "min_us", "bound_us", "bytes", "ranks", "runs"};
    const char *f = *state;
    json_t *j = prints_json(f, "bench comm -n 2 --sizes 1K,64K --seconds 0.4 --json --svg b.svg "
                               "--table t.json --codec bf16 --algorithms ring,butterfly,mpi");
    int n_chosen = 0;
    size_t i;
    json_t *v;
    json_array_foreach(j, i, v)
    {
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            assert_true(json_num(v, keys[k]) > 0);
        n_chosen += json_is_true(json_object_get(v, "chosen"));
        bool chosen = json_is_true(json_object_get(v, "chosen"));
        assert_int_equal(json_is_string(json_object_get(v, "why")), chosen);
    }
    assert_int_equal(n_chosen, 2);
    assert_int_equal(json_num(row(j, "all-reduce", "ring"), "bytes_on_wire"), 1024);
    assert_true(json_is_null(json_object_get(row(j, "all-reduce", "mpi"), "bytes_on_wire")));
    assert_true(json_num(row(j, "all-reduce", "mpi"), "times_library") == 1);
    assert_int_equal(json_num(row(j, "all-reduce", "bf16"), "bytes_on_wire"), 512);
    assert_true(json_num(row(j, "all-reduce", "bf16"), "error") < 0.01);
    json_decref(j);
    char *svg = read_whole(tmpdir_path(state, "b.svg"), NULL);
    assert_non_null(svg);
    check_xml(svg);
    assert_non_null(strstr(svg, "all-reduce on 2 ranks"));
    free(svg);
    unlink(tmpdir_path(state, "t.json"));
    outcome o = succeeds(f, "bench comm -n 2 --sizes 4K --seconds 0.1 --table t.json "
                            "--op broadcast --shared --canonical");
    /* where the machine is too busy to measure, none is kept */
    bool kept = strstr(o.out, ", kept in") != NULL;
    assert_true(file_exists(tmpdir_path(state, "t.json")) == kept);
    assert_non_null(strstr(o.out, "broadcast of f32, 2 ranks on 1 node"));
    assert_non_null(strstr(o.out, "\n* "));
    outcome_free(&o);
}

static void tables_do_not_replace_other_files(void **state)
{
    const char *f = *state;
    write_text(tmpdir_path(state, "thesis.txt"), "ten years of work");
    outcome o = succeeds(f, "bench comm -n 2 --sizes 4K --seconds 0.1 --table thesis.txt");
    assert_non_null(strstr(o.err, "thesis.txt is not a table of Loopline's, and is left as it is"));
    assert_non_null(strstr(o.out, ", not kept\n"));
    outcome_free(&o);
    char *text = read_whole(tmpdir_path(state, "thesis.txt"), NULL);
    assert_string_equal(text, "ten years of work");
    free(text);
}

static void refuses_mistakes(void **state)
{
    const char *f = *state;
    refuses(f, 1, "bench comm --sizes 4Q", "'4Q' is not a size", "64K");
    refuses(f, 1, "bench comm --sizes 4K,,1M", "'' is not a size");
    refuses(f, 1, "bench comm --sizes 2", "2 bytes", "f32");
    refuses(f, 1, "bench comm --dtype f31", "--dtype is 'f31'");
    refuses(f, 1, "bench comm --algorithms ring,rinse", "no algorithm 'rinse'", "butterfly");
    refuses(f, 1, "bench comm --op all-produce", "unknown collective 'all-produce'",
            "did you mean all-reduce?");
    refuses(f, 1, "bench comm --seconds 0", "--seconds is 0");
    refuses(f, 2, "bench comm -n 0", "-n is '0', expected a whole number, 1 or more");
    refuses(f, 1, "bench comm -n 2 --table no/t", "--table no/t: its folder is not there");
    refuses(f, 2, "bench step mlp --peak 0", "--peak is '0'");
    refuses(f, 1, "bench comm -n 3 --codec bf16 --dtype f64", "--codec needs", "f32");
    refuses(f, 1, "bench comm -n 2 --sizes 1K --seconds 0.1 --codec b16", "unknown codec", "bf16");
    refuses(f, 2, "bench comm all", "unexpected argument 'all'", "bench comm --help");
    refuses(f, 2, "bench", "bench needs WHAT", "step comm scale");
    outcome o = succeeds(f, "help bench comm");
    assert_memory_equal(o.out, "usage: loopline bench comm [options]\n", 37);
    outcome_free(&o);
    o = succeeds(f, "bench --help");
    assert_non_null(strstr(o.out, "loopline bench step"));
    assert_non_null(strstr(o.out, "loopline bench comm"));
    outcome_free(&o);
}

/* Presets side by side; and an ensemble's members predict together. */
static void compares_replicas(void **state)
{
    const char *f = *state;
    write_text(tmpdir_path(state, "r.yaml"),
               "model: {name: mlp, image: 8, width: 16, depth: 1, classes: 4}\n"
               "data: {name: synthetic, samples: 200, val_fraction: 0.2}\n"
               "train: {batch: 8, steps: 6, threads: 1, log_every: 2}\n");
    json_t *j = prints_json(f, "bench consistency r.yaml -n 2 --out c --json "
                               "--presets sync,local+every=3,ensemble");
    const json_t *list = json_object_get(j, "presets");
    assert_int_equal(json_array_size(list), 3);
    double bytes[3];
    for (size_t i = 0; i < 3; i++) {
        bytes[i] = json_num(json_array_get(list, i), "replica_bytes");
        assert_true(json_num(json_array_get(list, i), "val_loss") > 0);
    }
    assert_true(bytes[0] == 3 * bytes[1] && bytes[1] > 0 && bytes[2] == 0);
    json_decref(j);
    char *svg = read_whole(tmpdir_path(state, "c/consistency.svg"), NULL);
    check_xml(svg);
    free(svg);
    refuses(f, 1, "bench consistency r.yaml -n 2 --out c --presets local+every=3",
            "c/local+every=3 already holds a run: use --overwrite");
    refuses(f, 1, "bench consistency r.yaml --presets local,sync,local", "lists local twice");
    refuses(f, 1, "bench consistency r.yaml --presets sync,+", "'+' has no name before its +");
    outcome o = succeeds(f, "bench consistency r.yaml -n 2 --out c --overwrite "
                            "--presets local+every=3 --json");
    outcome_free(&o);
    o = succeeds(f, "train r.yaml -n 2 -o e -s parallel.replicas=2 "
                    "-s parallel.consistency=diloco -s parallel.every=7");
    assert_non_null(strstr(o.err, "replicas never exchange"));
    outcome_free(&o);
    o = succeeds(f, "train r.yaml -n 2 -o g -s parallel.replicas=2 -s parallel.consistency=eager "
                    "-s parallel.quorum=2");
    assert_non_null(strstr(o.err, "eager with these settings is synchronous training"));
    outcome_free(&o);
    refuses(f, 1, "train r.yaml -n 4 --mesh data=2 -s parallel.replicas=4",
            "each of the 4 replicas has 1: use -n 8");
    o = program_run(f, NULL, "bench consistency r.yaml -n 2 --out d --presets none,local");
    assert_int_equal(o.status, 1);
    assert_non_null(strstr(o.out, "local"));
    assert_non_null(strstr(o.err, "none: "));
    outcome_free(&o);
    char *page = read_whole(tmpdir_path(state, "d/consistency.html"), NULL);
    assert_non_null(strstr(page, "local"));
    assert_non_null(strstr(page, "<svg"));
    assert_null(strstr(page, "none "));
    free(page);
    o = succeeds(f, "eval c/ensemble --json");
    assert_non_null(strstr(o.err, "member 1 alone"));
    outcome_free(&o);
    refuses(f, 1, "inspect c/local+every=3", "parallel.replicas=1");
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, tmpdir_setup, tmpdir_teardown)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(measures),
        IN_FOLDER(tables_do_not_replace_other_files),
        IN_FOLDER(refuses_mistakes),
        IN_FOLDER(compares_replicas),
    };
    return cmocka_run_group_tests_name("cli_bench", tests, NULL, NULL);
}
