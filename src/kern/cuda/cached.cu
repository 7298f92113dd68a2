/* cached.cu: attention to a cache of keys and values, and writing one. A block has one query: a
 * thread scores keys, then all weigh values, a channel each. Scores are in scratch. */
#include "kern/cuda/gpu.cuh"

enum { THREADS = 128 };

typedef struct sizes {
    int64_t t, n, g, d, room, window;
    double scale;
} sizes;

template <class T>
static __global__ void attend(sizes s, const T *q, const T *k, const T *v, const T *kc, const T *vc,
                              const int32_t *at, typename sum_of<T>::type *scores, T *y)
{
    typedef typename sum_of<T>::type S;
    int64_t row = blockIdx.x, head = row / s.g % s.n, i = row / s.g / s.n % s.t;
    int64_t b = row / s.g / s.n / s.t, seen = at[b] < 0 ? 0 : at[b] < s.room ? at[b] : s.room;
    int64_t end = seen + i + 1, from = s.window > 0 && end > s.window ? end - s.window : 0;
    const T *old = kc + (b * s.room * s.n + head) * s.d, *young = k + (b * s.t * s.n + head) * s.d;
    S *mine = scores + row * (s.room + s.t), top = -INFINITY, sum = 0;
    for (int64_t j = from + threadIdx.x; j < end; j += THREADS) {
        const T *key = j < seen ? old + j * s.n * s.d : young + (j - seen) * s.n * s.d;
        S dot = 0;
        for (int64_t d = 0; d < s.d; d++) dot += to_float(q[row * s.d + d]) * to_float(key[d]);
        mine[j] = dot * (S)s.scale;
        top = mine[j] > top ? mine[j] : top;
    }
    top = block_max(top);
    for (int64_t j = from + threadIdx.x; j < end; j += THREADS) {
        mine[j] = exp(mine[j] - top);
        sum += mine[j];
    }
    sum = block_sum(sum); /* and all scores are written */
    old = vc + (b * s.room * s.n + head) * s.d, young = v + (b * s.t * s.n + head) * s.d;
    for (int64_t d = threadIdx.x; d < s.d; d += THREADS) {
        S o = 0;
        for (int64_t j = from; j < end; j++)
            o += mine[j] *
                 to_float((j < seen ? old + j * s.n * s.d : young + (j - seen) * s.n * s.d)[d]);
        y[row * s.d + d] = from_float<T>::of(o / sum);
    }
}

static size_t attend_scratch(const ll_kcall *c)
{
    const int64_t *s = c->in[0].shape.d;
    return (size_t)(s[0] * s[1] * s[2] * s[3] * (c->in[3].shape.d[1] + s[1])) * sizeof(double);
}

static ll_err run_attend(const ll_kcall *c)
{
    const ll_cached_attr *a = (const ll_cached_attr *)c->attr;
    const int64_t *x = c->in[0].shape.d, rows = x[0] * x[1] * x[2] * x[3];
    sizes s = {x[1], x[2], x[3], x[4], c->in[3].shape.d[1], a->window, a->scale};
    if (!rows) return LL_OK;
    return with_float(c->in[0].dtype, [&](auto v) -> ll_err {
        typedef decltype(v) T;
        return launch(c, attend<T>, (unsigned)rows, THREADS, s, c->in[0].data, c->in[1].data,
                      c->in[2].data, c->in[3].data, c->in[4].data, c->in[5].data, c->scratch,
                      c->out[0].data);
    });
}

template <class T>
static __global__ void write(const T *x, const int32_t *at, T *y, int64_t n, int64_t t,
                             int64_t room, int64_t row)
{
    GRID_STRIDE(i, n)
    {
        int64_t b = i / row / t, place = at[b] + i / row % t;
        if (at[b] >= 0 && place < room) y[(b * room + place) * row + i % row] = x[i];
    }
}

static ll_err run_write(const ll_kcall *c)
{
    const int64_t *s = c->in[0].shape.d, n = ll_numel(&c->in[1].shape);
    if (c->out[0].data != c->in[0].data)
        CUDA_TRY(cudaMemcpyAsync(c->out[0].data, c->in[0].data,
                                 (size_t)ll_numel(&c->in[0].shape) * ll_dtype_bytes(c->in[0].dtype),
                                 cudaMemcpyDeviceToDevice, stream_of(c)));
    return with_float(c->in[0].dtype, [&](auto v) -> ll_err {
        return launch_each(c, n, write<decltype(v)>, c->in[1].data, c->in[2].data, c->out[0].data,
                           n, c->in[1].shape.d[1], s[1], s[2] * s[3]);
    });
}

/* Caches of bytes are the CPU's. */
static bool attend_fits(const ll_kcall *c)
{
    return c->in[3].dtype == c->in[0].dtype;
}

static bool write_fits(const ll_kcall *c)
{
    return c->in[0].dtype == c->in[1].dtype;
}

extern "C" const ll_solver cached_attend_cuda[] = {
    {"plain", attend_fits, attend_scratch, run_attend}, {}};
extern "C" const ll_solver cache_write_cuda[] = {{"plain", write_fits, NULL, run_write}, {}};
