/* The ops that move elements, on the CPU against the reference kernels: bit for bit, every element
 * size, odd sizes, 1 to 3 threads. */
#include "kern/tensors.h"

#define KERNELS(X) X(fill) X(transpose) X(broadcast) X(slice) X(pad) X(concat) X(onehot)
#define X(name) ll_kernel name##_ref, name##_cpu;
KERNELS(X)
#undef X

/* Runs both kernels on operands that it frees. */
static void one(const char *what, ll_kernel *ref, ll_kernel *cpu, const void *attr, int n_in,
                ll_tensor *in, ll_dtype dtype, ll_shape shape)
{
    ll_tensor want = new_tensor(dtype, shape);
    call(ref, NULL, attr, n_in, in, 1, &want, 1);
    for (int threads = 1; threads <= 3; threads++) {
        ll_tensor got = new_tensor(dtype, shape);
        call(cpu, NULL, attr, n_in, in, 1, &got, threads);
        if (memcmp(want.data, got.data, bytes_of(&want)))
            fail_msg("%s of %s differs on %d threads (seed %d)", what, ll_dtype_name(dtype),
                     threads, SEED);
        free_tensor(&got);
    }
    for (int i = 0; i < n_in; i++) free_tensor(&in[i]);
    free_tensor(&want);
}

static ll_dtype type_of(int k) /* sizes 4, 2, 8, 1 */
{
    return (ll_dtype[]){LL_F32, LL_BF16, LL_F64, LL_U8}[k % 4];
}

static void transpose(const char *spec, ll_dtype dtype, ll_shape shape)
{
    ll_spec_attr attr = {0};
    snprintf(attr.spec, sizeof attr.spec, "%s", spec);
    ll_shape to = {.n = shape.n};
    for (int i = 0; i < shape.n; i++) to.d[i] = shape.d[strchr(spec, spec[shape.n + 2 + i]) - spec];
    ll_tensor x = new_random(dtype, shape, 1);
    one(spec, transpose_ref, transpose_cpu, &attr, 1, &x, dtype, to);
}

static void test_transpose(void **state)
{
    (void)state;
    static const int64_t sizes[] = {0, 1, 3, 4, 7, 31, 32, 33, 130};
    for (int a = 0; a < 9; a++)
        for (int b = 0; b < 9; b++)
            for (int t = 0; t < 4; t++) {
                transpose("ab->ba", type_of(t), LL_SHAPE(sizes[a], sizes[b]));
                transpose("abc->acb", type_of(t), LL_SHAPE(3, sizes[a], sizes[b]));
                transpose("abc->cab", type_of(t), LL_SHAPE(sizes[a], 3, sizes[b]));
            }
    transpose("bthd->bhtd", LL_F32, LL_SHAPE(3, 37, 5, 16));
    transpose("btshd->sbhtd", LL_F32, LL_SHAPE(2, 19, 3, 4, 8));
    transpose("->", LL_F32, LL_SCALAR);
    transpose("ab->ba", LL_F32, LL_SHAPE(300, 301));
}

/* Every order of five dimensions. */
static void test_permutations(void **state)
{
    (void)state;
    for (int p = 0; p < 120; p++) {
        char spec[LL_SPEC_MAX] = "abcde->", left[] = "abcde";
        for (int i = 5, rest = p; i > 0; rest /= i--) {
            int at = rest % i;
            strncat(spec, left + at, 1);
            memmove(left + at, left + at + 1, strlen(left + at));
        }
        transpose(spec, type_of(p), LL_SHAPE(2, 5, 1 + p % 3, 7, 3));
        if (p % 10 == 0) transpose(spec, LL_F32, LL_SHAPE(5, 9, 4, 13, 11));
    }
}

/* Every subset of five dimensions, broadcast to all. */
static void test_broadcast(void **state)
{
    (void)state;
    static const int64_t size[][5] = {
        {2, 3, 4, 5, 6}, {7, 1, 3, 1, 5}, {3, 0, 2, 2, 2}, {9, 11, 2, 7, 33}};
    for (unsigned keep = 0; keep < 32; keep++)
        for (int k = 0; k < 4; k++)
            for (int t = 0; t < 4; t++) {
                ll_broadcast_attr attr = {.shape = {.n = 5}};
                ll_shape from = {0};
                for (int i = 0; i < 5; i++) {
                    attr.shape.d[i] = size[k][i];
                    if (!(keep >> i & 1)) continue;
                    attr.spec[from.n] = (char)('a' + i);
                    from.d[from.n++] = size[k][i];
                }
                strcat(attr.spec, "->abcde");
                ll_tensor x = new_random(type_of(t), from, 1);
                one(attr.spec, broadcast_ref, broadcast_cpu, &attr, 1, &x, x.dtype, attr.shape);
            }
}

