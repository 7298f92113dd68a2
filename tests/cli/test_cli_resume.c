/* A run that is stopped, by a signal at any moment or by kill -9, and resumed ends with the bits of
 * one that never was: metrics and checkpoint. */
#include "base/file.h"
#include "cli/ranks.h"

#include <sys/types.h>

enum { STOPPED = 75 }; /* the exit status of a run that a signal stopped and that was saved */

static const char sentence[] =
    "model: {name: gpt, layers: 1, width: 24, heads: 2, seq: 24, vocab: 48, dropout: 100}\n"
    "data: {name: synthetic, samples: 90}\n"
    "train: {batch: 4, micro_batch: 2, steps: 100, eval_every: 13, eval_samples: 3,\n"
    "  save_every: 9, log_every: 1, threads: 1, schedule: cosine, warmup: 10}\n";
enum { SENTENCE_STEPS = 100 };

/* Steps that take no time between validations that do. */
static const char validating[] = "model: {name: mlp, image: 8, width: 16, depth: 1, classes: 4}\n"
                                 "data: {name: synthetic, samples: 12000, val_fraction: 0.5}\n"
                                 "train: {batch: 8, steps: 5, eval_every: 1, save_every: 2,\n"
                                 "  log_every: 1, threads: 1}\n";
enum { VALIDATING_STEPS = 5 };

/* Checkpoints of 2.4 MB after each step. */
static const char saving[] =
    "model: {name: mlp, image: 28, width: 256, depth: 1, classes: 4}\n"
    "data: {name: synthetic, samples: 64}\n"
    "train: {batch: 2, steps: 14, save_every: 1, log_every: 1, threads: 1}\n";
enum { SAVING_STEPS = 14 };

static uint64_t dice;

static int below(int n)
{
    dice = dice * 6364136223846793005u + 1442695040888963407u;
    return (int)((dice >> 33) % (uint64_t)n);
}

/* ---- stopping it ---- */

/* Starts `loopline train RUN OPTION --out out --json` and sends the signal a few milliseconds after
 * the metrics have so many lines. */
static outcome stop_at(void *const *state, const char *run, const char *option, int lines, int sig)
{
    const char *words[] = {"train", run, "--json", "--out", "out", option, NULL};
    pid_t child = program_start(*state, NULL, words);
    const char *metrics = tmpdir_path(state, "out/metrics.jsonl");
    await_lines(child, metrics, lines);
    sleep_ms(0.1 * below(60));
    kill(child, sig);
    return program_wait(*state, child);
}

/* ---- what should come of it ---- */

static void *wholes; /* the folder of runs that were never stopped, of all tests */

static int group_setup(void **state)
{
    (void)state;
    return tmpdir_setup(&wholes);
}

static int group_teardown(void **state)
{
    (void)state;
    return tmpdir_teardown(&wholes);
}

/* Writes r.yaml; the first time, trains it to its end elsewhere. */
static void begin(void *const *state, const char *name, const char *text)
{
    char file[64], run[64];
    snprintf(file, sizeof file, "%s.yaml", name);
    snprintf(run, sizeof run, "%s/run.yaml", name);
    write_text(tmpdir_path(state, "r.yaml"), text);
    if (file_exists(tmpdir_path(&wholes, run))) return;
    write_text(tmpdir_path(&wholes, file), text);
    must(wholes, "train %s --out %s", file, name);
}

static const char *checkpoint(void *const *state, const char *run, int step)
{
    char name[128];
    snprintf(name, sizeof name, "%s/checkpoints/step-%08d.safetensors", run, step);
    return tmpdir_path(state, name);
}

/* The run in folder out is the one that was never stopped. */
static void assert_as_whole(void *const *state, const char *name, int steps)
{
    char metrics[64];
    snprintf(metrics, sizeof metrics, "%s/metrics.jsonl", name);
    assert_same_file(tmpdir_path(&wholes, metrics), tmpdir_path(state, "out/metrics.jsonl"));
    assert_same_file(checkpoint(&wholes, name, steps), checkpoint(state, "out", steps));
}

static void remove_out(void *const *state)
{
    char command[600];
    snprintf(command, sizeof command, "rm -rf %s", tmpdir_path(state, "out"));
    assert_int_equal(system(command), 0);
}

