/* verify_promise.c: what each collective starts from and promises, element by element. Where an
 * element is said to hold leaf (r, i), that is what rank r's DATA held at i in the beginning; a sum
 * is of the leaves (0, i), (1, i) ... What is not promised may be anything. */
#include "sched/verify_int.h"

static uint64_t mix(uint64_t x) /* splitmix64's last step */
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t ll_tree_join(uint64_t a, uint64_t b)
{
    return a < b ? mix(mix(a) + b) : mix(mix(b) + a);
}

ll_value ll_value_leaf(int rank, int64_t elem)
{
    return (ll_value){.ranks = (uint64_t)1 << rank, .tree = mix((uint64_t)rank), .elem = elem};
}

static ll_value sum_from(const int *ranks, int a, int b, int64_t elem)
{
    if (b - a == 1) return ll_value_leaf(ranks ? ranks[a] : a, elem);
    int q = ll_tree_split(b - a);
    ll_value x = sum_from(ranks, a, a + q, elem), y = sum_from(ranks, a + q, b, elem);
    return (ll_value){x.ranks | y.ranks, ll_tree_join(x.tree, y.tree), elem};
}

ll_value ll_value_sum(const int *ranks, int n, int64_t elem)
{
    return sum_from(ranks, 0, n, elem);
}

static ll_value sum_at(const ll_value *sum, int64_t elem)
{
    ll_value v = *sum;
    v.elem = elem;
    return v;
}

/* ---- collectives ---- */
static int64_t to_rank(const ll_coll_spec *s, int from, int to) /* all-to-all */
{
    int64_t start, end;
    if (s->matrix) return s->matrix[from * s->size + to];
    ll_coll_block(s, to, &start, &end);
    return end - start;
}

static int64_t coll_extent(const ll_promise *p, int rank, ll_buf_id buf)
{
    const ll_coll_spec *s = (const ll_coll_spec *)p->what;
    int64_t n = 0;
    if (buf == LL_DATA && !s->matrix) return s->count;
    if (s->coll == LL_COLL_ALLTOALL)
        for (int q = 0; q < s->size; q++)
            n += buf == LL_DATA ? to_rank(s, rank, q) : to_rank(s, q, rank);
    return n;
}

static bool in_block(const ll_coll_spec *s, int block, int64_t i)
{
    int64_t from, to;
    ll_coll_block(s, block, &from, &to);
    return i >= from && i < to;
}

static bool coll_before(const ll_promise *p, int rank, int64_t i, ll_value *out)
{
    const ll_coll_spec *s = (const ll_coll_spec *)p->what;
    *out = ll_value_leaf(rank, i);
    switch (s->coll) {
    case LL_COLL_ALLGATHER: return in_block(s, rank, i);
    case LL_COLL_BROADCAST: return rank == s->root;
    default: return true;
    }
}

/* Element i of rank's OUT: blocks by where they come from. */
static bool alltoall_after(const ll_coll_spec *s, int rank, int64_t i, ll_value *out)
{
    for (int from = 0; from < s->size; from++) {
        int64_t n = to_rank(s, from, rank), at = i;
        if (i >= n) {
            i -= n;
            continue;
        }
        if (!s->matrix && s->starts) at += s->starts[0];
        for (int to = 0; to < rank; to++) at += to_rank(s, from, to);
        *out = ll_value_leaf(from, at);
        return true;
    }
    return false;
}

static bool gathered(const ll_coll_spec *s, int64_t i, ll_value *out)
{
    for (int b = 0; b < s->size; b++)
        if (in_block(s, b, i)) {
            *out = ll_value_leaf(b, i);
            return true;
        }
    return false;
}

static bool coll_after(const ll_promise *p, int rank, ll_buf_id buf, int64_t i, ll_value *out)
{
    const ll_coll_spec *s = (const ll_coll_spec *)p->what;
    if (s->coll == LL_COLL_ALLTOALL) return buf == LL_OUT && alltoall_after(s, rank, i, out);
    if (buf != LL_DATA) return false;
    switch (s->coll) {
    case LL_COLL_ALLREDUCE: *out = sum_at(p->sum, i); return true;
    case LL_COLL_REDUCE_SCATTER: *out = sum_at(p->sum, i); return in_block(s, rank, i);
    case LL_COLL_ALLGATHER: return gathered(s, i, out);
    case LL_COLL_BROADCAST: *out = ll_value_leaf(s->root, i); return true;
    default: return false;
    }
}

