/* walk.c: the walk over a model's nodes: names, versions, functions, and what is known already.
 *
 * A node whose operands are all fixed (shapes and what follows from them) is not put into the
 * graph: it is walked on a graph of its own, which machine ref runs, and its results are fixed too.
 * The same is done for a node whose operands are merely known when an op asks for its numbers. */
#include "onnx/walk.h"
#include "onnx/scope.h"
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>

enum {
    NEWEST = 28,       /* opset */
    MAX_BODY = 16,     /* graphs in graphs */
    MAX_FOLD = 1 << 16 /* elements of a known value that is found by computing it */
};

static const row *const all_rows[] = {
    ll_rows_elementwise, ll_rows_logic, ll_rows_shape, ll_rows_index, ll_rows_reduce,    ll_rows_nn,
    ll_rows_norm,        ll_rows_image, ll_rows_loss,  ll_rows_flow,  ll_rows_recurrent, NULL};

ll_err ll_onnx_refuse(const op *o, const char *file, int line, const char *func, const char *format,
                      ...)
{
    char text[512];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    return ll_raise(LL_E_ARG, file, line, func, "%s: %s", o->n->op_type, text);
}

static bool main_domain(const char *domain)
{
    return !*domain || !strcmp(domain, "ai.onnx");
}

static const row *find_row(const Onnx__Node *n)
{
    for (int t = 0; all_rows[t] && main_domain(n->domain); t++)
        for (const row *r = all_rows[t]; r->name; r++)
            if (!strcmp(r->name, n->op_type)) return r;
    return NULL;
}

static const Onnx__Function *find_function(const ll_onnx *m, const Onnx__Node *n)
{
    for (size_t i = 0; i < m->model->n_functions; i++) {
        const Onnx__Function *f = m->model->functions[i];
        if (!strcmp(f->name, n->op_type) && !strcmp(f->domain, n->domain) &&
            !strcmp(f->overload, n->overload))
            return f;
    }
    return NULL;
}

bool ll_onnx_knows(const ll_onnx *m, const Onnx__Node *n)
{
    return find_row(n) || find_function(m, n);
}

static int64_t opset(size_t n, Onnx__Opset *const *sets)
{
    for (size_t i = 0; i < n; i++)
        if (main_domain(sets[i]->domain)) return sets[i]->version;
    return 1;
}

/* ---- what is known ---- */

static ll_err know(walk *w, value *x, const host **out);
static ll_err body(walk *w, scope *s, const Onnx__Graph *g, value **out);

bool ll_onnx_host_of(walk *w, value *x)
{
    if (!x->host && x->splat && ll_numel(&x->shape) <= MAX_FOLD) {
        host *h = ll_onnx_host(w->arena, x->type, &x->shape);
        for (int64_t i = 0; h && i < ll_numel(&x->shape); i++) ll_onnx_put(h, i, x->same);
        x->host = h;
    }
    return x->host != NULL;
}

/* A session's result as numbers of ONNX's type. */
static ll_err take(ll_arena *a, ll_session *s, const char *name, value *x)
{
    int type = x->type;
    host *h = ll_onnx_host(a, type, &x->shape);
    CHECK(h, LL_E_MEM, "not enough memory for %s", name);
    int64_t n = ll_numel(&x->shape);
    ll_dtype t = ll_onnx_dtype(type);
    TRY(ll_session_get(s, name, h->data, (size_t)n * ll_dtype_bytes(t)));
    for (int64_t i = n - 1; i >= 0 && t == LL_I32; i--) /* widened from behind, in place */
        ((int64_t *)h->data)[i] = ((const int32_t *)h->data)[i];
    float *f = h->data;
    for (int64_t i = 0; i < n && type == ONNX_FLOAT16; i++)
        f[i] = ll_f16_to_f32(ll_f32_to_f16(f[i]));
    for (int64_t i = 0; i < n && type == ONNX_BFLOAT16; i++)
        f[i] = ll_bf16_to_f32(ll_f32_to_bf16(f[i]));
    x->host = h;
    return LL_OK;
}

void ll_onnx_result(op *o, int i, value *x)
{
    ll_graph_result(o->g, ll_arena_printf(o->w->arena, "result %d", i), ll_onnx_plain(o, x));
}

