/* curve.c: the learning curve. Data units become pixels through two kinds of axis: linear ones with
 * round ticks (1, 2 or 5 times a power of ten), and a logarithmic one for losses that fall by more
 * than a factor of a hundred. A long run is thinned to the picture's resolution: the raw line goes
 * through the least and the largest value of each pixel column, so no spike is lost, and the smooth
 * one is a centred average, which does not lag as a running one would. */
#include "train/curve.h"
#include "base/file.h"
#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 860, HEIGHT = 460, LEFT = 64, TOP = 114, BOTTOM = 56 };

typedef struct axis {
    double lo, hi;     /* data; for a logarithmic axis their logarithms to base 10 */
    double step;       /* between ticks */
    double from, to;   /* pixels of lo and hi */
    bool log, percent; /* how values are placed, how ticks are written */
} axis;

typedef struct picture {
    ll_buf svg;
    const ll_curve *curve;
    axis x, loss, accuracy;
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

static double place(const axis *a, double v)
{
    if (a->log) v = log10(v > 0 ? v : 1e-300);
    return a->from + (v - a->lo) / (a->hi - a->lo) * (a->to - a->from);
}

/* ---- ranges ---- */

static void widen(const ll_points *p, bool of_x, double *lo, double *hi)
{
    for (int i = 0; i < p->n; i++) {
        if (!usable(p, i)) continue;
        double v = of_x ? p->x[i] : p->y[i];
        if (v < *lo) *lo = v;
        if (v > *hi) *hi = v;
    }
}

/* The least of 1, 2, 5 times a power of ten that is not less than v. */
static double round_step(double v)
{
    double power = pow(10, floor(log10(v)));
    double lead = v / power;
    return power * (lead <= 1.0001 ? 1 : lead <= 2.0001 ? 2 : lead <= 5.0001 ? 5 : 10);
}

/* Moves both ends out to ticks. */
static void round_ends(axis *a, double lo, double hi)
{
    if (!(hi - lo > 1e-9 * fabs(hi))) {
        double room = fabs(lo) > 0 ? fabs(lo) * 0.1 : 1;
        lo -= room;
        hi += room;
    }
    a->step = a->log ? ceil((hi - lo) / 8) : round_step((hi - lo) / 7);
    if (a->log && a->step < 1) a->step = 1;
    a->lo = floor(lo / a->step + 1e-9) * a->step;
    a->hi = ceil(hi / a->step - 1e-9) * a->step;
    if (a->hi <= a->lo) a->hi = a->lo + a->step;
}

static void set_x(picture *p)
{
    const ll_curve *c = p->curve;
    double lo = INFINITY, hi = -INFINITY;
    widen(&c->train_loss, true, &lo, &hi);
    widen(&c->val_loss, true, &lo, &hi);
    widen(&c->val_accuracy, true, &lo, &hi);
    if (!(lo <= hi)) lo = 0, hi = 1;
    if (lo > 0 && lo < 0.2 * hi) lo = 0; /* a run starts at step 1: the axis at 0 */
    if (!(hi > lo)) hi = lo + 1;
    p->x = (axis){.lo = lo, .hi = hi, .from = LEFT, .to = p->right};
    p->x.step = fmax(1, round_step((hi - lo) / 8)); /* steps are whole */
}

/* Of the smooth line and of validation: one raw spike does not flatten the picture. */
static void set_loss(picture *p)
{
    double lo = INFINITY, hi = -INFINITY;
    widen(&p->smooth, false, &lo, &hi);
    widen(&p->curve->val_loss, false, &lo, &hi);
    if (!(lo <= hi)) lo = 0, hi = 1;
    p->loss = (axis){.from = HEIGHT - BOTTOM, .to = TOP};
    p->loss.log = lo > 0 && hi / lo > 100;
    if (p->loss.log)
        round_ends(&p->loss, log10(lo), log10(hi));
    else
        round_ends(&p->loss, lo > 0 && lo < 0.3 * hi ? 0 : lo, hi);
}

static void set_accuracy(picture *p)
{
    double lo = INFINITY, hi = -INFINITY;
    widen(&p->curve->val_accuracy, false, &lo, &hi);
    if (!(lo <= hi)) lo = 0, hi = 1;
    p->accuracy = (axis){.from = HEIGHT - BOTTOM, .to = TOP, .percent = true};
    round_ends(&p->accuracy, 100 * lo, 100 * hi);
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
    return (ll_points){x, y, n};
}

/* ---- drawing ---- */

static void put_xml(ll_buf *b, const char *text)
{
    for (int n; *text; text += n ? n : 1) {
        n = ll_utf8_at(text);
        if (*text == '&' || *text == '<')
            ll_buf_puts(b, *text == '&' ? "&amp;" : "&lt;");
        else if (n > 1 || *text >= ' ')
            ll_buf_add(b, text, (size_t)n);
    }
}

static void put_style(ll_buf *b)
{
    ll_buf_puts(
        b, "<style>\n"
           "text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;"
           "font-size:12px}\n"
           ".line{fill:none;stroke-linejoin:round;stroke-linecap:round}\n"
           ".title{font-size:18px;font-weight:600}\n"
           ".best{font-weight:600}\n"
           ".back{fill:#ffffff;stroke:#d1d9e0}.grid{stroke:#e6eaef}.base{stroke:#9aa4ae}\n"
           ".title{fill:#1f2328}.soft{fill:#59636e}\n"
           ".l1{stroke:#0969da}.f1{fill:#0969da}.l2{stroke:#bc4c00}.f2{fill:#bc4c00}\n"
           ".l3{stroke:#1a7f37}.f3{fill:#1a7f37}.dot{stroke:#ffffff}\n"
           "@media (prefers-color-scheme:dark){\n"
           ".back{fill:#0d1117;stroke:#30363d}.grid{stroke:#21262d}.base{stroke:#6e7681}\n"
           ".title{fill:#e6edf3}.soft{fill:#9198a1}\n"
           ".l1{stroke:#58a6ff}.f1{fill:#58a6ff}.l2{stroke:#f0883e}.f2{fill:#f0883e}\n"
           ".l3{stroke:#3fb950}.f3{fill:#3fb950}.dot{stroke:#0d1117}\n"
           "}\n</style>\n");
}

static void put_tick_text(ll_buf *b, const axis *a, double v)
{
    if (a->log)
        ll_buf_printf(b, "%g", pow(10, v));
    else if (a->percent)
        ll_buf_printf(b, "%g%%", v);
    else if (a->hi >= 1e6)
        ll_buf_printf(b, "%gM", v / 1e6);
    else if (a->hi >= 1e4)
        ll_buf_printf(b, v ? "%gk" : "%g", v / 1e3);
    else
        ll_buf_printf(b, "%g", v);
}

enum { TICKS_MAX = 20 }; /* many more than there are, unless a step is lost in rounding */

/* Values of ticks: multiples of the step, with a zero that is exactly zero. */
static double first_tick(const axis *a)
{
    return ceil(a->lo / a->step - 1e-9) * a->step;
}

static double tick_at(const axis *a, int i)
{
    double v = round(first_tick(a) / a->step + i) * a->step;
    return fabs(v) < 1e-9 * a->step ? 0 : v;
}

static double pixel(const axis *a, double tick)
{
    return a->from + (tick - a->lo) / (a->hi - a->lo) * (a->to - a->from);
}

static void draw_axes(picture *p)
{
    ll_buf *b = &p->svg;
    double v;
    for (int i = 0; i < TICKS_MAX && (v = tick_at(&p->loss, i)) <= p->loss.hi + 1e-9 * p->loss.step;
         i++) {
        double y = pixel(&p->loss, v);
        ll_buf_printf(b, "<path class=\"grid\" d=\"M%d %.1fH%d\"/>", LEFT, y, p->right);
        ll_buf_printf(b, "<text class=\"soft\" text-anchor=\"end\" x=\"%d\" y=\"%.1f\">", LEFT - 10,
                      y + 4);
        put_tick_text(b, &p->loss, v);
        ll_buf_puts(b, "</text>\n");
    }
    for (int i = 0; i < TICKS_MAX && (v = tick_at(&p->x, i)) <= p->x.hi + 1e-9 * p->x.step; i++) {
        double x = pixel(&p->x, v);
        ll_buf_printf(b, "<path class=\"base\" d=\"M%.1f %dv5\"/>", x, HEIGHT - BOTTOM);
        ll_buf_printf(b, "<text class=\"soft\" text-anchor=\"middle\" x=\"%.1f\" y=\"%d\">", x,
                      HEIGHT - BOTTOM + 20);
        put_tick_text(b, &p->x, v);
        ll_buf_puts(b, "</text>\n");
    }
    ll_buf_printf(b, "<path class=\"base\" d=\"M%d %dH%d\"/>\n", LEFT, HEIGHT - BOTTOM, p->right);
    ll_buf_printf(b, "<text class=\"soft\" text-anchor=\"middle\" x=\"%d\" y=\"%d\">step</text>\n",
                  (LEFT + p->right) / 2, HEIGHT - BOTTOM + 42);
    ll_buf_printf(b, "<text class=\"soft\" text-anchor=\"end\" x=\"%d\" y=\"%d\">loss</text>\n",
                  LEFT - 10, TOP - 14);
    if (!has_points(&p->curve->val_accuracy)) return;
    for (int i = 0; i < TICKS_MAX && (v = tick_at(&p->accuracy, i)) <= p->accuracy.hi + 1e-9; i++) {
        ll_buf_printf(b, "<text class=\"f3\" x=\"%d\" y=\"%.1f\">", p->right + 10,
                      pixel(&p->accuracy, v) + 4);
        put_tick_text(b, &p->accuracy, v);
        ll_buf_puts(b, "</text>\n");
    }
    ll_buf_printf(b, "<text class=\"f3\" x=\"%d\" y=\"%d\">accuracy</text>\n", p->right - 6,
                  TOP - 14);
}

/* Begins or goes on with a path; after a gap, begins again. */
static void put_point(ll_buf *b, bool *open, double x, double y)
{
    ll_buf_printf(b, "%s%.1f %.1f", *open ? "L" : "M", x, y);
    *open = true;
}

static void begin_path(ll_buf *b, int color, double width, const char *more)
{
    ll_buf_printf(b, "<path class=\"line l%d\" stroke-width=\"%g\"%s d=\"", color, width, more);
}

/* Every point where they are few, else the least and the largest of each pixel column. */
static void draw_raw(picture *p)
{
    const ll_points *t = &p->curve->train_loss;
    bool thin = t->n > 2 * (p->right - LEFT), open = false;
    begin_path(&p->svg, 1, 1, " stroke-opacity=\"0.3\" clip-path=\"url(#plot)\"");
    for (int i = 0; i < t->n;) {
        if (!usable(t, i)) {
            open = false;
            i++;
            continue;
        }
        double x = place(&p->x, t->x[i]), lo = t->y[i], hi = lo;
        int end = i + 1;
        while (thin && end < t->n && usable(t, end) && place(&p->x, t->x[end]) < floor(x) + 1) {
            lo = fmin(lo, t->y[end]);
            hi = fmax(hi, t->y[end]);
            end++;
        }
        put_point(&p->svg, &open, x, place(&p->loss, hi));
        if (lo < hi) put_point(&p->svg, &open, x, place(&p->loss, lo));
        i = end;
    }
    ll_buf_puts(&p->svg, "\"/>\n");
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
    begin_path(&p->svg, 1, 2.2, "");
    for (int i = 0; i < s->n; i++) {
        double x = place(&p->x, s->x[i]);
        if (i && i < s->n - 1 && x - drawn_at < 1) continue;
        put_point(&p->svg, &open, x, place(&p->loss, s->y[i]));
        drawn_at = x;
    }
    ll_buf_puts(&p->svg, "\"/>\n");
    if (s->n == 1) put_marker(&p->svg, 1, place(&p->x, s->x[0]), place(&p->loss, s->y[0]));
}

/* Validation: a line, and marks where they do not touch. scale: from data to the axis. */
static void draw_validation(picture *p, const ll_points *v, const axis *y, double scale, int color)
{
    if (!has_points(v)) return;
    bool open = false;
    begin_path(&p->svg, color, 1.8, color == 3 ? " stroke-dasharray=\"6 4\"" : "");
    for (int i = 0; i < v->n; i++) {
        if (usable(v, i))
            put_point(&p->svg, &open, place(&p->x, v->x[i]), place(y, scale * v->y[i]));
        else
            open = false;
    }
    ll_buf_puts(&p->svg, "\"/>\n");
    for (int i = 0; i < v->n && v->n <= (p->right - LEFT) / 14; i++)
        if (usable(v, i))
            put_marker(&p->svg, color, place(&p->x, v->x[i]), place(y, scale * v->y[i]));
    ll_buf_puts(&p->svg, "\n");
}

/* The index of the last usable point, or of the best one; -1: none. */
static int last_of(const ll_points *v)
{
    int i = v->n - 1;
    while (i >= 0 && !usable(v, i)) i--;
    return i;
}

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
    int last = last_of(v);
    if (last < 0) return x;
    ll_buf *b = &p->svg;
    double y = p->curve->caption ? 72 : 58;
    begin_path(b, color, color == 1 ? 2.2 : 1.8, color == 3 ? " stroke-dasharray=\"6 4\"" : "");
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
    ll_buf_puts(b, "<text class=\"title\" x=\"20\" y=\"32\">");
    put_xml(b, c->title ? c->title : "");
    ll_buf_puts(b, "</text>\n");
    if (c->caption) {
        ll_buf_puts(b, "<text class=\"soft\" x=\"20\" y=\"50\">");
        put_xml(b, c->caption);
        ll_buf_puts(b, "</text>\n");
    }
    double x = legend_item(p, 20, 1, "training loss", &p->smooth);
    x = legend_item(p, x, 2, "validation loss", &c->val_loss);
    x = legend_item(p, x, 3, "validation accuracy", &c->val_accuracy);
    if (x == 20)
        ll_buf_printf(b,
                      "<text class=\"soft\" text-anchor=\"middle\" x=\"%d\" y=\"%d\">no points "
                      "yet</text>\n",
                      WIDTH / 2, HEIGHT / 2);
}

