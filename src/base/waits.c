/* waits.c: of Linux's schedstat. */
#include "base/waits.h"

#include "base/now.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <omp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST = 16 }; /* to ask for one takes about 2 us */

typedef struct thread {
    int fd; /* of its schedstat */
    pid_t id;
    double waited; /* when it was last asked for */
} thread;

struct ll_waits {
    int n, n_beside;
    thread threads[MOST];
    clockid_t clocks[MOST]; /* of this process's other threads */
    double beside;          /* seconds that these had worked then */
};

/* Negative: not known. */
static double waited(int fd)
{
    char text[128];
    unsigned long long ran, waits;
    ssize_t n = fd < 0 ? -1 : pread(fd, text, sizeof text - 1, 0);
    if (n <= 0) return -1;
    text[n] = '\0';
    return sscanf(text, "%llu %llu", &ran, &waits) == 2 ? 1e-9 * (double)waits : -1;
}

static double since(ll_waits *w, double seconds, double *left)
{
    double most = 0, beside = 0, apart = 1;
    *left = seconds;
    if (!w) return 0;
    for (int i = 0; i < w->n; i++) {
        thread *t = &w->threads[i];
        double now = waited(t->fd);
        double waits = now < 0 ? 0 : now - t->waited;
        most = fmax(most, waits);
        apart *= fmax(0, 1 - waits / seconds);
        t->waited += waits;
    }
    /* Threads may have waited at the same time, or one for another that waited: between the two. */
    *left *= (apart + fmax(0, 1 - most / seconds)) / 2;
    /* One by one: the clock of a process does not have what those at work have just done. */
    for (int i = 0; i < w->n_beside; i++)
        beside += fmax(0, ll_clock(w->clocks[i])); /* NaN: its thread has ended */
    most -= fmax(0, beside - w->beside);
    w->beside = beside;
    return fmax(0, most);
}

double ll_waits_since(ll_waits *w)
{
    double left;
    return since(w, 1, &left);
}

double ll_waits_left(ll_waits *w, double seconds)
{
    double left;
    since(w, seconds, &left);
    return left;
}

/* Those that are there now: threads that read samples are. */
static void find_beside(ll_waits *w, int threads)
{
    DIR *d = threads <= w->n ? opendir("/proc/self/task") : NULL;
    for (struct dirent *e; d && w->n_beside < MOST && (e = readdir(d));) {
        pid_t id = atoi(e->d_name);
        bool own = id <= 0;
        for (int i = 0; i < w->n; i++) own |= w->threads[i].id == id;
        if (!own) w->clocks[w->n_beside++] = (clockid_t)(~(unsigned)id << 3 | 6); /* by the ABI */
    }
    if (d) closedir(d);
}

ll_waits *ll_waits_open(int threads)
{
    ll_waits *w = (ll_waits *)calloc(1, sizeof *w);
    if (!w) return NULL;
    w->n = threads < MOST ? threads : MOST;
    for (int i = 0; i < MOST; i++) w->threads[i].fd = -1;
#pragma omp parallel num_threads(threads)
    if (omp_get_thread_num() < w->n) {
        thread *t = &w->threads[omp_get_thread_num()];
        t->fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
        t->id = (pid_t)syscall(SYS_gettid);
    }
    if (waited(w->threads[0].fd) < 0) {
        ll_waits_close(w);
        return NULL;
    }
    find_beside(w, threads);
    ll_waits_since(w);
    return w;
}

void ll_waits_close(ll_waits *w)
{
    for (int i = 0; w && i < MOST; i++)
        if (w->threads[i].fd >= 0) close(w->threads[i].fd);
    free(w);
}
