/* lenet5: LeCun, Bottou, Bengio, Haffner (1998), in the form used today: relu and max pooling where
 * the paper has tanh and averages, every map connected. 61,706 parameters on 28x28x1, 10 classes.
 */
#include "model/parts.h"

#include <math.h>

/* Convolution, relu, 2x2 max pooling. Adding a channel's bias and relu change no order among
 * numbers, so they can follow the pooling, where there are a quarter as many. */
static ll_val stage(ll_graph *g, const char *name, ll_val x, int64_t filters, int64_t pad)
{
    int64_t c = ll_graph_shape(g, x).d[3];
    ll_init init = {LL_UNIFORM, 1 / sqrt((double)(5 * 5 * (c ? c : 1)))};
    ll_graph_push(g, name);
    ll_val weight = ll_param(g, "weight", LL_SHAPE(filters, 5, 5, c), init);
    ll_val bias = ll_param(g, "bias", LL_SHAPE(filters), init);
    ll_val h = ll_conv2d(g, x, weight, &(ll_conv){.pad = {pad, pad}});
    h = ll_relu(g, ll_add(g, ll_max_pool(g, h, &(ll_window){.size = {2, 2}}), bias));
    ll_graph_pop(g);
    return h;
}

static ll_val declare(ll_graph *g, const ll_build *b)
{
    ll_val x = image_input(g, b);
    ll_graph_block(g);
    ll_val h = stage(g, "conv1", x, 6, 2);
    ll_graph_block(g);
    h = stage(g, "conv2", h, 16, 0);
    ll_graph_block(g);
    h = ll_reshape(g, h, LL_SHAPE(b->batch, -1));
    h = ll_relu(g, ll_linear(g, "fc1", h, 120, true));
    h = ll_relu(g, ll_linear(g, "fc2", h, 84, true));
    return classify(g, b, "fc3", h);
}

static const ll_model lenet5 = {
    .name = "lenet5",
    .help = "LeNet-5 (1998): two convolutions, three fully connected layers",
    .input = "image",
    .sizes = {{"image", 28, "image height and width"},
              {"channels", 1, "image channels"},
              {"classes", 10, "number of classes"}},
    .declare = declare,
};

const ll_model *const ll_models_lenet5[] = {&lenet5, NULL};
