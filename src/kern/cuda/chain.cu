/* chain.cu: chains of elementwise ops, each compiled at run time to one kernel (NVRTC).
 *
 * The source is made of the chain's steps; sizes stay arguments, so that equal chains on tensors of
 * other sizes are one kernel. What the source depends on: steps, numbers, element types, and how
 * each operand is read (whole, a scalar, periodic, ...). A thread does 8 elements that lie side by
 * side, of bf16 16 bytes, or 4 where f32 is among the tensors; so an operand's place is found once
 * for all of them, where its period allows.
 *
 * Equal chains on several tensors (the updates of all parameters) are one launch of the same body:
 * its blocks find in a map which tensor is theirs, and in a row of words its arguments. */
#include "base/load.h"
#include "kern/cuda/gpu.cuh"

#include <nvrtc.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SOURCE_MAX = 65536, BLOCK = 256 };
/* BESIDE: a thread's elements read as many that lie side by side; SAME: they all read one. */
enum how { WHOLE, SCALAR, BESIDE, SAME, PERIODIC, ANY };

typedef struct shape_of_loop {
    enum how how[LL_FUSE_IN];
    int each, at_once; /* elements of a group; groups whose operands are read together */
} shape_of_loop;

typedef struct source {
    char text[SOURCE_MAX];
    int n;
} source;

static void put(source *s, const char *format, ...)
{
    va_list v;
    va_start(v, format);
    int left = SOURCE_MAX - s->n, k = vsnprintf(s->text + s->n, (size_t)left, format, v);
    va_end(v);
    LL_ASSERT(k >= 0 && k < left);
    s->n += k;
}

/* ---- source ---- */

static const char *const prelude =
    "typedef unsigned short u16; typedef unsigned int u32; typedef long long i64;\n"
    "typedef unsigned long long u64;\n"
    "template <class T, int N> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) some {\n"
    "  T v[N]; };\n"
    "__device__ __forceinline__ float up(u16 h) { return __uint_as_float((u32)h << 16); }\n"
    "__device__ __forceinline__ float up(float x) { return x; }\n"
    "__device__ __forceinline__ float up(int x) { return (float)x; }\n"
    "__device__ __forceinline__ float up(unsigned char x) { return (float)x; }\n"
    "__device__ __forceinline__ void down(float x, float &y) { y = x; }\n"
    "__device__ __forceinline__ void down(float x, u16 &y) {\n"
    "  asm(\"cvt.rn.bf16.f32 %0, %1;\" : \"=h\"(y) : \"f\"(x)); }\n"
    /* over: to two units in the last place. gate: sigmoid(2u) = (1 + tanh(u)) / 2 of gelu */
    "__device__ __forceinline__ float over(float a, float b) { return __fdividef(a, b); }\n"
    "__device__ __forceinline__ float gate(float x) {\n"
    "  float y, u = x * (-2.302208198f - 0.1029432396f * x * x);\n"
    "  asm(\"ex2.approx.ftz.f32 %0, %1;\" : \"=f\"(y) : \"f\"(u));\n"
    "  return over(1.f, 1.f + y); }\n"
    "__device__ __forceinline__ float gelu(float x) { return x * gate(x); }\n"
    "__device__ __forceinline__ float dgelu(float x) {\n"
    "  float s = gate(x);\n"
    "  return s + x * 2.f * s * (1.f - s) * 0.7978845608f * (1.f + 0.134145f * x * x); }\n";

static const char *type_name(ll_dtype t)
{
    switch (t) {
    case LL_F32: return "float";
    case LL_BF16: return "u16";
    case LL_I32: return "int";
    case LL_U8: return "unsigned char";
    default: return NULL;
    }
}

static enum how how_read(const ll_fused_attr *f, int i, int64_t n, int each)
{
    if (f->period[i] == n && f->repeat[i] == 1) return WHOLE;
    if (f->period[i] == 1) return SCALAR;
    if (f->repeat[i] == 1) return f->period[i] % each == 0 ? BESIDE : PERIODIC;
    return f->repeat[i] % each == 0 ? SAME : ANY;
}

