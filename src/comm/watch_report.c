/* watch_report.c: what every rank does, in one line that says who keeps the others waiting.
 *
 *     rank 2 is in forward of conv3 (for 10.2 s); ranks 0, 1, 3 wait in all-reduce 412 (fc1.weight)
 *
 * Ranks that say the same are named together. First those that may be to blame: dead, silent,
 * gone, then at work, the longest first; last those that wait. Of thousands of ranks a few groups
 * are shown, and the number of the others. */
#include "comm/watch_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { GROUPS = 4, PIECES = 8 }; /* groups shown of those to blame, and of those that wait */

typedef struct group {
    const ll_watch_row *first;
    int n;
    double seconds; /* the longest */
} group;

typedef struct line {
    char *text;
    size_t len;
} line;

static void add(line *l, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(line *l, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(l->text + l->len, LL_WATCH_REPORT - l->len, format, args);
    va_end(args);
    l->len += (size_t)n;
    if (l->len >= LL_WATCH_REPORT) l->len = LL_WATCH_REPORT - 1;
}

static bool alike(const ll_watch_row *a, const ll_watch_row *b)
{
    const ll_watch_state *s = &a->state, *t = &b->state;
    if (a->fate != b->fate) return false;
    if (a->fate == LL_WATCH_LEFT) return true;
    if (!s->waiting != !t->waiting) return false;
    if (!s->waiting) return !strcmp(s->doing, t->doing);
    return s->number == t->number && !strcmp(s->what, t->what) && !strcmp(s->site, t->site);
}

static bool waits(const group *g)
{
    return g->first->fate == LL_WATCH_HERE && g->first->state.waiting;
}

/* "rank 2", "ranks 0, 1, 3", "ranks 0-6, 9": those of rows that are like the group's first. */
static void add_ranks(line *l, const ll_watch_row *rows, int n, const group *g)
{
    add(l, g->n == 1 ? "rank " : "ranks ");
    int pieces = 0;
    for (int i = 0; i < n; i++) {
        if (!alike(&rows[i], g->first)) continue;
        if (pieces == PIECES) {
            add(l, " ... (%d in all)", g->n);
            return;
        }
        int end = i;
        while (end + 1 < n && rows[end + 1].rank == rows[end].rank + 1 &&
               alike(&rows[end + 1], g->first))
            end++;
        add(l, "%s%d", pieces++ ? ", " : "", rows[i].rank);
        if (end - i < 2) continue; /* two in a row are no range */
        add(l, "-%d", rows[end].rank);
        i = end;
    }
}

/* "in forward of conv3", "in all-reduce 412 (fc1.weight)". */
static void add_place(line *l, const ll_watch_state *s)
{
    if (!s->waiting) {
        if (*s->doing)
            add(l, "in %s", s->doing);
        else
            add(l, "working");
        return;
    }
    add(l, "in %s", s->what);
    if (s->number >= 0) add(l, " %ld", s->number);
    if (*s->site) add(l, " (%s)", s->site);
}

static void add_last_seen(line *l, const ll_watch_state *s)
{
    add(l, " (last seen %s", s->waiting ? "waiting " : "");
    add_place(l, s);
    add(l, ")");
}

static void add_group(line *l, const ll_watch_row *rows, int n, const group *g)
{
    const ll_watch_state *s = &g->first->state;
    bool one = g->n == 1;
    if (l->len) add(l, "; ");
    add_ranks(l, rows, n, g);
    switch (g->first->fate) {
    case LL_WATCH_DEAD:
        add(l, " died");
        add_last_seen(l, s);
        break;
    case LL_WATCH_SILENT:
        add(l, " %s not answered for %.1f s", one ? "has" : "have", g->seconds);
        add_last_seen(l, s);
        break;
    case LL_WATCH_LEFT: add(l, " %s closed the communicator", one ? "has" : "have"); break;
    case LL_WATCH_HERE:
        add(l, s->waiting ? (one ? " waits " : " wait ") : (one ? " is " : " are "));
        add_place(l, s);
        if (!s->waiting) add(l, " (for %.1f s)", g->seconds);
    }
}

/* Those that may be to blame first, by fate, then by time; of those that wait, the largest. */
static int by_blame(const void *a, const void *b)
{
    const group *x = (const group *)a, *y = (const group *)b;
    bool wait = waits(x);
    if (wait != waits(y)) return wait ? 1 : -1;
    if (wait && x->n != y->n) return y->n - x->n;
    if (x->first->fate != y->first->fate) return (int)x->first->fate - (int)y->first->fate;
    if (!wait && x->seconds != y->seconds) return x->seconds > y->seconds ? -1 : 1;
    return x->first < y->first ? -1 : 1; /* by rank */
}

static int make_groups(const ll_watch_row *rows, int n, group *groups)
{
    int count = 0;
    for (int i = 0; i < n; i++) {
        int k = 0;
        while (k < count && !alike(&rows[i], groups[k].first)) k++;
        if (k == count) groups[count++] = (group){.first = &rows[i]};
        double s = rows[i].fate == LL_WATCH_SILENT ? rows[i].silent_s : rows[i].state.seconds;
        groups[k].n++;
        if (s > groups[k].seconds) groups[k].seconds = s;
    }
    return count;
}

void ll_watch_report(const ll_watch_row *rows, int n, char out[LL_WATCH_REPORT])
{
    line l = {.text = out};
    out[0] = '\0';
    group *groups = (group *)calloc((size_t)n, sizeof *groups);
    if (!groups) {
        add(&l, "ranks are waiting, but there is not enough memory to report for whom");
        return;
    }
    int count = make_groups(rows, n, groups), n_wait = 0, others = 0;
    for (int k = 0; k < count; k++) n_wait += waits(&groups[k]);
    qsort(groups, (size_t)count, sizeof *groups, by_blame);
    for (int k = 0; k < count; k++) {
        bool show = k < count - n_wait ? k < GROUPS : k < count - n_wait + GROUPS;
        if (show)
            add_group(&l, rows, n, &groups[k]);
        else
            others += groups[k].n;
    }
    if (others) add(&l, "; %d other rank%s elsewhere", others, others == 1 ? " is" : "s are");
    if (n_wait == count && count == 1)
        add(&l, " for %.1f s: no rank is missing, but no message arrives", groups[0].seconds);
    else if (n_wait == count)
        add(&l, ": do all ranks call the same collectives in the same order?");
    free(groups);
}
