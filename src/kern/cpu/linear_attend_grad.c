/* linear_attend_grad.c: the gradient of linear attention, in chunks (see linear_attend.h), with
 * dp = do v' + dl below the diagonal:
 *   first to last   dq = do state' + dl z + dp k,  then state' += v' k,  z += sum of k
 *   last to first   dk = v more' + u + dp' q,  dv = k more + p' do,  of queries of later chunks;
 *                   then more += q' do,  u += sum of dl q
 * so that nothing is kept between chunks but sums. Heads that share keys add to the same. */
#include "kern/cpu/linear_attend.h"

#include "kern/cpu/row.h"

#include <omp.h>

LL_KERNELS(linear_attend_grad)

enum { BLOCK = LL_LIN_BLOCK, M = LL_ATT_M };

typedef struct room {
    float *k, *v, *q, *g; /* [BLOCK, width]; g: do */
    float *qt, *gt;       /* [d or e, BLOCK] */
    float *s;             /* [BLOCK, BLOCK] */
    float *dq, *dk, *dv;  /* [BLOCK, width] */
    float *dl;            /* [BLOCK] */
    float *sum, *turned;  /* [d, width of e], [e, width of d], in groups */
    float *more;          /* z or u: [d] */
} room;

/* One head of keys of one sample. */
typedef struct head {
    const ll_kcall *call;
    const ll_lin *p;
    room r;
    int64_t b, n;
    double rate;
    ll_lin_rows k, v;
} head;

static size_t lay_out(const ll_lin *p, float *at, room *r)
{
    int64_t d = ll_att_width(p->d), e = ll_att_width(p->e);
    return LL_ATT_LAY_OUT(at, {&r->k, BLOCK * d}, {&r->v, BLOCK * e}, {&r->q, BLOCK * d},
                          {&r->g, BLOCK * e}, {&r->qt, d * BLOCK}, {&r->gt, e * BLOCK},
                          {&r->s, BLOCK * BLOCK}, {&r->dq, BLOCK * d}, {&r->dk, BLOCK * d},
                          {&r->dv, BLOCK * e}, {&r->dl, BLOCK}, {&r->sum, (d + M) * e},
                          {&r->turned, (e + M) * d}, {&r->more, d});
}

static void clear(float *x, int64_t n)
{
    memset(x, 0, (size_t)n * sizeof(float));
}

static void shrink(float *x, int64_t n, float by)
{
    for (int64_t i = 0; i < n && by != 1; i++) x[i] *= by;
}

/* do and dl of a chunk's queries of one of the heads that share keys. */
static void load_slopes(const head *h, const ll_lin_chunk *c, int64_t g)
{
    const room *r = &h->r;
    const ll_lin *p = h->p;
    ll_lin_rows dout = ll_lin_rows_of(&h->call->in[0], h->b, h->n, g);
    const float *dl = (const float *)h->call->in[1].data;
    ll_lin_pack(&dout, c->from, c->queries, 0, 0, r->g);
    ll_att_transpose(p->e, r->g, ll_att_width(p->e), c->queries, 1, r->gt);
    clear(r->dl, BLOCK);
    memcpy(r->dl, dl + ((h->b * p->n + h->n) * p->g + g) * p->t + c->from,
           (size_t)c->queries * sizeof(float));
}

/* s = dp */
static void load_dp(const head *h, const ll_lin_chunk *c)
{
    ll_att_scores(h->p->e, h->r.v, h->r.gt, c->keys, c->queries, c->first, h->r.s);
    ll_lin_mask(c, h->r.dl, h->r.s, NULL);
}

/* ---- first to last ---- */

static void query_slopes(const head *h, const ll_lin_chunk *c, int64_t g)
{
    const room *r = &h->r;
    int64_t d = ll_att_width(h->p->d);
    ll_lin_rows dq = ll_lin_rows_of(&h->call->out[0], h->b, h->n, g);
    load_slopes(h, c, g);
    for (int64_t q = 0; q < BLOCK; q++)
        for (int64_t i = 0; i < d; i++) r->dq[q * d + i] = r->dl[q] * r->more[i];
    ll_att_gather(h->p->d, r->gt, BLOCK, r->turned, h->p->e, c->queries, h->p->e, r->dq);
    if (c->keys) {
        load_dp(h, c);
        ll_att_gather(h->p->d, r->s, BLOCK, r->k, c->keys, c->queries, c->first, r->dq);
    }
    ll_lin_put(&dq, c->from, c->queries, h->rate, c->first, r->dq);
}

static void forward(const head *h)
{
    const ll_lin *p = h->p;
    const room *r = &h->r;
    int64_t d = ll_att_width(p->d), e = ll_att_width(p->e);
    float by = (float)exp(h->rate * BLOCK);
    clear(r->turned, (p->e + M) * d);
    clear(r->more, d);
    clear(r->dq, d);
    for (int64_t g = 0; g < p->g; g++) { /* queries that are before all keys */
        ll_lin_rows dq = ll_lin_rows_of(&h->call->out[0], h->b, h->n, g);
        for (int64_t i = 0; i < p->t && i < -p->ahead; i++) ll_lin_put(&dq, i, 1, 0, 0, r->dq);
    }
    for (int64_t at = 0; at < p->t + p->ahead; at += BLOCK) {
        ll_lin_chunk c = ll_lin_chunk_of(p, at);
        ll_lin_pack(&h->k, at, c.keys, -h->rate, 0, r->k);
        ll_lin_pack(&h->v, at, c.keys, 0, 0, r->v);
        for (int64_t g = 0; g < p->g && c.queries; g++) query_slopes(h, &c, g);
        ll_att_gather(p->d, r->v, e, r->k, c.keys, p->e, c.keys, r->turned);
        for (int64_t j = 0; j < c.keys; j++)
            for (int64_t i = 0; i < p->d; i++) r->more[i] += r->k[j * d + i];
        shrink(r->turned, p->e * d, by);
        shrink(r->more, d, by);
    }
}

