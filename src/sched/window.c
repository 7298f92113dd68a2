/* window.c: collectives among the ranks of one node, through memory that all of them can read.
 *
 * The data is cut into a block for each rank, and every block into as many pieces; piece c of all
 * blocks together is chunk c. A chunk goes through up to three stages:
 *   put   I copy my data of it into my window, for the others to see
 *   sum   I combine my block's piece of all ranks, and leave the result in my window
 *   take  I copy the pieces that others have left for me
 * Between two stages every rank must have finished the one before, so a stage is a round that ends
 * with a signal and the next begins by awaiting everyone's. Chunks follow each other through the
 * stages, so that it costs one such meeting a chunk, not three:
 *
 *     round      0        1               2                       3                4
 *     stages     put 0    sum 0, put 1    take 0, sum 1, put 2    take 1, sum 2    take 2
 *
 * A window has two slots; chunk c uses slot c % 2. Rank r never puts its own block, so the place of
 * block r in its slot is free for the sum. Why two slots are enough: who puts chunk c + 2 in round
 * c + 2 has awaited everyone's signal of round c + 1, in which chunk c was last read there; sums
 * are read one round later and written one round later.
 *
 * Small chunks stay in the caches: main memory is read once and written once, whatever the number
 * of ranks. Below a few thousand elements meetings cost more than sums: window1 has one meeting,
 * and everyone sums everything. With data that others can read (shared) nothing is put, sums are
 * taken from where they are, and a last meeting keeps data as it is until everyone has taken it. */
#include "sched/algos.h"

enum {
    SEGMENT = 32768
}; /* elements in a chunk by default: two slots of it fit in a private cache */

typedef struct win {
    ll_steps *e;
    const ll_coll_spec *s;
    int rank, size;
    int n_chunk;
    int64_t room; /* elements in a slot for one block's piece */
} win;

static win start(ll_steps *e, const ll_coll_spec *s, int rank)
{
    win w = {.e = e, .s = s, .rank = rank, .size = s->size, .n_chunk = 1};
    int64_t most = ll_largest_block(s), segment = s->segment ? s->segment : SEGMENT;
    int64_t piece = segment / s->size > 0 ? segment / s->size : 1;
    if (most > piece) w.n_chunk = (int)((most + piece - 1) / piece);
    w.room = (most + w.n_chunk - 1) / w.n_chunk;
    return w;
}

/* Piece c of block b of DATA; returns its length. */
static int64_t piece(const win *w, int b, int c, int64_t *at)
{
    int64_t start, end, from, to;
    ll_coll_block(w->s, b, &start, &end);
    ll_share(end - start, w->n_chunk, c, &from, &to);
    *at = start + from;
    return to - from;
}

static int64_t slot(const win *w, int b, int c)
{
    return (c % 2 * w->size + b) * w->room;
}

static void await_all(const win *w, int value)
{
    for (int i = 1; i < w->size; i++) ll_emit_await(w->e, (w->rank + i) % w->size, value);
}

/* ---- stages of a chunk ---- */
static void put(const win *w, int c)
{
    for (int i = 1; i < w->size; i++) { /* neighbours first: nobody's block is everyone's first */
        int b = (w->rank + i) % w->size;
        int64_t at, n = piece(w, b, c, &at);
        ll_emit_copy(w->e, LL_WINDOW, slot(w, b, c), (ll_ref){w->rank, LL_DATA, at}, n);
    }
}

static void put_own(const win *w, int c)
{
    int64_t at, n = piece(w, w->rank, c, &at);
    ll_emit_copy(w->e, LL_WINDOW, slot(w, w->rank, c), (ll_ref){w->rank, LL_DATA, at}, n);
}

static void sum(const win *w, int c, bool shared)
{
    int64_t at, n = piece(w, w->rank, c, &at);
    ll_ref *from = LL_NEW_ARRAY(w->e->arena, ll_ref, w->size);
    for (int i = 0; i < w->size; i++)
        from[i] = shared || i == w->rank ? (ll_ref){i, LL_DATA, at}
                                         : (ll_ref){i, LL_WINDOW, slot(w, w->rank, c)};
    ll_emit_fold_all(w->e, LL_DATA, at, from, w->size, n);
}

static void take(const win *w, int c, bool shared)
{
    for (int i = 1; i < w->size; i++) {
        int b = (w->rank + i) % w->size;
        int64_t at, n = piece(w, b, c, &at);
        ll_ref from = shared ? (ll_ref){b, LL_DATA, at} : (ll_ref){b, LL_WINDOW, slot(w, b, c)};
        ll_emit_copy(w->e, LL_DATA, at, from, n);
    }
}

