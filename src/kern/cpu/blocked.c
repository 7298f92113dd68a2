/* blocked.c: a product with weights in blocks: they become numbers in scratch, then it is a product
 * like any other, with its bits. */
#include "base/num.h"
#include "kern/blocks.h"
#include "kern/cpu/row.h"

LL_KERNELS(unblock, blocked_matmul, round_blocks, matmul)

typedef struct job {
    const ll_block_kind *kind;
    const uint8_t *from;
    float *to;
} job;

static void some_blocks(const void *given, int64_t from, int64_t to)
{
    const job *j = (const job *)given;
    for (int64_t b = from; b < to; b++)
        j->kind->unpack(j->from + b * j->kind->bytes, j->to + b * LL_PACK);
}

static void unblock(const ll_kcall *c, const ll_tensor *w, float *to)
{
    const ll_shape *s = &w->shape;
    job j = {ll_block_sized(s->d[s->n - 1]), (const uint8_t *)w->data, to};
    int64_t blocks = ll_numel(s) / j.kind->bytes;
    ll_in_parts(ll_team(c, blocks * LL_PACK), blocks, some_blocks, &j);
}

ll_err unblock_cpu(const ll_kcall *c)
{
    CHECK(c->out[0].dtype == LL_F32, LL_E_ARG, "unblock to %s on the cpu machine, expected f32",
          ll_dtype_name(c->out[0].dtype));
    unblock(c, &c->in[0], (float *)c->out[0].data);
    return LL_OK;
}

size_t blocked_matmul_cpu_scratch(const ll_kcall *c)
{
    ll_blocked_plain p;
    ll_blocked_as_plain(c, &p);
    return p.bytes + matmul_cpu_scratch(&p.call);
}

ll_err blocked_matmul_cpu(const ll_kcall *c)
{
    ll_blocked_plain p;
    CHECK(c->in[0].dtype == LL_F32, LL_E_ARG,
          "blocked_matmul of %s on the cpu machine, expected f32", ll_dtype_name(c->in[0].dtype));
    ll_blocked_as_plain(c, &p);
    unblock(c, &c->in[1], (float *)c->scratch);
    return matmul_cpu(&p.call);
}

typedef struct rounding {
    const float *from;
    float *to;
    int bits;
} rounding;

static void round_some(const void *given, int64_t from, int64_t to)
{
    const rounding *r = (const rounding *)given;
    for (int64_t b = from * LL_PACK; b < to * LL_PACK; b += LL_PACK)
        ll_block_round(r->from + b, r->bits, r->to + b);
}

ll_err round_blocks_cpu(const ll_kcall *c)
{
    CHECK(c->in[0].dtype == LL_F32, LL_E_ARG, "round_blocks of %s on the cpu machine, expected f32",
          ll_dtype_name(c->in[0].dtype));
    int64_t n = ll_numel(&c->in[0].shape);
    rounding r = {(const float *)c->in[0].data, (float *)c->out[0].data,
                  (int)((const ll_round_blocks_attr *)c->attr)->bits};
    ll_in_parts(ll_team(c, 16 * n), n / LL_PACK, round_some, &r);
    return LL_OK;
}
