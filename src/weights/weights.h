/* weights.h: a file of named tensors that anybody may have written: safetensors, what PyTorch's
 * torch.save makes of a state_dict (pth.h), GGUF; or a folder of safetensors files, the shards of
 * one. The file is mapped, and nothing of it is trusted: after
 * ll_weights_open every element that shape and stride reach lies inside it. */
#pragma once
#include "base/arena.h"
#include "base/types.h"

typedef struct ll_weight {
    const char *name, *type;      /* type as the file spells it */
    ll_dtype dtype;               /* LL_N_DTYPE: one that we do not have */
    ll_shape shape;               /* n -1: more dimensions than we have */
    int64_t stride[LL_MAX_DIMS];  /* in elements */
    const uint8_t *data;          /* of no alignment */
    const struct ll_quant *quant; /* of blocks that become dtype (token/gguf.h); NULL: elements */
} ll_weight;

typedef struct ll_weights {
    const char *path, *kind; /* kind: "safetensors", "PyTorch" or "GGUF" */
    ll_weight *all;          /* sorted by name */
    int n;
    const char *prefix; /* that all names had, and have lost: "module."; "": none */
    bool torch;         /* written by or for PyTorch */
    bool ours;          /* a checkpoint of Loopline's, with optimizer state */
    ll_arena *arena;
    const uint8_t *map; /* the file, or the shard that was mapped last */
    size_t bytes;
    struct ll_weights *before; /* the other shards, which hold their maps alone */
    struct ll_gguf *gguf;      /* its pairs; NULL: another kind */
} ll_weights;

/* Collective over c, if not NULL. A file with a checksum of ours is checked against it. */
ll_err ll_weights_open(ll_comm *c, const char *path, ll_weights **out);
void ll_weights_close(ll_weights *w);
LL_OWNED(ll_weights, ll_weights_close);
/* Is it a file of weights, and no checkpoint of ours? Local. */
bool ll_weights_foreign(const char *path);
size_t ll_weight_bytes(const ll_weight *t); /* from its first element to its last */
const ll_weight *ll_weights_find(const ll_weights *w, const char *name); /* NULL: none */
