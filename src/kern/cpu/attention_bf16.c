/* attention_bf16.c: attention of bf16 operands, forward and gradient, as products of blocks.
 *
 * A block of queries at a time, against all keys that it sees: the scores of one head's block are
 * rows of f32, and what softmax makes of them rows of bf16 again, so that every product is one of
 * gemm.h: on the CPU's own bf16 tiles where it has them. Products are then a small part of the
 * work, exponentials the most. Sums are f32, as are lse, delta and the mask.
 *   forward   s = q k^T,  p = exp(scale s + mask - top),  o = p v / sum of p
 *   gradient  p = exp(scale s + mask - lse),  ds = p (do v^T - delta),
 *             dv += p^T do,  dk += ds^T q,  dq = ds k
 * Blocks of one head are worked in order by one thread: the thread count changes nothing. */
#include "kern/cpu/attention.h"

#include "base/num.h"
#include "kern/attr.h"
#include "kern/cpu/gemm.h"
#include "kern/cpu/vec.h"

#include <math.h>

enum { LANES = LL_LANES, SCORES = 64 * 1024, MOST_QUERIES = 64, FEWEST_QUERIES = 16 };
typedef uint16_t half; /* the bits of a bf16 */
typedef half half_vec __attribute__((vector_size(LL_VECTOR / 2), aligned(2), may_alias));
typedef uint32_t word_vec __attribute__((vector_size(LL_VECTOR), aligned(4), may_alias));

/* To the nearest, ties to even; of numbers, not of NaNs that have low bits alone. */
static inline void put_half(half *to, ll_vec v)
{
    word_vec w = (word_vec)v;
    w += 0x7fff + (w >> 16 & 1);
    *(half_vec *)to = __builtin_convertvector(w >> 16, half_vec);
}

/* to = x by */
static void put_row(const float *x, int64_t n, float by, half *to)
{
    int64_t e = 0;
    for (; e + LANES <= n; e += LANES) put_half(to + e, ll_vec_at(x + e) * by);
    for (; e < n; e++) to[e] = ll_f32_to_bf16(x[e] * by);
}

/* ---- room: one thread's ---- */

typedef struct room {
    int64_t block, width; /* queries at once; keys, to whole lines */
    float *s, *ds;        /* [block, width]: scores, and do v^T */
    half *p, *dp;         /* [block, width] in bf16 */
    float *o;             /* [block, d or e]: o, or dq */
    float *dk, *dv;       /* [keys, d], [keys, e] */
    float *inverse;       /* [block]: 1 / sum of p */
    void *gemm;
} room;

/* The largest product's scratch serves all: bf16 is packed whatever its strides. */
static size_t gemm_room(const ll_att *p, int64_t block, int64_t width)
{
    int64_t most = ll_max64(ll_max64(block, width), ll_max64(p->d, p->e));
    ll_gemm_call g = {.m = most, .n = most, .k = most, .bf16 = true, .c_rs = most, .c_cs = 1};
    g.a_rs = g.b_rs = most, g.a_cs = g.b_cs = 1;
    return ll_gemm_serial_scratch(&g);
}

/* Lays out a room from `at` on (NULL: only measures); returns its floats. */
static size_t lay_out(const ll_att *p, bool grad, float *at, room *r)
{
    r->width = ll_round_up(ll_max64(p->s, 1), 32);
    r->block = ll_round_up(ll_min64(p->t, SCORES / r->width), FEWEST_QUERIES);
    r->block = ll_max64(FEWEST_QUERIES, ll_min64(r->block, MOST_QUERIES));
    int64_t scores = r->block * r->width, more = grad ? scores : 0, keys = grad ? p->s : 0;
    int64_t gemm = (int64_t)(gemm_room(p, r->block, r->width) / sizeof(float));
    return LL_ATT_LAY_OUT(at, {&r->s, scores}, {&r->ds, more}, {&r->p, scores / 2},
                          {&r->dp, more / 2}, {&r->o, r->block * ll_max64(p->d, p->e)},
                          {&r->dk, keys * p->d}, {&r->dv, keys * p->e}, {&r->inverse, r->block},
                          {&r->gemm, gemm});
}

size_t ll_att_bf16_room(const ll_att *p, bool grad)
{
    room r;
    return lay_out(p, grad, NULL, &r);
}

/* ---- one block of queries ---- */

typedef struct block {
    const ll_att *p;
    const room *r;
    int64_t i, n, keys; /* queries [i, i + n) see keys [0, keys) or some of them */
    const half *q, *k, *v;
    const float *mask; /* of query i, key 0; NULL: none */
} block;

