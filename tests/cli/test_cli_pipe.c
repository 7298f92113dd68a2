/* Pipelines as one looks at them: inspect --schedule before a run, train --trace and --timeline of
 * one. */
#include "cli/ranks.h"
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
    assert_non_null(strstr(svg, "millions of FLOPs"));
    free(svg);
    expect(f, "inspect p.yaml --mesh pipe=2,data=2 -s parallel.schedule=zb-v --schedule",
           (const char *const[]){"ranks of the other axes together", "A, B: weight gradients",
                                 "of one stage", NULL});
    expect(f, "inspect p.yaml --mesh pipe=2",
           (const char *const[]){"for the pipeline schedule: --schedule", NULL});
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

/* Gradients are summed over axis data once a step, those of this rank's stages alone. */
static void sums_once(void **state)
{
    const char *f = *state;
    write_text(tmpdir_path(state, "p.yaml"), run_file);
    json_t *j = prints_json(f, "inspect p.yaml --mesh pipe=2,data=2 --json");
    json_t *s = prints_json(f, "inspect p.yaml --mesh pipe=2,data=2 --schedule --json");
    double own = 4 * json_num(json_array_get(json_object_get(s, "stages"), 0), "parameters");
    double sent = 0;
    size_t i;
    json_t *x;
    json_array_foreach(json_object_get(j, "collectives"), i, x)
    {
        if (!strcmp(text_of(x, "axes"), "data")) sent += json_num(x, "bytes");
    }
    assert_true(sent >= own && sent < own + 64); /* and a few scalars */
    json_decref(s);
    json_decref(j);
    must(f, "train p.yaml -n 4 --mesh pipe=2,data=2 --compress qsgd:4 -o c");
    must(f, "inspect c/checkpoints/step-00000004.safetensors");
    refuses(f, 1, "train p.yaml -n 4 --mesh pipe=2,data=2 --compress topk:0.1 -o d",
            "topk:0.1 cannot be combined", "use bf16, f16 or qsgd:4");
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
    refuses(f, 1, "inspect p.yaml --mesh pipe=2 --svg x.svg", "need --schedule");
    refuses(f, 1, "inspect p.yaml --mesh pipe=2 --schedule --as yaml", "'yaml'", "text or csv");
    refuses(f, 1, "inspect p.yaml --mesh pipe=2 --schedule --as csv --json", "leave out --json");
    refuses(f, 1, "inspect p.yaml --mesh pipe=2 --schedule --graph", "cannot be combined");
    refuses(f, 1, "inspect p.yaml --mesh pipe=2 --schedule --eval", "combined with --eval");
    refuses(f, 1, "inspect p.yaml --mesh pipe=2 --schedule --svg no/such.svg", "no/such.svg");
}

/* ---- of a run ---- */

/* A rank's row of a trace: the schedule's actions, in order, for each step; intervals that do not
 * overlap. */
static void check_row(const json_t *events, int rank, char *actions, int steps)
{
    char *words[256], *rest = NULL;
    int n = 0, seen = 0, updates = 0;
    for (char *w = strtok_r(actions, " ", &rest); w; w = strtok_r(NULL, " ", &rest)) words[n++] = w;
    double end = -1e9;
    size_t i;
    json_t *e;
    json_array_foreach(events, i, e)
    {
        const char *cat = json_string_value(json_object_get(e, "cat"));
        if (!cat || strcmp(cat, "pipeline") || (int)json_num(e, "pid") != rank) continue;
        if (json_num(e, "ts") < end - 2e-3)
            fail_msg("rank %d: %s overlaps", rank, text_of(e, "name"));
        end = json_num(e, "ts") + json_num(e, "dur");
        updates += !strcmp(text_of(e, "name"), "update");
        const json_t *args = json_object_get(e, "args");
        if (!json_object_get(args, "action")) continue;
        assert_string_equal(text_of(e, "name"), words[seen++ % n]);
        char name[64];
        snprintf(name, sizeof name, "%d.%d", (int)json_num(args, "micro_batch"),
                 (int)json_num(args, "stage"));
        assert_string_equal(text_of(e, "name") + 1, name);
        assert_true(json_num(args, "waited_us") <= json_num(e, "dur") + 2e-3);
    }
    assert_int_equal(seen, n * steps);
    assert_int_equal(updates, steps);
}

