/* Text helpers, CRC-32C, and files that are written whole or not at all. */
#include "base/crc32c.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/text.h"
#include "tmpdir.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static void numbers_for_people(void **state)
{
    (void)state;
    char t[LL_NUMBER_TEXT];
    assert_string_equal(ll_text_count(0, t), "0");
    assert_string_equal(ll_text_count(938, t), "938");
    assert_string_equal(ll_text_count(0.5, t), "0.50");
    assert_string_equal(ll_text_count(999.7, t), "1.00k");
    assert_string_equal(ll_text_count(18800, t), "18.8k");
    assert_string_equal(ll_text_count(99960, t), "100k");
    assert_string_equal(ll_text_count(124439808, t), "124M");
    assert_string_equal(ll_text_count(-2500, t), "-2.50k");
    assert_string_equal(ll_text_count(NAN, t), "nan");
    assert_string_equal(ll_text_count(1e300, t), "1e+300");
    assert_string_equal(ll_text_bytes(0, t), "0 B");
    assert_string_equal(ll_text_bytes(1023, t), "1023 B");
    assert_string_equal(ll_text_bytes(1024, t), "1.00 KiB");
    assert_string_equal(ll_text_bytes(212.0 * 1048576, t), "212 MiB");
    assert_string_equal(ll_text_bytes(1004.0 * 1048576, t), "1004 MiB");
    assert_string_equal(ll_text_bytes(1.5 * 1073741824, t), "1.50 GiB");
    assert_string_equal(ll_text_bytes_up(210 * 1024 + 1, t), "211 KiB");
    assert_string_equal(ll_text_bytes_up(210 * 1024, t), "210 KiB");
    assert_string_equal(ll_text_bytes_up(1023.8 * 1024, t), "1.00 MiB");
    assert_string_equal(ll_text_bytes_down(211 * 1024 - 1, t), "210 KiB");
    assert_string_equal(ll_text_bytes_down(0, t), "0 B");
    for (double b = 1, read; b < 0x1p58; b = floor(b * 1.37) + 3) { /* as they are read back */
        assert_true(ll_text_to_bytes(ll_text_bytes_up(b, t), &read));
        assert_true(read >= b && read <= b * 1.011);
        assert_true(ll_text_to_bytes(ll_text_bytes_down(b, t), &read));
        assert_true(floor(read) <= b && read >= b * 0.989);
    }
    assert_string_equal(ll_text_time(3.41e-3, t), "3.41 ms");
    assert_string_equal(ll_text_time(0.9999, t), "1.00 s");
    assert_string_equal(ll_text_time(812e-6, t), "812 us");
    assert_string_equal(ll_text_time(61, t), "61.0 s");
    assert_string_equal(ll_text_time(0, t), "0.00 s");
    assert_string_equal(ll_text_duration(4.2, t), "4.2s");
    assert_string_equal(ll_text_duration(59.6, t), "1m 00s");
    assert_string_equal(ll_text_duration(133, t), "2m 13s");
    assert_string_equal(ll_text_duration(3725, t), "1h 02m");
    assert_string_equal(ll_text_duration(100000, t), "1d 03h");
    assert_string_equal(ll_text_duration(NAN, t), "?");
    assert_string_equal(ll_text_duration(-1, t), "?");
}

static void numbers_round_trip(void **state)
{
    (void)state;
    char t[LL_NUMBER_TEXT];
    assert_string_equal(ll_text_number(0.5, t), "0.5");
    assert_string_equal(ll_text_number(0.001, t), "0.001");
    assert_string_equal(ll_text_number((double)0.1f, t), "0.1");
    assert_string_equal(ll_text_number(3, t), "3");
    assert_string_equal(ll_text_number(NAN, t), "null");
    assert_string_equal(ll_text_number(-INFINITY, t), "null");
    const uint64_t seed = 7;
    for (uint64_t i = 0; i < 20000; i++) {
        uint32_t r[4];
        ll_philox(seed, 0, i, r);
        float f;
        double d;
        memcpy(&f, r, 4);
        memcpy(&d, r + 2, 8);
        if (isfinite(f)) assert_true(strtof(ll_text_number((double)f, t), NULL) == f);
        if (isfinite(d)) {
            double back = strtod(ll_text_number(d, t), NULL);
            assert_true((double)(float)d == d ? (float)back == (float)d : back == d);
        }
    }
}

