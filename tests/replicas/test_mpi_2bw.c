/* mpi: 2 3 4
 * Steps of a pipeline that begin before the last one is over. Those that overlap (schedule 2bw)
 * train what one process trains with gradients a step late: losses, norms and both versions of
 * every parameter, to the bit where sums are exact; wherever the row of steps is broken, and from
 * checkpoints on. Those that are validated after their update (parallel.post_validation), what one
 * process trains, whether clipping never, sometimes or always changes them. */
#include "run/ranks.h"
#include "run/setup.h"
#include "weights/state.h"
#include "no_error.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "same_files.h"

static ll_comm *comm;
static char folder[64];

enum { MLP, GPT, RESNET, MODELS };
static const char *const models[MODELS] = {
    "model: {name: mlp, image: 9, width: 37, depth: 9}\ntrain: {optimizer: adamw",
    "model: {name: gpt, layers: 3, width: 24, heads: 6, seq: 13, vocab: 53}\n"
    "train: {optimizer: adamw",
    "model: {name: resnet18, image: 9, channels: 2, classes: 7, width: 4}\n"
    "train: {optimizer: momentum"};

static ll_run *run_of(int model, int n_micro, const char *settings)
{
    ll_run *r;
    char text[512], word[128];
    snprintf(text, sizeof text, "%s, threads: 1, batch: %d, micro_batch: 4}\n", models[model],
             4 * n_micro);
    no_error(ll_run_parse(text, strlen(text), "test", &r));
    for (int n = 0; sscanf(settings, " %127s%n", word, &n) == 1; settings += n)
        no_error(ll_run_set(r, word));
    no_error(ll_run_finish(r));
    return r;
}

static ll_session *open_in(ll_comm *c, const char *mesh, const ll_run *r, ll_graph **g)
{
    ll_session *s;
    ll_session_opts o = ll_run_session(r, c, mesh);
    if (!*mesh) {
        o.delay = !r->parallel.post_validation;
        o.schedule = o.recompute = NULL;
        o.zero = 0;
        o.post_validation = false;
    }
    no_error(ll_run_graph(r, r->train.batch / ll_run_micro_batches(r), &r->train.optim, g));
    no_error(ll_session_open(*g, &o, &s));
    return s;
}

static double rate = 0.01;

/* A step on batch data that is a function of its number alone. */
static void train(ll_session *s, const ll_graph *g, const ll_run *r, int64_t step)
{
    int n = (int)ll_run_micro_batches(r);
    for (int m = 0; m < n; m++)
        for (int i = 1; i < g->n_value; i++) {
            const ll_value *v = &g->values[i];
            if (!ll_is_batch(v)) continue;
            size_t bytes = ll_tensor_bytes(v->type.dtype, &v->type.shape);
            void *x = malloc(bytes);
            ll_run_random(r, 7, (uint64_t)(step * n + m) * 64 + (uint64_t)i, v->type.dtype,
                          ll_numel(&v->type.shape), x);
            no_error(ll_session_set(s, v->name, m, x, bytes));
            free(x);
        }
    no_error(ll_session_run(s, rate / (double)(step + 1)));
}

static void near(double a, double b, bool exact, const char *what, const char *settings)
{
    if (exact ? a != b : !(fabs(a - b) <= 2e-5 * (1e-3 + fabs(b))))
        fail_msg("%s: %s is %.9g, serially %.9g", settings, what, a, b);
}

static const char *const told[] = {"loss", "grad_norm"};

/* Every parameter and state, whole. */
static void compare(ll_session *s, ll_session *alone, bool exact, const char *settings)
{
    for (int i = 0; i < alone->n_kept; i++) {
        const ll_slot *x = &alone->p->slots[alone->kept[i]];
        int64_t n = ll_numel(&x->type.shape);
        float *a = malloc(x->bytes + 4), *b = malloc(x->bytes + 4);
        no_error(ll_session_get(s, x->name, a, x->bytes));
        no_error(ll_session_get(alone, x->name, b, x->bytes));
        double diff = 0, size = 0;
        for (int64_t k = 0; k < n; k++) {
            diff += pow((double)a[k] - (double)b[k], 2);
            size += pow((double)b[k], 2);
        }
        if (exact ? memcmp(a, b, x->bytes) != 0 : !(sqrt(diff) <= 1e-4 * sqrt(size) + 1e-5))
            fail_msg("%s: %s differs by %g of %g", settings, x->name, sqrt(diff), sqrt(size));
        free(a);
        free(b);
    }
}

