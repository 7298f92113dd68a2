/* mpi: 1 2 3
 * Files of a slow store: samples that were fetched ahead are those of files that are read as they
 * are used, whatever becomes of cache and source; ranks of a host fetch each file once. */
#include "files.h"

#include "comm/comm.h"
#include "data/data_int.h"
#include "data/fetch.h"

#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PICTURES = 60, CLASSES = 4, SIDE = 9, BATCH = 12, TOKENS = 5 << 18, SEQ = 100 };

static ll_comm *comm;
static int rank, size;
static char folder[] = "/tmp/loopline-fetch-XXXXXX";

static const char *at(const char *format, int i)
{
    static char names[4][256];
    static int turn;
    char *out = names[turn++ % 4];
    int n = snprintf(out, sizeof names[0], "%s/", folder);
    snprintf(out + n, sizeof names[0] - (size_t)n, format, i);
    return out;
}

/* Likewise, and it stays. */
#define PLACE(name, format, i)                                                                     \
    char name[256];                                                                                \
    snprintf(name, sizeof name, "%s", at(format, i))

static void together(void)
{
    ok(ll_comm_barrier(comm));
}

/* ---- sources ---- */

static size_t put_chunk(uint8_t *to, const char *kind, const uint8_t *data, size_t n)
{
    put_be32(to, (uint32_t)n);
    memcpy(to + 4, kind, 4);
    memcpy(to + 8, data, n);
    put_be32(to + 8 + n, (uint32_t)crc32(0, to + 4, (uInt)n + 4));
    return n + 12;
}

/* A grey PNG of one size, whatever it shows: not compressed. */
static void put_picture(int i, int shows)
{
    uint8_t file[512] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'}, raw[SIDE * (SIDE + 1)];
    uint8_t head[13] = {0}, packed[256];
    uLongf n = sizeof packed;
    size_t end = 8;
    put_be32(head, SIDE), put_be32(head + 4, SIDE), head[8] = 8;
    for (int k = 0; k < (int)sizeof raw; k++)
        raw[k] = k % (SIDE + 1) ? pixel_value(shows, k / 10, k % 10) : 0;
    assert_int_equal(compress2(packed, &n, raw, sizeof raw, 0), Z_OK);
    end += put_chunk(file + end, "IHDR", head, sizeof head);
    end += put_chunk(file + end, "IDAT", packed, n);
    end += put_chunk(file + end, "IEND", head, 0);
    char name[64];
    snprintf(name, sizeof name, "pictures/c%d/%%d.png", i % CLASSES);
    put_file(at(name, i), file, end);
}

static void put_numbers(uint32_t from)
{
    static uint8_t t[TOKENS][2];
    for (uint32_t i = 0; i < TOKENS; i++) {
        uint32_t v = (i * 2654435761u + from) >> 17;
        t[i][0] = (uint8_t)v, t[i][1] = (uint8_t)(v >> 8);
    }
    put_file(at("tokens.u16", 0), t, sizeof t);
}

static void make_sources(void)
{
    assert_int_equal(mkdir(at("pictures", 0), 0777), 0);
    for (int i = 0; i < CLASSES; i++) assert_int_equal(mkdir(at("pictures/c%d", i), 0777), 0);
    for (int i = 0; i < PICTURES; i++) put_picture(i, i);
    put_numbers(0);
}

/* ---- sets, and batches of them ---- */

static ll_dataset *open_set(bool tokens, const char *cache)
{
    ll_dataset *d;
    ll_data_opts o = {.format = tokens ? "tokens" : "images",
                      .path = at(tokens ? "tokens.u16" : "pictures", 0),
                      .seq = SEQ,
                      .height = 8,
                      .width = 8,
                      .channels = 1,
                      .mixup = tokens ? 0 : 0.4,
                      .cache = cache,
                      .fetch = cache ? 5 : 0};
    ok(ll_dataset_open(&o, &d));
    return d;
}

static ll_loader *open_part(const ll_dataset *d, bool asked)
{
    ll_loader *l;
    ll_loader_opts o = {.batch = BATCH, .how = {.seed = 7}, .threads = 2, .asked = asked};
    o.count = asked ? 2 : BATCH / size;
    o.first = asked ? 0 : rank * o.count;
    ok(ll_loader_open(d, &o, &l));
    return l;
}

static void ask(ll_loader *a, ll_loader *b, int k)
{
    ll_loader_ask(a, 2 * k, 2 * (k % 6));
    ll_loader_ask(b, 2 * k, 2 * (k % 6));
}

