/* room.c: the largest first, each at the lowest place where it meets none that is in use with it.
 */
#include "base/room.h"

#include "base/num.h"

#include <string.h>

static int larger_first(const void *a, const void *b)
{
    const ll_want *x = *(ll_want *const *)a, *y = *(ll_want *const *)b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return x->from != y->from ? (x->from > y->from ? 1 : -1) : (x > y) - (x < y);
}

/* Those in use within a stretch of time, sorted by place. */
typedef struct stretch {
    ll_want *placed;
    int n, room;
} stretch;

/* The lowest free place among those placed. */
static size_t lowest_fit(const stretch *s, const ll_want *w)
{
    size_t at = 0, bytes = ll_align64(w->bytes);
    for (const ll_want *q = s->placed; q < s->placed + s->n; q++) {
        bool meets = (q->to >= w->from) & (w->to >= q->from); /* no branch: nobody can guess it */
        if (meets & (q->at >= at + bytes)) return at;
        size_t after = meets ? q->at + ll_align64(q->bytes) : 0;
        at = after > at ? after : at;
    }
    return at;
}

static void insert(stretch *s, const ll_want *w)
{
    int k = s->n++;
    while (k > 0 && s->placed[k - 1].at > w->at) k--;
    memmove(s->placed + k + 1, s->placed + k, sizeof *w * (size_t)(s->n - 1 - k));
    s->placed[k] = *w;
}

/* Most are in use for a moment: they need not be held against what all others do. */
enum { STRETCHES = 64 };

size_t ll_room_plan(ll_want *wants, int n, ll_arena *arena)
{
    size_t bytes = 0;
    ll_want **order = LL_NEW_ARRAY(arena, ll_want *, n + 1);
    stretch part[STRETCHES] = {0}, all = {LL_NEW_ARRAY(arena, ll_want, n + 1), 0, n};
    int end = 0, m = 0;
    for (int i = 0; i < n; i++) {
        wants[i].at = 0;
        if (wants[i].bytes) order[m++] = &wants[i];
        if (wants[i].to > end) end = wants[i].to;
    }
    int length = end / STRETCHES + 1;
    for (int i = 0; i < m; i++)
        for (int k = order[i]->from / length; k <= order[i]->to / length; k++) part[k].room++;
    for (int k = 0; k < STRETCHES; k++)
        part[k].placed = LL_NEW_ARRAY(arena, ll_want, part[k].room + 1);
    qsort(order, (size_t)m, sizeof *order, larger_first);
    for (int i = 0; i < m; i++) {
        ll_want *w = order[i];
        int first = w->from / length, last = w->to / length;
        w->at = lowest_fit(first == last ? &part[first] : &all, w);
        if (w->at + ll_align64(w->bytes) > bytes) bytes = w->at + ll_align64(w->bytes);
        insert(&all, w);
        for (int k = first; k <= last; k++) insert(&part[k], w);
    }
    return bytes;
}
