/* packed.c: a product with packed weights. Blocks of x are rounded to 8 bits once; then rows of
 * weights are multiplied with them as whole numbers, four rows, or two rows and four of x, at once:
 * each weight is read once for so many. With AVX-512 four of x lie side by side in one register:
 * the same numbers, added in the same order. */
#include "kern/attr.h"
#include "kern/cpu/row.h"
#include "kern/cpu/vec.h"

#include <math.h>
#include <string.h>
#if defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif
#if defined(__F16C__) || defined(__SSSE3__)
#include <immintrin.h>
#endif

ll_kernel packed_matmul_cpu;
ll_scratch packed_matmul_cpu_scratch;

enum { AHEAD = 4096 }; /* bytes: weights of a decoding step are read once, from memory */

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

/* The call, with x rounded: k [m,blocks,32], d [m,blocks], d times the sum of k. */
typedef struct job {
    int64_t m, rows, blocks, bits;
    const float *x;
    const uint8_t *q;
    const uint16_t *scale, *least;
    int8_t *k;
    float *d, *sum, *y;
} job;

static void round_blocks(const void *given, int64_t from, int64_t to)
{
    const job *j = (const job *)given;
    for (int64_t b = from; b < to; b++) {
        const float *x = j->x + b * 32;
        float top = 0, by;
        int all = 0;
        for (int i = 0; i < 32; i++) top = fabsf(x[i]) > top ? fabsf(x[i]) : top;
        j->d[b] = top / 127;
        by = j->d[b] > 0 ? 1 / j->d[b] : 0;
        for (int i = 0; i < 32; i++) {
            float v = rintf(x[i] * by);
            j->k[b * 32 + i] = (int8_t)v;
            all += (int)v;
        }
        j->sum[b] = j->d[b] * (float)all;
    }
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

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#define WIDE 1
/* What the least of a row's blocks add, in the order of blocks_of. */
LL_INLINE floats4 low_of(const job *j, int64_t row, int64_t col)
{
    floats4 low = {0};
    int64_t b = 0;
    for (; b + 4 <= j->blocks; b += 4)
        low += halves4(j->least + row * j->blocks + b) * floats_of(j->sum + col * j->blocks + b, 4);
    for (; b < j->blocks; b++)
        low += halves_of(j->least + row * j->blocks + b, 1) *
               floats_of(j->sum + col * j->blocks + b, 1);
    return low;
}

/* Four columns of x from col on, a quarter of a register each; what is behind the last is 0. */
LL_INLINE __m512i columns_of(const job *j, int64_t col, int64_t at)
{
    __m128i v[4];
    EACH (c, 4)
        v[c] = col + c < j->m
                   ? _mm_loadu_si128((const __m128i *)(j->k + (col + c) * j->blocks * 32 + at))
                   : _mm_setzero_si128();
    __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(v[0]), v[1], 1);
    __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(v[2]), v[3], 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

LL_INLINE __m512 scales_of(const job *j, const float *of, int64_t col, int64_t b)
{
    float v[4];
    EACH (c, 4) v[c] = col + c < j->m ? of[(col + c) * j->blocks + b] : 0;
    __m128 all = _mm_loadu_ps(v);
    const __m512i each = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    return _mm512_permutexvar_ps(each, _mm512_castps128_ps512(all));
}

/* Products are of an unsigned number and one of x: 8-bit weights are moved up by 128, and so many
 * times what x adds up to is taken away again. */
LL_INLINE void wide_tile(const job *j, int64_t row, int64_t col, int R, bool four)
{
    const __m512i up = _mm512_set1_epi8((char)0x80);
    __m512 acc[8];
    EACH (r, R) acc[r] = _mm512_setzero_ps();
    for (int64_t b = 0; b < j->blocks; b++) {
        __m512i k0 = columns_of(j, col, b * 32), k1 = columns_of(j, col, b * 32 + 16);
        __m512 d = scales_of(j, j->d, col, b);
        __m512i zero = _mm512_setzero_si512(), more = zero;
        if (!four) {
            more = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(zero, up, k0), up, k1);
            more = _mm512_sub_epi32(zero, more);
        }
        EACH (r, R) {
            int64_t at = (row + r) * j->blocks + b;
            __m512i w0, w1;
            if (four) {
                __m128i p = _mm_loadu_si128((const __m128i *)(j->q + at * 16));
                __m128i nibble = _mm_set1_epi8(15);
                w0 = _mm512_broadcast_i32x4(_mm_and_si128(p, nibble));
                w1 = _mm512_broadcast_i32x4(_mm_and_si128(_mm_srli_epi16(p, 4), nibble));
            } else {
                const __m128i *q = (const __m128i *)(j->q + at * 32);
                w0 = _mm512_xor_si512(_mm512_broadcast_i32x4(_mm_loadu_si128(q)), up);
                w1 = _mm512_xor_si512(_mm512_broadcast_i32x4(_mm_loadu_si128(q + 1)), up);
            }
            __m512i sum = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(more, w0, k0), w1, k1);
            __m512 s = _mm512_set1_ps((float)_cvtsh_ss(j->scale[at]));
            acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(s, d), acc[r]);
        }
    }
    EACH (r, R) {
        float a[16];
        _mm512_storeu_ps(a, acc[r]);
        EACH (c, 4) {
            if (col + c >= j->m) continue;
            floats4 v = floats_of(a + 4 * c, 4);
            if (four) v += low_of(j, row + r, col + c);
            j->y[(col + c) * j->rows + row + r] = (v[0] + v[1]) + (v[2] + v[3]);
        }
    }
}
#endif

