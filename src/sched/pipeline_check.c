/* pipeline_check.c: proves that a schedule can be run, by the rules in pipeline.h. Where each pass
 * over a (stage, micro) is in its rank's list is written into a table; then ranks run side by side
 * as far as they come. Whether one can go on never turns false again, so that the order in which
 * they are tried does not matter, and what stands still in the end would stand still on a machine.
 * Where steps overlap, that is done for a few of them, written out. */
#include "sched/pipeline_int.h"

#include <string.h>

static const bool has_pass[][LL_N_PASS] = {[LL_ACT_F] = {true, false, false},
                                           [LL_ACT_B] = {false, true, true},
                                           [LL_ACT_I] = {false, true, false},
                                           [LL_ACT_W] = {false, false, true}};

typedef struct table {
    const ll_pipeline *p;
    const ll_repeated *steps; /* of which p is; NULL: is one step */
    int *entered;             /* [n_rank] the step that it is in */
    int n_micro;              /* of a step */
    int *at[LL_N_PASS]; /* [n_stage][n_micro] place in its rank's list, 1 for the first; 0: none */
    ll_hoods hoods;
    int *begun, *ended; /* [n_rank] how many actions */
} table;

static int *at(const table *t, int pass, int stage, int micro)
{
    return &t->at[pass][(int64_t)stage * t->p->n_micro + micro];
}

/* As the schedule has it: the first step to do it stands for all. */
static const char *name_in(const table *t, ll_action a, char out[LL_ACTION_TEXT])
{
    int *place = t->steps && a.kind != LL_ACT_F && a.micro >= 0 && a.micro < t->p->n_micro
                     ? at(t, ll_pass_of(a.kind), a.stage, a.micro)
                     : NULL;
    if (place && *place)
        a.before = t->steps->step[t->p->rank_of[a.stage]][*place - 1] > a.micro / t->n_micro;
    if (t->steps) a.micro %= t->n_micro;
    return ll_action_text(a, out);
}

#define NAME(t, a) name_in(t, a, (char[LL_ACTION_TEXT]){0})
#define NAME_AT(t, rank, place) NAME(t, (t)->p->actions[rank][(place)-1])

static ll_err check_action(const table *t, int rank, ll_action a)
{
    const ll_pipeline *p = t->p;
    CHECK((unsigned)a.kind <= LL_ACT_W, LL_E_ARG, "rank %d has an action of no kind: %d", rank,
          (int)a.kind);
    const char *text = NAME(t, a);
    CHECK(a.stage >= 0 && a.stage < p->n_stage, LL_E_ARG,
          "rank %d cannot do %s: there are stages 0 to %d", rank, text, p->n_stage - 1);
    CHECK(a.micro >= 0 && a.micro < p->n_micro, LL_E_ARG,
          "rank %d cannot do %s: there are micro-batches 0 to %d", rank, text, p->n_micro - 1);
    CHECK(p->rank_of[a.stage] == rank, LL_E_ARG, "rank %d cannot do %s: stage %d is on rank %d",
          rank, text, a.stage, p->rank_of[a.stage]);
    for (int pass = 0; pass < LL_N_PASS; pass++) {
        int done = has_pass[a.kind][pass] ? *at(t, pass, a.stage, a.micro) : 0;
        CHECK(!done, LL_E_ARG, "rank %d cannot do %s: a duplicate, %s comes before it", rank, text,
              NAME_AT(t, rank, done));
    }
    return LL_OK;
}

static ll_err check_whole(const table *t, int stage, int micro)
{
    bool i = *at(t, LL_PASS_I, stage, micro), w = *at(t, LL_PASS_W, stage, micro);
    ll_action miss = {LL_ACT_F, stage, micro};
    if (*at(t, LL_PASS_F, stage, micro)) miss.kind = i ? LL_ACT_W : w ? LL_ACT_I : LL_ACT_B;
    CHECK(miss.kind == LL_ACT_W && w, LL_E_ARG, "rank %d misses %s", t->p->rank_of[stage],
          NAME(t, miss));
    return LL_OK;
}

static ll_err fill(const table *t)
{
    const ll_pipeline *p = t->p;
    for (int r = 0; r < p->n_rank; r++) {
        for (int k = 0; k < p->n_action[r]; k++) {
            ll_action a = p->actions[r][k];
            TRY(check_action(t, r, a));
            for (int pass = 0; pass < LL_N_PASS; pass++)
                if (has_pass[a.kind][pass]) *at(t, pass, a.stage, a.micro) = k + 1;
        }
    }
    for (int s = 0; s < p->n_stage; s++)
        for (int i = 0; i < p->n_micro; i++) TRY(check_whole(t, s, i));
    return LL_OK;
}

