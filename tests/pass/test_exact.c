/* Exact mode on random graphs: every rank's graph, run beside the others', gives the bits of the
 * serial graph; and that is what the graph means: its numbers are those of a plain run but for
 * rounding. The seed is printed: SEED=7 test_exact. */
#include "pass/lockstep.h"
#include "pass/random_graph.h"

static uint64_t seed = 1;
static const char *const meshes[] = {"data=2",   "data=3",          "tensor=2",      "sequence=2",
                                     "height=2", "data=2,tensor=2", "rows=2,depth=2"};
enum { N_MESH = sizeof meshes / sizeof *meshes };

/* The graphs of all ranks; false: the mesh does not fit the graph. */
static bool open(lockstep *s, const ll_graph *g, bool exact, ll_mesh *m, ll_arena *arena)
{
    ll_placement *p;
    ll_place_opts how = {.mesh = m, .exact = exact};
    if (ll_place(g, &how, &p) != LL_OK) {
        if (m->n_rank == 1) no_error(LL_E_SHARD);
        return false;
    }
    *s = (lockstep){.m = m, .n_rank = m->n_rank, .arena = arena};
    s->g = LL_NEW_ARRAY(arena, ll_graph *, m->n_rank);
    for (int r = 0; r < m->n_rank; r++) no_error(ll_partition(p, r, &s->g[r]));
    ll_placement_free(p);
    return true;
}

static void close(lockstep *s)
{
    for (int r = 0; r < s->n_rank; r++) ll_graph_free(s->g[r]);
}

/* The worst difference of a result or update of any rank; exact: any bit counts. */
static double worst(lockstep *parts, lockstep *serial, bool exact, const char **name)
{
    double most = 0;
    for (int r = 0; r < parts->n_rank; r++) {
        const ll_graph *g = parts->g[r], *s = serial->g[0];
        for (int i = 0; i < g->n_result + g->n_update; i++) {
            bool result = i < g->n_result;
            int k = i - g->n_result;
            ll_val a = result ? g->results[i].value : g->updates[k].next;
            ll_val b = result ? s->results[i].value : s->updates[k].next;
            const ll_value *in = result ? NULL : ll_value_of(g, g->updates[k].input);
            const ll_piece *piece = in ? in->piece : NULL;
            const ll_tensor *x = at(parts, r, a), *y = at(serial, 0, b);
            double d = difference(x, y, piece);
            size_t bytes = (size_t)ll_numel(&x->shape) * ll_dtype_bytes(x->dtype);
            if (exact && !piece && memcmp(x->data, y->data, bytes)) d = fmax(d, 1e-300);
            if (d > most) most = d, *name = in ? in->name : g->results[i].name;
        }
    }
    return most;
}

/* Numbers so large that f32 is at its end prove nothing. */
static bool tame(lockstep *s)
{
    for (int i = 1; i < s->g[0]->n_value; i++) {
        const ll_tensor *x = &s->value[0][i];
        for (int64_t k = 0; x->data && k < ll_numel(&x->shape); k++)
            if (!(fabs(ll_load(x->data, x->dtype, k)) < (x->dtype == LL_F64 ? 0x1p53 : 1e6)))
                return false;
    }
    return true;
}

static int check(uint64_t number)
{
    rg r;
    ll_val loss = rg_make(&r, number);
    ll_graph_result(r.g, "loss", loss);
    ll_minimize(r.g, loss, &(ll_optim){.name = "momentum", .clip = 1});
    no_error(ll_graph_check(r.g));
    int64_t limit = 1000;
    for (int i = 0; i < r.n_named; i++)
        if (r.limit[i] && r.limit[i] < limit) limit = r.limit[i];
    ll_arena *arena = ll_arena_new();
    ll_mesh one, m;
    lockstep plain, serial, parts;
    const char *name = "";
    no_error(ll_mesh_parse("", &one));
    open(&plain, r.g, false, &one, arena);
    open(&serial, r.g, true, &one, arena);
    lockstep_run(&plain, number, limit);
    lockstep_run(&serial, number, limit);
    int n = 0;
    bool usual = tame(&plain) && tame(&serial);
    double d = usual ? worst(&serial, &plain, false, &name) : 0;
    if (d > 2e-2)
        fail_msg("graph %llu: exact %s is off by %g", (unsigned long long)number, name, d);
    for (int i = 0; i < N_MESH && usual; i++) {
        no_error(ll_mesh_parse(meshes[i], &m));
        if (!open(&parts, r.g, true, &m, arena)) continue;
        n++;
        lockstep_run(&parts, number, limit);
        d = worst(&parts, &serial, true, &name);
        if (d > 0)
            fail_msg("graph %llu on %s: %s differs by %g", (unsigned long long)number, meshes[i],
                     name, d);
        close(&parts);
    }
    close(&plain);
    close(&serial);
    ll_graph_free(r.g);
    ll_arena_free(arena);
    return n;
}

static void test_random_graphs(void **state)
{
    (void)state;
    int n = 0;
    for (uint64_t i = 0; i < 60; i++) n += check(1000 * seed + i);
    print_message("%d graphs on meshes\n", n);
    assert_true(n > 60);
}

int main(void)
{
    const char *s = getenv("SEED");
    if (s) seed = strtoull(s, NULL, 10);
    printf("seed %llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_graphs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
