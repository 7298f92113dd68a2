/* lm.c: the kernels of a transformer's layer. */
#include "plan/lm.h"

#include <math.h>

double ll_lm_bytes_tensors(const ll_lm_bytes *b)
{
    return b->weights + b->gradients + b->optimizer + b->activations + b->buffers;
}

double ll_lm_bytes_sum(const ll_lm_bytes *b)
{
    return ll_lm_bytes_tensors(b) + b->reserved;
}

double ll_lm_parameters(const ll_lm *m)
{
    double h = m->width, kv = m->kv_heads / m->heads;
    if (m->counted > 0) return m->counted;
    double layer = h * h * (2 + 2 * kv) + (m->gated ? 3 : 2) * h * m->ffn + 4 * h;
    return m->layers * layer + (m->tied ? 1 : 2) * m->vocab * h;
}

double ll_lm_flops(const ll_lm *m)
{
    double h = m->width, kv = m->kv_heads / m->heads;
    double token =
        m->layers * (h * h * (2 + 2 * kv) + (m->gated ? 3 : 2) * h * m->ffn) + m->vocab * h;
    return m->seq * (6 * token + 12 * m->layers * h * m->seq);
}

typedef struct work {
    const ll_cluster *c;
    const ll_lm *m;
    const ll_how *h;
    double tokens; /* of a micro-batch, on this rank */
    ll_layer_time t;
    double gemm; /* of t, forward products */
} work;

/* [tokens,k] [k,n], and the products of its two gradients. In fp8 operands are rounded first. */
static void product(work *w, double n, double k)
{
    const ll_chip *c = &w->c->chip;
    ll_precision p = w->h->precision;
    double f = ll_cost_product(c, p, 1, w->tokens, n, k);
    double i = ll_cost_product(c, p, 1, w->tokens, k, n);
    double g = ll_cost_product(c, p, 1, k, n, w->tokens);
    if (ll_precision_unit(p) == LL_PRECISION_fp8) {
        double bytes = p == LL_PRECISION_fp8 ? 4 : 8; /* of blocks, gelu is not made on the way */
        f += ll_cost_stream(c, bytes * w->tokens * k, 1);
        i += ll_cost_stream(c, bytes * w->tokens * n, 1);
    }
    w->t.f += f, w->t.i += i, w->t.w += g;
    w->gemm += f;
    w->t.f_flops += 2 * w->tokens * n * k;
}

/* Bytes read and written, forward and backward, by so many kernels. */
static void stream(work *w, double f, double b, double kernels)
{
    const ll_chip *c = &w->c->chip;
    w->t.f += ll_cost_stream(c, f, kernels);
    w->t.i += ll_cost_stream(c, b, 1.5 * kernels);
}

/* Attention's own part: heads of this rank, all keys. */
static void attention(work *w)
{
    const ll_lm *m = w->m;
    const ll_how *h = w->h;
    const ll_chip *c = &w->c->chip;
    double d = m->width / m->heads, heads = h->micro_batch * fmax(1, m->heads / h->tensor);
    double rows = m->seq / h->context, cells = heads * rows * m->seq;
    ll_precision p = ll_precision_wide(h->precision);
    double flops = 4 * cells * d;
    w->t.f_flops += flops;
    if (h->system->attention) {
        double best = h->system->attention == 2 ? c->attention_tuned : c->attention;
        double f = ll_cost_attention(c, p, best, (m->encoder ? 1 : 0.5) * flops, d, m->seq);
        double ring = 0;
        if (h->context > 1) {
            ll_peers near = {h->context, fmin(h->context, fmax(1, w->c->node.chips / h->tensor))};
            ring = ll_cost_gather(
                w->c, near, 4 * h->micro_batch * m->seq * d * fmax(1, m->kv_heads / h->tensor));
        }
        double ff = ll_cost_beside(c, f, ring), bb = ll_cost_beside(c, 2.5 * f, 2 * ring);
        w->t.f += ff;
        w->t.i += bb;
        w->t.ring = (h->remake == LL_REMAKE_FULL ? 2 : 1) * (ff - f) + bb - 2.5 * f;
        return;
    }
    /* Products of heads whose size is no multiple of 8 do not run on tensor units. */
    bool odd = fmod(d, 8) != 0 && p != LL_PRECISION_f32;
    double score = odd ? 2 * cells * d / (1e12 * c->vector * c->gemm_f32)
                       : ll_cost_product(c, p, heads, rows, m->seq, d);
    double value = odd ? score : ll_cost_product(c, p, heads, rows, d, m->seq);
    double mask = h->system->dropout;
    w->t.f += score + value;
    w->t.i += 2 * (score + value);
    double drop = mask > 0 ? 4 + mask : 0, apart = h->system->eager ? 4 : 0;
    stream(w, cells * (4 + drop + apart), cells * (6 + drop + apart), 3);
}