static ll_err run_in(walk *w, ll_session *s, int n, value *const *out)
{
    for (int i = 0; i < w->n_leaf; i++) {
        void *data;
        size_t bytes;
        TRY(ll_onnx_leaf_data(w->arena, &w->leaves[i], w->folding, &data, &bytes));
        TRY(ll_session_set(s, w->leaves[i].name, 0, data, bytes));
    }
    TRY(ll_session_run(s, 0));
    for (int i = 0; i < n; i++)
        if (!out[i]->host && out[i]->type)
            TRY(take(w->arena, s, ll_arena_printf(w->arena, "result %d", i), out[i]));
    return LL_OK;
}

ll_err ll_onnx_run(walk *w, const ll_session_opts *o, int n, value *const *out)
{
    ll_session *s = NULL;
    TRY(ll_session_open(w->g, o, &s));
    ll_err rc = run_in(w, s, n, out);
    ll_session_close(s);
    return rc;
}

/* *found[i] for each result; too large: found[0] stays NULL. */
static ll_err fold(walk *outer, const op *o, const host **found)
{
    walk w = {
        .arena = outer->arena, .m = outer->m, .g = ll_graph_new("known"), .depth = outer->depth};
    w.know = know, w.body = body, w.folding = true;
    op copy = *o;
    copy.w = &w, copy.g = w.g;
    copy.in = LL_NEW_ARRAY(w.arena, value *, o->n_in + 1);
    copy.out = LL_NEW_ARRAY(w.arena, value *, o->n_out + 1);
    for (int i = 0; i < o->n_in; i++) {
        if (!o->in[i]) continue;
        const value *x = o->in[i];
        copy.in[i] = LL_NEW(w.arena, value);
        *copy.in[i] = (value){x->name, x->type, x->shape, .host = x->host, .fixed = true};
    }
    for (int i = 0; i < o->n_out; i++) copy.out[i] = LL_NEW(w.arena, value);
    ll_err rc = o->row->walk(&copy);
    if (rc == LL_OK) rc = ll_graph_check(w.g);
    bool small = true, open = false;
    for (int i = 0; i < o->n_out && rc == LL_OK; i++) {
        value *x = copy.out[i];
        small = small && ll_numel(&x->shape) <= MAX_FOLD;
        if (small && (!x->type || ll_onnx_host_of(&w, x))) continue;
        ll_onnx_result(&copy, i, x);
        open = true;
    }
    if (rc == LL_OK) rc = ll_graph_check(w.g);
    if (rc == LL_OK && small && open)
        rc =
            ll_onnx_run(&w, &(ll_session_opts){.machine = "ref", .threads = 1}, o->n_out, copy.out);
    for (int i = 0; i < o->n_out && rc == LL_OK && small; i++) found[i] = copy.out[i]->host;
    outer->blamed = w.blamed;
    ll_graph_free(w.g);
    return rc;
}

static ll_err fold_into(walk *w, const op *o, bool fixed, bool *done)
{
    const host **found = LL_NEW_ARRAY(w->arena, const host *, o->n_out + 1);
    TRY(fold(w, o, found));
    *done = o->n_out && found[0];
    for (int i = 0; i < o->n_out && *done; i++) {
        if (!found[i]) continue;
        o->out[i]->host = found[i];
        o->out[i]->type = found[i]->type;
        o->out[i]->shape = found[i]->shape;
        o->out[i]->fixed = fixed;
    }
    return LL_OK;
}

static ll_err know(walk *w, value *x, const host **out)
{
    bool done = ll_onnx_host_of(w, x);
    if (!done && x->maker && w->depth < MAX_BODY) {
        const op *o = x->maker;
        const host *h;
        w->depth++;
        for (int i = 0; i < o->n_in; i++)
            if (o->in[i]) TRY(know(w, o->in[i], &h));
        w->depth--;
        TRY(fold_into(w, o, false, &done));
    }
    CHECK(done && x->host, LL_E_ARG, "%s must be known when the model is read, but is computed",
          x->name);
    *out = x->host;
    return LL_OK;
}

static bool all_fixed(const op *o)
{
    int n = 0;
    for (int i = 0; i < o->n_in; i++) {
        if (!o->in[i]) continue;
        if (!o->in[i]->fixed || !ll_onnx_host_of(o->w, o->in[i])) return false;
        n++;
    }
    return n > 0;
}

/* ---- nodes ---- */

static ll_err nodes(walk *w, scope *s, size_t n, Onnx__Node *const *list);

