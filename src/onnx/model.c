/* model.c: an ONNX network as a model that can be trained. Initializers of broken numbers are its
 * parameters, under their own names; batch normalisation has its statistics as state; dropout
 * drops. One image is "x" [n,h,w,c], one row of whole numbers a sample is "x" of tokens; other
 * inputs have their own names. The loss is of the first output and "y". */
#include "base/file.h"
#include "onnx/scope.h"

typedef enum input_kind { IMAGE, TOKENS, OTHER } input_kind;

typedef struct net {
    const ll_onnx *m;
    const char *loss;
    input_kind kind;
} net;

static int64_t size_of(const ll_build *b, const char *name)
{
    for (int i = 0; i < LL_MAX_SIZES && b->sizes[i].name; i++)
        if (!strcmp(b->sizes[i].name, name)) return b->sizes[i].value;
    return 0;
}

/* ---- inputs ---- */

static const Onnx__TensorType *tensor_of(const Onnx__ValueInfo *i)
{
    return i->type ? i->type->tensor_type : NULL;
}

/* A dimension as the file has it; -1: it may be any. */
static int64_t dim_of(const Onnx__ValueInfo *v, int i)
{
    const Onnx__Dim *d = tensor_of(v)->shape->dim[i];
    return d->value_case == ONNX__DIM__VALUE_DIM_VALUE && d->dim_value > 0 ? d->dim_value : -1;
}

static int rank_of(const Onnx__ValueInfo *v)
{
    const Onnx__TensorType *t = tensor_of(v);
    return t && t->shape && t->shape->n_dim <= LL_MAX_DIMS ? (int)t->shape->n_dim : -1;
}

static input_kind kind_of(int n, Onnx__ValueInfo *const *in)
{
    if (n != 1 || rank_of(in[0]) < 0) return OTHER;
    int type = tensor_of(in[0])->elem_type, rank = rank_of(in[0]);
    if (rank == 4 && !ll_onnx_whole(type) && dim_of(in[0], 2) == dim_of(in[0], 3)) return IMAGE;
    return rank == 2 && ll_onnx_whole(type) ? TOKENS : OTHER;
}

/* Rows of the table that tokens pick from; 0: not found. */
static int64_t vocab_of(const ll_onnx *m, const char *input)
{
    const Onnx__Graph *g = m->model->graph;
    for (size_t i = 0; i < g->n_node; i++) {
        const Onnx__Node *n = g->node[i];
        if (strcmp(n->op_type, "Gather") || n->n_input != 2 || strcmp(n->input[1], input)) continue;
        for (size_t k = 0; k < g->n_initializer; k++)
            if (!strcmp(g->initializer[k]->name, n->input[0]) && g->initializer[k]->n_dims == 2)
                return g->initializer[k]->dims[0];
    }
    return 0;
}

static ll_err shape_of(const net *n, const ll_build *b, const Onnx__ValueInfo *v, ll_shape *s)
{
    CHECK(rank_of(v) > 0, LL_E_ARG, "input %s has no dimensions", v->name);
    *s = (ll_shape){.n = rank_of(v)};
    for (int i = 0; i < s->n; i++) {
        int64_t d = dim_of(v, i);
        if (i == 0)
            d = b->batch;
        else if (n->kind == IMAGE)
            d = size_of(b, i == 1 ? "channels" : "image");
        else if (n->kind == TOKENS)
            d = size_of(b, "seq");
        CHECK(d > 0, LL_E_ARG,
              "input %s: dimension %d is not fixed, but only the first may vary: export it with a "
              "size",
              v->name, i);
        s->d[i] = d;
    }
    return LL_OK;
}

static ll_err input(ll_graph *g, const net *n, const ll_build *b, const Onnx__ValueInfo *v,
                    value *x)
{
    TRY(shape_of(n, b, v, &x->shape));
    x->name = v->name;
    x->type = tensor_of(v)->elem_type;
    ll_dtype t = ll_onnx_dtype(x->type);
    CHECK(t == LL_F32 || t == LL_I32, LL_E_ARG,
          "input %s is of type %s, expected float, half float or integer", v->name,
          ll_onnx_type_name(x->type));
    x->lies = n->kind == IMAGE ? ll_last(x->shape.n) : ll_plain;
    ll_shape s = {.n = x->shape.n};
    for (int i = 0; i < s.n; i++) s.d[i] = x->shape.d[x->lies.d[i]];
    x->v = ll_batch(g, n->kind == OTHER ? v->name : "x", t, s);
    return LL_OK;
}

