/* recur: a recurrent network's scan over time, whose products with x are made before it, as one.
 *
 *     recur       x [b,t,g*h], w [r*h,h], s0 [b,s*h] -> s [b,t,s*h]
 *         z = x[t] + h[t-1] w' (of the first r gates);  s[t] = cell(z, s[t-1]);  s = h, c
 *     recur_grad  ds, z [b,t,g*h], w, s, s0 -> dx [b,t,g*h], ds0
 *
 * Numbers g, r, s of gates, of those that read h, and of states are the cell's (kern/attr.h). GRU's
 * gates are r, z, what h gives to n, what x gives to it: all that reads h comes first, and cells
 * have one form. The gradient asks for z of every step: one product, since all of s is there by
 * then; so is the weight's gradient. Batch is a free loop. The expansion has a few nodes a step; it
 * is the oracle, and what second derivatives are made of. */
#include "op/op_int.h"
#include "op/rows.h"

LL_KERNELS(recur, recur_grad)
static const ll_op recur, recur_grad;

static ll_err infer(ll_infer *i)
{
    int64_t cell = ((const ll_recur_attr *)i->attr)->cell;
    bool grad = i->op == &recur_grad;
    const ll_shape *x = &i->in[grad].shape, *w = &i->in[1 + grad].shape;
    const ll_shape *s0 = &i->in[grad ? 4 : 2].shape;
    CHECK(cell >= 0 && cell < LL_N_CELL, LL_E_ARG, "no cell has number %ld", cell);
    CHECK(x->n == 3 && w->n == 2 && s0->n == 2, LL_E_SHAPE,
          "expected gates [b,t,g*h], a weight [r*h,h] and a state [b,s*h]");
    ll_cell_kind k = ll_cell_kinds[cell];
    int64_t t = x->d[1], h = w->d[1];
    CHECK(t >= 1 && h >= 1, LL_E_SHAPE, "%ld steps of %ld; expected at least 1 of each", t, h);
    CHECK(h < INT64_MAX / 8 && x->d[2] == k.gates * h && w->d[0] == k.from_h * h &&
              s0->d[1] == k.states * h,
          LL_E_SHAPE, "%ld gates, %ld rows of weight and %ld states; expected %d, %d, %d times %ld",
          x->d[2], w->d[0], s0->d[1], k.gates, k.from_h, k.states, h);
    return ll_infer_floats(i);
}

static double cost(const void *, const ll_loops *l)
{
    double n = 2;
    for (int i = 0; i < l->n; i++)
        if (strchr("btrh", l->letter[i])) n *= (double)l->extent[i];
    return n;
}

/* ---- expansion ---- */

static ll_val part(ll_graph *g, ll_val x, int64_t k, int64_t h) /* [b,n*h] -> [b,h] */
{
    return ll_slice(g, x, 1, k * h, (k + 1) * h);
}

static ll_val step_of(ll_graph *g, ll_val x, int64_t t) /* [b,t,n] -> [b,n] */
{
    ll_shape s = ll_graph_shape(g, x);
    return ll_reshape(g, ll_slice(g, x, 1, t, t + 1), LL_SHAPE(s.d[0], s.d[2]));
}

/* [b,n] of every step -> [b,t,n] */
static ll_val join_steps(ll_graph *g, ll_val *x, int64_t t)
{
    for (int64_t i = 0; i < t && !ll_rejected(g); i++) {
        ll_shape s = ll_graph_shape(g, x[i]);
        x[i] = ll_reshape(g, x[i], LL_SHAPE(s.d[0], 1, s.d[1]));
    }
    return ll_concat(g, x, (int)t, 1);
}

/* a (1 - a), of a sigmoid; 1 - a^2, of a tanh */
static ll_val slope(ll_graph *g, ll_val a, bool tanh)
{
    return tanh ? ll_one_minus(g, ll_square(g, a)) : ll_mul(g, a, ll_one_minus(g, a));
}

