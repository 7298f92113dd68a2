/* loose.c: see loose.h. What a rank keeps is, for exchanges, one vector: parameters, then
 * statistics, then moments; so what is exchanged is its beginning, what is saved all of it. Sums
 * over replicas are canonical: no bit depends on nodes, algorithms or timing. A codec takes tensors
 * one by one: ranks of a replica that hold copies of one must get the same bits, whatever else they
 * hold.
 *
 * With parallel.delay T an exchange of differences goes on beside T steps:
 *
 *     step k        own is what there is; a thread sums own - anchor over replicas
 *     land          the anchor makes its step; due = what own would be without delay, less own
 *     step k + T    what there is then changes by due: steps in between are kept
 *
 * When it lands is a matter of time and of no bit: anchor, velocity and due are read by nobody
 * before a landing, and due comes at a step. */
#include "replicas/loose.h"

#include "base/crc32c.h"
#include "base/rng.h"
#include "base/stats.h"
#include "run/ranks.h"
#include "run/teacher.h"

#include <omp.h>

static const ll_coll_opts canonical = {.algorithm = "sharded", .site = "exchange of replicas"};

/* ---- opening ---- */

ll_err ll_loose_open(ll_comm *c, const ll_run *r, ll_loose **out)
{
    ll_arena *a = ll_arena_new();
    ll_loose *x = *out = LL_NEW(a, ll_loose);
    int n = (int)r->parallel.replicas, each = ll_comm_size(c) / n, me = ll_comm_rank(c);
    *x = (ll_loose){.run = r,
                    .how = &r->parallel.between,
                    .world = c,
                    .index = me / each,
                    .n = n,
                    .served = ll_consistency_served(&r->parallel.between),
                    .rounds = ll_consistency_rounds(&r->parallel.between),
                    .arena = a};
    ll_err rc = LL_OK;
    if (each > 1 && x->served && x->how->server == LL_SERVER_open)
        rc = RAISE(LL_E_CONFIG,
                   "parallel.server=open (hogwild) needs replicas of one rank, but there are %d of "
                   "%d: set parallel.replicas=%d, or parallel.server=sharded",
                   n, each, n * each);
    TRY(ll_comm_agree(c, rc));
    TRY(ll_comm_split(c, me % each, me, &x->peers));
    return each > 1 ? ll_comm_split(c, me / each, me, &x->mine) : LL_OK;
}

void ll_loose_close(ll_loose *x)
{
    if (!x) return;
    if (x->flight.under_way) pthread_join(x->flight.thread, NULL);
    if (x->due) ll_comm_trim(x->peers); /* its scratch */
    for (int i = 0; i < x->n_item; i++) ll_codec_close(x->items[i].codec);
    ll_server_close(x->server);
    free(x->repeat.turn);
    ll_comm_close(x->mine);
    ll_comm_close(x->peers);
    ll_arena_free(x->arena);
}

size_t ll_loose_bytes(const ll_loose *x)
{
    return ll_loose_ensemble(x) ? 0 : x->bytes; /* which never exchanges: nobody touches them */
}

/* Of what is summed over replicas, the most at once. */
ll_err ll_loose_comm_bytes(const ll_loose *x, size_t *bytes)
{
    const ll_coll_call call = {.spec = {.coll = LL_COLL_ALLREDUCE, .count = x->all},
                               .data = x->mean,
                               .dtype = LL_F32,
                               .op = LL_REDUCE_SUM,
                               .algo = ll_algo_find(LL_COLL_ALLREDUCE, canonical.algorithm)};
    size_t page = LL_LEAST_SCRATCH, room = 0;
    if (!ll_loose_no_mean(x)) TRY(ll_comm_scratch(x->peers, &call, &room));
    room = ll_round_up(room, page);
    *bytes = x->due || room <= page ? 0 : room - page; /* there is a page already, but of others */
    if (x->due) *bytes = room;
    *bytes += ll_comm_own_bytes(x->world) + ll_comm_own_bytes(x->peers);
    return LL_OK;
}

