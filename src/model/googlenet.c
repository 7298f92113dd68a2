/* googlenet: Szegedy et al. (2014), as torchvision has it: batch norm after every convolution, 3x3
 * filters where the paper has 5x5 ones, no auxiliary heads. 6,624,904 parameters at 1000 classes.
 *
 * An inception block is four branches on one input, joined along the channels:
 *     1x1  |  1x1 then 3x3  |  1x1 then 3x3  |  3x3 max pool then 1x1 */
#include "model/parts.h"

typedef struct inception {
    const char *name;
    int64_t one, three_in, three, five_in, five, pool;
} inception;

/* torchvision's has an eps of its own. */
static ll_val batchnorm(ll_graph *g, ll_val x, bool training)
{
    const ll_init zero = {LL_ZEROS, 0}, one = {LL_CONSTANT, 1};
    ll_shape c = LL_SHAPE(ll_graph_shape(g, x).d[3]);
    ll_norm n = {.eps = 1e-3, .momentum = 0.1, .training = training};
    ll_graph_push(g, "bn");
    n.gain = ll_param(g, "weight", c, one), n.bias = ll_param(g, "bias", c, zero);
    n.mean = ll_state(g, "mean", c, zero), n.var = ll_state(g, "var", c, one);
    x = ll_batchnorm(g, x, &n);
    ll_graph_pop(g);
    return x;
}

static ll_val conv_bn(ll_graph *g, const ll_build *b, const char *name, ll_val x, int64_t out,
                      int64_t size, int64_t stride)
{
    const ll_conv opts = {.stride = {stride, stride}, .pad = {size / 2, size / 2}};
    ll_graph_push(g, name);
    x = ll_conv_layer(g, "conv", x, out, size, &opts, false);
    x = ll_relu(g, batchnorm(g, x, b->training));
    ll_graph_pop(g);
    return x;
}

static ll_val branches(ll_graph *g, const ll_build *b, ll_val x, const inception *i)
{
    const ll_window around = {.size = {3, 3}, .stride = {1, 1}, .pad = {1, 1}};
    ll_val y[4];
    ll_graph_block(g);
    ll_graph_push(g, i->name);
    y[0] = conv_bn(g, b, "branch1", x, i->one, 1, 1);
    y[1] = conv_bn(g, b, "branch2a", x, i->three_in, 1, 1);
    y[1] = conv_bn(g, b, "branch2b", y[1], i->three, 3, 1);
    y[2] = conv_bn(g, b, "branch3a", x, i->five_in, 1, 1);
    y[2] = conv_bn(g, b, "branch3b", y[2], i->five, 3, 1);
    y[3] = conv_bn(g, b, "branch4", ll_max_pool(g, x, &around), i->pool, 1, 1);
    x = ll_concat(g, y, 4, 3);
    ll_graph_pop(g);
    return x;
}

static ll_val declare(ll_graph *g, const ll_build *b)
{
    static const inception stage3[] = {
        {"3a", 64, 96, 128, 16, 32, 32}, {"3b", 128, 128, 192, 32, 96, 64}, {0}};
    static const inception stage4[] = {
        {"4a", 192, 96, 208, 16, 48, 64},    {"4b", 160, 112, 224, 24, 64, 64},
        {"4c", 128, 128, 256, 24, 64, 64},   {"4d", 112, 144, 288, 32, 64, 64},
        {"4e", 256, 160, 320, 32, 128, 128}, {0}};
    static const inception stage5[] = {
        {"5a", 256, 160, 320, 32, 128, 128}, {"5b", 384, 192, 384, 48, 128, 128}, {0}};
    const ll_window half3 = {.size = {3, 3}, .stride = {2, 2}, .ceil = true};
    const ll_window half2 = {.size = {2, 2}, .stride = {2, 2}, .ceil = true};
    ll_val x = image_input(g, b);
    double p = dropout_of(b);
    ll_val h = ll_max_pool(g, conv_bn(g, b, "conv1", x, 64, 7, 2), &half3);
    ll_graph_block(g);
    h = conv_bn(g, b, "conv2", h, 64, 1, 1);
    h = ll_max_pool(g, conv_bn(g, b, "conv3", h, 192, 3, 1), &half3);
    for (const inception *i = stage3; i->name; i++) h = branches(g, b, h, i);
    h = ll_max_pool(g, h, &half3);
    for (const inception *i = stage4; i->name; i++) h = branches(g, b, h, i);
    h = ll_max_pool(g, h, &half2);
    for (const inception *i = stage5; i->name; i++) h = branches(g, b, h, i);
    ll_graph_block(g);
    h = ll_reshape(g, ll_adaptive_avg_pool(g, h, 1, 1), LL_SHAPE(b->batch, -1));
    h = dropped(g, h, p);
    return classify(g, b, "fc", h);
}

static const ll_model googlenet = {
    .name = "googlenet",
    .help = "GoogLeNet with batch norm, as in torchvision, without auxiliary heads",
    .input = "image",
    .sizes = {IMAGE_SIZES(", 31 or more"),
              {"dropout", 200, "dropout before the last layer, in thousandths"}},
    .declare = declare,
};

const ll_model *const ll_models_googlenet[] = {&googlenet, NULL};
