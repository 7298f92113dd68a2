/* need.h: memory for bookkeeping, without which no failure could be passed on either. */
#pragma once
#include "base/err.h"

void ll_need_failed(const char *file, int line, const char *func) __attribute__((noreturn));

#define LL_NEED(memory)                                                                            \
    do {                                                                                           \
        if (!(memory)) ll_need_failed(__FILE__, __LINE__, __func__);                               \
    } while (0)
