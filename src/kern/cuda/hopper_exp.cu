/* hopper_exp.cu: exponentials of a product of bf16 matrices, less a number for each row, and their
 * sums (hopper_tile.cuh): a classifier's, of which the logits touch no memory (classify.cu). A
 * group takes its exponentials while the other one multiplies. */
#include "kern/cuda/hopper_tile.cuh"

#define LOG2E 1.4426950408889634f
enum { BAND = 16 }; /* rows of two tiles: of so many, a stays in the cache, and b is read for all */

typedef struct job {
    operands o;
    CUtensorMap y;
    int rows, columns;
    const bf16 *bias;
    const float *from;
    float *sums;
} job;

/* A lane's rows: two of each half of a tile. */
__device__ __forceinline__ int row_of(const worker &w, int h, int e)
{
    return h * 64 + w.warp * 16 + e * 8 + w.lane / 4;
}

/* bias log2(e) of the lane's two columns of the 8 from `column` on. */
__device__ __forceinline__ float2 bias_of(const job &j, const worker &w, int column)
{
    uint32_t b = __ldg((const uint32_t *)(j.bias + column + (w.lane & 3) * 2));
    return make_float2(low_of(b) * LOG2E, high_of(b) * LOG2E);
}

/* 16 columns, of which the first is `column`, in place; from: less so much, for each row. WHOLE:
 * all of them are there. */
template <bool BIAS, bool WHOLE>
__device__ __forceinline__ void exp_16(const job &j, const worker &w, int column, float *v,
                                       const float (&from)[2], float (&total)[2])
{
#pragma unroll
    for (int q = 0; q < 2; q++) {
        if (!WHOLE && column + q * 8 >= j.columns) break; /* what is beyond is not stored */
        float2 b = BIAS ? bias_of(j, w, column + q * 8) : make_float2(0.f, 0.f);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float *x = v + q * 4 + e * 2;
            x[0] = power_of_2(fmaf(x[0], LOG2E, BIAS ? b.x - from[e] : -from[e]));
            x[1] = power_of_2(fmaf(x[1], LOG2E, BIAS ? b.y - from[e] : -from[e]));
            total[e] += x[0];
            total[e] += x[1];
        }
    }
}

__device__ __forceinline__ void put_totals(const job &j, const worker &w, int row, int column,
                                           const float (&total)[2][2])
{
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float t = total[h][e];
            t += __shfl_xor_sync(0xffffffffu, t, 1);
            t += __shfl_xor_sync(0xffffffffu, t, 2);
            int r = row + row_of(w, h, e);
            if (w.lane % 4 == 0 && r < j.rows) j.sums[(int64_t)(column / COLUMNS) * j.rows + r] = t;
        }
}

/* 32 columns through a slot, three slots in turn. */
template <bool BIAS, bool WHOLE>
__device__ __forceinline__ void exp_epilogue(const job &j, worker &w, int row, int column,
                                             sums_t &sum)
{
    float from[2][2], total[2][2] = {};
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int r = row + row_of(w, h, e);
            from[h][e] = r < j.rows ? __ldg(j.from + r) * LOG2E : 0.f;
        }
#pragma unroll
    for (int n = 0; n < COLUMNS / WIDE; n++) {
#pragma unroll
        for (int i = 0; i < WIDE / 16; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float *v = sum[h] + (n * (WIDE / 16) + i) * 8;
                exp_16<BIAS, WHOLE>(j, w, column + n * WIDE + i * 16, v, from[h], total[h]);
                put(piece_at(w, n % 3, h, i), v);
            }
        written<1>(w);
        if (w.thread == 0) tile_store(&j.y, column + n * WIDE, row, w.slot + n % 3 * SLOT);
    }
    put_totals(j, w, row, column, total);
}

template <bool BIAS> __device__ void work(const job &j, const room &r, worker &w)
{
    int step = gridDim.x / 2;
    for (int t = blockIdx.x / 2 + w.group * step; t < j.o.pairs * j.o.across; t += 2 * step) {
        sums_t sum;
        sum_tile<false>(j.o, r, w, sum);
        place at = place_of(j.o, t, w.rank);
        if (at.column + COLUMNS <= j.columns)
            exp_epilogue<BIAS, true>(j, w, at.row, at.column, sum);
        else
            exp_epilogue<BIAS, false>(j, w, at.row, at.column, sum);
    }
    if (w.thread == 0) stores_done();
}

template <bool BIAS>
static __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)
    exp_90(const __grid_constant__ job j)
{
    run_block<40, 232, false>(j.o, [&](const room &r, worker &w) { work<BIAS>(j, r, w); });
}

extern "C" bool ll_hopper_exp_fits(const hopper_exp *h)
{
    return operands_fit(&h->a, &h->b, &h->y, false);
}

extern "C" ll_err ll_hopper_exp_run(const ll_kcall *c, const hopper_exp *h)
{
    job j = {};
    static_assert((int)HOPPER_COLUMNS == (int)COLUMNS, "sums are of tiles");
    TRY(operands_of(&j.o, &h->a, &h->b, false));
    TRY(map_of(&j.y, h->y.data, h->y.rows, h->y.cols, h->y.cols, WIDE, ROWS));
    j.o.band = BAND;
    j.rows = (int)h->y.rows, j.columns = (int)h->y.cols;
    j.bias = (const bf16 *)h->bias, j.from = h->from, j.sums = h->sums;
    return h->bias ? launch_tiles(c, exp_90<true>, &j) : launch_tiles(c, exp_90<false>, &j);
}
