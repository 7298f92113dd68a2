/* conv2d_direct_f64.c: conv2d_direct.c, for f64. */
#define LL_REAL_F64
#include "kern/cpu/conv2d_direct.c"
