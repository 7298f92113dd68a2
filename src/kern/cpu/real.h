/* real.h: one text for two element types. A file that serves f32 and f64 alike is written in terms
 * of ll_real and compiled twice: as it stands it is for f32; x_f64.c defines LL_REAL_F64 and
 * includes x.c. What other files call is named by LL_REAL: LL_REAL(ll_conv_outer) is
 * ll_conv_outer_f32 in one and ll_conv_outer_f64 in the other. */
#pragma once
#include "base/types.h"

#if defined(LL_REAL_F64)
typedef double ll_real;
typedef int64_t ll_real_mask; /* an integer of the same size */
#define LL_REAL(name) name##_f64
#else
typedef float ll_real;
typedef int32_t ll_real_mask;
#define LL_REAL(name) name##_f32
#endif
