/* Any bytes as an ONNX model: it is refused or walked; numbers of inputs are zeros. */
#include "onnx/walk.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 4096 };

static bool zeros(ll_arena *a, const Onnx__ValueInfo *info, value *x)
{
    const Onnx__TensorType *t = info->type ? info->type->tensor_type : NULL;
    int64_t n = 1;
    if (!t || !t->shape || t->shape->n_dim > LL_MAX_DIMS) return false;
    *x = (value){.name = info->name, .type = t->elem_type, .shape.n = (int)t->shape->n_dim};
    for (int i = 0; i < x->shape.n; i++) {
        const Onnx__Dim *d = t->shape->dim[i];
        x->shape.d[i] = d->value_case == ONNX__DIM__VALUE_DIM_VALUE ? d->dim_value : 2;
        if (x->shape.d[i] < 0 || x->shape.d[i] > MOST || (n *= x->shape.d[i]) > MOST) return false;
    }
    if (ll_onnx_dtype(x->type) == LL_N_DTYPE) return false;
    x->host = ll_onnx_host(a, x->type, &x->shape);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_onnx *m;
    if (ll_onnx_parse(a, data, size, "fuzz", NULL, &m) != LL_OK) {
        if (m || !ll_error_text()[0]) abort();
        return 0;
    }
    const Onnx__Graph *g = m->model->graph;
    int n;
    Onnx__ValueInfo **info = ll_onnx_inputs(a, m, &n);
    value **in = LL_NEW_ARRAY(a, value *, n + 1);
    bool ok = true;
    for (int i = 0; i < n && ok; i++) ok = zeros(a, info[i], in[i] = LL_NEW(a, value));
    walk w = {.arena = a, .m = m, .g = ll_graph_new("fuzz")};
    value **out = LL_NEW_ARRAY(a, value *, g->n_output + 1);
    if (ok && ll_onnx_walk(&w, in, out) != LL_OK && !ll_error_text()[0]) abort();
    ll_graph_free(w.g);
    return 0;
}
