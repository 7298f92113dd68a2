/* topk.c: exact selection by magnitude at the speed of memory.
 *
 * Magnitudes are compared as the bits of a float without its sign: for these, the order of unsigned
 * integers is the order of magnitudes, and NaN comes last. The pass over the data
 *   1. adds data to residual, writes the sum there and zeros to data, and
 *   2. appends every element whose magnitude reaches a limit to a list of candidates.
 * The limit is guessed beforehand from a sample of elements, a bit too low, so that some 1.3 k
 * candidates are expected; almost every group of elements has none and costs one compare. Then the
 * k-th largest candidate is found by its bits, from the top (a radix select: three histograms), and
 * one sweep over the candidates, which are in order of index, keeps what is larger, and of those
 * equal to it the first.
 *
 *     k = 2     sum    0.1  -3  0.2  2  -0.1  2  0.3      limit guessed: 1.5
 *               list   (1, -3) (3, 2) (5, 2)              second largest: 2, one of the two 2s
 *               kept   (1, -3) (3, 2)
 *
 * The guess can only cost time. Too low: when the list is full it is cut to its k largest, and the
 * limit becomes what an element needs to beat all of them (a later one of equal magnitude loses
 * the tie). Too high: fewer than k candidates; then the k-th largest is found among all sums. The
 * result is a function of the sums alone. */
#include "base/share.h"
#include "base/types.h"
#include "comm/topk.h"

#include <math.h>

enum {
    BLOCK = 512,         /* elements between two looks at the list: also, what f32 sums hold */
    GROUP = 32,          /* elements tested at once */
    SAMPLE_HITS = 160,   /* elements of the sample that should be among the k largest */
    SAMPLE_LEAST = 4096, /* elements in the sample, where there are so many */
    RADIX = 2048
};

struct ll_topk {
    ll_arena *arena;
    int64_t n, k;
    int64_t n_sample; /* 0: no guess; all sums are searched */
    float *sample;
    uint32_t *index; /* candidates */
    float *value;
    int64_t room;
};

typedef float floats __attribute__((vector_size(16), aligned(4), may_alias));
typedef uint32_t words __attribute__((vector_size(16), aligned(4), may_alias));
typedef uint64_t pairs __attribute__((vector_size(16), aligned(4), may_alias));

static inline uint32_t magnitude(float x)
{
    return ll_bits_of(x) & 0x7fffffffu;
}

ll_err ll_topk_open(int64_t n, int64_t k, ll_topk **out)
{
    *out = NULL;
    CHECK(n >= 0 && n < UINT32_MAX && k >= (n > 0) && k <= n, LL_E_ARG,
          "top %ld of %ld elements: expected 1 to %ld, and fewer than 2^32 elements", k, n, n);
    ll_arena *arena = ll_arena_new();
    LL_OWN(ll_topk) t = LL_NEW(arena, ll_topk);
    t->arena = arena;
    t->n = n;
    t->k = k;
    if (k <= n / 8) {
        double wanted = SAMPLE_HITS * (double)n / (double)k;
        t->n_sample = wanted < (double)n / 16 ? (int64_t)wanted : n / 16;
        if (t->n_sample < SAMPLE_LEAST) t->n_sample = n < SAMPLE_LEAST ? n : SAMPLE_LEAST;
        t->room = 3 * k + 2 * BLOCK;
        t->sample = LL_TRY_ARRAY(arena, float, t->n_sample);
        t->index = LL_TRY_ARRAY(arena, uint32_t, t->room);
        t->value = LL_TRY_ARRAY(arena, float, t->room);
        CHECK(t->sample && t->index && t->value, LL_E_MEM,
              "not enough memory to select the top %ld of %ld", k, n);
    }
    return LL_HAND(out, t);
}

void ll_topk_close(ll_topk *t)
{
    if (t) ll_arena_free(t->arena);
}

/* The r-th largest magnitude of x [n] (r from 1), and how many of that magnitude are among the r
 * largest. Three digits of 11, 10 and 10 bits, each by a histogram of the elements that agree in
 * the digits before. */
static uint32_t kth_largest(const float *x, int64_t n, int64_t r, int64_t *ties)
{
    static const int shift[] = {20, 10, 0}, bits[] = {11, 10, 10};
    uint32_t found = 0, known = 0;
    for (int pass = 0; pass < 3; pass++) {
        uint32_t count[2][RADIX] = {{0}}, mask = (1u << bits[pass]) - 1;
        int s = shift[pass];
        for (int64_t i = 0; i < n; i++) { /* two tables: neighbours often share a digit */
            uint32_t m = magnitude(x[i]);
            if ((m & known) == found) count[i & 1][(m >> s) & mask]++;
        }
        uint32_t digit = mask;
        for (;; digit--) {
            int64_t here = (int64_t)count[0][digit] + count[1][digit];
            if (r <= here) {
                *ties = r;
                break;
            }
            r -= here;
            LL_ASSERT(digit > 0);
        }
        found |= digit << s;
        known |= mask << s;
    }
    return found;
}

