/* Pooling on CPUs, f32. One thread takes rows of the result; within a pixel four channels go at
 * once. The last four of a pixel may overlap the ones before (every result is computed from
 * scratch, so doing one twice is harmless), which leaves no remainder: 6 channels are 0..3
 * and 2..5. The gradients gather: a pixel of the image looks at the windows that cover it, so each
 * is written by one thread, and summed in one order. */
#include "kern/attr.h"
#include "kern/kern.h"

ll_kernel max_pool_cpu, max_pool_grad_cpu, max_pool_pick_cpu, avg_pool_cpu, avg_pool_grad_cpu;

typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
enum { LANES = 4 };

static inline vf load(const float *p, int64_t lanes)
{
    vf v = {0};
    if (lanes == LANES)
        memcpy(&v, p, sizeof v);
    else
        memcpy(&v, p, sizeof(float) * (size_t)lanes);
    return v;
}

static inline vi load_int(const int32_t *p, int64_t lanes)
{
    vi v = {0};
    if (lanes == LANES)
        memcpy(&v, p, sizeof v);
    else
        memcpy(&v, p, sizeof(int32_t) * (size_t)lanes);
    return v;
}

static inline void store(void *p, const void *v, int64_t lanes)
{
    if (lanes == LANES)
        memcpy(p, v, sizeof(vf));
    else
        memcpy(p, v, sizeof(float) * (size_t)lanes);
}

typedef struct pool {
    ll_pool_attr a;
    int64_t h, w, oh, ow, c, lanes;
} pool;

static pool pool_of(const ll_kcall *k, const ll_tensor *image, const ll_tensor *output)
{
    const int64_t *x = image->shape.d, *y = output->shape.d;
    return (pool){*(const ll_pool_attr *)k->attr, x[1], x[2], y[1], y[2], x[3],
                  x[3] < LANES ? x[3] : LANES};
}

static int threads(const ll_kcall *k, const pool *v, const ll_tensor *image)
{
    int64_t work = ll_numel(&image->shape) * v->a.size[0] * v->a.size[1];
    return work < LL_PARALLEL_WORK ? 1 : k->threads;
}

/* The first channel of the four that follow c. */
static inline int64_t next(const pool *v, int64_t c)
{
    c += v->lanes;
    return c < v->c && c > v->c - v->lanes ? v->c - v->lanes : c;
}

static int64_t max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

typedef struct range {
    int64_t from, to;
} range;

/* The places of window number o that lie in the image, on axis k. */
static range inside(const pool *v, int k, int64_t o)
{
    int64_t at = o * v->a.stride[k] - v->a.pad[2 * k], size = k ? v->w : v->h;
    return (range){max(0, -at), min(v->a.size[k], size - at)};
}

/* The windows that cover pixel i, on axis k. */
static range covering(const pool *v, int k, int64_t i)
{
    int64_t at = i + v->a.pad[2 * k], s = v->a.stride[k], first = at - v->a.size[k] + 1;
    return (range){first <= 0 ? 0 : (first + s - 1) / s,
                   at < 0 ? 0 : min(at / s + 1, k ? v->ow : v->oh)};
}

/* x: the pixel under place (0, 0) of the window, which need not exist. */
static void max_pixel(const pool *v, const float *x, range r, range s, float *y, int32_t *index)
{
    for (int64_t c = 0; c < v->c; c = next(v, c)) {
        vf best = {0};
        vi at = {-1, -1, -1, -1};
        bool first = true;
        for (int64_t i = r.from; i < r.to; i++)
            for (int64_t j = s.from; j < s.to; j++) {
                vf e = load(x + (i * v->w + j) * v->c + c, v->lanes);
                int32_t k = (int32_t)(i * v->a.size[1] + j);
                vi here = {k, k, k, k};
                vi more = ~(e <= best) & (best == best); /* larger, or the first NaN */
                if (first) more = ~(vi){0};
                first = false;
                best = (vf)(((vi)e & more) | ((vi)best & ~more));
                at = (here & more) | (at & ~more);
            }
        store(y + c, &best, v->lanes);
        store(index + c, &at, v->lanes);
    }
}

/* The usual case: windows of 2 x 2 that tile the image, and at least four channels. */
static bool halves(const pool *v)
{
    const ll_pool_attr *a = &v->a;
    return a->size[0] == 2 && a->size[1] == 2 && a->stride[0] == 2 && a->stride[1] == 2 &&
           a->pad[0] == 0 && a->pad[2] == 0 && v->h == 2 * v->oh && v->w == 2 * v->ow &&
           v->c >= LANES;
}

