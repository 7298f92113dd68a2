/* plan_try.h: ways to train a run, compiled as training would and replayed on a cluster: meshes,
 * and layouts that cut different layers along different axes. */
#pragma once
#include "plan/replay.h"
#include "run/run.h"

/* How ranks would train. */
typedef struct ll_recipe {
    char mesh[LL_MESH_TEXT];
    int zero;
    int per_node;                  /* ranks of a node; 0: all */
    int64_t micro;                 /* micro-batches of a step */
    const char *recompute;         /* as parallel.recompute; NULL: nothing is made again */
    const ll_layout_rule *layouts; /* ends with pattern NULL; NULL: the run's own */
    double room;                   /* bytes: what surely takes more is refused; 0: any */
    size_t aside;                  /* values are laid aside to keep within these bytes; 0: none */
    const ll_target *device;       /* compiled for it, if this build has it or not; NULL: cores */
} ll_recipe;

typedef struct ll_tried {
    ll_recipe way;
    ll_replayed out;
    ll_memory_kinds kinds;
    size_t bytes;
    bool fits;
} ll_tried;

typedef struct ll_tries {
    const ll_run *run;
    const ll_cluster *cluster;
    const ll_graph *g; /* of a micro-batch of the run's */
    ll_arena *arena;
    ll_tried *v;
    int n, room;
    int left_out;      /* that cannot be cut so */
    char trouble[512]; /* why the last of these cannot */
} ll_tries;

/* The fullest program of a rank: the last rank's, whose parts are the largest, or of a pipeline the
 * one of its ranks that has most; *bytes: its, and of exact sums those of a step that is made again
 * with all bits. g: NULL: made. threads: of a rank. */
ll_err ll_recipe_compile(const ll_run *r, const ll_graph *g, const ll_recipe *w, int threads,
                         ll_program **out, size_t *bytes);
/* One way, which is not added; false: it cannot be cut so. */
bool ll_tries_way(ll_tries *s, const ll_recipe *w, ll_tried *out);
/* A mesh as it stands, with the run's own layouts. */
void ll_tries_mesh(ll_tries *s, const char *mesh, int zero);
/* "data=4,tensor=2" of 8 ranks, or "tensor=8" where that is all of them. */
void ll_mesh_with(int64_t ranks, const char *axis, int64_t size, char out[LL_MESH_TEXT]);
/* All meshes of so many ranks. zero: -1: any. */
void ll_tries_meshes(ll_tries *s, int64_t ranks, int zero);
/* These, and where the run has no layouts of its own those that cut different
 * layers along different axes. */
void ll_tries_all(ll_tries *s, int64_t ranks, int zero);
/* What fits first, then the quickest. */
void ll_tries_sort(ll_tries *s);
/* Bytes that a rank's tensors may take: of the chip what is not reserved, or train.memory. */
double ll_tries_room(const ll_tries *s);
/* Of what was tried, that of fewest bytes. */
const ll_tried *ll_tries_least(const ll_tries *s);
