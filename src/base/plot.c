/* plot.c: axes, frame and colours of SVG pictures. */
#include "base/plot.h"

#include <math.h>

static bool is_log10(const ll_plot_axis *a)
{
    return a->ticks == LL_TICKS_POWER || a->ticks == LL_TICKS_TIME;
}

double ll_plot_pixel(const ll_plot_axis *a, double tick)
{
    return a->from + (tick - a->lo) / (a->hi - a->lo) * (a->to - a->from);
}

double ll_plot_place(const ll_plot_axis *a, double v)
{
    if (is_log10(a)) v = log10(v > 0 ? v : 1e-300);
    if (a->ticks == LL_TICKS_BYTES) v = log2(v > 0 ? v : 1e-300);
    return ll_plot_pixel(a, v);
}

double ll_plot_step(double v)
{
    double power = pow(10, floor(log10(v)));
    double lead = v / power;
    return power * (lead <= 1.0001 ? 1 : lead <= 2.0001 ? 2 : lead <= 5.0001 ? 5 : 10);
}

void ll_plot_round(ll_plot_axis *a, double lo, double hi)
{
    if (!(hi - lo > 1e-9 * fabs(hi))) {
        double room = fabs(lo) > 0 ? fabs(lo) * 0.1 : 1;
        lo -= room;
        hi += room;
    }
    bool whole = is_log10(a) || a->ticks == LL_TICKS_BYTES;
    a->step = whole ? ceil((hi - lo) / 8) : ll_plot_step((hi - lo) / 7);
    if (whole && a->step < 1) a->step = 1;
    a->lo = floor(lo / a->step + 1e-9) * a->step;
    a->hi = ceil(hi / a->step - 1e-9) * a->step;
    if (a->hi <= a->lo) a->hi = a->lo + a->step;
}

bool ll_plot_tick(const ll_plot_axis *a, int i, double *out)
{
    enum { TICKS_MAX = 20 }; /* many more than there are, unless a step is lost in rounding */
    double first = ceil(a->lo / a->step - 1e-9) * a->step;
    double v = round(first / a->step + i) * a->step;
    *out = fabs(v) < 1e-9 * a->step ? 0 : v;
    return i < TICKS_MAX && *out <= a->hi + 1e-9 * a->step;
}

static void put_power_of_two(ll_buf *b, double v)
{
    static const char *const units[] = {"", "K", "M", "G", "T"};
    int unit = v < 10 ? 0 : v >= 50 ? 4 : (int)v / 10;
    ll_buf_printf(b, "%g%s", exp2(v - 10 * unit), units[unit]);
}

static void put_time(ll_buf *b, double v)
{
    static const char *const units[] = {"s", "ms", "us", "ns"};
    int unit = v < -6 ? 3 : v < -3 ? 2 : v < 0;
    ll_buf_printf(b, "%g %s", pow(10, v + 3 * unit), units[unit]);
}

void ll_plot_text(ll_buf *b, const ll_plot_axis *a, double v)
{
    if (a->ticks == LL_TICKS_POWER)
        ll_buf_printf(b, "%g", pow(10, v));
    else if (a->ticks == LL_TICKS_TIME)
        put_time(b, v);
    else if (a->ticks == LL_TICKS_BYTES)
        put_power_of_two(b, v);
    else if (a->ticks == LL_TICKS_PERCENT)
        ll_buf_printf(b, "%g%%", v);
    else if (a->hi >= 1e6)
        ll_buf_printf(b, "%gM", v / 1e6);
    else if (a->hi >= 1e4)
        ll_buf_printf(b, v ? "%gk" : "%g", v / 1e3);
    else
        ll_buf_printf(b, "%g", v);
}

void ll_plot_left(ll_buf *b, const ll_plot_axis *y, double left, double right, const char *name)
{
    double v;
    for (int i = 0; ll_plot_tick(y, i, &v); i++) {
        double at = ll_plot_pixel(y, v);
        ll_buf_printf(b, "<path class=\"grid\" d=\"M%g %.1fH%g\"/>", left, at, right);
        ll_buf_printf(b, "<text class=\"soft\" text-anchor=\"end\" x=\"%g\" y=\"%.1f\">", left - 10,
                      at + 4);
        ll_plot_text(b, y, v);
        ll_buf_puts(b, "</text>\n");
    }
    ll_buf_printf(b, "<text class=\"soft\" text-anchor=\"end\" x=\"%g\" y=\"%g\">%s</text>\n",
                  left - 10, y->to - 14, name);
}

