/* test_chain_gpu.c: chains compiled for a GPU against the reference: every elementwise op, in f32
 * and bf16, near zero and far from it; and every way of reading an operand, at sizes that groups of
 * 4 and 8 do and do not divide. Skipped with a message where there is no GPU. */
#include "dev/gpu.h"
#include "gpu_context.h"
#include "base/rng.h"
#include "ir/op.h"
#include "kern/attr.h"
#include "kern/kern.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static ll_gpu *gpu;

static void must(ll_err rc)
{
    if (rc != LL_OK) fail_msg("%s\n%s", ll_error_text(), ll_error_frames());
}

typedef struct chain_case {
    ll_fused_attr a;
    ll_dtype in[LL_FUSE_IN];
    double far; /* how large operands are */
    bool positive;
} chain_case;

static size_t bytes_of(const ll_tensor *t)
{
    return (size_t)ll_numel(&t->shape) * ll_dtype_bytes(t->dtype);
}

static double draw(const chain_case *c, int k, int64_t i)
{
    double v = c->far * ll_normal_at(7, (uint64_t)k, (uint64_t)i);
    if (c->in[k] == LL_U8) return (double)(i * 37 % 251);
    if (c->in[k] == LL_I32) return (double)(i * 37 % 251 - 100);
    return c->positive ? fabs(v) + 0.01 : v;
}

/* The reference's results, and the GPU's over poison. */
static void run(const chain_case *c, ll_tensor *want, ll_tensor *got)
{
    ll_tensor in[LL_FUSE_IN], dev[LL_FUSE_IN], out[LL_FUSE_OUT];
    char name[16];
    snprintf(name, sizeof name, "fused%d", c->a.n_out);
    const ll_op *op = ll_op_find(name);
    for (int k = 0; k < c->a.n_in; k++) {
        in[k] = dev[k] = (ll_tensor){NULL, c->in[k], LL_SHAPE(c->a.period[k])};
        in[k].data = malloc(bytes_of(&in[k]) + 1);
        for (int64_t i = 0; i < c->a.period[k]; i++)
            ll_store(in[k].data, in[k].dtype, i, draw(c, k, i));
        must(ll_gpu_alloc(gpu, bytes_of(&in[k]), &dev[k].data));
        must(ll_gpu_write(gpu, dev[k].data, in[k].data, bytes_of(&in[k])));
    }
    for (int o = 0; o < c->a.n_out; o++) {
        want[o] = got[o] = out[o] = (ll_tensor){NULL, c->a.out_dtype[o], c->a.shape};
        want[o].data = malloc(bytes_of(&want[o]) + 1);
        got[o].data = malloc(bytes_of(&want[o]) + 1);
        must(ll_gpu_alloc(gpu, bytes_of(&want[o]), &out[o].data));
        must(ll_gpu_fill(gpu, out[o].data, 0x7f, bytes_of(&want[o])));
    }
    ll_kcall call = {.attr = &c->a,
                     .n_in = c->a.n_in,
                     .n_out = c->a.n_out,
                     .in = in,
                     .out = want,
                     .threads = 1,
                     .n_micro = 1,
                     .ctx = gpu_context(),
                     .stream = ll_gpu_stream(gpu, LL_STREAM_COMPUTE)};
    must(op->ref(&call));
    call.in = dev, call.out = out;
    must(ll_solve(op->cuda, &call));
    for (int o = 0; o < c->a.n_out; o++) {
        must(ll_gpu_read(gpu, got[o].data, out[o].data, bytes_of(&out[o])));
        must(ll_gpu_wait(gpu));
        ll_gpu_free(gpu, out[o].data);
    }
    for (int k = 0; k < c->a.n_in; k++) ll_gpu_free(gpu, dev[k].data), free(in[k].data);
}

static void hold(const chain_case *c, const char *what)
{
    ll_tensor want[LL_FUSE_OUT], got[LL_FUSE_OUT];
    run(c, want, got);
    for (int o = 0; o < c->a.n_out; o++) {
        double limit = want[o].dtype == LL_BF16 ? 1e-2 : 2e-5;
        for (int64_t i = 0; i < ll_numel(&want[o].shape); i++) {
            double x = ll_load(want[o].data, want[o].dtype, i);
            double y = ll_load(got[o].data, got[o].dtype, i);
            if (x == y || (isnan(x) && isnan(y)) || fabs(x - y) <= limit * (fabs(x) + 1e-2))
                continue;
            fail_msg("%s, result %d, element %lld: %.9g, want %.9g", what, o, (long long)i, y, x);
        }
        free(want[o].data), free(got[o].data);
    }
}

