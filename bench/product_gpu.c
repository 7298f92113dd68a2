/* bench_product_gpu: the matrix products of GPT-2 on a GPU, each beside what surrounds it.
 *
 *     build/bench_product_gpu [MODEL]       124M (batch 64 x 1024), 355M and 1558M (16 x 1024); all
 *
 * A row is one product in bf16. first: with the algorithm that cuBLASLt's heuristic names first;
 * best: with the one that timing chooses (kern/cuda/gemm.cu). fused: with what surrounds it (the
 * gradient with its sums of columns); apart: best and kernels for that. Milliseconds, the median of
 * several runs on random numbers.
 */
#include "base/rng.h"
#include "base/trace.h"
#include "dev/gpu.h"
#include "gpu_context.h"
#include "ir/graph_text.h"
#include "ir/op.h"
#include "kern/kern.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPEATS = 7, BLOCK = 1 << 21 };

static ll_gpu *gpu;
static double choosing; /* seconds of first calls, in which algorithms are timed */

static void must(ll_err rc, const char *what)
{
    if (rc == LL_OK) return;
    printf("%s: %s\n", what, ll_error_text());
    exit(1);
}

typedef struct call {
    ll_arena *arena;
    const ll_op *op;
    ll_tensor in[LL_MAX_IN], out[LL_MAX_OUT];
    ll_kcall k;
} call;

static size_t bytes_of(const ll_tensor *t)
{
    return (size_t)ll_numel(&t->shape) * ll_dtype_bytes(t->dtype);
}

/* Random numbers: one block of bf16 from here, and copies of it. */
static void fill(ll_tensor *t)
{
    static uint16_t *host;
    size_t all = bytes_of(t), block = all < BLOCK ? all : BLOCK;
    if (!host) {
        host = malloc(BLOCK);
        for (int64_t i = 0; host && i < BLOCK / 2; i++)
            ll_store(host, LL_BF16, i, ll_normal_at(1, 0, (uint64_t)i));
    }
    must(ll_gpu_alloc(gpu, all, &t->data), "memory");
    must(ll_gpu_write(gpu, t->data, host, block), "upload");
    for (size_t at = block; at < all; at += block) {
        size_t more = all - at < block ? all - at : block;
        const ll_gpu_piece piece = {(char *)t->data + at, t->data, more, 0};
        must(ll_gpu_pieces(gpu, &piece, 1), "copy");
    }
    must(ll_gpu_wait(gpu), "upload");
}

/* op on operands as an op's trials describe them. */
static call open_call(const char *op, const char *text)
{
    call c = {.arena = ll_arena_new(), .op = ll_op_find(op)};
    ll_type in[LL_MAX_IN];
    ll_val v[LL_MAX_IN], y[LL_MAX_OUT];
    int64_t limit[LL_MAX_IN];
    int n;
    void *attr;
    char name[16];
    must(ll_parse_trial(c.op, text, c.arena, &n, in, limit, &attr), text);
    ll_graph *g = ll_graph_new("bench");
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "in%d", i);
        v[i] = ll_input(g, name, LL_PARAM, in[i], (ll_init){0});
        c.in[i] = (ll_tensor){NULL, in[i].dtype, in[i].shape};
        fill(&c.in[i]);
    }
    must(ll_emit_all(g, c.op, attr, v, n, y), text);
    for (int o = 0; o < c.op->n_out; o++) {
        const ll_type *t = &ll_value_of(g, y[o])->type;
        c.out[o] = (ll_tensor){NULL, t->dtype, t->shape};
        must(ll_gpu_alloc(gpu, bytes_of(&c.out[o]), &c.out[o].data), "memory");
    }
    ll_graph_free(g);
    c.k = (ll_kcall){.attr = attr, .n_in = n, .n_out = c.op->n_out, .n_micro = 1};
    c.k.ctx = gpu_context();
    c.k.stream = ll_gpu_stream(gpu, LL_STREAM_COMPUTE);
    return c;
}

