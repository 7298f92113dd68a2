/* dnn.cu: plans of cuDNN's operation graphs: built, chosen, kept, run. cuDNN's heuristics name
 * engines, the likely best first. A plan is the first that can be made; or several are made, and
 * the first run times them on its operands and keeps one: another than the first must be faster by
 * MARGIN, so that noise does not choose. */
#include "kern/cuda/dnn.cuh"

#include "base/load.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_ENGINES = 32, MOST_TRIES = 12, TIMED_RUNS = 3 };
enum { FIRST_INNER = 1 << 20 }; /* ids of tensors that no caller names */
static const float MARGIN = 0.97f;

struct ll_dnn_plan {
    void *key;
    size_t key_bytes;
    ll_desc tries[MOST_TRIES];
    int64_t workspace[MOST_TRIES];
    int n_try, best; /* best: -1 until they are timed */
    char why[200];   /* there is none */
    ll_dnn_plan *next;
};

struct ll_dnn {
    cudnnHandle_t handle;
    ll_dnn_plan *plans;
};

/* ---- the library ---- */

#define CALLS(_)                                                                                   \
    _(cudnnBackendCreateDescriptor)                                                                \
    _(cudnnBackendDestroyDescriptor)                                                               \
    _(cudnnBackendExecute)                                                                         \
    _(cudnnBackendFinalize)                                                                        \
    _(cudnnBackendGetAttribute)                                                                    \
    _(cudnnBackendSetAttribute)                                                                    \
    _(cudnnCreate)                                                                                 \
    _(cudnnDestroy)                                                                                \
    _(cudnnGetErrorString)                                                                         \
    _(cudnnGetLastErrorString)                                                                     \
    _(cudnnGetVersion)                                                                             \
    _(cudnnSetStream)
static struct {
    CALLS(LL_CALL)
} dnn;
static const ll_library library = {
    "libcudnn.so." LL_MAJOR(CUDNN_MAJOR),
    "cuDNN " LL_MAJOR(CUDNN_MAJOR) " for CUDA " LL_MAJOR(__CUDACC_VER_MAJOR__),
    (void **)&dnn,
    {CALLS(LL_CALL_NAME)}};

static ll_err dnn_check(cudnnStatus_t s, const char *what)
{
    char why[256] = "";
    if (s == CUDNN_STATUS_SUCCESS) return LL_OK;
    dnn.cudnnGetLastErrorString(why, sizeof why);
    FAIL(LL_E_DEVICE, "cuDNN: %s: %s: %.200s", what, dnn.cudnnGetErrorString(s), why);
}

ll_err ll_dnn_open(ll_cuda_context *x)
{
    TRY(ll_load_library(&library));
    if (!x->dnn) x->dnn = (ll_dnn *)calloc(1, sizeof *x->dnn);
    CHECK(x->dnn, LL_E_MEM, "not enough memory for cuDNN's plans");
    return x->dnn->handle ? LL_OK : dnn_check(dnn.cudnnCreate(&x->dnn->handle), "start");
}

static void free_plan(ll_dnn_plan *p)
{
    for (int i = 0; i < p->n_try; i++) dnn.cudnnBackendDestroyDescriptor(p->tries[i]);
    free(p->key);
    free(p);
}

void ll_dnn_close(ll_cuda_context *x)
{
    if (!x->dnn) return;
    for (ll_dnn_plan *p = x->dnn->plans, *next; p; p = next) {
        next = p->next;
        free_plan(p);
    }
    if (x->dnn->handle) dnn.cudnnDestroy(x->dnn->handle);
    free(x->dnn);
}

size_t ll_dnn_version(void)
{
    return ll_load_library(&library) == LL_OK ? dnn.cudnnGetVersion() : CUDNN_VERSION;
}

/* ---- descriptors ---- */

ll_desc ll_dnn_new(ll_dnn_graph *g, cudnnBackendDescriptorType_t type)
{
    ll_desc d = NULL;
    if (g->rc == LL_OK) g->rc = ll_dnn_open(g->ctx);
    if (g->rc != LL_OK) return NULL;
    LL_ASSERT(g->n < (int)(sizeof g->all / sizeof *g->all));
    g->rc = dnn_check(dnn.cudnnBackendCreateDescriptor(type, &d), "descriptor");
    if (g->rc == LL_OK) g->all[g->n++] = d;
    return d;
}

