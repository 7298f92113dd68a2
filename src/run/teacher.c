/* teacher.c: another model's logits and hidden states. */
#include "run/teacher.h"

#include "run/run_int.h"

static ll_err open_run(const ll_run *r, ll_run **out)
{
    char text[64];
    TRY(ll_run_load(r->train.teacher, out));
    int64_t seq = ll_run_size(r, "seq", 0);
    snprintf(text, sizeof text, "model.seq=%ld", seq);
    if (seq) TRY(ll_run_set(*out, text));
    return ll_run_finish(*out);
}

ll_err ll_teacher_run(const ll_run *r, ll_run **out)
{
    LL_OWN(ll_run) t = NULL;
    *out = NULL;
    ll_err rc = open_run(r, &t);
    CHECK(rc == LL_OK, rc,
          "%s: %s; train.teacher needs a run, or the folder of one, with a model of this kind",
          ll_run_origin(r, "train.teacher"), ll_error_message());
    LL_OWN_MEMORY char *theirs = realpath(t->out, NULL);
    LL_OWN_MEMORY char *ours = realpath(r->out, NULL);
    LL_WANT(r, "train.teacher", !theirs || !ours || strcmp(theirs, ours),
            "train.teacher is this run itself: use another --out");
    return LL_HAND(out, t);
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
                "%s takes other samples than model %s: input %s differs", r->train.teacher,
                r->model.name, v->name);
    }
    return LL_OK;
}

