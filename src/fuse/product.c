/* product.c: a matmul and what surrounds it, in one kernel: ops product1 and product2, by the
 * number of results, for GPUs.
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
 * tensors are matrices. Scales are of 8-bit floats (fp8.c), whose summed loops run fastest: one of
 * each operand, or one of each block of it (op/blocks.c).
 *
 * What pays was measured (bench/product_gpu.c). A bias is left to a chain that would take it in: if
 * one elementwise node reads the sum, and is no residual's sum, which a norm may take in
 * (add_layernorm.c). What did not pay with cuBLASLt and is left to others: adding a residual, and
 * sums of columns for a bias's gradient, both of which slow its products down by more than their
 * own pass costs (slope.c has the latter, for a kernel of ours). */
#include "fuse/fuse_int.h"

#include <stdio.h>

extern const ll_solver product_cuda[];

/* The letters of tensors i and j that k has not: one run in both, or there are none. */
static bool one_run(const ll_matmul_parts *p, int i, int j, int k, char out[LL_SPEC_MAX])
{
    int n = 0;
    for (int l = 0; l < p->len[j]; l++) {
        char c = p->text[j][l];
        if (ll_matmul_has(p, i, c) && !ll_matmul_has(p, k, c)) out[n++] = c;
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
        if (ll_matmul_has(&p, 1, p.text[0][l]) && ll_matmul_has(&p, 2, p.text[0][l])) return false;
    return one_run(&p, 0, 2, 1, run) && one_run(&p, 1, 2, 0, run) && one_run(&p, 0, 1, 2, run);
}

static bool has_more(const ll_product_attr *a)
{
    return a->act == LL_ACT_DGELU || a->act == LL_ACT_TIMES;
}

int ll_product_columns(const char *spec)
{
    ll_matmul_parts p;
    int n = 0;
    if (ll_matmul_read(spec, &p) != LL_OK) return 0;
    while (n < p.len[2] && ll_matmul_has(&p, 1, p.text[2][p.len[2] - 1 - n])) n++;
    return n;
}

static ll_err check(const ll_infer *i, const ll_product_attr *a)
{
    CHECK(a->act >= 0 && a->act < LL_N_ACT, LL_E_ARG, "no act has number %ld", a->act);
    CHECK((a->bias & ~1) == 0, LL_E_ARG, "bias is 0 or 1");
    CHECK(a->scaled >= 0 && a->scaled < LL_N_SCALED, LL_E_ARG, "no way of scaling has number %ld",
          a->scaled);
    int want = 2 + (a->scaled ? 2 : 0) + (int)a->bias + has_more(a);
    CHECK(i->n_in == want, LL_E_ARG, "%d operands, expected %d", i->n_in, want);
    bool second = a->act == LL_ACT_GELU || a->act == LL_ACT_SLOPE || a->act == LL_ACT_TIMES;
    CHECK(i->n_out == 1 ? a->act != LL_ACT_SLOPE : second, LL_E_ARG, "act %ld has not %d results",
          a->act, i->n_out);
    return LL_OK;
}

static bool in_blocks(const ll_product_attr *a)
{
    return a->scaled >= LL_SCALED_LINES;
}

static ll_err loops(const void *attr, int, const ll_type *, char dims[LL_DIMS_TEXT])
{
    const ll_product_attr *a = (const ll_product_attr *)attr;
    ll_matmul_parts p;
    TRY(ll_matmul_read(a->spec, &p));
    int n = ll_product_columns(a->spec);
    char run[LL_SPEC_MAX];
    CHECK(ll_product_plain(a->spec) && one_run(&p, 1, 2, 0, run) && (int)strlen(run) == n, LL_E_ARG,
          "spec \"%s\" is no plain product of two matrices with its columns last", a->spec);
    const char *y = p.text[2], *columns = y + p.len[2] - n;
    char scales[16] = "";
    if (a->scaled) snprintf(scales, sizeof scales, "%s", in_blocks(a) ? ",__,__" : ", , ");
    snprintf(dims, LL_DIMS_TEXT, "%.*s,%.*s%s%s%s%s%s->%s,%s", p.len[0], p.text[0], p.len[1],
             p.text[1], scales, a->bias ? "," : "", a->bias ? columns : "", has_more(a) ? "," : "",
             has_more(a) ? y : "", y, a->act == LL_ACT_TIMES ? columns : y);
    return LL_OK;
}

/* Operand i of blocks as what it stands for. Its rows' letters are in the result. */
static ll_val unblocked(ll_graph *g, const ll_product_attr *a, int i, const ll_val *in)
{
    ll_matmul_parts p;
    ll_blocks_attr b = {.square = a->scaled == (i ? LL_SCALED_SQUARES_B : LL_SCALED_SQUARES_A)};
    if (ll_matmul_read(a->spec, &p) != LL_OK) return in[i];
    for (int k = 0; k < p.len[i]; k++) b.rows += ll_matmul_has(&p, 2, p.text[i][k]);
    return LL_EMIT(g, ll_op_find("dequantize_blocks"), &b, in[i], in[2 + i]);
}

static void expand(ll_graph *g, const void *attr, const ll_val *in, int, ll_val *out)
{
    const ll_product_attr *a = (const ll_product_attr *)attr;
    int k = a->scaled ? 4 : 2, n = ll_product_columns(a->spec);
    ll_val p = in_blocks(a) ? ll_matmul(g, a->spec, unblocked(g, a, 0, in), unblocked(g, a, 1, in))
                            : ll_matmul(g, a->spec, in[0], in[1]);
    if (a->scaled && !in_blocks(a)) p = ll_mul(g, ll_mul(g, p, in[2]), in[3]);
    if (a->bias) p = ll_add(g, p, in[k++]);
    ll_val slope = has_more(a) ? in[k] : p;
    if (a->act == LL_ACT_DGELU || a->act == LL_ACT_SLOPE)
        slope = LL_EMIT(g, ll_ew_op(LL_EW_dgelu), NULL, slope);
    bool gelu = a->act == LL_ACT_GELU || a->act == LL_ACT_SLOPE;
    out[1] = slope;
    out[0] = a->act == LL_ACT_RELU ? ll_relu(g, p) : gelu ? ll_gelu(g, p) : p;
    if (has_more(a)) out[0] = ll_mul(g, p, slope);
    if (a->act != LL_ACT_TIMES) return;
    const char *y = strstr(a->spec, "->") + 2;
    char spec[LL_SPEC_MAX];
    snprintf(spec, sizeof spec, "%s->%s", y, y + strlen(y) - n);
    out[1] = ll_sum(g, out[0], spec);
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
          "operands are %s and %s, expected f32, bf16, or scaled 8-bit floats", ll_dtype_name(t),
          ll_dtype_name(u));
    CHECK(a->out == t || (t != LL_F32 && ll_wide(a->out) == LL_F32), LL_E_ARG,
          "operands are %s and the result %s, expected the same type, or a wider one",
          ll_dtype_name(t), ll_dtype_name(a->out));
    for (int k = 2; k < i->n_in; k++)
        CHECK(ll_wide(i->in[k].dtype) == LL_F32, LL_E_ARG, "operand %d is %s, expected f32 or bf16",
              k, ll_dtype_name(i->in[k].dtype));
    for (int k = 2; k < 4 && a->scaled && k < i->n_in; k++)
        CHECK(i->in[k].dtype == LL_F32, LL_E_ARG, "scale %d is %s, expected f32", k - 2,
              ll_dtype_name(i->in[k].dtype));
    TRY(check(i, a));
    TRY(ll_infer_dims(i));
    i->out[0].dtype = a->out;
    if (i->n_out == 2) i->out[1].dtype = a->act == LL_ACT_TIMES ? LL_F32 : a->out;
    return LL_OK;
}

