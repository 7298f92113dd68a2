/* safetensors.h: named tensors in a file: eight bytes with the header's length (little endian), the
 * header in JSON, then the tensors' bytes one after the other without holes:
 *
 *     {"__metadata__":{"step":"1200"},
 *      "fc1.weight":{"dtype":"F32","shape":[128,784],"data_offsets":[0,401408]}, ...}
 *
 * What we write is the same, byte for byte, whatever order the tensors are given in: they are laid
 * down by size of element, larger first, then by name, and spaces after the header bring the data
 * to a multiple of eight, so each tensor is aligned to its element. The metadata also gets
 * "crc32c", the checksum of all tensor bytes in hexadecimal, which other readers ignore. */
#pragma once
#include "base/own.h"
#include "base/types.h"

typedef struct ll_st_tensor {
    const char *name;
    ll_dtype dtype;
    ll_shape shape;
    void *data;
} ll_st_tensor;

typedef struct ll_st_pair {
    const char *key, *value;
} ll_st_pair;

/* What a rank has of a tensor: data is of this shape, and begins there in the whole. */
typedef struct ll_st_part {
    ll_shape shape;
    int64_t at[LL_MAX_DIMS];
    bool spare; /* another rank has the same, and writes it */
} ll_st_part;

typedef struct ll_st_content {
    const ll_st_tensor *tensors; /* of whole shapes; in the same order on all ranks */
    int n;
    const ll_st_part *parts; /* [n]; NULL: whole */
    const ll_st_pair *meta;  /* likewise the same */
    int n_meta;
    ll_comm *comm; /* NULL: this process alone */
} ll_st_content;
/* Collective over comm. The same bytes as one process would write that has all: every rank writes
 * its parts at their places. If one fails, all do, and the file is as it was (base/file.h). Names
 * and keys must be unique. */
ll_err ll_st_write(const char *path, const ll_st_content *x);

typedef struct ll_st_file ll_st_file;

typedef struct ll_st_entry {
    const char *name, *type; /* type as the file spells it: "F32"; it may be one we do not have */
    int n_dims;
    const int64_t *dims;
    uint64_t begin, end; /* its bytes, counted from the first tensor's first byte */
} ll_st_entry;

/* Reads and checks the header; tensors are read when asked for. */
ll_err ll_st_open(const char *path, ll_st_file **out);
/* The same for a file's first n bytes, which must hold the header. No tensor can be read. */
ll_err ll_st_parse(const uint8_t *bytes, size_t n, uint64_t file_bytes, const char *path,
                   ll_st_file **out);
void ll_st_close(ll_st_file *f);
static inline void ll_st_file_drop(ll_st_file **f)
{
    ll_st_close(*f);
}

const char *ll_st_path(const ll_st_file *f);
const char *ll_st_meta(const ll_st_file *f, const char *key); /* NULL: none */
int ll_st_count(const ll_st_file *f);
const ll_st_entry *ll_st_at(const ll_st_file *f, int i);              /* in order of names */
const ll_st_entry *ll_st_find(const ll_st_file *f, const char *name); /* NULL: none */

/* Type and shape of a tensor that must be there and be of a type and rank we have. */
ll_err ll_st_want(const ll_st_file *f, const char *name, ll_dtype *dtype, ll_shape *shape);
ll_err ll_st_read_part(const ll_st_file *f, const char *name, const ll_st_part *part, void *data);
/* Reads all tensors and compares their checksum with the one in the metadata, where there is one.
 * Collective over c, if not NULL: each rank reads a share. */
ll_err ll_st_check(ll_comm *c, const ll_st_file *f);

/* A part as runs of bytes that lie together in the whole, and in the part one after the other. */
typedef struct ll_st_runs {
    int64_t n;
    uint64_t bytes; /* of each */
    ll_shape outer; /* of the part, without what is in a run */
    uint64_t first, stride[LL_MAX_DIMS];
} ll_st_runs;
ll_st_runs ll_st_runs_of(const ll_shape *whole, const ll_st_part *part, ll_dtype dtype);
uint64_t ll_st_run_at(const ll_st_runs *r, int64_t i); /* in the whole */
