/* pipeline_repeat.c: a schedule whose steps follow each other rank by rank, written out for some of
 * them. What is then one
 * long schedule is checked and timed as any other; its steps' borders are where a rank leaves one
 * program run and begins the next. */
#include "sched/pipeline_int.h"

/* A rank's list; returns its length. Step n_batch has what is left over. */
static int write_out(const ll_pipeline *p, int r, int n_batch, ll_action *list, int *first,
                     int *step)
{
    int n = 0;
    for (int b = 0; b <= n_batch; b++) {
        first[b] = n;
        for (int k = 0; k < p->n_action[r]; k++) {
            ll_action a = p->actions[r][k];
            int of = b - a.before;
            if (of < 0 || of >= n_batch) continue;
            a.micro += of * p->n_micro;
            a.before = 0;
            step[n] = b;
            list[n++] = a;
        }
    }
    return first[n_batch + 1] = n;
}

static ll_err check_actions(const ll_pipeline *p)
{
    CHECK(p->n_stage == p->n_rank || !p->overlaps, LL_E_ARG,
          "a schedule whose steps overlap has a stage a rank: %d stages on %d ranks", p->n_stage,
          p->n_rank);
    for (int r = 0; r < p->n_rank; r++)
        LL_EACH (const ll_action, a, p->actions[r], p->n_action[r]) {
            const char *text = LL_ACTION(*a);
            CHECK(a->kind != LL_ACT_F || !a->before, LL_E_ARG,
                  "rank %d cannot do %s: forward passes are of the step's own batch", r, text);
            CHECK(a->micro >= 0 && a->micro < p->n_micro, LL_E_ARG,
                  "rank %d cannot do %s: there are micro-batches 0 to %d", r, text, p->n_micro - 1);
        }
    return LL_OK;
}

ll_err ll_pipeline_repeat(ll_arena *arena, const ll_pipeline *p, int n_batch,
                          const ll_repeated **out)
{
    ll_repeated *x = LL_NEW(arena, ll_repeated);
    TRY(check_actions(p));
    TRY(ll_pipeline_sizes(p->n_rank, p->n_stage, p->n_micro));
    int *n_action;
    const ll_action **actions;
    LL_ARRAYS(arena, p->n_rank, n_action, actions, x->first, x->step);
    x->p = *p;
    x->p.overlaps = false;
    x->p.n_micro = n_batch * p->n_micro;
    x->p.n_action = n_action;
    x->p.actions = actions;
    x->n_step = n_batch + 1;
    for (int r = 0; r < p->n_rank; r++) {
        ll_action *list = LL_NEW_ARRAY(arena, ll_action, n_batch * p->n_action[r] + 1);
        actions[r] = list;
        x->first[r] = LL_NEW_ARRAY(arena, int, n_batch + 2);
        x->step[r] = LL_NEW_ARRAY(arena, int, n_batch * p->n_action[r] + 1);
        n_action[r] = write_out(p, r, n_batch, list, x->first[r], x->step[r]);
    }
    *out = x;
    return LL_OK;
}
