/* test_memory.c: programs run on a shadow of their memory. Each 64 bytes of the slab remember which
 * value was written there last, and in which micro-batch. An instruction's operands must be there
 * when it reads them, and results and next values when the step is over. The shadow knows the
 * program's instructions and the graph's values, and nothing of how memory was planned. What a
 * collective works in while it is under way (its room for packing; else its result or, if it is a
 * reduce-scatter, its operand) must be as its start left it when its wait comes. */
#include "fuse/fuse.h"
#include "exec/session.h"
#include "op/op_int.h"
#include "base/text.h"
#include "pass/partition.h"
#include "pass/random_graph.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { CELL = 64 };
static int n_bundle; /* starts of several collectives at once that were seen */

static void must(ll_err rc, const char *what)
{
    if (rc != LL_OK) fail_msg("%s: %s\n%s", what, ll_error_text(), ll_error_frames());
}

typedef struct cell {
    int value, micro; /* what was written here last; value 0: nothing */
} cell;

typedef struct shadow {
    const char *what; /* for messages */
    const ll_graph *g;
    const ll_program *p;
    cell *cells[2]; /* of each region */
    int *root;      /* value -> the value whose bytes it is */
    bool *micro;    /* value -> made once in each micro-batch */
    int *at;        /* start -> the micro-batch it ran in */
    int n_flying, n_bundle;
} shadow;

static size_t cells_of(size_t bytes)
{
    return (bytes + CELL - 1) / CELL;
}

static size_t slot_bytes(const shadow *s, int slot)
{
    const ll_slot *x = &s->p->slots[slot];
    return x->bytes * (size_t)(x->kind == LL_BATCH ? s->p->n_micro : 1);
}

static void write_slot(shadow *s, int slot, int value, int micro)
{
    const ll_slot *x = &s->p->slots[slot];
    cell *c = s->cells[x->region] + x->offset / CELL;
    for (size_t i = 0; i < cells_of(slot_bytes(s, slot)); i++) c[i] = (cell){value, micro};
}

static void expect(const shadow *s, const char *reader, int slot, int value, int micro)
{
    const ll_slot *x = &s->p->slots[slot];
    const cell *c = s->cells[x->region] + x->offset / CELL;
    for (size_t i = 0; i < cells_of(slot_bytes(s, slot)); i++)
        if (c[i].value != value || c[i].micro != micro)
            fail_msg("%s: %s reads value %d of micro-batch %d, finds %d of %d in cell %zu", s->what,
                     reader, value, micro, c[i].value, c[i].micro, i);
}

/* ---- facts of the graph, found here and not asked of the planner ---- */

static bool is_accum(const ll_node *n)
{
    return !strcmp(n->op->name, "accum");
}

static void find_facts(shadow *s, ll_arena *a)
{
    const ll_graph *g = s->g;
    s->root = LL_NEW_ARRAY(a, int, g->n_value);
    s->micro = LL_NEW_ARRAY(a, bool, g->n_value);
    s->at = LL_NEW_ARRAY(a, int, s->p->n_instr + 1);
    for (int i = 0; i < g->n_value; i++) s->root[i] = i;
    for (int i = 0; i < g->n_node; i++) {
        const ll_node *n = &g->nodes[i];
        bool alias = n->op->alias || (is_accum(n) && s->p->n_micro == 1);
        if (alias) s->root[n->out[0].id] = s->root[n->in[0].id];
    }
    for (int i = 0; i < s->p->end[LL_MICRO]; i++)
        for (int o = 0; o < s->p->instrs[i].n_out; o++) s->micro[s->p->instrs[i].out[o]] = true;
}

/* ---- places ---- */

