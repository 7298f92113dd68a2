/* sum, amax and sumsq on the CPU against the reference kernels: every pattern of dimensions that
 * stay and vanish, odd sizes, 1 to 3 threads, which must agree to the bit; NaN and inf; and how
 * exact a sum of ten million numbers is. In f64 of whole numbers: to the bit. */
#include "kern/tensors.h"

ll_kernel sum_ref, amax_ref, absmax_ref, sumsq_ref, sum_cpu, amax_cpu, absmax_cpu, sumsq_cpu;
ll_fits sum_cpu_fits, amax_cpu_fits, absmax_cpu_fits, sumsq_cpu_fits;
ll_scratch reduce_cpu_scratch;

static const ll_solver *const fast[] = {
#define LIST(fn) LL_OR_PLAIN(fn, .scratch = reduce_cpu_scratch)
    LIST(sum), LIST(amax), LIST(sumsq), LIST(absmax)};

static void one(const char *spec, ll_dtype dtype, ll_shape shape)
{
    ll_spec_attr attr = {0};
    snprintf(attr.spec, sizeof attr.spec, "%s", spec);
    ll_shape to = {0};
    for (const char *s = strchr(spec, '>') + 1; *s; s++)
        to.d[to.n++] = shape.d[strchr(spec, *s) - spec];
    ll_tensor x = new_random(dtype, shape, 3), want = new_tensor(LL_F64, to);
    for (int64_t i = 0; dtype == LL_F64 && i < ll_numel(&shape); i++)
        ((double *)x.data)[i] = rint(1e3 * ((double *)x.data)[i]);
    double count = (double)ll_numel(&shape) / fmax(1, (double)ll_numel(&to));
    static ll_kernel *const plain[] = {sum_ref, amax_ref, sumsq_ref, absmax_ref};
    for (int k = 0; k < 4; k++) {
        bool max = k % 2;
        ll_dtype out = dtype == LL_BF16 && !max ? LL_F32 : dtype;
        call(plain[k], NULL, &attr, 1, &x, 1, &want, 1);
        ll_tensor got[3];
        for (int t = 0; t < 3; t++) {
            got[t] = new_tensor(out, to);
            const ll_solver *s = ll_solver_for(fast[k], &(ll_kcall){.in = &x, .out = &got[t]});
            call(s->run, s->scratch, &attr, 1, &x, 1, &got[t], t + 1);
            assert_memory_equal(got[0].data, got[t].data, bytes_of(&got[0]));
        }
        double near = dtype == LL_F64 ? 0 : 1e-6;
        check_near(spec, &want, &got[0],
                   max ? (dtype == LL_BF16 ? 8e-3 : 0) : near * sqrt(count + 1));
        for (int t = 0; t < 3; t++) free_tensor(&got[t]);
    }
    free_tensor(&x);
    free_tensor(&want);
}

static void test_columns(void **state)
{
    (void)state;
    static const int64_t rows[] = {1, 2, 7, 8, 9, 63, 513, 4099},
                         cols[] = {1, 2, 3, 6, 10, 31, 64, 257};
    for (int r = 0; r < 8; r++)
        for (int c = 0; c < 8; c++) {
            ll_dtype t = (r + c) % 2 ? LL_F64 : LL_F32;
            one("nc->c", t, LL_SHAPE(rows[r], cols[c]));
            one("nc->n", t, LL_SHAPE(rows[r], cols[c]));
            one("nc->", t, LL_SHAPE(rows[r], cols[c]));
            one("nhc->nc", t, LL_SHAPE(2, rows[r], cols[c]));
        }
    one("nc->c", LL_F32, LL_SHAPE(3, 5003));
    one("nc->c", LL_F32, LL_SHAPE(700, 2049));
    one("nc->n", LL_F32, LL_SHAPE(3, 20011));
    one("nhwc->c", LL_F32, LL_SHAPE(16, 28, 28, 6));
    one("nc->c", LL_BF16, LL_SHAPE(700, 2049));
    one("nc->n", LL_BF16, LL_SHAPE(3, 20011));
    one("nc->c", LL_F64, LL_SHAPE(3, 5003));
    one("nc->n", LL_F64, LL_SHAPE(3, 20011));
    one("nc->", LL_F64, LL_SHAPE(3, 20011));
    one("nhwc->c", LL_F64, LL_SHAPE(16, 28, 28, 6));
}

