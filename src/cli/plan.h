/* plan.h: the parts of the command plan. */
#pragma once
#include "cli/args.h"
#include "plan/published.h"
#include "plan/search.h"
#include "run/run.h"

typedef struct ll_plan_opts {
    const char *run, *published, *mesh, *report, *trace;
    ll_words clusters, set, check;
    int64_t ranks, top, tokens;
    bool json, large;
} ll_plan_opts;

ll_err ll_plan_published(const ll_plan_opts *o);
ll_err ll_plan_check(const ll_plan_opts *o);
ll_err ll_plan_run(const ll_plan_opts *o);
/* Models that are no transformers, and all on this machine: compiled and replayed. */
ll_err ll_plan_graph(const ll_plan_opts *o, const ll_run *r, const ll_cluster *c);
/* Was a setting said on the command line? */
bool ll_plan_said(const ll_words *set, const char *key);
/* What changes a step and is not counted, in the file or a setting, and its value that is; ends
 * with NULL. The refusal, by plans of `what`. */
typedef struct ll_uncounted {
    const char *key, *without;
    bool set;
} ll_uncounted;
ll_err ll_plan_refuse(const ll_uncounted *of, const char *what);
/* --parallel auto: the quickest mesh of so many ranks of this machine becomes the run's, with the
 * ZeRO that it has. */
ll_err ll_plan_choose(ll_run *r, int64_t ranks);
/* Tells what would fit a machine with so many bytes for each rank. */
void ll_plan_remedy(const ll_run *r, int64_t ranks, double room);
extern const ll_images ll_plan_images;
/* Tells whose kernels a prediction is of. */
void ll_plan_kernels(const ll_cluster *c);
/* As ll_cluster_load, and "this": this machine, measured once and then kept in a file. */
ll_err ll_plan_cluster(const char *what, ll_cluster **out);
/* ---- pictures of a search ---- */
/* Timeline, memory, roofline, scaling, time against cost: one HTML file. */
ll_err ll_plan_report(const char *path, const ll_search *s, const ll_found *f, int top,
                      double tokens);
/* The simulated pipeline as a Chrome trace. */
ll_err ll_plan_trace(const char *path, const ll_search *s, const ll_candidate *c);
