/* Safetensors: what is written reads back, bytes are fixed, and no bad file is accepted. */
#include "weights/safetensors.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "tmpdir.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <cmocka.h>

/* One tensor of each type, odd sizes, one empty, one scalar. */
static double f64[3] = {1.5, -2.25, 1e300};
static float f32[7] = {1, 2, 3, 4, 5, 6, 7}, scalar[1] = {42};
static uint16_t bf16[5] = {1, 2, 3, 4, 5}, f16[1] = {0x3c00};
static int32_t i32[2] = {-1, 1 << 30};
static uint8_t u8[3] = {9, 8, 255};
static const ll_st_tensor all[] = {
    {"u8", LL_U8, {1, {3}}, u8},          {"w.f32", LL_F32, {2, {7, 1}}, f32},
    {"f16", LL_F16, {3, {1, 1, 1}}, f16}, {"a.i32", LL_I32, {1, {2}}, i32},
    {"empty", LL_F32, {2, {0, 5}}, NULL}, {"bf16", LL_BF16, {1, {5}}, bf16},
    {"scalar", LL_F32, {0}, scalar},      {"f64", LL_F64, {1, {3}}, f64},
    {"na\"me\n\xc3\xa9", LL_U8, {0}, u8},
};
enum { N_ALL = sizeof all / sizeof *all };
static const ll_st_pair meta[] = {{"step", "1200"}, {"seed", "7"}, {"note", "a \"b\"\n"}};

static size_t bytes_of(const ll_st_tensor *t)
{
    return (size_t)ll_numel(&t->shape) * ll_dtype_bytes(t->dtype);
}

static ll_err write_st(const char *path, const ll_st_tensor *tensors, int n,
                       const ll_st_pair *pairs, int n_pair)
{
    return ll_st_write(
        path, &(ll_st_content){.tensors = tensors, .n = n, .meta = pairs, .n_meta = n_pair});
}

static ll_err read_st(const ll_st_file *f, const char *name, ll_shape shape, void *data)
{
    return ll_st_read_part(f, name, &(ll_st_part){.shape = shape}, data);
}

static void round_trip(void **state)
{
    const char *path = tmpdir_path(state, "m.safetensors");
    assert_int_equal(write_st(path, all, N_ALL, meta, 3), LL_OK);
    assert_int_equal(tmpdir_count(*state), 1);
    ll_st_file *f;
    assert_int_equal(ll_st_open(path, &f), LL_OK);
    assert_int_equal(ll_st_check(NULL, f), LL_OK);
    assert_int_equal(f->n_entries, N_ALL);
    for (int i = 0; i < N_ALL; i++) {
        uint8_t back[64];
        memset(back, 0x7f, sizeof back);
        ll_dtype dtype;
        ll_shape shape;
        assert_int_equal(ll_st_want(f, all[i].name, &dtype, &shape), LL_OK);
        assert_int_equal(dtype, all[i].dtype);
        assert_true(ll_shape_equal(&shape, &all[i].shape));
        assert_int_equal(read_st(f, all[i].name, shape, back), LL_OK);
        if (all[i].data) assert_memory_equal(back, all[i].data, bytes_of(&all[i]));
        assert_int_equal(back[bytes_of(&all[i])], 0x7f);
        assert_int_equal(ll_st_find(f, all[i].name)->begin % ll_dtype_bytes(dtype), 0);
        if (i) assert_true(strcmp(f->entries[i - 1].name, f->entries[i].name) < 0);
    }
    for (int i = 0; i < 3; i++) assert_string_equal(ll_st_meta(f, meta[i].key), meta[i].value);
    assert_null(ll_st_meta(f, "none"));
    assert_null(ll_st_find(f, "none"));
    uint8_t one;
    assert_int_equal(read_st(f, "u8", LL_SHAPE(4), &one), LL_E_SHAPE);
    assert_non_null(strstr(ll_error_text(), "tensor u8 has 3 bytes, and no part up to 4"));
    assert_int_equal(read_st(f, "none", LL_SHAPE(1), &one), LL_E_IO);
    ll_st_close(f);
    ll_st_close(NULL);
}