static ll_err inline_function(op *o, const Onnx__Function *f)
{
    walk *w = o->w;
    CHECK(o->n_in <= (int)f->n_input && o->n_out <= (int)f->n_output, LL_E_IO,
          "%s: function %s has %zu inputs and %zu outputs", o->n->name, f->name, f->n_input,
          f->n_output);
    scope *s = ll_scope_new(w->arena, NULL, o, f);
    s->version = opset(f->n_opset_import, f->opset_import);
    for (size_t i = 0; i < f->n_input; i++)
        TRY(ll_scope_add(s, f->input[i], has(o, (int)i) ? o->in[i] : NULL));
    TRY(nodes(w, s, f->n_node, f->node));
    for (int i = 0; i < o->n_out; i++) {
        value *x;
        TRY(ll_scope_find(s, f->output[i], &x));
        CHECK(x, LL_E_IO, "function %s: output %s was left out", f->name, f->output[i]);
        const char *name = o->out[i]->name;
        *o->out[i] = *x;
        o->out[i]->name = name;
    }
    return LL_OK;
}

/* What an attribute that nobody looked at would mean is not known, but for these, which change
 * nothing here. */
static ll_err attributes(const op *o)
{
    static const char *const idle[] = {"stash_type", "storage_order", "consumed_inputs", "is_test",
                                       "momentum",   "saturate",      "round_mode",      "seed",
                                       "sorted",     "then_branch",   "else_branch",     NULL};
    for (size_t i = 0; i < o->n->n_attribute; i++) {
        const char *name = o->n->attribute[i]->name;
        bool known = i < 64 && (*o->seen >> i & 1);
        for (int k = 0; idle[k] && !known; k++) known = !strcmp(idle[k], name);
        WANT(o, known, "attribute %s", name);
    }
    return LL_OK;
}

static ll_err walk_op(op *o)
{
    const Onnx__Function *f = find_function(o->w->m, o->n);
    o->row = find_row(o->n);
    if (f && !o->row) return inline_function(o, f);
    CHECK(o->row, LL_E_ARG, "op %s%s%s", o->n->domain, *o->n->domain ? "." : "", o->n->op_type);
    WANT(o, o->version >= o->row->since,
         "of opset %ld, where it meant something else: from %d on it is known", o->version,
         o->row->since);
    WANT(o, o->row->empty || has(o, 0), "it has no operand");
    bool done = false;
    if (!o->row->direct && all_fixed(o)) TRY(fold_into(o->w, o, true, &done));
    if (!done) TRY(o->row->walk(o));
    ll_err rc = ll_graph_check(o->g);
    TRY(rc);
    TRY(attributes(o));
    for (int i = 0; i < o->n_out; i++)
        WANT(o, o->out[i]->type || !*o->n->output[i], "its result %d", i);
    return LL_OK;
}

/* A failure's message with the node that it is of, and what that was given: the innermost alone. */
static ll_err blame(op *o, ll_err rc)
{
    ll_buf b = {.arena = o->w->arena};
    if (o->w->blamed) return rc;
    o->w->blamed = true;
    for (int i = 0; i < o->n_in; i++) {
        const value *x = o->in[i];
        char shape[LL_SHAPE_TEXT];
        ll_buf_printf(&b, "%s%s", i ? ", " : "", *o->n->input[i] ? o->n->input[i] : "nothing");
        if (x && x->type)
            ll_buf_printf(&b, " %s%s", ll_onnx_type_name(x->type),
                          ll_shape_print(&x->shape, shape));
    }
    return RAISE(rc, "%s (%s node %s%smakes %s of %s)",
                 ll_arena_strdup(b.arena, ll_error_message()), o->n->op_type, o->n->name,
                 *o->n->name ? " " : "", o->n_out ? o->n->output[0] : "nothing",
                 b.len ? b.text : "nothing");
}