ll_loose_count ll_loose_counted(const ll_loose *x)
{
    ll_loose_count c = x->count;
    if (!x->server) return c;
    ll_server_count n = ll_server_counted(x->server);
    c.exchanges = n.exchanges;
    c.bytes = n.bytes;
    memcpy(c.stale, n.stale, sizeof c.stale);
    return c;
}

static ll_err list_items(ll_loose *x)
{
    const ll_session *s = x->s;
    LL_OWN(ll_arena) a = ll_arena_new();
    const ll_st_part *parts = ll_session_tensors(s, a).parts;
    x->items = LL_NEW_ARRAY(x->arena, ll_loose_item, s->n_kept + 1);
    for (int class = 0; class < 3; class ++) {
        for (int i = 0, at = -1; i < s->n_kept; i++) {
            const ll_slot *v = &s->p->slots[s->kept[i]];
            if (ll_is_cache(v->name) || ll_is_teacher(v->name)) continue; /* as the list has it */
            at++;
            if (class != (v->kind == LL_PARAM ? 0 : ll_is_moment(s->g, v->name) ? 2 : 1)) continue;
            CHECK(v->type.dtype == LL_F32, LL_E_CONFIG,
                  "parallel.replicas: %s is of type %s, but replicas exchange only f32", v->name,
                  ll_dtype_name(v->type.dtype));
            int64_t n = ll_numel(&v->type.shape);
            x->items[x->n_item++] =
                (ll_loose_item){v->name, i, x->all, n, parts && parts[at].spare, NULL};
            x->all += n;
        }
        if (class == 0) x->n_param = x->n_item, x->params = x->all;
        if (class == 1) x->shared = x->all;
    }
    return LL_OK;
}

static float *vector(ll_loose *x, int64_t n)
{
    x->bytes += (size_t)n * sizeof(float);
    return LL_NEW_ARRAY(x->arena, float, n + 1);
}

static ll_err open_codecs(ll_loose *x)
{
    ll_codec *k = NULL;
    if (!strcmp(x->how->codec, "none")) return LL_OK;
    TRY(ll_codec_open(x->how->codec, "feedback", 1, 0, &k));
    x->feedback = ll_codec_residual(k) != NULL;
    ll_codec_close(k);
    LL_EACH (ll_loose_item, t, x->items, x->n_param) {
        TRY(ll_codec_open(x->how->codec, t->name, t->n, (uint64_t)x->run->train.seed, &t->codec));
        if (x->feedback) x->bytes += (size_t)t->n * sizeof(float);
    }
    return LL_OK;
}

ll_server_opts ll_loose_server_opts(const ll_loose *x)
{
    return (ll_server_opts){.how = x->how,
                            .mine = x->mine,
                            .peers = x->peers,
                            .index = x->index,
                            .n = x->n,
                            .params = x->params,
                            .shared = x->rounds ? x->made : x->shared,
                            .seed = (uint64_t)x->run->train.seed};
}

ll_err ll_loose_bind(ll_loose *x, ll_session *s)
{
    const ll_consistency *h = x->how;
    x->s = s;
    TRY(list_items(x));
    if (x->rounds) {
        TRY(ll_session_made(s, &x->made));
        uint32_t sum = ll_crc32c(0, s->made, sizeof *s->made * (size_t)s->n_made);
        TRY(ll_ranks_same(x->peers, sum, "the order of gradients"));
    }
    x->own = vector(x, x->made > x->all ? x->made : x->all);
    if (!ll_loose_no_mean(x)) x->mean = vector(x, x->all);
    bool differs = h->what == LL_EXCHANGE_difference;
    if (differs && !x->served) x->anchor = vector(x, x->params);
    if (differs && h->outer != LL_OUTER_sgd) x->velocity = vector(x, x->params);
    if (h->delay) {
        x->due = vector(x, x->shared);
        TRY(ll_transport_check_threads());
        ll_comm_patient(x->peers);
    }
    const ll_server_opts server = ll_loose_server_opts(x);
    if (x->served) x->bytes += ll_server_bytes(&server);
    x->most = h->peers == LL_PEERS_ring          ? 2
              : h->peers == LL_PEERS_torus       ? LL_TORUS
              : h->peers == LL_PEERS_exponential ? 1
              : h->peers == LL_PEERS_groups      ? (int)h->group - 1
                                                 : 0;
    if (x->most > 0) x->room = vector(x, x->most * x->shared);
    x->to = LL_NEW_ARRAY(x->arena, int, x->most + 1);
    x->from = LL_NEW_ARRAY(x->arena, int, x->most + 1);
    return open_codecs(x);
}

