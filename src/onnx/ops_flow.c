/* ops_flow.c: nodes that have graphs. A condition that is known picks its graph when the model is
 * read. */
#include "onnx/scope.h"

static ll_err if_node(op *o)
{
    double taken;
    TRY(ll_onnx_number(o, 0, &taken));
    const Onnx__Attribute *a = ll_attr(o, taken ? "then_branch" : "else_branch");
    WANT(o, a && a->g && a->g->n_output >= (size_t)o->n_out, "a branch with fewer outputs");
    value **out = LL_NEW_ARRAY(o->w->arena, value *, a->g->n_output + 1);
    TRY(o->w->body(o->w, ll_scope_new(o->w->arena, o->scope, NULL, NULL), a->g, out));
    for (int i = 0; i < o->n_out; i++) o->out[i] = out[i];
    return LL_OK;
}

const row ll_rows_flow[] = {
    {"If", if_node, .direct = true},
    {0},
};
