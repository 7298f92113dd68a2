/* test_watch: ranks that die, stop, stall, leave or disagree are named, and nothing hangs; ranks
 * that are slow but well are left alone. Without MPI (pipes.h). */
#include "comm/job.h"
#include "comm/watch_int.h"
#include "pipes.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#include <cmocka.h>

enum { RANKS = 4 };
/* long_s: of jobs that must end long before it. seen_s: of so long a stay the others are told.
 * late_s: where a process had no core for so long, ranks that are well look as if they were not. */
static const double timeout_s = 3, long_s = 200, seen_s = 3, late_s = 0.4;

static void sleep_s(double s)
{
    struct timespec t = {(time_t)s, (long)(1e9 * (s - (double)(time_t)s))};
    while (nanosleep(&t, &t) && errno == EINTR) continue;
}

/* ---- jobs ---- */

/* What ranks leave behind for the test. */
static struct {
    char report[RANKS][LL_WATCH_REPORT];
    double seconds[RANKS]; /* from the end of open until the report */
    double busy[RANKS];    /* of cores, in rest() */
    double late[RANKS];    /* the longest that a short sleep took, in wait_in() */
    _Atomic int ready;
} * left;

typedef struct job {
    bool nodes, long_timeout, cared;    /* cared: somebody would start all anew */
    void (*act)(ll_watch *w, int rank); /* what each rank does; may return */
} job;

static int rank_main(ll_transport *t, const void *arg)
{
    const job *j = arg;
    ll_watch *w;
    if (j->cared) ll_job_set_cared();
    if (ll_watch_open(t, LL_OK, j->long_timeout ? long_s : timeout_s, &w)) {
        snprintf(left->report[t->rank], LL_WATCH_REPORT, "open: %s", ll_error_message());
        return 3;
    }
    ll_watch_doing(w, "startup");
    left->ready++;
    double began = ll_now();
    j->act(w, t->rank);
    ll_err rc = ll_watch_check(w);
    left->seconds[t->rank] = ll_now() - began;
    if (rc) strcpy(left->report[t->rank], ll_error_message());
    ll_watch_close(w);
    return rc ? 1 : 0;
}

