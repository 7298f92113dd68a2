/* write_ops.c: nodes of ONNX's, opset 17, for each op of ours that is not expanded. */
#include "onnx/write.h"
#include "base/spec.h"
#include "kern/resample.h"

#include <math.h>
#include <stdio.h>

/* ---- elementwise ---- */

/* One step of a program on a stack of names. An operand is a, b or c, the number that the node has
 * k; other numbers are themselves; an op is ONNX's name and how many it takes. Cast1 makes the
 * result's type, Bool1 a truth. */
static void step(writer *w, const ll_node *n, const char *const *operand, const char *word,
                 const char **stack, int *top)
{
    const ll_type *in = &ll_value_of(w->g, n->in[0])->type;
    const ll_type *out = &ll_value_of(w->g, n->out[0])->type;
    size_t len = strlen(word);
    if (len == 1 && *word >= 'a' && *word <= 'c')
        stack[(*top)++] = operand[*word - 'a'];
    else if (!strcmp(word, "k"))
        stack[(*top)++] = ll_wnumber(w, in->dtype, ((const ll_number_attr *)n->attr)->value);
    else if (*word < 'A')
        stack[(*top)++] = ll_wnumber(w, in->dtype, strtod(word, NULL));
    else {
        int takes = word[len - 1] - '0';
        bool truth = !strcmp(word, "Bool1");
        *top -= takes;
        stack[*top] =
            ll_wnode(w, truth ? "Cast" : ll_arena_printf(w->arena, "%.*s", (int)len - 1, word),
                     stack + *top, takes);
        if (truth || !strcmp(word, "Cast1"))
            ll_wint(w, "to", truth ? ONNX_BOOL : ll_onnx_type(out->dtype));
        ++*top;
    }
}

static ll_err elementwise(writer *w, const ll_node *n, const char *program)
{
    const char *operand[3], *stack[16];
    char words[160], *save;
    form f = ll_wform(w, n);
    item *out = &w->items[n->out[0].id];
    bool thin = true;
    int top = 0;
    for (int k = 0; k < n->n_in; k++) thin &= w->items[n->in[k].id].thin;
    for (int k = 0; k < n->n_in; k++)
        operand[k] = thin && n->n_in > 1 ? ll_wfull(w, n->in[k], f) : ll_wany(w, n->in[k], f);
    snprintf(words, sizeof words, "%s", program);
    for (char *word = strtok_r(words, " ", &save); word; word = strtok_r(NULL, " ", &save))
        step(w, n, operand, word, stack, &top);
    if (thin && n->n_in == 1) *out = (item){.thin = true, .ones = w->items[n->in[0].id].ones};
    out->name[f] = stack[0];
    return LL_OK;
}

/* ---- moved elements ---- */

/* Operand k, and the result, as they lie in the graph. */
static const char *plain(writer *w, const ll_node *n, int k)
{
    return ll_wfull(w, n->in[k], AS_IT_LIES);
}

static ll_err give(writer *w, const ll_node *n, const char *name)
{
    ll_wgive(w, n, AS_IT_LIES, name);
    return LL_OK;
}

static ll_err transpose(writer *w, const ll_node *n, const char *)
{
    ll_spec s;
    int64_t perm[LL_MAX_DIMS];
    TRY(ll_spec_parse(((const ll_spec_attr *)n->attr)->spec, &s));
    for (int k = 0; k < s.n_out; k++) perm[k] = s.from[k];
    return give(w, n, ll_wtransposed(w, n->in[0], perm));
}

/* Stays thin; ONNX's broadcast puts what is missing in front. */
static ll_err broadcast(writer *w, const ll_node *n, const char *)
{
    ll_spec s;
    item *y = &w->items[n->out[0].id];
    TRY(ll_spec_parse(((const ll_broadcast_attr *)n->attr)->spec, &s));
    y->thin = true;
    y->ones = ll_wshape(w, n->out[0]);
    bool behind = true;
    for (int k = 0; k < s.n_out; k++) {
        if (s.from[k] < 0) y->ones.d[k] = 1;
        behind &= s.from[k] == (k < s.n_out - s.n_in ? -1 : k - (s.n_out - s.n_in));
    }
    const char *x = plain(w, n, 0);
    y->name[AS_IT_LIES] = behind ? x : ll_wreshape(w, x, &y->ones);
    return LL_OK;
}

