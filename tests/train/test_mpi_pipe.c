/* mpi: 2 3 4
 * Pipelines: models cut into stages train what one process trains, under every schedule, with fewer
 * micro-batches than stages and with more, alone and with other axes, to the bit where sums are
 * exact; no layer is lost; checkpoints are those of one process, wherever they go on. */
#include "run/ranks.h"
#include "run/setup.h"
#include "weights/state.h"
#include "verify/verify.h"
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

enum { MLP, GPT, RESNET, SQUEEZENET, MODELS }; /* the last: branches that meet again */
static const char *const models[MODELS] = {
    "model: {name: mlp, image: 9, width: 37, depth: 9}\ntrain: {optimizer: adamw",
    "model: {name: gpt, layers: 3, width: 24, heads: 6, seq: 13, vocab: 53}\n"
    "train: {optimizer: adamw",
    "model: {name: resnet18, image: 9, channels: 2, classes: 7, width: 4}\n"
    "train: {optimizer: momentum, lr: 0.001",
    "model: {name: squeezenet, image: 25, channels: 1, classes: 7}\ntrain: {optimizer: sgd"};
static const int samples[MODELS] = {3, 4, 3, 2}; /* of a micro-batch */

/* Settings, separated by blanks, on top. */
static ll_run *run_of(int model, int n_micro, const char *settings)
{
    ll_run *r;
    char text[512], word[128];
    snprintf(text, sizeof text, "%s, threads: 1, batch: %d, micro_batch: %d}\n", models[model],
             samples[model] * n_micro, samples[model]);
    no_error(ll_run_parse(text, strlen(text), "test", &r));
    for (int n = 0; sscanf(settings, " %127s%n", word, &n) == 1; settings += n)
        no_error(ll_run_set(r, word));
    no_error(ll_run_finish(r));
    return r;
}

static void verify(int model, int n_micro, const char *settings, int64_t steps)
{
    ll_verify_report v;
    ll_run *r = run_of(model, n_micro, settings);
    double tolerance = r->parallel.exact ? 0 : 1e-5;
    ll_verify_opts o = {.session = {.comm = comm, .mesh = r->parallel.mesh},
                        .steps = steps,
                        .tolerance = tolerance};
    ll_err rc = ll_verify_run(r, &o, true, &v);
    if (rc != LL_OK)
        fail_msg("%s, %d micro-batches, %s: %s\n%s", r->model.name, n_micro, settings,
                 ll_error_text(), ll_error_frames());
    if (ll_comm_rank(comm) == 0)
        print_message("%-9s %d micro-batches, %s: worst %.1e\n", r->model.name, n_micro, settings,
                      v.max_rel_diff[0]);
    assert_true(v.init_identical);
    if (!v.ok)
        fail_msg("%s, %d micro-batches, %s: step %lld: %s differs by %g (%s)", r->model.name,
                 n_micro, settings, (long long)v.step, v.name, v.rel_diff, v.op);
    assert_int_equal(v.steps, steps);
    if (r->parallel.exact) assert_int_equal(v.differing, 0);
    ll_run_free(r);
}

/* Every schedule with each number of micro-batches; models, and exact sums (of a third, and of
 * convolutions with few micro-batches: they take long to compile), take turns, so that over the
 * numbers of ranks each schedule meets them; branches that meet again once. */
static void test_schedules(void **state)
{
    (void)state;
    static const int micros[] = {1, 2, 5};
    int p = ll_comm_size(comm);
    char settings[200];
    for (int s = 0; ll_pipeline_name(s); s++)
        for (int m = 0; m < 3; m++) {
            bool overlaps = !strcmp(ll_pipeline_name(s), "2bw");
            if (micros[m] == 1 && overlaps) continue;
            int model = (s + m + p) % SQUEEZENET;
            if (m == overlaps && s % 3 == p % 3) model = SQUEEZENET;
            bool exact = (s + m + p / 2) % 3 == 0;
            int64_t steps = model == SQUEEZENET ? 1 : 2;
            if (exact && micros[m] > 2 && model == RESNET) model = MLP;
            snprintf(settings, sizeof settings, "parallel.mesh=pipe=%d parallel.schedule=%s%s", p,
                     ll_pipeline_name(s), exact ? " parallel.exact=true" : "");
            verify(model, micros[m], settings, steps);
        }
}

