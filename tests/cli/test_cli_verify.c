/* loopline verify and inspect --mesh, as scripts use them: JSON, exit status, who is named. */
#include "cli/program.h"

#include <math.h>

static const char picture[] = "model: {name: mlp, image: 8, width: 18, depth: 2, classes: 4}\n"
                              "data: {name: synthetic, samples: 300}\n"
                              "train: {batch: 9, optimizer: adam, threads: 1}\n"
                              "parallel: {mesh: \"data=2\", zero: 2}\n";

static const char *text_of(const json_t *j, const char *key)
{
    const char *t = json_string_value(json_object_get(j, key));
    if (!t) fail_msg("%s is not text", key);
    return t;
}

static void passes(void **state)
{
    write_text(tmpdir_path(state, "p.yaml"), picture);
    json_t *j = prints_json(*state, "verify p.yaml --json");
    assert_true(json_is_true(json_object_get(j, "ok")));
    assert_true(json_is_true(json_object_get(j, "init_identical")));
    assert_true(json_is_null(json_object_get(j, "first_difference")));
    assert_true(json_num(j, "max_rel_diff") < 1e-5);
    assert_true(json_num(j, "max_rel_diff") > 0);
    assert_string_equal(text_of(j, "mesh"), "data=2");
    assert_int_equal((int)json_num(j, "steps"), 5);
    json_decref(j);
    j = prints_json(*state, "verify lenet5 -b 7 --mesh tensor=3 --steps 2 --zero 0 --json");
    assert_true(json_is_true(json_object_get(j, "ok")));
    assert_string_equal(text_of(j, "mesh"), "tensor=3");
    json_decref(j);
}

/* AdamW's first step takes the sign of each gradient, and bf16 turns that of small ones. */
static void signs_that_rounding_turns(void **state)
{
    outcome o = succeeds(
        *state,
        "verify gpt --random --steps 1 -s train.threads=1 -s model.layers=3 -s model.heads=2 "
        "-s model.width=10 -s model.seq=12 -s model.vocab=61 --mesh filter=2 -b 5 "
        "-s train.optimizer=adamw -s train.seed=545 -s parallel.overlap=none "
        "-s train.precision=bf16");
    outcome_free(&o);
}

static void fails(void **state)
{
    write_text(tmpdir_path(state, "p.yaml"), picture);
    outcome o = program_run(*state, NULL, "verify p.yaml --tolerance 1e-12 --json");
    assert_int_equal(o.status, 1);
    json_t *j = json_of(o.out), *d = json_object_get(j, "first_difference");
    assert_true(json_is_false(json_object_get(j, "ok")));
    assert_true(json_is_true(json_object_get(j, "init_identical")));
    assert_true(strlen(text_of(d, "name")) > 0 && strlen(text_of(d, "op")) > 0);
    assert_in_range((int)json_num(d, "rank"), 0, 1);
    assert_true(json_num(d, "index") >= 0);
    assert_true(json_num(d, "serial") != json_num(d, "parallel"));
    if (!strstr(o.err, text_of(d, "name"))) fail_msg("no name in: %s", o.err);
    json_decref(j);
    outcome_free(&o);
}

static void exact(void **state)
{
    write_text(tmpdir_path(state, "p.yaml"), picture);
    json_t *j = prints_json(*state, "verify p.yaml --exact --json");
    assert_true(json_is_true(json_object_get(j, "ok")));
    assert_int_equal((int)json_num(j, "differing"), 0);
    assert_true(json_num(j, "max_rel_diff") == 0);
    json_decref(j);
    refuses(*state, 1, "verify p.yaml --exact --tolerance 1e-3", "must not differ in any bit");
    refuses(*state, 1, "verify p.yaml --exact -s train.precision=bf16", "parallel.exact needs");
    refuses(*state, 1, "train p.yaml --exact -s parallel.compress=bf16",
            "combined with parallel.exact");
    outcome o = succeeds(*state, "inspect p.yaml -s parallel.exact=true --graph");
    assert_non_null(strstr(o.out, "= ungrid("));
    outcome_free(&o);
}