/* Stops it with a signal that it can answer; returns after how many steps. A run that was quicker
 * than the signal is tried again. */
static int stop_kindly(void *const *state, int sig, int first_line, int n_line, int steps)
{
    for (int attempt = 0; attempt < 20; attempt++) {
        remove_out(state);
        outcome o = stop_at(state, "r.yaml", NULL, first_line + below(n_line), sig);
        if (o.status != 0 && o.status != STOPPED)
            fail_msg("signal %d: status %d\n%s", sig, o.status, o.err);
        json_t *j = json_of(o.out);
        const json_t *said = json_object_get(j, "signal");
        int done = (int)json_num(j, "steps"), by = (int)json_integer_value(said);
        assert_true(json_is_null(said) ? done == steps : by == sig);
        assert_int_equal(o.status, by ? STOPPED : 0);
        if (by) {
            assert_non_null(strstr(o.err, "loopline train out --resume\n"));
            assert_true(file_exists(checkpoint(state, "out", done)));
        }
        json_decref(j);
        outcome_free(&o);
        if (by) return done;
    }
    fail_msg("the signal always came too late");
    return 0;
}

static void check_signal(void **state, int sig)
{
    const char *folder = *state;
    begin(state, "sentence", sentence);
    int done = stop_kindly(state, sig, 1, 70, SENTENCE_STEPS);
    print_message("stopped by signal %d after step %d\n", sig, done);
    must(folder, "train out --resume"); /* as it told us to */
    assert_as_whole(state, "sentence", SENTENCE_STEPS);
}

static void sigterm_then_resume(void **state)
{
    check_signal(state, SIGTERM);
}

static void sigint_then_resume(void **state)
{
    check_signal(state, SIGINT);
}

static void sigkill_then_resume(void **state)
{
    const char *folder = *state;
    begin(state, "sentence", sentence);
    outcome o = stop_at(state, "r.yaml", NULL, 20 + below(70), SIGKILL);
    assert_true(o.status == PROGRAM_KILLED + SIGKILL || o.status == 0);
    outcome_free(&o);
    must(folder, "train r.yaml --out out --resume");
    assert_as_whole(state, "sentence", SENTENCE_STEPS);
}

/* Whether there is a checkpoint, and not only what was being written when the process was killed.
 */
static bool any_checkpoint(void **state)
{
    DIR *d = opendir(tmpdir_path(state, "out/checkpoints"));
    bool any = false;
    for (struct dirent *e; d && (e = readdir(d));)
        any |= e->d_name[0] != '.' && !strstr(e->d_name, LL_ATOMIC_MARK);
    if (d) closedir(d);
    return any;
}

/* Again and again, by any of the three, at any moment, from the very start of the process on. */
static void many_stops(void **state)
{
    const char *folder = *state;
    static const int signals[] = {SIGTERM, SIGINT, SIGKILL};
    begin(state, "sentence", sentence);
    int stops = 0;
    for (; stops < 8; stops++) {
        bool any = any_checkpoint(state);
        int sig = signals[below(3)];
        int lines = lines_in(tmpdir_path(state, "out/metrics.jsonl"));
        outcome o = stop_at(state, "r.yaml", any ? "--resume" : "--overwrite",
                            below(4) ? lines / 2 + below(60) : 0, sig);
        /* Before the handlers are there a signal ends it as it ends any program. */
        if (o.status != 0 && o.status != STOPPED && o.status != PROGRAM_KILLED + sig)
            fail_msg("stop %d: status %d\n%s", stops, o.status, o.err);
        bool over = o.status == 0 && strstr(o.out, "\"signal\": null");
        outcome_free(&o);
        if (over) break;
    }
    print_message("stopped %d times\n", stops);
    bool any = any_checkpoint(state);
    must(folder, "train r.yaml --out out %s", any ? "--resume" : "--overwrite");
    assert_as_whole(state, "sentence", SENTENCE_STEPS);
}

/* ---- during validation, during saving ---- */

