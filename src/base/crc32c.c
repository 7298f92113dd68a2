/* crc32c.c: eight bytes at a time by tables (Kounavis and Berry: A systematic approach to building
 * high performance software-based CRC generators, ISCC 2005): table[k][b] is the remainder of byte
 * b followed by k zero bytes.
 *
 * Remainders are polynomials over bits, the coefficient of x^0 in bit 31. n zero bytes multiply by
 * x^8n, which is made of its factors x^8, x^16, x^32, ...: one for each bit of n. */
#include "base/crc32c.h"

#include <pthread.h>
#include <string.h>

static const uint32_t polynomial = 0x82f63b78u; /* bits reversed */
static uint32_t table[8][256];
static uint32_t zeros[64]; /* [k]: x^(8 2^k), which 2^k zero bytes multiply by */
static pthread_once_t table_once = PTHREAD_ONCE_INIT;

static uint32_t times(uint32_t a, uint32_t b)
{
    uint32_t sum = 0;
    for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
        if (a & bit) sum ^= b;
        b = b & 1 ? b >> 1 ^ polynomial : b >> 1;
    }
    return sum;
}

static void fill_table(void)
{
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t r = b;
        for (int i = 0; i < 8; i++) r = r & 1 ? r >> 1 ^ polynomial : r >> 1;
        table[0][b] = r;
    }
    for (int k = 1; k < 8; k++)
        for (int b = 0; b < 256; b++)
            table[k][b] = table[k - 1][b] >> 8 ^ table[0][table[k - 1][b] & 255];
    zeros[0] = 1u << 23; /* x^8 */
    for (int k = 1; k < 64; k++) zeros[k] = times(zeros[k - 1], zeros[k - 1]);
}

/* Where the instruction set has it, eight bytes in two or three cycles. */
#if defined __ARM_FEATURE_CRC32
#include <arm_acle.h>
#define EIGHT(r, word) __crc32cd(r, word)
#elif defined __SSE4_2__
#include <nmmintrin.h>
#define EIGHT(r, word) (uint32_t) _mm_crc32_u64(r, word)
#endif

#ifdef EIGHT
enum { LANE_BITS = 12, LANE = 1 << LANE_BITS };

static inline uint64_t word_at(const uint8_t *p)
{
    uint64_t word;
    memcpy(&word, p, 8);
    return word;
}

/* Past the caches, where that can be said: what is read next stays in them, and no line is read
 * only to be written. */
static inline void put(uint8_t *to, uint64_t word)
{
#ifdef __SSE4_2__
    _mm_stream_si64((long long *)(void *)to, (long long)word);
#else
    memcpy(to, &word, 8);
#endif
}

/* One word waits for the one before it, but three are under way at a time: of lanes side by side,
 * each of which is followed by the next ones' zeros. to: where they are copied; NULL: not. */
static inline uint32_t three_lanes(uint32_t r, const uint8_t *p, uint8_t *to)
{
    uint32_t s = 0, t = 0;
    for (int i = 0; i < LANE; i += 8) {
        uint64_t a = word_at(p + i), b = word_at(p + LANE + i), c = word_at(p + 2 * LANE + i);
        r = EIGHT(r, a);
        s = EIGHT(s, b);
        t = EIGHT(t, c);
        if (!to) continue;
        for (int k = 3; k < 6 && i % 64 == 0; k++) __builtin_prefetch(p + k * LANE + i);
        put(to + i, a);
        put(to + LANE + i, b);
        put(to + 2 * LANE + i, c);
    }
    return times(r, zeros[LANE_BITS + 1]) ^ times(s, zeros[LANE_BITS]) ^ t;
}
#endif

uint32_t ll_crc32c(uint32_t crc, const void *data, size_t n)
{
    pthread_once(&table_once, fill_table);
    const uint8_t *p = (const uint8_t *)data;
    uint32_t r = ~crc;
#ifdef EIGHT
    for (; n >= 3 * LANE; n -= 3 * LANE, p += 3 * LANE) r = three_lanes(r, p, NULL);
    for (; n >= 8; n -= 8, p += 8) r = EIGHT(r, word_at(p));
#endif
    for (; n >= 8; n -= 8, p += 8) {
        r ^= (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        r = table[7][r & 255] ^ table[6][r >> 8 & 255] ^ table[5][r >> 16 & 255] ^
            table[4][r >> 24] ^ table[3][p[4]] ^ table[2][p[5]] ^ table[1][p[6]] ^ table[0][p[7]];
    }
    for (; n; n--, p++) r = r >> 8 ^ table[0][(r ^ *p) & 255];
    return ~r;
}

uint32_t ll_crc32c_piece(uint32_t remainder, const void *data, size_t n)
{
    return ~ll_crc32c(~remainder, data, n);
}

static uint32_t copy_plain(uint32_t r, uint8_t *to, const uint8_t *from, size_t n)
{
    enum { CHUNK = 1 << 15 }; /* that a cache holds while it is copied and summed */
    for (size_t k; n; n -= k, to += k, from += k) {
        k = n < CHUNK ? n : CHUNK;
        memcpy(to, from, k);
        r = ll_crc32c_piece(r, from, k);
    }
    return r;
}

uint32_t ll_crc32c_copy(uint32_t r, void *to, const void *from, size_t n)
{
    uint8_t *t = (uint8_t *)to;
    const uint8_t *p = (const uint8_t *)from;
    pthread_once(&table_once, fill_table);
#ifdef EIGHT
    size_t head = -(uintptr_t)t & 7;
    if (n >= head + 3 * LANE) {
        r = copy_plain(r, t, p, head);
        for (n -= head, t += head, p += head; n >= 3 * LANE;
             n -= 3 * LANE, t += 3 * LANE, p += 3 * LANE)
            r = three_lanes(r, p, t);
    }
#ifdef __SSE4_2__
    _mm_sfence(); /* before who says that it is there */
#endif
#endif
    return copy_plain(r, t, p, n);
}

uint32_t ll_crc32c_zeros(uint32_t remainder, uint64_t n)
{
    pthread_once(&table_once, fill_table);
    for (int k = 0; n; k++, n >>= 1)
        if (n & 1) remainder = times(remainder, zeros[k]);
    return remainder;
}

uint32_t ll_crc32c_of(uint32_t remainder, uint64_t bytes)
{
    return ~(remainder ^ ll_crc32c_zeros(~0u, bytes)); /* a checksum's register begins with ones */
}
