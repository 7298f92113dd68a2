/* evaluate.c: validation.
 *
 * The last batch of the validation set is usually short. Graphs have static shapes, so it has a
 * graph of its own: every sample counts once, none is made up. Ranks that share a batch each read
 * their own samples of it. */
#include "infer/evaluate.h"

#include "pass/packed.h"
#include "infer/calibrate.h"

typedef struct pass { /* the model compiled for one batch size */
    int64_t batch;
    int64_t first, count; /* this rank's samples of a batch */
    ll_graph *g;
    ll_session *s;
} pass;

enum { MOST_BATCH = 256, MOST_PASSES = 8 };
struct ll_evaluator {
    const ll_run *run;
    const ll_dataset *data;
    ll_session *share;
    char mesh[LL_MESH_TEXT];
    pass passes[MOST_PASSES];
    int n;
    ll_comm *peers;  /* NULL: no other replica */
    int part, parts; /* of the batches */
    int bits;        /* of weights; 0: as they are */
};

ll_err ll_evaluator_open(const ll_run *r, const ll_dataset *d, ll_session *share,
                         ll_evaluator **out)
{
    ll_evaluator *e = (ll_evaluator *)calloc(1, sizeof *e);
    CHECK(e, LL_E_MEM, "not enough memory for an evaluator");
    *e = (ll_evaluator){.run = r, .data = d, .share = share, .parts = 1};
    if (share->team) ll_mesh_text(&share->team->m, e->mesh);
    *out = e;
    return LL_OK;
}

void ll_evaluator_share(ll_evaluator *e, ll_comm *peers, bool weigh_alone)
{
    e->peers = peers;
    if (weigh_alone) return;
    e->part = ll_comm_rank(peers);
    e->parts = ll_comm_size(peers);
}

void ll_evaluator_pack(ll_evaluator *e, int bits)
{
    e->bits = bits;
}

void ll_evaluator_close(ll_evaluator *e)
{
    if (!e) return;
    for (int i = 0; i < e->n; i++) {
        ll_session_close(e->passes[i].s);
        ll_graph_free(e->passes[i].g);
    }
    free(e);
}

/* The model for this many samples at once. */
static ll_err find_pass(ll_evaluator *e, int64_t batch, pass **out)
{
    for (int i = 0; i < e->n; i++)
        if (e->passes[i].batch == batch) {
            *out = &e->passes[i];
            return LL_OK;
        }
    LL_ASSERT(e->n < MOST_PASSES);
    pass *p = &e->passes[e->n++];
    LL_OWN(ll_graph) plain = NULL;
    int packed = 0;
    TRY(ll_run_graph(e->run, batch, NULL, &plain));
    if (e->bits)
        TRY(ll_pack_graph(plain, e->bits, &p->g));
    else
        p->g = plain, plain = NULL;
    ll_team *team = e->share->team;
    ll_session_opts o = ll_run_session(e->run, team ? team->c : NULL, e->mesh);
    o.threads = e->share->p->threads;
    o.micro_batches = 1;
    o.precision = ll_precision_name(ll_precision_wide(e->run->train.precision));
    o.share = e->bits ? NULL : e->share;
    o.reuse = !e->bits;
    o.zero = 0;
    o.compress = NULL;
    o.recompute = NULL;
    o.any_order = false;
    TRY(ll_session_open(p->g, &o, &p->s));
    if (e->bits) TRY(ll_pack_weights(e->share, p->s, e->bits, NULL, &packed));
    CHECK(packed || !e->bits, LL_E_ARG, LL_PACKED_NONE, e->bits, LL_PACK);
    p->batch = batch;
    ll_session_rows(p->s, &p->first, &p->count);
    *out = p;
    return LL_OK;
}

/* How many samples there are to take, and how many at once. */
static ll_err sizes(const ll_evaluator *e, int64_t *samples, int64_t *batch)
{
    const ll_data_info *info = ll_dataset_info(e->data);
    *batch = e->run->train.micro_batch ? e->run->train.micro_batch : e->run->train.batch;
    if (*batch > MOST_BATCH) *batch = MOST_BATCH;
    if (*samples <= 0 || *samples > info->n[LL_VAL]) *samples = info->n[LL_VAL];
    CHECK(*samples > 0, LL_E_IO, "data %s has no validation samples", info->name);
    if (*batch > *samples) *batch = *samples;
    return LL_OK;
}