static void bytes_do_not_depend_on_order(void **state)
{
    const char *p = tmpdir_path(state, "p"), *q = tmpdir_path(state, "q");
    ll_st_tensor turned[N_ALL];
    for (int i = 0; i < N_ALL; i++) turned[i] = all[(i * 4 + 3) % N_ALL];
    const ll_st_pair turned_meta[] = {meta[2], meta[0], meta[1]};
    assert_int_equal(write_st(p, all, N_ALL, meta, 3), LL_OK);
    assert_int_equal(write_st(q, turned, N_ALL, turned_meta, 3), LL_OK);
    uint8_t *a, *b;
    size_t n, m;
    assert_int_equal(ll_file_read(p, 1 << 20, &a, &n), LL_OK);
    assert_int_equal(ll_file_read(q, 1 << 20, &b, &m), LL_OK);
    assert_int_equal(n, m);
    assert_memory_equal(a, b, n);
    free(a);
    free(b);
    const ll_st_tensor two[] = {{"b", LL_U8, {1, {3}}, u8}, {"a", LL_I32, {1, {2}}, i32}};
    assert_int_equal(write_st(p, two, 2, NULL, 0), LL_OK);
    assert_int_equal(ll_file_read(p, 1 << 20, &a, &n), LL_OK);
    uint32_t crc = ll_crc32c(ll_crc32c(0, i32, 8), u8, 3);
    char want[256];
    snprintf(want, sizeof want,
             "{\"__metadata__\":{\"crc32c\":\"%08x\",\"crc32c.tensors\":\"%08x %08x\"},"
             "\"a\":{\"dtype\":\"I32\",\"shape\":[2],\"data_offsets\":[0,8]},"
             "\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[8,11]}}",
             crc, ll_crc32c(0, i32, 8), ll_crc32c(0, u8, 3));
    size_t header = (strlen(want) + 7) / 8 * 8;
    assert_int_equal(n, 8 + header + 11);
    assert_int_equal(a[0] | a[1] << 8, header);
    assert_memory_equal(a + 8, want, strlen(want));
    for (size_t i = strlen(want); i < header; i++) assert_int_equal(a[8 + i], ' ');
    free(a);
}

static void nothing_at_all(void **state)
{
    const char *path = tmpdir_path(state, "e");
    assert_int_equal(write_st(path, NULL, 0, NULL, 0), LL_OK);
    ll_st_file *f;
    assert_int_equal(ll_st_open(path, &f), LL_OK);
    assert_int_equal(f->n_entries, 0);
    assert_null(ll_st_find(f, "x"));
    assert_int_equal(ll_st_check(NULL, f), LL_OK);
    ll_st_close(f);
}

static void bad_lists(void **state)
{
    const char *path = tmpdir_path(state, "b");
    const struct {
        ll_st_tensor t[2];
        int n;
        const char *want;
    } cases[] = {
        {{{"x", LL_U8, {1, {3}}, u8}, {"x", LL_F32, {1, {3}}, f32}}, 2, "two tensors are named x"},
        {{{"", LL_U8, {1, {3}}, u8}}, 1, "is not a valid tensor name"},
        {{{"__metadata__", LL_U8, {1, {3}}, u8}}, 1, "is not a valid tensor name"},
        {{{"a\xff", LL_U8, {1, {3}}, u8}}, 1, "not UTF-8"},
        {{{"x", LL_U8, {1, {-3}}, u8}}, 1, "dimension 0 is -3"},
        {{{"x", LL_U8, {1, {3}}, NULL}}, 1, "x has no data"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_not_equal(write_st(path, cases[i].t, cases[i].n, NULL, 0), LL_OK);
        assert_non_null(strstr(ll_error_text(), cases[i].want));
    }
    const ll_st_pair twice[] = {{"k", "1"}, {"k", "2"}}, ours[] = {{"crc32c", "1"}};
    assert_int_equal(write_st(path, all, 1, twice, 2), LL_E_ARG);
    assert_int_equal(write_st(path, all, 1, ours, 1), LL_E_ARG);
    assert_int_equal(tmpdir_count(*state), 0);
}

/* A file from its header's text and so many zero bytes. */
static ll_err parse(const char *header, size_t data_bytes, ll_st_file **f)
{
    uint64_t n = strlen(header);
    uint8_t *bytes = malloc(8 + n);
    memcpy(bytes, &n, 8);
    memcpy(bytes + 8, header, n);
    ll_err rc = ll_st_parse(bytes, 8 + n, 8 + n + data_bytes, "f.st", f);
    free(bytes);
    return rc;
}

#define T(type, shape, from, to)                                                                   \
    "{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":[" from "," to "]}"