static void close_call(call *c)
{
    for (int i = 0; i < c->k.n_in; i++) ll_gpu_free(gpu, c->in[i].data);
    for (int o = 0; o < c->k.n_out; o++) ll_gpu_free(gpu, c->out[o].data);
    ll_arena_free(c->arena);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of a call's milliseconds. */
static double run(call *c, bool timing)
{
    double ms[REPEATS];
    void *scratch;
    c->k.in = c->in, c->k.out = c->out, c->k.timing = timing;
    must(ll_gpu_alloc(gpu, ll_solve_scratch(c->op->cuda, &c->k), &scratch), "room");
    c->k.scratch = scratch;
    double before = ll_now();
    must(ll_solve(c->op->cuda, &c->k), c->op->name);
    must(ll_gpu_wait(gpu), "run");
    if (timing) choosing += ll_now() - before;
    for (int i = 0; i < REPEATS; i++) {
        must(ll_gpu_mark(gpu, 0), "mark");
        must(ll_solve(c->op->cuda, &c->k), c->op->name);
        must(ll_gpu_mark(gpu, 1), "mark");
        must(ll_gpu_wait(gpu), "run");
        must(ll_gpu_seconds(gpu, 0, 1, &ms[i]), "time");
    }
    ll_gpu_free(gpu, scratch);
    qsort(ms, REPEATS, sizeof *ms, by_value);
    return ms[REPEATS / 2] * 1e3;
}

static double measure(const char *op, bool timing, const char *text)
{
    call c = open_call(op, text);
    double ms = run(&c, timing);
    close_call(&c);
    return ms;
}

typedef enum around { NOTHING, BIAS, GELU, DGELU } around;

/* rows of x times n by k weights (form "rk,nk->rn" and so on), r rows in all. */
typedef struct product {
    const char *name, *spec;
    long long r, n, k;
    around with;
} product;

static const char *operands_of(const product *p, ll_arena *a)
{
    if (!strcmp(p->spec, "rk,nk->rn"))
        return ll_arena_printf(a, "bf16[%lld,%lld], bf16[%lld,%lld]", p->r, p->k, p->n, p->k);
    if (!strcmp(p->spec, "rk,kn->rn"))
        return ll_arena_printf(a, "bf16[%lld,%lld], bf16[%lld,%lld]", p->r, p->k, p->k, p->n);
    return ll_arena_printf(a, "bf16[%lld,%lld], bf16[%lld,%lld]", p->r, p->k, p->r, p->n);
}

static void measure_around(const product *p, ll_arena *a, double best)
{
    static const char *const fused[] = {"", "product1", "product2", "product2"};
    static const char *const chain[] = {"", "fused1", "fused2", "fused1"};
    double sums = 0;
    long long n = p->r * p->n;
    const char *x = operands_of(p, a), *text, *after;
    if (p->with == DGELU) {
        text = ll_arena_printf(a, "%s, bf16[%lld,%lld] {spec=\"%s\", out=bf16, bias=0, act=5}", x,
                               p->r, p->n, p->spec);
        sums = measure("sum", false,
                       ll_arena_printf(a, "bf16[%lld,%lld] {spec=\"rn->n\"}", p->r, p->n));
        after = ll_arena_printf(a,
                                "bf16[%lld,%lld], bf16[%lld,%lld] {chain=(shape=[%lld,%lld], "
                                "in=[%lld, %lld], r2=dgelu(r0), r3=mul(r1,r2), out=[r3:bf16])}",
                                p->r, p->n, p->r, p->n, p->r, p->n, n, n);
    } else {
        text = ll_arena_printf(a, "%s, bf16[%lld] {spec=\"%s\", out=bf16, bias=1, act=%d}", x, p->n,
                               p->spec, p->with == GELU ? 4 : 0);
        after = ll_arena_printf(a,
                                "bf16[%lld,%lld], bf16[%lld] {chain=(shape=[%lld,%lld], in=[%lld, "
                                "%lld], r2=add(r0,r1)%s)}",
                                p->r, p->n, p->n, p->r, p->n, n, p->n,
                                p->with == GELU ? ", r3=gelu(r2), out=[r2:bf16, r3:bf16]"
                                                : ", out=[r2:bf16]");
    }
    double together = measure(fused[p->with], true, text);
    double apart = best + measure(chain[p->with], false, after) + sums;
    printf("  %8.3f %8.3f  %s", together, apart, together < apart ? "fused" : "apart");
}

static void measure_product(const product *p)
{
    ll_arena *a = ll_arena_new();
    bool dw = !strcmp(p->spec, "rk,rn->nk");
    const char *text = ll_arena_printf(a, "%s {spec=\"%s\", out=%s}", operands_of(p, a), p->spec,
                                       dw ? "f32" : "bf16");
    call c = open_call("matmul", text);
    double first = run(&c, false), best = run(&c, true);
    close_call(&c);
    double flops = 2.0 * (double)p->r * (double)p->n * (double)p->k;
    printf("%-18s %7lld %6lld %6lld %9.3f %8.3f %6.0f", p->name, p->r, p->n, p->k, first, best,
           flops / best / 1e9);
    if (p->with != NOTHING) measure_around(p, a, best);
    printf("\n");
    fflush(stdout);
    ll_arena_free(a);
}

static void measure_model(const char *name, long long r, long long c, long long v)
{
    const product all[] = {
        {"qkv", "rk,nk->rn", r, 3 * c, c, BIAS},
        {"attention out", "rk,nk->rn", r, c, c, BIAS},
        {"fc", "rk,nk->rn", r, 4 * c, c, GELU},
        {"mlp out", "rk,nk->rn", r, c, 4 * c, BIAS},
        {"logits", "rk,nk->rn", r, v, c, NOTHING},
        {"qkv dx", "rk,kn->rn", r, c, 3 * c, NOTHING},
        {"attention out dx", "rk,kn->rn", r, c, c, NOTHING},
        {"fc dx", "rk,kn->rn", r, c, 4 * c, NOTHING},
        {"mlp out dx", "rk,kn->rn", r, 4 * c, c, DGELU},
        {"logits dx", "rk,kn->rn", r, c, v, NOTHING},
        {"qkv dw", "rk,rn->nk", r, 3 * c, c, NOTHING},
        {"attention out dw", "rk,rn->nk", r, c, c, NOTHING},
        {"fc dw", "rk,rn->nk", r, 4 * c, c, NOTHING},
        {"mlp out dw", "rk,rn->nk", r, c, 4 * c, NOTHING},
        {"logits dw", "rk,rn->nk", r, v, c, NOTHING},
    };
    printf("%-18s %7s %6s %6s %9s %8s %6s  %8s %8s\n", name, "rows", "n", "k", "first ms",
           "best ms", "TFLOPS", "fused ms", "apart ms");
    choosing = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) measure_product(&all[i]);
    printf("%-18s algorithms chosen in %.2f s, of all that is above\n", "", choosing);
}

int main(int argc, char **argv)
{
    const char *only = argc > 1 ? argv[1] : NULL;
    if (!ll_gpu_count()) {
        printf("no GPU here\n");
        return 1;
    }
    must(ll_gpu_open(0, &gpu), "GPU");
    if (!only || !strcmp(only, "124M")) measure_model("124M", 65536, 768, 50304);
    if (!only || !strcmp(only, "355M")) measure_model("355M", 16384, 1024, 50304);
    if (!only || !strcmp(only, "1558M")) measure_model("1558M", 16384, 1600, 50304);
    ll_gpu_close(gpu);
    return 0;
}
