/* room.c: the largest first, each at the lowest place where it meets none that is in use with it.
 */
#include "exec/room.h"

#include <stdlib.h>

static int larger_first(const void *a, const void *b)
{
    const ll_want *x = *(ll_want *const *)a, *y = *(ll_want *const *)b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return (x > y) - (x < y);
}

static size_t end_of(const ll_want *w)
{
    return w->at + (w->bytes + 63) / 64 * 64;
}

/* Moves w up until it meets none of those placed. */
static void place(ll_want *const *placed, int n, ll_want *w)
{
    w->at = 0;
    for (int i = 0; i < n; i++) {
        const ll_want *q = placed[i];
        if (q->to < w->from || w->to < q->from) continue;
        if (q->at >= end_of(w) || end_of(q) <= w->at) continue;
        w->at = end_of(q);
        i = -1; /* it may meet an earlier one now */
    }
}

size_t ll_room_plan(ll_want *wants, int n, ll_arena *arena)
{
    size_t bytes = 0;
    ll_want **order = LL_NEW_ARRAY(arena, ll_want *, n + 1);
    for (int i = 0; i < n; i++) order[i] = &wants[i];
    qsort(order, (size_t)n, sizeof *order, larger_first);
    for (int i = 0; i < n && order[i]->bytes; i++) {
        place(order, i, order[i]);
        if (end_of(order[i]) > bytes) bytes = end_of(order[i]);
    }
    return bytes;
}
