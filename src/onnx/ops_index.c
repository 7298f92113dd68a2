/* ops_index.c: elements by index, and which elements those are. */
#include "onnx/walk.h"

#include <math.h>

/* Indices of a dimension of d that count from its end, from its start. */
static ll_val from_start(op *o, ll_val v, double d)
{
    ll_val from_end = ll_less(o->g, v, ll_one(o, v, 0));
    return ll_add(o->g, v, ll_mul(o->g, from_end, ll_one(o, v, d)));
}

/* Indices of a dimension of d as i32, counted from its start. */
static ll_val index_of(op *o, value *x, int64_t d)
{
    ll_val v = ll_onnx_plain(o, x);
    if (x->host) {
        int64_t least = 0;
        for (int64_t i = 0; i < ll_numel(&x->shape) && ll_onnx_whole(x->type); i++)
            least = fmin((double)least, ll_onnx_at(x->host, i));
        if (least >= 0) return v;
    }
    return from_start(o, v, (double)d);
}

/* What can be gathered: whole numbers by way of f64. */
static ll_val movable(op *o, ll_val v)
{
    return ll_graph_dtype(o->g, v) == LL_I32 ? ll_cast(o->g, v, LL_F64) : v;
}

static ll_err axis_of(op *o, int64_t initial, int *out)
{
    return ll_onnx_axis(o, ll_attr_int(o, "axis", initial), o->in[0]->shape.n, out);
}

static ll_err gather(op *o)
{
    value *x = o->in[0];
    int axis;
    WANT(o, has(o, 1) && ll_onnx_whole(o->in[1]->type), "no indices");
    TRY(axis_of(o, 0, &axis));
    WANT(o, x->shape.n - 1 + o->in[1]->shape.n <= LL_MAX_DIMS, "more than %d dimensions",
         LL_MAX_DIMS);
    ll_val index = index_of(o, o->in[1], x->shape.d[axis]);
    return ll_onnx_give(o, 0, x->type,
                        ll_gather(o->g, movable(o, ll_onnx_plain(o, x)), index, axis), NULL);
}

static ll_err gather_elements(op *o)
{
    value *x = o->in[0];
    int axis;
    WANT(o, has(o, 1) && o->in[1]->shape.n == x->shape.n && ll_onnx_whole(o->in[1]->type),
         "no indices");
    TRY(axis_of(o, 0, &axis));
    ll_val v = ll_onnx_plain(o, x), index = index_of(o, o->in[1], x->shape.d[axis]);
    for (int i = 0; i < x->shape.n; i++) /* an index may have less of the other dimensions */
        if (i != axis) v = ll_slice(o->g, v, i, 0, o->in[1]->shape.d[i]);
    return ll_onnx_give(o, 0, x->type, ll_gather_elements(o->g, movable(o, v), index, axis), NULL);
}

/* Rows of x, [batch.., rest..] by indices [batch.., .., k] of its next k dimensions, as indices of
 * x flattened: first [.., rest]. */
static ll_err flat_index(op *o, const value *x, value *index, int batch, ll_val *out,
                         ll_shape *lead, ll_shape *rest, int64_t *rows)
{
    int n = index->shape.n,
        k = n && index->shape.d[n - 1] <= LL_MAX_DIMS ? (int)index->shape.d[n - 1] : 0;
    WANT(o, batch >= 0 && n > batch && k >= 1 && batch + k <= x->shape.n,
         "indices of %d dimensions", k);
    ll_val v = ll_onnx_plain(o, index), sum = {0};
    *rows = 1;
    for (int i = 0; i < batch; i++)
        WANT(o, index->shape.d[i] == x->shape.d[i], "a batch of %ld", index->shape.d[i]);
    for (int i = k - 1; i >= 0; i--) {
        int64_t d = x->shape.d[batch + i];
        ll_val part = from_start(o, ll_slice(o->g, v, n - 1, i, i + 1), (double)d);
        part = ll_mul(o->g, part, ll_one(o, part, (double)*rows));
        sum = sum.id ? ll_add(o->g, sum, part) : part;
        *rows *= d;
    }
    for (int i = batch - 1; i >= 0; i--) {
        int64_t d = x->shape.d[i];
        ll_shape s = {.n = n};
        for (int j = 0; j < n; j++) s.d[j] = j == i ? d : 1;
        ll_val at = ll_reshape(o->g, ll_arange(o->g, LL_I32, d, 0, (double)*rows), s);
        sum = ll_add(o->g, sum, at);
        *rows *= d;
    }
    *lead = index->shape;
    lead->n--;
    *rest = (ll_shape){0};
    for (int i = batch + k; i < x->shape.n; i++) rest->d[rest->n++] = x->shape.d[i];
    WANT(o, lead->n + rest->n <= LL_MAX_DIMS, "more than %d dimensions", LL_MAX_DIMS);
    *out = ll_reshape(o->g, sum, LL_SHAPE(ll_numel(lead)));
    return LL_OK;
}

