/* random_graph.h: random graphs for tests of passes, programs and machines: a directed acyclic
 * graph of the public builders on small odd shapes, several parameters, a scalar loss. Everything
 * is a function of the seed. Values stay of order one: products are squashed now and then, logs and
 * roots are of positive numbers. */
#pragma once
#include "base/rng.h"
#include "exec/exec.h"
#include "ir/op.h"
#include "kern/attr.h"

#include <stdio.h>
#include <stdlib.h>

enum { RG_VALUES = 64, RG_NAMES = 256, RG_NUMEL = 160 };

typedef struct rg {
    ll_graph *g;
    uint64_t seed, drawn;
    ll_val v[RG_VALUES]; /* f32 values to build on */
    bool used[RG_VALUES];
    int n_v, n_named;
    int64_t limit[RG_NAMES]; /* of integer batch data, by the number in its name */
} rg;

static inline int64_t rg_below(rg *r, int64_t n)
{
    return (int64_t)ll_below_at(r->seed, 77, r->drawn++, (uint64_t)n);
}

static inline bool rg_one_in(rg *r, int64_t n)
{
    return rg_below(r, n) == 0;
}

static inline ll_shape rg_shape(rg *r, int min_dims, int max_dims)
{
    static const int64_t sizes[] = {1, 2, 2, 3, 3, 4, 5, 7};
    ll_shape s = {.n = min_dims + (int)rg_below(r, max_dims - min_dims + 1)};
    for (int i = 0; i < s.n; i++) s.d[i] = sizes[rg_below(r, 8)];
    while (ll_numel(&s) > RG_NUMEL) s.d[rg_below(r, s.n)] = 2;
    return s;
}

/* ---- inputs ---- */

static inline ll_val rg_param(rg *r, ll_shape s)
{
    char name[16];
    snprintf(name, sizeof name, "p%d", r->n_named++);
    return ll_param(r->g, name, s, (ll_init){LL_NORMAL, 0.7});
}

static inline ll_val rg_batch(rg *r, ll_shape s)
{
    char name[16];
    snprintf(name, sizeof name, "x%d", r->n_named++);
    return ll_batch(r->g, name, LL_F32, s);
}

static inline ll_val rg_index(rg *r, ll_shape s, int64_t limit)
{
    char name[16];
    r->limit[r->n_named % RG_NAMES] = limit;
    snprintf(name, sizeof name, "i%d", r->n_named++);
    return ll_batch(r->g, name, LL_I32, s);
}

static const char *rg_scope(rg *r) /* for layers, which name their own parameters */
{
    return ll_arena_printf(r->g->arena, "layer%d", r->n_named++);
}

/* ---- picking ---- */

static inline ll_val rg_any(rg *r)
{
    /* half of the time a recent one, so that graphs grow deep */
    int from = rg_one_in(r, 2) && r->n_v > 4 ? r->n_v - 4 : 0;
    int i = from + (int)rg_below(r, r->n_v - from);
    r->used[i] = true;
    return r->v[i];
}

/* One with so many dimensions at least, or a new input. */
static inline ll_val rg_with_dims(rg *r, int min_dims, int max_dims)
{
    for (int k = 0; k < 6; k++) {
        int i = (int)rg_below(r, r->n_v);
        int n = ll_graph_shape(r->g, r->v[i]).n;
        if (n < min_dims || n > max_dims) continue;
        r->used[i] = true;
        return r->v[i];
    }
    ll_shape s = rg_shape(r, min_dims, max_dims);
    return rg_one_in(r, 2) ? rg_param(r, s) : rg_batch(r, s);
}

static inline ll_val rg_of_shape(rg *r, ll_shape s)
{
    for (int i = r->n_v - 1; i >= 0; i--) {
        ll_shape have = ll_graph_shape(r->g, r->v[i]);
        if (!ll_shape_equal(&have, &s) || rg_one_in(r, 3)) continue;
        r->used[i] = true;
        return r->v[i];
    }
    return rg_one_in(r, 2) ? rg_param(r, s) : rg_batch(r, s);
}

/* A shape that broadcasts to s. */
static inline ll_shape rg_smaller(rg *r, ll_shape s)
{
    ll_shape t = {.n = s.n - (int)rg_below(r, s.n + 1)};
    for (int i = 0; i < t.n; i++) t.d[i] = rg_one_in(r, 3) ? 1 : s.d[i + s.n - t.n];
    return t;
}

