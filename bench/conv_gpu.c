/* bench_conv_gpu: ResNet-50's convolutions, batch norms and pools on a GPU, kernel by kernel.
 *
 *     build/bench_conv_gpu [BATCH [PRECISION]]     default 256 bf16; or f32, tf32
 *
 * Convolutions: milliseconds and TFLOP/s of forward, dx (in bf16: bf16 out) and dw (f32 out), and
 * how often each occurs; all else: milliseconds and the share of a copy's bandwidth, with the bytes
 * that each kernel must move. One tap's convolution with the next norm's statistics stands in a
 * fourth column, and counts in place of the first where a step has it (fuse/tap_stats.c). The last
 * column sums up a step. */
#include "base/rng.h"
#include "dev/gpu.h"
#include "gpu_context.h"
#include "ir/op.h"
#include "kern/attr.h"
#include "kern/kern.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ll_gpu *gpu;
static double copy_rate; /* bytes a second, read and written */
static ll_dtype type = LL_BF16;
static bool tf32;
static bool taps; /* convolutions by one tap make statistics */

static void must(ll_err rc)
{
    if (rc == LL_OK) return;
    fprintf(stderr, "%s\n", ll_error_text());
    exit(1);
}

static size_t bytes_of(const ll_type *t)
{
    return (size_t)ll_numel(&t->shape) * ll_dtype_bytes(t->dtype);
}

/* Random numbers, the same block again and again. */
static void *upload(const ll_type *t)
{
    enum { BLOCK = 1 << 20 };
    static char block[BLOCK * 4];
    size_t n = bytes_of(t), b = BLOCK * ll_dtype_bytes(t->dtype);
    char *p;
    must(ll_gpu_alloc(gpu, n, (void **)&p));
    for (int64_t i = 0; i < BLOCK; i++)
        ll_store(block, t->dtype, i,
                 !ll_dtype_is_float(t->dtype) ? 0
                 : t->shape.n == 1            ? 1 + 0.1 * ll_uniform_at(1, 2, (uint64_t)i)
                                              : ll_normal_at(1, 2, (uint64_t)i));
    for (size_t at = 0; at < n; at += b) {
        must(ll_gpu_write(gpu, p + at, block, n - at < b ? n - at : b));
        must(ll_gpu_wait(gpu));
    }
    return p;
}

/* Seconds of one run of an op. */
static double time_op(const char *name, const void *attr, int n_in, const ll_type *types)
{
    enum { TIMES = 12 };
    const ll_op *op = ll_op_find(name);
    ll_graph *g = ll_graph_new("bench");
    ll_val v[LL_MAX_IN], made[LL_MAX_OUT];
    ll_tensor in[LL_MAX_IN], out[LL_MAX_OUT];
    char input[16];
    for (int i = 0; i < n_in; i++) {
        snprintf(input, sizeof input, "in%d", i);
        v[i] = ll_input(g, input, LL_PARAM, types[i], (ll_init){0});
        in[i] = (ll_tensor){upload(&types[i]), types[i].dtype, types[i].shape};
    }
    must(ll_emit_all(g, op, attr, v, n_in, made));
    for (int o = 0; o < op->n_out; o++) {
        const ll_type *t = &ll_value_of(g, made[o])->type;
        out[o] = (ll_tensor){NULL, t->dtype, t->shape};
        must(ll_gpu_alloc(gpu, bytes_of(t), &out[o].data));
    }
    ll_kcall c = {.attr = attr, .n_in = n_in, .n_out = op->n_out, .in = in, .out = out};
    c.ctx = gpu_context();
    c.stream = ll_gpu_stream(gpu, LL_STREAM_COMPUTE);
    c.n_micro = c.threads = 1;
    c.timing = true;
    c.tf32 = tf32;
    must(ll_gpu_alloc(gpu, ll_solve_scratch(op->cuda, &c), &c.scratch));
    double seconds;
    for (int i = 0; i < 2 + TIMES; i++) {
        if (i == 2) must(ll_gpu_mark(gpu, 0));
        must(ll_solve(op->cuda, &c));
    }
    must(ll_gpu_mark(gpu, 1));
    must(ll_gpu_wait(gpu));
    must(ll_gpu_seconds(gpu, 0, 1, &seconds));
    for (int i = 0; i < n_in; i++) ll_gpu_free(gpu, in[i].data);
    for (int o = 0; o < op->n_out; o++) ll_gpu_free(gpu, out[o].data);
    ll_gpu_free(gpu, c.scratch);
    ll_graph_free(g);
    return seconds / TIMES;
}

/* ---- convolutions ---- */

typedef struct shape {
    int64_t size, c, f, taps, stride;
    int count;
} shape;

