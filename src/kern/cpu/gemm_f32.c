/* gemm_f32.c: f32 tiles and packing, in vectors of the compiler's own (vector_size), so that one
 * text serves NEON, AVX2, AVX-512 and whatever else; only the sizes differ. gemm_f64.c compiles the
 * same text for f64 (real.h): half as many columns and half as long a pass of k.
 *
 * Registers decide the sizes: mr * nv accumulators, nv vectors of B and one number of A.
 *
 *     NEON     32 x 128 bit    8 rows x 12 columns    24 accumulators    (f64: 8 x 6)
 *     AVX-512  32 x 512 bit   14 rows x 32 columns    28
 *     AVX2     16 x 256 bit    6 rows x 16 columns    12
 *     others   16 x 128 bit    4 rows x  8 columns     8
 *
 * Neoverse-N1 starts two multiply-adds and two loads a cycle: 24 multiply-adds against 3 vector
 * loads and 8 single numbers leave loads to spare, which is why A need not be packed; x86 has too
 * few pointers for that many rows, so there A is packed when 3 panels or more share it. gcc must
 * not reorder before register allocation here (-fno-schedule-insns, see CMakeLists.txt): it would
 * spill the accumulators. */
#include "kern/cpu/gemm_int.h"
#include "kern/cpu/micro.h"
#include "kern/grid.h"

#ifdef LL_REAL_F64
#define SIZED(f32, f64) f64
#else
#define SIZED(f32, f64) f32
#endif

#if defined(__aarch64__)
#define NAME SIZED("f32 NEON 8x12", "f64 NEON 8x6")
enum { MR = 8, NV = 3, K_PASS = 512, A_PANELS = 16, DOT_MR = 6, DOT_NR = 4 };
#define WIDTHS(X, mr) X(mr, 1) X(mr, 2) X(mr, 3)
#define ALL_TILES(X) ROWS_8(X)
#define HEIGHTS(X) X(4) X(5) X(6) X(7) X(8)
#define ALL_DOTS(X) DOT_ROWS_6(X)
#else
#define WIDTHS(X, mr) X(mr, 1) X(mr, 2)
#if defined(__AVX512F__)
#define NAME SIZED("f32 AVX-512 14x32", "f64 AVX-512 14x16")
enum { MR = 14, NV = 2, K_PASS = 320, A_PANELS = 3, DOT_MR = 6, DOT_NR = 4 };
#define ALL_TILES(X) ROWS_14(X)
#define HEIGHTS(X) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#define ALL_DOTS(X) DOT_ROWS_6(X)
#elif defined(__AVX__)
#define NAME SIZED("f32 AVX2 6x16", "f64 AVX2 6x8")
enum { MR = 6, NV = 2, K_PASS = 320, A_PANELS = 3, DOT_MR = 3, DOT_NR = 4 };
#define ALL_TILES(X) ROWS_6(X)
#define HEIGHTS(X) X(3) X(4) X(5) X(6)
#define ALL_DOTS(X) DOT_ROWS_3(X)
#else
#define NAME SIZED("f32 portable 4x8", "f64 portable 4x4")
enum { MR = 4, NV = 2, K_PASS = 320, A_PANELS = 3, DOT_MR = 3, DOT_NR = 4 };
#define ALL_TILES(X) ROWS_4(X)
#define HEIGHTS(X) X(2) X(3) X(4)
#define ALL_DOTS(X) DOT_ROWS_3(X)
#endif
#endif

typedef ll_real real;
typedef ll_vec vec;
enum { VL = LL_LANES, K_MAX = K_PASS * 4 / sizeof(real) };
enum { AT_ONCE = 8, MOST_TILE = 32 }; /* packing: tiles at once; rows or columns of one */
_Static_assert((int)MR <= (int)MOST_TILE && NV * VL <= (int)MOST_TILE, "tiles that are packed");

