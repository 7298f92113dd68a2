/* curve.c: the learning curve. Data units become pixels through two kinds of axis (base/plot.h):
 * linear ones, and a logarithmic one for losses that fall by more than a factor of a hundred. A
 * long run is thinned to the picture's resolution: the raw line goes through the least and the
 * largest value of each pixel column, so no spike is lost, and the smooth one is a centred average,
 * which does not lag as a running one would. */
#include "train/curve.h"
#include "base/file.h"
#include "base/plot.h"
#include "train/metrics.h"

#include <string.h>

enum { WIDTH = 860, HEIGHT = 460, LEFT = 64, TOP = 114, BOTTOM = 56 };

typedef struct picture {
    ll_buf svg;
    const ll_curve *curve;
    ll_plot_axis x, loss, accuracy;
    int right; /* where the plot ends, in pixels */
    ll_points smooth;
} picture;

/* Sums of usable values stay finite. */
static bool usable(const ll_points *p, int i)
{
    return fabs(p->x[i]) < 1e100 && fabs(p->y[i]) < 1e100;
}

static bool has_points(const ll_points *p)
{
    for (int i = 0; i < p->n; i++)
        if (usable(p, i)) return true;
    return false;
}

/* ---- ranges ---- */

/* Of these; 0 to 1 where none is usable. */
static void find_range(const ll_points *const *lists, int n, bool of_x, double *lo, double *hi)
{
    *lo = INFINITY, *hi = -INFINITY;
    for (int k = 0; k < n; k++)
        for (int i = 0; i < lists[k]->n; i++) {
            if (!usable(lists[k], i)) continue;
            double v = of_x ? lists[k]->x[i] : lists[k]->y[i];
            *lo = fmin(*lo, v), *hi = fmax(*hi, v);
        }
    if (!(*lo <= *hi)) *lo = 0, *hi = 1;
}

static void set_x(picture *p)
{
    const ll_curve *c = p->curve;
    const ll_points *const all[] = {&c->train_loss, &c->val_loss, &c->val_accuracy};
    double lo, hi;
    find_range(all, 3, true, &lo, &hi);
    if (lo > 0 && lo < 0.2 * hi) lo = 0; /* a run starts at step 1: the axis at 0 */
    if (!(hi > lo)) hi = lo + 1;
    p->x = (ll_plot_axis){.lo = lo, .hi = hi, .from = LEFT, .to = p->right};
    p->x.step = fmax(1, ll_plot_step((hi - lo) / 8)); /* steps are whole */
}

/* Of the smooth line and of validation: one raw spike does not flatten the picture. */
static void set_loss(picture *p)
{
    const ll_points *const both[] = {&p->smooth, &p->curve->val_loss};
    double lo, hi;
    find_range(both, 2, false, &lo, &hi);
    p->loss = (ll_plot_axis){.from = HEIGHT - BOTTOM, .to = TOP};
    bool powers = lo > 0 && hi / lo > 100;
    p->loss.ticks = powers ? LL_TICKS_POWER : LL_TICKS_PLAIN;
    if (powers)
        ll_plot_round(&p->loss, log10(lo), log10(hi));
    else
        ll_plot_round(&p->loss, lo > 0 && lo < 0.3 * hi ? 0 : lo, hi);
}

static void set_accuracy(picture *p)
{
    const ll_points *const one[] = {&p->curve->val_accuracy};
    double lo, hi;
    find_range(one, 1, false, &lo, &hi);
    p->accuracy = (ll_plot_axis){.from = HEIGHT - BOTTOM, .to = TOP, .ticks = LL_TICKS_PERCENT};
    ll_plot_round(&p->accuracy, 100 * lo, 100 * hi);
    if (p->accuracy.hi > 100 && hi <= 1) p->accuracy.hi = 100;
    if (p->accuracy.lo < 0 && lo >= 0) p->accuracy.lo = 0;
}

/* ---- smoothing ---- */

/* Averages over the points within half a window to either side. At the start, where losses fall
 * fastest, it looks ahead no further than it looks back, nearly. */
static ll_points smoothed(ll_arena *a, const ll_points *p)
{
    double *x = LL_NEW_ARRAY(a, double, p->n), *y = LL_NEW_ARRAY(a, double, p->n);
    double *sum = LL_NEW_ARRAY(a, double, p->n + 1);
    int n = 0;
    for (int i = 0; i < p->n; i++) {
        if (!usable(p, i)) continue;
        x[n] = p->x[i];
        sum[n + 1] = sum[n] + p->y[i];
        n++;
    }
    int half = n / 60;
    for (int i = 0; i < n; i++) {
        int before = i < half ? i : half;
        int after = before > half / 6 ? before : half / 6;
        if (after > n - 1 - i) after = n - 1 - i;
        y[i] = (sum[i + after + 1] - sum[i - before]) / (before + after + 1);
    }
    return (ll_points){x, y, n, n};
}

