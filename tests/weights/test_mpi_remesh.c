/* mpi: 6
 * A run whose mesh changes after every few steps: saved by so many ranks, gone on with by others,
 * in other parts, with the losses of a run that one process did without a stop. Ranks that a mesh
 * does not need wait. */
#include "train/trainer.h"
#include "no_error.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { EACH = 2, MOST = 64 }; /* steps on each mesh; in all */
static ll_comm *comm;
static char folder[64];

typedef struct stage {
    const char *mesh;
    int zero;
} stage;

typedef struct chain {
    const char *name, *run;
    stage stages[12]; /* ends with a mesh of NULL */
} chain;

static const chain chains[] = {
    {"lenet5",
     "model: {name: lenet5}\n"
     "data: {name: synthetic, samples: 100}\n"
     "train: {batch: 7, optimizer: momentum, lr: 0.01, clip: 1, threads: 1}\n",
     {{"data=2", 3},
      {"filter=3", 0},
      {"height=4", 0},
      {"data=3", 2},
      {"", 0},
      {"height=2,width=3", 0},
      {"data=6", 1},
      {"channel=2,filter=2", 0},
      {"data=2,height=2", 1},
      {NULL, 0}}},
    {"gpt",
     "model: {name: gpt, layers: 1, width: 24, heads: 6, seq: 13, vocab: 53}\n"
     "data: {name: synthetic, samples: 100}\n"
     "train: {batch: 7, optimizer: adamw, lr: 1e-3, eps: 1e-4, threads: 1}\n",
     {{"data=3", 3},
      {"tensor=2,sequence=2", 0},
      {"data=2,tensor=3", 1},
      {"", 0},
      {"data=6", 3},
      {"sequence=4", 0},
      {"tensor=6", 0},
      {NULL, 0}}},
    {"mlp",
     "model: {name: mlp, image: 9, width: 37, depth: 2, classes: 5}\n"
     "data: {name: synthetic, samples: 100}\n"
     "train: {batch: 7, optimizer: adam, lr: 1e-3, eps: 1e-4, threads: 1}\n",
     {{"rows=2,cols=3", 0}, {"data=4", 2}, {"rows=2,cols=1,depth=3", 0}, {"data=3", 3}, {NULL, 0}}},
};

static void take_down(void *context, const ll_train_step *s)
{
    double *losses = (double *)context;
    assert_in_range(s->step, 1, MOST - 1);
    losses[s->step] = s->loss;
}

static void set(ll_run *r, const char *key, const char *value)
{
    char text[200];
    snprintf(text, sizeof text, "%s=%s", key, value);
    no_error(ll_run_set(r, text));
}

/* Collective over c; goes on where from is not 0. */
static void train(ll_comm *c, const chain *x, const stage *s, int64_t from, int64_t to,
                  const char *out, double *losses)
{
    ll_run *r;
    char number[24], zero[4];
    snprintf(number, sizeof number, "%lld", (long long)to);
    snprintf(zero, sizeof zero, "%d", s->zero);
    no_error(ll_run_parse(x->run, strlen(x->run), x->name, &r));
    set(r, "train.steps", number);
    set(r, "parallel.mesh", s->mesh);
    set(r, "parallel.zero", zero);
    set(r, "out", out);
    no_error(ll_run_finish(r));
    ll_train_report report;
    ll_train_opts o = {
        .comm = c, .resume = from > 0, .watch = {.context = losses, .step = take_down}};
    no_error(ll_train(r, &o, &report));
    assert_int_equal(report.first, from);
    assert_int_equal(report.steps, to);
    ll_run_free(r);
}

static int ranks_of(const char *text)
{
    ll_mesh m;
    no_error(ll_mesh_parse(text, &m));
    return m.n_rank;
}

static void follow(const chain *x)
{
    double alone[MOST] = {0}, many[MOST] = {0};
    char out[100];
    int64_t step = 0;
    snprintf(out, sizeof out, "%s/%s", folder, x->name);
    for (const stage *s = x->stages; s->mesh; s++, step += EACH) {
        ll_comm *c;
        int size = ranks_of(s->mesh), rank = ll_comm_rank(comm);
        no_error(ll_comm_split(comm, rank < size ? 0 : -1, rank, &c));
        if (c) train(c, x, s, step, step + EACH, out, many);
        ll_comm_close(c);
        no_error(ll_comm_barrier(comm));
    }
    if (ll_comm_rank(comm)) return;
    snprintf(out, sizeof out, "%s/%s-alone", folder, x->name);
    train(NULL, x, &(stage){"", 0}, 0, step, out, alone);
    for (int64_t i = 1; i <= step; i++) {
        double off = fabs(many[i] - alone[i]) / fabs(alone[i]);
        if (!(off < 1e-5))
            fail_msg("%s, step %lld (%s): loss %.9g, alone %.9g", x->name, (long long)i,
                     x->stages[(i - 1) / EACH].mesh, many[i], alone[i]);
    }
}

static void losses_are_those_of_one_process(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof chains / sizeof *chains; i++) follow(&chains[i]);
}

int main(void)
{
    if (ll_comm_open(&(ll_comm_opts){.timeout_s = 60, .table = ""}, &comm) != LL_OK) {
        fprintf(stderr, "%s\n", ll_error_text());
        return 1;
    }
    snprintf(folder, sizeof folder, "/tmp/ll-remesh-%d", (int)getpid());
    if (ll_ranks_share(comm, folder, sizeof folder) != LL_OK) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(losses_are_those_of_one_process)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (ll_comm_rank(comm) == 0 && system(command)) rc = 1;
    ll_comm_close(comm);
    return rc;
}
