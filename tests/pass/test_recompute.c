/* test_recompute.c: activations that are made again.
 *
 *   bits     models train to the same bits whatever is kept, in exact mode and in micro-batches too
 *   facts    what the pass says it keeps is what its graph keeps, and planned memory falls
 *   random   random graphs train to the same bits
 *   budgets  are kept, or refused
 *   offload  the same of what is laid aside in a file: bits, memory as planned, a limit kept
 *
 * SEED=7 test_recompute starts random graphs there, COUNT=1 stops after one. */
#include "exec/session.h"
#include "pass/random_graph.h"
#include "pass/recompute.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void must(ll_err rc, const char *what)
{
    if (rc != LL_OK) fail_msg("%s: %s\n%s", what, ll_error_text(), ll_error_frames());
}

static const ll_recompute_how selective = {.policy = LL_RECOMPUTE_SELECTIVE},
                              full = {.policy = LL_RECOMPUTE_FULL};

/* ---- models ---- */

static const struct net {
    const char *model;
    int64_t batch;
    ll_size sizes[6];
    bool saves; /* there is something to save */
} nets[] = {{"lenet5", 3, {{0}}, true},
            {"mlp", 5, {{"depth", 4, ""}}, false},
            {"resnet18", 3, {{"image", 33, ""}, {"width", 5, ""}, {"classes", 7, ""}}, true},
            {"googlenet", 2, {{"image", 48, ""}, {"classes", 11, ""}}, true},
            {"gpt",
             3,
             {{"layers", 3, ""},
              {"width", 24, ""},
              {"heads", 3, ""},
              {"seq", 13, ""},
              {"vocab", 29, ""},
              {"dropout", 200, ""}},
             true}};
enum { N_NET = sizeof nets / sizeof *nets, GPT = N_NET - 1 };

static ll_graph *make(const struct net *n)
{
    const ll_model *m = ll_model_find(n->model);
    ll_graph *g = ll_graph_new(n->model);
    ll_build b = {.batch = n->batch, .training = true};
    memcpy(b.sizes, m->sizes, sizeof b.sizes);
    for (int i = 0; i < LL_MAX_SIZES && b.sizes[i].name; i++)
        for (int k = 0; k < 6 && n->sizes[k].name; k++)
            if (!strcmp(b.sizes[i].name, n->sizes[k].name)) b.sizes[i].value = n->sizes[k].value;
    ll_minimize(g, m->declare(g, &b), &(ll_optim){.name = "adamw", .clip = 1});
    must(ll_graph_check(g), n->model);
    return g;
}

static ll_recomputed facts_of(const ll_graph *g, const ll_recompute_how *how)
{
    ll_recomputed f;
    ll_graph *made;
    must(ll_recompute(g, how, &f, &made), "recompute");
    ll_graph_free(made);
    return f;
}

/* "123B": halfway between all and what full keeps. */
static const char *halfway(const ll_graph *g, char out[32])
{
    ll_recomputed f = facts_of(g, &full);
    snprintf(out, 32, "%.0fB", (f.before + f.after) / 2);
    return out;
}

static ll_session *open_session(ll_graph *g, const ll_session_opts *o)
{
    ll_session *s;
    must(ll_session_open(g, o, &s), o->recompute ? o->recompute : "none");
    s->checked = true; /* batch data is written where it lies */
    return s;
}

static void train(ll_session *s, int steps)
{
    const ll_program *p = s->p;
    for (int step = 0; step < steps; step++) {
        for (int i = 0; i < p->n_input; i++) {
            const ll_slot *x = &p->slots[p->inputs[i].slot];
            int64_t n = ll_numel(&x->type.shape) * p->n_micro;
            uint64_t stream = ll_stream(x->name, (uint64_t)step);
            for (int64_t k = 0; x->kind == LL_BATCH && k < n; k++)
                ll_store(ll_exec_data(s->e, p->inputs[i].slot, 0), x->type.dtype, k,
                         x->type.dtype == LL_I32 ? (double)ll_below_at(5, stream, (uint64_t)k, 7)
                                                 : ll_normal_at(5, stream, (uint64_t)k));
        }
        must(ll_session_run(s, 0.01), "step");
    }
}

