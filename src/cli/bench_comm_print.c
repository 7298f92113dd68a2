/* bench_comm_print.c: what bench comm found, as a table, as JSON and as a picture. */
#include "base/file.h"
#include "base/plot.h"
#include "cli/bench.h"
#include "cli/common.h"
#include "comm/transport.h"

/* The row of the MPI library's own collective; NULL: it was not timed. */
static const ll_comm_bench_row *library_row(const ll_comm_bench_point *p)
{
    for (int i = 0; i < p->n_row; i++)
        if (p->rows[i].algo && p->rows[i].algo->library) return &p->rows[i];
    return NULL;
}

/* ---- text ---- */

static void print_head(const ll_comm_bench_report *r)
{
    const ll_link_model *m = &r->tuner->model;
    const ll_comm_bench_opts *o = r->opts;
    printf("%s of %s, %s on %s, %s, data in %s memory%s\n", ll_coll_name(r->coll),
           ll_dtype_name(r->dtype), LL_COUNTED(r->ranks, "rank"), LL_COUNTED(r->nodes, "node"),
           ll_transport_library(), o->shared ? "shared" : "private",
           o->canonical ? ", canonical sums" : "");
    for (int i = 0; i < 2; i++)
        if (i ? r->nodes > 1 : r->nodes < r->ranks)
            printf("link %s   %.2f us per message (alpha), %.2f GB/s (1/beta)\n",
                   i ? "between nodes" : "within a node", 1e6 * m->alpha[i],
                   1e-9 / (m->beta[i] + 1e-15));
    if (r->ranks > 1)
        printf("sums %.1f GB/s (1/gamma)   copies %.1f GB/s (1/kappa)   signal %.2f us (sigma)   "
               "%g ranks per core\n",
               1e-9 / (m->gamma + 1e-15), 1e-9 / (m->kappa + 1e-15), 1e6 * m->sigma, m->share);
    const char *file = r->tuner->file;
    printf("tuned in %s%s, %s%s\n", LL_DURATION(r->tuner->seconds),
           r->tuner->was_read ? " some time ago" : "", file ? "kept in " : "not kept",
           file ? file : "");
    double load;
    if (getloadavg(&load, 1) == 1 && load > 1.5 * r->ranks)
        printf("other programs are running (load %.1f): times are unreliable\n", load);
    printf(
        "malloc keeps freed memory, so that page faults do not slow down the MPI library's large "
        "messages\n");
}

static void print_row(const ll_comm_bench_row *r, const ll_comm_bench_row *library)
{
    printf("%c %-17s %9s %10s %10s %10s %10s", r->chosen ? '*' : ' ', r->name,
           r->segment_bytes ? LL_BYTES(r->segment_bytes) : "-", LL_TIME(r->median_s),
           LL_TIME(r->min_s), r->predicted_s > 0 ? LL_TIME(r->predicted_s) : "-",
           r->wire >= 0 ? LL_BYTES(r->wire) : "-");
    if (library) printf(" %9.2f", library->median_s / r->median_s);
    if (!r->algo) printf("   error %.2g", r->error);
    printf("\n");
}

static void print_point(const ll_comm_bench_report *r, const ll_comm_bench_point *p)
{
    const ll_comm_bench_row *library = library_row(p);
    double elem = (double)ll_dtype_bytes(r->dtype);
    printf("\n%s, %d runs   lower bound with messages: %s for %.0f messages, %s sent\n",
           LL_BYTES(p->bytes), p->n_run, LL_TIME(p->bound_s), p->bound.messages,
           LL_BYTES(p->bound.sent * elem));
    printf("  %-17s %9s %10s %10s %10s %10s%s\n", "", "segment", "median", "min", "predicted",
           "sent", library ? "    vs MPI" : "");
    for (int i = 0; i < p->n_row; i++) print_row(&p->rows[i], library);
    if (p->why) printf("  * %s\n", p->why);
}

void ll_comm_bench_print(const ll_comm_bench_report *r)
{
    print_head(r);
    for (int i = 0; i < r->n_point; i++) print_point(r, &r->points[i]);
    printf("\n*: the tuner's choice; sent: bytes in messages of the rank that sends most; vs MPI: "
           "speed-up over the MPI library's collective\n");
}

