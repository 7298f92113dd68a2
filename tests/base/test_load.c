/* Libraries opened by name: their calls work; what is missing is named, with what to install. */
#include "base/load.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

typedef unsigned long crc_call(unsigned long crc, const unsigned char *data, unsigned n);

static void says(const char *word)
{
    if (!strstr(ll_error_text(), word)) fail_msg("no '%s' in '%s'", word, ll_error_text());
}

static void calls_work(void **)
{
    crc_call *calls[2] = {NULL, NULL}, *first;
    const ll_library l = {"libz.so.1", "zlib 1", (void **)calls, {"adler32", "crc32"}};
    if (ll_load_library(&l) != LL_OK) fail_msg("%s", ll_error_text());
    assert_int_equal(calls[0](1, (const unsigned char *)"abc", 3), 0x024d0127);
    assert_int_equal(calls[1](0, (const unsigned char *)"abc", 3), 0x352441c2);
    first = calls[0];
    calls[1] = NULL; /* what is loaded is not looked up again */
    assert_int_equal(ll_load_library(&l), LL_OK);
    assert_true(calls[0] == first && !calls[1]);
}

static void no_library(void **)
{
    void *call = NULL;
    const ll_library l = {"libz.so.77", "zlib 77", &call, {"crc32"}};
    assert_int_equal(ll_load_library(&l), LL_E_DEVICE);
    says("libz.so.77");
    says("install zlib 77");
    assert_null(call);
}

static void no_call(void **)
{
    void *calls[2] = {NULL, NULL};
    const ll_library l = {"libz.so.1", "zlib 1", calls, {"crc32", "crc99"}};
    for (int i = 0; i < 2; i++) { /* it is not taken for loaded afterwards */
        assert_int_equal(ll_load_library(&l), LL_E_DEVICE);
        says("crc99");
        says("libz.so.1");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_work),
        cmocka_unit_test(no_library),
        cmocka_unit_test(no_call),
    };
    return cmocka_run_group_tests_name("load", tests, NULL, NULL);
}
