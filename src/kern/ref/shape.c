/* shape.c: reference kernels of the ops that move elements: for each element of the result, its
 * position, the operand's element there, a copy. */
#include "kern/rows.h"
#include "kern/attr.h"
#include "base/spec.h"

LL_KERNELS(fill, reshape, transpose, broadcast, slice, pad, concat)

/* The position of element e, row-major, and back. */
static void position(const ll_shape *s, int64_t e, int64_t at[LL_MAX_DIMS])
{
    for (int i = s->n - 1; i >= 0; i--) {
        at[i] = e % s->d[i];
        e /= s->d[i];
    }
}

static int64_t element(const ll_shape *s, const int64_t at[LL_MAX_DIMS])
{
    int64_t e = 0;
    for (int i = 0; i < s->n; i++) e = e * s->d[i] + at[i];
    return e;
}

static void copy(const ll_tensor *y, int64_t to, const ll_tensor *x, int64_t from)
{
    size_t bytes = ll_dtype_bytes(y->dtype);
    memcpy((char *)y->data + (size_t)to * bytes, (const char *)x->data + (size_t)from * bytes,
           bytes);
}

ll_err fill_ref(const ll_kcall *c)
{
    const ll_fill_attr *a = c->attr;
    const ll_tensor *y = &c->out[0];
    int64_t n = ll_numel(&y->shape);
    for (int64_t e = 0; e < n; e++) ll_set(y, e, a->value);
    return LL_OK;
}

ll_err reshape_ref(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[0], *y = &c->out[0];
    int64_t n = ll_numel(&y->shape);
    for (int64_t e = 0; e < n; e++) copy(y, e, x, e);
    return LL_OK;
}

/* Each operand dimension walks the result dimension of its letter; other result dimensions repeat.
 */
static ll_err by_letters(const ll_kcall *c, const char *text)
{
    const ll_tensor *x = &c->in[0], *y = &c->out[0];
    ll_spec s;
    TRY(ll_spec_parse(text, &s));
    int64_t n = ll_numel(&y->shape), to[LL_MAX_DIMS], from[LL_MAX_DIMS];
    for (int64_t e = 0; e < n; e++) {
        position(&y->shape, e, to);
        for (int i = 0; i < s.n_in; i++) from[i] = to[s.to[i]];
        copy(y, e, x, element(&x->shape, from));
    }
    return LL_OK;
}

ll_err transpose_ref(const ll_kcall *c)
{
    return by_letters(c, ((const ll_spec_attr *)c->attr)->spec);
}

ll_err broadcast_ref(const ll_kcall *c)
{
    return by_letters(c, ((const ll_broadcast_attr *)c->attr)->spec);
}

/* From so far along dim of the operand; what is not in it is 0. */
static ll_err shifted(const ll_kcall *c, int64_t by)
{
    int64_t dim = ((const ll_range_attr *)c->attr)->dim, at[LL_MAX_DIMS];
    const ll_tensor *x = &c->in[0], *y = &c->out[0];
    for (int64_t e = 0; e < ll_numel(&y->shape); e++) {
        position(&y->shape, e, at);
        at[dim] += by;
        if (at[dim] >= 0 && at[dim] < x->shape.d[dim])
            copy(y, e, x, element(&x->shape, at));
        else
            ll_set(y, e, 0);
    }
    return LL_OK;
}

ll_err slice_ref(const ll_kcall *c)
{
    return shifted(c, ((const ll_range_attr *)c->attr)->from);
}

ll_err pad_ref(const ll_kcall *c)
{
    return shifted(c, -((const ll_range_attr *)c->attr)->from);
}

ll_err concat_ref(const ll_kcall *c)
{
    const ll_range_attr *a = c->attr;
    const ll_tensor *y = &c->out[0];
    int64_t n = ll_numel(&y->shape), at[LL_MAX_DIMS];
    for (int64_t e = 0; e < n; e++) {
        position(&y->shape, e, at);
        const ll_tensor *x = c->in;
        for (; at[a->dim] >= x->shape.d[a->dim]; x++) at[a->dim] -= x->shape.d[a->dim];
        copy(y, e, x, element(&x->shape, at));
    }
    return LL_OK;
}
