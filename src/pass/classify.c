/* classify.c: a classifier's product, its loss and the gradient of that become one node, for GPUs
 * (op/classify.c). The gradient is then one factor for each row times what the node gives, and the
 * products that read it take the factor outside of the sum, or to their other operand:
 *
 *     l = matmul(x, w); dl, loss = cross_entropy_back(l, label, dloss)
 *                              ->  e, scale, loss = classify(x, w, label, dloss)
 *     dx = matmul(dl, w)       ->  scale matmul(e, w)
 *     dw = matmul(dl, x)       ->  matmul(e, scale x)
 *
 * l may have a bias (pass/even.c's columns that count for nothing). Taken are products in bf16
 * whose l nobody else reads, if such products alone read dl, and nobody lse. */
#include "kern/attr.h"
#include "op/op_int.h"
#include "op/rows.h"
#include "pass/pass.h"

enum { LEAST = 64 }; /* of every side of the product: less is not worth it */

typedef struct classifying {
    const ll_graph *g;
    ll_rewrite rw;
    const int *uses;
    bool *taken, *gone; /* nodes: losses that are taken, and products that go with them */
    ll_val *e, *scale;  /* old dl -> new values */
} classifying;

/* How a product reads dl, as operand `at`: rows stay and columns are summed, or the other way
 * round; or neither. */
typedef enum reading { NEITHER, ROWS_STAY, COLUMNS_STAY } reading;

static bool has(const ll_matmul_parts *p, int i, char c)
{
    return memchr(p->text[i], c, (size_t)p->len[i]) != NULL;
}

static reading reading_of(const ll_graph *g, const ll_node *n, int at)
{
    ll_matmul_parts p;
    int stay = 0;
    if (!ll_is(n, "matmul") || ll_graph_dtype(g, n->in[1 - at]) != LL_BF16 ||
        n->in[0].id == n->in[1].id ||
        ll_matmul_read(((const ll_matmul_attr *)n->attr)->spec, &p) != LL_OK)
        return NEITHER;
    int rows = p.len[at] - 1;
    const char *letters = p.text[at];
    for (int i = 0; i < rows; i++) { /* in the result, or in the other operand, in this order */
        int of = has(&p, 2, letters[i]) ? 2 : 1 - at;
        if (of == 2 && has(&p, 1 - at, letters[i])) return NEITHER;
        if (p.len[of] <= i || p.text[of][i] != letters[i]) return NEITHER;
        stay += of == 2;
    }
    bool column = has(&p, 2, letters[rows]);
    if (column && has(&p, 1 - at, letters[rows])) return NEITHER;
    if (stay == rows && !column && p.len[2] == rows + 1) return ROWS_STAY;
    return stay == 0 && column && p.len[1 - at] == rows + 1 ? COLUMNS_STAY : NEITHER;
}

/* The product that makes logits that can be taken: rows of x times rows of w. */
static const ll_node *product_of(const classifying *c, ll_val l)
{
    const ll_node *n = ll_maker(c->g, l);
    ll_matmul_parts p;
    bool plain = ll_is(n, "matmul"), biased = ll_is(n, "product1");
    if ((!plain && !biased) || c->uses[l.id] != 1) return NULL;
    const ll_product_attr *with = biased ? (const ll_product_attr *)n->attr : NULL;
    if (with && (!with->bias || with->act != LL_ACT_NONE || with->scaled)) return NULL;
    const char *spec = with ? with->spec : ((const ll_matmul_attr *)n->attr)->spec;
    if (ll_matmul_read(spec, &p) != LL_OK) return NULL;
    for (int k = 0; k < n->n_in; k++)
        if (ll_graph_dtype(c->g, n->in[k]) != LL_BF16) return NULL;
    int rows = p.len[0] - 1;
    bool fits = ll_graph_dtype(c->g, l) == LL_BF16 && p.len[1] == 2 && p.len[2] == rows + 1 &&
                !memcmp(p.text[0], p.text[2], (size_t)rows) && p.text[1][0] == p.text[2][rows] &&
                p.text[1][1] == p.text[0][rows];
    ll_shape w = ll_graph_shape(c->g, n->in[1]), y = ll_graph_shape(c->g, l);
    int64_t many = 1;
    for (int i = 0; i < rows; i++) many *= y.d[i];
    return fits && many >= LEAST && w.d[0] >= LEAST && w.d[1] >= LEAST && w.d[1] % 8 == 0 &&
                   w.d[0] % 8 == 0
               ? n
               : NULL;
}