static void stopped_while_validating(void **state)
{
    const char *folder = *state;
    bool cut = false; /* a validation was */
    begin(state, "validating", validating);
    for (int i = 0; i < 20 && !cut; i++) {
        int done = stop_kindly(state, i % 2 ? SIGINT : SIGHUP, 1, 2, VALIDATING_STEPS);
        char *text = read_whole(tmpdir_path(state, "out/metrics.jsonl"), NULL), want[64];
        snprintf(want, sizeof want, "{\"step\":%d,\"val_loss\"", done);
        cut = !strstr(text, want);
        free(text);
        must(folder, "train out --resume");
        assert_as_whole(state, "validating", VALIDATING_STEPS);
    }
    assert_true(cut);
}

static void stopped_while_saving(void **state)
{
    const char *folder = *state;
    begin(state, "saving", saving);
    stop_kindly(state, SIGTERM, 1, 6, SAVING_STEPS);
    must(folder, "train out --resume");
    assert_as_whole(state, "saving", SAVING_STEPS);
    for (int i = 0; i < 3; i++) {
        remove_out(state);
        outcome o = stop_at(state, "r.yaml", NULL, 3 + below(6), SIGKILL);
        outcome_free(&o);
        must(folder, "train out --resume");
        assert_as_whole(state, "saving", SAVING_STEPS);
        assert_int_equal(tmpdir_count(tmpdir_path(state, "out/checkpoints")), 2); /* no leftovers */
    }
}

/* Ctrl-C on `loopline train ... 2>&1 | tee log` ends tee too: nobody reads the messages any more,
 * and the run is saved all the same. */
static void nobody_listens(void **state)
{
    const char *folder = *state;
    write_text(tmpdir_path(state, "r.yaml"), sentence);
    outcome o = program_run(folder, &(how){.deaf = true}, "train r.yaml --out out --json");
    assert_int_equal(o.status, 0);
    assert_true(file_exists(checkpoint(state, "out", SENTENCE_STEPS)));
    json_decref(json_of(o.out));
    outcome_free(&o);
}

/* ---- which run, which checkpoint ---- */

static void a_finished_run_stays(void **state)
{
    const char *folder = *state;
    begin(state, "sentence", sentence);
    json_t *first = prints_json(folder, "train r.yaml --out out --json");
    json_t *again = prints_json(folder, "train out --resume --json");
    assert_as_whole(state, "sentence", SENTENCE_STEPS);
    assert_true(json_num(first, "val_loss") == json_num(again, "val_loss"));
    assert_true(json_is_null(json_object_get(again, "train_loss"))); /* no step was taken */
    json_decref(first);
    json_decref(again);
}

static void goes_back_to_an_older_one(void **state)
{
    const char *folder = *state;
    begin(state, "sentence", sentence);
    must(folder, "train r.yaml --out out");
    must(folder, "train out --resume --from out/checkpoints/step-00000099.safetensors");
    assert_as_whole(state, "sentence", SENTENCE_STEPS);
    /* a run of its own from there on */
    must(folder, "train r.yaml --resume --from out/checkpoints/step-00000099.safetensors "
                 "--out branch");
    assert_same_file(checkpoint(state, "branch", SENTENCE_STEPS),
                     checkpoint(&wholes, "sentence", SENTENCE_STEPS));
    /* no step is left, and the folder has it all the same */
    must(folder, "train r.yaml --resume --from out/checkpoints/step-00000100.safetensors "
                 "--out last");
    assert_same_file(checkpoint(state, "last", SENTENCE_STEPS),
                     checkpoint(&wholes, "sentence", SENTENCE_STEPS));
}

/* Which data a step sees, and how many there are, belongs to a checkpoint. */
static void other_settings_are_refused(void **state)
{
    const char *folder = *state;
    begin(state, "sentence", sentence);
    must(folder, "train r.yaml --out out --set train.steps=20");
    const char *others[] = {"data.samples=91", "data.val_fraction=0.2"};
    for (int i = 0; i < 2; i++) {
        char line[128];
        snprintf(line, sizeof line, "train r.yaml --out out --resume --set %s", others[i]);
        refuses(folder, 1, line, "was made with data synthetic, 90 and", "this run has synthetic",
                i ? "resume with --set data.val_fraction=0.05"
                  : "resume with --set data.samples=90");
    }
    refuses(folder, 1, "train r.yaml --out out --resume --set model.seq=12",
            "was made with model.seq 24, but this run has 12: resume with --set model.seq=24");
    refuses(folder, 1, "train r.yaml --out out --resume --set train.steps=10", "is of step 20",
            "ends after step 10", "train.steps");
    outcome o = program_run(folder, NULL, "train r.yaml --out e --set train.epochs=1");
    assert_int_equal(o.status, 0);
    assert_non_null(strstr(o.err, "23 steps: train.epochs=1 ends before train.steps=100"));
    outcome_free(&o);
}

