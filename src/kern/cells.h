/* cells.h: one number of a step of a recurrent cell (ll_cell), and of its gradient, for the kernels
 * of CPUs, in f32, and of GPUs. Pointers are to the number's first gate or state; the others are h
 * on. */
#pragma once
#include "kern/attr.h"

#ifdef __CUDACC__
#define LL_CELL template <class real> static __device__ __forceinline__
LL_CELL real ll_cell_sigmoid(real x)
{
    return 1 / (1 + exp(-x));
}
LL_CELL real ll_cell_tanh(real x)
{
    return tanh(x);
}
#else
#include "kern/cpu/vec.h"
#include "kern/cpu/vecmath.h"
#define LL_CELL LL_INLINE
#define ll_cell_sigmoid ll_sigmoidf
#define ll_cell_tanh ll_tanhf
typedef float real;
#endif

/* z: what h gives to the gates. */
LL_CELL void ll_cell_step(const int64_t cell, const real *x, const real *z, const real *was,
                          real *is, int64_t h)
{
    if (cell == LL_LSTM) {
        real i = ll_cell_sigmoid(x[0] + z[0]), f = ll_cell_sigmoid(x[h] + z[h]);
        real g = ll_cell_tanh(x[2 * h] + z[2 * h]), o = ll_cell_sigmoid(x[3 * h] + z[3 * h]);
        real c = f * was[h] + i * g;
        is[0] = o * ll_cell_tanh(c);
        is[h] = c;
    } else if (cell == LL_GRU) {
        real a = ll_cell_sigmoid(x[0] + z[0]), u = ll_cell_sigmoid(x[h] + z[h]);
        real n = ll_cell_tanh(x[3 * h] + a * (x[2 * h] + z[2 * h]));
        is[0] = (1 - u) * n + u * was[0];
    } else {
        real s = x[0] + z[0];
        is[0] = cell == LL_RNN_TANH ? ll_cell_tanh(s) : s > 0 ? s : (real)0;
    }
}

/* x has what h gives, too. dh, dc: gradients of the states after the step; d gets those before it,
 * but for what flows through the weight, dz the gates', a step apart. */
LL_CELL void ll_cell_slopes(const int64_t cell, const real *x, const real *was, const real *is,
                            int64_t h, real dh, real dc, real *d, real *dz, int64_t step)
{
    if (cell == LL_LSTM) {
        real i = ll_cell_sigmoid(x[0]), f = ll_cell_sigmoid(x[h]), g = ll_cell_tanh(x[2 * h]),
             o = ll_cell_sigmoid(x[3 * h]);
        real c = ll_cell_tanh(is[h]);
        dc = dc + dh * o * (1 - c * c);
        dz[0] = dc * g * i * (1 - i);
        dz[step] = dc * was[h] * f * (1 - f);
        dz[2 * step] = dc * i * (1 - g * g);
        dz[3 * step] = dh * c * o * (1 - o);
        d[0] = 0;
        d[h] = dc * f;
    } else if (cell == LL_GRU) {
        real a = ll_cell_sigmoid(x[0]), u = ll_cell_sigmoid(x[h]), m = x[2 * h],
             n = ll_cell_tanh(x[3 * h] + a * m);
        real dn = dh * (1 - u) * (1 - n * n);
        dz[0] = dn * m * a * (1 - a);
        dz[step] = dh * (was[0] - n) * u * (1 - u);
        dz[2 * step] = dn * a;
        dz[3 * step] = dn;
        d[0] = dh * u;
    } else {
        dz[0] = cell == LL_RNN_TANH ? dh * (1 - is[0] * is[0]) : x[0] > 0 ? dh : (real)0;
        d[0] = 0;
    }
}
