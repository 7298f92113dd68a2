/* pipeline_auto.c: schedules from costs. All ranks are walked through time together: whoever can
 * begin an action first does. Of what a rank can begin, a rule chooses; nobody knows the best rule,
 * so that all are tried, the bundled schedules too, and the simulator decides.
 *
 * Memory never deadlocks: F of a stage leaves room for one micro-batch in each later stage of its
 * rank. So the oldest micro-batch can always go on: whatever holds memory where it is stuck is of
 * earlier stages, and was let in when there was room for this one besides. */
#include "sched/pipeline_int.h"

#include <math.h>

typedef enum order { OLDEST, DEEPEST, BROADEST, N_ORDER } order;

typedef struct rule {
    bool snake;      /* stages go back and forth over the ranks, not round and round */
    bool forward;    /* F before I, where both could begin */
    order order;     /* of stages: the oldest micro-batch, the last stage, the first */
    double patience; /* W waits for others that come within so much of its time */
    double depth;    /* F runs ahead of I by depth x stages to come */
} rule;

typedef struct walk {
    const ll_pipeline_costs *costs;
    const double *limit;
    rule rule;
    int n_rank, n_stage, n_micro;
    int *rank_of, *next[3];        /* [n_stage] next micro-batch of F, I, W */
    double *done[2];               /* [n_stage][n_micro] end of F, of I */
    double *later, *clock, *used;  /* [n_stage] bytes of later stages of the rank; [n_rank] */
    int *n_later, *cap, *held, *n; /* how many; [n_rank] between F and I at most, now; listed */
    ll_action **lists, *choice;    /* [n_rank] */
    double *start;                 /* [n_rank] of choice; INFINITY: none; NAN: not looked at */
    ll_hoods hoods;
} walk;

static double bytes_of(const walk *w, int stage)
{
    return w->costs->bytes ? w->costs->bytes[stage] : 1;
}

/* When the stage's next action of a kind could begin; INFINITY: nobody knows yet, or it may not. */
static double begin_of(const walk *w, ll_action_kind kind, int s)
{
    int r = w->rank_of[s], pass = ll_pass_of(kind), i = w->next[pass][s];
    if (i == w->n_micro || (pass && i == w->next[pass - 1][s])) return INFINITY;
    if (!pass) {
        double need = w->used[r] + bytes_of(w, s) + w->later[s];
        if (w->limit && need > w->limit[r] * (1 + 1e-12)) return INFINITY;
        if (w->held[r] + 1 + w->n_later[s] > w->cap[r]) return INFINITY;
    }
    double t = w->clock[r];
    ll_near_stages n = ll_hoods_of(&w->hoods, kind, s, true);
    for (int k = 0; k < n.n; k++) {
        if (w->next[pass][n.stage[k]] <= i) return INFINITY;
        double end = w->done[pass][(int64_t)n.stage[k] * w->n_micro + i];
        if (w->costs->send && w->rank_of[n.stage[k]] != r) end += w->costs->send[n.edge[k]];
        t = fmax(t, end);
    }
    return t;
}

/* Whether the rule prefers a to b, which could begin at the same time. */
static bool prefers(const walk *w, ll_action a, ll_action b)
{
    if (a.kind != b.kind) return (a.kind == LL_ACT_F) == w->rule.forward;
    if (w->rule.order == OLDEST && a.micro != b.micro) return a.micro < b.micro;
    bool forth = (a.kind == LL_ACT_F) == (w->rule.order != BROADEST);
    return forth ? a.stage > b.stage : a.stage < b.stage;
}

/* The stage that rank r has in a row of n_rank stages. */
static int stage_at(const walk *w, int row, int r)
{
    return row * w->n_rank + (w->rule.snake && row % 2 ? w->n_rank - 1 - r : r);
}

