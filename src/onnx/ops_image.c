/* ops_image.c: resized images, attention, einsum. */
#include "onnx/walk.h"

#include <math.h>
#include <stdio.h>

/* ---- resize ---- */

static int pick(const char *word, const char *const *words)
{
    for (int i = 0; words[i]; i++)
        if (!strcmp(word, words[i])) return i;
    return -1;
}

/* Sizes or scales of all dimensions; the first two must stay. */
static ll_err sizes_of(op *o, const value *x, ll_resize *r)
{
    int64_t size[LL_MAX_DIMS], axes[LL_MAX_DIMS];
    int n_axes = ll_attr_ints(o, "axes", axes, LL_MAX_DIMS), at = o->version < 11 ? 1 : 2, n = 0, d;
    const host *h = NULL;
    if (has(o, at) && ll_numel(&o->in[at]->shape)) {
        TRY(o->w->know(o->w, o->in[at], &h));
        n = (int)ll_numel(&h->shape);
    } else {
        TRY(ll_onnx_ints(o, 3, size, LL_MAX_DIMS, &n));
    }
    WANT(o, n == (n_axes ? n_axes : x->shape.n), "%d sizes", n);
    WANT(o, !strcmp(ll_attr_text(o, "keep_aspect_ratio_policy", "stretch"), "stretch"),
         "a fixed aspect ratio");
    for (int i = 0; i < n; i++) {
        TRY(ll_onnx_axis(o, n_axes ? axes[i] : i, x->shape.n, &d));
        double scale = h ? ll_onnx_at(h, i) : 0;
        WANT(o, !h || (scale > 0 && scale < 1 << 20), "by %g", scale);
        int64_t to = h ? (int64_t)floor((double)x->shape.d[d] * scale) : size[i];
        WANT(o, to > 0, "to a size of %ld", to);
        if (d < 2) {
            WANT(o, to == x->shape.d[d], "of samples or channels");
            continue;
        }
        double exact = scale * (double)x->shape.d[d];
        WANT(o, !h || r->coords != LL_ALIGN_CORNERS || exact == (double)to,
             "to corners that lie between pixels");
        r->size[d - 2] = to;
        r->scale[d - 2] = scale;
    }
    for (int i = 2; i < x->shape.n; i++)
        if (!r->size[i - 2]) r->size[i - 2] = x->shape.d[i];
    return LL_OK;
}

static ll_err resize(op *o)
{
    static const char *const modes[] = {"nearest", "linear", "cubic", NULL};
    static const char *const coords[] = {"half_pixel", "align_corners", "asymmetric", NULL};
    static const char *const rounds[] = {"floor", "ceil", "round_prefer_floor", "round_prefer_ceil",
                                         NULL};
    value *x = o->in[0];
    const char *mode = ll_attr_text(o, "mode", "nearest");
    const char *place = ll_attr_text(o, "coordinate_transformation_mode",
                                     o->version < 11 ? "asymmetric" : "half_pixel");
    const char *round =
        ll_attr_text(o, "nearest_mode", o->version < 11 ? "floor" : "round_prefer_floor");
    bool torch = !strcmp(place, "pytorch_half_pixel"); /* another one where a pixel is left */
    int m = pick(mode, modes), c = torch ? 0 : pick(place, coords), near = pick(round, rounds);
    WANT(o, m >= 0, "mode %s", mode);
    WANT(o, c >= 0, "coordinates %s", place);
    WANT(o, near >= 0, "nearest mode %s", round);
    WANT(o, !ll_attr_int(o, "antialias", 0) && !ll_attr_int(o, "exclude_outside", 0),
         "antialias or exclude_outside");
    WANT(o, x->shape.n >= 3 && x->shape.n <= 5 && !ll_onnx_whole(x->type), "%d dimensions of %s",
         x->shape.n, ll_onnx_type_name(x->type));
    ll_resize r = {.cubic = ll_attr_float(o, "cubic_coeff_a", -0.75)};
    memcpy(&r.mode, &m, sizeof m), memcpy(&r.coords, &c, sizeof c),
        memcpy(&r.round, &near, sizeof near);
    TRY(sizes_of(o, x, &r));
    for (int i = 0; i < x->shape.n - 2; i++) WANT(o, !torch || r.size[i] > 1, "to one pixel");
    order lies = ll_last(x->shape.n);
    return ll_onnx_give(o, 0, x->type, ll_resize_image(o->g, ll_onnx_as(o, x, &lies), &r), &lies);
}

/* ---- attention ---- */

/* Operand i as [b,t,h,d]: [b,h,t,d], or [b,t,h*d] of so many heads; *past: what came before it. */
static ll_err heads_of(op *o, int i, const char *name, int past, int present, ll_val *out)
{
    value *x = o->in[i];
    order lies = {{0, 2, 1, 3}};
    int64_t h = ll_attr_int(o, name, 0);
    ll_val v;
    if (x->shape.n == 3) {
        WANT(o, h > 0 && x->shape.d[2] % h == 0, "%ld heads of %ld", h, x->shape.d[2]);
        v = ll_reshape(o->g, ll_onnx_plain(o, x),
                       LL_SHAPE(x->shape.d[0], x->shape.d[1], h, x->shape.d[2] / h));
    } else {
        WANT(o, x->shape.n == 4, "%d dimensions", x->shape.n);
        v = ll_onnx_as(o, x, &lies);
    }
    if (past && has(o, past)) {
        WANT(o, o->in[past]->shape.n == 4, "%d dimensions", o->in[past]->shape.n);
        v = ll_concat(o->g, (ll_val[]){ll_onnx_as(o, o->in[past], &lies), v}, 2, 1);
    }
    if (past) TRY(ll_onnx_give(o, present, x->type, v, &lies));
    *out = v;
    return LL_OK;
}

