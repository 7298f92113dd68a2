/* batchnorm_relu.c: batch normalisation with the residual and the relu that follow it, and the
 * gradients of that, by plain loops. */
#include "kern/attr.h"
#include "kern/rows.h"

#include <math.h>

ll_kernel batchnorm_relu_ref, batchnorm_add_relu_ref, batchnorm_relu_grad_ref;
ll_kernel batchnorm_add_relu_grad_ref, batchnorm_sum_relu_grad_ref;

static double eps_of(const ll_kcall *c)
{
    return ((const ll_norm_attr *)c->attr)->eps;
}

/* add: NULL where there is no residual */
static ll_err forward(const ll_kcall *c, const ll_tensor *add, const ll_tensor *gain,
                      const ll_tensor *bias)
{
    const ll_tensor *x = &c->in[0];
    int64_t rows = ll_rows(x), n = ll_cols(x);
    for (int64_t j = 0; j < n; j++) {
        double mean = 0, var = 0;
        for (int64_t r = 0; r < rows; r++) mean += ll_at(x, r * n + j) / (double)rows;
        for (int64_t r = 0; r < rows; r++) {
            double d = ll_at(x, r * n + j) - mean;
            var += d * d / (double)rows;
        }
        double scale = ll_at(gain, j) / sqrt(var + eps_of(c));
        for (int64_t r = 0; r < rows; r++) {
            double y = (ll_at(x, r * n + j) - mean) * scale + ll_at(bias, j);
            if (add) y += ll_at(add, r * n + j);
            ll_set(&c->out[0], r * n + j, y > 0 ? y : 0);
        }
        ll_set(&c->out[1], j, mean);
        ll_set(&c->out[2], j, var);
    }
    return LL_OK;
}

ll_err batchnorm_relu_ref(const ll_kcall *c)
{
    return forward(c, NULL, &c->in[1], &c->in[2]);
}

ll_err batchnorm_add_relu_ref(const ll_kcall *c)
{
    return forward(c, &c->in[1], &c->in[2], &c->in[3]);
}

typedef struct operands {
    const ll_tensor *dy, *dy2, *y, *x, *gain, *bias, *mean, *var;
} operands;

/* The gradient before the relu, at element i of channel j. */
static double masked(const ll_kcall *c, const operands *o, int64_t i, int64_t j)
{
    double g = ll_at(o->dy, i) + (o->dy2 ? ll_at(o->dy2, i) : 0);
    if (o->y) return ll_at(o->y, i) != 0 ? g : 0;
    double xhat = (ll_at(o->x, i) - ll_at(o->mean, j)) / sqrt(ll_at(o->var, j) + eps_of(c));
    return xhat * ll_at(o->gain, j) + ll_at(o->bias, j) > 0 ? g : 0;
}

static ll_err backward(const ll_kcall *c, const operands *o)
{
    int64_t rows = ll_rows(o->x), n = ll_cols(o->x);
    for (int64_t j = 0; j < n; j++) {
        double mean = ll_at(o->mean, j), rstd = 1 / sqrt(ll_at(o->var, j) + eps_of(c));
        double dgain = 0, dbias = 0;
        for (int64_t i = j; i < rows * n; i += n) {
            double g = masked(c, o, i, j);
            dgain += g * (ll_at(o->x, i) - mean) * rstd;
            dbias += g;
        }
        for (int64_t i = j; i < rows * n; i += n) {
            double g = masked(c, o, i, j), xhat = (ll_at(o->x, i) - mean) * rstd;
            double inner = g - dbias / (double)rows - xhat * dgain / (double)rows;
            ll_set(&c->out[0], i, ll_at(o->gain, j) * rstd * inner);
            if (c->n_out > 3) ll_set(&c->out[3], i, g);
        }
        ll_set(&c->out[1], j, dgain);
        ll_set(&c->out[2], j, dbias);
    }
    return LL_OK;
}

ll_err batchnorm_relu_grad_ref(const ll_kcall *c)
{
    const ll_tensor *in = c->in;
    return backward(c, &(operands){.dy = &in[0],
                                   .x = &in[1],
                                   .gain = &in[2],
                                   .bias = &in[3],
                                   .mean = &in[4],
                                   .var = &in[5]});
}

ll_err batchnorm_add_relu_grad_ref(const ll_kcall *c)
{
    const ll_tensor *in = c->in;
    return backward(
        c,
        &(operands){
            .dy = &in[0], .y = &in[1], .x = &in[2], .gain = &in[3], .mean = &in[4], .var = &in[5]});
}

ll_err batchnorm_sum_relu_grad_ref(const ll_kcall *c)
{
    const ll_tensor *in = c->in;
    return backward(c, &(operands){.dy = &in[0],
                                   .dy2 = &in[1],
                                   .y = &in[2],
                                   .x = &in[3],
                                   .gain = &in[4],
                                   .mean = &in[5],
                                   .var = &in[6]});
}
