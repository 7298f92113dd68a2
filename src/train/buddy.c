/* buddy.c: writing the state to memory: who writes what, and to whom it is sent. */
#include "train/buddy_int.h"

#include "base/crc32c.h"
#include "base/file.h"
#include "run/ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* What one rank writes to a node's file, in the file's order. */
typedef struct share {
    int rank;         /* whose it is */
    int slot;         /* of the seals */
    int n;            /* tensors */
    int *at;          /* [n]: places in the file's order */
    ll_st_part *part; /* [n] */
    size_t bytes;
} share;

struct ll_buddy {
    ll_comm *comm;
    const ll_session *s;
    const ll_loose *replicas;
    ll_arena *arena;
    const ll_start *start;
    int rank, size;
    int *node, n_node; /* [size]: of each rank, from 0 on */
    int my_node, index, n_own, n_sender;
    ll_st_content x;
    ll_st_image image;
    uint64_t *kind; /* [size][n]: by place, a hash of the part that the rank has; 0: none */
    bool *writes;   /* [size][n]: of the ranks of a node with one part, the one that writes it */
    share mine, sent, *received; /* received [rounds]: n 0: nobody's */
    int to, rounds, turn;        /* rank of the buddy; of sending; when this rank sends */
    char *pack, *room;           /* what is sent and what came */
    char *file[2];
    seals *table;
    size_t table_bytes, held;
    int copies;
};

static const ll_st_tensor *tensor_at(const ll_buddy *b, int place)
{
    return &b->x.tensors[b->image.order[place]];
}

static size_t part_bytes(const ll_st_tensor *t, const ll_st_part *p)
{
    return ll_tensor_bytes(t->dtype, &p->shape);
}

/* ---- who is where, and has what ---- */

static void find_nodes(ll_buddy *b)
{
    const int *id = b->comm ? ll_comm_nodes(b->comm) : NULL;
    b->node = LL_NEW_ARRAY(b->arena, int, b->size);
    for (int r = 0; r < b->size; r++) {
        int first = 0;
        while (id && id[first] != id[r]) first++;
        b->node[r] = !id ? 0 : first < r ? b->node[first] : b->n_node;
        if (b->node[r] == b->n_node) b->n_node++;
    }
    b->my_node = b->node[b->rank];
    for (int r = 0; r < b->size; r++) {
        b->n_own += b->node[r] == b->my_node;
        b->index += b->node[r] == b->my_node && r < b->rank;
    }
}

static int on_node(const ll_buddy *b, int node)
{
    int n = 0;
    for (int r = 0; r < b->size; r++) n += b->node[r] == node;
    return n;
}

/* The i-th rank of a node; -1: there is none. */
static int rank_on(const ll_buddy *b, int node, int i)
{
    for (int r = 0; r < b->size; r++)
        if (b->node[r] == node && i-- == 0) return r;
    return -1;
}

static ll_err learn_parts(ll_buddy *b)
{
    int n = b->x.n;
    b->kind = LL_NEW_ARRAY(b->arena, uint64_t, (int64_t)b->size * n + 1);
    for (int k = 0; k < n; k++) {
        int i = b->image.order[k];
        const ll_st_part whole = {.shape = b->x.tensors[i].shape};
        const ll_st_part *p = b->x.parts ? &b->x.parts[i] : &whole;
        ll_st_part clean = {.shape = {.n = p->shape.n}};
        for (int d = 0; d < p->shape.n; d++)
            clean.shape.d[d] = p->shape.d[d], clean.at[d] = p->at[d];
        if (!b->x.tensors[i].data || !ll_numel(&p->shape)) continue;
        uint64_t low = ll_crc32c(0, &clean, sizeof clean);
        b->kind[(int64_t)b->rank * n + k] = 1ull << 32 | low;
    }
    if (!b->comm || !n) return LL_OK;
    return ll_comm_allgather(b->comm, b->kind, (int64_t)b->size * n * 2, LL_I32, NULL);
}

/* Does rank q, of this node, have the part that rank r has? */
static bool has_copy(const ll_buddy *b, int r, int place, int node, int q)
{
    return b->node[q] == node &&
           b->kind[(int64_t)q * b->x.n + place] == b->kind[(int64_t)r * b->x.n + place];
}

