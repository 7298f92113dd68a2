/* conv2d_tiles.c: images as tiles of outputs, of stride 1. */
#include "kern/cpu/conv2d_int.h"

bool ll_conv_tiled(const ll_conv_shape *v)
{
    return !v->bf16 && !v->f64 && v->groups == 1 && v->a.stride[0] == 1 && v->a.stride[1] == 1 &&
           v->a.dilation[0] == 1 && v->a.dilation[1] == 1;
}

ll_tiles ll_conv_tiles(const ll_conv_shape *v, int64_t m_rows, int64_t m_columns)
{
    ll_conv_image x = {v->h, v->w, v->c, v->h * v->w * v->c, v->c, 1, {0}};
    ll_conv_image y = {v->oh, v->ow, v->f, v->oh * v->ow * v->f, v->f, 1, {0}};
    bool dx = v->d == LL_CONV_DX;
    ll_tiles t = {.in = dx ? y : x, .out = dx ? x : y, .m = {m_rows, m_columns}};
    for (int k = 0; k < 2; k++) {
        int64_t taps = k ? v->s : v->r, pad = v->a.pad[2 * k];
        t.out.shift[k] = -(v->a.at[k] % t.m[k]);
        t.in.shift[k] = t.out.shift[k] - (dx ? taps - 1 - pad : pad);
    }
    t.down = ll_ceil_div(t.out.h - t.out.shift[0], t.m[0]);
    t.across = ll_ceil_div(t.out.w - t.out.shift[1], t.m[1]);
    t.all = t.out.h && t.out.w ? v->n * t.down * t.across : 0;
    return t;
}

ll_corner ll_conv_corner(const ll_tiles *t, const ll_conv_image *g, int64_t tile)
{
    int64_t at = tile % (t->down * t->across);
    return (ll_corner){tile / (t->down * t->across), at / t->across * t->m[0] + g->shift[0],
                       at % t->across * t->m[1] + g->shift[1]};
}
