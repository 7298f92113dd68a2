/* Any bytes as a pipeline's schedule, our text and PyTorch's CSV: refused with words, or a schedule
 * that prints and reads back, that the check takes or refuses with words, and that, if it takes it,
 * can be simulated and drawn. */
#include "sched/pipeline.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void draw(ll_arena *a, const ll_pipeline *p)
{
    double *one = LL_NEW_ARRAY(a, double, p->n_stage);
    for (int s = 0; s < p->n_stage; s++) one[s] = 1;
    const ll_pipeline_costs c = {.f = one, .i = one, .w = one};
    ll_pipeline_times t;
    ll_err e = ll_pipeline_simulate(a, p, &c, &t);
    LL_ASSERT(e == LL_OK && t.bubble >= 0 && t.bubble < 1);
    ll_buf picture = {.arena = a};
    ll_pipeline_draw_text(&picture, p, &t, 0);
    ll_pipeline_draw_svg(&picture, p, &t);
}

static void look_at(ll_arena *a, const ll_pipeline *p)
{
    ll_buf text = {.arena = a}, csv = {.arena = a}, twice = {.arena = a};
    const ll_pipeline *again;
    ll_pipeline_print(&text, p);
    ll_pipeline_print_csv(&csv, p);
    ll_err e = ll_pipeline_parse(a, text.text, text.len, "fuzz", &again);
    LL_ASSERT(e == LL_OK && again->n_rank == p->n_rank);
    ll_pipeline_print_csv(&twice, again);
    LL_ASSERT(!strcmp(csv.text, twice.text));
    e = ll_pipeline_parse(a, csv.text, csv.len, "fuzz", &again);
    LL_ASSERT(e == LL_OK && again->n_stage == p->n_stage);
    ll_pipeline_report *r = LL_NEW(a, ll_pipeline_report);
    e = ll_pipeline_check(p, NULL, 0, r);
    LL_ASSERT(e == LL_OK ? r->slack >= 1 : *ll_error_message() != 0);
    if (e == LL_OK) draw(a, p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ll_arena *a = ll_arena_new();
    const ll_pipeline *p;
    if (ll_pipeline_parse(a, (const char *)data, size, "fuzz", &p) == LL_OK)
        look_at(a, p);
    else
        LL_ASSERT(*ll_error_message());
    ll_arena_free(a);
    return 0;
}