static ll_err check_before(const table *t, int rank, int k, int place)
{
    CHECK(place <= k, LL_E_ARG, "rank %d cannot do %s: it reads what %s makes, which comes later",
          rank, NAME_AT(t, rank, k + 1), NAME_AT(t, rank, place));
    return LL_OK;
}

/* What actions read from their own rank is made before them. */
static ll_err check_order(const table *t)
{
    const ll_pipeline *p = t->p;
    for (int r = 0; r < p->n_rank; r++) {
        for (int k = 0; k < p->n_action[r]; k++) {
            ll_action a = p->actions[r][k];
            ll_near_stages n = ll_hoods_of(&t->hoods, a.kind, a.stage, true);
            if (a.kind != LL_ACT_F)
                TRY(check_before(
                    t, r, k, *at(t, a.kind == LL_ACT_W ? LL_PASS_I : LL_PASS_F, a.stage, a.micro)));
            for (int i = 0; i < n.n; i++)
                if (p->rank_of[n.stage[i]] == r)
                    TRY(check_before(t, r, k, *at(t, ll_pass_of(a.kind), n.stage[i], a.micro)));
        }
    }
    return LL_OK;
}

/* The step that place `place` of a rank's list is in. */
static int step_of(const table *t, int rank, int place)
{
    return t->steps ? t->steps->step[rank][place - 1] : 0;
}

/* Whether what place `from` of rank r makes for place `to` of rank q goes when r begins its next
 * step. */
static bool is_late(const table *t, int r, int from, int q, int to)
{
    return step_of(t, q, to) > step_of(t, r, from);
}

/* The stage that action k of a rank waits for; -1: it can begin. */
static int waits_for(const table *t, int rank, int k)
{
    ll_action a = t->p->actions[rank][k];
    ll_near_stages n = ll_hoods_of(&t->hoods, a.kind, a.stage, true);
    for (int i = 0; i < n.n; i++) {
        int q = t->p->rank_of[n.stage[i]];
        if (q == rank) continue;
        int from = *at(t, ll_pass_of(a.kind), n.stage[i], a.micro);
        if (from > t->ended[q]) return n.stage[i];
        if (is_late(t, q, from, rank, k + 1) && t->entered[q] <= step_of(t, q, from))
            return n.stage[i];
    }
    return -1;
}

/* A rank that has begun n actions has posted the receives of n + 1, if it is in that one's step. */
static bool is_posted(const table *t, int rank, int place)
{
    return place <= t->begun[rank] + 1 && step_of(t, rank, place) <= t->entered[rank];
}

/* Whether the receives of all that action k made are posted; late: of what goes in the next step,
 * else of what goes at once. */
static bool is_sent(const table *t, int rank, int k, bool late)
{
    ll_action a = t->p->actions[rank][k];
    ll_near_stages n = ll_hoods_of(&t->hoods, a.kind, a.stage, false);
    for (int i = 0; i < n.n; i++) {
        int q = t->p->rank_of[n.stage[i]];
        int to = *at(t, ll_pass_of(a.kind), n.stage[i], a.micro);
        if (q != rank && is_late(t, rank, k + 1, q, to) == late && !is_posted(t, q, to))
            return false;
    }
    return true;
}

/* What the step before left to send goes with the first action of this one. */
static bool are_late_sent(const table *t, int rank, int k)
{
    int step = step_of(t, rank, k + 1);
    if (!step || t->steps->first[rank][step] != k) return true;
    for (int i = t->steps->first[rank][step - 1]; i < k; i++)
        if (!is_sent(t, rank, i, true)) return false;
    return true;
}

/* Whether a rank that has ended k actions is in the next one's step: sends of the one before are
 * over. */
static bool enter(const table *t, int rank, int k)
{
    int step = step_of(t, rank, k + 1);
    for (; t->entered[rank] < step; t->entered[rank]++)
        for (int i = t->steps->first[rank][t->entered[rank]]; i < k; i++)
            if (!is_sent(t, rank, i, false)) return false;
    return true;
}

/* Lets a rank go as far as it comes; whether it moved. The sends of action k - slack are waited for
 * before action k + 1 begins, which is at the end of action k. */
