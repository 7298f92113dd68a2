/* weights_load.h: a session's parameters and statistics from a file of anybody's (weights.h),
 * through a map of names and layouts (weight_map.h), and from there to a file of weights alone. */
#pragma once
#include "base/stage.h"
#include "exec/session.h"
#include "weights/safetensors.h"
#include "weights/weight_map.h"
#include "weights/weights.h"

typedef struct ll_weights_from {
    const char *path;
    const char *map;  /* a bundled map's name or a file; NULL or "": the bundled one that fits */
    const char *skip; /* patterns, with blanks or commas between: of ours, that keep the values they
                       * have; of the file's, that nothing is to be read of; NULL: none */
} ll_weights_from;
/* Fills parameters and statistics; moments become zeros, and the step 0. What is missing, left over
 * or of another shape is told all at once, and nothing was changed. *note: what was read and what
 * not, for people; in arena. Collective on a mesh: each rank reads what it holds. */
ll_err ll_weights_load(ll_session *s, const ll_weights_from *from, ll_arena *arena,
                       const char **note);

/* Would it load? Of a graph without an optimizer. */
ll_err ll_weights_check(const ll_graph *g, const ll_weights *w, const ll_weights_from *from,
                        ll_arena *arena);

/* Parameters and statistics of a session on this process alone, by the map's names and layouts
 * (NULL or "": ours); adapters are merged. *n: how many were written. */
ll_err ll_weights_save(ll_session *s, const char *path, const char *map, ll_dtype dtype, int *n);
/* The same tensors in arena, without second names for one. */
ll_err ll_weights_theirs(ll_session *s, const ll_map *map, ll_dtype dtype, ll_arena *a,
                         ll_st_tensor **out, int *n);
/* Adapters alone, as PEFT names them: adapter_model.safetensors and adapter_config.json; both or
 * none (base/stage.h). */
ll_err ll_adapters_save(ll_session *s, const char *folder, const char *map, const ll_clear *clear,
                        int *n);
