/* resample: one dimension of a tensor times a matrix [out, image] of few numbers a row, made from
 * a formula (kern/resample.h), or times its transpose: each other's gradient. Resizing, nearest to
 * cubic, is one for each dimension; so are adaptive averages, and a reversed dimension.
 *
 * Cutting. The dimension is a window's loop: outputs read the pixels that their rows have, pixels
 * of a transpose the outputs that have them. A part keeps the whole's formula and says where it
 * begins. */
#include "op/op_int.h"
#include "op/rows.h"
#include "kern/resample.h"

LL_KERNELS(resample)
static const ll_op resample;

enum { WINDOW = 'w' };

/* The pixels that outputs [o.from, o.to) take. */
static ll_range pixels(const ll_resample_attr *a, ll_range o)
{
    if (o.to <= o.from) return (ll_range){0, 0};
    ll_taps first = ll_taps_of(a, o.from), last = ll_taps_of(a, o.to - 1);
    if (last.from < first.from) return (ll_range){last.from, first.from + first.n};
    return (ll_range){first.from, last.from + last.n};
}

/* The outputs that take any of these pixels. */
static ll_range outputs(const ll_resample_attr *a, ll_range i)
{
    ll_range o = {0, 0};
    if (i.to <= i.from) return o;
    o.from = ll_taps_first(a, i.from, 0, a->out, false);
    o.to = ll_taps_first(a, i.to, o.from, a->out, true);
    return o;
}

static ll_err infer(ll_infer *i)
{
    const ll_resample_attr *a = (const ll_resample_attr *)i->attr;
    const int64_t most = (int64_t)1 << 31;
    i->out[0] = i->in[0];
    TRY(ll_check_float(i->in[0].dtype, "the operand is"));
    TRY(ll_check_dim(a->dim, &i->in[0].shape));
    CHECK(a->kind >= 0 && a->kind < LL_N_TAKE && (a->back == 0 || a->back == 1) &&
              !(a->back && a->kind == LL_TAKE_REVERSE),
          LL_E_ARG, "kind %ld, back %ld", a->kind, a->back);
    CHECK(a->image >= 1 && a->out >= 1 && a->image < most && a->out < most, LL_E_SHAPE,
          "from %ld to %ld, expected at least 1 of each and less than 2^31", a->image, a->out);
    CHECK(a->num > 0 && a->den > 0 && isfinite(a->num) && isfinite(a->den) && isfinite(a->pre) &&
              isfinite(a->shift) && isfinite(a->cubic),
          LL_E_ARG, "a ratio of %g to %g, expected both above 0", a->num, a->den);
    CHECK(a->kind != LL_TAKE_REVERSE || a->image == a->out, LL_E_ARG, "%ld reversed are not %ld",
          a->image, a->out);
    int64_t *d = &i->out[0].shape.d[a->dim], have = *d;
    bool inside = a->size >= 0 && a->at[0] >= 0 && a->at[1] >= 0 &&
                  a->at[!a->back] <= a->out + a->image &&
                  a->at[!a->back] + a->size <= (a->back ? a->image : a->out) &&
                  a->at[a->back] <= (a->back ? a->out : a->image) - have;
    CHECK(inside, LL_E_SHAPE, "rows %ld and on of %ld, from %ld at %ld of %ld", a->at[!a->back],
          (a->back ? a->image : a->out), have, a->at[a->back], (a->back ? a->out : a->image));
    ll_range rows = {a->at[!a->back], a->at[!a->back] + a->size};
    ll_range need = a->back ? outputs(a, rows) : pixels(a, rows);
    CHECK(need.from >= need.to || (need.from >= a->at[a->back] && need.to <= a->at[a->back] + have),
          LL_E_SHAPE, "%ld rows of %ld to %ld that are read", have, need.from, need.to);
    *d = a->size;
    return LL_OK;
}

static ll_err loops(const void *attr, int, const ll_type *in, char dims[LL_DIMS_TEXT])
{
    const ll_resample_attr *a = (const ll_resample_attr *)attr;
    for (int side = 0; side < 2; side++) {
        for (int i = 0; i < in[0].shape.n; i++) *dims++ = (char)(i == a->dim ? WINDOW : 'a' + i);
        dims = strcpy(dims, side ? "" : "->") + (side ? 0 : 2);
    }
    return LL_OK;
}

