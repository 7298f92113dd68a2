/* text.c: graphs as text, one node a line.
 *
 *     graph "tiny" {
 *       %1: f32[64,784] = batch "x"
 *       %2: f32[128,784] = param "fc1.weight" init=uniform(0.0357)
 *       block 1
 *       %3: f32[64,128] = matmul(%1, %2) {spec="nc,kc->nk", out=f32} # fc1.matmul
 *       %4 "h": f32[64,128] = relu(%3)
 *       result "h" = %4
 *       update "fc1.weight" = %2
 *     }
 *
 * 1. A line defines the values left of '='. Numbers only name values in this text: printing counts
 *    from 1, parsing takes any that grow. The name in quotes after a number is the value's own.
 * 2. An input stands where it was made among the nodes: the values of a parsed graph are the
 *    printed one's, in its order. Its name follows its kind (param, state, batch, step); init is
 *    zeros, constant(x), normal(x) or uniform(x).
 * 3. "block 2": the nodes that follow are in block 2, up to the next such line; 0 at the start.
 * 4. '#' after a node leads the node's name, in quotes where it has odd characters, left out where
 *    it is the op's. Anywhere else '#' starts a comment, to the end of the line.
 * 5. Attributes: see ir/text_attr.c. Numbers print so that they read back exactly.
 * 6. Printing, parsing (tests/ir/graph_text.c) and printing again gives the same bytes. Types are
 *    stated and checked against what the op infers. */
#include "ir/text_int.h"

#include <ctype.h>

const char *const ll_init_names[LL_N_INIT] = {"zeros", "constant", "normal", "uniform", "data"};

typedef struct printer {
    ll_buf w;
    const ll_graph *g;
    int *number; /* of each value; 0: not defined yet */
    int next, block;
} printer;

static void put_ref(printer *p, ll_val v)
{
    if (v.id > 0 && v.id < p->g->n_value && p->number[v.id])
        ll_buf_printf(&p->w, "%%%d", p->number[v.id]);
    else
        ll_buf_printf(&p->w,
                      "%%?"); /* a graph that is not well formed prints, and does not parse */
}

static void put_def(printer *p, ll_val v)
{
    const ll_value *x = ll_value_of(p->g, v);
    p->number[v.id] = p->next++;
    put_ref(p, v);
    if (x->name && x->node >= 0) {
        ll_buf_printf(&p->w, " ");
        ll_put_string(&p->w, x->name);
    }
    ll_buf_printf(&p->w, ": ");
    ll_put_dtype(&p->w, x->type.dtype);
    ll_put_shape(&p->w, &x->type.shape);
}

static void put_input(printer *p, ll_val v)
{
    const ll_value *x = ll_value_of(p->g, v);
    ll_buf_printf(&p->w, "  ");
    put_def(p, v);
    ll_buf_printf(&p->w, " = %s ", ll_kind_name(x->kind));
    ll_put_string(&p->w, x->name);
    if (ll_kind_stays(x->kind)) {
        const ll_data *data = x->init.data;
        ll_buf_printf(&p->w, " init=%s", ll_init_names[x->init.kind]);
        if (x->init.kind != LL_ZEROS) {
            ll_buf_printf(&p->w, "(");
            for (int64_t i = 0; data && i < data->n; i++) {
                if (i) ll_buf_printf(&p->w, ",");
                ll_put_double(&p->w, ll_load(data->elements, data->dtype, i));
            }
            if (!data) ll_put_double(&p->w, x->init.a);
            ll_buf_printf(&p->w, ")");
        }
    }
    ll_buf_printf(&p->w, "\n");
}

static void put_node_name(printer *p, const ll_node *n)
{
    if (!n->name || !strcmp(n->name, n->op->name)) return;
    bool plain = *n->name;
    for (const char *c = n->name; *c; c++)
        plain = plain && (isalnum((unsigned char)*c) || strchr("_./:-", *c));
    ll_buf_printf(&p->w, " # ");
    if (plain)
        ll_buf_printf(&p->w, "%s", n->name);
    else
        ll_put_string(&p->w, n->name);
}

static void put_block(printer *p, int block)
{
    if (block != p->block) ll_buf_printf(&p->w, "  block %d\n", block);
    p->block = block;
}

static void put_node(printer *p, const ll_node *n)
{
    put_block(p, n->of.block);
    ll_buf_printf(&p->w, "  ");
    for (int o = 0; o < n->n_out; o++) {
        if (o) ll_buf_printf(&p->w, ", ");
        put_def(p, n->out[o]);
    }
    ll_buf_printf(&p->w, " = %s(", n->op->name);
    for (int i = 0; i < n->n_in; i++) {
        if (i) ll_buf_printf(&p->w, ", ");
        put_ref(p, n->in[i]);
    }
    ll_buf_printf(&p->w, ")");
    if (n->op->attrs && n->op->attrs->name) ll_buf_printf(&p->w, " ");
    ll_put_attrs(&p->w, n->op, n->attr);
    put_node_name(p, n);
    ll_buf_printf(&p->w, "\n");
}

char *ll_print(const ll_graph *g, ll_arena *arena)
{
    printer p = {.w = {.arena = arena}, .g = g, .next = 1};
    p.number = LL_NEW_ARRAY(arena, int, g->n_value);
    ll_buf_printf(&p.w, "graph ");
    ll_put_string(&p.w, g->name);
    ll_buf_printf(&p.w, " {\n");
    int seen = 1; /* inputs before this value are printed */
    for (int i = 0; i <= g->n_node; i++) {
        const ll_node *n = i < g->n_node ? &g->nodes[i] : NULL;
        int upto = n && n->n_out ? n->out[0].id : g->n_value;
        for (; seen < upto; seen++)
            if (g->values[seen].node < 0) put_input(&p, (ll_val){seen});
        if (n) put_node(&p, n);
    }
    put_block(&p, g->of.block);
    for (int i = 0; i < g->n_result; i++) {
        ll_buf_printf(&p.w, "  result ");
        ll_put_string(&p.w, g->results[i].name);
        ll_buf_printf(&p.w, " = ");
        put_ref(&p, g->results[i].value);
        ll_buf_printf(&p.w, "\n");
    }
    for (int i = 0; i < g->n_update; i++) {
        ll_buf_printf(&p.w, "  update ");
        ll_put_string(&p.w, ll_value_of(g, g->updates[i].input)->name);
        ll_buf_printf(&p.w, " = ");
        put_ref(&p, g->updates[i].next);
        ll_buf_printf(&p.w, "\n");
    }
    ll_buf_printf(&p.w, "}\n");
    return p.w.text;
}