/* The rest of what a run may ask for, on so many ranks. */
static const struct {
    int ranks, model, n_micro;
    const char *settings;
} others[] = {
    {2, GPT, 5, "parallel.mesh=pipe=2 model.dropout=100"},
    {2, GPT, 3, "parallel.mesh=pipe=2 train.clip=0.5 train.optimizer=lamb"},
    {2, GPT, 3, "parallel.mesh=pipe=2 train.precision=bf16"},
    {2, GPT, 4, "parallel.mesh=pipe=2 parallel.schedule=interleaved parallel.virtual_stages=4"},
    {2, RESNET, 3, "parallel.mesh=pipe=2 train.clip=0.5 parallel.overlap=all"},
    {2, RESNET, 3, "parallel.mesh=pipe=2 parallel.schedule=zb-v train.optimizer=rmsprop"},
    {2, GPT, 3, "parallel.mesh=pipe=2 parallel.stages=h2.*"},
    {2, MLP, 4, /* a step that is made again on all bits */
     "parallel.mesh=pipe=2 parallel.schedule=interleaved parallel.exact=true model.image=9 "
     "model.channels=1 model.classes=8 model.width=4 model.depth=3 train.optimizer=sgd "
     "train.seed=463 parallel.recompute=full"},
    {2, MLP, 2, /* an update that would lose bits */
     "parallel.mesh=pipe=2 parallel.exact=true model.image=8 model.channels=2 model.classes=9 "
     "model.width=8 model.depth=2 train.batch=14 train.micro_batch=7 train.optimizer=muon "
     "train.seed=20"},
    {3, GPT, 4, "parallel.mesh=pipe=3 model.dropout=100 train.clip=0.1 parallel.exact=true"},
    {3, RESNET, 2, "parallel.mesh=pipe=3 parallel.schedule=dualpipe-v train.optimizer=larc"},
    {3, MLP, 7, "parallel.mesh=pipe=3 train.optimizer=lamb train.clip=0.5 parallel.overlap=none"},
    {4, GPT, 3, "parallel.mesh=pipe=2,data=2"},
    {4, GPT, 3, "parallel.mesh=pipe=2,data=2 parallel.zero=1 train.clip=0.5 parallel.exact=true"},
    {4, GPT, 2, "parallel.mesh=data=2,pipe=2 parallel.zero=2 train.optimizer=lamb"},
    {4, GPT, 3, "parallel.mesh=pipe=2,data=2 parallel.zero=3 parallel.schedule=interleaved"},
    {4, GPT, 1, "parallel.mesh=data=2,pipe=2 parallel.zero=3 parallel.exact=true"},
    {4, RESNET, 3, "parallel.mesh=channel=2,pipe=2 parallel.schedule=breadth-first train.clip=0.5"},
    {4, GPT, 5, "parallel.mesh=pipe=4 parallel.schedule=zb-h1 model.layers=1 model.seq=16"},
    {4, GPT, 5, "parallel.mesh=pipe=2,tensor=2 model.dropout=100"},
    {4, GPT, 3, "parallel.mesh=tensor=2,pipe=2 parallel.schedule=zb-h1 parallel.exact=true"},
    {4, GPT, 3, "parallel.mesh=pipe=2,sequence=2 parallel.schedule=zb-v"},
    {4, RESNET, 2, "parallel.mesh=pipe=2,height=2"},
    {4, RESNET, 3, "parallel.mesh=pipe=2,data=2 parallel.zero=1 parallel.overlap=all"},
    {4, RESNET, 3, "parallel.mesh=pipe=4 parallel.schedule=interleaved parallel.exact=true"},
    {4, RESNET, 3, "parallel.mesh=pipe=2,data=2 parallel.zero=3 parallel.overlap=all"},
};

static void test_others(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i].ranks == ll_comm_size(comm))
            verify(others[i].model, others[i].n_micro, others[i].settings, 2);
}

/* ---- sessions ---- */

static ll_session *open_in(ll_comm *c, const char *mesh, const ll_run *r, ll_graph **g)
{
    ll_session *s;
    ll_session_opts o = ll_run_session(r, c, mesh);
    if (!*mesh) o.schedule = NULL;
    no_error(ll_run_graph(r, r->train.batch / ll_run_micro_batches(r), &r->train.optim, g));
    no_error(ll_session_open(*g, &o, &s));
    return s;
}

static void train(ll_session *s, const ll_run *r, int64_t step)
{
    enum { MOST = 64 * 64 };
    int32_t x[MOST];
    int n = (int)ll_run_micro_batches(r);
    int64_t numel = r->train.batch / n * ll_run_size(r, "seq", 0);
    for (int m = 0; m < n; m++)
        for (int k = 0; k < 2; k++) {
            ll_run_random(r, 7, (uint64_t)(step * n + m) * 2 + (uint64_t)k, LL_I32, numel, x);
            no_error(ll_session_set(s, k ? "y" : "x", m, x, sizeof *x * (size_t)numel));
        }
    no_error(ll_session_run(s, 0.01));
}

