/* Traces of all ranks, loopline bench scale, and what plan predicts of larger machines. */
#include "cli/program.h"

#include <math.h>

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
            "this run's steps 1 to 6");
    refuses(f, 1, "train a.yaml --trace t.json --trace-steps 3-4 -o c", "'3-4'", "5:8");
    refuses(f, 1, "train a.yaml --trace-steps 3:4 -o c", "needs --trace");
    refuses(f, 1, "train a.yaml --trace no/such/t.json -o c", "no/such/t.json");
}

/* ---- the tuner's table ---- */

static void expect_line(const char *f, const char *line, const char *text)
{
    outcome o = succeeds(f, "%s", line);
    if (!strstr(o.err, text)) fail_msg("loopline %s: no '%s' in\n%s", line, text, o.err);
    outcome_free(&o);
}

/* A busy machine's table is not kept: then there is none to be read. */
static void tunes(void **state)
{
    const char *f = *state;
    write_text(tmpdir_path(state, "a.yaml"), run_file);
    expect_line(f, "train a.yaml -n 2 -o a", "collectives: chosen by rules; --tune");
    outcome o = succeeds(f, "train a.yaml -n 2 --tune -o b");
    assert_non_null(strstr(o.err, "collectives: measured in "));
    bool kept = strstr(o.err, "kept in ") && !strstr(o.err, "not kept");
    outcome_free(&o);
    if (kept) expect_line(f, "train a.yaml -n 2 -o c", "collectives: chosen by the table ");
    o = succeeds(f, "train a.yaml -o d");
    assert_null(strstr(o.err, "collectives"));
    outcome_free(&o);
}

/* ---- bench scale ---- */

static const json_t *row(const json_t *j, int ranks, int threads)
{
    size_t i;
    json_t *v;
    json_array_foreach(json_object_get(j, "rows"), i, v)
    {
        if (json_num(v, "ranks") == ranks && json_num(v, "threads") == threads) return v;
    }
    fail_msg("no row of %d ranks with %d threads", ranks, threads);
    return NULL;
}

static void check_row(const json_t *v, int batch, int steps)
{
    const json_t *q = json_object_get(v, "step_ms_quartiles");
    double low = json_number_value(json_array_get(q, 0));
    double high = json_number_value(json_array_get(q, 1)), step = json_num(v, "step_ms");
    assert_int_equal(json_num(v, "batch"), batch);
    assert_int_equal(json_num(v, "steps"), steps);
    assert_true(low > 0 && low <= step && step <= high);
    double rate = json_num(v, "samples_per_s");
    assert_true(rate * step > 999.0 * batch && rate * step < 1001.0 * batch);
    assert_true(json_num(v, "planned_bytes") > 0);
    assert_true(json_num(v, "planned_bytes") == json_num(v, "used_bytes"));
    assert_true(json_num(v, "resident_bytes") > json_num(v, "planned_bytes"));
}

static void scales(void **state)
{
    const char *f = *state;
    write_text(tmpdir_path(state, "a.yaml"), run_file);
    json_t *j = prints_json(f, "bench scale a.yaml --ranks 1,2,3 --threads 1 --steps 4 --repeats 2 "
                               "--warm-up 1 --json --trace t.json");
    assert_int_equal(json_num(j, "warm_up_steps"), 1);
    assert_string_equal(json_string_value(json_object_get(j, "scaling")), "strong");
    check_row(row(j, 1, 1), 12, 8);
    check_row(row(j, 2, 1), 12, 8);
    check_row(row(j, 3, 1), 12, 8);
    /* one node: gradients are read, 2 (p - 1) / p of them, and a few scalars */
    double gradients = 4 * json_num(j, "parameters");
    assert_true(json_num(row(j, 1, 1), "shared_bytes") == 0);
    for (int p = 2; p <= 3; p++) {
        const json_t *v = row(j, p, 1);
        double moved = json_num(v, "shared_bytes") + json_num(v, "sent_bytes");
        assert_true(moved >= 2.0 * (p - 1) / p * gradients - 4 * p);
        assert_true(moved < 2.0 * (p - 1) / p * gradients + 500);
        assert_true(json_num(v, "exposed_s") > 0);
        assert_true(json_num(v, "loss") > 0.999 * json_num(row(j, 1, 1), "loss"));
        assert_true(json_num(v, "loss") < 1.001 * json_num(row(j, 1, 1), "loss"));
    }
    json_decref(j);
    check_trace(tmpdir_path(state, "t.json"), 3, 4, 2);
    outcome o =
        succeeds(f, "bench scale a.yaml --ranks 2 --weak --threads 1 --steps 2 --repeats 1");
    assert_non_null(strstr(o.out, "weak scaling: 12 samples per step and rank"));
    assert_non_null(strstr(o.out, "data=2                 24"));
    outcome_free(&o);
}