/* f32 by 4, 16 bytes: by 8 a warp would read every other 16 bytes. */
static shape_of_loop loop_of(const ll_kcall *c)
{
    const ll_fused_attr *f = (const ll_fused_attr *)c->attr;
    int64_t n = ll_numel(&f->shape);
    shape_of_loop l = {.each = 8, .at_once = 2};
    int whole = 0;
    for (int i = 0; i < f->n_in; i++)
        if (f->period[i] == n && f->repeat[i] == 1) {
            if (ll_dtype_bytes(c->in[i].dtype) > 2) l.each = 4;
            whole++;
        }
    for (int o = 0; o < f->n_out; o++)
        if (ll_dtype_bytes(c->out[o].dtype) > 2) l.each = 4;
    if (whole > 2) l.at_once = 1;
    for (int i = 0; i < f->n_in; i++) l.how[i] = how_read(f, i, n, l.each);
    return l;
}

/* Values are LL_EW's own text, with a, b, c and k in f32; of these there are quicker ways, to two
 * units in the last place. */
static const char *value_of(int op)
{
#define TEXT(value) #value
#define X(name, operands, value) TEXT(value),
    static const char *const values[LL_N_EW] = {LL_EW(X)};
#undef X
#undef TEXT
    switch (op) {
    case LL_EW_sigmoid: return "over(1.f, 1.f + expf(-a))";
    case LL_EW_silu: return "over(a, 1.f + expf(-a))";
    case LL_EW_gelu: return "gelu(a)";
    case LL_EW_dgelu: return "dgelu(a)";
    default: return values[op];
    }
}

static void put_operand(source *s, const char *name, const ll_fused_step *t, int reg)
{
    if (reg == LL_FUSE_K)
        put(s, "const float %s = %af; ", name, (double)(float)t->k);
    else
        put(s, "const float %s = r%d; ", name, reg);
}

static void put_body(source *s, const ll_fused_attr *f)
{
    static const int operands[LL_N_EW] = {
#define X(name, operands, value) operands,
        LL_EW(X)
#undef X
    };
    for (int i = 0; i < f->n_step; i++) {
        const ll_fused_step *t = &f->step[i];
        put(s, "    float r%d; { const float k = %af; (void)k; ", f->n_in + i, (double)(float)t->k);
        put_operand(s, "a", t, t->a);
        if (operands[t->op] > 1) put_operand(s, "b", t, t->b);
        if (operands[t->op] > 2) put_operand(s, "c", t, t->c);
        put(s, "r%d = %s; }\n", f->n_in + i, value_of(t->op));
    }
}

/* Operand i of element e: j of a group, or one of those left over. */
static void put_load(source *s, int i, enum how how, bool left_over)
{
    if (how == SCALAR)
        put(s, "k%d", i);
    else if (left_over && how == WHOLE)
        put(s, "up(x%d[e])", i);
    else if (how == PERIODIC || (left_over && how == BESIDE))
        put(s, "up(x%d[(u32)e %% p%d])", i, i);
    else if (how == ANY || left_over)
        put(s, "up(x%d[(u32)e / q%d %% p%d])", i, i, i);
    else
        put(s, how == SAME ? "k%d[u]" : "up(w%d[u].v[j])", i);
}

static void put_elements(source *s, const ll_fused_attr *f, const shape_of_loop *l, bool left_over)
{
    for (int i = 0; i < f->n_in; i++) {
        put(s, "    float r%d = ", i);
        put_load(s, i, l->how[i], left_over);
        put(s, ";\n");
    }
    put_body(s, f);
    for (int o = 0; o < f->n_out; o++)
        put(s, left_over ? "    down(r%d, y%d[e]);\n" : "    down(r%d, v%d.v[j]);\n", f->out[o], o);
}

