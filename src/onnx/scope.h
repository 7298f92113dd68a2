/* scope.h: names of values in a graph, and in those around it. */
#pragma once
#include "onnx/walk.h"

struct scope {
    ll_arena *arena;
    scope *up;               /* whose names are seen too; NULL: none */
    const op *caller;        /* of a function's body; NULL: none */
    const Onnx__Function *f; /* the function */
    int64_t version;         /* opset */
    struct binding *table;   /* open addressing */
    int n, size;
};

scope *ll_scope_new(ll_arena *a, scope *up, const op *caller, const Onnx__Function *f);
/* x NULL: a function's input that was left out. LL_E_IO: the name is taken. */
ll_err ll_scope_add(scope *s, const char *name, value *x);
/* LL_E_IO: nothing of that name was made before: not an ordered graph. */
ll_err ll_scope_find(const scope *s, const char *name, value **out);

/* ---- of walk.c, for those who run graphs ---- */
bool ll_onnx_host_of(walk *w, value *x); /* whether its numbers are known */
/* Makes x the graph's result i; and runs it: out[i] that had no numbers have them. */
void ll_onnx_result(op *o, int i, value *x);
ll_err ll_onnx_run(walk *w, const ll_session_opts *o, int n, value *const *out);
