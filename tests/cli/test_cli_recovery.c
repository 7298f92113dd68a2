/* test_cli_recovery: ranks that die, or whose hosts go, are started again by themselves, and come
 * to the bits of a run that nothing befell; what a start cannot cure is not started again. */
#include "cli/launch.h"
#include "mesh/mesh.h"
#include "ranks.h"
#include "train/goodput.h"

static const char run_file[] =
    "model: {name: mlp, image: 16, width: 128, depth: 2, classes: 5}\n"
    "data: {name: synthetic, samples: 200}\n"
    "train: {batch: 36, steps: 200, optimizer: adam, lr: 1e-3, log_every: 1, save_every: 50,\n"
    "  eval_every: 100, threads: 1, buddy: 1}\n"
    "parallel: {exact: true, timeout: 60}\n"; /* a busy machine is no stall */

/* Has it started mpiexec? */
static bool launches(pid_t launcher)
{
    bool any = false;
    DIR *d = opendir("/proc");
    for (struct dirent *e; (e = readdir(d));) {
        char comm[32];
        int pid = atoi(e->d_name);
        any |= pid && parent_of(pid, comm) == launcher;
    }
    closedir(d);
    return any;
}

static pid_t start(void *const *state, const char *out, const char *const *more)
{
    const char *words[24] = {"train", "r.yaml", "--out", out};
    int n = 4;
    for (; *more; more++) words[n++] = *more;
    return program_start(*state, NULL, words);
}
#define START(out, ...) start(state, out, (const char *const[]){__VA_ARGS__, NULL})

static void same_run(void *const *state, const char *a, const char *b)
{
    static const char *const files[] = {"metrics.jsonl", "checkpoints/step-00000200.safetensors"};
    for (int i = 0; i < 2; i++) {
        char one[200], two[200];
        snprintf(one, sizeof one, "%s/%s", a, files[i]);
        snprintf(two, sizeof two, "%s/%s", b, files[i]);
        char *first = strdup(tmpdir_path(state, one));
        assert_same_file(first, tmpdir_path(state, two));
        free(first);
    }
}

/* Of one that has 200 lines: a rank is sent a signal amid its steps. A run that was quicker than
 * the signal is tried again. */
static outcome hurt(void *const *state, const char *out, int k, int number,
                    const char *const *words)
{
    char lines[200], command[700];
    snprintf(lines, sizeof lines, "%s/metrics.jsonl", out);
    for (int i = 0; i < 20; i++) {
        pid_t child = start(state, out, words);
        await_lines(child, tmpdir_path(state, lines), 60);
        pid_t rank = rank_of(child, k);
        if (rank) kill(rank, number);
        bool amid = rank && lines_in(tmpdir_path(state, lines)) < 180;
        outcome o = program_wait(*state, child);
        if (o.status) fail_msg("status %d: %s", o.status, o.err);
        if (amid) return o;
        outcome_free(&o);
        snprintf(command, sizeof command, "rm -rf %s", tmpdir_path(state, out));
        assert_int_equal(system(command), 0);
    }
    fail_msg("the signal always came too late");
    return (outcome){0};
}
#define HURT(out, k, number, ...)                                                                  \
    hurt(state, out, k, number, (const char *const[]){__VA_ARGS__, NULL})

/* Replicas that part: each goes on as it was, the outer optimizer too. */
static void killed_replica(void **state)
{
    write_text(tmpdir_path(state, "r.yaml"), run_file);
    static const char *const how[] = {"diloco", "gossip"};
    for (int i = 0; i < 2; i++) {
        char text[256], whole[32], broken[32];
        snprintf(whole, sizeof whole, "whole-%s", how[i]);
        snprintf(broken, sizeof broken, "broken-%s", how[i]);
        snprintf(text, sizeof text, "parallel.consistency=%s", how[i]);
        const char *words[] = {"-n",    "2",
                               "--set", "parallel.replicas=2",
                               "--set", text,
                               "--set", "parallel.exact=false",
                               "--set", "parallel.every=4",
                               NULL};
        outcome o = program_wait(*state, start(state, whole, words));
        if (o.status) fail_msg("status %d: %s", o.status, o.err);
        outcome_free(&o);
        o = hurt(state, broken, 1, SIGKILL, words);
        assert_int_equal(count_of(o.err, ": starting again ("), 1);
        outcome_free(&o);
        same_run(state, whole, broken);
    }
}

