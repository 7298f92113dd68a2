/* elementwise.c: an elementwise op by itself is a chain of one step; and accum. Chains compute in
 * f32: for f64 tensors, and arithmetic on i32, whose large values f32 would round, there are loops
 * in f64; and of parts of whole sums (i64) additions. */
#include "kern/cpu/chain.h"
#include "kern/cpu/row.h"

#define X(name, n, value) ll_kernel name##_cpu;
LL_EW(X)
#undef X
LL_KERNELS(fused, accum)

static bool fits_f32(const ll_kcall *c, ll_ew op)
{
    ll_dtype from = c->in[0].dtype, to = c->out[0].dtype;
    if (from == LL_F64 || to == LL_F64) return false;
    return from != LL_I32 || (op == LL_EW_cast && to != LL_I32);
}

static ll_err run(const ll_kcall *c, ll_ew op)
{
    bool number = op == LL_EW_scale || op == LL_EW_shift;
    double k = number ? ((const ll_number_attr *)c->attr)->value : 0;
    if (!fits_f32(c, op)) {
        ll_elementwise_f64(c, op, k);
        return LL_OK;
    }
    ll_fused_attr f;
    f.n_in = c->n_in;
    f.n_out = 1;
    f.n_step = op == LL_EW_cast ? 0 : 1;
    f.shape = c->out[0].shape;
    f.out[0] = f.n_step ? c->n_in : 0;
    f.out_dtype[0] = c->out[0].dtype;
    for (int i = 0; i < c->n_in; i++) {
        f.period[i] = ll_numel(&f.shape);
        f.repeat[i] = 1;
    }
    f.step[0] = (ll_fused_step){k, (int16_t)op, 0, 1, 2};
    ll_chain_run(&f, c);
    return LL_OK;
}

#define X(name, n, value)                                                                          \
    ll_err name##_cpu(const ll_kcall *c)                                                           \
    {                                                                                              \
        return run(c, LL_EW_##name);                                                               \
    }
LL_EW(X)
#undef X

ll_err fused_cpu(const ll_kcall *c)
{
    ll_chain_run((const ll_fused_attr *)c->attr, c);
    return LL_OK;
}

/* y = (y or, in the first micro-batch, nothing) + x / n_micro, of elements [from, to) */
#define ACCUMULATE(type, part)                                                                     \
    static void accumulate_##type(const void *call, int64_t from, int64_t to)                      \
    {                                                                                              \
        const ll_kcall *c = (const ll_kcall *)call;                                                \
        const type *x = (const type *)c->in[0].data;                                               \
        const type *sum = (const type *)(c->n_in > 1 ? c->in[1].data : c->out[0].data);            \
        type *y = (type *)c->out[0].data, n = (type)c->n_micro, by = 1 / n;                        \
        (void)n, (void)by;                                                                         \
        if (c->micro == 0) {                                                                       \
            _Pragma("omp simd") for (int64_t i = from; i < to; i++) y[i] = part;                   \
        } else {                                                                                   \
            _Pragma("omp simd") for (int64_t i = from; i < to; i++) y[i] = sum[i] + part;          \
        }                                                                                          \
    }
ACCUMULATE(float, by *x[i])
ACCUMULATE(double, x[i] / n)

bool accum_cpu_fits(const ll_kcall *c)
{
    return c->in[0].dtype == LL_F32 || c->in[0].dtype == LL_F64;
}

ll_err accum_cpu(const ll_kcall *c)
{
    int64_t n = ll_numel(&c->in[0].shape);
    bool wide = c->in[0].dtype == LL_F64;
    ll_in_parts(ll_team(c, n), n, wide ? accumulate_double : accumulate_float, c);
    return LL_OK;
}
