/* pipeline.c: the bundled schedules. Each is a function that lists one rank's actions; r is the
 * rank, p the number of ranks, m of micro-batches, v of stages a rank.
 *
 * gpipe: Huang et al., GPipe (2019). 1f1b: Narayanan et al., PipeDream (2019). interleaved: the
 * same, Megatron-LM (2021). breadth-first: Lamy-Poirier (2022). zb-*: Qi et al., Zero bubble
 * pipeline parallelism (2023). dualpipe-v: DeepSeek's DualPipe, halved by Qi et al. (2025). 2bw:
 * Narayanan et al., PipeDream-2BW (2021).
 *
 * The V-shaped ones are written for many micro-batches, interleaved for multiples of p. Those that
 * do not exist are then left out: no action waits for one of another micro-batch, so that what is
 * left ends as well. */
#include "sched/pipeline_int.h"

#include "base/near.h"
#include "base/num.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct list {
    int p, m, v, r;
    ll_action *actions;
    int n, capacity;
} list;

static void put(list *l, ll_action_kind kind, int stage, int micro)
{
    if (micro >= l->m) return;
    LL_ASSERT(l->n < l->capacity);
    l->actions[l->n++] = (ll_action){.kind = kind, .stage = stage, .micro = micro};
}

/* All forward, stage by stage, then all backward: gpipe where there is one stage. */
static void breadth_first(list *l)
{
    for (int c = 0; c < l->v; c++)
        for (int i = 0; i < l->m; i++) put(l, LL_ACT_F, c * l->p + l->r, i);
    for (int c = l->v - 1; c >= 0; c--)
        for (int i = 0; i < l->m; i++) put(l, LL_ACT_B, c * l->p + l->r, i);
}

/* Number i of a rank's forward, or backward, passes: micro-batches go in groups of p through all
 * its stages, backward from the last to the first. */
static void put_grouped(list *l, ll_action_kind kind, int i)
{
    int group = i / (l->p * l->v), c = i / l->p % l->v;
    if (kind != LL_ACT_F) c = l->v - 1 - c;
    put(l, kind, c * l->p + l->r, group * l->p + i % l->p);
}

/* Enough forward passes that the first backward pass has come back, then one of each in turn. */
static void interleaved(list *l)
{
    int ahead = l->p - 1 - l->r, n = (int)ll_round_up(l->m, l->p) * l->v;
    if (l->v > 1) ahead = 2 * ahead + (l->v - 1) * l->p;
    for (int i = 0; i < n + ahead; i++) {
        if (i < n) put_grouped(l, LL_ACT_F, i);
        if (i >= ahead) put_grouped(l, LL_ACT_B, i - ahead);
    }
}

/* 1f1b without an end: the backward passes that a step leaves over are the next one's first. */
static void two_buffered_weights(list *l)
{
    int ahead = l->p - 1 - l->r < l->m - 1 ? l->p - 1 - l->r : l->m - 1;
    for (int i = 0; i < l->m; i++) {
        put(l, LL_ACT_F, l->r, i);
        put(l, LL_ACT_B, l->r, (i - ahead + l->m) % l->m);
        l->actions[l->n - 1].before = i < ahead;
    }
}

/* F is `ahead` micro-batches before I, W `behind` after: at most ahead + 1 + behind in flight. */
static void in_thirds(list *l, int ahead, int behind)
{
    for (int i = 0; i < ahead; i++) put(l, LL_ACT_F, l->r, i);
    for (int i = 0; i < l->m + behind; i++) {
        put(l, LL_ACT_F, l->r, i + ahead);
        put(l, LL_ACT_I, l->r, i);
        if (i >= behind) put(l, LL_ACT_W, l->r, i - behind);
    }
}

static void zb_h1(list *l)
{
    in_thirds(l, l->p - 1 - l->r, l->r);
}

static void zb_h2(list *l)
{
    in_thirds(l, 2 * (l->p - 1 - l->r), 2 * l->r);
}

/* A rank's two stages in V-shaped schedules, and how many of their actions are listed. */
typedef struct vee {
    list *l;
    int stage[2], f[2], b[2], w[2];
} vee;

static vee vee_of(list *l)
{
    return (vee){.l = l, .stage = {l->r, 2 * l->p - 1 - l->r}};
}

static void put_f(vee *x, int c)
{
    put(x->l, LL_ACT_F, x->stage[c], x->f[c]++);
}

static void put_i(vee *x, int c)
{
    put(x->l, LL_ACT_I, x->stage[c], x->b[c]++);
}

static void put_w(vee *x, int c)
{
    put(x->l, LL_ACT_W, x->stage[c], x->w[c]++);
}

static void put_iw(vee *x, int c)
{
    put_i(x, c);
    put_w(x, c);
}