/* Gates z as they act, the state before and after. */
typedef struct step {
    ll_val z[LL_CELL_GATES], n, was[LL_CELL_STATES], is[LL_CELL_STATES];
} step;

static void cell(ll_graph *g, int64_t kind, step *s)
{
    ll_val *z = s->z;
    switch (kind) {
    case LL_LSTM:
        for (int k = 0; k < 4; k++) z[k] = k == 2 ? ll_tanh(g, z[k]) : ll_sigmoid(g, z[k]);
        s->is[1] = ll_add(g, ll_mul(g, z[1], s->was[1]), ll_mul(g, z[0], z[2]));
        s->is[0] = ll_mul(g, z[3], ll_tanh(g, s->is[1]));
        break;
    case LL_GRU:
        for (int k = 0; k < 2; k++) z[k] = ll_sigmoid(g, z[k]);
        s->n = ll_tanh(g, ll_add(g, z[3], ll_mul(g, z[0], z[2])));
        s->is[0] = ll_add(g, ll_mul(g, ll_one_minus(g, z[1]), s->n), ll_mul(g, z[1], s->was[0]));
        break;
    default: s->is[0] = kind == LL_RNN_RELU ? ll_relu(g, z[0]) : ll_tanh(g, z[0]);
    }
}

/* dz of the gates, and d in place: from that of the state after to that of the state before, but
 * for what flows through the weight. */
static void cell_grad(ll_graph *g, int64_t kind, const step *s, ll_val *d, ll_val *dz)
{
    const ll_val *z = s->z;
    ll_val dn;
    switch (kind) {
    case LL_LSTM: {
        ll_val c = ll_tanh(g, s->is[1]);
        ll_val dc = ll_add(g, d[1], ll_mul(g, ll_mul(g, d[0], z[3]), slope(g, c, true)));
        const ll_val by[] = {z[2], s->was[1], z[0]};
        for (int k = 0; k < 3; k++) dz[k] = ll_mul(g, ll_mul(g, dc, by[k]), slope(g, z[k], k == 2));
        dz[3] = ll_mul(g, ll_mul(g, d[0], c), slope(g, z[3], false));
        d[0] = (ll_val){0};
        d[1] = ll_mul(g, dc, z[1]);
        break;
    }
    case LL_GRU:
        dn = ll_mul(g, ll_mul(g, d[0], ll_one_minus(g, z[1])), slope(g, s->n, true));
        dz[0] = ll_mul(g, ll_mul(g, dn, z[2]), slope(g, z[0], false));
        dz[1] = ll_mul(g, ll_mul(g, d[0], ll_sub(g, s->was[0], s->n)), slope(g, z[1], false));
        dz[2] = ll_mul(g, dn, z[0]);
        dz[3] = dn;
        d[0] = ll_mul(g, d[0], z[1]);
        break;
    default:
        if (kind == LL_RNN_TANH)
            dz[0] = ll_mul(g, d[0], slope(g, s->is[0], true));
        else
            dz[0] =
                ll_select(g, ll_less(g, ll_scale(g, z[0], 0), z[0]), d[0], ll_scale(g, d[0], 0));
        d[0] = (ll_val){0};
    }
}

static void expand(ll_graph *g, const void *attr, const ll_val *in, int, ll_val *out)
{
    ll_shape x = ll_graph_shape(g, in[0]);
    int64_t kind = ((const ll_recur_attr *)attr)->cell, h = ll_graph_shape(g, in[1]).d[1];
    ll_cell_kind k = ll_cell_kinds[kind];
    ll_val *all = LL_NEW_ARRAY(g->arena, ll_val, x.d[1]);
    step s = {0};
    for (int i = 0; i < k.states; i++) s.is[i] = part(g, in[2], i, h);
    for (int64_t t = 0; t < x.d[1] && !ll_rejected(g); t++) {
        ll_val now = step_of(g, in[0], t), more = ll_matmul(g, "bh,rh->br", s.is[0], in[1]);
        for (int i = 0; i < k.states; i++) s.was[i] = s.is[i];
        for (int i = 0; i < k.gates; i++) {
            s.z[i] = part(g, now, i, h);
            if (i < k.from_h) s.z[i] = ll_add(g, s.z[i], part(g, more, i, h));
        }
        cell(g, kind, &s);
        all[t] = ll_concat(g, (ll_val[LL_CELL_STATES]){s.is[0], s.is[1]}, k.states, 1);
    }
    out[0] = join_steps(g, all, x.d[1]);
}

