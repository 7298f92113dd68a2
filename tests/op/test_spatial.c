/* Convolutions and pooling of one, two and three dimensions, transposed ones, windows that are
 * padded unevenly: values against plain loops over three dimensions, of which some are 1; and what
 * is refused. */
#include "op/built.h"

typedef struct conv_case {
    bool transposed;
    ll_shape x, f;
    ll_conv o;
    int64_t out_pad[3];
} conv_case;

static ll_val conv(ll_graph *g, const ll_val *in, const void *arg)
{
    const conv_case *c = arg;
    if (c->transposed) return ll_conv_transpose(g, in[0], in[1], &c->o, c->out_pad);
    return (c->x.n == 3 ? ll_conv1d : c->x.n == 4 ? ll_conv2d : ll_conv3d)(g, in[0], in[1], &c->o);
}

/* Dimensions of [a, spatial..., b] as [a,d,h,w,b]; options likewise. */
static void spread(const ll_shape *s, int64_t d[5])
{
    d[0] = s->d[0], d[4] = s->d[s->n - 1];
    for (int k = 0; k < 3; k++) d[1 + k] = k < 5 - s->n ? 1 : s->d[k - (5 - s->n) + 1];
}

static void spread_opts(const int64_t o[3], int n, int64_t least, int64_t to[3])
{
    for (int k = 0; k < 3; k++) {
        int64_t v = k < 5 - n ? 0 : o[k - (5 - n)];
        to[k] = v ? v : least;
    }
}

static int64_t at(const int64_t d[5], int64_t n, const int64_t i[3], int64_t c)
{
    return (((n * d[1] + i[0]) * d[2] + i[1]) * d[3] + i[2]) * d[4] + c;
}

/* Every product x w y of a convolution: image pixel i, tap t, output o. image: the larger side. */
static void conv_plain(const built *b, double *const *in, const ll_shape *shape, double *y)
{
    const conv_case *c = b->arg;
    int64_t x[5], f[5], r[5], stride[3], pad[3], dil[3], o[3], t[3], i[3];
    int64_t groups = c->o.groups ? c->o.groups : 1;
    spread(&c->x, x), spread(&c->f, f), spread(shape, r);
    spread_opts(c->o.stride, c->x.n, 1, stride), spread_opts(c->o.pad, c->x.n, 0, pad);
    spread_opts(c->o.dilation, c->x.n, 1, dil);
    const int64_t *image = c->transposed ? r : x, *out = c->transposed ? x : r;
    memset(y, 0, sizeof *y * (size_t)ll_numel(shape));
    for (int64_t n = 0; n < out[0]; n++)
        for (int64_t p = 0; p < out[1] * out[2] * out[3]; p++)
            for (int64_t q = 0; q < f[1] * f[2] * f[3]; q++) {
                bool inside = true;
                o[0] = p / (out[2] * out[3]), o[1] = p / out[3] % out[2], o[2] = p % out[3];
                t[0] = q / (f[2] * f[3]), t[1] = q / f[3] % f[2], t[2] = q % f[3];
                for (int k = 0; k < 3; k++) {
                    i[k] = o[k] * stride[k] - pad[k] + t[k] * dil[k];
                    inside &= i[k] >= 0 && i[k] < image[1 + k];
                }
                for (int64_t m = 0; inside && m < f[0]; m++)
                    for (int64_t k = 0; k < f[4]; k++) {
                        int64_t ch = m / (f[0] / groups) * f[4] + k;
                        double w = in[1][at(f, m, t, k)];
                        if (c->transposed)
                            y[at(r, n, i, ch)] += in[0][at(x, n, o, m)] * w;
                        else
                            y[at(r, n, o, m)] += in[0][at(x, n, i, ch)] * w;
                    }
            }
}

