/* packed.c: weights of products as 8 or 4 bits. */
#include "pass/packed.h"

#include "kern/blocks.h"
#include "op/op_int.h"
#include "pass/lora.h"

#include <stdio.h>

const char *ll_pack_name(ll_arena *a, const char *name, int bits, int part)
{
    if (!part) return ll_arena_printf(a, "%s.q%d", name, bits);
    return ll_arena_printf(a, "%s.%s", name, part == 1 ? "scale" : "least");
}

/* Rows of x and of w are summed over the same, last letters: "Fc,Nc->FN". */
static bool fits(const ll_graph *g, const ll_node *n, ll_matmul_parts *p, int *rows)
{
    *rows = ll_weight_rows(g, n, p);
    if (!*rows) return false;
    const ll_value *w = ll_value_of(g, n->in[1]), *x = ll_value_of(g, n->in[0]);
    int summed = p->len[1] - *rows, left = p->len[0] - summed;
    return left >= 0 && w->type.dtype == LL_F32 && x->type.shape.n < LL_MAX_DIMS &&
           w->type.shape.n < LL_MAX_DIMS && w->type.shape.d[p->len[1] - 1] % LL_PACK == 0 &&
           !strncmp(p->text[0] + left, p->text[1] + *rows, (size_t)summed) &&
           p->len[2] == left + *rows && !strncmp(p->text[2], p->text[0], (size_t)left) &&
           !strncmp(p->text[2] + left, p->text[1], (size_t)*rows);
}

int64_t ll_pack_cols(const ll_graph *g, const ll_node *n)
{
    ll_matmul_parts p;
    int rows;
    int64_t cols = 1;
    if (!fits(g, n, &p, &rows)) return 0;
    const ll_shape *w = &ll_value_of(g, n->in[1])->type.shape;
    for (int d = rows; d < w->n; d++) cols *= w->d[d];
    return cols;
}

static ll_shape in_blocks(const ll_shape *s, int64_t last)
{
    ll_shape out = *s;
    out.d[out.n - 1] /= LL_PACK;
    out.d[out.n++] = last;
    return out;
}

static void make(ll_rewrite *rw, const ll_node *n, const ll_matmul_parts *p, int rows,
                 const void *how)
{
    int bits = *(const int *)how;
    const ll_value *w = ll_value_of(rw->from, n->in[1]);
    ll_shape s = in_blocks(&w->type.shape, bits * LL_PACK / 8), scale = s, x;
    ll_val in[4] = {{0}};
    ll_packed_attr a = {.bits = bits, .rows = rows};
    scale.n--;
    for (int k = 0; k < (bits == 4 ? 3 : 2); k++) {
        const char *name = ll_pack_name(rw->to->arena, w->name, bits, k);
        in[1 + k] = ll_find(rw->to, name);
        if (!in[1 + k].id)
            in[1 + k] =
                ll_input(rw->to, name, LL_PARAM, (ll_type){k ? LL_F16 : LL_U8, k ? scale : s},
                         (ll_init){LL_ZEROS, 0});
    }
    x = ll_graph_shape(rw->to, rw->map[n->in[0].id]);
    in[0] = ll_reshape(rw->to, rw->map[n->in[0].id], in_blocks(&x, LL_PACK));
    snprintf(a.spec, sizeof a.spec, "%.*s_,%.*s_,%.*s%s%.*s->%.*s", p->len[0], p->text[0],
             p->len[1], p->text[1], p->len[1], p->text[1], bits == 4 ? "," : "",
             bits == 4 ? p->len[1] : 0, p->text[1], p->len[2], p->text[2]);
    ll_rewrite_map(rw, n->out[0], ll_emit(rw->to, &ll_op_packed_matmul, &a, in, bits == 4 ? 4 : 3));
}

/* A new graph with the inputs of the old one that anybody reads as they are: read, by value. */
static bool *begin(ll_rewrite *rw, const ll_graph *g)
{
    ll_matmul_parts p;
    int rows;
    ll_rewrite_bare(rw, g);
    bool *read = LL_NEW_ARRAY(rw->to->arena, bool, g->n_value);
    for (int i = 0; i < g->n_node; i++)
        for (int k = 0; k < g->nodes[i].n_in; k++)
            if (k != 1 || !fits(g, &g->nodes[i], &p, &rows)) read[g->nodes[i].in[k].id] = true;
    for (int i = 1; i < g->n_value; i++) {
        const ll_value *v = &g->values[i];
        if (v->node < 0 && (v->kind != LL_PARAM || read[i])) rw->map[i] = ll_input_like(rw->to, v);
    }
    return read;
}

