/* bench_gemm: our matrix product against OpenBLAS, shape by shape, on one thread and several.
 *
 *     build/bench_gemm [THREADS] [NAME]     only shapes whose name contains NAME
 *     build/bench_gemm 2 gpt f64            in f64; and beside our f32
 *
 * Each number is GFLOP/s of the best of many runs, on data already in the cache if it fits. One
 * thread is timed by its CPU clock, which other programs disturb less, several by the wall clock.
 */
#include "kern/cpu/gemm.h"

#include <cblas.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef struct shape {
    const char *name;
    int m, n, k;
    const char *form; /* N or T for a, then for b */
} shape;

static const shape shapes[] = {
    {"square", 64, 64, 64, "NN"},
    {"square", 96, 96, 96, "NN"},
    {"square", 128, 128, 128, "NN"},
    {"square", 192, 192, 192, "NN"},
    {"square", 256, 256, 256, "NN"},
    {"square", 384, 384, 384, "NN"},
    {"square", 512, 512, 512, "NN"},
    {"square", 1024, 1024, 1024, "NN"},
    {"square", 1024, 1024, 1024, "NT"},
    {"square", 1024, 1024, 1024, "TN"},
    {"square", 1024, 1024, 1024, "TT"},
    {"square", 2048, 2048, 2048, "NN"},
    {"lenet conv1 fwd, pixels x filters", 50176, 6, 25, "NT"},
    {"lenet conv1 fwd, filters x pixels", 6, 50176, 25, "NN"},
    {"lenet conv1 fwd, one image", 6, 784, 25, "NN"},
    {"lenet conv1 dW", 6, 25, 50176, "NT"},
    {"lenet conv1 dW, channels last", 6, 25, 50176, "TN"},
    {"lenet conv1 dW, one image", 6, 25, 784, "NT"},
    {"lenet conv2 fwd, pixels x filters", 6400, 16, 150, "NT"},
    {"lenet conv2 fwd, filters x pixels", 16, 6400, 150, "NN"},
    {"lenet conv2 fwd, one image", 16, 100, 150, "NN"},
    {"lenet conv2 dW", 16, 150, 6400, "NT"},
    {"lenet conv2 dW, channels last", 16, 150, 6400, "TN"},
    {"lenet conv2 dX", 150, 6400, 16, "TN"},
    {"lenet fc1 fwd", 64, 120, 400, "NT"},
    {"lenet fc1 dW", 120, 400, 64, "TN"},
    {"lenet fc1 dX", 64, 400, 120, "NN"},
    {"lenet fc2 fwd", 64, 84, 120, "NT"},
    {"lenet fc2 dW", 84, 120, 64, "TN"},
    {"lenet fc2 dX", 64, 120, 84, "NN"},
    {"lenet fc3 fwd", 64, 10, 84, "NT"},
    {"lenet fc3 dW", 10, 84, 64, "TN"},
    {"lenet fc3 dX", 64, 84, 10, "NN"},
    {"gpt qkv fwd", 2048, 768, 256, "NT"},
    {"gpt up fwd", 2048, 1024, 256, "NT"},
    {"gpt up NN", 2048, 1024, 256, "NN"},
    {"gpt down fwd", 2048, 256, 1024, "NT"},
    {"gpt up dW", 1024, 256, 2048, "TN"},
    {"gpt up dX", 2048, 256, 1024, "NN"},
    {"gpt QK^T of a head", 256, 256, 64, "NT"},
    {"gpt PV of a head", 256, 64, 256, "NN"},
    {"resnet s1 fwd, one image", 64, 1024, 576, "NN"},
    {"resnet s1 fwd, batch", 64, 32768, 576, "NN"},
    {"resnet s1 fwd, channels last", 32768, 64, 576, "NT"},
    {"resnet s1 dW, batch", 64, 576, 32768, "NT"},
    {"resnet s1 dW, channels last", 64, 576, 32768, "TN"},
    {"resnet s1 dX", 576, 32768, 64, "TN"},
    {"resnet s2 fwd, one image", 128, 256, 1152, "NN"},
    {"resnet s3 fwd, one image", 256, 64, 2304, "NN"},
    {"resnet s4 fwd, one image", 512, 16, 4608, "NN"},
    {"resnet s4 fwd, batch", 512, 512, 4608, "NN"},
    {"one row", 1, 1024, 1024, "NN"},
    {"one row", 1, 1024, 1024, "NT"},
    {"one column", 1024, 1, 1024, "NN"},
    {"one column", 1024, 1, 1024, "TN"},
    {"4 rows", 4, 1024, 1024, "NN"},
    {"4 rows", 4, 1024, 1024, "NT"},
    {"10 columns", 1024, 10, 1024, "NN"},
    {"10 columns", 1024, 10, 1024, "NT"},
};

