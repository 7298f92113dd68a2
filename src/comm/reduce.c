/* reduce.c: the arithmetic of collectives. A fold combines its sources in the canonical order of
 * sched.h; for 7 sources, ((0 1)(2 3))((4 5) 6).
 *
 * Sums of up to 4 sources, and of 8, are made in one pass that holds all in registers: every source
 * is read once, the result written once. Maxima and other counts go by blocks that stay in the
 * first cache, each by recursion over the tree; the root of a block is written last, so that the
 * result may take the place of any source.
 *
 * A vector is so many bytes, whatever they mean; type, operation and count are constants of each
 * loop after inlining. bf16 and f16 are widened to two vectors of f32; every addition rounds them
 * to nearest even, as if it had been stored. What is left after the last whole vector goes through
 * the same code in a padded one, so an element's bits do not depend on its place.
 *
 *   i32, u8   sums wrap modulo 2^32 and 2^8
 *   floats    a NaN stays one, in max and min too: none is ever hidden (which NaN is not promised);
 *             max(-0, +0) is +0, min is -0, whichever comes first */
#include "comm/comm.h"
#include "base/types.h"

#include <string.h>

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__F16C__)
#include <immintrin.h>
#endif

#ifdef __AVX2__
#define WIDTH 32
#else
#define WIDTH 16
#endif
#if defined(__SANITIZE_ADDRESS__) || !defined(__OPTIMIZE__) /* they take minutes over more */
#define INLINE static inline
#define UNROLL 1
#else
#define INLINE static inline __attribute__((always_inline))
#define UNROLL 4
#endif
#define BLOCK 4096

typedef uint8_t vec __attribute__((vector_size(WIDTH)));
typedef uint8_t u8v __attribute__((vector_size(WIDTH)));
typedef uint16_t u16v __attribute__((vector_size(WIDTH)));
typedef uint32_t u32v __attribute__((vector_size(WIDTH)));
typedef int32_t i32v __attribute__((vector_size(WIDTH)));
typedef uint64_t u64v __attribute__((vector_size(WIDTH)));
typedef float f32v __attribute__((vector_size(WIDTH)));
typedef double f64v __attribute__((vector_size(WIDTH)));

/* The elements of one vector while they are worked on: bf16 and f16 as f32 in two, others in the
 * first. */
typedef struct wide {
    vec v, u;
} wide;

/* Is it widened? A machine that adds f16 gets the bits of an f32 addition rounded once, as f32 has
 * more than twice the digits. */
INLINE bool is_half(ll_dtype t, ll_reduce how)
{
#ifdef __ARM_FEATURE_FP16_VECTOR_ARITHMETIC
    if (t == LL_F16) return how != LL_REDUCE_SUM;
#else
    (void)how;
#endif
    return t == LL_F16 || t == LL_BF16;
}

/* ---- f16 and f32, lane by lane; both ways give the same bits (NaN stays NaN) ---- */
INLINE wide from_f16(vec x)
{
    wide w;
#if defined(__aarch64__)
    float16x8_t h = (float16x8_t)x;
    w.v = (vec)vcvt_f32_f16(vget_low_f16(h));
    w.u = (vec)vcvt_high_f32_f16(h);
#elif defined(__F16C__) && WIDTH == 32
    w.v = (vec)_mm256_cvtph_ps(_mm256_castsi256_si128((__m256i)x));
    w.u = (vec)_mm256_cvtph_ps(_mm256_extracti128_si256((__m256i)x, 1));
#else
    u16v h = (u16v)x;
    f32v f[2];
    for (int i = 0; i < WIDTH / 2; i++) f[i / (WIDTH / 4)][i % (WIDTH / 4)] = ll_f16_to_f32(h[i]);
    w.v = (vec)f[0], w.u = (vec)f[1];
#endif
    return w;
}

INLINE vec to_f16(wide w)
{
#if defined(__aarch64__)
    return (vec)vcvt_high_f16_f32(vcvt_f16_f32((float32x4_t)w.v), (float32x4_t)w.u);
#elif defined(__F16C__) && WIDTH == 32
    __m128i low = _mm256_cvtps_ph((__m256)w.v, _MM_FROUND_TO_NEAREST_INT);
    __m128i high = _mm256_cvtps_ph((__m256)w.u, _MM_FROUND_TO_NEAREST_INT);
    return (vec)_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
#else
    f32v f[2] = {(f32v)w.v, (f32v)w.u};
    u16v h;
    for (int i = 0; i < WIDTH / 2; i++) h[i] = ll_f32_to_f16(f[i / (WIDTH / 4)][i % (WIDTH / 4)]);
    return (vec)h;
#endif
}

