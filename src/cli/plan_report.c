/* plan_report.c: pictures of the best plan: one HTML file that needs nothing else. */
#include "base/file.h"
#include "base/plot.h"
#include "cli/plan.h"

#include <math.h>

enum { WIDTH = 760, HEIGHT = 410, LEFT = 70, RIGHT = 740, TOP = 90, BOTTOM = 360 };

typedef struct point {
    double x, y;
    const char *name; /* NULL: part of a line */
    int color;
} point;

/* A line for each colour, dots with names where they have any. */
static void plot(ll_buf *b, const char *title, const char *caption, const char *xs, const char *ys,
                 const point *p, int n, bool logs)
{
    ll_plot_axis x = {.from = LEFT, .to = RIGHT, .ticks = logs ? LL_TICKS_POWER : LL_TICKS_PLAIN};
    ll_plot_axis y = {.from = BOTTOM, .to = TOP, .ticks = x.ticks};
    double lo[2] = {INFINITY, INFINITY}, hi[2] = {-INFINITY, -INFINITY};
    for (int i = 0; i < n; i++) {
        double v[2] = {logs ? log10(p[i].x) : p[i].x, logs ? log10(p[i].y) : p[i].y};
        for (int k = 0; k < 2; k++) lo[k] = fmin(lo[k], v[k]), hi[k] = fmax(hi[k], v[k]);
    }
    for (int k = 0; k < 2; k++) {
        ll_plot_axis *a = k ? &y : &x;
        if (!logs) lo[k] = fmin(lo[k], 0);
        if (hi[k] - lo[k] < 1e-9) hi[k] = lo[k] + 1;
        a->step = logs ? 1 : ll_plot_step((hi[k] - lo[k]) / 6);
        ll_plot_round(a, lo[k], hi[k]);
    }
    ll_buf_printf(b, "<h2>%s</h2>\n", title);
    ll_plot_begin(b, WIDTH, HEIGHT, title);
    ll_plot_words(b, title, caption);
    ll_plot_left(b, &y, LEFT, RIGHT, ys);
    ll_plot_bottom(b, &x, BOTTOM, xs);
    for (int color = 1; color <= 8; color++) {
        bool open = false, any = false;
        for (int i = 0; i < n; i++) {
            if (p[i].color != color || p[i].name) continue;
            if (!any) ll_plot_path(b, color, 2, "");
            any = true;
            ll_plot_point(b, &open, ll_plot_place(&x, p[i].x), ll_plot_place(&y, p[i].y));
        }
        if (any) ll_plot_path_end(b);
    }
    for (int i = 0; i < n; i++)
        if (p[i].name) {
            double cx = ll_plot_place(&x, p[i].x), cy = ll_plot_place(&y, p[i].y);
            bool right = cx > 0.75 * RIGHT;
            double dy = i % 2 ? -6 - 13 * (i / 2 % 3) : 17 + 13 * (i / 2 % 3); /* not on others */
            ll_buf_printf(b,
                          "<circle class=\"f%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/><text "
                          "class=\"f%d\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n",
                          p[i].color, cx, cy, p[i].color, cx + (right ? -7 : 7), cy + dy,
                          right ? "end" : "start", ll_plot_xml(b->arena, p[i].name));
        }
    ll_plot_end(b);
}

/* Bytes that a pipeline's first and last ranks hold while a step goes on. */
static void draw_memory(ll_buf *b, const ll_candidate *c, ll_arena *a)
{
    const ll_pipeline *p = c->out.pipeline;
    int last = p->n_rank - 1, n = 0;
    point *v = LL_NEW_ARRAY(a, point, 2 * (p->n_action[0] + p->n_action[last]) + 4);
    const ll_lm_bytes *m = &c->out.bytes;
    const double gib = 1 << 30;
    double fixed = ll_lm_bytes_tensors(m) - m->activations, most = c->out.times.peak[0];
    for (int k = 0; k < 2; k++) {
        int r = k ? last : 0;
        double held = 0, unit = most > 0 ? m->activations / most : 0;
        for (int i = 0; i < p->n_action[r]; i++) {
            const ll_action *x = &p->actions[r][i];
            double each = c->out.times.peak[r] > 0 ? 1 : 0;
            double t = x->kind == LL_ACT_F ? c->out.times.start[r][i] : c->out.times.end[r][i];
            v[n++] = (point){t, (fixed + held * unit) / gib, NULL, k + 1};
            if (x->kind == LL_ACT_F) held += each * c->stage_bytes;
            if (x->kind == LL_ACT_B || x->kind == LL_ACT_W) held -= each * c->stage_bytes;
            v[n++] = (point){t, (fixed + held * unit) / gib, NULL, k + 1};
        }
    }
    plot(b, "Tensors in a step", "the first rank of the pipeline, and the last one", "s", "GiB", v,
         n, false);
}

