/* import.h: models that a file or folder of others tells all about: GGUF, and Hugging Face's
 * folders (config.json and safetensors files). A bundled map (weight_map.h) says which model of
 * ours it is, and of what sizes. */
#pragma once
#include "base/arena.h"
#include "loopline.h"

typedef struct ll_imported {
    const char *map, *form; /* "hf-llama"; "hf:llama" */
    const ll_model *model;
    ll_size sizes[LL_MAX_SIZES];
    int n; /* of sizes that the map gives */
    int64_t tensors, numbers;
    const char *type; /* of the tensors, what most elements are */
} ll_imported;
/* Does it look like one? */
bool ll_import_knows(const char *path);
ll_err ll_import_look(const char *path, ll_arena *a, ll_imported *out);
