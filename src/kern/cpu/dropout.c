/* dropout.c: dropout of f32. Random numbers come four to a Philox block; many blocks at once are
 * vector code, and give the very numbers that ll_uniform_at gives one at a time.
 *
 * An element is dropped where (word >> 9) + 1/2 < p 2^23, that is where word >> 9 < limit. */
#include "base/num.h"
#include "base/rng.h"
#include "kern/cpu/row.h"
#include "kern/dropout.h"

#include <math.h>

LL_KERNELS(dropout)

enum { RUN = 4 * LL_RNG_LANES, PIECE = 4096 };

typedef struct draw {
    uint64_t seed, stream;
    uint32_t limit;
    float by;
} draw;

/* n elements whose numbers are index, index+1, ... */
static void drop_run(const draw *d, uint64_t index, const float *x, float *y, int64_t n)
{
    uint32_t w[RUN], limit = d->limit;
    float by = d->by;
    for (int64_t done = 0; done < n;) {
        int64_t skip = (int64_t)((index + (uint64_t)done) % 4);
        int64_t m = n - done < RUN - skip ? n - done : RUN - skip;
        ll_philox_many(d->seed, d->stream, (index + (uint64_t)done) / 4, w);
        const float *from = x + done;
        float *to = y + done;
        const uint32_t *u = w + skip;
#pragma omp simd
        for (int64_t i = 0; i < m; i++) {
            float kept = from[i] * by;
            to[i] = (u[i] >> 9) < limit ? 0 : kept;
        }
        done += m;
    }
}

/* The last dimensions that the part has whole are one run. */
static int64_t run_length(const ll_shape *s, const ll_shape *whole)
{
    int64_t n = 1;
    for (int d = s->n - 1; d >= 0; d--) {
        n *= s->d[d];
        if (s->d[d] != whole->d[d]) break;
    }
    return n;
}

ll_err dropout_cpu(const ll_kcall *c)
{
    const ll_dropout_attr *a = (const ll_dropout_attr *)c->attr;
    const float *x = (const float *)c->in[0].data;
    float *y = (float *)c->out[0].data;
    const draw d = {c->seed, (uint64_t)a->stream ^ ll_stream("", c->step),
                    (uint32_t)fmax(0, ceil(a->p * 0x1p23 - 0.5)), (float)(1 / (1 - a->p))};
    int64_t n = ll_numel(&c->in[0].shape), run = run_length(&c->in[0].shape, &a->whole);
    if (n == 0) return LL_OK;
    int64_t pieces = ll_ceil_div(run, PIECE), jobs = n / run * pieces;
#pragma omp parallel for num_threads(ll_team(c, n * 8)) schedule(static)
    for (int64_t j = 0; j < jobs; j++) {
        int64_t at = j / pieces * run, from = j % pieces * PIECE;
        int64_t m = run - from < PIECE ? run - from : PIECE;
        uint64_t index = ll_dropout_index(a, &c->in[0].shape, c->micro, at + from);
        drop_run(&d, index, x + at + from, y + at + from, m);
    }
    return LL_OK;
}
