/* attention.c: causal attention, its gradient and its mask, by plain loops. Nothing is stored but
 * the results, so scores are computed again wherever they are needed. */
#include "kern/attr.h"
#include "kern/rows.h"

#include <math.h>

ll_kernel attention_ref, attention_grad_ref, causal_mask_ref;

/* One head of one sample: tensors, and where its rows are. */
typedef struct head {
    const ll_tensor *qkv;
    int64_t b, h, d, T, H;
} head;

enum { Q, K, V };

/* First element of row t of q, k or v; of o. */
static int64_t row(const head *p, int64_t t, int z)
{
    return (((p->b * p->T + t) * 3 + z) * p->H + p->h) * p->d;
}

static int64_t row_o(const head *p, int64_t t)
{
    return ((p->b * p->T + t) * p->H + p->h) * p->d;
}

static double score(const head *p, int64_t i, int64_t j)
{
    double s = 0;
    for (int64_t e = 0; e < p->d; e++)
        s += ll_at(p->qkv, row(p, i, Q) + e) * ll_at(p->qkv, row(p, j, K) + e);
    return s / sqrt((double)p->d);
}

static head head_of(const ll_tensor *qkv, int64_t n)
{
    const int64_t *d = qkv->shape.d;
    return (head){qkv, n / d[3], n % d[3], d[4], d[1], d[3]};
}

ll_err attention_ref(const ll_kcall *c)
{
    const ll_tensor *qkv = &c->in[0], *o = &c->out[0];
    for (int64_t n = 0; n < qkv->shape.d[0] * qkv->shape.d[3]; n++) {
        head p = head_of(qkv, n);
        for (int64_t i = 0; i < p.T; i++) {
            double top = -INFINITY, sum = 0;
            for (int64_t j = 0; j <= i; j++) top = fmax(top, score(&p, i, j));
            for (int64_t j = 0; j <= i; j++) sum += exp(score(&p, i, j) - top);
            double lse = top + log(sum);
            for (int64_t e = 0; e < p.d; e++) {
                double y = 0;
                for (int64_t j = 0; j <= i; j++)
                    y += exp(score(&p, i, j) - lse) * ll_at(qkv, row(&p, j, V) + e);
                ll_set(o, row_o(&p, i) + e, y);
            }
            ll_set(&c->out[1], n * p.T + i, lse);
        }
    }
    return LL_OK;
}

/* p[i,j], and ds[i,j] before the division by sqrt(d). */
static double slope(const head *p, const ll_kcall *c, int64_t n, int64_t i, int64_t j, double *prob)
{
    const ll_tensor *dout = &c->in[0], *o = &c->in[2], *lse = &c->in[3];
    double inner = 0;
    *prob = exp(score(p, i, j) - ll_at(lse, n * p->T + i));
    for (int64_t e = 0; e < p->d; e++) {
        double g = ll_at(dout, row_o(p, i) + e);
        inner += g * (ll_at(p->qkv, row(p, j, V) + e) - ll_at(o, row_o(p, i) + e));
    }
    return *prob * inner;
}

ll_err attention_grad_ref(const ll_kcall *c)
{
    const ll_tensor *dout = &c->in[0], *qkv = &c->in[1], *out = &c->out[0];
    for (int64_t n = 0; n < qkv->shape.d[0] * qkv->shape.d[3]; n++) {
        head p = head_of(qkv, n);
        double by = 1 / sqrt((double)p.d), prob;
        for (int64_t t = 0; t < p.T; t++)
            for (int64_t e = 0; e < p.d; e++) {
                double dq = 0, dk = 0, dv = 0;
                for (int64_t j = 0; j <= t; j++)
                    dq += slope(&p, c, n, t, j, &prob) * ll_at(qkv, row(&p, j, K) + e);
                for (int64_t i = t; i < p.T; i++) {
                    dk += slope(&p, c, n, i, t, &prob) * ll_at(qkv, row(&p, i, Q) + e);
                    dv += prob * ll_at(dout, row_o(&p, i) + e);
                }
                ll_set(out, row(&p, t, Q) + e, dq * by);
                ll_set(out, row(&p, t, K) + e, dk * by);
                ll_set(out, row(&p, t, V) + e, dv);
            }
    }
    return LL_OK;
}

ll_err causal_mask_ref(const ll_kcall *c)
{
    const ll_mask_attr *a = (const ll_mask_attr *)c->attr;
    const ll_tensor *x = &c->in[0];
    int64_t t = x->shape.d[x->shape.n - 2], s = x->shape.d[x->shape.n - 1];
    for (int64_t i = 0; i < ll_numel(&x->shape); i++) {
        int64_t row_t = i / s % t + a->at[0], col = i % s + a->at[1];
        ll_set(&c->out[0], i, col > row_t ? a->value : ll_at(x, i));
    }
    return LL_OK;
}