static void expand_grad(ll_graph *g, const void *attr, const ll_val *in, int, ll_val *out)
{
    ll_val ds = in[0], z = in[1], w = in[2], state = in[3], s0 = in[4];
    ll_shape x = ll_graph_shape(g, z);
    int64_t kind = ((const ll_recur_attr *)attr)->cell, h = ll_graph_shape(g, w).d[1];
    ll_cell_kind k = ll_cell_kinds[kind];
    ll_val *all = LL_NEW_ARRAY(g->arena, ll_val, x.d[1]), d[LL_CELL_STATES] = {0};
    for (int64_t t = x.d[1] - 1; t >= 0 && !ll_rejected(g); t--) {
        ll_val zt = step_of(g, z, t), dt = step_of(g, ds, t), dz[LL_CELL_GATES] = {0};
        ll_val now = step_of(g, state, t), was = t ? step_of(g, state, t - 1) : s0;
        step s = {0};
        for (int i = 0; i < k.gates; i++) s.z[i] = part(g, zt, i, h);
        for (int i = 0; i < k.states; i++) s.was[i] = part(g, was, i, h);
        cell(g, kind, &s); /* gates as they act */
        for (int i = 0; i < k.states; i++) {
            s.is[i] = part(g, now, i, h);
            d[i] = ll_add_some(g, d[i], part(g, dt, i, h));
        }
        cell_grad(g, kind, &s, d, dz);
        ll_val back =
            ll_concat(g, (ll_val[LL_CELL_GATES]){dz[0], dz[1], dz[2], dz[3]}, k.from_h, 1);
        d[0] = ll_add_some(g, d[0], ll_matmul(g, "br,rh->bh", back, w));
        all[t] = ll_concat(g, dz, k.gates, 1);
    }
    out[0] = join_steps(g, all, x.d[1]);
    out[1] = ll_concat(g, d, k.states, 1);
}

/* ---- gradient ---- */

/* h before each step: [b,t,h] */
static ll_val before(ll_graph *g, ll_val s, ll_val s0, int64_t h)
{
    ll_shape all = ll_graph_shape(g, s);
    ll_val first = ll_reshape(g, part(g, s0, 0, h), LL_SHAPE(all.d[0], 1, h));
    if (all.d[1] == 1) return first;
    ll_val rest = ll_slice(g, ll_slice(g, s, 2, 0, h), 1, 0, all.d[1] - 1);
    return ll_concat(g, (ll_val[]){first, rest}, 2, 1);
}

static void grad(ll_bwd *b)
{
    ll_graph *g = b->g;
    ll_val w = b->in[1];
    int64_t h = ll_graph_shape(g, w).d[1];
    ll_cell_kind k = ll_cell_kinds[((const ll_recur_attr *)b->attr)->cell];
    ll_val was = before(g, b->out[0], b->in[2], h), z = ll_matmul(g, "bth,rh->btr", was, w);
    if (k.from_h < k.gates) z = ll_pad(g, z, 2, 0, (k.gates - k.from_h) * h);
    z = ll_add(g, b->in[0], z);
    b->din[0] = LL_EMIT(g, &recur_grad, b->attr, b->dout[0], z, w, b->out[0], b->in[2]);
    if (!b->din[0].id) return;
    b->din[2] = ll_sibling(g, b->din[0], 1);
    ll_val dz = k.from_h < k.gates ? ll_slice(g, b->din[0], 2, 0, k.from_h * h) : b->din[0];
    b->din[1] = ll_matmul(g, "btr,bth->rh", dz, was);
}

