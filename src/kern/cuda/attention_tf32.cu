/* attention_tf32.cu: attention of f32 in tiles (tiles.cuh): operands are rounded to tf32 and
 * multiplied by tensor cores, which sum in f32. A product of 16 x 8 by 8 x 8 wants its operands
 * spread over a warp's lanes 8 x 4, by two pairs of rules:
 * - which of 8 is summed first does not matter. So a lane reads 4 elements side by side, for two
 *   products; and a lane's scores are, as they are, its operands of the next product.
 * - which columns of the result a lane gets does not matter. So it reads 4 side by side of a row,
 *   for four products, and gets 8 side by side of the result.
 * Elements of a tile are swapped within 32 of a row, as the row's number says, so that the reads
 * of eight lanes at a time come from different banks, in either product. */
#include "kern/cuda/tiles.cuh"

#include <type_traits>

__device__ __forceinline__ float tf32_of(float v)
{
    uint32_t bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(v));
    return __uint_as_float(bits);
}

struct operand { /* 16 x 8: rows y and y+8, elements x and x+4 of lane 4 y + x */
    float low0, high0, low1, high1;
};

__device__ __forceinline__ void multiply(const operand &a, float b0, float b1, float &low0,
                                         float &low1, float &high0, float &high1)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(low0), "+f"(low1), "+f"(high0), "+f"(high1)
        : "r"(__float_as_uint(a.low0)), "r"(__float_as_uint(a.high0)), "r"(__float_as_uint(a.low1)),
          "r"(__float_as_uint(a.high1)), "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