static inline void take(vf e, int32_t k, vf *best, vi *at)
{
    vi more = ~(e <= *best) & (*best == *best); /* larger, or the first NaN */
    *best = (vf)(((vi)e & more) | ((vi)*best & ~more));
    *at = ((vi){k, k, k, k} & more) | (*at & ~more);
}

/* One row of results from two rows of the image. */
static void max_row_2x2(const pool *v, const float *x, float *y, int32_t *index)
{
    int64_t c = v->c, pitch = v->w * c;
    for (int64_t p = 0; p < v->ow; p++, x += 2 * c, y += c, index += c)
        for (int64_t q = 0; q < c; q = next(v, q)) {
            vf best = load(x + q, LANES);
            vi at = {0};
            take(load(x + c + q, LANES), 1, &best, &at);
            take(load(x + pitch + q, LANES), 2, &best, &at);
            take(load(x + pitch + c + q, LANES), 3, &best, &at);
            store(y + q, &best, LANES);
            store(index + q, &at, LANES);
        }
}

/* Two rows of the image's gradient from one row of the result's. */
static void grad_row_2x2(const pool *v, const float *dy, const int32_t *index, float *dx)
{
    int64_t c = v->c, pitch = v->w * c;
    for (int64_t p = 0; p < v->ow; p++, dx += 2 * c, dy += c, index += c)
        for (int64_t q = 0; q < c; q = next(v, q)) {
            vi d = (vi)load(dy + q, LANES), at = load_int(index + q, LANES);
            vi e[4] = {d & (at == 0), d & (at == 1), d & (at == 2), d & (at == 3)};
            store(dx + q, &e[0], LANES);
            store(dx + c + q, &e[1], LANES);
            store(dx + pitch + q, &e[2], LANES);
            store(dx + pitch + c + q, &e[3], LANES);
        }
}

ll_err max_pool_cpu(const ll_kcall *k)
{
    pool v = pool_of(k, &k->in[0], &k->out[0]);
    const float *x = (const float *)k->in[0].data;
    float *y = (float *)k->out[0].data;
    int32_t *index = (int32_t *)k->out[1].data;
    int64_t rows = k->in[0].shape.d[0] * v.oh, out_row = v.ow * v.c;
    if (halves(&v)) {
#pragma omp parallel for num_threads(threads(k, &v, &k->in[0]))
        for (int64_t row = 0; row < rows; row++)
            max_row_2x2(&v, x + row * 4 * out_row, y + row * out_row, index + row * out_row);
        return LL_OK;
    }
#pragma omp parallel for num_threads(threads(k, &v, &k->in[0]))
    for (int64_t row = 0; row < rows; row++) {
        int64_t n = row / v.oh, o = row % v.oh;
        range r = inside(&v, 0, o);
        for (int64_t p = 0; p < v.ow; p++) {
            int64_t i = o * v.a.stride[0] - v.a.pad[0], j = p * v.a.stride[1] - v.a.pad[2];
            int64_t out = (row * v.ow + p) * v.c;
            max_pixel(&v, x + ((n * v.h + i) * v.w + j) * v.c, r, inside(&v, 1, p), y + out,
                      index + out);
        }
    }
    return LL_OK;
}

ll_err max_pool_pick_cpu(const ll_kcall *k)
{
    pool v = pool_of(k, &k->in[0], &k->out[0]);
    const float *x = (const float *)k->in[0].data;
    const int32_t *index = (const int32_t *)k->in[1].data;
    float *y = (float *)k->out[0].data;
    int64_t rows = k->in[0].shape.d[0] * v.oh;
#pragma omp parallel for num_threads(threads(k, &v, &k->in[0]))
    for (int64_t row = 0; row < rows; row++)
        for (int64_t e = 0; e < v.ow * v.c; e++) {
            int64_t n = row / v.oh, out = row * v.ow * v.c + e, place = index[out];
            int64_t i = row % v.oh * v.a.stride[0] - v.a.pad[0] + place / v.a.size[1];
            int64_t j = e / v.c * v.a.stride[1] - v.a.pad[2] + place % v.a.size[1];
            bool real = place >= 0 && i >= 0 && i < v.h && j >= 0 && j < v.w;
            y[out] = real ? x[((n * v.h + i) * v.w + j) * v.c + e % v.c] : 0;
        }
    return LL_OK;
}

