/* gemm.c: matrix products by plain loops over a copy of B in f32. */
#include "kern/cpu/gemm.h"

static float load(const void *x, bool bf16, int64_t i)
{
    return bf16 ? ll_bf16_to_f32(((const uint16_t *)x)[i]) : ((const float *)x)[i];
}

size_t ll_gemm_serial_scratch(const ll_gemm_call *g)
{
    size_t bytes = (size_t)g->n * (size_t)(g->k + 1) * sizeof(float);
    return (bytes + 63) / 64 * 64;
}

size_t ll_gemm_scratch(const ll_gemm_call *g)
{
    return ll_gemm_serial_scratch(g);
}

void ll_gemm_serial(const ll_gemm_call *g)
{
    int64_t cs = g->c_cs ? g->c_cs : 1;
    float *b = (float *)g->scratch, *restrict sum = b + g->n * g->k;
    for (int64_t p = 0; p < g->k; p++)
        for (int64_t j = 0; j < g->n; j++)
            b[p * g->n + j] = load(g->b, g->bf16, p * g->b_rs + j * g->b_cs);
    for (int64_t i = 0; i < g->m; i++) {
        for (int64_t j = 0; j < g->n; j++)
            sum[j] = g->add ? load(g->c, g->bf16_out, i * g->c_rs + j * cs) : 0;
        for (int64_t p = 0; p < g->k; p++) {
            float x = load(g->a, g->bf16, i * g->a_rs + p * g->a_cs);
            for (int64_t j = 0; j < g->n; j++) sum[j] += x * b[p * g->n + j];
        }
        for (int64_t j = 0; j < g->n; j++) {
            int64_t at = i * g->c_rs + j * cs;
            if (g->bf16_out)
                ((uint16_t *)g->c)[at] = ll_f32_to_bf16(sum[j]);
            else
                ((float *)g->c)[at] = sum[j];
        }
    }
}

void ll_gemm(const ll_gemm_call *g)
{
    ll_gemm_serial(g);
}
