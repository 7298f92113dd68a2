/* lora.h: adapters beside the weights of products (Hu et al., 2021): x W becomes x W + (x A) B, A
 * of few rows. Of a parameter "w" [N,C] of which a product sums over C they are the parameters
 * "w.lora_a" [rank,C], uniform, and "w.lora_b" [N,rank], zeros. */
#pragma once
#include "pass/pass.h"

#define LL_LORA_A ".lora_a"
#define LL_LORA_B ".lora_b"
bool ll_is_lora(const char *name);
bool ll_is_prompt(const char *name);  /* the vectors of prompt tuning (ll_build_embed) */
bool ll_is_adapter(const char *name); /* either: what is trained beside frozen weights */
/* Patterns of names, with blanks or commas between: the next of them, in arena (NULL after the
 * last); does any match? */
const char *ll_pattern_next(ll_arena *a, const char **at);
bool ll_patterns_have(ll_arena *a, const char *patterns, const char *name);
/* patterns: of parameters' names. LL_E_ARG: they match no weights
 * of a product. */
ll_err ll_lora(const ll_graph *g, int64_t rank, const char *patterns, ll_graph **out);
