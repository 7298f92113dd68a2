/* grid.c: f32 or f64 to fixed point held in f64, and back.
 *
 * Scales become powers of two first, in scratch. Then a thread takes parts of rows: a row is the
 * last of the merged dimensions (kern/grid.h), or the last two where every scale repeats with the
 * last one's period ("nhwf,n,f->nhwf": rows of h w f, of period f). The factors of a block of
 * elements are laid out beside each other, so that the loop over the block is vector code whatever
 * the strides are. */
#include "base/num.h"
#include "kern/cpu/team.h"
#include "kern/grid.h"

LL_KERNELS(grid, ungrid)

enum { BLOCK = 256, PART = 8192 };

typedef struct job {
    ll_walk w;
    int n_outer; /* dimensions that number the rows */
    int64_t rows, row, period, part, n_part;
    const double *power[LL_WALKERS];
    int64_t step[LL_WALKERS]; /* of each along a period */
    double most;              /* of whole numbers */
    bool up, odd;
} job;

size_t grid_cpu_scratch(const ll_kcall *c)
{
    size_t n = 0;
    for (int s = 1; s < c->n_in; s++) n += (size_t)ll_numel(&c->in[s].shape);
    return n * sizeof(double);
}

static void to_powers(const ll_tensor *m, int64_t n, int64_t bits, bool up, double *out)
{
    bool f64 = m->dtype == LL_F64;
    for (int64_t i = 0; i < n; i++) {
        int64_t e = ll_grid_exponent(f64 ? ((const double *)m->data)[i]
                                         : (double)((const float *)m->data)[i]);
        out[i] = ll_grid_power(up ? bits - e : e - bits, ll_grid_finite(e));
    }
}

static job plan(const ll_kcall *c, bool up)
{
    static const double one = 1;
    const ll_grid_attr *a = (const ll_grid_attr *)c->attr;
    job j = {.up = up, .odd = a->odd, .power = {&one, &one}};
    ll_grid_walk_of(c, &j.w);
    int last = j.w.n - 1;
    int64_t bits = a->bits;
    bool repeats = last > 0 && j.w.size[last] <= BLOCK / 2;
    double *to = (double *)c->scratch;
    j.most = ll_grid_most(bits);
    for (int s = 0; s < j.w.walkers; s++) {
        int64_t n = ll_numel(&c->in[1 + s].shape);
        to_powers(&c->in[1 + s], n, s ? 0 : bits, up, to);
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
    j.n_part = j.row ? ll_ceil_div(j.row, j.part) : 0;
    return j;
}

/* The factors of n elements from a period's element `at` on, those after it first. */
static void factors(const job *j, const double *a, const double *b, int64_t at, int n, double *k)
{
    int64_t p = j->step[0], q = j->step[1];
    for (int i = 0; i < n; i++) k[i] = a[(at + i) * p] * b[(at + i) * q];
}

/* Powers of two: in whatever order they are multiplied, nothing is rounded. */
#define CONVERT(name, in, out, value)                                                              \
    static void name(const in *x, double s, const double *k, double most, int64_t n, out *y)       \
    {                                                                                              \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++)                                        \
        {                                                                                          \
            double v = (double)x[i] * (s * k[i]);                                                  \
            y[i] = value;                                                                          \
        }                                                                                          \
        (void)most;                                                                                \
    }

/* Of a power of two, or of NaN, which is larger than any. */
static inline int exponent_bits(double p)
{
    int64_t bits;
    memcpy(&bits, &p, 8);
    return (int)(bits >> 52);
}

static double whole(double v, double most)
{
    v = rint(v) + 0.0;
    return v > most ? most : v;
}

CONVERT(to_grid, float, double, whole(v, most))
CONVERT(to_grid_f64, double, double, whole(v, most))
CONVERT(to_odd, float, double, ll_grid_odd(v))
CONVERT(to_odd_f64, double, double, ll_grid_odd(v))
CONVERT(scale, float, float, (float)(v + 0.0))
CONVERT(from_grid, double, float, (float)(v + 0.0))
CONVERT(from_grid_f64, double, double, v + 0.0)