/* ---- JSON ---- */

static json_t *row_json(const ll_comm_bench_report *r, const ll_comm_bench_point *p,
                        const ll_comm_bench_row *w)
{
    const ll_comm_bench_row *library = library_row(p);
    return LL_JSON(
        LL_IS("op", ll_coll_name(r->coll)), LL_IS("ranks", r->ranks), LL_IS("nodes", r->nodes),
        LL_IS("bytes", p->bytes), LL_IS("dtype", ll_dtype_name(r->dtype)),
        LL_IS("shared", r->opts->shared), LL_IS("algorithm", w->name),
        LL_IS("codec", json_boolean(!w->algo)), LL_IS("segment_bytes", w->segment_bytes),
        LL_IS("chosen", w->chosen), LL_IS("us", 1e6 * w->median_s), LL_IS("min_us", 1e6 * w->min_s),
        LL_IS("runs", w->n_run),
        LL_IS("predicted_us", w->predicted_s > 0 ? 1e6 * w->predicted_s : NAN),
        LL_IS("bytes_on_wire", w->wire >= 0 ? json_integer((int64_t)w->wire) : json_null()),
        LL_IS("bound_us", 1e6 * p->bound_s),
        LL_IS("times_library", library ? library->median_s / w->median_s : NAN),
        LL_IF(!w->algo, "error", w->error), LL_IF(w->chosen && p->why, "why", p->why));
}

ll_err ll_comm_bench_json(const ll_comm_bench_report *r)
{
    json_t *list = json_array();
    for (int i = 0; i < r->n_point; i++)
        for (int k = 0; k < r->points[i].n_row; k++)
            json_array_append_new(list, row_json(r, &r->points[i], &r->points[i].rows[k]));
    return ll_cli_json(list);
}

/* ---- picture ---- */

enum { WIDTH = 860, HEIGHT = 520, LEFT = 72, RIGHT = 690, TOP = 96, BOTTOM = 464, N_COLOR = 8 };

/* The names of all rows, in the order in which they first occur. */
static int names_of(ll_arena *a, const ll_comm_bench_report *r, const char ***out)
{
    int n = 0, capacity = 0;
    *out = NULL;
    for (int i = 0; i < r->n_point; i++)
        for (int k = 0; k < r->points[i].n_row; k++) {
            int j = 0;
            while (j < n && strcmp((*out)[j], r->points[i].rows[k].name)) j++;
            if (j < n) continue;
            LL_PUSH(a, *out, n, capacity, r->points[i].rows[k].name);
        }
    return n;
}

/* The best row of a name. */
static const ll_comm_bench_row *row_of(const ll_comm_bench_point *p, const char *name)
{
    const ll_comm_bench_row *best = NULL;
    for (int i = 0; i < p->n_row; i++)
        if (!strcmp(p->rows[i].name, name) && (!best || p->rows[i].median_s < best->median_s))
            best = &p->rows[i];
    return best;
}

static double end_of(const ll_comm_bench_report *r, const char *name)
{
    for (int i = r->n_point - 1; i >= 0; i--) {
        const ll_comm_bench_row *w = row_of(&r->points[i], name);
        if (w) return w->median_s;
    }
    return 0;
}

/* A dot; a square for those that share a colour with an earlier one. */
static void put_mark(ll_buf *b, int index, double x, double y, double r)
{
    if (index < N_COLOR)
        ll_buf_printf(b, "<circle class=\"f%d dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"%g\"/>\n",
                      index % N_COLOR + 1, x, y, r);
    else
        ll_buf_printf(
            b, "<rect class=\"f%d dot\" x=\"%.1f\" y=\"%.1f\" width=\"%g\" height=\"%g\"/>\n",
            index % N_COLOR + 1, x - r, y - r, 2 * r, 2 * r);
}

