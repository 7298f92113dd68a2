/* test_verify_everywhere.c: one mistake made in every place: no algorithm of the registry has a
 * message, a fold or an await that could be left out or changed, and the verifier accept it. */
#include "sched/lists.h"

typedef struct everywhere { /* a mistake that can be made in many places */
    const char *name;
    bool (*make)(lists *l, int rank, int i); /* false: not in this step */
    bool may_pass;                           /* now and then */
    int n_made, n_accepted;
} everywhere;

static bool leave_out(lists *l, int rank, int i)
{
    ll_step_kind k = steps_of(l, rank)[i].kind;
    if (k != LL_STEP_SEND && k != LL_STEP_RECV && k != LL_STEP_FOLD) return false;
    drop(l, rank, i);
    return true;
}

static bool no_await(lists *l, int rank, int i)
{
    if (steps_of(l, rank)[i].kind != LL_STEP_AWAIT) return false;
    drop(l, rank, i);
    return true;
}

static bool shift_from(lists *l, int rank, int i)
{
    ll_step *s = &steps_of(l, rank)[i];
    if (!s->n_from || l->spec.coll == LL_COLL_BARRIER) return false;
    s->from = (const ll_ref *)ll_arena_copy(l->arena, s->from, sizeof(ll_ref) * (size_t)s->n_from);
    from_of(s)[s->n_from - 1].at++;
    return true;
}

static bool shift_to(lists *l, int rank, int i)
{
    ll_step *s = &steps_of(l, rank)[i];
    if (s->kind != LL_STEP_RECV && s->kind != LL_STEP_FOLD) return false;
    s->dst.at++;
    return l->spec.coll != LL_COLL_BARRIER;
}

static bool change_peer(lists *l, int rank, int i)
{
    ll_step *s = &steps_of(l, rank)[i];
    if (s->kind != LL_STEP_SEND && s->kind != LL_STEP_RECV) return false;
    do s->peer = (s->peer + 1) % l->size;
    while (s->peer == rank);
    return l->size > 2;
}

static bool fold_twice(lists *l, int rank, int i)
{
    ll_step *s = &steps_of(l, rank)[i];
    if (s->kind != LL_STEP_FOLD || s->n_from < 2) return false;
    ll_ref *from = LL_NEW_ARRAY(l->arena, ll_ref, s->n_from + 1);
    memcpy(from, s->from, sizeof *from * (size_t)s->n_from);
    from[s->n_from] = from[0];
    s->from = from;
    s->n_from++;
    return true;
}

static bool await_less(lists *l, int rank, int i)
{
    ll_step *s = &steps_of(l, rank)[i];
    if (s->kind != LL_STEP_AWAIT) return false;
    s->value--;
    return true;
}

/* An await may say what another has said, or protect nothing where a piece is empty. */
static everywhere mistakes[] = {{.name = "left out", .make = leave_out},
                                {.name = "from one further", .make = shift_from},
                                {.name = "to one further", .make = shift_to},
                                {.name = "another peer", .make = change_peer},
                                {.name = "fold twice", .make = fold_twice},
                                {.name = "no await", .make = no_await, .may_pass = true},
                                {.name = "await less", .make = await_less, .may_pass = true}};

static void make_each(lists *l, const char *name, everywhere *m)
{
    accepted(l, 1);
    for (int r = 0; r < l->size; r++) {
        const ll_sched whole = *l->ranks[r];
        for (int i = 0; i < whole.n_step; i++) {
            list_of(l, r)->steps = (const ll_step *)ll_arena_copy(
                l->arena, whole.steps, sizeof(ll_step) * (size_t)whole.n_step);
            bool made = m->make(l, r, i);
            recount(l, r);
            m->n_made += made;
            if (made && verify(l, 1) == LL_OK && m->n_accepted++ < 5 && !m->may_pass)
                print_error("%s by %s, %d ranks, root %d, rank %d: accepted, though %s: %s\n",
                            ll_coll_name(l->spec.coll), name, l->size, l->spec.root, r, m->name,
                            ll_step_text(l->arena, &whole.steps[i], r));
            *list_of(l, r) = whole;
        }
    }
    ll_arena_free(l->arena);
}

static lists subsets(void)
{
    static const int a[] = {0, 1, 3}, b[] = {1, 2, 3, 4}, c[] = {2};
    static const ll_subset some[] = {{a, 3, 0, 5}, {b, 4, 6, 9}, {c, 1, 0, 6}};
    lists l = {.arena = ll_arena_new(), .size = 5, .subsets = some, .n_subset = 3};
    l.spec.count = 16;
    l.ranks = LL_NEW_ARRAY(l.arena, const ll_sched *, l.size);
    for (int r = 0; r < l.size; r++)
        assert_int_equal(ll_sched_subsets(l.arena, ll_algo_find(LL_COLL_ALLREDUCE, "ring"), some, 3,
                                          l.size, 0, r, &l.ranks[r]),
                         LL_OK);
    return l;
}

/* So nothing in any list is there for nothing, too. */
static void everywhere_at_once(void **state)
{
    (void)state;
    static const int nodes[] = {0, 0, 0, 1, 1, 1, 2};
    const char *why;
    int n_accepted = 0;
    for (size_t k = 0; k < sizeof mistakes / sizeof *mistakes; k++) {
        everywhere *m = &mistakes[k];
        for (const ll_algo *const *a = ll_algos(); *a; a++)
            for (int size = 2; size <= 7; size++) {
                ll_coll_spec s = {.coll = (*a)->coll,
                                  .size = size,
                                  .root = size / 2,
                                  .count = 2 * size + 1,
                                  .segment = (*a)->segmented && size % 2 ? 2 : 0,
                                  .shared = (*a)->shared,
                                  .node = (*a)->window ? NULL : nodes};
                lists l;
                if (!ll_algo_can(*a, &s, &why)) continue;
                build(&l, *a, s);
                make_each(&l, (*a)->name, m);
            }
        lists s = subsets();
        make_each(&s, "ring in subsets", m);
        print_message("%s: %d made, %d accepted\n", m->name, m->n_made, m->n_accepted);
        if (!m->may_pass) n_accepted += m->n_accepted;
        assert_true(m->n_made > 100 && m->n_accepted < m->n_made / 2);
    }
    assert_int_equal(n_accepted, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(everywhere_at_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
