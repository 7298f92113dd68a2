/* test_attention_gpu.c: attention's gradient on a GPU takes a large batch in slices: each sample's
 * results must be those it has alone, bit by bit. Summed in any order it must be what it is summed
 * in order, up to rounding. In f32, tf32 and bf16 it must be what it is in f64, on a plain kernel;
 * so must attention of separate queries, keys and values.
 * Skipped with a message where there is no GPU. */
#include "base/rng.h"
#include "dev/gpu.h"
#include "gpu_context.h"
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
static bool any_order, tf32, rounded;

static void must(ll_err rc)
{
    if (rc != LL_OK) fail_msg("%s\n%s", ll_error_text(), ll_error_frames());
}

static size_t bytes_of(const ll_tensor *t)
{
    return (size_t)ll_numel(&t->shape) * ll_dtype_bytes(t->dtype);
}

static ll_tensor random_tensor(ll_dtype type, ll_shape shape, uint64_t salt)
{
    ll_tensor t = {NULL, type, shape};
    void *host = malloc(bytes_of(&t));
    assert_non_null(host);
    for (int64_t i = 0; i < ll_numel(&shape); i++) {
        double x = ll_normal_at(1, ll_stream("slices", salt), (uint64_t)i);
        if (rounded) { /* to what bf16 has */
            uint16_t kept;
            ll_store(&kept, LL_BF16, 0, x);
            x = ll_load(&kept, LL_BF16, 0);
        }
        ll_store(host, type, i, (float)x);
    }
    must(ll_gpu_alloc(gpu, bytes_of(&t), &t.data));
    must(ll_gpu_write(gpu, t.data, host, bytes_of(&t)));
    must(ll_gpu_wait(gpu));
    free(host);
    return t;
}

static const ll_op *op_named(const char *name)
{
    const ll_op *const *op = ll_ops();
    while (*op && strcmp((*op)->name, name)) op++;
    assert_non_null(*op);
    return *op;
}

/* Bytes of scratch, which holds nothing of use. */
static size_t run_with(const ll_op *op, int n_in, const ll_tensor *in, ll_tensor *out, int n_out,
                       const void *attr)
{
    ll_kcall c = {.n_in = n_in,
                  .n_out = n_out,
                  .in = in,
                  .out = out,
                  .attr = attr,
                  .threads = 1,
                  .n_micro = 1,
                  .ctx = gpu_context(),
                  .stream = ll_gpu_stream(gpu, LL_STREAM_COMPUTE),
                  .any_order = any_order,
                  .tf32 = tf32};
    size_t bytes = ll_solve_scratch(op->cuda, &c);
    must(ll_gpu_alloc(gpu, bytes + 1, &c.scratch));
    must(ll_gpu_fill(gpu, c.scratch, 0x7f, bytes));
    for (int i = 0; i < n_out; i++) must(ll_gpu_fill(gpu, out[i].data, 0x7f, bytes_of(&out[i])));
    must(ll_solve(op->cuda, &c));
    must(ll_gpu_wait(gpu));
    ll_gpu_free(gpu, c.scratch);
    return bytes;
}

/* The same, and the first result into `host`. */
static size_t run(const ll_op *op, const ll_tensor *in, ll_tensor *out, int n_out, void *host)
{
    size_t bytes = run_with(op, op->n_in, in, out, n_out, NULL);
    if (host) must(ll_gpu_read(gpu, host, out[0].data, bytes_of(&out[0])));
    must(ll_gpu_wait(gpu));
    return bytes;
}

/* Sample i of a batch. */
static ll_tensor sample(const ll_tensor *t, int64_t i)
{
    ll_tensor one = *t;
    one.shape.d[0] = 1;
    one.data = (char *)t->data + (size_t)i * bytes_of(&one);
    return one;
}

