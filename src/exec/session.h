/* session.h: what the rest of Loopline may see of a session (the public part is loopline.h). */
#pragma once
#include "exec/choose.h"
#include "exec/cut.h"
#include "exec/exec.h"

/* Steps that are looked at when the next one has begun (opts.post_validation, session_after.c). */
typedef struct ll_after {
    double limit;        /* a norm up to it changes nothing of an update */
    bool sure;           /* the last step was looked at before its update */
    bool wary;           /* what was last looked at did not hold: steps are looked at first */
    int *saved, n_saved; /* slots: what the update writes, then the step's inputs, */
    int n_written;       /* of which there are so many */
    char *room;          /* these as they were */
    ll_err (*complete)(ll_session *s);
    double *told, *next; /* [results] of the step before the last one, and of that */
    bool told_wide, next_wide;
    int64_t told_step; /* which one it is */
    int64_t n_undone;
} ll_after;

struct ll_session {
    ll_graph *g;
    ll_graph
        *late; /* the same, this session's own: with gradients a step late; NULL: they are not */
    ll_session_opts opts;
    const ll_machine *machine;
    ll_devices devices; /* n 0: the machine has none */
    ll_context *ctx;
    ll_team *team;  /* NULL: alone */
    bool borrowed;  /* the team is another session's */
    ll_cut *cut;    /* of g, over the team's mesh */
    ll_graph *part; /* this rank's; NULL: nothing is cut */
    ll_ways ways;   /* of convolutions, as measured */
    ll_room room;
    ll_program *p;
    ll_exec *e;
    bool wide;         /* exact, of all bits of operands */
    ll_session *more;  /* of exact sums: the same, wide; NULL: was not needed yet */
    int64_t n_wide;    /* steps that it has made */
    size_t wide_bytes; /* that it takes; 0: not known yet */
    /* Where a pipeline's steps overlap: this session has one that others are before and behind; the
     * first of them, and what the last one leaves, are these. */
    ll_pipe_span span;
    ll_session *first, *rest;
    bool ahead;       /* a batch is under way whose step is not over */
    uint64_t told;    /* the step that results are of, from 1 on; 0: none */
    ll_after *after;  /* NULL: steps are looked at before they update */
    ll_session *now;  /* whose results are the step's: this one, or more; NULL: no step yet */
    uint64_t step;    /* steps done */
    uint64_t of_step; /* for messages: how many another has done, which this looks at; 0: step */
    double most_norm; /* a step whose grad_norm is above it updates nothing; 0: any does */
    bool skipped;     /* the last step was such a one */
    /* Slots: what updates read of a step; and where steps leave it; NULL: they update. */
    int *made, n_made;
    float *made_at;
    int *kept, n_kept; /* slots of parameters and state */
    uint64_t *given;   /* [slot] of batch data: bit m: micro-batch m (modulo 64) was set */
    bool checked;      /* that all was, or another way was found to fill it */
    ll_arena *arena;
};

LL_OWNED(ll_session, ll_session_close);

/* Compiled and opened; wide: exact sums of all bits; span: the part of a row of steps. */
ll_err ll_session_compile(ll_graph *g, const ll_session_opts *opts, bool wide, ll_pipe_span span,
                          ll_session **out);
ll_err ll_session_lower(const ll_session *s, bool no_fuse, ll_program **out);
ll_exec_opts ll_session_exec_opts(const ll_session *s);
/* Of the session that makes its steps again, with all bits. */
ll_session_opts ll_session_wide_opts(ll_session *s);
/* Axes along which ranks hold copies of what lies so; of a pipeline one stage's do. */
ll_axes ll_session_copies(const ll_session *s, const ll_layout *l);
/* ll_session_run in two parts. Between them the next step's batch may be set: where steps run on a
 * device it is uploaded beside this one. */
ll_err ll_session_start(ll_session *s, double lr);
ll_err ll_session_finish(ll_session *s);
/* What updates read of a step (gradients; batch statistics), f32: so many elements. */
ll_err ll_session_made(ll_session *s, int64_t *n);
/* From now on a step leaves it at `at`, and updates nothing. */
void ll_session_hold(ll_session *s, float *at);
/* An update by such elements, the t-th (from 1) at this rate: as if a step had made them. */
ll_err ll_session_update(ll_session *s, const float *made, double lr, double t);
/* ---- session_round.c ---- */
ll_err ll_session_leave(ll_session *s);                  /* what the micro-batches have made */
ll_err ll_session_put(ll_session *s, const float *made); /* likewise, of others */
/* Results of a step are told when the next one has run, or by ll_session_settle. */
static inline bool ll_session_lags(const ll_session *s)
{
    return s->first || s->after;
}
/* ---- session_after.c ---- */
ll_err ll_after_open(ll_session *s);
void ll_after_close(ll_session *s);
/* complete: looks at a step's results, then updates. */
ll_err ll_after_run(ll_session *s, ll_err (*complete)(ll_session *s));
ll_err ll_after_settle(ll_session *s, ll_err (*complete)(ll_session *s));
/* Which of the first dimension of an input this rank holds: of batch data, which samples. */
void ll_session_rows(const ll_session *s, int64_t *first, int64_t *count);
/* Of state that is laid aside: it is in memory too while it begins and is saved. */
size_t ll_session_aside_bytes(const ll_session *s);
/* Of exact sums: finds out what a step takes that is made again with all bits, besides. All ranks
 * together. */
ll_err ll_session_plan_wide(ll_session *s);
/* That; ran: 0 if no step had to be. */
size_t ll_session_wide_bytes(const ll_session *s, bool ran);