static ll_err split(const void *attr, const ll_loops *l, int loop, ll_range range, const ll_type *,
                    ll_part *part)
{
    const ll_resample_attr *a = (const ll_resample_attr *)attr;
    ll_resample_attr *mine = (ll_resample_attr *)part->attr;
    if (l->letter[loop] != WINDOW) return LL_OK;
    int64_t begin = a->at[!a->back], other = a->at[a->back];
    ll_range rows = {begin + range.from, begin + range.to};
    ll_range need = a->back ? outputs(a, rows) : pixels(a, rows);
    if (need.from >= need.to) need = (ll_range){other, other};
    mine->at[!a->back] = rows.from;
    mine->at[a->back] = need.from;
    mine->size = range.to - range.from;
    part->in[0] = (ll_range){need.from - other, need.to - other};
    return LL_OK;
}

/* Every element is the sum of its row's numbers; of the transpose, of out / image as many. */
static double cost(const void *attr, const ll_loops *l)
{
    const ll_resample_attr *a = (const ll_resample_attr *)attr;
    double n = 2 * (double)ll_taps_of(a, a->out / 2).n;
    for (int i = 0; i < l->n; i++) n *= (double)l->extent[i];
    return a->back ? n * (double)a->out / (double)a->image : n;
}

static void grad(ll_bwd *b)
{
    ll_resample_attr a = *(const ll_resample_attr *)b->attr;
    if (a.kind != LL_TAKE_REVERSE) a.back = !a.back;
    if (a.kind ==
        LL_TAKE_REVERSE) { /* a part of a reversal: what it read is made of what it made */
        int64_t at = a.at[0];
        a.at[0] = a.at[1], a.at[1] = at;
    }
    a.size = ll_graph_shape(b->g, b->in[0]).d[a.dim];
    b->din[0] = LL_EMIT(b->g, &resample, &a, b->dout[0]);
}

static const ll_op resample = {
    LL_REF_OP(resample, POOL, 1, 1, .scratch = resample_cpu_scratch),
    LL_ATTRS(ll_resample_attr, dim, kind, back, image, out, at, size, pre, num, den, shift, cubic),
    .window = "w",
    .infer = infer,
    .loops = loops,
    .split = split,
    .cost = cost,
    .grad = grad,
    .trials =
        {"f32[2,5,3] {dim=1, kind=0, back=0, image=5, out=11, size=11, num=5, den=11}",
         "f32[2,7,3] {dim=1, kind=1, back=0, image=7, out=3, size=3, pre=0.5, num=7, den=3, "
         "shift=-1}",
         "f32[2,5,3,2] {dim=2, kind=2, back=0, image=3, out=8, size=8, pre=0.5, num=3, den=8, "
         "shift=-0.5}",
         "f32[9,4] {dim=0, kind=2, back=1, image=4, out=9, size=4, num=3, den=8}",
         "f32[2,7,3] {dim=1, kind=3, back=0, image=7, out=12, size=12, pre=0.5, num=7, den=12, "
         "shift=-0.5, cubic=-0.75}",
         "f32[12,5] {dim=0, kind=3, back=1, image=3, out=12, size=3, pre=0.5, num=3, den=12, "
         "shift=-0.5, cubic=-0.5}",
         "f32[2,17,3] {dim=1, kind=4, back=0, image=17, out=3, size=3, num=1, den=1}",
         "f32[2,3,5] {dim=1, kind=4, back=1, image=7, out=3, size=7, num=1, den=1}",
         "f32[3,6,2] {dim=1, kind=5, back=0, image=6, out=6, size=6, num=1, den=1}",
         "f32[5] {dim=0, kind=0, back=1, image=12, out=5, size=12, num=12, den=5}"},
};

/* ---- builders ---- */

static void set_coords(ll_resample_attr *a, const ll_resize *r, double scale)
{
    a->num = scale > 0 ? 1 : (double)a->image;
    a->den = scale > 0 ? scale : (double)a->out;
    if (r->coords == LL_ALIGN_CORNERS) {
        a->num = a->image > 1 ? (double)(a->image - 1) : 1;
        a->den = a->out > 1 ? (double)(a->out - 1) : 1;
    }
    if (r->coords == LL_HALF_PIXEL) a->pre = 0.5, a->shift = -0.5;
}

