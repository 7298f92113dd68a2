/* made.h: small ONNX models, made by hand. */
#pragma once
#include "onnx/read.h"

#include <stdlib.h>

/* Strings of messages are not const. */
#define TEXT(s) ((char *)(uintptr_t)(s))

static inline Onnx__Tensor *made_tensor(ll_arena *a, const char *name, int type, int n,
                                        const int64_t *d, const void *raw, size_t bytes)
{
    Onnx__Tensor *t = LL_NEW(a, Onnx__Tensor);
    onnx__tensor__init(t);
    t->name = TEXT(name);
    t->data_type = type;
    t->n_dims = (size_t)n;
    t->dims = ll_arena_copy(a, d, sizeof *d * (size_t)(n + 1));
    t->raw_data.data = ll_arena_copy(a, raw, bytes);
    t->raw_data.len = bytes;
    return t;
}

static inline Onnx__ValueInfo *made_info(ll_arena *a, const char *name, int type, int n,
                                         const int64_t *d)
{
    Onnx__ValueInfo *v = LL_NEW(a, Onnx__ValueInfo);
    onnx__value_info__init(v);
    v->name = TEXT(name);
    onnx__type__init(v->type = LL_NEW(a, Onnx__Type));
    onnx__tensor_type__init(v->type->tensor_type = LL_NEW(a, Onnx__TensorType));
    v->type->tensor_type->elem_type = type;
    Onnx__Shape *s = v->type->tensor_type->shape = LL_NEW(a, Onnx__Shape);
    onnx__shape__init(s);
    s->n_dim = (size_t)n;
    s->dim = LL_NEW_ARRAY(a, Onnx__Dim *, n + 1);
    for (int i = 0; i < n; i++) {
        onnx__dim__init(s->dim[i] = LL_NEW(a, Onnx__Dim));
        s->dim[i]->value_case = d[i] < 0 ? ONNX__DIM__VALUE_DIM_PARAM : ONNX__DIM__VALUE_DIM_VALUE;
        if (d[i] < 0)
            s->dim[i]->dim_param = TEXT("N");
        else
            s->dim[i]->dim_value = d[i];
    }
    return v;
}

static inline Onnx__Model *made_model(ll_arena *a, int64_t opset)
{
    Onnx__Model *m = LL_NEW(a, Onnx__Model);
    onnx__model__init(m);
    m->ir_version = 8;
    m->n_opset_import = 1;
    m->opset_import = LL_NEW_ARRAY(a, Onnx__Opset *, 1);
    onnx__opset__init(m->opset_import[0] = LL_NEW(a, Onnx__Opset));
    m->opset_import[0]->version = opset;
    onnx__graph__init(m->graph = LL_NEW(a, Onnx__Graph));
    return m;
}

#define MADE_ADD(a, list, count, type, item)                                                       \
    do {                                                                                           \
        type **more = LL_NEW_ARRAY(a, type *, (count) + 1);                                        \
        if (count) memcpy(more, list, sizeof *more *(count));                                      \
        more[(count)++] = item;                                                                    \
        (list) = more;                                                                             \
    } while (0)

/* in and out: names, parted by blanks. */
static inline size_t made_names(ll_arena *a, const char *text, char ***out)
{
    size_t n = 0;
    *out = LL_NEW_ARRAY(a, char *, strlen(text) + 1);
    for (char *save, *w = strtok_r(ll_arena_strdup(a, text), " ", &save); w;
         w = strtok_r(NULL, " ", &save))
        (*out)[n++] = w;
    return n;
}

static inline Onnx__Node *made_node(ll_arena *a, Onnx__Graph *g, const char *op, const char *in,
                                    const char *out)
{
    Onnx__Node *n = LL_NEW(a, Onnx__Node);
    onnx__node__init(n);
    n->op_type = TEXT(op);
    n->n_input = made_names(a, in, &n->input);
    n->n_output = made_names(a, out, &n->output);
    MADE_ADD(a, g->node, g->n_node, Onnx__Node, n);
    return n;
}

static inline Onnx__Attribute *made_attribute(ll_arena *a, Onnx__Node *n, const char *name)
{
    Onnx__Attribute *t = LL_NEW(a, Onnx__Attribute);
    onnx__attribute__init(t);
    t->name = TEXT(name);
    MADE_ADD(a, n->attribute, n->n_attribute, Onnx__Attribute, t);
    return t;
}

static inline void made_ints(ll_arena *a, Onnx__Node *n, const char *name, int count,
                             const int64_t *v)
{
    Onnx__Attribute *t = made_attribute(a, n, name);
    t->type = 7;
    t->n_ints = (size_t)count;
    t->ints = ll_arena_copy(a, v, sizeof *v * (size_t)count);
}

static inline uint8_t *made_bytes(ll_arena *a, const void *message, size_t *size)
{
    *size = protobuf_c_message_get_packed_size(message);
    uint8_t *data = ll_arena_alloc(a, *size + 1);
    protobuf_c_message_pack(message, data);
    return data;
}