static inline ll_val rg_calm(rg *r, ll_val x)
{
    return rg_one_in(r, 2) ? ll_tanh(r->g, x) : ll_scale(r->g, x, 0.5);
}

/* ---- ops ---- */

static inline ll_val rg_unary(rg *r)
{
    ll_graph *g = r->g;
    ll_val x = rg_any(r), positive = ll_shift(g, ll_square(g, x), 0.5);
    switch (rg_below(r, 17)) {
    case 0: return ll_neg(g, x);
    case 1: return ll_abs(g, x);
    case 2: return ll_exp(g, ll_tanh(g, x));
    case 3: return ll_log(g, positive);
    case 4: return ll_sqrt(g, positive);
    case 5: return ll_rsqrt(g, positive);
    case 6: return ll_tanh(g, x);
    case 7: return ll_sigmoid(g, x);
    case 8: return ll_sin(g, x);
    case 9: return ll_cos(g, x);
    case 10: return ll_relu(g, x);
    case 11: return ll_gelu(g, x);
    case 12: return ll_silu(g, x);
    case 13: return rg_calm(r, ll_square(g, x));
    case 14: return ll_scale(g, x, rg_one_in(r, 2) ? 1 : -0.75);
    case 15: return ll_shift(g, x, rg_one_in(r, 2) ? 0 : 0.25);
    default: return ll_dropout(g, x, 0.3);
    }
}

static inline ll_val rg_binary(rg *r)
{
    ll_graph *g = r->g;
    ll_val a = rg_any(r), b;
    ll_shape s = ll_graph_shape(g, a);
    switch (rg_below(r, 4)) {
    case 0: b = rg_of_shape(r, s); break;
    case 1: b = ll_fill(g, LL_F32, rg_smaller(r, s), rg_one_in(r, 2) ? 1 : 0.375); break;
    case 2: b = a; break;
    default: b = rg_of_shape(r, rg_smaller(r, s)); break;
    }
    if (rg_one_in(r, 2)) {
        ll_val c = a;
        a = b, b = c;
    }
    switch (rg_below(r, 8)) {
    case 0: return ll_sub(g, a, b);
    case 1: return rg_calm(r, ll_mul(g, a, b));
    case 2: return ll_div(g, a, ll_shift(g, ll_square(g, b), 1));
    case 3: return ll_max(g, a, b);
    case 4: return ll_min(g, a, b);
    case 5: return ll_select(g, ll_less(g, rg_batch(r, s), a), a, b);
    case 6: return ll_mul(g, ll_equal(g, a, b), a);
    default: return ll_add(g, a, b);
    }
}

/* A product with a random spec: each letter of a is a row, a batch or summed. */
static inline ll_val rg_product(rg *r)
{
    ll_graph *g = r->g;
    ll_val a = rg_with_dims(r, 1, 4);
    ll_shape s = ll_graph_shape(g, a), t = {0};
    char in[8] = {0}, other[8] = {0}, out[8] = {0}, spec[LL_SPEC_MAX];
    int n_out = 0;
    for (int i = 0; i < s.n; i++) {
        in[i] = (char)('a' + i);
        int64_t role = rg_below(r, 3);
        if (role != 0) other[t.n] = in[i], t.d[t.n++] = s.d[i];
        if (role != 2) out[n_out++] = in[i];
    }
    if (n_out < 3 && rg_one_in(r, 2)) other[t.n] = out[n_out++] = 'z', t.d[t.n++] = 3;
    for (int i = n_out - 1; i > 0; i--) { /* a shuffle of the result's letters */
        int k = (int)rg_below(r, i + 1);
        char c = out[i];
        out[i] = out[k], out[k] = c;
    }
    bool swap = rg_one_in(r, 2);
    snprintf(spec, sizeof spec, "%s,%s->%s", swap ? other : in, swap ? in : other, out);
    ll_val b = rg_of_shape(r, t);
    return rg_calm(r, ll_matmul(g, spec, swap ? b : a, swap ? a : b));
}