#define STRANDS(mr, nv) ((mr) * (nv) >= 12 ? 1 : (mr) * (nv) >= 6 ? 2 : 4)

/* A panel of B is near but once its first tile has read it: the one after it is asked for. */
LL_INLINE void columns_ahead(const int mr, const int nv, ll_sums *sums, const ll_gemm_tile *t)
{
    const real *a = (const real *)t->a, *b = (const real *)t->b;
    const char *ahead = (const char *)t->ahead;
    int64_t a_step = t->a_cs, b_step = t->b_rs;
    for (int64_t k = t->k; k > 0; k--, a += a_step, b += b_step, ahead += 64) {
        __builtin_prefetch(ahead, 0, 2);
        ll_micro_column(mr, nv, sums, a, b);
    }
}

/* By rows: a_cs = 1; otherwise a_rs = 1. */
LL_INLINE void run_tile(const int mr, const int nv, const bool by_rows, const ll_gemm_tile *t)
{
    const int strands = STRANDS(mr, nv);
    ll_sums sums[4 * MR];
    const real *row[MR], *a = (const real *)t->a, *b = (const real *)t->b;
    real *c = (real *)t->c;
    int64_t c_rs = t->c_rs;
    EACH (i, mr) row[i] = a + i * t->a_rs;
    const real start = (real)t->start;
    ll_micro_begin(strands * mr, nv, sums, start);
    if (t->k >= 16) { /* C will be here when it is needed */
        EACH (i, mr) {
            __builtin_prefetch(c + i * c_rs, 1);
            __builtin_prefetch(c + i * c_rs + nv * VL - 1, 1);
        }
    }
    if (by_rows)
        ll_micro_rows(mr, nv, strands, sums, row, b, t->b_rs, t->k);
    else if (strands == 1 && t->ahead)
        columns_ahead(mr, nv, sums, t);
    else
        ll_micro_columns(mr, nv, strands, sums, a, t->a_cs, b, t->b_rs, t->k);
    bool add = t->add;
    EACH (i, mr) {
        EACH (j, nv) {
            vec *to = (vec *)(c + j * VL), v = ll_micro_end(sums[i][j], start);
            for (int s = 1; s < strands; s++) v += ll_micro_end(sums[s * mr + i][j], start);
            if (add) v += *to;
            *to = v;
        }
        c += c_rs;
    }
}

/* One function for each size of tile, and a table of them. */
#define ROWS_4(X) WIDTHS(X, 1) WIDTHS(X, 2) WIDTHS(X, 3) WIDTHS(X, 4)
#define ROWS_6(X) ROWS_4(X) WIDTHS(X, 5) WIDTHS(X, 6)
#define ROWS_8(X) ROWS_6(X) WIDTHS(X, 7) WIDTHS(X, 8)
#define ROWS_11(X) ROWS_8(X) WIDTHS(X, 9) WIDTHS(X, 10) WIDTHS(X, 11)
#define ROWS_14(X) ROWS_11(X) WIDTHS(X, 12) WIDTHS(X, 13) WIDTHS(X, 14)

#define DEFINE(mr, nv)                                                                             \
    static void tile_##mr##_##nv(const ll_gemm_tile *t)                                            \
    {                                                                                              \
        if (t->a_cs == 1)                                                                          \
            run_tile(mr, nv, true, t);                                                             \
        else                                                                                       \
            run_tile(mr, nv, false, t);                                                            \
    }
ALL_TILES(DEFINE)
#define ENTRY(mr, nv) [mr][nv] = tile_##mr##_##nv,
static void (*const tiles[MR + 1][NV + 1])(const ll_gemm_tile *) = {ALL_TILES(ENTRY)};

static void tile(int mr, int nv, const ll_gemm_tile *t)
{
    tiles[mr][nv](t);
}

#if defined(__AVX512F__) && !defined(LL_REAL_F64)
#include <immintrin.h>
#define TURN_SIXTEEN
#endif

