/* mpi: 2 4
 * wrap: ll_partition
 * What verify is worth: single mistakes, put into the graphs of ranks behind its back, one at a
 * time, and every one must be found, at default settings. MISTAKES=all tries every site that there
 * is in place of some of each kind; ONLY=roll those of one kind. And what is none: a decision that
 * rounding makes. */
#include "base/now.h"
#include "kern/attr.h"
#include "op/ops.h"
#include "pass/partition.h"
#include "verify/verify.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static ll_comm *comm;

/* ---- mistakes: what is put where a node's result, an update or an input was ---- */

typedef enum kind { NODE, UPDATE, BATCH } kind;
typedef struct spot {
    const ll_graph *g;
    const ll_node *n;  /* NODE */
    const ll_value *v; /* the value that is replaced */
    int dim;           /* NODE: a collective's, or 0 */
    int rank, ranks;   /* the mistake is that of rank alone, where it is one of a rank */
    bool mine;         /* this is that rank */
} spot;
typedef struct mistake {
    const char *name;
    kind kind;
    bool (*fits)(const spot *s);
    /* NODE: x are the node's operands, y its result; UPDATE: x[0] the input, y the next value. */
    ll_val (*make)(ll_graph *to, const spot *s, const ll_val *x, ll_val y);
    int most;   /* sites tried of one model on one mesh; 0: all */
    bool alone; /* in the run that is asked for alone: in f64 and with exact sums all is right */
    bool fine;  /* too small for bf16 */
} mistake;

static bool is_float(const spot *s)
{
    return ll_dtype_is_float(s->v->type.dtype) && ll_numel(&s->v->type.shape) > 0;
}
static bool is_long(const spot *s)
{
    return s->dim < s->v->type.shape.n && s->v->type.shape.d[s->dim] > 1;
}
static bool is_gradient(const spot *s)
{
    return s->v->gradient_of && is_float(s) && !s->n->op->collective;
}
static bool sums(const spot *s)
{
    return s->n->op->collective == LL_ALL_REDUCE || s->n->op->collective == LL_REDUCE_SCATTER;
}
static bool is_sum(const spot *s)
{
    return s->n->op == &ll_op_sum && is_float(s);
}
static bool moves(const spot *s)
{
    return s->n->op->collective && s->n->op->collective != LL_ALL_REDUCE && is_long(s);
}
/* Where the last of it matters: that of logits, which the count of right answers alone reads, is
 * nobody's answer here. */
static bool moves_all(const spot *s)
{
    return moves(s) && !(s->v->name && !strcmp(s->v->name, "logits"));
}
static bool is_window(const spot *s)
{
    ll_work w = s->n->op->work;
    bool mean = !strcmp(s->n->op->name, "avg_pool_grad"); /* of one window: rows are all alike */
    if (mean && ll_value_of(s->g, s->n->in[0])->type.shape.d[s->dim] == 1) return false;
    return (w == LL_WORK_CONVOLUTION || w == LL_WORK_POOL) && is_long(s);
}
static bool is_repeated(const ll_graph *g, const ll_value *x, int dim)
{
    if (x->node < 0 || g->nodes[x->node].op != &ll_op_broadcast) return false;
    const char *spec = ((const ll_broadcast_attr *)g->nodes[x->node].attr)->spec;
    const char *out = strstr(spec, "->") + 2;
    return memchr(spec, out[dim], (size_t)(out - spec)) == NULL; /* "bt->btv": v is */
}
static bool is_slice(const spot *s)
{
    if (s->n->op != &ll_op_slice) return false;
    const ll_range_attr *a = (const ll_range_attr *)s->n->attr;
    const ll_value *x = ll_value_of(s->g, s->n->in[0]);
    if (is_repeated(s->g, x, (int)a->dim)) return false; /* any part of it is the same */
    return a->to - a->from < x->type.shape.d[a->dim];
}

static bool is_attention(const spot *s)
{
    return !strcmp(s->n->op->name, "attention_grad");
}

static ll_val scaled(ll_graph *to, const spot *s, const ll_val *x, ll_val y)
{
    (void)s, (void)x;
    return ll_scale(to, y, 1.01);
}

static ll_val scaled_more(ll_graph *to, const spot *s, const ll_val *x, ll_val y)
{
    (void)s, (void)x;
    return ll_scale(to, y, 1.03);
}