static ll_err reshape(writer *w, const ll_node *n, const char *)
{
    ll_shape to = ll_wshape(w, n->out[0]);
    return give(w, n, ll_wreshape(w, plain(w, n, 0), &to));
}

static ll_err slice(writer *w, const ll_node *n, const char *)
{
    const ll_range_attr *a = (const ll_range_attr *)n->attr;
    form f = ll_wform(w, n);
    int64_t axis = ll_waxis(f, a->dim);
    ll_wgive(w, n, f,
             WNODE(w, "Slice", ll_wfull(w, n->in[0], f), ll_wknown_ints(w, 1, &a->from),
                   ll_wknown_ints(w, 1, &a->to), ll_wknown_ints(w, 1, &axis)));
    return LL_OK;
}

static ll_err pad(writer *w, const ll_node *n, const char *)
{
    const ll_range_attr *a = (const ll_range_attr *)n->attr;
    form f = ll_wform(w, n);
    int rank = ll_value_of(w->g, n->in[0])->type.shape.n;
    int64_t pads[2 * LL_MAX_DIMS] = {0}, axis = ll_waxis(f, a->dim);
    pads[axis] = a->from;
    pads[rank + axis] = a->to;
    ll_wgive(w, n, f, WNODE(w, "Pad", ll_wfull(w, n->in[0], f), ll_wknown_ints(w, 2 * rank, pads)));
    return LL_OK;
}

static ll_err concat(writer *w, const ll_node *n, const char *)
{
    const char *part[LL_MAX_IN];
    form f = ll_wform(w, n);
    for (int k = 0; k < n->n_in; k++) part[k] = ll_wfull(w, n->in[k], f);
    ll_wgive(w, n, f, ll_wnode(w, "Concat", part, n->n_in));
    ll_wint(w, "axis", ll_waxis(f, ((const ll_range_attr *)n->attr)->dim));
    return LL_OK;
}

static ll_err fill(writer *w, const ll_node *n, const char *)
{
    const ll_fill_attr *a = (const ll_fill_attr *)n->attr;
    item *y = &w->items[n->out[0].id];
    *y = (item){.thin = true, .ones.n = a->shape.n};
    for (int k = 0; k < a->shape.n; k++) y->ones.d[k] = 1;
    y->name[AS_IT_LIES] = ll_wnumber(w, a->dtype, a->value);
    return LL_OK;
}

/* start + step * i */
static const char *count(writer *w, ll_dtype t, int64_t n, double start, double by)
{
    Onnx__Tensor *x = ll_wtensor(w, ll_onnx_type(t), &LL_SHAPE(n), NULL);
    for (int64_t i = 0; i < n; i++)
        if (t == LL_I32)
            ((int32_t *)x->raw_data.data)[i] = (int32_t)(start + by * (double)i);
        else
            ((float *)x->raw_data.data)[i] = (float)(start + by * (double)i);
    return x->name;
}

static ll_err arange(writer *w, const ll_node *n, const char *)
{
    const ll_arange_attr *a = (const ll_arange_attr *)n->attr;
    return give(w, n, count(w, a->dtype, a->n, a->start + a->step * (double)a->at, a->step));
}

static ll_err onehot(writer *w, const ll_node *n, const char *)
{
    const ll_onehot_attr *a = (const ll_onehot_attr *)n->attr;
    const char *x = WNODE(w, "Unsqueeze", plain(w, n, 0), ll_wknown_ints(w, 1, (int64_t[]){-1}));
    x = WNODE(w, "Equal", x, count(w, LL_I32, a->size, (double)a->from, 1));
    x = WNODE(w, "Cast", x);
    ll_wint(w, "to", ll_onnx_type(a->dtype));
    return give(w, n, x);
}

