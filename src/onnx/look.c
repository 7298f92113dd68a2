/* look.c: what is in a model, and what of it cannot be computed, all at once. */
#include "onnx/walk.h"

#include "base/text.h"

static void list(ll_arena *a, size_t n, Onnx__ValueInfo *const *from, ll_onnx_named **out,
                 int *count)
{
    *out = LL_NEW_ARRAY(a, ll_onnx_named, n + 1);
    *count = (int)n;
    for (size_t i = 0; i < n; i++) {
        const Onnx__TensorType *t = from[i]->type ? from[i]->type->tensor_type : NULL;
        ll_buf b = {.arena = a};
        for (size_t k = 0; t && t->shape && k < t->shape->n_dim; k++) {
            const Onnx__Dim *d = t->shape->dim[k];
            ll_buf_puts(&b, k ? "," : "[");
            if (d->value_case == ONNX__DIM__VALUE_DIM_VALUE)
                ll_buf_printf(&b, "%ld", d->dim_value);
            else
                ll_buf_puts(&b, d->value_case == ONNX__DIM__VALUE_DIM_PARAM ? d->dim_param : "?");
        }
        ll_buf_puts(&b, t && t->shape && t->shape->n_dim ? "]" : t && t->shape ? "[]" : "");
        (*out)[i] = (ll_onnx_named){from[i]->name,
                                    t ? ll_onnx_type_name(t->elem_type) : "no tensor", b.text, 0};
    }
}

/* Ops that no row and no function of the file is for, each with how many nodes are of it. */
static void count_op(ll_arena *a, const Onnx__Node *n, ll_onnx_summary *s, int *capacity)
{
    const char *name = ll_arena_printf(a, "%s%s%s", n->domain, *n->domain ? "." : "", n->op_type);
    int i = 0;
    while (i < s->n_missing && strcmp(s->missing[i].name, name)) i++;
    if (i == s->n_missing)
        LL_PUSH(a, s->missing, s->n_missing, *capacity, (ll_onnx_named){name, "", "", 0});
    s->missing[i].count++;
}

static void look_at(ll_arena *a, const ll_onnx *m, size_t n, Onnx__Node *const *nodes,
                    ll_onnx_summary *s, int *capacity)
{
    for (size_t i = 0; i < n; i++) {
        s->nodes++;
        if (!ll_onnx_knows(m, nodes[i])) count_op(a, nodes[i], s, capacity);
        for (size_t k = 0; k < nodes[i]->n_attribute; k++) {
            const Onnx__Graph *g = nodes[i]->attribute[k]->g;
            if (g) look_at(a, m, g->n_node, g->node, s, capacity);
        }
    }
}

ll_err ll_onnx_look(ll_arena *a, const char *path, ll_onnx_summary *out)
{
    ll_onnx *m;
    int capacity = 0;
    *out = (ll_onnx_summary){0};
    TRY(ll_onnx_load(a, path, &m));
    const Onnx__Graph *g = m->model->graph;
    int n;
    Onnx__ValueInfo **in = ll_onnx_inputs(a, m, &n);
    list(a, (size_t)n, in, &out->inputs, &out->n_input);
    list(a, g->n_output, g->output, &out->outputs, &out->n_output);
    look_at(a, m, g->n_node, g->node, out, &capacity);
    for (size_t i = 0; i < m->model->n_functions; i++)
        look_at(a, m, m->model->functions[i]->n_node, m->model->functions[i]->node, out, &capacity);
    out->outside = LL_NEW_ARRAY(a, const char *, g->n_initializer + 1);
    for (size_t i = 0; i < g->n_initializer; i++) {
        const char *at;
        int k = 0;
        if (g->initializer[i]->data_location != 1) continue;
        TRY(ll_onnx_location(g->initializer[i], &at));
        while (k < out->n_outside && strcmp(out->outside[k], at)) k++;
        if (k == out->n_outside) out->outside[out->n_outside++] = at;
    }
    return LL_OK;
}
