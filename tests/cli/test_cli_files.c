/* Checkpoints that are damaged or of another model, disks that are full, losses that are no number,
 * and runs that are started over: what was good before stays good. */
#include "cli/program.h"

static const char picture[] = "model: {name: mlp, image: 8, width: 16, depth: 1, classes: 4}\n"
                              "data: {name: synthetic, samples: 80}\n"
                              "train: {batch: 8, steps: 20, eval_every: 10, save_every: 10,\n"
                              "  log_every: 1, threads: 1}\n";
#define LAST "out/checkpoints/step-00000020.safetensors"
#define BEFORE "out/checkpoints/step-00000010.safetensors"

static const char *trained(void **state)
{
    write_text(tmpdir_path(state, "r.yaml"), picture);
    must(*state, "train r.yaml --out out");
    return *state;
}

/* ---- checkpoints ---- */

static void refused_everywhere(const char *folder, const char *why)
{
    refuses(folder, 1, "eval out", LAST " is damaged", why, BEFORE, "--checkpoint");
    refuses(folder, 1, "train out --resume", LAST " is damaged", why, BEFORE, "--resume --from");
    refuses(folder, 1, "inspect " LAST, LAST " is damaged", why);
}

static void damaged_checkpoint(void **state)
{
    const char *folder = trained(state), *last = tmpdir_path(state, LAST);
    size_t n;
    char *bytes = read_whole(last, &n);
    bytes[n - 5] ^= 0x10;
    write_whole(last, bytes, n);
    refused_everywhere(folder, "checksum");
    bytes[n - 5] ^= 0x10;
    write_whole(last, bytes, n - 1);
    refused_everywhere(folder, "");
    write_whole(last, bytes, 40);
    refused_everywhere(folder, "");
    write_whole(last, bytes, 0);
    refused_everywhere(folder, "");
    char *step = strstr(bytes + 8, "\"step\":\"20\"");
    assert_non_null(step);
    step[8] = '1';
    write_whole(last, bytes, n);
    refused_everywhere(folder, "step 10");
    step[8] = '2';
    /* Going back, as the message says, ends where it would have. */
    must(folder, "eval out --checkpoint " BEFORE);
    must(folder, "train out --resume --from " BEFORE);
    char *again = read_whole(last, NULL);
    assert_memory_equal(again, bytes, n);
    free(again);
    unlink(tmpdir_path(state, BEFORE));
    write_whole(last, bytes, n / 2);
    refuses(folder, 1, "train out --resume", LAST " is damaged", "only checkpoint");
    free(bytes);
}

static void checkpoint_of_another_model(void **state)
{
    const char *f = trained(state);
    refuses(f, 1, "train out --resume --set model.width=17", LAST,
            "was made with model.width 16, but this run has 17: resume with --set model.width=16");
    refuses(f, 1, "eval out --set model.width=17", LAST, "fc1.weight",
            "f32[16,64], but f32[17,64] in the model", "f32[17,64] in the model");
    refuses(f, 1, "eval out --set model.depth=2", LAST, "has no tensor fc2");
    refuses(f, 1, "train out --resume --set train.optimizer=sgd", LAST, "optimizer adamw",
            "this run has sgd");
    refuses(f, 1, "train out --resume --set model.name=lenet5 --set model.image=28",
            "'width' of out/run.yaml:", "is not a size of model lenet5");
    refuses(f, 1, "train out --resume --set train.seed=2", "train.seed 1", "this run has 2",
            "--set train.seed=1");
    refuses(f, 1, "train out --resume --set train.batch=16", "train.batch 8", "this run has 16");
    refuses(
        f, 1,
        "train out --resume -s model.width=17 -s model.depth=2 -s train.optimizer=sgd "
        "-s data.samples=50",
        "was made with train.optimizer adamw, model.width 16, model.depth 1, but this run has sgd, "
        "17, 2: resume with --set train.optimizer=adamw --set model.width=16 --set "
        "model.depth=1 --set data.samples=",
        "schedules, steps and meshes may change", "--init FILE starts over");
    refuses(f, 1, "train out --resume -s train.ema=0.9 -s train.delay=true",
            "was made with train.ema 0, train.delay false, but this run has 0.9, true",
            "resume with --set train.ema=0 --set train.delay=false", "--init FILE starts over");
    write_text(tmpdir_path(state, "g.yaml"), "model: {name: gpt, layers: 1, width: 16, heads: 2, "
                                             "seq: 12, vocab: 32}\ndata: {name: synthetic}\n");
    refuses(f, 1, "train g.yaml --out none --resume --from " LAST,
            LAST " is a checkpoint of model mlp, but this run has model gpt");
    must(f, "train r.yaml --out averaged -s train.ema=0.9");
    refuses(f, 1, "train averaged --resume -s train.ema=0", "resume with --set train.ema=0.9 (");
    refuses(f, 1, "eval out --checkpoint r.yaml", "r.yaml is damaged");
    refuses(f, 1, "eval out --checkpoint nosuch.safetensors", "nosuch.safetensors: No such file");
    outcome o = succeeds(f, "train out --resume -s train.steps=22 -s train.precision=bf16");
    assert_non_null(strstr(o.err, "now train.steps 22 (was "));
    assert_non_null(strstr(o.err, ", train.precision bf16 (was f32)\n"));
    outcome_free(&o);
    must(f, "eval out");
}

