/* goodput.h: of the time on the wall, what went into steps that count, and what was lost to what.
 * It goes on over the starts of a job (recovery.h): lines of timing.jsonl carry the sums so far. */
#pragma once
#include "base/text.h"
#include "train/metrics.h"

#define LL_LOSSES(X)                                                                               \
    X(START, "start")                                                                              \
    X(RESTARTS, "restarts")                                                                        \
    X(REDONE, "redone")                                                                            \
    X(SAVING, "saving")                                                                            \
    X(COPYING, "copying")                                                                          \
    X(DATA, "data")                                                                                \
    X(VALIDATION, "validation")                                                                    \
    X(SUSPENDED, "suspended")
enum {
#define X(name, text) LL_LOSS_##name,
    LL_LOSSES(X)
#undef X
        LL_N_LOSS
};

typedef struct ll_goodput {
    double wall, useful; /* seconds */
    double lost[LL_N_LOSS];
} ll_goodput;

const char *ll_loss_name(int loss);
void ll_goodput_note(const ll_goodput *g, ll_metrics *line);
/* The start before this one: where and when it began, when it ended, and the last step it made. */
typedef struct ll_past {
    int64_t step;
    double began, ended;
    int64_t reached;
} ll_past;
/* Of a job that is started again at step first, at wall: as its lines tell, of which those of later
 * steps were in vain; what nothing else is known to have taken is the restarts'. */
ll_err ll_goodput_read(const char *path, int64_t first, const ll_past *past, double wall,
                       ll_goodput *out);
/* "goodput 93.1 % of 41.2 s; lost: start 1.1 s, ..." */
char *ll_goodput_text(const ll_goodput *g, ll_arena *arena);