static void whole(chain_case *c, int k, ll_dtype t)
{
    c->in[k] = t;
    c->a.period[k] = ll_numel(&c->a.shape);
    c->a.repeat[k] = 1;
}

/* Eight ops in each chain, every one of the operands themselves. */
static void test_every_op(void **state)
{
    (void)state;
    static const char *const names[] = {
#define X(name, n, value) #name,
        LL_EW(X)
#undef X
    };
    for (int t = 0; t < 3; t++)
        for (int first = 0; first < LL_N_EW; first += LL_FUSE_OUT) {
            chain_case c = {.far = t == 2 ? 12 : 1};
            c.a.shape = LL_SHAPE(1021);
            c.a.n_in = 3;
            for (int k = 0; k < 3; k++) whole(&c, k, t == 1 ? LL_BF16 : LL_F32);
            for (int op = first; op < LL_N_EW && op < first + LL_FUSE_OUT; op++) {
                int s = c.a.n_step++;
                c.a.step[s] = (ll_fused_step){.k = -0.75, .op = (int16_t)op, .b = 1, .c = 2};
                c.a.out[s] = 3 + s;
                c.a.out_dtype[s] = c.in[0];
                c.a.n_out++;
                c.positive |= op == LL_EW_log || op == LL_EW_sqrt || op == LL_EW_rsqrt;
            }
            hold(&c, names[first]);
        }
}

/* r0 r1 + r2 - r3 of operands read in these ways. */
static void test_every_way(void **state)
{
    (void)state;
    static const struct {
        int64_t d[3], period[4], repeat[4];
    } ways[] = {
        {{6, 8, 16}, {768, 16, 6, 1}, {1, 1, 128, 1}},   /* beside, same, scalar */
        {{6, 8, 16}, {768, 8, 128, 48}, {1, 16, 1, 16}}, /* same, beside */
        {{6, 4, 20}, {480, 20, 6, 4}, {1, 1, 80, 20}},   /* by 4 only */
        {{5, 3, 7}, {105, 7, 3, 15}, {1, 1, 7, 7}},      /* none of it divides */
        {{1, 1, 5}, {5, 1, 5, 5}, {1, 1, 1, 1}},         /* fewer than a group */
        {{67, 3, 1031}, {207231, 1031, 201, 67}, {1, 1, 1031, 3093}},
    };
    static const ll_dtype types[][5] = {{LL_BF16, LL_BF16, LL_BF16, LL_BF16, LL_BF16},
                                        {LL_F32, LL_F32, LL_F32, LL_F32, LL_F32},
                                        {LL_BF16, LL_F32, LL_F32, LL_BF16, LL_BF16},
                                        {LL_F32, LL_BF16, LL_U8, LL_I32, LL_BF16},
                                        {LL_U8, LL_BF16, LL_I32, LL_U8, LL_F32}};
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++)
        for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
            chain_case c = {.far = 1};
            c.a.shape = LL_SHAPE(ways[w].d[0], ways[w].d[1], ways[w].d[2]);
            c.a.n_in = 4, c.a.n_step = 3, c.a.n_out = 1;
            for (int k = 0; k < 4; k++) {
                c.in[k] = types[t][k];
                c.a.period[k] = ways[w].period[k], c.a.repeat[k] = ways[w].repeat[k];
            }
            c.a.step[0] = (ll_fused_step){.op = LL_EW_mul, .a = 0, .b = 1};
            c.a.step[1] = (ll_fused_step){.op = LL_EW_add, .a = 4, .b = 2};
            c.a.step[2] = (ll_fused_step){.op = LL_EW_sub, .a = 5, .b = 3};
            c.a.out[0] = 6;
            c.a.out_dtype[0] = types[t][4];
            char what[48];
            snprintf(what, sizeof what, "ways %d, types %d", (int)w, (int)t);
            hold(&c, what);
        }
}

int main(void)
{
    if (!ll_gpu_count()) {
        printf("skipped: no GPU here\n");
        return 77; /* as CMakeLists.txt says */
    }
    if (ll_gpu_open(0, &gpu) != LL_OK) {
        printf("%s\n", ll_error_text());
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_op),
                                       cmocka_unit_test(test_every_way)};
    int failed = cmocka_run_group_tests_name("chains on a GPU", tests, NULL, NULL);
    ll_gpu_close(gpu);
    return failed;
}