/* ---- collectives ---- */
static bool nothing(const ll_coll_spec *s)
{
    return s->size < 2 || s->count == 0;
}

/* Rounds 0..last, each of which begins by awaiting the end of the one before. */
static void meet(const win *w, int round)
{
    if (round == 0) return;
    ll_emit_signal(w->e);
    ll_emit_next(w->e);
    await_all(w, round);
}

static void allreduce(ll_steps *e, const ll_coll_spec *s, int rank)
{
    if (nothing(s)) return;
    win w = start(e, s, rank);
    for (int k = 0; k < w.n_chunk + 2; k++) {
        meet(&w, k);
        if (k >= 2) take(&w, k - 2, false);
        if (k >= 1 && k <= w.n_chunk) {
            sum(&w, k - 1, false);
            put_own(&w, k - 1);
        }
        if (k < w.n_chunk) put(&w, k);
    }
}

static void allreduce_shared(ll_steps *e, const ll_coll_spec *s, int rank)
{
    if (nothing(s)) return;
    win w = start(e, s, rank);
    for (int k = 0; k < w.n_chunk + 2; k++) {
        meet(&w, k);
        if (k >= 2) take(&w, k - 2, true);
        if (k >= 1 && k <= w.n_chunk) sum(&w, k - 1, true);
    }
    meet(&w, w.n_chunk + 2);
}

static void allreduce_once(ll_steps *e, const ll_coll_spec *s, int rank)
{
    if (nothing(s)) return;
    int64_t segment = s->segment ? s->segment : SEGMENT;
    win w = {.e = e, .s = s, .rank = rank, .size = s->size};
    w.n_chunk = (int)((s->count + segment - 1) / segment);
    ll_ref *from = LL_NEW_ARRAY(e->arena, ll_ref, s->size);
    int64_t at, end, room = (s->count + w.n_chunk - 1) / w.n_chunk;
    for (int k = 0; k <= w.n_chunk; k++) {
        meet(&w, k);
        if (k >= 1) {
            ll_share(s->count, w.n_chunk, k - 1, &at, &end);
            for (int i = 0; i < s->size; i++)
                from[i] = i == rank ? (ll_ref){i, LL_DATA, at}
                                    : (ll_ref){i, LL_WINDOW, (k - 1) % 2 * room};
            ll_emit_fold_all(e, LL_DATA, at, from, s->size, end - at);
        }
        if (k < w.n_chunk) {
            ll_share(s->count, w.n_chunk, k, &at, &end);
            ll_emit_copy(e, LL_WINDOW, k % 2 * room, (ll_ref){rank, LL_DATA, at}, end - at);
        }
    }
}

static void reduce_scatter(ll_steps *e, const ll_coll_spec *s, int rank)
{
    if (nothing(s)) return;
    win w = start(e, s, rank);
    for (int k = 0; k <= w.n_chunk; k++) {
        meet(&w, k);
        if (k >= 1) sum(&w, k - 1, false);
        if (k < w.n_chunk) put(&w, k);
    }
}

static void allgather(ll_steps *e, const ll_coll_spec *s, int rank)
{
    if (nothing(s)) return;
    win w = start(e, s, rank);
    for (int k = 0; k <= w.n_chunk; k++) {
        meet(&w, k);
        if (k >= 1) take(&w, k - 1, false);
        if (k < w.n_chunk) put_own(&w, k);
    }
}

/* The blocks are only a way to cut here: the root puts all of them, the others take them all. */
static void broadcast(ll_steps *e, const ll_coll_spec *s, int rank)
{
    if (nothing(s)) return;
    int64_t segment = s->segment ? s->segment : SEGMENT, at, end;
    win w = {.e = e, .s = s, .rank = rank, .size = s->size};
    w.n_chunk = (int)((s->count + segment - 1) / segment);
    int64_t room = (s->count + w.n_chunk - 1) / w.n_chunk;
    for (int k = 0; k <= w.n_chunk; k++) {
        meet(&w, k);
        if (k >= 1 && rank != s->root) {
            ll_share(s->count, w.n_chunk, k - 1, &at, &end);
            ll_emit_copy(e, LL_DATA, at, (ll_ref){s->root, LL_WINDOW, (k - 1) % 2 * room},
                         end - at);
        }
        if (k < w.n_chunk && rank == s->root) {
            ll_share(s->count, w.n_chunk, k, &at, &end);
            ll_emit_copy(e, LL_WINDOW, k % 2 * room, (ll_ref){rank, LL_DATA, at}, end - at);
        }
    }
}

/* ---- all-to-all: blocks by sender and receiver ---- */

