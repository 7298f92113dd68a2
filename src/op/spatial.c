/* spatial.c: convolutions and pooling of one and three spatial dimensions, made of those of two;
 * layers; pixels moved between space and channels. No op is declared here. n and c stay dimensions
 * of their own all the way, so that a batch, or channels, can be cut.
 *
 * [n,l,c] is an image of one row. Of [n,d,h,w,c], conv3d is a sum over the filter's depth: for each
 * place q of it the layers that meet q are stacked, [n, d'*h, w, c], and convolved as one image. h
 * is padded to a multiple of the stride, so that every layer begins where an output does; outputs
 * that reach into the next layer are more than h' and dropped. */
#include "op/op_int.h"

#include "base/num.h"

/* Of one row: what belongs to the only spatial dimension is the width's. */
static void to_width(int64_t v[3], int64_t height)
{
    v[1] = v[0], v[0] = height;
}

static ll_val one_row(ll_graph *g, ll_val x) /* [a,l,b] -> [a,1,l,b] */
{
    ll_shape s = ll_graph_shape(g, x);
    return x.id ? ll_reshape(g, x, LL_SHAPE(s.d[0], 1, s.d[1], s.d[2])) : x;
}

static ll_val no_row(ll_graph *g, ll_val x) /* [a,1,l,b] -> [a,l,b] */
{
    ll_shape s = ll_graph_shape(g, x);
    return x.id ? ll_reshape(g, x, LL_SHAPE(s.d[0], s.d[2], s.d[3])) : x;
}

/* x and filter are of n dimensions each and opts says nothing of more than n - 2; else rejected. */
static bool fits(ll_graph *g, const char *op, ll_val x, ll_val filter, const ll_conv *o, int n,
                 const char *want)
{
    ll_shape s = ll_graph_shape(g, x), f = ll_graph_shape(g, filter);
    char a[LL_SHAPE_TEXT], b[LL_SHAPE_TEXT];
    if (!x.id || !filter.id || s.n != n || f.n != n) {
        ll_reject(g, LL_E_SHAPE, "%s%s of %s and %s, expected %s", ll_scope(g), op,
                  x.id ? ll_shape_print(&s, a) : "none", filter.id ? ll_shape_print(&f, b) : "none",
                  want);
        return false;
    }
    for (int k = n - 2; o && k < 3; k++)
        if (o->stride[k] || o->pad[k] || o->dilation[k] || o->pad_more[k])
            ll_reject(g, LL_E_ARG, "%s%s: the window has more than %d dimensions", ll_scope(g), op,
                      n - 2);
    return !ll_rejected(g);
}

static ll_conv row_of(const ll_conv *opts)
{
    ll_conv o = opts ? *opts : (ll_conv){0};
    to_width(o.stride, 1), to_width(o.pad, 0), to_width(o.dilation, 1), to_width(o.pad_more, 0);
    return o;
}

ll_val ll_conv1d(ll_graph *g, ll_val x, ll_val filter, const ll_conv *opts)
{
    if (!fits(g, "conv1d", x, filter, opts, 3, "[n,l,c] and [f,r,c]")) return (ll_val){0};
    ll_conv o = row_of(opts);
    return no_row(g, ll_conv2d(g, one_row(g, x), one_row(g, filter), &o));
}

/* ---- conv3d ---- */

/* One dimension of a window: its padding before and after, taps * dilation, outputs. */
typedef struct extent {
    int64_t stride, dilation, before, after, span, out;
} extent;

static extent extent_of(const ll_conv *o, int k, int64_t image, int64_t taps)
{
    extent e = {.before = o->pad[k], .after = o->pad[k] + o->pad_more[k]};
    e.stride = o->stride[k] ? o->stride[k] : 1, e.dilation = o->dilation[k] ? o->dilation[k] : 1;
    int64_t all = image + e.before + e.after;
    e.span = (taps - 1) * e.dilation + 1;
    bool good = e.stride > 0 && e.dilation > 0 && taps > 0 && e.before >= 0 && e.after >= 0;
    e.out = good && all >= e.span ? (all - e.span) / e.stride + 1 : 0;
    return e;
}

