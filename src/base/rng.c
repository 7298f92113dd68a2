/* rng.c: Philox4x32-10 and what is drawn from it. */
#include "base/rng.h"

#include "base/num.h"
#include "base/philox.h"

void ll_philox(uint64_t seed, uint64_t stream, uint64_t block, uint32_t out[4])
{
    ll_philox_words(seed, stream, block, out);
}

void ll_philox_many(uint64_t seed, uint64_t stream, uint64_t block, uint32_t out[4 * LL_RNG_LANES])
{
#pragma omp simd
    for (int l = 0; l < LL_RNG_LANES; l++)
        ll_philox_words(seed, stream, block + (uint64_t)l, out + 4 * l);
}

uint64_t ll_stream(const char *name, uint64_t step)
{
    return ll_hash(LL_HASH, name, strlen(name)) ^ (step * 0x9E3779B97F4A7C15u);
}

float ll_uniform_of(uint32_t word)
{
    return ll_unit_23(word);
}

void ll_uniform_4(uint64_t seed, uint64_t stream, uint64_t block, float out[4])
{
    uint32_t w[4];
    ll_philox(seed, stream, block, w);
    for (int i = 0; i < 4; i++) out[i] = ll_uniform_of(w[i]);
}

void ll_normal_4(uint64_t seed, uint64_t stream, uint64_t block, double out[4])
{
    uint32_t w[4];
    ll_philox(seed, stream, block, w);
    for (int i = 0; i < 4; i += 2) ll_normal_pair(w[i], w[i + 1], &out[i], &out[i + 1]);
}

void ll_normal_many(uint64_t seed, uint64_t stream, uint64_t block, double out[4 * LL_RNG_LANES])
{
    uint32_t w[4 * LL_RNG_LANES];
    ll_philox_many(seed, stream, block, w);
#pragma omp simd
    for (int i = 0; i < 2 * LL_RNG_LANES; i++)
        ll_normal_pair(w[2 * i], w[2 * i + 1], &out[2 * i], &out[2 * i + 1]);
}

float ll_uniform_at(uint64_t seed, uint64_t stream, uint64_t i)
{
    float u[4];
    ll_uniform_4(seed, stream, i / 4, u);
    return u[i % 4];
}

double ll_normal_at(uint64_t seed, uint64_t stream, uint64_t i)
{
    double x[4];
    ll_normal_4(seed, stream, i / 4, x);
    return x[i % 4];
}

uint64_t ll_below_at(uint64_t seed, uint64_t stream, uint64_t i, uint64_t n)
{
    uint32_t w[4];
    ll_philox(seed, stream, i, w);
    return (uint64_t)(((unsigned __int128)(((uint64_t)w[0] << 32) | w[1]) * n) >> 64);
}

uint64_t ll_permute(uint64_t seed, uint64_t stream, uint64_t i, uint64_t n)
{
    int half = 1; /* the network permutes 0 .. 4^half - 1, the smallest such range that holds n */
    while (half < 32 && ((uint64_t)1 << 2 * half) < n) half++;
    uint64_t mask = ((uint64_t)1 << half) - 1;
    do {
        uint64_t left = i >> half, right = i & mask;
        for (uint64_t round = 0; round < 6; round++) {
            uint32_t w[4];
            ll_philox(seed, stream, right | round << 40, w);
            uint64_t next = left ^ (w[0] & mask);
            left = right;
            right = next;
        }
        i = left << half | right;
    } while (i >= n);
    return i;
}
