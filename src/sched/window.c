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
#include "base/num.h"
#include "sched/algos.h"

/* Elements in a chunk by default: two slots of it fit in a private cache. */
enum { SEGMENT = 32768, MAX_STAGE = 3 };

typedef struct win {
    ll_steps *e;
    const ll_coll_spec *s;
    int rank, size;
    bool shared;  /* data is read where it is */
    int n_chunk;  /* 0: nothing is to be done */
    int64_t room; /* elements in a slot for one piece */
} win;

/* Chunks of pieces side by side, of which the longest is cut from so many elements. */
static win cut(ll_steps *e, const ll_coll_spec *s, int rank, int64_t most, int side_by_side)
{
    win w = {.e = e, .s = s, .rank = rank, .size = s->size};
    int64_t piece = (s->segment ? s->segment : SEGMENT) / side_by_side;
    if (s->size < 2 || most == 0) return w;
    w.n_chunk = ll_n_piece(most, piece > 0 ? piece : 1);
    w.room = ll_ceil_div(most, w.n_chunk);
    return w;
}

static win by_blocks(ll_steps *e, const ll_coll_spec *s, int rank)
{
    return cut(e, s, rank, ll_largest_block(s), s->size);
}

static int64_t slot(const win *w, int b, int c)
{
    return (c % 2 * w->size + b) * w->room;
}

/* ---- stages of a chunk ---- */
typedef void stage(const win *w, int c);

/* Each round begins by awaiting the end of the one before. */
static void meet(const win *w, int round)
{
    ll_emit_signal(w->e);
    ll_emit_next(w->e);
    for (int i = 1; i < w->size; i++) ll_emit_await(w->e, (w->rank + i) % w->size, round);
}

/* Chunk c is in stage i in round c + i. */
static void run(const win *w, stage *const stages[MAX_STAGE])
{
    int n = stages[2] ? 3 : 2;
    for (int k = 0; w->n_chunk && k < w->n_chunk + n - 1; k++) {
        if (k) meet(w, k);
        for (int i = n - 1; i >= 0; i--)
            if (k >= i && k - i < w->n_chunk) stages[i](w, k - i);
    }
}

static void put_block(const win *w, int b, int c)
{
    int64_t at, n = ll_block_piece(w->s, b, c, w->n_chunk, &at);
    ll_emit_copy(w->e, LL_WINDOW, slot(w, b, c), (ll_ref){w->rank, LL_DATA, at}, n);
}

static void put_own(const win *w, int c)
{
    put_block(w, w->rank, c);
}

/* Neighbours first: nobody's block is everyone's first. */
static void put(const win *w, int c)
{
    for (int i = 1; i < w->size && !w->shared; i++) put_block(w, (w->rank + i) % w->size, c);
}

static void sum(const win *w, int c)
{
    int64_t at, n = ll_block_piece(w->s, w->rank, c, w->n_chunk, &at);
    ll_ref *from = LL_NEW_ARRAY(w->e->arena, ll_ref, w->size);
    for (int i = 0; i < w->size; i++)
        from[i] = w->shared || i == w->rank ? (ll_ref){i, LL_DATA, at}
                                            : (ll_ref){i, LL_WINDOW, slot(w, w->rank, c)};
    ll_emit_fold_all(w->e, LL_DATA, at, from, w->size, n);
    if (w->s->coll == LL_COLL_ALLREDUCE && !w->shared) put_own(w, c);
}

static void take(const win *w, int c)
{
    for (int i = 1; i < w->size; i++) {
        int b = (w->rank + i) % w->size;
        int64_t at, n = ll_block_piece(w->s, b, c, w->n_chunk, &at);
        ll_ref from = w->shared ? (ll_ref){b, LL_DATA, at} : (ll_ref){b, LL_WINDOW, slot(w, b, c)};
        ll_emit_copy(w->e, LL_DATA, at, from, n);
    }
}

/* Of a chunk that is not cut by rank: everyone's, or the root's. */
static void put_whole(const win *w, int c)
{
    int64_t at, end;
    ll_share(w->s->count, w->n_chunk, c, &at, &end);
    if (w->s->coll == LL_COLL_ALLREDUCE || w->rank == w->s->root)
        ll_emit_copy(w->e, LL_WINDOW, c % 2 * w->room, (ll_ref){w->rank, LL_DATA, at}, end - at);
}

static void take_whole(const win *w, int c)
{
    int64_t at, end;
    ll_share(w->s->count, w->n_chunk, c, &at, &end);
    if (w->s->coll == LL_COLL_ALLREDUCE) {
        ll_ref *from = LL_NEW_ARRAY(w->e->arena, ll_ref, w->size);
        for (int i = 0; i < w->size; i++) from[i] = (ll_ref){i, LL_WINDOW, c % 2 * w->room};
        from[w->rank] = (ll_ref){w->rank, LL_DATA, at};
        ll_emit_fold_all(w->e, LL_DATA, at, from, w->size, end - at);
    } else if (w->rank != w->s->root) {
        ll_ref from = {w->s->root, LL_WINDOW, c % 2 * w->room};
        ll_emit_copy(w->e, LL_DATA, at, from, end - at);
    }
}

