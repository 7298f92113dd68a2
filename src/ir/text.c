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
#include <stdio.h>

const char *const ll_init_names[LL_N_INIT] = {"zeros", "constant", "normal", "uniform", "data"};

typedef struct printer {
    ll_buf w;
    const ll_graph *g;
    int *number; /* of each value; 0: not defined yet */
    int next, block;
} printer;

/* "%3", in out. */
static const char *ref(const printer *p, ll_val v, char out[16])
{
    bool known = v.id > 0 && v.id < p->g->n_value && p->number[v.id];
    if (known) snprintf(out, 16, "%%%d", p->number[v.id]);
    return known ? out : "%?"; /* a graph that is not well formed prints, and does not parse */
}
#define REF(p, v) ref(p, v, (char[16]){0})
#define QUOTED(p, text) ll_quoted((p)->w.arena, text)

static void put_def(printer *p, ll_val v)
{
    const ll_value *x = ll_value_of(p->g, v);
    p->number[v.id] = p->next++;
    ll_buf_puts(&p->w, REF(p, v));
    if (x->name && x->node >= 0) ll_buf_printf(&p->w, " %s", QUOTED(p, x->name));
    ll_buf_printf(&p->w, ": %s%s", ll_dtype_text(x->type.dtype), LL_DIMS(&x->type.shape));
}

static void put_input(printer *p, ll_val v)
{
    const ll_value *x = ll_value_of(p->g, v);
    const ll_data *data = x->init.data;
    ll_buf_puts(&p->w, "  ");
    put_def(p, v);
    ll_buf_printf(&p->w, " = %s %s", ll_kind_name(x->kind), QUOTED(p, x->name));
    if (ll_kind_stays(x->kind)) ll_buf_printf(&p->w, " init=%s", ll_init_names[x->init.kind]);
    if (ll_kind_stays(x->kind) && x->init.kind != LL_ZEROS) {
        ll_buf_puts(&p->w, "(");
        for (int64_t i = 0; data && i < data->n; i++)
            ll_buf_printf(&p->w, "%s%s", i ? "," : "",
                          LL_EXACT(ll_load(data->elements, data->dtype, i)));
        ll_buf_printf(&p->w, "%s)", data ? "" : LL_EXACT(x->init.a));
    }
    ll_buf_puts(&p->w, "\n");
}

static void put_node_name(printer *p, const ll_node *n)
{
    if (!n->name || !strcmp(n->name, n->op->name)) return;
    bool plain = *n->name;
    for (const char *c = n->name; *c; c++)
        plain = plain && (isalnum((unsigned char)*c) || strchr("_./:-", *c));
    ll_buf_printf(&p->w, " # %s", plain ? n->name : QUOTED(p, n->name));
}

static void put_block(printer *p, int block)
{
    if (block != p->block) ll_buf_printf(&p->w, "  block %d\n", block);
    p->block = block;
}

static void put_node(printer *p, const ll_node *n)
{
    put_block(p, n->of.block);
    for (int o = 0; o < n->n_out; o++) {
        ll_buf_puts(&p->w, o ? ", " : "  ");
        put_def(p, n->out[o]);
    }
    ll_buf_printf(&p->w, " = %s(", n->op->name);
    for (int i = 0; i < n->n_in; i++) ll_buf_printf(&p->w, "%s%s", i ? ", " : "", REF(p, n->in[i]));
    ll_buf_puts(&p->w, n->op->attrs && n->op->attrs->name ? ") " : ")");
    ll_put_attrs(&p->w, n->op, n->attr);
    put_node_name(p, n);
    ll_buf_puts(&p->w, "\n");
}

char *ll_print(const ll_graph *g, ll_arena *arena)
{
    printer p = {.w = {.arena = arena}, .g = g, .next = 1};
    p.number = LL_NEW_ARRAY(arena, int, g->n_value);
    ll_buf_printf(&p.w, "graph %s {\n", QUOTED(&p, g->name));
    int seen = 1; /* inputs before this value are printed */
    for (int i = 0; i <= g->n_node; i++) {
        const ll_node *n = i < g->n_node ? &g->nodes[i] : NULL;
        int upto = n && n->n_out ? n->out[0].id : g->n_value;
        for (; seen < upto; seen++)
            if (g->values[seen].node < 0) put_input(&p, (ll_val){seen});
        if (n) put_node(&p, n);
    }
    put_block(&p, g->of.block);
    LL_EACH (const ll_named, r, g->results, g->n_result)
        ll_buf_printf(&p.w, "  result %s = %s\n", QUOTED(&p, r->name), REF(&p, r->value));
    LL_EACH (const ll_pair, u, g->updates, g->n_update)
        ll_buf_printf(&p.w, "  update %s = %s\n", QUOTED(&p, ll_value_of(g, u->input)->name),
                      REF(&p, u->next));
    ll_buf_puts(&p.w, "}\n");
    return p.w.text;
}
