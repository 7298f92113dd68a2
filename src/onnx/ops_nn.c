/* ops_nn.c: products, convolutions, pooling, normalisation. Images lie with their channels last. */
#include "onnx/walk.h"

#include "base/num.h"

#include <math.h>

/* ---- products ---- */

/* c = alpha a' b' + beta c */
static ll_err gemm(op *o)
{
    WANT(o, has(o, 1) && o->in[0]->shape.n == 2 && o->in[1]->shape.n == 2,
         "operands that are no matrices");
    ll_onnx_weights_from(o, 1);
    bool ta = ll_attr_int(o, "transA", 0) != 0, tb = ll_attr_int(o, "transB", 0) != 0;
    double alpha = ll_attr_float(o, "alpha", 1), beta = ll_attr_float(o, "beta", 1);
    int type = o->in[0]->type;
    ll_dtype t = ll_onnx_whole(type) ? LL_F64 : ll_onnx_dtype(type);
    order lies[2];
    ll_val v[2];
    char spec[16] = "", *at = spec;
    for (int i = 0; i < 2; i++) {
        const char *letters = i ? (tb ? "nk" : "kn") : (ta ? "km" : "mk");
        v[i] = ll_cast(o->g, ll_onnx_any(o, o->in[i], &lies[i]), t);
        if (i) *at++ = ',';
        for (int k = 0; k < 2; k++) *at++ = letters[lies[i].d[k]];
    }
    strcpy(at, "->mn");
    ll_val y = ll_matmul(o->g, spec, v[0], v[1]);
    if (alpha != 1) y = ll_scale(o->g, y, alpha);
    if (has(o, 2)) {
        ll_val c = ll_cast(o->g, ll_onnx_plain(o, o->in[2]), t);
        y = ll_add(o->g, y, beta == 1 ? c : ll_scale(o->g, c, beta));
    }
    return ll_onnx_give(o, 0, type, y, NULL);
}

/* a [..,m,k] times b [..,k,n]: leading dimensions are broadcast, vectors lose theirs. Those
 * of 1 in one operand are dropped there, so that the product has the letter in one operand only. */
static ll_err product(op *o, value *a, value *b, ll_val *out)
{
    int na = a->shape.n, nb = b->shape.n;
    WANT(o, na && nb, "a scalar");
    int la = na > 2 ? na - 2 : 0, lb = nb > 2 ? nb - 2 : 0, lead = la > lb ? la : lb;
    WANT(o, lead + 2 <= LL_MAX_DIMS, "%d dimensions", lead + 2);
    ll_shape y = {0};
    char in[2][LL_MAX_DIMS + 1] = {{0}}, res[LL_MAX_DIMS + 1] = {0}, spec[40];
    ll_shape s[2] = {{0}, {0}};
    int n_res = 0;
    for (int i = 0; i < lead; i++) {
        int64_t d[2] = {i < lead - la ? 1 : a->shape.d[i - (lead - la)],
                        i < lead - lb ? 1 : b->shape.d[i - (lead - lb)]};
        WANT(o, d[0] == d[1] || d[0] == 1 || d[1] == 1, "%ld and %ld matrices", d[0], d[1]);
        y.d[y.n++] = d[0] == 1 ? d[1] : d[0];
        for (int k = 0; k < 2; k++) {
            if (d[k] == 1) continue;
            in[k][s[k].n] = (char)('a' + i);
            s[k].d[s[k].n++] = d[k];
        }
        if (d[0] != 1 || d[1] != 1) res[n_res++] = (char)('a' + i);
    }
    if (na > 1)
        in[0][s[0].n] = res[n_res++] = 'm', y.d[y.n++] = s[0].d[s[0].n] = a->shape.d[na - 2],
        s[0].n++;
    in[0][s[0].n] = 'k', s[0].d[s[0].n++] = a->shape.d[na - 1];
    in[1][s[1].n] = 'k', s[1].d[s[1].n++] = b->shape.d[nb > 1 ? nb - 2 : 0];
    if (nb > 1)
        in[1][s[1].n] = res[n_res++] = 'n', y.d[y.n++] = s[1].d[s[1].n] = b->shape.d[nb - 1],
        s[1].n++;
    ll_dtype t = ll_onnx_whole(a->type) ? LL_F64 : ll_onnx_dtype(a->type);
    ll_val va = ll_reshape(o->g, ll_cast(o->g, ll_onnx_plain(o, a), t), s[0]);
    ll_val vb = ll_reshape(o->g, ll_cast(o->g, ll_onnx_plain(o, b), t), s[1]);
    strcat(strcat(strcat(strcat(strcpy(spec, in[0]), ","), in[1]), "->"), res);
    *out = ll_reshape(o->g, ll_matmul(o->g, spec, va, vb), y);
    return LL_OK;
}