static block block_of(const ll_att *p, const room *r, int64_t head, int64_t i)
{
    ll_att_head h = ll_att_head_of(p, head);
    block x = {.p = p, .r = r, .i = i, .n = ll_min64(r->block, p->t - i)};
    x.keys = ll_max64(0, ll_min64(p->s, i + x.n + p->ahead));
    x.q = (const half *)p->q + h.q + i * p->q_row;
    x.k = (const half *)p->k + h.k;
    x.v = (const half *)p->v + h.v;
    if (h.mask) x.mask = h.mask + i * p->by[3];
    return x;
}

/* to [n, width] = a [n, depth] b^T, b [keys, depth]. */
static void across(const block *x, const half *a, int64_t a_row, const half *b, int64_t b_row,
                   int64_t depth, float *to)
{
    ll_gemm_call g = {.m = x->n, .n = x->keys, .k = depth, .bf16 = true, .scratch = x->r->gemm};
    g.a = a, g.a_rs = a_row, g.a_cs = 1;
    g.b = b, g.b_rs = 1, g.b_cs = b_row;
    g.c = to, g.c_rs = x->r->width, g.c_cs = 1;
    ll_gemm_serial(&g);
}

/* to [n, columns] = a b, of a [n, keys], b [keys, columns]; or, of the keys, to [keys, columns] +=
 * a^T b, b [n, columns]. */
static void times(const block *x, const half *a, bool of_keys, const half *b, int64_t b_row,
                  int64_t columns, float *to)
{
    int64_t width = x->r->width;
    ll_gemm_call g = {.n = columns, .bf16 = true, .add = of_keys, .scratch = x->r->gemm};
    g.m = of_keys ? x->keys : x->n, g.k = of_keys ? x->n : x->keys;
    g.a = a, g.a_rs = of_keys ? 1 : width, g.a_cs = of_keys ? width : 1;
    g.b = b, g.b_rs = b_row, g.b_cs = 1;
    g.c = to, g.c_rs = columns, g.c_cs = 1;
    ll_gemm_serial(&g);
}

/* How many keys query q of the block sees. */
static int64_t seen_by(const block *x, int64_t q)
{
    return ll_max64(0, ll_min64(x->keys, x->i + q + x->p->ahead + 1));
}

/* Scores of query q: scaled, with the mask's numbers, and -inf from `seen` to whole vectors, which
 * there is room for. */
static float *finish_scores(const block *x, int64_t q, int64_t seen)
{
    float *s = x->r->s + q * x->r->width, scale = (float)x->p->scale;
    const float *mask = x->mask ? x->mask + q * x->p->by[3] : NULL;
#pragma omp simd
    for (int64_t k = 0; k < seen; k++) s[k] *= scale;
    for (int64_t k = 0; mask && k < seen; k++) s[k] += mask[k * x->p->by[4]];
    for (int64_t k = seen; k % LANES; k++) s[k] = -INFINITY;
    return s;
}

/* ---- forward ---- */

static float lanes_sum(ll_vec v)
{
    float sum = 0;
    for (int i = 0; i < LANES; i++) sum += v[i];
    return sum;
}

/* p of query q, and zeros after it; returns its sum. */
static float softmax(const block *x, int64_t q, float *top)
{
    int64_t seen = seen_by(x, q);
    float *s = finish_scores(x, q, seen), most = LL_ATTEND_NONE;
    half *p = x->r->p + q * x->r->width;
    ll_vec m = ll_vec_all(LL_ATTEND_NONE), sum = ll_vec_all(0);
    for (int64_t k = 0; k < seen; k += LANES) m = ll_vec_max(ll_vec_at(s + k), m);
    for (int i = 0; i < LANES; i++) most = m[i] > most ? m[i] : most;
    for (int64_t k = 0; k < seen; k += LANES) {
        ll_vec e = ll_vec_exp(ll_vec_at(s + k) - most);
        sum += e;
        put_half(p + k, e);
    }
    for (int64_t k = ll_round_up(seen, LANES); k < x->keys; k++) p[k] = 0;
    *top = most;
    return lanes_sum(sum);
}

/* A query that sees no key, or keys of -inf alone, gives zeros and LL_ATTEND_NONE. */
static void one_head(const ll_att *p, const room *r, int64_t head, half *o, float *lse)
{
    for (int64_t i = 0; i < p->t; i += r->block) {
        block x = block_of(p, r, head, i);
        across(&x, x.q, p->q_row, x.k, p->k_row, p->d, r->s);
        for (int64_t q = 0; q < x.n; q++) {
            float sum = softmax(&x, q, &lse[i + q]);
            lse[i + q] = (float)((double)lse[i + q] + (sum > 0 ? log((double)sum) : 0));
            r->inverse[q] = sum > 0 ? 1 / sum : 0;
        }
        times(&x, r->p, false, x.v, p->v_row, p->e, r->o);
        for (int64_t q = 0; q < x.n; q++)
            put_row(r->o + q * p->e, p->e, r->inverse[q], o + (i + q) * p->h * p->e);
    }
}

