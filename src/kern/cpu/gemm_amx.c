/* gemm_amx.c: bf16 products on x86-64's matrix instructions (AMX), where the CPU has them.
 *
 * A step is 32 of k: word w of a row has k = 2 w and 2 w + 1, as rows of bf16 lie in memory: so A
 * can be read in place. Tiles 0 to 3 sum 32 x 32 of C in f32; 4 and 5 are A's, 6 and 7 B's. Of a
 * packed tile of up to 32 rows each step has one or two blocks of 16 rows, zero beyond the last row
 * and the last k. */
#if defined(__x86_64__) && defined(__linux__)
#include "kern/cpu/gemm_int.h"

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define AMX __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl")))
#define INLINE AMX static inline __attribute__((always_inline))

/* A tile: 16 rows of 64 bytes. */
enum { SIDE = 16, TILE = 1024, STEP = 32, MR = 2 * SIDE };

/* Asks the kernel too, which keeps tiles for programs that want them. */
static bool has_amx(void)
{
    enum { AMX_TILE = 1 << 24, AMX_BF16 = 1 << 22, REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    if (!(d & AMX_TILE) || !(d & AMX_BF16)) return false;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl"))
        return false;
    return syscall(SYS_arch_prctl, REQ_XCOMP_PERM, XTILEDATA) == 0;
}

/* Eight whole tiles, until released. */
AMX static void begin(void)
{
    /* palette 1; of eight tiles, bytes of a row in 16 bits each, and rows. A constant, since gcc 12
     * takes only the first 8 bytes of it to be read. */
    static const uint8_t eight[64] = {1,  0,  0,  0,  0,  0,  0,  0,  0,  0, 0,  0, 0,  0, 0,  0,
                                      64, 0,  64, 0,  64, 0,  64, 0,  64, 0, 64, 0, 64, 0, 64, 0,
                                      0,  0,  0,  0,  0,  0,  0,  0,  0,  0, 0,  0, 0,  0, 0,  0,
                                      16, 16, 16, 16, 16, 16, 16, 16, 0,  0, 0,  0, 0,  0, 0,  0};
    _tile_loadconfig(eight);
}

AMX static void end(void)
{
    _tile_release();
}

/* 16 bytes of each of four places. The port that shuffles is what packing waits for: loads spare
 * it. */
INLINE __m512i lanes_at(const char *x, int64_t step)
{
    __m512i v = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)x));
    v = _mm512_mask_broadcast_i32x4(v, 0x00f0, _mm_loadu_si128((const __m128i *)(x + step)));
    v = _mm512_mask_broadcast_i32x4(v, 0x0f00, _mm_loadu_si128((const __m128i *)(x + 2 * step)));
    return _mm512_mask_broadcast_i32x4(v, 0xf000, _mm_loadu_si128((const __m128i *)(x + 3 * step)));
}

/* 16 x 16 words turned over, from rows of that stride in bytes. */
INLINE void turn_words(const char *from, int64_t stride, char *to)
{
    for (int w = 0; w < SIDE; w += 4, from += 16, to += 4 * 64) {
        __m512i a = lanes_at(from, 4 * stride);
        __m512i b = lanes_at(from + stride, 4 * stride);
        __m512i c = lanes_at(from + 2 * stride, 4 * stride);
        __m512i d = lanes_at(from + 3 * stride, 4 * stride);
        __m512i ab = _mm512_unpacklo_epi32(a, b), cd = _mm512_unpacklo_epi32(c, d);
        _mm512_store_si512(to, _mm512_unpacklo_epi64(ab, cd));
        _mm512_store_si512(to + 64, _mm512_unpackhi_epi64(ab, cd));
        ab = _mm512_unpackhi_epi32(a, b), cd = _mm512_unpackhi_epi32(c, d);
        _mm512_store_si512(to + 128, _mm512_unpacklo_epi64(ab, cd));
        _mm512_store_si512(to + 192, _mm512_unpackhi_epi64(ab, cd));
    }
}

/* m rows of n numbers, 16 or 32, from rows of 32. */
INLINE void store_rows(const float *from, int m, int n, const ll_gemm_tile *t)
{
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j += SIDE) {
            float *c = (float *)t->c + i * t->c_rs + j;
            __m512 v = _mm512_load_ps(from + i * MR + j);
            _mm512_storeu_ps(c, t->add ? _mm512_add_ps(v, _mm512_loadu_ps(c)) : v);
        }
}

INLINE __m512i rounded(__m512i u)
{
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
}

