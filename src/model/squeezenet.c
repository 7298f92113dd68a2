/* squeezenet: Iandola et al. (2016), version 1.1, as torchvision has it: eight fire blocks, each a
 * 1x1 convolution that narrows and 1x1 and 3x3 ones beside each other that widen, and a 1x1
 * convolution that gives the classes. 1,235,496 parameters at 1000 classes. */
#include "model/parts.h"

static ll_val conv_relu(ll_graph *g, const char *name, ll_val x, int64_t out, int64_t size,
                        int64_t stride, int64_t pad)
{
    const ll_conv opts = {.stride = {stride, stride}, .pad = {pad, pad}};
    return ll_relu(g, ll_conv_layer(g, name, x, out, size, &opts, true));
}

static ll_val fire(ll_graph *g, int number, ll_val x, int64_t narrow, int64_t wide)
{
    char name[16];
    snprintf(name, sizeof name, "fire%d", number);
    ll_graph_block(g);
    ll_graph_push(g, name);
    x = conv_relu(g, "squeeze", x, narrow, 1, 1, 0);
    ll_val y[2] = {conv_relu(g, "expand1", x, wide, 1, 1, 0),
                   conv_relu(g, "expand3", x, wide, 3, 1, 1)};
    ll_graph_pop(g);
    return ll_concat(g, y, 2, 3);
}

static ll_val declare(ll_graph *g, const ll_build *b)
{
    static const int64_t narrow[] = {16, 16, 32, 32, 48, 48, 64, 64};
    const ll_window pool = {.size = {3, 3}, .stride = {2, 2}, .ceil = true};
    ll_val x = image_input(g, b);
    double p = dropout_of(b);
    ll_val h = ll_max_pool(g, conv_relu(g, "conv1", x, 64, 3, 2, 0), &pool);
    for (int i = 0; i < 8; i++) {
        h = fire(g, i + 2, h, narrow[i], 4 * narrow[i]); /* numbered as in the paper */
        if (i == 1 || i == 3) h = ll_max_pool(g, h, &pool);
    }
    ll_graph_block(g);
    h = dropped(g, h, p);
    h = conv_relu(g, "conv10", h, ll_build_size(b, "classes"), 1, 1, 0);
    ll_val logits = ll_reshape(g, ll_adaptive_avg_pool(g, h, 1, 1), LL_SHAPE(b->batch, -1));
    return classified(g, b, logits);
}

static const ll_model squeezenet = {
    .name = "squeezenet",
    .help = "SqueezeNet 1.1: eight fire blocks, as in torchvision",
    .input = "image",
    .sizes = {IMAGE_SIZES(", 25 or more"),
              {"dropout", 500, "dropout before the last convolution, in thousandths"}},
    .declare = declare,
};

const ll_model *const ll_models_squeezenet[] = {&squeezenet, NULL};
