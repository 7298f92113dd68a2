/* test_cli_recovery: ranks that die, or whose hosts go, are started again by themselves, and come
 * to the bits of a run that nothing befell; what a start cannot cure is not started again. */
#include "cli/launch.h"
#include "mesh/mesh.h"
#include "program.h"
#include "train/goodput.h"

#include <dirent.h>

static const char run_file[] =
    "model: {name: mlp, image: 16, width: 128, depth: 2, classes: 5}\n"
    "data: {name: synthetic, samples: 200}\n"
    "train: {batch: 36, steps: 200, optimizer: adam, lr: 1e-3, log_every: 1, save_every: 50,\n"
    "  eval_every: 100, threads: 1, buddy: 1}\n"
    "parallel: {exact: true, timeout: 30}\n"; /* a busy machine is no stall */

static int parent_of(int pid, char comm[32])
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "r");
    int parent = 0;
    if (!f || fscanf(f, "%*d (%31[^)]) %*c %d", comm, &parent) != 2) parent = 0;
    if (f) fclose(f);
    return parent;
}

/* A rank of the launching process, the k-th that is found, around; 0: there is none. */
static pid_t rank_of(pid_t launcher, int k)
{
    pid_t found[64];
    int n = 0;
    DIR *d = opendir("/proc");
    for (struct dirent *e; (e = readdir(d));) {
        char comm[32] = "", other[32];
        int pid = atoi(e->d_name), up = pid ? parent_of(pid, comm) : 0;
        if (strcmp(comm, "loopline") || pid == launcher || n == 64) continue;
        while (up > 1 && up != launcher) up = parent_of(up, other);
        if (up == launcher) found[n++] = pid;
    }
    closedir(d);
    return n ? found[k % n] : 0;
}

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

static int count(const char *text, const char *what)
{
    int n = 0;
    for (const char *c = text; c && (c = strstr(c, what)); c++) n++;
    return n;
}

