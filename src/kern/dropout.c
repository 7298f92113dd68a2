/* dropout.c: which random number belongs to an element (see dropout.h). */
#include "kern/dropout.h"

#include "base/rng.h"
#include "kern/attr.h"

uint64_t ll_dropout_stream(const ll_kcall *c)
{
    return (uint64_t)((const ll_dropout_attr *)c->attr)->stream ^ ll_stream("", c->step);
}

uint64_t ll_dropout_index(const ll_kcall *c, int64_t i)
{
    const ll_dropout_attr *a = (const ll_dropout_attr *)c->attr;
    const ll_shape *s = &c->in[0].shape;
    int64_t index = 0, stride = 1;
    for (int d = s->n - 1; d >= 0; d--) {
        index += (i % s->d[d] + a->at[d]) * stride;
        i /= s->d[d];
        stride *= a->whole.d[d];
    }
    return (uint64_t)(index + c->micro * stride);
}
