/* sm90.cuh: what compute capability 9.0 has and C++ has no words for: clusters, copies of tiles
 * between global and shared memory by TMA, products of tiles in shared memory by warp groups. Tiles
 * have rows of 128 bytes, their 16-byte pieces permuted by row (TMA's swizzle): piece p of row r
 * lies at p ^ (r % 8). Of rows of 64 bytes it lies at p ^ (r / 2 % 4). */
#pragma once
#include "kern/cuda/barrier.cuh"

#include <cuda.h>

/* ---- clusters ---- */

/* Arrives at the same barrier of another block of the cluster. */
__device__ __forceinline__ void arrive_at(uint64_t *b, uint32_t block)
{
    asm volatile("{\n.reg .b32 at;\n"
                 "mapa.shared::cluster.u32 at, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [at];\n}" ::"r"(shared_at(b)),
                 "r"(block)
                 : "memory");
}
/* await of barrier.cuh by threads that branch alike, which makes a shorter loop of it. */
__device__ __forceinline__ void await_alike(uint64_t *b, uint32_t phase)
{
    asm volatile("{\n.reg .pred p;\n"
                 "AGAIN:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra.uni DONE;\n"
                 "bra.uni AGAIN;\n"
                 "DONE:\n}" ::"r"(shared_at(b)),
                 "r"(phase)
                 : "memory");
}
__device__ __forceinline__ void cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}
__device__ __forceinline__ uint32_t cluster_rank(void)
{
    uint32_t r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
/* ---- tiles ---- */

/* A tile at column x and row y arrives in shared memory, and its bytes at the barrier. */
__device__ __forceinline__ void tile_load(void *to, const CUtensorMap *m, int x, int y,
                                          uint64_t *barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_at(to)),
                 "l"(m), "r"(x), "r"(y), "r"(shared_at(barrier))
                 : "memory");
}
/* The same, in both blocks of a cluster of two. */
__device__ __forceinline__ void tile_load_both(void *to, const CUtensorMap *m, int x, int y,
                                               uint64_t *barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_at(to)),
                 "l"(m), "r"(x), "r"(y), "r"(shared_at(barrier)), "h"((uint16_t)3)
                 : "memory");
}
__device__ __forceinline__ void tile_store(const CUtensorMap *m, int x, int y, const void *from)
{
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];\n"
                 "cp.async.bulk.commit_group;" ::"l"(m),
                 "r"(x), "r"(y), "r"(shared_at(from))
                 : "memory");
}
/* The same of a head: the map is of elements, heads, time and batch. */
__device__ __forceinline__ void tile_load_head(void *to, const CUtensorMap *m, int element,
                                               int head, int time, int batch, uint64_t *barrier)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(shared_at(to)),
                 "l"(m), "r"(element), "r"(head), "r"(time), "r"(batch), "r"(shared_at(barrier))
                 : "memory");
}
__device__ __forceinline__ void tile_store_head(const CUtensorMap *m, int element, int head,
                                                int time, int batch, const void *from)
{
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group "
                 "[%0, {%1, %2, %3, %4}], [%5];\n"
                 "cp.async.bulk.commit_group;" ::"l"(m),
                 "r"(element), "r"(head), "r"(time), "r"(batch), "r"(shared_at(from))
                 : "memory");
}
/* Of this thread's stores all but N have read shared memory. */
template <int N> __device__ __forceinline__ void stores_read(void)
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
__device__ __forceinline__ void stores_done(void)
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
/* What threads wrote to shared memory is there for TMA. */
__device__ __forceinline__ void written_for_tma(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* 16 x 16 elements of 2 bytes as products hold them, from and to four 8 x 8 tiles; each lane has
 * the address of one row. */
__device__ __forceinline__ void put_16x16(uint32_t at, const uint32_t (&v)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at),
                 "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
                 : "memory");
}
__device__ __forceinline__ void get_16x16(uint32_t at, uint32_t (&v)[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(at)
                 : "memory");
}

/* ---- products ---- */

/* Where an operand lies, for the unit: rows along the summed loop, groups of 8 rows 1024 bytes
 * apart; 16 more of the summed loop are 32 bytes on. */
__device__ __forceinline__ uint64_t operand(const void *p)
{
    return (uint64_t)((shared_at(p) & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}
/* Rows across it: 64 of the other loop in a row, the next 64 in another tile, 8192 bytes on; 16
 * more of the summed loop are 2048 bytes on. */
__device__ __forceinline__ uint64_t operand_transposed(const void *p)
{
    return (uint64_t)((shared_at(p) & 0x3ffff) >> 4) | 512ull << 16 | 64ull << 32 | 1ull << 62;
}
__device__ __forceinline__ void products_begin(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void products_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* All but the last N committed groups are done. */
template <int N> __device__ __forceinline__ void products_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Sums as operands of a product, and as its text names them. */
#define PRODUCT_8(how, i)                                                                          \
    how(d[i]), how(d[i + 1]), how(d[i + 2]), how(d[i + 3]), how(d[i + 4]), how(d[i + 5]),          \
        how(d[i + 6]), how(d[i + 7])
#define PRODUCT_32(how, i)                                                                         \
    PRODUCT_8(how, i), PRODUCT_8(how, i + 8), PRODUCT_8(how, i + 16), PRODUCT_8(how, i + 24)
#define SUMMED(x) "+f"(x)
#define REGISTERS_96 PRODUCT_32(SUMMED, 0), PRODUCT_32(SUMMED, 32), PRODUCT_32(SUMMED, 64)
#define NUMBERS_32                                                                                 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"                        \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NUMBERS_64                                                                                 \
    NUMBERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47," \
               "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NUMBERS_96                                                                                 \
    NUMBERS_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79," \
               "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"

/* d += a b, or d = a b: 64 rows, 192 columns, 16 summed. TRANSPOSED: b's columns run fastest. */
template <int TRANSPOSED>
__device__ __forceinline__ void multiply(float (&d)[96], uint64_t a, uint64_t b, int add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %98, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {" NUMBERS_96
                 "}, %96, %97, p, 1, 1, 0, %99;\n}"
                 : REGISTERS_96
                 : "l"(a), "l"(b), "r"(add), "n"(TRANSPOSED));
}

/* ---- two bf16 in a register ---- */

__device__ __forceinline__ uint32_t pack(float low, float high)
{
    uint32_t v;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
    return v;
}
__device__ __forceinline__ float low_of(uint32_t v)
{
    return __uint_as_float(v << 16);
}
__device__ __forceinline__ float high_of(uint32_t v)
{
    return __uint_as_float(v & 0xffff0000u);
}
