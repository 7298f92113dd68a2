/* predict.c: see predict.h. Samples are run many at once, and what is left over as a batch of its
 * own size: none is made up. */
#include "infer/predict.h"

#include "op/ops.h"

typedef struct pass { /* the graph for so many samples */
    int64_t batch;
    ll_graph *g;
    ll_session *s;
} pass;

enum { MOST_AT_ONCE = 64, PASSES = 3 }; /* one sample, many, what is left over */
struct ll_predictor {
    const ll_run *run;
    ll_session *share;
    ll_predicts info;
    const char *asked; /* NULL: the model's own */
    char name[128];
    pass passes[PASSES];
    int n;
};

static ll_val named(const ll_graph *g, const char *name)
{
    ll_val v = ll_find_result(g, name);
    for (int i = g->n_value - 1; !v.id && i > 0; i--)
        if (g->values[i].node >= 0 && g->values[i].name && !strcmp(g->values[i].name, name))
            v = (ll_val){i};
    return v;
}

static void list_names(const ll_graph *g, char *out, size_t room)
{
    size_t at = 0;
    *out = '\0';
    for (int i = 0; i < g->n_result && at < room; i++)
        at += (size_t)snprintf(out + at, room - at, "%s%s", at ? ", " : "", g->results[i].name);
    for (int i = 1; i < g->n_value && at < room; i++)
        if (g->values[i].node >= 0 && g->values[i].name)
            at += (size_t)snprintf(out + at, room - at, "%s%s", at ? ", " : "", g->values[i].name);
}

static ll_err find_value(const ll_graph *g, const char *name, ll_val *out, const char **called)
{
    char names[400];
    *called = name ? name : "logits";
    *out = named(g, *called);
    for (int i = 0; !name && !out->id && i < g->n_result; i++)
        if (ll_value_of(g, g->results[i].value)->type.shape.n > 0)
            *out = g->results[i].value, *called = g->results[i].name;
    if (!name && !out->id) *out = ll_find_logits(g);
    if (!name && !out->id) *out = named(g, *called = "value");
    if (out->id) return LL_OK;
    list_names(g, names, sizeof names);
    CHECK(!name, LL_E_ARG, "model %s has no value or result %s; it has %s", g->name, name, names);
    FAIL(LL_E_ARG,
         "model %s has no logits, no result per sample and no cross entropy: classes are unknown; "
         "to predict or export a value, name it (ll_graph_name) and give --result; it has %s",
         g->name, names);
}

ll_err ll_predictor_make(ll_predictor *p, int64_t batch, ll_graph **out)
{
    LL_OWN(ll_graph) whole = NULL;
    const char *name;
    ll_val v;
    TRY(ll_run_graph(p->run, batch, NULL, &whole));
    TRY(find_value(whole, p->asked, &v, &name));
    const ll_type *t = &ll_value_of(whole, v)->type;
    CHECK(t->shape.n > 0 && t->shape.d[0] == batch, LL_E_ARG,
          "%s of model %s is not per sample: its first dimension is not the batch", name,
          p->run->model.name);
    bool logits = !strcmp(name, "logits") || ll_find_logits(whole).id == v.id;
    p->info.meaning = ll_is_op(ll_maker(whole, v), &ll_op_softmax) ? LL_PROBABILITIES
                      : logits                                     ? LL_LOGITS
                                                                   : LL_NUMBERS;
    p->info.type = (ll_type){t->dtype, {.n = t->shape.n - 1}};
    memcpy(p->info.type.shape.d, t->shape.d + 1, sizeof(int64_t) * (size_t)(t->shape.n - 1));
    snprintf(p->name, sizeof p->name, "%s", name);
    return ll_only(whole, v, name, out);
}

/* f32 all along: labels are told apart by the last bits. */
static ll_err find_pass(ll_predictor *p, int64_t batch, pass **out)
{
    pass *x = p->passes;
    while (x < p->passes + p->n && x->batch != batch) x++;
    *out = x;
    if (x < p->passes + p->n && x->s) return LL_OK;
    if (x == p->passes + PASSES) { /* another rest than the last one's */
        x = *out = &p->passes[PASSES - 1];
        ll_session_close(x->s);
        ll_graph_free(x->g);
        *x = (pass){0};
    } else if (x == p->passes + p->n)
        p->n++;
    if (!x->g) TRY(ll_predictor_make(p, batch, &x->g));
    x->batch = batch;
    ll_session_opts o = ll_run_session(p->run, NULL, NULL);
    o.threads = p->share->p->threads;
    o.micro_batches = 1;
    o.precision = NULL;
    o.share = p->share;
    o.reuse = true;
    o.zero = 0;
    o.compress = NULL;
    o.recompute = NULL;
    o.layouts = NULL;
    o.any_order = false;
    return ll_session_open(x->g, &o, &x->s);
}

ll_err ll_predictor_open(const ll_run *r, ll_session *share, const char *result, ll_predictor **out)
{
    LL_OWN(ll_predictor) p = (ll_predictor *)calloc(1, sizeof *p);
    CHECK(p, LL_E_MEM, "not enough memory for a predictor");
    p->run = r;
    p->share = share;
    p->asked = result;
    p->passes[0].batch = 1;
    TRY(ll_predictor_make(p, 1, &p->passes[0].g));
    p->n = 1;
    p->info.name = p->name;
    p->info.n_input = ll_run_fields(p->passes[0].g, p->info.inputs);
    CHECK(p->info.n_input >= 0, LL_E_ARG, "%s reads more than %d inputs", p->name, LL_MAX_FIELDS);
    return LL_HAND(out, p);
}

void ll_predictor_close(ll_predictor *p)
{
    if (!p) return;
    for (int i = 0; i < PASSES; i++) {
        ll_session_close(p->passes[i].s);
        ll_graph_free(p->passes[i].g);
    }
    free(p);
}

const ll_predicts *ll_predictor_info(const ll_predictor *p)
{
    return &p->info;
}

const ll_graph *ll_predictor_graph(const ll_predictor *p)
{
    return p->passes[0].g;
}

ll_err ll_predict(ll_predictor *p, int64_t n, const void *const *in, void *out)
{
    const ll_predicts *f = &p->info;
    size_t row = ll_tensor_bytes(f->type.dtype, &f->type.shape);
    for (int64_t at = 0, batch; at < n; at += batch) {
        pass *x;
        batch = n - at < MOST_AT_ONCE ? n - at : MOST_AT_ONCE;
        TRY(find_pass(p, batch, &x));
        for (int i = 0; i < f->n_input; i++) {
            size_t bytes = ll_tensor_bytes(f->inputs[i].dtype, &f->inputs[i].shape);
            TRY(ll_session_set(x->s, f->inputs[i].name, 0, (const char *)in[i] + (size_t)at * bytes,
                               (size_t)batch * bytes));
        }
        TRY(ll_session_run(x->s, 0));
        TRY(ll_session_get(x->s, f->name, (char *)out + (size_t)at * row, (size_t)batch * row));
    }
    return LL_OK;
}
