/* conv2d_fft.c: convolutions of large filters, stride 1, by Fourier transforms of tiles of
 * T x T pixels (v->m: 16 or 32), which give (T - r + 1) x (T - s + 1) outputs each:
 *
 *     conv2d, conv2d_dx   Y = X conj(W)       dx: of dy, with the filter turned round
 *     conv2d_dw           dW = sum over tiles of conj(dY) X
 *
 * number by number, summed over channels: in each of the frequencies ("spots") a matrix product of
 * complex numbers, which ll_gemm makes as one of real numbers,
 *
 *     | Xre  Xim |   | Wre |   | Yre |                     | Xre  Xim |
 *     | Xim -Xre | x | Wim | = | Yim |     | dYre dYim | x | Xim -Xre | = | dWre dWim |
 *
 * so that X is held as two rows of twice the channels. Of real pixels frequency -k is the
 * conjugate of k: half of them are held. Vectors lie along channels, and two of them are
 * transformed at once, one as the imaginary part of the other.
 *
 * Tiles are laid in the whole image (ll_conv_attr.at), as Winograd's are. Threads share out tiles,
 * then spots, then tiles; nothing depends on how many there are. Rounding: see
 * tests/kern/test_conv2d.c. */
#include "kern/cpu/conv2d_int.h"

#include "kern/cpu/gemm.h"

#include <omp.h>

enum {
    MOST = 32,                   /* T, at most */
    SPOTS = MOST * MOST / 2 + 2, /* frequencies that are held, of the largest */
    BLOCK_BYTES = 2 << 20,       /* of transformed tiles, of all threads */
};

/* Spectra of items (tiles, filters): numbers from item to item, from spot to spot, to the
 * imaginary part, and (X) to the second row. Of W items are channels of what is read. */
typedef struct layout {
    int64_t item, spot, im, turned;
} layout;

typedef struct plan {
    const ll_conv_shape *v;
    int t;
    ll_tiles tile;
    ll_conv_image w;      /* the filters */
    layout lin, lout, lw; /* dw: lw is of its results, lout of dy */
    int64_t block;        /* tiles of one */
    size_t in_bytes, out_bytes, w_bytes, gemm_bytes, tile_bytes; /* the last two: a thread's */
    int64_t spots;
    struct { /* frequency and its opposite: where the transform leaves and takes them */
        int16_t to[2], from[2];
    } at[SPOTS];
    int rev[MOST];
} plan;

/* ---- transforms ---- */

/* Of a tile's rows, in vectors: columns must not meet in the cache. */
#define PITCH(n) ((n) + 1)

/* cos(j pi / 16) */
static const float cosines[9] = {1,          .98078528f, .92387953f, .83146961f, .70710678f,
                                 .55557023f, .38268343f, .19509032f, 0};

/* n numbers, `step` apart, in reversed order of bits; their transform in order. */
LL_INLINE void transform(const int n, ll_vec *re, ll_vec *im, const int step)
{
    for (int i = 0; i < n; i += 2) {
        ll_vec *r = re + i * step, *m = im + i * step, a = r[step], b = m[step];
        r[step] = *r - a, m[step] = *m - b;
        *r += a, *m += b;
    }
    for (int half = 2; half < n; half *= 2)
        for (int j = 0; j < half; j++) {
            int at = 16 / half * j;
            float c = at <= 8 ? cosines[at] : -cosines[16 - at],
                  s = cosines[at <= 8 ? 8 - at : at - 8];
            for (int i = j; i < n; i += 2 * half) {
                ll_vec *r = re + i * step, *m = im + i * step;
                ll_vec x = r[half * step], y = m[half * step];
                ll_vec a = x * c + y * s, b = y * c - x * s;
                r[half * step] = *r - a, m[half * step] = *m - b;
                *r += a, *m += b;
            }
        }
}

/* All columns, of rows `rows` of them: before the columns (their places by rev), or behind. */
#define TRANSFORM(n)                                                                               \
    static __attribute__((noinline)) void rows_##n(ll_vec *z, const int *rev, int64_t rows)        \
    {                                                                                              \
        for (int64_t i = 0; i < rows; i++) {                                                       \
            int64_t at = (rev ? rev[i] : i) * PITCH(n);                                            \
            transform(n, z + at, z + n * PITCH(n) + at, 1);                                        \
        }                                                                                          \
    }                                                                                              \
    static __attribute__((noinline)) void columns_##n(ll_vec *z)                                   \
    {                                                                                              \
        for (int i = 0; i < n; i++) transform(n, z + i, z + n * PITCH(n) + i, PITCH(n));           \
    }