/* Seconds of a core that the process, its threads together, has used. */
static double busy(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void rest(int rank, double s)
{
    double before = busy();
    sleep_s(s);
    left->busy[rank] = busy() - before;
}

/* A short sleep; the longest is kept. */
static void nap(double *longest)
{
    double began = ll_now();
    sleep_s(0.001);
    *longest = fmax(*longest, ll_now() - began);
}

static void until_failed(ll_watch *w, int rank)
{
    while (!ll_watch_failed(w)) nap(&left->late[rank]);
}

/* As a wait of comm/ does: until the watch fails. */
static void wait_in(ll_watch *w, int rank, const char *what, int64_t number, const char *site)
{
    ll_watch_wait_begin(w, what, number, site);
    until_failed(w, rank);
    ll_watch_wait_end(w);
}

typedef struct ended {
    int status[RANKS]; /* of exit, or 1000 + a signal */
    double late;       /* the longest that a process waited for a core, as far as is known */
    char err[8192];    /* standard error of all */
} ended;

static int status_of(int status)
{
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* Runs the job; a rank that is stopped is killed when all others are over. */
static ended run_once(job j, int stops)
{
    ended e = {0};
    pid_t pids[RANKS];
    FILE *file = tmpfile();
    assert_non_null(file);
    int err = fileno(file), keep = dup(2);
    memset(left, 0, sizeof *left);
    fflush(NULL);
    dup2(err, 2);
    double began = ll_now();
    pipes_fork(RANKS, j.nodes, rank_main, &j, pids);
    dup2(keep, 2);
    close(keep);
    for (int running = RANKS - (stops >= 0); running > 0; nap(&e.late))
        for (int r = 0, status; r < RANKS; r++) {
            if (!pids[r] || r == stops) continue;
            if (ll_now() - began > 2 * long_s) kill(pids[r], SIGKILL);
            if (waitpid(pids[r], &status, WNOHANG) != pids[r]) continue;
            e.status[r] = status_of(status);
            pids[r] = 0;
            running--;
        }
    if (stops >= 0) {
        kill(pids[stops], SIGKILL);
        waitpid(pids[stops], &e.status[stops], 0);
    }
    for (int r = 0; r < RANKS; r++) e.late = fmax(e.late, left->late[r]);
    ssize_t n = pread(err, e.err, sizeof e.err - 1, 0);
    assert_true(n >= 0);
    fclose(file);
    return e;
}

/* Again where others kept it from running. */
static ended run(job j, int stops)
{
    ended e = {0};
    for (int i = 0; i < 10 && (i == 0 || e.late > late_s); i++) e = run_once(j, stops);
    if (e.late > late_s) print_message("a process waited %.1f s for a core\n", e.late);
    return e;
}

static void assert_has(const char *text, const char *wanted)
{
    if (!strstr(text, wanted)) fail_msg("'%s'\n  has no '%s'", text, wanted);
}

static int count_of(const char *text, const char *what)
{
    int n = 0;
    for (const char *p = text; (p = strstr(p, what)); p++) n++;
    return n;
}

/* Every rank but `but` ended with 1 and this report. */
static void assert_reported(const ended *e, int but, const char *a, const char *b)
{
    for (int r = 0; r < RANKS; r++) {
        if (r == but) continue;
        if (e->status[r] != 1) fail_msg("rank %d: status %d\n%s", r, e->status[r], e->err);
        assert_has(left->report[r], a);
        assert_has(left->report[r], b);
    }
}

/* ---- ranks that fail ---- */

static void stall(ll_watch *w, int rank)
{
    char name[] = "forward of conv3", site[] = "fc1.weight"; /* texts need not stay */
    if (rank == 2) {
        ll_watch_doing(w, name);
        memset(name, '!', sizeof name - 1);
        for (;;) pause();
    }
    wait_in(w, rank, "all-reduce", 412, site);
}

static void stall_is_named(void **state)
{
    (void)state;
    ended e = run((job){.act = stall}, -1);
    assert_reported(&e, 2, "rank 2 is in forward of conv3 (for ",
                    "; ranks 0, 1, 3 wait in all-reduce 412 (fc1.weight)");
    assert_int_equal(e.status[2], 1); /* never came back, was ended */
    assert_has(e.err, "rank 2 did not return within 2.0 s of the failure and is terminated");
    assert_int_equal(count_of(e.err, "loopline: rank 2 is in forward of conv3"), 1);
    assert_true(left->seconds[0] >= timeout_s);
}

static void die(ll_watch *w, int rank)
{
    if (rank == 2) {
        ll_watch_doing(w, "forward of conv3");
        sleep_s(seen_s);
        kill(getpid(), SIGKILL);
    }
    wait_in(w, rank, "all-reduce", 412, NULL);
}

static void die_early(ll_watch *w, int rank)
{
    if (rank == 2) {
        sleep_s(seen_s);
        ll_watch_doing(w, "a training step");
        ll_watch_tell(w);
        sleep_s(0.2); /* less than a period */
        kill(getpid(), SIGKILL);
    }
    wait_in(w, rank, "all-reduce", 412, NULL);
}

static void death_is_named_at_once(void **state)
{
    (void)state;
    ended e = run((job){.act = die, .nodes = true, .long_timeout = true}, -1);
    assert_reported(&e, 2, "rank 2 died (last seen in forward of conv3)",
                    "; ranks 0, 1, 3 wait in all-reduce 412");
    ended told = run((job){.act = die_early, .long_timeout = true}, -1);
    assert_reported(&told, 2, "rank 2 died (last seen in a training step)", "");
    assert_int_equal(count_of(e.err, "loopline: rank 2 died"), 1);
    assert_true(left->seconds[1] < 0.8 * long_s);
}

static void stop(ll_watch *w, int rank)
{
    if (rank == 2) {
        ll_watch_doing(w, "forward of conv3");
        sleep_s(0.5 * timeout_s);
        raise(SIGSTOP);
    }
    wait_in(w, rank, "all-reduce", 412, NULL);
}

static void stopped_rank_is_named(void **state)
{
    (void)state;
    ended e = run((job){.act = stop}, 2);
    assert_reported(&e, 2, "rank 2 ", "ranks 0, 1, 3 wait in all-reduce 412");
    assert_has(left->report[0], "forward of conv3");
}

static void stop_before_waits(ll_watch *w, int rank)
{
    if (rank == 2) raise(SIGSTOP);
    ll_watch_doing(w, "forward of conv4");
    until_failed(w, rank);
}

static void silence_is_named(void **state)
{
    (void)state;
    ended e = run((job){.act = stop_before_waits}, 2);
    assert_reported(&e, 2, "rank 2 has not answered for ", "(last seen ");
    assert_has(left->report[3], "; ranks 0, 1, 3 are in forward of conv4 (for ");
}

static void hub_dies(ll_watch *w, int rank)
{
    if (rank == 0) {
        ll_watch_doing(w, "forward of conv3");
        sleep_s(seen_s);
        kill(getpid(), SIGKILL);
    }
    wait_in(w, rank, "all-reduce", 412, "fc1.weight");
}

static void dead_hub_is_named(void **state)
{
    (void)state;
    ended e = run((job){.act = hub_dies, .long_timeout = true}, -1);
    assert_reported(&e, 0, "rank 0 died (last seen in forward of conv3); rank ",
                    " waits in all-reduce 412 (fc1.weight)");
    assert_int_equal(count_of(e.err, "loopline: rank 0 died"), 1);
    assert_true(left->seconds[1] < 0.8 * long_s);
}

static void hub_stops(ll_watch *w, int rank)
{
    if (rank == 0) {
        ll_watch_doing(w, "forward of conv3");
        sleep_s(0.5 * timeout_s);
        raise(SIGSTOP);
    }
    wait_in(w, rank, "all-reduce", 412, "fc1.weight");
}

static void stopped_hub_is_named(void **state)
{
    (void)state;
    ended e = run((job){.act = hub_stops}, 0);
    assert_reported(&e, 0, "rank 0 has not answered for ", " waits in all-reduce 412");
    assert_has(left->report[2], "(last seen in forward of conv3)");
}

/* Where all would be started anew, those of its node end it: nobody waits for the timeout. */
static void stopped_rank_is_ended(void **state)
{
    (void)state;
    ended e = run((job){.act = stop, .long_timeout = true, .cared = true}, -1);
    assert_int_equal(e.status[2], 1000 + SIGKILL);
    assert_has(e.err, "loopline: rank 2 was stopped by a signal, and rank 1 terminates it");
    assert_has(left->report[1], "rank 2 died");
    assert_true(left->seconds[1] < 0.8 * long_s);
    e = run((job){.act = hub_stops, .long_timeout = true, .cared = true}, -1);
    assert_int_equal(e.status[0], 1000 + SIGKILL);
    assert_has(left->report[2], "rank 0 died");
    e = run((job){.act = stop_before_waits, .cared = true, .nodes = true}, 2); /* nobody sees it */
    assert_has(left->report[1], "rank 2 has not answered for ");
}

static void give_up(ll_watch *w, int rank)
{
    sleep_s(0.1);
    if (rank == 2) ll_watch_give_up(w, "rank 2: no more memory");
    wait_in(w, rank, "all-reduce", 412, NULL);
}

static void hub_gives_up(ll_watch *w, int rank)
{
    sleep_s(0.1);
    if (rank == 0) ll_watch_give_up(w, "rank 0: no more memory");
    wait_in(w, rank, "all-reduce", 412, NULL);
}

/* Whoever gives up prints that itself. */
static void giving_up_is_everyones(void **state)
{
    (void)state;
    ended e = run((job){.act = give_up, .long_timeout = true}, -1);
    assert_reported(&e, -1, "rank 2: no more memory", "");
    assert_string_equal(e.err, "");
    assert_true(left->seconds[1] < long_s / 2);
    e = run((job){.act = hub_gives_up, .long_timeout = true}, -1);
    assert_reported(&e, -1, "rank 0: no more memory", "");
    assert_string_equal(e.err, "");
    assert_true(left->seconds[1] < long_s / 2);
}

static void give_up_and_rest(ll_watch *w, int rank)
{
    give_up(w, rank);
    rest(rank, 0.4);
}

static void hub_gives_up_and_rests(ll_watch *w, int rank)
{
    hub_gives_up(w, rank);
    rest(rank, 0.4);
}

/* The threads have nothing to do any more, and do nothing. */
static void failed_watches_are_idle(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        ended e = run(
            (job){.act = i ? hub_gives_up_and_rests : give_up_and_rest, .long_timeout = true}, -1);
        assert_reported(&e, -1, "no more memory", "");
        for (int r = 0; r < RANKS; r++)
            if (left->busy[r] > 0.05) fail_msg("rank %d was busy for %.2f s", r, left->busy[r]);
    }
}

static void disagree(ll_watch *w, int rank)
{
    if (rank == 1)
        wait_in(w, rank, "broadcast", 7, "embedding");
    else
        wait_in(w, rank, "all-reduce", 7, "fc1.weight");
}

static void mismatch_is_named(void **state)
{
    (void)state;
    ended e = run((job){.act = disagree}, -1);
    assert_reported(&e, -1, "ranks 0, 2, 3 wait in all-reduce 7 (fc1.weight)",
                    "; rank 1 waits in broadcast 7 (embedding): do all ranks call the same ");
}

static void leave(ll_watch *w, int rank)
{
    if (rank != 2) wait_in(w, rank, "all-reduce", 412, NULL);
}

static void leaving_early_is_named(void **state)
{
    (void)state;
    ended e = run((job){.act = leave}, -1);
    assert_int_equal(e.status[2], 0);
    assert_reported(&e, 2, "rank 2 has closed the communicator; ranks 0, 1, 3 wait in all-reduce",
                    "");
}

static void hub_leaves(ll_watch *w, int rank)
{
    if (rank != 0) wait_in(w, rank, "all-reduce", 412, NULL);
}

static void hub_leaving_early_is_named(void **state)
{
    (void)state;
    ended e = run((job){.act = hub_leaves}, -1);
    assert_int_equal(e.status[0], 0);
    assert_reported(&e, 0, "rank 0 has closed the communicator; rank ", " waits in all-reduce 412");
}

/* ---- ranks that are well ---- */

static void slow(ll_watch *w, int rank)
{
    for (int i = 0; i < 2; i++) { /* late every time, but never too late */
        ll_watch_doing(w, "forward");
        ll_watch_wait_begin(w, "all-reduce", i, NULL);
        sleep_s(0.6 * timeout_s);
        ll_watch_wait_end(w);
    }
    ll_watch_wait_begin(w, "all-reduce", 3, "large"); /* takes long, but moves */
    for (int i = 0; i < 130; i++) {
        sleep_s(0.01 * timeout_s);
        ll_watch_moved(w);
    }
    ll_watch_wait_end(w);
    if (rank == 3) return; /* says goodbye, the others work on */
    sleep_s(1.2 * timeout_s);
}

static void slow_ranks_are_well(void **state)
{
    (void)state;
    ended e = run((job){.act = slow}, -1);
    for (int r = 0; r < RANKS; r++)
        if (e.status[r]) fail_msg("rank %d: status %d: %s", r, e.status[r], left->report[r]);
    assert_string_equal(e.err, "");
}

static void slow_disk(ll_watch *w, int rank)
{
    if (rank == 2) {
        ll_watch_doing(w, "a checkpoint");
        ll_watch_slow(w, true);
        sleep_s(1.4 * timeout_s);
        ll_watch_slow(w, false);
        sleep_s(0.7 * timeout_s);
        return;
    }
    ll_watch_wait_begin(w, "all-reduce", 7, "agree");
    sleep_s(1.6 * timeout_s);
    ll_watch_wait_end(w);
    sleep_s(0.5 * timeout_s); /* nobody leaves while another waits */
}

/* A rank whose file takes long is waited for. */
static void a_slow_disk_is_waited_for(void **state)
{
    (void)state;
    ended e = run((job){.act = slow_disk}, -1);
    for (int r = 0; r < RANKS; r++)
        if (e.status[r]) fail_msg("rank %d: status %d: %s", r, e.status[r], left->report[r]);
}

static void wait_and_work(ll_watch *w, int rank)
{
    (void)rank;
    ll_watch_wait_begin(w, "all-reduce", 1, NULL);
    sleep_s(0.5 * timeout_s);
    ll_watch_wait_end(w);
    sleep_s(0.5 * timeout_s);
}

/* The whole job is stopped and goes on, as a shell's user may do. */
static void a_paused_job_goes_on(void **state)
{
    (void)state;
    job j = {.act = wait_and_work, .cared = true};
    pid_t pids[RANKS];
    memset(left, 0, sizeof *left);
    pipes_fork(RANKS, false, rank_main, &j, pids);
    for (int r = 0; r < RANKS; r++) assert_int_equal(setpgid(pids[r], pids[0]), 0);
    while (left->ready < RANKS) sleep_s(0.001);
    sleep_s(0.2);
    kill(-pids[0], SIGSTOP); /* all at once, as a terminal does */
    sleep_s(1.5 * timeout_s);
    kill(-pids[0], SIGCONT);
    for (int r = 0, status; r < RANKS; r++) {
        waitpid(pids[r], &status, 0);
        if (status) fail_msg("rank %d: status %d: %s", r, status_of(status), left->report[r]);
    }
}

static void one_rank_needs_no_watch(void **state)
{
    (void)state;
    ll_transport t = {.size = 1};
    ll_watch *w = (ll_watch *)&t;
    assert_int_equal(ll_watch_open(&t, LL_OK, 1, &w), LL_OK);
    assert_null(w);
    ll_watch_doing(w, "x");
    ll_watch_wait_begin(w, "x", 1, NULL);
    ll_watch_moved(w);
    ll_watch_wait_end(w);
    assert_int_equal(ll_watch_check(w), LL_OK);
    assert_false(ll_watch_failed(w));
    ll_watch_close(w);
}

/* ---- sockets ---- */

static int knock(const ll_watch_address *at)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = at->port};
    a.sin_addr.s_addr = at->addr[0];
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static void strangers_are_shown_out(void **state)
{
    (void)state;
    ll_watch_address at;
    ll_watch_hub *h;
    int world[2] = {0, 1}, wake = eventfd(0, EFD_CLOEXEC);
    assert_int_equal(ll_watch_hub_open(2, world, true, 1, wake, &at, &h), LL_OK);
    int fd[3];
    for (int i = 0; i < 3; i++) fd[i] = knock(&at);
    ll_watch_msg wrong = {.bytes = 24, .token = at.token + 1, .rank = 1};
    ll_watch_msg high = {.bytes = 24, .token = at.token, .rank = 2};
    assert_int_equal(send(fd[0], "GET / HTTP/1.1\r\nHost: somebody\r\n\r\n", 35, 0), 35);
    assert_int_equal(send(fd[1], &wrong, 24, 0), 24);
    assert_int_equal(send(fd[2], &high, 24, 0), 24);
    for (int i = 0; i < 5; i++) ll_watch_hub_serve(h, ll_now() + 0.02);
    char byte, report[LL_WATCH_REPORT];
    for (int i = 0; i < 3; i++) {
        assert_true(recv(fd[i], &byte, 1, MSG_DONTWAIT) <= 0 && errno != EAGAIN);
        errno = 0;
        close(fd[i]);
    }
    bool print;
    assert_false(ll_watch_hub_judge(h, &(ll_watch_state){0}, report, &print)); /* no rank died */
    ll_watch_hub_close(h);
    close(wake);
}