static int64_t sum_over_ranks(int64_t mine)
{
    double sum = (double)mine;
    no_error(ll_comm_allreduce(comm, &sum, 1, LL_F64, LL_REDUCE_SUM, NULL));
    return (int64_t)sum;
}

/* Every layer is on one rank, whole. */
static void test_layers(void **state)
{
    (void)state;
    enum { LAYERS = 30 };
    char settings[128], mesh[16], name[64];
    snprintf(mesh, sizeof mesh, "pipe=%d", ll_comm_size(comm));
    snprintf(settings, sizeof settings, "parallel.mesh=%s model.layers=%d train.clip=0.5", mesh,
             LAYERS);
    ll_graph *g;
    ll_run *r = run_of(GPT, 2, settings);
    ll_session *s = open_in(comm, mesh, r, &g);
    int64_t here = 0, tensors = 0, own = 0, all = 0;
    for (int i = 0; i < s->p->n_input; i++) {
        const ll_slot *x = &s->p->slots[s->p->inputs[i].slot];
        if (x->kind == LL_PARAM) here += ll_numel(&x->type.shape), tensors++;
    }
    for (int i = 1; i < g->n_value; i++) all += g->values[i].kind == LL_PARAM;
    assert_int_equal(sum_over_ranks(here), ll_session_parameters(s));
    assert_int_equal(sum_over_ranks(tensors), all);
    for (int i = 0; i < LAYERS; i++) {
        snprintf(name, sizeof name, "h%d.attn.qkv.weight", i);
        bool mine = ll_program_input(s->p, name) >= 0;
        own += mine;
        assert_int_equal(sum_over_ranks(mine), 1);
        snprintf(name, sizeof name, "h%d.attn.qkv.weight.mean", i);
        assert_int_equal(ll_program_input(s->p, name) >= 0, mine); /* its moments are there too */
    }
    assert_in_range(own, LAYERS / ll_comm_size(comm) - 3, LAYERS / ll_comm_size(comm) + 3);
    for (int i = 0; i < 2; i++) train(s, r, i);
    ll_session_close(s);
    ll_graph_free(g);
    ll_run_free(r);
}

/* The first stage holds as many micro-batches as there are stages, not all of them. */
static void test_memory(void **state)
{
    (void)state;
    char mesh[16], settings[128];
    static const char *const names[] = {"gpipe", "1f1b"};
    size_t bytes[2];
    snprintf(mesh, sizeof mesh, "pipe=%d", ll_comm_size(comm));
    for (int i = 0; i < 2; i++) {
        snprintf(settings, sizeof settings,
                 "parallel.mesh=%s parallel.schedule=%s train.batch=64 "
                 "train.micro_batch=8 model.layers=8",
                 mesh, names[i]);
        ll_graph *g;
        ll_run *r = run_of(GPT, 8, settings);
        ll_session *s = open_in(comm, mesh, r, &g);
        bytes[i] = s->p->work_bytes;
        print_message("%s: rank %d works in %zu KiB\n", names[i], ll_comm_rank(comm),
                      bytes[i] / 1024);
        ll_session_close(s);
        ll_graph_free(g);
        ll_run_free(r);
    }
    if (ll_comm_rank(comm) == 0)
        assert_true((double)bytes[1] < (0.1 + ll_comm_size(comm) / 8.0) * (double)bytes[0]);
    assert_true(bytes[1] < bytes[0]);
}

/* ---- checkpoints ---- */

static const char *path_of(const char *name)
{
    static char path[2][128];
    static int at;
    at = !at;
    snprintf(path[at], sizeof path[at], "%s-%s", folder, name);
    return path[at];
}

/* The most that a rank plans, of those that have a session: with a step of exact sums made again
 * where there is a limit to count that. */
static double most_planned(const ll_session *s)
{
    double bytes = s ? (double)s->p->bytes + s->room.beside : 0;
    no_error(ll_comm_allreduce(comm, &bytes, 1, LL_F64, LL_REDUCE_MAX, NULL));
    return bytes;
}

/* Loads (NULL: begins), does a step and saves; with exact sums. Returns what the fullest rank
 * plans, where all have a part in it. */
