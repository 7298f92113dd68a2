/* test_fused_models.c: what fusions find in whole models, and that these train as before; what is
 * left alone, and what is said about it. */
#include "fuse/named.h"
#include "fuse/fuse.h"
#include "kern/attr.h"
#include "exec/session.h"
#include "pass/partition.h"
#include "pass/passes.h"

#include <math.h>

enum { STEPS = 2, BATCH = 3, TIME = 22 };

/* ---- models ---- */

static ll_graph *gpt(int64_t width, int64_t vocab)
{
    ll_graph *g = ll_graph_new("step");
    const ll_build b = {.batch = BATCH,
                        .training = true,
                        .sizes = {{"layers", 1, ""},
                                  {"width", width, ""},
                                  {"heads", 2, ""},
                                  {"seq", TIME, ""},
                                  {"vocab", vocab, ""},
                                  {"dropout", 0, ""}}};
    ll_minimize(g, ll_model_find("gpt")->declare(g, &b), &(ll_optim){.name = "sgd", .clip = 1});
    return g;
}

static ll_graph *llama(void)
{
    ll_graph *g = ll_graph_new("step");
    const ll_build b = {.batch = BATCH,
                        .training = true,
                        .sizes = {{"layers", 2, ""},
                                  {"width", 32, ""},
                                  {"heads", 4, ""},
                                  {"kv_heads", 2, ""},
                                  {"head", 0, ""},
                                  {"hidden", 48, ""},
                                  {"seq", TIME, ""},
                                  {"vocab", 13, ""},
                                  {"rope_base", 10000, ""},
                                  {"norm_eps", 10000000, ""},
                                  {"tied", 1, ""}}};
    ll_minimize(g, ll_model_find("llama")->declare(g, &b), &(ll_optim){.name = "sgd", .clip = 1});
    return g;
}

static ll_val norm(ll_graph *g, const char *name, ll_val x, int64_t out, int64_t taps,
                   int64_t stride)
{
    ll_graph_push(g, name);
    x = ll_conv_layer(g, "conv", x, out, taps,
                      &(ll_conv){.stride = {stride, stride}, .pad = {taps / 2, taps / 2}}, false);
    x = ll_batchnorm_layer(g, "bn", x, true);
    ll_graph_pop(g);
    return x;
}

/* A stem, a block whose residual is a batch norm too, and two plain blocks; a relu's result with
 * other readers, and a batch norm without a relu. */
static ll_graph *resnet(int64_t batch, int64_t c)
{
    ll_graph *g = ll_graph_new("step");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(batch, 9, 9, 3));
    ll_val h = ll_relu(g, norm(g, "stem", x, 5, 3, 1));
    ll_val a = ll_relu(g, norm(g, "a1", h, c, 3, 2));
    a = norm(g, "a3", ll_relu(g, norm(g, "a2", a, c, 1, 1)), c, 1, 1);
    h = ll_relu(g, ll_add(g, a, norm(g, "a0", h, c, 1, 2)));
    for (int i = 0; i < 2; i++) {
        ll_val b = norm(g, i ? "c1" : "b1", h, c, i ? 1 : 3, 1);
        h = ll_relu(g, i ? ll_add(g, b, h) : ll_add(g, h, b));
    }
    h = norm(g, "last", h, 4, 1, 1);
    ll_val loss = ll_mean(g, ll_square(g, ll_sub(g, ll_sigmoid(g, h), h)));
    ll_graph_result(g, "loss", loss);
    ll_minimize(g, loss, &(ll_optim){.name = "momentum", .momentum = 0.9});
    return g;
}

static ll_graph *resnet_f32(void)
{
    return resnet(2, 8);
}

static ll_graph *resnet_bf16(void)
{
    return resnet(3, 64);
}

static ll_graph *gpt_f32(void)
{
    return gpt(10, 13);
}

static ll_graph *gpt_bf16(void)
{
    return gpt(64, 72);
}

static ll_graph *gpt_uneven(void)
{
    return gpt(64, 515);
}

/* Residuals and their norms: the first is read by products of 8-bit floats alone. */
static ll_graph *residual_net(void)
{
    enum { C = 128 };
    ll_graph *g = ll_graph_new("step");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(2, 64, C));
    ll_val y = ll_batch(g, "y", LL_I32, LL_SHAPE(2, 64));
    ll_val r = ll_add(g, ll_linear(g, "z", x, C, true), ll_linear(g, "w", x, C, false));
    ll_val h = ll_linear(g, "a", ll_layernorm_layer(g, "n", r), 144, true);
    r = ll_add(g, r, ll_linear(g, "b", ll_gelu(g, h), C, true));
    h = ll_linear(g, "c", ll_layernorm_layer(g, "m", r), 40, true);
    ll_val loss = ll_mean(g, ll_cross_entropy(g, h, y));
    ll_graph_result(g, "loss", loss);
    ll_minimize(g, loss, &(ll_optim){.name = "sgd"});
    return g;
}