static ll_val pad_some(ll_graph *g, ll_val x, int dim, int64_t before, int64_t after)
{
    if (after < 0) { /* rows that no output reads */
        ll_shape s = ll_graph_shape(g, x);
        x = ll_slice(g, x, dim, 0, s.d[dim] + after);
        after = 0;
    }
    return before || after ? ll_pad(g, x, dim, before, after) : x;
}

/* Layers q, q + stride, ... of x, n of them, one below the other: [n, out*h, w, c] */
static ll_val stacked(ll_graph *g, ll_val x, int64_t q, int64_t stride, int64_t out)
{
    x = ll_slice(g, x, 1, q, q + out * stride);
    ll_shape s = ll_graph_shape(g, x);
    if (!x.id) return x;
    if (stride > 1)
        x = ll_slice(g, ll_reshape(g, x, LL_SHAPE(s.d[0], out, stride, s.d[2], s.d[3], s.d[4])), 2,
                     0, 1);
    return ll_reshape(g, x, LL_SHAPE(s.d[0], out * s.d[2], s.d[3], s.d[4]));
}

ll_val ll_conv3d(ll_graph *g, ll_val x, ll_val filter, const ll_conv *opts)
{
    static const ll_conv plain;
    const ll_conv *o = opts ? opts : &plain;
    if (!fits(g, "conv3d", x, filter, opts, 5, "[n,d,h,w,c] and [f,q,r,s,c]")) return (ll_val){0};
    ll_shape s = ll_graph_shape(g, x), f = ll_graph_shape(g, filter);
    extent d = extent_of(o, 0, s.d[1], f.d[1]), h = extent_of(o, 1, s.d[2], f.d[2]);
    if (d.out < 1 || h.out < 1 || extent_of(o, 2, s.d[3], f.d[3]).out < 1) {
        char a[LL_SHAPE_TEXT], b[LL_SHAPE_TEXT];
        return ll_reject(g, LL_E_SHAPE,
                         "%sconv3d: filters %s do not fit in %s with this padding and stride",
                         ll_scope(g), ll_shape_print(&f, b), ll_shape_print(&s, a));
    }
    /* every tap finds out * stride layers; rows are whole strides, with all that an output reads */
    int64_t layers = (f.d[1] - 1) * d.dilation + d.out * d.stride;
    int64_t rows = (h.out - 1) * h.stride + h.span;
    rows = ll_round_up(rows, h.stride);
    x = pad_some(g, x, 1, d.before, layers - s.d[1] - d.before);
    x = pad_some(g, x, 2, h.before, rows - s.d[2] - h.before);
    ll_conv flat = {.stride = {h.stride, o->stride[2]},
                    .dilation = {h.dilation, o->dilation[2]},
                    .pad = {0, o->pad[2]},
                    .groups = o->groups,
                    .pad_more = {h.span > h.stride ? h.span - h.stride : 0, o->pad_more[2]}};
    ll_val y = {0};
    for (int64_t q = 0; q < f.d[1] && !ll_rejected(g); q++) {
        ll_val tap = ll_reshape(g, ll_slice(g, filter, 1, q, q + 1),
                                LL_SHAPE(f.d[0], f.d[2], f.d[3], f.d[4]));
        ll_val part = ll_conv2d(g, stacked(g, x, q * d.dilation, d.stride, d.out), tap, &flat);
        y = y.id ? ll_add(g, y, part) : part;
    }
    if (!y.id) return y;
    ll_shape t = ll_graph_shape(g, y);
    y = ll_reshape(g, y, LL_SHAPE(t.d[0], d.out, rows / h.stride, t.d[2], t.d[3]));
    return ll_slice(g, y, 2, 0, h.out);
}

/* The transpose: a tap of the filter's depth at a time, of all layers one below the other, with
 * rows of zeros between them for what reaches beyond a layer; layers then stride apart, added up.
 */
