/* batchnorm.c: batch normalisation of f32 [rows, channels], and its gradient.
 *
 * Statistics read x from memory once: each block of rows that fits the nearest cache gets its mean
 * and then its squares about that mean, and blocks combine in double (Chan, Golub, LeVeque 1979):
 *   n = n_a + n_b,  d = mean_b - mean_a,  mean = mean_a + d n_b/n,
 *   m2 = m2_a + m2_b + d^2 n_a n_b/n
 * Chunks of rows are a fixed partition, so the thread count does not change a bit. */
#include "kern/attr.h"
#include "kern/cpu/row.h"
#include "kern/rows.h"

#include <math.h>

LL_KERNELS(batchnorm, batchnorm_grad)

enum { CACHE = 8192 }; /* elements of a block */

/* mean and m2 of all channels over n rows */
typedef struct moments {
    double n, *mean, *m2;
} moments;

static void combine(moments *a, const moments *b, int64_t cols)
{
    double n = a->n + b->n;
    if (b->n == 0) return;
    for (int64_t j = 0; j < cols; j++) {
        double d = b->mean[j] - a->mean[j];
        a->mean[j] += d * (b->n / n);
        a->m2[j] += b->m2[j] + d * d * (a->n * b->n / n);
    }
    a->n = n;
}

/* Moments of one block, added to m. The mean in f32 is a first guess; what is left of the sum about
 * it makes it exact. room: [3,cols] */
static void add_block(const float *x, int64_t rows, int64_t cols, moments *m, float *room)
{
    float *guess = room, *rest = room + cols, *square = room + 2 * cols;
    double n = (double)rows, all = m->n + n;
    for (int64_t j = 0; j < 3 * cols; j++) room[j] = 0;
    for (int64_t r = 0; r < rows; r++) {
#pragma omp simd
        for (int64_t j = 0; j < cols; j++) guess[j] += x[r * cols + j];
    }
    for (int64_t j = 0; j < cols; j++) guess[j] /= (float)rows;
    for (int64_t r = 0; r < rows; r++) {
#pragma omp simd
        for (int64_t j = 0; j < cols; j++) {
            float d = x[r * cols + j] - guess[j];
            rest[j] += d;
            square[j] += d * d;
        }
    }
    for (int64_t j = 0; j < cols; j++) {
        double off = (double)rest[j] / n, d = (double)guess[j] + off - m->mean[j];
        m->mean[j] += d * (n / all);
        m->m2[j] += (double)square[j] - off * off * n + d * d * (m->n * n / all);
    }
    m->n = all;
}

static void add_chunk(const float *x, int64_t rows, int64_t cols, moments *m, float *room)
{
    int64_t block = CACHE / (cols + 1) + 1;
    if (block > 64) block = 64;
    for (int64_t j = 0; j < cols; j++) m->mean[j] = m->m2[j] = 0;
    for (int64_t r = 0; r < rows; r += block) {
        int64_t n = rows - r < block ? rows - r : block;
        add_block(x + r * cols, n, cols, m, room);
    }
}

/* Rows of cols numbers; of each chunk of them its moments, and room. */
typedef struct rows_of {
    const float *x;
    int64_t rows, cols;
    int chunks;
    moments *part;
    float *room;
} rows_of;

static void add_chunks(const void *given, int64_t first, int64_t end)
{
    const rows_of *g = (const rows_of *)given;
    for (int i = (int)first; i < end; i++) {
        int64_t from = ll_chunk_from(g->rows, g->chunks, i);
        int64_t to = ll_chunk_from(g->rows, g->chunks, i + 1);
        add_chunk(g->x + from * g->cols, to - from, g->cols, &g->part[i],
                  g->room + 3 * g->cols * i);
    }
}

/* Moments of all rows, in the first chunk's place of scratch. */
static moments statistics(const ll_kcall *c, const float *x, int64_t rows, int64_t cols, int team)
{
    moments part[LL_CHUNKS];
    int chunks = ll_n_chunk(rows);
    double *at = (double *)c->scratch;
    for (int i = 0; i < chunks; i++)
        part[i] = (moments){0, at + 2 * cols * i, at + 2 * cols * i + cols};
    rows_of g = {x, rows, cols, chunks, part, (float *)(at + 2 * cols * chunks)};
    ll_in_parts(team, chunks, add_chunks, &g);
    for (int i = 1; i < chunks; i++) combine(&part[0], &part[i], cols);
    return part[0];
}

