/* sparse_allreduce.c: sums of streams over ranks, in the three forms of SparCML.
 *
 * Doubling. In round l the ranks whose numbers differ in bit l swap all they have and add: log2 p
 * messages, each up to twice as long as the one before. Where p is no power of two, each rank from
 * the largest power q on gives its stream to rank - q first, and is sent the result at the end.
 *
 *     4 ranks    round 0: 0-1 2-3, k pairs each    round 1: 0-2 1-3, up to 2 k pairs each
 *
 * Split. The vector is cut into p parts, owned by a rank each. A rank sends each owner the pairs of
 * its part; the owner adds all of them and sends the sum to everybody. 2 (p - 1) messages, but each
 * pair travels once to its owner, and once to each rank in the sum.
 *
 * Dense. The same, with sums that are dense from the start: where the union of the pairs is most of
 * the vector, pairs would be more bytes than elements.
 *
 * A message of any form is written dense where that is fewer bytes, and a sum of so many pairs that
 * they need more memory than a dense vector becomes one. Every rank ends with the same bits:
 * - doubling: partners add the same two streams, the lower ranks' first. With p a power of two the
 *   order is canonical (sched.h); otherwise it is fixed, but ranks q.. are added to 0.. first.
 * - split, dense: one rank computes each sum, in canonical order.
 *
 * With bits, what is sent is rounded: a rank's own pairs, the sums of an owner, in doubling the
 * sums of a group before each round, by all ranks of the group alike (random numbers depend on
 * element and round, not on the rank). What rounding took away is added to the residual of one
 * rank: that of the pairs, the owner, the lowest of the group. So no part of a gradient is lost,
 * only late. What an owner has itself, and what goes back to ranks q.., is not rounded. */
#include "comm/sparse.h"

#include "base/num.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct ll_sparse {
    int64_t len, k;
    int bits;
    /* Memory for calls of this form on p ranks. */
    ll_arena *arena;
    int p; /* 0: none is made */
    ll_sparse_form form;
    uint8_t *out, *in;
    size_t room; /* of each */
    ll_svec *got;
    ll_svec_head *heads;
    const ll_svec **src;
    ll_svec *parts; /* of my stream, for each owner */
};

/* One call under way. */
typedef struct job {
    ll_sparse *w;
    ll_comm *c;
    const ll_sparse_call *call;
    int p, me;
    int64_t number, bytes;
} job;

const char *ll_sparse_form_name(ll_sparse_form f)
{
    static const char *const names[] = {"auto", "doubling", "split", "dense"};
    return names[f];
}

ll_err ll_sparse_open(int64_t len, int64_t k, int bits, ll_sparse **out)
{
    *out = NULL;
    CHECK(len >= 0 && len < UINT32_MAX && k >= 0 && k <= len, LL_E_ARG,
          "sparse all-reduce of %ld pairs in %ld elements: expected fewer than 2^32 elements, "
          "and no more pairs than elements",
          k, len);
    CHECK(bits == 0 || (bits >= 2 && bits <= 8), LL_E_ARG, "values of %d bits, expected 2 to 8",
          bits);
    ll_sparse *w = (ll_sparse *)calloc(1, sizeof *w);
    CHECK(w, LL_E_MEM, "not enough memory for a sparse all-reduce");
    *w = (ll_sparse){.len = len, .k = k, .bits = bits};
    *out = w;
    return LL_OK;
}

void ll_sparse_close(ll_sparse *w)
{
    if (w) ll_arena_free(w->arena);
    free(w);
}

/* ---- memory ---- */
static bool make(ll_sparse *w, int i, int64_t room, int64_t dense)
{
    ll_svec *s = &w->got[i];
    s->room = room;
    s->index = LL_TRY_ARRAY(w->arena, uint32_t, room + 1);
    s->value = LL_TRY_ARRAY(w->arena, float, room + 1);
    s->dense = dense ? LL_TRY_ARRAY(w->arena, float, dense) : NULL;
    return s->index && s->value && (s->dense || !dense);
}

/* Sums of parts of at most len: how many pairs they may have, and the bytes of a message. */
static int64_t sum_pairs(const ll_sparse *w, int p, int64_t len)
{
    return ll_min64(p * w->k, ll_svec_most(len));
}