static const conv_case convs[] = {
    {.x = LL_SHAPE(2, 9, 3), .f = LL_SHAPE(4, 3, 3), .o = {.stride = {2}, .pad = {1}}},
    {.x = LL_SHAPE(2, 9, 4), .f = LL_SHAPE(6, 2, 2), .o = {.dilation = {3}, .groups = 2}},
    {.x = LL_SHAPE(1, 6, 7, 2), .f = LL_SHAPE(3, 3, 2, 2), .o = {.pad = {0, 1}, .pad_more = {2}}},
    {.x = LL_SHAPE(1, 6, 7, 2),
     .f = LL_SHAPE(3, 3, 2, 2),
     .o = {.pad = {2, 1}, .pad_more = {-2, -1}}},
    {.x = LL_SHAPE(2, 5, 6, 7, 2), .f = LL_SHAPE(3, 3, 3, 2, 2), .o = {.pad = {1, 1, 1}}},
    {.x = LL_SHAPE(1, 7, 8, 5, 2),
     .f = LL_SHAPE(4, 3, 2, 3, 1),
     .o = {.stride = {2, 3, 1}, .pad = {1, 0, 2}, .groups = 2}},
    {.x = LL_SHAPE(1, 6, 9, 4, 1),
     .f = LL_SHAPE(2, 2, 3, 1, 1),
     .o = {.stride = {1, 2, 3}, .dilation = {3, 2, 1}, .pad_more = {1, 1, 2}}},
    {.x = LL_SHAPE(1, 4, 5, 4, 2), .f = LL_SHAPE(2, 1, 1, 1, 2), .o = {.stride = {3, 3, 2}}},
    {.transposed = true, .x = LL_SHAPE(2, 4, 5, 3), .f = LL_SHAPE(3, 3, 2, 4)},
    {.transposed = true,
     .x = LL_SHAPE(1, 3, 4, 4),
     .f = LL_SHAPE(4, 3, 3, 2),
     .o = {.stride = {2, 3}, .pad = {1, 1}, .groups = 2},
     .out_pad = {1, 2}},
    {.transposed = true,
     .x = LL_SHAPE(1, 3, 4, 2),
     .f = LL_SHAPE(2, 2, 3, 1),
     .o = {.stride = {2, 1}, .dilation = {2, 2}, .pad = {0, 1}, .pad_more = {1, -1}}},
    {.transposed = true,
     .x = LL_SHAPE(2, 5, 3),
     .f = LL_SHAPE(3, 4, 2),
     .o = {.stride = {2}, .pad = {1}}},
    {.transposed = true,
     .x = LL_SHAPE(1, 4, 3, 2),
     .f = LL_SHAPE(2, 3, 2, 2),
     .o = {.dilation = {3, 2}, .pad = {1, 0}},
     .out_pad = {2, 1}},
    {.transposed = true, .x = LL_SHAPE(2, 3, 4, 2, 2), .f = LL_SHAPE(2, 2, 3, 2, 3)},
    {.transposed = true,
     .x = LL_SHAPE(1, 3, 2, 4, 4),
     .f = LL_SHAPE(4, 3, 3, 2, 1),
     .o = {.stride = {2, 3, 1}, .pad = {1, 1, 0}, .dilation = {2, 1, 2}, .groups = 2},
     .out_pad = {1, 2, 1}},
};

static void test_convs(void **)
{
    for (size_t i = 0; i < sizeof convs / sizeof *convs; i++) {
        const conv_case *c = &convs[i];
        char what[64];
        snprintf(what, sizeof what, "convolution %d", (int)i);
        built_check(&(built){what, 2, {c->x, c->f}, c, conv, conv_plain});
    }
}

/* ---- pooling ---- */

typedef struct pool_case {
    bool max;
    ll_shape x;
    ll_window w;
} pool_case;

static ll_val pool(ll_graph *g, const ll_val *in, const void *arg)
{
    const pool_case *c = arg;
    return (c->max ? ll_max_pool : ll_avg_pool)(g, in[0], &c->w);
}

static void pool_plain(const built *b, double *const *in, const ll_shape *shape, double *y)
{
    const pool_case *c = b->arg;
    int64_t x[5], r[5], size[3], stride[3], pad[3], dil[3], more[3], o[3], i[3];
    spread(&c->x, x), spread(shape, r);
    spread_opts(c->w.size, c->x.n, 1, size), spread_opts(c->w.pad, c->x.n, 0, pad);
    spread_opts(c->w.stride, c->x.n, 0, stride), spread_opts(c->w.dilation, c->x.n, 1, dil);
    spread_opts(c->w.pad_more, c->x.n, 0, more);
    for (int64_t e = 0; e < ll_numel(shape); e++) {
        double sum = 0, most = -INFINITY, n = 0;
        int64_t p = e / r[4];
        o[2] = p % r[3], o[1] = p / r[3] % r[2], o[0] = p / (r[3] * r[2]) % r[1];
        for (int64_t q = 0; q < size[0] * size[1] * size[2]; q++) {
            int64_t t[3] = {q / (size[1] * size[2]), q / size[2] % size[1], q % size[2]};
            bool inside = true, padding = !c->w.skip_pad;
            for (int k = 0; k < 3; k++) {
                i[k] = o[k] * (stride[k] ? stride[k] : size[k]) - pad[k] + t[k] * dil[k];
                inside &= i[k] >= 0 && i[k] < x[1 + k];
                padding &= !c->w.ceil || i[k] < x[1 + k] + pad[k] + more[k];
            }
            n += inside || padding;
            if (!inside) continue;
            double v = in[0][at(x, p / (r[1] * r[2] * r[3]), i, e % r[4])];
            sum += v;
            if (v > most) most = v;
        }
        y[e] = c->max ? most : sum / n;
    }
}

