/* export.h: trained models as others describe them: Hugging Face's folders and GGUF files, by the
 * maps that import reads them by (weight_map.h), the other way round. Adapters are merged. */
#pragma once
#include "exec/session.h"
#include "run/run.h"
#include "weights/weights_load.h"

/* config.json, model.safetensors (in f32, bf16 or f16), and the run's tokenizer, where it has one.
 * *map: by which; *n: tensors; in arena, of a session on this process alone. What is refused, or
 * fails, leaves the folder as it was (base/stage.h). */
typedef struct ll_exported {
    const char *map;
    int tensors;
    bool tokenizer;
} ll_exported;
ll_err ll_export_hf(const ll_run *r, ll_session *s, const char *folder, const char *type,
                    const ll_clear *clear, ll_arena *a, ll_exported *out);
/* A GGUF file: type f32, bf16, f16, q8_0 or q4_1; of norms and biases always f32. A model of bytes
 * gets a tokenizer of bytes; one of other tokens must have one. */
ll_err ll_export_gguf(const ll_run *r, ll_session *s, const char *path, const char *type,
                      ll_arena *a, ll_exported *out);
