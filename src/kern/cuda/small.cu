/* small.cu: y = a b in one wave of blocks: each loads all of k at once, for a tile of results, so
 * that memory is waited for once. Its threads have 2 x 2 results each, and share k: sums are added
 * up in one order. */
#include "kern/cuda/few.cuh"

enum { THREADS = 256, MOST_SHARED = 96 << 10 };
static const double MOST_FLOPS = 3e7;

/* From one row of a tile to the next in shared memory: 16 bytes of each of the rows that a warp
 * reads at once are in banks of their own. */
static __host__ __device__ __forceinline__ int step_of(int tile, int k)
{
    return (k + 31) / 32 * 32 + (tile == 8 ? 8 : 4);
}

/* Rows i0 to i0 + TILE - 1 of x, each with all of k; zeros beyond what there is. */
template <int TILE>
static __device__ __forceinline__ void fetch(const float *x, int64_t row, int64_t along, int i0,
                                             int n, int k, int step, float *to)
{
    int whole = (k + 3) / 4 * 4;
    if (along == 1) {
#pragma unroll 4
        for (int e = threadIdx.x; e < TILE * whole; e += THREADS) {
            int i = e / whole, l = e % whole;
            to[i * step + l] = i0 + i < n && l < k ? x[(i0 + i) * row + l] : 0;
        }
        return;
    }
#pragma unroll 4
    for (int e = threadIdx.x; e < TILE * whole; e += THREADS) {
        int i = e % TILE, l = e / TILE;
        to[i * step + l] = i0 + i < n && l < k ? x[(i0 + i) * row + l * along] : 0;
    }
}

template <int TILE>
static __global__ void __launch_bounds__(THREADS)
    product(matrix a, matrix b, int rows, int columns, int k, ending e)
{
    extern __shared__ float4 room[];
    constexpr int HALF = TILE / 2, PLACES = HALF * HALF, SLICES = THREADS / PLACES;
    int step = step_of(TILE, k), across = (columns + TILE - 1) / TILE;
    int i0 = blockIdx.x / across * TILE, j0 = blockIdx.x % across * TILE;
    float *as = (float *)room, *bs = as + TILE * step;
    fetch<TILE>((const float *)a.data, a.rs, a.cs, i0, rows, k, step, as);
    fetch<TILE>((const float *)b.data, b.cs, b.rs, j0, columns, k, step, bs);
    int place = threadIdx.x % PLACES, slice = threadIdx.x / PLACES;
    int i = place % HALF, j = place / HALF;
    float sum[2][2] = {};
    __syncthreads();
#pragma unroll 4
    for (int g = slice; g < (k + 3) / 4; g += SLICES) {
        float4 p[2], q[2];
#pragma unroll
        for (int u = 0; u < 2; u++) {
            p[u] = *(const float4 *)(as + (i + u * HALF) * step + 4 * g);
            q[u] = *(const float4 *)(bs + (j + u * HALF) * step + 4 * g);
        }
#pragma unroll
        for (int u = 0; u < 2; u++)
#pragma unroll
            for (int v = 0; v < 2; v++)
                sum[u][v] += p[u].x * q[v].x + p[u].y * q[v].y + p[u].z * q[v].z + p[u].w * q[v].w;
    }
    __syncthreads();
    float *all = (float *)room; /* [slice, TILE, TILE] */
#pragma unroll
    for (int u = 0; u < 2; u++)
#pragma unroll
        for (int v = 0; v < 2; v++)
            all[(slice * TILE + i + u * HALF) * TILE + j + v * HALF] = sum[u][v];
    __syncthreads();
    for (int t = threadIdx.x; t < TILE * TILE; t += THREADS) {
        float total = 0;
#pragma unroll
        for (int s = 0; s < SLICES; s++) total += all[s * TILE * TILE + t];
        int r = i0 + t / TILE, s = j0 + t % TILE;
        if (r < rows && s < columns) end(e, r, s, total);
    }
}

/* The smallest tile of which all are on the chip at once; 0: none. */
static int tile_of(const ll_kcall *c, const few *f)
{
    for (int tile = 8; tile <= 32; tile *= 2)
        if (ll_ceil_div(f->y.rows, tile) * ll_ceil_div(f->y.cols, tile) <= processors_of(c))
            return tile;
    return 0;
}

static size_t bytes_of(int tile, int64_t k)
{
    int64_t sums = (int64_t)THREADS * 4, tiles = 2ll * tile * step_of(tile, (int)k);
    return (size_t)ll_max64(sums, tiles) * sizeof(float);
}

extern "C" bool ll_small_fits(const ll_kcall *c, const few *f)
{
    int64_t m = f->y.rows, n = f->y.cols, k = f->a.cols;
    if (f->in != LL_F32 || f->out != LL_F32 || m < 1 || n < 1 || k < 1) return false;
    if (2.0 * (double)m * (double)n * (double)k > MOST_FLOPS) return false;
    int tile = tile_of(c, f);
    return tile && bytes_of(tile, k) <= MOST_SHARED;
}

extern "C" ll_err ll_small_run(const ll_kcall *c, const few *f)
{
    int tile = tile_of(c, f), m = (int)f->y.rows, n = (int)f->y.cols, k = (int)f->a.cols;
    unsigned blocks = (unsigned)(ll_ceil_div(m, tile) * ll_ceil_div(n, tile));
    auto kernel = tile == 8 ? product<8> : tile == 16 ? product<16> : product<32>;
    return launch_shared(c, kernel, blocks, THREADS, bytes_of(tile, k), f->a, f->b, m, n, k,
                         ending_of(f));
}
