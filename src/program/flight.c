/* flight.c: what a collective needs while it is under way. */
#include "kern/attr.h"
#include "program/memory.h"

/* Whether v's bytes, through aliases, are read by one node alone. */
static bool read_once(const ll_graph *g, const int *uses, ll_val v, int n_micro)
{
    for (;;) {
        int m = ll_value_of(g, v)->node;
        if (m < 0 || uses[v.id] != 1) return false;
        if (!ll_is_alias(&g->nodes[m], n_micro)) return true;
        v = g->nodes[m].in[0];
    }
}

/* Is a range of this dimension one piece of memory? */
static bool outermost(const ll_shape *s, int64_t dim)
{
    int64_t n = 1;
    for (int d = 0; d < dim; d++) n *= s->d[d];
    return n == 1;
}

/* Room for what goes to each rank, and for what comes: bytes. */
static size_t exchanged(const ll_node *n, const ll_value *in, const ll_value *out)
{
    size_t given = ll_type_bytes(&in->type), taken = ll_type_bytes(&out->type);
    if (n->op->collective == LL_HALO) {
        const ll_halo_attr *h = (const ll_halo_attr *)n->attr;
        /* Each neighbour is sent at most what this rank owns. */
        int64_t own = in->type.shape.d[h->dim], wanted = 0;
        for (int k = 0; k < LL_HALO_MAX; k++) {
            int64_t w = h->need[2 * k + 1] - h->need[2 * k];
            wanted += w < own ? w : own;
        }
        given = own ? given / (size_t)own * (size_t)wanted : 0;
    }
    return given + taken + 128;
}

ll_flight ll_flight_of(const ll_graph *g, const int *uses, const ll_node *n, int n_micro)
{
    const ll_value *in = ll_value_of(g, n->in[0]), *out = ll_value_of(g, n->out[0]);
    const ll_coll_attr *a = (const ll_coll_attr *)n->attr;
    ll_flight f = {0};
    if (n->op->collective == LL_ALL_REDUCE) {
        f.early = true;
    } else if (ll_aside_of(n) || n->op->collective == LL_ROTATE || n->op->collective == LL_SEND ||
               n->op->collective == LL_RECV) {
        f.early = f.holds = true;
    } else if (n->op->collective == LL_ALL_GATHER) {
        f.early = outermost(&in->type.shape, a->dim);
        f.packing = f.early ? 0 : ll_type_bytes(&out->type);
    } else if (n->op->collective == LL_REDUCE_SCATTER) {
        /* it sums in its operand, if nobody else reads that */
        f.holds = outermost(&in->type.shape, a->dim) && read_once(g, uses, n->in[0], n_micro);
        f.packing = f.holds ? 0 : ll_type_bytes(&in->type);
    } else
        f.packing = exchanged(n, in, out);
    return f;
}
