/* ops_recurrent.c: LSTM, GRU and RNN. ONNX has all directions in one tensor and gates in an order
 * of its own; rows are brought to ours. */
#include "onnx/walk.h"

typedef struct cell {
    ll_cell cell, relu; /* relu: with that activation */
    int gates, at[4];   /* which of ONNX's gates each of ours is */
    const char *activations[3];
    int initial_c, peepholes; /* operands; 0: none */
} cell;

static const cell cells[] = {
    {LL_LSTM, LL_LSTM, 4, {0, 2, 3, 1}, {"Sigmoid", "Tanh", "Tanh"}, 6, 7},
    {LL_GRU, LL_GRU, 3, {1, 0, 2}, {"Sigmoid", "Tanh"}, 0, 0},
    {LL_RNN_TANH, LL_RNN_RELU, 1, {0}, {"Tanh"}, 0, 0},
};

/* Rows from..from+gates*h of direction d of operand i, in our order. */
static ll_val rows(op *o, const cell *c, int i, int d, int64_t from, int64_t h)
{
    ll_val v = ll_slice(o->g, ll_onnx_plain(o, o->in[i]), 0, d, d + 1), part[4];
    for (int k = 0; k < c->gates; k++)
        part[k] = ll_slice(o->g, v, 1, from + c->at[k] * h, from + (c->at[k] + 1) * h);
    v = ll_concat(o->g, part, c->gates, 1);
    ll_shape s = ll_graph_shape(o->g, v);
    return ll_reshape(o->g, v, s.n == 3 ? LL_SHAPE(s.d[1], s.d[2]) : LL_SHAPE(s.d[1]));
}

/* The activations of all directions are the usual ones; *relu: RNN's are Relu. */
static ll_err activations(op *o, const cell *c, bool *relu)
{
    const Onnx__Attribute *a = ll_attr(o, "activations");
    int n = 0;
    while (n < 3 && c->activations[n]) n++;
    for (size_t i = 0; a && i < a->n_strings; i++) {
        const ProtobufCBinaryData *s = &a->strings[i];
        const char *want = c->activations[i % (size_t)n];
        bool r = c->gates == 1 && s->len == 4 && !memcmp(s->data, "Relu", 4);
        WANT(o, r || (s->len == strlen(want) && !memcmp(s->data, want, s->len)), "activation %.*s",
             (int)s->len, (const char *)s->data);
        WANT(o, !i || r == *relu, "an activation for each direction");
        *relu = r;
    }
    return LL_OK;
}

/* All steps of all samples. */
static ll_err lengths(op *o, int64_t steps)
{
    const host *h;
    if (!has(o, 4)) return LL_OK;
    TRY(o->w->know(o->w, o->in[4], &h));
    for (int64_t i = 0; i < ll_numel(&h->shape); i++)
        WANT(o, ll_onnx_at(h, i) == (double)steps, "sequences of different lengths");
    return LL_OK;
}

/* Operand i, [directions,b,h] as ONNX has it (or [b,directions,h]), of direction d: [b,h]. */
static ll_val state_of(op *o, int i, int d, bool batch_first)
{
    ll_val v = ll_slice(o->g, ll_onnx_plain(o, o->in[i]), batch_first, d, d + 1);
    ll_shape s = ll_graph_shape(o->g, v);
    return ll_reshape(o->g, v, LL_SHAPE(s.d[batch_first ? 0 : 1], s.d[2]));
}

/* ---- cells that ll_recur does not have: some nodes a step ---- */

static ll_val product(op *o, ll_val x, const ll_recurrent *r, int64_t from, int64_t to)
{
    return ll_matmul(o->g, "bh,rh->br", x, ll_slice(o->g, r->weight_hh, 0, from, to));
}

/* linear_before_reset 0: n = tanh(x + W (r h)). */
static void gru_step(op *o, ll_val x, int64_t h, ll_recurrent *r)
{
    ll_graph *g = o->g;
    ll_val rz = ll_add(g, ll_slice(g, x, 1, 0, 2 * h), product(o, r->h, r, 0, 2 * h));
    rz = ll_sigmoid(g, rz);
    ll_val seen = ll_mul(g, ll_slice(g, rz, 1, 0, h), r->h), z = ll_slice(g, rz, 1, h, 2 * h);
    ll_val n = ll_add(g, ll_slice(g, x, 1, 2 * h, 3 * h), product(o, seen, r, 2 * h, 3 * h));
    n = ll_tanh(g, n);
    r->h = ll_add(g, n, ll_mul(g, z, ll_sub(g, r->h, n)));
}

/* Gate k of z with what it sees of c through its peephole; p has ONNX's order: i, o, f. */
static ll_val peeping(op *o, ll_val z, int k, ll_val c, ll_val p, int64_t h)
{
    static const int at[] = {0, 2, 0, 1};
    ll_val seen = ll_mul(o->g, c, ll_slice(o->g, p, 0, at[k] * h, (at[k] + 1) * h));
    return ll_sigmoid(o->g, ll_add(o->g, ll_slice(o->g, z, 1, k * h, (k + 1) * h), seen));
}

static void lstm_step(op *o, ll_val x, int64_t h, ll_val p, ll_recurrent *r)
{
    ll_graph *g = o->g;
    ll_val z = ll_add(g, x, product(o, r->h, r, 0, 4 * h)), c = r->c;
    ll_val n = ll_tanh(g, ll_slice(g, z, 1, 2 * h, 3 * h));
    r->c =
        ll_add(g, ll_mul(g, peeping(o, z, 1, c, p, h), c), ll_mul(g, peeping(o, z, 0, c, p, h), n));
    r->h = ll_mul(g, peeping(o, z, 3, r->c, p, h), ll_tanh(g, r->c));
}

