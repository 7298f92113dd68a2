/* rng.c: Philox4x32-10 and what is drawn from it. */
#include "base/rng.h"

#include <math.h>

void ll_philox(uint64_t seed, uint64_t stream, uint64_t block, uint32_t out[4])
{
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

uint64_t ll_stream(const char *name, uint64_t step)
{
    uint64_t h = 14695981039346656037u; /* FNV-1a */
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 1099511628211u;
    return h ^ (step * 0x9E3779B97F4A7C15u);
}

static double unit(uint32_t w)
{
    return ((double)w + 0.5) * 0x1p-32;
}

void ll_uniform_4(uint64_t seed, uint64_t stream, uint64_t block, float out[4])
{
    uint32_t w[4];
    ll_philox(seed, stream, block, w);
    for (int i = 0; i < 4; i++) out[i] = ((float)(w[i] >> 9) + 0.5f) * 0x1p-23f;
}

/* Box-Muller: words 0,1 make elements 0,1 of the block, words 2,3 the others. */
void ll_normal_4(uint64_t seed, uint64_t stream, uint64_t block, double out[4])
{
    uint32_t w[4];
    ll_philox(seed, stream, block, w);
    for (int i = 0; i < 4; i += 2) {
        double r = sqrt(-2 * log(unit(w[i]))), angle = 6.283185307179586 * unit(w[i + 1]);
        out[i] = r * cos(angle);
        out[i + 1] = r * sin(angle);
    }
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
