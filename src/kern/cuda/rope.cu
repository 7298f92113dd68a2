/* rope.cu: rotary positions. A thread makes the sine of one pair and time, and turns all samples
 * and heads by it; the angle is made in double: after many turns little of it is left in f32. */
#include "kern/cuda/gpu.cuh"

template <class T> static __global__ void turn(ll_rope_attr a, ll_shape s, const T *x, T *y)
{
    typedef typename sum_of<T>::type S;
    int64_t half = s.d[3] / 2;
    GRID_STRIDE(i, s.d[1] * half)
    {
        int64_t pair = i % half, t = i / half, to = a.interleaved ? 1 : half;
        double angle = (double)(a.at + t) * pow(a.base, -2 * (double)pair / (double)s.d[3]);
        S cosine = (S)cos(angle), sine = (S)(a.back ? -sin(angle) : sin(angle));
        for (int64_t b = 0; b < s.d[0]; b++)
            for (int64_t h = 0; h < s.d[2]; h++) {
                int64_t at = ((b * s.d[1] + t) * s.d[2] + h) * s.d[3] + pair * (a.interleaved + 1);
                S p = to_float(x[at]), q = to_float(x[at + to]);
                y[at] = from_float<T>::of(p * cosine - q * sine);
                y[at + to] = from_float<T>::of(p * sine + q * cosine);
            }
    }
}

static ll_err run(const ll_kcall *c)
{
    const ll_shape *s = &c->in[0].shape;
    return with_float(c->in[0].dtype, [&](auto v) -> ll_err {
        return launch_each(c, ll_numel(s) ? s->d[1] * s->d[3] / 2 : 0, turn<decltype(v)>,
                           *(const ll_rope_attr *)c->attr, *s, c->in[0].data, c->out[0].data);
    });
}

extern "C" const ll_solver rope_cuda[] = {{NULL, NULL, NULL, run}, {}};
