/* packed.cu: a product with packed weights. Blocks of x are rounded to 8 bits first; then a warp
 * makes one element of up to MOST rows: a lane takes blocks, and multiplies whole numbers. A row's
 * sums are in the same order whatever stands beside it. */
#include "kern/cuda/gpu.cuh"

enum { THREADS = 256, MOST = 4, BLOCK = 32 };

typedef struct rounded { /* a block of x, d times k */
    union {
        int8_t k[BLOCK];
        int4 four[2];
    };
    float d;
    int all; /* the sum of k */
    int64_t pad;
} rounded;

/* A warp has a block. */
static __global__ void round_blocks(const float *x, rounded *to, int64_t n)
{
    int lane = threadIdx.x & 31;
    int64_t i = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) / BLOCK;
    if (i >= n) return;
    float v = x[i * BLOCK + lane], d = warp_max(fabsf(v)) / 127, by = d > 0 ? 1 / d : 0;
    int k = (int)rintf(v * by), all = warp_sum(k);
    to[i].k[lane] = (int8_t)k;
    if (lane == 0) to[i].d = d, to[i].all = all;
}

static __device__ __forceinline__ int dot16(int4 a, int4 b, int sum)
{
    return __dp4a(a.x, b.x, __dp4a(a.y, b.y, __dp4a(a.z, b.z, __dp4a(a.w, b.w, sum))));
}

static __device__ __forceinline__ int4 low(int4 v, int shift)
{
    const int mask = 0x0f0f0f0f;
    return int4{v.x >> shift & mask, v.y >> shift & mask, v.z >> shift & mask, v.w >> shift & mask};
}

template <int BITS, int M>
static __global__ void __launch_bounds__(THREADS)
    product(const rounded *x, const int4 *q, const __half *scale, const __half *least, float *y,
            int64_t m, int64_t rows, int64_t blocks)
{
    int lane = threadIdx.x & 31;
    int64_t i = blockIdx.x * (int64_t)(THREADS / 32) + (threadIdx.x >> 5), first = blockIdx.y * M;
    if (i >= rows) return;
    float sum[M] = {};
    for (int64_t b = lane; b < blocks; b += 32) {
        int64_t at = i * blocks + b;
        int4 w0 = q[at * (BITS / 4)], w1 = BITS == 8 ? q[at * 2 + 1] : low(w0, 4);
        if (BITS == 4) w0 = low(w0, 0);
        float s = __half2float(scale[at]), l = BITS == 4 ? __half2float(least[at]) : 0;
#pragma unroll
        for (int r = 0; r < M; r++) {
            if (first + r >= m) break;
            const rounded *v = &x[(first + r) * blocks + b];
            int dot = dot16(w0, v->four[0], dot16(w1, v->four[1], 0));
            sum[r] += s * v->d * (float)dot;
            if (BITS == 4) sum[r] += l * v->d * (float)v->all;
        }
    }
#pragma unroll
    for (int r = 0; r < M; r++) {
        float all = warp_sum(sum[r]);
        if (lane == r && first + r < m) y[(first + r) * rows + i] = all;
    }
}

static size_t scratch(const ll_kcall *c)
{
    return (size_t)(ll_numel(&c->in[0].shape) / BLOCK) * sizeof(rounded) + LL_WORKSPACE_SLACK;
}

static ll_err run(const ll_kcall *c)
{
    const ll_packed_attr *a = (const ll_packed_attr *)c->attr;
    const ll_shape *s = &c->in[2].shape;
    int64_t rows = 1, blocks = 1, n = ll_numel(&c->out[0].shape);
    for (int d = 0; d < s->n; d++) *(d < a->rows ? &rows : &blocks) *= s->d[d];
    if (!n) return LL_OK;
    int64_t m = n / rows, each = m > 2 ? MOST : m;
    TRY(launch(c, round_blocks, (unsigned)ll_ceil_div(m * blocks * BLOCK, THREADS), THREADS,
               c->in[0].data, workspace_of(c), m * blocks));
    dim3 grid((unsigned)ll_ceil_div(rows, THREADS / 32), (unsigned)ll_ceil_div(m, each));
    auto with = [&](auto kernel) -> ll_err {
        return launch(c, kernel, grid, THREADS, workspace_of(c), c->in[1].data, c->in[2].data,
                      c->n_in > 3 ? c->in[3].data : NULL, c->out[0].data, m, rows, blocks);
    };
    if (a->bits == 8)
        return each == 1   ? with(product<8, 1>)
               : each == 2 ? with(product<8, 2>)
                           : with(product<8, MOST>);
    return each == 1   ? with(product<4, 1>)
           : each == 2 ? with(product<4, 2>)
                       : with(product<4, MOST>);
}

extern "C" const ll_solver packed_matmul_cuda[] = {{NULL, NULL, scratch, run}, {}};
