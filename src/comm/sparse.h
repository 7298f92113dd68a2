/* sparse.h: vectors of which few elements are not zero: sums, bytes, and the all-reduce over ranks
 * (C. Renggli, S. Ashkboos, M. Aghagolzadeh, D. Alistarh, T. Hoefler: SparCML: high-performance
 * sparse communication for machine learning, SC 2019). */
#pragma once
#include "comm/comm.h"

/* ---- streams (sparse.c) ---- */
/* Elements of a vector of len, none of them -0. Sparse: count pairs, indices ascending. Dense: all
 * of them. */
typedef struct ll_svec {
    int64_t len, count; /* count of a dense one: len */
    bool is_dense;
    uint32_t *index; /* [room] */
    float *value;    /* [room] */
    int64_t room;
    float *dense; /* [len]; NULL: there is no room for a dense one */
} ll_svec;

/* Where a sum is in one of its sources. */
typedef struct ll_svec_head {
    int64_t at;
    uint32_t next; /* UINT32_MAX: at its end */
    int rank;
    float value;
} ll_svec_head;

/* More pairs than this are kept dense: a pair is 8 bytes in memory and 5 to 9 on the wire. */
static inline int64_t ll_svec_most(int64_t len)
{
    return len - len / 4;
}

/* dst = the sum of n streams of one length, as T over them (sched.h) with what is absent left out:
 * an element that one source has is copied. dst becomes dense where asked, or where the sources
 * together have more pairs than ll_svec_most; else it needs room for all of these. heads [2 n]: for
 * the sum's use. dst is none of the sources. */
ll_err ll_svec_sum(const ll_svec *const *src, int n, bool dense, ll_svec_head *heads, ll_svec *dst);

/* ---- streams as bytes (sparse_code.c) ---- */
/* How values are written: as they are, or in so many bits with a scale for each 512 of them,
 * rounded up or down at random: element i by number base + i of a stream of random numbers. */
typedef struct ll_svec_code {
    int bits; /* 2..8; 0: f32 */
    uint64_t seed, stream;
    int64_t base;
    /* Where what rounding took away goes: added to residual [base + i]; *lost2 grows by as much as
     * the square of the residual's 2-norm. Either may be NULL. */
    float *residual;
    double *lost2;
} ll_svec_code;

/* Bytes of a dense stream. */
size_t ll_svec_dense_bytes(int64_t len, int bits);
/* The most bytes that a sparse stream of at most `most` pairs has, as pairs or, if those are fewer,
 * dense. *dense: can it come to that? (May be NULL.) */
size_t ll_svec_bound(int64_t len, int64_t most, int bits, bool *dense);
/* About how many bytes count pairs take that lie anywhere. */
double ll_svec_expected(double len, double count, int bits);
/* Writes s to out, which must have room; returns how many bytes. A sparse one is written
 * dense where that is less; s itself stays sparse. Its values become those that will be read. */
size_t ll_svec_write(ll_svec *s, const ll_svec_code *code, uint8_t *out);
bool ll_svec_written_dense(const uint8_t *bytes);
/* Reads what a rank sent into out, whose len and rooms are set. Bytes that are no stream of this
 * length, in so many bits, or too long for its rooms, are an error. */
ll_err ll_svec_read(const uint8_t *bytes, size_t size, int bits, ll_svec *out);

/* ---- all-reduce (sparse_allreduce.c) ---- */
typedef enum ll_sparse_form {
    LL_SPARSE_AUTO,     /* what is predicted to be fastest */
    LL_SPARSE_DOUBLING, /* log2 p exchanges of whole streams, which grow */
    LL_SPARSE_SPLIT,    /* the owner of each part of the vector sums it, and sends its sum to all */
    LL_SPARSE_DENSE     /* as split, with dense sums */
} ll_sparse_form;
const char *ll_sparse_form_name(ll_sparse_form f);

typedef struct ll_sparse ll_sparse; /* memory for the all-reduces of one length and k */
/* Streams of len, of at most k pairs on each rank, values in bits (0: f32). */
ll_err ll_sparse_open(int64_t len, int64_t k, int bits, ll_sparse **out);
void ll_sparse_close(ll_sparse *w);

typedef struct ll_sparse_call {
    ll_svec *mine; /* sparse; used up: its indices and values change */
    float *data;   /* [len], zeros: the result */
    ll_sparse_form form;
    uint64_t seed, stream;
    float *residual; /* [len], as in ll_svec_code */
    double *lost2;   /* by rounding of mine; not by that of sums */
    const char *site;
} ll_sparse_call;

/* Collective. *bytes: sent by this rank. *used: the form, the same on all ranks. */
ll_err ll_sparse_allreduce(ll_sparse *w, ll_comm *c, const ll_sparse_call *call, int64_t *bytes,
                           ll_sparse_form *used);
/* Which form is predicted to be fastest on p ranks, with messages of alpha + bytes beta seconds? */
ll_sparse_form ll_sparse_choose(int64_t len, int64_t k, int bits, int p, double alpha, double beta,
                                bool canonical);