static ll_err copy_nodes(const ll_graph *t, ll_graph *g, ll_val *map)
{
    int blocks = g->of.block;
    LL_EACH (const ll_node, n, t->nodes, t->n_node) {
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

static ll_err check_logits(const ll_run *r, const ll_graph *theirs, ll_val b, const ll_graph *g,
                           ll_val a)
{
    char is[LL_SHAPE_TEXT], want[LL_SHAPE_TEXT];
    LL_WANT(r, "train.teacher", a.id && b.id, "model %s has no logits to distill",
            a.id ? theirs->name : g->name);
    ll_shape x = ll_graph_shape(g, a), y = ll_graph_shape(theirs, b);
    LL_WANT(r, "train.teacher", ll_shape_equal(&x, &y),
            "logits of %s are %s, but those of model %s are %s", r->train.teacher,
            ll_shape_print(&y, is), r->model.name, ll_shape_print(&x, want));
    return LL_OK;
}

/* ---- hidden states ---- */

typedef struct state_pair {
    const char *ours, *theirs; /* scopes */
    ll_val a, b;               /* their last values, in the graph each is of */
} state_pair;

/* The last value that was made in a scope. */
static ll_err find_state(const ll_run *r, const ll_graph *g, const char *scope, ll_val *out)
{
    size_t n = strlen(scope);
    ll_near near = {.word = scope};
    *out = (ll_val){0};
    for (int i = 0; i < g->n_node; i++) {
        const char *name = g->nodes[i].name, *dot = strchr(name, '.');
        if (!strncmp(name, scope, n) && name[n] == '.') *out = g->nodes[i].out[0];
        for (; dot; dot = strchr(dot + 1, '.'))
            ll_near_try(&near, ll_arena_printf(g->arena, "%.*s", (int)(dot - name), name));
    }
    LL_WANT(r, "train.teacher_hidden", out->id,
            "model %s has no part %s%s (inspect --graph lists the names)", g->name, scope,
            ll_near_hint(&near));
    LL_WANT(r, "train.teacher_hidden", ll_dtype_is_float(ll_graph_dtype(g, *out)),
            "%s of model %s ends with integers, not floats", scope, g->name);
    return LL_OK;
}

/* Positions are the same; channels need not be. */
static ll_err check_pair(const ll_run *r, const ll_graph *g, const ll_graph *theirs,
                         const state_pair *p)
{
    ll_shape x = ll_graph_shape(g, p->a), y = ll_graph_shape(theirs, p->b), other = y;
    char is[LL_SHAPE_TEXT], want[LL_SHAPE_TEXT];
    if (x.n && x.n == y.n) other.d[y.n - 1] = x.d[x.n - 1];
    LL_WANT(r, "train.teacher_hidden", x.n && ll_shape_equal(&x, &other),
            "%s of model %s is %s, but %s of %s is %s: all but the last dimension must be equal",
            p->ours, g->name, ll_shape_print(&x, want), p->theirs, r->train.teacher,
            ll_shape_print(&y, is));
    return LL_OK;
}

/* "OURS=THEIRS,OURS=THEIRS" */
static ll_err find_pairs(const ll_run *r, const ll_graph *g, const ll_graph *theirs,
                         state_pair **out, int *n)
{
    ll_arena *a = g->arena;
    char *rest = NULL, *text = ll_arena_strdup(a, r->train.teacher_hidden);
    *out = LL_NEW_ARRAY(a, state_pair, strlen(text) / 2 + 1);
    *n = 0;
    for (char *w = strtok_r(text, ", ", &rest); w; w = strtok_r(NULL, ", ", &rest)) {
        state_pair *p = &(*out)[(*n)++];
        char *equals = strchr(w, '=');
        LL_WANT(r, "train.teacher_hidden", equals && equals > w && equals[1],
                "'%s': expected OURS=THEIRS, such as h0=h2,h1=h5", w);
        *equals = '\0';
        *p = (state_pair){.ours = w, .theirs = equals + 1};
        for (int i = 0; i + 1 < *n; i++)
            LL_WANT(r, "train.teacher_hidden",
                    strcmp((*out)[i].ours, p->ours) || strcmp((*out)[i].theirs, p->theirs),
                    "%s=%s is given twice", p->ours, p->theirs);
        TRY(find_state(r, g, p->ours, &p->a));
        TRY(find_state(r, theirs, p->theirs, &p->b));
        TRY(check_pair(r, g, theirs, p));
    }
    LL_WANT(r, "train.teacher_hidden", *n || !*r->train.teacher_hidden,
            "'%s' names no parts: expected OURS=THEIRS, such as h0=h2,h1=h5",
            r->train.teacher_hidden);
    return LL_OK;
}

/* x times a projection, so that it has so many channels. */
static ll_val projected(ll_graph *g, const state_pair *p, ll_val x, int64_t channels)
{
    ll_shape s = ll_graph_shape(g, x);
    int64_t c = s.d[s.n - 1];
    char spec[3 * LL_MAX_DIMS + 16], lead[LL_MAX_DIMS + 1] = "";
    if (c == channels) return x;
    for (int i = 0; i + 1 < s.n; i++) lead[i] = (char)('a' + i);
    snprintf(spec, sizeof spec, "%sy,zy->%sz", lead, lead);
    snprintf(g->scope, sizeof g->scope, LL_MATCH "%.100s.%.100s.", p->ours, p->theirs);
    ll_init init = {LL_NORMAL, 1 / sqrt((double)c)};
    x = ll_matmul(g, spec, x, ll_param(g, "weight", LL_SHAPE(channels, c), init));
    g->scope[0] = '\0';
    return x;
}

/* The mean over pairs of what they differ by; map: of the teacher's values. */
static ll_val hidden_apart(ll_graph *g, const state_pair *p, int n, const ll_val *map)
{
    ll_val sum = {0};
    for (int i = 0; i < n; i++) {
        ll_val b = map[p[i].b.id];
        ll_shape s = ll_graph_shape(g, b);
        ll_val one = ll_mean(g, ll_mse(g, projected(g, &p[i], p[i].a, s.d[s.n - 1]), b));
        sum = i ? ll_add(g, sum, one) : one;
    }
    return ll_scale(g, sum, 1 / (double)n);
}

ll_err ll_teacher_add(const ll_run *r, const ll_graph *theirs, ll_graph *g, ll_val *loss)
{
    const ll_run_train *o = &r->train;
    ll_val *map = LL_NEW_ARRAY(g->arena, ll_val, theirs->n_value);
    ll_val a = ll_find_logits(g), b = ll_find_logits(theirs);
    state_pair *pairs;
    int n;
    TRY(find_pairs(r, g, theirs, &pairs, &n));
    bool logits = !n || o->teacher_weight > 0; /* models of other classes have states alike */
    if (logits) TRY(check_logits(r, theirs, b, g, a));
    TRY(map_inputs(r, theirs, g, map));
    TRY(copy_nodes(theirs, g, map));
    if (logits) {
        ll_val kl = apart(g, map[b.id], a, o->temperature);
        ll_graph_result(g, "distillation", kl);
        *loss = ll_add(g, ll_scale(g, *loss, 1 - o->teacher_weight),
                       ll_scale(g, kl, o->teacher_weight));
    }
    if (n) {
        ll_val far = hidden_apart(g, pairs, n, map);
        ll_graph_result(g, "hidden", far);
        *loss = ll_add(g, *loss, ll_scale(g, far, o->hidden_weight));
    }
    return ll_graph_check(g);
}