static double now(int threads)
{
    struct timespec t;
    clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double best_seconds(void (*run)(const ll_gemm_call *), const ll_gemm_call *g, double flops)
{
    int inner = flops > 2e6 ? 1 : (int)(2e6 / flops) + 1;
    double best = 1e30, start = now(g->threads);
    for (int r = 0; r < 5 || now(g->threads) - start < 0.15; r++) {
        double t = now(g->threads);
        for (int i = 0; i < inner; i++) run(g);
        t = (now(g->threads) - t) / inner;
        if (t < best) best = t;
    }
    return best;
}

static void run_blas(const ll_gemm_call *g)
{
    CBLAS_TRANSPOSE ta = g->a_cs != 1 ? CblasTrans : CblasNoTrans;
    CBLAS_TRANSPOSE tb = g->b_cs != 1 ? CblasTrans : CblasNoTrans;
    int m = (int)g->m, n = (int)g->n, k = (int)g->k, ldc = (int)g->c_rs;
    int lda = (int)(ta == CblasTrans ? g->a_cs : g->a_rs);
    int ldb = (int)(tb == CblasTrans ? g->b_cs : g->b_rs);
    if (g->f64)
        cblas_dgemm(CblasRowMajor, ta, tb, m, n, k, 1, (const double *)g->a, lda,
                    (const double *)g->b, ldb, 0, (double *)g->c, ldc);
    else
        cblas_sgemm(CblasRowMajor, ta, tb, m, n, k, 1, (const float *)g->a, lda,
                    (const float *)g->b, ldb, 0, (float *)g->c, ldc);
}

/* GFLOP/s of one shape: ours and OpenBLAS's. */
static void measure(const shape *s, int threads, bool f64, double out[2])
{
    bool ta = s->form[0] == 'T', tb = s->form[1] == 'T';
    size_t na = (size_t)s->m * (size_t)s->k, nb = (size_t)s->k * (size_t)s->n;
    size_t nc = (size_t)s->m * (size_t)s->n;
    ll_gemm_call g = {.m = s->m, .n = s->n, .k = s->k, .c_rs = s->n, .c_cs = 1, .f64 = f64};
    size_t bytes = f64 ? 8 : 4;
    g.a_rs = ta ? 1 : s->k, g.a_cs = ta ? s->m : 1;
    g.b_rs = tb ? 1 : s->n, g.b_cs = tb ? s->k : 1;
    g.threads = threads;
    char *data = aligned_alloc(64, ((na + nb + nc) * bytes + 127) / 64 * 64);
    for (size_t i = 0; i < na + nb + nc; i++)
        ll_store(data, f64 ? LL_F64 : LL_F32, (int64_t)i, (double)(i % 17) - 8);
    g.a = data, g.b = data + na * bytes, g.c = data + (na + nb) * bytes;
    g.scratch = aligned_alloc(64, (ll_gemm_scratch(&g) + 64) / 64 * 64);
    double flops = 2.0 * s->m * s->n * s->k;
    openblas_set_num_threads(threads);
    out[0] = flops / best_seconds(ll_gemm, &g, flops) * 1e-9;
    out[1] = flops / best_seconds(run_blas, &g, flops) * 1e-9;
    free(g.scratch);
    free(data);
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : omp_get_max_threads();
    const char *only = argc > 2 ? argv[2] : "";
    if (threads < 1) {
        fprintf(stderr, "usage: bench_gemm [THREADS] [NAME]\n");
        return 2;
    }
    bool f64 = argc > 3 && !strcmp(argv[3], "f64");
    printf("GFLOP/s, %s, MxNxK\n"
           "| what | shape | ours 1t | OpenBLAS 1t | ours %dt | OpenBLAS %dt |%s\n"
           "|---|---|---|---|---|---|%s\n",
           f64 ? "f64" : "f32", threads, threads, f64 ? " over f32, 1t |" : "", f64 ? "---|" : "");
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const shape *s = &shapes[i];
        if (!strstr(s->name, only)) continue;
        double one[2], many[2], f32[2];
        measure(s, 1, f64, one);
        measure(s, threads, f64, many);
        printf("| %s | %dx%dx%d %s | %.1f | %.1f | %.1f | %.1f |", s->name, s->m, s->n, s->k,
               s->form, one[0], one[1], many[0], many[1]);
        if (f64) measure(s, 1, false, f32), printf(" %.2f |", one[0] / f32[0]);
        printf("\n");
        fflush(stdout);
    }
    return 0;
}
