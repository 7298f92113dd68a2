/* unet.c: a U-Net that finds shapes in pictures: for every pixel, is it background, disc or square?
 *
 *     cc -O2 unet.c $(pkg-config --cflags --libs loopline) -o unet */
#include <loopline.h>
#include <stdio.h>

/* Two 3 x 3 convolutions, each with batch norm and relu. */
static ll_val block(ll_graph *g, const ll_build *b, const char *name, ll_val x, int64_t width)
{
    static const char *const convs[] = {"conv1", "conv2"}, *const norms[] = {"norm1", "norm2"};
    ll_graph_push(g, name);
    for (int i = 0; i < 2; i++) {
        x = ll_conv_layer(g, convs[i], x, width, 3, &(ll_conv){.pad = {1, 1}}, false);
        x = ll_relu(g, ll_batchnorm_layer(g, norms[i], x, b->training));
    }
    ll_graph_pop(g);
    return x;
}

static ll_val declare(ll_graph *g, const ll_build *b)
{
    int64_t side = ll_build_size(b, "image"), width = ll_build_size(b, "width");
    int depth = (int)ll_build_size(b, "depth");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(b->batch, side, side, 3)), down[8];
    ll_val mask = ll_batch(g, "mask", LL_I32, LL_SHAPE(b->batch, side, side));
    char name[16];
    if (depth > 7 || side % (1 << depth))
        ll_graph_reject(g, "image %d is not a multiple of %d", (int)side, 1 << depth);
    for (int i = 0; i < depth; i++) { /* down: what is seen grows, places blur */
        snprintf(name, sizeof name, "down%d", i);
        down[i] = block(g, b, name, x, width << i);
        x = ll_max_pool(g, down[i], &(ll_window){.size = {2, 2}});
    }
    x = block(g, b, "bottom", x, width << depth);
    for (int i = depth - 1; i >= 0; i--) { /* up: places come back from the way down */
        int64_t rows = side >> i;
        x = ll_resize_image(g, x, &(ll_resize){.size = {rows, rows}});
        snprintf(name, sizeof name, "up%d", i);
        x = block(g, b, name, ll_concat(g, (ll_val[]){x, down[i]}, 2, 3), width << i);
    }
    ll_val logits = ll_conv_layer(g, "head", x, ll_build_size(b, "classes"), 1, NULL, true);
    ll_graph_name(g, logits, "logits");
    ll_graph_result(g, "pixels_right", ll_mean(g, ll_correct(g, logits, mask)));
    return ll_mean(g, ll_cross_entropy(g, logits, mask));
}

static const ll_model unet = {.name = "unet",
                              .help = "what each pixel of a picture belongs to",
                              .sizes = {{"image", 32, "height and width"},
                                        {"width", 8, "channels of the first block"},
                                        {"depth", 2, "how often images are halved"},
                                        {"classes", 3, "of pixels"}},
                              .declare = declare};

int main(int argc, char **argv)
{
    return ll_main(argc, argv, &unet);
}
