/* room.c: the largest first, each at the lowest place where it meets none that is in use with it.
 */
#include "base/room.h"

#include "base/num.h"

#include <stdlib.h>
#include <string.h>

static int larger_first(const void *a, const void *b)
{
    const ll_want *x = *(ll_want *const *)a, *y = *(ll_want *const *)b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return x->from != y->from ? (x->from > y->from ? 1 : -1) : (x > y) - (x < y);
}

/* The lowest free place among those placed, which are sorted by place. */
static size_t lowest_fit(const ll_want *placed, int n, const ll_want *w)
{
    size_t at = 0, bytes = ll_align64(w->bytes);
    for (const ll_want *q = placed; q < placed + n; q++) {
        if (q->to < w->from || w->to < q->from) continue;
        if (q->at >= at + bytes) return at;
        size_t after = q->at + ll_align64(q->bytes);
        if (after > at) at = after;
    }
    return at;
}

size_t ll_room_plan(ll_want *wants, int n, ll_arena *arena)
{
    size_t bytes = 0;
    ll_want **order = LL_NEW_ARRAY(arena, ll_want *, n + 1);
    ll_want *placed = LL_NEW_ARRAY(arena, ll_want, n + 1);
    for (int i = 0; i < n; i++) order[i] = &wants[i];
    qsort(order, (size_t)n, sizeof *order, larger_first);
    for (int i = 0; i < n; i++) {
        ll_want *w = order[i];
        w->at = lowest_fit(placed, i, w);
        if (w->at + ll_align64(w->bytes) > bytes) bytes = w->at + ll_align64(w->bytes);
        int k = i;
        while (k > 0 && placed[k - 1].at > w->at) k--;
        memmove(placed + k + 1, placed + k, sizeof *placed * (size_t)(i - k));
        placed[k] = *w;
    }
    return bytes;
}
