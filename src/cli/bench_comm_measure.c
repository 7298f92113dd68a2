/* bench_comm_measure.c: the times of bench comm. Of each size, every algorithm is run once for its
 * result to be checked; then all of them in turns, so that whatever disturbs disturbs them alike.
 * An algorithm leaves data in caches as the next one likes it or not; so ranks write their data
 * before each repetition, as they do in life, and the order changes from round to round.
 * A repetition begins with a barrier and takes as long as its slowest rank. */
#include "cli/bench.h"

#include "base/rng.h"
#include "base/stats.h"
#include "run/ranks.h"

enum { RUNS_MIN = 3, RUNS_MAX = 400, CACHE = 4 << 20 };
static const double FAR = 20; /* times the best prediction: not worth measuring unless asked for */

typedef struct bench {
    ll_comm *c;
    const ll_comm_bench_opts *o;
    ll_arena *arena;
    ll_comm_bench_report *report;
    char *data, *out;
    size_t elem_bytes;
    int64_t step; /* of codecs */
    bool filled;  /* data is to be kept for the next run */
} bench;

/* Every number becomes the largest that any rank has. */
static ll_err most(ll_comm *c, double *v, int64_t n)
{
    return ll_comm_allreduce(c, v, n, LL_F64, LL_REDUCE_MAX, &(ll_coll_opts){.site = "bench"});
}

static ll_coll_spec spec_of(const bench *b, size_t bytes, size_t segment_bytes)
{
    return (ll_coll_spec){.coll = b->report->coll,
                          .size = b->report->ranks,
                          .count = (int64_t)(bytes / b->elem_bytes),
                          .segment = (int64_t)(segment_bytes / b->elem_bytes),
                          .node = ll_comm_nodes(b->c),
                          .shared = b->o->shared && ll_comm_has_window(b->c)};
}

/* ---- what to time ---- */

/* The segment that the tuner found best for an algorithm, or that is predicted to be. */
static size_t best_segment(const bench *b, const ll_algo *a, size_t bytes)
{
    static const size_t segments[] = {0, 64 << 10, 256 << 10, 1 << 20};
    int n = b->report->tuner->n_entry;
    const ll_tuned *e = b->report->tuner->entries;
    for (int i = 0; i < n; i++) {
        if (e[i].coll != a->coll || e[i].shared != b->o->shared) continue;
        if (e[i].bytes > 2 * bytes || bytes > 2 * e[i].bytes) continue;
        for (int k = 0; k < e[i].n_way; k++)
            if (e[i].ways[k].algo == a) return e[i].ways[k].segment_bytes;
    }
    size_t best = 0;
    double least = INFINITY;
    for (size_t i = 0; i < sizeof segments / sizeof *segments; i++) {
        ll_coll_spec s = spec_of(b, bytes, segments[i]);
        if (segments[i] > bytes) break;
        double t = ll_tune_predict(&b->report->tuner->model, &s, a, b->elem_bytes,
                                   ll_comm_window_bytes(b->c));
        if (t > 0 && t < least) {
            least = t;
            best = segments[i];
        }
    }
    return best;
}

static void add_row(const bench *b, ll_comm_bench_point *p, const ll_algo *a, size_t segment)
{
    ll_coll_spec s = spec_of(b, p->bytes, segment);
    p->rows[p->n_row++] = (ll_comm_bench_row){
        .algo = a,
        .name = a->name,
        .segment_bytes = segment,
        .predicted_s = ll_tune_predict(&b->report->tuner->model, &s, a, b->elem_bytes,
                                       ll_comm_window_bytes(b->c))};
}

static ll_err add_algorithms(const bench *b, ll_comm_bench_point *p, size_t fixed)
{
    const char *list = b->o->algorithms;
    bool all = list && !strcmp(list, "all");
    for (const ll_algo *const *a = ll_algos(); *a; a++) {
        ll_coll_spec s = spec_of(b, p->bytes, 0);
        if ((*a)->coll != b->report->coll) continue;
        if (list && !all && !ll_lists(list, ',', (*a)->name, strlen((*a)->name))) continue;
        if (list && !all) TRY(ll_algo_check(*a, &s));
        if (!ll_choose_may(*a, &s, ll_comm_has_window(b->c), b->o->canonical)) continue;
        size_t segment = !(*a)->segmented ? 0 : fixed ? fixed : best_segment(b, *a, p->bytes);
        add_row(b, p, *a, segment);
    }
    double best = INFINITY;
    for (int i = 0; i < p->n_row; i++)
        if (p->rows[i].predicted_s > 0) best = fmin(best, p->rows[i].predicted_s);
    int n = 0;
    for (int i = 0; i < p->n_row; i++)
        if (list || p->rows[i].predicted_s < FAR * best) p->rows[n++] = p->rows[i];
    p->n_row = n;
    return LL_OK;
}

