/* packed.h: weights of products as 8 or 4 bits, in blocks of LL_PACK of a row, for inference:
 *   8: w = scale q, q -127 to 127;   4: w = scale q + least, q 0 to 15
 * A parameter "w" of a product becomes the parameters "w.q8" (or "w.q4"), u8, "w.scale" and, of 4
 * bits, "w.least", f16. Of 4 bits, byte i of a block has elements i and, above, i + 16. */
#pragma once
#include "pass/pass.h"

/* Parameters that a product does not read as rows of whole blocks stay as they are, as does what
 * other nodes read of a packed one. */
ll_err ll_pack_graph(const ll_graph *g, int bits, ll_graph **out);
/* For training what is packed later: products read such weights as numbers that blocks of so many
 * bits would have (op round_blocks); gradients are those of these, and go to the weights as they
 * are. LL_E_ARG: there are none. */
ll_err ll_round_graph(const ll_graph *g, int bits, ll_graph **out);
/* Parts 0 to 2 of a packed parameter. */
const char *ll_pack_name(ll_arena *a, const char *name, int bits, int part);
/* Of a product whose weights would be packed, how many inputs are summed; else 0. */
int64_t ll_pack_cols(const ll_graph *g, const ll_node *n);

/* For training adapters beside them (QLoRA, Dettmers et al., 2023): weights of products that no
 * other node reads become parameters of blocks (kern/blocks.h), but for adapters. kind: "int8",
 * "int4" or "nf4". LL_E_ARG: there are none. */
ll_err ll_block_graph(const ll_graph *g, const char *kind, ll_graph **out);
