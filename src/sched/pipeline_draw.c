/* pipeline_draw.c: when ranks do what, as text and as SVG. 3 ranks, 4 micro-batches, as text:
 *
 *     1f1b  0  012....a=3b=.c=.d=      zb-h1  0  012..aA3bBcCdD
 *           1  .01..a=2b=3c=.d=..             1  .01.a2bA3cBdCD
 *           2  ..0a=1b=2c=3d=....             2  ..0a1b2cA3dBCD
 *
 * Digits: forward, of micro-batch 0, 1, ...; a=: backward of 0; a: gradients of its inputs, A: of
 * its weights; dots: idle; u: update of weights. */
#include "base/plot.h"
#include "sched/pipeline.h"

#include <math.h>
#include <string.h>

static ll_interval span_of(const ll_pipeline *p, const ll_pipeline_times *t)
{
    ll_interval s = {INFINITY, -INFINITY};
    for (int r = 0; r < p->n_rank; r++) {
        for (int k = 0; k < p->n_action[r]; k++) {
            s.start = fmin(s.start, t->start[r][k]);
            s.end = fmax(s.end, t->end[r][k]);
        }
        if (t->update) s.end = fmax(s.end, t->update[r].end);
    }
    if (!(s.end > s.start)) s = (ll_interval){0, 1};
    return s;
}

static void put_caption(ll_buf *b, const ll_pipeline *p, const ll_pipeline_times *t)
{
    const char *text;
    double formula = ll_pipeline_formula(p->name, p->n_rank, p->n_stage, p->n_micro, &text);
    const char *length = t->in_flops ? LL_AMOUNT(t->makespan) : LL_TIME(t->makespan);
    ll_buf_printf(b, "%s, %s, %d micro-batch%s: %s%s, %.1f %% bubble",
                  LL_COUNTED(p->n_rank, "rank"), LL_COUNTED(p->n_stage, "stage"), p->n_micro,
                  p->n_micro == 1 ? "" : "es", length, t->in_flops ? " FLOPs and bytes long" : "",
                  100 * t->bubble);
    if (t->period > 0 && !p->overlaps)
        ll_buf_puts(b, "; ranks go on to the next step when they are done");
    else if (text)
        ll_buf_printf(b, "; of equal stages %s = %.1f %%", text, 100 * formula);
}

/* What stands for column i of an action. */
static char letter(ll_action a, int i)
{
    switch (a.kind) {
    case LL_ACT_F: return (char)('0' + a.micro % 10);
    case LL_ACT_I: return (char)('a' + a.micro % 26);
    case LL_ACT_W: return (char)('A' + a.micro % 26);
    case LL_ACT_B: break;
    }
    return i ? '=' : (char)('a' + a.micro % 26);
}

/* Columns so wide that the shortest action has one, if that is not too many. */
static int columns(const ll_pipeline *p, const ll_pipeline_times *t, ll_interval s, int most)
{
    enum { COLUMNS = 240 };
    double least = INFINITY;
    for (int r = 0; r < p->n_rank; r++)
        for (int k = 0; k < p->n_action[r]; k++) {
            double d = t->end[r][k] - t->start[r][k];
            if (d > 0) least = fmin(least, d);
        }
    return (int)fmin(most > 0 ? most : COLUMNS, round((s.end - s.start) / least));
}

static int column(double when, int width, ll_interval s)
{
    return (int)round((when - s.start) / (s.end - s.start) * width);
}

static void put_update(char *row, int width, ll_interval u, ll_interval s)
{
    for (int i = column(u.start, width, s); i < column(u.end, width, s); i++) row[i % width] = 'u';
}

void ll_pipeline_draw_text(ll_buf *b, const ll_pipeline *p, const ll_pipeline_times *t, int width)
{
    ll_interval s = span_of(p, t);
    if (t->period > 0) s.end = s.start + t->period;
    width = columns(p, t, s, width);
    char *row = ll_arena_alloc(b->arena, (size_t)width + 1);
    for (int r = 0; r < p->n_rank; r++) {
        memset(row, '.', (size_t)width);
        for (int k = 0; k < p->n_action[r]; k++) {
            int from = column(t->start[r][k], width, s), to = column(t->end[r][k], width, s);
            for (int i = from; i < to; i++) /* what is beyond, the step before had here */
                if (i < width || t->period > 0) row[i % width] = letter(p->actions[r][k], i - from);
        }
        if (t->update) put_update(row, width, t->update[r], s);
        ll_buf_printf(b, "%4d  %s\n", r, row);
    }
    ll_buf_printf(b, "%s, ", t->title ? t->title : p->name);
    put_caption(b, p, t);
    ll_buf_puts(b, "\n");
}

enum { LEFT = 60, RIGHT = 980, TOP = 92, ROW = 26, BAR = 22, UPDATE = 5, IDLE = 8 };

static const struct {
    const char *name;
    int color; /* of ll_plot_begin's */
} legend[] = {{"forward", 1},         {"backward", 4},    {"input gradient", 2},
              {"weight gradient", 3}, {"update", UPDATE}, {"idle", IDLE}};