/* Fewer ranks, and all again, as the list of hosts says: if that is seen before the run is over. */
static void moved(void *const *state)
{
    int all = 0;
    setenv("OMPI_MCA_orte_top_session_dir", tmpdir_path(state, "ompi"), 1); /* comm/job.h */
    for (int i = 0; i < 5 && !all; i++) {
        char out[32], path[64];
        snprintf(out, sizeof out, "moved%d", i);
        snprintf(path, sizeof path, "%s/metrics.jsonl", out);
        write_text(tmpdir_path(state, "hosts"), "# this one\nlocalhost slots=1\n");
        pid_t child = START(out, "-n", "2", "--hosts", "hosts", "--slow", "0:8");
        await_lines(child, tmpdir_path(state, path), 40);
        write_text(tmpdir_path(state, "hosts"), "localhost slots=2\n");
        outcome o = program_wait(*state, child);
        if (o.status) fail_msg("status %d: %s", o.status, o.err);
        assert_non_null(strstr(o.err, "1 rank of 2, on localhost:1"));
        outcome_free(&o);
        snprintf(path, sizeof path, "%s/recovery.jsonl", out);
        char *notes = read_whole(tmpdir_path(state, path), NULL);
        assert_int_equal(count_of(notes, "\"1 rank\""), 1);
        all = count_of(notes, "2 ranks (data=2)");
        if (all > 1 || (!all && i == 4)) fail_msg("%s", notes);
        free(notes);
        same_run(state, "whole", out);
    }
    unsetenv("OMPI_MCA_orte_top_session_dir");
}

static void killed(void **state)
{
    write_text(tmpdir_path(state, "r.yaml"), run_file);
    must(*state, "train r.yaml -n 2 --out whole");
    outcome o = HURT("hurt", 1, SIGKILL, "-n", "2", "--set", "train.save_every=200");
    assert_int_equal(count_of(o.err, ": starting again ("), 1);
    assert_non_null(strstr(o.err, "goodput "));
    outcome_free(&o);
    char *notes = read_whole(tmpdir_path(state, "hurt/recovery.jsonl"), NULL);
    assert_int_equal(count_of(notes, "from memory"), 1);
    free(notes);
    same_run(state, "whole", "hurt");
    /* One that is stopped is not waited for. */
    o = HURT("halted", 0, SIGSTOP, "-n", "2", "--set", "parallel.timeout=600");
    assert_int_equal(count_of(o.err, ": starting again ("), 1);
    outcome_free(&o);
    notes = read_whole(tmpdir_path(state, "halted/recovery.jsonl"), NULL);
    /* before it was, and of how the start ended; the launching process may come first */
    bool by_rank = count_of(notes, "was stopped by a signal, and rank") == 2;
    if ((!by_rank && !strstr(notes, "was stopped by a signal, and is ended")) ||
        strstr(notes, "signal 9"))
        fail_msg("%s", notes);
    free(notes);
    same_run(state, "whole", "halted");
    /* Where nothing was kept it begins again. */
    o = HURT("anew", 0, SIGKILL, "-n", "2", "--set", "train.buddy=0", "--set",
             "train.save_every=200");
    outcome_free(&o);
    notes = read_whole(tmpdir_path(state, "anew/recovery.jsonl"), NULL);
    assert_int_equal(count_of(notes, "from where the run began"), 1);
    free(notes);
    same_run(state, "whole", "anew");
    moved(state);
}

#define ENDLESS "train.steps=9000000"

/* Where memory has nothing either, a stop that meets the loss says what is saved; one that comes
 * when all is started again saves. */
