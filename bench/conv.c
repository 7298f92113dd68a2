/* bench_conv: convolutions and pooling of the models, in each direction, on one thread and several.
 *
 *     build/bench_conv [THREADS] [NAME]     only shapes whose name contains NAME
 *     build/bench_conv 2 resnet18 f64       in f64, or bf16 (results are f32)
 *     build/bench_conv 2 s1 f32 winograd4   by this solver, where it fits
 *
 * Convolutions: GFLOP/s of the best of many runs, where all taps of every output pixel are counted,
 * those in the padding too. One thread is timed by its CPU clock, which other programs disturb
 * less, several by the wall clock. Pooling: GB/s of image and output together. */
#include "ir/op.h"
#include "kern/kern.h"
#include "kern/attr.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

extern const ll_op *const ll_ops_conv2d[];
ll_kernel max_pool_cpu, avg_pool_cpu;
extern const ll_solver pool_grad_cpu[];

typedef struct shape {
    const char *name;
    int n, size, c, f, taps, stride, pad;
} shape;

static const shape shapes[] = {
    {"lenet conv1", 64, 28, 1, 6, 5, 1, 2},
    {"lenet conv2", 64, 14, 6, 16, 5, 1, 0},
    {"resnet18 first", 32, 32, 3, 64, 3, 1, 1},
    {"resnet18 s1 3x3", 32, 32, 64, 64, 3, 1, 1},
    {"resnet18 s2 3x3 /2", 32, 32, 64, 128, 3, 2, 1},
    {"resnet18 s2 1x1 /2", 32, 32, 64, 128, 1, 2, 0},
    {"resnet18 s2 3x3", 32, 16, 128, 128, 3, 1, 1},
    {"resnet18 s3 3x3 /2", 32, 16, 128, 256, 3, 2, 1},
    {"resnet18 s3 3x3", 32, 8, 256, 256, 3, 1, 1},
    {"resnet18 s4 3x3 /2", 32, 8, 256, 512, 3, 2, 1},
    {"resnet18 s4 3x3", 32, 4, 512, 512, 3, 1, 1},
    {"resnet18 s4 3x3, 7x7", 32, 7, 512, 512, 3, 1, 1}, /* of images of 224 x 224 */
    {"resnet50 first 7x7 /2", 2, 224, 3, 64, 7, 2, 3},
    {"resnet50 1x1 in", 4, 56, 256, 64, 1, 1, 0},
    {"resnet50 1x1 out", 4, 56, 64, 256, 1, 1, 0},
    {"alexnet first 11x11 /4", 4, 224, 3, 64, 11, 4, 2},
    {"alexnet 5x5", 4, 27, 64, 192, 5, 1, 2},
    {"googlenet 5x5 reduce", 8, 28, 32, 96, 5, 1, 2},
    {"large 5x5", 32, 27, 64, 192, 5, 1, 2}, /* AlexNet's, of a larger batch */
    {"large 7x7", 8, 56, 64, 64, 7, 1, 3},
    {"large 11x11", 8, 56, 32, 32, 11, 1, 5},
};

static const char *asked;
static const ll_op *const *const ops = ll_ops_conv2d; /* conv2d, conv2d_dx, conv2d_dw */

static double now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static ll_tensor make(ll_dtype type, ll_shape shape)
{
    int64_t n = ll_numel(&shape);
    ll_tensor t = {aligned_alloc(64, ((size_t)n * 8 + 127) / 64 * 64), type, shape};
    for (int64_t i = 0; i < n; i++) ll_store(t.data, type, i, type == LL_I32 ? 0 : (double)(i % 7));
    return t;
}

/* Seconds of the best run: at least 3, and for a third of a second. */
static double best(ll_kernel *run, const ll_kcall *c)
{
    clockid_t clock = c->threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
    double least = 1e9, start = now(clock);
    for (int i = 0; i < 3 || now(clock) - start < 0.33; i++) {
        double t = now(clock);
        if (run(c) != LL_OK) abort();
        t = now(clock) - t;
        if (t < least) least = t;
    }
    return least;
}

