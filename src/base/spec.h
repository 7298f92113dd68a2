/* spec.h: "nhwc->c": the dimensions of one operand and of one result, each named by a letter. Text
 * comes from run files and graph files, so parsing it checks it. */
#pragma once
#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ll_spec {
    int n_in, n_out;
    char in[LL_MAX_DIMS + 1], out[LL_MAX_DIMS + 1]; /* the letters */
    int8_t from[LL_MAX_DIMS];                       /* result dimension -> operand's; -1: none */
    int8_t to[LL_MAX_DIMS];                         /* operand dimension -> result's; -1: none */
} ll_spec;

/* Letters a to z, none twice on a side, at most LL_MAX_DIMS; either side may be empty. */
ll_err ll_spec_parse(const char *text, ll_spec *out);
/* "mk,kn->mn" as its three parts, letters likewise. */
typedef struct ll_spec_parts {
    char part[3][LL_MAX_DIMS + 1];
} ll_spec_parts;
ll_err ll_spec_split(const char *text, ll_spec_parts *out);
/* Is every operand letter in the result, in the same order? */
bool ll_spec_grows(const ll_spec *s);
/* Is every result letter in the operand, in the same order? */
bool ll_spec_shrinks(const ll_spec *s);

#ifdef __cplusplus
}
#endif