TRANSFORM(16)
TRANSFORM(32)

static void rows(const plan *p, ll_vec *z, const int *rev, int64_t n)
{
    (p->t == 16 ? rows_16 : rows_32)(z, rev, n);
}

static void columns(const plan *p, ll_vec *z)
{
    (p->t == 16 ? columns_16 : columns_32)(z);
}

/* ---- sizes ---- */

static void set_pictures(plan *p)
{
    const ll_conv_shape *v = p->v;
    int64_t one = v->r * v->s * v->c;
    p->tile = ll_conv_tiles(v, p->t - v->r + 1, p->t - v->s + 1);
    p->w = (ll_conv_image){v->r, v->s, v->c, one, v->c, 1, {0}};
    if (v->d == LL_CONV) p->w.c = v->f, p->w.image = 1, p->w.lane = one; /* of each channel */
}

static void set_spots(plan *p)
{
    int t = p->t, row = PITCH(t);
    for (int i = 0; i < t; i++)
        for (int bit = 1; bit < t; bit *= 2) p->rev[i] = 2 * p->rev[i] + !!(i & bit);
    for (int i = 0; i < t; i++)
        for (int j = 0; j < t; j++) {
            int y = (t - i) % t, x = (t - j) % t;
            if (y * t + x < i * t + j) continue;
            int64_t s = p->spots++;
            p->at[s].to[0] = (int16_t)(i * row + j);
            p->at[s].to[1] = (int16_t)(y * row + x);
            p->at[s].from[0] = (int16_t)(p->rev[i] * row + p->rev[j]);
            p->at[s].from[1] = (int16_t)(p->rev[y] * row + p->rev[x]);
        }
}

/* The product of one spot, of so many tiles. */
static ll_gemm_call product_of(const plan *p, int64_t tiles)
{
    ll_gemm_call g = {.m = 2 * tiles, .n = p->lout.spot, .k = p->lin.spot, .a_cs = 1, .b_cs = 1};
    g.a_rs = p->lin.turned, g.b_rs = p->lw.item, g.c_rs = p->lout.im;
    if (p->v->d != LL_CONV_DW) return g;
    g.m = p->v->f, g.n = p->lw.spot, g.k = 2 * tiles;
    g.a_rs = 1, g.a_cs = p->lout.im, g.b_rs = p->lin.turned, g.c_rs = p->lw.item;
    return g;
}

static plan plan_of(const ll_conv_shape *v)
{
    plan p = {.v = v, .t = v->m};
    set_pictures(&p);
    set_spots(&p);
    int64_t in = ll_round_up(p.tile.in.c, LL_LANES), out = ll_round_up(p.tile.out.c, LL_LANES);
    bool dw = v->d == LL_CONV_DW;
    int64_t c = ll_round_up(p.w.c, LL_LANES), f = dw ? v->f : in;
    p.lin = (layout){4 * in * p.spots, 2 * in, in, 2 * in * p.spots};
    p.lout = (layout){2 * out * p.spots, out, out * p.spots, 0};
    p.lw = (layout){2 * c * p.spots, 2 * c, c, 0};
    if (!dw) p.lw = (layout){c * p.spots, c, f * c * p.spots, 0};
    int64_t bytes = ll_max64(BLOCK_BYTES, 4 * 2 * f * c * p.spots);
    p.block = ll_max64(1, bytes / (4 * (p.lin.item + p.lout.item)));
    p.block = ll_min64(p.block, p.tile.all);
    p.in_bytes = ll_conv_floats(p.block * p.lin.item);
    p.out_bytes = ll_conv_floats(p.block * p.lout.item);
    p.w_bytes = ll_conv_floats(2 * f * c * p.spots);
    p.tile_bytes = ll_conv_floats(2 * LL_LANES * p.t * PITCH(p.t));
    ll_gemm_call g = product_of(&p, p.block);
    p.gemm_bytes = ll_gemm_serial_scratch(&g);
    return p;
}

/* ---- pixels and spots ---- */

static ll_vec load(const float *x, int64_t n, int64_t lane)
{
    if (lane == 1) return ll_vec_some(x, n, 0);
    float some[LL_LANES] = {0};
    for (int64_t i = 0; i < ll_min64(n, LL_LANES); i++) some[i] = x[i * lane];
    return ll_vec_at(some);
}

