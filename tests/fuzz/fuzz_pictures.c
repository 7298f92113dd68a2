/* Any bytes as a JPEG or PNG, decoded whole, in part and as a map of classes; what is accepted fits
 * its own sizes and can be brought to any other. */
#include "data/picture.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t out[31 * 23 * 4];
    const ll_sampling how[] = {{.split = LL_VAL},
                               {.seed = size, .scale = {0.02, 0.5}, .jitter = 0.5}};
    for (int i = 0; i < 6; i++) {
        ll_picture_view v = {&how[i % 2], (int64_t)size, 31, 23, i < 2 ? 1 : 3, 1, i > 3};
        LL_OWN_PICTURE p = {0};
        if (ll_picture_parse(data, size, "fuzz", &v, &p) != LL_OK) {
            must(!p.pixels && ll_error_text()[0]);
            continue;
        }
        must(p.height > 0 && p.width > 0 && p.channels >= 1 && p.channels <= 4);
        if (v.map)
            ll_picture_view_map(&v, &p, out);
        else
            must(ll_picture_view_fit(&v, &p, "fuzz", out) == LL_OK);
    }
    return 0;
}