/* ---- last to first ---- */

/* What later chunks' queries are owed for: sum and more as they are. */
static void begin_keys(const head *h, const ll_lin_chunk *c)
{
    const ll_lin *p = h->p;
    const room *r = &h->r;
    int64_t d = ll_att_width(p->d), e = ll_att_width(p->e);
    ll_lin_pack(&h->k, c->at, c->keys, 0, 0, r->k);
    ll_lin_pack(&h->v, c->at, c->keys, 0, 0, r->v);
    clear(r->dv, BLOCK * e);
    for (int64_t j = 0; j < BLOCK; j++) memcpy(r->dk + j * d, r->more, (size_t)d * sizeof(float));
    for (int64_t i = 0; i < p->d; i++)
        for (int64_t k = 0; k < p->e; k++) r->turned[k * d + i] = r->sum[i * e + k];
    ll_att_transpose(p->d, r->k, d, c->keys, 1, r->qt);
    ll_att_gather(p->e, r->qt, BLOCK, r->sum, p->d, c->keys, p->d, r->dv);
    ll_att_transpose(p->e, r->v, e, c->keys, 1, r->gt);
    ll_att_gather(p->d, r->gt, BLOCK, r->turned, p->e, c->keys, p->e, r->dk);
}

static void key_slopes(const head *h, const ll_lin_chunk *c, int64_t g)
{
    const ll_lin *p = h->p;
    const room *r = &h->r;
    int64_t d = ll_att_width(p->d);
    ll_lin_rows q = ll_lin_rows_of(&h->call->in[2], h->b, h->n, g);
    load_slopes(h, c, g);
    ll_lin_pack(&q, c->from, c->queries, h->rate, c->first, r->q);
    ll_att_transpose(p->d, r->q, d, c->queries, 1, r->qt);
    if (c->keys) {
        ll_att_scores(p->d, r->k, r->qt, c->keys, c->queries, c->first, r->s);
        ll_lin_mask(c, NULL, r->s, NULL);
        ll_att_spread(p->e, r->s, r->g, c->keys, c->queries, c->first, r->dv);
        load_dp(h, c);
        ll_att_spread(p->d, r->s, r->q, c->keys, c->queries, c->first, r->dk);
    }
    ll_att_gather(p->e, r->q, d, r->g, c->queries, p->d, c->queries, r->sum);
    for (int64_t i = 0; i < c->queries; i++)
        for (int64_t k = 0; k < p->d; k++) r->more[k] += r->dl[i] * r->q[i * d + k];
}

static void backward(const head *h)
{
    const ll_lin *p = h->p;
    const room *r = &h->r;
    int64_t d = ll_att_width(p->d), e = ll_att_width(p->e);
    int64_t end = p->s > p->t + p->ahead ? p->s : p->t + p->ahead;
    float by = (float)exp(h->rate * BLOCK);
    ll_lin_rows dk = ll_lin_rows_of(&h->call->out[1], h->b, h->n, -1);
    ll_lin_rows dv = ll_lin_rows_of(&h->call->out[2], h->b, h->n, -1);
    clear(r->sum, (p->d + M) * e);
    clear(r->more, d);
    for (int64_t at = (end - 1) / BLOCK * BLOCK; at >= 0; at -= BLOCK) {
        ll_lin_chunk c = ll_lin_chunk_of(p, at);
        if (c.keys) begin_keys(h, &c);
        for (int64_t g = 0; g < p->g && c.queries; g++) key_slopes(h, &c, g);
        ll_lin_put(&dk, at, c.keys, -h->rate, 0, r->dk);
        ll_lin_put(&dv, at, c.keys, -h->rate, 0, r->dv);
        shrink(r->sum, p->d * e, by);
        shrink(r->more, d, by);
    }
}

ll_err linear_attend_grad_cpu(const ll_kcall *c)
{
    ll_lin p = ll_lin_of(&c->in[2], c->attr);
    int team = ll_team(c, p.b * p.n * p.g * (p.t + p.s) * p.d * (p.e + BLOCK));
#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t i = 0; i < p.b * p.n; i++) {
        head h = {.call = c, .p = &p, .b = i / p.n, .n = i % p.n};
        size_t floats = lay_out(&p, NULL, &h.r);
        lay_out(&p, (float *)c->scratch + floats * (size_t)omp_get_thread_num(), &h.r);
        h.rate = ll_linear_decay(p.attr, h.n);
        h.k = ll_lin_rows_of(&c->in[3], h.b, h.n, -1);
        h.v = ll_lin_rows_of(&c->in[4], h.b, h.n, -1);
        forward(&h);
        backward(&h);
    }
    return LL_OK;
}

size_t linear_attend_grad_cpu_scratch(const ll_kcall *c)
{
    room r;
    ll_lin p = ll_lin_of(&c->in[2], c->attr);
    return ll_floats_each(c, lay_out(&p, NULL, &r));
}
