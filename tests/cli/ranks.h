/* ranks.h: a run that goes on, watched from outside: its processes, the lines that it has written.
 * Nothing here takes a time for a sign: what is waited for comes, or the program ends. */
#pragma once
#include "program.h"

static inline bool program_over(pid_t child)
{
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid;
}

static inline int count_of(const char *text, const char *what)
{
    int n = 0;
    for (const char *c = text; c && (c = strstr(c, what)); c++) n++;
    return n;
}

static inline int lines_in(const char *path)
{
    char *text = read_whole(path, NULL);
    int n = count_of(text, "\n");
    free(text);
    return n;
}

/* Until the file has so many lines, or the program is over. */
static inline void await_lines(pid_t child, const char *path, int n)
{
    while (!program_over(child) && lines_in(path) < n) sleep_ms(1);
}

static inline int parent_of(int pid, char comm[32])
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "r");
    int parent = 0;
    if (!f || fscanf(f, "%*d (%31[^)]) %*c %d", comm, &parent) != 2) parent = 0;
    if (f) fclose(f);
    return parent;
}

/* A rank of the launching process, the k-th that is found, around; 0: there is none. What the
 * launching process itself has forked is mpiexec, or will be. */
static inline pid_t rank_of(pid_t launcher, int k)
{
    pid_t found[64];
    int n = 0;
    DIR *d = opendir("/proc");
    for (struct dirent *e; (e = readdir(d));) {
        char comm[32] = "", other[32];
        int pid = atoi(e->d_name), up = pid ? parent_of(pid, comm) : 0;
        if (strcmp(comm, "loopline") || pid == launcher || up == launcher || n == 64) continue;
        while (up > 1 && up != launcher) up = parent_of(up, other);
        if (up == launcher) found[n++] = pid;
    }
    closedir(d);
    return n ? found[k % n] : 0;
}

/* The same, when there is one; 0: the program is over. */
static inline pid_t await_rank(pid_t launcher, int k)
{
    pid_t rank = 0;
    while (!rank && !program_over(launcher)) rank = rank_of(launcher, k);
    return rank;
}

static inline void signal_rank(pid_t launcher, int k, int number)
{
    pid_t rank = await_rank(launcher, k);
    if (!rank) fail_msg("the program is over before it has ranks"); /* 0: the test's own group */
    kill(rank, number);
}