/* m rows of 32 as bf16: the upper halves of sums that round to nearest even; NaN stays NaN. */
INLINE void round_rows(const float *from, int m, const ll_gemm_tile *t)
{
    static const _Alignas(64)
        uint16_t odd[MR] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                            33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    const __m512i upper = _mm512_load_si512(odd);
    for (int i = 0; i < m; i++, from += MR) {
        uint16_t *c = (uint16_t *)t->c + i * t->c_rs;
        __m512 v = _mm512_load_ps(from), w = _mm512_load_ps(from + SIDE);
        __m512i x = rounded(_mm512_castps_si512(v)), y = rounded(_mm512_castps_si512(w));
        _mm512_storeu_si512(c, _mm512_permutex2var_epi16(x, upper, y));
        if (_mm512_cmp_ps_mask(v, w, _CMP_UNORD_Q))
            for (int j = 0; j < MR; j++) c[j] = ll_f32_to_bf16(from[j]);
    }
}

/* C is fetched row by row while k runs: it is needed at the end, and too much to be asked for at
 * once. */
AMX static void tile(int mr, int nv, const ll_gemm_tile *t)
{
    _Alignas(64) float room[MR * MR];
    const bool two = mr > SIDE, wide = nv > 1, full = mr % SIDE == 0, whole = full && !t->narrow;
    const bool goes_on = whole && t->add, in_place = full && t->a_cs == 1;
    const char *a = (const char *)t->a, *b = (const char *)t->b;
    const int64_t a_row = in_place ? 2 * t->a_rs : 64, a_step = in_place ? 64 : 1024 * (1 + two);
    const char *a2 = a + SIDE * a_row;
    float *c = whole ? (float *)t->c : room;
    int64_t rs = whole ? t->c_rs : MR, stride = 4 * rs, bytes = t->narrow ? 2 : 4;
    const char *fetch = (const char *)t->c;
    int at_once = full ? (int)ll_ceil_div(STEP * mr, ll_max64(t->k, 1)) : 0, fetched = 0;
    if (goes_on) {
        _tile_loadd(0, c, stride);
        if (wide) _tile_loadd(1, c + SIDE, stride);
        if (two) _tile_loadd(2, c + SIDE * rs, stride);
        if (two && wide) _tile_loadd(3, c + SIDE * rs + SIDE, stride);
        at_once = 0;
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t p = 0; p < t->k; p += STEP, a += a_step, a2 += a_step) {
        _tile_loadd(4, a, a_row);
        _tile_loadd(6, b, 64);
        b += TILE;
        _tile_dpbf16ps(0, 4, 6);
        if (wide) {
            _tile_loadd(7, b, 64);
            b += TILE;
            _tile_dpbf16ps(1, 4, 7);
        }
        if (two) {
            _tile_loadd(5, a2, a_row);
            _tile_dpbf16ps(2, 5, 6);
            if (wide) _tile_dpbf16ps(3, 5, 7);
        }
        for (int i = 0; i < at_once && fetched < mr; i++, fetched++, fetch += t->c_rs * bytes) {
            __builtin_prefetch(fetch, 1);
            __builtin_prefetch(fetch + nv * SIDE * bytes - 1, 1);
        }
    }
    _tile_stored(0, c, stride);
    if (wide) _tile_stored(1, c + SIDE, stride);
    if (two) _tile_stored(2, c + SIDE * rs, stride);
    if (two && wide) _tile_stored(3, c + SIDE * rs + SIDE, stride);
    if (t->narrow)
        round_rows(room, mr, t);
    else if (!whole)
        store_rows(room, mr, nv * SIDE, t);
}

/* ---- packing ---- */
/* 16 rows by 32 of k, which lie together: words as they are. */
INLINE void copy_block(const uint16_t *x, int64_t si, char *to)
{
    for (int i = 0; i < SIDE; i++, x += si) _mm512_store_si512(to + 64 * i, _mm512_loadu_si512(x));
}

/* 32 columns, which lie together, by 32 of k: words are made of the numbers of two k. ahead: where
 * the next k begin, to be fetched. */
INLINE void join_blocks(const uint16_t *x, int64_t sp, int64_t ahead, char *to)
{
    const __m512i low = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0);
    const __m512i high = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
    for (int w = 0; w < SIDE; w++, x += 2 * sp) {
        __m512i even = _mm512_loadu_si512(x), odd = _mm512_loadu_si512(x + sp);
        __m512i l = _mm512_unpacklo_epi16(even, odd), h = _mm512_unpackhi_epi16(even, odd);
        __builtin_prefetch(x + ahead);
        __builtin_prefetch(x + ahead + sp);
        _mm512_store_si512(to + 64 * w, _mm512_permutex2var_epi64(l, low, h));
        _mm512_store_si512(to + TILE + 64 * w, _mm512_permutex2var_epi64(l, high, h));
    }
}

/* 32 rows, which lie together, by 32 of k: 32 x 32 numbers turned over, by way of a copy whose
 * lines do not push each other out. */
