/* arena.c: a list of blocks. Under AddressSanitizer each item is its own block, so that an overrun
 * of one item is seen. */
#include "base/arena.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#ifdef __SANITIZE_ADDRESS__
enum { BLOCK_BYTES = 0 };
#else
enum { BLOCK_BYTES = 1 << 16 };
#endif

typedef struct block {
    struct block *next;
    size_t used, size;
    _Alignas(16) char data[];
} block;

struct ll_arena {
    block *head;
};

static size_t total;

size_t ll_arena_total(void)
{
    return __atomic_load_n(&total, __ATOMIC_RELAXED);
}

/* Without bookkeeping no failure could be passed on either. */
static void *must(void *p)
{
    if (p) return p;
    fprintf(stderr, "loopline: out of memory for bookkeeping\n");
    abort();
}

ll_arena *ll_arena_new(void)
{
    return (ll_arena *)must(calloc(1, sizeof(ll_arena)));
}

void ll_arena_free(ll_arena *a)
{
    if (!a) return;
    for (block *b = a->head, *next; b; b = next) {
        next = b->next;
        __atomic_sub_fetch(&total, sizeof(block) + b->size, __ATOMIC_RELAXED);
        free(b);
    }
    free(a);
}

void *ll_arena_alloc(ll_arena *a, size_t bytes)
{
    return must(ll_arena_try(a, bytes));
}

void *ll_arena_try(ll_arena *a, size_t bytes)
{
    size_t need = (bytes + 15) & ~(size_t)15;
    if (!a->head || a->head->size - a->head->used < need) {
        size_t size = need > BLOCK_BYTES ? need : BLOCK_BYTES;
        if (size == need) size = bytes ? bytes : 1; /* an exact fit keeps overruns visible */
        block *b = (block *)calloc(1, sizeof(block) + size);
        if (!b) return NULL;
        __atomic_add_fetch(&total, sizeof(block) + size, __ATOMIC_RELAXED);
        b->size = size;
        b->next = a->head;
        a->head = b;
        b->used = need > size ? size : need;
        return b->data;
    }
    void *p = a->head->data + a->head->used;
    a->head->used += need;
    return p;
}

void *ll_arena_copy(ll_arena *a, const void *data, size_t bytes)
{
    void *p = ll_arena_alloc(a, bytes);
    if (bytes) memcpy(p, data, bytes);
    return p;
}

char *ll_arena_strdup(ll_arena *a, const char *text)
{
    return (char *)ll_arena_copy(a, text, strlen(text) + 1);
}

char *ll_arena_printf(ll_arena *a, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    char *text = (char *)ll_arena_alloc(a, (size_t)n + 1);
    vsnprintf(text, (size_t)n + 1, format, again);
    va_end(args);
    va_end(again);
    return text;
}

void *ll_arena_grow(ll_arena *a, void *items, size_t item_bytes, int count, int *capacity)
{
    if (count < *capacity) return items;
    int larger = *capacity ? 2 * *capacity : 8;
    void *grown = ll_arena_alloc(a, item_bytes * (size_t)larger);
    if (count) memcpy(grown, items, item_bytes * (size_t)count);
    *capacity = larger;
    return grown;
}
