/* Traces of all ranks, and loopline bench scale. */
#include "cli/program.h"

static const char run_file[] =
    "model: {name: mlp, width: 24}\n"
    "data: {name: synthetic, samples: 200}\n"
    "train: {batch: 12, steps: 6, optimizer: adam, threads: 1, log_every: 1}\n";

/* ---- traces ---- */

/* Intervals of one row must not overlap but where one lies inside of another. */
static void check_nesting(const json_t *events, int pid, int tid)
{
    enum { EVENTS = 4096 };
    static double from[EVENTS], to[EVENTS];
    int n = 0;
    size_t i;
    json_t *e;
    json_array_foreach(events, i, e)
    {
        if (strcmp(json_string_value(json_object_get(e, "ph")), "X")) continue;
        if (json_num(e, "pid") != pid || json_num(e, "tid") != tid) continue;
        assert_true(n < EVENTS);
        from[n] = json_num(e, "ts");
        to[n] = from[n] + json_num(e, "dur");
        assert_true(json_num(e, "dur") >= 0);
        n++;
    }
    const double ns = 2e-3; /* times are rounded */
    for (int a = 0; a < n; a++)
        for (int b = 0; b < a; b++) {
            bool apart = to[a] <= from[b] + ns || to[b] <= from[a] + ns;
            bool inside = (from[a] >= from[b] - ns && to[a] <= to[b] + ns) ||
                          (from[b] >= from[a] - ns && to[b] <= to[a] + ns);
            if (!apart && !inside)
                fail_msg("rank %d row %d: [%.3f, %.3f] and [%.3f, %.3f]", pid, tid, from[a], to[a],
                         from[b], to[b]);
        }
}

static int count(const json_t *events, int pid, const char *cat, const char *begins)
{
    int n = 0;
    size_t i;
    json_t *e;
    json_array_foreach(events, i, e)
    {
        const char *c = json_string_value(json_object_get(e, "cat"));
        const char *name = json_string_value(json_object_get(e, "name"));
        n += c && !strcmp(c, cat) && json_num(e, "pid") == pid &&
             !strncmp(name, begins, strlen(begins));
    }
    return n;
}

static void check_trace(const char *path, int ranks, int steps, int first)
{
    char *text = read_whole(path, NULL), name[32];
    assert_non_null(text);
    json_t *j = json_of(text), *events = json_object_get(j, "traceEvents");
    free(text);
    assert_true(json_is_array(events));
    assert_int_equal(json_num(json_object_get(j, "otherData"), "ranks"), ranks);
    for (int r = 0; r < ranks; r++) {
        for (int s = 0; s < steps; s++) {
            snprintf(name, sizeof name, "step %d", first + s);
            assert_int_equal(count(events, r, "step", name), 1);
        }
        assert_int_equal(count(events, r, "step", "step "), steps);
        assert_int_equal(count(events, r, "step", "update"), steps);
        assert_true(count(events, r, "compute", "") > 10 * steps);
        if (ranks > 1) assert_true(count(events, r, "communication", "all-reduce") >= steps);
        for (int row = 0; row < 6; row++) check_nesting(events, r, row);
    }
    assert_int_equal(count(events, ranks, "step", ""), 0);
    size_t i;
    json_t *e;
    json_array_foreach(events, i, e)
    {
        const char *c = json_string_value(json_object_get(e, "cat"));
        if (!c || strcmp(c, "communication")) continue;
        json_t *args = json_object_get(e, "args");
        assert_true(json_num(args, "bytes") >= 0);
        assert_true(json_is_string(json_object_get(args, "algorithm")));
        assert_string_equal(json_string_value(json_object_get(args, "ranks")), "0 1 2");
    }
    json_decref(j);
}

static void traces(void **state)
{
    const char *f = *state;
    write_text(tmpdir_path(state, "a.yaml"), run_file);
    must(f, "train a.yaml -n 3 --trace t.json -o a");
    check_trace(tmpdir_path(state, "t.json"), 3, 3, 2);
    must(f, "train a.yaml --trace u.json --trace-steps 5:6 -o b");
    check_trace(tmpdir_path(state, "u.json"), 1, 2, 5);
    refuses(f, 1, "train a.yaml --trace t.json --trace-steps 7:9 -o c", "steps 7 to 9",
            "does steps 1 to 6");
    refuses(f, 1, "train a.yaml --trace t.json --trace-steps 3-4 -o c", "'3-4'", "5:8");
    refuses(f, 1, "train a.yaml --trace-steps 3:4 -o c", "goes with --trace");
    refuses(f, 1, "train a.yaml --trace no/such/t.json -o c", "no/such/t.json");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(traces, tmpdir_setup, tmpdir_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
