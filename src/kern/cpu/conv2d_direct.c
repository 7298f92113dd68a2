/* conv2d_direct.c: conv2d and conv2d_dw of images of very few channels, such as the first layer of
 * LeNet-5 (1 channel, 6 filters of 5 x 5), where matrix kernels have too little to multiply; and
 * conv2d_dx, whose result has few (LeNet-5's second layer: 6).
 *
 * Vectors lie along a row of the image. An image is copied as planes, one for each channel, rows
 * padded with zeros at both sides; rows above and below the image are left out of the sums.
 *
 *     conv2d     a tile of up to 8 filters x 4 vectors of outputs is summed over all taps: each
 *                tap is the same row read from another column. Stored pixel by pixel.
 *     conv2d_dx  of stride 1 is conv2d of dy by the filters turned round: dy's filters are its
 *                channels, and the image's channels its filters.
 *     conv2d_dw  3 filters x 5 taps of one filter row are held as vectors of partial sums while
 *                all outputs of the image pass by, dy copied as planes too; lanes are added up at
 *                the very end.
 *
 * This text is for f32; conv2d_direct_f64.c compiles it for f64 (real.h). */
#include "kern/cpu/conv2d_int.h"

#if defined(__AVX512VL__)
#include <immintrin.h>
#endif

#if !defined(__AVX__) && !defined(LL_REAL_F64)
#define FOUR_LANES
#endif

enum {
#if defined(__AVX__) && !defined(__AVX512F__)
    SUMS = 12, /* vectors of sums that leave registers for operands */
#else
    SUMS = 24,
#endif
    MAX_MF = 8,
    MAX_NV = 4,
    DW_F = 3,
    DW_S = 5,
};

/* ---- planes ---- */

typedef struct sizes {
    int64_t width;   /* of a plane of x */
    int64_t columns; /* of a plane of dy: ow rounded up to vectors */
    int64_t taps;    /* r * c * s */
    int64_t s_tiles, f_tiles;
    size_t filter_bytes, place_bytes, x_bytes, dy_bytes, sum_bytes; /* the last three: a thread's */
} sizes;

static sizes sizes_of(const ll_conv_shape *v)
{
    sizes z = {.taps = v->r * v->c * v->s,
               .columns = ll_ceil_div(v->ow, LL_LANES) * LL_LANES,
               .s_tiles = ll_ceil_div(v->s, DW_S),
               .f_tiles = ll_ceil_div(v->f, DW_F)};
    z.width = z.columns + (ll_max64(v->s, z.s_tiles * DW_S) - 1) * v->a.dilation[1];
    /* what is loaded beyond the last tap may be a row further down */
    z.x_bytes = ll_align64(sizeof(ll_real) * (size_t)((v->c * v->h + v->a.dilation[0]) * z.width));
    z.dy_bytes = ll_align64(sizeof(ll_real) * (size_t)(z.f_tiles * DW_F * v->oh * z.columns));
    z.filter_bytes = ll_align64(sizeof(ll_real) * (size_t)((z.taps + 1) * MAX_MF) *
                                (size_t)ll_ceil_div(v->f, 4));
    z.place_bytes = ll_align64(sizeof(int64_t) * (size_t)(z.taps + 1));
    z.sum_bytes = ll_align64(sizeof(ll_vec) * DW_F * DW_S * (size_t)(z.f_tiles * z.s_tiles) *
                             (size_t)(v->c * v->r));
    return z;
}

/* Image rows [i0, i1) of [h,w,c] into planes [c][h][width], column 0 being column -pad; the columns
 * beside the image are not written: they stay zero from image to image. */
static void copy_image(const ll_conv_shape *v, const sizes *z, const ll_real *x, int64_t i0,
                       int64_t i1, ll_real *planes)
{
    int64_t pad = v->a.pad[2], j0 = ll_min64(ll_max64(0, -pad), v->w),
            before = ll_min64(ll_max64(0, pad), z->width);
    int64_t n = ll_max64(0, ll_min64(v->w - j0, z->width - before));
    for (int64_t c = 0; c < v->c; c++)
        for (int64_t i = i0; i < i1; i++) {
            const ll_real *from = x + (i * v->w + j0) * v->c + c;
            ll_real *to = planes + (c * v->h + i) * z->width + before;
            if (v->c == 1)
                memcpy(to, from, sizeof(ll_real) * (size_t)n);
            else
                for (int64_t j = 0; j < n; j++) to[j] = from[j * v->c];
        }
}