static bool advance(const table *t, int rank, int slack)
{
    int from = t->ended[rank];
    for (; t->ended[rank] < t->p->n_action[rank]; t->ended[rank]++) {
        int k = t->ended[rank];
        if (!enter(t, rank, k)) break;
        if (k > slack && !is_sent(t, rank, k - 1 - slack, false)) break;
        if (k > slack && !are_late_sent(t, rank, k - 1 - slack)) break;
        if (waits_for(t, rank, k) >= 0) break;
        t->begun[rank] = k + 1;
    }
    if (t->ended[rank] == t->p->n_action[rank] && t->steps) /* what is left to send goes then */
        t->entered[rank] = t->steps->n_step;
    return t->ended[rank] > from;
}

/* Runs all ranks; the first that does not come to its end, or -1. */
static int run(const table *t, int slack)
{
    size_t bytes = sizeof(int) * (size_t)t->p->n_rank;
    memset(t->begun, 0, bytes);
    memset(t->ended, 0, bytes);
    memset(t->entered, 0, bytes);
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < t->p->n_rank; r++) moved |= advance(t, r, slack);
    }
    for (int r = 0; r < t->p->n_rank; r++)
        if (t->ended[r] < t->p->n_action[r]) return r;
    return -1;
}

/* With as much slack as there are actions nobody waits for a send: if that ends, some slack does,
 * and more never hurts. */
static ll_err find_slack(const table *t, int *out)
{
    int lo = 1, hi = 1;
    for (int r = 0; r < t->p->n_rank; r++)
        if (t->p->n_action[r] > hi) hi = t->p->n_action[r];
    int r = run(t, hi);
    if (r >= 0) {
        int k = t->ended[r], stage = waits_for(t, r, k);
        ll_action a = t->p->actions[r][k];
        CHECK(stage >= 0, LL_E_ARG,
              "rank %d cannot do %s: it waits for ever for what it has sent before to be received",
              r, NAME(t, a));
        int q = t->p->rank_of[stage];
        FAIL(LL_E_ARG, "rank %d cannot do %s: it waits for ever for %s of rank %d, which is at %s",
             r, NAME(t, a), NAME_AT(t, q, *at(t, ll_pass_of(a.kind), stage, a.micro)), q,
             t->ended[q] < t->p->n_action[q] ? NAME_AT(t, q, t->ended[q] + 1) : "its end");
    }
    while (lo < hi) {
        int mid = lo == 1 && hi > 4 ? 2 : (lo + hi) / 2; /* most need 1 or 2 */
        if (run(t, mid) >= 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    *out = lo;
    return LL_OK;
}

static bool ascends(const table *t)
{
    for (int pass = 0; pass < LL_N_PASS; pass++)
        for (int s = 0; s < t->p->n_stage; s++)
            for (int i = 1; i < t->p->n_micro; i++)
                if (*at(t, pass, s, i) < *at(t, pass, s, i - 1)) return false;
    return true;
}

ll_err ll_pipeline_check(const ll_pipeline *p, const ll_edge *edges, int n_edge,
                         ll_pipeline_report *out)
{
    enum { STEPS = 3 }; /* a first, a last, and one like all others */
    LL_OWN(ll_arena) arena = ll_arena_new();
    table t = {.n_micro = p->n_micro};
    TRY(ll_pipeline_sizes(p->n_rank, p->n_stage, p->n_micro));
    if (p->overlaps) {
        TRY(ll_pipeline_repeat(arena, p, STEPS, &t.steps));
        p = &t.steps->p;
    }
    t.p = p;
    for (int s = 0; s < p->n_stage; s++)
        CHECK(p->rank_of[s] >= 0 && p->rank_of[s] < p->n_rank, LL_E_ARG,
              "stage %d is on rank %d; there are ranks 0 to %d", s, p->rank_of[s], p->n_rank - 1);
    for (int pass = 0; pass < LL_N_PASS; pass++)
        t.at[pass] = LL_NEW_ARRAY(arena, int, (int64_t)p->n_stage * p->n_micro);
    LL_ARRAYS(arena, p->n_rank, t.begun, t.ended, t.entered);
    TRY(fill(&t));
    TRY(ll_hoods_make(arena, p->n_stage, edges, n_edge, &t.hoods));
    TRY(check_order(&t));
    *out = (ll_pipeline_report){.ascending = ascends(&t)};
    for (int r = 0; r < p->n_rank; r++) out->in_flight[r] = (int)ll_pipeline_peak(p, r, NULL);
    TRY(find_slack(&t, &out->slack));
    return LL_OK;
}
