/* Pooling on CPUs, f32. A thread takes rows of the output (or images of a gradient); within a pixel
 * four channels go at once. The last four of a pixel may overlap the ones before: every result is
 * computed from scratch, so doing one twice is harmless, and no remainder is left (6 channels are
 * 0..3 and 2..5). Images of fewer than four channels go one at a time, by the same code. Where
 * loads have masks (AVX-512) eight go at once, and fewer as one.
 *
 * Gradients. Where windows do not overlap, each output writes the pixels of its window, the rest of
 * the image being zero. Where they do, a pixel gathers from the windows that cover it. Either way
 * each is written by one thread, and summed in one order. */
#include "base/num.h"
#include "kern/attr.h"
#include "kern/cpu/row.h"
#include "kern/kern.h"

LL_KERNELS(max_pool, max_pool_pick, avg_pool)

#define INLINE static inline __attribute__((always_inline))
#if defined(__AVX512VL__)
#include <immintrin.h>
enum { LANES = 8 };
#define FEW(channels) ((int)(channels))
#else
enum { LANES = 4 };
#define FEW(channels) 1
#endif
typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));

/* Places are loaded and stored as the bits that they are. */
INLINE vf load(const int lanes, const void *p)
{
#if defined(__AVX512VL__)
    return (vf)_mm256_maskz_loadu_ps((__mmask8)((1u << lanes) - 1), p);
#else
    vf v = {0};
    memcpy(&v, p, sizeof(float) * (size_t)lanes);
    return v;
#endif
}

INLINE void store(const int lanes, void *p, vf v)
{
#if defined(__AVX512VL__)
    _mm256_mask_storeu_ps(p, (__mmask8)((1u << lanes) - 1), (__m256)v);
#else
    memcpy(p, &v, sizeof(float) * (size_t)lanes);
#endif
}

INLINE vi splat(int64_t k)
{
    return (vi){0} + (int32_t)k;
}

/* f(lanes, ...), of which there are as many as channels at most; constants where f is inlined. */
#define BY_LANES(f, channels, ...)                                                                 \
    ((channels) >= LANES ? f(LANES, __VA_ARGS__) : f(FEW(channels), __VA_ARGS__))

