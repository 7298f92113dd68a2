/* err.c: the per-thread failure record. */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local ll_error last;

static const char *kind_text(ll_err code)
{
    static const char *const texts[] = {"no error",
#define X(name, text) text,
                                        LL_ERRORS(X)
#undef X
    };
    size_t i = (size_t)code; /* may have come from elsewhere */
    return i < sizeof texts / sizeof *texts ? texts[i] : "unknown error";
}

static void add_frame(const char *file, int line, const char *func)
{
    size_t used = strlen(last.frames);
    snprintf(last.frames + used, sizeof last.frames - used, "  at %s (%s:%d)\n", func, file, line);
}

ll_err ll_raise(ll_err code, const char *file, int line, const char *func, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char message[sizeof last.message]; /* an argument may point into last.message */
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    last.code = code;
    memcpy(last.message, message, sizeof message);
    last.frames[0] = '\0';
    add_frame(file, line, func);
    return code;
}

ll_err ll_frame(ll_err code, const char *file, int line, const char *func)
{
    add_frame(file, line, func);
    return code;
}

const char *ll_error_text(void)
{
    static _Thread_local char text[sizeof last.message + 64];
    snprintf(text, sizeof text, "%s: %s", kind_text(last.code), last.message);
    return text;
}

const char *ll_error_message(void)
{
    return last.message;
}

ll_err ll_error_code(void)
{
    return last.code;
}

void ll_error_keep(ll_error *out)
{
    *out = last;
}

void ll_error_put_back(const ll_error *e)
{
    last = *e;
}

const char *ll_error_frames(void)
{
    return last.frames;
}

void ll_assert_failed(const char *cond, const char *file, int line, const char *func)
{
    fprintf(stderr, "loopline: a bug in Loopline: %s does not hold, in %s (%s:%d)\n", cond, func,
            file, line);
    abort();
}