/* ---- another last layer ---- */

/* The last product with weights, its weights and bias: which dimension of each is its outputs. */
static ll_err replace_head(walk *w, int64_t n)
{
    static const struct {
        const char *op;
        int weight_dim;
    } layers[] = {{"Gemm", 1}, {"MatMul", 1}, {"Conv", 0}};
    const Onnx__Graph *g = w->m->model->graph;
    const Onnx__Node *last = NULL;
    int dim = 0;
    for (size_t i = 0; i < g->n_node; i++)
        for (size_t k = 0; k < sizeof layers / sizeof *layers; k++)
            if (!strcmp(g->node[i]->op_type, layers[k].op) && g->node[i]->n_input >= 2)
                last = g->node[i], dim = layers[k].weight_dim;
    CHECK(last, LL_E_ARG, "model.head: the model has no last layer (Gemm, MatMul or Conv)");
    for (size_t i = 0; i < last->n_attribute; i++)
        if (!strcmp(last->attribute[i]->name, "transB") && last->attribute[i]->i) dim = 0;
    w->head = n;
    w->head_weight = last->input[1];
    w->head_dim = dim;
    w->head_bias = last->n_input > 2 ? last->input[2] : NULL;
    for (size_t i = 0; i < g->n_node && !w->head_bias && last->n_output; i++) {
        const Onnx__Node *add = g->node[i];
        if (strcmp(add->op_type, "Add") || add->n_input != 2) continue;
        for (int k = 0; k < 2; k++)
            if (!strcmp(add->input[k], last->output[0])) w->head_bias = add->input[1 - k];
    }
    return LL_OK;
}

/* ---- loss ---- */

static const struct loss {
    const char *name;
    bool classes; /* y are labels of the last dimension */
    ll_val (*of)(ll_graph *g, ll_val x, ll_val y);
} losses[] = {
    {"cross_entropy", true, ll_cross_entropy}, {"mse", false, ll_mse}, {"l1", false, ll_l1}};

/* What a softmax at the end was made of: cross entropy has its own. */
static value *before_softmax(value *x)
{
    const op *o = x->maker;
    bool last = o && (!strcmp(o->n->op_type, "Softmax") || !strcmp(o->n->op_type, "LogSoftmax"));
    return last && o->in[0]->v.id ? o->in[0] : x;
}

/* Classes are the last dimension of tokens' and plain results, the second of images'; pixels that
 * there is one of go. */
static ll_val logits_of(op *o, const net *n, value *x)
{
    int rank = x->shape.n;
    order lies;
    ll_val v = ll_onnx_with_last(o, x, n->kind == IMAGE && rank > 2 ? 1 : rank - 1, &lies);
    ll_shape s = ll_graph_shape(o->g, v);
    if (n->kind == IMAGE && rank > 2 && ll_numel(&s) == s.d[0] * s.d[rank - 1])
        v = ll_reshape(o->g, v, LL_SHAPE(s.d[0], s.d[rank - 1]));
    return v;
}

static ll_err add_loss(op *o, const net *n, const ll_build *b, value *x, ll_val *out)
{
    const struct loss *l = losses;
    size_t known = sizeof losses / sizeof *losses;
    while (l < losses + known && strcmp(l->name, n->loss)) l++;
    CHECK(l < losses + known, LL_E_CONFIG,
          "model.loss is '%s', expected cross_entropy, mse or l1, of output %s and y", n->loss,
          x->name);
    CHECK(!ll_onnx_whole(x->type) && x->shape.n, LL_E_ARG, "output %s has no loss", x->name);
    ll_val v = l->classes ? logits_of(o, n, before_softmax(x)) : ll_onnx_plain(o, x);
    TRY(ll_graph_check(o->g));
    ll_shape s = ll_graph_shape(o->g, v);
    if (l->classes && s.n == 2) {
        *out = ll_label_loss(o->g, b, v);
        return LL_OK;
    }
    if (l->classes) s.n--;
    ll_val y = ll_batch(o->g, "y", l->classes ? LL_I32 : LL_F32, s);
    *out = ll_mean(o->g, l->of(o->g, v, y));
    ll_graph_result(o->g, "loss", *out);
    return LL_OK;
}

/* ---- the model ---- */

