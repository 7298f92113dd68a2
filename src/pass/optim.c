/* optim.c: ll_minimize: gradients, clipping and an update rule, as nodes of the graph.
 *
 * A rule makes, from a parameter p and its gradient g, the parameter's next value, and keeps its
 * moments as state named "<parameter>.<moment>". Norms are over whole tensors. Everything after the
 * accum nodes runs once a step, whatever the number of micro-batches.
 * LARS: You, Gitman, Ginsburg 2017; LAMB: You et al. 2020; Adam: Kingma, Ba 2015; AdamW:
 * Loshchilov, Hutter 2019; Muon: Jordan et al. 2024, scaled as by Liu et al. 2025; schedule-free:
 * Defazio et al. 2024. */
#include "base/near.h"
#include "op/op_int.h"
#include "pass/pass.h"

#include <fnmatch.h>
#include <math.h>

typedef struct rule_call {
    ll_graph *g;
    const ll_optim *o;
    ll_val p, d; /* parameter, gradient (clipped) */
    const char *name;
    ll_val lr, t;
    double decay; /* 0 where this parameter is excluded */
    bool excluded;
} rule_call;

static ll_val moment(rule_call *c, const char *which)
{
    ll_type t = ll_value_of(c->g, c->p)->type;
    const char *name = ll_arena_printf(c->g->arena, "%s.%s", c->name, which);
    return ll_input(c->g, name, LL_STATE, t, (ll_init){0});
}

/* weight*old + (1-weight)*new, kept as the moment's next value */
static ll_val average(rule_call *c, ll_val old, ll_val new, double weight)
{
    ll_val v = ll_add(c->g, ll_scale(c->g, old, weight), ll_scale(c->g, new, 1 - weight));
    ll_graph_update(c->g, old, v);
    return v;
}

static ll_val decayed(rule_call *c, ll_val d) /* d + decay * p */
{
    return c->decay ? ll_add(c->g, d, ll_scale(c->g, c->p, c->decay)) : d;
}

static double or (double v, double usual)
{
    return v ? v : usual;
}

static ll_val norm(ll_graph *g, ll_val x)
{
    return ll_sqrt(g, ll_sumsq(g, x));
}

static ll_val step_by(rule_call *c, ll_val direction) /* p - lr * direction */
{
    return ll_sub(c->g, c->p, ll_mul(c->g, c->lr, direction));
}

static ll_val sgd(rule_call *c)
{
    return step_by(c, decayed(c, c->d));
}

static ll_val velocity(rule_call *c, ll_val d)
{
    ll_val v = moment(c, "velocity");
    ll_val next = ll_add(c->g, ll_scale(c->g, v, or (c->o->momentum, 0.9)), d);
    ll_graph_update(c->g, v, next);
    return next;
}

static ll_val momentum(rule_call *c)
{
    return step_by(c, velocity(c, decayed(c, c->d)));
}

static ll_val nesterov(rule_call *c)
{
    ll_val d = decayed(c, c->d), v = velocity(c, d);
    return step_by(c, ll_add(c->g, d, ll_scale(c->g, v, or (c->o->momentum, 0.9))));
}

static ll_val adagrad(rule_call *c)
{
    ll_val d = decayed(c, c->d), s = moment(c, "sum");
    ll_val next = ll_add(c->g, s, ll_square(c->g, d));
    ll_graph_update(c->g, s, next);
    ll_val root = ll_shift(c->g, ll_sqrt(c->g, next), or (c->o->eps, 1e-10));
    return step_by(c, ll_div(c->g, d, root));
}

static ll_val rmsprop(rule_call *c)
{
    ll_val d = decayed(c, c->d);
    ll_val s = average(c, moment(c, "square"), ll_square(c->g, d), or (c->o->beta2, 0.99));
    ll_val root = ll_shift(c->g, ll_sqrt(c->g, s), or (c->o->eps, 1e-8));
    return step_by(c, ll_div(c->g, d, root));
}

/* 1 / (1 - beta^t) */
static ll_val bias_correction(rule_call *c, double beta)
{
    ll_val power = ll_exp(c->g, ll_scale(c->g, c->t, log(beta)));
    ll_val one = ll_fill(c->g, ll_graph_dtype(c->g, c->t), LL_SCALAR, 1);
    return ll_div(c->g, one, ll_sub(c->g, one, power));
}

