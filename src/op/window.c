/* window.c: rows of images that windows read (op/window.h). No ops of its own. */
#include "op/window.h"

#include "base/num.h"

static int64_t clamp(int64_t x, int64_t lo, int64_t hi)
{
    return ll_max64(lo, ll_min64(x, hi));
}

int64_t ll_axis_out(const ll_axis *a, int64_t image)
{
    return ll_floor_div(image + a->pad[0] + a->pad[1] - ll_axis_span(a), a->stride) + 1;
}

/* Padding after the end that gives just n rows of output. */
static void fit_end(ll_axis *a, int64_t n, int64_t image)
{
    a->pad[1] = (n - 1) * a->stride + ll_axis_span(a) - image - a->pad[0];
}

ll_range ll_axis_image_part(ll_axis *a, ll_range out, int64_t image)
{
    ll_range r = {0, 0};
    if (out.to > out.from) {
        r.from = clamp(out.from * a->stride - a->pad[0], 0, image);
        r.to = clamp((out.to - 1) * a->stride - a->pad[0] + ll_axis_span(a), r.from, image);
    }
    a->pad[0] += r.from - out.from * a->stride;
    fit_end(a, out.to - out.from, r.to - r.from);
    return r;
}

ll_range ll_axis_out_part(ll_axis *a, ll_range image, int64_t n)
{
    ll_range r = {0, 0};
    if (image.to > image.from) {
        int64_t first = image.from + a->pad[0] - ll_axis_span(a) + 1;
        r.from = clamp(-ll_floor_div(-first, a->stride), 0, n);
        r.to = clamp(ll_floor_div(image.to - 1 + a->pad[0], a->stride) + 1, r.from, n);
    }
    a->pad[0] += image.from - r.from * a->stride;
    fit_end(a, r.to - r.from, image.to - image.from);
    return r;
}

int ll_axis_of(const ll_loops *l, int loop)
{
    return l->letter[loop] == 'h' ? 0 : l->letter[loop] == 'w' ? 1 : -1;
}

const ll_op *const ll_ops_window[] = {NULL};
