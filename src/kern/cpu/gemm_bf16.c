/* gemm_bf16.c */
#include "kern/cpu/gemm_int.h"

const ll_gemm_kind *ll_gemm_bf16(void)
{
    return NULL;
}
