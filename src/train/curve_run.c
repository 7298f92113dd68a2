/* curve_run.c: the learning curve of a run folder, from its metrics.jsonl: a resumed run's picture
 * has the steps before it was stopped too. */
#include "train/curve.h"
#include "train/metrics.h"

enum { LOSS, VAL_LOSS, VAL_ACCURACY, N_SERIES };

typedef struct reading {
    ll_arena *arena;
    struct series {
        double *x, *y;
        int n, cap;
    } series[N_SERIES];
} reading;

static void read_line(void *context, int64_t step, const json_t *line)
{
    static const char *const keys[N_SERIES] = {"loss", "val_loss", "val_accuracy"};
    reading *r = (reading *)context;
    for (int i = 0; i < N_SERIES; i++) {
        struct series *s = &r->series[i];
        const json_t *v = json_object_get(line, keys[i]);
        int cap = s->cap;
        if (!json_is_number(v)) continue;
        s->x = (double *)ll_arena_grow(r->arena, s->x, sizeof(double), s->n, &cap);
        s->y = (double *)ll_arena_grow(r->arena, s->y, sizeof(double), s->n, &s->cap);
        s->x[s->n] = (double)step;
        s->y[s->n++] = json_number_value(v);
    }
}

ll_err ll_curve_of_run(const char *folder, const char *title, const char *caption)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    reading r = {.arena = a};
    const struct series *s = r.series;
    size_t kept;
    TRY(ll_metrics_lines(ll_arena_printf(a, "%s/metrics.jsonl", folder), INT64_MAX, read_line, &r,
                         &kept));
    ll_curve c = {.title = title,
                  .caption = caption,
                  .train_loss = {s[LOSS].x, s[LOSS].y, s[LOSS].n},
                  .val_loss = {s[VAL_LOSS].x, s[VAL_LOSS].y, s[VAL_LOSS].n},
                  .val_accuracy = {s[VAL_ACCURACY].x, s[VAL_ACCURACY].y, s[VAL_ACCURACY].n}};
    return ll_curve_write(ll_arena_printf(a, "%s/curve.svg", folder), &c);
}
