/* picture.c: windows, filters and colours. */
#include "data/picture.h"

#include "base/num.h"
#include "base/rng.h"

#include <math.h>

#define TRIES 10

/* The largest window of the result's proportions, and of that `centre` in the middle. */
static ll_crop middle(const ll_picture_view *v, double height, double width)
{
    double scale = fmin(height / (double)v->height, width / (double)v->width) * v->centre;
    ll_crop w = {.height = scale * (double)v->height, .width = scale * (double)v->width};
    w.y = (height - w.height) / 2;
    w.x = (width - w.width) / 2;
    return w;
}

ll_crop ll_picture_view_crop(const ll_picture_view *v, int64_t height, int64_t width)
{
    const ll_sampling *how = v->how;
    if (how->split != LL_TRAIN || how->scale[1] <= 0)
        return middle(v, (double)height, (double)width);
    /* A part of the area, of proportions from 3:4 to 4:3, as Inception was trained. */
    for (int i = 0; i < TRIES; i++) {
        float u[4];
        ll_uniform_4(how->seed, ll_stream("crop", (uint64_t)i), (uint64_t)v->position, u);
        double area = how->scale[0] + u[0] * (how->scale[1] - how->scale[0]);
        double shape = exp(log(3 / 4.0) + u[1] * log(16 / 9.0));
        area *= (double)height * (double)width;
        ll_crop w = {.height = sqrt(area / shape), .width = sqrt(area * shape)};
        if (w.height > (double)height || w.width > (double)width) continue;
        w.y = u[2] * ((double)height - w.height);
        w.x = u[3] * ((double)width - w.width);
        return w;
    }
    return middle(v, (double)height, (double)width);
}

/* For each of n results, the pixels that it is a mean of, `room` weights apart. */
typedef struct taps {
    int64_t *from;
    int *count, room;
    float *weight;
} taps;

static void make_taps(ll_arena *a, double start, double length, int64_t size, int64_t n, taps *t)
{
    double scale = length / (double)n, reach = fmax(scale, 1);
    t->room = (int)ceil(2 * reach) + 2;
    t->from = LL_NEW_ARRAY(a, int64_t, n);
    t->count = LL_NEW_ARRAY(a, int, n);
    t->weight = LL_NEW_ARRAY(a, float, n * t->room);
    for (int64_t i = 0; i < n; i++) {
        double centre = start + ((double)i + 0.5) * scale, sum = 0, w[2];
        int64_t low = ll_max64(0, (int64_t)floor(centre - reach)),
                high = ll_min64(size, low + t->room);
        float *weight = t->weight + i * t->room;
        t->from[i] = ll_min64(low, size - 1);
        for (int64_t k = t->from[i]; k < high; k++) {
            w[0] = 1 - fabs((double)k + 0.5 - centre) / reach;
            w[1] = fmax(w[0], 0);
            weight[t->count[i]++] = (float)w[1];
            sum += w[1];
        }
        while (t->count[i] > 1 && weight[t->count[i] - 1] == 0) t->count[i]--;
        if (sum <= 0) weight[0] = 1, sum = 1;
        for (int k = 0; k < t->count[i]; k++) weight[k] /= (float)sum;
    }
}

static uint8_t to_byte(float v)
{
    return (uint8_t)(v <= 0 ? 0 : v >= 255 ? 255 : v + 0.5f);
}

/* All channels of a pixel at once, and what lies behind them, which is not used. */
typedef float lanes __attribute__((vector_size(16), aligned(4)));
typedef int32_t whole __attribute__((vector_size(16)));

static void row_of_taps(const float *line, const taps *t, int64_t n, int c, uint8_t *out)
{
    for (int64_t i = 0; i < n; i++, out += c) {
        const float *w = t->weight + i * t->room, *p = line + t->from[i] * c;
        lanes s = {0};
        for (int k = 0; k < t->count[i]; k++, p += c) s += w[k] * *(const lanes *)p;
        whole bytes = __builtin_convertvector(s + 0.5f, whole); /* a mean of bytes is one */
        for (int j = 0; j < c; j++) out[j] = (uint8_t)bytes[j];
    }
}

/* Rows y.. of a picture combined, two at a time, between two columns. */
static void line_of_taps(const ll_picture *p, const taps *t, int64_t y, size_t first, size_t last,
                         float *restrict line)
{
    const size_t n = (size_t)(p->width * p->channels);
    const uint8_t *row = p->pixels + (size_t)t->from[y] * n;
    const float *w = t->weight + y * t->room;
    for (int k = 0; k < t->count[y]; k += 2, row += 2 * n) {
        const uint8_t *next = k + 1 < t->count[y] ? row + n : row;
        const float a = w[k], b = k + 1 < t->count[y] ? w[k + 1] : 0;
        if (k == 0)
            for (size_t i = first; i < last; i++) line[i] = a * (float)row[i] + b * (float)next[i];
        else
            for (size_t i = first; i < last; i++) line[i] += a * (float)row[i] + b * (float)next[i];
    }
}