static void same_slots(const char *what, const ll_session *a, int x, const ll_session *b, int y)
{
    const ll_slot *s = &a->p->slots[x];
    assert_true(y >= 0 && b->p->slots[y].bytes == s->bytes);
    if (memcmp(ll_exec_data(a->e, x, 0), ll_exec_data(b->e, y, 0), s->bytes))
        fail_msg("%s: %s has other bits", what, s->name ? s->name : "a result");
}

static void same_bits(const char *what, const ll_session *a, const ll_session *b)
{
    for (int i = 0; i < a->p->n_result; i++)
        same_slots(what, a, a->p->results[i].slot, b,
                   ll_program_result(b->p, a->p->results[i].name));
    assert_true(a->n_kept > 0);
    for (int i = 0; i < a->n_kept; i++)
        same_slots(what, a, a->kept[i], b, ll_program_input(b->p, a->p->slots[a->kept[i]].name));
}

/* Trains under every policy; o says the rest. */
static void check_bits(const struct net *n, ll_session_opts o, int steps)
{
    char budget[32], what[96];
    ll_graph *g = make(n);
    ll_session *want = open_session(g, &o);
    train(want, steps);
    const char *const policies[] = {"none", "selective", "full", halfway(g, budget)};
    for (int i = 0; i < 4; i++) {
        o.recompute = policies[i];
        ll_session *s = open_session(g, &o);
        train(s, steps);
        snprintf(what, sizeof what, "%s, recompute %s", n->model, policies[i]);
        same_bits(what, want, s);
        assert_int_equal(s->cut->lean != NULL, i > 0);
        if (n->saves && i > 1) assert_true(s->cut->recomputed.n_node > 0);
        ll_session_close(s);
    }
    ll_session_close(want);
    ll_graph_free(g);
}

static void test_bits(void **state)
{
    (void)state;
    for (int i = 0; i < N_NET; i++) check_bits(&nets[i], (ll_session_opts){.threads = 2}, 5);
}

static void test_micro_batches(void **state)
{
    (void)state;
    check_bits(&nets[GPT], (ll_session_opts){.threads = 1, .micro_batches = 3}, 2);
    check_bits(&nets[2], (ll_session_opts){.threads = 1, .micro_batches = 2}, 2);
}

static void test_exact(void **state)
{
    (void)state;
    check_bits(&nets[0], (ll_session_opts){.threads = 1, .exact = true}, 2);
    check_bits(&nets[GPT], (ll_session_opts){.threads = 1, .exact = true}, 2);
}

static void test_bf16(void **state)
{
    (void)state;
    check_bits(&nets[GPT], (ll_session_opts){.threads = 2, .precision = "bf16"}, 2);
}

/* ---- facts ---- */

static ll_val shown(const ll_graph *g, ll_val v) /* whose bytes v is */
{
    while (ll_maker(g, v) && ll_maker(g, v)->op->alias) v = ll_maker(g, v)->in[0];
    return v;
}

/* Bytes of forward values that backward nodes read. */
static double kept(const ll_graph *g)
{
    double sum = 0;
    bool *seen = LL_NEW_ARRAY(g->arena, bool, g->n_value);
    for (int i = 0; i < g->n_node; i++)
        for (int k = 0; k < g->nodes[i].n_in && g->nodes[i].of.phase == LL_BACKWARD; k++) {
            ll_val v = shown(g, g->nodes[i].in[k]);
            const ll_node *m = ll_maker(g, v);
            if (!m || m->of.phase != LL_FORWARD || seen[v.id]) continue;
            const ll_type *t = &ll_value_of(g, v)->type;
            seen[v.id] = true;
            sum += (double)ll_numel(&t->shape) * (double)ll_dtype_bytes(t->dtype);
        }
    return sum;
}

static void check_facts(const ll_graph *g, const ll_recompute_how *how, ll_recomputed *f)
{
    ll_graph *made;
    int again = 0;
    must(ll_recompute(g, how, f, &made), "recompute");
    for (int i = 0; i < made->n_node; i++) {
        const ll_node *n = &made->nodes[i];
        if (!n->of.again) continue;
        again++;
        assert_int_equal(n->of.phase, LL_BACKWARD);
        assert_true(n->op != &ll_op_accum);
    }
    assert_int_equal(again, f->n_node);
    assert_true(kept(made) == f->after);
    assert_true(f->after <= f->before);
    assert_int_equal(f->extra > 0, again > 0);
    ll_graph_free(made);
}

