/* TensorBoard event files, read back by a decoder of our own: framing, sums, fields. */
#include "train/events.h"
#include "base/file.h"
#include "tmpdir.h"

#include <math.h>
#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <time.h>
#include <cmocka.h>

/* Bit by bit, so that it shares nothing with the library's. */
static uint32_t masked(const uint8_t *p, size_t n)
{
    uint32_t r = ~0u;
    for (size_t i = 0; i < n; i++) {
        r ^= p[i];
        for (int k = 0; k < 8; k++) r = r & 1 ? r >> 1 ^ 0x82f63b78u : r >> 1;
    }
    r = ~r;
    return (r >> 15 | r << 17) + 0xa282ead8u;
}

typedef struct event {
    double wall_time;
    int64_t step;
    char version[32], tag[300];
    int status;
    float value;
} event;

static uint64_t varint(const uint8_t **p, const uint8_t *end)
{
    uint64_t v = 0;
    for (int shift = 0;; shift += 7) {
        assert_true(*p < end && shift < 64);
        uint8_t b = *(*p)++;
        v |= (uint64_t)(b & 127) << shift;
        if (!(b & 128)) return v;
    }
}

/* Reads the fields of one message; within a summary (depth 1) and its value (depth 2) likewise. */
static void decode(const uint8_t *p, const uint8_t *end, int depth, event *e)
{
    while (p < end) {
        uint64_t key = varint(&p, end);
        int id = depth * 1000 + (int)key;
        if ((key & 7) == 0) {
            uint64_t v = varint(&p, end);
            if (id == 2 << 3)
                e->step = (int64_t)v;
            else if (id == 3000 + (1 << 3))
                e->status = (int)v;
            else
                fail_msg("number in field %d", id);
            continue;
        }
        size_t n = (key & 7) == 1 ? 8 : (key & 7) == 5 ? 4 : (size_t)varint(&p, end);
        assert_true(n <= (size_t)(end - p));
        switch (id) {
        case 1 << 3 | 1: memcpy(&e->wall_time, p, 8); break;
        case 3 << 3 | 2: memcpy(e->version, p, n); break;
        case 5 << 3 | 2: decode(p, p + n, 1, e); break;
        case 7 << 3 | 2: decode(p, p + n, 3, e); break;
        case 1000 + (1 << 3 | 2): decode(p, p + n, 2, e); break;
        case 2000 + (1 << 3 | 2): memcpy(e->tag, p, n); break;
        case 2000 + (2 << 3 | 5): memcpy(&e->value, p, 4); break;
        default: fail_msg("unknown field %d", id);
        }
        p += n;
    }
    assert_ptr_equal(p, end);
}

static int read_events(const char *path, event *events, int max)
{
    uint8_t *bytes;
    size_t size, at = 0;
    int n = 0;
    assert_int_equal(ll_file_read(path, 1 << 24, &bytes, &size), LL_OK);
    for (; at < size; n++) {
        uint64_t length;
        uint32_t sum;
        assert_true(size - at >= 12 && n < max);
        memcpy(&length, bytes + at, 8);
        memcpy(&sum, bytes + at + 8, 4);
        assert_int_equal(sum, masked(bytes + at, 8));
        assert_true(length <= size - at - 16);
        memcpy(&sum, bytes + at + 12 + length, 4);
        assert_int_equal(sum, masked(bytes + at + 12, length));
        memset(&events[n], 0, sizeof events[n]);
        decode(bytes + at + 12, bytes + at + 12 + length, 0, &events[n]);
        at += 16 + length;
    }
    free(bytes);
    return n;
}

/* The events of the file in a folder that has most of them; -1: not so many files are there. */
static int events_in(const char *folder, size_t files, event *events, int most)
{
    char pattern[512];
    glob_t all;
    int n = -1;
    snprintf(pattern, sizeof pattern, "%s/events.out.tfevents.*", folder);
    assert_int_equal(glob(pattern, 0, NULL, &all), 0);
    for (size_t i = 0; i < all.gl_pathc && all.gl_pathc == files; i++) {
        int k = read_events(all.gl_pathv[i], events, most);
        if (k < n) read_events(all.gl_pathv[i - 1], events, most);
        n = k > n ? k : n;
    }
    globfree(&all);
    return n;
}

static void scalars(void **state)
{
    ll_events *e;
    assert_int_equal(ll_events_open(tmpdir_path(state, "run/events"), 1, &e), LL_OK);
    char long_tag[200];
    memset(long_tag, 't', 199);
    long_tag[199] = '\0';
    for (int64_t i = 1; i <= 40; i++)
        assert_int_equal(ll_events_scalar(e, i * i * i * i * i, "train/loss", 1.0 / (double)i),
                         LL_OK);
    assert_int_equal(ll_events_scalar(e, 7, long_tag, NAN), LL_OK);
    assert_int_equal(ll_events_flush(e), LL_OK);
    event events[64];
    assert_int_equal(events_in(tmpdir_path(state, "run/events"), 1, events, 64), 42);
    assert_string_equal(events[0].version, "brain.Event:2");
    for (int64_t i = 1; i <= 40; i++) {
        assert_int_equal(events[i].step, i * i * i * i * i);
        assert_string_equal(events[i].tag, "train/loss");
        assert_true(events[i].value == (float)(1.0 / (double)i));
        assert_true(fabs(events[i].wall_time - (double)time(NULL)) < 60);
        assert_true(events[i].wall_time >= events[i - 1].wall_time);
    }
    assert_string_equal(events[41].tag, long_tag);
    assert_true(isnan(events[41].value));
    ll_events_close(e);
    ll_events_close(NULL);
}

static void each_start_has_its_file(void **state)
{
    ll_events *a, *b;
    assert_int_equal(ll_events_open(*state, 1, &a), LL_OK);
    assert_int_equal(ll_events_open(*state, 301, &b), LL_OK);
    assert_int_equal(ll_events_scalar(b, 301, "x", 5), LL_OK);
    ll_events_close(a);
    ll_events_close(b); /* writes what is left */
    assert_int_equal(tmpdir_count(*state), 2);
    event events[4];
    assert_int_equal(events_in(*state, 2, events, 4), 3);
    assert_int_equal(events[1].status, 1);
    assert_int_equal(events[1].step, 301);
    assert_int_equal(events[2].step, 301);
    assert_int_equal(ll_file_write(tmpdir_path(state, "f"), "x", 1), LL_OK);
    assert_int_equal(ll_events_open(tmpdir_path(state, "f"), 1, &a), LL_E_IO);
    assert_null(a);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, tmpdir_setup, tmpdir_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {IN_FOLDER(scalars), IN_FOLDER(each_start_has_its_file)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
