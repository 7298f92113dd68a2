/* amx.h: x86-64's matrix instructions, for gemm_amx.c. A tile register holds 16
 * rows of 64 bytes. Packed operands are tiles of 1 KiB, of 16 rows (or columns), whose words have
 * several neighbours along k each: word k of row i is at 64 i + 4 k of A's tile, and of column j at
 * 64 k + 4 j of B's. Which of k share a word A and B need only agree on. */
#pragma once
#include "kern/cpu/gemm_int.h"

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LL_AMX __attribute__((target("amx-tile,amx-int8,amx-bf16,avx512f,avx512bw,avx512vl")))
#define LL_AMX_INLINE LL_AMX static inline __attribute__((always_inline))

enum { LL_AMX_SIDE = 16, LL_AMX_TILE = 1024, LL_AMX_BF16 = 1 << 22, LL_AMX_INT8 = 1 << 25 };

/* Asks the kernel too, which keeps tiles for programs that want them. */
static inline bool ll_amx_has(unsigned what)
{
    enum { AMX_TILE = 1 << 24, REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    if (!(d & AMX_TILE) || !(d & what)) return false;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl"))
        return false;
    return syscall(SYS_arch_prctl, REQ_XCOMP_PERM, XTILEDATA) == 0;
}

/* Eight whole tiles, until released. */
LL_AMX static inline void ll_amx_begin(void)
{
    /* palette 1; of eight tiles, bytes of a row in 16 bits each, and rows. A constant, since gcc 12
     * takes only the first 8 bytes of it to be read. */
    static const uint8_t eight[64] = {1,  0,  0,  0,  0,  0,  0,  0,  0,  0, 0,  0, 0,  0, 0,  0,
                                      64, 0,  64, 0,  64, 0,  64, 0,  64, 0, 64, 0, 64, 0, 64, 0,
                                      0,  0,  0,  0,  0,  0,  0,  0,  0,  0, 0,  0, 0,  0, 0,  0,
                                      16, 16, 16, 16, 16, 16, 16, 16, 0,  0, 0,  0, 0,  0, 0,  0};
    _tile_loadconfig(eight);
}

LL_AMX static inline void ll_amx_end(void)
{
    _tile_release();
}

/* 16 bytes of each of four places. The port that shuffles is what packing waits for: loads spare
 * it. */
LL_AMX_INLINE __m512i ll_amx_lanes(const char *x, int64_t step)
{
    __m512i v = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)x));
    v = _mm512_mask_broadcast_i32x4(v, 0x00f0, _mm_loadu_si128((const __m128i *)(x + step)));
    v = _mm512_mask_broadcast_i32x4(v, 0x0f00, _mm_loadu_si128((const __m128i *)(x + 2 * step)));
    return _mm512_mask_broadcast_i32x4(v, 0xf000, _mm_loadu_si128((const __m128i *)(x + 3 * step)));
}

/* 16 x 16 words turned over, from rows of that stride in bytes. */
LL_AMX_INLINE void ll_amx_turn(const char *from, int64_t stride, char *to)
{
    for (int w = 0; w < LL_AMX_SIDE; w += 4, from += 16, to += 4 * 64) {
        __m512i a = ll_amx_lanes(from, 4 * stride);
        __m512i b = ll_amx_lanes(from + stride, 4 * stride);
        __m512i c = ll_amx_lanes(from + 2 * stride, 4 * stride);
        __m512i d = ll_amx_lanes(from + 3 * stride, 4 * stride);
        __m512i ab = _mm512_unpacklo_epi32(a, b), cd = _mm512_unpacklo_epi32(c, d);
        _mm512_store_si512(to, _mm512_unpacklo_epi64(ab, cd));
        _mm512_store_si512(to + 64, _mm512_unpackhi_epi64(ab, cd));
        ab = _mm512_unpackhi_epi32(a, b), cd = _mm512_unpackhi_epi32(c, d);
        _mm512_store_si512(to + 128, _mm512_unpacklo_epi64(ab, cd));
        _mm512_store_si512(to + 192, _mm512_unpackhi_epi64(ab, cd));
    }
}
