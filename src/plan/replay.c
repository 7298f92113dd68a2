/* replay.c: instructions on two clocks. */
#include "plan/replay.h"

#include "kern/attr.h"

static double numbers(const ll_program *p, int slot)
{
    return (double)ll_numel(&p->slots[slot].type.shape);
}

/* Of a product [m,k] [k,n], or several: each dimension is one of two of the three. */
static double product(const ll_chip *c, const ll_program *p, const ll_instr *x,
                      ll_precision precision)
{
    double sum = x->flops / 2, a = numbers(p, x->in[0]), b = numbers(p, x->in[1]);
    double y = numbers(p, x->out[0]), batch = fmax(1, a * b / sum * y / sum);
    return sum > 0 ? ll_cost_flops(c, precision, batch, sum / b, sum / a, sum / y) : 0;
}

static bool sums(const ll_op *op, char loop)
{
    return op->sum && strchr(op->sum, loop);
}

/* On tensor units a convolution is a product, of pixels and filters over taps and channels, or, to
 * the filters' gradient, over pixels. They sum 32 bytes at once: of a tap with fewer channels (the
 * first layer's 3) the rest is zeros. */
static double convolution(const ll_chip *c, const ll_program *p, const ll_instr *x, const ll_op *op,
                          ll_precision precision)
{
    bool plain = precision == LL_PRECISION_f32 || ll_chip_is_core(c);
    if (plain) return x->flops / (ll_chip_peak(c, precision) * c->gemm_f32);
    const ll_shape *y = &p->slots[x->out[0]].type.shape, *w = &p->slots[x->in[1]].type.shape;
    bool dw = sums(op, 'n'), dx = sums(op, 'f');
    double channels = (double)(dw ? y->d[3] : dx ? w->d[0] : w->d[3]);
    double width = precision == LL_PRECISION_tf32 ? 4 : 2, once = 32 / width;
    double more = ceil(channels / once) * once / channels, all = numbers(p, x->out[0]);
    double n = (double)y->d[dw ? 0 : 3], m = all / n, k = x->flops / 2 / all;
    ll_chip as = *c;
    if (c->conv > 0) as.gemm = c->conv;
    *(dw ? &m : &k) *= more;
    return ll_cost_flops(&as, precision, 1, fmax(m, n), fmin(m, n), k);
}

/* Pools of GPUs are bound by instructions: of each thread, which makes 16 bytes of the result, some
 * to find its place and some for each pixel that it looks at (kern/cuda/pool.cu). */
static double pool(const ll_chip *c, const ll_program *p, const ll_instr *x)
{
    enum { PLACE = 270, PIXEL = 55, PACK = 16 };
    const ll_pool_attr *a = (const ll_pool_attr *)x->attr;
    double seen = (double)(a->size[0] * a->size[1]);
    if (a->image[0]) /* a gradient */
        seen = fmax(1, seen / (double)(a->stride[0] * a->stride[1]));
    double threads = (double)p->slots[x->out[0]].bytes / PACK;
    return threads * (PLACE + PIXEL * seen) / (1e12 * c->vector / 2);
}

/* Launches of a GPU for an instruction. A batch norm reads all rows for its statistics (*bytes)
 * before it reads them again; gradients of filters are made in 16 bits and widened; each part of
 * what is joined is a copy. What parameters go through before the first layer and after the last
 * gradient touches nothing of each other's, and is one launch for all (machine/merge.h). */
static double launches(const ll_program *p, const ll_instr *x, const ll_op *op, int section,
                       double *bytes)
{
    bool is_norm = op->work == LL_WORK_NORM && op->whole && !strchr(op->whole, 'c') &&
                   p->slots[x->out[0]].type.shape.n > 1;
    bool inputs = op->work == LL_WORK_CHAIN;
    for (int i = 0; i < x->n_in; i++) {
        if (is_norm) *bytes += (double)p->slots[x->in[i]].bytes;
        inputs &= p->slots[x->in[i]].region == LL_PERSISTENT;
    }
    if (inputs || section != LL_MICRO) return 0;
    if (op->work == LL_WORK_COPY && op->n_in < 0) return x->n_in; /* what is joined */
    return is_norm || (op->work == LL_WORK_CONVOLUTION && sums(op, 'n')) ? 2 : 1;
}

