/* test_chain.c: which nodes become one chain, as text; and the limits of a chain. */
#include "fuse/named.h"
#include "pass/passes.h"

#include "fuse/fuse.h"
#include "kern/attr.h"

static ll_err chain(const ll_graph *g, ll_graph **out)
{
    return ll_fuse_one(fusion_named("chain"), g, NULL, NULL, out);
}

#define X "  %1: f32[4,3] = batch \"x\"\n"

static void test_chains(void **state)
{
    (void)state;
    becomes(chain, /* bias and activation after a product; the bias is spread inside */
            "  %1: f32[4,5] = batch \"x\"\n"
            "  %2: f32[3,5] = param \"w\" init=zeros\n"
            "  %3: f32[3] = param \"b\" init=zeros\n"
            "  %4: f32[4,3] = matmul(%1, %2) {spec=\"nc,kc->nk\", out=f32}\n"
            "  %5: f32[4,3] = broadcast(%3) {spec=\"k->nk\", shape=[4,3]}\n"
            "  %6: f32[4,3] = add(%4, %5) # fc.add\n"
            "  %7: f32[4,3] = gelu(%6) # fc.gelu\n"
            "  result \"r\" = %7\n",
            "  %1: f32[4,5] = batch \"x\"\n"
            "  %2: f32[3,5] = param \"w\" init=zeros\n"
            "  %3: f32[3] = param \"b\" init=zeros\n"
            "  %4: f32[4,3] = matmul(%1, %2) {spec=\"nc,kc->nk\", out=f32}\n"
            "  %5: f32[4,3] = fused1(%4, %3) {chain=(shape=[4,3], in=[12, 3], r2=add(r0,r1), "
            "r3=gelu(r2), out=[r3:f32])} # fc.fused1\n"
            "  result \"r\" = %5\n");
    becomes(chain, /* spread along the last dimension, from a scalar, and one with a gap */
            X "  %2: f32[4] = batch \"n\"\n"
              "  %3: f32[] = batch \"s\"\n"
              "  %4: f32[4,3] = broadcast(%2) {spec=\"n->nc\", shape=[4,3]}\n"
              "  %5: f32[4,3] = broadcast(%3) {spec=\"->nc\", shape=[4,3]}\n"
              "  %6: f32[4,3] = mul(%1, %4)\n"
              "  %7: f32[4,3] = sub(%6, %5)\n"
              "  %8: f32[4,2,3] = broadcast(%7) {spec=\"ac->abc\", shape=[4,2,3]}\n"
              "  %9: f32[4,2,3] = tanh(%8)\n"
              "  result \"r\" = %9\n",
            X "  %2: f32[4] = batch \"n\"\n"
              "  %3: f32[] = batch \"s\"\n"
              "  %4: f32[4,3] = fused1(%1, %2, %3) {chain=(shape=[4,3], in=[12, 4*3, 1], "
              "r3=mul(r0,r1), r4=sub(r3,r2), out=[r4:f32])}\n"
              "  %5: f32[4,2,3] = broadcast(%4) {spec=\"ac->abc\", shape=[4,2,3]}\n"
              "  %6: f32[4,2,3] = tanh(%5)\n"
              "  result \"r\" = %6\n");
}

static void test_constants(void **state)
{
    (void)state;
    becomes(chain, /* a step holds one number; a second one is an operand */
            X "  %2: f32[4,3] = fill() {dtype=f32, shape=[4,3], value=0.5}\n"
              "  %3: f32[4,3] = fill() {dtype=f32, shape=[4,3], value=7}\n"
              "  %4: f32[4,3] = max(%2, %1)\n"
              "  %5: f32[4,3] = select(%4, %2, %3)\n"
              "  result \"r\" = %5\n",
            X "  %2: f32[] = fill() {dtype=f32, shape=[], value=7}\n"
              "  %3: f32[4,3] = fused1(%1, %2) {chain=(shape=[4,3], in=[12, 1], "
              "r2=max(k,r0,0.5), r3=select(r2,k,r1,0.5), out=[r3:f32])}\n"
              "  result \"r\" = %3\n");
}