/* Batches are those of a set that is read as it is used; between: after the first few of them. */
static void compare_as(bool tokens, const char *cache, bool asked, void (*between)(const char *))
{
    ll_dataset *d = open_set(tokens, NULL), *e = open_set(tokens, cache);
    ll_loader *plain = open_part(d, asked), *ahead = open_part(e, asked);
    ll_data_batch a, b;
    for (int i = 0; i < 2 && asked; i++) ask(plain, ahead, i);
    for (int i = 0; i < 15; i++) {
        ok(ll_loader_next(plain, &a));
        ok(ll_loader_next(ahead, &b));
        for (int f = 0; f < ll_dataset_info(d)->n_field; f++)
            assert_memory_equal(a.data[f], b.data[f], a.bytes[f]);
        if (asked) ask(plain, ahead, i + 2);
        if (i == 3 && between) between(cache);
    }
    ll_loader_close(plain);
    ll_loader_close(ahead);
    ll_dataset_close(d);
    ll_dataset_close(e);
}

static void compare(bool tokens, const char *cache)
{
    compare_as(tokens, cache, false, NULL);
}

/* Files of a cache; each is given to what. */
static int each_file(const char *cache, void (*what)(const char *path, int i))
{
    char pattern[256];
    glob_t g;
    snprintf(pattern, sizeof pattern, "%s/*/*", cache);
    if (glob(pattern, 0, NULL, &g)) return 0;
    int n = (int)g.gl_pathc;
    for (int i = 0; i < n && what; i++) what(g.gl_pathv[i], i);
    globfree(&g);
    return n;
}

static void no_leftover(const char *path, int i)
{
    (void)i;
    if (strstr(path, ".new")) fail_msg("%s is left over", path);
}

/* ---- tests ---- */

static void test_same(void **state)
{
    (void)state;
    PLACE(cache, "same", 0);
    PLACE(other, "asked", 0);
    for (int tokens = 0; tokens < 2; tokens++)
        for (int again = 0; again < 2; again++) compare(tokens, cache);
    together();
    each_file(cache, no_leftover);
    compare_as(false, other, true, NULL);
    together();
}

static int64_t read_all(bool tokens, const char *cache)
{
    ll_dataset *d = open_set(tokens, cache);
    ll_loader *l;
    ll_data_batch b;
    ok(ll_loader_open(d, &(ll_loader_opts){.batch = BATCH, .threads = 1}, &l));
    for (int i = 0; i < 40; i++) ok(ll_loader_next(l, &b));
    ll_loader_close(l);
    int64_t n = d->fetcher ? ll_fetcher_reads(d->fetcher) : 0;
    ll_dataset_close(d);
    return n;
}

/* Of all pictures to train on, and of the pieces that windows lie in. */
static void test_once(void **state)
{
    (void)state;
    const int64_t files[] = {PICTURES - CLASSES, 3};
    for (int tokens = 0; tokens < 2; tokens++)
        for (int again = 0; again < 2; again++) {
            PLACE(cache, "once%d", tokens);
            together();
            int32_t n = (int32_t)read_all(tokens, cache);
            ok(ll_comm_allreduce(comm, &n, 1, LL_I32, LL_REDUCE_SUM, NULL));
            assert_int_equal(n, again ? 0 : files[tokens]);
            assert_int_equal(each_file(cache, no_leftover), files[tokens]);
        }
}

static void damage(const char *path, int i)
{
    struct stat st;
    char beside[256];
    assert_int_equal(stat(path, &st), 0);
    snprintf(beside, sizeof beside, "%s.new", path);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    const off_t where = i % 6 == 3 ? st.st_size - 20 : 50;
    uint8_t byte = 0;
    if (i % 6 == 0) assert_int_equal(ftruncate(fd, st.st_size / 2), 0);
    if (i % 6 == 1) assert_int_equal(ftruncate(fd, 0), 0);
    if (i % 6 == 2 || i % 6 == 3) {
        assert_int_equal(pread(fd, &byte, 1, where), 1);
        byte ^= 4;
        assert_int_equal(pwrite(fd, &byte, 1, where), 1);
    }
    close(fd);
    if (i % 6 == 4) assert_int_equal(rename(path, beside), 0); /* of one that died over it */
    if (i % 6 == 5) assert_int_equal(unlink(path), 0);
    if (i % 12 == 5) assert_int_equal(mkfifo(path, 0600), 0);
}

static void delete_cache(const char *cache)
{
    char gone[300]; /* at once: others write there */
    snprintf(gone, sizeof gone, "%s.gone", cache);
    assert_int_equal(rename(cache, gone), 0);
}

