/* ops_shape.c: constants, and ops that move elements. A transpose moves nothing: it renames the
 * dimensions of what lies there. */
#include "base/num.h"
#include "onnx/walk.h"

#include <math.h>
#include <stdlib.h>

/* ---- what is known at once ---- */

static ll_err constant(op *o)
{
    const Onnx__Attribute *a = ll_attr(o, "value");
    const host *h = NULL;
    host *made;
    if (a && a->t) {
        TRY(ll_onnx_tensor(a->t, 0, o->w->m->folder, o->w->arena, &h));
        return ll_onnx_give_host(o, 0, h);
    }
    WANT(o, o->n->n_attribute == 1, "none of its forms");
    a = ll_attr(o, o->n->attribute[0]->name);
    WANT(o, a, "an attribute that is not given");
    bool list = strstr(a->name, "s") != NULL, broken = strstr(a->name, "float") != NULL;
    WANT(o, broken || strstr(a->name, "int"), "%s", a->name);
    size_t n = !list ? 1 : broken ? a->n_floats : a->n_ints;
    ll_shape s = list ? LL_SHAPE((int64_t)n) : LL_SCALAR;
    CHECK(made = ll_onnx_host(o->w->arena, broken ? ONNX_FLOAT : ONNX_INT64, &s), LL_E_MEM,
          "no memory");
    if (broken)
        memcpy(made->data, list ? a->floats : &a->f, n * sizeof(float));
    else
        memcpy(made->data, list ? a->ints : &a->i, n * sizeof(int64_t));
    return ll_onnx_give_host(o, 0, made);
}

static ll_err constant_of_shape(op *o)
{
    const Onnx__Attribute *a = ll_attr(o, "value");
    int64_t d[LL_MAX_DIMS], count = 1;
    value *y = o->out[0];
    const host *h = NULL;
    int n;
    TRY(ll_onnx_ints(o, 0, d, LL_MAX_DIMS, &n));
    if (a && a->t) TRY(ll_onnx_tensor(a->t, 0, o->w->m->folder, o->w->arena, &h));
    WANT(o, !h || ll_numel(&h->shape) == 1, "its value is not one number");
    y->shape.n = n;
    for (int i = 0; i < n; i++) {
        bool fits = d[i] >= 0 && !__builtin_mul_overflow(count, d[i] ? d[i] : 1, &count);
        WANT(o, fits && count < INT64_MAX / 64, "dimension %d is %ld", i, d[i]);
        y->shape.d[i] = d[i];
    }
    y->type = h ? h->type : ONNX_FLOAT;
    y->splat = y->fixed = true;
    y->same = h ? ll_onnx_at(h, 0) : 0;
    return LL_OK;
}

static ll_err shape(op *o)
{
    const ll_shape *s = &o->in[0]->shape;
    int64_t from = ll_attr_int(o, "start", 0), to = ll_attr_int(o, "end", s->n);
    from += from < 0 ? s->n : 0, to += to < 0 ? s->n : 0;
    from = from < 0 ? 0 : from > s->n ? s->n : from;
    to = to < from ? from : to > s->n ? s->n : to;
    return ll_onnx_give_ints(o, 0, s->d + from, (int)(to - from), false);
}

static ll_err size(op *o)
{
    return ll_onnx_give_ints(o, 0, (int64_t[]){ll_numel(&o->in[0]->shape)}, 1, true);
}

static ll_err range(op *o)
{
    double v[3];
    for (int i = 0; i < 3; i++) TRY(ll_onnx_number(o, i, &v[i]));
    int type = o->in[0]->type;
    double count = v[2] ? ceil((v[1] - v[0]) / v[2]) : -1;
    WANT(o, count < 1 << 24 && v[2] != 0, "%g numbers", count);
    host *h = ll_onnx_host(o->w->arena, type, &LL_SHAPE(count > 0 ? (int64_t)count : 0));
    CHECK(h, LL_E_MEM, "no memory");
    for (int64_t i = 0; i < h->shape.d[0]; i++) ll_onnx_put(h, i, v[0] + (double)i * v[2]);
    TRY(ll_onnx_give_host(o, 0, h));
    for (int i = 0; i < 3; i++) o->out[0]->fixed = o->out[0]->fixed && o->in[i]->fixed;
    return LL_OK;
}

