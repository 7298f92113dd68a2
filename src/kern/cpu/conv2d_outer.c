/* conv2d_outer.c: conv2d_dw as sums of outer products.
 *
 *     dw[f, r, s, c] = sum over pixels p of dy[p, f] x[p under tap (r, s), c]
 *
 * A tile of MF filters x 2 vectors of columns is held in registers while all pixels of a block pass
 * by. What a column is depends on the channels:
 *
 *     many  channels of one tap. Pixels whose tap lies outside the image are skipped: for each tap
 *           they are a rectangle of rows and columns.
 *     few   taps of one filter row joined, s * c of them (5 x 6 = 30 columns where tap by tap would
 *           use 6 of 8 lanes); the image's rows are padded with zeros so that all taps have the
 *           same pixels, and pixels overlap: the next one starts c further on.
 *
 * Both operands are copied into such an order that the loop over pixels reads along: dy by groups
 * of MF filters, x by slices of 2 vectors of channels (or whole, joined). A block's slices fit in
 * L1 together.
 *
 * Threads: `parts` of them share out the pixels, each into sums of its own that are added up in
 * order at the end; where the filter is too large for many copies, the threads of one part share
 * out the slices.
 *
 * This text is for f32 (and bf16); conv2d_outer_f64.c compiles it for f64 (real.h). */
#include "kern/cpu/conv2d_int.h"

enum {
#if defined(__AVX__) && !defined(__AVX512F__)
    MF = 6,
#else
    MF = 8,
#endif
    NR = 2 * LL_LANES,
    TILE = MF * NR,
    L1_BYTES = 40 << 10,     /* of a panel of dy and a slice of x */
    BLOCK_BYTES = 512 << 10, /* of dy */
    PART_BYTES = 4 << 20,    /* of sums, all parts together */
};

typedef struct plan {
    bool joined;
    int64_t slices, slice;  /* slices of x, channels in one */
    int64_t columns, tiles; /* columns of a filter row (of a tap, joined: of all), tiles of them */
    int64_t panels;         /* groups of MF filters in a group */
    int64_t taps;           /* rows of tiles: r * s, joined: r */
    int64_t left, width;    /* zeros before an image row, and its pixels, zeros included */
    int64_t images, rows;   /* of a block */
    int64_t n_image, n_row; /* how many blocks each way */
    int64_t parts, shares;  /* threads = parts * shares */
    size_t part_bytes, dy_bytes, x_bytes;
} plan;

/* Image rows under so many output rows, not clipped. */
static int64_t rows_under(const ll_conv_shape *v, int64_t rows)
{
    return (rows - 1) * v->a.stride[0] + (v->r - 1) * v->a.dilation[0] + 1;
}

/* Whether joining taps fills the lanes better by a tenth. */
static bool joins(const ll_conv_shape *v)
{
    if (v->groups > 1 || v->a.dilation[1] > 1 || v->c < 1) return false;
    int64_t apart = ll_ceil_div(v->c, NR) * v->s, joined = ll_ceil_div(v->s * v->c, NR);
    return v->c <= 4 * NR && 11 * joined <= 10 * apart;
}

static void choose_blocks(const ll_conv_shape *v, plan *p)
{
    /* numbers of a panel of dy and a slice of x, for one output pixel */
    int64_t each = MF + p->slice * v->a.stride[0] * v->a.stride[1];
    int64_t pixels = ll_min64(L1_BYTES / (int64_t)sizeof(ll_real) / each,
                              BLOCK_BYTES / (int64_t)sizeof(ll_real) / ll_max64(v->f, 1));
    int64_t image = ll_max64(v->oh * v->ow, 1);
    pixels = ll_max64(pixels, 64);
    p->images = ll_max64(1, pixels / image);
    p->rows = image <= pixels ? v->oh : ll_max64(1, pixels / ll_max64(v->ow, 1));
    p->n_image = ll_ceil_div(v->n, p->images);
    p->n_row = ll_ceil_div(v->oh, ll_max64(p->rows, 1));
    if (p->n_row == 1) p->n_image = ll_min64(v->n, ll_ceil_div(p->n_image, p->parts) * p->parts);
    p->images = ll_ceil_div(v->n, ll_max64(p->n_image, 1));
    p->rows = ll_ceil_div(v->oh, ll_max64(p->n_row, 1));
}