/* Norms, residuals, dropout and activation functions. */
static void elementwise(work *w)
{
    const ll_lm *m = w->m;
    const ll_how *h = w->h;
    double cut = h->sequence ? h->tensor : 1, x = w->tokens * m->width / cut;
    double mask = h->system->dropout, inner = w->tokens * m->ffn / h->tensor;
    double qkv = w->tokens * m->width * (1 + 2 * m->kv_heads / m->heads) / h->tensor;
    double more = h->system->eager ? 1.5 : 1;
    if (h->system->lean) { /* norms with their residuals; gates; rope, or biases' gradients */
        stream(w, 16 * x, 16 * x, 2);
        if (m->gated) stream(w, 6 * inner, 10 * inner, 1);
        stream(w, m->gated ? 4 * qkv : 0, (m->gated ? 4 : 2) * qkv, 1);
        if (m->dropout) stream(w, 2 * 4 * x, 2 * 4 * x, 2);
        return;
    }
    stream(w, more * x * (2 * 4 + 2 * (6 + mask)), more * x * (2 * 8 + 2 * (4 + mask)), 4);
    stream(w, more * inner * (m->gated ? 6 : 4), more * inner * (m->gated ? 10 : 6), 1);
    stream(w, 4 * qkv, 4 * qkv, 2);
    if (m->dropout) stream(w, 2 * 4 * x, 2 * 4 * x, 2);
}

/* Sums over axis tensor in a pass over a layer, of which some are hidden behind products. */
static double tensor_sums(const work *w)
{
    const ll_how *h = w->h;
    if (h->tensor <= 1) return 0;
    ll_peers p = {h->tensor, fmin(h->tensor, w->c->node.chips)};
    double bytes = 2 * w->tokens * w->m->width;
    return 2 *
           (h->sequence ? 2 * ll_cost_gather(w->c, p, bytes) : ll_cost_allreduce(w->c, p, bytes));
}

ll_layer_time ll_lm_layer(const ll_cluster *c, const ll_lm *m, const ll_how *h)
{
    work w = {.c = c, .m = m, .h = h, .tokens = h->micro_batch * m->seq / h->context};
    double t = h->tensor, kv = fmax(m->kv_heads / t, 1) / (m->heads / t);
    product(&w, m->width * (1 + 2 * kv) / t, m->width);
    product(&w, m->width, m->width / t);
    double before = w.t.f;
    product(&w, m->ffn / t, m->width);
    if (m->gated) product(&w, m->ffn / t, m->width);
    double inner = w.t.f - before;
    product(&w, m->width, m->ffn / t);
    double products = w.t.f;
    attention(&w);
    double attended = w.t.f - products;
    elementwise(&w);
    double sums = tensor_sums(&w), hidden = w.gemm;
    if (h->system->overlap_tensor) sums = ll_cost_beside(&c->chip, hidden, sums) - hidden;
    w.t.tensor = sums;
    double forward = w.t.f + sums;
    w.t.f = forward;
    w.t.i += sums;
    if (h->remake == LL_REMAKE_FULL) w.t.i += forward;
    if (h->remake == LL_REMAKE_SELECTIVE && !h->system->attention) w.t.i += attended;
    if (h->remake == LL_REMAKE_FFN) w.t.i += inner;
    return w.t;
}
