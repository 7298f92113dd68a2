/* layernorm_both.cu: a residual's sum, its norm, and that as 8-bit floats, also transposed.
 *
 * A block has 64 rows at a time (32 where they are very long). The sum and the 8-bit rows leave at
 * once; 8-bit rows stay in shared memory too, and when the block's rows are there, they leave
 * transposed: 64 bytes of each column. A warp has one row at a time, in registers, and the next one
 * on its way; two blocks a multiprocessor. The scale is a bound that every block finds in gain and
 * bias. */
#include "kern/cuda/layernorm.cuh"

enum { BLOCK = 256, WARPS = BLOCK / 32, WIDEST = 10 * 256 };

static norming both_of(const ll_kcall *c)
{
    norming a = norm_of(c, 0, true);
    a.plus = c->in[1].data, a.gain = c->in[2].data, a.bias = c->in[3].data;
    a.before = c->n_in > 4 ? c->in[4].data : NULL;
    a.sum = c->out[0].data, a.q = (uint8_t *)c->out[1].data, a.t = (uint8_t *)c->out[2].data;
    a.scale = (float *)c->out[3].data;
    a.mean_out = c->out[4].data, a.rstd_out = c->out[5].data;
    a.eps = ((const ll_norm_attr *)c->attr)->eps;
    return a;
}

/* ---- rows of bf16 that 16 divides, in length and number ---- */

/* Where word w of a row lies in shared memory: lanes that read four rows' groups of 16 side by side
 * meet no bank twice. */
__device__ __forceinline__ int word_at(int row, int w, int pitch)
{
    return row * pitch + (w ^ ((row >> 4 & 3) << 3));
}

template <int R>
__device__ __forceinline__ void write_transposed(const norming &a, const unsigned *tile,
                                                 int64_t row0, int pitch)
{
    enum { GROUPS = R / 16 };
    int words = (int)a.n / 4, g = threadIdx.x % GROUPS;
    if (row0 + g * 16 >= a.rows) return;
    for (int w = threadIdx.x / GROUPS; w < words; w += blockDim.x / GROUPS) {
        unsigned of[16];
        uint4 out[4];
#pragma unroll
        for (int r = 0; r < 16; r++) of[r] = tile[word_at(g * 16 + r, w, pitch)];
        transpose_16(of, out);
#pragma unroll
        for (int k = 0; k < 4; k++)
            __stcs((uint4 *)(a.t + (int64_t)(4 * w + k) * a.rows + row0 + g * 16), out[k]);
    }
}

template <int K, int R>
static __global__ void __launch_bounds__(BLOCK, 2) tall(norming a, int pitch)
{
    extern __shared__ unsigned tile[]; /* [R][pitch] */
    int warp = threadIdx.x / 32;
    int64_t row0 = blockIdx.x * (int64_t)R;
    row_pieces<bf16, K, 1> p;
    if (row0 + warp < a.rows) p.load_both(a, row0 + warp);
    float by = 1 / eight_scale(a);
    for (int i = warp; i < R && row0 + i < a.rows; i += WARPS) {
        int64_t r = row0 + i;
        p.add_up(a, r);
        float2 s = p.statistics(a, r);
#pragma unroll
        for (int k = 0; k < K; k++) {
            int at = p.column(k);
            float v[8];
            if (at >= (int)a.n) continue;
            p.norm(a, k, s, v);
            uint2 w = round_eight<__NV_E4M3>(v, by);
            __stcs((uint2 *)(a.q + r * a.n + at), w);
            *(uint2 *)(tile + word_at(i, at / 4, pitch)) = w;
        }
        if (i + WARPS < R && r + WARPS < a.rows) p.load_both(a, r + WARPS);
    }
    __syncthreads();
    write_transposed<R>(a, tile, row0, pitch);
}

template <int K, int R> static ll_err run_tall(const ll_kcall *c)
{
    norming a = both_of(c);
    int pitch = (int)ll_ceil_div(a.n, 128) * 32;
    return launch_shared(c, tall<K, R>, ll_ceil_div(a.rows, R), BLOCK, R * pitch * sizeof(unsigned),
                         a, pitch);
}

static ll_err run_plain(const ll_kcall *c)
{
    norming a = both_of(c);
    return ll_norm_plain(c, &a);
}

/* ---- the ways ---- */

/* Rows of bf16 that 16 divides, in length and number, so long at most. */
template <int MOST_N> static bool even_fits(const ll_kcall *c)
{
    int64_t rows = ll_rows(&c->in[0]), n = ll_cols(&c->in[0]);
    return c->in[0].dtype == LL_BF16 && rows % 16 == 0 && n % 16 == 0 && rows && n && n <= MOST_N;
}

extern "C" const ll_solver layernorm_both_cuda[] = {
    {"registers", even_fits<512>, NULL, run_tall<2, 64>},
    {"registers", even_fits<768>, NULL, run_tall<3, 64>},
    {"registers", even_fits<1024>, NULL, run_tall<4, 64>},
    {"registers", even_fits<1280>, NULL, run_tall<5, 64>},
    {"registers", even_fits<1792>, NULL, run_tall<7, 64>},
    {"registers", even_fits<WIDEST>, NULL, run_tall<10, 32>},
    {"plain", NULL, NULL, run_plain},
    {}};
