/* goodput.c: seconds that count, and those that do not. */
#include "train/goodput.h"

#include <string.h>

const char *ll_loss_name(int loss)
{
    static const char *const names[] = {
#define X(name, text) text,
        LL_LOSSES(X)
#undef X
    };
    return names[loss];
}

static const char *key_of(int loss, char out[32])
{
    strcpy(out, ll_loss_name(loss));
    return strcat(out, "_s");
}

void ll_goodput_note(const ll_goodput *g, ll_metrics *line)
{
    char key[32];
    ll_metrics_num(line, "wall_s", g->wall);
    ll_metrics_num(line, "useful_s", g->useful);
    for (int i = 0; i < LL_N_LOSS; i++) ll_metrics_num(line, key_of(i, key), g->lost[i]);
}

typedef struct search {
    int64_t first, at;
    int64_t newest;      /* line's step */
    ll_goodput last;     /* of that line */
    double useful, wall; /* of the newest that stays */
    bool later;          /* there are lines of steps that are made again */
} search;

static double number(const json_t *line, const char *key)
{
    return json_number_value(json_object_get(line, key));
}

static void look(void *context, int64_t step, const json_t *line)
{
    search *x = (search *)context;
    char key[32];
    x->last.wall = number(line, "wall_s");
    x->last.useful = number(line, "useful_s");
    for (int i = 0; i < LL_N_LOSS; i++) x->last.lost[i] = number(line, key_of(i, key));
    x->newest = step;
    x->later = step > x->first;
    if (x->later) return;
    x->at = step;
    x->useful = x->last.useful;
    x->wall = x->last.wall;
}

ll_err ll_goodput_read(const char *path, int64_t first, const ll_past *past, double wall,
                       ll_goodput *out)
{
    search x = {.first = first};
    size_t kept;
    TRY(ll_metrics_lines(path, INT64_MAX, look, &x, &kept));
    double each = x.at > 0 ? x.useful / (double)x.at : INFINITY; /* of steps so far, in the mean */
    if (past->began > x.wall) x.at = past->step, x.wall = past->began;
    /* Steps after the last line, and one that was not finished, took the time until the end; or
     * what steps take, where that is less: a rank that stalls is waited for. */
    double rest = past->ended - x.wall, steps = fmax((double)(first - x.at), 0);
    double again = fmax((double)(past->reached - first), 0); /* made after it, and made again */
    double of_each = fmin(rest / (steps + again + 1), each);
    *out = x.last;
    out->useful = x.useful;
    if (rest > 0) out->useful += steps * of_each;
    if (x.later) { /* lines tell of some; of those behind the last, as above */
        double behind = fmax((double)(past->reached - x.newest), 0);
        double time = fmax(past->ended - x.last.wall, 0);
        out->lost[LL_LOSS_REDONE] +=
            x.last.useful - out->useful + behind * fmin(time / (behind + 1), each);
    } else if (rest > 0)
        out->lost[LL_LOSS_REDONE] += again * of_each;
    out->lost[LL_LOSS_RESTARTS] = wall - out->useful;
    for (int i = 0; i < LL_N_LOSS; i++)
        if (i != LL_LOSS_RESTARTS) out->lost[LL_LOSS_RESTARTS] -= out->lost[i];
    return LL_OK;
}

char *ll_goodput_text(const ll_goodput *g, ll_arena *arena)
{
    ll_buf b = {.arena = arena};
    ll_buf_printf(&b, "goodput %.1f %% of %s", 100 * g->useful / g->wall, LL_DURATION(g->wall));
    bool any = false;
    for (int i = 0; i < LL_N_LOSS; i++) {
        if (g->lost[i] < 0.001 * g->wall) continue;
        ll_buf_printf(&b, "%s %s %.1f %%", any ? "," : "; lost:", ll_loss_name(i),
                      100 * g->lost[i] / g->wall);
        any = true;
    }
    return b.text;
}