static size_t sum_bytes(const ll_sparse *w, int p, int64_t len, bool dense, int bits)
{
    if (dense || p * w->k > ll_svec_most(len)) return ll_svec_dense_bytes(len, bits);
    return ll_svec_bound(len, p * w->k, bits, NULL);
}

/* got[0..p-2]: streams of the others; got[p-1]: my sum, and then those of others, whose dense form
 * is in the result. */
static bool make_split(ll_sparse *w, int p, bool dense)
{
    int64_t len = ll_ceil_div(w->len, p), most = ll_min64(w->k, len);
    bool may_be_dense, ok = true;
    w->room = ll_svec_bound(len, most, w->bits, NULL);
    ll_svec_bound(w->len < p ? 1 : w->len / p, most, w->bits, &may_be_dense); /* a shortest part */
    dense = dense || may_be_dense; /* one dense stream makes the sum dense */
    w->room = ll_max64(w->room, sum_bytes(w, p, len, dense, w->bits));
    for (int i = 0; ok && i < p - 1; i++) ok = make(w, i, most, may_be_dense ? len : 0);
    return ok && make(w, p - 1, sum_pairs(w, p, len), 0);
}

/* got[0]: the partner's; got[1], got[2]: sums. */
static bool make_doubling(ll_sparse *w, int p)
{
    int64_t room = sum_pairs(w, p, w->len);
    bool own, sums, ok = true;
    w->room = ll_max64(ll_svec_bound(w->len, w->k, w->bits, &own),
                       ll_svec_bound(w->len, room, w->bits, &sums));
    bool dense = own || sums || p * w->k > room;
    w->room = ll_max64(w->room, sum_bytes(w, p, w->len, dense, w->bits));
    w->room = ll_max64(w->room, sum_bytes(w, p, w->len, dense, 0));
    for (int i = 0; ok && i < 3; i++)
        ok = make(w, i, room > w->k ? room : w->k, dense ? w->len : 0);
    return ok;
}

static ll_err prepare(ll_sparse *w, int p, ll_sparse_form form)
{
    if (w->p == p && w->form == form) return LL_OK;
    ll_arena_free(w->arena);
    *w = (ll_sparse){.len = w->len, .k = w->k, .bits = w->bits, .arena = ll_arena_new()};
    LL_ARRAYS(w->arena, 2 * p + 4, w->got, w->heads, w->src, w->parts);
    bool ok = form == LL_SPARSE_DOUBLING ? make_doubling(w, p)
                                         : make_split(w, p, form == LL_SPARSE_DENSE);
    w->out = LL_TRY_ARRAY(w->arena, uint8_t, w->room);
    w->in = LL_TRY_ARRAY(w->arena, uint8_t, w->room);
    CHECK(ok && w->out && w->in, LL_E_MEM,
          "not enough memory for a sparse all-reduce of %ld in %ld elements on %d ranks", w->k,
          w->len, p);
    w->p = p;
    w->form = form;
    return LL_OK;
}

/* ---- both ---- */
/* How things sent in a round are written; base: the part's first element; own: they are this rank's
 * own, so that what rounding takes away is this rank's error. */
static ll_svec_code coding(const job *j, int round, int64_t base, bool give_back, bool own)
{
    return (ll_svec_code){.bits = j->w->bits,
                          .seed = j->call->seed,
                          .stream = j->call->stream + 0x9E3779B97F4A7C15u * (uint64_t)round,
                          .base = base,
                          .residual = give_back ? j->call->residual : NULL,
                          .lost2 = own ? j->call->lost2 : NULL};
}

/* Sends what is in out to one rank and has another's in in. */
static ll_err swap(job *j, int to, size_t size, int from, size_t *received)
{
    const ll_exchange x = {j->number, to, from, j->w->out, size, j->w->in, j->w->room};
    TRY(ll_comm_exchange(j->c, &x, received));
    if (to >= 0) j->bytes += (int64_t)size;
    return LL_OK;
}

