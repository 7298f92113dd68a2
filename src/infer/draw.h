/* draw.h: which token comes next, of logits: the likeliest, or one that is drawn. */
#pragma once
#include "base/err.h"

typedef struct ll_draw_opts {
    double temperature; /* 0: always the likeliest */
    int64_t top_k;      /* of the likeliest alone; 0: of all */
    double top_p;       /* of the fewest that have this much of the probability; 0 or 1: of all */
    double min_p;       /* of those with this much of the likeliest one's; 0: of all */
    double repetition;  /* logits of tokens that were there are divided by it; 0, 1: are not */
    uint64_t seed, stream; /* stream: of several that have one seed */
} ll_draw_opts;
ll_err ll_draw_check(const ll_draw_opts *s);

typedef struct ll_draw_from {
    const float *logits;
    int64_t vocab;
    const int32_t *tokens; /* that were there */
    int64_t n;
} ll_draw_from;
typedef struct ll_draw_candidate {
    float logit;
    int32_t token;
} ll_draw_candidate;
typedef struct ll_draw_room { /* [vocab] each */
    float *logits;
    ll_draw_candidate *heap;
} ll_draw_room;
/* Draw number i: of seed, stream and i alone. */
int32_t ll_draw(const ll_draw_from *from, const ll_draw_opts *s, int64_t i, ll_draw_room *room);