/* 1 where column - row - k has the sign: 0, or not below (upper), or not above. */
static ll_err mask(op *o, int type, int64_t rows, int64_t cols, int64_t k, int side, host **out)
{
    *out = ll_onnx_host(o->w->arena, type, &LL_SHAPE(rows, cols));
    CHECK(*out, LL_E_MEM, "not enough memory for a mask");
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) {
            int64_t d = j - i - k;
            ll_onnx_put(*out, i * cols + j, side > 0 ? d >= 0 : side < 0 ? d <= 0 : d == 0);
        }
    return LL_OK;
}

static ll_err eye_like(op *o)
{
    const value *x = o->in[0];
    host *h;
    WANT(o, x->shape.n == 2, "%d dimensions", x->shape.n);
    int type = (int)ll_attr_int(o, "dtype", x->type);
    WANT(o, ll_onnx_dtype(type) != LL_N_DTYPE, "of type %s", ll_onnx_type_name(type));
    TRY(mask(o, type, x->shape.d[0], x->shape.d[1], ll_attr_int(o, "k", 0), 0, &h));
    return ll_onnx_give_host(o, 0, h);
}

static ll_err trilu(op *o)
{
    value *x = o->in[0];
    double k = 0;
    host *h;
    WANT(o, x->shape.n >= 2, "%d dimensions", x->shape.n);
    if (has(o, 1)) TRY(ll_onnx_number(o, 1, &k));
    WANT(o, fabs(k) < 1 << 30, "a diagonal %g", k);
    bool upper = ll_attr_int(o, "upper", 1) != 0;
    TRY(mask(o, x->type, x->shape.d[x->shape.n - 2], x->shape.d[x->shape.n - 1], (int64_t)k,
             upper ? 1 : -1, &h));
    ll_val v = ll_onnx_plain(o, x), m = ll_onnx_plain(o, ll_onnx_known(o, h));
    return ll_onnx_give(o, 0, x->type, ll_select(o->g, m, v, ll_one(o, v, 0)), NULL);
}

static ll_err identity(op *o)
{
    o->out[0] = o->in[0];
    return LL_OK;
}

/* ---- other shapes of the same elements ---- */

static ll_err reshape_to(op *o, const ll_shape *s)
{
    return ll_onnx_give(o, 0, o->in[0]->type, ll_reshape(o->g, ll_onnx_plain(o, o->in[0]), *s),
                        NULL);
}

static ll_err reshape(op *o)
{
    int64_t d[LL_MAX_DIMS];
    const ll_shape *have = &o->in[0]->shape;
    ll_shape s = {0};
    TRY(ll_onnx_list(o, 1, "shape", d, LL_MAX_DIMS, &s.n));
    WANT(o, s.n >= 0, "no shape");
    bool zero = ll_attr_int(o, "allowzero", 0) != 0;
    for (int i = 0; i < s.n; i++) {
        WANT(o, d[i] || zero || i < have->n, "dimension %d of %d", i, have->n);
        s.d[i] = d[i] || zero ? d[i] : have->d[i];
    }
    return reshape_to(o, &s);
}

static ll_err flatten(op *o)
{
    const ll_shape *have = &o->in[0]->shape;
    int64_t axis = ll_attr_int(o, "axis", 1), rows = 1, cols = 1;
    if (axis < 0) axis += have->n;
    WANT(o, axis >= 0 && axis <= have->n, "axis %ld", axis);
    for (int i = 0; i < have->n; i++) *(i < axis ? &rows : &cols) *= have->d[i];
    return reshape_to(o, &LL_SHAPE(rows, cols));
}

static ll_err squeeze(op *o)
{
    int64_t axes[LL_MAX_DIMS];
    value *x = o->in[0];
    bool gone[LL_MAX_DIMS] = {0};
    int n, d;
    TRY(ll_onnx_list(o, 1, "axes", axes, LL_MAX_DIMS, &n));
    for (int i = 0; i < x->shape.n && n < 0; i++) gone[i] = x->shape.d[i] == 1;
    for (int i = 0; i < n; i++) {
        TRY(ll_onnx_axis(o, axes[i], x->shape.n, &d));
        WANT(o, x->shape.d[d] == 1, "dimension %d is %ld", d, x->shape.d[d]);
        gone[d] = true;
    }
    order have, lies;
    ll_val v = ll_onnx_any(o, x, &have);
    ll_shape s = ll_without(&x->shape, &have, gone, &lies);
    return ll_onnx_give(o, 0, x->type, ll_reshape(o->g, v, s), &lies);
}

