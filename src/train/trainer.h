/* trainer.h: the training loop of a run: data, steps, validation, checkpoints, metrics.
 *
 * What it tells as it goes reaches the caller through ll_train_events; it prints nothing itself. */
#pragma once
#include "infer/evaluate.h"
#include "train/goodput.h"
#include "run/ranks.h"
#include "replicas/server.h"
#include "train/trace.h"

/* Bytes of the rank with most. On a machine with devices tensors are in theirs. */
typedef struct ll_train_memory {
    double step;    /* of tensors those of the program that trains: what train.memory limits */
    double comm;    /* and buffers of communication */
    double tensors; /* of the programs, validation's too, and of communication: to the byte */
    double copies;  /* of the state: for a checkpoint that is being written, for replicas; and what
                     * sums see of other ranks' memory */
    double batches; /* samples read ahead */
    double data;    /* the dataset; the system may drop what is in files, and read it again */
    double rest;    /* program, libraries, and what they had before the run was opened; graphs */
    double aside;   /* besides: what lies in a file, or on a device in the host's memory */
    double wide; /* besides, for steps of exact sums made again; at the end of those there were */
    double planned; /* all of these, or on a device its tensors: before the first step */
    double used; /* as the system counts it; on a device all that its driver counts, at the end */
    double tensors_used; /* mapped and allocated for tensors */
    bool of_all;         /* used: by all processes of the device, for its driver tells no more */
} ll_train_memory;

typedef struct ll_train_start {
    const ll_run *run;
    const ll_data_info *data;
    const ll_session *session;
    const struct ll_train_report *report; /* what is known of it before the first step */
    int64_t steps, first_step;            /* first_step > 0: resumed */
    double flops;                         /* of a step, all ranks together */
    const char *note;    /* what a person should know, such as how bf16 is computed; or NULL */
    const char *resumed; /* the same of what was resumed; or NULL */
    const char *weights; /* which were read to begin with; or NULL */
    const char *kept;    /* of the state that is kept in memory; or NULL */
    const char *doomed;  /* what goes when the first checkpoint is saved; or NULL */
} ll_train_start;

typedef struct ll_train_step {
    int64_t step, steps; /* step: 1 for the first */
    double loss, grad_norm, lr, seconds;
    double samples_per_s, tokens_per_s;  /* tokens_per_s 0 for images */
    double gflops, made_gflops;          /* of products: the model's, and as kernels make them */
    int64_t gradient_bytes, dense_bytes; /* sent by rank 0 of compressed gradients, and those that
                                          * f32 takes; 0: none are compressed */
    double waited;     /* of seconds, those that rank 0 spent waiting for collectives */
    int64_t saturated; /* rank 0's numbers that were too large for 8-bit floats; -1: has none */
    bool apart;        /* loss and grad_norm are rank 0's replica's, not the mean */
} ll_train_step;

typedef struct ll_train_events {
    void *context; /* given to each; any of them may be NULL */
    void (*start)(void *context, const ll_train_start *s);
    void (*step)(void *context, const ll_train_step *s);
    void (*evaluated)(void *context, int64_t step, const ll_score *s);
    void (*timeline)(void *context, const ll_timeline *t);
    void (*note)(void *context, const char *text); /* what a person should know */
} ll_train_events;

typedef struct ll_train_opts {
    ll_comm *comm; /* NULL: this process alone */
    bool resume;
    const char *resume_from; /* a checkpoint; NULL: the run folder's newest */
    int slow_rank; /* an experiment: its steps take so many times as long; 1 or less: no */
    double slow;
    const char *replay;   /* a run's folder: replicas come to their server as they did; or NULL */
    const char *trace;    /* a Chrome trace of all ranks goes to this file; NULL: to none */
    const char *timeline; /* of a pipeline: the last traced step's picture; NULL: none */
    int64_t trace_first, trace_last; /* of these steps, 1 is the first; 0: three, after one */
    const struct ll_start *start;    /* which of a supervised job's (recovery.h); NULL: no such */
    ll_train_events watch;
} ll_train_opts;

typedef struct ll_train_report {
    bool out_of_patience; /* train.patience ended it */
    int64_t parameters;
    int64_t steps, first; /* steps done in all, and before this start */
    double train_loss;    /* mean over the last log_every steps, 65536 at most */
    ll_score val;
    double step_s; /* median of the last 65536; of replicas that meet every few, and of ranks that
                    * share cores, of means of a few */
    double own_s;  /* of those that had their cores, as many as n_own; NAN: too few had */
    int64_t n_own, n_timed;
    bool alone;           /* predicted_s is of cores that others leave alone */
    double predicted_s;   /* before the first step (foresee.h); NAN: not predicted */
    double exchange_s;    /* of it, exchanges of replicas in the mean */
    char unforeseen[256]; /* why, or what of a step that does not count; "": nothing */
    double others[2]; /* share of the cores that others had until then (NAN: not known), and on */
    double samples_per_s, tokens_per_s, seconds, first_step_s;
    double stale[LL_STALENESS]; /* changes left at a server, by how many had come since what they
                                 * are changes of; of all replicas */
    ll_train_memory memory;
    ll_goodput goodput;           /* rank 0's, of all starts of a job */
    int64_t skipped, rolled_back; /* steps whose gradient was too large (train.spike) */
    int64_t wide;                 /* steps of exact sums made again, with all bits */
    int64_t undone;               /* made again for their norm (parallel.post_validation) */
    int64_t unsaved;              /* checkpoints that could not be written */
    double save_waits;            /* seconds that steps waited for the one before */
    int ranks;
    char mesh[LL_MESH_TEXT];             /* "" for one rank */
    int64_t gradient_bytes, dense_bytes; /* of the last step, as in ll_train_step */
    int64_t replica_bytes;               /* rank 0's to other replicas, since this start */
    double bubble; /* of a pipeline's last traced step, for a timeline; NAN: none was drawn */
    int signal;    /* that stopped it before its end, or 0 */
} ll_train_report;

/* Trains a finished run; its folder is made. What an earlier run left there of steps that are
 * still to come goes: lines of metrics at once, checkpoints when the first new one is saved.
 * Runs that stop by SIGINT, SIGTERM or SIGUSR1 save and return LL_OK with the signal in the
 * report. Collective over opts->comm: a signal to any rank stops all of them after the same
 * step; watch is called on rank 0 alone, which also writes all but the tensors of checkpoints.
 * After a failure that befell this rank alone (comm/job.h) what is shared stays open, since the
 * others do not come to close it: end the job. */
ll_err ll_train(const ll_run *r, const ll_train_opts *opts, ll_train_report *out);
