/* rng.h: random numbers as a pure function of (seed, stream, index), by Philox4x32-10 (Salmon,
 * Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC 2011). Whoever asks for
 * element i of a stream gets the same number: ranks, threads and order do not matter. */
#pragma once
#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Four 32-bit words for counter (stream, block) under key seed. */
void ll_philox(uint64_t seed, uint64_t stream, uint64_t block, uint32_t out[4]);
/* A stream's number from a name and a step. */
uint64_t ll_stream(const char *name, uint64_t step);

float ll_uniform_of(uint32_t word); /* in (0,1), never 0 or 1 */
/* Elements 4 block .. 4 block + 3 of a stream at once. */
void ll_uniform_4(uint64_t seed, uint64_t stream, uint64_t block, float out[4]);
void ll_normal_4(uint64_t seed, uint64_t stream, uint64_t block, double out[4]);
/* The same of LL_RNG_LANES blocks at once: vector code. */
enum { LL_RNG_LANES = 16 };
void ll_philox_many(uint64_t seed, uint64_t stream, uint64_t block, uint32_t out[4 * LL_RNG_LANES]);
void ll_normal_many(uint64_t seed, uint64_t stream, uint64_t block, double out[4 * LL_RNG_LANES]);
/* Element i of a stream: uniform in (0,1), never 0 or 1; standard normal; integer below n. */
float ll_uniform_at(uint64_t seed, uint64_t stream, uint64_t i);
double ll_normal_at(uint64_t seed, uint64_t stream, uint64_t i);
uint64_t ll_below_at(uint64_t seed, uint64_t stream, uint64_t i, uint64_t n);
/* Element i of a pseudo-random permutation of 0..n-1 (a Feistel network with cycle walking): a
 * shuffle of any size without memory. */
uint64_t ll_permute(uint64_t seed, uint64_t stream, uint64_t i, uint64_t n);

#ifdef __cplusplus
}
#endif
