/* mapped.c: a list that a signal handler may read: places in it are made, never freed, and used
 * again. */
#include "base/mapped.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct place {
    struct place *next;
    _Atomic uintptr_t data; /* 0: nothing is noted here */
    size_t size;
    int fd;         /* -1: it could not be opened */
    char path[512]; /* its end, where it is longer */
} place;

static place *_Atomic first;
static place *_Atomic cut;    /* one of which something is gone */
static _Atomic size_t cut_at; /* what */
static size_t page_bytes;
static struct sigaction before;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* May call very little. */
static bool mend(uintptr_t at)
{
    for (place *p = first; p; p = p->next) {
        uintptr_t data = p->data;
        if (!data || at < data || at - data >= p->size) continue;
        uintptr_t page = at / page_bytes * page_bytes;
        void *zeros = mmap((void *)page, page_bytes, PROT_READ,
                           MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS, -1, 0);
        if (zeros == MAP_FAILED) return false;
        cut_at = at - data;
        cut = p;
        return true;
    }
    return false;
}

static void on_bus(int number, siginfo_t *info, void *)
{
    if (!mend((uintptr_t)info->si_addr)) sigaction(number, &before, NULL); /* and it comes again */
}

void ll_mapped_guard(void)
{
    struct sigaction mine = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO | SA_RESTART}, was;
    page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    if (sigaction(SIGBUS, NULL, &was) || was.sa_sigaction == on_bus) return;
    before = was;
    sigaction(SIGBUS, &mine, NULL);
}

void ll_mapped_add(const void *data, size_t size, const char *path)
{
    pthread_mutex_lock(&lock);
    place *p = first;
    while (p && (p->data || p == cut)) p = p->next;
    bool made = !p;
    if (made) p = (place *)calloc(1, sizeof *p);
    if (p) {
        size_t n = strlen(path), most = sizeof p->path - 1;
        snprintf(p->path, sizeof p->path, "%s", n > most ? path + n - most : path);
        p->size = size;
        p->fd = open(path, O_RDONLY | O_CLOEXEC);
        p->data = (uintptr_t)data;
        if (made) p->next = first, first = p;
    }
    pthread_mutex_unlock(&lock);
}

void ll_mapped_remove(const void *data)
{
    pthread_mutex_lock(&lock);
    for (place *p = first; p; p = p->next)
        if (p->data == (uintptr_t)data) {
            p->data = 0;
            if (p->fd >= 0) close(p->fd);
        }
    pthread_mutex_unlock(&lock);
}

ll_err ll_mapped_check(void)
{
    const place *p = atomic_load_explicit(&cut, memory_order_relaxed);
    if (!p) return LL_OK;
    FAIL(LL_E_IO, "%s was truncated while in use: it had %zu bytes, and byte %zu is gone", p->path,
         p->size, (size_t)cut_at);
}

ll_err ll_mapped_whole(void)
{
    struct stat now;
    pthread_mutex_lock(&lock);
    for (place *p = first; p && !cut; p = p->next) {
        if (!p->data || p->fd < 0 || fstat(p->fd, &now) || (size_t)now.st_size >= p->size) continue;
        cut_at = (size_t)now.st_size;
        cut = p;
    }
    pthread_mutex_unlock(&lock);
    return ll_mapped_check();
}
