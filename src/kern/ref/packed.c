/* packed.c: a product with packed weights, by plain loops. */
#include "kern/blocks.h"
#include "kern/rows.h"

#include <math.h>

LL_KERNELS(packed_matmul, unblock, round_blocks)

ll_err packed_matmul_ref(const ll_kcall *c)
{
    const ll_packed_attr *a = (const ll_packed_attr *)c->attr;
    const ll_tensor *x = &c->in[0], *q = &c->in[1], *s = &c->in[2];
    int64_t rows = 1, blocks = 1, bytes = 4 * a->bits;
    for (int d = 0; d < s->shape.n; d++) *(d < a->rows ? &rows : &blocks) *= s->shape.d[d];
    int64_t m = blocks ? ll_numel(&x->shape) / 32 / blocks : ll_numel(&c->out[0].shape) / rows;
    for (int64_t i = 0; i < m * rows; i++) {
        double y = 0;
        for (int64_t b = 0; b < blocks; b++) {
            int64_t at = (i / rows * blocks + b) * 32, w = i % rows * blocks + b;
            double top = 0, sum = 0, all = 0;
            for (int64_t k = 0; k < 32; k++) top = fmax(top, fabs(ll_at(x, at + k)));
            double d = top / 127;
            for (int64_t k = 0; k < 32; k++) {
                double v = d > 0 ? rint(ll_at(x, at + k) / d) : 0;
                int p = (int)ll_at(q, w * bytes + (a->bits == 8 ? k : k % 16));
                int u = a->bits == 8 ? (int8_t)p : k < 16 ? p & 15 : p >> 4;
                sum += v * u;
                all += v;
            }
            y += ll_at(s, w) * d * sum + (a->bits == 4 ? ll_at(&c->in[3], w) * d * all : 0);
        }
        ll_set(&c->out[0], i, y);
    }
    return LL_OK;
}

ll_err unblock_ref(const ll_kcall *c)
{
    const ll_shape *s = &c->in[0].shape;
    const ll_block_kind *k = ll_block_sized(s->d[s->n - 1]);
    float x[LL_PACK];
    for (int64_t b = 0; b < ll_numel(s) / k->bytes; b++) {
        k->unpack((const uint8_t *)c->in[0].data + b * k->bytes, x);
        for (int i = 0; i < LL_PACK; i++) ll_set(&c->out[0], b * LL_PACK + i, (double)x[i]);
    }
    return LL_OK;
}

ll_err round_blocks_ref(const ll_kcall *c)
{
    int bits = (int)((const ll_round_blocks_attr *)c->attr)->bits;
    for (int64_t b = 0; b < ll_numel(&c->in[0].shape); b += LL_PACK) {
        float x[LL_PACK], y[LL_PACK];
        for (int i = 0; i < LL_PACK; i++) x[i] = (float)ll_at(&c->in[0], b + i);
        ll_block_round(x, bits, y);
        for (int i = 0; i < LL_PACK; i++) ll_set(&c->out[0], b + i, (double)y[i]);
    }
    return LL_OK;
}