ll_err ll_evaluator_plan(ll_evaluator *e, int64_t samples)
{
    int64_t batch;
    pass *p;
    TRY(sizes(e, &samples, &batch));
    TRY(find_pass(e, batch, &p));
    return samples % batch ? find_pass(e, samples % batch, &p) : LL_OK;
}

bool ll_evaluator_gives(const ll_evaluator *e, const char *name)
{
    const ll_graph *g = e->passes[0].g;
    const char *names[LL_MAX_METRICS + 1];
    if (!strcmp(name, "accuracy")) return ll_find_result(g, "correct").id;
    bool found = !strcmp(name, "loss");
    for (int i = ll_run_metrics(g, names); i-- > 0;) found |= !strcmp(names[i], name);
    return found;
}

size_t ll_evaluator_bytes(const ll_evaluator *e)
{
    size_t sum = 0;
    for (int i = 0; i < e->n; i++) sum += ll_exec_bytes(e->passes[i].s->e);
    return sum;
}

ll_err ll_evaluator_plan_wide(ll_evaluator *e)
{
    for (int i = 0; i < e->n; i++) TRY(ll_session_plan_wide(e->passes[i].s));
    return LL_OK;
}

size_t ll_evaluator_wide_bytes(const ll_evaluator *e, bool ran)
{
    size_t sum = 0;
    for (int i = 0; i < e->n; i++) sum += ll_session_wide_bytes(e->passes[i].s, ran);
    return sum;
}

size_t ll_evaluator_batch_bytes(const ll_evaluator *e)
{
    return e->n ? ll_loader_bytes(e->data, e->passes[0].count) : 0;
}

size_t ll_evaluator_comm_bytes(const ll_evaluator *e)
{
    size_t sum = 0;
    for (int i = 0; i < e->n; i++) {
        const ll_session *s = e->passes[i].s;
        const ll_team *team = s->team;
        sum += ll_exec_comm_bytes(s->e);
        if (team) sum -= ll_team_bytes(team); /* the other session's, which has them */
    }
    return sum;
}

static const ll_sampling in_order = {.split = LL_VAL};

/* data: this rank's samples of a batch, by field, from sample `at` on. */
static ll_err add_batch(ll_evaluator *e, pass *p, int64_t at, const void *const *data,
                        ll_score *sum)
{
    p->s->of_step = e->share->step ? e->share->step : 1;
    p->s->step = (uint64_t)at; /* each batch draws its own, the same in every validation */
    TRY(ll_run_set_batch(ll_dataset_info(e->data), p->s, 0, p->count, data));
    ll_err rc = ll_session_run(p->s, 0);
    if (rc == LL_E_NUMERIC || rc == LL_E_ARG) {
        LL_OWN(ll_arena) a = ll_arena_new();
        const char *sample = ll_run_blame(p->g, e->data, &in_order, at, p->batch, a);
        FAIL(rc, "validation: %s%s%s", ll_error_message(),
             sample ? "; it came from the batch's input: " : "", sample ? sample : "");
    }
    TRY(rc);
    bool own = ll_find_result(p->g, "counted").id;
    double weight = own ? ll_session_result(p->s, "counted") : (double)p->batch;
    sum->weight += weight;
    sum->loss += ll_session_result(p->s, "loss") * weight;
    sum->accuracy += ll_session_result(p->s, "correct"); /* NaN where there is none */
    const char *names[LL_MAX_METRICS + 1];
    sum->n_metric = ll_run_metrics(p->g, names);
    for (int i = 0; i < sum->n_metric; i++) {
        sum->metrics[i] += ll_session_result(p->s, names[i]) * (double)p->batch;
        snprintf(sum->names[i], LL_METRIC_NAME, "%s", names[i]);
    }
    sum->samples += p->batch;
    return LL_OK;
}

