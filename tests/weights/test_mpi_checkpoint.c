/* mpi: 1 2 3 4
 * Checkpoints that all ranks write: the bytes are those of one process, whoever has what; read back
 * in other parts; and when one rank fails, all do, and what was there stays. */
#include "base/crc32c.h"
#include "base/rng.h"
#include "mesh/mesh.h"
#include "weights/save.h"
#include "run/ranks.h"
#include "no_error.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static ll_comm *comm;
static uint64_t seed = 1;
static char folder[64];

/* Shapes of which some have fewer elements than there are ranks. */
enum { N = 6, BIGGEST = 7 * 11 * 5 };
static const ll_shape shapes[N] = {{0, {0}},        {1, {13}},   {2, {1, 9}},
                                   {3, {7, 11, 5}}, {2, {3, 0}}, {4, {2, 5, 3, 4}}};
static const char *const names[N] = {"scalar", "bias", "row", "cube", "none", "filter"};
static const ll_dtype types[N] = {LL_F32, LL_F32, LL_F64, LL_F32, LL_F32, LL_U8};

typedef struct store {
    ll_st_tensor tensors[N];
    ll_st_part parts[N];
    uint8_t data[N][BIGGEST * 8];
} store;

static void fill(store *s, uint64_t salt)
{
    for (int i = 0; i < N; i++) {
        s->tensors[i] = (ll_st_tensor){names[i], types[i], shapes[i], s->data[i]};
        for (size_t k = 0; k < sizeof s->data[i]; k++)
            s->data[i][k] = (uint8_t)ll_below_at(seed + salt, (uint64_t)i, k, 256);
    }
}

/* The part of tensor i that this rank has: cut along dimension `dim` (modulo its dimensions, and
 * whole where that is past the last), and once more along the one after. */
static void cut(const store *whole, store *s, int dim)
{
    int size = ll_comm_size(comm), rank = ll_comm_rank(comm);
    *s = *whole;
    for (int i = 0; i < N; i++) {
        const ll_shape *w = &shapes[i];
        ll_st_part *p = &s->parts[i];
        *p = (ll_st_part){.shape = *w};
        s->tensors[i].data = s->data[i];
        int d = w->n ? dim % (w->n + 1) : 0;
        if (d == w->n) {
            p->spare = rank != i % size;
            continue;
        }
        int rows = size % 2 == 0 && w->n > d + 1 ? 2 : 1; /* a mesh of two axes */
        int64_t to;
        ll_share(w->d[d], size / rows, rank / rows, &p->at[d], &to);
        p->shape.d[d] = to - p->at[d];
        if (rows > 1) {
            ll_share(w->d[d + 1], 2, rank % 2, &p->at[d + 1], &to);
            p->shape.d[d + 1] = to - p->at[d + 1];
        }
        ll_st_runs runs = ll_st_runs_of(w, p, types[i]);
        memset(s->data[i], 0x7f, sizeof s->data[i]);
        for (int64_t k = 0; k < runs.n; k++)
            memcpy(s->data[i] + (size_t)k * runs.bytes, whole->data[i] + ll_st_run_at(&runs, k),
                   runs.bytes);
    }
}

static ll_err save(const store *s, int64_t step, bool parts)
{
    static const ll_st_pair meta[] = {{"model", "none"}};
    ll_checkpoint c = {step, {.tensors = s->tensors, .n = N, .meta = meta, .n_meta = 1}};
    if (parts) c.x.parts = s->parts, c.x.comm = comm;
    return save_all(folder, &c, 2);
}

static const char *path_of(int64_t step)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/checkpoints/step-%08lld.safetensors", folder, (long long)step);
    return path;
}

static size_t read_file(int64_t step, char *bytes, size_t room)
{
    FILE *f = fopen(path_of(step), "rb");
    assert_non_null(f);
    size_t n = fread(bytes, 1, room, f);
    fclose(f);
    return n;
}

static int count_files(void)
{
    char path[128];
    snprintf(path, sizeof path, "%s/checkpoints", folder);
    DIR *d = opendir(path);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));) n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

