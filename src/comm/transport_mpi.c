/* transport_mpi.c: ranks of an MPI job. Every communicator has an MPI communicator of its own, so
 * that tags of one never meet those of another.
 *
 * MPI is initialised by the first communicator, unless the program did it before, and then also
 * finalised by us, when the process ends: a program may close its communicators and open others.
 * It is not finalised if one was left open or failed: the others may be gone, and MPI_Finalize
 * would wait for them. */
#include "comm/transport_mpi.h"

#include "comm/begin.h"
#include "comm/job.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

/* Larger messages are described in blocks, as MPI counts in int. */
enum { LARGE = 1 << 30, BLOCK = 1 << 20 };

/* Of this process: MPI can be initialised once only. */
static struct {
    bool ours;  /* we initialised it */
    int n_open; /* communicators */
    bool failed;
} job;

/* ---- messages ---- */

/* One that was used before, or a new one. */
static ll_err new_message(mpi_transport *m, bool is_recv, ll_message *out)
{
    mpi_message *x = m->spare;
    if (x)
        m->spare = x->next;
    else
        x = (mpi_message *)calloc(1, sizeof *x);
    CHECK(x, LL_E_MEM, "not enough memory for a message");
    x->request = MPI_REQUEST_NULL;
    x->is_recv = is_recv;
    *out = (ll_message){.handle = x};
    return LL_OK;
}

/* So many bytes as a type of its own, for counts that an int cannot hold; to be freed. */
static ll_err large_type(size_t bytes, MPI_Datatype *out)
{
    size_t n = bytes / BLOCK;
    CHECK(n <= INT_MAX, LL_E_COMM, "a message of %zu bytes, expected at most 2^51", bytes);
    MPI_Datatype block;
    MPI_TRY(MPI_Type_contiguous(BLOCK, MPI_BYTE, &block));
    MPI_TRY(MPI_Type_create_struct(2, (int[]){(int)n, (int)(bytes % BLOCK)},
                                   (MPI_Aint[]){0, (MPI_Aint)(n * BLOCK)},
                                   (MPI_Datatype[]){block, MPI_BYTE}, out));
    MPI_TRY(MPI_Type_commit(out));
    MPI_TRY(MPI_Type_free(&block));
    return LL_OK;
}

static ll_err mpi_post(ll_transport *t, bool sends, void *data, size_t bytes, int peer, int tag,
                       ll_message *out)
{
    mpi_transport *m = (mpi_transport *)t;
    TRY(new_message(m, !sends, out));
    mpi_message *x = (mpi_message *)out->handle;
    MPI_Datatype type = MPI_BYTE;
    int n = (int)bytes;
    if (bytes > LARGE) {
        TRY(large_type(bytes, &type));
        n = 1;
    }
    if (sends)
        MPI_TRY(MPI_Isend(data, n, type, peer, tag, m->comm, &x->request));
    else
        MPI_TRY(MPI_Irecv(data, n, type, peer, tag, m->comm, &x->request));
    if (bytes > LARGE) MPI_TRY(MPI_Type_free(&type));
    return LL_OK;
}

static ll_err mpi_library(ll_transport *t, const ll_library_call *call, ll_message *out)
{
    mpi_transport *m = (mpi_transport *)t;
    TRY(new_message(m, false, out));
    return ll_mpi_library(m, (mpi_message *)out->handle, call);
}

static ll_err mpi_test(ll_transport *t, ll_message *message, bool *done)
{
    mpi_transport *m = (mpi_transport *)t;
    mpi_message *x = (mpi_message *)message->handle;
    int flag = 0;
    MPI_Status status;
    MPI_TRY(MPI_Test(&x->request, &flag, &status));
    *done = flag;
    if (!flag) return LL_OK;
    message->bytes = 0;
    if (x->is_recv) {
        MPI_Count n;
        MPI_TRY(MPI_Get_elements_x(&status, MPI_BYTE, &n));
        message->bytes = (size_t)n;
    }
    if (x->copy_bytes) memcpy(x->copy_to, x->temp, x->copy_bytes);
    x->copy_bytes = 0;
    x->next = m->spare;
    m->spare = x;
    message->handle = NULL;
    return LL_OK;
}

static bool mpi_cancel(ll_transport *, ll_message *message)
{
    mpi_message *x = (mpi_message *)message->handle;
    int over = 0;
    if (x->is_recv) MPI_Cancel(&x->request);
    return MPI_Test(&x->request, &over, MPI_STATUS_IGNORE) == MPI_SUCCESS && over;
}

/* ---- shared memory ---- */