static ll_err pick(writer *w, const ll_node *n, const char *op, int64_t axis)
{
    const char *x = WNODE(w, op, plain(w, n, 0), plain(w, n, 1));
    ll_wint(w, "axis", axis);
    return give(w, n, x);
}

static ll_err embedding(writer *w, const ll_node *n, const char *)
{
    CHECK(!((const ll_embedding_attr *)n->attr)->part, LL_E_ARG,
          "%s of a part of its table has no ONNX form", n->name);
    return pick(w, n, "Gather", 0);
}

/* "avc,i->aic" is Gather, "avc,awc->awc" GatherElements. */
static ll_err gather(writer *w, const ll_node *n, const char *)
{
    const ll_gather_attr *a = (const ll_gather_attr *)n->attr;
    ll_spec_parts p;
    char whole[3 * LL_MAX_DIMS];
    TRY(ll_spec_split(a->spec, &p));
    const char *x = p.part[0], *index = p.part[1], *y = p.part[2];
    int at = 0;
    while (x[at] && strchr(y, x[at])) at++;
    snprintf(whole, sizeof whole, "%.*s%s%s", at, x, index, x + at + 1);
    bool take = !strcmp(whole, y), along = !strcmp(index, y) && strlen(x) == strlen(y);
    for (int k = 0; along && x[k]; k++) along = k == at || x[k] == y[k];
    CHECK((take || along) && !a->part, LL_E_ARG, "%s: gather \"%s\" has no ONNX form", n->name,
          a->spec);
    return pick(w, n, take ? "Gather" : "GatherElements", at);
}

static ll_err causal_mask(writer *w, const ll_node *n, const char *)
{
    const ll_mask_attr *a = (const ll_mask_attr *)n->attr;
    const ll_type *x = &ll_value_of(w->g, n->in[0])->type;
    int64_t rows = x->shape.d[x->shape.n - 2], keys = x->shape.d[x->shape.n - 1];
    Onnx__Tensor *hidden = ll_wtensor(w, ONNX_BOOL, &LL_SHAPE(rows, keys), NULL);
    for (int64_t t = 0; t < rows; t++)
        for (int64_t s = 0; s < keys; s++)
            hidden->raw_data.data[t * keys + s] = s + a->at[1] > t + a->at[0];
    return give(w, n,
                WNODE(w, "Where", hidden->name, ll_wnumber(w, x->dtype, a->value), plain(w, n, 0)));
}

/* ---- sums ---- */

/* Axes are an operand of ReduceSum, an attribute of the others. */
static ll_err reduce(writer *w, const ll_node *n, const char *op)
{
    ll_spec s;
    int64_t axes[LL_MAX_DIMS];
    int n_axis = 0;
    TRY(ll_spec_parse(((const ll_spec_attr *)n->attr)->spec, &s));
    CHECK(ll_spec_shrinks(&s), LL_E_ARG, "%s: \"%s\" has no ONNX form", n->name,
          ((const ll_spec_attr *)n->attr)->spec);
    for (int k = 0; k < s.n_in; k++)
        if (s.to[k] < 0) axes[n_axis++] = k;
    const char *x = plain(w, n, 0);
    bool operand = !strcmp(op, "ReduceSum");
    x = operand ? WNODE(w, op, x, ll_wknown_ints(w, n_axis, axes)) : WNODE(w, op, x);
    ll_wint(w, "keepdims", 0);
    if (!operand) ll_wints(w, "axes", n_axis, axes);
    return give(w, n, x);
}

/* MatMul where the second operand is a matrix and the first's last dimension is summed. */
static ll_err matmul(writer *w, const ll_node *n, const char *)
{
    const char *spec = ((const ll_matmul_attr *)n->attr)->spec;
    ll_spec_parts p;
    TRY(ll_spec_split(spec, &p));
    const char *a = p.part[0], *b = p.part[1], *c = p.part[2];
    size_t last = strlen(a) - 1;
    bool matrix = *a && strlen(b) == 2 && strlen(c) == last + 1 && !strncmp(a, c, last);
    const char *x = plain(w, n, 0), *y;
    if (matrix && b[0] == a[last] && b[1] == c[last])
        y = WNODE(w, "MatMul", x, plain(w, n, 1));
    else if (matrix && b[1] == a[last] && b[0] == c[last])
        y = WNODE(w, "MatMul", x, ll_wtransposed(w, n->in[1], (int64_t[]){1, 0}));
    else {
        y = WNODE(w, "Einsum", x, plain(w, n, 1));
        ll_wtext(w, "equation", spec);
    }
    return give(w, n, y);
}