/* ---- bf16: the even elements and the odd ones, each in the upper half of a 32-bit lane ---- */
INLINE vec round_bf16(vec x)
{
    u32v u = (u32v)x, odd = (u32v)((u & 0x10000) != 0); /* -1: to nearest even */
    u32v number = (u32v)((f32v)x == (f32v)x);
    return (vec)(((u + 0x7fff - odd) | ~number) & 0xffff0000);
}

INLINE wide widen(vec x, ll_dtype t, ll_reduce how)
{
    if (is_half(t, how) && t == LL_F16) return from_f16(x);
    if (t == LL_BF16) return (wide){(vec)((u32v)x << 16), (vec)((u32v)x & 0xffff0000)};
    return (wide){.v = x};
}

INLINE vec narrow(wide w, ll_dtype t, ll_reduce how)
{
    if (is_half(t, how) && t == LL_F16) return to_f16(w);
    if (t == LL_BF16) return (vec)((u32v)w.v >> 16 | (u32v)w.u);
    return w.v;
}

/* ---- two elements become one ---- */
INLINE vec add(vec a, vec b, ll_dtype t)
{
    if (t == LL_F64) return (vec)((f64v)a + (f64v)b);
    if (t == LL_I32) return (vec)((u32v)a + (u32v)b);
    if (t == LL_U8) return (vec)((u8v)a + (u8v)b);
#ifdef __ARM_FEATURE_FP16_VECTOR_ARITHMETIC
    if (t == LL_F16) return (vec)vaddq_f16((float16x8_t)a, (float16x8_t)b);
#endif
    return (vec)((f32v)a + (f32v)b);
}

/* Lanes where a is larger, where both are equal, and where one is a NaN. */
INLINE void compare(vec a, vec b, ll_dtype t, vec *larger, vec *equal, vec *nan)
{
#define LANES(by)                                                                                  \
    (t == LL_F64   ? (vec)((f64v)a by(f64v) b)                                                     \
     : t == LL_I32 ? (vec)((i32v)a by(i32v) b)                                                     \
     : t == LL_U8  ? (vec)((u8v)a by(u8v) b)                                                       \
                   : (vec)((f32v)a by(f32v) b))
    *larger = LANES(>);
    *equal = LANES(==);
    *nan = ~(*larger | *equal | LANES(<));
#undef LANES
}

/* Equal numbers differ in bits only as zeros do, by their signs. */
INLINE vec extreme(vec a, vec b, ll_dtype t, bool max)
{
    vec larger, equal, nan;
    compare(a, b, t, &larger, &equal, &nan);
    vec take_a = max ? larger : ~larger;
    vec differ = (a & take_a) | (b & ~take_a);
    vec same = max ? a & b : a | b;
    vec r = (differ & ~equal) | (same & equal);
    return ll_dtype_is_float(t) ? (r & ~nan) | (add(a, b, t == LL_F64 ? t : LL_F32) & nan) : r;
}

INLINE vec one(vec a, vec b, ll_dtype t, ll_reduce how)
{
    return how == LL_REDUCE_SUM ? add(a, b, t) : extreme(a, b, t, how == LL_REDUCE_MAX);
}

INLINE wide combine(wide a, wide b, ll_dtype t, ll_reduce how)
{
    wide r = {.v = one(a.v, b.v, t, how)};
    if (!is_half(t, how)) return r;
    r.u = one(a.u, b.u, t, how);
    if (t == LL_F16) return how == LL_REDUCE_SUM ? from_f16(to_f16(r)) : r;
    return (wide){round_bf16(r.v), round_bf16(r.u)};
}

/* ---- one vector of the result ---- */
INLINE wide load(const char *const *src, int i, int64_t at, ll_dtype t, ll_reduce how)
{
    vec x;
    memcpy(&x, src[i] + at, WIDTH);
    return widen(x, t, how);
}

INLINE wide pair(const char *const *src, int i, int64_t at, ll_dtype t, ll_reduce how)
{
    return combine(load(src, i, at, t, how), load(src, i + 1, at, t, how), t, how);
}

INLINE wide four(const char *const *src, int i, int64_t at, ll_dtype t, ll_reduce how)
{
    return combine(pair(src, i, at, t, how), pair(src, i + 2, at, t, how), t, how);
}

INLINE vec tree(const char *const *src, int n_src, int64_t at, ll_dtype t, ll_reduce how)
{
    wide w;
    if (n_src == 2) w = pair(src, 0, at, t, how);
    if (n_src == 3) w = combine(pair(src, 0, at, t, how), load(src, 2, at, t, how), t, how);
    if (n_src == 4) w = four(src, 0, at, t, how);
    if (n_src == 8) w = combine(four(src, 0, at, t, how), four(src, 4, at, t, how), t, how);
    return narrow(w, t, how);
}

