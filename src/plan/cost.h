/* cost.h: what one kernel takes on a chip, and one collective on a cluster, in seconds.
 *
 * Products by roofline: the chip's best fraction of its peak, less where the last wave of tiles
 * leaves units idle and where the summed dimension is short. Elementwise work by bytes. Collectives
 * as rings, or trees where all ranks get a sum and that is quicker: a latency a hop, and bytes by
 * the slowest link of the ring. */
#pragma once
#include "plan/cluster.h"

/* Ranks of a collective, and how many of them share a node. */
typedef struct ll_peers {
    double n, per_node;
    double rings; /* of several nodes, that run side by side; 0: one for each rank of a node */
} ll_peers;

/* batch products [m,k] [k,n]; flops: their arithmetic alone. */
double ll_cost_flops(const ll_chip *c, ll_precision p, double batch, double m, double n, double k);
double ll_cost_product(const ll_chip *c, ll_precision p, double batch, double m, double n,
                       double k);
double ll_cost_attention(const ll_chip *c, ll_precision p, double best, double flops, double d,
                         double keys);
/* Bytes read and written by so many kernels. */
double ll_cost_stream(const ll_chip *c, double bytes, double kernels);
/* Every rank gets the sum of all (of bytes), or its part of it, or gathers parts to bytes. */
double ll_cost_allreduce(const ll_cluster *c, ll_peers p, double bytes);
double ll_cost_gather(const ll_cluster *c, ll_peers p, double bytes);
/* From a chip to one other. */
double ll_cost_send(const ll_cluster *c, bool between_nodes, double bytes);
/* Two things side by side that slow each other down: more than the longer, less than the sum. */
double ll_cost_beside(const ll_chip *c, double a, double b);