/* Of blocks by sender and receiver. */
static void put_each(const win *w, int c)
{
    int64_t data, out, from, to;
    for (int i = 1; i < w->size; i++) {
        int peer = (w->rank + i) % w->size;
        ll_share(ll_coll_between(w->s, w->rank, peer, &data, &out), w->n_chunk, c, &from, &to);
        ll_emit_copy(w->e, LL_WINDOW, slot(w, peer, c), (ll_ref){w->rank, LL_DATA, data + from},
                     to - from);
    }
}

static void take_each(const win *w, int c)
{
    int64_t data, out, from, to;
    for (int i = 1; i < w->size; i++) {
        int peer = (w->rank + i) % w->size;
        ll_share(ll_coll_between(w->s, peer, w->rank, &data, &out), w->n_chunk, c, &from, &to);
        ll_emit_copy(w->e, LL_OUT, out + from, (ll_ref){peer, LL_WINDOW, slot(w, w->rank, c)},
                     to - from);
    }
}

/* ---- collectives ---- */
static void blocks(ll_steps *e, const ll_coll_spec *s, int rank)
{
    static stage *const stages[LL_N_COLL][MAX_STAGE] = {
        [LL_COLL_ALLREDUCE] = {put, sum, take},
        [LL_COLL_REDUCE_SCATTER] = {put, sum},
        [LL_COLL_ALLGATHER] = {put_own, take},
    };
    win w = by_blocks(e, s, rank);
    run(&w, stages[s->coll]);
}

static void shared(ll_steps *e, const ll_coll_spec *s, int rank)
{
    win w = by_blocks(e, s, rank);
    w.shared = true;
    run(&w, (stage *const[]){put, sum, take});
    if (w.n_chunk) meet(&w, w.n_chunk + 2);
}

static void whole(ll_steps *e, const ll_coll_spec *s, int rank)
{
    win w = cut(e, s, rank, s->count, 1);
    run(&w, (stage *const[MAX_STAGE]){put_whole, take_whole});
}

static void alltoall(ll_steps *e, const ll_coll_spec *s, int rank)
{
    int p = s->size;
    int64_t most = 0, data, out, n;
    for (int i = 0; i < p * p; i++) {
        n = ll_coll_between(s, i / p, i % p, &data, &out);
        if (i / p != i % p && n > most) most = n;
    }
    n = ll_coll_between(s, rank, rank, &data, &out);
    ll_emit_copy(e, LL_OUT, out, (ll_ref){rank, LL_DATA, data}, n);
    win w = cut(e, s, rank, most, p);
    run(&w, (stage *const[MAX_STAGE]){put_each, take_each});
}

/* ---- costs: every rank does the same, so the slowest chain is any rank's own work ---- */
/* Additions and copies, as parts of the data. */
static ll_cost cost_of(const win *w, double folds, double copies, int meetings)
{
    if (!w->n_chunk) return (ll_cost){0};
    double n = (double)w->s->count;
    return (ll_cost){.folded = folds * n,
                     .copied = copies * n,
                     .awaits = (double)(w->size - 1) * (w->n_chunk + meetings)};
}

static ll_cost allreduce_cost(const ll_coll_spec *s)
{
    win w = by_blocks(NULL, s, 0);
    double others = (s->size - 1.0) / s->size;
    return cost_of(&w, others, 1 + others, 1);
}

static ll_cost shared_cost(const ll_coll_spec *s)
{
    win w = by_blocks(NULL, s, 0);
    double others = (s->size - 1.0) / s->size;
    return cost_of(&w, others, others, 2);
}

static ll_cost once_cost(const ll_coll_spec *s)
{
    win w = cut(NULL, s, 0, s->count, 1);
    return cost_of(&w, s->size - 1, 1, 0);
}

const ll_algo ll_algos_window[] = {
    {.name = "window",
     .coll = LL_COLL_ALLREDUCE,
     .help = "through shared memory, each rank sums a block; main memory is read and written once",
     .segmented = true,
     .window = true,
     .emit = blocks,
     .cost = allreduce_cost,
     .canonical = ll_canonical_always},
    {.name = "window1",
     .coll = LL_COLL_ALLREDUCE,
     .help = "through shared memory, each rank sums everything: one meeting, for small messages",
     .segmented = true,
     .window = true,
     .emit = whole,
     .cost = once_cost,
     .canonical = ll_canonical_always},
    {.name = "shared",
     .coll = LL_COLL_ALLREDUCE,
     .help = "on data that is itself in shared memory: no copies into windows",
     .segmented = true,
     .window = true,
     .shared = true,
     .emit = shared,
     .cost = shared_cost,
     .canonical = ll_canonical_always},
    {.name = "window",
     .coll = LL_COLL_REDUCE_SCATTER,
     .help = "through shared memory, each rank sums its block",
     .segmented = true,
     .window = true,
     .emit = blocks,
     .canonical = ll_canonical_always},
    {.name = "window",
     .coll = LL_COLL_ALLGATHER,
     .help = "through shared memory",
     .segmented = true,
     .window = true,
     .emit = blocks},
    {.name = "window",
     .coll = LL_COLL_BROADCAST,
     .help = "through shared memory",
     .segmented = true,
     .window = true,
     .emit = whole},
    {.name = "window",
     .coll = LL_COLL_ALLTOALL,
     .help = "through shared memory",
     .segmented = true,
     .window = true,
     .emit = alltoall},
    {0}};
