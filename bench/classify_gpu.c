/* bench_classify_gpu: a classifier's product with its loss and gradient on a GPU, as a product and
 * a kernel after it, and as one node (fuse/classify.c).
 *
 *     build/bench_classify_gpu [MODEL]      124M (batch 64 x 1024), 355M and 1558M (16 x 1024); all
 *
 * Milliseconds, in bf16, on random numbers, each for 0.2 s and in turns. Beside it: the largest
 * difference of the losses, which the first kernels make of rounded logits.
 */
#include "base/rng.h"
#include "base/trace.h"
#include "dev/gpu.h"
#include "gpu_context.h"
#include "ir/op.h"
#include "kern/attr.h"
#include "kern/kern.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 3, BLOCK = 1 << 20, VOCAB = 50304 };
#define SECONDS 0.2

static ll_gpu *gpu;

static void must(ll_err rc, const char *what)
{
    if (rc == LL_OK) return;
    printf("%s: %s\n", what, ll_error_text());
    exit(1);
}

static size_t bytes_of(const ll_tensor *t)
{
    return (size_t)ll_numel(&t->shape) * ll_dtype_bytes(t->dtype);
}

/* Normal numbers times `by`, or labels, or a constant; a block of them again and again. by 0:
 * memory alone. */
static ll_tensor tensor(ll_dtype type, ll_shape shape, double by)
{
    static uint64_t stream;
    ll_tensor t = {NULL, type, shape};
    stream++;
    size_t all = bytes_of(&t), each = ll_dtype_bytes(type), block = BLOCK * each;
    if (block > all) block = all;
    must(ll_gpu_alloc(gpu, all, &t.data), "memory");
    if (by == 0) return t;
    char *host = malloc(block);
    for (size_t i = 0; i < block / each; i++)
        ll_store(host, type, (int64_t)i,
                 type == LL_I32   ? (double)ll_below_at(2, 0, i, VOCAB)
                 : type == LL_F32 ? by
                                  : by * ll_normal_at(1, stream, i));
    for (size_t at = 0; at < all; at += block)
        must(ll_gpu_write(gpu, (char *)t.data + at, host, all - at < block ? all - at : block),
             "upload");
    must(ll_gpu_wait(gpu), "upload");
    free(host);
    return t;
}

typedef struct call {
    const char *name;
    const ll_op *op;
    ll_tensor in[4], out[3];
    ll_kcall k;
    double ms[ROUNDS];
} call;

static void open_call(call *c, const char *op, const void *attr, int n_in)
{
    c->op = ll_op_find(op);
    c->k =
        (ll_kcall){.attr = attr, .n_in = n_in, .n_out = c->op->n_out, .in = c->in, .out = c->out};
    c->k.ctx = gpu_context();
    c->k.stream = ll_gpu_stream(gpu, LL_STREAM_COMPUTE), c->k.n_micro = 1, c->k.timing = true;
    size_t n = ll_solve_scratch(c->op->cuda, &c->k);
    must(ll_gpu_alloc(gpu, n, &c->k.scratch), "scratch");
    must(ll_solve(c->op->cuda, &c->k), op);
    must(ll_gpu_wait(gpu), op);
}

static double run(call *c, int n)
{
    double s;
    must(ll_gpu_mark(gpu, 0), "mark");
    for (int i = 0; i < n; i++) must(ll_solve(c->op->cuda, &c->k), c->op->name);
    must(ll_gpu_mark(gpu, 1), "mark");
    must(ll_gpu_wait(gpu), "run");
    must(ll_gpu_seconds(gpu, 0, 1, &s), "time");
    return s / n * 1e3;
}

static double differ(const ll_tensor *a, const ll_tensor *b)
{
    int64_t n = ll_numel(&a->shape);
    float *x = malloc(bytes_of(a)), *y = malloc(bytes_of(b));
    float most = 0;
    must(ll_gpu_read(gpu, x, a->data, bytes_of(a)), "read");
    must(ll_gpu_read(gpu, y, b->data, bytes_of(b)), "read");
    must(ll_gpu_wait(gpu), "read");
    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(x[i] - y[i]) <= most)) most = fabsf(x[i] - y[i]);
    printf("  loss[0] %.4f, %.4f", x[0], y[0]);
    free(x);
    free(y);
    return most;
}

static void measure(const char *name, int64_t rows, int64_t k)
{
    ll_shape line = LL_SHAPE(rows), wide = LL_SHAPE(rows, VOCAB);
    ll_tensor x = tensor(LL_BF16, LL_SHAPE(rows, k), 1);
    ll_tensor w = tensor(LL_BF16, LL_SHAPE(VOCAB, k), 0.05), label = tensor(LL_I32, line, 1);
    ll_tensor dloss = tensor(LL_F32, line, 1.0 / (double)rows), l = tensor(LL_BF16, wide, 0);
    ll_tensor loss = tensor(LL_F32, line, 0), lse = tensor(LL_F32, line, 0);
    ll_tensor scale = tensor(LL_F32, line, 0), loss1 = tensor(LL_F32, line, 0);
    ll_matmul_attr attr = {"rk,nk->rn", LL_BF16};
    call calls[3] = {{"product", .in = {x, w}, .out = {l}},
                     {"loss", .in = {l, label, dloss}, .out = {l, loss, lse}},
                     {"as one", .in = {x, w, label, dloss}, .out = {l, scale, loss1}}};
    open_call(&calls[0], "matmul", &attr, 2);
    open_call(&calls[1], "cross_entropy_back", NULL, 3);
    open_call(&calls[2], "classify", NULL, 4);
    printf("%s: [%lld,%lld] times [%d,%lld]", name, (long long)rows, (long long)k, VOCAB,
           (long long)k);
    printf(", losses differ by %.2g\n", differ(&loss, &loss1));
    for (int r = 0; r < ROUNDS; r++)
        for (int i = 0; i < 3; i++) {
            if (i == 1) run(&calls[0], 1); /* logits in place of their gradient */
            double one = run(&calls[i], 1);
            calls[i].ms[r] = run(&calls[i], (int)(SECONDS * 1e3 / one) + 1);
        }
    for (int i = 0; i < 3; i++) {
        printf("  %-8s", calls[i].name);
        for (int r = 0; r < ROUNDS; r++) printf(" %8.3f", calls[i].ms[r]);
        printf("\n");
        ll_gpu_free(gpu, calls[i].k.scratch);
    }
    const ll_tensor all[] = {x, w, label, dloss, l, loss, lse, scale, loss1};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) ll_gpu_free(gpu, all[i].data);
}

int main(int argc, char **argv)
{
    const char *only = argc > 1 ? argv[1] : NULL;
    if (!ll_gpu_count()) {
        printf("no GPU here\n");
        return 1;
    }
    must(ll_gpu_open(0, &gpu), "GPU");
    if (!only || !strcmp(only, "124M")) measure("124M", 65536, 768);
    if (!only || !strcmp(only, "355M")) measure("355M", 16384, 1024);
    if (!only || !strcmp(only, "1558M")) measure("1558M", 16384, 1600);
    ll_gpu_close(gpu);
    return 0;
}
