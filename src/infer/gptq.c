/* gptq.c: weights rounded so that products change least. */
#define _GNU_SOURCE /* qsort_r */
#include "infer/gptq.h"

#include "base/own.h"
#include "kern/blocks.h"

#include <omp.h>

enum { PANEL = 32, ROWS = 16 }; /* columns of the factor, rows of weights that go together */

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
                CHECK(i != k || *at > 0, LL_E_NUMERIC, "the inputs of products are not finite");
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
    CHECK(sum && range, LL_E_MEM, "not enough memory to round %ld rows", j->rows);
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
    CHECK(l && lf && at, LL_E_MEM, "not enough memory for moments of %ld columns", cols);
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
