/* matmul: a product of two operands, its loops named by letters: "btc,nc->btn".
 *
 * A letter of both operands and the result is a batch of products; of both operands alone, summed;
 * of one operand and the result, a row or column. So "mk,kn->mn" is the plain product, "mk,nk->mn"
 * the second one transposed, "k,k->" an inner product. The spec is the op's loop dims, and the
 * gradient of a product is two more: for "A,B->C", dA is "C,B->A" and dB is "A,C->B".
 *
 * reach: of each result of a product, how large its largest term is beside what it could be.
 *
 *     reach  a, b {spec, enough}   ->  max over the summed loops of 2^(a - bits) 2^(b - bits)
 *
 * a and b are levels of factors, each beside the largest of its row or column (grid with out = u8
 * and LL_REACH_BITS bits); 0: a factor that is 0, and so is its term. Results are 0 where no term
 * is there, or else from 2^(2 - 2 bits) to 2^-enough: kernels need not look for more. What fixed
 * point loses is 2^-bits of the largest: where 1 / reach is large, little is left (pass/exact.c).
 */
#include "op/op_int.h"

#include <stdio.h>

LL_KERNELS(matmul, reach)

static const ll_op reach_op;

typedef ll_matmul_parts parts;

bool ll_matmul_has(const ll_matmul_parts *p, int i, char letter)
{
    return memchr(p->text[i], letter, (size_t)p->len[i]) != NULL;
}

ll_err ll_matmul_read(const char *spec, ll_matmul_parts *p)
{
    size_t n = strnlen(spec, LL_SPEC_MAX);
    CHECK(n < LL_SPEC_MAX, LL_E_ARG, "spec is longer than %d characters", LL_SPEC_MAX - 1);
    const char *comma = strchr(spec, ','), *arrow = strstr(spec, "->");
    CHECK(comma && arrow && comma < arrow, LL_E_ARG, "spec \"%s\", expected one like \"mk,kn->mn\"",
          spec);
    *p = (parts){.text = {spec, comma + 1, arrow + 2}};
    p->len[0] = (int)(comma - spec);
    p->len[1] = (int)(arrow - comma) - 1;
    p->len[2] = (int)strlen(arrow + 2);
    for (int i = 0; i < 3; i++) {
        CHECK(p->len[i] <= LL_MAX_DIMS, LL_E_ARG, "spec \"%s\": \"%.*s\" has more than %d letters",
              spec, p->len[i], p->text[i], LL_MAX_DIMS);
        for (int j = 0; j < p->len[i]; j++) {
            char c = p->text[i][j];
            CHECK(c >= 'a' && c <= 'z', LL_E_ARG, "spec \"%s\": '%c' is not a letter a to z", spec,
                  c);
            CHECK(!memchr(p->text[i], c, (size_t)j), LL_E_ARG,
                  "spec \"%s\": %c is twice in \"%.*s\"", spec, c, p->len[i], p->text[i]);
            int count = ll_matmul_has(p, 0, c) + ll_matmul_has(p, 1, c) + ll_matmul_has(p, 2, c);
            CHECK(count >= 2, LL_E_ARG, "spec \"%s\": %c is in \"%.*s\" alone", spec, c, p->len[i],
                  p->text[i]);
        }
    }
    return LL_OK;
}

int ll_weight_rows(const ll_graph *g, const ll_node *n, ll_matmul_parts *p)
{
    int rows = 0;
    if (n->op != &ll_op_matmul) return 0;
    const ll_value *w = ll_value_of(g, n->in[1]);
    if (w->node >= 0 || w->kind != LL_PARAM ||
        ll_matmul_read(((const ll_matmul_attr *)n->attr)->spec, p) != LL_OK)
        return 0;
    while (rows < p->len[1] && ll_matmul_has(p, 2, p->text[1][rows])) rows++;
    for (int i = rows; i < p->len[1]; i++)
        if (ll_matmul_has(p, 2, p->text[1][i])) return 0;
    return rows < p->len[1] ? rows : 0;
}

static ll_err loops(const void *attr, int, const ll_type *, char dims[LL_DIMS_TEXT])
{
    const char *spec = (const char *)attr; /* the first field of both ops' */
    parts p;
    TRY(ll_matmul_read(spec, &p));
    snprintf(dims, LL_DIMS_TEXT, "%s", spec);
    return LL_OK;
}

