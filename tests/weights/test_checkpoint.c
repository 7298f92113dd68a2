/* Checkpoints of a run folder: names, keep-N, damage, full disks, and models that do not fit. */
#include "weights/save.h"
#include "base/file.h"
#include "base/now.h"
#include "tmpdir.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <cmocka.h>

enum { ROWS = 7, COLS = 3 };
static float weight[ROWS * COLS], moment[ROWS];
static int32_t counter[1];
static const ll_st_tensor model[] = {
    {"fc.weight", LL_F32, {2, {ROWS, COLS}}, weight},
    {"fc.moment", LL_F32, {1, {ROWS}}, moment},
    {"count", LL_I32, {0}, counter},
};
static const ll_st_pair meta[] = {{"seed", "18446744073709551615"}, {"epoch", "-3"}};

static void fill(int64_t step)
{
    for (int i = 0; i < ROWS * COLS; i++) weight[i] = (float)(step * 100 + i);
    for (int i = 0; i < ROWS; i++) moment[i] = (float)(step + i) / 8;
    counter[0] = (int32_t)step;
}

static ll_err save(const char *run, int64_t step, int keep)
{
    fill(step);
    const ll_checkpoint c = {.step = step,
                             .x = {.tensors = model, .n = 3, .meta = meta, .n_meta = 2}};
    return save_all(run, &c, keep);
}

static bool exists(const char *run, int64_t step)
{
    char path[512];
    snprintf(path, sizeof path, "%s/checkpoints/step-%08lld.safetensors", run, (long long)step);
    return access(path, R_OK) == 0;
}

/* Loads the latest over poisoned tensors and returns its step; -1: none; -2: error. */
static int64_t load_latest(const char *run)
{
    memset(weight, 0x7f, sizeof weight);
    memset(moment, 0x7f, sizeof moment);
    ll_st_file *f;
    if (ll_checkpoint_open_latest(NULL, run, &f) != LL_OK) return -2;
    if (!f) return -1;
    int64_t step, epoch, seed;
    assert_int_equal(ll_checkpoint_load(f, model, NULL, 3, true), LL_OK);
    assert_int_equal(ll_checkpoint_int(f, "step", &step), LL_OK);
    assert_int_equal(ll_checkpoint_int(f, "epoch", &epoch), LL_OK);
    assert_int_equal(epoch, -3);
    assert_int_equal(ll_checkpoint_int(f, "seed", &seed), LL_E_IO); /* too large for 64 bits */
    assert_int_equal(ll_checkpoint_int(f, "none", &seed), LL_E_IO);
    assert_non_null(strstr(ll_error_text(), "metadata has no none"));
    ll_st_close(f);
    float w[ROWS * COLS], m[ROWS];
    memcpy(w, weight, sizeof w);
    memcpy(m, moment, sizeof m);
    fill(step);
    assert_memory_equal(w, weight, sizeof w);
    assert_memory_equal(m, moment, sizeof m);
    return step;
}

static void keeps_the_newest(void **state)
{
    const char *run = tmpdir_path(state, "runs/a");
    assert_int_equal(load_latest(run), -1);
    for (int64_t step = 1; step <= 5; step++) {
        assert_int_equal(save(run, step * 100, 2), LL_OK);
        assert_int_equal(load_latest(run), step * 100);
    }
    const char *folder = tmpdir_path(state, "runs/a/checkpoints");
    assert_int_equal(tmpdir_count(folder), 2);
    assert_true(exists(run, 400) && exists(run, 500));
    assert_int_equal(save(run, 123456789012, 0), LL_OK); /* past eight digits */
    assert_int_equal(tmpdir_count(folder), 3);
    assert_int_equal(load_latest(run), 123456789012);
    assert_int_equal(save(run, -1, 0), LL_E_ARG);
    /* back to step 400: the later ones belong to a past that did not happen */
    ll_arena *a = ll_arena_new();
    const char *what;
    assert_int_equal(ll_checkpoint_set_aside(run, 400, a, &what), LL_OK);
    assert_string_equal(what, "2 checkpoints (steps 500 to 123456789012)");
    assert_int_equal(load_latest(run), 400);
    const char *aside = tmpdir_path(state, "runs/a/checkpoints/replaced");
    assert_int_equal(tmpdir_count(aside), 2);
    /* they stay until something new is there */
    assert_int_equal(save(run, 450, 2), LL_OK);
    assert_int_equal(tmpdir_count(aside), 2);
    fill(460);
    const ll_checkpoint first = {.step = 460, .x = {.tensors = model, .n = 3}, .is_first = true};
    assert_int_equal(save_all(run, &first, 2), LL_OK);
    assert_true(access(aside, F_OK) != 0);
    assert_int_equal(ll_checkpoint_set_aside(tmpdir_path(state, "none"), 1, a, &what), LL_OK);
    assert_null(what);
    ll_arena_free(a);
}

