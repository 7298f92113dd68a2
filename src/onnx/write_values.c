/* write_values.c: nodes, numbers, shapes and forms of values on their way to a file. */
#include "onnx/write.h"

enum { ATTR_INT = 2, ATTR_TEXT = 3, ATTR_TENSOR = 4, ATTR_INTS = 7 };

int ll_onnx_type(ll_dtype t)
{
    return t == LL_I32 ? ONNX_INT32 : ONNX_FLOAT;
}

/* ---- nodes ---- */

static const char *fresh(writer *w)
{
    const char *name;
    do name = ll_arena_printf(w->arena, "/%d", w->n_name++);
    while (ll_find(w->g, name).id || !strcmp(name, w->g->results[0].name));
    return name;
}

void ll_wnamed(writer *w, const char *op, const char *const *in, int n, const char *name)
{
    Onnx__Graph *g = w->out;
    Onnx__Node *x = LL_NEW(w->arena, Onnx__Node);
    onnx__node__init(x);
    x->op_type = TEXT(op);
    x->n_input = (size_t)n;
    x->input = n ? (char **)ll_arena_copy(w->arena, in, sizeof *in * (size_t)n) : NULL;
    x->n_output = 1;
    x->output = (char **)ll_arena_copy(w->arena, &name, sizeof name);
    LL_PUSH(w->arena, g->node, g->n_node, w->node_capacity, w->last = x);
}

const char *ll_wnode(writer *w, const char *op, const char *const *in, int n)
{
    const char *name = fresh(w);
    ll_wnamed(w, op, in, n, name);
    return name;
}

static Onnx__Attribute *attribute(writer *w, const char *name, int type)
{
    Onnx__Node *n = w->last;
    Onnx__Attribute *a = LL_NEW(w->arena, Onnx__Attribute);
    Onnx__Attribute **all = LL_NEW_ARRAY(w->arena, Onnx__Attribute *, n->n_attribute + 1);
    onnx__attribute__init(a);
    a->name = TEXT(name);
    a->type = type;
    if (n->n_attribute) memcpy(all, n->attribute, sizeof *all * n->n_attribute);
    all[n->n_attribute++] = a;
    n->attribute = all;
    return a;
}

void ll_wint(writer *w, const char *name, int64_t v)
{
    attribute(w, name, ATTR_INT)->i = v;
}

void ll_wints(writer *w, const char *name, int n, const int64_t *v)
{
    Onnx__Attribute *a = attribute(w, name, ATTR_INTS);
    a->n_ints = (size_t)n;
    a->ints = (int64_t *)ll_arena_copy(w->arena, v, sizeof *v * (size_t)n);
}

void ll_wtext(writer *w, const char *name, const char *v)
{
    Onnx__Attribute *a = attribute(w, name, ATTR_TEXT);
    a->s.len = strlen(v);
    a->s.data = (uint8_t *)ll_arena_strdup(w->arena, v);
}

/* ---- known numbers ---- */

static size_t bytes_of(int type)
{
    return type == ONNX_INT64 ? 8 : type == ONNX_BOOL ? 1 : 4;
}

static Onnx__Tensor *tensor(writer *w, const char *name, int type, const ll_shape *s,
                            const void *data)
{
    Onnx__Tensor *t = LL_NEW(w->arena, Onnx__Tensor);
    onnx__tensor__init(t);
    t->name = TEXT(name);
    t->data_type = type;
    t->n_dims = (size_t)s->n;
    t->dims = (int64_t *)ll_arena_copy(w->arena, s->d, sizeof s->d);
    t->raw_data.len = (size_t)ll_numel(s) * bytes_of(type);
    t->raw_data.data = (uint8_t *)ll_arena_alloc(w->arena, t->raw_data.len + 1);
    if (data) memcpy(t->raw_data.data, data, t->raw_data.len);
    return t;
}

Onnx__Tensor *ll_wweight(writer *w, const char *name, int type, const ll_shape *s)
{
    Onnx__Graph *g = w->out;
    Onnx__Tensor *t = tensor(w, name, type, s, NULL);
    LL_PUSH(w->arena, g->initializer, g->n_initializer, w->tensor_capacity, t);
    return t;
}

Onnx__Tensor *ll_wconstant(writer *w, const char *name, int type, const ll_shape *s,
                           const void *data)
{
    ll_wnamed(w, "Constant", NULL, 0, name);
    return attribute(w, "value", ATTR_TENSOR)->t = tensor(w, name, type, s, data);
}

Onnx__Tensor *ll_wtensor(writer *w, int type, const ll_shape *s, const void *data)
{
    return ll_wconstant(w, fresh(w), type, s, data);
}

const char *ll_wknown_ints(writer *w, int n, const int64_t *v)
{
    return ll_wtensor(w, ONNX_INT64, &LL_SHAPE(n), v)->name;
}

const char *ll_wnumber(writer *w, ll_dtype t, double v)
{
    float f = (float)v;
    int32_t i = t == LL_I32 ? (int32_t)v : 0;
    return ll_wtensor(w, ll_onnx_type(t), &LL_SCALAR, t == LL_I32 ? (void *)&i : (void *)&f)->name;
}

