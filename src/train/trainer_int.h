/* trainer_int.h: what a training run holds, for the files that open it and take its steps. */
#pragma once
#include "base/process.h"
#include "base/waits.h"
#include "comm/job.h"
#include "train/buddy.h"
#include "replicas/loose.h"
#include "train/saver.h"
#include "weights/checkpoint.h"
#include "train/events.h"
#include "train/trace.h"
#include "train/trainer.h"

#include <signal.h>

enum { RECENT = 1 << 16 }; /* steps whose time and loss are remembered */

typedef struct trainer {
    const ll_run *r;
    const ll_train_opts *opts;
    ll_train_report *report;
    ll_run own;            /* of this replica; the run itself where there is one */
    ll_loose *loose;       /* NULL: there are none that part */
    int64_t until;         /* the step after which this phase of the run ends */
    int64_t sent, counted; /* bytes between replicas: up to now, and to the last line of metrics */
    ll_comm *comm;         /* NULL: alone */
    bool lead;             /* alone, or rank 0 */
    ll_arena *arena;
    ll_dataset *data;
    ll_graph *g;
    ll_session *s;
    ll_evaluator *eval;
    ll_loader *loader;
    ll_metrics *metrics, *timing;
    ll_events *events;
    ll_buddy *buddy; /* NULL: no state is kept in memory */
    ll_saver *saver;
    ll_goodput good, past; /* past: of the phase before (train_phases) */
    double suspended;      /* seconds of it that are counted */
    double told_stops;     /* of this rank's, that others have been told of */
    double held_up;        /* seconds that others were stopped for longer than this one since */
    double wall;           /* that had passed when this start was opened */
    bool writing;          /* some rank's thread writes, as agreed */
    ll_tracer *tracer;     /* NULL: nothing is traced */
    int64_t steps, first, epoch_steps;
    int64_t trace_first, trace_last; /* steps, 1 is the first */
    double *times, *losses, *waited; /* [RECENT], of step i at (i - first) % RECENT */
    ll_waits *waits; /* for cores that others have; NULL: not known, or ranks share theirs */
    double began;
    ll_core_time cores;  /* then, or when the first step was predicted */
    double flops;        /* of a step, all ranks together */
    double model, made;  /* of products: the model's, and as kernels make them */
    int folder;          /* open and locked; -1: not yet */
    bool goes_on;        /* from a state of before */
    bool in_memory;      /* which memory alone has, not the disk */
    const char *from;    /* of a start that is not the job's first: where that was found */
    const char *kept;    /* of the state in memory, for people, or NULL */
    bool revalidates;    /* resumed, and validation is by other files than it was */
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
    double norm;         /* the usual one of gradients; 0: not known yet */
    int64_t norm_from;   /* the step that it is known since */
    bool fed;            /* the next step's batch is set already */
    ll_error unfed;      /* why it cannot be; code LL_OK: it can */
    bool served;         /* replicas take shares of batches (server.h) */
    /* Where a pipeline's steps overlap: the last step, of which results are to come; whether there
     * is one; what ranks are asking each other meanwhile. */
    ll_train_step held;
    bool holds;
    int32_t heard[2];
    ll_request *hearing; /* NULL: nothing */
    double sums[3];      /* of those: losses, norms and steps since they were last told */
    double told;         /* when */
    double from_s;       /* when what is useful began, less what was lost to data by then */
} trainer;

/* Everything that a run needs, in the order in which it may be refused. */
ll_err ll_trainer_open(trainer *t);
/* alone: the others will not come to close what is shared. */
void ll_trainer_close(trainer *t, bool alone);
/* A later start of its job? */
static inline bool ll_trainer_is_restart(const trainer *t)
{
    return t->opts->start && t->opts->start->number > 0;
}
static inline const char *ll_trainer_file(const trainer *t, const char *name)
{
    return ll_arena_printf(t->arena, "%s/%s", t->r->out, name);
}
/* What a checkpoint says of the run that made it, and one that goes on from it must agree in. */
enum { LL_TRAINER_META = 15 };
int ll_trainer_meta(const trainer *t, ll_arena *a, ll_st_pair out[LL_TRAINER_META]);
/* A clock that stands still while the job is suspended; and what it has not counted is noted. */
static inline double ll_trainer_awake(void)
{
    return ll_now() - ll_process_stopped();
}
void ll_trainer_count_wall(trainer *t);
/* The way to the first step is time lost. */
void ll_trainer_count_start(trainer *t);
/* The usual norm of gradients, as checkpoints carry it: it decides what later steps do. */
const char *ll_trainer_norm(const trainer *t, char out[17]);
/* Tensors of a file become the session's; the step stays what it is. */
ll_err ll_trainer_take(trainer *t, const ll_st_file *f);
/* ---- steps (trainer_loop.c); collective ---- */
extern volatile sig_atomic_t ll_trainer_caught; /* the signal that this rank has got, or 0 */
ll_err ll_trainer_loop(trainer *t);
ll_err ll_trainer_ask(void *trainer, ll_err mine, bool *stop); /* has any got one? As an ll_stop. */
/* ---- keeping the state (trainer_save.c); collective ---- */
/* To whoever watches. */
static inline void ll_trainer_tell(const trainer *t, const char *text)
{
    if (t->lead && t->opts->watch.note) t->opts->watch.note(t->opts->watch.context, text);
}
#define LL_TELL(t, ...) ll_trainer_tell(t, ll_arena_printf((t)->arena, __VA_ARGS__))
/* What came of a checkpoint that was under way: a run goes on without one that cannot be made. */
ll_err ll_trainer_saved(trainer *t, ll_err rc);
ll_err ll_trainer_save(trainer *t, int64_t done, bool last); /* last: it must, and is waited for */
ll_err ll_trainer_save_last(trainer *t, int64_t done);       /* a full disk is given a minute */
/* After a failure, which stays the error. */
void ll_trainer_save_amid(trainer *t, int64_t done, const char *what_failed);
ll_err ll_trainer_keep_best(const trainer *t, int64_t done); /* rank 0's */
ll_err ll_trainer_copy(trainer *t, int64_t done);            /* to memory */
ll_err ll_trainer_roll_back(trainer *t, int64_t done);       /* to the newest checkpoint */
/* For the report that names a rank which the others wait for. */
static inline void ll_trainer_doing(const trainer *t, const char *what)
{
    if (t->comm) ll_comm_doing(t->comm, what);
}
/* ---- what metrics, timing and events hold (trainer_notes.c) ---- */
static inline bool ll_trainer_log_due(const trainer *t, int64_t done)
{
    return done % t->r->train.log_every == 0 || done == t->steps;
}
ll_err ll_trainer_record(trainer *t, const ll_train_step *s);
ll_err ll_trainer_note_score(trainer *t, int64_t done, const ll_score *score);
/* ---- validation (trainer_validate.c); collective ---- */
static inline bool ll_trainer_due(int64_t done, int64_t every, int64_t otherwise)
{
    return done % (every ? every : otherwise) == 0;
}
static inline bool ll_trainer_validation_due(const trainer *t, int64_t done)
{
    return done >= t->steps || ll_trainer_due(done, t->r->train.eval_every, t->epoch_steps);
}
ll_err ll_trainer_validate(trainer *t, int64_t done, bool note, const ll_stop *stop);
ll_err ll_trainer_catch_up(trainer *t, const ll_stop *stop);
/* ---- memory (trainer_memory.c); collective ---- */
ll_err ll_trainer_plan_memory(trainer *t);
ll_err ll_trainer_measure_memory(trainer *t);
