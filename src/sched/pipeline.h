/* pipeline.h: pipelines as data. A model is cut into stages; a batch into micro-batches; a schedule
 * says for each rank which stage does what of which micro-batch, one action after another. Rank
 * rank_of[s] has stage s; a rank may have several. What is sent between stages follows: a stage's
 * forward pass reads what the one before it made, its backward pass what the one after it made.
 *
 *     F   forward
 *     B   backward: gradients of inputs and of weights
 *     I   of these the gradients of inputs alone, which the stage before waits for
 *     W   the gradients of weights, which nobody waits for
 *
 * An action as text is kind, micro-batch, '.', stage ("F3.0"; of one stage a rank, '.' and stage
 * may be left out); a rank is a line.
 *
 * A schedule whose steps overlap is what a rank does between two steps' first forward passes:
 * backward passes of the batch before ("B3.0-") are among its actions. The first step then has none
 * of these, and behind the last one they are all that is left. */
#pragma once
#include "base/text.h"

typedef enum ll_action_kind { LL_ACT_F, LL_ACT_B, LL_ACT_I, LL_ACT_W } ll_action_kind;

typedef struct ll_action {
    ll_action_kind kind;
    int stage, micro;
    int before; /* 1: of the batch before this step's, 0: of this step's */
} ll_action;

typedef struct ll_pipeline {
    const char *name; /* "1f1b" */
    int n_rank, n_stage, n_micro;
    const int *rank_of;              /* [n_stage] */
    const int *n_action;             /* [n_rank] */
    const ll_action *const *actions; /* [n_rank][n_action] */
    bool overlaps;                   /* some are of the batch before */
} ll_pipeline;

/* No schedule is larger; the last one bounds n_stage x n_micro. */
enum {
    LL_PIPELINE_RANKS = 1024,
    LL_PIPELINE_MICROS = 65536,
    LL_PIPELINE_PER_RANK = 64, /* stages */
    LL_PIPELINE_CELLS = 1 << 24
};

#define LL_ACTION_TEXT 32
/* "F3.0"; writes into out and returns it. */
const char *ll_action_text(ll_action a, char out[LL_ACTION_TEXT]);
#define LL_ACTION(a) ll_action_text(a, (char[LL_ACTION_TEXT]){0}) /* for printf */

/* gpipe, 1f1b, zb-h1, zb-h2 and 2bw, whose steps overlap, have a stage a rank; interleaved and
 * breadth-first any number of them; zb-v and dualpipe-v two, of which the second ones go back from
 * the last rank to the first. Any number of micro-batches will do. Those of a stage and kind come
 * in ascending order, so that sums over them are the serial ones. Local. */
ll_err ll_pipeline_make(ll_arena *arena, const char *name, int n_rank, int n_stage, int n_micro,
                        const ll_pipeline **out);
/* Name i of the schedules above; NULL: there are no more. */
const char *ll_pipeline_name(int i);
int ll_pipeline_stages(const char *name); /* of a rank, where nobody asks for others */
/* Whether the sizes are in bounds: says which is not. */
ll_err ll_pipeline_sizes(int n_rank, int n_stage, int n_micro);

/* The forward pass of stage `from` makes something that stage `to` > from reads; backward, `to`
 * makes what `from` reads. */
typedef struct ll_edge {
    int from, to;
} ll_edge;

typedef struct ll_pipeline_report {
    int in_flight
        [LL_PIPELINE_RANKS]; /* of each rank the most (stage, micro) between F and B or W */
    int slack;               /* least that does not deadlock */
    bool ascending; /* of every stage, F, B or I, and B or W each take micro-batches in order */
} ll_pipeline_report;

/* Whether ranks that run side by side can do the schedule: each (stage, micro) has F, and B or both
 * I and W, once, on the stage's rank, in an order that ends. The rules are the executor's, and no
 * message is buffered:
 *
 *   1. Before action k a rank waits for what it reads from other ranks.
 *   2. When it begins action k it posts the receives of action k + 1; those of the first at once.
 *   3. When an action ends, what it made for others is sent; a send is complete when its receive is
 *      posted.
 *   4. At the end of action k + slack a rank waits for the sends of action k.
 *   5. Where steps overlap: at its end a step waits for all of its sends. What it made for another
 *      rank's next step is sent as that of its own begins; receives are posted from then on.
 *
 * No edges (NULL): each stage sends to the next. Local. */
