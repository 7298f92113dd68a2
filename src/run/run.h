/* run.h: run files: what to train, on what, and how.
 *
 *     model: {name: gpt, layers: 4, width: 256}
 *     data:  {name: kjv}
 *     train: {batch: 8, steps: 2000, optimizer: adamw, lr: 1e-3}
 *     layout: {"*.mlp.fc.weight": [tensor, -]}
 *     out:   runs/my-gpt
 *
 * A run is made in three steps: read (a file, a bundled run by its name), changed (--set
 * train.batch=16), finished (what takes several keys to check). Every key is a row of one table
 * (run_keys.c), which gives its type, default, range and help; a model brings keys of its own, its
 * sizes; and keys of layout are patterns of values' names (pass/layouts.c). Errors name the file
 * and line, or the --set, the key, the value and what would be right. */
#pragma once
#include "base/arena.h"
#include "base/bundled.h"
#include "base/types.h"
#include "run/consistency.h"
#include "run/schedule.h"

typedef struct ll_run_model {
    const char *name;
    const char *file;                /* "": bundled, or the program's own; finished: absolute */
    const char *loss;                /* of an ONNX file; "": not said */
    const ll_model *def;             /* finished: the model of that name */
    ll_size sizes[LL_MAX_SIZES + 1]; /* finished: its sizes as set; ends with name NULL */
} ll_run_model;

typedef struct ll_run_data {
    const char *name;              /* "": by path and format; finished: set unless those are */
    const char *path;              /* "": none */
    const char *format;            /* "": as the name says */
    const char *val_path, *fields; /* "": none */
    const char *field;             /* jsonl */
    const char *tokenizer;         /* "": tokens of text are its bytes */
    double val_fraction;
    int64_t token_bytes; /* tokens; 0: by the files' names */
    int64_t samples;     /* synthetic */
    bool flip;
    int64_t crop;
    const char *image;                 /* "": as it is, or as the model has it; "H" or "HxW" */
    int64_t image_height, image_width; /* finished: of image; 0: it is empty */
    int64_t channels;                  /* 0: likewise */
    ll_numbers mean, deviation;
    double centre, jitter, mixup, cutmix;
    ll_numbers scale; /* none, or two */
    int64_t threads, fetch;
    const char *cache; /* "": none */
    double delay;
    const char *told; /* data.json of a run whose classes and columns hold; NULL: of what is read */
} ll_run_data;

#define LL_ROUNDINGS(X) X(none) X(int8) X(int4)
#define LL_ROUNDING_OF(name) LL_ROUNDING_##name,
typedef enum ll_rounding { LL_ROUNDINGS(LL_ROUNDING_OF) } ll_rounding;
const char *ll_rounding_name(ll_rounding r);
#define LL_SPIKE_ACTIONS(X) X(skip) X(rollback)
#define LL_SPIKE_OF(name) LL_SPIKE_##name,
typedef enum ll_spike_action { LL_SPIKE_ACTIONS(LL_SPIKE_OF) } ll_spike_action;
#define LL_KEPT_STATES(X) X(replicas) X(average)
#define LL_KEPT_OF(name) LL_KEPT_##name,
typedef enum ll_kept_state { LL_KEPT_STATES(LL_KEPT_OF) } ll_kept_state;

typedef struct ll_run_train {
    int64_t batch, micro_batch; /* micro_batch 0: the whole batch at once */
    int64_t steps, epochs;      /* see ll_run_steps */
    ll_optim optim;
    ll_schedule schedule;
    int64_t seed, threads;
    const char *init; /* weights to begin with; "": none (weights_load.h) */
    const char *init_map, *init_skip;
    int64_t prompt; /* vectors before the tokens (prompt tuning); 0: none */
    int64_t lora;   /* rows of adapters (pass/lora.h); 0: none */
    const char *lora_on, *base;
    ll_rounding quantize;    /* what products read weights as */
    const char *prune_steps; /* "A:B:K", or "": at the beginning */
    const char *prune;       /* none, or a rule (prune.h) */
    const char *teacher;     /* a run (teacher.h); "": none */
    double teacher_weight, temperature;
    const char *teacher_hidden; /* "h0=h2,h1=h5" */
    double hidden_weight;
    const char *machine; /* cpu or cuda */
    ll_precision precision;
    const char *conv, *workspace;
    const char *memory; /* that a rank's tensors may take; "": any */
    double memory_bytes;
    const char *offload; /* a folder, or host, for what has no room; "": nothing is laid aside */
    bool deterministic;  /* the same bits in every run on GPUs too */
    int64_t eval_every, eval_samples, save_every, keep, log_every;
    bool save_beside;
    bool delay;   /* gradients are of what parameters were a step before */
    double spike; /* of a gradient's norm, above the usual; 0: none is too large */
    ll_spike_action spike_action;
    int64_t compare;
    int64_t buddy;    /* steps between copies of the state in memory; 0: none */
    const char *best; /* the metric whose best checkpoint is kept; "": none */
    int64_t patience; /* validations without a better one after which it stops; 0: never */
} ll_run_train;