/* ---- the session's tensors and the vector ---- */

static float *data_of(const ll_loose *x, const ll_loose_item *t)
{
    return (float *)ll_exec_data(x->s->e, x->s->kept[t->kept], 0);
}

void ll_loose_take(const ll_loose *x, float *to, int64_t end)
{
    for (int i = 0; i < x->n_item && x->items[i].at < end; i++)
        memcpy(to + x->items[i].at, data_of(x, &x->items[i]), sizeof *to * (size_t)x->items[i].n);
}

ll_err ll_loose_put(const ll_loose *x, const float *from, int64_t end)
{
    for (int i = 0; i < x->n_item && x->items[i].at < end; i++)
        memcpy(data_of(x, &x->items[i]), from + x->items[i].at,
               sizeof *from * (size_t)x->items[i].n);
    return ll_session_loaded(x->s);
}

static void scale(float *v, int64_t n, float by)
{
    for (int64_t i = 0; i < n; i++) v[i] *= by;
}

/* Over all replicas. */
static ll_err mean_over(const ll_loose *x, float *v, int64_t n)
{
    TRY(ll_comm_allreduce(x->peers, v, n, LL_F32, LL_REDUCE_SUM, &canonical));
    scale(v, n, 1.0f / (float)x->n);
    return LL_OK;
}

static int64_t dense_bytes(const ll_loose *x, int64_t n)
{
    return 2 * (x->n - 1) * n * (int64_t)sizeof(float) / x->n;
}

void ll_loose_set_anchor(ll_loose *x)
{
    if (x->anchor) ll_loose_take(x, x->anchor, x->params);
}

ll_err ll_loose_begin(ll_loose *x)
{
    if (ll_loose_ensemble(x)) return LL_OK;
    ll_loose_take(x, x->own, x->all);
    TRY(ll_comm_broadcast(x->peers, x->own, x->all, LL_F32, 0, &(ll_coll_opts){.site = "start"}));
    TRY(ll_loose_put(x, x->own, x->all));
    ll_loose_set_anchor(x);
    return LL_OK;
}

/* ---- with neighbours ---- */

/* Replicas in an order that every exchange draws anew, cut into groups; within mine, the one s
 * places on. Shorter groups wait for nobody at the end. */
static void in_groups(ll_loose *x, int64_t number)
{
    int n = x->n, size = (int)x->how->group, at = 0;
    LL_OWN(ll_arena) a = ll_arena_new();
    int *order = LL_NEW_ARRAY(a, int, n);
    uint64_t stream = ll_stream("groups of replicas", (uint64_t)number);
    for (int i = 0; i < n; i++) order[i] = i;
    for (int i = n - 1; i > 0; i--) {
        int k =
            (int)ll_below_at((uint64_t)x->run->train.seed, stream, (uint64_t)i, (uint64_t)i + 1);
        int other = order[i];
        order[i] = order[k];
        order[k] = other;
    }
    while (order[at] != x->index) at++;
    int first = at / size * size, m = n - first < size ? n - first : size, i = at - first;
    for (int s = 1; s < size; s++) {
        x->to[s - 1] = s < m ? order[first + (i + s) % m] : -1;
        x->from[s - 1] = s < m ? order[first + (i - s + m) % m] : -1;
    }
}

static void on_circle(ll_loose *x, int slot, int shift)
{
    x->to[slot] = (x->index + shift) % x->n;
    x->from[slot] = (x->index - shift + x->n) % x->n;
}

