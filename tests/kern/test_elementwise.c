/* Elementwise ops on the CPU against the reference kernels: every op, every type it takes, sizes
 * about the tile's, in place, on numbers that are no ordinary ones; and the vector functions they
 * use against libm over all of f32. */
#include "kern/cpu/vecmath.h"
#include "kern/tensors.h"

#define X(name, n, value) ll_kernel name##_ref, name##_cpu;
LL_EW(X)
#undef X
ll_kernel accum_ref, accum_cpu;

static const struct {
    const char *name;
    int n_in;
    ll_kernel *ref, *cpu;
} ops[] = {
#define X(name, n, value) {#name, n, name##_ref, name##_cpu},
    LL_EW(X)
#undef X
};

enum { N_OPS = sizeof ops / sizeof *ops };

static bool positive(int op)
{
    return op == LL_EW_log || op == LL_EW_sqrt || op == LL_EW_rsqrt;
}

/* Compares one op on tensors that exist; out: element type of the result. */
static void one(int op, ll_tensor *in, ll_dtype type, double tolerance)
{
    ll_number_attr number = {-1.75};
    ll_cast_attr cast = {type};
    const void *attr = op == LL_EW_cast ? (void *)&cast : (void *)&number;
    ll_tensor want = new_tensor(type, in[0].shape);
    call(ops[op].ref, NULL, attr, ops[op].n_in, in, 1, &want, 1);
    for (int threads = 1; threads <= 3; threads++) {
        ll_tensor got = new_tensor(type, in[0].shape);
        call(ops[op].cpu, NULL, attr, ops[op].n_in, in, 1, &got, threads);
        check_near(ops[op].name, &want, &got, tolerance);
        free_tensor(&got);
    }
    if (in[0].dtype == type) { /* on top of the last operand */
        call(ops[op].cpu, NULL, attr, ops[op].n_in, in, 1, &in[ops[op].n_in - 1], 2);
        check_near(ops[op].name, &want, &in[ops[op].n_in - 1], tolerance);
    }
    free_tensor(&want);
}

static void test_sizes(void **state)
{
    (void)state;
    static const int64_t sizes[] = {0, 1, 2, 3, 5, 17, 1023, 1024, 1025, 4099, 50021};
    for (int op = 0; op < N_OPS; op++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            ll_tensor in[3];
            for (int i = 0; i < 3; i++) {
                in[i] = new_random(LL_F32, LL_SHAPE(sizes[s]), (uint64_t)(10 * op + i));
                float *x = in[i].data;
                for (int64_t e = 0; e < sizes[s]; e++) {
                    if (positive(op)) x[e] = fabsf(x[e]) + 0.1f;
                    if (op == LL_EW_select && i == 0 && e % 3 == 0) x[e] = 0;
                    if (op == LL_EW_equal && i == 1 && e % 2 == 0) x[e] = ((float *)in[0].data)[e];
                }
            }
            one(op, in, LL_F32, 3e-7);
            for (int i = 0; i < 3; i++) free_tensor(&in[i]);
        }
}

static void test_types(void **state)
{
    (void)state;
    static const ll_dtype types[] = {LL_F64, LL_BF16, LL_F16};
    for (int op = 0; op < N_OPS; op++)
        for (int t = 0; t < 3; t++) {
            ll_shape shape = types[t] == LL_F64 ? LL_SHAPE(3, 7, 1111) : LL_SHAPE(3, 7, 11);
            ll_tensor in[3];
            for (int i = 0; i < 3; i++)
                in[i] =
                    new_random(types[t], shape, (uint64_t)(3 * t + i + (positive(op) ? 50 : 0)));
            for (int64_t e = 0; positive(op) && e < ll_numel(&shape); e++)
                ll_store(in[0].data, types[t], e, fabs(ll_load(in[0].data, types[t], e)) + 0.1);
            one(op, in, types[t], types[t] == LL_F64 ? 1e-15 : types[t] == LL_BF16 ? 8e-3 : 1e-3);
            for (int i = 0; i < 3; i++) free_tensor(&in[i]);
        }
}

/* Sums beyond 2^24 must be exact. */
static void test_integers(void **state)
{
    (void)state;
    static const int takes[] = {LL_EW_add, LL_EW_sub,  LL_EW_mul,   LL_EW_max,
                                LL_EW_min, LL_EW_less, LL_EW_equal, LL_EW_select,
                                LL_EW_neg, LL_EW_abs,  LL_EW_sign,  LL_EW_stop_gradient};
    for (size_t k = 0; k < sizeof takes / sizeof *takes; k++) {
        ll_tensor in[3];
        for (int i = 0; i < 3; i++) {
            in[i] = new_random(LL_I32, LL_SHAPE(1031), (uint64_t)i);
            for (int e = 0; i == 0 && e < 1031; e += 5) ((int32_t *)in[0].data)[e] = 123456789 + e;
        }
        one(takes[k], in, LL_I32, 0);
        for (int i = 0; i < 3; i++) free_tensor(&in[i]);
    }
}

static void test_casts(void **state)
{
    (void)state;
    for (int from = 0; from < LL_N_DTYPE; from++)
        for (int to = 0; to < LL_N_DTYPE; to++) {
            ll_tensor x = new_random((ll_dtype)from, LL_SHAPE(2051), 7);
            if (ll_dtype_is_float((ll_dtype)from))
                for (int e = 0; e < 2051; e++)
                    ll_store(x.data, x.dtype, e, 100 * ll_load(x.data, x.dtype, e));
            one(LL_EW_cast, &x, (ll_dtype)to, 0);
            free_tensor(&x);
        }
}

