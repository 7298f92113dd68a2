/* rows_gpu.c: kernels of a GPU that only move memory (norms, losses, embeddings, sums, chains) held
 * against a copy in the same run, at the sizes of GPT-2.
 *
 *     build/bench_rows_gpu [NAME]      only cases whose name starts so
 *
 * Bytes are what must be read and written once. Each time is the median of several replays of some
 * captured calls; what is worked on is larger than the cache. Tensors are bf16 but for those that
 * the op keeps f32. */
#include "base/rng.h"
#include "dev/gpu.h"
#include "gpu_context.h"
#include "ir/graph_text.h"
#include "ir/op.h"
#include "kern/kern.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALLS = 4, REPEATS = 7 };

typedef struct bench_case {
    const char *name, *op, *trial;
    int on;        /* result 0 lies on operand on - 1; 0: it does not */
    double bytes;  /* 0: all operands and results */
    double skewed; /* indices favour small ones, as words do */
    bool f32;
} bench_case;

#define X124 "f32[65536,768]"
#define X355 "f32[16384,1024]"
#define X1558 "f32[16384,1600]"
#define S124 "f32[65536]"
#define LOGITS "f32[65536,50304]"
#define ADAM                                                                                       \
    "f32[38633472], f32[38633472], f32[38633472], f32[38633472], f32[] {chain=(shape=[38633472], " \
    "in=[38633472, 38633472, 38633472, 38633472, 1], r5=scale(r1,0.9), r6=scale(r3,0.1), "         \
    "r7=add(r5,r6), r8=square(r3), r9=scale(r8,0.05), r10=scale(r2,0.95), r11=add(r9,r10), "       \
    "r12=sqrt(r11), r13=shift(r12,1e-8), r14=div(r7,r13), r15=mul(r14,r4), r16=sub(r0,r15), "      \
    "out=[r7:f32, r11:f32, r16:f32])}"

