/* lenet5: LeCun, Bottou, Bengio, Haffner (1998), in the form used today: relu and max pooling where
 * the paper has tanh and averages, every map connected. 61,706 parameters on 28x28x1, 10 classes.
 */
#include "loopline.h"

static ll_val declare(ll_graph *g, const ll_build *b)
{
    int64_t side = ll_size_of(b, "image");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(b->batch, side, side, ll_size_of(b, "channels")));
    ll_val y = ll_batch(g, "y", LL_I32, LL_SHAPE(b->batch));
    const ll_window half = {.size = {2, 2}};
    ll_block(g);
    ll_val h = ll_conv_layer(g, "conv1", x, 6, 5, &(ll_conv){.pad = {2, 2}}, true);
    h = ll_max_pool(g, ll_relu(g, h), &half);
    ll_block(g);
    h = ll_conv_layer(g, "conv2", h, 16, 5, &(ll_conv){0}, true);
    h = ll_max_pool(g, ll_relu(g, h), &half);
    ll_block(g);
    h = ll_reshape(g, h, LL_SHAPE(b->batch, -1));
    h = ll_relu(g, ll_linear(g, "fc1", h, 120, true));
    h = ll_relu(g, ll_linear(g, "fc2", h, 84, true));
    ll_val logits = ll_linear(g, "fc3", h, ll_size_of(b, "classes"), true);
    ll_val loss = ll_mean(g, ll_cross_entropy(g, logits, y));
    ll_result(g, "loss", loss);
    ll_result(g, "correct", ll_sum_all(g, ll_correct(g, logits, y)));
    return loss;
}

static const ll_model lenet5 = {
    .name = "lenet5",
    .help = "LeNet-5 (1998): two convolutions, three fully connected layers",
    .input = "image",
    .sizes = {{"image", 28, "height and width of the image"},
              {"channels", 1, "channels of the image"},
              {"classes", 10, "classes"}},
    .declare = declare,
};

const ll_model *const ll_models_lenet5[] = {&lenet5, NULL};
