/* graph.c: building graphs: inputs, nodes, results, updates; the default shape rule. */
#include "base/num.h"
#include "ir/op.h"

#include <stdarg.h>
#include <stdio.h>

const char *ll_kind_name(ll_kind k)
{
    static const char *const names[LL_N_KIND] = {"computed", "param",    "state", "batch",
                                                 "step",     "constant", "carry"};
    return names[k];
}

ll_graph *ll_graph_new(const char *name)
{
    ll_arena *a = ll_arena_new();
    ll_graph *g = LL_NEW(a, ll_graph);
    g->arena = a;
    g->name = ll_arena_strdup(a, name ? name : "");
    LL_PUSH(a, g->values, g->n_value, g->cap_value, (ll_value){0}); /* none */
    (void)ll_has_argument(g, "a new graph", "name", name);
    return g;
}

void ll_graph_free(ll_graph *g)
{
    if (g) ll_arena_free(g->arena);
}

void ll_fail(ll_graph *g)
{
    if (ll_rejected(g)) return;
    g->err = ll_error_code();
    g->err_text = ll_arena_strdup(g->arena, ll_error_message());
}

static void reject(ll_graph *g, ll_err code, const char *format, va_list args)
{
    char text[512];
    vsnprintf(text, sizeof text, format, args);
    if (ll_raise(code, __FILE__, __LINE__, __func__, "%s", text) != LL_OK) ll_fail(g);
}

void ll_graph_reject(ll_graph *g, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    reject(g, LL_E_GRAPH, format, args);
    va_end(args);
}

ll_val ll_reject(ll_graph *g, ll_err code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    reject(g, code, format, args);
    va_end(args);
    return (ll_val){0};
}

bool ll_has_argument(ll_graph *g, const char *builder, const char *argument, const void *pointer)
{
    if (ll_rejected(g)) return false;
    if (!pointer) ll_reject(g, LL_E_ARG, "%s%s: argument %s is NULL", g->scope, builder, argument);
    return pointer;
}

ll_err ll_graph_check(const ll_graph *g)
{
    CHECK(g, LL_E_ARG, "argument g is NULL, expected a graph that ll_graph_new made");
    CHECK(g->err == LL_OK, g->err, "%s", g->err_text);
    return LL_OK;
}

ll_shape ll_graph_shape(const ll_graph *g, ll_val v)
{
    return ll_has_value(g, v) ? ll_value_of(g, v)->type.shape : LL_SCALAR;
}

ll_dtype ll_graph_dtype(const ll_graph *g, ll_val v)
{
    return ll_has_value(g, v) ? ll_value_of(g, v)->type.dtype : LL_F64;
}

void ll_graph_push(ll_graph *g, const char *scope)
{
    if (!ll_has_argument(g, "scope", "name", scope)) return;
    size_t n = strlen(g->scope);
    if (n + strlen(scope) + 2 > sizeof g->scope) {
        ll_reject(g, LL_E_ARG, "scope %s.%s is too long", g->scope, scope);
        return;
    }
    snprintf(g->scope + n, sizeof g->scope - n, "%s.", scope);
}

void ll_graph_pop(ll_graph *g)
{
    size_t n = strlen(ll_scope(g));
    if (!g) return;
    if (n) n--;
    while (n && g->scope[n - 1] != '.') n--;
    g->scope[n] = '\0';
}

void ll_graph_block(ll_graph *g)
{
    if (g) g->of.block++;
}

const char *ll_scoped(ll_graph *g, const char *name)
{
    if (!g || !name) return NULL;
    size_t scope = strlen(g->scope), n = strlen(name) + 1;
    char *text = (char *)ll_arena_alloc(g->arena, scope + n);
    memcpy(text, g->scope, scope);
    memcpy(text + scope, name, n);
    return text;
}

static ll_val new_value(ll_graph *g, ll_type type)
{
    LL_PUSH(g->arena, g->values, g->n_value, g->cap_value, (ll_value){.type = type, .node = -1});
    return (ll_val){g->n_value - 1};
}

const ll_data *ll_data_copy(ll_arena *arena, const ll_data *d)
{
    if (!d) return NULL;
    ll_data *copy = (ll_data *)ll_arena_copy(arena, d, sizeof *d);
    copy->elements = ll_arena_copy(arena, d->elements, (size_t)d->n * ll_dtype_bytes(d->dtype));
    return copy;
}

