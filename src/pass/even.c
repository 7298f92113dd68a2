/* even.c: logits whose rows are no multiples of 16 bytes get columns that count for nothing, for
 * GPUs, whose products are several times slower on uneven rows (GPT-2's 50257 tokens). The table
 * gets rows of zeros, the columns that these make are lowered by FAR, so that a softmax gives them
 * 0, and so does its gradient; the table's gradient loses the rows again. Losses and gradients are
 * what they were. Taken are bf16 products that cross_entropy and its gradient alone read, if
 * products alone read that gradient. */
#include "kern/attr.h"
#include "op/op_int.h"
#include "pass/pass.h"

enum { EVEN = 8, TO = 64, LEAST = 512, FAR = 30000 };

typedef struct widening {
    const ll_graph *g;
    ll_rewrite rw;
    const int *uses;
    bool *logits;           /* old values that get columns */
    ll_val *padded, *other; /* logits and gradients with them; operands with rows */
} widening;

static int64_t columns(const ll_graph *g, ll_val v)
{
    ll_shape s = ll_graph_shape(g, v);
    return s.n ? s.d[s.n - 1] : 0;
}

static int64_t missing(const ll_graph *g, ll_val v)
{
    return (TO - columns(g, v) % TO) % TO;
}

/* Where a letter stands in part i of a product's spec, or -1. */
static int place_of(const ll_matmul_parts *p, int i, char letter)
{
    const char *at = (const char *)memchr(p->text[i], letter, (size_t)p->len[i]);
    return at ? (int)(at - p->text[i]) : -1;
}

/* The operand of a product that makes the last dimension of its result; -1: both do. */
static int table_of(const ll_node *n, ll_matmul_parts *p)
{
    if (ll_matmul_read(((const ll_matmul_attr *)n->attr)->spec, p) != LL_OK) return -1;
    char v = p->text[2][p->len[2] - 1];
    int a = place_of(p, 0, v) >= 0, b = place_of(p, 1, v) >= 0;
    return a && b ? -1 : b;
}

static bool takes(const ll_graph *g, ll_val v)
{
    ll_matmul_parts p;
    const ll_node *n = ll_maker(g, v);
    return ll_is(n, "matmul") && ll_graph_shape(g, v).n && ll_graph_dtype(g, v) == LL_BF16 &&
           columns(g, v) >= LEAST && columns(g, v) % EVEN && table_of(n, &p) >= 0;
}

/* Logits that losses and their gradients alone read, the latter's readers being products. */
static void find(widening *w)
{
    const ll_graph *g = w->g;
    int *read = LL_NEW_ARRAY(w->rw.to->arena, int, g->n_value);
    for (int i = 0; i < g->n_node; i++) {
        const ll_node *n = &g->nodes[i];
        if (ll_is(n, "cross_entropy")) read[n->in[0].id]++;
        if (ll_is(n, "cross_entropy_grad")) read[n->in[1].id]++;
        for (int k = 0; ll_is(n, "matmul") && k < 2; k++) read[n->in[k].id]++;
    }
    for (int i = 0; i < g->n_node; i++) {
        const ll_node *n = &g->nodes[i];
        if (ll_is(n, "cross_entropy"))
            w->logits[n->in[0].id] =
                takes(g, n->in[0]) && read[n->in[0].id] == w->uses[n->in[0].id];
    }
    for (int i = 0; i < g->n_node; i++) {
        const ll_node *n = &g->nodes[i];
        if (ll_is(n, "cross_entropy_grad") && read[n->out[0].id] != w->uses[n->out[0].id])
            w->logits[n->in[1].id] = false;
    }
    for (int i = 0; i < g->n_node; i++) { /* nor products that read logits */
        const ll_node *n = &g->nodes[i];
        if (!ll_is(n, "matmul")) continue;
        w->logits[n->in[0].id] = w->logits[n->in[1].id] = false;
    }
}

/* An operand with zeros added along a dimension; each is made once. */
static ll_val with_rows(widening *w, ll_val v, int dim, int64_t more)
{
    ll_val *made = &w->other[v.id];
    if (!made->id) *made = ll_pad(w->rw.to, w->rw.map[v.id], dim, 0, more);
    return *made;
}