static inline ll_val rg_reduce(rg *r)
{
    ll_val x = rg_with_dims(r, 1, 4);
    ll_shape s = ll_graph_shape(r->g, x);
    char in[8] = {0}, out[8] = {0}, spec[LL_SPEC_MAX];
    int64_t count = 1;
    for (int i = 0, n = 0; i < s.n; i++) {
        in[i] = (char)('a' + i);
        if (rg_one_in(r, 2))
            out[n++] = in[i];
        else
            count *= s.d[i];
    }
    snprintf(spec, sizeof spec, "%s->%s", in, out);
    if (rg_one_in(r, 4)) /* of numbers no two of which are equal by construction */
        return ll_amax(r->g, ll_add(r->g, x, rg_batch(r, s)), spec);
    return ll_scale(r->g, ll_sum(r->g, x, spec), 1.0 / (double)count);
}

static inline ll_val rg_reshape(rg *r, ll_val x)
{
    ll_shape s = ll_graph_shape(r->g, x), t = {0};
    if (rg_one_in(r, 3)) return ll_reshape(r->g, x, LL_SHAPE(-1));
    for (int i = 0; i < s.n; i++) { /* merge some neighbours, put a 1 somewhere */
        if (t.n && rg_one_in(r, 2))
            t.d[t.n - 1] *= s.d[i];
        else
            t.d[t.n++] = s.d[i];
    }
    if (t.n < 4 && rg_one_in(r, 2)) t.d[t.n++] = 1;
    return ll_reshape(r->g, x, t);
}

static inline ll_val rg_transpose(rg *r, ll_val x)
{
    int n = ll_graph_shape(r->g, x).n;
    char in[8] = {0}, out[8] = {0}, spec[LL_SPEC_MAX];
    for (int i = 0; i < n; i++) in[i] = out[i] = (char)('a' + i);
    for (int i = n - 1; i > 0; i--) {
        int k = (int)rg_below(r, i + 1);
        char c = out[i];
        out[i] = out[k], out[k] = c;
    }
    snprintf(spec, sizeof spec, "%s->%s", in, out);
    return ll_transpose(r->g, x, spec);
}

static inline ll_val rg_moves(rg *r)
{
    ll_graph *g = r->g;
    ll_val x = rg_with_dims(r, 1, 4);
    ll_shape s = ll_graph_shape(g, x);
    int dim = (int)rg_below(r, s.n);
    switch (rg_below(r, 6)) {
    case 0: return rg_reshape(r, x);
    case 1: return rg_transpose(r, x);
    case 2: {
        int64_t from = rg_below(r, s.d[dim]);
        return ll_slice(g, x, dim, from, from + 1 + rg_below(r, s.d[dim] - from));
    }
    case 3: return ll_pad(g, x, dim, rg_below(r, 3), rg_below(r, 3));
    case 4: {
        s.d[dim] = 1 + rg_below(r, 3);
        ll_val all[3] = {x, rg_of_shape(r, s), x};
        return ll_concat(g, all, 2 + (int)rg_below(r, 2), dim);
    }
    default:
        if (s.n > 3 || ll_numel(&s) > 60) return ll_neg(g, x);
        return s.n == 1 && rg_one_in(r, 2) ? ll_broadcast(g, x, "a->ab", LL_SHAPE(s.d[0], 2))
               : s.n == 1                  ? ll_broadcast(g, x, "b->ab", LL_SHAPE(3, s.d[0]))
               : s.n == 2 ? ll_broadcast(g, x, "ac->abc", LL_SHAPE(s.d[0], 2, s.d[1]))
                          : ll_broadcast(g, x, "abc->abcd", LL_SHAPE(s.d[0], s.d[1], s.d[2], 2));
    }
}

static inline ll_val rg_normal(rg *r)
{
    ll_graph *g = r->g;
    ll_val x = rg_with_dims(r, 1, 3);
    ll_shape s = ll_graph_shape(g, x), c = LL_SHAPE(s.d[s.n - 1]);
    switch (rg_below(r, 4)) {
    case 0: return ll_softmax(g, x);
    case 1: return ll_layernorm(g, x, rg_of_shape(r, c), rg_param(r, c), 0.1);
    case 2: return ll_rmsnorm(g, x, rg_of_shape(r, c), 0.1);
    default:
        if (ll_numel(&s) == c.d[0]) return ll_sin(g, x);
        return ll_batchnorm_layer(g, rg_scope(r), x, true);
    }
}

