/* mesh.h: ranks as a product of named axes, and how values lie on them.
 *
 * A mesh "data=2,tensor=3" has 6 ranks; the last axis runs fastest, so that ranks which talk most
 * are neighbours: rank = data * 3 + tensor. A set of axes is a bit mask. The ranks that differ only
 * in the axes of a set are a group of it; its members are numbered like ranks of a mesh of these
 * axes alone.
 *
 * A layout says for each dimension of a value which axes cut it, and over which axes it is partial:
 * the value is then the sum (or maximum) of what the ranks hold. An axis is used once in a layout
 * at most; over axes not used every rank holds the same. A dimension of n elements is cut by its
 * axes in mesh order, each cutting what the one before left: part i of p is [i n/p, (i+1) n/p).
 * Parts need not be equal, and may be empty. */
#pragma once
#include "base/arena.h"
#include "base/share.h"

enum { LL_MAX_AXES = 8, LL_AXIS_TEXT = 12, LL_MESH_TEXT = 160, LL_LAYOUT_TEXT = 256 };

typedef struct ll_mesh {
    int n; /* axes */
    char name[LL_MAX_AXES][LL_AXIS_TEXT];
    int size[LL_MAX_AXES];
    int n_rank;
} ll_mesh;

typedef uint8_t ll_axes; /* bit a: axis a */

/* What an axis of a known name does by default (pass/partition.c). */
#define LL_AXIS_KINDS(X)                                                                           \
    X(DATA, "data", "dp", "samples of a batch")                                                    \
    X(TENSOR, "tensor", "tp", "weights of layers, columns and rows in turn")                       \
    X(SEQUENCE, "sequence", "cp", "positions in a sequence")                                       \
    X(HEIGHT, "height", "", "rows of images")                                                      \
    X(WIDTH, "width", "", "columns of images")                                                     \
    X(CHANNEL, "channel", "", "input channels of layers")                                          \
    X(FILTER, "filter", "", "output channels of layers")                                           \
    X(PIPE, "pipe", "pp", "stages of layers, one after another")                                   \
    X(ROWS, "rows", "", "samples, of a distributed matrix product")                                \
    X(COLS, "cols", "", "outputs of layers, of a distributed matrix product")                      \
    X(DEPTH, "depth", "", "inputs of layers, of a distributed matrix product")

typedef enum ll_axis_kind {
#define X(name, text, alias, help) LL_AXIS_##name,
    LL_AXIS_KINDS(X)
#undef X
        LL_N_AXIS_KIND
} ll_axis_kind;

/* "data=2,tensor=3", or "" for one rank; axes of size 1 are dropped. */
ll_err ll_mesh_parse(const char *text, ll_mesh *out);
/* Is it a mesh of so many ranks? If not, the error names near ones that are. */
ll_err ll_mesh_fits(const ll_mesh *m, int n_rank);
/* Of at most so many ranks, with no axis larger than m has it: one of as many ranks as possible,
 * and of these the one that keeps the other axes as they are, for fewer along data. */
void ll_mesh_nearest(const ll_mesh *m, int most, ll_mesh *out);
const char *ll_mesh_text(const ll_mesh *m, char out[LL_MESH_TEXT]); /* "" for one rank */
#define LL_MESH(m) ll_mesh_text(m, (char[LL_MESH_TEXT]){0})         /* for printf, as below */
ll_axis_kind ll_mesh_kind(const ll_mesh *m, int axis);
int ll_mesh_axis(const ll_mesh *m, ll_axis_kind k); /* -1: there is none */
int ll_mesh_coord(const ll_mesh *m, int axis, int rank);
/* Groups: how many ranks; my number in my group; the rank of its member i. */
int ll_mesh_group(const ll_mesh *m, ll_axes axes);
int ll_mesh_member(const ll_mesh *m, ll_axes axes, int rank);
int ll_mesh_rank_of(const ll_mesh *m, ll_axes axes, int rank, int i);
/* The axes along which no rank's neighbours are on another node. node: of each rank; NULL: so many
 * ranks, one after another, share one, or all (0). */
ll_axes ll_mesh_near(const ll_mesh *m, const int *node, int per_node);
/* Which of its groups rank is in, from 0. */
int ll_mesh_color(const ll_mesh *m, ll_axes axes, int rank);

typedef struct ll_layout {
    ll_axes split[LL_MAX_DIMS];
    ll_axes sum, max;
} ll_layout;

bool ll_layout_equal(const ll_layout *a, const ll_layout *b);
ll_axes ll_layout_axes(const ll_layout *l); /* all that are used */
/* [*from, *to) of a dimension of n elements cut by axes, that rank holds. */
void ll_layout_range(const ll_mesh *m, ll_axes axes, int64_t n, int rank, int64_t *from,
                     int64_t *to);
ll_shape ll_layout_local(const ll_mesh *m, const ll_layout *l, const ll_shape *shape, int rank);
/* "data*tensor", into out. */
const char *ll_axes_text(const ll_mesh *m, ll_axes axes, char out[LL_LAYOUT_TEXT]);
/* "[data, -, tensor] sum(height)", into out. */
const char *ll_layout_text(const ll_mesh *m, const ll_layout *l, int n_dim,
                           char out[LL_LAYOUT_TEXT]);
#define LL_AXES(m, axes) ll_axes_text(m, axes, (char[LL_LAYOUT_TEXT]){0})
#define LL_LAYOUT(m, l, n_dim) ll_layout_text(m, l, n_dim, (char[LL_LAYOUT_TEXT]){0})

/* ---- from one layout to another ---- */
typedef enum ll_move_kind {
    LL_MOVE_SLICE,
    LL_MOVE_ALLGATHER,
    LL_MOVE_ALLTOALL,
    LL_MOVE_REDUCE_SCATTER,
    LL_MOVE_ALLREDUCE
} ll_move_kind;

typedef struct ll_move {
    ll_move_kind kind;
    ll_axes axes; /* one axis; all-reduce: any */
    bool max;     /* reductions: by maximum */
    int dim;      /* slice, reduce-scatter: becomes cut; all-gather: becomes whole; all-to-all:
                   * becomes whole */
    int to_dim;   /* all-to-all: becomes cut */
    ll_layout after;
    double bytes; /* that a rank sends, on average */
} ll_move;

enum { LL_MAX_MOVES = 16 };
/* The cheapest way, by bytes sent and then by number of moves, found by searching all. bytes: of
 * the whole value. to must not be partial over axes that from is not. */
ll_err ll_reshard(const ll_mesh *m, const ll_shape *shape, double bytes, const ll_layout *from,
                  const ll_layout *to, ll_move moves[LL_MAX_MOVES], int *n_move);