typedef struct expected {
    const char *op;
    int n;
} expected;

static const struct model {
    const char *name;
    ll_graph *(*make)(void);
    ll_precision precision;
    double tolerance;
    expected ops[14];
} models[] = {{"gpt, f32",
               gpt_f32,
               LL_PRECISION_f32,
               1e-5,
               {{"add_layernorm", 2},      /* of the second norm and the last */
                {"layernorm_back_sum", 2}, /* with a residual, and a bias before it */
                {"layernorm_back", 1},
                {"cross_entropy_back", 1},
                {"embedding_grad_onto", 1},
                {"product2", 1},
                {"gelu", 0},
                {"dgelu", 0}}},
              {"gpt, bf16",
               gpt_bf16,
               LL_PRECISION_bf16,
               0.01,
               {{"classify", 1}, {"cross_entropy_back", 0}, {"product2", 2}, {"pad", 0}}},
              {"gpt, bf16, vocabulary 515",
               gpt_uneven,
               LL_PRECISION_bf16,
               0.01,
               {{"classify", 1}, {"pad", 2}}},
              {"llama, f32",
               llama,
               LL_PRECISION_f32,
               1e-5,
               {{"rmsnorm", 1}, /* of the tokens */
                {"add_rmsnorm", 4},
                {"rmsnorm_back", 5},
                {"rmsnorm_dx", 0},
                {"rmsnorm_dw", 0},
                {"head_dots", 2},
                {"fused1", 28},  /* silu is made again in the backward pass */
                {"fused2", 3}}}, /* gradients of gate and up; the norm of all gradients */
              {"residuals, fp8",
               residual_net,
               LL_PRECISION_fp8,
               0.02,
               {{"layernorm_both", 1},
                {"add_layernorm", 1}, /* before the logits */
                {"gelu", 0},
                {"dgelu", 0}}},
              {"residuals, fp8block",
               residual_net,
               LL_PRECISION_fp8block,
               0.02,
               {{"layernorm_both", 0},
                {"quantize", 0},
                {"quantize_blocks", 2},
                {"quantize_blocks_both", 6},
                {"gelu", 0}}},
              {"resnet, f32",
               resnet_f32,
               LL_PRECISION_f32,
               1e-5,
               {{"batchnorm_relu", 3},
                {"batchnorm_stats", 2}, /* of the first block, with its residual's */
                {"batchnorm_two_relu", 1},
                {"batchnorm_add_relu", 0},
                {"batchnorm_add_relu_bits", 2},
                {"batchnorm", 1}, /* the last */
                {"batchnorm_relu_grad", 3},
                {"batchnorm_two_sum_relu_grad", 1},
                {"batchnorm_sum_relu_grad", 1},
                {"batchnorm_add_relu_grad", 1}, /* its y has one reader */
                {"batchnorm_grad", 1},
                {"select", 0}}},
              {"resnet, bf16",
               resnet_bf16,
               LL_PRECISION_bf16,
               0.01,
               {{"tap_stats", 3},
                {"batchnorm_known_relu", 1},
                {"batchnorm_known_add_relu_bits", 1},
                {"batchnorm_relu", 2},
                {"batchnorm_stats", 1}, /* of the residual, whose stride is 2 */
                {"batchnorm_add_relu_bits", 1}}}};

static void train(ll_graph *g, double *loss)
{
    ll_session *s;
    must(ll_session_open(g, &(ll_session_opts){.machine = "ref", .seed = 3}, &s), "open");
    for (int v = 1; v < g->n_value; v++) {
        const ll_value *x = &g->values[v];
        if (x->node >= 0 || x->kind != LL_BATCH || strlen(x->name) > 1) continue;
        int64_t n = ll_numel(&x->type.shape);
        char *data = (char *)ll_arena_alloc(g->arena, (size_t)n * 4);
        for (int64_t i = 0; i < n; i++) {
            int32_t token = (int32_t)(i * (*x->name == 'x' ? 7 : 5) % 13);
            float number = sinf((float)(i * i % 91));
            memcpy(data + 4 * i, x->type.dtype == LL_I32 ? (void *)&token : (void *)&number, 4);
        }
        must(ll_session_set(s, x->name, 0, data, (size_t)n * 4), x->name);
    }
    for (int i = 0; i < STEPS; i++) {
        must(ll_session_run(s, 0.1), "run");
        loss[i] = ll_session_result(s, "loss");
    }
    ll_session_close(s);
}

