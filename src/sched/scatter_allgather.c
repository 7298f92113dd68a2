/* scatter_allgather.c: a broadcast of large data. The root deals out blocks down a tree, then all
 * ranks pass them around a ring (van de Geijn: On global combine operations, JPDC 1994; Thakur,
 * Rabenseifner, Gropp: Optimization of collective communication operations in MPICH, 2005). Each
 * element leaves the root once and every rank helps to spread it: 2 n (p - 1) / p elements sent in
 * place of the tree's n log2 p.
 *
 *     p = 4, root 0, blocks a b c d
 *     scatter        0 -> 2: c d      0 -> 1: b   2 -> 3: d
 *     all-gather     0 has a, 1 has b, 2 has c, 3 has d: three steps around */
#include "sched/emit.h"

/* What is done one after the other: each on blocks of even size. */
static const ll_algo *part(const ll_coll_spec *s, ll_coll coll, const char *name, ll_coll_spec *out)
{
    *out = (ll_coll_spec){
        .coll = coll, .size = s->size, .root = s->root, .count = s->count, .node = s->node};
    const ll_algo *a = ll_algo_find(coll, name);
    LL_ASSERT(a);
    return a;
}

static void emit(ll_steps *e, const ll_coll_spec *s, int rank)
{
    ll_coll_spec spec;
    part(s, LL_COLL_SCATTER, "tree", &spec)->emit(e, &spec, rank);
    ll_emit_next(e);
    part(s, LL_COLL_ALLGATHER, "ring", &spec)->emit(e, &spec, rank);
}

/* The rank that got its block last has it carried around: exact for even blocks. */
static ll_cost cost(const ll_coll_spec *s)
{
    ll_coll_spec spec;
    ll_cost c = part(s, LL_COLL_SCATTER, "tree", &spec)->cost(&spec);
    int64_t most = (s->count + s->size - 1) / s->size;
    c.messages += most ? s->size - 1 : 0;
    c.sent += (double)most * (s->size - 1);
    return c;
}

const ll_algo ll_algos_scatter_allgather[] = {
    {.name = "scatter-allgather",
     .coll = LL_COLL_BROADCAST,
     .help = "blocks down a tree, then around a ring: for large data",
     .emit = emit,
     .cost = cost},
    {0}};
