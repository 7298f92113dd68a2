/* gptq.h: weights rounded to blocks of 4 bits by second moments h [cols,cols] of what they meet
 * (Frantar et al., 2022). Each row is rounded column by column, the column with the largest moment
 * first, and what a column was rounded by is made up for in those that follow, by h's Cholesky
 * factor. */
#pragma once
#include "base/err.h"

/* w [rows,cols]: ll_pack then changes nothing of it. LL_E_NUMERIC: moments are not finite. */
ll_err ll_gptq_matrix(float *w, int64_t rows, int64_t cols, const float *h, int threads);
