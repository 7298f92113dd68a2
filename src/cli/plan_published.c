/* plan_published.c: loopline plan --published FILE.csv. */
#include "base/file.h"
#include "cli/common.h"
#include "cli/plan.h"
#include "plan/published.h"

static const ll_bundled tables[] = {
#include "table_list.inc"
    {0}};

/* A bundled table by its name, or a file's, which *read then is. */
static ll_err table_of(const char *name, uint8_t **read, const char **text, size_t *size)
{
    enum { LIMIT = 64 << 20 };
    ll_near near = {.word = name};
    const ll_bundled *b = ll_bundled_find(tables, &near);
    if (b) {
        *text = b->text;
        *size = strlen(*text);
        return LL_OK;
    }
    ll_err rc = ll_file_read(name, LIMIT, read, size);
    CHECK(rc == LL_OK || strchr(name, '/') || ll_ends_with(name, ".csv"), rc,
          "%s%s (bundled tables:%s)", ll_error_message(), ll_near_hint(&near), near.known);
    *text = (const char *)*read;
    return rc;
}

static double error_of(const ll_published *r)
{
    return r->predicted / r->measured - 1;
}

static json_t *row_json(const ll_published *r)
{
    char *end;
    json_int_t id = strtoll(r->id, &end, 10);
    return LL_JSON(LL_IS("row", *r->id && !*end ? json_integer(id) : json_string(r->id)),
                   LL_IS("source", r->source), LL_IS("model", r->model), LL_IS("metric", "step_s"),
                   LL_IS("measured", r->measured), LL_IS("predicted", r->predicted),
                   LL_IS("error", error_of(r)), LL_IS("low", r->low), LL_IS("high", r->high),
                   LL_IS("why", r->why), LL_IS("kind", r->kind),
                   LL_IS("percent_of_peak", r->percent),
                   LL_IS("measured_percent_of_peak", r->measured_percent),
                   LL_IS("memory_gb", r->predicted_memory), LL_IS("measured_memory_gb", r->memory),
                   LL_IS("out_of_memory", r->out_of_memory),
                   LL_IS("fits", isnan(r->predicted) ? json_null() : json_boolean(!r->flagged)),
                   LL_IS("held_out", r->held_out));
}

/* A reason on a line, with the rows that it is of. */
static void print_reasons(const ll_published *rows, int n, const char *source)
{
    for (int i = 0; i < n; i++) {
        int alike = 0, first = -1;
        for (int k = 0; k < n && isnan(rows[i].predicted); k++) {
            if (source && strcmp(rows[k].source, source)) continue;
            if (!isnan(rows[k].predicted) || strcmp(rows[k].why, rows[i].why)) continue;
            if (!alike++) first = k;
        }
        if (first == i) fprintf(stderr, "\n    %d: %s", alike, rows[i].why);
    }
}

/* Parts that add up to the rows that were read; those that are 0 are left out. */
static void print_counts(const ll_published *rows, int n, const ll_account *a)
{
    int fitted = a->compared - a->held_out, bare = a->predicted - a->compared;
    const char *comma = "";
    fprintf(stderr, "  %s read: ", LL_COUNTED(a->rows, "row"));
    if (a->compared) {
        fprintf(stderr, "%d compared", a->compared);
        if (fitted && a->held_out)
            fprintf(stderr, " (%d fitted, %d not fitted)", fitted, a->held_out);
        else
            fprintf(stderr, fitted ? " (fitted)" : " (not fitted)");
        comma = ", ";
    }
    if (bare) {
        fprintf(stderr, "%s%d predicted, with no measured step", comma, bare);
        if (a->out_of_memory) fprintf(stderr, " (%d ran out of memory)", a->out_of_memory);
        comma = ", ";
    }
    if (a->rows == a->predicted) return;
    fprintf(stderr, "%s%d not predicted", comma, a->rows - a->predicted);
    print_reasons(rows, n, a->source);
}

static void print_account(const ll_published *rows, int n, const ll_account *a)
{
    print_counts(rows, n, a);
    if (a->compared)
        fprintf(stderr, "\n  mean absolute error %.1f %% (bias %+.1f %%)", 100 * a->error,
                100 * a->bias);
    if (a->held_out && a->held_out < a->compared)
        fprintf(stderr, ", of those not fitted %.1f %%", 100 * a->held_out_error);
    if (a->held_out)
        fprintf(stderr, "; %d of the %d not fitted lie in the interval", a->covered_rows,
                a->held_out);
    if (!isnan(a->tau)) fprintf(stderr, "; Kendall's tau %.2f", a->tau);
    if (a->n_memory)
        fprintf(stderr, "\n  memory, where it is published (%s): mean absolute error %.1f %%",
                LL_COUNTED(a->n_memory, "row"), 100 * a->memory_error);
    if (a->out_of_memory)
        fprintf(stderr, "\n  that ran out of memory: %d, of which %d are predicted not to fit",
                a->out_of_memory, a->flagged);
    if (a->false_alarms)
        fprintf(stderr, "\n  that ran, and are predicted not to fit: %d", a->false_alarms);
    fprintf(stderr, "\n\n");
}

