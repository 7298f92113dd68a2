/* gemm_bf16.c: tiles on the CPU's own bf16 instructions, where it has them (asked at run time) and
 * they are faster than f32.
 *
 * aarch64 BFMMLA: a register of A holds 2 rows x 4 of k, one of B 2 columns x 4 of k, an
 * accumulator 2 x 2 of C. Tile 8 x 12: 24 accumulators. So packed operands keep 4 numbers along k
 * together: element (i, p) of a packed tile of w rows is at (p / 4) * w * 4 + i * 4 + p % 4, zero
 * beyond the last row and the last k.
 * Tiles on x86-64's VDPBF16PS were tried and ran at half the speed of f32 on a Xeon: without AMX
 * (gemm_amx.c) bf16 operands are widened there.
 *
 * To try BFMMLA on an aarch64 machine without it, run the tests in an emulator that has it:
 *     apt install qemu-user && qemu-aarch64 -cpu max build/test_gemm
 * test_gemm prints which tiles it used. */
#include "kern/cpu/gemm_int.h"

#if defined(__aarch64__) && defined(__linux__)
#include <arm_neon.h>
#include <sys/auxv.h>
enum { LANES = 4, MR = 8, NV = 3, STEP = 4, ROW_ALIGN = 2 };

#define INLINE static inline __attribute__((always_inline))
#define EACH(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)

/* Clang takes one function's instructions from an attribute, gcc's assembler from the text. */
#ifdef __clang__
#define TARGET __attribute__((target("bf16")))
#define EXTENSION ""
#else
#define TARGET
#define EXTENSION ".arch_extension bf16\n\t"
#endif

/* By assembly, since clang 14's intrinsic needs a flag on the whole file. */
TARGET INLINE float32x4_t multiply_2x2(float32x4_t acc, uint16x8_t a, uint16x8_t b)
{
    __asm__(EXTENSION "bfmmla %0.4s, %1.8h, %2.8h" : "+w"(acc) : "w"(a), "w"(b));
    return acc;
}

INLINE void store_row(float *c, float32x4_t v, bool add)
{
    vst1q_f32(c, add ? vaddq_f32(vld1q_f32(c), v) : v);
}

/* pairs of rows by nv vectors of 4 columns; the second row of the last pair may not exist. */
TARGET INLINE void run_tile(const int pairs, const int nv, int mr, const ll_gemm_tile *t)
{
    float32x4_t acc[MR / 2][2 * NV];
    const uint16_t *a = (const uint16_t *)t->a, *b = (const uint16_t *)t->b;
    EACH (i, pairs) {
        EACH (j, 2 * nv) acc[i][j] = vdupq_n_f32(0);
    }
    for (int64_t p = 0; p < t->k; p += STEP, a += pairs * 8, b += nv * 16) {
        uint16x8_t bv[2 * NV];
        EACH (j, 2 * nv) bv[j] = vld1q_u16(b + 8 * j);
        EACH (i, pairs) {
            uint16x8_t av = vld1q_u16(a + 8 * i);
            EACH (j, 2 * nv) acc[i][j] = multiply_2x2(acc[i][j], av, bv[j]);
        }
    }
    EACH (i, pairs) {
        EACH (j, nv) {
            float64x2_t x = vreinterpretq_f64_f32(acc[i][2 * j]);
            float64x2_t y = vreinterpretq_f64_f32(acc[i][2 * j + 1]);
            float *c = (float *)t->c + 2 * i * t->c_rs + 4 * j;
            store_row(c, vreinterpretq_f32_f64(vzip1q_f64(x, y)), t->add);
            if (2 * i + 1 < mr)
                store_row(c + t->c_rs, vreinterpretq_f32_f64(vzip2q_f64(x, y)), t->add);
        }
    }
}
#define WIDTHS(X, mr) X(mr, 1) X(mr, 2) X(mr, 3)
#define ALL_TILES(X) WIDTHS(X, 1) WIDTHS(X, 2) WIDTHS(X, 3) WIDTHS(X, 4)

#define DEFINE(rows, nv)                                                                           \
    TARGET static void tile_##rows##_##nv(int mr, const ll_gemm_tile *t)                           \
    {                                                                                              \
        run_tile(rows, nv, mr, t);                                                                 \
    }
ALL_TILES(DEFINE)
#define ENTRY(rows, nv) [rows][nv] = tile_##rows##_##nv,
static void (*const tiles[MR / ROW_ALIGN + 1][NV + 1])(int,
                                                       const ll_gemm_tile *) = {ALL_TILES(ENTRY)};

