/* dnn.cu: plans of cuDNN's operation graphs: built, chosen, kept, run. */
#include "kern/cuda/dnn.cuh"

#include <stdlib.h>
#include <string.h>

enum { MOST_ENGINES = 32 };

struct ll_dnn_plan {
    void *key;
    size_t key_bytes;
    ll_desc plan;
    int64_t workspace;
    ll_dnn_plan *next;
};

static ll_dnn_plan *plans;

static ll_err dnn_check(cudnnStatus_t s, const char *what)
{
    char why[256] = "";
    if (s == CUDNN_STATUS_SUCCESS) return LL_OK;
    cudnnGetLastErrorString(why, sizeof why);
    FAIL(LL_E_DEVICE, "cuDNN: %s: %s: %.200s", what, cudnnGetErrorString(s), why);
}

ll_desc ll_dnn_new(ll_dnn_graph *g, cudnnBackendDescriptorType_t type)
{
    ll_desc d = NULL;
    if (g->rc != LL_OK) return NULL;
    LL_ASSERT(g->n < (int)(sizeof g->all / sizeof *g->all));
    g->rc = dnn_check(cudnnBackendCreateDescriptor(type, &d), "descriptor");
    if (g->rc == LL_OK) g->all[g->n++] = d;
    return d;
}

void ll_dnn_set(ll_dnn_graph *g, ll_desc d, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t n, const void *data)
{
    if (g->rc == LL_OK)
        g->rc = dnn_check(cudnnBackendSetAttribute(d, name, type, n, data), "attribute");
}

void ll_dnn_done(ll_dnn_graph *g, ll_desc d)
{
    if (g->rc == LL_OK) g->rc = dnn_check(cudnnBackendFinalize(d), "finalize");
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

ll_desc ll_dnn_tensor(ll_dnn_graph *g, int64_t id, ll_dtype t, int n, const int64_t *dims,
                      const int64_t *strides)
{
    cudnnDataType_t type = dnn_type(t);
    int64_t align = 16;
    ll_desc d = ll_dnn_new(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    ll_dnn_set(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    ll_dnn_set(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, n, dims);
    ll_dnn_set(g, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, n, strides);
    ll_dnn_set(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    ll_dnn_set(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
    ll_dnn_done(g, d);
    return d;
}

void ll_dnn_free(ll_dnn_graph *g)
{
    for (int i = 0; i < g->n; i++) cudnnBackendDestroyDescriptor(g->all[i]);
    g->n = 0;
}

ll_dnn_plan *ll_dnn_find(const void *key, size_t bytes)
{
    ll_dnn_plan *p = plans;
    while (p && (p->key_bytes != bytes || memcmp(p->key, key, bytes))) p = p->next;
    return p;
}

/* Does an engine round f32 to fewer bits? */
static bool rounds(ll_desc config)
{
    ll_desc engine = NULL;
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t n = 0, got = 0;
    bool yes = true;
    if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine)) return true;
    if (!cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                  CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &engine) &&
        !cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                  CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &got,
                                  notes)) {
        yes = false;
        for (int64_t i = 0; i < got; i++)
            yes |= notes[i] == CUDNN_NUMERICAL_NOTE_TENSOR_CORE ||
                   notes[i] == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS ||
                   notes[i] == CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION;
    }
    cudnnBackendDestroyDescriptor(engine);
    return yes;
}

static int64_t kernel_of(ll_desc config)
{
    ll_desc knob[1] = {};
    cudnnBackendKnobType_t type = CUDNN_KNOB_TYPE_COUNTS;
    int64_t n = 0, value = 0, one;
    if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, &knob[0])) return 0;
    if (cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, knob) ||
        cudnnBackendGetAttribute(knob[0], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1,
                                 &one, &type) ||
        type != CUDNN_KNOB_TYPE_KERNEL_CFG ||
        cudnnBackendGetAttribute(knob[0], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1,
                                 &one, &value))
        value = 0;
    cudnnBackendDestroyDescriptor(knob[0]);
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