/* A tensor's elements, of 4 bytes, in another order of dimensions. */
static void permute(writer *w, Onnx__Tensor *t, const int64_t *perm)
{
    int n = (int)t->n_dims;
    int64_t d[LL_MAX_DIMS], stride[LL_MAX_DIMS], at[LL_MAX_DIMS] = {0}, step = 1;
    const uint32_t *from = (const uint32_t *)t->raw_data.data;
    uint32_t *to = (uint32_t *)ll_arena_alloc(w->arena, t->raw_data.len + 1);
    for (int k = n - 1; k >= 0; step *= t->dims[k--]) stride[k] = step;
    for (int k = 0; k < n; k++) d[k] = t->dims[perm[k]];
    for (int64_t i = 0; i < step; i++) {
        int64_t source = 0;
        for (int k = 0; k < n; k++) source += at[k] * stride[perm[k]];
        to[i] = from[source];
        for (int k = n - 1; k >= 0 && ++at[k] == d[k]; k--) at[k] = 0;
    }
    memcpy(t->dims, d, sizeof *d * (size_t)n);
    t->raw_data.data = (uint8_t *)to;
}

/* ---- shapes ---- */

ll_shape ll_wshape(const writer *w, ll_val v)
{
    ll_shape s = ll_value_of(w->g, v)->type.shape;
    const ll_shape *more = &ll_value_of(w->more, v)->type.shape;
    for (int k = 0; k < s.n; k++)
        if (s.d[k] != more->d[k]) s.d[k] = -(more->d[k] - s.d[k]);
    return s;
}

/* The number of samples, as a list of one. */
static const char *batch(writer *w)
{
    if (w->batch) return w->batch;
    w->batch = WNODE(w, "Shape", w->out->input[0]->name);
    ll_wint(w, "start", 0);
    ll_wint(w, "end", 1);
    return w->batch;
}

static const char *shape_list(writer *w, const ll_shape *s)
{
    const char *part[LL_MAX_DIMS];
    int n_any = 0;
    for (int k = 0; k < s->n; k++) n_any += s->d[k] < 0;
    if (!n_any) return ll_wknown_ints(w, s->n, s->d);
    for (int k = 0; k < s->n; k++) {
        int64_t each = s->d[k] < 0 ? -s->d[k] : s->d[k];
        part[k] = s->d[k] == -1 ? batch(w) : ll_wknown_ints(w, 1, &each);
        if (s->d[k] < -1) part[k] = WNODE(w, "Mul", batch(w), part[k]);
    }
    const char *all = ll_wnode(w, "Concat", part, s->n);
    ll_wint(w, "axis", 0);
    return all;
}

const char *ll_wreshape(writer *w, const char *x, const ll_shape *to)
{
    ll_shape s = *to;
    int n_any = 0;
    for (int k = 0; k < s.n; k++) n_any += s.d[k] < 0;
    for (int k = 0; k < s.n && n_any == 1; k++)
        if (s.d[k] < 0) s.d[k] = -1; /* what is left */
    return WNODE(w, "Reshape", x, n_any == 1 ? ll_wknown_ints(w, s.n, s.d) : shape_list(w, to));
}

/* ---- forms ---- */

static const int64_t perms[N_FORM][4] = {[AS_IT_LIES] = {0, 2, 3, 1}, [IMAGE_FORM] = {0, 3, 1, 2}};

const char *ll_wtransposed(writer *w, ll_val v, const int64_t *perm)
{
    item *x = &w->items[v.id];
    if (x->tensor && w->uses[v.id] == 1) { /* nobody else reads it */
        permute(w, x->tensor, perm);
        return x->tensor->name;
    }
    const char *name = WNODE(w, "Transpose", ll_wfull(w, v, AS_IT_LIES));
    ll_wints(w, "perm", ll_value_of(w->g, v)->type.shape.n, perm);
    return name;
}

/* A thin value as an image: reshaped, as all but its channels are 1 most of the time. */
static const char *thin_image(writer *w, const item *x)
{
    const ll_shape *o = &x->ones;
    bool scalar = true, order = o->d[3] == 1 || (o->d[1] == 1 && o->d[2] == 1);
    for (int k = 0; k < 4; k++) scalar &= o->d[k] == 1;
    if (scalar) return x->name[AS_IT_LIES];
    if (order)
        return ll_wreshape(w, x->name[AS_IT_LIES], &LL_SHAPE(o->d[0], o->d[3], o->d[1], o->d[2]));
    const char *all = WNODE(w, "Transpose", ll_wreshape(w, x->name[AS_IT_LIES], o));
    ll_wints(w, "perm", 4, perms[IMAGE_FORM]);
    return all;
}

const char *ll_wany(writer *w, ll_val v, form f)
{
    item *x = &w->items[v.id];
    if (x->name[f]) return x->name[f];
    if (x->thin) return x->name[f] = thin_image(w, x);
    if (f == IMAGE_FORM) {
        x->name[f] = ll_wtransposed(w, v, perms[f]);
        if (x->tensor && w->uses[v.id] == 1) x->name[AS_IT_LIES] = NULL;
        return x->name[f];
    }
    x->name[f] = WNODE(w, "Transpose", x->name[IMAGE_FORM]);
    ll_wints(w, "perm", 4, perms[f]);
    return x->name[f];
}

const char *ll_wfull(writer *w, ll_val v, form f)
{
    item *x = &w->items[v.id];
    if (x->thin) {
        ll_shape s = ll_wshape(w, v);
        x->name[AS_IT_LIES] = WNODE(w, "Expand", x->name[AS_IT_LIES], shape_list(w, &s));
        x->name[IMAGE_FORM] = NULL;
        x->thin = false;
    }
    return ll_wany(w, v, f);
}

form ll_wform(const writer *w, const ll_node *n)
{
    for (int k = 0; k < n->n_in; k++) {
        const item *x = &w->items[n->in[k].id];
        if (!x->thin && !x->name[AS_IT_LIES]) return IMAGE_FORM;
    }
    return AS_IT_LIES;
}