static void later_ones_are_not_pruned(void **state)
{
    const char *run = *state;
    for (int64_t step = 1; step <= 4; step++) assert_int_equal(save(run, step, 0), LL_OK);
    assert_int_equal(save(run, 2, 1), LL_OK);
    assert_true(!exists(run, 1) && exists(run, 2) && exists(run, 3) && exists(run, 4));
}

static void other_files_are_left_alone(void **state)
{
    const char *run = *state;
    assert_int_equal(save(run, 10, 0), LL_OK);
    static const char *const names[] = {"step-99.safetensors.bak",
                                        "step-.safetensors",
                                        "step-x.safetensors",
                                        "step-99.txt",
                                        "notes.txt",
                                        "step-00000098.safetensors~",
                                        "step--5.safetensors",
                                        "step- 5.safetensors"};
    char path[512];
    for (int i = 0; i < 8; i++) {
        snprintf(path, sizeof path, "%s/checkpoints/%s", run, names[i]);
        assert_int_equal(ll_file_write(path, "x", 1), LL_OK);
    }
    /* what a process that was killed while saving leaves */
    const char *left = tmpdir_path(state, "checkpoints/step-00000099.safetensors.tmp-123");
    assert_int_equal(ll_file_write(left, "half", 4), LL_OK);
    assert_int_equal(load_latest(run), 10);
    assert_int_equal(save(run, 20, 1), LL_OK);
    assert_int_equal(load_latest(run), 20);
    assert_int_equal(tmpdir_count(tmpdir_path(state, "checkpoints")), 9);
    assert_int_not_equal(access(left, F_OK), 0);
}

static void damage_is_named(void **state)
{
    const char *run = *state;
    assert_int_equal(save(run, 1, 0), LL_OK);
    assert_int_equal(save(run, 2, 0), LL_OK);
    const char *newest = tmpdir_path(state, "checkpoints/step-00000002.safetensors");
    uint8_t *bytes;
    size_t n;
    assert_int_equal(ll_file_read(newest, 1 << 20, &bytes, &n), LL_OK);
    bytes[n - 1] ^= 1;
    assert_int_equal(ll_file_write(newest, bytes, n), LL_OK);
    assert_int_equal(load_latest(run), -2);
    const char *text = ll_error_text();
    assert_non_null(strstr(text, "step-00000002.safetensors is damaged (tensor "));
    assert_non_null(strstr(text, "; the previous one, for train --resume --from"));
    char before[600];
    snprintf(before, sizeof before, "%s/checkpoints/step-00000001.safetensors", run);
    assert_non_null(strstr(text, before));
    assert_int_equal(ll_file_write(newest, bytes, n / 2), LL_OK); /* cut short */
    assert_int_equal(load_latest(run), -2);
    assert_int_equal(ll_file_write(newest, "", 0), LL_OK); /* empty, as after a power cut */
    assert_int_equal(load_latest(run), -2);
    free(bytes);
    assert_int_equal(unlink(before), 0);
    assert_int_equal(load_latest(run), -2);
    assert_non_null(strstr(ll_error_text(), "the run's only checkpoint"));
    ll_st_file *f;
    assert_int_equal(ll_checkpoint_open(NULL, tmpdir_path(state, "none"), &f), LL_E_IO);
    assert_non_null(strstr(ll_error_text(), "none: No such file"));
}