/* Kernels of a layer under the chip's roofs. */
static void draw_roofline(ll_buf *b, const ll_search *s, const ll_candidate *c)
{
    const ll_chip *chip = &s->cluster->chip;
    const ll_lm *m = s->model;
    double t = c->how.micro_batch * m->seq / c->how.context, k = c->how.tensor, w = m->width;
    double peak = ll_chip_peak(chip, s->precision) / 1e12, band = chip->bandwidth / 1e3;
    const struct {
        const char *name;
        double m, n, k;
    } products[] = {{"queries, keys, values", t, 3 * w / k, w},
                    {"projection", t, w, w / k},
                    {"feed-forward 1", t, m->ffn / k, w},
                    {"feed-forward 2", t, w, m->ffn / k},
                    {"head", t, m->vocab / k, w}};
    point v[16];
    int n = 0;
    double from = 0.1, knee = peak / band, to = 10000;
    v[n++] = (point){from, from * band, NULL, 1};
    v[n++] = (point){knee, peak, NULL, 1};
    v[n++] = (point){to, peak, NULL, 1};
    for (int i = 0; i < 5; i++) {
        double flops = 2 * products[i].m * products[i].n * products[i].k;
        double bytes = 2 * (products[i].m * products[i].k + products[i].k * products[i].n +
                            products[i].m * products[i].n);
        double took =
            ll_cost_product(chip, s->precision, 1, products[i].m, products[i].n, products[i].k);
        v[n++] = (point){flops / bytes, flops / took / 1e12, products[i].name, 2 + i};
    }
    v[n++] = (point){0.5, 0.5 * band * chip->stream, "norms, residuals", 7};
    plot(b, "Roofline", "products of a layer on one chip", "FLOP a byte", "TFLOP/s", v, n, true);
}

typedef struct scale {
    double ranks, step_s, price, hours;
} scale;

/* The best plans of other numbers of ranks; weak: with as many samples a rank. */
static int scale_over(const ll_search *s, double tokens, bool weak, scale *out, int most)
{
    int n = 0;
    for (double f = 0.125; f <= 8 && n < most; f *= 2) {
        LL_OWN(ll_arena) a = ll_arena_new();
        ll_search other = *s;
        ll_found found;
        other.data = other.tensor = other.pipe = other.context = other.micro_batch = 0;
        other.ranks = s->ranks * f;
        if (weak) other.batch = s->batch * f;
        if (other.ranks < 1 || other.ranks != floor(other.ranks) ||
            other.batch != floor(other.batch) || ll_plan_search(&other, a, &found) != LL_OK ||
            !found.best[0].fits)
            continue;
        const ll_outcome *o = &found.best[0].out;
        ll_training t = ll_train_cost(s->cluster, other.ranks, o->step_s,
                                      tokens / (other.batch * s->model->seq), 12 * o->parameters);
        out[n++] = (scale){other.ranks, o->step_s, t.price, t.hours};
    }
    return n;
}

static void draw_scaling(ll_buf *b, const ll_search *s, double tokens)
{
    enum { MOST = 8 };
    scale at[MOST];
    point v[4 * MOST];
    char names[MOST][32];
    for (int weak = 0; weak < 2; weak++) {
        int n = scale_over(s, tokens, weak, at, MOST), k = 0;
        if (n < 2) continue;
        for (int i = 0; i < n; i++) {
            double batch = weak ? s->batch * at[i].ranks / s->ranks : s->batch;
            v[k++] = (point){at[i].ranks, batch * s->model->seq / at[i].step_s, NULL, 1};
        }
        for (int i = 0; i < n; i++)
            v[k++] = (point){at[i].ranks, v[0].y * at[i].ranks / at[0].ranks, NULL, 2};
        plot(b, weak ? "Weak scaling" : "Strong scaling",
             weak ? "samples a rank stay; the upper line is ideal"
                  : "the batch stays; the upper line is ideal",
             "chips", "tokens/s", v, k, true);
        if (weak || tokens <= 0) continue;
        k = 0;
        double most = 0;
        for (int i = 0; i < n; i++) most = fmax(most, at[i].price);
        double unit = most >= 1e6 ? 1e6 : 1;
        for (int i = 0; i < n; i++) {
            snprintf(names[i], sizeof names[i], "%g chips", at[i].ranks);
            v[k++] = (point){at[i].hours / 24, at[i].price / unit, NULL, 1};
            v[k++] = (point){at[i].hours / 24, at[i].price / unit, names[i], 3};
        }
        plot(b, "Time against cost", "the best plan of each number of chips", "days",
             unit > 1 ? "millions" : "money", v, k, true);
    }
}

