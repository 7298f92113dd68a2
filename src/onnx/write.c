/* write.c: what follows the number of samples, and the file. */
#include "onnx/write.h"
#include "base/file.h"

enum { OPSET = 17, IR_VERSION = 8 };
enum { AT_LEAST = 2 }; /* one sample is simplified to what other numbers of them are not */

static const wrow *row_of(const ll_op *op)
{
    const wrow *r = ll_onnx_wrows;
    while (r->op && strcmp(r->op, op->name)) r++;
    return r->op ? r : NULL;
}

static bool has_row(const ll_op *op)
{
    return row_of(op) != NULL;
}

/* Attributes but for the shapes, which the values' types tell too. */
static bool same_attr(const ll_node *a, const ll_node *b, ll_arena *arena)
{
    char *x = (char *)ll_arena_copy(arena, a->attr, a->op->attr_size);
    char *y = (char *)ll_arena_copy(arena, b->attr, b->op->attr_size);
    for (const ll_attr_field *f = a->op->attrs; f && f->name; f++)
        if (f->kind == LL_A_SHAPE) {
            memset(x + f->offset, 0, sizeof(ll_shape));
            memset(y + f->offset, 0, sizeof(ll_shape));
        }
    return !memcmp(x, y, a->op->attr_size);
}

static bool same_node(const ll_node *a, const ll_node *b, ll_arena *arena)
{
    bool same = a->op == b->op && a->n_in == b->n_in;
    for (int k = 0; same && k < a->n_in; k++) same = a->in[k].id == b->in[k].id;
    return same && (!a->op->attr_size || same_attr(a, b, arena));
}

/* A size is its share of one sample times their number, or no matter of them. */
static bool same_value(const ll_value *a, const ll_value *b)
{
    const ll_shape *x = &a->type.shape, *y = &b->type.shape;
    bool same = x->n == y->n && a->node == b->node;
    for (int k = 0; same && k < x->n; k++) {
        int64_t each = y->d[k] - x->d[k];
        same = !each || (each > 0 && x->d[k] == AT_LEAST * each);
        if (each && a->node < 0 && a->kind != LL_BATCH) same = false;
    }
    return same;
}

static ll_err any_batch(const writer *w)
{
    const ll_graph *g = w->g, *more = w->more;
    for (int i = 0; i < g->n_node && i < more->n_node; i++)
        CHECK(same_node(&g->nodes[i], &more->nodes[i], w->arena), LL_E_ARG,
              "%s depends on the number of samples, which has no ONNX form", g->nodes[i].name);
    CHECK(g->n_node == more->n_node && g->n_value == more->n_value, LL_E_ARG,
          "%s has nodes that depend on the number of samples, which has no ONNX form", g->name);
    for (int i = 1; i < g->n_value; i++)
        CHECK(same_value(&g->values[i], &more->values[i]), LL_E_ARG,
              "%s: a size does not follow the number of samples, which has no ONNX form",
              g->values[i].node < 0 ? g->values[i].name : g->nodes[g->values[i].node].name);
    return LL_OK;
}

static Onnx__ValueInfo *info(writer *w, const char *name, ll_val v)
{
    ll_shape s = ll_wshape(w, v);
    Onnx__ValueInfo *i = LL_NEW(w->arena, Onnx__ValueInfo);
    onnx__value_info__init(i);
    i->name = TEXT(name);
    onnx__type__init(i->type = LL_NEW(w->arena, Onnx__Type));
    Onnx__TensorType *t = i->type->tensor_type = LL_NEW(w->arena, Onnx__TensorType);
    onnx__tensor_type__init(t);
    t->elem_type = ll_onnx_type(ll_value_of(w->g, v)->type.dtype);
    onnx__shape__init(t->shape = LL_NEW(w->arena, Onnx__Shape));
    t->shape->n_dim = (size_t)s.n;
    t->shape->dim = LL_NEW_ARRAY(w->arena, Onnx__Dim *, s.n + 1);
    for (int k = 0; k < s.n; k++) {
        Onnx__Dim *d = t->shape->dim[k] = LL_NEW(w->arena, Onnx__Dim);
        onnx__dim__init(d);
        d->value_case = s.d[k] < 0 ? ONNX__DIM__VALUE_DIM_PARAM : ONNX__DIM__VALUE_DIM_VALUE;
        if (s.d[k] >= 0)
            d->dim_value = s.d[k];
        else
            d->dim_param = s.d[k] == -1 ? TEXT("N") : ll_arena_printf(w->arena, "%ldN", -s.d[k]);
    }
    return i;
}