/* What rank r would do next, and when. */
static void choose(const walk *w, int r)
{
    ll_action best = {0}, fill = {0};
    double at = INFINITY;
    bool can_fill = false;
    for (int row = 0, s; row * w->n_rank < w->n_stage; row++) {
        if ((s = stage_at(w, row, r)) >= w->n_stage) continue;
        for (int pass = 0; pass < 2; pass++) {
            ll_action a = {pass ? LL_ACT_I : LL_ACT_F, s, w->next[pass][s]};
            double t = begin_of(w, a.kind, s);
            if (t == INFINITY || t > at || (t == at && !prefers(w, a, best))) continue;
            best = a;
            at = t;
        }
        ll_action a = {LL_ACT_W, s, w->next[2][s]};
        if (begin_of(w, LL_ACT_W, s) == INFINITY || (can_fill && a.micro >= fill.micro)) continue;
        fill = a;
        can_fill = true;
    }
    if (can_fill && at > w->clock[r] + w->rule.patience * w->costs->w[fill.stage]) {
        best = fill;
        at = w->clock[r];
    }
    w->choice[r] = best;
    w->start[r] = at;
}

static void take(const walk *w, int r)
{
    ll_action a = w->choice[r];
    int pass = ll_pass_of(a.kind), s = a.stage;
    const double *seconds[] = {w->costs->f, w->costs->i, w->costs->w};
    w->clock[r] = w->start[r] + seconds[pass][s];
    if (pass < 2) w->done[pass][(int64_t)s * w->n_micro + a.micro] = w->clock[r];
    w->next[pass][s]++;
    w->held[r] += (pass == 0) - (pass == 1);
    w->used[r] += ((pass == 0) - (pass == 2)) * bytes_of(w, s);
    w->lists[r][w->n[r]++] = a;
    w->start[r] = NAN;
    ll_near_stages n = ll_hoods_of(&w->hoods, a.kind, s, false); /* who look again */
    for (int k = 0; k < n.n; k++) w->start[w->rank_of[n.stage[k]]] = NAN;
}

/* Until nobody can begin anything; false: that is too early. */
static bool walk_on(const walk *w)
{
    for (int left = 3 * w->n_stage * w->n_micro; left; left--) {
        int first = 0;
        for (int r = 0; r < w->n_rank; r++) {
            if (isnan(w->start[r])) choose(w, r);
            if (w->start[r] < w->start[first]) first = r;
        }
        if (w->start[first] == INFINITY) return false;
        take(w, first);
    }
    return true;
}

static void make_room(ll_arena *arena, walk *w)
{
    for (int pass = 0; pass < 3; pass++) w->next[pass] = LL_NEW_ARRAY(arena, int, w->n_stage);
    for (int pass = 0; pass < 2; pass++)
        w->done[pass] = LL_NEW_ARRAY(arena, double, (int64_t)w->n_stage * w->n_micro);
    LL_ARRAYS(arena, w->n_rank, w->clock, w->used, w->start, w->cap, w->held, w->n, w->lists,
              w->choice);
    LL_ARRAYS(arena, w->n_stage, w->later, w->n_later);
}

/* How much a rank may take in: what comes after each of its stages, the number of its actions. */
static void set_bounds(ll_arena *arena, walk *w)
{
    for (int s = w->n_stage - 1; s >= 0; s--) { /* the rank's own totals, from its last stage on */
        int r = w->rank_of[s];
        w->later[s] = w->used[r];
        w->n_later[s] = w->held[r]++;
        w->used[r] += bytes_of(w, s);
        double ahead =
            fmin(ceil(w->rule.depth * (w->n_stage - 1 - s)), (double)w->n_micro * w->n_stage);
        w->cap[r] = 1 + (int)fmax(ahead, w->n_later[s]); /* in the end that of its first stage */
    }
    for (int r = 0; r < w->n_rank; r++) {
        w->lists[r] = LL_NEW_ARRAY(arena, ll_action, 3 * w->held[r] * w->n_micro);
        w->used[r] = w->held[r] = 0;
        w->start[r] = NAN;
    }
}

typedef struct task {
    const ll_pipeline_costs *costs;
    const double *limit;
    int n_rank, n_stage, n_micro;
} task;

/* *out = NULL: a rank cannot hold even one micro-batch. */
static ll_err by_rule(ll_arena *arena, const task *t, rule rule, const ll_pipeline **out)
{
    walk w = {.costs = t->costs,
              .limit = t->limit,
              .rule = rule,
              .n_rank = t->n_rank,
              .n_stage = t->n_stage,
              .n_micro = t->n_micro};
    w.rank_of = LL_NEW_ARRAY(arena, int, t->n_stage);
    for (int s = 0; s < t->n_stage; s++)
        w.rank_of[s] = stage_at(&w, s / t->n_rank, s % t->n_rank) % t->n_rank;
    TRY(ll_hoods_make(arena, t->n_stage, t->costs->edges, t->costs->n_edge, &w.hoods));
    make_room(arena, &w);
    set_bounds(arena, &w);
    ll_pipeline p = {"auto", t->n_rank, t->n_stage, t->n_micro, w.rank_of, w.n};
    p.actions = (const ll_action *const *)w.lists;
    *out = walk_on(&w) ? ll_pipeline_keep(arena, p) : NULL;
    return LL_OK;
}

