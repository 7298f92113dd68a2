/* quantize_blocks.cu: 8-bit floats with a scale for each block of 128, along rows, columns, or
 * both. A block of threads has 128 x 128 numbers in registers, a warp 16 rows and a lane 4 columns
 * of them: largest magnitudes of rows meet in a warp, those of columns in shared memory. What is
 * transposed leaves by way of shared memory, 128 bytes of a column at a time. */
#include "kern/cuda/eight.cuh"

enum { THREADS = 256, ROWS = 16, COLS = 4, WARPS = LL_BLOCK / ROWS, PIECES = LL_BLOCK / 16 };

typedef struct side { /* 8-bit floats of one direction; q NULL: they are not wanted */
    uint8_t *q;
    float *scales;
} side;

typedef struct job {
    const void *x;
    int64_t rows, cols;
    side plain, transposed;
    bool square;
} job;

/* EVEN: rows and columns in sixteens. Four numbers in a row, zeros beyond the tensor's end. */
template <class T, bool EVEN>
__device__ __forceinline__ void load_four(const job &j, int64_t row, int64_t col, float v[COLS])
{
    const T *at = (const T *)j.x + row * j.cols + col;
    bool in = row < j.rows && col < j.cols;
    if constexpr (EVEN && sizeof(T) == 4) {
        float4 w = in ? __ldcs((const float4 *)at) : make_float4(0, 0, 0, 0);
        v[0] = w.x, v[1] = w.y, v[2] = w.z, v[3] = w.w;
    } else if constexpr (EVEN) {
        uint2 w = in ? __ldcs((const uint2 *)at) : make_uint2(0, 0);
        wide<bf16>::two(w.x, v), wide<bf16>::two(w.y, v + 2);
    } else
#pragma unroll
        for (int k = 0; k < COLS; k++) v[k] = in && col + k < j.cols ? to_float(at[k]) : 0;
}

__device__ __forceinline__ unsigned four(const float v[COLS], const float by[COLS])
{
    unsigned a = __nv_cvt_float2_to_fp8x2(make_float2(v[0] * by[0], v[1] * by[1]), __NV_SATFINITE,
                                          __NV_E4M3),
             b = __nv_cvt_float2_to_fp8x2(make_float2(v[2] * by[2], v[3] * by[3]), __NV_SATFINITE,
                                          __NV_E4M3);
    return a | b << 16;
}

/* A scale of block (row, col) of a matrix [rows, cols], and what pads its row of squares. */
__device__ __forceinline__ void put_scale(const job &j, const side &to, int64_t rows, int64_t cols,
                                          int64_t row, int64_t col, float scale)
{
    int64_t at = ll_block_at(j.square, rows, cols, row, col),
            stride = ll_block_stride(j.square, rows, cols);
    to.scales[at] = scale;
    if (j.square && col / LL_BLOCK == ll_block_count(cols) - 1)
        while (++at % stride) to.scales[at] = 1;
}

/* The largest of each row of a warp: lane 2 r and the one behind it have row r's. Each step leaves
 * half of the rows to half of the lanes. */
__device__ __forceinline__ unsigned most_of_rows(unsigned m[ROWS])
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = ROWS / 2, bit = 16; half > 0; half /= 2, bit /= 2) {
        bool up = lane & bit;
#pragma unroll
        for (int i = 0; i < half; i++) {
            unsigned other = __shfl_xor_sync(~0u, up ? m[i] : m[i + half], bit);
            m[i] = max(up ? m[i + half] : m[i], other);
        }
    }
    return max(m[0], __shfl_xor_sync(~0u, m[0], 1));
}

/* Rows of four columns as they lie. most: of the lane's row. */
template <bool EVEN>
__device__ __forceinline__ void put_rows(const job &j, int64_t row, int64_t col,
                                         float v[ROWS][COLS], unsigned most)
{
    int lane = threadIdx.x % 32, mine = lane / 2;
    float scale = ll_block_scale(__uint_as_float(most)), by = 1 / scale;
    if (lane % 2 == 0 && row + mine < j.rows && (!j.square || threadIdx.x == 0))
        put_scale(j, j.plain, j.rows, j.cols, row + mine, col - lane * COLS, scale);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float one = __shfl_sync(~0u, by, 2 * r);
        const float all[COLS] = {one, one, one, one};
        unsigned w = four(v[r], all);
        uint8_t *at = j.plain.q + (row + r) * j.cols + col;
        if (row + r >= j.rows) continue;
        if (EVEN && col < j.cols) __stcs((unsigned *)at, w);
#pragma unroll
        for (int k = 0; k < COLS; k++)
            if (!EVEN && col + k < j.cols) at[k] = w >> 8 * k;
    }
}