typedef struct scaling {
    const float *x, *mean, *k, *b;
    float *y;
    int64_t cols;
} scaling;

/* y = (x - mean) k + b, where b makes up for the rounding of mean. */
static void scale_rows(const void *given, int64_t from, int64_t to)
{
    const scaling g = *(const scaling *)given; /* which no store can change */
    for (int64_t r = from; r < to; r++) {
#pragma omp simd
        for (int64_t j = 0; j < g.cols; j++)
            g.y[r * g.cols + j] = (g.x[r * g.cols + j] - g.mean[j]) * g.k[j] + g.b[j];
    }
}

ll_err batchnorm_cpu(const ll_kcall *c)
{
    const float *x = (const float *)c->in[0].data, *gain = (const float *)c->in[1].data;
    const float *bias = (const float *)c->in[2].data;
    float *mean = (float *)c->out[1].data, *var = (float *)c->out[2].data;
    double eps = ((const ll_norm_attr *)c->attr)->eps;
    int64_t rows = ll_rows(&c->in[0]), cols = ll_cols(&c->in[0]);
    int team = ll_team(c, rows * cols * 4);
    moments m = statistics(c, x, rows, cols, team);
    float *k = (float *)(m.m2 + cols), *b = k + cols;
    for (int64_t j = 0; j < cols; j++) {
        double v = m.m2[j] / (double)rows, scale = (double)gain[j] / sqrt(v + eps);
        mean[j] = (float)m.mean[j];
        var[j] = (float)v;
        k[j] = (float)scale;
        b[j] = (float)((double)bias[j] + ((double)mean[j] - m.mean[j]) * scale);
    }
    ll_in_parts(team, rows, scale_rows, &(scaling){x, mean, k, b, (float *)c->out[0].data, cols});
    return LL_OK;
}

size_t batchnorm_cpu_scratch(const ll_kcall *c)
{
    size_t chunks = (size_t)ll_n_chunk(ll_rows(&c->in[0])), cols = (size_t)ll_cols(&c->in[0]);
    return chunks * cols * (2 * sizeof(double) + 3 * sizeof(float));
}

typedef struct slopes {
    const float *dy, *x, *mean, *k, *a, *b;
    float *dx;
    int64_t cols;
} slopes;

/* dx = k (dy - a - (x - mean) b) */
static void slope_rows(const void *given, int64_t from, int64_t to)
{
    const slopes g = *(const slopes *)given;
    for (int64_t r = from; r < to; r++) {
#pragma omp simd
        for (int64_t j = 0; j < g.cols; j++) {
            int64_t i = r * g.cols + j;
            g.dx[i] = g.k[j] * (g.dy[i] - g.a[j] - (g.x[i] - g.mean[j]) * g.b[j]);
        }
    }
}

ll_err batchnorm_grad_cpu(const ll_kcall *c)
{
    const float *dy = (const float *)c->in[0].data, *x = (const float *)c->in[1].data;
    const float *gain = (const float *)c->in[2].data, *mean = (const float *)c->in[3].data;
    const float *var = (const float *)c->in[4].data;
    float *dx = (float *)c->out[0].data, *dgain = (float *)c->out[1].data;
    float *dbias = (float *)c->out[2].data;
    double eps = ((const ll_norm_attr *)c->attr)->eps;
    int64_t rows = ll_rows(&c->in[1]), cols = ll_cols(&c->in[1]);
    int team = ll_team(c, rows * cols * 4);
    ll_col_sums(
        c, &(ll_col_sums_of){.shift = mean, .per_column = true, .total = dgain, .plain = dbias});
    float *k = (float *)c->scratch, *a = k + cols, *b = a + cols;
    for (int64_t j = 0; j < cols; j++) {
        double rstd = 1 / sqrt((double)var[j] + eps);
        dgain[j] *= (float)rstd;
        k[j] = (float)(gain[j] * rstd);
        a[j] = dbias[j] / (float)rows;
        b[j] = (float)(dgain[j] * rstd / (double)rows);
    }
    ll_in_parts(team, rows, slope_rows, &(slopes){dy, x, mean, k, a, b, dx, cols});
    return LL_OK;
}