static void unsaved(void *const *state)
{
    for (int i = 0; i < 20; i++) {
        char out[32], path[64];
        snprintf(out, sizeof out, "lost%d", i);
        snprintf(path, sizeof path, "%s/metrics.jsonl", out);
        pid_t child = START(out, "-n", "2", "--set", ENDLESS, "--set", "train.buddy=0");
        await_lines(child, tmpdir_path(state, path), 20);
        signal_rank(child, 1, SIGKILL);
        kill(child, SIGTERM);
        outcome o = program_wait(*state, child);
        bool saved = o.status == 75 && strstr(o.err, ": starting again (1)");
        if (!saved && (o.status == 75 || !strstr(o.err, "before all ranks had stopped: ")))
            fail_msg("status %d: %s", o.status, o.err);
        outcome_free(&o);
        if (!saved) return;
    }
    fail_msg("the signal always came too late");
}

/* The disk has step 50, memory has later ones: a stop that meets the loss saves these. Ranks that
 * do not listen yet do not die of being asked. */
static void stopped(void **state)
{
    char path[200];
    const char *first = "stall/checkpoints/step-00000050.safetensors";
    write_text(tmpdir_path(state, "r.yaml"), run_file);
    pid_t child = START("out", "-n", "2", "--set", ENDLESS, "--json");
    await_lines(child, tmpdir_path(state, "out/metrics.jsonl"), 60);
    signal_rank(child, 1, SIGKILL);
    kill(child, SIGTERM);
    outcome o = program_wait(*state, child);
    if (o.status != 75) fail_msg("status %d: %s", o.status, o.err);
    json_t *j = json_of(o.out);
    int step = (int)json_num(j, "steps"), restarts = (int)json_num(j, "restarts");
    json_decref(j);
    outcome_free(&o);
    assert_true(step >= 59 && restarts == 1);
    snprintf(path, sizeof path, "out/checkpoints/step-%08d.safetensors", step);
    assert_true(file_exists(tmpdir_path(state, path)));
    char *notes = read_whole(tmpdir_path(state, "out/recovery.jsonl"), NULL);
    assert_true(count_of(notes, "\"lost\"") <= 1 && count_of(notes, "\"ended\"") == 2);
    assert_int_equal(count_of(notes, "\"stopped, and saved\""), 1);
    free(notes);
    /* a stalled rank is not waited for; the note has the step that was saved, logged or not */
    child = START("stall", "-n", "2", "--set", ENDLESS, "--set", "train.log_every=999", "--set",
                  "parallel.timeout=600", "--set", "train.eval_every=9999", "--json");
    while (!program_over(child) && !file_exists(tmpdir_path(state, first))) sleep_ms(5);
    sleep_ms(300); /* a later state is in memory by then */
    signal_rank(child, 1, SIGSTOP);
    kill(child, SIGTERM);
    o = program_wait(*state, child);
    if (o.status != 75) fail_msg("status %d: %s", o.status, o.err);
    j = json_of(o.out);
    snprintf(path, sizeof path, "{\"step\":%d,", (int)json_num(j, "steps"));
    json_decref(j);
    notes = read_whole(tmpdir_path(state, "stall/recovery.jsonl"), NULL);
    if (!strstr(notes, path)) fail_msg("without %s:\n%s", path, notes);
    free(notes);
    outcome_free(&o);
    /* nor does it matter whether the disk has as much */
    child = START("even", "-n", "2", "--set", ENDLESS, "--set", "train.save_every=1");
    await_lines(child, tmpdir_path(state, "even/metrics.jsonl"), 20);
    signal_rank(child, 1, SIGKILL);
    kill(child, SIGTERM);
    o = program_wait(*state, child);
    if (o.status != 75) fail_msg("status %d: %s", o.status, o.err);
    outcome_free(&o);
    unsaved(state);
    child = START("early", "-n", "2", "--set", ENDLESS);
    while (!program_over(child) && !launches(child)) sleep_ms(1);
    kill(child, SIGTERM);
    o = program_wait(*state, child);
    if (o.status != 75) fail_msg("status %d: %s", o.status, o.err);
    outcome_free(&o);
    /* nor is it lost where mpiexec is asked, or a rank itself, which may die of it */
    write_text(tmpdir_path(state, "asked"), "#!/bin/sh\nkill -TERM $$\n");
    assert_int_equal(chmod(tmpdir_path(state, "asked"), 0755), 0);
    setenv("LOOPLINE_MPIEXEC", "./asked", 1);
    o = program_run(*state, NULL, "train r.yaml -n 2 --out asked-run --restarts 2");
    unsetenv("LOOPLINE_MPIEXEC");
    if (o.status != 128 + SIGTERM ||
        !strstr(o.err, "before all ranks had stopped: nothing is saved"))
        fail_msg("status %d: %s", o.status, o.err);
    outcome_free(&o);
    child = START("rank", "-n", "2", "--set", ENDLESS);
    signal_rank(child, 1, SIGTERM);
    o = program_wait(*state, child);
    if ((o.status != 75 && o.status != 128 + SIGTERM && o.status != SIGTERM) ||
        strstr(o.err, "starting again"))
        fail_msg("status %d: %s", o.status, o.err);
    outcome_free(&o);
    o = program_run(*state, NULL, "train r.yaml --restarts 3");
    assert_int_equal(o.status, 1);
    assert_non_null(strstr(o.err, "--restarts needs -n"));
    outcome_free(&o);
}

