/* peaks.c: what makers state of their GPUs, for products without sparsity. */
#include "dev/gpu.h"

#include <ctype.h>
#include <string.h>

double ll_gpu_peak(const char *name, ll_precision p)
{
    /* By whole words of the name that CUDA gives, the first that fits; the SXM module where a kind
     * has several forms and its name says so. 0: the GPU has none. */
    static const struct {
        const char *part;
        double tera[LL_N_PRECISION];
    } gpus[] = {
        {"H200 NVL", {60, 418, 835, 1671}},  {"H200", {67, 494, 989, 1979}},
        {"H100 PCIe", {51, 378, 756, 1513}}, {"H100 NVL", {60, 418, 835, 1671}},
        {"H100", {67, 494, 989, 1979}},      {"GH200", {67, 494, 989, 1979}},
        {"A100", {19.5, 156, 312, 0}},       {"A10", {31.2, 62.5, 125, 0}},
        {"A30", {10.3, 82, 165, 0}},         {"A40", {37.4, 74.8, 149.7, 0}},
        {"L40S", {91.6, 183, 362, 733}},     {"L40", {90.5, 90.5, 181, 362}},
        {"L4", {30.3, 60, 121, 242}},        {"B200", {80, 1100, 2250, 4500}},
    };
    for (size_t i = 0; i < sizeof gpus / sizeof *gpus; i++) {
        const char *at = strstr(name, gpus[i].part);
        bool begins = at && (at == name || !isalnum((unsigned char)at[-1]));
        if (begins && !isalnum((unsigned char)at[strlen(gpus[i].part)]))
            return 1e12 * gpus[i].tera[ll_precision_unit(p)];
    }
    return 0;
}