/* Where the input of this name is listed, or would be. */
static int *listed_at(const ll_graph *g, const char *name)
{
    uint64_t at = ll_hash(LL_HASH, name, strlen(name));
    int *i;
    do {
        i = &g->inputs[at++ % (uint64_t)g->cap_input];
    } while (*i && strcmp(g->values[*i].name, name));
    return i;
}

static void list_input(ll_graph *g, int id)
{
    if (2 * ++g->n_input > g->cap_input) {
        g->cap_input = 4 * g->n_input + 8;
        g->inputs = LL_NEW_ARRAY(g->arena, int, g->cap_input);
        for (int i = 1; i < g->n_value; i++)
            if (g->values[i].node < 0 && i != id) *listed_at(g, g->values[i].name) = i;
    }
    *listed_at(g, g->values[id].name) = id;
}

static ll_err check_input(const ll_graph *g, const char *name, ll_kind kind, const ll_type *t)
{
    CHECK(*name && strcmp(name, g->scope), LL_E_ARG, "%sa %s input has no name", g->scope,
          ll_kind_name(kind));
    CHECK((unsigned)t->dtype < LL_N_DTYPE, LL_E_ARG, "input %s: no element type has number %d",
          name, (int)t->dtype);
    ll_err rc = ll_check_shape(&t->shape);
    CHECK(rc == LL_OK, rc, "input %s has shape %s: %s", name, LL_DIMS(&t->shape),
          ll_error_message());
    return LL_OK;
}

ll_val ll_input(ll_graph *g, const char *name, ll_kind kind, ll_type type, ll_init init)
{
    if (!ll_has_argument(g, ll_kind_name(kind), "name", name)) return (ll_val){0};
    if (ll_find(g, name).id) return ll_reject(g, LL_E_GRAPH, "two inputs are named %s", name);
    if (check_input(g, name, kind, &type) != LL_OK) {
        ll_fail(g);
        return (ll_val){0};
    }
    ll_val v = new_value(g, type);
    ll_value *x = ll_value_of(g, v);
    x->kind = kind;
    x->init = init;
    x->init.data = ll_data_copy(g->arena, init.data);
    x->name = ll_arena_strdup(g->arena, name);
    list_input(g, v.id);
    return v;
}

ll_val ll_input_like(ll_graph *g, const ll_value *other)
{
    ll_val v = ll_input(g, other->name, other->kind, other->type, other->init);
    if (v.id && other->piece)
        ll_value_of(g, v)->piece =
            (const ll_piece *)ll_arena_copy(g->arena, other->piece, sizeof *other->piece);
    return v;
}

ll_val ll_param(ll_graph *g, const char *name, ll_shape shape, ll_init init)
{
    return ll_input(g, ll_scoped(g, name), LL_PARAM, (ll_type){LL_F32, shape}, init);
}

ll_val ll_state(ll_graph *g, const char *name, ll_shape shape, ll_init init)
{
    return ll_input(g, ll_scoped(g, name), LL_STATE, (ll_type){LL_F32, shape}, init);
}

ll_val ll_batch(ll_graph *g, const char *name, ll_dtype dtype, ll_shape shape)
{
    return ll_input(g, name, LL_BATCH, (ll_type){dtype, shape}, (ll_init){0});
}

void ll_graph_at(ll_graph *g, const ll_node *n)
{
    const char *dot = strrchr(n->name, '.');
    size_t scope = dot ? (size_t)(dot - n->name) + 1 : 0;
    if (scope >= sizeof g->scope) scope = sizeof g->scope - 1;
    g->of = n->of;
    memcpy(g->scope, n->name, scope);
    g->scope[scope] = '\0';
}

/* Named by what it holds, so that equal ones are found. */
ll_val ll_constant(ll_graph *g, ll_dtype dtype, ll_shape shape, const void *data)
{
    if (ll_rejected(g)) return (ll_val){0};
    if (ll_check_shape(&shape) != LL_OK || (unsigned)dtype >= LL_N_DTYPE || !data)
        return ll_reject(g, LL_E_ARG, "%sconstant: no shape, type or data", g->scope);
    int64_t n = ll_numel(&shape);
    size_t bytes = (size_t)n * ll_dtype_bytes(dtype);
    uint64_t h = ll_hash(ll_hash(LL_HASH, &dtype, sizeof dtype), data, bytes);
    h = ll_hash(h, shape.d, sizeof *shape.d * (size_t)shape.n);
    for (;; h++) { /* others of the same hash are passed by */
        char name[32];
        snprintf(name, sizeof name, "constant.%016lx", h);
        ll_val old = ll_find(g, name);
        ll_data made = {dtype, n, data};
        ll_init init = {.kind = LL_GIVEN, .data = &made};
        if (!old.id) return ll_input(g, name, LL_CONST, (ll_type){dtype, shape}, init);
        const ll_value *x = ll_value_of(g, old);
        if (x->kind == LL_CONST && x->type.dtype == dtype &&
            ll_shape_equal(&x->type.shape, &shape) && !memcmp(x->init.data->elements, data, bytes))
            return old;
    }
}

