/* steps_pair.c: a product and a sum after it in one loop over a tile. Both are rounded, as they are
 * one after the other: which ops lie in one chain depends on how a graph was cut and fused, and no
 * bit of the result may. The build compiles this file without contracting products and sums. */
#include "kern/cpu/chain.h"

#define X(name, operands, value)                                                                   \
    void ll_##name##_step(float *y, const float *a, const float *b, const float *c, float k,       \
                          float j, int n)                                                          \
    {                                                                                              \
        (void)a, (void)b, (void)c, (void)k, (void)j;                                               \
        _Pragma("omp simd") for (int i = 0; i < n; i++) y[i] = value;                              \
    }
LL_PAIRS(X)
#undef X
