/* vec.cuh: tensors 16 bytes at a time: 4 floats, or 8 of bf16. Rows whose length is a multiple of
 * that start at multiples of 16 bytes, because tensors do. */
#pragma once
#include "kern/cuda/gpu.cuh"

template <class T> struct wide;
template <> struct wide<float> {
    enum { N = 4 };
    static __device__ __forceinline__ void unpack(const uint4 &w, float *v)
    {
        v[0] = __uint_as_float(w.x), v[1] = __uint_as_float(w.y);
        v[2] = __uint_as_float(w.z), v[3] = __uint_as_float(w.w);
    }
    static __device__ __forceinline__ uint4 pack(const float *v)
    {
        return make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]),
                          __float_as_uint(v[3]));
    }
};
template <> struct wide<bf16> {
    enum { N = 8 };
    static __device__ __forceinline__ void two(unsigned w, float *v)
    {
        v[0] = __uint_as_float(w << 16), v[1] = __uint_as_float(w & 0xffff0000u);
    }
    static __device__ __forceinline__ void unpack(const uint4 &w, float *v)
    {
        two(w.x, v), two(w.y, v + 2), two(w.z, v + 4), two(w.w, v + 6);
    }
    static __device__ __forceinline__ unsigned one(float a, float b)
    {
        __nv_bfloat162 h = __floats2bfloat162_rn(a, b);
        return *(unsigned *)&h;
    }
    static __device__ __forceinline__ uint4 pack(const float *v)
    {
        return make_uint4(one(v[0], v[1]), one(v[2], v[3]), one(v[4], v[5]), one(v[6], v[7]));
    }
};
template <> struct wide<double> { /* none: such tensors take the plain ways */
    enum { N = 2 };
};

/* f(T{}) for an element type that can be taken 16 bytes at a time. */
template <class F> static ll_err with_wide(ll_dtype t, F f)
{
    return t == LL_F32 ? f(float{}) : f(bf16{});
}

/* Whether tensors of t, in rows of n, can be. */
static inline bool is_wide(ll_dtype t, int64_t n)
{
    return (t == LL_F32 && n % 4 == 0) || (t == LL_BF16 && n % 8 == 0);
}

/* N floats that lie side by side, at a multiple of 16 bytes. */
template <int N> __device__ __forceinline__ void load_floats(const float *p, float *v)
{
#pragma unroll
    for (int i = 0; i < N / 4; i++) wide<float>::unpack(((const uint4 *)p)[i], v + 4 * i);
}
template <int N> __device__ __forceinline__ void store_floats(float *p, const float *v)
{
#pragma unroll
    for (int i = 0; i < N / 4; i++) ((uint4 *)p)[i] = wide<float>::pack(v + 4 * i);
}
