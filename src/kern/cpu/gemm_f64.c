/* gemm_f64.c: the tiles and packing of gemm_f32.c, for f64. */
#define LL_REAL_F64
#include "kern/cpu/gemm_f32.c"