static void test_slices(void **)
{
    enum { B = 7, T = 4096, H = 11, D = 8 };
    ll_tensor qkv = random_tensor(LL_BF16, LL_SHAPE(B, T, 3, H, D), 0);
    ll_tensor dqkv = random_tensor(LL_BF16, LL_SHAPE(B, T, 3, H, D), 1);
    ll_tensor dout = random_tensor(LL_BF16, LL_SHAPE(B, T, H, D), 2);
    ll_tensor out[2] = {random_tensor(LL_BF16, LL_SHAPE(B, T, H, D), 3),
                        random_tensor(LL_F32, LL_SHAPE(B, H, T), 4)};
    size_t n = bytes_of(&dqkv);
    char *whole = (char *)malloc(n), *alone = (char *)malloc(n);
    assert_true(whole && alone);
    run(op_named("attention"), &qkv, out, 2, NULL);
    const ll_op *grad = op_named("attention_grad");
    ll_tensor in[4] = {dout, qkv, out[0], out[1]};
    size_t bytes = run(grad, in, &dqkv, 1, whole), one_bytes = 0;
    for (int64_t i = 0; i < B; i++) {
        ll_tensor part[4], to = sample(&dqkv, i);
        for (int k = 0; k < 4; k++) part[k] = sample(&in[k], i);
        one_bytes = run(grad, part, &to, 1, alone + (size_t)i * n / B);
    }
    assert_true(one_bytes > 100 << 20 && bytes < B * one_bytes); /* it was cut */
    assert_memory_equal(whole, alone, n);
    ll_tensor *all[] = {&qkv, &dqkv, &dout, &out[0], &out[1]};
    for (int i = 0; i < 5; i++) ll_gpu_free(gpu, all[i]->data);
    free(whole);
    free(alone);
}

/* Off by rounding of bf16 and no more: all q, all k, all v together, and each element. */
static void close_parts(const void *a, const void *b, ll_shape shape)
{
    int64_t n = ll_numel(&shape), width = shape.d[3] * shape.d[4];
    double off[3] = {0}, of[3] = {0};
    for (int64_t i = 0; i < n; i++) {
        double x = ll_load(a, LL_BF16, i), y = ll_load(b, LL_BF16, i);
        off[i / width % 3] += (x - y) * (x - y);
        of[i / width % 3] += y * y;
    }
    for (int z = 0; z < 3; z++)
        if (!(sqrt(off[z]) < 1e-2 * sqrt(of[z])))
            fail_msg("gradient of %c is off by %g of it", "qkv"[z], sqrt(off[z] / of[z]));
    for (int64_t i = 0; i < n; i++) {
        double x = ll_load(a, LL_BF16, i), y = ll_load(b, LL_BF16, i);
        double usual = sqrt(3 * of[i / width % 3] / (double)n);
        if (!(fabs(x - y) <= 0.25 * usual + fabs(y) / 64))
            fail_msg("gradient of %c: element %lld is %g, in order %g", "qkv"[i / width % 3],
                     (long long)i, x, y);
    }
}

static void compare_orders(int64_t b, int64_t t, int64_t h, int64_t d)
{
    ll_tensor qkv = random_tensor(LL_BF16, LL_SHAPE(b, t, 3, h, d), 0);
    ll_tensor dqkv = random_tensor(LL_BF16, LL_SHAPE(b, t, 3, h, d), 1);
    ll_tensor dout = random_tensor(LL_BF16, LL_SHAPE(b, t, h, d), 2);
    ll_tensor out[2] = {random_tensor(LL_BF16, LL_SHAPE(b, t, h, d), 3),
                        random_tensor(LL_F32, LL_SHAPE(b, h, t), 4)};
    void *in_order = malloc(bytes_of(&dqkv)), *in_any = malloc(bytes_of(&dqkv));
    assert_true(in_order && in_any);
    printf("[%lld,%lld,3,%lld,%lld]\n", (long long)b, (long long)t, (long long)h, (long long)d);
    run(op_named("attention"), &qkv, out, 2, NULL);
    const ll_op *grad = op_named("attention_grad");
    ll_tensor in[4] = {dout, qkv, out[0], out[1]};
    size_t bytes = run(grad, in, &dqkv, 1, in_order);
    any_order = true;
    bool another = run(grad, in, &dqkv, 1, in_any) != bytes;
    any_order = false;
    assert_true(another || d == 64 || d == 128); /* our kernels for these have one order */
    if (another)
        close_parts(in_any, in_order, qkv.shape);
    else
        assert_memory_equal(in_any, in_order, bytes_of(&dqkv));
    ll_tensor *all[] = {&qkv, &dqkv, &dout, &out[0], &out[1]};
    for (int i = 0; i < 5; i++) ll_gpu_free(gpu, all[i]->data);
    free(in_order);
    free(in_any);
}

