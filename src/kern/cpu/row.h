/* row.h: what fast kernels do with rows of f32, and how rows are shared among threads. Sums run in
 * f32 over short stretches and in double over those, so their error does not grow with the length.
 */
#pragma once
#include "kern/cpu/team.h"
#include "kern/kern.h"

/* How many threads to use for so many elementary operations: 1 or all. */
static inline int ll_team(const ll_kcall *c, int64_t work)
{
    return ll_team_for(c->threads, work);
}

/* Bytes of scratch, so many floats for each thread. */
static inline size_t ll_floats_each(const ll_kcall *c, size_t floats)
{
    return floats * sizeof(float) * (size_t)(c->threads < 1 ? 1 : c->threads);
}

/* Makes items [from, to) of a job. */
typedef void ll_thread_part(const void *job, int64_t from, int64_t to);
/* Makes n items in even parts, one for each thread, or fewer where there are fewer items. */
void ll_in_parts(int threads, int64_t n, ll_thread_part *part, const void *job);
/* The same; each part has a number below `threads`, for room of its own. */
typedef void ll_numbered_part(const void *job, int number, int64_t from, int64_t to);
void ll_in_numbered_parts(int threads, int64_t n, ll_numbered_part *part, const void *job);

float ll_row_top(const float *x, int64_t n); /* the largest; NaNs are passed over */
/* y = exp(x - top), or NULL; returns the sum. */
double ll_row_exp(const float *x, float top, float *y, int64_t n);
/* y = exp(x - top) by */
void ll_row_exp_times(const float *x, float top, float by, float *y, int64_t n);
double ll_row_square(const float *x, int64_t n); /* sum of x^2 */
/* Mean and (biased) variance. */
void ll_row_moments(const float *x, int64_t n, double *mean, double *var);
/* Sums of g gain, and of g gain (x - mean). */
void ll_row_dots(const float *g, const float *gain, const float *x, float mean, int64_t n,
                 double *plain, double *weighed);

/* Rows in chunks: a fixed partition, whatever the number of threads, so that sums over rows are
 * made of the same parts in the same order. At most LL_CHUNKS of them. */
enum { LL_CHUNKS = 64 };
static inline int ll_n_chunk(int64_t rows)
{
    int64_t n = rows / 64;
    if (n > LL_CHUNKS) return LL_CHUNKS;
    return n < 1 ? 1 : (int)n;
}
static inline int64_t ll_chunk_from(int64_t rows, int n, int i)
{
    return (int64_t)i * rows / n;
}

/* Of a gradient's operands dy = in[0] and x = in[1], [rows,cols], with the call's scratch:
 * total[j] = sum of dy[r,j] w(r,j) and, where plain is not NULL, plain[j] = sum of dy[r,j] over all
 * rows, where w = (x[r,j] - shift) scale. shift and scale are numbers of each row, or of each
 * column (per_column: shift[j], and scale is not looked at); NULL: 0 and 1. */
typedef struct ll_col_sums_of {
    const void *shift, *scale;
    bool per_column;
    void *total, *plain;
} ll_col_sums_of;
void ll_col_sums(const ll_kcall *c, const ll_col_sums_of *s);
ll_scratch col_sums_cpu_scratch;
