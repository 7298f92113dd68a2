/* packed_several.c: products with packed weights (op/packed.c) and what surrounds them, for CPUs:
 * ops packed1 to packed3, by the number of results. A decoding step is a row of products with small
 * matrices, each read once: threads that meet less often, and round their common x once, read on.
 *
 *     act     operands                       results
 *     none    x, weights of 2 or 3           their products
 *     gate    x, weights of gate and up      silu(x gate) (x up)
 *     add     x, weights, more               x weights + more
 *
 * Weights are q, scale and, of 4 bits, least. rows, rows1, rows2: as of packed_matmul. */
#include "fuse/fuse_int.h"

#include <stdio.h>

LL_KERNELS(packed_several)

/* Operands of each of the weights. */
static int operands_of(const ll_packed_several_attr *a)
{
    return a->bits == 4 ? 3 : 2;
}

static ll_err check(int n_in, int n_out, const ll_type *in, const ll_packed_several_attr *a)
{
    CHECK(a->bits == 4 || a->bits == 8, LL_E_ARG, "%ld bits", a->bits);
    CHECK(a->act >= 0 && a->act < LL_N_PACKED && (n_out == 1) == (a->act != LL_PACKED_NONE),
          LL_E_ARG, "act %ld has not %d results", a->act, n_out);
    int n = a->act == LL_PACKED_GATE ? 2 : n_out,
        want = 1 + n * operands_of(a) + (a->act == LL_PACKED_ADD);
    CHECK(n_in == want, LL_E_ARG, "%d operands, expected %d", n_in, want);
    for (int i = 0; i < n; i++) {
        const ll_type *w = &in[1 + i * operands_of(a)];
        int64_t rows = ll_packed_rows(a, i);
        CHECK(w->dtype == LL_U8 && w[1].dtype == LL_F16 && rows > 0 && rows < w->shape.n - 1 &&
                  w->shape.d[w->shape.n - 1] == 4 * a->bits && w->shape.n - rows <= in->shape.n,
              LL_E_SHAPE, "weights %d are no blocks of %ld bits, or have not %ld rows' dimensions",
              i, a->bits, rows);
    }
    return LL_OK;
}

/* x is [a..,k.._], weights [n..,k.._], results [a..,n..]: the letters of these rows. */
typedef struct letters {
    char left[LL_MAX_DIMS + 1], summed[LL_MAX_DIMS + 1], rows[3][LL_MAX_DIMS + 1];
} letters;

static letters letters_of(const ll_packed_several_attr *a, int n, const ll_shape *x,
                          const ll_type *w)
{
    letters l = {0};
    char next = 'a';
    int summed = w->shape.n - (int)a->rows - 1;
    for (int i = 0; i + 1 + summed < x->n; i++) l.left[i] = next++;
    for (int i = 0; i < summed; i++) l.summed[i] = next++;
    for (int k = 0; k < n; k++) {
        if (k && a->act == LL_PACKED_GATE) memcpy(l.rows[1], l.rows[0], sizeof l.rows[0]);
        for (int i = 0; i < ll_packed_rows(a, k) && !l.rows[k][i]; i++) l.rows[k][i] = next++;
    }
    return l;
}

static ll_err loops(const void *attr, int n_in, const ll_type *in, char dims[LL_DIMS_TEXT])
{
    const ll_packed_several_attr *a = (const ll_packed_several_attr *)attr;
    int each = operands_of(a), n = (n_in - 1) / each, at;
    int n_out = a->act == LL_PACKED_NONE ? n : 1;
    TRY(check(n_in, n_out, in, a));
    letters l = letters_of(a, n, &in[0].shape, &in[1]);
    at = snprintf(dims, LL_DIMS_TEXT, "%s%s_", l.left, l.summed);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < each; k++)
            at += snprintf(dims + at, (size_t)(LL_DIMS_TEXT - at), ",%s%s%s", l.rows[i], l.summed,
                           k ? "" : "_");
    if (a->act == LL_PACKED_ADD)
        at += snprintf(dims + at, (size_t)(LL_DIMS_TEXT - at), ",%s%s", l.left, l.rows[0]);
    for (int o = 0; o < n_out; o++)
        at += snprintf(dims + at, (size_t)(LL_DIMS_TEXT - at), "%s%s%s", o ? "," : "->", l.left,
                       l.rows[o]);
    return LL_OK;
}

