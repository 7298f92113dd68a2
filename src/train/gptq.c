/* gptq.c: weights rounded so that products change least. */
#define _GNU_SOURCE /* qsort_r */
#include "train/gptq.h"

#include "kern/blocks.h"
#include "pass/packed.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>

enum { PANEL = 32, ROWS = 16 }; /* columns of the factor, rows of weights that go together */

struct ll_gptq {
    ll_graph *g;
    ll_session *s;
};

/* ---- moments ---- */

static const char *moment_of(ll_arena *a, ll_val x)
{
    return ll_arena_printf(a, "gptq.moment.%d", x.id);
}

/* A state for each value that products with packed weights read: the sum of its X^T X. */
static void add_moments(ll_graph *g)
{
    int n = g->n_node;
    for (int i = 0; i < n; i++) {
        int64_t cols = ll_pack_cols(g, &g->nodes[i]);
        ll_val x = g->nodes[i].in[0];
        const char *name = moment_of(g->arena, x);
        if (!cols || ll_find(g, name).id) continue;
        ll_shape s = ll_graph_shape(g, x);
        ll_val flat = ll_reshape(g, x, LL_SHAPE(ll_numel(&s) / cols, cols));
        ll_val sum = ll_state(g, name, LL_SHAPE(cols, cols), (ll_init){LL_ZEROS, 0});
        ll_graph_update(g, sum, ll_add(g, sum, ll_matmul(g, "mc,md->cd", flat, flat)));
    }
}

static ll_err calibrate(ll_gptq *q, const ll_run *r, int64_t windows)
{
    LL_OWN(ll_dataset) d = NULL;
    LL_OWN(ll_arena) a = ll_arena_new();
    void *data[LL_MAX_FIELDS] = {0};
    TRY(ll_run_dataset(r, &d));
    const ll_data_info *info = ll_dataset_info(d);
    ll_sampling how = ll_run_sampling(r);
    for (int i = 0; i < info->n_field; i++) data[i] = ll_arena_alloc(a, info->field_bytes[i]);
    for (int64_t k = 0; k < windows; k++) {
        TRY(ll_dataset_read(d, &how, k, 1, data));
        TRY(ll_run_set_batch(info, q->s, 0, 1, (const void *const *)data));
        TRY(ll_session_run(q->s, 0));
    }
    return LL_OK;
}

ll_err ll_gptq_open(const ll_run *r, ll_session *s, int64_t windows, ll_gptq **out)
{
    *out = NULL;
    CHECK(!s->opts.comm, LL_E_ARG, "calibrating takes one rank: no mesh");
    LL_OWN(ll_gptq) q = (ll_gptq *)calloc(1, sizeof *q);
    CHECK(q, LL_E_MEM, "no memory to calibrate with");
    TRY(ll_run_graph(r, 1, NULL, &q->g));
    add_moments(q->g);
    TRY(ll_graph_check(q->g));
    ll_session_opts o = s->opts;
    o.share = s;
    o.reuse = false;
    TRY(ll_session_open(q->g, &o, &q->s));
    TRY(calibrate(q, r, windows));
    return LL_HAND(out, q);
}

void ll_gptq_close(ll_gptq *q)
{
    if (!q) return;
    ll_session_close(q->s);
    ll_graph_free(q->g);
    free(q);
}

/* ---- one matrix ---- */

/* w [rows,cols]; columns at[n - 1] to at[0] in turn; l [n,n]: of H in this order, its factor. */
typedef struct job {
    float *w;
    int64_t rows, cols;
    const float *h; /* the diagonal, by column */
    int64_t *at;
    double *l;
    float *lf;
    int threads;
} job;

static double dot(const double *x, const double *y, int64_t n)
{
    double sum[8] = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++) sum[k] += x[i + k] * y[i + k];
    for (; i < n; i++) sum[0] += x[i] * y[i];
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

/* Column k of row i, where those before it are made. */
static double *column(const job *j, int64_t i, int64_t k)
{
    double *at = &j->l[i * j->cols + k];
    *at -= dot(j->l + i * j->cols, j->l + k * j->cols, k);
    if (i != k) *at /= j->l[k * j->cols + k];
    return at;
}

/* Cholesky: l, of which the lower half is read, becomes L with L L^T = l. */
static ll_err factor(const job *j)
{
    int64_t n = j->cols;
    for (int64_t from = 0; from < n; from += PANEL) {
        int64_t to = from + PANEL < n ? from + PANEL : n;
        for (int64_t k = from; k < to; k++)
            for (int64_t i = k; i < to; i++) {
                double *at = column(j, i, k);
                CHECK(i != k || *at > 0, LL_E_NUMERIC, "what products read is not finite");
                if (i == k) *at = sqrt(*at);
            }
#pragma omp parallel for num_threads(j->threads)
        for (int64_t i = to; i < n; i++)
            for (int64_t k = from; k < to; k++) column(j, i, k);
    }
    return LL_OK;
}