/* The first configuration that cuDNN's heuristics name and that can be made a plan. */
static bool take_plan(cudnnHandle_t handle, ll_desc graph, cudnnBackendHeurMode_t mode,
                      int64_t prefer, bool tensor_cores, ll_dnn_plan *out)
{
    ll_desc heur = NULL, config[MOST_ENGINES] = {};
    int64_t n = 0;
    bool found = false;
    if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &heur)) return false;
    cudnnBackendSetAttribute(heur, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
                             CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph);
    cudnnBackendSetAttribute(heur, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    for (int i = 0; i < MOST_ENGINES; i++)
        cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &config[i]);
    if (cudnnBackendFinalize(heur) ||
        cudnnBackendGetAttribute(heur, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                 MOST_ENGINES, &n, config))
        n = 0;
    if (prefer) bring_forward(config, n, prefer);
    for (int64_t i = 0; i < n && !found; i++) {
        ll_desc plan = NULL;
        if (!tensor_cores && rounds(config[i])) continue;
        if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan)) break;
        cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
                                 &handle);
        cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config[i]);
        int64_t one;
        found = !cudnnBackendFinalize(plan) &&
                !cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                          CUDNN_TYPE_INT64, 1, &one, &out->workspace);
        if (found)
            out->plan = plan;
        else
            cudnnBackendDestroyDescriptor(plan);
    }
    for (int i = 0; i < MOST_ENGINES; i++) cudnnBackendDestroyDescriptor(config[i]);
    cudnnBackendDestroyDescriptor(heur);
    return found;
}

ll_err ll_dnn_make(ll_dnn_graph *g, const void *key, size_t bytes, bool tensor_cores,
                   ll_dnn_plan **out)
{
    cudnnHandle_t handle;
    TRY(ll_cudnn(&handle));
    ll_desc graph = ll_dnn_new(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    ll_dnn_set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    ll_dnn_set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->n_op,
               g->ops);
    ll_dnn_done(g, graph);
    TRY(g->rc);
    ll_dnn_plan *p = (ll_dnn_plan *)calloc(1, sizeof *p);
    CHECK(p, LL_E_MEM, "no memory for a cuDNN plan");
    p->key = malloc(bytes);
    LL_ASSERT(p->key);
    memcpy(p->key, key, bytes);
    p->key_bytes = bytes;
    if (!take_plan(handle, graph, CUDNN_HEUR_MODE_A, g->prefer, tensor_cores, p) &&
        !take_plan(handle, graph, CUDNN_HEUR_MODE_FALLBACK, 0, tensor_cores, p)) {
        free(p->key);
        free(p);
        char why[256] = "";
        cudnnGetLastErrorString(why, sizeof why);
        FAIL(LL_E_DEVICE, "cuDNN has no engine for this operation: %.200s", why);
    }
    p->next = plans;
    plans = p;
    *out = p;
    return LL_OK;
}

size_t ll_dnn_workspace(const ll_dnn_plan *p)
{
    return (size_t)p->workspace;
}

ll_err ll_dnn_run(const ll_dnn_plan *p, const ll_kcall *c, int n, const int64_t *ids,
                  void *const *data, void *workspace)
{
    cudnnHandle_t handle;
    ll_dnn_graph g = {};
    TRY(ll_cudnn(&handle));
    DNN_TRY(cudnnSetStream(handle, stream_of(c)));
    ll_desc pack = ll_dnn_new(&g, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    ll_dnn_set(&g, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, data);
    ll_dnn_set(&g, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, ids);
    ll_dnn_set(&g, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    ll_dnn_done(&g, pack);
    if (g.rc == LL_OK) g.rc = dnn_check(cudnnBackendExecute(handle, p->plan, pack), "execute");
    ll_dnn_free(&g);
    return g.rc;
}