/* ---- packing: n rows (or columns) as tiles of `tile`, each with k outermost ---- */
enum { Q = LL_QUAD }; /* packing goes by vectors of 16 bytes, blocks of Q x Q */
typedef ll_quad quad;

/* bf16 never comes with f64. */
LL_INLINE real load(const void *x, bool bf16, int64_t i)
{
    return bf16 ? ll_bf16_to_f32(((const uint16_t *)x)[i]) : ((const real *)x)[i];
}

LL_INLINE quad load_quad(const void *x, bool bf16, int64_t i)
{
    if (!bf16) return *(const quad *)((const real *)x + i);
    quad q = {0};
#ifndef LL_REAL_F64
    typedef uint16_t half4 __attribute__((vector_size(8), aligned(2), may_alias));
    typedef uint32_t word4 __attribute__((vector_size(16)));
    half4 h = *(const half4 *)((const uint16_t *)x + i);
    q = (quad)(__builtin_convertvector(h, word4) << 16);
#endif
    return q;
}

/* Row i of k number p is from[i * si + p * sp]. Here si = 1: some whole tiles at once, so that each
 * line is read once. */
LL_INLINE void pack_along(const void *from, bool bf16, int64_t sp, const int tile, int tiles,
                          int64_t kc, real *to)
{
    for (int64_t p = 0; p < kc; p++) {
        /* The line of a few rows on, or of the tiles that come next. */
        int64_t ahead = p + 8 < kc ? 8 * sp : (8 - kc) * sp + tiles * tile;
        for (int t = 0; t < tiles; t++) {
            real *row = to + (t * kc + p) * tile;
            int64_t at = p * sp + t * tile;
            __builtin_prefetch((const char *)from +
                               (bf16 ? 2 : (int64_t)sizeof(real)) * (at + ahead));
            int i = 0;
            for (; !bf16 && i + VL <= tile; i += VL)
                *(vec *)(row + i) = *(const vec *)((const real *)from + at + i);
#ifdef TURN_SIXTEEN
            if (!bf16 && i < tile) {
                __mmask16 rest = (__mmask16)((1u << (tile - i)) - 1);
                const float *x = (const float *)from + at + i;
                _mm512_mask_storeu_ps(row + i, rest, _mm512_maskz_loadu_ps(rest, x));
                continue;
            }
#endif
            for (; i + Q <= tile; i += Q) *(quad *)(row + i) = load_quad(from, bf16, at + i);
            for (; i < tile; i++) row[i] = load(from, bf16, at + i);
        }
    }
}

#if defined(LL_REAL_F64) && defined(__AVX__)
/* 4 x 4 of 8 bytes; returns k that were turned over. */
LL_INLINE int64_t turn_four(const double *from, int64_t si, const int tile, int64_t kc, double *to)
{
    typedef double four __attribute__((vector_size(32), aligned(8), may_alias));
    int64_t p = 0;
    for (; p + 4 <= kc; p += 4) {
        four v[4], t[4];
        EACH (q, 4) v[q] = *(const four *)(from + q * si + p);
        EACH (q, 2) {
            t[2 * q] = __builtin_shufflevector(v[2 * q], v[2 * q + 1], 0, 4, 2, 6);
            t[2 * q + 1] = __builtin_shufflevector(v[2 * q], v[2 * q + 1], 1, 5, 3, 7);
        }
        EACH (q, 2) {
            *(four *)(to + (p + q) * tile) = __builtin_shufflevector(t[q], t[q + 2], 0, 1, 4, 5);
            *(four *)(to + (p + q + 2) * tile) =
                __builtin_shufflevector(t[q], t[q + 2], 2, 3, 6, 7);
        }
    }
    return p;
}
#define TURN_FOUR
#endif

#ifdef TURN_SIXTEEN
/* Of rows 0, 4, 8 and 12 from x on, those of the first n, 16 bytes each. Loads that blend spare the
 * port that shuffles. */