static ll_err ask(const ll_stop *stop, ll_err mine, bool *yes)
{
    *yes = false;
    return stop && stop->ask ? stop->ask(stop->context, mine, yes) : mine;
}

static void tell(const ll_stop *stop, const ll_score *sum)
{
    if (stop && stop->tell) stop->tell(stop->context, sum);
}

/* Whole batches, from one on. */
static ll_err run_whole(ll_evaluator *e, pass *p, int64_t from, int64_t to, const ll_stop *stop,
                        ll_score *sum)
{
    LL_OWN(ll_loader) l = NULL;
    ll_data_batch b;
    bool enough = false;
    ll_loader_opts o = {.how = in_order,
                        .batch = p->batch,
                        .start = from,
                        .first = p->first,
                        .count = p->count,
                        .threads = (int)e->run->data.threads};
    ll_err rc = ll_loader_open(e->data, &o, &l);
    for (int64_t i = from; i < to; i++) {
        if (rc == LL_OK) rc = ll_loader_next(l, &b);
        TRY(ask(stop, rc, &enough));
        if (enough) break;
        TRY(add_batch(e, p, i * p->batch, b.data, sum));
        tell(stop, sum);
    }
    return rc;
}

/* The short batch after those. */
static ll_err run_rest(ll_evaluator *e, pass *p, int64_t at, const ll_stop *stop, ll_score *sum)
{
    const ll_data_info *info = ll_dataset_info(e->data);
    bool enough;
    void *data[LL_MAX_FIELDS] = {0};
    LL_OWN(ll_arena) a = ll_arena_new();
    for (int i = 0; i < info->n_field; i++)
        data[i] = ll_arena_alloc(a, (size_t)p->count * info->field_bytes[i]);
    TRY(ask(stop, ll_dataset_read(e->data, &in_order, at + p->first, p->count, data), &enough));
    if (enough) return LL_OK;
    TRY(add_batch(e, p, at, (const void *const *)data, sum));
    tell(stop, sum);
    return LL_OK;
}

/* Sums of all replicas. */
static ll_err add_replicas(const ll_evaluator *e, ll_score *sum)
{
    static const ll_coll_opts how = {.algorithm = "sharded", .site = "validation"};
    double v[4 + LL_MAX_METRICS] = {sum->loss, sum->accuracy, (double)sum->samples, sum->weight};
    memcpy(v + 4, sum->metrics, sizeof sum->metrics);
    if (!e->peers) return LL_OK;
    TRY(ll_comm_allreduce(e->peers, v, 4 + LL_MAX_METRICS, LL_F64, LL_REDUCE_SUM, &how));
    double each = e->parts > 1 ? 1 : ll_comm_size(e->peers);
    sum->loss = v[0] / each;
    sum->accuracy = v[1] / each;
    sum->samples = (int64_t)(v[2] / each);
    sum->weight = v[3] / each;
    for (int i = 0; i < LL_MAX_METRICS; i++) sum->metrics[i] = v[4 + i] / each;
    return LL_OK;
}

ll_err ll_evaluate(ll_evaluator *e, int64_t samples, const ll_stop *stop, ll_score *out)
{
    int64_t batch;
    pass *p;
    ll_score sum = {0};
    TRY(sizes(e, &samples, &batch));
    TRY(find_pass(e, batch, &p));
    int64_t n_batch = samples / batch, rest = samples % batch;
    int64_t from = ll_ceil_div(n_batch * e->part, e->parts);
    int64_t to = ll_ceil_div(n_batch * (e->part + 1), e->parts);
    TRY(run_whole(e, p, from, to, stop, &sum));
    if (rest && e->part == 0 && sum.samples == to * batch) {
        TRY(find_pass(e, rest, &p));
        TRY(run_rest(e, p, n_batch * batch, stop, &sum));
    }
    TRY(add_replicas(e, &sum));
    if (sum.samples < samples) sum.samples = 0;
    double n = (double)sum.samples;
    sum.loss /= fmax(sum.weight, 1), sum.accuracy /= n;
    for (int i = 0; i < sum.n_metric; i++) sum.metrics[i] /= n;
    *out = sum;
    return LL_OK;
}
