/* near.h: which known word a mistyped one probably meant, for error messages:
 *
 *     ll_near near = {.word = "covn2d"};
 *     for (...) ll_near_try(&near, known[i]);
 *     FAIL(LL_E_ARG, "no op %s%s", near.word, ll_near_hint(&near)); */
#pragma once
#include "base/err.h"

typedef struct ll_near {
    const char *word;
    const char *best; /* the nearest tried so far; NULL: nothing is near enough to suggest */
    int distance;     /* of best */
    bool part;        /* the word is a part of best */
    char hint[96], known[512]; /* known: all that were tried, a space before each */
} ll_near;

bool ll_near_try(ll_near *near, const char *known); /* is it this very word? */
/* "; did you mean conv2d?", or nothing: lives in near. */
const char *ll_near_hint(ll_near *near);
/* Fewest letters to insert, delete, change, or swap with a neighbour, to turn a into b, small or
 * large ones. */
int ll_edit_distance(const char *a, const char *b);