/* Where each rank's part begins in this one's address space. */
static ll_err map_parts(MPI_Win win, ll_shm *w)
{
    for (int i = 0; i < w->n_rank; i++) {
        MPI_Aint bytes;
        int unit;
        MPI_TRY(MPI_Win_shared_query(win, i, &bytes, &unit, &w->part[i]));
    }
    memset(w->part[w->me], 0, w->bytes); /* pages come to lie near who touches them first */
    return LL_OK;
}

static ll_err node_comm(mpi_transport *m, int *n_rank)
{
    if (m->node_comm == MPI_COMM_NULL) {
        MPI_TRY(MPI_Comm_split_type(m->comm, MPI_COMM_TYPE_SHARED, m->t.rank, MPI_INFO_NULL,
                                    &m->node_comm));
        MPI_TRY(MPI_Comm_set_errhandler(m->node_comm, MPI_ERRORS_RETURN));
    }
    MPI_TRY(MPI_Comm_size(m->node_comm, n_rank));
    if (m->node_ranks) return LL_OK;
    m->node_ranks = (int *)malloc(sizeof(int) * (size_t)*n_rank);
    CHECK(m->node_ranks, LL_E_MEM, "not enough memory for a communicator");
    MPI_TRY(MPI_Allgather(&m->t.rank, 1, MPI_INT, m->node_ranks, 1, MPI_INT, m->node_comm));
    return LL_OK;
}

static ll_err mpi_share(ll_transport *t, size_t bytes, ll_shm *out)
{
    mpi_transport *m = (mpi_transport *)t;
    *out = (ll_shm){.bytes = bytes};
    TRY(node_comm(m, &out->n_rank));
    MPI_TRY(MPI_Comm_rank(m->node_comm, &out->me));
    out->ranks = m->node_ranks;
    MPI_Win *win = (MPI_Win *)malloc(sizeof *win);
    out->part = (char **)calloc((size_t)out->n_rank, sizeof(char *));
    out->handle = win;
    CHECK(win && out->part, LL_E_MEM, "not enough memory for a window");
    *win = MPI_WIN_NULL;
    MPI_Info info;
    void *mine;
    MPI_TRY(MPI_Info_create(&info));
    MPI_TRY(MPI_Info_set(info, "alloc_shared_noncontig", "true"));
    MPI_TRY(
        MPI_Win_allocate_shared((MPI_Aint)(bytes ? bytes : 1), 1, info, m->node_comm, &mine, win));
    MPI_TRY(MPI_Info_free(&info));
    TRY(map_parts(*win, out));
    MPI_TRY(MPI_Barrier(m->node_comm)); /* nobody reads before all is zero */
    return LL_OK;
}

static void mpi_unshare(ll_transport *t, ll_shm *w)
{
    ll_mpi_conceal(t, w->handle);
    free(w->part);
    *w = (ll_shm){0};
}

/* ---- communicators ---- */

static const ll_transport_ops mpi_ops;

static void mpi_close(ll_transport *t, bool failed)
{
    mpi_transport *m = (mpi_transport *)t;
    job.n_open--;
    if (failed) { /* messages may be under way: their memory must stay */
        job.failed = true;
        return;
    }
    if (m->node_comm != MPI_COMM_NULL) MPI_Comm_free(&m->node_comm);
    if (m->comm != MPI_COMM_NULL) MPI_Comm_free(&m->comm);
    for (mpi_message *x = m->spare, *next; x; x = next) {
        next = x->next;
        free(x->counts);
        free(x->temp);
        free(x);
    }
    free(m->node);
    free(m->world);
    free(m->node_ranks);
    free(m);
    if (job.n_open == 0) ll_mpi_types_free();
}

