/* vgg16: Simonyan and Zisserman (2014), configuration D, as torchvision has it without batch norm:
 * thirteen 3x3 convolutions in five stages, an average over a 7x7 grid, three fully connected
 * layers with dropout. 138,357,544 parameters at 1000 classes. */
#include "model/parts.h"

static ll_val declare(ll_graph *g, const ll_build *b)
{
    static const struct {
        int64_t filters, n;
    } stages[] = {{64, 2}, {128, 2}, {256, 3}, {512, 3}, {512, 3}};
    ll_val h = image_input(g, b);
    double p = dropout_of(b);
    const ll_conv around = {.pad = {1, 1}};
    for (int s = 0, number = 1; s < 5; s++) {
        for (int i = 0; i < stages[s].n; i++) {
            char name[16];
            snprintf(name, sizeof name, "conv%d", number++);
            ll_graph_block(g);
            h = ll_relu(g, ll_conv_layer(g, name, h, stages[s].filters, 3, &around, true));
        }
        h = ll_max_pool(g, h, &(ll_window){.size = {2, 2}});
    }
    ll_graph_block(g);
    h = ll_reshape(g, ll_adaptive_avg_pool(g, h, 7, 7), LL_SHAPE(b->batch, -1));
    h = ll_relu(g, ll_linear(g, "fc1", h, 4096, true));
    h = dropped(g, h, p);
    ll_graph_block(g);
    h = ll_relu(g, ll_linear(g, "fc2", h, 4096, true));
    h = dropped(g, h, p);
    return classify(g, b, "fc3", h);
}

static const ll_model vgg16 = {
    .name = "vgg16",
    .help = "VGG-16: thirteen 3x3 convolutions, as in torchvision",
    .input = "image",
    .sizes = {IMAGE_SIZES(", 32 or more"),
              {"dropout", 500, "dropout after the fully connected layers, in thousandths"}},
    .declare = declare,
};

const ll_model *const ll_models_vgg[] = {&vgg16, NULL};
