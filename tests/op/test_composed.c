/* test_composed.c: builders that are made of others, each against plain C: its values on machine
 * ref in f64 and on machine cpu in f32, as it fuses there, and its gradients by finite differences.
 * A row of the table is a builder, its operands, and what it is to give. */
#include "ir/graph_text.h"
#include "op/composed.h"
#include "op/trial.h"

static void ok(const row *r, ll_err rc)
{
    if (rc != LL_OK) fail_msg("%s: %s\n%s", r->name, ll_error_text(), ll_error_frames());
}

typedef struct made {
    ll_type type[MOST];
    double bound[MOST]; /* operands are in (-b, b); negative: above -b; 0: any */
    int n;
    double data[MOST][ROOM];
    ll_program *p;
    ll_exec *e;
} made;

/* "f32[3,5]<1" */
static void read_operand(const row *r, int k, made *m)
{
    const char *text = r->operands[k], *bound = strpbrk(text, "<>");
    ll_op none = {.name = r->name};
    ll_arena *a = ll_arena_new();
    int64_t limit[LL_MAX_IN];
    char type[32];
    int n;
    void *attr;
    snprintf(type, sizeof type, "%.*s", bound ? (int)(bound - text) : 31, text);
    ok(r, ll_parse_trial(&none, type, a, &n, &m->type[k], limit, &attr));
    m->bound[k] = bound ? (*bound == '<' ? 1 : -1) * strtod(bound + 1, NULL) : 0;
    ll_arena_free(a);
}

static double drawn(const made *m, int k, int64_t i)
{
    double b = m->bound[k], v = ll_normal_at(seed, (uint64_t)k, (uint64_t)i);
    if (!ll_dtype_is_float(m->type[k].dtype))
        return (double)ll_below_at(seed, (uint64_t)k, (uint64_t)i, b ? (uint64_t)b : 3);
    v += copysign(1e-2, v); /* corners are at 0 */
    return b > 0 ? 0.95 * b * tanh(v) : b < 0 ? -b + 0.1 + fabs(v) : v;
}

/* Results "y", "s" = sum(y w), and "d0", ... = ds/d(operand). */
static void open_row(const row *r, const ll_target *target, ll_dtype dtype, made *m)
{
    ll_graph *g = ll_graph_new(r->name), *typed;
    ll_val v[MOST], x[MOST], d[MOST];
    int n_x = 0;
    char name[16];
    m->n = 0;
    while (m->n < MOST && r->operands[m->n]) {
        read_operand(r, m->n, m);
        snprintf(name, sizeof name, "in%d", m->n);
        v[m->n] = ll_input(g, name, LL_STATE, m->type[m->n], (ll_init){0});
        if (ll_dtype_is_float(m->type[m->n].dtype) && !r->no_grad) x[n_x++] = v[m->n];
        m->n++;
    }
    ll_val y = r->build(g, v);
    ok(r, ll_graph_check(g));
    ll_graph_result(g, "y", y);
    if (n_x) {
        ll_val w = ll_state(g, "w", ll_graph_shape(g, y), (ll_init){LL_NORMAL, 1});
        ll_val s = ll_sum_all(g, ll_mul(g, y, w));
        ll_graph_result(g, "s", s);
        ll_grad(g, s, x, n_x, d);
    }
    for (int i = 0; i < n_x; i++) {
        snprintf(name, sizeof name, "d%s", ll_value_of(g, x[i])->name + 2);
        ll_graph_result(g, name, d[i]);
    }
    ok(r, ll_retype(g, dtype, false, &typed));
    ok(r, ll_lower(typed, &(ll_lower_opts){.target = target, .n_micro = 1, .threads = 2}, &m->p));
    ok(r, ll_exec_open(m->p, &(ll_exec_opts){.seed = 3, .poison = true}, &m->e));
    ll_graph_free(typed);
    ll_graph_free(g);
}

static ll_tensor tensor(const made *m, int slot)
{
    const ll_slot *s = &m->p->slots[slot];
    return (ll_tensor){ll_exec_data(m->e, slot, 0), s->type.dtype, s->type.shape};
}

static ll_tensor input(const made *m, int k)
{
    char name[16];
    snprintf(name, sizeof name, "in%d", k);
    int slot = ll_program_input(m->p, name);
    return slot < 0 ? (ll_tensor){0} : tensor(m, slot);
}

static void set_operands(made *m)
{
    for (int k = 0; k < m->n; k++) {
        ll_tensor t = input(m, k);
        int64_t n = ll_numel(&m->type[k].shape);
        assert_true(n <= ROOM);
        for (int64_t i = 0; i < n; i++) {
            m->data[k][i] = drawn(m, k, i);
            if (!t.data) continue; /* nobody reads it */
            ll_store(t.data, t.dtype, i, m->data[k][i]);
            if (t.dtype == LL_F32) m->data[k][i] = ll_load(t.data, t.dtype, i);
        }
    }
}

