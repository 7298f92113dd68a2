/* test_failure: real jobs through mpiexec in which one rank dies, stops, loops for ever, leaves or
 * calls something else: each is over soon, with a failure, and says which rank and which operation.
 *
 * The test starts mpiexec with itself and the name of a case; that process is a rank of the job.
 * Where a rank dies the launcher ends all others within a millisecond, so its own message is
 * accepted there in place of ours; nowhere else. */
#include "cli/launch.h"
#include "comm/job.h"
#include "comm/watch_int.h"
#include "exec/fake_gpu.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS = 4 };
static const double timeout_s = 3;
static const double late_s = 0.5; /* without a core for so long, ranks that are well look lost */
static const double most_s = 100; /* of a job that hangs */

/* ---- a rank of a job ---- */

/* Until the others have been told what this rank does. */
static void be_seen(void)
{
    usleep(1200000);
}

static ll_err all_reduce(ll_comm *c, const char *site)
{
    float x[1000] = {0};
    return ll_comm_allreduce(c, x, 1000, LL_F32, LL_REDUCE_SUM, &(ll_coll_opts){.site = site});
}

static ll_err loops(ll_comm *c)
{
    if (ll_comm_rank(c) == 2) {
        ll_comm_doing(c, "forward of conv3");
        for (volatile unsigned n = 0;; n++) continue;
    }
    return all_reduce(c, "fc1.weight");
}

static ll_err hub_loops(ll_comm *c)
{
    if (ll_comm_rank(c) == 0) {
        ll_comm_doing(c, "forward of conv3");
        for (volatile unsigned n = 0;; n++) continue;
    }
    return all_reduce(c, "fc1.weight");
}

static ll_err stops(ll_comm *c)
{
    if (ll_comm_rank(c) == 2) {
        ll_comm_doing(c, "forward of conv3");
        be_seen();
        raise(SIGSTOP);
    }
    return all_reduce(c, "fc1.weight");
}

static ll_err hub_stops(ll_comm *c)
{
    if (ll_comm_rank(c) == 0) {
        ll_comm_doing(c, "forward of conv3");
        be_seen();
        raise(SIGSTOP);
    }
    return all_reduce(c, "fc1.weight");
}

static ll_err dies(ll_comm *c)
{
    if (ll_comm_rank(c) == 2) {
        ll_comm_doing(c, "forward of conv3");
        be_seen();
        raise(SIGKILL);
    }
    return all_reduce(c, "fc1.weight");
}

static ll_err exits(ll_comm *c)
{
    if (ll_comm_rank(c) == 2) {
        ll_comm_doing(c, "forward of conv3");
        be_seen();
        _exit(0);
    }
    return all_reduce(c, "fc1.weight");
}

/* By algorithms whose messages do not meet: rank 1 waits for one of rank 3's. */
static ll_err disagrees(ll_comm *c)
{
    float x[1000] = {0};
    if (ll_comm_rank(c) == 1)
        return ll_comm_broadcast(c, x, 2, LL_F32, 3,
                                 &(ll_coll_opts){.site = "embedding", .algorithm = "flat"});
    return ll_comm_allreduce(c, x, 1000, LL_F32, LL_REDUCE_SUM,
                             &(ll_coll_opts){.site = "fc1.weight", .algorithm = "ring"});
}

/* Fails alone; the others wait. */
static ll_err fails(ll_comm *c)
{
    if (ll_comm_rank(c) == 2) FAIL(LL_E_IO, "shard-2.bin: magic is 0, want 20240520");
    return all_reduce(c, "fc1.weight");
}

static ll_err agrees(ll_comm *c)
{
    return ll_comm_agree(c, ll_comm_rank(c) == 2 ? fails(c) : LL_OK);
}

/* Training steps. In the second, rank 2 fails, or loops, when it has started what the others wait
 * for: sums and gathers are under way. */
static ll_err step(ll_comm *c, bool fails)
{
    const ll_size small[] = {
        {"layers", 2, ""}, {"width", 16, ""}, {"heads", 2, ""}, {"seq", 8, ""}, {"vocab", 29, ""}};
    ll_graph *g = part_model("gpt", 4, "adamw", 0, small, 5);
    part x;
    TRY(part_open(c, g, &(part_opts){.mesh = "data=4", .zero = 2, .n_micro = 1, .threads = 1}, &x));
    part_feed(&x, 1, 29);
    ll_err rc = part_step(&x);
    if (ll_comm_rank(c) == 2) {
        if (rc == LL_OK) rc = ll_exec_run(x.e, LL_MICRO, x.step);
        ll_comm_doing(c, "update of h1");
        for (volatile unsigned n = 0; rc == LL_OK && !fails; n++) continue;
        if (rc == LL_OK) rc = ll_raise(LL_E_IO, __FILE__, __LINE__, __func__, "shard 7 is gone");
    } else if (rc == LL_OK)
        rc = part_step(&x);
    part_close(&x);
    ll_graph_free(g);
    return rc;
}

