/* bench.h: how fast a training step is, and where its time goes. */
#pragma once
#include "train/run.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ll_bench_line { /* instructions of one op, together */
    const char *op;
    int count;
    double seconds, flops, bytes; /* of one step */
} ll_bench_line;

typedef struct ll_bench_top { /* one instruction */
    char what[160];           /* its name and its operands' shapes */
    double seconds, flops, bytes;
} ll_bench_top;

enum { LL_BENCH_LINES = 64, LL_BENCH_TOPS = 16 };
typedef struct ll_bench_report {
    int64_t parameters, batch, seq; /* seq 0 for images */
    int threads, n_steps;
    double step_s, best_s; /* median and least */
    double flops;          /* of products (matmul, convolution, attention) in a step */
    double gemm_gflops;    /* an sgemm of 768 cubed, measured in the same run */
    double first_loss, last_loss;
    size_t bytes;
    ll_bench_line lines[LL_BENCH_LINES]; /* most seconds first */
    int n_line;
    ll_bench_top tops[LL_BENCH_TOPS]; /* the longest instructions, longest first */
    int n_top;
} ll_bench_report;

/* Times steps of a finished run's model on random data that stays the same, so the loss must fall:
 * warm-up steps, then steps until `seconds` have passed (at least 5). */
ll_err ll_bench_step(const ll_run *r, double seconds, bool profile, ll_bench_report *out);
/* GFLOP/s of an f32 matrix product of n cubed on this many threads: the best of a few times. */
ll_err ll_gemm_peak(int threads, int64_t n, double *gflops);
enum { LL_LARGE_GEMM = 768 };

#ifdef __cplusplus
}
#endif