void ll_dnn_set(ll_dnn_graph *g, ll_desc d, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t n, const void *data)
{
    if (g->rc == LL_OK)
        g->rc = dnn_check(dnn.cudnnBackendSetAttribute(d, name, type, n, data), "attribute");
}

void ll_dnn_done(ll_dnn_graph *g, ll_desc d)
{
    if (g->rc == LL_OK) g->rc = dnn_check(dnn.cudnnBackendFinalize(d), "finalize");
}

void ll_dnn_give(ll_dnn_graph *g, ll_desc op, cudnnBackendAttributeName_t name, ll_desc value)
{
    if (value) ll_dnn_set(g, op, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

void ll_dnn_add(ll_dnn_graph *g, ll_desc op)
{
    ll_dnn_done(g, op);
    LL_ASSERT(g->n_op < (int)(sizeof g->ops / sizeof *g->ops));
    g->ops[g->n_op++] = op;
}

static cudnnDataType_t dnn_type(ll_dtype t)
{
    switch (t) {
    case LL_BF16: return CUDNN_DATA_BFLOAT16;
    case LL_F16: return CUDNN_DATA_HALF;
    case LL_F64: return CUDNN_DATA_DOUBLE;
    case LL_I32: return CUDNN_DATA_INT32;
    default: return CUDNN_DATA_FLOAT;
    }
}

static ll_desc add_tensor(ll_dnn_graph *g, int64_t id, cudnnDataType_t t, int n,
                          const int64_t *dims, const int64_t *strides,
                          const cudnnBackendAttributeName_t *kind)
{
    bool yes = true;
    int64_t align = 16;
    ll_desc d = ll_dnn_new(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    ll_dnn_set(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &t);
    ll_dnn_set(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, n, dims);
    ll_dnn_set(g, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, n, strides);
    ll_dnn_set(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    ll_dnn_set(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
    if (kind) ll_dnn_set(g, d, *kind, CUDNN_TYPE_BOOLEAN, 1, &yes);
    ll_dnn_done(g, d);
    return d;
}

ll_desc ll_dnn_tensor(ll_dnn_graph *g, int64_t id, ll_dtype t, int n, const int64_t *dims,
                      const int64_t *strides)
{
    return add_tensor(g, id, dnn_type(t), n, dims, strides, NULL);
}

ll_desc ll_dnn_inner(ll_dnn_graph *g, cudnnDataType_t t, int n, const int64_t *dims,
                     const int64_t *strides)
{
    const cudnnBackendAttributeName_t inner = CUDNN_ATTR_TENSOR_IS_VIRTUAL;
    return add_tensor(g, FIRST_INNER + g->n, t, n, dims, strides, &inner);
}

ll_desc ll_dnn_number(ll_dnn_graph *g, int64_t id, int n)
{
    static const int64_t ones[CUDNN_DIM_MAX] = {1, 1, 1, 1, 1, 1, 1, 1};
    const cudnnBackendAttributeName_t value = CUDNN_ATTR_TENSOR_IS_BY_VALUE;
    return add_tensor(g, id, CUDNN_DATA_FLOAT, n, ones, ones, &value);
}

void ll_dnn_free(ll_dnn_graph *g)
{
    for (int i = 0; i < g->n; i++) dnn.cudnnBackendDestroyDescriptor(g->all[i]);
    g->n = 0;
}

ll_dnn_plan *ll_dnn_find(const ll_cuda_context *x, const void *key, size_t bytes)
{
    ll_dnn_plan *p = x->dnn ? x->dnn->plans : NULL;
    while (p && (p->key_bytes != bytes || memcmp(p->key, key, bytes))) p = p->next;
    return p;
}

/* Whether an engine's notes allow what is wanted: f32 not rounded to fewer bits, the same bits in
 * every run. */
static bool will_do(ll_desc config, const ll_dnn_wanted *want)
{
    ll_desc engine = NULL;
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t n = 0, got = 0;
    bool yes = false;
    if (dnn.cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine)) return false;
    if (!dnn.cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                      CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &engine) &&
        !dnn.cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                      CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT,
                                      &got, notes)) {
        yes = true;
        for (int64_t i = 0; i < got; i++) {
            bool rounds = notes[i] == CUDNN_NUMERICAL_NOTE_TENSOR_CORE ||
                          notes[i] == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS ||
                          notes[i] == CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION;
            if (rounds && !want->tensor_cores) yes = false;
            if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC && want->timed) yes = false;
        }
    }
    dnn.cudnnBackendDestroyDescriptor(engine);
    return yes;
}

static int64_t kernel_of(ll_desc config)
{
    ll_desc knob[1] = {};
    cudnnBackendKnobType_t type = CUDNN_KNOB_TYPE_COUNTS;
    int64_t n = 0, value = 0, one;
    if (dnn.cudnnBackendCreateDescriptor(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, &knob[0])) return 0;
    if (dnn.cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                                     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, knob) ||
        dnn.cudnnBackendGetAttribute(knob[0], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE,
                                     CUDNN_TYPE_KNOB_TYPE, 1, &one, &type) ||
        type != CUDNN_KNOB_TYPE_KERNEL_CFG ||
        dnn.cudnnBackendGetAttribute(knob[0], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64,
                                     1, &one, &value))
        value = 0;
    dnn.cudnnBackendDestroyDescriptor(knob[0]);
    return value;
}