/* Adam's direction: corrected mean / (sqrt(corrected square) + eps) */
static ll_val adam_direction(rule_call *c, ll_val d)
{
    ll_graph *g = c->g;
    double b1 = or (c->o->beta1, 0.9), b2 = or (c->o->beta2, 0.999);
    ll_val m = average(c, moment(c, "mean"), d, b1);
    ll_val v = average(c, moment(c, "square"), ll_square(g, d), b2);
    ll_val up = ll_mul(g, bias_correction(c, b1), m);
    ll_val root = ll_sqrt(g, ll_mul(g, bias_correction(c, b2), v));
    return ll_div(g, up, ll_shift(g, root, or (c->o->eps, 1e-8)));
}

static ll_val adam(rule_call *c)
{
    return step_by(c, adam_direction(c, decayed(c, c->d)));
}

static ll_val adamw(rule_call *c)
{
    return step_by(c, decayed(c, adam_direction(c, c->d)));
}

/* a / b where both are positive, else 1 */
static ll_val ratio_or_one(ll_graph *g, ll_val a, ll_val b)
{
    ll_dtype t = ll_graph_dtype(g, a);
    ll_val zero = ll_fill(g, t, LL_SCALAR, 0), one = ll_fill(g, t, LL_SCALAR, 1);
    ll_val both = ll_mul(g, ll_less(g, zero, a), ll_less(g, zero, b));
    return ll_select(g, both, ll_div(g, a, ll_select(g, both, b, one)), one);
}

/* LARS's and LARC's rate of one tensor: trust * |p| / (|d| + decay * |p|) */
static ll_val local_rate(rule_call *c)
{
    ll_graph *g = c->g;
    ll_val p = norm(g, c->p), d = norm(g, c->d);
    ll_val below = c->decay ? ll_add(g, d, ll_scale(g, p, c->decay)) : d;
    return ratio_or_one(g, ll_scale(g, p, or (c->o->trust, 0.001)), below);
}

static ll_val lars(rule_call *c)
{
    ll_val d = decayed(c, c->d);
    if (!c->excluded) d = ll_mul(c->g, local_rate(c), d);
    ll_val v = velocity(c, ll_mul(c->g, c->lr, d));
    return ll_sub(c->g, c->p, v);
}

static ll_val larc(rule_call *c)
{
    ll_val d = decayed(c, c->d);
    if (!c->excluded) {
        ll_val rate = ll_div(c->g, ll_min(c->g, local_rate(c), c->lr), c->lr);
        d = ll_mul(c->g, rate, d);
    }
    return step_by(c, velocity(c, d));
}

static ll_val lamb(rule_call *c)
{
    ll_graph *g = c->g;
    ll_optim o = *c->o;
    o.eps = or (o.eps, 1e-6);
    rule_call mine = *c;
    mine.o = &o;
    ll_val direction = decayed(c, adam_direction(&mine, c->d));
    if (!c->excluded)
        direction = ll_mul(g, ratio_or_one(g, norm(g, c->p), norm(g, direction)), direction);
    return step_by(c, direction);
}

int ll_matrix_rows(const ll_graph *g, ll_val v)
{
    int rows = 0;
    LL_EACH (const ll_node, n, g->nodes, g->n_node) {
        ll_matmul_parts p;
        if (n->of.phase != LL_FORWARD) continue;
        for (int k = 0; k < n->n_in; k++) {
            if (n->in[k].id != v.id) continue;
            int m = k == 1 ? ll_weight_rows(g, n, &p) : 0;
            if (!m || (rows && rows != m)) return 0;
            rows = m;
        }
    }
    return rows;
}

/* The nearest orthogonal matrix, roughly: singular values become 0.7 to 1.2 (Newton and Schulz, by
 * five steps of a polynomial that rises quickly). */
static ll_val orthogonal(ll_graph *g, ll_val x)
{
    const double a = 3.4445, b = -4.7750, c = 2.0315;
    ll_val size = ll_shift(g, norm(g, x), 1e-7);
    x = ll_div(g, x, size);
    for (int i = 0; i < 5; i++) {
        ll_val s = ll_matmul(g, "ik,jk->ij", x, x);
        ll_val t = ll_add(g, ll_scale(g, s, b), ll_scale(g, ll_matmul(g, "ij,jk->ik", s, s), c));
        x = ll_add(g, ll_scale(g, x, a), ll_matmul(g, "ij,jk->ik", t, x));
    }
    return x;
}

/* Weights of products are whole matrices; all else is AdamW's, as are rates: a step's size is as
 * there. */