/* Of all starts: what is useful and what is lost is all of the time. */
static void all_counted(const json_t *j)
{
    const json_t *lost = json_object_get(j, "lost_s");
    double sum = json_num(j, "useful_s"), wall = json_num(j, "wall_s");
    for (int i = 0; i < LL_N_LOSS; i++) sum += json_num(lost, ll_loss_name(i));
    if (sum < 0.7 * wall || sum > 1.01 * wall) fail_msg("%g s of %g", sum, wall);
}

/* One that is stopped before ranks watch each other, and one that is lost when all is done. */
static void early_and_late(void **state)
{
    char late[500];
    snprintf(late, sizeof late, "#!/bin/sh\n%s \"$@\"\nkill -9 $$\n", ll_cli_mpiexec());
    write_text(tmpdir_path(state, "r.yaml"), run_file);
    pid_t child = START("early", "-n", "3", "--json");
    signal_rank(child, 1, SIGSTOP);
    outcome o = program_wait(*state, child);
    if (o.status) fail_msg("status %d: %s", o.status, o.err);
    const char *why = strstr(o.err, "was stopped by a signal, and "); /* by ranks, if they watch */
    if (!why || !strstr(why, ": starting again (1)") || strstr(o.err, "No such file"))
        fail_msg("%s", o.err);
    json_t *j = json_of(o.out);
    assert_true(json_num(json_object_get(j, "lost_s"), "restarts") > 0.1);
    all_counted(j);
    json_decref(j);
    outcome_free(&o);
    char *notes = read_whole(tmpdir_path(state, "early/recovery.jsonl"), NULL);
    assert_int_equal(count_of(notes, "\"ended\""), 2);
    free(notes);
    write_text(tmpdir_path(state, "late"), late);
    assert_int_equal(chmod(tmpdir_path(state, "late"), 0755), 0);
    setenv("LOOPLINE_MPIEXEC", "./late", 1);
    o = program_run(*state, NULL, "train r.yaml -n 2 --out late-run --json");
    unsetenv("LOOPLINE_MPIEXEC");
    if (o.status || strstr(o.err, "starting again")) fail_msg("status %d: %s", o.status, o.err);
    j = json_of(o.out); /* once */
    assert_true(json_num(j, "steps") == 200);
    json_decref(j);
    outcome_free(&o);
}

static char state_of(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
    char *text = read_whole(path, NULL), *end = text ? strrchr(text, ')') : NULL;
    char state = end ? end[2] : 0; /* it is gone */
    free(text);
    return state;
}