static void test_model(void **state)
{
    const struct model *m = (const struct model *)*state;
    ll_graph *g = m->make(), *simple, *plain, *fused;
    double want[STEPS], got[STEPS];
    must(ll_simplify(g, &simple), "simplify");
    must((m->precision == LL_PRECISION_f32 ? ll_sweep : ll_narrow)(simple, &plain), "precision");
    must(ll_simplify(plain, &fused), "simplify");
    must(ll_fuse(&fused, &ll_target_cuda, m->precision, 0, false, NULL), "fuse");
    train(plain, want);
    train(fused, got);
    for (int i = 0; i < STEPS; i++)
        if (!(fabs(want[i] - got[i]) < m->tolerance * fabs(want[i])))
            fail_msg("step %d: loss %.9g, fused %.9g", i, want[i], got[i]);
    assert_true(fabs(want[0] - want[STEPS - 1]) > 1e-3 * fabs(want[0]));
    for (const expected *x = m->ops; x->op; x++)
        if (count_op(fused, x->op) != x->n)
            fail_msg("%d of %s, want %d", count_op(fused, x->op), x->op, x->n);
    ll_graph_free(fused);
    ll_graph_free(plain);
    ll_graph_free(simple);
    ll_graph_free(g);
}

/* ---- what is left alone ---- */

#define NORM                                                                                       \
    "  %1: f32[4,3] = batch \"x\"\n"                                                               \
    "  %2: f32[3] = param \"g\" init=zeros\n"
#define SUM                                                                                        \
    "  %1: bf16[6,5] = batch \"x\"\n"                                                              \
    "  %2: bf16[8,5] = batch \"w\"\n"                                                              \
    "  %3: f32[8] = param \"b\" init=zeros\n"                                                      \
    "  %4: bf16[6,8] = matmul(%1, %2) {spec=\"nc,kc->nk\", out=bf16}\n"                            \
    "  %5: f32[6,8] = broadcast(%3) {spec=\"k->nk\", shape=[6,8]}\n"                               \
    "  %6: bf16[6,8] = add(%4, %5)\n"
#define LOSS                                                                                       \
    "  %1: bf16[80,64] = batch \"x\"\n"                                                            \
    "  %2: bf16[72,64] = batch \"w\"\n"                                                            \
    "  %3: i32[80] = batch \"y\"\n"                                                                \
    "  %4: f32[80] = batch \"d\"\n"                                                                \
    "  %5: bf16[80,72] = matmul(%1, %2) {spec=\"rk,nk->rn\", out=bf16}\n"                          \
    "  %6: bf16[80,72], %7: f32[80], %8: f32[80] = cross_entropy_back(%5, %3, %4)\n"               \
    "  %9: bf16[80,64] = matmul(%6, %2) {spec=\"rn,nk->rk\", out=bf16}\n"

