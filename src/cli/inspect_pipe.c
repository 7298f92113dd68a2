/* inspect_pipe.c: stages of a pipeline, and its schedule as it would run if actions took as long as
 * their FLOPs and bytes say. */
#include "cli/inspect.h"

#include "base/file.h"
#include "cli/common.h"

enum { COLUMNS = 110 }; /* of the picture */

/* ---- stages ---- */

/* Stages here are numbered as actions number them, from 0 on. */
static const char *first_node(const ll_pipe_view *v, int stage)
{
    const ll_stages *s = v->plan->stages;
    LL_EACH (const ll_node, n, v->g->nodes, v->g->n_node) {
        bool declared = n->of.phase == LL_FORWARD && n->of.at > 0 && n->of.at <= s->n_at;
        if (declared && s->of_at[n->of.at] == stage + 1) return n->name;
    }
    return "";
}

static int64_t parameters(const ll_pipe_view *v, int stage)
{
    const ll_stages *s = v->plan->stages;
    int64_t sum = 0;
    for (int i = 0; i < s->n_home; i++)
        for (int k = 1; s->home[i].stage == stage + 1 && k < v->g->n_value; k++) {
            const ll_value *x = &v->g->values[k];
            if (x->node < 0 && x->kind == LL_PARAM && !strcmp(x->name, s->home[i].name))
                sum += ll_numel(&x->type.shape);
        }
    return sum;
}

/* Of all stages' work, 0 to 1. */
static double share(const ll_stages *s, int stage)
{
    double all = 0;
    for (int i = 1; i <= s->n; i++) all += s->cost[i];
    return all > 0 ? s->cost[stage + 1] / all : 0;
}

/* ---- for people ---- */

static void print_stages(const ll_pipe_view *v)
{
    const ll_stages *s = v->plan->stages;
    int width = (int)strlen("begins with");
    for (int i = 0; i < s->n; i++) {
        int len = (int)strlen(first_node(v, i));
        if (len > width) width = len;
    }
    printf("stage  rank  %-*s    work  parameters  sends on\n", width, "begins with");
    for (int i = 0; i < s->n; i++) {
        printf("%5d %5d  %-*s %5.1f %%  %10ld  %8s\n", i, v->plan->rank_of[i], width,
               first_node(v, i), 100 * share(s, i), parameters(v, i),
               i < s->n - 1 ? LL_BYTES(s->bytes[i + 1]) : "-");
    }
    printf("Sends on: forward, of a micro-batch%s; gradients of it come back.\n\n",
           v->mesh->n_rank > v->plan->pipeline->n_rank ? ", ranks of the other axes together" : "");
}

static void print_legend(const ll_pipeline *p)
{
    bool has[4] = {false};
    for (int r = 0; r < p->n_rank; r++)
        for (int k = 0; k < p->n_action[r]; k++) has[p->actions[r][k].kind] = true;
    printf("0, 1: forward of micro-batches 0, 1, ...");
    if (has[LL_ACT_B]) printf("; a=, b=: backward of these");
    if (has[LL_ACT_I]) printf("; a, b: input gradients");
    if (has[LL_ACT_W]) printf("; A, B: weight gradients");
    printf("; dots: idle\n");
}

static void print_flight(const ll_pipe_view *v)
{
    const ll_pipeline *p = v->plan->pipeline;
    const ll_pipeline_report *r = &v->plan->report;
    printf("activations in flight, at most, of ranks 0 to %d:", p->n_rank - 1);
    for (int k = 0; k < p->n_rank; k++) printf(" %d", r->in_flight[k]);
    printf(" micro-batches%s\nslack %d: what an action sends is awaited %s later\n",
           p->n_stage > p->n_rank ? " of one stage" : "", r->slack, LL_COUNTED(r->slack, "action"));
}

static void print_all(const ll_pipe_view *v, const ll_pipeline_times *t, ll_arena *a)
{
    const ll_pipeline *p = v->plan->pipeline;
    ll_buf b = {.arena = a};
    print_stages(v);
    ll_pipeline_draw_text(&b, p, t, COLUMNS);
    fputs(b.text, stdout);
    print_legend(p);
    printf("Simulated: an action takes as long as its FLOPs and bytes say; train --timeline "
           "measures.\n");
    print_flight(v);
    printf("\n--schedule --as text prints it to be edited and given back: -s "
           "parallel.schedule=FILE.\n");
}

/* ---- for programs ---- */

static json_t *stages_json(const ll_pipe_view *v)
{
    const ll_stages *s = v->plan->stages;
    return LL_JSON_LIST(i, s->n,
                        LL_JSON(LL_IS("stage", i), LL_IS("rank", v->plan->rank_of[i]),
                                LL_IS("first_node", first_node(v, (int)i)),
                                LL_IS("share", share(s, (int)i)), LL_IS("work", s->cost[i + 1]),
                                LL_IS("parameters", (int64_t)parameters(v, (int)i)),
                                LL_IS("sent_bytes", s->bytes[i + 1])));
}

static json_t *actions_json(const ll_pipeline *p, const ll_pipeline_times *t, int r)
{
    char text[LL_ACTION_TEXT];
    return LL_JSON_LIST(k, p->n_action[r],
                        LL_JSON(LL_IS("action", ll_action_text(p->actions[r][k], text)),
                                LL_IS("start", t->start[r][k]), LL_IS("end", t->end[r][k])));
}

static ll_err print_json(const ll_pipe_view *v, const ll_pipeline_times *t)
{
    const ll_pipeline *p = v->plan->pipeline;
    const char *text;
    double formula = ll_pipeline_formula(p->name, p->n_rank, p->n_stage, p->n_micro, &text);
    json_t *ranks =
        LL_JSON_LIST(r, p->n_rank,
                     LL_JSON(LL_IS("rank", r), LL_IS("in_flight", v->plan->report.in_flight[r]),
                             LL_IS("actions", actions_json(p, t, (int)r))));
    return ll_cli_json(LL_JSON(LL_IS("schedule", p->name), LL_IS("micro_batches", p->n_micro),
                               LL_IS("slack", v->plan->report.slack), LL_IS("bubble", t->bubble),
                               LL_IS("makespan", t->makespan),
                               LL_IS("unit", "FLOPs, and bytes as what takes as long"),
                               LL_IS("bubble_of_equal_stages", formula), LL_IS("formula", text),
                               LL_IS("stages", stages_json(v)), LL_IS("ranks", ranks)));
}

/* ---- all of it ---- */

ll_err ll_inspect_pipe(const ll_pipe_view *v)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    const ll_pipeline *p = v->plan->pipeline;
    ll_pipeline_times t;
    ll_pipeline_costs costs = v->plan->costs;
    costs.goes_on = v->goes_on;
    TRY(ll_pipeline_simulate(a, p, &costs, &t));
    t.in_flops = true;
    ll_buf b = {.arena = a};
    if (v->svg) ll_pipeline_draw_svg(&b, p, &t);
    if (v->svg) TRY(ll_file_write(v->svg, b.text, b.len));
    if (v->json) return print_json(v, &t);
    if (!v->form) {
        print_all(v, &t, a);
        return LL_OK;
    }
    b.len = 0;
    (strcmp(v->form, "csv") ? ll_pipeline_print : ll_pipeline_print_csv)(&b, p);
    if (b.len && b.text[b.len - 1] != '\n') ll_buf_puts(&b, "\n");
    fputs(b.text, stdout);
    return LL_OK;
}