static ll_err softmax(writer *w, const ll_node *n, const char *)
{
    const char *x = WNODE(w, "Softmax", plain(w, n, 0));
    ll_wint(w, "axis", -1);
    return give(w, n, x);
}

static ll_err argmax(writer *w, const ll_node *n, const char *)
{
    const ll_order_attr *a = (const ll_order_attr *)n->attr;
    const char *x = plain(w, n, 0);
    x = WNODE(w, a->least ? "ArgMin" : "ArgMax", x);
    ll_wint(w, "axis", a->dim);
    ll_wint(w, "keepdims", 0);
    x = WNODE(w, "Cast", x);
    ll_wint(w, "to", ONNX_INT32);
    return give(w, n, x);
}

static ll_err cumsum(writer *w, const ll_node *n, const char *)
{
    const ll_cumsum_attr *a = (const ll_cumsum_attr *)n->attr;
    const char *x = WNODE(w, "CumSum", plain(w, n, 0), ll_wknown_ints(w, 1, &a->dim));
    ll_wint(w, "exclusive", a->exclusive);
    ll_wint(w, "reverse", a->reverse);
    return give(w, n, x);
}

/* ---- images ---- */

/* Ours: top, bottom, left, right. */
static ll_err pads(writer *w, const ll_node *n, const int64_t pad[4])
{
    const int64_t all[4] = {pad[0], pad[2], pad[1], pad[3]};
    for (int k = 0; k < 4; k++)
        CHECK(pad[k] >= 0, LL_E_ARG, "%s: padding below 0 has no ONNX form", n->name);
    ll_wints(w, "pads", 4, all);
    return LL_OK;
}

static ll_err conv(writer *w, const ll_node *n, const char *op)
{
    const ll_conv_attr *a = (const ll_conv_attr *)n->attr;
    const char *x = ll_wfull(w, n->in[0], IMAGE_FORM), *filter = ll_wfull(w, n->in[1], IMAGE_FORM);
    ll_wgive(w, n, IMAGE_FORM, WNODE(w, op, x, filter));
    ll_wints(w, "kernel_shape", 2, ll_value_of(w->g, n->in[1])->type.shape.d + 1);
    ll_wints(w, "strides", 2, a->stride);
    ll_wints(w, "dilations", 2, a->dilation);
    ll_wint(w, "group", a->groups);
    return LL_OK;
}

static ll_err conv2d(writer *w, const ll_node *n, const char *op)
{
    TRY(conv(w, n, op));
    return pads(w, n, ((const ll_conv_attr *)n->attr)->pad);
}

/* The image's size is what the outputs span, and more (output_padding) or less (pads). */
static ll_err conv2d_dx(writer *w, const ll_node *n, const char *op)
{
    const ll_conv_attr *a = (const ll_conv_attr *)n->attr;
    const int64_t *y = ll_value_of(w->g, n->in[0])->type.shape.d;
    const int64_t *filter = ll_value_of(w->g, n->in[1])->type.shape.d;
    int64_t pad[4], more[2];
    memcpy(pad, a->pad, sizeof pad);
    for (int k = 0; k < 2; k++) {
        int64_t span = (y[1 + k] - 1) * a->stride[k] + a->dilation[k] * (filter[1 + k] - 1) + 1;
        more[k] = ll_value_of(w->g, n->out[0])->type.shape.d[1 + k] - (span - pad[2 * k]);
        pad[2 * k + 1] = more[k] < 0 ? -more[k] : 0;
        if (more[k] < 0) more[k] = 0;
    }
    TRY(conv(w, n, op));
    ll_wints(w, "output_padding", 2, more);
    return pads(w, n, pad);
}

