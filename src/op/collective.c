/* collective.c: where ranks talk. The partitioner makes these nodes; they have no kernels, for
 * comm/ runs them. What each one does to a value's layout (mesh/mesh.h):
 *
 *   all_reduce       partial over axes   -> whole on each
 *   reduce_scatter   partial over an axis -> dim cut by it
 *   all_gather       dim cut by an axis  -> whole on each
 *   all_to_all       dim cut by an axis  -> to_dim cut by it
 *   halo             dim cut by an axis  -> the same, with what a window reads of the neighbours
 *   rotate           dim cut by an axis  -> the same, each part on the next rank of the axis
 *
 * Between the stages of a pipeline one rank sends and another receives (pass/stages.c): a send has
 * no elements for a result, a recv none for an operand, and nobody need read what was sent. */
#include "op/op_int.h"

#include <stdio.h>

static ll_err loops(const void *, int, const ll_type *in, char dims[LL_DIMS_TEXT])
{
    snprintf(dims, LL_DIMS_TEXT, "%.*s->%.*s", in[0].shape.n, "______", in[0].shape.n, "______");
    return LL_OK;
}

static ll_err infer_reduce(ll_infer *i)
{
    i->out[0] = i->in[0];
    return LL_OK;
}

/* Dimension dim becomes range [from, to) of all elements. */
static ll_err take(int64_t dim, int64_t from, int64_t to, int64_t all, ll_shape *s)
{
    CHECK(from >= 0 && from <= to && to <= all, LL_E_SHAPE,
          "%ld to %ld is no range of %ld elements", from, to, all);
    s->d[dim] = to - from;
    return LL_OK;
}

static ll_err cut(const ll_coll_attr *a, int64_t dim, ll_shape *s)
{
    TRY(ll_check_dim(dim, s));
    return take(dim, a->from, a->to, s->d[dim], s);
}

static ll_err infer_scatter(ll_infer *i)
{
    const ll_coll_attr *a = (const ll_coll_attr *)i->attr;
    i->out[0] = i->in[0];
    return cut(a, a->dim, &i->out[0].shape);
}

static ll_err infer_gather(ll_infer *i)
{
    const ll_coll_attr *a = (const ll_coll_attr *)i->attr;
    i->out[0] = i->in[0];
    TRY(ll_check_dim(a->dim, &i->in[0].shape));
    CHECK(a->extent >= i->in[0].shape.d[a->dim], LL_E_SHAPE, "a part of %ld elements of %ld",
          i->in[0].shape.d[a->dim], a->extent);
    i->out[0].shape.d[a->dim] = a->extent;
    return LL_OK;
}

static ll_err infer_alltoall(ll_infer *i)
{
    const ll_coll_attr *a = (const ll_coll_attr *)i->attr;
    CHECK(a->dim != a->to_dim, LL_E_SHAPE, "dimension %ld to itself", a->dim);
    TRY(infer_gather(i));
    return cut(a, a->to_dim, &i->out[0].shape);
}

static ll_err infer_halo(ll_infer *i)
{
    const ll_halo_attr *a = (const ll_halo_attr *)i->attr;
    TRY(ll_check_dim(a->dim, &i->in[0].shape));
    CHECK(a->me >= 0 && a->me < LL_HALO_MAX, LL_E_ARG, "member %ld", a->me);
    const int64_t *need = &a->need[2 * a->me];
    i->out[0] = i->in[0];
    return take(a->dim, need[0], need[1], a->extent, &i->out[0].shape);
}

static ll_err infer_rotate(ll_infer *i)
{
    const ll_coll_attr *a = (const ll_coll_attr *)i->attr;
    TRY(ll_check_dim(a->dim, &i->in[0].shape));
    i->out[0] = i->in[0];
    return take(a->dim, a->from, a->to, a->extent, &i->out[0].shape);
}

static ll_err send_loops(const void *, int, const ll_type *in, char dims[LL_DIMS_TEXT])
{
    snprintf(dims, LL_DIMS_TEXT, "%.*s->_", in[0].shape.n, "______");
    return LL_OK;
}

static ll_err recv_loops(const void *attr, int, const ll_type *, char dims[LL_DIMS_TEXT])
{
    snprintf(dims, LL_DIMS_TEXT, "_->%.*s", ((const ll_message_attr *)attr)->shape.n, "______");
    return LL_OK;
}

/* A message's operand or result that says nothing. */
static const ll_type no_elements = {LL_F32, {1, {0}}};

static ll_err infer_send(ll_infer *i)
{
    i->out[0] = no_elements;
    return LL_OK;
}

static ll_err infer_recv(ll_infer *i)
{
    const ll_message_attr *a = (const ll_message_attr *)i->attr;
    i->out[0] = (ll_type){a->dtype, a->shape};
    return LL_OK;
}

#define COLLECTIVE(op, kind, of_loops, of_infer, ...)                                              \
    static const ll_op op = {.name = #op,                                                          \
                             .work = LL_WORK_COLLECTIVE,                                           \
                             .collective = kind,                                                   \
                             .n_in = 1,                                                            \
                             .n_out = 1,                                                           \
                             .loops = of_loops,                                                    \
                             .infer = of_infer,                                                    \
                             .no_grad = true,                                                      \
                             __VA_ARGS__};
#define PLAIN                                                                                      \
    LL_ATTRS(ll_coll_attr, axes, max, dim, to_dim, extent, from, to, step, serial, most, cut)
#define HALO LL_ATTRS(ll_halo_attr, axes, dim, extent, me, serial, swapped, need)
#define MESSAGE LL_ATTRS(ll_message_attr, axes, peer, serial, when, channel, dtype, shape)

COLLECTIVE(all_reduce, LL_ALL_REDUCE, loops, infer_reduce, PLAIN, .in_place = 1)
COLLECTIVE(reduce_scatter, LL_REDUCE_SCATTER, loops, infer_scatter, PLAIN)
COLLECTIVE(all_gather, LL_ALL_GATHER, loops, infer_gather, PLAIN)
COLLECTIVE(all_to_all, LL_ALL_TO_ALL, loops, infer_alltoall, PLAIN)
COLLECTIVE(halo, LL_HALO, loops, infer_halo, HALO)
COLLECTIVE(rotate, LL_ROTATE, loops, infer_rotate, PLAIN)
COLLECTIVE(send, LL_SEND, send_loops, infer_send, MESSAGE)
COLLECTIVE(recv, LL_RECV, recv_loops, infer_recv, MESSAGE)

const ll_op *const ll_ops_collective[] = {
    &all_reduce, &reduce_scatter, &all_gather, &all_to_all, &halo, &rotate, &send, &recv, NULL};

const ll_op *ll_collective_op(ll_collective kind)
{
    const ll_op *const *op = ll_ops_collective;
    while (*op && (*op)->collective != kind) op++;
    return *op;
}
