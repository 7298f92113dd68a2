/* packed.c: a product with packed weights. Blocks of x are rounded to 8 bits once; then rows of
 * weights are multiplied with them as whole numbers, several rows, and several of x, at once: each
 * weight is read once for so many. With AVX-512 VNNI four blocks are one register. A result has the
 * same bits whatever is made beside it. */
#include "base/num.h"
#include "kern/attr.h"
#include "kern/cpu/row.h"
#include "kern/cpu/vec.h"
#include "kern/cpu/vecmath.h"

#include <math.h>
#include <string.h>
#if defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif
#if defined(__F16C__) || defined(__SSSE3__)
#include <immintrin.h>
#endif

LL_KERNELS(packed_matmul, packed_several)

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__) &&                   \
    defined(__AVX512DQ__)
#define WIDE 1
enum { GROUP = 4, MORE = 16 }; /* blocks of a register; bytes of `more` for each */
#else
enum { GROUP = 1, MORE = 0 };
#endif
enum { AHEAD = 4096 }; /* bytes: weights of a decoding step are read once, from memory */

/* The call, with x rounded: k [m,groups,GROUP,32], d and d times the sum of k [m,groups,GROUP]. */
typedef struct job {
    int64_t m, rows, blocks, bits;
    const float *x;
    const uint8_t *q;
    const uint16_t *scale, *least;
    int8_t *k;
    int32_t *more; /* [m,groups,16], of 8 bits and GROUP 4 */
    float *d, *sum, *y;
} job;

#if defined(WIDE)
/* Groups of four blocks of x lie as weights of 4 bits do: the first halves of all four, then the
 * second ones. What is behind the last block is 0. Products are of an unsigned number and one of x:
 * 8-bit weights are moved up by 128, and so many times what x adds up to, `more`, is taken away. */
static int64_t groups_of(const job *j)
{
    return ll_ceil_div(j->blocks, 4);
}

/* The largest of each of four vectors. */
LL_INLINE __m128 tops_of(const __m512 v[4])
{
    __m128 q[4];
    EACH (u, 4) {
        __m256 half = _mm256_max_ps(_mm512_castps512_ps256(v[u]), _mm512_extractf32x8_ps(v[u], 1));
        q[u] = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    }
    _MM_TRANSPOSE4_PS(q[0], q[1], q[2], q[3]);
    return _mm_max_ps(_mm_max_ps(q[0], q[1]), _mm_max_ps(q[2], q[3]));
}

/* Four sums of four, which lie one behind another. */
LL_INLINE __m128i fours_of(__m512i v)
{
    const __m512i first = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
    v = _mm512_add_epi32(v, _mm512_shuffle_epi32(v, 0x4e));
    v = _mm512_add_epi32(v, _mm512_shuffle_epi32(v, 0xb1));
    return _mm512_castsi512_si128(_mm512_permutexvar_epi32(first, v));
}

static void round_group(const job *j, int64_t col, int64_t g)
{
    const __m512i one = _mm512_set1_epi8(1);
    const int64_t at = col * groups_of(j) + g, left = j->blocks - 4 * g;
    int8_t *k = j->k + at * 128;
    __m512 v[4][2], top[4];
    EACH (u, 4) {
        const float *x = j->x + (col * j->blocks + 4 * g + u) * 32;
        EACH (h, 2) v[u][h] = u < left ? _mm512_loadu_ps(x + 16 * h) : _mm512_setzero_ps();
        top[u] = _mm512_max_ps(_mm512_abs_ps(v[u][0]), _mm512_abs_ps(v[u][1]));
    }
    __m128 d = _mm_div_ps(tops_of(top), _mm_set1_ps(127)), zero = _mm_setzero_ps();
    __m128 by = _mm_maskz_div_ps(_mm_cmp_ps_mask(d, zero, _CMP_GT_OQ), _mm_set1_ps(1), d);
    EACH (u, 4) {
        __m512 times = _mm512_permutexvar_ps(_mm512_set1_epi32(u), _mm512_castps128_ps512(by));
        EACH (h, 2) {
            __m512i w = _mm512_cvtps_epi32(_mm512_mul_ps(v[u][h], times));
            _mm_storeu_si128((__m128i *)(k + 64 * h + 16 * u), _mm512_cvtepi32_epi8(w));
        }
    }
    __m512i all = _mm512_setzero_si512();
    EACH (h, 2) all = _mm512_dpbusd_epi32(all, one, _mm512_loadu_si512(k + 64 * h));
    _mm_storeu_ps(j->d + 4 * at, d);
    _mm_storeu_ps(j->sum + 4 * at, _mm_mul_ps(d, _mm_cvtepi32_ps(fours_of(all))));
    if (j->bits == 8) /* 128 times */
        _mm512_storeu_si512(j->more + at * 16,
                            _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(all, 7)));
}