static ll_val transpose3d(ll_graph *g, ll_val x, ll_val filter, const ll_conv *opts,
                          const int64_t *out_pad)
{
    static const ll_conv plain;
    static const int64_t none[3];
    const ll_conv *o = opts ? opts : &plain;
    const int64_t *more = out_pad ? out_pad : none;
    if (!fits(g, "conv_transpose", x, filter, opts, 5, "[n,d,h,w,c] and [c,q,r,s,f]"))
        return (ll_val){0};
    ll_shape s = ll_graph_shape(g, x), f = ll_graph_shape(g, filter);
    extent e[2] = {extent_of(o, 0, 0, f.d[1]), extent_of(o, 1, 0, f.d[2])};
    int64_t all[2], size[2];
    for (int k = 0; k < 2; k++) {
        int64_t most = e[k].stride > e[k].dilation ? e[k].stride : e[k].dilation;
        all[k] = (s.d[1 + k] - 1) * e[k].stride + e[k].span;
        size[k] = all[k] - e[k].before - e[k].after + more[k];
        if (e[k].stride < 1 || e[k].dilation < 1 || more[k] < 0 || more[k] >= most ||
            s.d[1 + k] < 1 || e[k].before < 0 || e[k].after < 0 || size[k] < 1)
            return ll_reject(
                g, LL_E_SHAPE,
                "%sconv_transpose: %ld from %ld, output padding %ld; expected at least 1 of each, "
                "and the output padding less than the stride or dilation",
                ll_scope(g), size[k], s.d[1 + k], more[k]);
        if (all[k] < e[k].before + size[k]) all[k] = e[k].before + size[k];
    }
    int64_t d = s.d[1], st = e[0].stride, rows = ll_ceil_div(all[1], e[1].stride);
    const ll_conv flat = {.stride = {e[1].stride, o->stride[2]},
                          .dilation = {e[1].dilation, o->dilation[2]},
                          .pad = {0, o->pad[2]},
                          .groups = o->groups,
                          .pad_more = {0, o->pad_more[2]}};
    x = pad_some(g, x, 2, 0, rows - s.d[2]);
    x = ll_reshape(g, x, LL_SHAPE(s.d[0], d * rows, s.d[3], s.d[4]));
    ll_val y = {0};
    for (int64_t q = 0; q < f.d[1] && !ll_rejected(g); q++) {
        ll_val tap = ll_reshape(g, ll_slice(g, filter, 1, q, q + 1),
                                LL_SHAPE(f.d[0], f.d[2], f.d[3], f.d[4]));
        ll_val part = ll_conv2d_transpose(g, x, tap, &flat, (const int64_t[]){0, more[2]});
        if (!part.id) return part;
        ll_shape t = ll_graph_shape(g, part);
        part = pad_some(g, part, 1, 0, d * rows * e[1].stride - t.d[1]);
        part = ll_reshape(g, part, LL_SHAPE(t.d[0], d, 1, rows * e[1].stride, t.d[2], t.d[3]));
        part = ll_slice(g, part, 3, e[1].before, e[1].before + size[1]);
        part = ll_reshape(g, pad_some(g, part, 2, 0, st - 1),
                          LL_SHAPE(t.d[0], d * st, size[1], t.d[2], t.d[3]));
        part = pad_some(g, part, 1, q * e[0].dilation, all[0] - d * st - q * e[0].dilation);
        y = y.id ? ll_add(g, y, part) : part;
    }
    return ll_slice(g, y, 1, e[0].before, e[0].before + size[0]);
}

ll_val ll_conv_transpose(ll_graph *g, ll_val x, ll_val filter, const ll_conv *opts,
                         const int64_t *out_pad)
{
    if (x.id && ll_graph_shape(g, x).n == 5) return transpose3d(g, x, filter, opts, out_pad);
    if (!x.id || ll_graph_shape(g, x).n != 3)
        return ll_conv2d_transpose(g, x, filter, opts, out_pad);
    if (!fits(g, "conv_transpose", x, filter, opts, 3, "[n,l,c] and [c,r,f]")) return (ll_val){0};
    ll_conv o = row_of(opts);
    int64_t more[2] = {0, out_pad ? out_pad[0] : 0};
    return no_row(g, ll_conv2d_transpose(g, one_row(g, x), one_row(g, filter), &o, more));
}

/* ---- pooling ---- */

