/* cross_entropy.c: cross-entropy of f32 logits, its gradient, and right answers. */
#include "kern/cpu/row.h"
#include "kern/rows.h"

#include <math.h>

LL_KERNELS(cross_entropy, cross_entropy_grad, correct)

/* All rows of x in parts; work: operations of an element. */
static ll_err each_row(const ll_kcall *c, const ll_tensor *x, const ll_tensor *label, int work,
                       ll_thread_part *part)
{
    int64_t rows = ll_rows(x), v = ll_cols(x);
    TRY(ll_check_labels(label, v));
    ll_in_parts(ll_team(c, rows * v * work), rows, part, c);
    return LL_OK;
}

static void some_losses(const void *given, int64_t first, int64_t end)
{
    const ll_kcall *c = (const ll_kcall *)given;
    const float *x = (const float *)c->in[0].data;
    const int32_t *label = (const int32_t *)c->in[1].data;
    float *loss = (float *)c->out[0].data, *lses = (float *)c->out[1].data;
    int64_t v = ll_cols(&c->in[0]);
    for (int64_t r = first; r < end; r++) {
        const float *from = x + r * v;
        float top = ll_row_top(from, v);
        double rest = log(ll_row_exp(from, top, NULL, v));
        loss[r] = (float)(rest + ((double)top - (double)from[label[r]]));
        lses[r] = (float)(rest + (double)top);
    }
}

ll_err cross_entropy_cpu(const ll_kcall *c)
{
    return each_row(c, &c->in[0], &c->in[1], 16, some_losses);
}

static void some_gradients(const void *given, int64_t first, int64_t end)
{
    const ll_kcall *c = (const ll_kcall *)given;
    const float *dloss = (const float *)c->in[0].data, *x = (const float *)c->in[1].data;
    const int32_t *label = (const int32_t *)c->in[2].data;
    const float *lses = (const float *)c->in[3].data;
    float *dx = (float *)c->out[0].data;
    int64_t v = ll_cols(&c->in[1]);
    for (int64_t r = first; r < end; r++) {
        const float *from = x + r * v;
        float *to = dx + r * v, lse = lses[r], by = dloss[r];
        int64_t k = label[r];
        float own = from[k]; /* to may be from */
        ll_row_exp_times(from, lse, by, to, v);
        to[k] = (expf(own - lse) - 1) * by;
    }
}

ll_err cross_entropy_grad_cpu(const ll_kcall *c)
{
    return each_row(c, &c->in[1], &c->in[2], 16, some_gradients);
}

/* Is x[k] the first largest of a row? NaNs are passed over. */
static bool leads(const float *x, int64_t n, int64_t k)
{
    int before = 0, after = 0;
    float best = x[k];
#pragma omp simd reduction(| : before)
    for (int64_t j = 0; j < k; j++) before |= x[j] >= best;
#pragma omp simd reduction(| : after)
    for (int64_t j = k + 1; j < n; j++) after |= x[j] > best;
    return !isnan(best) && !before && !after;
}

static void some_correct(const void *given, int64_t first, int64_t end)
{
    const ll_kcall *c = (const ll_kcall *)given;
    const float *x = (const float *)c->in[0].data;
    const int32_t *label = (const int32_t *)c->in[1].data;
    float *y = (float *)c->out[0].data;
    int64_t v = ll_cols(&c->in[0]);
    for (int64_t r = first; r < end; r++) y[r] = leads(x + r * v, v, label[r]) ? 1 : 0;
}

ll_err correct_cpu(const ll_kcall *c)
{
    return each_row(c, &c->in[0], &c->in[1], 1, some_correct);
}
