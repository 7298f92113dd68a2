/* packed_matmul: a product with weights of 8 or 4 bits (pass/packed.h), for inference.
 *   x [F,C,32] f32, q [N,C,32 or 16] u8, scale [N,C] f16, of 4 bits least [N,C] f16 -> [F,N]
 * Blocks of x are rounded to 8 bits: with d = max |x| / 127 and k = rint(x / d),
 *   y = sum over blocks of scale d sum(q k) (+ least d sum(k)). */
#include "kern/blocks.h"
#include "op/op_int.h"

#include <stdio.h>

LL_KERNELS(packed_matmul, unblock, blocked_matmul, round_blocks)

static ll_err loops(const void *attr, int, const ll_type *, char dims[LL_DIMS_TEXT])
{
    const ll_packed_attr *a = (const ll_packed_attr *)attr;
    size_t n = strnlen(a->spec, LL_SPEC_MAX);
    CHECK(n < LL_SPEC_MAX && strstr(a->spec, "->") && strchr(a->spec, ','), LL_E_ARG,
          "spec \"%.*s\", expected one like \"bk_,nk_,nk->bn\"", (int)n, a->spec);
    for (size_t i = 0; i < n; i++)
        CHECK(strchr("abcdefghijklmnopqrstuvwxyz_,->", a->spec[i]), LL_E_ARG,
              "spec \"%s\": '%c' is not a letter a to z", a->spec, a->spec[i]);
    snprintf(dims, LL_DIMS_TEXT, "%s", a->spec);
    return LL_OK;
}

static ll_err infer(ll_infer *i)
{
    const ll_packed_attr *a = (const ll_packed_attr *)i->attr;
    const ll_shape *x = &i->in[0].shape, *q = &i->in[1].shape, *s = &i->in[2].shape;
    CHECK((a->bits == 8 && i->n_in == 3) || (a->bits == 4 && i->n_in == 4), LL_E_ARG,
          "%ld bits and %d operands", a->bits, i->n_in);
    CHECK(i->in[0].dtype == LL_F32 && i->in[1].dtype == LL_U8 && i->in[2].dtype == LL_F16 &&
              (i->n_in < 4 || i->in[3].dtype == LL_F16),
          LL_E_ARG, "operands are %s, %s and %s, expected f32, u8 and f16",
          ll_dtype_name(i->in[0].dtype), ll_dtype_name(i->in[1].dtype),
          ll_dtype_name(i->in[2].dtype));
    CHECK(x->n > 1 && q->n > 1 && x->d[x->n - 1] == 32 && q->d[q->n - 1] == 4 * a->bits &&
              a->rows > 0 && a->rows < s->n,
          LL_E_SHAPE, "expected blocks of 32, packed in %ld bytes", 4 * a->bits);
    TRY(ll_infer_dims(i));
    i->out[0].dtype = LL_F32;
    return LL_OK;
}

const ll_op ll_op_packed_matmul = {
    LL_REF_OP(packed_matmul, PRODUCT, 3, 1, .scratch = packed_matmul_cpu_scratch, .parts = true),
    LL_ATTRS(ll_packed_attr, spec, bits, rows),
    .n_more = 1,
    .model = 1,
    .loops = loops,
    .sum = "?",
    .infer = infer,
    .no_grad = true,
    .flop = 64,
    .trials = {"f32[2,3,32], u8[5,3,32], f16[5,3] {spec=\"mk_,nk_,nk->mn\", bits=8, rows=1}",
               "f32[1,2,32], u8[7,2,16], f16[7,2], f16[7,2] {spec=\"mk_,nk_,nk,nk->mn\", bits=4, "
               "rows=1}",
               "f32[2,3,2,2,32], u8[9,2,2,32], f16[9,2,2] {spec=\"btnd_,cnd_,cnd->btc\", bits=8, "
               "rows=1}",
               "f32[1,9,1,32], u8[2,3,1,16], f16[2,3,1], f16[2,3,1] {spec=\"btk_,nhk_,nhk,nhk->btnh"
               "\", bits=4, rows=2}"},
};

/* ---- weights in blocks, beside which something is trained ---- */

/* unblock: blocks [*,bytes] u8 -> [*,32] */