static void test_facts(void **state)
{
    (void)state;
    for (int i = 0; i < N_NET; i++) {
        ll_recomputed a, b, c;
        ll_graph *g = make(&nets[i]);
        check_facts(g, &selective, &a);
        check_facts(g, &full, &b);
        assert_true(b.after <= a.after && b.extra >= a.extra);
        if (nets[i].saves) assert_true(b.after < b.before);
        for (int k = 0; k <= 8; k++) {
            ll_recompute_how how = {LL_RECOMPUTE_BUDGET, b.after + (b.before - b.after) * k / 8};
            check_facts(g, &how, &c);
            assert_true(c.after <= how.budget);
            assert_true(c.extra <= b.extra);
            if (k == 8) assert_int_equal(c.n_node, 0);
        }
        ll_graph_free(g);
    }
}

/* Planned memory falls with what is kept. */
static void test_memory(void **state)
{
    (void)state;
    struct net deep = nets[GPT];
    deep.sizes[0].value = 12;
    deep.sizes[5].value = 0;
    ll_graph *g = make(&deep);
    char budget[32];
    const char *const policies[] = {"none", "selective", halfway(g, budget), "full"};
    double work[4];
    for (int i = 0; i < 4; i++) {
        ll_session *s = open_session(g, &(ll_session_opts){.threads = 1, .recompute = policies[i]});
        work[i] = (double)ll_program_kinds(s->p).other;
        print_message("gpt of 12 layers, %-10s %6.0f KiB of activations and work\n", policies[i],
                      work[i] / 1024);
        ll_session_close(s);
    }
    assert_true(work[1] < 0.75 * work[0]);
    assert_true(work[2] < 0.65 * work[0]);
    assert_true(work[3] < work[0] / 3);
    ll_graph_free(g);
}

/* ---- laid aside ---- */

/* Trains within shares of the memory that it takes otherwise; returns the least share, of 20, that
 * will do. */
static int check_aside(const struct net *n, ll_session_opts o, int steps)
{
    char what[96];
    ll_graph *g = make(n);
    ll_session *want = open_session(g, &o), *s;
    int least = 20;
    train(want, steps);
    o.offload = "/tmp";
    for (int share = 18; share >= 4; share -= 3) {
        o.memory = want->p->bytes / 20 * (size_t)share;
        snprintf(what, sizeof what, "%s in %d %% of its memory", n->model, 5 * share);
        ll_err rc = ll_session_open(g, &o, &s);
        if (rc == LL_E_MEM) break;
        must(rc, what);
        assert_true(s->p->bytes <= o.memory && s->p->aside_bytes > 0);
        assert_int_equal(ll_exec_bytes(s->e), s->p->bytes);
        s->checked = true;
        s->e->opts.poison = true;
        train(s, steps);
        same_bits(what, want, s);
        ll_session_close(s);
        least = share;
    }
    print_message("%-9s trains in %d %% of its memory\n", n->model, 5 * least);
    ll_session_close(want);
    ll_graph_free(g);
    return least;
}

static void test_aside(void **state)
{
    (void)state;
    for (int i = 0; i < N_NET; i++) check_aside(&nets[i], (ll_session_opts){.threads = 2}, 2);
    check_aside(&nets[GPT], (ll_session_opts){.threads = 1, .micro_batches = 3}, 2);
    check_aside(&nets[2], (ll_session_opts){.threads = 1, .micro_batches = 2}, 2);
    check_aside(&nets[GPT], (ll_session_opts){.threads = 1, .exact = true}, 2);
    check_aside(&nets[GPT], (ll_session_opts){.threads = 2, .precision = "bf16"}, 2);
    check_aside(&nets[GPT], (ll_session_opts){.threads = 1, .recompute = "selective"}, 2);
    struct net heads = nets[GPT]; /* of which copies are shown in other shapes */
    heads.sizes[2].value = 6;
    heads.batch = 6;
    check_aside(&heads, (ll_session_opts){.threads = 1, .exact = true, .micro_batches = 2}, 2);
    struct net deep = nets[GPT]; /* in less than half of its memory */
    deep.sizes[0].value = 8;
    deep.sizes[1].value = 48;
    deep.sizes[3].value = 61;
    deep.batch = 6;
    assert_true(check_aside(&deep, (ll_session_opts){.threads = 1}, 2) <= 9);
}

/* Of a program within 60 % of its memory, by a link of so much for a byte: bytes of state that lie
 * aside, and how much arithmetic a load has beside it, in the mean, before it is awaited. */