static void bring_forward(ll_desc *config, int64_t n, int64_t kernel)
{
    for (int64_t i = 0; i < n; i++)
        if (kernel_of(config[i]) == kernel) {
            ll_desc it = config[i];
            memmove(config + 1, config, (size_t)i * sizeof *config);
            config[0] = it;
            return;
        }
}

/* Adds a plan of this configuration, if one can be made that fits. */
static void try_config(cudnnHandle_t handle, ll_desc config, const ll_dnn_wanted *want,
                       ll_dnn_plan *out)
{
    ll_desc plan = NULL;
    int64_t one, bytes = 0;
    if (!will_do(config, want)) return;
    if (dnn.cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan)) return;
    dnn.cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
                                 &handle);
    dnn.cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config);
    if (dnn.cudnnBackendFinalize(plan) ||
        dnn.cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                     CUDNN_TYPE_INT64, 1, &one, &bytes) ||
        (want->most_workspace && bytes > want->most_workspace)) {
        dnn.cudnnBackendDestroyDescriptor(plan);
        return;
    }
    out->tries[out->n_try] = plan;
    out->workspace[out->n_try++] = bytes;
}

/* The first configurations that cuDNN's heuristics name and that can be made plans. */
static void add_plans(cudnnHandle_t handle, ll_desc graph, cudnnBackendHeurMode_t mode,
                      const ll_dnn_wanted *want, ll_dnn_plan *out)
{
    ll_desc heur = NULL, config[MOST_ENGINES] = {};
    int64_t n = 0;
    if (dnn.cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &heur)) return;
    dnn.cudnnBackendSetAttribute(heur, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph);
    dnn.cudnnBackendSetAttribute(heur, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    for (int i = 0; i < MOST_ENGINES; i++)
        dnn.cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &config[i]);
    if (dnn.cudnnBackendFinalize(heur) ||
        dnn.cudnnBackendGetAttribute(heur, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                     CUDNN_TYPE_BACKEND_DESCRIPTOR, MOST_ENGINES, &n, config))
        n = 0;
    if (want->prefer) bring_forward(config, n, want->prefer);
    for (int64_t i = 0; i < n && out->n_try < (want->timed ? MOST_TRIES : 1); i++)
        try_config(handle, config[i], want, out);
    for (int i = 0; i < MOST_ENGINES; i++) dnn.cudnnBackendDestroyDescriptor(config[i]);
    dnn.cudnnBackendDestroyDescriptor(heur);
}

