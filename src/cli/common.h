/* common.h: what several commands do: runs from the command line, JSON to standard output. */
#pragma once
#include "cli/args.h"
#include "cli/json.h"
#include "cli/launch.h"
#include "weights/checkpoint.h"
#include "train/trainer.h"

/* Reads a run, or, with models, the name of a model. */
ll_err ll_cli_load(const char *what, bool models, ll_run **out);
/* And applies the settings, and finishes it. */
ll_err ll_cli_run(const char *what, const ll_words *set, bool models, ll_run **out);
/* The same for commands that know one mesh alone: replicas are refused. */
ll_err ll_cli_run_one(const char *what, const ll_words *set, bool models, ll_run **out);
/* Starts the ranks of -n (0: not given) where this process is not one of them, and opens their
 * communicator. A mesh that the run cannot be cut over is refused before. care: see launch.h. */
ll_err ll_cli_ranks(const ll_run *r, int64_t ranks, const ll_care *care, ll_comm **out);
/* How many threads a rank of so many would have here, as train would. */
int ll_cli_threads(const ll_run *r, int64_t ranks);
/* runs/NAME, runs/NAME-2, ...: the first that is new or, with newest, the last that is there. */
const char *ll_cli_numbered(ll_run *r, bool newest);
bool ll_cli_began(const char *folder);     /* a run there has left checkpoints or metrics */
bool ll_cli_holds_run(const char *folder); /* or what one leaves: checkpoints, metrics */
/* The folder that a file is in, with its slash: "./" where its path has none. */
const char *ll_cli_above(ll_arena *a, const char *path);
/* Refuses a file that is there already and lies in a run's folder, or in its checkpoints. */
ll_err ll_cli_spare(const char *path);
/* Prints a JSON object or list on standard output and lets go of it. */
ll_err ll_cli_json(json_t *value);
/* Shows how far ll_calibrate.tell says it is; context: the caller's ll_progress *, first NULL. */
void ll_cli_calibrating(void *context, int64_t window, int64_t of, double each_s);
json_t *ll_cli_shape(const ll_shape *s);
/* Numbers of inputs of a kind; tensors: how many these are; may be NULL. */
int64_t ll_cli_numbers(const ll_graph *g, ll_kind kind, int64_t *tensors);

/* A trained model: a run folder, or a run whose newest folder it is, and one of its checkpoints
 * (NULL: the newest), or, init not NULL, weights of anybody's (weights_load.h), which are told of
 * on standard error; for evaluation. Options of commands begin with which it is. */
typedef struct ll_trained_opts {
    const char *folder, *checkpoint, *init;
    ll_words set;
    bool json;
} ll_trained_opts;
#define LL_TRAINED_ARGS                                                                            \
    {"--checkpoint", LL_OPT(ll_trained_opts, checkpoint), "FILE",                                  \
     "use this checkpoint instead of the run's newest"},                                           \
        {"--init", LL_OPT(ll_trained_opts, init), "FILE",                                          \
         "use weights from another framework instead of a checkpoint (as for train)"},             \
    {                                                                                              \
        "--set|-s", LL_OPT(ll_trained_opts, set), "KEY=VALUE",                                     \
            "override a setting of the run, such as data.name=kjv"                                 \
    }
#define LL_TRAINED_JSON                                                                            \
    {                                                                                              \
        "--json", LL_OPT(ll_trained_opts, json), NULL, "print one JSON object to standard output"  \
    }
typedef struct ll_trained {
    ll_run *run;
    ll_graph *g;
    ll_session *s;
    int64_t step;
} ll_trained;
#define LL_TRAINED __attribute__((cleanup(ll_cli_trained_close))) ll_trained
/* t begins as zeros; also after a failure what was opened is t's. */
ll_err ll_cli_trained(const ll_trained_opts *o, ll_trained *t);
void ll_cli_trained_close(ll_trained *t);
/* Its parts: the run; how its sessions are opened; their parameters. */
ll_err ll_cli_trained_run(const ll_trained_opts *o, ll_run **out);
ll_session_opts ll_cli_trained_session(const ll_run *r, ll_comm *c, const char *mesh);
/* The checkpoint that is meant; NULL: the folder's newest. */
ll_err ll_cli_checkpoint(const char *folder, const char *checkpoint, ll_st_file **out);
ll_err ll_cli_trained_load(const ll_run *r, const ll_trained_opts *o, ll_session *s, int64_t *step);