static const struct {
    const char *fusion, *why, *body;
} alone[] = {
    {"batchnorm_relu", "others read z", /* a norm that others read too */
     NORM "  %4: f32[4,3], %5: f32[3], %6: f32[3] = batchnorm(%1, %2, %2) {eps=1e-05}\n"
          "  %7: f32[4,3] = relu(%4)\n  result \"a\" = %7\n  result \"b\" = %4\n"},
    {"batchnorm_relu", "r is made after it",
     NORM "  %4: f32[4,3], %5: f32[3], %6: f32[3] = batchnorm(%1, %2, %2) {eps=1e-05}\n"
          "  %7: f32[4,3] = exp(%1)\n  %8: f32[4,3] = add(%4, %7)\n"
          "  %9: f32[4,3] = relu(%8)\n  result \"a\" = %9\n"},
    {"add_layernorm", "part of a chain", /* a bias that a chain takes in with the sum */
     NORM "  %4: f32[4,3] = broadcast(%2) {spec=\"c->nc\", shape=[4,3]}\n"
          "  %5: f32[4,3] = add(%1, %4)\n"
          "  %6: f32[4,3], %7: f32[4], %8: f32[4] = layernorm(%5, %2, %2) {eps=1e-05}\n"
          "  result \"r\" = %6\n"},
    {"product", "a chain takes the bias in",
     SUM "  %7: bf16[6,8] = tanh(%6)\n  result \"r\" = %7\n"},
    {"product", "others read p", SUM "  result \"r\" = %6\n  result \"s\" = %4\n"},
    {"product", NULL, /* it runs along rows */
     "  %1: f32[6,5] = batch \"x\"\n  %2: f32[6,5] = batch \"w\"\n"
     "  %3: f32[6] = param \"b\" init=zeros\n"
     "  %4: f32[6,6] = matmul(%1, %2) {spec=\"nc,kc->nk\", out=f32}\n"
     "  %5: f32[6,6] = broadcast(%3) {spec=\"n->nk\", shape=[6,6]}\n"
     "  %6: f32[6,6] = add(%4, %5)\n  result \"r\" = %6\n"},
    {"slope", "others read p", /* gelu's operand */
     "  %1: bf16[6,5] = batch \"x\"\n  %2: bf16[8,5] = batch \"w\"\n  %3: bf16[8] = batch \"b\"\n"
     "  %4: bf16[6,5] = batch \"d\"\n  %5: bf16[5,8] = batch \"v\"\n"
     "  %6: bf16[6,8], %7: bf16[6,8] = product2(%1, %2, %3) {spec=\"nc,kc->nk\", out=bf16, "
     "bias=1, act=2, scaled=0}\n"
     "  %8: bf16[6,8] = product1(%4, %5, %7) {spec=\"nc,ck->nk\", out=bf16, bias=0, act=3, "
     "scaled=0}\n"
     "  result \"y\" = %6\n  result \"p\" = %7\n  result \"s\" = %8\n"},
    {"classify", "others read l",
     LOSS "  %10: f32[72,64] = matmul(%1, %6) {spec=\"rk,rn->nk\", out=f32}\n"
          "  result \"a\" = %9\n  result \"b\" = %10\n  result \"c\" = %7\n  result \"l\" = %5\n"},
    {"classify", "others read lse",
     LOSS "  %10: f32[72,64] = matmul(%1, %6) {spec=\"rk,rn->nk\", out=f32}\n"
          "  result \"a\" = %9\n  result \"b\" = %10\n  result \"c\" = %8\n"},
    {"classify", NULL, /* a gradient that is read otherwise than as rows times a matrix */
     LOSS "  %10: f32[64,72] = matmul(%1, %6) {spec=\"rk,rn->kn\", out=f32}\n"
          "  result \"a\" = %9\n  result \"b\" = %10\n  result \"c\" = %7\n"},
    {"cross_entropy_back", "dloss is made after it", /* it depends on the loss */
     "  %1: f32[4,3] = batch \"x\"\n  %2: i32[4] = batch \"y\"\n"
     "  %3: f32[4], %4: f32[4] = cross_entropy(%1, %2)\n"
     "  %5: f32[4,3] = cross_entropy_grad(%3, %1, %2, %4)\n  result \"d\" = %5\n"},
};

static void test_alone(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof alone / sizeof *alone; i++) {
        ll_graph *g = parse_body(alone[i].body), *made;
        ll_buf log = {.arena = g->arena};
        must(ll_fuse_one(fusion_named(alone[i].fusion), g, &log, NULL, &made), alone[i].body);
        if (made) fail_msg("%s is found in\n%s", alone[i].fusion, alone[i].body);
        if (alone[i].why && (!log.text || !strstr(log.text, alone[i].why)))
            fail_msg("%s: want \"%s\", not \"%s\"", alone[i].fusion, alone[i].why,
                     log.text ? log.text : "");
        ll_graph_free(g);
    }
}

/* The sum of a norm's gradient and a product, which another norm reads, is the first norm's. */
static void test_whose_sum(void **state)
{
    (void)state;
    ll_graph *g = parse_body(
        NORM "  %3: f32[4] = batch \"mean\"\n  %4: f32[4] = batch \"rstd\"\n"
             "  %5: f32[3,3] = param \"m\" init=zeros\n"
             "  %6: f32[4,3] = product1(%1, %5, %2) {spec=\"nc,kc->nk\", out=f32, bias=1, act=0, "
             "scaled=0}\n"
             "  %7: f32[3], %8: f32[3] = layernorm_dw(%1, %1, %3, %4)\n"
             "  %9: f32[4,3] = layernorm_dx(%1, %1, %2, %3, %4)\n"
             "  %10: f32[4,3] = add(%9, %6)\n"
             "  %11: f32[4,3], %12: f32[4], %13: f32[4] = layernorm(%10, %2, %2) {eps=1e-05}\n"
             "  result \"r\" = %11\n  result \"s\" = %7\n");
    must(ll_fuse(&g, &ll_target_cuda, LL_PRECISION_f32, 0, false, NULL), "fuse");
    assert_int_equal(count_op(g, "add_layernorm"), 0);
    assert_int_equal(count_op(g, "layernorm_back"), 1);
    assert_int_equal(count_op(g, "product1"), 1);
    ll_graph_free(g);
}

