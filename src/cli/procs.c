/* procs.c: processes below a launcher. */
#define _GNU_SOURCE /* memmem */
#include "cli/procs.h"

#include "base/file.h"
#include "comm/job.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

bool ll_proc_see(pid_t pid, ll_proc *out)
{
    char path[64], line[256], state = 'Z';
    uint64_t caught = 0;
    long parent = 0;
    snprintf(path, sizeof path, "/proc/%ld/status", (long)pid);
    LL_OWN(FILE) f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        sscanf(line, "State: %c", &state);
        sscanf(line, "PPid: %ld", &parent);
        sscanf(line, "SigCgt: %lx", &caught);
    }
    *out = (ll_proc){(pid_t)parent, caught >> (SIGUSR1 - 1) & 1, caught >> (SIGUSR2 - 1) & 1,
                     state == 'T', state == 'S'};
    return state != 'Z' && parent > 0;
}

/* A file of a process's, as it is, with a zero behind it; the caller frees it. */
static char *read_of(pid_t pid, const char *name, size_t *have)
{
    enum { MOST = 1 << 20 };
    char path[64], *text = (char *)calloc(MOST + 1, 1);
    snprintf(path, sizeof path, "/proc/%ld/%s", (long)pid, name);
    LL_OWN_FD int fd = text ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    *have = 0;
    for (ssize_t n; fd >= 0 && *have < MOST && (n = read(fd, text + *have, MOST - *have)) > 0;)
        *have += (size_t)n;
    return text;
}

int ll_proc_rank(pid_t pid)
{
    size_t have;
    LL_OWN_MEMORY char *text = read_of(pid, "environ", &have);
    return have ? ll_job_rank_in(text, have) : -1;
}

static bool is_below(pid_t pid, pid_t ancestor)
{
    ll_proc of;
    for (int depth = 0; pid > 1 && depth < 64 && ll_proc_see(pid, &of); depth++) {
        pid = of.parent;
        if (pid == ancestor) return true;
    }
    return false;
}

/* Is it a rank whose words have this one? */
static bool is_of_job(pid_t pid, const char *job)
{
    size_t have;
    LL_OWN_MEMORY char *words = read_of(pid, "cmdline", &have);
    return have && memmem(words, have, job, strlen(job)) && ll_proc_rank(pid) >= 0;
}

void ll_procs_find(ll_procs *p, pid_t launcher, const char *job)
{
    char self[4096], path[64], exe[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self);
    LL_OWN(DIR) all = opendir("/proc");
    p->n = 0;
    for (struct dirent *d; all && n > 0 && (d = readdir(all));) {
        pid_t pid = (pid_t)atol(d->d_name);
        snprintf(path, sizeof path, "/proc/%ld/exe", (long)pid);
        if (pid <= 0 || pid == launcher || readlink(path, exe, sizeof exe) != n) continue;
        if (memcmp(exe, self, (size_t)n)) continue;
        if (job ? is_of_job(pid, job) : is_below(pid, launcher))
            LL_PUSH(p->arena, p->pid, p->n, p->room, pid);
    }
}

int ll_procs_signal(const ll_procs *p, int number)
{
    int sent = 0;
    for (int i = 0; i < p->n; i++) {
        ll_proc of;
        /* MPICH has a handler for SIGUSR1 of its own, before training has */
        if (!ll_proc_see(p->pid[i], &of) || (number == SIGUSR1 && !of.counts)) continue;
        sent += kill(p->pid[i], number) == 0;
    }
    return sent;
}

void ll_procs_tell_stop(const ll_procs *p, double seconds)
{
    for (int i = 0; i < p->n; i++) {
        ll_proc of;
        if (ll_proc_see(p->pid[i], &of) && of.counts)
            sigqueue(p->pid[i], SIGUSR2, (union sigval){.sival_int = (int)(1e3 * seconds)});
    }
}

void ll_procs_end(pid_t launcher)
{
    LL_OWN(DIR) all = opendir("/proc");
    for (struct dirent *d; all && (d = readdir(all));) {
        pid_t pid = (pid_t)atol(d->d_name);
        if (pid > 1 && pid != launcher && is_below(pid, launcher)) kill(pid, SIGKILL);
    }
    kill(-launcher, SIGKILL);
    kill(launcher, SIGKILL);
}