static ll_err matmul(op *o)
{
    ll_val y;
    WANT(o, has(o, 1), "one operand");
    ll_onnx_weights_from(o, 1);
    TRY(product(o, o->in[0], o->in[1], &y));
    return ll_onnx_give(o, 0, o->in[0]->type, y, NULL);
}

/* ---- windows ---- */

typedef struct window {
    int n; /* spatial dimensions */
    int64_t size[3], stride[3], dilation[3], before[3], after[3];
    bool ceil;
} window;

static int64_t out_size(const window *w, int i, int64_t d)
{
    int64_t reach = (w->size[i] - 1) * w->dilation[i] + 1,
            room = d + w->before[i] + w->after[i] - reach;
    if (room < 0) return 0;
    int64_t n = (room + (w->ceil ? w->stride[i] - 1 : 0)) / w->stride[i] + 1;
    /* the last window begins inside the image or the padding before it */
    if (w->ceil && (n - 1) * w->stride[i] >= d + w->before[i]) n--;
    return n;
}

static ll_err window_of(op *o, const ll_shape *x, const ll_shape *filter, window *w)
{
    int64_t pads[6] = {0};
    *w = (window){.n = x->n - 2, .ceil = ll_attr_int(o, "ceil_mode", 0) != 0};
    WANT(o, w->n >= 1 && w->n <= 3, "%d spatial dimensions", w->n);
    int size = ll_attr_ints(o, "kernel_shape", w->size, 3),
        stride = ll_attr_ints(o, "strides", w->stride, 3);
    int dilation = ll_attr_ints(o, "dilations", w->dilation, 3),
        n_pad = ll_attr_ints(o, "pads", pads, 6);
    WANT(o,
         (size == w->n || (filter && !size)) && (!stride || stride == w->n) &&
             (!dilation || dilation == w->n) && (!n_pad || n_pad == 2 * w->n),
         "windows of %d, strides of %d, dilations of %d dimensions", size, stride, dilation);
    const char *as = ll_attr_text(o, "auto_pad", "NOTSET");
    for (int i = 0; i < w->n; i++) {
        if (filter) w->size[i] = filter->d[2 + i];
        if (!stride) w->stride[i] = 1;
        if (!dilation) w->dilation[i] = 1;
        WANT(o,
             w->size[i] > 0 && w->stride[i] > 0 && w->dilation[i] > 0 && w->size[i] < 1 << 15 &&
                 w->stride[i] < 1 << 30 && w->dilation[i] < 1 << 30,
             "a window of %ld, stride %ld, dilation %ld", w->size[i], w->stride[i], w->dilation[i]);
        w->before[i] = pads[i], w->after[i] = pads[w->n + i];
        if (!strncmp(as, "SAME", 4)) {
            int64_t d = x->d[2 + i], n = ll_ceil_div(d, w->stride[i]);
            int64_t pad = (n - 1) * w->stride[i] + (w->size[i] - 1) * w->dilation[i] + 1 - d;
            if (pad < 0) pad = 0;
            w->before[i] = strcmp(as, "SAME_LOWER") ? pad / 2 : pad - pad / 2;
            w->after[i] = pad - w->before[i];
        }
        WANT(o,
             w->before[i] >= 0 && w->after[i] >= 0 && w->before[i] < 1 << 30 &&
                 w->after[i] < 1 << 30,
             "padding of %ld and %ld", w->before[i], w->after[i]);
    }
    return LL_OK;
}

