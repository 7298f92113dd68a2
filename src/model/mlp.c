/* mlp: fully connected layers with relu, on the pixels of an image, or the columns of a table, as
 * one row. */
#include "model/parts.h"

/* Numbers to come near to, in place of classes. */
static ll_val regress(ll_graph *g, const ll_build *b, int64_t outputs, ll_val x)
{
    ll_val value = ll_linear(g, "out", x, outputs, true);
    ll_val y = ll_batch(g, "y", LL_F32, LL_SHAPE(b->batch, outputs));
    ll_val loss = ll_mean(g, ll_mse(g, value, y));
    ll_graph_name(g, value, "value");
    ll_graph_result(g, "loss", loss);
    ll_graph_result(g, "error", ll_mean(g, ll_l1(g, value, y)));
    return loss;
}

static ll_val declare(ll_graph *g, const ll_build *b)
{
    int64_t features = ll_build_size(b, "features"), outputs = ll_build_size(b, "outputs");
    ll_val h = features ? ll_batch(g, "x", LL_F32, LL_SHAPE(b->batch, features))
                        : ll_reshape(g, image_input(g, b), LL_SHAPE(b->batch, -1));
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
    return outputs ? regress(g, b, outputs, h) : classify(g, b, "out", h);
}

static const ll_model mlp = {
    .name = "mlp",
    .help = "fully connected layers with ReLU, on images or columns of numbers",
    .input = "image",
    .sizes = {{"image", 28, "image height and width"},
              {"channels", 1, "image channels"},
              {"width", 256, "size of each hidden layer"},
              {"depth", 2, "number of hidden layers"},
              {"classes", 10, "number of classes (of a CSV: as it has)"},
              {"features", 0, "columns of numbers in place of images; 0 = those of a CSV, if any"},
              {"outputs", 0,
               "numbers to predict by least squares, in place of classes; 0 = classes, or a CSV's "
               "y where it is numbers with fractions or below 0"}},
    .declare = declare,
};

const ll_model *const ll_models_mlp[] = {&mlp, NULL};
