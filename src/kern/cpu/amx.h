/* amx.h: x86-64's matrix instructions, for gemm_amx.c and gemm_whole.c. A tile register holds 16
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

/* Turns over 16 x 16 words. */
LL_AMX_INLINE void ll_amx_turn(char *tile)
{
    enum { SIDE = LL_AMX_SIDE };
    __m512i r[SIDE], s[SIDE];
    for (int i = 0; i < SIDE; i++) r[i] = _mm512_load_si512(tile + 64 * i);
    for (int i = 0; i < SIDE; i += 2) {
        s[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        s[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < SIDE; i += 4)
        for (int j = 0; j < 2; j++) {
            r[i + 2 * j] = _mm512_unpacklo_epi64(s[i + j], s[i + j + 2]);
            r[i + 2 * j + 1] = _mm512_unpackhi_epi64(s[i + j], s[i + j + 2]);
        }
    for (int i = 0; i < SIDE; i += 8)
        for (int j = 0; j < 4; j++) {
            s[i + j] = _mm512_shuffle_i32x4(r[i + j], r[i + j + 4], 0x88);
            s[i + j + 4] = _mm512_shuffle_i32x4(r[i + j], r[i + j + 4], 0xdd);
        }
    for (int j = 0; j < 8; j++) {
        r[j] = _mm512_shuffle_i32x4(s[j], s[j + 8], 0x88);
        r[j + 8] = _mm512_shuffle_i32x4(s[j], s[j + 8], 0xdd);
    }
    for (int i = 0; i < SIDE; i++) _mm512_store_si512(tile + 64 * i, r[i]);
}