LL_INLINE __m512i every_fourth(const float *x, int64_t si, const int n)
{
    __m512i v = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)x));
    LL_UNROLL for (int l = 1; l < 4; l++)
    {
        const __m128i *next = (const __m128i *)(x + 4 * l * si);
        if (4 * l < n)
            v = _mm512_mask_broadcast_i32x4(v, (__mmask16)(0xf << 4 * l), _mm_loadu_si128(next));
    }
    return v;
}

/* n <= 16 rows by 16 k; returns k that were turned over. The rows that come next are fetched. */
LL_INLINE int64_t turn_sixteen(const float *from, int64_t si, const int n, const int tile,
                               int64_t kc, float *to)
{
    const __mmask16 rows = (__mmask16)((1u << n) - 1);
    int64_t p = 0;
    for (; p + 16 <= kc; p += 16) {
        EACH (r, n) __builtin_prefetch(from + (tile + r) * si + p);
        LL_UNROLL for (int w = 0; w < 16; w += 4, to += 4 * tile)
        {
            const float *x = from + p + w;
            __m512i a = every_fourth(x, si, n), b = every_fourth(x + si, si, n - 1);
            __m512i c = every_fourth(x + 2 * si, si, n - 2);
            __m512i d = every_fourth(x + 3 * si, si, n - 3);
            __m512i ab = _mm512_unpacklo_epi32(a, b), cd = _mm512_unpacklo_epi32(c, d);
            _mm512_mask_storeu_epi32(to, rows, _mm512_unpacklo_epi64(ab, cd));
            _mm512_mask_storeu_epi32(to + tile, rows, _mm512_unpackhi_epi64(ab, cd));
            ab = _mm512_unpackhi_epi32(a, b), cd = _mm512_unpackhi_epi32(c, d);
            _mm512_mask_storeu_epi32(to + 2 * tile, rows, _mm512_unpacklo_epi64(ab, cd));
            _mm512_mask_storeu_epi32(to + 3 * tile, rows, _mm512_unpackhi_epi64(ab, cd));
        }
    }
    return p;
}
#endif

/* Here sp = 1: Q x Q blocks are turned over. */
LL_INLINE void pack_across(const void *from, bool bf16, int64_t si, const int tile, int64_t kc,
                           real *to)
{
    int i = 0;
#ifdef TURN_SIXTEEN
    for (; !bf16 && i + 4 <= tile; i += 16) {
        const int n = tile - i < 16 ? tile - i : 16;
        const real *x = (const real *)from + i * si;
        for (int64_t p = turn_sixteen(x, si, n, tile, kc, to + i); p < kc; p++)
            EACH (q, n) to[p * tile + i + q] = x[q * si + p];
    }
#endif
#ifdef TURN_FOUR
    for (; i + 4 <= tile; i += 4) {
        const real *x = (const real *)from + i * si;
        int64_t p = turn_four(x, si, tile, kc, to + i);
        for (; p < kc; p++)
            EACH (q, 4) to[p * tile + i + q] = x[q * si + p];
    }
#endif
    for (; i + Q <= tile; i += Q) {
        int64_t p = 0;
        for (; p + Q <= kc; p += Q) {
            quad v[Q];
            EACH (q, Q) v[q] = load_quad(from, bf16, (i + q) * si + p);
            ll_quad_transpose(v);
            EACH (q, Q) *(quad *)(to + (p + q) * tile + i) = v[q];
        }
        for (; p < kc; p++)
            EACH (q, Q) to[p * tile + i + q] = load(from, bf16, (i + q) * si + p);
    }
    for (; i < tile; i++)
        for (int64_t p = 0; p < kc; p++) to[p * tile + i] = load(from, bf16, i * si + p);
}

