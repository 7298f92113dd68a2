/* bench_consistency.c: loopline bench consistency: one run under several presets of
 * parallel.consistency, each in a job of its own, for equal samples. What they came to is a table;
 * losses over time, over bytes between replicas and over samples are a picture. */
#include "cli/bench.h"
#include "cli/common.h"

#include "base/file.h"
#include "base/plot.h"
#include "train/metrics.h"

#include <omp.h>

typedef struct opts {
    const char *run, *presets, *slow, *out, *svg, *html;
    ll_words set;
    int64_t ranks, replicas;
    bool json, overwrite;
} opts;

static const ll_arg args[] = {
    {"RUN", LL_OPT(opts, run), NULL, "a run file or the name of a bundled run"},
    {"-n", LL_ARG_COUNT, offsetof(opts, ranks), "N", "number of ranks", "4", .most = LL_RANKS_MOST},
    {"--replicas", LL_OPT(opts, replicas), "R", "number of replicas (0 = one per rank)"},
    {"--presets", LL_OPT(opts, presets), "LIST",
     "presets of parallel.consistency to compare, each with other parallel settings appended by +",
     "sync,local,diloco+every=20+codec=int8"},
    {"--set|-s", LL_OPT(opts, set), "KEY=VALUE", "override a setting of the run, for all presets"},
    {"--slow", LL_OPT(opts, slow), "RANK:FACTOR", "simulate a straggler, as in train"},
    {"--out", LL_OPT(opts, out), "DIR", "folder for the run folders, one per preset",
     "runs/consistency"},
    {"--overwrite", LL_OPT(opts, overwrite), NULL, "start runs that exist already from scratch"},
    {"--svg", LL_OPT(opts, svg), "FILE.svg",
     "chart of the loss (if not given, DIR/consistency.svg)"},
    {"--html", LL_OPT(opts, html), "FILE.html",
     "table and chart as one page (if not given, DIR/consistency.html)"},
    {"--json", LL_OPT(opts, json), NULL, "print one JSON object to standard output"},
    {0}};

enum { TIME, BYTES, SAMPLES, N_AXIS };
static const char *const axis_names[N_AXIS] = {"seconds", "MB that a rank sends", "samples"};

typedef struct point {
    int64_t step;
    double x[N_AXIS], loss;
} point;

typedef struct row {
    const char *preset;
    double train_loss, val_loss, seconds, samples_per_s, bytes;
    double peak;   /* most bytes a second from one logged step to the next */
    point *points; /* logged steps */
    int n, room, at;
    ll_arena *arena;
    double batch, sent, before;
} row;

static void see_loss(void *context, int64_t step, const json_t *line)
{
    row *r = (row *)context;
    double loss = ll_json_number(line, "loss");
    if (isnan(loss)) return;
    LL_PUSH(r->arena, r->points, r->n, r->room,
            (point){.step = step, .x[SAMPLES] = r->batch * (double)step, .loss = loss});
}

static void see_time(void *context, int64_t step, const json_t *line)
{
    row *r = (row *)context;
    double bytes = json_number_value(json_object_get(line, "replica_bytes"));
    r->sent += bytes;
    while (r->at < r->n && r->points[r->at].step < step) r->at++;
    if (r->at == r->n || r->points[r->at].step != step) return;
    r->points[r->at].x[TIME] = json_number_value(json_object_get(line, "wall_s")) -
                               json_number_value(json_object_get(line, "start_s"));
    r->points[r->at].x[BYTES] = 1e-6 * r->sent;
    r->peak = fmax(r->peak, bytes / (r->points[r->at].x[TIME] - r->before));
    r->before = r->points[r->at].x[TIME];
}

static ll_err read_row(row *r, const char *folder, const char *text, size_t bytes)
{
    size_t kept;
    json_auto_t *j = json_loadb(text, bytes, 0, NULL);
    CHECK(j, LL_E_IO, "train did not print JSON");
    r->train_loss = ll_json_number(j, "train_loss");
    r->val_loss = ll_json_number(j, "val_loss");
    r->seconds = ll_json_number(j, "seconds");
    TRY(ll_metrics_lines(ll_arena_printf(r->arena, "%s/metrics.jsonl", folder), INT64_MAX, see_loss,
                         r, &kept));
    TRY(ll_metrics_lines(ll_arena_printf(r->arena, "%s/timing.jsonl", folder), INT64_MAX, see_time,
                         r, &kept));
    r->bytes = r->sent;
    const point *last = r->n ? &r->points[r->n - 1] : NULL;
    r->samples_per_s = last ? last->x[SAMPLES] / last->x[TIME] : NAN;
    return LL_OK;
}

static const char *folder_of(const opts *o, const row *r)
{
    return ll_arena_printf(r->arena, "%s/%s", o->out, r->preset);
}