/* ---- declarations ---- */

/* State is summed over time: all of it stays f32. */
static const ll_op recur = {
    LL_OP(recur, PRODUCT, 3, 1, .scratch = recur_cpu_scratch),
    LL_ATTRS(ll_recur_attr, cell),
    .model = 1,
    .dims = "btx, rh, bs -> bts",
    .whole = "txrhs",
    .wide_in = 7,
    .wide_out = 1,
    .infer = infer,
    .expand = expand,
    .grad = grad,
    .cost = cost,
    .trials = {"f32[2,3,8], f32[8,2], f32[2,4] {cell=0}", "f32[3,4,8], f32[6,2], f32[3,2] {cell=1}",
               "f32[2,3,3], f32[3,3], f32[2,3] {cell=2}", "f32[2,3,3], f32[3,3], f32[2,3] {cell=3}",
               "f32[1,1,4], f32[4,1], f32[1,2] {cell=0}", "f32[0,2,8], f32[6,2], f32[0,2] {cell=1}",
               "f32[5,2,148], f32[148,37], f32[5,74] {cell=0}",
               "f32[3,2,148], f32[111,37], f32[3,37] {cell=1}",
               "f32[1,18,1], f32[1,1], f32[1,1] {cell=2}"},
};

static const ll_op recur_grad = {
    LL_OP(recur_grad, PRODUCT, 5, 2, .scratch = recur_grad_cpu_scratch),
    LL_ATTRS(ll_recur_attr, cell),
    .dims = "bts, btx, rh, bts, bs -> btx, bs",
    .whole = "txrhs",
    .wide_in = 31,
    .wide_out = 3,
    .infer = infer,
    .expand = expand_grad,
    .cost = cost,
    .trials = {"b=2 t=3 s=4 x=8 r=8 h=2 {cell=0}", "b=3 t=4 s=2 x=8 r=6 h=2 {cell=1}",
               "b=2 t=3 s=3 x=3 r=3 h=3 {cell=2}", "b=2 t=3 s=3 x=3 r=3 h=3 {cell=3}",
               "b=0 t=2 s=2 x=8 r=6 h=2 {cell=1}", "b=5 t=2 s=74 x=148 r=148 h=37 {cell=0}",
               "b=3 t=2 s=37 x=148 r=111 h=37 {cell=1}"},
};

/* ---- builders ---- */

static ll_val plus(ll_graph *g, ll_val x, ll_val bias)
{
    return bias.id ? ll_add(g, x, bias) : x;
}

/* GRU's gates as the cell has them: r, z, what h gives to n, what x gives. */
static ll_val gru_gates(ll_graph *g, ll_val x, ll_val bias, int64_t h)
{
    ll_shape s = ll_graph_shape(g, x);
    ll_shape one = LL_SHAPE(s.d[0], s.d[1], h);
    ll_val rz = ll_slice(g, x, 2, 0, 2 * h), n = ll_slice(g, x, 2, 2 * h, 3 * h), m;
    if (bias.id) {
        rz = ll_add(g, rz, ll_slice(g, bias, 0, 0, 2 * h));
        m = ll_broadcast(g, ll_slice(g, bias, 0, 2 * h, 3 * h), "h->bth", one);
    } else {
        m = ll_fill(g, ll_graph_dtype(g, x), one, 0);
    }
    return ll_concat(g, (ll_val[]){rz, m, n}, 3, 2);
}

static ll_val initial(ll_graph *g, ll_val x, const ll_recurrent *r, int states, int64_t h)
{
    ll_val s[LL_CELL_STATES] = {r->h0, r->c0};
    ll_shape zero = LL_SHAPE(ll_graph_shape(g, x).d[0], h);
    for (int k = 0; k < states; k++)
        if (!s[k].id) s[k] = ll_fill(g, ll_graph_dtype(g, x), zero, 0);
    return ll_concat(g, s, states, 1);
}

