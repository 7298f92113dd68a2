/* halving.c: walks down the halves that hold one rank. */
#include "sched/halving.h"

int ll_halving_cut(ll_halving how, int from, int to, int root)
{
    int n = to - from;
    if (how == LL_HALVE_CANONICAL) return from + ll_tree_split(n);
    int mid = from + (n + 1) / 2;
    return root < mid ? mid : from + n / 2;
}

int ll_halving_links(ll_halving how, int size, int root, int me, ll_link out[LL_MAX_LINKS])
{
    int n = 0;
    for (int from = 0, to = size; to - from > 1;) {
        int mid = ll_halving_cut(how, from, to, root);
        bool first = root < mid;
        int other = first ? mid : from;
        ll_link link = {.from = first ? mid : from, .to = first ? to : mid};
        if (me == root || me == other) {
            link.peer = me == root ? other : root;
            link.parent = me == other;
            out[n++] = link;
        }
        if (me >= link.from && me < link.to) root = other;
        if (me < mid)
            to = mid;
        else
            from = mid;
    }
    return n;
}
