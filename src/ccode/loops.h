/* loops.h: instructions as C loops. */
#pragma once
#include "base/text.h"
#include "program/program.h"

/* An instruction on its way to text: operands are x0, x1, ..., results y0, y1, .... */
typedef struct ll_cloops {
    ll_buf *b;
    const void *attr;
    const ll_type *in, *out;
    int n_in;
    bool *used; /* [LL_N_EW]: functions op_NAME that the text calls */
} ll_cloops;

/* Loops of the ops that are not elementwise, by name; NULL: there are none. */
typedef ll_err ll_cloops_write(const ll_cloops *c);
ll_cloops_write *ll_cloops_find(const char *op);
/* The entry of LL_EW that is so named; LL_N_EW: none. */
ll_ew ll_cloops_ew(const char *op);
/* One elementwise op. */
ll_err ll_cloops_map(const ll_cloops *c, ll_ew ew);
/* static inline double op_NAME(double a, ...). */
void ll_cloops_function(ll_buf *b, ll_ew ew);
