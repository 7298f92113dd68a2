/* timeline.c: the measured step of all ranks of a pipeline.
 *
 * A table has a row for each rank along axis pipe: starts, ends, waits of its actions, its update.
 * Every rank fills in its own row and leaves the others zero; the sum over ranks is all of it. */
#include "train/timeline.h"

bool ll_timeline_read(const ll_trace *trace, const ll_session *s, ll_arena *arena,
                      ll_timeline_part *out)
{
    int64_t n, dropped, found = 0;
    const ll_trace_event *events = ll_trace_events(trace, &n, &dropped);
    int n_action = s->p->pipe->n_action;
    *out = (ll_timeline_part){.start = LL_NEW_ARRAY(arena, double, n_action),
                              .end = LL_NEW_ARRAY(arena, double, n_action),
                              .waited = LL_NEW_ARRAY(arena, double, n_action)};
    for (int64_t i = 0; i < n; i++) { /* later steps replace earlier ones */
        const ll_trace_event *e = &events[i];
        if (e->row != LL_TRACE_PIPE) continue;
        if (e->number >= 0 && e->number < n_action) {
            out->start[e->number] = e->from;
            out->end[e->number] = e->to;
            out->waited[e->number] = e->waited;
            found++;
        } else if (e->name && !strcmp(e->name, "update"))
            out->update = (ll_interval){e->from, e->to};
    }
    return found >= n_action;
}

/* Is this rank one of those that are drawn? */
static bool is_drawn(const ll_mesh *m, int axis, int rank)
{
    for (int a = 0; a < m->n; a++)
        if (a != axis && ll_mesh_coord(m, a, rank)) return false;
    return true;
}

/* A row of the table. */
static void fill_row(double *row, int most, int n_action, const ll_timeline_part *mine)
{
    size_t bytes = sizeof(double) * (size_t)n_action;
    memcpy(row, mine->start, bytes);
    memcpy(row + most, mine->end, bytes);
    memcpy(row + 2 * most, mine->waited, bytes);
    row[3 * most] = mine->update.start;
    row[3 * most + 1] = mine->update.end;
}

/* The table as times. */
static ll_pipeline_times times_of(const ll_pipeline *p, double *table, int most, ll_arena *a)
{
    double **start = LL_NEW_ARRAY(a, double *, p->n_rank),
           **end = LL_NEW_ARRAY(a, double *, p->n_rank);
    double **waited = LL_NEW_ARRAY(a, double *, p->n_rank);
    ll_interval *update = LL_NEW_ARRAY(a, ll_interval, p->n_rank);
    for (int r = 0; r < p->n_rank; r++) {
        double *row = table + (size_t)r * (size_t)(3 * most + 2);
        start[r] = row;
        end[r] = row + most;
        waited[r] = row + 2 * most;
        update[r] = (ll_interval){row[3 * most], row[3 * most + 1]};
    }
    return (ll_pipeline_times){.start = start, .end = end, .waited = waited, .update = update};
}

ll_err ll_timeline_draw(ll_comm *c, const ll_session *s, const ll_timeline_part *mine,
                        const char *name, ll_arena *arena, ll_timeline *out)
{
    const ll_pipeline *p = s->cut->plan->pipeline;
    const ll_mesh *m = &s->team->m;
    int axis = ll_mesh_axis(m, LL_AXIS_PIPE), most = 0, rank = ll_comm_rank(c);
    for (int r = 0; r < p->n_rank; r++)
        if (p->n_action[r] > most) most = p->n_action[r];
    int64_t width = 3 * most + 2;
    double *table = LL_NEW_ARRAY(arena, double, width * p->n_rank);
    int me = ll_mesh_coord(m, axis, rank);
    if (is_drawn(m, axis, rank)) fill_row(table + me * width, most, p->n_action[me], mine);
    TRY(ll_comm_allreduce(c, table, width * p->n_rank, LL_F64, LL_REDUCE_SUM,
                          &(ll_coll_opts){.site = "timeline"}));
    ll_pipeline_times t = times_of(p, table, most, arena);
    t.title = ll_arena_printf(arena, "%s, %s", p->name, name);
    if (s->after) t.period = -1; /* ranks do not wait for each other's ends */
    ll_pipeline_sum_up(p, &t);
    enum { COLUMNS = 110 };
    ll_buf text = {.arena = arena}, svg = {.arena = arena};
    ll_pipeline_draw_text(&text, p, &t, COLUMNS);
    ll_pipeline_draw_svg(&svg, p, &t);
    *out = (ll_timeline){text.text, svg.text, t.bubble};
    return LL_OK;
}