static ll_err add_inputs(writer *w, ll_onnx_input *input, void *user)
{
    w->out->input = LL_NEW_ARRAY(w->arena, Onnx__ValueInfo *, w->g->n_value);
    for (int i = 1; i < w->g->n_value; i++) {
        const ll_value *v = &w->g->values[i];
        item *x = &w->items[i];
        CHECK(v->type.dtype == LL_F32 || v->type.dtype == LL_I32, LL_E_ARG,
              "%s is %s, but ONNX can be written only for f32 and i32",
              v->node < 0 ? v->name : w->g->nodes[v->node].name, ll_dtype_name(v->type.dtype));
        if (v->node >= 0 || !w->uses[i]) continue;
        x->name[AS_IT_LIES] = v->name;
        if (v->kind == LL_BATCH) {
            w->out->input[w->out->n_input++] = info(w, v->name, (ll_val){i});
            continue;
        }
        CHECK(ll_kind_stays(v->kind), LL_E_ARG, "%s changes in each step, which has no ONNX form",
              v->name);
        int type = ll_onnx_type(v->type.dtype);
        if (v->kind == LL_CONST) {
            x->tensor = ll_wconstant(w, v->name, type, &v->type.shape, v->init.data->elements);
            continue;
        }
        x->tensor = ll_wweight(w, v->name, type, &v->type.shape);
        TRY(input(user, v->name, x->tensor->raw_data.data, x->tensor->raw_data.len));
    }
    CHECK(w->out->n_input, LL_E_ARG, "%s reads no batch, which has no ONNX form", w->g->name);
    return LL_OK;
}

static ll_err build(writer *w, ll_onnx_input *input, void *user)
{
    const char *name = w->g->results[0].name;
    ll_val result = w->g->results[0].value;
    TRY(any_batch(w));
    TRY(add_inputs(w, input, user));
    CHECK(!ll_find(w->g, name).id, LL_E_ARG, "result %s has the name of an input", name);
    for (int i = 0; i < w->g->n_node; i++) {
        const ll_node *n = &w->g->nodes[i];
        const wrow *r = row_of(n->op);
        for (int k = 0; k < n->n_in; k++) {
            const item *x = &w->items[n->in[k].id];
            CHECK(x->name[AS_IT_LIES] || x->name[IMAGE_FORM], LL_E_ARG,
                  "%s reads something that has no ONNX form", n->name);
        }
        TRY(r->write(w, n, r->text));
    }
    const char *last = ll_wfull(w, result, AS_IT_LIES);
    ll_wnamed(w, "Identity", &last, 1, name);
    w->out->n_output = 1;
    w->out->output = LL_NEW_ARRAY(w->arena, Onnx__ValueInfo *, 1);
    w->out->output[0] = info(w, name, result);
    return LL_OK;
}

static ll_err save(writer *w, const char *path)
{
    Onnx__Model m = ONNX__MODEL__INIT;
    Onnx__Opset opset = ONNX__OPSET__INIT, *opsets = &opset;
    m.ir_version = IR_VERSION;
    opset.version = OPSET;
    m.n_opset_import = 1;
    m.opset_import = &opsets;
    m.graph = w->out;
    size_t size = onnx__model__get_packed_size(&m);
    CHECK(size < (size_t)1 << 31, LL_E_ARG,
          "%s: an ONNX file is at most 2 GiB, but the model has %zu bytes: use --weights", path,
          size);
    LL_OWN_MEMORY uint8_t *data = (uint8_t *)malloc(size);
    CHECK(data, LL_E_MEM, "not enough memory for %s", path);
    onnx__model__pack(&m, data);
    return ll_file_write(path, data, size);
}

static ll_err expanded(ll_onnx_graph *graph, void *user, int64_t batch, ll_graph **out)
{
    LL_OWN(ll_graph) whole = NULL;
    TRY(graph(user, batch, &whole));
    CHECK(whole->n_result == 1, LL_E_ARG,
          "ONNX can be written for one result, but the graph has %d", whole->n_result);
    return ll_expand(whole, has_row, "ONNX", out);
}

ll_err ll_onnx_write(ll_onnx_graph *graph, ll_onnx_input *input, void *user, const char *path)
{
    LL_OWN(ll_graph) g = NULL;
    LL_OWN(ll_graph) more = NULL;
    TRY(expanded(graph, user, AT_LEAST, &g));
    TRY(expanded(graph, user, AT_LEAST + 1, &more));
    LL_OWN(ll_arena) a = ll_arena_new();
    Onnx__Graph out = ONNX__GRAPH__INIT;
    out.name = TEXT(g->name);
    writer w = {.arena = a, .g = g, .more = more, .uses = ll_uses(g, a), .out = &out};
    w.items = LL_NEW_ARRAY(a, item, g->n_value);
    TRY(build(&w, input, user));
    return save(&w, path);
}