ll_err ll_pipeline_check(const ll_pipeline *p, const ll_edge *edges, int n_edge,
                         ll_pipeline_report *out);

/* What actions take, and what they hold. B takes as long as I and W. */
typedef struct ll_pipeline_costs {
    const double *f, *i, *w; /* [n_stage] seconds */
    const double *bytes;     /* [n_stage] held from F to B or W, a micro-batch; NULL: 1 each */
    const ll_edge *edges;    /* NULL: each stage sends to the next */
    int n_edge;              /* of edges */
    const double *send;      /* [edges] seconds, between ranks, either way; NULL: none */
    bool in_turn;            /* messages of an edge, one way, follow one another */
    bool goes_on;            /* a rank begins the next step when it is done, not when all are */
} ll_pipeline_costs;

typedef struct ll_interval {
    double start, end;
} ll_interval;

typedef struct ll_pipeline_times {
    double *const *start, *const *end; /* [n_rank][n_action] seconds */
    const ll_interval *update;         /* [n_rank] of weights, for pictures; NULL: none */
    const double *peak;                /* [n_rank] most bytes held; NULL: not known */
    double *const *waited; /* [n_rank][n_action] of an action, spent in waits; NULL: none */
    const char *title;     /* of a picture; NULL: the schedule's name */
    bool in_flops;         /* what seconds are called above are FLOPs, or what takes as long */
    double period; /* of one of many steps: from one to the next; < 0: not known; 0: it is alone */
    double makespan; /* from the first action's start to the last one's end; or the period */
    double bubble;   /* idle time of all ranks, as a fraction of n_rank x makespan */
} ll_pipeline_times;

/* When each action of a schedule that passes the check would run, if messages took no more than
 * their time: a rank does its actions one after another, each as soon as what it reads is there.
 * Where steps overlap, or ranks go on to the next, one of many. Lives in the arena. Local. */
ll_err ll_pipeline_simulate(ll_arena *arena, const ll_pipeline *p, const ll_pipeline_costs *costs,
                            ll_pipeline_times *out);
/* Makespan and bubble of times that were measured. */
void ll_pipeline_sum_up(const ll_pipeline *p, ll_pipeline_times *t);
/* The bubble of a bundled schedule where F, I and W of all stages take the same time and messages
 * none; NAN where there is no formula. text (NULL: not wanted): "(p-1)/(m+p-1)", or NULL. */
double ll_pipeline_formula(const char *name, int n_rank, int n_stage, int n_micro,
                           const char **text);

/* The quickest schedule that is found for these costs and, per rank, bytes for activations (NULL:
 * no limit): a bundled one, or "auto", by list scheduling. Any number of stages from n_rank on.
 * Local. */
ll_err ll_pipeline_auto(ll_arena *arena, const ll_pipeline_costs *costs, const double *limit,
                        int n_rank, int n_stage, int n_micro, const ll_pipeline **out);

/* Text, a line a rank: "F0.0 F1.0 B0.0"; comments from '#' on. Or PyTorch's CSV, a row a rank:
 * cells such as 0F1 (stage, kind, micro-batch), empty ones idle; it begins with a digit or a comma.
 * name: of the file, for messages, and the schedule's. What is read is still to be checked. */
ll_err ll_pipeline_parse(ll_arena *arena, const char *text, size_t size, const char *name,
                         const ll_pipeline **out);
void ll_pipeline_print(ll_buf *b, const ll_pipeline *p);
void ll_pipeline_print_csv(ll_buf *b, const ll_pipeline *p);

/* Pictures, a row a rank, of times that were simulated or measured. Columns are so many that the
 * shortest action has one, but no more than width (0: 240). */
void ll_pipeline_draw_text(ll_buf *b, const ll_pipeline *p, const ll_pipeline_times *t, int width);
void ll_pipeline_draw_svg(ll_buf *b, const ll_pipeline *p, const ll_pipeline_times *t);