static void tile(int mr, int nv, const ll_gemm_tile *t)
{
    tiles[ll_ceil_div(mr, ROW_ALIGN)][nv](mr, t);
}

/* ---- packing ---- */
INLINE uint64_t load64(const uint16_t *x)
{
    uint64_t w;
    memcpy(&w, x, sizeof w);
    return w;
}

/* Turns over a 4 x 4 block, a row in each word. */
INLINE void transpose4(uint64_t w[4])
{
    for (int i = 0; i < 4; i += 2) {
        uint64_t t = (w[i] >> 16 ^ w[i + 1]) & 0x0000ffff0000ffffu;
        w[i + 1] ^= t;
        w[i] ^= t << 16;
    }
    for (int i = 0; i < 2; i++) {
        uint64_t t = (w[i] >> 32 ^ w[i + 2]) & 0x00000000ffffffffu;
        w[i + 2] ^= t;
        w[i] ^= t << 32;
    }
}

/* Four rows (or columns) from i on, four of k from p on; what is beyond n or kc is zero. */
INLINE void load_block(const uint16_t *from, int64_t si, int64_t sp, int64_t i, int64_t n,
                       int64_t p, int64_t kc, uint64_t w[4])
{
    bool whole = i + 4 <= n && p + 4 <= kc;
    if (whole && sp == 1) {
        for (int q = 0; q < 4; q++) w[q] = load64(from + (i + q) * si + p);
    } else if (whole && si == 1) {
        for (int q = 0; q < 4; q++) w[q] = load64(from + (p + q) * sp + i);
        transpose4(w);
    } else {
        for (int q = 0; q < 4; q++) {
            w[q] = 0;
            for (int r = 0; r < 4 && i + q < n && p + r < kc; r++)
                w[q] |= (uint64_t)from[(i + q) * si + (p + r) * sp] << (16 * r);
        }
    }
}

/* to[(p / STEP) * width * STEP + i * STEP + p % STEP] = from[i * si + p * sp] */
INLINE void pack(const uint16_t *from, int64_t si, int64_t sp, int64_t n, int64_t width, int64_t kc,
                 uint16_t *to)
{
    for (int64_t p = 0; p < kc; p += STEP)
        for (int64_t i = 0; i < width; i += 4) {
            uint64_t w[4];
            load_block(from, si, sp, i, n, p, kc, w);
            for (int64_t q = 0; q < 4 && i + q < width; q++)
                memcpy(to + p * width + (i + q) * 4, &w[q], sizeof w[q]);
        }
}

/* n rows (or columns) as tiles of `tile`, the last rounded up to a multiple of `whole`. */
INLINE void pack_tiles(const uint16_t *from, int64_t si, int64_t sp, int64_t n, int64_t tile,
                       int64_t whole, int64_t kc, uint16_t *to)
{
    int64_t kp = ll_round_up(kc, STEP);
    for (int64_t i = 0; i < n; i += tile, to += tile * kp) {
        int64_t rows = n - i < tile ? n - i : tile;
        pack(from + i * si, si, sp, rows, ll_round_up(rows, whole), kc, to);
    }
}

static void pack_a(const ll_gemm_call *g, int64_t i, int64_t m, int high, int64_t p, int64_t kc,
                   void *to)
{
    const uint16_t *a = (const uint16_t *)g->a + i * g->a_rs + p * g->a_cs;
    pack_tiles(a, g->a_rs, g->a_cs, m, high, ROW_ALIGN, kc, (uint16_t *)to);
}

static void pack_b(const ll_gemm_call *g, int64_t j, int64_t n, int64_t p, int64_t kc, void *to)
{
    const uint16_t *b = (const uint16_t *)g->b + p * g->b_rs + j * g->b_cs;
    pack_tiles(b, g->b_cs, g->b_rs, n, NV * LANES, LANES, kc, (uint16_t *)to);
}

static const ll_gemm_kind kind = {
    .name = "bf16 BFMMLA 8x12",
    .real = &ll_gemm_real_f32,
    .mr = MR,
    .nv = NV,
    .lanes = LANES,
    .k_step = STEP,
    .k_max = 768,
    .bytes = sizeof(uint16_t),
    .tile = tile,
    .pack_a = pack_a,
    .pack_b = pack_b,
};

const ll_gemm_kind *ll_gemm_bf16_here(void)
{
    return getauxval(AT_HWCAP2) & (1ul << 14) ? &kind : NULL; /* HWCAP2_BF16 */
}

#elif !defined(__x86_64__) || !defined(__linux__)
const ll_gemm_kind *ll_gemm_bf16_here(void)
{
    return NULL;
}
#endif