static ll_val muon(rule_call *c)
{
    ll_graph *g = c->g;
    int rows = ll_matrix_rows(g, c->p);
    if (!rows) return adamw(c);
    ll_optim o = *c->o;
    o.momentum = or (o.momentum, 0.95);
    rule_call mine = *c;
    mine.o = &o;
    ll_val v = velocity(&mine, c->d), d = ll_add(g, c->d, ll_scale(g, v, o.momentum));
    ll_shape s = ll_graph_shape(g, d), flat = {.n = 2, .d = {1, 1}};
    for (int i = 0; i < s.n; i++) flat.d[i >= rows] *= s.d[i];
    bool tall = flat.d[0] > flat.d[1];
    d = ll_reshape(g, d, flat);
    if (tall) d = ll_transpose(g, d, "ij->ji");
    d = orthogonal(g, d);
    if (tall) d = ll_transpose(g, d, "ij->ji");
    d = ll_scale(g, ll_reshape(g, d, s), 0.2 * sqrt((double)(tall ? flat.d[0] : flat.d[1])));
    return step_by(c, decayed(c, d));
}

/* Gradients are taken at y = (1 - beta) z + beta x, the parameter; z takes the steps, and x, which
 * is evaluated (LL_EMA's name), is the average of z, weighed by the rates' squares. */
static ll_val schedule_free(rule_call *c)
{
    ll_graph *g = c->g;
    double b1 = or (c->o->beta1, 0.9), b2 = or (c->o->beta2, 0.999);
    ll_dtype type = ll_graph_dtype(g, c->t);
    ll_val start = ll_less(g, c->t, ll_fill(g, type, LL_SCALAR, 1.5));
    ll_val z = moment(c, "base"), x = moment(c, "ema");
    ll_val sum = ll_input(g, ll_arena_printf(g->arena, "%s.rates", c->name), LL_STATE,
                          (ll_type){type, LL_SCALAR}, (ll_init){0});
    ll_val v = average(c, moment(c, "square"), ll_square(g, c->d), b2);
    ll_val root = ll_sqrt(g, ll_mul(g, bias_correction(c, b2), v));
    ll_val step = decayed(c, ll_div(g, c->d, ll_shift(g, root, or (c->o->eps, 1e-8))));
    ll_val from = ll_select(g, start, c->p, z), mean = ll_select(g, start, c->p, x);
    ll_val next = ll_sub(g, from, ll_mul(g, c->lr, step));
    ll_val square = ll_square(g, c->lr), total = ll_add(g, sum, square);
    ll_val least = ll_fill(g, type, LL_SCALAR, 1e-30); /* a rate of 0: nothing moves */
    ll_val share = ll_div(g, square, ll_max(g, total, least));
    mean = ll_add(g, mean, ll_mul(g, share, ll_sub(g, next, mean)));
    ll_graph_update(g, z, next);
    ll_graph_update(g, x, mean);
    ll_graph_update(g, sum, total);
    return ll_add(g, ll_scale(g, next, 1 - b1), ll_scale(g, mean, b1));
}

static const struct {
    const char *name;
    ll_val (*rule)(rule_call *c);
} rules[] = {{"sgd", sgd},         {"momentum", momentum}, {"nesterov", nesterov},
             {"adagrad", adagrad}, {"rmsprop", rmsprop},   {"adam", adam},
             {"adamw", adamw},     {"lars", lars},         {"larc", larc},
             {"lamb", lamb},       {"muon", muon},         {"schedule-free-adamw", schedule_free}};
enum { N_RULE = sizeof rules / sizeof *rules };

static bool is_excluded(const ll_optim *o, const ll_value *p)
{
    if (o->no_decay && !strcmp(o->no_decay, "none")) return false;
    size_t n = strlen(p->name);
    bool bias = n >= 4 && !strcmp(p->name + n - 4, "bias");
    return bias || p->type.shape.n <= 1;
}

/* What the rules together say of a parameter; lr is 1 where none does. */
static ll_param_rule rule_of(const ll_optim *o, const char *name)
{
    ll_param_rule sum = {.lr = 1};
    for (const ll_param_rule *r = o->rules; r && r->pattern; r++) {
        if (fnmatch(r->pattern, name, 0)) continue;
        sum.freeze |= r->freeze;
        if (r->lr) sum.lr = r->lr;
        if (r->set_decay) sum.set_decay = true, sum.decay = r->decay;
        if (r->set_init) sum.set_init = true, sum.init = r->init;
    }
    return sum;
}

/* A rule that nothing matches is a slip of the pen. */
static void check_rules(ll_graph *g, const ll_optim *o)
{
    for (const ll_param_rule *r = o->rules; r && r->pattern; r++) {
        bool any = false;
        ll_near near = {.word = r->pattern};
        const char *first = NULL;
        LL_EACH (const ll_value, x, g->values + 1, g->n_value - 1) {
            if (x->node >= 0 || x->kind != LL_PARAM) continue;
            any |= !fnmatch(r->pattern, x->name, 0);
            ll_near_try(&near, x->name);
            if (!first) first = x->name;
        }
        if (any) continue;
        const char *hint = ll_near_hint(&near);
        ll_reject(g, LL_E_ARG,
                  "no parameter's name matches \"%s\"%s%s%s; inspect --graph shows all", r->pattern,
                  hint, !*hint && first ? ": the first is " : "", !*hint && first ? first : "");
    }
}