/* Of packed queries (0), keys (1) and values (2), [b,t,3,h,d], the gradient of one is wrong. */
static ll_val third_scaled(ll_graph *to, ll_val y, int z, double by)
{
    ll_val part[3];
    for (int i = 0; i < 3; i++) {
        part[i] = ll_slice(to, y, 2, i, i + 1);
        if (i == z) part[i] = ll_scale(to, part[i], by);
    }
    return ll_concat(to, part, 3, 2);
}
static ll_val keys_scaled(ll_graph *to, const spot *s, const ll_val *x, ll_val y)
{
    (void)s, (void)x;
    return third_scaled(to, y, 1, 1.002);
}
static ll_val no_keys(ll_graph *to, const spot *s, const ll_val *x, ll_val y)
{
    (void)x;
    return s->mine ? third_scaled(to, y, 1, 0) : y;
}
static ll_val no_queries(ll_graph *to, const spot *s, const ll_val *x, ll_val y)
{
    (void)x;
    return s->mine ? third_scaled(to, y, 0, 0) : y;
}

/* One place off, the last first, on one rank: a wrong halo, cut, shard or order of parts. */
static ll_val rolled(ll_graph *to, const spot *s, const ll_val *x, ll_val y)
{
    (void)x;
    int64_t n = s->v->type.shape.d[s->dim];
    if (!s->mine) return y;
    ll_val part[] = {ll_slice(to, y, s->dim, n - 1, n), ll_slice(to, y, s->dim, 0, n - 1)};
    return ll_concat(to, part, 2, s->dim);
}

/* What one rank adds to a sum is lost. */
static ll_val lost(ll_graph *to, const spot *s, const ll_val *x, ll_val y)
{
    (void)y;
    ll_val none = s->mine ? ll_scale(to, x[0], 0) : x[0];
    return ll_emit(to, s->n->op, s->n->attr, &none, 1);
}

/* A sum over ranks that is not made. */
static ll_val not_summed(ll_graph *to, const spot *s, const ll_val *x, ll_val y)
{
    const ll_coll_attr *a = (const ll_coll_attr *)s->n->attr;
    (void)y;
    if (s->n->op->collective == LL_ALL_REDUCE) return x[0];
    return ll_slice(to, x[0], (int)a->dim, a->from, a->to);
}

/* The last row of what neighbours sent is missing, on one rank. */
static ll_val row_missing(ll_graph *to, const spot *s, const ll_val *x, ll_val y)
{
    (void)x;
    int64_t n = s->v->type.shape.d[s->dim];
    if (!s->mine) return y;
    return ll_pad(to, ll_slice(to, y, s->dim, 0, n - 1), s->dim, 0, 1);
}

static ll_val off_by_one(ll_graph *to, const spot *s, const ll_val *x, ll_val y)
{
    const ll_range_attr *a = (const ll_range_attr *)s->n->attr;
    int by = a->from > 0 ? -1 : 1;
    (void)y;
    return ll_slice(to, x[0], (int)a->dim, a->from + by, a->to + by);
}

static ll_val not_updated(ll_graph *to, const spot *s, const ll_val *x, ll_val y)
{
    (void)to;
    return s->mine ? x[0] : y;
}

static ll_val updated_more(ll_graph *to, const spot *s, const ll_val *x, ll_val y)
{
    if (!s->mine) return y;
    return ll_add(to, x[0], ll_scale(to, ll_sub(to, y, x[0]), 1.01));
}

static const mistake mistakes[] = {
    {"gradient 1.01 times as large", NODE, is_gradient, scaled, 2, .fine = true},
    {"gradient 1.03 times as large, alone", NODE, is_gradient, scaled_more, 1, true, true},
    {"all gradients 1.01 times as large", NODE, is_gradient, scaled, 0, .fine = true},
    {"keys' gradient 1.002 times as large, alone", NODE, is_attention, keys_scaled, 1, true, true},
    {"one rank's keys have no gradient, alone", NODE, is_attention, no_keys, 1, .alone = true},
    {"one rank's queries have no gradient", NODE, is_attention, no_queries, 1},
    {"one rank's part of a sum is lost", NODE, sums, lost, 2},
    {"a sum over ranks is not made", NODE, sums, not_summed, 2},
    {"a sum 1.01 times as large", NODE, is_sum, scaled, 1, .fine = true},
    {"what ranks exchange is one off", NODE, moves, rolled, 2},
    {"a row of what ranks exchange is missing", NODE, moves_all, row_missing, 1},
    {"a window's rows are one off", NODE, is_window, rolled, 1},
    {"a slice is one off", NODE, is_slice, off_by_one, 1},
    {"one rank does not update, alone", UPDATE, is_float, not_updated, 1, .alone = true},
    {"one rank updates by 1.01 times as much", UPDATE, is_float, updated_more, 1, .fine = true},
    {"one rank's update is one off", UPDATE, is_long, rolled, 1},
    {"one rank's batch is one off", BATCH, is_long, rolled, 0},
};
enum { N_MISTAKE = sizeof mistakes / sizeof *mistakes };

