/* staged.cuh: rows that TMA brings to shared memory while others are worked on, and
 * what warps that share rows tell each other. */
#pragma once
#include "kern/cuda/barrier.cuh"
#include "kern/cuda/vec.cuh"

/* Sums over a warp of V numbers, a power of two, in fewer exchanges than 5 for each: lane l gets
 * that of number l / (32 / V). */
template <int V> __device__ __forceinline__ float warp_sums(float (&v)[V])
{
    int lane = threadIdx.x & 31, o = 16;
#pragma unroll
    for (int half = V / 2; half; half /= 2, o /= 2) {
        bool high = lane & o;
#pragma unroll
        for (int i = 0; i < half; i++) {
            float give = high ? v[i] : v[i + half], keep = high ? v[i + half] : v[i];
            v[i] = keep + __shfl_xor_sync(~0u, give, o);
        }
    }
#pragma unroll
    for (int p = 16 / V; p; p /= 2) v[0] += __shfl_xor_sync(~0u, v[0], p);
    return v[0];
}
