/* conv2d_direct.c: conv2d and conv2d_dw of images of very few channels, such as the first layer of
 * LeNet-5 (1 channel, 6 filters of 5 x 5), where matrix kernels have too little to multiply.
 *
 * Vectors lie along a row of the image. An image is copied as planes, one for each channel, rows
 * padded with zeros at both sides; rows above and below the image are left out of the sums.
 *
 *     conv2d     a tile of up to 8 filters x 4 vectors of outputs is summed over all taps: each
 *                tap is the same row read from another column. Stored pixel by pixel.
 *     conv2d_dw  3 filters x 5 taps of one filter row are held as vectors of partial sums while
 *                all outputs of the image pass by, dy copied as planes too; lanes are added up at
 *                the very end. */
#include "kern/cpu/conv2d_int.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-schedule-insns")
#endif
#include <omp.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

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

static int64_t min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

bool ll_conv_direct_fits(const ll_conv_shape *v, ll_conv_direction d)
{
    return d != LL_CONV_DX && !v->bf16 && v->groups == 1 && v->a.stride[1] == 1 && v->c * v->s <= 8;
}

INLINE ll_vf fmadd(ll_vf sum, ll_vf x, float by)
{
#if defined(__aarch64__)
    return (ll_vf)vfmaq_n_f32((float32x4_t)sum, (float32x4_t)x, by);
#else
    return sum + x * by;
#endif
}

/* ---- planes ---- */

typedef struct sizes {
    int64_t width;   /* of a plane of x */
    int64_t columns; /* of a plane of dy: ow rounded up to vectors */
    int64_t s_tiles, f_tiles;
    size_t x_bytes, dy_bytes, filter_bytes, sum_bytes; /* a thread's; filter_bytes shared */
} sizes;

static sizes sizes_of(const ll_conv_shape *v)
{
    sizes z = {.columns = ceil_div(v->ow, LL_LANES) * LL_LANES,
               .s_tiles = ceil_div(v->s, DW_S),
               .f_tiles = ceil_div(v->f, DW_F)};
    z.width = z.columns + (max(v->s, z.s_tiles * DW_S) - 1) * v->a.dilation[1];
    z.x_bytes = ll_round64(sizeof(float) * (size_t)(v->c * v->h * z.width));
    z.dy_bytes = ll_round64(sizeof(float) * (size_t)(z.f_tiles * DW_F * v->oh * z.columns));
    z.filter_bytes = ll_round64(sizeof(float) * (size_t)(v->c * v->r * v->s) *
                                (size_t)(ceil_div(v->f, MAX_MF) * MAX_MF));
    z.sum_bytes = ll_round64(sizeof(ll_vf) * DW_F * DW_S * (size_t)(z.f_tiles * z.s_tiles) *
                             (size_t)(v->c * v->r));
    return z;
}

/* Image rows [i0, i1) of [h,w,c] as planes [c][h][width], column 0 being column -pad. */
static void copy_image(const ll_conv_shape *v, const sizes *z, const float *x, int64_t i0,
                       int64_t i1, float *planes)
{
    int64_t pad = v->a.pad[2], j0 = min(max(0, -pad), v->w), before = min(max(0, pad), z->width);
    int64_t n = max(0, min(v->w - j0, z->width - before));
    for (int64_t c = 0; c < v->c; c++)
        for (int64_t i = i0; i < i1; i++) {
            const float *from = x + (i * v->w + j0) * v->c + c;
            float *to = planes + (c * v->h + i) * z->width;
            memset(to, 0, sizeof(float) * (size_t)z->width);
            if (v->c == 1)
                memcpy(to + before, from, sizeof(float) * (size_t)n);
            else
                for (int64_t j = 0; j < n; j++) to[before + j] = from[j * v->c];
        }
}

#if !defined(__AVX__)
/* Four vectors of four, rows for columns. */
INLINE void transpose(ll_vf a[4])
{
    ll_vf t0 = __builtin_shufflevector(a[0], a[1], 0, 4, 1, 5);
    ll_vf t1 = __builtin_shufflevector(a[2], a[3], 0, 4, 1, 5);
    ll_vf t2 = __builtin_shufflevector(a[0], a[1], 2, 6, 3, 7);
    ll_vf t3 = __builtin_shufflevector(a[2], a[3], 2, 6, 3, 7);
    a[0] = __builtin_shufflevector(t0, t1, 0, 1, 4, 5);
    a[1] = __builtin_shufflevector(t0, t1, 2, 3, 6, 7);
    a[2] = __builtin_shufflevector(t2, t3, 0, 1, 4, 5);
    a[3] = __builtin_shufflevector(t2, t3, 2, 3, 6, 7);
}
#endif

/* ---- conv2d ---- */

