/* awq.h: scales for channels that products sum over (AWQ; Lin et al., 2023). A block of few bits is
 * off by its largest numbers' share; with weights w s and inputs x / s the product is the same, and
 * those that meet large inputs are rounded finer. s = magnitude of the input to the power alpha,
 * which is searched from 0 (no scales) to 1 for the products of one input together, by what their
 * results are off. x / s costs nothing: what makes x is folded with it, where it can be: a norm's
 * gain (and bias), or a factor that is a product, whose rows they are. */
#pragma once
#include "ir/ir.h"

typedef struct ll_awq_product {
    const float *w; /* [rows,cols] */
    int64_t rows;
} ll_awq_product;

enum { LL_AWQ_FOLDS = 2 };
/* Parameters that make the channels of x, each [cols,...] and read nowhere else; 0: x cannot be
 * scaled, as some other node reads it, or what makes it is not linear in parameters. */
int ll_awq_folds(const ll_graph *g, ll_val x, int64_t cols, ll_val folds[LL_AWQ_FOLDS]);
/* scale [cols] for n products by moments h [cols,cols]; *alpha 0: all are 1. LL_E_MEM,
 * LL_E_NUMERIC: what products make is not finite. */
ll_err ll_awq_search(const ll_awq_product *p, int n, int64_t cols, const float *h, int bits,
                     int threads, float *scale, double *alpha);
/* w [rows,cols], rounded to blocks of 4 bits whose ranges are those that lose least where channels
 * have these moments [cols]: ll_pack then changes nothing of it. */
void ll_awq_round(float *w, int64_t rows, int64_t cols, const float *moments, int threads);
