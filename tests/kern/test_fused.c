/* Random chains of elementwise steps on the CPU against the same steps in double: operands of every
 * type, whole, scalar, periodic and repeated; constants; results of f32, bf16 and i32; results on
 * top of operands; 1 to 3 threads, which must agree to the bit.
 *
 * A chain can be badly conditioned, and a step such as less is not continuous: what counts as near
 * is measured by also running the chain with every step rounded to f32. Elements that this moves
 * much are left out, and a test makes sure that most are not. */
#include "kern/ref/value.h"
#include "kern/tensors.h"

ll_kernel fused_ref, fused_cpu;

static uint64_t drawn;
static int pick(int n)
{
    return (int)ll_below_at(SEED, 99, drawn++, (uint64_t)n);
}

static int64_t compared, left_out;
static bool wraps; /* a remainder is next to a multiple: rounding may put it on either side */

/* The chain for element e, each step in double or rounded to f32. */
static void chain(const ll_fused_attr *f, const ll_tensor *in, int64_t e, int rounded, double *r)
{
    for (int i = 0; i < f->n_in; i++)
        r[i] = ll_load(in[i].data, in[i].dtype, e / f->repeat[i] % f->period[i]);
    for (int s = 0; s < f->n_step; s++) {
        const ll_fused_step *t = &f->step[s];
        int16_t reg[3] = {t->a, t->b, t->c};
        double x[3] = {0};
        for (int i = 0; i < ll_ew_operands((ll_ew)t->op); i++)
            x[i] = reg[i] == LL_FUSE_K ? t->k : r[reg[i]];
        double v = ll_ew_value((ll_ew)t->op, x[0], x[1], x[2], t->k), q = x[0] / x[1];
        wraps |= t->op == LL_EW_mod && !(fabs(q - nearbyint(q)) > 1e-5 * (1 + fabs(q)));
        r[f->n_in + s] = rounded ? (double)(float)v * (1 + 6e-8 * rounded) : v;
    }
}

static void check(const ll_fused_attr *f, const ll_tensor *in, const ll_tensor *got)
{
    double a[LL_FUSE_IN + LL_FUSE_STEPS], up[LL_FUSE_IN + LL_FUSE_STEPS];
    double down[LL_FUSE_IN + LL_FUSE_STEPS]; /* a remainder may wrap either way */
    int64_t n = ll_numel(&f->shape);
    for (int64_t e = 0; e < n; e += n < 3000 ? 1 : 13) { /* 13: prime to the sizes drawn */
        wraps = false;
        chain(f, in, e, 0, a);
        chain(f, in, e, 1, up);
        chain(f, in, e, -1, down);
        for (int o = 0; o < f->n_out; o++) {
            double want = a[f->out[o]], size = fmax(1, fabs(want));
            double moved = (fabs(want - up[f->out[o]]) + fabs(want - down[f->out[o]])) / size;
            double have = ll_load(got[o].data, got[o].dtype, e);
            if (!(moved < 1e-5) || size > 1e9 || wraps) {
                left_out++;
                continue;
            }
            compared++;
            double near = 20 * moved + 2e-6 + (f->out_dtype[o] == LL_BF16 ? 5e-3 : 0);
            double slack = f->out_dtype[o] == LL_I32 ? 0.51 : 0;
            if (!(fabs(have - want) <= near * size + slack))
                fail_msg(
                    "result %d, element %lld of %lld: %.9g, want %.9g (seed %d, chain at %llu)", o,
                    (long long)e, (long long)n, have, want, SEED, (unsigned long long)drawn);
        }
    }
}

/* A random chain of random operands. */
static void draw_chain(ll_fused_attr *f, ll_tensor *in)
{
    static const int64_t outer[] = {1, 2, 3, 7}, mid[] = {1, 3, 10, 64, 700, 1025, 1500},
                         inner[] = {1, 1, 1, 2, 5, 33};
    int64_t a = outer[pick(4)], b = mid[pick(7)], c = inner[pick(6)];
    memset(f, 0, sizeof *f);
    f->shape = LL_SHAPE(a, b, c);
    f->n_in = 1 + pick(6);
    f->n_step = pick(25);
    f->n_out = 1 + pick(4);
    static const ll_dtype types[] = {LL_F32, LL_F32, LL_F32, LL_BF16, LL_I32, LL_U8, LL_F16};
    for (int i = 0; i < f->n_in; i++) {
        int kind = pick(6);
        f->period[i] = kind == 0   ? 1
                       : kind == 1 ? b * c
                       : kind == 2 ? b
                       : kind == 3 ? a
                                   : a * b * c;
        f->repeat[i] = kind == 2 ? c : kind == 3 ? b * c : 1;
        in[i] = new_random(types[pick(7)], LL_SHAPE(f->period[i]), drawn++);
    }
    for (int s = 0; s < f->n_step; s++) {
        ll_fused_step *t = &f->step[s];
        int16_t *reg[3] = {&t->a, &t->b, &t->c};
        t->op = (int16_t)pick(LL_N_EW);
        t->k = 0.25 * (pick(13) - 6);
        for (int i = 0; i < 3; i++) {
            int recent = f->n_in + s - 1 - pick(4); /* long chains, not bushes */
            *reg[i] = (int16_t)(pick(2) && recent >= 0 ? recent : pick(f->n_in + s));
            if (pick(8) == 0) *reg[i] = LL_FUSE_K;
        }
    }
    for (int o = 0; o < f->n_out; o++) {
        f->out[o] = pick(3) ? f->n_in + f->n_step - 1 - pick(f->n_in + f->n_step > 3 ? 3 : 1)
                            : pick(f->n_in + f->n_step);
        f->out_dtype[o] = (ll_dtype[]){LL_F32, LL_F32, LL_BF16, LL_I32}[pick(4)];
    }
}

