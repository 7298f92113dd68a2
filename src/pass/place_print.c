/* place_print.c: a placement for people: how every input is stored, which axes cut which loops of
 * every node and how its results lie, and what the ranks then send each other.
 *
 *     fc1.matmul    n: data, k: tensor            -> [data,tensor]
 *     fc2.matmul    n: data, c: tensor (summed)   -> [data,-] sum(tensor)
 *     all_reduce    over tensor, of [32,10] */
#include "base/text.h"
#include "kern/attr.h"
#include "pass/layouts.h"
#include "pass/partition.h"

/* Marks what was asked for. */
static void put_pin(ll_buf *b, const ll_placement *p, int v)
{
    if (p->pins && p->pins[v]) ll_buf_printf(b, "  (layout \"%s\")", p->pins[v]->rule->pattern);
}

static void put_inputs(ll_buf *b, const ll_placement *p)
{
    for (int v = 1; v < p->g->n_value; v++) {
        const ll_value *x = &p->g->values[v];
        if (x->node >= 0) continue;
        int n = x->type.shape.n;
        ll_shape local = ll_layout_local(&p->mesh, &p->made[v], &x->type.shape, 0);
        ll_buf_printf(b, "  %-6s %-28s %s%-16s %-24s %s", ll_kind_name(x->kind), x->name,
                      ll_dtype_name(x->type.dtype), LL_DIMS(&x->type.shape),
                      LL_LAYOUT(&p->mesh, &p->made[v], n), LL_DIMS(&local));
        if (!ll_layout_equal(&p->made[v], &p->seen[v]))
            ll_buf_printf(b, "  gathered to %s for each use", LL_LAYOUT(&p->mesh, &p->seen[v], n));
        put_pin(b, p, v);
        ll_buf_puts(b, "\n");
    }
}

static void put_cuts(ll_buf *b, const ll_placement *p, int node, const ll_loops *l)
{
    bool any = false;
    for (int k = 0; k < l->n; k++) {
        ll_axes cut = 0;
        for (int a = 0; a < p->mesh.n; a++)
            if (p->loop[node][a] == k) cut |= (ll_axes)(1u << a);
        if (!cut) continue;
        ll_buf_printf(b, "%s%c: %s%s", any ? ", " : "", l->letter[k], LL_AXES(&p->mesh, cut),
                      l->combine[k] == LL_SUM   ? " (summed)"
                      : l->combine[k] == LL_MAX ? " (maximum)"
                      : l->window[k]            ? " (halo)"
                                                : "");
        any = true;
    }
    if (p->through[node])
        ll_buf_printf(b, "%spartial over %s", any ? ", " : "", LL_AXES(&p->mesh, p->through[node]));
    if (!any && !p->through[node]) ll_buf_puts(b, "on every rank");
    if (p->factors && p->factors[node])
        ll_buf_printf(b, ", from factors gathered over %s", LL_AXES(&p->mesh, p->factors[node]));
}

static void put_nodes(ll_buf *b, const ll_placement *p)
{
    for (int i = 0; i < p->g->n_node; i++) {
        const ll_node *n = &p->g->nodes[i];
        ll_loops l;
        if (ll_node_loops(p->g, n, &l) != LL_OK) continue;
        ll_buf_printf(b, "  %-36s ", n->name);
        put_cuts(b, p, i, &l);
        for (int o = 0; o < n->n_out; o++) {
            int v = n->out[o].id, dims = p->g->values[v].type.shape.n;
            ll_buf_printf(b, "%s%s", o ? ", " : " -> ", LL_LAYOUT(&p->mesh, &p->made[v], dims));
            if (!ll_layout_equal(&p->made[v], &p->seen[v]))
                ll_buf_printf(b, ", then %s", LL_LAYOUT(&p->mesh, &p->seen[v], dims));
            put_pin(b, p, v);
        }
        ll_buf_puts(b, "\n");
    }
}

static void put_collectives(ll_buf *b, const ll_placement *p)
{
    LL_OWN(ll_graph) all = NULL;
    LL_OWN(ll_graph) g = NULL;
    ll_buf told = {.arena = b->arena};
    ll_err rc = ll_partition_told(p, 0, &told, &all);
    if (rc == LL_OK) rc = ll_sweep(all, &g); /* as the program is made of it */
    if (rc != LL_OK) {
        ll_buf_printf(b, "  %s\n", ll_error_text());
        return;
    }
    if (told.len)
        ll_buf_puts(b,
                    "in pieces, to have work while ranks on other nodes are waited for, or not:\n");
    if (told.len) ll_buf_puts(b, told.text);
    ll_buf_puts(b, "collectives of rank 0, in order, and the bytes that it sends in each:\n");
    LL_EACH (const ll_node, n, g->nodes, g->n_node) {
        if (!n->op->collective) continue;
        const ll_type *t = &ll_value_of(g, n->in[0])->type;
        double sent = ll_collective_sent(&p->mesh, n->op->collective, n->attr, t);
        ll_buf_printf(b, "  %-36s over %-12s %s%-20s %s\n", n->name,
                      LL_AXES(&p->mesh, ll_collective_axes(n->op->collective, n->attr)),
                      ll_dtype_name(t->dtype), LL_DIMS(&t->shape), LL_BYTES(sent));
    }
}

char *ll_placement_print(const ll_placement *p, ll_arena *arena)
{
    ll_buf b = {.arena = arena};
    ll_buf_printf(&b, "%s on %s, %d rank%s\ninputs, as stored, and rank 0's part:\n", p->g->name,
                  p->mesh.n ? LL_MESH(&p->mesh) : "no mesh", p->mesh.n_rank,
                  p->mesh.n_rank == 1 ? "" : "s");
    put_inputs(&b, p);
    if (p->bits)
        ll_buf_printf(&b, "exact sums: operands of products keep %d bits or more\n", p->bits);
    ll_buf_puts(&b, "nodes, the loops that are cut, and how results lie:\n");
    put_nodes(&b, p);
    put_collectives(&b, p);
    return b.text;
}