/* What one tile reads: the first tap's place in the planes, and how far the others are. */
typedef struct taps {
    const float *x, *w; /* w [c][r][s][mf] */
    int64_t c, r, s;    /* r: only rows inside the image */
    int64_t x_c, x_r, x_s, w_c;
} taps;

INLINE void sum_taps(const int mf, const int nv, const taps *t, ll_vf sums[MAX_MF][MAX_NV])
{
    UNROLL for (int i = 0; i < mf; i++) UNROLL for (int j = 0; j < nv; j++) sums[i][j] = (ll_vf){0};
    for (int64_t c = 0; c < t->c; c++) {
        const float *w = t->w + c * t->w_c;
        for (int64_t r = 0; r < t->r; r++) {
            const float *x = t->x + c * t->x_c + r * t->x_r;
            for (int64_t s = 0; s < t->s; s++, w += mf, x += t->x_s) {
                ll_vf xv[MAX_NV];
                UNROLL for (int j = 0; j < nv; j++) xv[j] = ll_vload(x + j * LL_LANES);
                UNROLL for (int i = 0; i < mf; i++) UNROLL for (int j = 0; j < nv; j++) sums[i][j] =
                    fmadd(sums[i][j], xv[j], w[i]);
            }
        }
    }
}

/* Stores mf x nv vectors as pixels of `pitch` filters; n_f filters and n pixels of them exist. */
INLINE void put(const int mf, const int nv, ll_vf sums[MAX_MF][MAX_NV], int64_t n_f, int64_t n,
                int64_t pitch, float *y)
{
#if !defined(__AVX__)
    if (n_f == mf && n == nv * LL_LANES) {
        UNROLL for (int j = 0; j < nv; j++) UNROLL for (int i = 0; i < mf; i += 4)
        {
            ll_vf a[4];
            UNROLL for (int k = 0; k < 4; k++) a[k] = sums[i + k < mf ? i + k : i][j];
            transpose(a);
            UNROLL for (int k = 0; k < 4; k++) memcpy(y + (j * 4 + k) * pitch + i, &a[k],
                                                      sizeof(float) * (mf - i < 4 ? mf - i : 4));
        }
        return;
    }
#endif
    float flat[MAX_MF][MAX_NV * LL_LANES];
    UNROLL for (int i = 0; i < mf; i++) UNROLL for (int j = 0; j < nv; j++)
        ll_vstore(&flat[i][j * LL_LANES], sums[i][j]);
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < n_f; i++) y[j * pitch + i] = flat[i][j];
}

INLINE void tile(const int mf, const int nv, const taps *t, int64_t n_f, int64_t n, int64_t pitch,
                 float *y)
{
    ll_vf sums[MAX_MF][MAX_NV];
    sum_taps(mf, nv, t, sums);
    put(mf, nv, sums, n_f, n, pitch, y);
}

static int widest(int mf)
{
    return SUMS / mf < MAX_NV ? SUMS / mf : MAX_NV;
}

/* Filters of the next tile of those left: as few lanes unused as tiles of 8, 6 and 4 allow. */
static int tile_filters(int64_t left)
{
    return left <= 4 ? 4 : left <= 6 ? 6 : 8;
}

static void run_tile(int mf, int64_t nv, const taps *t, int64_t n_f, int64_t n, int64_t pitch,
                     float *y)
{
#define CASE(f, k)                                                                                 \
    case f * 8 + k: tile(f, k, t, n_f, n, pitch, y); break
    switch (mf * 8 + nv) {
        CASE(4, 1);
        CASE(4, 2);
        CASE(4, 3);
        CASE(4, 4);
        CASE(6, 1);
        CASE(6, 2);
        CASE(6, 3);
        CASE(6, 4);
        CASE(8, 1);
        CASE(8, 2);
        CASE(8, 3);
    }
#undef CASE
}

/* Taps [from, to) of output row o lie inside the image. */
static void rows_inside(const ll_conv_shape *v, int64_t o, int64_t *from, int64_t *to)
{
    int64_t at = o * v->a.stride[0] - v->a.pad[0], d = v->a.dilation[0];
    *from = at >= 0 ? 0 : min(v->r, ceil_div(-at, d));
    *to = max(*from, min(v->r, v->h <= at ? 0 : ceil_div(v->h - at, d)));
}