ll_err ll_dnn_make(ll_dnn_graph *g, const void *key, size_t bytes, const ll_dnn_wanted *want,
                   ll_dnn_plan **out)
{
    TRY(ll_dnn_open(g->ctx));
    cudnnHandle_t handle = g->ctx->dnn->handle;
    ll_desc graph = ll_dnn_new(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    ll_dnn_set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    ll_dnn_set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->n_op,
               g->ops);
    ll_dnn_done(g, graph);
    TRY(g->rc);
    ll_dnn_plan *p = (ll_dnn_plan *)calloc(1, sizeof *p);
    CHECK(p, LL_E_MEM, "not enough memory for a cuDNN plan");
    p->key = malloc(bytes);
    LL_ASSERT(p->key);
    memcpy(p->key, key, bytes);
    p->key_bytes = bytes;
    add_plans(handle, graph, CUDNN_HEUR_MODE_A, want, p);
    if (!p->n_try) add_plans(handle, graph, CUDNN_HEUR_MODE_FALLBACK, want, p);
    p->best = p->n_try > 1 ? -1 : 0;
    if (!p->n_try) dnn.cudnnGetLastErrorString(p->why, sizeof p->why);
    p->next = g->ctx->dnn->plans;
    g->ctx->dnn->plans = p;
    *out = p;
    return LL_OK;
}

const char *ll_dnn_refused(const ll_dnn_plan *p)
{
    return p->n_try ? NULL : p->why;
}

size_t ll_dnn_workspace(const ll_dnn_plan *p)
{
    int64_t most = 0;
    for (int i = 0; i < p->n_try; i++)
        if (p->workspace[i] > most) most = p->workspace[i];
    return (size_t)most;
}

/* Times all plans on real operands and keeps the best. What is captured cannot be timed, and ranks
 * that must come to the same bits do not: the first will do. */
static ll_err choose(ll_dnn_plan *p, const ll_kcall *c, ll_desc pack)
{
    cudnnHandle_t handle = c->ctx->dnn->handle;
    cudaStream_t stream = stream_of(c);
    cudaStreamCaptureStatus capturing;
    cudaEvent_t from, to;
    float best = 0;
    CUDA_TRY(cudaStreamIsCapturing(stream, &capturing));
    if (!c->timing || capturing != cudaStreamCaptureStatusNone) return LL_OK;
    CUDA_TRY(cudaEventCreate(&from));
    CUDA_TRY(cudaEventCreate(&to));
    for (int i = 0; i < p->n_try; i++) {
        float ms = 0;
        bool ran = !dnn.cudnnBackendExecute(handle, p->tries[i], pack); /* warm */
        CUDA_TRY(cudaEventRecord(from, stream));
        for (int k = 0; k < TIMED_RUNS && ran; k++)
            ran = !dnn.cudnnBackendExecute(handle, p->tries[i], pack);
        CUDA_TRY(cudaEventRecord(to, stream));
        CUDA_TRY(cudaEventSynchronize(to));
        CUDA_TRY(cudaEventElapsedTime(&ms, from, to));
        if (!ran || (p->best >= 0 && ms > MARGIN * best)) continue;
        p->best = i;
        best = ms;
    }
    CUDA_TRY(cudaEventDestroy(from));
    CUDA_TRY(cudaEventDestroy(to));
    CHECK(p->best >= 0, LL_E_DEVICE, "cuDNN: none of %d plans runs", p->n_try);
    return LL_OK;
}

ll_err ll_dnn_run(ll_dnn_plan *p, const ll_kcall *c, int n, const int64_t *ids, void *const *data,
                  void *workspace)
{
    ll_dnn_graph g = {};
    g.ctx = c->ctx;
    cudnnHandle_t handle = c->ctx->dnn->handle;
    CHECK(p->n_try, LL_E_DEVICE, "cuDNN has no engine for this operation: %s", p->why);
    TRY(dnn_check(dnn.cudnnSetStream(handle, stream_of(c)), "stream"));
    ll_desc pack = ll_dnn_new(&g, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    ll_dnn_set(&g, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, data);
    ll_dnn_set(&g, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, ids);
    ll_dnn_set(&g, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    ll_dnn_done(&g, pack);
    if (g.rc == LL_OK && p->best < 0) g.rc = choose(p, c, pack);
    if (g.rc == LL_OK)
        g.rc = dnn_check(dnn.cudnnBackendExecute(handle, p->tries[p->best < 0 ? 0 : p->best], pack),
                         "execute");
    ll_dnn_free(&g);
    return g.rc;
}