/* As ll_recur; p: LSTM's peepholes, [3h]. */
static ll_val unrolled(op *o, ll_val x, ll_val p, ll_recurrent *r)
{
    ll_graph *g = o->g;
    ll_val z = ll_matmul(g, "btc,gc->btg", x, r->weight_ih);
    if (r->bias_ih.id) z = ll_add(g, ll_add(g, z, r->bias_ih), r->bias_hh);
    ll_shape s = ll_graph_shape(g, z);
    int64_t h = ll_graph_shape(g, r->weight_hh).d[1];
    ll_val zero = ll_fill(g, ll_graph_dtype(g, x), LL_SHAPE(s.d[0], h), 0);
    ll_val *all = LL_NEW_ARRAY(o->w->arena, ll_val, s.d[1]);
    r->h = r->h0.id ? r->h0 : zero;
    r->c = r->c0.id ? r->c0 : zero;
    for (int64_t i = 0; i < s.d[1]; i++) {
        int64_t t = r->reverse ? s.d[1] - 1 - i : i;
        ll_val now = ll_reshape(g, ll_slice(g, z, 1, t, t + 1), LL_SHAPE(s.d[0], s.d[2]));
        if (p.id)
            lstm_step(o, now, h, p, r);
        else
            gru_step(o, now, h, r);
        all[t] = ll_reshape(g, r->h, LL_SHAPE(s.d[0], 1, h));
    }
    return ll_concat(g, all, (int)s.d[1], 1);
}

static ll_err recurrent(op *o)
{
    const cell *c = &cells[o->row->kind];
    value *x = o->in[0];
    WANT(o,
         has(o, 1) && has(o, 2) && x->shape.n == 3 && o->in[1]->shape.n == 3 &&
             o->in[2]->shape.n == 3,
         "no weights");
    ll_onnx_weights_from(o, 1);
    bool batch_first = ll_attr_int(o, "layout", 0) != 0, relu = false;
    const char *way = ll_attr_text(o, "direction", "forward");
    int dirs = strcmp(way, "bidirectional") ? 1 : 2;
    int64_t h = ll_attr_int(o, "hidden_size", o->in[2]->shape.d[2]);
    WANT(o, h > 0 && o->in[1]->shape.d[1] == c->gates * h && o->in[1]->shape.d[0] == dirs,
         "weights of %ld", h);
    bool peep = c->peepholes && has(o, c->peepholes);
    bool late = c->cell == LL_GRU && !ll_attr_int(o, "linear_before_reset", 0);
    WANT(o, x->shape.d[batch_first] > 0, "no steps");
    WANT(o, !ll_attr(o, "clip") && !ll_attr_int(o, "input_forget", 0), "clip or input_forget");
    TRY(activations(o, c, &relu));
    TRY(lengths(o, x->shape.d[batch_first]));
    order time_first = {{1, 0, 2}};
    ll_val v = ll_onnx_as(o, x, batch_first ? &ll_plain : &time_first), y[2], last[2], last_c[2];
    ll_shape in = ll_graph_shape(o->g, v);
    for (int d = 0; d < dirs; d++) {
        ll_recurrent r = {.cell = relu ? c->relu : c->cell,
                          .reverse = d || !strcmp(way, "reverse")};
        r.weight_ih = rows(o, c, 1, d, 0, h), r.weight_hh = rows(o, c, 2, d, 0, h);
        if (has(o, 3))
            r.bias_ih = rows(o, c, 3, d, 0, h), r.bias_hh = rows(o, c, 3, d, c->gates * h, h);
        if (has(o, 5)) r.h0 = state_of(o, 5, d, batch_first);
        if (c->initial_c && has(o, c->initial_c)) r.c0 = state_of(o, c->initial_c, d, batch_first);
        ll_val p = {0};
        if (peep)
            p = ll_reshape(o->g, ll_slice(o->g, ll_onnx_plain(o, o->in[c->peepholes]), 0, d, d + 1),
                           LL_SHAPE(3 * h));
        ll_val all = peep || late ? unrolled(o, v, p, &r) : ll_recur(o->g, v, &r);
        TRY(ll_graph_check(o->g));
        y[d] = ll_reshape(o->g, all, LL_SHAPE(in.d[0], in.d[1], 1, h));
        last[d] = ll_reshape(o->g, r.h, LL_SHAPE(1, in.d[0], h));
        if (c->initial_c) last_c[d] = ll_reshape(o->g, r.c, LL_SHAPE(1, in.d[0], h));
    }
    order all = {{2, 0, 1, 3}}, state = {{1, 0, 2}};
    ll_val whole = ll_concat(o->g, y, dirs, 2);
    TRY(ll_onnx_give(o, 0, x->type, whole, batch_first ? &ll_plain : &all));
    whole = ll_concat(o->g, last, dirs, 0);
    TRY(ll_onnx_give(o, 1, x->type, whole, batch_first ? &state : &ll_plain));
    if (!c->initial_c) return LL_OK;
    whole = ll_concat(o->g, last_c, dirs, 0);
    return ll_onnx_give(o, 2, x->type, whole, batch_first ? &state : &ll_plain);
}

const row ll_rows_recurrent[] = {
    {"LSTM", recurrent, 7, .kind = 0},
    {"GRU", recurrent, 7, .kind = 1},
    {"RNN", recurrent, 7, .kind = 2},
    {0},
};
