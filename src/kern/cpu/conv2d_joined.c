/* conv2d_joined.c: conv2d_dx at stride 1 of filters whose rows of taps and channels, s * c numbers,
 * fill two vectors (LeNet-5's second layer: 5 x 6 = 30 of 32 lanes, where channels alone would use
 * 6 of 16).
 *
 * A row of the image gets, from each pixel p of dy, s * c numbers from column p - pad on:
 *
 *     sum over r, f of dy[row + pad - r, p, f] w[f, r, (s, c)]
 *
 * which is a product: dy as it lies by a filter row. What neighbours give overlaps: pixel p goes to
 * line p % s, where no two of them meet, and the lines are added up. */
#include "kern/cpu/conv2d_int.h"

enum { NR = 2 * LL_LANES, MOST = 12 /* pixels of a tile */ };

bool ll_conv_joined_fits(const ll_conv_shape *v)
{
    int64_t columns = v->s * v->c;
    return v->groups == 1 && v->a.stride[0] == 1 && v->a.stride[1] == 1 && v->a.dilation[1] == 1 &&
           v->a.pad[2] >= 0 && 4 * columns > 3 * NR && columns <= NR && !v->bf16 && !v->f64;
}

/* Of a line: what pixels write, and what the image reads. */
static int64_t pitch_of(const ll_conv_shape *v)
{
    return ll_max64((v->ow + v->s) * v->c, (v->w + v->a.pad[2]) * v->c) + NR;
}

static size_t filter_bytes(const ll_conv_shape *v)
{
    return ll_align64(sizeof(float) * (size_t)(v->r * v->f * NR));
}

static size_t line_bytes(const ll_conv_shape *v)
{
    return ll_align64(sizeof(float) * (size_t)(v->s * pitch_of(v)));
}

size_t ll_conv_joined_room(const ll_conv_shape *v)
{
    return filter_bytes(v) + (size_t)v->threads * line_bytes(v);
}

/* [f][r][s c] to [r][f][NR] */
static void pack(const ll_conv_shape *v, const float *w, float *to)
{
    int64_t columns = v->s * v->c;
    for (int64_t r = 0; r < v->r; r++)
        for (int64_t f = 0; f < v->f; f++, to += NR) {
            memcpy(to, w + (f * v->r + r) * columns, sizeof(float) * (size_t)columns);
            memset(to + columns, 0, sizeof(float) * (size_t)(NR - columns));
        }
}

/* Filter rows [r0, r1) that meet rows of dy, of which r0 meets the one that is given. */
typedef struct row {
    const float *dy, *w;
    int64_t r0, r1;
    float *lines;
} row;

/* Up to mp pixels from p on. */
LL_INLINE void tile(const int mp, const ll_conv_shape *v, const row *t, int64_t p)
{
    int64_t n = ll_min64(mp, v->ow - p), pitch = pitch_of(v), line = p % v->s;
    const float *a[MOST];
    ll_sums sums[MOST];
    EACH (i, mp) a[i] = t->dy + (p + ll_min64(i, n - 1)) * v->f;
    ll_micro_clear(mp, 2, sums);
    for (int64_t r = t->r0; r < t->r1; r++) {
        ll_micro_rows(mp, 2, 1, sums, a, t->w + r * v->f * NR, NR, v->f);
        EACH (i, mp) a[i] -= v->a.dilation[0] * v->ow * v->f;
    }
    EACH (i, mp) {
        if (i < n) { /* in order: the next one in its line begins where this one's zeros are */
            float *to = t->lines + line * pitch + (p + i) * v->c;
            ll_vec_to(to, sums[i][0]);
            ll_vec_to(to + LL_LANES, sums[i][1]);
            line = line + 1 < v->s ? line + 1 : 0;
        }
    }
}

static __attribute__((noinline)) void tile_of(const ll_conv_shape *v, const row *t, int64_t p)
{
    switch ((ll_min64(MOST, v->ow - p) + 1) / 2) {
    case 1: tile(2, v, t, p); break;
    case 2: tile(4, v, t, p); break;
    case 3: tile(6, v, t, p); break;
    case 4: tile(8, v, t, p); break;
    case 5: tile(10, v, t, p); break;
    default: tile(MOST, v, t, p); break;
    }
}

static ll_vec add_up(const ll_conv_shape *v, const float *lines, int64_t pitch)
{
    ll_vec sum = ll_vec_at(lines);
    for (int64_t s = 1; s < v->s; s++) sum += ll_vec_at(lines + s * pitch);
    return sum;
}

/* w * c numbers, each the sum of all lines. */
static void add_lines(const ll_conv_shape *v, const float *lines, float *dx)
{
    int64_t pitch = pitch_of(v), n = v->w * v->c, e = 0;
    lines += v->a.pad[2] * v->c;
    for (; e + LL_LANES <= n; e += LL_LANES) ll_vec_to(dx + e, add_up(v, lines + e, pitch));
    for (; e < n; e++) {
        dx[e] = lines[e];
        for (int64_t s = 1; s < v->s; s++) dx[e] += lines[s * pitch + e];
    }
}

/* Row i of an image, from dy of the same. */
static void run_row(const ll_conv_shape *v, const float *dy, const float *w, int64_t i,
                    float *lines, float *dx)
{
    int64_t at = i + v->a.pad[0], d = v->a.dilation[0]; /* row of dy under filter row 0 */
    int64_t r0 = at < v->oh ? 0 : ll_ceil_div(at - v->oh + 1, d);
    int64_t r1 = at < 0 ? 0 : ll_min64(v->r, at / d + 1);
    if (r1 <= r0) {
        memset(dx, 0, sizeof(float) * (size_t)(v->w * v->c));
        return;
    }
    row t = {dy + (at - r0 * d) * v->ow * v->f, w, r0, r1, lines};
    for (int64_t p = 0; p < v->ow; p += MOST) tile_of(v, &t, p);
    add_lines(v, lines, dx);
}

typedef struct call {
    const ll_conv_shape *v;
    const ll_kcall *c;
} call;

/* Rows [from, to) of all images, with lines of their own. */
static void run_rows(const void *given, int number, int64_t from, int64_t to)
{
    const call *k = (const call *)given;
    const ll_conv_shape *v = k->v;
    const float *dy = (const float *)k->c->in[0].data, *w = (const float *)k->c->scratch;
    char *all = (char *)k->c->scratch + filter_bytes(v);
    float *lines = (float *)(all + (size_t)number * line_bytes(v));
    float *dx = (float *)k->c->out[0].data;
    memset(lines, 0, line_bytes(v)); /* what no pixel writes stays so */
    for (; from < to; from++)
        run_row(v, dy + from / v->h * v->oh * v->ow * v->f, w, from % v->h, lines,
                dx + from * v->w * v->c);
}

void ll_conv_joined(const ll_conv_shape *v, const ll_kcall *c)
{
    pack(v, (const float *)c->in[1].data, (float *)c->scratch);
    ll_in_numbered_parts(v->threads, v->n * v->h, run_rows, &(call){v, c});
}
