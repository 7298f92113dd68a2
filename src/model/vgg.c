/* vgg16: Simonyan and Zisserman (2014), configuration D, as torchvision has it without batch norm:
 * thirteen 3x3 convolutions in five stages, an average over a 7x7 grid, three fully connected
 * layers with dropout. 138,357,544 parameters at 1000 classes. */
#include "loopline.h"

#include <stdio.h>

static ll_val declare(ll_graph *g, const ll_build *b)
{
    static const struct {
        int64_t filters, n;
    } stages[] = {{64, 2}, {128, 2}, {256, 3}, {512, 3}, {512, 3}};
    int64_t side = ll_build_size(b, "image");
    ll_val h =
        ll_batch(g, "x", LL_F32, LL_SHAPE(b->batch, side, side, ll_build_size(b, "channels")));
    double p = b->training ? (double)ll_build_size(b, "dropout") / 1000 : 0;
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
    if (p > 0) h = ll_dropout(g, h, p);
    ll_graph_block(g);
    h = ll_relu(g, ll_linear(g, "fc2", h, 4096, true));
    if (p > 0) h = ll_dropout(g, h, p);
    ll_val logits = ll_linear(g, "fc3", h, ll_build_size(b, "classes"), true);
    ll_graph_name(g, logits, "logits");
    return ll_label_loss(g, b, logits);
}

static const ll_model vgg16 = {
    .name = "vgg16",
    .help = "VGG-16: thirteen 3x3 convolutions, torchvision's form",
    .input = "image",
    .sizes = {{"image", 224, "height and width of the image, 32 or more"},
              {"channels", 3, "channels of the image"},
              {"classes", 1000, "classes"},
              {"dropout", 500, "dropout after the fully connected layers, in thousandths"}},
    .declare = declare,
};

const ll_model *const ll_models_vgg[] = {&vgg16, NULL};