static void bad_headers(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t data_bytes;
        const char *want;
    } cases[] = {
        {"", 0, "does not begin with {"},
        {" {}", 0, "does not begin with {"},
        {"[]", 0, "does not begin with {"},
        {"{", 0, "not valid JSON"},
        {"{}x", 0, "not valid JSON"},
        {"{\"a\":1e999}", 0, "not valid JSON"},
        {"{\"\xff\":1}", 0, "not valid JSON"},
        {"{\"a\\u0000b\":1}", 0, "not valid JSON"},
        {"{}", 1, "tensors fill 0 bytes, but the file has 1 of data"},
        {"{\"a\":1}", 0, "tensor \"a\": \"dtype\" is missing"},
        {"{\"a\":{}}", 0, "tensor \"a\": \"dtype\" is missing"},
        {"{\"a\":{\"dtype\":\"U8\"}}", 0, "\"shape\" is missing"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "\"data_offsets\" is missing"},
        {"{\"a\":" T("U8", "[1.0]", "0", "1") "}", 1, "dimension 0 is not a whole number"},
        {"{\"a\":" T("U8", "[1,-1]", "0", "1") "}", 1, "dimension 1 is not a whole number"},
        {"{\"a\":" T("U8", "[1]", "0", "1.0") "}", 1, "not two whole numbers"},
        {"{\"a\":" T("U8", "[1]", "0", "1,1") "}", 1, "not two whole numbers"},
        {"{\"a\":" T("U8", "[1]", "-1", "0") "}", 1, "bytes -1 to 0"},
        {"{\"a\":" T("U8", "[1]", "1", "0") "}", 1, "bytes 1 to 0"},
        {"{\"a\":" T("U8", "[2]", "0", "2") "}", 1, "bytes 0 to 2, but the file has 1"},
        {"{\"a\":" T("U8", "[1]", "0", "9223372036854775807") "}", 1, "but the file has 1"},
        {"{\"a\":" T("U8", "[1]", "0", "18446744073709551616") "}", 1, "not valid JSON"},
        {"{\"a\":" T("F32", "[2]", "0", "4") "}", 4, "2 elements of F32 do not fill its 4 bytes"},
        {"{\"a\":" T("F4", "[3]", "0", "1") "}", 1, "3 elements of F4 do not fill"},
        {"{\"a\":" T("U8", "[4294967296,4294967296]", "0", "0") "}", 0, "too many elements"},
        {"{\"a\":" T("F64", "[4611686018427387904]", "0", "0") "}", 0, "do not fill its 0 bytes"},
        {"{\"a\":" T("U8", "[1]", "0", "1") ",\"b\":" T("U8", "[2]", "0", "2") "}", 2, "overlap"},
        {"{\"a\":" T("U8", "[1]", "0", "1") ",\"b\":" T("U8", "[1]", "2", "3") "}", 3, "a hole"},
        {"{\"a\":" T("U8", "[1]", "1", "2") "}", 2, "a hole before it"},
        {"{\"a\":" T("U8", "[1]", "0", "1") "}", 2, "but the file has 2 of data"},
        {"{\"a\":" T("U8", "[1]", "0", "1") ",\"a\":" T("U8", "[1]", "1", "2") "}", 2, "duplicate"},
        {"{\"__metadata__\":1}", 0, "\"__metadata__\" is not an object"},
        {"{\"__metadata__\":{\"k\":1}}", 0, "metadata \"k\" is not text"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ll_st_file *f = (ll_st_file *)state;
        assert_int_equal(parse(cases[i].header, cases[i].data_bytes, &f), LL_E_IO);
        if (!strstr(ll_error_text(), cases[i].want))
            fail_msg("%s: want '%s' in '%s'", cases[i].header, cases[i].want, ll_error_text());
        assert_null(strchr(ll_error_text(), '\n'));
        assert_null(f);
    }
}

static void good_headers(void **state)
{
    (void)state;
    ll_st_file *f;
    ll_dtype dtype;
    ll_shape shape;
    /* out of order, padded, unknown keys, empty tensors between */
    assert_int_equal(parse("{\"b\":" T("U8", "[1]", "4", "5") ",\"a\":" T(
                               "F32", "[]", "0", "4") ",\"e\":" T("F32", "[0]", "4", "4") "}   \n ",
                           5, &f),
                     LL_OK);
    assert_int_equal(f->n_entries, 3);
    assert_int_equal(read_st(f, "a", LL_SCALAR, &shape), LL_E_ARG); /* there is no file */
    ll_st_close(f);
    /* types and ranks that we do not have: an error only for who asks */
    assert_int_equal(
        parse("{\"i\":" T("I64", "[1]", "0", "8") ",\"n\":" T("NEW", "[5]", "8", "9") ",\"r\":" T(
                  "U8", "[1,1,1,1,1,1,1]", "9", "10") ",\"ok\":" T("U8", "[1,1,1,1,1,1]", "10",
                                                                   "11") "}",
              11, &f),
        LL_OK);
    assert_int_equal(ll_st_want(f, "i", &dtype, &shape), LL_E_IO);
    assert_non_null(strstr(ll_error_text(), "f.st: tensor i is of type \"I64\", expected"));
    assert_int_equal(ll_st_want(f, "n", &dtype, &shape), LL_E_IO);
    assert_int_equal(ll_st_want(f, "r", &dtype, &shape), LL_E_IO);
    assert_non_null(strstr(ll_error_text(), "7 dimensions, expected at most 6"));
    assert_int_equal(ll_st_want(f, "ok", &dtype, &shape), LL_OK);
    assert_int_equal(ll_st_want(f, "none", &dtype, &shape), LL_E_IO);
    ll_st_close(f);
}

