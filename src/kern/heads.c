/* heads.c: the operands of attention (see heads.h). */
#include "kern/heads.h"

#include "kern/attr.h"

#include <math.h>

ll_att ll_att_packed(const ll_tensor *qkv)
{
    const int64_t *s = qkv->shape.d, h = s[3], d = s[4];
    const char *q = (const char *)qkv->data;
    size_t part = (size_t)(h * d) * ll_dtype_bytes(qkv->dtype);
    ll_att p = {s[0], s[1], s[1], h, h, d, d, 0, 3 * h * d, 3 * h * d, 3 * h * d, .q = q};
    p.scale = 1 / sqrt((double)d);
    if (q) p.k = q + part, p.v = q + 2 * part;
    return p;
}

ll_att ll_att_of(const ll_tensor *q, const ll_tensor *mask, const void *attr)
{
    const ll_attend_attr *a = (const ll_attend_attr *)attr;
    const int64_t *x = q[0].shape.d, s = q[1].shape.d[1], n = x[2], d = x[4], e = q[2].shape.d[3];
    ll_att p = {x[0], x[1], s, n * x[3], n, d, e, a->causal ? a->ahead : s};
    p.q_row = n * x[3] * d, p.k_row = n * d, p.v_row = n * e;
    p.scale = a->scale, p.q = q[0].data, p.k = q[1].data, p.v = q[2].data;
    if (!mask) return p;
    p.mask = mask->data;
    for (int64_t i = 4, step = 1; i >= 0; step *= mask->shape.d[i--])
        p.by[i] = mask->shape.d[i] > 1 ? step : 0;
    return p;
}
