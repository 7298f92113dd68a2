/* rope.cu: rotary positions. A thread makes the sine of one pair and time, and turns all heads of
 * some samples by it (where places are given, each sample's own); the angle is made in double:
 * after many turns little of it is left in f32. */
#include "kern/cuda/gpu.cuh"

typedef struct sizes {
    int64_t b, t, h, d, parts; /* parts: of the samples */
} sizes;

template <class T>
static __global__ void turn(ll_rope_attr a, sizes s, const int32_t *place, const T *x, T *y)
{
    typedef typename sum_of<T>::type S;
    int64_t half = s.d / 2;
    GRID_STRIDE(i, s.parts * s.t * half)
    {
        int64_t pair = i % half, t = i / half % s.t, to = a.interleaved ? 1 : half;
        int64_t first = s.b * (i / half / s.t) / s.parts,
                end = s.b * (i / half / s.t + 1) / s.parts;
        double by = pow(a.base, -2 * (double)pair / (double)s.d);
        S cosine = 0, sine = 0;
        for (int64_t b = first; b < end; b++) {
            if (b == first || place) {
                double angle = (double)(a.at + (place ? place[b * s.t + t] : t)) * by;
                cosine = (S)cos(angle), sine = (S)(a.back ? -sin(angle) : sin(angle));
            }
            for (int64_t h = 0; h < s.h; h++) {
                int64_t at = ((b * s.t + t) * s.h + h) * s.d + pair * (a.interleaved + 1);
                S p = to_float(x[at]), q = to_float(x[at + to]);
                y[at] = from_float<T>::of(p * cosine - q * sine);
                y[at + to] = from_float<T>::of(p * sine + q * cosine);
            }
        }
    }
}

static ll_err run(const ll_kcall *c)
{
    const ll_shape *x = &c->in[0].shape;
    sizes s = {x->d[0], x->d[1], x->n == 5 ? x->d[2] * x->d[3] : x->d[2], x->d[x->n - 1], 1};
    int64_t pairs = s.t * s.d / 2, full = processors_of(c) * 2048;
    if (pairs && pairs < full) s.parts = ll_min64(s.b, ll_ceil_div(full, pairs));
    const int32_t *place = c->n_in > 1 ? (const int32_t *)c->in[1].data : NULL;
    return with_float(c->in[0].dtype, [&](auto v) -> ll_err {
        return launch_each(c, ll_numel(x) ? s.parts * pairs : 0, turn<decltype(v)>,
                           *(const ll_rope_attr *)c->attr, s, place, c->in[0].data, c->out[0].data);
    });
}

extern "C" const ll_solver rope_cuda[] = {{NULL, NULL, NULL, run}, {}};