/* Ctrl-Z stops ranks too, and is no loss. */
static void paused(void **state)
{
    write_text(tmpdir_path(state, "r.yaml"), run_file);
    pid_t child = START("out", "-n", "2", "--set", ENDLESS, "--json");
    const char *lines = tmpdir_path(state, "out/metrics.jsonl");
    await_lines(child, lines, 20);
    pid_t all[] = {child, await_rank(child, 0), await_rank(child, 1)};
    kill(child, SIGTSTP);
    for (int k = 2; k >= 0; k--) /* itself last */
        while (state_of(all[k]) && state_of(all[k]) != 'T' && state_of(all[k]) != 'Z') sleep_ms(5);
    for (int k = 0; k < 3; k++) assert_int_equal(state_of(all[k]), 'T');
    int before = lines_in(lines);
    sleep_ms(500);
    assert_int_equal(lines_in(lines), before);
    kill(child, SIGCONT);
    await_lines(child, lines, before + 50);
    kill(child, SIGTERM);
    outcome o = program_wait(*state, child);
    if (o.status != 75) fail_msg("status %d: %s", o.status, o.err);
    json_t *j = json_of(o.out);
    assert_true(json_num(j, "steps") > before && json_num(j, "restarts") == 0);
    assert_true(json_num(json_object_get(j, "lost_s"), "suspended") >= 0.49);
    all_counted(j);
    json_decref(j);
    outcome_free(&o);
}

/* A mapped file that is cut short is an error that names it, and nothing is started again. */
static void cut_short(void **state)
{
    enum { BYTES = 1 << 20 };
    char *text = (char *)malloc(BYTES + 1);
    memset(text, 'a', BYTES);
    text[BYTES] = '\0';
    write_text(tmpdir_path(state, "r.yaml"),
               "model: {name: gpt, layers: 1, width: 16, heads: 2, seq: 16, vocab: 256}\n"
               "data: {format: text, path: t.txt}\n"
               "train: {batch: 8, steps: 1000000, optimizer: sgd, lr: 1e-3, log_every: 1,\n"
               "  save_every: 1000000, eval_every: 1000000, threads: 1}\n");
    for (int ranks = 1; ranks <= 2; ranks++) {
        write_text(tmpdir_path(state, "t.txt"), text);
        pid_t child = START(ranks == 1 ? "one" : "two", "-n", ranks == 1 ? "1" : "2");
        const char *lines = ranks == 1 ? "one/metrics.jsonl" : "two/metrics.jsonl";
        await_lines(child, tmpdir_path(state, lines), 5);
        /* most of it; and what reads as zeros, in its last page */
        assert_int_equal(truncate(tmpdir_path(state, "t.txt"), ranks == 1 ? 8192 : BYTES - 10), 0);
        outcome o = program_wait(*state, child);
        if (o.status != 1 || !strstr(o.err, "t.txt was truncated while in use") ||
            strstr(o.err, "starting again"))
            fail_msg("status %d: %s", o.status, o.err);
        outcome_free(&o);
    }
    free(text);
}

/* Whoever is told that all is over finds no rank at work, and no files of mpiexec's. */
static void mpiexec_killed(void **state)
{
    char comm[32], folder[64];
    write_text(tmpdir_path(state, "r.yaml"), run_file);
    pid_t child = START("alone", "-n", "2", "--restarts", "0", "--set", "train.steps=20000");
    await_lines(child, tmpdir_path(state, "alone/metrics.jsonl"), 20);
    pid_t ranks[] = {await_rank(child, 0), await_rank(child, 1)}, mpiexec = ranks[0];
    assert_true(ranks[0] && ranks[1]);
    for (pid_t up = mpiexec; up && up != child;) {
        mpiexec = up;
        up = parent_of(mpiexec, comm);
    }
    kill(mpiexec, SIGKILL);
    outcome o = program_wait(*state, child);
    if (o.status != 128 + SIGKILL) fail_msg("status %d: %s", o.status, o.err);
    outcome_free(&o);
    for (int i = 0, looks = 0; i < 2; i++) /* the kernel may still be at their end */
        for (; kill(ranks[i], 0) == 0 && state_of(ranks[i]) != 'Z'; sleep_ms(10))
            assert_true(looks++ < 300);
    snprintf(folder, sizeof folder, "/tmp/ompi.loopline.%ld", (long)mpiexec);
    assert_false(file_exists(folder));
}