/* More guests than seats, or no descriptor for one: the hub does not try for ever; and a rank is
 * let in when it can be. */
static void guests_that_wait_are_no_work(void **state)
{
    (void)state;
    enum { MANY = 70 };
    for (int full = 0; full < 2; full++) {
        ll_watch_address at;
        ll_watch_hub *h;
        int world[2] = {0, 1}, wake = eventfd(0, EFD_CLOEXEC), fd[MANY];
        int n = full ? MANY : 1;
        assert_int_equal(ll_watch_hub_open(2, world, true, 1, wake, &at, &h), LL_OK);
        for (int i = 0; i < n; i++) fd[i] = knock(&at);
        struct rlimit limit, none;
        assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
        none = limit;
        none.rlim_cur = (rlim_t)fd[n - 1] + 1;
        if (!full) assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
        double before = busy();
        ll_watch_hub_serve(h, ll_now() + 0.3);
        double used = busy() - before;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
        if (used > 0.05) fail_msg("the hub was busy for %.2f s", used);
        for (int i = 0; i < n - 1; i++) close(fd[i]);
        ll_watch_msg hello = {.kind = LL_WATCH_HELLO, .bytes = 24, .token = at.token, .rank = 1};
        assert_int_equal(send(fd[n - 1], &hello, 24, 0), 24);
        for (int i = 0; i < 5; i++) ll_watch_hub_serve(h, ll_now() + 0.02);
        ll_watch_msg answer;
        assert_int_equal(recv(fd[n - 1], &answer, sizeof answer, MSG_DONTWAIT), 24);
        assert_true(answer.kind == LL_WATCH_WELCOME && answer.token == ~at.token);
        ll_watch_hub_close(h);
        close(fd[n - 1]);
        close(wake);
    }
}

