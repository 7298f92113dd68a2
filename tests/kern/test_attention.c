/* Causal attention and its gradient: fast kernels against reference kernels on odd sizes. */
#include "kcheck.h"
#include "kern/attr.h"

ll_kernel attention_cpu, attention_grad_cpu, attend_cpu, attend_grad_cpu, causal_mask_ref,
    causal_mask_cpu, linear_attend_cpu, linear_attend_grad_cpu;
ll_scratch attend_cpu_scratch, attend_grad_cpu_scratch, linear_attend_cpu_scratch,
    linear_attend_grad_cpu_scratch;

/* batch, time, heads, width */
static const int64_t sizes[][4] = {{1, 1, 1, 1},   {2, 1, 3, 64},   {3, 2, 1, 3},    {1, 5, 2, 1},
                                   {1, 16, 1, 16}, {2, 17, 3, 7},   {1, 95, 1, 5},   {1, 96, 1, 16},
                                   {1, 97, 2, 3},  {1, 113, 1, 80}, {2, 131, 2, 17}, {1, 200, 1, 6},
                                   {0, 3, 2, 4}};
enum { N_SIZE = sizeof sizes / sizeof *sizes };

static void forward(void **)
{
    for (int i = 0; i < N_SIZE; i++)
        for (int big = 0; big < 2; big++) {
            const int64_t *s = sizes[i];
            kcheck k = {"attention", NULL, attention_cpu, attend_cpu_scratch,
                        .tolerance = big ? 3e-4 : 3e-6};
            /* big: scores of some hundreds, so that most weights are exactly one or zero */
            kc_in(&k, kc_normal(LL_SHAPE(s[0], s[1], 3, s[2], s[3]), big ? 10 : 1, 0));
            kc_out(&k, LL_SHAPE(s[0], s[1], s[2], s[3]));
            kc_out(&k, LL_SHAPE(s[0], s[2], s[1]));
            kc_check(&k);
        }
}

/* o and lse are those of qkv, as the forward kernel gives them. The reference takes t^3 d^2, so the
 * long ones are narrow. */
static void backward(void **)
{
    for (int i = 0; i < N_SIZE; i++) {
        const int64_t *s = sizes[i];
        ll_shape o = LL_SHAPE(s[0], s[1], s[2], s[3]);
        kcheck k = {"attention_grad",         NULL,
                    attention_grad_cpu,       attend_grad_cpu_scratch,
                    &(ll_own_attr){.own = 1}, .tolerance = 1e-5};
        if (s[1] * s[1] * s[3] * s[3] * s[0] * s[2] > 10000000) continue;
        kc_in(&k, kc_normal(o, 1, 0));
        kc_in(&k, kc_normal(LL_SHAPE(s[0], s[1], 3, s[2], s[3]), 1, 0));
        kc_in(&k, kc_normal(o, 1, 0));
        kc_in(&k, kc_normal(LL_SHAPE(s[0], s[2], s[1]), 1, 0));
        ll_kcall c = {.n_in = 1, .n_out = 2, .in = &k.in[1], .out = &k.in[2]};
        plain_run(ll_op_find("attention"), &c);
        kc_out(&k, k.in[1].shape);
        kc_check(&k);
    }
}