/* Any strides; rows from n to width are zero. */
LL_INLINE void pack_any(const void *from, bool bf16, int64_t si, int64_t sp, int64_t n,
                        int64_t width, int64_t kc, real *to)
{
    for (int64_t p = 0; p < kc; p++)
        for (int64_t i = 0; i < width; i++)
            to[p * width + i] = i < n ? load(from, bf16, i * si + p * sp) : 0;
}

/* The last tile is rounded up to a multiple of `whole`. */
LL_INLINE void pack(const void *from, const bool bf16, int64_t si, int64_t sp, int64_t n,
                    const int tile, const int whole, int64_t kc, real *to)
{
    int64_t i = 0;
    for (int tiles; n - i >= tile; i += tiles * tile, to += tiles * tile * kc) {
        int64_t at = i * si, left = (n - i) / tile;
        const void *x = bf16 ? (const void *)((const uint16_t *)from + at)
                             : (const void *)((const real *)from + at);
        tiles = si != 1 ? 1 : left < AT_ONCE ? (int)left : AT_ONCE;
        if (si == 1)
            pack_along(x, bf16, sp, tile, tiles, kc, to);
        else if (sp == 1)
            pack_across(x, bf16, si, tile, kc, to);
        else
            pack_any(x, bf16, si, sp, tile, tile, kc, to);
    }
    if (i == n) return;
    const void *x = bf16 ? (const void *)((const uint16_t *)from + i * si)
                         : (const void *)((const real *)from + i * si);
    pack_any(x, bf16, si, sp, n - i, ll_round_up(n - i, whole), kc, to);
}

#ifdef LL_REAL_F64
/* Fixed point of f32. Here si = 1: some whole tiles at once. */
LL_INLINE void grid_along(const float *x, int64_t sp, const double *by, const int tile, int tiles,
                          int64_t kc, double *to)
{
    double made[AT_ONCE * MOST_TILE];
    for (int64_t p = 0; p < kc; p++, x += sp) {
        int n = tiles * tile;
        for (int i = 0; i < n; i += 16) __builtin_prefetch(x + 4 * sp + i);
#pragma omp simd
        for (int i = 0; i < n; i++) made[i] = ll_grid_odd((double)x[i] * by[i]);
        for (int t = 0; t < tiles; t++)
            memcpy(to + (t * kc + p) * tile, made + t * tile, sizeof(double) * (size_t)tile);
    }
}

/* Here sp = 1: rows of a tile, which is then turned over. */
LL_INLINE void grid_across(const float *x, int64_t si, const double *by, const int tile, int64_t kc,
                           double *to)
{
    double made[MOST_TILE * K_MAX];
    for (int i = 0; i < tile; i++, x += si) {
        double k = by[i];
        for (int64_t p = 0; p < kc; p += 16) __builtin_prefetch(x + 2 * si + p);
#pragma omp simd
        for (int64_t p = 0; p < kc; p++) made[i * kc + p] = ll_grid_odd((double)x[p] * k);
    }
    pack_across(made, false, kc, tile, kc, to);
}

/* As pack; sb: by how much scales are apart. */
LL_INLINE void pack_grid(const float *x, int64_t si, int64_t sp, const double *by, int64_t sb,
                         int64_t n, const int tile, const int whole, int64_t kc, double *to)
{
    double k[AT_ONCE * MOST_TILE];
    for (int64_t m; n; n -= m, x += m * si, by += m * sb) {
        int tiles = (int)ll_min64(n / tile, si == 1 ? AT_ONCE : 1);
        m = tiles ? tiles * tile : n;
        for (int i = 0; i < m; i++) k[i] = by[i * sb];
        if (tiles && si == 1) {
            grid_along(x, sp, k, tile, tiles, kc, to);
        } else if (tiles && sp == 1) {
            grid_across(x, si, k, tile, kc, to);
        } else {
            int64_t width = ll_round_up(m, whole);
            for (int64_t p = 0; p < kc; p++)
                for (int64_t i = 0; i < width; i++)
                    to[p * width + i] = i < m ? ll_grid_odd((double)x[i * si + p * sp] * k[i]) : 0;
        }
        to += m * kc;
    }
}
#endif