static void no_hub_is_an_error(void **state)
{
    (void)state;
    ll_watch_address at;
    ll_watch_link link = {.fd = -1};
    int fd;
    assert_int_equal(ll_watch_listen(false, &at, &fd), LL_OK);
    close(fd); /* nobody listens */
    assert_int_equal(ll_watch_connect(&at, 3, 2, &link), LL_E_COMM);
    assert_has(ll_error_message(), "rank 3 cannot reach rank 0, port ");
    assert_has(ll_error_message(), "refused");
    at.addr[at.n] = htonl(INADDR_LOOPBACK); /* a server that does not answer */
    int one = at.n++, mute = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = at.port};
    a.sin_addr.s_addr = at.addr[one];
    assert_int_equal(bind(mute, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(mute, 4), 0);
    assert_int_equal(ll_watch_connect(&at, 3, 2, &link), LL_E_COMM);
    assert_has(ll_error_message(), "127.0.0.1: Connection timed out");
    assert_int_equal(link.fd, -1);
    close(mute);
}

/* ---- texts ---- */

static ll_watch_row row(int rank, ll_watch_fate fate, const char *doing, const char *what,
                        int64_t number)
{
    ll_watch_row r = {.rank = rank, .fate = fate, .silent_s = 10.12};
    r.state.seconds = 10.24;
    r.state.number = number;
    if (doing) strcpy(r.state.doing, doing);
    if (what) strcpy(r.state.what, what);
    r.state.waiting = what != NULL;
    return r;
}