/* Up to ROWS rows. Their blocks' scales are those of the weights as they were. */
static void some_rows(const job *j, int64_t from, int rows, float *sum, uint16_t *range)
{
    int64_t n = j->cols, blocks = n / LL_PACK;
    for (int64_t i = 0; i < rows * n; i++) sum[i] = 0;
    for (int64_t b = 0; b < rows * blocks; b++)
        ll_pack_range(j->w + from * n + b * LL_PACK, j->h + b % blocks * LL_PACK, &range[2 * b],
                      &range[2 * b + 1]);
    for (int64_t i = n - 1; i >= 0; i--)
        for (int r = 0; r < rows; r++) {
            float *w = &j->w[(from + r) * n + j->at[i]], *s = sum + r * n;
            const uint16_t *of = &range[2 * (r * blocks + j->at[i] / LL_PACK)];
            const float *l = j->lf + i * n;
            double scale = ll_load(of, LL_F16, 0), least = ll_load(of, LL_F16, 1);
            double want = (double)*w + (double)(s[i] / l[i]);
            double k = scale > 0 ? fmin(fmax(rint((want - least) / scale), 0), 15) : 0;
            float is = (float)(scale * k + least), off = *w - is;
            for (int64_t c = 0; c < i; c++) s[c] += off * l[c];
            *w = is;
        }
}

static ll_err all_rows(const job *j)
{
    size_t sums = (size_t)(ROWS * j->cols), ranges = 2 * (sums / LL_PACK);
    LL_OWN_MEMORY float *sum = (float *)malloc(sizeof *sum * sums * (size_t)j->threads);
    LL_OWN_MEMORY uint16_t *range = (uint16_t *)malloc(sizeof *range * ranges * (size_t)j->threads);
    CHECK(sum && range, LL_E_MEM, "no memory to round %lld rows", (long long)j->rows);
#pragma omp parallel for num_threads(j->threads) schedule(dynamic)
    for (int64_t i = 0; i < j->rows; i += ROWS) {
        size_t me = (size_t)omp_get_thread_num();
        some_rows(j, i, (int)(j->rows - i < ROWS ? j->rows - i : ROWS), sum + me * sums,
                  range + me * ranges);
    }
    return LL_OK;
}

static int by_moment(const void *a, const void *b, void *of)
{
    const float *h = (const float *)of;
    int64_t i = *(const int64_t *)a, k = *(const int64_t *)b;
    return h[i] != h[k] ? (h[i] < h[k] ? -1 : 1) : i < k ? -1 : i > k;
}

ll_err ll_gptq_matrix(float *w, int64_t rows, int64_t cols, const float *h, int threads)
{
    size_t n = (size_t)cols;
    double mean = 0;
    LL_OWN_MEMORY double *l = (double *)malloc(sizeof *l * n * n + 1);
    LL_OWN_MEMORY float *lf = (float *)malloc(sizeof *lf * n * (n + 1) + 1);
    LL_OWN_MEMORY int64_t *at = (int64_t *)malloc(sizeof *at * n + 1);
    CHECK(l && lf && at, LL_E_MEM, "no memory for moments of %lld columns", (long long)cols);
    float *diagonal = lf + n * n;
    for (int64_t i = 0; i < cols; i++) {
        at[i] = i;
        mean += (double)(diagonal[i] = h[i * cols + i]) / (double)cols;
    }
    if (!(mean > 0)) mean = 1; /* nothing came by: to nearest */
    for (int64_t i = 0; i < cols; i++) diagonal[i] += (float)(0.01 * mean);
    qsort_r(at, n, sizeof *at, by_moment, diagonal);
    for (int64_t i = 0; i < cols; i++)
        for (int64_t k = 0; k <= i; k++)
            l[i * cols + k] = i == k ? (double)diagonal[at[i]] : (double)h[at[i] * cols + at[k]];
    job j = {.w = w, .rows = rows, .cols = cols, .h = diagonal, .at = at, .l = l, .lf = lf};
    j.threads = threads > 0 ? threads : 1;
    TRY(factor(&j));
    for (size_t i = 0; i < n * n; i++) lf[i] = (float)l[i];
    return all_rows(&j);
}

/* ---- parameters ---- */

ll_err ll_gptq_round(ll_gptq *q, const char *name, float *w, int64_t n)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    for (int i = 0; i < q->g->n_node; i++) {
        const ll_node *p = &q->g->nodes[i];
        int64_t cols = ll_pack_cols(q->g, p);
        if (!cols || strcmp(ll_value_of(q->g, p->in[1])->name, name)) continue;
        size_t bytes = sizeof(float) * (size_t)(cols * cols);
        LL_OWN_MEMORY float *h = (float *)malloc(bytes);
        CHECK(h, LL_E_MEM, "no memory for the moments of %s", name);
        TRY(ll_session_get(q->s, moment_of(a, p->in[0]), h, bytes));
        return ll_gptq_matrix(w, n / cols, cols, h, q->s->opts.threads);
    }
    return LL_OK;
}

ll_err ll_gptq_session(ll_gptq *q, ll_session *s)
{
    for (int i = 1; i < s->g->n_value; i++) {
        const ll_value *v = &s->g->values[i];
        if (v->node >= 0 || v->kind != LL_PARAM || v->type.dtype != LL_F32) continue;
        int64_t n = ll_numel(&v->type.shape);
        LL_OWN_MEMORY float *w = (float *)malloc(sizeof *w * (size_t)n + 1);
        CHECK(w, LL_E_MEM, "no memory to round %s", v->name);
        TRY(ll_session_get(s, v->name, w, sizeof *w * (size_t)n));
        TRY(ll_gptq_round(q, v->name, w, n));
        TRY(ll_session_set(s, v->name, 0, w, sizeof *w * (size_t)n));
    }
    return LL_OK;
}
