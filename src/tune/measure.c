/* measure.c: the shortlist of each cell, against the clock. Cells have shares of the time
 * that is left. In a cell every way is run a few times; those far behind are dropped, then those
 * behind, and the others run on, in turns: whatever disturbs disturbs them alike. A way leaves data
 * in caches as the next one likes it or not; so ranks write their data before each repetition, as
 * they do in life, and the order changes from round to round. A repetition begins with a barrier
 * and counts for as long as the slowest rank took; of a way's repetitions the lowest tenth counts,
 * which neither one lucky nor many disturbed ones move.
 *
 * Every decision follows from numbers that all ranks have from one reduction: all decide alike. */
#include "base/stats.h"
#include "tune/tune_int.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

enum { RUNS_MAX = 60, SHORT_MAX = 12, CACHE = 4 << 20 };

typedef struct bench {
    ll_tuning *t;
    ll_comm *c;
    char *data;
    size_t bytes, touched; /* there are, and in use so far: new pages cost time */
    double slower;         /* than predicted, the last cell was: at least 1 */
} bench;

static ll_err time_once(const bench *b, const ll_tune_cell *cell, const ll_tuned_way *w,
                        double *out)
{
    ll_coll_call call = {
        .data = b->data, .out = b->data + cell->bytes, .dtype = LL_F32, .algo = w->algo};
    call.site = "tuner";
    ll_tune_spec(b->t, cell, w, &call.spec);
    if (cell->bytes <= CACHE) memset(b->data, 0, cell->bytes);
    TRY(ll_comm_barrier(b->c));
    double from = ll_now();
    TRY(ll_comm_run(b->c, &call));
    *out = ll_now() - from;
    return LL_OK;
}

/* A way and its times so far. */
typedef struct ll_tune_runs {
    ll_tuned_way *way;
    double times[RUNS_MAX];
    int n;
    double behind; /* times slower than the best, when it was dropped; 0: it was not */
} runs;

/* All of them so many times in turns, the slowest rank's time each. *elapsed: since the tuning
 * began. */
static ll_err run_rounds(const bench *b, ll_tune_cell *cell, runs *list, int n, int rounds,
                         double *elapsed)
{
    double all[SHORT_MAX * RUNS_MAX + 1];
    for (int r = 0; r < rounds; r++)
        for (int k = 0; k < n; k++) TRY(time_once(b, cell, list[k].way, &all[k * rounds + r]));
    all[n * rounds] = ll_now() - b->t->began;
    TRY(ll_tune_most(b->c, all, n * rounds + 1));
    *elapsed = all[n * rounds];
    for (int k = 0; k < n; k++) {
        memcpy(list[k].times + list[k].n, all + k * rounds, sizeof *all * (size_t)rounds);
        list[k].n += rounds;
        ll_stats_sort(list[k].times, list[k].n);
        list[k].way->measured_s = list[k].times[list[k].n / 10];
    }
    return LL_OK;
}

/* Those within a factor of the best go to the front; how many. */
static int keep_best(runs *list, int n, double factor)
{
    double best = 1e9;
    int kept = 0;
    for (int k = 0; k < n; k++)
        if (list[k].way->measured_s < best) best = list[k].way->measured_s;
    for (int k = 0; k < n; k++)
        if (list[k].way->measured_s <= factor * best) {
            runs swap = list[kept];
            list[kept++] = list[k];
            list[k] = swap;
        }
    for (int k = kept; k < n; k++) list[k].behind = list[k].way->measured_s / best;
    return kept;
}

/* Which of the shortlist can be run once each in the time; the library's own has no prediction and
 * is taken to be slower than all others. */
static int affordable(const bench *b, ll_tune_cell *cell, double slice, runs *list)
{
    double used = 0, slowest = 0;
    int n = 0;
    for (int k = 0; k < cell->n_short; k++)
        if (cell->ways[k].predicted_s > slowest) slowest = cell->ways[k].predicted_s;
    for (int k = 0; k < cell->n_short && n < SHORT_MAX; k++) {
        double s = cell->ways[k].predicted_s > 0 ? cell->ways[k].predicted_s : 1.5 * slowest;
        s *= b->slower;
        if (used + s > slice) continue;
        used += s;
        list[n++] = (runs){.way = &cell->ways[k]};
    }
    return n;
}

/* How many rounds fit in the time. A barrier takes about as long as the smallest messages. */
static int rounds_in(const runs *list, int n, double seconds, int most)
{
    double each = 2e-6 * n;
    for (int k = 0; k < n; k++) each += list[k].way->measured_s;
    return seconds > each ? (int)fmin(most, seconds / each) : 0;
}