static void find(classifying *c)
{
    const ll_graph *g = c->g;
    int *read = LL_NEW_ARRAY(c->rw.to->arena, int, g->n_value);
    for (int i = 0; i < g->n_node; i++)
        for (int k = 0; k < 2 && ll_is(&g->nodes[i], "matmul"); k++)
            read[g->nodes[i].in[k].id] += reading_of(g, &g->nodes[i], k) != NEITHER;
    for (int i = 0; i < g->n_node; i++) {
        const ll_node *n = &g->nodes[i];
        if (!ll_is(n, "cross_entropy_back")) continue;
        const ll_node *m = product_of(c, n->in[0]);
        int dl = n->out[0].id;
        if (!m || c->uses[n->out[2].id] || read[dl] != c->uses[dl] || !read[dl]) continue;
        c->taken[i] = c->gone[m - g->nodes] = true;
    }
}

static ll_err take(classifying *c, const ll_node *n)
{
    const ll_node *m = ll_maker(c->g, n->in[0]);
    ll_val *map = c->rw.map, out[3];
    ll_val in[5] = {map[m->in[0].id], map[m->in[1].id], map[n->in[1].id], map[n->in[2].id]};
    if (m->n_in == 3) in[4] = map[m->in[2].id];
    ll_rewrite_at(&c->rw, n);
    TRY(ll_emit_all(c->rw.to, ll_op_find("classify"), NULL, in, m->n_in + 2, out));
    c->e[n->out[0].id] = out[0];
    c->scale[n->out[0].id] = out[1];
    ll_rewrite_map(&c->rw, n->out[1], out[2]);
    return LL_OK;
}

/* v times its rows' scale, as v's type. */
static ll_val scaled(ll_graph *g, ll_val v, ll_val scale)
{
    ll_shape s = ll_graph_shape(g, v);
    ll_val in[2] = {v, ll_row_spread(g, scale, &s)};
    return ll_emit(g, ll_ew_op(LL_EW_mul), NULL, in, 2);
}

static ll_err read(classifying *c, const ll_node *n)
{
    ll_graph *to = c->rw.to;
    int at = c->e[n->in[1].id].id ? 1 : 0;
    ll_val scale = c->scale[n->in[at].id], other = n->in[1 - at], in[2], out;
    bool rows = reading_of(c->g, n, at) == ROWS_STAY;
    ll_rewrite_at(&c->rw, n);
    in[at] = c->e[n->in[at].id];
    in[1 - at] = rows ? c->rw.map[other.id] : scaled(to, c->rw.map[other.id], scale);
    TRY(ll_graph_check(to));
    TRY(ll_emit_all(to, n->op, n->attr, in, 2, &out));
    if (rows) out = scaled(to, out, scale);
    TRY(ll_graph_check(to));
    ll_rewrite_map(&c->rw, n->out[0], out);
    return LL_OK;
}

ll_err ll_classify(const ll_graph *g, ll_graph **out)
{
    TRY(ll_graph_check(g));
    classifying c = {.g = g};
    ll_rewrite_begin(&c.rw, g);
    ll_arena *a = c.rw.to->arena;
    c.uses = ll_uses(g, a);
    c.taken = LL_NEW_ARRAY(a, bool, g->n_node + 1);
    c.gone = LL_NEW_ARRAY(a, bool, g->n_node + 1);
    c.e = LL_NEW_ARRAY(a, ll_val, g->n_value);
    c.scale = LL_NEW_ARRAY(a, ll_val, g->n_value);
    find(&c);
    ll_err rc = LL_OK;
    for (int i = 0; i < g->n_node && rc == LL_OK; i++) {
        const ll_node *n = &g->nodes[i];
        if (c.gone[i]) continue;
        bool reads = ll_is(n, "matmul") && (c.e[n->in[0].id].id || c.e[n->in[1].id].id);
        rc = c.taken[i] ? take(&c, n) : reads ? read(&c, n) : ll_rewrite_copy(&c.rw, n);
    }
    return ll_rewrite_end(&c.rw, rc, out);
}