static const bench_case cases[] = {
    {"layernorm 768", "layernorm", X124 ", f32[768], f32[768] {eps=1e-5}", 0, 0, 0, 0},
    {"layernorm 1600", "layernorm", X1558 ", f32[1600], f32[1600] {eps=1e-5}", 0, 0, 0, 0},
    {"layernorm 4096", "layernorm", "f32[16384,4096], f32[4096], f32[4096] {eps=1e-5}", 0, 0, 0, 0},
    {"layernorm 768 f32", "layernorm", X124 ", f32[768], f32[768] {eps=1e-5}", 0, 0, 0, 1},
    {"chain copy f32", "fused1",
     "f32[268435456] {chain=(shape=[268435456], in=[268435456], r1=cast(r0), out=[r1:f32])}", 0, 0,
     0, 1},
    {"chain add 768", "fused1",
     X124 ", " X124 " {chain=(shape=[65536,768], in=[50331648, 50331648], r2=add(r0,r1), "
          "out=[r2:bf16])}",
     0, 0, 0, 0},
    {"add_layernorm 768", "add_layernorm", X124 ", " X124 ", f32[768], f32[768] {eps=1e-5}", 0, 0,
     0, 0},
    {"add_layernorm 1024", "add_layernorm", X355 ", " X355 ", f32[1024], f32[1024] {eps=1e-5}", 0,
     0, 0, 0},
    {"add_layernorm 1600", "add_layernorm", X1558 ", " X1558 ", f32[1600], f32[1600] {eps=1e-5}", 0,
     0, 0, 0},
    {"rmsnorm 768", "rmsnorm", X124 ", f32[768] {eps=1e-5}", 0, 0, 0, 0},
    {"layernorm_dx 768", "layernorm_dx", X124 ", " X124 ", f32[768], " S124 ", " S124 ">", 0, 0, 0,
     0},
    {"layernorm_dw 768", "layernorm_dw", X124 ", " X124 ", " S124 ", " S124 ">", 0, 0, 0, 0},
    {"layernorm_back 768", "layernorm_back",
     X124 ", " X124 ", f32[768], " S124 ", " S124 ">, " X124, 0, 0, 0, 0},
    {"layernorm_back 1600", "layernorm_back",
     X1558 ", " X1558 ", f32[1600], f32[16384], f32[16384]>, " X1558, 0, 0, 0, 0},
    {"layernorm_back_sum 768", "layernorm_back_sum",
     X124 ", " X124 ", f32[768], " S124 ", " S124 ">, " X124, 0, 0, 0, 0},
    {"layernorm_back_sum 1024", "layernorm_back_sum",
     X355 ", " X355 ", f32[1024], f32[16384], f32[16384]>, " X355, 0, 0, 0, 0},
    {"layernorm_back_sum 1600", "layernorm_back_sum",
     X1558 ", " X1558 ", f32[1600], f32[16384], f32[16384]>, " X1558, 0, 0, 0, 0},
    {"layernorm_back 4096", "layernorm_back",
     "f32[16384,4096], f32[16384,4096], f32[4096], f32[16384], f32[16384]>, f32[16384,4096]", 0, 0,
     0, 0},
    {"cross_entropy", "cross_entropy", LOGITS ", i32[65536]<50304", 0, 0, 0, 0},
    {"cross_entropy_grad", "cross_entropy_grad", S124 ", " LOGITS ", i32[65536]<50304, " S124, 2, 0,
     0, 0},
    {"cross_entropy_back", "cross_entropy_back", LOGITS ", i32[65536]<50304, " S124, 1, 0, 0, 0},
    {"cross_entropy_back 128256", "cross_entropy_back",
     "f32[16384,128256], i32[16384]<128256, f32[16384]", 1, 0, 0, 0},
    {"softmax", "softmax", "f32[65536,3072]", 0, 0, 0, 0},
    {"embedding", "embedding", "f32[50304,768], i32[65536]<50304", 0, 65536 * 768 * 4.0, 0, 0},
    {"embedding_grad", "embedding_grad", X124 ", i32[65536]<50304 {v=50304}", 0, 0, 0, 0},
    {"embedding_grad skewed", "embedding_grad", X124 ", i32[65536]<50304 {v=50304}", 0, 0, 1, 0},
    {"embedding_grad_onto skewed", "embedding_grad_onto",
     X124 ", i32[65536]<50304, f32[50304,768] {v=50304}", 3, 0, 1, 0},
    {"sum btf->f 3072", "sum", "f32[64,1024,3072] {spec=\"btf->f\"}", 0, 0, 0, 0},
    {"sum btzhd->zhd", "sum", "f32[64,1024,3,12,64] {spec=\"btzhd->zhd\"}", 0, 0, 0, 0},
    {"sum bf->f 3072", "sum", "f32[16384,3072] {spec=\"bf->f\"}", 0, 0, 0, 0},
    {"sum bf->f 4800", "sum", "f32[16384,4800] {spec=\"bf->f\"}", 0, 0, 0, 0},
    {"sum btc->c 768", "sum", "f32[64,1024,768] {spec=\"btc->c\"}", 0, 0, 0, 0},
    {"sum btc->c 1600", "sum", "f32[16,1024,1600] {spec=\"btc->c\"}", 0, 0, 0, 0},
    {"sumsq all f32", "sumsq", "f32[50304,768] {spec=\"ab->\"}", 0, 0, 0, 1},
    {"dropout 768", "dropout", X124 " {p=0.1, stream=1, whole=[65536,768], at=[0,0,0,0,0,0]}", 0, 0,
     0, 0},
    {"chain bias gelu", "fused1",
     "f32[64,1024,3072], f32[3072] {chain=(shape=[64,1024,3072], in=[201326592, 3072], "
     "r2=add(r0,r1), r3=gelu(r2), out=[r3:bf16])}",
     0, 0, 0, 0},
    {"chain dgelu", "fused1",
     "f32[64,1024,3072], f32[64,1024,3072] {chain=(shape=[64,1024,3072], in=[201326592, "
     "201326592], r2=dgelu(r0), r3=mul(r1,r2), out=[r3:bf16])}",
     0, 0, 0, 0},
    {"chain bias residual", "fused1",
     X124 ", f32[768], " X124 " {chain=(shape=[65536,768], in=[50331648, 768, 50331648], "
          "r3=add(r0,r1), r4=add(r2,r3), out=[r4:bf16])}",
     0, 0, 0, 0},
    {"chain by row", "fused1",
     X124 ", " S124 " {chain=(shape=[65536,768], in=[50331648, 65536*768], r2=mul(r0,r1), "
          "out=[r2:bf16])}",
     0, 0, 0, 0},
    {"chain cast, scale", "fused1",
     "f32[38633472] {chain=(shape=[38633472], in=[38633472], r1=scale(r0,0.5), out=[r1:bf16])}", 0,
     0, 0, 1},
    {"chain adam", "fused3", ADAM, 0, 0, 0, 1},
    {"quantize_both 1600", "quantize_both", X1558 " {dtype=e4m3, rows=1, sample=16}", 0, 0, 0, 0},
    {"quantize_both 6400 gelu", "quantize_both",
     "f32[16384,6400] {dtype=e4m3, rows=1, sample=16, act=2}", 0, 0, 0, 0},
    {"quantize_sum 4800", "quantize_sum", "f32[16384,4800] {dtype=e5m2, rows=1, sample=16}", 0, 0,
     0, 0},
    {"quantize_sum 6400 dgelu", "quantize_sum",
     "f32[16384,6400], f32[16384,6400] {dtype=e5m2, rows=1, sample=16, act=3}", 0, 0, 0, 0},
    {"quantize_both weight", "quantize_both", "f32[1600,6400] {dtype=e4m3, rows=1, sample=16}", 0,
     0, 0, 1},
    {"layernorm_both 1600", "layernorm_both",
     X1558 ", " X1558 ", f32[1600], f32[1600], f32[1600] {eps=1e-5}", 0, 0, 0, 0},
    {"layernorm_both 1024", "layernorm_both",
     X355 ", " X355 ", f32[1024], f32[1024], f32[1024] {eps=1e-5}", 0, 0, 0, 0},
    {"layernorm_both 768", "layernorm_both", X124 ", " X124 ", f32[768], f32[768] {eps=1e-5}", 0, 0,
     0, 0},
};