static ll_err conv(op *o)
{
    static ll_val (*const by_rank[])(ll_graph *, ll_val, ll_val,
                                     const ll_conv *) = {ll_conv1d, ll_conv2d, ll_conv3d};
    value *x = o->in[0];
    window w;
    WANT(o, has(o, 1) && o->in[1]->shape.n == x->shape.n,
         "filters of other dimensions than the image");
    TRY(window_of(o, &x->shape, &o->in[1]->shape, &w));
    ll_onnx_weights_from(o, 1);
    order lies = ll_last(x->shape.n);
    ll_conv c = {.groups = ll_attr_int(o, "group", 1)};
    WANT(o, c.groups > 0, "a group of %ld", c.groups);
    for (int i = 0; i < w.n; i++) {
        c.stride[i] = w.stride[i], c.dilation[i] = w.dilation[i];
        c.pad[i] = w.before[i], c.pad_more[i] = w.after[i] - w.before[i];
    }
    ll_val y = by_rank[w.n - 1](o->g, ll_onnx_as(o, x, &lies), ll_onnx_as(o, o->in[1], &lies), &c);
    if (has(o, 2)) y = ll_add(o->g, y, ll_onnx_plain(o, o->in[2]));
    return ll_onnx_give(o, 0, x->type, y, &lies);
}

/* Filters are [c,f/groups,...]: the same order of dimensions as the image's. */
static ll_err conv_transpose(op *o)
{
    value *x = o->in[0];
    window w;
    int64_t more[3] = {0}, want[3], group = ll_attr_int(o, "group", 1);
    WANT(o, has(o, 1) && o->in[1]->shape.n == x->shape.n && group > 0,
         "filters of other dimensions than the image");
    TRY(window_of(o, &x->shape, &o->in[1]->shape, &w));
    ll_onnx_weights_from(o, 1);
    const char *as = ll_attr_text(o, "auto_pad", "NOTSET");
    int n_more = ll_attr_ints(o, "output_padding", more, 3),
        n_want = ll_attr_ints(o, "output_shape", want, 3);
    WANT(o, (!n_more || n_more == w.n) && (!n_want || n_want == w.n),
         "sizes of other dimensions than the image's");
    order lies = ll_last(x->shape.n);
    ll_conv c = {.groups = group};
    int64_t after[3] = {0}, out_pad[3] = {0};
    for (int i = 0; i < w.n; i++) {
        int64_t all =
            (x->shape.d[2 + i] - 1) * w.stride[i] + (w.size[i] - 1) * w.dilation[i] + 1 + more[i];
        if (!n_want && !strncmp(as, "SAME", 4)) want[i] = x->shape.d[2 + i] * w.stride[i];
        if (n_want || !strncmp(as, "SAME", 4)) {
            int64_t pad = all - want[i];
            w.before[i] = !strcmp(as, "SAME_UPPER") || pad < 0 ? pad / 2 : pad - pad / 2;
            if (!strcmp(as, "SAME_LOWER") || !strcmp(as, "NOTSET")) w.before[i] = pad / 2;
            if (!strcmp(as, "SAME_LOWER")) w.before[i] = pad - pad / 2;
            w.after[i] = pad - w.before[i];
        }
        /* padding is cut off afterwards, and what is missing are zeros */
        c.stride[i] = w.stride[i], c.dilation[i] = w.dilation[i];
        after[i] = more[i] - w.after[i], out_pad[i] = 0;
    }
    ll_val y = ll_conv_transpose(o->g, ll_onnx_as(o, x, &lies), ll_onnx_as(o, o->in[1], &lies), &c,
                                 out_pad);
    TRY(ll_graph_check(o->g));
    for (int i = 0; i < w.n; i++) y = ll_pad_with(o->g, y, 1 + i, -w.before[i], after[i], 0);
    if (has(o, 2)) y = ll_add(o->g, y, ll_onnx_plain(o, o->in[2]));
    return ll_onnx_give(o, 0, x->type, y, &lies);
}

typedef enum pool_kind { POOL_MAX, POOL_AVERAGE, POOL_LP } pool_kind;

