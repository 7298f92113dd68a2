/* Training on many ranks as a user starts it: losses of every mesh are the serial run's, runs are
 * stopped and resumed on other meshes, and what cannot be is said once. */
#include "cli/ranks.h"

#include <math.h>

/* 11 of 600 samples are validated in parts of 6 and 5, in the end 30 of them: none divides well. */
static const char mlp[] = "model: {name: mlp, image: 10, width: 30, depth: 2, classes: 5}\n"
                          "data: {name: synthetic, samples: 600}\n"
                          "train: {batch: 18, micro_batch: 6, steps: 8, eval_every: 3, "
                          "scale_rule: linear, base_batch: 9, "
                          "eval_samples: 11,\n  save_every: 4, log_every: 1, clip: 1, threads: 1}\n"
                          "parallel: {timeout: 60}\n";
static const char lenet[] = "model: {name: lenet5}\n"
                            "data: {name: synthetic, samples: 200}\n"
                            "train: {batch: 6, steps: 4, optimizer: momentum, eval_samples: 7,\n"
                            "  save_every: 2, log_every: 1, threads: 1}\n"
                            "parallel: {timeout: 60}\n";
/* Goes on until it is stopped. */
static const char endless[] = "model: {name: mlp, image: 10, width: 30, depth: 2, classes: 5}\n"
                              "data: {name: synthetic, samples: 600}\n"
                              "train: {batch: 8, steps: 100000000, eval_every: 100000000, "
                              "save_every: 100000000,\n  log_every: 1, threads: 1}\n"
                              "parallel: {timeout: 60}\n";

static void write_runs(void *const *state)
{
    write_text(tmpdir_path(state, "mlp.yaml"), mlp);
    write_text(tmpdir_path(state, "lenet.yaml"), lenet);
    write_text(tmpdir_path(state, "endless.yaml"), endless);
}

/* ---- metrics ---- */

/* The lines of metrics.jsonl, but for validations of steps in skip (ends with 0). */
static json_t *lines_of(void *const *state, const char *run, const int *skip)
{
    char name[128], *rest = NULL;
    snprintf(name, sizeof name, "%s/metrics.jsonl", run);
    char *text = read_whole(tmpdir_path(state, name), NULL);
    if (!text) fail_msg("%s: no such file", name);
    json_t *list = json_array();
    for (char *l = strtok_r(text, "\n", &rest); l; l = strtok_r(NULL, "\n", &rest)) {
        json_t *j = json_of(l);
        bool drop = false;
        for (const int *s = skip; s && *s; s++)
            drop |= json_num(j, "step") == *s && json_object_get(j, "val_loss");
        if (drop)
            json_decref(j);
        else
            json_array_append_new(list, j);
    }
    free(text);
    return list;
}

static void assert_close(void *const *state, const char *run, const char *serial, const int *skip)
{
    json_t *a = lines_of(state, serial, skip), *b = lines_of(state, run, skip), *v;
    assert_int_equal(json_array_size(a), json_array_size(b));
    for (size_t i = 0; i < json_array_size(a); i++) {
        const char *key;
        json_t *x = json_array_get(a, i), *y = json_array_get(b, i);
        assert_int_equal(json_object_size(x), json_object_size(y));
        json_object_foreach(x, key, v)
        {
            double want = json_number_value(v), have = json_num(y, key);
            if (!(fabs(want - have) <= 1e-4 * fabs(want)))
                fail_msg("%s line %zu: %s is %.9g, serially %.9g", run, i + 1, key, have, want);
        }
    }
    json_decref(a);
    json_decref(b);
}

/* ---- every mesh ---- */

typedef struct layout {
    const char *run;
    int ranks;
    const char *mesh;
    int zero;
} layout;

static const layout layouts[] = {
    {"mlp", 2, "", 0},           {"mlp", 3, "data=3", 2},
    {"mlp", 4, "data=4", 3},     {"mlp", 4, "data=2,tensor=2", 1},
    {"mlp", 2, "tensor=2", 0},   {"mlp", 4, "rows=2,cols=2", 0},
    {"lenet", 2, "height=2", 0}, {"lenet", 4, "data=2,width=2", 1},
    {"lenet", 3, "filter=3", 0},
};

static void losses_are_the_serial_ones(void **state)
{
    write_runs(state);
    must(*state, "train mlp.yaml --out mlp");
    must(*state, "train lenet.yaml --out lenet");
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        const layout *l = &layouts[i];
        char line[256], out[32];
        snprintf(out, sizeof out, "out%zu", i);
        snprintf(line, sizeof line, "train %s.yaml -n %d %s %s --zero %d --json --out %s", l->run,
                 l->ranks, *l->mesh ? "--mesh" : "", l->mesh, l->zero, out);
        json_t *j = prints_json(*state, line);
        assert_int_equal(json_num(j, "ranks"), l->ranks);
        assert_string_equal(json_string_value(json_object_get(j, "mesh")),
                            *l->mesh ? l->mesh : "data=2");
        assert_int_equal(json_num(j, "tensor_bytes_planned"), json_num(j, "tensor_bytes_used"));
        json_decref(j);
        assert_close(state, out, l->run, NULL);
    }
}

