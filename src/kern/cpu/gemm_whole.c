/* gemm_whole.c: products of whole numbers held in f64, as exact mode makes them (pass/exact.c),
 * summed in 64 bits: f64's tiles, of so few terms that f64 holds their sums, are added to an int64
 * C; or, below, 8-bit matrix instructions, where the CPU has them (x86-64 AMX, asked at run time).
 *
 * Operands are cut into three digits of base 256, the highest signed. Digits p of A and q of B are
 * multiplied into sum p + q of five, in 32 bits, exact: 9 products of a rate 64 times f64's. The
 * sums are put together in 64 bits: the same numbers.
 *
 * Packed tiles (amx.h) are of 64 of k, one for each digit: word k of a row has the bytes of k,
 * k + 16, k + 32 and k + 48. */
#include "kern/cpu/gemm_int.h"

/* C = from, or C += from, as 64-bit numbers that may wrap on the way: wholes are below 2^63. */
static void store_whole(const ll_gemm_store *s)
{
    const uint64_t *from = (const uint64_t *)s->from;
    uint64_t *c = (uint64_t *)s->c;
    for (int64_t i = 0; i < s->m; i++, from += s->width, c += s->c_rs)
        for (int64_t j = 0; j < s->n; j++) c[j * s->c_cs] = from[j] + (s->add ? c[j * s->c_cs] : 0);
}

void ll_gemm_fold(const ll_gemm_store *s)
{
    const double *from = (const double *)s->from;
    int64_t *c = (int64_t *)s->c;
    for (int64_t i = 0; i < s->m; i++, from += s->width, c += s->c_rs)
        for (int64_t j = 0; j < s->n; j++) c[j] = ll_whole_add(s->add ? c[j] : 0, from[j]);
}

const ll_gemm_real ll_gemm_real_i64 = {.bytes = sizeof(int64_t), .store = store_whole};

#if defined(__x86_64__) && defined(__linux__)
#include "kern/cpu/amx.h"

#define TARGET LL_AMX
#define INLINE LL_AMX_INLINE

enum {
    SIDE = LL_AMX_SIDE,
    STEP = 64,
    DIGITS = 3,
    SUMS = 5,
    TILE = LL_AMX_TILE,
    STEP_BYTES = DIGITS * TILE
};

/* ---- tiles ---- */
/* z = sum of 256^s sum[s]. */
TARGET static void store(const int32_t (*sum)[SIDE * SIDE], int mr, const ll_gemm_tile *t)
{
    for (int i = 0; i < mr; i++)
        for (int h = 0; h < SIDE; h += 8) {
            int64_t *c = (int64_t *)t->c + i * t->c_rs + h;
            __m512i z = _mm512_setzero_si512();
            for (int s = SUMS - 1; s >= 0; s--) {
                __m256i v = _mm256_load_si256((const __m256i *)(sum[s] + i * SIDE + h));
                z = _mm512_add_epi64(_mm512_slli_epi64(z, 8), _mm512_cvtepi32_epi64(v));
            }
            if (t->add) z = _mm512_add_epi64(z, _mm512_loadu_si512(c));
            _mm512_storeu_si512(c, z);
        }
}

/* Sums are tiles 0 to 4. Every product waits for the one before it of its sum: those lie three
 * apart, and three tiles suffice for the operands. */
TARGET static void tile(int mr, int nv, const ll_gemm_tile *t)
{
    const char *a = (const char *)t->a, *b = (const char *)t->b;
    _Alignas(64) int32_t sum[SUMS][SIDE * SIDE];
    (void)nv;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    for (int64_t p = 0; p < t->k; p += STEP, a += STEP_BYTES, b += STEP_BYTES) {
        _tile_loadd(5, a, 64);
        _tile_loadd(6, b + 2 * TILE, 64);
        _tile_dpbusd(2, 5, 6);
        _tile_loadd(7, b + TILE, 64);
        _tile_dpbuud(1, 5, 7);
        _tile_loadd(6, b, 64);
        _tile_dpbuud(0, 5, 6);
        _tile_loadd(5, a + TILE, 64);
        _tile_dpbuud(2, 5, 7);
        _tile_dpbuud(1, 5, 6);
        _tile_loadd(7, b + 2 * TILE, 64);
        _tile_dpbusd(3, 5, 7);
        _tile_loadd(5, a + 2 * TILE, 64);
        _tile_dpbsud(2, 5, 6);
        _tile_dpbssd(4, 5, 7);
        _tile_loadd(6, b + TILE, 64);
        _tile_dpbsud(3, 5, 6);
    }
    _tile_stored(0, sum[0], 64);
    _tile_stored(1, sum[1], 64);
    _tile_stored(2, sum[2], 64);
    _tile_stored(3, sum[3], 64);
    _tile_stored(4, sum[4], 64);
    store((const int32_t(*)[SIDE * SIDE]) sum, mr, t);
}