static void round_groups(const void *given, int64_t from, int64_t to)
{
    const job *j = (const job *)given;
    for (int64_t i = from; i < to; i++) round_group(j, i / groups_of(j), i % groups_of(j));
}

/* What the least of a row's blocks add, 16 at a time. */
LL_INLINE __m512 low_of(const job *j, int64_t row, int64_t col)
{
    const uint16_t *least = j->least + row * j->blocks;
    const float *sum = j->sum + col * groups_of(j) * 4;
    __m512 low = _mm512_setzero_ps();
    for (int64_t b = 0; b < j->blocks; b += 16) {
        int64_t left = j->blocks - b;
        __mmask16 some = (__mmask16)(left >= 16 ? 0xffff : (1 << left) - 1);
        __m512 l = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(some, least + b));
        low = _mm512_fmadd_ps(l, _mm512_maskz_loadu_ps(some, sum + b), low);
    }
    return low;
}

/* Halves of n blocks, as unsigned numbers. */
LL_INLINE void halves_at(const uint8_t *q, int n, bool four, __m512i w[2])
{
    const __m512i up = _mm512_set1_epi8((char)0x80), nibble = _mm512_set1_epi8(15);
    if (four) {
        __m512i p = n == 4 ? _mm512_loadu_si512(q)
                           : _mm512_maskz_loadu_epi8(((__mmask64)1 << 16 * n) - 1, q);
        w[0] = _mm512_and_si512(p, nibble);
        w[1] = _mm512_and_si512(_mm512_srli_epi16(p, 4), nibble);
        return;
    }
    __m512i a, b;
    if (n == 4) {
        a = _mm512_loadu_si512(q);
        b = _mm512_loadu_si512(q + 64);
    } else { /* 1 to 3 */
        a = _mm512_maskz_loadu_epi8(n > 1 ? ~(__mmask64)0 : 0xffffffff, q);
        b = _mm512_maskz_loadu_epi8(n > 2 ? 0xffffffff : 0, q + 64);
    }
    w[0] = _mm512_xor_si512(_mm512_shuffle_i64x2(a, b, 0x88), up);
    w[1] = _mm512_xor_si512(_mm512_shuffle_i64x2(a, b, 0xdd), up);
}

/* Four lanes for each of four blocks, from block `at` of 16 on. */
LL_INLINE __m512i lanes_of(int at)
{
    const __m512i each = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    return _mm512_add_epi32(each, _mm512_set1_epi32(at));
}

/* What group `of` of x and weights give, times their scales. */
LL_INLINE __m512 group_sum(const job *j, int64_t of, const __m512i w[2], bool four, __m512 scale,
                           __m512 acc)
{
    const int8_t *k = j->k + of * 128;
    __m512i sum = four ? _mm512_setzero_si512() : _mm512_loadu_si512(j->more + of * 16);
    sum = _mm512_dpbusd_epi32(sum, w[0], _mm512_loadu_si512(k));
    sum = _mm512_dpbusd_epi32(sum, w[1], _mm512_loadu_si512(k + 64));
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, acc);
}

LL_INLINE const uint8_t *weights_of(const job *j, int64_t row, int64_t g, bool four)
{
    return j->q + (row * j->blocks + 4 * g) * (four ? 16 : 32);
}

/* To the first cache or, of 8 bits, the second, which has room for more lines that are under way:
 * these products wait for memory alone. */
LL_INLINE void fetch(const uint8_t *q, bool four)
{
    if (four) __builtin_prefetch(q + AHEAD);
    if (!four) __builtin_prefetch(q + 2 * AHEAD, 0, 2);
    if (!four) __builtin_prefetch(q + 2 * AHEAD + 64, 0, 2);
}