static void run(const row *r, const made *m)
{
    ok(r, ll_exec_run(m->e, LL_MICRO, 1));
    ok(r, ll_exec_run(m->e, LL_REPORT, 1));
}

static void close_row(made *m)
{
    ll_exec_close(m->e);
    ll_program_free(m->p);
}

static void hold_values(const row *r, const made *m, const char *where, double bar)
{
    const double *in[MOST];
    double want[ROOM];
    int64_t n[MOST];
    for (int k = 0; k < m->n; k++) in[k] = m->data[k], n[k] = ll_numel(&m->type[k].shape);
    ll_tensor y = tensor(m, ll_program_result(m->p, "y"));
    assert_true(ll_numel(&y.shape) <= ROOM);
    r->plain(in, n, want);
    for (int64_t i = 0; i < ll_numel(&y.shape); i++) {
        double got = ll_load(y.data, y.dtype, i);
        if (y.dtype == LL_I32) bar = 0;
        if (!(fabs(got - want[i]) <= bar * (1 + fabs(want[i]))))
            fail_msg("%s on %s: element %lld is %.12g, want %.12g (seed %llu)", r->name, where,
                     (long long)i, got, want[i], (unsigned long long)seed);
    }
}

static double value(const row *r, const made *m)
{
    run(r, m);
    return ll_load(tensor(m, ll_program_result(m->p, "s")).data, LL_F64, 0);
}

/* A central difference of the fourth order against d, for each element of operand k. */
static void hold_gradient(const row *r, const made *m, int k)
{
    char name[16];
    snprintf(name, sizeof name, "d%d", k);
    int slot = ll_program_result(m->p, name);
    ll_tensor x = input(m, k), d = tensor(m, slot);
    double got[ROOM], scale = 1e-2, *at = (double *)x.data;
    run(r, m);
    int64_t n = ll_numel(&d.shape);
    for (int64_t i = 0; i < n; i++) {
        got[i] = ll_load(d.data, LL_F64, i);
        scale = fmax(scale, fabs(got[i]));
    }
    for (int64_t i = 0; i < n; i++) {
        const double h = 1e-4, old = at ? at[i] : 0;
        double f[4] = {0};
        for (int j = 0; at && j < 4; j++) {
            at[i] = old + (j < 2 ? j - 2 : j - 1) * h;
            f[j] = value(r, m);
        }
        if (at) at[i] = old;
        double want = (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * h);
        if (!(fabs(want - got[i]) <= 1e-6 * scale))
            fail_msg("%s: gradient by element %lld of operand %d is %.12g, want %.12g (seed %llu)",
                     r->name, (long long)i, k, got[i], want, (unsigned long long)seed);
    }
}

static void test_row(const row *r)
{
    made m;
    open_row(r, &ll_target_ref, LL_F64, &m);
    set_operands(&m);
    run(r, &m);
    hold_values(r, &m, "ref", r->loose ? 1e-9 : 1e-11);
    for (int k = 0; k < m.n && !r->no_grad; k++)
        if (ll_dtype_is_float(m.type[k].dtype)) hold_gradient(r, &m, k);
    close_row(&m);
    open_row(r, &ll_target_cpu, LL_F32, &m);
    set_operands(&m);
    run(r, &m);
    hold_values(r, &m, "cpu", r->loose ? 1e-3 : 2e-5);
    close_row(&m);
}

static void test_all(void **state)
{
    (void)state;
    const char *only = getenv("ONLY"), *given = getenv("SEED");
    if (given) seed = strtoull(given, NULL, 10);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!only || !strcmp(only, rows[i].name)) test_row(&rows[i]);
}

/* d(x stop(x))/dx is stop(x), and the node is gone from the program. */
static void test_stop_gradient(void **state)
{
    (void)state;
    ll_graph *g = ll_graph_new("stop");
    ll_val x = ll_state(g, "x", LL_SHAPE(5), (ll_init){LL_NORMAL, 1}), d;
    ll_grad(g, ll_mul(g, x, ll_stop_gradient(g, x)), &x, 1, &d);
    ll_graph_result(g, "d", ll_sub(g, d, x));
    ll_graph_result(g, "none", ll_sum_all(g, ll_stop_gradient(g, x)));
    made m;
    const row r = {.name = "stop_gradient"};
    ok(&r, ll_lower(g, &(ll_lower_opts){.target = &ll_target_cpu, .n_micro = 1}, &m.p));
    ok(&r, ll_exec_open(m.p, &(ll_exec_opts){.seed = 3}, &m.e));
    run(&r, &m);
    ll_tensor t = tensor(&m, ll_program_result(m.p, "d"));
    for (int i = 0; i < 5; i++) assert_true(ll_load(t.data, t.dtype, i) == 0);
    for (int i = 0; i < m.p->n_instr; i++)
        assert_string_not_equal(m.p->instrs[i].op, "stop_gradient");
    close_row(&m);
    ll_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all),
                                       cmocka_unit_test(test_stop_gradient)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
