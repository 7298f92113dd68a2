/* relay.c: what stays while mpiexec runs in a child. It sleeps until there is something to pass on:
 * what ranks print, or a signal; or the child has ended. */
#define _GNU_SOURCE /* ppoll */
#include "cli/relay.h"

#include "cli/procs.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const int numbers[] = {SIGCHLD, SIGTERM, SIGINT, SIGHUP};
enum { N_NUMBER = sizeof numbers / sizeof *numbers };
static volatile sig_atomic_t heard, asked; /* the signal that came; to pass on; 0: none */
static bool away;                          /* the launcher does not hear the terminal's */

static void on_signal(int number, siginfo_t *from, void *)
{
    bool sent = from->si_code <= 0; /* by a process, to this one; else a terminal's, to the group */
    if (number == SIGCHLD) return;
    heard = number;
    if (sent || away) asked = number;
}

void ll_relay_begin(bool alone, sigset_t *before)
{
    sigset_t wanted;
    away = alone;
    struct sigaction mine = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO}, now;
    sigemptyset(&wanted);
    for (int i = 0; i < N_NUMBER; i++) {
        sigaction(numbers[i], NULL, &now);
        /* what the user has set to be ignored stays so */
        if (numbers[i] != SIGCHLD && now.sa_handler == SIG_IGN) continue;
        sigaddset(&wanted, numbers[i]);
        sigaction(numbers[i], &mine, NULL);
    }
    sigprocmask(SIG_BLOCK, &wanted, before);
    sigdelset(before, SIGCHLD);
}

/* Who asks twice does not want to wait. */
static void pass_on(pid_t child, int times)
{
    ll_procs here = {0};
    if (away && times == 1) ll_procs_find(&here, child, NULL);
    if (!ll_procs_signal(&here, SIGTERM)) kill(child, asked);
    asked = 0;
    free(here.pid);
}

static bool write_all(int fd, const char *bytes, ssize_t n)
{
    for (ssize_t done; n > 0; bytes += done, n -= done) {
        done = write(fd, bytes, (size_t)n);
        if (done < 0 && errno == EINTR) done = 0;
        if (done < 0) return false;
    }
    return true;
}

bool ll_relay(int from, pid_t child, const sigset_t *open, int *status)
{
    static const struct timespec at_once;
    char bytes[4096];
    bool whole = true, ended = false;
    for (int times = 0; !ended || from >= 0;) {
        struct pollfd p = {.fd = from, .events = POLLIN};
        ended = ended || waitpid(child, status, WNOHANG) == child;
        int n = ppoll(&p, 1, ended ? &at_once : NULL, open);
        if (asked) pass_on(child, ++times);
        if (n == 0) return whole; /* it has ended, and who may still have our pipe is silent */
        if (n < 0) continue;
        ssize_t got = read(from, bytes, sizeof bytes);
        if (got <= 0)
            from = -1;
        else
            whole = whole && write_all(STDOUT_FILENO, bytes, got);
    }
    return whole;
}

void ll_relay_end(const sigset_t *before)
{
    for (int i = 0; i < N_NUMBER; i++) {
        struct sigaction now;
        sigaction(numbers[i], NULL, &now);
        if (now.sa_handler != SIG_IGN) signal(numbers[i], SIG_DFL);
    }
    sigprocmask(SIG_SETMASK, before, NULL);
    if (heard) raise(heard);
}