static ll_err unblock_infer(ll_infer *i)
{
    ll_shape s = i->in[0].shape;
    ll_dtype t = ((const ll_unblock_attr *)i->attr)->dtype;
    CHECK(i->in[0].dtype == LL_U8 && s.n && ll_block_sized(s.d[s.n - 1]) &&
              (t == LL_F32 || t == LL_F64),
          LL_E_SHAPE, "expected u8 [*,34], [*,20] or [*,18]");
    s.d[s.n - 1] = LL_PACK;
    i->out[0] = (ll_type){t, s};
    return LL_OK;
}

static const ll_op unblock = {
    LL_REF_OP(unblock, COPY, 1, 1),
    LL_ATTRS(ll_unblock_attr, dtype),
    .dims = "*_->*_",
    .infer = unblock_infer,
    .no_grad = true,
    .flop = LL_PACK,
    .trials = {"u8[3,2,34] {dtype=f32}", "u8[5,20] {dtype=f32}", "u8[7,1,18] {dtype=f32}"},
};

/* blocked_matmul: x [F,C,32] and w [N,C,bytes] -> [F,N], or its gradient, x [F,N] -> [F,C,32]. It
 * is the product with w unblocked, to the bit, which is not there but while it runs. */

/* Parts of "x,w->y"; sizes with their '_'. */
static ll_err read_blocked(const void *attr, const char *part[3], int n[3])
{
    const char *spec = ((const ll_blocked_attr *)attr)->spec;
    const char *comma = strchr(spec, ','), *arrow = strstr(spec, "->");
    CHECK(strnlen(spec, LL_SPEC_MAX) < LL_SPEC_MAX && comma && arrow && comma < arrow, LL_E_ARG,
          "spec \"%.*s\", expected one like \"bk_,nk_->bn\"", LL_SPEC_MAX, spec);
    part[0] = spec, part[1] = comma + 1, part[2] = arrow + 2;
    n[0] = (int)(comma - spec), n[1] = (int)(arrow - comma) - 1, n[2] = (int)strlen(arrow + 2);
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < n[k]; i++)
            CHECK((part[k][i] >= 'a' && part[k][i] <= 'z') || (part[k][i] == '_' && i == n[k] - 1),
                  LL_E_ARG, "spec \"%s\": '%c' is no letter a to z, or no '_' at the end", spec,
                  part[k][i]);
    bool x = n[0] && part[0][n[0] - 1] == '_', y = n[2] && part[2][n[2] - 1] == '_';
    CHECK(n[1] > 1 && part[1][n[1] - 1] == '_' && x != y, LL_E_ARG,
          "spec \"%s\": the weights and one other end in '_'", spec);
    return LL_OK;
}

static ll_err blocked_loops(const void *attr, int, const ll_type *, char dims[LL_DIMS_TEXT])
{
    const char *part[3];
    int n[3];
    TRY(read_blocked(attr, part, n));
    snprintf(dims, LL_DIMS_TEXT, "%s", ((const ll_blocked_attr *)attr)->spec);
    return LL_OK;
}

static ll_err blocked_infer(ll_infer *i)
{
    const char *part[3];
    int n[3];
    TRY(read_blocked(i->attr, part, n));
    ll_shape *y = &i->out[0].shape;
    ll_dtype t = i->in[0].dtype;
    CHECK((t == LL_F32 || t == LL_F64) && i->in[1].dtype == LL_U8, LL_E_ARG,
          "operands are %s and %s, expected f32 (or f64) and u8", ll_dtype_name(i->in[0].dtype),
          ll_dtype_name(i->in[1].dtype));
    CHECK(i->in[0].shape.n == n[0] && i->in[1].shape.n == n[1] && n[2] <= LL_MAX_DIMS &&
              ll_block_sized(i->in[1].shape.d[n[1] - 1]) &&
              (part[0][n[0] - 1] != '_' || i->in[0].shape.d[n[0] - 1] == LL_PACK),
          LL_E_SHAPE, "operands do not have the spec's dimensions, or blocks");
    *y = (ll_shape){.n = n[2]};
    for (int d = 0; d < n[2]; d++) {
        y->d[d] = part[2][d] == '_' ? LL_PACK : -1;
        for (int k = 0; k < 2 && y->d[d] < 0; k++) {
            const char *at = (const char *)memchr(part[k], part[2][d], (size_t)n[k]);
            if (at) y->d[d] = i->in[k].shape.d[at - part[k]];
        }
        CHECK(y->d[d] >= 0, LL_E_ARG, "the result has a letter that no operand has");
    }
    i->out[0].dtype = i->in[0].dtype;
    ll_loops l;
    return ll_loops_of(i->op, i->attr, 2, i->in, 1, i->out, &l); /* do extents agree? */
}

