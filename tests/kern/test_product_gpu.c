/* test_product_gpu.c: products with what surrounds them, large enough that every block of our own
 * kernel (kern/cuda/hopper.cu) makes several tiles, against cuBLASLt's plain product in f32 and
 * what is made of it here. Sizes that fill no tile; both layouts of b; twice the same bits. Skipped
 * with a message where there is no GPU. */
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

static void must(ll_err rc)
{
    if (rc != LL_OK) fail_msg("%s\n%s", ll_error_text(), ll_error_frames());
}

static size_t bytes_of(const ll_tensor *t)
{
    return (size_t)ll_numel(&t->shape) * ll_dtype_bytes(t->dtype);
}

typedef struct values { /* here and there */
    ll_tensor t;
    void *host;
} values;

static values room_for(ll_dtype type, ll_shape shape)
{
    values v = {{NULL, type, shape}, NULL};
    v.host = malloc(bytes_of(&v.t));
    assert_non_null(v.host);
    must(ll_gpu_alloc(gpu, bytes_of(&v.t), &v.t.data));
    return v;
}

static values values_of(ll_shape shape, uint64_t salt, double by)
{
    values v = room_for(LL_BF16, shape);
    for (int64_t i = 0; i < ll_numel(&shape); i++)
        ll_store(v.host, LL_BF16, i,
                 by * ll_normal_at(1, ll_stream("products", salt), (uint64_t)i));
    must(ll_gpu_write(gpu, v.t.data, v.host, bytes_of(&v.t)));
    must(ll_gpu_wait(gpu));
    return v;
}

static void drop(values *v)
{
    ll_gpu_free(gpu, v->t.data);
    free(v->host);
}

/* Runs op on poisoned results, and brings them here. */
static void run(const char *name, const void *attr, const ll_tensor *in, int n_in, values *out,
                int n_out)
{
    const ll_op *op = ll_op_find(name);
    ll_tensor result[2];
    for (int o = 0; o < n_out; o++) {
        result[o] = out[o].t;
        must(ll_gpu_fill(gpu, result[o].data, 0x7f, bytes_of(&result[o])));
    }
    ll_kcall c = {.attr = attr, .n_in = n_in, .n_out = n_out, .in = in, .out = result};
    c.threads = c.n_micro = 1;
    c.ctx = gpu_context();
    c.stream = ll_gpu_stream(gpu, LL_STREAM_COMPUTE);
    size_t bytes = ll_solve_scratch(op->cuda, &c);
    must(ll_gpu_alloc(gpu, bytes, &c.scratch));
    must(ll_gpu_fill(gpu, c.scratch, 0x7f, bytes));
    must(ll_solve(op->cuda, &c));
    for (int o = 0; o < n_out; o++)
        must(ll_gpu_read(gpu, out[o].host, result[o].data, bytes_of(&result[o])));
    must(ll_gpu_wait(gpu));
    ll_gpu_free(gpu, c.scratch);
}

/* The difference of all, and of the worst element, by the norm and the largest of what is wanted.
 */
static void close_to(const char *what, const values *got, const double *want, double all,
                     double one)
{
    double off = 0, of = 0, worst = 0, largest = 0;
    for (int64_t i = 0; i < ll_numel(&got->t.shape); i++) {
        double d = ll_load(got->host, got->t.dtype, i) - want[i];
        off += d * d, of += want[i] * want[i];
        worst = fabs(d) > worst || d != d ? fabs(d) : worst;
        largest = fmax(largest, fabs(want[i]));
    }
    printf("  %-8s %.1e of all, %.1e of the largest\n", what, sqrt(off / of), worst / largest);
    assert_true(off <= all * all * of);
    assert_true(worst <= one * largest);
}

static double slope_of(double x, double *y)
{
    double t = tanh(LL_GELU_A * (x + LL_GELU_B * x * x * x));
    *y = 0.5 * x * (1 + t);
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * LL_GELU_A * (1 + 3 * LL_GELU_B * x * x);
}

