/* value.c: values in the graph, in the order of dimensions that an op wants; attributes. */
#include "onnx/walk.h"
#include "onnx/scope.h"

#include <limits.h>
#include <math.h>

const order ll_plain = {{0, 1, 2, 3, 4, 5}};

order ll_last(int n)
{
    order o = ll_plain;
    for (int i = 1; i + 1 < n; i++) o.d[i] = (int8_t)(i + 1);
    if (n > 1) o.d[n - 1] = 1;
    return o;
}

static bool same_order(const order *a, const order *b, int n)
{
    return !memcmp(a->d, b->d, (size_t)n);
}

int ll_lies_at(const order *o, int dim)
{
    int i = 0;
    while (i < LL_MAX_DIMS - 1 && o->d[i] != dim) i++;
    return i;
}

static ll_shape ordered(const ll_shape *s, const order *lies)
{
    ll_shape out = {.n = s->n};
    for (int i = 0; i < s->n; i++) out.d[i] = s->d[lies->d[i]];
    return out;
}

ll_shape ll_without(const ll_shape *s, const order *lies, const bool *gone, order *left)
{
    int at[LL_MAX_DIMS];
    ll_shape out = {0};
    *left = ll_plain;
    for (int i = 0, k = 0; i < s->n; i++) at[i] = gone[i] ? -1 : k++;
    for (int i = 0; i < s->n; i++) {
        if (gone[lies->d[i]]) continue;
        left->d[out.n] = (int8_t)at[lies->d[i]];
        out.d[out.n++] = s->d[lies->d[i]];
    }
    return out;
}

/* v, of ONNX's shape s, from one order to another. Where only dimensions of 1 change places nothing
 * moves. */
static ll_val reorder(ll_graph *g, ll_val v, const ll_shape *s, const order *from, const order *to)
{
    if (!v.id || same_order(from, to, s->n)) return v;
    char spec[2 * LL_MAX_DIMS + 3], *at = spec;
    int8_t a[LL_MAX_DIMS], b[LL_MAX_DIMS];
    int na = 0, nb = 0;
    for (int i = 0; i < s->n; i++) {
        if (s->d[from->d[i]] != 1) a[na++] = from->d[i];
        if (s->d[to->d[i]] != 1) b[nb++] = to->d[i];
    }
    if (!memcmp(a, b, (size_t)na)) return ll_reshape(g, v, ordered(s, to));
    for (int i = 0; i < s->n; i++) *at++ = (char)('a' + from->d[i]);
    *at++ = '-', *at++ = '>';
    for (int i = 0; i < s->n; i++) *at++ = (char)('a' + to->d[i]);
    *at = '\0';
    return ll_transpose(g, v, spec);
}

/* ---- what enters the graph ---- */

/* Random numbers like those of the file: matrices of their deviation, vectors their mean. */
static ll_init like(const host *h)
{
    double n = (double)ll_numel(&h->shape), sum = 0, squares = 0;
    for (int64_t i = 0; i < ll_numel(&h->shape); i++) sum += ll_onnx_at(h, i) / n;
    if (h->shape.n < 2) return (ll_init){.kind = LL_CONSTANT, .a = sum};
    for (int64_t i = 0; i < ll_numel(&h->shape); i++) squares += pow(ll_onnx_at(h, i) - sum, 2) / n;
    return (ll_init){.kind = LL_NORMAL, .a = sqrt(squares)};
}

static ll_val declare(op *o, value *x, const order *lies)
{
    walk *w = o->w;
    ll_shape s = ordered(&x->shape, lies);
    ll_dtype t = ll_onnx_dtype(x->type);
    if (x->fixed) {
        void *data;
        size_t bytes;
        leaf l = {x, x->name, *lies};
        if (ll_onnx_leaf_data(w->arena, &l, w->folding, &data, &bytes) == LL_OK)
            return ll_constant(o->g, t, s, data);
        ll_graph_reject(o->g, "%s", ll_arena_strdup(w->arena, ll_error_message()));
        return (ll_val){0};
    }
    bool model = w->mode == WALK_MODEL;
    const char *name = model ? x->name : ll_arena_printf(w->arena, "%d:%s", w->n_leaf, x->name);
    LL_PUSH(w->arena, w->leaves, w->n_leaf, w->leaf_capacity, (leaf){x, name, *lies});
    if (!model) return ll_batch(o->g, name, t, s);
    return (x->kept ? ll_state : ll_param)(o->g, name, s, like(x->host));
}

