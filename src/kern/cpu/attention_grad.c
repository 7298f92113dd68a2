/* attention_grad.c: the gradient of causal attention of f32 (see attention.h for the layout).
 *
 * For a block of keys, the blocks of queries from the diagonal on:
 *   p  = exp(s - lse)              s = k q^T / sqrt(d), as the forward kernel had it
 *   ds = p (v do^T - delta)        delta = sum over d of do o
 *   dv += p do,  dk += ds q,  dq += ds^T k
 * dk and dv of the block are done after its last block of queries; dq gathers over all of them. */
#include "kern/cpu/attention.h"

#include "kern/cpu/row.h"
#include "kern/cpu/vec.h"

#include <math.h>
#include <omp.h>

ll_kernel attention_grad_cpu;
ll_scratch attention_grad_cpu_scratch;

enum { BLOCK = LL_ATT_BLOCK, M = LL_ATT_M, N = LL_ATT_N };

typedef struct room {
    float *q, *k, *v, *g; /* [t, width]; q scaled by 1/sqrt(d); g: do */
    float *dq;            /* [t, width] */
    float *qt, *gt;       /* [blocks, d, BLOCK] */
    float *s, *ds;        /* [BLOCK, BLOCK] */
    float *dk, *dv;       /* [BLOCK, width] */
    float *lse, *delta;   /* [t], to whole blocks */
} room;

/* Lays out a room from `at` on (NULL: only measures); returns its floats. */
static size_t lay_out(const ll_att_head *p, float *at, room *r)
{
    int64_t blocks = (p->t + BLOCK - 1) / BLOCK;
    int64_t rows = (p->t + M - 1) / M * M * p->width, turned = blocks * p->width * BLOCK;
    struct {
        float **place;
        int64_t size;
    } parts[] = {{&r->q, rows},
                 {&r->k, rows},
                 {&r->v, rows},
                 {&r->g, rows},
                 {&r->dq, rows},
                 {&r->qt, turned},
                 {&r->gt, turned},
                 {&r->s, BLOCK * BLOCK},
                 {&r->ds, BLOCK * BLOCK},
                 {&r->dk, BLOCK * p->width},
                 {&r->dv, BLOCK * p->width},
                 {&r->lse, blocks * BLOCK},
                 {&r->delta, blocks * BLOCK}};
    size_t n = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (at) *parts[i].place = at + n;
        n += (size_t)(parts[i].size + 15) / 16 * 16;
    }
    return n;
}

/* s becomes p, and ds (as it comes: v do^T) becomes ds, for one panel of 16 queries. Rows past its
 * last key that groups of keys and neighbouring panels read are zeros. */
static void slopes(float *s, float *ds, int64_t keys, int64_t q, int64_t ahead, const float *lse,
                   const float *delta)
{
    int64_t seen = ll_att_seen(keys, q, ahead);
    ll_att_mask(s, keys, q, ahead);
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
static void add_pair(const ll_att_head *p, const room *r, int64_t i, int64_t j, int64_t keys)
{
    int64_t queries = p->t - i < BLOCK ? p->t - i : BLOCK, ahead = i - j, w = p->width;
    ll_att_scores(p, r->k + j * w, r->qt + i * w, keys, queries, ahead, r->s);
    ll_att_scores(p, r->v + j * w, r->gt + i * w, keys, queries, ahead, r->ds);
    for (int64_t q = 0; q < queries; q += N)
        slopes(r->s + q, r->ds + q, keys, q, ahead, r->lse + i + q, r->delta + i + q);
    ll_att_spread(p, r->s, r->g + i * w, keys, queries, ahead, r->dv);
    ll_att_spread(p, r->ds, r->q + i * w, keys, queries, ahead, r->dk);
    ll_att_gather(p, r->ds, r->k + j * w, keys, queries, ahead, r->dq + i * w);
}

static void prepare(const ll_att_head *p, const room *r, const float *g, const float *o,
                    int64_t stride, const float *lse)
{
    int64_t w = p->width;
    ll_att_pack(p, p->q, p->stride, (float)(1 / sqrt((double)p->d)), r->q);
    ll_att_pack(p, p->k, p->stride, 1, r->k);
    ll_att_pack(p, p->v, p->stride, 1, r->v);
    ll_att_pack(p, g, stride, 1, r->g);
    for (int64_t i = 0; i < p->t; i += BLOCK) {
        int64_t n = p->t - i < BLOCK ? p->t - i : BLOCK;
        ll_att_transpose(p, r->q + i * w, w, n, 1, r->qt + i * w);
        ll_att_transpose(p, r->g + i * w, w, n, 1, r->gt + i * w);
        memset(r->lse + i, 0, BLOCK * sizeof(float));
        memset(r->delta + i, 0, BLOCK * sizeof(float));
    }
    for (int64_t i = 0; i < p->t; i++) {
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t e = 0; e < p->d; e++) sum += g[i * stride + e] * o[i * stride + e];
        r->delta[i] = sum;
        r->lse[i] = lse[i];
    }
    memset(r->dq, 0, (size_t)((p->t + M - 1) / M * M * w) * sizeof(float));
}

/* Rows of d [n, width] to rows of the result. */
static void put(const ll_att_head *p, const float *d, int64_t n, float by, float *to)
{
    for (int64_t i = 0; i < n; i++) {
#pragma omp simd
        for (int64_t e = 0; e < p->d; e++) to[i * p->stride + e] = d[i * p->width + e] * by;
    }
}

/* dqkv: where this head's dq starts; dk and dv follow, `part` floats apart. */
static void one_head(const ll_att_head *p, const room *r, float *dqkv, int64_t part)
{
    size_t block = (size_t)(BLOCK * p->width) * sizeof(float);
    for (int64_t j = 0; j < p->t; j += BLOCK) {
        int64_t keys = p->t - j < BLOCK ? p->t - j : BLOCK;
        memset(r->dk, 0, block);
        memset(r->dv, 0, block);
        for (int64_t i = j; i < p->t; i += BLOCK) add_pair(p, r, i, j, keys);
        put(p, r->dk, keys, 1, dqkv + part + j * p->stride);
        put(p, r->dv, keys, 1, dqkv + 2 * part + j * p->stride);
    }
    put(p, r->dq, p->t, (float)(1 / sqrt((double)p->d)), dqkv);
}

ll_err attention_grad_cpu(const ll_kcall *c)
{
    const ll_tensor *qkv = &c->in[1];
    int64_t t = qkv->shape.d[1], h = qkv->shape.d[3], d = qkv->shape.d[4];
    int64_t heads = qkv->shape.d[0] * h;
    int team = ll_team(c, heads * t * t * d);
#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t n = 0; n < heads; n++) {
        room r = {0};
        ll_att_head p = ll_att_head_of(qkv, n);
        size_t floats = lay_out(&p, NULL, &r);
        lay_out(&p, (float *)c->scratch + floats * (size_t)omp_get_thread_num(), &r);
        int64_t at = n / h * t * h * d + n % h * d;
        prepare(&p, &r, (const float *)c->in[0].data + at, (const float *)c->in[2].data + at, h * d,
                (const float *)c->in[3].data + n * t);
        one_head(&p, &r, (float *)c->out[0].data + (p.q - (const float *)qkv->data), h * d);
    }
    return LL_OK;
}

size_t attention_grad_cpu_scratch(const ll_kcall *c)
{
    room r;
    ll_att_head p = ll_att_head_of(&c->in[1], 0);
    return lay_out(&p, NULL, &r) * sizeof(float) * (size_t)(c->threads < 1 ? 1 : c->threads);
}