ll_err ll_promise_coll(ll_arena *arena, const ll_coll_spec *s, ll_promise *out)
{
    CHECK(s->size >= 1 && s->size <= LL_VERIFY_RANKS, LL_E_ARG,
          "the verifier takes 1 to %d ranks, not %d", LL_VERIFY_RANKS, s->size);
    CHECK(s->count >= 0, LL_E_ARG, "%lld elements", (long long)s->count);
    CHECK(s->root >= 0 && s->root < s->size, LL_E_ARG, "root %d of %d ranks", s->root, s->size);
    for (int b = 0; s->starts && b < s->size; b++)
        CHECK(s->starts[b] >= 0 && s->starts[b] <= s->starts[b + 1] && s->starts[b + 1] <= s->count,
              LL_E_ARG, "block %d is [%lld..%lld) of %lld elements", b, (long long)s->starts[b],
              (long long)s->starts[b + 1], (long long)s->count);
    ll_value *sum = LL_NEW(arena, ll_value);
    *sum = ll_value_sum(NULL, s->size, 0);
    *out = (ll_promise){.size = s->size,
                        .node = s->node,
                        .shared = s->shared,
                        .barrier = s->coll == LL_COLL_BARRIER,
                        .what = s,
                        .sum = sum,
                        .extent = coll_extent,
                        .before = coll_before,
                        .after = coll_after};
    return LL_OK;
}

/* ---- all-reduces over subsets ---- */
static int64_t subsets_extent(const ll_promise *p, int rank, ll_buf_id buf)
{
    (void)rank;
    return buf == LL_DATA ? p->count : 0;
}

static bool subsets_before(const ll_promise *p, int rank, int64_t i, ll_value *out)
{
    (void)p;
    *out = ll_value_leaf(rank, i);
    return true;
}

static bool lists_rank(const ll_subset *s, int rank)
{
    for (int i = 0; i < s->n_rank; i++)
        if (s->ranks[i] == rank) return true;
    return false;
}

/* What is in none of a rank's subsets stays as it was. */
static bool subsets_after(const ll_promise *p, int rank, ll_buf_id buf, int64_t i, ll_value *out)
{
    const ll_subset *s = (const ll_subset *)p->what;
    if (buf != LL_DATA) return false;
    *out = ll_value_leaf(rank, i);
    for (int k = 0; k < p->n_what; k++)
        if (i >= s[k].at && i < s[k].at + s[k].count && lists_rank(&s[k], rank)) {
            *out = sum_at(&p->sum[k], i);
            break;
        }
    return true;
}

ll_err ll_promise_subsets(ll_arena *arena, const ll_subset *subsets, int n_subset, int size,
                          int64_t count, ll_promise *out)
{
    CHECK(size >= 1 && size <= LL_VERIFY_RANKS, LL_E_ARG,
          "the verifier takes 1 to %d ranks, not %d", LL_VERIFY_RANKS, size);
    ll_value *sums = LL_NEW_ARRAY(arena, ll_value, n_subset + 1);
    for (int k = 0; k < n_subset; k++) {
        const ll_subset *s = &subsets[k];
        CHECK(s->n_rank > 0, LL_E_ARG, "subset %d has no ranks", k);
        CHECK(s->at >= 0 && s->count >= 0 && s->at + s->count <= count, LL_E_ARG,
              "subset %d is [%lld..%lld) of %lld elements", k, (long long)s->at,
              (long long)(s->at + s->count), (long long)count);
        for (int i = 0; i < s->n_rank; i++)
            CHECK(s->ranks[i] >= (i ? s->ranks[i - 1] + 1 : 0) && s->ranks[i] < size, LL_E_ARG,
                  "rank %d of subset %d: the ranks ascend, below %d", s->ranks[i], k, size);
        sums[k] = ll_value_sum(s->ranks, s->n_rank, 0);
        for (int l = 0; l < k; l++)
            CHECK(!(sums[l].ranks & sums[k].ranks) || subsets[l].at + subsets[l].count <= s->at ||
                      s->at + s->count <= subsets[l].at || !s->count || !subsets[l].count,
                  LL_E_ARG, "subsets %d and %d overlap on a rank", l, k);
    }
    *out = (ll_promise){.size = size,
                        .what = subsets,
                        .n_what = n_subset,
                        .count = count,
                        .sum = sums,
                        .extent = subsets_extent,
                        .before = subsets_before,
                        .after = subsets_after};
    return LL_OK;
}
