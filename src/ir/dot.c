/* dot.c: graphs as pictures: `loopline inspect RUN --dot | dot -Tsvg`. A box for each node with its
 * op, its name and its results' types; inputs are ellipses, collectives are filled; edges carry
 * nothing but their direction. Blocks are frames. */
#include "base/text.h"
#include "ir/op.h"

#include <stdio.h>

static void put_quoted(ll_buf *b, const char *text)
{
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') ll_buf_add(b, "\\", 1);
        ll_buf_add(b, text, 1);
    }
}

static void put_type(ll_buf *b, const ll_type *t)
{
    char shape[LL_SHAPE_TEXT];
    ll_buf_printf(b, "\\n%s%s", ll_dtype_name(t->dtype), ll_shape_print(&t->shape, shape));
}

static void put_input(ll_buf *b, const ll_graph *g, int v)
{
    const ll_value *x = &g->values[v];
    ll_buf_printf(b, "  v%d [shape=ellipse, label=\"%s ", v, ll_kind_name(x->kind));
    put_quoted(b, x->name);
    put_type(b, &x->type);
    ll_buf_puts(b, "\"];\n");
}

static void put_node(ll_buf *b, const ll_graph *g, int i)
{
    const ll_node *n = &g->nodes[i];
    ll_buf_printf(b, "    n%d [label=\"", i);
    put_quoted(b, n->name);
    for (int o = 0; o < n->n_out; o++) put_type(b, &ll_value_of(g, n->out[o])->type);
    ll_buf_printf(b, "\"%s];\n", n->op->collective ? ", style=filled, fillcolor=gold" : "");
}

static void put_edge(ll_buf *b, const ll_graph *g, ll_val v, const char *to)
{
    int n = ll_value_of(g, v)->node;
    ll_buf_printf(b, "  %c%d -> %s;\n", n < 0 ? 'v' : 'n', n < 0 ? v.id : n, to);
}

char *ll_print_dot(const ll_graph *g, ll_arena *arena)
{
    ll_buf b = {.arena = arena};
    char to[32];
    ll_buf_puts(&b, "digraph \"");
    put_quoted(&b, g->name);
    ll_buf_puts(&b, "\" {\n  node [shape=box, fontname=\"sans-serif\", fontsize=10];\n");
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
        for (int k = 0; k < g->nodes[i].n_in; k++) {
            snprintf(to, sizeof to, "n%d", i);
            put_edge(&b, g, g->nodes[i].in[k], to);
        }
    for (int i = 0; i < g->n_result; i++) {
        ll_buf_printf(&b, "  r%d [shape=note, label=\"result ", i);
        put_quoted(&b, g->results[i].name);
        ll_buf_puts(&b, "\"];\n");
        snprintf(to, sizeof to, "r%d", i);
        put_edge(&b, g, g->results[i].value, to);
    }
    ll_buf_puts(&b, "}\n");
    return b.text;
}
