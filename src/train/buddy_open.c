/* buddy_open.c: finding the newest whole state in memory, and bringing it together.
 *
 * The first rank of each node looks at the files there are on it, and all tell all. Each node's
 * file has the parts of that node's ranks and of those of the node before. A state is there if the
 * files of its step have those of all nodes between them. Where one of them has everything it is
 * read as it is; else what each has goes to all nodes, which put it together: what a file has not
 * is zero. */
#define _GNU_SOURCE /* SEEK_DATA */
#include "train/buddy_int.h"

#include "base/file.h"
#include "run/ranks.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDER "/dev/shm"
enum { MOST = 16, CHUNK = 1 << 22 };

/* A whole file of a node. */
typedef struct found {
    int32_t start, node, n_node, turn;
    int32_t whole, here; /* here: 0: there is none in this place of the list */
    int64_t step, bytes;
} found;

const char *ll_seals_path(ll_arena *a, const seals_name *n, int turn)
{
    const char *const ends[] = {"seals", "0.safetensors", "1.safetensors"};
    return ll_arena_printf(a, FOLDER "/loopline-%s-%d-%d-%s", n->job, n->start, n->node,
                           ends[turn + 1]);
}

/* Calls each with every name of the job's files. */
static void each_file(const char *job, void (*each)(void *context, const char *name), void *context)
{
    char prefix[64];
    int n = snprintf(prefix, sizeof prefix, "loopline-%s-", job);
    LL_OWN(DIR) d = opendir(FOLDER);
    for (struct dirent *e; d && (e = readdir(d));)
        if (!strncmp(e->d_name, prefix, (size_t)n)) each(context, e->d_name + n);
}

typedef struct removal {
    const char *job;
    int but;
} removal;

static void remove_one(void *context, const char *rest)
{
    const removal *r = (const removal *)context;
    char path[512];
    int start = -1;
    if (sscanf(rest, "%d-", &start) == 1 && start == r->but) return;
    snprintf(path, sizeof path, FOLDER "/loopline-%s-%s", r->job, rest);
    unlink(path);
}

void ll_seals_remove(const char *job, int but)
{
    each_file(job, remove_one, &(removal){job, but});
}

void ll_buddy_sweep(const char *job)
{
    ll_seals_remove(job, -1);
}

/* ---- looking ---- */

static bool is_ours(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid();
}

/* Is this turn's file sealed, by all of one step, and what they wrote? */
static bool is_whole(const char *path, const seals *t, int turn, found *out)
{
    const seal *s = &t->of[turn * t->n_slot];
    int64_t step = __atomic_load_n(&s[0].step, __ATOMIC_ACQUIRE);
    uint32_t want = 0, have = 0;
    for (int i = 0; i < t->n_slot; i++) {
        if (__atomic_load_n(&s[i].step, __ATOMIC_ACQUIRE) != step) return false;
        want ^= s[i].crc;
    }
    LL_OWN(ll_st_file) f = NULL;
    if (step <= 0 || !is_ours(path) || ll_st_open(path, &f) != LL_OK) return false;
    int64_t bytes = (int64_t)(f->data_at + f->data_bytes);
    if (ll_st_remainder(f, 0, f->data_bytes, &have) != LL_OK || have != want) return false;
    *out = (found){t->start, t->node, t->n_node, turn, t->whole != 0, 1, step, bytes};
    return true;
}

typedef struct search {
    const char *job;
    found *list;
    int n;
} search;

