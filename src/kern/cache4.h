/* cache4.h: numbers of 4 bits, for caches of keys and values: groups of 32 have a scale and a zero,
 * x = scale (q + zero), q of 0 to 15.
 *
 * A row of d numbers is half = (d + 1) / 2 bytes, number i the low half of byte i or the high half
 * of byte i - half, and behind them for each 32 channels 3 bytes: a scale as cache8.h has it, and
 * the zero, whose eighths are the scale's last 3 bits. Values have those of their own row. Keys
 * have channels that are large in all tokens, so that their groups are 32 tokens of a channel (Liu
 * et al., KIVI, 2024): that of channel c, of places 32 g and on, is number c / 32 behind row
 * 32 g + c % 32.
 *
 * Such a group is made when all its tokens are there to stay. Until then keys are bytes: behind
 * the rows of all places lies a ring of pairs of rows, that of place p is pair p % ring: the first
 * half of d bytes in one, the others in the second; in their tails a scale, and p, which a group
 * that was made has no more in its last pair. Who attends from place `at` on sees groups up to
 * at - at % 32, whatever was read at once. */
#pragma once
#include "kern/attr.h"
#include "kern/cache8.h"

static inline LL_BOTH int64_t ll_cache4_half(int64_t d)
{
    return (d + 1) / 2;
}
static inline LL_BOTH int ll_cache4_number(const uint8_t *row, int64_t half, int64_t i)
{
    return i < half ? row[i] & 15 : row[i - half] >> 4;
}
static inline LL_BOTH void ll_cache4_put(uint8_t *row, int64_t half, int64_t i, int q)
{
    uint8_t *at = &row[i < half ? i : i - half];
    *at = (uint8_t)(i < half ? (*at & 0xf0) | q : (*at & 15) | q << 4);
}

/* A group's scale and zero, in 3 bytes, for numbers from least to most; a zero is -128 to 112, so
 * that numbers that are alike and far from 0 have a larger scale than they want. */
static inline LL_BOTH void ll_cache4_begin(uint8_t *tail, float least, float most)
{
    float top = fmaxf(fabsf(least), fabsf(most));
    float scale = ll_cache8_begin(tail, 0, 127 * fmaxf((most - least) / 15, top / 120));
    int zero = (int)floorf(8 * fmaxf(-128, fminf(112, least / scale)));
    tail[1] |= (uint8_t)((zero & 7) << 5);
    tail[2] = (uint8_t)(zero >> 3);
}
static inline LL_BOTH float ll_cache4_zero(const uint8_t *tail)
{
    return (float)(int8_t)tail[2] + (float)(tail[1] >> 5) / 8;
}
static inline LL_BOTH int ll_cache4_round(const uint8_t *tail, float x)
{
    float q = rintf(x / ll_cache8_scale(tail, 0) - ll_cache4_zero(tail));
    return (int)fmaxf(0, fminf(15, q));
}

/* Of keys: where the group of channel c that place p is in has its scale; rows lie `step` apart. */
static inline LL_BOTH int64_t ll_cache4_tail(int64_t step, int64_t d, int64_t p, int64_t c)
{
    return (p - p % LL_CACHE4_GROUP + c % LL_CACHE4_GROUP) * step + ll_cache4_half(d) +
           c / LL_CACHE4_GROUP * LL_CACHE4_TAIL;
}

/* The newest keys: a ring behind `rows` rows. */
typedef struct ll_cache4_ring {
    uint8_t *first; /* the first row of all */
    int64_t step, rows, n, d;
} ll_cache4_ring;
static inline LL_BOTH uint8_t *ll_cache4_pair(const ll_cache4_ring *r, int64_t p)
{
    return r->first + (r->rows + 2 * (p % r->n)) * r->step;
}
static inline LL_BOTH uint8_t *ll_cache4_byte(const ll_cache4_ring *r, uint8_t *pair, int64_t i)
{
    int64_t half = ll_cache4_half(r->d);
    return i < half ? pair + i : pair + r->step + i - half;
}
static inline LL_BOTH float ll_cache4_newest(const ll_cache4_ring *r, int64_t p, int64_t i)
{
    uint8_t *pair = ll_cache4_pair(r, p);
    float scale = ll_cache8_scale(pair, ll_cache4_half(r->d));
    return scale * (float)(int8_t)*ll_cache4_byte(r, pair, i);
}
/* Number i of a row of values; and of the key of place p, as who attends from `at` on sees it. */
static inline LL_BOTH float ll_cache4_times(const uint8_t *tail, int q)
{
    return ll_cache8_scale(tail, 0) * ((float)q + ll_cache4_zero(tail));
}
static inline LL_BOTH float ll_cache4_value(const uint8_t *row, int64_t d, int64_t i)
{
    const uint8_t *tail = row + ll_cache4_half(d) + i / LL_CACHE4_GROUP * LL_CACHE4_TAIL;
    return ll_cache4_times(tail, ll_cache4_number(row, ll_cache4_half(d), i));
}
static inline LL_BOTH float ll_cache4_key(const ll_cache4_ring *r, int64_t p, int64_t at, int64_t i)
{
    if (p >= at - at % LL_CACHE4_GROUP) return ll_cache4_newest(r, p, i);
    int q = ll_cache4_number(r->first + p * r->step, ll_cache4_half(r->d), i);
    return ll_cache4_times(r->first + ll_cache4_tail(r->step, r->d, p, i), q);
}
/* The place that a pair says it is of, and saying so. */
static inline LL_BOTH int64_t ll_cache4_place(const ll_cache4_ring *r, const uint8_t *pair)
{
    const uint8_t *a = pair + ll_cache4_half(r->d), *b = a + r->step;
    return a[2] | b[0] << 8 | b[1] << 16 | (int64_t)b[2] << 24;
}
static inline LL_BOTH void ll_cache4_set_place(const ll_cache4_ring *r, uint8_t *pair, int64_t p)
{
    uint8_t *a = pair + ll_cache4_half(r->d), *b = a + r->step;
    a[2] = (uint8_t)p, b[0] = (uint8_t)(p >> 8), b[1] = (uint8_t)(p >> 16),
    b[2] = (uint8_t)(p >> 24);
}

/* Is all of the group from a place on in the ring, and not made yet? */
static inline LL_BOTH bool ll_cache4_waits(const ll_cache4_ring *r, int64_t from)
{
    bool waits = true;
    for (int64_t p = from; waits && p < from + LL_CACHE4_GROUP; p++)
        waits = ll_cache4_place(r, ll_cache4_pair(r, p)) == p;
    return waits;
}
/* Channel i of that group, from the ring to 4 bits. */
static inline LL_BOTH void ll_cache4_settle(const ll_cache4_ring *r, int64_t from, int64_t i)
{
    uint8_t *tail = r->first + ll_cache4_tail(r->step, r->d, from, i);
    int64_t end = from + LL_CACHE4_GROUP;
    float least = INFINITY, most = -INFINITY;
    for (int64_t p = from; p < end; p++) {
        least = fminf(least, ll_cache4_newest(r, p, i));
        most = fmaxf(most, ll_cache4_newest(r, p, i));
    }
    ll_cache4_begin(tail, least, most);
    for (int64_t p = from; p < end; p++)
        ll_cache4_put(r->first + p * r->step, ll_cache4_half(r->d), i,
                      ll_cache4_round(tail, ll_cache4_newest(r, p, i)));
}