/* Of a last layer made anew: as ll_linear begins; x has its outputs in one dimension. */
static ll_val begin(op *o, value *x, const order *lies)
{
    ll_shape s = ordered(&x->shape, lies);
    double fan = (double)ll_numel(&s) / (double)o->w->head;
    return ll_param(o->g, x->name, s,
                    s.n > 1 ? (ll_init){LL_UNIFORM, 1 / sqrt(fan)} : (ll_init){LL_ZEROS, 0});
}

ll_val ll_onnx_as(op *o, value *x, const order *lies)
{
    if (!x->v.id && x->fresh) {
        x->v = begin(o, x, lies);
        x->lies = *lies;
    }
    if (!x->v.id && x->splat)
        return ll_fill(o->g, ll_onnx_dtype(x->type), ordered(&x->shape, lies), x->same);
    if (!x->v.id && x->host) {
        x->v = declare(o, x, lies);
        x->lies = *lies;
    }
    return reorder(o->g, x->v, &x->shape, &x->lies, lies);
}

ll_val ll_onnx_plain(op *o, value *x)
{
    return ll_onnx_as(o, x, &ll_plain);
}

void ll_onnx_weights_from(op *o, int first)
{
    for (int i = first; i < o->n_in && o->w->mode == WALK_MODEL; i++) {
        value *x = o->in[i];
        if (!x || !x->fixed || !x->host || x->v.id || ll_onnx_dtype(x->type) != LL_F32) continue;
        x->weight = true;
        x->fixed = false;
    }
}

ll_val ll_onnx_any(op *o, value *x, order *lies)
{
    *lies = x->v.id ? x->lies : ll_plain;
    return ll_onnx_as(o, x, lies);
}

ll_val ll_onnx_with(op *o, value *x, int dim, int at, order *lies)
{
    order have = x->v.id ? x->lies : ll_plain;
    int n = 0;
    for (int i = 0; i < x->shape.n; i++) {
        if (n == at) n++;
        if (have.d[i] != dim) lies->d[n++] = have.d[i];
    }
    lies->d[at] = (int8_t)dim;
    return ll_onnx_as(o, x, lies);
}

ll_val ll_onnx_with_last(op *o, value *x, int dim, order *lies)
{
    return ll_onnx_with(o, x, dim, x->shape.n - 1, lies);
}

value *ll_onnx_known(op *o, const host *h)
{
    value *x = LL_NEW(o->w->arena, value);
    *x = (value){"known", h->type, h->shape, .host = h, .fixed = true};
    return x;
}

ll_err ll_onnx_leaf_data(ll_arena *a, const leaf *l, bool ends, void **data, size_t *bytes)
{
    const host *h = l->value->host;
    ll_dtype t = ll_onnx_dtype(h->type);
    int64_t n = ll_numel(&h->shape), step[LL_MAX_DIMS], at[LL_MAX_DIMS] = {0}, from = 0;
    *bytes = (size_t)n * ll_dtype_bytes(t);
    CHECK(*data = ll_arena_try(a, *bytes + 1), LL_E_MEM, "not enough memory for %s", l->name);
    int rank = h->shape.n;
    for (int i = 0; i < rank; i++) {
        step[i] = 1;
        for (int k = l->lies.d[i] + 1; k < rank; k++) step[i] *= h->shape.d[k];
    }
    for (int64_t i = 0; i < n; i++) {
        if (t == LL_I32) {
            int64_t v = ((const int64_t *)h->data)[from];
            bool end = ends && (v == INT64_MAX || v == INT64_MIN);
            CHECK(end || (v >= INT_MIN && v <= INT_MAX), LL_E_ARG,
                  "%s has %ld, which is more than 32 bits", l->value->name, v);
            ((int32_t *)*data)[i] = end ? (v > 0 ? INT_MAX : INT_MIN) : (int32_t)v;
        } else {
            size_t b = ll_dtype_bytes(t);
            memcpy((char *)*data + (size_t)i * b, (const char *)h->data + (size_t)from * b, b);
        }
        for (int k = rank - 1; k >= 0; k--) {
            from += step[k];
            if (++at[k] < h->shape.d[l->lies.d[k]]) break;
            from -= step[k] * at[k];
            at[k] = 0;
        }
    }
    return LL_OK;
}

/* ---- operands of one rank and order ---- */

static ll_val widened(op *o, value *x, int n, const order *lies)
{
    if (x->shape.n == n) return ll_onnx_as(o, x, lies);
    ll_shape s = {.n = n};
    for (int i = 0; i < n; i++) s.d[i] = i < n - x->shape.n ? 1 : x->shape.d[i - (n - x->shape.n)];
    return reorder(o->g, ll_reshape(o->g, ll_onnx_plain(o, x), s), &s, &ll_plain, lies);
}