/* breaks: steps behind which the row ends, as bits. Returns how many were made again. */
static int64_t check(int model, int n_micro, const char *settings, int steps, unsigned breaks)
{
    ll_graph *g, *h;
    ll_run *r = run_of(model, n_micro, settings);
    bool exact = r->parallel.exact;
    double want[16][2];
    ll_session *alone = open_in(NULL, "", r, &h);
    ll_session *s = open_in(comm, r->parallel.mesh, r, &g);
    assert_true(r->parallel.post_validation ? s->after != NULL : s->first != NULL);
    for (int t = 0; t < steps; t++) {
        train(alone, h, r, t);
        train(s, g, r, t);
        for (int k = 0; k < 2; k++) want[t][k] = ll_session_result(alone, told[k]);
        int of = (int)s->told; /* the step before, unless this one is a row's first */
        assert_int_equal(of, t && !(breaks >> (t - 1) & 1) ? t : 0);
        for (int k = 0; of && k < 2; k++)
            near(ll_session_result(s, told[k]), want[of - 1][k], exact, told[k], settings);
        if (!(breaks >> t & 1) && t < steps - 1) continue;
        no_error(ll_session_settle(s));
        assert_int_equal(s->told, t + 1);
        for (int k = 0; k < 2; k++)
            near(ll_session_result(s, told[k]), want[t][k], exact, told[k], settings);
        compare(s, alone, exact, settings);
    }
    if (ll_comm_rank(comm) == 0)
        print_message("%-9s %d micro-batches, %s: loss %.6f\n", r->model.name, n_micro, settings,
                      want[steps - 1][0]);
    int64_t undone = s->after ? s->after->n_undone : 0;
    ll_session_close(s);
    ll_session_close(alone);
    ll_graph_free(g);
    ll_graph_free(h);
    ll_run_free(r);
    return undone;
}

static const struct {
    int ranks, model, n_micro;
    const char *settings;
} all[] = {
    {2, MLP, 2, "parallel.mesh=pipe=2 parallel.exact=true"},
    {2, MLP, 5, "parallel.mesh=pipe=2"},
    {2, GPT, 4, "parallel.mesh=pipe=2 parallel.exact=true train.clip=0.5"},
    {2, GPT, 3, "parallel.mesh=pipe=2 model.dropout=100"},
    {2, RESNET, 3, "parallel.mesh=pipe=2 train.clip=0.5"},
    {2, GPT, 3, "parallel.mesh=pipe=2 parallel.recompute=full"},
    {3, MLP, 3, "parallel.mesh=pipe=3 train.clip=0.5"},
    {3, GPT, 2, "parallel.mesh=pipe=3 parallel.exact=true"}, /* fewer than ranks */
    {3, GPT, 7, "parallel.mesh=pipe=3 train.optimizer=lamb train.clip=0.1"},
    {3, RESNET, 4, "parallel.mesh=pipe=3"},
    {4, MLP, 6, "parallel.mesh=pipe=4 parallel.exact=true"},
    {4, GPT, 4, "parallel.mesh=pipe=4 train.clip=0.5"},
    {4, GPT, 3, "parallel.mesh=data=2,pipe=2 train.clip=0.5"},
    {4, GPT, 2, "parallel.mesh=pipe=2,tensor=2"},
    {4, GPT, 3, "parallel.mesh=pipe=2,data=2 parallel.zero=2"},
    {4, GPT, 2, "parallel.mesh=pipe=2,data=2 parallel.zero=3 parallel.exact=true model.layers=1"},
    {4, RESNET, 2, "parallel.mesh=pipe=2,height=2"},
};

static void test_all(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char settings[256];
        if (all[i].ranks != ll_comm_size(comm)) continue;
        snprintf(settings, sizeof settings, "%s parallel.schedule=2bw", all[i].settings);
        check(all[i].model, all[i].n_micro, settings, 4, i % 2 ? 0 : 1u << 1);
    }
}