#define PRODUCT(results)                                                                           \
    .name = "product" #results, .work = LL_WORK_PRODUCT, .n_in = -1, .n_out = results,             \
    LL_ATTRS(ll_product_attr, spec, out, bias, act, scaled, sparse),                               \
    .whole = "abcdefghijklmnopqrstuvwxyz", .loops = loops, .infer = infer, .expand = expand,       \
    .no_grad = true, .flop = 2, .cuda = LL_GPU(product_cuda)
static const ll_op ops[2] = {
    {
        PRODUCT(1),
        .trials =
            {"bf16[2,5,16], bf16[3,2,4,16], f32[3,2,4] {spec=\"btc,zhdc->btzhd\", out=bf16, "
             "bias=1, act=0}",
             "bf16[7,16], bf16[24,16], bf16[24] {spec=\"rk,nk->rn\", out=bf16, bias=1, act=1}",
             "bf16[9,8], bf16[8,16], bf16[9,16] {spec=\"rk,kn->rn\", out=bf16, bias=0, act=3}",
             "f32[5,3], f32[7,3], f32[7] {spec=\"rk,nk->rn\", out=f32, bias=1, act=1}",
             "bf16[5,3], bf16[7,3], f32[7] {spec=\"rk,nk->rn\", out=bf16, bias=1, act=2}",
             "bf16[5,3], bf16[3,7], bf16[5,7] {spec=\"rk,kn->rn\", out=bf16, bias=0, act=3}",
             "bf16[300,72], bf16[72,200], bf16[200] {spec=\"rk,kn->rn\", out=bf16, bias=1, act=0}",
             "bf16[5,3], bf16[3,7], bf16[5,7] {spec=\"rk,kn->rn\", out=bf16, bias=0, act=5}",
             "e4m3[2,16,32], e5m2[48,32], f32[]>, f32[]> {spec=\"btk,nk->btn\", out=bf16, bias=0, "
             "act=0, scaled=1}",
             "e4m3[2,80,144], e4m3[48,144], f32[2,160]>, f32[1,4]> {spec=\"btk,nk->btn\", "
             "out=bf16, bias=0, act=0, scaled=5}"},
    },
    {
        PRODUCT(2),
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
                   "act=5}",
                   "e4m3[256,384], e4m3[128,384], f32[3,256]>, f32[3,128]>, bf16[128] "
                   "{spec=\"rk,nk->rn\", out=bf16, bias=1, act=2, scaled=3}"},
    },
};

