/* plan.h: the parts of the command plan. */
#pragma once
#include "cli/args.h"
#include "cli/json.h"
#include "mesh/mesh.h"
#include "plan/published.h"
#include "plan/search.h"
#include "run/run.h"

typedef struct ll_plan_opts {
    const char *run, *published, *mesh, *report, *trace;
    ll_words clusters, set, check, folders; /* folders: as check, without the option */
    int64_t ranks, top, tokens;
    bool json, large;
} ll_plan_opts;

ll_err ll_plan_published(const ll_plan_opts *o);
ll_err ll_plan_check(const ll_plan_opts *o);
ll_err ll_plan_run(const ll_plan_opts *o);
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
/* What would fit a machine with so many bytes for each rank: "it would fit with -s ...". */
const char *ll_plan_remedy(const ll_run *r, int64_t ranks, double room);
ll_images ll_plan_images;
/* As ll_cluster_load, and "this": this machine, measured once and then kept in a file. */
ll_err ll_plan_cluster(const char *what, ll_cluster **out);

/* ---- plans as they are shown ---- */
/* 80 % of steps of a kind (ll_plan_spread) are from 1 / this to this times what is predicted. */
double ll_shown_spread(const ll_cluster *c, double step_s, const char *kind);

typedef struct ll_shown {
    const char *mesh, *schedule, *recompute; /* schedule "": there is no pipeline */
    const ll_layout_rule *layouts;           /* beside the run's own; NULL: none */
    int64_t micro_batch, n_micro;            /* samples that a rank takes at once; how often */
    int64_t together;                        /* train.micro_batch: of all ranks */
    int stages, zero;
    bool offload, fits;
    double step_s, spread;  /* 80 % lie between step_s / spread and step_s * spread */
    double model, hardware; /* FLOPs of a rank: of the model, and that are done */
    ll_lm_bytes bytes;
    double bubble, exposed_s, moved;
} ll_shown;
/* The best of some number of ranks. */
typedef struct ll_of_ranks {
    int64_t ranks;
    const char *mesh;
    double step_s;
} ll_of_ranks;

typedef struct ll_plan_results {
    const ll_plan_opts *o;
    const ll_run *run, *file; /* file: as it is, before any setting */
    const ll_cluster *cluster;
    double parameters;
    int64_t seq; /* tokens of a sample; 0: it has none */
    int tried;
    ll_shown *v; /* [n] the best first */
    int n;
    ll_of_ranks quickest; /* of all numbers of ranks that were looked at; ranks 0: none were */
    const char *scaling;  /* where fewer ranks are as quick: that, and what to do; NULL */
    ll_arena *arena;
} ll_plan_results;
/* Looks at divisors of the ranks that could be as quick as the best plan, and sets quickest and
 * scaling. best: of so many ranks one of the quickest ways that fit; false: there is none. */
void ll_plan_fewer(ll_plan_results *p, bool (*best)(const void *context, ll_of_ranks *out),
                   const void *context);
/* Models that are no transformers, and all on this machine: compiled and replayed. */
ll_err ll_plan_graph(ll_plan_results *p, const ll_mesh *m);
void ll_plan_table(const ll_plan_results *p);
json_t *ll_plan_json(const ll_plan_results *p, const ll_shown *s);
json_t *ll_plan_results_json(const ll_plan_results *p, json_t *plans, const char *bound);
/* Words with which train takes a plan: what was given, and what the file has otherwise. */
const char *ll_plan_words(const ll_plan_results *p, const ll_shown *s);
/* Where the best does not fit, least: bytes that do; more: what would, in words. */
ll_err ll_plan_check_fits(const ll_plan_results *p, double least, const char *more);
void ll_plan_tell_train(const ll_plan_results *p);         /* of the best */
const char *ll_plan_notes(const ll_shown *s, ll_arena *a); /* what has no column */
/* A word as a shell takes it. */
const char *ll_plan_word(const char *word, ll_arena *a);
/* What the bytes of plans are, and whose kernels. */
const char *ll_plan_about(const ll_cluster *c, ll_arena *a);
/* A cluster of GPUs that machine cuda is for: not Google's and AMD's chips, nor NVIDIA's before
 * Ampere. */
const char *ll_plan_machine(const ll_cluster *c);

/* ---- pictures of a search ---- */
/* Timeline, memory, roofline, scaling, time against cost: one HTML file. */
ll_err ll_plan_report(const char *path, const ll_plan_results *p, const ll_search *s,
                      const ll_candidate *best, double tokens);
/* The simulated pipeline as a Chrome trace. */
ll_err ll_plan_trace(const char *path, const ll_search *s, const ll_candidate *c);