static ll_err walk_node(walk *w, scope *s, const Onnx__Node *n)
{
    op *o = LL_NEW(w->arena, op);
    *o = (op){w, w->g, n, NULL, s, s->version, (int)n->n_input, (int)n->n_output};
    o->seen = LL_NEW(w->arena, uint64_t);
    o->in = LL_NEW_ARRAY(w->arena, value *, o->n_in + 1);
    o->out = LL_NEW_ARRAY(w->arena, value *, o->n_out + 1);
    ll_err rc = LL_OK;
    for (int i = 0; i < o->n_in; i++)
        if (*n->input[i] && rc == LL_OK) rc = ll_scope_find(s, n->input[i], &o->in[i]);
    if (rc != LL_OK) return blame(o, rc);
    while (o->n_in && !o->in[o->n_in - 1]) o->n_in--;
    while (o->n_out && !*n->output[o->n_out - 1]) o->n_out--;
    for (int i = 0; i < o->n_out; i++) {
        o->out[i] = LL_NEW(w->arena, value);
        o->out[i]->name = n->output[i];
    }
    if ((rc = walk_op(o)) != LL_OK) return blame(o, rc);
    for (int i = 0; i < o->n_out; i++) {
        if (!o->out[i]->maker && o->row && !o->row->direct) o->out[i]->maker = o;
        if (*n->output[i]) TRY(ll_scope_add(s, n->output[i], o->out[i]));
    }
    return LL_OK;
}

static ll_err nodes(walk *w, scope *s, size_t n, Onnx__Node *const *list)
{
    CHECK(w->depth < MAX_BODY, LL_E_ARG, "graphs in graphs deeper than %d", MAX_BODY);
    CHECK(s->version >= 1 && s->version <= NEWEST, LL_E_ARG, "opset %ld, expected 1 to %d",
          s->version, NEWEST);
    w->depth++;
    for (size_t i = 0; i < n; i++) TRY(walk_node(w, s, list[i]));
    w->depth--;
    return LL_OK;
}

static ll_err initializers(walk *w, scope *s, const Onnx__Graph *g)
{
    CHECK(!g->n_sparse_initializer, LL_E_ARG, "sparse initializers");
    for (size_t i = 0; i < g->n_initializer; i++) {
        const Onnx__Tensor *t = g->initializer[i];
        value *x = LL_NEW(w->arena, value);
        TRY(ll_onnx_tensor(t, 0, w->m->folder, w->arena, &x->host));
        x->name = t->name;
        x->type = t->data_type;
        x->shape = x->host->shape;
        x->weight = !ll_onnx_whole(x->type);
        x->fixed = !x->weight;
        bool head = w->head && !strcmp(t->name, w->head_weight);
        bool bias = w->head && w->head_bias && !strcmp(t->name, w->head_bias);
        if (head || bias) {
            int dim = head ? w->head_dim : x->shape.n - 1;
            CHECK(dim >= 0 && dim < x->shape.n, LL_E_ARG, "model.head: %s is not a weight",
                  t->name);
            x->shape.d[dim] = w->head;
            x->host = NULL;
            x->fresh = true;
        }
        TRY(ll_scope_add(s, t->name, x));
    }
    return LL_OK;
}

static ll_err body(walk *w, scope *s, const Onnx__Graph *g, value **out)
{
    TRY(initializers(w, s, g));
    TRY(nodes(w, s, g->n_node, g->node));
    for (size_t i = 0; i < g->n_output; i++) {
        TRY(ll_scope_find(s, g->output[i]->name, &out[i]));
        CHECK(out[i], LL_E_IO, "output %s was left out", g->output[i]->name);
    }
    return LL_OK;
}

Onnx__ValueInfo **ll_onnx_inputs(ll_arena *a, const ll_onnx *m, int *n)
{
    const Onnx__Graph *g = m->model->graph;
    Onnx__ValueInfo **out = LL_NEW_ARRAY(a, Onnx__ValueInfo *, g->n_input + 1);
    *n = 0;
    for (size_t i = 0; i < g->n_input; i++) {
        bool given = false;
        for (size_t k = 0; k < g->n_initializer && !given; k++)
            given = !strcmp(g->initializer[k]->name, g->input[i]->name);
        if (!given) out[(*n)++] = g->input[i];
    }
    return out;
}

ll_err ll_onnx_walk(walk *w, value **in, value **out)
{
    const Onnx__Model *m = w->m->model;
    scope *s = ll_scope_new(w->arena, NULL, NULL, NULL);
    w->know = know, w->body = body;
    s->version = opset(m->n_opset_import, m->opset_import);
    int n;
    Onnx__ValueInfo **info = ll_onnx_inputs(w->arena, w->m, &n);
    for (int i = 0; i < n; i++) TRY(ll_scope_add(s, info[i]->name, in[i]));
    return body(w, s, m->graph, out);
}