static ll_err gather_nd(op *o)
{
    value *x = o->in[0];
    ll_shape lead, rest;
    ll_val index;
    int64_t rows;
    WANT(o, has(o, 1), "no indices");
    TRY(flat_index(o, x, o->in[1], (int)ll_attr_int(o, "batch_dims", 0), &index, &lead, &rest,
                   &rows));
    ll_val v = ll_reshape(o->g, ll_onnx_plain(o, x), LL_SHAPE(rows, ll_numel(&rest)));
    for (int i = 0; i < rest.n; i++) lead.d[lead.n++] = rest.d[i];
    return ll_onnx_give(o, 0, x->type,
                        ll_reshape(o->g, ll_gather(o->g, movable(o, v), index, 0), lead), NULL);
}

static bool adds(op *o)
{
    return !strcmp(ll_attr_text(o, "reduction", "none"), "add");
}

/* x [rows, ..] where update stands in its place; adds: together. Indices that come twice are right
 * only for adding. */
static ll_err scatter(op *o, ll_val x, ll_val index, ll_val update, int dim, ll_val *out)
{
    const char *how = ll_attr_text(o, "reduction", "none");
    bool add = !strcmp(how, "add");
    WANT(o, add || !strcmp(how, "none"), "reduction %s", how);
    ll_dtype t = ll_graph_dtype(o->g, x), wide = t == LL_I32 ? LL_F64 : t;
    ll_shape s = ll_graph_shape(o->g, x), part = ll_graph_shape(o->g, update);
    x = ll_cast(o->g, x, wide), update = ll_cast(o->g, update, wide);
    ll_val ones = ll_fill(o->g, wide, part, 1);
    ll_val sum = ll_scatter_add(o->g, update, index, dim, s.d[dim]);
    ll_val hit = ll_scatter_add(o->g, ones, index, dim, s.d[dim]);
    for (int i = 0; i < s.n; i++) {
        if (i == dim) continue;
        sum = ll_pad(o->g, sum, i, 0, s.d[i] - part.d[i]);
        hit = ll_pad(o->g, hit, i, 0, s.d[i] - part.d[i]);
    }
    *out = add ? ll_add(o->g, x, sum) : ll_select(o->g, hit, sum, x);
    return LL_OK;
}

/* Whether the known indices name each place once; unknown ones are not trusted to. */
static ll_err once(op *o)
{
    const host *h;
    if (adds(o)) return LL_OK;
    ll_err rc = o->w->know(o->w, o->in[1], &h);
    WANT(o, rc == LL_OK, "indices that are computed: one may come twice");
    return LL_OK;
}

static int64_t place(const host *h, int64_t i, int64_t d)
{
    int64_t v = ((const int64_t *)h->data)[i];
    return v < 0 ? v + d : v;
}

static ll_err scatter_elements(op *o)
{
    value *x = o->in[0];
    int axis;
    ll_val y;
    WANT(o, has(o, 2) && has(o, 1) && o->in[1]->shape.n == x->shape.n, "no updates");
    TRY(axis_of(o, 0, &axis));
    TRY(once(o));
    const host *h = o->in[1]->host;
    int64_t n = h ? ll_numel(&h->shape) : 0, d = o->in[1]->shape.d[axis], inner = 1;
    for (int i = axis + 1; i < x->shape.n; i++) inner *= o->in[1]->shape.d[i];
    bool add = adds(o);
    for (int64_t i = 0; i < n && !add; i++)
        for (int64_t k = 1; i / inner % d + k < d; k++)
            WANT(o, place(h, i, x->shape.d[axis]) != place(h, i + k * inner, x->shape.d[axis]),
                 "an index that comes twice");
    ll_val index = index_of(o, o->in[1], x->shape.d[axis]);
    TRY(scatter(o, ll_onnx_plain(o, x), index, ll_onnx_plain(o, o->in[2]), axis, &y));
    return ll_onnx_give(o, 0, x->type, y, NULL);
}