static ll_err walk_net(walk *w, const net *n, const ll_build *b, ll_val *loss)
{
    const Onnx__Graph *g = n->m->model->graph;
    int n_in;
    Onnx__ValueInfo **info = ll_onnx_inputs(w->arena, n->m, &n_in);
    value **in = LL_NEW_ARRAY(w->arena, value *, n_in + 1);
    value **out = LL_NEW_ARRAY(w->arena, value *, g->n_output + 1);
    for (int i = 0; i < n_in; i++) TRY(input(w->g, n, b, info[i], in[i] = LL_NEW(w->arena, value)));
    int64_t head = size_of(b, "head");
    if (head) TRY(replace_head(w, head));
    TRY(ll_onnx_walk(w, in, out));
    op top = {.w = w, .g = w->g};
    for (size_t i = 0; i < g->n_output && !b->training; i++)
        ll_graph_result(w->g, g->output[i]->name, ll_onnx_plain(&top, out[i]));
    CHECK(g->n_output, LL_E_IO, "%s has no outputs", n->m->name);
    *loss = (ll_val){0};
    if (!*n->loss && !b->training) return LL_OK;
    return add_loss(&top, n, b, out[0], loss);
}

static ll_val declare(ll_graph *g, const ll_build *b)
{
    const net *n = b->model->user;
    LL_OWN(ll_arena) a = ll_arena_new();
    walk w = {.arena = a, .g = g, .m = n->m, .mode = WALK_MODEL, .training = b->training};
    ll_val loss = {0};
    ll_err rc = walk_net(&w, n, b, &loss);
    if (rc != LL_OK) ll_graph_reject(g, "%s", ll_arena_strdup(a, ll_error_message()));
    return loss;
}

ll_err ll_onnx_model(ll_arena *a, const char *path, const char *loss, const ll_model **out)
{
    ll_onnx *m;
    TRY(ll_onnx_load_in(a, path, &m));
    int n_in, n = 0;
    Onnx__ValueInfo **in = ll_onnx_inputs(a, m, &n_in);
    net *user = LL_NEW(a, net);
    *user = (net){m, ll_arena_strdup(a, loss), kind_of(n_in, in)};
    ll_model *model = LL_NEW(a, ll_model);
    char *name = ll_arena_strdup(a, ll_base_name(path)), *dot = strrchr(name, '.');
    if (dot) *dot = '\0';
    *model = (ll_model){.name = name, .help = "an ONNX file", .declare = declare, .user = user};
    if (user->kind == IMAGE) {
        model->input = "image";
        int64_t side = dim_of(in[0], 2), c = dim_of(in[0], 1);
        model->sizes[n++] =
            (ll_size){"image", side > 0 ? side : 224, "height and width of the image"};
        model->sizes[n++] = (ll_size){"channels", c > 0 ? c : 3, "channels of the image"};
    } else if (user->kind == TOKENS) {
        model->input = "tokens";
        int64_t seq = dim_of(in[0], 1);
        model->sizes[n++] = (ll_size){"seq", seq > 0 ? seq : 128, "tokens of a sample"};
        model->sizes[n++] = (ll_size){"vocab", vocab_of(m, in[0]->name), "kinds of tokens"};
    }
    model->sizes[n++] = (ll_size){"head", 0, "outputs of the last layer, made anew (0: as it is)"};
    *out = model;
    return LL_OK;
}

ll_err ll_onnx_weights(ll_arena *a, const ll_model *model, ll_onnx_weight **out, int *count)
{
    ll_build b = {.batch = 1, .model = model};
    memcpy(b.sizes, model->sizes, sizeof b.sizes);
    const net *n = model->user;
    walk w = {.arena = a, .g = ll_graph_new("weights"), .m = n->m, .mode = WALK_MODEL};
    ll_val loss;
    ll_err rc = walk_net(&w, n, &b, &loss);
    *out = LL_NEW_ARRAY(a, ll_onnx_weight, w.n_leaf + 1);
    *count = w.n_leaf;
    for (int i = 0; i < w.n_leaf && rc == LL_OK; i++) {
        const leaf *l = &w.leaves[i];
        ll_onnx_weight *x = &(*out)[i];
        size_t bytes;
        x->name = l->name;
        x->shape.n = l->value->shape.n;
        for (int k = 0; k < x->shape.n; k++) x->shape.d[k] = l->value->shape.d[l->lies.d[k]];
        rc = ll_onnx_leaf_data(a, l, false, &x->data, &bytes);
    }
    ll_graph_free(w.g);
    return rc;
}