static void buffers(void **state)
{
    (void)state;
    ll_arena *a = ll_arena_new();
    ll_buf b = {.arena = a};
    for (int i = 0; i < 1000; i++) ll_buf_printf(&b, "%03d,", i);
    assert_int_equal(b.len, 4000);
    assert_memory_equal(b.text + 4 * 997, "997,998,999,", 13);
    b.len = 0;
    ll_buf_json(&b, "a\"b\\c\n\xc3\xa9\xff|\xed\xa0\x80|\xf0\x9f\x9a\x86");
    assert_string_equal(b.text, "\"a\\\"b\\\\c\\u000a\xc3\xa9\\ufffd|\\ufffd\\ufffd\\ufffd|"
                                "\xf0\x9f\x9a\x86\"");
    assert_int_equal(ll_utf8_at(""), 0);
    assert_int_equal(ll_utf8_at("\xc3"), 0);
    assert_int_equal(ll_utf8_at("\xf4\x90\x80\x80"), 0);
    ll_arena_free(a);
}

static uint32_t crc_by_bits(const uint8_t *p, size_t n)
{
    uint32_t r = ~0u;
    for (size_t i = 0; i < n; i++) {
        r ^= p[i];
        for (int k = 0; k < 8; k++) r = r & 1 ? r >> 1 ^ 0x82f63b78u : r >> 1;
    }
    return ~r;
}

static void crc(void **state)
{
    (void)state;
    assert_int_equal(ll_crc32c(0, "123456789", 9), 0xe3069283u); /* the catalogue's check value */
    assert_int_equal(ll_crc32c(0, "", 0), 0);
    static uint8_t many[40000]; /* lanes side by side, against a few bytes at a time */
    for (int i = 0; i < 40000; i++) many[i] = (uint8_t)(i * 131 ^ i >> 5);
    for (size_t n = 12270; n < 40000; n += 1237) {
        uint32_t want = 0;
        for (size_t at = 0; at < n; at += 7)
            want = ll_crc32c(want, many + at, n - at < 7 ? n - at : 7);
        assert_int_equal(ll_crc32c(0, many, n), want);
    }
    uint8_t bytes[101];
    for (int i = 0; i < 101; i++) bytes[i] = (uint8_t)(i * 37 + 11);
    for (size_t n = 0; n <= 101; n++) {
        uint32_t want = crc_by_bits(bytes, n);
        assert_int_equal(ll_crc32c(0, bytes, n), want);
        for (size_t cut = 0; cut <= n; cut += 7)
            assert_int_equal(ll_crc32c(ll_crc32c(0, bytes, cut), bytes + cut, n - cut), want);
    }
}

static void whole_files(void **state)
{
    uint8_t bytes[5000], *back;
    size_t size;
    for (int i = 0; i < 5000; i++) bytes[i] = (uint8_t)(i * 7);
    const char *path = tmpdir_path(state, "f");
    for (size_t n = 0; n <= 5000; n += 1250) {
        assert_int_equal(ll_file_write(path, bytes, n), LL_OK);
        assert_int_equal(ll_file_read(path, 5000, &back, &size), LL_OK);
        assert_int_equal(size, n);
        assert_memory_equal(back, bytes, n);
        assert_int_equal(back[n], 0);
        free(back);
    }
    assert_int_equal(tmpdir_count(*state), 1);
    assert_int_equal(ll_file_read(path, 4999, &back, &size), LL_E_IO);
    assert_non_null(strstr(ll_error_text(), "more than 4999 bytes"));
    assert_int_equal(ll_file_read(*state, 10, &back, &size), LL_E_IO);
    assert_non_null(strstr(ll_error_text(), "is a folder"));
    assert_int_equal(ll_file_read(tmpdir_path(state, "none"), 10, &back, &size), LL_E_IO);
    assert_non_null(strstr(ll_error_text(), "none: No such file"));
    assert_null(back);
    assert_int_equal(ll_file_write(tmpdir_path(state, "no/f"), bytes, 1), LL_E_IO);
    assert_non_null(strstr(ll_error_text(), "no/f"));
    /* not a regular file: its size is not known before it is read */
    assert_int_equal(ll_file_read("/proc/self/status", 1 << 20, &back, &size), LL_OK);
    assert_true(size > 100);
    free(back);
}

