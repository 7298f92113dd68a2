/* attention_grad.c: the gradient of attention of f32 (see attention.h for the layout).
 *
 * For a block of keys, the blocks of queries that see it:
 *   p  = exp(s - lse)              s = k q^T scale + mask, as the forward kernel had it
 *   ds = p (v do^T - delta)        delta = sum over e of do o, or given
 *   dv += p do,  dk += ds q,  dq += ds^T k
 * Heads that share keys add to the same dk and dv, one after the other. */
#include "kern/cpu/attention.h"

#include "base/num.h"
#include "kern/cpu/vec.h"

enum { BLOCK = LL_ATT_BLOCK, M = LL_ATT_M, N = LL_ATT_N };

typedef struct room {
    float *q, *g;       /* [t, width of d, e]; q scaled; g: do */
    float *k, *v;       /* [s, width of d, e] */
    float *dq;          /* [t, width of d] */
    float *qt, *gt;     /* [blocks, d or e, BLOCK] */
    float *s, *ds;      /* [BLOCK, BLOCK] */
    float *dk, *dv;     /* [s, width of d, e] */
    float *lse, *delta; /* [t], to whole blocks */
} room;

static int64_t in_tiles(int64_t n)
{
    return ll_round_up(n, M);
}

/* Lays out a room from `at` on (NULL: only measures); returns its floats. */
static size_t lay_out(const ll_att *p, float *at, room *r)
{
    int64_t blocks = ll_ceil_div(p->t, BLOCK), d = ll_att_width(p->d), e = ll_att_width(p->e);
    int64_t t = in_tiles(p->t), s = in_tiles(p->s);
    return LL_ATT_LAY_OUT(at, {&r->q, t * d}, {&r->k, s * d}, {&r->v, s * e}, {&r->g, t * e},
                          {&r->dq, t * d}, {&r->qt, blocks * d * BLOCK},
                          {&r->gt, blocks * e * BLOCK}, {&r->s, BLOCK * BLOCK},
                          {&r->ds, BLOCK * BLOCK}, {&r->dk, s * d}, {&r->dv, s * e},
                          {&r->lse, blocks * BLOCK}, {&r->delta, blocks * BLOCK});
}

/* s becomes p, and ds (as it comes: v do^T) becomes ds, for one panel of queries. Rows past its
 * last key that groups of keys and neighbouring panels read are zeros. */
static void slopes(float *s, float *ds, int64_t seen, const float *lse, const float *delta)
{
    for (int64_t k = 0; k < seen; k++)
#pragma GCC unroll 4
        for (int i = 0; i < N; i += LL_LANES) {
            float *x = s + k * BLOCK + i, *y = ds + k * BLOCK + i;
            ll_vec p = ll_vec_exp(ll_vec_at(x) - ll_vec_at(lse + i));
            ll_vec_to(x, p);
            ll_vec_to(y, p * (ll_vec_at(y) - ll_vec_at(delta + i)));
        }
    for (int64_t k = seen; k < BLOCK && k < seen + M; k++)
        for (int i = 0; i < N; i++) s[k * BLOCK + i] = ds[k * BLOCK + i] = 0;
}

/* One block of queries (from i on) against one block of keys (from j on). */
static void add_pair(const ll_att *p, const room *r, const float *mask, int64_t i, int64_t j)
{
    int64_t queries = p->t - i < BLOCK ? p->t - i : BLOCK, ahead = i + p->ahead - j;
    int64_t keys = p->s - j < BLOCK ? p->s - j : BLOCK;
    int64_t d = ll_att_width(p->d), e = ll_att_width(p->e);
    ll_att_scores(p->d, r->k + j * d, r->qt + i * d, keys, queries, ahead, r->s);
    ll_att_scores(p->e, r->v + j * e, r->gt + i * e, keys, queries, ahead, r->ds);
    for (int64_t q = 0; q < queries; q += N) {
        const float *at = mask ? mask + (i + q) * p->by[3] + j * p->by[4] : NULL;
        ll_att_mask(p, at, queries, r->s + q, keys, q, ahead);
        slopes(r->s + q, r->ds + q, ll_att_seen(keys, q, ahead), r->lse + i + q, r->delta + i + q);
    }
    ll_att_spread(p->e, r->s, r->g + i * e, keys, queries, ahead, r->dv + j * e);
    ll_att_spread(p->d, r->ds, r->q + i * d, keys, queries, ahead, r->dk + j * d);
    ll_att_gather(p->d, r->ds, BLOCK, r->k + j * d, keys, queries, ahead, r->dq + i * d);
}

