/* published.h: rows that others have published, against what the plan says of them. */
#pragma once
#include "plan/lm.h"

typedef struct ll_published {
    const char *id, *source, *model;
    const char *sweep;               /* rows of one are ranked among each other */
    const char *kind;                /* by which its interval is chosen */
    const char *why;                 /* it could not be predicted or compared; NULL: it was */
    double measured, predicted;      /* s of a step; NAN: not there */
    double low, high;                /* 80 % of such rows lie between */
    double memory, predicted_memory; /* GB; measured: NAN where it is not there */
    bool out_of_memory, flagged;     /* it was; the plan says that it does not fit */
    bool held_out;                   /* not looked at when the parameters were fitted */
    double percent;                  /* of peak, predicted, by the source's count of FLOPs */
    double measured_percent;
} ll_published;

/* How rows of one source, or of all, were met. */
typedef struct ll_account {
    const char *source;  /* NULL: all */
    int rows, predicted; /* read; of these, that could be predicted */
    int compared;        /* of these, with a step that was measured; the means are of them */
    int held_out;        /* of these, that were not fitted */
    int covered_rows;    /* of these, that lie in their intervals */
    double error, held_out_error; /* mean of absolute ones */
    double bias;
    double covered; /* part of the held-out rows */
    double tau;     /* Kendall's, of steps within sweeps, weighted by their pairs; NAN: none */
    double memory_error;
    int n_memory, out_of_memory, flagged, false_alarms;
} ll_account;
ll_account ll_published_account(const ll_published *rows, int n, const char *source);

/* Half of the 80 % interval of a prediction of a kind, as a ratio: 0.1 is from /1.1 to x1.1. */
double ll_plan_spread(const char *kind);

/* Who compiles models of images for the rows of them: a step of `samples` on a chip, its bytes, and
 * those of its gradients. fused: norms and what follows them are one kernel. */
typedef ll_err ll_images(const char *model, const ll_cluster *c, ll_precision precision,
                         int samples, bool fused, double *seconds, double *bytes,
                         double *gradients);

/* text: of a CSV file with the columns of published.csv. clusters: more of them, that come before
 * the bundled ones. images NULL: rows of images are not predicted. Rows live in the arena. */
ll_err ll_published_read(const char *text, size_t size, const char *file,
                         const ll_cluster *const *clusters, int n_cluster, ll_images *images,
                         ll_arena *arena, ll_published **rows, int *n);
