/* mpi: 1 3
 * What `loopline inspect --program` shows of a rank, which no rank has to run for, is what that
 * rank's session compiles, to the letter. */
#include "cli/program.h"
#include "no_error.h"
#include "run/setup.h"

static ll_comm *comm;

typedef struct way {
    const char *mesh; /* of all ranks; "": one rank has no mesh */
    const char *train, *parallel;
    bool alone; /* works on one rank too */
} way;

static const way ways[] = {
    {"", "batch: 8", "{}", true},
    {"", "batch: 8, precision: bf16", "{recompute: full}", true},
    {"", "batch: 8, micro_batch: 4, delay: true", "{}", true},
    {"data=%d", "batch: 8", "{}", true},
    {"data=%d", "batch: 8", "{exact: true}", true},
    {"data=%d", "batch: 8, micro_batch: 4", "{exact: true}", true},
    {"data=%d", "batch: 8, delay: true", "{exact: true}", true},
    {"", "batch: 8, memory: 5MiB, offload: .", "{exact: true}", true},
    {"data=%d", "batch: 8, memory: 3MiB, offload: .", "{exact: true}"},
    {"data=%d", "batch: 8", "{zero: 3, overlap: all}"},
    {"data=%d", "batch: 8", "{compress: 'qsgd:4'}"},
    {"data=%d", "batch: 8", "{compress: factors}"},
    {"tensor=%d", "batch: 8", "{recompute: selective}"},
    {"sequence=%d", "batch: 8", "{sequence: rows, overlap: all}"},
    {"pipe=%d", "batch: 8, micro_batch: 2", "{}"},
    {"pipe=%d", "batch: 8, micro_batch: 2", "{schedule: zb-h1, recompute: full}"},
    {"pipe=%d", "batch: 8, micro_batch: 1", "{schedule: interleaved, virtual_stages: 1}"},
    {"pipe=%d", "batch: 8, micro_batch: 2", "{schedule: 2bw}"},
    {"pipe=%d", "batch: 8, micro_batch: 2", "{exact: true}"},
    {"pipe=%d", "batch: 8, micro_batch: 1, memory: 800KiB", "{schedule: auto}"},
};

static void differ(const way *w, const char *has, const char *says)
{
    size_t at = 0;
    while (has[at] == says[at]) at++;
    at = at > 200 ? at - 200 : 0;
    print_error("the session has: %.400s\ninspect shows: %.400s\n", has + at, says + at);
    fail_msg("rank %d, mesh %s, train %s, parallel %s", ll_comm_rank(comm), w->mesh, w->train,
             w->parallel);
}

static void test_same(void **state)
{
    int n = ll_comm_size(comm);
    char mesh[64], text[512], option[80] = "";
    assert_int_equal(chdir((const char *)*state), 0); /* offload's files */
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        const way *w = &ways[i];
        if (n == 1 ? !w->alone : !*w->mesh) continue;
        snprintf(mesh, sizeof mesh, w->mesh, n);
        if (n > 1) snprintf(option, sizeof option, "--mesh %s --rank %d", mesh, ll_comm_rank(comm));
        snprintf(text, sizeof text,
                 "model: {name: gpt, layers: 4, width: 32, heads: 4, seq: 16, vocab: 50}\n"
                 "data: {name: synthetic}\n"
                 "train: {threads: 1, %s}\nparallel: %s\n",
                 w->train, w->parallel);
        write_text("run.yaml", text);
        LL_OWN(ll_run) r = NULL;
        LL_OWN(ll_graph) g = NULL;
        LL_OWN(ll_session) s = NULL;
        no_error(ll_run_parse(text, strlen(text), "run.yaml", &r));
        no_error(ll_run_finish(r));
        ll_session_opts o = ll_run_session(r, n > 1 ? comm : NULL, n > 1 ? mesh : NULL);
        no_error(ll_run_compile(r, &o, &g, &s));
        outcome shown = succeeds((const char *)*state, "inspect run.yaml --program %s", option);
        const char *has = ll_program_print(s->p, s->p->arena);
        if (strcmp(has, shown.out)) differ(w, has, shown.out);
        outcome_free(&shown);
    }
    assert_int_equal(chdir("/"), 0);
}

int main(void)
{
    if (ll_comm_open(&(ll_comm_opts){.timeout_s = 300, .table = ""}, &comm) != LL_OK) {
        fprintf(stderr, "%s\n", ll_error_text());
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_same, tmpdir_setup, tmpdir_teardown)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    ll_comm_close(comm);
    return rc;
}
