/* bench.h: how fast a training step is, and where its time goes. */
#pragma once
#include "ir/op.h"
#include "program/program.h"
#include "run/run.h"

typedef struct ll_bench_line { /* instructions of one op or kind of work, together; or one alone */
    char what[160];            /* of one alone: its name and its operands' shapes */
    int count;
    double seconds, flops, bytes; /* of one step */
} ll_bench_line;

enum { LL_BENCH_LINES = 64, LL_BENCH_TOPS = 16, LL_BENCH_CLASSES = LL_N_WORK };
typedef struct ll_bench_report {
    int64_t parameters, batch, seq; /* seq 0 for images */
    int threads, n_steps;
    double step_s, best_s, q1_s, q3_s; /* median, least, quartiles */
    double cpu_s;  /* the least time that a step took of one thread, where there is one; else 0 */
    double cool_s; /* on a device: the median of as long before, when it was cooler */
    double model;  /* FLOPs of a step, as declared */
    ll_program_work work;
    const char *tiles;  /* of matrix products on a CPU; NULL: on a device */
    double gemm_gflops; /* a product of 768 cubed, measured in the same run; on a device: 0 */
    bool beside;        /* others held that product up each time */
    double first_loss, last_loss;
    double start_s; /* from the process's start to the end of the first step */
    size_t bytes;   /* planned */
    size_t aside;   /* and of what is laid aside, which is elsewhere */
    /* Of a device: */
    char device[128];  /* its name; "": this process's threads */
    double peak;       /* FLOP/s, as asked for or as the maker states; 0: not known */
    size_t used_bytes; /* of its memory, since before the program was opened: with libraries */
    int n_launch;      /* in a step of one micro-batch */
    ll_bench_line lines[LL_BENCH_LINES]; /* most seconds first */
    int n_line;
    ll_bench_line tops[LL_BENCH_TOPS]; /* the longest instructions, longest first */
    int n_top;
    ll_bench_line classes[LL_BENCH_CLASSES]; /* kinds of kernels, most seconds first */
    int n_class;
} ll_bench_report;

typedef struct ll_bench_opts {
    double seconds; /* how long to measure */
    bool profile;   /* on a device it always is, in steps that are not timed */
    double peak;    /* FLOP/s of the device; 0: as the maker states */
} ll_bench_opts;

/* Times steps of a finished run's model on random data that stays the same, so the loss must fall:
 * warm-up steps (on a device for `seconds`), then steps until `seconds` have passed, at least 5. */
ll_err ll_bench_step(const ll_run *r, const ll_bench_opts *opts, ll_bench_report *out);
/* Lines, tops and classes of a program that was profiled (ll_exec_profile) for so many runs. */
void ll_bench_gather(const ll_session *s, int runs, ll_bench_report *out);
/* GFLOP/s of a matrix product of n cubed, of bf16 or f32, on this many threads: the best of a few
 * times that no thread waited for a core. *beside: there was none, and it is by the least quarter
 * of what is left of them without these waits. */
ll_err ll_gemm_peak(int threads, int64_t n, bool bf16, double *gflops, bool *beside);
enum { LL_LARGE_GEMM = 768 };
