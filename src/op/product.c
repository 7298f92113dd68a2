/* product.c: a matmul and what surrounds it, in one kernel: ops product1 and product2, by the
 * number of results. The compiler makes them late, for GPUs (pass/epilogue.c): no loop of theirs is
 * cut.
 *
 *     operands: a, b, [scales], [bias], [more]    p = a b [times both scales] [+ bias]
 *     act        result              second result
 *     none       p
 *     relu       relu(p)
 *     gelu       gelu(p)             p, for the gradient
 *     dgelu      p gelu'(more)
 *     slope      gelu(p)             gelu'(p), for the gradient
 *     times      p more              the sums of its columns, in f32
 *
 * Columns are the loops that b and the result have and a has not; a bias has these, and they are
 * the result's last dimensions. more is of the result's shape. The product must be a plain one:
 * rows, columns and summed loops are one run of letters each wherever they stand, so that all three
 * tensors are matrices. Scales are of 8-bit floats (op/quantize.c), whose summed loops run fastest.
 */
#include "op/op_int.h"
#include "kern/kern.h"

#include <stdio.h>

ll_kernel product_ref, product_cuda;
ll_scratch product_cuda_scratch;

static bool has(const ll_matmul_parts *p, int i, char letter)
{
    return memchr(p->text[i], letter, (size_t)p->len[i]) != NULL;
}

/* The letters of tensors i and j that k has not: one run in both, or there are none. */
static bool one_run(const ll_matmul_parts *p, int i, int j, int k, char out[LL_SPEC_MAX])
{
    int n = 0;
    for (int l = 0; l < p->len[j]; l++) {
        char c = p->text[j][l];
        if (has(p, i, c) && !has(p, k, c)) out[n++] = c;
    }
    out[n] = '\0';
    for (int t = 0; t < 2; t++) {
        int of = t ? i : j, at = 0;
        while (at < p->len[of] && n && p->text[of][at] != out[0]) at++;
        if (p->len[of] - at < n || memcmp(p->text[of] + at, out, (size_t)n)) return false;
    }
    return true;
}

bool ll_product_plain(const char *spec)
{
    ll_matmul_parts p;
    char run[LL_SPEC_MAX];
    if (ll_matmul_read(spec, &p) != LL_OK) return false;
    for (int l = 0; l < p.len[0]; l++) /* a batch of products */
        if (has(&p, 1, p.text[0][l]) && has(&p, 2, p.text[0][l])) return false;
    return one_run(&p, 0, 2, 1, run) && one_run(&p, 1, 2, 0, run) && one_run(&p, 0, 1, 2, run);
}

static bool has_more(const ll_product_attr *a)
{
    return a->act == LL_ACT_DGELU || a->act == LL_ACT_TIMES;
}

static ll_err check(const ll_product_attr *a, int n_in, int n_out, const ll_matmul_parts *p,
                    const char *columns)
{
    CHECK(a->act >= 0 && a->act < LL_N_ACT, LL_E_ARG, "no act has number %lld", (long long)a->act);
    CHECK((a->bias & ~1) == 0, LL_E_ARG, "bias is 0 or 1");
    CHECK(a->scaled >= 0 && a->scaled < LL_N_SCALED, LL_E_ARG, "scaled is 0, 1 or 2");
    int want = 2 + (a->scaled ? 2 : 0) + (int)a->bias + has_more(a);
    CHECK(n_in == want, LL_E_ARG, "%d operands, want %d", n_in, want);
    bool second = a->act == LL_ACT_GELU || a->act == LL_ACT_SLOPE || a->act == LL_ACT_TIMES;
    CHECK(n_out == 1 ? a->act != LL_ACT_SLOPE : second, LL_E_ARG, "act %lld has not %d results",
          (long long)a->act, n_out);
    int n = (int)strlen(columns), from = p->len[2] - n;
    CHECK(ll_product_plain(a->spec) && !memcmp(p->text[2] + from, columns, (size_t)n), LL_E_ARG,
          "spec \"%s\" is no plain product of two matrices with its columns last", a->spec);
    return LL_OK;
}

static ll_err dims_of(const ll_product_attr *a, int n_in, int n_out, char dims[LL_DIMS_TEXT])
{
    ll_matmul_parts p;
    char columns[LL_SPEC_MAX];
    TRY(ll_matmul_read(a->spec, &p));
    one_run(&p, 1, 2, 0, columns);
    TRY(check(a, n_in, n_out, &p, columns));
    const char *y = p.text[2];
    snprintf(dims, LL_DIMS_TEXT, "%.*s,%.*s%s%s%s%s%s->%s%s%s", p.len[0], p.text[0], p.len[1],
             p.text[1], a->scaled ? ", , " : "", a->bias ? "," : "", a->bias ? columns : "",
             has_more(a) ? "," : "", has_more(a) ? y : "", y, n_out == 2 ? "," : "",
             n_out == 1               ? ""
             : a->act == LL_ACT_TIMES ? columns
                                      : y);
    return LL_OK;
}

static ll_err loops1(const void *attr, int n_in, const ll_type *in, char dims[LL_DIMS_TEXT])
{
    (void)in;
    return dims_of((const ll_product_attr *)attr, n_in, 1, dims);
}

static ll_err loops2(const void *attr, int n_in, const ll_type *in, char dims[LL_DIMS_TEXT])
{
    (void)in;
    return dims_of((const ll_product_attr *)attr, n_in, 2, dims);
}

static bool is_f8(ll_dtype t)
{
    return t == LL_F8_E4M3 || t == LL_F8_E5M2;
}