/* comm belongs to the transport from now on. */
static ll_err new_transport(MPI_Comm comm, mpi_transport **out)
{
    mpi_transport *m = (mpi_transport *)calloc(1, sizeof *m);
    CHECK(m, LL_E_MEM, "not enough memory for a communicator");
    job.n_open++;
    *out = m;
    m->comm = comm;
    m->node_comm = MPI_COMM_NULL;
    m->t.ops = &mpi_ops;
    MPI_TRY(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
    MPI_TRY(MPI_Comm_rank(comm, &m->t.rank));
    MPI_TRY(MPI_Comm_size(comm, &m->t.size));
    int *max_tag, found;
    MPI_TRY(MPI_Comm_get_attr(comm, MPI_TAG_UB, &max_tag, &found));
    m->t.max_tag = found ? *max_tag : 32767; /* the least that MPI allows */
    m->node = (int *)malloc(sizeof(int) * (size_t)m->t.size);
    m->world = (int *)malloc(sizeof(int) * (size_t)m->t.size);
    CHECK(m->node && m->world, LL_E_MEM, "not enough memory for a communicator");
    m->t.node = m->node;
    m->t.world = m->world;
    m->t.lazy = !strncmp(ll_transport_library(), "MPICH", 5);
    return LL_OK;
}

/* A node is known by its first rank. */
static ll_err find_nodes(mpi_transport *m)
{
    int n_rank;
    TRY(node_comm(m, &n_rank));
    MPI_TRY(MPI_Allgather(&m->node_ranks[0], 1, MPI_INT, m->node, 1, MPI_INT, m->comm));
    for (int i = 0; i < m->t.size; i++) m->world[i] = i;
    return LL_OK;
}

static ll_err mpi_split(ll_transport *t, int color, int key, ll_transport **out)
{
    mpi_transport *m = (mpi_transport *)t, *child;
    MPI_Comm comm;
    *out = NULL;
    MPI_TRY(MPI_Comm_split(m->comm, color < 0 ? MPI_UNDEFINED : color, key, &comm));
    if (comm == MPI_COMM_NULL) return LL_OK;
    TRY(new_transport(comm, &child));
    MPI_TRY(MPI_Allgather(&t->rank, 1, MPI_INT, child->world, 1, MPI_INT, comm));
    for (int i = 0; i < child->t.size; i++) {
        int r = child->world[i];
        child->node[i] = t->node[r];
        child->world[i] = t->world[r];
    }
    *out = &child->t;
    return LL_OK;
}

static const ll_transport_ops mpi_ops = {.name = "mpi",
                                         .post = mpi_post,
                                         .test = mpi_test,
                                         .cancel = mpi_cancel,
                                         .library = mpi_library,
                                         .split = mpi_split,
                                         .share = mpi_share,
                                         .unshare = mpi_unshare,
                                         .expose = ll_mpi_expose,
                                         .conceal = ll_mpi_conceal,
                                         .reach = ll_mpi_reach,
                                         .leave = ll_mpi_leave,
                                         .move = ll_mpi_move,
                                         .serve = ll_mpi_serve,
                                         .close = mpi_close};

/* ---- the job ---- */

bool ll_transport_launched(void)
{
    return getenv("PMIX_RANK") || getenv("OMPI_COMM_WORLD_SIZE") ||
           (getenv("PMI_RANK") && getenv("PMI_SIZE")) || ll_job_size() > 1;
}

const char *ll_transport_library(void)
{
    static char text[64];
    if (text[0]) return text;
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int n = 0;
    if (MPI_Get_library_version(version, &n) != MPI_SUCCESS) return "unknown MPI";
    char number[16];
    if (sscanf(version, "Open MPI v%15[^, ]", number) == 1)
        snprintf(text, sizeof text, "Open MPI %s", number);
    else if (sscanf(version, "MPICH Version: %15s", number) == 1)
        snprintf(text, sizeof text, "MPICH %s", number);
    else
        snprintf(text, sizeof text, "%.*s", (int)strcspn(version, ",\n"), version);
    return text;
}

bool ll_transport_takes_gpus(void)
{
    /* An extension, which not every library has. */
    int (*ask)(void) = (int (*)(void))(uintptr_t)dlsym(RTLD_DEFAULT, "MPIX_Query_cuda_support");
    return ask && ask();
}

bool ll_transport_ends_together(void)
{
    int off = 1;
    return job.ours && !job.n_open && !job.failed && MPI_Finalized(&off) == MPI_SUCCESS && !off;
}

static void finalize_at_exit(void)
{
    if (ll_transport_ends_together()) MPI_Finalize();
}

/* Several processes were started, and MPI shows each of them itself alone: without this they would
 * all train the same, and write over each other's files. */
static ll_err found_alone(void)
{
    const char *library = ll_transport_library();
    const char *plugin = strncmp(library, "MPICH", 5) ? "pmix" : "pmi2"; /* as usually built */
    if (getenv("SLURM_STEP_NUM_TASKS") && getenv("SLURM_PROCID") && !getenv("OMPI_COMM_WORLD_SIZE"))
        FAIL(LL_E_COMM,
             "srun started %d ranks, but each runs alone: use srun --mpi=%s (srun --mpi=list shows "
             "the choices), or the mpiexec of %s, which this program was built with",
             ll_job_size(), plugin, library);
    FAIL(LL_E_COMM,
         "%d ranks were started, but each runs alone: start them with the mpiexec of %s, which "
         "this program was built with, or with srun --mpi=%s",
         ll_job_size(), library, plugin);
}

/* Open MPI does not begin alone under srun, but ends the process with pages of text. */
static bool sure_to_fail(void)
{
    static const char *const links[] = {"PMIX_RANK", "PMI_RANK", "PMI_FD", "OMPI_COMM_WORLD_SIZE"};
    for (size_t i = 0; i < sizeof links / sizeof *links; i++)
        if (getenv(links[i])) return false;
    return ll_job_size() > 1 && !strncmp(ll_transport_library(), "Open MPI", 8);
}

static ll_err initialize(void)
{
    int on = 0, off = 0, provided, size;
    MPI_TRY(MPI_Finalized(&off));
    CHECK(!off, LL_E_COMM, "MPI was finalised: open communicators before that");
    MPI_TRY(MPI_Initialized(&on));
    if (on) return LL_OK;
    if (sure_to_fail()) TRY(found_alone());
    if (ll_job_size() == 0) ll_job_own_folder();
    MPI_TRY(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided));
    job.ours = true;
    atexit(finalize_at_exit);
    MPI_TRY(MPI_Comm_size(MPI_COMM_WORLD, &size));
    if (size == 1 && ll_job_size() > 1) TRY(found_alone());
    return LL_OK;
}

