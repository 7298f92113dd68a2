/* elementwise.cu: the elementwise ops one by one, and accum. Programs run them as chains
 * (chain.cu); alone they are rare, so any mix of element types is one kernel that asks for each
 * element. */
#include "kern/cuda/gpu.cuh"

#include <math.h>

template <int OP> __device__ double value_of(double a, double b, double c, double k)
{
    switch (OP) {
#define X(name, operands, value)                                                                   \
    case LL_EW_##name: return value;
        LL_EW(X)
#undef X
    }
    return 0;
}

typedef struct operands {
    const void *in[3];
    int type[3];
    void *out;
    int out_type;
    double k;
} operands;

template <int OP, int N> static __global__ void map(operands o, int64_t n)
{
    GRID_STRIDE(i, n)
    {
        double x[3] = {0, 0, 0};
        for (int j = 0; j < N; j++) x[j] = load_any(o.in[j], o.type[j], i);
        store_any(o.out, o.out_type, i, value_of<OP>(x[0], x[1], x[2], o.k));
    }
}

template <int OP, int N> static ll_err run(const ll_kcall *c)
{
    operands o = {};
    int64_t n = ll_numel(&c->out[0].shape);
    for (int j = 0; j < N; j++) o.in[j] = c->in[j].data, o.type[j] = c->in[j].dtype;
    o.out = c->out[0].data;
    o.out_type = c->out[0].dtype;
    if (OP == LL_EW_scale || OP == LL_EW_shift) o.k = ((const ll_number_attr *)c->attr)->value;
    return launch_each(c, n, map<OP, N>, o, n);
}

#define X(name, operands, value)                                                                   \
    extern "C" const ll_solver name##_cuda[] = {{.run = run<LL_EW_##name, operands>}, {}};
LL_EW(X)
#undef X

template <class A, class B, int V>
static __global__ void add_mean(const several<A, V> *x, const several<B, V> *sum, several<B, V> *y,
                                int64_t n, float by, bool first)
{
    typedef typename sum_of<B>::type S;
    GRID_STRIDE(i, n)
    {
        several<A, V> in = x[i];
        several<B, V> out, old = {};
        if (!first) old = sum[i];
#pragma unroll
        for (int k = 0; k < V; k++) {
            S v = (S)to_float(in.v[k]) * (S)by;
            out.v[k] = from_float<B>::of(first ? v : (S)to_float(old.v[k]) + v);
        }
        y[i] = out;
    }
}

static ll_err accum(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[0], *y = &c->out[0], *sum = c->n_in > 1 ? &c->in[1] : y;
    int64_t n = ll_numel(&x->shape);
    auto with = [&](auto kernel, int64_t each) -> ll_err {
        return launch_each(c, n / each, kernel, x->data, sum->data, y->data, n / each,
                           1.f / (float)c->n_micro, c->micro == 0);
    };
    if (x->dtype == LL_F32 && y->dtype == LL_F32 && n % 4 == 0)
        return with(add_mean<float, float, 4>, 4);
    return with_floats(x->dtype, y->dtype, [&](auto a, auto b) -> ll_err {
        return with(add_mean<decltype(a), decltype(b), 1>, 1);
    });
}

extern "C" const ll_solver accum_cuda[] = {{.run = accum}, {}};