/* Two writers of one file at once, whose processes may have the same number in other containers;
 * and a link in the way leads nowhere. */
static void writers_do_not_meet(void **state)
{
    ll_atomic *a, *b;
    uint8_t *back;
    size_t size;
    const char *path = tmpdir_path(state, "f");
    assert_int_equal(ll_atomic_open(path, &a), LL_OK);
    assert_int_equal(ll_atomic_open(path, &b), LL_OK);
    assert_int_equal(ll_atomic_add(a, "one", 3), LL_OK);
    assert_int_equal(ll_atomic_add(b, "three", 5), LL_OK);
    assert_int_equal(ll_atomic_commit(b), LL_OK);
    assert_int_equal(ll_atomic_commit(a), LL_OK);
    ll_atomic_close(a);
    ll_atomic_close(b);
    assert_int_equal(ll_file_read(path, 10, &back, &size), LL_OK);
    assert_true(size == 3 && !memcmp(back, "one", 3));
    free(back);
    assert_int_equal(tmpdir_count(*state), 1);
    char link[4096];
    snprintf(link, sizeof link, "%s%s7", path, LL_ATOMIC_MARK);
    assert_int_equal(symlink(path, link), 0);
    assert_int_equal(ll_atomic_join(path, 7, &a), LL_E_IO);
}

static void folders(void **state)
{
    const char *deep = tmpdir_path(state, "a/b//c/");
    assert_int_equal(ll_mkdirs(deep), LL_OK);
    assert_int_equal(ll_mkdirs(deep), LL_OK);
    assert_int_equal(tmpdir_count(tmpdir_path(state, "a/b/c")), 0);
    assert_int_equal(ll_file_write(tmpdir_path(state, "a/f"), "x", 1), LL_OK);
    assert_int_equal(ll_mkdirs(tmpdir_path(state, "a/f/g")), LL_E_IO);
    assert_non_null(strstr(ll_error_text(), "a/f is a file"));
    assert_int_equal(ll_mkdirs(""), LL_E_ARG);
}

static void full_disk_keeps_old_file(void **state)
{
    char big[10000];
    memset(big, 'b', sizeof big);
    const char *path = tmpdir_path(state, "f");
    assert_int_equal(ll_file_write(path, "old", 3), LL_OK);
    struct rlimit was, small;
    getrlimit(RLIMIT_FSIZE, &was);
    small = was;
    small.rlim_cur = 4096;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    ll_err rc = ll_file_write(path, big, sizeof big);
    setrlimit(RLIMIT_FSIZE, &was);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(rc, LL_E_IO);
    assert_non_null(strstr(ll_error_text(), "/f: writing 10000 bytes failed after 4096: File too"));
    assert_int_equal(tmpdir_count(*state), 1);
    uint8_t *back;
    size_t size;
    assert_int_equal(ll_file_read(path, 100, &back, &size), LL_OK);
    assert_string_equal((char *)back, "old");
    free(back);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_for_people),
        cmocka_unit_test(numbers_round_trip),
        cmocka_unit_test(buffers),
        cmocka_unit_test(crc),
        cmocka_unit_test_setup_teardown(whole_files, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(writers_do_not_meet, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(folders, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(full_disk_keeps_old_file, tmpdir_setup, tmpdir_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
