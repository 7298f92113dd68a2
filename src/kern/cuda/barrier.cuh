/* barrier.cuh: barriers in shared memory, which count arrivals and the bytes that TMA brings; and
 * those of the threads of a block. Before Hopper there is no TMA: a warp copies in its place. */
#pragma once
#include <stdint.h>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define LL_TMA 0
#else
#define LL_TMA 1
#endif

/* So many threads, from a warp's first on, fetch: each calls fetch, then expect, of a barrier that
 * counts as many arrivals. */
enum { FETCHERS = LL_TMA ? 1 : 32 };

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
#if LL_TMA
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

static __device__ __forceinline__ void arrive(uint64_t *b)
{
    asm volatile(
        "{\n.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0];\n}" ::"r"(shared_at(b))
        : "memory");
}

/* Waits for the phase of this parity to end; of a new barrier, parity 1 has ended. */
static __device__ __forceinline__ void await(uint64_t *b, unsigned phase)
{
#if LL_TMA
    asm volatile("{\n.reg .pred done;\nagain:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n}\n" ::"r"(shared_at(b)),
                 "r"(phase)
                 : "memory");
#else
    asm volatile("{\n.reg .pred done;\nagain:\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n}\n" ::"r"(shared_at(b)),
                 "r"(phase)
                 : "memory");
#endif
}

/* TMA brings bytes, a multiple of 16, to shared memory, and counts them at b. */
static __device__ __forceinline__ void fetch(void *to, const void *from, unsigned bytes,
                                             uint64_t *b)
{
#if LL_TMA
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(shared_at(to)),
                 "l"(from), "r"(bytes), "r"(shared_at(b))
                 : "memory");
#else
    for (unsigned at = threadIdx.x % FETCHERS * 16; at < bytes; at += FETCHERS * 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_at(to) + at),
                     "l"((const char *)from + at)
                     : "memory");
#endif
}

/* This thread comes to the barrier, which then waits for so many bytes of fetches too. */
static __device__ __forceinline__ void expect(uint64_t *b, unsigned bytes)
{
#if LL_TMA
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_at(b)),
                 "r"(bytes)
                 : "memory");
#else
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_at(b)) : "memory");
#endif
}

/* So many threads, whole warps, come to barrier id, one of 1 to 15. */
static __device__ __forceinline__ void meet(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