/* ---- checkpoints ---- */

static void resumes_on_any_mesh(void **state)
{
    static const int ends[] = {4, 6, 0}; /* validations of runs that ended there */
    write_runs(state);
    must(*state, "train mlp.yaml --out whole");
    must(*state, "train mlp.yaml -n 2 --zero 3 --set train.steps=4 --out a");
    must(*state, "train mlp.yaml -n 4 --mesh data=2,tensor=2 --zero 1 --set train.steps=6 --out a "
                 "--resume");
    must(*state, "train mlp.yaml --out a --resume");
    assert_close(state, "a", "whole", ends);
    must(*state, "train mlp.yaml --set train.steps=4 --out b");
    must(*state, "train mlp.yaml -n 3 --mesh tensor=3 --out b --resume");
    assert_close(state, "b", "whole", ends);
    char *text = read_whole(tmpdir_path(state, "b/run.yaml"), NULL);
    assert_non_null(strstr(text, "mesh: \"tensor=3\""));
    free(text);
    /* Where the mesh stays the same bits stay the same. */
    must(*state, "train mlp.yaml -n 2 --zero 2 --out c");
    must(*state, "train mlp.yaml -n 2 --zero 2 --set train.steps=4 --out d");
    must(*state, "train d -n 2 --set train.steps=8 --resume");
    assert_close(state, "d", "c", ends);
    assert_same_file(tmpdir_path(state, "c/checkpoints/step-00000008.safetensors"),
                     tmpdir_path(state, "d/checkpoints/step-00000008.safetensors"));
}

static void compressed_runs_resume(void **state)
{
    write_runs(state);
    const char *how = "-n 2 --compress topk:0.02 --set parallel.canonical=true";
    must(*state, "train mlp.yaml %s --out whole", how);
    must(*state, "train mlp.yaml %s --out killed", how);
    unlink(tmpdir_path(state, "killed/checkpoints/step-00000008.safetensors"));
    must(*state, "train killed -n 2 --resume"); /* as if killed after step 4 */
    assert_same_file(tmpdir_path(state, "whole/metrics.jsonl"),
                     tmpdir_path(state, "killed/metrics.jsonl"));
    assert_same_file(tmpdir_path(state, "whole/checkpoints/step-00000008.safetensors"),
                     tmpdir_path(state, "killed/checkpoints/step-00000008.safetensors"));
    const char *from = "--resume --from whole/checkpoints/step-00000004.safetensors --out x";
    outcome o = succeeds(*state, "train mlp.yaml -n 3 --compress onebit %s", from);
    assert_non_null(strstr(o.err, "compressed by onebit"));
    assert_non_null(strstr(o.err, "residuals of 2 ranks: their sum is divided among the 3"));
    outcome_free(&o);
    o = succeeds(*state, "train mlp.yaml %s", from);
    assert_non_null(strstr(o.err, "residuals are dropped"));
    outcome_free(&o);
}

/* ---- signals ---- */

/* Starts the endless run on two ranks, and waits for it to get going. */
static pid_t begin(void *const *state, const char *zero)
{
    const char *words[] = {"train", "endless.yaml", "-n",     "2",  "--mesh",     "data=2", "--out",
                           "out",   "--json",       "--zero", zero, "--restarts", "0",      NULL};
    write_runs(state);
    pid_t child = program_start(*state, NULL, words);
    await_lines(child, tmpdir_path(state, "out/metrics.jsonl"), 3);
    return child;
}

static void any_rank_stops_all(void **state)
{
    static const struct {
        bool rank; /* or the launching process */
        int number;
    } ways[] = {{false, SIGTERM}, {true, SIGTERM}, {false, SIGUSR1}, {false, SIGHUP}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        pid_t child = begin(state, "0"), rank = rank_of(child, 1);
        assert_true(rank > 0);
        kill(ways[i].rank ? rank : child, ways[i].number);
        outcome o = program_wait(*state, child);
        if (o.status != 75) fail_msg("status %d\n%s", o.status, o.err);
        json_t *j = json_of(o.out);
        int steps = (int)json_num(j, "steps");
        assert_int_equal(json_num(j, "signal"), SIGTERM);
        json_decref(j);
        outcome_free(&o);
        char name[64];
        snprintf(name, sizeof name, "out/checkpoints/step-%08d.safetensors", steps);
        assert_true(steps > 0 && file_exists(tmpdir_path(state, name)));
        if (ways[i].number == SIGTERM) {
            must(*state, "train out -n 3 --mesh data=3 --resume --set train.steps=%d", steps + 2);
            assert_true(lines_in(tmpdir_path(state, "out/metrics.jsonl")) >= steps + 3);
            if (i == 0) /* nothing left to do, on more ranks than most machines have cores */
                must(*state, "train out -n 6 --mesh data=6 --resume --set train.threads=2");
        }
        char command[600];
        snprintf(command, sizeof command, "rm -rf %s", tmpdir_path(state, "out"));
        assert_int_equal(system(command), 0);
    }
}

