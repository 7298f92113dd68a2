/* mlp: fully connected layers with relu, on the pixels of an image as one row. */
#include "model/parts.h"

static ll_val declare(ll_graph *g, const ll_build *b)
{
    ll_val x = image_input(g, b);
    ll_val h = ll_reshape(g, x, LL_SHAPE(b->batch, -1));
    int64_t depth = ll_build_size(b, "depth");
    if (depth > 10000) {
        ll_graph_reject(g, "mlp: depth %ld, expected at most 10000", depth);
        return (ll_val){0};
    }
    for (int64_t i = 1; i <= depth; i++) {
        char name[32];
        snprintf(name, sizeof name, "fc%ld", i);
        ll_graph_block(g);
        h = ll_relu(g, ll_linear(g, name, h, ll_build_size(b, "width"), true));
    }
    ll_graph_block(g);
    return classify(g, b, "out", h);
}

static const ll_model mlp = {
    .name = "mlp",
    .help = "fully connected layers with ReLU",
    .input = "image",
    .sizes = {{"image", 28, "image height and width"},
              {"channels", 1, "image channels"},
              {"width", 256, "size of each hidden layer"},
              {"depth", 2, "number of hidden layers"},
              {"classes", 10, "number of classes"}},
    .declare = declare,
};

const ll_model *const ll_models_mlp[] = {&mlp, NULL};
