/* keep.cu: which keys and values stay (kern/keep.h), and moving new ones there. A block has a head
 * of a sequence. */
#include "kern/cuda/gpu.cuh"
#include "kern/keep.h"

enum { THREADS = 256 };

typedef struct sizes {
    int64_t t, n, g, d, s;
    float scale;
} sizes;

static __device__ float dot_of(const float *a, const float *b, int64_t n)
{
    float sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* Leaves out the entry of least mass, of equal ones the first, among places up to recent. */
static __device__ void drop_one(const ll_entries *e, float recent)
{
    float least = -INFINITY, first = -INFINITY; /* both negated */
    for (int64_t j = threadIdx.x; j < e->rows + e->fresh; j += THREADS)
        if (e->place[j] >= 0 && e->place[j] <= recent) least = fmaxf(least, -e->mass[j]);
    least = block_max(least);
    for (int64_t j = threadIdx.x; j < e->rows + e->fresh; j += THREADS)
        if (e->place[j] >= 0 && e->place[j] <= recent && -e->mass[j] == least)
            first = fmaxf(first, -e->place[j]);
    first = block_max(first);
    for (int64_t j = threadIdx.x; j < e->rows + e->fresh; j += THREADS)
        if (e->place[j] == -first && e->place[j] >= 0) e->place[j] = -1;
    __syncthreads();
}

static __global__ void keep(sizes z, const float *q, const float *k, const float *kept,
                            const float *was, const int32_t *ats, const int32_t *news, float *room,
                            float *out)
{
    int64_t b = blockIdx.x / z.n, h = blockIdx.x % z.n, s = z.s, at = ats[b], all = s + z.t;
    int64_t now = news[b] < z.t ? news[b] : z.t, old = at < 0 ? 0 : at < s ? at : s;
    float *p = room + blockIdx.x * 3 * all;
    ll_entries e = {p + all, p + 2 * all, s, z.t};
    kept += (b * s * z.n + h) * z.d, was += (b * s * z.n + h) * 2, out += (b * s * z.n + h) * 2;
    k += (b * z.t * z.n + h) * z.d;
    float n = 0;
    for (int64_t j = threadIdx.x; j < all; j += THREADS) {
        e.mass[j] = j < s ? was[j * z.n * 2] : 0;
        e.place[j] = j < s         ? ll_entry_place(was[j * z.n * 2 + 1], j, at)
                     : j - s < now ? (float)(at + j - s)
                                   : -1;
        n += e.place[j] >= 0;
    }
    n = block_sum(n);
    for (int64_t i = 0; i < now * z.g; i++) {
        int64_t to = i / z.g, seen = old + to + 1;
        const float *query = q + (((b * z.t + to) * z.n + h) * z.g + i % z.g) * z.d;
        float top = -INFINITY, sum = 0;
        for (int64_t j = threadIdx.x; j < seen; j += THREADS) {
            p[j] = z.scale *
                   dot_of(query, (j < old ? kept + j * z.n * z.d : k + (j - old) * z.n * z.d), z.d);
            top = fmaxf(top, p[j]);
        }
        top = block_max(top);
        for (int64_t j = threadIdx.x; j < seen; j += THREADS) sum += p[j] = expf(p[j] - top);
        sum = block_sum(sum);
        for (int64_t j = threadIdx.x; j < seen; j += THREADS)
            e.mass[j < old ? j : s + j - old] += p[j] / sum;
        __syncthreads();
    }
    float recent = (float)(at + now - 1 - (s - s / 2));
    for (int64_t m = (int64_t)n; m > s; m--) drop_one(&e, recent);
    if (threadIdx.x == 0) ll_entries_keep(&e, at + now - 1);
    __syncthreads();
    for (int64_t j = threadIdx.x; j < s; j += THREADS)
        out[j * z.n * 2] = e.mass[j], out[j * z.n * 2 + 1] = e.place[j];
}

static size_t keep_scratch(const ll_kcall *c)
{
    const int64_t *x = c->in[0].shape.d;
    return (size_t)(x[0] * x[2] * 3 * (c->in[3].shape.d[1] + x[1])) * sizeof(float);
}

static ll_err run_keep(const ll_kcall *c)
{
    const int64_t *x = c->in[0].shape.d;
    float scale = (float)((const ll_cache_keep_attr *)c->attr)->scale;
    sizes z = {x[1], x[2], x[3], x[4], c->in[3].shape.d[1], scale};
    if (x[0] * x[2] == 0) return LL_OK;
    return launch(c, keep, (unsigned)(x[0] * x[2]), THREADS, z, c->in[0].data, c->in[1].data,
                  c->in[2].data, c->in[3].data, c->in[4].data, c->in[5].data, c->scratch,
                  c->out[0].data);
}

static __global__ void place_rows(const float *x, const float *kept, const int32_t *at, float *y,
                                  int64_t n, int64_t t, int64_t s, int64_t heads, int64_t d)
{
    GRID_STRIDE(i, n)
    {
        int64_t row = i / d, b = row / heads / s;
        float place = kept[2 * row + 1], first = (float)at[b];
        if (place >= first && place < first + (float)t)
            y[i] = x[((b * t + (int64_t)(place - first)) * heads + row % heads) * d + i % d];
    }
}

static ll_err run_place(const ll_kcall *c)
{
    const int64_t *s = c->in[0].shape.d, n = ll_numel(&c->in[0].shape);
    if (c->out[0].data != c->in[0].data)
        CUDA_TRY(cudaMemcpyAsync(c->out[0].data, c->in[0].data, (size_t)n * sizeof(float),
                                 cudaMemcpyDeviceToDevice, stream_of(c)));
    return launch_each(c, n, place_rows, c->in[1].data, c->in[2].data, c->in[3].data,
                       c->out[0].data, n, c->in[1].shape.d[1], s[1], s[2], s[3]);
}

extern "C" const ll_solver cache_keep_cuda[] = {{"plain", NULL, keep_scratch, run_keep}, {}};
extern "C" const ll_solver cache_place_cuda[] = {{"plain", NULL, NULL, run_place}, {}};
