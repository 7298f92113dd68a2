/* verify_int.h: the tensors that are compared, for the files that list and judge them. */
#pragma once
#include "train/verify.h"

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
    double size;          /* 2-norm of the serial value; kept ones: of its change, see above */
    double noise[2];      /* what rounding does to it in this step: difference, projection */
    void *start;          /* PARAMETER, STATE: what it was after step v->since; on rank 0 */
} item;

/* What one rank finds of one tensor. */
typedef struct finding {
    double off;   /* sum of squared differences */
    double along; /* sum of differences times serial values */
    double worst, index, serial, parallel;
    double bits; /* elements that differ in a bit */
} finding;
enum { N_FINDING = sizeof(finding) / sizeof(double) };

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
    bool again;              /* ranks are held against a nudged run, in place of the serial one */
    ll_arena *arena;
    item *items;
    int n_item, rank, n_rank;
    finding *found; /* [n_item][n_rank] */
    void *buffer;   /* on other ranks: a serial tensor */
} verifier;

/* As results, gradients are made whole on every rank. */
void ll_verify_expose(ll_graph *g);
/* What is compared, in the order in which a first difference is looked for. Collective. */
ll_err ll_verify_list(verifier *v);
