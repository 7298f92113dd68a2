/* attention_f32.cu: attention of f32 in tiles (tiles.cuh): products as multiplications and
 * additions of f32. A warp is 4 x 8 threads: one keeps every 4th of the warp's rows and every 8th
 * column of a tile of scores, and of results groups of four columns. */
#include "kern/cuda/tiles.cuh"

__device__ __forceinline__ float dot4(const float4 &a, const float4 &b, float c)
{
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, c))));
}

__device__ __forceinline__ float nth(const float4 &a, int e)
{
    return e == 0 ? a.x : e == 1 ? a.y : e == 2 ? a.z : a.w;
}

/* Rows of tiles are so far apart that four, or eight, at once come from different banks. */
template <int D_, int MI_, int NJ_, int BLOCKS_> struct by_fma {
    enum {
        D = D_,
        MI = MI_,
        NJ = NJ_,
        BLOCKS = BLOCKS_, /* at a time on a multiprocessor */
        LANES = 8,
        DJ = D / LANES,
        ROWS = 16 * MI,
        COLS = LANES * NJ,
        LD = D + 4,
        LP = COLS + 8,
        WORK = ROWS * LP
    };
    static __device__ __forceinline__ int at(int row, int e) { return row * LD + e; }
    static __device__ __forceinline__ void settle(float *) {}
    typedef const float *left;
    static __device__ __forceinline__ left left_of(const float *a) { return a; }
    static __device__ __forceinline__ int first_row(void) { return threadIdx.x / 32 * (4 * MI); }
    static __device__ __forceinline__ int last_row(void) { return first_row() + 4 * MI - 1; }
    static __device__ __forceinline__ int row(int i)
    {
        return first_row() + threadIdx.x % 32 / LANES + 4 * i;
    }
    static __device__ __forceinline__ int col(int j) { return threadIdx.x % LANES + LANES * j; }
    static __device__ __forceinline__ int out_col(int g)
    {
        return threadIdx.x % LANES * 4 + g * LANES;
    }

    static __device__ __forceinline__ void scores(const float *a, const float *b,
                                                  float (&c)[MI][NJ])
    {
        a += row(0) * LD, b += col(0) * LD;
#pragma unroll
        for (int i = 0; i < MI; i++)
#pragma unroll
            for (int j = 0; j < NJ; j++) c[i][j] = 0;
#pragma unroll 4
        for (int k = 0; k < D; k += 4) {
            float4 of[MI];
#pragma unroll
            for (int i = 0; i < MI; i++) of[i] = *(const float4 *)(a + i * 4 * LD + k);
#pragma unroll
            for (int j = 0; j < NJ; j++) {
                float4 with = *(const float4 *)(b + j * LANES * LD + k);
#pragma unroll
                for (int i = 0; i < MI; i++) c[i][j] = dot4(of[i], with, c[i][j]);
            }
        }
    }

    /* Scores take the way through shared memory: a warp reads its own rows only. */
    static __device__ __forceinline__ void add_product(const float (&c)[MI][NJ], const float *b,
                                                       float (&y)[MI][DJ], float *work)
    {
        __syncwarp();
#pragma unroll
        for (int i = 0; i < MI; i++)
#pragma unroll
            for (int j = 0; j < NJ; j++) work[row(i) * LP + col(j)] = c[i][j];
        __syncwarp();
        const float *p = work + row(0) * LP;
        b += out_col(0);
#pragma unroll 2
        for (int k = 0; k < COLS; k += 4) {
            float4 of[MI];
#pragma unroll
            for (int i = 0; i < MI; i++) of[i] = *(const float4 *)(p + i * 4 * LP + k);
#pragma unroll
            for (int e = 0; e < 4; e++)
#pragma unroll
                for (int g = 0; g < DJ; g += 4) {
                    float4 with = *(const float4 *)(b + (k + e) * LD + g * LANES);
#pragma unroll
                    for (int i = 0; i < MI; i++) {
                        y[i][g] = fmaf(nth(of[i], e), with.x, y[i][g]);
                        y[i][g + 1] = fmaf(nth(of[i], e), with.y, y[i][g + 1]);
                        y[i][g + 2] = fmaf(nth(of[i], e), with.z, y[i][g + 2]);
                        y[i][g + 3] = fmaf(nth(of[i], e), with.w, y[i][g + 3]);
                    }
                }
        }
    }
};

extern "C" ll_err attention_cuda_f32(const ll_kcall *c)
{
    int64_t d = heads_of(c).d;
    if (d <= 32) return forward_of<by_fma<32, 4, 8, 4>>(c);
    return d <= 64 ? forward_of<by_fma<64, 4, 8, 3>>(c) : forward_of<by_fma<128, 4, 4, 2>>(c);
}

extern "C" ll_err attention_grad_cuda_f32(const ll_kcall *c)
{
    int64_t d = heads_of(c).d;
    if (d <= 32) return backward_of<by_fma<32, 4, 8, 3>>(c);
    if (d <= 64) return backward_of<by_fma<64, 4, 8, 2>>(c);
    bool roomy = tile_bytes<by_fma<128, 4, 4, 2>>(2) <= shared_of(c);
    return roomy ? backward_of<by_fma<128, 4, 4, 2>>(c) : backward_of<by_fma<128, 2, 4, 1>>(c);
}