/* ---- full disks ---- */

/* A limit on the size of files fails a write as a full disk does, and needs no rights. */
static void full_disk(void **state)
{
    const char *folder = *state;
    write_text(tmpdir_path(state, "r.yaml"), picture);
    must(folder, "train r.yaml --out whole");
    must(folder, "train r.yaml --out out --set train.steps=10");
    struct stat st;
    assert_int_equal(stat(tmpdir_path(state, BEFORE), &st), 0);
    size_t n;
    char *before = read_whole(tmpdir_path(state, BEFORE), &n);
    how full = {.file_bytes = (rlim_t)st.st_size - 1};
    const char *wanted[] = {LAST, "writing", "File too large", NULL};
    refuses_how(folder, &full, 1, "train r.yaml --out out --resume", wanted);
    assert_int_equal(tmpdir_count(tmpdir_path(state, "out/checkpoints")), 1); /* and no leftovers */
    char *after = read_whole(tmpdir_path(state, BEFORE), NULL);
    assert_memory_equal(after, before, n);
    free(before);
    free(after);
    must(folder, "train r.yaml --out out --resume"); /* once there is room */
    assert_same_file(tmpdir_path(state, "whole/metrics.jsonl"),
                     tmpdir_path(state, "out/metrics.jsonl"));
    assert_same_file(tmpdir_path(state, LAST),
                     tmpdir_path(state, "whole/checkpoints/step-00000020.safetensors"));
}

static void full_disk_before_any_checkpoint(void **state)
{
    write_text(tmpdir_path(state, "r.yaml"), picture);
    const char *wanted[] = {".jsonl: writing", "File too large", NULL};
    refuses_how(*state, &(how){.file_bytes = 2000}, 1,
                "train r.yaml --out out --set train.steps=90 --set train.save_every=100", wanted);
}

/* ---- losses ---- */

static void loss_is_no_number(void **state)
{
    const char *folder = *state;
    write_text(tmpdir_path(state, "r.yaml"), picture);
    refuses(folder, 1, "train r.yaml --out out --set train.optimizer=sgd --set train.lr=1e6",
            "not a finite number: step ", "the first op that went wrong: ", "(matmul) gives",
            "train.lr (the rate was 1e+06)", "train.clip");
    refuses(folder, 1, /* where many ops are made of one, the one that was declared */
            "train r.yaml --out exact --exact --set train.optimizer=sgd --set train.lr=1e6",
            "the first op that went wrong: cast (cast) gives",
            ", made for scale, which gives loss;");
    char *text = read_whole(tmpdir_path(state, "out/metrics.jsonl"), NULL), *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        json_decref(json_of(line)); /* no NaN stands there */
    free(text);
}

/* ---- starting over ---- */

static int event_files(const char *folder)
{
    DIR *d = opendir(folder);
    assert_non_null(d);
    int n = 0;
    for (struct dirent *e; (e = readdir(d));) n += !strncmp(e->d_name, "events.", 7);
    closedir(d);
    return n;
}

static void overwriting(void **state)
{
    const char *folder = trained(state);
    /* What is refused leaves the old run as it was. */
    refuses(folder, 1, "train r.yaml --out out --overwrite --set data.name=synthetik", "synthetik");
    refuses(folder, 1,
            "train r.yaml --out out --overwrite --set data.samples=0 --set data.name=tokens",
            "dataset tokens", "no such file");
    refuses(folder, 1, "train r.yaml --out out --overwrite --set model.width=0", "width 0");
    assert_true(file_exists(tmpdir_path(state, BEFORE)));
    must(folder, "eval out");
    must(folder, "train r.yaml --out out --overwrite --set train.steps=15 --set train.seed=3");
    assert_false(file_exists(tmpdir_path(state, LAST)));
    assert_int_equal(tmpdir_count(tmpdir_path(state, "out/checkpoints")), 2);
    assert_int_equal(event_files(tmpdir_path(state, "out")), 1);
    must(folder, "train r.yaml --out fresh --set train.steps=15 --set train.seed=3");
    assert_same_file(tmpdir_path(state, "fresh/metrics.jsonl"),
                     tmpdir_path(state, "out/metrics.jsonl"));
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, tmpdir_setup, tmpdir_teardown)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(damaged_checkpoint), IN_FOLDER(checkpoint_of_another_model),
        IN_FOLDER(full_disk),          IN_FOLDER(full_disk_before_any_checkpoint),
        IN_FOLDER(loss_is_no_number),  IN_FOLDER(overwriting),
    };
    return cmocka_run_group_tests_name("cli_files", tests, NULL, NULL);
}
