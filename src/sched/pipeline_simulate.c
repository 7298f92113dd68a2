/* pipeline_simulate.c: when actions run, given what they take. */
#include "sched/pipeline_int.h"

#include <math.h>

typedef struct sim {
    const ll_pipeline *p;
    const ll_repeated *steps; /* of which p is; NULL: is one step */
    const ll_pipeline_costs *costs;
    ll_hoods hoods;
    double *done[2]; /* [n_stage][n_micro] end of F, and of B or I; < 0: not yet */
    double **start, **end;
    int *next;    /* [n_rank] action */
    int *made[2]; /* as done: the step that it was made in */
    double *free; /* [2][edge] when its last message has come, forward and back; NULL: no matter */
} sim;

static double *done(const sim *s, ll_action_kind kind, int stage, int micro)
{
    return &s->done[kind != LL_ACT_F][(int64_t)stage * s->p->n_micro + micro];
}

static int *made_in(const sim *s, ll_action_kind kind, int stage, int micro)
{
    return &s->made[kind != LL_ACT_F][(int64_t)stage * s->p->n_micro + micro];
}

static double seconds(const ll_pipeline_costs *c, ll_action a)
{
    switch (a.kind) {
    case LL_ACT_F: return c->f[a.stage];
    case LL_ACT_I: return c->i[a.stage];
    case LL_ACT_W: return c->w[a.stage];
    case LL_ACT_B: break;
    }
    return c->i[a.stage] + c->w[a.stage];
}

/* What a step makes for another rank's next one goes when it is over: then; < 0: not known yet. */
static double step_end(const sim *s, int rank, int step)
{
    int last = s->steps->first[rank][step + 1] - 1;
    return last < s->next[rank] ? s->end[rank][last] : -1;
}

/* When what an action, in a step, reads is there; < 0: not known yet. */
static double ready(const sim *s, ll_action a, int step)
{
    double t = 0;
    ll_near_stages n = ll_hoods_of(&s->hoods, a.kind, a.stage, true);
    for (int i = 0; s->free && i < n.n; i++) /* all are known, or no message is counted */
        if (*done(s, a.kind, n.stage[i], a.micro) < 0) return -1;
    for (int i = 0; i < n.n; i++) {
        double end = *done(s, a.kind, n.stage[i], a.micro);
        if (end < 0) return -1;
        int made = s->steps ? *made_in(s, a.kind, n.stage[i], a.micro) : step;
        if (made < step && (end = step_end(s, s->p->rank_of[n.stage[i]], made)) < 0) return -1;
        if (s->costs->send && s->p->rank_of[n.stage[i]] != s->p->rank_of[a.stage]) {
            double *free = s->free ? &s->free[2 * n.edge[i] + (a.kind != LL_ACT_F)] : NULL;
            end = (free ? fmax(end, *free) : end) + s->costs->send[n.edge[i]];
            if (free) *free = end;
        }
        t = fmax(t, end);
    }
    return t;
}

static bool advance(const sim *s, int r)
{
    int from = s->next[r];
    for (; s->next[r] < s->p->n_action[r]; s->next[r]++) {
        int k = s->next[r];
        ll_action a = s->p->actions[r][k];
        int step = s->steps ? s->steps->step[r][k] : 0;
        double t = ready(s, a, step);
        if (t < 0) break;
        s->start[r][k] = fmax(t, k ? s->end[r][k - 1] : 0);
        s->end[r][k] = s->start[r][k] + seconds(s->costs, a);
        if (a.kind == LL_ACT_W) continue;
        *done(s, a.kind, a.stage, a.micro) = s->end[r][k];
        if (s->steps) *made_in(s, a.kind, a.stage, a.micro) = step;
    }
    return s->next[r] > from;
}

double ll_pipeline_peak(const ll_pipeline *p, int rank, const double *each)
{
    double now = 0, most = 0;
    LL_EACH (const ll_action, a, p->actions[rank], p->n_action[rank]) {
        double bytes = each ? each[a->stage] : 1;
        if (a->kind == LL_ACT_F) now += bytes;
        most = fmax(most, now);
        if (a->kind == LL_ACT_B || a->kind == LL_ACT_W) now -= bytes;
    }
    return most;
}