static void alltoall(ll_steps *e, const ll_coll_spec *s, int rank)
{
    int p = s->size;
    int64_t most = 0, data, out, n, from, to;
    for (int i = 0; i < p * p; i++) {
        n = ll_coll_between(s, i / p, i % p, &data, &out);
        if (i / p != i % p && n > most) most = n;
    }
    n = ll_coll_between(s, rank, rank, &data, &out);
    ll_emit_copy(e, LL_OUT, out, (ll_ref){rank, LL_DATA, data}, n);
    if (most == 0) return;
    win w = {.e = e, .s = s, .rank = rank, .size = p};
    int64_t segment = s->segment ? s->segment : SEGMENT;
    int64_t room = segment / p > 0 ? segment / p : 1;
    w.n_chunk = (int)((most + room - 1) / room);
    w.room = (most + w.n_chunk - 1) / w.n_chunk;
    for (int k = 0; k <= w.n_chunk; k++) {
        meet(&w, k);
        for (int i = 1; i < p && k >= 1; i++) {
            int peer = (rank + i) % p;
            n = ll_coll_between(s, peer, rank, &data, &out);
            ll_share(n, w.n_chunk, k - 1, &from, &to);
            ll_emit_copy(e, LL_OUT, out + from, (ll_ref){peer, LL_WINDOW, slot(&w, rank, k - 1)},
                         to - from);
        }
        for (int i = 1; i < p && k < w.n_chunk; i++) {
            int peer = (rank + i) % p;
            n = ll_coll_between(s, rank, peer, &data, &out);
            ll_share(n, w.n_chunk, k, &from, &to);
            ll_emit_copy(e, LL_WINDOW, slot(&w, peer, k), (ll_ref){rank, LL_DATA, data + from},
                         to - from);
        }
    }
}

/* ---- costs: every rank does the same, so the slowest chain is any rank's own work ---- */
static ll_cost cost_sliced(const ll_coll_spec *s, double puts, double folds, double takes,
                           int meetings)
{
    if (nothing(s)) return (ll_cost){0};
    win w = start(NULL, s, 0);
    double block = (double)s->count / s->size, others = s->size - 1;
    return (ll_cost){.folded = folds * others * block,
                     .copied = (puts + takes) * block,
                     .awaits = others * (w.n_chunk + meetings)};
}

static ll_cost allreduce_cost(const ll_coll_spec *s)
{
    return cost_sliced(s, s->size, 1, s->size - 1, 1);
}

static ll_cost shared_cost(const ll_coll_spec *s)
{
    return cost_sliced(s, 0, 1, s->size - 1, 2);
}

static ll_cost once_cost(const ll_coll_spec *s)
{
    if (nothing(s)) return (ll_cost){0};
    int64_t segment = s->segment ? s->segment : SEGMENT, n = (s->count + segment - 1) / segment;
    double others = s->size - 1;
    return (ll_cost){.folded = others * (double)s->count,
                     .copied = (double)s->count,
                     .awaits = others * (double)n};
}

const ll_algo ll_algos_window[] = {
    {.name = "window",
     .coll = LL_COLL_ALLREDUCE,
     .help = "through shared memory, each rank sums a block; main memory is read and written once",
     .segmented = true,
     .window = true,
     .emit = allreduce,
     .cost = allreduce_cost,
     .canonical = ll_canonical_always},
    {.name = "window1",
     .coll = LL_COLL_ALLREDUCE,
     .help = "through shared memory, each rank sums everything: one meeting, for small messages",
     .segmented = true,
     .window = true,
     .emit = allreduce_once,
     .cost = once_cost,
     .canonical = ll_canonical_always},
    {.name = "shared",
     .coll = LL_COLL_ALLREDUCE,
     .help = "on data that is itself in shared memory: no copies into windows",
     .segmented = true,
     .window = true,
     .shared = true,
     .emit = allreduce_shared,
     .cost = shared_cost,
     .canonical = ll_canonical_always},
    {.name = "window",
     .coll = LL_COLL_REDUCE_SCATTER,
     .help = "through shared memory, each rank sums its block",
     .segmented = true,
     .window = true,
     .emit = reduce_scatter,
     .canonical = ll_canonical_always},
    {.name = "window",
     .coll = LL_COLL_ALLGATHER,
     .help = "through shared memory",
     .segmented = true,
     .window = true,
     .emit = allgather},
    {.name = "window",
     .coll = LL_COLL_BROADCAST,
     .help = "through shared memory",
     .segmented = true,
     .window = true,
     .emit = broadcast},
    {.name = "window",
     .coll = LL_COLL_ALLTOALL,
     .help = "through shared memory",
     .segmented = true,
     .window = true,
     .emit = alltoall},
    {0}};