static ll_err scatter_nd(op *o)
{
    value *x = o->in[0];
    ll_shape lead, rest;
    ll_val index, y;
    int64_t rows;
    WANT(o, has(o, 2) && has(o, 1), "no updates");
    TRY(once(o));
    TRY(flat_index(o, x, o->in[1], 0, &index, &lead, &rest, &rows));
    int64_t n = ll_numel(&lead), cols = ll_numel(&rest),
            k = o->in[1]->shape.d[o->in[1]->shape.n - 1];
    const host *h = o->in[1]->host;
    bool add = adds(o);
    for (int64_t i = 0; i < n && !add; i++)
        for (int64_t j = 0; j < i; j++) {
            bool same = true;
            for (int64_t c = 0; c < k && same; c++)
                same = place(h, i * k + c, x->shape.d[c]) == place(h, j * k + c, x->shape.d[c]);
            WANT(o, !same, "an index that comes twice");
        }
    ll_val v = ll_reshape(o->g, ll_onnx_plain(o, x), LL_SHAPE(rows, cols));
    ll_val u = ll_reshape(o->g, ll_onnx_plain(o, o->in[2]), LL_SHAPE(n, cols));
    index = ll_spread(o->g, ll_reshape(o->g, index, LL_SHAPE(n, 1)), &LL_SHAPE(n, cols));
    TRY(scatter(o, v, index, u, 0, &y));
    return ll_onnx_give(o, 0, x->type, ll_reshape(o->g, y, x->shape), NULL);
}

/* values are [off, on] */
static ll_err one_hot(op *o)
{
    value *x = o->in[0];
    double depth;
    int axis;
    WANT(o, has(o, 2) && ll_numel(&o->in[2]->shape) == 2, "no values");
    TRY(ll_onnx_number(o, 1, &depth));
    WANT(o, depth >= 1 && depth < 1 << 24 && x->shape.n < LL_MAX_DIMS, "a depth of %g", depth);
    TRY(ll_onnx_axis(o, ll_attr_int(o, "axis", -1), x->shape.n + 1, &axis));
    ll_val index = ll_onnx_plain(o, x), values = ll_onnx_plain(o, o->in[2]);
    if (!ll_onnx_whole(x->type)) index = ll_cast(o->g, index, LL_I32);
    ll_val hot = ll_one_hot(o->g, from_start(o, index, depth), (int64_t)depth, LL_F32);
    ll_val off = ll_reshape(o->g, ll_slice(o->g, values, 0, 0, 1), LL_SCALAR);
    ll_val on = ll_reshape(o->g, ll_slice(o->g, values, 0, 1, 2), LL_SCALAR);
    hot = ll_cast(o->g, hot, ll_graph_dtype(o->g, on));
    order lies = ll_plain;
    for (int i = axis; i < x->shape.n; i++) lies.d[i] = (int8_t)(i + 1);
    lies.d[x->shape.n] = (int8_t)axis;
    return ll_onnx_give(o, 0, o->in[2]->type, ll_select(o->g, hot, on, off), &lies);
}

/* kind 1: the least */
static ll_err arg_most(op *o)
{
    value *x = o->in[0];
    int axis;
    TRY(axis_of(o, 0, &axis));
    bool last = ll_attr_int(o, "select_last_index", 0) != 0;
    ll_val v = ll_onnx_plain(o, x);
    if (ll_onnx_whole(x->type)) v = ll_cast(o->g, v, LL_F64);
    if (last) v = ll_flip(o->g, v, axis);
    ll_val y = (o->row->kind ? ll_argmin : ll_argmax)(o->g, v, axis);
    if (last) y = ll_sub(o->g, ll_one(o, y, (double)(x->shape.d[axis] - 1)), y);
    ll_shape s = x->shape;
    s.d[axis] = 1;
    if (ll_attr_int(o, "keepdims", 1)) y = ll_reshape(o->g, y, s);
    return ll_onnx_give(o, 0, ONNX_INT64, y, NULL);
}