static void wrong_models(void **state)
{
    const char *run = *state;
    assert_int_equal(save(run, 1, 0), LL_OK);
    ll_st_file *f;
    assert_int_equal(ll_checkpoint_open_latest(NULL, run, &f), LL_OK);
    float other[ROWS * COLS];
    memset(other, 0x7f, sizeof other);
    const struct {
        ll_st_tensor t;
        const char *want;
    } cases[] = {
        {{"fc.weight", LL_F32, {2, {COLS, ROWS}}, other},
         "step-00000001.safetensors: tensor fc.weight is f32[7,3], but f32[3,7] in the model"},
        {{"fc.weight", LL_F32, {1, {ROWS * COLS}}, other}, "f32[7,3], but f32[21] in the model"},
        {{"fc.weight", LL_BF16, {2, {ROWS, COLS}}, other}, "f32[7,3], but bf16[7,3] in"},
        {{"fc.wieght", LL_F32, {2, {ROWS, COLS}}, other},
         "has no tensor fc.wieght, which the model needs; did you mean fc.weight?"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const ll_st_tensor both[] = {{"fc.moment", LL_F32, {1, {ROWS}}, other}, cases[i].t};
        assert_int_not_equal(ll_checkpoint_load(f, both, NULL, 2, false), LL_OK);
        if (!strstr(ll_error_text(), cases[i].want))
            fail_msg("want '%s' in '%s'", cases[i].want, ll_error_text());
        for (size_t b = 0; b < sizeof other; b++) /* the first tensor fits, yet nothing is read */
            assert_int_equal(((uint8_t *)other)[b], 0x7f);
    }
    assert_int_equal(ll_checkpoint_load(f, model, NULL, 1, true), LL_E_SHAPE);
    assert_non_null(
        strstr(ll_error_text(), "has 2 tensors that the model does not have: count, fc.mom"));
    assert_int_equal(ll_checkpoint_load(f, model, NULL, 1, false), LL_OK);
    assert_int_equal(ll_checkpoint_load(f, NULL, NULL, 0, true), LL_E_SHAPE);
    assert_int_equal(ll_checkpoint_load(f, NULL, NULL, 0, false), LL_OK);
    ll_st_close(f);
}

static void full_disk(void **state)
{
    const char *run = *state;
    assert_int_equal(save(run, 1, 1), LL_OK);
    struct rlimit was, small;
    getrlimit(RLIMIT_FSIZE, &was);
    small = was;
    small.rlim_cur = 300;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    ll_err rc = save(run, 2, 1), again = save(run, 1, 1); /* also over a file of the same name */
    setrlimit(RLIMIT_FSIZE, &was);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(rc, LL_E_IO);
    assert_int_equal(again, LL_E_IO);
    assert_non_null(strstr(ll_error_text(), "step-00000001.safetensors: writing "));
    assert_int_equal(tmpdir_count(tmpdir_path(state, "checkpoints")), 1);
    assert_int_equal(load_latest(run), 1);
}

/* Whichever bit of the file turns over, what it says is refused or is still the truth. */
static void every_bit_counts(void **state)
{
    const char *path = tmpdir_path(state, "checkpoints/step-00000012.safetensors");
    uint8_t *bytes;
    size_t n;
    int seen = 0;
    assert_int_equal(save(*state, 12, 0), LL_OK);
    assert_int_equal(ll_file_read(path, 1 << 20, &bytes, &n), LL_OK);
    int fd = open(path, O_WRONLY);
    for (size_t i = 0; i < 8 * n; i++) {
        uint8_t wrong = bytes[i / 8] ^ (uint8_t)(1 << i % 8);
        assert_int_equal(pwrite(fd, &wrong, 1, (off_t)(i / 8)), 1);
        if (i >= 8) assert_int_equal(pwrite(fd, &bytes[i / 8 - 1], 1, (off_t)(i / 8 - 1)), 1);
        ll_st_file *f;
        int64_t step = -1;
        memset(weight, 0x7f, sizeof weight);
        memset(moment, 0x7f, sizeof moment);
        if (ll_checkpoint_open(NULL, path, &f) != LL_OK) {
            seen++;
            continue;
        }
        ll_err rc = ll_checkpoint_load(f, model, NULL, 3, true);
        if (rc == LL_OK) rc = ll_checkpoint_int(f, "step", &step);
        ll_st_close(f);
        seen += rc != LL_OK;
        if (rc == LL_OK)
            assert_true(step == 12 && counter[0] == 12 && weight[20] == 1220 && moment[6] == 2.25f);
    }
    assert_true(seen > (int)(7 * n)); /* spaces and words of the metadata may change */
    close(fd);
    free(bytes);
}

static void save_for_ever(const char *run, int64_t step, int begun)
{
    if (write(begun, "x", 1) != 1) _exit(1);
    while (save(run, step++, 2) == LL_OK) continue;
    _exit(1);
}

/* A process that saves without end is killed at any moment: what is there is whole, and no older
 * than what was there before. KILLS=1000 tries longer. */
static void killed_while_saving(void **state)
{
    const char *run = *state, *given = getenv("KILLS");
    int64_t before = 0;
    int begun[2];
    char byte;
    double began = ll_now();
    assert_int_equal(save(run, 0, 2), LL_OK);
    double span = 1e6 * 4 * (ll_now() - began); /* of a few saves, in microseconds */
    assert_int_equal(pipe(begun), 0);
    srand(7);
    for (int i = 0, kills = given ? atoi(given) : 50; i < kills; i++) {
        pid_t child = fork();
        if (child == 0) save_for_ever(run, before + 1, begun[1]);
        assert_int_equal(read(begun[0], &byte, 1), 1);
        usleep((useconds_t)(span * rand() / RAND_MAX));
        kill(child, SIGKILL);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status)); /* it never failed */
        ll_st_file *f = NULL;
        assert_int_equal(ll_checkpoint_open_latest(NULL, run, &f), LL_OK);
        int64_t step = -1;
        if (f) {
            assert_int_equal(ll_checkpoint_load(f, model, NULL, 3, true), LL_OK);
            assert_int_equal(ll_checkpoint_int(f, "step", &step), LL_OK);
            assert_int_equal(counter[0], step);
        }
        ll_st_close(f);
        assert_true(step >= before);
        before = step;
    }
    assert_true(before > 0);
    close(begun[0]);
    close(begun[1]);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, tmpdir_setup, tmpdir_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(keeps_the_newest),
        IN_FOLDER(later_ones_are_not_pruned),
        IN_FOLDER(other_files_are_left_alone),
        IN_FOLDER(damage_is_named),
        IN_FOLDER(every_bit_counts),
        IN_FOLDER(killed_while_saving),
        IN_FOLDER(wrong_models),
        IN_FOLDER(full_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
