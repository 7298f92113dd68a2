/* attention.c: attention of f32, forward (see attention.h for the layout).
 *
 * For a block of queries, keys come block by block up to the last that it sees. m holds each
 * query's largest score so far and l the sum of exp(s - m); when a block raises m, what was summed
 * before shrinks by exp(old m - new m) (online softmax: Milakov, Gimelshein 2018; tiled as in Dao
 * et al. 2022).
 * Blocks of one head are worked in order by one thread: the thread count changes nothing. */
#include "kern/cpu/attention.h"

#include "base/num.h"
#include "kern/attr.h"
#include "kern/cpu/row.h"
#include "kern/cpu/vec.h"
#include "kern/rows.h"

#include <math.h>

LL_KERNELS(attention, attend, attention_grad, attend_grad, causal_mask)

enum { BLOCK = LL_ATT_BLOCK, M = LL_ATT_M, N = LL_ATT_N, VECTORS = N / LL_LANES };

/* One thread's room; rows padded to whole groups, as tiles write them. */
typedef struct room {
    float *k;     /* [s, width of d] */
    float *v;     /* [s, width of e] */
    float *qt;    /* [d, BLOCK] */
    float *s;     /* [BLOCK, BLOCK] */
    float *o;     /* [BLOCK, width of e] */
    float *m, *l; /* [BLOCK] */
} room;

/* Lays out a room from `at` on (NULL: only measures); returns its floats. */
static size_t lay_out(const ll_att *p, float *at, room *r)
{
    int64_t rows = ll_round_up(p->s, M), d = ll_att_width(p->d), e = ll_att_width(p->e);
    return LL_ATT_LAY_OUT(at, {&r->k, rows * d}, {&r->v, rows * e}, {&r->qt, d * BLOCK},
                          {&r->s, BLOCK * BLOCK}, {&r->o, BLOCK * e}, {&r->m, BLOCK},
                          {&r->l, BLOCK});
}

/* Masks, maxima and exponentials of one panel of queries; shrink: by how much earlier sums
 * shrink. Rows of s that a neighbouring panel's products read past this one's last key are zeros.
 */
static void softmax_panel(float *s, int64_t keys, int64_t seen, float *m, float *l, float *shrink)
{
    ll_vec top[VECTORS], sum[VECTORS];
    for (int i = 0; i < VECTORS; i++) {
        top[i] = ll_vec_at(m + i * LL_LANES);
        sum[i] = ll_vec_all(0);
    }
    for (int64_t k = 0; k < seen; k++)
#pragma GCC unroll 4
        for (int i = 0; i < VECTORS; i++)
            top[i] = ll_vec_max(ll_vec_at(s + k * BLOCK + i * LL_LANES), top[i]);
    for (int64_t k = 0; k < seen; k++)
#pragma GCC unroll 4
        for (int i = 0; i < VECTORS; i++) {
            float *x = s + k * BLOCK + i * LL_LANES;
            ll_vec e = ll_vec_exp(ll_vec_at(x) - top[i]);
            ll_vec_to(x, e);
            sum[i] += e;
        }
    for (int i = 0; i < VECTORS; i++) {
        int64_t at = i * LL_LANES;
        ll_vec by = ll_vec_exp(ll_vec_at(m + at) - top[i]);
        ll_vec_to(shrink + at, by);
        ll_vec_to(l + at, ll_vec_at(l + at) * by + sum[i]);
        ll_vec_to(m + at, top[i]);
    }
    for (int64_t k = seen; k < keys && k < seen + M; k++)
        for (int i = 0; i < N; i++) s[k * BLOCK + i] = 0;
}

/* One block of queries against one block of keys. */
static void add_keys(const ll_att *p, const room *r, const float *mask, int64_t from, int64_t keys,
                     int64_t queries, int64_t ahead)
{
    float shrink[BLOCK];
    int64_t width = ll_att_width(p->e);
    ll_att_scores(p->d, r->k + from * ll_att_width(p->d), r->qt, keys, queries, ahead, r->s);
    for (int64_t q = 0; q < queries; q += N) {
        ll_att_mask(p, mask ? mask + q * p->by[3] : NULL, queries, r->s + q, keys, q, ahead);
        softmax_panel(r->s + q, keys, ll_att_seen(keys, q, ahead), r->m + q, r->l + q, shrink + q);
    }
    for (int64_t q = 0; q < queries && from > 0; q++)
        for (int64_t e = 0; e < width; e++) r->o[q * width + e] *= shrink[q];
    ll_att_gather(p->e, r->s, BLOCK, r->v + from * width, keys, queries, ahead, r->o);
}

/* A query that sees no key, or keys of -inf alone, gives zeros and LL_ATTEND_NONE. */
static void put_rows(const ll_att *p, const room *r, int64_t queries, float *o, float *lse)
{
    for (int64_t q = 0; q < queries; q++) {
        float *to = o + q * p->h * p->e, inverse = r->l[q] > 0 ? 1 / r->l[q] : 0;
        const float *from = r->o + q * ll_att_width(p->e);
#pragma omp simd
        for (int64_t e = 0; e < p->e; e++) to[e] = from[e] * inverse;
        lse[q] = (float)((double)r->m[q] + (r->l[q] > 0 ? log((double)r->l[q]) : 0));
    }
}