static void check_trace(const char *f, const char *path, const char *settings, int pipe, int each)
{
    outcome o = succeeds(f, "inspect p.yaml %s --schedule --as text", settings);
    char *text = read_whole(path, NULL), *rest = NULL, *lines[8];
    assert_non_null(text);
    json_t *j = json_of(text);
    int n = 0;
    for (char *w = strtok_r(o.out, "\n", &rest); w; w = strtok_r(NULL, "\n", &rest))
        if (*w != '#') lines[n++] = w;
    assert_int_equal(n, pipe);
    for (int r = 0; r < pipe * each; r++) {
        char *line = strdup(lines[r / each]); /* the last axis runs fastest */
        check_row(json_object_get(j, "traceEvents"), r, line, 3);
        free(line);
    }
    json_decref(j);
    free(text);
    outcome_free(&o);
}

static void traces(void **state)
{
    const char *f = *state;
    static const struct {
        const char *settings;
        int pipe, each;
    } runs[] = {{"--mesh pipe=2", 2, 1},
                {"--mesh pipe=3 -s parallel.schedule=zb-h1", 3, 1},
                {"--mesh pipe=2,data=2 -s parallel.schedule=interleaved", 2, 2}};
    write_text(tmpdir_path(state, "p.yaml"), run_file);
    for (int i = 0; i < 3; i++) {
        must(f, "train p.yaml -n %d %s --trace t.json -o t%d", runs[i].pipe * runs[i].each,
             runs[i].settings, i);
        check_trace(f, tmpdir_path(state, "t.json"), runs[i].settings, runs[i].pipe, runs[i].each);
    }
}

static void draws(void **state)
{
    const char *f = *state;
    write_text(tmpdir_path(state, "p.yaml"), run_file);
    outcome o = succeeds(f, "train p.yaml -n 4 --mesh data=2,pipe=2 --timeline t.svg "
                            "--trace-steps 2:3 --json -o a");
    json_t *j = json_of(o.out);
    assert_true(json_num(j, "bubble") > 0 && json_num(j, "bubble") < 1);
    json_decref(j);
    assert_non_null(strstr(o.err, "   1  "));
    assert_non_null(strstr(o.err, "1f1b, step 3 as measured, 2 ranks, 2 stages, 6 micro-batches"));
    outcome_free(&o);
    char *svg = read_whole(tmpdir_path(state, "t.svg"), NULL);
    assert_non_null(svg);
    assert_true(check_xml(svg) > 24 + 2);
    static const char *const texts[] = {"<title>F5.1</title>", "<title>B0.0</title>", ">update<",
                                        "step 3 as measured"};
    for (int i = 0; i < 4; i++)
        if (!strstr(svg, texts[i])) fail_msg("no %s in the picture", texts[i]);
    free(svg);
    j = prints_json(f, "train p.yaml -n 2 --mesh pipe=2 --json -o b");
    assert_true(json_is_null(json_object_get(j, "bubble")));
    json_decref(j);
    o = succeeds(f, "train p.yaml -n 2 --mesh pipe=2 --timeline t.svg --trace-steps 2:3 -o d "
                    "--set parallel.schedule=2bw");
    assert_non_null(strstr(o.err, "2bw, step 3 as measured, with the end of step 2, 2 ranks"));
    outcome_free(&o);
    refuses(f, 1, "train p.yaml -n 2 --timeline t.svg", "has none", "add axis pipe=2");
    refuses(f, 1, "train p.yaml -n 2 --mesh pipe=2 --timeline no/such.svg -o c", "no/such.svg");
}

/* Steps that overlap: the metrics of one process with gradients a step late, to the byte, however
 * the row of steps is broken, and resumed. */
