/* place_int.h: what the files of the placer share. */
#pragma once
#include "pass/layouts.h"
#include "pass/partition.h"

typedef struct placer {
    ll_placement *p;
    const ll_place_opts *o;
    const ll_graph *g;
    const ll_mesh *m;
    bool *decided;       /* [n_value] inputs whose layout is known */
    bool *expand;        /* [n_node] must be expanded */
    ll_layout *updated;  /* [n_value] parameters, as their updates see them */
    const int *n_reader; /* [n_value] */
    ll_val *grad_of;     /* [n_value] accum result -> the parameter it becomes the gradient of */
    ll_val *aim;         /* [n_value] what such a mean is a sum of -> that parameter */
    /* [n_value] owed a sum over an axis: the dimension, from 1, that readers may have it cut along
     */
    int8_t (*positions)[LL_MAX_AXES];
    uint16_t (*held)[LL_MAX_AXES]; /* [n_value] bit d: some node has it cut along d; 15: whole */
    int8_t home[LL_MAX_AXES]; /* of the node at hand: the loop its results come back to; -1: none */
    ll_axes used;             /* axes that cut some loop */
} placer;

static inline ll_axes bit(int a)
{
    return (ll_axes)(1u << a);
}

/* The dimension that an axis cuts; -1: none. */
static inline int cut_dim(const ll_layout *l, int axis)
{
    for (int d = 0; d < LL_MAX_DIMS; d++)
        if (l->split[d] & bit(axis)) return d;
    return -1;
}

static inline const ll_value *value(const placer *c, ll_val v)
{
    return ll_value_of(c->g, v);
}

/* Is v an input whose layout its first reader will decide? */
static inline bool undecided(const placer *c, ll_val v)
{
    return value(c, v)->node < 0 && !c->decided[v.id];
}

/* Local. Is v held cut by axis along dim (-1: whole), besides how it is seen? */
bool ll_place_holds(const placer *c, ll_val v, int axis, int dim);
/* Local. The node's operands and results are held as it has them. */
void ll_place_hold(placer *c, int node, const ll_loops *l);
/* place_loops.c. How a result lies with loops cut so. */
ll_layout ll_place_result(const placer *c, int node, const ll_loops *l, int out,
                          const int8_t cuts[LL_MAX_AXES]);

/* Local. Can a loop be cut at all, by one more axis? */
bool ll_place_cuttable(const placer *c, int node, const ll_loops *l, int loop);

/* layouts.c. All Local. The loop that axis a must cut, because a parameter lies so that the node
 * reads or makes the gradient of; -1: none. Fails where what is asked cannot be. */
ll_err ll_place_pinned(const placer *c, int node, const ll_loops *l, int a, int *loop);
/* Is a result wanted cut by axis a along loop? */
bool ll_place_asked(const placer *c, const ll_node *n, const ll_loops *l, int a, int loop);
/* Bytes from results cut by axis a along loop to what is asked of them. */
double ll_place_unpinned(const placer *c, const ll_node *n, const ll_loops *l, int a, int loop);

/* place_detour.c. Local. A node follows its operands to a loop that must be whole: *turn is a free
 * loop that is cheaper to go by, there and back; -1: none is. */
ll_err ll_place_detour(const placer *c, int node, const ll_loops *l, int axis, int loop,
                       int8_t *turn);

/* place_weights.c. All Local. May axis a begin here by cutting a loop of a weight that nothing has
 * cut yet? *cost: what that loses later. */
bool ll_place_begins(const placer *c, const ll_node *n, const ll_loops *l, int a, int loop,
                     double *cost);
bool ll_place_may_begin(const placer *c, const ll_node *n, const ll_loops *l, int a); /* any loop */
bool ll_place_forbidden(const placer *c, const ll_node *n, const ll_loops *l, int a, int loop);
/* Is loop no business of axis tensor here, because the node multiplies with a weight that it cuts,
 * or (begins) will cut? */
bool ll_place_weights_first(const placer *c, const ll_node *n, const ll_loops *l, int a, int loop,
                            bool begins);
/* The loop that gives a gradient the cut of its weight by axis tensor; -1: none. */
int ll_place_aimed(const placer *c, const ll_node *n, const ll_loops *l, int a);
/* Follows the means of gradients back to what they are sums of. */
void ll_place_aim(placer *c, ll_val v, ll_val param, int depth);
void ll_place_positions(placer *c, int node, const ll_loops *l);