static ll_err attention(op *o)
{
    ll_val q, k, v;
    WANT(o, has(o, 1) && has(o, 2), "%d operands", o->n_in);
    WANT(o, !has(o, 6), "lengths of sequences");
    WANT(o, o->n_out < 4, "scores as a result");
    WANT(o, ll_attr_float(o, "softcap", 0) == 0, "softcap");
    TRY(heads_of(o, 0, "q_num_heads", 0, 0, &q));
    TRY(heads_of(o, 1, "kv_num_heads", 4, 1, &k));
    TRY(heads_of(o, 2, "kv_num_heads", 5, 2, &v));
    ll_attend_opts a = {.scale = ll_attr_float(o, "scale", 0)};
    if (ll_attr_int(o, "is_causal", 0)) a.causal = has(o, 4) ? LL_CAUSAL_ENDS : LL_CAUSAL;
    if (has(o, 3)) {
        value *m = o->in[3];
        int64_t keys = ll_graph_shape(o->g, k).d[1];
        WANT(o, m->shape.n >= 2 && m->shape.d[m->shape.n - 1] == keys, "a mask of fewer keys");
        a.mask = ll_onnx_plain(o, m);
        if (!ll_onnx_whole(m->type)) a.mask = ll_cast(o->g, a.mask, ll_graph_dtype(o->g, q));
    }
    ll_val y = ll_attend(o->g, q, k, v, &a);
    TRY(ll_graph_check(o->g));
    ll_shape s = ll_graph_shape(o->g, y);
    int type = o->in[0]->type;
    if (o->in[0]->shape.n == 4) return ll_onnx_give(o, 0, type, y, &(order){{0, 2, 1, 3}});
    return ll_onnx_give(o, 0, type, ll_reshape(o->g, y, LL_SHAPE(s.d[0], s.d[1], s.d[2] * s.d[3])),
                        NULL);
}

/* ---- einsum ---- */

/* Sums over letters of in that nobody else has; in becomes what is left. */
static ll_val sum_alone(ll_graph *g, ll_val v, char *in, const char *other, const char *out)
{
    char spec[2 * LL_MAX_DIMS + 3], *at = spec + strlen(strcat(strcpy(spec, in), "->")), *left = at;
    for (const char *c = in; *c; c++)
        if (strchr(out, *c) || strchr(other, *c)) *at++ = *c;
    *at = '\0';
    if (strlen(left) < strlen(in)) v = ll_sum(g, v, spec);
    strcpy(in, left);
    return v;
}

static ll_err einsum(op *o)
{
    char text[64] = "", in[2][LL_MAX_DIMS + 1] = {"", ""}, out[LL_MAX_DIMS + 1] = "", spec[64];
    int n = 0, len = 0;
    const char *given = ll_attr_text(o, "equation", "");
    WANT(o, strlen(given) < sizeof text && !strchr(given, '.') && o->n_in <= 2, "\"%s\"", given);
    for (const char *c = given; *c; c++)
        if (*c != ' ') text[len++] = (*c >= 'A' && *c <= 'Z') ? (char)(*c + 32) : *c;
    char *arrow = strstr(text, "->");
    for (const char *c = text; *c && c != arrow; c++) {
        size_t k = strlen(in[n]);
        if (*c == ',')
            n++;
        else if (k < LL_MAX_DIMS && n < 2 && !strchr(in[n], *c))
            in[n][k] = *c;
        else
            NO(o, "\"%s\"", given);
        WANT(o, n < o->n_in, "\"%s\" of %d operands", given, o->n_in);
    }
    WANT(o, n + 1 == o->n_in && (!arrow || strlen(arrow + 2) <= LL_MAX_DIMS), "\"%s\"", given);
    if (arrow) strcpy(out, arrow + 2);
    for (char c = 'a'; c <= 'z' && !arrow; c++) /* letters that come once, in order */
        if (!strchr(in[0], c) != !strchr(in[1], c) && strlen(out) < LL_MAX_DIMS)
            strncat(out, &c, 1);
    ll_val v[2];
    int type = o->in[0]->type;
    ll_dtype t = ll_onnx_whole(type) ? LL_F64 : ll_onnx_dtype(type);
    for (int i = 0; i <= n; i++) {
        WANT(o, o->in[i] && o->in[i]->shape.n == (int)strlen(in[i]), "\"%s\"", given);
        v[i] = sum_alone(o->g, ll_cast(o->g, ll_onnx_plain(o, o->in[i]), t), in[i], in[1 - i], out);
    }
    if (n)
        snprintf(spec, sizeof spec, "%s,%s->%s", in[0], in[1], out);
    else
        snprintf(spec, sizeof spec, "%s->%s", in[0], out);
    ll_val y = n                    ? ll_matmul(o->g, spec, v[0], v[1])
               : strcmp(in[0], out) ? ll_transpose(o->g, v[0], spec)
                                    : v[0];
    return ll_onnx_give(o, 0, type, y, NULL);
}

const row ll_rows_image[] = {
    {"Resize", resize}, {"Upsample", resize}, {"Attention", attention}, {"Einsum", einsum}, {0},
};