static ll_err infer(ll_infer *i)
{
    const ll_matmul_attr *m = (const ll_matmul_attr *)i->attr;
    ll_dtype t = i->in[0].dtype;
    CHECK(t == i->in[1].dtype, LL_E_ARG, "operands are %s and %s, expected one type",
          ll_dtype_name(t), ll_dtype_name(i->in[1].dtype));
    CHECK(t == LL_F64 || t == LL_F32 || t == LL_BF16, LL_E_ARG,
          "operands are %s, expected f64, f32 or bf16", ll_dtype_name(t));
    TRY(ll_check_bits(m->bits, t));
    CHECK(m->out == t || (t == LL_BF16 && m->out == LL_F32), LL_E_ARG,
          "operands are %s and the result %s, expected the same type, or f32 of bf16",
          ll_dtype_name(t), ll_dtype_name(m->out));
    TRY(ll_infer_dims(i));
    i->out[0].dtype = m->out;
    return LL_OK;
}

ll_val ll_matmul(ll_graph *g, const char *spec, ll_val a, ll_val b)
{
    ll_matmul_attr attr = {0};
    if (!ll_has_argument(g, "matmul", "spec", spec)) return (ll_val){0};
    if (strlen(spec) >= sizeof attr.spec) {
        return ll_reject(g, LL_E_ARG, "matmul: spec \"%s\" is longer than %d characters", spec,
                         LL_SPEC_MAX - 1);
    }
    memcpy(attr.spec, spec, strlen(spec));
    attr.out = ll_graph_dtype(g, a);
    return LL_EMIT(g, &ll_op_matmul, &attr, a, b);
}

/* The product whose spec is parts i and j giving part k of p. */
static ll_val rearranged(ll_graph *g, const parts *p, int i, ll_val x, int j, ll_val y, int k)
{
    char spec[LL_SPEC_MAX];
    snprintf(spec, sizeof spec, "%.*s,%.*s->%.*s", p->len[i], p->text[i], p->len[j], p->text[j],
             p->len[k], p->text[k]);
    return ll_matmul(g, spec, x, y);
}

static void grad(ll_bwd *b)
{
    const ll_matmul_attr *m = (const ll_matmul_attr *)b->attr;
    ll_dtype t = ll_graph_dtype(b->g, b->in[0]);
    ll_val dout = b->dout[0];
    parts p;
    if (ll_matmul_read(m->spec, &p) != LL_OK) {
        ll_fail(b->g);
        return;
    }
    if (ll_graph_dtype(b->g, dout) != t) dout = ll_cast(b->g, dout, t);
    b->din[0] = rearranged(b->g, &p, 2, dout, 1, b->in[1], 0);
    b->din[1] = rearranged(b->g, &p, 0, b->in[0], 2, dout, 1);
}

ll_val ll_linear(ll_graph *g, const char *name, ll_val x, int64_t out, bool bias)
{
    ll_shape s = ll_graph_shape(g, x);
    if (!x.id || s.n < 1 || s.d[s.n - 1] < 1 || out < 1) {
        char text[LL_SHAPE_TEXT];
        return ll_reject(g, LL_E_SHAPE, "linear %s: operand %s, %ld outputs", name,
                         x.id ? ll_shape_print(&s, text) : "none", out);
    }
    int64_t in = s.d[s.n - 1];
    ll_init init = {LL_UNIFORM, 1 / sqrt((double)in)};
    char spec[LL_SPEC_MAX];
    snprintf(spec, sizeof spec, "%.*sx,yx->%.*sy", s.n - 1, "abcde", s.n - 1, "abcde");
    ll_graph_push(g, name);
    ll_val y = ll_matmul(g, spec, x, ll_param(g, "weight", LL_SHAPE(out, in), init));
    if (bias) y = ll_add(g, y, ll_param(g, "bias", LL_SHAPE(out), init));
    ll_graph_pop(g);
    return y;
}

/* ---- reach ---- */