static plan plan_of(const ll_conv_shape *v)
{
    plan p = {.joined = joins(v)};
    p.columns = p.joined ? v->s * v->c : ll_min64(v->cg, NR);
    p.tiles = p.joined ? ll_ceil_div(p.columns, NR) : 1;
    p.slices = p.joined ? 1 : ll_ceil_div(v->cg, NR);
    p.slice = p.joined ? v->c : NR;
    p.panels = ll_ceil_div(v->fg, MF);
    p.taps = p.joined ? v->r : v->r * v->s;
    p.left = p.joined ? v->a.pad[2] : 0;
    p.width = p.joined ? ll_max64(0, (v->ow - 1) * v->a.stride[1] + v->s) : v->w;
    p.part_bytes = ll_align64(sizeof(ll_real) * TILE * (size_t)(v->groups * p.slices * p.panels) *
                              (size_t)(p.taps * p.tiles));
    p.parts = v->threads;
    while (p.parts > 1 && (v->threads % p.parts || (size_t)p.parts * p.part_bytes > PART_BYTES ||
                           p.parts > v->n * v->oh))
        p.parts--;
    p.shares = v->threads / p.parts;
    choose_blocks(v, &p);
    p.dy_bytes = ll_align64(sizeof(ll_real) * (size_t)(v->groups * p.panels * MF) *
                            (size_t)(p.images * p.rows * v->ow));
    int64_t rows = p.joined ? rows_under(v, p.rows) : ll_min64(v->h, rows_under(v, p.rows));
    p.x_bytes = ll_align64(sizeof(ll_real) *
                           ((size_t)(p.images * ll_max64(rows, 0) * p.width * p.slice) + NR));
    return p;
}

/* ---- the tile ---- */

/* A rectangle of pixels: dy steps by MF, x by `step`; from row to row by pitches, from image to
 * image by leaps. All in elements. */
typedef struct walk {
    const ll_real *dy, *x;
    int64_t images, rows, cols, step;
    int64_t dy_pitch, x_pitch, dy_leap, x_leap;
} walk;

static __attribute__((noinline)) void add_tile(const walk *k, ll_real *to)
{
    ll_sums sums[MF];
    ll_micro_load(MF, 2, sums, to, NR);
    for (int64_t n = 0; n < k->images; n++)
        for (int64_t r = 0; r < k->rows; r++)
            ll_micro_columns(MF, 2, 1, sums, k->dy + n * k->dy_leap + r * k->dy_pitch, MF,
                             k->x + n * k->x_leap + r * k->x_pitch, k->step, k->cols);
    ll_micro_store(MF, 2, sums, to, NR);
}

/* ---- copies ---- */

typedef struct block {
    int64_t n0, n1, o0, o1; /* images; output rows */
    int64_t i0, i1;         /* image rows held: joined, zeros too */
    const ll_real *dy;      /* [panel][image][row][ow][MF] */
    ll_real *x;             /* [image][row][width][slice] */
} block;

/* `pixels` pixels of n_f filters, f apart, to MF apart. */
static void copy_filters(const ll_conv_shape *v, const void *dy, int64_t from, int64_t pixels,
                         int64_t n_f, ll_real *to)
{
    const ll_real *wide = (const ll_real *)dy + (v->bf16 ? 0 : from);
    for (int64_t i = 0; i < pixels; i++, from += v->f, wide += v->f, to += MF) {
        if (n_f == MF && !v->bf16)
            memcpy(to, wide, sizeof(ll_real) * MF);
        else
            for (int64_t k = 0; k < MF; k++)
                to[k] = k < n_f ? ll_conv_at(dy, v->bf16, from + k) : 0;
    }
}

/* A few pixels at a time, so that panels share what the cache holds of them. */
static void copy_dy(const ll_conv_shape *v, const plan *p, const block *b, const void *dy,
                    ll_real *to)
{
    int64_t image = (b->o1 - b->o0) * v->ow, all = image * (b->n1 - b->n0);
    for (int64_t n = b->n0; n < b->n1; n++)
        for (int64_t i = 0; i < image; i += 8)
            for (int64_t k = 0; k < v->groups * p->panels; k++) {
                int64_t f = k / p->panels * v->fg + k % p->panels * MF;
                copy_filters(v, dy, ((n * v->oh + b->o0) * v->ow + i) * v->f + f,
                             ll_min64(8, image - i), ll_min64(MF, v->fg - k % p->panels * MF),
                             to + (k * all + (n - b->n0) * image + i) * MF);
            }
}

/* So many pixels of an image row, n_c channels of each, into a slice. */
static void copy_pixels(const ll_conv_shape *v, const plan *p, const void *x, int64_t from,
                        int64_t pixels, int64_t n_c, ll_real *to)
{
    if (!v->bf16 && p->slice == v->c && n_c == v->c) {
        memcpy(to, (const ll_real *)x + from, sizeof(ll_real) * (size_t)(pixels * v->c));
        return;
    }
    for (int64_t j = 0; j < pixels; j++, from += v->c, to += p->slice) {
        if (n_c == NR && !v->bf16) {
            memcpy(to, (const ll_real *)x + from, sizeof(ll_real) * NR);
            continue;
        }
        for (int64_t c = 0; c < p->slice; c++)
            to[c] = c < n_c ? ll_conv_at(x, v->bf16, from + c) : 0;
    }
}

