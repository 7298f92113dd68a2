/* fp8.c: large products read 8-bit floats: e4m3 in the forward pass, e5m2 for gradients, each
 * tensor with one scale (op/quantize.c); of precision fp8block e4m3, with a scale for each block of
 * 128 numbers, of parameters 128 x 128 (op/blocks.c). Sums are f32, results bf16 or f32 as before.
 * Matrix units want the summed loop of both operands to run fastest, so an operand is read as it
 * lies or transposed; where a tensor is wanted both ways (the forward pass and the backward pass),
 * one node makes both, and the sum of its columns if that is wanted (the gradient of a bias). What
 * gelu gives in the forward pass, and its gradient in the backward pass, are made on the way from
 * what the products give, where nothing else reads them: they are in no memory but as 8-bit
 * floats; nor is a residual's norm (layernorm_both.c). Of blocks neither is done. The products that
 * make logits, and read their gradient, stay bf16: few values of a large vocabulary matter, and a
 * softmax shows every rounding. */
#include "fuse/fuse_int.h"

enum { LEAST = 128, MULTIPLE = 16 };  /* of every side of a product */
enum { MANY = 1 << 20, SAMPLE = 16 }; /* of so many elements one row of 16 gives the scale */

typedef struct wanted { /* of a value: how it is read, by all products */
    bool plain, transposed, clash, summed;
    int rows, reads; /* reads: by products and sums that take what is made here */
    ll_act act;      /* not NONE: it is not made by itself, but is gelu(x), x gelu'(pre) */
    ll_val x, pre;   /* of the new graph */
    ll_val q, t, scale, t_scale, sum; /* once made */
} wanted;

typedef struct lowering {
    const ll_graph *g;
    ll_rewrite rw;
    wanted *of;
    const int *uses;
    bool *chosen; /* nodes: products, and sums of what these read */
    int n;        /* products */
    bool blocks;
} lowering;

typedef struct side { /* one operand of a product: [rows, sum] as it lies, or [sum, rows] */
    int rows;         /* dimensions before the two parts meet */
    bool transposed;
} side;

static bool is_product(const ll_node *n)
{
    return ll_is_op(n, &ll_op_matmul) || ll_is_op(n, ll_product_op(1)) ||
           ll_is_op(n, ll_product_op(2));
}

static bool is_cast(const ll_node *n)
{
    return ll_is_op(n, ll_ew_op(LL_EW_cast));
}

static bool is_of_loss(const ll_node *n)
{
    return n && n->op->logits;
}

static bool backward(const ll_node *n)
{
    return n && n->of.phase == LL_BACKWARD && !n->of.again;
}

/* Where operand i's letters part into those that are summed and those that are not. */
static side side_of(const ll_matmul_parts *p, int i)
{
    side s = {0};
    s.transposed = !ll_matmul_has(p, 2, p->text[i][0]);
    while (s.rows < p->len[i] && s.transposed == !ll_matmul_has(p, 2, p->text[i][s.rows])) s.rows++;
    return s;
}

static bool large(const ll_shape *s, int rows)
{
    int64_t a = 1, b = 1;
    for (int d = 0; d < s->n; d++) *(d < rows ? &a : &b) *= s->d[d];
    return a >= LEAST && b >= LEAST && a % MULTIPLE == 0 && b % MULTIPLE == 0;
}

/* Whether a value is rounded from f32: on a GPU what depends on the batch is bf16. */
static bool of_parameter(const ll_graph *g, ll_val v)
{
    const ll_node *from = ll_maker(g, v);
    return is_cast(from) && ll_graph_dtype(g, from->in[0]) == LL_F32;
}

/* Whether a node is a product that can be of 8-bit floats; and the sides of its operands. */
static bool fits(const lowering *l, const ll_node *n, side s[2])
{
    const ll_graph *g = l->g;
    ll_matmul_parts p;
    const char *spec = (const char *)n->attr; /* of both ops the first field */
    if (!is_product(n) || ll_graph_dtype(g, n->in[0]) != LL_BF16) return false;
    if (!ll_product_plain(spec) || ll_matmul_read(spec, &p) != LL_OK) return false;
    for (int i = 0; i < 2; i++) {
        ll_shape shape = ll_graph_shape(g, n->in[i]);
        s[i] = side_of(&p, i);
        if (!large(&shape, s[i].rows) || is_of_loss(ll_maker(g, n->in[i]))) return false;
    }
    return !(l->blocks && of_parameter(g, n->in[0]) && of_parameter(g, n->in[1]));
}