static void run_row(const ll_conv_shape *v, const sizes *z, const float *planes, const float *w,
                    int64_t o, float *y)
{
    int64_t r0, r1;
    rows_inside(v, o, &r0, &r1);
    int64_t i = o * v->a.stride[0] - v->a.pad[0] + r0 * v->a.dilation[0];
    for (int64_t f = 0, mf; f < v->f; f += mf) {
        mf = tile_filters(v->f - f);
        int64_t vectors = ceil_div(v->ow, LL_LANES), most = widest((int)mf);
        taps t = {.c = v->c, .r = r1 - r0, .s = v->s, .w_c = v->r * v->s * mf};
        t.x_c = v->h * z->width;
        t.x_r = v->a.dilation[0] * z->width;
        t.x_s = v->a.dilation[1];
        t.w = w + (v->c * f * v->r + r0 * mf) * v->s;
        for (int64_t k = 0, nv; k < vectors; k += nv) {
            nv = min(most, vectors - k);
            t.x = planes + (r1 > r0 ? i * z->width : 0) + k * LL_LANES;
            run_tile((int)mf, nv, &t, min(mf, v->f - f), min(nv * LL_LANES, v->ow - k * LL_LANES),
                     v->f, y + k * LL_LANES * v->f + f);
        }
    }
}

/* Filters [f][r][s][c] as tiles [c][r][s][mf]. */
static void pack_filters(const ll_conv_shape *v, const float *filter, float *to)
{
    for (int64_t f = 0, mf; f < v->f; f += mf) {
        mf = tile_filters(v->f - f);
        for (int64_t c = 0; c < v->c; c++)
            for (int64_t k = 0; k < v->r * v->s; k++)
                for (int64_t i = 0; i < mf; i++)
                    *to++ = f + i < v->f ? filter[((f + i) * v->r * v->s + k) * v->c + c] : 0;
    }
}

size_t ll_conv_direct_scratch(const ll_conv_shape *v, ll_conv_direction d)
{
    sizes z = sizes_of(v);
    if (d == LL_CONV) return z.filter_bytes + (size_t)v->threads * z.x_bytes;
    return (size_t)v->threads * (z.x_bytes + z.dy_bytes + z.sum_bytes);
}

void ll_conv_direct(const ll_conv_shape *v, const float *x, const float *filter, float *y,
                    void *scratch)
{
    sizes z = sizes_of(v);
    float *w = (float *)scratch;
    char *buffers = (char *)scratch + z.filter_bytes;
    int64_t strips = v->n >= v->threads ? 1 : min(v->oh, v->threads), jobs = v->n * strips;
    int64_t span = (v->r - 1) * v->a.dilation[0] + 1;
    pack_filters(v, filter, w);
#pragma omp parallel num_threads(v->threads)
    {
        int me = omp_get_thread_num(), team = omp_get_num_threads();
        float *planes = (float *)(buffers + (size_t)me * z.x_bytes);
        for (int64_t k = jobs * me / team; k < jobs * (me + 1) / team; k++) {
            int64_t n = k / strips, o0 = k % strips * v->oh / strips;
            int64_t o1 = (k % strips + 1) * v->oh / strips;
            int64_t i0 = o0 * v->a.stride[0] - v->a.pad[0];
            int64_t i1 = (o1 - 1) * v->a.stride[0] - v->a.pad[0] + span;
            copy_image(v, &z, x + n * v->h * v->w * v->c, max(i0, 0), min(i1, v->h), planes);
            for (int64_t o = o0; o < o1; o++)
                run_row(v, &z, planes, w, o, y + (n * v->oh + o) * v->ow * v->f);
        }
    }
}

/* ---- conv2d_dw ---- */

/* dy [oh,ow,f] as planes [f][oh][columns]; columns beyond ow are zeros. */
static void copy_dy(const ll_conv_shape *v, const sizes *z, const float *dy, float *planes)
{
    int64_t plane = v->oh * z->columns;
    memset(planes + v->f * plane, 0, sizeof(float) * (size_t)((z->f_tiles * DW_F - v->f) * plane));
    for (int64_t o = 0; o < v->oh; o++, planes += z->columns, dy += v->ow * v->f) {
        int64_t p = 0;
#if !defined(__AVX__)
        for (; p + 4 <= v->ow && v->f >= 4; p += 4)
            for (int64_t f = 0; f < v->f; f += 4) {
                int64_t at = min(f, v->f - 4); /* the last four overlap */
                ll_vf a[4];
                UNROLL for (int k = 0; k < 4; k++) a[k] = ll_vload(dy + (p + k) * v->f + at);
                transpose(a);
                UNROLL for (int k = 0; k < 4; k++) ll_vstore(planes + (at + k) * plane + p, a[k]);
            }
#endif
        for (int64_t f = 0; f < v->f; f++) {
            for (int64_t k = p; k < v->ow; k++) planes[f * plane + k] = dy[k * v->f + f];
            for (int64_t k = v->ow; k < z->columns; k++) planes[f * plane + k] = 0;
        }
    }
}