/* n: sizes of the result; d: of the image. The last windows may reach beyond the padding. */
static ll_err pool_by(op *o, pool_kind k, ll_val *v, const window *w, const int64_t *d,
                      const int64_t *n)
{
    ll_window p = {0};
    for (int i = 0; i < w->n; i++) {
        int64_t reach = (n[i] - 1) * w->stride[i] + (w->size[i] - 1) * w->dilation[i] + 1;
        int64_t before = w->before[i], after = reach - d[i] - before;
        if (before >= w->size[i] || after >= w->size[i] || after < 0) {
            *v = ll_pad_with(o->g, *v, 1 + i, before, after, k == POOL_MAX ? -INFINITY : 0);
            before = after = 0;
        }
        p.size[i] = w->size[i], p.stride[i] = w->stride[i];
        p.pad[i] = before, p.pad_more[i] = after - before, p.dilation[i] = w->dilation[i];
    }
    *v = k == POOL_MAX ? ll_max_pool(o->g, *v, &p) : ll_avg_pool(o->g, *v, &p);
    return ll_graph_check(o->g);
}

/* Which share of each window lies in the image, or in it and its padding. */
static ll_err share(op *o, ll_dtype t, window w, const int64_t *d, const int64_t *n, bool padding,
                    ll_val *out)
{
    ll_shape s = {.n = w.n + 2};
    s.d[0] = s.d[w.n + 1] = 1;
    for (int i = 0; i < w.n; i++) s.d[1 + i] = d[i] + (padding ? w.before[i] + w.after[i] : 0);
    for (int i = 0; i < w.n && padding; i++) w.before[i] = 0;
    *out = ll_fill(o->g, t, s, 1);
    return pool_by(o, POOL_AVERAGE, out, &w, s.d + 1, n);
}

static ll_err pool(op *o)
{
    value *x = o->in[0];
    window w;
    pool_kind k = (pool_kind)o->row->kind;
    TRY(window_of(o, &x->shape, NULL, &w));
    WANT(o, o->n_out == 1, "its indices");
    order lies = ll_last(x->shape.n);
    const int64_t *d = x->shape.d + 2;
    int64_t n[3];
    bool padding = ll_attr_int(o, "count_include_pad", 0) != 0, padded = w.ceil;
    double p = (double)ll_attr_int(o, "p", 2), count = 1;
    for (int i = 0; i < w.n; i++) {
        n[i] = out_size(&w, i, d[i]);
        WANT(o, n[i] > 0, "a window larger than the image");
        count *= (double)w.size[i];
        padded = padded || w.before[i] || w.after[i];
    }
    ll_val v = ll_onnx_as(o, x, &lies);
    if (ll_onnx_whole(x->type)) v = ll_cast(o->g, v, LL_F64);
    if (k == POOL_LP) v = ll_pow(o->g, ll_abs(o->g, v), ll_one(o, v, p));
    TRY(pool_by(o, k, &v, &w, d, n));
    if (k == POOL_LP) v = ll_pow(o->g, ll_scale(o->g, v, count), ll_one(o, v, 1 / p));
    if (k == POOL_AVERAGE && padded && (!padding || w.ceil)) {
        ll_val part;
        TRY(share(o, ll_graph_dtype(o->g, v), w, d, n, padding, &part));
        v = ll_div(o->g, v, part);
    }
    return ll_onnx_give(o, 0, x->type, v, &lies);
}

/* ---- normalisation ---- */

/* Operand i [c] beside values whose channels lie last. */
static ll_val channel(op *o, int i)
{
    return ll_onnx_plain(o, o->in[i]);
}

/* Of a model: statistics of the batch while training, else the running ones, which are state. */
static ll_err batchnorm_layer(op *o)
{
    ll_onnx_weights_from(o, 1);
    for (int i = 3; i < 5; i++) {
        WANT(o, o->in[i]->weight && o->in[i]->host, "statistics that are computed");
        WANT(o, o->in[i]->kept || !o->in[i]->v.id, "statistics that are parameters too");
        o->in[i]->kept = true;
    }
    order lies = ll_last(o->in[0]->shape.n);
    ll_norm n = {
        .gain = channel(o, 1), .bias = channel(o, 2), .mean = channel(o, 3), .var = channel(o, 4)};
    n.eps = ll_attr_float(o, "epsilon", 1e-5);
    n.momentum = 1 - ll_attr_float(o, "momentum", 0.9);
    n.training = o->w->training;
    ll_val y = ll_batchnorm(o->g, ll_onnx_as(o, o->in[0], &lies), &n);
    return ll_onnx_give(o, 0, o->in[0]->type, y, &lies);
}