static void find_neighbours(ll_loose *x, int64_t number)
{
    int powers = 1;
    while (1 << powers < x->n) powers++;
    if (x->how->peers == LL_PEERS_groups) {
        in_groups(x, number);
    } else if (x->how->peers == LL_PEERS_ring) {
        on_circle(x, 0, 1);
        on_circle(x, 1, x->n - 1);
    } else if (x->how->peers == LL_PEERS_torus) {
        ll_torus_neighbours(x->n, x->index, x->to, x->from);
    } else {
        on_circle(x, 0, 1 << (number % powers));
    }
}

/* own becomes the mean of this replica and those it hears, in the replicas' order. */
static ll_err mix(ll_loose *x, int64_t number)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    const void **by = LL_NEW_ARRAY(a, const void *, x->n),
               **some = LL_NEW_ARRAY(a, const void *, x->n);
    size_t bytes = (size_t)x->shared * sizeof(float);
    int n = 0;
    find_neighbours(x, number);
    by[x->index] = x->own;
    for (int i = 0; i < x->most; i++) {
        ll_exchange e = {ll_comm_next_number(x->peers, "exchange", "replicas"),
                         x->to[i],
                         x->from[i],
                         x->own,
                         x->to[i] < 0 ? 0 : bytes,
                         x->room + i * x->shared,
                         x->from[i] < 0 ? 0 : bytes};
        TRY(ll_comm_exchange(x->peers, &e, NULL));
        if (x->from[i] >= 0) by[x->from[i]] = e.room;
        x->count.bytes += (int64_t)e.bytes;
    }
    for (int i = 0; i < x->n; i++)
        if (by[i]) some[n++] = by[i];
    ll_fold(x->own, some, n, x->shared, LL_F32, LL_REDUCE_SUM);
    scale(x->own, x->shared, 1.0f / (float)n);
    return LL_OK;
}

static ll_err exchange_parameters(ll_loose *x, int64_t number)
{
    if (x->how->peers != LL_PEERS_all) return mix(x, number);
    x->count.bytes += dense_bytes(x, x->shared);
    return mean_over(x, x->own, x->shared);
}

/* ---- differences ---- */

/* Those that begin in one of equal parts of the vector. */
static ll_fragment fragment_at(const ll_loose *x, int64_t exchange)
{
    int64_t n = x->how->fragments;
    ll_fragment f = {.number = (int)(exchange % n)};
    while (f.first < x->n_param && x->items[f.first].at * n < f.number * x->params) f.first++;
    f.end = f.first;
    while (f.end < x->n_param && x->items[f.end].at * n < (f.number + 1) * x->params) f.end++;
    f.from = f.first < x->n_param ? x->items[f.first].at : x->params;
    f.to = f.end < x->n_param ? x->items[f.end].at : x->params;
    return f;
}

/* Statistics go with the first fragment. */
static int64_t rest_of(const ll_loose *x, const ll_fragment *f)
{
    return f->number == 0 ? x->shared - x->params : 0;
}

/* d: own - anchor, and own's statistics. */
static void differences(const ll_loose *x, const ll_fragment *f, float *d)
{
    for (int64_t i = f->from; i < f->to; i++) d[i] = x->own[i] - x->anchor[i];
    memcpy(d + x->params, x->own + x->params, sizeof *d * (size_t)rest_of(x, f));
}

/* Over replicas, of differences; *bytes: more that this rank sent. */
static ll_err means(const ll_loose *x, const ll_fragment *f, int64_t done, float *d, int64_t *bytes)
{
    int64_t rest = rest_of(x, f);
    *bytes += dense_bytes(x, rest);
    if (rest) TRY(mean_over(x, d + x->params, rest));
    if (!strcmp(x->how->codec, "none")) {
        *bytes += dense_bytes(x, f->to - f->from);
        return mean_over(x, d + f->from, f->to - f->from);
    }
    for (int i = f->first; i < f->end; i++) {
        const ll_loose_item *t = &x->items[i];
        TRY(ll_codec_allreduce(t->codec, x->peers, d + t->at, done, t->name));
        *bytes += ll_codec_last(t->codec).bytes;
    }
    scale(d + f->from, f->to - f->from, 1.0f / (float)x->n);
    return LL_OK;
}

/* Squares of what a replica has less the mean, of tensors that are this rank's. d: means of
 * differences; NULL: the session has what own was, and own is the mean. */