/* What was measured, and what is predicted. */
static void print_pair(double measured, double predicted, int digits)
{
    const double both[] = {measured, predicted};
    for (int i = 0; i < 2; i++)
        if (isnan(both[i]))
            fprintf(stderr, "         -");
        else
            fprintf(stderr, " %9.*f", digits, both[i]);
}

static void print_row(const ll_published *r)
{
    fprintf(stderr, "  %5s  %-22.22s", r->id, r->model);
    if (isnan(r->predicted)) {
        fprintf(stderr, "  not predicted: %s\n", r->why);
        return;
    }
    if (isnan(r->measured))
        fprintf(stderr, "         - %9.3f         -  %9.3f to %-9.3f", r->predicted, r->low,
                r->high);
    else
        fprintf(stderr, " %9.3f %9.3f  %+6.1f %%  %9.3f to %-9.3f", r->measured, r->predicted,
                100 * error_of(r), r->low, r->high);
    print_pair(r->measured_percent, r->percent, 1);
    print_pair(r->memory, r->predicted_memory, 0);
    if (r->out_of_memory) fprintf(stderr, " out of memory: %s", r->flagged ? "flagged" : "MISSED");
    fprintf(stderr, "%s", r->held_out ? "" : "  fitted");
    fprintf(stderr, r->why ? "  %s\n" : "\n", r->why);
}

/* Is row i the first of its source? */
static bool is_first(const ll_published *rows, int i)
{
    int k = 0;
    while (strcmp(rows[k].source, rows[i].source)) k++;
    return k == i;
}

/* A table a source, then all of them. */
static void print_text(const ll_published *rows, int n)
{
    for (int i = 0; i < n; i++) {
        if (!is_first(rows, i)) continue;
        fprintf(stderr,
                "%s\n%32s %-29s  %-23s  %-19s %s\n"
                "    row  model                  measured predicted     error  80 %% of such rows"
                "        measured predicted  measured predicted\n",
                rows[i].source, "", "s a step", "", "% of peak", "GB of the fullest rank");
        for (int k = i; k < n; k++)
            if (!strcmp(rows[k].source, rows[i].source)) print_row(&rows[k]);
        ll_account a = ll_published_account(rows, n, rows[i].source);
        print_account(rows, n, &a);
    }
    ll_account all = ll_published_account(rows, n, NULL);
    fprintf(stderr, "all sources\n");
    print_account(rows, n, &all);
}

static json_t *account_json(const ll_account *a)
{
    return LL_JSON(
        LL_IS("source", a->source), LL_IS("rows", a->rows), LL_IS("predicted", a->predicted),
        LL_IS("compared", a->compared), LL_IS("fitted", a->compared - a->held_out),
        LL_IS("mean_absolute_error", a->error), LL_IS("bias", a->bias),
        LL_IS("held_out", a->held_out), LL_IS("held_out_error", a->held_out_error),
        LL_IS("coverage", a->covered), LL_IS("tau", a->tau), LL_IS("memory_error", a->memory_error),
        LL_IS("out_of_memory", a->out_of_memory), LL_IS("out_of_memory_flagged", a->flagged),
        LL_IS("false_alarms", a->false_alarms));
}

static ll_err print_json(const ll_published *rows, int n)
{
    json_t *list = json_array(), *accounts = json_array();
    int missing = 0;
    for (int i = 0; i < n; i++) {
        json_array_append_new(list, row_json(&rows[i]));
        missing += isnan(rows[i].predicted);
        if (!is_first(rows, i)) continue;
        ll_account a = ll_published_account(rows, n, rows[i].source);
        json_array_append_new(accounts, account_json(&a));
    }
    ll_account all = ll_published_account(rows, n, NULL);
    return ll_cli_json(LL_JSON(LL_IS("rows", list), LL_IS("not_predicted", missing),
                               LL_IS("sources", accounts), LL_IS("all", account_json(&all))));
}

ll_err ll_plan_published(const ll_plan_opts *o)
{
    enum { CLUSTERS = 16 };
    LL_OWN(ll_arena) arena = ll_arena_new();
    LL_OWN_MEMORY uint8_t *text = NULL;
    size_t size;
    ll_cluster *more[CLUSTERS] = {0};
    int n_more = 0, n = 0;
    ll_published *rows = NULL;
    CHECK(o->clusters.n <= CLUSTERS, LL_E_ARG, "at most %d clusters", CLUSTERS);
    const char *name = o->published ? o->published : "large", *rows_text;
    TRY(table_of(name, &text, &rows_text, &size));
    ll_err rc = LL_OK;
    for (; rc == LL_OK && n_more < o->clusters.n; n_more += rc == LL_OK)
        rc = ll_cluster_load(o->clusters.v[n_more], &more[n_more]);
    if (rc == LL_OK)
        rc = ll_published_read(rows_text, size, name, (const ll_cluster *const *)more, n_more,
                               ll_plan_images, arena, &rows, &n);
    if (rc == LL_OK && o->json) rc = print_json(rows, n);
    if (rc == LL_OK && !o->json) print_text(rows, n);
    for (int i = 0; i < n_more; i++) ll_cluster_free(more[i]);
    return rc;
}