/* "diloco+every=20": the preset, and settings of section parallel. */
static ll_err measure(const opts *o, int64_t replicas, row *r)
{
    ll_arena *a = r->arena;
    const char **words = LL_NEW_ARRAY(a, const char *, 2 * o->set.n + 2 * strlen(r->preset) + 18);
    char *rest = NULL, *spec = ll_arena_strdup(a, r->preset);
    LL_OWN_MEMORY char *text = NULL;
    const char *folder = folder_of(o, r);
    int n = 0;
    size_t bytes;
    const char *const first[] = {
        "train",       o->run,   "--out", folder,
        "--overwrite", "--json", "-s",    ll_arena_printf(a, "parallel.replicas=%ld", replicas)};
    for (size_t i = 0; i < sizeof first / sizeof *first; i++) words[n++] = first[i];
    if (o->slow) words[n++] = "--slow", words[n++] = o->slow;
    for (int i = 0; i < o->set.n; i++) words[n++] = "-s", words[n++] = o->set.v[i];
    bool name = true;
    for (char *w = strtok_r(spec, "+", &rest); w; w = strtok_r(NULL, "+", &rest), name = false) {
        words[n++] = "-s";
        words[n++] = ll_arena_printf(a, name ? "parallel.consistency=%s" : "parallel.%s", w);
    }
    int threads = omp_get_num_procs() / (int)o->ranks;
    TRY(ll_cli_job(o->ranks, threads > 1 ? threads : 1, words, n, &text, &bytes));
    return read_row(r, folder, text, bytes);
}

/* ---- the table and the picture ---- */

static void write_table(const opts *o, const row *rows, int n, ll_buf *b)
{
    ll_buf_printf(b, "%-32s %10s %10s %9s %12s %12s %8s %12s\n", "", "train loss", "val loss",
                  "seconds", "samples/s", "bytes/rank", "fewer", "peak/s");
    LL_EACH (const row, r, rows, n) {
        char fewer[32] = "-";
        if (r->bytes > 0) snprintf(fewer, sizeof fewer, "%.1fx", rows[0].bytes / r->bytes);
        ll_buf_printf(b, "%-32s %10.4f %10.4f %9.1f %12.1f %12s %8s %12s\n", r->preset,
                      r->train_loss, r->val_loss, r->seconds, r->samples_per_s, LL_BYTES(r->bytes),
                      fewer, LL_BYTES(r->peak));
    }
    ll_buf_printf(b,
                  "%ld ranks%s%s; seconds: with startup, samples/s: without; bytes/rank: sent to "
                  "other replicas; fewer: reduction against %s; peak/s: most bytes per second "
                  "between two logged steps\n",
                  o->ranks, o->slow ? ", slow: " : "", o->slow ? o->slow : "", rows[0].preset);
}

static ll_err print_json(const row *rows, int n)
{
    json_t *list = LL_JSON_LIST(
        i, n,
        LL_JSON(LL_IS("preset", rows[i].preset), LL_IS("train_loss", rows[i].train_loss),
                LL_IS("val_loss", rows[i].val_loss), LL_IS("seconds", rows[i].seconds),
                LL_IS("samples_per_s", rows[i].samples_per_s),
                LL_IS("replica_bytes", rows[i].bytes), LL_IS("peak_bytes_per_s", rows[i].peak)));
    return ll_cli_json(LL_JSON(LL_IS("presets", list)));
}

enum { EACH = 330, LEFT = 60, TOP = 80, BOTTOM = 360, HEIGHT = 420, NAMES = 200 };

static void draw_panel(ll_buf *b, const row *rows, int n, int k)
{
    double most = 0, lo = INFINITY, hi = 0, left = LEFT + k * EACH, right = left + EACH - LEFT;
    for (int i = 0; i < n; i++)
        for (int p = 0; p < rows[i].n; p++) {
            most = fmax(most, rows[i].points[p].x[k]);
            lo = fmin(lo, rows[i].points[p].loss);
            hi = fmax(hi, rows[i].points[p].loss);
        }
    if (!(most > 0)) most = 1;
    ll_plot_axis x = {.from = left, .to = right}, y = {.from = BOTTOM, .to = TOP};
    ll_plot_round(&x, 0, most);
    ll_plot_round(&y, lo < hi ? lo : hi - 1, hi);
    ll_plot_left(b, &y, left, right, k ? "" : "training loss");
    ll_plot_bottom(b, &x, BOTTOM, axis_names[k]);
    for (int i = 0; i < n; i++) {
        bool open = false;
        ll_plot_path(b, i % 8 + 1, 1.6, "");
        for (int p = 0; p < rows[i].n; p++)
            ll_plot_point(b, &open, ll_plot_place(&x, rows[i].points[p].x[k]),
                          ll_plot_place(&y, rows[i].points[p].loss));
        ll_plot_path_end(b);
    }
}

