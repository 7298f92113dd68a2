/* test_launch: -n starts ranks with this program's words, their threads divided; what fails is said
 * once. The test starts itself: with words, it is the program that launches, and then the rank. */
#include "cli/launch.h"
#include "comm/job.h"
#include "program.h"

#include <omp.h>

/* ---- the program: RANKS WHAT ... ---- */

static ll_err command(const char *what, int argc, char **argv)
{
    int rank = ll_job_rank();
    if (!strcmp(what, "crash") && rank == 1) raise(SIGSEGV);
    if (!strcmp(what, "fail")) FAIL(LL_E_ARG, "a bad word");
    if (!strcmp(what, "fail-alone") && rank == 1) FAIL(LL_E_ARG, "a bad word");
    if (strcmp(what, "words")) {
        sleep_ms(8000); /* is ended before that */
        return LL_OK;
    }
    char line[256];
    int n = snprintf(line, sizeof line, "%d of %d, %d threads:", rank, ll_job_size(),
                     omp_get_max_threads());
    for (int i = 3; i < argc; i++)
        n += snprintf(line + n, sizeof line - (size_t)n, " <%s>", argv[i]);
    printf("%s\n", line);
    return LL_OK;
}

static int program(int argc, char **argv)
{
    ll_cli_launch_args(argc, argv);
    ll_err rc = ll_cli_launch(atoi(argv[1]), NULL);
    if (rc == LL_OK) rc = command(argv[2], argc, argv);
    return rc == LL_OK ? 0 : ll_cli_fail("loopline test", ll_error_text(), 1);
}

/* ---- the test ---- */

static outcome run(void **state, const char *env, const char *const *words)
{
    const char *folder = *state;
    char self[4096], *argv[16] = {self};
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(n > 0);
    self[n] = '\0';
    for (int i = 0; words[i]; i++) argv[i + 1] = (char *)words[i];
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        unsetenv("OMP_NUM_THREADS");
        if (env) putenv((char *)env);
        dup2(open(tmpdir_path(state, "stdout.txt"), O_WRONLY | O_CREAT | O_TRUNC, 0666), 1);
        dup2(open(tmpdir_path(state, "stderr.txt"), O_WRONLY | O_CREAT | O_TRUNC, 0666), 2);
        dup2(open("/dev/null", O_RDONLY), 0);
        execv(self, argv);
        _exit(126);
    }
    return program_wait(folder, child);
}

#define RUN(env, ...) run(state, env, (const char *const[]){__VA_ARGS__, NULL})

static int count_of(const char *text, const char *what)
{
    int n = 0;
    for (const char *p = text; (p = strstr(p, what)); p++) n++;
    return n;
}

static void assert_has(const char *text, const char *wanted)
{
    if (!strstr(text, wanted)) fail_msg("'%s'\n  has no '%s'", text, wanted);
}

static void ranks_get_the_words(void **state)
{
    outcome o = RUN(NULL, "3", "words", "two words", "", "--x=$HOME", "-n");
    char line[128];
    int threads = omp_get_num_procs() / 3 > 1 ? omp_get_num_procs() / 3 : 1;
    if (o.status) fail_msg("status %d: %s", o.status, o.err);
    for (int r = 0; r < 3; r++) {
        snprintf(line, sizeof line, "%d of 3, %d threads: <two words> <> <--x=$HOME> <-n>\n", r,
                 threads);
        assert_has(o.out, line);
    }
    assert_int_equal(count_of(o.out, "\n"), 3);
    outcome_free(&o);
    o = RUN("OMP_NUM_THREADS=5", "2", "words"); /* what the user has set stays */
    assert_has(o.out, "1 of 2, 5 threads:\n");
    outcome_free(&o);
}

static void one_rank_is_not_launched(void **state)
{
    outcome o = RUN("LOOPLINE_MPIEXEC=/nonexistent", "1", "words", "a");
    assert_int_equal(o.status, 0);
    assert_has(o.out, "0 of 0, ");
    outcome_free(&o);
}

static void no_mpiexec_is_said(void **state)
{
    outcome o = RUN("LOOPLINE_MPIEXEC=/nonexistent/mpiexec -x y", "2", "words");
    assert_int_equal(o.status, 1);
    assert_has(o.err, "/nonexistent/mpiexec -x y, which starts the ranks of -n, cannot be run: No "
                      "such file or directory; install openmpi-bin or mpich");
    outcome_free(&o);
}

static void another_size_is_refused(void **state)
{
    setenv("PMI_SIZE", "4", 1);
    setenv("PMI_RANK", "0", 1);
    outcome o = RUN(NULL, "3", "words"), same = RUN(NULL, "4", "words");
    unsetenv("PMI_SIZE");
    unsetenv("PMI_RANK");
    assert_int_equal(o.status, 1);
    assert_has(o.err, "-n is 3, but this is one of 4 ranks that a launcher started");
    assert_int_equal(same.status, 0);
    assert_has(same.out, "0 of 4, ");
    outcome_free(&o);
    outcome_free(&same);
}

/* Once, unless the first rank starts seconds after the others. */
static void failures_are_said_once(void **state)
{
    outcome o = RUN(NULL, "3", "fail");
    for (int i = 0; i < 4 && o.status > 0 && count_of(o.err, "a bad word") > 1; i++) {
        outcome_free(&o);
        o = RUN(NULL, "3", "fail");
    }
    assert_true(o.status > 0);
    assert_int_equal(count_of(o.err, "loopline test: rank 0: bad argument: a bad word\n"), 1);
    assert_int_equal(count_of(o.err, "a bad word"), 1);
    outcome_free(&o);
    o = RUN(NULL, "3", "fail-alone"); /* MPICH would let the others go on */
    assert_true(o.status > 0);
    assert_int_equal(count_of(o.err, "loopline test: rank 1: bad argument: a bad word\n"), 1);
    outcome_free(&o);
}

static void crashes_are_said(void **state)
{
    outcome o = RUN(NULL, "2", "crash");
    assert_true(o.status > 0);
    /* By us, or by a library under MPI that has a handler of its own. */
    if (!strstr(o.err, "Caught signal 11")) assert_has(o.err, "rank 1: ended by signal 11\n");
    outcome_free(&o);
}

int main(int argc, char **argv)
{
    if (argc > 2) return program(argc, argv);
#define TEST(f) cmocka_unit_test_setup_teardown(f, tmpdir_setup, tmpdir_teardown)
    const struct CMUnitTest tests[] = {
        TEST(ranks_get_the_words),     TEST(one_rank_is_not_launched), TEST(no_mpiexec_is_said),
        TEST(another_size_is_refused), TEST(failures_are_said_once),   TEST(crashes_are_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
