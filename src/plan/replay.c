/* replay.c: instructions on two clocks. */
#include "plan/replay.h"

#include <math.h>

/* Seconds of one instruction that has a kernel. */
static double kernel(const ll_chip *c, const ll_instr *x, const char *precision, double bytes)
{
    const ll_op *op = ll_op_find(x->op);
    ll_work work = op ? op->work : LL_WORK_OTHER;
    double moved = bytes / (1e9 * c->bandwidth * c->stream), rate = 1e12 * c->vector;
    bool f32 = !strcmp(precision, "f32");
    if (work == LL_WORK_PRODUCT)
        rate = ll_chip_peak(c, precision) * (f32 ? c->gemm_f32 : c->gemm);
    else if (work == LL_WORK_CONVOLUTION)
        rate = ll_chip_peak(c, precision) * (f32 ? c->gemm_f32 : c->conv);
    else if (work == LL_WORK_ATTENTION)
        rate = ll_chip_peak(c, precision) * c->attention;
    return fmax(x->flops / rate, moved) + 1e-6 * c->launch;
}

/* Ranks of a group and how many of them share a node: the mesh's last axis runs fastest. */
static ll_peers peers_of(const ll_cluster *c, const ll_mesh *m, ll_axes axes)
{
    double n = ll_mesh_group(m, axes), stride = 1;
    for (int a = m->n - 1; a >= 0 && !(axes >> a & 1); a--) stride *= m->size[a];
    return (ll_peers){.n = n, .per_node = fmax(1, fmin(n, floor(c->node.chips / stride)))};
}

static double talk(const ll_cluster *c, const ll_program *p, const ll_mesh *m, const ll_instr *x,
                   double *sent)
{
    ll_axes axes = ll_collective_axes(x->collective, x->attr);
    ll_peers near = peers_of(c, m, axes);
    double bytes = 0, n = near.n;
    for (int o = 0; o < x->n_in; o++)
        bytes += ll_collective_sent(m, x->collective, x->attrs[o], &p->slots[x->in[o]].type);
    *sent += bytes;
    /* What each sends is (n-1)/n of what is gathered, twice that of what is summed. */
    if (x->collective == LL_ALL_REDUCE)
        return ll_cost_allreduce(c, near, bytes * n / (2 * fmax(1, n - 1)));
    if (x->collective == LL_ALL_GATHER || x->collective == LL_REDUCE_SCATTER)
        return ll_cost_gather(c, near, bytes * n / fmax(1, n - 1));
    return ll_cost_send(c, near.per_node < n, bytes);
}

/* A section; comm: when communication is free. */
static double section(const ll_cluster *c, const ll_program *p, const ll_mesh *m,
                      const char *precision, int s, double share, double now, double *comm,
                      double *ends, ll_replayed *out)
{
    for (int i = s ? p->end[s - 1] : 0; i < p->end[s]; i++) {
        const ll_instr *x = &p->instrs[i];
        if (x->kernel.run) {
            double t = kernel(&c->chip, x, precision, share * x->bytes);
            now += t;
            out->compute_s += t;
        } else if (x->wait) {
            if (ends[x->pair] > now) out->exposed_s += ends[x->pair] - now, now = ends[x->pair];
        } else if (m) {
            double t = talk(c, p, m, x, &out->moved);
            ends[i] = *comm = fmax(now, *comm) + t;
            out->comm_s += t;
        }
    }
    return now;
}

ll_replayed ll_replay(const ll_cluster *c, const ll_program *p, const ll_mesh *m,
                      const char *precision, bool halved)
{
    double share = halved ? 0.5 : 1;
    ll_replayed out = {.work = ll_program_flops(p)};
    LL_OWN(ll_arena) arena = ll_arena_new();
    double *ends = LL_NEW_ARRAY(arena, double, p->n_instr + 1), comm = 0, now = 0;
    for (int k = 0; k < ll_program_rounds(p); k++)
        now = section(c, p, m, precision, LL_MICRO, share, now, &comm, ends, &out);
    now = section(c, p, m, precision, LL_REPORT, share, now, &comm, ends, &out);
    now = section(c, p, m, precision, LL_UPDATE, 1, now, &comm, ends, &out);
    double nodes = m ? ceil(m->n_rank / c->node.chips) : 1;
    out.step_s = now * (1 + c->network.jitter * log2(fmax(1, nodes)));
    return out;
}