INLINE void loop(char *dst, const char *const *source, int n_src, int64_t bytes, ll_dtype t,
                 ll_reduce how)
{
    const char *src[8];
    for (int i = 0; i < n_src; i++) src[i] = source[i];
    int64_t at = 0;
    const int64_t step = how == LL_REDUCE_SUM ? UNROLL * WIDTH : INT64_MAX / 2; /* sums matter */
    for (; step <= bytes - at; at += step) {
        vec r[UNROLL];
        for (int u = 0; u < UNROLL; u++) r[u] = tree(src, n_src, at + u * WIDTH, t, how);
        memcpy(dst + at, r, sizeof r);
    }
    for (; at + WIDTH <= bytes; at += WIDTH) {
        vec r = tree(src, n_src, at, t, how);
        memcpy(dst + at, &r, WIDTH);
    }
    if (at == bytes) return;
    char rest[8][WIDTH] = {{0}};
    for (int i = 0; i < n_src; i++) {
        memcpy(rest[i], src[i] + at, (size_t)(bytes - at));
        src[i] = rest[i];
    }
    vec r = tree(src, n_src, 0, t, how);
    memcpy(dst + at, &r, (size_t)(bytes - at));
}

/* ---- the loop for a count, an operation and a type ---- */
INLINE void by_count(char *dst, const char *const *src, int n_src, int64_t bytes, ll_dtype t,
                     ll_reduce how)
{
    if (n_src == 2) loop(dst, src, 2, bytes, t, how);
    if (how != LL_REDUCE_SUM) return;
    if (n_src == 3) loop(dst, src, 3, bytes, t, how);
    if (n_src == 4) loop(dst, src, 4, bytes, t, how);
    if (n_src == 8) loop(dst, src, 8, bytes, t, how);
}

INLINE void by_how(char *dst, const char *const *src, int n_src, int64_t bytes, ll_dtype t,
                   ll_reduce how)
{
    if (how == LL_REDUCE_SUM) by_count(dst, src, n_src, bytes, t, LL_REDUCE_SUM);
    if (how == LL_REDUCE_MAX) by_count(dst, src, n_src, bytes, t, LL_REDUCE_MAX);
    if (how == LL_REDUCE_MIN) by_count(dst, src, n_src, bytes, t, LL_REDUCE_MIN);
}

static void few(char *dst, const char *const *src, int n_src, int64_t bytes, ll_dtype t,
                ll_reduce how)
{
    switch (t) {
    case LL_F64: by_how(dst, src, n_src, bytes, LL_F64, how); break;
    case LL_F32: by_how(dst, src, n_src, bytes, LL_F32, how); break;
    case LL_BF16: by_how(dst, src, n_src, bytes, LL_BF16, how); break;
    case LL_F16: by_how(dst, src, n_src, bytes, LL_F16, how); break;
    case LL_I32: by_how(dst, src, n_src, bytes, LL_I32, how); break;
    case LL_U8: by_how(dst, src, n_src, bytes, LL_U8, how); break;
    default: LL_ASSERT(!"a type that is summed");
    }
}

static bool in_one_pass(int n_src, ll_reduce how)
{
    if (how != LL_REDUCE_SUM) return n_src == 2; /* sums matter */
    return (n_src >= 2 && n_src <= 4) || n_src == 8;
}

/* At most BLOCK bytes, at offset at of the sources. */
static void block(char *dst, const char *const *src, int n_src, int64_t at, int64_t bytes,
                  ll_dtype t, ll_reduce how)
{
    const char *here[8];
    if (in_one_pass(n_src, how)) {
        for (int i = 0; i < n_src; i++) here[i] = src[i] + at;
        few(dst, here, n_src, bytes, t, how);
        return;
    }
    int q = ll_tree_split(n_src);
    char sums[2][BLOCK];
    block(sums[0], src, q, at, bytes, t, how);
    here[0] = sums[0], here[1] = src[q] + at;
    if (n_src - q > 1) {
        block(sums[1], src + q, n_src - q, at, bytes, t, how);
        here[1] = sums[1];
    }
    few(dst, here, 2, bytes, t, how);
}

void ll_fold(void *dst, const void *const *src, int n_src, int64_t n, ll_dtype t, ll_reduce op)
{
    LL_ASSERT(n_src >= 1 && n >= 0);
    const char *const *from = (const char *const *)src;
    int64_t bytes = n * (int64_t)ll_dtype_bytes(t);
    if (bytes == 0) return;
    if (n_src == 1) {
        if (dst != src[0]) memcpy(dst, src[0], (size_t)bytes);
    } else if (in_one_pass(n_src, op)) {
        few((char *)dst, from, n_src, bytes, t, op);
    } else {
        for (int64_t at = 0; at < bytes; at += BLOCK)
            block((char *)dst + at, from, n_src, at, bytes - at < BLOCK ? bytes - at : BLOCK, t,
                  op);
    }
}