/* The same, transposed: most is of the lane's columns. */
template <bool EVEN>
__device__ __forceinline__ void put_columns(const job &j, int64_t row0, int64_t col0, int group,
                                            float v[ROWS][COLS], const unsigned most[COLS],
                                            uint4 *tile)
{
    int lane = threadIdx.x % 32;
    int64_t row = row0 + group * ROWS, col = col0 + lane * COLS;
    float scale[COLS], by[COLS];
#pragma unroll
    for (int k = 0; k < COLS; k++)
        scale[k] = ll_block_scale(__uint_as_float(most[k])), by[k] = 1 / scale[k];
#pragma unroll
    for (int k = 0; k < COLS; k++)
        if (group == 0 && col + k < j.cols && (!j.square || (lane == 0 && k == 0)))
            put_scale(j, j.transposed, j.cols, j.rows, col + k, row0, scale[k]);
    unsigned w[ROWS];
    uint4 out[COLS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) w[r] = four(v[r], by);
    transpose_16(w, out);
#pragma unroll
    for (int k = 0; k < COLS; k++) {
        tile[(lane * COLS + k) * PIECES + (group ^ lane % PIECES)] = out[k];
        const unsigned piece[4] = {out[k].x, out[k].y, out[k].z, out[k].w};
        for (int r = 0; !EVEN && r < ROWS; r++)
            if (row + r < j.rows && col + k < j.cols)
                j.transposed.q[(col + k) * j.rows + row + r] = piece[r / 4] >> r % 4 * 8;
    }
    __syncthreads();
    int g = threadIdx.x % PIECES;
    for (int c = threadIdx.x / PIECES; EVEN && c < LL_BLOCK; c += THREADS / PIECES)
        if (col0 + c < j.cols && row0 + g * 16 < j.rows)
            __stcs((uint4 *)(j.transposed.q + (col0 + c) * j.rows + row0 + g * 16),
                   tile[c * PIECES + (g ^ c / COLS % PIECES)]);
}

template <class T, bool EVEN> static __global__ __launch_bounds__(THREADS, 2) void quantize(job j)
{
    __shared__ uint4 tile[LL_BLOCK * PIECES];
    __shared__ unsigned columns[WARPS][LL_BLOCK];
    int group = threadIdx.x / 32, lane = threadIdx.x % 32;
    int64_t beside = ll_block_count(j.cols), row0 = blockIdx.x / beside * LL_BLOCK,
            col0 = blockIdx.x % beside * LL_BLOCK, row = row0 + group * ROWS,
            col = col0 + lane * COLS;
    float v[ROWS][COLS];
    unsigned of_row[ROWS], of_col[COLS] = {};
#pragma unroll
    for (int r = 0; r < ROWS; r++) load_four<T, EVEN>(j, row + r, col, v[r]);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        of_row[r] = 0;
#pragma unroll
        for (int k = 0; k < COLS; k++) {
            of_row[r] = max(of_row[r], magnitude(v[r][k]));
            of_col[k] = max(of_col[k], magnitude(v[r][k]));
        }
    }
    unsigned most = most_of_rows(of_row);
    if (j.square || j.transposed.q) {
#pragma unroll
        for (int k = 0; k < COLS; k++) columns[group][lane * COLS + k] = of_col[k];
        __syncthreads();
#pragma unroll
        for (int k = 0; k < COLS; k++)
            for (int w = 0; w < WARPS; w++) of_col[k] = max(of_col[k], columns[w][lane * COLS + k]);
    }
    if (j.square) {
        most = max(max(of_col[0], of_col[1]), max(of_col[2], of_col[3]));
#pragma unroll
        for (int x = 16; x > 0; x /= 2) most = max(most, __shfl_xor_sync(~0u, most, x));
#pragma unroll
        for (int k = 0; k < COLS; k++) of_col[k] = most;
    }
    if (j.plain.q) put_rows<EVEN>(j, row, col, v, most);
    if (j.transposed.q) put_columns<EVEN>(j, row0, col0, group, v, of_col, tile);
}

static ll_err run(const ll_kcall *c)
{
    const ll_blocks_attr *a = (const ll_blocks_attr *)c->attr;
    side first = {(uint8_t *)c->out[0].data, (float *)c->out[1].data}, none = {};
    job j = {c->in[0].data, 1, 1, a->transposed ? none : first, a->transposed ? first : none,
             a->square != 0};
    if (c->n_out > 2) j.transposed = side{(uint8_t *)c->out[2].data, (float *)c->out[3].data};
    for (int d = 0; d < c->in[0].shape.n; d++)
        *(d < a->rows ? &j.rows : &j.cols) *= c->in[0].shape.d[d];
    bool even = j.rows % 16 == 0 && j.cols % 16 == 0, narrow = c->in[0].dtype == LL_BF16;
    int64_t blocks = ll_block_count(j.rows) * ll_block_count(j.cols);
    CHECK(blocks < INT32_MAX, LL_E_SHAPE, "a tensor of %lld blocks is too large",
          (long long)blocks);
    if (!blocks) return LL_OK;
    auto kernel = narrow ? even ? quantize<bf16, true> : quantize<bf16, false>
                  : even ? quantize<float, true>
                         : quantize<float, false>;
    return launch(c, kernel, (unsigned)blocks, THREADS, j);
}

static __global__ void back(const uint8_t *q, const float *scales, bool square, int64_t rows,
                            int64_t cols, float *x)
{
    GRID_STRIDE(i, rows * cols)
    {
        __half v = __nv_cvt_fp8_to_halfraw(q[i], __NV_E4M3);
        x[i] = __half2float(v) * scales[ll_block_at(square, rows, cols, i / cols, i % cols)];
    }
}

static ll_err run_back(const ll_kcall *c)
{
    const ll_blocks_attr *a = (const ll_blocks_attr *)c->attr;
    int64_t n = ll_numel(&c->in[0].shape), rows = 1;
    for (int d = 0; d < a->rows; d++) rows *= c->in[0].shape.d[d];
    return launch_each(c, n, back, c->in[0].data, c->in[1].data, a->square, rows,
                       rows ? n / rows : 0, c->out[0].data);
}

extern "C" const ll_solver quantize_blocks_cuda[] = {{NULL, NULL, NULL, run}, {}};
extern "C" const ll_solver dequantize_blocks_cuda[] = {{NULL, NULL, NULL, run_back}, {}};