static void draw(const opts *o, const row *rows, int n, ll_arena *a, ll_buf *b)
{
    const char *title = ll_arena_printf(a, "%s on %s", o->run, LL_COUNTED(o->ranks, "rank"));
    ll_plot_begin(b, N_AXIS * EACH + NAMES, HEIGHT, title);
    ll_plot_words(b, title, "loss over time, bytes between replicas and samples");
    for (int k = 0; k < N_AXIS; k++) draw_panel(b, rows, n, k);
    for (int i = 0; i < n; i++)
        ll_buf_printf(b, "<text class=\"f%d\" x=\"%d\" y=\"%d\">%s</text>\n", i % 8 + 1,
                      N_AXIS * EACH + 20, TOP + 12 + 20 * i, ll_plot_xml(a, rows[i].preset));
    ll_plot_end(b);
}

static ll_err write_page(const opts *o, const char *path, const ll_buf *table, const ll_buf *svg,
                         ll_arena *a)
{
    ll_buf b = {.arena = a};
    ll_buf_printf(
        &b, "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>%s</title>\n<pre>",
        ll_plot_xml(a, o->run));
    for (const char *line = table->text; *line; line += strcspn(line, "\n") + 1) {
        const char *cells = ll_arena_printf(a, "%.*s", (int)strcspn(line, "\n"), line);
        ll_buf_printf(&b, "%s\n", ll_plot_xml(a, cells));
    }
    ll_buf_printf(&b, "</pre>\n%s</html>\n", svg->text);
    return ll_file_write(path, b.text, b.len);
}

/* Each once, as its folder has its name. */
static ll_err read_presets(const opts *o, const ll_run *r, ll_arena *a, row *rows, int *n)
{
    char *rest = NULL, *list = ll_arena_strdup(a, o->presets);
    *n = 0;
    for (char *w = strtok_r(list, ",", &rest); w; w = strtok_r(NULL, ",", &rest)) {
        CHECK(*w != '+', LL_E_ARG,
              "--presets '%s': '%s' has no name before its +, expected such as local+every=20",
              o->presets, w);
        for (int i = 0; i < *n; i++)
            CHECK(strcmp(rows[i].preset, w), LL_E_ARG, "--presets '%s' lists %s twice", o->presets,
                  w);
        rows[(*n)++] = (row){.preset = w, .arena = a, .batch = (double)r->train.batch};
    }
    CHECK(*n, LL_E_ARG, "--presets is empty: expected names such as sync,local");
    return LL_OK;
}

static ll_err run(const void *given)
{
    const opts *o = (const opts *)given;
    LL_OWN(ll_arena) a = ll_arena_new();
    LL_OWN(ll_run) r = NULL;
    int64_t replicas = o->replicas ? o->replicas : o->ranks;
    TRY(ll_cli_run(o->run, &o->set, false, &r));
    CHECK(replicas > 1, LL_E_ARG,
          "at least 2 replicas are needed: set -n and --replicas to 2 or more");
    row *rows = LL_NEW_ARRAY(a, row, strlen(o->presets) + 1);
    int n;
    TRY(read_presets(o, r, a, rows, &n));
    for (int i = 0; i < n && !o->overwrite; i++) {
        const char *folder = folder_of(o, &rows[i]);
        CHECK(!ll_cli_holds_run(folder), LL_E_ARG,
              "%s already holds a run: use --overwrite to start over, or --out DIR for another "
              "folder",
              folder);
    }
    /* What one preset cannot do costs no other its row. */
    char trouble[1024] = "";
    int done = 0;
    for (int i = 0; i < n; i++) {
        if (measure(o, replicas, &rows[i]) == LL_OK) {
            rows[done++] = rows[i];
            continue;
        }
        size_t at = strlen(trouble);
        snprintf(trouble + at, sizeof trouble - at, "%s%s: %s", at ? "; " : "", rows[i].preset,
                 ll_error_message());
    }
    CHECK(done, LL_E_ARG, "no preset ran: %s", trouble);
    ll_buf table = {.arena = a}, picture = {.arena = a};
    const char *svg = o->svg && *o->svg ? o->svg : ll_arena_printf(a, "%s/consistency.svg", o->out);
    write_table(o, rows, done, &table);
    draw(o, rows, done, a, &picture);
    TRY(ll_file_write(svg, picture.text, picture.len));
    const char *page =
        o->html && *o->html ? o->html : ll_arena_printf(a, "%s/consistency.html", o->out);
    TRY(write_page(o, page, &table, &picture, a));
    if (o->json)
        TRY(print_json(rows, done));
    else
        printf("%s%s, and as a page: %s\n", table.text, svg, page);
    CHECK(done == n, LL_E_ARG, "%s", trouble);
    return LL_OK;
}

const ll_command ll_bench_consistency_command = {
    "bench consistency", "train a run under several presets of parallel.consistency and compare",
    args, sizeof(opts), run};
