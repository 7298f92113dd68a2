/* wgmma.cuh: products of a group of four warps, of 64 rows: those that attention is made of, scores
 * of 64 or 128 columns from tiles in shared memory, and sums of as many of what the group holds in
 * registers and a tile; and sums of 64 to 256 columns from tiles. sm90.cuh says how tiles lie. */
#pragma once
#include "kern/cuda/sm90.cuh"

#define FRESH(x) "=f"(x)
#define NUMBERS_128                                                                                \
    NUMBERS_96                                                                                     \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "     \
    "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, "   \
    "%126, %127"
#define WGMMA(n) "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {"
#define NOT_ADDED "{\n.reg .pred no;\nsetp.ne.b32 no, 0, 0;\n"

/* d = a b^T, or d += a b^T: 64 rows of a, COLUMNS of b, 16 summed. What d held before is of no use
 * to the first, and takes no registers until then. */
template <int COLUMNS, int N>
__device__ __forceinline__ void score(float (&d)[N], uint64_t a, uint64_t b, bool add)
{
    if constexpr (COLUMNS == 128) {
        if (add)
            asm volatile(WGMMA(128) NUMBERS_64 "}, %64, %65, 1, 1, 1, 0, 0;"
                         : PRODUCT_32(SUMMED, 0), PRODUCT_32(SUMMED, 32)
                         : "l"(a), "l"(b));
        else
            asm volatile(NOT_ADDED WGMMA(128) NUMBERS_64 "}, %64, %65, no, 1, 1, 0, 0;\n}"
                         : PRODUCT_32(FRESH, 0), PRODUCT_32(FRESH, 32)
                         : "l"(a), "l"(b));
    } else {
        if (add)
            asm volatile(WGMMA(64) NUMBERS_32 "}, %32, %33, 1, 1, 1, 0, 0;"
                         : PRODUCT_32(SUMMED, 0)
                         : "l"(a), "l"(b));
        else
            asm volatile(NOT_ADDED WGMMA(64) NUMBERS_32 "}, %32, %33, no, 1, 1, 0, 0;\n}"
                         : PRODUCT_32(FRESH, 0)
                         : "l"(a), "l"(b));
    }
}

/* d += a b: 64 rows of a in registers, 64 or 128 columns of b, 16 summed. */
template <int N>
__device__ __forceinline__ void gather(float (&d)[N], const uint32_t *a, uint64_t b, int add)
{
    if constexpr (N == 64)
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n" WGMMA(128) NUMBERS_64
                     "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}"
                     : PRODUCT_32(SUMMED, 0), PRODUCT_32(SUMMED, 32)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
    else
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n" WGMMA(64) NUMBERS_32
                     "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}"
                     : PRODUCT_32(SUMMED, 0)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

/* d += a b^T, or d = a b^T: 64 rows of a, 2 N of b, 16 summed. */
template <int N>
__device__ __forceinline__ void accumulate(float (&d)[N], uint64_t a, uint64_t b, int add)
{
    static_assert(N == 32 || N == 64 || N == 128, "what is written out here");
    if constexpr (N == 32)
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n" WGMMA(64) NUMBERS_32
                     "}, %32, %33, p, 1, 1, 0, 0;\n}"
                     : PRODUCT_32(SUMMED, 0)
                     : "l"(a), "l"(b), "r"(add));
    else if constexpr (N == 64)
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n" WGMMA(128) NUMBERS_64
                     "}, %64, %65, p, 1, 1, 0, 0;\n}"
                     : PRODUCT_32(SUMMED, 0), PRODUCT_32(SUMMED, 32)
                     : "l"(a), "l"(b), "r"(add));
    else
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n" WGMMA(256) NUMBERS_128
                     "}, %128, %129, p, 1, 1, 0, 0;\n}"
                     : REGISTERS_96, PRODUCT_32(SUMMED, 96)
                     : "l"(a), "l"(b), "r"(add));
}
#undef FRESH
#undef NUMBERS_128
#undef WGMMA
#undef NOT_ADDED

/* What products wrote is read after this, and not before. */
template <int N> __device__ __forceinline__ void settle(float (&v)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(v[i])::"memory");
}