/* What a run before has saved stays until there is something new. */
static void nothing_goes_before_something_new_is_saved(void **state)
{
    const char *folder = *state;
    begin(state, "sentence", sentence);
    must(folder, "train r.yaml --out out");
    remove(tmpdir_path(state, "out/run.yaml"));
    remove(tmpdir_path(state, "out/metrics.jsonl"));
    refuses(folder, 1, "train r.yaml --out out", "out already holds a run", "--overwrite");
    assert_true(file_exists(checkpoint(state, "out", SENTENCE_STEPS)));
    write_text(tmpdir_path(state, "out/events.out.tfevents.1.a"), "");
    write_text(tmpdir_path(state, "r.yaml"), saving);
    outcome o = program_run(folder, NULL, "train r.yaml --out out --overwrite --set model.width=0");
    assert_int_equal(o.status, 1);
    outcome_free(&o);
    assert_true(file_exists(checkpoint(state, "out", SENTENCE_STEPS)));
    const char *never = "train.save_every=1000000";
    const char *words[] = {"train", "r.yaml",      "--out",
                           "out",   "--overwrite", "--set",
                           never,   "--set",       "train.steps=1000000",
                           NULL};
    pid_t child = program_start(folder, NULL, words);
    await_lines(child, tmpdir_path(state, "out/metrics.jsonl"), 3);
    kill(child, SIGKILL);
    o = program_wait(folder, child);
    assert_non_null(strstr(o.err,
                           "out/checkpoints/replaced keeps, until this run saves, an earlier "
                           "run's 2 checkpoints (steps 99 to 100)"));
    outcome_free(&o);
    const char *aside = "out/checkpoints/replaced/step-00000100.safetensors";
    assert_true(file_exists(tmpdir_path(state, aside)));
    assert_true(file_exists(tmpdir_path(state, "out/events.out.tfevents.1.a")));
    refuses(folder, 1, "train out --resume", "out has no checkpoint", "checkpoints/replaced");
    must(folder, "train r.yaml --out out --overwrite");
    assert_false(file_exists(tmpdir_path(state, "out/checkpoints/replaced")));
    assert_false(file_exists(tmpdir_path(state, "out/events.out.tfevents.1.a")));
}

static void one_process_in_a_folder(void **state)
{
    const char *folder = *state;
    write_text(tmpdir_path(state, "r.yaml"), sentence);
    const char *words[] = {"train", "r.yaml", "--set", "train.steps=100000000",
                           "--out", "out",    NULL};
    pid_t child = program_start(folder, NULL, words);
    await_lines(child, tmpdir_path(state, "out/metrics.jsonl"), 20);
    refuses(folder, 1, "train out --resume", "out: another process is training there", "--out DIR");
    refuses(folder, 1, "train r.yaml --out out --overwrite", "another process is training there");
    kill(child, SIGTERM);
    outcome o = program_wait(folder, child);
    assert_int_equal(o.status, STOPPED);
    outcome_free(&o);
}

int main(void)
{
    const char *given = getenv("TEST_SEED");
    dice = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL) ^ (uint64_t)getpid() << 20;
    print_message("TEST_SEED=%llu\n", (unsigned long long)dice);
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, tmpdir_setup, tmpdir_teardown)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(sigterm_then_resume),
        IN_FOLDER(sigint_then_resume),
        IN_FOLDER(sigkill_then_resume),
        IN_FOLDER(many_stops),
        IN_FOLDER(stopped_while_validating),
        IN_FOLDER(stopped_while_saving),
        IN_FOLDER(nobody_listens),
        IN_FOLDER(a_finished_run_stays),
        IN_FOLDER(goes_back_to_an_older_one),
        IN_FOLDER(other_settings_are_refused),
        IN_FOLDER(nothing_goes_before_something_new_is_saved),
        IN_FOLDER(one_process_in_a_folder),
    };
    return cmocka_run_group_tests_name("cli_resume", tests, group_setup, group_teardown);
}