static void check_places(const shadow *s)
{
    const ll_program *p = s->p;
    assert_int_equal(p->n_slot, s->g->n_value);
    assert_int_equal(p->bytes, p->persistent_bytes + p->work_bytes + p->scratch_bytes);
    for (int i = 1; i < p->n_slot; i++) {
        size_t all = p->slots[i].region == LL_WORK ? p->work_bytes : p->persistent_bytes;
        assert_int_equal(p->slots[i].offset % CELL, 0);
        assert_true(p->slots[i].offset + slot_bytes(s, i) <= all);
        assert_true(p->slots[i].region == LL_WORK || s->g->values[i].node >= 0 ||
                    p->slots[i].input == i);
    }
    assert_true(p->work_bytes >= p->ideal_work_bytes);
    if ((double)p->work_bytes > 1.15 * (double)p->ideal_work_bytes + 1024)
        fail_msg("%s: %zu bytes of work memory, %zu at once", s->what, p->work_bytes,
                 p->ideal_work_bytes);
}

static bool overlap(const shadow *s, int a, int b)
{
    const ll_slot *x = &s->p->slots[a], *y = &s->p->slots[b];
    if (x->region != y->region || !slot_bytes(s, a) || !slot_bytes(s, b)) return false;
    return x->offset < y->offset + slot_bytes(s, b) && y->offset < x->offset + slot_bytes(s, a);
}

/* An instruction may write over an operand only if its op says so. */
static bool may_lie_on(const ll_instr *x, int o, int k)
{
    if (!strncmp(x->op, "fused", 5)) {
        const ll_fused_attr *a = (const ll_fused_attr *)x->attr;
        return a->period[k] == ll_numel(&a->shape) && a->repeat[k] == 1;
    }
    const ll_op *op = ll_op_find(x->op);
    if (op->collective) return o == k && op->in_place; /* each member of a bundle on its own */
    return op->elementwise || (o == 0 && op->in_place >> k & 1);
}

static void check_overlaps(const shadow *s, const ll_instr *x)
{
    for (int o = 0; o < x->n_out; o++) {
        const ll_slot *y = &s->p->slots[x->out[o]];
        for (int k = o + 1; k < x->n_out; k++) assert_false(overlap(s, x->out[o], x->out[k]));
        for (int k = 0; k < x->n_in; k++) {
            const ll_slot *z = &s->p->slots[x->in[k]];
            if (!overlap(s, x->out[o], x->in[k])) continue;
            bool same = y->offset == z->offset && y->bytes == z->bytes &&
                        ll_dtype_bytes(y->type.dtype) == ll_dtype_bytes(z->type.dtype);
            if (!same || !may_lie_on(x, o, k))
                fail_msg("%s: %s writes over its operand %d", s->what, x->name, k);
        }
    }
}

/* ---- a step ---- */

static bool sums_in_operand(const ll_instr *x)
{
    return !x->packing && !strcmp(x->op, "reduce_scatter");
}

static bool holds_operand(const ll_instr *x)
{
    return sums_in_operand(x) || !strcmp(x->op, "rotate");
}

static cell *packing_of(const shadow *s, const ll_instr *x)
{
    assert_int_equal(x->packing_at % CELL, 0);
    assert_true(x->packing_at + x->packing <= s->p->work_bytes);
    return s->cells[LL_WORK] + x->packing_at / CELL;
}

/* Its mark is on what it works in: no value has a number below 0. */
static void run_start(shadow *s, int i, int m)
{
    const ll_instr *x = &s->p->instrs[i];
    for (int k = 0; k < x->n_in; k++) {
        int v = s->root[x->in[k]];
        expect(s, x->name, x->in[k], v, s->micro[v] ? m : -1);
    }
    assert_true(x->n_in == x->n_out);
    assert_true(x->n_in == 1 || x->packing || x->collective == LL_ALL_REDUCE);
    if (!x->packing) check_overlaps(s, x);
    cell *c = packing_of(s, x);
    for (size_t k = 0; k < cells_of(x->packing); k++) c[k] = (cell){-1 - i, m};
    for (int k = 0; k < x->n_out && !x->packing && !sums_in_operand(x); k++)
        write_slot(s, x->out[k], -1 - i, m);
    assert_true(x->pair > i && s->p->instrs[x->pair].wait && s->p->instrs[x->pair].pair == i);
    s->n_bundle += x->n_in > 1;
}

