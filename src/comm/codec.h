/* codec.h: gradients in fewer bytes. A codec all-reduces (sums) f32 vectors of one length; every
 * rank ends with the same bits. Text names a codec and its settings:
 *   bf16, f16          the sum in that type
 *   qsgd:BITS          1..8 bits an element and a scale a block, stochastic rounding (QSGD)
 *   int8, int4         qsgd of so many bits, error feedback
 *   lossless           the same bits: exponents of neighbours, and zeros, in fewer
 *   onebit             signs and two means a block, error feedback (1-bit SGD)
 *   topk:SHARE         the largest SHARE (0.001) by magnitude, error feedback; sparse all-reduce
 *                      by the cheaper of SparCML's forms, dense from where that is less
 *   topk:SHARE:BITS    the same with values (and the dense form) quantised
 * Error feedback keeps what was not sent in a residual that is added to the next input: part of the
 * training state. Random numbers are a function of (seed, step, codec's name, rank, element). */
#pragma once
#include "comm/comm.h"

typedef struct ll_codec ll_codec;

typedef struct ll_codec_report {
    int64_t bytes;       /* that this rank put on the wire, last call (slices: that it must,
                          * whether or not they went by a node's shared memory) */
    int64_t dense_bytes; /* that an uncompressed all-reduce of that length needs: 2 (p-1)/p n */
    double error;     /* |input + residual - what was sent of it| / |input + residual|, 2-norms; of
                       * this rank's input, a long one measured in parts */
    const char *form; /* how it was done: "slices", "all-gather", "split", "dense", "doubling" */
} ll_codec_report;

/* Of what is asked for as compress, the text of a codec; NULL: there is none ("none"; "factors" is
 * a matter of layouts). */
const char *ll_codec_asked(const char *compress);
/* name: its stream of random numbers, and its residual's name in checkpoints. */
ll_err ll_codec_open(const char *text, const char *name, int64_t n, uint64_t seed, ll_codec **out);
void ll_codec_close(ll_codec *k);
LL_OWNED(ll_codec, ll_codec_close);
/* Collective. data [n]: the sum over ranks of what the codec kept of each one's input. */
ll_err ll_codec_allreduce(ll_codec *k, ll_comm *c, float *data, int64_t step, const char *site);
ll_codec_report ll_codec_last(const ll_codec *k);
/* The residual, [n], to be saved and restored; NULL: this codec has none. */
float *ll_codec_residual(ll_codec *k);
/* Is what it keeps of a number the same however a tensor is cut? */
bool ll_codec_by_number(const ll_codec *k);
/* Local. Bytes that each of size ranks sends for n elements, before there is data: exact for codes
 * of fixed rate but for slices of whole blocks; of topk a guess, as if all ranks chose the same. */
ll_err ll_codec_estimate(const char *text, int64_t n, int size, double *bytes);