/* What the parameter was on average. */
static void keep_average(rule_call *c, ll_val next)
{
    ll_graph *g = c->g;
    ll_val old = moment(c, "ema"), half = ll_fill(g, ll_graph_dtype(g, c->t), LL_SCALAR, 1.5);
    ll_val mean = ll_add(g, ll_scale(g, old, c->o->ema), ll_scale(g, next, 1 - c->o->ema));
    ll_graph_update(g, old, ll_select(g, ll_less(g, c->t, half), next, mean));
}

/* x where a parameter is not 0, and 0 where it is, if its zeros are to stay. */
static ll_val masked(ll_graph *g, const ll_optim *o, ll_val p, ll_val x)
{
    if (!o->masked || !ll_matrix_rows(g, p)) return x;
    ll_val zero = ll_fill(g, ll_graph_dtype(g, p), LL_SCALAR, 0);
    return ll_select(g, ll_less(g, zero, ll_abs(g, p)), x, zero);
}

/* Means over micro-batches of the gradients, named grad:PARAMETER; their global norm; clipping. */
static void gather(ll_graph *g, const ll_optim *o, int n, const ll_val *p, ll_val *d)
{
    ll_val total = {0}, *square = LL_NEW_ARRAY(g->arena, ll_val, n + 1);
    for (int i = 0; i < n && g->err == LL_OK; i++) {
        d[i] = ll_accum(g, d[i]);
        ll_value *v = ll_value_of(g, d[i]);
        v->gradient_of = ll_value_of(g, p[i])->name;
        v->name = ll_arena_printf(g->arena, LL_GRADIENT "%s", v->gradient_of);
        d[i] = masked(g, o, p[i], d[i]); /* so moments and averages have these zeros too */
        if (o->clip_value > 0) d[i] = ll_clamp(g, d[i], -o->clip_value, o->clip_value);
        square[i] = ll_sumsq(g, d[i]); /* all before any is added: so they can be one launch */
    }
    for (int i = 0; i < n && g->err == LL_OK; i++)
        total = i ? ll_add(g, total, square[i]) : square[i];
    ll_val size = ll_sqrt(g, total);
    ll_graph_result(g, "grad_norm", size);
    if (o->clip <= 0) return;
    ll_val limit = ll_fill(g, ll_graph_dtype(g, size), LL_SCALAR, o->clip);
    ll_val by = ll_div(g, limit, ll_max(g, limit, size)); /* 1 where the norm is within it */
    for (int i = 0; i < n; i++) d[i] = ll_mul(g, by, d[i]);
}

double ll_clip_limit(const ll_graph *g)
{
    ll_val size = ll_find_result(g, "grad_norm");
    double limit = INFINITY;
    LL_EACH (const ll_node, n, g->nodes, g->n_node)
        for (int k = 0; k < n->n_in; k++) {
            if (n->in[k].id != size.id) continue;
            const ll_node *other = n->op == ll_ew_op(LL_EW_max) ? ll_maker(g, n->in[!k]) : NULL;
            if (!other || other->op != &ll_op_fill) return 0;
            limit = fmin(limit, ((const ll_fill_attr *)other->attr)->value);
        }
    return limit;
}

static int rule_index(ll_graph *g, const ll_optim *o)
{
    const char *name = o->name ? o->name : "sgd";
    for (int i = 0; i < N_RULE; i++)
        if (!strcmp(rules[i].name, name)) return i;
    ll_reject(g, LL_E_ARG,
              "unknown optimizer %s (optimizers: sgd, momentum, nesterov, adagrad, rmsprop, adam, "
              "adamw, lars, larc, lamb, muon, schedule-free-adamw)",
              name);
    return -1;
}