static void run_wait(shadow *s, int i)
{
    int start = s->p->instrs[i].pair, v = s->root[s->p->instrs[start].in[0]];
    const ll_instr *x = &s->p->instrs[start];
    int m = s->at[start];
    const cell *c = packing_of(s, x);
    for (size_t k = 0; k < cells_of(x->packing); k++)
        if (c[k].value != -1 - start || c[k].micro != m)
            fail_msg("%s: what %s packed was overwritten", s->what, x->name);
    if (holds_operand(x)) expect(s, "wait", x->in[0], v, s->micro[v] ? m : -1);
    for (int k = 0; k < x->n_out && !x->packing && !sums_in_operand(x); k++)
        expect(s, "wait", x->out[k], -1 - start, m);
    if (start >= s->p->end[LL_MICRO]) m = -1;
    for (int k = 0; k < x->n_out; k++) {
        assert_int_equal(x->out[k], s->p->instrs[i].out[k]);
        write_slot(s, x->out[k], x->out[k], m);
    }
    for (int k = 0; k < x->n_out; k++) expect(s, "wait", x->out[k], x->out[k], m);
    for (size_t k = 0; k < cells_of(x->packing); k++) /* it is unpacked one by one */
        assert_true(c[k].value == -1 - start);
    s->n_flying--;
}

static void run_instr(shadow *s, int i, int m)
{
    const ll_instr *x = &s->p->instrs[i];
    bool micro = i < s->p->end[LL_MICRO], update = i >= s->p->end[LL_REPORT];
    if (x->last && m < s->p->n_micro - 1) return;
    if (x->wait) {
        run_wait(s, i);
        return;
    }
    if (!x->kernel.run) {
        s->at[i] = micro ? m : s->p->n_micro - 1;
        s->n_flying++;
        run_start(s, i, s->at[i]);
        return;
    }
    for (int k = 0; k < x->n_in; k++) {
        int v = s->root[x->in[k]], last = micro ? m : s->p->n_micro - 1;
        expect(s, x->name, x->in[k], v, s->micro[v] ? last : -1);
    }
    if (!strcmp(x->op, "accum") && m > 0) expect(s, x->name, x->out[0], x->out[0], m - 1);
    check_overlaps(s, x);
    for (int o = 0; o < x->n_out; o++) {
        int v = x->out[o];
        assert_true(update || s->p->slots[v].region == LL_WORK);
        if (s->g->values[v].node < 0) v = s->root[x->in[0]]; /* a copy into an input */
        write_slot(s, x->out[o], v, micro ? m : -1);
    }
}

static void run_step(shadow *s)
{
    const ll_program *p = s->p;
    for (int i = 1; i < p->n_slot; i++)
        if (s->g->values[i].node < 0) write_slot(s, i, i, -1);
    for (int i = 1; i < p->n_slot; i++)
        if (s->g->values[i].node < 0) expect(s, "input", i, i, -1);
    for (int m = 0; m < p->n_micro; m++)
        for (int i = 0; i < p->end[LL_MICRO]; i++) run_instr(s, i, m);
    for (int i = p->end[LL_MICRO]; i < p->n_instr; i++) run_instr(s, i, 0);
    assert_int_equal(s->n_flying, 0);
    for (int i = 0; i < p->n_result; i++) {
        int v = s->root[p->results[i].slot];
        expect(s, p->results[i].name, p->results[i].slot, v, s->micro[v] ? p->n_micro - 1 : -1);
    }
    for (int i = 0; i < s->g->n_update; i++) {
        int v = s->root[s->g->updates[i].next.id], input = s->g->updates[i].input.id;
        const ll_slot *x = &p->slots[input];
        const cell *c = s->cells[x->region] + x->offset / CELL;
        for (size_t k = 0; k < cells_of(x->bytes); k++)
            if (c[k].value != v) fail_msg("%s: the update of %s is not there", s->what, x->name);
    }
}

/* ---- programs ---- */

static void next(ll_err (*pass)(const ll_graph *, ll_graph **), ll_graph **g)
{
    ll_graph *made;
    must(pass(*g, &made), "pass");
    ll_graph_free(*g);
    *g = made;
}