static ll_gpu *gpu;

typedef struct problem {
    const bench_case *b;
    const ll_op *op;
    ll_arena *arena;
    void *attr;
    int n_in, n_out;
    ll_type type[LL_MAX_IN + LL_MAX_OUT];
    int64_t limit[LL_MAX_IN];
    ll_tensor t[LL_MAX_IN + LL_MAX_OUT];
    void *scratch, *extra; /* extra: clock and trouble */
} problem;

static size_t bytes_of(const ll_type *t)
{
    return (size_t)ll_numel(&t->shape) * ll_dtype_bytes(t->dtype);
}

static ll_err infer(problem *p)
{
    ll_graph *g = ll_graph_new("bench");
    ll_val in[LL_MAX_IN], out[LL_MAX_OUT];
    char name[16];
    for (int i = 0; i < p->n_in; i++) {
        snprintf(name, sizeof name, "in%d", i);
        in[i] = ll_input(g, name, LL_PARAM, p->type[i], (ll_init){0});
    }
    ll_err rc = ll_emit_all(g, p->op, p->attr, in, p->n_in, out);
    p->n_out = p->op->n_out;
    for (int o = 0; rc == LL_OK && o < p->n_out; o++)
        p->type[p->n_in + o] = ll_value_of(g, out[o])->type;
    ll_graph_free(g);
    return rc;
}

