/* none.c: in place of all else here, where there is no protobuf-c for ONNX files. */
#include "onnx/onnx.h"

#define ABSENT(name, ...)                                                                          \
    ll_err name(__VA_ARGS__)                                                                       \
    {                                                                                              \
        FAIL(LL_E_ARG, "this build has no ONNX files: install libprotobuf-c-dev and "              \
                       "protobuf-c-compiler, and build again");                                    \
    }
ABSENT(ll_onnx_model, ll_arena *, const char *, const char *, const ll_model **)
ABSENT(ll_onnx_weights, ll_arena *, const ll_model *, ll_onnx_weight **, int *)
ABSENT(ll_onnx_look, ll_arena *, const char *, ll_onnx_summary *)
ABSENT(ll_onnx_check, const char *, const char *, ll_arena *, ll_onnx_report *)
ABSENT(ll_onnx_write, ll_onnx_graph *, ll_onnx_input *, void *, const char *)