/* Groups, other keys than queries, parts of both; forward is tests/op/test_attend.c's. */
static void general(void **)
{
    static const struct {
        int64_t t, s, n, g, d, e, mask; /* mask: 0 none, else of its queries */
        ll_attend_attr attr;
    } cases[] = {{100, 130, 1, 2, 3, 5, 0, {0.7, 1, 30}},  {130, 70, 2, 1, 2, 1, 0, {0.7, 1, -60}},
                 {97, 98, 1, 3, 1, 2, 97, {0.5, 0, 0}},    {120, 110, 1, 1, 4, 3, 1, {1, 1, -10}},
                 {110, 60, 1, 1, 3, 3, 0, {0.5, 1, -200}}, {40, 200, 1, 2, 2, 2, 0, {0.5, 1, 100}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t t = cases[i].t, s = cases[i].s, n = cases[i].n, g = cases[i].g;
        kcheck k = {"attend_grad",           NULL,           attend_grad_cpu,
                    attend_grad_cpu_scratch, &cases[i].attr, .tolerance = 2e-5};
        kc_in(&k, kc_normal(LL_SHAPE(1, t, n, g, cases[i].e), 1, 0));
        kc_in(&k, kc_normal(LL_SHAPE(1, t, n, g, cases[i].d), 1, 0));
        kc_in(&k, kc_normal(LL_SHAPE(1, s, n, cases[i].d), 1, 0));
        kc_in(&k, kc_normal(LL_SHAPE(1, s, n, cases[i].e), 1, 0));
        kc_in(&k, kc_normal(LL_SHAPE(1, n, g, t), 0.3, 6));
        kc_in(&k, kc_normal(LL_SHAPE(1, n, g, t), 1, 0));
        if (cases[i].mask) kc_in(&k, kc_normal(LL_SHAPE(1, 1, g, cases[i].mask, s), 1, 0));
        for (int o = 1; o < 4; o++) kc_out(&k, k.in[o].shape);
        kc_check(&k);
    }
}

/* ---- bf16: what the f32 kernels make of the same numbers, up to rounding ---- */

enum { MOST = 8, GUARD = 256 };

static ll_tensor tensor(ll_dtype type, ll_shape shape)
{
    return (ll_tensor){calloc((size_t)ll_numel(&shape) * ll_dtype_bytes(type) + 64, 1), type,
                       shape};
}

/* x in bf16; x itself becomes those numbers. */
static ll_tensor half_of(const ll_tensor *x)
{
    ll_tensor h = tensor(LL_BF16, x->shape);
    for (int64_t i = 0; i < ll_numel(&x->shape); i++) {
        ll_store(h.data, LL_BF16, i, ll_load(x->data, x->dtype, i));
        ll_store(x->data, x->dtype, i, ll_load(h.data, LL_BF16, i));
    }
    return h;
}

static void call(ll_kernel *run, ll_scratch *scratch, const void *attr, const ll_tensor *in,
                 int n_in, ll_tensor *out, int n_out, int threads)
{
    ll_kcall c = {.attr = attr, .n_in = n_in, .n_out = n_out, .in = in, .out = out};
    c.threads = threads;
    size_t bytes = scratch(&c);
    unsigned char *room = aligned_alloc(64, (bytes + GUARD + 63) / 64 * 64);
    memset(room, 0xff, bytes + GUARD);
    for (int i = 0; i < n_out; i++)
        memset(out[i].data, 0xff, (size_t)ll_numel(&out[i].shape) * ll_dtype_bytes(out[i].dtype));
    c.scratch = room;
    assert_int_equal(run(&c), LL_OK);
    for (int i = 0; i < GUARD; i++) assert_int_equal(room[bytes + (size_t)i], 0xff);
    free(room);
}

/* wide: bit k: operand k stays f32; results of f32[i] that are wide are f32. Frees the operands. */
static void both(ll_kernel *run, ll_scratch *scratch, const void *attr, ll_tensor *in, int n_in,
                 unsigned wide_in, const ll_shape *shapes, int n_out, unsigned wide_out)
{
    ll_tensor half[MOST], want[MOST], got[MOST];
    for (int i = 0; i < n_in; i++) half[i] = wide_in >> i & 1 ? in[i] : half_of(&in[i]);
    for (int o = 0; o < n_out; o++) {
        want[o] = tensor(LL_F32, shapes[o]);
        got[o] = tensor(wide_out >> o & 1 ? LL_F32 : LL_BF16, shapes[o]);
    }
    call(run, scratch, attr, in, n_in, want, n_out, 1);
    for (int threads = 1; threads <= 3; threads++) {
        call(run, scratch, attr, half, n_in, got, n_out, threads);
        for (int o = 0; o < n_out; o++) {
            double worst = 0, most = 1e-3;
            for (int64_t i = 0; i < ll_numel(&shapes[o]); i++) {
                double a = ll_load(got[o].data, got[o].dtype, i),
                       b = ll_load(want[o].data, LL_F32, i);
                if (!(fabs(a - b) <= worst)) worst = fabs(a - b);
                most = fmax(most, fabs(b));
            }
            if (!(worst <= 0.02 * most))
                fail_msg("result %d of %d operands, [%lld,%lld,...]: off by %g of %g, %d threads",
                         o, n_in, (long long)shapes[o].d[0], (long long)shapes[o].d[1], worst, most,
                         threads);
        }
    }
    for (int i = 0; i < n_in; i++) {
        if (half[i].data != in[i].data) free(half[i].data);
        free(in[i].data);
    }
    for (int o = 0; o < n_out; o++) free(want[o].data), free(got[o].data);
}

static void bf16_packed(void **)
{
    for (int i = 0; i < N_SIZE; i++) {
        const int64_t *s = sizes[i];
        ll_shape o = LL_SHAPE(s[0], s[1], s[2], s[3]), lse = LL_SHAPE(s[0], s[2], s[1]);
        ll_shape qkv = LL_SHAPE(s[0], s[1], 3, s[2], s[3]), out[2] = {o, lse};
        ll_tensor x = kc_normal(qkv, 1, 0);
        both(attention_cpu, attend_cpu_scratch, NULL, &x, 1, 0, out, 2, 2);
        ll_tensor in[4] = {kc_normal(o, 1, 0), kc_normal(qkv, 1, 0), tensor(LL_F32, o),
                           tensor(LL_F32, lse)};
        ll_tensor rounded = half_of(&in[1]);
        call(attention_cpu, attend_cpu_scratch, NULL, &in[1], 1, &in[2], 2, 1);
        free(rounded.data);
        both(attention_grad_cpu, attend_grad_cpu_scratch, &(ll_own_attr){.own = 1}, in, 4, 8, &qkv,
             1, 0);
    }
}

static void bf16_general(void **)
{
    static const struct {
        int64_t t, s, n, g, d, e, mask;
        ll_attend_attr attr;
    } cases[] = {
        {100, 130, 1, 2, 3, 5, 0, {0.7, 1, 30}},  {130, 70, 2, 1, 2, 1, 0, {0.7, 1, -60}},
        {97, 98, 1, 3, 1, 2, 97, {0.5, 0, 0}},    {120, 110, 1, 1, 4, 3, 1, {1, 1, -10}},
        {110, 60, 1, 1, 3, 3, 0, {0.5, 1, -200}}, {40, 200, 1, 2, 64, 32, 0, {0.1, 1, 100}},
        {70, 5000, 1, 1, 16, 16, 0, {0.25, 0, 0}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t t = cases[i].t, s = cases[i].s, n = cases[i].n, g = cases[i].g;
        ll_shape o = LL_SHAPE(1, t, n, g, cases[i].e), lse = LL_SHAPE(1, n, g, t);
        int masked = cases[i].mask > 0;
        ll_tensor q[4] = {kc_normal(LL_SHAPE(1, t, n, g, cases[i].d), 1, 0),
                          kc_normal(LL_SHAPE(1, s, n, cases[i].d), 1, 0),
                          kc_normal(LL_SHAPE(1, s, n, cases[i].e), 1, 0)};
        ll_tensor in[7] = {kc_normal(o, 1, 0)};
        if (masked) q[3] = kc_normal(LL_SHAPE(1, 1, g, cases[i].mask, s), 1, 0);
        for (int k = 0; k < 3 + masked; k++) { /* the gradient has copies */
            ll_tensor *to = &in[k < 3 ? k + 1 : 6];
            *to = tensor(LL_F32, q[k].shape);
            memcpy(to->data, q[k].data, (size_t)ll_numel(&q[k].shape) * sizeof(float));
        }
        for (int k = 1; k < 4; k++) free(half_of(&in[k]).data);
        ll_tensor of[2] = {tensor(LL_F32, o), tensor(LL_F32, lse)},
                  a[4] = {in[1], in[2], in[3], in[6]};
        call(attend_cpu, attend_cpu_scratch, &cases[i].attr, a, 3 + masked, of, 2, 1);
        free(of[0].data);
        in[4] = of[1], in[5] = kc_normal(lse, 1, 0);
        both(attend_cpu, attend_cpu_scratch, &cases[i].attr, q, 3 + masked, 8,
             (const ll_shape[]){o, lse}, 2, 2);
        ll_shape d[3] = {in[1].shape, in[2].shape, in[3].shape};
        both(attend_grad_cpu, attend_grad_cpu_scratch, &cases[i].attr, in, 6 + masked, 7 << 4, d, 3,
             0);
    }
}

/* Linear attention: chunks that end anywhere, parts of queries and of keys, heads that forget half
 * of all or nearly nothing, widths beside whole vectors. */
static const struct {
    int64_t b, t, s, n, g, d, e;
    ll_linear_attr attr;
} chunks[] = {{1, 96, 96, 1, 1, 32, 32, {0, 0, 0}},  {2, 97, 97, 2, 1, 5, 3, {1, 0, 0}},
              {1, 300, 300, 1, 2, 3, 33, {4, 0, 2}}, {1, 40, 200, 1, 3, 64, 16, {0, 160, 0}},
              {1, 130, 70, 2, 1, 2, 4, {2, -60, 0}}, {1, 110, 60, 1, 1, 3, 3, {0, -200, 0}},
              {1, 95, 20, 1, 1, 7, 65, {3, 190, 0}}, {3, 1, 1, 1, 1, 1, 1, {0, 0, 0}},
              {0, 5, 5, 1, 1, 2, 2, {0, 0, 0}}};
enum { N_CHUNK = sizeof chunks / sizeof *chunks };

/* do, dl, q, k, v */
static void linear_operands(int i, ll_tensor in[5])
{
    int64_t b = chunks[i].b, t = chunks[i].t, s = chunks[i].s, n = chunks[i].n, g = chunks[i].g;
    in[0] = kc_normal(LL_SHAPE(b, t, n, g, chunks[i].e), 0.3, 0);
    in[1] = kc_normal(LL_SHAPE(b, n, g, t), 0.3, 0);
    in[2] = kc_normal(LL_SHAPE(b, t, n, g, chunks[i].d), 0.3, 0);
    in[3] = kc_normal(LL_SHAPE(b, s, n, chunks[i].d), 0.3, 0);
    in[4] = kc_normal(LL_SHAPE(b, s, n, chunks[i].e), 0.3, 0);
}

static void linear(void **)
{
    for (int i = 0; i < N_CHUNK; i++) {
        ll_tensor in[5];
        kcheck k = {"linear_attend",         NULL,
                    linear_attend_cpu,       linear_attend_cpu_scratch,
                    .attr = &chunks[i].attr, .tolerance = 1e-5};
        kcheck d = {"linear_attend_grad",    NULL,
                    linear_attend_grad_cpu,  linear_attend_grad_cpu_scratch,
                    .attr = &chunks[i].attr, .tolerance = 1e-5};
        linear_operands(i, in);
        kc_out(&k, in[0].shape);
        kc_out(&k, in[1].shape);
        for (int j = 2; j < 5; j++) {
            kc_in(&k, in[j]);
            kc_out(&d, in[j].shape);
        }
        kc_check(&k);
        free(in[0].data), free(in[1].data);
        linear_operands(i, in);
        for (int j = 0; j < 5; j++) kc_in(&d, in[j]);
        kc_check(&d);
    }
}

static void bf16_linear(void **)
{
    for (int i = 0; i < N_CHUNK; i++) {
        ll_tensor q[5], in[5];
        linear_operands(i, q);
        linear_operands(i, in);
        ll_shape out[2] = {q[0].shape, q[1].shape}, d[3];
        for (int j = 0; j < 3; j++) d[j] = in[2 + j].shape;
        free(q[0].data), free(q[1].data);
        both(linear_attend_cpu, linear_attend_cpu_scratch, &chunks[i].attr, q + 2, 3, 0, out, 2, 2);
        both(linear_attend_grad_cpu, linear_attend_grad_cpu_scratch, &chunks[i].attr, in, 5, 2, d,
             3, 0);
    }
}

static void mask(void **)
{
    const ll_mask_attr attrs[] = {{-1e30, {0, 0}}, {0, {3, 0}}, {5, {0, 40}}, {2, {1, 4}}};
    for (int i = 0; i < 4; i++) {
        kcheck k = {"causal_mask", causal_mask_ref, causal_mask_cpu, .attr = &attrs[i]};
        ll_shape s = LL_SHAPE(3, 7 + i, 11);
        kc_in(&k, kc_normal(s, 1, 0));
        kc_out(&k, s);
        kc_check(&k);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward),     cmocka_unit_test(backward),     cmocka_unit_test(general),
        cmocka_unit_test(bf16_packed), cmocka_unit_test(bf16_general), cmocka_unit_test(linear),
        cmocka_unit_test(bf16_linear), cmocka_unit_test(mask)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
