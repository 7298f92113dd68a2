/* conv2d_winograd.c: convolutions of 3 x 3 and 5 x 5 filters, stride 1, with fewer multiplications
 * (Winograd; Lavin and Gray, 2015). F(m, r) makes m outputs of r taps from a = m + r - 1 numbers,
 * with a products in place of m r:
 *
 *     y = A' [(G w) . (B' x)]          in two dimensions  Y = A' [(G W G') . (B' X B)] A
 *
 * In each of the a x a places of the transformed tiles ("spots") what is summed over channels is a
 * matrix product, tiles x channels by channels x filters, for the micro-kernel. conv2d_dx is the
 * same with the filter turned round; conv2d_dw is the transpose of it with respect to W:
 *
 *     dW = G' [(A dY A') . (B' X B)] G   with products summed over tiles
 *
 * The forms are in conv2d_winograd_form.c.
 *
 * Tiles are laid in the whole image (ll_conv_attr.at), so that a part of an image has the tiles
 * that the whole has. Of a tile that a cut divides each side makes its own rows, with zeros for
 * what it does not hold and its results do not depend on, but for rounding.
 *
 *     many tiles  threads share out blocks of tiles; all filters are transformed before (dw: each
 *                 thread has sums of its own, added up in order)
 *     few tiles   all tiles are transformed before; threads share out panels of filters (dw: of
 *                 channels, in pieces of some filters), whose transform stays in the second cache
 *
 * Rounding: what is summed is larger than the result; tests/kern/test_conv2d.c says how much. */
#include "kern/cpu/conv2d_winograd.h"

#include <omp.h>

enum {
#if defined(__AVX512F__)
    MR = 6, /* 32 registers: 24 sums; tiles are read half as often as in 8 x 2 vectors */
    NV = 4,
#elif defined(__AVX__)
    MR = 6,
    NV = 2,
#else
    MR = 8,
    NV = 2,
#endif
    NR = NV * LL_LANES,
    LINE = 16,             /* numbers of a cache line */
    KC = 512 / NV,         /* a panel of so many rows fits the first cache */
    ZEROS = 1024,          /* channels of a pixel outside of the image */
    KEEP = 4,              /* channels of filters that are brought in order at once */
    BLOCK_BYTES = 1 << 20, /* of a thread's transformed tiles */
    FEWEST = 32,
    MANY = 256,   /* tiles of a block */
    FEW = 192,    /* of few tiles */
    PANEL = 12,   /* tiles whose products take as long as filters' transform */
    FILTERS = 48, /* of a thread's piece of dw: a whole number of MR */
};

/* ---- sizes ---- */

/* Where transformed tiles lie: groups of channels one behind another, each tile by tile. A group is
 * all channels, or (dw, few tiles) those that a product reads: no page has what it does not. */
typedef struct layout {
    int64_t group, row, step, spot; /* channels; from tile to tile, group to group, spot to spot */
} layout;

typedef struct plan {
    const ll_conv_shape *v;
    const ll_winograd *f;
    int64_t a, spots;
    ll_tiles t;
    int64_t block, blocks;        /* tiles of one; few: how many are multiplied apart */
    int64_t part;                 /* channels of filters that are transformed at once */
    int64_t panels;               /* of NR filters (dw: channels) */
    bool few;                     /* tiles: see the top */
    layout in, out;               /* of transformed tiles; out: dw */
    int64_t panel_spot, sum_spot; /* of a panel; of its products, or sums */
    size_t panel_bytes, in_bytes, out_bytes, sum_bytes;
} plan;

/* Numbers rounded up to lines, an odd number of them: what lies so far apart does not meet in the
 * cache. */
static int64_t apart(int64_t n)
{
    return (ll_ceil_div(n, LINE) | 1) * LINE;
}

static int64_t place(const layout *l, int64_t channel)
{
    return channel / l->group * l->step + channel % l->group;
}

