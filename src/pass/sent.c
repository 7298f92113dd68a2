/* sent.c: what collective nodes send, and among whom. */
#include "kern/attr.h"
#include "pass/partition.h"

/* What the members of a window's group need of what this one owns. */
static double halo_elements(const ll_mesh *m, const ll_halo_attr *h)
{
    int p = ll_mesh_group(m, (ll_axes)h->axes);
    int64_t from, to;
    double sum = 0;
    ll_halo_share(h, p, (int)h->me, &from, &to);
    for (int k = 0; k < p; k++) {
        int64_t lo = h->need[2 * k] > from ? h->need[2 * k] : from;
        int64_t hi = h->need[2 * k + 1] < to ? h->need[2 * k + 1] : to;
        if (k != h->me && hi > lo) sum += (double)(hi - lo);
    }
    return sum;
}

double ll_collective_sent(const ll_mesh *m, ll_collective kind, const void *attr, const ll_type *in)
{
    double bytes = (double)ll_type_bytes(in);
    if (kind == LL_HALO) {
        const ll_halo_attr *h = (const ll_halo_attr *)attr;
        int64_t own = in->shape.d[h->dim];
        return own ? bytes / (double)own * halo_elements(m, h) : 0;
    }
    if (kind == LL_ROTATE || kind == LL_SEND) return bytes;
    if (kind == LL_RECV) return 0;
    const ll_coll_attr *a = (const ll_coll_attr *)attr;
    double p = ll_mesh_group(m, (ll_axes)a->axes);
    if (kind == LL_ALL_GATHER) return bytes * (p - 1);
    return bytes * (p - 1) / p * (kind == LL_ALL_REDUCE ? 2 : 1);
}

ll_axes ll_collective_axes(ll_collective kind, const void *attr)
{
    if (kind == LL_HALO) return (ll_axes)((const ll_halo_attr *)attr)->axes;
    if (kind == LL_SEND || kind == LL_RECV) return (ll_axes)((const ll_message_attr *)attr)->axes;
    return (ll_axes)((const ll_coll_attr *)attr)->axes;
}
