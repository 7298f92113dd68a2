/* read.h: an ONNX file in memory. */
#pragma once
#include "base/types.h"
#include "onnx/onnx.h"

#include "onnx.pb-c.h"

/* ONNX's element types that can be read. Numbers are kept as what the graph works with: whole
 * numbers and truths as int64_t, f16, bf16 and f32 as float, f64 as double. */
enum {
    ONNX_FLOAT = 1,
    ONNX_UINT8,
    ONNX_INT8,
    ONNX_UINT16,
    ONNX_INT16,
    ONNX_INT32,
    ONNX_INT64,
    ONNX_STRING,
    ONNX_BOOL,
    ONNX_FLOAT16,
    ONNX_DOUBLE,
    ONNX_UINT32,
    ONNX_UINT64,
    ONNX_BFLOAT16 = 16
};

struct ll_onnx {
    ll_arena *arena;
    const char *name, *folder;
    Onnx__Model *model;
};

/* Numbers known when a model is read. */
typedef struct host {
    int type; /* ONNX's */
    ll_shape shape;
    void *data; /* kept(type) each */
} host;

const char *ll_onnx_type_name(int type);
/* LL_F32, LL_F64 or LL_I32 (whole numbers); LL_N_DTYPE: not one that can be read. */
ll_dtype ll_onnx_dtype(int type);
bool ll_onnx_whole(int type); /* whole numbers and truths */
double ll_onnx_at(const host *h, int64_t i);
void ll_onnx_put(host *h, int64_t i, double v);
host *ll_onnx_host(ll_arena *a, int type, const ll_shape *shape); /* zeros; NULL: no memory */
/* The file of a tensor that lies in another than the model's: inside its folder. */
ll_err ll_onnx_location(const Onnx__Tensor *t, const char **out);
/* Reads a tensor's numbers, checked against its type. declared: what it should be, or 0; bf16 may
 * come as uint16. */
ll_err ll_onnx_tensor(const Onnx__Tensor *t, int declared, const char *folder, ll_arena *a,
                      const host **out);
/* A message of a file of its own (a test's input). */
ll_err ll_onnx_unpack(const ProtobufCMessageDescriptor *d, const uint8_t *data, size_t size,
                      const char *name, ll_arena *a, ProtobufCMessage **out);
