/* mpi: 1 2 4
 * The tuner on live ranks: one table on all of them, in time, kept in a file. */
#include "base/crc32c.h"
#include "tune/tune.h"
#include "tmpdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static ll_comm *comm;
static char path[4096];

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != LL_OK) fail_msg("%s\n%s", ll_error_text(), ll_error_frames());               \
    } while (0)

/* A number of everything that choices follow from. */
static double print_of(const ll_tuned_table *t)
{
    int n = t->n_entry;
    uint32_t crc = 0;
    const ll_tuned *e = t->entries;
    for (int i = 0; i < n; i++) {
        crc = ll_crc32c(crc, &e[i].bytes, sizeof e[i].bytes);
        for (int k = 0; k < e[i].n_way; k++) {
            const ll_tuned_way *w = &e[i].ways[k];
            crc = ll_crc32c(crc, w->algo->name, strlen(w->algo->name));
            crc = ll_crc32c(crc, &w->segment_bytes, sizeof w->segment_bytes);
        }
    }
    return crc;
}

static void equal_on_all_ranks(const ll_tuned_table *t)
{
    double both[2] = {print_of(t), -print_of(t)};
    OK(ll_comm_allreduce(comm, both, 2, LL_F64, LL_REDUCE_MAX, NULL));
    assert_true(both[0] == -both[1]);
}

static void check_entries(const ll_tuned_table *t)
{
    int n = t->n_entry, n_allreduce = 0, n_measured = 0;
    const ll_tuned *e = t->entries;
    for (int i = 0; i < n; i++) {
        assert_true(e[i].n_way > 0 && e[i].why[0]);
        double last = 0; /* best first */
        for (int k = 0; k < e[i].n_way && e[i].ways[k].measured_s > 0; k++) {
            assert_true(e[i].ways[k].measured_s >= last);
            last = e[i].ways[k].measured_s;
        }
        bool small = e[i].bytes <= 64 << 10;
        n_allreduce += e[i].coll == LL_COLL_ALLREDUCE && small && !e[i].shared;
        n_measured += e[i].coll == LL_COLL_ALLREDUCE && small && !e[i].shared && last > 0;
    }
    assert_int_equal(n_allreduce, 5);
    assert_int_equal(n_measured, 5);
    const ll_link_model *m = &t->model;
    assert_true(m->alpha[0] > 0 && m->alpha[0] < 1 && m->beta[0] > 0 && m->beta[0] < 1e-6);
    assert_true(m->gamma > 0 && m->gamma < 1e-6 && m->kappa > 0 && m->kappa < 1e-6);
    assert_true(m->share >= 1);
}

static void sums_with_the_table(void)
{
    int size = ll_comm_size(comm), rank = ll_comm_rank(comm);
    for (int64_t n = 1; n < 400000; n = n * 7 + 1) {
        float *x = malloc(sizeof *x * (size_t)n);
        for (int64_t i = 0; i < n; i++) x[i] = (float)(i % 5 + rank);
        OK(ll_comm_allreduce(comm, x, n, LL_F32, LL_REDUCE_SUM, NULL));
        for (int64_t i = 0; i < n; i++)
            assert_true(x[i] == (float)(i % 5 * size + size * (size - 1) / 2));
        free(x);
    }
}

static void tunes_once_and_reads_then(void **state)
{
    (void)state;
    const ll_tuned_table *t;
    assert_null(ll_comm_table(comm));
    double budget = 0.7; /* a machine that is busy may need more for a table worth keeping */
    OK(ll_tune(comm, &(ll_tune_opts){.budget_s = budget}, &t));
    for (; ll_comm_size(comm) > 1 && !t->file && budget < 10; budget *= 3)
        OK(ll_tune(comm, &(ll_tune_opts){.budget_s = 3 * budget}, &t));
    assert_ptr_equal(ll_comm_table(comm), t);
    assert_false(t->was_read);
    equal_on_all_ranks(t);
    if (ll_comm_size(comm) == 1) return; /* nothing to tune */
    if (ll_comm_rank(comm) == 0) print_message("tuned in %.2f s of %.1f\n", t->seconds, budget);
    check_entries(t);
    sums_with_the_table();
    double first = print_of(t);
    OK(ll_comm_barrier(comm));
    OK(ll_tune(comm, NULL, &t));
    assert_true(t->was_read && print_of(t) == first);
    assert_string_equal(t->file, path);
    equal_on_all_ranks(t);
    sums_with_the_table();
}

static void broken_files_are_measured_anew(void **state)
{
    (void)state;
    if (ll_comm_size(comm) == 1) return;
    if (ll_comm_rank(comm) == 0) {
        FILE *f = fopen(path, "w");
        fputs("{\"loopline_comm_table\": 1, \"key\": \"another machine\"}", f);
        fclose(f);
    }
    const ll_tuned_table *t;
    OK(ll_comm_barrier(comm));
    OK(ll_tune(comm, &(ll_tune_opts){.budget_s = 0.5}, &t));
    assert_false(t->was_read);
    equal_on_all_ranks(t);
    bool kept = t->file;
    OK(ll_tune(comm, &(ll_tune_opts){.budget_s = 0.2}, &t));
    assert_int_equal(t->was_read, kept);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tunes_once_and_reads_then),
        cmocka_unit_test(broken_files_are_measured_anew),
    };
    const char *tmp = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/loopline-test-tuner-%d.json", tmp ? tmp : "/tmp",
             (int)getppid());
    if (ll_comm_open(&(ll_comm_opts){.timeout_s = 60, .table = path}, &comm) != LL_OK) {
        fprintf(stderr, "%s\n", ll_error_text());
        return 1;
    }
    int rank = ll_comm_rank(comm);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ll_comm_close(comm);
    if (rank == 0) remove(path);
    return failed;
}