static layout layout_of(int64_t channels, int64_t group, int64_t tiles)
{
    layout l = {.group = group, .row = group, .step = apart(tiles * group)};
    l.spot = apart(ll_ceil_div(channels, group) * l.step);
    return l;
}

/* Blocks of few tiles, each multiplied by all panels: what the busiest thread makes is least. */
static int64_t blocks_of(const plan *p)
{
    int64_t best = 0, least = INT64_MAX, all = p->t.all, most = ll_max64(1, all / FEWEST);
    for (int64_t n = ll_max64(1, ll_ceil_div(all, FEW)); n <= most; n++) {
        int64_t turns = ll_ceil_div(n * p->panels, ll_max64(p->v->threads, 1));
        int64_t cost = turns * (ll_round_up(ll_ceil_div(all, n), MR) + PANEL);
        if (cost < least) least = cost, best = n;
    }
    return ll_max64(best, 1);
}

static plan plan_of(const ll_conv_shape *v)
{
    plan p = {.v = v, .f = ll_winograd_for(v, v->m)};
    p.a = p.f->m + p.f->r - 1;
    p.spots = p.a * p.a;
    p.t = ll_conv_tiles(v, p.f->m, p.f->m);
    bool dw = v->d == LL_CONV_DW;
    p.panels = ll_ceil_div(dw ? p.t.in.c : p.t.out.c, NR);
    int64_t in_row = apart(p.t.in.c), out_row = dw ? apart(ll_round_up(p.t.out.c, MR)) : 0;
    int64_t filters = p.panels * NR * (dw ? out_row : in_row);
    /* dw: each thread's own are written, and added; else they pass by for each block of tiles. */
    filters *= dw ? ll_max64(v->threads, 2) / 2 : 2;
    p.few = p.t.all * (in_row + out_row) < filters;
    int64_t each = 4 * p.spots * (in_row + out_row + (dw ? 0 : NR));
    p.block = ll_max64(FEWEST, ll_min64(MANY, BLOCK_BYTES / each)) / MR * MR;
    if (p.few) p.block = ll_max64(p.t.all, 1);
    p.in = layout_of(p.t.in.c, dw && p.few ? NR : in_row, p.block);
    if (dw) p.out = layout_of(p.t.out.c, p.few ? FILTERS : out_row, p.block);
    p.blocks = p.few && !dw ? blocks_of(&p) : 1;
    p.part = p.few ? KC : ll_max64(p.t.in.c, 1);
    p.panel_spot = apart(ll_min64(p.part, p.t.in.c) * NR);
    p.sum_spot = apart((!dw     ? ll_round_up(ll_ceil_div(p.block, p.blocks), MR)
                        : p.few ? FILTERS
                                : out_row) *
                       NR);
    p.in_bytes = ll_conv_floats(p.spots * p.in.spot);
    p.out_bytes = ll_conv_floats(p.spots * p.out.spot);
    p.panel_bytes = dw ? 0 : ll_conv_floats(p.spots * p.panel_spot);
    p.sum_bytes = ll_conv_floats(p.spots * p.sum_spot);
    return p;
}

/* What all threads share, and what each has. */
typedef struct shares {
    size_t all, each;
} shares;

static shares shares_of(const plan *p)
{
    size_t tiles = p->in_bytes + p->out_bytes, panels = (size_t)p->panels;
    if (p->v->d == LL_CONV_DW)
        return p->few ? (shares){tiles, p->sum_bytes} : (shares){0, tiles + panels * p->sum_bytes};
    return p->few ? (shares){tiles, p->panel_bytes + p->sum_bytes}
                  : (shares){panels * p->panel_bytes, tiles + p->sum_bytes};
}

/* ---- tiles ---- */

/* Numbers of one pixel that lie in the picture, `some` of them, to or from a patch. */
static void copy_patch(const ll_conv_image *g, ll_corner k, int64_t side, int64_t c, int64_t some,
                       float *image, float *patch, int64_t width, bool back)
{
    for (int64_t i = ll_max64(0, -k.y); i < ll_min64(side, g->h - k.y); i++)
        for (int64_t j = ll_max64(0, -k.x); j < ll_min64(side, g->w - k.x); j++) {
            float *at = image + ((k.n * g->h + k.y + i) * g->w + k.x + j) * g->c + c;
            float *in = patch + (i * side + j) * width;
            memcpy(back ? at : in, back ? in : at, sizeof(float) * (size_t)some);
        }
}