static void test_any_order(void **)
{
    compare_orders(3, 256, 5, 64);
    compare_orders(2, 1024, 3, 64);
    compare_orders(2, 200, 3, 64);
    compare_orders(2, 512, 3, 128);
    compare_orders(2, 333, 2, 32);
}

/* Forward and backward of one type: o, lse and dqkv, read back. */
static void all_of(ll_dtype type, ll_shape shape, ll_tensor host[3])
{
    int64_t b = shape.d[0], t = shape.d[1], h = shape.d[3], d = shape.d[4];
    ll_tensor qkv = random_tensor(type, shape, 0), dqkv = random_tensor(type, shape, 1);
    ll_tensor dout = random_tensor(type, LL_SHAPE(b, t, h, d), 2);
    ll_tensor out[2] = {random_tensor(type, LL_SHAPE(b, t, h, d), 3),
                        random_tensor(type == LL_BF16 ? LL_F32 : type, LL_SHAPE(b, h, t), 4)};
    run(op_named("attention"), &qkv, out, 2, NULL);
    run(op_named("attention_grad"), (ll_tensor[]){dout, qkv, out[0], out[1]}, &dqkv, 1, NULL);
    ll_tensor *all[] = {&out[0], &out[1], &dqkv, &qkv, &dout};
    for (int i = 0; i < 3; i++) {
        host[i] = *all[i];
        host[i].data = malloc(bytes_of(all[i]));
        assert_non_null(host[i].data);
        must(ll_gpu_read(gpu, host[i].data, all[i]->data, bytes_of(all[i])));
        must(ll_gpu_wait(gpu));
    }
    for (int i = 0; i < 5; i++) ll_gpu_free(gpu, all[i]->data);
}

/* The largest difference, as part of the largest number. */
static double off_by(const ll_tensor *a, const ll_tensor *b)
{
    double most = 0, largest = 0;
    for (int64_t i = 0; i < ll_numel(&a->shape); i++) {
        double x = ll_load(a->data, a->dtype, i), y = ll_load(b->data, b->dtype, i);
        if (!(fabs(x - y) <= most)) most = isnan(x) ? INFINITY : fabs(x - y);
        largest = fmax(largest, fabs(y));
    }
    return most / largest;
}

/* tf32 keeps 11 bits of each operand. */
static void against_f64(int64_t b, int64_t t, int64_t h, int64_t d)
{
    static const char *const names[] = {"o", "lse", "dqkv"};
    ll_shape shape = LL_SHAPE(b, t, 3, h, d);
    ll_tensor want[3], got[3];
    all_of(LL_F64, shape, want);
    for (int k = 0; k < 2; k++) {
        tf32 = k == 1;
        all_of(LL_F32, shape, got);
        tf32 = false;
        for (int i = 0; i < 3; i++) {
            double off = off_by(&got[i], &want[i]);
            printf("[%lld,%lld,3,%lld,%lld] %s: %s off by %g\n", (long long)b, (long long)t,
                   (long long)h, (long long)d, k ? "tf32" : "f32", names[i], off);
            assert_true(off < (k ? 2e-3 : 1e-5));
            assert_true(!k || d == 18 || t == 1 || off > 1e-6); /* it was rounded */
            free(got[i].data);
        }
    }
    for (int i = 0; i < 3; i++) free(want[i].data);
}

static void test_f64(void **)
{
    against_f64(2, 300, 2, 64);
    against_f64(3, 128, 1, 64);
    against_f64(2, 1, 3, 64);
    against_f64(1, 1025, 2, 32);
    against_f64(2, 63, 3, 32);
    against_f64(2, 150, 2, 128);
    against_f64(1, 449, 1, 128);
    against_f64(2, 150, 2, 20); /* filled up to 32, 64, 128 */
    against_f64(1, 300, 3, 48);
    against_f64(2, 130, 2, 80);
    against_f64(1, 257, 1, 124);
    against_f64(2, 50, 2, 18); /* no tiles for it */
}