/* Windows whose places are apart, along one dimension: what stands at each place, together. */
static ll_val apart(ll_graph *g, ll_val x, int dim, const ll_window *w, bool max)
{
    int k = dim - 1;
    int64_t taps = w->size[k], stride = w->stride[k] ? w->stride[k] : taps;
    int64_t by = w->dilation[k] ? w->dilation[k] : 1, before = w->pad[k];
    int64_t after = before + w->pad_more[k], span = (taps - 1) * by + 1;
    ll_shape s = ll_graph_shape(g, x), edge = s;
    int64_t image = s.d[dim], over = image + before + after - span;
    bool good = taps > 0 && stride > 0 && by > 0 && before >= 0 && after >= 0 && before < span &&
                after < span && over >= 0;
    if (!x.id || !good)
        return ll_reject(g, LL_E_SHAPE,
                         "%spool: a window of %ld, %ld apart, stride %ld, padding %ld and "
                         "%ld, on an image of %ld",
                         ll_scope(g), taps, by, stride, before, after, image);
    int64_t out = (over + (w->ceil ? stride - 1 : 0)) / stride + 1;
    if (w->ceil && (out - 1) * stride >= image + before) out--; /* it would begin behind it */
    int64_t need = (out - 1) * stride + span - image - before;
    ll_val part[3] = {{0}, x}, y = {0};
    ll_dtype t = ll_graph_dtype(g, x);
    edge.d[dim] = before;
    part[0] = ll_fill(g, t, edge, max ? -INFINITY : 0);
    edge.d[dim] = need > 0 ? need : 0;
    part[2] = ll_fill(g, t, edge, max ? -INFINITY : 0);
    x = ll_concat(g, part, 3, dim);
    for (int64_t i = 0; i < taps && x.id; i++) {
        ll_val places = ll_arange(g, LL_I32, out, (double)(i * by), (double)stride);
        ll_val v =
            stride == 1 ? ll_slice(g, x, dim, i * by, i * by + out) : ll_gather(g, x, places, dim);
        y = !y.id ? v : max ? ll_max(g, y, v) : ll_add(g, y, v);
    }
    return max || !y.id ? y : ll_scale(g, y, 1 / (double)taps);
}

bool ll_is_spatial(ll_graph *g, const char *op, ll_val x)
{
    ll_shape s = ll_graph_shape(g, x);
    char text[LL_SHAPE_TEXT];
    if (x.id && s.n >= 3 && s.n <= 5) return true;
    ll_reject(g, LL_E_SHAPE, "%s%s of %s, expected [n,l,c], [n,h,w,c] or [n,d,h,w,c]", ll_scope(g),
              op, x.id ? ll_shape_print(&s, text) : "none");
    return false;
}

static ll_val window_of(ll_graph *g, ll_val x, const ll_window *w, bool max)
{
    ll_shape s = ll_graph_shape(g, x);
    if (w->dilation[0] > 1 || w->dilation[1] > 1 || w->dilation[2] > 1) {
        for (int dim = 1; dim < s.n - 1; dim++) x = apart(g, x, dim, w, max);
        return x;
    }
    if (s.n == 4) return ll_pool2d(g, x, w, max);
    ll_window a = *w, b = *w;
    if (s.n == 3) {
        to_width(a.size, 1), to_width(a.stride, 1), to_width(a.pad, 0), to_width(a.pad_more, 0);
        return no_row(g, ll_pool2d(g, one_row(g, x), &a, max));
    }
    /* over d alone, [n,d,h*w,c]; then over h and w, with the layers among the channels */
    a.size[1] = a.stride[1] = 1;
    a.pad[1] = a.pad_more[1] = 0;
    for (int k = 0; k < 2; k++) {
        b.size[k] = w->size[k + 1], b.stride[k] = w->stride[k + 1];
        b.pad[k] = w->pad[k + 1], b.pad_more[k] = w->pad_more[k + 1];
    }
    ll_val y =
        ll_pool2d(g, ll_reshape(g, x, LL_SHAPE(s.d[0], s.d[1], s.d[2] * s.d[3], s.d[4])), &a, max);
    if (!y.id) return y;
    int64_t d = ll_graph_shape(g, y).d[1];
    y = ll_reshape(g, y, LL_SHAPE(s.d[0], d, s.d[2], s.d[3], s.d[4]));
    y = ll_reshape(g, ll_transpose(g, y, "ndhwc->nhwdc"),
                   LL_SHAPE(s.d[0], s.d[2], s.d[3], d * s.d[4]));
    y = ll_pool2d(g, y, &b, max);
    if (!y.id) return y;
    ll_shape t = ll_graph_shape(g, y);
    y = ll_reshape(g, y, LL_SHAPE(t.d[0], t.d[1], t.d[2], d, s.d[4]));
    return ll_transpose(g, y, "nhwdc->ndhwc");
}