/* A million numbers, again and again. */
static ll_err fill(const problem *p, int k)
{
    enum { DRAWN = 1 << 20 };
    const ll_tensor *t = &p->t[k];
    size_t all = bytes_of(&p->type[k]), have = DRAWN * ll_dtype_bytes(t->dtype);
    bool whole = !ll_dtype_is_float(t->dtype);
    char *host = (char *)malloc(have);
    CHECK(host, LL_E_MEM, "no memory for numbers");
    for (int64_t i = 0; i < DRAWN; i++) {
        double u = (double)ll_uniform_at(3, (uint64_t)k, (uint64_t)i);
        if (p->b->skewed) u = u * u * u * u * u * u;
        double v = whole ? (double)(int64_t)(u * (double)p->limit[k]) : p->limit[k] ? u : 2 * u - 1;
        ll_store(host, t->dtype, i, v);
    }
    if (have > all) have = all;
    ll_err rc = ll_gpu_write(gpu, t->data, host, have);
    for (; have < all && rc == LL_OK; have *= 2) {
        size_t more = all - have < have ? all - have : have;
        rc = ll_gpu_pieces(gpu, &(ll_gpu_piece){(char *)t->data + have, t->data, more, 0}, 1);
    }
    if (rc == LL_OK) rc = ll_gpu_wait(gpu);
    free(host);
    return rc;
}