static void one_head(const ll_att *p, int64_t n, const room *r, float *o, float *lse)
{
    ll_att_head x = ll_att_head_of(p, n);
    const float *queries_at = (const float *)p->q + x.q;
    ll_att_pack(p->s, p->d, (const float *)p->k + x.k, p->k_row, 1, r->k);
    ll_att_pack(p->s, p->e, (const float *)p->v + x.v, p->v_row, 1, r->v);
    for (int64_t i = 0; i < p->t; i += BLOCK) {
        int64_t queries = p->t - i < BLOCK ? p->t - i : BLOCK, end = i + queries + p->ahead;
        if (end > p->s) end = p->s;
        ll_att_transpose(p->d, queries_at + i * p->q_row, p->q_row, queries, (float)p->scale,
                         r->qt);
        for (int64_t q = 0; q < BLOCK; q++) r->m[q] = LL_ATTEND_NONE, r->l[q] = 0;
        memset(r->o, 0, (size_t)(BLOCK * ll_att_width(p->e)) * sizeof(float));
        for (int64_t j = 0; j < end; j += BLOCK) {
            const float *mask = x.mask ? x.mask + i * p->by[3] + j * p->by[4] : NULL;
            add_keys(p, r, mask, j, end - j < BLOCK ? end - j : BLOCK, queries, i + p->ahead - j);
        }
        put_rows(p, r, queries, o + i * p->h * p->e, lse + i);
    }
}

static void some_heads(const void *given, int number, int64_t from, int64_t to)
{
    const ll_att_job *j = (const ll_att_job *)given;
    const ll_att *p = j->p;
    room r = {0};
    size_t floats = lay_out(p, NULL, &r);
    lay_out(p, (float *)j->c->scratch + floats * (size_t)number, &r);
    for (int64_t n = from; n < to; n++)
        one_head(p, n, &r, (float *)j->c->out[0].data + ll_att_out(p, n),
                 (float *)j->c->out[1].data + n * p->t);
}

/* ---- entry: packed operands are one tensor; of gradients do comes before them ---- */

static ll_att att_of(const ll_kcall *c)
{
    return c->n_in == 1 ? ll_att_packed(c->in)
                        : ll_att_of(c->in, c->n_in > 3 ? &c->in[3] : NULL, c->attr);
}

static ll_att att_of_grad(const ll_kcall *c)
{
    return c->n_in == 4 ? ll_att_packed(&c->in[1])
                        : ll_att_of(&c->in[1], c->n_in > 6 ? &c->in[6] : NULL, c->attr);
}

/* Heads in even parts, one after the other: rows of a sample stay with few threads. */
static ll_err run(const ll_kcall *c, const ll_att *p, const ll_att_grads *f)
{
    bool half = c->in[0].dtype == LL_BF16;
    ll_numbered_part *part = f ? (half ? ll_att_bf16_grad_part : ll_att_grad_part)
                               : (half ? ll_att_bf16_part : some_heads);
    int team = ll_team(c, p->b * p->h * p->t * p->s * p->d);
    ll_in_numbered_parts(team, p->b * (f ? p->n : p->h), part, &(ll_att_job){c, p, f});
    return LL_OK;
}

ll_err attend_cpu(const ll_kcall *c)
{
    ll_att p = att_of(c);
    return run(c, &p, NULL);
}

ll_err attention_cpu(const ll_kcall *c)
{
    return attend_cpu(c);
}

size_t attend_cpu_scratch(const ll_kcall *c)
{
    room r;
    ll_att p = att_of(c);
    bool half = c->in[0].dtype == LL_BF16;
    return ll_floats_each(c, half ? ll_att_bf16_room(&p, false) : lay_out(&p, NULL, &r));
}

ll_err attention_grad_cpu(const ll_kcall *c)
{
    ll_att p = att_of_grad(c);
    char *d = c->out[0].data;
    size_t part = (size_t)(p.h * p.d) * ll_dtype_bytes(c->out[0].dtype);
    return run(c, &p,
               &(ll_att_grads){c->in[0].data, c->in[2].data, c->in[3].data, NULL, d, d + part,
                               d + 2 * part});
}

ll_err attend_grad_cpu(const ll_kcall *c)
{
    ll_att p = att_of_grad(c);
    return run(c, &p,
               &(ll_att_grads){c->in[0].data, NULL, c->in[4].data, c->in[5].data, c->out[0].data,
                               c->out[1].data, c->out[2].data});
}

size_t attend_grad_cpu_scratch(const ll_kcall *c)
{
    ll_att p = att_of_grad(c);
    bool half = c->in[0].dtype == LL_BF16;
    return ll_floats_each(c, half ? ll_att_bf16_room(&p, true) : ll_att_grad_room(&p));
}

ll_err causal_mask_cpu(const ll_kcall *c)
{
    const ll_mask_attr *a = (const ll_mask_attr *)c->attr;
    const ll_tensor *x = &c->in[0];
    int64_t t = x->shape.d[x->shape.n - 2], s = x->shape.d[x->shape.n - 1], rows = ll_rows(x);
#pragma omp parallel for num_threads(ll_team(c, rows *s)) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const float *from = (const float *)x->data + r * s;
        float *to = (float *)c->out[0].data + r * s;
        int64_t seen = r % t + a->at[0] - a->at[1] + 1;
        seen = seen < 0 ? 0 : seen < s ? seen : s;
        memcpy(to, from, (size_t)seen * sizeof(float));
        for (int64_t i = seen; i < s; i++) to[i] = (float)a->value;
    }
    return LL_OK;
}