static double go_on(const char *mesh, const char *more, const char *from, int64_t step,
                    const char *to)
{
    ll_mesh m;
    ll_comm *c;
    double bytes = 0;
    no_error(ll_mesh_parse(mesh, &m));
    no_error(ll_comm_split(comm, ll_comm_rank(comm) < m.n_rank ? 0 : -1, ll_comm_rank(comm), &c));
    if (c) {
        char settings[1000];
        snprintf(settings, sizeof settings, "%s%s parallel.exact=true train.clip=0.5 %s",
                 *mesh ? "parallel.mesh=" : "", mesh, more);
        ll_graph *g;
        ll_run *r = run_of(GPT, 3, settings);
        ll_session *s = open_in(*mesh ? c : NULL, mesh, r, &g);
        if (m.n_rank == ll_comm_size(comm)) bytes = most_planned(s);
        if (from) no_error(ll_session_load(s, path_of(from)));
        train(s, r, step);
        no_error(ll_session_save(s, path_of(to)));
        ll_session_close(s);
        ll_graph_free(g);
        ll_run_free(r);
    }
    ll_comm_close(c);
    no_error(ll_comm_barrier(comm));
    return bytes;
}

static void same_bytes(const char *a, const char *b)
{
    if (ll_comm_rank(comm) == 0) same_files(path_of(a), path_of(b));
}

static const struct {
    int ranks;
    const char *mesh, *more;
} after[] = {
    {2, "pipe=2", "parallel.schedule=zb-v"},
    {2, "data=2", "parallel.zero=3"},
    {3, "pipe=3", "parallel.schedule=interleaved"},
    {3, "tensor=3", ""},
    {4, "data=4", "parallel.zero=1"},
    {4, "pipe=4", ""},
    {4, "pipe=2,tensor=2", "parallel.schedule=zb-h1"},
    {4, "data=2,pipe=2", "parallel.zero=3 parallel.schedule=interleaved"},
};

static void test_checkpoints(void **state)
{
    (void)state;
    int p = ll_comm_size(comm);
    go_on("", "", NULL, 0, "serial1");
    go_on("", "", "serial1", 1, "serial2");
    go_on(p == 4   ? "pipe=2,data=2"
          : p == 3 ? "pipe=3"
                   : "pipe=2",
          p == 4 ? "parallel.zero=2" : "parallel.schedule=zb-h1", NULL, 0, "first");
    same_bytes("first", "serial1");
    for (size_t i = 0; i < sizeof after / sizeof *after; i++) {
        if (after[i].ranks != p) continue;
        go_on(after[i].mesh, after[i].more, "first", 1, "second");
        same_bytes("second", "serial2");
    }
    go_on("", "", "first", 1, "second");
    same_bytes("second", "serial2");
}

/* ---- a limit ---- */

/* What the fullest rank plans; of a limit that nothing fits 0, and the message says what would. */
static double fullest(const char *mesh, int n_micro, const char *settings)
{
    ll_run *r = run_of(GPT, n_micro, settings);
    ll_session_opts o = ll_run_session(r, comm, mesh);
    ll_graph *g;
    ll_session *s;
    no_error(ll_run_graph(r, r->train.batch / ll_run_micro_batches(r), &r->train.optim, &g));
    ll_err rc = ll_session_open(g, &o, &s);
    if (rc != LL_OK) assert_int_equal(rc, LL_E_MEM);
    if (rc != LL_OK && ll_comm_rank(comm) == 0)
        assert_non_null(strstr(ll_error_message(), "the fullest rank takes"));
    double bytes = most_planned(s);
    ll_session_close(s);
    ll_graph_free(g);
    ll_run_free(r);
    return bytes;
}

/* Stages and schedules keep within a limit that they would not keep within by themselves (1f1b's on
 * 2 and 4 ranks, those that are sought on 2 and 3), and train the same to the bit. */