/* ll_grid_level of x s k, by exponents alone, in 32 bits. What f32 holds as subnormal is lifted. */
static void to_levels(const float *x, double s, const double *k, int64_t n, uint8_t *y)
{
    const int most = LL_REACH_BITS, shift = exponent_bits(s) - 1023;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float v = fabsf(x[i]), up = v < 0x1p-64f ? v * 0x1p64f : v;
        int32_t bits;
        memcpy(&bits, &up, 4);
        int e = (bits >> 23) - 126 + shift + exponent_bits(k[i]) - 1023 - (v < 0x1p-64f) * 64;
        e = e < 1 ? 1 : e > most ? most : e;
        y[i] = (uint8_t)(v == 0 ? 0 : e);
    }
}

/* n elements from `at` on, times s and k[n]. */
static void run_block(const ll_kcall *c, const job *j, int64_t at, int64_t n, double s,
                      const double *k)
{
    bool in = c->in[0].dtype == LL_F64, out = c->out[0].dtype == LL_F64;
    const float *x = (const float *)c->in[0].data + (in ? 0 : at);
    const double *wide_x = (const double *)c->in[0].data + (in ? at : 0);
    float *y = (float *)c->out[0].data + (out ? 0 : at);
    double *wide_y = (double *)c->out[0].data + (out ? at : 0);
    if (c->out[0].dtype == LL_U8)
        to_levels(x, s, k, n, (uint8_t *)c->out[0].data + at);
    else if (j->odd)
        in ? to_odd_f64(wide_x, s, k, 0, n, wide_y) : to_odd(x, s, k, 0, n, wide_y);
    else if (j->up)
        in ? to_grid_f64(wide_x, s, k, j->most, n, wide_y) : to_grid(x, s, k, j->most, n, wide_y);
    else if (in)
        out ? from_grid_f64(wide_x, s, k, 0, n, wide_y) : from_grid(wide_x, s, k, 0, n, y);
    else
        scale(x, s, k, 0, n, y);
}

/* Elements from..to of row r. Where one scale walks the row and another does not, it is read where
 * it lies. */
static void run_row(const ll_kcall *c, const job *j, int64_t r, int64_t from, int64_t to)
{
    const double *a = j->power[0] + ll_walk_at(&j->w, 0, j->n_outer, r);
    const double *b = j->power[1];
    if (j->w.walkers > 1) b += ll_walk_at(&j->w, 1, j->n_outer, r);
    double k[BLOCK];
    int64_t p = j->step[0], q = j->step[1], most = BLOCK;
    bool same = !p && !q, repeats = j->period <= BLOCK / 2;
    if (!same && !repeats && p * q == 0 && p + q == 1) {
        run_block(c, j, r * j->row + from, to - from, p ? *b : *a, (p ? a : b) + from);
        return;
    }
    if (repeats) most = BLOCK / j->period * j->period;
    if (same) factors(j, a, b, 0, (int)ll_min64(to - from, BLOCK), k); /* rows may be short */
    for (int i = 0; !same && repeats && i < most; i += (int)j->period)
        factors(j, a, b, 0, (int)j->period, k + i);
    for (int64_t i = from; i < to; i += most) {
        int64_t n = to - i < most ? to - i : most;
        if (!same && !repeats) factors(j, a, b, i, (int)n, k);
        run_block(c, j, r * j->row + i, n, 1, k);
    }
}

static ll_err run(const ll_kcall *c, bool up)
{
    job j = plan(c, up);
    int64_t items = j.rows * j.n_part, n = j.rows * j.row;
    int threads = ll_team_for(c->threads, n);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < items; i++) {
        int64_t from = i % j.n_part * j.part;
        run_row(c, &j, i / j.n_part, from, from + j.part < j.row ? from + j.part : j.row);
    }
    return LL_OK;
}

/* Types that there are loops for. */
static bool usual(const ll_kcall *c, bool up)
{
    ll_dtype in = c->in[0].dtype, out = c->out[0].dtype;
    for (int i = 1; i < c->n_in; i++)
        if (c->in[i].dtype != LL_F32 && c->in[i].dtype != LL_F64) return false;
    if (up) return (in == LL_F32 && (out == LL_F64 || out == LL_U8)) || (in == LL_F64 && out == in);
    return (in == LL_F32 && out == in) || (in == LL_F64 && (out == LL_F32 || out == LL_F64));
}

bool grid_cpu_fits(const ll_kcall *c)
{
    return usual(c, true);
}

bool ungrid_cpu_fits(const ll_kcall *c)
{
    return usual(c, false);
}

ll_err grid_cpu(const ll_kcall *c)
{
    return run(c, true);
}

ll_err ungrid_cpu(const ll_kcall *c)
{
    return run(c, false);
}
