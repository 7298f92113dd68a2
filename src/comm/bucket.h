/* bucket.h: many small tensors as few large all-reduces. Tensors are listed once, in the order in
 * which they become ready (gradients: last layer first); neighbours in the list share a bucket
 * until it is full. A bucket is started when all its tensors are ready and all buckets before it
 * have been started, so that every rank starts them in one order whatever the order of readiness.
 * Tensors that lie one after another in memory are reduced where they are, others are packed and
 * unpacked. */
#pragma once
#include "comm/codec.h"
#include "comm/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ll_bucket_tensor {
    void *data;
    int64_t n;
    const char *name; /* stays */
} ll_bucket_tensor;

typedef struct ll_buckets ll_buckets;
typedef struct ll_buckets_opts {
    ll_dtype dtype;
    ll_reduce op;
    size_t bucket_bytes; /* 0: tuned: where a larger message is no faster per byte (tuner.h) */
    const char *codec;   /* "none" or NULL, or a codec by text (codec.h) */
    uint64_t seed;
} ll_buckets_opts;

/* Collective: all ranks list the same tensors. */
ll_err ll_buckets_open(ll_comm *c, const ll_bucket_tensor *tensors, int n,
                       const ll_buckets_opts *opts, ll_buckets **out);
void ll_buckets_close(ll_buckets *b);
ll_err ll_buckets_ready(ll_buckets *b, int tensor);
/* This tensor done: those up to the last of its bucket must be ready. Once for each tensor, and
 * they are ready for the next step. */
ll_err ll_buckets_wait_for(ll_buckets *b, int tensor);
/* All buckets done (all tensors must be ready), and ready for the next step. */
ll_err ll_buckets_wait(ll_buckets *b);
/* The number of the next step, which codecs draw their random numbers by; 0 at first, one more with
 * every wait. For a run that is resumed. */
void ll_buckets_set_step(ll_buckets *b, int64_t step);
/* Bytes that it holds of its own: for packing and scratch; codecs' are not among them. */
size_t ll_buckets_bytes(const ll_buckets *b);
int ll_buckets_count(const ll_buckets *b);
/* The codec of bucket i (residuals are training state); NULL where there is none. */
ll_codec *ll_buckets_codec(ll_buckets *b, int i);
/* A tensor's part of its codec's residual, [its n]; NULL: this codec has none. */
float *ll_buckets_residual(ll_buckets *b, int tensor);
/* What codecs put on the wire in the last step, and what f32 would have taken; 0 without codec. */
void ll_buckets_sent(ll_buckets *b, int64_t *bytes, int64_t *dense_bytes);

#ifdef __cplusplus
}
#endif
