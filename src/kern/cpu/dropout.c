/* dropout.c: dropout of f32. Random numbers come four to a Philox block; many blocks at once are
 * vector code, and give the very numbers that ll_uniform_at gives one at a time.
 *
 * An element is dropped where (word >> 9) + 1/2 < p 2^23, that is where word >> 9 < limit. */
#include "kern/attr.h"
#include "kern/cpu/row.h"
#include "kern/dropout.h"

#include <math.h>

ll_kernel dropout_cpu;

enum { LANES = 16, RUN = 4 * LANES, PIECE = 4096 };

/* Words of LANES blocks from `block` on, in order: word 4 l + w is word w of block l. */
static void words_of(uint64_t seed, uint64_t stream, uint64_t block, uint32_t out[RUN])
{
    uint32_t c0[LANES], c1[LANES], c2[LANES], c3[LANES];
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int l = 0; l < LANES; l++) {
        c0[l] = (uint32_t)(block + (uint64_t)l);
        c1[l] = (uint32_t)((block + (uint64_t)l) >> 32);
        c2[l] = (uint32_t)stream;
        c3[l] = (uint32_t)(stream >> 32);
    }
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
#pragma omp simd
        for (int l = 0; l < LANES; l++) {
            uint64_t p0 = (uint64_t)0xD2511F53u * c0[l], p1 = (uint64_t)0xCD9E8D57u * c2[l];
            c0[l] = (uint32_t)(p1 >> 32) ^ c1[l] ^ k0;
            c1[l] = (uint32_t)p1;
            c2[l] = (uint32_t)(p0 >> 32) ^ c3[l] ^ k1;
            c3[l] = (uint32_t)p0;
        }
    }
    for (int l = 0; l < LANES; l++) {
        out[4 * l] = c0[l], out[4 * l + 1] = c1[l];
        out[4 * l + 2] = c2[l], out[4 * l + 3] = c3[l];
    }
}

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
        words_of(d->seed, d->stream, (index + (uint64_t)done) / 4, w);
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
    const draw d = {c->seed, ll_dropout_stream(c), (uint32_t)fmax(0, ceil(a->p * 0x1p23 - 0.5)),
                    (float)(1 / (1 - a->p))};
    int64_t n = ll_numel(&c->in[0].shape), run = run_length(&c->in[0].shape, &a->whole);
    if (n == 0) return LL_OK;
    int64_t pieces = (run + PIECE - 1) / PIECE, jobs = n / run * pieces;
#pragma omp parallel for num_threads(ll_team(c, n * 8)) schedule(static)
    for (int64_t j = 0; j < jobs; j++) {
        int64_t at = j / pieces * run, from = j % pieces * PIECE;
        int64_t m = run - from < PIECE ? run - from : PIECE;
        drop_run(&d, ll_dropout_index(c, at + from), x + at + from, y + at + from, m);
    }
    return LL_OK;
}