static void test_alone(void **state)
{
    (void)state;
    /* one node with nothing to take in stays itself; so do other element types */
    static const char alone[] = "  %1: f32[4,3] = batch \"x\"\n"
                                "  %2: i32[4] = batch \"i\"\n"
                                "  %3: f64[4] = batch \"d\"\n"
                                "  %4: f32[4,3] = relu(%1)\n"
                                "  %5: i32[4] = add(%2, %2)\n"
                                "  %6: i32[4] = mul(%5, %2)\n"
                                "  %7: f64[4] = exp(%3)\n"
                                "  %8: f64[4] = neg(%7)\n"
                                "  result \"a\" = %4\n  result \"b\" = %6\n"
                                "  result \"c\" = %8\n";
    becomes(chain, alone, alone);
    /* but not what is empty here: another rank may hold some of it */
    becomes(chain,
            "  %1: f32[0,2] = batch \"e\"\n"
            "  %2: f32[0,2] = exp(%1)\n"
            "  %3: f32[0,2] = neg(%2)\n"
            "  result \"a\" = %3\n",
            "  %1: f32[0,2] = batch \"e\"\n"
            "  %2: f32[0,2] = fused1(%1) {chain=(shape=[0,2], in=[0], r1=exp(r0), r2=neg(r1), "
            "out=[r2:f32])}\n"
            "  result \"a\" = %2\n");
    becomes(chain,
            "  %1: f32[3] = batch \"e\"\n"
            "  %2: f32[2,3,0] = broadcast(%1) {spec=\"b->abc\", shape=[2,3,0]}\n"
            "  %3: f32[2,3,0] = batch \"x\"\n"
            "  %4: f32[2,3,0] = add(%2, %3)\n"
            "  result \"a\" = %4\n",
            "  %1: f32[3] = batch \"e\"\n"
            "  %2: f32[2,3,0] = batch \"x\"\n"
            "  %3: f32[2,3,0] = fused1(%1, %2) {chain=(shape=[2,3,0], in=[3, 0], r2=add(r0,r1), "
            "out=[r2:f32])}\n"
            "  result \"a\" = %3\n");
}

static void test_outsiders(void **state)
{
    (void)state;
    becomes(chain, /* a sum reads the middle: the chain ends there, and what follows is another */
            X "  %2: f32[4,3] = exp(%1)\n"
              "  %3: f32[4,3] = neg(%2)\n"
              "  %4: f32[4] = sum(%3) {spec=\"nc->n\"}\n"
              "  %5: f32[4,3] = sin(%3)\n"
              "  %6: f32[4,3] = broadcast(%4) {spec=\"n->nc\", shape=[4,3]}\n"
              "  %7: f32[4,3] = mul(%5, %6)\n"
              "  result \"r\" = %7\n",
            X "  %2: f32[4,3] = fused1(%1) {chain=(shape=[4,3], in=[12], r1=exp(r0), r2=neg(r1), "
              "out=[r2:f32])}\n"
              "  %3: f32[4] = sum(%2) {spec=\"nc->n\"}\n"
              "  %4: f32[4,3] = fused1(%2, %3) {chain=(shape=[4,3], in=[12, 4*3], r2=sin(r0), "
              "r3=mul(r2,r1), out=[r3:f32])}\n"
              "  result \"r\" = %4\n");
    becomes(chain, /* a bias is added again after a product, and the sum not stored */
            X "  %2: f32[3,3] = param \"w\" init=zeros\n"
              "  %3: f32[3] = param \"b\" init=zeros\n"
              "  %4: f32[4,3] = matmul(%1, %2) {spec=\"nc,kc->nk\", out=f32}\n"
              "  %5: f32[4,3] = broadcast(%3) {spec=\"c->nc\", shape=[4,3]}\n"
              "  %6: f32[4,3] = add(%4, %5)\n"
              "  %7: f32[4,3] = gelu(%6)\n"
              "  %8: f32[4,3] = matmul(%7, %2) {spec=\"nc,kc->nk\", out=f32}\n"
              "  %9: f32[4,3] = dgelu(%6)\n"
              "  %10: f32[4,3] = mul(%9, %8)\n"
              "  result \"r\" = %10\n",
            X "  %2: f32[3,3] = param \"w\" init=zeros\n"
              "  %3: f32[3] = param \"b\" init=zeros\n"
              "  %4: f32[4,3] = matmul(%1, %2) {spec=\"nc,kc->nk\", out=f32}\n"
              "  %5: f32[4,3] = fused1(%4, %3) {chain=(shape=[4,3], in=[12, 3], r2=add(r0,r1), "
              "r3=gelu(r2), out=[r3:f32])}\n"
              "  %6: f32[4,3] = matmul(%5, %2) {spec=\"nc,kc->nk\", out=f32}\n"
              "  %7: f32[4,3] = fused1(%4, %3, %6) {chain=(shape=[4,3], in=[12, 3, 12], "
              "r3=add(r0,r1), r4=dgelu(r3), r5=mul(r4,r2), out=[r5:f32])}\n"
              "  result \"r\" = %7\n");
    becomes(chain, /* two chains meet; what is read later leaves as a result of its own */
            X "  %2: f32[4,3] = batch \"y\"\n"
              "  %3: f32[4,3] = exp(%1)\n"
              "  %4: f32[4,3] = sin(%2)\n"
              "  %5: f32[4,3] = mul(%3, %4)\n"
              "  %6: f32[4] = sum(%4) {spec=\"nc->n\"}\n"
              "  result \"r\" = %5\n  result \"s\" = %6\n",
            X "  %2: f32[4,3] = batch \"y\"\n"
              "  %3: f32[4,3], %4: f32[4,3] = fused2(%1, %2) {chain=(shape=[4,3], in=[12, 12], "
              "r2=exp(r0), r3=sin(r1), r4=mul(r2,r3), out=[r3:f32, r4:f32])}\n"
              "  %5: f32[4] = sum(%3) {spec=\"nc->n\"}\n"
              "  result \"r\" = %4\n  result \"s\" = %5\n");
}