static void refused(void **state)
{
    write_text(tmpdir_path(state, "p.yaml"), picture);
    refuses(*state, 1, "verify p.yaml --mesh data=2 -n 3", "mesh \"data=2\" needs 2 ranks");
    write_text(tmpdir_path(state, "bad.safetensors"), "0123456789");
    refuses(*state, 1, "verify p.yaml -n 2 -s train.init=bad.safetensors", "bad.safetensors");
    refuses(*state, 1, "verify p.yaml --mesh dta=2", "did you mean data?");
    refuses(*state, 1, "verify p.yaml -s train.precision=tf32",
            "does not support train.precision=tf32");
    refuses(*state, 1, "train p.yaml -s train.deterministic=false", "whose order of sums is fixed");
    refuses(*state, 1, "train p.yaml --exact -s train.machine=cuda -s train.deterministic=false",
            "cannot be combined with parallel.exact");
    refuses(*state, 1, "verify p.yaml --steps 0", "--steps is 0");
    refuses(*state, 1, "inspect p.yaml --layouts --mesh data=2 --rank 2", "--rank is 2");
    refuses(*state, 1, "inspect p.yaml --layouts -s parallel.mesh=",
            "--layouts, --zero, --rank and --nodes need --mesh");
    refuses(*state, 1, "inspect p.yaml --mesh data=2 --nodes 3",
            "--nodes is 3, which does not divide 2 ranks");
    refuses(*state, 1, "inspect p.yaml --mesh data=4 --nodes 3",
            "which does not divide 4 ranks equally");
    refuses(*state, 1, "inspect p.yaml --mesh height=2", "height=2: nothing in mlp can be cut");
}

/* Times that the collectives of a kind are in a plan, or run on rank 0 in a traced step. */
static int planned(const json_t *plan, const char *op)
{
    size_t i;
    const json_t *c;
    json_array_foreach(json_object_get(plan, "collectives"), i,
                       c) if (!strcmp(json_string_value(json_object_get(c, "op")),
                                      op)) return (int)json_num(c, "calls");
    return 0;
}

static int ran(const json_t *trace, const char *kind)
{
    int n = 0;
    size_t i;
    const json_t *e;
    json_array_foreach(json_object_get(trace, "traceEvents"), i, e)
    {
        const char *cat = json_string_value(json_object_get(e, "cat"));
        const char *name = json_string_value(json_object_get(e, "name"));
        n += cat && !strcmp(cat, "communication") && json_num(e, "pid") == 0 &&
             !strncmp(name, kind, strlen(kind));
    }
    return n;
}

/* Of ranks of one machine: what runs there, not what would between nodes. */
static void inspects_what_runs(void **state)
{
    static const char run[] =
        "model: {name: gpt, layers: 1, width: 128, heads: 4, seq: 128, vocab: 64}\n"
        "data: {name: synthetic, samples: 64}\n"
        "train: {batch: 4, steps: 2, threads: 1}\nparallel: {sequence: rows}\n";
    write_text(tmpdir_path(state, "s.yaml"), run);
    json_t *near = prints_json(*state, "inspect s.yaml --json --mesh sequence=2");
    json_t *far = prints_json(*state, "inspect s.yaml --json --mesh sequence=2 --nodes 2");
    json_t *own =
        prints_json(*state, "inspect s.yaml --json --mesh sequence=2 -s parallel.sequence=auto");
    assert_string_equal(json_string_value(json_object_get(near, "sequence")), "rows");
    assert_string_equal(json_string_value(json_object_get(own, "sequence")), "heads");
    json_decref(own);
    outcome o = succeeds(*state, "inspect s.yaml --mesh sequence=2");
    assert_non_null(strstr(o.out, "\naxis sequence shards rows of attention\n"));
    outcome_free(&o);
    must(*state, "train s.yaml -n 2 --mesh sequence=2 --trace t.json --trace-steps 2 --out a");
    size_t size;
    char *text = read_whole(tmpdir_path(state, "t.json"), &size);
    json_t *trace = json_of(text);
    assert_true(planned(far, "rotate") > 0);
    assert_int_equal(planned(near, "rotate"), ran(trace, "rotate "));
    assert_int_equal(planned(near, "reduce_scatter"), ran(trace, "reduce-scatter "));
    assert_int_equal(planned(near, "all_gather"), ran(trace, "all-gather "));
    free(text);
    json_decref(trace);
    json_decref(near);
    json_decref(far);
}