static ll_err infer(ll_infer *i)
{
    const ll_packed_several_attr *a = (const ll_packed_several_attr *)i->attr;
    TRY(check(i->n_in, i->n_out, i->in, a));
    CHECK(i->in[0].dtype == LL_F32 && i->in[0].shape.d[i->in[0].shape.n - 1] == LL_PACK, LL_E_SHAPE,
          "x is not of f32, in blocks of %d", LL_PACK);
    TRY(ll_infer_dims(i));
    for (int o = 0; o < i->n_out; o++) i->out[o].dtype = LL_F32;
    return LL_OK;
}

/* Operands may have become f64 (ll_expand_fused), which packed_matmul does not take. */
static void expand(ll_graph *g, const void *attr, const ll_val *in, int n_in, ll_val *out)
{
    const ll_packed_several_attr *a = (const ll_packed_several_attr *)attr;
    int each = operands_of(a), n = (n_in - 1) / each;
    ll_type w = ll_value_of(g, in[1])->type;
    ll_shape x = ll_graph_shape(g, in[0]);
    letters l = letters_of(a, n, &x, &w);
    ll_val y[3];
    for (int i = 0; i < n; i++) {
        ll_packed_attr p = {.bits = a->bits, .rows = ll_packed_rows(a, i)};
        ll_val of[4] = {ll_cast(g, in[0], LL_F32), in[1 + i * each]};
        const char *s = l.summed, *r = l.rows[i];
        char spec[128];
        for (int k = 1; k < each; k++) of[1 + k] = ll_cast(g, in[1 + i * each + k], LL_F16);
        snprintf(spec, sizeof spec, "%s%s_,%s%s_,%s%s%s%s%s->%s%s", l.left, s, r, s, r, s,
                 each == 3 ? "," : "", each == 3 ? r : "", each == 3 ? s : "", l.left, r);
        LL_ASSERT(strlen(spec) < sizeof p.spec);
        strncpy(p.spec, spec, sizeof p.spec - 1);
        y[i] = ll_emit(g, &ll_op_packed_matmul, &p, of, 1 + each);
    }
    for (int i = 0; a->act == LL_PACKED_NONE && i < n; i++) out[i] = y[i];
    if (a->act == LL_PACKED_GATE) out[0] = ll_mul(g, ll_silu(g, y[0]), y[1]);
    if (a->act == LL_PACKED_ADD) out[0] = ll_add(g, y[0], ll_cast(g, in[n_in - 1], LL_F32));
}

/* 2 for each weight and row of x. */
static double cost(const void *attr, const ll_loops *l)
{
    const ll_packed_several_attr *a = (const ll_packed_several_attr *)attr;
    double sum = 0;
    for (int w = 1, i = 0; i < 3 && l->in[w][0] >= 0; i++, w += operands_of(a)) {
        double points = 2 * LL_PACK;
        for (int k = 0; k < l->n; k++)
            if (ll_dim_of(l->in[0], k) >= 0 || ll_dim_of(l->in[w + 1], k) >= 0)
                points *= (double)l->extent[k];
        if (i < (a->act == LL_PACKED_ADD ? 1 : 3)) sum += points;
    }
    return sum;
}

#define SEVERAL(results)                                                                           \
    .name = "packed" #results, .work = LL_WORK_PRODUCT, .n_in = -1, .n_out = results,              \
    LL_ATTRS(ll_packed_several_attr, bits, act, rows, rows1, rows2),                               \
    .whole = "abcdefghijklmnopqrstuvwxyz", .loops = loops, .infer = infer, .expand = expand,       \
    .no_grad = true, .cost = cost,                                                                 \
    .cpu =                                                                                         \
        LL_KERNEL(.run = packed_several_cpu, .scratch = packed_several_cpu_scratch, .parts = true)
static const ll_op ops[3] = {
    {SEVERAL(1),
     .trials = {"f32[2,3,32], u8[5,3,32], f16[5,3], u8[5,3,32], f16[5,3] {bits=8, act=1, rows=1, "
                "rows1=1, rows2=0}",
                "f32[1,1,5,32], u8[70,5,16], f16[70,5], f16[70,5], u8[70,5,16], f16[70,5], "
                "f16[70,5] {bits=4, act=1, rows=1, rows1=1, rows2=0}",
                "f32[3,2,32], u8[9,2,32], f16[9,2], f32[3,9] {bits=8, act=2, rows=1, rows1=0, "
                "rows2=0}",
                "f32[1,2,2,3,32], u8[3,70,2,3,16], f16[3,70,2,3], f16[3,70,2,3], f32[1,2,3,70] "
                "{bits=4, act=2, rows=2, rows1=0, rows2=0}"}},
    {SEVERAL(2),
     .trials = {"f32[2,3,32], u8[5,3,32], f16[5,3], u8[2,4,3,32], f16[2,4,3] {bits=8, act=0, "
                "rows=1, rows1=2, rows2=0}",
                "f32[1,2,32], u8[7,2,16], f16[7,2], f16[7,2], u8[5,2,16], f16[5,2], f16[5,2] "
                "{bits=4, act=0, rows=1, rows1=1, rows2=0}"}},
    {SEVERAL(3),
     .trials = {"f32[1,1,5,32], u8[3,3,16,5,32], f16[3,3,16,5], u8[3,16,5,32], f16[3,16,5], "
                "u8[3,16,5,32], f16[3,16,5] {bits=8, act=0, rows=3, rows1=2, rows2=2}",
                "f32[5,2,32], u8[7,2,16], f16[7,2], f16[7,2], u8[50,2,16], f16[50,2], f16[50,2], "
                "u8[1,2,16], f16[1,2], f16[1,2] {bits=4, act=0, rows=1, rows1=1, rows2=1}"}},
};
const ll_op *const ll_ops_packed_several[] = {&ops[0], &ops[1], &ops[2], NULL};

