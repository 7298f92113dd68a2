/* bench_attention_gpu: causal attention on a GPU, forward and backward, at the sizes of GPT-2 124M
 * and 1558M, in bf16, f32 and tf32; "any order": the backward pass with train.deterministic false.
 *
 *     build/bench_attention_gpu                     our kernels
 *     build/bench_attention_gpu python3             beside PyTorch's (bench/torch_attention.py)
 *     build/bench_attention_gpu - 8,2048,16,64      another size: batch, time, heads, width
 *
 * Medians of 30 runs between marks in the queue. TFLOP/s do not count the masked half. A ratio
 * above one says that ours is faster. */
#include "base/rng.h"
#include "dev/gpu.h"
#include "gpu_context.h"
#include "ir/op.h"
#include "kern/kern.h"
#include "kern/notes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS = 30, WARM = 3, PATTERN = 999983 };

static void must(ll_err rc)
{
    if (rc == LL_OK) return;
    fprintf(stderr, "%s\n%s", ll_error_text(), ll_error_frames());
    exit(1);
}

static const ll_op *op_named(const char *name)
{
    const ll_op *const *op = ll_ops();
    while (*op && strcmp((*op)->name, name)) op++;
    return *op;
}

/* Random numbers; the same ones again after PATTERN of them. */
static ll_tensor tensor(ll_gpu *gpu, ll_dtype type, ll_shape shape)
{
    ll_tensor t = {NULL, type, shape};
    size_t n = (size_t)ll_numel(&shape), size = ll_dtype_bytes(type);
    char *host = (char *)malloc(PATTERN * size);
    must(ll_gpu_alloc(gpu, n * size, &t.data));
    for (int64_t i = 0; i < PATTERN; i++)
        ll_store(host, type, i, ll_normal_at(1, ll_stream("attention", 0), (uint64_t)i));
    for (size_t i = 0; i < n; i += PATTERN)
        must(ll_gpu_write(gpu, (char *)t.data + i * size, host,
                          (n - i < PATTERN ? n - i : PATTERN) * size));
    must(ll_gpu_wait(gpu));
    free(host);
    return t;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median run's milliseconds. */
static double timed(ll_gpu *gpu, const ll_op *op, ll_kcall *c)
{
    double ms[RUNS];
    size_t bytes = ll_solve_scratch(op->cuda, c);
    c->ctx = gpu_context();
    c->stream = ll_gpu_stream(gpu, LL_STREAM_COMPUTE);
    must(ll_gpu_alloc(gpu, bytes + 1, &c->scratch));
    for (int i = 0; i < WARM; i++) must(ll_solve(op->cuda, c));
    for (int i = 0; i < RUNS; i++) {
        must(ll_gpu_mark(gpu, 2 * i));
        must(ll_solve(op->cuda, c));
        must(ll_gpu_mark(gpu, 2 * i + 1));
    }
    must(ll_gpu_wait(gpu));
    for (int i = 0; i < RUNS; i++) {
        must(ll_gpu_seconds(gpu, 2 * i, 2 * i + 1, &ms[i]));
        ms[i] *= 1e3;
    }
    ll_gpu_free(gpu, c->scratch);
    qsort(ms, RUNS, sizeof *ms, by_size);
    return ms[RUNS / 2];
}

static void print_row(const char *who, const double ms[2], double flops, const double ours[2])
{
    printf(
        "%-12s forward %7.3f ms %4.0f TFLOP/s   backward %7.3f ms %4.0f TFLOP/s   together %7.3f",
        who, ms[0], flops / ms[0] / 1e9, ms[1], 2.5 * flops / ms[1] / 1e9, ms[0] + ms[1]);
    if (ours) printf("   ours %.2fx", (ms[0] + ms[1]) / (ours[0] + ours[1]));
    printf("\n");
}

static void compare(const char *python, const char *size, double flops, const double ours[2])
{
    char command[256], line[512], name[32];
    double ms[2];
    snprintf(command, sizeof command, "%s bench/torch_attention.py %s", python, size);
    FILE *f = popen(command, "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "%31s forward %lf ms backward %lf", name, &ms[0], &ms[1]) == 3)
            print_row(name, ms, flops, ours);
        else
            printf("%s", line);
    if (f) pclose(f);
}

typedef struct problem {
    ll_tensor qkv, dqkv, o, dout, lse;
    double flops;
} problem;

static problem problem_of(ll_gpu *gpu, ll_dtype type, const char *size)
{
    int b, t, h, d;
    if (sscanf(size, "%d,%d,%d,%d", &b, &t, &h, &d) != 4) {
        fprintf(stderr, "size '%s', want batch,time,heads,width\n", size);
        exit(1);
    }
    return (problem){
        tensor(gpu, type, LL_SHAPE(b, t, 3, h, d)), tensor(gpu, type, LL_SHAPE(b, t, 3, h, d)),
        tensor(gpu, type, LL_SHAPE(b, t, h, d)),    tensor(gpu, type, LL_SHAPE(b, t, h, d)),
        tensor(gpu, LL_F32, LL_SHAPE(b, h, t)),     2.0 * b * h * d * t * t};
}

static void forget(ll_gpu *gpu, problem *p)
{
    ll_tensor *all[] = {&p->qkv, &p->dqkv, &p->o, &p->dout, &p->lse};
    for (int i = 0; i < 5; i++) ll_gpu_free(gpu, all[i]->data);
}

/* Milliseconds forward and backward. */
static void measure(ll_gpu *gpu, problem *p, const char *name, bool tf32, double ms[2])
{
    ll_kcall forward = {
        .n_in = 1, .n_out = 2, .in = &p->qkv, .out = (ll_tensor[]){p->o, p->lse}, .tf32 = tf32};
    ll_kcall backward = {.n_in = 4,
                         .n_out = 1,
                         .in = (ll_tensor[]){p->dout, p->qkv, p->o, p->lse},
                         .out = &p->dqkv,
                         .n_micro = 1,
                         .tf32 = tf32};
    ms[0] = timed(gpu, op_named("attention"), &forward);
    ms[1] = timed(gpu, op_named("attention_grad"), &backward);
    print_row(name, ms, p->flops, NULL);
    if (p->qkv.dtype != LL_BF16) return;
    backward.any_order = true;
    double any[2] = {ms[0], timed(gpu, op_named("attention_grad"), &backward)};
    print_row("any order", any, p->flops, NULL);
}

static void bench(ll_gpu *gpu, const char *size, const char *python)
{
    double bf16[2], ms[2];
    problem p = problem_of(gpu, LL_BF16, size);
    printf("[%s]\n", size);
    measure(gpu, &p, "bf16", false, bf16);
    fflush(stdout);
    forget(gpu, &p);
    if (python) compare(python, size, p.flops, bf16);
    p = problem_of(gpu, LL_F32, size);
    measure(gpu, &p, "f32", false, ms);
    measure(gpu, &p, "tf32", true, ms);
    fflush(stdout);
    forget(gpu, &p);
}

int main(int argc, char **argv)
{
    static const char *const sizes[] = {"64,1024,12,64", "16,1024,25,64"};
    const char *python = argc > 1 && strcmp(argv[1], "-") ? argv[1] : NULL;
    LL_OWN(ll_arena) arena = ll_arena_new();
    ll_kern_notes *notes = ll_kern_notes_in(arena);
    ll_gpu *gpu;
    ll_kern_notes_to((ll_noting){ll_kern_notes_add, notes});
    must(ll_gpu_open(0, &gpu));
    for (int i = 0; argc < 3 && i < 2; i++) bench(gpu, sizes[i], python);
    for (int i = 2; i < argc; i++) bench(gpu, argv[i], python);
    ll_kern_notes_print(notes, stdout);
    ll_gpu_close(gpu);
    return 0;
}