static ll_val pool(ll_graph *g, const char *op, ll_val x, const ll_window *w, bool max)
{
    if (!ll_has_argument(g, op, "w", w) || !ll_is_spatial(g, op, x)) return (ll_val){0};
    ll_shape s = ll_graph_shape(g, x);
    for (int k = s.n - 2; k < 3; k++)
        if (w->size[k] || w->stride[k] || w->pad[k] || w->pad_more[k] || w->dilation[k] > 1)
            return ll_reject(g, LL_E_ARG, "%s%s: the window has more than %d dimensions",
                             ll_scope(g), op, s.n - 2);
    if (max && w->skip_pad)
        return ll_reject(g, LL_E_ARG, "%s%s never counts padding: skip_pad is avg_pool's",
                         ll_scope(g), op);
    return window_of(g, x, w, max);
}

ll_val ll_max_pool(ll_graph *g, ll_val x, const ll_window *w)
{
    return pool(g, "max_pool", x, w, true);
}

ll_val ll_avg_pool(ll_graph *g, ll_val x, const ll_window *w)
{
    ll_val y = pool(g, "avg_pool", x, w, false), part;
    if (!y.id || (!w->skip_pad && !w->ceil)) return y;
    /* the share of each window that counts: image, or image and padding without ceil's rest */
    ll_shape s = ll_graph_shape(g, x), have = ll_graph_shape(g, y);
    ll_window all = *w;
    s.d[0] = s.d[s.n - 1] = 1;
    for (int k = 0; k < s.n - 2 && !w->skip_pad; k++) {
        s.d[1 + k] += 2 * w->pad[k] + w->pad_more[k];
        all.pad[k] = all.pad_more[k] = 0;
    }
    part = window_of(g, ll_fill(g, ll_graph_dtype(g, x), s, 1), &all, false);
    for (int k = 1; k < s.n - 1 && part.id; k++) /* a window all of padding is not made */
        if (ll_graph_shape(g, part).d[k] > have.d[k]) part = ll_slice(g, part, k, 0, have.d[k]);
    return ll_div(g, y, part);
}

static const char *const global[] = {"abc->ac", "abcd->ad", "abcde->ae"};

ll_val ll_global_max_pool(ll_graph *g, ll_val x)
{
    if (!ll_is_spatial(g, "global_max_pool", x)) return (ll_val){0};
    return ll_amax(g, x, global[ll_graph_shape(g, x).n - 3]);
}

ll_val ll_global_avg_pool(ll_graph *g, ll_val x)
{
    if (!ll_is_spatial(g, "global_avg_pool", x)) return (ll_val){0};
    ll_shape s = ll_graph_shape(g, x);
    double points = 1;
    for (int k = 1; k < s.n - 1; k++) points *= (double)s.d[k];
    return ll_scale(g, ll_sum(g, x, global[s.n - 3]), 1 / points);
}

/* ---- space and depth ---- */

static ll_val reject_block(ll_graph *g, const char *op, ll_val x, int64_t block)
{
    ll_shape s = ll_graph_shape(g, x);
    char text[LL_SHAPE_TEXT];
    return ll_reject(g, LL_E_SHAPE, "%s%s of %s by %ld, expected [n,h,w,c] that divides",
                     ll_scope(g), op, x.id ? ll_shape_print(&s, text) : "none", block);
}

ll_val ll_depth_to_space(ll_graph *g, ll_val x, int64_t block, bool inner)
{
    ll_shape s = ll_graph_shape(g, x);
    int64_t b = block;
    if (!x.id || s.n != 4 || b < 1 || b > 1 << 15 || s.d[3] % (b * b))
        return reject_block(g, "depth_to_space", x, b);
    int64_t c = s.d[3] / (b * b), n = s.d[0], h = s.d[1], w = s.d[2];
    ll_val y = ll_reshape(g, x, inner ? LL_SHAPE(n, h, w, c, b, b) : LL_SHAPE(n, h, w, b, b, c));
    y = ll_transpose(g, y, inner ? "nhwcij->nhiwjc" : "nhwijc->nhiwjc");
    return ll_reshape(g, y, LL_SHAPE(n, h * b, w * b, c));
}

