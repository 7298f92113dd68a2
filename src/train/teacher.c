/* teacher.c: another model's logits. */
#include "train/teacher.h"

#include "ir/op.h"
#include "train/run_int.h"

#include <stdio.h>
#include <stdlib.h>

static ll_err open_run(const ll_run *r, ll_run **out)
{
    char text[64];
    TRY(ll_run_load(r->train.teacher, out));
    int64_t seq = ll_run_size(r, "seq", 0);
    snprintf(text, sizeof text, "model.seq=%lld", (long long)seq);
    if (seq) TRY(ll_run_set(*out, text));
    return ll_run_finish(*out);
}

ll_err ll_teacher_run(const ll_run *r, ll_run **out)
{
    LL_OWN(ll_run) t = NULL;
    *out = NULL;
    ll_err rc = open_run(r, &t);
    CHECK(rc == LL_OK, rc, "%s: %s; want a run, or a folder of one, of such a model",
          ll_run_origin(r, "train.teacher"), ll_error_message());
    char *theirs = realpath(t->out, NULL), *ours = realpath(r->out, NULL);
    bool same = theirs && ours && !strcmp(theirs, ours);
    free(theirs);
    free(ours);
    LL_WANT(r, "train.teacher", !same, "a run cannot learn from itself: use another --out");
    return LL_HAND(out, t);
}

/* What a cross entropy reads, where it is no result. */
static ll_val logits_of(const ll_graph *g)
{
    ll_val v = ll_find_result(g, "logits");
    for (int i = g->n_node - 1; i >= 0 && !v.id; i--)
        if (!strcmp(g->nodes[i].op->name, "cross_entropy")) v = g->nodes[i].in[0];
    return v;
}

/* Inputs of t in g: batch data is ours, by its name; the rest becomes the teacher's. */
static ll_err map_inputs(const ll_run *r, const ll_graph *t, ll_graph *g, ll_val *map)
{
    for (int i = 1; i < t->n_value; i++) {
        const ll_value *v = &t->values[i];
        if (v->node >= 0) continue;
        bool batch = ll_is_batch(v);
        if (!batch) {
            map[i] = ll_input(g, ll_arena_printf(g->arena, LL_TEACHER "%s", v->name), v->kind,
                              v->type, v->init);
            continue;
        }
        map[i] = ll_find(g, v->name);
        const ll_value *own = map[i].id ? ll_value_of(g, map[i]) : NULL;
        LL_WANT(r, "train.teacher",
                own && own->type.dtype == v->type.dtype &&
                    ll_shape_equal(&own->type.shape, &v->type.shape),
                "%s takes other samples than model %s: its %s is not ours", r->train.teacher,
                r->model.name, v->name);
    }
    return LL_OK;
}

static ll_err copy_nodes(const ll_graph *t, ll_graph *g, ll_val *map)
{
    int blocks = g->of.block;
    for (int i = 0; i < t->n_node; i++) {
        const ll_node *n = &t->nodes[i];
        const char *dot = strrchr(n->name, '.');
        ll_val in[LL_MAX_IN], out[LL_MAX_OUT];
        for (int k = 0; k < n->n_in; k++) in[k] = map[n->in[k].id];
        g->of.block = blocks + n->of.block;
        snprintf(g->scope, sizeof g->scope, LL_TEACHER "%.*s", dot ? (int)(dot - n->name) + 1 : 0,
                 n->name);
        TRY(ll_emit_all(g, n->op, n->attr, in, n->n_in, out));
        for (int k = 0; k < n->n_out; k++) map[n->out[k].id] = out[k];
    }
    g->scope[0] = '\0';
    g->of.block = blocks + t->of.block;
    return LL_OK;
}

/* T^2 KL(theirs || ours), the mean over rows. */
static ll_val apart(ll_graph *g, ll_val theirs, ll_val ours, double heat)
{
    ll_shape s = ll_graph_shape(g, ours);
    int last = s.n - 1;
    ll_val p = ll_log_softmax(g, ll_scale(g, theirs, 1 / heat), last);
    ll_val q = ll_log_softmax(g, ll_scale(g, ours, 1 / heat), last);
    ll_val each = ll_mul(g, ll_exp(g, p), ll_sub(g, p, q));
    return ll_scale(g, ll_mean(g, each), heat * heat * (double)s.d[last]);
}

ll_err ll_teacher_add(const ll_run *r, const ll_graph *theirs, ll_graph *g, ll_val *loss)
{
    const ll_run_train *o = &r->train;
    ll_val *map = LL_NEW_ARRAY(g->arena, ll_val, theirs->n_value);
    ll_val a = logits_of(g), b = logits_of(theirs);
    LL_WANT(r, "train.teacher", a.id && b.id, "model %s has no logits to learn with",
            a.id ? theirs->name : g->name);
    ll_shape x = ll_graph_shape(g, a), y = ll_graph_shape(theirs, b);
    char is[LL_SHAPE_TEXT], want[LL_SHAPE_TEXT];
    LL_WANT(r, "train.teacher", ll_shape_equal(&x, &y),
            "logits of %s are %s, those of model %s are %s", o->teacher, ll_shape_print(&y, is),
            r->model.name, ll_shape_print(&x, want));
    TRY(map_inputs(r, theirs, g, map));
    TRY(copy_nodes(theirs, g, map));
    ll_val kl = apart(g, map[b.id], a, o->temperature);
    ll_graph_result(g, "distillation", kl);
    *loss =
        ll_add(g, ll_scale(g, *loss, 1 - o->teacher_weight), ll_scale(g, kl, o->teacher_weight));
    return ll_graph_check(g);
}
