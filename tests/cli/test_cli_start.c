/* Ranks that cannot work together, and numbers of ranks that cannot be: refused by every rank, in
 * one line, with a failure, and nothing is written. Jobs are started through mpiexec, as a user
 * would, and by variables of the environment as launchers of others set them. */
#include "cli/launch.h"
#include "cli/program.h"
#include "comm/job.h"

static const char mlp[] = "model: {name: mlp, image: 10, width: 30, depth: 2, classes: 5}\n"
                          "data: {name: synthetic, samples: 600}\n"
                          "train: {batch: 6, steps: 2, threads: 1}\n"
                          "parallel: {timeout: 60}\n";

static void write_runs(void *const *state)
{
    write_text(tmpdir_path(state, "mlp.yaml"), mlp);
    write_text(tmpdir_path(state, "other.yaml"), "train: {lr: 0.5}\n");
}

/* ---- one process, and what a launcher has put into its environment ---- */

typedef struct lone {
    const char *env, *words, *text;
    int status;
} lone;

static const lone lones[] = {
    {NULL, "-n 0", "-n is '0', expected a whole number, 1 or more", 2},
    {NULL, "-n -1", "-n is '-1', expected a whole number, 1 or more", 2},
    {NULL, "-n two", "-n is 'two', expected", 2},
    {NULL, "-n 1.5", "-n is '1.5', expected", 2},
    {NULL, "-n 99999999999999999999", "expected a whole number", 2},
    {NULL, "-n 100000", "-n is 100000, but this machine has", 1},
    {NULL, "-n 4 --mesh data=6", "6 ranks, but there are 4: use data=4, or -n 6", 1},
    {NULL, "-n 6 --mesh data=2,tensor=2",
     "use data=3 (data=3,tensor=2) or tensor=3 (data=2,tensor=3), or -n 4", 1},
    {NULL, "-n 5 --mesh data=2,tensor=2", "4 ranks, but there are 5: use -n 4", 1},
    {NULL, "--mesh data=3", "needs 3 ranks, but there is one: use -n 3, or --mesh \"\"", 1},
    {NULL, "-n 2 --mesh data", "mesh \"data\": expected data=SIZE", 1},
    {NULL, "-n 2 --mesh data=", "mesh \"data=\": expected data=SIZE", 1},
    {NULL, "-n 2 --mesh data=x", "mesh \"data=x\": expected data=SIZE", 1},
    {NULL, "-n 2 --mesh data=0", "mesh \"data=0\": expected data=1 to 1048576", 1},
    {NULL, "-n 2 --mesh data=-2", "mesh \"data=-2\": expected data=1 to 1048576", 1},
    {NULL, "-n 2 --mesh data=2,data=2", "has data twice", 1},
    {NULL, "-n 2 --mesh data=2;tensor=1", "expected a comma", 1},
    {NULL, "-n 2 --mesh =2", "nothing before \"=2\", expected NAME=SIZE", 1},
    {NULL, "-n 2 --mesh data=2,,tensor=2", "nothing before \",tensor=2\", expected NAME=SIZE", 1},
    /* told by the process that would start the ranks, which therefore has no rank */
    {NULL, "-n 2 --mesh tensor=2 --zero 3", "train: layout not possible: zero=3 needs axis data",
     1},
    {NULL, "--compress factors", "there is one rank: use 2 or more, or compress=none", 1},
    {NULL, "-n 2 --mesh tenser=2", "unknown axis tenser; did you mean tensor?", 1},
    {NULL, "-n 2 --mesh data=99999999999999999999", "99999\": expected data=1 to 1048576", 1},
    {NULL, "-n 2 --zero 9", "parallel.zero", 1},
    {NULL, "-n 2 --zero x", "parallel.zero", 1},
    {NULL, "--slow 7:2", "of 1 rank and a factor", 1},
    {NULL, "-n 2 --slow 7:2", "train: bad argument: --slow is '7:2'", 1},
    {NULL, "-n 1 --hosts mlp.yaml", "-n with 2 ranks or more, not 1", 1},
    {"OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_RANK=0", "-n 2", "one of 3 ranks that a launcher", 1},
    {"OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0", "-n 2", "one of 1 ranks that a launcher", 1},
    {"PMI_SIZE=3 PMI_RANK=0", "-n 2", "one of 3 ranks that a launcher started", 1},
    {"SLURM_STEP_NUM_TASKS=3 SLURM_PROCID=0", "",
     "srun started 3 ranks, but each runs alone: use srun --mpi=pm", 1},
};

static void set_all(const char *env)
{
    char text[200], *rest = NULL;
    strcpy(text, env ? env : "");
    for (char *w = strtok_r(text, " ", &rest); w; w = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(w, '=');
        *value = '\0';
        setenv(w, value + 1, 1);
    }
}

static void unset_all(const char *env)
{
    char text[200], *rest = NULL;
    strcpy(text, env ? env : "");
    for (char *w = strtok_r(text, " ", &rest); w; w = strtok_r(NULL, " ", &rest)) {
        *strchr(w, '=') = '\0';
        unsetenv(w);
    }
}

static void numbers_that_cannot_be(void **state)
{
    write_runs(state);
    for (size_t i = 0; i < sizeof lones / sizeof *lones; i++) {
        const lone *l = &lones[i];
        char line[200];
        snprintf(line, sizeof line, "train mlp.yaml --out x %s", l->words);
        set_all(l->env);
        refuses(*state, l->status, line, l->text);
        unset_all(l->env);
        assert_false(file_exists(tmpdir_path(state, "x")));
    }
}

