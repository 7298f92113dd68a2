/* rope.c: rotary positions of f32. A thread takes times; sines of some pairs are made once, and
 * used for all samples and heads. */
#include "kern/attr.h"
#include "kern/cpu/row.h"

#include <math.h>

ll_kernel rope_cpu;

enum { PAIRS = 64 };

typedef struct turn {
    float cosine[PAIRS], sine[PAIRS];
} turn;

static void turn_row(const turn *r, const float *x, float *y, int64_t n, int64_t step, int64_t to)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float p = x[i * step], q = x[i * step + to];
        y[i * step] = p * r->cosine[i] - q * r->sine[i];
        y[i * step + to] = p * r->sine[i] + q * r->cosine[i];
    }
}

static void turn_of(const ll_rope_attr *a, int64_t place, int64_t from, int64_t n, int64_t d,
                    turn *r)
{
    for (int64_t i = 0; i < n; i++) {
        double by = pow(a->base, -2 * (double)(from + i) / (double)d);
        double angle = (double)(a->at + place) * by;
        r->cosine[i] = (float)cos(angle);
        r->sine[i] = (float)(a->back ? -sin(angle) : sin(angle));
    }
}

ll_err rope_cpu(const ll_kcall *c)
{
    const ll_rope_attr *a = (const ll_rope_attr *)c->attr;
    const ll_shape *s = &c->in[0].shape;
    int64_t d = s->d[s->n - 1], half = d / 2, step = a->interleaved ? 2 : 1;
    int64_t heads = s->n == 5 ? s->d[2] * s->d[3] : s->d[2], times = s->d[1];
    const float *x = (const float *)c->in[0].data;
    const int32_t *place = c->n_in > 1 ? (const int32_t *)c->in[1].data : NULL;
    float *y = (float *)c->out[0].data;
#pragma omp parallel for num_threads(ll_team(c, ll_numel(s))) schedule(static)
    for (int64_t t = 0; t < times; t++)
        for (int64_t from = 0; from < half; from += PAIRS) {
            turn r;
            int64_t n = half - from < PAIRS ? half - from : PAIRS;
            for (int64_t b = 0; b < s->d[0]; b++) {
                if (!b || place) turn_of(a, place ? place[b * times + t] : t, from, n, d, &r);
                for (int64_t h = 0; h < heads; h++) {
                    int64_t at = ((b * times + t) * heads + h) * d + from * step;
                    turn_row(&r, x + at, y + at, n, step, a->interleaved ? 1 : half);
                }
            }
        }
    return LL_OK;
}