/* Keeps the k largest of x [n], in order, elements at [i] of a vector (NULL: i); returns the least
 * magnitude kept. */
static uint32_t keep(const float *x, const uint32_t *at, int64_t n, int64_t k, uint32_t *index,
                     float *value)
{
    int64_t ties, kept = 0;
    uint32_t least = kth_largest(x, n, k, &ties);
    for (int64_t i = 0; i < n && kept < k; i++) { /* no branch on what nobody can foresee */
        uint32_t m = magnitude(x[i]);
        index[kept] = at ? at[i] : (uint32_t)i;
        value[kept] = x[i];
        kept += m > least || (m == least && ties-- > 0);
    }
    LL_ASSERT(kept == k);
    return least;
}

/* The magnitude that somewhat more than k of the sums should reach. The sample takes one element of
 * each of n_sample equal stretches, at a place that changes, lest it follows rows of a matrix. */
static uint32_t guess(ll_topk *t, const float *data, const float *residual)
{
    int64_t n = t->n, m = t->n_sample, ties;
    for (int64_t i = 0; i < m; i++) {
        int64_t from, to;
        ll_share(n, (int)m, (int)i, &from, &to);
        uint64_t mixed = (uint64_t)(i + 1) * 0x9E3779B97F4A7C15u >> 32;
        int64_t at = from + (int64_t)(mixed * (uint64_t)(to - from) >> 32);
        t->sample[i] = data[at] + residual[at];
    }
    double hits = (double)m * (double)t->k / (double)n;
    int64_t r = (int64_t)ceil(hits + 3.5 * sqrt(hits) + 2);
    return kth_largest(t->sample, m, r < m ? r : m, &ties);
}

/* Adds a group; tells whether any sum reaches the limit; adds squares to four sums. */
static inline bool add_group(float *restrict data, float *restrict residual, words limit,
                             floats *squares)
{
    words hit = {0};
    floats zero = {0}, s = *squares;
    for (int j = 0; j < GROUP; j += 4) {
        floats a = *(const floats *)(data + j) + *(const floats *)(residual + j);
        *(floats *)(residual + j) = a;
        *(floats *)(data + j) = zero;
        hit |= (words)(((words)a & 0x7fffffffu) >= limit);
        s += a * a;
    }
    *squares = s;
    pairs h = (pairs)hit;
    return (h[0] | h[1]) != 0;
}

static inline int64_t append(ll_topk *t, int64_t have, const float *sums, int64_t from, int64_t to,
                             uint32_t limit)
{
    for (int64_t i = from; i < to; i++) {
        t->index[have] = (uint32_t)i;
        t->value[have] = sums[i];
        have += magnitude(sums[i]) >= limit;
    }
    return have;
}

/* The pass over one block; returns how many candidates there are now. */
static int64_t add_block(ll_topk *t, float *data, float *residual, int64_t from, int64_t to,
                         int64_t have, uint32_t limit, double *norm2)
{
    words limits = {limit, limit, limit, limit};
    floats squares = {0};
    int64_t i = from;
    for (; i + GROUP <= to; i += GROUP)
        if (add_group(data + i, residual + i, limits, &squares))
            have = append(t, have, residual, i, i + GROUP, limit);
    float rest = 0;
    for (int64_t j = i; j < to; j++) {
        residual[j] += data[j];
        data[j] = 0;
        rest += residual[j] * residual[j];
    }
    if (limit != UINT32_MAX) have = append(t, have, residual, i, to, limit);
    *norm2 += (double)squares[0] + squares[1] + squares[2] + squares[3] + rest;
    return have;
}

void ll_topk_take(ll_topk *t, float *data, float *residual, uint32_t *index, float *value,
                  double *norm2)
{
    uint32_t limit = t->n_sample ? guess(t, data, residual) : UINT32_MAX;
    int64_t have = 0;
    *norm2 = 0;
    for (int64_t from = 0; from < t->n; from += BLOCK) {
        int64_t to = from + BLOCK < t->n ? from + BLOCK : t->n;
        have = add_block(t, data, residual, from, to, have, limit, norm2);
        if (t->n_sample && have > t->room - BLOCK - 1) {
            limit = keep(t->value, t->index, have, t->k, t->index, t->value) + 1;
            have = t->k;
        }
    }
    bool guessed = t->n_sample && have >= t->k; /* else all sums are searched */
    if (t->k)
        keep(guessed ? t->value : residual, guessed ? t->index : NULL, guessed ? have : t->n, t->k,
             index, value);
    for (int64_t i = 0; i < t->k; i++) {
        residual[index[i]] = 0;
        value[i] += 0.0f; /* no -0: then absent and 0 are the same in every sum */
    }
}
