/* nodes.c: places of ranks on nodes, by counting. */
#include "sched/nodes.h"

/* Elements from which on they count more than messages do. */
enum { LARGE = 65536 };

static bool together(const ll_coll_spec *s, int a, int b)
{
    return !s->node || s->node[a] == s->node[b];
}

static int place_of(const ll_coll_spec *s, int rank)
{
    int n = 0;
    for (int r = 0; r < rank; r++) n += together(s, r, rank);
    return n;
}

ll_node_view ll_nodes_view(ll_arena *arena, const ll_coll_spec *s, int rank)
{
    ll_node_view v = {.members = LL_NEW_ARRAY(arena, int, s->size),
                      .place = place_of(s, rank),
                      .peers = LL_NEW_ARRAY(arena, int, s->size)};
    for (int r = 0; r < s->size; r++) {
        if (together(s, r, rank)) v.members[v.n_member++] = r;
        if (r == rank) v.me = v.n_peer;
        if (place_of(s, r) == v.place) v.peers[v.n_peer++] = r;
    }
    return v;
}

int ll_nodes_count(const ll_coll_spec *s)
{
    int n = 0;
    for (int r = 0; r < s->size; r++) n += place_of(s, r) == 0;
    return n;
}

int ll_nodes_most(const ll_coll_spec *s)
{
    int most = 0;
    for (int r = 0; r < s->size; r++)
        if (place_of(s, r) >= most) most = place_of(s, r) + 1;
    return most;
}

bool ll_nodes_even(const ll_coll_spec *s)
{
    return ll_nodes_most(s) * ll_nodes_count(s) == s->size;
}

bool ll_nodes_aligned(const ll_coll_spec *s)
{
    int run = 1; /* ranks of the first node */
    while (run < s->size && together(s, 0, run)) run++;
    if (run == s->size) return true;
    if (run & (run - 1)) return false;
    for (int r = 0; r < s->size; r++)
        if (place_of(s, r) != r % run || !together(s, r, r - r % run)) return false;
    return true;
}

/* By halves where that comes out even or messages count most, else the ring. */
const ll_algo *ll_nodes_between(int n, int64_t count)
{
    bool halves = (n & (n - 1)) == 0 || count < LARGE;
    const ll_algo *a = ll_algo_find(LL_COLL_ALLREDUCE, halves ? "rabenseifner" : "ring");
    LL_ASSERT(a);
    return a;
}