static void price(const ll_graph *g, double copied, double *state, double *ahead)
{
    ll_target t = ll_target_cpu;
    ll_lower_opts o = {.target = &t, .threads = 1};
    ll_program *p;
    t.aside = ll_target_cuda.aside;
    t.aside.copied = copied;
    must(ll_lower(g, &o, &p), "lowering");
    o.memory = p->bytes / 10 * 6;
    ll_program_free(p);
    must(ll_lower(g, &o, &p), "lowering within a limit");
    assert_true(p->bytes <= o.memory && p->aside_bytes > 0);
    assert_non_null(strstr(ll_program_print(p, p->arena), ", in pinned host memory\n"));
    *state = *ahead = 0;
    int n = 0;
    for (int i = 0; i < p->n_input; i++) {
        const ll_slot *s = &p->slots[p->inputs[i].slot];
        if (s->region == LL_ASIDE) *state += (double)s->bytes;
    }
    for (int i = 0; i < p->n_instr; i++) {
        if (p->instrs[i].aside != LL_LOAD || i >= p->end[LL_MICRO]) continue;
        for (int k = i; k < p->instrs[i].pair; k++) *ahead += p->instrs[k].flops;
        n++;
    }
    if (n) *ahead /= n;
    ll_program_free(p);
}

/* The cost of the link to the host tells what is laid aside there, and when its copies begin. */
static void test_aside_prices(void **state)
{
    (void)state;
    struct net deep = nets[GPT];
    deep.sizes[0].value = 8;
    deep.sizes[1].value = 48;
    deep.batch = 6;
    ll_graph *g = make(&deep);
    double moments[3], ahead[3];
    for (int i = 0; i < 3; i++) {
        double copied = (double[]){0.002, 0.2, 20}[i];
        price(g, copied, &moments[i], &ahead[i]);
        print_message("a byte in %5.3f ns: %.0f KiB of state aside, loads begin %.0f FLOPs ahead\n",
                      copied, moments[i] / 1024, ahead[i]);
    }
    assert_true(moments[2] > moments[0] && ahead[1] > ahead[0] && ahead[2] > 2 * ahead[1]);
    ll_graph_free(g);
}

static void test_aside_refused(void **state)
{
    (void)state;
    ll_graph *g = make(&nets[GPT]);
    ll_session *s;
    ll_session_opts o = {.threads = 1, .offload = "/tmp"};
    assert_int_equal(ll_session_open(g, &o, &s), LL_E_ARG);
    o.memory = 20000;
    assert_int_equal(ll_session_open(g, &o, &s), LL_E_MEM);
    if (!strstr(ll_error_message(), "besides what is offloaded: allow that"))
        fail_msg("%s", ll_error_message());
    s = open_session(g, &(ll_session_opts){.threads = 1});
    o.memory = s->p->bytes * 3 / 4;
    ll_session_close(s);
    o.offload = "/nowhere";
    assert_int_equal(ll_session_open(g, &o, &s), LL_E_IO);
    assert_non_null(strstr(ll_error_message(), "/nowhere"));
    o.offload = "host";
    assert_int_equal(ll_session_open(g, &o, &s), LL_E_ARG);
    assert_non_null(strstr(ll_error_message(), "name a folder"));
    ll_graph_free(g);
}

/* Without marks, segments are chosen: with n layers kept values are about 2 sqrt(n) of them. */
static void test_unmarked(void **state)
{
    (void)state;
    enum { LAYERS = 64, C = 16 };
    ll_graph *g = ll_graph_new("deep");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(9, C));
    for (int i = 0; i < LAYERS; i++) {
        char name[16];
        snprintf(name, sizeof name, "fc%d", i);
        x = ll_gelu(g, ll_linear(g, name, x, C, true));
    }
    ll_val loss = ll_mean(g, ll_square(g, x));
    ll_minimize(g, loss, &(ll_optim){.name = "sgd"});
    ll_recomputed f;
    check_facts(g, &full, &f);
    print_message("%d layers without marks: %.0f of %.0f bytes kept\n", LAYERS, f.after, f.before);
    assert_true(f.after < f.before / 4);
    ll_session *a = open_session(g, &(ll_session_opts){.threads = 1});
    ll_session *b = open_session(g, &(ll_session_opts){.threads = 1, .recompute = "full"});
    assert_true(ll_program_kinds(b->p).other < ll_program_kinds(a->p).other / 2);
    ll_session_close(b);
    ll_session_close(a);
    ll_graph_free(g);
}

