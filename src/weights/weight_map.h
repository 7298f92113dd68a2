/* weight_map.h: how another system names and lays out what a model of ours has. A map is text, a
 * line for each kind of tensor, the first that fits wins; a line can be walked both ways, so one
 * map is for weights in and out:
 *
 *     OURS = THEIRS                            same elements
 *     *.bn.mean = *.running_mean               each * stands for the same on both sides
 *     * = * : fcrs -> frsc                     their dimensions and ours, for tensors of so many
 *     qkv.weight = c_attn.weight : c(zhd) -> zhdc     letters in one dimension, the last fastest
 *     fc1.weight = fc1.weight : o(chw) -> o(hwc) h=6 w=6      with sizes that do not follow
 *     qkv = q, k, v : (hd)c -> zhdc            one of ours of several: the letter that one side
 *     q, k, v = in_proj : (zo)c -> oc          lacks counts them; or the other way round
 *     tied lm_head.weight = wte.weight         a second name of theirs for the same tensor
 *     skip *.num_batches_tracked               of theirs, and nothing to us
 *     refuse rope_freqs.weight                 of theirs, and what it does no model of ours does
 *     prefix transformer.                      their names may lack it
 *
 * Of models whose files tell their sizes (import.h), also what to make of these:
 *     model llama : hf:llama, gguf:llama       ours, for these of theirs
 *     size width = hidden_size                 of several, the first that they have; or a number
 *     size norm_eps = rms_norm_eps * 1e12      has:NAME and lacks:NAME: 1 where a tensor is, is not
 *     want hidden_act = silu                   a key that, where it is there, has one of these
 *     default sliding_window = 4096 : hf:mistral      what a missing key means in this form
 *     ignore sliding_window : hf:llama         a key that means nothing in these
 * Sizes and wants are written by export too (export.h): the first key of each, or value (null: in
 * GGUF none). A * says that theirs is a real number. Besides these, for export alone, the last of a
 * key counts:
 *     put head_dim = head * 2                  a size of ours, or a JSON value, or a word
 *     put model_type = mistral : window        where that size is not 0 */
#pragma once
#include "base/arena.h"
#include "base/types.h"

#define LL_MAP_AS_IS "as-is" /* the bundled map of one line, * = * */
enum { LL_MAP_SEVERAL = 8, LL_MAP_LETTERS = 26 };

/* A tensor's dimensions as letters. */
typedef struct ll_map_dims {
    int n;
    char of[LL_MAX_DIMS][LL_MAP_LETTERS + 1];
} ll_map_dims;

typedef struct ll_map_line {
    const char *kind; /* "": a pair; "tied", "skip" or "refuse" */
    const char *ours[LL_MAP_SEVERAL], *theirs[LL_MAP_SEVERAL];
    int n_ours, n_theirs;
    bool plain; /* dimensions are not said */
    ll_map_dims left, right;
    int64_t size[LL_MAP_LETTERS]; /* 0: follows from the tensor */
} ll_map_line;

/* A size of ours of a key of theirs; a key of theirs and what it may be. */
typedef struct ll_map_key {
    const char *kind; /* "model", "size", "want", "put", "default", "ignore" */
    const char *name;
    const char *when; /* put: where this size is not 0; NULL: always; default: the form */
    const char *of[LL_MAP_SEVERAL];
    int n;
    double times;
    bool real; /* it is said */
} ll_map_key;

typedef struct ll_map {
    const char *name;
    const char *prefix; /* "": none */
    ll_map_line *lines;
    int n, capacity;
    ll_map_key *keys;
    int n_key, key_capacity;
    ll_arena *arena;
} ll_map;

ll_err ll_map_parse(const char *text, size_t size, const char *name, ll_map **out);
/* A bundled map's name, or a file: its name has a '/' or a '.'. */
ll_err ll_map_open(const char *name, ll_map **out);
void ll_map_close(ll_map *m);
LL_OWNED(ll_map, ll_map_close);
const char *ll_map_bundled(int i); /* the names; NULL after the last */

/* Does it fit, a * for any characters? rest: what each * stood for. */
typedef struct ll_map_match {
    const char *at[LL_MAP_SEVERAL];
    int length[LL_MAP_SEVERAL], n;
} ll_map_match;
bool ll_map_fits(const char *pattern, const char *name, ll_map_match *out);

/* One of our tensors as theirs: which, of what shape, and where its elements are there. */
typedef struct ll_mapped {
    int n; /* 0: no line fits */
    const char *theirs[LL_MAP_SEVERAL];
    ll_shape shape; /* of each */
    ll_map_line line;
    int which; /* of several of ours in one of theirs */
} ll_mapped;
ll_err ll_map_find(const ll_map *m, ll_arena *a, const char *ours, const ll_shape *shape,
                   ll_mapped *out);

/* Where the part's elements along each of our dimensions are: an element is in tensor
 * sum(which[d][i]) of theirs, at sum(at[d][i]) + first elements. stride: of theirs. In arena. */
typedef struct ll_map_places {
    int64_t *at[LL_MAX_DIMS], first;
    int *which[LL_MAX_DIMS];
} ll_map_places;
ll_map_places ll_map_place(const ll_mapped *x, const int64_t *stride, const ll_shape *part,
                           const int64_t *from, ll_arena *a);