/* ---- drawing ---- */

static void draw_axes(picture *p)
{
    ll_buf *b = &p->svg;
    ll_plot_left(b, &p->loss, LEFT, p->right, "loss");
    ll_plot_bottom(b, &p->x, HEIGHT - BOTTOM, "step");
    if (!has_points(&p->curve->val_accuracy)) return;
    double v;
    for (int i = 0; ll_plot_tick(&p->accuracy, i, &v); i++) {
        ll_buf_printf(b, "<text class=\"f3\" x=\"%d\" y=\"%.1f\">", p->right + 10,
                      ll_plot_pixel(&p->accuracy, v) + 4);
        ll_plot_text(b, &p->accuracy, v);
        ll_buf_puts(b, "</text>\n");
    }
    ll_buf_printf(b, "<text class=\"f3\" x=\"%d\" y=\"%d\">accuracy</text>\n", p->right - 6,
                  TOP - 14);
}

/* Every point where they are few, else the least and the largest of each pixel column. */
static void draw_raw(picture *p)
{
    const ll_points *t = &p->curve->train_loss;
    bool thin = t->n > 2 * (p->right - LEFT), open = false;
    ll_plot_path(&p->svg, 1, 1, " stroke-opacity=\"0.3\" clip-path=\"url(#plot)\"");
    for (int i = 0; i < t->n;) {
        if (!usable(t, i)) {
            open = false;
            i++;
            continue;
        }
        double x = ll_plot_place(&p->x, t->x[i]), lo = t->y[i], hi = lo;
        int end = i + 1;
        while (thin && end < t->n && usable(t, end) &&
               ll_plot_place(&p->x, t->x[end]) < floor(x) + 1) {
            lo = fmin(lo, t->y[end]);
            hi = fmax(hi, t->y[end]);
            end++;
        }
        ll_plot_point(&p->svg, &open, x, ll_plot_place(&p->loss, hi));
        if (lo < hi) ll_plot_point(&p->svg, &open, x, ll_plot_place(&p->loss, lo));
        i = end;
    }
    ll_plot_path_end(&p->svg);
}

static void put_marker(ll_buf *b, int color, double x, double y)
{
    if (color == 3)
        ll_buf_printf(b, "<path class=\"f3 dot\" d=\"M%.1f %.1fl5 5-5 5-5-5z\"/>", x, y - 5);
    else
        ll_buf_printf(b, "<circle class=\"f%d dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>", color, x,
                      y);
}

static void draw_smooth(picture *p)
{
    const ll_points *s = &p->smooth;
    bool open = false;
    double drawn_at = -1;
    ll_plot_path(&p->svg, 1, 2.2, "");
    for (int i = 0; i < s->n; i++) {
        double x = ll_plot_place(&p->x, s->x[i]);
        if (i && i < s->n - 1 && x - drawn_at < 1) continue;
        ll_plot_point(&p->svg, &open, x, ll_plot_place(&p->loss, s->y[i]));
        drawn_at = x;
    }
    ll_plot_path_end(&p->svg);
    if (s->n == 1)
        put_marker(&p->svg, 1, ll_plot_place(&p->x, s->x[0]), ll_plot_place(&p->loss, s->y[0]));
}

/* Validation: a line, and marks where they do not touch. scale: from data to the axis. */
static void draw_validation(picture *p, const ll_points *v, const ll_plot_axis *y, double scale,
                            int color)
{
    if (!has_points(v)) return;
    bool open = false;
    ll_plot_path(&p->svg, color, 1.8, color == 3 ? " stroke-dasharray=\"6 4\"" : "");
    for (int i = 0; i < v->n; i++) {
        if (usable(v, i))
            ll_plot_point(&p->svg, &open, ll_plot_place(&p->x, v->x[i]),
                          ll_plot_place(y, scale * v->y[i]));
        else
            open = false;
    }
    ll_plot_path_end(&p->svg);
    for (int i = 0; i < v->n && v->n <= (p->right - LEFT) / 14; i++)
        if (usable(v, i))
            put_marker(&p->svg, color, ll_plot_place(&p->x, v->x[i]),
                       ll_plot_place(y, scale * v->y[i]));
    ll_buf_puts(&p->svg, "\n");
}

/* The index of the best point; -1: none is usable. */
static int best_of(const ll_points *v, bool largest)
{
    int best = -1;
    for (int i = 0; i < v->n; i++) {
        if (!usable(v, i)) continue;
        if (best < 0 || (largest ? v->y[i] > v->y[best] : v->y[i] < v->y[best])) best = i;
    }
    return best;
}

