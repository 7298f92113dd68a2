/* micro.h: the micro-kernel: the innermost loop of every product, convolution and attention. mr
 * rows by nv vectors of sums are held in registers while k runs:
 *
 *     sums[mr,nv] += A[mr,k] B[k,nv]        ll_micro_rows, ll_micro_columns
 *     sums[mr,nr] += A[mr,k] B[nr,k]        ll_micro_dot: vectors along k, to be added up later
 *
 * The callers pack operands (or find them where they lie), choose tiles, and store the sums. A sum
 * is made in order of k with fused multiply-adds, whatever the tile: its bits do not depend on
 * where in a tile an element falls.
 *
 * Numbers of A are multiplied into whole vectors of B. NEON multiplies by one lane of a vector:
 * where registers are left over, LL_LANES numbers of A are loaded at once. Other machines load a
 * number into all lanes. All sizes must be constants where these are used, so that the arrays
 * become registers; gcc must not reorder before it allocates them (see CMakeLists.txt). */
#pragma once
#include "kern/cpu/vec.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

/* A row of sums: so many vectors at most. */
enum { LL_MICRO_NV = 5 };
typedef ll_vec ll_sums[LL_MICRO_NV];

#if defined(__aarch64__)
#if defined(LL_REAL_F64)
#define LL_NEON(f) f##_f64
#define LL_FMLA "fmla %0.2d, %1.2d, %2.d"
#define LL_EACH_LANE(X) X(0) X(1)
#else
#define LL_NEON(f) f##_f32
#define LL_FMLA "fmla %0.4s, %1.4s, %2.s"
#define LL_EACH_LANE(X) X(0) X(1) X(2) X(3)
#endif
#endif

/* sum + a b, lane by lane, rounded once: in f64 sums may rely on it (base/num.h). */
LL_INLINE ll_vec ll_mul_add_lanes(ll_vec sum, ll_vec a, ll_vec b)
{
#if defined(__aarch64__)
    return LL_NEON(vfmaq)(sum, a, b);
#elif defined(LL_REAL_F64) && !defined(__FP_FAST_FMA) && !defined(__FMA__)
    for (int l = 0; l < LL_LANES; l++) sum[l] = __builtin_fma(a[l], b[l], sum[l]);
    return sum;
#else
    return sum + a * b; /* contracted */
#endif
}

/* sum + b x in each lane. */
LL_INLINE ll_vec ll_mul_add(ll_vec sum, ll_vec b, ll_real x)
{
#if defined(__aarch64__)
    __asm__("" : "+w"(x)); /* a plain load and a by-lane product: a load-and-repeat costs a slot */
    return LL_NEON(vfmaq_n)(sum, b, x);
#elif defined(LL_REAL_F64) && !defined(__FP_FAST_FMA) && !defined(__FMA__)
    return ll_mul_add_lanes(sum, b, (ll_vec){0} + x);
#else
    return sum + b * x;
#endif
}

LL_INLINE void ll_micro_clear(const int mr, const int nv, ll_sums *sums)
{
    EACH (i, mr)
        EACH (j, nv) sums[i][j] = (ll_vec){0};
}

/* Sums that begin at `start` (base/num.h), and what they come to without it. f32 has none. */
LL_INLINE void ll_micro_begin(const int mr, const int nv, ll_sums *sums, ll_real start)
{
#ifdef LL_REAL_F64
    EACH (i, mr)
        EACH (j, nv) sums[i][j] = (ll_vec){0} + start;
#else
    (void)start;
    ll_micro_clear(mr, nv, sums);
#endif
}

LL_INLINE ll_vec ll_micro_end(ll_vec sum, ll_real start)
{
#ifdef LL_REAL_F64
    return sum - start;
#else
    (void)start;
    return sum;
#endif
}

LL_INLINE void ll_micro_load(const int mr, const int nv, ll_sums *sums, const ll_real *c,
                             int64_t c_rs)
{
    EACH (i, mr)
        EACH (j, nv) sums[i][j] = ll_vec_at(c + i * c_rs + j * LL_LANES);
}

LL_INLINE void ll_micro_store(const int mr, const int nv, ll_sums *sums, ll_real *c, int64_t c_rs)
{
    EACH (i, mr)
        EACH (j, nv) ll_vec_to(c + i * c_rs + j * LL_LANES, sums[i][j]);
}

/* One k, the numbers of A step apart. */
LL_INLINE void ll_micro_row(const int mr, const int nv, ll_sums *sums, const ll_real *const *a,
                            int64_t p, const ll_real *b)
{
    ll_vec bv[LL_MICRO_NV];
    EACH (j, nv) bv[j] = ll_vec_at(b + j * LL_LANES);
    EACH (i, mr) {
        ll_real x = a[i][p];
        EACH (j, nv) sums[i][j] = ll_mul_add(sums[i][j], bv[j], x);
    }
}

LL_INLINE void ll_micro_column(const int mr, const int nv, ll_sums *sums, const ll_real *a,
                               const ll_real *b)
{
    ll_vec bv[LL_MICRO_NV];
    EACH (j, nv) bv[j] = ll_vec_at(b + j * LL_LANES);
#if defined(__aarch64__)
    if (mr % LL_LANES == 0 && mr * nv <= 16) { /* more wait for these loads: a fifth slower */
        EACH (i, mr / LL_LANES) {
            ll_vec av = ll_vec_at(a + i * LL_LANES);
#define LANE(l)                                                                                    \
    EACH (j, nv)                                                                                   \
        sums[i * LL_LANES + l][j] = LL_NEON(vfmaq_laneq)(sums[i * LL_LANES + l][j], bv[j], av, l);
            LL_EACH_LANE(LANE)
#undef LANE
        }
        return;
    }
#endif
    EACH (i, mr) {
        ll_real x = a[i];
        EACH (j, nv) sums[i][j] = ll_mul_add(sums[i][j], bv[j], x);
    }
}