ll_val ll_per_step(ll_graph *g, const char *name)
{
    ll_val old = g && name ? ll_find(g, name) : (ll_val){0};
    if (old.id) return old;
    return ll_input(g, name, LL_STEP, (ll_type){LL_F32, LL_SCALAR}, (ll_init){0});
}

ll_val ll_find(const ll_graph *g, const char *name)
{
    return (ll_val){g->cap_input ? *listed_at(g, name) : 0};
}

ll_val ll_find_result(const ll_graph *g, const char *name)
{
    for (int i = 0; i < g->n_result; i++)
        if (!strcmp(g->results[i].name, name)) return g->results[i].value;
    return (ll_val){0};
}

ll_val ll_find_logits(const ll_graph *g)
{
    ll_val v = ll_find_result(g, "logits");
    for (int i = g->n_node - 1; i >= 0 && !v.id; i--) {
        const ll_node *n = &g->nodes[i];
        if (n->op->logits) v = n->in[n->op->logits - 1];
    }
    return v;
}

void ll_value_stands_for(ll_graph *g, ll_val v, const ll_value *other)
{
    ll_value *x = ll_value_of(g, v);
    if (!other->name || x->name) return;
    x->name = ll_arena_strdup(g->arena, other->name);
    if (other->gradient_of) x->gradient_of = ll_arena_strdup(g->arena, other->gradient_of);
}

ll_val ll_graph_name(ll_graph *g, ll_val v, const char *name)
{
    if (!v.id) return v;
    if (!ll_has_argument(g, "name of a value", "name", name)) return v;
    if (!ll_has_value(g, v))
        return ll_reject(g, LL_E_GRAPH, "%s%s names %s", g->scope, name, ll_no_value(v));
    ll_value_of(g, v)->name = ll_scoped(g, name);
    if (ll_value_of(g, v)->node < 0) list_input(g, v.id);
    return v;
}

static ll_err check_result(const ll_graph *g, const char *name, ll_val v)
{
    CHECK(ll_has_value(g, v), LL_E_GRAPH, "result %s is %s", name, ll_no_value(v));
    CHECK(!ll_find_result(g, name).id, LL_E_GRAPH, "two results are named %s", name);
    return LL_OK;
}

void ll_graph_result(ll_graph *g, const char *name, ll_val v)
{
    if (!ll_has_argument(g, "result", "name", name)) return;
    if (check_result(g, name, v) != LL_OK)
        ll_fail(g);
    else
        LL_PUSH(g->arena, g->results, g->n_result, g->cap_result,
                (ll_named){ll_arena_strdup(g->arena, name), v});
}

static ll_err check_update(const ll_graph *g, ll_val input, ll_val next)
{
    CHECK(ll_has_value(g, input), LL_E_GRAPH, "what is updated is %s", ll_no_value(input));
    const ll_value *a = ll_value_of(g, input);
    CHECK(ll_has_value(g, next), LL_E_GRAPH, "the update of %s is %s",
          a->name ? a->name : "a value", ll_no_value(next));
    const ll_value *b = ll_value_of(g, next);
    CHECK(ll_kind_updates(a->kind), LL_E_GRAPH, "only parameters and state can be updated");
    CHECK(ll_type_equal(&a->type, &b->type), LL_E_SHAPE, "%s is %s%s, its update %s%s", a->name,
          ll_dtype_name(a->type.dtype), LL_DIMS(&a->type.shape), ll_dtype_name(b->type.dtype),
          LL_DIMS(&b->type.shape));
    CHECK(!a->updated, LL_E_GRAPH, "%s is updated twice", a->name);
    return LL_OK;
}

