/* conv2d_im2col.c: convolutions as matrix products, the image copied tap by tap before or after:
 *
 *     columns [pixels, taps x channels]   what each output pixel reads, zeros outside the image
 *
 *     conv2d     y  = columns w'
 *     conv2d_dx  columns = dy w, and dx the sum of what each of its pixels was read as
 *     conv2d_dw  dw = dy' columns
 *
 * Groups have columns of their own, one group after the other. Of filters of one tap, stride 1 and
 * without padding the columns are the image: nothing is copied. Rows of outputs go a block at
 * once, whose columns fit the threads' caches, or are as large as the filters, which every block
 * reads anew. f32, f64, or bf16 operands with an f32 result: the products are ll_gemm's, with the
 * tiles that this CPU has for them. */
#include "kern/cpu/conv2d_int.h"

#include "kern/cpu/gemm.h"

enum { FEWEST_BYTES = 1 << 20, MOST_BYTES = 4 << 20 };

typedef struct plan {
    const ll_conv_shape *v;
    bool same;                /* the columns are the image */
    int64_t width, rows, all; /* of a row of columns; rows of outputs: of a block, of all images */
    size_t each;              /* bytes of a number in the columns */
    size_t columns, gemm;     /* bytes of scratch */
} plan;

static bool is_image(const ll_conv_shape *v)
{
    const ll_conv_attr *a = &v->a;
    return v->r == 1 && v->s == 1 && a->stride[0] == 1 && a->stride[1] == 1 && a->pad[0] == 0 &&
           a->pad[2] == 0 && v->oh == v->h && v->ow == v->w;
}

/* The product of so many rows of outputs; pointers are set later. */
static ll_gemm_call product_of(const plan *p, int64_t rows)
{
    const ll_conv_shape *v = p->v;
    int64_t pixels = rows * v->ow, k = p->width, wide = p->same ? v->c : k;
    ll_gemm_call g = {.bf16 = v->bf16, .f64 = v->f64, .start = v->start};
    g.threads = v->threads;
    switch (v->d) {
    case LL_CONV:
        g.m = pixels, g.n = v->fg, g.k = k;
        g.a_rs = wide, g.a_cs = 1, g.b_rs = 1, g.b_cs = k, g.c_rs = v->f;
        break;
    case LL_CONV_DX:
        g.m = pixels, g.n = k, g.k = v->fg;
        g.a_rs = v->f, g.a_cs = 1, g.b_rs = k, g.b_cs = 1, g.c_rs = wide;
        break;
    case LL_CONV_DW:
        g.m = v->fg, g.n = k, g.k = pixels;
        g.a_rs = 1, g.a_cs = v->f, g.b_rs = wide, g.b_cs = 1, g.c_rs = k;
        break;
    }
    return g;
}

static size_t gemm_room(const plan *p, int64_t rows)
{
    ll_gemm_call g = product_of(p, rows);
    return ll_align64(ll_gemm_scratch(&g));
}

static plan plan_of(const ll_conv_shape *v)
{
    plan p = {.v = v, .same = is_image(v), .width = v->r * v->s * v->cg, .all = v->n * v->oh};
    bool dx = v->d == LL_CONV_DX;
    p.each = v->f64 ? sizeof(double) : v->bf16 && !dx ? sizeof(uint16_t) : sizeof(float);
    int64_t row = v->ow * p.width * (int64_t)p.each, filters = v->fg * p.width * (int64_t)p.each;
    int64_t bytes = ll_max64(v->threads * FEWEST_BYTES, ll_min64(filters, MOST_BYTES));
    p.rows = p.same ? p.all : ll_min64(p.all, ll_max64(1, bytes / ll_max64(row, 1)));
    if (!p.same) p.columns = ll_align64((size_t)(p.rows * row));
    p.gemm = gemm_room(&p, p.rows);
    if (p.rows && p.all % p.rows) {
        size_t last = gemm_room(&p, p.all % p.rows);
        p.gemm = last > p.gemm ? last : p.gemm;
    }
    return p;
}

/* ---- columns ---- */

/* What output row `row` of all images reads, for group g. */
static void take_row(const plan *p, int64_t row, int64_t g, const char *x, char *to)
{
    const ll_conv_shape *v = p->v;
    size_t one = (size_t)v->cg * p->each;
    int64_t n = row / v->oh, top = row % v->oh * v->a.stride[0] - v->a.pad[0];
    for (int64_t o = 0; o < v->ow; o++)
        for (int64_t r = 0; r < v->r; r++) {
            int64_t y = top + r * v->a.dilation[0];
            int64_t left = o * v->a.stride[1] - v->a.pad[2];
            bool in = y >= 0 && y < v->h;
            const char *from =
                in ? x + (size_t)((n * v->h + y) * v->w * v->c + g * v->cg) * p->each : NULL;
            if (in && v->groups == 1 && v->a.dilation[1] == 1 && left >= 0 &&
                left + v->s <= v->w) { /* all taps of a row lie together */
                memcpy(to, from + (size_t)left * one, (size_t)v->s * one);
                to += (size_t)v->s * one;
                continue;
            }
            for (int64_t s = 0; s < v->s; s++, to += one) {
                int64_t at = left + s * v->a.dilation[1];
                if (in && at >= 0 && at < v->w)
                    memcpy(to, from + (size_t)(at * v->c) * p->each, one);
                else
                    memset(to, 0, one);
            }
        }
}

