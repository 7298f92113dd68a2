/* parts.h: what several models begin, go on and end with. */
#pragma once
#include "loopline.h"

#include <stdio.h>

/* Sizes of models for ImageNet; note: of what images can be. */
#define IMAGE_SIZES(note)                                                                          \
    {"image", 224, "image height and width" note}, {"channels", 3, "image channels"},              \
    {                                                                                              \
        "classes", 1000, "number of classes"                                                       \
    }
/* In an initializer: the field of that name, as model.NAME of build b has it. */
#define SIZE(name) .name = ll_build_size(b, #name)
/* In a function that says whether sizes make sense: they do only if cond. */
#define WANT(cond, ...)                                                                            \
    do {                                                                                           \
        if (!(cond)) return ll_graph_reject(g, __VA_ARGS__), false;                                \
    } while (0)
/* Images of the model's sizes. */
static inline ll_val image_input(ll_graph *g, const ll_build *b)
{
    int64_t side = ll_build_size(b, "image"), c = ll_build_size(b, "channels");
    return ll_batch(g, "x", LL_F32, LL_SHAPE(b->batch, side, side, c));
}

/* The size "dropout" is in thousandths, of training alone. */
static inline double dropout_of(const ll_build *b)
{
    return b->training ? (double)ll_build_size(b, "dropout") / 1000 : 0;
}

static inline ll_val dropped(ll_graph *g, ll_val x, double p)
{
    return p > 0 ? ll_dropout(g, x, p) : x;
}

/* The loss of logits, a row for each image. */
static inline ll_val classified(ll_graph *g, const ll_build *b, ll_val logits)
{
    ll_graph_name(g, logits, "logits");
    return ll_label_loss(g, b, logits);
}

/* A fully connected last layer, and the loss. */
static inline ll_val classify(ll_graph *g, const ll_build *b, const char *name, ll_val x)
{
    return classified(g, b, ll_linear(g, name, x, ll_build_size(b, "classes"), true));
}

/* The mean over what counts, which are ones; of a batch where nothing does, 0. */
static inline ll_val mean_of(ll_graph *g, const ll_build *b, ll_val each, ll_val counts)
{
    const ll_shape scalar = {};
    ll_val n = ll_sum_all(g, counts), least = ll_fill(g, LL_F32, scalar, 1);
    if (!b->training) ll_graph_result(g, "counted", n);
    return ll_div(g, ll_sum_all(g, ll_mul(g, each, counts)), ll_max(g, n, least));
}

/* Layer i of a transformer, "h3", is a block. */
static inline void begin_layer(ll_graph *g, int64_t i)
{
    char name[32];
    snprintf(name, sizeof name, "h%ld", i);
    ll_graph_block(g);
    ll_graph_push(g, name);
}

/* x times "name.weight", and "name.bias", which has the weight's loops that are in the result. */
static inline ll_val product(ll_graph *g, const char *name, const char *spec, ll_val x,
                             ll_shape weight, ll_shape bias, ll_init init)
{
    const ll_init zeros = {};
    ll_graph_push(g, name);
    ll_val w = ll_param(g, "weight", weight, init);
    x = ll_add(g, ll_matmul(g, spec, x, w), ll_param(g, "bias", bias, zeros));
    ll_graph_pop(g);
    return x;
}
