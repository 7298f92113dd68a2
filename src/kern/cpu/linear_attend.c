/* linear_attend.c: linear attention of f32 and bf16, in chunks (see linear_attend.h); sums are f32.
 * A chunk's queries meet the state, then the chunk's keys, which the state then takes in:
 *   o = q state + p v,  l = q z + sum of p,  p = q k' below the diagonal
 *   state += k' v,  z += sum of k
 * One head of keys of one sample is one piece of work, in order: the thread count changes nothing.
 */
#include "kern/cpu/linear_attend.h"

#include "base/num.h"
#include "kern/cpu/row.h"

#include <omp.h>

LL_KERNELS(linear_attend)

enum { BLOCK = LL_LIN_BLOCK, M = LL_ATT_M, N = LL_ATT_N };
_Static_assert((int)BLOCK == (int)LL_LINEAR_CHUNK, "what an op says that it takes");

/* ---- shared ---- */

ll_lin ll_lin_of(const ll_tensor *q, const void *attr)
{
    const ll_linear_attr *a = (const ll_linear_attr *)attr;
    const int64_t *x = q[0].shape.d, *v = q[2].shape.d;
    return (ll_lin){x[0], x[1], v[1], x[2], x[3], x[4], v[3], a->ahead, a};
}

ll_lin_chunk ll_lin_chunk_of(const ll_lin *p, int64_t at)
{
    int64_t from = at > p->ahead ? at : p->ahead, to = ll_min64(at + BLOCK, p->t + p->ahead);
    ll_lin_chunk c = {at, ll_min64(BLOCK, p->s - at), from - p->ahead, to - from, from - at};
    if (c.keys < 0) c.keys = 0;
    if (c.queries < 0) c.queries = 0;
    return c;
}

ll_lin_rows ll_lin_rows_of(const ll_tensor *x, int64_t b, int64_t n, int64_t g)
{
    const int64_t *s = x->shape.d, width = s[x->shape.n - 1], each = g < 0 ? 1 : s[3];
    int64_t stride = s[2] * each * width,
            at = b * s[1] * stride + (n * each + (g < 0 ? 0 : g)) * width;
    return (ll_lin_rows){(char *)x->data + (size_t)at * ll_dtype_bytes(x->dtype), stride, width,
                         x->dtype};
}

void ll_lin_pack(const ll_lin_rows *x, int64_t from, int64_t count, double rate, int64_t first,
                 float *to)
{
    int64_t d = x->width, width = ll_att_width(d);
    for (int64_t i = 0; i < count; i++, to += width) {
        float by = rate != 0 ? (float)exp(rate * (double)(first + i)) : 1;
        int64_t at = (from + i) * x->stride;
        const float *f = (const float *)x->at + at;
        const uint16_t *h = (const uint16_t *)x->at + at;
        for (int64_t e = 0; e < d && x->type == LL_BF16; e++) to[e] = ll_bf16_to_f32(h[e]) * by;
        for (int64_t e = 0; e < d && x->type != LL_BF16; e++) to[e] = f[e] * by;
        for (int64_t e = d; e < width; e++) to[e] = 0;
    }
}

void ll_lin_put(const ll_lin_rows *x, int64_t from, int64_t count, double rate, int64_t first,
                const float *made)
{
    int64_t d = x->width, width = ll_att_width(d);
    for (int64_t i = 0; i < count; i++, made += width) {
        float by = rate != 0 ? (float)exp(rate * (double)(first + i)) : 1;
        int64_t at = (from + i) * x->stride;
        float *f = (float *)x->at + at;
        uint16_t *h = (uint16_t *)x->at + at;
        for (int64_t e = 0; e < d && x->type == LL_BF16; e++) h[e] = ll_f32_to_bf16(made[e] * by);
        for (int64_t e = 0; e < d && x->type != LL_BF16; e++) f[e] = made[e] * by;
    }
}

void ll_lin_mask(const ll_lin_chunk *c, const float *more, float *s, float *sum)
{
    for (int64_t q = 0; q < c->queries; q += N) {
        int64_t seen = ll_att_seen(c->keys, q, c->first), k = 0;
        for (; k < seen; k++) {
            float *row = s + k * BLOCK + q;
            int64_t behind = k - c->first - q; /* queries that do not see it */
#pragma omp simd
            for (int i = 0; i < N; i++) {
                float x = row[i] + (more ? more[q + i] : 0);
                row[i] = i < behind ? 0 : x;
                if (sum) sum[q + i] += row[i];
            }
        }
        for (; k < BLOCK && k < seen + M; k++) /* what groups of keys read past the panel's last */
            for (int i = 0; i < N; i++) s[k * BLOCK + q + i] = 0;
    }
}

/* ---- forward ---- */

typedef struct room {
    float *k, *v, *q;    /* [BLOCK, width] */
    float *qt;           /* [d, BLOCK] */
    float *s;            /* [BLOCK, BLOCK] */
    float *o, *l;        /* [BLOCK, width of e]; [BLOCK] */
    float *state, *keys; /* [d, width of e], in groups; z [d] */
} room;

