/* verify_int.h: the tensors that are compared, for the files that list and judge them. */
#pragma once
#include "verify/verify.h"

typedef enum item_kind { RESULT, GRADIENT, PARAMETER, STATE, N_KIND } item_kind;

typedef struct item {
    item_kind kind;
    const char *name;        /* of the result or input */
    const char *op;          /* the node that makes it */
    const char *gradient_of; /* a parameter; NULL: no gradient of one */
    ll_type type;            /* whole */
    ll_layout layout;
    int serial, parallel; /* slots; serial: on rank 0 */
    uint8_t *left_out;    /* [numel] of the parameter it belongs to; NULL: to none */
    double size;          /* 2-norm of the serial value; kept ones: of its change, see verify.c */
    void *start;          /* PARAMETER, STATE: what it was after step v->since; on rank 0 */
    void *back;           /* PARAMETER: what undoes the nudge of a step; on rank 0 */
    /* Its blocks in v->blocks: first all of it, then of each dimension as many as cuts says. */
    int64_t first, n_block;
    int64_t cuts[LL_MAX_DIMS]; /* 0: none */
} item;

/* A part of a tensor: a range of one of its dimensions, whole in all others. */
typedef struct block {
    double size;     /* 2-norm of the serial value, or of its change */
    double least;    /* what no difference is told below */
    double noise[2]; /* what rounding does to it: 2-norm, and along the serial value */
} block;
enum { N_BLOCK = sizeof(block) / sizeof(double) };

/* What one rank finds of one tensor. */
typedef struct finding {
    double off;   /* sum of squared differences */
    double along; /* sum of differences times serial values */
    double worst, index, serial, parallel;
    double bits; /* elements that differ in a bit */
} finding;

/* And of its blocks: times what rounding explains that one is off, as far as is known; at most;
 * which that is. */
typedef struct doubt {
    double odd, bad, block;
} doubt;
enum { N_FINDING = sizeof(finding) / sizeof(double), N_DOUBT = sizeof(doubt) / sizeof(double) };

typedef struct verifier {
    const ll_verify_opts *o;
    ll_verify_report *out;
    ll_comm *c;
    ll_mesh m;
    ll_graph *g;
    ll_session *alone, *cut; /* alone: on rank 0 */
    ll_session *nudged;      /* on rank 0, once it is needed */
    int64_t since;           /* the step after which ranks were last given serial values */
    bool wide;               /* this is the run in f64 */
    ll_precision precision;  /* of the other runs */
    bool narrow;             /* products read less than f32: f64 says nothing of their kernels */
    bool lenient;            /* the tolerance is one that rounding may miss */
    bool again;              /* ranks are held against a nudged run, in place of the serial one */
    ll_arena *arena;
    item *items;
    int n_item, rank, n_rank;
    double all;        /* the norm of all gradients */
    block *blocks;     /* [n_block + n_item], the same on all ranks; behind them: see find_sizes */
    double (*part)[2]; /* [n_block]: off and along, of what this rank has of each */
    int32_t *judged;   /* [n_block]: this rank has it right, in some step, whatever rounding does */
    int64_t n_block;
    finding *found; /* [n_item][n_rank] */
    doubt *doubts;  /* [n_item][n_rank] */
    void *buffer;   /* on other ranks: a serial tensor */
} verifier;

/* verify_items.c. What a session of rank 0 alone is opened with. */
ll_session_opts ll_verify_alone(const verifier *v);
/* As results, gradients are made whole on every rank. */
void ll_verify_expose(ll_graph *g);
/* What is compared, in the order in which a first difference is looked for. Collective. */
ll_err ll_verify_list(verifier *v);
/* The range of a block, as text: "[8:16] of dimension 1"; "": it is the whole tensor. */
void ll_verify_block_text(const item *x, int64_t block, char out[LL_VERIFY_NAME]);

/* verify_compare.c */
static inline bool ll_verify_kept(const item *x)
{
    return x->kind == PARAMETER || x->kind == STATE;
}
/* A tensor of a session. */
void *ll_verify_data(const ll_session *s, const item *x, int slot, const ll_slot **of);
/* Rank 0's tensor on every rank. Collective. */
ll_err ll_verify_fetch(verifier *v, const item *x, const void **out);
/* Holds a piece against the whole; whole NULL: zeros. sums: off and along, of each block. all: what
 * is left out too. */
finding ll_verify_compare(const item *x, const ll_slot *s, const void *whole, const void *piece,
                          bool all, double (*sums)[2]);
/* What differs most in a block, on the rank that has it; on all. Collective. */
ll_err ll_verify_worst_in(verifier *v, const item *x, int64_t block, int rank, finding *out);
/* Fills found, on every rank; init: of parameters and state alone. Collective. */
ll_err ll_verify_compare_all(verifier *v, bool init);
/* This rank's piece of item i, to found and part; nothing is found yet. */
void ll_verify_compare_item(verifier *v, int i, const void *serial, bool init);
void ll_verify_forget(verifier *v);
/* Relative differences as they are, and projections; whether one is more than the tolerance. */
bool ll_verify_measure_item(const verifier *v, int i, double rel[2]);
bool ll_verify_measure(const verifier *v, double (*rel)[2]);
/* The norm that differences of x are over. */
double ll_verify_scale(const verifier *v, const item *x);

/* verify_noise.c. Keeps what the steps after this one start from. */
void ll_verify_keep_start(verifier *v, int64_t step);
/* Fills doubts, of what was compared last; the most of them. Collective. */
ll_err ll_verify_doubt(verifier *v, double *odd, double *bad);
/* What rounding does to each block in this step; far: asked for whatever is odd. Collective. */
ll_err ll_verify_find_noise(verifier *v, int64_t step, bool far, double *odd, double *bad);
/* What no rounding of this step explains, of this kind of tensors. */
double ll_verify_loudest(const verifier *v, item_kind of, int k);
/* A step that was found wrong: is it a decision of rounding? Then it is no difference. */
ll_err ll_verify_corner(verifier *v, int64_t step, double (*rel)[2]);