/* What a group's elements read, of at_once groups before anything is written. */
static void put_group_loads(source *s, const ll_kcall *c, const ll_fused_attr *f,
                            const shape_of_loop *l)
{
    for (int i = 0; i < f->n_in; i++) {
        const char *type = type_name(c->in[i].dtype);
        if (l->how[i] == WHOLE || l->how[i] == BESIDE)
            put(s, "  some<%s, %d> w%d[%d];\n", type, l->each, i, l->at_once);
        if (l->how[i] == SAME) put(s, "  float k%d[%d];\n", i, l->at_once);
    }
    put(s, "#pragma unroll\n  for (int u = 0; u < %d; u++) {\n", l->at_once);
    put(s, "    i64 h = g + u * step; u32 e = (u32)(h * %d); (void)e;\n", l->each);
    put(s, "    if (h >= n / %d) break;\n", l->each);
    for (int i = 0; i < f->n_in; i++) {
        char cast[64];
        snprintf(cast, sizeof cast, "(const some<%s, %d> *)", type_name(c->in[i].dtype), l->each);
        if (l->how[i] == WHOLE) put(s, "    w%d[u] = (%sx%d)[h];\n", i, cast, i);
        if (l->how[i] == BESIDE) put(s, "    w%d[u] = *%s(x%d + e %% p%d);\n", i, cast, i, i);
        if (l->how[i] == SAME) put(s, "    k%d[u] = up(x%d[e / q%d %% p%d]);\n", i, i, i, i);
    }
    put(s, "  }\n");
}

/* A row: elements, first block, blocks; of each operand address and broadcast; results. */
static int row_words(const ll_fused_attr *f)
{
    return 3 + 2 * f->n_in + f->n_out;
}

/* One tensor's row is the argument; of many, the map says which is this block's. */
static void put_head(source *s, const ll_kcall *c, const ll_fused_attr *f, bool many)
{
    put(s, "%sstruct words { u64 w[%d]; };\n", prelude, row_words(f));
    put(s, "extern \"C\" __global__ void __launch_bounds__(256) chain(%s) {\n",
        many ? "const words *rows, const u32 *map" : "const __grid_constant__ words one");
    put(s, "  const u64 *row = %s.w;\n", many ? "rows[map[blockIdx.x]]" : "one");
    put(s,
        "  i64 n = row[0], t = (blockIdx.x - row[1]) * 256 + threadIdx.x, step = row[2] * 256;\n");
    for (int i = 0, w = 3; i < f->n_in; i++, w += 2)
        put(s,
            "  const %s *x%d = (const %s *)row[%d]; u32 p%d = (u32)row[%d], q%d = row[%d] >> 32;\n",
            type_name(c->in[i].dtype), i, type_name(c->in[i].dtype), w, i, w + 1, i, w + 1);
    for (int o = 0; o < f->n_out; o++)
        put(s, "  %s *y%d = (%s *)row[%d];\n", type_name(c->out[o].dtype), o,
            type_name(c->out[o].dtype), 3 + 2 * f->n_in + o);
}

static void put_kernel(source *s, const ll_kcall *c, const ll_fused_attr *f, const shape_of_loop *l,
                       bool many)
{
    put_head(s, c, f, many);
    for (int i = 0; i < f->n_in; i++)
        if (l->how[i] == SCALAR) put(s, "  float k%d = up(x%d[0]);\n", i, i);
    put(s, "  for (i64 g = t; g < n / %d; g += %d * step) {\n", l->each, l->at_once);
    put_group_loads(s, c, f, l);
    put(s, "#pragma unroll\n  for (int u = 0; u < %d; u++) {\n", l->at_once);
    put(s, "    i64 h = g + u * step;\n    if (h >= n / %d) break;\n", l->each);
    for (int o = 0; o < f->n_out; o++)
        put(s, "  some<%s, %d> v%d;\n", type_name(c->out[o].dtype), l->each, o);
    put(s, "#pragma unroll\n  for (int j = 0; j < %d; j++) {\n", l->each);
    put(s, "    i64 e = %d * h + j; (void)e;\n", l->each);
    put_elements(s, f, l, false);
    put(s, "  }\n");
    for (int o = 0; o < f->n_out; o++)
        put(s, "  ((some<%s, %d> *)y%d)[h] = v%d;\n", type_name(c->out[o].dtype), l->each, o, o);
    put(s, "  }\n  }\n  for (i64 e = n / %d * %d + t; e < n; e += step) {\n", l->each, l->each);
    put_elements(s, f, l, true);
    put(s, "  }\n}\n");
}