static void recomputes(void **state)
{
    json_t *j = prints_json(*state, "inspect lenet5 --json -s parallel.recompute=full");
    const json_t *r = json_object_get(j, "recompute");
    assert_true(json_num(r, "kept_bytes") < json_num(r, "kept_bytes_before"));
    assert_true(json_num(r, "extra_flops") > 0);
    json_decref(j);
    outcome o = succeeds(*state, "inspect lenet5 -s parallel.recompute=selective --mesh data=2");
    assert_non_null(strstr(o.out, "recompute selective: the backward pass finds"));
    outcome_free(&o);
    refuses(*state, 1, "inspect lenet5 -s parallel.recompute=most",
            "parallel.recompute is 'most', expected none, selective, full");
    refuses(*state, 1, "inspect lenet5 -s parallel.recompute=1KiB",
            "even full recomputation keeps");
}

/* Many at once: a line for each of the matrix, a sum of what was drawn. */
static void many(void **state)
{
    outcome o = succeeds(*state, "verify --fuzz 1 -n 3 --steps 1 --seed 7");
    assert_non_null(strstr(o.out, " drawn with --seed 7 on up to 3 ranks: "));
    assert_non_null(strstr(o.out, ", 0 different, "));
    outcome_free(&o);
    json_t *j = prints_json(*state, "verify mlp --matrix --mesh data=2 -n 2 --steps 1 --json");
    json_t *rows = json_object_get(j, "rows"), *first = json_array_get(rows, 0);
    assert_true(json_is_true(json_object_get(j, "ok")));
    assert_int_equal(json_array_size(rows), 4);
    assert_int_equal((int)json_num(j, "alike"), 8); /* and exact */
    assert_string_equal(json_string_value(json_object_get(first, "model")), "mlp");
    assert_true(json_num(first, "exact_differing") == 0);
    json_decref(j);
    j = prints_json(*state, "verify --fuzz 1 -n 3 --steps 1 --seed 7 --json");
    assert_true(json_num(j, "different") == 0 && json_num(j, "seed") == 7);
    assert_int_equal(json_array_size(json_object_get(j, "wrong")), 0);
    json_decref(j);
    o = succeeds(*state, "verify mlp --matrix --pipelines -n 2 --steps 1 -s train.clip=0.5");
    assert_non_null(strstr(o.out, "| mlp       | pipe=2 (zb-v of 1)                       | 0 | "));
    assert_non_null(strstr(o.out, "| mlp       | pipe=2 (gpipe of 8)                      | 0 | "));
    assert_non_null(strstr(o.out, "| mlp       | pipe=2 (2bw of 5)                        | 0 | "));
    assert_non_null(strstr(o.out, "| mlp       | data=2                                   | 3 | "));
    assert_non_null(strstr(o.out, "| mlp       | filter=2                                 | 0 | "));
    assert_non_null(strstr(o.out, "| mlp       | pipe=2 (zb-h1 of 4)                      | 0 | "));
    assert_null(strstr(o.out, "height"));
    assert_non_null(strstr(o.out,
                           "\n48 rows, each with f32 sums and exact ones: 96 alike (0 judged "
                           "in f64 too), 0 different, "));
    outcome_free(&o);
    o = succeeds(*state, "verify mlp --matrix -m data=2 -n 2 --steps 1 -s train.precision=bf16");
    assert_non_null(strstr(o.out, "\n4 rows, each with bf16 sums (exact ones need f32): 4 alike (0 "
                                  "judged in f64 too), 0 different, 0 cannot be cut so;"));
    outcome_free(&o);
    refuses(*state, 1, "verify mlp --matrix --mesh data=9 -n 2", "no strategy of the matrix");
    refuses(*state, 2, "verify --fuzz 0", "--fuzz is '0', expected a number above 0");
    refuses(*state, 1, "verify --fuzz 1 --mesh data=2", "choose this setting themselves");
    refuses(*state, 1, "verify --fuzz 1 --exact", "choose this setting themselves");
    refuses(*state, 1, "verify --fuzz 1 -s train.clip=1", "choose this setting themselves");
    refuses(*state, 1, "verify mlp --matrix -s model.width=9", "choose this setting themselves");
    refuses(*state, 1, "verify mlp --matrix --mesh data=2 -s train.foo=1", "train.foo");
    refuses(*state, 1, "verify mlp --matrix -s parallel.replicas=2", "the run has 2");
    refuses(*state, 1, "verify vgg16 --matrix", "(models: mlp lenet5");
    refuses(*state, 1, "verify mlp --matrix --steps 0", "--steps is 0");
    refuses(*state, 1, "verify --fuzz 1 --pipelines", "--pipelines needs --matrix");
    refuses(*state, 1, "verify --matrix p.yaml", "p.yaml is not");
    refuses(*state, 1, "verify --matrix -n 1", "need 2 ranks or more");
    refuses(*state, 1, "verify --matrix --fuzz 3", "use one of them");
    refuses(*state, 1, "verify", "--matrix or --fuzz SECONDS");
}