/* Rank 0 makes and removes the folder. */
static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/ll-ranks-%d", (int)getpid());
    no_error(ll_ranks_share(comm, folder, sizeof folder));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    no_error(ll_comm_barrier(comm));
    if (ll_comm_rank(comm) == 0 && system(command)) return 1;
    return 0;
}

static void bytes_do_not_depend_on_parts(void **state)
{
    (void)state;
    static store whole, part, back;
    static char want[1 << 16], have[1 << 16];
    fill(&whole, 0);
    if (ll_comm_rank(comm) == 0) no_error(save(&whole, 1, false));
    no_error(ll_comm_barrier(comm));
    size_t n = read_file(1, want, sizeof want);
    for (int dim = 0; dim < 5; dim++) {
        cut(&whole, &part, dim);
        no_error(save(&part, 2, true));
        assert_int_equal(read_file(2, have, sizeof have), n);
        /* "step" is all that differs, and both have one digit. */
        int differ = 0;
        for (size_t i = 0; i < n; i++) differ += want[i] != have[i];
        assert_int_equal(differ, 1);
        ll_st_file *f;
        cut(&whole, &back, dim + 1);
        no_error(ll_checkpoint_open_latest(comm, folder, &f));
        for (int i = 0; i < N; i++) memset(back.data[i], 0x7f, sizeof back.data[i]);
        no_error(ll_checkpoint_load(f, back.tensors, back.parts, N, true));
        ll_st_close(f);
        cut(&whole, &part, dim + 1);
        for (int i = 0; i < N; i++) {
            size_t bytes = (size_t)ll_numel(&part.parts[i].shape) * ll_dtype_bytes(types[i]);
            assert_memory_equal(back.data[i], part.data[i], bytes);
        }
        no_error(ll_comm_barrier(comm));
    }
}

static void one_failure_is_everyones(void **state)
{
    (void)state;
    static store whole, part, other;
    static char before[1 << 16], after[1 << 16];
    fill(&whole, 0);
    cut(&whole, &part, 0);
    no_error(save(&part, 3, true));
    size_t n = read_file(3, before, sizeof before);
    int files = count_files(), bad = ll_comm_size(comm) - 1;
    fill(&other, 7);
    cut(&other, &part, 1);
    struct rlimit old, none = {64, 64};
    getrlimit(RLIMIT_FSIZE, &old);
    none.rlim_max = old.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    no_error(ll_comm_barrier(comm));
    if (ll_comm_rank(comm) == bad) setrlimit(RLIMIT_FSIZE, &none);
    ll_err same = save(&part, 3, true), next = save(&part, 4, true);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(same, LL_E_IO);
    assert_int_equal(next, LL_E_IO);
    assert_non_null(strstr(ll_error_text(), "File too large"));
    no_error(ll_comm_barrier(comm));
    assert_int_equal(count_files(), files);
    assert_int_equal(read_file(3, after, sizeof after), n);
    assert_memory_equal(before, after, n);
}

static void damage_is_seen_by_all(void **state)
{
    (void)state;
    static store whole, part;
    ll_st_file *f;
    fill(&whole, 0);
    cut(&whole, &part, 0);
    no_error(save(&part, 5, true));
    if (ll_comm_rank(comm) == 0) {
        int fd = open(path_of(5), O_RDWR);
        struct stat st;
        char byte;
        assert_true(fd >= 0 && fstat(fd, &st) == 0);
        assert_int_equal(pread(fd, &byte, 1, st.st_size - 3), 1);
        byte ^= 16;
        assert_int_equal(pwrite(fd, &byte, 1, st.st_size - 3), 1);
        close(fd);
    }
    no_error(ll_comm_barrier(comm));
    assert_int_equal(ll_checkpoint_open(comm, path_of(5), &f), LL_E_IO);
    assert_non_null(strstr(ll_error_text(), "damaged"));
    assert_int_equal(ll_checkpoint_open(comm, "/nonexistent", &f), LL_E_IO);
}