/* ---- putting one into a graph ---- */

static struct {
    const mistake *m;       /* NULL: none */
    int site;               /* which of those that fit; -1: all */
    int found;              /* sites that fitted */
    bool alone;             /* see mistake */
    double none[N_MISTAKE]; /* of each, by the run with no mistake: 1 where there is no site */
    char name[200];         /* of the last one used */
} plan;

static bool has_f64(const ll_graph *g)
{
    bool any = false;
    for (int i = 1; i < g->n_value; i++) any |= g->values[i].type.dtype == LL_F64;
    return any;
}

static bool here(const mistake *m, const spot *s) /* and notes it */
{
    bool now = m->fits(s) && (plan.site == plan.found++ || plan.site < 0);
    if (now)
        snprintf(plan.name, sizeof plan.name, "%s %s", s->n ? s->n->name : "",
                 s->v->name ? s->v->name : "");
    return now;
}

static spot spot_of(const ll_graph *g, const ll_node *n, const ll_value *v)
{
    spot s = {.g = g, .n = n, .v = v, .ranks = ll_comm_size(comm)};
    s.rank = s.ranks - 1;
    s.mine = ll_comm_rank(comm) == s.rank;
    if (n && n->op->collective == LL_HALO)
        s.dim = (int)((const ll_halo_attr *)n->attr)->dim;
    else if (n && n->op->collective)
        s.dim = (int)((const ll_coll_attr *)n->attr)->dim;
    else if (n && n->op->split)
        s.dim = 1; /* images' rows */
    return s;
}

static ll_err spoil_node(ll_rewrite *rw, const ll_node *n)
{
    spot s = spot_of(rw->from, n, ll_value_of(rw->from, n->out[0]));
    ll_val x[LL_MAX_IN];
    for (int i = 0; i < n->n_in; i++) x[i] = rw->map[n->in[i].id];
    TRY(ll_rewrite_copy(rw, n));
    if (plan.m->kind != NODE || !here(plan.m, &s)) return LL_OK;
    ll_rewrite_map(rw, n->out[0], plan.m->make(rw->to, &s, x, rw->map[n->out[0].id]));
    return ll_graph_check(rw->to);
}

static ll_err spoil(const ll_graph *g, ll_graph **out)
{
    ll_rewrite rw;
    ll_rewrite_begin(&rw, g);
    ll_err rc = LL_OK;
    for (int i = 1; i < g->n_value && plan.m->kind == BATCH; i++) {
        spot s = spot_of(g, NULL, &g->values[i]);
        if (s.v->node < 0 && s.v->kind == LL_BATCH && here(plan.m, &s))
            rw.map[i] = plan.m->make(rw.to, &s, NULL, rw.map[i]);
    }
    for (int i = 0; i < g->n_node && rc == LL_OK; i++) rc = spoil_node(&rw, &g->nodes[i]);
    for (int i = 0; i < g->n_update && rc == LL_OK && plan.m->kind == UPDATE; i++) {
        ll_pair u = g->updates[i];
        spot s = spot_of(g, NULL, ll_value_of(g, u.next));
        bool now = here(plan.m, &s);
        if (now) snprintf(plan.name, sizeof plan.name, "%s", ll_value_of(g, u.input)->name);
        if (now)
            rw.map[u.next.id] = plan.m->make(rw.to, &s, &rw.map[u.input.id], rw.map[u.next.id]);
        rc = ll_graph_check(rw.to);
    }
    return ll_rewrite_end(&rw, rc, out);
}

