/* The program trains: what it prints, what its run folder holds, and that one seed gives one result
 * to the last bit. */
#include "cli/program.h"
#include "xml.h"

#include <math.h>

static const char picture[] = "model: {name: mlp, image: 8, width: 16, depth: 1, classes: 4}\n"
                              "data: {name: synthetic, samples: 150}\n"
                              "train: {batch: 16, steps: 24, eval_every: 10, save_every: 10,\n"
                              "  log_every: 1, threads: 1}\n";
static const char sentence[] =
    "model: {name: gpt, layers: 1, width: 16, heads: 2, seq: 12, vocab: 32, dropout: 100}\n"
    "data: {name: synthetic, samples: 60}\n"
    "train: {batch: 6, micro_batch: 2, steps: 12, eval_every: 5, save_every: 5, log_every: 1,\n"
    "  threads: 1, clip: 1, schedule: cosine, warmup: 3, weight_decay: 0.1}\n";

/* ---- what it prints ---- */

static void prints_one_object(void **state)
{
    const char *folder = *state;
    write_text(tmpdir_path(state, "a.yaml"), picture);
    outcome o = succeeds(folder, "train a.yaml --json");
    json_t *j = json_of(o.out);
    static const char *const keys[] = {
        "model",   "parameters",    "ranks",           "mesh",
        "steps",   "train_loss",    "val_loss",        "val_accuracy",
        "step_ms", "samples_per_s", "tokens_per_s",    "peak_bytes_planned",
        "seconds", "out",           "peak_bytes_used", "predicted_step_ms"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!json_object_get(j, keys[i])) fail_msg("--json lacks %s", keys[i]);
    assert_string_equal(json_string_value(json_object_get(j, "model")), "mlp");
    assert_string_equal(json_string_value(json_object_get(j, "out")), "runs/a");
    assert_int_equal(json_num(j, "parameters"), 64 * 16 + 16 + 16 * 4 + 4);
    assert_int_equal(json_num(j, "steps"), 24);
    assert_true(json_is_null(json_object_get(j, "signal")));
    assert_true(json_num(j, "train_loss") > 0 && json_num(j, "val_loss") > 0);
    assert_true(json_num(j, "val_accuracy") >= 0 && json_num(j, "val_accuracy") <= 1);
    assert_true(json_num(j, "step_ms") > 0 && json_num(j, "samples_per_s") > 0);
    assert_true(json_num(j, "peak_bytes_planned") > 0);
    assert_int_equal(json_num(j, "tensor_bytes_planned"), json_num(j, "tensor_bytes_used"));
    assert_non_null(strstr(o.err, "\nstep 1/24 | loss "));
    assert_non_null(strstr(o.err, "\nstep 24/24 | loss "));
    assert_non_null(strstr(o.err, "\nstep 10: validation loss "));
    assert_null(strstr(o.err, "\033")); /* no terminal, no colours, no bar */
    json_decref(j);
    outcome_free(&o);
    o = succeeds(folder, "train a.yaml"); /* for people: nothing on standard output */
    assert_string_equal(o.out, "");
    assert_non_null(strstr(o.err, "run folder: runs/a-2\n")); /* the first is not touched */
    outcome_free(&o);
}