static void blocked_expand(ll_graph *g, const void *attr, const ll_val *in, int, ll_val *out)
{
    char spec[LL_SPEC_MAX];
    ll_unblock_attr a = {ll_graph_dtype(g, in[0])};
    ll_blocked_spec((const ll_blocked_attr *)attr, spec);
    out[0] = ll_matmul(g, spec, in[0], LL_EMIT(g, &unblock, &a, in[1]));
}

static void blocked_grad(ll_bwd *b)
{
    const char *part[3];
    int n[3];
    ll_blocked_attr a = {0};
    if (read_blocked(b->attr, part, n) != LL_OK) return;
    snprintf(a.spec, sizeof a.spec, "%.*s,%.*s->%.*s", n[2], part[2], n[1], part[1], n[0], part[0]);
    b->din[0] = LL_EMIT(b->g, &ll_op_blocked_matmul, &a, b->dout[0], b->in[1]);
}

const ll_op ll_op_blocked_matmul = {
    LL_OP(blocked_matmul, PRODUCT, 2, 1, .scratch = blocked_matmul_cpu_scratch),
    LL_ATTRS(ll_blocked_attr, spec),
    .model = 1,
    .loops = blocked_loops,
    .sum = "?",
    .infer = blocked_infer,
    .expand = blocked_expand,
    .grad = blocked_grad,
    .flop = 2 * LL_PACK,
    .trials = {"f32[3,2,32], u8[5,2,34] {spec=\"mk_,nk_->mn\"}",
               "f32[3,5], u8[5,2,20] {spec=\"mn,nk_->mk_\"}",
               "f32[2,3,2,2,32], u8[7,2,2,18] {spec=\"btnd_,cnd_->btc\"}",
               "f32[1,9,3,2], u8[3,2,1,20] {spec=\"btnh,nhk_->btk_\"}",
               "f32[2,3,1,32], u8[3,2,1,34] {spec=\"btc_,zhc_->btzh\"}"},
};

/* ---- weights that are trained for blocks ---- */

/* round_blocks: x [*,32] -> the numbers that packed_matmul's blocks would have for it. Gradients go
 * straight through (Bengio et al., 2013). Where not all of a block is finite it stays as it is: the
 * loss is to tell. */

static ll_err round_infer(ll_infer *i)
{
    const ll_shape *s = &i->in[0].shape;
    int64_t bits = ((const ll_round_blocks_attr *)i->attr)->bits;
    ll_dtype t = i->in[0].dtype;
    CHECK((bits == 8 || bits == 4) && s->n && s->d[s->n - 1] == LL_PACK &&
              (t == LL_F32 || t == LL_F64),
          LL_E_SHAPE, "expected f32 (or f64) [*,%d], and 8 or 4 bits", LL_PACK);
    i->out[0] = i->in[0];
    return LL_OK;
}

const ll_op ll_op_round_blocks = {
    LL_REF_OP(round_blocks, COPY, 1, 1),
    LL_ATTRS(ll_round_blocks_attr, bits),
    .dims = "*_->*_",
    .infer = round_infer,
    .straight = true,
    .flop = 4 * LL_PACK,
    .trials = {"f32[3,2,32] {bits=8}", "f32[5,32] {bits=4}", "f32[7,1,32] {bits=4}",
               "f32[0,32] {bits=8}", "f32[32] {bits=4}"},
};

const ll_op *const ll_ops_packed[] = {&ll_op_packed_matmul, &unblock, &ll_op_blocked_matmul,
                                      &ll_op_round_blocks, NULL};
