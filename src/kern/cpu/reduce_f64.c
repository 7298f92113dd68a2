/* reduce_f64.c: reduce.c, for f64. */
#define LL_REAL_F64
#include "kern/cpu/reduce.c"
