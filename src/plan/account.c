/* account.c: how published rows were met, by source or all. */
#include "plan/published.h"

#include <math.h>

/* What 80 % of rows of a kind that were not fitted stay within. */
double ll_plan_spread(const char *kind)
{
    static const struct {
        const char *kind;
        double spread;
    } known[] = {{"sharded", 0.10},
                 {"pipeline", 0.09},
                 {"data and tensor", 0.06},
                 {"images", 0.10},
                 {"own images", 0.08},
                 {"small step", 1.4}}; /* of launches: LeNet-5's and small GPTs' on an H200 */
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i].kind, kind)) return known[i].spread;
    return 0.15;
}

/* Rows of one page or table of a source, whatever line of it. */
static bool same_sweep(const ll_published *a, const ll_published *b)
{
    const char *line = strstr(a->sweep, " line ");
    size_t n = line ? (size_t)(line - a->sweep) : strlen(a->sweep) + 1;
    return !strcmp(a->source, b->source) && !strncmp(a->sweep, b->sweep, n);
}

ll_account ll_published_account(const ll_published *rows, int n, const char *source)
{
    ll_account a = {.source = source};
    double pairs = 0, agree = 0;
    for (int i = 0; i < n; i++) {
        const ll_published *r = &rows[i];
        if (source && strcmp(r->source, source)) continue;
        a.rows++;
        a.predicted += !isnan(r->predicted);
        a.out_of_memory += r->out_of_memory;
        a.flagged += r->out_of_memory && r->flagged;
        a.false_alarms += !r->out_of_memory && r->flagged;
        if (!isnan(r->memory) && !isnan(r->predicted_memory)) {
            a.memory_error += fabs(r->predicted_memory / r->memory - 1);
            a.n_memory++;
        }
        double e = r->predicted / r->measured - 1;
        if (isnan(e)) continue;
        a.compared++;
        a.error += fabs(e), a.bias += e;
        if (r->held_out) {
            a.held_out++, a.held_out_error += fabs(e);
            a.covered_rows += r->measured >= r->low && r->measured <= r->high;
        }
        for (int k = 0; k < i; k++) {
            if (!same_sweep(r, &rows[k]) || isnan(rows[k].predicted / rows[k].measured)) continue;
            double x = r->measured - rows[k].measured, y = r->predicted - rows[k].predicted;
            if (x == 0) continue;
            pairs++, agree += x * y > 0 ? 1 : x * y < 0 ? -1 : 0;
        }
    }
    a.error /= a.compared, a.bias /= a.compared;
    a.held_out_error /= a.held_out, a.covered = (double)a.covered_rows / a.held_out;
    a.memory_error /= a.n_memory;
    a.tau = agree / pairs;
    return a;
}