static ll_err prepare(problem *p)
{
    const bench_case *b = p->b;
    TRY(ll_parse_trial(p->op, b->trial, p->arena, &p->n_in, p->type, p->limit, &p->attr));
    for (int i = 0; i < p->n_in; i++)
        if (!b->f32 && p->type[i].dtype == LL_F32 && !(p->op->wide_in >> i & 1))
            p->type[i].dtype = LL_BF16;
    TRY(infer(p));
    for (int i = 0; i < p->n_in + p->n_out; i++) {
        p->t[i] = (ll_tensor){NULL, p->type[i].dtype, p->type[i].shape};
        if (i == p->n_in && b->on) {
            p->t[i].data = p->t[b->on - 1].data;
            continue;
        }
        TRY(ll_gpu_alloc(gpu, bytes_of(&p->type[i]), &p->t[i].data));
        if (i < p->n_in) TRY(fill(p, i));
    }
    TRY(ll_gpu_alloc(gpu, 256, &p->extra));
    return ll_gpu_fill(gpu, p->extra, 0, 256);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of the seconds that `calls` in a graph take, over their number. */
static ll_err time_graph(ll_gpu_graph *w, int calls, double *out)
{
    double t[REPEATS];
    for (int i = 0; i < REPEATS; i++) {
        TRY(ll_gpu_mark(gpu, 0));
        TRY(ll_gpu_replay(gpu, w));
        TRY(ll_gpu_mark(gpu, 1));
        TRY(ll_gpu_wait(gpu));
        TRY(ll_gpu_seconds(gpu, 0, 1, &t[i]));
    }
    qsort(t, REPEATS, sizeof *t, by_value);
    *out = t[REPEATS / 2] / calls;
    return LL_OK;
}

static ll_err measure(problem *p, double *seconds)
{
    ll_gpu_graph *w;
    ll_kcall c = {.attr = p->attr,
                  .n_in = p->n_in,
                  .n_out = p->n_out,
                  .in = p->t,
                  .out = p->t + p->n_in,
                  .n_micro = 1,
                  .seed = 5,
                  .ctx = gpu_context(),
                  .stream = ll_gpu_stream(gpu, LL_STREAM_COMPUTE),
                  .clock = (const uint64_t *)p->extra,
                  .trouble = (int64_t *)p->extra + 8};
    TRY(ll_gpu_alloc(gpu, ll_solve_scratch(p->op->cuda, &c), &p->scratch));
    c.scratch = p->scratch;
    TRY(ll_solve(p->op->cuda, &c));
    TRY(ll_gpu_wait(gpu));
    TRY(ll_gpu_capture(gpu));
    ll_err rc = LL_OK;
    for (int i = 0; i < CALLS && rc == LL_OK; i++) rc = ll_solve(p->op->cuda, &c);
    TRY(ll_gpu_captured(gpu, &w));
    TRY(rc);
    rc = time_graph(w, CALLS, seconds);
    ll_gpu_drop(w);
    return rc;
}

/* Bytes read and written a second, by a copy that is queued as it is (a captured one is slower). */
static ll_err measure_copy(double *rate)
{
    const size_t all = (size_t)1 << 30;
    void *a, *b;
    double t[REPEATS];
    TRY(ll_gpu_alloc(gpu, all, &a));
    TRY(ll_gpu_alloc(gpu, all, &b));
    TRY(ll_gpu_fill(gpu, a, 0x3c, all));
    const ll_gpu_rows rows = {b, a, all, all, all, 1};
    for (int i = 0; i < REPEATS; i++) {
        TRY(ll_gpu_mark(gpu, 0));
        for (int k = 0; k < CALLS; k++) TRY(ll_gpu_copy_rows(gpu, LL_STREAM_COMPUTE, &rows));
        TRY(ll_gpu_mark(gpu, 1));
        TRY(ll_gpu_wait(gpu));
        TRY(ll_gpu_seconds(gpu, 0, 1, &t[i]));
    }
    ll_gpu_free(gpu, a);
    ll_gpu_free(gpu, b);
    qsort(t, REPEATS, sizeof *t, by_value);
    *rate = 2.0 * (double)all * CALLS / t[REPEATS / 2];
    return LL_OK;
}

static ll_err run_case(const bench_case *b, double copy)
{
    problem p = {.b = b, .op = ll_op_find(b->op), .arena = ll_arena_new()};
    CHECK(p.op && p.op->cuda, LL_E_ARG, "no op %s for GPUs", b->op);
    double seconds = 0, bytes = b->bytes;
    ll_err rc = prepare(&p);
    if (rc == LL_OK) rc = measure(&p, &seconds);
    for (int i = 0; i < p.n_in + p.n_out && !b->bytes; i++) bytes += (double)bytes_of(&p.type[i]);
    if (rc == LL_OK)
        printf("%-28s %8.4f %8.0f %6.1f %%\n", b->name, seconds * 1e3, bytes / seconds * 1e-9,
               100 * bytes / seconds / copy);
    for (int i = 0; i < p.n_in + p.n_out; i++)
        if (i != p.n_in || !b->on) ll_gpu_free(gpu, p.t[i].data);
    ll_gpu_free(gpu, p.extra);
    ll_gpu_free(gpu, p.scratch);
    ll_arena_free(p.arena);
    return rc;
}

/* ---- the norm of all gradients of a GPT, one launch ---- */

enum { PER_LAYER = 12, LAYERS = 48, GRADIENTS = PER_LAYER * LAYERS + 4 };

typedef struct gradients {
    ll_arena *arena;
    ll_kcall call[GRADIENTS];
    const ll_kcall *calls[GRADIENTS];
    ll_tensor in[GRADIENTS], out[GRADIENTS];
    int64_t size[GRADIENTS], all;
    int n;
    void *x, *y, *table;
} gradients;

static void add_gradient(gradients *g, int64_t size)
{
    g->size[g->n++] = size;
    g->all += size;
}

static ll_err bind_gradients(gradients *g, const ll_op *op)
{
    TRY(ll_gpu_alloc(gpu, (size_t)g->all * 4, &g->x));
    TRY(ll_gpu_alloc(gpu, GRADIENTS * 4, &g->y));
    TRY(ll_gpu_fill(gpu, g->x, 0x3c, (size_t)g->all * 4));
    float *at = (float *)g->x;
    for (int i = 0; i < g->n; at += g->size[i++]) {
        char text[64];
        ll_type in;
        int64_t limit;
        int n_in;
        void *attr;
        snprintf(text, sizeof text, "f32[%lld] {spec=\"a->\"}", (long long)g->size[i]);
        TRY(ll_parse_trial(op, text, g->arena, &n_in, &in, &limit, &attr));
        g->in[i] = (ll_tensor){at, LL_F32, in.shape};
        g->out[i] = (ll_tensor){(float *)g->y + i, LL_F32, {0}};
        g->call[i] = (ll_kcall){.attr = attr,
                                .n_in = 1,
                                .n_out = 1,
                                .in = &g->in[i],
                                .out = &g->out[i],
                                .n_micro = 1,
                                .ctx = gpu_context(),
                                .stream = ll_gpu_stream(gpu, LL_STREAM_COMPUTE)};
        g->calls[i] = &g->call[i];
    }
    size_t bytes = op->cuda->many->table(g->calls, g->n, NULL);
    void *image = ll_arena_alloc(g->arena, bytes);
    op->cuda->many->table(g->calls, g->n, image);
    TRY(ll_gpu_alloc(gpu, bytes, &g->table));
    TRY(ll_gpu_write(gpu, g->table, image, bytes));
    return ll_gpu_wait(gpu);
}

static ll_err time_gradients(gradients *g, const ll_op *op, double *seconds)
{
    ll_gpu_graph *w;
    TRY(op->cuda->many->run(g->calls, g->n, g->table));
    TRY(ll_gpu_wait(gpu));
    TRY(ll_gpu_capture(gpu));
    ll_err rc = LL_OK;
    for (int i = 0; i < CALLS && rc == LL_OK; i++)
        rc = op->cuda->many->run(g->calls, g->n, g->table);
    TRY(ll_gpu_captured(gpu, &w));
    TRY(rc);
    rc = time_graph(w, CALLS, seconds);
    ll_gpu_drop(w);
    return rc;
}

static ll_err run_gradients(const char *name, int layers, int64_t width, double copy)
{
    gradients *g = (gradients *)calloc(1, sizeof *g);
    CHECK(g, LL_E_MEM, "no memory for a list of gradients");
    const ll_op *op = ll_op_find("sumsq");
    double seconds = 0;
    g->arena = ll_arena_new();
    for (int l = 0; l < layers; l++) {
        static const int rows[4] = {3, 1, 4, 4};
        for (int i = 0; i < 4; i++) add_gradient(g, rows[i] * width * width);
        for (int i = 0; i < 4; i++) add_gradient(g, (i == 3 ? 1 : rows[i]) * width);
        for (int i = 0; i < 4; i++) add_gradient(g, width);
    }
    add_gradient(g, 50304 * width);
    add_gradient(g, 1024 * width);
    for (int i = 0; i < 2; i++) add_gradient(g, width);
    ll_err rc = bind_gradients(g, op);
    if (rc == LL_OK) rc = time_gradients(g, op, &seconds);
    double bytes = (double)g->all * 4;
    if (rc == LL_OK)
        printf("%-28s %8.4f %8.0f %6.1f %%\n", name, seconds * 1e3, bytes / seconds * 1e-9,
               100 * bytes / seconds / copy);
    ll_gpu_free(gpu, g->x);
    ll_gpu_free(gpu, g->y);
    ll_gpu_free(gpu, g->table);
    ll_arena_free(g->arena);
    free(g);
    return rc;
}

static const struct {
    const char *name;
    int layers;
    int64_t width;
} gpts[] = {{"sumsq of all, 124M", 12, 768},
            {"sumsq of all, 355M", 24, 1024},
            {"sumsq of all, 1558M", 48, 1600}};

int main(int argc, char **argv)
{
    double copy;
    if (!ll_gpu_count()) {
        printf("skipped: no GPU here\n");
        return 0;
    }
    if (ll_gpu_open(0, &gpu) != LL_OK || measure_copy(&copy) != LL_OK) {
        printf("%s\n", ll_error_text());
        return 1;
    }
    printf("%-28s %8s %8s %s\n", "kernel", "ms", "GB/s", "of a copy");
    printf("%-28s %8s %8.0f\n", "copy", "", copy * 1e-9);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (argc > 1 && strncmp(cases[i].name, argv[1], strlen(argv[1]))) continue;
        if (run_case(&cases[i], copy) != LL_OK) {
            printf("%s: %s\n", cases[i].name, ll_error_text());
            return 1;
        }
    }
    for (size_t i = 0; i < sizeof gpts / sizeof *gpts; i++) {
        if (argc > 1 && strncmp(gpts[i].name, argv[1], strlen(argv[1]))) continue;
        if (run_gradients(gpts[i].name, gpts[i].layers, gpts[i].width, copy) != LL_OK) {
            printf("%s: %s\n", gpts[i].name, ll_error_text());
            return 1;
        }
    }
    ll_gpu_close(gpu);
    return 0;
}