static void reports_are_readable(void **state)
{
    (void)state;
    char text[LL_WATCH_REPORT];
    ll_watch_row rows[5000];
    for (int i = 0; i < 10; i++) rows[i] = row(i, LL_WATCH_HERE, NULL, "all-reduce", 412);
    ll_watch_report(rows, 4, text);
    assert_string_equal(text,
                        "ranks 0-3 wait in all-reduce 412 for 10.2 s: no rank is missing, but "
                        "no message arrives");
    rows[7] = row(7, LL_WATCH_HERE, NULL, NULL, 0);
    rows[8] = row(8, LL_WATCH_SILENT, "backward of fc", NULL, 0);
    ll_watch_report(rows, 10, text);
    assert_string_equal(text, "rank 8 has not answered for 10.1 s (last seen in backward of fc); "
                              "rank 7 is working (for 10.2 s); "
                              "ranks 0-6, 9 wait in all-reduce 412");
    rows[7] = row(7, LL_WATCH_DEAD, NULL, "barrier", -1);
    ll_watch_report(rows, 8, text);
    assert_string_equal(text, "rank 7 died (last seen waiting in barrier); "
                              "ranks 0-6 wait in all-reduce 412");
    for (int i = 0; i < 5000; i++) {
        rows[i] = row(i, LL_WATCH_HERE, NULL, "all-reduce", i % 3 == 1 ? 411 : 412);
        if (i % 500 == 250) {
            rows[i] = row(i, LL_WATCH_HERE, "x", NULL, 0);
            snprintf(rows[i].state.doing, LL_WATCH_NAME, "forward of layer %d", i);
            rows[i].state.seconds = i;
        }
    }
    ll_watch_report(rows, 5000, text);
    assert_true(strlen(text) < LL_WATCH_REPORT - 1);
    assert_has(text, "rank 4750 is in forward of layer 4750 (for 4750.0 s); rank 4250 is");
    assert_has(text, "; ranks 0, 2, 3, 5, 6, 8, 9, 11 ... (3327 in all) wait in all-reduce 412; ");
    assert_has(text, "; 6 other ranks are elsewhere");
}