/* What ranks must have in common to understand each other. */
typedef struct likeness {
    char version[32];
    uint32_t words;
} likeness;

/* Ranks of another version would misread the messages that follow, those with other words take
 * other ways through the program. By MPI's own collectives: ours may be tuned by the words. Every
 * rank finds the same. */
static ll_err check_alike(const mpi_transport *m)
{
    likeness mine = {.words = ll_job_words()}, first, other;
    snprintf(mine.version, sizeof mine.version, "%s", ll_version());
    first = mine;
    MPI_TRY(MPI_Bcast(&first, sizeof first, MPI_BYTE, 0, m->comm));
    int who = memcmp(&mine, &first, sizeof mine) ? m->t.rank : INT_MAX;
    MPI_TRY(MPI_Allreduce(MPI_IN_PLACE, &who, 1, MPI_INT, MPI_MIN, m->comm));
    if (who == INT_MAX) return LL_OK;
    other = mine;
    MPI_TRY(MPI_Bcast(&other, sizeof other, MPI_BYTE, who, m->comm));
    CHECK(!strcmp(first.version, other.version), LL_E_COMM,
          "rank 0 is Loopline %s, but rank %d is %s: start every rank with the same program",
          first.version, who, other.version);
    FAIL(LL_E_ARG,
         "the arguments of rank %d differ from those of rank 0: start every rank with the same",
         who);
}

static ll_err open_transport(const void *comm, ll_transport **out)
{
    if (!comm) {
        TRY(initialize());
    } else {
        int on = 0, inter = 0;
        MPI_TRY(MPI_Initialized(&on));
        CHECK(on, LL_E_COMM, "MPI is not initialised: call MPI_Init_thread first");
        CHECK(*(const MPI_Comm *)comm != MPI_COMM_NULL, LL_E_ARG,
              "MPI_COMM_NULL is no communicator: ranks that MPI_Comm_split leaves out open none");
        MPI_TRY(MPI_Comm_test_inter(*(const MPI_Comm *)comm, &inter));
        CHECK(!inter, LL_E_ARG, "an intercommunicator has two groups: use MPI_Intercomm_merge");
    }
    MPI_Comm mine;
    mpi_transport *m;
    MPI_TRY(MPI_Comm_dup(comm ? *(const MPI_Comm *)comm : MPI_COMM_WORLD, &mine));
    TRY(new_transport(mine, &m));
    TRY(find_nodes(m));
    ll_err rc = check_alike(m);
    if (rc == LL_OK)
        *out = &m->t;
    else
        mpi_close(&m->t, false); /* all ranks do */
    return rc;
}

ll_err ll_transport_mpi(const void *comm, double timeout_s, ll_transport **out)
{
    *out = NULL;
    ll_begin *guard =
        ll_begin_guard(&(ll_begin_opts){.seconds = timeout_s,
                                        .what = comm ? "the opening of a communicator" : "MPI_Init",
                                        .library = ll_transport_library()});
    ll_err rc = open_transport(comm, out);
    ll_begin_over(guard);
    return rc;
}

ll_err ll_transport_check_threads(void)
{
    int level;
    MPI_TRY(MPI_Query_thread(&level));
    CHECK(level >= MPI_THREAD_SERIALIZED, LL_E_COMM,
          "a progress thread needs MPI_THREAD_SERIALIZED or more, but MPI was initialised with "
          "less (level %d): use MPI_Init_thread",
          level);
    return LL_OK;
}