static void table(ll_buf *b, const ll_plan_results *p)
{
    ll_buf_puts(b, "<table><tr><th>mesh<th>schedule<th>micro-batch of a rank<th>ZeRO<th>recompute"
                   "<th>step<th>80 %<th>tokens/s<th>tensors<th>bubble<th>exposed</tr>\n");
    LL_EACH (const ll_shown, s, p->v, p->n)
        ll_buf_printf(b,
                      "<tr><td>%s<td>%s<td>%ld x %ld<td>%d<td>%s<td>%s<td>%s to %s<td>%s<td>%s%s"
                      "<td>%.1f %%<td>%s</tr>\n",
                      s->mesh, *s->schedule ? s->schedule : "none", s->micro_batch, s->n_micro,
                      s->zero, s->recompute, LL_TIME(s->step_s), LL_TIME(s->step_s / s->spread),
                      LL_TIME(s->step_s * s->spread),
                      LL_AMOUNT((double)(p->run->train.batch * p->seq) / s->step_s),
                      LL_BYTES(ll_lm_bytes_tensors(&s->bytes)), ll_plan_notes(s, b->arena),
                      100 * s->bubble, LL_TIME(s->exposed_s));
    ll_buf_printf(b,
                  "</table>\n<p>%s</p>\n<p>To train the best: <code>loopline train %s "
                  "%s</code></p>\n",
                  ll_plot_xml(b->arena, ll_plan_about(p->cluster, b->arena)),
                  ll_plot_xml(b->arena, ll_plan_word(p->o->run, b->arena)),
                  ll_plot_xml(b->arena, ll_plan_words(p, p->v)));
}

/* The best plan with all that pictures need of its pipeline; fewer micro-batches where there are
 * many. */
static ll_err detail(const ll_search *s, const ll_candidate *best, ll_arena *a, ll_candidate *out)
{
    *out = *best;
    int most = 3 * (int)best->how.pipe;
    if (out->how.n_micro > most) out->how.n_micro = most;
    TRY(ll_lm_step(s->cluster, s->model, &out->how, a, true, &out->out));
    out->stage_bytes = s->model->layers / best->how.pipe /
                       (best->how.virtual_stages > 1 ? best->how.virtual_stages : 1);
    return LL_OK;
}

ll_err ll_plan_report(const char *path, const ll_plan_results *p, const ll_search *s,
                      const ll_candidate *c, double tokens)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_buf b = {.arena = a};
    ll_candidate best;
    TRY(detail(s, c, a, &best));
    ll_buf_printf(
        &b,
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Loopline: "
        "plan</title>\n<style>body{font:15px system-ui,sans-serif;max-width:1000px;margin:2em "
        "auto;padding:0 1em;color-scheme:light "
        "dark}table{border-collapse:collapse;font-size:13px}td,th{padding:2px "
        "8px;text-align:left;border-bottom:1px solid "
        "#8884}svg{max-width:100%%;height:auto}</style>\n<h1>%g x %s, %.4g billion "
        "parameters</h1>\n<p>Batch %g of %g tokens, %s, cluster %s. The best plan, %s, is bound by "
        "%s.</p>\n",
        s->ranks, ll_plot_xml(a, s->cluster->chip.name), p->parameters / 1e9, s->batch,
        s->model->seq, ll_precision_name(s->precision), ll_plot_xml(a, s->cluster->name),
        p->v[0].mesh, ll_outcome_bound(&c->out));
    table(&b, p);
    if (p->scaling) ll_buf_printf(&b, "<p>%s</p>\n", ll_plot_xml(a, p->scaling));
    if (best.out.pipeline) {
        ll_buf_printf(&b, "<h2>Timeline</h2><p>%d of %d micro-batches.</p>\n", best.how.n_micro,
                      c->how.n_micro);
        ll_pipeline_draw_svg(&b, best.out.pipeline, &best.out.times);
        draw_memory(&b, &best, a);
    }
    draw_roofline(&b, s, &best);
    draw_scaling(&b, s, tokens);
    ll_buf_puts(&b, "</html>\n");
    return ll_file_write(path, b.text, b.len);
}

/* A row a rank, an event an action. */
ll_err ll_plan_trace(const char *path, const ll_search *s, const ll_candidate *c)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_buf b = {.arena = a};
    ll_candidate best;
    char name[LL_ACTION_TEXT];
    TRY(detail(s, c, a, &best));
    const ll_pipeline *p = best.out.pipeline;
    ll_buf_puts(&b, "{\"traceEvents\":[");
    for (int r = 0; r < p->n_rank; r++)
        for (int i = 0; i < p->n_action[r]; i++)
            ll_buf_printf(
                &b,
                "%s\n{\"name\":\"%s\",\"ph\":\"X\",\"pid\":0,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f}",
                r || i ? "," : "", ll_action_text(p->actions[r][i], name), r,
                1e6 * best.out.times.start[r][i],
                1e6 * (best.out.times.end[r][i] - best.out.times.start[r][i]));
    ll_buf_puts(&b, "\n]}\n");
    return ll_file_write(path, b.text, b.len);
}