void ll_att_bf16_part(const void *job, int number, int64_t from, int64_t to)
{
    const ll_att_job *j = (const ll_att_job *)job;
    const ll_att *p = j->p;
    room r;
    size_t floats = lay_out(p, false, NULL, &r);
    lay_out(p, false, (float *)j->c->scratch + floats * (size_t)number, &r);
    for (int64_t n = from; n < to; n++)
        one_head(p, &r, n, (half *)j->c->out[0].data + ll_att_out(p, n),
                 (float *)j->c->out[1].data + n * p->t);
}

/* ---- gradient ---- */

/* p and ds of query q, and zeros after them. */
static void slopes(const block *x, int64_t q, float lse, float delta)
{
    int64_t seen = seen_by(x, q), at = q * x->r->width;
    const float *s = finish_scores(x, q, seen), *dp = x->r->ds + at;
    half *p = x->r->p + at, *ds = x->r->dp + at;
    for (int64_t k = 0; k < seen; k += LANES) {
        ll_vec e = ll_vec_exp(ll_vec_at(s + k) - lse), slope = e * (ll_vec_at(dp + k) - delta);
        put_half(p + k, e);
        /* beyond the last key dp is of any content */
        put_half(ds + k, ll_vec_pick((ll_ivec)(e == 0), ll_vec_all(0), slope));
    }
    for (int64_t k = ll_round_up(seen, LANES); k < x->keys; k++) p[k] = ds[k] = 0;
}

static void put(const float *x, int64_t n, int64_t d, float by, half *to, int64_t stride)
{
    for (int64_t i = 0; i < n; i++) put_row(x + i * d, d, by, to + i * stride);
}

/* One head's queries; g, o: of its first. */
static void one_query_head(const ll_att *p, const room *r, const ll_att_grads *f, int64_t head)
{
    int64_t row = p->h * p->e, first = ll_att_out(p, head), to = ll_att_head_of(p, head).q;
    const half *g = (const half *)f->g + first, *o = f->o ? (const half *)f->o + first : NULL;
    const float *lse = f->lse + head * p->t;
    const float *delta = o ? NULL : f->delta + head * p->t;
    for (int64_t i = 0; i < p->t; i += r->block) {
        block x = block_of(p, r, head, i);
        const half *dout = g + i * row;
        across(&x, x.q, p->q_row, x.k, p->k_row, p->d, r->s);
        across(&x, dout, row, x.v, p->v_row, p->e, r->ds);
        for (int64_t q = 0; q < x.n; q++) {
            float sum = o ? 0 : delta[i + q];
#pragma omp simd reduction(+ : sum)
            for (int64_t e = 0; e < (o ? p->e : 0); e++)
                sum += ll_bf16_to_f32(dout[q * row + e]) * ll_bf16_to_f32(o[(i + q) * row + e]);
            slopes(&x, q, lse[i + q], sum);
        }
        times(&x, r->p, true, dout, row, p->e, r->dv);
        times(&x, r->dp, true, x.q, p->q_row, p->d, r->dk);
        times(&x, r->dp, false, x.k, p->k_row, p->d, r->o);
        put(r->o, x.n, p->d, (float)p->scale, (half *)f->dq + to + i * p->q_row, p->q_row);
    }
}

/* Heads that share head n of all b n heads of keys. */
static void one_group(const ll_att *p, const room *r, const ll_att_grads *f, int64_t n)
{
    int64_t group = p->h / p->n;
    ll_att_head x = ll_att_head_of(p, n * group);
    memset(r->dk, 0, (size_t)(p->s * p->d) * sizeof(float));
    memset(r->dv, 0, (size_t)(p->s * p->e) * sizeof(float));
    for (int64_t h = n * group; h < (n + 1) * group; h++) one_query_head(p, r, f, h);
    put(r->dk, p->s, p->d, (float)p->scale, (half *)f->dk + x.k, p->k_row);
    put(r->dv, p->s, p->e, 1, (half *)f->dv + x.v, p->v_row);
}

void ll_att_bf16_grad_part(const void *job, int number, int64_t from, int64_t to)
{
    const ll_att_job *j = (const ll_att_job *)job;
    room r;
    size_t floats = lay_out(j->p, true, NULL, &r);
    lay_out(j->p, true, (float *)j->c->scratch + floats * (size_t)number, &r);
    for (int64_t n = from; n < to; n++) one_group(j->p, &r, j->f, n);
}