/* (x - mean) / sqrt(var + eps) * scale + bias, with statistics that are given. */
static ll_err batchnorm(op *o)
{
    value *x = o->in[0];
    WANT(o, o->n_in == 5 && x->shape.n >= 2, "%d operands", o->n_in);
    for (int i = 1; i < 5; i++) WANT(o, has(o, i), "operand %d was left out", i);
    WANT(o, ll_attr_int(o, "spatial", 1), "of each pixel");
    if (o->w->mode == WALK_MODEL) return batchnorm_layer(o);
    WANT(o, o->n_out == 1 && !ll_attr_int(o, "training_mode", 0), "of training, as a node");
    order lies = ll_last(x->shape.n);
    ll_val v = ll_onnx_as(o, x, &lies);
    ll_val rstd = ll_rsqrt(o->g, ll_shift(o->g, channel(o, 4), ll_attr_float(o, "epsilon", 1e-5)));
    ll_val y = ll_mul(o->g, ll_sub(o->g, v, channel(o, 3)), ll_mul(o->g, rstd, channel(o, 1)));
    return ll_onnx_give(o, 0, x->type, ll_add(o->g, y, channel(o, 2)), &lies);
}

static ll_err dropout(op *o)
{
    value *x = o->in[0];
    double training = 0;
    if (has(o, 2)) TRY(ll_onnx_number(o, 2, &training));
    WANT(o, !training || o->w->mode == WALK_MODEL, "random numbers of its own");
    double p = ll_attr_float(o, "ratio", 0.5);
    if (has(o, 1)) TRY(ll_onnx_number(o, 1, &p));
    order lies;
    if (o->n_out > 1) {
        o->out[1]->type = ONNX_BOOL, o->out[1]->shape = x->shape;
        o->out[1]->splat = o->out[1]->fixed = true, o->out[1]->same = 1;
    }
    if (!o->w->training) {
        o->out[0] = x;
        return LL_OK;
    }
    WANT(o, o->n_out == 1, "its mask");
    return ll_onnx_give(o, 0, x->type, ll_dropout(o->g, ll_onnx_any(o, x, &lies), p), &lies);
}

/* x / (bias + alpha/size * sum of squares over size neighbouring channels)^beta */
static ll_err lrn(op *o)
{
    value *x = o->in[0];
    order lies = ll_last(x->shape.n);
    int last = x->shape.n - 1;
    int64_t size = ll_attr_int(o, "size", 0), c = x->shape.d[1];
    WANT(o, x->shape.n >= 2 && size > 0 && size < 1 << 15, "a size of %ld", size);
    ll_val v = ll_onnx_as(o, x, &lies), sq = ll_square(o->g, v), sum = {0};
    sq = ll_pad(o->g, sq, last, (size - 1) / 2, size / 2);
    for (int64_t i = 0; i < size; i++) {
        ll_val part = ll_slice(o->g, sq, last, i, i + c);
        sum = i ? ll_add(o->g, sum, part) : part;
    }
    double alpha = ll_attr_float(o, "alpha", 1e-4), beta = ll_attr_float(o, "beta", 0.75);
    sum = ll_shift(o->g, ll_scale(o->g, sum, alpha / (double)size), ll_attr_float(o, "bias", 1));
    ll_val y = ll_mul(o->g, v, ll_exp(o->g, ll_scale(o->g, ll_log(o->g, sum), -beta)));
    return ll_onnx_give(o, 0, x->type, y, &lies);
}

const row ll_rows_nn[] = {
    {"Gemm", gemm, 7},
    {"MatMul", matmul},
    {"Conv", conv},
    {"ConvTranspose", conv_transpose},
    {"MaxPool", pool, .kind = POOL_MAX},
    {"AveragePool", pool, .kind = POOL_AVERAGE},
    {"LpPool", pool, .kind = POOL_LP},
    {"BatchNormalization", batchnorm, 7, .direct = true},
    {"Dropout", dropout, .direct = true},
    {"LRN", lrn},
    {0},
};