/* What a step will take is told before the first; what of it is not counted, by name. */
static void tells_what_is_to_come(void **state)
{
    static const struct {
        const char *how, *without;
        bool exchanges;
    } of[] = {{"", NULL, false},
              {"--mesh pipe=2 -s train.micro_batch=4", NULL, false},
              {"--mesh pipe=2 -s train.micro_batch=4 -s parallel.schedule=2bw", NULL, false},
              {"--exact", "repeated with all bits", false},
              {"--exact -s parallel.replicas=2 -s parallel.consistency=local", "repeated", true},
              {"-s parallel.replicas=2 -s parallel.consistency=diloco", NULL, true},
              {"-s parallel.replicas=2 -s parallel.consistency=ensemble", NULL, false},
              {"-s parallel.replicas=2 -s parallel.consistency=streaming", "coded", false},
              {"-s parallel.replicas=2 -s parallel.consistency=async", NULL, true},
              {"-s parallel.replicas=2 -s parallel.consistency=eager", NULL, true},
              {"-s parallel.replicas=2 -s parallel.consistency=ssp", NULL, true},
              {"-s parallel.replicas=2 -s parallel.consistency=hogwild", NULL, true},
              {"-s parallel.replicas=2 -s parallel.consistency=ad-psgd", NULL, true},
              {"--slow 1:2", "what --slow adds", false}};
    write_text(tmpdir_path(state, "a.yaml"), picture);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        char line[256];
        snprintf(line, sizeof line, "train a.yaml -n 2 --json %s", of[i].how);
        outcome o = succeeds(*state, line);
        json_t *j = json_of(o.out);
        const char *without = json_string_value(json_object_get(j, "predicted_without"));
        const char *told = strstr(o.err, "\nstep: predicted "), *first = strstr(o.err, "\nstep 1/");
        if (!told || !first || told > first) fail_msg("%s: %s", of[i].how, o.err);
        assert_true(json_num(j, "predicted_step_ms") > 0);
        assert_non_null(json_object_get(j, "own_step_ms")); /* null where others held up all */
        for (int later = 0; later < 2; later++) {
            double share = json_num(j, later ? "others" : "predicted_others");
            assert_true(share >= 0 && share <= 1);
        }
        if ((json_num(j, "predicted_exchange_ms") > 0) != of[i].exchanges)
            fail_msg("%s: %s", of[i].how, o.out);
        if (of[i].without ? !without || !strstr(without, of[i].without) : without != NULL)
            fail_msg("%s: without %s", of[i].how, without ? without : "nothing");
        json_decref(j);
        outcome_free(&o);
    }
}

/* ---- the run folder ---- */

/* Text of the one file in folder whose name begins so. */
static char *file_like(const char *folder, const char *begin, size_t *size)
{
    DIR *d = opendir(folder);
    assert_non_null(d);
    char path[600] = "", *text = NULL;
    for (struct dirent *e; (e = readdir(d));)
        if (!strncmp(e->d_name, begin, strlen(begin))) {
            assert_string_equal(path, "");
            snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
            text = read_whole(path, size);
        }
    closedir(d);
    if (!text) fail_msg("%s has no %s*", folder, begin);
    return text;
}

static bool holds(const char *bytes, size_t n, const char *text)
{
    size_t m = strlen(text);
    for (size_t i = 0; i + m <= n; i++)
        if (!memcmp(bytes + i, text, m)) return true;
    return false;
}

/* Every line an object; steps 1..24 in order, validations after steps 10, 20 and 24. */
static void check_metrics(const char *path)
{
    char *text = read_whole(path, NULL), *rest = NULL;
    assert_non_null(text);
    assert_true(text[strlen(text) - 1] == '\n');
    int step = 0, validations = 0;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        json_t *j = json_of(line);
        if (json_object_get(j, "val_loss")) {
            validations++;
            assert_true(step == 10 || step == 20 || step == 24);
            assert_true(json_num(j, "val_accuracy") >= 0);
        } else {
            step++;
            assert_true(json_num(j, "loss") > 0 && json_num(j, "grad_norm") > 0);
            assert_true(fabs(json_num(j, "lr") - 1e-3) < 1e-12);
        }
        assert_int_equal(json_num(j, "step"), step);
        json_decref(j);
    }
    assert_int_equal(step, 24);
    assert_int_equal(validations, 3);
    free(text);
}