ll_val ll_recur(ll_graph *g, ll_val x, ll_recurrent *r)
{
    if (!ll_has_argument(g, "recur", "r", r)) return (ll_val){0};
    ll_shape s = ll_graph_shape(g, x), w = ll_graph_shape(g, r->weight_hh);
    int gates = r->cell == LL_LSTM ? 4 : r->cell == LL_GRU ? 3 : 1;
    if (!x.id || !r->weight_ih.id || !r->weight_hh.id || s.n != 3 || w.n != 2 ||
        (unsigned)r->cell >= LL_N_CELL || w.d[0] != gates * w.d[1])
        return ll_reject(
            g, LL_E_SHAPE,
            "%srecur: expected x [b,t,c] and weights [%d h,c] and [%d h,h] of this cell",
            ll_scope(g), gates, gates);
    if (r->c0.id && r->cell != LL_LSTM)
        return ll_reject(g, LL_E_ARG, "%srecur: c0 is LSTM's; this cell has h0 alone", ll_scope(g));
    int64_t h = w.d[1], t = s.d[1];
    if (r->reverse) x = ll_flip(g, x, 1);
    ll_val z = plus(g, ll_matmul(g, "btc,gc->btg", x, r->weight_ih), r->bias_ih);
    if (!z.id) return z;
    z = r->cell == LL_GRU ? gru_gates(g, z, r->bias_hh, h) : plus(g, z, r->bias_hh);
    ll_val all = LL_EMIT(g, &recur, &(ll_recur_attr){r->cell}, z, r->weight_hh,
                         initial(g, x, r, ll_cell_kinds[r->cell].states, h));
    ll_val last = all.id ? step_of(g, all, t - 1) : all;
    if (!last.id) return last;
    r->h = part(g, last, 0, h);
    r->c = r->cell == LL_LSTM ? part(g, last, 1, h) : (ll_val){0};
    ll_val y = r->cell == LL_LSTM ? ll_slice(g, all, 2, 0, h) : all;
    return r->reverse ? ll_flip(g, y, 1) : y;
}

static ll_val layer(ll_graph *g, const char *name, ll_cell cell, int gates, ll_val x, int64_t h,
                    bool reverse)
{
    ll_shape s = ll_graph_shape(g, x);
    char text[LL_SHAPE_TEXT];
    if (!x.id || s.n != 3 || h < 1)
        return ll_reject(g, LL_E_SHAPE,
                         "recurrent layer %s: operand %s, expected [b,t,c]; %ld hidden", name,
                         x.id ? ll_shape_print(&s, text) : "none", h);
    ll_init init = {LL_UNIFORM, 1 / sqrt((double)h)};
    ll_graph_push(g, name);
    ll_recurrent r = {.cell = cell, .reverse = reverse};
    r.weight_ih = ll_param(g, "weight_ih", LL_SHAPE(gates * h, s.d[2]), init);
    r.weight_hh = ll_param(g, "weight_hh", LL_SHAPE(gates * h, h), init);
    r.bias_ih = ll_param(g, "bias_ih", LL_SHAPE(gates * h), init);
    r.bias_hh = ll_param(g, "bias_hh", LL_SHAPE(gates * h), init);
    ll_val y = ll_recur(g, x, &r);
    ll_graph_pop(g);
    return y;
}

ll_val ll_lstm_layer(ll_graph *g, const char *name, ll_val x, int64_t hidden, bool reverse)
{
    return layer(g, name, LL_LSTM, 4, x, hidden, reverse);
}

ll_val ll_gru_layer(ll_graph *g, const char *name, ll_val x, int64_t hidden, bool reverse)
{
    return layer(g, name, LL_GRU, 3, x, hidden, reverse);
}

ll_val ll_rnn_layer(ll_graph *g, const char *name, ll_val x, int64_t hidden, bool reverse)
{
    return layer(g, name, LL_RNN_TANH, 1, x, hidden, reverse);
}

const ll_op *const ll_ops_recur[] = {&recur, &recur_grad, NULL};