/* All subsets of up to five dimensions. */
static void test_patterns(void **state)
{
    (void)state;
    static const int64_t size[][5] = {{2, 3, 4, 5, 6}, {7, 1, 3, 1, 5}, {1, 11, 2, 9, 33}};
    for (int n = 0; n <= 5; n++)
        for (unsigned keep = 0; keep < 1u << n; keep++)
            for (int k = 0; k < 3; k++) {
                char spec[LL_SPEC_MAX] = {0}, *at = spec;
                ll_shape shape = {.n = n};
                for (int i = 0; i < n; i++) {
                    *at++ = (char)('a' + i);
                    shape.d[i] = size[k][i];
                }
                *at++ = '-', *at++ = '>';
                for (int i = 0; i < n; i++)
                    if (keep >> i & 1) *at++ = (char)('a' + i);
                one(spec, LL_F32, shape);
                one(spec, LL_F64, shape);
                one(spec, LL_BF16, shape);
            }
}

static void test_types_and_nothing(void **state)
{
    (void)state;
    for (ll_dtype t = LL_F64; t <= LL_I32; t++)
        if (t != LL_F16) one("nc->c", t, LL_SHAPE(5, 7));
    one("nc->c", LL_F32, LL_SHAPE(0, 7)); /* sums 0, largest -inf */
    one("nc->n", LL_F32, LL_SHAPE(7, 0));
    one("nc->c", LL_F32, LL_SHAPE(7, 0));
    one("nc->", LL_F32, LL_SHAPE(0, 0));
    one("nhc->nc", LL_F32, LL_SHAPE(3, 0, 4));
}

static void test_nan(void **state)
{
    (void)state;
    static const char *const specs[] = {"nc->c", "nc->n", "nc->", "nhc->nc", "nhc->h"};
    for (int s = 0; s < 5; s++)
        for (int at = 0; at < 3 * 40 * 50; at += 777) {
            ll_spec_attr attr = {0};
            snprintf(attr.spec, sizeof attr.spec, "%s", specs[s]);
            bool three = s > 2;
            ll_shape shape = three ? LL_SHAPE(3, 40, 50) : LL_SHAPE(120, 50);
            ll_shape to[] = {LL_SHAPE(50), LL_SHAPE(120), LL_SCALAR, LL_SHAPE(3, 50), LL_SHAPE(40)};
            ll_tensor x = new_random(LL_F32, shape, 1);
            ((float *)x.data)[at] = NAN;
            ((float *)x.data)[(at + 99) % 6000] = INFINITY;
            ll_tensor want = new_tensor(LL_F32, to[s]), got = new_tensor(LL_F32, to[s]);
            call(amax_ref, NULL, &attr, 1, &x, 1, &want, 1);
            call(amax_cpu, reduce_cpu_scratch, &attr, 1, &x, 1, &got, 2);
            check_near("amax with NaN", &want, &got, 0);
            call(sum_ref, NULL, &attr, 1, &x, 1, &want, 1);
            call(sum_cpu, reduce_cpu_scratch, &attr, 1, &x, 1, &got, 2);
            check_near("sum with NaN", &want, &got, 1e-5);
            free_tensor(&x), free_tensor(&want), free_tensor(&got);
        }
}

/* A million positive numbers: the worst case for a sum in f32, which would be off by 1e-4. */
static void test_exact(void **state)
{
    (void)state;
    ll_spec_attr columns = {"nc->c"}, all = {"nc->"};
    ll_tensor x = new_tensor(LL_F32, LL_SHAPE(250000, 4));
    double want[4] = {0};
    for (int64_t i = 0; i < 1000000; i++) {
        float v = 0.1f + (float)(i % 1000) * 1e-3f;
        ((float *)x.data)[i] = v;
        want[i % 4] += v;
    }
    ll_tensor sums = new_tensor(LL_F32, LL_SHAPE(4)), sum = new_tensor(LL_F32, LL_SCALAR);
    call(sum_cpu, reduce_cpu_scratch, &columns, 1, &x, 1, &sums, 2);
    call(sum_cpu, reduce_cpu_scratch, &all, 1, &x, 1, &sum, 2);
    for (int c = 0; c < 4; c++)
        assert_true(fabs(((float *)sums.data)[c] - want[c]) < 1e-6 * want[c]);
    double whole = want[0] + want[1] + want[2] + want[3];
    assert_true(fabs(*(float *)sum.data - whole) < 1e-6 * whole);
    free_tensor(&x), free_tensor(&sums), free_tensor(&sum);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_columns),
        cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_types_and_nothing),
        cmocka_unit_test(test_nan),
        cmocka_unit_test(test_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