/* ---- compiled chains, found by their source ----
 * A program's chains are compiled beside each other by threads of their own, from when its kernels
 * are prepared on; whoever calls one first waits for it, and loads it. */

#define CALLS(_)                                                                                   \
    _(nvrtcCompileProgram)                                                                         \
    _(nvrtcCreateProgram)                                                                          \
    _(nvrtcDestroyProgram)                                                                         \
    _(nvrtcGetCUBIN)                                                                               \
    _(nvrtcGetCUBINSize)                                                                           \
    _(nvrtcGetErrorString)                                                                         \
    _(nvrtcGetProgramLog)                                                                          \
    _(nvrtcGetProgramLogSize)
static struct {
    CALLS(LL_CALL)
} rtc;
static const ll_library library = {"libnvrtc.so." LL_MAJOR(__CUDACC_VER_MAJOR__),
                                   "NVRTC of CUDA " LL_MAJOR(__CUDACC_VER_MAJOR__),
                                   (void **)&rtc,
                                   {CALLS(LL_CALL_NAME)}};

typedef struct compiled {
    char *source, *image; /* image: NULL where it did not compile, and said why in log */
    char log[400], arch[32];
    bool running;
    pthread_t thread;
    cudaLibrary_t loaded; /* NULL: not yet */
    cudaKernel_t f;
    struct compiled *next;
} compiled;

struct ll_chains {
    compiled *first;
    int n_running;
};
enum { MOST_RUNNING = 32 };

static void keep_log(nvrtcProgram p, nvrtcResult rc, compiled *c)
{
    size_t n = 0;
    int at = snprintf(c->log, sizeof c->log, "%s: ", rtc.nvrtcGetErrorString(rc));
    if (rtc.nvrtcGetProgramLogSize(p, &n) != NVRTC_SUCCESS) return;
    char *whole = (char *)malloc(n + 1);
    if (whole && rtc.nvrtcGetProgramLog(p, whole) == NVRTC_SUCCESS)
        snprintf(c->log + at, sizeof c->log - (size_t)at, "%s", whole);
    free(whole);
}

/* Source to image. Touches nothing but its own chain: several run at once. */
static void *compile_chain(void *arg)
{
    compiled *c = (compiled *)arg;
    nvrtcProgram p;
    size_t bytes;
    /* A chain rounds as its ops do one by one: exact mode fuses otherwise on other meshes. */
    const char *options[] = {c->arch, "--std=c++17", "-w", "--fmad=false"};
    nvrtcResult rc = rtc.nvrtcCreateProgram(&p, c->source, "chain.cu", 0, NULL, NULL);
    if (rc != NVRTC_SUCCESS) {
        snprintf(c->log, sizeof c->log, "%s", rtc.nvrtcGetErrorString(rc));
        return NULL;
    }
    rc = rtc.nvrtcCompileProgram(p, 4, options);
    if (rc == NVRTC_SUCCESS) rc = rtc.nvrtcGetCUBINSize(p, &bytes);
    if (rc == NVRTC_SUCCESS) {
        c->image = (char *)malloc(bytes);
        LL_ASSERT(c->image);
        rc = rtc.nvrtcGetCUBIN(p, c->image);
    }
    if (rc != NVRTC_SUCCESS) {
        free(c->image);
        c->image = NULL;
        keep_log(p, rc, c);
    }
    rtc.nvrtcDestroyProgram(&p);
    return NULL;
}

static void await_chain(ll_chains *all, compiled *c)
{
    if (!c->running) return;
    pthread_join(c->thread, NULL);
    c->running = false;
    all->n_running--;
}

void ll_chains_await(ll_cuda_context *x)
{
    pthread_mutex_lock(&x->lock);
    for (compiled *c = x->chains ? x->chains->first : NULL; c; c = c->next)
        await_chain(x->chains, c);
    pthread_mutex_unlock(&x->lock);
}

