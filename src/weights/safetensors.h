/* safetensors.h: named tensors in a file (data/safetensors.h), written and checked by many ranks.
 * What we write is the same, byte for byte, whatever order the tensors are given in: they are laid
 * down by size of element, larger first, then by name, and spaces after the header bring the data
 * to a multiple of eight, so each tensor is aligned to its element. The metadata also gets
 * "crc32c", the checksum of all tensor bytes in hexadecimal, and "crc32c.tensors", that of each in
 * order of names, which other readers ignore. */
#pragma once
#include "base/arena.h"
#include "data/safetensors.h"

typedef struct ll_st_tensor {
    const char *name;
    ll_dtype dtype;
    ll_shape shape;
    void *data;
} ll_st_tensor;

/* Tensors, of whole shapes, and what this rank has of each; parts NULL: all. */
typedef struct ll_st_list {
    ll_st_tensor *tensors;
    ll_st_part *parts;
    int n;
} ll_st_list;

typedef struct ll_st_content {
    const ll_st_tensor *tensors; /* of whole shapes; in the same order on all ranks */
    int n;
    const ll_st_part *parts; /* [n]; NULL: whole */
    const ll_st_pair *meta;  /* likewise the same */
    int n_meta;
    ll_comm *comm; /* NULL: this process alone */
    bool unsummed; /* without checksums */
} ll_st_content;
/* Collective over comm. The same bytes as one process would write that has all: every rank writes
 * its parts at their places. If one fails, all do, and the file is as it was (base/file.h). Names
 * and keys must be unique. */
ll_err ll_st_write(const char *path, const ll_st_content *x);

/* Its steps. begin and sum are collective, begin with agreement; put and seal are local, may be
 * another thread's, and only when all ranks' put went well is there a sum, and then a seal. Close
 * takes back what is not sealed. What x points to stays until then. */
typedef struct ll_st_writer ll_st_writer;
ll_err ll_st_begin(const char *path, const ll_st_content *x, ll_st_writer **out);
ll_err ll_st_put(ll_st_writer *w);
ll_err ll_st_sum(ll_st_writer *w);
ll_err ll_st_seal(ll_st_writer *w);
ll_err ll_st_finish(ll_st_writer *w); /* put, sum and seal, collective */
void ll_st_writer_close(ll_st_writer *w);
LL_OWNED(ll_st_writer, ll_st_writer_close);

/* Where everything lies in the file that would be written. Local; in arena. */
typedef struct ll_st_image {
    char *header; /* with its length in front */
    size_t header_bytes;
    int *order;     /* [n]: of the i-th tensor in the file, which it is in x */
    uint64_t *at;   /* [n]: and its first byte */
    uint64_t bytes; /* of the file */
} ll_st_image;
ll_err ll_st_plan(const ll_st_content *x, ll_arena *arena, ll_st_image *out);

/* Reads all tensors and compares their checksum with the one in the metadata, where there is one.
 * Collective over c, if not NULL: each rank reads a share. */
ll_err ll_st_check(ll_comm *c, const ll_st_file *f);