static void test_damaged(void **state)
{
    (void)state;
    for (int tokens = 0; tokens < 2; tokens++) {
        PLACE(mine, "damaged%d", 2 * rank + tokens);
        int64_t n = read_all(tokens, mine);
        assert_true(n == each_file(mine, damage));
        compare(tokens, mine);
        read_all(tokens, mine);
        assert_int_equal(each_file(mine, no_leftover), n);
        compare_as(tokens, mine, false, delete_cache);
    }
}

static void touch(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    st.st_mtim.tv_sec += 10;
    assert_int_equal(utimensat(AT_FDCWD, path, (struct timespec[]){st.st_mtim, st.st_mtim}, 0), 0);
}

/* As large as it was, and other bytes. */
static void test_changed(void **state)
{
    (void)state;
    PLACE(cache, "changed", 0);
    PLACE(changing, "changing", 0);
    for (int i = 0; i < 3; i++) {
        compare(i % 2, cache);
        together();
        if (rank == 0 && i == 0)
            for (int k = 0; k < PICTURES; k++) put_picture(k, k + 100);
        if (rank == 0 && i == 1) put_numbers(12345);
        if (rank == 0 && i == 1) touch(at("tokens.u16", 0));
        for (int k = 0; rank == 0 && i == 0 && k < PICTURES; k++) {
            char name[64];
            snprintf(name, sizeof name, "pictures/c%d/%%d.png", k % CLASSES);
            touch(at(name, k));
        }
        together();
        compare(i % 2, cache);
        together();
    }
    /* A mapped file that changes while it is open. */
    ll_dataset *d = open_set(true, changing);
    ll_data_batch b;
    ll_loader *l;
    together();
    if (rank == 0) touch(at("tokens.u16", 0));
    together();
    ok(ll_loader_open(d, &(ll_loader_opts){.batch = BATCH}, &l));
    fails(ll_loader_next(l, &b), "changed while");
    ll_loader_close(l);
    ll_dataset_close(d);
    together();
}

/* No room: nothing is kept, and nothing else changes. */
static void test_full(void **state)
{
    (void)state;
    struct rlimit was, none;
    for (int tokens = 0; tokens < 2; tokens++) {
        PLACE(cache, "full%d", tokens);
        assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
        none = was;
        none.rlim_cur = 64;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
        compare(tokens, cache);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
        together();
        assert_int_equal(each_file(cache, NULL), 0);
    }
}

static void test_refused(void **state)
{
    (void)state;
    ll_dataset *d;
    ll_data_opts o = {.name = "synthetic", .cache = at("refused", 0)};
    fails(ll_dataset_open(&o, &d), "does not have");
    o = (ll_data_opts){.format = "images", .path = at("pictures", 0), .fetch = 257};
    fails(ll_dataset_open(&o, &d), "256");
    o = (ll_data_opts){.format = "images", .path = at("pictures", 0), .cache = "/dev/null/x"};
    fails(ll_dataset_open(&o, &d), "data.cache");
    static const char *const within[] = {"pictures", "pictures/c0", "pictures/new/cache"};
    for (int i = 0; i < 3; i++) {
        PLACE(cache, within[i], 0);
        PLACE(data, "pictures", 0);
        o = (ll_data_opts){.format = "images", .path = data, .cache = cache};
        fails(ll_dataset_open(&o, &d), "lies inside the data");
    }
    assert_int_not_equal(access(at("pictures/new", 0), F_OK), 0);
}

int main(void)
{
    char command[64];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same),    cmocka_unit_test(test_once),
        cmocka_unit_test(test_damaged), cmocka_unit_test(test_changed),
        cmocka_unit_test(test_full),    cmocka_unit_test(test_refused)};
    signal(SIGXFSZ, SIG_IGN);
#if !__has_include(<png.h>)
    return 0; /* there are no pictures */
#endif
    if (ll_comm_open(&(ll_comm_opts){.timeout_s = 60, .table = ""}, &comm) != LL_OK) {
        fprintf(stderr, "%s\n", ll_error_text());
        return 1;
    }
    rank = ll_comm_rank(comm), size = ll_comm_size(comm);
    bool made = rank || mkdtemp(folder);
    ok(ll_comm_broadcast(comm, folder, sizeof folder, LL_U8, 0, NULL));
    if (rank == 0 && made) make_sources();
    together();
    int rc = made ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    together();
    if (rank == 0) rc |= system(command);
    ll_comm_close(comm);
    return rc;
}
