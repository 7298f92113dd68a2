/* aside.c: values laid aside in a file, by a thread of its own. */
#include "machine/aside.h"

#include "base/text.h"
#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct job {
    char *memory;
    size_t at, bytes;
    bool in;
} job;

struct ll_aside {
    char folder[256];
    int fd;
    char *view;
    size_t bytes;
    job *jobs; /* [most] a ring */
    uint64_t most, asked, made;
    int failed; /* errno of the first copy that was not made; 0: all were */
    bool ends, runs;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

/* errno, or 0. */
static int copy(int fd, const job *j)
{
    for (size_t done = 0; done < j->bytes;) {
        size_t left = j->bytes - done;
        off_t at = (off_t)(j->at + done);
        ssize_t n =
            j->in ? pwrite(fd, j->memory + done, left, at) : pread(fd, j->memory + done, left, at);
        if (n > 0) done += (size_t)n;
        if (n == 0) return EIO;
        if (n < 0 && errno != EINTR) return errno;
    }
    return 0;
}

static void *work(void *arg)
{
    ll_aside *a = (ll_aside *)arg;
    pthread_mutex_lock(&a->lock);
    for (;;) {
        while (a->made == a->asked && !a->ends) pthread_cond_wait(&a->changed, &a->lock);
        if (a->made == a->asked) break;
        job j = a->jobs[a->made % a->most];
        pthread_mutex_unlock(&a->lock);
        int failed = copy(a->fd, &j);
        pthread_mutex_lock(&a->lock);
        if (failed && !a->failed) a->failed = failed;
        a->made++;
        pthread_cond_broadcast(&a->changed);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* A file without a name. */
static ll_err open_file(ll_aside *a)
{
    char path[300];
    snprintf(path, sizeof path, "%s/aside-XXXXXX", a->folder);
    a->fd = mkstemp(path);
    CHECK(a->fd >= 0, LL_E_IO, "offload: no file can be made in %s: %s", a->folder,
          strerror(errno));
    unlink(path);
    int rc = posix_fallocate(a->fd, 0, (off_t)a->bytes);
    CHECK(!rc, LL_E_IO, "offload: %s has no room for %s: %s: name another folder", a->folder,
          LL_BYTES(a->bytes), strerror(rc));
    void *m = mmap(NULL, a->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, a->fd, 0);
    CHECK(m != MAP_FAILED, LL_E_IO, "offload: a file in %s cannot be mapped: %s", a->folder,
          strerror(errno));
    a->view = (char *)m;
    return LL_OK;
}

ll_err ll_aside_open(const char *folder, size_t bytes, int most, ll_aside **out)
{
    *out = NULL;
    LL_OWN(ll_aside) a = (ll_aside *)calloc(1, sizeof *a);
    CHECK(a, LL_E_MEM, "not enough memory for copies");
    snprintf(a->folder, sizeof a->folder, "%s", folder);
    a->bytes = bytes;
    a->most = (uint64_t)most + 1;
    a->fd = -1;
    a->jobs = (job *)calloc(a->most, sizeof *a->jobs);
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    CHECK(a->jobs, LL_E_MEM, "not enough memory for copies");
    TRY(open_file(a));
    a->runs = ll_thread_start(&a->thread, work, a);
    CHECK(a->runs, LL_E_MEM, "no thread can be had to copy beside");
    return LL_HAND(out, a);
}

void ll_aside_close(ll_aside *a)
{
    if (!a) return;
    if (a->runs) {
        pthread_mutex_lock(&a->lock);
        a->ends = true;
        pthread_cond_broadcast(&a->changed);
        pthread_mutex_unlock(&a->lock);
        pthread_join(a->thread, NULL);
    }
    if (a->view) munmap(a->view, a->bytes);
    if (a->fd >= 0) close(a->fd);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    free(a->jobs);
    free(a);
}

char *ll_aside_view(const ll_aside *a)
{
    return a->view;
}

uint64_t ll_aside_start(ll_aside *a, bool in, void *memory, size_t at, size_t bytes)
{
    pthread_mutex_lock(&a->lock);
    while (a->asked - a->made == a->most) pthread_cond_wait(&a->changed, &a->lock);
    a->jobs[a->asked % a->most] = (job){(char *)memory, at, bytes, in};
    uint64_t number = ++a->asked;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    return number;
}

ll_err ll_aside_wait(ll_aside *a, uint64_t number)
{
    pthread_mutex_lock(&a->lock);
    while (a->made < number) pthread_cond_wait(&a->changed, &a->lock);
    int failed = a->failed;
    pthread_mutex_unlock(&a->lock);
    CHECK(!failed, LL_E_IO, "offload: a copy to or from a file in %s failed: %s", a->folder,
          strerror(failed));
    return LL_OK;
}

ll_err ll_aside_wait_all(ll_aside *a)
{
    pthread_mutex_lock(&a->lock);
    uint64_t asked = a->asked;
    pthread_mutex_unlock(&a->lock);
    return ll_aside_wait(a, asked);
}
