/* curve_run.c: the learning curve of a run folder, from its metrics.jsonl: a resumed run's picture
 * has the steps before it was stopped too. */
#include "base/file.h"
#include "train/curve.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { LOSS, VAL_LOSS, VAL_ACCURACY, N_SERIES };

typedef struct series {
    double *x, *y;
    int n, cap;
} series;

static void add(ll_arena *a, series *s, double x, double y)
{
    int cap = s->cap;
    s->x = (double *)ll_arena_grow(a, s->x, sizeof(double), s->n, &cap);
    s->y = (double *)ll_arena_grow(a, s->y, sizeof(double), s->n, &s->cap);
    s->x[s->n] = x;
    s->y[s->n++] = y;
}

static void read_line(ll_arena *a, const char *line, size_t n, series s[N_SERIES])
{
    static const char *const keys[N_SERIES] = {"loss", "val_loss", "val_accuracy"};
    json_t *j = json_loadb(line, n, 0, NULL);
    double step = json_number_value(json_object_get(j, "step"));
    for (int i = 0; i < N_SERIES; i++) {
        json_t *v = json_object_get(j, keys[i]);
        if (json_is_number(v)) add(a, &s[i], step, json_number_value(v));
    }
    json_decref(j);
}

ll_err ll_curve_of_run(const char *folder, const char *title, const char *caption)
{
    enum { LIMIT = 1 << 30 };
    ll_arena *a = ll_arena_new();
    uint8_t *data = NULL;
    size_t size = 0;
    series s[N_SERIES] = {0};
    ll_err rc = ll_file_read(ll_arena_printf(a, "%s/metrics.jsonl", folder), LIMIT, &data, &size);
    const char *p = (const char *)data;
    while (rc == LL_OK && size) {
        const char *end = (const char *)memchr(p, '\n', size);
        size_t n = end ? (size_t)(end - p) : size;
        read_line(a, p, n, s);
        p += n + (end != NULL);
        size -= n + (end != NULL);
    }
    free(data);
    ll_curve c = {.title = title, .caption = caption};
    c.train_loss = (ll_points){s[LOSS].x, s[LOSS].y, s[LOSS].n};
    c.val_loss = (ll_points){s[VAL_LOSS].x, s[VAL_LOSS].y, s[VAL_LOSS].n};
    c.val_accuracy = (ll_points){s[VAL_ACCURACY].x, s[VAL_ACCURACY].y, s[VAL_ACCURACY].n};
    if (rc == LL_OK) rc = ll_curve_write(ll_arena_printf(a, "%s/curve.svg", folder), &c);
    ll_arena_free(a);
    return rc;
}
