/* bench_netns_rank.c: what the ranks of `bench comm --netns` measure: the link; dense all-reduces
 * of a gradient; and the same gradient through codecs, a whole synchronous step of the exchange
 * each: selection, coding, messages, sums. A time is the slowest rank's, and the least of some
 * repetitions. */
#include "base/now.h"
#include "base/text.h"
#include "cli/bench_netns_int.h"
#include "cli/common.h"
#include "comm/codec.h"
#include "tune/tune.h"

#include <limits.h>
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DENSE_TIMES = 2, CODEC_TIMES = 3, MOST_LINES = 16, SAMPLES = 1009 };

typedef struct line {
    char name[64];
    const char *form;             /* of a codec; NULL: dense */
    double seconds, bytes, error; /* bytes: of the rank that sent most; -1: not known */
} line;

typedef struct bench {
    ll_comm *c;
    const ll_netns_opts *o;
    int rank, size;
    float *data;
    double rate;             /* bytes a second, as shaped; 0: not */
    double measured, half_s; /* bytes a second seen; seconds of half a round trip */
    double bound_s, best_s;
    line lines[MOST_LINES];
    int n_line;
} bench;

static ll_err most(bench *b, double *v, int n)
{
    return ll_comm_allreduce(b->c, v, n, LL_F64, LL_REDUCE_MAX, &(ll_coll_opts){.site = "bench"});
}

/* ---- the gradient: element i of a rank, near to normal, from a hash ---- */
static inline float element(int rank, int64_t i)
{
    uint64_t h = ((uint64_t)rank << 40) + (uint64_t)i + 1;
    h *= 0x9E3779B97F4A7C15u;
    h = (h ^ h >> 32) * 0xD6E8FEB86659FD93u;
    h ^= h >> 32;
    int32_t sum = (int32_t)(h & 0xffff) + (int32_t)(h >> 16 & 0xffff) +
                  (int32_t)(h >> 32 & 0xffff) + (int32_t)(h >> 48) - 2 * 65535;
    float x = (float)sum * (1.0f / 65536);
    return x * x * x; /* heavier tails, as gradients have */
}

static void fill(bench *b)
{
    for (int64_t i = 0; i < b->o->count; i++) b->data[i] = element(b->rank, i);
}

/* How far the sum in data is from the true one, in samples. */
static double off(const bench *b)
{
    double wrong = 0, all = 0;
    for (int64_t s = 0; s < SAMPLES; s++) {
        int64_t i = (int64_t)((double)b->o->count * (double)s / SAMPLES);
        double want = 0;
        for (int r = 0; r < b->size; r++) want += (double)element(r, i);
        wrong += pow((double)b->data[i] - want, 2);
        all += want * want;
    }
    return sqrt(wrong / all);
}

/* ---- the link: from rank 0 to rank 1 ---- */
static ll_err ping_pong(bench *b, size_t bytes, int times, double *seconds)
{
    int64_t number = ll_comm_next_number(b->c, "ping-pong", "bench");
    TRY(ll_comm_barrier(b->c));
    double start = ll_now();
    for (int i = 0; i < times && b->rank < 2; i++)
        for (int way = 0; way < 2; way++) {
            int peer = 1 - b->rank, to = way == b->rank ? peer : -1, from = to < 0 ? peer : -1;
            const ll_exchange x = {number, to, from, b->data, bytes, b->data, bytes};
            TRY(ll_comm_exchange(b->c, &x, NULL));
        }
    *seconds = b->rank < 2 ? (ll_now() - start) / (2 * times) : 0;
    return most(b, seconds, 1);
}

static ll_err measure_link(bench *b)
{
    double s;
    int64_t large = (int64_t)8 << 20;
    size_t bytes = (size_t)(4 * b->o->count < large ? 4 * b->o->count : large);
    TRY(ping_pong(b, bytes, 1, &s));
    TRY(ping_pong(b, 4, 50, &b->half_s));
    TRY(ping_pong(b, bytes, 2, &s));
    b->measured = (double)bytes / s;
    return LL_OK;
}

/* ---- all-reduces ---- */
/* algorithm: NULL for the tuner's; "blocking": the library's blocking call, which over TCP can be
 * twice as fast as the one that starts and returns, which the algorithm "mpi" is. */
