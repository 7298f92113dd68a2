/* packed.h: weights of products as 8 or 4 bits, in blocks of LL_PACK of a row, for inference:
 *   8: w = scale q, q -127 to 127;   4: w = scale q + least, q 0 to 15
 * A parameter "w" of a product becomes the parameters "w.q8" (or "w.q4"), u8, "w.scale" and, of 4
 * bits, "w.least", f16. Of 4 bits, byte i of a block has elements i and, above, i + 16. */
#pragma once
#include "pass/pass.h"

enum { LL_PACK = 32 };
/* Parameters that a product does not read as rows of whole blocks stay as they are, as does what
 * other nodes read of a packed one. */
ll_err ll_pack_graph(const ll_graph *g, int bits, ll_graph **out);
/* Parts 0 to 2 of a packed parameter. */
const char *ll_pack_name(ll_arena *a, const char *name, int bits, int part);
/* Of a product whose weights would be packed, how many of its inputs are summed; 0: of no other. */
int64_t ll_pack_cols(const ll_graph *g, const ll_node *n);
/* n numbers, whole blocks; scale and least: f16, one a block. Blocks of 4 bits that hold their
 * numbers exactly are found again. */
void ll_pack(const float *x, int64_t n, int bits, uint8_t *q, uint16_t *scale, uint16_t *least);
/* Scale and least of a block of 4 bits: of these numbers' range or, where they count differently, of
 * as much of it as loses least. */
void ll_pack_range(const float *v, const float *count, uint16_t *scale, uint16_t *least);
