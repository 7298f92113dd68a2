/* loops.c: each op as its reference kernel has it, its shapes written out as numbers. Loops are
 * nests over i0, i1, ... with indices that are sums of strides times them. */
#include "ccode/loops.h"

#include "base/spec.h"
#include "kern/einsum.h"
#include "kern/gather.h"
#include "kern/moves.h"
#include "kern/ref/value.h"
#include "kern/resample.h"

#include <stdio.h>

/* for-lines of n loops, named by a letter and a number from `first` on. */
static void nest(ll_buf *b, const int64_t *d, int n, int first)
{
    for (int k = 0; k < n; k++)
        ll_buf_printf(b, "    for (long i%d = 0; i%d < %ld; i%d++)\n", first + k, first + k, d[k],
                      first + k);
}

/* x0[3 + i0 * 12 + i1]; more: of the index, and what follows. */
static void element(ll_buf *b, const char *array, const int64_t *stride, int n, int64_t offset,
                    const char *more)
{
    ll_buf_printf(b, "%s[%ld", array, offset);
    for (int k = 0; k < n; k++)
        if (stride[k] == 1)
            ll_buf_printf(b, " + i%d", k);
        else if (stride[k])
            ll_buf_printf(b, " + i%d * %ld", k, stride[k]);
    ll_buf_puts(b, more);
}

enum { NUMBER_TEXT = 32 };
#define NUMBER(v) number(v, (char[NUMBER_TEXT]){0})
static const char *number(double v, char out[NUMBER_TEXT])
{
    if (isnan(v)) return "NAN";
    if (isinf(v)) return v > 0 ? "INFINITY" : "-INFINITY";
    snprintf(out, NUMBER_TEXT, "%.17g", v);
    return out;
}

/* ---- elements moved ---- */

typedef int moves_of(const ll_kcall *c, ll_kernel_move m[LL_MOVES]);

/* Move i of several is of operand i. Of addresses only what lies between them is looked at. */
static ll_err moves(const ll_cloops *c, moves_of *of)
{
    char *const base = (char *)64;
    ll_tensor in[LL_MAX_IN], out = {base, c->out[0].dtype, c->out[0].shape};
    ll_kernel_move m[LL_MOVES];
    for (int k = 0; k < c->n_in; k++) in[k] = (ll_tensor){base, c->in[k].dtype, c->in[k].shape};
    int n = of(&(ll_kcall){.attr = c->attr, .n_in = c->n_in, .in = in, .out = &out}, m);
    for (int k = 0; k < n; k++) {
        const ll_walk *w = &m[k].w;
        int64_t bytes = (int64_t)m[k].bytes;
        nest(c->b, w->size, w->n, 0);
        char from[16];
        snprintf(from, sizeof from, "x%d", c->n_in > 1 ? k : 0);
        element(c->b, "        y0", w->stride[LL_TO], w->n, (m[k].y - base) / bytes, "] = ");
        if (m[k].x)
            element(c->b, from, w->stride[LL_FROM], w->n, (m[k].x - base) / bytes, "];\n");
        else
            ll_buf_puts(c->b, "0;\n");
    }
    return LL_OK;
}