/* A warp has MT times 16 rows. HOLDS: queries stay in registers, forward. */
template <int D_, int MT, int COLS_, int BLOCKS_, bool HOLDS> struct by_mma {
    enum {
        D = D_,
        LD = D,
        COLS = COLS_,
        BLOCKS = BLOCKS_, /* at a time on a multiprocessor */
        LANES = 4,
        MI = 2 * MT,
        NJ = COLS / LANES,
        DJ = D / LANES,
        ROWS = 64 * MT,
        WORK = 0
    };
    static __device__ __forceinline__ int at(int row, int e)
    {
        return row * D + (e ^ ((row >> 1 & 3) << 3 ^ (row & 1) << 4));
    }
    static __device__ __forceinline__ void settle(float *p)
    {
        float4 v = *(float4 *)p;
        *(float4 *)p = make_float4(tf32_of(v.x), tf32_of(v.y), tf32_of(v.z), tf32_of(v.w));
    }
    static __device__ __forceinline__ int x(void) { return threadIdx.x % 4; }
    static __device__ __forceinline__ int y(void) { return threadIdx.x % 32 / 4; }
    static __device__ __forceinline__ int first_row(void) { return threadIdx.x / 32 * (16 * MT); }
    static __device__ __forceinline__ int last_row(void) { return first_row() + 16 * MT - 1; }
    static __device__ __forceinline__ int row(int i) { return first_row() + y() + 8 * i; }
    static __device__ __forceinline__ int col(int j) { return j / 2 * 8 + 2 * x() + j % 2; }
    static __device__ __forceinline__ int out_col(int g) { return g / 8 * 32 + 8 * x() + g % 8; }

    struct held { /* a warp's rows of a tile */
        operand of[D / 16][2][MT];
    };
    typedef typename std::conditional<HOLDS, held, const float *>::type left;
    static __device__ __forceinline__ int piece(int e)
    {
        return at(y(), 4 * x() + e % 32) + e / 32 * 32;
    }
    /* 16 elements from e on, of each row. */
    static __device__ __forceinline__ void read(const float *a, int e, operand (&of)[2][MT])
    {
        a += first_row() * D + piece(e);
#pragma unroll
        for (int m = 0; m < MT; m++) {
            float4 low = *(const float4 *)(a + 16 * m * D);
            float4 high = *(const float4 *)(a + (16 * m + 8) * D);
            of[0][m] = operand{low.x, high.x, low.y, high.y};
            of[1][m] = operand{low.z, high.z, low.w, high.w};
        }
    }
    static __device__ __forceinline__ held hold(const float *a)
    {
        held h;
#pragma unroll
        for (int e = 0; e < D; e += 16) read(a, e, h.of[e / 16]);
        return h;
    }
    static __device__ __forceinline__ left left_of(const float *a)
    {
        if constexpr (HOLDS)
            return hold(a);
        else
            return a;
    }
    static __device__ __forceinline__ void add_scores(const operand (&of)[2][MT], const float *b,
                                                      int e, float (&c)[MI][NJ])
    {
#pragma unroll
        for (int j = 0; j < NJ; j += 2) {
            float4 with = *(const float4 *)(b + j * 4 * D + piece(e));
#pragma unroll
            for (int m = 0; m < MT; m++)
                multiply(of[0][m], with.x, with.y, c[2 * m][j], c[2 * m][j + 1], c[2 * m + 1][j],
                         c[2 * m + 1][j + 1]);
#pragma unroll
            for (int m = 0; m < MT; m++)
                multiply(of[1][m], with.z, with.w, c[2 * m][j], c[2 * m][j + 1], c[2 * m + 1][j],
                         c[2 * m + 1][j + 1]);
        }
    }
    static __device__ __forceinline__ void clear(float (&c)[MI][NJ])
    {
#pragma unroll
        for (int i = 0; i < MI; i++)
#pragma unroll
            for (int j = 0; j < NJ; j++) c[i][j] = 0;
    }
    static __device__ __forceinline__ void scores(const held &a, const float *b, float (&c)[MI][NJ])
    {
        clear(c);
#pragma unroll
        for (int e = 0; e < D; e += 16) add_scores(a.of[e / 16], b, e, c);
    }
    static __device__ __forceinline__ void scores(const float *a, const float *b,
                                                  float (&c)[MI][NJ])
    {
        clear(c);
#pragma unroll
        for (int e = 0; e < D; e += 16) {
            operand of[2][MT];
            read(a, e, of);
            add_scores(of, b, e, c);
        }
    }

    static __device__ __forceinline__ void add_product(const float (&c)[MI][NJ], const float *b,
                                                       float (&y_)[MI][DJ], float *)
    {
        int even = at(2 * x(), 4 * y()), odd = at(2 * x() + 1, 4 * y());
#pragma unroll
        for (int j = 0; j < NJ; j += 2) {
            operand of[MT];
#pragma unroll
            for (int m = 0; m < MT; m++)
                of[m] = operand{tf32_of(c[2 * m][j]), tf32_of(c[2 * m + 1][j]),
                                tf32_of(c[2 * m][j + 1]), tf32_of(c[2 * m + 1][j + 1])};
#pragma unroll
            for (int g = 0; g < DJ; g += 8) {
                float4 u = *(const float4 *)(b + j * 4 * D + even + 4 * g);
                float4 w = *(const float4 *)(b + j * 4 * D + odd + 4 * g);
                const float us[4] = {u.x, u.y, u.z, u.w}, ws[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
                for (int e = 0; e < 4; e++)
#pragma unroll
                    for (int m = 0; m < MT; m++)
                        multiply(of[m], us[e], ws[e], y_[2 * m][g + e], y_[2 * m][g + e + 4],
                                 y_[2 * m + 1][g + e], y_[2 * m + 1][g + e + 4]);
            }
        }
    }
};

extern "C" ll_err attention_cuda_tf32(const ll_kcall *c)
{
    int64_t d = heads_of(c).d;
    if (d <= 32) return forward_of<by_mma<32, 2, 64, 2, true>>(c);
    return d <= 64 ? forward_of<by_mma<64, 2, 32, 2, true>>(c)
                   : forward_of<by_mma<128, 2, 32, 2, false>>(c);
}

extern "C" ll_err attention_grad_cuda_tf32(const ll_kcall *c)
{
    int64_t d = heads_of(c).d;
    if (d <= 32) return backward_of<by_mma<32, 2, 32, 3, false>>(c);
    return d <= 64 ? backward_of<by_mma<64, 2, 32, 2, false>>(c)
                   : backward_of<by_mma<128, 1, 32, 2, false>>(c);
}