static double squares(const ll_loose *x, const ll_fragment *f, const float *d)
{
    double sum = 0;
    for (int i = f->first; i < f->end; i++) {
        const ll_loose_item *t = &x->items[i];
        const float *v = d ? x->own + t->at : data_of(x, t), *near = d ? x->anchor : x->own;
        for (int64_t k = t->at; !t->spare && k < t->at + t->n; k++) {
            double far = (double)v[k - t->at] - (double)near[k] - (d ? (double)d[k] : 0);
            sum += far * far;
        }
    }
    return sum;
}

/* The anchor's step along d, which becomes what own changes by; or, at once, own does. */
static void outer_step(ll_loose *x, const ll_fragment *f, float *d, bool at_once)
{
    const ll_consistency *h = x->how;
    float lr = (float)h->outer_lr, mu = (float)h->outer_momentum;
    float pull = (float)(h->elastic / (double)x->n);
    bool ahead = h->outer == LL_OUTER_nesterov;
    for (int64_t i = f->from; i < f->to; i++) {
        float was = x->anchor[i], own = x->own[i], v = d[i];
        if (x->velocity) v = x->velocity[i] = mu * x->velocity[i] + d[i];
        x->anchor[i] = was + lr * (ahead ? d[i] + mu * v : v);
        float then = pull > 0 ? own - pull * (own - was) : x->anchor[i];
        at_once ? (x->own[i] = then) : (d[i] = then - own);
    }
    for (int64_t i = x->params; i < x->params + rest_of(x, f); i++)
        at_once ? (x->own[i] = d[i]) : (d[i] -= x->own[i]);
}

/* ---- beside steps ---- */

static void *fly(void *arg)
{
    ll_loose *x = (ll_loose *)arg;
    ll_loose_flight *f = &x->flight;
    omp_set_num_threads(1); /* cores are at work */
    f->rc = means(x, &f->of, f->step, x->due, &f->bytes);
    if (f->rc) snprintf(f->text, sizeof f->text, "%s", ll_error_message());
    __atomic_store_n(&f->done, true, __ATOMIC_RELEASE);
    return NULL;
}

ll_err ll_loose_add_due(ll_loose *x)
{
    ll_loose_take(x, x->own, x->shared);
    for (int64_t i = 0; i < x->shared; i++) x->own[i] += x->due[i];
    memset(x->due, 0, sizeof *x->due * (size_t)x->shared);
    return ll_loose_put(x, x->own, x->shared);
}

/* Something is due here only where a run goes on with another delay. */
static ll_err take_off(ll_loose *x, const ll_fragment *f, int64_t done)
{
    TRY(ll_loose_land(x));
    TRY(ll_loose_add_due(x));
    differences(x, f, x->due);
    x->flight = (ll_loose_flight){.under_way = true, .of = *f, .step = done};
    if (ll_thread_start(&x->flight.thread, fly, x)) return LL_OK;
    x->flight.under_way = false;
    FAIL(LL_E_SYS, "no thread could be started for an exchange between replicas");
}

static ll_err has_landed(void *arg, ll_awaited *now)
{
    now->what = "an exchange between replicas";
    now->site = "parallel.delay";
    now->done = __atomic_load_n(&((const ll_loose_flight *)arg)->done, __ATOMIC_ACQUIRE);
    return LL_OK;
}

ll_err ll_loose_land(ll_loose *x)
{
    ll_loose_flight *f = &x->flight;
    if (!f->under_way) return LL_OK;
    ll_err rc = ll_comm_await(x->world, has_landed, f);
    pthread_join(f->thread, NULL); /* the watch's failure ends its waits, too */
    f->under_way = false;
    TRY(rc);
    if (f->rc) FAIL(f->rc, "%s", f->text);
    x->count.bytes += f->bytes;
    f->far = squares(x, &f->of, x->due);
    outer_step(x, &f->of, x->due, false);
    return LL_OK;
}

/* ---- exchanges ---- */

static bool begins(const ll_loose *x, int64_t done)
{
    int64_t since = done - x->how->warm_up;
    int64_t every = x->how->every / x->how->fragments;
    return !x->served && every && since > 0 && since % every == 0;
}

