/* safetensors_parts.c: where a part of a tensor lies in the whole. Of a [4,6,5] the part [2,3,5] at
 * [1,2,0] is 2 runs of 3 x 5 elements: dimensions that are whole, and the last one that is cut,
 * make up a run; those before it count the runs. */
#include "data/safetensors.h"

ll_st_runs ll_st_runs_of(const ll_shape *whole, const ll_st_part *part, ll_dtype dtype)
{
    ll_st_runs r = {.n = 1};
    int last = whole->n - 1; /* the last dimension that is cut; 0 where none is */
    while (last > 0 && part->shape.d[last] == whole->d[last]) last--;
    uint64_t stride = ll_dtype_bytes(dtype);
    for (int d = whole->n - 1; d >= 0; d--) {
        r.stride[d] = stride;
        r.first += (uint64_t)part->at[d] * stride;
        stride *= (uint64_t)whole->d[d];
    }
    r.bytes = whole->n ? (uint64_t)part->shape.d[last] * r.stride[last] : stride;
    r.outer.n = whole->n ? last : 0;
    for (int d = 0; d < r.outer.n; d++) {
        r.outer.d[d] = part->shape.d[d];
        r.n *= part->shape.d[d];
    }
    if (r.bytes == 0) r.n = 0;
    return r;
}

uint64_t ll_st_run_at(const ll_st_runs *r, int64_t i)
{
    uint64_t at = r->first;
    for (int d = r->outer.n - 1; d >= 0; d--) {
        at += (uint64_t)(i % r->outer.d[d]) * r->stride[d];
        i /= r->outer.d[d];
    }
    return at;
}