/* A folder that some node does not share is known before the run, not at its first checkpoint. */
static void folders_are_shared(void **state)
{
    (void)state;
    int size = ll_comm_size(comm);
    char path[100];
    snprintf(path, sizeof path, "%s.txt", folder);
    FILE *f = ll_comm_rank(comm) == 0 ? fopen(path, "w") : NULL;
    if (f) assert_true(fputs("12345", f) >= 0 && fclose(f) == 0);
    no_error(ll_comm_barrier(comm));
    no_error(ll_ranks_see(comm, path, 5));
    const char *mine = size > 1 && ll_comm_rank(comm) == size - 1 ? "/nonexistent/x" : path;
    ll_err rc = ll_ranks_see(comm, mine, 5);
    assert_int_equal(rc, size > 1 ? LL_E_IO : LL_OK);
    if (size > 1) assert_non_null(strstr(ll_error_text(), "on storage that all nodes share"));
    assert_int_equal(ll_ranks_see(comm, path, 6), size > 1 ? LL_E_IO : LL_OK);
    if (f) unlink(path);
}

/* A checksum made of three hands' pieces of the same bytes. */
static void checksums_add_up(void **state)
{
    (void)state;
    uint8_t data[1000];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)ll_below_at(seed, 9, i, 256);
    static const size_t ends[] = {0, 1, 8, 9, 300, 301, 777, 1000, 1000};
    uint32_t sum = 0;
    for (size_t hand = 0; hand < 3; hand++) {
        uint32_t r = 0;
        for (size_t i = 1; i < sizeof ends / sizeof *ends; i++) {
            size_t n = ends[i] - ends[i - 1];
            r = i % 3 == hand ? ll_crc32c_piece(r, data + ends[i - 1], n) : ll_crc32c_zeros(r, n);
        }
        sum ^= r;
    }
    assert_int_equal(ll_crc32c_of(sum, sizeof data), ll_crc32c(0, data, sizeof data));
    assert_int_equal(ll_crc32c_of(0, 0), ll_crc32c(0, data, 0));
    uint8_t zeros[129] = {0};
    assert_int_equal(ll_crc32c_zeros(0x12345678, sizeof zeros),
                     ll_crc32c_piece(0x12345678, zeros, sizeof zeros));
}

/* Bytes come whole, none beside them, wherever they begin and end. */
static void copies_are_summed(void **state)
{
    (void)state;
    enum { MOST = 50000, EDGE = 64 };
    static uint8_t from[MOST], to[MOST], was[MOST];
    static const size_t sizes[] = {0, 1, 7, 8, 12287, 12288, 12295, 24576, 40009};
    for (size_t i = 0; i < MOST; i++) from[i] = (uint8_t)ll_below_at(seed, 10, i, 256);
    memset(was, 0xa5, MOST);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        for (size_t at = 0; at < 9; at++) {
            size_t n = sizes[k];
            memset(to, 0xa5, MOST);
            uint32_t r = ll_crc32c_copy(17, to + EDGE + at, from + 2 * at, n);
            assert_int_equal(r, ll_crc32c_piece(17, from + 2 * at, n));
            assert_memory_equal(to + EDGE + at, from + 2 * at, n);
            assert_memory_equal(to, was, EDGE + at);
            assert_memory_equal(to + EDGE + at + n, was, MOST - EDGE - at - n);
        }
}

int main(void)
{
    if (getenv("SEED")) seed = strtoull(getenv("SEED"), NULL, 10);
    if (ll_comm_open(&(ll_comm_opts){.timeout_s = 60, .table = ""}, &comm) != LL_OK) {
        fprintf(stderr, "%s\n", ll_error_text());
        return 1;
    }
    if (ll_comm_rank(comm) == 0) printf("seed %llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_do_not_depend_on_parts),
        cmocka_unit_test(one_failure_is_everyones),
        cmocka_unit_test(damage_is_seen_by_all),
        cmocka_unit_test(folders_are_shared),
        cmocka_unit_test(checksums_add_up),
        cmocka_unit_test(copies_are_summed),
    };
    int rc = cmocka_run_group_tests(tests, setup, teardown);
    ll_comm_close(comm);
    return rc;
}
