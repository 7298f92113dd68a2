/* calibrate.h: weights of products in blocks of 8 or 4 bits (pass/packed.h), chosen so that what
 * products make of data changes least, not the weights. Windows of the training data go through
 * the model, and each product's inputs leave their second moments H = X^T X. By these, channels
 * get scales (infer/awq.h), rows are rounded column by column (infer/gptq.h), or both. */
#pragma once
#include "run/setup.h"

typedef struct ll_calibrate {
    int64_t windows; /* at most those of an epoch; 0: weights are rounded to nearest, each alone */
    int bits;        /* that weights will have */
    bool awq, gptq;  /* gptq: of 4 bits */
    /* Where not NULL, told after each of so many windows, which take so long each. */
    void (*tell)(void *context, int64_t window, int64_t of, double each_s);
    void *context;
} ll_calibrate;

typedef struct ll_calibration ll_calibration;
/* Reads windows through the parameters of s, of this process alone. */
ll_err ll_calibration_open(const ll_run *r, ll_session *s, const ll_calibrate *how,
                           ll_calibration **out);
void ll_calibration_close(ll_calibration *c);
LL_OWNED(ll_calibration, ll_calibration_close);
/* Rounds all of s, by gptq alone: products may read a parameter that others read too. */
ll_err ll_calibration_session(const ll_calibration *c, ll_session *s);
/* Every parameter that `to` has of from's, packed (ll_pack_graph) or as it is; by NULL: to nearest.
 * To *count is added how many were packed. */
ll_err ll_pack_weights(ll_session *from, ll_session *to, int bits, const ll_calibration *by,
                       int *count);
/* Where that is none: of bits and LL_PACK. */
#define LL_PACKED_NONE                                                                             \
    "weights of %d bits are in blocks of %d inputs, and no product of the model has a multiple "   \
    "of that: use f32"