static inline ll_val rg_image(rg *r)
{
    ll_graph *g = r->g;
    ll_val x = rg_with_dims(r, 4, 4);
    ll_shape s = ll_graph_shape(g, x);
    int64_t size = 1 + rg_below(r, 3);
    if (rg_one_in(r, 4)) return ll_adaptive_avg_pool(g, x, rg_one_in(r, 2) ? 1 : s.d[1], 1);
    bool small = s.d[1] < size || s.d[2] < size;
    if (rg_one_in(r, 2)) {
        ll_window w = {.size = {size, size}, .stride = {1 + rg_below(r, 2), 1}};
        if (small) w.pad[0] = w.pad[1] = size / 2;
        if (small && size == 3 && (s.d[1] < 1 || s.d[2] < 1)) return ll_neg(g, x);
        return rg_one_in(r, 2) ? ll_max_pool(g, x, &w) : ll_avg_pool(g, x, &w);
    }
    ll_conv c = {.stride = {1 + rg_below(r, 2), 1}, .pad = {size / 2, size / 2}};
    ll_val w = rg_param(r, LL_SHAPE(2, size, size, s.d[3]));
    return rg_calm(r, ll_conv2d(g, x, w, &c));
}

static inline ll_val rg_layers(rg *r)
{
    ll_graph *g = r->g;
    int64_t n = 2 + rg_below(r, 3), c = 2 + rg_below(r, 4);
    switch (rg_below(r, 4)) {
    case 0: return ll_embedding(g, rg_of_shape(r, LL_SHAPE(5, c)), rg_index(r, LL_SHAPE(2, n), 5));
    case 1: {
        ll_val x = rg_with_dims(r, 2, 3);
        ll_shape s = ll_graph_shape(g, x);
        int64_t classes = s.d[s.n - 1];
        s.n--;
        return ll_cross_entropy(g, x, rg_index(r, s, classes));
    }
    case 2: return ll_attention(g, rg_of_shape(r, LL_SHAPE(2, n, 3, 2, c)));
    default:
        return ll_gelu(g, ll_linear(g, rg_scope(r), rg_with_dims(r, 1, 3), c, rg_one_in(r, 2)));
    }
}

/* Constants, elements by index, running sums, and functions that are made of others. */
static inline ll_val rg_everyday(rg *r)
{
    static const float some[] = {0.5f, -1, 0.25f, 2, -0.125f, 1, 0, 0.75f};
    ll_graph *g = r->g;
    ll_val x = rg_with_dims(r, 1, 3);
    ll_shape s = ll_graph_shape(g, x), index = s;
    int dim = (int)rg_below(r, s.n);
    int64_t n = s.d[dim];
    index.d[dim] = 1 + rg_below(r, 3);
    char spec[] = "abc->abc";
    snprintf(spec, sizeof spec, "%.*s->%.*s", s.n, "abc", s.n - 1, "abc");
    switch (rg_below(r, 14)) {
    case 0: return ll_gather(g, x, rg_index(r, LL_SHAPE(3), n), dim);
    case 1: return ll_gather_elements(g, x, rg_index(r, index, n), dim);
    case 2: return ll_scatter_add(g, x, rg_index(r, s, 4), dim, 4);
    case 3: return rg_calm(r, ll_cumsum(g, x, dim, rg_one_in(r, 2), rg_one_in(r, 2)));
    case 4: return ll_add(g, x, ll_arange(g, LL_F32, s.d[s.n - 1], -0.5, 0.25));
    case 5:
        return n > 8
                   ? ll_erf(g, x)
                   : ll_gather(g, x, ll_cast(g, ll_arange(g, LL_F32, n, (double)n - 1, -1), LL_I32),
                               dim);
    case 6: return ll_mul(g, x, ll_slice(g, ll_constant(g, LL_F32, LL_SHAPE(8), some), 0, 3, 4));
    case 7: return ll_logsumexp(g, x, spec);
    case 8: return ll_softmax_over(g, x, dim);
    case 9: return ll_log_softmax(g, x, dim);
    case 10: return s.n > 1 ? ll_group_norm(g, x, 1, (ll_val){0}, (ll_val){0}, 0.1) : ll_mish(g, x);
    case 11: return ll_add(g, ll_atan(g, x), ll_gelu_erf(g, x));
    case 12: return ll_softplus(g, ll_clamp(g, x, -1.5, 2));
    default: return ll_pow(g, ll_shift(g, ll_square(g, x), 0.5), ll_tanh(g, x));
    }
}

/* ---- graphs ---- */