static void zb_v(list *l)
{
    vee x = vee_of(l);
    int m = l->m > 2 * l->p - 1 ? l->m : 2 * l->p - 1;
    for (int i = 0; i < 2 * (l->p - l->r) - 1; i++) put_f(&x, 0);
    for (int i = 0; i < l->r; i++) {
        put_f(&x, 1);
        put_f(&x, 0);
    }
    for (int i = 0; i < l->p - l->r; i++) {
        put_f(&x, 1);
        put_iw(&x, 1);
    }
    while (x.f[1] < m) {
        if (x.f[0] < m) put_f(&x, 0);
        put_iw(&x, 0);
        put_f(&x, 1);
        put_iw(&x, 1);
    }
    for (int i = 0; i < l->r; i++) {
        put_i(&x, 0);
        put_i(&x, 1);
    }
    for (int i = 0; i < l->p - l->r; i++) put_iw(&x, 0);
    for (int c = 1; c >= 0; c--)
        while (x.w[c] < m) put_w(&x, c);
}

static void put_b(vee *x, int c)
{
    put(x->l, LL_ACT_B, x->stage[c], x->b[c]++);
    x->w[c]++;
}

/* Of the last backward passes, W is put off, first come first served. */
static void dualpipe_v_end(vee *x)
{
    int r = x->l->r, rest = x->l->p - 1 - r, paid = 0;
    for (int i = 0; i < 2 * (r + 1); i++) {
        if (i <= r)
            put_b(x, (i + 1) % 2);
        else
            put_i(x, (i + 1) % 2);
    }
    for (int i = 0; i < rest; i++, paid++) {
        put_w(x, paid <= r ? (paid + r) % 2 : 0);
        put_i(x, 0);
    }
    for (; paid <= r + rest; paid++) put_w(x, paid <= r ? (paid + r) % 2 : 0);
}

static void dualpipe_v(list *l)
{
    vee x = vee_of(l);
    int m = l->m > 2 * l->p ? l->m : 2 * l->p, rest = l->p - 1 - l->r;
    for (int i = 0; i < 2 * rest; i++) put_f(&x, 0);
    for (int i = 0; i <= l->r; i++) {
        put_f(&x, 0);
        put_f(&x, 1);
    }
    for (int i = 0; i < rest; i++) {
        put_iw(&x, 1);
        put_f(&x, 1);
    }
    for (int i = 0; i < m - l->p; i++) {
        if (x.f[0] < m) put_f(&x, 0);
        put_b(&x, 1);
        put_f(&x, 1);
        put_b(&x, 0);
    }
    dualpipe_v_end(&x);
}

typedef enum cut { ONE, MANY, VEE } cut;

/* Every schedule idles (p-1) / (k v m + p-1) of the time, if it has enough micro-batches. k = 3:
 * the last rank begins p-1 F late, and W fills every other gap; no schedule can do better. k = 1:
 * p-1 times F and B are lost. k = 0: steps overlap, nothing is. */
static const struct schedule {
    const char *name;
    cut cut;
    void (*emit)(list *);
    const char *idle;
    int k, least_p, less; /* holds from m = least_p p - less on */
    bool multiple;        /* of p */
} schedules[] = {{"gpipe", ONE, breadth_first, "(p-1)/(m+p-1)", 1, 0, 0, false},
                 {"1f1b", ONE, interleaved, "(p-1)/(m+p-1)", 1, 0, 0, false},
                 {"interleaved", MANY, interleaved, "(p-1)/(vm+p-1)", 1, 1, 0, true},
                 {"breadth-first", MANY, breadth_first, "(p-1)/(vm+p-1)", 1, 1, 0, false},
                 {"zb-h1", ONE, zb_h1, "(p-1)/(3m+p-1)", 3, 1, 0, false},
                 {"zb-h2", ONE, zb_h2, "(p-1)/(3m+p-1)", 3, 2, 1, false},
                 {"zb-v", VEE, zb_v, "(p-1)/(6m+p-1)", 3, 2, 1, false},
                 {"dualpipe-v", VEE, dualpipe_v, "(p-1)/(6m+p-1)", 3, 2, 0, false},
                 {"2bw", ONE, two_buffered_weights, "0", 0, 1, 0, false}};
enum { N_SCHEDULE = sizeof schedules / sizeof *schedules };

const char *ll_pipeline_name(int i)
{
    return i >= 0 && i < N_SCHEDULE ? schedules[i].name : NULL;
}

int ll_pipeline_stages(const char *name)
{
    for (int i = 0; i < N_SCHEDULE; i++)
        if (!strcmp(name, schedules[i].name)) return schedules[i].cut == ONE ? 1 : 2;
    return 1;
}