static void copy_x(const ll_conv_shape *v, const plan *p, const block *b, int64_t c0, int64_t n_c,
                   const void *x)
{
    ll_real *to = b->x;
    int64_t j0 = ll_min64(ll_max64(0, -p->left), v->w),
            before = ll_min64(ll_max64(0, p->left), p->width);
    int64_t n_j = ll_max64(0, ll_min64(v->w - j0, p->width - before));
    int64_t after = p->width - before - n_j;
    for (int64_t n = b->n0; n < b->n1; n++)
        for (int64_t i = b->i0; i < b->i1; i++, to += p->width * p->slice) {
            if (i < 0 || i >= v->h) continue; /* never read: rows outside are left out */
            memset(to, 0, sizeof(ll_real) * (size_t)(before * p->slice));
            copy_pixels(v, p, x, ((n * v->h + i) * v->w + j0) * v->c + c0, n_j, n_c,
                        to + before * p->slice);
            memset(to + (before + n_j) * p->slice, 0, sizeof(ll_real) * (size_t)(after * p->slice));
        }
    memset(to, 0, sizeof(ll_real) * NR); /* what the last tile's unused lanes read */
}

/* ---- blocks ---- */

/* Outputs [*from, *to) whose tap at offset `at` (tap * dilation - pad) is inside `size`. */
static void clip(int64_t at, int64_t stride, int64_t size, int64_t *from, int64_t *to)
{
    int64_t first = at >= 0 ? 0 : ll_ceil_div(-at, stride);
    int64_t end = size - at <= 0 ? 0 : ll_ceil_div(size - at, stride);
    *from = ll_max64(*from, first);
    *to = ll_max64(*from, ll_min64(*to, end));
}

/* One tap (joined: filter row) of one slice, against all filters of group g. */
static void add_tap(const ll_conv_shape *v, const plan *p, const block *b, int64_t g, int64_t tap,
                    ll_real *sums)
{
    int64_t r = p->joined ? tap : tap / v->s, s = p->joined ? 0 : tap % v->s;
    int64_t o0 = b->o0, o1 = b->o1, p0 = 0, p1 = v->ow;
    int64_t at = r * v->a.dilation[0] - v->a.pad[0], across = s * v->a.dilation[1] - v->a.pad[2];
    clip(at, v->a.stride[0], v->h, &o0, &o1);
    if (!p->joined) clip(across, v->a.stride[1], v->w, &p0, &p1);
    if (o1 <= o0 || p1 <= p0) return;
    int64_t col = p->joined ? 0 : p0 * v->a.stride[1] + across;
    walk k = {.images = b->n1 - b->n0, .rows = o1 - o0, .cols = p1 - p0};
    k.step = v->a.stride[1] * p->slice;
    k.dy_pitch = v->ow * MF;
    k.dy_leap = (b->o1 - b->o0) * k.dy_pitch;
    k.x_pitch = v->a.stride[0] * p->width * p->slice;
    k.x_leap = (b->i1 - b->i0) * p->width * p->slice;
    int64_t row = o0 * v->a.stride[0] + at - b->i0;
    const ll_real *x = b->x + (row * p->width + col) * p->slice;
    const ll_real *dy = b->dy + ((o0 - b->o0) * v->ow + p0) * MF;
    for (int64_t q = 0; q < p->panels; q++)
        for (int64_t t = 0; t < p->tiles; t++) {
            k.x = x + t * NR;
            k.dy = dy + (g * p->panels + q) * k.images * k.dy_leap;
            ll_real *to = sums + ((q * p->taps + tap) * p->tiles + t) * TILE;
            add_tile(&k, to);
        }
}

