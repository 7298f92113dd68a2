/* staged.cuh: rows that the copy engine brings to shared memory while others are worked on, and
 * what warps that share rows tell each other. */
#pragma once
#include "kern/cuda/vec.cuh"

__device__ __forceinline__ unsigned shared_at(const void *p)
{
    return (unsigned)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void init_barrier(uint64_t *b, unsigned count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_at(b)), "r"(count)
                 : "memory");
}

/* Between the barriers' initialisation by one thread and __syncthreads(). */
static __device__ __forceinline__ void barriers_made(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void arrive(uint64_t *b)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_at(b)) : "memory");
}

static __device__ __forceinline__ void await(uint64_t *b, unsigned phase)
{
    asm volatile("{\n.reg .pred done;\nagain:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n}\n" ::"r"(shared_at(b)),
                 "r"(phase)
                 : "memory");
}

/* This thread comes to the barrier, which then waits for so many bytes of fetches too. */
static __device__ __forceinline__ void expect(uint64_t *b, unsigned bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_at(b)),
                 "r"(bytes)
                 : "memory");
}

/* The copy engine brings bytes, a multiple of 16, to shared memory, and counts them at b. */
static __device__ __forceinline__ void fetch(void *to, const void *from, unsigned bytes,
                                             uint64_t *b)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(shared_at(to)),
                 "l"(from), "r"(bytes), "r"(shared_at(b))
                 : "memory");
}

/* So many threads, whole warps, come to barrier id, one of 1 to 15. */
static __device__ __forceinline__ void meet(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

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
