/* steps_pair.c: a product and a sum after it in one loop over a tile. Both are rounded, as they are
 * one after the other: which ops lie in one chain depends on how a graph was cut and fused, and no
 * bit of the result may. The build compiles this file without contracting products and sums. */
#include "kern/cpu/chain.h"

#define STEP_ARGS float *y, const float *a, const float *b, const float *c, float k, float j, int n
#define STEPS(X)                                                                                   \
    X(mul_add, a[i] * b[i] + c[i])                                                                 \
    X(mul_sub, a[i] * b[i] - c[i])                                                                 \
    X(sub_mul, c[i] - a[i] * b[i])                                                                 \
    X(mul_shift, a[i] * b[i] + k)                                                                  \
    X(scale_add, k *a[i] + c[i])                                                                   \
    X(scale_sub, k *a[i] - c[i])                                                                   \
    X(scale_shift, k *a[i] + j)

#define X(name, value)                                                                             \
    void ll_##name##_step(STEP_ARGS)                                                               \
    {                                                                                              \
        (void)a, (void)b, (void)c, (void)k, (void)j;                                               \
        _Pragma("omp simd") for (int i = 0; i < n; i++) y[i] = value;                              \
    }
STEPS(X)
#undef X