static ll_err fails_in_step(ll_comm *c)
{
    return step(c, true);
}

static ll_err loops_in_step(ll_comm *c)
{
    return step(c, false);
}

/* A stage of a pipeline: the others wait for what it would send, or take. */
static ll_err pipe_step(ll_comm *c, bool dies)
{
    const ll_size small[] = {
        {"layers", 4, ""}, {"width", 16, ""}, {"heads", 2, ""}, {"seq", 8, ""}, {"vocab", 29, ""}};
    ll_graph *g = part_model("gpt", 4, "adamw", 0, small, 5);
    ll_session *s;
    ll_session_opts o = {.comm = c, .mesh = "pipe=4", .micro_batches = 3, .threads = 1};
    TRY(ll_session_open(g, &o, &s));
    s->checked = true; /* zeros do */
    ll_err rc = ll_session_run(s, 0.01);
    if (ll_comm_rank(c) == 2) {
        ll_comm_doing(c, "stage 3");
        if (dies) be_seen(), raise(SIGKILL);
        for (volatile unsigned n = 0;; n++) continue;
    }
    if (rc == LL_OK) rc = ll_session_run(s, 0.01);
    ll_session_close(s);
    ll_graph_free(g);
    return rc;
}

static ll_err stage_loops(ll_comm *c)
{
    return pipe_step(c, false);
}

static ll_err stage_dies(ll_comm *c)
{
    return pipe_step(c, true);
}

/* The same on GPUs that talk by NCCL, fake ones: rank 2 stalls in a collective, NCCL tells it of a
 * failure, the process loops, or is killed. */
static ll_err gpu_once(part *x)
{
    for (int i = 0; i < x->p->n_input; i++) {
        int slot = x->p->inputs[i].slot, kind = (int)x->p->slots[slot].kind;
        if (kind == LL_BATCH || kind == LL_STEP) TRY(ll_exec_changed(x->e, slot));
    }
    TRY(ll_exec_run(x->e, LL_MICRO, x->step));
    TRY(ll_exec_run(x->e, LL_REPORT, x->step));
    TRY(ll_exec_wait(x->e));
    return ll_exec_run(x->e, LL_UPDATE, x->step++);
}

static ll_err gpu_step(ll_comm *c, bool stalls, bool nccl_fails, bool loops, bool dies)
{
    bool me = ll_comm_rank(c) == 2;
    ll_graph *g = part_model("lenet5", 8, "momentum", 0, NULL, 0);
    part x;
    TRY(fake_open(c, g, &(part_opts){.mesh = "data=4", .n_micro = 1}, LL_BY_NCCL, &x));
    part_feed(&x, 1, 10);
    ll_err rc = gpu_once(&x);
    fake_stalls = me && (stalls || nccl_fails);
    fake_fails = me && nccl_fails;
    if (me) ll_comm_doing(c, "step 2");
    if (me && loops)
        for (volatile unsigned n = 0;; n++) continue;
    if (me && dies) be_seen(), raise(SIGKILL);
    if (rc == LL_OK) rc = gpu_once(&x);
    fake_close(&x);
    ll_graph_free(g);
    return rc;
}

static ll_err gpu_stalls(ll_comm *c)
{
    return gpu_step(c, true, false, false, false);
}

static ll_err gpu_fails(ll_comm *c)
{
    return gpu_step(c, false, true, false, false);
}

static ll_err gpu_loops(ll_comm *c)
{
    return gpu_step(c, false, false, true, false);
}

static ll_err gpu_dies(ll_comm *c)
{
    return gpu_step(c, false, false, false, true);
}

/* And where GPUs first meet, in a call that blocks. */
static ll_err gpu_never_opens(ll_comm *c)
{
    fake_stalls = ll_comm_rank(c) == 2;
    return gpu_step(c, false, false, false, false);
}

static const struct {
    const char *name;
    ll_err (*act)(ll_comm *c);
} cases[] = {{"loops", loops},
             {"hub_loops", hub_loops},
             {"stops", stops},
             {"hub_stops", hub_stops},
             {"dies", dies},
             {"exits", exits},
             {"disagrees", disagrees},
             {"fails", fails},
             {"agrees", agrees},
             {"fails_in_step", fails_in_step},
             {"loops_in_step", loops_in_step},
             {"stage_loops", stage_loops},
             {"stage_dies", stage_dies},
             {"gpu_stalls", gpu_stalls},
             {"gpu_fails", gpu_fails},
             {"gpu_loops", gpu_loops},
             {"gpu_dies", gpu_dies},
             {"gpu_never_opens", gpu_never_opens}};

