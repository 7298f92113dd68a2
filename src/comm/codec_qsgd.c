/* codec_qsgd.c: QSGD (Alistarh, Grubic, Li, Tomioka, Vojnovic: QSGD: communication-efficient SGD
 * via gradient quantization and encoding; NIPS 2017), in the variant that they ran: blocks, each
 * scaled by its largest magnitude, codes of a fixed number of bits.
 *
 * Codes 0..L stand for L + 1 points from -scale to scale, evenly apart. With 2 or more bits L is
 * 2^bits - 2, so that one point is 0; 1 bit is the two ends. A number between two points goes to
 * either with the probability that makes it right on average: 4 bits, L = 14, scale 7: 2.3 is 2
 * with probability 0.7, else 3. Probabilities are multiples of 2^-16.
 *
 * A block that holds anything but finite numbers becomes NaN; one whose largest magnitude is less
 * than 2^-100 becomes 0.
 *
 * In the wire's bytes: the scale, then for each of the widths 4, 2, 1 that bits is the sum of (8:
 * the bytes as they are) the codes' next bits. A plane of width w has 64 w bytes; byte j holds
 * those of elements j, j + 64 w, j + 128 w ...: so vectors pack without moving between lanes. */
#include "comm/codec_int.h"
#include "base/rng.h"
#include "base/types.h"

#include <math.h>
#include <string.h>

enum { N = LL_CODE_BLOCK, HALF = N / 2 };

typedef struct qsgd {
    int bits;
    int last; /* L */
} qsgd;

static int bytes(const ll_codec *k, int)
{
    return 4 + N / 8 * ((const qsgd *)k->own)->bits;
}

/* ---- bits in planes ---- */
static inline __attribute__((always_inline)) void pack(const uint8_t *restrict code, int shift,
                                                       int width, uint8_t *restrict plane)
{
    const int n = N / 8 * width, mask = (1 << width) - 1;
    for (int j = 0; j < n; j++) {
        uint8_t byte = 0;
        for (int i = 0; i < 8 / width; i++)
            byte |= (uint8_t)((code[j + i * n] >> shift & mask) << i * width);
        plane[j] = byte;
    }
}

static inline __attribute__((always_inline)) void unpack(const uint8_t *restrict plane, int shift,
                                                         int width, uint8_t *restrict code)
{
    const int n = N / 8 * width, mask = (1 << width) - 1;
    for (int i = 0; i < 8 / width; i++)
        for (int j = 0; j < n; j++)
            code[j + i * n] |= (uint8_t)((plane[j] >> i * width & mask) << shift);
}

static void pack_all(const uint8_t code[N], int bits, uint8_t *out)
{
    if (bits == 8) {
        memcpy(out, code, N);
        return;
    }
    int shift = 0;
    if (bits & 4) pack(code, 0, 4, out), shift = 4, out += N / 2;
    if (bits & 2) pack(code, shift, 2, out), shift += 2, out += N / 4;
    if (bits & 1) pack(code, shift, 1, out);
}

static void unpack_all(const uint8_t *in, int bits, uint8_t code[N])
{
    if (bits == 8) {
        memcpy(code, in, N);
        return;
    }
    memset(code, 0, N);
    int shift = 0;
    if (bits & 4) unpack(in, 0, 4, code), shift = 4, in += N / 2;
    if (bits & 2) unpack(in, shift, 2, code), shift += 2, in += N / 4;
    if (bits & 1) unpack(in, shift, 1, code);
}

/* ---- numbers and codes ---- */
/* Of a NaN or an infinity, a NaN. */
static float largest(const float *x)
{
    uint32_t top = 0;
    for (int i = 0; i < N; i++) {
        uint32_t u =
            ll_bits_of(x[i]) & 0x7fffffffu; /* magnitudes compare as integers do, NaN above all */
        top = u > top ? u : top;
    }
    if (top >= 0x7f800000u) return NAN;
    float f = ll_of_bits(top);
    return f < 0x1p-100f ? 0 : f;
}