void ll_graph_update(ll_graph *g, ll_val input, ll_val next)
{
    if (ll_rejected(g)) return;
    if (check_update(g, input, next) != LL_OK) {
        ll_fail(g);
        return;
    }
    ll_value_of(g, input)->updated = true;
    LL_PUSH(g->arena, g->updates, g->n_update, g->cap_update, (ll_pair){input, next});
}

ll_dtype ll_wide(ll_dtype t)
{
    return t == LL_BF16 || t == LL_F16 ? LL_F32 : t;
}

static ll_err infer(ll_infer *i)
{
    int least = i->op->n_in, most = least + i->op->n_more;
    CHECK(least < 0 || (i->n_in >= least && i->n_in <= most), LL_E_ARG,
          "%s takes %d operands%s, not %d", i->op->name, least, most > least ? " or more" : "",
          i->n_in);
    CHECK(i->op->n_in >= 0 || i->n_in > 0, LL_E_ARG, "%s without operands", i->op->name);
    if (i->op->infer)
        TRY(i->op->infer(i));
    else
        TRY(ll_infer_dims(i));
    for (int o = 0; o < i->n_out; o++) {
        TRY(ll_check_shape(&i->out[o].shape));
        if (i->op->wide_out >> o & 1) i->out[o].dtype = ll_wide(i->out[o].dtype);
    }
    ll_loops l;
    return ll_loops_of(i->op, i->attr, i->n_in, i->in, i->n_out, i->out, &l);
}

/* "matmul of f32[2,3] and f32[4,5]", for messages. */
static const char *operands_text(const ll_op *op, const ll_type *in, int n, char text[512])
{
    int at = snprintf(text, 512, n ? "%s of " : "%s", op->name);
    for (int i = 0; i < n && at < 450; i++)
        at += snprintf(text + at, (size_t)(512 - at), "%s%s%s", i ? " and " : "",
                       ll_dtype_name(in[i].dtype), LL_DIMS(&in[i].shape));
    return text;
}

static void append(ll_graph *g, const ll_op *op, const void *attr, const ll_val *in, int n_in,
                   const ll_type *out_type, ll_val *out)
{
    g->nodes = ll_arena_grow(g->arena, g->nodes, sizeof(ll_node), g->n_node, &g->cap_node);
    ll_node *n = &g->nodes[g->n_node];
    *n = (ll_node){.op = op, .n_in = n_in, .n_out = op->n_out, .of = g->of};
    if (!n->of.at && n->of.phase == LL_FORWARD) n->of.at = g->n_node + 1;
    n->attr = op->attr_size ? ll_arena_copy(g->arena, attr, op->attr_size) : NULL;
    n->in = (ll_val *)ll_arena_copy(g->arena, in, sizeof(ll_val) * (size_t)n_in);
    n->out = LL_NEW_ARRAY(g->arena, ll_val, op->n_out);
    n->name = ll_scoped(g, op->name);
    for (int o = 0; o < op->n_out; o++) {
        out[o] = n->out[o] = new_value(g, out_type[o]);
        ll_value_of(g, out[o])->node = g->n_node;
        ll_value_of(g, out[o])->out = o;
    }
    g->n_node++;
}

ll_err ll_emit_all(ll_graph *g, const ll_op *op, const void *attr, const ll_val *in, int n_in,
                   ll_val *out)
{
    ll_type in_type[LL_MAX_IN], out_type[LL_MAX_OUT];
    CHECK(n_in <= LL_MAX_IN, LL_E_ARG, "%s: more than %d operands", op->name, LL_MAX_IN);
    for (int i = 0; i < n_in; i++) {
        LL_ASSERT(in[i].id > 0 && in[i].id < g->n_value);
        in_type[i] = ll_value_of(g, in[i])->type;
    }
    ll_infer i = {op, attr, n_in, op->n_out, in_type, out_type};
    if (infer(&i) != LL_OK) {
        char text[512];
        FAIL(ll_error_code(), "%s%s: %s", g->scope, operands_text(op, in_type, n_in, text),
             ll_error_message());
    }
    append(g, op, attr, in, n_in, out_type, out);
    return LL_OK;
}