ll_err ll_onnx_align(op *o, int n, value *const *x, ll_val *v, order *lies)
{
    int rank = 0;
    *lies = ll_plain;
    for (int i = 0; i < n; i++) {
        WANT(o, x[i], "operand %d was left out", i);
        if (x[i]->shape.n > rank) rank = x[i]->shape.n;
    }
    for (int i = n - 1; i >= 0; i--)
        if (x[i]->shape.n == rank && x[i]->v.id && !same_order(&x[i]->lies, &ll_plain, rank))
            *lies = x[i]->lies;
    for (int i = 0; i < n; i++) v[i] = widened(o, x[i], rank, lies);
    return LL_OK;
}

/* ---- results ---- */

ll_err ll_onnx_give(op *o, int i, int type, ll_val v, const order *lies)
{
    TRY(ll_graph_check(o->g));
    if (i >= o->n_out) return LL_OK;
    value *x = o->out[i];
    WANT(o, ll_onnx_dtype(type) != LL_N_DTYPE, "a result of type %s", ll_onnx_type_name(type));
    x->type = type;
    x->v = ll_cast(o->g, v, ll_onnx_dtype(type));
    TRY(ll_graph_check(o->g));
    x->lies = lies ? *lies : ll_plain;
    ll_shape s = ll_graph_shape(o->g, v);
    x->shape.n = s.n;
    for (int k = 0; k < s.n; k++) x->shape.d[x->lies.d[k]] = s.d[k];
    return LL_OK;
}

ll_err ll_onnx_give_host(op *o, int i, const host *h)
{
    if (i >= o->n_out) return LL_OK;
    value *x = o->out[i];
    x->host = h, x->type = h->type, x->shape = h->shape, x->fixed = true;
    return LL_OK;
}

ll_err ll_onnx_give_ints(op *o, int i, const int64_t *v, int n, bool scalar)
{
    ll_shape s = scalar ? LL_SCALAR : LL_SHAPE(n);
    host *h = ll_onnx_host(o->w->arena, ONNX_INT64, &s);
    CHECK(h, LL_E_MEM, "not enough memory for %d numbers", n);
    memcpy(h->data, v, sizeof *v * (size_t)n);
    return ll_onnx_give_host(o, i, h);
}

ll_val ll_one(op *o, ll_val like, double v)
{
    return ll_fill(o->g, ll_graph_dtype(o->g, like), LL_SCALAR, v);
}

ll_val ll_pad_with(ll_graph *g, ll_val x, int dim, int64_t before, int64_t after, double v)
{
    ll_shape s = ll_graph_shape(g, x);
    if (before < 0 || after < 0)
        x = ll_slice(g, x, dim, before < 0 ? -before : 0, s.d[dim] + (after < 0 ? after : 0));
    if (before < 0) before = 0;
    if (after < 0) after = 0;
    if (v == 0) return before || after ? ll_pad(g, x, dim, before, after) : x;
    ll_val parts[3];
    int n = 0;
    for (int k = 0; k < 3; k++) {
        int64_t size = k == 0 ? before : after;
        s.d[dim] = size;
        if (k == 1)
            parts[n++] = x;
        else if (size)
            parts[n++] = ll_fill(g, ll_graph_dtype(g, x), s, v);
    }
    return ll_concat(g, parts, n, dim);
}

ll_val ll_spread(ll_graph *g, ll_val x, const ll_shape *to)
{
    ll_shape have = ll_graph_shape(g, x), kept = {0};
    char spec[2 * LL_MAX_DIMS + 3] = {0}, all[LL_MAX_DIMS + 1] = {0};
    int lead = to->n - have.n;
    if (ll_shape_equal(&have, to)) return x;
    for (int i = 0; i < to->n; i++) {
        all[i] = (char)('a' + i);
        if (i < lead || have.d[i - lead] != to->d[i]) continue;
        spec[kept.n] = all[i];
        kept.d[kept.n++] = to->d[i];
    }
    if (ll_numel(&have) == ll_numel(to)) return ll_reshape(g, x, *to);
    return ll_broadcast(g, ll_reshape(g, x, kept), strcat(strcat(spec, "->"), all), *to);
}