static bool within(const ll_conv_image *g, ll_corner k, int64_t side)
{
    return k.y >= 0 && k.x >= 0 && k.y + side <= g->h && k.x + side <= g->w;
}

/* The pixels of a tile; those outside of the picture are ZEROS zeros. */
static void list_pixels(const ll_conv_image *g, ll_corner k, int64_t side, const float *image,
                        const float **list)
{
    static const float zeros[ZEROS];
    for (int64_t i = 0; i < side; i++)
        for (int64_t j = 0; j < side; j++) {
            int64_t y = k.y + i, x = k.x + j;
            bool in = y >= 0 && y < g->h && x >= 0 && x < g->w;
            *list++ = in ? image + ((k.n * g->h + y) * g->w + x) * g->c : zeros;
        }
}

/* Tiles [from, to) of the picture, transformed, the first at `first`. */
static void take_tiles(const plan *p, const ll_conv_image *g, ll_winograd_listed *f, int64_t side,
                       const void *image, int64_t from, int64_t to, int64_t first, float *out,
                       const layout *l)
{
    const float *list[LL_WINOGRAD_MOST * LL_WINOGRAD_MOST], *x = (const float *)image;
    int64_t whole = g->c / LL_LANES * LL_LANES;
    for (int64_t t = from; t < to; t++) {
        ll_corner k = ll_conv_corner(&p->t, g, t);
        float *tile = out + (t - first) * l->row;
        for (int64_t c = 0, n; c < whole; c += n) {
            if (c % ZEROS == 0) list_pixels(g, k, side, x + c, list);
            n = ll_min64(ll_min64(l->group, whole - c), ZEROS - c % ZEROS);
            f(list, c % ZEROS, tile + place(l, c), p->a * l->spot, l->spot, n / LL_LANES);
        }
        if (whole == g->c) continue;
        float patch[LL_WINOGRAD_MOST * LL_WINOGRAD_MOST * LL_LANES] = {0};
        copy_patch(g, k, side, whole, g->c - whole, (float *)image, patch, LL_LANES, false);
        for (int64_t i = 0; i < side * side; i++) list[i] = patch + i * LL_LANES;
        f(list, 0, tile + place(l, whole), p->a * l->spot, l->spot, 1);
    }
}

/* ---- filters: [spot][channel][width], width NR or, of the last panel, fewer vectors ---- */

static int64_t columns_of(int64_t all, int64_t panel)
{
    return ll_min64(NR, all - panel * NR);
}

static int width_of(int64_t columns)
{
    return (int)ll_round_up(columns, LL_LANES);
}

/* Taps of channels [c, c + n) of the source, for the panel's result channels: [tap][KEEP][NR]. */
static void order_taps(const plan *p, const float *w, int64_t panel, int64_t c, int64_t n,
                       float *to)
{
    const ll_conv_shape *v = p->v;
    int64_t taps = v->r * v->s, cols = columns_of(p->t.out.c, panel), o = panel * NR;
    for (int64_t t = 0; t < taps; t++, to += KEEP * NR) {
        if (v->d == LL_CONV_DX) { /* turned round; result channels lie together */
            for (int64_t k = 0; k < n; k++)
                memcpy(to + k * NR, w + ((c + k) * taps + taps - 1 - t) * v->c + o,
                       sizeof(float) * (size_t)cols);
            continue;
        }
        const float *from = w + (o * taps + t) * v->c + c;
        int64_t j = 0;
        for (; n == KEEP && j + LL_QUAD <= cols; j += LL_QUAD) {
            ll_quad q[LL_QUAD];
            EACH (i, LL_QUAD) q[i] = *(const ll_quad *)(from + (j + i) * taps * v->c);
            ll_quad_transpose(q);
            EACH (i, LL_QUAD) *(ll_quad *)(to + i * NR + j) = q[i];
        }
        for (; j < cols; j++)
            for (int64_t k = 0; k < n; k++) to[k * NR + j] = from[j * taps * v->c + k];
    }
}