INLINE void turn_blocks(const uint16_t *x, int64_t sp, int64_t ahead, char *to)
{
    _Alignas(64) char near[STEP * 64];
    for (int k = 0; k < STEP; k++, x += sp) {
        _mm512_store_si512(near + 64 * k, _mm512_loadu_si512(x));
        __builtin_prefetch(x + ahead);
    }
    for (int i = 0; i < MR; i += 8, to += 8 * 64) {
        __m512i r[8], s[8];
        for (int j = 0; j < 8; j++) r[j] = lanes_at(near + 2 * i + 64 * j, 8 * 64);
        for (int j = 0; j < 8; j += 2) {
            s[j] = _mm512_unpacklo_epi16(r[j], r[j + 1]);
            s[j + 1] = _mm512_unpackhi_epi16(r[j], r[j + 1]);
        }
        for (int j = 0; j < 8; j += 4)
            for (int h = 0; h < 2; h++) {
                r[j + 2 * h] = _mm512_unpacklo_epi32(s[j + h], s[j + h + 2]);
                r[j + 2 * h + 1] = _mm512_unpackhi_epi32(s[j + h], s[j + h + 2]);
            }
        for (int j = 0; j < 4; j++) {
            _mm512_store_si512(to + 128 * j, _mm512_unpacklo_epi64(r[j], r[j + 4]));
            _mm512_store_si512(to + 128 * j + 64, _mm512_unpackhi_epi64(r[j], r[j + 4]));
        }
    }
}

/* Of up to 32 rows by up to 32 of k, the blocks of 16 that have rows; zeros beyond. */
AMX static void pack_edge(const uint16_t *x, int64_t si, int64_t sp, int64_t rows, int64_t ks,
                          bool of_b, char *to)
{
    uint16_t edge[MR * STEP] = {0};
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < ks; k++) edge[r * STEP + k] = x[r * si + k * sp];
    for (int64_t r = 0; r < rows; r += SIDE, to += TILE)
        if (of_b)
            turn_words((const char *)(edge + r * STEP), 64, to);
        else
            copy_block(edge + r * STEP, STEP, to);
}

/* n rows of A (or columns of B) by kc of k. Words of A's run along a row, of B's along a k. */
INLINE void pack(const uint16_t *from, int64_t si, int64_t sp, int64_t n, int64_t kc,
                 const bool of_b, char *to)
{
    for (int64_t first = 0; first < n; first += MR) {
        int64_t rows = ll_min64(n - first, MR), step = ll_round_up(rows, SIDE) * STEP * 2;
        for (int64_t p = 0; p < kc; p += STEP, to += step) {
            const uint16_t *x = from + first * si + p * sp;
            int64_t ahead = p + STEP < kc ? STEP * sp : MR - p * sp;
            if (p + STEP <= kc && sp == 1 && rows % SIDE == 0)
                for (int64_t r = 0; r < rows; r += SIDE)
                    if (of_b)
                        turn_words((const char *)(x + r * si), 2 * si, to + r * 64);
                    else
                        copy_block(x + r * si, si, to + r * 64);
            else if (p + STEP <= kc && si == 1 && rows == MR)
                (of_b ? join_blocks : turn_blocks)(x, sp, ahead, to);
            else
                pack_edge(x, si, sp, rows, ll_min64(kc - p, STEP), of_b, to);
        }
    }
}

AMX static void pack_a(const ll_gemm_call *g, int64_t i, int64_t m, int high, int64_t p, int64_t kc,
                       void *to)
{
    (void)high;
    const uint16_t *a = (const uint16_t *)g->a + i * g->a_rs + p * g->a_cs;
    pack(a, g->a_rs, g->a_cs, m, kc, false, (char *)to);
}

AMX static void pack_b(const ll_gemm_call *g, int64_t j, int64_t n, int64_t p, int64_t kc, void *to)
{
    const uint16_t *b = (const uint16_t *)g->b + p * g->b_rs + j * g->b_cs;
    pack(b, g->b_cs, g->b_rs, n, kc, true, (char *)to);
}

static const ll_gemm_kind kind = {
    .name = "bf16 AMX 32x32",
    .real = &ll_gemm_real_f32,
    .mr = MR,
    .nv = 2,
    .lanes = SIDE,
    .k_step = STEP,
    .k_max = 512,
    .bytes = sizeof(uint16_t),
    .tile = tile,
    .pack_a = pack_a,
    .pack_b = pack_b,
    .narrows = true,
    .packs = true,
    .rows_in_place = SIDE,
    .begin = begin,
    .end = end,
};

const ll_gemm_kind *ll_gemm_bf16_here(void)
{
    return has_amx() ? &kind : NULL;
}
#endif