/* Rows are combined first, which is done for many pixels at once, then what is left along them. */
static ll_err resample(const ll_picture_view *v, const ll_picture *p, const char *file,
                       uint8_t *out)
{
    const int c = p->channels;
    const size_t n = (size_t)(p->width * c);
    LL_OWN(ll_arena) a = ll_arena_new();
    taps down, across;
    make_taps(a, p->window.y, p->window.height, p->height, v->height, &down);
    make_taps(a, p->window.x, p->window.width, p->width, v->width, &across);
    LL_OWN_MEMORY float *line = calloc(n + 4, sizeof *line);
    CHECK(line, LL_E_MEM, "%s: not enough memory for a picture's row", file);
    size_t first = (size_t)(across.from[0] * c);
    size_t last = (size_t)((across.from[v->width - 1] + across.count[v->width - 1]) * c);
    for (int64_t y = 0; y < v->height; y++) {
        line_of_taps(p, &down, y, first, last, line);
        row_of_taps(line, &across, v->width, c, out + (size_t)(y * v->width * c));
    }
    return LL_OK;
}

static float grey(const uint8_t *p)
{
    return 0.299f * p[0] + 0.587f * p[1] + 0.114f * p[2];
}

/* n pixels to other channels: colours to grey by their brightness, grey to equal colours; alpha is
 * dropped, or opaque where there was none. */
static void convert(const uint8_t *p, int have, int want, int64_t n, uint8_t *out)
{
    for (int64_t i = 0; i < n; i++, p += have, out += want) {
        if (want == 1) {
            out[0] = have < 3 ? p[0] : to_byte(grey(p));
            continue;
        }
        for (int c = 0; c < 3; c++) out[c] = p[have < 3 ? 0 : c];
        if (want == 4) out[3] = have == 4 ? p[3] : have == 2 ? p[1] : 255;
    }
}

/* Brightness, contrast and saturation, each by a factor within 1 +- jitter. */
static void change_colours(const ll_picture_view *v, uint8_t *p)
{
    const int c = v->channels;
    const int64_t n = v->height * v->width;
    float u[4], f[3];
    double mean = 0;
    ll_uniform_4(v->how->seed, ll_stream("jitter", 0), (uint64_t)v->position, u);
    for (int i = 0; i < 3; i++) f[i] = 1 + (float)v->how->jitter * (2 * u[i] - 1);
    for (int64_t i = 0; i < n; i++) mean += c < 3 ? p[i * c] : grey(p + i * c);
    const float b = f[0] * f[1], shift = (float)(mean / (double)n) * f[0] * (1 - f[1]);
    for (int64_t i = 0; i < n; i++, p += c) {
        float g = c < 3 ? 0 : grey(p) * b * (1 - f[2]);
        float s = c < 3 ? b : b * f[2];
        for (int k = 0; k < (c < 3 ? 1 : 3); k++) p[k] = to_byte(p[k] * s + g + shift);
    }
}

ll_err ll_picture_view_fit(const ll_picture_view *v, const ll_picture *p, const char *file,
                           uint8_t *out)
{
    LL_OWN_MEMORY uint8_t *room = NULL;
    const int64_t n = v->height * v->width;
    bool same = p->channels == v->channels;
    if (!same) {
        room = malloc((size_t)(n * p->channels));
        CHECK(room, LL_E_MEM, "%s: not enough memory for a picture", file);
    }
    TRY(resample(v, p, file, same ? out : room));
    if (!same) convert(room, p->channels, v->channels, n, out);
    if (v->how->split == LL_TRAIN && v->how->jitter > 0) change_colours(v, out);
    return LL_OK;
}

void ll_picture_view_map(const ll_picture_view *v, const ll_picture *p, uint8_t *out)
{
    const ll_crop *w = &p->window;
    for (int64_t y = 0; y < v->height; y++)
        for (int64_t x = 0; x < v->width; x++) {
            double fy = w->y + ((double)y + 0.5) * w->height / (double)v->height;
            double fx = w->x + ((double)x + 0.5) * w->width / (double)v->width;
            int64_t iy = ll_min64((int64_t)fy, p->height - 1),
                    ix = ll_min64((int64_t)fx, p->width - 1);
            *out++ = p->pixels[(iy * p->width + ix) * p->channels];
        }
}