/* Notes the mistakes that a graph has no site for. */
static void count_sites(const ll_graph *g)
{
    for (int k = 0; k < N_MISTAKE; k++) {
        const mistake *m = &mistakes[k];
        int n = 0;
        for (int i = 0; i < g->n_node && m->kind == NODE; i++) {
            spot s = spot_of(g, &g->nodes[i], ll_value_of(g, g->nodes[i].out[0]));
            n += m->fits(&s);
        }
        plan.none[k] = m->kind == NODE && !n;
    }
}

ll_err __real_ll_partition(const ll_placement *p, int rank, ll_graph **out);
ll_err __wrap_ll_partition(const ll_placement *p, int rank, ll_graph **out);
ll_err __wrap_ll_partition(const ll_placement *p, int rank, ll_graph **out)
{
    ll_graph *all, *right;
    TRY(__real_ll_partition(p, rank, &all));
    *out = all;
    if (!plan.m && !has_f64(all)) count_sites(all);
    if (!plan.m || (plan.alone && has_f64(all))) return LL_OK;
    plan.found = 0;
    ll_err rc = ll_sweep(all, &right); /* what nobody reads can have no mistake */
    ll_graph_free(all);
    TRY(rc);
    rc = spoil(right, out);
    ll_graph_free(right);
    return rc;
}

/* ---- models on meshes ---- */

static const char mlp[] = "model: {name: mlp, image: 9, width: 37}\n"
                          "train: {batch: 13, optimizer: adamw}\n";
/* So many samples that some are classified right: of a count of 0 every part is right. */
static const char lenet[] = "model: {name: lenet5}\ntrain: {batch: 12, optimizer: momentum}\n";
static const char resnet[] =
    "model: {name: resnet18, image: 9, channels: 2, classes: 7, width: 4}\n"
    "train: {batch: 4, optimizer: momentum, lr: 0.1}\n";
static const char gpt[] = "model: {name: gpt, layers: 1, width: 24, heads: 6, seq: 13, vocab: 53}\n"
                          "train: {batch: 7, optimizer: adamw, clip: 1}\n";
/* Keys' gradients are 1e-3 of the values'. Steps are so large that weights of norms, which begin as
 * ones, are no longer ones: those could be in any order, or not updated, and nobody would see. */
static const char narrow[] =
    "model: {name: gpt, layers: 1, width: 6, heads: 6, seq: 13, vocab: 53}\n"
    "train: {batch: 7, optimizer: momentum, lr: 10}\n";
static const struct {
    int ranks;
    const char *model, *mesh;
    int zero;
    ll_precision precision;
} rows[] = {
    {2, mlp, "data=2", 1},
    {2, mlp, "tensor=2", 0},
    {2, lenet, "height=2", 0},
    {2, lenet, "channel=2", 0},
    {2, lenet, "filter=2", 0},
    {2, narrow, "data=2", 3},
    {2, gpt, "sequence=2", 0},
    {2, gpt, "tensor=2", 0},
    {2, gpt, "data=2", 0, LL_PRECISION_bf16},
    {2, resnet, "data=2", 0},
    {4, mlp, "rows=2,cols=2", 0},
    {4, mlp, "data=4", 2},
    {4, lenet, "data=2,width=2", 0},
    {4, gpt, "data=2,tensor=2", 1},
    {4, lenet, "height=2,width=2", 0},
};

static int stopped;

static bool found(const ll_run *r, const char *mesh, int zero)
{
    ll_verify_report v;
    ll_verify_opts o = {
        .session = {.comm = comm, .mesh = mesh, .zero = zero}, .steps = 5, .tolerance = 1e-5};
    ll_err rc = ll_verify_run(r, &o, true, &v);
    /* A step that is not finite stops; a rank whose program is not the others' never starts. */
    if (plan.m && (rc == LL_E_NUMERIC || rc == LL_E_COMM) && ++stopped) return true;
    if (rc != LL_OK) fail_msg("%s\n%s", ll_error_text(), ll_error_frames());
    return !v.ok;
}

/* Sites that every rank has. */
static int sites(void)
{
    double least = -plan.found;
    assert_int_equal(ll_comm_allreduce(comm, &least, 1, LL_F64, LL_REDUCE_MAX, NULL), LL_OK);
    return (int)-least;
}