const char *ll_curve_svg(ll_arena *a, const ll_curve *c)
{
    picture p = {.svg = {.arena = a}, .curve = c, .smooth = smoothed(a, &c->train_loss)};
    p.right = has_points(&c->val_accuracy) ? WIDTH - 64 : WIDTH - 28;
    set_x(&p);
    set_loss(&p);
    set_accuracy(&p);
    ll_buf_printf(&p.svg,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
                  "height=\"%d\" role=\"img\">\n<title>",
                  WIDTH, HEIGHT, WIDTH, HEIGHT);
    put_xml(&p.svg, c->title ? c->title : "learning curve");
    ll_buf_puts(&p.svg, "</title>\n");
    put_style(&p.svg);
    ll_buf_printf(&p.svg,
                  "<clipPath id=\"plot\"><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>"
                  "</clipPath>\n",
                  LEFT, TOP, p.right - LEFT, HEIGHT - TOP - BOTTOM);
    ll_buf_printf(
        &p.svg, "<rect class=\"back\" x=\"0.5\" y=\"0.5\" width=\"%d\" height=\"%d\" rx=\"8\"/>\n",
        WIDTH - 1, HEIGHT - 1);
    draw_axes(&p);
    draw_raw(&p);
    draw_smooth(&p);
    draw_validation(&p, &c->val_loss, &p.loss, 1, 2);
    draw_validation(&p, &c->val_accuracy, &p.accuracy, 100, 3);
    draw_words(&p);
    ll_buf_puts(&p.svg, "</svg>\n");
    return p.svg.text;
}

ll_err ll_curve_write(const char *path, const ll_curve *c)
{
    ll_arena *a = ll_arena_new();
    const char *svg = ll_curve_svg(a, c);
    ll_err rc = ll_file_write(path, svg, strlen(svg));
    ll_arena_free(a);
    return rc;
}