static void fills_the_run_folder(void **state)
{
    const char *folder = *state;
    size_t n;
    write_text(tmpdir_path(state, "a.yaml"), picture);
    must(folder, "train a.yaml --out deep/er/run");
    check_metrics(tmpdir_path(state, "deep/er/run/metrics.jsonl"));
    char *events = file_like(tmpdir_path(state, "deep/er/run"), "events.out.tfevents.", &n);
    assert_true(holds(events, n, "brain.Event:2") && holds(events, n, "train/loss"));
    assert_true(holds(events, n, "val/loss") && holds(events, n, "val/accuracy"));
    free(events);
    char *svg = read_whole(tmpdir_path(state, "deep/er/run/curve.svg"), NULL);
    assert_true(check_xml(svg) > 10);
    free(svg);
    const char *kept = tmpdir_path(state, "deep/er/run/checkpoints");
    assert_int_equal(tmpdir_count(kept), 2);
    assert_true(
        file_exists(tmpdir_path(state, "deep/er/run/checkpoints/step-00000020.safetensors")));
    assert_true(
        file_exists(tmpdir_path(state, "deep/er/run/checkpoints/step-00000024.safetensors")));
}

/* run.yaml says everything: it trains the same again, whatever the defaults will be. */
static void run_file_is_complete(void **state)
{
    const char *folder = *state;
    write_text(tmpdir_path(state, "a.yaml"), picture);
    must(folder, "train a.yaml --set train.lr=0.0123 --set data.flip=true --out one");
    must(folder, "train one/run.yaml --out two");
    assert_same_file(tmpdir_path(state, "one/metrics.jsonl"),
                     tmpdir_path(state, "two/metrics.jsonl"));
    char *text = read_whole(tmpdir_path(state, "two/run.yaml"), NULL);
    static const char *const lines[] = {"  lr: 0.0123\n", "  flip: true\n", "  optimizer: adamw\n",
                                        "  keep: 2\n",    "  depth: 1\n",   "out: two\n"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (!strstr(text, lines[i])) fail_msg("run.yaml lacks %s", lines[i]);
    free(text);
}

/* A folder that was moved is the run: its checkpoints are read and written there. */
static void run_folder_may_move(void **state)
{
    const char *folder = *state;
    write_text(tmpdir_path(state, "a.yaml"), picture);
    must(folder, "train a.yaml --out one");
    assert_int_equal(rename(tmpdir_path(state, "one"), tmpdir_path(state, "two")), 0);
    must(folder, "eval two");
    must(folder, "train two/ --resume --set train.steps=30");
    assert_true(file_exists(tmpdir_path(state, "two/checkpoints/step-00000030.safetensors")));
    assert_false(file_exists(tmpdir_path(state, "one")));
}

/* ---- one seed, one result ---- */

static const char *final_of(void *const *state, const char *run, int steps)
{
    char name[128];
    snprintf(name, sizeof name, "%s/checkpoints/step-%08d.safetensors", run, steps);
    return tmpdir_path(state, name);
}

static void check_repeats(void **state, const char *run, const char *settings, int steps)
{
    const char *folder = *state;
    write_text(tmpdir_path(state, "r.yaml"), run);
    must(folder, "train r.yaml %s --out one", settings);
    must(folder, "train r.yaml %s --out two", settings);
    must(folder, "train r.yaml %s --out three --set train.seed=2", settings);
    const char *metrics = tmpdir_path(state, "one/metrics.jsonl");
    assert_same_file(metrics, tmpdir_path(state, "two/metrics.jsonl"));
    assert_same_file(final_of(state, "one", steps), final_of(state, "two", steps));
    assert_false(same_file(metrics, tmpdir_path(state, "three/metrics.jsonl")));
    assert_false(same_file(final_of(state, "one", steps), final_of(state, "three", steps)));
}

static void repeats_with_threads(void **state)
{
    check_repeats(state, picture, "--set train.threads=2 --set model.width=96", 24);
}

static void repeats_with_augmentation(void **state)
{
    check_repeats(state, picture, "--set data.flip=true --set data.crop=2", 24);
}

static void repeats_with_dropout_and_micro_batches(void **state)
{
    check_repeats(state, sentence, "", 12);
}

/* Augmentation and dropout are there at all: without them the numbers are others. */
/* The best checkpoint, patience, averages of parameters; a rate that helps nobody. */
static void keeps_the_best(void **state)
{
    write_text(tmpdir_path(state, "r.yaml"),
               "model: {name: mlp, image: 8, width: 16, depth: 1, classes: 4}\n"
               "data: {name: synthetic, samples: 400}\n"
               "params: {\"*.bias\": \"lr=2 decay=0\"}\n"
               "train: {batch: 8, steps: 60, eval_every: 5, eval_samples: 16, keep: 1,\n"
               "  threads: 1, best: loss, patience: 3, ema: 0.5}\n");
    must(*state, "train r.yaml --out out --set train.steps=10");
    json_t *whole = prints_json(*state, "eval out --samples 16 --json");
    json_t *best = prints_json(
        *state, "eval out --samples 16 --json --checkpoint out/checkpoints/best.safetensors");
    assert_true(json_num(best, "val_loss") <= json_num(whole, "val_loss"));
    json_decref(whole);
    json_decref(best);
    outcome o = succeeds(*state, "train r.yaml --out two --set train.lr=50");
    assert_non_null(strstr(o.err, "stopped: no better loss in the last 3 validations"));
    assert_non_null(strstr(o.err, "on 16 samples"));
    outcome_free(&o);
    assert_true(file_exists(tmpdir_path(state, "two/checkpoints/best.safetensors")));
    refuses(*state, 1, "train r.yaml --out x --set train.best=min:iou", "does not report");
    assert_false(file_exists(tmpdir_path(state, "x/run.yaml"))); /* before the first step */
    o = succeeds(*state, "train r.yaml --out again --init out/checkpoints/best.safetensors "
                         "--set train.steps=1");
    assert_non_null(strstr(o.err, "averages (train.ema) of 4"));
    outcome_free(&o);
    refuses(*state, 1, "train r.yaml --out y --set train.best= --set train.patience=3",
            "train.patience needs");
    must(*state,
         "train r.yaml --out y --set train.best= --set train.steps=1"); /* the file's goes */
    refuses(*state, 1, "train r.yaml --out y --set params.*=hold", "'hold', expected freeze");
}

static void randomness_has_an_effect(void **state)
{
    const char *folder = *state;
    write_text(tmpdir_path(state, "p.yaml"), picture);
    write_text(tmpdir_path(state, "s.yaml"), sentence);
    must(folder, "train p.yaml --out p1 --set data.flip=true");
    must(folder, "train p.yaml --out p2");
    must(folder, "train s.yaml --out s1");
    must(folder, "train s.yaml --out s2 --set model.dropout=0");
    const char *one = tmpdir_path(state, "p1/metrics.jsonl");
    assert_false(same_file(one, tmpdir_path(state, "p2/metrics.jsonl")));
    must(folder, "train p.yaml --out m1 --exact --set data.mixup=0.4 --set data.cutmix=1");
    must(folder, "train p.yaml --out m2 --exact --set data.mixup=0.4 --set data.cutmix=1 -n 2");
    one = tmpdir_path(state, "m1/metrics.jsonl");
    assert_true(same_file(one, tmpdir_path(state, "m2/metrics.jsonl")));
    assert_false(same_file(one, tmpdir_path(state, "p2/metrics.jsonl")));
    refuses(folder, 1, "train s.yaml --out m3 --set data.mixup=0.4",
            "data.mixup applies only to images");
    one = tmpdir_path(state, "s1/metrics.jsonl");
    assert_false(same_file(one, tmpdir_path(state, "s2/metrics.jsonl")));
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, tmpdir_setup, tmpdir_teardown)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(prints_one_object),         IN_FOLDER(tells_what_is_to_come),
        IN_FOLDER(fills_the_run_folder),      IN_FOLDER(run_file_is_complete),
        IN_FOLDER(run_folder_may_move),       IN_FOLDER(repeats_with_threads),
        IN_FOLDER(repeats_with_augmentation), IN_FOLDER(repeats_with_dropout_and_micro_batches),
        IN_FOLDER(randomness_has_an_effect),  IN_FOLDER(keeps_the_best),
    };
    return cmocka_run_group_tests_name("cli_train", tests, NULL, NULL);
}