static const shape shapes[] = {
    {224, 3, 64, 7, 2, 1},    {56, 64, 64, 1, 1, 1},    {56, 64, 64, 3, 1, 3},
    {56, 64, 256, 1, 1, 4},   {56, 256, 64, 1, 1, 2},   {56, 256, 128, 1, 1, 1},
    {56, 128, 128, 3, 2, 1},  {28, 128, 512, 1, 1, 4},  {56, 256, 512, 1, 2, 1},
    {28, 512, 128, 1, 1, 3},  {28, 128, 128, 3, 1, 3},  {28, 512, 256, 1, 1, 1},
    {28, 256, 256, 3, 2, 1},  {14, 256, 1024, 1, 1, 6}, {28, 512, 1024, 1, 2, 1},
    {14, 1024, 256, 1, 1, 5}, {14, 256, 256, 3, 1, 5},  {14, 1024, 512, 1, 1, 1},
    {14, 512, 512, 3, 2, 1},  {7, 512, 2048, 1, 1, 3},  {14, 1024, 2048, 1, 2, 1},
    {7, 2048, 512, 1, 1, 2},  {7, 512, 512, 3, 1, 2},
};
enum { N_SHAPE = sizeof shapes / sizeof *shapes };

static double convolution(int64_t batch, const shape *s)
{
    int64_t out = (s->size + 2 * (s->taps / 2) - s->taps) / s->stride + 1, pad = s->taps / 2;
    ll_type x = {type, LL_SHAPE(batch, s->size, s->size, s->c)};
    ll_type w = {type, LL_SHAPE(s->f, s->taps, s->taps, s->c)};
    ll_type y = {type, LL_SHAPE(batch, out, out, s->f)};
    ll_conv_attr a = {{s->stride, s->stride}, {pad, pad, pad, pad}, {1, 1}, 1, {0, 0},
                      type == LL_BF16};
    double flops = 2.0 * (double)ll_numel(&y.shape) * (double)(s->taps * s->taps * s->c);
    double floor = (double)(bytes_of(&x) + bytes_of(&y) + bytes_of(&w)) / copy_rate, sum = 0, t[4];
    bool tap = taps && s->taps == 1 && s->stride == 1, made = tap && s->c <= 512 && s->f >= s->c;
    t[0] = time_op("conv2d", &a, 2, (ll_type[]){x, w});
    a.size[0] = a.size[1] = s->size;
    t[1] = s->c == 3 ? 0 : time_op("conv2d_dx", &a, 2, (ll_type[]){y, w});
    a.size[0] = a.size[1] = s->taps;
    a.narrow = 0;
    t[2] = time_op("conv2d_dw", &a, 2, (ll_type[]){y, x});
    t[3] = tap ? time_op("tap_stats", NULL, 2, (ll_type[]){x, w}) : 0;
    printf("%3lld %4lld -> %4lld %lldx%lld/%lld x%d  floor %.3f", (long long)s->size,
           (long long)s->c, (long long)s->f, (long long)s->taps, (long long)s->taps,
           (long long)s->stride, s->count, 1e3 * floor);
    for (int k = 0; k < (tap ? 4 : 3); k++) {
        printf("  | %.3f %4.0f", 1e3 * t[k], t[k] ? 1e-12 * flops / t[k] : 0);
        sum += k != (made ? 0 : 3) ? t[k] * s->count : 0;
    }
    printf("  | %.2f ms\n", 1e3 * sum);
    return sum;
}

/* ---- what moves memory ---- */

/* How often a step has norms with a relu (of which with statistics of one tap), with a residual too
 * (all of them), and with one that is a norm (of which statistics are to be made). */
static double norms(int64_t batch, const int *kind)
{
    const int64_t size = kind[0], c = kind[1];
    const int known = taps ? kind[3] : 0, relu = kind[2] - known, add = taps ? 0 : kind[4],
              known_add = kind[4] - add, two = kind[5], stats = taps ? kind[6] : 2 * two;
    const ll_norm_attr a = {1e-5};
    ll_type x = {type, LL_SHAPE(batch, size, size, c)}, k = {LL_F32, LL_SHAPE(c)};
    ll_type bits = {LL_U8, LL_SHAPE(batch, size, size, c / 8)};
    double sum = 0;
    const struct {
        const char *op;
        int n_in, images, moves, count;
        int bits; /* the operand; -1: the result; 0: none */
    } rows[] = {{"batchnorm_relu", 3, 1, 3, relu, 0},
                {"batchnorm_known_relu", 5, 1, 2, known, 0},
                {"batchnorm_relu_grad", 6, 2, 5, kind[2], 0},
                {"batchnorm_add_relu_bits", 4, 2, 4, add, -1},
                {"batchnorm_known_add_relu_bits", 6, 2, 3, known_add, -1},
                {"batchnorm_sum_relu_grad", 7, 4, 7, kind[4], 2},
                {"batchnorm_stats", 1, 1, 1, stats, 0},
                {"batchnorm_two_relu", 10, 2, 3, two, 0},
                {"batchnorm_two_sum_relu_grad", 12, 4, 10, two, 0}};
    printf("%3lld %4lld", (long long)size, (long long)c);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!rows[i].count) continue;
        ll_type in[LL_MAX_IN];
        for (int n = 0; n < rows[i].n_in; n++) in[n] = n < rows[i].images ? x : k;
        if (rows[i].bits > 0) in[rows[i].bits] = bits;
        double t = time_op(rows[i].op, &a, rows[i].n_in, in);
        double bytes = (double)bytes_of(&x) * rows[i].moves;
        if (rows[i].bits) bytes += (double)bytes_of(&bits);
        printf("  | %s x%d %.3f ms %3.0f%%", rows[i].op, rows[i].count, 1e3 * t,
               100 * bytes / copy_rate / t);
        sum += t * rows[i].count;
    }
    printf("  | %.2f ms\n", 1e3 * sum);
    return sum;
}

