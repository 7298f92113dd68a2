/* arena.h: memory that dies together. Items are zeroed, 16-byte aligned, never freed singly.
 * Running out of memory for bookkeeping ends the process with a message: tensors are not kept here.
 */
#pragma once
#include "base/err.h"
#include "base/own.h"

typedef struct ll_arena ll_arena;

ll_arena *ll_arena_new(void);
size_t ll_arena_total(void); /* bytes of all there are */
void ll_arena_free(ll_arena *a);
LL_OWNED(ll_arena, ll_arena_free);
void *ll_arena_alloc(ll_arena *a, size_t bytes);
void *ll_arena_try(ll_arena *a, size_t bytes); /* NULL: no memory; for what may be large */
void *ll_arena_copy(ll_arena *a, const void *data, size_t bytes);
char *ll_arena_strdup(ll_arena *a, const char *text);
char *ll_arena_printf(ll_arena *a, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Grows an arena-held array so that it can hold one more item than count; *capacity is updated. */
void *ll_arena_grow(ll_arena *a, void *items, size_t item_bytes, int count, int *capacity);
/* Grows it and adds an item: LL_PUSH(arena, list->v, list->n, list->room, x). */
#define LL_PUSH(arena, items, count, capacity, ...)                                                \
    ((items) = ll_arena_grow(arena, items, sizeof *(items), (int)(count), &(capacity)),            \
     (items)[(count)++] = __VA_ARGS__)

/* Walks a list: LL_EACH(const ll_node, n, g->nodes, g->n_node) ... */
#define LL_EACH(type, x, items, n)                                                                 \
    for (type *x = (items), *x##_end = x ? x + (n) : x; x < x##_end; x++)

#define LL_NEW(arena, type) ((type *)ll_arena_alloc(arena, sizeof(type)))
#define LL_NEW_ARRAY(arena, type, n) ((type *)ll_arena_alloc(arena, sizeof(type) * (size_t)(n)))
#define LL_TRY_ARRAY(arena, type, n) ((type *)ll_arena_try(arena, sizeof(type) * (size_t)(n)))
/* Arrays of n items each, up to 16: LL_ARRAYS(arena, g->n_value, first, last, p->seen); */
#define LL_ARRAYS(arena, n, ...) LL_EXPAND(LL_EACH_ARRAY(arena, n, __VA_ARGS__))
#define LL_EACH_ARRAY(arena, n, x, ...)                                                            \
    (x) = ll_arena_alloc(arena, sizeof *(x) * (size_t)(n))                                         \
        __VA_OPT__(, LL_NEXT_ARRAY LL_NOW(arena, n, __VA_ARGS__))
#define LL_NEXT_ARRAY() LL_EACH_ARRAY

/* Macros that are their own next, expanded up to 16 times. */
#define LL_NOW ()
#define LL_EXPAND(...) LL_FOUR(LL_FOUR(LL_FOUR(LL_FOUR(__VA_ARGS__))))
#define LL_FOUR(...) LL_ONCE(LL_ONCE(LL_ONCE(LL_ONCE(__VA_ARGS__))))
#define LL_ONCE(...) __VA_ARGS__