static void draw_curve(ll_buf *b, const ll_comm_bench_report *r, const ll_plot_axis *x,
                       const ll_plot_axis *y, const char *name, int index, bool predicted)
{
    bool open = false;
    ll_plot_path(b, index % N_COLOR + 1, predicted ? 1.2 : 2,
                 predicted ? " stroke-dasharray=\"4 4\"" : "");
    for (int i = 0; i < r->n_point; i++) {
        const ll_comm_bench_row *w = row_of(&r->points[i], name);
        double s = !w ? 0 : predicted ? w->predicted_s : w->median_s;
        if (s > 0)
            ll_plot_point(b, &open, ll_plot_place(x, (double)r->points[i].bytes),
                          ll_plot_place(y, s));
    }
    ll_plot_path_end(b);
    for (int i = 0; i < r->n_point && !predicted; i++) {
        const ll_comm_bench_row *w = row_of(&r->points[i], name);
        if (w)
            put_mark(b, index, ll_plot_place(x, (double)r->points[i].bytes),
                     ll_plot_place(y, w->median_s), w->chosen ? 5.5 : 3);
    }
}

static void set_axes(const ll_comm_bench_report *r, ll_plot_axis *x, ll_plot_axis *y)
{
    double lo[2] = {INFINITY, INFINITY}, hi[2] = {0, 0};
    LL_EACH (const ll_comm_bench_point, p, r->points, r->n_point) {
        lo[0] = fmin(lo[0], (double)p->bytes);
        hi[0] = fmax(hi[0], (double)p->bytes);
        for (int k = 0; k < p->n_row; k++) {
            double s = p->rows[k].median_s, t = p->rows[k].predicted_s;
            lo[1] = fmin(lo[1], t > 0 ? fmin(s, t) : s);
            hi[1] = fmax(hi[1], fmax(s, t));
        }
    }
    *x = (ll_plot_axis){.from = LEFT, .to = RIGHT, .ticks = LL_TICKS_BYTES};
    *y = (ll_plot_axis){.from = BOTTOM, .to = TOP, .ticks = LL_TICKS_TIME};
    ll_plot_round(x, log2(lo[0]), log2(hi[0]));
    ll_plot_round(y, log10(fmax(lo[1], 1e-9)), log10(fmax(hi[1], 1e-9)));
}

/* Names at the right, in the order of the curves' ends and apart from each other. */
static void draw_names(ll_buf *b, const ll_comm_bench_report *r, const char **names, int n)
{
    bool *done = LL_NEW_ARRAY(b->arena, bool, n);
    for (int line = 0; line < n; line++) {
        int slowest = -1;
        for (int i = 0; i < n; i++)
            if (!done[i] && (slowest < 0 || end_of(r, names[i]) > end_of(r, names[slowest])))
                slowest = i;
        done[slowest] = true;
        double y = TOP + 6 + 19 * line;
        put_mark(b, slowest, RIGHT + 24, y, 5);
        ll_buf_printf(b, "<text class=\"soft\" x=\"%d\" y=\"%g\">%s</text>\n", RIGHT + 36, y + 4,
                      ll_plot_xml(b->arena, names[slowest]));
    }
}

ll_err ll_comm_bench_svg(const ll_comm_bench_report *r, const char *path)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_buf b = {.arena = a};
    ll_plot_axis x, y;
    const char **names;
    int n = names_of(a, r, &names);
    const char *title =
        ll_arena_printf(a, "%s on %s", ll_coll_name(r->coll), LL_COUNTED(r->ranks, "rank"));
    set_axes(r, &x, &y);
    ll_plot_begin(&b, WIDTH, HEIGHT, title);
    ll_plot_words(
        &b, title,
        ll_arena_printf(
            a,
            "%s, %s; solid: measured (median), dashed: predicted, large dots: the tuner's choice",
            ll_transport_library(), ll_dtype_name(r->dtype)));
    ll_plot_left(&b, &y, LEFT, RIGHT, "time");
    ll_plot_bottom(&b, &x, BOTTOM, "bytes");
    for (int i = 0; i < n; i++) draw_curve(&b, r, &x, &y, names[i], i, true);
    for (int i = 0; i < n; i++) draw_curve(&b, r, &x, &y, names[i], i, false);
    draw_names(&b, r, names, n);
    ll_plot_end(&b);
    return ll_file_write(path, b.text, b.len);
}