void ll_chains_close(ll_cuda_context *x)
{
    ll_chains_await(x);
    for (compiled *c = x->chains ? x->chains->first : NULL, *next; c; c = next) {
        next = c->next;
        if (c->loaded) cudaLibraryUnload(c->loaded);
        free(c->source), free(c->image), free(c);
    }
    free(x->chains);
}

/* The chain of this source, new ones with a compiler started on them if there is room for it.
 * Called with the lock. */
static ll_err find_chain(ll_cuda_context *x, const char *text, bool beside, compiled **out)
{
    if (!x->chains) x->chains = (ll_chains *)calloc(1, sizeof *x->chains);
    LL_ASSERT(x->chains);
    compiled *c = x->chains->first;
    while (c && strcmp(c->source, text)) c = c->next;
    *out = c;
    if (c) return LL_OK;
    TRY(ll_load_library(&library));
    c = (compiled *)calloc(1, sizeof *c);
    LL_ASSERT(c && (c->source = strdup(text)));
    snprintf(c->arch, sizeof c->arch, "--gpu-architecture=sm_%d%d", x->major, x->minor);
    c->next = x->chains->first;
    *out = x->chains->first = c;
    if (beside && x->chains->n_running < MOST_RUNNING)
        c->running = pthread_create(&c->thread, NULL, compile_chain, c) == 0;
    x->chains->n_running += c->running;
    if (!c->running) compile_chain(c);
    return LL_OK;
}

static ll_err load_chain(ll_cuda_context *x, const char *text, cudaKernel_t *out)
{
    compiled *c;
    TRY(find_chain(x, text, false, &c));
    await_chain(x->chains, c);
    if (!c->f) {
        CHECK(c->image, LL_E_DEVICE, "a chain does not compile: %s\n%.2000s", c->log,
              text + strlen(prelude));
        CUDA_TRY(cudaLibraryLoadData(&c->loaded, c->image, NULL, NULL, 0, NULL, NULL, 0));
        CUDA_TRY(cudaLibraryGetKernel(&c->f, c->loaded, "chain"));
    }
    *out = c->f;
    return LL_OK;
}

/* ---- the kernel ---- */

static ll_err check_types(const ll_kcall *c)
{
    for (int i = 0; i < c->n_in; i++)
        CHECK(type_name(c->in[i].dtype), LL_E_GRAPH, "a chain of machine cuda cannot read %s",
              ll_dtype_name(c->in[i].dtype));
    for (int o = 0; o < c->n_out; o++)
        CHECK(c->out[o].dtype == LL_F32 || c->out[o].dtype == LL_BF16, LL_E_GRAPH,
              "a chain of machine cuda cannot write %s", ll_dtype_name(c->out[o].dtype));
    return LL_OK;
}

static int64_t elements(const ll_kcall *c)
{
    return ll_numel(&((const ll_fused_attr *)c->attr)->shape);
}

static unsigned blocks_of(const ll_kcall *c)
{
    shape_of_loop l = loop_of(c);
    return blocks_for(c, ll_ceil_div(elements(c), l.each * l.at_once), BLOCK);
}

/* The chain of this call, for one tensor or for many. out NULL: it will be wanted, and may be
 * compiled beside what is done until then. */
static ll_err chain_of(const ll_kcall *c, bool many, cudaKernel_t *out)
{
    compiled *begun;
    shape_of_loop l = loop_of(c);
    TRY(check_types(c));
    CHECK(elements(c) < INT32_MAX * 2ll, LL_E_SHAPE,
          "a chain over %lld elements, at most 2^32 can be", (long long)elements(c));
    source *s = (source *)calloc(1, sizeof *s);
    CHECK(s, LL_E_MEM, "not enough memory for a chain's source");
    put_kernel(s, c, (const ll_fused_attr *)c->attr, &l, many);
    pthread_mutex_lock(&c->ctx->lock);
    ll_err rc = out ? load_chain(c->ctx, s->text, out) : find_chain(c->ctx, s->text, true, &begun);
    pthread_mutex_unlock(&c->ctx->lock);
    free(s);
    return rc;
}

