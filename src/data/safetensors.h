/* safetensors.h: reading named tensors of a file: eight bytes with the header's length (little
 * endian), the header in JSON, then the tensors' bytes one after the other without holes:
 *
 *     {"__metadata__":{"step":"1200"},
 *      "fc1.weight":{"dtype":"F32","shape":[128,784],"data_offsets":[0,401408]}, ...} */
#pragma once
#include "base/own.h"
#include "base/types.h"

typedef struct ll_st_pair {
    const char *key, *value;
} ll_st_pair;

/* What a rank has of a tensor: data is of this shape, and begins there in the whole. */
typedef struct ll_st_part {
    ll_shape shape;
    int64_t at[LL_MAX_DIMS];
    bool spare; /* another rank has the same, and writes it */
} ll_st_part;

/* Of the format's types: ours, or LL_N_DTYPE; the kind of an element of whole bytes that tables
 * have (data/parse.h), or 0. bits 0: a type that the format does not have. */
typedef struct ll_st_type {
    const char *name;
    int bits;
    ll_dtype ll;
    char kind;
} ll_st_type;

typedef struct ll_st_entry {
    const char *name, *type; /* type as the file spells it: "F32"; it may be one we do not have */
    ll_st_type is;
    int n_dims;
    const int64_t *dims;
    uint64_t begin, end; /* its bytes, counted from the first tensor's first byte */
} ll_st_entry;

/* Others read of it what they want: tensors are in the order of their names. */
typedef struct ll_st_file {
    struct ll_arena *arena;
    const char *path;
    int fd; /* -1: parsed from memory */
    int n_entries, n_meta;
    ll_st_entry *entries;
    ll_st_pair *meta;
    uint64_t data_at, data_bytes; /* where the file's tensors begin, and the bytes of them all */
} ll_st_file;

/* Reads and checks the header; tensors are read when asked for. */
ll_err ll_st_open(const char *path, ll_st_file **out);
/* The same for a file's first n bytes, which must hold the header. No tensor can be read. */
ll_err ll_st_parse(const uint8_t *bytes, size_t n, uint64_t file_bytes, const char *path,
                   ll_st_file **out);
void ll_st_close(ll_st_file *f);
LL_OWNED(ll_st_file, ll_st_close);

const char *ll_st_meta(const ll_st_file *f, const char *key);         /* NULL: none */
const ll_st_entry *ll_st_find(const ll_st_file *f, const char *name); /* NULL: none */

/* Type and shape of a tensor that must be there and be of a type and rank we have. */
ll_err ll_st_want(const ll_st_file *f, const char *name, ll_dtype *dtype, ll_shape *shape);
ll_err ll_st_read_part(const ll_st_file *f, const char *name, const ll_st_part *part, void *data);
/* Takes bytes [from, to) of the tensors into a checksum's remainder (base/crc32c.h). */
ll_err ll_st_remainder(const ll_st_file *f, uint64_t from, uint64_t to, uint32_t *out);

/* A part as runs of bytes that lie together in the whole, and in the part one after the other. */
typedef struct ll_st_runs {
    int64_t n;
    uint64_t bytes; /* of each */
    ll_shape outer; /* of the part, without what is in a run */
    uint64_t first, stride[LL_MAX_DIMS];
} ll_st_runs;
ll_st_runs ll_st_runs_of(const ll_shape *whole, const ll_st_part *part, ll_dtype dtype);
uint64_t ll_st_run_at(const ll_st_runs *r, int64_t i); /* in the whole */
