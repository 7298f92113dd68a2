/* schedule.h: the learning rate of each step, a pure function of the schedule, the batch and the
 * length of the run.
 *
 *     rate
 *      |    _____                 peak = lr, scaled for the batch by scale_rule
 *      |   /     \__
 *      |  /         \___          shape: constant, step, cosine or linear, down to min_lr
 *      | /              \____     warm-up: from 0 in equal steps to the peak
 *      +----------------------- step */
#pragma once
#include "base/err.h"

#define LL_SCHEDULES(X) X(constant) X(step) X(cosine) X(linear)
#define LL_LR_OF(name) LL_LR_##name,
typedef enum ll_lr_shape { LL_SCHEDULES(LL_LR_OF) } ll_lr_shape;
#define LL_SCALE_RULES(X) X(none) X(linear) X(sqrt)
#define LL_SCALE_OF(name) LL_SCALE_##name,
typedef enum ll_scale_rule { LL_SCALE_RULES(LL_SCALE_OF) } ll_scale_rule;

enum { LL_MAX_NUMBERS = 8 };
typedef struct ll_numbers {
    int n;
    double v[LL_MAX_NUMBERS];
} ll_numbers;

/* Places in the run (warmup, milestones) are steps, or, below 1, fractions of the whole run. */
typedef struct ll_schedule {
    double lr;             /* the peak, for a batch of base_batch where there is a scale rule */
    ll_lr_shape shape;     /* how it falls from there */
    double warmup;         /* how long the rate rises */
    double min_lr;         /* cosine, linear: what it is after the last step; scaled as lr is */
    int64_t step_size;     /* step: multiply by step_gamma every so many steps; 0: at milestones */
    double step_gamma;     /* step */
    ll_numbers milestones; /* step: where to multiply by step_gamma */
    ll_scale_rule scale_rule; /* lr times (batch/base_batch), or its root */
    int64_t base_batch;
} ll_schedule;

/* The rate of step 0 .. steps-1 of a run with this batch. */
double ll_lr_at(const ll_schedule *s, int64_t batch, int64_t steps, int64_t step);