static void test_pools(void **)
{
    static const pool_case cases[] = {
        {.x = LL_SHAPE(2, 9, 3), .w = {.size = {3}, .stride = {2}, .pad = {1}}},
        {.x = LL_SHAPE(2, 7, 6, 3), .w = {.size = {3, 2}, .pad = {1, 0}, .pad_more = {1, 1}}},
        {.x = LL_SHAPE(1, 5, 6, 7, 2),
         .w = {.size = {3, 2, 3}, .stride = {2, 1, 2}, .pad = {1, 0, 1}, .pad_more = {-1, 1, 0}}},
        {.x = LL_SHAPE(2, 4, 4, 4, 1), .w = {.size = {2, 2, 2}}},
        {.x = LL_SHAPE(1, 8, 7, 2),
         .w = {.size = {3, 3}, .stride = {2, 3}, .pad = {1, 1}, .ceil = true}},
        {.x = LL_SHAPE(2, 9, 7, 3),
         .w = {.size = {2, 3}, .stride = {2, 1}, .pad = {1, 0}, .dilation = {3, 2}}},
        {.x = LL_SHAPE(1, 5, 8, 6, 1),
         .w = {.size = {2, 3, 1}, .stride = {1, 2, 2}, .dilation = {2, 2, 1}, .ceil = true}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int kind = 0; kind < 3; kind++) { /* average, largest, average of what is there */
            pool_case c = cases[i];
            char what[64];
            c.max = kind == 1;
            c.w.skip_pad = kind == 2;
            snprintf(what, sizeof what, "pool %d, kind %d", (int)i, kind);
            built_check(&(built){what, 1, {c.x}, &c, pool, pool_plain});
        }
}

static ll_val global(ll_graph *g, const ll_val *in, const void *arg)
{
    return (arg ? ll_global_max_pool : ll_global_avg_pool)(g, in[0]);
}

static void global_plain(const built *b, double *const *in, const ll_shape *shape, double *y)
{
    int64_t c = shape->d[1], rest = ll_numel(&b->in[0]) / ll_numel(shape);
    for (int64_t e = 0; e < ll_numel(shape); e++) {
        double sum = 0, most = -INFINITY;
        for (int64_t i = 0; i < rest; i++) {
            double v = in[0][(e / c * rest + i) * c + e % c];
            sum += v;
            if (v > most) most = v;
        }
        y[e] = b->arg ? most : sum / (double)rest;
    }
}

static void test_global(void **)
{
    for (int max = 0; max < 2; max++) {
        const void *arg = max ? "max" : NULL;
        built_check(&(built){"global 1", 1, {LL_SHAPE(2, 5, 3)}, arg, global, global_plain});
        built_check(&(built){"global 2", 1, {LL_SHAPE(2, 3, 4, 2)}, arg, global, global_plain});
        built_check(&(built){"global 3", 1, {LL_SHAPE(1, 3, 2, 4, 2)}, arg, global, global_plain});
    }
}

/* ---- space and depth ---- */

typedef struct block_case {
    bool back, inner;
} block_case;

static ll_val shuffle(ll_graph *g, const ll_val *in, const void *arg)
{
    const block_case *c = arg;
    return (c->back ? ll_space_to_depth : ll_depth_to_space)(g, in[0], 2, c->inner);
}

static void shuffle_plain(const built *b, double *const *in, const ll_shape *shape, double *y)
{
    const block_case *c = b->arg;
    const ll_shape *deep = c->back ? shape : &b->in[0], *wide = c->back ? &b->in[0] : shape;
    int64_t ch = wide->d[3];
    for (int64_t e = 0; e < ll_numel(wide); e++) {
        int64_t k = e % ch, j = e / ch % wide->d[2], i = e / ch / wide->d[2] % wide->d[1];
        int64_t n = e / ch / wide->d[2] / wide->d[1], place = i % 2 * 2 + j % 2;
        int64_t pixel = (n * deep->d[1] + i / 2) * deep->d[2] + j / 2;
        int64_t d = pixel * deep->d[3] + (c->inner ? k * 4 + place : place * ch + k);
        y[c->back ? d : e] = in[0][c->back ? e : d];
    }
}

static void test_shuffle(void **)
{
    for (int k = 0; k < 4; k++) {
        block_case c = {k & 1, k & 2};
        ll_shape x = c.back ? LL_SHAPE(2, 4, 6, 3) : LL_SHAPE(2, 2, 3, 12);
        built_check(&(built){"space and depth", 1, {x}, &c, shuffle, shuffle_plain});
    }
}

/* ---- resizing ---- */

/* Pixel i's part in a row, by each mode's definition. */
static double part_of(const ll_resize *r, double x, int64_t i, int64_t image)
{
    double last = (double)image - 1, a = r->cubic != 0 ? r->cubic : -0.75, sum = 0;
    double in = fmin(fmax(x, 0), last);
    if (r->mode == LL_NEAREST) {
        double at = r->round == LL_FLOOR        ? floor(in)
                    : r->round == LL_CEIL       ? ceil(in)
                    : r->round == LL_ROUND_DOWN ? ceil(x - 0.5)
                                                : floor(x + 0.5);
        return fmin(fmax(at, 0), last) == (double)i;
    }
    if (r->mode == LL_LINEAR) return fmax(0, 1 - fabs(in - (double)i));
    for (int64_t j = (int64_t)floor(x) - 1; j <= (int64_t)floor(x) + 2; j++) {
        double d = fabs(x - (double)j);
        int64_t seen = j < 0 ? 0 : j > image - 1 ? image - 1 : j;
        if (seen != i) continue;
        sum += d <= 1 ? (a + 2) * d * d * d - (a + 3) * d * d + 1
                      : a * d * d * d - 5 * a * d * d + 8 * a * d - 4 * a;
    }
    return sum;
}

static double coord(const ll_resize *r, int64_t o, int64_t image, int64_t out, double scale)
{
    double ratio = scale > 0 ? 1 / scale : (double)image / (double)out;
    if (r->coords == LL_ALIGN_CORNERS)
        return out > 1 ? (double)o * (double)(image - 1) / (double)(out - 1) : 0;
    return r->coords == LL_HALF_PIXEL ? ((double)o + 0.5) * ratio - 0.5 : (double)o * ratio;
}

static ll_val resize(ll_graph *g, const ll_val *in, const void *arg)
{
    return ll_resize_image(g, in[0], arg);
}

static void resize_plain(const built *b, double *const *in, const ll_shape *shape, double *y)
{
    const ll_resize *r = b->arg;
    int64_t x[5], t[5], i[3], o[3];
    double scale[3] = {0};
    spread(&b->in[0], x), spread(shape, t);
    for (int k = 0; k < b->in[0].n - 2; k++) scale[k + 5 - b->in[0].n] = r->scale[k];
    for (int64_t e = 0; e < ll_numel(shape); e++) {
        int64_t p = e / t[4], n = p / (t[1] * t[2] * t[3]);
        o[2] = p % t[3], o[1] = p / t[3] % t[2], o[0] = p / (t[3] * t[2]) % t[1];
        y[e] = 0;
        for (int64_t q = 0; q < x[1] * x[2] * x[3]; q++) {
            double w = 1;
            i[0] = q / (x[2] * x[3]), i[1] = q / x[3] % x[2], i[2] = q % x[3];
            for (int k = 0; k < 3; k++)
                if (x[1 + k] > 1 || t[1 + k] > 1)
                    w *= part_of(r, coord(r, o[k], x[1 + k], t[1 + k], scale[k]), i[k], x[1 + k]);
            y[e] += w * in[0][at(x, n, i, e % t[4])];
        }
    }
}

static void test_resize(void **)
{
    static const struct {
        ll_shape x;
        ll_resize r;
    } cases[] = {{LL_SHAPE(2, 3, 4, 2), {.size = {6, 8}}},
                 {LL_SHAPE(1, 5, 7, 2), {.size = {3, 11}}},
                 {LL_SHAPE(2, 7, 3), {.scale = {1.7}}},
                 {LL_SHAPE(1, 3, 4, 2, 1), {.size = {5, 3, 4}}},
                 {LL_SHAPE(1, 4, 1, 2), {.scale = {0.6, 3}}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int k = 0; k < 18; k++) {
            ll_resize r = cases[i].r;
            char what[64];
            r.mode = k % 6 < 4 ? LL_NEAREST : k % 6 == 4 ? LL_LINEAR : LL_CUBIC;
            r.round = k % 6 < 4 ? k % 6 : 0;
            r.coords = k / 6;
            snprintf(what, sizeof what, "resize %d, mode %d, coordinates %d", (int)i, k % 6, k / 6);
            built_check(&(built){what, 1, {cases[i].x}, &r, resize, resize_plain});
        }
}

/* ONNX's example of a 2 x 2 image made 4 x 4. */
static void known_plain(const built *, double *const *in, const ll_shape *, double *y)
{
    const double *x = in[0], f[4] = {0, 0.25, 0.75, 1};
    for (int i = 0; i < 16; i++) {
        double a = f[i / 4], b = f[i % 4];
        y[i] = (1 - a) * ((1 - b) * x[0] + b * x[1]) + a * ((1 - b) * x[2] + b * x[3]);
    }
}

static ll_val adaptive(ll_graph *g, const ll_val *in, const void *arg)
{
    return arg ? ll_adaptive_avg_pool(g, in[0], 3, 4) : ll_flip(g, in[0], 1);
}

static void adaptive_plain(const built *b, double *const *in, const ll_shape *shape, double *y)
{
    const int64_t *x = b->in[0].d, *t = shape->d;
    for (int64_t e = 0; e < ll_numel(shape); e++) {
        int64_t c = e % t[3], p = e / t[3] % t[2], o = e / t[3] / t[2] % t[1];
        int64_t n = e / t[3] / t[2] / t[1];
        double sum = 0, count = 0;
        for (int64_t i = 0; i < x[1]; i++)
            for (int64_t j = 0; j < x[2]; j++) {
                bool in_cell = b->arg ? i + 1 > (double)(o * x[1]) / (double)t[1] &&
                                            i < (double)((o + 1) * x[1]) / (double)t[1] &&
                                            j + 1 > (double)(p * x[2]) / (double)t[2] &&
                                            j < (double)((p + 1) * x[2]) / (double)t[2]
                                      : i == x[1] - 1 - o && j == p;
                if (!in_cell) continue;
                sum += in[0][((n * x[1] + i) * x[2] + j) * x[3] + c];
                count++;
            }
        y[e] = sum / count;
    }
}

static void test_adaptive(void **)
{
    const ll_resize twice = {.mode = LL_LINEAR, .scale = {2, 2}};
    ll_shape two = LL_SHAPE(1, 2, 2, 1);
    built_check(&(built){"twice", 1, {two}, &twice, resize, known_plain});
    ll_shape x = LL_SHAPE(2, 17, 10, 2);
    built_check(&(built){"adaptive", 1, {x}, "", adaptive, adaptive_plain});
    built_check(&(built){"flip", 1, {x}, NULL, adaptive, adaptive_plain});
}

/* ---- refusals ---- */

static void refused(ll_graph *g, const char *word)
{
    assert_int_not_equal(ll_graph_check(g), LL_OK);
    if (!strstr(ll_error_text(), word))
        fail_msg("\"%s\" does not have \"%s\"", ll_error_text(), word);
    ll_graph_free(g);
}

static void test_refusals(void **)
{
    ll_graph *g = ll_graph_new("g");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(1, 4, 4, 4, 2));
    ll_conv2d(g, x, ll_param(g, "w", LL_SHAPE(2, 3, 3, 2), (ll_init){0}), NULL);
    refused(g, "conv3d");
    g = ll_graph_new("g");
    x = ll_batch(g, "x", LL_F32, LL_SHAPE(1, 4, 4, 2));
    ll_conv_transpose_layer(g, "up", x, 3, 2, &(ll_conv){.stride = {2, 2}}, (const int64_t[]){2, 0},
                            true);
    refused(g, "output padding 2");
    g = ll_graph_new("g");
    x = ll_batch(g, "x", LL_F32, LL_SHAPE(1, 4, 4, 2));
    ll_conv_layer(g, "c", x, 3, 3, &(ll_conv){.stride = {2, 2, 2}}, true);
    refused(g, "third");
    g = ll_graph_new("g");
    x = ll_batch(g, "x", LL_F32, LL_SHAPE(1, 4, 4, 2));
    ll_max_pool(g, x, &(ll_window){.size = {2, 2}, .skip_pad = true});
    refused(g, "skip_pad");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_convs),   cmocka_unit_test(test_pools),
        cmocka_unit_test(test_global),  cmocka_unit_test(test_shuffle),
        cmocka_unit_test(test_resize),  cmocka_unit_test(test_adaptive),
        cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
