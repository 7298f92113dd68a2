/* row.c: rows of f32 (see row.h). */
#include "kern/cpu/row.h"

#include "base/num.h"
#include "kern/cpu/vec.h"
#include "kern/rows.h"

#include <math.h>

enum { STRETCH = 256 }; /* elements summed in f32 */

float ll_row_top(const float *x, int64_t n)
{
    ll_vec a = ll_vec_all(-INFINITY), b = a, c = a, d = a;
    int64_t i = 0;
    for (; i + 4 * LL_LANES <= n; i += 4 * LL_LANES) {
        a = ll_vec_max(ll_vec_at(x + i), a);
        b = ll_vec_max(ll_vec_at(x + i + LL_LANES), b);
        c = ll_vec_max(ll_vec_at(x + i + 2 * LL_LANES), c);
        d = ll_vec_max(ll_vec_at(x + i + 3 * LL_LANES), d);
    }
    for (; i + LL_LANES <= n; i += LL_LANES) a = ll_vec_max(ll_vec_at(x + i), a);
    if (i < n) b = ll_vec_max(ll_vec_some(x + i, n - i, -INFINITY), b);
    a = ll_vec_max(ll_vec_max(a, b), ll_vec_max(c, d));
    ll_quad part[LL_VECTOR / 16];
    memcpy(part, &a, sizeof part);
    float top[LL_QUAD];
    for (int k = 0; k < LL_QUAD; k++) {
        top[k] = part[0][k];
        for (int j = 1; j < LL_VECTOR / 16; j++) top[k] = fmaxf(top[k], part[j][k]);
    }
    return fmaxf(fmaxf(top[0], top[1]), fmaxf(top[2], top[3]));
}

/* One stretch; y is NULL where the sum alone is wanted. */
static inline float exp_stretch(const float *x, float top, float *y, int64_t n)
{
    ll_vec sum = {0}, more = {0};
    int64_t i = 0;
    for (; i + 2 * LL_LANES <= n; i += 2 * LL_LANES) {
        ll_vec e = ll_vec_exp(ll_vec_at(x + i) - top);
        ll_vec f = ll_vec_exp(ll_vec_at(x + i + LL_LANES) - top);
        if (y) ll_vec_to(y + i, e), ll_vec_to(y + i + LL_LANES, f);
        sum += e;
        more += f;
    }
    for (; i < n; i += LL_LANES) {
        ll_vec e = ll_vec_exp(ll_vec_some(x + i, n - i, -INFINITY) - top);
        if (y) ll_vec_put_some(y + i, n - i, e);
        sum += e;
    }
    return ll_vec_total(sum + more);
}

double ll_row_exp(const float *x, float top, float *y, int64_t n)
{
    double total = 0;
    for (int64_t i = 0; i < n; i += STRETCH) {
        int64_t m = ll_min64(STRETCH, n - i);
        total += (double)(y ? exp_stretch(x + i, top, y + i, m) : exp_stretch(x + i, top, NULL, m));
    }
    return total;
}

void ll_row_exp_times(const float *x, float top, float by, float *y, int64_t n)
{
    int64_t i = 0;
    for (; i + LL_LANES <= n; i += LL_LANES)
        ll_vec_to(y + i, ll_vec_exp(ll_vec_at(x + i) - top) * by);
    ll_vec e = ll_vec_exp(ll_vec_some(x + i, n - i, -INFINITY) - top) * by;
    ll_vec_put_some(y + i, n - i, e);
}

enum { WAYS = 4, STEP = WAYS * LL_LANES }; /* sums that run side by side */

/* Sum of x - from, and of its square, over one stretch. */
static void stretch_moments(const float *x, float from, int64_t n, double *total, double *square)
{
    ll_vec s[WAYS] = {0}, q[WAYS] = {0};
    int64_t i = 0;
    for (; i + STEP <= n; i += STEP)
#pragma GCC unroll 4
        for (int k = 0; k < WAYS; k++) {
            ll_vec d = ll_vec_at(x + i + k * LL_LANES) - from;
            s[k] += d;
            q[k] += d * d;
        }
    for (; i < n; i += LL_LANES) {
        ll_vec d = ll_vec_some(x + i, n - i, from) - from;
        s[0] += d;
        q[0] += d * d;
    }
    *total += (double)ll_vec_total((s[0] + s[1]) + (s[2] + s[3]));
    *square += (double)ll_vec_total((q[0] + q[1]) + (q[2] + q[3]));
}

/* The first sum makes a guess; what is left of the sum about it makes it exact. */
void ll_row_moments(const float *x, int64_t n, double *mean, double *var)
{
    double total = 0, square = 0, rest = 0, unused = 0;
    for (int64_t i = 0; i < n; i += STRETCH)
        stretch_moments(x + i, 0, ll_min64(STRETCH, n - i), &total, &unused);
    float guess = (float)(total / (double)n);
    for (int64_t i = 0; i < n; i += STRETCH)
        stretch_moments(x + i, guess, ll_min64(STRETCH, n - i), &rest, &square);
    rest /= (double)n;
    *mean = (double)guess + rest;
    *var = square / (double)n - rest * rest;
}

double ll_row_square(const float *x, int64_t n)
{
    double total = 0, square = 0;
    for (int64_t i = 0; i < n; i += STRETCH)
        stretch_moments(x + i, 0, ll_min64(STRETCH, n - i), &total, &square);
    return square;
}

