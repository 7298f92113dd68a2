/* codec_half.c: gradients as bf16 or f16. Inputs are rounded to that type, added up in f32, and the
 * sum is rounded once: as many bytes as an all-reduce in that type, whose partial sums would be
 * rounded at every hop. */
#include "comm/codec_int.h"
#include "base/types.h"

#include <string.h>

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__F16C__)
#include <immintrin.h>
#endif

static int bytes(const ll_codec *, int m)
{
    return 2 * m;
}

static void encode_bf16(const ll_codec *, const float *x, int m, const ll_code_draw *,
                        uint8_t *code)
{
    uint16_t h[LL_CODE_BLOCK];
    for (int i = 0; i < LL_CODE_BLOCK; i++) h[i] = ll_f32_to_bf16(x[i]);
    memcpy(code, h, 2 * (size_t)m);
}

static void decode_bf16(const ll_codec *, const uint8_t *code, int m, float *x)
{
    uint16_t h[LL_CODE_BLOCK] = {0};
    memcpy(h, code, 2 * (size_t)m);
    for (int i = 0; i < LL_CODE_BLOCK; i++) x[i] = ll_bf16_to_f32(h[i]);
}

/* The machine's conversions where it has them: the same bits. */
static void encode_f16(const ll_codec *, const float *x, int m, const ll_code_draw *, uint8_t *code)
{
    uint16_t h[LL_CODE_BLOCK];
#if defined(__aarch64__)
    for (int i = 0; i < LL_CODE_BLOCK; i += 4)
        vst1_u16(h + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(x + i))));
#elif defined(__F16C__)
    for (int i = 0; i < LL_CODE_BLOCK; i += 8)
        _mm_storeu_si128((__m128i *)(h + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
#else
    for (int i = 0; i < LL_CODE_BLOCK; i++) h[i] = ll_f32_to_f16(x[i]);
#endif
    memcpy(code, h, 2 * (size_t)m);
}

static void decode_f16(const ll_codec *, const uint8_t *code, int m, float *x)
{
    uint16_t h[LL_CODE_BLOCK] = {0};
    memcpy(h, code, 2 * (size_t)m);
#if defined(__aarch64__)
    for (int i = 0; i < LL_CODE_BLOCK; i += 4)
        vst1q_f32(x + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(h + i))));
#elif defined(__F16C__)
    for (int i = 0; i < LL_CODE_BLOCK; i += 8)
        _mm256_storeu_ps(x + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(h + i))));
#else
    for (int i = 0; i < LL_CODE_BLOCK; i++) x[i] = ll_f16_to_f32(h[i]);
#endif
}

static const ll_block_code bf16_code = {bytes, encode_bf16, decode_bf16};
static const ll_block_code f16_code = {bytes, encode_f16, decode_f16};

const ll_codec_kind ll_codecs_half[] = {
    {.name = "bf16",
     .by_number = true,
     .form = "bf16",
     .help = "inputs and sum rounded to bf16: half the bytes",
     .code = &bf16_code},
    {.name = "f16",
     .by_number = true,
     .form = "f16",
     .help = "inputs and sum rounded to f16: half the bytes; beyond 65504 is infinity",
     .code = &f16_code},
    {0}};