static int by_size(const void *x, const void *y)
{
    const int64_t *a = (const int64_t *)x, *b = (const int64_t *)y;
    return a[0] != b[0] ? (a[0] < b[0]) - (a[0] > b[0]) : (a[1] > b[1]) - (a[1] < b[1]);
}

/* Of ranks with the same part the one writes it that has least to write so far, the largest tensors
 * first. All ranks come to the same: sizes are those of whole tensors. */
static void choose_writers(ll_buddy *b)
{
    int n = b->x.n;
    int64_t(*order)[2] = (int64_t(*)[2])ll_arena_alloc(b->arena, sizeof *order * (size_t)(n + 1));
    int64_t *load = LL_NEW_ARRAY(b->arena, int64_t, b->size);
    b->writes = LL_NEW_ARRAY(b->arena, bool, (int64_t)b->size *n + 1);
    for (int k = 0; k < n; k++) {
        const ll_st_tensor *t = tensor_at(b, k);
        order[k][0] = (int64_t)ll_tensor_bytes(t->dtype, &t->shape);
        order[k][1] = k;
    }
    qsort(order, (size_t)n, sizeof *order, by_size);
    for (int i = 0; i < n; i++)
        for (int r = 0, k = (int)order[i][1]; r < b->size; r++) {
            int first = r, least = r;
            if (!b->kind[(int64_t)r * n + k]) continue;
            for (int q = 0; q < b->size; q++) {
                if (!has_copy(b, r, k, b->node[r], q)) continue;
                if (q < first) first = q;
                if (load[q] < load[least] || (load[q] == load[least] && q < least)) least = q;
            }
            if (first != r) continue; /* chosen by then */
            b->writes[(int64_t)least * n + k] = true;
            load[least] += order[i][0];
        }
}

/* Of what rank r has: what it writes on its node; or what it sends, because the node of its buddy
 * has no copy. */
static bool is_in_share(const ll_buddy *b, int r, int place, bool sent)
{
    bool is = b->writes[(int64_t)r * b->x.n + place];
    for (int q = 0; q < b->size && is && sent; q++)
        is = !has_copy(b, r, place, (b->node[r] + 1) % b->n_node, q);
    return is;
}

static void make_share(ll_buddy *b, bool sent, share *out)
{
    *out = (share){.rank = b->rank, .slot = b->index};
    out->at = LL_NEW_ARRAY(b->arena, int, b->x.n + 1);
    out->part = LL_NEW_ARRAY(b->arena, ll_st_part, b->x.n + 1);
    for (int k = 0; k < b->x.n; k++) {
        if (!is_in_share(b, b->rank, k, sent)) continue;
        int i = b->image.order[k];
        out->at[out->n] = k;
        out->part[out->n] =
            b->x.parts ? b->x.parts[i] : (ll_st_part){.shape = tensor_at(b, k)->shape};
        out->bytes += part_bytes(tensor_at(b, k), &out->part[out->n++]);
    }
}

/* Ranks of a node send to those of the next, round by round: who has how many tensors for me? */
static ll_err find_senders(ll_buddy *b)
{
    int next = (b->my_node + 1) % b->n_node, before = (b->my_node + b->n_node - 1) % b->n_node;
    b->to = rank_on(b, next, b->index % on_node(b, next));
    b->turn = b->index / on_node(b, next);
    b->n_sender = on_node(b, before);
    for (int v = 0; v < b->n_node; v++) {
        int n = on_node(b, (v + 1) % b->n_node), m = ll_ceil_div(on_node(b, v), n);
        if (m > b->rounds) b->rounds = m;
    }
    b->received = LL_NEW_ARRAY(b->arena, share, b->rounds);
    for (int q = 0; q < b->rounds; q++) {
        share *g = &b->received[q];
        int i = q * b->n_own + b->index;
        *g = (share){.rank = rank_on(b, before, i), .slot = b->n_own + i};
        for (int k = 0; g->rank >= 0 && k < b->x.n; k++) g->n += is_in_share(b, g->rank, k, true);
        g->at = LL_NEW_ARRAY(b->arena, int, g->n + 1);
        g->part = LL_NEW_ARRAY(b->arena, ll_st_part, g->n + 1);
        for (int k = 0, i = 0; g->rank >= 0 && k < b->x.n; k++)
            if (is_in_share(b, g->rank, k, true)) g->at[i++] = k;
        ll_exchange x = {.number = ll_comm_next_number(b->comm, "buddies", NULL),
                         .to = q == b->turn ? b->to : -1,
                         .from = g->rank,
                         .data = b->sent.part,
                         .bytes = sizeof(ll_st_part) * (size_t)b->sent.n,
                         .room = g->part,
                         .room_bytes = sizeof(ll_st_part) * (size_t)g->n};
        TRY(ll_comm_exchange(b->comm, &x, NULL));
        for (int i = 0; i < g->n; i++) g->bytes += part_bytes(tensor_at(b, g->at[i]), &g->part[i]);
    }
    return LL_OK;
}