static void inspects(void **state)
{
    write_text(tmpdir_path(state, "p.yaml"), picture);
    json_t *one = prints_json(*state, "inspect p.yaml --json");
    json_t *j = prints_json(*state, "inspect p.yaml --mesh data=2 --zero 3 --json");
    assert_int_equal((int)json_num(j, "ranks"), 2);
    assert_true(json_num(j, "sent_bytes") > 0);
    assert_true(json_num(j, "bytes_per_rank") < json_num(one, "peak_bytes"));
    assert_true(json_array_size(json_object_get(j, "collectives")) >= 2);
    json_decref(one);
    json_decref(j);
    static const struct {
        const char *words, *want[3];
    } cases[] = {
        {"inspect p.yaml --mesh data=2 --graph", {"all_reduce(", "grad:fc1.weight", "[4,8,8,1]"}},
        {"inspect p.yaml --mesh data=2 --rank 1 --graph", {"all_reduce(", "[5,8,8,1]", ""}},
        {"inspect p.yaml --mesh tensor=2 --program", {"tensors ", "all_reduce", ""}},
        {"inspect p.yaml --mesh data=2,tensor=2 --layouts", {"a: data", "(summed)", "over tensor"}},
        {"inspect p.yaml --mesh data=2 --dot", {"digraph \"mlp\" {", "fillcolor", "->"}},
        {"inspect p.yaml --dot", {"digraph \"mlp\" {", "fc1.matmul", "result loss"}},
        {"inspect p.yaml --mesh data=2", {"2 ranks", "all_reduce", "over data"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        outcome o = succeeds(*state, "%s", cases[i].words);
        for (int k = 0; k < 3; k++)
            if (!strstr(o.out, cases[i].want[k]))
                fail_msg("%s: no '%s' in\n%s", cases[i].words, cases[i].want[k], o.out);
        outcome_free(&o);
    }
}

/* A cluster whose links are slow: fully connected layers are then better cut than copied. */
static const char images[] = "model: {name: lenet5, image: 32}\n"
                             "data: {name: synthetic, samples: 64}\n"
                             "train: {batch: 8, steps: 2, threads: 1}\n";

/* What plan prints is a run file's: it trains, on as many ranks, what one process trains. */
static void plans_are_runs(void **state)
{
    char text[1024];
    write_text(tmpdir_path(state, "slow.yaml"), "like: dgx-a100\nnode: {link: 0.05}\n");
    write_text(tmpdir_path(state, "r.yaml"), images);
    outcome o = succeeds(*state, "plan r.yaml --cluster slow.yaml --ranks 2");
    assert_non_null(strstr(o.out, "\nlayout:\n  \"fc1.weight\": [data, -]\n"));
    assert_non_null(strstr(o.err, "bound by the bandwidth of exchanges"));
    assert_non_null(strstr(o.err, "step (80 %)"));
    snprintf(text, sizeof text, "%s%s", images, o.out);
    outcome_free(&o);
    write_text(tmpdir_path(state, "best.yaml"), text);
    json_t *j = prints_json(*state, "verify best.yaml --steps 2 --json");
    assert_true(json_is_true(json_object_get(j, "ok")));
    assert_string_equal(text_of(j, "mesh"), "data=2");
    json_decref(j);
    o = succeeds(*state, "train best.yaml -n 2 --out o");
    outcome_free(&o);
    /* Where each of many small sums is waited for, that is what is told. */
    o = succeeds(*state, "plan resnet18 --cluster h200 --ranks 8 --mesh data=8 -s train.batch=8");
    assert_non_null(strstr(o.err, "bound by the latency of small exchanges"));
    assert_non_null(strstr(o.err, "such as bn1.all_reduce"));
    assert_non_null(strstr(o.err, "RUN.yaml"));
    outcome_free(&o);
    /* An encoder counts: half of the model's FLOPs, not a decoder's alone. */
    write_text(tmpdir_path(state, "s.yaml"),
               "model: {name: seq2seq, layers: 1, width: 64, heads: 2, seq: 16, source: 16, "
               "vocab: 99}\ntrain: {batch: 8}\n");
    json_t *two = prints_json(*state, "plan s.yaml --cluster dgx-a100 --ranks 2 --json"),
           *step = prints_json(*state, "bench step s.yaml -b 8 -t 1 --seconds 0.1 --json");
    assert_float_equal(
        2 * json_num(json_array_get(json_object_get(two, "plans"), 0), "model_flops_per_rank"),
        json_num(step, "model_flops"), 1);
    json_decref(two);
    json_decref(step);
    json_t *plans = prints_json(*state, "plan r.yaml --cluster slow.yaml --ranks 2 --json");
    int mixed = 0;
    for (size_t i = 0; i < json_array_size(json_object_get(plans, "plans")); i++) {
        const json_t *p = json_array_get(json_object_get(plans, "plans"), i);
        int n = snprintf(text, sizeof text, "verify r.yaml --steps 1 --json ");
        for (const char *c = text_of(p, "train"); *c; c++) /* no shell takes its quotes off */
            if (*c != '\'') text[n++] = *c;
        snprintf(text + n, sizeof text - (size_t)n, " -s train.machine=cpu");
        mixed += strstr(text, "-s layout.") != NULL;
        j = prints_json(*state, text);
        if (!json_is_true(json_object_get(j, "ok"))) fail_msg("%s", text);
        json_decref(j);
        bool data = !strcmp(text_of(p, "mesh"), "data=2"); /* samples are of a rank */
        assert_int_equal(json_num(p, "micro_batch"), data ? 4 : 8);
    }
    assert_true(mixed >= 1);
    json_decref(plans);
}

/* Of a transformer the plan is words that train takes: every one of the best, whatever its axes. */
static void plans_of_words(void **state)
{
    static const char words[] =
        "model: {name: gpt, layers: 4, width: 32, heads: 4, seq: 16, vocab: "
        "64}\ndata: {name: synthetic, samples: 64}\n"
        "train: {batch: 8, steps: 1, threads: 1}\n";
    write_text(tmpdir_path(state, "w.yaml"), words);
    json_t *plans = prints_json(*state, "plan w.yaml --cluster dgx-a100 --ranks 2 --json");
    const json_t *list = json_object_get(plans, "plans");
    assert_true(json_array_size(list) > 2);
    for (size_t i = 0; i < json_array_size(list); i++) {
        outcome o = succeeds(
            *state, "train w.yaml --out o%zu %s -s train.machine=cpu -s parallel.transport=auto", i,
            text_of(json_array_get(list, i), "train"));
        outcome_free(&o);
    }
    json_decref(plans);
    /* With all that was given, and nothing of the file that the plan has otherwise. */
    outcome o =
        succeeds(*state, "plan w.yaml --cluster h200 --ranks 2 --mesh data=2 -s model.seq=8 "
                         "-s out=a;b'c -s parallel.schedule=1f1b -s parallel.zero=0");
    assert_non_null(strstr(o.err, "train w.yaml -n 2 --mesh data=2 -s train.micro_batch=8 "
                                  "-s model.seq=8 -s 'out=a;b'\\''c' -s train.machine=cuda\n"));
    outcome_free(&o);
    o = succeeds(*state, "plan w.yaml --cluster tpu-v4 --ranks 2 -s model.seq=8");
    assert_null(strstr(o.err, "train.machine"));
    outcome_free(&o);
    write_text(tmpdir_path(state, "z.yaml"),
               "model: {name: gpt, layers: 4, width: 32, heads: 4, seq: 16, vocab: 64}\n"
               "data: {name: synthetic, samples: 64}\ntrain: {batch: 8, steps: 1, machine: cuda}\n"
               "parallel: {mesh: \"pipe=2\", schedule: zb-h1, zero: 1, recompute: full}\n");
    o = succeeds(*state, "plan z.yaml --cluster h200 --ranks 2 --mesh data=2 -s parallel.zero=0 "
                         "-s parallel.recompute=none");
    assert_non_null(strstr(o.err, "-s train.micro_batch=8 -s parallel.schedule= --zero 0 "
                                  "-s parallel.recompute=none\n"));
    outcome_free(&o);
    plans = prints_json(*state, "plan z.yaml --cluster h200 --ranks 1 --json");
    o = succeeds(*state, "train z.yaml --out one %s -s train.machine=cpu",
                 text_of(json_array_get(json_object_get(plans, "plans"), 0), "train"));
    outcome_free(&o);
    json_decref(plans);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(passes, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(signs_that_rounding_turns, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(fails, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(exact, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(refused, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(recomputes, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(many, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(inspects, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(inspects_what_runs, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(plans_are_runs, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(plans_of_words, tmpdir_setup, tmpdir_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