typedef struct ll_run_parallel {
    const char *mesh; /* "": one rank, or data=SIZE where a launcher started several */
    int64_t zero;
    bool exact;           /* the same bits on every mesh */
    bool tune;            /* collectives are measured first, where no table is kept */
    const char *compress; /* "none", "factors" (pass/partition.h) or a codec (comm/codec.h) */
    bool canonical;
    const char *overlap;
    const char *sequence;      /* how attention goes over axis sequence (pass/partition.h) */
    const char *recompute;     /* none, selective, full or bytes (pass/recompute.h) */
    const char *transport;     /* of GPUs: auto, nccl, mpi or host */
    const char *schedule;      /* of axis pipe: a name, or a file */
    const char *schedule_text; /* a name, or what the file says */
    int64_t virtual_stages;
    const char *stages;
    bool post_validation; /* of axis pipe: stages update before they know the norm of all */
    double timeout;       /* s */
    int64_t replicas;
    double replica_lr;            /* 0: by the optimizer (ll_run_replica_lr) */
    ll_consistency said, between; /* between them: as set, and finished: as it is */
    ll_kept_state save;           /* replicas, or their average alone */
    int replica, of; /* this is one replica's view (ll_run_replica), of so many; 0: all of it */
} ll_run_parallel;

/* Of section params, layout is what it says of them: "freeze", "lr=0.1 decay=0 init=zeros". */
typedef struct ll_run_patterns {
    ll_layout_rule *v;
    int n, room;
} ll_run_patterns;

typedef struct ll_run {
    const char *name; /* of the run: a bundled one's, or the file's without folder and .yaml */
    const char *file; /* where it was read from, for people */
    ll_run_model model;
    ll_run_data data;
    ll_run_train train;
    ll_run_parallel parallel;
    /* Sections whose keys are patterns of names; each ends with pattern NULL. */
    ll_run_patterns layouts, params;
    const char *out;            /* "": not said; finished: always set */
    bool out_said;              /* finished: by the file or a setting, not made of the name */
    bool out_in_file;           /* by the file, which somebody else may have written */
    struct ll_run_notes *notes; /* where each setting came from; sizes not yet checked */
    /* What kernels have noted in this run's sessions. */
    struct ll_kern_notes *kernels;
    ll_arena *arena;
} ll_run;

/* Reads a run: a path (it has a '/' or ends in .yaml or .yml), a run folder (its run.yaml; out is
 * then that folder, which may have been moved), or a name: runs/NAME.yaml here, the installed one,
 * the one compiled in, in this order. */
ll_err ll_run_load(const char *what, ll_run **out);
/* The same from bytes; file names them in messages. */
ll_err ll_run_parse(const char *bytes, size_t size, const char *file, ll_run **out);
/* The run whose folder the checkpoint is in, finished; NULL: it is a file alone, or what the folder
 * says no longer holds. */
ll_run *ll_run_of_checkpoint(const char *path);
/* Overrides one setting: "train.batch=128". */
ll_err ll_run_set(ll_run *r, const char *assignment);
/* Checks the whole, fills in what follows from the rest. Call once, after the last change. */
ll_err ll_run_finish(ll_run *r);
void ll_run_free(ll_run *r);
LL_OWNED(ll_run, ll_run_free);

/* Every setting, defaults included, as a run file that reads back the same. */
char *ll_run_print(const ll_run *r, ll_arena *arena);
/* The key whose last word this is ("batch", "micro-batch"), or that other programs call so
 * ("batch-size"); NULL: none is. */
const char *ll_run_key_of(const char *word, ll_arena *arena);
/* The reference of all keys whose names contain this ("": of all): name, help, type, default, below
 * headings and wrapped to a width; NULL: there are none. */
char *ll_run_help(const char *word, int width, ll_arena *arena);

/* How many steps the run takes: train.steps, or enough for train.epochs, whichever is less; 0 is
 * no limit, and both 0 are one epoch. */
int64_t ll_run_steps(const ll_run *r, int64_t samples);
/* How many micro-batches a step has. */
static inline int64_t ll_run_micro_batches(const ll_run *r)
{
    return r->train.micro_batch ? r->train.batch / r->train.micro_batch : 1;
}
/* A size of the model's, or this where it has none of that name. */
int64_t ll_run_size(const ll_run *r, const char *name, int64_t otherwise);
/* The longest sequence that the model knows, which may be tuned on shorter ones; 0: it has none. */
int64_t ll_run_places(const ll_run *r);
bool ll_run_takes_tokens(const ll_run *r); /* else images */
/* Are there replicas that are ever apart? If so, the run as one of them has it: its share of each
 * batch. It lives in r, and is not freed. */
static inline bool ll_run_loose(const ll_run *r)
{
    return r->parallel.replicas > 1 && ll_consistency_loose(&r->parallel.between);
}
ll_run ll_run_replica(const ll_run *r, int replica);
/* What a replica's learning rate is times the run's: its share of a batch has R times the variance,
 * by whose root most optimizers divide their steps. */
double ll_run_replica_lr(const ll_run *r);

const ll_bundled *ll_bundled_runs(void); /* ends with name NULL */