/* What will fail tells so when it is called. */
template <bool MANY> static void begin(const ll_kcall *c)
{
    ll_err rc = elements(c) ? chain_of(c, MANY, NULL) : LL_OK;
    (void)rc;
}

static void put_row(const ll_kcall *c, uint64_t first, uint64_t *row)
{
    const ll_fused_attr *f = (const ll_fused_attr *)c->attr;
    size_t k = 0;
    row[k++] = (uint64_t)elements(c);
    row[k++] = first;
    row[k++] = blocks_of(c);
    for (int i = 0; i < f->n_in; i++) {
        row[k++] = (uint64_t)(uintptr_t)c->in[i].data;
        row[k++] = (uint64_t)f->period[i] | (uint64_t)f->repeat[i] << 32;
    }
    for (int o = 0; o < f->n_out; o++) row[k++] = (uint64_t)(uintptr_t)c->out[o].data;
}

static ll_err start(const ll_kcall *c, bool many, unsigned blocks, void **args)
{
    cudaKernel_t fn;
    TRY(chain_of(c, many, &fn));
    CUDA_TRY(cudaLaunchKernel((const void *)fn, dim3(blocks), dim3(BLOCK), args, 0, stream_of(c)));
    return LL_OK;
}

static ll_err run(const ll_kcall *c)
{
    uint64_t row[3 + 2 * LL_FUSE_IN + LL_FUSE_OUT];
    void *args[] = {row};
    if (elements(c) == 0) return LL_OK;
    put_row(c, 0, row);
    return start(c, false, blocks_of(c), args);
}

/* ---- several as one ---- */

static bool alike(const ll_kcall *a, const ll_kcall *b)
{
    const ll_fused_attr *f = (const ll_fused_attr *)a->attr, *g = (const ll_fused_attr *)b->attr;
    shape_of_loop l = loop_of(a), k = loop_of(b);
    if (!elements(a) || !elements(b) || f->n_step != g->n_step || f->n_in != g->n_in ||
        f->n_out != g->n_out)
        return false;
    if (l.each != k.each || l.at_once != k.at_once) return false;
    for (int i = 0; i < f->n_in; i++)
        if (a->in[i].dtype != b->in[i].dtype || l.how[i] != k.how[i]) return false;
    for (int o = 0; o < f->n_out; o++)
        if (a->out[o].dtype != b->out[o].dtype || f->out[o] != g->out[o]) return false;
    return !memcmp(f->step, g->step, sizeof f->step[0] * (size_t)f->n_step);
}

static size_t table(const ll_kcall *const *calls, int n, void *out)
{
    size_t words = (size_t)row_words((const ll_fused_attr *)calls[0]->attr), blocks = 0;
    uint64_t *rows = (uint64_t *)out;
    uint32_t *map = (uint32_t *)(rows + words * (size_t)n);
    for (int i = 0; i < n; i++) {
        unsigned b = blocks_of(calls[i]);
        if (out) put_row(calls[i], blocks, rows + words * (size_t)i);
        for (unsigned k = 0; out && k < b; k++) map[blocks + k] = (uint32_t)i;
        blocks += b;
    }
    return words * (size_t)n * sizeof *rows + blocks * sizeof *map;
}

static ll_err run_many(const ll_kcall *const *calls, int n, void *table)
{
    size_t words = (size_t)row_words((const ll_fused_attr *)calls[0]->attr);
    const void *map = (const uint64_t *)table + words * (size_t)n;
    void *args[] = {&table, &map};
    unsigned blocks = 0;
    for (int i = 0; i < n; i++) blocks += blocks_of(calls[i]);
    return start(calls[0], true, blocks, args);
}

static const ll_many many = {alike, table, run_many, begin<true>};
extern "C" const ll_solver fused_cuda[] = {{"chain", NULL, NULL, run, &many, begin<false>}, {}};