static ll_err pool(writer *w, const ll_node *n, const char *op)
{
    const ll_pool_attr *a = (const ll_pool_attr *)n->attr;
    ll_wgive(w, n, IMAGE_FORM, WNODE(w, op, ll_wfull(w, n->in[0], IMAGE_FORM)));
    ll_wints(w, "kernel_shape", 2, a->size);
    ll_wints(w, "strides", 2, a->stride);
    if (!strcmp(op, "AveragePool")) ll_wint(w, "count_include_pad", 1);
    return pads(w, n, a->pad);
}

/* Single pixels are taken by their places; else its matrix is multiplied. */
static ll_err resample(writer *w, const ll_node *n, const char *)
{
    const ll_resample_attr *a = (const ll_resample_attr *)n->attr;
    CHECK(!a->back && !a->at[0] && !a->at[1], LL_E_ARG, "%s: resample's transpose has no ONNX form",
          n->name);
    form f = ll_wform(w, n);
    int rank = ll_value_of(w->g, n->in[0])->type.shape.n;
    int64_t axis = ll_waxis(f, a->dim), *from = LL_NEW_ARRAY(w->arena, int64_t, a->out);
    const char *x = ll_wfull(w, n->in[0], f);
    bool single = true;
    for (int64_t o = 0; o < a->out; o++) {
        ll_taps t = ll_taps_of(a, o);
        single &= t.n == 1;
        from[o] = t.from;
    }
    if (single) {
        ll_wgive(w, n, f, WNODE(w, "Gather", x, ll_wknown_ints(w, (int)a->out, from)));
        ll_wint(w, "axis", axis);
        return LL_OK;
    }
    Onnx__Tensor *m = ll_wtensor(w, ONNX_FLOAT, &LL_SHAPE(a->out, a->image), NULL);
    for (int64_t o = 0; o < a->out; o++) {
        ll_taps t = ll_taps_of(a, o);
        for (int64_t k = 0; k < t.n; k++)
            ((float *)m->raw_data.data)[o * a->image + t.from + k] = (float)ll_tap(&t, k);
    }
    char letters[LL_MAX_DIMS + 1] = "", result[LL_MAX_DIMS + 1], spec[LL_SPEC_MAX];
    for (int k = 0; k < rank; k++) letters[k] = (char)('a' + k);
    memcpy(result, letters, sizeof result);
    result[axis] = 'z';
    snprintf(spec, sizeof spec, "%s,z%c->%s", letters, letters[axis], result);
    ll_wgive(w, n, f, WNODE(w, "Einsum", x, m->name));
    ll_wtext(w, "equation", spec);
    return LL_OK;
}

/* x cos + (the other one of its pair) sin, which the first of a pair has negative. */
static ll_err rope(writer *w, const ll_node *n, const char *)
{
    const ll_rope_attr *a = (const ll_rope_attr *)n->attr;
    const ll_shape *s = &ll_value_of(w->g, n->in[0])->type.shape; /* [b,t,h,d], [b,t,n,g,d] */
    int64_t rows = s->d[1], d = s->d[s->n - 1], *other = LL_NEW_ARRAY(w->arena, int64_t, d);
    ll_shape one = s->n == 5 ? LL_SHAPE(rows, 1, 1, d) : LL_SHAPE(rows, 1, d);
    Onnx__Tensor *table[2];
    CHECK(n->n_in == 1, LL_E_ARG, "rope with places given has no ONNX form");
    for (int k = 0; k < 2; k++) table[k] = ll_wtensor(w, ONNX_FLOAT, &one, NULL);
    float *cosine = (float *)table[0]->raw_data.data, *sine = (float *)table[1]->raw_data.data;
    for (int64_t pair = 0; pair < d / 2; pair++) {
        int64_t i = a->interleaved ? 2 * pair : pair, j = i + (a->interleaved ? 1 : d / 2);
        other[i] = j;
        other[j] = i;
        for (int64_t t = 0; t < rows; t++) {
            double angle = (double)(a->at + t) * pow(a->base, -2.0 * (double)pair / (double)d);
            if (a->back) angle = -angle;
            cosine[t * d + i] = cosine[t * d + j] = (float)cos(angle);
            sine[t * d + i] = (float)-sin(angle);
            sine[t * d + j] = (float)sin(angle);
        }
    }
    const char *x = plain(w, n, 0);
    const char *rotated = WNODE(w, "Gather", x, ll_wknown_ints(w, (int)d, other));
    ll_wint(w, "axis", s->n - 1);
    rotated = WNODE(w, "Mul", rotated, table[1]->name);
    return give(w, n, WNODE(w, "Add", WNODE(w, "Mul", x, table[0]->name), rotated));
}

