/* grid.c: f32 to fixed point held in f64, and back.
 *
 * Scales become powers of two first, in scratch. Then a thread takes parts of rows: a row is the
 * last of the merged dimensions (kern/grid.h), or the last two where every scale repeats with the
 * last one's period ("nhwf,n,f->nhwf": rows of h w f, of period f). The factors of a block of
 * elements are laid out beside each other, so that the loop over the block is vector code whatever
 * the strides are. */
#include "kern/grid.h"

#include <math.h>

ll_kernel grid_cpu, ungrid_cpu, grid_ref, ungrid_ref;
ll_scratch grid_cpu_scratch;

enum { BLOCK = 256, PART = 8192 };

typedef struct job {
    ll_walk w;
    int n_outer; /* dimensions that number the rows */
    int64_t rows, row, period, part, n_part;
    const double *power[LL_WALKERS];
    int64_t step[LL_WALKERS]; /* of each along a period */
    bool up;
} job;

size_t grid_cpu_scratch(const ll_kcall *c)
{
    size_t n = 0;
    for (int s = 1; s < c->n_in; s++) n += (size_t)ll_numel(&c->in[s].shape);
    return n * sizeof(double);
}

static void to_powers(const float *m, int64_t n, int64_t bits, bool up, double *out)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t e = ll_grid_exponent((double)m[i]);
        out[i] = ll_grid_power(up ? bits - e : e - bits, e < 1000);
    }
}

static job plan(const ll_kcall *c, bool up)
{
    static const double one = 1;
    job j = {.up = up, .power = {&one, &one}};
    ll_grid_walk_of(c, &j.w);
    int last = j.w.n - 1;
    int64_t bits = ((const ll_grid_attr *)c->attr)->bits;
    bool repeats = last > 0 && j.w.size[last] <= BLOCK / 2;
    double *to = (double *)c->scratch;
    for (int s = 0; s < j.w.walkers; s++) {
        int64_t n = ll_numel(&c->in[1 + s].shape);
        to_powers((const float *)c->in[1 + s].data, n, s ? 0 : bits, up, to);
        j.power[s] = to;
        j.step[s] = j.w.stride[s][last];
        if (last > 0) repeats &= j.w.stride[s][last - 1] == 0;
        to += n;
    }
    j.period = j.row = j.w.size[last];
    j.n_outer = last;
    if (repeats) j.row *= j.w.size[--j.n_outer];
    j.rows = j.row ? ll_numel(&c->out[0].shape) / j.row : 0;
    j.part = j.period < PART ? PART / (j.period + !j.period) * j.period : PART;
    j.n_part = j.row ? (j.row + j.part - 1) / j.part : 0;
    return j;
}

/* The factors of n elements from a period's element `at` on, those after it first. */
static void factors(const job *j, const double *a, const double *b, int64_t at, int n, double *k)
{
    int64_t p = j->step[0], q = j->step[1];
    a += at * p, b += at * q;
    if (p == 0 && q == 1)
        for (int i = 0; i < n; i++) k[i] = *a * b[i];
    else if (p == 1 && q == 0)
        for (int i = 0; i < n; i++) k[i] = a[i] * *b;
    else
        for (int i = 0; i < n; i++) k[i] = a[i * p] * b[i * q];
}

static void to_grid(const float *x, const double *k, int n, double *y)
{
#pragma omp simd
    for (int i = 0; i < n; i++) y[i] = rint((double)x[i] * k[i]) + 0.0;
}

static void from_grid(const double *x, const double *k, int n, float *y)
{
#pragma omp simd
    for (int i = 0; i < n; i++) y[i] = (float)(x[i] * k[i] + 0.0);
}

static void scale(const float *x, const double *k, int n, float *y)
{
#pragma omp simd
    for (int i = 0; i < n; i++) y[i] = (float)((double)x[i] * k[i] + 0.0);
}

/* Elements from..to of row r. */
static void run_row(const ll_kcall *c, const job *j, int64_t r, int64_t from, int64_t to)
{
    const double *a = j->power[0] + ll_walk_at(&j->w, 0, j->n_outer, r);
    const double *b = j->power[1];
    if (j->w.walkers > 1) b += ll_walk_at(&j->w, 1, j->n_outer, r);
    double k[BLOCK];
    bool same = j->step[0] == 0 && j->step[1] == 0, repeats = j->period <= BLOCK / 2;
    int most = repeats ? BLOCK / (int)j->period * (int)j->period : BLOCK;
    if (same)
        for (int i = 0; i < BLOCK; i++) k[i] = *a * *b;
    for (int i = 0; !same && repeats && i < most; i += (int)j->period)
        factors(j, a, b, 0, (int)j->period, k + i);
    for (int64_t i = from; i < to; i += most) {
        int n = to - i < most ? (int)(to - i) : most;
        int64_t at = r * j->row + i;
        if (!same && !repeats) factors(j, a, b, i, n, k);
        if (j->up)
            to_grid((const float *)c->in[0].data + at, k, n, (double *)c->out[0].data + at);
        else if (c->in[0].dtype == LL_F32)
            scale((const float *)c->in[0].data + at, k, n, (float *)c->out[0].data + at);
        else
            from_grid((const double *)c->in[0].data + at, k, n, (float *)c->out[0].data + at);
    }
}

static ll_err run(const ll_kcall *c, bool up)
{
    job j = plan(c, up);
    int64_t items = j.rows * j.n_part, n = j.rows * j.row;
    int threads = n < LL_PARALLEL_WORK ? 1 : items < c->threads ? (int)items : c->threads;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < items; i++) {
        int64_t from = i % j.n_part * j.part;
        run_row(c, &j, i / j.n_part, from, from + j.part < j.row ? from + j.part : j.row);
    }
    return LL_OK;
}

/* Between f32 and f64; other types as the reference does. */
static bool usual(const ll_kcall *c, ll_dtype in, ll_dtype out)
{
    for (int i = 1; i < c->n_in; i++)
        if (c->in[i].dtype != LL_F32) return false;
    return c->in[0].dtype == in && c->out[0].dtype == out;
}

ll_err grid_cpu(const ll_kcall *c)
{
    return usual(c, LL_F32, LL_F64) ? run(c, true) : grid_ref(c);
}

ll_err ungrid_cpu(const ll_kcall *c)
{
    return usual(c, LL_F64, LL_F32) || usual(c, LL_F32, LL_F32) ? run(c, false) : ungrid_ref(c);
}