/* In place of the product p: the result; second: the slopes, or sums of columns. */
static void finish(ll_act act, int64_t rows, int64_t n, const values *more, double *p,
                   double *second)
{
    for (int64_t i = 0; i < (act == LL_ACT_TIMES ? n : 0); i++) second[i] = 0;
    for (int64_t e = 0; e < rows * n; e++) {
        double m = ll_load(more->host, LL_BF16, act == LL_ACT_TIMES ? e : e % n);
        if (act == LL_ACT_TIMES) {
            p[e] *= m;
            second[e % n] += p[e];
        } else if (act == LL_ACT_SLOPE)
            second[e] = slope_of(p[e] + m, &p[e]);
        else
            p[e] += m;
    }
}

static void trial(ll_act act, const char *spec, int64_t rows, int64_t n, int64_t k)
{
    bool transposed = strchr(spec, ',')[1] == 'k', times = act == LL_ACT_TIMES;
    printf("act %d %s rows %lld columns %lld summed %lld\n", (int)act, spec, (long long)rows,
           (long long)n, (long long)k);
    values a = values_of(LL_SHAPE(rows, k), 0, 1);
    values b = values_of(transposed ? LL_SHAPE(k, n) : LL_SHAPE(n, k), 1, 1 / sqrt((double)k));
    values more = values_of(times ? LL_SHAPE(rows, n) : LL_SHAPE(n), 2, 1);
    values p = room_for(LL_F32, LL_SHAPE(rows, n));
    values out[2] = {room_for(LL_BF16, LL_SHAPE(rows, n)),
                     times ? room_for(LL_F32, LL_SHAPE(n)) : room_for(LL_BF16, LL_SHAPE(rows, n))};
    int n_out = act == LL_ACT_NONE ? 1 : 2;
    ll_matmul_attr plain = {.out = LL_F32};
    ll_product_attr attr = {.out = LL_BF16, .bias = !times, .act = act};
    strcpy(plain.spec, spec);
    strcpy(attr.spec, spec);
    const ll_tensor in[3] = {a.t, b.t, more.t};
    run("matmul", &plain, in, 2, &p, 1);
    double *want = malloc((size_t)(rows * n) * sizeof *want),
           *second = malloc((size_t)(rows * n) * sizeof *second);
    void *first = malloc(bytes_of(&out[0].t));
    assert_true(want && second && first);
    for (int64_t e = 0; e < rows * n; e++) want[e] = ll_load(p.host, LL_F32, e);
    finish(act, rows, n, &more, want, second);
    const char *op = n_out == 2 ? "product2" : "product1";
    run(op, &attr, in, 3, out, n_out);
    memcpy(first, out[0].host, bytes_of(&out[0].t));
    close_to("result", &out[0], want, 2e-3, 4e-3);
    if (act == LL_ACT_SLOPE) close_to("slope", &out[1], second, 2.5e-3, 4e-3);
    if (times) close_to("sums", &out[1], second, 1e-5, 1e-5);
    run(op, &attr, in, 3, out, n_out);
    assert_memory_equal(first, out[0].host, bytes_of(&out[0].t));
    values *all[] = {&a, &b, &more, &p, &out[0], &out[1]};
    for (int i = 0; i < 6; i++) drop(all[i]);
    free(want);
    free(second);
    free(first);
}

static void test_products(void **)
{
    static const ll_act acts[] = {LL_ACT_NONE, LL_ACT_SLOPE, LL_ACT_TIMES};
    for (int i = 0; i < 3; i++) {
        trial(acts[i], "rk,nk->rn", 2101, 3208, 200); /* 153 pairs of tiles */
        trial(acts[i], "rk,kn->rn", 2101, 3208, 136);
        trial(acts[i], "rk,kn->rn", 129, 200, 72);
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
    if (ll_cuda_level(gpu_context()) != 90) {
        printf("skipped: these kernels are for compute capability 9.0\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_products)};
    return cmocka_run_group_tests_name("products on a GPU", tests, NULL, NULL);
}