static void scatter(const ll_svec *s, float *data)
{
    if (s->is_dense) {
        if (s->dense != data && s->len) memcpy(data, s->dense, sizeof(float) * (size_t)s->len);
        return;
    }
    for (int64_t i = 0; i < s->count; i++) data[s->index[i]] = s->value[i];
}

/* ---- split and dense ---- */
/* The pairs of part q, with indices from its first element; *at: where its pairs begin in mine, and
 * then those of the next part. */
static ll_svec cut(const job *j, int q, int64_t *at)
{
    ll_svec *m = j->call->mine;
    int64_t from, to, first = *at;
    ll_share(m->len, j->p, q, &from, &to);
    for (; *at < m->count && m->index[*at] < to; ++*at) m->index[*at] -= (uint32_t)from;
    return (ll_svec){.len = to - from,
                     .count = *at - first,
                     .index = m->index + first,
                     .value = m->value + first,
                     .room = *at - first};
}

static ll_err split_in(job *j, ll_svec *sum)
{
    ll_sparse *w = j->w;
    int64_t from, to;
    size_t received;
    w->src[j->me] = &w->parts[j->me];
    for (int s = 1; s < j->p; s++) {
        int dst = (j->me + s) % j->p, src = (j->me - s + j->p) % j->p;
        ll_svec *got = &w->got[s - 1];
        ll_share(w->len, j->p, dst, &from, &to);
        ll_svec_code code = coding(j, 0, from, true, true);
        size_t size = ll_svec_write(&w->parts[dst], &code, w->out);
        TRY(swap(j, dst, size, src, &received));
        got->len = sum->len;
        TRY(ll_svec_read(w->in, received, w->bits, got));
        w->src[src] = got;
    }
    return ll_svec_sum(w->src, j->p, w->form == LL_SPARSE_DENSE, w->heads, sum);
}

static ll_err split_out(job *j, ll_svec *sum, int64_t base)
{
    ll_sparse *w = j->w;
    ll_svec_code code = coding(j, 1, base, true, false);
    size_t size = ll_svec_write(sum, &code, w->out), received;
    scatter(sum, j->call->data + base);
    for (int s = 1; s < j->p; s++) {
        int dst = (j->me + s) % j->p, src = (j->me - s + j->p) % j->p;
        int64_t from, to;
        ll_share(w->len, j->p, src, &from, &to);
        ll_svec other = w->got[j->p - 1];
        other.len = to - from;
        other.dense = j->call->data + from;
        TRY(swap(j, dst, size, src, &received));
        TRY(ll_svec_read(w->in, received, w->bits, &other));
        scatter(&other, other.dense);
    }
    return LL_OK;
}

static ll_err split(job *j)
{
    int64_t at = 0, from, to;
    for (int q = 0; q < j->p; q++) j->w->parts[q] = cut(j, q, &at);
    ll_share(j->w->len, j->p, j->me, &from, &to);
    ll_svec sum = j->w->got[j->p - 1];
    sum.len = to - from;
    sum.dense = j->call->data + from;
    TRY(split_in(j, &sum));
    return split_out(j, &sum, from);
}

/* ---- doubling ---- */
/* *mine = lower + upper, in the sum that is free; dense where one of them went over the wire so,
 * for partners must agree on it: rounding depends on it. */
static ll_err add(job *j, const ll_svec *lower, const ll_svec *upper, bool dense, ll_svec **mine)
{
    ll_sparse *w = j->w;
    ll_svec *free_sum = *mine == &w->got[1] ? &w->got[2] : &w->got[1];
    free_sum->len = w->len;
    w->src[0] = lower;
    w->src[1] = upper;
    TRY(ll_svec_sum(w->src, 2, dense, w->heads, free_sum));
    *mine = free_sum;
    return LL_OK;
}