double ll_pipeline_formula(const char *name, int n_rank, int n_stage, int n_micro,
                           const char **text)
{
    if (text) *text = NULL;
    for (const struct schedule *s = schedules; s < schedules + N_SCHEDULE; s++) {
        if (strcmp(name, s->name) != 0) continue;
        if (s->k != 1 || n_stage > n_rank) {
            if (n_micro < s->least_p * n_rank - s->less) break;
            if (s->multiple && n_micro % n_rank) break;
        }
        if (text) *text = s->idle;
        if (!s->k) return 0;
        return (n_rank - 1.0) / ((double)s->k * (n_stage / n_rank) * n_micro + n_rank - 1);
    }
    return NAN;
}

const char *ll_action_text(ll_action a, char out[LL_ACTION_TEXT])
{
    snprintf(out, LL_ACTION_TEXT, "%c%d.%d%s", "FBIW"[a.kind], a.micro, a.stage,
             a.before ? "-" : "");
    return out;
}

ll_err ll_pipeline_sizes(int n_rank, int n_stage, int n_micro)
{
    CHECK(n_rank >= 1 && n_rank <= LL_PIPELINE_RANKS, LL_E_ARG,
          "a pipeline of %d ranks: 1 to %d will do", n_rank, LL_PIPELINE_RANKS);
    CHECK(n_micro >= 1 && n_micro <= LL_PIPELINE_MICROS, LL_E_ARG,
          "%d micro-batches: 1 to %d will do", n_micro, LL_PIPELINE_MICROS);
    CHECK(n_stage >= 1 && n_stage <= n_rank * LL_PIPELINE_PER_RANK, LL_E_ARG,
          "%d stages on %d ranks: 1 to %d will do", n_stage, n_rank, n_rank * LL_PIPELINE_PER_RANK);
    CHECK((int64_t)n_stage * n_micro <= LL_PIPELINE_CELLS, LL_E_ARG,
          "%d stages of %d micro-batches: a product of at most %d will do", n_stage, n_micro,
          LL_PIPELINE_CELLS);
    return LL_OK;
}

static ll_err check_cut(const struct schedule *s, int n_rank, int n_stage)
{
    switch (s->cut) {
    case ONE:
        CHECK(n_stage == n_rank, LL_E_ARG,
              "schedule %s has a stage a rank: %d stages on %d ranks; %d would do", s->name,
              n_stage, n_rank, n_rank);
        break;
    case MANY:
        CHECK(
            n_stage % n_rank == 0, LL_E_ARG,
            "schedule %s has as many stages on each rank: %d stages on %d ranks; %d or %d would do",
            s->name, n_stage, n_rank, (n_stage / n_rank + (n_stage < n_rank)) * n_rank,
            (n_stage / n_rank + 1 + (n_stage < n_rank)) * n_rank);
        break;
    case VEE:
        CHECK(n_stage == 2 * n_rank, LL_E_ARG,
              "schedule %s has two stages a rank: %d stages on %d ranks; %d would do", s->name,
              n_stage, n_rank, 2 * n_rank);
        break;
    }
    return LL_OK;
}

const ll_pipeline *ll_pipeline_keep(ll_arena *arena, ll_pipeline p)
{
    for (int r = 0; r < p.n_rank; r++)
        for (int k = 0; k < p.n_action[r]; k++) p.overlaps |= p.actions[r][k].before;
    return (const ll_pipeline *)ll_arena_copy(arena, &p, sizeof p);
}

static ll_err find(const char *name, const struct schedule **out)
{
    ll_near near = {.word = name};
    LL_EACH (const struct schedule, s, schedules, N_SCHEDULE)
        if (ll_near_try(&near, s->name)) return *out = s, LL_OK;
    FAIL(LL_E_ARG, "no pipeline schedule %.60s%s; there are:%s", name, ll_near_hint(&near),
         near.known);
}

ll_err ll_pipeline_make(ll_arena *arena, const char *name, int n_rank, int n_stage, int n_micro,
                        const ll_pipeline **out)
{
    const struct schedule *s;
    TRY(find(name, &s));
    TRY(ll_pipeline_sizes(n_rank, n_stage, n_micro));
    TRY(check_cut(s, n_rank, n_stage));
    int *rank_of = LL_NEW_ARRAY(arena, int, n_stage), *n_action = LL_NEW_ARRAY(arena, int, n_rank);
    const ll_action **actions = LL_NEW_ARRAY(arena, const ll_action *, n_rank);
    for (int i = 0; i < n_stage; i++)
        rank_of[i] = s->cut == VEE && i >= n_rank ? n_stage - 1 - i : i % n_rank;
    for (int r = 0; r < n_rank; r++) {
        list l = {.p = n_rank, .m = n_micro, .v = n_stage / n_rank, .r = r};
        l.capacity = 3 * l.v * l.m;
        l.actions = LL_NEW_ARRAY(arena, ll_action, l.capacity);
        s->emit(&l);
        n_action[r] = l.n;
        actions[r] = l.actions;
    }
    *out = ll_pipeline_keep(
        arena, (ll_pipeline){s->name, n_rank, n_stage, n_micro, rank_of, n_action, actions});
    return LL_OK;
}