static ll_err unsqueeze(op *o)
{
    int64_t axes[LL_MAX_DIMS];
    const value *x = o->in[0];
    ll_shape s = {0};
    bool new_one[LL_MAX_DIMS] = {0};
    int n, d;
    TRY(ll_onnx_list(o, 1, "axes", axes, LL_MAX_DIMS, &n));
    s.n = x->shape.n + n;
    WANT(o, n >= 0 && s.n <= LL_MAX_DIMS, "%d dimensions", s.n);
    for (int i = 0; i < n; i++) {
        TRY(ll_onnx_axis(o, axes[i], s.n, &d));
        WANT(o, !new_one[d], "axis %d twice", d);
        new_one[d] = true;
    }
    for (int i = 0, k = 0; i < s.n; i++) s.d[i] = new_one[i] ? 1 : x->shape.d[k++];
    return reshape_to(o, &s);
}

static ll_err transpose(op *o)
{
    value *x = o->in[0];
    int64_t perm[LL_MAX_DIMS];
    int n = ll_attr_ints(o, "perm", perm, LL_MAX_DIMS), at[LL_MAX_DIMS];
    for (int i = 0; i < x->shape.n && !ll_attr(o, "perm"); i++) perm[n++] = x->shape.n - 1 - i;
    WANT(o, n == x->shape.n, "perm has %d numbers for %d dimensions", n, x->shape.n);
    for (int i = 0; i < n; i++) at[i] = -1;
    for (int i = 0; i < n; i++) {
        WANT(o, perm[i] >= 0 && perm[i] < n && at[perm[i]] < 0, "perm is no order");
        at[perm[i]] = i;
    }
    order lies;
    ll_val v = ll_onnx_any(o, x, &lies);
    for (int i = 0; i < n; i++) lies.d[i] = (int8_t)at[lies.d[i]];
    return ll_onnx_give(o, 0, x->type, v, &lies);
}

/* ---- repeated elements ---- */

static ll_err expand(op *o)
{
    int64_t d[LL_MAX_DIMS];
    value *x = o->in[0];
    ll_shape s = x->shape;
    int n;
    TRY(ll_onnx_ints(o, 1, d, LL_MAX_DIMS, &n));
    if (n > s.n) s.n = n;
    for (int i = 0; i < s.n; i++) {
        int64_t a = i < s.n - x->shape.n ? 1 : x->shape.d[i - (s.n - x->shape.n)];
        int64_t b = i < s.n - n ? 1 : d[i - (s.n - n)];
        WANT(o, a == b || a == 1 || b == 1, "%ld to %ld", a, b);
        s.d[i] = a == 1 ? b : a;
    }
    return ll_onnx_give(o, 0, x->type, ll_spread(o->g, ll_onnx_plain(o, x), &s), NULL);
}

static ll_err tile(op *o)
{
    int64_t r[LL_MAX_DIMS];
    value *x = o->in[0];
    ll_shape s = x->shape;
    ll_val v = ll_onnx_plain(o, x);
    int n;
    TRY(ll_onnx_ints(o, 1, r, LL_MAX_DIMS, &n));
    WANT(o, n == s.n, "%d repeats for %d dimensions", n, s.n);
    for (int i = 0; i < n; i++) {
        int64_t before = 1, after = 1;
        WANT(o, r[i] >= 0 && r[i] < 1 << 24, "%ld repeats", r[i]);
        if (r[i] == 1) continue;
        for (int k = 0; k < i; k++) before *= s.d[k];
        for (int k = i + 1; k < n; k++) after *= s.d[k];
        v = ll_reshape(o->g, v, LL_SHAPE(before, 1, s.d[i], after));
        v = ll_spread(o->g, v, &LL_SHAPE(before, r[i], s.d[i], after));
        s.d[i] *= r[i];
        v = ll_reshape(o->g, v, s);
    }
    return ll_onnx_give(o, 0, x->type, v, NULL);
}

/* ---- parts ---- */

static ll_err cut(op *o, ll_val *v, int dim, int64_t d, int64_t from, int64_t to, int64_t step)
{
    WANT(o, step && step > -INT64_MAX, "a step of %ld", step);
    int64_t low = step > 0 ? 0 : -1, high = step > 0 ? d : d - 1;
    if (from < 0) from = from < -d ? low : from + d;
    if (to < 0) to = to < -d ? low : to + d;
    from = from < low ? low : from > high ? high : from;
    to = to < low ? low : to > high ? high : to;
    int64_t far = step > 0 ? to - from : from - to, by = step > 0 ? step : -step;
    int64_t n = far <= 0 ? 0 : (far - 1) / by + 1;
    int64_t *index = LL_TRY_ARRAY(o->w->arena, int64_t, n + 1);
    CHECK(index, LL_E_MEM, "no memory");
    for (int64_t i = 0; i < n; i++) index[i] = from + i * step;
    return ll_pick(o, *v, dim, index, n, v);
}