/* The longest of everything: cut, but whole. */
static void reports_fit(void **state)
{
    (void)state;
    char text[LL_WATCH_REPORT + 8];
    ll_watch_row rows[40];
    for (int i = 0; i < 40; i++) {
        rows[i] = row(1000000 + 7 * i, LL_WATCH_DEAD, NULL, NULL, 0);
        memset(rows[i].state.doing, 'a' + i % 20, LL_WATCH_NAME - 1);
        if (i >= 20) rows[i].fate = LL_WATCH_HERE;
    }
    memset(text, 0x7f, sizeof text);
    ll_watch_report(rows, 40, text);
    assert_true(strlen(text) < LL_WATCH_REPORT);
    assert_int_equal(text[LL_WATCH_REPORT], 0x7f);
}

int main(void)
{
    left = mmap(NULL, sizeof *left, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reports_are_readable),
        cmocka_unit_test(reports_fit),
        cmocka_unit_test(one_rank_needs_no_watch),
        cmocka_unit_test(strangers_are_shown_out),
        cmocka_unit_test(no_hub_is_an_error),
        cmocka_unit_test(death_is_named_at_once),
        cmocka_unit_test(dead_hub_is_named),
        cmocka_unit_test(giving_up_is_everyones),
        cmocka_unit_test(stall_is_named),
        cmocka_unit_test(stopped_rank_is_named),
        cmocka_unit_test(silence_is_named),
        cmocka_unit_test(stopped_hub_is_named),
        cmocka_unit_test(stopped_rank_is_ended),
        cmocka_unit_test(mismatch_is_named),
        cmocka_unit_test(leaving_early_is_named),
        cmocka_unit_test(hub_leaving_early_is_named),
        cmocka_unit_test(slow_ranks_are_well),
        cmocka_unit_test(a_slow_disk_is_waited_for),
        cmocka_unit_test(a_paused_job_goes_on),
        cmocka_unit_test(failed_watches_are_idle),
        cmocka_unit_test(guests_that_wait_are_no_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
