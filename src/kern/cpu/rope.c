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

ll_err rope_cpu(const ll_kcall *c)
{
    const ll_rope_attr *a = (const ll_rope_attr *)c->attr;
    const int64_t *s = c->in[0].shape.d, half = s[3] / 2, step = a->interleaved ? 2 : 1;
    const float *x = (const float *)c->in[0].data;
    float *y = (float *)c->out[0].data;
#pragma omp parallel for num_threads(ll_team(c, s[0] * s[1] * s[2] * s[3])) schedule(static)
    for (int64_t t = 0; t < s[1]; t++)
        for (int64_t from = 0; from < half; from += PAIRS) {
            turn r;
            int64_t n = half - from < PAIRS ? half - from : PAIRS;
            for (int64_t i = 0; i < n; i++) {
                double by = pow(a->base, -2 * (double)(from + i) / (double)s[3]);
                double angle = (double)(a->at + t) * by;
                r.cosine[i] = (float)cos(angle);
                r.sine[i] = (float)(a->back ? -sin(angle) : sin(angle));
            }
            for (int64_t b = 0; b < s[0]; b++)
                for (int64_t h = 0; h < s[2]; h++) {
                    int64_t at = ((b * s[1] + t) * s[2] + h) * s[3] + from * step;
                    turn_row(&r, x + at, y + at, n, step, a->interleaved ? 1 : half);
                }
        }
    return LL_OK;
}