static void look(void *context, const char *rest)
{
    search *x = (search *)context;
    seals_name name = {.job = x->job};
    int end = 0;
    LL_OWN(ll_arena) a = ll_arena_new();
    if (sscanf(rest, "%d-%d-seals%n", &name.start, &name.node, &end) != 2 || !end || rest[end])
        return;
    const char *path = ll_seals_path(a, &name, -1);
    LL_OWN_FD int fd = is_ours(path) ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
    off_t size = fd < 0 ? 0 : lseek(fd, 0, SEEK_END);
    void *at = size >= (off_t)sizeof(seals) ? mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, fd, 0)
                                            : MAP_FAILED;
    if (at == MAP_FAILED) return;
    const seals *t = (const seals *)at;
    bool good = t->magic == SEALS_MAGIC && t->n_slot > 0 && t->node >= 0 && t->node < t->n_node &&
                (size_t)size == sizeof *t + 2 * sizeof(seal) * (size_t)t->n_slot;
    int newest = good && t->of[t->n_slot].step > t->of[0].step, had = x->n;
    for (int i = 0; i < 2 && good && x->n < MOST; i++) {
        int turn = i ? !newest : newest;
        if (t->n_node == 1 && x->n > had) break; /* nobody needs the older one */
        x->n += is_whole(ll_seals_path(a, &name, turn), t, turn, &x->list[x->n]);
    }
    munmap(at, (size_t)size);
}

/* ---- deciding ---- */

typedef struct choice {
    int start;
    int64_t step;
    bool complete;
} choice;

/* Do these files have all nodes' parts of this step? take: [n], those that are needed. */
static bool covers(const found *all, int n, int start, int64_t step, bool *take)
{
    uint8_t *seen = NULL;
    int left = -1, n_node = 0;
    bool whole = false;
    memset(take, 0, sizeof *take * (size_t)n);
    for (int i = 0; i < n && !whole; i++) {
        const found *f = &all[i];
        if (!f->here || f->start != start || f->step != step) continue;
        if (!seen) seen = (uint8_t *)calloc((size_t)f->n_node, 1), left = n_node = f->n_node;
        if (!seen || f->n_node != n_node) break;
        whole = f->whole;
        const int has[] = {f->node, (f->node + n_node - 1) % n_node};
        bool fresh = whole || !seen[has[0]] || !seen[has[1]];
        for (int k = 0; k < 2; k++) {
            left -= !seen[has[k]];
            seen[has[k]] = 1;
        }
        if (whole) memset(take, 0, sizeof *take * (size_t)n);
        take[i] = fresh;
    }
    free(seen);
    return whole || left == 0;
}

static choice choose(const found *all, int n, bool *take)
{
    choice best = {.start = -1};
    LL_EACH (const found, f, all, n) {
        bool newer =
            f->here && (f->start > best.start || (f->start == best.start && f->step > best.step));
        if (newer && covers(all, n, f->start, f->step, take))
            best = (choice){f->start, f->step, true};
    }
    if (best.complete) best.complete = covers(all, n, best.start, best.step, take);
    return best;
}

/* ---- bringing together ---- */

/* Adds bytes to a file that has zeros there, or the same. */
static ll_err add(int fd, const uint8_t *data, size_t n, int64_t at)
{
    LL_OWN_MEMORY uint8_t *was = (uint8_t *)calloc(n, 1);
    CHECK(was && pread(fd, was, n, at) >= 0, LL_E_MEM, "not enough memory to assemble a state");
    for (size_t i = 0; i < n; i++) was[i] |= data[i];
    CHECK(pwrite(fd, was, n, at) == (ssize_t)n, LL_E_MEM, "no room in " FOLDER " for a state: %m");
    return LL_OK;
}