static void what_no_start_cures(void **state)
{
    static const char kills[] = "#!/bin/sh\necho x >> starts\nkill -9 $$\n";
    write_text(tmpdir_path(state, "r.yaml"), run_file);
    write_text(tmpdir_path(state, "kills"), kills);
    assert_int_equal(chmod(tmpdir_path(state, "kills"), 0755), 0);
    setenv("LOOPLINE_MPIEXEC", "./kills", 1);
    outcome o = program_run(*state, NULL, "train r.yaml -n 2 --out loop --restarts 2");
    unsetenv("LOOPLINE_MPIEXEC");
    assert_int_equal(o.status, 128 + SIGKILL);
    assert_non_null(strstr(o.err, "not starting again"));
    outcome_free(&o);
    char *starts = read_whole(tmpdir_path(state, "starts"), NULL);
    assert_int_equal(count_of(starts, "x"), 3);
    free(starts);
    o = program_run(*state, NULL,
                    "train r.yaml -n 2 --out nan --set train.lr=1e6 --set train.optimizer=sgd");
    assert_int_equal(o.status, 1);
    assert_int_equal(count_of(o.err, "starting again"), 0);
    /* What memory has and the disk has not stays, and the last line says how it goes. */
    const char *kept = strstr(o.err, "rm /dev/shm/loopline-");
    if (kept) assert_int_equal(system(kept), 0);
    outcome_free(&o);
}

/* A start after one that never began does what that one was to do: it replaces a run, or goes on
 * from the checkpoint that was named, not from the newest one that lies there. */
static void never_began(void **state)
{
    static const char *const second[] = {
        "train r.yaml --plain --out run --overwrite --set train.steps=8",
        "train run --plain --resume --from run/checkpoints/step-00000002.safetensors"};
    write_text(tmpdir_path(state, "r.yaml"), run_file);
    for (int i = 0; i < 2; i++) {
        char command[300];
        outcome o = program_run(*state, NULL,
                                "train r.yaml --plain --out run --overwrite --set train.steps=6 "
                                "--set train.save_every=2 --set train.keep=9");
        assert_int_equal(o.status, 0);
        outcome_free(&o);
        snprintf(command, sizeof command, "%s --job 71f61e3589d7227f;1;%ld.000;;run", second[i],
                 (long)time(NULL));
        o = program_run(*state, NULL, command);
        assert_int_equal(o.status, 0);
        assert_int_equal(strstr(o.err, "resumed after") != NULL, i);
        outcome_free(&o);
        char *notes = read_whole(tmpdir_path(state, "run/recovery.jsonl"), NULL);
        assert_int_equal(
            count_of(notes, i ? "{\"step\":2,\"job\":\"71f" : "{\"step\":0,\"job\":\"71f"), 1);
        free(notes);
    }
}

/* Steps with too large a gradient are skipped or rolled back, and a run that stopped in between
 * does the same ones. */
static void spikes(void **state)
{
    static const char *const actions[] = {"skip", "rollback"};
    const char *few = "--set train.steps=60 --set train.save_every=25 --set train.eval_every=30 "
                      "--set train.spike=1.02 --set train.buddy=0 --set train.log_every=60";
    write_text(tmpdir_path(state, "r.yaml"), run_file);
    for (int i = 0; i < 2; i++) {
        outcome o = succeeds(*state, "train r.yaml --json --out w%d %s --set train.spike_action=%s",
                             i, few, actions[i]);
        json_t *j = json_of(o.out);
        double skipped = json_num(j, "skipped"), back = json_num(j, "rolled_back");
        json_decref(j);
        outcome_free(&o);
        assert_true(skipped > 0 && skipped < 40 && (i == 1) == (back > 0));
        must(*state, "train r.yaml --out p%d %s --set train.spike_action=%s --set train.steps=30",
             i, few, actions[i]);
        must(*state, "train r.yaml --out p%d %s --set train.spike_action=%s --resume", i, few,
             actions[i]);
        char a[64], b[64];
        snprintf(a, sizeof a, "w%d/checkpoints/step-00000060.safetensors", i);
        snprintf(b, sizeof b, "p%d/checkpoints/step-00000060.safetensors", i);
        char *first = strdup(tmpdir_path(state, a));
        assert_same_file(first, tmpdir_path(state, b));
        free(first);
    }
}

