/* gemm_amx.c: bf16 products on x86-64's matrix instructions (AMX), where the CPU has them.
 *
 * A step is 32 of k: word w of a row has k = w and w + 16. Tiles 0 to 3 sum 32 x 32 of C in f32; 4
 * and 5 are A's, 6 and 7 B's. Of a packed tile of up to 32 rows each step has one or two blocks of
 * 16 rows, zero beyond the last row and the last k. */
#if defined(__x86_64__) && defined(__linux__)
#include "kern/cpu/amx.h"

enum { SIDE = LL_AMX_SIDE, STEP = 32, MR = 2 * SIDE };

/* m rows of n numbers, 16 or 32, from rows of 32. */
LL_AMX_INLINE void store_rows(const float *from, int m, int n, const ll_gemm_tile *t)
{
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j += SIDE) {
            float *c = (float *)t->c + i * t->c_rs + j;
            __m512 v = _mm512_load_ps(from + i * MR + j);
            _mm512_storeu_ps(c, t->add ? _mm512_add_ps(v, _mm512_loadu_ps(c)) : v);
        }
}

LL_AMX static void tile(int mr, int nv, const ll_gemm_tile *t)
{
    _Alignas(64) float room[MR * MR];
    const bool two = mr > SIDE, wide = nv > 1, whole = mr % SIDE == 0, goes_on = whole && t->add;
    const char *a = (const char *)t->a, *b = (const char *)t->b;
    float *c = whole ? (float *)t->c : room;
    int64_t rs = whole ? t->c_rs : MR, stride = 4 * rs;
    if (goes_on) {
        _tile_loadd(0, c, stride);
        if (wide) _tile_loadd(1, c + SIDE, stride);
        if (two) _tile_loadd(2, c + SIDE * rs, stride);
        if (two && wide) _tile_loadd(3, c + SIDE * rs + SIDE, stride);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t p = 0; p < t->k; p += STEP) {
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, 64);
        a += LL_AMX_TILE, b += LL_AMX_TILE;
        _tile_dpbf16ps(0, 4, 6);
        if (wide) {
            _tile_loadd(7, b, 64);
            b += LL_AMX_TILE;
            _tile_dpbf16ps(1, 4, 7);
        }
        if (two) {
            _tile_loadd(5, a, 64);
            a += LL_AMX_TILE;
            _tile_dpbf16ps(2, 5, 6);
            if (wide) _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, c, stride);
    if (wide) _tile_stored(1, c + SIDE, stride);
    if (two) _tile_stored(2, c + SIDE * rs, stride);
    if (two && wide) _tile_stored(3, c + SIDE * rs + SIDE, stride);
    if (!whole) store_rows(room, mr, nv * SIDE, t);
}

/* ---- packing ---- */
LL_AMX_INLINE __m512i load16(const uint16_t *x)
{
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)x));
}

/* 16 rows by 32 of k, k in words of a row (by_rows: of A), or rows in those of a k. One of the
 * strides is 1. */
LL_AMX_INLINE void pack_step(const uint16_t *x, int64_t si, int64_t sp, bool by_rows, char *to)
{
    int64_t next = sp == 1 ? si : sp, other = sp == 1 ? SIDE : SIDE * sp;
    for (int i = 0; i < SIDE; i++, x += next)
        _mm512_store_si512(to + 64 * i,
                           _mm512_or_si512(load16(x), _mm512_slli_epi32(load16(x + other), 16)));
    if ((sp == 1) != by_rows) ll_amx_turn(to);
}

/* n rows (or columns) by kc of k. */
LL_AMX static void pack(const uint16_t *from, int64_t si, int64_t sp, int64_t n, int64_t kc,
                        bool by_rows, char *to)
{
    uint16_t edge[SIDE * STEP];
    for (int64_t first = 0; first < n; first += MR)
        for (int64_t p = 0; p < kc; p += STEP)
            for (int64_t i = first; i < ll_min64(n, first + MR); i += SIDE, to += LL_AMX_TILE) {
                const uint16_t *x = from + i * si + p * sp;
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
    const uint16_t *a = (const uint16_t *)g->a + i * g->a_rs + p * g->a_cs;
    pack(a, g->a_rs, g->a_cs, m, kc, true, (char *)to);
}

static void pack_b(const ll_gemm_call *g, int64_t j, int64_t n, int64_t p, int64_t kc, void *to)
{
    const uint16_t *b = (const uint16_t *)g->b + p * g->b_rs + j * g->b_cs;
    pack(b, g->b_cs, g->b_rs, n, kc, false, (char *)to);
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
    .packs = true,
    .begin = ll_amx_begin,
    .end = ll_amx_end,
};

const ll_gemm_kind *ll_gemm_bf16(void)
{
    static int found; /* 0: not asked yet; asking twice at once gives the same answer */
    int f = __atomic_load_n(&found, __ATOMIC_RELAXED);
    if (!f) {
        f = ll_amx_has(LL_AMX_BF16) ? 1 : -1;
        __atomic_store_n(&found, f, __ATOMIC_RELAXED);
    }
    return f > 0 ? &kind : NULL;
}
#endif