/* Values that a loss reads, by way of elementwise nodes (a bias) too. */
static const bool *logits(const ll_graph *g, ll_arena *arena)
{
    bool *are = LL_NEW_ARRAY(arena, bool, g->n_value);
    for (int i = g->n_node - 1; i >= 0; i--) {
        const ll_node *n = &g->nodes[i];
        bool loss = is_of_loss(n), passes = n->op->elementwise && are[n->out[0].id];
        for (int k = 0; k < n->n_in; k++) are[n->in[k].id] |= loss || passes;
    }
    return are;
}

/* "btn->n": whether a node sums the rows of a value that is made both ways, and leaves columns. */
static bool sums_rows(const lowering *l, const ll_node *n)
{
    if (n->op != &ll_op_sum) return false;
    const wanted *w = &l->of[n->in[0].id];
    if (l->blocks) return false;
    const char *spec = ((const ll_spec_attr *)n->attr)->spec, *arrow = strstr(spec, "->");
    size_t cols = strlen(arrow + 2), all = (size_t)(arrow - spec);
    return w->plain && w->transposed && !w->clash && all == (size_t)w->rows + cols &&
           !memcmp(spec + w->rows, arrow + 2, cols);
}

static void find(lowering *l)
{
    const bool *last = logits(l->g, l->rw.to->arena);
    for (int i = 0; i < l->g->n_node; i++) {
        const ll_node *n = &l->g->nodes[i];
        side s[2];
        l->chosen[i] = fits(l, n, s) && !last[n->out[0].id];
        for (int k = 0; l->chosen[i] && k < 2; k++) {
            wanted *w = &l->of[n->in[k].id];
            if ((w->plain || w->transposed) && w->rows != s[k].rows) w->clash = true;
            w->rows = s[k].rows;
            *(s[k].transposed ? &w->transposed : &w->plain) = true;
        }
    }
    for (int i = 0; i < l->g->n_node; i++) {
        const ll_node *n = &l->g->nodes[i];
        bool sum = sums_rows(l, n);
        if (l->chosen[i] && !l->of[n->in[0].id].clash && !l->of[n->in[1].id].clash)
            l->n++, l->of[n->in[0].id].reads++, l->of[n->in[1].id].reads++;
        else
            l->chosen[i] = sum;
        if (sum) l->of[n->in[0].id].summed = true, l->of[n->in[0].id].reads++;
    }
}

static ll_err in_blocks(lowering *l, wanted *w, ll_val x, bool square, bool both)
{
    ll_val out[4];
    ll_blocks_attr a = {.rows = w->rows, .transposed = w->transposed && !both, .square = square};
    const char *op = both ? "quantize_blocks_both" : "quantize_blocks";
    TRY(ll_emit_all(l->rw.to, ll_op_find(op), &a, &x, 1, out));
    w->q = out[0], w->scale = out[1];
    w->t = out[both ? 2 : 0], w->t_scale = out[both ? 3 : 1];
    return LL_OK;
}

/* The value in 8 bits. A parameter's bf16 copy is passed over: the parameter itself is rounded. */
static ll_err quantized(lowering *l, ll_val v)
{
    wanted *w = &l->of[v.id];
    const ll_node *from = ll_maker(l->g, v);
    ll_val in[2] = {w->act ? w->x : l->rw.map[v.id], w->pre}, out[4];
    ll_shape shape = ll_graph_shape(l->g, v);
    if (w->scale.id) return LL_OK;
    bool stored = of_parameter(l->g, v);
    if (stored) in[0] = l->rw.map[from->in[0].id];
    bool both = w->plain && w->transposed;
    if (l->blocks) return in_blocks(l, w, in[0], stored, both);
    ll_quantize_attr a = {.dtype = backward(from) ? LL_F8_E5M2 : LL_F8_E4M3,
                          .rows = w->rows,
                          .transposed = w->transposed && !both,
                          .sample = ll_numel(&shape) >= MANY ? SAMPLE : 1,
                          .act = w->act};
    const char *op = w->summed ? "quantize_sum" : both ? "quantize_both" : "quantize";
    TRY(ll_emit_all(l->rw.to, ll_op_find(op), &a, in, w->pre.id ? 2 : 1, out));
    w->q = w->t = out[0];
    if (both) w->t = out[1];
    w->scale = w->t_scale = out[both ? 2 : 1];
    if (w->summed) w->sum = out[3];
    return LL_OK;
}