/* Some f32 and bf16 results take the buffers of whole operands of their type. */
static void share(const ll_fused_attr *f, const ll_tensor *in, ll_tensor *out)
{
    bool used[LL_FUSE_IN] = {false};
    for (int o = 0; o < f->n_out; o++)
        for (int i = 0; i < f->n_in; i++)
            if (!used[i] && f->period[i] == ll_numel(&f->shape) && f->repeat[i] == 1 &&
                in[i].dtype == f->out_dtype[o] && pick(2)) {
                used[i] = true;
                out[o].data = in[i].data;
                break;
            }
}

static ll_tensor copy_of(const ll_tensor *x)
{
    ll_tensor y = new_tensor(x->dtype, x->shape);
    memcpy(y.data, x->data, bytes_of(x));
    return y;
}

static void one_chain(void)
{
    ll_fused_attr f;
    ll_tensor in[LL_FUSE_IN], out[3][LL_FUSE_OUT];
    draw_chain(&f, in);
    for (int t = 0; t < 3; t++) {
        for (int o = 0; o < f.n_out; o++) out[t][o] = new_tensor(f.out_dtype[o], f.shape);
        call(fused_cpu, NULL, &f, f.n_in, in, f.n_out, out[t], t + 1);
    }
    check(&f, in, out[0]);
    ll_tensor over[LL_FUSE_IN], on[LL_FUSE_OUT];
    for (int i = 0; i < f.n_in; i++) over[i] = copy_of(&in[i]);
    for (int o = 0; o < f.n_out; o++) on[o] = out[2][o];
    share(&f, over, on);
    call(fused_cpu, NULL, &f, f.n_in, over, f.n_out, on, 2);
    for (int o = 0; o < f.n_out; o++) {
        assert_memory_equal(out[0][o].data, out[1][o].data, bytes_of(&out[0][o]));
        assert_memory_equal(out[0][o].data, out[2][o].data, bytes_of(&out[0][o]));
        assert_memory_equal(out[0][o].data, on[o].data, bytes_of(&out[0][o]));
    }
    for (int i = 0; i < f.n_in; i++) free_tensor(&in[i]), free_tensor(&over[i]);
    for (int t = 0; t < 3; t++)
        for (int o = 0; o < f.n_out; o++) free_tensor(&out[t][o]);
}

static void test_random_chains(void **state)
{
    (void)state;
    for (int i = 0; i < 150; i++) one_chain();
    printf("compared %lld elements, left out %lld (seed %d)\n", (long long)compared,
           (long long)left_out, SEED);
    assert_true(compared > 2 * left_out);
}

/* The reference kernel is the test's own chain, rounded at the end. */
static void test_reference(void **state)
{
    (void)state;
    for (int k = 0; k < 20; k++) {
        ll_fused_attr f;
        ll_tensor in[LL_FUSE_IN], out[LL_FUSE_OUT];
        draw_chain(&f, in);
        for (int o = 0; o < f.n_out; o++) out[o] = new_tensor(f.out_dtype[o], f.shape);
        call(fused_ref, NULL, &f, f.n_in, in, f.n_out, out, 1);
        check(&f, in, out);
        for (int o = 0; o < f.n_out; o++) free_tensor(&out[o]);
        for (int i = 0; i < f.n_in; i++) free_tensor(&in[i]);
    }
}

/* Every way a sum can take in a product, and one where it must not: the product is read twice. */
static void test_products_in_sums(void **state)
{
    (void)state;
    static const ll_fused_step product[] = {
        {0, LL_EW_mul, 0, 1, 0}, {0, LL_EW_square, 0, 0, 0}, {-1.5, LL_EW_scale, 0, 0, 0}};
    static const ll_fused_step sum[] = {
        {0, LL_EW_add, 3, 2, 0},           {0, LL_EW_add, 2, 3, 0},
        {0, LL_EW_sub, 3, 2, 0},           {0, LL_EW_sub, 2, 3, 0},
        {0.5, LL_EW_shift, 3, 0, 0},       {0.5, LL_EW_add, 3, LL_FUSE_K, 0},
        {0.5, LL_EW_sub, LL_FUSE_K, 3, 0}, {0, LL_EW_add, 3, 3, 0}};
    for (int m = 0; m < 3; m++)
        for (int s = 0; s < 8; s++)
            for (int keep = 0; keep < 2; keep++) {
                ll_fused_attr f = {.n_step = 2, .n_in = 3, .n_out = 1 + keep, .out = {4, 3}};
                f.shape = LL_SHAPE(1037);
                f.step[0] = product[m], f.step[1] = sum[s];
                ll_tensor in[3], out[2];
                for (int i = 0; i < 3; i++) {
                    f.period[i] = 1037, f.repeat[i] = 1;
                    in[i] = new_random(LL_F32, f.shape, (uint64_t)i);
                }
                for (int o = 0; o < 2; o++)
                    f.out_dtype[o] = LL_F32, out[o] = new_tensor(LL_F32, f.shape);
                call(fused_cpu, NULL, &f, 3, in, f.n_out, out, 1);
                check(&f, in, out);
                for (int i = 0; i < 3; i++) free_tensor(&in[i]);
                for (int o = 0; o < 2; o++) free_tensor(&out[o]);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_chains),
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_products_in_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
