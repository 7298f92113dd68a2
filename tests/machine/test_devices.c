/* How devices talk: what is chosen, what is refused, and what is said about it. */
#include "machine/devices.h"

#include "dev/gpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

static ll_device devices[4];

/* GPUs of four ranks, such as 0, 1, 0, 1. */
static ll_devices at(int a, int b, int c, int d)
{
    int gpu[] = {a, b, c, d};
    memset(devices, 0, sizeof devices);
    for (int i = 0; i < 4; i++) {
        devices[i].index = gpu[i];
        devices[i].id[15] = (unsigned char)gpu[i];
        strcpy(devices[i].name, "NVIDIA H200");
    }
    return (ll_devices){.of = devices, .n = 4};
}

static void chosen(ll_devices s, ll_device_ask ask, const char *library, ll_link_kind link,
                   const char *says)
{
    if (ll_devices_choose(&ask, library, &s) != LL_OK) fail_msg("%s", ll_error_text());
    assert_int_equal(s.link, link);
    if (!strstr(s.why, says)) fail_msg("\"%s\" does not say \"%s\"", s.why, says);
}

static void refused(ll_devices s, ll_device_ask ask, const char *library, const char *says)
{
    assert_int_not_equal(ll_devices_choose(&ask, library, &s), LL_OK);
    if (!strstr(ll_error_message(), says))
        fail_msg("\"%s\" does not say \"%s\"", ll_error_message(), says);
}

static void test_choice(void **state)
{
    (void)state;
    const char *lib = "NCCL 2.28.3";
    ll_devices own = at(0, 1, 2, 3);
    chosen(own, (ll_device_ask){0}, lib, LL_BY_NCCL,
           "NCCL 2.28.3: every rank has a GPU of its own");
    chosen(own, (ll_device_ask){.transport = "nccl"}, lib, LL_BY_NCCL, "NCCL");
    chosen(own, (ll_device_ask){.transport = "host"}, lib, LL_BY_HOST, "as asked for");
    chosen(own, (ll_device_ask){0}, NULL, LL_BY_HOST, "no NCCL");
    chosen(own, (ll_device_ask){.canonical = true}, lib, LL_BY_HOST, "canonical");
    chosen(own, (ll_device_ask){.codec = true}, lib, LL_BY_HOST, "compress");
    refused(own, (ll_device_ask){.transport = "nccl"}, NULL, "no NCCL");
    refused(own, (ll_device_ask){.transport = "nccl", .canonical = true}, lib, "use host");
    refused(own, (ll_device_ask){.transport = "nccl", .codec = true}, lib, "compress none");
    chosen(own, (ll_device_ask){.pipe = true}, lib, LL_BY_HOST, "where that is asked for");
    chosen(own, (ll_device_ask){.transport = "nccl", .pipe = true}, lib, LL_BY_NCCL, "NCCL");
    refused(own, (ll_device_ask){.transport = "mpl"}, lib, "auto, nccl, mpi or host");
    refused(own, (ll_device_ask){.transport = "mpi"}, lib, "takes GPUs' memory");
    refused(own, (ll_device_ask){.transport = "mpi", .mpi = true, .codec = true}, lib,
            "compress none");
    refused(own, (ll_device_ask){.transport = "mpi", .mpi = true, .loose = true}, lib, "part");
    chosen(own, (ll_device_ask){.transport = "mpi", .mpi = true, .canonical = true}, lib, LL_BY_MPI,
           ", from GPU to GPU: as asked for");
    chosen(own, (ll_device_ask){.mpi = true, .pipe = true}, NULL, LL_BY_HOST, "no NCCL");
    ll_devices shared = at(0, 1, 2, 1);
    chosen(shared, (ll_device_ask){.transport = "auto"}, lib, LL_BY_HOST,
           "ranks 1 and 3 share a GPU");
    refused(shared, (ll_device_ask){.transport = "nccl"}, lib, "ranks 1 and 3 share NVIDIA H200");
    chosen(shared, (ll_device_ask){0}, LL_STAND_IN, LL_BY_HOST, "ranks 1 and 3 share a GPU");
    chosen(shared, (ll_device_ask){.transport = "nccl"}, LL_STAND_IN, LL_BY_NCCL, "stand-in");
}

static void test_peaks(void **state)
{
    (void)state;
    assert_true(ll_gpu_peak("NVIDIA H200", LL_PRECISION_bf16) == 989e12);
    assert_true(ll_gpu_peak("NVIDIA H100 80GB HBM3", LL_PRECISION_fp8) == 1979e12);
    assert_true(ll_gpu_peak("NVIDIA H100 PCIe", LL_PRECISION_bf16) == 756e12);
    assert_true(ll_gpu_peak("NVIDIA H200", LL_PRECISION_f32) == 67e12);
    assert_true(ll_gpu_peak("NVIDIA A100-SXM4-80GB", LL_PRECISION_fp8) == 0);
    assert_true(ll_gpu_peak("NVIDIA L40", LL_PRECISION_bf16) == 181e12 &&
                !ll_gpu_peak("NVIDIA RTX A4000", LL_PRECISION_f32));
    assert_true(ll_gpu_peak("NVIDIA GH200 480GB", LL_PRECISION_bf16) == 989e12);
    assert_true(ll_gpu_peak("Voodoo 2", LL_PRECISION_bf16) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_peaks),
    };
    return cmocka_run_group_tests_name("devices", tests, NULL, NULL);
}