static const float odd[] = {0.0f,   -0.0f,   1e-45f,   -1e-45f,     1e-38f, 1.0f,
                            -1.0f,  3.4e38f, 1e-20f,   -3.4e38f,    88.7f,  -86.9f,
                            1e6f,   -1e6f,   1e9f,     16777216.0f, 5e5f,   20.0f,
                            -20.0f, 0.625f,  INFINITY, -INFINITY,   NAN};
enum { N_ODD = sizeof odd / sizeof *odd };

static void test_odd_numbers(void **state)
{
    (void)state;
    for (int op = 0; op < N_OPS; op++)
        for (int shift = 0; shift < N_ODD; shift++) {
            ll_tensor in[3];
            for (int i = 0; i < 3; i++) {
                in[i] = new_tensor(LL_F32, LL_SHAPE(N_ODD));
                for (int e = 0; e < N_ODD; e++)
                    ((float *)in[i].data)[e] = odd[(e + i * shift) % N_ODD];
            }
            if (op == LL_EW_dgelu) /* the reference's inf times 0; ours is the limit */
                for (int e = 0; e < N_ODD; e++)
                    if (isinf(odd[e])) ((float *)in[0].data)[e] = 0;
            one(op, in, LL_F32, 3e-7);
            for (int i = 0; i < 3; i++) free_tensor(&in[i]);
        }
}

/* What is no number stays none: a broken network must not look well. (Kernels of the CPU are held
 * against these above.) */
static void test_nan_stays(void **state)
{
    (void)state;
    static const int which[] = {LL_EW_max, LL_EW_min, LL_EW_relu, LL_EW_sign};
    for (size_t k = 0; k < sizeof which / sizeof *which; k++)
        for (int i = 0; i < ops[which[k]].n_in; i++) {
            ll_tensor in[2] = {new_tensor(LL_F32, LL_SHAPE(1)), new_tensor(LL_F32, LL_SHAPE(1))};
            ll_tensor y = new_tensor(LL_F32, LL_SHAPE(1));
            *(float *)in[i].data = NAN, *(float *)in[1 - i].data = 1;
            call(ops[which[k]].ref, NULL, NULL, ops[which[k]].n_in, in, 1, &y, 1);
            if (!isnan(*(float *)y.data)) fail_msg("%s of NaN is a number", ops[which[k]].name);
            free_tensor(&in[0]), free_tensor(&in[1]), free_tensor(&y);
        }
}

/* ---- vector functions over all of f32, every 1009th number ---- */

static float sin_f32(float x)
{
    return ll_sincosf(x, 0);
}

static float cos_f32(float x)
{
    return ll_sincosf(x, 1);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double softplus(double x)
{
    return (x > 0 ? x : 0) + log1p(exp(-fabs(x)));
}

static void test_vecmath(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        float (*f)(float);
        double (*exact)(double);
    } t[] = {{"exp", ll_expf, exp},       {"log", ll_logf, log},
             {"tanh", ll_tanhf, tanh},    {"sigmoid", ll_sigmoidf, sigmoid},
             {"erf", ll_erff, erf},       {"log1p", ll_log1pf, log1p},
             {"expm1", ll_expm1f, expm1}, {"softplus", ll_softplusf, softplus},
             {"sin", sin_f32, sin},       {"cos", cos_f32, cos}};
    for (size_t k = 0; k < sizeof t / sizeof *t; k++)
        for (uint64_t u = 0; u < 1ull << 32; u += 5003) {
            float x = ll_of_bits((uint32_t)u), y;
            if (k >= 8 && !(fabsf(x) <= LL_SINCOS_MAX)) continue;
            y = t[k].f(x);
            double want = t[k].exact(x);
            bool ok = isnan(want) ? isnan(y)
                                  : y == (float)want || fabs(y - want) <= 3e-7 * fabs(want) ||
                                        (fabs(want) < 2.4e-38 && fabs(y - want) <= 2.4e-38);
            if (!ok) fail_msg("%s(%.9g) is %.9g, want %.9g", t[k].name, x, y, want);
        }
}

static void test_accum(void **state)
{
    (void)state;
    static const int64_t sizes[] = {0, 1, 1025, 40009};
    for (int s = 0; s < 4; s++)
        for (int type = 0; type < 2; type++) {
            ll_dtype dtype = type ? LL_F64 : LL_F32;
            ll_tensor want = new_tensor(dtype, LL_SHAPE(sizes[s]));
            ll_tensor got = new_tensor(dtype, LL_SHAPE(sizes[s]));
            for (int micro = 0; micro < 3; micro++) {
                ll_tensor x = new_random(dtype, LL_SHAPE(sizes[s]), (uint64_t)micro);
                ll_kcall c = {.n_in = 1, .n_out = 1, .in = &x, .out = &want, .threads = 2};
                c.micro = micro, c.n_micro = 3;
                assert_int_equal(accum_ref(&c), LL_OK);
                c.out = &got;
                assert_int_equal(accum_cpu(&c), LL_OK);
                check_near("accum", &want, &got, 3e-7);
                free_tensor(&x);
            }
            free_tensor(&want);
            free_tensor(&got);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),       cmocka_unit_test(test_types),
        cmocka_unit_test(test_integers),    cmocka_unit_test(test_casts),
        cmocka_unit_test(test_odd_numbers), cmocka_unit_test(test_nan_stays),
        cmocka_unit_test(test_vecmath),     cmocka_unit_test(test_accum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