/* Rule number i; false: there are no more. Ranks of one stage each have no order of stages. */
static bool rule_at(const task *t, int i, rule *out)
{
    static const double patience[] = {0, 0.5, 1}, depth[] = {1, 1.5, 2, 3, INFINITY};
    bool many = t->n_stage > t->n_rank;
    *out = (rule){.forward = i % 2, .patience = patience[i / 2 % 3], .depth = depth[i / 6 % 5]};
    i /= 30;
    if (many) {
        out->order = (order)(i % N_ORDER);
        i /= N_ORDER;
        out->snake = i % 2;
        i /= 2;
    }
    return i == 0;
}

static const ll_pipeline *bundled(ll_arena *arena, const task *t, const char *name)
{
    LL_KEEP_ERROR; /* that a schedule is not for these sizes is no error here */
    const ll_pipeline *p;
    ll_err e = ll_pipeline_make(arena, name, t->n_rank, t->n_stage, t->n_micro, &p);
    return e == LL_OK && !p->overlaps ? p : NULL; /* those train something else */
}

/* Candidate number i, NULL where it is none; *more: whether there may be others. */
static ll_err build(ll_arena *arena, const task *t, int i, const ll_pipeline **out, bool *more)
{
    int n_name = 0;
    rule rule;
    while (ll_pipeline_name(n_name)) n_name++;
    *out = i < n_name ? bundled(arena, t, ll_pipeline_name(i)) : NULL;
    *more = i < n_name || rule_at(t, i - n_name, &rule);
    if (i >= n_name && *more) TRY(by_rule(arena, t, rule, out));
    return LL_OK;
}

static ll_err makespan(ll_arena *arena, const task *t, const ll_pipeline *p, double *out)
{
    ll_pipeline_times times;
    TRY(ll_pipeline_simulate(arena, p, t->costs, &times));
    *out = times.makespan;
    for (int r = 0; r < p->n_rank; r++)
        if (t->limit && times.peak[r] > t->limit[r] * (1 + 1e-12)) *out = INFINITY;
    return LL_OK;
}

/* Stages that go round and round fit wherever one micro-batch at a time does. */
static ll_err say_who_is_full(const task *t)
{
    for (int r = 0; r < t->n_rank; r++) {
        double need = 0;
        for (int s = r; s < t->n_stage; s += t->n_rank)
            need += t->costs->bytes ? t->costs->bytes[s] : 1;
        CHECK(!t->limit || need <= t->limit[r], LL_E_ARG,
              "rank %d has room for %g bytes of activations; one micro-batch takes %g", r,
              t->limit[r], need);
    }
    FAIL(LL_E_ARG, "no schedule of %d stages on %d ranks takes finite time", t->n_stage, t->n_rank);
}

ll_err ll_pipeline_auto(ll_arena *arena, const ll_pipeline_costs *costs, const double *limit,
                        int n_rank, int n_stage, int n_micro, const ll_pipeline **out)
{
    const task t = {costs, limit, n_rank, n_stage, n_micro};
    TRY(ll_pipeline_sizes(n_rank, n_stage, n_micro));
    CHECK(n_stage >= n_rank, LL_E_ARG, "%d stages on %d ranks: at least %d would do", n_stage,
          n_rank, n_rank);
    double least = INFINITY;
    int best = -1;
    bool more = true;
    for (int i = 0; more; i++) {
        LL_OWN(ll_arena) scratch = ll_arena_new();
        const ll_pipeline *p;
        double seconds = INFINITY;
        TRY(build(scratch, &t, i, &p, &more));
        if (p) TRY(makespan(scratch, &t, p, &seconds));
        if (seconds >= least) continue;
        least = seconds;
        best = i;
    }
    if (best < 0) TRY(say_who_is_full(&t));
    TRY(build(arena, &t, best, out, &more));
    return LL_OK;
}
