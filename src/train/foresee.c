/* foresee.c: kernels as rehearsed, links as measured, and the step that they add up to. */
#include "train/foresee.h"

#include "base/stats.h"
#include "run/ranks.h"
#include "run/setup.h"
#include "train/rehearse.h"
#include "tune/tune.h"

#include <unistd.h>

typedef struct foresight {
    const ll_session *s;
    ll_rehearsal how;
    ll_rehearsed of;
    bool far; /* ranks are on several nodes: messages are under way while kernels run */
    ll_link_model links;
} foresight;

/* Between hosts by the steps of the algorithm that will be taken, over the links as they were
 * measured, which takes too long for what it would tell within one. */
static double talk(const foresight *f, int i)
{
    const ll_instr *x = &f->s->p->instrs[i];
    const ll_transfer *t = f->s->e->instrs[i].transfer;
    const ll_link_model *m = &f->links;
    double bytes = 0;
    if (!x->collective || x->collective == LL_RECV) return 0;
    for (int o = 0; o < x->n_in; o++)
        bytes += ll_collective_sent(&f->s->cut->place->mesh, x->collective, x->attrs[o],
                                    &f->s->p->slots[x->in[o]].type);
    if (!f->far) return 10e-6 + 2 * bytes * f->of.byte_s; /* they copy to and from each other */
    double packed = t->packing ? 2 * bytes * m->kappa : 0;
    ll_coll_spec spec = t->call.spec;
    const ll_algo *algo;
    size_t elem = ll_dtype_bytes(t->call.dtype);
    spec.size = ll_comm_size(t->c);
    spec.node = ll_comm_nodes(t->c);
    if (!t->call.sched && !t->codec && !t->subsets &&
        ll_choose(ll_comm_table(t->c), &spec, elem, ll_comm_has_window(t->c),
                  ll_comm_options(t->c)->canonical, &algo, &spec.segment) == LL_OK) {
        double s = ll_tune_predict(m, &spec, algo, elem, ll_comm_window_bytes(t->c));
        if (s > 0) return s + packed;
    }
    if (t->codec) { /* numbers to codes and back; what they are in fewer bytes, or as many */
        packed += 2 * bytes * f->of.byte_s;
        (void)ll_codec_estimate(ll_codec_asked(f->s->opts.compress), spec.count, spec.size, &bytes);
    }
    return m->alpha[f->far] + bytes * m->beta[f->far] + packed;
}

/* Instructions one after another; communication between nodes on a clock of its own. Where ranks
 * did not rehearse together a collective begins when the last of them comes to it. */
static ll_err foresee_plain(const foresight *f, double *seconds)
{
    const ll_program *p = f->s->p;
    LL_OWN(ll_arena) arena = ll_arena_new();
    double *ends = LL_NEW_ARRAY(arena, double, p->n_instr + 1), now = 0, talked = 0;
    int rounds = ll_program_rounds(p);
    for (int s = LL_MICRO; s <= LL_UPDATE; s++)
        for (int k = s == LL_MICRO ? 0 : rounds - 1; k < rounds; k++)
            for (int i = s ? p->end[s - 1] : 0; i < p->end[s]; i++) {
                const ll_instr *x = &p->instrs[i];
                const ll_transfer *t = f->s->e->instrs[i].transfer;
                if (s == LL_MICRO && x->last && k + 1 < rounds) continue;
                double cost = f->of.seconds[i];
                if (f->s->cut->place && !f->of.ran[i]) cost += talk(f, i);
                if (x->wait) now = fmax(now, ends[x->pair]);
                bool beside = x->collective && f->far && !f->of.ran[i] && !(t && t->codec);
                double *clock = beside ? &talked : &now;
                ends[i] = fmax(now, *clock);
                if (t && !f->of.together) TRY(ll_ranks_max(t->c, &ends[i]));
                ends[i] += cost;
                *clock = clock == &now ? now + cost : ends[i];
            }
    *seconds = fmax(now, talked);
    return LL_OK;
}

/* A rank updates when its own actions are done, or where others tell it something first (parts of
 * the gradient's norm) when all are. Then it begins the next step, whoever is not done: from its
 * first action to the next step's is what a step takes. */
static ll_err finish(const foresight *f, ll_comm *c, const ll_pipeline_times *t, double after,
                     double *seconds)
{
    const ll_program *p = f->s->p;
    const ll_pipeline *l = f->s->cut->plan->pipeline;
    int r = p->pipe->n_action ? f->s->cut->plan->rank_of[p->pipe->actions[0].stage] : 0;
    bool waits = l->overlaps || !l->n_action[r];
    for (int i = p->end[LL_MICRO]; i < p->n_instr; i++)
        waits |= p->instrs[i].collective == LL_RECV && !f->s->e->instrs[i].late;
    double done = waits ? t->makespan : t->end[r][l->n_action[r] - 1];
    *seconds = done + after - (l->overlaps || !l->n_action[r] ? 0 : t->start[r][0]);
    return ll_ranks_max(c, seconds);
}