static ll_err slice(op *o)
{
    int64_t from[LL_MAX_DIMS], to[LL_MAX_DIMS], axes[LL_MAX_DIMS], step[LL_MAX_DIMS];
    value *x = o->in[0];
    int n, m, n_axes, n_step, d;
    TRY(ll_onnx_list(o, 1, "starts", from, LL_MAX_DIMS, &n));
    TRY(ll_onnx_list(o, 2, "ends", to, LL_MAX_DIMS, &m));
    TRY(ll_onnx_list(o, 3, "axes", axes, LL_MAX_DIMS, &n_axes));
    TRY(ll_onnx_list(o, 4, "steps", step, LL_MAX_DIMS, &n_step));
    WANT(o,
         n >= 0 && n == m && (n_axes < 0 || n_axes == n) && (n_step < 0 || n_step == n) &&
             n <= x->shape.n,
         "%d starts, %d ends, %d axes, %d steps", n, m, n_axes, n_step);
    order lies;
    ll_val v = ll_onnx_any(o, x, &lies);
    for (int i = 0; i < n; i++) {
        TRY(ll_onnx_axis(o, n_axes < 0 ? i : axes[i], x->shape.n, &d));
        TRY(cut(o, &v, ll_lies_at(&lies, d), x->shape.d[d], from[i], to[i],
                n_step < 0 ? 1 : step[i]));
    }
    return ll_onnx_give(o, 0, x->type, v, &lies);
}

static ll_err split(op *o)
{
    int64_t parts[256], at = 0;
    value *x = o->in[0];
    int n, axis, count = o->n_out;
    TRY(ll_onnx_list(o, 1, "split", parts, 256, &n));
    TRY(ll_onnx_axis(o, ll_attr_int(o, "axis", 0), x->shape.n, &axis));
    WANT(o, n < 0 || n >= count, "%d parts for %d results", n, count);
    for (int i = 0; i < n; i++)
        WANT(o, parts[i] >= 0 && parts[i] <= x->shape.d[axis], "a part of %ld", parts[i]);
    int64_t d = x->shape.d[axis], each = ll_attr_int(o, "num_outputs", count);
    WANT(o, each > 0 && each < 1 << 30, "%ld parts", each);
    each = ll_ceil_div(d, each);
    order lies;
    ll_val v = ll_onnx_any(o, x, &lies);
    for (int i = 0; i < count; i++) {
        int64_t to = n >= 0 ? at + parts[i] : at + each < d ? at + each : d;
        TRY(ll_onnx_give(o, i, x->type, ll_slice(o->g, v, ll_lies_at(&lies, axis), at, to), &lies));
        at = to;
    }
    return LL_OK;
}

static ll_err concat(op *o)
{
    value *x = o->in[0];
    ll_val *v = LL_NEW_ARRAY(o->w->arena, ll_val, o->n_in);
    int axis;
    order lies;
    TRY(ll_onnx_axis(o, ll_attr_int(o, "axis", 1), x->shape.n, &axis));
    TRY(ll_onnx_align(o, o->n_in, o->in, v, &lies));
    ll_val all = ll_concat(o->g, v, o->n_in, ll_lies_at(&lies, axis));
    return ll_onnx_give(o, 0, x->type, all, &lies);
}

/* Which element of a dimension of d stands at i where the tensor goes on past its ends. */
static int64_t beyond(const char *mode, int64_t i, int64_t d)
{
    if (mode[0] == 'e') return i < 0 ? 0 : i >= d ? d - 1 : i;
    if (mode[0] == 'w') return ((i % d) + d) % d;
    int64_t period = d > 1 ? 2 * (d - 1) : 1;
    i = ((i % period) + period) % period;
    return i < d ? i : period - i;
}

static ll_err pad_dim(op *o, ll_val *v, int dim, int64_t before, int64_t after, double fill)
{
    const char *mode = ll_attr_text(o, "mode", "constant");
    int64_t d = ll_graph_shape(o->g, *v).d[dim], n = d + before + after;
    if (!strcmp(mode, "constant")) {
        *v = ll_pad_with(o->g, *v, dim, before, after, fill);
        return LL_OK;
    }
    WANT(o, !strcmp(mode, "reflect") || !strcmp(mode, "edge") || !strcmp(mode, "wrap"), "mode %s",
         mode);
    WANT(o, d > 0 && n >= 0 && n < (int64_t)1 << 40, "of a dimension of %ld", d);
    int64_t *index = LL_TRY_ARRAY(o->w->arena, int64_t, n + 1);
    CHECK(index, LL_E_MEM, "no memory");
    for (int64_t i = 0; i < n; i++) index[i] = beyond(mode, i - before, d);
    return ll_pick(o, *v, dim, index, n, v);
}