/* The part of a tile of h x w pixels that lies in the picture, transformed, two vectors of
 * channels from c on. turned: the last pixel first. */
static void take(const plan *p, const ll_conv_image *g, ll_corner k, int64_t h, int64_t w,
                 bool turned, const float *x, int64_t c, const layout *l, float *to, ll_vec *z)
{
    int64_t row = PITCH(p->t), all = p->t * row, left = g->c - c;
    memset(z, 0, p->tile_bytes);
    for (int64_t i = ll_max64(0, -k.y); i < ll_min64(h, g->h - k.y); i++)
        for (int64_t j = ll_max64(0, -k.x); j < ll_min64(w, g->w - k.x); j++) {
            const float *at =
                x + k.n * g->image + ((k.y + i) * g->w + k.x + j) * g->pixel + c * g->lane;
            int64_t place =
                turned ? p->rev[h - 1 - i] * row + p->rev[w - 1 - j] : p->rev[i] * row + p->rev[j];
            z[place] = load(at, left, g->lane);
            if (left > LL_LANES)
                z[all + place] = load(at + LL_LANES * g->lane, left - LL_LANES, g->lane);
        }
    rows(p, z, p->rev, h);
    columns(p, z);
    to += c;
    for (int64_t s = 0; s < p->spots; s++, to += l->spot) {
        int64_t a = p->at[s].to[0], b = p->at[s].to[1];
        ll_vec re[2] = {z[a] + z[b], z[all + a] + z[all + b]};
        ll_vec im[2] = {z[all + a] - z[all + b], z[b] - z[a]};
        for (int e = 0; e < (left > LL_LANES ? 2 : 1); e++) {
            ll_vec_to(to + e * LL_LANES, re[e]);
            ll_vec_to(to + e * LL_LANES + l->im, im[e]);
            if (!l->turned) continue;
            ll_vec_to(to + e * LL_LANES + l->turned, im[e]);
            ll_vec_to(to + e * LL_LANES + l->turned + l->im, -re[e]);
        }
    }
}

/* The other way: the transform's first h x w pixels, where they lie in the picture. The inverse is
 * the transform with real and imaginary parts exchanged, before and behind. */
static void put(const plan *p, const ll_conv_image *g, ll_corner k, int64_t h, int64_t w,
                const float *from, const layout *l, int64_t c, float *y, ll_vec *z)
{
    int64_t row = PITCH(p->t), all = p->t * row, left = g->c - c;
    const float scale = .25f / (float)(p->t * p->t); /* halves that take() leaves out, of both */
    from += c;
    for (int64_t s = 0; s < p->spots; s++, from += l->spot) {
        int64_t a = p->at[s].from[0], b = p->at[s].from[1];
        ll_vec re = ll_vec_at(from), im = ll_vec_at(from + l->im), re2 = {0}, im2 = {0};
        if (left > LL_LANES) {
            re2 = ll_vec_at(from + LL_LANES);
            im2 = ll_vec_at(from + LL_LANES + l->im);
        }
        z[b] = re2 - im, z[all + b] = re + im2;
        z[a] = re2 + im, z[all + a] = re - im2;
    }
    columns(p, z);
    rows(p, z, NULL, h);
    for (int64_t i = ll_max64(0, -k.y); i < ll_min64(h, g->h - k.y); i++)
        for (int64_t j = ll_max64(0, -k.x); j < ll_min64(w, g->w - k.x); j++) {
            float *at = y + ((k.n * g->h + k.y + i) * g->w + k.x + j) * g->c + c;
            ll_vec_put_some(at, left, z[all + i * row + j] * scale);
            if (left > LL_LANES)
                ll_vec_put_some(at + LL_LANES, left - LL_LANES, z[i * row + j] * scale);
        }
}

/* ---- all of them; threads of a team share them out ---- */

/* Pairs of vectors of c channels. */
static int64_t pairs(int64_t c)
{
    return ll_ceil_div(c, 2 * LL_LANES);
}

/* Those of channels that are not there, of the last vector, are zeros. */
static void take_filters(const plan *p, const float *w, float *to, ll_vec *z)
{
    const ll_conv_shape *v = p->v;
    int64_t n = pairs(p->w.c), items = p->lin.im;
    ll_conv_image none = {.c = p->w.c};
#pragma omp for nowait
    for (int64_t i = 0; i < items * n; i++)
        take(p, i / n < p->tile.in.c ? &p->w : &none, (ll_corner){i / n, 0, 0}, v->r, v->s,
             v->d == LL_CONV_DX, w, i % n * 2 * LL_LANES, &p->lw, to + i / n * p->lw.item, z);
}

