/* elementwise.cu: the elementwise ops one by one, and accum. Programs run them as chains
 * (chain.cu); alone they are rare, so any mix of element types is one kernel that asks for each
 * element. */
#include "kern/cuda/vec.cuh"

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

template <class A, class B>
static __global__ void add_mean(const A *x, const B *sum, B *y, int64_t n, float by, bool first)
{
    typedef typename sum_of<B>::type S;
    GRID_STRIDE(i, n)
    {
        S v = (S)to_float(x[i]) * (S)by;
        y[i] = from_float<B>::of(first ? v : (S)to_float(sum[i]) + v);
    }
}

static __global__ void add_mean_wide(const uint4 *x, const uint4 *sum, uint4 *y, int64_t n,
                                     float by, bool first)
{
    GRID_STRIDE(i, n)
    {
        float v[4], w[4];
        wide<float>::unpack(x[i], v);
        if (!first) wide<float>::unpack(sum[i], w);
#pragma unroll
        for (int k = 0; k < 4; k++) v[k] = v[k] * by + (first ? 0.f : w[k]);
        y[i] = wide<float>::pack(v);
    }
}

static ll_err accum(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[0], *y = &c->out[0], *sum = c->n_in > 1 ? &c->in[1] : y;
    int64_t n = ll_numel(&x->shape);
    float by = 1.f / (float)c->n_micro;
    if (x->dtype == LL_F32 && y->dtype == LL_F32 && n % 4 == 0)
        return launch_each(c, n / 4, add_mean_wide, x->data, sum->data, y->data, n / 4, by,
                           c->micro == 0);
    return with_floats(x->dtype, y->dtype, [&](auto a, auto b) -> ll_err {
        return launch_each(c, n, add_mean<decltype(a), decltype(b)>, x->data, sum->data, y->data, n,
                           by, c->micro == 0);
    });
}

extern "C" const ll_solver accum_cuda[] = {{.run = accum}, {}};
