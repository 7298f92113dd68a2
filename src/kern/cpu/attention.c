/* attention.c: causal attention of f32, forward (see attention.h for the layout).
 *
 * For a block of queries, keys come block by block up to the diagonal. m holds each query's largest
 * score so far and l the sum of exp(s - m); when a block raises m, what was summed before shrinks
 * by exp(old m - new m) (online softmax: Milakov, Gimelshein 2018; tiled as in Dao et al. 2022).
 * Blocks of one head are worked in order by one thread: the thread count changes nothing. */
#include "kern/cpu/attention.h"

#include "kern/attr.h"
#include "kern/cpu/row.h"
#include "kern/cpu/vec.h"
#include "kern/rows.h"

#include <math.h>
#include <omp.h>

ll_kernel attention_cpu, causal_mask_cpu;
ll_scratch attention_cpu_scratch;

enum { BLOCK = LL_ATT_BLOCK, M = LL_ATT_M, N = LL_ATT_N, VECTORS = N / LL_LANES };

/* One thread's room; rows padded to whole groups, as tiles write them. */
typedef struct room {
    float *k, *v; /* [t, width] */
    float *qt;    /* [d, BLOCK] */
    float *s;     /* [BLOCK, BLOCK] */
    float *o;     /* [BLOCK, width] */
    float *m, *l; /* [BLOCK] */
} room;

static size_t room_floats(const ll_att_head *p)
{
    int64_t rows = (p->t + M - 1) / M * M;
    int64_t n = 2 * rows * p->width + p->width * BLOCK + BLOCK * BLOCK + BLOCK * p->width;
    return (size_t)((n + 2 * BLOCK + 15) / 16 * 16);
}

static room room_at(const ll_att_head *p, float *at)
{
    int64_t rows = (p->t + M - 1) / M * M * p->width;
    room r = {.k = at, .v = at + rows, .qt = at + 2 * rows};
    r.s = r.qt + p->width * BLOCK;
    r.o = r.s + BLOCK * BLOCK;
    r.m = r.o + BLOCK * p->width;
    r.l = r.m + BLOCK;
    return r;
}

/* Masks, maxima and exponentials of one panel of 16 queries; shrink: by how much earlier sums
 * shrink. Rows of s that a neighbouring panel's products read past this one's last key are zeros.
 */
static void softmax_panel(float *s, int64_t keys, int64_t q, int64_t ahead, float *m, float *l,
                          float *shrink)
{
    int64_t seen = ll_att_seen(keys, q, ahead);
    ll_vec top[VECTORS], sum[VECTORS];
    ll_att_mask(s, keys, q, ahead);
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
static void add_keys(const ll_att_head *p, const room *r, int64_t from, int64_t keys,
                     int64_t queries, int64_t ahead)
{
    float shrink[BLOCK];
    ll_att_scores(p, r->k + from * p->width, r->qt, keys, queries, ahead, r->s);
    for (int64_t q = 0; q < queries; q += N)
        softmax_panel(r->s + q, keys, q, ahead, r->m + q, r->l + q, shrink + q);
    for (int64_t q = 0; q < queries && from > 0; q++)
        for (int64_t e = 0; e < p->width; e++) r->o[q * p->width + e] *= shrink[q];
    ll_att_gather(p, r->s, r->v + from * p->width, keys, queries, ahead, r->o);
}

static void one_head(const ll_att_head *p, const room *r, float *o, int64_t stride, float *lse)
{
    float by = (float)(1 / sqrt((double)p->d));
    ll_att_pack(p, p->k, p->stride, 1, r->k);
    ll_att_pack(p, p->v, p->stride, 1, r->v);
    for (int64_t i = 0; i < p->t; i += BLOCK) {
        int64_t queries = p->t - i < BLOCK ? p->t - i : BLOCK;
        ll_att_transpose(p, p->q + i * p->stride, p->stride, queries, by, r->qt);
        for (int64_t q = 0; q < BLOCK; q++) r->m[q] = -INFINITY, r->l[q] = 0;
        memset(r->o, 0, (size_t)(BLOCK * p->width) * sizeof(float));
        for (int64_t j = 0; j < i + queries; j += BLOCK) {
            int64_t keys = i + queries - j < BLOCK ? i + queries - j : BLOCK;
            add_keys(p, r, j, keys, queries, i - j);
        }
        for (int64_t q = 0; q < queries; q++) {
            float *to = o + (i + q) * stride, inverse = 1 / r->l[q];
#pragma omp simd
            for (int64_t e = 0; e < p->d; e++) to[e] = r->o[q * p->width + e] * inverse;
            lse[i + q] = (float)((double)r->m[q] + log((double)r->l[q]));
        }
    }
}

ll_err attention_cpu(const ll_kcall *c)
{
    const ll_tensor *qkv = &c->in[0];
    int64_t t = qkv->shape.d[1], h = qkv->shape.d[3], d = qkv->shape.d[4];
    int64_t heads = qkv->shape.d[0] * h;
    int team = ll_team(c, heads * t * t * d);
#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t n = 0; n < heads; n++) {
        ll_att_head p = ll_att_head_of(qkv, n);
        room r = room_at(&p, (float *)c->scratch + room_floats(&p) * (size_t)omp_get_thread_num());
        one_head(&p, &r, (float *)c->out[0].data + n / h * t * h * d + n % h * d, h * d,
                 (float *)c->out[1].data + n * t);
    }
    return LL_OK;
}

size_t attention_cpu_scratch(const ll_kcall *c)
{
    ll_att_head p = ll_att_head_of(&c->in[0], 0);
    return room_floats(&p) * sizeof(float) * (size_t)(c->threads < 1 ? 1 : c->threads);
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