/* Group g, of n blocks, of R rows from `row` on and C of x from `col` on. */
LL_INLINE void group_of(const job *j, int64_t row, int64_t col, int64_t g, int n, int R, int C,
                        bool four, __m512 acc[4][4])
{
    const __m512i each = lanes_of(0);
    __m512 d[4];
    EACH (c, C) {
        const float *of = j->d + ((col + c) * groups_of(j) + g) * 4;
        d[c] = _mm512_permutexvar_ps(each, _mm512_castps128_ps512(_mm_loadu_ps(of)));
    }
    EACH (r, R) {
        int64_t at = (row + r) * j->blocks + 4 * g;
        __m128i f16 = n == 4 ? _mm_loadl_epi64((const __m128i *)(j->scale + at))
                             : _mm_maskz_loadu_epi16((__mmask8)((1 << n) - 1), j->scale + at);
        __m512 s = _mm512_permutexvar_ps(each, _mm512_castps128_ps512(_mm_cvtph_ps(f16)));
        __m512i w[2];
        halves_at(weights_of(j, row + r, g, four), n, four, w);
        if (C == 1) fetch(weights_of(j, row + r, g, four), four);
        EACH (c, C)
            acc[r][c] = group_sum(j, (col + c) * groups_of(j) + g, w, four, _mm512_mul_ps(s, d[c]),
                                  acc[r][c]);
    }
}

/* 16 blocks of one x, of which every weight is read from memory: their scales are made at once. */
LL_INLINE void sixteen_of(const job *j, int64_t row, int64_t col, int64_t g, int R, bool four,
                          __m512 acc[4][4])
{
    const int64_t of = col * groups_of(j) + g;
    __m512 d = _mm512_loadu_ps(j->d + 4 * of), scale[4];
    EACH (r, R) {
        const uint16_t *s = j->scale + (row + r) * j->blocks + 4 * g;
        scale[r] = _mm512_mul_ps(_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)s)), d);
    }
    EACH (k, 4)
        EACH (r, R) {
            const uint8_t *q = weights_of(j, row + r, g + k, four);
            __m512i w[2];
            halves_at(q, 4, four, w);
            fetch(q, four);
            acc[r][0] = group_sum(j, of + k, w, four,
                                  _mm512_permutexvar_ps(lanes_of(4 * k), scale[r]), acc[r][0]);
        }
}

/* Sums of R vectors, each in the order of _mm512_reduce_add_ps. */
LL_INLINE void totals_of(const __m512 *v, int R, float *y)
{
    __m128 q[4];
    if (R < 4) {
        EACH (r, R) y[r] = _mm512_reduce_add_ps(v[r]);
        return;
    }
    EACH (r, 4) {
        __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v[r]), _mm512_extractf32x8_ps(v[r], 1));
        q[r] = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    }
    _MM_TRANSPOSE4_PS(q[0], q[1], q[2], q[3]);
    _mm_storeu_ps(y, _mm_add_ps(_mm_add_ps(q[0], q[2]), _mm_add_ps(q[1], q[3])));
}

LL_INLINE void tile(const job *j, int64_t row, int64_t col, int R, int C, bool four)
{
    __m512 acc[4][4];
    int64_t g = 0;
    EACH (r, R)
        EACH (c, C) acc[r][c] = four ? low_of(j, row + r, col + c) : _mm512_setzero_ps();
    for (; C == 1 && 4 * g + 16 <= j->blocks; g += 4) sixteen_of(j, row, col, g, R, four, acc);
    for (; 4 * g + 4 <= j->blocks; g++) group_of(j, row, col, g, 4, R, C, four, acc);
    switch (j->blocks - 4 * g) {
    case 3: group_of(j, row, col, g, 3, R, C, four, acc); break;
    case 2: group_of(j, row, col, g, 2, R, C, four, acc); break;
    case 1: group_of(j, row, col, g, 1, R, C, four, acc); break;
    }
    if (C == 1) {
        __m512 all[4];
        EACH (r, R) all[r] = acc[r][0];
        totals_of(all, R, j->y + col * j->rows + row);
        return;
    }
    EACH (r, R)
        EACH (c, C) j->y[(col + c) * j->rows + row + r] = _mm512_reduce_add_ps(acc[r][c]);
}