static ll_err top_k(op *o)
{
    value *x = o->in[0];
    double k = (double)ll_attr_int(o, "k", 0);
    int axis;
    order lies;
    if (has(o, 1)) TRY(ll_onnx_number(o, 1, &k));
    TRY(axis_of(o, -1, &axis));
    WANT(o, k >= 0 && k <= (double)x->shape.d[axis], "%g of %ld", k, x->shape.d[axis]);
    bool least = !ll_attr_int(o, "largest", 1);
    ll_val v = ll_onnx_with_last(o, x, axis, &lies), index;
    if (ll_onnx_whole(x->type)) v = ll_cast(o->g, v, LL_F64);
    ll_val y = ll_top_k(o->g, least ? ll_neg(o->g, v) : v, (int64_t)k, &index);
    TRY(ll_onnx_give(o, 0, x->type, least ? ll_neg(o->g, y) : y, &lies));
    return ll_onnx_give(o, 1, ONNX_INT64, index, &lies);
}

static ll_err cumsum(op *o)
{
    value *x = o->in[0];
    double given;
    int axis;
    order lies;
    TRY(ll_onnx_number(o, 1, &given));
    WANT(o, fabs(given) <= LL_MAX_DIMS, "axis %g", given);
    TRY(ll_onnx_axis(o, (int64_t)given, x->shape.n, &axis));
    ll_val v = ll_onnx_any(o, x, &lies);
    if (ll_onnx_whole(x->type)) v = ll_cast(o->g, v, LL_F64);
    v = ll_cumsum(o->g, v, ll_lies_at(&lies, axis), ll_attr_int(o, "exclusive", 0) != 0,
                  ll_attr_int(o, "reverse", 0) != 0);
    return ll_onnx_give(o, 0, x->type, v, &lies);
}

/* The first few of each sequence, turned around. */
static ll_err reverse_sequence(op *o)
{
    value *x = o->in[0];
    int64_t time = ll_attr_int(o, "time_axis", 0), batch = ll_attr_int(o, "batch_axis", 1), n[256];
    int count;
    WANT(o, x->shape.n >= 2 && time + batch == 1 && time * batch == 0, "axes %ld and %ld", time,
         batch);
    TRY(ll_onnx_ints(o, 1, n, 256, &count));
    WANT(o, count == x->shape.d[batch], "%d lengths", count);
    int64_t t = x->shape.d[time];
    host *h = ll_onnx_host(o->w->arena, ONNX_INT64, &LL_SHAPE(count * t));
    CHECK(h, LL_E_MEM, "no memory");
    for (int64_t b = 0; b < count; b++) {
        WANT(o, n[b] >= 0 && n[b] <= t, "a length of %ld", n[b]);
        for (int64_t i = 0; i < t; i++)
            ((int64_t *)h->data)[b * t + i] = b * t + (i < n[b] ? n[b] - 1 - i : i);
    }
    order lies;
    ll_val v = ll_onnx_with(o, x, (int)batch, 0, &lies);
    WANT(o, lies.d[1] == time, "a sequence that lies otherwise");
    ll_shape s = ll_graph_shape(o->g, v);
    v = ll_reshape(o->g, v, LL_SHAPE(count * t, -1));
    v = ll_gather(o->g, movable(o, v), ll_onnx_plain(o, ll_onnx_known(o, h)), 0);
    return ll_onnx_give(o, 0, x->type, ll_reshape(o->g, v, s), &lies);
}

/* Those of an axis, or of all elements, where a known condition holds. */
static ll_err compress(op *o)
{
    value *x = o->in[0];
    int64_t hold[4096], index[4096];
    int n, count = 0, axis = 0;
    TRY(ll_onnx_ints(o, 1, hold, 4096, &n));
    for (int i = 0; i < n; i++)
        if (hold[i]) index[count++] = i;
    ll_val v = ll_onnx_plain(o, x);
    if (ll_attr(o, "axis"))
        TRY(axis_of(o, 0, &axis));
    else
        v = ll_reshape(o->g, v, LL_SHAPE(ll_numel(&x->shape)));
    TRY(ll_pick(o, v, axis, index, count, &v));
    return ll_onnx_give(o, 0, x->type, v, NULL);
}

const row ll_rows_index[] = {
    {"Gather", gather},
    {"GatherElements", gather_elements},
    {"GatherND", gather_nd},
    {"Scatter", scatter_elements},
    {"ScatterElements", scatter_elements},
    {"ScatterND", scatter_nd},
    {"OneHot", one_hot},
    {"ArgMax", arg_most, .kind = 0},
    {"ArgMin", arg_most, .kind = 1},
    {"TopK", top_k},
    {"CumSum", cumsum},
    {"ReverseSequence", reverse_sequence},
    {"Compress", compress},
    {0},
};
