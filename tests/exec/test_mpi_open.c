/* mpi: 2 4
 * Sessions that open: a failure in each step, on each rank in turn, is the failure of all at once,
 * in its own words; and what one session leaves to the communicator the next one uses.
 *
 * The linker lets every call of a function in WRAP pass here first (CMakeLists.txt). */
#include "base/now.h"
#include "exec/parts.h"

#include <mpi.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <cmocka.h>

#include "comm/comm_int.h"
#include "no_error.h"

static ll_comm *comm;
static const char *bad; /* the function that fails, here; NULL: none */

static ll_err inject(const char *name)
{
    if (!bad || strcmp(bad, name)) return LL_OK;
    FAIL(LL_E_SYS, "injected into %s", name);
}

#define WRAP(name, args, ...)                                                                      \
    ll_err __real_##name args;                                                                     \
    ll_err __wrap_##name args;                                                                     \
    ll_err __wrap_##name args                                                                      \
    {                                                                                              \
        TRY(inject(#name));                                                                        \
        return __real_##name(__VA_ARGS__);                                                         \
    }

WRAP(ll_machine_find, (const char *name, const ll_machine **out), name, out)
WRAP(ll_team_open, (ll_comm * c, const ll_mesh *m, ll_team **out), c, m, out)
WRAP(ll_place, (const ll_graph *g, const ll_place_opts *o, ll_placement **out), g, o, out)
WRAP(ll_partition, (const ll_placement *p, int rank, ll_graph **out), p, rank, out)
WRAP(ll_lower, (const ll_graph *g, const ll_lower_opts *o, ll_program **out), g, o, out)
WRAP(ll_host_map, (ll_exec * e, size_t bytes, char **out), e, bytes, out)
WRAP(ll_host_init, (ll_exec * e, int slot), e, slot)
WRAP(ll_comm_split, (ll_comm * c, int color, int key, ll_comm **out), c, color, key, out)
WRAP(ll_transfer_open,
     (ll_team * t, ll_arena *a, const ll_instr *x, const ll_tensor *in, const ll_tensor *out,
      void *packing, const ll_memory *memory, ll_transfer **made),
     t, a, x, in, out, packing, memory, made)
WRAP(ll_comm_alloc, (ll_comm * c, size_t bytes, void **out), c, bytes, out)
WRAP(ll_codec_open, (const char *text, const char *name, int64_t n, uint64_t seed, ll_codec **out),
     text, name, n, seed, out)
WRAP(ll_transfer_scratch, (ll_transfer * t, size_t *bytes), t, bytes)

static const char *const steps[] = {"ll_machine_find", "ll_team_open",  "ll_place",
                                    "ll_partition",    "ll_lower",      "ll_host_map",
                                    "ll_host_init",    "ll_comm_split", "ll_transfer_open",
                                    "ll_comm_alloc",   "ll_codec_open", "ll_transfer_scratch"};

static ll_graph *graph(void)
{
    return part_model("mlp", 12, "adamw", 0, NULL, 0);
}

static ll_err open(ll_graph *g, ll_session **s)
{
    ll_session_opts o = {.seed = 1, .threads = 1, .comm = comm, .compress = "bf16"};
    o.mesh = ll_comm_size(comm) == 2 ? "data=2" : "data=2,tensor=2";
    return ll_session_open(g, &o, s);
}

enum { TIMEOUT = 200 }; /* nobody may wait so long, even on a machine with much else to do */

static void open_comm(void)
{
    no_error(ll_comm_open(&(ll_comm_opts){.timeout_s = TIMEOUT, .table = ""}, &comm));
}

/* Ranks agree on what each does by itself, and talk on; a failure within a collective ends that. */
static void each_step_fails_for_all(void **state)
{
    (void)state;
    ll_graph *g = graph();
    open_comm();
    int size = ll_comm_size(comm);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        for (int who = 0; who < size; who++) {
            bool split = !strcmp(steps[i], "ll_comm_split");
            if (split && size == 2) continue; /* one group of all: none is split */
            ll_session *s;
            no_error(ll_comm_barrier(comm));
            bad = who == ll_comm_rank(comm) ? steps[i] : NULL;
            double began = ll_now();
            ll_err rc = open(g, &s);
            double seconds = ll_now() - began;
            bad = NULL;
            char want[100];
            snprintf(want, sizeof want, "injected into %s", steps[i]);
            if (rc == LL_OK || !strstr(ll_error_text(), want) || seconds > TIMEOUT / 2)
                fail_msg("%s on rank %d: after %.1f s on rank %d: %s", steps[i], who, seconds,
                         ll_comm_rank(comm), rc ? ll_error_text() : "no error");
            if (!split && strcmp(steps[i], "ll_comm_alloc")) continue;
            ll_comm_close(comm);
            open_comm();
        }
    ll_comm_close(comm);
    ll_graph_free(g);
}

/* Windows are few in some MPIs: a session's go with it. */
static void sessions_leave_no_windows(void **state)
{
    (void)state;
    ll_graph *g = graph();
    open_comm();
    int most = 0;
    for (int i = 0; i < 12; i++) {
        ll_session *s;
        no_error(open(g, &s));
        int n = 0;
        for (const ll_shared *x = comm->shared; x; x = x->next) n++;
        if (i == 0) most = n;
        assert_true(n > 0 && n <= most);
        ll_session_close(s);
    }
    ll_comm_close(comm);
    ll_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_step_fails_for_all),
                                       cmocka_unit_test(sessions_leave_no_windows)};
    MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &(int){0});
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (failed) MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Finalize();
    return failed;
}