static void bad_lengths(void **state)
{
    (void)state;
    ll_st_file *f;
    uint8_t bytes[16] = {0};
    for (size_t n = 0; n < 8; n++) assert_int_equal(ll_st_parse(bytes, n, n, "f.st", &f), LL_E_IO);
    for (int shift = 0; shift < 64; shift++) {
        uint64_t length = (uint64_t)1 << shift;
        memcpy(bytes, &length, 8);
        assert_int_not_equal(ll_st_parse(bytes, 16, 16, "f.st", &f), LL_OK);
        if (shift >= 27) /* within the file, but past the format's limit */
            assert_int_equal(ll_st_parse(bytes, 16, UINT64_MAX, "f.st", &f), LL_E_IO);
    }
    enum { DEPTH = 100000 };
    char *deep = malloc(DEPTH + 8);
    memcpy(deep, "{\"a\":", 5);
    memset(deep + 5, '[', DEPTH);
    deep[5 + DEPTH] = '\0';
    assert_int_equal(parse(deep, 0, &f), LL_E_IO);
    assert_non_null(strstr(ll_error_text(), "depth"));
    free(deep);
}

static void every_cut_is_noticed(void **state)
{
    const char *path = tmpdir_path(state, "m"), *cut = tmpdir_path(state, "cut");
    assert_int_equal(write_st(path, all, N_ALL, meta, 3), LL_OK);
    uint8_t *bytes;
    size_t n;
    assert_int_equal(ll_file_read(path, 1 << 20, &bytes, &n), LL_OK);
    ll_st_file *f;
    for (size_t i = 0; i < n; i++) {
        if (i % 64 == 0) { /* and from the disk, now and then */
            assert_int_equal(ll_file_write(cut, bytes, i), LL_OK);
            assert_int_equal(ll_st_open(cut, &f), LL_E_IO);
        }
        assert_int_equal(ll_st_parse(bytes, i, i, "f.st", &f), LL_E_IO);
    }
    for (size_t i = n - 60; i < n; i++) { /* one wrong bit anywhere in the data */
        bytes[i] ^= 16;
        assert_int_equal(ll_file_write(cut, bytes, n), LL_OK);
        assert_int_equal(ll_st_open(cut, &f), LL_OK);
        assert_int_equal(ll_st_check(NULL, f), LL_E_IO);
        assert_non_null(strstr(ll_error_text(), "checksum is"));
        ll_st_close(f);
        bytes[i] ^= 16;
    }
    free(bytes);
    assert_int_equal(ll_st_open(*state, &f), LL_E_IO);
    assert_int_equal(ll_st_open(tmpdir_path(state, "none"), &f), LL_E_IO);
    /* cut after it was opened */
    assert_int_equal(ll_st_open(path, &f), LL_OK);
    assert_int_equal(truncate(path, (off_t)n - 1), 0);
    assert_int_equal(ll_st_check(NULL, f), LL_E_IO);
    assert_non_null(strstr(ll_error_text(), "too early"));
    ll_st_close(f);
}

static void full_disk(void **state)
{
    const char *path = tmpdir_path(state, "m.safetensors");
    assert_int_equal(write_st(path, all, N_ALL, meta, 3), LL_OK);
    enum { BIG = 100000 };
    uint8_t *big = calloc(1, BIG);
    const ll_st_tensor t = {"big", LL_U8, {1, {BIG}}, big};
    struct rlimit was, small;
    getrlimit(RLIMIT_FSIZE, &was);
    small = was;
    signal(SIGXFSZ, SIG_IGN);
    for (rlim_t limit = 0; limit < BIG; limit = limit * 7 + 5) {
        small.rlim_cur = limit;
        setrlimit(RLIMIT_FSIZE, &small);
        ll_err rc = write_st(path, &t, 1, NULL, 0);
        setrlimit(RLIMIT_FSIZE, &was);
        assert_int_equal(rc, LL_E_IO);
        assert_non_null(strstr(ll_error_text(), "m.safetensors: writing"));
        assert_int_equal(tmpdir_count(*state), 1);
        ll_st_file *f;
        assert_int_equal(ll_st_open(path, &f), LL_OK);
        assert_int_equal(ll_st_check(NULL, f), LL_OK);
        assert_int_equal(f->n_entries, N_ALL);
        ll_st_close(f);
    }
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(write_st(path, &t, 1, NULL, 0), LL_OK);
    free(big);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, tmpdir_setup, tmpdir_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(round_trip),         IN_FOLDER(bytes_do_not_depend_on_order),
        IN_FOLDER(nothing_at_all),     IN_FOLDER(bad_lists),
        cmocka_unit_test(bad_headers), cmocka_unit_test(good_headers),
        cmocka_unit_test(bad_lengths), IN_FOLDER(every_cut_is_noticed),
        IN_FOLDER(full_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