/* ---- files ---- */

/* The leader of a node makes it, when no other has it open; the others join. */
static ll_err map_file(const char *path, size_t bytes, bool make, char **out)
{
    int how = O_RDWR | O_CLOEXEC | O_NOFOLLOW | (make ? O_CREAT | O_EXCL : 0);
    LL_OWN_FD int fd = open(path, how, 0600);
    CHECK(fd >= 0, LL_E_SYS, "%s: %m", path);
    struct stat st;
    bool good =
        fstat(fd, &st) == 0 && st.st_uid == geteuid() && (!make || !ftruncate(fd, (off_t)bytes));
    void *at = good ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    CHECK(at != MAP_FAILED, LL_E_MEM, "%s: not enough memory for %zu bytes: %m", path, bytes);
    *out = (char *)at;
    return LL_OK;
}

/* Memory that is not there would be seen as a signal, in the middle of a copy. */
static ll_err reserve(const ll_buddy *b, const char *path, const share *g)
{
    LL_OWN_FD int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    int why = fd < 0 ? errno : 0;
    for (int i = 0; i < g->n && !why; i++) {
        const ll_st_tensor *t = tensor_at(b, g->at[i]);
        ll_st_runs runs = ll_st_runs_of(&t->shape, &g->part[i], t->dtype);
        for (int64_t k = 0; k < runs.n && !why; k++)
            why = posix_fallocate(fd, (off_t)(b->image.at[g->at[i]] + ll_st_run_at(&runs, k)),
                                  (off_t)runs.bytes);
    }
    CHECK(!why, LL_E_MEM,
          "%s: no room for %.1f MiB of the state (train.buddy): %s; set train.buddy=0, or enlarge "
          "/dev/shm",
          path, (double)b->image.bytes / 1048576, strerror(why));
    return LL_OK;
}

static ll_err open_files(ll_buddy *b, bool make)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    seals_name name = {b->start->job, b->start->number, b->my_node};
    TRY(map_file(ll_seals_path(a, &name, -1), b->table_bytes, make, (char **)&b->table));
    for (int g = 0; g < 2; g++) {
        const char *path = ll_seals_path(a, &name, g);
        TRY(map_file(path, b->image.bytes, make, &b->file[g]));
        if (make) memcpy(b->file[g], b->image.header, b->image.header_bytes);
    }
    return LL_OK;
}

static ll_err reserve_all(ll_buddy *b)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    seals_name name = {b->start->job, b->start->number, b->my_node};
    for (int g = 0; g < 2; g++) {
        TRY(reserve(b, ll_seals_path(a, &name, g), &b->mine));
        for (int q = 0; q < b->rounds; q++)
            TRY(reserve(b, ll_seals_path(a, &name, g), &b->received[q]));
    }
    return LL_OK;
}

/* Bytes of the state that this node's file has. */
static ll_err count_bytes(ll_buddy *b)
{
    int64_t *all = LL_NEW_ARRAY(b->arena, int64_t, b->size);
    all[b->rank] = (int64_t)b->mine.bytes;
    for (int q = 0; q < b->rounds; q++) all[b->rank] += (int64_t)b->received[q].bytes;
    if (b->comm) TRY(ll_comm_allgather(b->comm, all, (int64_t)b->size * 2, LL_I32, NULL));
    for (int r = 0; r < b->size; r++) b->held += b->node[r] == b->my_node ? (size_t)all[r] : 0;
    return LL_OK;
}

