/* conv2d_gather_f64.c: conv2d_gather.c, for f64. */
#define LL_REAL_F64
#include "kern/cpu/conv2d_gather.c"