/* One file goes from its rank to a file of each node. Whatever fails, all come to the end. */
static ll_err pass_on(ll_comm *c, int from, const char *path, int to, int64_t bytes)
{
    LL_OWN_MEMORY uint8_t *data = (uint8_t *)malloc(CHUNK);
    bool mine = ll_comm_rank(c) == from;
    LL_OWN_FD int fd = mine ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
    ll_err rc = data && (!mine || fd >= 0) ? LL_OK : RAISE(LL_E_SYS, "%s: cannot be read", path);
    rc = ll_comm_agree(c, rc);
    for (int64_t at = 0, range[2]; rc == LL_OK;) {
        range[0] = mine ? lseek(fd, at, SEEK_DATA) : 0;
        range[1] = mine && range[0] >= 0 ? lseek(fd, range[0], SEEK_HOLE) : 0;
        TRY(ll_comm_broadcast(c, range, sizeof range, LL_U8, from, NULL));
        if (range[0] < 0 || range[0] >= bytes) break;
        int64_t n = range[1] - range[0] < CHUNK ? range[1] - range[0] : CHUNK;
        if (mine && pread(fd, data, (size_t)n, range[0]) != n) memset(data, 0, (size_t)n);
        TRY(ll_comm_broadcast(c, data, n, LL_U8, from, NULL));
        rc = ll_comm_agree(c, to >= 0 ? add(to, data, (size_t)n, range[0]) : LL_OK);
        at = range[0] + n;
    }
    if (rc == LL_OK && to >= 0 && ftruncate(to, bytes))
        rc = RAISE(LL_E_SYS, "a state in memory: %m");
    return ll_comm_agree(c, rc);
}

static int leader_of(const ll_comm *c, int rank)
{
    int r = 0;
    while (ll_comm_nodes(c)[r] != ll_comm_nodes(c)[rank]) r++;
    return r;
}

/* This node's file of the whole: the leader makes it. */
static ll_err bring_together(ll_comm *c, const char *job, const found *all, int n, const bool *take,
                             const char *path)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    bool lead = leader_of(c, ll_comm_rank(c)) == ll_comm_rank(c);
    int how = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
    LL_OWN_FD int to = lead ? open(path, how, 0600) : -1;
    ll_err rc = !lead || to >= 0 ? LL_OK : RAISE(LL_E_SYS, "%s: %m", path);
    rc = ll_comm_agree(c, rc);
    for (int i = 0; i < n && rc == LL_OK; i++) {
        seals_name name = {job, all[i].start, all[i].node};
        if (take[i])
            rc = pass_on(c, i / MOST, ll_seals_path(a, &name, all[i].turn), to, all[i].bytes);
    }
    return rc;
}

/* Of a state that one file of each node has by itself, this node's; NULL: not so. */
static const char *own_file(ll_comm *c, const char *job, const found *all, const choice *best,
                            ll_arena *a)
{
    int size = c ? ll_comm_size(c) : 1, rank = c ? ll_comm_rank(c) : 0;
    const char *mine = NULL;
    for (int r = 0; r < size; r++) {
        int lead = c ? leader_of(c, r) : 0;
        const found *f = NULL;
        for (int i = lead * MOST; i < (lead + 1) * MOST && !f; i++) {
            const found *x = &all[i];
            bool same = x->here && x->start == best->start && x->step == best->step;
            if (same && (x->whole || x->n_node == 1)) f = x;
        }
        if (!f) return NULL;
        seals_name name = {job, f->start, f->node};
        if (r == rank) mine = ll_seals_path(a, &name, f->turn);
    }
    return mine;
}

ll_err ll_buddy_open(ll_comm *c, const char *job, ll_st_file **out)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    int size = c ? ll_comm_size(c) : 1, rank = c ? ll_comm_rank(c) : 0, n = size * MOST;
    int lead = c ? leader_of(c, rank) : 0;
    found *all = LL_NEW_ARRAY(a, found, n);
    bool *take = LL_NEW_ARRAY(a, bool, n);
    search x = {.job = job, .list = all + (int64_t)rank * MOST};
    *out = NULL;
    if (lead == rank) each_file(job, look, &x);
    if (c) TRY(ll_comm_allgather(c, all, (int64_t)sizeof *all * n / 4, LL_I32, NULL));
    choice best = choose(all, n, take);
    if (!best.complete) return LL_OK;
    const char *path = own_file(c, job, all, &best, a);
    if (!path) {
        path = ll_arena_printf(a, FOLDER "/loopline-%s-all-%d-%d", job, best.start, lead);
        if (lead == rank) unlink(path);
        TRY(bring_together(c, job, all, n, take, path));
    }
    return ll_ranks_agree(c, ll_st_open(path, out));
}