/* dy, index: of the image's first output row. */
static void grad_pixel(const pool *v, int64_t i, int64_t j, const float *dy, const int32_t *index,
                       range o, range p, float *dx)
{
    for (int64_t c = 0; c < v->c; c = next(v, c)) {
        vf sum = {0};
        for (int64_t a = o.from; a < o.to; a++)
            for (int64_t b = p.from; b < p.to; b++) {
                int64_t at = (a * v->ow + b) * v->c + c;
                int64_t r = i + v->a.pad[0] - a * v->a.stride[0];
                int64_t s = j + v->a.pad[2] - b * v->a.stride[1];
                int32_t k = (int32_t)(r * v->a.size[1] + s);
                vi chosen = load_int(index + at, v->lanes) == (vi){k, k, k, k};
                sum += (vf)((vi)load(dy + at, v->lanes) & chosen);
            }
        store(dx + c, &sum, v->lanes);
    }
}

ll_err max_pool_grad_cpu(const ll_kcall *k)
{
    pool v = pool_of(k, &k->out[0], &k->in[0]);
    const float *dy = (const float *)k->in[0].data;
    const int32_t *index = (const int32_t *)k->in[1].data;
    float *dx = (float *)k->out[0].data;
    int64_t rows = k->out[0].shape.d[0] * v.h, image = v.oh * v.ow * v.c, out_row = v.ow * v.c;
    if (halves(&v)) {
#pragma omp parallel for num_threads(threads(k, &v, &k->out[0]))
        for (int64_t row = 0; row < rows / 2; row++)
            grad_row_2x2(&v, dy + row * out_row, index + row * out_row, dx + row * 4 * out_row);
        return LL_OK;
    }
#pragma omp parallel for num_threads(threads(k, &v, &k->out[0]))
    for (int64_t row = 0; row < rows; row++) {
        int64_t n = row / v.h, i = row % v.h;
        range o = covering(&v, 0, i);
        for (int64_t j = 0; j < v.w; j++)
            grad_pixel(&v, i, j, dy + n * image, index + n * image, o, covering(&v, 1, j),
                       dx + (row * v.w + j) * v.c);
    }
    return LL_OK;
}

/* out = the sum of the pixels of a rectangle, times scale; pitch: elements from row to row. */
static void sum_pixels(const pool *v, const float *in, int64_t pitch, range a, range b, float scale,
                       float *out)
{
    for (int64_t c = 0; c < v->c; c = next(v, c)) {
        vf sum = {0};
        for (int64_t i = a.from; i < a.to; i++)
            for (int64_t j = b.from; j < b.to; j++)
                sum += load(in + i * pitch + j * v->c + c, v->lanes);
        sum *= scale;
        store(out + c, &sum, v->lanes);
    }
}

ll_err avg_pool_cpu(const ll_kcall *k)
{
    pool v = pool_of(k, &k->in[0], &k->out[0]);
    const float *x = (const float *)k->in[0].data;
    float *y = (float *)k->out[0].data;
    float scale = 1 / (float)(v.a.size[0] * v.a.size[1]);
    int64_t rows = k->in[0].shape.d[0] * v.oh;
#pragma omp parallel for num_threads(threads(k, &v, &k->in[0]))
    for (int64_t row = 0; row < rows; row++) {
        int64_t n = row / v.oh, o = row % v.oh;
        range r = inside(&v, 0, o);
        for (int64_t p = 0; p < v.ow; p++) {
            int64_t i = o * v.a.stride[0] - v.a.pad[0], j = p * v.a.stride[1] - v.a.pad[2];
            sum_pixels(&v, x + ((n * v.h + i) * v.w + j) * v.c, v.w * v.c, r, inside(&v, 1, p),
                       scale, y + (row * v.ow + p) * v.c);
        }
    }
    return LL_OK;
}

ll_err avg_pool_grad_cpu(const ll_kcall *k)
{
    pool v = pool_of(k, &k->out[0], &k->in[0]);
    const float *dy = (const float *)k->in[0].data;
    float *dx = (float *)k->out[0].data;
    float scale = 1 / (float)(v.a.size[0] * v.a.size[1]);
    int64_t rows = k->out[0].shape.d[0] * v.h;
#pragma omp parallel for num_threads(threads(k, &v, &k->out[0]))
    for (int64_t row = 0; row < rows; row++) {
        int64_t n = row / v.h, i = row % v.h;
        range o = covering(&v, 0, i);
        for (int64_t j = 0; j < v.w; j++)
            sum_pixels(&v, dy + n * v.oh * v.ow * v.c, v.ow * v.c, o, covering(&v, 1, j), scale,
                       dx + (row * v.w + j) * v.c);
    }
    return LL_OK;
}