/* Shapes [a, n, b], cut along the middle, and along the first and last where a or b is 1. */
static void test_slice_pad_concat(void **state)
{
    (void)state;
    static const int64_t a[] = {1, 3, 200, 1, 0}, n[] = {7, 1, 5, 30001, 4}, b[] = {5, 1, 33, 1, 2};
    for (int k = 0; k < 5; k++)
        for (int t = 0; t < 4; t++) {
            ll_dtype dtype = type_of(t);
            for (int64_t from = 0; from <= n[k]; from += 1 + n[k] / 3)
                for (int64_t to = from; to <= n[k]; to += 1 + n[k] / 2) {
                    ll_range_attr attr = {1, from, to};
                    ll_tensor x = new_random(dtype, LL_SHAPE(a[k], n[k], b[k]), 1);
                    one("slice", slice_ref, slice_cpu, &attr, 1, &x, dtype,
                        LL_SHAPE(a[k], to - from, b[k]));
                    x = new_random(dtype, LL_SHAPE(a[k], n[k], b[k]), 2);
                    one("pad", pad_ref, pad_cpu, &attr, 1, &x, dtype,
                        LL_SHAPE(a[k], n[k] + from + to, b[k]));
                }
            for (int count = 1; count <= 4; count++) {
                ll_tensor x[4];
                int64_t all = 0;
                for (int i = 0; i < count; i++) {
                    int64_t m = i == 2 ? 0 : n[k] + i;
                    x[i] = new_random(dtype, LL_SHAPE(a[k], m, b[k]), (uint64_t)i);
                    all += m;
                }
                one("concat", concat_ref, concat_cpu, &(ll_range_attr){.dim = 1}, count, x, dtype,
                    LL_SHAPE(a[k], all, b[k]));
            }
        }
}

/* A label that is none of all classes, where some are here. */
static void bad_label(void **)
{
    float y[6];
    ll_kernel *const f[] = {onehot_ref, onehot_cpu};
    for (int i = 0; i < 4; i++) {
        int32_t label[2] = {4, i < 2 ? -1 : 5};
        ll_onehot_attr attr = {.size = 3, .from = 1, .of = 5, .dtype = LL_F32};
        ll_tensor in = {label, LL_I32, LL_SHAPE(2)}, out = {y, LL_F32, LL_SHAPE(2, 3)};
        ll_kcall c = {&attr, .n_in = 1, .n_out = 1, .in = &in, .out = &out, .threads = 2};
        assert_int_equal(f[i % 2](&c), LL_E_ARG);
        assert_non_null(strstr(ll_error_text(), "label of row 1"));
    }
}

static void test_fill_and_onehot(void **state)
{
    (void)state;
    static const int64_t sizes[] = {0, 1, 5, 40007};
    for (int s = 0; s < 4; s++) {
        for (int t = 0; t < LL_N_DTYPE; t++) {
            ll_fill_attr attr = {.value = 3.25, .dtype = (ll_dtype)t};
            attr.shape = LL_SHAPE(sizes[s]);
            one("fill", fill_ref, fill_cpu, &attr, 0, NULL, attr.dtype, attr.shape);
        }
        for (int64_t size = 0; size < 8; size += 3)
            for (int64_t from = -1; from < 6; from += 3) {
                ll_onehot_attr attr = {.size = size, .from = from, .dtype = LL_F32};
                ll_tensor x = new_random(LL_I32, LL_SHAPE(sizes[s]), 4);
                one("onehot", onehot_ref, onehot_cpu, &attr, 1, &x, LL_F32,
                    LL_SHAPE(sizes[s], size));
                attr.dtype = LL_F64;
                x = new_random(LL_I32, LL_SHAPE(sizes[s]), 5);
                one("onehot", onehot_ref, onehot_cpu, &attr, 1, &x, LL_F64,
                    LL_SHAPE(sizes[s], size));
            }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_transpose),       cmocka_unit_test(test_permutations),
        cmocka_unit_test(test_broadcast),       cmocka_unit_test(test_slice_pad_concat),
        cmocka_unit_test(test_fill_and_onehot), cmocka_unit_test(bad_label),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