/* ---- packing ---- */
INLINE __m512i whole16(const double *x)
{
    __m256i lo = _mm512_cvtpd_epi32(_mm512_loadu_pd(x));
    __m256i hi = _mm512_cvtpd_epi32(_mm512_loadu_pd(x + 8));
    return _mm512_inserti64x4(_mm512_castsi256_si512(lo), hi, 1);
}

/* Of each bit b where mask has 1, else a. */
INLINE __m512i choose(uint32_t mask, __m512i a, __m512i b)
{
    return _mm512_ternarylogic_epi32(_mm512_set1_epi32((int)mask), b, a, 0xca);
}

/* Words of the lowest three bytes of 4 x 16 numbers, which lie `step` apart. */
INLINE void digits(const double *x, int64_t step, __m512i out[DIGITS])
{
    __m512i v0 = whole16(x), v1 = whole16(x + step);
    __m512i v2 = whole16(x + 2 * step), v3 = whole16(x + 3 * step);
    __m512i even01 = choose(0x00ff00ff, _mm512_slli_epi32(v1, 8), v0);
    __m512i even23 = choose(0x00ff00ff, _mm512_slli_epi32(v3, 8), v2);
    __m512i odd01 = choose(0x00ff00ff, v1, _mm512_srli_epi32(v0, 8));
    __m512i odd23 = choose(0x00ff00ff, v3, _mm512_srli_epi32(v2, 8));
    out[0] = choose(0xffff, _mm512_slli_epi32(even23, 16), even01);
    out[1] = choose(0xffff, _mm512_slli_epi32(odd23, 16), odd01);
    out[2] = choose(0xffff, even23, _mm512_srli_epi32(even01, 16));
}

/* 16 rows by 64 of k, k in words of a row (by_rows: of A), or rows in those of a k. One of the
 * strides is 1. */
INLINE void pack_step(const double *x, int64_t si, int64_t sp, bool by_rows, char *to)
{
    _Alignas(64) char room[STEP_BYTES];
    const bool turn = (sp == 1) != by_rows;
    char *place = turn ? room : to;
    for (int i = 0; i < SIDE; i++) {
        __m512i d[DIGITS];
        if (sp == 1)
            digits(x + i * si, SIDE, d);
        else
            digits(x + i * sp, SIDE * sp, d);
        for (int p = 0; p < DIGITS; p++) _mm512_store_si512(place + p * TILE + 64 * i, d[p]);
    }
    if (turn)
        for (int p = 0; p < DIGITS; p++) ll_amx_turn(place + p * TILE, 64, to + p * TILE);
}

/* n rows (or columns) by kc of k, as tiles; zeros beyond. */
TARGET static void pack(const double *from, int64_t si, int64_t sp, int64_t n, int64_t kc,
                        bool by_rows, char *to)
{
    double edge[SIDE * STEP];
    for (int64_t i = 0; i < n; i += SIDE)
        for (int64_t p = 0; p < kc; p += STEP, to += STEP_BYTES) {
            const double *x = from + i * si + p * sp;
            int64_t rows = ll_min64(n - i, SIDE), ks = ll_min64(kc - p, STEP);
            if (rows == SIDE && ks == STEP && (si == 1 || sp == 1)) {
                pack_step(x, si, sp, by_rows, to);
                continue;
            }
            memset(edge, 0, sizeof edge);
            for (int64_t r = 0; r < rows; r++)
                for (int64_t k = 0; k < ks; k++) edge[r * STEP + k] = x[r * si + k * sp];
            pack_step(edge, STEP, 1, by_rows, to);
        }
}

static void pack_a(const ll_gemm_call *g, int64_t i, int64_t m, int64_t p, int64_t kc, void *to)
{
    const double *a = (const double *)g->a + i * g->a_rs + p * g->a_cs;
    pack(a, g->a_rs, g->a_cs, m, kc, true, (char *)to);
}

static void pack_b(const ll_gemm_call *g, int64_t j, int64_t n, int64_t p, int64_t kc, void *to)
{
    const double *b = (const double *)g->b + p * g->b_rs + j * g->b_cs;
    pack(b, g->b_cs, g->b_rs, n, kc, false, (char *)to);
}

static const ll_gemm_kind kind = {
    .name = "whole AMX 16x16",
    .real = &ll_gemm_real_i64,
    .mr = SIDE,
    .nv = 1,
    .lanes = SIDE,
    .k_step = STEP,
    .k_max = 512,
    .bytes = DIGITS,
    .tile = tile,
    .pack_a = pack_a,
    .pack_b = pack_b,
    .packs = true,
    .begin = ll_amx_begin,
    .end = ll_amx_end,
};

const ll_gemm_kind *ll_gemm_whole(void)
{
    static int found; /* 0: not asked yet; asking twice at once gives the same answer */
    int f = __atomic_load_n(&found, __ATOMIC_RELAXED);
    if (!f) {
        f = ll_amx_has(LL_AMX_INT8) ? 1 : -1;
        __atomic_store_n(&found, f, __ATOMIC_RELAXED);
    }
    return f > 0 ? &kind : NULL;
}

#else
const ll_gemm_kind *ll_gemm_whole(void)
{
    return NULL;
}
#endif