/* ---- conv2d ---- */

/* What one tile reads. All taps are one flat loop over a list of places. The list and the filters
 * have one entry more than there are taps, so that the next tap can be loaded while this one is
 * multiplied. */
typedef struct taps {
    const ll_real *planes, *w; /* w [tap][MAX_MF] */
    const int64_t *place;      /* of each tap, relative to at */
    int64_t at, count;
    ll_real start;
} taps;

LL_INLINE void sum_taps(const int mf, const int nv, const taps *t, ll_sums *sums)
{
    int64_t k = 0;
    ll_micro_begin(mf, nv, sums, t->start);
#if !defined(__aarch64__)
    if (mf * nv <= 8) { /* so few sums wait for themselves: odd taps have others */
        const ll_real *x = t->planes + t->at;
        ll_sums odd[MAX_MF];
        ll_micro_begin(mf, nv, odd, t->start);
        for (; k + 2 <= t->count; k += 2) {
            ll_micro_column(mf, nv, sums, t->w + k * MAX_MF, x + t->place[k]);
            ll_micro_column(mf, nv, odd, t->w + (k + 1) * MAX_MF, x + t->place[k + 1]);
        }
        EACH (i, mf) {
            EACH (j, nv) sums[i][j] += ll_micro_end(odd[i][j], t->start);
        }
    }
#endif
    ll_micro_listed(mf, nv, sums, t->w + k * MAX_MF, MAX_MF, t->planes + t->at, t->place + k,
                    t->count - k);
    EACH (i, mf)
        EACH (j, nv) sums[i][j] = ll_micro_end(sums[i][j], t->start);
}

#ifdef FOUR_LANES
/* Six filters of four pixels, next to each other in memory. */
LL_INLINE void put_six(const ll_vec a[6], ll_real *y)
{
    LL_UNROLL for (int k = 0; k < 2; k++) /* two pixels each */
    {
        ll_vec p[3];
        LL_UNROLL for (int i = 0; i < 3; i++) p[i] =
            k ? __builtin_shufflevector(a[2 * i], a[2 * i + 1], 2, 6, 3, 7)
              : __builtin_shufflevector(a[2 * i], a[2 * i + 1], 0, 4, 1, 5);
        ll_vec_to(y + k * 12, __builtin_shufflevector(p[0], p[1], 0, 1, 4, 5));
        ll_vec_to(y + k * 12 + 4, __builtin_shufflevector(p[2], p[0], 0, 1, 6, 7));
        ll_vec_to(y + k * 12 + 8, __builtin_shufflevector(p[1], p[2], 2, 3, 6, 7));
    }
}

/* All of mf filters and four pixels. */
LL_INLINE void put_four(const int mf, const ll_vec a[MAX_MF], int64_t pitch, ll_real *y)
{
    if (mf == 6 && pitch == 6) {
        put_six(a, y);
        return;
    }
    LL_UNROLL for (int i = 0; i < mf; i += 4)
    {
        ll_vec b[4];
        LL_UNROLL for (int k = 0; k < 4; k++) b[k] = a[i + k < mf ? i + k : i];
        ll_quad_transpose(b);
        LL_UNROLL for (int k = 0; k < 4; k++)
            memcpy(y + k * pitch + i, &b[k], sizeof(ll_real) * (mf - i < 4 ? mf - i : 4));
    }
}
#endif

#if defined(__AVX512VL__) && !defined(LL_REAL_F64)
#define EIGHT_FILTERS
/* Eight filters of 16 pixels, a vector each, become vectors of two pixels, k and k + 8, of eight
 * filters each; or the other way round. */