/* Waits until the run's file has so many lines. */
static void await_lines(void *const *state, const char *path, int n)
{
    for (int i = 0, lines = 0; i < 6000 && lines < n; i++) {
        char *text = read_whole(tmpdir_path(state, path), NULL);
        lines = count(text, "\n");
        free(text);
        sleep_ms(5);
    }
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

/* Replicas that part: each goes on as it was, the outer optimizer too. */
static void killed_replica(void **state)
{
    write_text(tmpdir_path(state, "r.yaml"), run_file);
    static const char *const how[] = {"diloco", "gossip"};
    for (int i = 0; i < 2; i++) {
        char text[256], whole[32], hurt[32], lines[64];
        snprintf(whole, sizeof whole, "whole-%s", how[i]);
        snprintf(hurt, sizeof hurt, "hurt-%s", how[i]);
        snprintf(lines, sizeof lines, "%s/metrics.jsonl", hurt);
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
        pid_t child = start(state, hurt, words);
        await_lines(state, lines, 60);
        kill(rank_of(child, 1), SIGKILL);
        o = program_wait(*state, child);
        if (o.status) fail_msg("status %d: %s", o.status, o.err);
        assert_int_equal(count(o.err, ": starting again ("), 1);
        outcome_free(&o);
        same_run(state, whole, hurt);
    }
}

static void killed(void **state)
{
    write_text(tmpdir_path(state, "r.yaml"), run_file);
    must(*state, "train r.yaml -n 2 --out whole");
    pid_t child = START("hurt", "-n", "2");
    await_lines(state, "hurt/metrics.jsonl", 60);
    kill(rank_of(child, 1), SIGKILL);
    outcome o = program_wait(*state, child);
    if (o.status) fail_msg("status %d: %s", o.status, o.err);
    assert_int_equal(count(o.err, ": starting again ("), 1);
    assert_non_null(strstr(o.err, "goodput "));
    outcome_free(&o);
    char *notes = read_whole(tmpdir_path(state, "hurt/recovery.jsonl"), NULL);
    assert_int_equal(count(notes, "from memory"), 1);
    free(notes);
    same_run(state, "whole", "hurt");
    /* One that is stopped is not waited for. */
    child = START("halted", "-n", "2", "--set", "parallel.timeout=600");
    await_lines(state, "halted/metrics.jsonl", 60);
    kill(rank_of(child, 0), SIGSTOP);
    o = program_wait(*state, child);
    if (o.status) fail_msg("status %d: %s", o.status, o.err);
    assert_int_equal(count(o.err, ": starting again ("), 1);
    outcome_free(&o);
    notes = read_whole(tmpdir_path(state, "halted/recovery.jsonl"), NULL);
    if (count(notes, "was stopped by a signal, and rank") != 2 || strstr(notes, "signal 9"))
        fail_msg("%s", notes); /* before it was, and of how the start ended */
    free(notes);
    same_run(state, "whole", "halted");
    /* Where nothing was kept it begins again. */
    child = START("anew", "-n", "2", "--set", "train.buddy=0", "--set", "train.save_every=200");
    await_lines(state, "anew/metrics.jsonl", 20);
    kill(rank_of(child, 0), SIGKILL);
    o = program_wait(*state, child);
    if (o.status) fail_msg("status %d: %s", o.status, o.err);
    outcome_free(&o);
    notes = read_whole(tmpdir_path(state, "anew/recovery.jsonl"), NULL);
    assert_int_equal(count(notes, "from where the run began"), 1);
    free(notes);
    same_run(state, "whole", "anew");
    /* Fewer ranks, and all again, as the list of hosts says. */
    write_text(tmpdir_path(state, "hosts"), "# this one\nlocalhost slots=1\n");
    child = START("moved", "-n", "2", "--hosts", "hosts", "--slow", "0:8"); /* not over by then */
    await_lines(state, "moved/metrics.jsonl", 40);
    write_text(tmpdir_path(state, "hosts"), "localhost slots=2\n");
    o = program_wait(*state, child);
    if (o.status) fail_msg("status %d: %s", o.status, o.err);
    assert_non_null(strstr(o.err, "1 rank of 2, on localhost:1"));
    outcome_free(&o);
    notes = read_whole(tmpdir_path(state, "moved/recovery.jsonl"), NULL);
    assert_int_equal(count(notes, "\"1 rank\""), 1);
    if (count(notes, "2 ranks (data=2)") != 1) fail_msg("%s", notes);
    free(notes);
    same_run(state, "whole", "moved");
}

/* The disk has step 50, memory has later ones: a stop that meets the loss saves these. Ranks that
 * do not listen yet do not die of being asked. */
static void stopped(void **state)
{
    char path[200];
    const char *first = "stall/checkpoints/step-00000050.safetensors";
    write_text(tmpdir_path(state, "r.yaml"), run_file);
    pid_t child = START("out", "-n", "2", "--set", "train.steps=20000", "--json");
    await_lines(state, "out/metrics.jsonl", 60);
    kill(rank_of(child, 1), SIGKILL);
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
    assert_true(count(notes, "\"lost\"") <= 1 && count(notes, "\"ended\"") == 2);
    assert_int_equal(count(notes, "\"stopped, and saved\""), 1);
    free(notes);
    /* a stalled rank is not waited for; the note has the step that was saved, logged or not */
    child = START("stall", "-n", "2", "--set", "train.steps=20000", "--set", "train.log_every=999",
                  "--set", "parallel.timeout=600", "--set", "train.eval_every=9999", "--json");
    for (int i = 0; i < 6000 && !file_exists(tmpdir_path(state, first)); i++) sleep_ms(5);
    sleep_ms(300); /* a later state is in memory by then */
    kill(rank_of(child, 1), SIGSTOP);
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
    child = START("lost", "-n", "2", "--set", "train.steps=20000", "--set", "train.buddy=0");
    await_lines(state, "lost/metrics.jsonl", 20);
    kill(rank_of(child, 1), SIGKILL);
    kill(child, SIGTERM);
    o = program_wait(*state, child);
    if (o.status == 75 || !strstr(o.err, "before all had stopped: ")) fail_msg("%s", o.err);
    outcome_free(&o);
    child = START("early", "-n", "2", "--set", "train.steps=20000");
    for (int i = 0; i < 10000 && !launches(child); i++) sleep_ms(1);
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
    if (o.status != 128 + SIGTERM || !strstr(o.err, "before all had stopped: nothing is saved"))
        fail_msg("status %d: %s", o.status, o.err);
    outcome_free(&o);
    child = START("rank", "-n", "2", "--set", "train.steps=20000");
    for (pid_t rank = 0; !rank;) {
        rank = rank_of(child, 1);
        if (rank) kill(rank, SIGTERM);
    }
    o = program_wait(*state, child);
    if ((o.status != 75 && o.status != 128 + SIGTERM && o.status != SIGTERM) ||
        strstr(o.err, "starting again"))
        fail_msg("status %d: %s", o.status, o.err);
    outcome_free(&o);
    o = program_run(*state, NULL, "train r.yaml --restarts 3");
    assert_int_equal(o.status, 1);
    assert_non_null(strstr(o.err, "--restarts goes with -n"));
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
    pid_t child = START("early", "-n", "3", "--json"), rank = 0;
    while (!rank) rank = rank_of(child, 1);
    kill(rank, SIGSTOP);
    outcome o = program_wait(*state, child);
    if (o.status) fail_msg("status %d: %s", o.status, o.err);
    if (!strstr(o.err, "was stopped by a signal, and is ended: starting again (1)") ||
        strstr(o.err, "No such file"))
        fail_msg("%s", o.err);
    json_t *j = json_of(o.out);
    assert_true(json_num(json_object_get(j, "lost_s"), "restarts") > 0.5);
    all_counted(j);
    json_decref(j);
    outcome_free(&o);
    char *notes = read_whole(tmpdir_path(state, "early/recovery.jsonl"), NULL);
    assert_int_equal(count(notes, "\"ended\""), 2);
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
    char *text = read_whole(path, NULL), state = strrchr(text, ')')[2];
    free(text);
    return state;
}

/* Ctrl-Z stops ranks too, and is no loss. */
static void paused(void **state)
{
    write_text(tmpdir_path(state, "r.yaml"), run_file);
    pid_t child = START("out", "-n", "2", "--set", "train.steps=400", "--json");
    await_lines(state, "out/metrics.jsonl", 20);
    pid_t all[] = {child, rank_of(child, 0), rank_of(child, 1)};
    kill(child, SIGTSTP);
    for (int k = 2; k >= 0; k--) /* itself last */
        for (int i = 0; i < 2000 && state_of(all[k]) != 'T'; i++) sleep_ms(5);
    for (int k = 0; k < 3; k++) assert_int_equal(state_of(all[k]), 'T');
    sleep_ms(500);
    kill(child, SIGCONT);
    outcome o = program_wait(*state, child);
    if (o.status != 0) fail_msg("status %d: %s", o.status, o.err);
    json_t *j = json_of(o.out);
    assert_true(json_num(j, "steps") == 400 && json_num(j, "restarts") == 0);
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
        await_lines(state, ranks == 1 ? "one/metrics.jsonl" : "two/metrics.jsonl", 5);
        /* most of it; and what reads as zeros, in its last page */
        assert_int_equal(truncate(tmpdir_path(state, "t.txt"), ranks == 1 ? 8192 : BYTES - 10), 0);
        outcome o = program_wait(*state, child);
        if (o.status != 1 || !strstr(o.err, "t.txt: was cut short while it was used") ||
            strstr(o.err, "starting again"))
            fail_msg("status %d: %s", o.status, o.err);
        outcome_free(&o);
    }
    free(text);
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
    assert_int_equal(count(starts, "x"), 3);
    free(starts);
    o = program_run(*state, NULL,
                    "train r.yaml -n 2 --out nan --set train.lr=1e6 --set train.optimizer=sgd");
    assert_int_equal(o.status, 1);
    assert_int_equal(count(o.err, "starting again"), 0);
    /* What memory has and the disk has not stays, and the last line says how it goes. */
    const char *kept = strstr(o.err, "rm /dev/shm/loopline-");
    if (kept) assert_int_equal(system(kept), 0);
    outcome_free(&o);
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
                                       IN_FOLDER(killed),
                                       IN_FOLDER(killed_replica),
                                       IN_FOLDER(stopped),
                                       IN_FOLDER(early_and_late),
                                       IN_FOLDER(spikes),
                                       IN_FOLDER(cut_short),
                                       IN_FOLDER(what_no_start_cures),
                                       IN_FOLDER(paused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