static ll_err open_memory(ll_buddy *b)
{
    bool lead = b->index == 0;
    int n_slot = b->n_own + b->n_sender;
    b->table_bytes = sizeof(seals) + 2 * sizeof(seal) * (size_t)n_slot;
    TRY(ll_ranks_agree(b->comm, lead ? open_files(b, true) : LL_OK));
    if (lead)
        *b->table = (seals){.magic = SEALS_MAGIC,
                            .start = b->start->number,
                            .node = b->my_node,
                            .n_node = b->n_node,
                            .n_slot = n_slot,
                            .whole = b->held == b->image.bytes - b->image.header_bytes};
    TRY(ll_ranks_agree(b->comm, lead ? LL_OK : open_files(b, false)));
    return ll_ranks_agree(b->comm, reserve_all(b));
}

static ll_st_list list(const ll_buddy *b, ll_arena *a)
{
    return b->replicas ? ll_loose_replicas(b->replicas, a) : ll_session_all_tensors(b->s, a);
}

ll_err ll_buddy_new(ll_comm *c, const ll_start *start, const ll_session *s,
                    const ll_loose *replicas, const ll_st_pair *meta, int n_meta, ll_buddy **out)
{
    ll_arena *a = ll_arena_new();
    LL_OWN(ll_buddy) b = LL_NEW(a, ll_buddy);
    *b = (ll_buddy){.comm = c, .s = s, .replicas = replicas, .arena = a, .start = start, .size = 1};
    *out = NULL;
    if (c) b->rank = ll_comm_rank(c), b->size = ll_comm_size(c);
    find_nodes(b);
    ll_st_pair *pairs = LL_NEW_ARRAY(a, ll_st_pair, n_meta + 2);
    memcpy(pairs, meta, sizeof *meta * (size_t)n_meta);
    pairs[n_meta] = (ll_st_pair){"step", SEALS_NO_STEP};
    pairs[n_meta + 1] = (ll_st_pair){"norm", SEALS_NO_STEP};
    ll_st_list l = list(b, a);
    b->x = (ll_st_content){.tensors = l.tensors,
                           .n = l.n,
                           .parts = l.parts,
                           .meta = pairs,
                           .n_meta = n_meta + 2,
                           .unsummed = true};
    TRY(ll_ranks_agree(c, ll_st_plan(&b->x, a, &b->image)));
    TRY(learn_parts(b));
    choose_writers(b);
    make_share(b, false, &b->mine);
    if (b->n_node > 1) {
        make_share(b, true, &b->sent);
        TRY(find_senders(b));
    }
    TRY(count_bytes(b));
    size_t most = 1;
    for (int q = 0; q < b->rounds; q++)
        if (b->received[q].bytes > most) most = b->received[q].bytes;
    b->pack = (char *)malloc(b->sent.bytes + 1);
    b->room = (char *)malloc(most);
    TRY(ll_ranks_agree(
        c, b->pack && b->room ? LL_OK : RAISE(LL_E_MEM, "not enough memory for train.buddy")));
    TRY(open_memory(b));
    return LL_HAND(out, b);
}

void ll_buddy_free(ll_buddy *b)
{
    if (!b) return;
    for (int g = 0; g < 2; g++)
        if (b->file[g]) munmap(b->file[g], b->image.bytes);
    if (b->table) munmap(b->table, b->table_bytes);
    free(b->pack);
    free(b->room);
    ll_arena_free(b->arena);
}

size_t ll_buddy_bytes(const ll_buddy *b)
{
    return 2 * b->held;
}

const char *ll_buddy_text(const ll_buddy *b)
{
    return b->n_node > 1 ? "survives the loss of ranks, and of any one node"
                         : "survives the loss of ranks, but not of this node";
}

/* ---- a copy ---- */

/* Bytes from .. to-1 of a share. data: what its parts are, one behind another; NULL: as the session
 * has them. */
