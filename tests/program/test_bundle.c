/* Collectives that are one: every rank's program has the same bundles of the same tensors, whatever
 * its own parts are, within the size that is asked for. */
#include "exec/parts.h"

#include "base/text.h"
#include "kern/attr.h"
#include "no_error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#ifdef __SANITIZE_ADDRESS__
enum { GROWS = 19 }; /* sizes, in eighths: about every third */
#else
enum { GROWS = 4 };
#endif

static ll_program *lowered(const ll_placement *place, int rank, const ll_lower_opts *how)
{
    ll_graph *mine;
    ll_program *p;
    no_error(ll_partition(place, rank, &mine));
    no_error(ll_lower(mine, how, &p));
    ll_graph_free(mine);
    return p;
}

/* "all_reduce a b c;", one after another: what ranks must have in common. */
static char *collectives(const ll_program *p)
{
    ll_buf b = {.arena = p->arena};
    for (int i = 0; i < p->n_instr; i++) {
        const ll_instr *x = &p->instrs[i];
        if (!x->collective) continue;
        ll_buf_printf(&b, "%s%s", x->op, x->compressed ? " compressed" : "");
        for (int k = 0; k < x->n_in; k++)
            ll_buf_printf(&b, " %d", (int)((const ll_coll_attr *)x->attrs[k])->serial);
        ll_buf_puts(&b, ";");
    }
    return b.text ? b.text : ll_arena_strdup(p->arena, "");
}

static int check_sizes(const ll_program *p, const ll_lower_opts *how)
{
    int n = 0;
    for (int i = 0; i < p->n_instr; i++) {
        const ll_instr *x = &p->instrs[i];
        if (x->collective != LL_ALL_REDUCE || x->n_in < 2) continue;
        size_t bytes = 0;
        const ll_coll_attr *a = (const ll_coll_attr *)x->attr;
        for (int k = 0; k < x->n_in; k++) {
            const ll_coll_attr *b = (const ll_coll_attr *)x->attrs[k];
            bytes += p->slots[x->in[k]].bytes;
            assert_int_equal(a->axes, b->axes);
            assert_true(!x->compressed || a->cut == b->cut);
        }
        for (int j = 0; j < i && x->compressed; j++) /* codecs draw by the name */
            if (p->instrs[j].compressed) assert_string_not_equal(p->instrs[j].name, x->name);
        if (!x->compressed) assert_in_range(bytes, 0, how->bucket_bytes);
        n++;
    }
    return n;
}

static void all_bundle_alike(void **state)
{
    (void)state;
    static const struct {
        const char *model, *mesh;
        int zero;
    } cases[] = {{"lenet5", "data=2", 0},
                 {"gpt", "data=2,tensor=3", 0},
                 {"lenet5", "data=2,channel=3", 0},
                 {"mlp", "data=3,filter=2", 0},
                 {"gpt", "data=3", 2},
                 {"gpt", "data=3,tensor=2", 1}};
    static const ll_size small[] = {
        {"layers", 2, ""}, {"width", 20, ""}, {"heads", 5, ""}, {"seq", 6, ""}, {"vocab", 23, ""}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        ll_graph *g = part_model(cases[c].model, 6, "sgd", 0, small, 5);
        ll_mesh m;
        ll_placement *place;
        int bundles = 0;
        no_error(ll_mesh_parse(cases[c].mesh, &m));
        no_error(ll_place(g, &(ll_place_opts){.mesh = &m, .zero = cases[c].zero}, &place));
        for (size_t bytes = 1 << 9; bytes <= 1 << 20; bytes += bytes * GROWS / 8) {
            ll_lower_opts how = {.target = &ll_target_cpu, .bucket_bytes = bytes};
            how.compress = bytes % 3 ? 0 : 1 << ll_mesh_axis(&m, LL_AXIS_DATA);
            how.n_micro = bytes % 5 ? 1 : 2;
            ll_program *first = lowered(place, 0, &how);
            for (int r = 1; r < m.n_rank; r++) {
                ll_program *p = lowered(place, r, &how);
                if (strcmp(collectives(first), collectives(p)))
                    fail_msg("%s on %s, %zu bytes: rank %d has\n%s\nrank 0\n%s", cases[c].model,
                             cases[c].mesh, bytes, r, collectives(p), collectives(first));
                bundles += check_sizes(p, &how);
                ll_program_free(p);
            }
            ll_program_free(first);
        }
        assert_true(bundles > 0 || cases[c].zero);
        ll_placement_free(place);
        ll_graph_free(g);
    }
}

/* The norms of tensors that axis tensor cuts: of all gradients one sum, for clipping; and, with
 * lamb, one more of parameters and directions. */
static void norms_are_one_sum(void **state)
{
    (void)state;
    static const char *const optimizers[] = {"sgd", "lamb"};
    static const ll_size small[] = {
        {"layers", 2, ""}, {"width", 20, ""}, {"heads", 5, ""}, {"seq", 6, ""}, {"vocab", 24, ""}};
    for (int k = 0; k < 2; k++) {
        ll_graph *g = part_model("gpt", 6, optimizers[k], 1, small, 5);
        ll_mesh m;
        ll_placement *place;
        int sums = 0, most = 0;
        no_error(ll_mesh_parse("tensor=2", &m));
        no_error(ll_place(g, &(ll_place_opts){.mesh = &m}, &place));
        ll_program *p = lowered(place, 0, &(ll_lower_opts){.target = &ll_target_cpu});
        for (int i = p->end[LL_MICRO]; i < p->n_instr; i++) {
            const ll_instr *x = &p->instrs[i];
            if (x->collective != LL_ALL_REDUCE || x->wait) continue;
            sums++;
            most = x->n_in > most ? x->n_in : most;
        }
        assert_in_range(sums, 1, k ? 3 : 1);
        assert_true(most > 8);
        ll_program_free(p);
        ll_placement_free(place);
        ll_graph_free(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_bundle_alike),
                                       cmocka_unit_test(norms_are_one_sum)};
    return cmocka_run_group_tests_name("bundles", tests, NULL, NULL);
}