/* Of channels [first, end) of the source. dx finds the taps of whole panels where they lie. */
static void make_panel(const plan *p, const void *w, int64_t panel, int64_t first, int64_t end,
                       float *to)
{
    int64_t cols = columns_of(p->t.out.c, panel), taps = p->f->r * p->f->r, row = p->v->c;
    int width = width_of(cols);
    bool lies = p->v->d == LL_CONV_DX && cols == width;
    float some[5 * 5 * KEEP * NR];
    if (cols < width) memset(some, 0, sizeof some);
    for (int64_t c = first; c < end; c += KEEP) {
        int64_t n = ll_min64(KEEP, end - c);
        if (!lies) order_taps(p, (const float *)w, panel, c, n, some);
        for (int64_t k = 0; k < n; k++, to += width)
            if (lies)
                p->f->w((const float *)w + ((c + k + 1) * taps - 1) * row + panel * NR,
                        -p->f->r * row, -row, to, p->a * p->panel_spot, p->panel_spot,
                        width / LL_LANES);
            else
                p->f->w(some + k * NR, p->f->r * KEEP * NR, KEEP * NR, to, p->a * p->panel_spot,
                        p->panel_spot, width / LL_LANES);
    }
}

/* ---- products: sums [spot][tile][NR] ---- */

typedef struct product {
    const float *a, *b;
    int64_t a_row, b_row, k, left; /* rows of a; k; rows of a that are there */
    int64_t ahead; /* from a to what is read next: rows too short to be foreseen by the CPU */
    float *sums;
    bool add;
} product;

LL_INLINE void by_rows(const int nv, const product *t)
{
    ll_sums sums[MR];
    const float *a[MR];
    EACH (i, MR) a[i] = t->a + ll_min64(i, t->left - 1) * t->a_row;
    ll_micro_clear(MR, nv, sums);
    if (t->add) ll_micro_load(MR, nv, sums, t->sums, NR);
    const float *b = t->b;
    for (int64_t k = 0, n; k < t->k; k += n, b += n * nv * LL_LANES) {
        n = ll_min64(LINE, t->k - k);
        EACH (i, MR) __builtin_prefetch(a[i] + t->ahead);
        ll_micro_rows(MR, nv, 1, sums, a, b, nv * LL_LANES, n);
        EACH (i, MR) a[i] += n;
    }
    ll_micro_store(MR, nv, sums, t->sums, NR);
}

#define PRODUCT(name, by, nv)                                                                      \
    static __attribute__((noinline)) void name(const product *t)                                   \
    {                                                                                              \
        by(nv, t);                                                                                 \
    }