static uint32_t write_piece(const ll_buddy *b, const share *g, const char *data, char *file,
                            size_t from, size_t to)
{
    uint32_t r = 0;
    uint64_t at = b->image.header_bytes;
    size_t past = 0; /* of the share */
    for (int i = 0; i < g->n && past < to; i++) {
        const ll_st_tensor *t = tensor_at(b, g->at[i]);
        ll_st_runs runs = ll_st_runs_of(&t->shape, &g->part[i], t->dtype);
        const char *x = data ? data + past : (const char *)t->data;
        for (int64_t k = 0; k < runs.n; k++, past += runs.bytes, x += runs.bytes) {
            size_t skip = from > past ? from - past : 0, end = to > past ? to - past : 0;
            if (end > runs.bytes) end = runs.bytes;
            if (skip >= end) continue;
            uint64_t begin = b->image.at[g->at[i]] + ll_st_run_at(&runs, k) + skip;
            r = ll_crc32c_zeros(r, begin - at);
            r = ll_crc32c_copy(r, file + begin, x + skip, end - skip);
            at = begin + end - skip;
        }
    }
    return ll_crc32c_zeros(r, b->image.bytes - at);
}

static uint32_t write_share(const ll_buddy *b, const share *g, const char *data, char *file)
{
    enum { LEAST = 1 << 16 }; /* for a thread */
    int most = b->s->p->threads,
        n = g->bytes / LEAST < (size_t)most ? (int)(g->bytes / LEAST) : most;
    uint32_t r = 0;
    if (n < 1) n = 1;
#pragma omp parallel for num_threads(n) reduction(^ : r)
    for (int k = 0; k < n; k++)
        r ^= write_piece(b, g, data, file, g->bytes * (size_t)k / (size_t)n,
                         g->bytes * (size_t)(k + 1) / (size_t)n);
    return r;
}

static void pack(const ll_buddy *b)
{
    char *to = b->pack;
    for (int i = 0; i < b->sent.n; i++) {
        const ll_st_tensor *t = tensor_at(b, b->sent.at[i]);
        size_t n = part_bytes(t, &b->sent.part[i]);
        memcpy(to, t->data, n);
        to += n;
    }
}

static void write_sealed(const ll_buddy *b, const share *s, const char *data, int g, int64_t step)
{
    seal *x = &b->table->of[g * b->table->n_slot + s->slot];
    __atomic_store_n(&x->step, -1, __ATOMIC_RELEASE);
    x->crc = write_share(b, s, data, b->file[g]);
    __atomic_store_n(&x->step, step, __ATOMIC_RELEASE);
}

/* On a device, what is there now. */
static void refresh(ll_buddy *b)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    if (!b->s->machine->device) return;
    ll_st_list now = list(b, a);
    for (int i = 0; i < now.n; i++) ((ll_st_tensor *)b->x.tensors)[i].data = now.tensors[i].data;
}

ll_err ll_buddy_copy(ll_buddy *b, int64_t step, const char *norm)
{
    int g = b->copies++ % 2;
    char number[sizeof SEALS_NO_STEP];
    refresh(b);
    if (b->index == 0) {
        char *at = strstr(b->file[g] + 8, "\"step\":\"");
        char *norm_at = strstr(b->file[g] + 8, "\"norm\":\"");
        LL_ASSERT(at && norm_at);
        snprintf(number, sizeof number, "%0*ld", (int)sizeof number - 1, step);
        __atomic_store_n(&b->table->of[g * b->table->n_slot].step, -1, __ATOMIC_RELEASE);
        memcpy(at + 8, number, sizeof number - 1);
        memcpy(norm_at + 8, norm, strnlen(norm, 16));
    }
    write_sealed(b, &b->mine, NULL, g, step);
    if (b->rounds) pack(b);
    for (int q = 0; q < b->rounds; q++) {
        const share *from = &b->received[q];
        ll_exchange x = {.number = ll_comm_next_number(b->comm, "buddies", NULL),
                         .to = q == b->turn ? b->to : -1,
                         .from = from->rank,
                         .data = b->pack,
                         .bytes = b->sent.bytes,
                         .room = b->room,
                         .room_bytes = from->bytes};
        TRY(ll_comm_exchange(b->comm, &x, NULL));
        if (from->rank >= 0) write_sealed(b, from, b->room, g, step);
    }
    if (b->copies == 2 && b->index == 0) ll_seals_remove(b->start->job, b->start->number);
    return LL_OK;
}
