/* evaluate.c: the run's model and data, and validation.
 *
 * The last batch of the validation set is usually short. Graphs have static shapes, so it has a
 * graph of its own: every sample counts once, none is made up. */
#include "train/evaluate.h"

#include "exec/session.h"

#include <math.h>
#include <stdlib.h>

ll_err ll_run_graph(const ll_run *r, int64_t batch, const ll_optim *optim, ll_graph **out)
{
    ll_build b = {.batch = batch, .training = optim != NULL};
    memcpy(b.sizes, r->model.sizes, sizeof b.sizes);
    ll_graph *g = ll_graph_new(r->model.name);
    ll_val loss = r->model.def->declare(g, &b);
    if (optim) ll_minimize(g, loss, optim);
    ll_err rc = ll_graph_check(g);
    if (rc != LL_OK) {
        ll_graph_free(g);
        return ll_frame(rc, __FILE__, __LINE__, __func__);
    }
    *out = g;
    return LL_OK;
}

static int64_t size_or(const ll_run *r, const char *name, int64_t otherwise)
{
    for (int i = 0; i < LL_MAX_SIZES && r->model.sizes[i].name; i++)
        if (!strcmp(r->model.sizes[i].name, name)) return r->model.sizes[i].value;
    return otherwise;
}

static ll_err check_samples(const ll_run *r, const ll_data_info *info)
{
    ll_graph *g = NULL;
    TRY(ll_run_graph(r, 1, NULL, &g));
    ll_val x = ll_find(g, "x");
    ll_shape want = {0};
    ll_dtype dtype = LL_F32;
    if (x.id) {
        ll_type t = ll_value_of(g, x)->type;
        dtype = t.dtype;
        want.n = t.shape.n - 1;
        memcpy(want.d, t.shape.d + 1, sizeof(int64_t) * (size_t)want.n);
    }
    ll_graph_free(g);
    char a[LL_SHAPE_TEXT], b[LL_SHAPE_TEXT];
    CHECK(dtype == info->x_dtype && ll_shape_equal(&want, &info->x_shape), LL_E_SHAPE,
          "model %s takes samples of %s%s, data %s has %s%s: set the model's sizes to the data's",
          r->model.name, ll_dtype_name(dtype), ll_shape_print(&want, a), info->name,
          ll_dtype_name(info->x_dtype), ll_shape_print(&info->x_shape, b));
    int64_t classes = size_or(r, "classes", info->classes);
    CHECK(info->kind != LL_IMAGES || classes >= info->classes, LL_E_SHAPE,
          "data %s has %lld classes, model.classes is %lld", info->name, (long long)info->classes,
          (long long)classes);
    return LL_OK;
}

ll_err ll_run_dataset(const ll_run *r, ll_dataset **out)
{
    bool tokens = !strcmp(r->model.def->input, "tokens");
    ll_data_opts o = {.name = *r->data.name ? r->data.name : NULL,
                      .format = *r->data.format ? r->data.format : NULL,
                      .path = *r->data.path ? r->data.path : NULL,
                      .val_fraction = r->data.val_fraction,
                      .samples = r->data.samples,
                      .seed = (uint64_t)r->train.seed};
    if (tokens) {
        o.seq = size_or(r, "seq", 0);
        o.vocab = size_or(r, "vocab", 0);
    } else {
        o.height = o.width = size_or(r, "image", 0);
        o.channels = size_or(r, "channels", 0);
        o.classes = size_or(r, "classes", 0);
    }
    TRY(ll_dataset_open(&o, out));
    ll_err rc = check_samples(r, ll_dataset_info(*out));
    if (rc != LL_OK) {
        ll_dataset_close(*out);
        *out = NULL;
    }
    return rc;
}

typedef struct pass { /* the model compiled for one batch size */
    int64_t batch;
    ll_graph *g;
    ll_session *s;
} pass;

struct ll_evaluator {
    const ll_run *run;
    const ll_dataset *data;
    ll_session *share;
    pass whole, tail;
};

static void close_pass(pass *p)
{
    ll_session_close(p->s);
    ll_graph_free(p->g);
    *p = (pass){0};
}

static ll_err open_pass(const ll_evaluator *e, pass *p, int64_t batch)
{
    if (p->batch == batch) return LL_OK;
    close_pass(p);
    TRY(ll_run_graph(e->run, batch, NULL, &p->g));
    ll_session_opts o = {.threads = (int)e->run->train.threads,
                         .precision = e->run->train.precision,
                         .share = e->share};
    TRY(ll_session_open(p->g, &o, &p->s));
    p->batch = batch;
    return LL_OK;
}

ll_err ll_evaluator_open(const ll_run *r, const ll_dataset *d, ll_session *share,
                         ll_evaluator **out)
{
    ll_evaluator *e = (ll_evaluator *)calloc(1, sizeof *e);
    CHECK(e, LL_E_MEM, "no memory for an evaluator");
    *e = (ll_evaluator){.run = r, .data = d, .share = share};
    *out = e;
    return LL_OK;
}

void ll_evaluator_close(ll_evaluator *e)
{
    if (!e) return;
    close_pass(&e->whole);
    close_pass(&e->tail);
    free(e);
}

static ll_err add_batch(pass *p, const ll_data_batch *b, ll_score *sum)
{
    const ll_program *prog = ll_session_program(p->s);
    TRY(ll_session_set(p->s, "x", 0, b->x, prog->slots[ll_program_input(prog, "x")].bytes));
    TRY(ll_session_set(p->s, "y", 0, b->y, prog->slots[ll_program_input(prog, "y")].bytes));
    TRY(ll_session_run(p->s, 0));
    sum->loss += ll_session_result(p->s, "loss") * (double)p->batch;
    sum->accuracy += ll_session_result(p->s, "correct"); /* NaN where there is none */
    sum->samples += p->batch;
    return LL_OK;
}

static ll_err run_all(ll_evaluator *e, ll_loader *l, int64_t samples, ll_score *sum)
{
    while (sum->samples < samples) {
        ll_data_batch b;
        TRY(ll_loader_next(l, &b));
        int64_t count = samples - sum->samples < b.count ? samples - sum->samples : b.count;
        if (count == 0) break;
        pass *p = count == e->whole.batch ? &e->whole : &e->tail;
        TRY(open_pass(e, p, count));
        TRY(add_batch(p, &b, sum));
    }
    return LL_OK;
}

ll_err ll_evaluate(ll_evaluator *e, int64_t samples, ll_score *out)
{
    enum { BATCH = 256 };
    const ll_data_info *info = ll_dataset_info(e->data);
    int64_t batch = e->run->train.micro_batch ? e->run->train.micro_batch : e->run->train.batch;
    if (batch > BATCH) batch = BATCH;
    if (samples <= 0 || samples > info->n[LL_VAL]) samples = info->n[LL_VAL];
    CHECK(samples > 0, LL_E_IO, "data %s has no validation samples", info->name);
    if (batch > samples) batch = samples;
    TRY(open_pass(e, &e->whole, batch));
    ll_loader *l;
    ll_score sum = {0};
    TRY(ll_loader_open(e->data, &(ll_loader_opts){.how = {.split = LL_VAL}, .batch = batch}, &l));
    ll_err rc = run_all(e, l, samples, &sum);
    ll_loader_close(l);
    if (rc != LL_OK) return ll_frame(rc, __FILE__, __LINE__, __func__);
    *out =
        (ll_score){sum.loss / (double)sum.samples, sum.accuracy / (double)sum.samples, sum.samples};
    return LL_OK;
}