static void test_limit(void **state)
{
    (void)state;
    int p = ll_comm_size(comm);
    static const char *const names[] = {"auto", "1f1b"};
    char mesh[16], settings[200], limited[256];
    snprintf(mesh, sizeof mesh, "pipe=%d", ll_comm_size(comm));
    int fitted[2] = {0};
    for (int i = 0; i < 2; i++) {
        if (p == 4 - i) continue;
        snprintf(settings, sizeof settings, "parallel.mesh=%s parallel.schedule=%s model.layers=4",
                 mesh, names[i]);
        double free = fullest(mesh, 5, settings);
        for (int k = 19; k >= 11; k -= 8) {
            snprintf(limited, sizeof limited, "%s train.memory=%.0fB", settings, k * free / 20);
            double bytes = fullest(mesh, 5, limited);
            assert_true(bytes <= k * free / 20);
            fitted[i] += bytes > 0;
            print_message("%s, a limit of %d %%: %.0f %%\n", names[i], 5 * k, 100 * bytes / free);
        }
        snprintf(limited, sizeof limited, "%s train.memory=1kB", settings);
        assert_true(fullest(mesh, 5, limited) == 0);
    }
    assert_true(fitted[0] > 0 || p == 4);
    snprintf(settings, sizeof settings,
             "parallel.mesh=%s parallel.schedule=auto model.layers=4 parallel.exact=true "
             "train.memory=1TiB",
             mesh);
    snprintf(limited, sizeof limited,
             "model.layers=4 train.micro_batch=1 parallel.schedule=auto train.memory=%.0fB",
             fullest(mesh, 5, settings));
    go_on("", "model.layers=4 train.micro_batch=1", NULL, 0, "serial1");
    go_on(mesh, limited, NULL, 0, "first");
    same_bytes("first", "serial1");
}

/* Activations and moments laid aside, beside messages: the same bits. One schedule on 3 ranks, the
 * other on 4. */
static void test_offload(void **state)
{
    (void)state;
    int p = ll_comm_size(comm);
    static const char *const names[] = {"zb-h1", "interleaved"};
    char mesh[16], settings[250], more[900];
    snprintf(mesh, sizeof mesh, "pipe=%d", ll_comm_size(comm));
    go_on("", "model.layers=4", NULL, 0, "serial1");
    for (int i = 0; i < 2; i++) {
        if (p == 4 - i) continue;
        snprintf(settings, sizeof settings,
                 "parallel.mesh=%s parallel.schedule=%s model.layers=4 train.clip=0.5 "
                 "parallel.exact=true",
                 mesh, names[i]);
        double step = fullest(mesh, 3, settings);
        snprintf(more, sizeof more, "%s train.memory=1TiB", settings);
        double all = fullest(mesh, 3, more), limit = floor(all - 0.2 * step);
        snprintf(more, sizeof more,
                 "model.layers=4 parallel.schedule=%s train.offload=/tmp train.memory=%.0fB",
                 names[i], limit);
        double bytes = go_on(mesh, more, NULL, 0, "first");
        assert_true(bytes > 0 && bytes <= limit);
        same_bytes("first", "serial1");
        print_message("%s: %.0f %% of its memory\n", names[i], 100 * bytes / all);
    }
}

/* ---- mistakes ---- */

static void refused(const char *settings, const char *why)
{
    ll_run *r = run_of(GPT, 2, settings);
    ll_verify_report v;
    ll_verify_opts o = {.session = {.comm = comm, .mesh = r->parallel.mesh}, .steps = 1};
    assert_int_not_equal(ll_verify_run(r, &o, true, &v), LL_OK);
    if (!strstr(ll_error_text(), why)) fail_msg("%s: %s", settings, ll_error_text());
    ll_run_free(r);
}

static void test_mistakes(void **state)
{
    (void)state;
    if (ll_comm_size(comm) != 2) return;
    refused("parallel.mesh=data=2 parallel.schedule=gpipe", "add pipe=2 or more to the mesh");
    refused("parallel.mesh=data=2 parallel.virtual_stages=2", "add pipe=2 or more to the mesh");
    refused("parallel.mesh=pipe=2 parallel.stages=h9.*", "no node is named h9.*");
    refused("parallel.mesh=pipe=2 parallel.stages=h1.*,h2.*", "more than 2 stages");
    refused("parallel.mesh=pipe=2 parallel.schedule=1f1b parallel.virtual_stages=2", "1f1b");
    refused("parallel.mesh=pipe=2 parallel.schedule=interleaved parallel.virtual_stages=64",
            "places to cut");
}

int main(void)
{
    if (ll_comm_open(&(ll_comm_opts){.timeout_s = 60, .table = ""}, &comm) != LL_OK) {
        fprintf(stderr, "%s\n", ll_error_text());
        return 1;
    }
    snprintf(folder, sizeof folder, "/tmp/ll-pipe-%d", (int)getpid());
    if (ll_ranks_share(comm, folder, sizeof folder) != LL_OK) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedules),   cmocka_unit_test(test_others),
        cmocka_unit_test(test_layers),      cmocka_unit_test(test_memory),
        cmocka_unit_test(test_checkpoints), cmocka_unit_test(test_limit),
        cmocka_unit_test(test_offload),     cmocka_unit_test(test_mistakes)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s-*", folder);
    if (ll_comm_rank(comm) == 0 && system(command)) rc = 1;
    ll_comm_close(comm);
    return rc;
}
