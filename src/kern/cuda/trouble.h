/* trouble.h: what a kernel can find wrong with the data, told in ll_kcall.trouble: kind, where,
 * value. */
#pragma once

enum { LL_TROUBLE_NONE, LL_TROUBLE_LABEL, LL_TROUBLE_INDEX };
