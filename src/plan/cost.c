/* cost.c: kernels and collectives in seconds. */
#include "plan/cost.h"

#include <math.h>

static double us(double v)
{
    return 1e-6 * v;
}

/* The part of the units' work that is of use, tiles being of one size. */
static double filled(const ll_chip *c, double batch, double m, double n, double k, double tm,
                     double tn)
{
    double tiles = batch * ceil(m / tm) * ceil(n / tn);
    if (tiles < c->units) { /* the summed dimension is cut too, where that leaves enough of it */
        double parts = fmin(floor(c->units / tiles), floor(k / 512));
        if (parts > 1) tiles *= parts, batch *= parts;
    }
    double waves = ceil(tiles / c->units);
    return batch * m * n / (waves * c->units * tm * tn);
}

double ll_cost_flops(const ll_chip *c, ll_precision p, double batch, double m, double n, double k)
{
    /* Smaller tiles read more for each product. */
    static const struct {
        double m, n, best;
    } tiles[] = {{1, 1, 1}, {0.5, 1, 0.95}, {0.5, 0.5, 0.85}};
    double use = 0;
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++)
        use = fmax(use, tiles[i].best * filled(c, batch, m, n, k, tiles[i].m * c->tile_m,
                                               tiles[i].n * c->tile_n));
    double best = p == LL_PRECISION_fp8        ? c->gemm_fp8
                  : p == LL_PRECISION_fp8block ? c->gemm_fp8block
                  : p == LL_PRECISION_f32      ? c->gemm_f32
                                               : c->gemm;
    double rate = ll_chip_peak(c, p) * best * fmin(use, 1) * k / (k + c->gemm_k);
    return 2 * batch * m * n * k / rate;
}

double ll_cost_product(const ll_chip *c, ll_precision p, double batch, double m, double n, double k)
{
    double width = ll_precision_unit(p) == LL_PRECISION_fp8 ? 1 : p == LL_PRECISION_bf16 ? 2 : 4;
    double moved = batch * (width * (m * k + k * n) + fmax(width, 2) * m * n);
    return fmax(ll_cost_flops(c, p, batch, m, n, k), moved / (1e9 * c->bandwidth * c->stream)) +
           us(c->launch);
}

double ll_cost_attention(const ll_chip *c, ll_precision p, double best, double flops, double d,
                         double keys)
{
    double rate = 1.25 * best * ll_chip_peak(c, p);
    return flops / (rate * d / (d + 32) * keys / (keys + c->attention_k));
}

double ll_cost_stream(const ll_chip *c, double bytes, double kernels)
{
    double begun = bytes + 1e6 * c->stream_k * kernels;
    return bytes > 0 ? begun / (1e9 * c->bandwidth * c->stream) + kernels * us(c->launch) : 0;
}

/* GB/s that a ring over the group carries, and its latency a hop. Rings leave a node through as
 * many adapters as it has ranks of the group. */
static double ring_rate(const ll_cluster *c, ll_peers p, double *hop)
{
    double inside = c->node.link * c->node.efficiency;
    if (p.n <= p.per_node) {
        *hop = us(c->node.latency);
        return 1e9 * inside;
    }
    double nodes = p.n / p.per_node;
    double share = c->network.gbps / 8 / c->node.chips * c->network.efficiency;
    if (c->network.pod > 0 && nodes > c->network.pod) share /= c->network.taper;
    *hop = us((c->node.latency * (p.per_node - 1) + c->network.latency) / p.per_node);
    return 1e9 * fmin(inside, share * (p.rings > 0 ? p.rings : p.per_node));
}

double ll_cost_gather(const ll_cluster *c, ll_peers p, double bytes)
{
    double hop, rate = ring_rate(c, p, &hop);
    if (p.n <= 1) return 0;
    return (p.n - 1) * hop + bytes * (p.n - 1) / p.n / rate + us(c->chip.launch);
}

double ll_cost_allreduce(const ll_cluster *c, ll_peers p, double bytes)
{
    double hop, rate = ring_rate(c, p, &hop);
    if (p.n <= 1) return 0;
    double nodes = ceil(p.n / p.per_node);
    /* To the farthest node and back: by switches, or from one to the next in two dimensions. */
    double hops = !strcmp(c->network.topology, "torus") ? sqrt(nodes) : log2(nodes);
    double ring = 2 * (p.n - 1) * hop;
    double tree = 2 * us(c->node.latency * (p.per_node - 1) + c->network.latency * hops);
    return fmin(ring, nodes > 1 ? tree : ring) + 2 * bytes * (p.n - 1) / p.n / rate +
           us(c->chip.launch);
}

double ll_cost_send(const ll_cluster *c, bool between_nodes, double bytes)
{
    double rate = between_nodes ? c->network.gbps / 8 / c->node.chips * c->network.efficiency
                                : c->node.link * c->node.efficiency;
    return us(between_nodes ? c->network.latency : c->node.latency) + bytes / (1e9 * rate);
}

double ll_cost_beside(const ll_chip *c, double a, double b)
{
    double norm = c->overlap;
    return a > 0 && b > 0 ? pow(pow(a, norm) + pow(b, norm), 1 / norm) : a + b;
}