/* As a command of the program does it. */
static int rank_main(int argc, char **argv)
{
    ll_comm *c;
    ll_cli_launch_args(argc, argv);
    ll_err rc = ll_comm_open(&(ll_comm_opts){.timeout_s = timeout_s, .table = ""}, &c);
    for (size_t i = 0; rc == LL_OK && i < sizeof cases / sizeof *cases; i++)
        if (!strcmp(cases[i].name, argv[1])) {
            rc = all_reduce(c, "warm-up");
            if (rc == LL_OK) rc = cases[i].act(c);
            rc = ll_cli_leave(c, rc);
            break;
        }
    return rc == LL_OK ? 0 : ll_cli_fail("loopline test", ll_error_text(), 1);
}

/* ---- the test ---- */

typedef struct ended {
    int status;           /* of exit; 1000 + a signal */
    double seconds, late; /* late: the longest that this process waited for a core */
    char err[65536];      /* standard output and error of the job */
} ended;

static void become_job(int out, const char *name)
{
    char self[4096], ranks[16];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) _exit(126);
    self[n] = '\0';
    snprintf(ranks, sizeof ranks, "%d", RANKS);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    setpgid(0, 0);
    dup2(open("/dev/null", O_RDONLY), 0);
    dup2(out, 1);
    dup2(out, 2);
    ll_cli_launch_env(RANKS);
    ll_job_own_folder();
    execlp(ll_cli_mpiexec(), ll_cli_mpiexec(), "-n", ranks, self, name, (char *)NULL);
    _exit(126);
}

/* Until the job is over, or most_s have passed, which is a failure of the test. */
static void run_once(const char *name, ended *e)
{
    *e = (ended){0};
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(NULL);
    double began = ll_now();
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) become_job(fileno(file), name);
    int status;
    bool hangs = false;
    while (waitpid(child, &status, WNOHANG) == 0) {
        double before = ll_now();
        usleep(2000);
        e->late = fmax(e->late, ll_now() - before);
        hangs = hangs || ll_now() - began > most_s;
        if (hangs) kill(ll_now() - began > most_s + 3 ? -child : child, SIGTERM);
        if (ll_now() - began > most_s + 6) kill(-child, SIGKILL);
    }
    e->seconds = ll_now() - began;
    e->status = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    ssize_t n = pread(fileno(file), e->err, sizeof e->err - 1, 0);
    assert_true(n >= 0);
    fclose(file);
    print_message("%s: status %d after %.1f s: %s\n", name, e->status, e->seconds, e->err);
    if (hangs) fail_msg("%s: still runs after %.1f s", name, most_s);
    assert_int_not_equal(e->status, 126);
    assert_int_not_equal(e->status, 0);
}

/* Again where others kept it from running. */
static void run(const char *name, ended *e)
{
    run_once(name, e);
    for (int i = 1; i < 10 && e->late > late_s; i++) {
        print_message("waited %.1f s for a core\n", e->late);
        run_once(name, e);
    }
}

static int count_of(const char *text, const char *what)
{
    int n = 0;
    for (const char *p = text; (p = strstr(p, what)); p++) n++;
    return n;
}

static void assert_once(const ended *e, const char *wanted)
{
    int n = count_of(e->err, wanted);
    if (n != 1) fail_msg("'%s' is there %d times", wanted, n);
}

static void assert_has(const ended *e, const char *wanted)
{
    if (!strstr(e->err, wanted)) fail_msg("there is no '%s'", wanted);
}

static void looping_rank_is_named(void **state)
{
    (void)state;
    ended e;
    run("loops", &e);
    assert_once(&e, "loopline: rank 2 is in forward of conv3 (for ");
    assert_has(&e, "; ranks 0, 1, 3 wait in all-reduce 1 (fc1.weight)");
}

/* The hub is that rank: it prints the report, and is ended with the others. */
static void looping_hub_is_named(void **state)
{
    (void)state;
    ended e;
    run("hub_loops", &e);
    assert_once(&e, "loopline: rank 0 is in forward of conv3 (for ");
    assert_has(&e, "; ranks 1-3 wait in all-reduce 1 (fc1.weight)");
}

/* The others notice its silence, or that they wait for it, whichever comes first. */
static void stopped_rank_is_named(void **state)
{
    (void)state;
    ended e;
    run("stops", &e);
    assert_has(&e, "loopline: rank 2 ");
    assert_has(&e, "forward of conv3");
    assert_has(&e, "; ranks 0, 1, 3 wait in all-reduce 1 (fc1.weight)");
}