const ll_op *ll_product_op(int n_out)
{
    LL_ASSERT(n_out == 1 || n_out == 2);
    return &ops[n_out - 1];
}

const ll_op *const ll_ops_product[] = {&ops[0], &ops[1], NULL};

/* ---- what products take in ---- */

/* How many of its dimensions are columns; 0: it stays what it is. */
static int columns_of(const ll_graph *g, const ll_node *matmul)
{
    const char *spec = ((const ll_matmul_attr *)matmul->attr)->spec;
    ll_dtype t = ll_graph_dtype(g, matmul->out[0]);
    bool plain = t == ll_graph_dtype(g, matmul->in[0]) && t != LL_F64 && ll_product_plain(spec);
    return plain ? ll_product_columns(spec) : 0;
}

/* Rows of 16 bytes or multiples: what activations in a product ask for. */
static bool aligned(ll_match *m, ll_val v, int columns)
{
    const ll_graph *g = m->g;
    ll_shape s = ll_graph_shape(g, v);
    int64_t n = (int64_t)ll_dtype_bytes(ll_graph_dtype(g, v));
    for (int i = s.n - columns; i < s.n; i++) n *= s.d[i];
    return n % 16 == 0 || ll_match_no(m, "rows of %ld bytes are no multiple of 16", n);
}

