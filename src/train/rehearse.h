/* rehearse.h: how long what an opened session's program is made of takes here, found out by running
 * it on the session's own memory.
 *
 * Kernels run a few times: in order where a pass is a matter of seconds, with the collectives of
 * ranks, a pipeline's and compressed ones too, so that what they wait for each other, for links and
 * for cores that they share is in it; else one of each op, attributes and shapes. Those that would
 * change parameters or state work in room beside these, or are reckoned by their bytes; what codecs
 * have not sent is put back. Ranks time their kernels at the same time, as they will work. */
#pragma once
#include "base/waits.h"
#include "exec/session.h"

typedef struct ll_rehearsal {
    double most;     /* passes: a run of few steps does not wait for many */
    double crowd;    /* threads for each core of the node, 1 or more */
    double talk_s;   /* what a pass takes more at most, where messages go from node to node */
    ll_waits *waits; /* of the session's threads: they count as if others left them their cores;
                      * NULL: not known */
} ll_rehearsal;

typedef struct ll_rehearsed {
    double *seconds; /* [instr] 0: a collective that did not run */
    bool *ran;       /* [instr] a collective, or its wait, that did */
    bool together;   /* what ranks wait for each other is in these seconds */
    double spare;    /* part of a pass in which one of this rank's cores had nothing to do */
    double byte_s;   /* what kernels that mostly move data took for a byte */
} ll_rehearsed;

/* On the CPU. Collective over c (NULL: this process alone). */
ll_err ll_rehearse(const ll_session *s, ll_comm *c, const ll_rehearsal *how, ll_arena *arena,
                   ll_rehearsed *out);
/* A step of a device's program, all of whose kernels run in order, for a second. Local. */
ll_err ll_rehearse_device(ll_exec *e, double *seconds);
