/* mobilenetv2: Sandler et al. (2018), as torchvision has it: 17 blocks of a 1x1 convolution that
 * widens, a 3x3 one of each channel by itself and a 1x1 one that narrows, without an activation,
 * added to what came in where shapes are the same. 3,504,872 parameters at 1000 classes. */
#include "model/parts.h"

static ll_val conv_bn(ll_graph *g, const ll_build *b, const char *name, ll_val x, int64_t out,
                      const ll_conv *opts)
{
    bool one = !opts || !opts->pad[0], act = name[0] != 'o';
    ll_graph_push(g, name);
    x = ll_conv_layer(g, "conv", x, out, one ? 1 : 3, opts, false);
    x = ll_batchnorm_layer(g, "bn", x, b->training);
    ll_graph_pop(g);
    return act ? ll_clamp(g, x, 0, 6) : x;
}

static ll_val block(ll_graph *g, const ll_build *b, ll_val x, int64_t widen, int64_t out,
                    int64_t stride)
{
    int64_t in = ll_graph_shape(g, x).d[3];
    const ll_conv each = {.stride = {stride, stride}, .pad = {1, 1}, .groups = widen * in};
    ll_val h = x;
    if (widen > 1) h = conv_bn(g, b, "wide", h, widen * in, NULL);
    h = conv_bn(g, b, "depth", h, widen * in, &each);
    h = conv_bn(g, b, "out", h, out, NULL);
    return stride == 1 && in == out ? ll_add(g, h, x) : h;
}

static ll_val declare(ll_graph *g, const ll_build *b)
{
    static const struct {
        int64_t widen, out, n, stride;
    } stages[] = {{1, 16, 1, 1}, {6, 24, 2, 2},  {6, 32, 3, 2}, {6, 64, 4, 2},
                  {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}};
    ll_val x = image_input(g, b);
    double p = dropout_of(b);
    const ll_conv half = {.stride = {2, 2}, .pad = {1, 1}};
    ll_val h = conv_bn(g, b, "stem", x, 32, &half);
    for (int s = 0, number = 1; s < (int)(sizeof stages / sizeof *stages); s++)
        for (int i = 0; i < stages[s].n; i++) {
            char name[16];
            snprintf(name, sizeof name, "b%d", number++);
            ll_graph_block(g);
            ll_graph_push(g, name);
            h = block(g, b, h, stages[s].widen, stages[s].out, i ? 1 : stages[s].stride);
            ll_graph_pop(g);
        }
    ll_graph_block(g);
    h = conv_bn(g, b, "last", h, 1280, NULL);
    h = ll_reshape(g, ll_adaptive_avg_pool(g, h, 1, 1), LL_SHAPE(b->batch, -1));
    h = dropped(g, h, p);
    return classify(g, b, "fc", h);
}

static const ll_model mobilenetv2 = {
    .name = "mobilenetv2",
    .help = "MobileNetV2: 17 inverted residual blocks, as in torchvision",
    .input = "image",
    .sizes = {IMAGE_SIZES(", 32 or more"),
              {"dropout", 200, "dropout before the last layer, in thousandths"}},
    .declare = declare,
};

const ll_model *const ll_models_mobilenetv2[] = {&mobilenetv2, NULL};