ll_val ll_space_to_depth(ll_graph *g, ll_val x, int64_t block, bool inner)
{
    ll_shape s = ll_graph_shape(g, x);
    int64_t b = block;
    if (!x.id || s.n != 4 || b < 1 || b > 1 << 15 || s.d[1] % b || s.d[2] % b)
        return reject_block(g, "space_to_depth", x, b);
    int64_t n = s.d[0], h = s.d[1] / b, w = s.d[2] / b;
    ll_val y = ll_reshape(g, x, LL_SHAPE(n, h, b, w, b, s.d[3]));
    y = ll_transpose(g, y, inner ? "nhiwjc->nhwcij" : "nhiwjc->nhwijc");
    return ll_reshape(g, y, LL_SHAPE(n, h, w, b * b * s.d[3]));
}

/* ---- layers ---- */

/* A filter [a, size..., b] for x, within a scope of this name; {0}: rejected. */
static bool layer_fits(ll_graph *g, const char *kind, const char *name, ll_val x, int64_t out,
                       int64_t size, int64_t groups)
{
    ll_shape s = ll_graph_shape(g, x);
    int64_t c = x.id && s.n ? s.d[s.n - 1] : 0;
    if (x.id && s.n >= 3 && s.n <= 5 && c >= 1 && out >= 1 && size >= 1 && groups >= 1 &&
        c % groups == 0 && out % groups == 0)
        return true;
    char text[LL_SHAPE_TEXT];
    ll_reject(g, LL_E_SHAPE, "%s layer %s: operand %s, %ld filters of size %ld in %ld groups", kind,
              name, x.id ? ll_shape_print(&s, text) : "none", out, size, groups);
    return false;
}

/* [a, size..., b] of as many dimensions as x; taps: their product, without a and b */
static ll_shape filter_of(const ll_shape *x, int64_t size, int64_t a, int64_t b, double *taps)
{
    ll_shape f = {x->n, {a}};
    *taps = 1;
    for (int k = 1; k < x->n - 1; k++) f.d[k] = size, *taps *= (double)size;
    f.d[x->n - 1] = b;
    return f;
}

/* back: the transpose. */
static ll_val layer(ll_graph *g, bool back, const char *name, ll_val x, int64_t out, int64_t size,
                    const ll_conv *opts, const int64_t *out_pad, bool bias)
{
    static ll_val (*const by_dims[])(ll_graph *, ll_val, ll_val,
                                     const ll_conv *) = {ll_conv1d, ll_conv2d, ll_conv3d};
    int64_t groups = opts && opts->groups ? opts->groups : 1;
    if (!layer_fits(g, back ? "conv_transpose" : "conv", name, x, out, size, groups))
        return (ll_val){0};
    ll_shape s = ll_graph_shape(g, x);
    int64_t c = s.d[s.n - 1];
    double taps;
    ll_shape f = back ? filter_of(&s, size, c, out / groups, &taps)
                      : filter_of(&s, size, out, c / groups, &taps);
    ll_init init = {LL_UNIFORM, 1 / sqrt(taps * (double)f.d[s.n - 1])};
    ll_init he = {LL_NORMAL, sqrt(2 / (taps * (double)out))};
    ll_graph_push(g, name);
    ll_val w = ll_param(g, "weight", f, back || bias ? init : he);
    ll_val y = back ? ll_conv_transpose(g, x, w, opts, out_pad) : by_dims[s.n - 3](g, x, w, opts);
    if (bias) y = ll_add(g, y, ll_param(g, "bias", LL_SHAPE(out), init));
    ll_graph_pop(g);
    return y;
}

ll_val ll_conv_layer(ll_graph *g, const char *name, ll_val x, int64_t out, int64_t size,
                     const ll_conv *opts, bool bias)
{
    return layer(g, false, name, x, out, size, opts, NULL, bias);
}

ll_val ll_conv_transpose_layer(ll_graph *g, const char *name, ll_val x, int64_t out, int64_t size,
                               const ll_conv *opts, const int64_t *out_pad, bool bias)
{
    return layer(g, true, name, x, out, size, opts, out_pad, bias);
}

const ll_op *const ll_ops_spatial[] = {NULL};