/* Channels c0, c0 + lanes, ... of n; the last ones start at n - lanes. */
#define EACH(c, lanes, n)                                                                          \
    for (int64_t c##_ = 0, c = 0; c##_ < (n); c##_ += (lanes), c = ll_min64(c##_, (n) - (lanes)))

typedef struct pool {
    ll_pool_attr a;
    int64_t n, h, w, oh, ow, c;
} pool;

typedef struct range {
    int64_t from, to;
} range;

static pool pool_of(const ll_kcall *k, const ll_tensor *image, const ll_tensor *output)
{
    const int64_t *x = image->shape.d, *y = output->shape.d;
    return (pool){*(const ll_pool_attr *)k->attr, x[0], x[1], x[2], y[1], y[2], x[3]};
}

static int threads(const ll_kcall *k, const pool *v)
{
    int64_t work = v->n * v->c * ll_max64(v->h * v->w, v->oh * v->ow * v->a.size[0] * v->a.size[1]);
    return ll_team_for(k->threads, work);
}

/* The image row (k = 0) or column (k = 1) where window o starts. */
static int64_t start(const pool *v, int k, int64_t o)
{
    return o * v->a.stride[k] - v->a.pad[2 * k];
}

/* The places of window o inside the image. */
static range inside(const pool *v, int k, int64_t o)
{
    int64_t at = start(v, k, o);
    return (range){ll_max64(0, -at), ll_min64(v->a.size[k], (k ? v->w : v->h) - at)};
}

/* The windows that cover image row or column i. */
static range covering(const pool *v, int k, int64_t i)
{
    int64_t at = i + v->a.pad[2 * k], s = v->a.stride[k], first = at - v->a.size[k] + 1;
    return (range){first <= 0 ? 0 : ll_ceil_div(first, s),
                   at < 0 ? 0 : ll_min64(at / s + 1, k ? v->ow : v->oh)};
}

/* ---- the largest of each window ---- */

/* One window: its places r x s, x being the element of place (0, 0), which need not exist. */
INLINE void max_window(const int lanes, const pool *v, const float *x, int64_t at, range r, range s,
                       float *y, int32_t *index)
{
    EACH (c, lanes, v->c) {
        vf best = {0};
        vi place = splat(-1);
        if (r.from < r.to && s.from < s.to) {
            best = load(lanes, x + (at + (r.from * v->w + s.from) * v->c + c));
            place = splat(r.from * v->a.size[1] + s.from);
        }
        for (int64_t i = r.from; i < r.to; i++)
            for (int64_t j = s.from; j < s.to; j++) {
                vf e = load(lanes, x + (at + (i * v->w + j) * v->c + c));
                vi more = (e > best) | (e != e);
                best = (vf)(((vi)e & more) | ((vi)best & ~more));
                place = (splat(i * v->a.size[1] + j) & more) | (place & ~more);
            }
        store(lanes, y + c, best);
        store(lanes, index + c, (vf)place);
    }
}

INLINE void max_row(const int lanes, const pool *call, int64_t row, const float *x, float *y,
                    int32_t *index)
{
    const pool here = *call, *v = &here; /* which no store can change */
    range r = inside(v, 0, row % v->oh);
    int64_t i = row / v->oh * v->h + start(v, 0, row % v->oh);
    for (int64_t p = 0; p < v->ow; p++) {
        int64_t at = (i * v->w + start(v, 1, p)) * v->c, out = (row * v->ow + p) * v->c;
        range s = inside(v, 1, p);
        if (r.to - r.from == 2 && s.to - s.from == 2 && !r.from && !s.from) /* unrolled */
            max_window(lanes, v, x, at, (range){0, 2}, (range){0, 2}, y + out, index + out);
        else if (r.to - r.from == 3 && s.to - s.from == 3 && !r.from && !s.from)
            max_window(lanes, v, x, at, (range){0, 3}, (range){0, 3}, y + out, index + out);
        else
            max_window(lanes, v, x, at, r, s, y + out, index + out);
    }
}

/* Rows [from, to) of all images' outputs. */
static void max_rows(const void *given, int64_t from, int64_t to)
{
    const ll_kcall *k = (const ll_kcall *)given;
    pool v = pool_of(k, &k->in[0], &k->out[0]);
    const float *x = (const float *)k->in[0].data;
    float *y = (float *)k->out[0].data;
    int32_t *index = (int32_t *)k->out[1].data;
    for (int64_t row = from; row < to; row++) BY_LANES(max_row, v.c, &v, row, x, y, index);
}

static void pick_rows(const void *given, int64_t from, int64_t to)
{
    const ll_kcall *k = (const ll_kcall *)given;
    pool v = pool_of(k, &k->in[0], &k->out[0]);
    const float *x = (const float *)k->in[0].data;
    const int32_t *index = (const int32_t *)k->in[1].data;
    float *y = (float *)k->out[0].data;
    for (int64_t row = from; row < to; row++)
        for (int64_t e = 0; e < v.ow * v.c; e++) {
            int64_t n = row / v.oh, out = row * v.ow * v.c + e, place = index[out];
            int64_t i = start(&v, 0, row % v.oh) + place / v.a.size[1];
            int64_t j = start(&v, 1, e / v.c) + place % v.a.size[1];
            bool real = place >= 0 && i >= 0 && i < v.h && j >= 0 && j < v.w;
            y[out] = real ? x[((n * v.h + i) * v.w + j) * v.c + e % v.c] : 0;
        }
}

/* ---- averages ---- */

/* out = scale times the sum of the pixels a x b; at: the element of pixel (0, 0). */
INLINE void sum_pixels(const int lanes, const pool *v, const float *in, int64_t at, int64_t pitch,
                       range a, range b, float scale, float *out)
{
    EACH (c, lanes, v->c) {
        vf sum = {0};
        for (int64_t i = a.from; i < a.to; i++)
            for (int64_t j = b.from; j < b.to; j++)
                sum += load(lanes, in + (at + i * pitch + j * v->c + c));
        store(lanes, out + c, sum * scale);
    }
}

static void avg_rows(const void *given, int64_t from, int64_t to)
{
    const ll_kcall *k = (const ll_kcall *)given;
    pool v = pool_of(k, &k->in[0], &k->out[0]);
    const float *x = (const float *)k->in[0].data;
    float *y = (float *)k->out[0].data, scale = 1 / (float)(v.a.size[0] * v.a.size[1]);
    for (int64_t row = from; row < to; row++) {
        range r = inside(&v, 0, row % v.oh);
        int64_t i = row / v.oh * v.h + start(&v, 0, row % v.oh);
        for (int64_t p = 0; p < v.ow; p++) {
            int64_t at = (i * v.w + start(&v, 1, p)) * v.c;
            float *out = y + (row * v.ow + p) * v.c;
            BY_LANES(sum_pixels, v.c, &v, x, at, v.w * v.c, r, inside(&v, 1, p), scale, out);
        }
    }
}

#define KERNEL(name, rows)                                                                         \
    ll_err name##_cpu(const ll_kcall *k)                                                           \
    {                                                                                              \
        pool v = pool_of(k, &k->in[0], &k->out[0]);                                                \
        ll_in_parts(threads(k, &v), v.n *v.oh, rows, k);                                           \
        return LL_OK;                                                                              \
    }
KERNEL(max_pool, max_rows)
KERNEL(max_pool_pick, pick_rows)
KERNEL(avg_pool, avg_rows)

/* ---- gradients ---- */

/* What a gradient works on: the pixels of one image; index NULL: averages. */
typedef struct spread {
    pool v;
    const float *dy;
    const int32_t *index;
    float *dx;
    float scale;
    bool apart; /* windows: none shares a pixel with another */
} spread;

/* One output to the pixels of its window, which no other window has. */
INLINE void write_window(const int lanes, const spread *g, int64_t out, int64_t at, range r,
                         range s)
{
    const pool *v = &g->v;
    EACH (c, lanes, v->c) {
        vf d = load(lanes, g->dy + out + c) * g->scale;
        vi place = g->index ? (vi)load(lanes, g->index + out + c) : splat(0);
        for (int64_t i = r.from; i < r.to; i++)
            for (int64_t j = s.from; j < s.to; j++) {
                vi chosen = place == splat(g->index ? i * v->a.size[1] + j : 0);
                store(lanes, g->dx + (at + (i * v->w + j) * v->c + c), (vf)((vi)d & chosen));
            }
    }
}

INLINE void write_image(const int lanes, const spread *call)
{
    const spread here = *call, *g = &here; /* which no store can change */
    const pool *v = &g->v;
    bool tiled = v->oh * v->a.size[0] == v->h && v->ow * v->a.size[1] == v->w;
    if (!tiled || v->a.pad[0] || v->a.pad[2] || v->a.size[0] != v->a.stride[0] ||
        v->a.size[1] != v->a.stride[1]) /* some pixels are in no window */
        memset(g->dx, 0, sizeof(float) * (size_t)(v->h * v->w * v->c));
    for (int64_t o = 0; o < v->oh; o++) {
        range r = inside(v, 0, o);
        for (int64_t p = 0; p < v->ow; p++) {
            range s = inside(v, 1, p);
            int64_t at = (start(v, 0, o) * v->w + start(v, 1, p)) * v->c;
            int64_t out = (o * v->ow + p) * v->c;
            if (r.to - r.from == 2 && s.to - s.from == 2 && !r.from && !s.from) /* unrolled */
                write_window(lanes, g, out, at, (range){0, 2}, (range){0, 2});
            else
                write_window(lanes, g, out, at, r, s);
        }
    }
}

/* One pixel from the windows o x p that cover it. */
INLINE void gather_pixel(const int lanes, const spread *g, int64_t i, int64_t j, range o, range p)
{
    const pool *v = &g->v;
    EACH (c, lanes, v->c) {
        vf sum = {0};
        for (int64_t a = o.from; a < o.to; a++)
            for (int64_t b = p.from; b < p.to; b++) {
                int64_t at = (a * v->ow + b) * v->c + c;
                int64_t place = (i - start(v, 0, a)) * v->a.size[1] + j - start(v, 1, b);
                vf d = load(lanes, g->dy + at);
                if (g->index) d = (vf)((vi)d & ((vi)load(lanes, g->index + at) == splat(place)));
                sum += d;
            }
        store(lanes, g->dx + (i * v->w + j) * v->c + c, sum * g->scale);
    }
}

INLINE void gather_image(const int lanes, const spread *call)
{
    const spread here = *call, *g = &here;
    const pool *v = &g->v;
    for (int64_t i = 0; i < v->h; i++) {
        range o = covering(v, 0, i);
        for (int64_t j = 0; j < v->w; j++) gather_pixel(lanes, g, i, j, o, covering(v, 1, j));
    }
}

/* Images [from, to); all: of the first. */
static void spread_images(const void *all, int64_t from, int64_t to)
{
    spread g = *(const spread *)all;
    const pool *v = &g.v;
    int64_t in = v->oh * v->ow * v->c, out = v->h * v->w * v->c;
    g.dy += from * in, g.index += g.index ? from * in : 0, g.dx += from * out;
    for (; from < to; from++, g.dy += in, g.index += g.index ? in : 0, g.dx += out) {
        if (g.apart)
            BY_LANES(write_image, v->c, &g);
        else
            BY_LANES(gather_image, v->c, &g);
    }
}

static ll_err spread_all(const ll_kcall *k, bool apart)
{
    const ll_pool_attr *a = (const ll_pool_attr *)k->attr;
    bool max = k->n_in > 1;
    spread g = {.v = pool_of(k, &k->out[0], &k->in[0]), .apart = apart};
    g.dy = (const float *)k->in[0].data, g.dx = (float *)k->out[0].data;
    g.index = max ? (const int32_t *)k->in[1].data : NULL;
    g.scale = max ? 1 : 1 / (float)(a->size[0] * a->size[1]);
    ll_in_parts(threads(k, &g.v), g.v.n, spread_images, &g);
    return LL_OK;
}

static bool are_apart(const ll_kcall *k)
{
    const ll_pool_attr *a = (const ll_pool_attr *)k->attr;
    return a->size[0] <= a->stride[0] && a->size[1] <= a->stride[1];
}

static ll_err write_all(const ll_kcall *k)
{
    return spread_all(k, true);
}

static ll_err gather_all(const ll_kcall *k)
{
    return spread_all(k, false);
}

/* Of both. */
const ll_solver pool_grad_cpu[] = {
    {.name = "write", .fits = are_apart, .run = write_all, .parts = true},
    {.name = "gather", .run = gather_all, .parts = true},
    {0}};
