/* dropout.cu: the very numbers of base/rng.h decide what is dropped. */
#include "base/philox.h"
#include "kern/cuda/vec.cuh"
#include "kern/dropout.h"

/* Four numbers, those of elements 4 block to 4 block + 3. */
__device__ __forceinline__ uint4 philox(uint64_t seed, uint64_t stream, uint64_t block)
{
    uint32_t w[4];
    ll_philox_words(seed, stream, block, w);
    return make_uint4(w[0], w[1], w[2], w[3]);
}

__device__ __forceinline__ uint32_t philox_word(uint64_t seed, uint64_t stream, uint64_t i)
{
    uint32_t w[4];
    ll_philox_words(seed, stream, i / 4, w);
    return i & 2 ? (i & 1 ? w[3] : w[2]) : i & 1 ? w[1] : w[0];
}

/* A tensor that is the whole: elements and their numbers both lie side by side. */
template <class T>
static __global__ void dropout_wide(const T *x, T *y, int64_t pieces, int64_t first, uint64_t seed,
                                    uint64_t stream, const uint64_t *clock, uint32_t limit,
                                    float by)
{
    enum { N = wide<T>::N };
    stream ^= clock[0];
    GRID_STRIDE(i, pieces)
    {
        float v[N];
        wide<T>::unpack(((const uint4 *)x)[i], v);
#pragma unroll
        for (int k = 0; k < N; k += 4) {
            uint4 w = philox(seed, stream, (uint64_t)(first + i * N + k) / 4);
            v[k] = w.x >> 9 < limit ? 0.f : v[k] * by;
            v[k + 1] = w.y >> 9 < limit ? 0.f : v[k + 1] * by;
            v[k + 2] = w.z >> 9 < limit ? 0.f : v[k + 2] * by;
            v[k + 3] = w.w >> 9 < limit ? 0.f : v[k + 3] * by;
        }
        ((uint4 *)y)[i] = wide<T>::pack(v);
    }
}

template <class T>
static __global__ void dropout(const T *x, T *y, int64_t n,
                               const __grid_constant__ ll_dropout_attr a,
                               const __grid_constant__ ll_shape s, int64_t micro, uint64_t seed,
                               uint64_t stream, const uint64_t *clock, uint32_t limit, float by)
{
    stream ^= clock[0];
    GRID_STRIDE(i, n)
    {
        uint64_t index = ll_dropout_index(&a, &s, micro, i);
        bool drop = philox_word(seed, stream, index) >> 9 < limit;
        y[i] = from_float<T>::of(drop ? 0 : to_float(x[i]) * by);
    }
}

static ll_err run(const ll_kcall *c)
{
    const ll_dropout_attr *a = (const ll_dropout_attr *)c->attr;
    const ll_tensor *x = &c->in[0];
    int64_t n = ll_numel(&x->shape);
    if (n == 0) return LL_OK;
    int64_t first = (int64_t)ll_dropout_index(a, &x->shape, c->micro, 0);
    double least = ceil(a->p * 0x1p23 - 0.5);
    uint32_t limit = (uint32_t)(least > 0 ? least : 0);
    float by = (float)(1 / (1 - a->p));
    if (ll_shape_equal(&x->shape, &a->whole) && is_wide(x->dtype, n) && first % 4 == 0)
        return with_wide(x->dtype, [&](auto z) -> ll_err {
            int64_t pieces = n / wide<decltype(z)>::N;
            return launch_each(c, pieces, dropout_wide<decltype(z)>, x->data, c->out[0].data,
                               pieces, first, c->seed, a->stream, c->clock, limit, by);
        });
    return with_float(x->dtype, [&](auto z) -> ll_err {
        return launch_each(c, n, dropout<decltype(z)>, x->data, c->out[0].data, n, *a, x->shape,
                           c->micro, c->seed, a->stream, c->clock, limit, by);
    });
}

extern "C" const ll_solver dropout_cuda[] = {{.run = run}, {}};
