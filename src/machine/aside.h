/* aside.h: a file that values are laid aside in, with a thread that copies: one copy after another,
 * in the order that they were asked for. The file has no name; it is gone when it is closed. Its
 * bytes are seen as memory too, for whoever looks at them now and then: checkpoints, initial
 * values. */
#pragma once
#include "base/err.h"
#include "base/own.h"

#include <stdint.h>

typedef struct ll_aside ll_aside;

/* In a folder, so many bytes, zeros. most: copies under way at once. LL_E_IO: the folder has no
 * room, or is none. */
ll_err ll_aside_open(const char *folder, size_t bytes, int most, ll_aside **out);
void ll_aside_close(ll_aside *a); /* when copies under way are made */
LL_OWNED(ll_aside, ll_aside_close);
char *ll_aside_view(const ll_aside *a);
/* From memory into the file at `at` (in), or back; the number to wait for. Neither is touched by
 * others until then. */
uint64_t ll_aside_start(ll_aside *a, bool in, void *memory, size_t at, size_t bytes);
/* Until a copy, and all before it, are made. LL_E_IO: one could not be. */
ll_err ll_aside_wait(ll_aside *a, uint64_t number);
ll_err ll_aside_wait_all(ll_aside *a);