/* ---- random graphs ---- */

static uint64_t first_seed = 1;
static int count = 120;

static void train_random(const rg *r, const ll_graph *g, int n_micro, rg_run *run)
{
    must(rg_open(g, &(ll_lower_opts){.target = &ll_target_cpu, .n_micro = n_micro}, run), "open");
    rg_feed(r, run);
    for (uint64_t step = 0; step < 2; step++) must(rg_step(run, step), "step");
}

static void same_random(uint64_t seed, const rg_run *a, const rg_run *b)
{
    for (int i = 0; i < a->p->n_input; i++) {
        int x = a->p->inputs[i].slot, y = ll_program_input(b->p, a->p->inputs[i].name);
        if (memcmp(ll_exec_data(a->e, x, 0), ll_exec_data(b->e, y, 0), a->p->slots[x].bytes))
            fail_msg("seed %llu: %s has other bits", (unsigned long long)seed,
                     a->p->inputs[i].name);
    }
}

static int check_random(uint64_t seed)
{
    rg r;
    rg_run want, got;
    ll_val loss = rg_make(&r, seed);
    for (int i = 0; i < r.g->n_node; i++) { /* one in three without marks */
        if (seed % 3 && rg_one_in(&r, 12)) r.g->of.block++;
        r.g->nodes[i].of.block = r.g->of.block;
    }
    ll_minimize(r.g, loss, &(ll_optim){.name = "momentum"});
    must(ll_graph_check(r.g), "random graph");
    int n_micro = 1 + (int)rg_below(&r, 3), again = 0;
    ll_recomputed f = facts_of(r.g, &full);
    ll_recompute_how how[] = {selective, full, {LL_RECOMPUTE_BUDGET, (f.before + f.after) / 2}};
    train_random(&r, r.g, n_micro, &want);
    for (int i = 0; i < 3; i++) {
        ll_graph *made;
        must(ll_recompute(r.g, &how[i], &f, &made), "recompute");
        again += f.n_node;
        train_random(&r, made, n_micro, &got);
        same_random(seed, &want, &got);
        rg_close(&got);
        ll_graph_free(made);
    }
    rg_close(&want);
    ll_graph_free(r.g);
    return again;
}

static void test_random(void **state)
{
    (void)state;
    int again = 0;
    for (int i = 0; i < count; i++) again += check_random(first_seed + (uint64_t)i);
    print_message("%d nodes made again\n", again);
    assert_true(count < 100 || again > 3 * count);
}

/* ---- settings ---- */

static void test_settings(void **state)
{
    (void)state;
    static const char *const bad[] = {"",      "some",     "Full",    "200", "MiB",
                                      "-1MiB", "1e999GiB", "200MiB!", "nanB"};
    ll_recompute_how how;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(ll_recompute_parse(bad[i], &how), LL_E_ARG);
        assert_non_null(strstr(ll_error_text(), "none, selective, full"));
    }
    must(ll_recompute_parse(NULL, &how), "NULL");
    assert_int_equal(how.policy, LL_RECOMPUTE_NONE);
    must(ll_recompute_parse("1.5 MiB", &how), "1.5 MiB");
    assert_true(how.policy == LL_RECOMPUTE_BUDGET && how.budget == 1.5 * 1024 * 1024);
    ll_graph *g = make(&nets[GPT]);
    ll_session *s;
    assert_int_equal(ll_session_open(g, &(ll_session_opts){.recompute = "much"}, &s), LL_E_ARG);
    assert_int_equal(ll_session_open(g, &(ll_session_opts){.recompute = "64B"}, &s), LL_E_ARG);
    assert_non_null(strstr(ll_error_text(), "even full recomputation keeps"));
    ll_graph_free(g);
}

int main(void)
{
    const char *s = getenv("SEED"), *n = getenv("COUNT");
    if (s) first_seed = strtoull(s, NULL, 10);
    if (n) count = atoi(n);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits),         cmocka_unit_test(test_micro_batches),
        cmocka_unit_test(test_exact),        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_facts),        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_unmarked),     cmocka_unit_test(test_random),
        cmocka_unit_test(test_settings),     cmocka_unit_test(test_aside),
        cmocka_unit_test(test_aside_prices), cmocka_unit_test(test_aside_refused),
    };
    return cmocka_run_group_tests_name("recompute", tests, NULL, NULL);
}