/* Number p of row i of A is a[i][p]; row p of B at b + p * b_step. Strands: a few sums cannot keep
 * the units busy, so that k runs in several strands of mr rows of sums each, one after the other.
 */
LL_INLINE void ll_micro_rows(const int mr, const int nv, const int strands, ll_sums *sums,
                             const ll_real *const *a, const ll_real *b, int64_t b_step, int64_t k)
{
    int64_t p = 0;
#if defined(__aarch64__)
    if (strands == 1 && (mr + 1) * nv + mr < 32) { /* registers */
        for (; p + LL_LANES <= k; p += LL_LANES) {
            ll_vec av[16], bv[LL_MICRO_NV];
            EACH (i, mr) av[i] = ll_vec_at(a[i] + p);
#define LANE(l)                                                                                    \
    EACH (j, nv) bv[j] = ll_vec_at(b + j * LL_LANES);                                              \
    b += b_step;                                                                                   \
    EACH (i, mr)                                                                                   \
        EACH (j, nv) sums[i][j] = LL_NEON(vfmaq_laneq)(sums[i][j], bv[j], av[i], l);
            LL_EACH_LANE(LANE)
#undef LANE
        }
    }
#endif
    for (; p + strands <= k; p += strands)
        EACH (s, strands) {
            ll_micro_row(mr, nv, sums + s * mr, a, p + s, b);
            b += b_step;
        }
    for (; strands > 1 && p < k; p++, b += b_step) ll_micro_row(mr, nv, sums, a, p, b);
}

/* Number p of row i of A is a[p * a_step + i]. */
LL_INLINE void ll_micro_columns(const int mr, const int nv, const int strands, ll_sums *sums,
                                const ll_real *a, int64_t a_step, const ll_real *b, int64_t b_step,
                                int64_t k)
{
    int64_t p = 0;
    for (; p + strands <= k; p += strands)
        EACH (s, strands) {
            ll_micro_column(mr, nv, sums + s * mr, a, b);
            a += a_step, b += b_step;
        }
    for (; strands > 1 && p < k; p++, a += a_step, b += b_step) ll_micro_column(mr, nv, sums, a, b);
}

#if defined(__aarch64__)
/* Vectors [from, to) of a row of B times a column of A. As assembler, since compilers see equal
 * lanes and keep them as vectors of their own, for which there are no registers. */
LL_INLINE void ll_micro_part(const int mr, const int from, const int to, ll_sums *sums,
                             const ll_vec *av, const ll_vec *bv)
{
    LL_UNROLL for (int i = 0; i < mr; i += LL_LANES) LL_UNROLL for (int j = from; j < to; j++)
    {
#define LANE(l)                                                                                    \
    if (i + l < mr)                                                                                \
        __asm__(LL_FMLA "[" #l "]" : "+w"(sums[i + l][j]) : "w"(bv[j]), "w"(av[i / LL_LANES]));
        LL_EACH_LANE(LANE)
#undef LANE
    }
}
#endif

/* Row p of B at b + place[p]; A by columns of a_step, whole vectors. One more of each is read than
 * multiplied: Neoverse's queues of waiting multiply-adds hold about one column's, so its operands
 * must be on their way before the one ahead is multiplied. Hence halves: as soon as the first half
 * of the vectors is done with, the next row's take their registers. */
LL_INLINE void ll_micro_listed(const int mr, const int nv, ll_sums *sums, const ll_real *a,
                               int64_t a_step, const ll_real *b, const int64_t *place, int64_t k)
{
#if defined(__aarch64__)
    const int half = (nv + 1) / 2, na = (mr + LL_LANES - 1) / LL_LANES;
    ll_vec av[4], next[4], bv[LL_MICRO_NV];
    EACH (i, na) av[i] = ll_vec_at(a + i * LL_LANES);
    EACH (j, nv) bv[j] = ll_vec_at(b + place[0] + j * LL_LANES);
    for (int64_t p = 0; p < k; p++) {
        const ll_real *x = b + place[p + 1];
        a += a_step;
        ll_micro_part(mr, 0, half, sums, av, bv);
        EACH (j, half) bv[j] = ll_vec_at(x + j * LL_LANES);
        EACH (i, na) next[i] = ll_vec_at(a + i * LL_LANES);
        ll_micro_part(mr, half, nv, sums, av, bv);
        LL_UNROLL for (int j = half; j < nv; j++) bv[j] = ll_vec_at(x + j * LL_LANES);
        EACH (i, na) av[i] = next[i];
    }
#else
    for (int64_t p = 0; p < k; p++) ll_micro_column(mr, nv, sums, a + p * a_step, b + place[p]);
#endif
}

/* n vectors of each row of A and of B, so far apart. */
LL_INLINE void ll_micro_dot(const int mr, const int nr, ll_sums *sums, const ll_real *const *a,
                            int64_t a_step, const ll_real *const *b, int64_t b_step, int64_t n)
{
    for (int64_t p = 0, q = 0; n > 0; n--, p += a_step, q += b_step) {
        ll_vec bv[LL_MICRO_NV];
        EACH (j, nr) bv[j] = ll_vec_at(b[j] + q);
        EACH (i, mr) {
            ll_vec av = ll_vec_at(a[i] + p);
            EACH (j, nr) sums[i][j] = ll_mul_add_lanes(sums[i][j], av, bv[j]);
        }
    }
}
