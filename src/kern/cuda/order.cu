/* order.cu: argmax and cumsum, a warp a line; sort, where each element counts those that come
 * before it, by tiles of its row in shared memory: n^2 comparisons, but all rows and elements at
 * once, and no room needed. */
#include "kern/cuda/gpu.cuh"

enum { WARPS = 8, TILE = 256 };

/* NaN counts as larger than every number. */
static __device__ __forceinline__ bool before(double a, double b, bool least)
{
    return least ? a < b || (b != b && a == a) : a > b || (a != a && b == b);
}

typedef struct lines {
    const void *x;
    void *y;
    int type;
    int64_t n, inner, count; /* elements of a line, how far apart, and lines */
} lines;

static lines lines_of(const ll_kcall *c, int64_t dim)
{
    const ll_shape *s = &c->in[0].shape;
    lines l = {c->in[0].data, c->out[0].data, c->in[0].dtype, s->d[dim], 1, 0};
    for (int d = (int)dim + 1; d < s->n; d++) l.inner *= s->d[d];
    l.count = ll_numel(s) ? ll_numel(s) / l.n : 0;
    return l;
}

/* Where this warp's line starts; -1: there is none. */
static __device__ __forceinline__ int64_t line_start(const lines &l)
{
    int64_t line = blockIdx.x * (int64_t)WARPS + threadIdx.x / 32;
    return line < l.count ? line / l.inner * l.n * l.inner + line % l.inner : -1;
}

static __global__ void argmax(lines l, bool least)
{
    int64_t from = line_start(l), lane = threadIdx.x & 31;
    if (from < 0) return;
    int64_t best = lane < l.n ? lane : 0;
    double top = load_any(l.x, l.type, from + best * l.inner);
    for (int64_t i = lane + 32; i < l.n; i += 32) {
        double v = load_any(l.x, l.type, from + i * l.inner);
        if (before(v, top, least)) top = v, best = i;
    }
    for (int o = 16; o; o >>= 1) {
        double v = __shfl_xor_sync(0xffffffffu, top, o);
        int64_t i = __shfl_xor_sync(0xffffffffu, best, o);
        bool first = !before(top, v, least) && i < best;
        if (before(v, top, least) || first) top = v, best = i;
    }
    if (lane == 0) ((int32_t *)l.y)[blockIdx.x * (int64_t)WARPS + threadIdx.x / 32] = (int32_t)best;
}

static ll_err run_argmax(const ll_kcall *c)
{
    const ll_order_attr *a = (const ll_order_attr *)c->attr;
    lines l = lines_of(c, a->dim);
    if (!l.count) return LL_OK;
    return launch(c, argmax, ll_ceil_div(l.count, WARPS), 32 * WARPS, l, a->least != 0);
}

static __global__ void cumsum(lines l, bool exclusive, bool reverse)
{
    int64_t from = line_start(l), lane = threadIdx.x & 31;
    if (from < 0) return;
    double carry = 0;
    for (int64_t base = 0; base < l.n; base += 32) {
        int64_t i = base + lane, at = from + (reverse ? l.n - 1 - i : i) * l.inner;
        double v = i < l.n ? load_any(l.x, l.type, at) : 0, sum = v;
        for (int o = 1; o < 32; o <<= 1) {
            double w = __shfl_up_sync(0xffffffffu, sum, o);
            if (lane >= o) sum += w;
        }
        double before_it = __shfl_up_sync(0xffffffffu, sum, 1);
        if (i < l.n) store_any(l.y, l.type, at, carry + (exclusive ? (lane ? before_it : 0) : sum));
        carry += __shfl_sync(0xffffffffu, sum, 31);
    }
}

static ll_err run_cumsum(const ll_kcall *c)
{
    const ll_cumsum_attr *a = (const ll_cumsum_attr *)c->attr;
    lines l = lines_of(c, a->dim);
    if (!l.count) return LL_OK;
    return launch(c, cumsum, ll_ceil_div(l.count, WARPS), 32 * WARPS, l, a->exclusive != 0,
                  a->reverse != 0);
}

static __global__ void sort(lines l, int32_t *index, int64_t k, bool least)
{
    __shared__ double tile[TILE];
    int64_t tiles = (l.n + TILE - 1) / TILE, row = blockIdx.x / tiles;
    int64_t i = blockIdx.x % tiles * TILE + threadIdx.x, place = 0;
    double v = i < l.n ? load_any(l.x, l.type, row * l.n + i) : 0;
    for (int64_t base = 0; base < l.n; base += TILE) {
        __syncthreads();
        int64_t mine = base + threadIdx.x;
        if (mine < l.n) tile[threadIdx.x] = load_any(l.x, l.type, row * l.n + mine);
        __syncthreads();
        for (int j = 0; j < TILE && base + j < l.n; j++) {
            double w = tile[j];
            place += before(w, v, least) || (base + j < i && !before(v, w, least));
        }
    }
    if (i >= l.n || place >= k) return;
    store_any(l.y, l.type, row * k + place, v);
    index[row * k + place] = (int32_t)i;
}

static ll_err run_sort(const ll_kcall *c)
{
    const ll_order_attr *a = (const ll_order_attr *)c->attr;
    lines l = lines_of(c, c->in[0].shape.n - 1);
    if (!l.count || !a->k) return LL_OK;
    return launch(c, sort, l.count * ll_ceil_div(l.n, TILE), TILE, l, c->out[1].data, a->k,
                  a->least != 0);
}

extern "C" const ll_solver argmax_cuda[] = {{.run = run_argmax}, {}};
extern "C" const ll_solver cumsum_cuda[] = {{.run = run_cumsum}, {}};
extern "C" const ll_solver sort_cuda[] = {{.run = run_sort}, {}};