/* A negative or endless number would train nonsense without a word. Not a number fails as well. */
static bool check_numbers(ll_graph *g, const ll_optim *o)
{
    const struct {
        const char *name;
        double value;
        bool share; /* below 1 */
    } numbers[] = {{"momentum", o->momentum, true},
                   {"beta1", o->beta1, true},
                   {"beta2", o->beta2, true},
                   {"ema", o->ema, true},
                   {"eps", o->eps, false},
                   {"weight_decay", o->weight_decay, false},
                   {"trust", o->trust, false},
                   {"clip", o->clip, false},
                   {"clip_value", o->clip_value, false}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        double v = numbers[i].value;
        if (v >= 0 && isfinite(v) && (v < 1 || !numbers[i].share)) continue;
        ll_reject(g, LL_E_ARG, "%s of the optimizer is %g, expected %s", numbers[i].name, v,
                  numbers[i].share ? "0 or more and less than 1" : "a number from 0 on");
    }
    for (const ll_param_rule *r = o->rules; r && r->pattern; r++) {
        bool lr = r->lr >= 0 && isfinite(r->lr);
        if (lr && (!r->set_decay || (r->decay >= 0 && isfinite(r->decay)))) continue;
        ll_reject(g, LL_E_ARG, "%s of the rule \"%s\" is %g, expected a number from 0 on",
                  lr ? "decay" : "lr", r->pattern, lr ? r->decay : r->lr);
    }
    return g->err == LL_OK;
}

static ll_err check_asked(const ll_graph *g, ll_val loss, const ll_optim *o, bool averages)
{
    ll_shape s = ll_graph_shape(g, loss);
    CHECK(ll_has_value(g, loss), LL_E_GRAPH, "the loss is %s", ll_no_value(loss));
    CHECK(!o->no_decay || !strcmp(o->no_decay, "none") || !strcmp(o->no_decay, "1d"), LL_E_ARG,
          "no_decay is %s, expected 1d or none", o->no_decay);
    CHECK(!s.n, LL_E_SHAPE, "the loss has shape %s; expected a scalar, such as its mean",
          LL_DIMS(&s));
    CHECK(o->ema <= 0 || !averages, LL_E_ARG,
          "ema cannot be combined with %s, which already averages: leave one out", o->name);
    return LL_OK;
}

void ll_minimize(ll_graph *g, ll_val loss, const ll_optim *o)
{
    static const ll_optim plain = {.name = "sgd"};
    if (!o) o = &plain;
    int rule = rule_index(g, o);
    if (ll_rejected(g) || !check_numbers(g, o)) return;
    if (check_asked(g, loss, o, rules[rule].rule == schedule_free) != LL_OK) {
        ll_fail(g);
        return;
    }
    if (!ll_find_result(g, "loss").id) ll_graph_result(g, "loss", loss);
    ll_val *p, *d;
    int n = 0;
    LL_ARRAYS(g->arena, g->n_value, p, d);
    check_rules(g, o);
    for (int i = 1; i < g->n_value; i++) {
        ll_value *v = &g->values[i];
        if (v->node >= 0 || v->kind != LL_PARAM) continue;
        ll_param_rule own = rule_of(o, v->name);
        if (own.set_init) v->init = own.init;
        if (!own.freeze) p[n++] = (ll_val){i};
    }
    if (!n) {
        ll_reject(g, LL_E_GRAPH, "the graph has no parameters to train%s",
                  o->rules ? " that are not frozen" : "");
        return;
    }
    if (!ll_depends(g, loss, p, n)) {
        ll_reject(g, LL_E_GRAPH, "the loss depends on none of the graph's parameters%s",
                  o->rules ? " that are not frozen" : "");
        return;
    }
    for (int i = 0; i < g->n_node; i++) { /* gradients that a loss is made of are forward too */
        g->nodes[i].of.phase = LL_FORWARD;
        g->nodes[i].of.at = i + 1;
    }
    ll_grad(g, loss, p, n, d);
    g->of.phase = LL_ONCE;
    g->of.at = -1;
    for (int i = 0; i < g->n_result; i++) g->results[i].value = ll_accum(g, g->results[i].value);
    gather(g, o, n, p, d);
    ll_val lr = ll_per_step(g, "lr");
    rule_call c = {.g = g, .o = o, .t = ll_per_step(g, "t")};
    for (int i = 0; i < n && g->err == LL_OK; i++) {
        c.p = p[i];
        c.d = d[i];
        c.name = ll_value_of(g, p[i])->name;
        c.excluded = is_excluded(o, ll_value_of(g, p[i]));
        ll_param_rule own = rule_of(o, c.name);
        c.decay = own.set_decay ? own.decay : c.excluded ? 0 : o->weight_decay;
        c.lr = own.lr == 1 ? lr : ll_scale(g, lr, own.lr);
        ll_val next = rules[rule].rule(&c);
        if (rules[rule].rule == muon) /* others leave 0 what has neither gradient nor moments */
            next = masked(g, o, p[i], next);
        ll_graph_update(g, p[i], next);
        if (o->ema > 0) keep_average(&c, next);
    }
}