#if defined(__AVX512F__)
#define PRODUCTS(by)                                                                               \
    PRODUCT(by##_1, by, 1)                                                                         \
    PRODUCT(by##_2, by, 2)                                                                         \
    PRODUCT(by##_3, by, 3)                                                                         \
    PRODUCT(by##_4, by, 4)                                                                         \
    static void (*const by##_of[])(const product *) = {NULL, by##_1, by##_2, by##_3, by##_4};
#else
#define PRODUCTS(by)                                                                               \
    PRODUCT(by##_1, by, 1)                                                                         \
    PRODUCT(by##_2, by, 2)                                                                         \
    static void (*const by##_of[])(const product *) = {NULL, by##_1, by##_2};
#endif
PRODUCTS(by_rows)

/* All tiles of a block against a panel's channels [first, end). */
static void multiply(const plan *p, const float *in, int64_t tiles, const float *panel,
                     int64_t first, int64_t end, int width, float *sums)
{
    for (int64_t s = 0; s < p->spots; s++) {
        int64_t k = first;
        do { /* once even without channels: zeros */
            product t = {.a_row = p->in.row, .k = ll_min64(KC, end - k), .add = k > 0};
            t.b = panel + s * p->panel_spot + (k - first) * width;
            for (int64_t i = 0; i < tiles; i += MR) {
                t.a = in + s * p->in.spot + i * p->in.row + k;
                t.left = tiles - i;
                t.ahead = i + MR < tiles ? MR * t.a_row : p->in.spot - i * t.a_row;
                t.sums = sums + s * p->sum_spot + i * NR;
                by_rows_of[width / LL_LANES](&t);
            }
            k += KC;
        } while (k < end);
    }
}

/* The results of tiles [from, to), whose products begin at `sums`. */
static void put_tiles(const plan *p, const float *sums, int64_t from, int64_t to, int64_t panel,
                      float *y)
{
    const ll_conv_image *g = &p->t.out;
    int64_t cols = columns_of(g->c, panel), m = p->f->m;
    int width = width_of(cols);
    for (int64_t t = from; t < to; t++, sums += NR) {
        ll_corner k = ll_conv_corner(&p->t, g, t);
        if (cols == width && within(g, k, m)) {
            p->f->y(sums, p->a * p->sum_spot, p->sum_spot,
                    y + ((k.n * g->h + k.y) * g->w + k.x) * g->c + panel * NR, g->w * g->c, g->c,
                    width / LL_LANES);
            continue;
        }
        float patch[LL_WINOGRAD_MOST * LL_WINOGRAD_MOST * NR];
        p->f->y(sums, p->a * p->sum_spot, p->sum_spot, patch, m * NR, NR, width / LL_LANES);
        copy_patch(g, k, m, panel * NR, cols, y, patch, NR, true);
    }
}

static void take_in(const plan *p, const void *x, int64_t from, int64_t to, int64_t first,
                    float *out)
{
    take_tiles(p, &p->t.in, p->f->x, p->a, x, from, to, first, out, &p->in);
}

static int64_t share(int64_t n, int me, int team)
{
    return n * me / team;
}

static void run_many(const plan *p, const ll_kcall *c, int me, int team, char *all, char *mine)
{
    float *in = (float *)mine, *sums = (float *)(mine + p->in_bytes), *y = (float *)c->out[0].data;
    int64_t channels = p->t.in.c, parts = ll_ceil_div(channels, LINE);
    for (int64_t i = me; i < p->panels * parts; i += team) {
        int64_t q = i / parts, first = i % parts * LINE;
        make_panel(p, c->in[1].data, q, first, ll_min64(first + LINE, channels),
                   (float *)(all + (size_t)q * p->panel_bytes) +
                       first * width_of(columns_of(p->t.out.c, q)));
    }
#pragma omp barrier
    int64_t end = share(p->t.all, me + 1, team);
    for (int64_t t = share(p->t.all, me, team), to; t < end; t = to) {
        to = ll_min64(t + p->block, end);
        take_in(p, c->in[0].data, t, to, t, in);
        for (int64_t q = 0; q < p->panels; q++) {
            const float *panel = (const float *)(all + (size_t)q * p->panel_bytes);
            multiply(p, in, to - t, panel, 0, channels, width_of(columns_of(p->t.out.c, q)), sums);
            put_tiles(p, sums, t, to, q, y);
        }
    }
}

static void run_few(const plan *p, const ll_kcall *c, int me, int team, char *all, char *mine)
{
    float *panel = (float *)mine, *sums = (float *)(mine + p->panel_bytes);
    float *in = (float *)all, *y = (float *)c->out[0].data;
    int64_t channels = p->t.in.c;
    take_in(p, c->in[0].data, share(p->t.all, me, team), share(p->t.all, me + 1, team), 0, in);
#pragma omp barrier
    for (int64_t i = me; i < p->panels * p->blocks; i += team) {
        int64_t q = i % p->panels, b = i / p->panels, k = 0, end;
        int64_t from = p->t.all * b / p->blocks, to = p->t.all * (b + 1) / p->blocks;
        int width = width_of(columns_of(p->t.out.c, q));
        do {
            end = ll_min64(k + p->part, channels);
            make_panel(p, c->in[1].data, q, k, end, panel);
            multiply(p, in + from * p->in.row, to - from, panel, k, end, width, sums);
        } while ((k = end) < channels);
        put_tiles(p, sums, from, to, q, y);
    }
}

/* ---- conv2d_dw: sums [spot][filter][NR channels] ---- */

LL_INLINE void by_columns(const int nv, const product *t)
{
    ll_sums sums[MR];
    ll_micro_clear(MR, nv, sums);
    if (t->add) ll_micro_load(MR, nv, sums, t->sums, NR);
    ll_micro_columns(MR, nv, 1, sums, t->a, t->a_row, t->b, t->b_row, t->k);
    ll_micro_store(MR, nv, sums, t->sums, NR);
}

PRODUCTS(by_columns)

/* A block of tiles of dy and x, for one panel of channels and filters [first, end) of a group:
 * sums, or more of them. */
static void add_products(const plan *p, const float *dy, const float *x, int64_t tiles, int64_t q,
                         int64_t first, int64_t end, bool add, float *sums)
{
    product t = {.a_row = p->out.row, .b_row = p->in.row};
    int nv = width_of(columns_of(p->t.in.c, q)) / LL_LANES;
    int64_t some = p->few ? KC / 2 : KC; /* of both in the first cache */
    dy += place(&p->out, first), x += place(&p->in, q * NR);
    for (int64_t s = 0; s < p->spots; s++) {
        int64_t k = 0;
        do {
            t.k = ll_min64(some, tiles - k), t.add = add || k > 0;
            t.b = x + s * p->in.spot + k * t.b_row;
            for (int64_t f = 0; f < end - first; f += MR) {
                t.a = dy + s * p->out.spot + k * t.a_row + f;
                t.sums = sums + s * p->sum_spot + f * NR;
                by_columns_of[nv](&t);
            }
            k += some;
        } while (k < tiles);
    }
}

static void put_panel(const plan *p, const float *sums, int64_t q, int64_t first, int64_t end,
                      float *dw)
{
    const ll_conv_shape *v = p->v;
    int64_t cols = columns_of(v->c, q), r = p->f->r;
    int width = width_of(cols);
    for (int64_t f = first; f < end; f++, sums += NR) {
        float patch[LL_WINOGRAD_MOST * LL_WINOGRAD_MOST * NR], *to = dw + f * r * r * v->c + q * NR;
        bool whole = cols == width;
        p->f->dw(sums, p->a * p->sum_spot, p->sum_spot, whole ? to : patch, r * (whole ? v->c : NR),
                 whole ? v->c : NR, width / LL_LANES);
        if (whole) continue;
        for (int64_t t = 0; t < r * r; t++)
            memcpy(to + t * v->c, patch + t * NR, sizeof(float) * (size_t)cols);
    }
}

static void take_out(const plan *p, const void *dy, int64_t from, int64_t to, int64_t first,
                     float *out)
{
    take_tiles(p, &p->t.out, p->f->dy, p->f->m, dy, from, to, first, out, &p->out);
}

/* Part `part` of the tiles, for all panels. */
static void add_part(const plan *p, const ll_kcall *c, int64_t part, int64_t parts, char *mine)
{
    float *x = (float *)mine, *dy = (float *)(mine + p->in_bytes);
    char *sums = mine + p->in_bytes + p->out_bytes;
    int64_t first = p->t.all * part / parts, end = p->t.all * (part + 1) / parts;
    if (first == end) memset(sums, 0, (size_t)p->panels * p->sum_bytes);
    for (int64_t t = first, to; t < end; t = to) {
        to = ll_min64(t + p->block, end);
        take_in(p, c->in[1].data, t, to, t, x);
        take_out(p, c->in[0].data, t, to, t, dy);
        for (int64_t q = 0; q < p->panels; q++)
            add_products(p, dy, x, to - t, q, 0, p->t.out.c, t > first,
                         (float *)(sums + (size_t)q * p->sum_bytes));
    }
}

/* Pieces of dw: FILTERS of them, or what is left, of one panel; panels one after another. */
static int64_t pieces_of(const plan *p)
{
    return p->panels * ll_ceil_div(p->t.out.c, FILTERS);
}

static int64_t piece_of(const plan *p, int64_t i, int64_t *first, int64_t *end)
{
    *first = i / p->panels * FILTERS;
    *end = ll_min64(*first + FILTERS, p->t.out.c);
    return i % p->panels;
}

static void dw_many(const plan *p, const ll_kcall *c, int me, int team, char *each, size_t bytes)
{
    int64_t parts = p->v->threads, pieces = pieces_of(p), first, end;
    size_t skip = p->in_bytes + p->out_bytes;
    for (int64_t i = me; i < parts; i += team) add_part(p, c, i, parts, each + (size_t)i * bytes);
#pragma omp barrier
    for (int64_t n = share(pieces, me, team); n < share(pieces, me + 1, team); n++) {
        int64_t q = piece_of(p, n, &first, &end);
        float *sums = (float *)(each + skip + (size_t)q * p->sum_bytes);
        for (int64_t i = 1; i < parts; i++)
            for (int64_t s = 0; s < p->spots; s++) {
                const float *more = (const float *)((const char *)sums + (size_t)i * bytes);
                for (int64_t e = s * p->sum_spot + first * NR; e < s * p->sum_spot + end * NR; e++)
                    sums[e] += more[e];
            }
        put_panel(p, sums + first * NR, q, first, end, (float *)c->out[0].data);
    }
}

static void dw_few(const plan *p, const ll_kcall *c, int me, int team, char *all, char *mine)
{
    float *x = (float *)all, *dy = (float *)(all + p->in_bytes), *sums = (float *)mine;
    int64_t from = share(p->t.all, me, team), to = share(p->t.all, me + 1, team);
    int64_t pieces = pieces_of(p), first, end;
    take_in(p, c->in[1].data, from, to, 0, x);
    take_out(p, c->in[0].data, from, to, 0, dy);
#pragma omp barrier
    for (int64_t n = share(pieces, me, team); n < share(pieces, me + 1, team); n++) {
        int64_t q = piece_of(p, n, &first, &end);
        add_products(p, dy, x, p->t.all, q, first, end, false, sums);
        put_panel(p, sums, q, first, end, (float *)c->out[0].data);
    }
}

/* ---- entry ---- */

bool ll_conv_winograd_fits(const ll_conv_shape *v, int m)
{
    return ll_winograd_for(v, m) && ll_conv_tiled(v);
}

size_t ll_conv_winograd_room(const ll_conv_shape *v)
{
    plan p = plan_of(v);
    shares s = shares_of(&p);
    return s.all + s.each * (size_t)v->threads;
}

/* Of products; transforms are additions, for the most part. */
double ll_conv_winograd_flops(const ll_conv_shape *v)
{
    plan p = plan_of(v);
    return 2.0 * (double)(p.spots * p.t.all) * (double)(v->c * v->f);
}

void ll_conv_winograd(const ll_conv_shape *v, const ll_kcall *c)
{
    plan p = plan_of(v);
    shares s = shares_of(&p);
    char *all = (char *)c->scratch, *each = all + s.all;
#pragma omp parallel num_threads(v->threads)
    {
        int me = omp_get_thread_num(), team = omp_get_num_threads();
        char *mine = each + s.each * (size_t)me;
        if (v->d == LL_CONV_DW && p.few)
            dw_few(&p, c, me, team, all, mine);
        else if (v->d == LL_CONV_DW)
            dw_many(&p, c, me, team, each, s.each);
        else if (p.few)
            run_few(&p, c, me, team, all, mine);
        else
            run_many(&p, c, me, team, all, mine);
    }
}
