/* fused.c: chains of elementwise ops as one node: ops fused1 to fused8, by the number of results.
 * The compiler makes them late, after gradients and partitioning: no loop walks their dimensions.
 * ll_fused_attr in kern/attr.h says what a chain is. */
#include "op/op_int.h"
#include "kern/kern.h"

#include <stdio.h>

ll_kernel fused_ref, fused_cpu, fused_cuda;
ll_scratch fused_cuda_scratch;
extern const struct ll_many fused_cuda_many;

static const int operands[LL_N_EW] = {
#define X(name, n, value) n,
    LL_EW(X)
#undef X
};

static ll_err check_steps(const ll_fused_attr *f)
{
    CHECK(f->n_step >= 0 && f->n_step <= LL_FUSE_STEPS, LL_E_GRAPH, "%d steps; want 0 to %d",
          f->n_step, LL_FUSE_STEPS);
    for (int s = 0; s < f->n_step; s++) {
        const ll_fused_step *t = &f->step[s];
        CHECK(t->op >= 0 && t->op < LL_N_EW, LL_E_GRAPH, "step %d is no elementwise op", s);
        int16_t reg[3] = {t->a, t->b, t->c};
        for (int i = 0; i < operands[t->op]; i++)
            CHECK(reg[i] == LL_FUSE_K || (reg[i] >= 0 && reg[i] < f->n_in + s), LL_E_GRAPH,
                  "step %d reads register %d, which has no value yet", s, reg[i]);
    }
    return LL_OK;
}

static ll_err check_inputs(const ll_fused_attr *f, const ll_type *in)
{
    int64_t n = ll_numel(&f->shape);
    for (int i = 0; i < f->n_in; i++) {
        int64_t period = f->period[i], repeat = f->repeat[i];
        CHECK(period == ll_numel(&in[i].shape), LL_E_GRAPH,
              "operand %d has %lld elements, not %lld", i, (long long)ll_numel(&in[i].shape),
              (long long)period);
        CHECK(repeat > 0 && (n == 0 || (period > 0 && n / repeat >= period && n % repeat == 0 &&
                                        n / repeat % period == 0)),
              LL_E_GRAPH, "operand %d: %lld elements, each %lld times, do not fill %lld", i,
              (long long)period, (long long)repeat, (long long)n);
    }
    return LL_OK;
}

static ll_err infer(ll_infer *i)
{
    const ll_fused_attr *f = i->attr;
    TRY(ll_check_shape(&f->shape));
    CHECK(f->n_in == i->n_in && f->n_in <= LL_FUSE_IN && f->n_out == i->n_out, LL_E_GRAPH,
          "a chain of %d operands and %d results, given %d and %d", f->n_in, f->n_out, i->n_in,
          i->n_out);
    TRY(check_steps(f));
    TRY(check_inputs(f, i->in));
    for (int o = 0; o < i->n_out; o++) {
        CHECK(f->out[o] >= 0 && f->out[o] < f->n_in + f->n_step, LL_E_GRAPH,
              "result %d is register %d, which there is not", o, f->out[o]);
        CHECK((unsigned)f->out_dtype[o] < LL_N_DTYPE, LL_E_GRAPH, "result %d has no element type",
              o);
        i->out[o] = (ll_type){f->out_dtype[o], f->shape};
    }
    return LL_OK;
}

static ll_err loops(const void *attr, int n_in, const ll_type *in, char dims[LL_DIMS_TEXT])
{
    const ll_fused_attr *f = attr;
    int at = 0;
    for (int i = 0; i < n_in; i++)
        at += snprintf(dims + at, (size_t)(LL_DIMS_TEXT - at), "%s%.*s", i ? "," : "",
                       in[i].shape.n, "______");
    snprintf(dims + at, (size_t)(LL_DIMS_TEXT - at), "->%.*s", f->shape.n, "______");
    return LL_OK;
}

static double cost(const void *attr, const ll_loops *l)
{
    (void)l;
    const ll_fused_attr *f = attr;
    double flop = 0;
    for (int s = 0; s < f->n_step; s++) flop += ll_ew_op((ll_ew)f->step[s].op)->flop;
    return flop * (double)ll_numel(&f->shape);
}

