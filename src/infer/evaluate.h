/* evaluate.h: validation. */
#pragma once
#include "run/setup.h"

typedef struct ll_score {
    double loss, accuracy; /* accuracy: NaN where the model does not classify */
    int64_t samples;       /* 0: stopped before the end; the rest means nothing */
    int n_metric;          /* results of the model's own, means over samples */
    double metrics[LL_MAX_METRICS];
    char names[LL_MAX_METRICS][LL_METRIC_NAME];
    double weight; /* of the loss: samples, or the sum of the model's result "counted" */
} ll_score;

/* Mean loss and accuracy over the first `samples` of the validation set (0: all), with the
 * parameters of another session and, where it fits, in its memory: its results are lost. Where that
 * session is cut over a mesh of ranks, so are these. */
typedef struct ll_evaluator ll_evaluator;
ll_err ll_evaluator_open(const ll_run *r, const ll_dataset *d, ll_session *share,
                         ll_evaluator **out);
/* Weights of products are packed in so many bits (pass/packed.h): of models whose parameters are
 * all they have. Before anything else. */
void ll_evaluator_pack(ll_evaluator *e, int bits);
/* Of several replicas, this one takes its share of the batches; scores are of all. weigh alone:
 * each takes all, and scores are means. */
void ll_evaluator_share(ll_evaluator *e, ll_comm *peers, bool weigh_alone);
/* Compiles for so many samples now, so that ll_evaluate needs no more memory than it has. */
ll_err ll_evaluator_plan(ll_evaluator *e, int64_t samples);
/* Is a figure of that name in its scores? After it has been planned. */
bool ll_evaluator_gives(const ll_evaluator *e, const char *name);
size_t ll_evaluator_bytes(const ll_evaluator *e);       /* beside the other session's */
size_t ll_evaluator_batch_bytes(const ll_evaluator *e); /* of samples read ahead, while it runs */
/* Planned for its communication, beside the communicators, which are the other session's. */
size_t ll_evaluator_comm_bytes(const ll_evaluator *e);
/* As the session's of the same names. */
ll_err ll_evaluator_plan_wide(ll_evaluator *e);
size_t ll_evaluator_wide_bytes(const ll_evaluator *e, bool ran);
/* Where not NULL, asked before each batch whether to stop, on all ranks the same, and told after it
 * of this rank's sums so far. mine: what befell this rank as it read its part of the batch; what
 * befell one is returned on all. */
typedef struct ll_stop {
    ll_err (*ask)(void *context, ll_err mine, bool *stop);
    void *context;
    void (*tell)(void *context, const ll_score *sum);
} ll_stop;
/* On a mesh, collective; the score is that of all ranks together, on each. */
ll_err ll_evaluate(ll_evaluator *e, int64_t samples, const ll_stop *stop, ll_score *out);
void ll_evaluator_close(ll_evaluator *e);
LL_OWNED(ll_evaluator, ll_evaluator_close);