typedef struct setting {
    const char *machine;
    bool bf16, fuse;
    int n_micro;
} setting;

/* Takes the graph through the passes here, so that the program's slots are its values. */
static void check_graph(const char *what, const ll_graph *declared, setting how)
{
    ll_graph *g;
    ll_program *p;
    ll_arena *a = ll_arena_new();
    must(ll_simplify(declared, &g), what);
    if (how.bf16) next(ll_lower_precision, &g);
    if (how.bf16) next(ll_simplify, &g);
    if (how.fuse) must(ll_fuse(&g, &ll_target_cpu, LL_PRECISION_f32, 0, false, NULL), what);
    if (!ll_target_find(how.machine)->fuses) next(ll_expand_fused, &g);
    ll_lower_opts opts = {
        .target = ll_target_find(how.machine), .n_micro = how.n_micro, .as_is = true};
    must(ll_lower(g, &opts, &p), what);
    shadow s = {.what = what, .g = g, .p = p};
    s.cells[LL_PERSISTENT] = LL_NEW_ARRAY(a, cell, cells_of(p->persistent_bytes) + 1);
    s.cells[LL_WORK] = LL_NEW_ARRAY(a, cell, cells_of(p->work_bytes) + 1);
    find_facts(&s, a);
    check_places(&s);
    run_step(&s);
    n_bundle += s.n_bundle;
    ll_program_free(p);
    ll_graph_free(g);
    ll_arena_free(a);
}

static void check_settings(const char *what, const ll_graph *g)
{
    for (int fuse = 0; fuse < 2; fuse++)
        for (int n_micro = 1; n_micro <= 3; n_micro += 2) {
            check_graph(what, g, (setting){"cpu", false, fuse, n_micro});
            check_graph(what, g, (setting){"cpu", true, fuse, n_micro});
        }
    check_graph(what, g, (setting){"ref", false, false, 2});
}

static int64_t width = 24; /* of a gpt */

static ll_graph *model(const char *name, int64_t batch, const char *optimizer)
{
    const ll_model *m = ll_model_find(name);
    ll_build b = {.batch = batch, .training = true};
    assert_non_null(m);
    memcpy(b.sizes, m->sizes, sizeof b.sizes);
    for (int i = 0; i < LL_MAX_SIZES && b.sizes[i].name && !strcmp(name, "gpt"); i++) {
        const struct {
            const char *name;
            int64_t value;
        } small[] = {{"layers", 3}, {"width", width}, {"heads", 2},
                     {"seq", 13},   {"vocab", 31},    {"dropout", 100}};
        for (int k = 0; k < 6; k++)
            if (!strcmp(b.sizes[i].name, small[k].name)) b.sizes[i].value = small[k].value;
    }
    ll_graph *g = ll_graph_new(name);
    ll_val loss = m->declare(g, &b);
    ll_minimize(g, loss, &(ll_optim){.name = optimizer, .weight_decay = 0.1, .clip = 1});
    must(ll_graph_check(g), name);
    return g;
}

static void test_models(void **state)
{
    (void)state;
    static const char *const names[] = {"mlp", "gpt", "lenet5"};
    static const char *const optimizers[] = {"sgd", "adamw", "lamb"};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++) {
            ll_graph *g = model(names[i], 5, optimizers[k]);
            check_settings(names[i], g);
            ll_graph_free(g);
        }
}

/* The starts of a rank's program, in order. */
static char *starts_of(const ll_graph *part, ll_arena *a)
{
    ll_program *p;
    ll_buf b = {.arena = a};
    must(ll_lower(part, &(ll_lower_opts){.target = &ll_target_cpu, .n_micro = 2}, &p), "starts");
    for (int i = 0; i < p->n_instr; i++) {
        const ll_instr *x = &p->instrs[i];
        if (x->kernel.run || x->wait) continue;
        bool halo = !strcmp(x->op, "halo");
        for (int k = 0; k < x->n_in; k++)
            ll_buf_printf(&b, "%s %lld%s ", x->op,
                          halo ? (long long)((const ll_halo_attr *)x->attrs[k])->extent
                               : (long long)((const ll_coll_attr *)x->attrs[k])->serial,
                          k + 1 < x->n_in ? " and" : ",");
    }
    ll_program_free(p);
    ll_buf_puts(&b, "");
    return b.text;
}