static void test_types(void **state)
{
    (void)state;
    becomes(chain, /* bf16 may come in and go out; read inside, it would not be rounded */
            "  %1: bf16[4] = batch \"x\"\n"
            "  %2: f32[4] = cast(%1) {dtype=f32}\n"
            "  %3: f32[4] = exp(%2)\n"
            "  %4: bf16[4] = cast(%3) {dtype=bf16}\n"
            "  %5: f32[4] = cast(%4) {dtype=f32}\n"
            "  %6: f32[4] = neg(%5)\n"
            "  result \"r\" = %6\n",
            "  %1: bf16[4] = batch \"x\"\n"
            "  %2: bf16[4] = fused1(%1) {chain=(shape=[4], in=[4], r1=cast(r0), r2=exp(r1), "
            "r3=cast(r2), out=[r3:bf16])}\n"
            "  %3: f32[4] = fused1(%2) {chain=(shape=[4], in=[4], r1=cast(r0), r2=neg(r1), "
            "out=[r2:f32])}\n"
            "  result \"r\" = %3\n");
}

static void test_rates(void **state)
{
    (void)state;
    becomes(chain, /* what is the same in every micro-batch stays apart from what is not */
            X "  %2: f32[4,3] = param \"p\" init=zeros\n"
              "  %3: f32[4,3] = exp(%2)\n"
              "  %4: f32[4,3] = mul(%3, %1)\n"
              "  %5: f32[4,3] = sin(%4)\n"
              "  %6: f32[4,3] = accum(%5)\n"
              "  %7: f32[4,3] = sub(%3, %6)\n"
              "  %8: f32[4,3] = neg(%7)\n"
              "  update \"p\" = %8\n",
            X "  %2: f32[4,3] = param \"p\" init=zeros\n"
              "  %3: f32[4,3] = exp(%2)\n"
              "  %4: f32[4,3] = fused1(%3, %1) {chain=(shape=[4,3], in=[12, 12], r2=mul(r0,r1), "
              "r3=sin(r2), out=[r3:f32])}\n"
              "  %5: f32[4,3] = accum(%4)\n"
              "  %6: f32[4,3] = fused1(%3, %5) {chain=(shape=[4,3], in=[12, 12], r2=sub(r0,r1), "
              "r3=neg(r2), out=[r3:f32])}\n"
              "  update \"p\" = %6\n");
}

/* ---- limits ---- */

static void within_limits(const ll_graph *g)
{
    for (int i = 0; i < g->n_node; i++) {
        if (strncmp(g->nodes[i].op->name, "fused", 5)) continue;
        const ll_fused_attr *a = (const ll_fused_attr *)g->nodes[i].attr;
        assert_true(a->n_step <= LL_FUSE_STEPS && a->n_in <= LL_FUSE_IN && a->n_out <= LL_FUSE_OUT);
    }
}

/* Fuses g, frees it, and counts chains. */
static int chains_of(ll_graph *g, int *n_node)
{
    ll_graph *fused;
    int n = 0;
    must(chain(g, &fused), "fuse");
    within_limits(fused);
    for (int i = 0; i < fused->n_node; i++) n += !strncmp(fused->nodes[i].op->name, "fused", 5);
    if (n_node) *n_node = fused->n_node;
    ll_graph_free(fused);
    ll_graph_free(g);
    return n;
}

