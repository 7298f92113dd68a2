/* codec_onebit.c: 1-bit SGD (Seide, Fu, Droppo, Li, Yu: 1-bit stochastic gradient descent and its
 * application to data-parallel distributed training of speech DNNs; Interspeech 2014). A block is
 * its signs, the mean of its numbers from 0 on and the mean of those below: the two values that
 * leave the least error. What is lost goes into a residual that is added to the next input:
 *
 *     input + residual   0.1  0.5  -0.3  0.9      decoded   0.5  0.5  -0.3  0.5
 *     new residual      -0.4  0     0    0.4
 *
 * The owner of a slice encodes the sum in the same way; what that loses goes into the owner's
 * residual for the slice, so nothing is ever lost and one residual a rank is all the state.
 * A block that holds anything but finite numbers becomes NaN, and its residual stays as it was. */
#include "base/types.h"
#include "comm/codec_int.h"

#include <math.h>
#include <string.h>

enum { N = LL_CODE_BLOCK, SIGNS = N / 8 };

typedef struct means {
    float below, above;
} means;

static int bytes(const ll_codec *, int)
{
    return (int)sizeof(means) + SIGNS;
}

/* -0 is below. The padding's zeros are not counted. */
static means means_of(const float *x, int m)
{
    float below = 0, above = 0;
    uint32_t n_below = 0;
#pragma omp simd reduction(+ : below, above, n_below)
    for (int i = 0; i < N; i++) {
        uint32_t u = ll_bits_of(x[i]), minus = -(u >> 31);
        below += ll_of_bits(u & minus);
        above += ll_of_bits(u & ~minus);
        n_below += u >> 31;
    }
    if (!isfinite(below) || !isfinite(above)) return (means){NAN, NAN};
    int n_above = m - (int)n_below;
    return (means){n_below ? below / (float)n_below : 0, n_above ? above / (float)n_above : 0};
}

/* Bit b of byte j: is element j + b * SIGNS below 0? */
static void encode(const ll_codec *, const float *x, int m, const ll_code_draw *, uint8_t *out)
{
    means mean = means_of(x, m);
    memcpy(out, &mean, sizeof mean);
    uint32_t signs[SIGNS] = {0};
    for (int b = 0; b < 8; b++)
        for (int j = 0; j < SIGNS; j++) signs[j] |= ll_bits_of(x[j + b * SIGNS]) >> 31 << b;
    for (int j = 0; j < SIGNS; j++) out[(int)sizeof mean + j] = (uint8_t)signs[j];
}

static void decode(const ll_codec *, const uint8_t *in, int, float *restrict x)
{
    means mean;
    memcpy(&mean, in, sizeof mean);
    uint32_t above = ll_bits_of(mean.above), differ = above ^ ll_bits_of(mean.below), signs[SIGNS];
    for (int j = 0; j < SIGNS; j++) signs[j] = in[(int)sizeof mean + j];
    for (int b = 0; b < 8; b++)
        for (int j = 0; j < SIGNS; j++)
            x[j + b * SIGNS] = ll_of_bits(above ^ (differ & -(signs[j] >> b & 1)));
}

static const ll_block_code block_code = {bytes, encode, decode};

const ll_codec_kind ll_codecs_onebit[] = {
    {.name = "onebit",
     .form = "onebit",
     .help = "signs and two means for 512 elements, error feedback (1-bit SGD)",
     .feedback = true,
     .code = &block_code},
    {0}};
