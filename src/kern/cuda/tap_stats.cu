/* tap_stats.cu: a convolution by one tap, a product, with the statistics of its channels: on Hopper
 * by a kernel of our own (hopper_stats.cu), else as a convolution and a pass over its result. */
#include "kern/cuda/batchnorm.cuh"
#include "kern/cuda/hopper.cuh"

extern "C" {
extern const ll_solver conv2d_cuda[], batchnorm_stats_cuda[];
}

/* ---- by our own kernel ---- */

#ifdef LL_HOPPER
static bool own_of(const ll_kcall *c, hopper_stats *h)
{
    const ll_tensor *x = &c->in[0], *w = &c->in[1], *y = &c->out[0];
    int64_t rows = ll_rows(x), k = ll_cols(x), n = ll_cols(y);
    *h = hopper_stats{
        {x->data, rows, k, k, 1, 0}, {w->data, k, n, 1, k, 0}, {y->data, rows, n, n, 1, 0}, NULL};
    return is_hopper(c) && x->dtype == LL_BF16 && ll_hopper_stats_fits(c, h);
}

static bool own_fits(const ll_kcall *c)
{
    hopper_stats h;
    return own_of(c, &h);
}

static size_t own_scratch(const ll_kcall *c)
{
    hopper_stats h;
    return own_of(c, &h)
               ? (size_t)ll_hopper_stats_parts(c, &h) * 2 * (size_t)h.y.cols * sizeof(float)
               : 0;
}

static __global__ void statistics(const float *parts, int n_part, int64_t rows, int64_t n,
                                  channels mean, channels var)
{
    add_parts<2>(parts, n_part, n, [&](int64_t j, const double(&sums)[2]) {
        double m = sums[0] / (double)rows, s = sums[1] / (double)rows - m * m;
        put(mean, j, m);
        put(var, j, s > 0 ? s : s < 0 ? 0 : s); /* not a number stays so */
    });
}

static ll_err run_own(const ll_kcall *c)
{
    hopper_stats h;
    CHECK(own_of(c, &h), LL_E_ARG, "tensors do not start at multiples of 16 bytes");
    h.parts = (float *)c->scratch;
    TRY(ll_hopper_stats_run(c, &h));
    return launch(c, statistics, ll_ceil_div(h.y.cols, 32), dim3(32, FOLD), h.parts,
                  ll_hopper_stats_parts(c, &h), h.y.rows, h.y.cols, per_channel(&c->out[1]),
                  per_channel(&c->out[2]));
}
#endif

/* ---- apart ---- */

/* The two calls that it is. */
typedef struct apart {
    ll_conv_attr a;
    ll_kcall conv, stats;
} apart;

static void apart_of(const ll_kcall *c, apart *p)
{
    p->a = ll_conv_attr{};
    p->a.stride[0] = p->a.stride[1] = p->a.dilation[0] = p->a.dilation[1] = 1;
    p->a.groups = p->a.narrow = 1;
    p->conv = p->stats = *c;
    p->conv.solver = p->stats.solver = NULL;
    p->conv.attr = &p->a, p->conv.n_out = 1;
    p->stats.in = c->out, p->stats.n_in = 1;
    p->stats.out = c->out + 1, p->stats.n_out = 2;
}

static size_t scratch_of(const ll_solver *list, const ll_kcall *c)
{
    const ll_solver *s = ll_solver_for(list, c);
    return s->scratch ? s->scratch(c) : 0;
}

static size_t apart_scratch(const ll_kcall *c)
{
    apart p;
    apart_of(c, &p);
    size_t a = scratch_of(conv2d_cuda, &p.conv), b = scratch_of(batchnorm_stats_cuda, &p.stats);
    return a > b ? a : b;
}

static ll_err run_apart(const ll_kcall *c)
{
    apart p;
    apart_of(c, &p);
    TRY(ll_solver_for(conv2d_cuda, &p.conv)->run(&p.conv));
    return ll_solver_for(batchnorm_stats_cuda, &p.stats)->run(&p.stats);
}

extern "C" const ll_solver tap_stats_cuda[] = {
#ifdef LL_HOPPER
    {"sm90", own_fits, own_scratch, run_own},
#endif
    {"apart", NULL, apart_scratch, run_apart},
    {}};
