/* subsets.c: all-reduces over many subsets of the ranks at once, each on its own piece of DATA
 * (Dryden, Maruyama, Moon, Benson, Snir, Van Essen: Channel and filter parallelism for large-scale
 * CNN training, SC 2019). One algorithm is emitted for each subset, and a round of the result holds
 * a round of each of my subsets, so that their messages are under way together.
 *
 * Rounds cannot be merged by number alone. Messages between two ranks match in the order both post
 * them; and a round ends when all its messages have, so each subset waits for the others:
 *
 *     subset A: rank 1 sends to 0 in its round 0, rank 0 receives in its round 1
 *     subset B: rank 1 sends to 0 in its round 1, rank 0 receives in its round 0
 *     merged by number, rank 0 posts B's first, rank 1 A's
 *
 * So every round of a subset gets a level first, such that both ends of a message have the same one
 * and levels of a rank's rounds ascend. Then merging by level is right: (1) in a level, messages
 * between two ranks are posted by subset, then in the subset's order, on both sides alike; (2) no
 * deadlock: when all ranks are done with the levels below l, all messages of level l get posted, on
 * both sides, whatever else the ranks do.
 *
 * Levels exist where no round must come before itself once rounds that exchange messages are taken
 * for one. Where that fails for some subset, they run one after another instead, in the order given
 * on every rank, which is right for the usual reason. */
#include "sched/emit.h"

/* The schedules of all ranks of a subset of so many, on so many elements. Their rounds are numbered
 * from one rank to the next: rank i's round r is first[i] + r. */
typedef struct shape {
    int n_rank;
    int64_t count;
    const ll_sched **ranks; /* [n_rank] */
    int *first;             /* [n_rank + 1] */
    int *same;              /* union-find: rounds that exchange messages */
    int *level;             /* of each round; NULL: there are none */
} shape;

static int find(const shape *h, int i)
{
    while (h->same[i] != i) i = h->same[i] = h->same[h->same[i]];
    return i;
}

/* The k-th send from i to j and the k-th receive at j from i are one message: unites their rounds.
 * The receives are sorted by (from, to) first, by counting. */
static void unite(ll_arena *work, const shape *h)
{
    int n = h->n_rank, n_recv = 0;
    int *at, *filled, *sent;
    LL_ARRAYS(work, n * n, at, filled, sent);
    for (int j = 0; j < n; j++)
        for (int k = 0; k < h->ranks[j]->n_step; k++)
            if (h->ranks[j]->steps[k].kind == LL_STEP_RECV)
                at[h->ranks[j]->steps[k].peer * n + j]++;
    for (int pair = 0; pair < n * n; pair++) {
        int count = at[pair];
        at[pair] = n_recv;
        n_recv += count;
    }
    int *round = LL_NEW_ARRAY(work, int, n_recv + 1);
    for (int j = 0; j < n; j++)
        for (int k = 0; k < h->ranks[j]->n_step; k++) {
            const ll_step *s = &h->ranks[j]->steps[k];
            int pair = s->peer * n + j;
            if (s->kind == LL_STEP_RECV) round[at[pair] + filled[pair]++] = h->first[j] + s->round;
        }
    for (int i = 0; i < n; i++)
        for (int k = 0; k < h->ranks[i]->n_step; k++) {
            const ll_step *s = &h->ranks[i]->steps[k];
            if (s->kind != LL_STEP_SEND) continue;
            int pair = i * n + s->peer;
            LL_ASSERT(sent[pair] < filled[pair]);
            h->same[find(h, h->first[i] + s->round)] = find(h, round[at[pair] + sent[pair]++]);
        }
}