/* Whether a value is a parameter's bf16 copy, and the parameter lies here as it is. */
static bool is_parameter(const ll_graph *g, ll_val v)
{
    const ll_node *from = ll_maker(g, v);
    return is_cast(from) && !ll_maker(g, from->in[0]) &&
           ll_value_of(g, from->in[0])->kind == LL_PARAM;
}

/* Parameters first, side by side: on a GPU they are one launch (machine/merge.c). */
static ll_err lower_parameters(lowering *l)
{
    for (int i = 0; i < l->g->n_node; i++) {
        const ll_node *n = &l->g->nodes[i];
        for (int k = 0; k < 2 && l->chosen[i] && is_product(n); k++) {
            if (!is_parameter(l->g, n->in[k])) continue;
            ll_graph_at(l->rw.to, &l->g->nodes[0]);
            TRY(quantized(l, n->in[k]));
        }
    }
    return LL_OK;
}

static ll_err lower_sum(lowering *l, const ll_node *n)
{
    ll_graph_at(l->rw.to, n);
    TRY(quantized(l, n->in[0]));
    ll_rewrite_map(&l->rw, n->out[0], l->of[n->in[0].id].sum);
    return LL_OK;
}

/* "bt.c" -> "c.bt": an operand's letters as it is transposed. */
static int put_letters(char *to, const ll_matmul_parts *p, int i, side s)
{
    int at = s.transposed ? s.rows : 0;
    for (int k = 0; k < p->len[i]; k++) to[k] = p->text[i][(at + k) % p->len[i]];
    return p->len[i];
}

/* The attributes of the product; the columns of its result are the second operand's. */
static ll_err attr_of(const lowering *l, const ll_node *n, const side s[2], int *first,
                      ll_product_attr *a)
{
    ll_matmul_parts p;
    TRY(ll_matmul_read((const char *)n->attr, &p));
    *a = (ll_product_attr){.out = ((const ll_matmul_attr *)n->attr)->out};
    if (n->op != &ll_op_matmul) *a = *(const ll_product_attr *)n->attr;
    *first = !ll_matmul_has(&p, 1, p.text[2][p.len[2] - 1]);
    char spec[LL_SPEC_MAX] = {0};
    int at = put_letters(spec, &p, *first, s[*first]);
    spec[at++] = ',';
    at += put_letters(spec + at, &p, !*first, s[!*first]);
    memcpy(spec + at, "->", 2);
    memcpy(spec + at + 2, p.text[2], (size_t)p.len[2]);
    memcpy(a->spec, spec, sizeof spec);
    a->scaled = backward(n) ? LL_SCALED : LL_SCALED_FAST;
    if (l->blocks)
        a->scaled = of_parameter(l->g, n->in[*first])    ? LL_SCALED_SQUARES_A
                    : of_parameter(l->g, n->in[!*first]) ? LL_SCALED_SQUARES_B
                                                         : LL_SCALED_LINES;
    return LL_OK;
}

/* Whether a value is read by nothing but what rounds it to 8 bits. */
static bool only_rounded(const lowering *l, ll_val v)
{
    return !l->blocks && l->of[v.id].reads && l->of[v.id].reads == l->uses[v.id];
}

/* x gelu'(pre), by a node of its own if others read it than what rounds it to 8 bits. */
static ll_err take_slope(lowering *l, const ll_node *n, ll_val *x)
{
    wanted *w = &l->of[n->out[0].id];
    ll_val pre = l->rw.map[n->in[n->n_in - 1].id];
    if (only_rounded(l, n->out[0])) {
        w->act = LL_ACT_DGELU;
        w->x = *x;
        w->pre = pre;
        return LL_OK;
    }
    ll_val slope = ll_emit(l->rw.to, ll_ew_op(LL_EW_dgelu), NULL, &pre, 1);
    *x = ll_mul(l->rw.to, *x, slope);
    return ll_graph_check(l->rw.to);
}