/* Seconds of one instruction that has a kernel. share: of the bytes that the program says. */
static double kernel(const ll_chip *c, const ll_program *p, const ll_instr *x, int section,
                     ll_precision precision, double share)
{
    const ll_op *op = ll_op_find(x->op);
    bool device = p->target->device;
    double t = x->flops / (1e12 * c->vector), bytes = x->bytes, kernels = 1;
    const ll_type *first = x->n_in ? &p->slots[x->in[0]].type : NULL;
    size_t width = first ? ll_dtype_bytes(first->dtype) : 4;
    if (width < 4) precision = width < 2 ? LL_PRECISION_fp8 : LL_PRECISION_bf16;
    if (op->work == LL_WORK_PRODUCT) t = product(c, p, x, precision);
    if (op->work == LL_WORK_CONVOLUTION) t = convolution(c, p, x, op, precision);
    if (op->work == LL_WORK_ATTENTION)
        t = ll_cost_attention(c, precision, c->attention, x->flops,
                              (double)first->shape.d[first->shape.n - 1],
                              (double)first->shape.d[1]);
    if (device && op->work == LL_WORK_POOL && op->window && strchr(op->window, 'h'))
        t = pool(c, p, x);
    if (op->work == LL_WORK_COPY) /* a slice reads no more than it writes */
        bytes = fmin(bytes, 2 * (double)p->slots[x->out[0]].bytes);
    if (device) kernels = launches(p, x, op, section, &bytes);
    double all = share * bytes + 1e6 * c->stream_k * kernels;
    return fmax(t, all / (1e9 * c->bandwidth * c->stream)) + 1e-6 * c->launch * kernels;
}

/* Ranks of a group and how many of them share a node: the mesh's last axis runs fastest. */
static ll_peers peers_of(const ll_cluster *c, const ll_mesh *m, ll_axes axes)
{
    double n = ll_mesh_group(m, axes), stride = 1;
    for (int a = m->n - 1; a >= 0 && !(axes >> a & 1); a--) stride *= m->size[a];
    return (ll_peers){.n = n, .per_node = fmax(1, fmin(n, floor(c->node.chips / stride)))};
}

/* Seconds of an exchange, and of one like it without bytes. */
static double talk(const ll_cluster *c, const ll_program *p, const ll_mesh *m, const ll_instr *x,
                   double *sent, double *latency)
{
    ll_axes axes = ll_collective_axes(x->collective, x->attr);
    ll_peers near = peers_of(c, m, axes);
    double bytes = 0, n = near.n;
    for (int o = 0; o < x->n_in; o++)
        bytes += ll_collective_sent(m, x->collective, x->attrs[o], &p->slots[x->in[o]].type);
    *sent += bytes;
    /* What each sends is (n-1)/n of what is gathered, twice that of what is summed. */
    double whole = bytes * n / fmax(1, n - 1);
    if (x->collective == LL_ALL_REDUCE) {
        *latency = ll_cost_allreduce(c, near, 0);
        return ll_cost_allreduce(c, near, whole / 2);
    }
    bool parts = x->collective == LL_ALL_GATHER || x->collective == LL_REDUCE_SCATTER;
    *latency = parts ? ll_cost_gather(c, near, 0) : ll_cost_send(c, near.per_node < n, 0);
    return parts ? ll_cost_gather(c, near, whole) : ll_cost_send(c, near.per_node < n, bytes);
}

/* A section; comm: when communication is free. */
static double section(const ll_cluster *c, const ll_program *p, const ll_mesh *m,
                      ll_precision precision, int s, double share, double now, double *comm,
                      double *ends, bool *small, ll_replayed *out)
{
    for (int i = s ? p->end[s - 1] : 0; i < p->end[s]; i++) {
        const ll_instr *x = &p->instrs[i];
        if (x->wait) {
            double waits = fmax(0, ends[x->pair] - now);
            now += waits;
            out->exposed_s += waits;
            if (small[x->pair]) out->latency_s += waits;
        } else if (!x->collective && !x->aside) {
            double t = kernel(&c->chip, p, x, s, precision, share);
            now += t;
            out->compute_s += t;
        } else if (m) {
            double latency, t = talk(c, p, m, x, &out->moved, &latency);
            small[i] = latency > t / 2;
            if (small[i] && !out->n_small++) out->small = x->name;
            ends[i] = *comm = fmax(now, *comm) + t;
        }
    }
    return now;
}

ll_replayed ll_replay(const ll_cluster *c, const ll_program *p, const ll_mesh *m,
                      ll_precision precision, bool halved)
{
    double share = halved ? 0.5 : 1;
    ll_replayed out = {.work = ll_program_flops(p)};
    LL_OWN(ll_arena) arena = ll_arena_new();
    double *ends = LL_NEW_ARRAY(arena, double, p->n_instr + 1), comm = 0, now = 0;
    bool *small = LL_NEW_ARRAY(arena, bool, p->n_instr + 1);
    for (int k = 0; k < ll_program_rounds(p); k++)
        now = section(c, p, m, precision, LL_MICRO, share, now, &comm, ends, small, &out);
    now = section(c, p, m, precision, LL_REPORT, share, now, &comm, ends, small, &out);
    now = section(c, p, m, precision, LL_UPDATE, 1, now, &comm, ends, small, &out);
    double nodes = m ? ceil(m->n_rank / c->node.chips) : 1;
    out.step_s = now * (1 + c->network.jitter * log2(fmax(1, nodes)));
    return out;
}