/* DW_F planes of dy against DW_S taps of x, `rows` x `vectors`, added to to[DW_F][DW_S]. */
static void add_tile(const float *dy, int64_t dy_plane, int64_t dy_pitch, const float *x,
                     int64_t x_pitch, int64_t x_s, int64_t rows, int64_t vectors, float *to)
{
    ll_vf sums[DW_F][DW_S];
    UNROLL for (int i = 0; i < DW_F; i++) UNROLL for (int j = 0; j < DW_S; j++) sums[i][j] =
        ll_vload(to + (i * DW_S + j) * LL_LANES);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < vectors; k++) {
            const float *d = dy + r * dy_pitch + k * LL_LANES;
            const float *e = x + r * x_pitch + k * LL_LANES;
            ll_vf dv[DW_F];
            UNROLL for (int i = 0; i < DW_F; i++) dv[i] = ll_vload(d + i * dy_plane);
            UNROLL for (int j = 0; j < DW_S; j++)
            {
                ll_vf xv = ll_vload(e + j * x_s);
                UNROLL for (int i = 0; i < DW_F; i++) sums[i][j] += dv[i] * xv;
            }
        }
    UNROLL for (int i = 0; i < DW_F; i++) UNROLL for (int j = 0; j < DW_S; j++)
        ll_vstore(to + (i * DW_S + j) * LL_LANES, sums[i][j]);
}

/* One image, into sums [f tile][c][r][s tile][DW_F][DW_S][lanes]. */
static void add_image(const ll_conv_shape *v, const sizes *z, const float *dy, const float *x,
                      float *sums)
{
    int64_t stride = v->a.stride[0], plane = v->oh * z->columns;
    for (int64_t f = 0; f < z->f_tiles; f++)
        for (int64_t c = 0; c < v->c; c++)
            for (int64_t r = 0; r < v->r; r++) {
                int64_t at = r * v->a.dilation[0] - v->a.pad[0]; /* image row under output row 0 */
                int64_t o0 = at >= 0 ? 0 : ceil_div(-at, stride);
                int64_t o1 = min(v->oh, v->h <= at ? 0 : ceil_div(v->h - at, stride));
                for (int64_t s = 0; s < z->s_tiles; s++) {
                    float *to = sums + (((f * v->c + c) * v->r + r) * z->s_tiles + s) * DW_F *
                                           DW_S * LL_LANES;
                    if (o1 <= o0) continue;
                    add_tile(
                        dy + f * DW_F * plane + o0 * z->columns, plane, z->columns,
                        x + (c * v->h + o0 * stride + at) * z->width + s * DW_S * v->a.dilation[1],
                        stride * z->width, v->a.dilation[1], o1 - o0, z->columns / LL_LANES, to);
                }
            }
}

static float add_lanes(const float *sums, int64_t threads, size_t pitch, int64_t at)
{
    float sum = 0;
    for (int64_t t = 0; t < threads; t++) {
        const float *from = (const float *)((const char *)sums + (size_t)t * pitch) + at;
        for (int i = 0; i < LL_LANES; i++) sum += from[i];
    }
    return sum;
}

void ll_conv_direct_dw(const ll_conv_shape *v, const float *dy, const float *x, float *dw,
                       void *scratch)
{
    sizes z = sizes_of(v);
    float *all = (float *)scratch;
    char *buffers = (char *)scratch + (size_t)v->threads * z.sum_bytes;
#pragma omp parallel num_threads(v->threads)
    {
        int me = omp_get_thread_num(), team = omp_get_num_threads();
        for (int64_t t = me; t < v->threads; t += team) {
            float *sums = (float *)((char *)all + (size_t)t * z.sum_bytes);
            float *planes = (float *)(buffers + (size_t)t * (z.x_bytes + z.dy_bytes));
            float *dy_planes = (float *)((char *)planes + z.x_bytes);
            memset(sums, 0, z.sum_bytes);
            for (int64_t n = v->n * t / v->threads; n < v->n * (t + 1) / v->threads; n++) {
                copy_image(v, &z, x + n * v->h * v->w * v->c, 0, v->h, planes);
                copy_dy(v, &z, dy + n * v->oh * v->ow * v->f, dy_planes);
                add_image(v, &z, dy_planes, planes, sums);
            }
        }
    }
    for (int64_t e = 0; e < v->f * v->r * v->s * v->c; e++) {
        int64_t c = e % v->c, s = e / v->c % v->s, r = e / (v->c * v->s) % v->r;
        int64_t f = e / (v->c * v->s * v->r);
        int64_t tile = ((f / DW_F * v->c + c) * v->r + r) * z.s_tiles + s / DW_S;
        int64_t at = (tile * DW_F + f % DW_F) * DW_S + s % DW_S;
        dw[e] = add_lanes(all, v->threads, z.sum_bytes, at * LL_LANES);
    }
}
