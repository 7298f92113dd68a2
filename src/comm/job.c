/* job.c: this process as one of a job's.
 *
 * Launchers tell a process its place by environment variables, each family its own. A process that
 * fails before MPI_Init cannot call MPI_Abort; Open MPI's mpirun and srun end the others when one
 * exits with a failure, but MPICH's mpiexec leaves them waiting in MPI_Init for ever, unless told
 * "abort" in the words of its process manager's protocol (PMI-1: a line of text on the descriptor
 * that PMI_FD names). */
#define _GNU_SOURCE /* nftw */
#include "comm/job.h"

#include <ftw.h>
#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Pairs that a launcher sets together; a size without its rank is some outer program's. */
static const struct {
    const char *size, *rank;
} families[] = {{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                {"PMI_SIZE", "PMI_RANK"},
                {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}};

/* Read once, before there are threads: MPI_Init writes the environment. */
static struct {
    int size, rank, pmi; /* pmi: descriptor of the process manager; -1: none */
} place;

static void find_place(void)
{
    const char *fd = getenv("PMI_FD");
    place.pmi = fd ? atoi(fd) : -1;
    for (size_t i = 0; i < sizeof families / sizeof *families && place.size == 0; i++) {
        const char *s = getenv(families[i].size), *r = getenv(families[i].rank);
        if (!s || !r || atoi(s) < 1) continue;
        place.size = atoi(s);
        place.rank = atoi(r);
    }
}

static pthread_once_t found = PTHREAD_ONCE_INIT;

int ll_job_size(void)
{
    pthread_once(&found, find_place);
    return place.size;
}

int ll_job_rank(void)
{
    pthread_once(&found, find_place);
    return place.rank;
}

static void name_folder(char path[4096], pid_t pid)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(path, 4096, "%s/ompi.loopline.%ld", tmp && *tmp ? tmp : "/tmp", (long)pid);
}

void ll_job_own_folder(void)
{
    char path[4096];
    name_folder(path, getpid());
    setenv("OMPI_MCA_orte_top_session_dir", path, 0);
}

static int remove_one(const char *path, const struct stat *s, int kind, struct FTW *where)
{
    (void)s, (void)kind, (void)where;
    (void)remove(path);
    return 0;
}

void ll_job_remove_folder(pid_t pid)
{
    char path[4096];
    name_folder(path, pid);
    nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

int ll_job_rank_in(const char *environment, size_t bytes)
{
    const char *end = environment + bytes;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        size_t n = strlen(families[i].rank);
        for (const char *c = environment; c < end; c += strnlen(c, (size_t)(end - c)) + 1)
            if ((size_t)(end - c) > n + 1 && !memcmp(c, families[i].rank, n) && c[n] == '=')
                return atoi(c + n + 1);
    }
    return -1;
}

static uint32_t words;

void ll_job_set_words(uint32_t hash)
{
    words = hash;
}

uint32_t ll_job_words(void)
{
    return words;
}

const char *ll_job_hosts_option(void)
{
#ifdef OPEN_MPI
    return "--host";
#else
    return "-hosts";
#endif
}

/* Written where a failure is found, which may be on a watching thread, read where it is printed. */
static struct {
    pthread_mutex_t lock;
    char message[1024];
    ll_failure how;
} shared = {.lock = PTHREAD_MUTEX_INITIALIZER};

void ll_job_share_failure(const char *message, ll_failure how)
{
    pthread_mutex_lock(&shared.lock);
    snprintf(shared.message, sizeof shared.message, "%s", message);
    shared.how = how;
    pthread_mutex_unlock(&shared.lock);
}

static atomic_bool lost, cared;

void ll_job_set_cared(void)
{
    cared = true;
}

bool ll_job_is_cared(void)
{
    return cared;
}

static void (*note)(const char *text);

void ll_job_set_note(void (*how)(const char *text))
{
    note = how;
}

void ll_job_note(const char *text)
{
    if (note) note(text);
}

void ll_job_lose(void)
{
    lost = true;
}

int ll_job_status(int status)
{
    return lost && cared ? LL_JOB_LOST : status;
}

ll_failure ll_job_failure(void)
{
    pthread_mutex_lock(&shared.lock);
    bool same = shared.message[0] && !strcmp(shared.message, ll_error_message());
    ll_failure how = same ? shared.how : LL_FAILURE_ALONE;
    pthread_mutex_unlock(&shared.lock);
    return how;
}

void ll_job_abort(int status)
{
    int begun = 0, ended = 0;
    /* Launchers that are told to abort may lose what ranks have just printed. */
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    MPI_Initialized(&begun);
    MPI_Finalized(&ended);
    int size = 0;
    if (begun && !ended) MPI_Comm_size(MPI_COMM_WORLD, &size);
    /* One whose MPI does not know of the others (a launcher of another MPI) would end itself only,
     * with a page about it. */
    if (size > 1) MPI_Abort(MPI_COMM_WORLD, status);
    if (!begun || size == 1) ll_job_abort_unbegun(status);
}

void ll_job_abort_unbegun(int status)
{
    if (ll_job_size() > 1 && place.pmi >= 0) dprintf(place.pmi, "cmd=abort exitcode=%d\n", status);
}
