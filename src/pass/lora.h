/* lora.h: adapters beside the weights of products (Hu et al., 2021): x W becomes x W + (x A) B, A
 * of few rows. Of a parameter "w" [N,C] of which a product sums over C they are the parameters
 * "w.lora_a" [rank,C], uniform, and "w.lora_b" [N,rank], zeros. */
#pragma once
#include "pass/pass.h"

#define LL_LORA_A ".lora_a"
#define LL_LORA_B ".lora_b"
bool ll_is_lora(const char *name);
/* patterns: of parameters' names, with blanks or commas between. LL_E_ARG: they match no weights
 * of a product. */
ll_err ll_lora(const ll_graph *g, int64_t rank, const char *patterns, ll_graph **out);