LL_INLINE void rows_of(const job *j, int64_t from, int64_t to, bool four)
{
    int64_t col = 0;
#ifdef WIDE
    for (; j->m > 1 && col < j->m; col += 4) {
        int64_t row = from;
        for (; row + 8 <= to; row += 8) wide_tile(j, row, col, 8, four);
        for (; row < to; row++) wide_tile(j, row, col, 1, four);
    }
#endif
    for (; col + 4 <= j->m; col += 4) {
        int64_t row = from;
        for (; row + 2 <= to; row += 2) tile(j, row, col, 2, 4, four);
        for (; row < to; row++) tile(j, row, col, 1, 4, four);
    }
    for (; col < j->m; col++) {
        int64_t row = from;
        for (; row + 4 <= to; row += 4) tile(j, row, col, 4, 1, four);
        for (; row < to; row++) tile(j, row, col, 1, 1, four);
    }
}

/* Pieces of rows that stay in the cache while all of x goes by. */
static void some_rows(const void *given, int64_t from, int64_t to)
{
    const job *j = (const job *)given;
    int64_t step = j->m > 1 ? 32 : to - from;
    for (; from < to; from += step) {
        int64_t end = from + step < to ? from + step : to;
        if (j->bits == 4)
            rows_of(j, from, end, true);
        else
            rows_of(j, from, end, false);
    }
}

static job job_of(const ll_kcall *c)
{
    const ll_packed_attr *a = (const ll_packed_attr *)c->attr;
    const ll_shape *s = &c->in[2].shape;
    job j = {.rows = 1, .blocks = 1, .bits = a->bits};
    for (int d = 0; d < s->n; d++) *(d < a->rows ? &j.rows : &j.blocks) *= s->d[d];
    j.m = j.rows ? ll_numel(&c->out[0].shape) / j.rows : 0;
    return j;
}

size_t packed_matmul_cpu_scratch(const ll_kcall *c)
{
    job j = job_of(c);
    return (size_t)(j.m * j.blocks) * (32 + 2 * sizeof(float));
}

ll_err packed_matmul_cpu(const ll_kcall *c)
{
    job j = job_of(c);
    int64_t n = j.m * j.blocks;
    j.x = (const float *)c->in[0].data;
    j.q = (const uint8_t *)c->in[1].data;
    j.scale = (const uint16_t *)c->in[2].data;
    j.least = c->n_in > 3 ? (const uint16_t *)c->in[3].data : NULL;
    j.d = (float *)c->scratch;
    j.sum = j.d + n;
    j.k = (int8_t *)(j.sum + n);
    j.y = (float *)c->out[0].data;
    ll_in_parts(ll_team(c, n * 32), n, round_blocks, &j);
    ll_in_parts(ll_team(c, n * 32 * j.rows), j.rows, some_rows, &j);
    return LL_OK;
}