/* The first look at all ways, after which those far behind are dropped. */
static ll_err look(bench *b, ll_tune_cell *cell, double slice, double *elapsed)
{
    size_t need = cell->coll == LL_COLL_ALLTOALL ? 2 * cell->bytes : cell->bytes;
    double until = *elapsed + slice;
    cell->tries = LL_NEW_ARRAY(b->t->arena, runs, SHORT_MAX);
    if (need > b->bytes) return LL_OK;
    cell->n_try = cell->n_left = affordable(b, cell, slice, cell->tries);
    if (cell->n_try == 0) return LL_OK;
    if (need > b->touched) {
        memset(b->data + b->touched, 0, need - b->touched);
        b->touched = need;
    }
    int warm = cell->bytes <= 64 << 10 ? 4 : 1;
    TRY(run_rounds(b, cell, cell->tries, cell->n_try, warm, elapsed));
    cell->n_left = keep_best(cell->tries, cell->n_try, 2);
    int rounds = rounds_in(cell->tries, cell->n_left, until - *elapsed, RUNS_MAX / 2);
    if (rounds) TRY(run_rounds(b, cell, cell->tries, cell->n_left, rounds, elapsed));
    const ll_tuned_way *w = cell->tries[0].way;
    if (w->predicted_s > 0) b->slower = fmax(1, w->measured_s / w->predicted_s);
    return LL_OK;
}

/* A second one, some time later, at those that are not behind. */
static ll_err look_again(bench *b, ll_tune_cell *cell, double slice, double *elapsed)
{
    runs *list = cell->tries;
    if (!cell->n_try) return LL_OK;
    cell->n_left = keep_best(list, cell->n_left, 1.3);
    int rounds = rounds_in(list, cell->n_left, slice, RUNS_MAX - list[0].n);
    if (rounds) TRY(run_rounds(b, cell, list, cell->n_left, rounds, elapsed));
    /* A dropped way stays as far behind as it was, whatever happened to the others since. */
    double best = list[0].way->measured_s;
    for (int k = 1; k < cell->n_left; k++) best = fmin(best, list[k].way->measured_s);
    for (int k = cell->n_left; k < cell->n_try; k++)
        list[k].way->measured_s = fmax(list[k].way->measured_s, list[k].behind * best);
    return LL_OK;
}

static double weight_of(const ll_tuning *t, bool with_private, bool with_shared)
{
    double sum = 0;
    for (int i = 0; i < t->n_cell; i++)
        if (t->cells[i].shared ? with_shared : with_private) sum += t->cells[i].weight;
    return sum;
}

/* Cells of one kind of memory: all of them once, then all of them again, so that what disturbs for
 * a moment does not decide. Shared memory comes last and has the rest of the time. */
static ll_err measure_cells(bench *b, bool shared)
{
    ll_tuning *t = b->t;
    double elapsed = ll_now() - t->began, whole = weight_of(t, !shared, shared);
    TRY(ll_tune_most(b->c, &elapsed, 1));
    double seconds = (t->budget_s - elapsed) * whole / weight_of(t, !shared, true);
    double end[2] = {elapsed + 0.6 * seconds, elapsed + seconds};
    for (int pass = 0; pass < 2; pass++) {
        double weight = whole;
        LL_EACH (ll_tune_cell, cell, t->cells, t->n_cell) {
            if (cell->shared != shared) continue;
            double slice = (end[pass] - elapsed) * cell->weight / weight;
            weight -= cell->weight;
            TRY((pass ? look_again : look)(b, cell, slice, &elapsed));
        }
    }
    return LL_OK;
}

/* Memory for data that all ranks can spare. */
static ll_err room_for(ll_tuning *t, size_t *out)
{
    size_t most = (size_t)64 << 20, least = (size_t)64 << 10;
    double spare = (double)sysconf(_SC_AVPHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    double room = -spare / (4 * t->model.share * (double)sysconf(_SC_NPROCESSORS_ONLN));
    TRY(ll_tune_most(t->c, &room, 1));
    *out = -room > (double)most ? most : -room > (double)least ? (size_t)-room : least;
    return LL_OK;
}

static ll_err measure_private(ll_tuning *t)
{
    bench b = {.t = t, .c = t->c, .slower = 1};
    TRY(room_for(t, &b.bytes));
    LL_OWN_MEMORY char *data = (char *)malloc(b.bytes);
    b.data = data;
    TRY(ll_comm_agree(
        t->c,
        data ? LL_OK : RAISE(LL_E_MEM, "not enough memory for %zu bytes of the tuner's", b.bytes)));
    return measure_cells(&b, false);
}

/* On a communicator of its own, whose memory goes with it. */
static ll_err measure_shared(ll_tuning *t)
{
    bench b = {.t = t, .slower = 1};
    bool any = false;
    for (int i = 0; i < t->n_cell; i++) any = any || t->cells[i].shared;
    double elapsed = ll_now() - t->began;
    TRY(ll_tune_most(t->c, &elapsed, 1));
    if (!any || elapsed > 0.95 * t->budget_s) return LL_OK;
    TRY(room_for(t, &b.bytes));
    TRY(ll_comm_split_untuned(t->c, 0, ll_comm_rank(t->c), &b.c));
    void *data;
    ll_err rc = ll_comm_alloc(b.c, b.bytes, &data);
    if (rc == LL_OK) {
        b.data = (char *)data;
        rc = measure_cells(&b, true);
    }
    ll_comm_close(b.c);
    return rc;
}

ll_err ll_tune_measure(ll_tuning *t)
{
    TRY(measure_private(t));
    TRY(measure_shared(t));
    for (int i = 0; i < t->n_cell; i++) /* also those that there was no time for */
        qsort(t->cells[i].ways, (size_t)t->cells[i].n_way, sizeof(ll_tuned_way), ll_tune_by_time);
    return LL_OK;
}