LL_INLINE void turn(ll_vec a[8])
{
    ll_vec b[8], c[8];
    LL_UNROLL for (int i = 0; i < 8; i += 2)
    {
        b[i] = __builtin_shufflevector(a[i], a[i + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12,
                                       28, 13, 29);
        b[i + 1] = __builtin_shufflevector(a[i], a[i + 1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11,
                                           27, 14, 30, 15, 31);
    }
    LL_UNROLL for (int i = 0; i < 8; i += 2)
    {
        const int k = i / 4 * 4 + i % 4 / 2; /* 0, 1, 4, 5 */
        c[i] = __builtin_shufflevector(b[k], b[k + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12,
                                       13, 28, 29);
        c[i + 1] = __builtin_shufflevector(b[k], b[k + 2], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26,
                                           27, 14, 15, 30, 31);
    }
    LL_UNROLL for (int i = 0; i < 4; i++)
    {
        a[i] = __builtin_shufflevector(c[i], c[i + 4], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24,
                                       25, 26, 27);
        a[i + 4] = __builtin_shufflevector(c[i], c[i + 4], 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14,
                                           15, 28, 29, 30, 31);
    }
}

/* n pixels, `pitch` apart, of n_f filters. */
LL_INLINE void put_eight(ll_vec a[8], int64_t n_f, int64_t n, int64_t pitch, ll_real *y)
{
    const __mmask8 some = (__mmask8)((1u << n_f) - 1);
    turn(a);
    LL_UNROLL for (int k = 0; k < 8; k++)
    {
        __m512 both = (__m512)a[k];
        if (k < n) _mm256_mask_storeu_ps(y + k * pitch, some, _mm512_castps512_ps256(both));
        if (k + 8 < n)
            _mm256_mask_storeu_ps(y + (k + 8) * pitch, some, _mm512_extractf32x8_ps(both, 1));
    }
}

/* The reverse; pixels and filters that are not there are zeros. */
LL_INLINE void take_eight(const ll_real *dy, int64_t n_f, int64_t n, int64_t pitch, ll_vec a[8])
{
    const unsigned all = (1u << n_f) - 1;
    LL_UNROLL for (int k = 0; k < 8; k++)
    {
        __m256 low = _mm256_maskz_loadu_ps((__mmask8)(k < n ? all : 0), dy + k * pitch);
        __m256 high = _mm256_maskz_loadu_ps((__mmask8)(k + 8 < n ? all : 0), dy + (k + 8) * pitch);
        a[k] = (ll_vec)_mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
    }
    turn(a);
}
#endif

/* Stores mf x nv vectors as pixels of `pitch` filters; n_f filters and n pixels of them exist. */
LL_INLINE void put(const int mf, const int nv, ll_sums *sums, int64_t n_f, int64_t n, int64_t pitch,
                   ll_real *y)
{
#ifdef FOUR_LANES
    if (n_f == mf && n >= nv * LL_LANES) {
        LL_UNROLL for (int j = 0; j < nv; j++)
        {
            ll_vec a[MAX_MF];
            LL_UNROLL for (int i = 0; i < mf; i++) a[i] = sums[i][j];
            put_four(mf, a, pitch, y + j * LL_LANES * pitch);
        }
        return;
    }
#endif
#ifdef EIGHT_FILTERS
    LL_UNROLL for (int j = 0; j < nv; j++)
    {
        ll_vec a[8];
        LL_UNROLL for (int i = 0; i < 8; i++) a[i] = sums[i < mf ? i : 0][j];
        put_eight(a, n_f, n - j * LL_LANES, pitch, y + j * LL_LANES * pitch);
    }
#else
    ll_real flat[MAX_MF][MAX_NV * LL_LANES];
    LL_UNROLL for (int i = 0; i < mf; i++) LL_UNROLL for (int j = 0; j < nv; j++)
        ll_vec_to(&flat[i][j * LL_LANES], sums[i][j]);
    for (int64_t j = 0; j < ll_min64(n, nv * LL_LANES); j++)
        for (int64_t i = 0; i < n_f; i++) y[j * pitch + i] = flat[i][j];
#endif
}

LL_INLINE void tile(const int mf, const int nv, const taps *t, int64_t n_f, int64_t n,
                    int64_t pitch, ll_real *y)
{
    ll_sums sums[MAX_MF];
    sum_taps(mf, nv, t, sums);
    put(mf, nv, sums, n_f, n, pitch, y);
}

/* n_f <= mf filters of a whole row. */
LL_INLINE void run_tiles(const int mf, taps t, int64_t n_f, int64_t ow, int64_t pitch, ll_real *y)
{
    const int nv = SUMS / mf < MAX_NV ? SUMS / mf : MAX_NV;
    int64_t left = ow;
    for (; left > (nv - 1) * LL_LANES; left -= nv * LL_LANES) {
        tile(mf, nv, &t, n_f, left, pitch, y);
        t.at += nv * LL_LANES;
        y += nv * LL_LANES * pitch;
    }
    if (left <= 0) return;
    if (nv > 3 && left > 2 * LL_LANES)
        tile(mf, 3, &t, n_f, left, pitch, y);
    else if (nv > 2 && left > LL_LANES)
        tile(mf, 2, &t, n_f, left, pitch, y);
    else
        tile(mf, 1, &t, n_f, left, pitch, y);
}

static __attribute__((noinline)) void run_tiles_of(int mf, const taps *t, int64_t n_f, int64_t ow,
                                                   int64_t pitch, ll_real *y)
{
    if (mf == 4)
        run_tiles(4, *t, n_f, ow, pitch, y);
    else if (mf == 6)
        run_tiles(6, *t, n_f, ow, pitch, y);
    else
        run_tiles(8, *t, n_f, ow, pitch, y);
}

/* Filters of the next tile of those left: as few lanes unused as tiles of 8, 6 and 4 allow. */
static int tile_filters(int64_t left)
{
    return left <= 4 ? 4 : left <= 6 ? 6 : 8;
}

/* Taps [from, to) of output row o lie inside the image. */
static void rows_inside(const ll_conv_shape *v, int64_t o, int64_t *from, int64_t *to)
{
    int64_t at = o * v->a.stride[0] - v->a.pad[0], d = v->a.dilation[0];
    *from = 0;
    *to = v->r;
    if (at >= 0 && at + (v->r - 1) * d < v->h) return; /* most rows: no division */
    *from = at >= 0 ? 0 : ll_min64(v->r, ll_ceil_div(-at, d));
    *to = ll_max64(*from, ll_min64(v->r, v->h <= at ? 0 : ll_ceil_div(v->h - at, d)));
}

static void run_row(const ll_conv_shape *v, const sizes *z, const ll_real *planes, const ll_real *w,
                    const int64_t *place, int64_t o, ll_real *y)
{
    int64_t r0, r1;
    rows_inside(v, o, &r0, &r1);
    taps t = {.planes = planes, .count = (r1 - r0) * v->c * v->s, .start = (ll_real)v->start};
    t.place = place + (t.count ? r0 * v->c * v->s : 0);
    t.at = t.count ? (o * v->a.stride[0] - v->a.pad[0]) * z->width : 0;
    for (int64_t f = 0, mf; f < v->f; f += mf, w += (z->taps + 1) * MAX_MF) {
        mf = tile_filters(v->f - f);
        t.w = w + (t.count ? r0 * v->c * v->s * MAX_MF : 0);
        run_tiles_of((int)mf, &t, ll_min64(mf, v->f - f), v->ow, v->f, y + f);
    }
}

/* conv2d_dx as conv2d. */
static ll_conv_shape turned(const ll_conv_shape *v)
{
    ll_conv_shape t = *v;
    t.h = v->oh, t.w = v->ow, t.c = t.cg = v->f;
    t.oh = v->h, t.ow = v->w, t.f = t.fg = v->c;
    t.a.pad[0] = (v->r - 1) * v->a.dilation[0] - v->a.pad[0];
    t.a.pad[2] = (v->s - 1) * v->a.dilation[1] - v->a.pad[2];
    return t;
}

/* Place of tap r, s of channel c in filter f: [f][r][s][c], of conv2d_dx [c][r][s][f] from its end.
 */
static int64_t tap_at(const ll_conv_shape *v, int64_t f, int64_t r, int64_t s, int64_t c)
{
    if (v->d == LL_CONV_DX) return ((c * v->r + v->r - 1 - r) * v->s + v->s - 1 - s) * v->f + f;
    return ((f * v->r + r) * v->s + s) * v->c + c;
}

/* Filters as tiles [r][c][s][MAX_MF], and each tap's place. */
static void list_taps(const ll_conv_shape *v, const sizes *z, const ll_real *filter, ll_real *to,
                      int64_t *place)
{
    int64_t n_c = ll_max64(v->c, 1), n_s = ll_max64(v->s, 1); /* a rank may have no channels */
    for (int64_t k = 0; k <= z->taps; k++) {
        int64_t r = k / (n_c * n_s), c = k / n_s % n_c, s = k % n_s;
        place[k] = (c * v->h + r * v->a.dilation[0]) * z->width + s * v->a.dilation[1];
    }
    for (int64_t f = 0, mf; f < v->f; f += mf) {
        mf = tile_filters(v->f - f);
        for (int64_t k = 0; k <= z->taps; k++)
            for (int64_t i = 0; i < MAX_MF; i++) {
                int64_t r = k / (n_c * n_s), c = k / n_s % n_c, s = k % n_s;
                bool real = k < z->taps && i < mf && f + i < v->f;
                *to++ = real ? filter[tap_at(v, f + i, r, s, c)] : 0;
            }
    }
}

size_t LL_REAL(ll_conv_direct_room)(const ll_conv_shape *v)
{
    const ll_conv_shape t = v->d == LL_CONV_DX ? turned(v) : *v;
    sizes z = sizes_of(&t);
    return z.filter_bytes + z.place_bytes + (size_t)v->threads * z.x_bytes;
}

typedef struct call {
    const ll_conv_shape *v;
    const sizes *z;
    const ll_kcall *c;
    int64_t strips; /* of an image */
} call;

/* Strips [from, to) of all images, with planes of their own. */
static void run_strips(const void *given, int number, int64_t from, int64_t to)
{
    const call *k = (const call *)given;
    const ll_conv_shape *v = k->v;
    const sizes *z = k->z;
    const ll_real *w = (const ll_real *)k->c->scratch, *x = (const ll_real *)k->c->in[0].data;
    const int64_t *place = (const int64_t *)((const char *)w + z->filter_bytes);
    char *buffers = (char *)k->c->scratch + z->filter_bytes + z->place_bytes;
    ll_real *planes = (ll_real *)(buffers + (size_t)number * z->x_bytes);
    ll_real *y = (ll_real *)k->c->out[0].data;
    int64_t span = (v->r - 1) * v->a.dilation[0] + 1, strips = k->strips;
    memset(planes, 0, z->x_bytes);
    for (; from < to; from++) {
        int64_t n = from / strips, o0 = from % strips * v->oh / strips;
        int64_t o1 = (from % strips + 1) * v->oh / strips;
        int64_t i0 = o0 * v->a.stride[0] - v->a.pad[0];
        int64_t i1 = (o1 - 1) * v->a.stride[0] - v->a.pad[0] + span;
        copy_image(v, z, x + n * v->h * v->w * v->c, ll_max64(i0, 0), ll_min64(i1, v->h), planes);
        for (int64_t o = o0; o < o1; o++)
            run_row(v, z, planes, w, place, o, y + (n * v->oh + o) * v->ow * v->f);
    }
}

void LL_REAL(ll_conv_direct)(const ll_conv_shape *given, const ll_kcall *c)
{
    const ll_conv_shape t = given->d == LL_CONV_DX ? turned(given) : *given, *v = &t;
    sizes z = sizes_of(v);
    int64_t *place = (int64_t *)((char *)c->scratch + z.filter_bytes);
    call k = {v, &z, c, v->n >= v->threads ? 1 : ll_min64(v->oh, v->threads)};
    list_taps(v, &z, (const ll_real *)c->in[1].data, (ll_real *)c->scratch, place);
    ll_in_numbered_parts(v->threads, v->n * k.strips, run_strips, &k);
}

/* ---- conv2d_dw ---- */

#ifdef FOUR_LANES
/* Four pixels of six filters, next to each other in memory: the reverse of put_six. */
LL_INLINE void take_six(const ll_real *dy, ll_vec a[6])
{
    ll_vec p[2][3];
    LL_UNROLL for (int k = 0; k < 2; k++) /* two pixels each */
    {
        ll_vec d0 = ll_vec_at(dy + k * 12), d1 = ll_vec_at(dy + k * 12 + 4);
        ll_vec d2 = ll_vec_at(dy + k * 12 + 8);
        p[k][0] = __builtin_shufflevector(d0, d1, 0, 1, 6, 7);
        p[k][1] = __builtin_shufflevector(d0, d2, 2, 3, 4, 5);
        p[k][2] = __builtin_shufflevector(d1, d2, 0, 1, 6, 7);
    }
    LL_UNROLL for (int i = 0; i < 3; i++)
    {
        a[2 * i] = __builtin_shufflevector(p[0][i], p[1][i], 0, 2, 4, 6);
        a[2 * i + 1] = __builtin_shufflevector(p[0][i], p[1][i], 1, 3, 5, 7);
    }
}

/* Four pixels of any four filters or more. */
LL_INLINE void take_four(const ll_real *dy, int64_t n_f, int64_t plane, ll_real *to)
{
    for (int64_t f = 0; f < n_f; f += 4) {
        int64_t at = ll_min64(f, n_f - 4); /* the last four overlap */
        ll_vec a[4];
        LL_UNROLL for (int k = 0; k < 4; k++) a[k] = ll_vec_at(dy + k * n_f + at);
        ll_quad_transpose(a);
        LL_UNROLL for (int k = 0; k < 4; k++) ll_vec_to(to + (at + k) * plane, a[k]);
    }
}
#endif

/* dy [oh,ow,f] as planes [f][oh][columns]; columns beyond ow are zeros. */
static void copy_dy(const ll_conv_shape *v, const sizes *z, const ll_real *dy, ll_real *planes)
{
    int64_t plane = v->oh * z->columns;
    memset(planes + v->f * plane, 0,
           sizeof(ll_real) * (size_t)((z->f_tiles * DW_F - v->f) * plane));
    for (int64_t o = 0; o < v->oh; o++, planes += z->columns, dy += v->ow * v->f) {
        int64_t p = 0;
#ifdef FOUR_LANES
        for (; p + 4 <= v->ow && v->f == 6; p += 4) {
            ll_vec a[6];
            take_six(dy + p * 6, a);
            LL_UNROLL for (int i = 0; i < 6; i++) ll_vec_to(planes + i * plane + p, a[i]);
        }
        for (; p + 4 <= v->ow && v->f >= 4; p += 4)
            take_four(dy + p * v->f, v->f, plane, planes + p);
#endif
#ifdef EIGHT_FILTERS
        for (; p < v->ow; p += LL_LANES)
            for (int64_t f = 0; f < v->f; f += 8) {
                ll_vec a[8];
                int64_t n_f = ll_min64(8, v->f - f);
                take_eight(dy + p * v->f + f, n_f, v->ow - p, v->f, a);
                for (int64_t i = 0; i < n_f; i++) ll_vec_to(planes + (f + i) * plane + p, a[i]);
            }
#else
        for (int64_t f = 0; f < v->f; f++) {
            for (int64_t k = p; k < v->ow; k++) planes[f * plane + k] = dy[k * v->f + f];
            for (int64_t k = v->ow; k < z->columns; k++) planes[f * plane + k] = 0;
        }
#endif
    }
}

/* DW_F planes of dy against DW_S taps of x, `rows` x `vectors`, added to to[DW_F][DW_S]. */
static __attribute__((noinline)) void add_tile(const ll_real *dy, int64_t dy_plane,
                                               int64_t dy_pitch, const ll_real *x, int64_t x_pitch,
                                               int64_t x_s, int64_t rows, int64_t vectors,
                                               ll_real *to)
{
    ll_sums sums[DW_F];
    ll_micro_load(DW_F, DW_S, sums, to, DW_S * LL_LANES);
    for (int64_t k = 0; k < vectors; k++) { /* the longer loop inside */
        const ll_real *d[DW_F], *e[DW_S];
        EACH (i, DW_F) d[i] = dy + k * LL_LANES + i * dy_plane;
        EACH (j, DW_S) e[j] = x + k * LL_LANES + j * x_s;
        ll_micro_dot(DW_F, DW_S, sums, d, dy_pitch, e, x_pitch, rows);
    }
    ll_micro_store(DW_F, DW_S, sums, to, DW_S * LL_LANES);
}

/* One image, into sums [f tile][c][r][s tile][DW_F][DW_S][lanes]. */
static void add_image(const ll_conv_shape *v, const sizes *z, const ll_real *dy, const ll_real *x,
                      ll_real *sums)
{
    int64_t stride = v->a.stride[0], plane = v->oh * z->columns;
    for (int64_t f = 0; f < z->f_tiles; f++)
        for (int64_t c = 0; c < v->c; c++)
            for (int64_t r = 0; r < v->r; r++) {
                int64_t at = r * v->a.dilation[0] - v->a.pad[0]; /* image row under output row 0 */
                int64_t o0 = at >= 0 ? 0 : ll_ceil_div(-at, stride);
                int64_t o1 = ll_min64(v->oh, v->h <= at ? 0 : ll_ceil_div(v->h - at, stride));
                for (int64_t s = 0; s < z->s_tiles; s++) {
                    ll_real *to = sums + (((f * v->c + c) * v->r + r) * z->s_tiles + s) * DW_F *
                                             DW_S * LL_LANES;
                    if (o1 <= o0) continue;
                    const ll_real *from = dy + f * DW_F * plane + o0 * z->columns;
                    const ll_real *under =
                        x + (c * v->h + o0 * stride + at) * z->width + s * DW_S * v->a.dilation[1];
                    add_tile(from, plane, z->columns, under, stride * z->width, v->a.dilation[1],
                             o1 - o0, z->columns / LL_LANES, to);
                }
            }
}

static ll_real add_lanes(const ll_real *sums, int64_t threads, size_t pitch, ll_real start)
{
    ll_real sum = 0;
    for (int64_t t = 0; t < threads; t++) {
        const ll_real *from = (const ll_real *)((const char *)sums + (size_t)t * pitch);
        for (int i = 0; i < LL_LANES; i++) sum += from[i] - start;
    }
    return sum;
}

size_t LL_REAL(ll_conv_direct_dw_room)(const ll_conv_shape *v)
{
    sizes z = sizes_of(v);
    return (size_t)v->threads * (z.x_bytes + z.dy_bytes + z.sum_bytes);
}

/* Shares [from, to) of v->threads of the images, each into sums of its own. */
static void add_shares(const void *given, int64_t from, int64_t to)
{
    const call *k = (const call *)given;
    const ll_conv_shape *v = k->v;
    const sizes *z = k->z;
    const ll_real *dy = (const ll_real *)k->c->in[0].data, *x = (const ll_real *)k->c->in[1].data;
    char *all = (char *)k->c->scratch, *buffers = all + (size_t)v->threads * z->sum_bytes;
    for (; from < to; from++) {
        ll_real *sums = (ll_real *)(all + (size_t)from * z->sum_bytes);
        ll_real *planes = (ll_real *)(buffers + (size_t)from * (z->x_bytes + z->dy_bytes));
        ll_real *dy_planes = (ll_real *)((char *)planes + z->x_bytes);
        for (size_t i = 0; i < z->sum_bytes / sizeof *sums; i++) sums[i] = (ll_real)v->start;
        memset(planes, 0, z->x_bytes);
        for (int64_t n = v->n * from / v->threads; n < v->n * (from + 1) / v->threads; n++) {
            copy_image(v, z, x + n * v->h * v->w * v->c, 0, v->h, planes);
            copy_dy(v, z, dy + n * v->oh * v->ow * v->f, dy_planes);
            add_image(v, z, dy_planes, planes, sums);
        }
    }
}

/* Elements [from, to) of the filter. */
static void join_shares(const void *given, int64_t from, int64_t to)
{
    const call *k = (const call *)given;
    const ll_conv_shape *v = k->v;
    const ll_real *all = (const ll_real *)k->c->scratch;
    ll_real *dw = (ll_real *)k->c->out[0].data;
    for (int64_t e = from; e < to; e++) {
        int64_t c = e % v->c, s = e / v->c % v->s, r = e / (v->c * v->s) % v->r;
        int64_t f = e / (v->c * v->s * v->r);
        int64_t tile = ((f / DW_F * v->c + c) * v->r + r) * k->z->s_tiles + s / DW_S;
        int64_t at = (tile * DW_F + f % DW_F) * DW_S + s % DW_S;
        dw[e] = add_lanes(all + at * LL_LANES, v->threads, k->z->sum_bytes, (ll_real)v->start);
    }
}

void LL_REAL(ll_conv_direct_dw)(const ll_conv_shape *v, const ll_kcall *c)
{
    sizes z = sizes_of(v);
    call k = {v, &z, c, 1};
    ll_in_parts(v->threads, v->threads, add_shares, &k);
    ll_in_parts(v->threads, v->f * v->r * v->s * v->c, join_shares, &k);
}