static void nearest_meshes(void **state)
{
    (void)state;
    static const struct {
        const char *asked;
        int most;
        const char *near;
    } cases[] = {{"data=4", 3, "data=3"},
                 {"data=4", 9, "data=4"},
                 {"data=2,tensor=2", 3, "data=1,tensor=2"},
                 {"data=4,tensor=2", 7, "data=3,tensor=2"},
                 {"pipe=4", 3, "pipe=3"},
                 {"tensor=3,data=2", 5, "tensor=2,data=2"},
                 {"tensor=4", 1, "tensor=1"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ll_mesh m, near;
        char text[LL_MESH_TEXT];
        assert_int_equal(ll_mesh_parse(cases[i].asked, &m), LL_OK);
        ll_mesh_nearest(&m, cases[i].most, &near);
        assert_string_equal(ll_mesh_text(&near, text), cases[i].near);
    }
}

/* 10 steps, of which one line tells; two more until it ended; the third was not finished. */
static void time_over_starts(void **state)
{
    ll_goodput g;
    const char *path = tmpdir_path(state, "timing.jsonl");
    write_text(path, "{\"step\":10,\"wall_s\":12,\"useful_s\":10,\"start_s\":2}\n");
    const ll_past past = {.step = 0, .began = 2, .ended = 15};
    assert_int_equal(ll_goodput_read(path, 12, &past, 16.5, &g), LL_OK);
    assert_true(g.useful == 12 && g.lost[LL_LOSS_START] == 2 && g.lost[LL_LOSS_REDONE] == 0);
    assert_true(g.lost[LL_LOSS_RESTARTS] == 2.5);
    const ll_past stalled = {.step = 0, .began = 2, .ended = 75};
    assert_int_equal(ll_goodput_read(path, 12, &stalled, 76.5, &g), LL_OK);
    assert_true(g.useful == 12 && g.lost[LL_LOSS_RESTARTS] == 62.5);
    assert_int_equal(ll_goodput_read(path, 0, &past, 16.5, &g), LL_OK); /* all of it again */
    assert_true(g.useful == 0 && g.lost[LL_LOSS_REDONE] == 10);
    assert_true(g.lost[LL_LOSS_RESTARTS] == 4.5);
    const ll_past behind = {
        .step = 0, .began = 2, .ended = 16, .reached = 13}; /* of 11 to 13, too */
    assert_int_equal(ll_goodput_read(path, 0, &behind, 16.5, &g), LL_OK);
    assert_true(g.useful == 0 && g.lost[LL_LOSS_REDONE] == 13 && g.lost[LL_LOSS_RESTARTS] == 1.5);
    const ll_past silent = {.step = 10, .began = 20, .ended = 27, .reached = 15};
    assert_int_equal(ll_goodput_read(path, 12, &silent, 28, &g), LL_OK); /* no line of 13 to 15 */
    assert_true(g.useful == 12 && g.lost[LL_LOSS_REDONE] == 3 && g.lost[LL_LOSS_RESTARTS] == 11);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, tmpdir_setup, tmpdir_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nearest_meshes),
                                       IN_FOLDER(time_over_starts),
                                       IN_FOLDER(never_began),
                                       IN_FOLDER(killed),
                                       IN_FOLDER(killed_replica),
                                       IN_FOLDER(stopped),
                                       IN_FOLDER(early_and_late),
                                       IN_FOLDER(spikes),
                                       IN_FOLDER(cut_short),
                                       IN_FOLDER(what_no_start_cures),
                                       IN_FOLDER(mpiexec_killed),
                                       IN_FOLDER(paused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