/* The gradient in bf16 must be what it is in f64, up to rounding. */
static void bf16_against_f64(int64_t b, int64_t t, int64_t h, int64_t d)
{
    ll_shape shape = LL_SHAPE(b, t, 3, h, d);
    ll_tensor want[3], got[3];
    rounded = true;
    all_of(LL_F64, shape, want);
    all_of(LL_BF16, shape, got);
    rounded = false;
    int64_t n = ll_numel(&shape), width = h * d;
    double off[3] = {0}, of[3] = {0};
    for (int64_t i = 0; i < n; i++) {
        double x = ll_load(got[2].data, LL_BF16, i), y = ll_load(want[2].data, LL_F64, i);
        off[i / width % 3] += (x - y) * (x - y);
        of[i / width % 3] += y * y;
    }
    double most = off_by(&got[2], &want[2]);
    printf("[%lld,%lld,3,%lld,%lld] bf16: dq, dk, dv off by %g, %g, %g; at most %g\n", (long long)b,
           (long long)t, (long long)h, (long long)d, sqrt(off[0] / of[0]), sqrt(off[1] / of[1]),
           sqrt(off[2] / of[2]), most);
    for (int z = t == 1 ? 2 : 0; z < 3; z++) assert_true(sqrt(off[z]) < 5e-3 * sqrt(of[z]));
    assert_true(most < 1e-2);
    for (int i = 0; i < 3; i++) free(want[i].data), free(got[i].data);
}

static void test_bf16(void **)
{
    for (int64_t d = 64; d <= 128; d += 64) {
        bf16_against_f64(2, 1024, 3, d);
        bf16_against_f64(3, 128, 2, d);
        bf16_against_f64(1, 1, 2, d);
        bf16_against_f64(2, 64, 1, d);
        bf16_against_f64(2, 65, 3, d);
        bf16_against_f64(5, 129, 1, d);
        bf16_against_f64(40, 384, 5, d); /* more blocks than there are multiprocessors */
        bf16_against_f64(2, 333, 2, d);
        bf16_against_f64(1, 2000, 2, d);
    }
}

/* ---- separate queries, keys and values ---- */

typedef struct apart {
    int64_t b, t, s, n, g, d; /* n heads of keys, g of queries for each */
    bool causal;
} apart;

