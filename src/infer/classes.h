/* classes.h: which classes a classifier takes for which, on the validation data. */
#pragma once
#include "infer/evaluate.h"
#include "infer/predict.h"
#include "weights/state.h"

/* The members of an ensemble, as its checkpoint has them (loose.h), one after another in the place
 * of a session's parameters. */
typedef struct ll_members {
    int n; /* 0: there are none */
    const ll_session *s;
    const ll_st_tensor *tensors; /* [n_tensor] of the session */
    int n_tensor;
    void **data; /* [n * n_tensor] */
} ll_members;

/* In arena; the session is of one process. */
ll_err ll_members_read(const ll_st_file *f, const ll_session *s, ll_arena *arena, ll_members *out);

typedef struct ll_classes {
    int64_t n;                /* classes */
    const char *const *names; /* NULL: they have numbers alone */
    const int64_t *confusion; /* [n,n]: of the row's class, taken for the column's */
    int64_t samples, correct;
    int64_t top, in_top;  /* how often the label was among the `top` likeliest */
    double loss;          /* of an ensemble: the cross entropy of its mean probabilities */
    const int64_t *alone; /* and how often each member is right; NULL: there are none */
} ll_classes;

/* Of the first `samples` of the validation set (0: all), by the parameters of a session, or (m not
 * NULL) by the mean of probabilities that an ensemble's members give. `told` is told of how many
 * there are so far. What it gives is the arena's. A model that does not classify is
 * LL_E_ARG. */
ll_err ll_classes_count(const ll_run *r, const ll_dataset *d, ll_session *share,
                        const ll_members *m, int64_t samples, int64_t top, const ll_stop *told,
                        ll_arena *a, ll_classes *out);

typedef struct ll_class_score {
    double precision, recall, f1; /* NaN where nothing is divided by */
    int64_t support;              /* samples of the class */
} ll_class_score;
ll_class_score ll_class_score_of(const ll_classes *c, int64_t k);
/* The matrix as a picture (SVG). */
char *ll_classes_svg(const ll_classes *c, const char *title, ll_arena *a);