/* An operand of a chain at the chain's shape: its elements as the middle dimension of three. */
static ll_val spread(ll_graph *g, ll_val x, const ll_fused_attr *f, int i, ll_dtype dtype)
{
    int64_t n = ll_numel(&f->shape), period = f->period[i], repeat = f->repeat[i];
    x = ll_cast(g, x, dtype);
    if (period == n) return ll_reshape(g, x, f->shape);
    ll_shape three = LL_SHAPE(n / period / repeat, period, repeat);
    x = ll_broadcast(g, ll_reshape(g, x, LL_SHAPE(period)), "b->abc", three);
    return ll_reshape(g, x, f->shape);
}

/* The same chain as single nodes, in f64 if its first operand is, else in f32. */
static void expand(ll_graph *g, const void *attr, const ll_val *in, int n_in, ll_val *out)
{
    const ll_fused_attr *f = attr;
    ll_val r[LL_FUSE_IN + LL_FUSE_STEPS];
    ll_dtype dtype = n_in && ll_graph_dtype(g, in[0]) == LL_F64 ? LL_F64 : LL_F32;
    for (int i = 0; i < n_in; i++) r[i] = spread(g, in[i], f, i, dtype);
    for (int s = 0; s < f->n_step; s++) {
        const ll_fused_step *t = &f->step[s];
        int16_t reg[3] = {t->a, t->b, t->c};
        ll_val x[3];
        for (int i = 0; i < operands[t->op]; i++)
            x[i] = reg[i] == LL_FUSE_K ? ll_fill(g, dtype, f->shape, t->k) : r[reg[i]];
        ll_number_attr number = {t->k};
        ll_cast_attr cast = {dtype};
        const void *a = t->op == LL_EW_cast ? (void *)&cast : (void *)&number;
        r[f->n_in + s] = ll_emit(g, ll_ew_op((ll_ew)t->op), a, x, operands[t->op]);
    }
    for (int o = 0; o < f->n_out; o++) out[o] = ll_cast(g, r[f->out[o]], f->out_dtype[o]);
}

static const ll_attr_field attrs[] = {{"chain", LL_A_FUSED, 0, 0}, {0}};
/* out: the registers written, r2 to r4 of a small chain */
#define TRIAL(out)                                                                                 \
    "f32[4,3], f32[3] {chain=(shape=[4,3], in=[12, 3], r2=add(r0,r1), r3=tanh(r2), r4=mul(r3,r0)," \
    " out=[" out "])}"
#define FUSED(count, out)                                                                          \
    {                                                                                              \
        .name = "fused" #count, .n_in = -1, .n_out = count, .attr_size = sizeof(ll_fused_attr),    \
        .attrs = attrs, .infer = infer, .loops = loops, .expand = expand, .cost = cost,            \
        .ref = fused_ref, .cpu = LL_KERNEL(.run = fused_cpu),                                      \
        .cuda = LL_GPU(LL_KERNEL(.run = fused_cuda, .scratch = fused_cuda_scratch,                 \
                                 .many = &fused_cuda_many)),                                       \
        .trials = {TRIAL(out)},                                                                    \
    }
static const ll_op ops[LL_FUSE_OUT] = {
    FUSED(1, "r4:f32"),
    FUSED(2, "r3:f32, r4:f32"),
    FUSED(3, "r2:f32, r3:f32, r4:f32"),
    FUSED(4, "r2:f32, r3:f32, r4:f32, r0:f32"),
    FUSED(5, "r2:f32, r3:f32, r4:f32, r0:f32, r1:f32"),
    FUSED(6, "r2:f32, r3:f32, r4:f32, r0:f32, r1:f32, r4:f32"),
    FUSED(7, "r2:f32, r3:f32, r4:f32, r0:f32, r1:f32, r4:f32, r3:f32"),
    FUSED(8, "r2:f32, r3:f32, r4:f32, r0:f32, r1:f32, r4:f32, r3:f32, r2:f32"),
};

const ll_op *ll_fused_op(int n_out)
{
    LL_ASSERT(n_out >= 1 && n_out <= LL_FUSE_OUT);
    return &ops[n_out - 1];
}

const ll_op *const ll_ops_fused[] = {&ops[0], &ops[1], &ops[2], &ops[3], &ops[4],
                                     &ops[5], &ops[6], &ops[7], NULL};
