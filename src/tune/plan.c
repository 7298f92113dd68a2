/* plan.c: which ways are worth measuring. For each collective, size and kind of memory, every
 * algorithm (with several segments where it cuts) is timed by the simulator. Rank 0 does it, within
 * a part of the time there is, and tells the others. */
#include "tune/tune_int.h"

enum {
    STEPS_MAX = 60000, /* of all ranks together, that are simulated; beyond, a formula must do */
    PIECES_MAX = 64,   /* segments that a rank's block is cut into */
    WAYS_MAX = 16,     /* kept for a cell */
    NEAR_MAX = 5,      /* algorithms measured because they are predicted to be good, */
    NEAR = 4,          /* which is within this of the best */
    MORE_MAX = 3       /* other segments that are measured */
};

static const size_t sizes[] = {256,       1 << 10, 4 << 10, 16 << 10, 64 << 10,
                               256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20};
static const double size_weight[] = {.06, .06, .06, .06, .06, .06, .08, .10, .16, .30};
enum { N_SIZE = sizeof sizes / sizeof *sizes };

/* What is tuned, and how the time is divided. */
static const struct {
    ll_coll coll;
    bool shared;
    double weight;
} parts[] = {{LL_COLL_ALLREDUCE, false, .46},      {LL_COLL_ALLREDUCE, true, .14},
             {LL_COLL_REDUCE_SCATTER, false, .12}, {LL_COLL_ALLGATHER, false, .12},
             {LL_COLL_BROADCAST, false, .08},      {LL_COLL_ALLTOALL, false, .08}};
enum { N_PART = sizeof parts / sizeof *parts };

void ll_tune_spec(const ll_tuning *t, const ll_tune_cell *cell, const ll_tuned_way *w,
                  ll_coll_spec *out)
{
    *out = (ll_coll_spec){.coll = cell->coll,
                          .size = ll_comm_size(t->c),
                          .count = (int64_t)(cell->bytes / LL_TUNE_ELEM),
                          .segment = (int64_t)(w->segment_bytes / LL_TUNE_ELEM),
                          .node = ll_comm_nodes(t->c),
                          .shared = cell->shared};
}

/* ---- prediction ---- */

static double by_formula(const ll_link_model *m, const ll_coll_spec *s, const ll_algo *a,
                         size_t elem_bytes)
{
    if (!a->cost) return 0;
    ll_cost c = a->cost(s);
    return ll_cost_time(&c, elem_bytes, m, !ll_one_node(s->node, s->size));
}

/* lists[0] is there already. */
static double by_lists(ll_arena *arena, const ll_link_model *m, const ll_coll_spec *s,
                       const ll_algo *a, size_t elem_bytes, const ll_sched **lists)
{
    for (int r = 1; r < s->size; r++)
        if (ll_sched_build(arena, a, s, r, &lists[r]) != LL_OK) return 0;
    return ll_sched_time(s, lists, elem_bytes, m);
}

double ll_tune_predict(const ll_link_model *m, const ll_coll_spec *s, const ll_algo *a,
                       size_t elem_bytes, size_t window_bytes)
{
    if (a->library) return 0;
    LL_OWN(ll_arena) arena = ll_arena_new();
    const ll_sched **lists = LL_NEW_ARRAY(arena, const ll_sched *, s->size);
    if (ll_sched_build(arena, a, s, 0, &lists[0]) != LL_OK ||
        (size_t)lists[0]->window * elem_bytes > window_bytes)
        return 0;
    return (int64_t)lists[0]->n_step * s->size <= STEPS_MAX
               ? by_lists(arena, m, s, a, elem_bytes, lists)
               : by_formula(m, s, a, elem_bytes);
}

/* ---- the ways of a cell ---- */

static void add_way(const ll_tuning *t, ll_tune_cell *cell, int *capacity, const ll_algo *a,
                    size_t segment)
{
    ll_tuned_way w = {.algo = a, .segment_bytes = segment};
    ll_coll_spec s;
    ll_tune_spec(t, cell, &w, &s);
    w.predicted_s = ll_tune_predict(&t->model, &s, a, LL_TUNE_ELEM, ll_comm_window_bytes(t->c));
    if (!a->library && w.predicted_s <= 0) return;
    LL_PUSH(t->arena, cell->ways, cell->n_way, *capacity, w);
}

/* Ascending by the measured time, those without one after them by the predicted one, those without
 * either last. */
int ll_tune_by_time(const void *a, const void *b)
{
    const ll_tuned_way *x = (const ll_tuned_way *)a, *y = (const ll_tuned_way *)b;
    if ((x->measured_s > 0) != (y->measured_s > 0)) return x->measured_s > 0 ? -1 : 1;
    if (x->measured_s != y->measured_s) return x->measured_s < y->measured_s ? -1 : 1;
    if ((x->predicted_s > 0) != (y->predicted_s > 0)) return x->predicted_s > 0 ? -1 : 1;
    return x->predicted_s < y->predicted_s ? -1 : x->predicted_s > y->predicted_s;
}

static bool is_canonical(const ll_tuning *t, const ll_tune_cell *cell, const ll_tuned_way *w)
{
    ll_coll_spec s;
    ll_tune_spec(t, cell, w, &s);
    return ll_coll_sums(cell->coll) && w->algo->canonical && w->algo->canonical(&s);
}

static int count_algo(const ll_tuned_way *ways, int n, const ll_algo *a)
{
    int same = 0;
    for (int i = 0; i < n; i++) same += ways[i].algo == a;
    return same;
}