static void scales_not(void **state)
{
    const char *f = *state;
    write_text(tmpdir_path(state, "a.yaml"), run_file);
    refuses(f, 1, "bench scale a.yaml --ranks 1,x", "'1,x'", "such as 1,2,4");
    refuses(f, 1, "bench scale a.yaml --ranks 2,2", "2 twice");
    refuses(f, 1, "bench scale a.yaml --mesh data=2", "expected one *");
    refuses(f, 1, "bench scale a.yaml --mesh data=*,tensor=2 --ranks 1,3", "3 is not a multiple");
    refuses(f, 1, "bench scale a.yaml --weak --strong", "cannot be combined");
    signal(SIGXFSZ, SIG_IGN); /* a limit is as a full disk */
    refuses_how(f, &(how){.file_bytes = 2000}, 1, "bench scale a.yaml -n 1 --trace t.json",
                (const char *[]){"t.json: writing", NULL});
    assert_false(file_exists(tmpdir_path(state, "t.json"))); /* nor a beginning */
    refuses(f, 2, "bench scale a.yaml --repeats 0", "--repeats is '0'");
    refuses(f, 1, "bench scale a.yaml -n 2 --ranks 1,2", "--ranks applies only to several jobs");
    refuses(f, 1, "bench scale a.yaml -n 2 --repeats 2", "--repeats applies only to several jobs");
    refuses(f, 1, "bench scale a.yaml --ranks 1,13 --steps 1", "the job on 13 ranks failed");
}

/* ---- plan ---- */

static void plan_is_held(void **state)
{
    json_t *held = prints_json(*state, "plan --published held-out --json");
    const json_t *all = json_object_get(held, "all"); /* as docs/performance.md tells */
    assert_true(json_num(all, "held_out_error") < 0.055 && json_num(all, "coverage") > 0.75);
    assert_true(json_num(all, "rows") == 41 && json_num(all, "compared") == 41);
    assert_true(json_num(all, "fitted") + json_num(all, "held_out") == 41);
    json_decref(held);
    outcome large = succeeds(*state, "plan --large");
    assert_non_null(strstr(large.err, "\n  10 rows read: 8 compared (1 fitted, 7 not fitted), 2 "
                                      "predicted, with no measured step\n"));
    outcome_free(&large);
    write_text(tmpdir_path(state, "t.csv"), "id,source,gpu,gpus,arch\n1,x,A100,8,moe\n"
                                            "2,x,A100,8,moe\n3,x,Z80,8,dense\n");
    outcome none = succeeds(*state, "plan --published t.csv");
    assert_non_null(strstr(none.err,
                           "  3 rows read: 3 not predicted\n    2: a mixture of experts is "
                           "not modelled\n    1: no cluster file has a chip named Z80\n"));
    outcome_free(&none);
    /* Steps of ours that were measured, and what one has in tensors. */
    static const struct {
        const char *model;
        double step_ms, GiB;
    } ours[] = {
        {"resnet50", 28.4, 10.8}, {"resnet18", 9.59}, {"googlenet", 16.3}, {"alexnet", 3.88}};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
        char line[512];
        snprintf(line, sizeof line,
                 "plan %s --cluster h200 --ranks 1 --json -s data.name=synthetic -s "
                 "train.batch=256 -s train.precision=bf16 -s train.optimizer=momentum",
                 ours[i].model);
        json_t *own = prints_json(*state, line);
        const json_t *best = json_array_get(json_object_get(own, "plans"), 0);
        double off = 1e3 * json_num(best, "step_s") / ours[i].step_ms - 1;
        if (fabs(off) > 0.07) fail_msg("%s is predicted %+.1f %%", ours[i].model, 100 * off);
        double has = json_num(best, "bytes_per_rank") / 0x1p30;
        if (ours[i].GiB) assert_true(fabs(has / ours[i].GiB - 1) < 0.05);
        json_decref(own);
    }
}