/* Two random numbers of 16 bits for elements i and i + HALF: the counter i under a key of Philox's,
 * through two rounds of multiply and fold, which is cheaper than Philox for each. */
static inline uint32_t stretch(uint32_t i, uint32_t key0, uint32_t key1)
{
    uint32_t u = i * 0x9e3779b9u + key0;
    u = (u ^ u >> 16) * 0x7feb352du;
    u = ((u ^ u >> 15) + key1) * 0x846ca68bu;
    return u ^ u >> 16;
}

/* In units of 2^-16 of a step from the lowest point on. */
static inline uint32_t quantise(float x, float times, float plus, uint32_t most, uint32_t random)
{
    uint32_t u = (uint32_t)(int32_t)(x * times + plus);
    u = u < most ? u : most;
    return (u + random) >> 16;
}

static void encode(const ll_codec *k, const float *x, int, const ll_code_draw *draw, uint8_t *out)
{
    const qsgd *q = (const qsgd *)k->own;
    float scale = largest(x);
    memcpy(out, &scale, 4);
    if (!(scale > 0)) {
        memset(out + 4, 0, (size_t)(N / 8 * q->bits));
        return;
    }
    uint32_t key[4];
    ll_philox(draw->seed, draw->stream, draw->counter, key);
    const uint32_t most = (uint32_t)q->last << 16, key0 = key[0], key1 = key[1];
    const float middle = 0x1p15f * (float)q->last, times = middle / scale, plus = middle + 0.5f;
    uint8_t code[N];
    for (int i = 0; i < HALF; i++) {
        uint32_t random = stretch((uint32_t)i, key0, key1);
        code[i] = (uint8_t)quantise(x[i], times, plus, most, random & 0xffff);
        code[i + HALF] = (uint8_t)quantise(x[i + HALF], times, plus, most, random >> 16);
    }
    pack_all(code, q->bits, out + 4);
}

static void decode(const ll_codec *k, const uint8_t *in, int, float *restrict x)
{
    const qsgd *q = (const qsgd *)k->own;
    float scale;
    memcpy(&scale, in, 4);
    uint8_t code[N];
    unpack_all(in + 4, q->bits, code);
    const float unit = scale / (float)q->last;
    const int last = q->last;
    for (int i = 0; i < N; i++) x[i] = scale == 0 ? 0 : (float)(2 * code[i] - last) * unit;
}

static const ll_block_code block_code = {bytes, encode, decode};

static ll_err open_bits(ll_codec *k, int bits)
{
    qsgd *q = LL_NEW(k->arena, qsgd);
    *q = (qsgd){.bits = bits, .last = bits == 1 ? 1 : (1 << bits) - 2};
    k->own = q;
    return LL_OK;
}

static ll_err open_qsgd(ll_codec *k, const char *settings)
{
    int bits = 0;
    TRY(ll_codec_int(k, settings, 1, 8, &bits));
    return open_bits(k, bits);
}

static ll_err open_int(ll_codec *k, const char *settings)
{
    k->squeezed = settings && !strcmp(settings, "huffman");
    if (settings && !k->squeezed) return ll_codec_bad(k, "its one setting is huffman");
    return open_bits(k, k->text[3] - '0');
}

const ll_codec_kind ll_codecs_qsgd[] = {
    {.name = "qsgd",
     .form = "qsgd:BITS",
     .help = "1 to 8 bits an element and a scale for 512, rounded at random (QSGD)",
     .open = open_qsgd,
     .code = &block_code},
    {.name = "int8",
     .form = "int8 or int8:huffman",
     .help = "qsgd:8 with error feedback; huffman: in fewer bytes, for slow networks",
     .feedback = true,
     .open = open_int,
     .code = &block_code},
    {.name = "int4",
     .form = "int4 or int4:huffman",
     .help = "qsgd:4 with error feedback; huffman: in fewer bytes, for slow networks",
     .feedback = true,
     .open = open_int,
     .code = &block_code},
    {0}};
