/* err.h: how functions fail. A function that can fail returns ll_err. The first failure stores its
 * message, each TRY on the way up adds a frame. One fixed record per thread: raising never
 * allocates. Messages are one line: the values, and what was wanted; frames say where. */
#pragma once
#include "loopline.h"

#ifdef __cplusplus
extern "C" {
#endif

ll_err ll_raise(ll_err code, const char *file, int line, const char *func, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
ll_err ll_frame(ll_err code, const char *file, int line, const char *func);
/* The message alone, without the error's kind in front. */
const char *ll_error_message(void);
ll_err ll_error_code(void);
/* For what closes things on account of an error: it stays the one to tell. LL_KEEP_ERROR; at the
 * head of a function puts it back at its end. */
typedef struct ll_error {
    ll_err code;
    char message[1024], frames[2048];
} ll_error;
void ll_error_keep(ll_error *out);
void ll_error_put_back(const ll_error *e);
#define LL_KEEP_ERROR                                                                              \
    ll_error kept_error __attribute__((cleanup(ll_error_put_back)));                               \
    ll_error_keep(&kept_error)

void ll_assert_failed(const char *cond, const char *file, int line, const char *func)
    __attribute__((noreturn));

#define RAISE(code, ...) ll_raise(code, __FILE__, __LINE__, __func__, __VA_ARGS__)
#define FAIL(code, ...) return RAISE(code, __VA_ARGS__)
#define CHECK(cond, code, ...)                                                                     \
    do {                                                                                           \
        if (!(cond)) FAIL(code, __VA_ARGS__);                                                      \
    } while (0)
#define TRY(call)                                                                                  \
    do {                                                                                           \
        ll_err e_ = (call);                                                                        \
        if (e_ != LL_OK) return ll_frame(e_, __FILE__, __LINE__, __func__);                        \
    } while (0)
/* A bug in Loopline, never a user's mistake. */
#define LL_ASSERT(cond)                                                                            \
    do {                                                                                           \
        if (!(cond)) ll_assert_failed(#cond, __FILE__, __LINE__, __func__);                        \
    } while (0)

#ifdef __cplusplus
}
#endif