/* Who starts jobs waits for the one that a signal ended, and ends by it. */
static void benchmarks_stop_theirs(void **state)
{
    static const char *const words[] = {"bench", "consistency", "endless.yaml", "-n",   "2",
                                        "--out", "b",           "--presets",    "sync", NULL};
    write_runs(state);
    pid_t child = program_start(*state, NULL, words);
    await_lines(child, tmpdir_path(state, "b/sync/metrics.jsonl"), 3);
    kill(child, SIGTERM);
    outcome o = program_wait(*state, child);
    if (o.status != PROGRAM_KILLED + SIGTERM || !strstr(o.err, "goodput"))
        fail_msg("status %d\n%s", o.status, o.err);
    outcome_free(&o);
}

/* Sums, scatters and gathers are under way when a rank dies. */
static void a_missing_rank_ends_it(void **state)
{
    for (int zero = 0; zero < 2; zero++) {
        pid_t child = begin(state, zero ? "3" : "0"), rank = rank_of(child, 1);
        assert_true(rank > 0);
        kill(rank, SIGKILL);
        outcome o = program_wait(*state, child);
        assert_true(o.status != 0);
        if (!strstr(o.err, "died") && !strstr(o.err, "KILLED"))
            fail_msg("nothing is said: %s", o.err);
        outcome_free(&o);
        char command[600];
        snprintf(command, sizeof command, "rm -rf %s", tmpdir_path(state, "out"));
        assert_int_equal(system(command), 0);
    }
}

/* ---- what cannot be ---- */

static void refuses_what_cannot_be(void **state)
{
    write_runs(state);
    refuses(*state, 1, "train mlp.yaml -n 3 --mesh data=2 --out x",
            "mesh \"data=2\" needs 2 ranks, but there are 3: use data=3, or -n 2");
    refuses(*state, 1, "train mlp.yaml --mesh data=2 --out x", "use -n 2");
    refuses(*state, 1, "train mlp.yaml -n 2 --mesh dta=2 --out x", "did you mean data?");
    refuses(*state, 1, "train mlp.yaml -n 2 --zero 4 --out x", "parallel.zero");
    refuses(*state, 1, "train mlp.yaml -n 2 --mesh height=2 --out x", "train: layout",
            "height=2: nothing in mlp can be cut along this axis");
    refuses(*state, 1, "train mlp.yaml -n 4 --set train.micro_batch=3 --out x",
            "the batch (dimension 0 of x) has 3 elements, fewer than the 4 ranks that share it: "
            "use fewer "
            "ranks, or");
    refuses(*state, 1, "train mlp.yaml -n 2 --resume --out x", "x has no checkpoint");
    refuses(*state, 1, "train mlp.yaml -n 2 --compress topk --out x",
            "--set parallel.compress=topk: ", "SHARE is missing");
    refuses(*state, 1, "train mlp.yaml -n 2 --compress topk:0.1 --mesh tensor=2 --out x",
            "axis data, which mesh \"tensor=2\" does not have");
    refuses(*state, 1, "train mlp.yaml -n 2 --compress bf16 --zero 1 --out x", "use zero 0");
    refuses(*state, 1, "verify mlp.yaml --mesh data=2 --set parallel.compress=qsgd:4",
            "parallel.compress=qsgd:4");
    refuses(*state, 1,
            "train mlp.yaml -n 2 --set data.name= --set data.samples=0 --set "
            "data.path=/nonexistent --set data.format=idx --out x",
            "rank 0: ", "/nonexistent");
    assert_false(file_exists(tmpdir_path(state, "x")));
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, tmpdir_setup, tmpdir_teardown)
    const struct CMUnitTest tests[] = {
        TEST(losses_are_the_serial_ones), TEST(resumes_on_any_mesh),
        TEST(compressed_runs_resume),     TEST(any_rank_stops_all),
        TEST(benchmarks_stop_theirs),     TEST(a_missing_rank_ends_it),
        TEST(refuses_what_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