/* Where fewer ranks are as quick that is said, and a plan of theirs says so too. */
static void plans_tell_of_scaling(void **state)
{
#define SMALL "resnet18-cifar10 -s train.precision=bf16"
    static const struct {
        const char *run, *how, *note; /* NULL: none */
    } of[] = {
        {SMALL " --cluster h200 -s train.batch=64", "--mesh data=64", /* sums of batch norms */
         "64 ranks are slower than 1 at batch 64: "},
        {"run.yaml --cluster h200", "--ranks 2", "2 ranks are no quicker than 1 at batch 12: "},
        {"s.yaml --cluster h200 -s train.batch=8", "--ranks 8",
         "Use 4 ranks, or a larger train.batch: at 16, each of 8 ranks has as much"},
        {"gpt2-124m --cluster h200", "--ranks 8", NULL},
        {"gpt2-124m --cluster dgx-a100", "--mesh pipe=8", NULL}, /* 4 are as quick without it */
        {SMALL " --cluster dgx-a100", "--mesh data=2", NULL},
        {"run.yaml --cluster h200", "--ranks 1", NULL}};
    write_text(tmpdir_path(state, "s.yaml"),
               "model: {name: gpt, layers: 1, width: 16, heads: 2, seq: 12, vocab: 128}\n"
               "data: {name: synthetic}\ntrain: {batch: 4}\n");
    write_text(tmpdir_path(state, "run.yaml"), run_file);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        char line[512];
        snprintf(line, sizeof line, "plan %s %s --json", of[i].run, of[i].how);
        json_t *j = prints_json(*state, line), *scaling = json_object_get(j, "scaling");
        const char *note = json_string_value(json_object_get(scaling, "note"));
        if (!of[i].note != !note || (note && !strstr(note, of[i].note)))
            fail_msg("%s: %s", of[i].run, note ? note : "nothing");
        assert_true(note || json_num(scaling, "quickest_ranks") == json_num(j, "ranks"));
        outcome told = succeeds(*state, "plan %s %s", of[i].run, of[i].how);
        assert_true(note ? strstr(told.err, note) != NULL : !strstr(told.err, " at batch "));
        snprintf(line, sizeof line, "plan %s --mesh %s --json", of[i].run,
                 json_string_value(json_object_get(scaling, "mesh")));
        json_t *k = prints_json(*state, i < 6 ? line : "plan run.yaml --cluster h200 -n 1 --json");
        json_t *best = json_array_get(json_object_get(k, "plans"), 0);
        assert_true(json_num(best, "step_s") < 1.001 * json_num(scaling, "step_s"));
        outcome_free(&told);
        json_decref(j);
        json_decref(k);
    }
}

static void reports_escape_names(void **state)
{
    write_text(tmpdir_path(state, "a<b>.yaml"), "like: dgx-a100\nchip: {name: <i>&}\n");
    must(*state, "plan gpt --cluster a<b>.yaml --ranks 4 --report r.html");
    char *page = read_whole(tmpdir_path(state, "r.html"), NULL);
    assert_true(page && !strstr(page, "<i>") && !strstr(page, "a<b>"));
    free(page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(traces, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(tunes, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(scales, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(scales_not, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(plan_is_held, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(reports_escape_names, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(plans_tell_of_scaling, tmpdir_setup, tmpdir_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