/* Fewer rows than half of a tile are a single one. */
static void pack_low(const ll_gemm_call *g, int64_t at, int64_t m, int64_t kc, real *to)
{
    const void *x = g->bf16 ? (const void *)((const uint16_t *)g->a + at)
                            : (const void *)((const real *)g->a + at);
    pack_any(x, g->bf16, g->a_rs, g->a_cs, m, m, kc, to);
}

/* By loops that know how many rows a tile has. */
static void pack_a(const ll_gemm_call *g, int64_t i, int64_t m, int high, int64_t p, int64_t kc,
                   void *to)
{
    int64_t at = i * g->a_rs + p * g->a_cs, si = g->a_rs, sp = g->a_cs;
    real *y = (real *)to;
#ifdef LL_REAL_F64
    if (g->a_by) {
        const double *by = g->a_by + i * g->a_bs;
        const float *x = (const float *)g->a + at;
#define AT(h)                                                                                      \
    case h: pack_grid(x, si, sp, by, g->a_bs, m, h, 1, kc, y); return;
        switch (high) {
            HEIGHTS(AT)
        default: pack_grid(x, si, sp, by, g->a_bs, m, MR, 1, kc, y); return;
        }
#undef AT
    }
#endif
#define AT(h)                                                                                      \
    case h:                                                                                        \
        if (sizeof(real) == 4 && g->bf16)                                                          \
            pack((const uint16_t *)g->a + at, true, si, sp, m, h, 1, kc, y);                       \
        else                                                                                       \
            pack((const real *)g->a + at, false, si, sp, m, h, 1, kc, y);                          \
        return;
    switch (high) {
        HEIGHTS(AT)
    default: pack_low(g, at, m, kc, y);
    }
#undef AT
}

static void pack_b(const ll_gemm_call *g, int64_t j, int64_t n, int64_t p, int64_t kc, void *to)
{
    int64_t at = p * g->b_rs + j * g->b_cs;
#ifdef LL_REAL_F64
    if (g->b_by) {
        pack_grid((const float *)g->b + at, g->b_cs, g->b_rs, g->b_by + j * g->b_bs, g->b_bs, n,
                  NV * VL, VL, kc, (real *)to);
        return;
    }
#endif
    if (g->bf16)
        pack((const uint16_t *)g->b + at, true, g->b_cs, g->b_rs, n, NV * VL, VL, kc, (real *)to);
    else
        pack((const real *)g->b + at, false, g->b_cs, g->b_rs, n, NV * VL, VL, kc, (real *)to);
}

const ll_gemm_kind LL_REAL(ll_gemm) = {
    .name = NAME,
    .real = &LL_REAL(ll_gemm_real),
    .mr = MR,
    .nv = NV,
    .lanes = VL,
    .k_step = 1,
    .k_max = K_MAX,
    .a_panels = A_PANELS,
    .any_rows = true,
    .bytes = sizeof(real),
    .tile = tile,
    .pack_a = pack_a,
    .pack_b = pack_b,
};

/* ---- dot tiles: vectors along k ---- */
typedef ll_ivec mask;

/* The last `rest` numbers before end, in the upper lanes, zeros below: reads VL numbers. */
LL_INLINE vec load_rest(const real *end, mask keep)
{
    return (vec)((mask)(*(const vec *)(end - VL)) & keep);
}

/* The sum of each of n <= 4 vectors. */
LL_INLINE void sums(const vec *v, int n, real *to)
{
#if defined(__aarch64__)
    if (n == 4) {
#ifdef LL_REAL_F64
        vst1q_f64(to, vpaddq_f64(v[0], v[1]));
        vst1q_f64(to + 2, vpaddq_f64(v[2], v[3]));
#else
        vst1q_f32(to, vpaddq_f32(vpaddq_f32(v[0], v[1]), vpaddq_f32(v[2], v[3])));
#endif
        return;
    }
#endif
    for (int i = 0; i < n; i++) {
        real s = 0;
        for (int l = 0; l < VL; l++) s += v[i][l];
        to[i] = s;
    }
}