/* ---- where they are found ---- */

/* A chain takes in what is spread or filled, and what other elements are made of. */
static bool guard_add(ll_match *m)
{
    const ll_node *n = ll_match_node(m, "more");
    if (ll_is_op(n, &ll_op_broadcast) || ll_is_op(n, &ll_op_fill) ||
        (n && n->op->elementwise && m->uses[ll_match_value(m, "more").id] == 1))
        return ll_match_no(m, "what is added is part of a chain");
    return true;
}

#define W8(i) "w" #i ", s" #i
#define W4(i) W8(i) ", l" #i
#define LINE(y, w, b, i)                                                                           \
    y " = packed_matmul(x, " w ") {spec=$spec" #i ", bits=" #b ", rows=$rows" #i "}\n"
#define T8                                                                                         \
    "x: f32[2,3,32], w0: u8[5,3,32], s0: f16[5,3], w1: u8[5,3,32], s1: f16[5,3], "                 \
    "w2: u8[4,3,32], s2: f16[4,3], more: f32[2,5] "
#define T4                                                                                         \
    "x: f32[2,3,32], w0: u8[5,3,16], s0: f16[5,3], l0: f16[5,3], w1: u8[5,3,16], "                 \
    "s1: f16[5,3], l1: f16[5,3], w2: u8[4,3,16], s2: f16[4,3], l2: f16[4,3], "                     \
    "more: f32[2,5] "
#define SPEC8 "\"mk_,nk_,nk->mn\" "
#define SPEC4 "\"mk_,nk_,nk,nk->mn\" "
#define HOLES(s) "$rows0=1 $rows1=1 $rows2=1 $spec0=" s "$spec1=" s "$spec2=" s
#define ROWS(b)                                                                                    \
    {.pattern = LINE("p", W##b(0), b, 0) LINE("q", W##b(1), b, 1) "a = silu(p)\ny = mul(a, q)",    \
     .replace = "y = packed1(x, " W##b(0) ", " W##b(                                               \
         1) ") {bits=" #b ", act=1, rows=$rows0, rows1=$rows1, rows2=0}",                          \
     .same = "p q y",                                                                              \
     .trials = {T##b HOLES(SPEC##b)}},                                                             \
        {.pattern = LINE("p", W##b(0), b, 0) LINE("q", W##b(1), b, 1) LINE("r", W##b(2), b, 2),    \
         .replace = "p, q, r = packed3(x, " W##b(0) ", " W##b(1) ", " W##b(                        \
             2) ") {bits=" #b ", act=0, rows=$rows0, rows1=$rows1, rows2=$rows2}",                 \
         .trials = {T##b HOLES(SPEC##b)}},                                                         \
        {.pattern = LINE("p", W##b(0), b, 0) LINE("q", W##b(1), b, 1),                             \
         .replace = "p, q = packed2(x, " W##b(0) ", " W##b(                                        \
             1) ") {bits=" #b ", act=0, rows=$rows0, rows1=$rows1, rows2=0}",                      \
         .trials = {T##b HOLES(SPEC##b)}},                                                         \
    {                                                                                              \
        .pattern = LINE("p", W##b(0), b, 0) "y = add(p, more)",                                    \
        .replace = "y = packed1(x, " W##b(0) ", more) {bits=" #b                                   \
                                             ", act=2, rows=$rows0, rows1=0, rows2=0}",            \
        .same = "p y more", .guard = guard_add, .trials = {                                        \
            T##b HOLES(SPEC##b)                                                                    \
        }                                                                                          \
    }

static const ll_fusion_row rows[] = {ROWS(8), ROWS(4), {0}};

LL_CPU_FUSION(packed_several, PRODUCTS, .rows = rows)
