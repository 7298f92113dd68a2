/* rope.c: rotary positions of f32. A thread takes times; sines of some pairs are made once, and
 * used for all samples and heads. The last few stay: all layers turn by the same, and where a
 * sequence goes on by one token, sines take longer than turning. */
#include "kern/attr.h"
#include "kern/cpu/row.h"
#include "kern/cpu/vec.h"

#include <math.h>

LL_KERNELS(rope)

enum { PAIRS = 64, KEPT = 16 };

typedef struct turn {
    double base; /* 0: none yet */
    int64_t place, from, n, d, back;
    float cosine[PAIRS], sine[PAIRS];
} turn;

LL_INLINE void turn_row(const turn *r, const float *x, float *y, int64_t n, int64_t step,
                        int64_t to)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float p = x[i * step], q = x[i * step + to];
        y[i * step] = p * r->cosine[i] - q * r->sine[i];
        y[i * step + to] = p * r->sine[i] + q * r->cosine[i];
    }
}

/* Of pairs from, from + 1 ..., n of them, of row `place`. */
static const turn *turn_of(const ll_rope_attr *a, int64_t place, int64_t from, int64_t n, int64_t d)
{
    /* A thread's own, for whatever program: all that sines depend on is in the key, so that these
     * are the bits which it would make. */
    static _Thread_local turn kept[KEPT];
    turn *r = &kept[(uint64_t)(place + from / PAIRS) % KEPT];
    if (r->base == a->base && r->place == place && r->from == from && r->n == n && r->d == d &&
        r->back == a->back)
        return r;
    *r = (turn){a->base, place, from, n, d, a->back};
    for (int64_t i = 0; i < n; i++) {
        double by = pow(a->base, -2 * (double)(from + i) / (double)d);
        double angle = (double)place * by;
        r->cosine[i] = (float)cos(angle);
        r->sine[i] = (float)(a->back ? -sin(angle) : sin(angle));
    }
    return r;
}

static void some_times(const void *given, int64_t first, int64_t end)
{
    const ll_kcall *c = (const ll_kcall *)given;
    const ll_rope_attr *a = (const ll_rope_attr *)c->attr;
    const ll_shape *s = &c->in[0].shape;
    int64_t d = s->d[s->n - 1], half = d / 2, step = a->interleaved ? 2 : 1;
    int64_t heads = s->n == 5 ? s->d[2] * s->d[3] : s->d[2], times = s->d[1];
    const float *x = (const float *)c->in[0].data;
    const int32_t *place = c->n_in > 1 ? (const int32_t *)c->in[1].data : NULL;
    float *y = (float *)c->out[0].data;
    for (int64_t t = first; t < end; t++)
        for (int64_t from = 0; from < half; from += PAIRS) {
            const turn *r = NULL;
            int64_t n = half - from < PAIRS ? half - from : PAIRS;
            for (int64_t b = 0; b < s->d[0]; b++) {
                if (!b || place)
                    r = turn_of(a, a->at + (place ? place[b * times + t] : t), from, n, d);
                for (int64_t h = 0; h < heads; h++) {
                    int64_t at = ((b * times + t) * heads + h) * d + from * step;
                    if (a->interleaved)
                        turn_row(r, x + at, y + at, n, 2, 1);
                    else
                        turn_row(r, x + at, y + at, n, 1, half);
                }
            }
        }
}

ll_err rope_cpu(const ll_kcall *c)
{
    const ll_shape *s = &c->in[0].shape;
    ll_in_parts(ll_team(c, ll_numel(s)), s->d[1], some_times, c);
    return LL_OK;
}
