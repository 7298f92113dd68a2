/* plan_check.c: loopline plan --check FOLDER...: what training said of its steps before the first,
 * and what came of it (train/foresee.h). */
#include "base/file.h"
#include "base/stats.h"
#include "cli/common.h"
#include "cli/plan.h"
#include "train/foresee.h"
#include "train/metrics.h"

typedef struct history {
    json_t *list;
    double *errors, *alone; /* of all; of those that had their cores for themselves */
    int n, room, n_alone, room_alone, exact, n_bytes;
    ll_arena *arena;
} history;

static void take(history *h, const char *folder, json_t *j, bool print)
{
    /* Of steps that others held up a prediction says nothing; older lines do not tell them. */
    const char *key = json_object_get(j, "own_step_ms") ? "own_step_ms" : "step_ms";
    double said = ll_json_number(j, "predicted_step_ms"), was = ll_json_number(j, key),
           e = said / was - 1;
    double bytes = ll_json_number(j, "predicted_bytes"), used = ll_json_number(j, "bytes");
    double others = ll_json_number(j, "predicted_others"), later = ll_json_number(j, "others");
    const char *model = json_string_value(json_object_get(j, "model"));
    const char *mesh = json_string_value(json_object_get(j, "mesh"));
    if (!isnan(bytes) && !isnan(used)) h->n_bytes++, h->exact += bytes == used;
    LL_JSON_ADD(j, LL_IS("folder", folder), LL_IS("error", e));
    json_array_append(h->list, j);
    if (!isnan(e)) {
        LL_PUSH(h->arena, h->errors, h->n, h->room, fabs(e));
        if (fmax(others, later) < LL_OTHERS_NOTABLE)
            LL_PUSH(h->arena, h->alone, h->n_alone, h->room_alone, fabs(e));
    }
    if (!print) return;
    if (json_array_size(h->list) == 1) /* nothing is shown before there is something */
        fprintf(stderr,
                "  %-28s %-10s %-16s %10s %10s %13s %17s  bytes of tensors and communication "
                "planned, used\n",
                "folder", "model", "mesh", "predicted", "measured", "error", "others' cores");
    fprintf(stderr, "  %-28s %-10s %-16s ", folder, model ? model : "", mesh ? mesh : "");
    if (isnan(said))
        fprintf(stderr, "%10s %10s %13s", "none", "", "");
    else if (isnan(e))
        fprintf(stderr, "%10.3f %10s %13s", said, "held up", "");
    else
        fprintf(stderr, "%10.3f %10.3f ms %+7.1f %%", said, was, 100 * e);
    if (isnan(others + later))
        fprintf(stderr, " %17s", "");
    else
        fprintf(stderr, " %7.0f %%, %3.0f %% ", 100 * others, 100 * later);
    if (!isnan(bytes) && !isnan(used)) fprintf(stderr, "  %.0f %.0f bytes", bytes, used);
    fprintf(stderr, "\n");
}

static ll_err read_folder(history *h, const char *folder, bool print)
{
    enum { LIMIT = 64 << 20 };
    const char *path = ll_arena_printf(h->arena, "%s/predictions.jsonl", folder);
    LL_OWN_MEMORY uint8_t *data = NULL;
    size_t size;
    TRY(ll_file_read(path, LIMIT, &data, &size));
    int line = 1;
    for (char *at = (char *)data, *end; *at; at = end + (*end == '\n'), line++) {
        end = at + strcspn(at, "\n");
        json_error_t error;
        json_auto_t *j = json_loadb(at, (size_t)(end - at), 0, &error);
        CHECK(json_is_object(j), LL_E_IO, "%s:%d: not a line of predictions", path, line);
        take(h, folder, j, print);
    }
    return LL_OK;
}

static double mean_of(double *errors, int n, double *median)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += errors[i];
    if (n) ll_stats_sort(errors, n);
    *median = ll_quantile(errors, n, 0.5);
    return n ? sum / n : NAN;
}

static void print_errors(const history *h, double mean, double median, double alone,
                         double median_alone)
{
    if (h->n)
        fprintf(stderr, "steps of %s predicted: mean absolute error %.1f %%, median %.1f %%",
                LL_COUNTED(h->n, "run"), 100 * mean, 100 * median);
    else
        fprintf(stderr, "no run has predicted steps (restarted runs and runs on several devices "
                        "have none), or other work held up all that have");
    if (h->n_alone && h->n_alone < h->n)
        fprintf(stderr, "; of %d that had their cores for themselves %.1f %%, %.1f %%", h->n_alone,
                100 * alone, 100 * median_alone);
    fprintf(stderr, "; bytes of tensors and communication as planned in %d of %d\n", h->exact,
            h->n_bytes);
}

ll_err ll_plan_check(const ll_plan_opts *o)
{
    LL_OWN(ll_arena) arena = ll_arena_new();
    json_auto_t *list = json_array();
    history h = {.list = list, .arena = arena};
    int bad = 0;
    for (int i = 0; i < o->check.n; i++) {
        ll_err rc = read_folder(&h, o->check.v[i], !o->json);
        if (rc == LL_OK) continue;
        if (o->check.n == 1) return rc;
        fprintf(stderr, "loopline plan: %s\n", ll_error_text());
        bad++;
    }
    double median[2] = {NAN, NAN}, mean = mean_of(h.errors, h.n, &median[0]);
    double alone = mean_of(h.alone, h.n_alone, &median[1]);
    if (o->json)
        TRY(ll_cli_json(
            LL_JSON(LL_IS("runs", json_incref(list)), LL_IS("mean_absolute_error", mean),
                    LL_IS("median_absolute_error", median[0]),
                    LL_IS("mean_absolute_error_alone", alone), LL_IS("memory_exact", h.exact))));
    else
        print_errors(&h, mean, median[0], alone, median[1]);
    CHECK(!bad, LL_E_IO, "%d of %d folders could not be read", bad, o->check.n);
    return LL_OK;
}
