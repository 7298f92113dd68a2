/* grid_sum.c: sums of fixed point that is never stored (fuse/grid_sum.c). Dimensions are merged
 * (segments.h), and rows or runs of L elements are added up as in reduce.c. Sums are exact: parts
 * of them, as many as there is work for, in any order. */
#include "base/num.h"
#include "kern/cpu/segments.h"
#include "kern/cpu/team.h"
#include "kern/grid.h"

ll_kernel grid_sum_cpu;
ll_scratch grid_sum_cpu_scratch;

/* Elements of a part of a sum; columns at once, whose sums stay in the first cache; narrower rows
 * than NARROW are taken several as one; LANES: sums beside each other, to hide latency. */
enum { PART = 16384, CHUNK = 512, NARROW = 64, LANES = 32 };

typedef struct plan {
    ll_segments seg;
    bool rows;
    int64_t O, J, L;
    int64_t fold, width;   /* rows taken as one, and the elements of that; of runs 1 and 1 */
    int64_t part, n_part;  /* rows (of width), or elements of each run */
    int64_t n_chunk, bits; /* parts of a row */
    double most;
    const float *x, *m;
    double *sums; /* [n_part, O, width] */
} plan;

static ll_err make_plan(const ll_kcall *c, plan *p)
{
    const ll_grid_sum_attr *a = (const ll_grid_sum_attr *)c->attr;
    ll_spec s;
    TRY(ll_spec_parse(a->spec, &s));
    *p = (plan){.seg = ll_segments_of(&s, &c->in[0].shape), .O = 1, .J = 1, .fold = 1, .width = 1};
    int last = p->seg.n - 1;
    p->rows = p->seg.kept[last];
    p->L = p->seg.size[last];
    for (int i = 0; i < last; i++) *(p->seg.kept[i] ? &p->O : &p->J) *= p->seg.size[i];
    p->n_chunk = 1;
    if (p->rows) {
        bool side_by_side = last <= 2; /* rows of a result */
        if (side_by_side && p->L < NARROW) p->fold = ll_min64(2 * NARROW / p->L, p->J);
        p->width = p->fold * p->L;
        p->part = ll_max64(PART / p->width, 1);
        p->n_part = ll_ceil_div(p->J / p->fold, p->part);
        p->n_chunk = ll_ceil_div(p->width, CHUNK);
    } else {
        p->part = ll_max64(PART / p->J, LANES);
        p->n_part = ll_ceil_div(p->L, p->part);
    }
    p->bits = a->bits;
    p->most = ll_grid_most(a->bits);
    p->x = (const float *)c->in[0].data;
    p->m = (const float *)c->in[1].data;
    return LL_OK;
}

static bool is_direct(const plan *p)
{
    return p->n_part == 1 && p->fold == 1;
}

size_t grid_sum_cpu_scratch(const ll_kcall *c)
{
    plan p;
    if (make_plan(c, &p) != LL_OK || is_direct(&p)) return 0;
    return sizeof(double) * (size_t)(p.n_part * p.O * p.width);
}

static double power(const plan *p, int64_t i)
{
    int64_t e = ll_grid_exponent((double)p->m[i]);
    return ll_grid_power(p->bits - e, ll_grid_finite(e));
}

static inline double whole(float x, double by, double most)
{
    double v = rint((double)x * by);
    return v > most ? most : v;
}

static void take_row(const float *x, const double *by, double most, int64_t n, double *y)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] += whole(x[i], by[i], most);
}

/* Fewer loads and stores of y. */
static void take_4_rows(const float *const x[4], const double *by, double most, int64_t n,
                        double *y)
{
    const float *a = x[0], *b = x[1], *c = x[2], *d = x[3];
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] += (whole(a[i], by[i], most) + whole(b[i], by[i], most)) +
                (whole(c[i], by[i], most) + whole(d[i], by[i], most));
}

/* Rows of part `part` of result o, columns from..to. */
static void row_item(const plan *p, int64_t o, int64_t part, int64_t from, double *to)
{
    double by[CHUNK], sum[CHUNK] = {0};
    int64_t n = ll_min64(CHUNK, p->width - from), all = p->J / p->fold;
    int64_t j = part * p->part, end = ll_min64(j + p->part, all);
    int64_t scale = o * p->L, column = from % p->L;
    for (int64_t i = 0; i < n; i++, column = column + 1 == p->L ? 0 : column + 1)
        by[i] = power(p, scale + column);
    for (; j + 4 <= end; j += 4) {
        const float *x[4];
        for (int k = 0; k < 4; k++)
            x[k] = p->x + ll_segments_at(&p->seg, o, (j + k) * p->fold) + from;
        take_4_rows(x, by, p->most, n, sum);
    }
    for (; j < end; j++)
        take_row(p->x + ll_segments_at(&p->seg, o, j * p->fold) + from, by, p->most, n, sum);
    if (end == all && all * p->fold < p->J) /* the rows that do not fill a wide one */
        take_row(p->x + ll_segments_at(&p->seg, o, all * p->fold), by, p->most,
                 (p->J - all * p->fold) * p->L, sum);
    memcpy(to, sum, sizeof(double) * (size_t)n);
}

static double add_run(const float *x, int64_t n, double by, double most)
{
    double lane[LANES] = {0}, all = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
#pragma omp simd
        for (int k = 0; k < LANES; k++) lane[k] += whole(x[i + k], by, most);
    for (; i < n; i++) all += whole(x[i], by, most);
    for (int half = LANES / 2; half; half /= 2)
        for (int k = 0; k < half; k++) lane[k] += lane[k + half];
    return all + lane[0];
}

/* Item number i: part by part, each of all results. */
static void run_item(const plan *p, int64_t i)
{
    int64_t chunk = i % p->n_chunk, o = i / p->n_chunk % p->O, part = i / p->n_chunk / p->O;
    double *to = p->sums + (part * p->O + o) * p->width + chunk * CHUNK;
    if (p->rows) {
        row_item(p, o, part, chunk * CHUNK, to);
        return;
    }
    int64_t at = part * p->part, n = ll_min64(p->part, p->L - at);
    double by = power(p, o), all = 0;
    for (int64_t j = 0; j < p->J; j++)
        all += add_run(p->x + ll_segments_at(&p->seg, o, j) + at, n, by, p->most);
    *to = all;
}

static void join(const plan *p, double *y)
{
    int64_t wide = p->O * p->width, columns = p->width / p->fold;
    for (int64_t o = 0; o < p->O; o++)
        for (int64_t k = 0; k < columns; k++) {
            double all = 0;
            for (int64_t part = 0; part < p->n_part; part++)
                for (int64_t f = 0; f < p->fold; f++)
                    all += p->sums[part * wide + o * p->width + f * columns + k];
            y[o * columns + k] = all;
        }
}

ll_err grid_sum_cpu(const ll_kcall *c)
{
    plan p;
    TRY(make_plan(c, &p));
    double *y = (double *)c->out[0].data;
    int64_t n = ll_numel(&c->in[0].shape);
    if (n == 0) {
        memset(y, 0, sizeof(double) * (size_t)ll_numel(&c->out[0].shape));
        return LL_OK;
    }
    p.sums = is_direct(&p) ? y : (double *)c->scratch;
    int64_t items = p.n_part * p.O * p.n_chunk;
    int threads = items > 1 ? ll_team_for(c->threads, n) : 1;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < items; i++) run_item(&p, i);
    if (p.sums != y) join(&p, y);
    return LL_OK;
}
