/* no_error.h: what must go well, or the test fails with the message and its frames. */
#pragma once
#include "loopline.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static inline void no_error(ll_err rc)
{
    if (rc != LL_OK) fail_msg("%s\n%s", ll_error_text(), ll_error_frames());
}
