/* codec_int.h: what a codec is made of, inside comm/. A file codec_x.c declares ll_codecs_x, an
 * array of kinds that ends with an empty entry; the build lists the files, codec.c finds a kind by
 * the word before the first colon of a codec's text. */
#pragma once
#include "comm/codec.h"
#include "comm/sparse.h"

typedef struct ll_codec_kind {
    const char *name; /* "qsgd" */
    const char *form; /* how it is written: "qsgd:BITS" */
    const char *help; /* one line: what it does, and the settings' ranges */
    bool feedback;    /* has a residual, [n], zero at first, that codec.c allocates and frees */
    bool by_number;   /* what is kept of a number does not depend on others */
    /* settings: what follows the name and a colon, "4"; NULL where there is no colon. Sets what
     * k->own is to be. Errors by ll_codec_bad. NULL: there are no settings. */
    ll_err (*open)(ll_codec *k, const char *settings);
    void (*close)(ll_codec *k);         /* also after an open that failed; NULL: nothing to do */
    const struct ll_block_code *code;   /* of fixed rate (below); NULL: these */
    int64_t (*size)(const ll_codec *k); /* bytes of one rank's n elements, encoded */
    /* Collective. Sets k->last, but its dense_bytes. n may be 0, size may be 1. */
    ll_err (*allreduce)(ll_codec *k, ll_comm *c, float *data, int64_t step, const char *site);
} ll_codec_kind;

struct ll_codec {
    ll_arena *arena;
    const ll_codec_kind *kind;
    char *text, *name;
    int64_t n;
    uint64_t seed;
    float *residual; /* [n] or NULL */
    ll_codec_report last;
    void *own;                           /* the kind's, in the arena */
    const ll_algo *alltoall, *allgather; /* of slices.c; NULL: as any call's */
    ll_sparse_form form;                 /* of topk: in this form on every rank */
    struct ll_slices *slices;            /* slices.c's, made on first use */
    bool squeezed;                       /* slices.c: codes are Huffman-coded on their way */
    bool unsettled;                      /* messages may still come to its memory, which stays */
};

/* ---- texts (settings.c) ---- */
/* LL_E_ARG: codec "qsgd:9": what; it is written qsgd:BITS: help. */
ll_err ll_codec_bad(const ll_codec *k, const char *what);
/* A whole number low..high from all of text (NULL: missing), or ll_codec_bad. */
ll_err ll_codec_int(const ll_codec *k, const char *text, int low, int high, int *out);

/* ---- codes of fixed rate (slices.c) ----
 * A vector is cut into blocks of LL_CODE_BLOCK elements from its first one on; each is encoded by
 * itself. */
enum { LL_CODE_BLOCK = 512 };

/* Where in its stream of random numbers a block's begin: a block has those of one Philox counter.
 */
typedef struct ll_code_draw {
    uint64_t seed, stream, counter;
} ll_code_draw;

typedef struct ll_block_code {
    /* Bytes of a block of m elements: 1..LL_CODE_BLOCK. */
    int (*bytes)(const ll_codec *k, int m);
    /* x [LL_CODE_BLOCK], of which all but the first m are 0. Where codes are of single elements, a
     * number that is not finite stays so; else it makes every element of its block NaN. */
    void (*encode)(const ll_codec *k, const float *x, int m, const ll_code_draw *draw,
                   uint8_t *code);
    /* x [LL_CODE_BLOCK]: its first m; what is left in the others means nothing. */
    void (*decode)(const ll_codec *k, const uint8_t *code, int m, float *x);
} ll_block_code;

/* The all-reduce of such a code: all-to-all of encoded slices; each owner adds up its slice in f32
 * in canonical order and encodes the sum; all-gather of those. Collective. */
ll_err ll_codec_slices(ll_codec *k, ll_comm *c, float *data, int64_t step, const char *site);
void ll_slices_free(struct ll_slices *s);
/* Encoded bytes of n elements. */
int64_t ll_code_bytes(const ll_codec *k, int64_t n);
