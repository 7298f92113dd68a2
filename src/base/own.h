/* own.h: what a function opened goes when it returns, by whichever way:
 *
 *     LL_OWN(ll_arena) a = ll_arena_new();
 *     LL_OWN(ll_run) r = NULL;
 *     TRY(ll_run_load(name, &r));
 *
 * A type that can be owned says so beside what closes it, which takes NULL:
 * LL_OWNED(ll_run, ll_run_free); */
#pragma once
#include <stdlib.h>

#define LL_OWNED(type, close)                                                                      \
    static inline void type##_drop(type **x)                                                       \
    {                                                                                              \
        close(*x);                                                                                 \
    }                                                                                              \
    struct type
/* What is owned becomes the caller's: return LL_HAND(out, r); */
#define LL_HAND(out, owned) (*(out) = (owned), (owned) = NULL, LL_OK)
#define LL_OWN(type) __attribute__((cleanup(type##_drop))) type *
/* Of malloc: LL_OWN_MEMORY uint8_t *data = NULL; */
#define LL_OWN_MEMORY __attribute__((cleanup(ll_memory_drop)))

static inline void ll_memory_drop(void *at)
{
    free(*(void **)at);
}