/* Rows of a tile of C of x. */
#define TILE_ROWS(C, four) ((C) > 1 || (four) ? 4 : 2)
#else
typedef int8_t bytes16 __attribute__((vector_size(16), aligned(1), may_alias));
typedef int32_t ints4 __attribute__((vector_size(16)));
typedef float floats4 __attribute__((vector_size(16)));

/* sum, and the products of 16 pairs added to it, in any of its four places */
LL_INLINE ints4 dot16(ints4 sum, bytes16 a, bytes16 b)
{
#if defined(__ARM_FEATURE_DOTPROD)
    return (ints4)vdotq_s32((int32x4_t)sum, (int8x16_t)a, (int8x16_t)b);
#elif defined(__SSSE3__) /* unsigned by signed is what there is: |a| times b with a's sign */
    __m128i size = _mm_abs_epi8((__m128i)a), other = _mm_sign_epi8((__m128i)b, (__m128i)a);
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    return (ints4)_mm_dpbusd_epi32((__m128i)sum, size, other);
#else /* sums of two are below 2^15: b has no -128 */
    __m128i pairs = _mm_maddubs_epi16(size, other);
    return sum + (ints4)_mm_madd_epi16(pairs, _mm_set1_epi16(1));
#endif
#else
    typedef int16_t shorts16 __attribute__((vector_size(32)));
    typedef int32_t ints16 __attribute__((vector_size(64)));
    shorts16 p = __builtin_convertvector(a, shorts16) * __builtin_convertvector(b, shorts16);
    ints16 w = __builtin_convertvector(p, ints16);
    for (int i = 0; i < 4; i++) sum[i] += w[i] + w[4 + i] + w[8 + i] + w[12 + i];
    return sum;
#endif
}

/* Four f16. */
LL_INLINE floats4 halves4(const uint16_t *p)
{
#if defined(__ARM_FEATURE_DOTPROD)
    return (floats4)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
#elif defined(__F16C__)
    return (floats4)_mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)p));
#else
    return (floats4){(float)ll_load(p, LL_F16, 0), (float)ll_load(p, LL_F16, 1),
                     (float)ll_load(p, LL_F16, 2), (float)ll_load(p, LL_F16, 3)};
#endif
}

static int64_t groups_of(const job *j)
{
    return j->blocks;
}

static void round_block(const float *x, int8_t *k, float *d, float *sum)
{
    float top = 0;
    int all = 0;
    for (int i = 0; i < 32; i++) top = fabsf(x[i]) > top ? fabsf(x[i]) : top;
    *d = top / 127;
    float by = *d > 0 ? 1 / *d : 0;
    for (int i = 0; i < 32; i++) {
        float w = rintf(x[i] * by);
        k[i] = (int8_t)w;
        all += (int)w;
    }
    *sum = *d * (float)all;
}

static void round_groups(const void *given, int64_t from, int64_t to)
{
    const job *j = (const job *)given;
    for (int64_t b = from; b < to; b++)
        round_block(j->x + b * 32, j->k + b * 32, &j->d[b], &j->sum[b]);
}

/* Block b of a row, as 32 whole numbers. */
LL_INLINE void weights_at(const job *j, int64_t at, bool four, bytes16 w[2])
{
    typedef uint8_t ubytes16 __attribute__((vector_size(16), aligned(1), may_alias));
    if (four) {
        ubytes16 p = *(const ubytes16 *)(j->q + at * 16);
        w[0] = (bytes16)(p & 15);
        w[1] = (bytes16)(p >> 4);
    } else {
        w[0] = *(const bytes16 *)(j->q + at * 32);
        w[1] = *(const bytes16 *)(j->q + at * 32 + 16);
    }
}

/* Of n blocks; of others 0. */
LL_INLINE floats4 halves_of(const uint16_t *p, int n)
{
    uint16_t some[4] = {0};
    if (n == 4) return halves4(p);
    memcpy(some, p, sizeof *p * (size_t)n);
    return halves4(some);
}
LL_INLINE floats4 floats_of(const float *p, int n)
{
    floats4 v = {0};
    memcpy(&v, p, sizeof *p * (size_t)n);
    return v;
}

