/* trouble.h: what a kernel can find wrong with the data, told in ll_kcall.trouble: kind, where,
 * value; and how many finite numbers became the largest 8-bit float, being too large for it. */
#pragma once

enum { LL_TROUBLE_NONE, LL_TROUBLE_LABEL, LL_TROUBLE_INDEX, LL_TROUBLE_DENSE };
enum { LL_TROUBLE_SATURATED = 3, LL_TROUBLE_WORDS };
