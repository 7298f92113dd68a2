/* dot.c: graphs as pictures: `loopline inspect RUN --dot | dot -Tsvg`. A box for each node with its
 * op, its name and its results' types; inputs are ellipses, collectives are filled; edges carry
 * nothing but their direction. Blocks are frames. */
#include "base/text.h"
#include "ir/op.h"

/* For a label. */
static const char *escaped(ll_arena *a, const char *text)
{
    char *out = (char *)ll_arena_alloc(a, 2 * strlen(text) + 1);
    for (char *at = out; *text; text++) {
        if (*text == '"' || *text == '\\') *at++ = '\\';
        *at++ = *text;
    }
    return out;
}

static void put_type(ll_buf *b, const ll_type *t)
{
    ll_buf_printf(b, "\\n%s%s", ll_dtype_name(t->dtype), LL_DIMS(&t->shape));
}

static void put_input(ll_buf *b, const ll_graph *g, int v)
{
    const ll_value *x = &g->values[v];
    ll_buf_printf(b, "  v%d [shape=ellipse, label=\"%s %s", v, ll_kind_name(x->kind),
                  escaped(b->arena, x->name));
    put_type(b, &x->type);
    ll_buf_puts(b, "\"];\n");
}

static void put_node(ll_buf *b, const ll_graph *g, int i)
{
    const ll_node *n = &g->nodes[i];
    ll_buf_printf(b, "    n%d [label=\"%s", i, escaped(b->arena, n->name));
    for (int o = 0; o < n->n_out; o++) put_type(b, &ll_value_of(g, n->out[o])->type);
    ll_buf_printf(b, "\"%s];\n", n->op->collective ? ", style=filled, fillcolor=gold" : "");
}

/* To a node 'n', or a result 'r', of a number. */
static void put_edge(ll_buf *b, const ll_graph *g, ll_val v, char to, int number)
{
    int n = ll_value_of(g, v)->node;
    ll_buf_printf(b, "  %c%d -> %c%d;\n", n < 0 ? 'v' : 'n', n < 0 ? v.id : n, to, number);
}

char *ll_print_dot(const ll_graph *g, ll_arena *arena)
{
    ll_buf b = {.arena = arena};
    ll_buf_printf(&b,
                  "digraph \"%s\" {\n  node [shape=box, fontname=\"sans-serif\", fontsize=10];\n",
                  escaped(arena, g->name));
    for (int v = 1; v < g->n_value; v++)
        if (g->values[v].node < 0) put_input(&b, g, v);
    for (int i = 0, block = -1; i < g->n_node; i++) {
        if (g->nodes[i].of.block != block) {
            if (block >= 0) ll_buf_puts(&b, "  }\n");
            block = g->nodes[i].of.block;
            ll_buf_printf(&b, "  subgraph \"cluster_%d_%d\" {\n    label=\"block %d\";\n", block, i,
                          block);
        }
        put_node(&b, g, i);
        if (i == g->n_node - 1) ll_buf_puts(&b, "  }\n");
    }
    for (int i = 0; i < g->n_node; i++)
        for (int k = 0; k < g->nodes[i].n_in; k++) put_edge(&b, g, g->nodes[i].in[k], 'n', i);
    for (int i = 0; i < g->n_result; i++) {
        ll_buf_printf(&b, "  r%d [shape=note, label=\"result %s\"];\n", i,
                      escaped(arena, g->results[i].name));
        put_edge(&b, g, g->results[i].value, 'r', i);
    }
    ll_buf_puts(&b, "}\n");
    return b.text;
}
