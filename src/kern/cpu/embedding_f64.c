/* embedding_f64.c: embedding.c, for f64. */
#define LL_REAL_F64
#include "kern/cpu/embedding.c"