/* Actions as the schedule has them; what is no action's comes after. */
static ll_err foresee_pipe(const foresight *f, ll_comm *c, double *seconds)
{
    const ll_program *p = f->s->p;
    const ll_pipe_plan *plan = f->s->cut->plan;
    int n = plan->pipeline->n_stage,
        copies = f->s->cut->place->mesh.n_rank / plan->pipeline->n_rank;
    LL_OWN(ll_arena) arena = ll_arena_new();
    double *t[3], *send = LL_NEW_ARRAY(arena, double, plan->costs.n_edge + n), after = 0, busy = 0;
    for (int k = 0; k < 3; k++) t[k] = LL_NEW_ARRAY(arena, double, n);
    for (int i = 0; i < p->n_instr; i++) {
        const ll_instr *x = &p->instrs[i];
        double s = f->of.seconds[i];
        if (!f->far || x->collective != LL_SEND) s += talk(f, i);
        if (x->action > 0 && x->action <= p->pipe->n_action) {
            const ll_action *a = &p->pipe->actions[x->action - 1];
            int kind = a->kind == LL_ACT_F ? 0 : a->kind == LL_ACT_W ? 2 : 1;
            t[kind][a->stage] += s / f->how.crowd / p->n_micro / copies, busy += s;
        } else
            after += s;
    }
    for (int k = 0; f->far && k < plan->costs.n_edge; k++) /* of a rank, its part of the batch */
        send[k] =
            f->links.alpha[1] + plan->costs.send[k] / LL_FLOPS_PER_BYTE / copies * f->links.beta[1];
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < n; i++) TRY(ll_ranks_sum(c, &t[k][i]));
    ll_pipeline_costs costs = plan->costs;
    ll_pipeline_times times;
    costs.f = t[0], costs.i = t[1], costs.w = t[2], costs.send = send;
    costs.in_turn = true;
    TRY(ll_pipeline_simulate(arena, plan->pipeline, &costs, &times));
    TRY(finish(f, c, &times, after, seconds));
    TRY(ll_ranks_sum(c, &busy)); /* of cores that ranks share none idles for long */
    *seconds = fmax(*seconds, busy / f->s->cut->place->mesh.n_rank + after);
    return ll_ranks_max(c, seconds);
}

static double ranks_here(const ll_comm *c)
{
    return c ? (double)ll_comm_size(c) / ll_ranks_nodes(c) : 1;
}

double ll_threads_a_core(const ll_session *s, const ll_comm *c)
{
    return ranks_here(c) * s->p->threads / (double)sysconf(_SC_NPROCESSORS_ONLN);
}

ll_err ll_foresee_step(const ll_session *s, ll_comm *c, int64_t steps, ll_waits *waits,
                       ll_ahead *out, const char **without)
{
    foresight f = {
        .s = s,
        .how = {.most = (double)steps, .crowd = fmax(1, ll_threads_a_core(s, c)), .waits = waits},
        .far = c && ll_ranks_nodes(c) > 1};
    double *seconds = &out->seconds;
    *out = (ll_ahead){.seconds = NAN};
    *without = "collectives of several devices are not predicted";
    if (s->machine->device && s->cut->place) return LL_OK;
    *without = s->opts.exact && !s->wide ? "steps that must be repeated with all bits" : NULL;
    if (s->machine->rehearse) return ll_rehearse_device(s->e, seconds);
    LL_OWN(ll_arena) arena = ll_arena_new();
    if (f.far) TRY(ll_tune_links(c, &f.links));
    for (int i = 0; f.far && s->cut->place && i < s->p->n_instr; i++) f.how.talk_s += talk(&f, i);
    TRY(ll_rehearse(s, c, &f.how, arena, &f.of));
    if (s->cut->plan && s->cut->plan->pipeline && !f.of.together)
        return foresee_pipe(&f, c, seconds);
    TRY(foresee_plain(&f, seconds));
    out->spare = f.of.spare * *seconds;
    return ll_ranks_max(c, seconds);
}

/* Samples are made beside the step by a thread, which costs nothing where a core is free, or for as
 * long as one has nothing else to do. */
ll_err ll_foresee_data(const ll_run *r, const ll_dataset *d, const ll_loader *l,
                       const ll_session *s, ll_comm *c, ll_ahead *a)
{
    enum { READS = 5 };
    LL_OWN(ll_arena) arena = ll_arena_new();
    const ll_data_info *info = ll_dataset_info(d);
    const ll_sampling how = ll_run_sampling(r);
    int64_t first, count, micro = ll_run_micro_batches(r);
    void *out[LL_MAX_FIELDS] = {0};
    double times[READS], bytes = 0, start = ll_now();
    int n = 0;
    if (isnan(a->seconds)) return LL_OK;
    ll_session_rows(s, &first, &count);
    if (!count) first = 0, count = r->train.batch / micro;
    for (int i = 0; i < info->n_field; i++) {
        out[i] = ll_arena_alloc(arena, (size_t)count * info->field_bytes[i]);
        bytes += (double)(count * micro) * (double)info->field_bytes[i];
    }
    ll_err rc = ll_dataset_read(d, &how, first, count, out); /* from the disk */
    for (; rc == LL_OK && n < READS && (n < 2 || ll_now() - start < 0.5); n++) {
        double from = ll_now();
        first += r->train.batch; /* no cache has the next step's either */
        rc = ll_dataset_read(d, &how, first, count, out);
        times[n] = (ll_now() - from) * (double)micro;
    }
    TRY(ll_ranks_agree(c, rc));
    double made = ll_typical(times, n) / ll_loader_threads(l);
    bool busy = !s->machine->device && ll_threads_a_core(s, c) >= 1;
    a->seconds = busy ? a->seconds + fmax(0, made - a->spare) : fmax(a->seconds, made);
    if (!s->machine->device) a->seconds += 2 * bytes / 1e10; /* into the session */
    return ll_ranks_max(c, &a->seconds);
}

ll_err ll_foresee_others(const ll_session *s, ll_comm *c, ll_core_time since, double *share)
{
    ll_core_time now = ll_core_time_now();
    double here = ranks_here(c), nodes = c ? ll_ranks_nodes(c) : 1;
    double used = ((now.all - since.all) / here - (now.own - since.own)) / (now.when - since.when);
    TRY(ll_ranks_sum(c, &used));
    *share = s->machine->device ? NAN : ll_others_share(used / nodes, here * s->p->threads);
    return LL_OK;
}