/* 0 for columns that count, -FAR for those that do not. */
static ll_val lowered(ll_graph *g, ll_val like, int64_t count, int64_t more)
{
    static const char letters[] = "abcdef";
    ll_shape s = ll_graph_shape(g, like);
    ll_val ones = ll_pad(g, ll_fill(g, LL_F32, LL_SHAPE(count), 1), 0, 0, more);
    ll_val mask = ll_scale(g, ll_shift(g, ones, -1), FAR);
    char spec[LL_SPEC_MAX] = {0};
    spec[0] = letters[s.n - 1];
    memcpy(spec + 1, "->", 2);
    memcpy(spec + 3, letters, (size_t)s.n);
    return ll_broadcast(g, mask, spec, s);
}

static ll_err widen_product(widening *w, const ll_node *n)
{
    ll_graph *to = w->rw.to;
    ll_matmul_parts p;
    ll_val in[2], y = n->out[0];
    int table = table_of(n, &p);
    int64_t more = missing(w->g, y);
    for (int k = 0; k < 2; k++) in[k] = w->rw.map[n->in[k].id];
    in[table] = with_rows(w, n->in[table], place_of(&p, table, p.text[2][p.len[2] - 1]), more);
    TRY(ll_graph_check(to));
    TRY(ll_emit_all(to, n->op, n->attr, in, 2, &w->padded[y.id]));
    ll_val sum[2] = {w->padded[y.id], lowered(to, w->padded[y.id], columns(w->g, y), more)};
    w->padded[y.id] = ll_emit(to, ll_ew_op(LL_EW_add), NULL, sum, 2);
    return ll_graph_check(to);
}

/* A product that reads a gradient with columns: they are summed, or are the result's. */
static ll_err narrow_product(widening *w, const ll_node *n)
{
    ll_graph *to = w->rw.to;
    ll_matmul_parts p;
    ll_val in[2], out;
    int from = w->padded[n->in[1].id].id ? 1 : 0;
    TRY(ll_matmul_read(((const ll_matmul_attr *)n->attr)->spec, &p));
    char v = p.text[from][p.len[from] - 1];
    int there = place_of(&p, !from, v), kept = place_of(&p, 2, v);
    int64_t count = columns(w->g, n->in[from]), more = missing(w->g, n->in[from]);
    in[from] = w->padded[n->in[from].id];
    in[!from] = there >= 0 ? with_rows(w, n->in[!from], there, more) : w->rw.map[n->in[!from].id];
    TRY(ll_graph_check(to));
    TRY(ll_emit_all(to, n->op, n->attr, in, 2, &out));
    if (kept >= 0) out = ll_slice(to, out, kept, 0, count);
    TRY(ll_graph_check(to));
    ll_rewrite_map(&w->rw, n->out[0], out);
    return LL_OK;
}

static ll_err rewrite(widening *w, const ll_node *n)
{
    bool loss = ll_is(n, "cross_entropy"), slope = ll_is(n, "cross_entropy_grad");
    ll_val in[LL_MAX_IN], out[LL_MAX_OUT];
    ll_rewrite_at(&w->rw, n);
    if (ll_is(n, "matmul") && w->logits[n->out[0].id]) return widen_product(w, n);
    if (ll_is(n, "matmul") && (w->padded[n->in[0].id].id || w->padded[n->in[1].id].id))
        return narrow_product(w, n);
    if (!(loss || slope) || !w->padded[n->in[slope].id].id) return ll_rewrite_copy(&w->rw, n);
    for (int k = 0; k < n->n_in; k++)
        in[k] = k == slope ? w->padded[n->in[k].id] : w->rw.map[n->in[k].id];
    TRY(ll_emit_all(w->rw.to, n->op, n->attr, in, n->n_in, out));
    for (int o = 0; loss && o < n->n_out; o++) ll_rewrite_map(&w->rw, n->out[o], out[o]);
    if (slope) w->padded[n->out[0].id] = out[0];
    return LL_OK;
}

ll_err ll_even_logits(const ll_graph *g, ll_graph **out)
{
    TRY(ll_graph_check(g));
    widening w = {.g = g};
    ll_rewrite_begin(&w.rw, g);
    ll_arena *a = w.rw.to->arena;
    w.uses = ll_uses(g, a);
    w.logits = LL_NEW_ARRAY(a, bool, g->n_value);
    w.padded = LL_NEW_ARRAY(a, ll_val, g->n_value);
    w.other = LL_NEW_ARRAY(a, ll_val, g->n_value);
    find(&w);
    ll_err rc = LL_OK;
    for (int i = 0; i < g->n_node && rc == LL_OK; i++) rc = rewrite(&w, &g->nodes[i]);
    return ll_rewrite_end(&w.rw, rc, out);
}