/* Adds a sample of the line and its name with the last value; returns where the next may begin. */
static double legend_item(picture *p, double x, int color, const char *name, const ll_points *v)
{
    int last = v->n - 1;
    while (last >= 0 && !usable(v, last)) last--;
    if (last < 0) return x;
    ll_buf *b = &p->svg;
    double y = p->curve->caption ? 72 : 58;
    ll_plot_path(b, color, color == 1 ? 2.2 : 1.8, color == 3 ? " stroke-dasharray=\"6 4\"" : "");
    ll_buf_printf(b, "M%.1f %.1fh26\"/>", x, y);
    if (color != 1) put_marker(b, color, x + 13, y);
    char text[96];
    snprintf(text, sizeof text, color == 3 ? "%s %.2f%%" : "%s %.4g", name,
             color == 3 ? 100 * v->y[last] : v->y[last]);
    int best = color == 1 ? -1 : best_of(v, color == 3);
    char more[64] = "";
    if (best >= 0 && best != last)
        snprintf(more, sizeof more, color == 3 ? " (best %.2f%%)" : " (best %.4g)",
                 color == 3 ? 100 * v->y[best] : v->y[best]);
    ll_buf_printf(b, "<text class=\"soft\" x=\"%.1f\" y=\"%.1f\">%s%s</text>\n", x + 34, y + 4,
                  text, more);
    return x + 34 + 6.6 * (double)(strlen(text) + strlen(more)) + 22;
}

static void draw_words(picture *p)
{
    ll_buf *b = &p->svg;
    const ll_curve *c = p->curve;
    ll_plot_words(b, c->title ? c->title : "", c->caption);
    double x = legend_item(p, 20, 1, "training loss", &p->smooth);
    x = legend_item(p, x, 2, "validation loss", &c->val_loss);
    x = legend_item(p, x, 3, "validation accuracy", &c->val_accuracy);
    if (x == 20)
        ll_buf_printf(
            b,
            "<text class=\"soft\" text-anchor=\"middle\" x=\"%d\" y=\"%d\">no points yet</text>\n",
            WIDTH / 2, HEIGHT / 2);
}

const char *ll_curve_svg(ll_arena *a, const ll_curve *c)
{
    picture p = {.svg = {.arena = a}, .curve = c, .smooth = smoothed(a, &c->train_loss)};
    p.right = has_points(&c->val_accuracy) ? WIDTH - 64 : WIDTH - 28;
    set_x(&p);
    set_loss(&p);
    set_accuracy(&p);
    ll_plot_begin(&p.svg, WIDTH, HEIGHT, c->title ? c->title : "learning curve");
    ll_buf_printf(
        &p.svg,
        "<clipPath id=\"plot\"><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/></clipPath>\n",
        LEFT, TOP, p.right - LEFT, HEIGHT - TOP - BOTTOM);
    draw_axes(&p);
    draw_raw(&p);
    draw_smooth(&p);
    draw_validation(&p, &c->val_loss, &p.loss, 1, 2);
    draw_validation(&p, &c->val_accuracy, &p.accuracy, 100, 3);
    draw_words(&p);
    ll_plot_end(&p.svg);
    return p.svg.text;
}

/* ---- of a run folder: one that was resumed has the steps before it was stopped too ---- */

typedef struct reading {
    ll_arena *arena;
    ll_curve c;
} reading;

static void read_line(void *context, int64_t step, const json_t *line)
{
    reading *r = (reading *)context;
    const struct {
        const char *key;
        ll_points *to;
    } lists[] = {{"loss", &r->c.train_loss},
                 {"val_loss", &r->c.val_loss},
                 {"val_accuracy", &r->c.val_accuracy}};
    for (int i = 0; i < 3; i++) {
        ll_points *p = lists[i].to;
        const json_t *v = json_object_get(line, lists[i].key);
        int room = p->room;
        if (!json_is_number(v)) continue;
        p->x = (double *)ll_arena_grow(r->arena, p->x, sizeof(double), p->n, &room);
        p->x[p->n] = (double)step;
        LL_PUSH(r->arena, p->y, p->n, p->room, json_number_value(v));
    }
}

ll_err ll_curve_of_run(const char *folder, const char *title, const char *caption)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    reading r = {a, {.title = title, .caption = caption}};
    size_t kept;
    TRY(ll_metrics_lines(ll_arena_printf(a, "%s/metrics.jsonl", folder), INT64_MAX, read_line, &r,
                         &kept));
    const char *svg = ll_curve_svg(a, &r.c);
    return ll_file_write(ll_arena_printf(a, "%s/curve.svg", folder), svg, strlen(svg));
}
