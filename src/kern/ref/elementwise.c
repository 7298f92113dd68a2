/* elementwise.c: reference kernels of the elementwise ops, alone and in chains, and of accum. The
 * kernels' names and values come from the list in kern/attr.h. */
#include "kern/rows.h"
#include "kern/ref/value.h"

#include <math.h>

double ll_ew_value(ll_ew op, double a, double b, double c, double k)
{
    switch (op) {
#define X(name, operands, value)                                                                   \
    case LL_EW_##name: return value;
        LL_EW(X)
#undef X
    case LL_N_EW: break;
    }
    LL_ASSERT(!"an elementwise op");
}

int ll_ew_operands(ll_ew op)
{
    static const int operands[LL_N_EW] = {
#define X(name, operands, value) operands,
        LL_EW(X)
#undef X
    };
    return operands[op];
}

static ll_err map(const ll_kcall *c, ll_ew op)
{
    double k = 0;
    if (op == LL_EW_scale || op == LL_EW_shift) k = ((const ll_number_attr *)c->attr)->value;
    int64_t n = ll_numel(&c->out[0].shape);
    for (int64_t i = 0; i < n; i++) {
        double x[3] = {0};
        for (int j = 0; j < c->n_in; j++) x[j] = ll_at(&c->in[j], i);
        ll_set(&c->out[0], i, ll_ew_value(op, x[0], x[1], x[2], k));
    }
    return LL_OK;
}

#define X(name, operands, value)                                                                   \
    ll_err name##_ref(const ll_kcall *c);                                                          \
    ll_err name##_ref(const ll_kcall *c)                                                           \
    {                                                                                              \
        return map(c, LL_EW_##name);                                                               \
    }
LL_EW(X)
#undef X

/* A chain, one element at a time: every register of it, then the outputs. */
LL_KERNELS(fused)
ll_err fused_ref(const ll_kcall *c)
{
    const ll_fused_attr *f = c->attr;
    int64_t n = ll_numel(&f->shape);
    for (int64_t e = 0; e < n; e++) {
        double r[LL_FUSE_IN + LL_FUSE_STEPS];
        for (int i = 0; i < f->n_in; i++) r[i] = ll_at(&c->in[i], e / f->repeat[i] % f->period[i]);
        for (int s = 0; s < f->n_step; s++) {
            const ll_fused_step *t = &f->step[s];
            int16_t reg[3] = {t->a, t->b, t->c};
            double x[3] = {0};
            for (int j = 0; j < ll_ew_operands((ll_ew)t->op); j++)
                x[j] = reg[j] == LL_FUSE_K ? t->k : r[reg[j]];
            r[f->n_in + s] = ll_ew_value((ll_ew)t->op, x[0], x[1], x[2], t->k);
        }
        for (int o = 0; o < f->n_out; o++) ll_set(&c->out[o], e, r[f->out[o]]);
    }
    return LL_OK;
}

/* out gathers x / n_micro over the micro-batches of a step. */
LL_KERNELS(accum)
ll_err accum_ref(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[0], *y = &c->out[0], *sum = c->n_in > 1 ? &c->in[1] : y;
    int64_t n = ll_numel(&x->shape);
    for (int64_t i = 0; i < n; i++) {
        double old = c->micro == 0 ? 0 : ll_load(sum->data, y->dtype, i);
        ll_set(y, i, old + ll_at(x, i) / c->n_micro);
    }
    return LL_OK;
}