/* What every rank finds is told once, and leaves no folder; a run is repeated by its own turns. */
static void told_once(void **state)
{
    static const char *const lines[] = {
        "-n 2 --replay no", "-n 2 --trace t --trace-steps 8:9",
        "-n 2 --replay no -s parallel.replicas=2 -s parallel.consistency=async"};
    static const char *const texts[] = {"--replay needs", "trace steps 8 to 9",
                                        "no/order-0.txt: No such"};
    char line[200];
    write_runs(state);
    for (int i = 0; i < 3; i++) {
        snprintf(line, sizeof line, "train mlp.yaml %s", lines[i]);
        outcome o = program_run(*state, NULL, line);
        const char *found = strstr(o.err, texts[i]);
        if (!found || strstr(found + 1, texts[i]) || strchr(o.err, '\n')[1])
            fail_msg("%s: '%s'", line, o.err);
        outcome_free(&o);
        assert_int_equal(tmpdir_count(tmpdir_path(state, "runs")), -1);
    }
    must(*state,
         "train mlp.yaml --out a -n 2 -s parallel.replicas=2 -s parallel.consistency=async");
    char *turns = read_whole(tmpdir_path(state, "a/order-0.txt"), NULL);
    write_text(tmpdir_path(state, "a/order-1.txt"), turns);
    free(turns);
    refuses(*state, 1,
            "train mlp.yaml --out b -n 2 -s parallel.replicas=2 -s parallel.consistency=async "
            "--replay a",
            "a/order-1.txt was changed since replica 1 wrote it");
}

/* Started by the launcher of another MPI, or by srun without one: each would be a run of its own.
 */
static void alone_among_many(void **state)
{
    static const char *const launchers[] = {"PMI_SIZE=3 PMI_RANK=0",
                                            "OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_RANK=0"};
    write_runs(state);
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        set_all(launchers[i]);
        outcome o = program_run(*state, NULL, "train mlp.yaml --out x");
        unset_all(launchers[i]);
        assert_int_equal(o.status, 1);
        if (!strstr(o.err, "3 ranks were started, but each runs alone: start them with the "
                           "mpiexec of"))
            fail_msg("%s: '%s'", launchers[i], o.err);
        assert_false(file_exists(tmpdir_path(state, "x")));
        outcome_free(&o);
    }
}

/* ---- ranks of one job that differ ---- */

typedef struct job {
    const char *first, *rest, *text; /* words of rank 0, and of ranks 1 and 2 */
} job;

static const job jobs[] = {
    {"train mlp.yaml --out x", "train other.yaml --out x",
     "the arguments of rank 1 differ from those of rank 0"},
    {"train mlp.yaml --out x", "train mlp.yaml --out x --resume",
     "the arguments of rank 1 differ from those of rank 0"},
    {"train mlp.yaml --out x", "verify mlp.yaml",
     "the arguments of rank 1 differ from those of rank 0"},
    {"train mlp.yaml --out x", "train none.yaml --out x", "none.yaml"},
    {"verify mlp.yaml --mesh data=2", "verify mlp.yaml --mesh data=2",
     "mesh \"data=2\" needs 2 ranks, but there are 3"},
    {"train mlp.yaml --out x --zero 1 --mesh tensor=3",
     "train mlp.yaml --out x --zero 1 --mesh tensor=3", "zero"},
};

static int add_words(char *argv[], int n, char *text)
{
    char *rest = NULL;
    for (char *w = strtok_r(text, " ", &rest); w; w = strtok_r(NULL, " ", &rest)) argv[n++] = w;
    argv[n] = NULL;
    return n;
}

static void become_job(const char *folder, const job *j)
{
    char path[4096], mpiexec[400], first[200], rest[200], *argv[80];
    int n = 0;
    program_path(path);
    strcpy(mpiexec, ll_cli_mpiexec());
    strcpy(first, j->first);
    strcpy(rest, j->rest);
    n = add_words(argv, n, mpiexec);
    argv[n++] = (char *)"-n";
    argv[n++] = (char *)"1";
    argv[n++] = path;
    n = add_words(argv, n, first);
    argv[n++] = (char *)":";
    argv[n++] = (char *)"-n";
    argv[n++] = (char *)"2";
    argv[n++] = path;
    add_words(argv, n, rest);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (chdir(folder)) _exit(126);
    dup2(open("stdout.txt", O_WRONLY | O_CREAT | O_TRUNC, 0666), 1);
    dup2(open("stderr.txt", O_WRONLY | O_CREAT | O_TRUNC, 0666), 2);
    dup2(open("/dev/null", O_RDONLY), 0);
    ll_cli_launch_env(3);
    ll_job_own_folder();
    setenv("XDG_CACHE_HOME", folder, 1);
    execvp(argv[0], argv);
    _exit(126);
}

static void ranks_that_differ(void **state)
{
    write_runs(state);
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        fflush(NULL);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) become_job(*state, &jobs[i]);
        outcome o = program_wait(*state, child);
        if (o.status == 0 || !strstr(o.err, jobs[i].text))
            fail_msg("%s | %s: status %d: '%s', wanted '%s'", jobs[i].first, jobs[i].rest, o.status,
                     o.err, jobs[i].text);
        assert_false(file_exists(tmpdir_path(state, "x")));
        outcome_free(&o);
    }
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, tmpdir_setup, tmpdir_teardown)
    const struct CMUnitTest tests[] = {TEST(numbers_that_cannot_be), TEST(told_once),
                                       TEST(alone_among_many), TEST(ranks_that_differ)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
