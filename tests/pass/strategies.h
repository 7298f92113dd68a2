/* strategies.h: small graphs on which what a strategy sends can be written down. */
#pragma once
#include "pass/partition.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static inline void no_error(ll_err rc)
{
    if (rc != LL_OK) fail_msg("%s\n%s", ll_error_text(), ll_error_frames());
}

/* Of all parameters together. */
static inline double gradient_bytes(const ll_graph *g)
{
    double sum = 0;
    for (int i = 1; i < g->n_value; i++)
        if (g->values[i].node < 0 && g->values[i].kind == LL_PARAM)
            sum += 4 * (double)ll_numel(&g->values[i].type.shape);
    return sum;
}

/* In the batch. */
static inline double samples_of(const ll_graph *g)
{
    for (int i = 1; i < g->n_value; i++)
        if (g->values[i].node < 0 && g->values[i].kind == LL_BATCH)
            return (double)g->values[i].type.shape.d[0];
    return 0;
}

enum { BATCH = 12, SEQ = 16, WIDTH = 48, LAYERS = 3, VOCAB = 96 };

static inline ll_graph *gpt_of(int64_t batch, int64_t heads)
{
    const ll_model *m = ll_model_find("gpt");
    const ll_size sizes[] = {{"layers", LAYERS, ""},
                             {"width", WIDTH, ""},
                             {"heads", heads, ""},
                             {"seq", SEQ, ""},
                             {"vocab", VOCAB, ""}};
    ll_build b = {.batch = batch, .training = true};
    memcpy(b.sizes, m->sizes, sizeof b.sizes);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int k = 0; b.sizes[k].name; k++)
            if (!strcmp(b.sizes[k].name, sizes[i].name)) b.sizes[k].value = sizes[i].value;
    ll_graph *g = ll_graph_new("gpt");
    ll_minimize(g, m->declare(g, &b), &(ll_optim){.name = "adamw", .weight_decay = 0.1});
    no_error(ll_graph_check(g));
    return g;
}

static inline ll_graph *gpt(void)
{
    return gpt_of(BATCH, 12);
}

/* What all of p ranks send with its sequence cut. E: bytes of [batch, time, width]. Where every
 * rank can have heads, all-to-alls turn positions into heads and back: qkv there and o back, then
 * do there (qkv and o are still held) and dqkv back: (3 + 1 + 1 + 3) E (p-1)/p a layer. Where heads
 * are too few, and samples too: queries stay cut, keys and values are gathered; then keys stay cut,
 * and queries, do and two numbers a query are gathered, dq scattered: (2 + 3) E (p-1) and a little.
 * Gradients are summed, but those of positions gathered: each is one rank's. */
static inline double sequence_bytes(const ll_graph *g, int64_t batch, int64_t heads, int p)
{
    double places = 4.0 * SEQ * WIDTH, e = places * (double)batch;
    double gathered = (5 + 2.0 * (double)heads / WIDTH) * e * (p - 1);
    double attention = heads >= p ? 8 * e * (p - 1) / p : gathered;
    return LAYERS * attention + (p - 1) * (2 * gradient_bytes(g) - places);
}

static inline ll_graph *mlp(void)
{
    ll_graph *g = ll_graph_new("mlp");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(BATCH, 24));
    ll_val y = ll_batch(g, "y", LL_I32, LL_SHAPE(BATCH));
    ll_val h = ll_relu(g, ll_linear(g, "fc1", x, 36, true));
    h = ll_relu(g, ll_linear(g, "fc2", h, 24, true));
    ll_minimize(g, ll_mean(g, ll_cross_entropy(g, ll_linear(g, "fc3", h, 12, true), y)),
                &(ll_optim){.name = "momentum"});
    no_error(ll_graph_check(g));
    return g;
}

enum { IMAGES = 3, HEIGHT = 12, ROW = 10, C1 = 2, C2 = 4, C3 = 5 };

/* Two convolutions with windows of 3x3. */
static inline ll_graph *convs(void)
{
    ll_graph *g = ll_graph_new("convs");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(IMAGES, HEIGHT, ROW, C1));
    const ll_conv same = {.pad = {1, 1}};
    ll_val h = ll_relu(g, ll_conv_layer(g, "conv1", x, C2, 3, &same, false));
    h = ll_conv_layer(g, "conv2", h, C3, 3, &same, false);
    ll_minimize(g, ll_mean(g, ll_square(g, h)), &(ll_optim){.name = "sgd"});
    no_error(ll_graph_check(g));
    return g;
}

/* What ZeRO 3 sends on p ranks is (p - 1) times this: every gradient is scattered once, every
 * parameter is gathered for the forward pass and again for the backward pass. Once is enough where
 * the backward pass does not read it (biases, position embeddings, the first layer's weights), and
 * for the last layers, whose two uses have fewer bytes than their own between them: of the gpt the
 * last block's last weights, while the table stays from the logits to their gradient; of the mlp
 * all. So it is at most 1.5 times what data parallel training sends. */
static inline double zero3_bytes(const ll_graph *g)
{
    char last[32];
    double sum = 0;
    snprintf(last, sizeof last, "h%d.mlp.proj.weight", LAYERS - 1);
    for (int i = 1; i < g->n_value; i++) {
        const ll_value *v = &g->values[i];
        if (v->node >= 0 || v->kind != LL_PARAM) continue;
        const char *dot = strrchr(v->name, '.');
        bool once = !strcmp(v->name, "wpe") || !strncmp(v->name, "fc", 2) ||
                    !strcmp(v->name, last) || (dot && !strcmp(dot, ".bias"));
        sum += (once ? 2 : 3) * 4.0 * (double)ll_numel(&v->type.shape);
    }
    return sum;
}
