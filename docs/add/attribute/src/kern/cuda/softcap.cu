/* softcap.cu: cap tanh(x / cap). */
#include "kern/cuda/gpu.cuh"

template <class T> static __global__ void map(const T *x, T *y, int64_t n, float cap)
{
    GRID_STRIDE(i, n)
    y[i] = from_float<T>::of(cap * tanhf((float)to_float(x[i]) / cap));
}

static ll_err run(const ll_kcall *c)
{
    float cap = (float)((const ll_softcap_attr *)c->attr)->cap;
    int64_t n = ll_numel(&c->in[0].shape);
    return with_float(c->in[0].dtype, [&](auto t) -> ll_err {
        typedef decltype(t) T;
        return launch_each(c, n, map<T>, c->in[0].data, c->out[0].data, n, cap);
    });
}

extern "C" const ll_solver softcap_cuda[] = {{.run = run}, {}};