/* Blocks b to b + n of R rows from `row` on and C of x from `col` on. */
LL_INLINE void blocks_of(const job *j, int64_t row, int64_t col, int64_t b, int n, int R, int C,
                         bool four, floats4 acc[4][4], floats4 low[4][4])
{
    floats4 f[4][4];
    EACH (r, R) {
        int64_t at = (row + r) * j->blocks + b;
        floats4 s = halves_of(j->scale + at, n), least = {0};
        if (four) least = halves_of(j->least + at, n);
        EACH (c, C) {
            int64_t of = (col + c) * j->blocks + b;
            f[r][c] = s * floats_of(j->d + of, n);
            if (four) low[r][c] += least * floats_of(j->sum + of, n);
        }
    }
    EACH (u, n) {
        bytes16 w[4][2];
        EACH (r, R) {
            int64_t at = (row + r) * j->blocks + b + u;
            weights_at(j, at, four, w[r]);
            if (C == 1) __builtin_prefetch(j->q + at * (four ? 16 : 32) + AHEAD);
        }
        EACH (c, C) {
            const int8_t *k = j->k + ((col + c) * j->blocks + b + u) * 32;
            bytes16 k0 = *(const bytes16 *)k, k1 = *(const bytes16 *)(k + 16);
            EACH (r, R) {
                ints4 sum = dot16(dot16((ints4){0}, w[r][0], k0), w[r][1], k1);
                acc[r][c] += __builtin_convertvector(sum, floats4) * f[r][c][u];
            }
        }
    }
}

LL_INLINE void tile(const job *j, int64_t row, int64_t col, int R, int C, bool four)
{
    floats4 acc[4][4], low[4][4];
    int64_t b = 0;
    EACH (r, R)
        EACH (c, C) acc[r][c] = low[r][c] = (floats4){0};
    for (; b + 4 <= j->blocks; b += 4) blocks_of(j, row, col, b, 4, R, C, four, acc, low);
    for (; b < j->blocks; b++) blocks_of(j, row, col, b, 1, R, C, four, acc, low);
    EACH (r, R)
        EACH (c, C) {
            floats4 a = acc[r][c] + low[r][c];
            j->y[(col + c) * j->rows + row + r] = (a[0] + a[1]) + (a[2] + a[3]);
        }
}

#define TILE_ROWS(C, four) ((C) > 1 ? 2 : 4)
#endif

LL_INLINE void columns_of(const job *j, int64_t from, int64_t to, int64_t col, int C, bool four)
{
    int64_t row = from;
    const int R = TILE_ROWS(C, four);
    for (; row + R <= to; row += R) tile(j, row, col, R, C, four);
    for (; row < to; row++) tile(j, row, col, 1, C, four);
}

LL_INLINE void rows_of(const job *j, int64_t from, int64_t to, bool four)
{
    int64_t col = 0;
    for (; col + 4 <= j->m; col += 4) columns_of(j, from, to, col, 4, four);
    for (; col + 2 <= j->m; col += 2) columns_of(j, from, to, col, 2, four);
    if (col < j->m) columns_of(j, from, to, col, 1, four);
}

/* Pieces of rows that stay in the cache while all of x goes by. */
static void rows_from(const job *j, int64_t from, int64_t to)
{
    int64_t step = j->m > 1 ? 32 : to - from;
    for (; from < to; from += step) {
        int64_t end = ll_min64(from + step, to);
        if (j->bits == 4)
            rows_of(j, from, end, true);
        else
            rows_of(j, from, end, false);
    }
}

/* Products with one x. */
typedef struct several {
    job of[3];
    int n;
    int64_t act;
    const float *more;
} several;

/* What is made of results [from, to) of each row of x. */
static void act_on(const several *p, int64_t from, int64_t to)
{
    const job *last = &p->of[p->n - 1];
    for (int64_t col = 0; col < last->m; col++) {
        bool gate = p->act == LL_PACKED_GATE;
        const float *x = (gate ? p->of[0].y : p->more) + col * last->rows;
        float *y = last->y + col * last->rows;
        if (gate) {
#pragma omp simd
            for (int64_t i = from; i < to; i++) y[i] *= ll_siluf(x[i]);
        } else {
#pragma omp simd
            for (int64_t i = from; i < to; i++) y[i] += x[i];
        }
    }
}