/* Of seven steps those that are made again: clipped behind one that was not. */
static const struct {
    int ranks, model, n_micro, undone;
    const char *settings;
} validated[] = {
    {2, MLP, 4, 0, "pipe=2 parallel.schedule=zb-h2 parallel.exact=true"},
    {2, MLP, 4, 2, "pipe=2 parallel.schedule=zb-h2 parallel.exact=true train.clip=0.22"},
    {2, MLP, 4, 1, "pipe=2 parallel.schedule=zb-h1 train.clip=0.01"},
    {2, GPT, 3, 2, "pipe=2 parallel.schedule=zb-v parallel.exact=true train.clip=0.45"},
    {2, RESNET, 3, 1, "pipe=2 parallel.schedule=zb-h2 train.clip=3"},
    {3, MLP, 5, 2, "pipe=3 parallel.schedule=zb-h2 parallel.exact=true train.clip=0.2"},
    {3, GPT, 5, 1, "pipe=3 parallel.schedule=zb-v train.clip=0.1 model.dropout=100"},
    {3, GPT, 2, 0, "pipe=3 parallel.schedule=gpipe train.clip=100"},
    {4, MLP, 7, 2, "pipe=4 parallel.schedule=zb-h2 train.clip=0.18"},
    {4, GPT, 3, 1, "pipe=4 parallel.exact=true train.clip=0.1"},
    {4, GPT, 3, 2, "pipe=2,data=2 parallel.schedule=zb-v parallel.zero=3 train.clip=0.45"},
    {4, GPT, 4, 2,
     "pipe=2,tensor=2 parallel.schedule=interleaved train.clip=0.4 parallel.recompute=full "
     "parallel.exact=true"}, /* AdamW of 7 steps makes 1.6e-4 of f32's rounding */
};

static void test_validated(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof validated / sizeof *validated; i++) {
        char settings[256];
        if (validated[i].ranks != ll_comm_size(comm)) continue;
        snprintf(settings, sizeof settings, "parallel.mesh=%s parallel.post_validation=true",
                 validated[i].settings);
        int64_t undone =
            check(validated[i].model, validated[i].n_micro, settings, 7, i % 2 ? 0 : 1u << 2);
        if (undone != validated[i].undone)
            fail_msg("%s: %d steps were made again", settings, (int)undone);
    }
}

/* Rows of a matrix are scaled by turns, and columns the other way around: what is large meets what
 * is small, and sums of products lose bits. */
static void scatter(ll_session *s, const char *name, const ll_slot *x)
{
    float *w = malloc(x->bytes);
    int64_t columns = x->type.shape.d[1];
    no_error(ll_session_get(s, name, w, x->bytes));
    for (int64_t i = 0; i < ll_numel(&x->type.shape); i++)
        w[i] *= (i / columns % 2 ? 1e5f : 1e-5f) * (i % columns % 2 ? 1e-5f : 1e5f);
    no_error(ll_session_set(s, name, 0, w, x->bytes));
    free(w);
}

/* A step that exact sums have too few bits for is made again with all of them, though the next one
 * has begun. */
static void test_wide(void **state)
{
    (void)state;
    if (ll_comm_size(comm) != 2) skip();
    ll_graph *g, *h;
    ll_run *r = run_of(MLP, 3,
                       "parallel.mesh=pipe=2 parallel.schedule=zb-h2 parallel.exact=true "
                       "parallel.post_validation=true");
    ll_session *alone = open_in(NULL, "", r, &h), *s = open_in(comm, r->parallel.mesh, r, &g);
    for (int i = 0; i < alone->n_kept; i++) {
        const ll_slot *x = &alone->p->slots[alone->kept[i]];
        if (x->kind != LL_PARAM || x->type.shape.n != 2) continue;
        scatter(alone, x->name, x);
        scatter(s, x->name, x);
    }
    rate = 0; /* parameters stay so */
    for (int t = 0; t < 4; t++) {
        train(alone, h, r, t);
        train(s, g, r, t);
    }
    rate = 0.01;
    no_error(ll_session_settle(s));
    assert_true(alone->n_wide > 0 && s->n_wide == alone->n_wide && s->after->n_undone > 0);
    compare(s, alone, true, "wide");
    ll_session_close(s);
    ll_session_close(alone);
    ll_graph_free(g);
    ll_graph_free(h);
    ll_run_free(r);
}

static const char *path_of(const char *name)
{
    static char path[2][128];
    static int at;
    at = !at;
    snprintf(path[at], sizeof path[at], "%s-%s", folder, name);
    return path[at];
}

static const char *way; /* how steps begin early */

/* Loads (NULL: begins), does steps from..to-1 and saves; with exact sums. */
static void go_on(const char *mesh, const char *from, int first, int to, const char *file)
{
    ll_graph *g;
    char settings[200];
    snprintf(settings, sizeof settings, "%s%s parallel.exact=true train.clip=0.5 %s",
             *mesh ? "parallel.mesh=" : "", mesh, way);
    ll_run *r = run_of(GPT, 2, settings);
    if (*mesh || ll_comm_rank(comm) == 0) {
        ll_session *s = open_in(*mesh ? comm : NULL, mesh, r, &g);
        if (from) no_error(ll_session_load(s, path_of(from)));
        for (int t = first; t < to; t++) train(s, g, r, t);
        no_error(ll_session_save(s, path_of(file)));
        ll_session_close(s);
        ll_graph_free(g);
    }
    ll_run_free(r);
    no_error(ll_comm_barrier(comm));
}

