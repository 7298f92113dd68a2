/* eight.cuh: numbers rounded to 8-bit floats, 4 or 8 at a time, and transposed in registers. */
#pragma once
#include "kern/cuda/vec.cuh"

#include <cuda_fp8.h>

typedef __nv_fp8_interpretation_t eight_kind;

template <eight_kind KIND> __device__ __forceinline__ uint2 round_eight(const float v[8], float by)
{
    unsigned h[4];
#pragma unroll
    for (int k = 0; k < 4; k++)
        h[k] = __nv_cvt_float2_to_fp8x2(make_float2(v[2 * k] * by, v[2 * k + 1] * by),
                                        __NV_SATFINITE, KIND);
    return make_uint2(h[0] | h[1] << 16, h[2] | h[3] << 16);
}

/* From here on numbers are too large for it: they would round to more than its largest. */
template <eight_kind KIND> __device__ __forceinline__ constexpr float too_large(void)
{
    return KIND == __NV_E4M3 ? 464.f : 61440.f;
}

/* The same; infinity becomes no number, and finite ones that are too large are counted. */
template <eight_kind KIND>
__device__ __forceinline__ uint2 round_counted(const float v[8], float by, unsigned &saturated)
{
    float w[8], most = 0;
#pragma unroll
    for (int k = 0; k < 8; k++) w[k] = v[k] * by, most = fmaxf(most, fabsf(w[k]));
    if (most >= too_large<KIND>())
#pragma unroll
        for (int k = 0; k < 8; k++) {
            if (isinf(v[k])) w[k] = v[k] - v[k];
            saturated += fabsf(w[k]) >= too_large<KIND>();
        }
    return round_eight<KIND>(w, 1);
}

/* Four words of four bytes, each byte k of all four in the kth result. */
__device__ __forceinline__ void transpose_4(const unsigned a[4], unsigned out[4])
{
    unsigned p = __byte_perm(a[0], a[1], 0x5140), q = __byte_perm(a[2], a[3], 0x5140);
    unsigned r = __byte_perm(a[0], a[1], 0x7362), s = __byte_perm(a[2], a[3], 0x7362);
    out[0] = __byte_perm(p, q, 0x5410), out[1] = __byte_perm(p, q, 0x7632);
    out[2] = __byte_perm(r, s, 0x5410), out[3] = __byte_perm(r, s, 0x7632);
}

/* Sixteen words, one of each row: column k's sixteen bytes are out[k]. */
__device__ __forceinline__ void transpose_16(const unsigned a[16], uint4 out[4])
{
    unsigned t[4][4];
#pragma unroll
    for (int g = 0; g < 4; g++) transpose_4(a + 4 * g, t[g]);
#pragma unroll
    for (int k = 0; k < 4; k++) out[k] = make_uint4(t[0][k], t[1][k], t[2][k], t[3][k]);
}

/* Bits of numbers that are not negative are in their order, NaN last: any order gives the largest.
 */
__device__ __forceinline__ unsigned magnitude(float v)
{
    return __float_as_uint(fabsf(v));
}