ll_err ll_emit_like(ll_graph *g, const ll_graph *from, const ll_node *n, const ll_val *in,
                    ll_val *out)
{
    ll_type type[LL_MAX_OUT];
    /* A node beside the graph's own may be a copy that was changed. */
    bool known = n >= from->nodes && n < from->nodes + from->n_node;
    for (int i = 0; i < n->n_in && known; i++)
        known = ll_type_equal(&ll_value_of(g, in[i])->type, &ll_value_of(from, n->in[i])->type);
    if (!known) return ll_emit_all(g, n->op, n->attr, in, n->n_in, out);
    for (int o = 0; o < n->n_out; o++) type[o] = ll_value_of(from, n->out[o])->type;
    append(g, n->op, n->attr, in, n->n_in, type, out);
    return LL_OK;
}

ll_val ll_emit(ll_graph *g, const ll_op *op, const void *attr, const ll_val *in, int n_in)
{
    ll_val out[LL_MAX_OUT];
    if (ll_rejected(g)) return (ll_val){0};
    for (int i = 0; i < n_in; i++)
        if (!ll_has_value(g, in[i]))
            return ll_reject(g, LL_E_GRAPH, "%s%s: operand %d is %s", g->scope, op->name, i,
                             ll_no_value(in[i]));
    if (ll_emit_all(g, op, attr, in, n_in, out) == LL_OK) return out[0];
    ll_fail(g);
    return (ll_val){0};
}

static ll_err verify_node(const ll_graph *g, int index)
{
    const ll_node *n = &g->nodes[index];
    ll_type in[LL_MAX_IN], out[LL_MAX_OUT];
    CHECK(n->n_in >= 0 && n->n_in <= LL_MAX_IN && n->n_out == n->op->n_out, LL_E_GRAPH,
          "%s has %d operands and %d results", n->name, n->n_in, n->n_out);
    for (int i = 0; i < n->n_in; i++) {
        CHECK(ll_has_value(g, n->in[i]), LL_E_GRAPH, "%s: operand %d is no value", n->name, i);
        const ll_value *v = ll_value_of(g, n->in[i]);
        CHECK(v->node < index, LL_E_GRAPH, "%s reads a value made after it", n->name);
        in[i] = v->type;
    }
    ll_infer i = {n->op, n->attr, n->n_in, n->n_out, in, out};
    TRY(infer(&i));
    for (int o = 0; o < n->n_out; o++) {
        CHECK(ll_has_value(g, n->out[o]), LL_E_GRAPH, "%s: result %d is no value", n->name, o);
        const ll_value *v = ll_value_of(g, n->out[o]);
        CHECK(v->node == index && v->out == o, LL_E_GRAPH, "%s: result %d is another's", n->name,
              o);
        CHECK(ll_type_equal(&v->type, &out[o]), LL_E_GRAPH,
              "%s: result %d is not what its op gives", n->name, o);
    }
    return LL_OK;
}

static ll_err verify_value(const ll_graph *g, int id)
{
    const ll_value *v = &g->values[id];
    CHECK((unsigned)v->type.dtype < LL_N_DTYPE && v->type.shape.n >= 0 &&
              v->type.shape.n <= LL_MAX_DIMS,
          LL_E_GRAPH, "value %d has no type", id);
    if (v->node < 0) {
        CHECK(v->name && v->kind > LL_COMPUTED && v->kind < LL_N_KIND, LL_E_GRAPH,
              "value %d is an input without a name or kind", id);
        return LL_OK;
    }
    CHECK(v->kind == LL_COMPUTED && v->node < g->n_node && v->out >= 0 &&
              v->out < g->nodes[v->node].n_out && g->nodes[v->node].out[v->out].id == id,
          LL_E_GRAPH, "value %d is made by no node", id);
    return LL_OK;
}

ll_err ll_verify(const ll_graph *g)
{
    TRY(ll_graph_check(g));
    for (int i = 1; i < g->n_value; i++) TRY(verify_value(g, i));
    for (int i = 0; i < g->n_node; i++) TRY(verify_node(g, i));
    LL_EACH (const ll_named, r, g->results, g->n_result)
        CHECK(ll_has_value(g, r->value), LL_E_GRAPH, "result %s is no value", r->name);
    for (int i = 0; i < g->n_update; i++) {
        const ll_pair *u = &g->updates[i];
        CHECK(ll_has_value(g, u->input) && ll_has_value(g, u->next), LL_E_GRAPH,
              "update %d is no value", i);
        const ll_value *a = ll_value_of(g, u->input), *b = ll_value_of(g, u->next);
        CHECK(ll_kind_updates(a->kind) && ll_type_equal(&a->type, &b->type), LL_E_GRAPH,
              "update %d does not fit what it updates", i);
    }
    return LL_OK;
}
