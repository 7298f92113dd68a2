/* progress.c: step lines, plain or redrawn in place at most ten times a second. */
#include "train/progress.h"
#include "base/now.h"
#include "base/text.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define REDRAW_S 0.1
enum { BAR_MAX = 24, BAR_MIN = 8 };

struct ll_progress {
    ll_arena *arena;
    ll_progress_opts opts;
    bool live;
    double started_at, shown_at;
    ll_step_stats last;
    int64_t shown; /* step of the line shown last; 0: none */
    bool on_line;  /* a live line is on the screen, its end not yet written */
};

/* Four significant digits, so that a column of them is easy to compare. */
static void print_norm(double v, char out[LL_NUMBER_TEXT])
{
    double size = fabs(v);
    if (!isfinite(v) || size >= 1e4 || (size < 1e-3 && size > 0))
        snprintf(out, LL_NUMBER_TEXT, "%.3e", v);
    else
        snprintf(out, LL_NUMBER_TEXT, "%.*f",
                 size < 10     ? 3
                 : size < 100  ? 2
                 : size < 1000 ? 1
                               : 0,
                 v);
}

/* Adds " | field" unless that passes columns; once one did not fit, none follows. */
typedef struct fields {
    char *line;
    int len, columns;
    bool full;
} fields;

static void add_field(fields *f, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add_field(fields *f, const char *format, ...)
{
    char text[96];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    const char *between = f->len ? " | " : "";
    int need = (int)(strlen(between) + strlen(text));
    f->full = f->full || f->len + need > f->columns;
    if (f->full) return;
    f->len += snprintf(f->line + f->len, (size_t)(LL_STEP_LINE - f->len), "%s%s", between, text);
}

int ll_step_line(const ll_step_stats *s, int64_t total, const char *unit, int columns,
                 char line[LL_STEP_LINE])
{
    char t[LL_NUMBER_TEXT];
    fields f = {.line = line, .columns = columns < LL_STEP_LINE - 1 ? columns : LL_STEP_LINE - 1};
    line[0] = '\0';
    add_field(&f, "%s %ld/%ld", s->word ? s->word : "step", s->step, total);
    const char *whose = s->apart ? " (of a replica)" : "";
    if ((!s->apart && !s->word) || !isnan(s->loss))
        add_field(&f, "loss %s%s", LL_LOSS(s->loss), whose);
    print_norm(s->norm, t);
    if (!isnan(s->norm) && !s->apart) add_field(&f, "norm %s", t);
    if (!isnan(s->lr)) add_field(&f, "lr %.1e", s->lr);
    add_field(&f, "%s", LL_TIME(s->step_s));
    if (s->rate > 0) add_field(&f, "%s %s/s", LL_AMOUNT(s->rate), unit);
    if (s->peak > 0) add_field(&f, "%.0f%% peak", 100 * s->peak);
    if (s->bytes) add_field(&f, "%s", LL_BYTES(s->bytes));
    return f.len;
}

static int columns_of(const ll_progress *p)
{
    if (p->opts.columns > 0) return p->opts.columns;
    struct winsize w;
    if (ioctl(fileno(p->opts.out), TIOCGWINSZ, &w) == 0 && w.ws_col > 0) return w.ws_col;
    const char *given = getenv("COLUMNS");
    int n = given ? atoi(given) : 0;
    return n > 0 ? n : 80;
}

/* "[####    ] 12% | 2m 13s left | ": empty where the terminal is narrow. */
static int print_bar(const ll_progress *p, double now, int columns, char bar[LL_STEP_LINE])
{
    const ll_step_stats *s = &p->last;
    int width = columns / 6 < BAR_MAX ? columns / 6 : BAR_MAX, at = 0;
    bar[0] = '\0';
    if (width < BAR_MIN) return 0;
    bool over = s->step >= p->opts.total;
    double part = over ? 1 : (double)s->step / (double)p->opts.total;
    double each = (now - p->started_at) / fmax(1, (double)(s->step - p->opts.first + 1));
    double time = over ? now - p->started_at : each * (double)(p->opts.total - s->step);
    bar[at++] = '[';
    for (int i = 0; i < width; i++) bar[at++] = i < (int)(part * width) ? '#' : ' ';
    at += snprintf(bar + at, (size_t)(LL_STEP_LINE - at), "] %.0f%% | %s%s | ", floor(100 * part),
                   LL_DURATION(time), over ? "" : " left");
    return at;
}

static void draw_live(ll_progress *p, double now)
{
    char bar[LL_STEP_LINE], line[LL_STEP_LINE];
    int columns = columns_of(p) - 1; /* a full line would wrap on some terminals */
    int used = print_bar(p, now, columns, bar);
    ll_step_line(&p->last, p->opts.total, p->opts.unit, columns - used, line);
    fprintf(p->opts.out, "\r%s%s\033[K", bar, line);
    fflush(p->opts.out);
    p->on_line = true;
}

static void show(ll_progress *p, double now)
{
    char line[LL_STEP_LINE];
    if (p->live) {
        draw_live(p, now);
    } else {
        ll_step_line(&p->last, p->opts.total, p->opts.unit, LL_STEP_LINE, line);
        fprintf(p->opts.out, "%s\n", line);
        fflush(p->opts.out);
    }
    p->shown = p->last.step;
    p->shown_at = now;
}

ll_progress *ll_progress_new(const ll_progress_opts *opts)
{
    ll_arena *a = ll_arena_new();
    ll_progress *p = LL_NEW(a, ll_progress);
    p->arena = a;
    p->opts = *opts;
    if (!p->opts.out) p->opts.out = stderr;
    if (!p->opts.clock) p->opts.clock = ll_now;
    if (!p->opts.unit) p->opts.unit = "samples";
    if (p->opts.every_s <= 0) p->opts.every_s = 2;
    if (p->opts.first < 1) p->opts.first = 1;
    const char *term = getenv("TERM");
    bool terminal = isatty(fileno(p->opts.out)) && term && strcmp(term, "dumb");
    p->live = !opts->plain && (opts->live || terminal);
    p->started_at = p->opts.clock();
    return p;
}

void ll_progress_step(ll_progress *p, const ll_step_stats *s)
{
    double now = p->opts.clock();
    p->last = *s;
    double wait = p->live ? REDRAW_S : p->opts.every_s;
    if (!p->shown || s->step == p->opts.total || now - p->shown_at >= wait) show(p, now);
}

void ll_progress_note(ll_progress *p, const char *format, ...)
{
    if (p->on_line) fputs("\r\033[K", p->opts.out);
    va_list args;
    va_start(args, format);
    vfprintf(p->opts.out, format, args);
    va_end(args);
    fputs("\n", p->opts.out);
    if (p->on_line) draw_live(p, p->opts.clock());
    fflush(p->opts.out);
}

void ll_progress_free(ll_progress *p)
{
    if (!p) return;
    if (p->last.step != p->shown) show(p, p->opts.clock());
    if (p->on_line) fputs("\n", p->opts.out);
    fflush(p->opts.out);
    ll_arena_free(p->arena);
}
