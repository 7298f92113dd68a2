/* blocks.h: numbers as blocks of LL_PACK of 8 or 4 bits. Two ways to lay them down: elements,
 * scales and least numbers apart, for products that generate (ll_pack; op packed_matmul), and block
 * by block in a row of bytes, for weights that are trained beside (op blocked_matmul):
 *   int8   scale f16, 32 bytes          w = scale q, q -127 to 127        34 bytes, GGUF's Q8_0
 *   int4   scale, least f16, 16 bytes   w = scale q + least, q 0 to 15    20 bytes, GGUF's Q4_1
 *   nf4    scale f16, 16 bytes          w = scale t[q], quantiles t of a normal distribution from
 *                                       -1 to 1 (Dettmers et al., 2023)   18 bytes
 * Of 4 bits, byte i has elements i and, above, i + 16. A parameter of such rows is "w.int8",
 * "w.int4" or "w.nf4", u8 [N,C/32,bytes], for "w", f32 [N,C]. */
#pragma once
#include "base/num.h"
#include "kern/attr.h"
#include "kern/kern.h"

#ifdef __cplusplus
extern "C" {
#endif

/* n numbers, whole blocks; scale and least: f16, one a block. Blocks of 4 bits that hold their
 * numbers exactly are found again. */
void ll_pack(const float *x, int64_t n, int bits, uint8_t *q, uint16_t *scale, uint16_t *least);
/* Scale and least of a block of 4 bits: of these numbers' range or, where they count differently,
 * of as much of it as loses least. */
void ll_pack_range(const float *v, const float *count, uint16_t *scale, uint16_t *least);

/* nf4's values. */
#define LL_NF4                                                                                     \
    -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,                      \
        -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,                 \
        0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,    \
        0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f

typedef struct ll_block_kind {
    const char *name;
    int bytes;
    void (*pack)(const float *x, uint8_t *block);
    void (*unpack)(const uint8_t *block, float *x);
} ll_block_kind;
void ll_unpack_int8(const uint8_t *block, float *x); /* GGUF's Q8_0, Q4_1 */
void ll_unpack_int4(const uint8_t *block, float *x);
const ll_block_kind *ll_block_find(const char *name, size_t n); /* NULL: none */
const ll_block_kind *ll_block_sized(int64_t bytes);
/* Of a parameter "w.nf4"; *n: the length of "w". NULL: of no blocks. */
const ll_block_kind *ll_block_named(const char *parameter, size_t *n);
/* What a block of 8 or 4 bits would have for x; as they are where they are not all finite. */
void ll_block_round(const float *x, int bits, float *out);
/* How many numbers a parameter is, or stands for. */
int64_t ll_block_numbers(const char *parameter, ll_dtype t, const ll_shape *s);

/* A product with weights in blocks as one with numbers, which lie at the beginning of scratch. */
typedef struct ll_blocked_plain {
    ll_kcall call;
    ll_tensor in[2];
    ll_matmul_attr attr;
    size_t bytes; /* of the numbers */
} ll_blocked_plain;

static inline void ll_blocked_as_plain(const ll_kcall *c, ll_blocked_plain *p)
{
    memset(p, 0, sizeof *p);
    p->call = *c;
    p->in[0] = c->in[0];
    p->in[1] = c->in[1];
    ll_shape *s = &p->in[1].shape;
    s->d[s->n - 1] = LL_PACK;
    ll_blocked_spec((const ll_blocked_attr *)c->attr, p->attr.spec);
    p->attr.out = LL_F32;
    p->bytes = ll_align64((size_t)ll_numel(s) * sizeof(float));
    p->in[1].dtype = LL_F32;
    p->in[1].data = c->scratch;
    p->call.in = p->in;
    p->call.attr = &p->attr;
    p->call.scratch = c->scratch ? (char *)c->scratch + p->bytes : NULL;
}

#ifdef __cplusplus
}
#endif