/* ---- exact mode on the CPU: the same bits, and none of the arrays ---- */

static ll_exec *run_exact(const ll_graph *g, bool no_fuse, ll_program **p)
{
    ll_exec *e;
    ll_lower_opts how = {.target = &ll_target_cpu, .no_fuse = no_fuse, .threads = 2};
    must(ll_lower(g, &how, p), "lower");
    must(ll_exec_open(*p, &(ll_exec_opts){.seed = 3, .poison = true}, &e), "open");
    for (int v = 1; v < g->n_value; v++) {
        const ll_value *x = &g->values[v];
        if (x->node >= 0) continue;
        void *data = ll_exec_data(e, ll_program_input(*p, x->name), 0);
        for (int64_t i = 0; i < ll_numel(&x->type.shape); i++)
            ll_store(data, x->type.dtype, i,
                     x->type.dtype == LL_I32 ? (double)((i * 7 + v) % 13)
                                             : (double)sinf((float)(i * i % 91 + v)));
    }
    for (int i = 0; i < LL_N_SECTION; i++) must(ll_exec_run(e, i, 0), "run");
    return e;
}

static void test_exact_bits(void **state)
{
    (void)state;
    ll_graph *g = gpt(40, 13), *exact, *fused;
    ll_mesh one = {.n_rank = 1};
    ll_placement *placed;
    must(ll_place(g, &(ll_place_opts){.mesh = &one, .exact = true}, &placed), "place");
    must(ll_partition(placed, 0, &exact), "partition");
    must(ll_simplify(exact, &fused), "simplify");
    must(ll_fuse(&fused, &ll_target_cpu, LL_PRECISION_f32, 0, false, NULL), "fuse");
    static const expected left[] = {{"grid", 1}, /* of the embedding's gradient */
                                    {"reach", 0},
                                    {"sum", 0},
                                    {"matmul", 0},
                                    {0}};
    for (const expected *x = left; x->op; x++)
        if (count_op(fused, x->op) != x->n)
            fail_msg("%d of %s, want %d", count_op(fused, x->op), x->op, x->n);
    assert_true(count_op(fused, "reach_over") > 12);
    ll_program *p[2];
    ll_exec *e[2];
    for (int i = 0; i < 2; i++) e[i] = run_exact(exact, i, &p[i]);
    double loss = *(const float *)ll_exec_data(e[0], ll_program_result(p[0], "loss"), 0);
    assert_true(isfinite(loss)); /* nothing is lost */
    for (int i = 0; i < exact->n_update; i++) {
        const ll_value *x = ll_value_of(exact, exact->updates[i].input);
        const void *a = ll_exec_data(e[0], ll_program_input(p[0], x->name), 0);
        const void *b = ll_exec_data(e[1], ll_program_input(p[1], x->name), 0);
        if (memcmp(a, b, (size_t)ll_numel(&x->type.shape) * ll_dtype_bytes(x->type.dtype)))
            fail_msg("%s differs", x->name);
    }
    for (int i = 0; i < 2; i++) {
        ll_exec_close(e[i]);
        ll_program_free(p[i]);
    }
    ll_graph_free(fused);
    ll_graph_free(exact);
    ll_placement_free(placed);
    ll_graph_free(g);
}

static void test_no_fp8(void **state)
{
    (void)state;
    ll_graph *g = parse_body("  %1: bf16[8,16] = batch \"x\"\n  %2: bf16[16,16] = batch \"w\"\n"
                             "  %3: bf16[8,16] = matmul(%1, %2) {spec=\"nc,kc->nk\", out=bf16}\n"
                             "  result \"y\" = %3\n");
    assert_int_equal(ll_fuse(&g, &ll_target_cuda, LL_PRECISION_fp8, 0, false, NULL), LL_E_GRAPH);
    assert_non_null(strstr(ll_error_text(), "use bf16"));
    ll_graph_free(g);
}

int main(void)
{
    struct CMUnitTest tests[16] = {cmocka_unit_test(test_alone), cmocka_unit_test(test_whose_sum),
                                   cmocka_unit_test(test_no_fp8),
                                   cmocka_unit_test(test_exact_bits)};
    size_t n = 4;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        tests[n++] = (struct CMUnitTest){models[i].name, test_model, NULL, NULL,
                                         (void *)(uintptr_t)&models[i]};
    return _cmocka_run_group_tests("fused models", tests, n, NULL, NULL);
}