static void put_bar(ll_buf *b, int color, double opacity, double x, double y, double width)
{
    ll_buf_printf(b,
                  "<rect class=\"f%d\" fill-opacity=\"%.2f\" x=\"%.1f\" y=\"%.1f\" "
                  "width=\"%.1f\" height=\"%d\">",
                  color, opacity, x, y, fmax(width, 0.1), BAR);
}

static void put_action(ll_buf *b, const ll_pipeline *p, ll_action a, double x, double y,
                       double width)
{
    double opacity = fmax(0.4, 1 - 0.25 * (a.stage / p->n_rank)); /* later stages are paler */
    put_bar(b, legend[a.kind].color, opacity, x, y, fmax(width - 0.6, 0));
    ll_buf_printf(b, "<title>%s</title></rect>", LL_ACTION(a));
    if (width >= 9 * (a.micro > 99 ? 3 : a.micro > 9 ? 2 : 1))
        ll_buf_printf(b, "<text class=\"in\" x=\"%.1f\" y=\"%.1f\">%d</text>", x + width / 2,
                      y + 15, a.micro);
    ll_buf_puts(b, "\n");
}

static void put_rank(ll_buf *b, const ll_pipeline *p, const ll_pipeline_times *t, int r,
                     const ll_plot_axis *x, double unit)
{
    ll_interval s = span_of(p, t);
    double y = TOP + ROW * r;
    ll_buf_printf(b, "<text class=\"soft\" text-anchor=\"end\" x=\"%d\" y=\"%g\">%d</text>",
                  LEFT - 10, y + 15, r);
    put_bar(b, IDLE, 0.15, LEFT, y, ll_plot_pixel(x, (s.end - s.start) * unit) - LEFT);
    ll_buf_puts(b, "</rect>\n");
    for (int k = 0; k < p->n_action[r]; k++) {
        double left = ll_plot_pixel(x, (t->start[r][k] - s.start) * unit);
        double right = ll_plot_pixel(x, (t->end[r][k] - s.start) * unit);
        put_action(b, p, p->actions[r][k], left, y, right - left);
    }
    if (!t->update) return;
    double left = ll_plot_pixel(x, (t->update[r].start - s.start) * unit);
    put_bar(b, UPDATE, 1, left, y, ll_plot_pixel(x, (t->update[r].end - s.start) * unit) - left);
    ll_buf_puts(b, "<title>update</title></rect>\n");
}

/* Of what there is. */
static void put_legend(ll_buf *b, const ll_pipeline *p, const ll_pipeline_times *t)
{
    bool used[] = {false, false, false, false, t->update, true};
    for (int r = 0; r < p->n_rank; r++)
        for (int k = 0; k < p->n_action[r]; k++) used[p->actions[r][k].kind] = true;
    double x = LEFT;
    for (size_t i = 0; i < sizeof legend / sizeof *legend; i++) {
        if (!used[i]) continue;
        ll_buf_printf(b,
                      "<rect class=\"f%d\" fill-opacity=\"%g\" x=\"%g\" y=\"66\" width=\"12\" "
                      "height=\"12\"/><text class=\"soft\" x=\"%g\" y=\"76\">%s</text>\n",
                      legend[i].color, legend[i].color == IDLE ? 0.15 : 1, x, x + 18,
                      legend[i].name);
        x += 40 + 7 * (double)strlen(legend[i].name);
    }
}

void ll_pipeline_draw_svg(ll_buf *b, const ll_pipeline *p, const ll_pipeline_times *t)
{
    ll_buf title = {.arena = b->arena}, caption = {.arena = b->arena};
    ll_buf_printf(&title, "Pipeline schedule %s", t->title ? t->title : p->name);
    put_caption(&caption, p, t);
    ll_interval s = span_of(p, t);
    double all = s.end - s.start, unit = 1e-6;
    if (!t->in_flops) unit = all < 1e-3 ? 1e6 : all < 1 ? 1e3 : 1;
    ll_plot_axis x = {.from = LEFT, .to = RIGHT};
    ll_plot_round(&x, 0, all * unit);
    int bottom = TOP + ROW * p->n_rank + 4;
    ll_plot_begin(b, RIGHT + 30, bottom + 60, title.text);
    ll_buf_puts(b, "<style>.in{fill:#fff;font-size:10px;text-anchor:middle}\n"
                   "@media (prefers-color-scheme:dark){.in{fill:#0d1117}}</style>\n");
    ll_plot_words(b, title.text, caption.text);
    put_legend(b, p, t);
    for (int r = 0; r < p->n_rank; r++) put_rank(b, p, t, r, &x, unit);
    ll_plot_bottom(b, &x, bottom,
                   t->in_flops   ? "millions of FLOPs, and of bytes as what takes as long"
                   : unit == 1   ? "seconds"
                   : unit == 1e3 ? "milliseconds"
                                 : "microseconds");
    ll_plot_end(b);
}