/* Moves the ways to be measured to the front: with their best segment the algorithms predicted to
 * be near the best, those by the window, the first in canonical order and the library's own; then
 * other segments of the best of these. The rest stays in its order, up to WAYS_MAX. */
static void shorten(const ll_tuning *t, ll_tune_cell *cell)
{
    qsort(cell->ways, (size_t)cell->n_way, sizeof *cell->ways, ll_tune_by_time);
    ll_tuned_way *sorted = LL_NEW_ARRAY(t->arena, ll_tuned_way, cell->n_way + 1);
    bool *taken = LL_NEW_ARRAY(t->arena, bool, cell->n_way + 1);
    int n = 0, n_near = 0, n_more = 0;
    bool canonical = !ll_coll_sums(cell->coll);
    for (int i = 0; i < cell->n_way; i++) {
        const ll_tuned_way *w = &cell->ways[i];
        if (count_algo(sorted, n, w->algo)) continue;
        bool near = n_near < NEAR_MAX && w->predicted_s < NEAR * cell->ways[0].predicted_s;
        bool first = !canonical && is_canonical(t, cell, w);
        /* what signals cost is hard to predict: the window is always tried */
        taken[i] = near || first || w->algo->library || w->algo->window;
        if (!taken[i]) continue;
        n_near += near;
        canonical = canonical || is_canonical(t, cell, w);
        sorted[n++] = *w;
    }
    for (int i = 0; i < cell->n_way && n_more < MORE_MAX; i++) {
        const ll_algo *a = cell->ways[i].algo;
        if (taken[i] || count_algo(sorted, n, a) != 1 + (a == sorted[0].algo && n_more)) continue;
        taken[i] = true;
        sorted[n++] = cell->ways[i];
        n_more++;
    }
    cell->n_short = n;
    for (int i = 0; i < cell->n_way && n < WAYS_MAX; i++)
        if (!taken[i]) sorted[n++] = cell->ways[i];
    cell->ways = sorted;
    cell->n_way = n;
}

static void fill_cell(const ll_tuning *t, ll_tune_cell *cell, double until)
{
    static const size_t segments[] = {16 << 10, 64 << 10, 256 << 10, 1 << 20};
    int capacity = 0, size = ll_comm_size(t->c);
    size_t block = cell->bytes / (size_t)size;
    for (const ll_algo *const *a = ll_algos(); *a; a++) {
        ll_coll_spec s;
        ll_tune_spec(t, cell, &(ll_tuned_way){0}, &s);
        if ((*a)->coll != cell->coll ||
            !ll_choose_may(*a, &s, ll_comm_has_window(t->c), ll_comm_options(t->c)->canonical))
            continue;
        add_way(t, cell, &capacity, *a, 0);
        for (size_t i = 0; (*a)->segmented && i < sizeof segments / sizeof *segments; i++)
            if (segments[i] * 2 <= cell->bytes && block <= segments[i] * PIECES_MAX &&
                ll_now() < until)
                add_way(t, cell, &capacity, *a, segments[i]);
    }
    shorten(t, cell);
}

/* ---- to the other ranks ---- */

/* A way in numbers that mean the same on every rank. */
typedef struct packed {
    int32_t algo, is_short;
    int64_t segment_bytes;
    double predicted_s;
} packed;

static int32_t index_of(const ll_algo *a)
{
    int32_t i = 0;
    while (ll_algos()[i] != a) i++;
    return i;
}

static ll_err tell(ll_tuning *t)
{
    size_t bytes = sizeof(packed) * WAYS_MAX * (size_t)t->n_cell;
    packed *all = (packed *)ll_arena_alloc(t->arena, bytes);
    for (int i = 0; i < t->n_cell; i++)
        for (int k = 0; k < t->cells[i].n_way; k++) {
            const ll_tuned_way *w = &t->cells[i].ways[k];
            all[i * WAYS_MAX + k] = (packed){index_of(w->algo) + 1, k < t->cells[i].n_short,
                                             (int64_t)w->segment_bytes, w->predicted_s};
        }
    TRY(ll_comm_broadcast(t->c, all, (int64_t)bytes, LL_U8, 0, &(ll_coll_opts){.site = "tuner"}));
    for (int i = 0; i < t->n_cell && ll_comm_rank(t->c) != 0; i++) {
        ll_tune_cell *cell = &t->cells[i];
        cell->ways = LL_NEW_ARRAY(t->arena, ll_tuned_way, WAYS_MAX);
        for (const packed *p = &all[i * WAYS_MAX]; cell->n_way < WAYS_MAX && p->algo; p++) {
            cell->ways[cell->n_way++] = (ll_tuned_way){.algo = ll_algos()[p->algo - 1],
                                                       .segment_bytes = (size_t)p->segment_bytes,
                                                       .predicted_s = p->predicted_s};
            cell->n_short += p->is_short;
        }
    }
    return LL_OK;
}

ll_err ll_tune_plan(ll_tuning *t)
{
    t->cells = LL_NEW_ARRAY(t->arena, ll_tune_cell, N_PART * N_SIZE);
    for (int i = 0; i < N_PART; i++) {
        if (parts[i].shared && !ll_comm_has_window(t->c)) continue;
        for (int j = 0; j < N_SIZE; j++)
            t->cells[t->n_cell++] = (ll_tune_cell){.coll = parts[i].coll,
                                                   .shared = parts[i].shared,
                                                   .bytes = sizes[j],
                                                   .weight = parts[i].weight * size_weight[j]};
    }
    double until = ll_now() + 0.25 * t->budget_s;
    for (int i = 0; i < t->n_cell && ll_comm_rank(t->c) == 0; i++)
        fill_cell(t, &t->cells[i], until);
    return tell(t);
}