/* The longest way to each round, those that are united being one; false: there is a cycle. */
static bool levels(ll_arena *work, shape *h)
{
    int n = h->first[h->n_rank], n_class = 0, n_done = 0;
    int *next;    /* another round of the same class; 0: no more */
    int *members; /* a class's first, plus one */
    int *waits;   /* rounds before its rounds, not yet done */
    int *ready, *level, n_ready = 0;
    bool *last; /* of its rank */
    LL_ARRAYS(work, n + 1, next, members, waits, ready, level, last);
    for (int i = 0; i < h->n_rank; i++)
        for (int r = h->first[i]; r < h->first[i + 1]; r++) {
            int c = find(h, r);
            n_class += c == r;
            waits[c] += r > h->first[i];
            last[r] = r + 1 == h->first[i + 1];
            next[r] = members[c];
            members[c] = r + 1;
        }
    for (int c = 0; c < n; c++)
        if (find(h, c) == c && !waits[c]) ready[n_ready++] = c;
    for (; n_done < n_ready; n_done++) {
        int c = ready[n_done];
        for (int r = members[c]; r; r = next[r - 1]) {
            if (last[r - 1]) continue;
            int after = find(h, r);
            if (level[after] <= level[c]) level[after] = level[c] + 1;
            if (--waits[after] == 0) ready[n_ready++] = after;
        }
    }
    for (int r = 0; r < n; r++) level[r] = level[find(h, r)];
    h->level = n_done == n_class ? level : NULL;
    return h->level;
}

static ll_err build(ll_arena *work, const ll_algo *a, int64_t segment, shape *h)
{
    ll_coll_spec spec = {
        .coll = LL_COLL_ALLREDUCE, .size = h->n_rank, .count = h->count, .segment = segment};
    h->ranks = LL_NEW_ARRAY(work, const ll_sched *, h->n_rank);
    h->first = LL_NEW_ARRAY(work, int, h->n_rank + 1);
    for (int i = 0; i < h->n_rank; i++) {
        TRY(ll_sched_build(work, a, &spec, i, &h->ranks[i]));
        CHECK(!h->ranks[i]->window && !h->ranks[i]->n_signal, LL_E_COMM,
              "all-reduces over subsets by %s, which uses a window: needs messages alone, as ring",
              a->name);
        h->first[i + 1] = h->first[i] + h->ranks[i]->n_round;
    }
    int n = h->first[h->n_rank];
    h->same = LL_NEW_ARRAY(work, int, n + 1);
    for (int r = 0; r < n; r++) h->same[r] = r;
    unite(work, h);
    return LL_OK;
}

/* The shape of a subset, made once for all of one size and length. */
static ll_err shape_of(ll_arena *work, const ll_algo *a, const ll_subset *s, int64_t segment,
                       shape *all, int *n_shape, const shape **out)
{
    for (int i = 0; i < *n_shape; i++)
        if (all[i].n_rank == s->n_rank && all[i].count == s->count) {
            *out = &all[i];
            return LL_OK;
        }
    shape *h = &all[(*n_shape)++];
    *h = (shape){.n_rank = s->n_rank, .count = s->count};
    TRY(build(work, a, segment, h));
    levels(work, h);
    *out = h;
    return LL_OK;
}

static int index_of(const ll_subset *s, int rank)
{
    for (int i = 0; i < s->n_rank; i++)
        if (s->ranks[i] == rank) return i;
    return -1;
}

static ll_err check(const ll_subset *subsets, int n_subset, int size)
{
    for (int k = 0; k < n_subset; k++) {
        const ll_subset *s = &subsets[k];
        CHECK(s->n_rank > 0 && s->at >= 0 && s->count >= 0, LL_E_ARG,
              "subset %d has %d ranks, and %ld elements at %ld", k, s->n_rank, s->count, s->at);
        for (int i = 0; i < s->n_rank; i++)
            CHECK(s->ranks[i] < size && s->ranks[i] > (i ? s->ranks[i - 1] : -1), LL_E_ARG,
                  "rank %d at place %d of subset %d: ranks must ascend and be less than %d",
                  s->ranks[i], i, k, size);
        for (int j = 0; j < k; j++) {
            const ll_subset *t = &subsets[j];
            if (s->at >= t->at + t->count || t->at >= s->at + s->count) continue;
            if (!s->count || !t->count) continue;
            for (int i = 0; i < s->n_rank; i++)
                CHECK(index_of(t, s->ranks[i]) < 0, LL_E_ARG,
                      "subsets %d and %d share rank %d and elements at %ld", j, k, s->ranks[i],
                      (s->at > t->at ? s->at : t->at));
        }
    }
    return LL_OK;
}