ll_err ll_pick(op *o, ll_val x, int dim, const int64_t *index, int64_t n, ll_val *out)
{
    enum { MOST = 8 }; /* runs; more of them are gathered */
    ll_val parts[MOST];
    int count = 0;
    for (int64_t i = 0, k; i < n && count <= MOST; i = k) {
        for (k = i + 1; k < n && index[k] == index[k - 1] + 1;) k++;
        if (count < MOST) parts[count] = ll_slice(o->g, x, dim, index[i], index[i] + (k - i));
        count++;
    }
    if (count > MOST) {
        ll_dtype t = ll_graph_dtype(o->g, x);
        host *h = ll_onnx_host(o->w->arena, ONNX_INT64, &LL_SHAPE(n));
        CHECK(h, LL_E_MEM, "no memory");
        memcpy(h->data, index, sizeof *index * (size_t)n);
        x = ll_cast(o->g, x, t == LL_I32 ? LL_F64 : t);
        *out = ll_cast(o->g, ll_gather(o->g, x, ll_onnx_plain(o, ll_onnx_known(o, h)), dim), t);
        return LL_OK;
    }
    *out = count ? ll_concat(o->g, parts, count, dim) : ll_slice(o->g, x, dim, 0, 0);
    return LL_OK;
}

/* ---- attributes ---- */

const Onnx__Attribute *ll_attr(const op *o, const char *name)
{
    for (size_t i = 0; i < o->n->n_attribute; i++) {
        const Onnx__Attribute *a = o->n->attribute[i];
        if (strcmp(a->name, name)) continue;
        if (o->seen && i < 64) *o->seen |= (uint64_t)1 << i;
        if (!*a->ref_attr_name) return a;
        /* of a function's body: the caller's, or the function's default */
        if (!o->scope->caller) return NULL;
        const Onnx__Attribute *given = ll_attr(o->scope->caller, a->ref_attr_name);
        for (size_t k = 0; !given && k < o->scope->f->n_attribute_proto; k++)
            if (!strcmp(o->scope->f->attribute_proto[k]->name, a->ref_attr_name))
                given = o->scope->f->attribute_proto[k];
        return given;
    }
    return NULL;
}

int64_t ll_attr_int(const op *o, const char *name, int64_t initial)
{
    const Onnx__Attribute *a = ll_attr(o, name);
    return a ? a->i : initial;
}

double ll_attr_float(const op *o, const char *name, double initial)
{
    const Onnx__Attribute *a = ll_attr(o, name);
    return a ? (double)a->f : initial;
}

const char *ll_attr_text(const op *o, const char *name, const char *initial)
{
    const Onnx__Attribute *a = ll_attr(o, name);
    if (!a) return initial;
    char *text = ll_arena_alloc(o->w->arena, a->s.len + 1);
    if (a->s.len) memcpy(text, a->s.data, a->s.len);
    return text;
}

int ll_attr_ints(const op *o, const char *name, int64_t *out, int room)
{
    const Onnx__Attribute *a = ll_attr(o, name);
    int n = !a ? 0 : a->n_ints < (size_t)room ? (int)a->n_ints : room;
    for (int i = 0; i < n; i++) out[i] = a->ints[i];
    return n;
}

/* ---- known operands ---- */

ll_err ll_onnx_ints(op *o, int i, int64_t *out, int room, int *n)
{
    const host *h;
    WANT(o, has(o, i), "operand %d was left out", i);
    TRY(o->w->know(o->w, o->in[i], &h));
    int64_t count = ll_numel(&h->shape);
    WANT(o, ll_onnx_whole(h->type) && h->shape.n <= 1, "%s is not a list of integers",
         o->in[i]->name);
    WANT(o, count <= room, "%s has %ld numbers, expected at most %d", o->in[i]->name, count, room);
    memcpy(out, h->data, sizeof *out * (size_t)count);
    *n = (int)count;
    return LL_OK;
}

ll_err ll_onnx_list(op *o, int i, const char *name, int64_t *out, int room, int *n)
{
    const Onnx__Attribute *a = ll_attr(o, name);
    *n = -1;
    if (has(o, i)) return ll_onnx_ints(o, i, out, room, n);
    if (!a) return LL_OK;
    WANT(o, a->n_ints <= (size_t)room, "%s has %zu numbers, expected at most %d", name, a->n_ints,
         room);
    *n = ll_attr_ints(o, name, out, room);
    return LL_OK;
}

ll_err ll_onnx_number(op *o, int i, double *out)
{
    const host *h;
    WANT(o, has(o, i), "operand %d was left out", i);
    TRY(o->w->know(o->w, o->in[i], &h));
    WANT(o, ll_numel(&h->shape) == 1, "%s is not one number", o->in[i]->name);
    *out = ll_onnx_at(h, 0);
    return LL_OK;
}

ll_err ll_onnx_axis(op *o, int64_t given, int n, int *out)
{
    WANT(o, given >= -n && given < n, "axis %ld of %d dimensions", given, n);
    *out = (int)(given < 0 ? given + n : given);
    return LL_OK;
}