static inline void rg_grow(rg *r)
{
    ll_val x;
    switch (rg_below(r, 13)) {
    case 0:
    case 1:
    case 2: x = rg_unary(r); break;
    case 12: x = rg_everyday(r); break;
    case 3:
    case 4:
    case 5: x = rg_binary(r); break;
    case 6: x = rg_product(r); break;
    case 7: x = rg_reduce(r); break;
    case 8: x = rg_moves(r); break;
    case 9: x = rg_normal(r); break;
    case 10: x = rg_image(r); break;
    default: x = rg_layers(r); break;
    }
    if (!x.id || r->n_v == RG_VALUES) return;
    ll_shape s = ll_graph_shape(r->g, x);
    if (ll_numel(&s) > 4 * RG_NUMEL) x = ll_slice(r->g, x, 0, 0, 1);
    r->v[r->n_v++] = x;
}

/* Means of what nobody read, and of a few others, added up. */
static inline ll_val rg_loss(rg *r)
{
    ll_graph *g = r->g;
    ll_val loss = {0};
    for (int i = 0; i < r->n_v; i++) {
        if (r->used[i] && !rg_one_in(r, 4)) continue;
        ll_val x = r->v[i];
        ll_val term = ll_mean(g, rg_one_in(r, 2) ? ll_square(g, x) : ll_sin(g, x));
        loss = loss.id ? ll_add(g, loss, term) : term;
    }
    return loss.id ? loss : ll_mean(g, ll_square(g, r->v[0]));
}

/* The forward graph of a seed: its loss. The graph is r->g. */
static inline ll_val rg_make(rg *r, uint64_t seed)
{
    *r = (rg){.g = ll_graph_new("random"), .seed = seed};
    r->v[r->n_v++] = rg_param(r, rg_shape(r, 0, 4));
    r->v[r->n_v++] = rg_batch(r, rg_shape(r, 1, 4));
    int n = 3 + (int)rg_below(r, 14);
    for (int i = 0; i < n; i++) rg_grow(r);
    return rg_loss(r);
}

/* ---- running ---- */

typedef struct rg_run {
    ll_program *p;
    ll_exec *e;
} rg_run;

static inline ll_err rg_open(const ll_graph *g, const ll_lower_opts *opts, rg_run *out)
{
    *out = (rg_run){0};
    TRY(ll_lower(g, opts, &out->p));
    ll_err rc = ll_exec_open(out->p, &(ll_exec_opts){.seed = 11, .poison = true}, &out->e);
    if (rc != LL_OK) ll_program_free(out->p);
    return rc;
}

static inline void rg_close(rg_run *run)
{
    ll_exec_close(run->e);
    ll_program_free(run->p);
}

/* Batch data: functions of the input's name, the micro-batch and the element. */
static inline void rg_feed(const rg *r, const rg_run *run)
{
    const ll_program *p = run->p;
    for (int i = 0; i < p->n_input; i++) {
        const ll_slot *s = &p->slots[p->inputs[i].slot];
        if (s->kind != LL_BATCH) continue;
        int64_t n = ll_numel(&s->type.shape), limit = r->limit[atoi(s->name + 1) % RG_NAMES];
        for (int m = 0; m < p->n_micro; m++)
            for (int64_t k = 0; k < n; k++) {
                uint64_t at = (uint64_t)(m * n + k), stream = ll_stream(s->name, 0);
                ll_store(ll_exec_data(run->e, p->inputs[i].slot, m), s->type.dtype, k,
                         s->type.dtype == LL_I32
                             ? (double)ll_below_at(r->seed, stream, at, (uint64_t)limit)
                             : ll_normal_at(r->seed, stream, at));
            }
    }
}

static inline void rg_set_scalar(const rg_run *run, const char *name, double v)
{
    int s = ll_program_input(run->p, name);
    if (s >= 0) ll_store(ll_exec_data(run->e, s, 0), run->p->slots[s].type.dtype, 0, v);
}

static inline ll_err rg_step(const rg_run *run, uint64_t step)
{
    rg_set_scalar(run, "lr", 0.05);
    rg_set_scalar(run, "t", (double)step + 1);
    for (int s = 0; s < LL_N_SECTION; s++) TRY(ll_exec_run(run->e, s, step));
    return LL_OK;
}

static inline double rg_scalar(const rg_run *run, const char *name)
{
    int s = ll_program_result(run->p, name);
    return ll_load(ll_exec_data(run->e, s, 0), run->p->slots[s].type.dtype, 0);
}
