/* subsets.c: all-reduces over subsets, from what each rank has. A piece begins at the same element
 * on all ranks, behind the longest of the one before: so a subset's data lies at one place.
 *
 *     mesh data=2,tensor=2; w is cut by tensor and summed over data, b whole and summed over all
 *     piece w   colors 0 1 0 1   counts 5 4 5 4    at 0    subsets {0 2} of 5, {1 3} of 4
 *     piece b   colors 0 0 0 0   counts 3 3 3 3    at 5    subset {0 1 2 3} of 3 */
#include "comm/subsets.h"

/* The subsets of a piece, at element at; *longest: of their counts. */
static ll_err add_piece(ll_subsets *s, const ll_subset_piece *p, int64_t at, ll_subset *sets,
                        int *n_set, int64_t *longest)
{
    int size = ll_comm_size(s->c);
    *longest = 0;
    for (int first = 0; first < size; first++) {
        int before = 0, n = 0, *ranks = LL_NEW_ARRAY(s->arena, int, size);
        while (p->color[before] != p->color[first]) before++;
        if (before < first) continue;
        for (int r = first; r < size; r++) {
            if (p->color[r] != p->color[first]) continue;
            CHECK(p->count[r] == p->count[first], LL_E_ARG,
                  "ranks %d and %d sum %ld and %ld elements", first, r, p->count[first],
                  p->count[r]);
            ranks[n++] = r;
        }
        sets[(*n_set)++] =
            (ll_subset){.ranks = ranks, .n_rank = n, .at = at, .count = p->count[first]};
        if (p->count[first] > *longest) *longest = p->count[first];
    }
    return LL_OK;
}

/* One algorithm for all: that of the largest, without a window; canonical where sums must be. */
static ll_err choose(const ll_subsets *s, const ll_subset *sets, int n, const ll_algo **a,
                     int64_t *segment)
{
    ll_coll_spec spec = {.coll = LL_COLL_ALLREDUCE, .size = 1};
    for (int k = 0; k < n; k++)
        if (sets[k].n_rank > 1 && sets[k].count >= spec.count) {
            spec.size = sets[k].n_rank;
            spec.count = sets[k].count;
        }
    *a = ll_algo_find(LL_COLL_ALLREDUCE, "sharded"); /* canonical on any number of ranks */
    *segment = 0;
    if (ll_comm_options(s->c)->canonical) return LL_OK;
    return ll_choose(NULL, &spec, sizeof(float), false, false, a, segment);
}

static ll_err build(ll_subsets *s, const ll_subset_piece *pieces, int n)
{
    int size = ll_comm_size(s->c), n_set = 0;
    ll_subset *sets = LL_NEW_ARRAY(s->arena, ll_subset, n * size + 1);
    s->at = LL_NEW_ARRAY(s->arena, int64_t, n + 1);
    for (int i = 0; i < n; i++) {
        int64_t longest;
        s->at[i] = s->count;
        TRY(add_piece(s, &pieces[i], s->at[i], sets, &n_set, &longest));
        s->count += longest;
    }
    const ll_algo *a;
    int64_t segment;
    TRY(choose(s, sets, n_set, &a, &segment));
    return ll_sched_subsets(s->arena, a, sets, n_set, size, segment, ll_comm_rank(s->c), &s->list);
}

ll_err ll_subsets_open(ll_comm *c, const ll_subset_piece *pieces, int n, ll_subsets **out)
{
    ll_arena *arena = ll_arena_new();
    ll_subsets *s = LL_NEW(arena, ll_subsets);
    *s = (ll_subsets){.arena = arena, .c = c};
    ll_err rc = build(s, pieces, n);
    if (rc) ll_arena_free(arena);
    *out = rc ? NULL : s;
    return rc;
}

void ll_subsets_close(ll_subsets *s)
{
    if (s) ll_arena_free(s->arena);
}

ll_err ll_subsets_start(ll_subsets *s, const ll_coll_call *like, ll_request **out)
{
    ll_coll_call call = *like;
    call.spec = (ll_coll_spec){.coll = LL_COLL_ALLREDUCE, .count = s->count};
    call.sched = s->list;
    return ll_comm_start(s->c, &call, out);
}