/* The first layer's norm with its pool, and the last pool. */
static double pool(int64_t batch)
{
    const ll_norm_pool_attr a = {1e-5, {3, 3}, {2, 2}, {1, 1, 1, 1}};
    const ll_pool_attr all = {{7, 7}, {7, 7}, {0, 0, 0, 0}, {7, 7}};
    ll_type x = {type, LL_SHAPE(batch, 112, 112, 64)}, y = {type, LL_SHAPE(batch, 56, 56, 64)};
    ll_type i = {LL_U8, y.shape}, k = {LL_F32, LL_SHAPE(64)};
    ll_type z = {type, LL_SHAPE(batch, 7, 7, 2048)}, one = {type, LL_SHAPE(batch, 1, 1, 2048)};
    double image = (double)bytes_of(&x), out = (double)bytes_of(&y), place = (double)bytes_of(&i);
    double last = (double)(bytes_of(&z) + bytes_of(&one)), sum = 0;
    const struct {
        const char *op;
        const void *attr;
        int n_in;
        ll_type in[8];
        double bytes;
    } rows[] = {
        {"batchnorm_stats", NULL, 1, {x}, image},
        {"batchnorm_relu_pool", &a, 5, {x, k, k, k, k}, image + 2 * out + place},
        {"batchnorm_relu_pool_grad", &a, 8, {y, y, i, x, k, k, k, k}, 2 * image + 3 * out + place},
        {"avg_pool", &all, 1, {z}, last},
        {"avg_pool_grad", &all, 1, {one}, last},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        double t = time_op(rows[r].op, rows[r].attr, rows[r].n_in, rows[r].in);
        printf("%s %.3f ms %3.0f%%  ", rows[r].op, 1e3 * t, 100 * rows[r].bytes / copy_rate / t);
        sum += t;
    }
    printf(" | %.2f ms\n", 1e3 * sum);
    return sum;
}

static void measure_copy(void)
{
    const ll_type t = {LL_BF16, LL_SHAPE(1 << 14, 1 << 15)};
    const ll_reshape_attr same = {t.shape}; /* its kernel copies */
    copy_rate = 2.0 * (double)bytes_of(&t) / time_op("reshape", &same, 1, &t);
}

int main(int argc, char **argv)
{
    int64_t batch = argc > 1 ? atoll(argv[1]) : 256;
    if (!ll_gpu_count()) {
        printf("skipped: no GPU here\n");
        return 0;
    }
    const char *precision = argc > 2 ? argv[2] : "bf16";
    if (strcmp(precision, "bf16")) type = LL_F32;
    tf32 = !strcmp(precision, "tf32");
    if (type == LL_F32 && !tf32 && strcmp(precision, "f32")) {
        fprintf(stderr, "precision '%s', want bf16, f32 or tf32\n", precision);
        return 1;
    }
    must(ll_gpu_open(0, &gpu));
    taps = type == LL_BF16 && ll_cuda_level(gpu_context()) == 90;
    measure_copy();
    printf("copy %.2f TB/s; batch %lld, %s\n", 1e-12 * copy_rate, (long long)batch, precision);
    printf("convolution: floor by bytes (ms) | forward: ms, TFLOP/s | dx | dw | "
           "forward with statistics | all of them\n");
    double conv = 0, norm = 0;
    for (int i = 0; i < N_SHAPE; i++) conv += convolution(batch, &shapes[i]);
    static const int kinds[][7] = {{56, 64, 6, 1}, {56, 256, 0, 0, 2, 1},     {56, 128, 1},
                                   {28, 128, 7},   {28, 512, 0, 0, 3, 1, 1},  {28, 256, 1},
                                   {14, 256, 11},  {14, 1024, 0, 0, 5, 1, 1}, {14, 512, 1},
                                   {7, 512, 5},    {7, 2048, 0, 0, 2, 1, 1}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) norm += norms(batch, kinds[i]);
    double rest = pool(batch);
    printf("convolutions %.2f ms, batch norms %.2f ms, the first with its pool and the last pool "
           "%.2f ms\n",
           1e3 * conv, 1e3 * norm, 1e3 * rest);
    ll_gpu_close(gpu);
    return 0;
}
