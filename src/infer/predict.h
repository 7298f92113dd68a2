/* predict.h: one named value of a run's model, for samples that need no labels.
 *
 * The graph is cut down to what makes the value (ll_only): losses, metrics and the batch inputs
 * that only they read are not in it, nor is anything drawn (bert hides no tokens). Parameters are
 * another session's. */
#pragma once
#include "run/setup.h"

/* What the numbers of a row are. */
typedef enum ll_meaning { LL_NUMBERS, LL_LOGITS, LL_PROBABILITIES } ll_meaning;

typedef struct ll_predictor ll_predictor;
/* result: a named value or result of the model's; NULL: "logits" where there is one, else the first
 * result that is no scalar, else what a cross entropy reads. */
ll_err ll_predictor_open(const ll_run *r, ll_session *share, const char *result,
                         ll_predictor **out);
void ll_predictor_close(ll_predictor *p);
LL_OWNED(ll_predictor, ll_predictor_close);

typedef struct ll_predicts {
    const char *name; /* of the value */
    ll_type type;     /* of one sample */
    ll_meaning meaning;
    ll_field inputs[LL_MAX_FIELDS]; /* of one sample */
    int n_input;
} ll_predicts;
const ll_predicts *ll_predictor_info(const ll_predictor *p);
/* The graph for one sample; its only result is the value. */
const ll_graph *ll_predictor_graph(const ll_predictor *p);
/* That of so many samples, which the caller owns. */
ll_err ll_predictor_make(ll_predictor *p, int64_t samples, ll_graph **out);
/* n samples, input i of them one after another at in[i]; the value of each, likewise, in out. */
ll_err ll_predict(ll_predictor *p, int64_t n, const void *const *in, void *out);