static ll_err pad(op *o)
{
    int64_t pads[2 * LL_MAX_DIMS], axes[LL_MAX_DIMS];
    value *x = o->in[0];
    int n, n_axes, d;
    double fill = ll_attr_float(o, "value", 0);
    TRY(ll_onnx_list(o, 1, o->version < 2 ? "paddings" : "pads", pads, 2 * LL_MAX_DIMS, &n));
    TRY(ll_onnx_list(o, 3, "axes", axes, LL_MAX_DIMS, &n_axes));
    if (has(o, 2)) TRY(ll_onnx_number(o, 2, &fill));
    WANT(o, n == 2 * (n_axes < 0 ? x->shape.n : n_axes), "%d pads", n);
    for (int i = 0; i < n; i++) WANT(o, llabs(pads[i]) < (int64_t)1 << 38, "%ld elements", pads[i]);
    order lies;
    ll_val v = ll_onnx_any(o, x, &lies);
    for (int i = 0; i < n / 2; i++) {
        TRY(ll_onnx_axis(o, n_axes < 0 ? i : axes[i], x->shape.n, &d));
        TRY(pad_dim(o, &v, ll_lies_at(&lies, d), pads[i], pads[n / 2 + i], fill));
    }
    return ll_onnx_give(o, 0, x->type, v, &lies);
}

static ll_err center_crop_pad(op *o)
{
    int64_t want[LL_MAX_DIMS], axes[LL_MAX_DIMS];
    value *x = o->in[0];
    int n, d, n_axes = ll_attr_ints(o, "axes", axes, LL_MAX_DIMS);
    TRY(ll_onnx_ints(o, 1, want, LL_MAX_DIMS, &n));
    WANT(o, n == (n_axes ? n_axes : x->shape.n), "%d sizes", n);
    order lies;
    ll_val v = ll_onnx_any(o, x, &lies);
    for (int i = 0; i < n; i++) {
        TRY(ll_onnx_axis(o, n_axes ? axes[i] : i, x->shape.n, &d));
        int64_t more = want[i] - x->shape.d[d], less = -more;
        int64_t before = more >= 0 ? more / 2 : -(less / 2);
        v = ll_pad_with(o->g, v, ll_lies_at(&lies, d), before, more - before, 0);
    }
    return ll_onnx_give(o, 0, x->type, v, &lies);
}

/* [n,c,h,w]: squares of pixels as channels, or back. kind 1: from space to depth. */
static ll_err space_and_depth(op *o)
{
    value *x = o->in[0];
    int64_t b = ll_attr_int(o, "blocksize", 0);
    const int64_t *d = x->shape.d;
    bool deep = o->row->kind, fits = x->shape.n == 4 && b > 0 && b < 1 << 15;
    WANT(o, fits && (deep ? d[2] % b == 0 && d[3] % b == 0 : d[1] % (b * b) == 0), "blocks of %ld",
         b);
    bool crd = !strcmp(ll_attr_text(o, "mode", "DCR"), "CRD");
    order lies = ll_last(4);
    ll_val v = ll_onnx_as(o, x, &lies);
    v = (deep ? ll_space_to_depth : ll_depth_to_space)(o->g, v, b, crd);
    return ll_onnx_give(o, 0, x->type, v, &lies);
}

const row ll_rows_shape[] = {
    {"Constant", constant, .empty = true, .direct = true},
    {"ConstantOfShape", constant_of_shape, .direct = true},
    {"Shape", shape, .direct = true},
    {"Size", size, .direct = true},
    {"Range", range, .direct = true},
    {"EyeLike", eye_like, .direct = true},
    {"Trilu", trilu},
    {"Identity", identity, .direct = true},
    {"Reshape", reshape},
    {"Flatten", flatten},
    {"Squeeze", squeeze},
    {"Unsqueeze", unsqueeze},
    {"Transpose", transpose},
    {"Expand", expand},
    {"Tile", tile, 6},
    {"Slice", slice},
    {"Split", split},
    {"Concat", concat},
    {"Pad", pad},
    {"CenterCropPad", center_crop_pad},
    {"DepthToSpace", space_and_depth},
    {"SpaceToDepth", space_and_depth, .kind = 1},
    {0},
};