static void test_mistakes(void **state)
{
    (void)state;
    const char *only = getenv("ONLY");
    bool every = getenv("MISTAKES") != NULL;
    int made = 0, missed = 0, of[N_MISTAKE] = {0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ll_run *r;
        if (rows[i].ranks != ll_comm_size(comm)) continue;
        double began = ll_now();
        assert_int_equal(ll_run_parse(rows[i].model, strlen(rows[i].model), "test", &r), LL_OK);
        r->parallel.zero = rows[i].zero;
        r->train.precision = rows[i].precision;
        assert_int_equal(ll_run_finish(r), LL_OK);
        plan.m = NULL;
        assert_false(found(r, rows[i].mesh, rows[i].zero)); /* no false alarm */
        assert_int_equal(ll_comm_allreduce(comm, plan.none, N_MISTAKE, LL_F64, LL_REDUCE_MAX, NULL),
                         LL_OK);
        for (int k = 0; k < N_MISTAKE; k++) {
            if (only && !strstr(mistakes[k].name, only)) continue;
            if ((rows[i].precision && mistakes[k].fine) || plan.none[k] > 0) continue;
            plan.m = &mistakes[k];
            plan.alone = plan.m->alone || rows[i].precision;
            plan.found = 0;
            plan.site = -1;
            int n = 1, all = !strncmp(plan.m->name, "all", 3), at = 0, tried = 0;
            while (at < n) {
                plan.site = all ? -1 : at;
                bool seen = found(r, rows[i].mesh, rows[i].zero);
                n = all ? sites() > 0 : sites();
                if (at >= n) break; /* there is no such site, and nothing was spoilt */
                made++, of[k]++, tried++;
                if (!seen && ++missed && ll_comm_rank(comm) == 0)
                    print_message("NOT FOUND: %s on %s zero %d: %s, site %d of %d: %s\n",
                                  r->model.name, rows[i].mesh, rows[i].zero, plan.m->name, at, n,
                                  plan.name);
                int left = plan.m->most && !every ? plan.m->most : n;
                at += n > left ? (n - 1) / left + 1 : 1;
            }
        }
        if (ll_comm_rank(comm) == 0)
            print_message("%s on %s zero %d: %d mistakes so far, %.1f s\n", r->model.name,
                          rows[i].mesh, rows[i].zero, made, ll_now() - began);
        plan.alone = false;
        ll_run_free(r);
    }
    for (int k = 0; k < N_MISTAKE && ll_comm_rank(comm) == 0; k++)
        print_message("%4d of: %s\n", of[k], mistakes[k].name);
    if (ll_comm_rank(comm) == 0)
        print_message("%d mistakes, %d found, %d of them by stopping\n", made, made - missed,
                      stopped);
    assert_int_equal(missed, 0);
}

/* ---- what is no mistake ---- */

enum { SAMPLES = 8, TERMS = 6 };

/* All weights are 1, so every order of these sums is exact. That of sample 0 is -3 * 2^-23: weights
 * changed by half a unit of their last place never make it positive, by two or four some do. */
static ll_err feed(void *context, ll_session *s, int64_t step)
{
    float x[SAMPLES][TERMS] = {{1, 1, 1, -1, -1, -1 - 0x3p-23F}};
    (void)context, (void)step;
    for (int i = 1; i < SAMPLES; i++)
        for (int k = 0; k < TERMS; k++) x[i][k] = (float)(i % 2 ? k + 1 : -i);
    return ll_session_set(s, "x", 0, x, sizeof x);
}

static ll_verify_report verify_graph(ll_graph *g, ll_val loss, ll_feed *feeds)
{
    ll_minimize(g, loss, &(ll_optim){.name = "sgd"});
    ll_verify_opts o = {.session = {.comm = comm, .mesh = "data=2", .threads = 1, .seed = 3},
                        .steps = 1,
                        .tolerance = 1e-5,
                        .lr = 0.1,
                        .feed = feeds};
    ll_verify_report v;
    ll_err rc = ll_verify_graph(g, &o, &v);
    if (rc != LL_OK) fail_msg("%s\n%s", ll_error_text(), ll_error_frames());
    ll_graph_free(g);
    return v;
}

static ll_val product(ll_graph *g, const char *x, const char *w)
{
    return ll_matmul(g, "bk,kn->bn", ll_batch(g, x, LL_F32, LL_SHAPE(SAMPLES, TERMS)),
                     ll_param(g, w, LL_SHAPE(TERMS, 1), (ll_init){LL_CONSTANT, 1}));
}

