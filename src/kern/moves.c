/* moves.c: the ops that move elements (see moves.h). */
#include "kern/moves.h"

#include "base/spec.h"
#include "kern/attr.h"

/* All of the box, from element x of the operand on (NULL: zeros), to element y of the result on. */
static ll_kernel_move move_of(const ll_kcall *c, const ll_shape *box, const ll_tensor *from,
                              int64_t x, int64_t y)
{
    const ll_tensor *to = &c->out[0];
    ll_kernel_move m = {.w = {.n = box->n, .walkers = 2}, .bytes = ll_dtype_bytes(to->dtype)};
    memcpy(m.w.size, box->d, sizeof m.w.size);
    ll_walk_strides(&to->shape, m.w.stride[LL_TO]);
    if (from) ll_walk_strides(&from->shape, m.w.stride[LL_FROM]);
    if (from) m.x = (const char *)from->data + (size_t)x * m.bytes;
    m.y = (char *)to->data + (size_t)y * m.bytes;
    return m;
}

/* Elements from one index along dim to the next. */
static int64_t step_of(const ll_tensor *t, int64_t dim)
{
    int64_t stride[LL_MAX_DIMS];
    ll_walk_strides(&t->shape, stride);
    return stride[dim];
}

int ll_slice_moves(const ll_kcall *c, ll_kernel_move m[LL_MOVES])
{
    const ll_range_attr *a = c->attr;
    m[0] = move_of(c, &c->out[0].shape, &c->in[0], a->from * step_of(&c->in[0], a->dim), 0);
    return 1;
}

/* A box of n indices along dim, the others as in the result: from x, or of zeros. */
static ll_kernel_move part_of(const ll_kcall *c, int64_t dim, int64_t n, const ll_tensor *x,
                              int64_t at)
{
    ll_shape box = c->out[0].shape;
    box.d[dim] = n;
    return move_of(c, &box, x, 0, at * step_of(&c->out[0], dim));
}

int ll_pad_moves(const ll_kcall *c, ll_kernel_move m[LL_MOVES])
{
    const ll_range_attr *a = c->attr;
    int64_t middle = c->in[0].shape.d[a->dim];
    m[0] = part_of(c, a->dim, a->from, NULL, 0);
    m[1] = part_of(c, a->dim, middle, &c->in[0], a->from);
    m[2] = part_of(c, a->dim, a->to, NULL, a->from + middle);
    return 3;
}

int ll_concat_moves(const ll_kcall *c, ll_kernel_move m[LL_MOVES])
{
    const ll_range_attr *a = c->attr;
    LL_ASSERT(c->n_in <= LL_MOVES);
    int64_t at = 0;
    for (int i = 0; i < c->n_in; at += c->in[i++].shape.d[a->dim])
        m[i] = part_of(c, a->dim, c->in[i].shape.d[a->dim], &c->in[i], at);
    return c->n_in;
}

int ll_reshape_moves(const ll_kcall *c, ll_kernel_move m[LL_MOVES])
{
    ll_tensor x = c->in[0];
    x.shape = c->out[0].shape;
    m[0] = move_of(c, &x.shape, &x, 0, 0);
    return 1;
}

static int by_letters(const ll_kcall *c, const char *spec, ll_kernel_move m[LL_MOVES])
{
    ll_spec s;
    LL_ASSERT(ll_spec_parse(spec, &s) == LL_OK);
    int64_t stride[LL_MAX_DIMS];
    m[0] = move_of(c, &c->out[0].shape, &c->in[0], 0, 0);
    ll_walk_strides(&c->in[0].shape, stride);
    for (int i = 0; i < s.n_out; i++)
        m[0].w.stride[LL_FROM][i] = s.from[i] < 0 ? 0 : stride[s.from[i]];
    return 1;
}

int ll_transpose_moves(const ll_kcall *c, ll_kernel_move m[LL_MOVES])
{
    return by_letters(c, ((const ll_spec_attr *)c->attr)->spec, m);
}

int ll_broadcast_moves(const ll_kcall *c, ll_kernel_move m[LL_MOVES])
{
    return by_letters(c, ((const ll_broadcast_attr *)c->attr)->spec, m);
}
