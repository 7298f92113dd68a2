/* crc32c.c: eight bytes at a time by tables (Kounavis and Berry: A systematic approach to building
 * high performance software-based CRC generators, ISCC 2005): table[k][b] is the remainder of byte
 * b followed by k zero bytes. */
#include "base/crc32c.h"

#include <pthread.h>
#include <string.h>

static uint32_t table[8][256];
static pthread_once_t table_once = PTHREAD_ONCE_INIT;

static void fill_table(void)
{
    const uint32_t polynomial = 0x82f63b78u; /* bits reversed */
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t r = b;
        for (int i = 0; i < 8; i++) r = r & 1 ? r >> 1 ^ polynomial : r >> 1;
        table[0][b] = r;
    }
    for (int k = 1; k < 8; k++)
        for (int b = 0; b < 256; b++)
            table[k][b] = table[k - 1][b] >> 8 ^ table[0][table[k - 1][b] & 255];
}

uint32_t ll_crc32c(uint32_t crc, const void *data, size_t n)
{
    pthread_once(&table_once, fill_table);
    const uint8_t *p = (const uint8_t *)data;
    uint32_t r = ~crc;
    for (; n >= 8; n -= 8, p += 8) {
        r ^= (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        r = table[7][r & 255] ^ table[6][r >> 8 & 255] ^ table[5][r >> 16 & 255] ^
            table[4][r >> 24] ^ table[3][p[4]] ^ table[2][p[5]] ^ table[1][p[6]] ^ table[0][p[7]];
    }
    for (; n; n--, p++) r = r >> 8 ^ table[0][(r ^ *p) & 255];
    return ~r;
}