static ll_verify_report with_corner(void)
{
    ll_graph *g = ll_graph_new("corner");
    return verify_graph(g, ll_mean(g, ll_relu(g, product(g, "x", "w"))), feed);
}

static bool is_before_relu(const spot *s)
{
    return s->n->op == &ll_op_matmul && s->v->type.shape.d[0] == SAMPLES / 2;
}
static ll_val rounded_up(ll_graph *to, const spot *s, const ll_val *x, ll_val y)
{
    (void)x;
    return ll_add(to, y, ll_fill(to, LL_F32, s->v->type.shape, 0x1p-20));
}

/* Ranks on the other side of a relu's corner are told to be right, and told; a gradient that is
 * wrong in f32 alone is not excused by that. */
static void test_corner(void **state)
{
    static const mistake corner = {"corner", NODE, is_before_relu, rounded_up, 0};
    static const mistake wrong = {"wrong", NODE, is_gradient, scaled, 0};
    (void)state;
    if (ll_comm_size(comm) != 2) return;
    plan.m = NULL;
    ll_verify_report v = with_corner();
    assert_true(v.ok && !v.unjudged && !v.corners);
    plan.site = -1;
    plan.alone = true;
    plan.m = &corner;
    v = with_corner();
    assert_true(v.ok && !v.name[0]);
    assert_int_equal(v.corners, 1);
    assert_int_equal(v.corner_step, 1);
    assert_string_equal(v.corner, "grad:w");
    assert_true(v.corner_rel_diff > 0.01);
    assert_true(v.max_rel_diff[1] < 1e-12 && v.worst[1][0] && v.differing == 0);
    plan.m = &wrong;
    v = with_corner();
    assert_false(v.ok || v.corners);
    assert_string_equal(v.name, "grad:w");
    plan.alone = false;
    plan.m = NULL;
}

/* x w is t but for 1e-4: of w's gradient rounding changes much, of u's little. */
static ll_err feed_noise(void *context, ll_session *s, int64_t step)
{
    float x[SAMPLES][TERMS], t[SAMPLES] = {0};
    (void)context, (void)step;
    for (int i = 0; i < SAMPLES; i++) {
        for (int k = 0; k < TERMS; k++) t[i] += x[i][k] = (float)(1 + (3 * i + 5 * k) % 7) / 7;
        t[i] -= 1e-4F * (float)(1 + i % 3);
    }
    TRY(ll_session_set(s, "x", 0, x, sizeof x));
    TRY(ll_session_set(s, "z", 0, x, sizeof x));
    return ll_session_set(s, "t", 0, t, sizeof t);
}

static ll_verify_report with_noise(void)
{
    ll_graph *g = ll_graph_new("noise");
    ll_val t = ll_batch(g, "t", LL_F32, LL_SHAPE(SAMPLES, 1));
    ll_val e = ll_sub(g, product(g, "x", "w"), t), u = product(g, "z", "u");
    return verify_graph(g, ll_add(g, ll_mean(g, ll_mul(g, e, e)), ll_mean(g, ll_mul(g, u, u))),
                        feed_noise);
}

static bool is_of_u(const spot *s)
{
    return is_gradient(s) && !strcmp(s->v->gradient_of, "u");
}

/* What rounding does to one tensor excuses no other. */
static void test_noise(void **state)
{
    static const mistake wrong = {"wrong", NODE, is_of_u, scaled_more, 0};
    (void)state;
    if (ll_comm_size(comm) != 2) return;
    plan.m = NULL;
    ll_verify_report v = with_noise();
    assert_true(v.ok);
    plan.site = -1;
    plan.alone = true;
    plan.m = &wrong;
    v = with_noise();
    assert_false(v.ok);
    assert_true(plan.found > 0);
    assert_string_equal(v.name, "grad:u");
    plan.alone = false;
    plan.m = NULL;
}

int main(void)
{
    if (ll_comm_open(&(ll_comm_opts){.timeout_s = 60, .table = ""}, &comm) != LL_OK) {
        fprintf(stderr, "%s\n", ll_error_text());
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_corner), cmocka_unit_test(test_noise),
                                       cmocka_unit_test(test_mistakes)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    ll_comm_close(comm);
    return rc;
}