static size_t lay_out(const ll_lin *p, float *at, room *r)
{
    int64_t d = ll_att_width(p->d), e = ll_att_width(p->e);
    return LL_ATT_LAY_OUT(at, {&r->k, BLOCK * d}, {&r->v, BLOCK * e}, {&r->q, BLOCK * d},
                          {&r->qt, d * BLOCK}, {&r->s, BLOCK * BLOCK}, {&r->o, BLOCK * e},
                          {&r->l, BLOCK}, {&r->state, (d + M) * e}, {&r->keys, d});
}

static void see(const ll_lin *p, const room *r, const ll_lin_chunk *c)
{
    memset(r->o, 0, (size_t)(BLOCK * ll_att_width(p->e)) * sizeof(float));
    memset(r->l, 0, BLOCK * sizeof(float));
    ll_att_gather(p->e, r->qt, BLOCK, r->state, p->d, c->queries, p->d, r->o);
    for (int64_t i = 0; i < p->d; i++)
        for (int64_t q = 0; q < c->queries; q++) r->l[q] += r->qt[i * BLOCK + q] * r->keys[i];
    if (!c->keys) return;
    ll_att_scores(p->d, r->k, r->qt, c->keys, c->queries, c->first, r->s);
    ll_lin_mask(c, NULL, r->s, r->l);
    ll_att_gather(p->e, r->s, BLOCK, r->v, c->keys, c->queries, c->first, r->o);
}

static void take_in(const ll_lin *p, const room *r, const ll_lin_chunk *c, double rate)
{
    int64_t d = ll_att_width(p->d), e = ll_att_width(p->e);
    float by = (float)exp(rate * BLOCK);
    ll_att_gather(p->e, r->k, d, r->v, c->keys, p->d, c->keys, r->state);
    for (int64_t j = 0; j < c->keys; j++)
        for (int64_t i = 0; i < p->d; i++) r->keys[i] += r->k[j * d + i];
    for (int64_t i = 0; i < p->d * e && rate != 0; i++) r->state[i] *= by;
    for (int64_t i = 0; i < p->d && rate != 0; i++) r->keys[i] *= by;
}

/* Queries that are before all keys. */
static void put_none(const ll_lin *p, const ll_lin_rows *o, const room *r, float *l)
{
    memset(r->o, 0, (size_t)ll_att_width(p->e) * sizeof(float));
    for (int64_t i = 0; i < p->t && i < -p->ahead; i++) {
        ll_lin_put(o, i, 1, 0, 0, r->o);
        l[i] = 0;
    }
}

static void one_head(const ll_kcall *call, const ll_lin *p, const room *r, int64_t b, int64_t n)
{
    double rate = ll_linear_decay(p->attr, n);
    float *l = (float *)call->out[1].data + (b * p->n + n) * p->g * p->t;
    ll_lin_rows k = ll_lin_rows_of(&call->in[1], b, n, -1);
    ll_lin_rows v = ll_lin_rows_of(&call->in[2], b, n, -1);
    memset(r->state, 0, (size_t)((p->d + M) * ll_att_width(p->e)) * sizeof(float));
    memset(r->keys, 0, (size_t)p->d * sizeof(float));
    for (int64_t g = 0; g < p->g; g++) {
        ll_lin_rows o = ll_lin_rows_of(&call->out[0], b, n, g);
        put_none(p, &o, r, l + g * p->t);
    }
    for (int64_t at = 0; at < p->t + p->ahead; at += BLOCK) {
        ll_lin_chunk c = ll_lin_chunk_of(p, at);
        ll_lin_pack(&k, at, c.keys, -rate, 0, r->k);
        ll_lin_pack(&v, at, c.keys, 0, 0, r->v);
        for (int64_t g = 0; g < p->g && c.queries; g++) {
            ll_lin_rows q = ll_lin_rows_of(&call->in[0], b, n, g);
            ll_lin_rows o = ll_lin_rows_of(&call->out[0], b, n, g);
            ll_lin_pack(&q, c.from, c.queries, rate, c.first, r->q);
            ll_att_transpose(p->d, r->q, ll_att_width(p->d), c.queries, 1, r->qt);
            see(p, r, &c);
            ll_lin_put(&o, c.from, c.queries, 0, 0, r->o);
            memcpy(l + g * p->t + c.from, r->l, (size_t)c.queries * sizeof(float));
        }
        take_in(p, r, &c, rate);
    }
}

ll_err linear_attend_cpu(const ll_kcall *c)
{
    ll_lin p = ll_lin_of(c->in, c->attr);
    int team = ll_team(c, p.b * p.n * p.g * (p.t + p.s) * p.d * (p.e + BLOCK));
#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t i = 0; i < p.b * p.n; i++) {
        room r = {0};
        size_t floats = lay_out(&p, NULL, &r);
        lay_out(&p, (float *)c->scratch + floats * (size_t)omp_get_thread_num(), &r);
        one_head(c, &p, &r, i / p.n, i % p.n);
    }
    return LL_OK;
}

size_t linear_attend_cpu_scratch(const ll_kcall *c)
{
    room r;
    ll_lin p = ll_lin_of(c->in, c->attr);
    return ll_floats_each(c, lay_out(&p, NULL, &r));
}
