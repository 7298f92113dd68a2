/* row.c: rows of f32 (see row.h). */
#include "kern/cpu/row.h"

#include "kern/cpu/vecmath.h"

enum { STRETCH = 256 }; /* elements summed in f32 */

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

float ll_row_top(const float *x, int64_t n)
{
    float top = -INFINITY;
#pragma omp simd reduction(max : top)
    for (int64_t i = 0; i < n; i++) top = x[i] > top ? x[i] : top;
    return top;
}

double ll_row_exp(const float *x, float top, float *y, int64_t n)
{
    double total = 0;
    for (int64_t from = 0; from < n; from += STRETCH) {
        float sum = 0;
        int64_t to = least(from + STRETCH, n);
#pragma omp simd reduction(+ : sum)
        for (int64_t i = from; i < to; i++) {
            y[i] = ll_expf(x[i] - top);
            sum += y[i];
        }
        total += (double)sum;
    }
    return total;
}

double ll_row_exp_total(const float *x, float top, int64_t n)
{
    double total = 0;
    for (int64_t from = 0; from < n; from += STRETCH) {
        float sum = 0;
        int64_t to = least(from + STRETCH, n);
#pragma omp simd reduction(+ : sum)
        for (int64_t i = from; i < to; i++) sum += ll_expf(x[i] - top);
        total += (double)sum;
    }
    return total;
}

double ll_row_total(const float *x, int64_t n)
{
    double total = 0;
    for (int64_t from = 0; from < n; from += STRETCH) {
        float sum = 0;
        int64_t to = least(from + STRETCH, n);
#pragma omp simd reduction(+ : sum)
        for (int64_t i = from; i < to; i++) sum += x[i];
        total += (double)sum;
    }
    return total;
}

double ll_row_square(const float *x, float mean, int64_t n)
{
    double total = 0;
    for (int64_t from = 0; from < n; from += STRETCH) {
        float sum = 0;
        int64_t to = least(from + STRETCH, n);
#pragma omp simd reduction(+ : sum)
        for (int64_t i = from; i < to; i++) sum += (x[i] - mean) * (x[i] - mean);
        total += (double)sum;
    }
    return total;
}

/* ---- sums over rows ---- */

enum { BLOCK = 32 }; /* rows summed in f32 */

/* Adds the sums of rows from .. to-1 to sum (weighted) and plain, both f32. */
static void add_block(const ll_col_sum_call *s, int64_t from, int64_t to, float *sum, float *plain)
{
    int64_t n = s->cols;
    for (int64_t r = from; r < to; r++) {
        const float *a = s->a + r * n, *b = s->b + r * n;
        float shift = s->shift && !s->per_column ? s->shift[r] : 0;
        float scale = s->scale && !s->per_column ? s->scale[r] : 1;
        if (s->per_column) {
            const float *shifts = s->shift;
#pragma omp simd
            for (int64_t j = 0; j < n; j++) {
                sum[j] += a[j] * (b[j] - shifts[j]);
                plain[j] += a[j];
            }
        } else {
#pragma omp simd
            for (int64_t j = 0; j < n; j++) {
                sum[j] += a[j] * ((b[j] - shift) * scale);
                plain[j] += a[j];
            }
        }
    }
}

/* One chunk: f32 over blocks of rows, double over blocks. total: [2,cols]; block: [2,cols] */
static void add_chunk(const ll_col_sum_call *s, int64_t from, int64_t to, double *total,
                      float *block)
{
    int64_t n = s->cols;
    for (int64_t j = 0; j < 2 * n; j++) total[j] = 0;
    for (int64_t r = from; r < to; r += BLOCK) {
        for (int64_t j = 0; j < 2 * n; j++) block[j] = 0;
        add_block(s, r, least(r + BLOCK, to), block, block + n);
#pragma omp simd
        for (int64_t j = 0; j < 2 * n; j++) total[j] += (double)block[j];
    }
}

void ll_col_sums(const ll_col_sum_call *s)
{
    int64_t n = s->cols;
    int chunks = ll_n_chunk(s->rows);
    double *total = (double *)s->scratch;             /* [chunks,2,cols] */
    float *block = (float *)(total + 2 * n * chunks); /* [chunks,2,cols] */
#pragma omp parallel for num_threads(s->threads) schedule(static)
    for (int i = 0; i < chunks; i++)
        add_chunk(s, ll_chunk_from(s->rows, chunks, i), ll_chunk_from(s->rows, chunks, i + 1),
                  total + 2 * n * i, block + 2 * n * i);
    for (int i = 1; i < chunks; i++)
        for (int64_t j = 0; j < 2 * n; j++) total[j] += total[2 * n * i + j];
    for (int64_t j = 0; j < n; j++) s->total[j] = (float)total[j];
    if (s->plain)
        for (int64_t j = 0; j < n; j++) s->plain[j] = (float)total[n + j];
}

size_t ll_col_sums_scratch(int64_t rows, int64_t cols)
{
    return (size_t)ll_n_chunk(rows) * (size_t)cols * 2 * (sizeof(double) + sizeof(float));
}