static ll_err doubling(job *j)
{
    ll_sparse *w = j->w;
    ll_svec *mine = j->call->mine, *got = &w->got[0];
    ll_svec_code exact = {0}, code = coding(j, 0, 0, true, true);
    size_t received;
    int q = ll_tree_split(j->p + 1), me = j->me; /* the largest power of two up to p */
    got->len = w->len;
    if (me >= q) { /* one too many: gives away, and gets the result */
        TRY(swap(j, me - q, ll_svec_write(mine, &code, w->out), -1, NULL));
        TRY(swap(j, -1, 0, me - q, &received));
        TRY(ll_svec_read(w->in, received, 0, got));
        scatter(got, j->call->data);
        return LL_OK;
    }
    if (me + q < j->p) {
        TRY(swap(j, -1, 0, me + q, &received));
        TRY(ll_svec_read(w->in, received, w->bits, got));
        TRY(add(j, mine, got, got->is_dense, &mine));
    }
    for (int l = 0; 1 << l < q; l++) {
        int peer = me ^ 1 << l;
        code = coding(j, 1 + l, 0, (me & ((1 << l) - 1)) == 0, mine == j->call->mine);
        TRY(swap(j, peer, ll_svec_write(mine, &code, w->out), peer, &received));
        TRY(ll_svec_read(w->in, received, w->bits, got));
        bool dense = ll_svec_written_dense(w->out) || got->is_dense;
        TRY(add(j, me < peer ? mine : got, me < peer ? got : mine, dense, &mine));
    }
    scatter(mine, j->call->data);
    if (me + q < j->p) TRY(swap(j, me + q, ll_svec_write(mine, &exact, w->out), -1, NULL));
    return LL_OK;
}

/* ---- choice ---- */
ll_sparse_form ll_sparse_choose(int64_t len, int64_t k, int bits, int p, double alpha, double beta,
                                bool canonical)
{
    double n = (double)len, density = len ? (double)k / n : 0, others = p - 1;
    int q = ll_tree_split(p + 1);
    /* Pairs of the sum of m streams, where indices are as good as random. */
    double all = density < 1 ? -n * expm1(p * log1p(-density)) : n, doubling = 0;
    for (int m = 1; m < q; m *= 2) {
        double pairs = density < 1 ? -n * expm1(m * log1p(-density)) : n;
        doubling += alpha + beta * ll_svec_expected(n, pairs, bits);
    }
    if (p > q)
        doubling +=
            2 * alpha + beta * (ll_svec_expected(n, (double)k, bits) + ll_svec_expected(n, all, 0));
    double part = n / p, dense = (double)ll_svec_dense_bytes((int64_t)part, bits);
    double sums = ll_svec_expected(part, all / p, bits);
    double split =
        others *
        (2 * alpha + beta * (ll_svec_expected(part, (double)k / p, bits) + fmin(sums, dense)));
    if (doubling < split && (!canonical || p == q)) return LL_SPARSE_DOUBLING;
    return sums < dense && (double)p * (double)k <= (double)ll_svec_most(len) ? LL_SPARSE_SPLIT
                                                                              : LL_SPARSE_DENSE;
}

/* The same on every rank: from the tuner's table, or what links usually are. */
static ll_sparse_form choose(const ll_sparse *w, const ll_comm *c, int p)
{
    static const ll_link_model usual = {.alpha = {5e-6, 50e-6}, .beta = {0.25e-9, 8.5e-9}};
    const ll_link_model *m = ll_comm_table(c) ? &ll_comm_table(c)->model : &usual;
    int between = !ll_one_node(ll_comm_nodes(c), p);
    return ll_sparse_choose(w->len, w->k, w->bits, p, m->alpha[between], m->beta[between],
                            ll_comm_options(c)->canonical);
}

ll_err ll_sparse_allreduce(ll_sparse *w, ll_comm *c, const ll_sparse_call *call, int64_t *bytes,
                           ll_sparse_form *used)
{
    job j = {.w = w, .c = c, .call = call, .p = ll_comm_size(c), .me = ll_comm_rank(c)};
    CHECK(call->mine->len == w->len && call->mine->count <= w->k && !call->mine->is_dense, LL_E_ARG,
          "a stream of %ld pairs of %ld elements, at most %ld of %ld", call->mine->count,
          call->mine->len, w->k, w->len);
    *used = call->form == LL_SPARSE_AUTO ? choose(w, c, j.p) : call->form;
    TRY(prepare(w, j.p, *used));
    j.number = ll_comm_next_number(c, "sparse all-reduce", call->site);
    TRY(*used == LL_SPARSE_DOUBLING ? doubling(&j) : split(&j));
    *bytes = j.bytes;
    return LL_OK;
}
