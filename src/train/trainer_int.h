/* trainer_int.h: what a training run holds, for the files that open it and take its steps. */
#pragma once
#include "base/text.h"
#include "comm/job.h"
#include "train/checkpoint.h"
#include "train/events.h"
#include "train/metrics.h"
#include "train/state.h"
#include "train/trace.h"
#include "train/trainer.h"

enum { RECENT = 1 << 16 }; /* steps whose time and loss are remembered */

typedef struct trainer {
    const ll_run *r;
    const ll_train_opts *opts;
    ll_train_report *report;
    ll_comm *comm; /* NULL: alone */
    bool lead;     /* alone, or rank 0 */
    ll_arena *arena;
    ll_dataset *data;
    ll_graph *g;
    ll_session *s;
    ll_evaluator *eval;
    ll_loader *loader;
    ll_metrics *metrics, *timing;
    ll_events *events;
    ll_tracer *tracer; /* NULL: nothing is traced */
    int64_t steps, first, epoch_steps;
    int64_t trace_first, trace_last; /* steps, 1 is the first */
    double *times, *losses;          /* [RECENT], of step i at (i - first) % RECENT */
    double began;
    double flops;        /* of a step, all ranks together */
    int folder;          /* open and locked; -1: not yet */
    const char *resumed; /* what a person should know of it, or NULL */
    const char *weights; /* those that it began with, or NULL */
    const char *doomed;  /* what goes when the first checkpoint is saved, or NULL */
    bool saved;          /* that one */
    int stop;            /* a signal that some rank has got, as agreed */
    bool owed;           /* a validation was cut short */
    bool scored;         /* the metrics have the validation of the step resumed after */
    double best;         /* figure of train.best so far, the smaller the better */
    int64_t since;       /* validations since */
    bool better;         /* the last one */
    bool fed;            /* the next step's batch is set already */
} trainer;

/* Everything that a run needs, in the order in which it may be refused. */
ll_err ll_trainer_open(trainer *t);
/* alone: the others will not come to close what is shared. */
void ll_trainer_close(trainer *t, bool alone);
const char *ll_trainer_file(const trainer *t, const char *name);
/* What a checkpoint says of the run that made it, and one that goes on from it must agree in. */
enum { LL_TRAINER_TRAIN = 4, LL_TRAINER_META = 6 }; /* from the first on: of section train */
int ll_trainer_meta(const trainer *t, ll_arena *a, ll_st_pair out[LL_TRAINER_META]);
/* For the report that names a rank which the others wait for. */
void ll_trainer_doing(const trainer *t, const char *what);