/* Each rank's program; and all start their collectives in one order. */
static void check_mesh(const char *name, const char *mesh, int zero, ll_overlap overlap)
{
    static const char *const optimizers[] = {"sgd", "lamb", "adamw", "lars"};
    ll_graph *g = model(name, 12, optimizers[zero]);
    ll_arena *a = ll_arena_new();
    ll_mesh m;
    ll_placement *place;
    char what[64], *first = NULL;
    must(ll_mesh_parse(mesh, &m), mesh);
    must(ll_place(g, &(ll_place_opts){.mesh = &m, .zero = zero, .overlap = overlap}, &place), mesh);
    for (int r = 0; r < m.n_rank; r++) {
        ll_graph *part;
        must(ll_partition(place, r, &part), mesh);
        snprintf(what, sizeof what, "%s on %s, zero %d, rank %d", name, mesh, zero, r);
        for (int n_micro = 1; n_micro <= 2; n_micro++)
            for (int fuse = 0; fuse < 2; fuse++)
                check_graph(what, part, (setting){"cpu", false, fuse, n_micro});
        char *starts = starts_of(part, a);
        if (!first) first = starts;
        assert_true(strlen(first) > 0);
        assert_string_equal(first, starts);
        ll_graph_free(part);
    }
    ll_placement_free(place);
    ll_arena_free(a);
    ll_graph_free(g);
}

static void test_meshes(void **state)
{
    (void)state;
    for (int zero = 0; zero <= 3; zero++) {
        check_mesh("gpt", "data=2", zero, LL_OVERLAP_AUTO);
        check_mesh("lenet5", "data=3", zero, LL_OVERLAP_AUTO);
        check_mesh("gpt", "data=2,tensor=2", zero, LL_OVERLAP_AUTO);
    }
    assert_true(n_bundle > 0);
    width = 128; /* some sums are too large for bundles that others are in */
    check_mesh("gpt", "data=2,tensor=2", 1, LL_OVERLAP_AUTO);
    width = 24;
    check_mesh("gpt", "tensor=3", 0, LL_OVERLAP_AUTO);
    check_mesh("gpt", "tensor=2,sequence=2", 0, LL_OVERLAP_AUTO);
    check_mesh("lenet5", "height=2,width=2", 0, LL_OVERLAP_AUTO);
    check_mesh("lenet5", "channel=2,filter=2", 0, LL_OVERLAP_AUTO);
    /* with every node in pieces that can be */
    check_mesh("lenet5", "data=2,height=3", 1, LL_OVERLAP_ALL);
    check_mesh("gpt", "data=3", 3, LL_OVERLAP_ALL);
    check_mesh("mlp", "rows=2,cols=2", 0, LL_OVERLAP_ALL);
}

static void test_random_graphs(void **state)
{
    (void)state;
    const char *from = getenv("SEED"), *n = getenv("COUNT");
    uint64_t first = from ? strtoull(from, NULL, 10) : 1;
    int count = n ? atoi(n) : 120;
    print_message("seeds %llu to %llu\n", (unsigned long long)first,
                  (unsigned long long)first + (unsigned long long)count - 1);
    for (int i = 0; i < count; i++) {
        rg r;
        char what[32];
        snprintf(what, sizeof what, "seed %llu", (unsigned long long)first + (unsigned)i);
        ll_val loss = rg_make(&r, first + (uint64_t)i);
        ll_minimize(r.g, loss, &(ll_optim){.name = i % 2 ? "lamb" : "nesterov", .clip = 1});
        must(ll_graph_check(r.g), what);
        check_settings(what, r.g);
        ll_graph_free(r.g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_meshes),
        cmocka_unit_test(test_random_graphs),
    };
    return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}