/* One of my subsets on the way: its steps from `step` on are left. */
typedef struct strand {
    const ll_sched *sched;
    const int *level; /* of its rounds; NULL: none */
    int step;
    ll_group group;
} strand;

static bool over(const strand *t)
{
    return t->step == t->sched->n_step;
}

/* Adds the next round of a strand to the current one. */
static void add_round(ll_steps *e, strand *t)
{
    int round = t->sched->steps[t->step].round;
    e->in = t->group;
    for (; !over(t) && t->sched->steps[t->step].round == round; t->step++) {
        const ll_step *s = &t->sched->steps[t->step];
        if (s->kind == LL_STEP_SEND) ll_emit_send(e, s->peer, s->from->buf, s->from->at, s->n);
        if (s->kind == LL_STEP_RECV) ll_emit_recv(e, s->peer, s->dst.buf, s->dst.at, s->n);
        if (s->kind == LL_STEP_FOLD)
            ll_emit_fold_all(e, s->dst.buf, s->dst.at, s->from, s->n_from, s->n);
    }
    e->in = (ll_group){0};
}

static int next_level(const strand *t)
{
    return over(t) ? INT32_MAX : t->level[t->sched->steps[t->step].round];
}

/* Level by level, in each the rounds of all strands that have it. */
static void merge(ll_steps *e, strand *t, int n)
{
    for (;;) {
        int level = INT32_MAX;
        for (int i = 0; i < n; i++)
            if (next_level(&t[i]) < level) level = next_level(&t[i]);
        if (level == INT32_MAX) return;
        for (int i = 0; i < n; i++)
            if (next_level(&t[i]) == level) add_round(e, &t[i]);
        ll_emit_next(e);
    }
}

static void one_by_one(ll_steps *e, strand *t, int n)
{
    for (int i = 0; i < n; i++)
        while (!over(&t[i])) {
            add_round(e, &t[i]);
            ll_emit_next(e);
        }
}

static ll_err emit(ll_arena *work, ll_steps *e, const ll_algo *a, const ll_subset *subsets,
                   int n_subset, int64_t segment)
{
    shape *shapes = LL_NEW_ARRAY(work, shape, n_subset + 1);
    strand *mine = LL_NEW_ARRAY(work, strand, n_subset + 1);
    int n_shape = 0, n = 0;
    bool merges = true;
    int64_t scratch = 0;
    for (int k = 0; k < n_subset; k++) {
        const shape *h;
        int me = index_of(&subsets[k], e->rank);
        TRY(shape_of(work, a, &subsets[k], segment, shapes, &n_shape, &h));
        merges = merges && h->level;
        if (me < 0) continue;
        const ll_sched *s = h->ranks[me];
        mine[n++] = (strand){.sched = s,
                             .level = h->level ? h->level + h->first[me] : NULL,
                             .group = {.ranks = subsets[k].ranks,
                                       .size = subsets[k].n_rank,
                                       .me = me,
                                       .at = subsets[k].at,
                                       .scratch = scratch}};
        scratch += s->scratch;
    }
    if (merges)
        merge(e, mine, n);
    else
        one_by_one(e, mine, n);
    return LL_OK;
}

ll_err ll_sched_subsets(ll_arena *arena, const ll_algo *a, const ll_subset *subsets, int n_subset,
                        int size, int64_t segment, int rank, const ll_sched **out)
{
    CHECK(rank >= 0 && rank < size, LL_E_ARG, "rank %d of %d", rank, size);
    CHECK(a->coll == LL_COLL_ALLREDUCE && !a->window && !a->shared && !a->library, LL_E_ARG,
          "%s by %s: subsets need an all-reduce of messages alone, such as ring",
          ll_coll_name(a->coll), a->name);
    TRY(check(subsets, n_subset, size));
    ll_steps e = {.arena = arena, .rank = rank, .size = size};
    LL_OWN(ll_arena) work = ll_arena_new();
    TRY(emit(work, &e, a, subsets, n_subset, segment));
    *out = ll_emit_finish(&e);
    return LL_OK;
}