static void take_columns(const plan *p, int64_t from, int64_t to, int64_t g, const char *x,
                         char *columns)
{
    size_t row = (size_t)(p->v->ow * p->width) * p->each;
#pragma omp parallel for num_threads(p->v->threads)
    for (int64_t i = from; i < to; i++) take_row(p, i, g, x, columns + (size_t)(i - from) * row);
}

static void add_run(const ll_conv_shape *v, char *to, const char *from)
{
    if (v->f64)
        for (int64_t c = 0; c < v->cg; c++) ((double *)to)[c] += ((const double *)from)[c];
    else
        for (int64_t c = 0; c < v->cg; c++) ((float *)to)[c] += ((const float *)from)[c];
}

/* Adds columns to image row y of image n, those of its output row o and filter row r. */
static void add_row(const plan *p, int64_t r, const char *columns, char *to)
{
    const ll_conv_shape *v = p->v;
    size_t one = (size_t)v->cg * p->each;
    for (int64_t o = 0; o < v->ow; o++)
        for (int64_t s = 0; s < v->s; s++) {
            int64_t at = o * v->a.stride[1] - v->a.pad[2] + s * v->a.dilation[1];
            if (at >= 0 && at < v->w)
                add_run(v, to + (size_t)(at * v->c) * p->each,
                        columns + (size_t)((o * v->r + r) * v->s + s) * one);
        }
}

/* The columns of output rows [from, to), added to the image: a thread has rows of the image. */
static void add_columns(const plan *p, int64_t from, int64_t to, int64_t g, const char *columns,
                        char *dx)
{
    const ll_conv_shape *v = p->v;
    size_t row = (size_t)(v->ow * p->width) * p->each;
    int64_t first = from / v->oh, last = (to - 1) / v->oh;
#pragma omp parallel for num_threads(v->threads)
    for (int64_t i = first * v->h; i < (last + 1) * v->h; i++)
        for (int64_t r = 0; r < v->r; r++) {
            int64_t n = i / v->h, at = i % v->h + v->a.pad[0] - r * v->a.dilation[0];
            int64_t o = n * v->oh + at / v->a.stride[0];
            if (at < 0 || at % v->a.stride[0] || at / v->a.stride[0] >= v->oh) continue;
            if (o >= from && o < to)
                add_row(p, r, columns + (size_t)(o - from) * row,
                        dx + (size_t)(i * v->w * v->c + g * v->cg) * p->each);
        }
}

/* ---- one group of a block ---- */

static char *at_number(const ll_tensor *t, int64_t i)
{
    return (char *)t->data + (size_t)i * ll_dtype_bytes(t->dtype);
}

static void run_group(const plan *p, const ll_kcall *c, int64_t from, int64_t to, int64_t group)
{
    const ll_conv_shape *v = p->v;
    char *columns = (char *)c->scratch;
    ll_gemm_call g = product_of(p, to - from);
    g.scratch = columns + p->columns;
    int64_t y = from * v->ow * v->f + group * v->fg, w = group * v->fg * p->width;
    const ll_tensor *x = v->d == LL_CONV ? &c->in[0] : v->d == LL_CONV_DX ? &c->out[0] : &c->in[1];
    if (p->same)
        columns = at_number(x, group * v->cg);
    else if (v->d != LL_CONV_DX)
        take_columns(p, from, to, group, (const char *)x->data, columns);
    g.a = v->d == LL_CONV ? columns : at_number(&c->in[0], y);
    g.b = v->d == LL_CONV_DW ? columns : at_number(&c->in[1], w);
    g.c = v->d == LL_CONV      ? at_number(&c->out[0], y)
          : v->d == LL_CONV_DX ? columns
                               : at_number(&c->out[0], w);
    g.add = v->d == LL_CONV_DW && from;
    ll_gemm(&g);
    if (v->d == LL_CONV_DX && !p->same && to > from)
        add_columns(p, from, to, group, columns, (char *)x->data);
}

size_t ll_conv_im2col_room(const ll_conv_shape *v)
{
    plan p = plan_of(v);
    return p.columns + p.gemm;
}

void ll_conv_im2col(const ll_conv_shape *v, const ll_kcall *c)
{
    plan p = plan_of(v);
    int64_t from = 0, to;
    if (v->d == LL_CONV_DX && !p.same)
        memset(c->out[0].data, 0, (size_t)(v->n * v->h * v->w * v->c) * p.each);
    do { /* once even without pixels: zeros */
        to = ll_min64(from + p.rows, p.all);
        for (int64_t g = 0; g < v->groups; g++) run_group(&p, c, from, to, g);
        from = to;
    } while (from < p.all);
}