void ll_plot_bottom(ll_buf *b, const ll_plot_axis *x, double y, const char *name)
{
    double v;
    for (int i = 0; ll_plot_tick(x, i, &v); i++) {
        double at = ll_plot_pixel(x, v);
        ll_buf_printf(b, "<path class=\"base\" d=\"M%.1f %gv5\"/>", at, y);
        ll_buf_printf(b, "<text class=\"soft\" text-anchor=\"middle\" x=\"%.1f\" y=\"%g\">", at,
                      y + 20);
        ll_plot_text(b, x, v);
        ll_buf_puts(b, "</text>\n");
    }
    ll_buf_printf(b, "<path class=\"base\" d=\"M%g %gH%g\"/>\n", x->from, y, x->to);
    ll_buf_printf(b, "<text class=\"soft\" text-anchor=\"middle\" x=\"%d\" y=\"%g\">%s</text>\n",
                  (int)(x->from + x->to) / 2, y + 42, name);
}

char *ll_plot_xml(ll_arena *a, const char *text)
{
    ll_buf b = {.arena = a};
    ll_buf_puts(&b, "");
    for (int n; *text; text += n ? n : 1) {
        n = ll_utf8_at(text);
        if (*text == '&' || *text == '<')
            ll_buf_puts(&b, *text == '&' ? "&amp;" : "&lt;");
        else if (n > 1 || *text >= ' ')
            ll_buf_add(&b, text, (size_t)n);
    }
    return b.text;
}

/* Colours for lines, on light and on dark ground. */
static const char *const colors[][2] = {
    {"#0969da", "#58a6ff"}, {"#bc4c00", "#f0883e"}, {"#1a7f37", "#3fb950"}, {"#8250df", "#bc8cff"},
    {"#cf222e", "#ff7b72"}, {"#1b7c83", "#39c5cf"}, {"#bf3989", "#f778ba"}, {"#7d4e00", "#d29922"}};

static void put_colors(ll_buf *b, int dark)
{
    for (int i = 0; i < (int)(sizeof colors / sizeof *colors); i++)
        ll_buf_printf(b, ".l%d{stroke:%s}.f%d{fill:%s}%s", i + 1, colors[i][dark], i + 1,
                      colors[i][dark], i % 2 ? "\n" : "");
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
           ".title{fill:#1f2328}.soft{fill:#59636e}.dot{stroke:#ffffff}\n");
    put_colors(b, 0);
    ll_buf_puts(b, "@media (prefers-color-scheme:dark){\n"
                   ".back{fill:#0d1117;stroke:#30363d}.grid{stroke:#21262d}.base{stroke:#6e7681}\n"
                   ".title{fill:#e6edf3}.soft{fill:#9198a1}.dot{stroke:#0d1117}\n");
    put_colors(b, 1);
    ll_buf_puts(b, "}\n</style>\n");
}

void ll_plot_begin(ll_buf *b, int width, int height, const char *title)
{
    ll_buf_printf(b,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
                  "height=\"%d\" role=\"img\">\n<title>%s</title>\n",
                  width, height, width, height, ll_plot_xml(b->arena, title));
    put_style(b);
    ll_buf_printf(
        b, "<rect class=\"back\" x=\"0.5\" y=\"0.5\" width=\"%d\" height=\"%d\" rx=\"8\"/>\n",
        width - 1, height - 1);
}

void ll_plot_words(ll_buf *b, const char *title, const char *caption)
{
    ll_buf_printf(b, "<text class=\"title\" x=\"20\" y=\"32\">%s</text>\n",
                  ll_plot_xml(b->arena, title));
    if (caption)
        ll_buf_printf(b, "<text class=\"soft\" x=\"20\" y=\"50\">%s</text>\n",
                      ll_plot_xml(b->arena, caption));
}

void ll_plot_end(ll_buf *b)
{
    ll_buf_puts(b, "</svg>\n");
}

void ll_plot_path(ll_buf *b, int color, double width, const char *more)
{
    ll_buf_printf(b, "<path class=\"line l%d\" stroke-width=\"%g\"%s d=\"", color, width, more);
}

void ll_plot_point(ll_buf *b, bool *open, double x, double y)
{
    ll_buf_printf(b, "%s%.1f %.1f", *open ? "L" : "M", x, y);
    *open = true;
}

void ll_plot_path_end(ll_buf *b)
{
    ll_buf_puts(b, "\"/>\n");
}
