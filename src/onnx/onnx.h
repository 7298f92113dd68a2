/* onnx.h: networks of ONNX files as graphs of Loopline's, and graphs as such files.
 *
 * read.c reads a file strictly; walk.c walks its nodes and declares each with the builders of
 * loopline.h, a row of a table for each of ONNX's ops (ops_*.c); check.c runs ONNX's own tests;
 * model.c makes a network one that can be trained; write.c writes one, by a table of ours
 * (write_ops.c). */
#pragma once
#include "base/arena.h"

typedef struct ll_onnx ll_onnx;

/* In an arena, which it dies with. LL_E_IO: it is no such file, damaged, or of another opset.
 * folder: where tensors lie that are not in the file itself; NULL: such tensors are refused. */
ll_err ll_onnx_load(ll_arena *a, const char *path, ll_onnx **out);
ll_err ll_onnx_parse(ll_arena *a, const uint8_t *data, size_t size, const char *name,
                     const char *folder, ll_onnx **out);

/* ---- networks to train ---- */
/* The file as a model (loopline.h) with its loss: cross_entropy, mse or l1, of its first output and
 * batch data "y"; "": none, for a look at it. It lives in the arena. */
ll_err ll_onnx_model(ll_arena *a, const char *path, const char *loss, const ll_model **out);
/* Its parameters and statistics, f32, by the names and in the order of dimensions that the model's
 * graph has them. */
typedef struct ll_onnx_weight {
    const char *name;
    ll_shape shape;
    void *data;
} ll_onnx_weight;
ll_err ll_onnx_weights(ll_arena *a, const ll_model *m, ll_onnx_weight **out, int *count);

/* ---- networks written ---- */
/* The graph for so many samples, with one result, which the caller owns; and the content of an
 * input that stays, by name. */
typedef ll_err ll_onnx_graph(void *user, int64_t batch, ll_graph **out);
typedef ll_err ll_onnx_input(void *user, const char *name, void *data, size_t bytes);
/* Writes it as opset 17, for any number of samples; inputs, result and weights have their names.
 * LL_E_ARG: an op, which is named, has no ONNX form; nothing is written. */
ll_err ll_onnx_write(ll_onnx_graph *graph, ll_onnx_input *input, void *user, const char *path);

/* What is in a file. */
typedef struct ll_onnx_named {
    const char *name, *type, *shape; /* shape: "[N,3,224,224]" */
    int count;                       /* of an op: nodes */
} ll_onnx_named;
typedef struct ll_onnx_summary {
    ll_onnx_named *inputs, *outputs;
    ll_onnx_named *missing; /* ops that cannot be computed */
    int n_input, n_output, n_missing, nodes;
    const char **outside; /* other files that weights lie in, in the model's folder */
    int n_outside;
} ll_onnx_summary;
ll_err ll_onnx_look(ll_arena *a, const char *path, ll_onnx_summary *out);

/* ---- ONNX's tests: folders with model.onnx and test_data_set_N/{input,output}_I.pb ---- */
typedef enum ll_onnx_status {
    LL_ONNX_PASSED,
    LL_ONNX_NOT_SUPPORTED,
    LL_ONNX_FAILED
} ll_onnx_status;
typedef struct ll_onnx_test {
    const char *name;
    ll_onnx_status status;
    const char *reason; /* why it did not pass; "" */
    double max_error;   /* the largest difference from what was wanted; NaN: no number was made */
} ll_onnx_test;
typedef struct ll_onnx_report {
    int count[3]; /* by status */
    int n;
    ll_onnx_test *tests;
} ll_onnx_report;
/* Runs the test in folder, or all in the folders in it, each in a process of its own. The report
 * lives in the arena. LL_E_IO: there is no test in folder. */
ll_err ll_onnx_check(const char *folder, const char *machine, ll_arena *arena, ll_onnx_report *out);