static void test_many_steps(void **state)
{
    (void)state;
    for (int steps = LL_FUSE_STEPS - 1; steps <= LL_FUSE_STEPS + 1; steps++) {
        ll_graph *g = ll_graph_new("long");
        ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(7));
        for (int i = 0; i < steps; i++) x = i % 2 ? ll_sin(g, x) : ll_exp(g, x);
        ll_graph_result(g, "r", x);
        int n_node, n = chains_of(g, &n_node);
        assert_int_equal(n, 1);
        assert_int_equal(n_node, steps <= LL_FUSE_STEPS ? 1 : 2);
    }
}

static ll_val batch(ll_graph *g, int i)
{
    return ll_batch(g, ll_arena_printf(g->arena, "x%d", i), LL_F32, LL_SHAPE(7));
}

static void test_many_operands(void **state)
{
    (void)state;
    for (int n_in = LL_FUSE_IN - 1; n_in <= LL_FUSE_IN + 1; n_in++) {
        ll_graph *g = ll_graph_new("wide");
        ll_val sum = batch(g, 0);
        for (int i = 1; i < n_in; i++) {
            ll_val x = batch(g, i);
            sum = ll_add(g, sum, ll_mul(g, x, ll_sin(g, x))); /* three reads, one operand */
        }
        ll_graph_result(g, "r", sum);
        assert_int_equal(chains_of(g, NULL), n_in <= LL_FUSE_IN ? 1 : 2);
    }
}

/* Every value of a long chain is a result: it is cut, and all of them are there. */
static void test_many_results(void **state)
{
    (void)state;
    for (int n = LL_FUSE_OUT; n <= 4 * LL_FUSE_OUT; n += 3) {
        ll_graph *g = ll_graph_new("results"), *fused;
        ll_val x = batch(g, 0), y = batch(g, 1);
        for (int i = 0; i < n; i++) {
            x = ll_add(g, ll_sin(g, x), y);
            ll_graph_result(g, ll_arena_printf(g->arena, "r%d", i), x);
        }
        must(chain(g, &fused), "fuse");
        within_limits(fused);
        assert_int_equal(fused->n_result, n);
        if (n == LL_FUSE_OUT) assert_int_equal(fused->n_node, 1);
        assert_true(fused->n_node < n);
        ll_graph_free(fused);
        ll_graph_free(g);
    }
}

/* ---- what matters most ---- */

static void test_optimizers(void **state)
{
    (void)state;
    static const struct {
        const char *name, *op; /* the one chain that updates a parameter and its moments */
    } rules[] = {{"sgd", "fused1"},     {"momentum", "fused2"}, {"nesterov", "fused2"},
                 {"adagrad", "fused2"}, {"rmsprop", "fused2"},  {"adam", "fused3"},
                 {"adamw", "fused3"}};
    for (int i = 0; i < 7; i++) {
        ll_graph *g = ll_graph_new(rules[i].name), *simple, *fused;
        ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(6, 4));
        ll_val h = ll_relu(g, ll_linear(g, "a", x, 5, true));
        ll_minimize(g, ll_mean(g, ll_square(g, ll_linear(g, "b", h, 3, true))),
                    &(ll_optim){.name = rules[i].name, .weight_decay = 0.1, .clip = 1});
        must(ll_simplify(g, &simple), "simplify");
        must(chain(simple, &fused), "fuse");
        int n_update = 0;
        for (int u = 0; u < fused->n_update; u++) {
            const ll_value *next = ll_value_of(fused, fused->updates[u].next);
            assert_string_equal(fused->nodes[next->node].op->name, rules[i].op);
            if (ll_value_of(fused, fused->updates[u].input)->kind != LL_PARAM) continue;
            n_update++;
            for (int o = 0; o < fused->nodes[next->node].n_out; o++) { /* each one is an update */
                bool found = false;
                for (int v = 0; v < fused->n_update; v++)
                    found |= fused->updates[v].next.id == fused->nodes[next->node].out[o].id;
                assert_true(found);
            }
        }
        assert_int_equal(n_update, 4);
        assert_true(count_op(fused, "broadcast") == 0); /* all absorbed */
        ll_graph_free(fused);
        ll_graph_free(simple);
        ll_graph_free(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chains),       cmocka_unit_test(test_constants),
        cmocka_unit_test(test_alone),        cmocka_unit_test(test_outsiders),
        cmocka_unit_test(test_types),        cmocka_unit_test(test_rates),
        cmocka_unit_test(test_many_steps),   cmocka_unit_test(test_many_operands),
        cmocka_unit_test(test_many_results), cmocka_unit_test(test_optimizers),
    };
    return cmocka_run_group_tests_name("chain", tests, NULL, NULL);
}