static ll_err reduce_dense(bench *b, const char *algorithm, const char *site)
{
    if (algorithm && !strcmp(algorithm, "blocking")) {
        int rc = MPI_Allreduce(MPI_IN_PLACE, b->data, (int)b->o->count, MPI_FLOAT, MPI_SUM,
                               MPI_COMM_WORLD);
        CHECK(rc == MPI_SUCCESS, LL_E_COMM, "MPI_Allreduce failed with code %d", rc);
        return LL_OK;
    }
    return ll_comm_allreduce(b->c, b->data, b->o->count, LL_F32, LL_REDUCE_SUM,
                             &(ll_coll_opts){.algorithm = algorithm, .site = site});
}

static ll_err dense_line(bench *b, const char *algorithm, const char *name)
{
    line *l = &b->lines[b->n_line++];
    *l = (line){.bytes = -1};
    snprintf(l->name, sizeof l->name, "%s", name);
    for (int i = 0; i < DENSE_TIMES; i++) {
        fill(b);
        TRY(ll_comm_barrier(b->c));
        double before = (double)ll_comm_counted(b->c).bytes, start = ll_now();
        TRY(reduce_dense(b, algorithm, name));
        double v[] = {ll_now() - start, (double)ll_comm_counted(b->c).bytes - before, off(b)};
        TRY(most(b, v, 3));
        if (i == 0 || v[0] < l->seconds) l->seconds = v[0];
        if (strncmp(name, "mpi", 3)) l->bytes = v[1]; /* the library's are not counted */
        l->error = v[2];
        CHECK(l->error < 1e-5, LL_E_COMM, "all-reduce by %s is off by %g", name, l->error);
    }
    if (b->best_s == 0 || l->seconds < b->best_s) b->best_s = l->seconds;
    return LL_OK;
}

static ll_err dense(bench *b)
{
    static const char *const names[] = {"ring", "rabenseifner", "mpi"};
    for (int i = 0; i < 3; i++) TRY(dense_line(b, names[i], names[i]));
    if (b->o->count <= INT_MAX) TRY(dense_line(b, "blocking", "mpi, blocking"));
    const ll_table *t;
    const ll_algo *chosen;
    int64_t segment;
    char name[64];
    ll_coll_spec s = {.coll = LL_COLL_ALLREDUCE,
                      .size = b->size,
                      .count = b->o->count,
                      .node = ll_comm_nodes(b->c)};
    TRY(ll_tune(b->c, &(ll_tune_opts){.fresh = true}, &t));
    TRY(ll_choose(t, &s, 4, false, false, &chosen, &segment));
    snprintf(name, sizeof name, "tuned: %s", chosen->name);
    return dense_line(b, NULL, name);
}

static ll_err codec_line(bench *b, const char *text)
{
    line *l = &b->lines[b->n_line++];
    ll_codec *k = NULL;
    *l = (line){.form = ""};
    snprintf(l->name, sizeof l->name, "%s", text);
    TRY(ll_comm_agree(b->c, ll_codec_open(text, "gradient", b->o->count, 1, &k)));
    ll_err rc = LL_OK;
    for (int i = 0; rc == LL_OK && i <= CODEC_TIMES; i++) { /* the first makes its memory */
        fill(b);
        rc = ll_comm_barrier(b->c);
        double start = ll_now();
        if (rc == LL_OK) rc = ll_codec_allreduce(k, b->c, b->data, i, text);
        double v[3] = {ll_now() - start};
        ll_codec_report r = ll_codec_last(k);
        v[1] = (double)r.bytes;
        v[2] = r.error;
        if (rc == LL_OK) rc = most(b, v, 3);
        if (i == 1 || (i > 1 && v[0] < l->seconds)) l->seconds = v[0];
        l->bytes = v[1];
        l->error = v[2];
        l->form = r.form;
    }
    ll_codec_close(k);
    return rc;
}

/* ---- results ---- */
static double bound_of(const bench *b, double rate)
{
    return rate > 0 ? 2.0 * (b->size - 1) / b->size * 4 * (double)b->o->count / rate : NAN;
}