/* What a product that fits becomes. */
typedef void maker(ll_rewrite *rw, const ll_node *n, const ll_matmul_parts *p, int rows,
                   const void *how);

/* All of them, or (read) those whose weights nobody reads as they are.
 * *made: how many. */
static ll_err make_all(ll_rewrite *rw, maker *make, const void *how, const bool *read, int *made,
                       ll_graph **out)
{
    const ll_graph *g = rw->from;
    ll_err rc = LL_OK;
    *made = 0;
    for (int i = 0; i < g->n_node && rc == LL_OK; i++) {
        const ll_node *n = &g->nodes[i];
        ll_matmul_parts p;
        int rows;
        if (!fits(g, n, &p, &rows) || (read && (read[n->in[1].id] || rw->map[n->in[1].id].id))) {
            rc = ll_rewrite_copy(rw, n);
            continue;
        }
        ll_graph_at(rw->to, n);
        make(rw, n, &p, rows, how);
        rc = ll_graph_check(rw->to);
        ++*made;
    }
    return ll_rewrite_end(rw, rc, out);
}

ll_err ll_pack_graph(const ll_graph *g, int bits, ll_graph **out)
{
    ll_rewrite rw;
    int made;
    begin(&rw, g);
    return make_all(&rw, make, &bits, NULL, &made, out);
}

/* ---- weights as blocks would have them ---- */

static void make_rounded(ll_rewrite *rw, const ll_node *n, const ll_matmul_parts *, int,
                         const void *how)
{
    ll_val w = rw->map[n->in[1].id], in[2] = {rw->map[n->in[0].id]};
    ll_shape s = ll_graph_shape(rw->to, w);
    ll_round_blocks_attr a = {*(const int *)how};
    w = ll_reshape(rw->to, w, in_blocks(&s, LL_PACK));
    in[1] = ll_reshape(rw->to, LL_EMIT(rw->to, &ll_op_round_blocks, &a, w), s);
    ll_rewrite_map(rw, n->out[0], ll_emit(rw->to, n->op, n->attr, in, 2));
}

ll_err ll_round_graph(const ll_graph *g, int bits, ll_graph **out)
{
    ll_rewrite rw;
    int made;
    ll_rewrite_begin(&rw, g);
    TRY(make_all(&rw, make_rounded, &bits, NULL, &made, out));
    if (!made) ll_graph_free(*out);
    CHECK(made, LL_E_ARG, "train.quantize: no weights of products have rows of whole blocks of %d",
          LL_PACK);
    return LL_OK;
}

/* ---- weights in blocks ---- */

static void make_blocked(ll_rewrite *rw, const ll_node *n, const ll_matmul_parts *p, int,
                         const void *how)
{
    const ll_block_kind *kind = (const ll_block_kind *)how;
    const ll_value *w = ll_value_of(rw->from, n->in[1]);
    const char *name = ll_arena_printf(rw->to->arena, "%s.%s", w->name, kind->name);
    ll_blocked_attr a = {0};
    ll_val x = rw->map[n->in[0].id], v = ll_find(rw->to, name);
    ll_shape s = ll_graph_shape(rw->to, x);
    x = ll_reshape(rw->to, x, in_blocks(&s, LL_PACK));
    if (!v.id)
        v = ll_input(rw->to, name, LL_PARAM,
                     (ll_type){LL_U8, in_blocks(&w->type.shape, kind->bytes)}, w->init);
    snprintf(a.spec, sizeof a.spec, "%.*s_,%.*s_->%.*s", p->len[0], p->text[0], p->len[1],
             p->text[1], p->len[2], p->text[2]);
    ll_rewrite_map(rw, n->out[0], LL_EMIT(rw->to, &ll_op_blocked_matmul, &a, x, v));
}

ll_err ll_block_graph(const ll_graph *g, const char *kind, ll_graph **out)
{
    ll_rewrite rw;
    const ll_block_kind *k = ll_block_find(kind, strlen(kind));
    int made;
    LL_ASSERT(k);
    const bool *read = begin(&rw, g);
    for (int i = 1; i < g->n_value; i++) { /* adapters stay as they are */
        const ll_value *v = &g->values[i];
        if (!rw.map[i].id && v->node < 0 && v->kind == LL_PARAM && ll_is_lora(v->name))
            rw.map[i] = ll_input_like(rw.to, v);
    }
    TRY(make_all(&rw, make_blocked, k, read, &made, out));
    if (!made) ll_graph_free(*out);
    CHECK(made, LL_E_ARG, "train.base=%s: no weights of products have rows of whole blocks of %d",
          kind, LL_PACK);
    return LL_OK;
}
