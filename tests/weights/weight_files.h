/* weight_files.h: files of weights, as others write them, and a small model to read them. */
#pragma once
#include "base/arena.h"
#include "base/rng.h"
#include "exec/session.h"
#include "weights/safetensors.h"
#include "weights/state.h"
#include "weights/weights_load.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static inline void no_error(ll_err rc)
{
    if (rc != LL_OK) fail_msg("%s\n%s", ll_error_text(), ll_error_frames());
}

/* Convolution, batch norm, linear; with an optimizer where asked for. */
static inline ll_graph *small_model(bool training, int64_t classes)
{
    ll_graph *g = ll_graph_new("small");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(4, 6, 6, 3));
    ll_val y = ll_batch(g, "y", LL_I32, LL_SHAPE(4));
    ll_val h = ll_conv_layer(g, "conv", x, 8, 3, &(ll_conv){0}, true); /* [4,4,4,8] */
    h = ll_relu(g, ll_batchnorm_layer(g, "bn", h, training));
    h = ll_linear(g, "fc", ll_reshape(g, h, LL_SHAPE(4, -1)), classes, true);
    ll_val loss = ll_mean(g, ll_cross_entropy(g, h, y));
    ll_graph_result(g, "loss", loss);
    if (training) ll_minimize(g, loss, &(ll_optim){.name = "adamw"});
    return g;
}

/* What element i of a tensor of this name is in the tests' files: every type holds it. */
static inline double element(const char *name, int64_t i)
{
    uint64_t salt = 0;
    for (; *name; name++) salt = salt * 31 + (unsigned char)*name;
    return ((double)ll_below_at(5, salt, (uint64_t)i, 200) - 100) / 64;
}

typedef struct named {
    const char *name;
    ll_dtype dtype;
    ll_shape shape;
} named;

/* A safetensors file of these, without any metadata but the checksum. */
static inline void write_tensors(const char *path, const named *all, int n)
{
    ll_arena *a = ll_arena_new();
    ll_st_tensor *t = LL_NEW_ARRAY(a, ll_st_tensor, n);
    for (int i = 0; i < n; i++) {
        int64_t numel = ll_numel(&all[i].shape);
        t[i] = (ll_st_tensor){all[i].name, all[i].dtype, all[i].shape,
                              ll_arena_alloc(a, (size_t)numel * 8 + 8)};
        for (int64_t k = 0; k < numel; k++)
            ll_store(t[i].data, t[i].dtype, k, element(all[i].name, k));
    }
    no_error(ll_st_write(path, &(ll_st_content){.tensors = t, .n = n}));
    ll_arena_free(a);
}

/* The whole of an f32 input of a session. */
static inline float *values_of(ll_session *s, const char *name, int64_t *n)
{
    ll_shape shape = ll_graph_shape(s->g, ll_find(s->g, name));
    *n = ll_numel(&shape);
    float *v = (float *)calloc((size_t)*n + 1, sizeof *v);
    no_error(ll_session_get(s, name, v, (size_t)*n * sizeof *v));
    return v;
}

/* Is this tensor the file's of that name, element by element? */
static inline void assert_holds(ll_session *s, const char *name, const char *theirs)
{
    int64_t n;
    float *v = values_of(s, name, &n);
    for (int64_t i = 0; i < n; i++)
        if ((double)v[i] != element(theirs, i))
            fail_msg("%s: element %lld is %g, want %g", name, (long long)i, (double)v[i],
                     element(theirs, i));
    free(v);
}