/* Rows of one matrix after another; those of a gate beside each other. */
static void some_rows(const void *given, int64_t from, int64_t to)
{
    const several *p = (const several *)given;
    int64_t first = 0;
    for (int i = 0; i < p->n; i++) {
        int64_t rows = p->of[i].rows, a = ll_max64(from - first, 0);
        rows_from(&p->of[i], a, ll_min64(to - first, rows));
        if (p->act != LL_PACKED_GATE) first += rows;
    }
    if (p->act != LL_PACKED_NONE) act_on(p, from, to);
}

/* Loops of weights, whose scales are given. */
static job job_of(const ll_kcall *c, const ll_shape *scale, int64_t bits, int64_t dims,
                  const ll_tensor *out)
{
    job j = {.rows = 1, .blocks = 1, .bits = bits, .y = (float *)out->data};
    for (int d = 0; d < scale->n; d++) *(d < dims ? &j.rows : &j.blocks) *= scale->d[d];
    j.m = j.rows ? ll_numel(&out->shape) / j.rows : 0;
    j.x = (const float *)c->in[0].data;
    return j;
}

static void set_weights(job *j, const ll_tensor *in)
{
    j->q = (const uint8_t *)in[0].data;
    j->scale = (const uint16_t *)in[1].data;
    j->least = j->bits == 4 ? (const uint16_t *)in[2].data : NULL;
}

/* Of x that is rounded. */
static size_t room_of(const job *j)
{
    return (size_t)(j->m * groups_of(j) * GROUP) * (32 + 2 * sizeof(float) + MORE);
}

static void run(const ll_kcall *c, several *p)
{
    job *j = p->of;
    int64_t n = j->m * groups_of(j), rows = p->act == LL_PACKED_GATE ? j->rows : 0, all = 0;
    j->k = (int8_t *)c->scratch;
    j->more = (int32_t *)(j->k + n * GROUP * 32);
    j->d = (float *)((char *)j->more + n * GROUP * MORE);
    j->sum = j->d + n * GROUP;
    for (int i = 0; i < p->n; i++) {
        job *k = &p->of[i];
        k->k = j->k, k->more = j->more, k->d = j->d, k->sum = j->sum;
        all += k->rows;
    }
    ll_in_parts(ll_team(c, n * GROUP * 32), n, round_groups, j);
    ll_in_parts(ll_team(c, n * GROUP * 32 * all), rows ? rows : all, some_rows, p);
}

size_t packed_matmul_cpu_scratch(const ll_kcall *c)
{
    const ll_packed_attr *a = (const ll_packed_attr *)c->attr;
    job j = job_of(c, &c->in[2].shape, a->bits, a->rows, &c->out[0]);
    return room_of(&j);
}

ll_err packed_matmul_cpu(const ll_kcall *c)
{
    const ll_packed_attr *a = (const ll_packed_attr *)c->attr;
    several p = {.n = 1, .act = LL_PACKED_NONE};
    p.of[0] = job_of(c, &c->in[2].shape, a->bits, a->rows, &c->out[0]);
    set_weights(&p.of[0], c->in + 1);
    run(c, &p);
    return LL_OK;
}

static several several_of(const ll_kcall *c)
{
    const ll_packed_several_attr *a = (const ll_packed_several_attr *)c->attr;
    int each = a->bits == 4 ? 3 : 2;
    several p = {.n = a->act == LL_PACKED_GATE ? 2 : c->n_out, .act = a->act};
    for (int i = 0; i < p.n; i++) {
        const ll_tensor *w = &c->in[1 + i * each];
        p.of[i] =
            job_of(c, &w[1].shape, a->bits, ll_packed_rows(a, i), &c->out[i < c->n_out ? i : 0]);
        set_weights(&p.of[i], w);
    }
    if (a->act == LL_PACKED_ADD) p.more = (const float *)c->in[c->n_in - 1].data;
    return p;
}

size_t packed_several_cpu_scratch(const ll_kcall *c)
{
    several p = several_of(c);
    bool gate = p.act == LL_PACKED_GATE;
    return room_of(p.of) + (gate ? (size_t)(p.of->m * p.of->rows) * sizeof(float) : 0);
}

ll_err packed_several_cpu(const ll_kcall *c)
{
    several p = several_of(c);
    if (p.act == LL_PACKED_GATE) p.of[0].y = (float *)((char *)c->scratch + room_of(p.of));
    run(c, &p);
    return LL_OK;
}