static double longest_step(const ll_pipeline *p, const ll_pipeline_times *t)
{
    double most = 0;
    for (int r = 0; r < p->n_rank; r++)
        if (p->n_action[r]) most = fmax(most, t->end[r][p->n_action[r] - 1] - t->start[r][0]);
    return most;
}

void ll_pipeline_sum_up(const ll_pipeline *p, ll_pipeline_times *t)
{
    double busy = 0, from = INFINITY, to = -INFINITY;
    if (p->overlaps ? !(t->period > 0) : t->period < 0) t->period = longest_step(p, t);
    for (int r = 0; r < p->n_rank; r++) {
        int n = p->n_action[r];
        if (!n) continue;
        for (int k = 0; k < n; k++)
            busy += t->end[r][k] - t->start[r][k] - (t->waited ? t->waited[r][k] : 0);
        from = fmin(from, t->start[r][0]);
        to = fmax(to, t->end[r][n - 1]);
    }
    t->makespan = fmax(to - from, 0);
    if (t->period > 0) t->makespan = t->period; /* a rank's own step, whenever that begins */
    double all = p->n_rank * t->makespan;
    t->bubble = all > 0 ? fmax(0, 1 - busy / all) : 0;
}

static ll_err check_costs(const ll_pipeline *p, const ll_pipeline_costs *c)
{
    for (int s = 0; s < p->n_stage; s++)
        CHECK(c->f[s] >= 0 && c->i[s] >= 0 && c->w[s] >= 0 && isfinite(c->f[s] + c->i[s] + c->w[s]),
              LL_E_ARG, "stage %d takes %g, %g and %g s: not times", s, c->f[s], c->i[s], c->w[s]);
    return LL_OK;
}

/* Of many steps, one that others are before and behind. */
static void pick_step(const sim *s, const ll_pipeline *p, ll_pipeline_times *out)
{
    int step = s->steps->n_step - 3; /* the last but one that is whole */
    double from = INFINITY;
    for (int r = 0; r < p->n_rank; r++) {
        const int *first = s->steps->first[r];
        out->period = fmax(out->period, s->start[r][first[step + 1]] - s->start[r][first[step]]);
        s->start[r] += first[step];
        s->end[r] += first[step];
        from = fmin(from, s->start[r][0]);
    }
    for (int r = 0; r < p->n_rank; r++)
        for (int k = 0; k < p->n_action[r]; k++) s->start[r][k] -= from, s->end[r][k] -= from;
}

ll_err ll_pipeline_simulate(ll_arena *arena, const ll_pipeline *one, const ll_pipeline_costs *costs,
                            ll_pipeline_times *out)
{
    enum { STEPS = 6 };
    sim s = {.costs = costs, .next = LL_NEW_ARRAY(arena, int, one->n_rank)};
    if (one->overlaps || costs->goes_on) TRY(ll_pipeline_repeat(arena, one, STEPS, &s.steps));
    const ll_pipeline *p = s.p = s.steps ? &s.steps->p : one;
    TRY(check_costs(p, costs));
    TRY(ll_hoods_make(arena, p->n_stage, costs->edges, costs->n_edge, &s.hoods));
    int64_t cells = (int64_t)p->n_stage * p->n_micro;
    if (costs->in_turn) s.free = LL_NEW_ARRAY(arena, double, 2 * (p->n_stage + costs->n_edge));
    for (int pass = 0; pass < 2; pass++) {
        s.done[pass] = LL_NEW_ARRAY(arena, double, cells);
        for (int64_t i = 0; i < cells; i++) s.done[pass][i] = -1;
        if (s.steps) s.made[pass] = LL_NEW_ARRAY(arena, int, cells);
    }
    double *peak;
    LL_ARRAYS(arena, p->n_rank, s.start, s.end, peak);
    for (int r = 0; r < p->n_rank; r++) {
        LL_ARRAYS(arena, p->n_action[r], s.start[r], s.end[r]);
        peak[r] = ll_pipeline_peak(s.p, r, s.costs->bytes);
    }
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < p->n_rank; r++) moved |= advance(&s, r);
    }
    for (int r = 0; r < p->n_rank; r++)
        CHECK(s.next[r] == p->n_action[r], LL_E_ARG, "rank %d of the pipeline waits for ever", r);
    *out = (ll_pipeline_times){.start = s.start, .end = s.end, .peak = peak};
    if (s.steps) pick_step(&s, one, out);
    ll_pipeline_sum_up(one, out);
    return LL_OK;
}
