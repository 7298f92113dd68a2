/* resample.cu: a thread for each element of the result, [outer, rows, inner]; it makes its row of
 * the matrix, or finds the rows that have its pixel. Sums are made in the operand's order. */
#include "kern/cuda/gpu.cuh"
#include "kern/resample.h"

template <class T>
static __global__ void resample(ll_resample_attr a, const T *x, T *y, int64_t n, int64_t n_x,
                                int64_t n_y, int64_t inner)
{
    typedef typename sum_of<T>::type S;
    GRID_STRIDE(e, n)
    {
        int64_t row = e / inner % n_y;
        const T *from = x + e / (inner * n_y) * n_x * inner + e % inner;
        S sum = 0;
        if (!a.back) {
            ll_taps t = ll_taps_of(&a, a.at[1] + row);
            for (int64_t k = 0; k < t.n; k++)
                sum += (S)ll_tap(&t, k) * to_float(from[(t.from + k - a.at[0]) * inner]);
        } else {
            int64_t i = a.at[0] + row, end = a.at[1] + n_x;
            for (int64_t o = ll_taps_first(&a, i, a.at[1], end, false); o < end; o++) {
                ll_taps t = ll_taps_of(&a, o);
                if (t.from > i) break;
                sum += (S)ll_tap(&t, i - t.from) * to_float(from[(o - a.at[1]) * inner]);
            }
        }
        y[e] = from_float<T>::of(sum);
    }
}

static ll_err run(const ll_kcall *c)
{
    const ll_resample_attr *a = (const ll_resample_attr *)c->attr;
    const ll_shape *y = &c->out[0].shape;
    int64_t n = ll_numel(y), inner = 1;
    for (int d = (int)a->dim + 1; d < y->n; d++) inner *= y->d[d];
    return with_float(c->in[0].dtype, [&](auto z) -> ll_err {
        return launch_each(c, n, resample<decltype(z)>, *a, c->in[0].data, c->out[0].data, n,
                           c->in[0].shape.d[a->dim], y->d[a->dim], inner);
    });
}

extern "C" const ll_solver resample_cuda[] = {{.run = run}, {}};