/* Head h of all of them. */
static void prepare(const ll_att *p, const float *queries, const room *r, const ll_att_grads *f,
                    int64_t h)
{
    int64_t first = ll_att_out(p, h);
    const float *g = (const float *)f->g + first, *o = f->o ? (const float *)f->o + first : NULL;
    int64_t d = ll_att_width(p->d), e = ll_att_width(p->e), stride = p->h * p->e;
    ll_att_pack(p->t, p->d, queries, p->q_row, (float)p->scale, r->q);
    ll_att_pack(p->t, p->e, g, stride, 1, r->g);
    for (int64_t i = 0; i < p->t; i += BLOCK) {
        int64_t n = p->t - i < BLOCK ? p->t - i : BLOCK;
        ll_att_transpose(p->d, r->q + i * d, d, n, 1, r->qt + i * d);
        ll_att_transpose(p->e, r->g + i * e, e, n, 1, r->gt + i * e);
        memset(r->lse + i, 0, BLOCK * sizeof(float));
        memset(r->delta + i, 0, BLOCK * sizeof(float));
    }
    for (int64_t i = 0; i < p->t; i++) {
        float sum = o ? 0 : f->delta[h * p->t + i];
#pragma omp simd reduction(+ : sum)
        for (int64_t k = 0; k < (o ? p->e : 0); k++) sum += g[i * stride + k] * o[i * stride + k];
        r->delta[i] = sum;
        r->lse[i] = f->lse[h * p->t + i];
    }
    memset(r->dq, 0, (size_t)(in_tiles(p->t) * d) * sizeof(float));
}

/* Rows of x [n, width] to rows of the result. */
static void put(const float *x, int64_t n, int64_t d, float by, float *to, int64_t stride)
{
    for (int64_t i = 0; i < n; i++) {
#pragma omp simd
        for (int64_t e = 0; e < d; e++) to[i * stride + e] = x[i * ll_att_width(d) + e] * by;
    }
}

/* Heads that share head n of all b n heads of keys. */
static void one_group(const ll_att *p, const room *r, const ll_att_grads *f, int64_t n)
{
    int64_t group = p->h / p->n, d = ll_att_width(p->d), e = ll_att_width(p->e);
    ll_att_head x = ll_att_head_of(p, n * group);
    ll_att_pack(p->s, p->d, (const float *)p->k + x.k, p->k_row, 1, r->k);
    ll_att_pack(p->s, p->e, (const float *)p->v + x.v, p->v_row, 1, r->v);
    memset(r->dk, 0, (size_t)(in_tiles(p->s) * d) * sizeof(float));
    memset(r->dv, 0, (size_t)(in_tiles(p->s) * e) * sizeof(float));
    for (int64_t h = n * group; h < (n + 1) * group; h++) {
        x = ll_att_head_of(p, h);
        prepare(p, (const float *)p->q + x.q, r, f, h);
        for (int64_t j = 0; j < p->s; j += BLOCK) {
            int64_t first = j > p->ahead ? (j - p->ahead) / BLOCK * BLOCK : 0;
            for (int64_t i = first; i < p->t; i += BLOCK) add_pair(p, r, x.mask, i, j);
        }
        put(r->dq, p->t, p->d, (float)p->scale, (float *)f->dq + x.q, p->q_row);
    }
    put(r->dk, p->s, p->d, 1, (float *)f->dk + x.k, p->k_row);
    put(r->dv, p->s, p->e, 1, (float *)f->dv + x.v, p->v_row);
}

void ll_att_grad_part(const void *job, int number, int64_t from, int64_t to)
{
    const ll_att_job *j = (const ll_att_job *)job;
    room r = {0};
    size_t floats = lay_out(j->p, NULL, &r);
    lay_out(j->p, (float *)j->c->scratch + floats * (size_t)number, &r);
    for (int64_t n = from; n < to; n++) one_group(j->p, &r, j->f, n);
}

size_t ll_att_grad_room(const ll_att *p)
{
    room r;
    return lay_out(p, NULL, &r);
}
