/* flush.h: subnormal numbers as zeros, on this thread, for as long as one part of a kernel takes.
 * Processors take tens of cycles for each (x86) or none; and what an optimizer keeps of parameters
 * without a gradient falls until it is subnormal, where rounding keeps it. Nobody else on the
 * thread is to see the mode: what is begun is ended before the part is. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* The thread's mode before; it now reads and writes subnormal numbers as zeros, if `on`. */
static inline uint64_t ll_flush_begin(bool on)
{
    uint64_t before = 0;
#if defined(__x86_64__)
    enum { FTZ = 1 << 15, DAZ = 1 << 6 };
    before = _mm_getcsr();
    if (on) _mm_setcsr((unsigned)before | FTZ | DAZ);
#elif defined(__aarch64__)
    enum { FZ = 1 << 24 };
    __asm__ __volatile__("mrs %0, fpcr" : "=r"(before));
    if (on) __asm__ __volatile__("msr fpcr, %0" : : "r"(before | FZ) : "memory");
#else
    (void)on; /* of other processors no such mode is known here: IEEE 754 as it is */
#endif
    return before;
}

static inline void ll_flush_end(bool on, uint64_t before)
{
#if defined(__x86_64__)
    if (on) _mm_setcsr((unsigned)before);
#elif defined(__aarch64__)
    if (on) __asm__ __volatile__("msr fpcr, %0" : : "r"(before) : "memory");
#else
    (void)on, (void)before;
#endif
}