static ll_err reach_infer(ll_infer *i)
{
    const ll_reach_attr *r = (const ll_reach_attr *)i->attr;
    for (int k = 0; k < 2; k++)
        CHECK(i->in[k].dtype == LL_U8, LL_E_ARG, "operand %d is %s, expected u8", k,
              ll_dtype_name(i->in[k].dtype));
    CHECK(r->enough >= 0 && r->enough <= LL_REACH_BITS, LL_E_ARG, "enough is %ld, expected 0 to %d",
          r->enough, LL_REACH_BITS);
    TRY(ll_infer_dims(i));
    i->out[0].dtype = LL_F32;
    return LL_OK;
}

ll_val ll_reach(ll_graph *g, const char *spec, ll_val a, ll_val b, int enough)
{
    ll_reach_attr attr = {.enough = enough};
    snprintf(attr.spec, sizeof attr.spec, "%s", spec);
    return LL_EMIT(g, &reach_op, &attr, a, b);
}

/* ---- declarations ---- */

static const ll_attr_field attrs[] = {LL_FIELD(ll_matmul_attr, spec, LL_A_SPEC),
                                      LL_FIELD(ll_matmul_attr, out, LL_A_DTYPE),
                                      LL_FIELD(ll_matmul_attr, bits, LL_A_BITS),
                                      {0}};

static ll_val reach(ll_graph *g, const void *attr, const ll_type *, const ll_val *level, int enough)
{
    return ll_reach(g, ((const ll_matmul_attr *)attr)->spec, level[0], level[1], enough);
}

const ll_op ll_op_matmul = {
    LL_REF_OP(matmul, PRODUCT, 2, 1, .scratch = matmul_cpu_scratch, .parts = true),
    .model = 1,
    .attr_size = sizeof(ll_matmul_attr),
    .attrs = attrs,
    .loops = loops,
    .sum = "?",
    .infer = infer,
    .grad = grad,
    .reach = reach,
    .flop = 2,
    .f64 = true,
    .trials = {"f32[6,12], f32[12,18] {spec=\"mk,kn->mn\", out=f32}",
               "f32[2,3,7], f32[5,7] {spec=\"btc,nc->btn\", out=f32}",
               "f32[2,5,3,4], f32[2,6,3,4] {spec=\"bthd,bshd->bhts\", out=f32}",
               "f32[2,5,7], f32[2,5,3,1,4] {spec=\"btc,btzhd->zhdc\", out=f32}",
               "f32[3,1,5], f32[5,3,2] {spec=\"amk,kan->nam\", out=f32}",
               "f32[7], f32[7] {spec=\"k,k->\", out=f32}",
               "f32[4,0], f32[0,3] {spec=\"mk,kn->mn\", out=f32}",
               "f64[70,300], f64[300,67] {spec=\"mk,kn->mn\", out=f64, bits=38}",
               "f64[3,5,9], f64[5,3,2,9] {spec=\"akm,kanm->nam\", out=f64, bits=32}"},
};

static const ll_op reach_op = {
    LL_REF_OP(reach, OTHER, 2, 1, .scratch = reach_cpu_scratch),
    LL_ATTRS(ll_reach_attr, spec, enough),
    .loops = loops,
    .max = "?",
    .infer = reach_infer,
    .no_grad = true,
    .flop = 1,
    .trials = {"u8[6,12]<61, u8[12,18]<61 {spec=\"mk,kn->mn\", enough=3}",
               "u8[2,3,7]<61, u8[5,7]<5 {spec=\"btc,nc->btn\", enough=0}",
               "u8[2,5,3,4]<2, u8[2,6,3,4]<61 {spec=\"bthd,bshd->bhts\", enough=3}",
               "u8[2,5,7]<61, u8[2,5,3,1,4]<61 {spec=\"btc,btzhd->zhdc\", enough=9}",
               "u8[3,1,5]<61, u8[5,3,2]<61 {spec=\"amk,kan->nam\", enough=0}",
               "u8[7]<61, u8[7]<61 {spec=\"k,k->\", enough=3}",
               "u8[70,131]<44, u8[131,290]<52 {spec=\"mk,kn->mn\", enough=40}",
               "u8[4,0]<61, u8[0,3]<61 {spec=\"mk,kn->mn\", enough=3}"},
};

const ll_op *const ll_ops_matmul[] = {&ll_op_matmul, &reach_op, NULL};