/* What is added is spread along all dimensions but the columns. */
static bool takes_bias(ll_match *m)
{
    const ll_graph *g = m->g;
    int columns = columns_of(g, ll_match_node(m, "p"));
    ll_val bias = ll_match_value(m, "bias");
    const char *spec = ((const ll_broadcast_attr *)ll_match_node(m, "t")->attr)->spec;
    const char *to = strstr(spec, "->") + 2; /* "c->nhwc" */
    size_t n = (size_t)(to - spec) - 2, all = strlen(to);
    if (!columns) return ll_match_no(m, "no product of two matrices of one type, columns last");
    return (int)n == columns && n <= all && !strncmp(to + all - n, spec, n) &&
           ll_wide(ll_graph_dtype(g, bias)) == LL_F32;
}

static bool takes_gelu(ll_match *m)
{
    int columns = columns_of(m->g, ll_match_node(m, "p"));
    return takes_bias(m) && aligned(m, ll_match_value(m, "s"), columns);
}

static bool takes_bias_alone(ll_match *m)
{
    const ll_node *next = ll_match_reader(m, ll_match_value(m, "s"));
    if (!takes_bias(m)) return false;
    if (next && next->op->elementwise && !ll_is_op(next, ll_ew_op(LL_EW_add)))
        return ll_match_no(m, "a chain takes the bias in");
    return true;
}

static bool takes_dgelu(ll_match *m)
{
    int columns = columns_of(m->g, ll_match_node(m, "p"));
    return columns && aligned(m, ll_match_value(m, "r"), columns);
}

#define PRODUCT_OF "p = matmul(a, b) {spec=$spec, out=$out}\n"
#define SUM                                                                                        \
    PRODUCT_OF "+t = broadcast(bias) {spec=$spread, shape=$shape}\n"                               \
               "s = add(p, t)\n"
#define BIAS "c = cast(bias) {dtype=$out}\n"
#define TRIALS                                                                                     \
    {                                                                                              \
        "a: bf16[6,5], b: bf16[8,5], bias: f32[8] $spec=\"nc,kc->nk\" $out=bf16 "                  \
        "$spread=\"k->nk\" $shape=[6,8]",                                                          \
            "a: f32[2,3,5], b: f32[2,4,5], bias: f32[2,4] $spec=\"abc,zkc->abzk\" $out=f32 "       \
            "$spread=\"zk->abzk\" $shape=[2,3,2,4]"                                                \
    }

/* act: 1 relu, 2 gelu, 3 gelu's gradient */
static const ll_fusion_row rows[] = {
    {.pattern = SUM "y = gelu(s)",
     .replace = BIAS "y = product1(a, b, c) {spec=$spec, out=$out, bias=1, act=2, scaled=0}",
     .same = "p s",
     .guard = takes_gelu,
     .trials = TRIALS},
    {.pattern = SUM "y = gelu(s)", /* and the sum is kept where its gradient needs it */
     .replace = BIAS "y, s = product2(a, b, c) {spec=$spec, out=$out, bias=1, act=2, scaled=0}",
     .same = "p s",
     .guard = takes_gelu,
     .trials = TRIALS},
    {.pattern = SUM "y = relu(s)",
     .replace = BIAS "y = product1(a, b, c) {spec=$spec, out=$out, bias=1, act=1, scaled=0}",
     .same = "p s",
     .guard = takes_bias,
     .trials = TRIALS},
    {.pattern = SUM,
     .replace = BIAS "s = product1(a, b, c) {spec=$spec, out=$out, bias=1, act=0, scaled=0}",
     .same = "p s",
     .guard = takes_bias_alone,
     .trials = TRIALS},
    {.pattern =
         PRODUCT_OF "d = dgelu(pre)\nr = mul(p, d)", /* as it comes through the next product */
     .replace = "r = product1(a, b, pre) {spec=$spec, out=$out, bias=0, act=3, scaled=0}",
     .same = "r p pre",
     .guard = takes_dgelu,
     .trials = {"a: bf16[6,5], b: bf16[5,8], pre: bf16[6,8] $spec=\"nc,ck->nk\" $out=bf16"}},
    {0}};

LL_GPU_FUSION(product, PRODUCTS, .rows = rows)
