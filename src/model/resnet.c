/* resnet: He, Zhang, Ren, Sun (2015), as torchvision has it (the stride of a bottleneck is on its
 * 3x3 convolution). Images of 64 or more get the 7x7 stem with stride 2 and max pooling; smaller
 * ones, such as CIFAR's, a 3x3 stem and no pooling.
 *
 *     224x224, 1000 classes: 18: 11,689,512   34: 21,797,672   50: 25,557,032 parameters
 *     32x32, 10 classes:     18: 11,173,962 */
#include "model/parts.h"

enum { STAGES = 4, SMALL_IMAGE = 64 };

/* One residual block: x and f(x) added, x through a 1x1 convolution where shapes change. */
typedef struct block {
    int64_t width, stride;
    bool bottleneck;
} block;

static ll_val conv_bn(ll_graph *g, const ll_build *b, const char *number, ll_val x, int64_t out,
                      int64_t size, int64_t stride)
{
    const ll_conv opts = {.stride = {stride, stride}, .pad = {size / 2, size / 2}};
    char name[16];
    snprintf(name, sizeof name, "conv%s", number);
    x = ll_conv_layer(g, name, x, out, size, &opts, false);
    snprintf(name, sizeof name, "bn%s", number);
    return ll_batchnorm_layer(g, name, x, b->training);
}

static ll_val residual(ll_graph *g, const ll_build *b, ll_val x, const block *k)
{
    int64_t out = k->bottleneck ? 4 * k->width : k->width;
    ll_val h = x;
    if (k->bottleneck) {
        h = ll_relu(g, conv_bn(g, b, "1", h, k->width, 1, 1));
        h = ll_relu(g, conv_bn(g, b, "2", h, k->width, 3, k->stride));
        h = conv_bn(g, b, "3", h, out, 1, 1);
    } else {
        h = ll_relu(g, conv_bn(g, b, "1", h, out, 3, k->stride));
        h = conv_bn(g, b, "2", h, out, 3, 1);
    }
    if (k->stride != 1 || ll_graph_shape(g, x).d[3] != out) {
        ll_graph_push(g, "downsample");
        x = conv_bn(g, b, "", x, out, 1, k->stride);
        ll_graph_pop(g);
    }
    return ll_relu(g, ll_add(g, h, x));
}

static ll_val stem(ll_graph *g, const ll_build *b, ll_val x)
{
    const ll_window pool = {.size = {3, 3}, .stride = {2, 2}, .pad = {1, 1}};
    int64_t width = ll_build_size(b, "width");
    ll_graph_block(g);
    if (ll_build_size(b, "image") < SMALL_IMAGE)
        return ll_relu(g, conv_bn(g, b, "1", x, width, 3, 1));
    return ll_max_pool(g, ll_relu(g, conv_bn(g, b, "1", x, width, 7, 2)), &pool);
}

static ll_val resnet(ll_graph *g, const ll_build *b, const int depth[STAGES], bool bottleneck)
{
    ll_val x = image_input(g, b);
    ll_val h = stem(g, b, x);
    for (int s = 0; s < STAGES; s++)
        for (int i = 0; i < depth[s]; i++) {
            const block k = {ll_build_size(b, "width") << s, s > 0 && i == 0 ? 2 : 1, bottleneck};
            char stage[16], number[16];
            snprintf(stage, sizeof stage, "layer%d", s + 1);
            snprintf(number, sizeof number, "%d", i);
            ll_graph_block(g);
            ll_graph_push(g, stage);
            ll_graph_push(g, number);
            h = residual(g, b, h, &k);
            ll_graph_pop(g);
            ll_graph_pop(g);
        }
    ll_graph_block(g);
    h = ll_reshape(g, ll_adaptive_avg_pool(g, h, 1, 1), LL_SHAPE(b->batch, -1));
    return classify(g, b, "fc", h);
}

#define RESNET(layers, bottleneck, what, ...)                                                      \
    static ll_val declare##layers(ll_graph *g, const ll_build *b)                                  \
    {                                                                                              \
        return resnet(g, b, (const int[]){__VA_ARGS__}, bottleneck);                               \
    }                                                                                              \
    static const ll_model resnet##layers = {                                                       \
        .name = "resnet" #layers,                                                                  \
        .help = "ResNet-" #layers ": " what,                                                       \
        .input = "image",                                                                          \
        .sizes = {IMAGE_SIZES("; below 64, the stem is 3x3 without pooling"),                      \
                  {"width", 64, "channels of the first stage; doubled in each further stage"}},    \
        .declare = declare##layers,                                                                \
    };
RESNET(18, false, "8 residual blocks of two 3x3 convolutions", 2, 2, 2, 2)
RESNET(34, false, "16 residual blocks of two 3x3 convolutions", 3, 4, 6, 3)
RESNET(50, true, "16 bottleneck blocks of 1x1, 3x3, 1x1", 3, 4, 6, 3)

const ll_model *const ll_models_resnet[] = {&resnet18, &resnet34, &resnet50, NULL};