static void overlaps(void **state)
{
    const char *f = *state;
    write_text(tmpdir_path(state, "p.yaml"), run_file);
    const char *same = "train p.yaml -s train.steps=9 -s train.log_every=1 -s train.eval_every=4 "
                       "-s parallel.exact=true -s train.clip=0.5";
    outcome o = succeeds(f, "%s -s train.delay=true -s out=one", same);
    outcome_free(&o);
    o = succeeds(f, "%s -n 2 --mesh pipe=2 -s parallel.schedule=2bw -s out=two", same);
    outcome_free(&o);
    char *one = read_whole(tmpdir_path(state, "one/metrics.jsonl"), NULL);
    char *two = read_whole(tmpdir_path(state, "two/metrics.jsonl"), NULL);
    assert_string_equal(one, two);
    free(one);
    free(two);
    expect(f, "inspect p.yaml --mesh pipe=2 -s parallel.schedule=2bw --schedule",
           (const char *const[]){"of equal stages 0 = 0.0 %", "ranks 0 to 1: 2 1 micro", NULL});
    expect(f, "inspect p.yaml --mesh pipe=2 -s parallel.schedule=2bw --schedule --as text",
           (const char *const[]){"F0.0 B5.0- F1.0 B0.0", NULL});
    refuses(f, 1, "train p.yaml -n 2 --mesh pipe=2 -s parallel.schedule=2bw -s train.spike=3 -o no",
            "train.spike cannot be combined");
}

/* A signal amid a row of steps: it is brought to its end, saved, and gone on from, to the bits of a
 * run that nobody stopped; of one process with gradients a step late too. */
static void stops_amid_a_row(void **state)
{
    static const char *const ways[] = {"-s train.delay=true",
                                       "-n 2 --mesh pipe=2 -s parallel.schedule=2bw"};
    const char *f = *state;
    char path[128], last[128], text[64];
    write_text(tmpdir_path(state, "q.yaml"),
               "model: {name: mlp, image: 4, width: 9, depth: 3, classes: 4}\n"
               "data: {name: synthetic, samples: 1920}\n"
               "train: {batch: 12, micro_batch: 4, steps: 9000000, optimizer: adam, threads: 1,\n"
               "  clip: 0.5, log_every: 1, eval_every: 9000000, save_every: 9000000}\n"
               "parallel: {exact: true}\n");
    for (int i = 0; i < 2; i++) {
        const char *words[16] = {"train", "q.yaml", "--json", "-o", i ? "two" : "one"};
        char *rest = NULL;
        strcpy(text, ways[i]);
        for (int k = 5; k == 5 || words[k - 1]; k++)
            words[k] = strtok_r(k == 5 ? text : NULL, " ", &rest);
        pid_t child = program_start(f, NULL, words);
        snprintf(path, sizeof path, "%s/metrics.jsonl", words[4]);
        await_lines(child, tmpdir_path(state, path), 20);
        kill(child, SIGTERM);
        outcome o = program_wait(f, child);
        if (o.status != 75) fail_msg("status %d: %s", o.status, o.err);
        json_t *j = json_of(o.out);
        int steps = (int)json_num(j, "steps") + 100;
        json_decref(j);
        outcome_free(&o);
        assert_true(steps > 110);
        must(f, "train q.yaml -o %s --resume %s -s train.steps=%d", words[4], ways[i], steps);
        must(f, "train q.yaml -s train.delay=true -o whole%d -s train.steps=%d", i, steps);
        static const char *const files[] = {"metrics.jsonl", "checkpoints/step-%08d.safetensors"};
        for (int k = 0; k < 2; k++) {
            snprintf(text, sizeof text, files[k], steps);
            snprintf(path, sizeof path, "whole%d/%s", i, text);
            snprintf(last, sizeof last, "%s/%s", words[4], text);
            assert_same_file(tmpdir_path(state, path), tmpdir_path(state, last));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(inspects, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(inspects_as_data, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(sums_once, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(gives_back, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(inspects_not, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(overlaps, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(stops_amid_a_row, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(traces, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(draws, tmpdir_setup, tmpdir_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
