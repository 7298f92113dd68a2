/* safetensors.h: named tensors in a file (data/safetensors.h), written and checked by many ranks.
 * What we write is the same, byte for byte, whatever order the tensors are given in: they are laid
 * down by size of element, larger first, then by name, and spaces after the header bring the data
 * to a multiple of eight, so each tensor is aligned to its element. The metadata also gets
 * "crc32c", the checksum of all tensor bytes in hexadecimal, which other readers ignore. */
#pragma once
#include "data/safetensors.h"

typedef struct ll_st_tensor {
    const char *name;
    ll_dtype dtype;
    ll_shape shape;
    void *data;
} ll_st_tensor;

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

/* Reads all tensors and compares their checksum with the one in the metadata, where there is one.
 * Collective over c, if not NULL: each rank reads a share. */
ll_err ll_st_check(ll_comm *c, const ll_st_file *f);