static ll_err lower_product(lowering *l, const ll_node *n)
{
    ll_product_attr a;
    side s[2];
    ll_val in[LL_MAX_IN], out[LL_MAX_OUT];
    int first, n_in = 4;
    fits(l, n, s);
    TRY(attr_of(l, n, s, &first, &a));
    ll_graph_at(l->rw.to, n);
    for (int k = 0; k < 2; k++) {
        int from = k ? !first : first;
        const wanted *w = &l->of[n->in[from].id];
        TRY(quantized(l, n->in[from]));
        in[k] = s[from].transposed ? w->t : w->q;
        in[2 + k] = s[from].transposed ? w->t_scale : w->scale;
    }
    /* Epilogues of 8-bit products add bf16, and there is none for gelu's gradient. */
    if (a.bias) in[n_in++] = ll_cast(l->rw.to, l->rw.map[n->in[2].id], LL_BF16);
    TRY(ll_graph_check(l->rw.to));
    bool dgelu = a.act == LL_ACT_DGELU, later = a.act == LL_ACT_GELU && only_rounded(l, n->out[0]);
    if (dgelu || later) a.act = LL_ACT_NONE;
    TRY(ll_emit_all(l->rw.to, ll_product_op(later ? 1 : n->n_out), &a, in, n_in, out));
    if (dgelu) TRY(take_slope(l, n, &out[0]));
    if (later) {
        wanted *w = &l->of[n->out[0].id];
        w->act = LL_ACT_GELU;
        w->x = out[1] = out[0]; /* gelu's operand is kept where its gradient wants it */
    }
    for (int o = 0; o < n->n_out; o++) ll_rewrite_map(&l->rw, n->out[o], out[o]);
    return LL_OK;
}

static ll_err rewrite(const ll_graph *g, bool blocks, int *fired, ll_graph **out)
{
    lowering l = {.g = g, .blocks = blocks};
    ll_rewrite_begin(&l.rw, g);
    l.chosen = LL_NEW_ARRAY(l.rw.to->arena, bool, g->n_node + 1);
    l.of = LL_NEW_ARRAY(l.rw.to->arena, wanted, g->n_value);
    l.uses = ll_uses(g, l.rw.to->arena);
    find(&l);
    ll_err rc = lower_parameters(&l);
    for (int i = 0; i < g->n_node && rc == LL_OK; i++) {
        const ll_node *n = &g->nodes[i];
        rc = !l.chosen[i]          ? ll_rewrite_copy(&l.rw, n)
             : n->op == &ll_op_sum ? lower_sum(&l, n)
                                   : lower_product(&l, n);
    }
    *fired = l.n;
    if (rc == LL_OK && !l.n)
        rc = ll_raise(LL_E_GRAPH, __FILE__, __LINE__, __func__,
                      "8-bit floats: no product here has sides of at least %d that %d divides: "
                      "use bf16",
                      LEAST, MULTIPLE);
    return ll_rewrite_end(&l.rw, rc, out);
}

static ll_err by_tensor(const ll_graph *g, int *fired, ll_graph **out)
{
    return rewrite(g, false, fired, out);
}

static ll_err by_block(const ll_graph *g, int *fired, ll_graph **out)
{
    return rewrite(g, true, fired, out);
}

#define EIGHT(word, how)                                                                           \
    {                                                                                              \
        .name = #word, .stage = LL_FUSE_FP8, .target = &ll_target_cuda,                            \
        .precisions = 1 << LL_PRECISION_##word, .rewrite = how, .always = true, .trials = {        \
            "  %1: bf16[128,144] = batch \"x\"\n"                                                  \
            "  %2: f32[160,144] = param \"w\" init=zeros\n"                                        \
            "  %3: bf16[160,144] = cast(%2) {dtype=bf16}\n"                                        \
            "  %4: bf16[128,160] = matmul(%1, %3) {spec=\"nc,kc->nk\", out=bf16}\n"                \
            "  result \"y\" = %4\n"                                                                \
        }                                                                                          \
    }
static const ll_fusion fp8 = EIGHT(fp8, by_tensor), fp8block = EIGHT(fp8block, by_block);
const ll_fusion *const ll_fusions_fp8[] = {&fp8, &fp8block, NULL};
const ll_op *const ll_ops_fp8[] = {NULL};