#define MOVES(name)                                                                                \
    static ll_err name(const ll_cloops *c)                                                         \
    {                                                                                              \
        return moves(c, ll_##name##_moves);                                                        \
    }
MOVES(broadcast)
MOVES(concat)
MOVES(pad)
MOVES(reshape)
MOVES(slice)
MOVES(transpose)

static void each(const ll_cloops *c, int64_t n)
{
    ll_buf_printf(c->b, "    for (long e = 0; e < %ld; e++)", n);
}

static ll_err fill(const ll_cloops *c)
{
    each(c, ll_numel(&c->out[0].shape));
    ll_buf_printf(c->b, " y0[e] = %s;\n", NUMBER(((const ll_fill_attr *)c->attr)->value));
    return LL_OK;
}

static ll_err arange(const ll_cloops *c)
{
    const ll_arange_attr *a = (const ll_arange_attr *)c->attr;
    each(c, a->n);
    ll_buf_printf(c->b, " y0[e] = %.17g + %.17g * (double)(%ld + e);\n", a->start, a->step, a->at);
    return LL_OK;
}

static ll_err embedding(const ll_cloops *c)
{
    const ll_embedding_attr *a = (const ll_embedding_attr *)c->attr;
    int64_t v = c->in[0].shape.d[0], width = c->in[0].shape.d[1];
    CHECK(!a->part, LL_E_ARG, "embedding of a part of its table has no C form");
    each(c, ll_numel(&c->in[1].shape));
    ll_buf_printf(c->b,
                  " {\n        if (x1[e] < 0 || x1[e] >= %ld) return -1;\n"
                  "        memcpy(y0 + e * %ld, x0 + (long)x1[e] * %ld, %ld * sizeof *y0);\n"
                  "    }\n",
                  v, width, width, width);
    return LL_OK;
}

static ll_err gather(const ll_cloops *c)
{
    ll_gather_walk g;
    int64_t y[LL_MAX_DIMS];
    TRY(ll_gather_of((const ll_gather_attr *)c->attr, &c->in[0].shape, &c->in[1].shape,
                     &c->out[0].shape, &g));
    CHECK(g.whole == g.v, LL_E_ARG, "gather of a part has no C form");
    ll_walk_strides(&c->out[0].shape, y);
    nest(c->b, g.d, g.n, 0);
    element(c->b, "    {\n        long row = x1", g.index, g.n, 0, "];\n");
    ll_buf_printf(c->b, "        if (row < 0 || row >= %ld) return -1;\n", g.v);
    element(c->b, "        y0", y, g.n, 0, "] = ");
    element(c->b, "x0", g.x, g.n, 0, "");
    ll_buf_printf(c->b, " + row * %ld];\n    }\n", g.step);
    return LL_OK;
}

static ll_err onehot(const ll_cloops *c)
{
    const ll_onehot_attr *a = (const ll_onehot_attr *)c->attr;
    each(c, ll_numel(&c->in[0].shape));
    ll_buf_printf(c->b,
                  "\n        for (long v = 0; v < %ld; v++) y0[e * %ld + v] = x0[e] == v + "
                  "%ld;\n",
                  a->size, a->size, a->from);
    return LL_OK;
}

static ll_err causal_mask(const ll_cloops *c)
{
    const ll_mask_attr *a = (const ll_mask_attr *)c->attr;
    const ll_shape *x = &c->in[0].shape;
    int64_t t = x->d[x->n - 2], s = x->d[x->n - 1];
    each(c, ll_numel(x));
    ll_buf_printf(c->b, " y0[e] = e %% %ld + %ld > e / %ld %% %ld + %ld ? %s : x0[e];\n", s,
                  a->at[1], s, t, a->at[0], NUMBER(a->value));
    return LL_OK;
}

/* ---- sums ---- */

static ll_err reduce(const ll_cloops *c, const char *start, const char *step)
{
    ll_spec s;
    TRY(ll_spec_parse(((const ll_spec_attr *)c->attr)->spec, &s));
    int64_t x[LL_MAX_DIMS], y[LL_MAX_DIMS], d[LL_MAX_DIMS], stride[LL_MAX_DIMS];
    ll_walk_strides(&c->in[0].shape, x);
    ll_walk_strides(&c->out[0].shape, y);
    int n = 0;
    for (int k = 0; k < s.n_out; k++, n++) d[n] = c->out[0].shape.d[k], stride[n] = x[s.from[k]];
    for (int k = 0; k < s.n_in; k++)
        if (s.to[k] < 0) d[n] = c->in[0].shape.d[k], stride[n++] = x[k];
    nest(c->b, d, s.n_out, 0);
    ll_buf_printf(c->b, "    {\n    double s = %s;\n", start);
    nest(c->b, d + s.n_out, n - s.n_out, s.n_out);
    element(c->b, "    {\n        double v = x0", stride, n, 0, "];\n");
    ll_buf_printf(c->b, "        %s\n    }\n", step);
    element(c->b, "    y0", y, s.n_out, 0, "] = s;\n    }\n");
    return LL_OK;
}

static ll_err sum(const ll_cloops *c)
{
    return reduce(c, "0", "s += v;");
}

static ll_err amax(const ll_cloops *c)
{
    return reduce(c, "-INFINITY", "if (v > s || v != v) s = v;");
}

static ll_err matmul(const ll_cloops *c)
{
    ll_einsum_loop loop[LL_EINSUM_LOOPS];
    int64_t d[LL_EINSUM_LOOPS], at[3][LL_EINSUM_LOOPS];
    int n = ll_einsum_read(((const ll_matmul_attr *)c->attr)->spec, &c->in[0].shape,
                           &c->in[1].shape, &c->out[0].shape, loop);
    int free = c->out[0].shape.n;
    for (int k = 0; k < n; k++) {
        d[k] = loop[k].extent;
        for (int t = 0; t < 3; t++) at[t][k] = loop[k].stride[t];
    }
    nest(c->b, d, free, 0);
    ll_buf_puts(c->b, "    {\n    double s = 0;\n");
    nest(c->b, d + free, n - free, free);
    element(c->b, "        s += (double)x0", at[0], n, 0, "] * ");
    element(c->b, "x1", at[1], n, 0, "];\n");
    element(c->b, "    y0", at[2], free, 0, "] = s;\n    }\n");
    return LL_OK;
}

static ll_err argmax(const ll_cloops *c)
{
    const ll_order_attr *a = (const ll_order_attr *)c->attr;
    const ll_shape *x = &c->in[0].shape;
    int64_t inner = 1, n = x->d[a->dim];
    for (int d = (int)a->dim + 1; d < x->n; d++) inner *= x->d[d];
    each(c, ll_numel(&c->out[0].shape));
    ll_buf_printf(c->b,
                  " {\n        long from = e / %ld * %ld + e %% %ld, best = 0;\n"
                  "        for (long i = 1; i < %ld; i++) {\n"
                  "            double v = x0[from + i * %ld], w = x0[from + best * %ld];\n"
                  "            if (%s) best = i;\n        }\n        y0[e] = best;\n    }\n",
                  inner, n * inner, inner, n, inner, inner,
                  a->least ? "v < w || (w != w && v == v)" : "v > w || (v != v && w == w)");
    return LL_OK;
}

/* ---- windows: output (o, p) and tap (r, s) meet pixel (i, j) ---- */

static void window(const ll_cloops *c, const int64_t size[2], const int64_t stride[2],
                   const int64_t pad[4], const int64_t dilation[2], const int64_t image[2])
{
    static const char *const names = "rsijop";
    for (int k = 0; k < 2; k++)
        ll_buf_printf(c->b,
                      "        for (long %c = 0; %c < %ld; %c++) {\n"
                      "            long %c = %c * %ld - %ld + %c * %ld;\n"
                      "            if (%c < 0 || %c >= %ld) continue;\n",
                      names[k], names[k], size[k], names[k], names[2 + k], names[4 + k], stride[k],
                      pad[2 * k], names[k], dilation[k], names[2 + k], names[2 + k], image[k]);
}

/* Over the result, an image. */
static void pixels(const ll_cloops *c, const char *names)
{
    for (int k = 0; k < 4; k++)
        ll_buf_printf(c->b, "    for (long %c = 0; %c < %ld; %c++)\n", names[k], names[k],
                      c->out[0].shape.d[k], names[k]);
}

static ll_err conv2d(const ll_cloops *c)
{
    const ll_conv_attr *a = (const ll_conv_attr *)c->attr;
    const int64_t *x = c->in[0].shape.d, *w = c->in[1].shape.d, *y = c->out[0].shape.d;
    pixels(c, "nopf");
    ll_buf_puts(c->b, "    {\n        double sum = 0;\n");
    window(c, w + 1, a->stride, a->pad, a->dilation, x + 1);
    ll_buf_printf(c->b,
                  "            const float *a = x0 + ((n * %ld + i) * %ld + j) * %ld + f / %ld * "
                  "%ld;\n"
                  "            const float *b = x1 + ((f * %ld + r) * %ld + s) * %ld;\n"
                  "            for (long c = 0; c < %ld; c++) sum += (double)a[c] * b[c];\n"
                  "        }\n        }\n        y0[((n * %ld + o) * %ld + p) * %ld + f] = sum;\n"
                  "    }\n",
                  x[1], x[2], x[3], (w[0] / a->groups), w[3], w[1], w[2], w[3], w[3], y[1], y[2],
                  y[3]);
    return LL_OK;
}

/* Pixel (i, j) of the image gets what every output (o, p) that it is under gives it. */
static ll_err conv2d_dx(const ll_cloops *c)
{
    static const char *const names = "rsopij";
    const ll_conv_attr *a = (const ll_conv_attr *)c->attr;
    const int64_t *y = c->in[0].shape.d, *w = c->in[1].shape.d, *x = c->out[0].shape.d;
    int64_t filters = w[0] / a->groups;
    pixels(c, "nijc");
    ll_buf_puts(c->b, "    {\n        double sum = 0;\n");
    for (int k = 0; k < 2; k++) {
        char tap = names[k], to = names[2 + k];
        ll_buf_printf(c->b,
                      "        for (long %c = 0; %c < %ld; %c++) {\n"
                      "            long %c = %c + %ld - %c * %ld;\n"
                      "            if (%c < 0 || %c %% %ld || (%c /= %ld) >= %ld) continue;\n",
                      tap, tap, w[1 + k], tap, to, names[4 + k], a->pad[2 * k], tap, a->dilation[k],
                      to, to, a->stride[k], to, a->stride[k], y[1 + k]);
    }
    ll_buf_printf(c->b,
                  "            long f0 = c / %ld * %ld;\n"
                  "            for (long f = f0; f < f0 + %ld; f++)\n"
                  "                sum += (double)x0[((n * %ld + o) * %ld + p) * %ld + f] *\n"
                  "                       x1[((f * %ld + r) * %ld + s) * %ld + c %% %ld];\n"
                  "        }\n        }\n"
                  "        y0[((n * %ld + i) * %ld + j) * %ld + c] = sum;\n    }\n",
                  w[3], filters, filters, y[1], y[2], y[3], w[1], w[2], w[3], w[3], x[1], x[2],
                  x[3]);
    return LL_OK;
}

static void pool(const ll_cloops *c, const char *start, const char *step, const char *value)
{
    const ll_pool_attr *a = (const ll_pool_attr *)c->attr;
    const int64_t *x = c->in[0].shape.d, *y = c->out[0].shape.d, one[2] = {1, 1};
    pixels(c, "nopf");
    ll_buf_printf(c->b, "    {\n        %s\n", start);
    window(c, a->size, a->stride, a->pad, one, x + 1);
    ll_buf_printf(c->b,
                  "            double v = x0[((n * %ld + i) * %ld + j) * %ld + f];\n"
                  "            %s\n        }\n        }\n"
                  "        y0[((n * %ld + o) * %ld + p) * %ld + f] = %s;\n    }\n",
                  x[1], x[2], x[3], step, y[1], y[2], y[3], value);
}

static ll_err max_pool(const ll_cloops *c)
{
    pool(c, "double most = 0;\n        int any = 0;",
         "if (!any || v > most || v != v) most = v, any = 1;", "most");
    return LL_OK;
}

static ll_err avg_pool(const ll_cloops *c)
{
    const ll_pool_attr *a = (const ll_pool_attr *)c->attr;
    char value[48];
    snprintf(value, sizeof value, "sum / %ld", (a->size[0] * a->size[1]));
    pool(c, "double sum = 0;", "sum += v;", value);
    return LL_OK;
}

/* Of each row of the result the pixels that it takes, as lines of their own. */
static ll_err resample(const ll_cloops *c)
{
    const ll_resample_attr *a = (const ll_resample_attr *)c->attr;
    const ll_shape *x = &c->in[0].shape, *y = &c->out[0].shape;
    int64_t inner = 1, outer = 1, rows = x->d[a->dim], out = y->d[a->dim];
    for (int d = 0; d < x->n; d++) *(d < a->dim ? &outer : &inner) *= d == a->dim ? 1 : x->d[d];
    CHECK(!a->back && !a->at[0] && !a->at[1], LL_E_ARG, "resample's transpose has no C form");
    ll_buf_printf(c->b,
                  "    for (long u = 0; u < %ld; u++)\n    for (long v = 0; v < %ld; v++) {\n"
                  "        const float *x = x0 + u * %ld + v;\n"
                  "        float *y = y0 + u * %ld + v;\n",
                  outer, inner, rows * inner, out * inner);
    for (int64_t o = 0; o < out; o++) {
        ll_taps t = ll_taps_of(a, o);
        ll_buf_printf(c->b, "        y[%ld] = 0", o * inner);
        for (int64_t k = 0; k < t.n; k++)
            ll_buf_printf(c->b, " + %.17g * x[%ld]", ll_tap(&t, k), (t.from + k) * inner);
        ll_buf_puts(c->b, ";\n");
    }
    ll_buf_puts(c->b, "    }\n");
    return LL_OK;
}

static ll_err rope(const ll_cloops *c)
{
    const ll_rope_attr *a = (const ll_rope_attr *)c->attr;
    const ll_shape *x = &c->in[0].shape;
    int64_t d = x->d[x->n - 1], half = d / 2, heads = x->n == 5 ? x->d[2] * x->d[3] : x->d[2];
    CHECK(c->n_in == 1, LL_E_ARG, "rope with places given has no C form");
    each(c, ll_numel(x) / 2);
    ll_buf_printf(c->b,
                  " {\n        long pair = e %% %ld, row = e / %ld, t = row / %ld %% %ld;\n"
                  "        long i = row * %ld + pair%s, j = i + %ld;\n"
                  "        double angle = (%ld + t) * pow(%.17g, -2.0 * pair / %ld);\n"
                  "        double p = x0[i], q = x0[j], sine = %ssin(angle);\n"
                  "        y0[i] = p * cos(angle) - q * sine;\n"
                  "        y0[j] = p * sine + q * cos(angle);\n    }\n",
                  half, half, heads, x->d[1], d, a->interleaved ? " * 2" : "",
                  a->interleaved ? 1 : half, a->at, a->base, d, a->back ? "-" : "");
    return LL_OK;
}

/* ---- elementwise, alone and in chains ---- */

#define TEXT(...) #__VA_ARGS__
static const struct ew {
    const char *name, *value;
} ews[] = {
#define X(name, operands, value) {#name, TEXT(value)},
    LL_EW(X)
#undef X
};

ll_ew ll_cloops_ew(const char *op)
{
    int i = 0;
    while (i < LL_N_EW && strcmp(ews[i].name, op)) i++;
    return (ll_ew)i;
}

static bool has_number(ll_ew ew)
{
    return ew == LL_EW_scale || ew == LL_EW_shift;
}

void ll_cloops_function(ll_buf *b, ll_ew ew)
{
    ll_buf_printf(b, "static inline double op_%s(double a", ews[ew].name);
    for (int k = 1; k < ll_ew_operands(ew); k++) ll_buf_printf(b, ", double %c", 'a' + k);
    ll_buf_printf(b, "%s)\n{\n    return %s;\n}\n\n", has_number(ew) ? ", double k" : "",
                  ews[ew].value);
}

/* op_NAME(x0[e], x1[e], k) */
static void call(const ll_cloops *c, ll_ew ew, const char *const *operand, double k)
{
    c->used[ew] = true;
    ll_buf_printf(c->b, "op_%s(", ews[ew].name);
    for (int i = 0; i < ll_ew_operands(ew); i++)
        ll_buf_printf(c->b, "%s%s", i ? ", " : "", operand[i]);
    if (has_number(ew)) ll_buf_printf(c->b, ", %s", NUMBER(k));
    ll_buf_puts(c->b, ");\n");
}

ll_err ll_cloops_map(const ll_cloops *c, ll_ew ew)
{
    static const char *const operands[] = {"x0[e]", "x1[e]", "x2[e]"};
    each(c, ll_numel(&c->out[0].shape));
    ll_buf_puts(c->b, " y0[e] = ");
    call(c, ew, operands, has_number(ew) ? ((const ll_number_attr *)c->attr)->value : 0);
    return LL_OK;
}

static ll_err fused(const ll_cloops *c)
{
    const ll_fused_attr *f = (const ll_fused_attr *)c->attr;
    each(c, ll_numel(&f->shape));
    ll_buf_puts(c->b, " {\n");
    for (int i = 0; i < f->n_in; i++) {
        ll_buf_printf(c->b, "        double r%d = x%d[", i, i);
        if (f->period[i] == 1)
            ll_buf_puts(c->b, "0");
        else if (f->repeat[i] == 1 && f->period[i] == ll_numel(&f->shape))
            ll_buf_puts(c->b, "e");
        else
            ll_buf_printf(c->b, "e / %ld %% %ld", f->repeat[i], f->period[i]);
        ll_buf_puts(c->b, "];\n");
    }
    for (int s = 0; s < f->n_step; s++) {
        const ll_fused_step *t = &f->step[s];
        const int16_t reg[3] = {t->a, t->b, t->c};
        char text[3][NUMBER_TEXT];
        const char *operand[3];
        for (int j = 0; j < 3; j++) {
            snprintf(text[j], NUMBER_TEXT, "r%d", reg[j]);
            operand[j] = reg[j] == LL_FUSE_K ? number(t->k, text[j]) : text[j];
        }
        ll_buf_printf(c->b, "        double r%d = ", f->n_in + s);
        call(c, (ll_ew)t->op, operand, t->k);
    }
    for (int o = 0; o < f->n_out; o++) ll_buf_printf(c->b, "        y%d[e] = r%d;\n", o, f->out[o]);
    ll_buf_puts(c->b, "    }\n");
    return LL_OK;
}

ll_cloops_write *ll_cloops_find(const char *op)
{
    static const struct row {
        const char *op;
        ll_cloops_write *write;
    } rows[] = {
#define ROW(name) {#name, name}
        ROW(amax),        ROW(arange),    ROW(argmax),  ROW(avg_pool),  ROW(broadcast),
        ROW(causal_mask), ROW(concat),    ROW(conv2d),  ROW(conv2d_dx), ROW(embedding),
        ROW(fill),        ROW(gather),    ROW(matmul),  ROW(max_pool),  ROW(onehot),
        ROW(pad),         ROW(resample),  ROW(reshape), ROW(rope),      ROW(slice),
        ROW(sum),         ROW(transpose),
#undef ROW
    };
    if (!strncmp(op, "fused", 5)) return fused; /* fused1, fused2, ...: by results */
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!strcmp(rows[i].op, op)) return rows[i].write;
    return NULL;
}