static double conv(const shape *s, int d, int threads, ll_dtype t, const char **algorithm)
{
    int64_t out = (s->size + 2 * s->pad - s->taps) / s->stride + 1;
    ll_conv_attr a = {
        {s->stride, s->stride}, {s->pad, s->pad, s->pad, s->pad}, {1, 1}, 1, {0}, 0, {0}};
    ll_tensor x = make(t, LL_SHAPE(s->n, s->size, s->size, s->c));
    ll_tensor w = make(t, LL_SHAPE(s->f, s->taps, s->taps, s->c));
    ll_tensor y = make(t, LL_SHAPE(s->n, out, out, s->f));
    ll_tensor sets[3][3] = {{x, w, y}, {y, w, x}, {y, x, w}};
    ll_kcall c = {.attr = &a, .n_in = 2, .n_out = 1, .in = sets[d], .out = &sets[d][2]};
    if (t == LL_BF16) sets[d][2].dtype = LL_F32; /* all tensors have room for 8 bytes a number */
    c.threads = threads;
    c.solver = asked;
    const ll_solver *way = ll_solver_for(ops[d]->cpu, &c);
    c.scratch = aligned_alloc(64, (way->scratch(&c) + 63) / 64 * 64);
    *algorithm = way->name;
    double flops = 2.0 * s->n * (double)(out * out) * s->f * s->taps * s->taps * s->c;
    double seconds = best(way->run, &c);
    free(c.scratch);
    free(x.data);
    free(w.data);
    free(y.data);
    return flops / seconds * 1e-9;
}

static void pools(int threads)
{
    static const struct {
        const char *name;
        int n, size, c, window, stride, pad;
    } pool[] = {{"lenet 2x2", 64, 28, 6, 2, 2, 0},
                {"resnet50 3x3 /2", 4, 112, 64, 3, 2, 1},
                {"resnet18 global", 32, 4, 512, 4, 4, 0}};
    printf("%-24s %9s %9s %9s %9s   GB/s, %d threads\n", "pooling", "max", "max grad", "avg",
           "avg grad", threads);
    for (size_t i = 0; i < sizeof pool / sizeof *pool; i++) {
        int64_t size = pool[i].size, w = pool[i].window, st = pool[i].stride, pad = pool[i].pad;
        int64_t out = (size + 2 * pad - w) / st + 1;
        ll_pool_attr a = {{w, w}, {st, st}, {pad, pad, pad, pad}, {size, size}};
        ll_tensor x = make(LL_F32, LL_SHAPE(pool[i].n, size, size, pool[i].c));
        ll_shape s = LL_SHAPE(pool[i].n, out, out, pool[i].c);
        ll_tensor y[2] = {make(LL_F32, s), make(LL_I32, s)};
        ll_kcall fwd = {.attr = &a, .n_in = 1, .n_out = 2, .in = &x, .out = y, .threads = threads};
        ll_kcall bwd = {.attr = &a, .n_in = 2, .n_out = 1, .in = y, .out = &x, .threads = threads};
        ll_kcall avg = bwd;
        avg.n_in = 1;
        double bytes = 4e-9 * (double)(ll_numel(&x.shape) + ll_numel(&s));
        printf("%-24s %9.2f %9.2f %9.2f %9.2f\n", pool[i].name, bytes / best(max_pool_cpu, &fwd),
               bytes / best(ll_solver_for(pool_grad_cpu, &bwd)->run, &bwd),
               bytes / best(avg_pool_cpu, &fwd),
               bytes / best(ll_solver_for(pool_grad_cpu, &avg)->run, &avg));
        free(x.data);
        free(y[0].data);
        free(y[1].data);
    }
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : 2;
    ll_dtype t = argc > 3 && !strcmp(argv[3], "f64")    ? LL_F64
                 : argc > 3 && !strcmp(argv[3], "bf16") ? LL_BF16
                                                        : LL_F32;
    asked = argc > 4 ? argv[4] : NULL;
    printf("%s %-20s", ll_dtype_name(t), "GFLOP/s, by threads");
    for (int d = 0; d < 3; d++)
        printf("%9s 1 %6d  %-9s", (const char *[]){"fwd", "dx", "dw"}[d], threads, "");
    printf("\n");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        if (argc > 2 && !strstr(shapes[i].name, argv[2])) continue;
        printf("%-24s", shapes[i].name);
        for (int d = 0; d < 3; d++) {
            const char *algorithm;
            double one = conv(&shapes[i], d, 1, t, &algorithm);
            double all = conv(&shapes[i], d, threads, t, &algorithm);
            printf("  %9.1f %6.1f  %-9s", one, all, algorithm);
            fflush(stdout);
        }
        printf("\n");
    }
    if (argc < 3 || strstr(argv[2], "pool")) pools(threads);
    return 0;
}