LL_INLINE void run_dot(const int mr, const int nr, const ll_gemm_dot *t)
{
    ll_sums acc[DOT_MR];
    const real *a[DOT_MR], *b[DOT_NR];
    EACH (j, nr) b[j] = (const real *)t->b + j * t->b_cs;
    EACH (i, mr) a[i] = (const real *)t->a + i * t->a_rs;
    int64_t k = t->k, rest = k % VL;
    const real start = (real)t->start;
    ll_micro_begin(mr, nr, acc, start);
    ll_micro_dot(mr, nr, acc, a, VL, b, VL, k / VL);
    if (rest) {
        mask keep;
        vec bv[DOT_NR];
        EACH (l, VL) keep[l] = l >= VL - rest ? -1 : 0;
        EACH (j, nr) bv[j] = load_rest(b[j] + k, keep);
        EACH (i, mr) {
            vec av = load_rest(a[i] + k, keep);
            EACH (j, nr) acc[i][j] = ll_mul_add_lanes(acc[i][j], av, bv[j]);
        }
    }
    real *c = (real *)t->c;
    int64_t c_rs = t->c_rs, c_cs = t->c_cs;
    bool add = t->add;
    EACH (i, mr) {
        real s[DOT_NR];
        EACH (j, nr) acc[i][j] = ll_micro_end(acc[i][j], start);
        sums(acc[i], nr, s);
        EACH (j, nr) c[j * c_cs] = add ? c[j * c_cs] + s[j] : s[j];
        c += c_rs;
    }
}

#define DOT_WIDTHS(X, mr) X(mr, 1) X(mr, 2) X(mr, 3) X(mr, 4)
#define DOT_ROWS_3(X) DOT_WIDTHS(X, 1) DOT_WIDTHS(X, 2) DOT_WIDTHS(X, 3)
#define DOT_ROWS_6(X) DOT_ROWS_3(X) DOT_WIDTHS(X, 4) DOT_WIDTHS(X, 5) DOT_WIDTHS(X, 6)
#define DOT_DEFINE(mr, nr)                                                                         \
    static void dot_##mr##_##nr(const ll_gemm_dot *t)                                              \
    {                                                                                              \
        run_dot(mr, nr, t);                                                                        \
    }
ALL_DOTS(DOT_DEFINE)
#define DOT_ENTRY(mr, nr) [mr][nr] = dot_##mr##_##nr,
static void (*const dots[DOT_MR + 1][DOT_NR + 1])(const ll_gemm_dot *) = {ALL_DOTS(DOT_ENTRY)};

static void dot(int mr, int nr, const ll_gemm_dot *t)
{
    dots[mr][nr](t);
}

/* ---- to a C that tiles do not write themselves ---- */
static void store(const ll_gemm_store *s)
{
    const real *from = (const real *)s->from;
    real *c = (real *)s->c;
    int64_t n = s->n, cs = s->c_cs;
    for (int64_t i = 0; i < s->m; i++, from += s->width, c += s->c_rs) {
        int64_t j = 0;
        for (; cs == 1 && j + Q <= n; j += Q) {
            quad v = *(const quad *)(from + j);
            if (s->add) v += *(quad *)(c + j);
            *(quad *)(c + j) = v;
        }
        for (; j < n; j++) c[j * cs] = from[j] + (s->add ? c[j * cs] : 0);
    }
}

const ll_gemm_real LL_REAL(ll_gemm_real) = {
    .bytes = sizeof(real),
    .dot_mr = DOT_MR,
    .dot_nr = DOT_NR,
    .dot = dot,
    .store = store,
};