/* The tuner's choice: a row that is there, or one more. */
static ll_err add_choice(const bench *b, ll_comm_bench_point *p)
{
    const ll_algo *a;
    int64_t segment;
    ll_coll_spec s = spec_of(b, p->bytes, 0);
    TRY(ll_choose(b->report->tuner, &s, b->elem_bytes, ll_comm_has_window(b->c), b->o->canonical,
                  &a, &segment));
    size_t bytes = (size_t)segment * b->elem_bytes;
    int i = 0;
    while (i < p->n_row && (p->rows[i].algo != a || p->rows[i].segment_bytes != bytes)) i++;
    if (i == p->n_row) add_row(b, p, a, bytes);
    p->rows[i].chosen = true;
    p->why = ll_choose_why(b->report->tuner, &s, b->elem_bytes);
    return LL_OK;
}

static ll_err add_codecs(const bench *b, ll_comm_bench_point *p)
{
    for (int i = 0; i < b->o->codecs.n; i++) {
        ll_comm_bench_row *r = &p->rows[p->n_row];
        *r = (ll_comm_bench_row){.name = b->o->codecs.v[i]};
        TRY(ll_codec_open(r->name, "bench", (p->bytes / 4), 1, &r->codec));
        p->n_row++;
    }
    return LL_OK;
}

/* ---- running ---- */

static void fill_normal(const bench *b, size_t bytes)
{
    float *x = (float *)(void *)b->data;
    uint64_t stream =
        ll_stream("bench", (uint64_t)(b->step * b->report->ranks) + (uint64_t)ll_comm_rank(b->c));
    float four[4];
    for (size_t i = 0; i < bytes / 4; i++) { /* cheap: a sum of uniforms is nearly normal */
        if (i % 4 == 0) ll_uniform_4(1, stream, i / 4, four);
        x[i] = four[i % 4] + four[(i + 1) % 4] - 1;
    }
}

/* sent: bytes, that this rank's messages had. */
static ll_err run_row(bench *b, const ll_comm_bench_point *p, const ll_comm_bench_row *r,
                      double *out, double *sent)
{
    ll_coll_call call = {.spec = spec_of(b, p->bytes, r->segment_bytes),
                         .data = b->data,
                         .out = b->out,
                         .dtype = b->report->dtype,
                         .algo = r->algo,
                         .site = "bench"};
    if (r->codec)
        fill_normal(b, p->bytes);
    else if (!b->filled && p->bytes <= CACHE)
        memset(b->data, 0, p->bytes);
    b->filled = false;
    TRY(ll_comm_barrier(b->c));
    int64_t before = ll_comm_used(b->c).count.bytes;
    double from = ll_now();
    if (r->codec)
        TRY(ll_codec_allreduce(r->codec, b->c, (float *)(void *)b->data, b->step++, "bench"));
    else
        TRY(ll_comm_run(b->c, &call));
    *out = ll_now() - from;
    *sent = (double)(ll_comm_used(b->c).count.bytes - before);
    return LL_OK;
}

/* Sums of 1 .. p are known; other collectives have tests of their own. */
static ll_err check_sum(const bench *b, const ll_comm_bench_point *p, const ll_comm_bench_row *r)
{
    int64_t n = (int64_t)(p->bytes / b->elem_bytes);
    double want = 0.5 * b->report->ranks * (b->report->ranks + 1);
    bool known = b->report->coll == LL_COLL_ALLREDUCE && !r->codec && b->report->ranks <= 16;
    for (int64_t i = 0; known && i < n; i++)
        CHECK(ll_load(b->data, b->report->dtype, i) == want, LL_E_COMM,
              "%s by %s is wrong: element %ld of %ld is %g, expected %g",
              ll_coll_name(b->report->coll), r->name, i, n, ll_load(b->data, b->report->dtype, i),
              want);
    return LL_OK;
}

/* Once each: the result, the bytes, how long about. */
static ll_err warm_up(bench *b, ll_comm_bench_point *p)
{
    int64_t n = (int64_t)(p->bytes / b->elem_bytes);
    LL_EACH (ll_comm_bench_row, r, p->rows, p->n_row) {
        for (int64_t k = 0; k < n; k++)
            ll_store(b->data, b->report->dtype, k, 1 + ll_comm_rank(b->c));
        b->filled = true;
        double v[3] = {0};
        TRY(run_row(b, p, r, &v[0], &v[1]));
        if (r->codec) {
            v[1] = (double)ll_codec_last(r->codec).bytes;
            v[2] = ll_codec_last(r->codec).error;
        }
        TRY(ll_comm_agree(b->c, check_sum(b, p, r)));
        TRY(most(b->c, v, 3));
        r->median_s = v[0] + (r->codec ? 4e-9 * (double)p->bytes : 0); /* filling takes time, too */
        r->wire = r->algo && r->algo->library ? -1 : v[1];
        r->error = v[2];
    }
    memset(b->data, 0, p->bytes);
    return LL_OK;
}