static void set_kind(ll_resample_attr *a, const ll_resize *r)
{
    static const ll_resample_kind kinds[] = {LL_TAKE_FLOOR, LL_TAKE_LINEAR, LL_TAKE_CUBIC};
    a->kind = kinds[r->mode];
    a->cubic = r->mode != LL_CUBIC ? 0 : r->cubic != 0 ? r->cubic : -0.75;
    if (r->mode != LL_NEAREST) return;
    if (r->round == LL_CEIL || r->round == LL_ROUND_DOWN) a->kind = LL_TAKE_CEIL;
    if (r->round == LL_ROUND_DOWN) a->shift -= 0.5;
    if (r->round == LL_ROUND_UP) a->shift += 0.5;
}

ll_val ll_resize_image(ll_graph *g, ll_val x, const ll_resize *r)
{
    if (!ll_has_argument(g, "resize", "r", r) || !ll_is_spatial(g, "resize", x)) return (ll_val){0};
    ll_shape s = ll_graph_shape(g, x);
    if (r->mode > LL_CUBIC || r->coords > LL_ASYMMETRIC || r->round > LL_ROUND_UP)
        return ll_reject(g, LL_E_ARG, "%sresize: no mode %d, coordinates %d, rounding %d",
                         ll_scope(g), (int)r->mode, (int)r->coords, (int)r->round);
    for (int k = 0; k < s.n - 2; k++) {
        ll_resample_attr a = {.dim = 1 + k, .image = s.d[1 + k]};
        a.out = a.size = r->size[k] ? r->size[k] : (int64_t)floor((double)a.image * r->scale[k]);
        if (!(r->scale[k] >= 0 && r->scale[k] < 1 << 20) || r->size[k] < 0 || a.out < 1)
            return ll_reject(g, LL_E_SHAPE,
                             "%sresize: dimension %d of %ld to a size of %ld or by %g; expected "
                             "one of them above 0",
                             ll_scope(g), 1 + k, a.image, r->size[k], r->scale[k]);
        set_coords(&a, r, r->scale[k]);
        set_kind(&a, r);
        if (a.out != a.image || a.num != a.den) x = LL_EMIT(g, &resample, &a, x);
    }
    return x;
}

ll_val ll_adaptive_avg_pool(ll_graph *g, ll_val x, int64_t out_h, int64_t out_w)
{
    ll_shape s = ll_graph_shape(g, x);
    if (!x.id || s.n != 4 || out_h < 1 || out_w < 1 || s.d[1] < 1 || s.d[2] < 1) {
        char text[LL_SHAPE_TEXT];
        return ll_reject(g, LL_E_SHAPE,
                         "%sadaptive_avg_pool of %s to %ld x %ld, expected an image [n,h,w,c]",
                         ll_scope(g), x.id ? ll_shape_print(&s, text) : "none", out_h, out_w);
    }
    if (s.d[1] % out_h == 0 && s.d[2] % out_w == 0) /* cells are windows */
        return ll_avg_pool(g, x, &(ll_window){.size = {s.d[1] / out_h, s.d[2] / out_w}});
    for (int k = 0; k < 2; k++) {
        int64_t out = k ? out_w : out_h;
        ll_resample_attr a = {.dim = 1 + k, .kind = LL_TAKE_AREA, .image = s.d[1 + k], .out = out};
        a.size = out;
        a.num = a.den = 1;
        x = LL_EMIT(g, &resample, &a, x);
    }
    return x;
}

ll_val ll_flip(ll_graph *g, ll_val x, int dim)
{
    if (!ll_is_dim(g, "flip", x, dim)) return (ll_val){0};
    int64_t n = ll_graph_shape(g, x).d[dim];
    if (n < 2) return x;
    ll_resample_attr a = {.dim = dim, .kind = LL_TAKE_REVERSE, .image = n, .out = n, .size = n};
    a.num = a.den = 1;
    return LL_EMIT(g, &resample, &a, x);
}

const ll_op *const ll_ops_resample[] = {&resample, NULL};
