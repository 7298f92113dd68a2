/* tuner_measure.c: the shortlist of each cell, against the clock. Cells have shares of the time
 * that is left; in a cell every way is run once, those far behind are dropped, and the others are
 * run in turns, so that whatever disturbs disturbs them alike. A repetition begins with a barrier
 * and counts for as long as the slowest rank took; of a way's repetitions the lower quartile
 * counts, which neither one lucky nor several disturbed ones move.
 *
 * Every decision follows from numbers that all ranks have from one reduction: all decide alike. */
#include "comm/tuner_int.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RUNS_MAX = 40, SHORT_MAX = 8 };

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
    ll_tuner_spec(b->t, cell, w, &call.spec);
    TRY(ll_comm_barrier(b->c));
    double from = ll_tuner_now();
    TRY(ll_comm_run(b->c, &call));
    *out = ll_tuner_now() - from;
    return LL_OK;
}

/* All ways `rounds` times in turns; times[way * rounds + round], the slowest rank's. The last
 * number told is the time since the tuning began. */
static ll_err run_rounds(const bench *b, const ll_tune_cell *cell, const int *ways, int n_way,
                         int rounds, double *times, double *elapsed)
{
    for (int r = 0; r < rounds; r++)
        for (int k = 0; k < n_way; k++)
            TRY(time_once(b, cell, &cell->ways[ways[k]], &times[k * rounds + r]));
    times[n_way * rounds] = ll_tuner_now() - b->t->began;
    TRY(ll_tuner_most(b->c, times, n_way * rounds + 1));
    *elapsed = times[n_way * rounds];
    return LL_OK;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double quartile(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 4];
}

/* Which of the shortlist can be run once each in the time; the library's own has no prediction and
 * is taken to be slower than all others. */
static int affordable(const bench *b, const ll_tune_cell *cell, double slice, int *ways)
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
        ways[n++] = k;
    }
    return n;
}

static size_t data_bytes(const ll_tune_cell *cell)
{
    return cell->coll == LL_COLL_ALLTOALL ? 2 * cell->bytes : cell->bytes;
}

static ll_err measure_cell(bench *b, ll_tune_cell *cell, double slice, double *elapsed)
{
    int ways[SHORT_MAX], n = affordable(b, cell, slice, ways), n_kept = 0;
    double times[SHORT_MAX * RUNS_MAX + 1], least = 1e9, sum = 0, began = *elapsed;
    size_t need = data_bytes(cell);
    if (n == 0 || need > b->bytes) return LL_OK;
    if (need > b->touched) {
        memset(b->data + b->touched, 0, need - b->touched);
        b->touched = need;
    }
    int warm = cell->bytes <= 64 << 10 ? 3 : 1;
    TRY(run_rounds(b, cell, ways, n, warm, times, elapsed));
    for (int k = 0; k < n; k++) {
        cell->ways[ways[k]].measured_s = times[k * warm];
        for (int r = 1; r < warm; r++)
            if (times[k * warm + r] < cell->ways[ways[k]].measured_s)
                cell->ways[ways[k]].measured_s = times[k * warm + r];
        if (cell->ways[ways[k]].measured_s < least) least = cell->ways[ways[k]].measured_s;
    }
    cell->n_run = warm;
    for (int k = 0; k < n; k++)
        if (cell->ways[ways[k]].measured_s < 2 * least) {
            sum += cell->ways[ways[k]].measured_s;
            ways[n_kept++] = ways[k];
        }
    /* A barrier costs about as much as the smallest messages. */
    double left = slice - (*elapsed - began), each = sum + n_kept * 2e-6;
    int runs = left > each ? (int)(left / each) : 0;
    if (runs > RUNS_MAX) runs = RUNS_MAX;
    if (runs == 0) return LL_OK;
    TRY(run_rounds(b, cell, ways, n_kept, runs, times, elapsed));
    for (int k = 0; k < n_kept; k++)
        cell->ways[ways[k]].measured_s = quartile(&times[k * runs], runs);
    cell->n_run = runs;
    return LL_OK;
}

/* Cells of one kind of memory. */
static ll_err measure_cells(bench *b, bool shared)
{
    ll_tuning *t = b->t;
    double weight = 0, elapsed = ll_tuner_now() - t->began;
    for (int i = 0; i < t->n_cell; i++)
        if (!shared || t->cells[i].shared) weight += t->cells[i].weight;
    TRY(ll_tuner_most(b->c, &elapsed, 1));
    for (int i = 0; i < t->n_cell; i++) {
        ll_tune_cell *cell = &t->cells[i];
        if (cell->shared != shared) continue;
        double slice = (t->budget_s - elapsed) * cell->weight / weight;
        weight -= cell->weight;
        TRY(measure_cell(b, cell, slice, &elapsed));
        qsort(cell->ways, (size_t)cell->n_way, sizeof *cell->ways, ll_tuner_by_time);
        const ll_tuned_way *w = cell->ways;
        if (cell->n_run && w->predicted_s > 0)
            b->slower = w->measured_s > w->predicted_s ? w->measured_s / w->predicted_s : 1;
    }
    return LL_OK;
}

/* Memory for data that all ranks can spare. */
static ll_err room_for(ll_tuning *t, size_t *out)
{
    size_t most = (size_t)64 << 20, least = (size_t)64 << 10;
    double spare = (double)sysconf(_SC_AVPHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    double room = -spare / (4 * t->model.share * (double)sysconf(_SC_NPROCESSORS_ONLN));
    TRY(ll_tuner_most(t->c, &room, 1));
    *out = -room > (double)most ? most : -room > (double)least ? (size_t)-room : least;
    return LL_OK;
}

static ll_err measure_private(ll_tuning *t)
{
    bench b = {.t = t, .c = t->c, .slower = 1};
    TRY(room_for(t, &b.bytes));
    b.data = (char *)malloc(b.bytes);
    ll_err rc =
        ll_comm_agree(t->c, b.data ? LL_OK
                                   : ll_raise(LL_E_MEM, __FILE__, __LINE__, __func__,
                                              "no memory for %zu bytes of the tuner's", b.bytes));
    if (rc == LL_OK) rc = measure_cells(&b, false);
    free(b.data);
    return rc;
}

/* On a communicator of its own, whose memory goes with it. */
static ll_err measure_shared(ll_tuning *t)
{
    bench b = {.t = t, .slower = 1};
    bool any = false;
    for (int i = 0; i < t->n_cell; i++) any = any || t->cells[i].shared;
    double elapsed = ll_tuner_now() - t->began;
    TRY(ll_tuner_most(t->c, &elapsed, 1));
    if (!any || elapsed > 0.95 * t->budget_s) return LL_OK;
    TRY(room_for(t, &b.bytes));
    TRY(ll_comm_split(t->c, 0, ll_comm_rank(t->c), &b.c));
    void *data;
    ll_err rc = ll_comm_alloc(b.c, b.bytes, &data);
    if (rc == LL_OK) {
        b.data = (char *)data;
        rc = measure_cells(&b, true);
    }
    ll_comm_close(b.c);
    return rc;
}

ll_err ll_tuner_measure(ll_tuning *t)
{
    TRY(measure_private(t));
    TRY(measure_shared(t));
    for (int i = 0; i < t->n_cell; i++) /* also those that there was no time for */
        qsort(t->cells[i].ways, (size_t)t->cells[i].n_way, sizeof(ll_tuned_way), ll_tuner_by_time);
    return LL_OK;
}