static void same_bytes(const char *a, const char *b)
{
    if (ll_comm_rank(comm) == 0) same_files(path_of(a), path_of(b));
}

static void check_checkpoints(const char *how)
{
    way = how;
    go_on("", NULL, 0, 2, "serial2");
    go_on("", "serial2", 2, 4, "serial4");
    go_on("pipe=2", NULL, 0, 2, "pipe2");
    same_bytes("pipe2", "serial2");
    go_on("pipe=2", "pipe2", 2, 4, "pipe4");
    same_bytes("pipe4", "serial4");
    go_on("pipe=2", NULL, 0, 4, "row4");
    same_bytes("row4", "serial4");
    go_on("", "pipe2", 2, 4, "back4");
    same_bytes("back4", "serial4");
}

/* A checkpoint has all versions, and is the serial one; who goes on from it gets the same bits. */
static void test_checkpoints(void **state)
{
    (void)state;
    if (ll_comm_size(comm) != 2) skip(); /* steps of all bits take long */
    check_checkpoints("parallel.schedule=2bw");
    check_checkpoints("parallel.schedule=zb-h2 parallel.post_validation=true");
}

/* A parameter is not set, and a schedule not taken, that would train something else. */
static void test_refused(void **state)
{
    (void)state;
    static const struct {
        int n_micro;
        const char *settings, *why;
        size_t memory;
    } wrong[] = {
        {1, "parallel.schedule=2bw", "2 micro-batches or more"},
        {4, "parallel.schedule=2bw", "another schedule than 2bw", 1 << 30},
        {4, "parallel.schedule=2bw parallel.virtual_stages=2", "a stage a rank"},
        {4, "parallel.schedule=2bw parallel.post_validation=true", "leave out post_validation"},
        {4, "parallel.post_validation=true", "cannot be combined with memory and offload",
         1 << 30}};
    char settings[200];
    ll_graph *g;
    ll_session *s;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(settings, sizeof settings, "parallel.mesh=pipe=%d %s", ll_comm_size(comm),
                 wrong[i].settings);
        ll_run *r = run_of(GPT, wrong[i].n_micro, settings);
        ll_session_opts o = ll_run_session(r, comm, r->parallel.mesh);
        o.memory = wrong[i].memory;
        no_error(ll_run_graph(r, 4, &r->train.optim, &g));
        assert_int_not_equal(ll_session_open(g, &o, &s), LL_OK);
        if (!strstr(ll_error_text(), wrong[i].why)) fail_msg("%s: %s", settings, ll_error_text());
        ll_graph_free(g);
        ll_run_free(r);
    }
    snprintf(settings, sizeof settings, "parallel.mesh=pipe=%d parallel.schedule=2bw",
             ll_comm_size(comm));
    ll_run *r = run_of(GPT, 4, settings);
    s = open_in(comm, r->parallel.mesh, r, &g);
    train(s, g, r, 0);
    const ll_slot *x = &s->p->slots[s->kept[0]];
    float *w = calloc(1, x->bytes);
    assert_int_equal(ll_session_set(s, x->name, 0, w, x->bytes), LL_E_ARG);
    assert_non_null(strstr(ll_error_text(), "ll_session_settle"));
    no_error(ll_session_settle(s));
    no_error(ll_session_set(s, x->name, 0, w, x->bytes));
    free(w);
    ll_session_close(s);
    ll_graph_free(g);
    ll_run_free(r);
}

int main(void)
{
    if (ll_comm_open(&(ll_comm_opts){.timeout_s = 60, .table = ""}, &comm) != LL_OK) {
        fprintf(stderr, "%s\n", ll_error_text());
        return 1;
    }
    snprintf(folder, sizeof folder, "/tmp/ll-2bw-%d", (int)getpid());
    if (ll_ranks_share(comm, folder, sizeof folder) != LL_OK) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all), cmocka_unit_test(test_validated), cmocka_unit_test(test_wide),
        cmocka_unit_test(test_checkpoints), cmocka_unit_test(test_refused)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s-*", folder);
    if (ll_comm_rank(comm) == 0 && system(command)) rc = 1;
    ll_comm_close(comm);
    return rc;
}