const wrow ll_onnx_wrows[] = {
    {"amax", reduce, "ReduceMax"},
    {"arange", arange, NULL},
    {"argmax", argmax, NULL},
    {"avg_pool", pool, "AveragePool"},
    {"broadcast", broadcast, NULL},
    {"causal_mask", causal_mask, NULL},
    {"concat", concat, NULL},
    {"conv2d", conv2d, "Conv"},
    {"conv2d_dx", conv2d_dx, "ConvTranspose"},
    {"cumsum", cumsum, NULL},
    {"embedding", embedding, NULL},
    {"fill", fill, NULL},
    {"gather", gather, NULL},
    {"matmul", matmul, NULL},
    {"max_pool", pool, "MaxPool"},
    {"onehot", onehot, NULL},
    {"pad", pad, NULL},
    {"resample", resample, NULL},
    {"reshape", reshape, NULL},
    {"rope", rope, NULL},
    {"slice", slice, NULL},
    {"softmax", softmax, NULL},
    {"sum", reduce, "ReduceSum"},
    {"transpose", transpose, NULL},
    /* elementwise; programs of step */
    {"abs", elementwise, "a Abs1"},
    {"add", elementwise, "a b Add2"},
    {"asinh", elementwise, "a Asinh1"},
    {"atan", elementwise, "a Atan1"},
    {"cast", elementwise, "a Cast1"},
    {"ceil", elementwise, "a Ceil1"},
    {"cos", elementwise, "a Cos1"},
    {"div", elementwise, "a b Div2"},
    {"equal", elementwise, "a b Equal2 Cast1"},
    {"erf", elementwise, "a Erf1"},
    {"exp", elementwise, "a Exp1"},
    {"expm1", elementwise, "a Exp1 1 Sub2"},
    {"floor", elementwise, "a Floor1"},
    {"gelu", elementwise,
     "a a Mul2 a Mul2 0.044715 Mul2 a Add2 0.7978845608028654 Mul2 Tanh1 1 Add2 a Mul2 0.5 Mul2"},
    {"less", elementwise, "a b Less2 Cast1"},
    {"log", elementwise, "a Log1"},
    {"log1p", elementwise, "a 1 Add2 Log1"},
    {"max", elementwise, "a b Max2"},
    {"min", elementwise, "a b Min2"},
    {"mul", elementwise, "a b Mul2"},
    {"neg", elementwise, "a Neg1"},
    {"pow", elementwise, "a b Pow2"},
    {"relu", elementwise, "a Relu1"},
    {"round", elementwise, "a Round1"},
    {"rsqrt", elementwise, "a Sqrt1 Reciprocal1"},
    {"scale", elementwise, "a k Mul2"},
    {"select", elementwise, "a Bool1 b c Where3"},
    {"shift", elementwise, "a k Add2"},
    {"sigmoid", elementwise, "a Sigmoid1"},
    {"sign", elementwise, "a Sign1"},
    {"silu", elementwise, "a a Sigmoid1 Mul2"},
    {"sin", elementwise, "a Sin1"},
    {"sinh", elementwise, "a Sinh1"},
    {"softplus", elementwise, "a Softplus1"},
    {"sqrt", elementwise, "a Sqrt1"},
    {"square", elementwise, "a a Mul2"},
    {"stop_gradient", elementwise, "a Identity1"},
    {"sub", elementwise, "a b Sub2"},
    {"tanh", elementwise, "a Tanh1"},
    {0}};
