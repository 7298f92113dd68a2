/* heap.h: a binary heap: of the numbers or structs in it, the first by `before` is h[0].
 *
 *     static bool before(const event *a, const event *b);
 *     LL_HEAP(event, before)
 *     heap_push(h, &n, e);
 *     while (n) e = heap_pop(h, &n);
 */
#pragma once
#include <stdint.h>

#define LL_HEAP(T, before)                                                                         \
    /* h[i], of which those below are in order, to where it belongs. */                            \
    __attribute__((unused)) static void heap_sift(T *h, int64_t n, int64_t i)                      \
    {                                                                                              \
        T x = h[i];                                                                                \
        for (int64_t k; (k = 2 * i + 1) < n; i = k) {                                              \
            if (k + 1 < n && before(&h[k + 1], &h[k])) k++;                                        \
            if (!before(&h[k], &x)) break;                                                         \
            h[i] = h[k];                                                                           \
        }                                                                                          \
        h[i] = x;                                                                                  \
    }                                                                                              \
    __attribute__((unused)) static void heap_push(T *h, int *n, T x)                               \
    {                                                                                              \
        int i = (*n)++;                                                                            \
        for (; i && before(&x, &h[(i - 1) / 2]); i = (i - 1) / 2) h[i] = h[(i - 1) / 2];           \
        h[i] = x;                                                                                  \
    }                                                                                              \
    __attribute__((unused)) static T heap_pop(T *h, int *n)                                        \
    {                                                                                              \
        T first = h[0];                                                                            \
        h[0] = h[--*n];                                                                            \
        heap_sift(h, *n, 0);                                                                       \
        return first;                                                                              \
    }