static ll_err infer(ll_infer *i)
{
    const ll_product_attr *a = (const ll_product_attr *)i->attr;
    ll_dtype t = i->in[0].dtype, u = i->in[1].dtype;
    CHECK(a->scaled ? is_f8(t) && is_f8(u) : t == u && (t == LL_F32 || t == LL_BF16), LL_E_ARG,
          "operands are %s and %s, want f32, bf16, or scaled 8-bit floats", ll_dtype_name(t),
          ll_dtype_name(u));
    CHECK(a->out == t || (t != LL_F32 && ll_wide(a->out) == LL_F32), LL_E_ARG,
          "operands are %s and the result %s, want the same type, or a wider one", ll_dtype_name(t),
          ll_dtype_name(a->out));
    for (int k = 2; k < i->n_in; k++)
        CHECK(ll_wide(i->in[k].dtype) == LL_F32, LL_E_ARG, "operand %d is %s, want f32 or bf16", k,
              ll_dtype_name(i->in[k].dtype));
    TRY(ll_infer_dims(i));
    i->out[0].dtype = a->out;
    if (i->n_out == 2) i->out[1].dtype = a->act == LL_ACT_TIMES ? LL_F32 : a->out;
    return LL_OK;
}

static const ll_attr_field attrs[] = {
    LL_FIELD(ll_product_attr, spec, LL_A_SPEC),  LL_FIELD(ll_product_attr, out, LL_A_DTYPE),
    LL_FIELD(ll_product_attr, bias, LL_A_INT),   LL_FIELD(ll_product_attr, act, LL_A_INT),
    LL_FIELD(ll_product_attr, scaled, LL_A_INT), {0}};
#define PRODUCT                                                                                    \
    .n_in = -1, .attr_size = sizeof(ll_product_attr), .attrs = attrs,                              \
    .whole = "abcdefghijklmnopqrstuvwxyz", .infer = infer, .flop = 2, .ref = product_ref,          \
    .cuda = LL_GPU(LL_KERNEL(.run = product_cuda, .scratch = product_cuda_scratch))
static const ll_op ops[2] = {
    {
        .name = "product1",
        .n_out = 1,
        .loops = loops1,
        PRODUCT,
        .trials =
            {"bf16[2,5,16], bf16[3,2,4,16], f32[3,2,4] {spec=\"btc,zhdc->btzhd\", out=bf16, "
             "bias=1, act=0}",
             "bf16[7,16], bf16[24,16], bf16[24] {spec=\"rk,nk->rn\", out=bf16, bias=1, act=1}",
             "bf16[9,8], bf16[8,16], bf16[9,16] {spec=\"rk,kn->rn\", out=bf16, bias=0, act=3}",
             "f32[5,3], f32[7,3], f32[7] {spec=\"rk,nk->rn\", out=f32, bias=1, act=1}",
             "f32[8,4], f32[12,4], f32[12] {spec=\"rk,nk->rn\", out=f32, bias=1, act=2}",
             "bf16[5,3], bf16[7,3], f32[7] {spec=\"rk,nk->rn\", out=bf16, bias=1, act=2}",
             "bf16[5,3], bf16[3,7], bf16[5,7] {spec=\"rk,kn->rn\", out=bf16, bias=0, act=3}",
             "bf16[300,72], bf16[72,200], bf16[200] {spec=\"rk,kn->rn\", out=bf16, bias=1, act=0}",
             "bf16[5,3], bf16[3,7], bf16[5,7] {spec=\"rk,kn->rn\", out=bf16, bias=0, act=5}",
             "e4m3[2,16,32], e5m2[48,32], f32[]>, f32[]> {spec=\"btk,nk->btn\", out=bf16, bias=0, "
             "act=0, scaled=1}"},
    },
    {
        .name = "product2",
        .n_out = 2,
        .loops = loops2,
        PRODUCT,
        .trials = {"bf16[2,9,16], bf16[32,16], f32[32] {spec=\"btc,fc->btf\", out=bf16, bias=1, "
                   "act=2}",
                   "bf16[2,9,16], bf16[32,16], bf16[32] {spec=\"btc,fc->btf\", out=bf16, bias=1, "
                   "act=2}",
                   "bf16[3,5], bf16[7,5], f32[7] {spec=\"rk,nk->rn\", out=bf16, bias=1, act=2}",
                   "f32[3,5], f32[7,5], f32[7] {spec=\"rk,nk->rn\", out=f32, bias=1, act=2}",
                   "f32[3,5], f32[7,5] {spec=\"rk,nk->rn\", out=f32, bias=0, act=2}",
                   "bf16[3,70,72], bf16[136,72], bf16[136] {spec=\"btc,fc->btf\", out=bf16, "
                   "bias=1, act=4}",
                   "f32[3,5], f32[7,5], f32[7] {spec=\"rk,nk->rn\", out=f32, bias=1, act=4}",
                   "bf16[300,72], bf16[72,200], bf16[300,200] {spec=\"rk,kn->rn\", out=bf16, "
                   "bias=0, act=5}",
                   "bf16[131,5], bf16[7,5], bf16[131,7] {spec=\"rk,nk->rn\", out=bf16, bias=0, "
                   "act=5}"},
    },
};

const ll_op *ll_product_op(int n_out)
{
    LL_ASSERT(n_out == 1 || n_out == 2);
    return &ops[n_out - 1];
}

const ll_op *const ll_ops_product[] = {&ops[0], &ops[1], NULL};