static void stopped_hub_is_named(void **state)
{
    (void)state;
    ended e;
    run("hub_stops", &e);
    assert_once(&e, "loopline: rank 0 has not answered for ");
    assert_has(&e, "(last seen in forward of conv3); rank 1 waits in all-reduce 1 (fc1.weight)");
}

/* What mpirun (Open MPI) and mpiexec (MPICH) say of a rank that was killed. */
static bool launcher_names_it(const ended *e)
{
    return strstr(e->err, "rank 2 with PID") || strstr(e->err, "EXIT CODE: 9");
}

static void dead_rank_is_named(void **state)
{
    (void)state;
    ended e;
    run("dies", &e);
    bool ours = strstr(e.err, "loopline: rank 2 died (last seen in forward of conv3); ");
    print_message("%s\n", ours ? "ours came" : "the launcher was faster");
    assert_true(ours || launcher_names_it(&e));
}

/* With status 0, which launchers take for a death too: MPI was not finalised. */
static void rank_that_exits_is_named(void **state)
{
    (void)state;
    ended e;
    run("exits", &e);
    bool ours = strstr(e.err, "loopline: rank 2 died (last seen in forward of conv3); ");
    print_message("%s\n", ours ? "ours came" : "the launcher was faster");
    assert_true(ours || e.status > 0); /* MPICH says nothing */
}

static void mismatch_is_named(void **state)
{
    (void)state;
    ended e;
    run("disagrees", &e);
    assert_once(&e, "rank 1 waits in broadcast 1 (embedding)");
    assert_has(&e, "ranks 0, 2, 3 wait in all-reduce 1 (fc1.weight)");
}

static void failure_of_one_rank_ends_all(void **state)
{
    (void)state;
    ended e;
    run("fails", &e);
    assert_once(&e, "loopline fails: rank 2: file or data error: shard-2.bin: magic is 0");
}

static void failure_in_a_step_is_named(void **state)
{
    (void)state;
    ended e;
    run("fails_in_step", &e);
    assert_has(&e, "rank 2: file or data error: shard 7 is gone");
    run("loops_in_step", &e);
    assert_has(&e, "rank 2 is in update of h1");
    assert_has(&e, "ranks 0, 1, 3 wait in ");
}

static void lost_stage_is_named(void **state)
{
    (void)state;
    ended e;
    run("stage_loops", &e);
    assert_has(&e, "rank 2 is in stage 3");
    assert_has(&e, "rank 3 waits in receive");
    run("stage_dies", &e);
    bool ours = strstr(e.err, "loopline: rank 2 died (last seen in stage 3); ");
    assert_true(ours || launcher_names_it(&e));
}

/* What NCCL waits for without end is told, and ended. */
static void stalled_gpus_are_named(void **state)
{
    (void)state;
    ended e;
    run("gpu_stalls", &e);
    assert_has(&e, "ranks 0-3 wait in all_reduce (");
    run("gpu_loops", &e);
    assert_has(&e, "rank 2 is in step 2");
    assert_has(&e, "; ranks 0, 1, 3 wait in all_reduce (");
    run("gpu_never_opens", &e);
    assert_has(&e, "ranks 0-3 wait in NCCL's start (");
}

static void failure_of_nccl_ends_all(void **state)
{
    (void)state;
    ended e;
    run("gpu_fails", &e);
    assert_has(&e, "rank 2: ");
    assert_has(&e, "NCCL: remote process exited");
    run("gpu_dies", &e);
    bool ours = strstr(e.err, "loopline: rank 2 died (last seen in step 2); ");
    assert_true(ours || launcher_names_it(&e));
}

static void agreed_failure_is_told_once(void **state)
{
    (void)state;
    ended e;
    run("agrees", &e);
    assert_once(&e, "loopline test: rank 2: file or data error: shard-2.bin: magic is 0");
}

int main(int argc, char **argv)
{
    if (argc > 1) return rank_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(looping_rank_is_named),
        cmocka_unit_test(looping_hub_is_named),
        cmocka_unit_test(stopped_rank_is_named),
        cmocka_unit_test(stopped_hub_is_named),
        cmocka_unit_test(dead_rank_is_named),
        cmocka_unit_test(rank_that_exits_is_named),
        cmocka_unit_test(mismatch_is_named),
        cmocka_unit_test(failure_of_one_rank_ends_all),
        cmocka_unit_test(failure_in_a_step_is_named),
        cmocka_unit_test(lost_stage_is_named),
        cmocka_unit_test(stalled_gpus_are_named),
        cmocka_unit_test(failure_of_nccl_ends_all),
        cmocka_unit_test(agreed_failure_is_told_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