/* o, lse, dq, dk and dv of one type, read back; delta: made of o and do, or that of before. */
static void attend_all(const apart *a, ll_dtype type, double *delta, bool make, ll_tensor host[5])
{
    ll_attend_attr attr = {.causal = a->causal, .scale = 1 / sqrt((double)a->d)};
    ll_dtype stat = type == LL_BF16 ? LL_F32 : type;
    ll_shape q = LL_SHAPE(a->b, a->t, a->n, a->g, a->d), k = LL_SHAPE(a->b, a->s, a->n, a->d),
             l = LL_SHAPE(a->b, a->n, a->g, a->t);
    ll_tensor in[3] = {random_tensor(type, q, 0), random_tensor(type, k, 1),
                       random_tensor(type, k, 2)};
    ll_tensor out[5] = {random_tensor(type, q, 3), random_tensor(stat, l, 4),
                        random_tensor(type, q, 5), random_tensor(type, k, 6),
                        random_tensor(type, k, 7)};
    ll_tensor dout = random_tensor(type, q, 8), given = random_tensor(stat, l, 9);
    run_with(op_named("attend"), 3, in, out, 2, &attr);
    int64_t rows = ll_numel(&l), heads = a->n * a->g;
    if (make) {
        char *o = (char *)malloc(bytes_of(&out[0])), *d = (char *)malloc(bytes_of(&dout));
        assert_true(o && d);
        must(ll_gpu_read(gpu, o, out[0].data, bytes_of(&out[0])));
        must(ll_gpu_read(gpu, d, dout.data, bytes_of(&dout)));
        must(ll_gpu_wait(gpu));
        for (int64_t r = 0; r < rows; r++) {
            int64_t t = r % a->t, h = r / a->t % heads, b = r / a->t / heads;
            delta[r] = 0;
            for (int64_t e = 0, at = ((b * a->t + t) * heads + h) * a->d; e < a->d; e++)
                delta[r] += ll_load(o, type, at + e) * ll_load(d, type, at + e);
        }
        free(o), free(d);
    }
    char *sums = (char *)malloc(bytes_of(&given));
    assert_non_null(sums);
    for (int64_t r = 0; r < rows; r++) ll_store(sums, stat, r, delta[r]);
    must(ll_gpu_write(gpu, given.data, sums, bytes_of(&given)));
    must(ll_gpu_wait(gpu));
    free(sums);
    run_with(op_named("attend_grad"), 6, (ll_tensor[]){dout, in[0], in[1], in[2], out[1], given},
             out + 2, 3, &attr);
    for (int i = 0; i < 5; i++) {
        host[i] = out[i];
        host[i].data = malloc(bytes_of(&out[i]));
        assert_non_null(host[i].data);
        must(ll_gpu_read(gpu, host[i].data, out[i].data, bytes_of(&out[i])));
        must(ll_gpu_wait(gpu));
        ll_gpu_free(gpu, out[i].data);
    }
    for (int i = 0; i < 3; i++) ll_gpu_free(gpu, in[i].data);
    ll_gpu_free(gpu, dout.data), ll_gpu_free(gpu, given.data);
}

static void attend_against_f64(apart a)
{
    static const char *const names[] = {"o", "lse", "dq", "dk", "dv"};
    ll_tensor want[5], got[5];
    double *delta = (double *)malloc((size_t)(a.b * a.n * a.g * a.t) * sizeof *delta);
    assert_non_null(delta);
    rounded = true;
    attend_all(&a, LL_F64, delta, true, want);
    attend_all(&a, LL_BF16, delta, false, got);
    rounded = false;
    for (int i = 0; i < 5; i++) {
        double off = 0, of = 0;
        for (int64_t k = 0; k < ll_numel(&want[i].shape); k++) {
            double x = ll_load(got[i].data, got[i].dtype, k), y = ll_load(want[i].data, LL_F64, k);
            off += (x - y) * (x - y), of += y * y;
        }
        printf("[%lld,%lld to %lld,%lld x %lld,%lld]%s: %s off by %g\n", (long long)a.b,
               (long long)a.t, (long long)a.s, (long long)a.n, (long long)a.g, (long long)a.d,
               a.causal ? " causal" : "", names[i], sqrt(off / of));
        bool nothing = a.causal && a.t == 1 && (i == 2 || i == 3); /* one key: no slope */
        assert_true(nothing || sqrt(off) < 5e-3 * sqrt(of));
        free(want[i].data), free(got[i].data);
    }
    free(delta);
}

static void test_attend(void **)
{
    for (int64_t d = 64; d <= 128; d += 64) {
        attend_against_f64((apart){2, 256, 256, 2, 1, d, true});
        attend_against_f64((apart){1, 1, 1, 2, 2, d, true});
        attend_against_f64((apart){2, 65, 65, 1, 3, d, true});
        attend_against_f64((apart){1, 1000, 1000, 2, 4, d, true});
        attend_against_f64((apart){33, 200, 200, 2, 2, d, true});
        attend_against_f64((apart){2, 128, 384, 2, 2, d, false});
        attend_against_f64((apart){3, 77, 128, 1, 2, d, false});
        attend_against_f64((apart){1, 300, 200, 2, 2, d, false});
    }
    attend_against_f64((apart){2, 150, 150, 2, 2, 96, true});
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slices), cmocka_unit_test(test_any_order),
        cmocka_unit_test(test_bf16), cmocka_unit_test(test_attend), cmocka_unit_test(test_f64)};
    return cmocka_run_group_tests_name("attention on a GPU", tests, NULL, NULL);
}