bool ll_loose_met(const ll_loose *x, int64_t done)
{
    return begins(x, done - x->how->delay);
}

bool ll_loose_due(const ll_loose *x, int64_t done)
{
    return begins(x, done) || ll_loose_met(x, done);
}

static ll_err exchange_differences(ll_loose *x, const ll_fragment *f, int64_t done, double *far)
{
    ll_loose_take(x, x->own, x->shared);
    differences(x, f, x->mean);
    TRY(means(x, f, done, x->mean, &x->count.bytes));
    *far = squares(x, f, x->mean);
    outer_step(x, f, x->mean, true);
    return LL_OK;
}

ll_err ll_loose_exchange(ll_loose *x, int64_t done)
{
    const int64_t every = x->how->every / x->how->fragments;
    const int64_t number = (done - x->how->warm_up) / every;
    const ll_fragment f = fragment_at(x, number - 1);
    double far = 0;
    if (x->due && begins(x, done)) return take_off(x, &f, done);
    if (x->due) { /* landing wants what own was when it began */
        TRY(ll_loose_land(x));
        TRY(ll_loose_add_due(x));
        far = x->flight.far;
    } else if (x->anchor) {
        TRY(exchange_differences(x, &f, done, &far));
    } else {
        ll_loose_take(x, x->own, x->shared);
        TRY(exchange_parameters(x, number));
        far = squares(x, &f, NULL);
    }
    TRY(ll_comm_allreduce(x->world, &far, 1, LL_F64, LL_REDUCE_SUM, &canonical));
    x->count.distance = sqrt(far / x->n);
    x->count.exchanges++;
    return x->due ? LL_OK : ll_loose_put(x, x->own, x->shared);
}

int64_t ll_loose_period(const ll_loose *x)
{
    int64_t every = x->how->every / x->how->fragments;
    return every ? every : 1;
}

/* As ll_loose_exchange, but what there was stays. */
static ll_err exchange_nothing(ll_loose *x)
{
    const ll_fragment f = fragment_at(x, 0);
    int64_t bytes = 0;
    ll_loose_take(x, x->own, x->shared);
    if (x->anchor) {
        for (int i = 0; i < 3; i++) differences(x, &f, x->mean); /* and as long, the outer step */
        TRY(means(x, &f, 0, x->mean, &bytes));
    } else
        TRY(exchange_parameters(x, 0));
    double far = squares(x, &f, x->anchor ? x->mean : NULL);
    TRY(ll_comm_allreduce(x->world, &far, 1, LL_F64, LL_REDUCE_SUM, &canonical));
    ll_loose_take(x, x->own, x->shared);
    return ll_loose_put(x, x->own, x->shared);
}

ll_err ll_loose_rehearse_means(ll_loose *x, double *seconds)
{
    enum { TIMES = 3 };
    const double patience_s = 1;
    double times[TIMES], all = 0;
    const ll_loose_count was = x->count;
    int n = 0;
    for (; n < TIMES && (!n || all < patience_s); n++) {
        TRY(ll_comm_barrier(x->world));
        double start = ll_now();
        TRY(exchange_nothing(x));
        times[n] = ll_now() - start;
        all += times[n];
        TRY(ll_ranks_max(x->world, &all));
    }
    x->count = was;
    *seconds = ll_typical(times, n) / (double)ll_loose_period(x);
    return ll_ranks_max(x->world, seconds);
}

/* ---- averages ---- */

ll_err ll_loose_average(ll_loose *x)
{
    if (ll_loose_no_mean(x)) return LL_OK;
    TRY(ll_loose_land(x));
    ll_loose_take(x, x->mean, x->all);
    return mean_over(x, x->mean, x->all);
}

ll_err ll_loose_swap(ll_loose *x, bool in)
{
    if (ll_loose_no_mean(x)) return LL_OK;
    if (!in) return ll_loose_put(x, x->own, x->all);
    TRY(ll_loose_land(x));
    ll_loose_take(x, x->own, x->all);
    TRY(ll_loose_average(x));
    return ll_loose_put(x, x->mean, x->all);
}