static void put_filters(const plan *p, const float *from, float *dw, ll_vec *z)
{
    int64_t n = pairs(p->v->c);
#pragma omp for
    for (int64_t i = 0; i < p->v->f * n; i++)
        put(p, &p->w, (ll_corner){i / n, 0, 0}, p->v->r, p->v->s, from + i / n * p->lw.item, &p->lw,
            i % n * 2 * LL_LANES, dw, z);
}

static void take_tiles(const plan *p, bool in, int64_t from, int64_t to, const float *x, float *out,
                       ll_vec *z)
{
    const ll_conv_image *g = in ? &p->tile.in : &p->tile.out;
    const layout *l = in ? &p->lin : &p->lout;
    int64_t n = pairs(g->c), h = in ? p->t : p->tile.m[0], w = in ? p->t : p->tile.m[1];
#pragma omp for
    for (int64_t i = from * n; i < to * n; i++)
        take(p, g, ll_conv_corner(&p->tile, g, i / n), h, w, false, x, i % n * 2 * LL_LANES, l,
             out + (i / n - from) * l->item, z);
}

static void put_tiles(const plan *p, int64_t from, int64_t to, const float *in, float *y, ll_vec *z)
{
    int64_t n = pairs(p->tile.out.c);
#pragma omp for nowait
    for (int64_t i = from * n; i < to * n; i++)
        put(p, &p->tile.out, ll_conv_corner(&p->tile, &p->tile.out, i / n), p->tile.m[0],
            p->tile.m[1], in + (i / n - from) * p->lout.item, &p->lout, i % n * 2 * LL_LANES, y, z);
}

static void multiply(const plan *p, int64_t tiles, bool more, float *x, float *w, float *y,
                     void *scratch)
{
    bool dw = p->v->d == LL_CONV_DW;
    ll_gemm_call g = product_of(p, tiles);
    g.scratch = scratch;
    g.add = dw && more;
#pragma omp for
    for (int64_t s = 0; s < p->spots; s++) {
        float *in = x + s * p->lin.spot, *f = w + s * p->lw.spot, *out = y + s * p->lout.spot;
        g.a = dw ? out : in;
        g.b = dw ? in : f;
        g.c = dw ? f : out;
        ll_gemm_serial(&g);
    }
}

/* ---- entry ---- */

bool ll_conv_fft_fits(const ll_conv_shape *v, int t)
{
    int64_t most = t / 2 + 1;
    return ll_conv_tiled(v) && v->r <= most && v->s <= most && v->r * v->s >= 16;
}

size_t ll_conv_fft_room(const ll_conv_shape *v)
{
    plan p = plan_of(v);
    return p.in_bytes + p.out_bytes + p.w_bytes +
           (p.tile_bytes + p.gemm_bytes) * (size_t)v->threads;
}

/* Of products. */
double ll_conv_fft_flops(const ll_conv_shape *v)
{
    plan p = plan_of(v);
    return 8.0 * (double)(p.spots * p.tile.all) * (double)(v->c * v->f);
}

void ll_conv_fft(const ll_conv_shape *v, const ll_kcall *c)
{
    plan p = plan_of(v);
    bool dw = v->d == LL_CONV_DW;
    char *base = (char *)c->scratch, *each = base + p.in_bytes + p.out_bytes + p.w_bytes;
    float *x = (float *)base, *y = (float *)(base + p.in_bytes);
    float *w = (float *)(base + p.in_bytes + p.out_bytes), *result = (float *)c->out[0].data;
#pragma omp parallel num_threads(v->threads)
    {
        char *mine = each + (p.tile_bytes + p.gemm_bytes) * (size_t)omp_get_thread_num();
        ll_vec *z = (ll_vec *)mine;
        if (!dw) take_filters(&p, (const float *)c->in[1].data, w, z);
        int64_t from = 0, to;
        do { /* dw: once even without tiles: zeros */
            to = ll_min64(from + p.block, p.tile.all);
            take_tiles(&p, true, from, to, (const float *)c->in[dw].data, x, z);
            if (dw) take_tiles(&p, false, from, to, (const float *)c->in[0].data, y, z);
            multiply(&p, to - from, from > 0, x, w, y, mine + p.tile_bytes);
            if (!dw) put_tiles(&p, from, to, y, result, z);
            from = to;
        } while (from < p.tile.all);
        if (dw) put_filters(&p, w, result, z);
    }
}