static void print_text(const bench *b)
{
    char n[LL_NUMBER_TEXT], bytes[LL_NUMBER_TEXT], half[LL_NUMBER_TEXT];
    printf("%d hosts, links of %s (%.0f Mbit/s and %s one way measured); f32 gradient of %s\n",
           b->size, b->o->rate, 8e-6 * b->measured, ll_text_time(b->half_s, half),
           ll_text_count((double)b->o->count, n));
    printf(
        "no dense all-reduce can take less than %.1f ms here (2 (p-1)/p n bytes at that rate)\n\n",
        1e3 * b->bound_s);
    printf("%-22s %-10s %10s %10s %12s %9s %9s\n", "all-reduce", "form", "ms", "x dense",
           "bytes sent", "error", "% bound");
    for (int i = 0; i < b->n_line; i++) {
        const line *l = &b->lines[i];
        printf("%-22s %-10s %10.1f %10.2f %12s %9.1e ", l->name, l->form ? l->form : "dense",
               1e3 * l->seconds, b->best_s / l->seconds,
               l->bytes < 0 ? "" : ll_text_bytes(l->bytes, bytes), l->error);
        if (l->form)
            printf("%9s\n", "");
        else
            printf("%8.1f%%\n", 100 * b->bound_s / l->seconds);
    }
    printf("\nms: the slowest rank, least of %d (codecs %d); x dense: times faster than the best "
           "dense one;\nbytes: of the rank that sends most; error: of what a codec sends against "
           "what it was given, 2-norms\n",
           DENSE_TIMES, CODEC_TIMES);
}

static ll_err print_json(const bench *b)
{
    json_t *j = json_object(), *list = json_array();
    json_object_set_new(j, "hosts", json_integer(b->size));
    json_object_set_new(j, "rate", json_string(b->o->rate));
    json_object_set_new(j, "rate_mbit", ll_cli_number(8e-6 * b->rate));
    json_object_set_new(j, "measured_mbit", ll_cli_number(8e-6 * b->measured));
    json_object_set_new(j, "half_round_trip_us", ll_cli_number(1e6 * b->half_s));
    json_object_set_new(j, "count", json_integer((json_int_t)b->o->count));
    json_object_set_new(j, "bound_ms", ll_cli_number(1e3 * b->bound_s));
    json_object_set_new(j, "best_dense_ms", ll_cli_number(1e3 * b->best_s));
    for (int i = 0; i < b->n_line; i++) {
        const line *l = &b->lines[i];
        json_t *r = json_object();
        json_object_set_new(r, "op", json_string("all-reduce"));
        json_object_set_new(r, "ranks", json_integer(b->size));
        json_object_set_new(r, "bytes", json_integer((json_int_t)(4 * b->o->count)));
        json_object_set_new(r, l->form ? "codec" : "algorithm", json_string(l->name));
        if (l->form) json_object_set_new(r, "form", json_string(l->form));
        json_object_set_new(r, "us", ll_cli_number(1e6 * l->seconds));
        json_object_set_new(r, "bytes_on_wire", ll_cli_number(l->bytes < 0 ? NAN : l->bytes));
        json_object_set_new(r, "error", ll_cli_number(l->error));
        json_object_set_new(r, "times_faster_than_dense", ll_cli_number(b->best_s / l->seconds));
        if (!l->form)
            json_object_set_new(r, "percent_of_bound",
                                ll_cli_number(100 * b->bound_s / l->seconds));
        json_array_append_new(list, r);
    }
    json_object_set_new(j, "results", list);
    return ll_cli_json(j);
}

ll_err ll_netns_measure(ll_comm *c, const ll_netns_opts *opts)
{
    static const char *const codecs[] = {"topk:0.001", "topk:0.001:4", "qsgd:4", "bf16"};
    bench b = {.c = c, .o = opts, .rank = ll_comm_rank(c), .size = ll_comm_size(c)};
    double bits;
    CHECK(b.size == opts->hosts, LL_E_COMM, "%d ranks on %d hosts", b.size, opts->hosts);
    TRY(ll_netns_rate(opts->rate, &bits));
    b.rate = bits / 8;
    b.data = (float *)malloc(sizeof(float) * (size_t)opts->count);
    ll_err rc = b.data ? LL_OK
                       : ll_raise(LL_E_MEM, __FILE__, __LINE__, __func__,
                                  "no memory for a gradient of %lld", (long long)opts->count);
    rc = ll_comm_agree(c, rc);
    if (rc == LL_OK) {
        fill(&b);
        rc = measure_link(&b);
    }
    b.bound_s = bound_of(&b, b.rate > 0 ? b.rate : b.measured);
    if (rc == LL_OK) rc = dense(&b);
    for (int i = 0; rc == LL_OK && i < 4; i++) rc = codec_line(&b, codecs[i]);
    if (rc == LL_OK && b.rank == 0) {
        if (opts->json)
            rc = print_json(&b);
        else
            print_text(&b);
    }
    free(b.data);
    return rc;
}
