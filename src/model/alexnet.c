/* alexnet: Krizhevsky's one-column form ("One weird trick", 2014), as torchvision has it: five
 * convolutions, an average over a 6x6 grid, three fully connected layers with dropout.
 * 61,100,840 parameters at 1000 classes. */
#include "model/parts.h"

static ll_val conv_relu(ll_graph *g, const char *name, ll_val x, int64_t out, int64_t size,
                        int64_t stride, int64_t pad)
{
    const ll_conv opts = {.stride = {stride, stride}, .pad = {pad, pad}};
    ll_graph_block(g);
    return ll_relu(g, ll_conv_layer(g, name, x, out, size, &opts, true));
}

static ll_val declare(ll_graph *g, const ll_build *b)
{
    ll_val x = image_input(g, b);
    const ll_window pool = {.size = {3, 3}, .stride = {2, 2}};
    double p = dropout_of(b);
    ll_val h = ll_max_pool(g, conv_relu(g, "conv1", x, 64, 11, 4, 2), &pool);
    h = ll_max_pool(g, conv_relu(g, "conv2", h, 192, 5, 1, 2), &pool);
    h = conv_relu(g, "conv3", h, 384, 3, 1, 1);
    h = conv_relu(g, "conv4", h, 256, 3, 1, 1);
    h = ll_max_pool(g, conv_relu(g, "conv5", h, 256, 3, 1, 1), &pool);
    ll_graph_block(g);
    h = ll_reshape(g, ll_adaptive_avg_pool(g, h, 6, 6), LL_SHAPE(b->batch, -1));
    h = dropped(g, h, p);
    h = ll_relu(g, ll_linear(g, "fc1", h, 4096, true));
    ll_graph_block(g);
    h = dropped(g, h, p);
    h = ll_relu(g, ll_linear(g, "fc2", h, 4096, true));
    return classify(g, b, "fc3", h);
}

static const ll_model alexnet = {
    .name = "alexnet",
    .help = "AlexNet, as in torchvision",
    .input = "image",
    .sizes = {IMAGE_SIZES(", 63 or more"),
              {"dropout", 500, "dropout before the fully connected layers, in thousandths"}},
    .declare = declare,
};

const ll_model *const ll_models_alexnet[] = {&alexnet, NULL};