void ll_row_dots(const float *g, const float *gain, const float *x, float mean, int64_t n,
                 double *plain, double *weighed)
{
    *plain = *weighed = 0;
    for (int64_t from = 0; from < n; from += STRETCH) {
        ll_vec a[WAYS] = {0}, b[WAYS] = {0};
        int64_t i = from, to = ll_min64(from + STRETCH, n);
        for (; i + STEP <= to; i += STEP)
#pragma GCC unroll 4
            for (int k = 0; k < WAYS; k++) {
                int64_t at = i + k * LL_LANES;
                ll_vec u = ll_vec_at(g + at) * ll_vec_at(gain + at);
                a[k] += u;
                b[k] += u * (ll_vec_at(x + at) - mean);
            }
        for (; i < to; i += LL_LANES) {
            int64_t m = to - i;
            ll_vec u = ll_vec_some(g + i, m, 0) * ll_vec_some(gain + i, m, 0);
            a[0] += u;
            b[0] += u * (ll_vec_some(x + i, m, mean) - mean);
        }
        *plain += (double)ll_vec_total((a[0] + a[1]) + (a[2] + a[3]));
        *weighed += (double)ll_vec_total((b[0] + b[1]) + (b[2] + b[3]));
    }
}

/* ---- sums over rows ---- */

enum { BLOCK = 32 }; /* rows summed in f32 */

/* Adds the sums of rows from .. to-1 to sum (weighted) and plain, both f32. */
static void add_block(const ll_kcall *c, const ll_col_sums_of *s, int64_t from, int64_t to,
                      float *sum, float *plain)
{
    int64_t n = ll_cols(&c->in[1]);
    const float *shifts = (const float *)s->shift, *scales = (const float *)s->scale;
    for (int64_t r = from; r < to; r++) {
        const float *a = (const float *)c->in[0].data + r * n;
        const float *b = (const float *)c->in[1].data + r * n;
        if (s->per_column) {
#pragma omp simd
            for (int64_t j = 0; j < n; j++) {
                sum[j] += a[j] * (b[j] - shifts[j]);
                plain[j] += a[j];
            }
        } else {
            float shift = shifts ? shifts[r] : 0, scale = scales ? scales[r] : 1;
#pragma omp simd
            for (int64_t j = 0; j < n; j++) {
                sum[j] += a[j] * ((b[j] - shift) * scale);
                plain[j] += a[j];
            }
        }
    }
}

/* One chunk: f32 over blocks of rows, double over blocks. total: [2,cols]; block: [2,cols] */
static void add_chunk(const ll_kcall *c, const ll_col_sums_of *s, int64_t from, int64_t to,
                      double *total, float *block)
{
    int64_t n = ll_cols(&c->in[1]);
    for (int64_t j = 0; j < 2 * n; j++) total[j] = 0;
    for (int64_t r = from; r < to; r += BLOCK) {
        for (int64_t j = 0; j < 2 * n; j++) block[j] = 0;
        add_block(c, s, r, ll_min64(r + BLOCK, to), block, block + n);
#pragma omp simd
        for (int64_t j = 0; j < 2 * n; j++) total[j] += (double)block[j];
    }
}

typedef struct col_sums {
    const ll_kcall *c;
    const ll_col_sums_of *s;
    int64_t rows, n;
    int chunks;
    double *total; /* [chunks,2,cols] */
    float *block;  /* [chunks,2,cols] */
} col_sums;

static void some_chunks(const void *given, int64_t from, int64_t to)
{
    const col_sums *x = (const col_sums *)given;
    for (int i = (int)from; i < to; i++)
        add_chunk(x->c, x->s, ll_chunk_from(x->rows, x->chunks, i),
                  ll_chunk_from(x->rows, x->chunks, i + 1), x->total + 2 * x->n * i,
                  x->block + 2 * x->n * i);
}

/* Totals [from, to) of both kinds, over the chunks in order. */
static void some_totals(const void *given, int64_t from, int64_t to)
{
    const col_sums *x = (const col_sums *)given;
    float *sum = (float *)x->s->total, *plain = (float *)x->s->plain;
    for (int i = 1; i < x->chunks; i++)
        for (int64_t j = from; j < to; j++) x->total[j] += x->total[2 * x->n * i + j];
    for (int64_t j = from; j < to; j++) {
        if (j < x->n)
            sum[j] = (float)x->total[j];
        else if (plain)
            plain[j - x->n] = (float)x->total[j];
    }
}

void ll_col_sums(const ll_kcall *c, const ll_col_sums_of *s)
{
    enum { FETCH = 8 }; /* operations in the time that a number takes from another's cache */
    col_sums x = {c, s, ll_rows(&c->in[1]), ll_cols(&c->in[1]), 0, (double *)c->scratch, NULL};
    x.chunks = ll_n_chunk(x.rows);
    x.block = (float *)(x.total + 2 * x.n * x.chunks);
    ll_in_parts(ll_team(c, x.rows * x.n * 4), x.chunks, some_chunks, &x);
    ll_in_parts(ll_team(c, x.chunks * x.n * 2 * FETCH), 2 * x.n, some_totals, &x);
}

size_t col_sums_cpu_scratch(const ll_kcall *c)
{
    int64_t rows = ll_rows(&c->in[1]), cols = ll_cols(&c->in[1]);
    return (size_t)ll_n_chunk(rows) * (size_t)cols * 2 * (sizeof(double) + sizeof(float));
}