/* How often each row is run: equally often, but those far behind only once where time is short. */
static void share_out(ll_comm_bench_point *p, double seconds)
{
    double sum = 0, near = 0, best = INFINITY;
    for (int i = 0; i < p->n_row; i++) best = fmin(best, p->rows[i].median_s);
    for (int i = 0; i < p->n_row; i++) {
        sum += p->rows[i].median_s;
        if (p->rows[i].median_s < 3 * best) near += p->rows[i].median_s;
    }
    bool hurry = sum * RUNS_MIN > seconds;
    double each = hurry ? near : sum, left = hurry ? seconds - (sum - near) : seconds;
    int n = (int)fmax(RUNS_MIN, fmin(RUNS_MAX, left / each));
    for (int i = 0; i < p->n_row; i++)
        p->rows[i].n_run = hurry && p->rows[i].median_s >= 3 * best ? 1 : n;
    p->n_run = n;
}

static ll_err time_point(bench *b, ll_comm_bench_point *p, double seconds)
{
    TRY(warm_up(b, p));
    share_out(p, seconds);
    int n = p->n_run;
    double *all = LL_NEW_ARRAY(b->arena, double, p->n_row *n + 1), sent;
    for (int k = 0; k < n; k++)
        for (int j = 0; j < p->n_row; j++) {
            int i = (int)ll_permute(1, (uint64_t)k, (uint64_t)j, (uint64_t)p->n_row);
            if (k < p->rows[i].n_run) TRY(run_row(b, p, &p->rows[i], &all[i * n + k], &sent));
        }
    TRY(most(b->c, all, (int64_t)p->n_row * n));
    for (int i = 0; i < p->n_row; i++) {
        ll_comm_bench_row *r = &p->rows[i];
        ll_stats_sort(&all[i * n], r->n_run);
        r->median_s = ll_quantile(&all[i * n], r->n_run, 0.5);
        r->min_s = all[i * n];
    }
    return LL_OK;
}

static ll_err add_rows(const bench *b, ll_comm_bench_point *p)
{
    TRY(add_algorithms(b, p, b->report->segment_bytes));
    TRY(add_choice(b, p));
    return add_codecs(b, p);
}

static ll_err measure_point(bench *b, ll_comm_bench_point *p, double seconds)
{
    int n_algo = 0;
    while (ll_algos()[n_algo]) n_algo++;
    p->rows = LL_NEW_ARRAY(b->arena, ll_comm_bench_row, n_algo + 1 + b->o->codecs.n);
    ll_coll_spec s = spec_of(b, p->bytes, 0);
    p->bound = ll_coll_bound(&s);
    p->bound_s =
        ll_cost_time(&p->bound, b->elem_bytes, &b->report->tuner->model, b->report->nodes > 1);
    ll_err rc = ll_comm_agree(b->c, add_rows(b, p));
    if (rc == LL_OK) rc = time_point(b, p, seconds);
    for (int i = 0; i < p->n_row; i++) {
        ll_codec_close(p->rows[i].codec);
        p->rows[i].codec = NULL;
    }
    return rc;
}

/* ---- all of it ---- */

static ll_err get_memory(bench *b, size_t bytes, char **to_free)
{
    size_t out = b->report->coll == LL_COLL_ALLTOALL ? bytes * 2 : 64;
    *to_free = (char *)malloc(out + bytes);
    TRY(ll_comm_agree(
        b->c, *to_free ? LL_OK : RAISE(LL_E_MEM, "not enough memory for %zu bytes", out + bytes)));
    b->out = *to_free;
    b->data = *to_free + out;
    if (b->o->shared) {
        void *data;
        TRY(ll_comm_alloc(b->c, bytes, &data));
        b->data = (char *)data;
    }
    memset(b->out, 0, out);
    memset(b->data, 0, bytes);
    return LL_OK;
}

ll_err ll_comm_bench_measure(ll_comm *c, ll_arena *a, ll_comm_bench_report *r)
{
    bench b = {
        .c = c, .o = r->opts, .arena = a, .report = r, .elem_bytes = ll_dtype_bytes(r->dtype)};
    r->ranks = ll_comm_size(c);
    r->nodes = ll_ranks_nodes(c);
    TRY(ll_tune(c, &(ll_tune_opts){.fresh = r->opts->fresh}, &r->tuner));
    size_t largest = 0;
    for (int i = 0; i < r->n_point; i++)
        if (r->points[i].bytes > largest) largest = r->points[i].bytes;
    LL_OWN_MEMORY char *memory = NULL;
    double began = ll_now();
    TRY(get_memory(&b, largest, &memory));
    for (int i = 0; i < r->n_point; i++) {
        double left = b.o->seconds - (ll_now() - began);
        TRY(most(c, &left, 1));
        TRY(measure_point(&b, &r->points[i], left / (r->n_point - i)));
    }
    return LL_OK;
}