/* Blocks of one part of the pixels, for slices share, share + shares, ... */
static void add_part(const ll_conv_shape *v, const plan *p, int64_t part, int64_t share,
                     const void *dy, const void *x, ll_real *sums, char *scratch)
{
    int64_t blocks = p->n_image * p->n_row, mine = v->groups * p->slices;
    int64_t slice_size = p->panels * p->taps * p->tiles * TILE;
    for (int64_t i = share; i < mine; i += p->shares)
        for (int64_t e = 0; e < slice_size; e++) sums[i * slice_size + e] = (ll_real)v->start;
    for (int64_t k = blocks * part / p->parts; k < blocks * (part + 1) / p->parts; k++) {
        int64_t bi = k / p->n_row, br = k % p->n_row;
        block b = {.dy = (ll_real *)scratch, .x = (ll_real *)(scratch + p->dy_bytes)};
        b.n0 = bi * v->n / p->n_image;
        b.n1 = (bi + 1) * v->n / p->n_image;
        b.o0 = br * v->oh / p->n_row;
        b.o1 = (br + 1) * v->oh / p->n_row;
        b.i0 = b.o0 * v->a.stride[0] - v->a.pad[0];
        b.i1 = b.i0 + rows_under(v, b.o1 - b.o0);
        if (!p->joined) { /* only rows that exist */
            b.i0 = ll_min64(ll_max64(b.i0, 0), v->h);
            b.i1 = ll_min64(ll_max64(b.i1, b.i0), v->h);
        }
        copy_dy(v, p, &b, dy, (ll_real *)scratch);
        for (int64_t i = share; i < mine; i += p->shares) {
            int64_t g = i / p->slices, c0 = i % p->slices * p->slice;
            copy_x(v, p, &b, g * v->cg + c0, ll_min64(p->slice, v->cg - c0), x);
            for (int64_t tap = 0; tap < p->taps; tap++)
                add_tap(v, p, &b, g, tap, sums + i * slice_size);
        }
    }
}

/* One tile's columns of one filter, summed over the parts. */
static void add_up(const ll_real *from, int64_t parts, int64_t per_part, int64_t cols,
                   ll_real start, ll_real *to)
{
    ll_real sum[NR];
    for (int64_t i = 0; i < NR; i++) sum[i] = from[i] - start;
    for (int64_t part = 1; part < parts; part++)
        for (int64_t i = 0; i < NR; i++) sum[i] += from[part * per_part + i] - start;
    memcpy(to, sum, sizeof(ll_real) * (size_t)cols);
}

/* Adds the parts up, for panels [from, to) of all groups. */
static void finish(const ll_conv_shape *v, const plan *p, const ll_real *sums, int64_t from,
                   int64_t to_panel, ll_real *dw)
{
    int64_t per_part = (int64_t)(p->part_bytes / sizeof(ll_real));
    int64_t one = v->r * v->s * v->cg, row = p->joined ? v->s * v->c : v->cg;
    for (int64_t k = from; k < to_panel; k++) {
        int64_t g = k / p->panels, q = k % p->panels, n_f = ll_min64(MF, v->fg - q * MF);
        ll_real *to = dw + (g * v->fg + q * MF) * one;
        for (int64_t c = 0; c < p->slices; c++)
            for (int64_t tap = 0; tap < p->taps; tap++)
                for (int64_t t = 0; t < p->tiles; t++) {
                    int64_t tile =
                        (((g * p->slices + c) * p->panels + q) * p->taps + tap) * p->tiles + t;
                    int64_t col = (p->joined ? t : c) * NR, cols = ll_min64(NR, row - col);
                    for (int64_t i = 0; i < n_f; i++)
                        add_up(sums + tile * TILE + i * NR, p->parts, per_part, cols,
                               (ll_real)v->start, to + i * one + tap * row + col);
                }
    }
}

size_t LL_REAL(ll_conv_outer_room)(const ll_conv_shape *v)
{
    plan p = plan_of(v);
    return (size_t)p.parts * p.part_bytes + (size_t)v->threads * (p.dy_bytes + p.x_bytes);
}

typedef struct call {
    const ll_conv_shape *v;
    const plan *p;
    const ll_kcall *c;
} call;

/* Shares [from, to) of v->threads. */
static void add_shares(const void *given, int64_t from, int64_t to)
{
    const call *k = (const call *)given;
    const plan *p = k->p;
    char *buffers = (char *)k->c->scratch + (size_t)p->parts * p->part_bytes;
    for (int64_t i = from; i < to; i++)
        add_part(k->v, p, i / p->shares, i % p->shares, k->c->in[0].data, k->c->in[1].data,
                 (ll_real *)((char *)k->c->scratch + (size_t)(i / p->shares) * p->part_bytes),
                 buffers + (size_t)i * (p->dy_bytes + p->x_bytes));
}

static void finish_panels(const void *given, int64_t from, int64_t to)
{
    const call *k = (const call *)given;
    finish(k->v, k->p, (const ll_real *)k->c->scratch, from, to, (ll_real *)k->c->out[0].data);
}

void LL_REAL(ll_conv_outer)(const ll_conv_shape *v, const ll_kcall *c)
{
    plan p = plan_of(v);
    call k = {v, &p, c};
    ll_in_parts(v->threads, v->threads, add_shares, &k);
    ll_in_parts(v->threads, v->groups * p.panels, finish_panels, &k);
}
