/* schedule.c: shapes of learning-rate decay, warm-up, scaling for the batch. */
#include "run/schedule.h"

#include <math.h>
#include <string.h>

/* What a shape's factor depends on. Factor 1 is the peak. */
typedef struct when {
    const ll_schedule *s;
    int64_t step, steps; /* of the whole run */
    double progress;     /* 0 in the first step after warm-up; 1 would be the step after the last */
    double floor;        /* min_lr as a factor */
} when;

static double place(double at, int64_t steps)
{
    return at < 1 ? floor(at * (double)steps) : at;
}

static double constant(const when *w)
{
    (void)w;
    return 1;
}

static double step(const when *w)
{
    const ll_schedule *s = w->s;
    double times = 0;
    if (s->step_size > 0)
        times = (double)(w->step / s->step_size);
    else
        for (int i = 0; i < s->milestones.n; i++)
            times += (double)w->step >= place(s->milestones.v[i], w->steps);
    return pow(s->step_gamma, times);
}

static double cosine(const when *w)
{
    return w->floor + (1 - w->floor) * 0.5 * (1 + cos(M_PI * w->progress));
}

static double linear(const when *w)
{
    return w->floor + (1 - w->floor) * (1 - w->progress);
}

#define FACTOR(name) name,
static double (*const factors[])(const when *w) = {LL_SCHEDULES(FACTOR)};

static double batch_scale(const ll_schedule *s, int64_t batch)
{
    double ratio = (double)batch / (double)s->base_batch;
    return s->scale_rule == LL_SCALE_linear ? ratio
           : s->scale_rule == LL_SCALE_sqrt ? sqrt(ratio)
                                            : 1;
}

double ll_lr_at(const ll_schedule *s, int64_t batch, int64_t steps, int64_t step)
{
    double peak = s->lr * batch_scale(s, batch);
    double warmup = place(s->warmup, steps);
    if ((double)step < warmup) return peak * (double)(step + 1) / warmup;
    double span = (double)steps - warmup;
    when w = {.s = s, .step = step, .steps = steps, .floor = s->min_lr / s->lr};
    w.progress = span > 0 ? fmin(1, ((double)step - warmup) / span) : 1;
    return peak * factors[s->shape](&w);
}
